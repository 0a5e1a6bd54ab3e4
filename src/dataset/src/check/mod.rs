//! The check of a data set: reads its layout, probes every video once, and reports what can be used.

mod captions;
mod clips;
mod columns;
mod facts;
mod probing;
mod report;
#[cfg(test)]
mod tests;
mod text;

use crate::each_file::{OnProgress, TICK, cache_folder, interrupted};
use crate::export::KeptColumns;
use crate::layouts::{SourceListing, SourceRequest, nothing_left, read_source};
use crate::{Assigner, ClipManifest, ManifestHeader};
use camino::Utf8PathBuf;
use rundir::{ErrorCode, Failure};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use video::{FrameChoice, Programs};

pub use crate::each_file::CheckProgress;
pub use columns::ColumnReport;
pub(crate) use columns::table as column_table;
pub use report::{Captions, Count, Dropped, Histogram, Lengths, Report};

/// The number of tokens of a caption that CogVideoX's text encoder reads.
pub const CAPTION_TOKENS: usize = 226;
/// The maximum number of characters of a caption. A longer text is a mistake, such as a subtitle file or a log.
pub const CAPTION_CHARACTERS: usize = 5000;

/// A request to check a data set.
pub struct CheckRequest<'a> {
    /// The folder or table.
    pub source: SourceRequest,
    /// The frames that each clip must have. `None`: any clip with two frames is long enough.
    pub frames: Option<FrameChoice>,
    /// The size that pictures are scaled to: height, width. Smaller videos are counted, not dropped.
    pub size: Option<[usize; 2]>,
    /// The buckets of a recipe. Clips without one are excluded.
    pub buckets: Option<Assigner>,
    /// The maximum length of a caption in characters.
    pub most_characters: usize,
    /// The number of tokens that the encoder reads of a caption. The report counts longer captions.
    pub most_tokens: usize,
    /// Counts the tokens of a caption.
    pub count_tokens: Option<&'a (dyn Fn(&str) -> usize + Sync)>,
    /// The folder of the probe cache. `None`: results are not cached.
    pub cache: Option<Utf8PathBuf>,
    /// ffprobe.
    pub programs: Programs,
    /// Probes that run at the same time.
    pub workers: usize,
}

impl CheckRequest<'_> {
    /// Makes a request with the defaults: all cores, and the cache folder of the user.
    pub fn new(source: SourceRequest) -> Self {
        Self {
            source,
            frames: None,
            size: None,
            buckets: None,
            most_characters: CAPTION_CHARACTERS,
            most_tokens: CAPTION_TOKENS,
            count_tokens: None,
            cache: cache_folder("probes"),
            programs: Programs::default(),
            workers: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl CheckRequest<'_> {
    /// Returns the rate at which frames are taken, which is that of folders of frames; `None` to take frames by their numbers.
    fn rate(&self) -> Option<f64> {
        let of_buckets = || self.buckets.as_ref().and_then(Assigner::rate);
        self.frames.as_ref().map_or_else(of_buckets, |choice| choice.fps)
    }
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// All clips, including excluded ones.
    pub manifest: ClipManifest,
    /// The facts and counts.
    pub report: Report,
    /// The values that the source keeps of each clip.
    pub kept: KeptColumns,
}

/// Checks a data set. Probes run on all cores. Each result is cached at once, so an interrupted check can continue.
///
/// # Errors
/// If the source cannot be read, ffprobe is missing, or `on_progress` breaks (`Cancelled`). A video that cannot be used is
/// not an error: its clip is excluded.
pub fn check(request: &CheckRequest<'_>, on_progress: OnProgress<'_>) -> Result<Checked, Failure> {
    let from = request.source.clone();
    let mut source = read_in_thread(move || read_source(&from), on_progress)?;
    let probed = probing::probe_all(&source, request, on_progress)?;
    let mut clips = clips::clips(&source, &probed, request.rate());
    if let Some(filter) = &request.source.filter {
        clips::leave_out(&mut source, &mut clips, filter);
        if clips.is_empty() {
            return Err(nothing_left(&request.source.source, &source.fields.conditions));
        }
    }
    captions::write(&source, &mut clips, request)?;
    if clips.iter().any(|clip| clip.is_usable() && clip.hdr) && can_not_tone_map(&request.programs)? {
        clips::exclude_hdr(&mut clips);
    }
    clips::exclude_repeated(&mut clips);
    let mut header = ManifestHeader::new(&request.source.source, source.layout.name(), &source.root);
    header.caption = request.source.template.as_ref().map(|template| template.text.clone()).unwrap_or_default();
    header.conditions = request.source.filter.as_ref().map(|filter| filter.text.clone()).unwrap_or_default();
    let mut manifest = ClipManifest { header, clips };
    if let Some(choice) = &request.frames {
        manifest.exclude_short(choice);
    }
    manifest.assign(request.buckets.as_ref());
    let report = Report::new(&manifest, &source, &probed, request);
    let rows = source.rows.into_iter().map(|row| row.kept).collect();
    Ok(Checked { manifest, report, kept: KeptColumns { names: source.fields.kept, rows } })
}

/// Reads the source in another thread, so that the check can be interrupted while a disk does not respond.
fn read_in_thread(
    read: impl FnOnce() -> Result<SourceListing, Failure> + Send + 'static,
    on_progress: OnProgress<'_>,
) -> Result<SourceListing, Failure> {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || {
        // The receiver is gone after an interruption.
        let _ = sender.send(read());
    });
    loop {
        match receiver.recv_timeout(TICK) {
            Ok(read) => return read,
            Err(RecvTimeoutError::Timeout) => {
                if on_progress(CheckProgress::default()).is_break() {
                    return Err(interrupted("check", CheckProgress::default()));
                }
            }
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => unreachable!("the thread sends what it read"),
            },
        }
    }
}

/// Returns whether decoding rejects videos of high dynamic range; false if ffmpeg is missing, because a check needs
/// only ffprobe.
fn can_not_tone_map(programs: &Programs) -> Result<bool, Failure> {
    match programs.can_tone_map() {
        Ok(can) => Ok(!can),
        Err(failure) if failure.code == ErrorCode::ProgramMissing => Ok(false),
        Err(failure) => Err(failure),
    }
}

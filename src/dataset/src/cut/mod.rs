//! Cuts long videos into clips of one scene each, for `vidtui data cut`.

mod journal;
mod plan;
#[cfg(test)]
mod tests;

use crate::Stamp;
use crate::layouts::videos_below;
use camino::{Utf8Path, Utf8PathBuf};
use journal::{CutClip, CutVideo, Journal};
use plan::{Scenes, scenes};
use rundir::{Error, ErrorCode, Failure};
use serde::Serialize;
use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::ops::ControlFlow;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use video::{Cutting, Programs, VideoFile};

pub use plan::CutRules;

/// The interval of progress reports while a clip is written.
const TICK: Duration = Duration::from_millis(100);

/// A request to cut videos.
#[derive(Debug, Clone)]
pub struct CutRequest {
    /// A video, or a folder of videos.
    pub source: Utf8PathBuf,
    /// The folder of the clips, which is created.
    pub out: Utf8PathBuf,
    /// Where the videos are cut.
    pub rules: CutRules,
    /// ffmpeg and ffprobe.
    pub programs: Programs,
}

/// The progress of the work on one video.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutProgress<'a> {
    /// Frames of a video are measured.
    Measuring {
        /// The video.
        name: &'a str,
        /// Measured frames.
        done: usize,
        /// All frames.
        total: usize,
    },
    /// The clips of a video are written.
    Writing {
        /// The video.
        name: &'a str,
        /// Clips that exist.
        done: usize,
        /// All clips.
        total: usize,
    },
}

/// Receives the progress, and may end the work.
pub type OnCut<'a> = &'a mut dyn FnMut(CutProgress<'_>) -> ControlFlow<()>;

/// The result of a cut.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CutReport {
    /// The table of the clips.
    pub table: Utf8PathBuf,
    /// The videos, in the order of their paths.
    pub videos: Vec<CutVideoReport>,
    /// The videos that could not be cut.
    pub failures: Vec<Failure>,
}

/// The result for one video.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CutVideoReport {
    /// The video.
    pub source: Utf8PathBuf,
    /// Its clips.
    pub clips: usize,
    /// The seconds of its clips.
    pub seconds: f64,
    /// Clips that existed already.
    pub kept: usize,
    /// Clips whose packets were copied. The others were encoded.
    pub copied: usize,
    /// Scenes that are shorter than the limit.
    pub too_short: usize,
}

/// Cuts videos into clips. Clips that an earlier call wrote are kept, and no file is replaced.
///
/// # Errors
/// The videos cannot be listed; the rules cannot be met; the folder holds other files, or clips that were cut by other rules or from
/// videos that have changed since; the disk is full; or `on_progress` breaks (`Cancelled`). A video that cannot be read is in the report.
pub fn cut(request: &CutRequest, on_progress: OnCut<'_>) -> Result<CutReport, Failure> {
    let CutRequest { source, out, rules, programs } = request;
    check(rules)?;
    let (root, videos) = videos_below(source)?;
    programs.check()?;
    fs::create_dir_all(out).map_err(|error| Error::io("create", out, error))?;
    let out = out.canonicalize_utf8().map_err(|error| Error::io("open", out, error))?;
    if out.starts_with(&root) && source.is_dir() {
        let fix = "choose a folder beside the videos, because clips in their folder would be cut too";
        return Err(Failure::new(
            ErrorCode::InvalidArgument,
            format!("cannot write clips to {out}"),
            format!("it is below {root}"),
            fix,
        ));
    }
    let _lock = lock(&out)?;
    let mut journal = Journal::open(&out)?;
    for video in &videos {
        refuse_other_rules(&journal, video, rules)?;
    }
    let mut report = CutReport { table: out.join(journal::TABLE), videos: Vec::new(), failures: Vec::new() };
    for video in &videos {
        let mut work = Work { out: &out, root: &root, request, journal: &mut journal, on_progress: &mut *on_progress };
        match work.video(video) {
            Ok(done) => report.videos.push(done),
            Err(failure) if is_of_video(&failure) => report.failures.push(failure),
            Err(failure) => {
                // The clips that exist are listed, whatever ended the work.
                let _ = journal.write_table();
                return Err(failure);
            }
        }
    }
    report.table = journal.write_table()?;
    Ok(report)
}

/// Returns whether a failure concerns one video, so that the others can be cut.
fn is_of_video(failure: &Failure) -> bool {
    matches!(
        failure.code,
        ErrorCode::Malformed
            | ErrorCode::InvalidDataset
            | ErrorCode::NotFound
            | ErrorCode::CommandFailed
            | ErrorCode::NoAnswer
    )
}

fn check(rules: &CutRules) -> Result<(), Failure> {
    let refuse = |what: String, why: &str, fix: &str| Err(Failure::new(ErrorCode::InvalidArgument, what, why, fix));
    let CutRules { threshold, min_s, max_s, margin_s } = *rules;
    let seconds = |seconds: f64| seconds.is_finite() && (0.0..=86400.0).contains(&seconds);
    if !(threshold > 0.0 && threshold <= 100.0) {
        return refuse(
            format!("cannot use --threshold {threshold}"),
            "a score is from 0 to 100",
            "for example: --threshold 8",
        );
    }
    if !seconds(min_s) || !seconds(margin_s) || max_s.is_some_and(|max_s| !seconds(max_s) || max_s == 0.0) {
        return refuse(
            "cannot use these lengths".into(),
            "--min, --max and --margin are seconds, at most a day",
            "for example: --min 2 --max 20 --margin 0.2",
        );
    }
    match max_s.filter(|max_s| *max_s < min_s) {
        Some(max_s) => refuse(
            format!("cannot use --min {min_s} --max {max_s}"),
            "no clip is longer than --min and shorter than --max",
            "make --max larger",
        ),
        None => Ok(()),
    }
}

/// Locks the folder until the file is dropped.
fn lock(folder: &Utf8Path) -> Result<File, Failure> {
    let file = File::open(folder).map_err(|error| Error::io("open", folder, error))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let holder = rundir::lock_holder(folder).map_or("another process".to_owned(), |holder| holder.in_words());
            let fix = "wait until it ends, or give another folder with --out";
            Err(Failure::new(
                ErrorCode::AlreadyExists,
                format!("cannot write clips to {folder}"),
                format!("{holder} has locked it"),
                fix,
            ))
        }
        // Some network file systems cannot lock folders.
        _ => Ok(file),
    }
}

/// Refuses a video that an earlier call cut by other rules, or that has changed since.
fn refuse_other_rules(journal: &Journal, video: &Utf8Path, rules: &CutRules) -> Result<(), Failure> {
    let Some(earlier) = journal.videos.get(video) else { return Ok(()) };
    let why = match Stamp::of(video) {
        Ok(stamp) if stamp == earlier.stamp && earlier.rules == *rules => return Ok(()),
        Ok(stamp) if stamp == earlier.stamp => {
            "its clips there were cut with another --threshold, --min, --max or --margin"
        }
        _ => "it has changed since its clips there were cut",
    };
    Err(Failure::new(
        ErrorCode::AlreadyExists,
        format!("cannot cut {video} into this folder"),
        why,
        "choose another folder with --out, or move the clips away with the file .cuts.jsonl in their folder",
    ))
}

/// The work on the videos.
struct Work<'a, 'b> {
    out: &'a Utf8Path,
    root: &'a Utf8Path,
    request: &'a CutRequest,
    journal: &'a mut Journal,
    on_progress: OnCut<'b>,
}

impl Work<'_, '_> {
    fn video(&mut self, path: &Utf8Path) -> Result<CutVideoReport, Failure> {
        let name = path.strip_prefix(self.root).unwrap_or(path).to_string();
        let is_done = |video: &CutVideo| video.clips.iter().all(|clip| self.out.join(&clip.path).exists());
        if let Some(video) = self.journal.videos.get(path).filter(|video| is_done(video)) {
            return Ok(reported(video, video.clips.len(), 0));
        }
        let source = self.request.programs.open(path)?;
        let video = match self.journal.videos.get(path) {
            Some(video) => video.clone(),
            None => self.plan(path, &name, &source)?,
        };
        let (mut kept, mut copied) = (0, 0);
        for (number, clip) in video.clips.iter().enumerate() {
            let to = self.out.join(&clip.path);
            if to.exists() {
                kept += 1;
                continue;
            }
            let progress = CutProgress::Writing { name: &name, done: number, total: video.clips.len() };
            copied += usize::from(self.write(&source, clip, &to, progress)? == Cutting::Copied);
        }
        Ok(reported(&video, kept, copied))
    }

    /// Finds the scenes of a video, and records them.
    fn plan(&mut self, path: &Utf8Path, name: &str, source: &VideoFile) -> Result<CutVideo, Failure> {
        let stamp = Stamp::of(path).map_err(|reason| unreadable(path, &reason))?;
        let times = source.times();
        let (on_progress, total) = (&mut self.on_progress, times.len());
        let changes = self
            .request
            .programs
            .changes(source, &mut |done| on_progress(CutProgress::Measuring { name, done, total }))?;
        let Scenes { clips, too_short } = scenes(&changes, &times, &self.request.rules);
        let stem = self.stem(name);
        let clip = |(number, scene): (usize, plan::Scene)| CutClip {
            path: format!("{stem}-{:04}.mp4", number + 1).into(),
            first_frame: scene.frames.start,
            num_frames: scene.frames.len(),
            start_s: scene.start_s,
            end_s: scene.end_s,
            score: scene.score,
        };
        let clips: Vec<CutClip> = clips.into_iter().enumerate().map(clip).collect();
        if let Some(taken) =
            clips.iter().map(|clip| self.out.join(&clip.path)).find(|path| path.symlink_metadata().is_ok())
        {
            let why = "the file exists, and it is not a clip of this video";
            return Err(Failure::new(
                ErrorCode::AlreadyExists,
                format!("cannot write {taken}"),
                why,
                "choose another folder with --out, or move the file away",
            ));
        }
        stamp.check_same(path)?;
        let video = CutVideo { source: path.to_owned(), stamp, rules: self.request.rules, clips, too_short };
        self.journal.add(video.clone())?;
        Ok(video)
    }

    /// Returns the beginning of the names of a video's clips: the name without its ending, unless another video has it.
    fn stem(&self, name: &str) -> String {
        let short = Utf8Path::new(name).with_extension("");
        let first = format!("{short}-0001.mp4");
        let taken: HashSet<&str> =
            self.journal.videos.values().flat_map(|video| &video.clips).map(|clip| clip.path.as_str()).collect();
        if taken.contains(first.as_str()) { name.to_owned() } else { short.into_string() }
    }

    /// Writes a clip in another thread, so that the work can be interrupted.
    fn write(
        &mut self,
        source: &VideoFile,
        clip: &CutClip,
        to: &Utf8Path,
        progress: CutProgress<'_>,
    ) -> Result<Cutting, Failure> {
        let folder = to.parent().unwrap_or(self.out);
        fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
        let programs = &self.request.programs;
        let frames = clip.first_frame..clip.first_frame + clip.num_frames;
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            scope.spawn(move || {
                // The receiver lives until this scope ends.
                let _ = sender.send(programs.cut(source, frames, to));
            });
            loop {
                if (self.on_progress)(progress).is_break() {
                    programs.cancel.cancel();
                }
                match receiver.recv_timeout(TICK) {
                    Ok(done) => return done,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => unreachable!("the thread sends its result"),
                }
            }
        })
    }
}

fn reported(video: &CutVideo, kept: usize, copied: usize) -> CutVideoReport {
    CutVideoReport {
        source: video.source.clone(),
        clips: video.clips.len(),
        seconds: video.clips.iter().map(|clip| clip.end_s - clip.start_s).sum(),
        kept,
        copied,
        too_short: video.too_short,
    }
}

fn unreadable(path: &Utf8Path, reason: &crate::ExclusionReason) -> Failure {
    let why = format!("{}: {reason}", reason.title());
    Failure::new(ErrorCode::InvalidDataset, format!("cannot cut {path}"), why, "copy the video again, or remove it")
}

//! `vidtui data check`: reports which videos of a folder or table can be used.

use crate::args::{DataCheckArgs, ListedArgs};
use crate::command_error::CommandError;
use crate::commands::transfer::{Measure, Step, Transfer};
use crate::output::{self, note};
use crate::workspace::Workspace;
use camino::Utf8Path;
use dataset::check::{CAPTION_CHARACTERS, CheckRequest, Checked, check};
use dataset::{Assigner, ClipManifest, SourceRequest};
use recipe::{Bucket, Encode, Recipe};
use rundir::{ErrorCode, Failure};
use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use video::{FrameChoice, FrameMode};

/// The smallest width of a report in columns, and the width if that of the terminal is unknown.
const WIDTH: usize = 80;

/// Checks a data set, prints the report and writes the manifest.
pub fn run(workspace: &Workspace, args: &DataCheckArgs) -> Result<(), CommandError> {
    let subject = args.recipe.as_deref().map(|recipe| workspace.subject(recipe, &[])).transpose()?;
    let trained = subject.as_ref().map(|subject| &subject.resolved().recipe);
    let fps = rate(args.fps, Some(args.mode), Some(args.stride).filter(|stride| *stride > 1), trained);
    let choice = frame_choice(fps, args.mode, args.stride)?;
    let buckets = trained.and_then(|trained| Assigner::new(trained, choice.clone()));
    let sizes = trained.filter(|_| buckets.is_none()).map(sizes_of);
    if let Some(out) = &args.out {
        check_writable(out)?;
    }
    let wanted = Wanted {
        frames: with_frames(choice, args.frames.or(sizes.map(|[frames, ..]| frames)), buckets.is_some())?,
        size: args.height.zip(args.width).or(sizes.map(|[_, height, width]| (height, width))).map(<[usize; 2]>::from),
        buckets,
        tokens: args.max_tokens,
        tokenizer: args.tokenizer.as_deref(),
        keep_all: false,
    };
    let mut transfer = Transfer::begin();
    let checked = check_source(&args.source, &args.listed, &wanted, &mut |step| transfer.step(step));
    transfer.end();
    let Checked { manifest, report, .. } = checked?;
    // Write the manifest of a rejected data set too, because it lists the reasons.
    if let Some(out) = &args.out {
        manifest.write(out)?;
    }
    let accepted = manifest.refuse_if_dropped(args.max_dropped);
    if args.output.json {
        output::json(&serde_json::json!({
            "report": report,
            "manifest": args.out,
            "max_dropped": args.max_dropped,
            "accepted": accepted.is_ok(),
        }))?;
    } else {
        let width = crossterm::terminal::size().map_or(WIDTH, |(columns, _)| usize::from(columns).max(WIDTH));
        output::text(&report.text(io::stdout().is_terminal().then_some(width)))?;
        match &args.out {
            Some(out) => output::line(&format!("manifest  {out}"))?,
            None if accepted.is_ok() => note!("--out manifest.jsonl writes the manifest, for vidtui data encode"),
            None => {}
        }
    }
    Ok(accepted?)
}

/// The requirements on a clip.
pub struct Wanted<'a> {
    /// The frames that are taken. `None`: any clip with two frames is long enough.
    pub frames: Option<FrameChoice>,
    /// The size that pictures are scaled to: height, width; `None` if any size is accepted.
    pub size: Option<[usize; 2]>,
    /// The buckets; clips that fit no bucket are dropped.
    pub buckets: Option<Assigner>,
    /// The number of tokens above which a caption is counted as too long.
    pub tokens: usize,
    /// The folder of the tokenizer, if tokens are counted.
    pub tokenizer: Option<&'a Utf8Path>,
    /// Whether the values of all columns of a table are kept.
    pub keep_all: bool,
}

/// Returns how a folder or a table is read.
pub fn source_request(source: &Utf8Path, listed: &ListedArgs) -> SourceRequest {
    SourceRequest {
        source: source.to_owned(),
        layout: listed.layout.map(Into::into),
        video_column: listed.video_column.clone(),
        caption_columns: listed.caption_columns.clone(),
        root: listed.root.clone(),
        filter: listed.filter.clone(),
        template: listed.template.clone(),
        ..SourceRequest::default()
    }
}

/// A function that receives the progress of a check, and may end the check.
pub type OnStep<'a> = &'a mut dyn FnMut(Step<'_>) -> ControlFlow<()>;

/// Checks the videos of a folder or a table.
pub fn check_source(
    source: &Utf8Path,
    listed: &ListedArgs,
    wanted: &Wanted<'_>,
    progress: OnStep<'_>,
) -> Result<Checked, CommandError> {
    let source = SourceRequest { keep_all: wanted.keep_all, ..source_request(source, listed) };
    let tokenizer = wanted.tokenizer.map(tokenizer::Tokenizer::open).transpose()?;
    let count = tokenizer.map(|tokenizer| move |text: &str| tokenizer.count(text));
    let request = CheckRequest {
        count_tokens: count.as_ref().map(|count| count as &(dyn Fn(&str) -> usize + Sync)),
        frames: wanted.frames.clone(),
        size: wanted.size,
        buckets: wanted.buckets.clone(),
        most_characters: listed.max_characters.unwrap_or(CAPTION_CHARACTERS),
        most_tokens: wanted.tokens,
        ..CheckRequest::new(source)
    };
    Ok(check(&request, &mut |at| {
        let (done, total) = (at.done as u64, at.total as u64);
        // The number of videos is not known yet.
        let phase = if total == 0 { "listing" } else { "checking" };
        progress(Step { phase, done, total, measure: Measure::Items("video") })
    })?)
}

/// Returns the frames, height and width in pixels of the clips that a model trains on.
pub fn sizes_of(recipe: &Recipe) -> [usize; 3] {
    let Bucket { frames, height, width } = recipe.clip_of(recipe.model.shape());
    [frames, height, width]
}

/// Returns the rate at which frames are taken: the given one, or else that of the recipe that will train, in the modes that have a rate.
pub fn rate(
    given: Option<f64>,
    mode: Option<FrameMode>,
    stride: Option<usize>,
    trained: Option<&Recipe>,
) -> Option<f64> {
    let has_rate = !matches!(mode, Some(FrameMode::Linspace | FrameMode::Stride)) && stride.is_none();
    given.or(trained.map(|trained| trained.data.fps).filter(|fps| *fps > 0.0 && has_rate))
}

/// Returns how frames are taken from a clip, without their number.
///
/// # Errors
/// The rate is not positive, or does not fit the mode.
pub fn frame_choice(fps: Option<f64>, mode: FrameMode, stride: usize) -> Result<FrameChoice, CommandError> {
    match fps {
        Some(fps) if !(fps > 0.0 && fps.is_finite()) => {
            Err(unusable(format!("--fps {fps}"), "the rate must be greater than 0", "for example: --fps 8"))
        }
        Some(fps) if matches!(mode, FrameMode::Linspace | FrameMode::Stride) => Err(unusable(
            format!("--fps {fps}"),
            &format!("the mode {} takes frames by their number", mode.name()),
            "leave out --fps, or use --mode time@fps",
        )),
        None if mode == FrameMode::TimeFps => Err(unusable(
            "--mode time@fps".into(),
            "this mode takes frames at a rate, and no rate is given",
            "add --fps, for example: --fps 8; folders of frames have this rate too",
        )),
        fps => Ok(FrameChoice { fps, mode, stride: stride.max(1), ..FrameChoice::of(&Encode::default()) }),
    }
}

/// Adds the number of frames to a choice. Buckets have their own numbers of frames.
fn with_frames(
    choice: FrameChoice,
    frames: Option<usize>,
    has_buckets: bool,
) -> Result<Option<FrameChoice>, CommandError> {
    frames.map_or(Ok(()), check_frames)?;
    match (frames, choice.fps) {
        (None, Some(fps)) if !has_buckets => Err(unusable(
            format!("--fps {fps}"),
            "without the number of frames, every length is enough",
            "add --frames, for example: --frames 49",
        )),
        (None, _) => Ok(None),
        (Some(frames), _) => Ok(Some(FrameChoice { frames, ..choice })),
    }
}

fn unusable(flag: String, why: &str, fix: &str) -> CommandError {
    CommandError::request(Failure::new(ErrorCode::InvalidArgument, format!("cannot use {flag}"), why, fix))
}

/// Refuses a number of frames that an encode cannot take from a clip, before any clip is read.
pub fn check_frames(frames: usize) -> Result<(), CommandError> {
    let Some([below, above]) = recipe::nearest_clip_frames(frames) else { return Ok(()) };
    let why = if frames == 0 { "a clip has at least one frame" } else { recipe::LATENT_FRAMES };
    let fix = format!("use --frames {below} or {above}");
    let what = format!("cannot use --frames {frames}");
    Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, fix)))
}

/// Checks that the manifest can be written, before the long check of the videos.
fn check_writable(out: &Utf8Path) -> Result<(), CommandError> {
    let folder = out.parent().filter(|folder| !folder.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    let refuse = |code, why: &str, fix: String| {
        Err(CommandError::request(Failure::new(code, format!("cannot write {out}"), why, fix)))
    };
    if out.is_dir() {
        return refuse(
            ErrorCode::InvalidArgument,
            "it is a folder",
            format!("name a file: --out {out}/manifest.jsonl"),
        );
    }
    if !folder.is_dir() {
        return refuse(ErrorCode::NotFound, "its folder does not exist", format!("mkdir -p {folder}"));
    }
    ClipManifest::refuse_to_replace(out).map_err(CommandError::request)
}

//! `vidtui data check`: reports which videos of a folder or table can be used.

use crate::args::DataCheckArgs;
use crate::command_error::CommandError;
use crate::commands::transfer::{Measure, Step, Transfer};
use crate::output;
use camino::Utf8Path;
use dataset::SourceRequest;
use dataset::check::{CheckRequest, Checked, check};
use rundir::{ErrorCode, Failure};
use std::io::{self, IsTerminal};
use video::FrameChoice;

/// The width of a report that is not written to a terminal of known width.
const WIDTH: usize = 80;

/// Checks a data set, prints the report and writes the manifest.
pub fn run(args: &DataCheckArgs) -> Result<(), CommandError> {
    let DataCheckArgs { source, layout, video_column, caption_column, root, .. } = args;
    let source = SourceRequest {
        source: source.clone(),
        layout: layout.map(Into::into),
        video_column: video_column.clone(),
        caption_column: caption_column.clone(),
        root: root.clone(),
    };
    let tokenizer = args.tokenizer.as_deref().map(tokenizer::Tokenizer::open).transpose()?;
    let count = tokenizer.map(|tokenizer| move |text: &str| tokenizer.count(text));
    let request = CheckRequest {
        count_tokens: count.as_ref().map(|count| count as &(dyn Fn(&str) -> usize + Sync)),
        frames: frames(args)?,
        size: args.height.zip(args.width).map(|(height, width)| [height, width]),
        most_characters: args.max_characters,
        most_tokens: args.max_tokens,
        ..CheckRequest::new(source)
    };
    if let Some(out) = &args.out {
        check_writable(out)?;
    }
    let mut transfer = Transfer::begin();
    let checked = check(&request, &mut |progress| {
        let (done, total) = (progress.done as u64, progress.total as u64);
        transfer.step(Step { phase: "checking", done, total, measure: Measure::Items("video") })
    });
    transfer.end();
    let Checked { manifest, report } = checked?;
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
            None if accepted.is_ok() => eprintln!("--out manifest.jsonl writes the manifest, for vidtui data encode"),
            None => {}
        }
    }
    Ok(accepted?)
}

fn frames(args: &DataCheckArgs) -> Result<Option<FrameChoice>, CommandError> {
    let DataCheckArgs { frames, fps, mode, stride, .. } = args;
    let invalid = |flag: String, why: &str, fix: &str| {
        CommandError::request(Failure::new(ErrorCode::InvalidArgument, format!("cannot use {flag}"), why, fix))
    };
    match (frames, fps) {
        (Some(0), _) => Err(invalid("--frames 0".into(), "a clip has at least one frame", "for example: --frames 49")),
        (_, Some(fps)) if !(*fps > 0.0 && fps.is_finite()) => {
            Err(invalid(format!("--fps {fps}"), "the rate must be greater than 0", "for example: --fps 8"))
        }
        (None, Some(fps)) => Err(invalid(
            format!("--fps {fps}"),
            "without the number of frames, every length is enough",
            "add --frames, for example: --frames 49",
        )),
        (None, None) => Ok(None),
        (Some(_), None) if *mode == video::FrameMode::TimeFps => Err(invalid(
            "--mode time@fps".into(),
            "this mode takes frames at a rate, and no rate is given",
            "add --fps, for example: --fps 8",
        )),
        (Some(frames), fps) => {
            Ok(Some(FrameChoice { mode: *mode, frames: *frames, fps: *fps, stride: (*stride).max(1), seed: 0 }))
        }
    }
}

/// Checks before the work that its result can be written.
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
    Ok(())
}

//! `vidtui data cut`: cuts long videos into clips of one scene each.

use crate::args::DataCutArgs;
use crate::command_error::CommandError;
use crate::commands::transfer::{Measure, Step, Transfer};
use crate::output::{self, Side, note, table};
use dataset::cut::{CutProgress, CutReport, CutRequest, CutRules, CutVideoReport, cut};
use rundir::{ErrorCode, Failure};
use video::Programs;

/// Cuts the videos, and prints a table of them.
pub fn run(args: &DataCutArgs) -> Result<(), CommandError> {
    let DataCutArgs { videos, out, threshold, min_s, max_s, margin_s, output } = args;
    let rules = CutRules { threshold: *threshold, min_s: *min_s, max_s: *max_s, margin_s: *margin_s };
    let request = CutRequest { source: videos.clone(), out: out.clone(), rules, programs: Programs::default() };
    let mut transfer = Transfer::begin();
    let done = cut(&request, &mut |progress| {
        let (phase, done, total, noun) = match progress {
            CutProgress::Measuring { name, done, total } => (format!("{name}: finding cuts"), done, total, "frame"),
            CutProgress::Writing { name, done, total } => (format!("{name}: writing"), done, total, "clip"),
        };
        transfer.step(Step { phase: &phase, done: done as u64, total: total as u64, measure: Measure::Items(noun) })
    });
    transfer.end();
    let report = done.map_err(|failure| match failure.code {
        ErrorCode::InvalidArgument => CommandError::request(failure),
        _ => failure.into(),
    })?;
    if output.json {
        output::json(&report)?;
    } else {
        output::text(&shown(&report))?;
        for Failure { what, why, fix, .. } in &report.failures {
            note!("left out: {what}: {why}; {fix}");
        }
        let clips = report.videos.iter().map(|video| video.clips).sum();
        note!(
            "{} in {out}; add a caption to each: {}, then vidtui data check {out}",
            units::counted(clips, "clip"),
            out.join("NAME.txt")
        );
        output::line(report.table.as_str())?;
    }
    let CutReport { videos: done, failures, .. } = &report;
    match failures.first() {
        Some(first) if done.is_empty() => Err(first.clone().into()),
        Some(first) => {
            let what = format!(
                "{} of {} could not be cut",
                failures.len(),
                units::counted(failures.len() + done.len(), "video")
            );
            let why = format!("the first one: {}: {}", first.what, first.why);
            Err(Failure::new(first.code, what, why, first.fix.clone()).into())
        }
        None => Ok(()),
    }
}

fn shown(report: &CutReport) -> String {
    let row = |video: &CutVideoReport| {
        let counts = [video.clips, video.kept, video.copied, video.too_short].map(|count| units::grouped(count as u64));
        let name = video.source.file_name().unwrap_or(video.source.as_str()).to_owned();
        [name, units::duration(video.seconds)].into_iter().chain(counts).collect::<Vec<String>>()
    };
    let columns = [
        ("video", Side::Left),
        ("length of clips", Side::Right),
        ("clips", Side::Right),
        ("kept", Side::Right),
        ("copied", Side::Right),
        ("too short", Side::Right),
    ];
    table(&columns, &report.videos.iter().map(row).collect::<Vec<_>>())
}

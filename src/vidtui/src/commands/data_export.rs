//! `vidtui data export`: writes the tables and folders that other trainers read.

use crate::args::DataExportArgs;
use crate::command_error::CommandError;
use crate::commands::data_check::{Wanted, check_source};
use crate::commands::transfer::{Measure, Step, Transfer};
use crate::output::{self, note};
use dataset::check::{CAPTION_TOKENS, Checked};
use dataset::export::{ExportFormat, ExportRequest, KeptColumns, export};
use dataset::{Clip, ClipManifest};
use rundir::{ErrorCode, Failure};
use std::ops::ControlFlow;
use video::Programs;

/// Checks the clips, and writes the files of the trainer.
pub fn run(args: &DataExportArgs) -> Result<(), CommandError> {
    if args.format == ExportFormat::TttVideoDit && (args.frames.is_some() || args.height.is_some()) {
        let option = if args.frames.is_some() { "--frames" } else { "--height" };
        let why = "the videos of ttt-video-dit have 480 × 720 pixels, 16 frames per second and 3 s per caption";
        let what = format!("cannot use {option}");
        return Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, "leave it out")));
    }
    let mut transfer = Transfer::begin();
    let done = check_and_export(args, &mut |step| transfer.step(step));
    transfer.end();
    let exported = done?;
    if args.output.json {
        return output::json(&exported);
    }
    if exported.left_out > 0 {
        let count = units::counted(exported.left_out, "picture or folder of frames");
        note!("left out: {count}, which this trainer does not read");
    }
    note!("{}; {}", units::counted(exported.clips, "clip"), exported.next);
    exported.files.iter().try_for_each(|file| output::line(file.as_str()))
}

fn check_and_export(
    args: &DataExportArgs,
    progress: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
) -> Result<dataset::export::Exported, CommandError> {
    let (mut manifest, kept) = match ClipManifest::is_one(&args.source) {
        true => {
            args.listed.refuse_with_manifest(&args.source)?;
            (ClipManifest::read(&args.source)?, KeptColumns::default())
        }
        false => {
            let size = args.height.zip(args.width).map(<[usize; 2]>::from);
            let wanted =
                Wanted { frames: None, size, buckets: None, tokens: CAPTION_TOKENS, tokenizer: None, keep_all: true };
            let Checked { manifest, kept, .. } = check_source(&args.source, &args.listed, &wanted, progress)?;
            (manifest, kept)
        }
    };
    let segments = manifest.usable().map(|clip: &Clip| clip.captions().count()).max().unwrap_or(1);
    if let Some(choice) = args.format.choice(args.frames, segments) {
        manifest.exclude_short(&choice);
        // A picture has one frame in every trainer. The export leaves out those that the trainer does not read.
        let is_picture = |clip: &&mut Clip| clip.fps <= 0.0 && !clip.frame_folder;
        for clip in manifest.clips.iter_mut().filter(is_picture) {
            clip.excluded.take_if(|reason| matches!(reason, dataset::ExclusionReason::TooShort { .. }));
        }
    }
    manifest.refuse_if_dropped(args.max_dropped).map_err(|failure| match args.format {
        // The number of frames follows from the captions of a clip.
        ExportFormat::TttVideoDit => Failure {
            fix: format!("use clips of 3 s per caption, or accept the loss with --max-dropped: {}", failure.why),
            ..failure
        },
        _ => failure,
    })?;
    let request = ExportRequest {
        format: args.format,
        out: args.out.clone(),
        frames: args.frames,
        size: args.height.zip(args.width).map(<[usize; 2]>::from),
        force: args.force,
        programs: Programs::default(),
    };
    Ok(export(&request, &manifest, &kept, &mut |at| {
        let (done, total) = (at.done as u64, at.total as u64);
        progress(Step { phase: "converting", done, total, measure: Measure::Items("video") })
    })?)
}

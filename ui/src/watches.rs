//! Selects the data streams that the console needs for the current screen.

use crate::effect::Watch;
use crate::fleet::{FleetSource, NodeView};
use crate::gpu_value::GpuValue;
use crate::model::{Model, Screen};
use crate::msg::Size;
use crate::screens::{run, runs, samples};
use ratatui_core::layout::Rect;
use rundir::SampleSidecar;
use std::collections::BTreeSet;

/// How often the recorded samples of a node are read at most, in seconds.
const RECORDS_EVERY_S: f64 = 120.0;

/// Returns the streams that should run now. The shell (the program around this crate, which does all IO) starts and
/// stops streams until exactly these run. The streams depend only on the model, so that screens need not start or
/// stop them.
pub fn watches(model: &Model) -> BTreeSet<Watch> {
    let mut wanted = BTreeSet::from([Watch::Runs, Watch::Curricula, Watch::Alerts]);
    if matches!(model.screen, Screen::Nodes | Screen::Node | Screen::Processes) {
        wanted.insert(Watch::Nodes(model.fleet.of.clone()));
    }
    // The recorded samples lack the memory size of the GPUs, so that they are read once the node has sent a sample.
    // They are read at most every few minutes, because the node on top changes often if nodes are sorted by a reading.
    let is_due = |view: &&NodeView| view.records_s.is_none_or(|read_s| model.now - read_s > RECORDS_EVERY_S);
    if let FleetSource::Run(run) = &model.fleet.of
        && let Some(view) = node_with_history(model).filter(|view| view.frame.is_some()).filter(is_due)
    {
        wanted.insert(Watch::Recorded { run: run.clone(), node: view.node.id.clone() });
    }
    // The heat map of step times shows the newest step of the open run.
    if let (Screen::Nodes, Some(GpuValue::StepTime), Some(open)) = (model.screen, model.nodes.heat, &model.run) {
        wanted.insert(Watch::Run(open.id.clone()));
    }
    if model.screen == Screen::Recipes {
        wanted.insert(Watch::Recipes);
    }
    if let (Screen::Launch, Some(form)) = (model.screen, &model.form) {
        wanted.insert(Watch::Draft(Box::new(form.draft.clone())));
        let path = form.draft.target.hostfile();
        wanted.extend(path.map(|path| Watch::Nodes(FleetSource::Hostfile(path.to_owned()))));
    }
    if runs::has_preview(model) {
        wanted.extend(model.previewed().map(|open| Watch::Run(open.id.clone())));
    }
    if let (Screen::Compare, Some(open)) = (model.screen, &model.compare) {
        wanted.extend(open.runs.iter().map(|run| Watch::Compared(run.id.clone())));
    }
    if let (Screen::Node, Some(open)) = (model.screen, model.node.as_ref().filter(|open| open.raw)) {
        wanted.insert(Watch::Smi { of: model.fleet.of.clone(), node: open.id.clone() });
    }
    if let (Screen::Processes, Some(open)) = (model.screen, &model.processes) {
        wanted.insert(Watch::Processes { of: model.fleet.of.clone(), nodes: open.nodes.clone() });
    }
    if matches!(model.screen, Screen::Run | Screen::Logs | Screen::Samples)
        && let Some(open) = &model.run
    {
        wanted.insert(Watch::Run(open.id.clone()));
        if matches!(model.screen, Screen::Run | Screen::Samples) {
            let clips = visible_clips(model).into_iter();
            wanted.extend(clips.map(|(step, prompt, size)| Watch::Clip { run: open.id.clone(), step, prompt, size }));
            wanted.extend(frame_ms(model).map(|every_ms| Watch::Frames { run: open.id.clone(), every_ms }));
        }
        if let (Screen::Logs, Some(logs)) = (model.screen, &model.logs) {
            match (logs.rank, logs.place(open)) {
                (None, _) => {
                    wanted.insert(Watch::Logs { run: open.id.clone(), attempt: logs.pinned });
                }
                (Some(_), Some(place)) => {
                    wanted.insert(Watch::Log { run: open.id.clone(), node: place.node.clone(), rank: place.rank });
                }
                (Some(_), None) => {}
            }
        }
    }
    wanted
}

/// Returns the node whose history is visible now.
fn node_with_history(model: &Model) -> Option<&NodeView> {
    match model.screen {
        Screen::Nodes => model.selected_node(),
        Screen::Node => model.fleet.node(&model.node.as_ref()?.id),
        _ => None,
    }
}

/// Returns the clips that are visible now: step, prompt, and the size of the area.
fn visible_clips(model: &Model) -> Vec<(u64, usize, Size)> {
    let Some(run) = model.run.as_ref().filter(|_| model.symbols.braille) else { return Vec::new() };
    let placed: Vec<(&SampleSidecar, Rect)> = match model.screen {
        Screen::Samples => samples::placed(model, run).into_iter().map(|(sample, _, area)| (sample, area)).collect(),
        Screen::Run => {
            let sample = run.samples.selected();
            sample.and_then(|sample| Some((sample, run::video_area(model, run)?))).into_iter().collect()
        }
        _ => Vec::new(),
    };
    let wanted = placed.into_iter().map(|(sample, area)| (sample.step, sample.index, samples::size_of(area)));
    wanted.filter(|(_, _, size)| size.width >= 4 && size.height >= 2).collect()
}

/// Returns the time between two frames in milliseconds; `None` while no visible video is playing.
fn frame_ms(model: &Model) -> Option<u32> {
    let run = model.run.as_ref().filter(|run| !run.samples.paused)?;
    let clips =
        visible_clips(model).into_iter().rev().filter_map(|(step, index, size)| run.samples.clip((step, index), size));
    let moving = clips.flatten().find(|clip| clip.frames.len() > 1 && clip.fps > 0.0)?;
    Some((1000.0 / moving.fps).clamp(20.0, 2000.0) as u32)
}

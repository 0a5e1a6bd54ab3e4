//! The log and checkpoint formats of Open-Sora 1.2 and 2, and of Lambda's fork.

use crate::bar::{Bar, number};
use crate::contents::{Contents, Defect};
use crate::formats::{Formats, Line, Order, Phrase, Step};
use camino::Utf8Path;
use std::time::Duration;

pub(crate) const OPEN_SORA: Formats = Formats {
    phrases: &[
        ("Beginning epoch", Phrase::Started),
        ("Loaded checkpoint", Phrase::Resumed),
        ("Saved checkpoint at epoch", Phrase::Saved),
    ],
    numbers,
    counts_micro_batches: true,
    order,
    leaves_empty_folders: true,
    check,
};

/// A checkpoint that a background thread writes counts as complete once its files have not changed for this long.
const QUIET: Duration = Duration::from_secs(10);

/// Reads `Epoch 0: … loss=0.91, global_grad_norm=0.4, step=11, global_step=11, lr=5e-5`. Version 1.2 prints no gradient norm and
/// no learning rate. `global_step` is counted from 0. The count of the progress bar is ahead of `global_step`, because
/// data are prefetched.
fn numbers(line: &str) -> Option<Line> {
    let bar = Bar::read(line)?;
    Some(Line::Step(Step {
        done: bar.count("global_step")?.checked_add(1)?,
        loss: number(bar.field("loss")?)?,
        grad_norm: bar.field("global_grad_norm").and_then(number),
        lr: bar.field("lr").and_then(number),
        step_s: bar.step_s,
        data_s: None,
    }))
}

/// Reads `epoch0-global_step40`.
fn order(dir: &Utf8Path) -> Option<Order> {
    let (epoch, step) = dir.file_name()?.strip_prefix("epoch")?.split_once("-global_step")?;
    Some(Order { epoch: epoch.parse().ok()?, step: step.parse().ok()? })
}

fn check(contents: &Contents, _step: u64) -> Result<(), Defect> {
    contents.need("running_states.json")?;
    let states = contents.bytes("running_states.json")?;
    serde_json::from_slice::<serde_json::Value>(&states)
        .map_err(|error| format!("running_states.json is damaged: {error}"))?;
    contents.need_one("weights", &["model", "lora"])?;
    contents.need_one("optimizer", &["optimizer"])?;
    // The trainer writes this file last, except for files that a background thread writes.
    contents.need("sampler")?;
    let in_background = contents.has("async_file_io.log") || contents.has("master.safetensors");
    if in_background { contents.need_unchanged(QUIET) } else { Ok(()) }
}

//! The log and checkpoint formats of ttt-video-dit.

use crate::bar::number;
use crate::contents::{Contents, Defect};
use crate::formats::{Formats, Line, Order, Phrase, Step};
use camino::Utf8Path;

pub(crate) const TTT_VIDEO_DIT: Formats = Formats {
    phrases: &[
        ("Resuming experiment at step", Phrase::Resumed),
        ("Checkpointing at step", Phrase::Saving),
        ("Finished checkpointing", Phrase::Saved),
    ],
    numbers,
    counts_micro_batches: false,
    order,
    leaves_empty_folders: false,
    check,
};

/// Reads `exp: Steps 12/5000 | <s/iter: 3.41s | est: 4:43:20> | Metrics: loss: 0.11230000, …`.
fn numbers(line: &str) -> Option<Line> {
    let (before, metrics) = line.split_once(" | Metrics: ")?;
    let (steps, speed) = before.split_once(" | ").unwrap_or((before, ""));
    let (_, steps) = steps.rsplit_once("Steps ")?;
    let (done, _) = steps.split_once('/')?;
    let metric = |names: &[&str]| {
        let mut fields = metrics.split(", ").filter_map(|field| field.rsplit_once(": "));
        fields.find(|(key, _)| names.contains(&key.trim())).and_then(|(_, value)| number(value))
    };
    Some(Line::Step(Step {
        done: done.trim().parse().ok()?,
        loss: metric(&["loss", "train/loss"])?,
        grad_norm: metric(&["grad_norm", "gradient_norm", "grad norm"]),
        lr: metric(&["lr", "learning_rate"]),
        step_s: speed.strip_prefix("<s/iter: ").and_then(|speed| number(speed.split('s').next()?)),
        data_s: metric(&["dataloader time", "dataloader_time", "data_time"]),
    }))
}

/// Reads `checkpoint/step-40`.
fn order(dir: &Utf8Path) -> Option<Order> {
    if dir.parent()?.file_name()? != "checkpoint" {
        return None;
    }
    Order::step(dir.file_name()?.strip_prefix("step-")?)
}

fn check(contents: &Contents, _step: u64) -> Result<(), Defect> {
    contents.need_distributed()?;
    Ok(contents.need("all_stat_dict.pth")?)
}

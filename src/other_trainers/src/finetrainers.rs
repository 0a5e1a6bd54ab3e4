//! The log and checkpoint formats of finetrainers.

use crate::bar::{Bar, number};
use crate::contents::{Contents, Defect};
use crate::formats::{Formats, Line, Order, Phrase, Step};
use camino::Utf8Path;

pub(crate) const FINETRAINERS: Formats = Formats {
    phrases: &[
        ("Starting training", Phrase::Started),
        ("Resuming from checkpoint", Phrase::Resumed),
        ("Loading checkpoint from", Phrase::Resumed),
        ("Saving checkpoint at step", Phrase::Saving),
        ("Saved checkpoint in", Phrase::Saved),
        ("Memory before validation", Phrase::Evaluating),
        ("Memory after validation", Phrase::Evaluated),
    ],
    numbers,
    counts_micro_batches: false,
    order,
    leaves_empty_folders: false,
    check,
};

fn numbers(line: &str) -> Option<Line> {
    match memory(line) {
        Some(gib) => Some(Line::Memory(gib)),
        None => step(&Bar::read(line)?),
    }
}

/// Reads `"max_memory_allocated": 20.701` in a block of JSON that is printed before and after each phase.
fn memory(line: &str) -> Option<f64> {
    let (_, rest) = line.split_once("\"max_memory_allocated\":")?;
    number(rest.split([',', '}']).next()?).filter(|gib| gib.is_finite())
}

/// Reads `Training steps: … train/global_avg_loss=0.21, train/global_max_loss=0.3, train/grad_norm=0.08`.
fn step(bar: &Bar<'_>) -> Option<Line> {
    let either = |name: &str, short: &str| bar.field(name).or(bar.field(short)).and_then(number);
    Some(Line::Step(Step {
        done: bar.done,
        loss: either("train/global_avg_loss", "global_avg_loss")?,
        grad_norm: either("train/grad_norm", "grad_norm"),
        lr: bar.field("lr").and_then(number),
        step_s: bar.step_s,
        data_s: None,
    }))
}

/// Reads `finetrainers_step_40`.
fn order(dir: &Utf8Path) -> Option<Order> {
    Order::step(dir.file_name()?.strip_prefix("finetrainers_step_")?)
}

fn check(contents: &Contents, step: u64) -> Result<(), Defect> {
    if step == 0 {
        return Err("it has only the model: it was saved before the first step".into());
    }
    contents.need_distributed()
}

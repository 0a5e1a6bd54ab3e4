//! The log and checkpoint formats of cogvideox-factory and VideoX-Fun, which both use Hugging Face's Accelerate.

use crate::bar::{Bar, number};
use crate::contents::{Contents, Defect};
use crate::formats::{Formats, Line, Order, Phrase, Step};
use camino::Utf8Path;

pub(crate) const COGVIDEOX_FACTORY: Formats = Formats {
    phrases: PHRASES,
    numbers: |line| step(line, "loss"),
    counts_micro_batches: false,
    order: |dir| numbered(dir.file_name()?),
    leaves_empty_folders: false,
    check: |contents, _step| check(contents, &[]),
};

pub(crate) const VIDEOX_FUN: Formats = Formats {
    phrases: PHRASES,
    numbers: |line| step(line, "step_loss"),
    counts_micro_batches: false,
    order: |dir| {
        // Without --save_state it saves only weights, in one file.
        let name = dir.file_name()?;
        numbered(name.strip_suffix(".safetensors").unwrap_or(name))
    },
    leaves_empty_folders: false,
    check: |contents, _step| check(contents, &["sampler_pos_start.pkl"]),
};

const PHRASES: &[(&str, Phrase)] = &[
    ("***** Running training *****", Phrase::Started),
    ("Resuming from checkpoint", Phrase::Resumed),
    ("Saved state to", Phrase::Saved),
    ("Running validation", Phrase::Evaluating),
];

/// Reads `Steps: … loss=0.21, lr=1e-5`. Full training of cogvideox-factory prints gradient norms too.
fn step(line: &str, loss: &str) -> Option<Line> {
    let bar = Bar::read(line)?;
    if bar.name != "Steps" {
        return None;
    }
    Some(Line::Step(Step {
        done: bar.done,
        loss: number(bar.field(loss)?)?,
        grad_norm: bar.field("gradient_norm_before_clip").and_then(number),
        lr: bar.field("lr").and_then(number),
        step_s: bar.step_s,
        data_s: None,
    }))
}

/// Reads `checkpoint-40`.
fn numbered(name: &str) -> Option<Order> {
    Order::step(name.strip_prefix("checkpoint-")?)
}

/// Checks a checkpoint that accelerate saved.
pub(crate) fn check(contents: &Contents, more: &[&str]) -> Result<(), Defect> {
    if contents.is_file {
        return Err(
            "it has only weights: add --save_state to the command to save checkpoints that can be resumed".into()
        );
    }
    contents.need_one("optimizer", &["optimizer.bin", "optimizer", "optimizer_0", "pytorch_model"])?;
    let is_weights = |path: &Utf8Path| {
        let name = path.file_name().unwrap_or_default();
        ["safetensors", "bin", "pt", "distcp"].contains(&path.extension().unwrap_or_default())
            && !["optimizer", "scheduler", "scaler"].iter().any(|other| name.starts_with(other))
    };
    if !contents.files.iter().any(|file| is_weights(&file.path)) {
        return Err("it has no weights".into());
    }
    more.iter().try_for_each(|name| contents.need(name))?;
    // The trainer writes this file last.
    Ok(contents.need("random_states_0.pkl")?)
}

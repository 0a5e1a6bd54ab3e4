//! What the lines of each system mean.

use recipe::Adapter;

use crate::bar::{Bar, number};

/// What a line says.
#[derive(Debug, PartialEq)]
pub(crate) enum Line {
    /// How a step went. It may be told again, more exactly, as long as no later one is.
    Step(Step),
    /// Training begins.
    Started,
    /// It goes on from a checkpoint.
    Resumed,
    /// A checkpoint is being written.
    Saving,
    /// A checkpoint was written, or its writing was handed to the background.
    Saved,
    /// An evaluation begins.
    Evaluating,
    /// It is over; where nobody says so, the next step does.
    Evaluated,
    /// The most memory in use so far, GiB.
    Memory(f64),
}

/// How a step went, as far as a trainer says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    /// Steps done, counted as the system counts: Open-Sora before accumulation.
    pub done: u64,
    /// May be NaN.
    pub loss: f64,
    pub grad_norm: Option<f64>,
    pub lr: Option<f64>,
    pub step_s: Option<f64>,
    pub data_s: Option<f64>,
}

/// Tells what a line of a system means, if anything.
pub(crate) fn read(system: Adapter, line: &str) -> Option<Line> {
    let words = match system {
        Adapter::None => return None,
        Adapter::OpenSora => OPEN_SORA,
        Adapter::Finetrainers => FINETRAINERS,
        Adapter::CogvideoxFactory | Adapter::VideoxFun => ACCELERATE,
        Adapter::TttVideoDit => TTT_VIDEO_DIT,
    };
    let said = words.iter().find(|(words, _)| line.contains(words));
    if let Some((_, kind)) = said {
        return Some(match kind {
            Said::Started => Line::Started,
            Said::Resumed => Line::Resumed,
            Said::Saving => Line::Saving,
            Said::Saved => Line::Saved,
            Said::Evaluating => Line::Evaluating,
            Said::Evaluated => Line::Evaluated,
        });
    }
    match system {
        Adapter::None => None,
        Adapter::OpenSora => open_sora(&Bar::read(line)?),
        Adapter::Finetrainers => match memory(line) {
            Some(gib) => Some(Line::Memory(gib)),
            None => finetrainers(&Bar::read(line)?),
        },
        Adapter::CogvideoxFactory => accelerate(&Bar::read(line)?, "loss"),
        Adapter::VideoxFun => accelerate(&Bar::read(line)?, "step_loss"),
        Adapter::TttVideoDit => ttt_video_dit(line),
    }
    .filter(|line| !matches!(line, Line::Step(step) if step.done == 0))
}

/// What a text in a line means.
#[derive(Clone, Copy)]
enum Said {
    Started,
    Resumed,
    Saving,
    Saved,
    Evaluating,
    Evaluated,
}

const OPEN_SORA: &[(&str, Said)] = &[
    ("Beginning epoch", Said::Started),
    ("Loaded checkpoint", Said::Resumed),
    ("Saved checkpoint at epoch", Said::Saved),
];

const FINETRAINERS: &[(&str, Said)] = &[
    ("Starting training", Said::Started),
    ("Resuming from checkpoint", Said::Resumed),
    ("Loading checkpoint from", Said::Resumed),
    ("Saving checkpoint at step", Said::Saving),
    ("Saved checkpoint in", Said::Saved),
    ("Memory before validation", Said::Evaluating),
    ("Memory after validation", Said::Evaluated),
];

const ACCELERATE: &[(&str, Said)] = &[
    ("***** Running training *****", Said::Started),
    ("Resuming from checkpoint", Said::Resumed),
    ("Saved state to", Said::Saved),
    ("Running validation", Said::Evaluating),
];

const TTT_VIDEO_DIT: &[(&str, Said)] = &[
    ("Resuming experiment at step", Said::Resumed),
    ("Checkpointing at step", Said::Saving),
    ("Finished checkpointing", Said::Saved),
];

/// `Epoch 0: … loss=0.91, global_grad_norm=0.4, step=11, global_step=11, lr=5e-5`; version 1.2 says neither norm nor rate.
/// Its steps are counted from 0, and the bar runs ahead of them: data are fetched before they are needed.
fn open_sora(bar: &Bar<'_>) -> Option<Line> {
    Some(Line::Step(Step {
        done: bar.count("global_step")? + 1,
        loss: number(bar.field("loss")?)?,
        grad_norm: bar.field("global_grad_norm").and_then(number),
        lr: bar.field("lr").and_then(number),
        step_s: bar.step_s,
        data_s: None,
    }))
}

/// `Training steps: … train/global_avg_loss=0.21, train/global_max_loss=0.3, train/grad_norm=0.08`
fn finetrainers(bar: &Bar<'_>) -> Option<Line> {
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

/// `"max_memory_allocated": 20.701` in a block of JSON that finetrainers prints before and after phases.
fn memory(line: &str) -> Option<f64> {
    let (_, rest) = line.split_once("\"max_memory_allocated\":")?;
    number(rest.split([',', '}']).next()?).filter(|gib| gib.is_finite())
}

/// `Steps: … loss=0.21, lr=1e-5`, and `step_loss` in VideoX-Fun.
fn accelerate(bar: &Bar<'_>, loss: &str) -> Option<Line> {
    if bar.name != "Steps" {
        return None;
    }
    Some(Line::Step(Step {
        done: bar.done,
        loss: number(bar.field(loss)?)?,
        grad_norm: bar.field("grad_norm").and_then(number),
        lr: bar.field("lr").and_then(number),
        step_s: bar.step_s,
        data_s: None,
    }))
}

/// `exp: Steps 12/5000 | <s/iter: 3.41s | est: 4:43:20> | Metrics: loss: 0.11230000, …`
fn ttt_video_dit(line: &str) -> Option<Line> {
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

//! Rules over what GPUs tell.

use std::collections::BTreeMap;

use cluster::{Absent, GpuSample, NodeId, Reading, XidAction};
use rundir::SAMPLE_EVERY_S;
use runstate::{Load, RunFacts, RunState};

use super::past::{Ecc, GpuPast};
use super::{Evidence, Finding, LOOKS_BACK_S, NodeEvidence, Rule, Subject, Urgency};

/// The newest samples tell what a GPU does now, unless they are older than this. Several, since one may be of a moment
/// between two kernels; and room for more than that many, since nvidia-smi takes its time too.
const NOW_S: f64 = 8.0 * SAMPLE_EVERY_S;
/// Power falls some seconds after the last kernel.
const DECAY_S: f64 = 4.0;
/// A GPU that so many samples of the others do not list is gone.
const MISSED: u32 = 2;
/// What GPUs draw is compared over this time.
const COMPARED_S: f64 = 60.0;
/// Memory that the driver takes for itself.
const DRIVER_MIB: u64 = 1024;
/// How many samples it takes to judge.
const SAMPLES: usize = 3;
/// A GPU that draws less than this share of what the others draw does less, or is held back.
const BELOW_PEERS: f64 = 0.6;
/// How long a GPU must be held back before that is worth a look.
const THROTTLED_S: f64 = 10.0;

/// Compares what the GPUs of all nodes draw now with what they drew while steps were made.
///
/// Nothing if no GPU is in use: a trainer that runs on processors leaves them alone, whatever they draw. Unknown until
/// some samples were taken on both sides.
pub fn power(nodes: &[NodeEvidence], facts: &RunFacts, now_s: f64) -> Option<Load> {
    if !nodes.iter().any(|node| node.gpus.iter().any(is_in_use)) {
        return None;
    }
    let Some(((_, step_s), sign_s)) = facts.last_metric.zip(facts.sign_s()) else { return Some(Load::Unknown) };
    // Starting up is no step: what GPUs draw then is no yardstick.
    let before_from_s = facts.first_metric_s.unwrap_or(f64::MIN).max(step_s - LOOKS_BACK_S);
    let now_from_s = (sign_s + DECAY_S).max(now_s - NOW_S);
    let (mut now_w, mut before_w) = (0.0, 0.0);
    for samples in nodes.iter().flat_map(|node| by_gpu(node).into_values()) {
        let powers = |from: f64, to: f64| -> Vec<f64> {
            samples.iter().filter(|s| s.t > from && s.t <= to).filter_map(|s| s.power_w.value()).collect()
        };
        let (before, after) = (powers(before_from_s, step_s), powers(now_from_s, now_s));
        let newest = &after[after.len().saturating_sub(SAMPLES)..];
        if newest.len() == SAMPLES && before.len() >= SAMPLES {
            now_w += mean(newest);
            before_w += mean(&before);
        }
    }
    Some(if before_w > 0.0 { Load::Power { now_w, before_w } } else { Load::Unknown })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Whether somebody computes on it, as its memory tells where it does.
fn is_in_use(sample: &GpuSample) -> bool {
    sample.power_w.value().is_some() && sample.mem_used_mib.value().is_none_or(|mib| mib > DRIVER_MIB)
}

fn by_gpu(node: &NodeEvidence) -> BTreeMap<u32, Vec<&GpuSample>> {
    let mut gpus: BTreeMap<u32, Vec<&GpuSample>> = BTreeMap::new();
    for sample in &node.gpus {
        gpus.entry(sample.index).or_default().push(sample);
    }
    gpus
}

pub fn findings(node: &NodeEvidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (trouble, since_s) in &node.past.troubles {
        let fix = "see `dmesg` on the node for Xid errors; a driver that hangs takes a reboot";
        let about = Subject::Node(node.node.clone());
        found.push(Finding::new(Rule::Smi, Urgency::Look, about, trouble, fix).since(*since_s));
    }
    for (index, past) in &node.past.gpus {
        let about = Subject::Gpu(node.node.clone(), *index);
        found.extend(lost(&about, past));
        found.extend(past.ecc.and_then(|errors| ecc(&about, errors)));
    }
    for (index, samples) in by_gpu(node) {
        found.extend(throttled(&Subject::Gpu(node.node.clone(), index), &samples));
    }
    for (xid, since_s) in &node.past.xids {
        let urgency = match xid.action() {
            XidAction::Note => Urgency::Note,
            XidAction::Restart => Urgency::Look,
            XidAction::Reset | XidAction::Reboot => Urgency::Act,
        };
        let about = Subject::Node(node.node.clone());
        found.push(Finding::new(Rule::Xid, urgency, about, xid.to_string(), xid.action().in_words()).since(*since_s));
    }
    found
}

fn lost(about: &Subject, past: &GpuPast) -> Option<Finding> {
    let (saw, since_s) = match &past.lost {
        Some((Absent::RequiresReset, since_s)) => ("it requires a reset", *since_s),
        Some((_, since_s)) => ("it fell off the bus", *since_s),
        None if past.missed >= MISSED => ("nvidia-smi lists it no more", past.listed_s),
        None => return None,
    };
    let fix = "take the node out of the run (--exclude at the next resume) and reboot it; see `dmesg` there";
    Some(Finding::new(Rule::GpuLost, Urgency::Act, about.clone(), saw, fix).since(since_s))
}

fn ecc(about: &Subject, ecc: Ecc) -> Option<Finding> {
    let ((before, first_s), count) = (ecc.before, ecc.count);
    let fix = "resume without its node (--exclude), and reset the GPU there: nvidia-smi -r";
    if let Some(since_s) = ecc.rose_s {
        let saw = format!("{count} memory errors that could not be corrected, {before} before");
        return Some(Finding::new(Rule::Ecc, Urgency::Act, about.clone(), saw, fix).since(since_s));
    }
    let saw = format!("{count} memory errors that could not be corrected since its driver was loaded");
    let settled = Finding::new(Rule::Ecc, Urgency::Look, about.clone(), saw, fix).since(first_s);
    (count > 0).then_some(settled)
}

/// Held back by heat or by its power supply, now and for some time.
fn throttled(about: &Subject, samples: &[&GpuSample]) -> Option<Finding> {
    let worrying = |sample: &GpuSample| sample.throttle_reasons.value().filter(|reasons| reasons.is_worrying());
    let last = samples.last()?;
    let reasons = worrying(last)?;
    let streak = samples.iter().rev().take_while(|sample| worrying(sample).is_some()).last()?;
    if last.t - streak.t < THROTTLED_S {
        return None;
    }
    let number = |reading: &Reading<f64>, unit: &str| {
        reading.value().map_or(String::new(), |value| format!(", {value:.0} {unit}"))
    };
    let saw = format!("held back: {reasons}{}{}", number(&last.temp_c, "°C"), number(&last.sm_clock_mhz, "MHz"),);
    let fix = "look at its cooling and power supply; every other rank waits for it";
    Some(Finding::new(Rule::Throttled, Urgency::Look, about.clone(), saw, fix).since(streak.t))
}

/// GPUs that draw far less than their peers while the run makes steps.
pub fn power_low(evidence: &Evidence<'_>) -> Vec<Finding> {
    if *evidence.state != RunState::Running || evidence.facts.silent_since_s(evidence.now_s).is_some() {
        return Vec::new();
    }
    // Idle GPUs draw what they like.
    let newest = evidence.nodes.iter().flat_map(|node| by_gpu(node).into_values()).filter_map(|s| s.last().copied());
    let (used, unused): (Vec<&GpuSample>, Vec<&GpuSample>) = newest.partition(|sample| is_in_use(sample));
    if used.len() <= unused.len() {
        return Vec::new();
    }
    let mut means: Vec<(&NodeId, u32, f64)> = Vec::new();
    for node in evidence.nodes {
        for (index, samples) in by_gpu(node) {
            let from = samples.last().map_or(0.0, |last| last.t) - COMPARED_S;
            let recent: Vec<&&GpuSample> = samples.iter().filter(|sample| sample.t > from).collect();
            let powers: Vec<f64> = recent.iter().filter_map(|sample| sample.power_w.value()).collect();
            // A minute of it: short pauses, for data or a checkpoint, are the run's own.
            if powers.len() >= 2 * SAMPLES {
                means.push((&node.node, index, mean(&powers)));
            }
        }
    }
    let mut sorted: Vec<f64> = means.iter().map(|(.., mean)| *mean).collect();
    sorted.sort_by(f64::total_cmp);
    // With two, nobody can say which of them is the odd one.
    let Some(usual) = sorted.get(sorted.len() / 2).copied().filter(|_| sorted.len() > 2) else { return Vec::new() };
    let low = means.into_iter().filter(|(.., mean)| *mean < BELOW_PEERS * usual);
    low.map(|(node, index, mean)| {
        let saw = format!("it draws {mean:.0} W where the others draw {usual:.0} W");
        let smi = format!("vidtui smi {node} --run {}", evidence.run);
        let fix = format!("see whether a rank runs on it, and what its clocks and power limit are: {smi}");
        Finding::new(Rule::PowerLow, Urgency::Look, Subject::Gpu(node.clone(), index), saw, fix)
    })
    .collect()
}

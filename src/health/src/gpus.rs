//! Rules for GPU samples.

use std::collections::BTreeMap;

use cluster::{Absent, GpuSample, NodeId, Reading, XidAction};
use rundir::SAMPLE_EVERY_S;
use runstate::{Load, RunFacts, RunState};

use super::past::{Ecc, GpuPast};
use super::{Evidence, Finding, LOOKS_BACK_S, NodeEvidence, Rule, Subject, Urgency};

/// The maximum age in seconds of samples that count as current. A rule needs several samples, because one may be taken
/// between two kernels; the window has room for more of them, because nvidia-smi is slow at times.
const NOW_S: f64 = 8.0 * SAMPLE_EVERY_S;
/// Seconds from the end of the last kernel until GPU power has fallen.
const DECAY_S: f64 = 4.0;
/// A GPU that is missing from this many samples counts as lost.
const MISSED: u32 = 2;
/// The time over which GPU power is averaged and compared, in seconds.
const COMPARED_S: f64 = 60.0;
/// The most GPU memory that the driver itself uses, in MiB.
const DRIVER_MIB: u64 = 1024;
/// The number of samples that a mean needs.
const SAMPLES: usize = 3;
/// A GPU whose power is below this share of the median is underused or throttled.
const BELOW_PEERS: f64 = 0.6;
/// Seconds for which a GPU must be throttled before it is reported.
const THROTTLED_S: f64 = 10.0;

/// Compares the GPU power of all nodes now with their GPU power while steps advanced.
///
/// Returns `None` if no GPU is in use, as with a trainer on the CPU, and `Load::Unknown` until there are enough samples before
/// and after the last step.
pub fn power(nodes: &[NodeEvidence], facts: &RunFacts, now_s: f64) -> Option<Load> {
    if !nodes.iter().any(|node| node.gpus.iter().any(is_in_use)) {
        return None;
    }
    let Some(((_, step_s), last_activity_s)) = facts.last_metric.zip(facts.last_activity_s()) else {
        return Some(Load::Unknown);
    };
    // GPU power during start-up is not a reference.
    let before_from_s = facts.first_metric_s.unwrap_or(f64::MIN).max(step_s - LOOKS_BACK_S);
    let now_from_s = (last_activity_s + DECAY_S).max(now_s - NOW_S);
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

/// Returns whether a process uses the GPU: its power is reported, and its used memory exceeds the driver's or is unknown.
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
    for (error, since_s) in &node.past.smi_errors {
        let fix = "check `dmesg` on the node for Xid errors; if the driver hangs, reboot the node";
        let about = Subject::Node(node.node.clone());
        found.push(Finding::new(Rule::Smi, Urgency::Look, about, error, fix).since(*since_s));
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
            action if action.is_fault() => Urgency::Act,
            _ => Urgency::Look,
        };
        let about = Subject::Node(node.node.clone());
        found.push(Finding::new(Rule::Xid, urgency, about, xid.to_string(), xid.action().in_words()).since(*since_s));
    }
    found
}

fn lost(about: &Subject, past: &GpuPast) -> Option<Finding> {
    let (saw, since_s) = match &past.lost {
        Some((Absent::RequiresReset, since_s)) => ("the GPU requires a reset", *since_s),
        Some((_, since_s)) => ("the GPU has fallen off the bus", *since_s),
        None if past.missed >= MISSED => ("nvidia-smi no longer lists the GPU", past.listed_s),
        None => return None,
    };
    let fix = "resume without the node (--exclude) and reboot it; `dmesg` on the node shows the cause";
    Some(Finding::new(Rule::GpuLost, Urgency::Act, about.clone(), saw, fix).since(since_s))
}

fn ecc(about: &Subject, ecc: Ecc) -> Option<Finding> {
    let ((before, first_s), count) = (ecc.before, ecc.count);
    let fix = "resume without the node (--exclude) and reset the GPU there: nvidia-smi -r";
    if let Some(since_s) = ecc.rose_s {
        let saw = format!("{count} uncorrected memory errors, previously {before}");
        return Some(Finding::new(Rule::Ecc, Urgency::Act, about.clone(), saw, fix).since(since_s));
    }
    let saw = format!("{count} uncorrected memory errors since the driver was loaded");
    let settled = Finding::new(Rule::Ecc, Urgency::Look, about.clone(), saw, fix).since(first_s);
    (count > 0).then_some(settled)
}

/// Finds a GPU that has been throttled by heat or by its power supply for at least [`THROTTLED_S`].
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
    let saw = format!("throttled: {reasons}{}{}", number(&last.temp_c, "°C"), number(&last.sm_clock_mhz, "MHz"));
    let fix = "check cooling and power supply of the node; all other ranks wait for this GPU";
    Some(Finding::new(Rule::Throttled, Urgency::Look, about.clone(), saw, fix).since(streak.t))
}

/// Finds GPUs that draw far less power than the others while steps advance.
pub fn power_low(evidence: &Evidence<'_>) -> Vec<Finding> {
    if *evidence.state != RunState::Running || evidence.facts.inactive_since_s(evidence.now_s).is_some() {
        return Vec::new();
    }
    // If most GPUs were idle, the median would be that of idle GPUs, whose power varies.
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
            // The mean is over a minute, because pauses for data or a checkpoint are normal.
            if powers.len() >= 2 * SAMPLES {
                means.push((&node.node, index, mean(&powers)));
            }
        }
    }
    let mut sorted: Vec<f64> = means.iter().map(|(.., mean)| *mean).collect();
    sorted.sort_by(f64::total_cmp);
    // With two GPUs, the median does not show which of them differs.
    let Some(usual) = sorted.get(sorted.len() / 2).copied().filter(|_| sorted.len() > 2) else { return Vec::new() };
    let low = means.into_iter().filter(|(.., mean)| *mean < BELOW_PEERS * usual);
    low.map(|(node, index, mean)| {
        let saw = format!("GPU power is {mean:.0} W, and the others draw {usual:.0} W");
        let smi = format!("vidtui smi {node} --run {}", evidence.run);
        let fix = format!("check whether a rank uses this GPU, and its clocks and power limit: {smi}");
        Finding::new(Rule::PowerLow, Urgency::Look, Subject::Gpu(node.clone(), index), saw, fix)
    })
    .collect()
}

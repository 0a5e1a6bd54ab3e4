//! Rules over what GPUs tell.

use std::collections::BTreeMap;

use cluster::{Absent, GpuSample, NodeId, Reading, XidAction};
use rundir::{Load, RunState};

use super::{Evidence, Finding, NodeEvidence, Rule, Subject, Urgency};

/// Power over this time tells what a GPU does now. Short, so that a hang is called soon; several samples, since one may be
/// of a moment between two kernels.
const NOW_S: f64 = 10.0;
/// Power over this time before the last step tells what it draws while it makes steps.
const BEFORE_S: f64 = 300.0;
/// Power falls some seconds after the last kernel.
const DECAY_S: f64 = 4.0;
/// Memory that the driver takes for itself.
const DRIVER_MIB: u64 = 1024;
/// How many samples it takes to judge.
const SAMPLES: usize = 3;
/// A GPU that draws less than this share of what the others draw does less, or is held back.
const BELOW_PEERS: f64 = 0.6;
/// How long a GPU must be held back before that is worth a look.
const THROTTLED_S: f64 = 10.0;

/// Compares what the GPUs of all nodes draw now with what they drew while steps were made, the last of them at `sign_s`.
///
/// Nothing if no GPU is in use: a trainer that runs on processors leaves them alone, whatever they draw. Unknown until
/// some samples were taken on both sides.
pub fn power(nodes: &[NodeEvidence], sign_s: f64, now_s: f64) -> Option<Load> {
    if !nodes.iter().any(|node| node.gpus.iter().any(is_in_use)) {
        return None;
    }
    let (mut now_w, mut before_w) = (0.0, 0.0);
    for samples in nodes.iter().flat_map(|node| by_gpu(node).into_values()) {
        let mean = |from: f64, to: f64| {
            let powers: Vec<f64> =
                samples.iter().filter(|s| s.t > from && s.t <= to).filter_map(|s| s.power_w.value()).collect();
            (powers.len() >= SAMPLES).then(|| powers.iter().sum::<f64>() / powers.len() as f64)
        };
        let now = mean((now_s - NOW_S).max(sign_s + DECAY_S), now_s);
        if let (Some(now), Some(before)) = (now, mean(sign_s - BEFORE_S, sign_s)) {
            now_w += now;
            before_w += before;
        }
    }
    Some(if before_w > 0.0 { Load::Power { now_w, before_w } } else { Load::Unknown })
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
    for trouble in &node.troubles {
        let fix = "see `dmesg` on the node for Xid errors; a driver that hangs takes a reboot";
        found.push(Finding::new(Rule::Smi, Urgency::Look, Subject::Node(node.node.clone()), trouble, fix));
    }
    let newest_s = node.gpus.last().map_or(0.0, |sample| sample.t);
    for (index, samples) in by_gpu(node) {
        let about = Subject::Gpu(node.node.clone(), index);
        found.extend(lost(&about, &samples, newest_s));
        found.extend(ecc(&about, &samples));
        found.extend(throttled(&about, &samples));
    }
    for xid in &node.xids {
        let urgency = match xid.action() {
            XidAction::Note => Urgency::Note,
            XidAction::Restart => Urgency::Look,
            XidAction::Reset | XidAction::Reboot => Urgency::Act,
        };
        let known = node.gpus.iter().find(|gpu| gpu.bus_id.as_deref().is_some_and(|id| same_bus(id, &xid.bus_id)));
        let about = known.map_or(Subject::Node(node.node.clone()), |gpu| Subject::Gpu(node.node.clone(), gpu.index));
        let meaning = xid.meaning().map_or(String::new(), |meaning| format!(": {meaning}"));
        let saw = format!("Xid {} at {}{meaning}", xid.number, xid.bus_id);
        found.push(Finding::new(Rule::Xid, urgency, about, saw, xid.action().in_words()));
    }
    found
}

/// Whether `00000000:19:00.0`, as nvidia-smi writes it, is `0000:19:00`, as the kernel does.
fn same_bus(long: &str, short: &str) -> bool {
    let long = long.rsplit_once('.').map_or(long, |(device, _)| device).to_ascii_lowercase();
    long.ends_with(&short.to_ascii_lowercase())
}

fn lost(about: &Subject, samples: &[&GpuSample], newest_s: f64) -> Option<Finding> {
    let last = samples.last()?;
    let fix = "take the node out of the run (--exclude at the next resume) and reboot it; see `dmesg` there";
    let readings = [last.power_w.absent(), last.util_pct.absent(), last.mem_used_mib.absent(), last.temp_c.absent()];
    for (why, saw) in [(Absent::GpuIsLost, "it fell off the bus"), (Absent::RequiresReset, "it requires a reset")] {
        if readings.contains(&Some(&why)) {
            return Some(Finding::new(Rule::GpuLost, Urgency::Act, about.clone(), saw, fix).since(last.t));
        }
    }
    // The others were seen since then, more than once.
    (newest_s - last.t > NOW_S).then(|| {
        Finding::new(Rule::GpuLost, Urgency::Act, about.clone(), "nvidia-smi lists it no more", fix).since(last.t)
    })
}

fn ecc(about: &Subject, samples: &[&GpuSample]) -> Option<Finding> {
    let counts: Vec<(f64, u64)> = samples.iter().filter_map(|s| Some((s.t, s.ecc_uncorrected.value()?))).collect();
    let (first, last) = (counts.first()?.1, counts.last()?.1);
    if last == 0 {
        return None;
    }
    let fix = "resume without its node (--exclude), and reset the GPU there: nvidia-smi -r";
    if last > first {
        let since_s = counts.iter().find(|(_, count)| *count > first)?.0;
        let saw = format!("{last} memory errors that could not be corrected, {first} before");
        return Some(Finding::new(Rule::Ecc, Urgency::Act, about.clone(), saw, fix).since(since_s));
    }
    let saw = format!("{last} memory errors that could not be corrected since its driver was loaded");
    Some(Finding::new(Rule::Ecc, Urgency::Look, about.clone(), saw, fix))
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
    let mut means: Vec<(&NodeId, u32, f64, f64)> = Vec::new();
    for node in evidence.nodes {
        for (index, samples) in by_gpu(node) {
            let from = samples.last().map_or(0.0, |last| last.t) - 6.0 * NOW_S;
            let recent: Vec<&&GpuSample> = samples.iter().filter(|sample| sample.t > from).collect();
            let powers: Vec<f64> = recent.iter().filter_map(|sample| sample.power_w.value()).collect();
            // A minute of it: short pauses, for data or a checkpoint, are the run's own.
            if powers.len() >= 2 * SAMPLES {
                let mean = powers.iter().sum::<f64>() / powers.len() as f64;
                means.push((&node.node, index, mean, recent[0].t));
            }
        }
    }
    let mut sorted: Vec<f64> = means.iter().map(|(.., mean, _)| *mean).collect();
    sorted.sort_by(f64::total_cmp);
    // With two, nobody can say which of them is the odd one.
    let Some(usual) = sorted.get(sorted.len() / 2).copied().filter(|_| sorted.len() > 2) else { return Vec::new() };
    let low = means.into_iter().filter(|(.., mean, _)| *mean < BELOW_PEERS * usual);
    low.map(|(node, index, mean, since_s)| {
        let saw = format!("it draws {mean:.0} W where the others draw {usual:.0} W");
        let fix = "see whether a rank runs on it, and what its clocks and power limit are: vidtui smi NODE";
        Finding::new(Rule::PowerLow, Urgency::Look, Subject::Gpu(node.clone(), index), saw, fix).since(since_s)
    })
    .collect()
}

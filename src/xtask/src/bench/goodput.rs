//! Simulates weeks of faults on 256 nodes, with this program's restart and with a perfect one.
//!
//! Nothing is measured: the rates, times and sizes below are assumptions, which the note of the row states.

use super::table::{Row, median};
use crate::failure::Result;

const NODES: f64 = 256.0;
const GPUS_PER_NODE: f64 = 8.0;
const DAY_S: f64 = 86_400.0;
const WEEK_S: f64 = 7.0 * DAY_S;
/// Faults per GPU and second: 419 unexpected interruptions in 54 days on 16,384 GPUs (The Llama 3 Herd of Models, section 3.3.4).
const FAULTS_PER_GPU_S: f64 = 419.0 / (54.0 * DAY_S * 16_384.0);
/// Simulated weeks, each with its own seed.
const WEEKS: u64 = 101;
/// The limit: goodput lost compared with a perfect restart, in percent.
const MOST_LOST: f64 = 5.0;

/// The training that faults interrupt. It is the same for both restarts.
const TRAINING: Training = Training { step_s: 10.0, interval: 60, stall_s: 2.0, write_s: 60.0 };

/// The restart of this program. Detection takes the timeouts of the code; the times to start and load are assumed to be long.
const OURS: Restart = Restart {
    // A supervisor misses heartbeats for ten seconds, then waits two seconds for the ranks.
    detect_s: 12.0,
    // Five steps without progress.
    detect_hang_s: 5.0 * TRAINING.step_s,
    hangs: 0.1,
    plan_s: 30.0,
    start_s: 120.0,
    load_s: 120.0,
};

const PERFECT: Restart =
    Restart { detect_s: 0.0, detect_hang_s: 0.0, hangs: OURS.hangs, plan_s: 0.0, start_s: 0.0, load_s: 0.0 };

struct Training {
    step_s: f64,
    /// Steps from one checkpoint to the next.
    interval: u64,
    /// Training waits this long for each checkpoint.
    stall_s: f64,
    /// After this time a checkpoint is complete.
    write_s: f64,
}

/// The times of a restart after a fault, in seconds.
struct Restart {
    detect_s: f64,
    /// The time to detect a hang: the steps stop, but no process ends.
    detect_hang_s: f64,
    /// The share of faults that are hangs.
    hangs: f64,
    /// Ending the other ranks, and planning and checking the next attempt.
    plan_s: f64,
    /// From the launch until all ranks are connected.
    start_s: f64,
    /// Reading the checkpoint.
    load_s: f64,
}

/// A fault of a GPU, a node or the network that ends the attempt.
struct Fault {
    at_s: f64,
    /// A number from 0 to 1. The fault is a hang if the number is below `Restart::hangs`.
    kind: f64,
}

impl Restart {
    fn seconds(&self, fault: &Fault) -> f64 {
        let detect_s = if fault.kind < self.hangs { self.detect_hang_s } else { self.detect_s };
        detect_s + self.plan_s + self.start_s + self.load_s
    }
}

/// Simulates all weeks and returns one row: goodput lost compared with a perfect restart.
pub fn rows() -> Result<Vec<Row>> {
    println!("simulating {WEEKS} weeks of faults on {NODES} nodes");
    let weeks: Vec<Vec<Fault>> = (1..=WEEKS).map(faults).collect();
    let goodputs = |restart: &Restart| weeks.iter().map(|faults| goodput(faults, restart)).collect::<Vec<_>>();
    let (ours, perfect) = (goodputs(&OURS), goodputs(&PERFECT));
    let counts: Vec<f64> = weeks.iter().map(|faults| faults.len() as f64).collect();
    let Training { step_s, interval, stall_s, write_s } = TRAINING;
    let Restart { detect_s, detect_hang_s, hangs, plan_s, start_s, load_s } = OURS;
    Ok(vec![Row {
        what: "256 nodes, a week of faults: goodput lost compared with a perfect restart".into(),
        unit: "%",
        rounds: ours.iter().zip(&perfect).map(|(ours, perfect)| 100.0 * (1.0 - ours / perfect)).collect(),
        at_most: MOST_LOST,
        note: format!(
            "simulated, not measured: goodput {:.1} %, with a perfect restart {:.1} %. {:.0} faults a week ({NODES} × {GPUS_PER_NODE} GPUs at \
             Llama 3's rate). Steps of {step_s} s, a checkpoint every {interval} steps that stalls {stall_s} s and is complete after \
             {write_s} s. Restart: detect {detect_s} s (hangs, {:.0} % of faults: {detect_hang_s} s), end and plan {plan_s} s, start \
             {start_s} s, load {load_s} s; perfect: 0 s",
            100.0 * median(&ours),
            100.0 * median(&perfect),
            median(&counts),
            100.0 * hangs,
        ),
    }])
}

/// Returns the goodput: the share of the week spent on steps that were not lost.
fn goodput(faults: &[Fault], restart: &Restart) -> f64 {
    let (mut at_s, mut step) = (0.0, 0);
    // The time at which each checkpoint is complete, and its step.
    let mut saved = vec![(0.0, 0)];
    let mut faults = faults.iter().peekable();
    while at_s < WEEK_S {
        let saves = (step + 1) % TRAINING.interval == 0;
        let next_s = at_s + TRAINING.step_s + if saves { TRAINING.stall_s } else { 0.0 };
        // A fault during a restart starts the restart again.
        if let Some(fault) = faults.next_if(|fault| fault.at_s < next_s) {
            // A checkpoint that was being written is lost.
            saved.retain(|(complete_s, _)| *complete_s <= fault.at_s);
            step = saved.last().map_or(0, |(_, step)| *step);
            at_s = fault.at_s + restart.seconds(fault);
            continue;
        }
        (at_s, step) = (next_s, step + 1);
        if saves {
            saved.push((at_s + TRAINING.write_s, step));
        }
    }
    step as f64 * TRAINING.step_s / at_s
}

/// Returns the faults of a week: a Poisson process.
fn faults(seed: u64) -> Vec<Fault> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let rate = FAULTS_PER_GPU_S * NODES * GPUS_PER_NODE;
    let mut faults = Vec::new();
    let mut at_s = 0.0;
    loop {
        at_s -= (1.0 - random.uniform()).ln() / rate;
        if at_s >= WEEK_S {
            return faults;
        }
        faults.push(Fault { at_s, kind: random.uniform() });
    }
}

/// The generator SplitMix64, which gives the same numbers on every machine.
struct Random(u64);

impl Random {
    /// Returns a number of at least 0 and below 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_faults_only_the_saves_are_lost() {
        let Training { step_s, interval, stall_s, .. } = TRAINING;
        let steps_s = interval as f64 * step_s;
        assert!((goodput(&[], &PERFECT) - steps_s / (steps_s + stall_s)).abs() < 1e-3);
    }

    #[test]
    fn a_fault_costs_the_restart_and_the_steps_since_the_checkpoint() {
        // The first fault is 100 s after the start of step 61. A second fault 50 s later hits the restart.
        let at_s = TRAINING.interval as f64 * TRAINING.step_s + TRAINING.stall_s + 100.0;
        let fault = |at_s| Fault { at_s, kind: 0.9 };
        let lost_s = |faults: &[Fault], restart: &Restart| (goodput(&[], restart) - goodput(faults, restart)) * WEEK_S;
        let restart_s = OURS.seconds(&fault(at_s));
        assert!((lost_s(&[fault(at_s)], &PERFECT) - 100.0).abs() < 20.0);
        assert!((lost_s(&[fault(at_s)], &OURS) - 100.0 - restart_s).abs() < 20.0);
        let twice = [fault(at_s), fault(at_s + 50.0)];
        assert!((lost_s(&twice, &OURS) - 150.0 - restart_s).abs() < 20.0);
        // This fault comes before the checkpoint is complete, so all steps since the start are lost.
        let early = [fault(at_s - 50.0)];
        assert!((lost_s(&early, &PERFECT) - 650.0).abs() < 20.0);
    }

    #[test]
    fn the_faults_have_the_published_rate_and_the_row_holds() {
        let all: usize = (1..=WEEKS).map(|seed| faults(seed).len()).sum();
        let wanted = 419.0 / 54.0 * 7.0 / 8.0;
        assert!((all as f64 / WEEKS as f64 - wanted).abs() < 0.5, "{all}");
        let row = rows().unwrap().remove(0);
        assert!(row.holds() && row.rounds.iter().all(|lost| *lost >= 0.0), "{:?}", row.rounds);
    }
}

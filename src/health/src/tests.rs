//! Tests each rule with faulty and with healthy samples of GPUs, nodes and steps.

use cluster::nvidia_smi::SmiError;
use cluster::probe::{Frame, HostSample};
use cluster::{Absent, Reading, ThrottleReasons, Xid, XidAction, XidAt};
use rundir::{ErrorCode, EventKind, Failure, History, RunId};
use runstate::{Liveness, Load, derive};

use super::*;
use rundir::fixtures;

/// 2026-11-20 03:40:12 UTC.
const NOW_S: f64 = 1_795_146_012.0;

/// The power of an H100 that trains, that waits in a collective, and that is idle, in watts.
const TRAINING_W: f64 = 650.0;
const WAITING_W: f64 = 120.0;
const IDLE_W: f64 = 70.0;
/// Seconds between two evaluations of the rules by the console.
const POLL_S: f64 = 2.0;

/// A phase of a run.
#[derive(Clone, Copy)]
enum Phase {
    /// Processes start and load.
    StartUp(f64),
    /// Steps of this many seconds each.
    Steps(u32, f64),
    /// A checkpoint is written while steps wait.
    Checkpoint(f64),
    /// An evaluation with an event.
    Evaluation(f64),
    /// An evaluation without an event, with this share of the training power.
    SilentEvaluation(f64, f64),
    /// A hang.
    Hang(f64),
    /// A hang during an evaluation with an event.
    HangEvaluating(f64),
}

/// A node with GPU power samples, or a node without GPUs whose processes have a known CPU use.
#[derive(Clone, Copy, PartialEq)]
enum Machine {
    Gpus,
    Cpus,
}

/// Replays phases, derives the state of the run every two seconds, and returns the times since the start at which the run is
/// stalled.
fn stalled_at(machine: Machine, phases: &[Phase]) -> Vec<f64> {
    let attempt = fixtures::attempt(1, 0, &["vm", "vm"]);
    let start_s = NOW_S;
    let mut facts =
        RunFacts { attempt: Some(attempt.clone()), alive: Liveness::Alive, steps_total: 1000, ..RunFacts::default() };
    facts.attempt.as_mut().unwrap().started_s = start_s;
    let mut node = NodeEvidence::new(NodeId::from_hostname("vm"));
    let mut history = History::default();
    let (mut t, mut poll, mut step, mut stalled) = (start_s, start_s, 0, Vec::new());
    let event = |t, kind| Event::new(t, attempt.number, None, kind);
    for phase in phases {
        let (steps, step_s, power_w) = match *phase {
            Phase::StartUp(s) => (1, s, IDLE_W),
            Phase::Steps(steps, s) => (steps, s, TRAINING_W),
            Phase::Checkpoint(s) => (1, s, IDLE_W),
            Phase::Evaluation(s) => (1, s, 0.4 * TRAINING_W),
            Phase::SilentEvaluation(s, share) => (1, s, share * TRAINING_W),
            Phase::Hang(s) | Phase::HangEvaluating(s) => (1, s, WAITING_W),
        };
        match phase {
            Phase::Checkpoint(_) => facts.see_event(&event(t, EventKind::CheckpointStarted)),
            Phase::Evaluation(_) | Phase::HangEvaluating(_) => {
                facts.see_event(&event(t, EventKind::EvaluationStarted));
            }
            _ => {}
        }
        for _ in 0..steps {
            let end = t + step_s;
            while poll < end {
                if machine == Machine::Gpus {
                    node.see(&sample(poll, (0..8).map(|index| gpu(index, poll, power_w)), &[]), 8);
                    node.forget(facts.last_metric.map(|(_, t)| t));
                }
                facts.load = match machine {
                    Machine::Gpus => power(std::slice::from_ref(&node), &facts, poll).unwrap_or_default(),
                    Machine::Cpus if matches!(phase, Phase::Hang(_)) => Load::Cpu { most: 0.01 },
                    Machine::Cpus => Load::Cpu { most: 0.97 },
                };
                if let RunState::Stalled { .. } = derive(&facts, poll) {
                    stalled.push(poll - start_s);
                }
                poll += POLL_S;
            }
            t = end;
            if matches!(phase, Phase::Steps(..)) {
                step += 1;
                let sample = MetricSample { attempt: attempt.number, step, t, step_s, ..MetricSample::default() };
                facts.see_metric(&sample);
                history.push(sample);
                facts.median_step_s = history.median_step_s();
            }
        }
        match phase {
            Phase::Checkpoint(s) => {
                let kind = EventKind::CheckpointSaved { path: "x".into(), bytes: 1, seconds: *s };
                facts.see_event(&event(t, kind));
            }
            Phase::Evaluation(_) => facts.see_event(&event(t, EventKind::EvaluationEnded)),
            _ => {}
        }
    }
    stalled
}

/// Makes a supervisor's sample of these GPUs.
fn sample(t: f64, gpus: impl IntoIterator<Item = GpuSample>, smi_errors: &[SmiError]) -> NodeSample {
    let (gpus, smi_errors) = (gpus.into_iter().collect(), smi_errors.to_vec());
    let (host, elsewhere, xids) = (HostSample::default(), vec![], vec![]);
    let frame = Frame { number: 1, t, took_s: 0.0, host, gpus, elsewhere, smi_errors, xids, xids_denied: false };
    NodeSample::new(1, &frame, None)
}

fn gpu(index: u32, t: f64, power_w: f64) -> GpuSample {
    GpuSample {
        t,
        index,
        uuid: None,
        name: None,
        bus_id: None,
        power_w: Reading::Value(power_w),
        power_limit_w: Reading::default(),
        mem_used_mib: Reading::default(),
        mem_total_mib: Reading::default(),
        util_pct: Reading::Value(100.0),
        temp_c: Reading::default(),
        sm_clock_mhz: Reading::default(),
        fan_pct: Reading::default(),
        pcie_gen: Reading::default(),
        pcie_lanes: Reading::default(),
        ecc_uncorrected: Reading::Value(0),
        throttle_reasons: Reading::default(),
        mig: false,
        processes: Vec::new(),
    }
}

#[test]
fn a_hang_is_found_between_30_and_60_seconds_after_the_last_step() {
    for machine in [Machine::Gpus, Machine::Cpus] {
        let stalled = stalled_at(machine, &[Phase::StartUp(90.0), Phase::Steps(100, 1.0), Phase::Hang(120.0)]);
        let after_s = stalled[0] - 190.0;
        assert!((30.0..=60.0).contains(&after_s), "{after_s}");
        assert!(stalled.last().unwrap() - 190.0 > 110.0, "the run stays stalled");
    }
}

#[test]
fn start_up_checkpoints_and_evaluations_are_not_hangs() {
    let phases = [
        Phase::StartUp(300.0),
        // The first step compiles and fills caches.
        Phase::Steps(1, 60.0),
        Phase::Steps(50, 1.0),
        Phase::Checkpoint(240.0),
        Phase::Steps(30, 1.0),
        Phase::Evaluation(600.0),
        Phase::Steps(30, 1.0),
        Phase::SilentEvaluation(300.0, 0.7),
        Phase::Steps(3, 20.0),
    ];
    assert_eq!(stalled_at(Machine::Gpus, &phases), Vec::<f64>::new());
    assert_eq!(stalled_at(Machine::Cpus, &phases), Vec::<f64>::new());
}

#[test]
fn a_long_step_is_a_hang_after_five_step_times() {
    let stalled = stalled_at(Machine::Gpus, &[Phase::StartUp(60.0), Phase::Steps(20, 60.0), Phase::Hang(400.0)]);
    let after_s = stalled[0] - 60.0 - 1200.0;
    assert!((300.0..=305.0).contains(&after_s), "{after_s}");
}

#[test]
fn a_hang_during_an_evaluation_is_found_after_ten_minutes() {
    let stalled =
        stalled_at(Machine::Gpus, &[Phase::StartUp(90.0), Phase::Steps(100, 1.0), Phase::HangEvaluating(900.0)]);
    let after_s = stalled[0] - 190.0;
    assert!((600.0..=605.0).contains(&after_s), "{after_s}");
    assert_eq!(stalled_at(Machine::Gpus, &[Phase::Steps(100, 1.0), Phase::Evaluation(3000.0)]), Vec::<f64>::new());
}

#[test]
fn power_during_start_up_is_not_a_reference() {
    let stalled = stalled_at(Machine::Gpus, &[Phase::StartUp(300.0), Phase::Steps(10, 1.0), Phase::Hang(120.0)]);
    assert!((30.0..=60.0).contains(&(stalled[0] - 310.0)), "{stalled:?}");
}

#[test]
fn power_is_unknown_without_samples_before_and_after_the_last_step() {
    let facts = RunFacts { last_metric: Some((9, 100.0)), first_metric_s: None, ..Case::new().facts };
    let facts = RunFacts { attempt: facts.attempt.map(|a| rundir::Attempt { started_s: 0.0, ..a }), ..facts };
    let load = |samples: &[(f64, f64)], mem_used_mib: u64, gpus: usize| {
        let mut node = NodeEvidence::new(NodeId::from_hostname("vm"));
        for (t, power_w) in samples {
            let busy = GpuSample { mem_used_mib: Reading::Value(mem_used_mib), ..gpu(0, *t, *power_w) };
            node.see(&sample(*t, [busy, gpu(1, *t, IDLE_W)], &[]), gpus);
        }
        power(&[node], &facts, 130.0)
    };
    let after = [110.0, 115.0, 120.0, 125.0].map(|t| (t, WAITING_W));
    let all = [&[90.0, 94.0, 98.0].map(|t| (t, TRAINING_W))[..], &after].concat();
    assert_eq!(load(&[], 70_000, 1), None, "no GPUs");
    assert_eq!(load(&after, 70_000, 1), Some(Load::Unknown), "no sample before the last step");
    assert_eq!(load(&all[..5], 70_000, 1), Some(Load::Unknown), "too few samples");
    assert_eq!(load(&all, 70_000, 1), Some(Load::Power { now_w: WAITING_W, before_w: TRAINING_W }));
    assert_eq!(load(&all, 4, 1), None, "the GPU is not in use");
    let both = Load::Power { now_w: WAITING_W + IDLE_W, before_w: TRAINING_W + IDLE_W };
    assert_eq!(load(&all, 70_000, 2), Some(both), "the run uses both GPUs");
}

#[test]
fn only_the_gpus_that_a_sample_records_as_used_by_ranks_count() {
    let facts = RunFacts { last_metric: Some((9, 100.0)), first_metric_s: None, ..Case::new().facts };
    let facts = RunFacts { attempt: facts.attempt.map(|a| rundir::Attempt { started_s: 0.0, ..a }), ..facts };
    let mut node = NodeEvidence::new(NodeId::from_hostname("vm"));
    let training = [90.0, 94.0, 98.0].map(|t| (t, TRAINING_W));
    let waiting = [110.0, 115.0, 120.0, 125.0].map(|t| (t, WAITING_W));
    for (t, power_w) in training.into_iter().chain(waiting) {
        let busy = GpuSample { mem_used_mib: Reading::Value(70_000), ..gpu(1, t, power_w) };
        let mut sample = sample(t, [gpu(0, t, IDLE_W), busy], &[]);
        sample.gpus.used = vec![1];
        node.see(&sample, 1);
    }
    let expected = Load::Power { now_w: WAITING_W, before_w: TRAINING_W };
    assert_eq!(power(&[node], &facts, 130.0), Some(expected));
}

/// A run on two ranks with steps of one second.
struct Case {
    facts: RunFacts,
    state: RunState,
    metrics: Vec<MetricSample>,
    events: Vec<Event>,
    checkpoint: Option<CheckpointSummary>,
    disk: Option<Disk>,
    spike: f64,
    nodes: Vec<NodeEvidence>,
}

impl Case {
    fn new() -> Self {
        let attempt = fixtures::attempt(1, 0, &["vm", "vm"]);
        let start_s = attempt.started_s;
        let metrics: Vec<MetricSample> = (1..=60)
            .map(|step| MetricSample {
                attempt: attempt.number,
                step,
                t: start_s + step as f64,
                loss: Some(1.0 + 0.02 * f64::from((step % 5) as u8)),
                grad_norm: Some(1.0),
                step_s: 1.0,
                step_s_by_rank: vec![1.0, 1.01],
                ..MetricSample::default()
            })
            .collect();
        let mut facts = RunFacts {
            attempt: Some(attempt),
            alive: Liveness::Alive,
            median_step_s: Some(1.0),
            ..RunFacts::default()
        };
        facts.see_metric(&metrics[59]);
        let node = NodeEvidence::new(facts.attempt.as_ref().unwrap().placement.ranks[0].node.clone());
        let (state, checkpoint, disk) = (RunState::Running, None, None);
        Self { facts, state, metrics, events: Vec::new(), checkpoint, disk, spike: 10.0, nodes: vec![node] }
    }

    fn now_s(&self) -> f64 {
        self.metrics.last().unwrap().t + 1.0
    }

    /// Evaluates the rules twice, 30 seconds apart, and returns the findings of the second time.
    fn findings(&self) -> Vec<Finding> {
        let mut findings = findings(&Evidence {
            run: "demo-2s-k7f2",
            now_s: self.now_s(),
            state: &self.state,
            facts: &self.facts,
            metrics: &self.metrics,
            events: &self.events,
            checkpoint: self.checkpoint.as_ref(),
            checkpoint_interval: 40,
            spike: self.spike,
            lr: Some(1e-4),
            data: &["data/rabbits".to_owned()],
            disk: self.disk,
            nodes: &self.nodes,
        });
        let mut seen = FirstSeen::default();
        seen.complete(&mut findings.clone(), self.now_s() - 30.0);
        seen.complete(&mut findings, self.now_s());
        findings
    }

    fn rules(&self) -> Vec<Rule> {
        self.findings().iter().map(|finding| finding.rule).collect()
    }

    /// Returns the findings as text: urgency, rule, sentence, age, advice.
    fn text(&self) -> String {
        let line = |f: &Finding| {
            let since = format!("({:.0} s ago)", self.now_s() - f.since_s.expect("FirstSeen fills it in"));
            format!("  {:?} {:?} {} {since}\n    {}", f.urgency, f.rule, f.sentence(), f.fix)
        };
        self.findings().iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Skips steps, with the event and the counter of the trainer.
    fn skip(&mut self, steps: &[u64], clips: &[&str], in_data: bool) {
        for step in steps {
            let clips = clips.iter().map(|clip| (*clip).to_owned()).collect();
            let kind = EventKind::StepSkipped { clips, more_clips: 0, in_data };
            let t = self.metrics[*step as usize - 1].t;
            self.events.push(Event::new(t, 1, Some(*step), kind));
            self.metrics[*step as usize - 1..].iter_mut().for_each(|line| line.skipped_steps += 1);
        }
        let newest = runstate::Newest { metrics: self.metrics.clone(), events: self.events.clone(), with_loss: None };
        self.facts.newest = std::sync::Arc::new(newest);
    }

    /// Adds samples of four GPUs, two seconds apart, over the last `seconds`.
    fn samples(&mut self, seconds: u32, one: impl Fn(u32, f64) -> Option<GpuSample>) {
        let end = self.now_s();
        for t in (0..seconds / 2).rev().map(|back| end - 2.0 * f64::from(back)) {
            self.nodes[0].see(&sample(t, (0..4).filter_map(|index| one(index, t)), &[]), 4);
            self.nodes[0].forget(None);
        }
    }
}

#[test]
fn a_healthy_run_has_no_findings() {
    let mut case = Case::new();
    case.samples(80, |index, t| Some(gpu(index, t, TRAINING_W)));
    case.disk = Some(Disk { free_bytes: 100 << 30, checkpoint_bytes: 1 << 30 });
    assert_eq!(case.rules(), []);
}

#[test]
fn a_run_that_has_ended_has_no_findings() {
    let case =
        Case { state: RunState::Finished, disk: Some(Disk { free_bytes: 0, checkpoint_bytes: 1 }), ..Case::new() };
    assert_eq!(case.rules(), []);
}

#[test]
fn skipped_steps_and_a_loss_out_of_range_are_still_findings_after_the_end() {
    let mut case = Case { state: RunState::Finished, ..Case::new() };
    case.skip(&[41], &["clips/a.mp4"], true);
    case.metrics[45..].iter_mut().for_each(|line| line.loss = Some(14_291.0));
    assert_eq!(case.rules(), [Rule::SkippedSteps, Rule::LossDiverged]);
    let first = &case.findings()[0];
    assert!(first.saw.contains("'clips/a.mp4'") && !first.fix.contains("vidtui resume"), "{first:?}");
    case.spike = 0.0;
    assert_eq!(case.rules(), [Rule::SkippedSteps]);
}

#[test]
fn a_resume_from_before_the_rise_ends_the_finding_and_other_settings_have_another_range() {
    let high = |case: &mut Case| case.metrics[45..].iter_mut().for_each(|line| line.loss = Some(9.0));
    let mut case = Case::new();
    high(&mut case);
    assert_eq!(case.rules(), [Rule::LossDiverged]);

    // The second attempt starts at step 45.
    let mut resumed = Case::new();
    high(&mut resumed);
    let attempt = resumed.facts.attempt.as_mut().unwrap();
    (attempt.number, attempt.start_step) = (2, 45);
    let line = |step: u64, loss| MetricSample { attempt: 2, step, loss: Some(loss), ..resumed.metrics[0].clone() };
    let healthy: Vec<MetricSample> = (46..=50).map(|step| line(step, 1.0)).collect();
    let still_high: Vec<MetricSample> = (46..=58).map(|step| line(step, 9.0)).collect();
    let first = resumed.metrics.clone();
    resumed.metrics = [first.clone(), healthy].concat();
    assert_eq!(resumed.rules(), []);
    resumed.metrics = [first, still_high].concat();
    assert_eq!(resumed.rules(), [Rule::LossDiverged]);
    let changed = rundir::ChangedKey { key: "loss.weighting".into(), from: None, to: "snr".into() };
    resumed.facts.attempt.as_mut().unwrap().changed = vec![changed];
    assert_eq!(resumed.rules(), []);
}

#[test]
fn every_rule_has_an_observation_and_advice() {
    let mut all = Vec::new();
    let mut add = |what: &str, change: &dyn Fn(&mut Case)| {
        let mut case = Case::new();
        change(&mut case);
        all.push(format!("{what}\n{}", case.text()));
    };
    add("stalled, by power", &|case| {
        case.state = RunState::Stalled { since_s: case.now_s() - 40.0 };
        case.facts.load = Load::Power { now_w: 960.0, before_w: 5200.0 };
    });
    add("stalled, by CPU use", &|case| {
        case.state = RunState::Stalled { since_s: case.now_s() - 40.0 };
        case.facts.load = Load::Cpu { most: 0.01 };
    });
    add("stalled, a watched program", &|case| {
        case.state = RunState::Stalled { since_s: case.now_s() - 40.0 };
        case.facts.is_attached = true;
    });
    add("loss not finite, a watched program", &|case| {
        (case.facts.is_attached, case.facts.is_command) = (true, true);
        case.metrics[57..].iter_mut().for_each(|line| line.loss = None);
    });
    add("no steps, but GPU power", &|case| {
        case.facts.load = Load::Power { now_w: 5000.0, before_w: 5200.0 };
        case.facts.last_metric = Some((60, case.now_s() - 45.0));
    });
    add("straggler", &|case| {
        case.metrics[40..].iter_mut().for_each(|line| line.step_s_by_rank = vec![1.0, 1.4]);
    });
    add("straggler, by busy times", &|case| {
        case.metrics[45..].iter_mut().for_each(|line| line.busy_s_by_rank = vec![0.95, 0.55]);
    });
    add("one step without a gradient", &|case| case.metrics[59].grad_norm = None);
    add("command that does not print its gradient", &|case| {
        case.facts.is_command = true;
        case.metrics.iter_mut().for_each(|line| line.grad_norm = None);
    });
    add("loss of a command that is not finite", &|case| {
        case.facts.is_command = true;
        case.metrics[50..].iter_mut().for_each(|line| line.loss = None);
    });
    add("loss that is not finite", &|case| case.metrics[50..].iter_mut().for_each(|line| line.loss = None));
    add("skipped steps", &|case| {
        case.skip(&[41, 52], &["clips/a.mp4", "clips/b.mp4"], false);
    });
    add("skipped steps, with NaN in the data of two clips", &|case| {
        case.skip(&[30], &["clips/a.mp4", "clips/b.mp4"], false);
        case.skip(&[58, 59, 60], &["clips/c.mp4", "clips/d.mp4"], true);
        case.metrics[57..].iter_mut().for_each(|line| line.grad_norm = None);
    });
    add("loss out of its range", &|case| {
        case.metrics[45..].iter_mut().for_each(|line| line.loss = Some(14_291.0));
    });
    add("spike", &|case| case.metrics[57..].iter_mut().for_each(|line| line.loss = Some(3.5)));
    add("spike that the trainer reports", &|case| {
        let kind = EventKind::LossSpike { loss: 1.5, usual: 1.0 };
        case.events.push(Event::new(case.now_s() - 4.0, 1, Some(57), kind));
        case.metrics[59].loss = Some(1.4);
    });
    add("slow start", &|case| {
        case.state = RunState::Starting;
        case.facts.attempt.as_mut().unwrap().started_s = case.now_s() - 1000.0;
        case.facts.last_metric = None;
    });
    add("disk", &|case| case.disk = Some(Disk { free_bytes: 25 << 28, checkpoint_bytes: 3 << 30 }));
    add("full disk", &|case| case.disk = Some(Disk { free_bytes: 1 << 20, checkpoint_bytes: 3 << 30 }));
    add("failed checkpoint", &|case| {
        let failure =
            Failure::new(rundir::ErrorCode::SaveFailed, "cannot save step 40", "the disk is full", "free some space");
        let event = Event::new(case.now_s() - 20.0, 1, Some(40), EventKind::CheckpointFailed { failure });
        case.events.push(event);
    });
    add("damaged checkpoint", &|case| {
        let why = "checkpoint file rank-00001.safetensors is damaged: its checksum is 1, the manifest has 2".into();
        let kind = EventKind::CheckpointDamaged { step: 40, why, back_to: 20 };
        case.events.push(Event::new(case.now_s() - 90.0, 1, Some(20), kind));
    });
    add("stale checkpoint", &|case| case.facts.last_metric = Some((110, case.now_s())));
    add("long checkpoint", &|case| {
        case.state = RunState::Saving;
        case.facts.checkpointing_since = Some(case.now_s() - 700.0);
    });
    add("unreachable node, and no step since", &|case| case.nodes[0].unreachable_since_s = Some(case.now_s() - 9.0));
    add("unreachable node of a run that advances", &|case| {
        case.nodes[0].unreachable_since_s = Some(case.now_s() - 30.0)
    });
    add("clock", &|case| case.nodes[0].clock_ahead_s = Some(-7.25));
    add("lost GPU", &|case| {
        let end = case.now_s() - 14.0;
        case.samples(30, |index, t| Some(gpu(index, t, TRAINING_W)).filter(|gpu| gpu.index != 2 || gpu.t < end));
    });
    add("GPU that requires a reset", &|case| {
        let now_s = case.now_s();
        case.samples(1000, |index, t| {
            let power_w = match index {
                1 if t > now_s - 900.0 => Reading::Absent(Absent::RequiresReset),
                _ => Reading::Value(TRAINING_W),
            };
            Some(GpuSample { power_w, ..gpu(index, t, TRAINING_W) })
        });
    });
    add("GPU lost long ago", &|case| {
        let lost_s = case.now_s() - 900.0;
        case.samples(1000, |index, t| Some(gpu(index, t, TRAINING_W)).filter(|gpu| gpu.index != 2 || gpu.t < lost_s));
    });
    add("memory errors long ago", &|case| {
        let now_s = case.now_s();
        case.samples(1000, |index, t| {
            let errors = if index == 3 && t > now_s - 900.0 { 3 } else { 1 };
            let ecc_uncorrected = Reading::Value(if index == 3 { errors } else { 0 });
            Some(GpuSample { ecc_uncorrected, ..gpu(index, t, TRAINING_W) })
        });
    });
    add("memory errors before the run", &|case| {
        case.samples(1000, |index, t| {
            let ecc_uncorrected = Reading::Value(if index == 3 { 5 } else { 0 });
            Some(GpuSample { ecc_uncorrected, ..gpu(index, t, TRAINING_W) })
        });
    });
    add("memory errors", &|case| {
        let now_s = case.now_s();
        case.samples(30, |index, t| {
            Some(GpuSample {
                ecc_uncorrected: Reading::Value(if index == 3 && t > now_s - 10.0 { 2 } else { 0 }),
                ..gpu(index, t, TRAINING_W)
            })
        });
    });
    add("throttled", &|case| {
        case.samples(30, |index, t| {
            Some(GpuSample {
                throttle_reasons: Reading::Value(ThrottleReasons(if index == 0 { 0x44 } else { 0x4 })),
                temp_c: Reading::Value(91.0),
                sm_clock_mhz: Reading::Value(1100.0),
                ..gpu(index, t, TRAINING_W)
            })
        });
    });
    add("low power", &|case| {
        case.samples(40, |index, t| Some(gpu(index, t, if index == 2 { 210.0 } else { TRAINING_W })));
    });
    add("Xid", &|case| {
        let (number, bus_id, t) = ([79, 45, 31], "0000:19:00".to_owned(), case.now_s() - 12.0);
        let xids =
            number.map(|number| XidAt { t, xid: Xid { number, bus_id: bus_id.clone(), required: None } }).to_vec();
        let sample = NodeSample { xids, ..sample(case.now_s(), [], &[]) };
        case.nodes[0].see(&sample, 4);
    });
    add("nvidia-smi hangs", &|case| {
        for ago in [40.0, 20.0, 0.0] {
            let sample = sample(case.now_s() - ago, [], &[SmiError::TimedOut]);
            case.nodes[0].see(&sample, 4);
        }
    });
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn an_xid_error_whose_recovery_action_became_none_is_no_longer_found() {
    let mut case = Case::new();
    let xid = |number, required| Xid { number, bus_id: "0000:19:00".into(), required };
    let log = [xid(119, None), xid(154, Some(XidAction::Reset)), xid(154, Some(XidAction::Note))];
    let mut see = |log: &[Xid]| -> usize {
        let t = case.now_s();
        let xids = log.iter().map(|xid| XidAt { t, xid: xid.clone() }).collect();
        case.nodes[0].see(&NodeSample { xids, ..sample(t, [], &[]) }, 4);
        case.rules().iter().filter(|rule| **rule == Rule::Xid).count()
    };
    assert_eq!(see(&log[..2]), 2);
    assert_eq!(see(&log[2..]), 1, "the notice that no recovery is required");
}

#[test]
fn a_finding_that_returns_starts_over() {
    let finding = |rule| Finding::new(rule, Urgency::Look, Subject::Run, "observation", "advice");
    let mut seen = FirstSeen::default();
    let mut since = |rules: &[Rule], now_s: f64| {
        let mut found: Vec<Finding> = rules.iter().map(|rule| finding(*rule)).collect();
        seen.complete(&mut found, now_s);
        found.iter().map(|finding| finding.since_s.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(since(&[Rule::DiskFilling], 10.0), [10.0]);
    assert_eq!(since(&[Rule::DiskFilling, Rule::ClockSkew], 20.0), [10.0, 20.0]);
    assert_eq!(since(&[Rule::ClockSkew], 30.0), [20.0]);
    assert_eq!(since(&[Rule::DiskFilling], 40.0), [40.0]);
}

#[test]
fn the_age_of_a_checkpoint_counts_from_the_start_step_of_the_attempt() {
    let mut case = Case::new();
    let attempt = case.facts.attempt.as_mut().unwrap();
    attempt.start_step = 200;
    let number = attempt.number;
    case.facts.last_metric = Some((250, case.now_s()));
    assert_eq!(case.rules(), []);
    let of_run = RunId::parse("2026-11-20T0340-demo-2s-k7f2").unwrap();
    let event = Event::new(case.now_s() - 90.0, number, Some(160), EventKind::Resumed { from_step: 160, of_run });
    case.facts.see_event(&event);
    let findings = case.findings();
    assert_eq!(findings[0].rule, Rule::CheckpointStale);
    assert!(findings[0].saw.contains("90 steps"), "{findings:?}");
}

#[test]
fn events_of_an_earlier_attempt_are_not_findings() {
    let mut case = Case::new();
    let failure =
        Failure::new(rundir::ErrorCode::SaveFailed, "cannot save step 40", "the disk is full", "free some space");
    for kind in [EventKind::CheckpointFailed { failure }, EventKind::LossSpike { loss: 1.05, usual: 0.5 }] {
        case.events.push(Event::new(case.now_s() - 500.0, 0, Some(40), kind));
    }
    assert_eq!(case.rules(), []);
}

#[test]
fn a_single_batch_is_not_a_spike_and_short_steps_have_no_straggler() {
    let mut case = Case::new();
    case.metrics[59].loss = Some(9.0);
    case.metrics.iter_mut().for_each(|line| line.step_s_by_rank = vec![0.010, 0.015]);
    assert_eq!(case.rules(), []);
}

#[test]
fn a_spike_is_measured_by_the_recipe_and_not_reported_at_zero() {
    let mut case = Case::new();
    case.metrics[57..].iter_mut().for_each(|line| line.loss = Some(3.5));
    for (spike, expected) in [(10.0, vec![Rule::LossSpike]), (1000.0, vec![]), (0.0, vec![])] {
        case.spike = spike;
        assert_eq!(case.rules(), expected, "{spike}");
    }
}

#[test]
fn a_full_disk_and_a_stop_that_cannot_save_are_found_from_the_heartbeat() {
    let mut case = Case::new();
    case.facts.unwritten = Some(rundir::Unwritten {
        since_s: 30.0,
        path: "/runs/a/metrics.jsonl".into(),
        code: ErrorCode::DiskFull,
        why: "No space left on device".into(),
        lines: 37,
        lost: 0,
    });
    let failure = Failure::new(ErrorCode::DiskFull, "cannot save", "it needs 2 GB", "free some space");
    case.facts.failed_save = Some(rundir::FailedSave { t: 40.0, step: 60, failure });
    case.state = RunState::Stopping;
    let found = case.findings();
    let of = |rule| found.iter().find(|found| found.rule == rule).unwrap();
    let full = of(Rule::Unwritten);
    assert_eq!((full.urgency, full.since_s), (Urgency::Act, Some(30.0)));
    assert!(full.saw.contains("is full") && full.saw.contains("37 lines"), "{}", full.saw);
    let save = of(Rule::CheckpointFailed);
    assert_eq!(save.since_s, Some(40.0));
    assert!(save.saw.contains("it goes on and tries again"), "{}", save.saw);
    case.state = RunState::Stopped;
    assert!(case.findings().iter().all(|found| ![Rule::Unwritten, Rule::CheckpointFailed].contains(&found.rule)));
}

#[test]
fn the_most_urgent_finding_is_first() {
    let mut case = Case::new();
    case.metrics[40..].iter_mut().for_each(|line| line.step_s_by_rank = vec![1.0, 1.4]);
    case.nodes[0].unreachable_since_s = Some(case.now_s() - 30.0);
    case.disk = Some(Disk { free_bytes: 0, checkpoint_bytes: 1 << 30 });
    let order: Vec<Urgency> = case.findings().iter().map(|finding| finding.urgency).collect();
    assert_eq!(order, [Urgency::Act, Urgency::Look, Urgency::Note]);
}

#[test]
fn a_pending_job_is_a_finding_unless_it_starts_by_itself() {
    let mut case = Case::new();
    case.state = RunState::Queued;
    let mut found = |reason: &str| {
        let line = format!("42|PENDING|{reason}|0:00|10:00|2||N/A|N/A|ada|train|gres:gpu:1|demo");
        let job = cluster::slurm::read_queue(&line).rows.remove(0);
        let reply = cluster::slurm::JobReply::Job(Box::new(job));
        case.facts.job = Some(cluster::slurm::JobStatus { reply, ..cluster::slurm::JobStatus::unknown(42) });
        case.findings().into_iter().map(|finding| (finding.rule, finding.urgency, finding.fix)).collect::<Vec<_>>()
    };
    for reason in ["None", "Resources", "Dependency", "Moonphase"] {
        assert_eq!(found(reason), [], "{reason}");
    }
    let held = found("JobHeldUser").remove(0);
    assert_eq!((held.0, held.1), (Rule::JobPending, Urgency::Act));
    assert!(held.2.contains("scontrol release 42"), "{}", held.2);
    let limit = found("QOSMaxGRESPerUser").remove(0);
    assert_eq!((limit.0, limit.1), (Rule::JobPending, Urgency::Note));
}

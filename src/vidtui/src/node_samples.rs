//! Caches the GPU samples of nodes over the last minutes, for the health rules.

use cluster::NodeId;
use health::{Finding, FirstSeen, LOOKS_BACK_S, NodeEvidence};
use rundir::{NodeSample, RunDir, Tail};
use runstate::RunFacts;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The bytes at the end of a node's file that are read first: more than five minutes of sixteen GPUs.
const FIRST_BYTES: u64 = 128 << 10;
/// The most bytes that are read to find the GPU power before the last step: half a day of eight GPUs.
const MOST_BYTES: u64 = 4 << 20;
/// Clocks that differ by less than this count as equal, because samples arrive some seconds late, more on a busy disk.
const CLOCK_TOLERANCE_S: f64 = 10.0;
/// If the clock of this machine differs from the clocks of the nodes by more than this, the clocks of the nodes are used.
const CLOCK_MISMATCH_S: f64 = 20.0;
/// Shortest time between two reads: nodes sample every few seconds only.
const EVERY: Duration = Duration::from_secs(2);
/// A run whose samples are not requested for this long is dropped from the cache.
const FORGET: Duration = Duration::from_secs(60);

/// The cached samples of the watched runs. Only new lines of a file are read.
#[derive(Default)]
pub struct NodeSamples {
    runs: Mutex<BTreeMap<RunDir, RunSamples>>,
}

struct RunSamples {
    attempt: u32,
    /// The seconds by which the clocks of the nodes are ahead of this machine, measured on the newest samples.
    ahead_s: Option<f64>,
    read: Instant,
    nodes: Vec<NodeFile>,
    evidence: Arc<Vec<NodeEvidence>>,
    first_seen: FirstSeen,
}

struct NodeFile {
    tail: Option<Tail<NodeSample>>,
    /// The seconds by which the clock of the node is ahead of this machine, measured on its newest sample. The value is a few
    /// seconds too low, because samples arrive late.
    ahead_s: Option<f64>,
    evidence: NodeEvidence,
}

impl NodeSamples {
    /// Returns the time on the nodes of a run, to compare with the times of its steps and samples.
    ///
    /// This is the time of this machine, unless it differs much from the nodes: a laptop with a wrong clock must not show every
    /// run as stalled.
    pub fn now_s(&self, dir: &RunDir, facts: &RunFacts, own_s: f64) -> f64 {
        self.of(dir, facts, own_s);
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead_s = runs.get(dir).and_then(|kept| kept.ahead_s).filter(|ahead_s| ahead_s.abs() > CLOCK_MISMATCH_S);
        own_s + ahead_s.unwrap_or(0.0)
    }

    /// Returns the samples of the GPUs that the ranks of the newest attempt use, per node.
    pub fn of(&self, dir: &RunDir, facts: &RunFacts, now_s: f64) -> Arc<Vec<NodeEvidence>> {
        let Some(attempt) = &facts.attempt else { return Arc::default() };
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|_, kept| kept.read.elapsed() < FORGET);
        let fresh = |kept: &&RunSamples| kept.attempt == attempt.number && kept.read.elapsed() < EVERY;
        if let Some(kept) = runs.get(dir).filter(fresh) {
            return kept.evidence.clone();
        }
        let places = attempt.placement.by_node();
        let unknown = || places.iter().map(|(node, _)| NodeFile::new((*node).clone())).collect();
        let kept = runs.remove(dir).filter(|kept| kept.attempt == attempt.number);
        let (mut nodes, first_seen): (Vec<NodeFile>, _) =
            kept.map_or_else(|| (unknown(), FirstSeen::default()), |kept| (kept.nodes, kept.first_seen));
        let step_s = facts.last_metric.map(|(_, t)| t);
        for (file, (_, ranks)) in nodes.iter_mut().zip(&places) {
            file.read(dir, step_s, now_s, |evidence, sample| {
                // Local ranks use the first GPUs of their node, in order.
                if sample.attempt == attempt.number {
                    evidence.see(sample, ranks.len());
                }
            });
        }
        let mut offsets: Vec<f64> = nodes.iter().filter_map(|file| file.ahead_s).collect();
        offsets.sort_by(f64::total_cmp);
        let ahead_s = offsets.get(offsets.len() / 2).copied();
        for file in &mut nodes {
            let apart_s = file.ahead_s.zip(ahead_s).map(|(own, usual)| own - usual);
            file.evidence.clock_ahead_s = apart_s.filter(|apart_s| apart_s.abs() > CLOCK_TOLERANCE_S);
        }
        let evidence: Arc<Vec<_>> = Arc::new(nodes.iter().map(|file| file.evidence.clone()).collect());
        let read = Instant::now();
        let kept = RunSamples { attempt: attempt.number, ahead_s, read, nodes, evidence: evidence.clone(), first_seen };
        runs.insert(dir.clone(), kept);
        evidence
    }

    /// Drops the samples of a run that has ended.
    pub fn forget(&self, dir: &RunDir) {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).remove(dir);
    }

    /// Adds to each finding the time when it was first seen.
    pub fn complete(&self, dir: &RunDir, found: &mut [Finding], now_s: f64) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = runs.get_mut(dir) {
            kept.first_seen.complete(found, now_s);
        }
    }
}

impl NodeFile {
    fn new(node: NodeId) -> Self {
        Self { tail: None, ahead_s: None, evidence: NodeEvidence::new(node) }
    }

    /// Reads the new samples. A file that cannot be read now may be readable next time.
    fn read(
        &mut self,
        dir: &RunDir,
        step_s: Option<f64>,
        now_s: f64,
        mut see: impl FnMut(&mut NodeEvidence, &NodeSample),
    ) {
        let new = match &mut self.tail {
            Some(tail) => {
                let (new, _) = tail.poll_all().unwrap_or_default();
                // The first samples can be old. Those that are appended later are current.
                if let Some(written_s) = new.last().and_then(NodeSample::written_s) {
                    self.ahead_s = Some(written_s - now_s);
                }
                new
            }
            None => {
                let Some((tail, new)) = recent(dir, &self.evidence.node, step_s) else { return };
                self.tail = Some(tail);
                new
            }
        };
        new.iter().for_each(|sample| see(&mut self.evidence, sample));
        self.evidence.forget(step_s);
    }
}

/// Returns the newest samples of a node, back to some minutes before the last step.
fn recent(dir: &RunDir, node: &NodeId, step_s: Option<f64>) -> Option<(Tail<NodeSample>, Vec<NodeSample>)> {
    let reaches = |samples: &[NodeSample]| {
        samples.first().is_some_and(|first| step_s.is_none_or(|step_s| first.t <= step_s - LOOKS_BACK_S))
    };
    Tail::near_end_with(dir.gpu_samples(node), FIRST_BYTES, MOST_BYTES, reaches).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use camino::Utf8Path;
    use cluster::nvidia_smi::GpuQuery;
    use cluster::probe::Frames;
    use cluster::{Node, Placement};
    use health::{Rule, Subject};
    use rundir::{Attempt, LineAppender, MetricSample, SAMPLE_EVERY_S, SCHEMA};
    use runstate::{Liveness, Load, RunState};

    const OWN_S: f64 = 1_795_146_012.0;

    fn facts(nodes: &[&str]) -> RunFacts {
        let nodes: Vec<Node> = nodes.iter().map(|node| Node::local(node, 1)).collect();
        let attempt = Attempt {
            schema: SCHEMA,
            number: 1,
            why: rundir::AttemptWhy::Launch,
            by: "ada@devbox".into(),
            started_s: OWN_S,
            start_step: 0,
            start: rundir::StartFrom::Random,
            asked_step: None,
            steps: None,
            changed: Vec::new(),
            checkpoint: None,
            waived: vec![],
            mesh: recipe::Mesh { dp_replicate: 1, dp_shard: nodes.len(), tp: 1 },
            placement: Placement::new(&nodes, nodes.len()).unwrap(),
            logins: vec![],
            spares: vec![],
            slurm: None,
        };
        RunFacts { attempt: Some(attempt), alive: Liveness::Alive, ..RunFacts::default() }
    }

    /// Appends a sample to a node's file as its supervisor does. The sampling started at `t`.
    fn wrote(dir: &RunDir, node: &str, t: f64, took_s: f64, gpus: &str) {
        let path = dir.gpu_samples(&NodeId::new(node).unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = format!("#frame 1 {t} 100\n#gpus\n{gpus}\n#end 1 {}\n", 100.0 + took_s);
        let frame = Frames::new(GpuQuery::default()).push(text.as_bytes()).remove(0);
        LineAppender::open(&path).unwrap().append(&NodeSample::new(1, &frame, None)).unwrap();
    }

    /// Returns rows of nvidia-smi for GPUs with this power.
    fn rows(power_w: &[f64]) -> String {
        let row = |(index, power_w): (usize, &f64)| {
            format!(
                "{index}, GPU-{index}, H100, 00000000:1{index}:00.0, {power_w}, 700.00, 70210, 81559, 100, 59, 1980, 0, 0x0, Disabled, [N/A], 5, 16\n"
            )
        };
        power_w.iter().enumerate().map(row).collect::<String>() + "\n#exit 0"
    }

    /// Appends a sample at a time of the node's clock.
    fn sampled(dir: &RunDir, node: &str, t: f64) {
        wrote(dir, node, t, 0.0, &rows(&[600.0, 70.0]));
    }

    /// Logs a step of one second that ends at `t`.
    fn stepped(facts: &mut RunFacts, t: f64) {
        let step = facts.last_metric.map_or(1, |(step, _)| step + 1);
        facts.see_metric(&MetricSample { step, t, step_s: 1.0, ..MetricSample::default() });
        facts.median_step_s = Some(1.0);
    }

    /// Makes the cached samples old enough to be read again.
    fn later(samples: &NodeSamples) {
        samples.runs.lock().unwrap().values_mut().for_each(|kept| kept.read -= EVERY);
    }

    #[test]
    fn a_laptop_whose_clock_jumps_uses_the_time_of_the_nodes() {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap());
        let (samples, facts) = (NodeSamples::default(), facts(&["ml-1", "ml-2"]));
        sampled(&dir, "ml-1", OWN_S);
        assert_eq!(samples.now_s(&dir, &facts, OWN_S + 1.0), OWN_S + 1.0);
        for node in ["ml-1", "ml-2"] {
            sampled(&dir, node, OWN_S + 4.0);
        }
        later(&samples);
        // The clock of this machine was set one hour ahead.
        assert_eq!(samples.now_s(&dir, &facts, OWN_S + 3605.0), OWN_S + 4.0);
        sampled(&dir, "ml-1", OWN_S + 8.0);
        later(&samples);
        assert_eq!(samples.now_s(&dir, &facts, OWN_S + 9.0), OWN_S + 9.0, "and set back");
    }

    #[test]
    fn a_node_whose_clock_differs_is_reported_and_unused_gpus_are_ignored() {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap());
        let (samples, facts) = (NodeSamples::default(), facts(&["ml-1", "ml-2", "ml-3"]));
        samples.of(&dir, &facts, OWN_S);
        for (node, ahead_s) in [("ml-1", 0.0), ("ml-2", -1.0), ("ml-3", 40.0)] {
            sampled(&dir, node, OWN_S + ahead_s);
        }
        later(&samples);
        let evidence = samples.of(&dir, &facts, OWN_S + 1.0);
        let ahead: Vec<Option<f64>> = evidence.iter().map(|node| node.clock_ahead_s).collect();
        assert_eq!(ahead, [None, None, Some(40.0)]);
        // The other GPU, which no rank uses, has a low power.
        let facts = RunFacts { last_metric: Some((1, OWN_S)), ..facts };
        assert_eq!(health::power(&evidence, &facts, OWN_S + 1.0), Some(Load::Unknown));
    }

    #[test]
    fn a_hanging_nvidia_smi_does_not_change_the_clock_difference() {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap());
        let (samples, facts) = (NodeSamples::default(), facts(&["ml-1"]));
        sampled(&dir, "ml-1", OWN_S);
        assert_eq!(samples.now_s(&dir, &facts, OWN_S + 1.0), OWN_S + 1.0);
        // nvidia-smi was ended after 22 s, so its frame is late by that.
        wrote(&dir, "ml-1", OWN_S + 5.0, 22.0, "\n#exit 137");
        later(&samples);
        assert_eq!(samples.now_s(&dir, &facts, OWN_S + 28.0), OWN_S + 28.0);
        let node = &samples.of(&dir, &facts, OWN_S + 28.0)[0];
        assert_eq!(node.clock_ahead_s, None);
        assert_eq!(health::node_findings(node)[0].rule, Rule::Smi);
    }

    #[test]
    fn a_forgotten_run_is_read_again_when_it_is_requested() {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap());
        let (samples, facts) = (NodeSamples::default(), facts(&["ml-1"]));
        sampled(&dir, "ml-1", OWN_S);
        let first = samples.of(&dir, &facts, OWN_S + 1.0);
        samples.forget(&dir);
        assert_eq!(Arc::strong_count(&first), 1, "the cache has dropped it");
        assert_eq!(samples.of(&dir, &facts, OWN_S + 1.0)[0].node, first[0].node);
    }

    /// Simulates a run second by second: the power of its two GPUs, and whether a step is logged. Derives the state every two
    /// seconds, and returns the seconds at which the run is stalled. The console opens at `opened_s`.
    fn stalled(opened_s: u32, seconds: u32, at: impl Fn(u32) -> (f64, bool)) -> Vec<u32> {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap());
        let (samples, mut facts) = (NodeSamples::default(), facts(&["ml-1"]));
        // Two ranks, so that both GPUs count.
        facts.attempt.as_mut().unwrap().placement = Placement::new(&[Node::local("ml-1", 2)], 2).unwrap();
        let (mut stalled_at, mut next_sample) = (Vec::new(), 3.0);
        for second in 0..seconds {
            let (power_w, steps) = at(second);
            let t = OWN_S + f64::from(second);
            // The interval of the supervisor, and 1.5 s of nvidia-smi.
            if f64::from(second) >= next_sample {
                wrote(&dir, "ml-1", t, 1.5, &rows(&[power_w, power_w]));
                next_sample += SAMPLE_EVERY_S + 1.5;
            }
            if steps {
                stepped(&mut facts, t);
            }
            if second >= opened_s && second % 2 == 0 {
                facts.load = Load::Unknown;
                if facts.inactive_since_s(t).is_some() {
                    let nodes = samples.of(&dir, &facts, t);
                    facts.load = health::power(&nodes, &facts, t).unwrap_or_default();
                }
                if matches!(runstate::derive(&facts, t), RunState::Stalled { .. }) {
                    stalled_at.push(second);
                }
                later(&samples);
            }
        }
        stalled_at
    }

    #[test]
    fn a_hang_is_stalled_within_a_minute_and_an_evaluation_is_not() {
        let hangs = |second| if second < 200 { (650.0, true) } else { (120.0, false) };
        let stalled_at = stalled(0, 300, hangs);
        assert!((229..=260).contains(&stalled_at[0]), "{stalled_at:?}");
        assert_eq!(stalled_at.last(), Some(&298));
        let evaluates = |second| match second {
            0..200 | 500.. => (650.0, true),
            _ => (0.7 * 650.0, false),
        };
        assert_eq!(stalled(0, 600, evaluates), [0; 0]);
    }

    #[test]
    fn the_power_during_training_is_kept_while_no_steps_are_made() {
        // An evaluation without an event. After fifteen minutes of evaluation, a collective hangs.
        let power = |second| match second {
            0..200 => (650.0, true),
            200..1100 => (0.7 * 650.0, false),
            _ => (120.0, false),
        };
        for opened_s in [0, 1000] {
            let stalled_at = stalled(opened_s, 1200, power);
            assert!((1104..=1140).contains(&stalled_at[0]), "opened at {opened_s}: {stalled_at:?}");
            assert_eq!(stalled_at.last(), Some(&1198));
        }
    }

    #[test]
    fn a_slow_rank_and_a_loss_spike_are_found() {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap());
        let mut facts = facts(&["ml-1"]);
        facts.attempt.as_mut().unwrap().placement = Placement::new(&[Node::local("ml-1", 512)], 512).unwrap();
        let mut file = LineAppender::open(&dir.metrics()).unwrap();
        for step in 1..=60 {
            let busy_s_by_rank = (0..512).map(|rank| if rank == 7 { 14.321 } else { 10.123 }).collect();
            let by_rank = vec![12.345; 512];
            let sample = MetricSample {
                step,
                t: OWN_S + step as f64 * 15.0,
                loss: Some(if step > 57 { 2.5 } else { 0.5 }),
                grad_norm: Some(0.1),
                step_s: 14.5,
                mem_gib_by_rank: by_rank.clone(),
                mem_peak_gib_by_rank: by_rank.clone(),
                step_s_by_rank: by_rank,
                busy_s_by_rank,
                ..MetricSample::default()
            };
            file.append(&sample).unwrap();
        }
        facts.newest = runstate::NewestCache::default().newest(&dir, []).unwrap();
        facts.newest.clone().metrics.iter().for_each(|sample| facts.see_metric(sample));
        let found = health::findings(&health::Evidence {
            run: "r",
            now_s: OWN_S + 901.0,
            state: &RunState::Running,
            facts: &facts,
            metrics: &facts.newest.metrics,
            events: &[],
            checkpoint: None,
            checkpoint_interval: 0,
            lr: None,
            data: &[],
            spike: 10.0,
            disk: None,
            nodes: &[],
        });
        let found: Vec<_> = found.into_iter().map(|finding| (finding.rule, finding.about)).collect();
        let slow = Subject::Rank(7, Some(NodeId::new("ml-1").unwrap()));
        assert_eq!(found, [(Rule::LossSpike, Subject::Run), (Rule::Straggler, slow)]);
    }
}

//! What nodes wrote of their GPUs over the last minutes, for the rules that tell what is wrong with a run.

use cluster::NodeId;
use health::{Finding, FirstSeen, LOOKS_BACK_S, NodeEvidence};
use rundir::{NodeSample, RunDir, Tail};
use runstate::RunFacts;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The end of a node's file that is read at first: five minutes of sixteen GPUs, and more.
const FIRST_BYTES: u64 = 128 << 10;
/// The most that is read of it, to find what GPUs drew before the last step: half a day of eight GPUs.
const MOST_BYTES: u64 = 4 << 20;
/// NodeSamples arrive some seconds late, more on a busy disk: clocks that seem no further apart are taken for equal.
const BLUR_S: f64 = 10.0;
/// This machine's clock counts unless it is so far from the nodes': a sample that is late by less proves nothing.
const FAR_S: f64 = 20.0;
/// NodeSamples come every few seconds; reading them at each look at a run would tell nothing more.
const EVERY: Duration = Duration::from_secs(2);
/// A run that nobody has asked about for so long is forgotten.
const FORGET: Duration = Duration::from_secs(60);

/// The samples of the runs that are looked at. Only what was added to a file is read.
#[derive(Default)]
pub struct NodeSamples {
    runs: Mutex<BTreeMap<RunDir, RunSamples>>,
}

struct RunSamples {
    attempt: u32,
    /// How far the nodes' clocks are ahead of this machine's, told by the samples that arrived last.
    ahead_s: Option<f64>,
    read: Instant,
    nodes: Vec<NodeFile>,
    evidence: Arc<Vec<NodeEvidence>>,
    first_seen: FirstSeen,
}

struct NodeFile {
    tail: Option<Tail<NodeSample>>,
    /// How far its clock was ahead when its newest sample was found: a few seconds less than it is.
    ahead_s: Option<f64>,
    evidence: NodeEvidence,
}

impl NodeSamples {
    /// The time on the nodes of a run: what its steps and samples are to be compared with.
    ///
    /// This machine's own clock, unless the nodes' are far from it: a laptop that was put ahead must not call every run
    /// stalled.
    pub fn now_s(&self, dir: &RunDir, facts: &RunFacts, own_s: f64) -> f64 {
        self.of(dir, facts, own_s);
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead_s = runs.get(dir).and_then(|kept| kept.ahead_s).filter(|ahead_s| ahead_s.abs() > FAR_S);
        own_s + ahead_s.unwrap_or(0.0)
    }

    /// What the nodes of a run's newest attempt told of the GPUs that its ranks use.
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
                // Local ranks take the first GPUs of their node, in order.
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
            file.evidence.clock_ahead_s = apart_s.filter(|apart_s| apart_s.abs() > BLUR_S);
        }
        let evidence: Arc<Vec<_>> = Arc::new(nodes.iter().map(|file| file.evidence.clone()).collect());
        let read = Instant::now();
        let kept = RunSamples { attempt: attempt.number, ahead_s, read, nodes, evidence: evidence.clone(), first_seen };
        runs.insert(dir.clone(), kept);
        evidence
    }

    /// Says since when things are as they were found, as far as they were found before.
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

    /// Reads what is new. What cannot be read now may be readable the next time.
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
                // What was there at first may be old; what is added is of now.
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

/// The newest samples of a node, back to some minutes before the last step.
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
            checkpoint: None,
            waived: vec![],
            mesh: recipe::Mesh { dp_replicate: 1, dp_shard: nodes.len(), tp: 1 },
            placement: Placement::new(&nodes, nodes.len()).unwrap(),
            logins: vec![],
            slurm: None,
        };
        RunFacts { attempt: Some(attempt), alive: Liveness::Alive, ..RunFacts::default() }
    }

    /// Appends to a node's file what its supervisor would: a frame of its stream, begun at `t`.
    fn wrote(dir: &RunDir, node: &str, t: f64, took_s: f64, gpus: &str) {
        let path = dir.gpu_samples(&NodeId::new(node).unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = format!("#frame 1 {t} 100\n#gpus\n{gpus}\n#end 1 {}\n", 100.0 + took_s);
        let frame = Frames::new(GpuQuery::default()).push(text.as_bytes()).remove(0);
        LineAppender::open(&path).unwrap().append(&NodeSample::new(1, &frame, None)).unwrap();
    }

    /// Rows of nvidia-smi for GPUs that draw so much.
    fn rows(power_w: &[f64]) -> String {
        let row = |(index, power_w): (usize, &f64)| {
            format!(
                "{index}, GPU-{index}, H100, 00000000:1{index}:00.0, {power_w}, 700.00, 70210, 81559, 100, 59, 1980, 0, 0x0, Disabled\n"
            )
        };
        power_w.iter().enumerate().map(row).collect::<String>() + "\n#exit 0"
    }

    /// Appends a sample of a node's clock to its file.
    fn sampled(dir: &RunDir, node: &str, t: f64) {
        wrote(dir, node, t, 0.0, &rows(&[600.0, 70.0]));
    }

    /// Steps of a second until `t`, as they are logged.
    fn stepped(facts: &mut RunFacts, t: f64) {
        let step = facts.last_metric.map_or(1, |(step, _)| step + 1);
        facts.see_metric(&MetricSample { step, t, step_s: 1.0, ..MetricSample::default() });
        facts.median_step_s = Some(1.0);
    }

    /// Forgets when it was read last, as if seconds had gone by.
    fn later(samples: &NodeSamples) {
        samples.runs.lock().unwrap().values_mut().for_each(|kept| kept.read -= EVERY);
    }

    #[test]
    fn a_laptop_whose_clock_jumps_still_tells_the_time_of_the_nodes() {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap());
        let (samples, facts) = (NodeSamples::default(), facts(&["ml-1", "ml-2"]));
        sampled(&dir, "ml-1", OWN_S);
        assert_eq!(samples.now_s(&dir, &facts, OWN_S + 1.0), OWN_S + 1.0);
        for node in ["ml-1", "ml-2"] {
            sampled(&dir, node, OWN_S + 4.0);
        }
        later(&samples);
        // It was put an hour ahead in between.
        assert_eq!(samples.now_s(&dir, &facts, OWN_S + 3605.0), OWN_S + 4.0);
        sampled(&dir, "ml-1", OWN_S + 8.0);
        later(&samples);
        assert_eq!(samples.now_s(&dir, &facts, OWN_S + 9.0), OWN_S + 9.0, "and back again");
    }

    #[test]
    fn a_node_whose_clock_is_apart_is_told_with_the_gpus_that_its_ranks_use() {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap());
        let (samples, facts) = (NodeSamples::default(), facts(&["ml-1", "ml-2", "ml-3"]));
        samples.of(&dir, &facts, OWN_S);
        for (node, ahead_s) in [("ml-1", 0.0), ("ml-2", -1.0), ("ml-3", 40.0)] {
            sampled(&dir, node, OWN_S + ahead_s);
        }
        later(&samples);
        let told = samples.of(&dir, &facts, OWN_S + 1.0);
        let ahead: Vec<Option<f64>> = told.iter().map(|node| node.clock_ahead_s).collect();
        assert_eq!(ahead, [None, None, Some(40.0)]);
        // The other GPU, which no rank uses, draws little.
        let facts = RunFacts { last_metric: Some((1, OWN_S)), ..facts };
        assert_eq!(health::power(&told, &facts, OWN_S + 1.0), Some(Load::Unknown));
    }

    #[test]
    fn an_nvidia_smi_that_hangs_moves_no_clock() {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap());
        let (samples, facts) = (NodeSamples::default(), facts(&["ml-1"]));
        sampled(&dir, "ml-1", OWN_S);
        assert_eq!(samples.now_s(&dir, &facts, OWN_S + 1.0), OWN_S + 1.0);
        // It was ended after 22 s, so that its frame is as late.
        wrote(&dir, "ml-1", OWN_S + 5.0, 22.0, "\n#exit 137");
        later(&samples);
        assert_eq!(samples.now_s(&dir, &facts, OWN_S + 28.0), OWN_S + 28.0);
        let node = &samples.of(&dir, &facts, OWN_S + 28.0)[0];
        assert_eq!(node.clock_ahead_s, None);
        assert_eq!(health::node_findings(node)[0].saw, "nvidia-smi hangs");
    }

    /// Replays a run as its files tell it: what its two GPUs draw at each second, and whether a step is logged then. Looks
    /// every two seconds, and returns the seconds at which it counts as stalled. The console is opened at `opened_s`.
    fn stalled(opened_s: u32, seconds: u32, at: impl Fn(u32) -> (f64, bool)) -> Vec<u32> {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap());
        let (samples, mut facts) = (NodeSamples::default(), facts(&["ml-1"]));
        // Two ranks, so that both GPUs count.
        facts.attempt.as_mut().unwrap().placement = Placement::new(&[Node::local("ml-1", 2)], 2).unwrap();
        let (mut called, mut next_sample) = (Vec::new(), 3.0);
        for second in 0..seconds {
            let (power_w, steps) = at(second);
            let t = OWN_S + f64::from(second);
            // The pace of the supervisor, and a second and a half of nvidia-smi.
            if f64::from(second) >= next_sample {
                wrote(&dir, "ml-1", t, 1.5, &rows(&[power_w, power_w]));
                next_sample += SAMPLE_EVERY_S + 1.5;
            }
            if steps {
                stepped(&mut facts, t);
            }
            if second >= opened_s && second % 2 == 0 {
                facts.load = Load::Unknown;
                if facts.silent_since_s(t).is_some() {
                    let nodes = samples.of(&dir, &facts, t);
                    facts.load = health::power(&nodes, &facts, t).unwrap_or_default();
                }
                if matches!(runstate::derive(&facts, t), RunState::Stalled { .. }) {
                    called.push(second);
                }
                later(&samples);
            }
        }
        called
    }

    #[test]
    fn by_what_supervisors_sample_a_hang_is_called_within_a_minute_and_an_evaluation_is_not() {
        let hangs = |second| if second < 200 { (650.0, true) } else { (120.0, false) };
        let called = stalled(0, 300, hangs);
        assert!((229..=260).contains(&called[0]), "{called:?}");
        assert_eq!(called.last(), Some(&298));
        let evaluates = |second| match second {
            0..200 | 500.. => (650.0, true),
            _ => (0.7 * 650.0, false),
        };
        assert_eq!(stalled(0, 600, evaluates), [0; 0]);
    }

    #[test]
    fn what_gpus_drew_in_training_is_remembered_however_long_no_step_is_made() {
        // Nobody announces the evaluation; fifteen minutes into it, a collective hangs.
        let power = |second| match second {
            0..200 => (650.0, true),
            200..1100 => (0.7 * 650.0, false),
            _ => (120.0, false),
        };
        for opened_s in [0, 1000] {
            let called = stalled(opened_s, 1200, power);
            assert!((1104..=1140).contains(&called[0]), "opened at {opened_s}: {called:?}");
            assert_eq!(called.last(), Some(&1198));
        }
    }

    #[test]
    fn of_many_ranks_the_slow_one_and_a_spike_of_the_loss_are_found() {
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
        facts.newest = runstate::Following::default().newest(&dir, []).unwrap();
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
            disk: None,
            nodes: &[],
        });
        let found: Vec<String> = found.iter().map(Finding::sentence).collect();
        let slow = "rank 7 on ml-1: all others wait for it, 4.20 s in each step";
        assert_eq!(found, ["the loss rose from about 0.500 to 2.500", slow]);
    }
}

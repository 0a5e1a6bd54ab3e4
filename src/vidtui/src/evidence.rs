//! What nodes wrote of their GPUs over the last minutes, for the rules that tell what is wrong with a run.

use plan::NodeEvidence;
use rundir::{Attempt, NodeSample, RunDir, Tail};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How far back the rules look.
const WINDOW_S: f64 = 330.0;
/// The end of a node's file that is read at first: more than the window of sixteen GPUs.
const FIRST_BYTES: u64 = 128 << 10;
/// Samples arrive some seconds late, more on a busy disk: clocks that seem no further apart are taken for equal.
const BLUR_S: f64 = 10.0;
/// This machine's clock counts unless it is so far from the nodes': a sample that is late by less proves nothing.
const FAR_S: f64 = 20.0;
/// Samples come every two seconds; reading them at each look at a run would tell nothing more.
const EVERY: Duration = Duration::from_secs(2);
/// A run that nobody has asked about for so long is forgotten.
const FORGET: Duration = Duration::from_secs(60);

/// The samples of the runs that are looked at. Only what was added to a file is read.
#[derive(Default)]
pub struct Samples {
    runs: Mutex<BTreeMap<RunDir, Kept>>,
}

struct Kept {
    attempt: u32,
    /// How far the nodes' clocks are ahead of this machine's, told by the samples that arrived last.
    ahead_s: Option<f64>,
    read: Instant,
    nodes: Vec<NodeFile>,
    evidence: Arc<Vec<NodeEvidence>>,
}

struct NodeFile {
    tail: Option<Tail<NodeSample>>,
    /// How far its clock was ahead when its newest sample was found: a few seconds less than it is.
    ahead_s: Option<f64>,
    samples: VecDeque<NodeSample>,
}

impl Samples {
    /// The time on the nodes of a run: what its steps and samples are to be compared with.
    ///
    /// This machine's own clock, unless the nodes' are far from it: a laptop that was put ahead must not call every run
    /// stalled.
    pub fn now_s(&self, dir: &RunDir, attempt: &Attempt, own_s: f64) -> f64 {
        self.of(dir, attempt, own_s);
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead_s = runs.get(dir).and_then(|kept| kept.ahead_s).filter(|ahead_s| ahead_s.abs() > FAR_S);
        own_s + ahead_s.unwrap_or(0.0)
    }

    /// What the nodes of an attempt told of the GPUs that its ranks use.
    pub fn of(&self, dir: &RunDir, attempt: &Attempt, now_s: f64) -> Arc<Vec<NodeEvidence>> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|_, kept| kept.read.elapsed() < FORGET);
        let places = attempt.placement.by_node();
        let fresh = |kept: &&Kept| kept.attempt == attempt.number && kept.read.elapsed() < EVERY;
        if let Some(kept) = runs.get(dir).filter(fresh) {
            return kept.evidence.clone();
        }
        let kept = runs.remove(dir).filter(|kept| kept.attempt == attempt.number);
        let mut nodes = kept.map_or_else(Vec::new, |kept| kept.nodes);
        nodes.resize_with(places.len(), || NodeFile { tail: None, ahead_s: None, samples: VecDeque::new() });
        let evidence = places.iter().zip(&mut nodes).map(|((node, ranks), file)| {
            let first = file.tail.is_none();
            if first {
                file.tail = dir.tail_recent_gpu_samples(node, FIRST_BYTES).ok();
            }
            // What cannot be read now may be readable the next time.
            let new = file.tail.as_mut().and_then(|tail| tail.poll().ok()).map_or_else(Vec::new, |batch| batch.items);
            // What was there at first may be old; what is added is of now.
            if let Some(last) = new.last().filter(|_| !first) {
                file.ahead_s = Some(last.t - now_s);
            }
            file.samples.extend(new.into_iter().filter(|sample| sample.attempt == attempt.number));
            let newest_s = file.samples.back().map_or(0.0, |sample| sample.t);
            while file.samples.front().is_some_and(|sample| sample.t < newest_s - WINDOW_S) {
                file.samples.pop_front();
            }
            // Local ranks take the first GPUs of their node, in order.
            let used = |index: u32| (index as usize) < ranks.len();
            let gpus = file.samples.iter().flat_map(NodeSample::gpus).filter(|gpu| used(gpu.index)).collect();
            let troubles = file.samples.back().map_or_else(Vec::new, |last| last.troubles.clone());
            NodeEvidence { gpus, troubles, ..NodeEvidence::new((*node).clone()) }
        });
        let mut evidence = evidence.collect::<Vec<_>>();
        let mut offsets: Vec<f64> = nodes.iter().filter_map(|file| file.ahead_s).collect();
        offsets.sort_by(f64::total_cmp);
        let ahead_s = offsets.get(offsets.len() / 2).copied();
        for (node, file) in evidence.iter_mut().zip(&nodes) {
            let apart_s = file.ahead_s.zip(ahead_s).map(|(own, usual)| own - usual);
            node.clock_ahead_s = apart_s.filter(|apart_s| apart_s.abs() > BLUR_S);
        }
        let evidence = Arc::new(evidence);
        let read = Instant::now();
        let kept = Kept { attempt: attempt.number, ahead_s, read, nodes, evidence: evidence.clone() };
        runs.insert(dir.clone(), kept);
        evidence
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camino::Utf8Path;
    use cluster::{Node, Placement};
    use rundir::{LineAppender, SCHEMA};

    const OWN_S: f64 = 1_795_146_012.0;

    fn attempt(nodes: &[&str]) -> Attempt {
        let nodes: Vec<Node> = nodes.iter().map(|node| Node::local(node, 1)).collect();
        Attempt {
            schema: SCHEMA,
            number: 1,
            why: rundir::AttemptWhy::Launch,
            by: "ada@devbox".into(),
            started_s: OWN_S,
            start_step: 0,
            start: rundir::StartFrom::Random,
            steps: None,
            checkpoint: None,
            mesh: recipe::Mesh { dp_replicate: 1, dp_shard: nodes.len(), tp: 1 },
            placement: Placement::new(&nodes, nodes.len()).unwrap(),
            logins: vec![],
            slurm: None,
        }
    }

    /// Appends a sample of a node's clock to its file.
    fn sampled(dir: &RunDir, node: &str, t: f64) {
        let path = dir.gpu_samples(&cluster::NodeId::new(node).unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let line = format!(r#"{{"v":1,"attempt":1,"t":{t},"gpus":{{"index":[0,1],"power_w":[600.0,70.0]}}}}"#);
        let sample: NodeSample = serde_json::from_str(&line).unwrap();
        LineAppender::open(&path).unwrap().append(&sample).unwrap();
    }

    /// Forgets when it was read last, as if seconds had gone by.
    fn later(samples: &Samples) {
        samples.runs.lock().unwrap().values_mut().for_each(|kept| kept.read -= EVERY);
    }

    #[test]
    fn a_laptop_whose_clock_jumps_still_tells_the_time_of_the_nodes() {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap());
        let (samples, attempt) = (Samples::default(), attempt(&["ml-1", "ml-2"]));
        sampled(&dir, "ml-1", OWN_S);
        assert_eq!(samples.now_s(&dir, &attempt, OWN_S + 1.0), OWN_S + 1.0);
        for node in ["ml-1", "ml-2"] {
            sampled(&dir, node, OWN_S + 4.0);
        }
        later(&samples);
        // It was put an hour ahead in between.
        assert_eq!(samples.now_s(&dir, &attempt, OWN_S + 3605.0), OWN_S + 4.0);
        sampled(&dir, "ml-1", OWN_S + 8.0);
        later(&samples);
        assert_eq!(samples.now_s(&dir, &attempt, OWN_S + 9.0), OWN_S + 9.0, "and back again");
    }

    #[test]
    fn a_node_whose_clock_is_apart_is_told_with_the_gpus_that_its_ranks_use() {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap());
        let (samples, attempt) = (Samples::default(), attempt(&["ml-1", "ml-2", "ml-3"]));
        samples.of(&dir, &attempt, OWN_S);
        for (node, ahead_s) in [("ml-1", 0.0), ("ml-2", -1.0), ("ml-3", 40.0)] {
            sampled(&dir, node, OWN_S + ahead_s);
        }
        later(&samples);
        let told = samples.of(&dir, &attempt, OWN_S + 1.0);
        let ahead: Vec<Option<f64>> = told.iter().map(|node| node.clock_ahead_s).collect();
        assert_eq!(ahead, [None, None, Some(40.0)]);
        assert!(told.iter().all(|node| node.gpus.iter().all(|gpu| gpu.index == 0) && node.gpus.len() == 1));
    }
}

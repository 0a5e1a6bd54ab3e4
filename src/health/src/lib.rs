//! Monitoring: rules that find present and imminent problems of a run, from its files and the samples of its nodes.
//!
//! Each finding has an observation, the time since which it holds, and advice. [`runstate::derive`] decides whether a run is stalled,
//! from missing steps and from [`power`]; this crate explains why. vidtui only shows findings and never acts on them.

mod diverged;
mod gpus;
mod hang;
mod past;
mod queue;
mod run;
mod skipped;
mod spikes;
#[cfg(test)]
mod tests;

use std::fmt;

use cluster::{GpuSample, NodeId};
use rundir::{CheckpointSummary, Event, MetricSample, NodeSample};
use runstate::{RunFacts, RunState};

use serde::{Deserialize, Serialize};

pub use gpus::power;
pub use hang::{CollectiveWait, collective_waits};
use past::NodePast;
pub use skipped::SkippedSteps;
pub use spikes::Spikes;

/// The allowed difference between the clocks of nodes, in seconds. With a larger difference, log
/// times of different nodes cannot be compared.
pub const CLOCKS_APART_S: f64 = 2.0;

/// How long samples are kept, in seconds. The samples of this many seconds before the last step are kept too, as the
/// reference for GPU power when steps stop.
pub const LOOKS_BACK_S: f64 = 300.0;

/// A problem or a notice for the user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The rule that found the problem.
    pub rule: Rule,
    /// How soon the user must act.
    pub urgency: Urgency,
    /// The run, node, GPU or rank with the problem.
    pub about: Subject,
    /// When the problem began, Unix seconds. If the rule cannot determine it, [`FirstSeen`] sets the first observation.
    pub since_s: Option<f64>,
    /// The observation, in the present tense.
    pub saw: String,
    /// What the user can do.
    pub fix: String,
}

/// The urgency of a finding, highest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// The run does not progress, or will soon fail.
    Act,
    /// The run progresses, with a problem.
    Look,
    /// A notice.
    Note,
}

/// The rule behind a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of the rules' functions")]
pub enum Rule {
    JobPending,
    Stalled,
    SlowStep,
    SlowStart,
    NodeLost,
    GpuLost,
    Ecc,
    Xid,
    NotFinite,
    SkippedSteps,
    LossDiverged,
    LossSpike,
    Unwritten,
    DiskFilling,
    CheckpointFailed,
    CheckpointDamaged,
    CheckpointStale,
    Straggler,
    Throttled,
    PowerLow,
    ClockSkew,
    Smi,
}

/// What a finding is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// The whole run.
    Run,
    /// A node.
    Node(NodeId),
    /// A GPU, by its index on the node.
    Gpu(NodeId, u32),
    /// A rank, and its node if known.
    Rank(usize, Option<NodeId>),
}

impl Subject {
    /// Returns the node, if known.
    pub fn node(&self) -> Option<&NodeId> {
        match self {
            Self::Run | Self::Rank(_, None) => None,
            Self::Node(node) | Self::Gpu(node, _) | Self::Rank(_, Some(node)) => Some(node),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run => write!(f, "the run"),
            Self::Node(node) => write!(f, "{node}"),
            Self::Gpu(node, index) => write!(f, "GPU {index} of {node}"),
            Self::Rank(rank, Some(node)) => write!(f, "rank {rank} on {node}"),
            Self::Rank(rank, None) => write!(f, "rank {rank}"),
        }
    }
}

impl Finding {
    fn new(rule: Rule, urgency: Urgency, about: Subject, saw: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { rule, urgency, about, since_s: None, saw: saw.into(), fix: fix.into() }
    }

    fn since(self, since_s: f64) -> Self {
        Self { since_s: Some(since_s), ..self }
    }

    /// Returns subject and observation as one sentence without a full stop.
    pub fn sentence(&self) -> String {
        match self.about {
            Subject::Run => self.saw.clone(),
            _ => format!("{}: {}", self.about, self.saw),
        }
    }
}

/// The input of the rules.
#[derive(Debug, Clone)]
pub struct Evidence<'a> {
    /// The run as an argument of commands: its id or a short form.
    pub run: &'a str,
    /// The current time, Unix seconds.
    pub now_s: f64,
    /// The state of the run, derived from `facts`.
    pub state: &'a RunState,
    /// The facts from the files of the run.
    pub facts: &'a RunFacts,
    /// The newest lines of metrics, oldest first.
    pub metrics: &'a [MetricSample],
    /// The newest events, oldest first.
    pub events: &'a [Event],
    /// The newest checkpoint; `None`: there is none.
    pub checkpoint: Option<&'a CheckpointSummary>,
    /// Steps between checkpoints; 0: only when the run stops or ends.
    pub checkpoint_interval: u64,
    /// `log.spike` of the recipe: how many median absolute deviations above the median a loss is a spike; 0: never.
    pub spike: f64,
    /// The learning rate of the recipe; `None`: unknown, as for a command.
    pub lr: Option<f64>,
    /// The data sets of the recipe: folders or index files.
    pub data: &'a [String],
    /// The disk of the run directory; `None`: unknown.
    pub disk: Option<Disk>,
    /// The nodes of the run and their samples.
    pub nodes: &'a [NodeEvidence],
}

/// The disk that checkpoints go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// Free space.
    pub free_bytes: u64,
    /// Size of one checkpoint.
    pub checkpoint_bytes: u64,
}

/// The samples of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeEvidence {
    /// The node.
    pub node: NodeId,
    /// Since when the node is unreachable, Unix seconds.
    pub unreachable_since_s: Option<f64>,
    /// Seconds by which its clock is ahead of the clocks of the other nodes; negative: behind.
    pub clock_ahead_s: Option<f64>,
    /// GPU samples of the last minutes and of the minutes before the last step, oldest first.
    gpus: Vec<GpuSample>,
    /// Its problems over the whole attempt.
    past: NodePast,
}

impl NodeEvidence {
    /// Returns a node without samples.
    pub fn new(node: NodeId) -> Self {
        Self { node, unreachable_since_s: None, clock_ahead_s: None, gpus: Vec::new(), past: NodePast::default() }
    }

    /// Adds a sample. The ranks use the GPUs that the sample records, or else the first `gpus` of the node.
    pub fn see(&mut self, sample: &NodeSample, gpus: usize) {
        let used = sample.gpus().into_iter().filter(|gpu| match &sample.gpus.used[..] {
            [] => (gpu.index as usize) < gpus,
            used => used.contains(&gpu.index),
        });
        let begin = self.gpus.len();
        self.gpus.extend(used);
        self.past.see(sample, &self.gpus[begin..]);
    }

    /// Drops samples that no rule needs, given the time of the last step.
    pub fn forget(&mut self, step_s: Option<f64>) {
        let newest_s = self.past.sampled_s();
        let is_needed = |end_s: f64, t: f64| t > end_s - LOOKS_BACK_S && t <= end_s;
        self.gpus.retain(|gpu| is_needed(newest_s, gpu.t) || step_s.is_some_and(|step_s| is_needed(step_s, gpu.t)));
    }
}

/// The first time at which each finding was observed, for findings without a time of their own.
#[derive(Debug, Clone, Default)]
pub struct FirstSeen(Vec<(Rule, Subject, f64)>);

impl FirstSeen {
    /// Fills in the times of the findings of one evaluation. A finding that has disappeared starts over when it returns.
    pub fn complete(&mut self, found: &mut [Finding], now_s: f64) {
        let mut still = Vec::new();
        for finding in found.iter_mut().filter(|finding| finding.since_s.is_none()) {
            let is_it = |(rule, about, _): &&(Rule, Subject, f64)| *rule == finding.rule && *about == finding.about;
            let since_s = self.0.iter().find(is_it).map_or(now_s, |(.., since_s)| *since_s);
            finding.since_s = Some(since_s);
            still.push((finding.rule, finding.about.clone(), since_s));
        }
        self.0 = still;
    }
}

/// Applies every rule to a run and returns the findings, most urgent first. A run that has ended has only findings about its training:
/// skipped steps, and a loss that is out of its range at the end.
pub fn findings(evidence: &Evidence<'_>) -> Vec<Finding> {
    if *evidence.state == RunState::Queued {
        return queue::job_pending(evidence).into_iter().collect();
    }
    if evidence.state.is_end() {
        return run::past_findings(evidence);
    }
    let live = [RunState::Starting, RunState::Running, RunState::Saving, RunState::Stopping, RunState::Unknown];
    if !live.contains(evidence.state) && !matches!(evidence.state, RunState::Stalled { .. }) {
        return Vec::new();
    }
    let mut found = run::findings(evidence);
    found.extend(evidence.nodes.iter().flat_map(node_findings));
    found.extend(gpus::power_low(evidence));
    sort(&mut found);
    found
}

/// Applies the rules that need only the samples of one node.
pub fn node_findings(node: &NodeEvidence) -> Vec<Finding> {
    let mut found = gpus::findings(node);
    if let Some(ahead_s) = node.clock_ahead_s.filter(|ahead_s| ahead_s.abs() > CLOCKS_APART_S) {
        let side = if ahead_s < 0.0 { "behind" } else { "ahead of" };
        found.push(Finding::new(
            Rule::ClockSkew,
            Urgency::Look,
            Subject::Node(node.node.clone()),
            format!("its clock is {:.1} s {side} the others", ahead_s.abs()),
            "synchronize the clock (chrony, ntpd); until then log times are wrong and collectives may time out",
        ));
    }
    sort(&mut found);
    found
}

fn sort(found: &mut [Finding]) {
    found.sort_by_key(|finding| (finding.urgency, finding.rule));
}

//! What is wrong with a run, or soon will be: rules over what its files and nodes tell.
//!
//! Each finding says what was seen, since when, and what to do. Whether a run is stalled is decided once, in
//! [`runstate::derive`], from silence and from [`power`]; here it is explained. Nothing is done about a finding but to show
//! it: a person decides.

mod gpus;
mod past;
mod run;
#[cfg(test)]
mod tests;

use std::fmt;

use cluster::{GpuSample, NodeId};
use rundir::{CheckpointSummary, Event, MetricSample, NodeSample};
use runstate::{RunFacts, RunState};

use serde::{Deserialize, Serialize};

pub use gpus::power;
use past::NodePast;

/// How far clocks may be apart: beyond that, what happened first on two nodes cannot be told from their logs.
pub const CLOCKS_APART_S: f64 = 2.0;

/// Samples are of use for so long, and those of as long before the last step: what GPUs drew then is what they are
/// measured by, however long no step is made.
pub const LOOKS_BACK_S: f64 = 300.0;

/// Something that a person should know of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The rule that found it.
    pub rule: Rule,
    /// How much it matters.
    pub urgency: Urgency,
    /// What it is about.
    pub about: Subject,
    /// Since when it is so, Unix seconds; [`FirstSeen`] knows it where what was seen does not tell.
    pub since_s: Option<f64>,
    /// What was seen.
    pub saw: String,
    /// What to do.
    pub fix: String,
}

/// How much a finding matters, most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// The run does not go on, or is lost soon.
    Act,
    /// The run goes on, worse than it could.
    Look,
    /// Good to know.
    Note,
}

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each finding says what it is")]
pub enum Rule {
    Stalled,
    SlowStep,
    SlowStart,
    NodeLost,
    GpuLost,
    Ecc,
    Xid,
    NotFinite,
    LossSpike,
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
    /// All of it.
    Run,
    /// A machine.
    Node(NodeId),
    /// A GPU, by its number there.
    Gpu(NodeId, u32),
    /// A rank, and where it runs.
    Rank(usize, Option<NodeId>),
}

impl Subject {
    /// Returns the machine that it is on.
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

    /// What it is about and what was seen, as one sentence without a full stop.
    pub fn sentence(&self) -> String {
        match self.about {
            Subject::Run => self.saw.clone(),
            _ => format!("{}: {}", self.about, self.saw),
        }
    }
}

/// Everything that the rules look at.
#[derive(Debug, Clone)]
pub struct Evidence<'a> {
    /// The run, as commands are told which one is meant.
    pub run: &'a str,
    /// The clock, Unix seconds.
    pub now_s: f64,
    /// What the run does, derived from `facts`.
    pub state: &'a RunState,
    /// What that follows from.
    pub facts: &'a RunFacts,
    /// Its newest lines of metrics, oldest first.
    pub metrics: &'a [MetricSample],
    /// Its newest events, oldest first.
    pub events: &'a [Event],
    /// Its newest checkpoint.
    pub checkpoint: Option<&'a CheckpointSummary>,
    /// Steps between checkpoints; 0 if it saves only when it ends.
    pub checkpoint_interval: u64,
    /// The disk of its folder.
    pub disk: Option<Disk>,
    /// Its nodes.
    pub nodes: &'a [NodeEvidence],
}

/// The disk that checkpoints go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// What is free.
    pub free_bytes: u64,
    /// What one checkpoint takes.
    pub checkpoint_bytes: u64,
}

/// What is known of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeEvidence {
    /// The node.
    pub node: NodeId,
    /// Since when it does not answer, Unix seconds.
    pub unseen_since_s: Option<f64>,
    /// How far its clock is ahead of the others'.
    pub clock_ahead_s: Option<f64>,
    /// Samples of its GPUs over the last minutes, and over those before the last step, oldest first.
    gpus: Vec<GpuSample>,
    /// What is remembered for longer.
    past: NodePast,
}

impl NodeEvidence {
    /// A node of which nothing is known.
    pub fn new(node: NodeId) -> Self {
        Self { node, unseen_since_s: None, clock_ahead_s: None, gpus: Vec::new(), past: NodePast::default() }
    }

    /// Takes in the next sample of the first so many of its GPUs.
    pub fn see(&mut self, sample: &NodeSample, gpus: usize) {
        let used = sample.gpus().into_iter().filter(|gpu| (gpu.index as usize) < gpus);
        let begin = self.gpus.len();
        self.gpus.extend(used);
        self.past.see(sample, &self.gpus[begin..]);
    }

    /// Forgets samples that no rule looks at any more, with the last step at `step_s`.
    pub fn forget(&mut self, step_s: Option<f64>) {
        let newest_s = self.past.sampled_s();
        let is_of_use = |end_s: f64, t: f64| t > end_s - LOOKS_BACK_S && t <= end_s;
        self.gpus.retain(|gpu| is_of_use(newest_s, gpu.t) || step_s.is_some_and(|step_s| is_of_use(step_s, gpu.t)));
    }
}

/// Since when findings are there that do not say so themselves, as far as somebody has looked.
#[derive(Debug, Clone, Default)]
pub struct FirstSeen(Vec<(Rule, Subject, f64)>);

impl FirstSeen {
    /// Completes what was found at one look; what was not is forgotten.
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

/// Looks at a run with every rule; the most urgent finding is first. A run that has ended has none: its end says it all.
pub fn findings(evidence: &Evidence<'_>) -> Vec<Finding> {
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

/// Looks at a node with the rules that need no run.
pub fn node_findings(node: &NodeEvidence) -> Vec<Finding> {
    let mut found = gpus::findings(node);
    if let Some(ahead_s) = node.clock_ahead_s.filter(|ahead_s| ahead_s.abs() > CLOCKS_APART_S) {
        let side = if ahead_s < 0.0 { "behind" } else { "ahead of" };
        found.push(Finding::new(
            Rule::ClockSkew,
            Urgency::Look,
            Subject::Node(node.node.clone()),
            format!("its clock is {:.1} s {side} the others", ahead_s.abs()),
            "set it (chrony, ntpd): until then, times in its logs mislead, and collectives may time out",
        ));
    }
    sort(&mut found);
    found
}

fn sort(found: &mut [Finding]) {
    found.sort_by_key(|finding| (finding.urgency, finding.rule));
}

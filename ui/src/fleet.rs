//! The nodes that are watched: what each does now and did lately, and what is wrong with it.
//!
//! A frame is taken in once, and then only digested numbers are compared and added up, so that a thousand nodes cost the
//! screen little more than ten.

use cluster::fault::{Fault, FaultWeight, faults};
use cluster::probe::{CpuTicks, Frame};
use cluster::slurm::SlurmNode;
use cluster::{GpuSample, Node, NodeId, Reading};
use rundir::{Failure, RunId};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};

/// Where the nodes to watch come from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum FleetSource {
    /// Those that the console was started with: a hostfile's, those of a partition of Slurm, or this machine.
    #[default]
    Given,
    /// Those that the newest attempt of a run is on.
    Run(RunId),
}

/// Values that are kept of each GPU: ten minutes at one every two seconds.
pub const KEPT: usize = 300;
/// A node that is so late may hang: it says something every two seconds.
const LATE_S: f64 = 10.0;

/// A node that is to be watched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ListedNode {
    /// Its name, and how many ranks it takes.
    #[serde(flatten)]
    pub node: Node,
    /// What Slurm says of it, where it is one of Slurm's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm: Option<SlurmNode>,
}

impl From<Node> for ListedNode {
    fn from(node: Node) -> Self {
        Self { node, slurm: None }
    }
}

/// All watched nodes.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    /// Where they come from.
    pub of: FleetSource,
    /// In the order in which they are listed; `None` until the list was read.
    pub listed: Option<Result<(), Failure>>,
    nodes: Vec<NodeView>,
    places: HashMap<NodeId, usize>,
}

/// What is known of a node.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// Its name, and how many ranks it takes.
    pub node: Node,
    /// What Slurm says of it, seen or not.
    pub slurm: Option<SlurmNode>,
    /// Whether it can be seen.
    pub link: Link,
    /// What it did when it was last seen.
    pub frame: Option<Box<Frame>>,
    /// When that was, by our clock.
    pub frame_s: Option<f64>,
    /// What was wrong then, the worst first.
    pub faults: Vec<Fault>,
    /// Its GPUs and processors in numbers.
    pub summary: NodeSummary,
    /// What each GPU drew lately, oldest first; in a node without GPUs, how busy its processors were.
    pub traces: Vec<VecDeque<f32>>,
    cpu: Option<CpuTicks>,
}

/// Whether a node can be seen.
#[derive(Debug, Clone, PartialEq)]
pub enum Link {
    /// It was never seen yet.
    Connecting,
    /// It can.
    Up,
    /// It cannot. That says nothing about what it does.
    Unreachable {
        /// When it was last seen, or first looked for.
        since_s: f64,
        /// Why.
        why: Failure,
    },
}

/// How a node is, in one word; the most serious comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Condition {
    Well,
    Connecting,
    Warned,
    Late,
    Faulty,
    Unreachable,
}

/// A node's numbers, added up over its GPUs. Where no GPU says one there is none.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NodeSummary {
    /// GPUs that answer.
    pub gpus: usize,
    /// Processes on them.
    pub processes: usize,
    /// Mean power of a GPU.
    pub power_w_mean: Option<f64>,
    /// Power of all together.
    pub power_w: Option<f64>,
    /// Mean share of time in which a kernel ran.
    pub util_pct_mean: Option<f64>,
    /// GPU memory in use.
    pub gpu_mem_used_mib: Option<u64>,
    /// GPU memory there is.
    pub gpu_mem_total_mib: Option<u64>,
    /// Temperature of the hottest GPU.
    pub temp_c_max: Option<f64>,
    /// Mean clock of the multiprocessors.
    pub sm_clock_mhz_mean: Option<f64>,
    /// How busy the processors are, all of them together.
    pub cpu_pct: Option<f64>,
    /// Processes that run or wait to, over the last minute.
    pub load: Option<f64>,
    /// The machine's memory in use.
    pub mem_used_mib: Option<u64>,
    /// The machine's memory.
    pub mem_total_mib: Option<u64>,
}

/// All nodes in numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FleetSummary {
    /// Nodes there are.
    pub nodes: usize,
    /// Nodes that can be seen.
    pub up: usize,
    /// Nodes that cannot.
    pub unreachable: usize,
    /// Faults of nodes that can be seen.
    pub faults: usize,
    /// GPUs that answer.
    pub gpus: usize,
    /// Mean power of a GPU.
    pub power_w_mean: Option<f64>,
    /// GPU memory in use; the machines' own, where no node has a GPU.
    pub mem_used_mib: u64,
    /// Memory of the same kind that there is.
    pub mem_total_mib: u64,
}

/// By what nodes are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Sort {
    #[default]
    Listed,
    Name,
    Faults,
    Power,
    Util,
    Memory,
    Temperature,
    Processes,
}

impl Sort {
    /// All of them, in the order of the key that goes through them, with the words for people and scripts.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Listed, "listed"),
        (Self::Faults, "faults"),
        (Self::Power, "power"),
        (Self::Util, "util"),
        (Self::Memory, "memory"),
        (Self::Temperature, "temp"),
        (Self::Processes, "processes"),
        (Self::Name, "name"),
    ];

    /// Returns its word.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(sort, _)| *sort == self).map_or("", |(_, word)| word)
    }

    /// Returns the one after it.
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|(sort, _)| *sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()].0
    }
}

impl Fleet {
    /// Watches other nodes: what is known of those before is forgotten.
    pub fn turn_to(&mut self, of: FleetSource) {
        if self.of != of {
            *self = Self { of, ..Self::default() };
        }
    }

    /// Takes in which nodes there are; those that stay keep what is known of them.
    pub fn list(&mut self, nodes: Result<Vec<ListedNode>, Failure>) {
        match nodes {
            Err(failure) => self.listed = Some(Err(failure)),
            Ok(nodes) => {
                self.listed = Some(Ok(()));
                let mut known: HashMap<NodeId, NodeView> =
                    std::mem::take(&mut self.nodes).into_iter().map(|view| (view.node.id.clone(), view)).collect();
                let view = |ListedNode { node, slurm }: ListedNode| match known.remove(&node.id) {
                    Some(view) => NodeView { node, slurm, ..view },
                    None => NodeView { slurm, ..NodeView::new(node) },
                };
                self.nodes = nodes.into_iter().map(view).collect();
                self.places = self.nodes.iter().enumerate().map(|(at, view)| (view.node.id.clone(), at)).collect();
            }
        }
    }

    /// Records a sample of a node. A node that is no longer listed is ignored.
    pub fn sampled(&mut self, node: &NodeId, frame: Box<Frame>, now: f64) {
        if let Some(view) = self.view_mut(node) {
            view.sampled(frame, now);
        }
    }

    /// Records that a node cannot be reached. A node that is no longer listed is ignored.
    pub fn unreachable(&mut self, node: &NodeId, why: Failure, now: f64) {
        let Some(view) = self.view_mut(node) else { return };
        let since_s = match &view.link {
            Link::Unreachable { since_s, .. } => *since_s,
            _ => view.frame_s.unwrap_or(now),
        };
        view.link = Link::Unreachable { since_s, why };
    }

    fn view_mut(&mut self, node: &NodeId) -> Option<&mut NodeView> {
        self.places.get(node).and_then(|at| self.nodes.get_mut(*at))
    }

    /// Returns all nodes, as they are listed.
    pub fn nodes(&self) -> &[NodeView] {
        &self.nodes
    }

    /// Returns a node by its name.
    pub fn node(&self, id: &NodeId) -> Option<&NodeView> {
        self.places.get(id).and_then(|at| self.nodes.get(*at))
    }

    /// Returns whether any node has GPUs, as far as is known.
    pub fn has_gpus(&self) -> bool {
        self.nodes.iter().any(|view| view.summary.gpus > 0)
    }

    /// Returns whether any of the nodes is Slurm's.
    pub fn is_of_slurm(&self) -> bool {
        self.nodes.iter().any(|view| view.slurm.is_some())
    }

    /// Returns the places of the nodes that contain a text, in order.
    pub fn order(&self, sort: Sort, reverse: bool, filter: &str, now: f64) -> Vec<usize> {
        let wanted = filter.to_lowercase();
        let passes = |view: &NodeView| {
            wanted.is_empty()
                || view.node.id.as_str().to_lowercase().contains(&wanted)
                || view.condition(now).word().contains(&wanted)
                || view.slurm.as_ref().is_some_and(|slurm| slurm.state.to_string().contains(&wanted))
                || view.faults.iter().any(|fault| fault.what.to_lowercase().contains(&wanted))
        };
        let mut order: Vec<usize> = (0..self.nodes.len()).filter(|at| passes(&self.nodes[*at])).collect();
        // What has no number comes last, in either direction.
        let by = |value: fn(&NodeView) -> Option<f64>| {
            move |at: &usize| {
                let value = value(&self.nodes[*at]);
                let value = value.map(|value| if reverse { value } else { -value });
                (value.is_none(), OrderedF64(value.unwrap_or(0.0)))
            }
        };
        match sort {
            Sort::Listed => {}
            Sort::Name => order.sort_by(|a, b| self.nodes[*a].node.id.cmp(&self.nodes[*b].node.id)),
            Sort::Faults => order.sort_by_key(|at| {
                let view = &self.nodes[*at];
                std::cmp::Reverse((view.condition(now), view.faults.len()))
            }),
            Sort::Power => order.sort_by_key(by(|view| view.summary.power_w_mean)),
            Sort::Util => order.sort_by_key(by(|view| view.summary.util_pct_mean.or(view.summary.cpu_pct))),
            Sort::Memory => order.sort_by_key(by(|view| view.memory_mib().map(|(used, _)| used as f64))),
            Sort::Temperature => order.sort_by_key(by(|view| view.summary.temp_c_max)),
            Sort::Processes => {
                order.sort_by_key(by(|view| view.frame.as_ref().map(|_| view.summary.processes as f64)));
            }
        }
        if reverse && matches!(sort, Sort::Listed | Sort::Name | Sort::Faults) {
            order.reverse();
        }
        order
    }

    /// Adds everything up. Nodes that cannot be seen count as nodes, and their GPUs are not counted.
    pub fn summary(&self) -> FleetSummary {
        let mut sum = FleetSummary { nodes: self.nodes.len(), ..FleetSummary::default() };
        let has_gpus = self.has_gpus();
        let (mut power, mut powered) = (0.0, 0.0);
        for view in &self.nodes {
            match view.link {
                Link::Connecting => continue,
                Link::Unreachable { .. } => {
                    sum.unreachable += 1;
                    continue;
                }
                Link::Up => sum.up += 1,
            }
            let summary = &view.summary;
            sum.faults += view.faults.len();
            sum.gpus += summary.gpus;
            if let (Some(mean), Some(all)) = (summary.power_w_mean, summary.power_w)
                && mean > 0.0
            {
                power += all;
                powered += all / mean;
            }
            let memory = match has_gpus {
                true => summary.gpu_mem_used_mib.zip(summary.gpu_mem_total_mib),
                false => summary.mem_used_mib.zip(summary.mem_total_mib),
            };
            let (used, total) = memory.unwrap_or((0, 0));
            sum.mem_used_mib += used;
            sum.mem_total_mib += total;
        }
        sum.power_w_mean = (powered > 0.0).then(|| power / powered);
        sum
    }
}

/// A float with a total order, for sorting.
#[derive(PartialEq)]
struct OrderedF64(f64);

impl Eq for OrderedF64 {}

impl PartialOrd for OrderedF64 {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedF64 {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl NodeView {
    fn new(node: Node) -> Self {
        Self {
            node,
            slurm: None,
            link: Link::Connecting,
            frame: None,
            frame_s: None,
            faults: Vec::new(),
            summary: NodeSummary::default(),
            traces: Vec::new(),
            cpu: None,
        }
    }

    fn sampled(&mut self, frame: Box<Frame>, now: f64) {
        let cpu_pct = frame.host.cpu.zip(self.cpu).and_then(|(now, before)| now.busy_pct_since(before));
        self.cpu = frame.host.cpu;
        self.link = Link::Up;
        self.frame_s = Some(now);
        self.faults = faults(&frame);
        self.summary = NodeSummary::of(&frame, cpu_pct);
        let mut add = |at: usize, value: Option<f64>| {
            if self.traces.len() <= at {
                self.traces.resize_with(at + 1, VecDeque::new);
            }
            let trace = &mut self.traces[at];
            if trace.len() == KEPT {
                trace.pop_front();
            }
            trace.push_back(value.map_or(f32::NAN, |value| value as f32));
        };
        if frame.gpus.is_empty() {
            add(0, cpu_pct);
        }
        for gpu in &frame.gpus {
            // A number that no node has means that the row was not read right.
            if gpu.index < 64 {
                add(gpu.index as usize, gpu.power_w.value());
            }
        }
        self.frame = Some(frame);
    }

    /// Returns how it is.
    pub fn condition(&self, now: f64) -> Condition {
        match (&self.link, self.faults.first().map(|fault| fault.weight)) {
            (Link::Connecting, _) => Condition::Connecting,
            (Link::Unreachable { .. }, _) => Condition::Unreachable,
            (Link::Up, _) if self.late_s(now).is_some() => Condition::Late,
            (Link::Up, Some(FaultWeight::Bad)) => Condition::Faulty,
            (Link::Up, Some(FaultWeight::Warn)) => Condition::Warned,
            (Link::Up, None) => Condition::Well,
        }
    }

    /// Returns for how many seconds it has said nothing, when that is longer than it should be.
    pub fn late_s(&self, now: f64) -> Option<f64> {
        self.frame_s.map(|heard| now - heard).filter(|late| *late > LATE_S)
    }

    /// Returns the GPUs that answered last.
    pub fn gpus(&self) -> &[GpuSample] {
        self.frame.as_ref().map_or(&[], |frame| &frame.gpus)
    }

    /// Returns memory in use and memory there is: of its GPUs, or its own where it has none.
    pub fn memory_mib(&self) -> Option<(u64, u64)> {
        let summary = &self.summary;
        match summary.gpus {
            0 => summary.mem_used_mib.zip(summary.mem_total_mib),
            _ => summary.gpu_mem_used_mib.zip(summary.gpu_mem_total_mib),
        }
    }
}

impl Condition {
    /// Returns it as a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Well => "up",
            Self::Connecting => "connecting",
            Self::Warned => "warning",
            Self::Late => "silent",
            Self::Faulty => "fault",
            Self::Unreachable => "unreachable",
        }
    }
}

impl NodeSummary {
    fn of(frame: &Frame, cpu_pct: Option<f64>) -> Self {
        let gpus = &frame.gpus;
        let numbers = |of: fn(&GpuSample) -> &Reading<f64>| -> Vec<f64> {
            gpus.iter().filter_map(|gpu| of(gpu).value()).collect()
        };
        let mean = |numbers: &[f64]| (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64);
        let sum = |of: fn(&GpuSample) -> &Reading<u64>| {
            gpus.iter().filter_map(|gpu| of(gpu).value()).reduce(|a, b| a.saturating_add(b))
        };
        let power = numbers(|gpu| &gpu.power_w);
        let host = &frame.host;
        Self {
            gpus: gpus.len(),
            processes: gpus.iter().map(|gpu| gpu.processes.len()).sum::<usize>() + frame.elsewhere.len(),
            power_w_mean: mean(&power),
            power_w: (!power.is_empty()).then(|| power.iter().sum()),
            util_pct_mean: mean(&numbers(|gpu| &gpu.util_pct)),
            gpu_mem_used_mib: sum(|gpu| &gpu.mem_used_mib),
            gpu_mem_total_mib: sum(|gpu| &gpu.mem_total_mib),
            temp_c_max: numbers(|gpu| &gpu.temp_c).into_iter().reduce(f64::max),
            sm_clock_mhz_mean: mean(&numbers(|gpu| &gpu.sm_clock_mhz)),
            cpu_pct,
            load: host.load,
            mem_used_mib: host.mem_total_mib.zip(host.mem_available_mib).map(|(all, free)| all.saturating_sub(free)),
            mem_total_mib: host.mem_total_mib,
        }
    }
}

//! The watched nodes: the latest sample, recent values and faults of each.
//!
//! A sample is summarized when it arrives. Sorting and totals use the summaries, so that a thousand nodes cost little
//! more than ten.

use camino::Utf8PathBuf;
use cluster::fault::{Fault, FaultSeverity, faults};
use cluster::probe::{CpuTicks, Frame};
use cluster::slurm::SlurmNode;
use cluster::{GpuSample, Node, NodeId, Reading};
use rundir::{Failure, RunId};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};

/// The source of the watched nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum FleetSource {
    /// The nodes given at the start: those of a hostfile or a Slurm partition, or this machine.
    #[default]
    Given,
    /// The nodes of the newest attempt of a run.
    Run(RunId),
    /// All nodes of a hostfile.
    Hostfile(Utf8PathBuf),
}

/// Values kept per GPU and node: ten minutes at one every two seconds.
pub const KEPT: usize = 300;
/// The age in seconds from which a node's newest sample suggests a hang. Samples arrive every two seconds.
const LATE_S: f64 = 10.0;

/// A node to watch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ListedNode {
    /// Its name and number of slots.
    #[serde(flatten)]
    pub node: Node,
    /// Its state in Slurm, if Slurm manages it.
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
    /// Their source.
    pub of: FleetSource,
    /// Whether the list could be read; `None` while it loads.
    pub listed: Option<Result<(), Failure>>,
    nodes: Vec<NodeView>,
    places: HashMap<NodeId, usize>,
}

/// A watched node.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// Its name and number of slots.
    pub node: Node,
    /// Its state in Slurm, known even when the node is unreachable.
    pub slurm: Option<SlurmNode>,
    /// Whether it can be reached.
    pub link: Link,
    /// The latest sample.
    pub frame: Option<Box<Frame>>,
    /// When the sample arrived, Unix seconds.
    pub frame_s: Option<f64>,
    /// The faults in that sample, the worst first.
    pub faults: Vec<Fault>,
    /// Totals and means of that sample.
    pub summary: NodeSummary,
    /// Recent power of each GPU, oldest first; CPU utilization in a node without GPUs.
    pub traces: Vec<VecDeque<f32>>,
    /// Recent means of the node, oldest first.
    pub moments: VecDeque<Moment>,
    cpu: Option<CpuTicks>,
}

/// The means of a node at one time. A value that was not reported is NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// When, Unix seconds.
    pub t: f64,
    /// Mean power per GPU.
    pub power_w: f32,
    /// Mean GPU utilization; that of the CPU in a node without GPUs.
    pub util_pct: f32,
    /// GPU memory in use, as a share; node memory in a node without GPUs.
    pub mem_share: f32,
}

/// Whether a node can be reached.
#[derive(Debug, Clone, PartialEq)]
pub enum Link {
    /// No sample has arrived yet.
    Connecting,
    /// The node can be reached.
    Up,
    /// The node cannot be reached; its processes may still run.
    Unreachable {
        /// When the last sample arrived, or the first attempt was made.
        since_s: f64,
        /// The error.
        why: Failure,
    },
}

/// The condition of a node; the most serious comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names explain themselves")]
pub enum NodeHealth {
    Well,
    Connecting,
    Warned,
    Late,
    Faulty,
    Unreachable,
}

/// Totals and means over the GPUs of a node. A value that no GPU reports is `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NodeSummary {
    /// GPUs that report.
    pub gpus: usize,
    /// Processes on the GPUs.
    pub processes: usize,
    /// Mean power per GPU.
    pub power_w_mean: Option<f64>,
    /// Power of all GPUs.
    pub power_w: Option<f64>,
    /// Mean GPU utilization.
    pub util_pct_mean: Option<f64>,
    /// GPU memory in use.
    pub gpu_mem_used_mib: Option<u64>,
    /// Total GPU memory.
    pub gpu_mem_total_mib: Option<u64>,
    /// Temperature of the hottest GPU.
    pub temp_c_max: Option<f64>,
    /// Mean SM clock.
    pub sm_clock_mhz_mean: Option<f64>,
    /// CPU utilization over all cores.
    pub cpu_pct: Option<f64>,
    /// Load average of the last minute.
    pub load: Option<f64>,
    /// Node memory in use.
    pub mem_used_mib: Option<u64>,
    /// Total node memory.
    pub mem_total_mib: Option<u64>,
}

/// Totals and means over all nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FleetSummary {
    /// Number of nodes.
    pub nodes: usize,
    /// Nodes that can be reached.
    pub up: usize,
    /// Nodes that cannot be reached.
    pub unreachable: usize,
    /// Faults of nodes that can be reached.
    pub faults: usize,
    /// GPUs that report.
    pub gpus: usize,
    /// Mean power per GPU.
    pub power_w_mean: Option<f64>,
    /// GPU memory in use; node memory where no node has a GPU.
    pub mem_used_mib: u64,
    /// Total memory of the same kind.
    pub mem_total_mib: u64,
}

/// The order of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names explain themselves")]
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
    /// All orders, in the sequence of the key that changes them, with their names.
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

    /// Returns its name.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(sort, _)| *sort == self).map_or("", |(_, word)| word)
    }

    /// Returns the next order.
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|(sort, _)| *sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()].0
    }
}

impl Fleet {
    /// Switches to another source and drops the nodes of the previous one.
    pub fn turn_to(&mut self, of: FleetSource) {
        if self.of != of {
            *self = Self { of, ..Self::default() };
        }
    }

    /// Moves times after `now` to it: the clock was set back. Otherwise a node that sends nothing would not be late for as long.
    pub fn clock_set_back(&mut self, now: f64) {
        for view in &mut self.nodes {
            view.frame_s = view.frame_s.map(|sampled_s| sampled_s.min(now));
            view.moments.iter_mut().for_each(|moment| moment.t = moment.t.min(now));
        }
    }

    /// Updates the list of nodes; nodes that stay keep their data.
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

    /// Records a sample of a node. Nodes that are no longer listed are ignored.
    pub fn sampled(&mut self, node: &NodeId, frame: Box<Frame>, now: f64) {
        if let Some(view) = self.view_mut(node) {
            view.sampled(frame, now);
        }
    }

    /// Records that a node cannot be reached. Nodes that are no longer listed are ignored.
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

    /// Returns all nodes, in their order.
    pub fn nodes(&self) -> &[NodeView] {
        &self.nodes
    }

    /// Returns a node by its name.
    pub fn node(&self, id: &NodeId) -> Option<&NodeView> {
        self.places.get(id).and_then(|at| self.nodes.get(*at))
    }

    /// Returns whether any node has reported GPUs.
    pub fn has_gpus(&self) -> bool {
        self.nodes.iter().any(|view| view.summary.gpus > 0)
    }

    /// Returns whether Slurm manages any of the nodes.
    pub fn is_of_slurm(&self) -> bool {
        self.nodes.iter().any(|view| view.slurm.is_some())
    }

    /// Returns the indices of the nodes that pass a filter, sorted.
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
        // A node without the value comes last in either direction.
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

    /// Returns the totals. An unreachable node counts as a node, but its GPUs are not counted.
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

/// A float with a total order.
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
            moments: VecDeque::new(),
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
        let summary = &self.summary;
        let number = |value: Option<f64>| value.map_or(f32::NAN, |value| value as f32);
        let memory = self.memory_mib().filter(|(_, total)| *total > 0);
        let moment = Moment {
            t: now,
            power_w: number(summary.power_w_mean),
            util_pct: number(summary.util_pct_mean.or(summary.cpu_pct)),
            mem_share: number(memory.map(|(used, total)| used as f64 / total as f64)),
        };
        if self.moments.len() == KEPT {
            self.moments.pop_front();
        }
        self.moments.push_back(moment);
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
            // An index that no node has means that the row was misread.
            if gpu.index < 64 {
                add(gpu.index as usize, gpu.power_w.value());
            }
        }
        self.frame = Some(frame);
    }

    /// Returns the condition of the node.
    pub fn condition(&self, now: f64) -> NodeHealth {
        match (&self.link, self.faults.first().map(|fault| fault.severity)) {
            (Link::Connecting, _) => NodeHealth::Connecting,
            (Link::Unreachable { .. }, _) => NodeHealth::Unreachable,
            (Link::Up, _) if self.late_s(now).is_some() => NodeHealth::Late,
            (Link::Up, Some(FaultSeverity::Bad)) => NodeHealth::Faulty,
            (Link::Up, Some(FaultSeverity::Warn)) => NodeHealth::Warned,
            (Link::Up, None) => NodeHealth::Well,
        }
    }

    /// Returns the age of the latest sample in seconds, if it is late.
    pub fn late_s(&self, now: f64) -> Option<f64> {
        self.frame_s.map(|sampled_s| now - sampled_s).filter(|late| *late > LATE_S)
    }

    /// Returns the GPUs in the latest sample.
    pub fn gpus(&self) -> &[GpuSample] {
        self.frame.as_ref().map_or(&[], |frame| &frame.gpus)
    }

    /// Returns memory in use and total memory: of the GPUs, or of the node if it has none.
    pub fn memory_mib(&self) -> Option<(u64, u64)> {
        let summary = &self.summary;
        match summary.gpus {
            0 => summary.mem_used_mib.zip(summary.mem_total_mib),
            _ => summary.gpu_mem_used_mib.zip(summary.gpu_mem_total_mib),
        }
    }
}

impl NodeHealth {
    /// Returns the name of the condition.
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

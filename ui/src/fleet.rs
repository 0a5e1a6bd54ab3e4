//! The watched nodes: the latest sample, history and faults of each.
//!
//! A sample is summarized when it arrives. Sorting and totals use the summaries, so that a thousand nodes cost little
//! more than ten.

use crate::fleet::gpu_value::{GpuReader, GpuSpread, GpuValue, is_current};
use camino::Utf8PathBuf;
use cluster::fault::{Fault, FaultSeverity, faults};
use cluster::probe::Frame;
use cluster::slurm::SlurmNode;
use cluster::{GpuSample, LinkKind, Node, NodeId, Rate, Reading};
use rundir::{ErrorCode, Failure, NodeSample, RunId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

mod attention;
pub mod gpu_value;
mod history;

use attention::Attention;
pub use history::{GpuMoment, History, HistoryWindow, Moment, Point};

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

/// The age in seconds from which a node's newest sample suggests a hang. Samples arrive every two seconds.
const LATE_S: f64 = 10.0;
/// The number of other sources whose nodes are kept.
const KEPT_SOURCES: usize = 3;
/// The most nodes of other sources that are kept: the histories of a node with eight GPUs take 100 KB after twelve hours.
const KEPT_NODES: usize = 1024;

/// A node to watch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ListedNode {
    /// The node's name and number of slots.
    #[serde(flatten)]
    pub node: Node,
    /// The node's state in Slurm; `None` if Slurm does not manage it.
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
    /// The source of the node list.
    pub of: FleetSource,
    /// Whether the list could be read; `None` while it loads.
    pub listed: Option<Result<(), Failure>>,
    nodes: Vec<NodeView>,
    places: HashMap<NodeId, usize>,
    /// The spread of each quantity of [`OUTLYING`] when outliers were last searched.
    spreads: [Option<GpuSpread>; OUTLYING.len()],
    /// When outliers were last searched, Unix seconds.
    judged_s: Option<f64>,
    /// When the nodes were watched again after a pause, Unix seconds.
    resumed_s: f64,
    /// The nodes of the sources that were shown before, the newest source last.
    kept: Vec<Fleet>,
}

/// The quantities whose outliers move their node to the top. Memory is left out, because ranks may differ in it.
const OUTLYING: [GpuValue; 3] = [GpuValue::Power, GpuValue::Utilization, GpuValue::Temperature];
/// Seconds between two searches for outliers: about the time between two samples of a node.
const JUDGED_EVERY_S: f64 = 2.0;

/// A watched node.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// The node's name and number of slots.
    pub node: Node,
    /// The node's state in Slurm, known even when the node is unreachable.
    pub slurm: Option<SlurmNode>,
    /// Whether the node can be reached.
    pub link: Link,
    /// The latest sample.
    pub frame: Option<Box<Frame>>,
    /// When the sample arrived, Unix seconds.
    pub frame_s: Option<f64>,
    /// The faults in that sample, the worst first.
    pub faults: Vec<Fault>,
    /// Totals and means of that sample.
    pub summary: NodeSummary,
    /// CPU utilization of the processes on its GPUs since the sample before, in percent of one core.
    pub process_cpu_pct: BTreeMap<u32, f64>,
    /// The values of the node and of its GPUs over the last hours.
    pub history: History,
    /// When the samples that a run recorded were read completely, Unix seconds.
    pub records_s: Option<f64>,
    attention: Attention,
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
        /// When the last sample arrived, or the first attempt was made, Unix seconds.
        since_s: f64,
        /// Why the node cannot be reached.
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

/// Totals and means over the GPUs of a node. A total is `None` if a GPU does not report its value. Means and maxima are over the GPUs
/// that report, and `None` if there are none.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NodeSummary {
    /// GPUs that report.
    pub gpus: usize,
    /// Processes on the GPUs.
    pub processes: usize,
    /// Mean power per GPU.
    pub power_w_mean: Option<f64>,
    /// GPUs that report their power.
    #[serde(skip)]
    pub powered: usize,
    /// Power of all GPUs.
    pub power_w: Option<f64>,
    /// Mean GPU utilization.
    pub util_pct_mean: Option<f64>,
    /// GPU memory in use.
    pub gpu_mem_used_mib: Option<u64>,
    /// Total GPU memory.
    pub gpu_mem_total_mib: Option<u64>,
    /// Whether its GPUs use the memory of the node and report none of their own.
    pub shares_memory: bool,
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
    /// Bytes per second that the network interfaces receive.
    pub net_rx_bytes_per_s: Option<f64>,
    /// Bytes per second that the network interfaces send.
    pub net_tx_bytes_per_s: Option<f64>,
    /// Bytes per second that the InfiniBand ports receive.
    pub ib_rx_bytes_per_s: Option<f64>,
    /// Bytes per second that the InfiniBand ports send.
    pub ib_tx_bytes_per_s: Option<f64>,
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
    /// GPU memory in use; node memory where no node has a GPU. `None` if a GPU or node does not report it.
    pub mem_used_mib: Option<u64>,
    /// Total memory of the same kind.
    pub mem_total_mib: Option<u64>,
}

/// The order of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names explain themselves")]
pub enum Sort {
    /// Nodes with faults first, then those with outliers, then the others as listed.
    #[default]
    Faults,
    Listed,
    Name,
    Power,
    Util,
    Memory,
    Temperature,
    Processes,
}

impl Sort {
    /// All orders, in the sequence of the key that changes them, with their names.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Faults, "faults"),
        (Self::Listed, "listed"),
        (Self::Power, "power"),
        (Self::Util, "util"),
        (Self::Memory, "memory"),
        (Self::Temperature, "temp"),
        (Self::Processes, "processes"),
        (Self::Name, "name"),
    ];

    /// Returns the name of the order.
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
    /// Switches to another source. The nodes of the last sources are kept with their histories.
    pub fn turn_to(&mut self, of: FleetSource) {
        if self.of == of {
            return;
        }
        let mut kept = std::mem::take(&mut self.kept);
        let next = match kept.iter().position(|fleet| fleet.of == of) {
            Some(at) => kept.remove(at),
            None => Self { of, ..Self::default() },
        };
        let previous = std::mem::replace(self, next);
        if !previous.nodes.is_empty() {
            kept.push(previous);
        }
        let nodes = |kept: &[Self]| kept.iter().map(|fleet| fleet.nodes.len()).sum::<usize>();
        while kept.len() > KEPT_SOURCES || nodes(&kept) > KEPT_NODES {
            kept.remove(0);
        }
        self.kept = kept;
    }

    /// Moves times after `now` to `now`, because the clock was set back. Otherwise a node without samples would become late only
    /// after the clock has caught up.
    pub fn clock_set_back(&mut self, now: f64) {
        for view in &mut self.nodes {
            view.frame_s = view.frame_s.map(|sampled_s| sampled_s.min(now));
            view.records_s = view.records_s.map(|read_s| read_s.min(now));
            view.history.clock_set_back(now);
        }
        self.kept.iter_mut().for_each(|fleet| fleet.clock_set_back(now));
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

    /// Adds samples that the supervisor of a run recorded to the history of a node. No samples mean that all were sent. Nodes that are
    /// no longer listed are ignored.
    pub fn recorded(&mut self, node: &NodeId, samples: &[NodeSample], now: f64) {
        if let Some(view) = self.view_mut(node) {
            if samples.is_empty() {
                view.records_s = Some(now);
            }
            view.recorded(samples, now);
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

    /// Searches for outliers, and updates which nodes need attention. Calls within two seconds change nothing.
    ///
    /// * `steps` — reads the step times of ranks while the user looks at them. A GPU with a slow rank is then an outlier too.
    pub fn judge(&mut self, now: f64, steps: Option<&GpuReader<'_>>) {
        if self.judged_s.is_some_and(|judged_s| (now - judged_s).abs() < JUDGED_EVERY_S) {
            return;
        }
        // After a time in which the nodes were not watched, all samples are old.
        if self.judged_s.is_none_or(|judged_s| (now - judged_s).abs() > LATE_S) {
            self.resumed_s = now;
        }
        self.judged_s = Some(now);
        self.spreads = OUTLYING.map(|value| GpuSpread::of(&GpuReader::new(value, || None), &self.nodes));
        let steps = steps.and_then(|reader| Some((reader, GpuSpread::of(reader, &self.nodes)?)));
        for at in 0..self.nodes.len() {
            let view = &self.nodes[at];
            let is_outlier = |gpu: &GpuSample| {
                let has_slow_rank = steps.is_some_and(|(reader, spread)| spread.is_outlier(reader.of(view, gpu)));
                has_slow_rank || OUTLYING.iter().any(|value| self.is_outlier(*value, gpu))
            };
            let is_searched = is_current(view) && view.frame.is_some();
            let has_outlier = is_searched.then(|| view.gpus().iter().any(is_outlier));
            let condition = match view.condition(now) {
                NodeHealth::Late if now - self.resumed_s < LATE_S => NodeHealth::Well,
                condition => condition,
            };
            self.nodes[at].attention.update(condition, has_outlier, now);
        }
    }

    /// Returns whether a value of a GPU is an outlier among all GPUs.
    pub fn is_outlier(&self, value: GpuValue, gpu: &GpuSample) -> bool {
        let spread = OUTLYING.iter().position(|of| *of == value).and_then(|at| self.spreads[at]);
        spread.is_some_and(|spread| spread.is_outlier(value.of(gpu)))
    }

    /// Returns the indices of the nodes that pass a filter, in the given order.
    pub fn order(&self, sort: Sort, reverse: bool, filter: &str, now: f64) -> Vec<usize> {
        let wanted = filter.to_lowercase();
        let passes = |view: &NodeView| {
            wanted.is_empty()
                || view.node.id.as_str().to_lowercase().contains(&wanted)
                || view.condition(now).word().contains(&wanted)
                || view.state(now).contains(&wanted)
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
            Sort::Faults => order.sort_by_key(|at| std::cmp::Reverse(self.nodes[*at].attention.level())),
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
        let (mut power, mut powered) = (0.0, 0);
        // The memory of each node, `None` if it is unknown.
        let mut memory: Vec<Option<(u64, u64)>> = Vec::new();
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
            power += summary.power_w_mean.unwrap_or(0.0) * summary.powered as f64;
            powered += summary.powered;
            if !has_gpus || summary.gpus > 0 {
                memory.push(summary.memory_mib());
            }
        }
        sum.power_w_mean = (powered > 0).then(|| power / powered as f64);
        let (used, all): (Vec<_>, Vec<_>) = memory.into_iter().map(Option::unzip).unzip();
        (sum.mem_used_mib, sum.mem_total_mib) = (total(used.into_iter()), total(all.into_iter()));
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
            process_cpu_pct: BTreeMap::new(),
            history: History::default(),
            records_s: None,
            attention: Attention::default(),
        }
    }

    fn sampled(&mut self, frame: Box<Frame>, now: f64) {
        self.link = Link::Up;
        self.frame_s = Some(now);
        self.faults = faults(&frame);
        self.summary = NodeSummary::of(&frame, self.frame.as_deref());
        self.process_cpu_pct = self.frame.as_deref().map(|before| process_cpu_pct(before, &frame)).unwrap_or_default();
        let gpus = frame.gpus.iter().map(|gpu| (gpu.index, moment_of(gpu)));
        self.history.push(self.summary.moment(now), gpus);
        self.frame = Some(frame);
    }

    /// Adds recorded samples to the history. The records lack the memory size of the GPUs; the latest sample has it.
    fn recorded(&mut self, samples: &[NodeSample], now: f64) {
        let largest = self.gpus().iter().filter_map(|gpu| gpu.mem_total_mib.value()).max();
        let mem_total_mib = |index: u32| {
            let known = self.gpus().iter().find(|gpu| gpu.index == index);
            known.and_then(|gpu| gpu.mem_total_mib.value()).or(largest)
        };
        let row = |sample: &NodeSample| {
            let mut gpus = sample.gpus();
            for gpu in &mut gpus {
                gpu.mem_total_mib = mem_total_mib(gpu.index).map(Reading::Value).unwrap_or_default();
            }
            let moment = NodeSummary::of_record(sample, &gpus).moment(sample.t);
            (moment, gpus.iter().map(|gpu| (gpu.index, moment_of(gpu))).collect::<Vec<_>>())
        };
        let span = now - HistoryWindow::TwelveHours.seconds()..=now;
        let rows: Vec<_> = samples.iter().filter(|sample| span.contains(&sample.t)).map(row).collect();
        self.history.seed(rows);
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

    /// Returns the state of the node in one or two words: its condition, or why it cannot be reached.
    pub fn state(&self, now: f64) -> &'static str {
        match &self.link {
            Link::Unreachable { why, .. } => match why.code {
                ErrorCode::NoAddress => "no address",
                ErrorCode::ConnectionRefused => "refused",
                ErrorCode::HostKeyChanged => "key changed",
                ErrorCode::HostKeyUnknown => "key unknown",
                ErrorCode::NoAnswer => "no answer",
                ErrorCode::LoginRefused => "login failed",
                _ => NodeHealth::Unreachable.word(),
            },
            Link::Connecting | Link::Up => self.condition(now).word(),
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
        self.summary.memory_mib()
    }
}

fn moment_of(gpu: &GpuSample) -> GpuMoment {
    let memory = gpu.mem_used_mib.value().zip(gpu.mem_total_mib.value()).filter(|(_, total)| *total > 0);
    let share = memory.map(|(used, total)| used as f64 / total as f64);
    GpuMoment::new(gpu.power_w.value(), gpu.util_pct.value(), share, gpu.temp_c.value())
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

/// Returns the CPU utilization between two samples of each process that is in both, in percent of one core.
fn process_cpu_pct(before: &Frame, now: &Frame) -> BTreeMap<u32, f64> {
    let processes = |frame: &'_ Frame| -> Vec<(u32, u64, u64)> {
        let all = frame.gpus.iter().flat_map(|gpu| &gpu.processes).chain(&frame.elsewhere);
        all.filter_map(|process| {
            let owner = process.owner.as_ref()?;
            Some((process.pid.value()?, owner.age_s, owner.cpu_ticks?))
        })
        .collect()
    };
    let (earlier, seconds) = (processes(before), now.t - before.t);
    let pct = |(pid, age_s, ticks): (u32, u64, u64)| {
        // A process that is younger has the id of another one.
        let (_, _, ticks_before) = *earlier.iter().find(|(id, age, _)| *id == pid && *age <= age_s)?;
        Some((pid, ticks.checked_sub(ticks_before)? as f64 / seconds))
    };
    if seconds > 0.0 { processes(now).into_iter().filter_map(pct).collect() } else { BTreeMap::new() }
}

/// Returns the sum of values; `None` if one of them is unknown, or if there are none.
fn total(values: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    values.reduce(|sum, value| Some(sum?.saturating_add(value?))).flatten()
}

impl NodeSummary {
    /// Summarizes a frame; rates are differences to the frame before.
    fn of(frame: &Frame, before: Option<&Frame>) -> Self {
        let cpu_before = before.and_then(|before| before.host.cpu);
        let cpu_pct = frame.host.cpu.zip(cpu_before).and_then(|(now, before)| now.busy_pct_since(before));
        let rate = |kind| before.and_then(|before| Rate::between(before, frame, kind));
        let (network, infiniband) = (rate(LinkKind::Network), rate(LinkKind::Infiniband));
        let host = &frame.host;
        Self {
            processes: frame.gpus.iter().map(|gpu| gpu.processes.len()).sum::<usize>() + frame.elsewhere.len(),
            cpu_pct,
            load: host.load,
            mem_used_mib: host.mem_total_mib.zip(host.mem_available_mib).map(|(all, free)| all.saturating_sub(free)),
            mem_total_mib: host.mem_total_mib,
            net_rx_bytes_per_s: network.map(|rate| rate.rx_bytes_per_s),
            net_tx_bytes_per_s: network.map(|rate| rate.tx_bytes_per_s),
            ib_rx_bytes_per_s: infiniband.map(|rate| rate.rx_bytes_per_s),
            ib_tx_bytes_per_s: infiniband.map(|rate| rate.tx_bytes_per_s),
            ..Self::of_gpus(&frame.gpus)
        }
    }

    /// Summarizes a sample that the supervisor of a run recorded, with its GPUs.
    fn of_record(sample: &NodeSample, gpus: &[GpuSample]) -> Self {
        let rate = |bytes_per_s: Option<u64>| bytes_per_s.map(|bytes_per_s| bytes_per_s as f64);
        Self {
            cpu_pct: sample.cpu_pct,
            mem_used_mib: sample.mem_used_mib,
            mem_total_mib: sample.mem_total_mib,
            net_rx_bytes_per_s: rate(sample.net_rx_bytes_per_s),
            net_tx_bytes_per_s: rate(sample.net_tx_bytes_per_s),
            ib_rx_bytes_per_s: rate(sample.ib_rx_bytes_per_s),
            ib_tx_bytes_per_s: rate(sample.ib_tx_bytes_per_s),
            ..Self::of_gpus(gpus)
        }
    }

    fn of_gpus(gpus: &[GpuSample]) -> Self {
        let numbers = |of: fn(&GpuSample) -> &Reading<f64>| -> Vec<f64> {
            gpus.iter().filter_map(|gpu| of(gpu).value()).collect()
        };
        let mean = |numbers: &[f64]| (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64);
        let sum = |of: fn(&GpuSample) -> &Reading<u64>| total(gpus.iter().map(|gpu| of(gpu).value()));
        let power = numbers(|gpu| &gpu.power_w);
        Self {
            gpus: gpus.len(),
            power_w_mean: mean(&power),
            powered: power.len(),
            power_w: (!power.is_empty() && power.len() == gpus.len()).then(|| power.iter().sum()),
            util_pct_mean: mean(&numbers(|gpu| &gpu.util_pct)),
            gpu_mem_used_mib: sum(|gpu| &gpu.mem_used_mib),
            gpu_mem_total_mib: sum(|gpu| &gpu.mem_total_mib),
            shares_memory: !gpus.is_empty() && gpus.iter().all(GpuSample::shares_memory),
            temp_c_max: numbers(|gpu| &gpu.temp_c).into_iter().reduce(f64::max),
            sm_clock_mhz_mean: mean(&numbers(|gpu| &gpu.sm_clock_mhz)),
            ..Self::default()
        }
    }

    /// Returns memory in use and total memory: of the GPUs, or of the node if it has none or they use its memory.
    fn memory_mib(&self) -> Option<(u64, u64)> {
        match self.gpus {
            0 => self.mem_used_mib.zip(self.mem_total_mib),
            _ if self.shares_memory => self.mem_used_mib.zip(self.mem_total_mib),
            _ => self.gpu_mem_used_mib.zip(self.gpu_mem_total_mib),
        }
    }

    /// Returns the values of the history at this time.
    fn moment(&self, t: f64) -> Moment {
        let number = |value: Option<f64>| value.map_or(f32::NAN, |value| value as f32);
        let memory = self.memory_mib().filter(|(_, total)| *total > 0);
        Moment {
            t,
            power_w: number(self.power_w_mean),
            util_pct: number(self.util_pct_mean),
            mem_share: number(memory.map(|(used, total)| used as f64 / total as f64)),
            cpu_pct: number(self.cpu_pct),
            net_rx: number(self.net_rx_bytes_per_s),
            net_tx: number(self.net_tx_bytes_per_s),
            ib_rx: number(self.ib_rx_bytes_per_s),
            ib_tx: number(self.ib_tx_bytes_per_s),
            temp_c: number(self.temp_c_max),
        }
    }
}

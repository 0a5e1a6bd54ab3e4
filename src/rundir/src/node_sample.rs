//! One line of a node's `gpu.jsonl`: a sample of the node and its GPUs.

use crate::lines::{LogLine, json_line};
use crate::metrics::thousandth;
use crate::{GpuUsage, RunDir, SCHEMA, Tail};
use camino::Utf8Path;
use cluster::nvidia_smi::SmiError;
use cluster::probe::Frame;
use cluster::{GpuSample, LinkKind, NodeId, Rate, Reading, ThrottleReasons, XidAt};
use serde::{Deserialize, Serialize};
use std::ops::Add;

/// The pause between two samples in seconds; nvidia-smi takes additional time. A day of eight GPUs takes 8 MB.
pub const SAMPLE_EVERY_S: f64 = 5.0;
/// The bytes at the end of a file that have its last line.
const LAST_BYTES: u64 = 64 * 1024;

/// A sample of a node during a run, written by the node's supervisor.
///
/// The console may be closed for days, so the supervisor stores a sample every few seconds. To keep a line of eight
/// GPUs at about 400 bytes, readings are in columns. Names, limits and processes of GPUs are left out; only the
/// console's own stream has them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeSample {
    /// [`SCHEMA`].
    pub v: u32,
    /// The attempt that was running.
    pub attempt: u32,
    /// When the sample began, Unix seconds by the node's clock.
    #[serde(serialize_with = "thousandth")]
    pub t: f64,
    /// Seconds that sampling took; nvidia-smi takes most of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_s: Option<f64>,
    /// CPU utilization since the line before, over all cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pct: Option<f64>,
    /// Memory of the node in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_used_mib: Option<u64>,
    /// Memory of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_total_mib: Option<u64>,
    /// Bytes per second that its network interfaces received since the line before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net_rx_bytes_per_s: Option<u64>,
    /// Bytes per second that its network interfaces sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net_tx_bytes_per_s: Option<u64>,
    /// Bytes per second that its InfiniBand ports received since the line before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ib_rx_bytes_per_s: Option<u64>,
    /// Bytes per second that its InfiniBand ports sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ib_tx_bytes_per_s: Option<u64>,
    /// The readings of the node's GPUs; empty on a node without GPUs.
    #[serde(default, skip_serializing_if = "GpuColumns::is_empty")]
    pub gpus: GpuColumns,
    /// The time and the energy of the GPUs that the ranks use, since the first sample of the run; `None` on a node without GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<GpuUsage>,
    /// The errors of nvidia-smi, as text; empty on a node without nvidia-smi. Warnings beside complete rows are left out.
    #[serde(rename = "troubles", default, skip_serializing_if = "Vec::is_empty")]
    pub smi_errors: Vec<String>,
    /// Xid errors of its GPUs in the kernel's log, each number once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xids: Vec<XidAt>,
}

/// Readings of the GPUs of a node. Each field is a column with one entry per GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuColumns {
    /// The indices of the GPUs on the node.
    pub index: Vec<u32>,
    /// The indices of the GPUs that the ranks use; empty if they use all GPUs, or if it is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub used: Vec<u32>,
    /// GPU power.
    pub power_w: Vec<Reading<f64>>,
    /// Memory in use by all processes.
    pub mem_used_mib: Vec<Reading<u64>>,
    /// Utilization: the share of time in which a kernel ran.
    pub util_pct: Vec<Reading<f64>>,
    /// GPU temperatures, °C.
    pub temp_c: Vec<Reading<f64>>,
    /// Clocks of the streaming multiprocessors (SM).
    pub sm_clock_mhz: Vec<Reading<f64>>,
    /// Uncorrected memory errors.
    pub ecc_uncorrected: Vec<Reading<u64>>,
    /// Why clocks are throttled.
    pub throttle_reasons: Vec<Reading<ThrottleReasons>>,
}

impl GpuColumns {
    /// Returns whether there are no GPUs.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Returns whether the ranks use the GPU at a place in the columns.
    pub fn is_used(&self, at: usize) -> bool {
        self.used.is_empty() || self.index.get(at).is_some_and(|gpu| self.used.contains(gpu))
    }

    /// Returns the entries of a column for the GPUs that the ranks use.
    pub fn of_ranks<'a, T>(&'a self, column: &'a [Reading<T>]) -> impl Iterator<Item = &'a Reading<T>> {
        column.iter().enumerate().filter(move |(at, _)| self.is_used(*at)).map(|(_, reading)| reading)
    }
}

impl NodeSample {
    /// Makes a sample from a frame of a node's stream and the frame before it.
    pub fn new(attempt: u32, frame: &Frame, before: Option<&Frame>) -> Self {
        let host = &frame.host;
        let cpu_before = before.and_then(|before| before.host.cpu);
        let cpu_pct = host.cpu.zip(cpu_before).and_then(|(now, before)| now.busy_pct_since(before));
        let rate = |kind| before.and_then(|before| Rate::between(before, frame, kind));
        let (network, infiniband) = (rate(LinkKind::Network), rate(LinkKind::Infiniband));
        let rx = |rate: Option<Rate>| rate.map(|rate| rate.rx_bytes_per_s.round() as u64);
        let tx = |rate: Option<Rate>| rate.map(|rate| rate.tx_bytes_per_s.round() as u64);
        let gpus = &frame.gpus;
        let is_error = |error: &&SmiError| **error != SmiError::NotFound && !error.is_warning();
        let smi_errors = frame.smi_errors.iter().filter(is_error).map(ToString::to_string);
        Self {
            v: SCHEMA,
            attempt,
            t: frame.t,
            took_s: Some(tenth(frame.took_s)),
            cpu_pct: cpu_pct.map(tenth),
            mem_used_mib: host.mem_total_mib.zip(host.mem_available_mib).map(|(all, free)| all.saturating_sub(free)),
            mem_total_mib: host.mem_total_mib,
            net_rx_bytes_per_s: rx(network),
            net_tx_bytes_per_s: tx(network),
            ib_rx_bytes_per_s: rx(infiniband),
            ib_tx_bytes_per_s: tx(infiniband),
            gpus: GpuColumns {
                index: gpus.iter().map(|gpu| gpu.index).collect(),
                used: Vec::new(),
                power_w: gpus.iter().map(|gpu| rounded(&gpu.power_w)).collect(),
                mem_used_mib: gpus.iter().map(|gpu| gpu.mem_used_mib.clone()).collect(),
                util_pct: gpus.iter().map(|gpu| rounded(&gpu.util_pct)).collect(),
                temp_c: gpus.iter().map(|gpu| rounded(&gpu.temp_c)).collect(),
                sm_clock_mhz: gpus.iter().map(|gpu| rounded(&gpu.sm_clock_mhz)).collect(),
                ecc_uncorrected: gpus.iter().map(|gpu| gpu.ecc_uncorrected.clone()).collect(),
                throttle_reasons: gpus.iter().map(|gpu| gpu.throttle_reasons.clone()).collect(),
            },
            usage: None,
            smi_errors: smi_errors.collect(),
            xids: frame.xids.clone(),
        }
    }

    /// Returns when the sample was written, Unix seconds by the node's clock. Returns `None` for a sample of an earlier
    /// version in which nvidia-smi hung, because `took_s` was not recorded.
    pub fn written_s(&self) -> Option<f64> {
        let hung = self.smi_errors.contains(&SmiError::TimedOut.to_string());
        self.took_s.or((!hung).then_some(0.0)).map(|took_s| self.t + took_s)
    }

    /// Returns one sample per GPU, as in the console's own stream. Fields that are not stored are
    /// [`cluster::Absent::NotAsked`].
    pub fn gpus(&self) -> Vec<GpuSample> {
        let columns = &self.gpus;
        let one = |(at, index): (usize, &u32)| GpuSample {
            t: self.t,
            index: *index,
            uuid: None,
            name: None,
            bus_id: None,
            power_w: place(&columns.power_w, at),
            power_limit_w: Reading::default(),
            mem_used_mib: place(&columns.mem_used_mib, at),
            mem_total_mib: Reading::default(),
            util_pct: place(&columns.util_pct, at),
            temp_c: place(&columns.temp_c, at),
            sm_clock_mhz: place(&columns.sm_clock_mhz, at),
            fan_pct: Reading::default(),
            pcie_gen: Reading::default(),
            pcie_lanes: Reading::default(),
            ecc_uncorrected: place(&columns.ecc_uncorrected, at),
            throttle_reasons: place(&columns.throttle_reasons, at),
            mig: false,
            processes: Vec::new(),
        };
        columns.index.iter().enumerate().map(one).collect()
    }
}

fn place<T: Clone>(column: &[Reading<T>], at: usize) -> Reading<T> {
    column.get(at).cloned().unwrap_or_default()
}

fn rounded(reading: &Reading<f64>) -> Reading<f64> {
    match reading {
        Reading::Value(value) => Reading::Value(tenth(*value)),
        Reading::Absent(why) => Reading::Absent(why.clone()),
    }
}

fn tenth(x: f64) -> f64 {
    (x * 10.0).round() / 10.0
}

impl LogLine for NodeSample {
    fn parse(line: &[u8]) -> Result<Self, String> {
        json_line(line)
    }
}

/// Returns the usage in the last sample of a node's file; `None` if there is none.
pub fn last_usage(samples: &Utf8Path) -> Option<GpuUsage> {
    let (_, last) = Tail::<NodeSample>::near_end_with(samples, LAST_BYTES, LAST_BYTES, |_| true).ok()?;
    last.last()?.usage
}

impl RunDir {
    /// Returns the usage of all nodes; `None` if none of them has GPUs. Reads only the ends of files.
    pub fn gpu_usage(&self) -> Option<GpuUsage> {
        let nodes = self.nodes().read_dir_utf8().ok()?.flatten();
        nodes.filter_map(|node| last_usage(&node.path().join("gpu.jsonl"))).reduce(Add::add)
    }

    /// Follows the samples of a node from the beginning.
    pub fn tail_gpu_samples(&self, node: &NodeId) -> Tail<NodeSample> {
        Tail::new(self.gpu_samples(node))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::LineAppender;
    use crate::fixtures::{node, temp};
    use cluster::Absent;
    use cluster::nvidia_smi::GpuQuery;
    use cluster::probe::{CpuTicks, Frames};
    use std::fs;

    /// Makes a frame of some GPUs. The last one does not report its power.
    pub fn frame(t: f64, gpus: usize) -> Frame {
        let row = |i: usize| {
            let power = if i + 1 == gpus { "[Unknown Error]".to_owned() } else { format!("{}.17", 600 + i) };
            format!(
                "{i}, GPU-{i}, NVIDIA H100 80GB HBM3, 00000000:1{i}:00.0, {power}, 700.00, 7021{i}, 81559, 100, 59, 1980, 0, 0x4, Disabled, [N/A], 5, 16\n"
            )
        };
        let rows: String = (0..gpus).map(row).collect();
        let host = "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\ncpu 500 0 0 500 0 0 0 0 0 0";
        let text = format!("#frame 1 {t}\n#host\n{host}\n#gpus\n{rows}\n#exit 0\n#end 1\n");
        Frames::new(GpuQuery::default()).push(text.as_bytes()).remove(0)
    }

    #[test]
    fn a_line_of_eight_gpus_is_short_and_is_read_as_it_was_written() {
        let mut before = frame(1_763_612_340.123_456, 8);
        before.host.cpu = Some(CpuTicks { busy: 0, total: 0 });
        let sample = NodeSample::new(2, &frame(1_763_612_345.123_456, 8), Some(&before));
        let line = serde_json::to_string(&sample).unwrap();
        assert!(line.len() < 560, "{}: {line}", line.len());
        let read = NodeSample::parse(line.as_bytes()).unwrap();
        assert_eq!((read.attempt, read.t, read.cpu_pct), (2, 1_763_612_345.123, Some(50.0)));
        assert_eq!((read.mem_used_mib, read.mem_total_mib), (Some(1024), Some(2048)));
        assert_eq!(read.gpus, sample.gpus);
        let gpus = read.gpus();
        assert_eq!((gpus.len(), gpus[3].index, gpus[3].power_w.value()), (8, 3, Some(603.2)));
        assert_eq!(gpus[7].power_w.absent(), Some(&Absent::UnknownError));
        assert_eq!(gpus[7].mem_total_mib.absent(), Some(&Absent::NotAsked));
    }

    #[test]
    fn a_sample_has_the_rates_of_links_since_the_frame_before() {
        let at = |t, links: &str| {
            let text = format!("#frame 1 {t}\n#host\n{links}\n#gpus\n#exit 127\n#end 1\n");
            Frames::new(GpuQuery::default()).push(text.as_bytes()).remove(0)
        };
        let (before, now) = (at(5.0, "net eth0 100 0\nib mlx5_0/1 0 0"), at(10.0, "net eth0 600 50\nib mlx5_0/1 5 10"));
        let sample = NodeSample::new(1, &now, Some(&before));
        assert_eq!((sample.net_rx_bytes_per_s, sample.net_tx_bytes_per_s), (Some(100), Some(10)));
        assert_eq!((sample.ib_rx_bytes_per_s, sample.ib_tx_bytes_per_s), (Some(4), Some(8)));
        let line = serde_json::to_string(&sample).unwrap();
        assert_eq!(NodeSample::parse(line.as_bytes()).unwrap(), sample);
        assert_eq!(NodeSample::new(1, &now, None).net_rx_bytes_per_s, None, "the first frame has no rates");
    }

    #[test]
    fn a_sample_of_a_node_without_gpus_and_one_with_warnings_has_no_smi_errors() {
        let mut frame = frame(5.0, 0);
        frame.smi_errors = vec![SmiError::NotFound, SmiError::Warning("WARNING: news".into())];
        let line = serde_json::to_string(&NodeSample::new(1, &frame, None)).unwrap();
        assert_eq!(line, r#"{"v":1,"attempt":1,"t":5.0,"took_s":0.0,"mem_used_mib":1024,"mem_total_mib":2048}"#);
        assert!(NodeSample::parse(line.as_bytes()).unwrap().gpus.is_empty());
    }

    #[test]
    fn the_time_of_a_sample_includes_the_duration_of_nvidia_smi() {
        let took = NodeSample::new(1, &Frame { took_s: 21.96, ..frame(100.0, 2) }, None);
        let read = NodeSample::parse(serde_json::to_string(&took).unwrap().as_bytes()).unwrap();
        assert_eq!(read.written_s(), Some(122.0));
        let earlier = NodeSample { took_s: None, ..took };
        assert_eq!(earlier.written_s(), Some(100.0));
        let hung = vec![SmiError::TimedOut.to_string()];
        assert_eq!(NodeSample { smi_errors: hung, ..earlier }.written_s(), None);
    }

    #[test]
    fn appended_samples_are_read() {
        let (_keep, run) = temp();
        fs::create_dir_all(run.node_dir(&node("ml-1"))).unwrap();
        let mut file = LineAppender::open(&run.gpu_samples(&node("ml-1"))).unwrap();
        for t in 0..100 {
            file.append(&NodeSample::new(1, &frame(f64::from(t), 2), None)).unwrap();
        }
        let all = run.tail_gpu_samples(&node("ml-1")).poll().unwrap();
        assert_eq!((all.items.len(), all.bad.len()), (100, 0));
    }

    #[test]
    fn the_usage_of_a_run_is_the_sum_of_the_last_lines_of_its_nodes() {
        let (_keep, run) = temp();
        assert_eq!(run.gpu_usage(), None);
        for (node, totals) in [("a", [5.0, 20.0]), ("b", [7.0, 30.0])] {
            let folder = run.nodes().join(node);
            std::fs::create_dir_all(&folder).unwrap();
            let mut file = LineAppender::open(&folder.join("gpu.jsonl")).unwrap();
            for gpu_s in totals {
                let usage = serde_json::json!({"gpu_s": gpu_s, "energy_j": 1.0});
                file.append(&serde_json::json!({"v": 1, "attempt": 1, "t": 1.0, "usage": usage})).unwrap();
            }
        }
        assert_eq!(run.gpu_usage(), Some(GpuUsage { gpu_s: 50.0, energy_j: 2.0 }));
    }
}

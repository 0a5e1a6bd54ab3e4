//! One line of a node's `gpu.jsonl`: what the node and its GPUs did at one moment.

use crate::lines::{LogLine, json_line};
use crate::metrics::thousandth;
use crate::{RunDir, SCHEMA, Tail};
use cluster::probe::{CpuTicks, Frame};
use cluster::{GpuSample, NodeId, Reading, ThrottleReasons};
use serde::{Deserialize, Serialize};
use std::io;

/// What a node did at one moment of a run, as its supervisor saw it.
///
/// The console may be away for days, so this is kept for every few seconds of a run; a line of eight GPUs takes about 400
/// bytes, because their readings stand in columns and names, limits and processes are left to the console's own stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeSample {
    /// [`SCHEMA`].
    pub v: u32,
    /// The attempt that ran.
    pub attempt: u32,
    /// When, Unix seconds of the node's clock.
    #[serde(serialize_with = "thousandth")]
    pub t: f64,
    /// How busy its processors were since the line before, all of them together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pct: Option<f64>,
    /// Memory of the machine that is in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_used_mib: Option<u64>,
    /// Memory of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_total_mib: Option<u64>,
    /// Its GPUs; empty where there are none.
    #[serde(default, skip_serializing_if = "GpuColumns::is_empty")]
    pub gpus: GpuColumns,
    /// What was wrong with them, in words; not said where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}

/// Readings of the GPUs of a node, each a column with a place per GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuColumns {
    /// Their numbers on the node.
    pub index: Vec<u32>,
    /// What they draw.
    pub power_w: Vec<Reading<f64>>,
    /// Memory in use by everyone.
    pub mem_used_mib: Vec<Reading<u64>>,
    /// The share of time in which a kernel ran.
    pub util_pct: Vec<Reading<f64>>,
    /// Temperatures.
    pub temp_c: Vec<Reading<f64>>,
    /// Clocks of the multiprocessors.
    pub sm_clock_mhz: Vec<Reading<f64>>,
    /// Memory errors that could not be corrected.
    pub ecc_uncorrected: Vec<Reading<u64>>,
    /// Why clocks are not at their highest.
    pub throttle_reasons: Vec<Reading<ThrottleReasons>>,
}

impl GpuColumns {
    /// Returns whether there are no GPUs.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }
}

impl NodeSample {
    /// Keeps what a frame of a node's stream says; `before` is the CPU of the frame before.
    pub fn new(attempt: u32, frame: &Frame, before: Option<CpuTicks>) -> Self {
        let host = &frame.host;
        let cpu_pct = host.cpu.zip(before).and_then(|(now, before)| now.busy_pct_since(before));
        let gpus = &frame.gpus;
        let no_gpus = cluster::nvidia_smi::SmiTrouble::NotFound;
        let troubles = frame.troubles.iter().filter(|trouble| **trouble != no_gpus).map(ToString::to_string);
        Self {
            v: SCHEMA,
            attempt,
            t: frame.t,
            cpu_pct: cpu_pct.map(tenth),
            mem_used_mib: host.mem_total_mib.zip(host.mem_available_mib).map(|(all, free)| all.saturating_sub(free)),
            mem_total_mib: host.mem_total_mib,
            gpus: GpuColumns {
                index: gpus.iter().map(|gpu| gpu.index).collect(),
                power_w: gpus.iter().map(|gpu| rounded(&gpu.power_w)).collect(),
                mem_used_mib: gpus.iter().map(|gpu| gpu.mem_used_mib.clone()).collect(),
                util_pct: gpus.iter().map(|gpu| rounded(&gpu.util_pct)).collect(),
                temp_c: gpus.iter().map(|gpu| rounded(&gpu.temp_c)).collect(),
                sm_clock_mhz: gpus.iter().map(|gpu| rounded(&gpu.sm_clock_mhz)).collect(),
                ecc_uncorrected: gpus.iter().map(|gpu| gpu.ecc_uncorrected.clone()).collect(),
                throttle_reasons: gpus.iter().map(|gpu| gpu.throttle_reasons.clone()).collect(),
            },
            troubles: troubles.collect(),
        }
    }

    /// Returns the GPUs one by one, as the console's own stream has them; what is not kept is "not asked".
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

impl RunDir {
    /// Follows what a node's supervisor samples, from the beginning.
    pub fn tail_gpu_samples(&self, node: &NodeId) -> Tail<NodeSample> {
        Tail::new(self.gpu_samples(node))
    }

    /// Follows what a node's supervisor samples, from the last `bytes` on: a minute of eight GPUs takes about 5 KiB.
    ///
    /// # Errors
    /// When the size of an existing file cannot be read.
    pub fn tail_recent_gpu_samples(&self, node: &NodeId, bytes: u64) -> io::Result<Tail<NodeSample>> {
        Tail::near_end(self.gpu_samples(node), bytes)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::LineAppender;
    use crate::fixtures::{node, temp};
    use cluster::Absent;
    use cluster::nvidia_smi::GpuQuery;
    use cluster::probe::Frames;
    use std::fs;

    /// A frame of as many GPUs, of which the last does not say its power.
    pub fn frame(t: f64, gpus: usize) -> Frame {
        let row = |i: usize| {
            let power = if i + 1 == gpus { "[Unknown Error]".to_owned() } else { format!("{}.17", 600 + i) };
            format!(
                "{i}, GPU-{i}, NVIDIA H100 80GB HBM3, 00000000:1{i}:00.0, {power}, 700.00, 7021{i}, 81559, 100, 59, 1980, 0, 0x4, Disabled\n"
            )
        };
        let rows: String = (0..gpus).map(row).collect();
        let host = "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\ncpu 500 0 0 500 0 0 0 0 0 0";
        let text = format!("#frame 1 {t}\n#host\n{host}\n#gpus\n{rows}\n#exit 0\n#end 1\n");
        Frames::new(GpuQuery::default()).push(text.as_bytes()).remove(0)
    }

    #[test]
    fn a_line_of_eight_gpus_is_short_and_says_the_same_when_it_is_read() {
        let before = CpuTicks { busy: 0, total: 0 };
        let sample = NodeSample::new(2, &frame(1_763_612_345.123_456, 8), Some(before));
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
    fn a_node_without_gpus_has_its_processors_and_memory_and_nothing_wrong() {
        let mut frame = frame(5.0, 0);
        frame.troubles = vec![cluster::nvidia_smi::SmiTrouble::NotFound];
        let line = serde_json::to_string(&NodeSample::new(1, &frame, None)).unwrap();
        assert_eq!(line, r#"{"v":1,"attempt":1,"t":5.0,"mem_used_mib":1024,"mem_total_mib":2048}"#);
        assert!(NodeSample::parse(line.as_bytes()).unwrap().gpus.is_empty());
    }

    #[test]
    fn what_is_appended_is_followed_from_its_beginning_or_its_end() {
        let (_keep, run) = temp();
        fs::create_dir_all(run.node_dir(&node("ml-1"))).unwrap();
        let mut file = LineAppender::open(&run.gpu_samples(&node("ml-1"))).unwrap();
        for t in 0..100 {
            file.append(&NodeSample::new(1, &frame(f64::from(t), 2), None)).unwrap();
        }
        let all = run.tail_gpu_samples(&node("ml-1")).poll().unwrap();
        assert_eq!((all.items.len(), all.bad.len()), (100, 0));
        let recent = run.tail_recent_gpu_samples(&node("ml-1"), 2000).unwrap().poll().unwrap();
        assert_eq!(recent.items.last().map(|sample| sample.t), Some(99.0));
        assert!((2..20).contains(&recent.items.len()));
    }
}

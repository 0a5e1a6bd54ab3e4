//! Simulated nodes, to try the screens without a cluster and to measure the cost of a thousand nodes.
//!
//! Simulated nodes send the same text as real nodes, so they exercise the parsers too.

use cluster::nvidia_smi::GpuQuery;
use cluster::probe::{Frame, Frames};
use cluster::{Node, NodeId};
use std::fmt::Write;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The number of GPUs per node.
const GPUS: usize = 8;

/// The text that stands for the output of nvidia-smi on every simulated node.
pub const TABLE: &str = "Simulated nodes have no nvidia-smi.\n";

/// The interval at which a simulated node sends frames: the same as for real nodes.
const EVERY: Duration = Duration::from_secs(2);

/// The simulated nodes that the user requests: `128`, or `8@100` if they send frames 100 times as often as real nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Simulation {
    count: usize,
    speed: f64,
}

impl FromStr for Simulation {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (count, speed) = text.split_once('@').unwrap_or((text, "1"));
        let count = count.parse().map_err(|_| "the number of nodes is not a number")?;
        let speed = speed.parse().ok().filter(|speed: &f64| (0.01..=1000.0).contains(speed));
        Ok(Self { count, speed: speed.ok_or("the speed after @ is not a number from 0.01 to 1000")? })
    }
}

impl Simulation {
    /// Returns the number of nodes.
    pub fn count(self) -> usize {
        self.count
    }

    /// Returns the simulated nodes.
    pub fn nodes(self) -> Vec<Node> {
        (1..=self.count).map(|i| Node { id: NodeId::from_hostname(&format!("sim{i:04}")), slots: GPUS }).collect()
    }
}

/// Simulated nodes, which send their frames one after the other.
pub struct Nodes {
    nodes: Vec<(NodeId, Frames)>,
    every: Duration,
    began: Instant,
    sent: u64,
}

impl Nodes {
    /// Starts the nodes. Their frames are spread over the interval between two frames of a node.
    pub fn new(simulation: Simulation) -> Self {
        let nodes = simulation.nodes().into_iter().map(|node| (node.id, Frames::new(GpuQuery::default()))).collect();
        Self { nodes, every: EVERY.div_f64(simulation.speed), began: Instant::now(), sent: 0 }
    }

    /// Returns the time to sleep between two calls of [`Self::due`]: the mean time between frames, at least 20 ms.
    pub fn pause(&self) -> Duration {
        (self.every / self.nodes.len().max(1) as u32).max(Duration::from_millis(20))
    }

    /// Returns the frames that have become due since the last call.
    pub fn due(&mut self) -> Vec<(NodeId, Box<Frame>)> {
        let count = self.nodes.len() as u64;
        let due = (self.began.elapsed().as_secs_f64() / self.every.as_secs_f64() * count as f64) as u64;
        let mut frames = Vec::new();
        for turn in self.sent..due {
            let at = (turn % count) as usize;
            let text = text(at, turn / count + 1, rundir::now_s());
            let (node, stream) = &mut self.nodes[at];
            frames.extend(stream.push(text.as_bytes()).into_iter().map(|frame| (node.clone(), Box::new(frame))));
        }
        self.sent = due;
        frames
    }
}

/// Returns the text of one frame. Most nodes train, some are idle, and a few have a fault.
fn text(node: usize, number: u64, t: f64) -> String {
    let busy = node % 16 != 15;
    let wave = |gpu: usize| ((number as f64 / 7.0 + (node * 3 + gpu) as f64).sin() * 30.0) + 30.0;
    let mut text = format!("#frame {number} {t:.6}\n#host\n00000000-0000-4000-8000-{node:012x}\n");
    let ticks = number * 10_000;
    let _ = writeln!(text, "{:.2} 0 0 3/900 4711", if busy { 12.5 } else { 0.1 });
    let _ = writeln!(text, "MemTotal: 2113331240 kB\nMemAvailable: 1900000000 kB");
    let _ = writeln!(text, "cpu  {} 0 0 {} 0 0 0 0 0 0", ticks / 8, ticks * 7 / 8);
    text += &links(node, busy, t);
    text += "#gpus\n";
    for gpu in 0..GPUS {
        let (power, mem, util, clock, reasons) =
            if busy { (600.0 + wave(gpu), 70_210, 100, 1980, 0x0) } else { (70.0, 4, 0, 345, 0x1) };
        let temp = if busy { 60 + (wave(gpu) / 8.0) as u64 } else { 31 };
        let ecc = u64::from(node % 97 == 5 && gpu == 3);
        let reasons = if node % 61 == 7 && gpu == 1 { 0x40 } else { reasons };
        let _ = writeln!(
            text,
            "{gpu}, GPU-{node:04x}{gpu:04x}-0000-4000-8000-123456789abc, NVIDIA H100 80GB HBM3, 00000000:{gpu:02X}:00.0, {power:.2}, 700.00, {mem}, 81559, {util}, {temp}, {clock}, {ecc}, 0x{reasons:016X}, Disabled, [N/A], 5, 16"
        );
    }
    text += "\n#exit 0\n#apps\n";
    if busy {
        for gpu in 0..GPUS {
            let _ = writeln!(
                text,
                "GPU-{node:04x}{gpu:04x}-0000-4000-8000-123456789abc, {}, /opt/vidtui/vidtui-train, 70200",
                4100 + gpu
            );
        }
    }
    text += "\n#exit 0\n";
    if busy {
        text += "#processes\n";
        for gpu in 0..GPUS {
            let _ =
                writeln!(text, "{} ada {} /opt/vidtui/vidtui-train rank --local-rank {gpu}", 4100 + gpu, number * 2);
        }
        text += "#usage\n";
        // Each process uses one and a half cores and 9 GiB.
        let ticks = (t * 150.0) as u64;
        for gpu in 0..GPUS {
            let _ = writeln!(text, "{} {ticks} 0 {}", 4100 + gpu, 9 << 20);
        }
        text += "#environment\n";
        for gpu in 0..GPUS {
            let _ = writeln!(text, "/proc/{}/environ:RANK={}", 4100 + gpu, node * GPUS + gpu);
        }
    }
    let _ = writeln!(text, "#end {number}");
    text
}

/// Returns the counters of a network interface and two InfiniBand ports. A busy node exchanges about 11 GB/s over InfiniBand and reads
/// 0.2 GB/s of data. Counters grow with the time `t`, so that rates are the same at any speed.
fn links(node: usize, busy: bool, t: f64) -> String {
    let share = if busy { 1.0 } else { 1e-4 };
    // The integral of a rate that moves around its mean by a third.
    let sent = |mean: f64, period_s: f64| {
        let phase = t / period_s * std::f64::consts::TAU + node as f64;
        (share * mean * (t - phase.cos() * period_s / std::f64::consts::TAU / 3.0)) as u64
    };
    let mut text = format!("net eth0 {} {}\n", sent(0.2e9, 40.0), sent(0.01e9, 25.0));
    for adapter in 0..2 {
        // The counters of InfiniBand count words of four bytes.
        let _ = writeln!(text, "ib mlx5_{adapter}/1 {} {}", sent(5.5e9, 60.0) / 4, sent(5.4e9, 60.0) / 4);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_nodes_are_given_by_their_number_and_speed() {
        let read = |text: &str| text.parse().map(|Simulation { count, speed }| (count, speed));
        assert_eq!((read("128"), read("8@100")), (Ok((128, 1.0)), Ok((8, 100.0))));
        for text in ["", "x", "8@", "8@0", "8@-1", "8@inf", "-1"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_frame_of_a_simulated_node_is_parsed_like_a_real_one() {
        let frame = Frames::new(GpuQuery::default()).push(text(5, 3, 1_763_612_345.5).as_bytes()).remove(0);
        assert_eq!((frame.gpus.len(), frame.smi_errors.len()), (GPUS, 0));
        let owner = frame.gpus[2].processes[0].owner.as_ref().unwrap();
        assert_eq!((owner.user.as_str(), owner.rank), ("ada", Some(42)));
        assert_eq!(cluster::fault::faults(&frame).len(), 1);
        assert!(frame.host.cpu.is_some() && frame.host.load.is_some());
    }

    #[test]
    fn a_busy_simulated_node_uses_infiniband_more_than_the_network_and_an_idle_one_neither() {
        use cluster::{LinkKind, Rate};
        let rates = |node: usize| {
            let frame = |t| Frames::new(GpuQuery::default()).push(text(node, 3, t).as_bytes()).remove(0);
            let (before, now) = (frame(1_763_612_345.5), frame(1_763_612_347.5));
            let rate = |kind| Rate::between(&before, &now, kind).unwrap().rx_bytes_per_s;
            (rate(LinkKind::Network), rate(LinkKind::Infiniband))
        };
        let (network, infiniband) = rates(5);
        assert!((1e8..4e8).contains(&network) && (6e9..16e9).contains(&infiniband), "{network} {infiniband}");
        assert!(rates(15).1 < 1e7);
    }
}

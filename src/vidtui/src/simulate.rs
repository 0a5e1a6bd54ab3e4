//! Simulated nodes, to try the screens without a cluster and to measure the cost of a thousand nodes.
//!
//! They send the same text as real nodes, so that the parsers are tested too.

use cluster::nvidia_smi::GpuQuery;
use cluster::probe::{Frame, Frames};
use cluster::{Node, NodeId};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// GPUs per node.
const GPUS: usize = 8;

/// The table of nvidia-smi on every simulated node.
pub const TABLE: &str = "Simulated nodes have no nvidia-smi.\n";

/// Returns the simulated nodes.
pub fn nodes(count: usize) -> Vec<Node> {
    (1..=count).map(|i| Node { id: NodeId::from_hostname(&format!("sim{i:04}")), slots: GPUS }).collect()
}

/// Simulated nodes, which send their frames one after the other.
pub struct Nodes {
    nodes: Vec<(NodeId, Frames)>,
    every: Duration,
    began: Instant,
    sent: u64,
}

impl Nodes {
    /// Makes nodes that each send one frame per `every`, spread over that time.
    pub fn new(count: usize, every: Duration) -> Self {
        let nodes = nodes(count).into_iter().map(|node| (node.id, Frames::new(GpuQuery::default()))).collect();
        Self { nodes, every, began: Instant::now(), sent: 0 }
    }

    /// Returns the time until the next frame, at least 20 ms.
    pub fn pause(&self) -> Duration {
        (self.every / self.nodes.len().max(1) as u32).max(Duration::from_millis(20))
    }

    /// Returns the frames since the last call.
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
    let _ = writeln!(text, "cpu  {} 0 0 {} 0 0 0 0 0 0\n#gpus", ticks / 8, ticks * 7 / 8);
    for gpu in 0..GPUS {
        let (power, mem, util, clock, reasons) =
            if busy { (600.0 + wave(gpu), 70_210, 100, 1980, 0x0) } else { (70.0, 4, 0, 345, 0x1) };
        let temp = if busy { 60 + (wave(gpu) / 8.0) as u64 } else { 31 };
        let ecc = u64::from(node % 97 == 5 && gpu == 3);
        let reasons = if node % 61 == 7 && gpu == 1 { 0x40 } else { reasons };
        let _ = writeln!(
            text,
            "{gpu}, GPU-{node:04x}{gpu:04x}-0000-4000-8000-123456789abc, NVIDIA H100 80GB HBM3, 00000000:{gpu:02X}:00.0, {power:.2}, 700.00, {mem}, 81559, {util}, {temp}, {clock}, {ecc}, 0x{reasons:016X}, Disabled"
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
        text += "#environment\n";
        for gpu in 0..GPUS {
            let _ = writeln!(text, "/proc/{}/environ:RANK={}", 4100 + gpu, node * GPUS + gpu);
        }
    }
    let _ = writeln!(text, "#end {number}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_of_a_simulated_node_is_parsed_like_a_real_one() {
        let frame = Frames::new(GpuQuery::default()).push(text(5, 3, 1_763_612_345.5).as_bytes()).remove(0);
        assert_eq!((frame.gpus.len(), frame.smi_errors.len()), (GPUS, 0));
        let owner = frame.gpus[2].processes[0].owner.as_ref().unwrap();
        assert_eq!((owner.user.as_str(), owner.rank), ("ada", Some(42)));
        assert_eq!(cluster::fault::faults(&frame).len(), 1);
        assert!(frame.host.cpu.is_some() && frame.host.load.is_some());
    }
}

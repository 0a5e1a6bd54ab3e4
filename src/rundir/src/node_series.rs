//! The samples of all nodes of a run, joined into one series over time.

use crate::NodeSample;
use cluster::{NodeId, Reading};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Seconds that one point spans: every node samples about once within it.
const SPAN_S: f64 = 5.0;
const GIB: f64 = (1u64 << 30) as f64;
/// Points do not wait for a node that is this many seconds behind the others, because it may be lost.
const BEHIND_S: f64 = 30.0;

/// The samples of all nodes within five seconds. A quantity that no node measured is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct NodePoint {
    /// The middle of the five seconds, Unix seconds.
    pub t: f64,
    /// GPU power.
    pub power_w: Option<Spread>,
    /// GPU memory in use.
    pub gpu_mem_gib: Option<Spread>,
    /// GPU utilization, in percent.
    #[serde(default)]
    pub util_pct: Option<Spread>,
    /// GPU temperature, °C.
    #[serde(default)]
    pub temp_c: Option<Spread>,
    /// CPU utilization of the nodes, in percent.
    pub cpu_pct: Option<Spread>,
    /// Memory in use on the nodes.
    pub mem_gib: Option<Spread>,
    /// GiB per second that the network interfaces of a node receive.
    #[serde(default)]
    pub net_rx_gib_per_s: Option<Spread>,
    /// GiB per second that the network interfaces of a node send.
    #[serde(default)]
    pub net_tx_gib_per_s: Option<Spread>,
    /// GiB per second that the InfiniBand ports of a node receive.
    #[serde(default)]
    pub ib_rx_gib_per_s: Option<Spread>,
    /// GiB per second that the InfiniBand ports of a node send.
    #[serde(default)]
    pub ib_tx_gib_per_s: Option<Spread>,
}

/// The mean and the extremes of several values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
    /// Whether they come from several GPUs or nodes. Extremes are shown only then.
    pub of_several: bool,
}

/// The sums of the quantities of a point, in the order of the fields of [`NodePoint`].
type Sums = [Sum; 10];

/// Joins the samples of several nodes into points in the order of time. The order in which the files are read does not
/// matter.
#[derive(Debug, Clone, Default)]
pub struct NodeSeries {
    open: BTreeMap<i64, Sums>,
    newest: BTreeMap<NodeId, f64>,
    taken: Option<i64>,
}

#[derive(Debug, Clone, Copy)]
struct Sum {
    count: u64,
    sum: f64,
    min: f64,
    max: f64,
    of_several: bool,
}

impl Default for Sum {
    fn default() -> Self {
        Self { count: 0, sum: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY, of_several: false }
    }
}

impl Sum {
    fn add(&mut self, value: f64, of_several: bool) {
        self.of_several |= of_several;
        self.count += 1;
        self.sum += value;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    fn spread(&self) -> Option<Spread> {
        let Self { count, sum, min, max, of_several } = *self;
        (count > 0).then(|| Spread { mean: sum / count as f64, min, max, of_several })
    }
}

impl NodeSeries {
    /// Adds a sample. A sample whose point was taken already is ignored.
    pub fn push(&mut self, node: &NodeId, sample: &NodeSample) {
        let newest = self.newest.entry(node.clone()).or_insert(sample.t);
        *newest = newest.max(sample.t);
        let at = (sample.t / SPAN_S).floor() as i64;
        if self.taken.is_some_and(|taken| at <= taken) {
            return;
        }
        let [power, gpu_mem, util, temp, cpu, mem, net_rx, net_tx, ib_rx, ib_tx] = self.open.entry(at).or_default();
        let gib = |mib: u64| mib as f64 / 1024.0;
        let gib_of = |bytes: u64| bytes as f64 / GIB;
        let nodes = self.newest.len() > 1;
        let gpus = &sample.gpus;
        let several = nodes || gpus.of_ranks(&gpus.power_w).count() > 1;
        gpus.of_ranks(&gpus.power_w).filter_map(Reading::value).for_each(|w| power.add(w, several));
        gpus.of_ranks(&gpus.mem_used_mib).filter_map(Reading::value).for_each(|mib| gpu_mem.add(gib(mib), several));
        gpus.of_ranks(&gpus.util_pct).filter_map(Reading::value).for_each(|pct| util.add(pct, several));
        gpus.of_ranks(&gpus.temp_c).filter_map(Reading::value).for_each(|degrees| temp.add(degrees, several));
        sample.cpu_pct.into_iter().for_each(|pct| cpu.add(pct, nodes));
        sample.mem_used_mib.into_iter().for_each(|mib| mem.add(gib(mib), nodes));
        sample.net_rx_bytes_per_s.into_iter().for_each(|bytes| net_rx.add(gib_of(bytes), nodes));
        sample.net_tx_bytes_per_s.into_iter().for_each(|bytes| net_tx.add(gib_of(bytes), nodes));
        sample.ib_rx_bytes_per_s.into_iter().for_each(|bytes| ib_rx.add(gib_of(bytes), nodes));
        sample.ib_tx_bytes_per_s.into_iter().for_each(|bytes| ib_tx.add(gib_of(bytes), nodes));
    }

    /// Takes the points that are complete: every node has a later sample, or is more than 30 s behind the others.
    pub fn take(&mut self) -> Vec<NodePoint> {
        let newest = self.newest.values().copied().fold(f64::NEG_INFINITY, f64::max);
        let waited_for = self.newest.values().copied().filter(|t| *t > newest - BEHIND_S);
        let past = waited_for.fold(f64::INFINITY, f64::min);
        if !past.is_finite() {
            return Vec::new();
        }
        let later = self.open.split_off(&((past / SPAN_S).floor() as i64));
        self.close(later)
    }

    /// Takes all points that are left.
    pub fn take_rest(&mut self) -> Vec<NodePoint> {
        self.close(BTreeMap::new())
    }

    fn close(&mut self, later: BTreeMap<i64, Sums>) -> Vec<NodePoint> {
        let done = std::mem::replace(&mut self.open, later);
        self.taken = done.keys().next_back().copied().or(self.taken);
        let point = |(at, sums): (i64, Sums)| {
            let [power, gpu_mem, util, temp, cpu, mem, net_rx, net_tx, ib_rx, ib_tx] = sums;
            NodePoint {
                t: (at as f64 + 0.5) * SPAN_S,
                power_w: power.spread(),
                gpu_mem_gib: gpu_mem.spread(),
                util_pct: util.spread(),
                temp_c: temp.spread(),
                cpu_pct: cpu.spread(),
                mem_gib: mem.spread(),
                net_rx_gib_per_s: net_rx.spread(),
                net_tx_gib_per_s: net_tx.spread(),
                ib_rx_gib_per_s: ib_rx.spread(),
                ib_tx_gib_per_s: ib_tx.spread(),
            }
        };
        done.into_iter().map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::node;
    use crate::node_sample::tests::frame;

    fn sample(t: f64, gpus: usize) -> NodeSample {
        NodeSample::new(1, &frame(t, gpus), None)
    }

    #[test]
    fn samples_of_several_nodes_are_joined_without_gpus_that_have_no_reading() {
        let mut points = NodeSeries::default();
        points.push(&node("a"), &sample(101.0, 3));
        points.push(&node("b"), &sample(103.0, 2));
        let all = points.take_rest();
        let [point] = &all[..] else { panic!("{all:?}") };
        let power = point.power_w.unwrap();
        assert_eq!((point.t, power.min, power.max), (102.5, 600.2, 601.2));
        assert!((power.mean - (600.2 + 601.2 + 600.2) / 3.0).abs() < 1e-9);
        assert_eq!((point.mem_gib.unwrap().mean, point.cpu_pct), (1.0, None));
    }

    #[test]
    fn one_gpu_of_one_node_has_no_extremes() {
        let of_several = |samples: &[(&str, f64, usize)]| {
            let mut points = NodeSeries::default();
            samples.iter().for_each(|(name, t, gpus)| points.push(&node(name), &sample(*t, *gpus)));
            let point = points.take_rest()[0];
            (point.gpu_mem_gib.unwrap().of_several, point.mem_gib.unwrap().of_several)
        };
        assert_eq!(of_several(&[("a", 101.0, 1), ("a", 104.0, 1)]), (false, false));
        assert_eq!(of_several(&[("a", 101.0, 2)]), (true, false));
        assert_eq!(of_several(&[("a", 101.0, 1), ("b", 101.0, 1)]), (true, true));
    }

    #[test]
    fn network_and_infiniband_rates_are_joined_over_nodes() {
        let mut points = NodeSeries::default();
        for (name, net, ib) in [("a", 1u64 << 30, None), ("b", 3 << 30, Some(1u64 << 33))] {
            let rates = NodeSample { net_rx_bytes_per_s: Some(net), ib_tx_bytes_per_s: ib, ..sample(101.0, 1) };
            points.push(&node(name), &rates);
        }
        let point = points.take_rest()[0];
        let network = point.net_rx_gib_per_s.unwrap();
        assert_eq!((network.mean, network.min, network.max, network.of_several), (2.0, 1.0, 3.0, true));
        assert_eq!(point.ib_tx_gib_per_s.map(|rate| rate.mean), Some(8.0));
        assert_eq!((point.net_tx_gib_per_s, point.ib_rx_gib_per_s), (None, None));
    }

    #[test]
    fn gpus_that_no_rank_uses_are_left_out() {
        let mut points = NodeSeries::default();
        let mut on_one = sample(101.0, 4);
        on_one.gpus.used = vec![1];
        points.push(&node("a"), &on_one);
        let point = points.take_rest()[0];
        let one = |value| Some(Spread { mean: value, min: value, max: value, of_several: false });
        assert_eq!((point.power_w, point.gpu_mem_gib), (one(601.2), one(70_211.0 / 1024.0)));
    }

    #[test]
    fn a_point_is_complete_once_every_node_has_a_later_sample() {
        let mut points = NodeSeries::default();
        for t in [100.0, 105.0, 110.0, 115.0] {
            points.push(&node("a"), &sample(t, 2));
        }
        points.push(&node("b"), &sample(101.0, 2));
        assert_eq!(points.take(), []);
        points.push(&node("b"), &sample(106.0, 2));
        let times = |points: Vec<NodePoint>| points.iter().map(|point| point.t).collect::<Vec<_>>();
        assert_eq!(times(points.take()), [102.5]);
        points.push(&node("b"), &sample(102.0, 2));
        assert_eq!(times(points.take_rest()), [107.5, 112.5, 117.5], "a sample that comes too late changes nothing");
    }

    #[test]
    fn a_node_without_samples_does_not_delay_the_others() {
        let mut points = NodeSeries::default();
        points.push(&node("lost"), &sample(100.0, 2));
        for i in 0..20 {
            points.push(&node("a"), &sample(100.0 + 5.0 * f64::from(i), 2));
        }
        assert_eq!(points.take().len(), 19);
    }
}

//! The charts of a run: title, unit and lines of each, in one table for the run screen and for exported files.

use crate::effect::Chart;
use crate::series::{MAX_RANK_LINES, NodeMetric, Statistic, Track};
use units::Unit;

/// How a chart is labelled, and what it draws.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChartLabels {
    /// Its heading on the screen, and its y axis in a file.
    pub title: &'static str,
    /// The unit of the y axis.
    pub unit: Unit,
    /// The chart's part of an exported file's name.
    pub file_name: &'static str,
    /// What it draws, first line first.
    pub metrics: &'static [ChartMetric],
}

/// One metric of a chart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChartMetric {
    /// Its name for `vidtui export --metric`.
    pub name: &'static str,
    /// Its name in the legend.
    pub label: &'static str,
    /// The letter at the end of its line, so that lines can be distinguished without colour.
    pub mark: char,
}

const fn labels(
    title: &'static str,
    unit: Unit,
    file_name: &'static str,
    metrics: &'static [ChartMetric],
) -> ChartLabels {
    ChartLabels { title, unit, file_name, metrics }
}

const fn metric(name: &'static str, label: &'static str, mark: char) -> ChartMetric {
    ChartMetric { name, label, mark }
}

const LOSS: ChartLabels = labels("Loss", Unit::Plain, "loss", &[metric("loss", "loss", 'l')]);
const LEARNING_RATE: ChartLabels = labels(
    "Learning rate",
    Unit::Rate,
    "learning-rate",
    &[metric("lr", "weights", 'w'), metric("lr_ttt", "TTT layers", 't')],
);
const GRAD_NORM: ChartLabels =
    labels("Gradient norm", Unit::Plain, "gradient-norm", &[metric("grad_norm", "before clipping", 'n')]);
const STEP_TIME: ChartLabels = labels(
    "Step time",
    Unit::Seconds,
    "step-time",
    &[metric("step_s", "step", 's'), metric("data_s", "data wait", 'd')],
);
const MEMORY: ChartLabels = labels("Memory", Unit::Gib, "memory", &[metric("mem_gib", "rank", 'r')]);
const WEIGHT_NORM: ChartLabels =
    labels("Weight norm", Unit::Plain, "weight-norm", &[metric("weight_norm", "weight norm", 'n')]);
const MFU: ChartLabels = labels("MFU", Unit::Share, "mfu", &[metric("mfu", "MFU", 'u')]);
const GPU_POWER: ChartLabels = labels("GPU power", Unit::Watts, "power", &[metric("power", "mean", 'm')]);
const CPU: ChartLabels = labels("CPU", Unit::Share, "power", &[metric("cpu", "mean", 'm')]);
const GPU_MEMORY: ChartLabels = labels("GPU memory", Unit::Gib, "node-memory", &[metric("memory", "mean", 'm')]);
const NODE_MEMORY: ChartLabels = labels("Node memory", Unit::Gib, "node-memory", &[metric("memory", "mean", 'm')]);

impl Chart {
    /// Returns the labels of a chart. Two charts show the GPUs of a run, or its nodes where there are no GPUs.
    pub fn labels(self, has_gpus: bool) -> ChartLabels {
        match self {
            Self::Loss => LOSS,
            Self::LearningRate => LEARNING_RATE,
            Self::GradNorm => GRAD_NORM,
            Self::StepTime => STEP_TIME,
            Self::Memory => MEMORY,
            Self::WeightNorm => WEIGHT_NORM,
            Self::Mfu => MFU,
            Self::Power if has_gpus => GPU_POWER,
            Self::Power => CPU,
            Self::NodeMemory if has_gpus => GPU_MEMORY,
            Self::NodeMemory => NODE_MEMORY,
        }
    }
}

impl ChartMetric {
    /// Returns the lines that the run screen draws of this metric: what each shows, its letter and its name.
    pub fn lines(&self) -> Vec<(Track, char, String)> {
        let one = |track: Track| vec![(track, self.mark, self.label.to_owned())];
        let of_nodes = |node_metric: NodeMetric| {
            let statistics = [
                (Statistic::Mean, self.mark, self.label),
                (Statistic::Highest, 'h', "highest"),
                (Statistic::Lowest, 'l', "lowest"),
            ];
            statistics
                .map(|(statistic, mark, label)| (Track::OfNodes(node_metric, statistic), mark, label.to_owned()))
                .to_vec()
        };
        match self.name {
            "loss" => one(Track::Loss),
            "lr" => one(Track::Lr),
            "lr_ttt" => one(Track::LrTtt),
            "grad_norm" => one(Track::GradNorm),
            "weight_norm" => one(Track::WeightNorm),
            "mfu" => one(Track::Mfu),
            "step_s" => one(Track::StepTime),
            "data_s" => one(Track::DataTime),
            "power" => of_nodes(NodeMetric::Power),
            "cpu" => of_nodes(NodeMetric::Cpu),
            "memory" => of_nodes(NodeMetric::Memory),
            "mem_gib" => (0..MAX_RANK_LINES)
                .map(|rank| (Track::Memory(rank), char::from(b'0' + rank as u8), format!("{} {rank}", self.label)))
                .chain([
                    (Track::MemoryHighest, 'h', format!("highest {}", self.label)),
                    (Track::MemoryLowest, 'l', format!("lowest {}", self.label)),
                ])
                .collect(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::layout::Panel;

    #[test]
    fn every_metric_of_a_chart_has_a_line_on_the_run_screen() {
        for panel in Panel::ALL {
            let Panel::Chart(chart) = panel else { continue };
            for metric in [true, false].into_iter().flat_map(|has_gpus| chart.labels(has_gpus).metrics) {
                assert!(!metric.lines().is_empty(), "{}", metric.name);
            }
        }
    }
}

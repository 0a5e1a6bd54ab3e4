//! Arguments of the commands that export charts and replay sessions.

use crate::workspace::LATEST;
use camino::Utf8PathBuf;
use clap::Args as Arguments;

/// `vidtui export`.
#[derive(Debug, Arguments)]
pub struct ExportArgs {
    /// The run
    #[arg(default_value = LATEST)]
    pub run: String,
    /// The file to write. The extension selects the format: .svg, .png or .csv. With `--tensorboard`, a folder
    #[arg(long, value_name = "FILE")]
    pub out: Utf8PathBuf,
    /// Writes TensorBoard event files of the whole run to the folder `--out`, as `log.tensorboard` does while a run trains
    #[arg(long)]
    pub tensorboard: bool,
    /// Draws a chart of the console (repeatable)
    #[arg(long, value_enum)]
    pub chart: Vec<ChartArg>,
    /// Draws or tabulates a metric (repeatable) [default: the main charts of the run in a picture, all metrics in a table]
    #[arg(long, value_name = "METRIC")]
    pub metric: Vec<String>,
    /// Draws this run in the same chart, to compare it (repeatable, at most 7) [default metric: loss]
    #[arg(long, value_name = "RUN")]
    pub with: Vec<String>,
    /// Unit of the x axis [default: step]
    #[arg(long, value_enum)]
    pub x: Option<XArg>,
    /// Starts at this step, or at this second with `--x time` [default: the first]
    #[arg(long, value_name = "X")]
    pub from: Option<f64>,
    /// Ends with this step, or with this second with `--x time` [default: the last]
    #[arg(long, value_name = "X")]
    pub to: Option<f64>,
    /// Draws the exponential moving average over the raw values, 0 <= WEIGHT < 1. The console uses 0.9 and 0.99
    #[arg(long, value_name = "WEIGHT")]
    pub smooth: Option<f64>,
    /// Draws a logarithmic y axis
    #[arg(long)]
    pub log: bool,
    /// Replaces an existing file, or the event files in a folder
    #[arg(long)]
    pub force: bool,
}

/// The charts of the console, with the names that its exported files have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ChartArg {
    /// Training loss and mean validation loss
    Loss,
    /// Validation loss at each noise level
    ValidationLoss,
    /// Learning rates of the weights and of TTT layers
    LearningRate,
    /// Norm of the gradient before clipping
    GradientNorm,
    /// Norm of the trained weights
    WeightNorm,
    /// Model FLOP utilization
    Mfu,
    /// Seconds per step and waiting for data
    StepTime,
    /// Memory of each rank
    Memory,
    /// Items per second of an encode, by stage
    Items,
    /// Clips of an encode that wait for decoding or for the VAE
    Queue,
    /// Data that an encode has made, by stage
    Data,
    /// Items of an encode that failed
    Failed,
    /// GPU power, or CPU use on nodes without GPUs
    Power,
    /// GPU utilization
    Utilization,
    /// GPU memory, or memory of nodes without GPUs
    NodeMemory,
}

impl From<ChartArg> for rundir::Chart {
    fn from(arg: ChartArg) -> Self {
        match arg {
            ChartArg::Loss => Self::Loss,
            ChartArg::ValidationLoss => Self::ValidationLoss,
            ChartArg::LearningRate => Self::LearningRate,
            ChartArg::GradientNorm => Self::GradNorm,
            ChartArg::WeightNorm => Self::WeightNorm,
            ChartArg::Mfu => Self::Mfu,
            ChartArg::StepTime => Self::StepTime,
            ChartArg::Memory => Self::Memory,
            ChartArg::Items => Self::ItemRate,
            ChartArg::Queue => Self::Queue,
            ChartArg::Data => Self::ItemBytes,
            ChartArg::Failed => Self::FailedItems,
            ChartArg::Power => Self::Power,
            ChartArg::Utilization => Self::Utilization,
            ChartArg::NodeMemory => Self::NodeMemory,
        }
    }
}

/// The x axis of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum XArg {
    /// Optimizer steps
    Step,
    /// Seconds since the first step
    Time,
    /// Tokens that were trained on
    Tokens,
}

impl From<XArg> for ui::series::Axis {
    fn from(arg: XArg) -> Self {
        match arg {
            XArg::Step => Self::Step,
            XArg::Time => Self::Time,
            XArg::Tokens => Self::Tokens,
        }
    }
}

/// `vidtui replay`.
#[derive(Debug, Arguments)]
pub struct ReplayArgs {
    /// The recording
    pub file: Utf8PathBuf,
    /// Prints the last screen as text, at this size in columns and rows, instead of playing
    #[arg(long, value_name = "COLSxROWS")]
    pub screen: Option<String>,
    /// Factor of the playing speed
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", conflicts_with = "screen")]
    pub speed: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn the_charts_have_the_names_of_the_files_that_the_console_exports() {
        for chart in ChartArg::value_variants() {
            let name = chart.to_possible_value().unwrap().get_name().to_owned();
            assert_eq!(name, rundir::Chart::from(*chart).info(true).name);
        }
    }
}

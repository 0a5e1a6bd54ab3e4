//! The panels beside and below the large chart of a training run: the available ones, and those that the user has
//! picked.

use crate::charts;
use crate::layout::Panel;
use crate::series::{Series, Track};
use crate::text;
use rundir::{Chart, METRICS, find_metric};
use std::collections::BTreeSet;
use units::Unit;

/// The panels that can be picked for every run, in the default order. Those that depend on the run follow: see
/// [`pickable`].
pub const PICKABLE: [Panel; 12] = [
    Panel::Chart(Chart::LearningRate),
    Panel::Chart(Chart::GradNorm),
    Panel::Chart(Chart::StepTime),
    Panel::Chart(Chart::Memory),
    Panel::Chart(Chart::WeightNorm),
    Panel::Chart(Chart::Mfu),
    Panel::Ranks,
    Panel::Chart(Chart::ValidationLoss),
    Panel::Chart(Chart::Power),
    Panel::Chart(Chart::Utilization),
    Panel::Chart(Chart::NodeMemory),
    Panel::Recipe,
];

/// The largest number of columns of a grid of panels.
pub const MOST_COLUMNS: u8 = 4;

/// The panels of training runs and their layout, as the user picked them. They are saved with the session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PanelChoice {
    /// The names of the picked panels in their order; `None` for the default panels.
    pub picked: Option<Vec<String>>,
    /// The number of columns of the panel grid; 0 or 1 for the default layout.
    pub columns: u8,
    /// The names of the charts with a logarithmic y axis.
    pub log_y: BTreeSet<String>,
}

impl PanelChoice {
    /// Returns the picked panels that the run has, in their order; `None` for the default panels. Picked panels that
    /// the run lacks are skipped.
    pub fn panels(&self, series: &Series) -> Option<Vec<Panel>> {
        self.picked.as_ref().map(|names| names.iter().filter_map(|name| find(name, series)).collect())
    }

    /// Returns whether a chart has a logarithmic y axis.
    pub fn is_log(&self, panel: Panel, series: &Series) -> bool {
        self.log_y.contains(&name(panel, series))
    }

    /// Turns the logarithmic y axis of a chart on or off.
    pub fn toggle_log(&mut self, panel: Panel, series: &Series) {
        let name = name(panel, series);
        if !self.log_y.remove(&name) {
            self.log_y.insert(name);
        }
    }
}

/// Returns the panels that can be picked for a run: those of every run, the metrics that this run has measured, and
/// its own series.
pub fn pickable(series: &Series) -> Vec<Panel> {
    let has_values = |metric: &usize| charts::curves(*metric, false).iter().any(|curve| series.has_values(curve.track));
    let has_power = !series.nodes().column(Track::of("power")).is_empty();
    let metrics = (0..METRICS.len()).filter(|metric| !has_chart(*metric, has_power) && has_values(metric));
    let metrics = metrics.map(Panel::Metric);
    PICKABLE.into_iter().chain(metrics).chain((0..series.names().len()).map(Panel::Named)).collect()
}

/// Returns whether a chart panel already shows this metric, so that it needs no panel of its own.
fn has_chart(metric: usize, has_power: bool) -> bool {
    let Some(line) = METRICS[metric].line else { return false };
    let is_first =
        |has_power: bool| line.chart.metrics(has_power).next().is_some_and(|first| first.name == METRICS[metric].name);
    line.chart == Chart::ValidationLoss || is_first(true) || is_first(has_power)
}

const METRIC: &str = "metric:";
const SERIES: &str = "series:";

/// Returns the name of a panel in files.
pub fn name(panel: Panel, series: &Series) -> String {
    match panel {
        Panel::Chart(chart) => chart.info(true).name.to_owned(),
        Panel::Metric(metric) => format!("{METRIC}{}", METRICS[metric].name),
        Panel::Named(number) => format!("{SERIES}{}", series.names().get(number).map_or("", String::as_str)),
        Panel::Ranks => "ranks".to_owned(),
        Panel::Recipe => "recipe".to_owned(),
        Panel::Pipeline => "pipeline".to_owned(),
        Panel::Samples => "samples".to_owned(),
        Panel::Checkpoints => "checkpoints".to_owned(),
        Panel::Events => "events".to_owned(),
    }
}

/// Returns the panel with this name, if the run has it and it can be picked. Other names come from another run or
/// another version.
pub fn find(wanted: &str, series: &Series) -> Option<Panel> {
    if let Some(metric) = wanted.strip_prefix(METRIC) {
        return find_metric(metric).map(|(index, _)| Panel::Metric(index));
    }
    if let Some(own) = wanted.strip_prefix(SERIES) {
        return series.names().iter().position(|known| known == own).map(Panel::Named);
    }
    PICKABLE.into_iter().find(|panel| name(*panel, series) == wanted)
}

/// Returns the title of a panel. `has_gpu_power` is true if a node of the run reports GPU power.
pub fn title(panel: Panel, series: &Series, has_gpu_power: bool) -> String {
    match panel {
        Panel::Chart(chart) => chart.info(has_gpu_power).title.to_owned(),
        Panel::Metric(metric) => text::capitalized(METRICS[metric].label),
        Panel::Named(number) => series.names().get(number).map_or_else(String::new, |name| crate::text::clean(name)),
        Panel::Ranks => "Ranks".to_owned(),
        Panel::Recipe => "Recipe".to_owned(),
        Panel::Pipeline => "Stages".to_owned(),
        Panel::Samples => "Samples".to_owned(),
        Panel::Checkpoints => "Checkpoints".to_owned(),
        Panel::Events => "Events".to_owned(),
    }
}

/// Returns the unit of a chart.
pub fn unit(panel: Panel, has_gpu_power: bool) -> Unit {
    match panel {
        Panel::Chart(chart) => chart.info(has_gpu_power).unit,
        Panel::Metric(metric) => METRICS[metric].unit,
        _ => Unit::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::sample;
    use rundir::MetricSample;

    fn series() -> Series {
        let mut series = Series::default();
        let other = [("train/aux".to_owned(), Some(0.5))].into();
        series.push(&MetricSample { tokens_per_s: 900.0, forward_s: 0.3, other, ..sample(1, 1) });
        series
    }

    #[test]
    fn every_panel_of_a_run_is_read_back_from_its_name() {
        let series = series();
        for panel in pickable(&series) {
            assert_eq!(find(&name(panel, &series), &series), Some(panel));
        }
        assert_eq!(find("of-a-newer-version", &series), None);
        assert_eq!(find("series:of/another/run", &series), None);
        let choice = PanelChoice {
            picked: Some(vec!["series:train/aux".into(), "x".into(), "memory".into()]),
            ..Default::default()
        };
        assert_eq!(choice.panels(&series), Some(vec![Panel::Named(0), Panel::Chart(Chart::Memory)]));
    }

    #[test]
    fn metrics_that_were_measured_and_series_of_an_imported_run_can_be_picked() {
        let series = series();
        let names: Vec<String> = pickable(&series).into_iter().map(|panel| name(panel, &series)).collect();
        for expected in ["metric:tokens_per_s", "metric:forward_s", "metric:data_s", "series:train/aux"] {
            assert!(names.iter().any(|name| name == expected), "{expected} is not among {names:?}");
        }
        // The large chart shows the loss, and this run does not log the other metrics.
        for hidden in ["metric:loss", "metric:mfu", "metric:backward_s", "metric:power"] {
            assert!(!names.iter().any(|name| name == hidden), "{hidden}");
        }
    }
}

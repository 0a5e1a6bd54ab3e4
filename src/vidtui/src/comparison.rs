//! Several runs beside each other: their settings, and charts with one panel per metric, and one curve per run, aligned by steps, time or tokens.

use crate::chart_export::{Chart, Curve, Panel, Scale, Weight};
use crate::command_error::CommandError;
use crate::curves::{self, Column, Measured, View, curves, smoothed, x_axis};
use crate::workspace::Workspace;
use recipe::shown_settings;
use rundir::{Attempt, Metric, MetricSource, Run, RunDir};
use runstate::RunSummary;
use units::Unit;

/// A run of the comparison.
pub struct ComparedRun {
    /// The description, the state and the progress of the run.
    pub summary: RunSummary,
    /// The metrics that the run has logged.
    pub measured: Measured,
}

/// Reads a run and its metrics.
///
/// # Errors
/// A file of the run cannot be read.
pub fn read(workspace: &Workspace, dir: &RunDir) -> Result<ComparedRun, CommandError> {
    let (summary, _) = workspace.summary(dir)?;
    let measured = curves::read(&summary.dir)?;
    Ok(ComparedRun { summary, measured })
}

/// Returns the settings of a run with their values, in the order in which a recipe is shown. The recipe of an imported run has no
/// settings of its own, so the settings in its log are returned.
///
/// * `last` — the newest attempt, which may train longer than the recipe.
pub fn settings(run: &Run, last: Option<&Attempt>) -> Vec<(String, String)> {
    match &run.imported {
        Some(imported) if !imported.config.is_empty() => imported.config.clone().into_iter().collect(),
        _ => {
            let settings = shown_settings(&newest_recipe(run, last)).into_iter();
            // The steps of a watched program may be unknown: the recipe then has the largest number that is valid.
            let is_known =
                |key: &str| key != "train.steps" || run.attached.as_ref().is_none_or(|it| it.steps.is_some());
            settings.filter(|(key, _)| is_known(key)).map(|(key, value)| (key.to_owned(), value)).collect()
        }
    }
}

/// Returns the recipe of a run with the mesh and the total steps of its newest attempt.
pub fn newest_recipe(run: &Run, last: Option<&Attempt>) -> toml::Table {
    match (last, run.recipe()) {
        (Some(last), Ok(recipe)) => last.effective(&recipe).to_table(),
        // A newer version may have written the recipe.
        _ => run.recipe.clone(),
    }
}

/// Makes a chart with one panel per metric.
pub fn chart(columns: &[Column], view: View, runs: &[ComparedRun]) -> Chart {
    let (x_label, x_unit) = x_axis(view.x);
    let names: Vec<String> = runs.iter().map(|run| ui::short_id(&run.summary.run.id).to_owned()).collect();
    let describe = |run: &ComparedRun| format!("{}: {}", run.summary.run.id, run.summary.progress().in_words());
    Chart {
        title: format!(
            "Comparison of {}: {}",
            units::counted(runs.len(), "run"),
            units::listed(&names, 4, String::clone)
        ),
        subtitle: units::listed(runs, 3, describe),
        x_label: x_label.into(),
        x_unit,
        panels: columns.iter().map(|column| panel(column, view, runs)).collect(),
        marks: Vec::new(),
    }
}

fn panel(column: &Column, view: View, runs: &[ComparedRun]) -> Panel {
    let (label, unit) = match column {
        Column::Metric(metric) => (label_of(metric), metric.unit),
        Column::Other(name) => (name.as_str(), Unit::Plain),
    };
    let mut drawn = Vec::new();
    for run in runs {
        let Some(curve) = curve(column, ui::short_id(&run.summary.run.id), &run.measured, view) else { continue };
        match view.smoothing {
            Some(weight) => {
                let average = smoothed(&curve, weight);
                // The legend has one entry per run.
                drawn.extend([Curve { weight: Weight::Raw, label: String::new(), ..curve }, average]);
            }
            None => drawn.push(curve),
        }
    }
    if let Some((from, to)) = view.window {
        drawn.iter_mut().for_each(|curve| curve.points.retain(|(x, _)| (from..=to).contains(x)));
    }
    let scale = if view.log_y { Scale::Log } else { Scale::Linear };
    Panel { label: label.to_owned(), unit, scale, curves: drawn }
}

fn label_of(metric: &Metric) -> &'static str {
    match metric.source {
        MetricSource::PerRank(_) => "highest memory of a rank",
        _ => metric.label,
    }
}

/// Returns the one curve that represents a run: without repeated steps, averaged over nodes; for a per-rank metric, the highest
/// value of all ranks. `None` if the run has no values of the column.
fn curve(column: &Column, label: &str, measured: &Measured, view: View) -> Option<Curve> {
    let all = curves(column, label, measured, view.x);
    let is_per_rank = matches!(column, Column::Metric(metric) if matches!(metric.source, MetricSource::PerRank(_)));
    let mut counted = all.into_iter().filter(|curve| curve.weight == Weight::Full);
    let mut curve = counted.next()?;
    if is_per_rank {
        for other in counted {
            for (point, (_, value)) in curve.points.iter_mut().zip(other.points) {
                point.1 = point.1.into_iter().chain(value).reduce(f64::max);
            }
        }
    }
    curve.label = label.to_owned();
    Some(curve)
}

//! Evaluates the conditions of the key tables: when an action is possible, and when the key bar shows its key.

use crate::advice;
use crate::bindings::{Action, Binding, Condition};
use crate::draft::LaunchTarget;
use crate::fleet::Sort;
use crate::layout::Panel;
use crate::model::{CompareScreen, LaunchForm, LogsScreen, Model, Purpose, RunScreen};
use crate::run_actions;
use crate::run_state::StateKind;
use crate::screens::{alerts, convert, launch, run, samples, stages};
use recipe::Task;

/// Returns whether the action of a key is possible now.
pub fn is_possible(model: &Model, binding: &Binding) -> bool {
    holds(model, binding.action, binding.when)
}

/// Returns whether the key bar shows a key now: it has a label, and its action is possible and useful.
pub fn is_shown(model: &Model, binding: &Binding) -> bool {
    !binding.label.is_empty() && is_possible(model, binding) && holds(model, binding.action, binding.shown_when)
}

/// Returns what a key does now, in a few words.
pub fn label(model: &Model, binding: &Binding) -> &'static str {
    let mut labels = binding.labels.iter();
    let now = labels.find(|(condition, _)| holds(model, binding.action, *condition));
    now.map_or(binding.label, |(_, label)| label)
}

/// Returns whether a condition of an action holds now.
fn holds(model: &Model, action: Action, condition: Condition) -> bool {
    let open = |is: fn(&RunScreen) -> bool| model.screens.run.as_ref().is_some_and(is);
    let compare = |is: fn(&CompareScreen) -> bool| model.screens.compare.as_ref().is_some_and(is);
    let form = |is: fn(&LaunchForm) -> bool| model.screens.form.as_ref().is_some_and(is);
    let logs = |is: fn(&LogsScreen) -> bool| model.screens.logs.as_ref().is_some_and(is);
    let task = |task: Task| model.target().is_some_and(|row| row.task == task);
    let input =
        |is: fn(Purpose) -> bool| model.modal.is_none() && model.input.as_ref().is_some_and(|input| is(input.purpose));
    let allowed = || run_actions::check(model, action);
    match condition {
        Condition::Always => true,
        Condition::Any(all) => all.iter().any(|one| holds(model, action, *one)),
        Condition::All(all) => all.iter().all(|one| holds(model, action, *one)),
        Condition::RunChosen => model.target().is_some(),
        Condition::RunAllows => allowed().is_ok(),
        Condition::RunMayHang => allowed().is_ok_and(advice::may_hang),
        Condition::RunFinished => allowed().is_ok_and(|row| StateKind::of(&row.state) == StateKind::Finished),
        Condition::RunOfRecipe => model.target().is_some_and(|row| row.launch.is_some()),
        Condition::RunTrains => task(Task::Train),
        Condition::RunEncodes => task(Task::Encode),
        Condition::RunSamples => samples::can_sample(model),
        Condition::RunsMarked => !model.screens.runs.marked.is_empty(),
        Condition::SeveralRunsMarked => model.screens.runs.marked.len() > 1,
        Condition::SeveralRunsListed => model.visible_runs().len() > 1,
        Condition::SeveralRuns => model.rows().len() > 1,
        Condition::SeveralRecipes => model.recipes.as_ref().is_some_and(|all| all.len() > 1),
        Condition::RecipeHidden => open(|run| run.recipe.is_some() && run.focus != Panel::Recipe),
        Condition::RanksHidden => open(|run| run.series.rank_times().ranks() > 1 && run.focus != Panel::Ranks),
        Condition::ChartEnlarged => open(|run| run.enlarged_chart().is_some()),
        Condition::PanelEnlarged => open(|run| run.enlarged),
        Condition::ChartFocused => open(|run| run.focused_chart().is_some() && !run.series.live().is_empty()),
        Condition::EventInLog => run::event_log(model).is_some(),
        Condition::VideosSampled => open(|run| !run.samples.prompts().is_empty()),
        Condition::SeveralPrompts => open(|run| run.samples.prompts().len() > 1),
        Condition::VideosPaused => open(|run| run.samples.paused),
        Condition::ChartsCompared => compare(|open| !open.recipes_only),
        Condition::StageStartable => stages::can_start(model),
        Condition::StageHasRun => stages::newest_run(model).is_some(),
        Condition::KeysOverridden => form(|form| !form.draft.sets.is_empty()),
        Condition::SeveralTargetNodes => {
            model.screens.form.as_ref().is_some_and(|form| launch::listed(&model.fleet, form).len() > 1)
        }
        Condition::SeveralTargets => form(|form| form.all_targets().len() > 1),
        Condition::CheckWaivable => form(|form| form.checks.iter().any(launch::can_waive)),
        Condition::WeightsUnconverted => form(|form| form.convert.is_some()),
        Condition::TargetLocal => form(|form| matches!(form.draft.target, LaunchTarget::Local(_))),
        Condition::ConversionReady => convert::can_start(model),
        Condition::ConversionRuns => model.screens.convert.work.is_some(),
        Condition::AlertChosen => alerts::selected(model).is_some(),
        Condition::AlertUnanswered => alerts::selected(model).is_some_and(alerts::is_unanswered),
        Condition::SeveralAlertsOpen => alerts::open_alerts(model) > 1,
        Condition::LogSearched => logs(|logs| logs.search.is_some()),
        Condition::LogOfOneRank => logs(|logs| logs.rank.is_some()),
        Condition::LogOfAllRanks => logs(|logs| logs.rank.is_none()),
        Condition::LogHasError => logs(|logs| logs.store.first_error.is_some()),
        Condition::SeveralRanks => open(|run| run.places().len() > 1),
        Condition::NodeChosen => model.selected_node().is_some(),
        Condition::NodeOpen => model.screens.node.is_some(),
        Condition::NodeSampled => model.selected_node().is_some_and(|view| view.frame.is_some()),
        Condition::SeveralNodes => model.fleet.nodes().len() > 1,
        Condition::GpusWatched => model.fleet.has_gpus(),
        Condition::OrderReversible => !matches!(model.screens.nodes.sort, Sort::Listed | Sort::Faults),
        Condition::ProcessesListed => model.screens.processes.as_ref().is_some_and(|open| !open.rows().is_empty()),
        Condition::InputLaunches => input(|purpose| purpose == Purpose::Launch),
        Condition::InputPlans => input(Purpose::plans),
        Condition::InputLive => input(Purpose::is_live),
        Condition::InputOverrides => input(|purpose| purpose == Purpose::Override),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Ui, running};

    #[test]
    fn one_of_several_conditions_is_enough_for_any_and_not_for_all() {
        const BOTH: &[Condition] = &[Condition::RunsMarked, Condition::RunAllows];
        let mut ui = Ui::with_runs(vec![running(83)]);
        assert!(!holds(&ui.model, Action::Resume, Condition::Any(BOTH)), "a running run cannot be resumed");
        ui.press("Space");
        assert!(holds(&ui.model, Action::Resume, Condition::Any(BOTH)), "the key now applies to the marked runs");
        assert!(!holds(&ui.model, Action::Resume, Condition::All(BOTH)));
    }
}

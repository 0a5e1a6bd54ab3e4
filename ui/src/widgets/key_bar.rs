//! The key bar in the last row: shows the keys that are possible now, from the key tables.

use crate::advice;
use crate::bindings::{Action, Binding};
use crate::draft::LaunchTarget;
use crate::fleet::Sort;
use crate::layout::Panel;
use crate::modals::targets;
use crate::model::{Model, Purpose, Screen, context};
use crate::run_actions;
use crate::run_state::StateKind;
use crate::screens::{alerts, convert, launch, run, samples, stages};
use crate::widgets::write;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::text::{Line, Span};
use recipe::Task;

/// Draws the key bar. Keys whose action would be refused are hidden.
pub fn draw(model: &Model, buf: &mut Buffer, area: Rect) {
    let mut spans = shown(model, area).into_iter().flat_map(|binding| item(model, binding)).collect::<Vec<_>>();
    spans.pop();
    write(model, buf, area, Line::from(spans));
}

/// Returns the action of the item at a column of the key bar.
pub fn action_at(model: &Model, area: Rect, column: u16) -> Option<Action> {
    let mut end = usize::from(area.x);
    let under = |binding: &&Binding| {
        end += item_width(model, binding);
        // Two blanks follow an item.
        usize::from(column) + 2 < end
    };
    let found = shown(model, area).into_iter().find(under)?;
    (column >= area.x).then_some(found.action)
}

/// Returns the bindings whose items fit the key bar.
fn shown(model: &Model, area: Rect) -> Vec<&'static Binding> {
    let context = context(model);
    let mut own: Vec<&'static Binding> = context.bindings().iter().filter(|binding| useful(model, binding)).collect();
    if model.screen == Screen::Run && model.run.as_ref().is_some_and(|run| run.enlarged_chart().is_some()) {
        // If a chart is enlarged, the keys of charts come first.
        own.sort_by_key(|binding| !is_chart_action(binding.action));
    }
    // The key for stack traces is offered only when the run may hang; it then comes first.
    own.sort_by_key(|binding| binding.action != Action::Stacks);
    let last: Vec<&'static Binding> = context.global().iter().filter(|binding| !binding.label.is_empty()).collect();
    let width = |bindings: &[&Binding]| bindings.iter().map(|binding| item_width(model, binding)).sum::<usize>();
    // There is no gap after the last item.
    let mut room = (usize::from(area.width) + 2).saturating_sub(width(&last));
    own.retain(|binding| {
        let fits = item_width(model, binding) <= room;
        room = if fits { room - item_width(model, binding) } else { 0 };
        fits
    });
    own.extend(last);
    own
}

/// Returns the name of a key in the key bar; keys for opposite directions share an item.
fn bar_key(model: &Model, binding: &Binding) -> String {
    let name = |action| model.keys.name(context(model), action);
    let own = name(binding.action);
    match binding.action {
        Action::CursorRight => format!("{}/{own}", name(Action::CursorLeft)),
        Action::OptionNext => format!("{}/{own}", name(Action::OptionPrevious)),
        Action::SampleNext => format!("{}/{own}", name(Action::SamplePrevious)),
        Action::Down => format!("{}/{own}", name(Action::Up)),
        Action::ZoomIn => format!("{own}/{}", name(Action::ZoomOut)),
        _ => own,
    }
}

fn item(model: &Model, binding: &Binding) -> Vec<Span<'static>> {
    let key = bar_key(model, binding);
    vec![
        Span::styled(key, model.theme.accent),
        Span::styled(format!(" {}", label(model, binding)), model.theme.faint),
        Span::raw("  "),
    ]
}

/// Returns what a key does now, in a few words.
fn label(model: &Model, binding: &Binding) -> &'static str {
    match binding.action {
        Action::Open if model.screen == Screen::Run && run::event_log(model).is_some() => "log",
        Action::Open if model.screen == Screen::Run && model.run.as_ref().is_some_and(|run| run.enlarged) => "restore",
        Action::Play if model.run.as_ref().is_some_and(|run| run.samples.paused) => "play",
        Action::Accept if is_input(model, |purpose| purpose == Purpose::Launch) => "open the form",
        Action::Accept if is_input(model, Purpose::plans) => "show the plan",
        Action::Cancel if is_input(model, Purpose::is_live) => "clear",
        _ => binding.label,
    }
}

fn is_input(model: &Model, is: fn(Purpose) -> bool) -> bool {
    model.modal.is_none() && model.input.as_ref().is_some_and(|input| is(input.purpose))
}

fn item_width(model: &Model, binding: &Binding) -> usize {
    crate::text::width(&bar_key(model, binding)) + 1 + crate::text::width(label(model, binding)) + 2
}

/// Returns whether a key is shown in the key bar now: it has a label, and its action is possible and useful.
fn useful(model: &Model, binding: &Binding) -> bool {
    if binding.label.is_empty() || !is_possible(model, binding.action) {
        return false;
    }
    let enlarged = model.run.as_ref().and_then(|run| run.enlarged_chart());
    match binding.action {
        Action::Mark if model.screen == Screen::Runs => model.visible_runs().len() > 1,
        Action::Mark if model.screen == Screen::Nodes => model.fleet.nodes().len() > 1,
        // Possible for any active run, but shown only if the run may hang.
        Action::Stacks => run_actions::check(model, binding.action).is_ok_and(advice::may_hang),
        // Possible from any checkpoint, but shown only if the run has finished.
        Action::NextStage => {
            run_actions::check(model, binding.action).is_ok_and(|row| StateKind::of(&row.state) == StateKind::Finished)
        }
        Action::Complete => is_input(model, |purpose| purpose == Purpose::Override),
        Action::Recipes if model.screen == Screen::Run => {
            model.run.as_ref().is_some_and(|run| run.recipe.is_some() && run.focus != Panel::Recipe)
        }
        Action::RankMap => {
            model.run.as_ref().is_some_and(|run| run.series.rank_times().ranks() > 1 && run.focus != Panel::Ranks)
        }
        Action::FocusNext if model.screen == Screen::Launch => true,
        Action::DeleteWord | Action::DeleteToStart => is_input(model, Purpose::plans),
        Action::FocusNext => model.target().is_some(),
        Action::Samples => has_samples(model),
        Action::Down => model.run.as_ref().is_some_and(|run| run.samples.prompts().len() > 1),
        Action::Filter if model.screen == Screen::Nodes => model.fleet.nodes().len() > 1,
        Action::Filter if model.screen == Screen::Recipes => model.recipes.as_ref().is_some_and(|all| all.len() > 1),
        Action::Filter => model.rows().len() > 1,
        Action::Sort | Action::NodeNext => model.fleet.nodes().len() > 1,
        Action::ReverseSort => !matches!(model.nodes.sort, Sort::Listed | Sort::Faults),
        Action::ZoomIn | Action::ZoomOut if matches!(model.screen, Screen::Nodes | Screen::Node) => {
            model.selected_node().is_some_and(|view| view.frame.is_some())
        }
        action if model.screen != Screen::Compare && is_chart_action(action) => enlarged.is_some(),
        _ => true,
    }
}

/// Returns whether an action of the current screen is possible now. The list of actions dims those that are not.
pub fn is_possible(model: &Model, action: Action) -> bool {
    let screen = model.screen;
    let has_ranks = || model.run.as_ref().is_some_and(|run| run.places().len() > 1);
    match action {
        Action::Kill if screen == Screen::Processes => {
            model.processes.as_ref().is_some_and(|open| !open.rows().is_empty())
        }
        Action::Kill | Action::Processes if matches!(screen, Screen::Nodes | Screen::Node) => {
            model.node.is_some() || model.selected_node().is_some()
        }
        Action::Resume | Action::Stop | Action::Kill
            if screen == Screen::Runs && !model.runs_screen.marked.is_empty() =>
        {
            true
        }
        // After an encode, this key lists the stages that can train on its data set.
        Action::NextStage if model.target().is_some_and(|row| row.task == Task::Encode) => true,
        Action::Resume | Action::Stop | Action::Kill | Action::Stacks | Action::NextStage => {
            run_actions::check(model, action).is_ok()
        }
        Action::Compare => model.runs_screen.marked.len() > 1,
        Action::StartStage => stages::can_start(model),
        Action::UnsetKey => model.form.as_ref().is_some_and(|form| !form.draft.sets.is_empty()),
        Action::Toggle | Action::Enlarge | Action::ExportSvg | Action::ExportPng if screen == Screen::Compare => {
            has_charts(model)
        }
        action if screen == Screen::Compare && is_chart_action(action) => has_charts(model),
        Action::Toggle => launch::listed(model).len() > 1,
        Action::PickPanels | Action::Checkpoints => model.target().is_some_and(|row| row.task == Task::Train),
        Action::Targets => model.form.as_ref().is_some_and(|form| targets::targets(form).len() > 1),
        Action::Waive => model.form.as_ref().is_some_and(|form| form.checks.iter().any(launch::can_waive)),
        Action::Convert if screen == Screen::Launch => model.form.as_ref().is_some_and(|form| form.convert.is_some()),
        Action::Ranks => model.form.as_ref().is_some_and(|form| matches!(form.draft.target, LaunchTarget::Local(_))),
        Action::Convert => convert::can_start(model),
        Action::CancelWork => model.convert.work.is_some(),
        Action::Prompt => samples::can_sample(model),
        Action::ResumeWith => run_actions::check(model, action).is_ok(),
        Action::Acknowledge | Action::AcknowledgeAll | Action::Snooze => alerts::can(model, action),
        Action::Open if screen == Screen::Run => model.target().is_some(),
        Action::Open if screen == Screen::Alerts => alerts::can(model, action),
        Action::Open if screen == Screen::Nodes => model.selected_node().is_some(),
        Action::Open if screen == Screen::Stages => stages::newest_run(model).is_some(),
        Action::Open if screen == Screen::Samples => has_samples(model),
        Action::Open | Action::Logs => run_actions::check(model, action).is_ok(),
        Action::SampleNext | Action::SamplePrevious | Action::Play | Action::SideBySide => has_samples(model),
        Action::HeatMap => model.fleet.has_gpus(),
        Action::NodesOfRun => model.target().is_some(),
        Action::SearchNext | Action::SearchPrevious => model.logs.as_ref().is_some_and(|logs| logs.search.is_some()),
        Action::RankNext | Action::RankPrevious => has_ranks(),
        Action::AllRanks => model.logs.as_ref().is_some_and(|logs| logs.rank.is_some()),
        Action::LogRanks => model.logs.as_ref().is_some_and(|logs| logs.rank.is_none()) && has_ranks(),
        Action::FirstError => model.logs.as_ref().is_some_and(|logs| logs.store.first_error.is_some()),
        Action::ExportSvg | Action::ExportPng => {
            model.run.as_ref().is_some_and(|run| run.focused_chart().is_some() && !run.series.live().is_empty())
        }
        _ => true,
    }
}

/// Returns whether the Compare screen shows charts.
fn has_charts(model: &Model) -> bool {
    model.compare.as_ref().is_some_and(|open| !open.recipes_only)
}

fn has_samples(model: &Model) -> bool {
    model.run.as_ref().is_some_and(|run| !run.samples.prompts().is_empty())
}

fn is_chart_action(action: Action) -> bool {
    matches!(
        action,
        Action::CursorRight | Action::ZoomIn | Action::ResetView | Action::LogY | Action::Smooth | Action::ToggleX
    )
}

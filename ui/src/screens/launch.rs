//! The launch form: handles keys and typed fields, applies answers of the shell to the draft, and starts the run.

use crate::bindings::Action;
use crate::completion;
use crate::draft::{DraftMsg, Fit, LaunchDraft, LaunchTarget, PreflightResult, PreflightRow};
use crate::effect::{Effect, Request, Watch};
use crate::fleet::{Fleet, FleetSource};
use crate::jobs::Intent;
use crate::layout;
use crate::model::{FormPanel, Input, LaunchForm, Modal, Model, Purpose, Screen, Session, TargetsDialog};
use crate::screens::{Behaviour, NO_FORM, Press, Wheel, convert, launch_field, launch_view};
use crate::text;
use cluster::NodeId;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use recipe::{RecipeError, RecipeErrorKind};
use std::collections::BTreeSet;

/// Applies an answer of the shell to a draft. If the user has already pressed Enter, the run starts once all checks
/// have passed.
pub fn on_draft(model: &mut Model, draft: &LaunchDraft, what: DraftMsg) -> Vec<Effect> {
    let Some(mut form) = model.screens.form.take_if(|form| form.draft == *draft) else { return Vec::new() };
    let effects = take_in(model, &mut form, what);
    model.screens.form = Some(form);
    effects
}

fn take_in(model: &mut Model, form: &mut LaunchForm, what: DraftMsg) -> Vec<Effect> {
    let was_armed = form.is_armed;
    form.take_in(what);
    match (form.is_armed, form.is_checked && form.plan.is_some()) {
        (true, true) => return start(model, form),
        // The warning states why the run does not start.
        (false, _) if was_armed && (form.refused.is_some() || form.failed().next().is_some()) => {
            return accept(model, form);
        }
        (false, _) if was_armed => model.warn("A file has changed. Look at the new plan, then start it."),
        _ => {}
    }
    Vec::new()
}

/// Removes nodes that the hostfile no longer lists from the excluded nodes of the draft.
pub fn nodes_listed(model: &mut Model) {
    let Some(form) = &mut model.screens.form else { return };
    let listed = listed(&model.fleet, form);
    if form.draft.target.hostfile().is_some() && !listed.is_empty() {
        form.change(|draft| _ = draft.target.forget_unlisted(&listed));
    }
}

/// Returns the nodes of the form's hostfile, if they are watched.
pub fn listed(fleet: &Fleet, form: &LaunchForm) -> Vec<NodeId> {
    match (&fleet.of, form.draft.target.hostfile()) {
        (FleetSource::Hostfile(of), Some(path)) if of == path => {
            fleet.nodes().iter().map(|view| view.node.id.clone()).collect()
        }
        _ => Vec::new(),
    }
}

/// The screen.
pub struct Launch;

impl Behaviour for Launch {
    fn on_action(&self, model: &mut Model, action: Action) -> Vec<Effect> {
        let Some(mut form) = model.screens.form.take() else {
            model.screen = Screen::Recipes;
            return Vec::new();
        };
        if action == Action::Back && !form.is_armed {
            model.screen = form.from;
            return Vec::new();
        }
        let effects = on_action(model, &mut form, action);
        model.screens.form = Some(form);
        effects
    }

    fn view(&self, model: &Model, buf: &mut Buffer, body: Rect) {
        launch_view::view(model, buf, body);
    }

    fn can_open(&self, model: &Model) -> bool {
        model.screens.form.is_some()
    }

    fn open(&self, model: &mut Model) {
        if model.screens.form.is_none() {
            return model.warn(NO_FORM);
        }
        model.screen = Screen::Launch;
        // Another screen may have changed the source of the nodes.
        model.keep_nodes_of_form();
    }

    fn tab(&self) -> Action {
        Action::ShowRecipes
    }

    fn subject(&self, model: &Model, _: usize) -> String {
        model.screens.form.as_ref().map_or_else(String::new, |form| form.draft.recipe.clone())
    }

    fn watches(&self, model: &Model, wanted: &mut BTreeSet<Watch>) {
        let Some(form) = &model.screens.form else { return };
        wanted.insert(Watch::Draft(Box::new(form.draft.clone())));
        let path = form.draft.target.hostfile();
        wanted.extend(path.map(|path| Watch::Nodes(FleetSource::Hostfile(path.to_owned()))));
    }

    fn on_press(&self, model: &mut Model, at: Position) -> Press {
        if let Some(mut form) = model.screens.form.take() {
            press(model, &mut form, at);
            model.screens.form = Some(form);
        }
        Press::Done
    }

    fn on_wheel(&self, model: &mut Model, at: Position, _: Action) -> Wheel {
        let panel = model.screens.form.as_ref().and_then(|form| launch_view::panel_at(model, form, at));
        if let (Some(form), Some(panel)) = (&mut model.screens.form, panel) {
            form.focus = panel;
        }
        Wheel::Scroll
    }

    /// The form shows the values of the nodes.
    fn on_tick(&self, model: &mut Model) {
        model.dirty = true;
    }

    fn on_entered(&self, model: &mut Model, input: Input) -> Vec<Effect> {
        if let Some(form) = &mut model.screens.form {
            // A text that is not accepted stays open for correction.
            model.input = typed(form, input);
        }
        Vec::new()
    }

    /// The draft is not saved.
    fn save(&self, _: &Model, session: &mut Session) {
        session.screen = Screen::Recipes;
    }

    fn restore(&self, _: &mut Model, _: &Session) -> Screen {
        Screen::Runs
    }
}

/// Handles an action while the form is outside of the model.
fn on_action(model: &mut Model, form: &mut LaunchForm, action: Action) -> Vec<Effect> {
    match action {
        Action::Accept => return accept(model, form),
        Action::Back => form.is_armed = false,
        Action::FocusNext => form.focus = form.focus.turned(1),
        Action::FocusPrevious => form.focus = form.focus.turned(-1),
        Action::SetKey => model.input = Some(Input::new(Purpose::Override, "")),
        Action::EditKey => edit_key(model, form),
        Action::UnsetKey => unset_key(model, form),
        Action::Defaults => form.with_defaults = !form.with_defaults,
        Action::Targets => model.modal = Some(Modal::Targets(TargetsDialog::new(form, model.size))),
        Action::Ranks => edit_ranks(model, form),
        Action::Toggle => toggle_node(model, form),
        Action::Fit => fit(form),
        Action::Weights => {
            let init = form.draft.init.clone().unwrap_or_default();
            model.input = Some(Input::new(Purpose::Weights, init));
        }
        Action::Push => push(model, form),
        Action::Waive => waive(model, form),
        Action::CheckAgain => form.change(|draft| draft.round += 1),
        Action::Convert => match form.convert.take() {
            Some(options) => return convert::open_with(model, *options),
            None => model.warn("No weights have to be converted"),
        },
        action => moved(model, form, action),
    }
    Vec::new()
}

/// Handles a press of the mouse button: focuses a panel and selects an entry. A press on the selected entry edits the key,
/// uses the node or leaves it out, or changes the number of ranks. Only a key starts the run or waives a check.
fn press(model: &mut Model, form: &mut LaunchForm, at: Position) {
    let Some(panel) = launch_view::panel_at(model, form, at) else { return };
    let entry = launch_view::entry_at(model, form, at);
    let nodes = listed(&model.fleet, form).len();
    let was_focused = std::mem::replace(&mut form.focus, panel) == panel;
    match (panel, entry) {
        (FormPanel::Settings, Some(entry)) => {
            let was_selected = entry == form.key_position();
            let key = form.shown_rows().get(entry).map(|row| row.key);
            form.key = key.or(form.key);
            if was_focused && was_selected {
                edit_key(model, form);
            }
        }
        (FormPanel::Target, Some(entry)) => {
            let was_selected = entry == form.node.min(nodes.saturating_sub(1));
            form.node = entry;
            if was_focused && was_selected {
                toggle_node(model, form);
            }
        }
        (FormPanel::Target, None) if was_focused && matches!(form.draft.target, LaunchTarget::Local(_)) => {
            edit_ranks(model, form);
        }
        (FormPanel::Checks, Some(entry)) => {
            let check = form.checks.get(entry).map(|row| (row.name.clone(), row.node.clone()));
            form.check = check.or(form.check.take());
        }
        (FormPanel::Target | FormPanel::Plan, _) | (FormPanel::Settings | FormPanel::Checks, None) => {}
    }
}

/// Puts the completion at a position of the terminal into the field that the user is typing into.
pub fn press_completion(model: &mut Model, at: Position) {
    if let Some(candidate) = launch_field::completion_at(model, at) {
        let text = completion::complete("", &[candidate]);
        model.input = Some(Input::new(Purpose::Override, text));
    }
}

fn moved(model: &Model, form: &mut LaunchForm, action: Action) {
    let listed = listed(&model.fleet, form).len();
    let page = launch_view::page(model, form);
    let lines = launch_view::plan_lines(model, form).len();
    let go = |at: usize, count: usize| layout::moved(action, at, page, count.saturating_sub(1));
    match form.focus {
        FormPanel::Settings => {
            let to = go(form.key_position(), form.shown_rows().len());
            let key = to.and_then(|to| form.shown_rows().get(to).map(|row| row.key));
            form.key = key.or(form.key);
        }
        FormPanel::Target => form.node = go(form.node, listed).unwrap_or(form.node),
        FormPanel::Checks => {
            let to = go(form.check_position(), form.checks.len());
            let row = to.and_then(|to| form.checks.get(to)).map(|row| (row.name.clone(), row.node.clone()));
            form.check = row.or(form.check.take());
        }
        FormPanel::Plan => {
            let last = lines.saturating_sub(page);
            form.plan_top = layout::moved(action, form.plan_top, page, last).unwrap_or(form.plan_top);
        }
    }
}

/// Starts the run, waits for the remaining checks, or warns why the run cannot start.
fn accept(model: &mut Model, form: &mut LaunchForm) -> Vec<Effect> {
    let failed: Vec<String> = form.failed().map(|row| row.name.clone()).collect();
    let why = if let Some(failure) = &form.refused {
        Some(format!("{}: {}", failure.what, failure.why))
    } else if let Some(error) = &form.broken {
        Some(format!("{}: {}", error.what, error.why))
    } else if let Some(first) = failed.first() {
        let more = if failed.len() > 1 { format!(" and {} more", failed.len() - 1) } else { String::new() };
        Some(format!("cannot start: check '{first}'{more} failed; each shows a hint"))
    } else {
        None
    };
    if let Some(why) = why {
        form.is_armed = false;
        model.warn(text::capitalized(&why));
        return Vec::new();
    }
    if !form.is_checked || form.plan.is_none() {
        form.is_armed = true;
        model.notify("The run starts when all checks have passed");
        return Vec::new();
    }
    start(model, form)
}

fn start(model: &mut Model, form: &mut LaunchForm) -> Vec<Effect> {
    form.is_armed = false;
    let Some((plan, files)) = form.plan.clone() else { return Vec::new() };
    let draft = Box::new(form.draft.clone());
    let run = plan.run.id.clone();
    if model.jobs.busy_with(&run).is_some() {
        model.notify("The run is starting already");
        return Vec::new();
    }
    let job = model.jobs.start(Intent::Launch { run, fresh: true });
    vec![Effect::Job { job, request: Request::LaunchDraft { draft, files, plan } }]
}

/// Closes the form when its run has started. After a failed start, plans again, because the run may have left files.
pub fn ended(model: &mut Model, run: &rundir::RunId, has_started: bool) {
    let Some(form) = &mut model.screens.form else { return };
    if form.plan.as_ref().is_none_or(|(plan, _)| plan.run.id != *run) {
        return;
    }
    if has_started {
        model.screens.form = None;
    } else {
        form.change(|draft| draft.round += 1);
    }
}

fn edit_key(model: &mut Model, form: &LaunchForm) {
    let rows = form.shown_rows();
    let Some(row) = rows.get(form.key_position()) else {
        model.warn("No key is selected");
        return;
    };
    let text = format!("{}={}", row.key, row.value.as_deref().unwrap_or_default());
    model.input = Some(Input::new(Purpose::Override, text));
}

fn unset_key(model: &mut Model, form: &mut LaunchForm) {
    let key = form.shown_rows().get(form.key_position()).map(|row| row.key);
    let is_set = |key: &&str| form.draft.sets.iter().any(|set| crate::draft::key_of(set) == *key);
    match (key.filter(is_set), form.draft.sets.last().cloned()) {
        (Some(key), _) => form.change(|draft| draft.unset(key)),
        // An override that is not valid has no row of its own.
        (None, Some(last)) if form.broken.is_some() => form.change(|draft| draft.unset(crate::draft::key_of(&last))),
        _ => model.warn("This key has no override"),
    }
}

fn edit_ranks(model: &mut Model, form: &LaunchForm) {
    match form.draft.target {
        LaunchTarget::Local(ranks) => {
            let ranks = ranks.map(|ranks| ranks.to_string()).unwrap_or_default();
            model.input = Some(Input::new(Purpose::Ranks, ranks));
        }
        LaunchTarget::Hostfile { .. } => model.warn("A hostfile gives the number of ranks: its slots"),
        LaunchTarget::Slurm(_) => model.warn("The Slurm file gives the number of ranks: nodes and gpus_per_node"),
    }
}

fn toggle_node(model: &mut Model, form: &mut LaunchForm) {
    let listed = listed(&model.fleet, form);
    let at = form.node.min(listed.len().saturating_sub(1));
    match listed.get(at).filter(|_| form.focus == FormPanel::Target) {
        Some(node)
            if form.draft.target.uses(node) && listed.iter().filter(|n| form.draft.target.uses(n)).count() == 1 =>
        {
            model.warn("The launch needs at least one node");
        }
        Some(node) => form.change(|draft| draft.target.toggle(node, &listed)),
        None if form.draft.target.hostfile().is_none() => {
            model.warn("Only the nodes of a hostfile can be chosen one by one");
        }
        None => form.focus = FormPanel::Target,
    }
}

fn fit(form: &mut LaunchForm) {
    let fit = if form.draft.fit == Fit::Off { Fit::ToTarget } else { Fit::Off };
    form.change(|draft| draft.fit = fit);
}

fn push(model: &mut Model, form: &mut LaunchForm) {
    if form.draft.target.hostfile().is_none() {
        model.warn("The trainer is copied to the nodes of a hostfile only");
        return;
    }
    form.change(|draft| draft.push = !draft.push);
}

fn waive(model: &mut Model, form: &mut LaunchForm) {
    let Some(row) = form.checks.get(form.check_position()).cloned() else { return };
    form.focus = FormPanel::Checks;
    match row.result {
        PreflightResult::Failed(_) if !row.is_waivable => {
            model.warn(format!("The launch needs check '{}' and cannot waive it", row.name));
        }
        PreflightResult::Failed(_) | PreflightResult::Waived(_) => {
            form.check = Some((row.name.clone(), row.node.clone()));
            form.change(|draft| draft.toggle_waived(&row.name));
        }
        _ => model.warn("Only a check that failed can be waived"),
    }
}

/// Returns whether a check is waived, or failed and can be waived.
pub fn can_waive(row: &PreflightRow) -> bool {
    match row.result {
        PreflightResult::Failed(_) => row.is_waivable,
        PreflightResult::Waived(_) => true,
        _ => false,
    }
}

/// Completes the override that the user is typing.
pub fn complete(model: &mut Model) {
    let settings = model.screens.form.as_ref().and_then(|form| form.settings.as_ref()?.as_ref().ok());
    if let (Some(settings), Some(input)) = (settings, model.input.as_mut())
        && input.purpose == Purpose::Override
    {
        let found = completion::candidates(settings, &input.text);
        *input = Input::new(Purpose::Override, completion::complete(&input.text, &found));
    }
}

/// Why the text of a field is not accepted, with a hint.
pub struct Wrong {
    /// The reason.
    pub why: String,
    /// The hint.
    pub fix: String,
}

impl Wrong {
    fn of(error: RecipeError) -> Self {
        Self { why: error.why, fix: error.fix }
    }
}

/// Returns why the text of a field is not accepted; `None` if it is.
pub fn wrong(form: &LaunchForm, purpose: Purpose, text: &str) -> Option<Wrong> {
    match purpose {
        Purpose::Override if !text.trim().is_empty() => {
            let is_complete = text.contains('=');
            let set = if is_complete { text.to_owned() } else { format!("{}=", text.trim()) };
            match form.tried(&set)? {
                Err(error) if is_complete || error.kind == RecipeErrorKind::UnknownKey => Some(Wrong::of(error)),
                // Another override can still satisfy the other rules of recipes.
                Ok(Err(error))
                    if matches!(
                        error.kind,
                        RecipeErrorKind::WrongTask | RecipeErrorKind::WrongTrainer | RecipeErrorKind::WrongFamily
                    ) =>
                {
                    Some(Wrong::of(error))
                }
                _ if is_complete => None,
                _ => Some(Wrong {
                    why: format!("{} has no value", text.trim()),
                    fix: format!("write {}=VALUE", text.trim()),
                }),
            }
        }
        Purpose::Ranks if !text.trim().is_empty() => match text.trim().parse::<usize>() {
            Ok(1..=65_536) => None,
            _ => Some(Wrong {
                why: format!("\"{}\" is not a number of ranks", text.trim()),
                fix: "write a whole number from 1 to 65536, or nothing for the mesh of the recipe".into(),
            }),
        },
        _ => None,
    }
}

/// Applies the text of a field. Returns the field if its text is not accepted.
fn typed(form: &mut LaunchForm, input: Input) -> Option<Input> {
    if wrong(form, input.purpose, &input.text).is_some() {
        return Some(input);
    }
    let text = input.text.trim();
    match input.purpose {
        Purpose::Override if !text.is_empty() => {
            form.change(|draft| draft.set(text));
            form.key = recipe::Key::find(crate::draft::key_of(text)).map(|key| key.path).or(form.key);
            form.focus = FormPanel::Settings;
        }
        Purpose::Ranks => form.change(|draft| draft.target = LaunchTarget::Local(text.parse().ok())),
        Purpose::Weights => form.change(|draft| draft.init = Some(text.to_owned()).filter(|text| !text.is_empty())),
        _ => {}
    }
    None
}

//! The dialog that confirms an action on several nodes, processes or runs, or on a checkpoint. It shows the plan, and
//! Enter executes the plan.

use crate::action_plan::{ActionPlan, RunPlan, RunVerb};
use crate::bindings::{Action, Context};
use crate::effect::{Confirmed, Effect, Request};
use crate::jobs::Intent;
use crate::modals::{launch, scrolls};
use crate::model::{ActionDialog, Modal, Model, ResultsDialog};
use crate::run_state::short_id;
use crate::screens::process_details;
use crate::text;
use crate::widgets::{dialog, hint};
use plan::{CheckpointDelete, KillPlan, KillScope, ListedProcess, NodesKill, RunKill, Spared, UseOf};
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use rundir::{CheckpointEntry, Failure, RunId};
use units::counted;

/// Handles an action. The caller has taken the dialog out of the model; this function puts it back unless the dialog
/// closes.
pub fn on_action(model: &mut Model, mut dialog: ActionDialog, action: Action) -> Vec<Effect> {
    let lines = dialog.lines(model).len();
    scrolls(model, &mut dialog.scroll, lines, action);
    match action {
        Action::Accept | Action::Yes if dialog.plan.is_possible() => return dialog.accept(model),
        Action::Accept | Action::Yes | Action::Cancel => {}
        _ => model.modal = Some(Modal::Action(dialog)),
    }
    Vec::new()
}

impl ActionDialog {
    fn accept(self, model: &mut Model) -> Vec<Effect> {
        let title = self.plan.title();
        let job = model.jobs.start(Intent::Act { what: title.clone(), runs: self.plan.runs() });
        if !matches!(*self.plan, ActionPlan::DeleteCheckpoint(_)) {
            let results = ResultsDialog { job, title, results: Vec::new(), has_ended: false, scroll: 0 };
            model.modal = Some(Modal::Results(results));
        }
        model.screens.nodes.marked.clear();
        model.screens.runs.marked.clear();
        if let Some(processes) = &mut model.screens.processes {
            processes.marked.clear();
        }
        vec![Effect::Job { job, request: Request::Act { plan: self.plan, confirmed: Confirmed::by_user() } }]
    }

    fn lines(&self, model: &Model) -> Vec<Line<'static>> {
        let mut page = Page { model, width: dialog::text_width(model.size), lines: vec![Line::default()] };
        match &*self.plan {
            ActionPlan::KillOnNodes { kill, .. } => page.kill_on_nodes(kill),
            ActionPlan::Runs { verb, runs } => page.runs(*verb, runs),
            ActionPlan::DeleteCheckpoint(delete) => page.delete(delete),
        }
        page.lines
    }

    /// Draws the dialog.
    pub fn view(&self, model: &Model, buf: &mut Buffer) {
        let key = |action| model.keys.name(Context::ActionDialog, action);
        let mut footer = Vec::new();
        if self.plan.is_possible() {
            footer.extend(hint(model, &key(Action::Accept), self.plan.verb()));
            footer.push(Span::raw("   "));
            footer.extend(hint(model, &key(Action::Cancel), "cancel"));
        } else {
            footer.extend(hint(model, &key(Action::Cancel), "close"));
        }
        let is_kind = matches!(*self.plan, ActionPlan::Runs { verb: RunVerb::Resume | RunVerb::Stop, .. });
        let edge = if is_kind { model.theme.accent } else { model.theme.bad };
        let title = match &*self.plan {
            plan if plan.is_possible() => format!("{}?", text::capitalized(&plan.title())),
            ActionPlan::Runs { verb, runs } => match &runs[..] {
                [(only, _)] => format!("Cannot {} {}", verb.word(), short_id(only)),
                _ => format!("Cannot {} the marked runs", verb.word()),
            },
            _ => "There is nothing to do".to_owned(),
        };
        dialog::draw(model, buf, &title, edge, self.lines(model), Line::from(footer), self.scroll);
    }
}

impl ActionPlan {
    fn verb(&self) -> &'static str {
        match self {
            Self::KillOnNodes { .. } => "kill",
            Self::Runs { verb, .. } => verb.word(),
            Self::DeleteCheckpoint(_) => "delete",
        }
    }

    /// Returns the action as a phrase: `kill 3 processes on 2 nodes`.
    pub fn title(&self) -> String {
        match self {
            Self::KillOnNodes { kill, .. } => {
                let mut nodes = kill.nodes.iter().filter(|node| !node.processes.is_empty());
                let on = match (nodes.next(), nodes.count()) {
                    (Some(only), 0) => only.node.to_string(),
                    (_, more) => counted(more + 1, "node"),
                };
                format!("kill {} on {on}", counted(kill.count(), "process"))
            }
            Self::Runs { verb, .. } => match &self.runs()[..] {
                [only] => format!("{} {}", verb.word(), short_id(only)),
                all => format!("{} {}", verb.word(), counted(all.len(), "run")),
            },
            Self::DeleteCheckpoint(delete) => {
                let step = units::grouped(delete.checkpoint.step());
                format!("delete the checkpoint of step {step} of {}", short_id(&delete.run))
            }
        }
    }
}

/// The text of a plan, line by line.
struct Page<'a> {
    model: &'a Model,
    width: usize,
    lines: Vec<Line<'static>>,
}

impl Page<'_> {
    fn blank(&mut self) {
        self.lines.push(Line::default());
    }

    fn text(&mut self, text: &str, indent: usize, style: Style) {
        let pad = " ".repeat(indent);
        let wrapped = text::wrap(&text::clean(text), self.width.saturating_sub(indent));
        self.lines.extend(wrapped.into_iter().map(|line| Line::styled(format!("{pad}{line}"), style)));
    }

    fn heading(&mut self, name: &str, rest: &str) {
        let name = Span::styled(name.to_owned(), self.model.theme.strong);
        self.lines.push(Line::from(vec![name, Span::raw(format!("  {rest}"))]));
    }

    fn kill_on_nodes(&mut self, kill: &NodesKill) {
        let theme = self.model.theme;
        if kill.plans.is_empty() {
            self.text("No process to end.", 0, Style::new());
        } else {
            let order =
                "TERM goes to every process, then KILL to those that remain after 10 s. Then each node is checked.";
            self.text(order, 0, theme.warn);
        }
        for node in kill.nodes.iter().filter(|node| !node.processes.is_empty()) {
            self.blank();
            self.heading(node.node.as_str(), &counted(node.processes.len(), "process"));
            for process in &node.processes {
                self.lines.push(process_line(self.model, process));
            }
        }
        for run in kill.plans.iter().filter_map(|plan| if let KillPlan::Run(run) = plan { Some(run) } else { None }) {
            self.blank();
            self.run_on_nodes(kill, run);
        }
        if !kill.unreachable.is_empty() {
            self.blank();
        }
        for (node, failure) in &kill.unreachable {
            self.heading(node.as_str(), "unreachable: its processes are unknown and will not be signalled");
            self.text(&failure.why, 2, theme.faint);
        }
        if kill.spared.is_empty() {
            return;
        }
        self.blank();
        self.heading("Left alone", "");
        for spared in &kill.spared {
            let process = &spared.process;
            let why = match spared.why {
                Spared::OtherUser if kill.scope == KillScope::Own => format!("belongs to {}", process.user),
                Spared::OtherUser => format!("belongs to {}, and you may not signal it", process.user),
                Spared::ThisProgram => "is this console".to_owned(),
            };
            let command = text::clean(&process.command);
            let text = format!("  {} process {} {why}: {command}", spared.node, process.pid);
            self.lines.push(Line::styled(text, theme.faint));
        }
    }

    /// Shows a run whose processes are in the plan: its state, and the other nodes on which it ends.
    fn run_on_nodes(&mut self, kill: &NodesKill, run: &RunKill) {
        let elsewhere = run.nodes.iter().filter(|node| kill.nodes.iter().all(|listed| listed.node != node.node));
        let elsewhere: Vec<String> = elsewhere.map(|node| node.node.to_string()).collect();
        let state = self.model.rows().iter().find(|row| row.run == run.run);
        let is_active = state.is_some_and(|row| crate::run_state::StateKind::of(&row.state).is_active());
        let rest = match (is_active, &elsewhere[..]) {
            (true, []) => "is active and ends with these processes".to_owned(),
            (true, nodes) => format!("is active and ends on {} too", cluster::hostlist::compress(nodes)),
            (false, _) => "is not active: its processes are orphans".to_owned(),
        };
        self.heading(short_id(&run.run), &rest);
        if let Some(job) = &run.job {
            self.text(&job.why, 2, self.model.theme.faint);
        }
    }

    fn runs(&mut self, verb: RunVerb, runs: &[(RunId, Result<RunPlan, Failure>)]) {
        let theme = self.model.theme;
        let is_watched = |run: &RunId| self.model.row(run).is_some_and(|row| row.is_attached);
        if verb == RunVerb::Kill && runs.iter().any(|(run, plan)| plan.is_ok() && !is_watched(run)) {
            let text = "The processes get 10 s to save, then they are killed. To save first, cancel and stop the runs.";
            self.text(text, 0, theme.warn);
            self.blank();
        }
        if verb == RunVerb::Delete && runs.iter().any(|(_, plan)| plan.is_ok()) {
            let days = rundir::TRASH_DAYS;
            let text = format!("The trash keeps a run for {days} days: `vidtui runs restore RUN` brings it back.");
            self.text(&text, 0, Style::new());
            self.blank();
        }
        for (at, (run, plan)) in runs.iter().enumerate() {
            if at > 0 {
                self.blank();
            }
            match plan {
                Ok(RunPlan::Start(plan)) => {
                    let nodes = plan.attempt.placement.by_node();
                    let on = match &nodes[..] {
                        [(node, _)] => node.to_string(),
                        nodes => counted(nodes.len(), "node"),
                    };
                    let ranks = counted(plan.attempt.mesh.world(), "rank");
                    self.heading(&launch::in_words(plan), &format!("{ranks} on {on}"));
                    for warning in &plan.warnings {
                        self.text(warning, 2, theme.warn);
                    }
                }
                Ok(RunPlan::End(kill)) => {
                    let processes = kill.nodes.iter().map(|node| node.ranks.len() + 1).sum();
                    let rest = match (&kill.job, verb) {
                        (Some(job), _) => format!("job {}", job.id),
                        (None, RunVerb::Stop) => format!("saves and stops on {}", nodes_of(kill)),
                        (None, _) => format!("{} on {}", counted(processes, "process"), nodes_of(kill)),
                    };
                    self.heading(short_id(run), &rest);
                    if let Some(job) = &kill.job {
                        self.text(&job.why, 2, theme.faint);
                    }
                    if let Some(lost) = lost_steps(self.model, run).filter(|_| verb == RunVerb::Kill) {
                        self.text(&lost, 2, theme.warn);
                    }
                }
                Ok(RunPlan::Delete(delete)) => {
                    self.heading(short_id(run), "moves to the trash");
                    self.text(delete.dir.root.as_str(), 2, theme.faint);
                    for sentence in delete.consequences() {
                        self.text(&sentence, 2, theme.warn);
                    }
                }
                Err(failure) => {
                    self.heading(short_id(run), "refused");
                    self.text(&text::capitalized(&failure.why), 2, theme.bad);
                    self.text(&format!("Hint: {}", failure.fix), 2, theme.faint);
                }
            }
        }
    }

    fn delete(&mut self, delete: &CheckpointDelete) {
        let theme = self.model.theme;
        let faint = theme.faint;
        match &delete.checkpoint {
            CheckpointEntry::Complete(summary) => {
                let (size, ago) = (units::short_size(summary.bytes), units::ago(self.model.now, summary.saved_s));
                self.text(&format!("{size}, saved {ago}."), 0, Style::new());
            }
            CheckpointEntry::Incomplete { why, .. } | CheckpointEntry::Unreadable { why, .. } => {
                self.text(&format!("It cannot be loaded: {why}."), 0, Style::new());
            }
        }
        self.text(delete.checkpoint.dir().as_str(), 0, faint);
        let after = match delete.falls_back_to {
            Some(step) => Some(format!(
                "It is the newest complete checkpoint: a resume then continues from step {}.",
                units::grouped(step)
            )),
            None if delete.is_newest => {
                Some("It is the only complete checkpoint: a resume then starts at step 0.".to_owned())
            }
            None => None,
        };
        if let Some(text) = after {
            self.blank();
            self.text(&text, 0, theme.warn);
        }
        for user in &delete.uses {
            self.blank();
            let text = match user.of {
                UseOf::Start => format!("{} started from it.", user.run),
                UseOf::Base => format!("{} has adapters on it, which cannot be loaded without it.", user.run),
            };
            self.text(&text, 0, theme.warn);
        }
    }
}

/// Returns how many steps a kill may lose, as a sentence; `None` if it loses none.
fn lost_steps(model: &Model, run: &RunId) -> Option<String> {
    let row = model.rows().iter().find(|row| row.run == *run)?;
    let saved = row.checkpoint_step.unwrap_or(0);
    (row.task == recipe::Task::Train && row.step > saved)
        .then(|| format!("At worst, it loses {}.", counted((row.step - saved) as usize, "step")))
}

fn nodes_of(kill: &RunKill) -> String {
    match &kill.nodes[..] {
        [node] => node.node.to_string(),
        nodes => counted(nodes.len(), "node"),
    }
}

/// Returns a process as one line: process id, user, age, GPU memory, run and rank, command.
fn process_line(model: &Model, process: &ListedProcess) -> Line<'static> {
    let user = text::fit(&text::clean(&process.user), 8, model.symbols.ellipsis);
    let age = units::short_duration(process.age_s as f64);
    let memory = if process.on_gpu { process_details::gpu_memory(process) } else { String::new() };
    let fixed = format!("{:>9}  {user:<8}  {age:>6}  {memory:>7}  ", process.pid);
    let run = process.run.as_deref().map(|run| {
        let name = RunId::parse(run).map_or_else(|_| text::clean(run), |id| short_id(&id).to_owned());
        let rank = process.rank.map_or_else(String::new, |rank| format!(" rank {rank}"));
        Span::styled(format!("{name}{rank}  "), model.theme.accent)
    });
    let mut spans = vec![Span::raw(fixed)];
    spans.extend(run);
    spans.push(Span::styled(text::clean(&process.command), model.theme.faint));
    Line::from(spans)
}

//! The actions on a run: whether each one is possible now, and the effect that performs it.

use crate::action_plan::{ActionRequest, RunVerb};
use crate::advice;
use crate::bindings::{Action, Context};
use crate::effect::{Effect, Request};
use crate::jobs::Intent;
use crate::model::{Input, LogsScreen, Model, Purpose, Screen};
use crate::msg::RunRow;
use crate::rank_set::RankSet;
use crate::run_state::{StateKind, short_id};
use plan::ResumeOptions;
use rundir::RunId;
use units::counted;

/// Returns the run to which an action applies, if the action is possible now.
///
/// The key bar uses this check to hide keys whose action would be refused, so that both always agree.
///
/// # Errors
/// Why the action is not possible, as a sentence for the user.
pub fn check(model: &Model, action: Action) -> Result<&RunRow, String> {
    let key = |action| model.key_name(action);
    let row = model.target().ok_or_else(|| match (&model.runs, model.screen) {
        (None, _) => "Still loading the runs".to_owned(),
        (_, screen) if screen.is_of_run() => "Still loading this run".to_owned(),
        _ => format!("There are no runs yet. Press {} to start one.", key(Action::NewRun)),
    })?;
    let name = short_id(&row.run);
    let kind = StateKind::of(&row.state);
    let word = kind.word();
    let busy = model.jobs.busy_with(&row.run).filter(|_| {
        matches!(action, Action::Resume | Action::ResumeWith | Action::Stop | Action::Kill | Action::Delete)
    });
    match (action, model.jobs.waiting_kill(&row.run), busy) {
        (Action::Kill, Some(_), _) => return Ok(row),
        (Action::Resume | Action::ResumeWith | Action::Stop | Action::Delete, Some((_, waiting)), _) => {
            let waited = units::duration(model.now - waiting.since_s);
            return Err(format!("{name}: kill pending for {waited}. Press {} to cancel it.", key(Action::Kill)));
        }
        (_, _, Some(intent)) => return Err(format!("Already {}", intent.text())),
        _ => {}
    }
    match action {
        Action::Resume | Action::ResumeWith if row.is_attached => Err(format!(
            "{name} watches another program; press {} to watch it again",
            model.keys.name(Context::Runs, Action::Attach)
        )),
        Action::Resume | Action::ResumeWith if row.is_imported => {
            Err(format!("{name} was imported; there is nothing to resume"))
        }
        Action::Resume if let Some(left_s) = advice::start_left_s(model, row) => {
            let left = units::duration(left_s);
            Err(format!("{name} may still start. If it does not, it can be resumed in {left}."))
        }
        Action::Resume | Action::ResumeWith if kind.is_active() => {
            Err(format!("{name} is {word}; there is nothing to resume"))
        }
        Action::Resume if kind == StateKind::Finished && row.longer_steps.is_none() => {
            Err(format!("{name} has finished ({}); there is nothing to resume", row.progress().in_words()))
        }
        Action::Stop if kind == StateKind::Stopping => Err(format!("{name} is already stopping")),
        Action::Stop if !kind.is_active() => Err(format!("{name} is not running ({word})")),
        Action::Kill if matches!(kind, StateKind::New | StateKind::Finished | StateKind::Stopped) => {
            Err(format!("{name} is not running ({word})"))
        }
        Action::Delete if kind.is_active() => {
            Err(format!("{name} is {word}. Press {} to stop it first.", key(Action::Stop)))
        }
        Action::Delete if model.jobs.planning_action() => Err("Another action is already being prepared".to_owned()),
        Action::Stacks if model.jobs.collecting(&row.run) => Err(format!("Already writing the stack traces of {name}")),
        Action::Stacks if !kind.is_active() => Err(format!("{name} is not running ({word})")),
        Action::NextStage if row.launch.is_some() => Ok(row),
        Action::NextStage => {
            let next = model.next_stage(row);
            match (next, row.checkpoint_step) {
                (None, _) if row.stage.is_none() => Err(format!("{name} does not belong to a curriculum")),
                (None, _) => Err(format!("{name} is the last stage of its curriculum")),
                _ if kind.is_active() => Err(format!(
                    "{name} is {word}. Wait until it finishes, or press {} to stop it first.",
                    key(Action::Stop)
                )),
                (_, None) => Err(format!("{name} has no complete checkpoint for the next stage")),
                _ if model.jobs.planning_stage() => Err("A stage is already being prepared".to_owned()),
                _ => Ok(row),
            }
        }
        _ => Ok(row),
    }
}

/// Requests the plan of an action on the marked runs. The action dialog then shows the plan for each run, or why it
/// is refused.
pub fn act_on_marked(model: &mut Model, action: Action) -> Vec<Effect> {
    let verb = match action {
        Action::Resume => RunVerb::Resume,
        Action::Stop => RunVerb::Stop,
        Action::Delete => RunVerb::Delete,
        _ => RunVerb::Kill,
    };
    if model.jobs.planning_action() {
        model.warn("An action on several runs is already being prepared");
        return Vec::new();
    }
    let marked = &model.screens.runs.marked;
    let runs: Vec<RunId> = model.rows().iter().map(|row| row.run.clone()).filter(|run| marked.contains(run)).collect();
    let what = format!("preparing to {} {}", verb.word(), counted(runs.len(), "run"));
    let job = model.jobs.start(Intent::PlanAction { what });
    vec![Effect::Job { job, request: Request::PlanAction(ActionRequest::Runs { verb, runs }) }]
}

/// Opens the text input for the arguments of a resume.
pub fn open_resume_with(model: &mut Model) {
    match check(model, Action::ResumeWith) {
        Ok(_) => model.input = Some(Input::new(Purpose::Resume, String::new())),
        Err(why) => model.warn(why),
    }
}

/// Requests the plan of a resume with typed arguments.
pub fn resume_with(model: &mut Model, arguments: String) -> Vec<Effect> {
    let Ok(run) = check(model, Action::ResumeWith).map(|row| row.run.clone()) else { return Vec::new() };
    let step = model.row(&run).and_then(|row| row.checkpoint_step).unwrap_or(0);
    let job = model.jobs.start(Intent::PlanResumeFrom { run: run.clone(), step });
    vec![Effect::Job { job, request: Request::PlanResumeWith { run, arguments } }]
}

/// Performs an action on the current run, or shows why it is not possible.
pub fn act(model: &mut Model, action: Action) -> Vec<Effect> {
    let (run, state, next) = match check(model, action) {
        Ok(row) => (row.run.clone(), StateKind::of(&row.state), model.next_stage(row).map(|stage| stage.name.clone())),
        Err(why) => {
            model.warn(why);
            return Vec::new();
        }
    };
    match action {
        Action::Resume if state == StateKind::Finished => {
            let steps = model.row(&run).and_then(|row| row.longer_steps);
            // The resume applies to this run, also if the list changes while the user types.
            model.screens.runs.selected = Some(run);
            let set = steps.map_or(String::new(), |steps| format!("--set train.steps={steps}"));
            model.input = Some(Input::new(Purpose::Resume, set));
            Vec::new()
        }
        Action::Resume => {
            let job = model.jobs.start(Intent::PlanResume(run.clone()));
            vec![Effect::Job { job, request: Request::PlanResume { run, options: ResumeOptions::default() } }]
        }
        Action::Stop => {
            let job = model.jobs.start(Intent::Stop(run.clone()));
            vec![Effect::Job { job, request: Request::Stop { run } }]
        }
        Action::Kill => match model.jobs.waiting_kill(&run) {
            Some((job, _)) => vec![Effect::StopJob(job)],
            None => {
                let job = model.jobs.start(Intent::PlanKill(run.clone()));
                vec![Effect::Job { job, request: Request::PlanKill { run } }]
            }
        },
        Action::Delete => {
            let job = model.jobs.start(Intent::PlanAction { what: format!("checking what uses {}", short_id(&run)) });
            let plan = ActionRequest::Runs { verb: RunVerb::Delete, runs: vec![run] };
            vec![Effect::Job { job, request: Request::PlanAction(plan) }]
        }
        Action::Note => {
            let note = model.row(&run).and_then(|row| row.note.clone()).unwrap_or_default();
            // The note is of this run, also if the list changes while the user types.
            model.screens.runs.selected = Some(run);
            model.input = Some(Input::new(Purpose::Note, note));
            Vec::new()
        }
        Action::Stacks => {
            let job = model.jobs.start(Intent::Stacks(run.clone()));
            vec![Effect::Job { job, request: Request::CollectStacks { run } }]
        }
        Action::NextStage if model.open_form_again(&run) => Vec::new(),
        Action::NextStage => {
            let job = model.jobs.start(Intent::PlanStage { stage: next.unwrap_or_default() });
            vec![Effect::Job { job, request: Request::PlanNext { run, step: None } }]
        }
        Action::Open => {
            model.open_run(run);
            Vec::new()
        }
        Action::Logs => {
            let has_failed = matches!(state, StateKind::Failed | StateKind::Crashed);
            model.open_run(run);
            let logs = if has_failed { LogsScreen::at_error(None, RankSet::default()) } else { LogsScreen::default() };
            model.screens.logs = Some(logs);
            model.screen = Screen::Logs;
            Vec::new()
        }
        Action::CopyPath => {
            let path = rundir::RunDir::of(&model.runs_dir, &run).root;
            model.notify(format!("Copied {path}"));
            vec![Effect::Copy(path.into_string())]
        }
        _ => Vec::new(),
    }
}

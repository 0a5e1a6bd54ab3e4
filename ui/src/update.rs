//! Applies messages to the model. Nothing else changes the model.

use crate::dispatch::{act, typed};
use crate::effect::{Effect, Request};
use crate::jobs::Intent;
use crate::modals::{launch, results};
use crate::model::{ActionDialog, FailureDialog, KillDialog, LaunchDialog, Modal, Model, Screen, context};
use crate::mouse::on_mouse;
use crate::msg::{JobId, JobMsg, Key, KeyCode, Msg, NodeMsg, Outcome, RunMsg};
use crate::run_state::short_id;
use crate::screens::{
    alerts, behaviour, convert, launch as launch_form, logs, node, nodes, preview, processes, recipes, runs, stages,
};
use recipe::Task;
use rundir::RunId;

/// Applies one message to the model and returns the effects for the shell.
pub fn update(model: &mut Model, msg: Msg) -> Vec<Effect> {
    match msg {
        Msg::Tick(now) => {
            model.tick(now);
            preview::prepare(model);
            behaviour(model.screen).on_tick(model);
            return Vec::new();
        }
        Msg::Runs(list) => {
            model.set_runs(list);
            runs::keep_selection(model);
            return Vec::new();
        }
        // The next tick draws the sample.
        Msg::Node { node, what: NodeMsg::Frame(frame) } => {
            model.fleet.sampled(&node, frame, model.now);
            return Vec::new();
        }
        Msg::Node { node, what: NodeMsg::Recorded(samples) } => {
            model.fleet.recorded(&node, &samples, model.now);
            return Vec::new();
        }
        Msg::Node { node, what: NodeMsg::Down(why) } => {
            model.fleet.unreachable(&node, why, model.now);
            return Vec::new();
        }
        _ => model.dirty = true,
    }
    match msg {
        Msg::Key(key) => {
            let effects = on_key(model, key);
            model.keep_nodes_of_form();
            return effects;
        }
        Msg::Mouse(mouse) => {
            let effects = on_mouse(model, mouse);
            model.keep_nodes_of_form();
            return effects;
        }
        Msg::Draft { draft, what } => return launch_form::on_draft(model, &draft, what),
        Msg::Paste(text) => paste(model, &text),
        Msg::Resize(size) => {
            model.size = size;
            Screen::ALL.into_iter().for_each(|screen| behaviour(screen).keep_selection(model));
        }
        Msg::Alerts(alerts) => return alerts::on_alerts(model, alerts),
        Msg::Queue(queue) => {
            model.queue = queue;
            runs::keep_selection(model);
        }
        Msg::Curricula(curricula) => {
            model.curricula = Some(curricula);
            stages::keep_selection(model);
        }
        Msg::Recipes(views) => {
            model.recipes = Some(views);
            recipes::keep_selection(model);
        }
        Msg::Run { run, what } => on_run(model, &run, what),
        Msg::Nodes { of, nodes } if of == model.fleet.of => {
            model.fleet.list(nodes);
            nodes::renew(model);
            launch_form::nodes_listed(model);
        }
        Msg::Node { node, what: NodeMsg::Smi(output) } => node::on_smi(model, &node, output),
        Msg::Node { node, what: NodeMsg::Processes(listed) } => processes::on_listed(model, node, listed),
        Msg::Job { job, what } => return on_job(model, job, what),
        Msg::Tick(_) | Msg::Runs(_) | Msg::Nodes { .. } | Msg::Node { .. } => {}
    }
    Vec::new()
}

fn on_key(model: &mut Model, key: Key) -> Vec<Effect> {
    let context = context(model);
    let Some(action) = model.keys.action(context, key) else {
        if let (Some(Modal::Palette(dialog)), KeyCode::Char(c), false, false) =
            (&mut model.modal, key.code, key.ctrl, key.alt)
        {
            dialog.insert(c.encode_utf8(&mut [0; 4]));
            return Vec::new();
        }
        if let (Some(input), None) = (&mut model.input, &model.modal)
            && let KeyCode::Char(c) = key.code
            && !key.ctrl
            && !key.alt
        {
            input.insert(c.encode_utf8(&mut [0; 4]));
            typed(model);
        }
        return Vec::new();
    };
    act(model, context, action)
}

/// Inserts pasted text into the list of actions or the open text input, if there is one. Pasted text never triggers key bindings.
fn paste(model: &mut Model, text: &str) {
    if let Some(Modal::Palette(dialog)) = &mut model.modal {
        dialog.insert(text);
    }
    if let (Some(input), None) = (&mut model.input, &model.modal) {
        input.insert(text);
        typed(model);
    }
}

fn on_run(model: &mut Model, run: &RunId, what: RunMsg) {
    let Some(what) = behaviour(model.screen).on_run(model, run, what) else { return };
    let text_size = logs::text_size(model);
    if let Some(open) = model.screens.preview.as_mut().filter(|open| open.id == *run) {
        open.take_in(what);
        return;
    }
    let Some(open) = model.screens.run.as_mut().filter(|open| open.id == *run) else { return };
    match what {
        RunMsg::Log(chunk) => {
            if let Some(logs) = &mut model.screens.logs {
                logs.add(chunk, model.now);
            }
        }
        RunMsg::Logs(chunk) => {
            let now = model.now;
            let notice = model.screens.logs.as_mut().and_then(|logs| logs.add_merged(chunk, now, text_size));
            notice.into_iter().for_each(|text| model.notify(text));
        }
        RunMsg::EarlierErrors(errors) => {
            let notice = model.screens.logs.as_mut().and_then(|logs| logs.add_earlier(errors, text_size));
            notice.into_iter().for_each(|text| model.notify(text));
        }
        what => open.take_in(what),
    }
}

fn on_job(model: &mut Model, job: JobId, what: JobMsg) -> Vec<Effect> {
    if let JobMsg::Progress(text) = what {
        model.jobs.progress(job, text);
        return Vec::new();
    }
    if let JobMsg::Waiting(text) = what {
        if model.jobs.waits(job, text, model.now) {
            model.notice = None;
        }
        return Vec::new();
    }
    if let JobMsg::Converting { done, total } = what {
        convert::moved(model, job, done, total);
        return Vec::new();
    }
    if let JobMsg::Results(results) = what {
        results::progressed(model, job, results);
        return Vec::new();
    }
    let Some(intent) = model.jobs.finish(job) else { return Vec::new() };
    if matches!(intent, Intent::Convert(_)) {
        convert::ended(model, job, matches!(what, JobMsg::Done(Outcome::Converted(_))));
    }
    match (what, intent) {
        (JobMsg::LaunchPlanned(plan), Intent::PlanResume(_)) if plan.starts_at_once() => {
            let run = plan.run.id.clone();
            model.notify(format!("Resuming {}", launch::in_words(&plan)));
            let job = model.jobs.start(Intent::Launch { run, fresh: false });
            return vec![Effect::Job { job, request: Request::Launch { plan } }];
        }
        (JobMsg::LaunchPlanned(plan), intent) => {
            let continues = matches!(intent, Intent::PlanResume(_) | Intent::PlanResumeFrom { .. });
            let resumes = continues && !plan.is_new_run();
            model.modal = Some(Modal::Launch(LaunchDialog { plan, resumes, scroll: 0 }));
        }
        (JobMsg::LaunchRead(draft), _) => {
            model.launch_arguments.clear();
            model.open_form(*draft);
        }
        (JobMsg::KillPlanned(plan), _) => {
            model.modal = Some(Modal::Kill(KillDialog { plan, yes: false, scroll: 0 }));
        }
        (JobMsg::ActionPlanned(plan), _) => model.modal = Some(Modal::Action(ActionDialog { plan, scroll: 0 })),
        (JobMsg::Done(Outcome::Acted(results)), Intent::Act { what, .. }) => results::ended(model, job, what, results),
        (JobMsg::ConvertPlanned(preview), _) => convert::planned(model, job, Ok(preview)),
        (JobMsg::Failed(failure), Intent::PlanConvert) => convert::planned(model, job, Err(failure)),
        (JobMsg::Failed(failure), intent) => {
            if let Intent::Launch { run, .. } = &intent {
                launch_form::ended(model, run, false);
            }
            model.modal = Some(Modal::Failure(FailureDialog { failure, scroll: 0 }));
        }
        (JobMsg::Done(outcome), intent) => done(model, outcome, &intent),
        (JobMsg::Progress(_) | JobMsg::Waiting(_) | JobMsg::Converting { .. } | JobMsg::Results(_), _) => {}
    }
    Vec::new()
}

fn done(model: &mut Model, outcome: Outcome, intent: &Intent) {
    match outcome {
        Outcome::Launched(run) => {
            model.notify(format!("{} is starting", short_id(&run)));
            launch_form::ended(model, &run, true);
            let fresh = matches!(intent, Intent::Launch { fresh: true, .. });
            // If a log is open, the screen does not change.
            if fresh && model.screen != Screen::Logs {
                model.open_run(run);
            }
        }
        Outcome::StopSent(run) => {
            let row = model.row(&run);
            let then = match row.map_or(Task::Train, |row| row.task) {
                _ if row.is_some_and(|row| row.is_attached) => "is no longer watched; the program goes on",
                _ if row.is_some_and(|row| row.is_command) => "got the request; its command may save before it stops",
                Task::Train => "saves a checkpoint after this step and stops",
                Task::Encode => "stores the items in progress and stops",
                Task::Sample => "finishes the videos in progress and stops",
            };
            model.notify(format!("Stop requested: {} {then}", short_id(&run)));
        }
        Outcome::Killed { run, report } => model.notify(format!("{}: {report}", short_id(&run))),
        // The dialog of the action shows its results.
        Outcome::Acted(_) => {}
        // The list of runs shows the note.
        Outcome::Noted(_) => {}
        Outcome::Pinned { step, is_pinned } => {
            let step = units::grouped(step);
            model.notify(match is_pinned {
                true => format!("The checkpoint of step {step} is pinned: it stays when old ones are removed"),
                false => format!("The checkpoint of step {step} is no longer pinned"),
            });
        }
        Outcome::Stacks { run, report } => model.notify(format!("{}: {report}", short_id(&run))),
        Outcome::AlertsMuted => {}
        Outcome::AlertsTested(channels) => {
            model.notify(format!("A test alert was sent to {}", units::listed(&channels, 8, String::clone)));
        }
        Outcome::Exported(path) => model.notify(format!("Wrote {path}")),
        Outcome::Converted(path) => model.notify(format!("Wrote {path}")),
        Outcome::ConvertStopped(path) => model.notify(format!("Conversion cancelled; no output is left in {path}")),
    }
}

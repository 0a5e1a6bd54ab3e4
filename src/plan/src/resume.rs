//! Plans resumes: by the user, after a failure, and when a Slurm job is requeued.

mod schedule;

use recipe::{Length, Mesh, Recipe, ResumeChange, ResumeEffect, RunSettings};
use rundir::{
    Attempt, AttemptWhy, CheckpointEntry, CheckpointSummary, ErrorCode, Failure, Lineage, Run, RunDir, StartFrom,
};
use runstate::{Liveness, RunFacts, RunState, derive};

use crate::launch::{NewRun, Origin, check_min_nodes, command_mesh, from_checkpoint_with_fresh_data, from_weights};
use crate::launch_plan::{Draft, crossing, place, sizes, values_row};
use crate::{Context, JobKill, KillHow, LaunchPlan, Weights};
pub use schedule::ScheduleChoice;
use units::counted;

/// The request to resume a run.
#[derive(Debug, Clone)]
pub struct ResumeRequest<'a> {
    /// The run.
    pub run: &'a Run,
    /// The run directory.
    pub dir: &'a RunDir,
    /// The facts about its newest attempt.
    pub facts: &'a RunFacts,
    /// The checkpoints of the run (`other_trainers::checkpoints`).
    pub checkpoints: &'a [CheckpointEntry],
    /// The newest complete checkpoint ([`rundir::latest_among`]), from which a resume continues by default.
    pub latest: Option<&'a CheckpointSummary>,
    /// The user's options.
    pub options: ResumeOptions,
    /// The recipe with the keys that the user changes, and these keys; `None` if the recipe stays as it is.
    pub changed: Option<(Recipe, Vec<ResumeChange>)>,
}

impl ResumeRequest<'_> {
    /// Returns the number of complete checkpoints on disk.
    pub(crate) fn saved(&self) -> u64 {
        self.checkpoints.iter().filter(|entry| entry.complete().is_some()).count() as u64
    }

    /// Returns the size of the newest checkpoint in bytes.
    pub(crate) fn newest_bytes(&self) -> Option<u64> {
        self.latest.map(|newest| newest.bytes)
    }
}

/// The user's options of a resume. The default continues as if the run had not been interrupted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResumeOptions {
    /// The step to continue from; `None`: that of the newest complete checkpoint.
    pub step: Option<u64>,
    /// The parts that are restored from the checkpoint.
    pub kind: ResumeKind,
    /// The total steps of the run; `None`: as many as before.
    pub steps: Option<u64>,
    /// How the schedule of the learning rate goes on; `None`: as the recipe sets it, so that it covers the total steps by default.
    pub schedule: Option<ScheduleChoice>,
}

/// The parts that are restored from a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ResumeKind {
    /// Weights, optimizer and data position.
    #[default]
    Everything,
    /// Weights and optimizer; the data order restarts. A command does so in a new run, because its steps restart too.
    FreshData,
    /// Weights only: makes a new run at step 0 with this run as its parent, and overwrites nothing of this run.
    WeightsOnly,
}

/// Returns the number of ranks of the last attempt, or of the recipe if there is none. A resume uses this number by default.
pub fn last_ranks(run: &Run, last: Option<&Attempt>) -> usize {
    let of_recipe = || run.recipe().map_or(1, |recipe| recipe.mesh.world());
    last.map_or_else(of_recipe, |attempt| attempt.mesh.world())
}

/// Plans to continue a run.
///
/// # Errors
/// When the run is or may be alive, is finished, has no checkpoint of the chosen step, or does not fit the target.
pub fn resume(request: &ResumeRequest<'_>, cx: &Context) -> Result<LaunchPlan, Failure> {
    let what = format!("cannot resume {}", request.run.id);
    request.run.refuse_if_imported(&what)?;
    request.run.refuse_if_attached(&what)?;
    let replaces = refuse_if_alive(&what, request, cx.now_s)?;
    next_attempt(&what, request, cx, AttemptWhy::Resume, replaces)
}

/// Plans the automatic resume of a failed run. With too few nodes, fewer ranks start if `run.shrink` allows it.
///
/// # Errors
/// As [`resume`]; also if a permanent stop was requested, or if fewer ranks can start and `run.shrink` does not allow it.
pub fn heal(request: &ResumeRequest<'_>, settings: &RunSettings, cx: Context) -> Result<LaunchPlan, Failure> {
    let what = format!("cannot resume {} after its failure", request.run.id);
    request.run.refuse_if_imported(&what)?;
    if request.facts.stops_for_good {
        let fix = format!("continue it: `vidtui resume {}`", request.run.id);
        return Err(Failure::new(ErrorCode::RunNotRunning, what, "a stop was requested", fix));
    }
    let replaces = refuse_if_alive(&what, request, cx.now_s)?;
    let ranks = last_ranks(request.run, request.facts.attempt.as_ref());
    let slots = cx.target.slots();
    if slots < ranks && !settings.shrink {
        let why = format!("{} of {} can start", counted(slots, "rank"), ranks);
        let fix = "repair a node, name spare nodes (run.spares), or allow fewer nodes (run.shrink)";
        return Err(Failure::new(ErrorCode::TooFewRanks, what, why, fix));
    }
    next_attempt_on_most(&what, request, settings.shrink, cx, AttemptWhy::Heal, replaces)
}

/// Plans the next attempt as [`next_attempt`]. If the mesh does not fit all nodes of the target and `shrink` is true, leaves out nodes
/// until it fits.
pub(crate) fn next_attempt_on_most(
    what: &str,
    request: &ResumeRequest<'_>,
    shrink: bool,
    mut cx: Context,
    why: AttemptWhy,
    replaces: Option<JobKill>,
) -> Result<LaunchPlan, Failure> {
    loop {
        match next_attempt(what, request, &cx, why, replaces.clone()) {
            Err(failure) if failure.code == ErrorCode::InvalidMesh && shrink && cx.target.nodes.len() > 1 => {
                cx.target.set_aside_last();
            }
            planned => return planned,
        }
    }
}

/// Plans the next attempt of a run whose last attempt has ended.
pub(crate) fn next_attempt(
    what: &str,
    request: &ResumeRequest<'_>,
    cx: &Context,
    why: AttemptWhy,
    replaces: Option<JobKill>,
) -> Result<LaunchPlan, Failure> {
    let (mut recipe, mut changes) = match &request.changed {
        None => (request.run.recipe()?, Vec::new()),
        Some(changed) => changed.clone(),
    };
    schedule::refuse_if_it_has_none(what, request.options.schedule, &recipe)?;
    if recipe.task == recipe::Task::Encode {
        return continue_encode(what, request, &recipe, cx, why, replaces);
    }
    check_min_nodes(what, &recipe, cx)?;
    let checkpoint = choose(what, request)?;
    check_changes(what, request, checkpoint.is_some())?;
    let is_command = recipe.job() == recipe::JobKind::Command;
    match (request.options.kind, checkpoint) {
        (ResumeKind::WeightsOnly, Some(checkpoint)) => {
            let parent = parent(request, checkpoint);
            let origin = from_weights(&Weights { path: checkpoint.dir.clone(), lineage: Some(parent) });
            return new_run(what, request, &recipe, origin, cx);
        }
        (ResumeKind::FreshData, Some(_)) if is_command && recipe.command.fresh_data.is_empty() => {
            return Err(Failure::new(
                ErrorCode::InvalidArgument,
                what,
                "command.fresh_data of its recipe is empty: the arguments that restart the data are not known",
                format!(
                    "remove --fresh-data, or set command.fresh_data in the recipe and launch it from the weights: `vidtui launch RECIPE --init {}`",
                    request.run.id
                ),
            ));
        }
        // A command that restarts its data restarts its steps too. In a new run, they do not collide with those of this run.
        (ResumeKind::FreshData, Some(checkpoint)) if is_command => {
            let origin = from_checkpoint_with_fresh_data(parent(request, checkpoint), checkpoint.dir.clone());
            return new_run(what, request, &recipe, origin, cx);
        }
        _ => {}
    }
    let mut warnings = warnings_about(request, checkpoint);
    let steps = match recipe.task {
        recipe::Task::Sample => {
            refuse_if_sampled(what, request, cx.now_s)?;
            None
        }
        _ => steps(what, request, &recipe, checkpoint)?,
    };
    let schedule_rows = match recipe.job() {
        recipe::JobKind::Train => {
            let done = checkpoint.map_or(0, |checkpoint| checkpoint.step);
            let resumed = schedule::Resumed::of(request, steps, done)?;
            changes.extend(resumed.choose(&mut recipe, request.options.schedule, &request.dir.run_toml())?);
            resumed.rows(&recipe, request.options.schedule)
        }
        _ => Vec::new(),
    };
    changes.splice(0..0, changed_steps(request, &recipe));
    let mesh = fit_mesh(what, request, &recipe, cx)?;
    if let Some(last) = &request.facts.attempt
        && last.mesh != mesh
        && !is_command
    {
        warnings.push(format!(
            "the mesh changes from {} to {}: losses match the old mesh up to rounding, not bit for bit",
            last.mesh, mesh
        ));
    }
    if let Some(before) = &request.run.trainer_sha256
        && *before != cx.trainer.sha256
        && !is_command
    {
        warnings.push(format!(
            "the trainer differs from that of the launch: now {} {} ({}), at the launch {} ({})",
            cx.trainer.path,
            cx.trainer.version,
            short(&cx.trainer.sha256),
            request.run.trainer_version,
            short(before)
        ));
    }
    let placement = place(what, &mesh, cx)?;
    // Groups that already crossed nodes in the last attempt give no warning.
    let before = request.facts.attempt.as_ref().map_or(Vec::new(), |last| crossing(&last.mesh, &last.placement));
    warnings.extend(crossing(&mesh, &placement).into_iter().filter(|now| !before.contains(now) && !is_command));
    let (start, start_step, mut weights) = start_of(request, checkpoint);
    let folder = match (checkpoint, &request.run.start) {
        _ if !is_command => None,
        (Some(checkpoint), _) => Some(checkpoint.dir.clone()),
        // The run has saved nothing yet and starts from the checkpoint of its parent again.
        (None, StartFrom::CheckpointFreshData { .. }) => {
            request.facts.attempt.as_ref().and_then(|last| last.checkpoint.clone())
        }
        (None, _) => None,
    };
    if is_command {
        weights = match (checkpoint, &start) {
            (Some(checkpoint), _) => format!("step {start_step} of this run: {}", checkpoint.dir),
            (None, StartFrom::Random) => "chosen by the command".into(),
            (None, _) => weights,
        };
        if folder.is_some() && recipe.command.resume.is_empty() {
            warnings.push("command.resume is empty: the command must find its checkpoint itself".into());
        }
    }
    // The total steps belong to the attempt.
    let run = match changes.iter().all(|change| change.change.key == STEPS) {
        true => request.run.clone(),
        false => Run { recipe: recipe.to_table(), ..request.run.clone() },
    };
    let draft = Draft {
        run,
        dir: request.dir.clone(),
        recipe: &recipe,
        number: request.facts.attempt.as_ref().map_or(1, |last| last.number + 1),
        why,
        start,
        start_step,
        asked_step: request.options.step,
        checkpoint: folder,
        weights,
        mesh,
        placement,
        steps,
        changes,
        schedule_rows,
        saved: request.saved(),
        newest_bytes: request.newest_bytes(),
        warnings,
        replaces,
    };
    Ok(draft.finish(cx))
}

/// Checks that the run can continue with the changed keys.
///
/// * `has_checkpoint` — whether the attempt continues from one. Without it, training starts at step 0, and no position in the data and no
///   state of the optimizer is kept.
fn check_changes(what: &str, request: &ResumeRequest<'_>, has_checkpoint: bool) -> Result<(), Failure> {
    let (id, kind) = (&request.run.id, request.options.kind);
    let changes = request.changed.iter().flat_map(|(_, changes)| changes);
    for ResumeChange { change, effect } in changes {
        let (why, fix) = match effect {
            ResumeEffect::OtherRun => {
                (effect.in_words(), format!("launch a new run from its weights: `vidtui launch RECIPE --init {id}`"))
            }
            ResumeEffect::Refused(why) if kind != ResumeKind::WeightsOnly => {
                let set = format!("--set {}={}", change.key, change.to);
                let fix = format!("start a new run from its weights alone: `vidtui resume {id} --weights-only {set}`");
                (*why, fix)
            }
            ResumeEffect::Data if kind == ResumeKind::Everything && has_checkpoint && !request.run.is_command() => (
                "the position in the data belongs to the old samples",
                "add --fresh-data, which keeps weights and optimizer and restarts the data order".to_owned(),
            ),
            _ => continue,
        };
        let what = format!("{what} with {} = {}", change.key, change.to);
        return Err(Failure::new(ErrorCode::InvalidArgument, what, why, fix));
    }
    Ok(())
}

/// Plans the next attempt of an encode. The queue of its data set contains the remaining items.
fn continue_encode(
    what: &str,
    request: &ResumeRequest<'_>,
    recipe: &Recipe,
    cx: &Context,
    why: AttemptWhy,
    replaces: Option<JobKill>,
) -> Result<LaunchPlan, Failure> {
    let ResumeOptions { step, kind, steps, schedule: _ } = request.options;
    if step.is_some() || steps.is_some() || kind != ResumeKind::Everything || request.changed.is_some() {
        return Err(Failure::new(
            ErrorCode::InvalidArgument,
            what,
            "an encode has no checkpoints: it continues with the clips that are left",
            "remove --step, --weights-only, --fresh-data and --set",
        ));
    }
    if derive(request.facts, cx.now_s) == RunState::Finished {
        return Err(Failure::new(
            ErrorCode::RunFinished,
            what,
            format!("all {} items are done", request.facts.steps_total),
            format!("launch another encode into {}: it encodes only what has changed", recipe.encode.out),
        ));
    }
    let last = request.facts.attempt.as_ref();
    let ranks = match cx.target.slots() {
        0 => last_ranks(request.run, last),
        slots => slots,
    };
    let mesh = command_mesh(ranks);
    let draft = Draft {
        run: request.run.clone(),
        dir: request.dir.clone(),
        recipe,
        number: last.map_or(1, |last| last.number + 1),
        why,
        start: StartFrom::Random,
        start_step: request.facts.last_metric.map_or(request.facts.start_step(), |(step, _)| step),
        asked_step: None,
        checkpoint: None,
        weights: String::new(),
        mesh,
        placement: place(what, &mesh, cx)?,
        steps: None,
        changes: Vec::new(),
        schedule_rows: Vec::new(),
        saved: 0,
        newest_bytes: None,
        warnings: Vec::new(),
        replaces,
    };
    Ok(draft.finish(cx))
}

fn short(sha256: &str) -> &str {
    sha256.get(..8).unwrap_or(sha256)
}

/// Refuses a run that is or may be alive.
///
/// Returns the Slurm job to cancel before the resume, if the run has ended on all nodes except lost ones, for which Slurm
/// still waits.
fn refuse_if_alive(what: &str, request: &ResumeRequest<'_>, now_s: f64) -> Result<Option<JobKill>, Failure> {
    let (facts, id) = (request.facts, &request.run.id);
    let nodes = |attempt: &Attempt| {
        let nodes = attempt.placement.by_node().into_iter().map(|(node, _)| node.to_string()).collect::<Vec<_>>();
        nodes.join(", ")
    };
    let Some(attempt) = &facts.attempt else { return Ok(None) };
    let state = derive(facts, now_s);
    if let Some(job) = attempt.slurm.as_ref().and_then(|slurm| slurm.job) {
        match &state {
            RunState::Queued => {
                return Err(Failure::new(
                    ErrorCode::SlurmJobState,
                    what,
                    format!("job {job} is pending and will continue the run"),
                    format!("wait for the job, or cancel it: `vidtui stop {id}`"),
                ));
            }
            _ if facts.alive == Liveness::Unknown => {
                return Err(Failure::new(
                    ErrorCode::RunStateUnknown,
                    what,
                    format!("Slurm does not answer, and job {job} may still be running"),
                    "wait until Slurm answers: `scontrol ping`",
                ));
            }
            _ => {}
        }
    }
    if facts.alive == Liveness::Alive && !is_over(facts, attempt) {
        let lost = facts.lost_nodes(now_s);
        if let Some(job) = facts.job.as_ref().filter(|_| !lost.is_empty()) {
            return crate::kill::job_kill(id, KillHow::Kill, job, lost).map(Some);
        }
        let doing = match state {
            RunState::Starting => "is starting".to_owned(),
            RunState::Saving => "is saving a checkpoint".to_owned(),
            RunState::Stopping => "is stopping".to_owned(),
            RunState::Stalled { .. } => "is stalled, and its processes are alive".to_owned(),
            RunState::Running => match request.run.task() {
                recipe::Task::Encode => "is encoding".to_owned(),
                recipe::Task::Train => "is training".to_owned(),
                recipe::Task::Sample => "is making videos".to_owned(),
            },
            // The first node has ended, and the others are ending.
            _ => "is ending".to_owned(),
        };
        return Err(Failure::new(
            ErrorCode::RunIsAlive,
            what,
            format!("attempt {} {doing} on {}", attempt.number, nodes(attempt)),
            match state {
                RunState::Stopping | RunState::Failed(_) | RunState::Finished | RunState::Stopped => {
                    format!("wait until it has ended (`vidtui status {id}`), or end it at once: `vidtui kill {id}`")
                }
                _ => format!("end it first: `vidtui stop {id}` saves a checkpoint, `vidtui kill {id}` does not"),
            },
        ));
    }
    match state {
        RunState::Starting => Err(Failure::new(
            ErrorCode::RunIsAlive,
            what,
            format!("attempt {} was started {:.0} s ago by {}", attempt.number, now_s - attempt.started_s, attempt.by),
            format!("wait until it trains: `vidtui status {id}`"),
        )),
        // The processes cannot be checked: recent steps in the files do not show whether they are alive now.
        state if facts.alive == Liveness::Unknown && !state.is_end() => Err(Failure::new(
            ErrorCode::RunStateUnknown,
            what,
            format!("attempt {} ran on {}, which cannot be reached: it may be alive", attempt.number, nodes(attempt)),
            format!("resume again when these nodes can be reached, or run `vidtui resume {id}` on one of them"),
        )),
        _ => Ok(None),
    }
}

/// Returns whether every node has an exit file. A supervisor writes this file after its last rank has ended, so at most
/// supervisors that are exiting are still alive.
fn is_over(facts: &RunFacts, attempt: &Attempt) -> bool {
    let ended =
        |node: &cluster::NodeId| facts.exits.iter().any(|exit| exit.attempt == attempt.number && exit.node == *node);
    attempt.placement.by_node().into_iter().all(|(node, _)| ended(node))
}

/// Returns the checkpoint to continue from; `None` if the run has no complete one.
fn choose<'a>(what: &str, request: &ResumeRequest<'a>) -> Result<Option<&'a CheckpointSummary>, Failure> {
    let Some(step) = request.options.step else {
        if request.latest.is_none() && request.options.kind != ResumeKind::Everything {
            return Err(Failure::new(
                ErrorCode::NoCheckpoint,
                what,
                "the run has no complete checkpoint to take weights from",
                format!("start again from step 0: `vidtui resume {}`", request.run.id),
            ));
        }
        if let Some((dir, why)) = rundir::unreadable_after(request.checkpoints, request.latest) {
            let older = request.latest.map_or(String::new(), |latest| {
                format!(", or use an older one: `vidtui resume {} --step {}`", request.run.id, latest.step)
            });
            return Err(Failure::new(
                ErrorCode::CheckpointUnreadable,
                what,
                format!("checkpoint {dir} may be the newest and cannot be read: {why}"),
                format!("make it readable and resume again{older}"),
            ));
        }
        return Ok(request.latest);
    };
    let none = "remove --step: without a complete checkpoint, the run starts at step 0";
    checkpoint_of_step(what, request.checkpoints, step, none).map(Some)
}

/// Returns the complete checkpoint of a step.
///
/// * `none` — what to do if the run has no complete checkpoint.
///
/// # Errors
/// When the checkpoint is missing, incomplete or cannot be read. The hint lists the complete ones.
pub fn checkpoint_of_step<'a>(
    what: &str,
    checkpoints: &'a [CheckpointEntry],
    step: u64,
    none: &str,
) -> Result<&'a CheckpointSummary, Failure> {
    let complete: Vec<String> =
        checkpoints.iter().filter_map(|entry| entry.complete()).map(|c| c.step.to_string()).collect();
    let fix = match &complete[..] {
        [] => none.to_owned(),
        steps => format!("choose a complete checkpoint: --step {}", steps.join(" or --step ")),
    };
    match checkpoints.iter().find(|entry| entry.step() == step) {
        Some(CheckpointEntry::Complete(summary)) => Ok(summary),
        Some(CheckpointEntry::Incomplete { dir, why, .. }) => Err(Failure::new(
            ErrorCode::CheckpointIncomplete,
            what,
            format!("checkpoint {dir} is incomplete: {why}"),
            fix,
        )),
        Some(CheckpointEntry::Unreadable { dir, why, .. }) => {
            let other = if complete.is_empty() { String::new() } else { format!(", or {fix}") };
            let fix = format!("make it readable{other}");
            Err(Failure::new(
                ErrorCode::CheckpointUnreadable,
                what,
                format!("checkpoint {dir} cannot be read: {why}"),
                fix,
            ))
        }
        None => {
            Err(Failure::new(ErrorCode::NoCheckpoint, what, format!("the run has no checkpoint of step {step}"), fix))
        }
    }
}

fn warnings_about(request: &ResumeRequest<'_>, checkpoint: Option<&CheckpointSummary>) -> Vec<String> {
    let mut warnings = Vec::new();
    let from = checkpoint.map_or(0, |checkpoint| checkpoint.step);
    // Encodes and samples have no checkpoints: a resume keeps what is done.
    if checkpoint.is_none() && request.run.task() == recipe::Task::Train {
        let lost = request.facts.last_metric.map_or(String::new(), |(step, _)| format!(" and repeats {step} steps"));
        warnings.push(format!("the run has no complete checkpoint: it starts at step 0{lost}"));
    }
    if let (Liveness::Unknown, Some(last)) = (request.facts.alive, &request.facts.attempt) {
        warnings.push(format!(
            "a node of attempt {} cannot be reached: its remaining processes cannot train and will exit",
            last.number
        ));
    }
    for entry in request.checkpoints {
        let (step, how, why) = match entry {
            CheckpointEntry::Complete(_) => continue,
            CheckpointEntry::Incomplete { step, why, .. } => (step, "is incomplete", why),
            CheckpointEntry::Unreadable { step, why, .. } => (step, "cannot be read", why),
        };
        if *step > from {
            warnings.push(format!("the checkpoint of step {step} {how} and is skipped: {why}"));
        }
    }
    if let (Some(latest), Some(_)) = (request.latest, request.options.step)
        && latest.step > from
    {
        warnings.push(format!("steps {} to {} are trained again", from + 1, latest.step));
    }
    warnings
}

/// Refuses a run that has made all its videos. Otherwise the next attempt keeps the videos that exist.
fn refuse_if_sampled(what: &str, request: &ResumeRequest<'_>, now_s: f64) -> Result<(), Failure> {
    if derive(request.facts, now_s) != RunState::Finished {
        return Ok(());
    }
    Err(Failure::new(
        ErrorCode::RunFinished,
        what,
        "all its videos are made",
        "make others with `vidtui sample`, or the same in a new run with another --seed",
    ))
}

/// The key of the total steps.
const STEPS: &str = "train.steps";

/// Returns the change of the total steps that the request names, if they differ from those of the last attempt.
fn changed_steps(request: &ResumeRequest<'_>, recipe: &Recipe) -> Option<ResumeChange> {
    let to = request.options.steps?;
    let before = request.facts.attempt.as_ref().and_then(|last| last.steps).or_else(|| recipe.train.length.steps());
    let change = recipe::Change { key: STEPS.into(), from: before.map(|steps| steps.to_string()), to: to.to_string() };
    // A schedule with a length of its own does not depend on the total.
    let effect = if recipe.optimizer.schedule_steps > 0 { ResumeEffect::None } else { ResumeEffect::Training };
    (before != Some(to)).then_some(ResumeChange { change, effect })
}

/// Returns the total steps of the run if they differ from the recipe's. Later resumes keep this number.
fn steps(
    what: &str,
    request: &ResumeRequest<'_>,
    recipe: &Recipe,
    checkpoint: Option<&CheckpointSummary>,
) -> Result<Option<u64>, Failure> {
    let raised = request.options.steps.or(request.facts.attempt.as_ref().and_then(|last| last.steps));
    let of_recipe = recipe.train.length.steps();
    // The steps of epochs are computed from the data sets when the run starts.
    let Some(total) = raised.or(of_recipe) else { return Ok(None) };
    let done = checkpoint.map_or(0, |checkpoint| checkpoint.step);
    if done >= total {
        let id = &request.run.id;
        let longer = longer(done, of_recipe.unwrap_or(total));
        let next = if request.run.stage.is_some() {
            format!(", or start the next stage: `vidtui next {id}`")
        } else {
            String::new()
        };
        return Err(Failure::new(
            ErrorCode::RunFinished,
            what,
            format!("all {total} steps are done; the checkpoint is of step {done}"),
            format!("train longer: `vidtui resume {id} --set train.steps={longer}`{next}"),
        ));
    }
    let logged = request.facts.last_metric.map_or(0, |(step, _)| step);
    if checkpoint.is_none() && logged >= total {
        return Err(Failure::new(
            ErrorCode::RunFinished,
            what,
            format!("all {total} steps are done, and it has no complete checkpoint"),
            "launch it again; a resume would repeat all steps from step 0",
        ));
    }
    Ok(raised.filter(|steps| Some(*steps) != of_recipe))
}

/// Returns the total steps that a resume of a run proposes when all its steps are done. `None` if steps are left, or if their number is not
/// known.
///
/// * `done` — the step of the newest complete checkpoint.
pub fn longer_steps(recipe: &Recipe, last: Option<&Attempt>, done: u64) -> Option<u64> {
    let of_recipe = recipe.train.length.steps();
    let total = last.and_then(|last| last.steps).or(of_recipe)?;
    (done >= total).then(|| longer(done, of_recipe.unwrap_or(total)))
}

/// Returns the steps done plus the original length of the run, rounded up to two digits: 400 for 200 + 200, 250 for 41 + 200.
fn longer(done: u64, length: u64) -> u64 {
    let sum = done.saturating_add(length.max(1));
    let unit = 10_u64.pow(sum.ilog10().saturating_sub(1));
    sum.div_ceil(unit).saturating_mul(unit)
}

/// Returns the last mesh or the recipe's mesh if its size fits. Otherwise keeps `dp_replicate` and `tp`, and changes
/// `dp_shard`.
fn fit_mesh(what: &str, request: &ResumeRequest<'_>, recipe: &Recipe, cx: &Context) -> Result<Mesh, Failure> {
    let ranks = cx.target.slots();
    let changes_mesh = |change: &ResumeChange| change.change.key.starts_with("mesh.");
    let is_changed = request.changed.as_ref().is_some_and(|(_, changes)| changes.iter().any(changes_mesh));
    let last = request.facts.attempt.as_ref().map(|attempt| attempt.mesh).filter(|_| !is_changed);
    if let Some(mesh) = last.into_iter().chain([recipe.mesh]).find(|mesh| mesh.world() == ranks) {
        return Ok(mesh);
    }
    if recipe.job() == recipe::JobKind::Command && ranks > 0 {
        return Ok(command_mesh(ranks));
    }
    let Mesh { dp_replicate, tp, .. } = recipe.mesh;
    let row = dp_replicate * tp;
    if ranks == 0 || !ranks.is_multiple_of(row) {
        let kept = if tp == 1 { String::new() } else { format!(" × tp {tp}") };
        return Err(Failure::new(
            ErrorCode::InvalidMesh,
            what,
            format!(
                "mesh {} needs {}, {} has {ranks}, and {ranks} is not a multiple of dp_replicate {dp_replicate}{kept}",
                sizes(&recipe.mesh),
                counted(recipe.mesh.world(), "rank"),
                cx.target.description
            ),
            format!("start {} or another multiple of {row}", counted(recipe.mesh.world(), "rank")),
        ));
    }
    let mesh = Mesh { dp_replicate, dp_shard: ranks / row, tp };
    let (batch, accum) = (recipe.train.global_batch, recipe.train.grad_accum);
    let parts = mesh.data_ranks() * accum;
    if !batch.is_multiple_of(parts) {
        let each = if tp == 1 { String::new() } else { format!(" / tp {tp}") };
        return Err(Failure::new(
            ErrorCode::InvalidMesh,
            what,
            format!(
                "train.global_batch {batch} is not a multiple of {}{each} × train.grad_accum {accum} = {parts}",
                counted(ranks, "rank"),
            ),
            format!("start as many ranks as before: {}", last_ranks(request.run, request.facts.attempt.as_ref())),
        ));
    }
    Ok(mesh)
}

/// Returns the origin of the weights of the attempt, its start step, and a description of the weights.
fn start_of(request: &ResumeRequest<'_>, checkpoint: Option<&CheckpointSummary>) -> (StartFrom, u64, String) {
    let run = request.run.id.clone();
    let Some(&CheckpointSummary { step, .. }) = checkpoint else {
        let description = match &request.run.start {
            StartFrom::Random => "random, from the recipe's seed".to_owned(),
            StartFrom::Weights { path } => path.to_string(),
            StartFrom::Checkpoint { run, step } | StartFrom::CheckpointFreshData { run, step } => {
                format!("step {step} of run {run}")
            }
        };
        return (request.run.start.clone(), 0, description);
    };
    match request.options.kind {
        ResumeKind::FreshData => (
            StartFrom::CheckpointFreshData { run, step },
            step,
            format!("step {step} of this run, with optimizer; the data order restarts"),
        ),
        _ => (
            StartFrom::Checkpoint { run, step },
            step,
            format!("step {step} of this run, with optimizer and data position"),
        ),
    }
}

fn parent(request: &ResumeRequest<'_>, checkpoint: &CheckpointSummary) -> Lineage {
    Lineage { run: request.run.id.clone(), step: checkpoint.step }
}

/// Plans a new run that starts from a checkpoint of this one.
fn new_run(
    what: &str,
    request: &ResumeRequest<'_>,
    recipe: &Recipe,
    origin: Origin,
    cx: &Context,
) -> Result<LaunchPlan, Failure> {
    let run = request.run;
    let mut recipe = recipe.clone();
    // The steps of the new run begin at 0.
    recipe.optimizer.schedule_start = 0;
    // Without another number, as many as the run had in the end; epochs are counted again.
    let has_steps = recipe.train.length.steps().is_some();
    let before = request.facts.attempt.as_ref().and_then(|last| last.steps).filter(|_| has_steps);
    let steps = request.options.steps.or(before);
    recipe.train.length = steps.map_or(recipe.train.length, Length::Steps);
    let new = NewRun {
        name: &run.name,
        recipe: &recipe,
        stage: run.curriculum.clone().zip(run.stage.clone()),
        origin,
        warnings: Vec::new(),
    };
    let mut plan = new.plan(what, cx)?;
    let keys = request.changed.iter().flat_map(|(_, changes)| changes.clone());
    let changes = changed_steps(request, &request.run.recipe()?).into_iter().chain(keys);
    plan.summary.splice(0..0, changes.map(|change| values_row(&change.change)));
    Ok(plan)
}

#[cfg(test)]
mod tests;

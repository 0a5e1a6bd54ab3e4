//! `vidtui heal`: resumes a run whenever it fails, until it has finished or was stopped.

use crate::args::HealArgs;
use crate::command_error::CommandError;
use crate::commands::named_run;
use crate::output::{self, note};
use crate::workspace::{Needs, Workspace, record_heal};
use alerts::{Limits, Outbox, Settings};
use plan::{FailedAttempt, HealDecision, heal_decision, healed_too_often};
use recipe::{OnFailure, RunSettings};
use rundir::{AlertWriter, ErrorCode, Event, EventKind, Failure, Healer, Run, RunDir, SCHEMA, now_s};
use runstate::{Liveness, RunFacts, RunState, RunSummary};
use std::thread;
use std::time::{Duration, Instant};
use ui::event_text::describe;
use ui::run_state::StateKind;

/// The interval at which the state of the run is read.
const POLL: Duration = Duration::from_secs(2);
/// The first and the longest pause between retries to resume. Each pause is twice as long as the one before.
const RETRY: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(300)];

/// Resumes a run whenever it fails.
///
/// # Errors
/// Another process already heals the run, the run is a Slurm job, its files could start programs of another user, or the run cannot be
/// resumed any more.
pub fn run(workspace: &Workspace, args: &HealArgs) -> Result<(), CommandError> {
    let dir = named_run(workspace, &args.run, Needs::Resume, args.output.json)?;
    let run = dir.read_run()?;
    let what = format!("cannot heal {}", run.id);
    run.refuse_if_imported(&*what)?;
    run.refuse_if_attached(&*what)?;
    dir.check_trusted(&what)?;
    if dir.latest_attempt()?.is_some_and(|attempt| attempt.slurm.is_some()) {
        let why = "it runs in a Slurm job, whose script requeues it";
        let fix = "set run.on_failure = \"resume\" in the recipe of the next launch";
        return Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, fix)));
    }
    let heals_already = || {
        let by = dir
            .healer()
            .map_or("another process".into(), |healer| format!("process {} on {}", healer.pid, healer.node));
        let fix = format!("watch the run: vidtui status {}", run.id);
        Err(Failure::new(ErrorCode::AlreadyExists, &*what, format!("{by} heals it already"), fix).into())
    };
    if args.detached {
        if dir.healer().is_some() {
            return heals_already();
        }
        let pid = workspace.spawn_healer(&run.id, &dir)?;
        return match args.output.json {
            true => output::json(&serde_json::json!({ "run": run.id, "healer": pid })),
            false => output::line(&format!("process {pid} resumes {} after a failure", run.id)),
        };
    }
    if args.own_session {
        // The end of the terminal does not end a process of another session.
        let _ = nix::unistd::setsid();
    }
    let healer =
        Healer { schema: SCHEMA, node: workspace.connections.this_node().node.clone(), pid: std::process::id() };
    let Some(_lock) = dir.lock_healer(&healer)? else { return heals_already() };
    let settings = RunSettings { on_failure: OnFailure::Resume, ..run.recipe()?.run };
    let outbox = outbox(&dir);
    let next_try = Instant::now();
    let mut watch =
        Watch { workspace, meta: run, dir, settings, outbox, next_try, pause: RETRY[0], waits: None, watches: false };
    let ended = watch.until_ended();
    watch.outbox.end(Limits::default().end);
    ended
}

/// Opens the alert channels of this user, or those of the newest attempt if the user's settings are invalid.
fn outbox(dir: &RunDir) -> Outbox {
    let settings = Settings::of_user().map(Option::unwrap_or_default).or_else(|failure| {
        note!("{failure}");
        let newest = dir.attempt_numbers()?.last().copied().unwrap_or_default();
        Settings::of_attempt(dir, newest)
    });
    let settings = settings.unwrap_or_else(|failure| {
        note!("{failure}");
        Settings::default()
    });
    Outbox::open(dir, AlertWriter::Healer, settings, Limits::default(), |line| note!("{line}"))
}

/// A run that the healer watches, with the state of its retries.
struct Watch<'a> {
    workspace: &'a Workspace,
    meta: Run,
    dir: RunDir,
    settings: RunSettings,
    /// Sends the alerts that only a healer raises: it resumed the run, or it gave up.
    outbox: Outbox,
    /// The earliest time of the next try to resume.
    next_try: Instant,
    /// The pause after that try, if it fails.
    pause: Duration,
    /// The last recorded reason to wait.
    waits: Option<String>,
    /// Whether the log has the line that the healer watches the run.
    watches: bool,
}

/// The state of the run, as the healer sees it.
enum RunStatus {
    /// The run is alive, or its state is unknown.
    Alive,
    /// The run has ended and is not resumed, for this reason.
    Ended(String),
    /// The run has failed.
    Failed(Box<(RunSummary, RunFacts)>, FailedAttempt),
}

impl Watch<'_> {
    fn until_ended(&mut self) -> Result<(), CommandError> {
        loop {
            let temporary = match self.look() {
                Ok(RunStatus::Ended(why)) => {
                    self.log(&format!("{why}; the healer ends"));
                    return Ok(());
                }
                Ok(RunStatus::Alive) => {
                    if !std::mem::replace(&mut self.watches, true) {
                        self.log(&format!("{} is resumed after a failure", self.meta.id));
                    }
                    (self.pause, self.next_try, self.waits) = (RETRY[0], Instant::now(), None);
                    None
                }
                Ok(RunStatus::Failed(state, failed)) => self.heal(&state, &failed)?,
                Err(failure) => Some(failure),
            };
            // A temporary failure, such as an unreachable file system, is printed and retried.
            if let Some(failure) = temporary {
                note!("{failure}");
            }
            thread::sleep(POLL);
        }
    }

    fn look(&self) -> Result<RunStatus, Failure> {
        let runs = &self.workspace.runs;
        if runs.is_dir() && !self.dir.root.exists() {
            return Ok(RunStatus::Ended(format!("the folder {} does not exist any more", self.dir.root)));
        }
        let (summary, facts) = self.workspace.summary(&self.dir)?;
        let now_s = now_s();
        let ended = || {
            let kind = StateKind::of(&summary.state);
            let how = if kind == StateKind::Finished { "has finished" } else { "was stopped" };
            RunStatus::Ended(format!("{} {how}", summary.run.id))
        };
        // A user's stop request ends the run, also if its processes fail.
        if facts.stops_for_good && (summary.state.is_end() || summary.state == RunState::New) {
            return Ok(ended());
        }
        match FailedAttempt::of(&facts, &summary.state, now_s) {
            Some(_) if facts.alive == Liveness::Alive || !facts.has_settled(now_s) => Ok(RunStatus::Alive),
            Some(failed) => Ok(RunStatus::Failed(Box::new((summary, facts)), failed)),
            None if summary.state.is_end() => Ok(ended()),
            None => Ok(RunStatus::Alive),
        }
    }

    /// Resumes the run if a try is due. Returns a failure that is only temporary, if there is one.
    ///
    /// # Errors
    /// The run cannot be resumed any more, and the healer ends.
    fn heal(
        &mut self,
        state: &(RunSummary, RunFacts),
        failed: &FailedAttempt,
    ) -> Result<Option<Failure>, CommandError> {
        if Instant::now() < self.next_try {
            return Ok(None);
        }
        let events = match rundir::read_events(&self.dir) {
            Ok(events) => events,
            Err(error) => return Ok(Some(error.into())),
        };
        let decided = |event: &Event| {
            event.attempt == failed.attempt
                && matches!(event.kind, EventKind::HealStarted { .. } | EventKind::HealEnded { .. })
        };
        let decision = heal_decision(&self.settings, failed, &events, now_s());
        if let HealDecision::End(failure) = decision {
            return self.end(failed, failure);
        }
        if !events.iter().any(decided) {
            self.record(failed.attempt, failed.heal_started());
        }
        if let HealDecision::Later(_) = decision {
            self.wait(failed.attempt, healed_too_often(&self.settings));
            return Ok(None);
        }
        match self.resume(state, failed) {
            Ok(()) => {}
            // A user resumed or stopped the run in the meantime.
            Err(failure) if is_users_turn(failure.code) => {}
            Err(failure) if is_final(failure.code) => return self.end(failed, failure),
            Err(failure) => {
                self.wait(failed.attempt, format!("{}: {}", failure.what, failure.why));
                self.next_try = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(RETRY[1]);
            }
        }
        Ok(None)
    }

    fn end<T>(&mut self, failed: &FailedAttempt, failure: Failure) -> Result<T, CommandError> {
        self.record(failed.attempt, EventKind::HealEnded { failure: failure.clone() });
        Err(failure.into())
    }

    fn resume(&mut self, state: &(RunSummary, RunFacts), failed: &FailedAttempt) -> Result<(), Failure> {
        let plan = self.workspace.plan_heal(state, &self.settings, failed)?;
        plan.warnings.iter().for_each(|warning| note!("warning: {warning}"));
        self.workspace.launch(&plan, &|step| note!("{step}"))?;
        let without = plan.nodes_left_out(state.0.attempt.as_ref());
        let down_s = now_s() - state.1.last_activity_s().unwrap_or_else(now_s);
        self.record(plan.attempt.number, EventKind::Healed { without, down_s });
        Ok(())
    }

    /// Records a reason to wait, unless it is the last recorded reason.
    fn wait(&mut self, attempt: u32, why: String) {
        if self.waits.as_ref() != Some(&why) {
            self.record(attempt, EventKind::HealWaiting { why: why.clone() });
            self.waits = Some(why);
        }
    }

    /// Prints a line with the time, which a healer in the background has in its `healer.log`.
    fn log(&self, line: &str) {
        note!("{} {line}", jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%S UTC"));
    }

    fn record(&mut self, attempt: u32, kind: EventKind) {
        let event = Event::new(now_s(), attempt, None, kind.clone());
        // The error that ends the healer is printed as its last line.
        if !matches!(kind, EventKind::HealEnded { .. }) {
            self.log(&format!("attempt {attempt}: {}", describe(&event).0));
        }
        if let Err(failure) = record_heal(&self.dir, attempt, kind) {
            note!("{failure}");
        }
        let before = rundir::read_events(&self.dir).unwrap_or_default();
        let repeated = alerts::of_repeated_fault(&self.meta, &before, &event, event.t);
        for alert in alerts::of_event(&self.meta, &event, event.t).into_iter().chain(repeated) {
            self.outbox.raise(alert);
        }
    }
}

/// Returns whether a failure to resume means that a user has resumed or stopped the run.
fn is_users_turn(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::RunIsAlive | ErrorCode::AttemptConflict | ErrorCode::RunNotRunning)
}

/// Returns whether a retry would fail in the same way.
fn is_final(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::InvalidDataset
            | ErrorCode::InvalidRecipe
            | ErrorCode::InvalidSecrets
            | ErrorCode::RunFinished
            | ErrorCode::UntrustedFile
    )
}

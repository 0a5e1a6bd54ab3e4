//! The queue of runs: checks launches that are added, plans the run whose turn it is, and starts the queue worker.

use super::{Init, LaunchOptions, Needs, Subject, Workspace};
use crate::args::{LaunchArgs, StageArgs};
use crate::command_error::CommandError;
use crate::commands::typed;
use cluster::NodeId;
use plan::LaunchPlan;
use recipe::{JobKind, StageStart};
use rundir::{ErrorCode, Failure, Queue, QueueEntry, QueueState, QueueWorker, RunDir, RunId, SCHEMA};
use runstate::{Liveness, RunState};

/// A launch that was checked, for a new entry.
pub struct CheckedLaunch {
    /// The arguments of `vidtui launch`.
    pub words: Vec<String>,
    /// The entry whose run has the weights that this run starts from.
    pub after: Option<u32>,
}

/// The decision about the entry whose turn it is.
pub enum Turn {
    /// The nodes of the entry are in use, or the run that it follows has not ended.
    Wait,
    /// The run can start with this plan.
    Start(Box<LaunchPlan>),
}

impl Workspace {
    /// Returns the queue of the folder of runs.
    pub fn queue(&self) -> Queue {
        Queue::of(&self.runs)
    }

    /// Returns the recipe or the stages that an argument names: a curriculum stands for all of its stages.
    ///
    /// # Errors
    /// When the curriculum is not valid.
    pub fn queued_subjects(&self, word: &str, sets: &[String]) -> Result<Vec<String>, CommandError> {
        let path = camino::Utf8Path::new(word);
        if !path.is_dir() && path.file_name() != Some("curriculum.toml") {
            return Ok(vec![word.to_owned()]);
        }
        let curriculum = super::curriculum(path, sets)?;
        Ok(curriculum.stages.iter().map(|stage| format!("{}:{}", curriculum.path, stage.name)).collect())
    }

    /// Checks a launch as far as possible before its turn, and returns its arguments with exact names, such as a run ID for `latest`.
    ///
    /// * `earlier` — the entries before this one. If one of them trains the previous stage, this stage starts from its run.
    ///
    /// # Errors
    /// When the recipe, the nodes or the weights are not valid.
    pub fn check_queued(&self, args: &LaunchArgs, earlier: &[QueueEntry]) -> Result<CheckedLaunch, CommandError> {
        let StageArgs { recipe: word, fit, how, init } = &args.stage;
        let nodes = &how.nodes;
        if nodes.slurm.is_some() {
            return Err(CommandError::request(Failure::new(
                ErrorCode::InvalidArgument,
                "cannot add to the queue",
                "Slurm has a queue of its own",
                "submit the run now: vidtui launch … --slurm FILE",
            )));
        }
        let mut subject = self.subject(word, &how.sets())?;
        let fitted = self.fit(subject.resolved_mut(), (*fit).into(), nodes)?;
        let init = init.as_deref().map(|given| self.exact_run(given)).transpose()?;
        let word = match subject.stage() {
            Some((curriculum, stage)) => format!("{}:{}", curriculum.path, stage.name),
            None => word.clone(),
        };
        let after = if init.is_none() { before_in_queue(&subject, earlier) } else { None };
        let options = LaunchOptions {
            subject: &subject,
            ranks: how.local,
            nodes,
            name: args.name.as_deref(),
            init: init.as_deref().into(),
            fitted,
        };
        match after {
            // The weights do not exist yet, so only the ranks are checked.
            Some(_) => self.check_ranks(&options)?,
            None => drop(self.plan_launch(&options)?),
        }
        Ok(CheckedLaunch { words: launch_words(args, word, init), after })
    }

    /// Returns the ID of a run, so that `latest` keeps naming the run that is the newest now. Returns a path unchanged.
    fn exact_run(&self, given: &str) -> Result<String, CommandError> {
        if given.contains('/') || camino::Utf8Path::new(given).exists() {
            return Ok(given.to_owned());
        }
        Ok(self.find_for(given, Needs::Weights)?.read_run()?.id.to_string())
    }

    fn check_ranks(&self, options: &LaunchOptions<'_>) -> Result<(), CommandError> {
        let recipe = &options.subject.resolved().recipe;
        let target = self.target(options.ranks, options.nodes, recipe.mesh.world(), recipe.run.spares)?;
        if recipe.job() != JobKind::Command {
            recipe.check_world(target.slots()).map_err(super::subject::recipe_failure)?;
        }
        Ok(())
    }

    /// Decides whether an entry of the queue can start now, and plans its run. The process must be in the folder of the entry.
    ///
    /// # Errors
    /// When its run cannot be started.
    pub fn turn(&self, entry: &QueueEntry, entries: &[QueueEntry]) -> Result<Turn, Failure> {
        let line = plan::command_line(&entry.launch);
        let args: LaunchArgs = typed::typed(&line, "launch", "RECIPE").map_err(CommandError::into_failure)?;
        let StageArgs { recipe: word, fit, how, init } = &args.stage;
        let previous = match entry.after.and_then(|id| entries.iter().find(|other| other.id == id)) {
            None => None,
            Some(before) => match self.run_before(before, entry.id)? {
                Some(run) => Some(run),
                None => return Ok(Turn::Wait),
            },
        };
        let plan = || -> Result<Turn, CommandError> {
            let mut subject = self.subject(word, &how.sets())?;
            let fitted = self.fit(subject.resolved_mut(), (*fit).into(), &how.nodes)?;
            let recipe = &subject.resolved().recipe;
            let target = self.target(how.local, &how.nodes, recipe.mesh.world(), recipe.run.spares)?;
            if self.are_in_use(&target.nodes.iter().map(|node| node.id.clone()).collect::<Vec<_>>()) {
                return Ok(Turn::Wait);
            }
            let init = previous.as_ref().map_or(init.as_deref().into(), Init::Run);
            let name = args.name.as_deref();
            let options = LaunchOptions { subject: &subject, ranks: how.local, nodes: &how.nodes, name, init, fitted };
            Ok(Turn::Start(Box::new(self.plan_launch(&options)?)))
        };
        plan().map_err(CommandError::into_failure)
    }

    /// Returns the run of an earlier entry once it has ended and its weights can be used; `None` before that.
    ///
    /// * `next` — the entry that continues this run, for the error.
    fn run_before(&self, before: &QueueEntry, next: u32) -> Result<Option<RunId>, Failure> {
        let failed = |why, fix| Err(Failure::new(ErrorCode::NoWeights, "the run cannot start", why, fix));
        let id = before.id;
        match &before.state {
            QueueState::Waiting | QueueState::Held | QueueState::Starting { .. } => Ok(None),
            QueueState::Failed { .. } => {
                let why = format!("it continues the run of entry {id}, which did not start");
                failed(why, format!("when entry {id} can start, start both: vidtui queue release {id} {next}"))
            }
            QueueState::Started { run, .. } => {
                let dir = self.dir(run);
                if !self.has_ended(&dir) {
                    return Ok(None);
                }
                match self.summary(&dir)?.0.state {
                    // A user who stops a stage has trained it enough.
                    RunState::Finished | RunState::Stopped => Ok(Some(run.clone())),
                    _ => {
                        let why = format!("it continues {run} of entry {id}, which failed");
                        failed(why, format!("resume that run: vidtui resume {run}; then: vidtui queue release {next}"))
                    }
                }
            }
        }
    }

    /// Returns whether a run uses one of these nodes or may use it again.
    pub fn are_in_use(&self, nodes: &[NodeId]) -> bool {
        let uses_them = |dir: &RunDir| {
            let attempt = dir.latest_attempt().ok().flatten();
            attempt.is_some_and(|attempt| attempt.placement.ranks.iter().any(|place| nodes.contains(&place.node)))
        };
        runstate::list_runs(&self.runs).into_iter().flatten().any(|dir| uses_them(&dir) && !self.has_ended(&dir))
    }

    /// Returns whether a run has ended, and no process will resume it.
    fn has_ended(&self, dir: &RunDir) -> bool {
        if !dir.root.exists() {
            return true;
        }
        self.summary(dir).is_ok_and(|(summary, facts)| {
            summary.state.is_end() && facts.alive != Liveness::Alive && dir.healer().is_none()
        })
    }

    /// Starts this user's worker of the queue, unless one runs.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start_queue_worker(&self) -> Result<(), Failure> {
        let queue = self.queue();
        if queue.worker().is_some() {
            return Ok(());
        }
        let what = "cannot start the queue worker";
        self.spawn_detached(&["queue", "work", "--own-session"], &queue.log(), what, "vidtui queue work").map(drop)
    }

    /// Returns this process as the worker of the queue.
    pub fn as_queue_worker(&self) -> QueueWorker {
        QueueWorker { schema: SCHEMA, node: self.connections.this_node().node.clone(), pid: std::process::id() }
    }
}

/// Returns the entry that trains the previous stage, if the stage of a new entry starts from that stage.
fn before_in_queue(subject: &Subject, earlier: &[QueueEntry]) -> Option<u32> {
    let (curriculum, stage) = subject.stage().filter(|(_, stage)| stage.start == StageStart::Previous)?;
    let before = curriculum.stages.iter().take_while(|other| other.name != stage.name).last()?;
    let word = format!("{}:{}", curriculum.path, before.name);
    // The words of another user are relative to another folder.
    let is_it = |entry: &&QueueEntry| {
        let may_train = entry.owner.is_none() && !matches!(entry.state, QueueState::Failed { .. });
        may_train && entry.launch.first() == Some(&word)
    };
    earlier.iter().rev().find(is_it).map(|entry| entry.id)
}

/// Returns the arguments of `vidtui launch` for an entry, with `word` and `init` in place of the given recipe and weights.
fn launch_words(args: &LaunchArgs, word: String, init: Option<String>) -> Vec<String> {
    let how = &args.stage.how;
    let nodes = &how.nodes;
    let path = |path: &Option<camino::Utf8PathBuf>| path.as_ref().map(ToString::to_string);
    let options = [
        ("--fit", args.stage.fit.map(|ranks| ranks.to_string())),
        ("--local", how.local.map(|ranks| ranks.to_string())),
        ("--hostfile", path(&nodes.hostfile)),
        ("--include", nodes.include.clone()),
        ("--exclude", nodes.exclude.clone()),
        ("--init", init),
        ("--name", args.name.clone()),
    ];
    let repeated = nodes.waive.iter().map(|check| ("--waive", Some(check.clone())));
    let sets = how.sets().into_iter().map(|set| ("--set", Some(set)));
    let options = options.into_iter().chain(repeated).chain(sets);
    let options = options.filter_map(|(flag, value)| Some([flag.to_owned(), value?])).flatten();
    let push = Some("--push".to_owned()).filter(|_| nodes.push);
    [word].into_iter().chain(options).chain(push).collect()
}

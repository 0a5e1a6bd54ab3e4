//! The queue of runs: checks launches that are added, plans the run whose turn it is, and starts the queue worker.

use super::{Init, LaunchOptions, Needs, Subject, Workspace};
use crate::args::{LaunchArgs, StageArgs};
use crate::command_error::CommandError;
use crate::commands::typed;
use cluster::{NodeId, hostlist};
use plan::LaunchPlan;
use recipe::{JobKind, StageStart};
use rundir::{ErrorCode, Failure, Queue, QueueEntry, QueueState, QueueWorker, RunDir, RunId, SCHEMA};
use runstate::{Liveness, RunState};
use std::fmt;
use ui::QueueRow;
use ui::run_state::short_id;

/// A launch that was checked, for a new entry.
pub struct CheckedLaunch {
    /// The arguments of `vidtui launch`.
    pub words: Vec<String>,
    /// The entry whose run has the weights that this run starts from.
    pub after: Option<u32>,
}

/// What an entry waits for before its run can start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// The start of an entry above it.
    Turn(u32),
    /// The end of the run of an entry, whose weights it starts from.
    Weights(u32),
    /// The end of a run that uses some of its nodes.
    Nodes {
        /// The folder of the run.
        run: String,
        /// The nodes that both use.
        nodes: Vec<NodeId>,
    },
}

impl Wait {
    /// Completes the sentence "waits for …", with the id of a run without its date.
    fn short(&self) -> String {
        match self {
            Wait::Nodes { run, nodes } => {
                let run = RunId::parse(run).map_or_else(|_| run.clone(), |run| short_id(&run).to_owned());
                Wait::Nodes { run, nodes: nodes.clone() }.to_string()
            }
            wait => wait.to_string(),
        }
    }
}

/// Completes the sentence "waits for …".
impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::Turn(id) => write!(f, "entry {id} to start"),
            Wait::Weights(id) => write!(f, "the run of entry {id}"),
            Wait::Nodes { run, nodes } => {
                let nodes: Vec<&str> = nodes.iter().map(NodeId::as_str).collect();
                write!(f, "{run} on {}", hostlist::compress(&nodes))
            }
        }
    }
}

/// The decision about the entry whose turn it is.
pub enum Turn {
    /// The run cannot start yet.
    Wait,
    /// The run can start with this plan.
    Start(Box<LaunchPlan>),
}

/// An entry whose run can be planned.
struct Ready {
    args: LaunchArgs,
    /// The run whose weights it starts from, if that of another entry.
    previous: Option<RunId>,
    subject: Subject,
    /// What `--fit` chose, for the plan.
    fitted: Option<String>,
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
        let Ok(Ready { args, previous, subject, fitted }) = self.ready(entry, entries)? else { return Ok(Turn::Wait) };
        let StageArgs { how, init, .. } = &args.stage;
        let init = previous.as_ref().map_or(init.as_deref().into(), Init::Run);
        let name = args.name.as_deref();
        let options = LaunchOptions { subject: &subject, ranks: how.local, nodes: &how.nodes, name, init, fitted };
        let plan = self.plan_launch(&options).map_err(CommandError::into_failure)?;
        Ok(Turn::Start(Box::new(plan)))
    }

    /// Returns what an entry waits for; `None` if it can start now, if it waits for no other entry or run, or if that is not known: its
    /// run cannot be planned, or its paths are relative to another folder than that of the process.
    pub fn waits_for(&self, entry: &QueueEntry, entries: &[QueueEntry]) -> Option<Wait> {
        if entry.state != QueueState::Waiting {
            return None;
        }
        let above = entries.iter().take_while(|other| other.id != entry.id);
        let above = above.filter(|other| other.owner == entry.owner && other.state == QueueState::Waiting).last();
        if let Some(above) = above {
            return Some(Wait::Turn(above.id));
        }
        if entry.owner.is_some() || entry.folder != self.here {
            return None;
        }
        self.ready(entry, entries).ok()?.err()
    }

    /// Returns the entries whose runs have not started, for the console.
    ///
    /// * `entries` — all entries of the queue.
    pub fn queue_rows(&self, entries: &[QueueEntry]) -> Vec<QueueRow> {
        let row = |entry: &QueueEntry| QueueRow {
            id: entry.id,
            recipe: entry.launch.first().cloned().unwrap_or_default(),
            state: match (&entry.state, &entry.owner) {
                (QueueState::Held, _) => "held".to_owned(),
                (_, Some(owner)) => format!("waits for a worker of {owner}"),
                _ => self
                    .waits_for(entry, entries)
                    .map_or("waits".to_owned(), |wait| format!("waits for {}", wait.short())),
            },
        };
        entries.iter().filter(|entry| entry.is_pending()).map(row).collect()
    }

    /// Reads the recipe and the nodes of an entry, or returns what it waits for.
    fn ready(&self, entry: &QueueEntry, entries: &[QueueEntry]) -> Result<Result<Ready, Wait>, Failure> {
        let line = plan::command_line(&entry.launch);
        let args: LaunchArgs = typed::typed(&line, "launch", "RECIPE").map_err(CommandError::into_failure)?;
        let previous = match entry.after.and_then(|id| entries.iter().find(|other| other.id == id)) {
            None => None,
            Some(before) => match self.run_before(before, entry.id)? {
                Some(run) => Some(run),
                None => return Ok(Err(Wait::Weights(before.id))),
            },
        };
        let read = || -> Result<(Subject, Option<String>, Vec<NodeId>), CommandError> {
            let StageArgs { recipe: word, fit, how, .. } = &args.stage;
            let mut subject = self.subject(word, &how.sets())?;
            let fitted = self.fit(subject.resolved_mut(), (*fit).into(), &how.nodes)?;
            let recipe = &subject.resolved().recipe;
            let target = self.target(how.local, &how.nodes, recipe.mesh.world(), recipe.run.spares)?;
            Ok((subject, fitted, target.nodes.iter().map(|node| node.id.clone()).collect()))
        };
        let (subject, fitted, nodes) = read().map_err(CommandError::into_failure)?;
        Ok(match self.run_on(&nodes) {
            Some((run, nodes)) => Err(Wait::Nodes { run, nodes }),
            None => Ok(Ready { args, previous, subject, fitted }),
        })
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

    /// Returns a run that uses some of these nodes or may use them again, and those nodes.
    pub fn run_on(&self, nodes: &[NodeId]) -> Option<(String, Vec<NodeId>)> {
        let shared = |dir: &RunDir| -> Vec<NodeId> {
            let attempt = dir.latest_attempt().ok().flatten();
            let uses = |node: &&NodeId| {
                attempt.as_ref().is_some_and(|attempt| attempt.placement.ranks.iter().any(|place| place.node == **node))
            };
            nodes.iter().filter(uses).cloned().collect()
        };
        runstate::list_runs(&self.runs).into_iter().flatten().find_map(|dir| {
            let nodes = shared(&dir);
            let in_use = !nodes.is_empty() && !self.has_ended(&dir);
            in_use.then(|| (dir.name().to_owned(), nodes))
        })
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

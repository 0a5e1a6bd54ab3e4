//! The checks that a launch makes before it starts anything.

mod disks;
mod gpus;
mod node;
pub(crate) mod nodes;
mod slurm;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use camino::Utf8Path;
use cluster::NodeId;
use nix::unistd::{AccessFlags, access};
use plan::{DiskNeed, LaunchPlan, check_disk, check_weights, quote};
use recipe::Secrets;
use rundir::{Checkpoint, CheckpointEntry, Failure, RunDir};
use units::size;

use crate::Command;
use crate::parallel::on_nodes;
use crate::transport::{Shell, Transport};
use crate::weights::weights_dir;

/// One thing that must hold before a run starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// What was looked at: `disk`.
    pub what: String,
    /// Where, when it was on one node.
    pub node: Option<NodeId>,
    /// What was found, or what is wrong.
    pub result: Result<String, Failure>,
    /// Whether the launch goes on even if it fails: somebody has said so.
    pub waived: bool,
}

impl Check {
    pub(crate) fn new(plan: &LaunchPlan, what: &str, node: Option<&NodeId>, result: Result<String, Failure>) -> Self {
        let waived = plan.attempt.waived.iter().any(|name| name == what);
        Self { what: what.into(), node: node.cloned(), result, waived }
    }

    /// Returns why nothing may be started, if so.
    pub fn obstacle(&self) -> Option<&Failure> {
        self.result.as_ref().err().filter(|_| !self.waived)
    }
}

/// Makes every check of a launch, and starts nothing.
///
/// Whether the data fit the recipe is not among them: `weights::Index::check` tells.
pub fn checks(plan: &LaunchPlan, transports: &mut [Box<dyn Transport>]) -> Vec<Check> {
    let what = verb(plan);
    let mut checks = vec![
        Check::new(plan, "trainer", None, trainer(&what, plan)),
        Check::new(plan, "weights", None, weights(&what, plan)),
        Check::new(plan, "run directory", None, writable(&what, &plan.dir.root)),
    ];
    match secrets(plan) {
        Err(failure) => checks.push(Check::new(plan, "secrets", None, Err(failure))),
        Ok(secrets) if secrets.names().next().is_none() => {}
        Ok(secrets) => {
            let names = secrets.names().collect::<Vec<_>>().join(", ");
            let how = match &plan.job_script {
                // No launch goes on until the job begins.
                Some(_) => "read from their file by each node of the job: it must see it",
                None => "handed over at the start",
            };
            checks.push(Check::new(plan, "secrets", None, Ok(format!("{names}, {how}"))));
        }
    }
    if let (Some(script), Some(asked)) = (&plan.job_script, &plan.attempt.slurm) {
        let here = transports.first_mut().map(|here| disk(&what, plan, here.as_mut()));
        checks.extend(here.map(|result| Check::new(plan, "disk", None, result)));
        checks.extend(slurm::checks(&what, plan, &asked.spec, script));
        return checks;
    }
    if !plan.attempt.logins.is_empty() {
        checks.extend(nodes::checks(&what, plan, transports));
        checks.extend(programs(&what, plan, transports));
        return checks;
    }
    for launch in &plan.nodes {
        let transport = transports.iter_mut().find(|transport| *transport.node() == launch.node);
        let node = Some(&launch.node);
        let Some(transport) = transport else {
            checks.push(Check::new(plan, "node", node, Err(nodes::no_way(&what, &launch.node))));
            continue;
        };
        if plan.on_gpus(plan.trainer.cuda) && !plan.trainer.cuda {
            let because = "train.device is \"cuda\"";
            checks.push(Check::new(plan, "device", node, Err(gpus::no_gpus(&what, plan, &launch.node, because))));
        }
        let rows = nodes::of_this_machine(&what, plan, transport.as_mut());
        checks.extend(rows.into_iter().map(|(name, result)| Check::new(plan, name, node, result)));
    }
    checks.extend(programs(&what, plan, transports));
    checks
}

/// Reads what the plan's recipe keeps secret; nothing where it keeps nothing.
pub(crate) fn secrets(plan: &LaunchPlan) -> Result<Secrets, Failure> {
    let path = plan.run.recipe()?.env.secrets;
    if path.as_str().is_empty() {
        return Ok(Secrets::default());
    }
    Ok(Secrets::read(&path)?)
}

/// Whether the user's own command can be started: its working folder and its program, on every node.
pub(crate) fn programs<S: Shell + ?Sized>(what: &str, plan: &LaunchPlan, shells: &mut [Box<S>]) -> Vec<Check> {
    let recipe = match plan.run.recipe() {
        Ok(recipe) if recipe.trainer == recipe::TrainerKind::Command => recipe,
        // Any other failure has its row.
        _ => return Vec::new(),
    };
    let folder = &recipe.command.folder;
    let program = recipe.command.run.first().map_or("", String::as_str);
    let path = recipe.env.variables.get("PATH");
    let script = [
        // The run's own is made when it starts.
        if folder.as_str().is_empty() {
            String::new()
        } else {
            format!("cd {} 2>/dev/null || {{ echo folder; exit; }}", quote(folder.as_str()))
        },
        path.map_or(String::new(), |path| format!("PATH={}", quote(path))),
        format!("command -v {} || echo none", quote(program)),
    ];
    let command = Command::new("look for the command", script.join("\n"), SOON);
    let nodes = plan.nodes.iter().map(|launch| (launch.node.clone(), launch.node.clone())).collect();
    on_nodes(nodes, shells, |node, shell| {
        let said = shell.run(&command).and_then(|output| output.text(&node, &command));
        let result = match said.as_deref().map(str::trim) {
            Ok("folder") => Err(Failure::new(
                rundir::ErrorCode::Unclassified,
                what,
                format!("node {node}: its working folder {folder} is not there"),
                "put it on a file system that all nodes share, or change command.folder",
            )),
            Ok("none" | "") => Err(Failure::new(
                rundir::ErrorCode::Unclassified,
                what,
                format!("node {node}: there is no program {program}"),
                "install it there, write its whole path into command.run, or set PATH in env.variables",
            )),
            Ok(path) => Ok(path.to_owned()),
            Err(error) => return Check::new(plan, "node", Some(&node), Err(error.failure(what))),
        };
        Check::new(plan, "command", Some(&node), result)
    })
}

/// How long a node may take to look for a program.
const SOON: Duration = Duration::from_secs(20);

/// Begins every failure of a launch: `cannot launch demo`.
pub(crate) fn verb(plan: &LaunchPlan) -> String {
    if plan.is_new_run() {
        format!("cannot launch {}", plan.run.name)
    } else {
        format!("cannot resume {}", plan.run.id)
    }
}

fn trainer(what: &str, plan: &LaunchPlan) -> Result<String, Failure> {
    let path = &plan.trainer.path;
    match path.metadata() {
        Ok(meta) if meta.is_file() && meta.permissions().mode() & 0o111 != 0 => Ok(path.to_string()),
        Ok(_) => Err(Failure::new(
            rundir::ErrorCode::Unclassified,
            what,
            format!("the trainer {path} is not an executable file"),
            "build it again",
        )),
        Err(error) => Err(Failure::new(
            rundir::ErrorCode::Unclassified,
            what,
            format!("the trainer {path} cannot be used: {error}"),
            "build it again",
        )),
    }
}

/// The checkpoint that the attempt starts from must be complete and of the recipe's shape.
fn weights(what: &str, plan: &LaunchPlan) -> Result<String, Failure> {
    if plan.run.recipe()?.trainer == recipe::TrainerKind::Command {
        return command_weights(what, plan);
    }
    let Some(dir) = weights_dir(plan) else { return Ok("random".into()) };
    let refused = |why: String| {
        let run = dir.ancestors().nth(2).map(RunDir::new).filter(|run| run.run_toml().exists());
        let fix = run.map_or("name others: --init PATH".into(), |run| other_checkpoint(&run));
        Failure::new(rundir::ErrorCode::Unclassified, what, why, fix)
    };
    let checkpoint = Checkpoint::open(&dir).map_err(|error| refused(error.to_string()))?;
    check_weights(what, &checkpoint.manifest, &plan.run.recipe()?)?;
    Ok(format!("{dir}, {}", size(checkpoint.bytes)))
}

/// The checkpoint that a command continues from must still be whole.
fn command_weights(what: &str, plan: &LaunchPlan) -> Result<String, Failure> {
    let Some(dir) = &plan.attempt.checkpoint else { return Ok("as the command says".into()) };
    let entries = adapters::checkpoints(&plan.dir)?;
    let why = match entries.iter().find(|entry| entry.dir() == dir).map(CheckpointEntry::summary) {
        Some(Ok(saved)) => return Ok(format!("{dir}, {}", size(saved.bytes))),
        Some(Err((_, why))) => why,
        None => "it is gone",
    };
    Err(Failure::new(rundir::ErrorCode::Unclassified, what, format!("{dir}: {why}"), other_checkpoint(&plan.dir)))
}

fn other_checkpoint(run: &RunDir) -> String {
    format!("choose another checkpoint: `vidtui checkpoints {}` lists the complete ones", run.name())
}

fn writable(what: &str, dir: &Utf8Path) -> Result<String, Failure> {
    let existing = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Utf8Path::new("."));
    if !existing.is_dir() {
        return Err(Failure::new(
            rundir::ErrorCode::Unclassified,
            what,
            format!("{existing} is not a folder"),
            "choose another folder with --runs",
        ));
    }
    match access(existing.as_std_path(), AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => Ok(dir.to_string()),
        Err(error) => Err(Failure::new(
            rundir::ErrorCode::Unclassified,
            what,
            format!("folder {existing} cannot be written to: {}", error.desc()),
            "choose another folder with --runs, or change its permissions",
        )),
    }
}

fn disk(what: &str, plan: &LaunchPlan, transport: &mut dyn Transport) -> Result<String, Failure> {
    let free = transport.free_bytes(&plan.dir.root).map_err(|error| error.failure(what))?;
    check_disk(what, &plan.disk, free, plan.dir.root.parent().unwrap_or(&plan.dir.root), "--runs")?;
    Ok(room(&plan.disk, free))
}

/// What is needed of a disk, where that can be foreseen, and what there is.
pub(crate) fn room(need: &DiskNeed, free: u64) -> String {
    match need.count {
        0 => format!("{} free; what the command saves is not foreseen", size(free)),
        _ => format!("{} needed, {} free", size(need.bytes()), size(free)),
    }
}

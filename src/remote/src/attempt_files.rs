//! Creates the files of a run or an attempt before its processes start.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::sync::atomic::{AtomicU32, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use plan::{KillHow, LaunchPlan, NodeLaunch, node_kill};
use rundir::{
    Attempt, AttemptWhy, Error, ErrorCode, ExitFile, ExitReason, Failure, FileError, Run, RunDir, SCHEMA, StartFrom,
    Stop, now_s,
};
use runstate::Liveness;

use crate::parallel::on_nodes;
use crate::pid_files;
use crate::transport::Transport;

/// Creates the folder of a new run or of a new attempt, and returns its path.
///
/// The files are written to a temporary folder, which is then renamed, so that the folder appears complete or not at all. The
/// attempt starts at the current time and not at the time of its plan, because confirming the plan and copying the trainer take
/// time.
pub(crate) fn make_attempt(
    what: &str,
    plan: &LaunchPlan,
    alert_channels: Option<&[u8]>,
    transports: &mut [Box<dyn Transport>],
) -> Result<Utf8PathBuf, Failure> {
    let number = plan.attempt.number;
    let (parent, target) = if plan.is_new_run() {
        (plan.dir.root.parent().unwrap_or(Utf8Path::new(".")), plan.dir.root.clone())
    } else {
        check_unchanged(what, plan, transports)?;
        (plan.dir.root.as_path(), plan.dir.attempt_dir(number))
    };
    let temp = TempFolder::new(parent, mode_of(plan))
        .map_err(|source| io_failure(what, "make a folder in", parent, &source))?;
    let source = write_files(&temp.dir, plan, alert_channels).map_err(|error| failure_of(what, error))?;
    // A rename to a folder that is not empty fails, so the rename also acts as a lock.
    match fs::rename(&source, &target) {
        Ok(()) => {
            // Requests to the previous attempt must not apply to this one. If a requeue or the healer starts the attempt, a
            // permanent stop request is kept: they checked for one just before, so the request is newer than their check.
            let by_user = !matches!(plan.attempt.why, AttemptWhy::Requeue | AttemptWhy::Heal);
            if by_user || plan.dir.stop_request() != Some(Stop::ForGood) {
                let _ = fs::remove_file(plan.dir.stop_file());
            }
            let _ = fs::remove_file(plan.dir.save_file());
            let _ = fs::remove_file(plan.dir.profile_file());
            if !plan.is_new_run() && !plan.attempt.changed.is_empty() {
                plan.dir.write_run(&plan.run).map_err(|error| failure_of(what, error))?;
            }
            Ok(target)
        }
        Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty) => {
            Err(attempt_conflict(what, plan))
        }
        Err(error) => Err(io_failure(what, "make", &target, &error)),
    }
}

/// Writes all files into a temporary run folder. Returns the folder to rename.
fn write_files(dir: &RunDir, plan: &LaunchPlan, alert_channels: Option<&[u8]>) -> Result<Utf8PathBuf, Error> {
    let number = plan.attempt.number;
    write_scripts(dir, number, &plan.nodes)?;
    let folder = dir.attempt_dir(number);
    fs::create_dir_all(&folder).map_err(|source| FileError::Io { action: "make", path: folder, source })?;
    if let Some(script) = &plan.job_script {
        rundir::write_atomic(&dir.job_script(number), script.as_bytes())?;
    }
    dir.make_peer_token(number)?;
    if let Some(channels) = alert_channels {
        rundir::write_private(&dir.alert_channels(number), channels)?;
    }
    // Not the time of the plan, which may have waited in a dialog for minutes.
    let now_s = now_s();
    dir.write_attempt(&Attempt { started_s: now_s, ..plan.attempt.clone() })?;
    if plan.is_new_run() {
        dir.write_run(&Run { created_s: now_s, ..plan.run.clone() })?;
        // Converting the weights of this run back needs the model config, and its source may be deleted by then.
        if let StartFrom::Weights { path } = &plan.run.start
            && let Some(config) = rundir::model_config(path)
        {
            fs::copy(&config, dir.model_config()).map_err(|source| FileError::Io {
                action: "copy",
                path: config,
                source,
            })?;
        }
        return Ok(dir.root.clone());
    }
    Ok(dir.attempt_dir(number))
}

/// Writes the launch script of each node.
pub(crate) fn write_scripts(dir: &RunDir, attempt: u32, nodes: &[NodeLaunch]) -> Result<(), Error> {
    let io = |action, path: &Utf8Path| {
        let path = path.to_owned();
        move |source| Error::from(FileError::Io { action, path, source })
    };
    for launch in nodes {
        let script = dir.launch_script(attempt, &launch.node);
        if let Some(folder) = script.parent() {
            fs::create_dir_all(folder).map_err(io("make", folder))?;
        }
        rundir::write_atomic(&script, launch.script.as_bytes())?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(io("make executable", &script))?;
    }
    Ok(())
}

/// Checks that no other program has resumed the run since the plan was made.
///
/// # Errors
/// When another program has resumed the run, or a process of the run is alive.
pub(crate) fn check_unchanged(
    what: &str,
    plan: &LaunchPlan,
    transports: &mut [Box<dyn Transport>],
) -> Result<(), Failure> {
    // The processes are read before the attempt numbers, so that an attempt that starts in between is found.
    let mut alive = false;
    let mut elsewhere = Vec::new();
    for (file, liveness) in pid_files(&plan.dir)? {
        // If there is an exit file, only the supervisor can be alive, and it is exiting.
        if plan.dir.read_exit(&file.node, file.attempt)?.is_some() {
            continue;
        }
        alive |= liveness == Liveness::Alive;
        // Another node may have the name of this machine.
        if liveness != Liveness::Alive {
            elsewhere.push((file.node.clone(), node_kill(&plan.run.id, KillHow::Kill, &file)));
        }
    }
    // Nodes that do not reply are skipped: the user confirmed the plan although they were unreachable.
    let found = on_nodes(elsewhere, transports, |target, transport| transport.liveness(&target));
    alive |= found.into_iter().any(|liveness| matches!(liveness, Ok(Liveness::Alive)));
    let newest = plan.dir.attempt_numbers()?.last().copied().unwrap_or(0);
    if newest >= plan.attempt.number {
        return Err(attempt_conflict(what, plan));
    }
    if alive {
        let fix = format!("stop it first: `vidtui stop {}`", plan.run.id);
        return Err(Failure::new(ErrorCode::RunIsAlive, what, format!("attempt {newest} is alive"), fix));
    }
    Ok(())
}

fn attempt_conflict(what: &str, plan: &LaunchPlan) -> Failure {
    let number = plan.attempt.number;
    let by = plan.dir.read_attempt(number).map_or(String::new(), |other| format!(" by {}", other.by));
    let fix = if plan.is_new_run() {
        "launch again".to_owned()
    } else {
        format!("see its state: `vidtui status {}`", plan.run.id)
    };
    Failure::new(
        ErrorCode::AttemptConflict,
        what,
        format!("attempt {number} was already started{by} from another console"),
        fix,
    )
}

/// Writes the exit file of a node on which no supervisor runs, so that `vidtui status` can show the failure later.
pub(crate) fn record_failure(plan: &LaunchPlan, node: &NodeId, failure: &Failure) {
    let exit = ExitFile {
        schema: SCHEMA,
        attempt: plan.attempt.number,
        node: node.clone(),
        ended_s: now_s(),
        reason: ExitReason::Failed,
        ranks: Vec::new(),
        first_failure: None,
        failure: Some(failure.clone()),
    };
    // The caller returns the failure in any case.
    let _ = fs::create_dir_all(plan.dir.node_dir(node)).map(|()| plan.dir.write_exit(&exit));
}

/// Returns the mode of the folder of a new run, before the umask. A run that watches a program has a copy of its log, so only users who can
/// read the log can read the folder.
fn mode_of(plan: &LaunchPlan) -> u32 {
    let Some(log) = plan.run.attached.as_ref().and_then(|attached| attached.path.metadata().ok()) else { return 0o777 };
    let readers = log.permissions().mode() & 0o444;
    // Those who may read the log may also list the folder, and its owner may write it.
    0o700 | readers | readers >> 2
}

/// A temporary folder. Dropping this removes the folder, unless it was renamed.
struct TempFolder {
    dir: RunDir,
}

impl TempFolder {
    fn new(parent: &Utf8Path, mode: u32) -> io::Result<Self> {
        static UNIQUE: AtomicU32 = AtomicU32::new(0);
        fs::create_dir_all(parent)?;
        let name = format!(".launch-{}-{}", std::process::id(), UNIQUE.fetch_add(1, Ordering::Relaxed));
        let dir = RunDir::new(parent.join(name));
        fs::DirBuilder::new().mode(mode).create(&dir.root)?;
        Ok(Self { dir })
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir.root);
    }
}

/// Returns the failure of `what`, with an error as the reason.
fn failure_of(what: &str, error: Error) -> Failure {
    let cause = Failure::from(error);
    Failure::new(cause.code, what, format!("{}: {}", cause.what, cause.why), cause.fix)
}

fn io_failure(what: &str, action: &'static str, path: &Utf8Path, source: &io::Error) -> Failure {
    let why = format!("cannot {action} {path}: {source}");
    Failure::new(ErrorCode::of_io(source), what, why, "check its permissions and free space, then try again")
}

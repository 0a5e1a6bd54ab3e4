use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use plan::{KillHow, LaunchPlan, NodeLaunch, RunKill, node_kill, quote};
use rundir::{Attempt, AttemptWhy, Error, ExitFile, ExitReason, Failure, RunDir, SCHEMA, StartFrom, Stop, now_s};
use runstate::Liveness;

use crate::checks::{Check, cannot, check_launch, secrets};
use crate::kill::{NodeReport, Patience, execute_kill};
use crate::parallel::on_nodes;
use crate::push::push;
use crate::slurm::{end_job, submit_attempt};
use crate::transport::{ScriptExit, StartedScript, Transport};
use crate::{RemoteError, pid_files};

/// How long a launch waits for the supervisors to say that they live. That takes a tenth of a second, or seconds when
/// libtorch comes from a cold disk; one that needs longer is watched like any run.
const STARTING: Duration = Duration::from_secs(5);

/// How many lines of a log a failure shows.
const LAST_LINES: usize = 5;

/// Makes the run or attempt on disk and starts it, exactly as planned. It goes on without this program. What takes long,
/// copying the trainer, is told meanwhile.
///
/// Until the first process is started, whatever goes wrong leaves nothing behind; what was started on other nodes when one
/// fails is ended. Two programs that start the same attempt at once do not both succeed: the attempt's folder appears by one
/// rename, which only the first can do.
///
/// # Errors
/// The first check that fails; another program was faster; a supervisor that ended at once, with the end of its log.
pub fn execute_launch(
    plan: &LaunchPlan,
    transports: &mut [Box<dyn Transport>],
    progress: &(dyn Fn(String) + Sync),
) -> Result<RunDir, Failure> {
    let what = cannot(plan);
    if let Some(failure) = check_launch(plan, transports).iter().find_map(Check::failure) {
        return Err(failure.clone());
    }
    let secrets = secrets(plan)?.to_lines();
    if plan.push && !plan.attempt.logins.is_empty() {
        push(&what, plan, transports, progress)?;
    }
    if let Some(job) = &plan.replaces {
        // Unless somebody has gone on with the run since, which may be that job itself in another turn.
        check_unchanged(&what, plan, transports)?;
        let said = end_job(&plan.run.id, &plan.dir, job, &mut |text| progress(format!("Slurm: {text}")))?;
        progress(format!("Slurm: {said}"));
    }
    let made = make(&what, plan, transports)?;
    if plan.job_script.is_some() {
        return match submit_attempt(&what, plan, now_s()) {
            Ok(_) => Ok(plan.dir.clone()),
            Err((failure, is_certain)) => {
                if is_certain {
                    let _ = fs::remove_dir_all(&made);
                }
                Err(failure)
            }
        };
    }
    let nodes = plan.nodes.iter().map(|launch| (launch.node.clone(), &launch.node)).collect();
    let starts = on_nodes(nodes, transports, |node, transport| {
        let script = plan.dir.launch_script(plan.attempt.number, node);
        (node, transport.start(&script, &plan.dir.pid_toml(node, plan.attempt.number), &secrets))
    });
    let (mut started, mut refused) = (Vec::new(), Vec::new());
    for (node, start) in starts {
        match start {
            Ok(start) => started.push((node, start)),
            Err(error) => refused.push((node, error)),
        }
    }
    // A connection that ended in between may have started something, which needs its files.
    let is_certain =
        |error: &RemoteError| !matches!(error, RemoteError::ConnectionLost { .. } | RemoteError::Timeout { .. });
    if started.is_empty() && refused.iter().all(|(_, error)| is_certain(error)) {
        let _ = fs::remove_dir_all(&made);
        return refused.first().map_or(Ok(plan.dir.clone()), |(_, error)| Err(error.failure(what)));
    }
    let mut failures = Vec::new();
    for (node, error) in refused {
        let failure = error.failure(&*what);
        if is_certain(&error) {
            record(plan, node, &failure);
        }
        failures.push(failure);
    }
    failures.extend(watch_start(&what, plan, started).unwrap_or_else(|failure| vec![failure]));
    match failures.into_iter().next() {
        Some(failure) => Err(take_back(plan, failure, transports, progress)),
        None => Ok(plan.dir.clone()),
    }
}

/// How long ranks have to end that a failed launch has started: there is nothing yet that they could save.
const TAKE_BACK: Patience =
    Patience { stop: Duration::ZERO, term: Duration::from_secs(2), kill: Duration::from_secs(5) };

/// Ends what a launch that failed has started on other nodes, and adds to the failure what became of it.
fn take_back(
    plan: &LaunchPlan,
    mut failure: Failure,
    transports: &mut [Box<dyn Transport>],
    progress: &(dyn Fn(String) + Sync),
) -> Failure {
    let (dir, number, run) = (&plan.dir, plan.attempt.number, &plan.run.id);
    let (mut nodes, mut left) = (Vec::new(), Vec::new());
    for node in plan.nodes.iter().map(|launch| &launch.node) {
        match (dir.read_pid(node, number), dir.read_exit(node, number)) {
            (Ok(Some(file)), _) => nodes.push(node_kill(run, KillHow::Kill, &file)),
            (_, Ok(Some(_))) => {}
            // It was started, or may have been, and has said nothing yet.
            _ => left.push(node.to_string()),
        }
    }
    let kill = RunKill { run: run.clone(), dir: dir.clone(), how: KillHow::Kill, nodes, job: None };
    let report = execute_kill(&kill.into(), transports, &TAKE_BACK, &mut |told| {
        progress(format!("{}: {}", told.node, told.text));
    });
    let (gone, alive): (Vec<_>, Vec<_>) = report.nodes.iter().partition(|node| node.all_gone());
    let names = |nodes: &[&NodeReport]| nodes.iter().map(|node| node.node.to_string()).collect::<Vec<_>>();
    if !gone.is_empty() {
        failure.why += &format!("; what it had started on {} was ended", names(&gone).join(", "));
    }
    left.extend(names(&alive));
    if !left.is_empty() {
        let left = left.join(", ");
        failure.fix += &format!("; {left} may have started: make sure with `vidtui kill {run}`");
    }
    failure
}

/// Makes the folder of the run, or of the attempt in it, and returns it.
///
/// All of it is written under a temporary name first, so that it appears whole or not at all. The attempt begins now: since
/// it was planned, somebody has read a dialog, and a trainer may have been copied.
pub(crate) fn make(
    what: &str,
    plan: &LaunchPlan,
    transports: &mut [Box<dyn Transport>],
) -> Result<Utf8PathBuf, Failure> {
    let number = plan.attempt.number;
    let (parent, target) = if plan.is_new_run() {
        (plan.dir.root.parent().unwrap_or(Utf8Path::new(".")), plan.dir.root.clone())
    } else {
        check_unchanged(what, plan, transports)?;
        (plan.dir.root.as_path(), plan.dir.attempt_dir(number))
    };
    let scratch = Scratch::new(parent).map_err(|source| io_failure(what, "make a folder in", parent, &source))?;
    let source = write_files(&scratch.dir, plan).map_err(|error| explained(what, error))?;
    // Onto a folder that is there and not empty, rename fails: that is the lock.
    match fs::rename(&source, &target) {
        Ok(()) => {
            // What was asked of the attempt before must not be asked of this one. There is rarely anything. A job that begins
            // again looked for a stop a moment ago: one for good was asked for since.
            if plan.attempt.why != AttemptWhy::Requeue || plan.dir.stop_request() != Some(Stop::ForGood) {
                let _ = fs::remove_file(plan.dir.stop_file());
            }
            let _ = fs::remove_file(plan.dir.save_file());
            Ok(target)
        }
        Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty) => {
            Err(too_late(what, plan))
        }
        Err(error) => Err(io_failure(what, "make", &target, &error)),
    }
}

/// Writes everything that is to appear into a temporary run folder. Returns the part to rename.
fn write_files(dir: &RunDir, plan: &LaunchPlan) -> Result<Utf8PathBuf, Error> {
    let number = plan.attempt.number;
    write_scripts(dir, number, &plan.nodes)?;
    let folder = dir.attempt_dir(number);
    fs::create_dir_all(&folder).map_err(|source| Error::Io { action: "make", path: folder, source })?;
    if let Some(script) = &plan.job_script {
        rundir::write_atomic(&dir.job_script(number), script.as_bytes())?;
    }
    dir.make_peer_token(number)?;
    dir.write_attempt(&Attempt { started_s: now_s(), ..plan.attempt.clone() })?;
    if plan.is_new_run() {
        dir.write_run(&plan.run)?;
        // Where the weights lie may be gone when those of this run are converted back.
        if let StartFrom::Weights { path } = &plan.run.start
            && let Some(config) = rundir::model_config(path)
        {
            fs::copy(&config, dir.model_config()).map_err(|source| Error::Io {
                action: "copy",
                path: config,
                source,
            })?;
        }
        return Ok(dir.root.clone());
    }
    Ok(dir.attempt_dir(number))
}

/// Writes the script of each node.
pub(crate) fn write_scripts(dir: &RunDir, attempt: u32, nodes: &[NodeLaunch]) -> Result<(), Error> {
    let io = |action, path: &camino::Utf8Path| {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
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

/// The plan was made a moment ago: since then, another program may have resumed the run.
fn check_unchanged(what: &str, plan: &LaunchPlan, transports: &mut [Box<dyn Transport>]) -> Result<(), Failure> {
    // In this order: whoever starts the attempt between the two reads is seen by the second.
    let mut alive = false;
    let mut elsewhere = Vec::new();
    for (file, liveness) in pid_files(&plan.dir)? {
        // With an exit file, only its supervisor can be alive, on its way out.
        if plan.dir.read_exit(&file.node, file.attempt)?.is_some() {
            continue;
        }
        alive |= liveness == Liveness::Alive;
        // A name that is this machine's own may be another's too.
        if liveness != Liveness::Alive {
            elsewhere.push((file.node.clone(), node_kill(&plan.run.id, KillHow::Kill, &file)));
        }
    }
    // One that does not answer was no obstacle when the plan was made, and somebody knows.
    let seen = on_nodes(elsewhere, transports, |target, transport| transport.liveness(&target));
    alive |= seen.into_iter().any(|liveness| matches!(liveness, Ok(Liveness::Alive)));
    let newest = plan.dir.attempt_numbers()?.last().copied().unwrap_or(0);
    if newest >= plan.attempt.number {
        return Err(too_late(what, plan));
    }
    if alive {
        return Err(Failure::new(
            rundir::ErrorCode::Unclassified,
            what,
            format!("attempt {newest} is alive"),
            format!("stop it first: `vidtui stop {}`", plan.run.id),
        ));
    }
    Ok(())
}

fn too_late(what: &str, plan: &LaunchPlan) -> Failure {
    let number = plan.attempt.number;
    let by = plan.dir.read_attempt(number).map_or(String::new(), |other| format!(" by {}", other.by));
    let fix = if plan.is_new_run() {
        "launch again".to_owned()
    } else {
        format!("look at it: `vidtui status {}`", plan.run.id)
    };
    Failure::new(
        rundir::ErrorCode::Unclassified,
        what,
        format!("attempt {number} was started a moment ago{by}, from another console"),
        fix,
    )
}

/// Waits until every supervisor has written its process file, for a short while. Returns why those ended that did.
fn watch_start(
    what: &str,
    plan: &LaunchPlan,
    mut waiting: Vec<(&NodeId, StartedScript)>,
) -> Result<Vec<Failure>, Failure> {
    let deadline = Instant::now() + STARTING;
    let mut failures = Vec::new();
    while !waiting.is_empty() && Instant::now() < deadline {
        let mut still = Vec::new();
        for (node, start) in waiting {
            // Asked before the file is looked for: a supervisor that was quick leaves one when it ends.
            let ended = start.exit();
            match (plan.dir.read_pid(node, plan.attempt.number)?, ended) {
                (Some(_), _) => {}
                (None, None) => still.push((node, start)),
                (None, Some(ended)) => failures.push(ended_at_once(what, plan, node, &ended)),
            }
        }
        waiting = still;
        if !waiting.is_empty() {
            thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(failures)
}

/// Explains a supervisor that ended before it wrote its process file.
fn ended_at_once(what: &str, plan: &LaunchPlan, node: &NodeId, ended: &ScriptExit) -> Failure {
    let number = plan.attempt.number;
    if let Ok(Some(ExitFile { failure: Some(failure), .. })) = plan.dir.read_exit(node, number) {
        return failure;
    }
    let log = plan.dir.supervisor_log(node, number);
    let written = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let text = format!("{}\n{written}", ended.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
    let said = if last.is_empty() { "it said nothing".to_owned() } else { format!("it said:\n{}", last.join("\n")) };
    let script = plan.dir.launch_script(number, node);
    let failure = Failure::new(
        rundir::ErrorCode::Unclassified,
        what,
        format!("the supervisor on node {node} ended at once ({}); {said}", ended.status),
        format!("its log is {log}; by hand: bash {}", quote(script.as_str())),
    );
    record(plan, node, &failure);
    failure
}

/// Writes why nothing runs on a node in the place of its supervisor: there is no other writer, and whoever looks at the run
/// later wants to know as well.
pub(crate) fn record(plan: &LaunchPlan, node: &NodeId, failure: &Failure) {
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
    // The failure is told either way.
    let _ = fs::create_dir_all(plan.dir.node_dir(node)).map(|()| plan.dir.write_exit(&exit));
}

/// A folder that is gone when the launch is over: renamed to its place, or removed.
struct Scratch {
    dir: RunDir,
}

impl Scratch {
    fn new(parent: &Utf8Path) -> io::Result<Self> {
        static UNIQUE: AtomicU32 = AtomicU32::new(0);
        fs::create_dir_all(parent)?;
        let name = format!(".launch-{}-{}", std::process::id(), UNIQUE.fetch_add(1, Ordering::Relaxed));
        let dir = RunDir::new(parent.join(name));
        fs::create_dir(&dir.root)?;
        Ok(Self { dir })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir.root);
    }
}

/// Puts what was to be done before why it was not.
fn explained(what: &str, error: Error) -> Failure {
    let cause = Failure::from(error);
    Failure::new(rundir::ErrorCode::Unclassified, what, format!("{}: {}", cause.what, cause.why), cause.fix)
}

fn io_failure(what: &str, action: &'static str, path: &Utf8Path, source: &io::Error) -> Failure {
    Failure::new(
        rundir::ErrorCode::Unclassified,
        what,
        format!("cannot {action} {path}: {source}"),
        "check its permissions and its disk, then try again",
    )
}

//! Executes launch plans: creates the run or attempt on disk and starts its supervisors.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use cluster::NodeId;
use plan::{KillHow, LaunchPlan, RunKill, node_kill, quote};
use rundir::{ErrorCode, ExitFile, Failure, RunDir, now_s};

use crate::RemoteError;
use crate::attempt_files::{check_unchanged, make_attempt, record_failure};
use crate::checks::{Check, cannot, check_launch, secrets};
use crate::kill::{NodeReport, Patience, execute_kill};
use crate::parallel::on_nodes;
use crate::push::push;
use crate::slurm::{end_job, submit_attempt};
use crate::transport::{ScriptExit, StartedScript, Transport};

/// How long a launch waits for the process files of the supervisors. A start takes 0.1 s, or seconds if libtorch is read from
/// a cold disk. After this time, the run is monitored like any other.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of log lines that a failure shows.
const LOG_LINES: usize = 5;

/// Creates the run or attempt on disk and starts it, exactly as planned. The run continues when this program exits. `progress`
/// receives messages while the trainer is copied.
///
/// An error before the first process starts leaves no files. If a node fails, the processes started on other nodes are
/// killed. If several programs start the same attempt, exactly one succeeds, because only the first can create the
/// attempt's folder by a rename.
///
/// * `alert_channels` — the content of the attempt's file of alert channels, if it has one.
///
/// # Errors
/// If a check fails, another program has started the same attempt, or a supervisor exited at once. The failure of a
/// supervisor includes the end of its log.
pub fn execute_launch(
    plan: &LaunchPlan,
    alert_channels: Option<&[u8]>,
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
        // Another program, or the job itself after a requeue, may have started an attempt meanwhile.
        check_unchanged(&what, plan, transports)?;
        let result = end_job(&plan.run.id, &plan.dir, job, &mut |text| progress(format!("Slurm: {text}")))?;
        progress(format!("Slurm: {result}"));
    }
    let folder = make_attempt(&what, plan, alert_channels, transports)?;
    if plan.job_script.is_some() {
        return match submit_attempt(&what, plan, now_s()) {
            Ok(_) => Ok(plan.dir.clone()),
            Err((failure, is_certain)) => {
                if is_certain {
                    let _ = fs::remove_dir_all(&folder);
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
    // If the connection was lost, the script may be running, and needs its files.
    let is_certain =
        |error: &RemoteError| !matches!(error, RemoteError::ConnectionLost { .. } | RemoteError::Timeout { .. });
    if started.is_empty() && refused.iter().all(|(_, error)| is_certain(error)) {
        let _ = fs::remove_dir_all(&folder);
        return refused.first().map_or(Ok(plan.dir.clone()), |(_, error)| Err(error.failure(what)));
    }
    let mut failures = Vec::new();
    for (node, error) in refused {
        let failure = error.failure(&*what);
        if is_certain(&error) {
            record_failure(plan, node, &failure);
        }
        failures.push(failure);
    }
    failures.extend(wait_for_supervisors(&what, plan, started).unwrap_or_else(|failure| vec![failure]));
    match failures.into_iter().next() {
        Some(failure) => Err(kill_started(plan, failure, transports, progress)),
        None => Ok(plan.dir.clone()),
    }
}

/// The timeouts of killing the ranks of a failed launch. They are short, because there is nothing to save.
const KILL_STARTED: Patience =
    Patience { stop: Duration::ZERO, term: Duration::from_secs(2), kill: Duration::from_secs(5) };

/// Kills the processes that a failed launch has started on other nodes, and adds the result to the failure.
fn kill_started(
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
            // The supervisor may have started without having written its file yet.
            _ => left.push(node.to_string()),
        }
    }
    let kill = RunKill { run: run.clone(), dir: dir.clone(), how: KillHow::Kill, nodes, job: None };
    let report = execute_kill(&kill.into(), transports, &KILL_STARTED, &mut |update| {
        progress(format!("{}: {}", update.node, update.text));
    });
    let (gone, alive): (Vec<_>, Vec<_>) = report.nodes.iter().partition(|node| node.all_gone());
    let names = |nodes: &[&NodeReport]| nodes.iter().map(|node| node.node.to_string()).collect::<Vec<_>>();
    if !gone.is_empty() {
        failure.why += &format!("; the processes started on {} were killed", names(&gone).join(", "));
    }
    left.extend(names(&alive));
    if !left.is_empty() {
        let left = left.join(", ");
        failure.fix += &format!("; processes may run on {left}: kill them with `vidtui kill {run}`");
    }
    failure
}

/// Waits up to [`START_TIMEOUT`] until every supervisor has written its process file. Returns the failures of supervisors
/// that exited before.
fn wait_for_supervisors(
    what: &str,
    plan: &LaunchPlan,
    mut waiting: Vec<(&NodeId, StartedScript)>,
) -> Result<Vec<Failure>, Failure> {
    let deadline = Instant::now() + START_TIMEOUT;
    let mut failures = Vec::new();
    while !waiting.is_empty() && Instant::now() < deadline {
        let mut still = Vec::new();
        for (node, start) in waiting {
            // Read before the process file, because a supervisor that finished quickly has written its process file and exited.
            let exit = start.exit();
            match (plan.dir.read_pid(node, plan.attempt.number)?, exit) {
                (Some(_), _) => {}
                (None, None) => still.push((node, start)),
                (None, Some(exit)) => failures.push(exit_failure(what, plan, node, &exit)),
            }
        }
        waiting = still;
        if !waiting.is_empty() {
            thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(failures)
}

/// Returns the failure of a supervisor that exited before it wrote its process file.
fn exit_failure(what: &str, plan: &LaunchPlan, node: &NodeId, exit: &ScriptExit) -> Failure {
    let number = plan.attempt.number;
    if let Ok(Some(ExitFile { failure: Some(failure), .. })) = plan.dir.read_exit(node, number) {
        return failure;
    }
    let log = plan.dir.supervisor_log(node, number);
    let written = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let text = format!("{}\n{written}", exit.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
    let output = if last.is_empty() { "no output".to_owned() } else { format!("its output:\n{}", last.join("\n")) };
    let script = plan.dir.launch_script(number, node);
    let failure = Failure::new(
        ErrorCode::StartFailed,
        what,
        format!("the supervisor on node {node} exited at once ({}); {output}", exit.status),
        format!("read its log, {log}; start it manually: bash {}", quote(script.as_str())),
    );
    record_failure(plan, node, &failure);
    failure
}

//! The dialog of `vidtui stop` and `vidtui kill`: shows the plan, asks for confirmation, and executes it with its progress.

use crate::command_error::CommandError;
use crate::output::{self, note};
use crate::workspace::{self, KillCallbacks, Workspace, execute_kill};
use plan::{KillHow, KillPlan, RunKill};
use remote::{GpuMemory, KillReport, NodeReport, Transport};
use rundir::{ErrorCode, Failure, RunDir};
use serde_json::{Value, json};
use std::io::{self, BufRead, IsTerminal};
use units::terminal::Escaped;

/// Options of `stop` and `kill`, except their targets.
pub struct KillOptions {
    /// Stop or kill.
    pub how: KillHow,
    /// Only show the plan.
    pub dry_run: bool,
    /// Do not ask for confirmation.
    pub yes: bool,
    /// Retry unreachable nodes until they answer.
    pub wait: bool,
    /// Print JSON.
    pub json: bool,
}

/// Plans to stop or kill a run. Returns `None` for a failed run that a healer would resume: no process is left to signal, and this
/// function ends the healer.
pub fn plan_run(workspace: &Workspace, dir: &RunDir, options: &KillOptions) -> Result<Option<RunKill>, CommandError> {
    match workspace.plan_kill(dir, options.how) {
        Err(failure)
            if failure.code == ErrorCode::RunNotRunning && !options.dry_run && workspace::end_healing(dir)? =>
        {
            let run = dir.read_run()?.id;
            match options.json {
                true => output::json(&json!({ "run": run, "stopping": true }))?,
                false => output::line(&format!("{run} has ended and will not be resumed"))?,
            }
            Ok(None)
        }
        planned => Ok(Some(planned?)),
    }
}

/// Stops or kills a run, with the progress on standard error.
pub fn execute_run(workspace: &Workspace, plan: &RunKill, options: &KillOptions) -> Result<KillReport, Failure> {
    with_progress(options, |callbacks| workspace.kill(plan, callbacks))
}

/// Executes a plan, with the progress on standard error.
pub fn execute(plan: &KillPlan, transports: &mut [Box<dyn Transport>], options: &KillOptions) -> KillReport {
    with_progress(options, |callbacks| execute_kill(plan, transports, callbacks))
}

fn with_progress<T>(options: &KillOptions, run: impl FnOnce(KillCallbacks<'_>) -> T) -> T {
    run(KillCallbacks {
        on_wait: &mut |text| note!("{text}"),
        progress: &mut |step| note!("{}: {}", step.node, step.text),
        is_cancelled: &|| !options.wait,
    })
}

/// Asks for confirmation on the terminal.
///
/// # Errors
/// [`ErrorCode::Cancelled`] if the answer is not yes, [`ErrorCode::NoTerminal`] without a terminal.
pub fn confirm(what: &str, question: &str, yes: &str) -> Result<(), CommandError> {
    if confirmed(&format!("cannot kill {what}"), question, yes)? {
        return Ok(());
    }
    Err(Failure::new(ErrorCode::Cancelled, "Kill cancelled", "no process was signalled", "").into())
}

/// Asks a question on the terminal, and returns whether the answer is yes.
///
/// * `cannot` — the first words of the error if there is no terminal.
/// * `yes` — the command or option that confirms without a terminal; the error shows it.
///
/// # Errors
/// [`ErrorCode::NoTerminal`] without a terminal.
pub fn confirmed(cannot: &str, question: &str, yes: &str) -> Result<bool, CommandError> {
    if !io::stdin().is_terminal() {
        let why = "confirmation is required, and standard input is not a terminal";
        let fix = format!("confirm on the command line: {yes}");
        return Err(CommandError::request(Failure::new(ErrorCode::NoTerminal, cannot, why, fix)));
    }
    output::progress(&Escaped::text(question).and(&Escaped::own(" [y/N] ")));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    Ok(read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Returns the results of nodes as JSON.
pub fn nodes(reports: &[NodeReport]) -> Vec<Value> {
    let of_node = |report: &NodeReport| {
        let memory = match report.gpu_memory {
            GpuMemory::NotChecked => "not_checked",
            GpuMemory::NoGpus(_) => "no_gpus",
            GpuMemory::Released => "released",
            GpuMemory::Hidden(_) => "hidden",
            GpuMemory::Held(_) => "held",
            GpuMemory::Unknown(_) => "unknown",
        };
        json!({
            "node": report.node,
            "gone": report.all_gone(),
            "signalled": report.signalled,
            "gpu_memory": memory,
            "left": report.survivors(),
            "failure": report.failure,
        })
    };
    reports.iter().map(of_node).collect()
}

/// Prints the plan for a run.
pub fn show(plan: RunKill, json: bool) -> Result<(), CommandError> {
    if json { output::json(&run_document(&plan)) } else { output::text(&run_in_words(&plan)) }
}

/// Returns the plan for a run as JSON.
pub fn run_document(plan: &RunKill) -> Value {
    let nodes: Vec<_> = plan
        .nodes
        .iter()
        .map(|node| {
            let ranks: Vec<_> = node.ranks.iter().map(|rank| json!({ "rank": rank.rank, "pid": rank.pid })).collect();
            json!({ "node": node.node, "pid": node.pid, "pgid": node.pgid, "ranks": ranks, "why": node.why })
        })
        .collect();
    let job = plan.job.as_ref().map(|job| json!({ "id": job.id, "why": job.why }));
    json!({ "run": plan.run, "how": plan.how.verb(), "nodes": nodes, "job": job })
}

/// Returns the plan for a run as text: which processes will be signalled, or which job is cancelled.
pub fn run_in_words(plan: &RunKill) -> String {
    if let Some(job) = &plan.job {
        return format!("{}\n{}\n", plan.run, job.why);
    }
    let lines = plan.nodes.iter().map(|node| format!("{}: {}\n", node.node, node.why));
    format!("{}\n{}", plan.run, lines.collect::<String>())
}

//! Collects the stacks of a run's processes into the run directory, to find out where they hang.

use std::fs;
use std::time::Duration;

use camino::Utf8PathBuf;
use cluster::NodeId;
use plan::{KillHow, NodeKill, node_kill, quote};
use rundir::{ErrorCode, Failure, FileError, PidFile, RunDir, RunId, write_atomic};

use crate::command::Command;
use crate::parallel::on_nodes;
use crate::script::marked;
use crate::{RemoteError, Transport};

const SCRIPT: &str = concat!(include_str!("scripts/proc.sh"), include_str!("scripts/stacks.sh"));

/// The time limit of gdb and py-spy for one process. Reading the symbols of libtorch takes seconds.
const DEBUGGER_TIMEOUT_S: u64 = 60;

/// The result on one node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeStacks {
    /// The node.
    pub node: NodeId,
    /// The file with the stacks and the number of processes in it, or why there is none.
    pub result: Result<(Utf8PathBuf, usize), Failure>,
}

/// Collects the stacks of all processes of an attempt, one file per node, into a folder of the run named after `at_s`.
///
/// No process is signalled. A debugger, if installed, stops each process for a moment.
///
/// # Errors
/// When the attempt has no processes. A node that does not reply has the error in its own result.
pub fn collect_stacks(
    run: &RunId,
    dir: &RunDir,
    at_s: f64,
    files: &[PidFile],
    transports: &mut [Box<dyn Transport>],
) -> Result<Vec<NodeStacks>, Failure> {
    let what = format!("cannot collect the stacks of {run}");
    if files.is_empty() {
        let why = "the run has no process file: it is starting, or never started";
        return Err(Failure::new(ErrorCode::RunNotStarted, what, why, format!("see its state: vidtui status {run}")));
    }
    let targets: Vec<(NodeId, NodeKill)> =
        files.iter().map(|file| (file.node.clone(), node_kill(run, KillHow::Kill, file))).collect();
    let collected = on_nodes(targets, transports, |target, transport| {
        let result = read_stacks(&target, transport).map_err(|error| error.failure(&*what)).and_then(|text| {
            let processes = text.lines().filter(|line| line.starts_with("=== process ")).count();
            if processes == 0 {
                let why = format!("node {}: all processes of the run have exited", target.node);
                let fix = format!("see how it ended: vidtui status {run}");
                return Err(Failure::new(ErrorCode::RunNotRunning, &*what, why, fix));
            }
            let path = dir.stacks_file(target.attempt, at_s, &target.node);
            fs::create_dir_all(dir.stacks_dir(target.attempt, at_s)).map_err(|source| FileError::Io {
                action: "make",
                path: path.clone(),
                source,
            })?;
            write_atomic(&path, text.as_bytes())?;
            Ok((path, processes))
        });
        NodeStacks { node: target.node, result }
    });
    let is_missing = |file: &&PidFile| collected.iter().all(|stacks| stacks.node != file.node);
    let unreachable = files.iter().filter(is_missing).map(|file| {
        let why = format!("node {} cannot be reached from this machine", file.node);
        let fix = format!("run `vidtui stacks {run}` on {}", file.node);
        let result = Err(Failure::new(ErrorCode::NodeUnreachable, &*what, why, fix));
        NodeStacks { node: file.node.clone(), result }
    });
    let unreachable: Vec<NodeStacks> = unreachable.collect();
    Ok(collected.into_iter().chain(unreachable).collect())
}

fn read_stacks(target: &NodeKill, transport: &mut dyn Transport) -> Result<String, RemoteError> {
    let script = SCRIPT
        .replace("@BOOT", &quote(&target.boot_id))
        .replace("@MARKED", &marked(target))
        .replace("@PGID", &target.pgid.to_string())
        .replace("@PID", &target.pid.to_string())
        .replace("@START_TICKS", &target.start_ticks.to_string())
        .replace("@RUN", &quote(target.run.as_str()))
        .replace("@TIMEOUT", &DEBUGGER_TIMEOUT_S.to_string());
    // py-spy and gdb run one after the other for each rank, and for all ranks in parallel. The rest takes 30 s at most.
    let timeout = Duration::from_secs(30 + 2 * DEBUGGER_TIMEOUT_S);
    let command = Command::new("print the stacks of its processes", script, timeout);
    let node = transport.node().clone();
    let text = transport.run(&command)?.text(&node, &command)?;
    let stacks = text.strip_suffix("end\n").ok_or_else(|| {
        let last: Vec<char> = text.chars().rev().take(200).collect();
        RemoteError::unexpected(&node, &command.action, &last.into_iter().rev().collect::<String>())
    })?;
    Ok(format!("stacks of {} on {node}\n{stacks}", target.run))
}

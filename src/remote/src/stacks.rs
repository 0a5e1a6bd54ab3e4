//! Where the ranks of a run are: their stacks, written into the run before anybody kills them.

use std::fs;
use std::time::Duration;

use camino::Utf8PathBuf;
use cluster::NodeId;
use plan::{KillHow, NodeKill, node_kill, quote};
use rundir::{Error, Failure, PidFile, RunDir, RunId, write_atomic};

use crate::command::Command;
use crate::parallel::on_nodes;
use crate::script::marked;
use crate::{RemoteError, Transport};

const SCRIPT: &str = include_str!("scripts/stacks.sh");

/// How long gdb and py-spy may take for one process: reading the symbols of libtorch takes seconds.
const WITHIN_S: u64 = 60;

/// What became of one node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeStacks {
    /// The node.
    pub node: NodeId,
    /// The file with its stacks and the number of processes in it, or why there is none.
    pub result: Result<(Utf8PathBuf, usize), Failure>,
}

/// Collects the stacks of all processes of an attempt, node by node, into a folder of the run that is named by `at_s`.
///
/// Nothing is signalled. A debugger, where there is one, halts each process for a moment.
///
/// # Errors
/// When it has no processes; a node that does not answer is told in its own result.
pub fn collect_stacks(
    run: &RunId,
    dir: &RunDir,
    at_s: f64,
    files: &[PidFile],
    transports: &mut [Box<dyn Transport>],
) -> Result<Vec<NodeStacks>, Failure> {
    let what = format!("cannot collect the stacks of {run}");
    if files.is_empty() {
        let fix = format!("look at its state: vidtui status {run}");
        return Err(Failure::new(
            rundir::ErrorCode::Unclassified,
            what,
            "it has no process file: it is starting, or never started",
            fix,
        ));
    }
    let targets: Vec<(NodeId, NodeKill)> =
        files.iter().map(|file| (file.node.clone(), node_kill(run, KillHow::Kill, file))).collect();
    let told = on_nodes(targets, transports, |target, transport| {
        let result = ask(&target, transport).map_err(|error| error.failure(&*what)).and_then(|text| {
            let processes = text.lines().filter(|line| line.starts_with("=== process ")).count();
            if processes == 0 {
                let why = format!("node {}: no process of the run is left there", target.node);
                return Err(Failure::new(
                    rundir::ErrorCode::Unclassified,
                    &*what,
                    why,
                    format!("look at how it ended: vidtui status {run}"),
                ));
            }
            let path = dir.stacks_file(target.attempt, at_s, &target.node);
            fs::create_dir_all(dir.stacks_dir(target.attempt, at_s)).map_err(|source| Error::Io {
                action: "make",
                path: path.clone(),
                source,
            })?;
            write_atomic(&path, text.as_bytes())?;
            Ok((path, processes))
        });
        NodeStacks { node: target.node, result }
    });
    let unreachable = files.iter().filter(|file| told.iter().all(|told| told.node != file.node)).map(|file| {
        let why = format!("node {} cannot be reached from here", file.node);
        let fix = format!("run `vidtui stacks {run}` on {}", file.node);
        NodeStacks {
            node: file.node.clone(),
            result: Err(Failure::new(rundir::ErrorCode::Unclassified, &*what, why, fix)),
        }
    });
    let unreachable: Vec<NodeStacks> = unreachable.collect();
    Ok(told.into_iter().chain(unreachable).collect())
}

fn ask(target: &NodeKill, transport: &mut dyn Transport) -> Result<String, RemoteError> {
    let script = SCRIPT
        .replace("@BOOT", &quote(&target.boot_id))
        .replace("@MARKED", &marked(target))
        .replace("@PGID", &target.pgid.to_string())
        .replace("@PID", &target.pid.to_string())
        .replace("@START_TICKS", &target.start_ticks.to_string())
        .replace("@RUN", &quote(target.run.as_str()))
        .replace("@WITHIN", &WITHIN_S.to_string());
    // Two programs for each rank, all ranks at once, and the rest.
    let patience = Duration::from_secs(30 + 2 * WITHIN_S);
    let command = Command::new("tell the stacks of its processes", script, patience);
    let node = transport.node().clone();
    let text = transport.run(&command)?.text(&node, &command)?;
    let whole = text.strip_suffix("end\n").ok_or_else(|| RemoteError::UnexpectedReply {
        node: node.clone(),
        action: command.action.clone(),
        answer: text.chars().rev().take(200).collect::<Vec<_>>().into_iter().rev().collect(),
    })?;
    Ok(format!("stacks of {} on {node}\n{whole}", target.run))
}

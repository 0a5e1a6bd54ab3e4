//! The trainer's binary, copied to nodes that have another one or none.

use std::fs;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use plan::{LaunchPlan, quote};
use rundir::Failure;
use units::size;

use crate::command::Command;
use crate::parallel::on_nodes;
use crate::transport::PIECE;
use crate::{RemoteError, Transport};

/// How long a piece may take: slower than 10 KB/s is no network to train over.
const SOON: Duration = Duration::from_secs(100);

/// Copies the trainer to every node of a plan where it is not the same, all at once.
///
/// It is written beside its place, compared, and renamed into it: whatever runs the former binary goes on with that. Nodes that
/// share the folder write to files of their own, and the first that is done spares the others the rename.
///
/// It travels by SFTP; through the standard input of commands where OpenSSH's program connects, or a server has no SFTP or
/// refuses: SFTP knows no word for a full disk, a command says so.
///
/// # Errors
/// Names the first node on which it failed; no launch should follow.
pub(crate) fn push(
    what: &str,
    plan: &LaunchPlan,
    transports: &mut [Box<dyn Transport>],
    progress: &(dyn Fn(String) + Sync),
) -> Result<(), Failure> {
    let path = &plan.trainer.path;
    let bytes = fs::read(path).map_err(|error| {
        Failure::new(
            rundir::ErrorCode::Unclassified,
            what,
            format!("cannot read the trainer {path}: {error}"),
            "build it again",
        )
    })?;
    let nodes = plan.nodes.iter().map(|launch| (launch.node.clone(), ())).collect();
    let pushed =
        on_nodes(nodes, transports, |(), transport| to_node(path, &plan.trainer.sha256, &bytes, transport, progress));
    pushed.into_iter().collect::<Result<(), RemoteError>>().map_err(|error| error.failure(what))
}

fn to_node(
    path: &Utf8Path,
    sha256: &str,
    bytes: &[u8],
    transport: &mut dyn Transport,
    progress: &dyn Fn(String),
) -> Result<(), RemoteError> {
    let node = transport.node().clone();
    let is_same = |file: &str| format!("[ \"$(sha256sum <{file} 2>/dev/null | cut -d ' ' -f 1)\" = {sha256} ]");
    let temp_path = Utf8PathBuf::from(format!("{path}.new.{node}.{}", std::process::id()));
    let (there, temp) = (quote(path.as_str()), quote(temp_path.as_str()));
    let ask = |transport: &mut dyn Transport, action: &str, script: String, input: Vec<u8>| {
        let command = Command { input, ..Command::new(action, script, SOON) };
        let answer = transport.run(&command)?.text(&node, &command);
        if answer.is_err() {
            // A half-written file helps nobody.
            let _ = transport.run(&Command::new("remove what arrived", format!("rm -f -- {temp}"), SOON));
        }
        answer
    };
    let compare = format!("{} && echo same || echo other", is_same(&there));
    let same = ask(transport, "compare the trainer", compare, Vec::new())?;
    if same.trim() == "same" {
        return Ok(());
    }
    let action = format!("receive the trainer as {path}");
    let folder = quote(path.parent().map_or("/", Utf8Path::as_str));
    ask(transport, &action, format!("mkdir -p -- {folder}"), Vec::new())?;
    let arrived = |done: usize| {
        progress(format!("{node}: {} of {} of the trainer", size(done as u64), size(bytes.len() as u64)));
    };
    let is_sent = transport.send_file(&temp_path, bytes, &arrived).unwrap_or_else(|error| {
        progress(format!("{error}; a command takes it instead"));
        false
    });
    if !is_sent {
        ask(transport, &action, format!(": >{temp}"), Vec::new())?;
        let mut done = 0;
        for piece in bytes.chunks(PIECE) {
            // Where the disk is full it hears us out: a channel that closes while we write to it may take the session with it.
            let append = format!("cat >>{temp} || {{ cat >/dev/null; exit 1; }}");
            ask(transport, &action, append, piece.to_vec())?;
            done += piece.len();
            arrived(done);
        }
    }
    let place = format!(
        "{} || {{ echo 'it arrived damaged' >&2; exit 1; }}\n\
         {} && {{ rm -f -- {temp}; exit; }}\n\
         chmod 755 {temp} && mv -f -- {temp} {there}",
        is_same(&temp),
        is_same(&there),
    );
    ask(transport, &action, place, Vec::new())?;
    Ok(())
}

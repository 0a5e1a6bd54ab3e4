//! Copies the trainer to the nodes of a launch that have no trainer or a different one.

use std::fs;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use plan::{LaunchPlan, quote};
use rundir::{ErrorCode, Failure};
use units::size;

use crate::command::Command;
use crate::parallel::on_nodes;
use crate::transport::CHUNK_BYTES;
use crate::{RemoteError, Transport};

/// The time limit for copying a chunk. A network slower than 10 KB/s is not usable for training.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(100);

/// Copies the trainer to every node of a plan whose trainer differs, in parallel.
///
/// The copy is written to a temporary file beside its destination, verified, and renamed, so that running processes keep the
/// old binary. Nodes that share the folder write to separate files; after the first rename, the others are deleted.
///
/// The copy goes through SFTP. If OpenSSH's program makes the connection, or SFTP fails, the copy goes through the
/// standard input of commands. SFTP has no error for a full disk, but a command reports it.
///
/// # Errors
/// The error of the first node that failed. The launch must not continue.
pub(crate) fn push(
    what: &str,
    plan: &LaunchPlan,
    transports: &mut [Box<dyn Transport>],
    progress: &(dyn Fn(String) + Sync),
) -> Result<(), Failure> {
    let path = &plan.trainer.path;
    let bytes = fs::read(path).map_err(|error| {
        let why = format!("cannot read the trainer {path}: {error}");
        Failure::new(ErrorCode::TrainerUnusable, what, why, "build it with `cargo xtask build`")
    })?;
    let nodes = plan.nodes.iter().map(|launch| (launch.node.clone(), ())).collect();
    let pushed = on_nodes(nodes, transports, |(), transport| {
        push_to_node(path, &plan.trainer.sha256, &bytes, transport, progress)
    });
    pushed.into_iter().collect::<Result<(), RemoteError>>().map_err(|error| error.failure(what))
}

fn push_to_node(
    path: &Utf8Path,
    sha256: &str,
    bytes: &[u8],
    transport: &mut dyn Transport,
    progress: &dyn Fn(String),
) -> Result<(), RemoteError> {
    let node = transport.node().clone();
    let is_same = |file: &str| format!("[ \"$(sha256sum <{file} 2>/dev/null | cut -d ' ' -f 1)\" = {sha256} ]");
    let temp_path = Utf8PathBuf::from(format!("{path}.new.{}.{}", node.file_name(), std::process::id()));
    let (target, temp) = (quote(path.as_str()), quote(temp_path.as_str()));
    let run = |transport: &mut dyn Transport, action: &str, script: String, input: Vec<u8>| {
        let command = Command { input, ..Command::new(action, script, CHUNK_TIMEOUT) };
        let output = transport.run(&command)?.text(&node, &command);
        if output.is_err() {
            let remove = Command::new("remove the partial copy", format!("rm -f -- {temp}"), CHUNK_TIMEOUT);
            let _ = transport.run(&remove);
        }
        output
    };
    let compare = format!("{} && echo same || echo different", is_same(&target));
    if run(transport, "compare the trainer", compare, Vec::new())?.trim() == "same" {
        return Ok(());
    }
    let action = format!("receive the trainer as {path}");
    let folder = quote(path.parent().map_or("/", Utf8Path::as_str));
    run(transport, &action, format!("mkdir -p -- {folder}"), Vec::new())?;
    let arrived = |done: usize| {
        progress(format!("{node}: copying the trainer, {} of {}", size(done as u64), size(bytes.len() as u64)));
    };
    let is_sent = transport.send_file(&temp_path, bytes, &arrived).unwrap_or_else(|error| {
        progress(format!("{error}; copying through a command instead"));
        false
    });
    if !is_sent {
        run(transport, &action, format!(": >{temp}"), Vec::new())?;
        let mut done = 0;
        for chunk in bytes.chunks(CHUNK_BYTES) {
            // On a full disk the script reads its input to the end: if the channel closed during a write, the session could
            // break.
            let append = format!("cat >>{temp} || {{ cat >/dev/null; exit 1; }}");
            run(transport, &action, append, chunk.to_vec())?;
            done += chunk.len();
            arrived(done);
        }
    }
    let install = format!(
        "{} || {{ echo 'the copy has another SHA-256' >&2; exit 1; }}\n\
         {} && {{ rm -f -- {temp}; exit; }}\n\
         chmod 755 {temp} && mv -f -- {temp} {target}",
        is_same(&temp),
        is_same(&target),
    );
    run(transport, &action, install, Vec::new())?;
    Ok(())
}

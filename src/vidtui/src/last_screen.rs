//! Saves the last screen of a console, for the next console on the same folder of runs.
//!
//! Each folder of runs has one file in the state folder of the user, separate from the settings. A file that cannot be read
//! is ignored: the console then opens at the list of runs.

use camino::{Utf8Path, Utf8PathBuf};
use rundir::{RunDir, RunId, user_folder, write_atomic, xxh3_hex};
use serde::{Deserialize, Serialize};
use std::fs;
use ui::Session;

/// The version of the file. A file of another version is ignored.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    /// The folder of runs, for users who read the file.
    runs: Utf8PathBuf,
    session: Session,
}

/// Reads the last screen for a folder of runs. Leaves out runs that have been removed.
pub fn read(runs: &Utf8Path) -> Option<Session> {
    let file: File = serde_json::from_slice(&fs::read(path_of(runs)?).ok()?).ok()?;
    let session = Some(file).filter(|file| file.version == VERSION)?.session;
    Some(without_removed(session, |run| RunDir::of(runs, run).root.is_dir()))
}

/// Leaves out the runs that have been removed, and their nodes.
fn without_removed(mut session: Session, exists: impl Fn(&RunId) -> bool) -> Session {
    session.run = session.run.filter(&exists);
    session.compared.retain(&exists);
    if session.nodes_of.as_ref().is_some_and(|run| !exists(run)) {
        (session.nodes_of, session.node) = (None, None);
        session.processes.clear();
    }
    session
}

/// Writes the last screen. A failure is ignored: the next console then opens at the list of runs.
pub fn write(runs: &Utf8Path, session: Session) {
    let Some(path) = path_of(runs) else { return };
    let file = File { version: VERSION, runs: runs.to_owned(), session };
    let Ok(bytes) = serde_json::to_vec_pretty(&file) else { return };
    if fs::create_dir_all(path.parent().unwrap_or(Utf8Path::new("/"))).is_ok() {
        let _ = write_atomic(&path, &bytes);
    }
}

fn path_of(runs: &Utf8Path) -> Option<Utf8PathBuf> {
    let name = xxh3_hex(runs.as_str().as_bytes());
    Some(user_folder("XDG_STATE_HOME", ".local/state")?.join(format!("vidtui/screens/{name}.json")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::NodeId;
    use ui::Screen;

    #[test]
    fn a_removed_run_is_left_out_with_its_nodes() {
        let id = |name: &str| RunId::parse(name).unwrap();
        let (kept, removed) = (id("2026-11-20T0340-demo-2s-k7f2"), id("2026-11-20T0355-demo-4s-q2xw"));
        let node = NodeId::new("gpu001").unwrap();
        let of = |run: &RunId| Session {
            screen: Screen::Processes,
            run: Some(run.clone()),
            compared: vec![kept.clone(), removed.clone()],
            nodes_of: Some(run.clone()),
            node: Some(node.clone()),
            processes: vec![node.clone()],
            ..Session::default()
        };
        let exists = |run: &RunId| *run == kept;
        let compared = vec![kept.clone()];
        assert_eq!(without_removed(of(&kept), exists), Session { compared: compared.clone(), ..of(&kept) });
        let expected = Session { screen: Screen::Processes, compared, ..Session::default() };
        assert_eq!(without_removed(of(&removed), exists), expected);
    }
}

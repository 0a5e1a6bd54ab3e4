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
    let mut session = Some(file).filter(|file| file.version == VERSION)?.session;
    let exists = |run: &RunId| RunDir::of(runs, run).root.is_dir();
    session.run = session.run.filter(exists);
    session.compared.retain(exists);
    Some(session)
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

//! Finds the logs of other tools in files and folders.

use crate::command_error::CommandError;
use crate::output::note;
use camino::{Utf8Path, Utf8PathBuf};
use interop::{Log, Tool, tensorboard, wandb};
use rundir::{Error, ErrorCode, Failure, RunDir};
use std::io;

/// The number of levels of folders below the given folder that are searched for logs.
const DEPTH: usize = 3;

/// The log of one run.
#[derive(Debug)]
pub struct Source {
    /// The tool that wrote it.
    pub tool: Tool,
    /// The folder of TensorBoard's event files, or the oldest file: absolute, without symbolic links.
    pub path: Utf8PathBuf,
    /// The files, the oldest first.
    pub files: Vec<Utf8PathBuf>,
    /// The name of the run, if the log has none.
    pub name: String,
}

impl Source {
    /// Reads the log.
    pub fn read(&self) -> Result<Log, Failure> {
        Ok(self.tool.read(&self.files)?)
    }

    fn of_file(tool: Tool, path: Utf8PathBuf) -> Self {
        let name = match tool {
            Tool::TensorBoard => path.parent().and_then(Utf8Path::file_name),
            Tool::Wandb => path.file_stem(),
        };
        Self { tool, name: name.unwrap_or("imported").to_owned(), files: vec![path.clone()], path }
    }
}

/// Finds the logs in files and folders, and in folders up to three levels below these. Each log is listed once.
///
/// # Errors
/// When a path cannot be read or has no log.
pub fn find(paths: &[Utf8PathBuf]) -> Result<Vec<Source>, CommandError> {
    let mut found = Vec::new();
    for path in paths {
        let logs = logs_at(path).map_err(|error| Failure::from(Error::io("list", path, error)))?;
        if logs.is_empty() {
            let why = "it is neither a TensorBoard event file (events.out.tfevents…) nor a W&B log (run-….wandb), nor a folder with one";
            let (what, fix) = (format!("cannot import {path}"), "name the folder of the old run");
            return Err(CommandError::request(Failure::new(ErrorCode::NotFound, what, why, fix)));
        }
        logs.into_iter().for_each(|log| add(&mut found, log));
    }
    Ok(found)
}

/// Finds the logs at a path, as [`find`] does. There may be none.
///
/// # Errors
/// The path cannot be read.
pub fn logs_at(path: &Utf8Path) -> io::Result<Vec<Source>> {
    let (path, mut found) = (path.canonicalize_utf8()?, Vec::new());
    if !path.is_file() {
        logs_in(&path, &path, DEPTH, &mut found)?;
    } else if path.extension() == Some("wandb") {
        found.push(Source::of_file(Tool::Wandb, path));
    } else if path.file_name().is_some_and(|name| name.contains("tfevents")) {
        found.push(Source::of_file(Tool::TensorBoard, path));
    }
    Ok(found)
}

/// Adds the logs in a folder, and those in folders up to `depth` levels below it. Runs of TensorBoard are named by their paths below
/// `root`, as TensorBoard names them.
fn logs_in(root: &Utf8Path, folder: &Utf8Path, depth: usize, found: &mut Vec<Source>) -> io::Result<()> {
    // The logs of this program's own runs are not imported unless the user names them.
    if folder != root && RunDir::new(folder).run_toml().exists() {
        return Ok(());
    }
    let files = tensorboard::event_files(folder)?;
    if !files.is_empty() {
        let below = folder.strip_prefix(root).ok().map(Utf8Path::as_str).filter(|below| !below.is_empty());
        let name = below.or(folder.file_name()).unwrap_or("imported").to_owned();
        add(found, Source { tool: Tool::TensorBoard, path: folder.to_owned(), files, name });
    }
    for file in wandb::run_files(folder)? {
        add(found, Source::of_file(Tool::Wandb, file));
    }
    if depth == 0 {
        return Ok(());
    }
    // A folder whose name is not UTF-8 cannot be named in an argument either. `latest-run` of W&B is a link to another folder.
    let folders = folder.read_dir_utf8()?.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut below: Vec<Utf8PathBuf> = folders.map(|entry| entry.into_path()).collect();
    below.sort();
    for folder in below {
        if let Err(error) = logs_in(root, &folder, depth - 1, found) {
            note!("warning: {folder} is left out: {error}");
        }
    }
    Ok(())
}

/// Adds a log, unless it is there already. The files of one W&B run are one log, and so are event files of one folder.
fn add(found: &mut Vec<Source>, source: Source) {
    let of = run_of(&source);
    match found.iter().position(|other| run_of(other) == of) {
        None => found.push(source),
        Some(at) => {
            let log = &mut found[at];
            log.files.extend(source.files);
            log.files.sort_by(|a, b| (start_of(a), a).cmp(&(start_of(b), b)));
            log.files.dedup();
            // The path does not depend on the order in which the files are named, so that the log is recognized later.
            match log.files.first().filter(|_| log.tool == Tool::Wandb) {
                Some(oldest) => log.path.clone_from(oldest),
                None if source.path < log.path => log.path = source.path,
                None => {}
            }
        }
    }
}

/// Returns the name of a file's folder without `offline-`, so that the folders of W&B sort by time.
fn start_of(file: &Utf8Path) -> &str {
    let folder = file.parent().and_then(Utf8Path::file_name).unwrap_or_default();
    folder.strip_prefix("offline-").unwrap_or(folder)
}

/// Returns what the files of one run have in common: the folder, and for W&B the id.
fn run_of(source: &Source) -> (Tool, &Utf8Path, &str) {
    let file = source.files.first().map_or(source.path.as_path(), Utf8PathBuf::as_path);
    let folder = file.parent().unwrap_or(file);
    match source.tool {
        Tool::TensorBoard => (source.tool, folder, ""),
        Tool::Wandb => {
            let (folder, id) = wandb_run(file).unwrap_or((file, ""));
            (source.tool, folder, id)
        }
    }
}

/// Returns what the files of one W&B run have in common, the folder and the id: each start of the run writes
/// `offline-run-<time>-<id>/run-<id>.wandb`.
fn wandb_run(file: &Utf8Path) -> Option<(&Utf8Path, &str)> {
    let (folder, id) = (file.parent()?, file.file_stem()?.strip_prefix("run-")?);
    let is_start = file.extension() == Some("wandb") && folder.file_name()?.strip_suffix(id)?.ends_with('-');
    if is_start { Some((folder.parent()?, id)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Makes empty files, and returns the tool, the name and the number of files of each log that is found.
    fn found(files: &[&str], paths: &[&str]) -> Vec<(&'static str, String, usize)> {
        let keep = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(keep.path()).unwrap().join("logs");
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let paths: Vec<Utf8PathBuf> = paths.iter().map(|path| root.join(path)).collect();
        let logs = find(&paths).unwrap_or_else(|error| panic!("{:?}", error.into_failure()));
        logs.into_iter().map(|log| (log.tool.name(), log.name, log.files.len())).collect()
    }

    #[test]
    fn each_folder_with_event_files_is_a_run_with_its_path_as_name() {
        let files = ["a.tfevents.1", "b/a.tfevents.1", "b/a.tfevents.2", "b/c/a.tfevents.1", "d/notes.txt"];
        let tensorboard = |name: &str, files| ("TensorBoard", name.to_owned(), files);
        let all = [tensorboard("logs", 1), tensorboard("b", 2), tensorboard("b/c", 1)];
        assert_eq!(found(&files, &["", "b"]), all, "the second path has no other logs");
        assert_eq!(found(&files, &["b/a.tfevents.2"]), [tensorboard("b", 1)]);
        for paths in [["b/a.tfevents.1", "b/a.tfevents.2"], ["b/a.tfevents.2", "b"]] {
            assert_eq!(found(&files, &paths)[..1], [tensorboard("b", 2)], "the files of a folder are one run");
        }
    }

    #[test]
    fn the_starts_of_a_wandb_run_are_one_log_even_if_they_are_named_separately() {
        let (first, second) = ("offline-run-20260301_101500-k7f2", "offline-run-20260301_111500-k7f2");
        let files = [first, second].map(|folder| format!("{folder}/run-k7f2.wandb"));
        let files =
            [files[0].as_str(), files[1].as_str(), "offline-run-20260301_101500-x/run-x.wandb", "copy/run-k7f2.wandb"];
        let wandb = |name: &str, files| ("W&B", name.to_owned(), files);
        assert_eq!(found(&files, &[""]), [wandb("run-k7f2", 1), wandb("run-k7f2", 2), wandb("run-x", 1)]);
        assert_eq!(found(&files, &[first, second]), [wandb("run-k7f2", 2)]);
    }

    #[test]
    fn the_starts_of_a_wandb_run_are_in_the_order_of_their_times() {
        let mut found = Vec::new();
        for folder in ["offline-run-20260302_101500-k7f2", "run-20260301_101500-k7f2"] {
            add(&mut found, Source::of_file(Tool::Wandb, format!("/wandb/{folder}/run-k7f2.wandb").into()));
        }
        let [log] = &found[..] else { panic!("{found:?}") };
        assert!(log.files.len() == 2 && log.path == log.files[0], "{log:?}");
        assert!(log.path.as_str().starts_with("/wandb/run-20260301"), "{log:?}");
    }

    #[test]
    fn logs_in_the_folders_of_own_runs_are_found_only_if_they_are_named() {
        let files = ["runs/r/run.toml", "runs/r/tensorboard/a.tfevents.1", "old/a.tfevents.1"];
        let names = |path: &str| found(&files, &[path]).into_iter().map(|(_, name, _)| name).collect::<Vec<_>>();
        assert_eq!((names(""), names("runs/r")), (vec!["old".to_owned()], vec!["tensorboard".to_owned()]));
    }
}

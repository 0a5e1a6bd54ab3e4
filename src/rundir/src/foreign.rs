//! Checkpoints of other trainers: which folders they are, and whether they are whole.
//!
//! None of these systems says in one place that a checkpoint is complete, so that is concluded from everything in it: files
//! that are written last, files that others name, and formats that say how long they are.

use crate::failure::is_no_answer;
use crate::{CheckpointEntry, CheckpointSummary, Error, RunDir};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{Adapter, TrainerKind};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::time::{Duration, UNIX_EPOCH};

/// How deep below the output folder checkpoints are looked for: Open-Sora and ttt-video-dit make a folder for each run.
const DEPTH: usize = 3;
/// How long nothing may have changed in a checkpoint that Open-Sora writes in the background.
const QUIET: Duration = Duration::from_secs(10);
/// A header of a safetensors file is never longer: the format says so.
const MAX_HEADER: u64 = 100_000_000;

/// Where a command saves, and as which system; none if the run is not one of a command.
pub(crate) fn output_of(run: &RunDir) -> Option<(Utf8PathBuf, Adapter)> {
    let meta = run.read_run().ok()?;
    // Most runs are not, and this is asked often.
    if meta.recipe.get("trainer")?.as_str()? != "command" {
        return None;
    }
    let recipe = meta.recipe().ok().filter(|recipe| recipe.trainer == TrainerKind::Command)?;
    Some((crate::command_output(run, &meta, &recipe), recipe.command.adapter))
}

/// A folder that is named like a checkpoint.
struct Named {
    dir: Utf8PathBuf,
    /// The number in its name, after the epoch where that is in it too.
    order: (u64, u64),
}

/// Why a checkpoint cannot be loaded.
enum Fault {
    /// What is missing or wrong.
    Incomplete(String),
    /// What the file system said.
    Unreadable(String),
}

impl Fault {
    fn of_file(path: &Utf8Path, error: &io::Error) -> Self {
        let why = format!("{path}: {error}");
        if is_no_answer(error) { Self::Unreadable(why) } else { Self::Incomplete(why) }
    }
}

impl From<String> for Fault {
    fn from(why: String) -> Self {
        Self::Incomplete(why)
    }
}

impl From<&str> for Fault {
    fn from(why: &str) -> Self {
        Self::Incomplete(why.to_owned())
    }
}

/// Lists the checkpoints below a folder, by ascending step.
///
/// # Errors
/// [`Error::Io`] if the folder cannot be listed; a missing one is an empty list.
pub(crate) fn list(run: &RunDir, output: &Utf8Path, adapter: Adapter) -> Result<Vec<CheckpointEntry>, Error> {
    if let Err(error) = output.read_dir_utf8()
        && is_no_answer(&error)
    {
        return Err(Error::io("list", output, error));
    }
    let mut named = Vec::new();
    find(output, adapter, DEPTH, &mut named);
    named.sort_by(|a, b| a.order.cmp(&b.order).then_with(|| a.dir.cmp(&b.dir)));
    let starts = starts(run);
    let entry = |Named { dir, order: (_, step) }: Named| {
        let contents = Contents::read(&dir);
        if adapter == Adapter::OpenSora && contents.is_emptied() {
            return None;
        }
        Some(match contents.whole(adapter, step) {
            Err(Fault::Incomplete(why)) => CheckpointEntry::Incomplete { step, dir, why },
            Err(Fault::Unreadable(why)) => CheckpointEntry::Unreadable { step, dir, why },
            Ok(()) => CheckpointEntry::Complete(CheckpointSummary {
                step,
                attempt: starts.iter().rev().find(|(_, began)| *began <= contents.newest_s()).map_or(1, |(n, _)| *n),
                bytes: contents.files.iter().map(|file| file.bytes).sum(),
                saved_s: contents.newest_s(),
                dir,
            }),
        })
    };
    Ok(named.into_iter().filter_map(entry).collect())
}

/// When each attempt began, oldest first: by the clock of the node that saves, where that is known. Who launched it may have
/// had another.
fn starts(run: &RunDir) -> Vec<(u32, f64)> {
    let began = |number| {
        let attempt = run.read_attempt(number).ok()?;
        let first = attempt.placement.by_node().into_iter().next().map(|(node, _)| node.clone());
        let pid = first.and_then(|node| run.read_pid(&node, number).ok()?);
        Some((number, pid.map_or(attempt.started_s, |pid| pid.started_s)))
    };
    run.attempt_numbers().unwrap_or_default().into_iter().filter_map(began).collect()
}

fn find(folder: &Utf8Path, adapter: Adapter, depth: usize, named: &mut Vec<Named>) {
    for entry in folder.read_dir_utf8().into_iter().flatten().flatten() {
        let dir = entry.path().to_owned();
        match order(&dir, adapter) {
            Some(order) => named.push(Named { dir, order }),
            None if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) => {
                find(&dir, adapter, depth - 1, named);
            }
            None => {}
        }
    }
}

/// The numbers in the name of a checkpoint.
fn order(dir: &Utf8Path, adapter: Adapter) -> Option<(u64, u64)> {
    let name = dir.file_name()?;
    let after = |prefix: &str| name.strip_prefix(prefix)?.parse().ok();
    match adapter {
        Adapter::None => None,
        Adapter::OpenSora => {
            let (epoch, step) = name.strip_prefix("epoch")?.split_once("-global_step")?;
            Some((epoch.parse().ok()?, step.parse().ok()?))
        }
        Adapter::Finetrainers => Some((0, after("finetrainers_step_")?)),
        Adapter::CogvideoxFactory => Some((0, after("checkpoint-")?)),
        Adapter::VideoxFun => match name.strip_suffix(".safetensors") {
            Some(stem) => Some((0, stem.strip_prefix("checkpoint-")?.parse().ok()?)),
            None => Some((0, after("checkpoint-")?)),
        },
        Adapter::TttVideoDit => {
            (dir.parent()?.file_name()? == "checkpoint").then(|| Some((0, after("step-")?))).flatten()
        }
    }
}

/// Everything in a checkpoint.
struct Contents {
    root: Utf8PathBuf,
    /// By path from the root.
    files: Vec<Entry>,
    /// What of it could not be looked at, and what the file system said.
    unread: Option<(Utf8PathBuf, io::Error)>,
}

struct Entry {
    path: Utf8PathBuf,
    bytes: u64,
    modified_s: f64,
}

impl Contents {
    fn read(root: &Utf8Path) -> Self {
        let mut contents = Self { root: root.to_owned(), files: Vec::new(), unread: None };
        match fs::metadata(root) {
            Ok(meta) if meta.is_dir() => contents.walk(Utf8Path::new("")),
            Ok(_) => {}
            Err(error) => contents.unread = Some((root.to_owned(), error)),
        }
        contents.files.sort_by(|a, b| a.path.cmp(&b.path));
        contents
    }

    fn walk(&mut self, below: &Utf8Path) {
        let entries = match self.root.join(below).read_dir_utf8() {
            Ok(entries) => entries,
            Err(error) => return self.unread = Some((below.to_owned(), error)),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return self.unread = Some((below.to_owned(), error)),
            };
            let path = below.join(entry.file_name());
            // What Open-Sora samples from a checkpoint, whenever that is.
            if path == "eval" {
                continue;
            }
            match fs::metadata(entry.path()) {
                Ok(meta) if meta.is_dir() => self.walk(&path),
                Ok(meta) => {
                    let modified = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                    let modified_s = modified.map_or(0.0, |since| since.as_secs_f64());
                    self.files.push(Entry { path, bytes: meta.len(), modified_s });
                }
                // It was removed a moment ago.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => self.unread = Some((path, error)),
            }
        }
    }

    fn newest_s(&self) -> f64 {
        self.files.iter().map(|file| file.modified_s).fold(0.0, f64::max)
    }

    /// Open-Sora empties old checkpoints and leaves the folder, with what was sampled from it.
    fn is_emptied(&self) -> bool {
        self.unread.is_none() && self.files.is_empty()
    }

    fn has(&self, path: &str) -> bool {
        self.files.iter().any(|file| file.path == path)
    }

    fn has_in(&self, folder: &str) -> bool {
        self.files.iter().any(|file| file.path.starts_with(folder) && file.path != folder)
    }

    fn need(&self, path: &str) -> Result<(), String> {
        if self.has(path) { Ok(()) } else { Err(format!("{path} is missing")) }
    }

    fn need_one(&self, what: &str, choice: &[&str]) -> Result<(), String> {
        let found = choice.iter().any(|path| self.has(path) || self.has_in(path));
        if found { Ok(()) } else { Err(format!("it has no {what} ({})", choice.join(", "))) }
    }

    /// Says what is missing.
    fn whole(&self, adapter: Adapter, step: u64) -> Result<(), Fault> {
        if let Some((path, error)) = &self.unread {
            return Err(Fault::of_file(path, error));
        }
        if self.root.extension() == Some("safetensors") {
            return Err("it holds only weights: add --save_state for checkpoints to continue from".into());
        }
        match adapter {
            Adapter::None => return Err("nobody knows what it should hold".into()),
            Adapter::OpenSora => {
                self.need("running_states.json")?;
                let states = self.bytes("running_states.json")?;
                serde_json::from_slice::<serde_json::Value>(&states)
                    .map_err(|error| format!("running_states.json is damaged: {error}"))?;
                self.need_one("weights", &["model", "lora"])?;
                self.need_one("optimizer", &["optimizer"])?;
                // Written last, but for what is written in the background.
                self.need("sampler")?;
                self.quiet()?;
            }
            Adapter::Finetrainers | Adapter::TttVideoDit => {
                if adapter == Adapter::Finetrainers && step == 0 {
                    return Err("it holds only the model: it was saved before the first step".into());
                }
                // Written when every rank has written its part.
                self.need(".metadata")?;
                let metadata = self.bytes(".metadata")?;
                named_parts(&metadata).iter().try_for_each(|part| self.need(part))?;
                if adapter == Adapter::TttVideoDit {
                    self.need("all_stat_dict.pth")?;
                }
            }
            Adapter::CogvideoxFactory | Adapter::VideoxFun => {
                self.need_one("optimizer", &["optimizer.bin", "optimizer", "optimizer_0", "pytorch_model"])?;
                let is_weights = |file: &&Entry| {
                    let name = file.path.file_name().unwrap_or_default();
                    let kind = file.path.extension().unwrap_or_default();
                    ["safetensors", "bin", "pt", "distcp"].contains(&kind)
                        && !["optimizer", "scheduler", "scaler"].iter().any(|other| name.starts_with(other))
                };
                if !self.files.iter().any(|file| is_weights(&file)) {
                    return Err("it has no weights".into());
                }
                if adapter == Adapter::VideoxFun {
                    self.need("sampler_pos_start.pkl")?;
                }
                // Written last.
                self.need("random_states_0.pkl")?;
            }
        }
        self.files.iter().try_for_each(|file| self.whole_file(file))
    }

    fn bytes(&self, path: &str) -> Result<Vec<u8>, Fault> {
        fs::read(self.root.join(path)).map_err(|error| Fault::of_file(Utf8Path::new(path), &error))
    }

    fn quiet(&self) -> Result<(), String> {
        if !self.has("async_file_io.log") && !self.has("master.safetensors") {
            return Ok(());
        }
        let now_s = crate::now_s();
        if now_s - self.newest_s() >= QUIET.as_secs_f64() {
            return Ok(());
        }
        Err(format!("it is written in the background, and was quiet for less than {} s", QUIET.as_secs()))
    }

    fn whole_file(&self, file: &Entry) -> Result<(), Fault> {
        let Entry { path, bytes, .. } = file;
        let full = self.root.join(path);
        let failed = |error: io::Error| Fault::of_file(path, &error);
        match path.extension() {
            Some("safetensors") => match safetensors_bytes(&full).map_err(failed)? {
                Some(wanted) if wanted == *bytes => Ok(()),
                Some(wanted) => Err(format!("{path} has {bytes} of {wanted} bytes").into()),
                None => Err(format!("{path} has no whole header").into()),
            },
            Some("bin" | "pt" | "pth" | "pkl") | None if is_cut_zip(&full, *bytes).map_err(failed)? => {
                Err(format!("{path} is cut off").into())
            }
            Some("bin" | "pt" | "pth" | "pkl" | "distcp") | None if *bytes == 0 => {
                Err(format!("{path} is empty").into())
            }
            Some("json") if path.as_str().ends_with(".index.json") => {
                let text = fs::read(&full).map_err(failed)?;
                let index: Index = serde_json::from_slice(&text).map_err(|error| format!("{path}: {error}"))?;
                let folder = path.parent().unwrap_or(Utf8Path::new(""));
                Ok(index.weight_map.values().try_for_each(|shard| self.need(folder.join(shard).as_str()))?)
            }
            _ => Ok(()),
        }
    }
}

/// The files that `.metadata` names. It is a pickle, in which names are plain text.
fn named_parts(metadata: &[u8]) -> BTreeSet<String> {
    const ENDING: &[u8] = b".distcp";
    let ends = (0..metadata.len()).filter(|at| metadata[*at..].starts_with(ENDING));
    let name = |end: usize| {
        let begin =
            metadata[..end].iter().rposition(|byte| !byte.is_ascii_digit() && *byte != b'_').map_or(0, |at| at + 1);
        format!("{}.distcp", String::from_utf8_lossy(&metadata[begin..end]))
    };
    ends.map(name).collect()
}

/// `model.safetensors.index.json`, as far as it matters.
#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    weight_map: BTreeMap<String, String>,
}

/// How long a safetensors file says it is.
fn safetensors_bytes(path: &Utf8Path) -> io::Result<Option<u64>> {
    #[derive(Deserialize)]
    struct Tensor {
        data_offsets: Option<[u64; 2]>,
    }
    let mut file = File::open(path)?;
    let mut length = [0; 8];
    if !is_read(&mut file, &mut length)? {
        return Ok(None);
    }
    let length = u64::from_le_bytes(length);
    let mut header = Vec::new();
    file.take(length.min(MAX_HEADER)).read_to_end(&mut header)?;
    let Ok(tensors) = serde_json::from_slice::<BTreeMap<String, Tensor>>(&header) else { return Ok(None) };
    let data = tensors.values().filter_map(|tensor| tensor.data_offsets).map(|[_, end]| end).max().unwrap_or(0);
    Ok(length.checked_add(8).and_then(|bytes| bytes.checked_add(data)))
}

/// Reads so many bytes, if there are as many.
fn is_read(file: &mut File, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a file begins as what torch.save writes, and does not end so.
fn is_cut_zip(path: &Utf8Path, bytes: u64) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut magic = [0; 2];
    if !is_read(&mut file, &mut magic)? || magic != *b"PK" {
        return Ok(false);
    }
    // The end of the central directory, without a comment.
    const END: u64 = 22;
    if bytes < END {
        return Ok(true);
    }
    file.seek(SeekFrom::Start(bytes - END))?;
    let mut end = [0; 4];
    file.read_exact(&mut end)?;
    Ok(end != *b"PK\x05\x06")
}

/// How long the files of a checkpoint took to write, in seconds: from the first one that was finished to the last.
pub fn written_over_s(dir: &Utf8Path) -> f64 {
    let contents = Contents::read(dir);
    let oldest = contents.files.iter().map(|file| file.modified_s).fold(f64::INFINITY, f64::min);
    (contents.newest_s() - oldest).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{temp, write_attempt};
    use std::time::SystemTime;

    const EMPTY_ZIP: &[u8] = b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

    fn tensors() -> Vec<u8> {
        let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat()
    }

    /// Makes a checkpoint; a name decides what is in a file.
    fn make(run: &RunDir, dir: &str, files: &[&str]) -> Utf8PathBuf {
        let dir = run.root.join(dir);
        fs::create_dir_all(&dir).unwrap();
        for name in files {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let bytes = match path.extension() {
                Some("safetensors") => tensors(),
                Some("json") if name.contains("index") => br#"{"weight_map":{"w":"00001.safetensors"}}"#.to_vec(),
                Some("json") => br#"{"epoch":0,"step":4}"#.to_vec(),
                Some("distcp") | Some("log") => b"tensors".to_vec(),
                None if *name == ".metadata" => {
                    let parts = files.iter().filter(|file| file.ends_with(".distcp"));
                    parts.map(|part| format!("\u{1}X{part}q")).collect::<String>().into_bytes()
                }
                _ => EMPTY_ZIP.to_vec(),
            };
            fs::write(path, bytes).unwrap();
        }
        dir
    }

    /// `40 whole`, or `40: why not`.
    fn listed(run: &RunDir, adapter: Adapter) -> Vec<String> {
        let entry = |entry: CheckpointEntry| match entry {
            CheckpointEntry::Complete(summary) => format!("{} whole", summary.step),
            CheckpointEntry::Incomplete { step, why, .. } => format!("{step}: {why}"),
            CheckpointEntry::Unreadable { step, why, .. } => format!("{step} unreadable: {why}"),
        };
        list(run, &run.root, adapter).unwrap().into_iter().map(entry).collect()
    }

    const OPEN_SORA: &[&str] = &[
        "model/model.safetensors.index.json",
        "model/00001.safetensors",
        "optimizer/00001.safetensors",
        "lr_scheduler",
        "running_states.json",
        "sampler",
    ];
    const ACCELERATE: &[&str] =
        &["model.safetensors", "optimizer.bin", "scheduler.bin", "sampler_pos_start.pkl", "random_states_0.pkl"];

    /// What each system writes, its folder, and what it is called there.
    const ALL: &[(Adapter, &str, &[&str])] = &[
        (Adapter::OpenSora, "outputs/demo/epoch0-global_step40", OPEN_SORA),
        (Adapter::Finetrainers, "finetrainers_step_40", &[".metadata", "__0_0.distcp", "__1_0.distcp"]),
        (Adapter::CogvideoxFactory, "checkpoint-40", ACCELERATE),
        (Adapter::VideoxFun, "checkpoint-40", ACCELERATE),
        (Adapter::TttVideoDit, "demo/checkpoint/step-40", &[".metadata", "__0_0.distcp", "all_stat_dict.pth"]),
    ];

    #[test]
    fn a_checkpoint_of_each_system_is_whole_and_without_any_of_its_files_it_is_not() {
        for (adapter, name, files) in ALL {
            let (_keep, run) = temp();
            let dir = make(&run, name, files);
            assert_eq!(listed(&run, *adapter), ["40 whole"], "{adapter:?}");
            for file in *files {
                // These two only tell how the others are read.
                if ["lr_scheduler", "scheduler.bin", "model/model.safetensors.index.json"].contains(file)
                    || (*file == "sampler_pos_start.pkl" && *adapter == Adapter::CogvideoxFactory)
                {
                    continue;
                }
                fs::rename(dir.join(file), run.root.join("aside")).unwrap();
                let found = listed(&run, *adapter);
                assert!(found.len() == 1 && !found[0].ends_with("whole"), "{adapter:?} without {file}: {found:?}");
                fs::rename(run.root.join("aside"), dir.join(file)).unwrap();
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_looked_at_says_nothing_about_the_checkpoint() {
        for (adapter, name, files) in ALL {
            let (_keep, run) = temp();
            let dir = make(&run, name, files);
            // Even root cannot read through a link to itself.
            let path = dir.join(files[0]);
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(&path, &path).unwrap();
            let found = listed(&run, *adapter);
            assert!(found[0].starts_with(&format!("40 unreadable: {}: ", files[0])), "{adapter:?}: {found:?}");
        }
        let (_keep, run) = temp();
        let output = run.root.join("output");
        std::os::unix::fs::symlink(&output, &output).unwrap();
        assert!(list(&run, &output, Adapter::Finetrainers).unwrap_err().to_string().starts_with("cannot list"));
        assert!(list(&run, &run.root.join("none"), Adapter::Finetrainers).unwrap().is_empty());
    }

    #[test]
    fn a_file_that_is_cut_off_makes_a_checkpoint_incomplete() {
        for (adapter, name, files) in ALL {
            let (_keep, run) = temp();
            let dir = make(&run, name, files);
            for file in *files {
                let path = dir.join(file);
                let whole = fs::read(&path).unwrap();
                let cut = if path.extension() == Some("distcp") || file.starts_with('.') { 0 } else { whole.len() - 1 };
                fs::write(&path, &whole[..cut]).unwrap();
                let found = listed(&run, *adapter);
                assert!(!found[0].ends_with("whole"), "{adapter:?} with a part of {file}: {found:?}");
                fs::write(&path, whole).unwrap();
            }
        }
    }

    #[test]
    fn checkpoints_are_in_the_order_of_their_numbers_and_emptied_ones_are_passed_over() {
        let (_keep, run) = temp();
        for name in ["epoch1-global_step100", "epoch0-global_step20", "epoch0-global_step90"] {
            make(&run, name, OPEN_SORA);
        }
        make(&run, "epoch0-global_step10", &["eval/sample.log"]);
        make(&run, "epoch0-global_step5", &[]);
        make(&run, "epoch1-global_step110", &["model/00001.safetensors"]);
        make(&run, "epoch-global_stepx", OPEN_SORA);
        let want = ["20 whole", "90 whole", "100 whole", "110: running_states.json is missing"];
        assert_eq!(listed(&run, Adapter::OpenSora), want);
    }

    #[test]
    fn a_checkpoint_is_of_the_attempt_that_ran_when_it_was_saved_by_the_clock_of_the_node_that_saves() {
        let (_keep, run) = temp();
        let now_s = crate::now_s();
        // Launched from a machine whose clock is three hours ahead.
        for (number, ago_s) in [(1, 2000.0), (2, 1000.0)] {
            write_attempt(&run, number, 0);
            let attempt = crate::Attempt { started_s: now_s - ago_s + 10_800.0, ..run.read_attempt(number).unwrap() };
            run.write_attempt(&attempt).unwrap();
            let node = attempt.placement.ranks[0].node.clone();
            fs::create_dir_all(run.node_dir(&node)).unwrap();
            let (pid, pgid, boot_id, start_ticks) = (1, 1, "b".into(), 1);
            let (schema, attempt, started_s) = (crate::SCHEMA, number, now_s - ago_s);
            run.write_pid(&crate::PidFile {
                schema,
                attempt,
                node,
                pid,
                pgid,
                boot_id,
                start_ticks,
                started_s,
                ranks: vec![],
            })
            .unwrap();
        }
        for (step, ago) in [(80, 1500), (20, 500)] {
            let dir = make(&run, &format!("epoch0-global_step{step}"), OPEN_SORA);
            let then = SystemTime::now() - Duration::from_secs(ago);
            for file in Contents::read(&dir).files {
                File::options().append(true).open(dir.join(&file.path)).unwrap().set_modified(then).unwrap();
            }
            make(&run, &format!("epoch0-global_step{step}"), &["eval/sample.log"]);
        }
        let entries = list(&run, &run.root, Adapter::OpenSora).unwrap();
        let attempts: Vec<_> = entries.iter().map(|entry| entry.complete().map(|c| (c.step, c.attempt))).collect();
        assert_eq!(attempts, [Some((20, 2)), Some((80, 1))]);
    }

    #[test]
    fn what_open_sora_writes_in_the_background_must_have_been_quiet() {
        let (_keep, run) = temp();
        let dir = make(&run, "epoch0-global_step20", OPEN_SORA);
        fs::write(dir.join("async_file_io.log"), "writing").unwrap();
        assert!(listed(&run, Adapter::OpenSora)[0].contains("in the background"));
        let long_ago = SystemTime::now() - 2 * QUIET;
        for file in Contents::read(&dir).files {
            File::options().append(true).open(dir.join(&file.path)).unwrap().set_modified(long_ago).unwrap();
        }
        assert_eq!(listed(&run, Adapter::OpenSora), ["20 whole"]);
    }

    #[test]
    fn weights_alone_cannot_be_continued_from_and_say_what_to_do() {
        let (_keep, run) = temp();
        fs::write(run.root.join("checkpoint-50.safetensors"), tensors()).unwrap();
        fs::write(run.root.join("checkpoint-50-compatible_with_comfyui.safetensors"), tensors()).unwrap();
        let found = listed(&run, Adapter::VideoxFun);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("50: ") && found[0].contains("--save_state"), "{found:?}");
        make(&run, "finetrainers_step_0", &[".metadata", "__0_0.distcp"]);
        assert!(listed(&run, Adapter::Finetrainers)[0].starts_with("0: it holds only the model"));
    }
}

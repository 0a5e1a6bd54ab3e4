//! W&B's offline runs: `wandb/offline-run-<time>-<id>/run-<id>.wandb`, a log of `Record` messages in LevelDB's framing.
//!
//! Source of the field numbers: `wandb/proto/wandb_internal.proto`.

mod blocks;
mod write;

pub use write::{NewRun, RunWriter};

use crate::wire::{Fields, Value};
use crate::{Log, Point};
use blocks::{Blocks, Next};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::Error;
use std::fs::File;
use std::io;

/// Returns the logs in the folder of a run: normally one file, `run-<id>.wandb`.
///
/// # Errors
/// When the folder cannot be listed.
pub fn run_files(folder: &Utf8Path) -> io::Result<Vec<Utf8PathBuf>> {
    let mut files = Vec::new();
    // Names that are not UTF-8 are not W&B's.
    for entry in folder.read_dir_utf8()?.flatten() {
        let path = entry.into_path();
        if path.extension() == Some("wandb") && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the logs of the offline runs in a folder, sorted by path. W&B or [`RunWriter`] wrote them. A folder that does not exist has
/// none.
///
/// # Errors
/// When a folder cannot be listed.
pub fn offline_files(folder: &Utf8Path) -> io::Result<Vec<Utf8PathBuf>> {
    let mut files = Vec::new();
    if folder.exists() {
        for entry in folder.read_dir_utf8()?.flatten() {
            if entry.file_name().starts_with("offline-run-") {
                files.extend(run_files(entry.path())?);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Reads the history of a run that was started once.
///
/// # Errors
/// When the file cannot be read.
pub fn read_file(path: &Utf8Path) -> Result<Log, Error> {
    read_files(&[path.to_owned()])
}

/// Reads the history of a run from the files of its starts, the oldest first: its numbers by key, nested keys joined with dots as W&B
/// shows them. If a later start repeats steps, its values count. If it repeats all steps, a warning names it: W&B counts from 0 again if
/// it is offline and the program logs without steps.
///
/// # Errors
/// When a file cannot be read.
pub fn read_files(files: &[Utf8PathBuf]) -> Result<Log, Error> {
    let mut log = Log::default();
    for path in files {
        let first = log.series().filter_map(|(_, points)| points.first()).map(|point| point.step).min();
        let again = read_into(&mut log, path).map_err(|error| Error::io("read", path, error))?;
        if let (Some(first), Some(again)) = (first, again)
            && again <= first
        {
            let warning = format!("{path} begins at step {again} again: its values replace those of earlier starts");
            log.warnings.push(warning);
        }
    }
    Ok(log)
}

/// Reads a file and returns its first step with a number.
fn read_into(log: &mut Log, path: &Utf8Path) -> io::Result<Option<u64>> {
    let mut blocks = Blocks::open(File::open(path)?)?;
    let mut read = Reader::default();
    loop {
        match blocks.next()? {
            Next::Record(record) => read.record(log, record),
            Next::End => return Ok(read.first_step),
            Next::Damaged { at, why } => {
                log.warnings.push(format!("{path}: {why} at byte {at}; the records after it are not read"));
                return Ok(read.first_step);
            }
        }
    }
}

/// The start time and step from earlier records, for history records that omit theirs.
#[derive(Default)]
struct Reader {
    started_s: f64,
    next_step: u64,
    /// The first step with a number.
    first_step: Option<u64>,
}

impl Reader {
    fn record(&mut self, log: &mut Log, record: &[u8]) {
        for (field, value) in Fields::new(record) {
            match field {
                2 => self.history(log, value.bytes()),
                5 => config(log, value.bytes()),
                17 => self.run(log, value.bytes()),
                _ => {}
            }
        }
    }

    fn run(&mut self, log: &mut Log, run: &[u8]) {
        for (field, value) in Fields::new(run) {
            match (field, value) {
                (1, id) if log.name.is_none() => log.name = id.text().map(str::to_owned),
                (4, value) => config(log, value.bytes()),
                (8, name) => {
                    log.name = name.text().filter(|name| !name.is_empty()).map(str::to_owned).or(log.name.take())
                }
                (17, start) => {
                    let part = |number| Fields::new(start.bytes()).find(|(field, _)| *field == number);
                    let [seconds, nanos] = [1, 2].map(|number| part(number).map_or(0, |(_, value)| value.int()));
                    self.started_s = seconds as f64 + nanos as f64 / 1e9;
                }
                _ => {}
            }
        }
    }

    fn history(&mut self, log: &mut Log, history: &[u8]) {
        let items = || Fields::new(history).filter(|(field, _)| *field == 1).map(|(_, item)| Item::read(item.bytes()));
        let internal = |name: &str| items().find(|item| item.key == name).and_then(|item| item.value);
        let step = Fields::new(history).find(|(field, _)| *field == 2).map(|(_, step)| step.bytes());
        // Protobuf omits a field whose value is zero.
        let step =
            step.map(|step| Fields::new(step).find(|(field, _)| *field == 1).map_or(0, |(_, num)| num.int() as i64));
        let step = step.map(|step| u64::try_from(step).unwrap_or(0));
        let step = step.or_else(|| internal("_step").map(|step| step as u64)).unwrap_or(self.next_step);
        self.next_step = step.saturating_add(1);
        let t = internal("_timestamp").or_else(|| internal("_runtime").map(|s| self.started_s + s));
        let t = t.unwrap_or(self.started_s);
        // Keys with an underscore are W&B's own.
        for item in items().filter(|item| !item.key.starts_with('_')) {
            if let Some(value) = item.value {
                self.first_step = self.first_step.or(Some(step));
                log.push(&item.key, Point { step, t, value });
            }
        }
    }
}

/// One value of a step.
struct Item {
    key: String,
    /// The value, if it is a number.
    value: Option<f64>,
}

impl Item {
    fn read(item: &[u8]) -> Self {
        let (mut key, mut value) = (String::new(), None);
        for (field, content) in Fields::new(item) {
            match (field, content) {
                (1, text) if key.is_empty() => key = text.text().unwrap_or_default().to_owned(),
                (2, text) => {
                    if !key.is_empty() {
                        key.push('.');
                    }
                    key.push_str(text.text().unwrap_or_default());
                }
                // wandb writes numbers in typed fields from 0.31 on. An `sint64` is zigzag-encoded.
                (5, Value::Varint(zigzag)) => value = Some(((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)) as f64),
                (6, number) => value = number.float(),
                (16, json) => value = json.text().and_then(number),
                _ => {}
            }
        }
        Self { key, value }
    }
}

/// Reads a JSON number, with the names that Python's `json` gives to numbers that are not finite.
fn number(json: &str) -> Option<f64> {
    match json.trim_matches('"') {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ if json.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => json.parse().ok(),
        _ => None,
    }
}

fn config(log: &mut Log, config: &[u8]) {
    for (_, item) in Fields::new(config).filter(|(field, _)| *field == 1) {
        let item = item.bytes();
        let Item { key, .. } = Item::read(item);
        let json = Fields::new(item).find(|(field, _)| *field == 16).and_then(|(_, json)| json.text());
        if let Some(json) = json.filter(|_| !key.starts_with('_')) {
            log.config.insert(key, json.to_owned());
        }
    }
}

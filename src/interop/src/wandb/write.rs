//! Writes an offline run: the file that `wandb sync` uploads and `wandb leet` shows.

use super::blocks;
use super::record::{Exit, Header, History, Item, Items, Record, Run, Step, Timestamp, Version};
use camino::{Utf8Path, Utf8PathBuf};
use prost::Message;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// The oldest version of W&B that may read the file, as W&B 0.31 writes it.
const MIN_CONSUMER: &str = "0.70.0";

/// The facts about a run that W&B shows beside its charts.
#[derive(Debug, Clone, Copy)]
pub struct NewRun<'a> {
    /// The id of the run in W&B. All files of a run have the same id.
    pub id: &'a str,
    /// The display name of the run.
    pub name: &'a str,
    /// The W&B project that the run is uploaded to.
    pub project: &'a str,
    /// The node, which W&B shows as the host.
    pub node: &'a str,
    /// The start of the attempt, Unix seconds. W&B uploads the files of a run in the order of their starts.
    pub started_s: f64,
    /// The settings of the run: names, and values as JSON.
    pub config: &'a [(String, String)],
    /// Whether an earlier file has the beginning of the run. An upload then appends to it.
    pub is_resumed: bool,
}

/// Writes the file of one offline run. Records are kept until they are flushed.
///
/// A flush that fails, for instance on a full disk, can be repeated: it writes the same bytes to the same offset, so that no record is torn.
#[derive(Debug)]
pub struct RunWriter {
    file: File,
    /// Bytes of the file that were flushed.
    len: u64,
    pending: Vec<u8>,
    /// The number of the last record.
    number: u64,
    started_s: f64,
    /// The newest value of each key.
    summary: BTreeMap<String, String>,
}

impl RunWriter {
    /// Creates `offline-run-<time>-<id>/run-<id>.wandb` in a folder, and the folder if it is missing.
    ///
    /// * `now_s` — Unix seconds. If the folder of this second exists, the next free second is used.
    ///
    /// # Errors
    /// When a folder or the file cannot be created.
    pub fn create(folder: &Utf8Path, now_s: f64, run: &NewRun<'_>) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let folder = new_folder(folder, now_s as i64, run.id)?;
        let path = folder.join(format!("run-{}.wandb", run.id));
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let mut writer = Self {
            file,
            len: 0,
            pending: blocks::begin(),
            number: 0,
            started_s: run.started_s,
            summary: BTreeMap::new(),
        };
        let version = Version {
            producer: concat!("vidtui ", env!("CARGO_PKG_VERSION")).into(),
            min_consumer: MIN_CONSUMER.into(),
        };
        writer.record(Record { header: Some(Header { version: Some(version) }), ..Record::default() });
        writer.record(Record { run: Some(run.message()), ..Record::default() });
        Ok(writer)
    }

    /// Adds the values of a step.
    pub fn history(&mut self, t: f64, step: u64, values: &[(String, f64)]) {
        let own = [("_step", step as f64), ("_timestamp", t), ("_runtime", (t - self.started_s).max(0.0))];
        let own = own.into_iter().map(|(key, value)| (key.to_owned(), json(value)));
        let items: Vec<_> = values.iter().map(|(key, value)| (key.clone(), json(*value))).chain(own).collect();
        let history = History { items: log_items(items.clone()), step: Some(Step { number: Some(step as i64) }) };
        self.record(Record { history: Some(history), ..Record::default() });
        self.summary.extend(items);
    }

    /// Adds the summary (the newest value of each key) and the exit code of the run.
    pub fn end(&mut self, now_s: f64, exit_code: u8) {
        let summary = Items { items: log_items(std::mem::take(&mut self.summary)) };
        self.record(Record { summary: Some(summary), ..Record::default() });
        let runtime_s = (now_s - self.started_s).max(0.0) as u64;
        let exit = Exit { code: Some(exit_code.into()), runtime_s: Some(runtime_s) };
        self.record(Record { exit: Some(exit), ..Record::default() });
    }

    fn record(&mut self, record: Record) {
        self.number += 1;
        let record = Record { number: self.number, ..record };
        blocks::append(&mut self.pending, self.len, &record.encode_to_vec());
    }

    /// Writes the pending records to the file.
    ///
    /// # Errors
    /// When writing fails. The records are kept for the next flush.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.pending, self.len)?;
        self.len += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

impl NewRun<'_> {
    fn message(&self) -> Run {
        Run {
            id: Some(self.id.into()),
            project: Some(self.project.into()),
            config: Some(Items { items: self.config.iter().map(|(key, json)| Item::setting(key, json)).collect() }),
            name: Some(self.name.into()),
            host: Some(self.node.into()),
            started: Some(Timestamp {
                seconds: Some(self.started_s as i64),
                nanos: Some((self.started_s.fract() * 1e9) as i32),
            }),
            // Without this field, an upload replaces what an earlier file has uploaded.
            is_resumed: self.is_resumed,
        }
    }
}

/// Returns the items of a history or a summary.
fn log_items(values: impl IntoIterator<Item = (String, String)>) -> Vec<Item> {
    values.into_iter().map(|(key, json)| Item::of_log(key, json)).collect()
}

/// Returns a number as JSON, with the names that Python's `json` gives to numbers that are not finite.
fn json(value: f64) -> String {
    match value {
        _ if value.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        // Steps are integers. `{}` never writes an exponent.
        _ => format!("{value}"),
    }
}

/// Creates the folder of a run with the first free second in its name.
fn new_folder(folder: &Utf8Path, now_s: i64, id: &str) -> io::Result<Utf8PathBuf> {
    let mut second = now_s;
    loop {
        let time = jiff::Timestamp::from_second(second).unwrap_or_default().strftime("%Y%m%d_%H%M%S");
        let path = folder.join(format!("offline-run-{time}-{id}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => second += 1,
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{offline_files, read_file};
    use super::*;
    use crate::Point;

    fn run<'a>(config: &'a [(String, String)]) -> NewRun<'a> {
        NewRun {
            id: "demo-k7f2",
            name: "demo",
            project: "vidtui",
            node: "ml-1",
            started_s: 1000.5,
            config,
            is_resumed: false,
        }
    }

    fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
        let keep = tempfile::tempdir().unwrap();
        let folder = Utf8PathBuf::from_path_buf(keep.path().join("wandb")).unwrap();
        (keep, folder)
    }

    #[test]
    fn a_run_is_read_back_with_its_settings_its_values_and_its_gaps() {
        let (_keep, folder) = folder();
        let config = [("model".to_owned(), "{\"num_layers\":2}".to_owned())];
        let mut writer = RunWriter::create(&folder, 1_763_612_345.0, &run(&config)).unwrap();
        let value = |key: &str, value| (key.to_owned(), value);
        writer.history(1010.25, 1, &[value("loss", 0.1), value("mem_gib/rank_0", 2.0)]);
        writer.flush().unwrap();
        writer.history(1020.0, 2, &[value("loss", f64::NAN)]);
        writer.history(1030.0, 5, &[value("loss", 1e-20)]);
        writer.end(1031.0, 0);
        writer.flush().unwrap();
        let files = offline_files(&folder).unwrap();
        assert_eq!(files, [folder.join("offline-run-20251120_041905-demo-k7f2/run-demo-k7f2.wandb")]);
        let log = read_file(&files[0]).unwrap();
        assert_eq!((log.name.as_deref(), log.config["model"].as_str()), (Some("demo"), "{\"num_layers\":2}"));
        let loss = log.points("loss");
        assert_eq!(
            (loss[0], loss[2]),
            (Point { step: 1, t: 1010.25, value: 0.1 }, Point { step: 5, t: 1030.0, value: 1e-20 })
        );
        assert!(loss[1].value.is_nan() && loss.len() == 3);
        assert_eq!(log.points("mem_gib/rank_0"), [Point { step: 1, t: 1010.25, value: 2.0 }]);
        assert!(log.warnings.is_empty());
    }

    #[test]
    fn two_attempts_within_a_second_have_a_folder_each() {
        let (_keep, folder) = folder();
        for _ in 0..2 {
            RunWriter::create(&folder, 1_763_612_345.0, &run(&[])).unwrap().flush().unwrap();
        }
        assert_eq!(offline_files(&folder).unwrap().len(), 2);
    }
}

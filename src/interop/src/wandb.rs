//! W&B's offline runs: `wandb/offline-run-<time>-<id>/run-<id>.wandb`, a log of `Record` messages in LevelDB's framing.

mod blocks;
mod record;
mod write;

pub use write::{NewRun, RunWriter};

use crate::{Log, Point};
use blocks::{Blocks, Next};
use camino::{Utf8Path, Utf8PathBuf};
use record::{ItemValue, Items, Metric, Record, Run};
use rundir::{Error, open_regular};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
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
/// shows them. If a later start repeats steps, its values count, and warnings count the earlier ones: W&B counts from 0 again if it is
/// offline and the program logs without steps.
///
/// The steps are those of the metric that the run defines as its axis (`define_metric`), or else those of W&B, which counts calls of `log`.
///
/// # Errors
/// When a file cannot be read.
pub fn read_files(files: &[Utf8PathBuf]) -> Result<Log, Error> {
    let (mut log, mut history) = (Log::default(), History::default());
    let mut ends = Vec::new();
    for path in files {
        read_into(&mut log, &mut history, path).map_err(|error| Error::io("read", path, error))?;
        ends.push(history.rows.len());
    }
    let axis = history.axis(&mut log);
    let (mut begin, mut last) = (0, 0);
    for (path, end) in files.iter().zip(ends) {
        for row in &history.rows[begin..end] {
            let step = match axis {
                // A row without a value of the axis belongs to the step before it. What is logged before training is at step 0.
                Some(axis) => row.value(axis).map_or(last, |value| value as u64),
                // W&B refuses steps that go backwards, so that this is a restart.
                None if row.step < last => {
                    log.restart_at(row.step);
                    row.step
                }
                None => row.step,
            };
            last = step;
            for (key, value) in row.values.iter().filter(|(key, _)| Some(*key) != axis) {
                log.push(&history.keys[*key], Point { step, t: row.t, value: *value });
            }
        }
        log.end_file(path);
        begin = end;
    }
    Ok(log)
}

fn read_into(log: &mut Log, history: &mut History, path: &Utf8Path) -> io::Result<()> {
    let mut blocks = Blocks::open(open_regular(path)?)?;
    let mut read = Reader::default();
    loop {
        match blocks.next()? {
            Next::Record(record) => read.record(log, history, Record::read(record)),
            Next::End => return Ok(()),
            Next::Damaged { at, why } => {
                log.warnings.push(format!("{path}: {why} at byte {at}; the records after it are not read"));
                return Ok(());
            }
        }
    }
}

/// The rows of a run's history, before their steps are known.
#[derive(Default)]
struct History {
    keys: Vec<String>,
    index: HashMap<String, usize>,
    rows: Vec<Row>,
    /// The metrics that are axes, each with the names of the metrics that are drawn over it: whole, or with `*` at the end.
    axes: Vec<(String, String)>,
}

/// The numbers of one call of `log`.
struct Row {
    /// The step of W&B.
    step: u64,
    t: f64,
    /// Keys, as indices of [`History::keys`], and their values.
    values: Vec<(usize, f64)>,
}

impl Row {
    fn value(&self, key: usize) -> Option<f64> {
        self.values.iter().find(|(of, _)| *of == key).map(|(_, value)| *value)
    }
}

impl History {
    fn key(&mut self, key: &str) -> usize {
        if let Some(at) = self.index.get(key) {
            return *at;
        }
        self.index.insert(key.to_owned(), self.keys.len());
        self.keys.push(key.to_owned());
        self.keys.len() - 1
    }

    /// Returns the key whose values are the steps of the run: the axis over which most values are drawn, if it is one for a run, that is
    /// counts whole steps. A run here has one axis, while W&B may draw each metric over another one.
    fn axis(&self, log: &mut Log) -> Option<usize> {
        let of_key: Vec<Option<usize>> =
            self.keys.iter().map(|key| self.index.get(self.axis_of(key)?).copied()).collect();
        let mut drawn = BTreeMap::new();
        for (key, _) in self.rows.iter().flat_map(|row| &row.values) {
            if let Some(axis) = of_key[*key].filter(|axis| axis != key) {
                *drawn.entry(axis).or_insert(0_usize) += 1;
            }
        }
        let axis = *drawn.iter().rev().max_by_key(|(_, values)| **values)?.0;
        let is_step = |value: f64| value >= 0.0 && value.fract() == 0.0;
        if self.rows.iter().filter_map(|row| row.value(axis)).all(is_step) {
            return Some(axis);
        }
        log.warnings.push(format!(
            "the metrics are drawn over {}, which does not count whole steps: the steps are those of W&B",
            self.keys[axis]
        ));
        None
    }

    /// Returns the name of the axis that `define_metric` sets for a key. The whole name is preferred, then the pattern that is defined first.
    fn axis_of(&self, key: &str) -> Option<&str> {
        let is_whole = |name: &str| name == key;
        let is_like = |name: &str| name.strip_suffix('*').is_some_and(|start| key.starts_with(start));
        let of = |is_it: &dyn Fn(&str) -> bool| self.axes.iter().find(|(name, _)| is_it(name));
        of(&is_whole).or_else(|| of(&is_like)).map(|(_, axis)| axis.as_str()).filter(|axis| !axis.is_empty())
    }
}

/// The start time and step from earlier records of a file, for history records that omit theirs.
#[derive(Default)]
struct Reader {
    started_s: f64,
    next_step: u64,
}

impl Reader {
    fn record(&mut self, log: &mut Log, history: &mut History, record: Record) {
        if let Some(row) = record.history {
            self.row(history, row);
        }
        if let Some(settings) = record.config {
            config(log, settings);
        }
        if let Some(metric) = record.metric {
            define(history, metric);
        }
        if let Some(run) = record.run {
            self.run(log, run);
        }
    }

    fn run(&mut self, log: &mut Log, run: Run) {
        log.name = run.name.filter(|name| !name.is_empty()).or(log.name.take()).or(run.id);
        if let Some(settings) = run.config {
            config(log, settings);
        }
        if let Some(start) = run.started {
            self.started_s = start.seconds() as f64 + f64::from(start.nanos()) / 1e9;
        }
    }

    fn row(&mut self, history: &mut History, row: record::History) {
        let items: Vec<(String, Option<ItemValue>)> =
            row.items.into_iter().map(|item| (item.joined_key(), item.value)).collect();
        let internal =
            |name: &str| items.iter().find(|(key, _)| key == name).and_then(|(_, value)| value.as_ref()?.number());
        // Protobuf omits a field whose value is zero.
        let step = row.step.map(|step| u64::try_from(step.number()).unwrap_or(0));
        let step = step.or_else(|| internal("_step").map(|step| step as u64)).unwrap_or(self.next_step);
        self.next_step = step.saturating_add(1);
        let t = internal("_timestamp").or_else(|| internal("_runtime").map(|s| self.started_s + s));
        let mut values = Vec::new();
        // Keys with an underscore are W&B's own.
        for (key, value) in items.iter().filter(|(key, _)| !key.starts_with('_')) {
            let Some(value) = value else { continue };
            value.each(key, &mut |key, value| values.push((history.key(key), value)));
        }
        history.rows.push(Row { step, t: t.unwrap_or(self.started_s), values });
    }
}

fn define(history: &mut History, metric: Metric) {
    let Some(name) = metric.name.or(metric.glob) else { return };
    let axis = metric.axis.unwrap_or_default();
    // A later definition of the same name adds to it or replaces it.
    match history.axes.iter_mut().find(|(known, _)| *known == name) {
        Some((_, known)) if !axis.is_empty() => *known = axis,
        Some(_) => {}
        None => history.axes.push((name, axis)),
    }
}

impl ItemValue {
    fn number(&self) -> Option<f64> {
        match self {
            Self::Int(number) => Some(*number as f64),
            Self::Number(number) => Some(*number),
            Self::Json(json) => number(json),
        }
    }

    /// Calls a function with each number in the value and its key. wandb before 0.18 writes a dictionary as one value, so that its numbers
    /// have keys below that of the value.
    fn each(&self, key: &str, take: &mut impl FnMut(&str, f64)) {
        match (self.number(), self) {
            (Some(number), _) => take(key, number),
            (None, Self::Json(json)) if json.starts_with('{') => {
                if let Ok(Value::Object(fields)) = serde_json::from_str(&with_quoted_numbers(json)) {
                    each_nested(key, &fields, take);
                }
            }
            (None, _) => {}
        }
    }
}

fn each_nested(key: &str, fields: &Map<String, Value>, take: &mut impl FnMut(&str, f64)) {
    // A picture, a table, a histogram.
    if fields.contains_key("_type") {
        return;
    }
    for (name, value) in fields {
        let key = format!("{key}.{name}");
        match value {
            Value::Object(fields) => each_nested(&key, fields, take),
            Value::Number(number) => drop(number.as_f64().map(|number| take(&key, number))),
            Value::String(text) => drop(not_finite(text).map(|number| take(&key, number))),
            _ => {}
        }
    }
}

/// Reads a JSON number, with the names that Python's `json` gives to numbers that are not finite.
fn number(json: &str) -> Option<f64> {
    not_finite(json.trim_matches('"')).or_else(|| {
        let is_number = json.starts_with(|first: char| first == '-' || first.is_ascii_digit());
        json.parse().ok().filter(|_| is_number)
    })
}

fn not_finite(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// Quotes the numbers that are not finite. Python writes them without quotes, which JSON does not allow.
fn with_quoted_numbers(json: &str) -> Cow<'_, str> {
    const NAMES: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    if !NAMES.iter().any(|name| json.contains(name)) {
        return json.into();
    }
    let (mut quoted, mut rest, mut in_string) = (String::new(), json, false);
    while let Some(c) = rest.chars().next() {
        let name = NAMES.into_iter().find(|name| !in_string && rest.starts_with(name));
        let len = match (name, c) {
            (Some(name), _) => name.len(),
            // An escaped character, such as a quotation mark.
            (None, '\\') => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            (None, c) => c.len_utf8(),
        };
        in_string ^= c == '"';
        let (token, after) = rest.split_at(len);
        match name {
            Some(name) => quoted.extend(["\"", name, "\""]),
            None => quoted.push_str(token),
        }
        rest = after;
    }
    quoted.into()
}

fn config(log: &mut Log, settings: Items) {
    for item in settings.items {
        let key = item.joined_key();
        if let Some(ItemValue::Json(json)) = item.value.filter(|_| !key.starts_with('_')) {
            log.config.insert(key, json);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::record::{Item, Step};
    use super::*;
    use prost::Message;

    /// Reads records of one file: `define` and `row` make them.
    fn log_of(records: &[Record]) -> Log {
        log_of_files(&[records])
    }

    fn log_of_files(files: &[&[Record]]) -> Log {
        let keep = tempfile::tempdir().unwrap();
        let paths = files.iter().enumerate().map(|(at, records)| {
            let path = Utf8PathBuf::try_from(keep.path().join(format!("run-{at}.wandb"))).unwrap();
            let mut bytes = blocks::begin();
            for record in *records {
                let offset = bytes.len() as u64;
                let mut part = Vec::new();
                blocks::append(&mut part, offset, &record.encode_to_vec());
                bytes.extend(part);
            }
            std::fs::write(&path, bytes).unwrap();
            path
        });
        read_files(&paths.collect::<Vec<_>>()).unwrap()
    }

    fn define(name: &str, axis: &str) -> Record {
        let text = |text: &str, is_set: bool| is_set.then(|| text.to_owned());
        let is_glob = name.contains('*');
        let metric =
            Metric { name: text(name, !is_glob), glob: text(name, is_glob), axis: text(axis, !axis.is_empty()) };
        Record { metric: Some(metric), ..Record::default() }
    }

    /// A call of `log`, with values as JSON.
    fn row(step: i64, values: &[(&str, &str)]) -> Record {
        let items = values.iter().map(|(key, json)| Item::setting(key, json)).collect();
        let history = record::History { items, step: Some(Step { number: Some(step) }) };
        Record { history: Some(history), ..Record::default() }
    }

    fn points(log: &Log, tag: &str) -> Vec<(u64, f64)> {
        log.points(tag).iter().map(|point| (point.step, point.value)).collect()
    }

    #[test]
    fn the_steps_are_those_of_the_metric_that_the_run_defines_as_axis() {
        let records = [
            define("trainer/global_step", ""),
            define("*", "trainer/global_step"),
            row(0, &[("baseline", "9")]),
            row(1, &[("train/loss", "2.0"), ("trainer/global_step", "0"), ("_step", "1")]),
            row(2, &[("lr", "0.1"), ("trainer/global_step", "0")]),
            row(3, &[("train/loss", "1.5"), ("trainer/global_step", "50")]),
            // Logged without the axis: it belongs to the step before it.
            row(4, &[("val/loss", "1.6")]),
        ];
        let log = log_of(&records);
        assert_eq!(points(&log, "train/loss"), [(0, 2.0), (50, 1.5)]);
        assert_eq!((points(&log, "lr"), points(&log, "val/loss")), (vec![(0, 0.1)], vec![(50, 1.6)]));
        assert_eq!((points(&log, "baseline"), log.points("trainer/global_step")), (vec![(0, 9.0)], &[][..]));
        assert_eq!(log.warnings, [""; 0]);
        let resumed = [define("*", "trainer/global_step"), row(0, &[("gpu", "1")])];
        let log = log_of_files(&[&records, &resumed]);
        assert_eq!((points(&log, "gpu"), log.points("train/loss").len()), (vec![(50, 1.0)], 2));
    }

    #[test]
    fn a_whole_name_is_preferred_to_a_pattern_and_most_values_choose_the_axis() {
        let log = log_of(&[
            define("val/*", "epoch"),
            define("train/*", "step"),
            define("train/once", "epoch"),
            row(0, &[("train/a", "1"), ("train/b", "1"), ("step", "100"), ("epoch", "1")]),
            row(1, &[("val/a", "2"), ("train/once", "3"), ("epoch", "1")]),
        ]);
        assert_eq!((points(&log, "train/a"), points(&log, "val/a")), (vec![(100, 1.0)], vec![(100, 2.0)]));
        assert_eq!(points(&log, "epoch").len(), 1, "it is another metric");
    }

    #[test]
    fn an_axis_that_does_not_count_whole_steps_is_named() {
        for (value, steps) in [("0.5", 1), ("-1", 1), ("NaN", 1), ("7", 7)] {
            let log = log_of(&[define("loss", "epoch"), row(1, &[("loss", "1"), ("epoch", value)])]);
            assert_eq!(points(&log, "loss"), [(steps, 1.0)], "{value}");
            assert_eq!(log.warnings.len(), usize::from(steps == 1), "{:?}", log.warnings);
        }
        let never_logged = log_of(&[define("loss", "epoch"), row(3, &[("loss", "1")])]);
        assert_eq!((points(&never_logged, "loss"), never_logged.warnings.len()), (vec![(3, 1.0)], 0));
    }

    #[test]
    fn a_step_backwards_is_a_restart_unless_it_is_one_of_another_axis() {
        let rows = |axis: &str| {
            let steps = [1, 2, 7, 5, 8].map(|step| row(step, &[("loss", "1"), ("axis", &step.to_string())]));
            points(&log_of(&[&[define("loss", axis)][..], &steps].concat()), "loss")
        };
        assert_eq!(rows("").iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2, 5, 8]);
        assert_eq!(rows("axis").iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2, 5, 7, 8]);
    }

    #[test]
    fn the_numbers_in_a_dictionary_have_the_keys_below_it() {
        let eval =
            r#"{"acc": 0.25, "by.class": {"cat": NaN, "dog": "Infinity"}, "note": "NaN is \"NaN", "at": [1, 2]}"#;
        let picture = r#"{"_type": "image-file", "width": 640}"#;
        let log = log_of(&[row(3, &[("eval", eval), ("picture", picture), ("torn", "{\"a\": 1"), ("text", "\"7\"")])]);
        let tags: Vec<&str> = log.series().map(|(tag, _)| tag).collect();
        assert_eq!(tags, ["eval.acc", "eval.by.class.cat", "eval.by.class.dog"]);
        assert_eq!(points(&log, "eval.acc"), [(3, 0.25)]);
        assert!(log.points("eval.by.class.cat")[0].value.is_nan());
    }
}

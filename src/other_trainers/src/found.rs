//! What a line of an unknown program's log contains: a drawing of a progress bar, a dictionary, JSON, or text with a step.

use crate::bar::Bar;
use crate::fields::{self, Field, fields, mentions};
use crate::measured::{Meaning, Values, is_known, is_loss};
use recipe::LogPattern;
use serde_json::Value;

/// The kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A progress bar of tqdm.
    Bar,
    /// A dictionary of Python, as Hugging Face's Trainer prints it.
    Dict,
    /// An object of JSON.
    Json,
    /// Lines of torchtitan.
    Torchtitan,
    /// Lines of Megatron-LM.
    Megatron,
    /// Lines of NeMo.
    Nemo,
    /// Lines of DeepSpeed.
    DeepSpeed,
    /// Other text with a step.
    Text,
    /// Lines that a pattern of the recipe matches.
    Pattern,
}

impl Kind {
    /// Returns the name for users.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Bar => "progress bars of tqdm",
            Self::Dict => "Python dictionaries",
            Self::Json => "JSON lines",
            Self::Torchtitan => "lines of torchtitan",
            Self::Megatron => "lines of Megatron-LM",
            Self::Nemo => "lines of NeMo",
            Self::DeepSpeed => "lines of DeepSpeed",
            Self::Text => "text with steps",
            Self::Pattern => "lines of command.patterns",
        }
    }
}

/// What a line contains.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub kind: Kind,
    /// The text before the percentage of a bar, without its number: `Epoch` for `Epoch 3`.
    pub name: String,
    /// The step; of a bar its count. `None` for a dictionary without a step, which is that of the bar drawn after it.
    pub step: Option<u64>,
    /// The last step, if the line has it.
    pub total: Option<u64>,
    /// Whether the step is counted from the begin of an epoch.
    pub is_of_epoch: bool,
    pub values: Values,
    /// The fields of a bar as text, which show whether it was redrawn with new values.
    pub tail: String,
    /// Whether the values were measured on validation data.
    pub is_validation: bool,
}

/// Names of steps, the most certain first.
const STEPS: [&str; 15] = [
    "global_step",
    "global_steps",
    "train/global_step",
    "train_step",
    "training_step",
    "optimizer_step",
    "step",
    "steps",
    "train/step",
    "iteration",
    "iterations",
    "iter",
    "iters",
    "_step",
    "it",
];
/// Words that mark bars and lines about validation.
const VALIDATION: [&str; 12] = [
    "val",
    "valid",
    "validate",
    "validating",
    "validation",
    "eval",
    "evaluate",
    "evaluating",
    "evaluation",
    "test",
    "testing",
    "sanity",
];
/// Words in the names of bars that show other work than training steps.
const NOT_STEPS: [&str; 21] = [
    "download",
    "downloading",
    "loading",
    "load",
    "fetching",
    "map",
    "filter",
    "caching",
    "cache",
    "encoding",
    "tokenizing",
    "generating",
    "sampling",
    "denoising",
    "inference",
    "writing",
    "saving",
    "converting",
    "processing",
    "preprocessing",
    "warmup",
];

/// Reads a line. `ranks` is the number of ranks of the run.
pub(crate) fn find(line: &str, ranks: usize) -> Option<Found> {
    match Bar::read(line) {
        Some(bar) => of_bar(&bar),
        None => of_line(line, ranks),
    }
}

/// Reads a line that is no drawing of a bar.
pub(crate) fn of_line(line: &str, ranks: usize) -> Option<Found> {
    of_object(line).or_else(|| of_text(line, ranks))
}

/// Reads a line by the first pattern that matches it.
pub(crate) fn find_by(patterns: &[LogPattern], line: &str) -> Option<Found> {
    let groups = patterns.iter().find_map(|pattern| pattern.pattern.captures(line))?;
    let mut values = Values::default();
    let mut step = None;
    for (name, text) in groups {
        let Some(value) = fields::parse(text.trim()) else { continue };
        if name == "step" {
            step = field(name, value, true).count();
            continue;
        }
        let (name, unit) = match name.rsplit_once('_') {
            Some((base, "ms")) => (format!("{base}_s"), "ms"),
            Some((_, unit @ ("gib" | "mib"))) if name.starts_with("mem") => ("mem".to_owned(), unit),
            _ => (name.to_owned(), ""),
        };
        let of_group = Field { unit: unit.to_owned(), ..field(&name, value, is_whole(text)) };
        values.add(&of_group, Meaning { has_epochs: true, ..Meaning::default() });
    }
    let (name, tail) = (String::new(), String::new());
    Some(Found { kind: Kind::Pattern, name, step, total: None, is_of_epoch: false, values, tail, is_validation: false })
}

/// The names whose values tell training from validation. The name of a run or a node may be `test`, too.
const SPLITS: [&str; 8] = ["split", "mode", "phase", "stage", "subset", "set", "prefix", "type"];

/// Returns whether a text has one of these words by itself. `test-node` and `my_test` do not contain the word `test`.
fn has_word(text: &str, list: &[&str]) -> bool {
    text.split_whitespace().any(|word| is_word(word, list))
}

/// Returns whether a text is one of these words, in brackets or with a colon or not.
fn is_word(text: &str, list: &[&str]) -> bool {
    let word = text.trim_matches(|c: char| !c.is_alphanumeric());
    list.iter().any(|other| word.eq_ignore_ascii_case(other))
}

/// Returns whether a line is about validation: `val step 10 …`, `step 10 | val | …`, `step=10 split=val …`.
///
/// * `before` — the text before the first name with a number.
fn is_of_validation(line: &str, before: &str) -> bool {
    // Most lines have none of the words. This check is cheap, and each word contains one of these.
    if !mentions(line, &["val", "test", "sanity"]) {
        return false;
    }
    let value = |word: &str| {
        word.split_once(['=', ':']).is_some_and(|(name, value)| is_word(name, &SPLITS) && is_word(value, &VALIDATION))
    };
    has_word(before, &VALIDATION)
        || line.split(['|', ',', ';', '[', ']', '(', ')']).any(|part| is_word(part, &VALIDATION))
        || line.split_whitespace().any(value)
}

/// Reads a drawing of a bar.
pub(crate) fn of_bar(bar: &Bar<'_>) -> Option<Found> {
    // A wrapper may add its own text to each line: `[08:03:35] [STDERR] steps`.
    let name = bar.name.rsplit(']').next().unwrap_or_default().trim();
    if has_word(name, &VALIDATION) || has_word(name, &NOT_STEPS) {
        return None;
    }
    let tail = fields(bar.tail);
    let mut values = Values::default();
    // In a bar, a step within the fields repeats its count, or counts from 0.
    let measured = tail.iter().filter(|field| !is_step_name(&field.name));
    measured.for_each(|field| values.add(field, Meaning::default()));
    if let (None, Some(step_s)) = (values.get("step_s"), bar.step_s) {
        values.set_metric("step_s", step_s);
    }
    let global = tail.iter().find(|field| field.name == "global_step").and_then(Field::count);
    let has_two = tail.iter().any(|field| field.name == "step");
    let step = match global {
        // Open-Sora prints both, counted from 0; NeMo's count is one less than the bar's in the first epoch.
        Some(global) if has_two || bar.done == global + 1 => global + 1,
        Some(global) => global,
        None => bar.done,
    };
    let total = bar.total.filter(|_| global.is_none());
    // The number of the epoch is no part of the name: `Epoch 3`, `Epoch 3/10`.
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'/');
    let numbered = name.rsplit_once(' ').filter(|(_, last)| is_number(last));
    let is_of_epoch = numbered.is_some_and(|(name, _)| name.to_ascii_lowercase().ends_with("epoch"));
    let name = numbered.map_or(name, |(name, _)| name).to_owned();
    Some(Found {
        kind: Kind::Bar,
        name,
        step: Some(step),
        total,
        is_of_epoch,
        values,
        tail: bar.tail.to_owned(),
        is_validation: false,
    })
}

/// Reads a dictionary of Python or an object of JSON at the end of a line.
fn of_object(line: &str) -> Option<Found> {
    if !line.ends_with('}') {
        return None;
    }
    let open = line.find("{\"").into_iter().chain(line.find("{'")).min()?;
    let (before, object) = line.split_at(open);
    let (kind, mut found, is_marked) = match json_map(object) {
        Some(map) => {
            let mut list = Vec::new();
            flatten("", &map, 0, &mut list);
            // `"split": "val"`.
            let is_marked = map.iter().any(|(name, value)| {
                is_word(name, &SPLITS) && value.as_str().is_some_and(|text| is_word(text, &VALIDATION))
            });
            (Kind::Json, list, is_marked)
        }
        None => {
            let (list, is_marked) = entries(object)?;
            (Kind::Dict, list, is_marked)
        }
    };
    // The summary at the end of Hugging Face's Trainer has means of the whole run.
    if found.iter().any(|field| field.name == "train_runtime") {
        return None;
    }
    let mut text = fields(before);
    text.retain(|field| is_step_name(&field.name));
    found.extend(text);
    let step = step_of(&found);
    let evaluated = found.iter().any(|field| field.name.starts_with("eval_") || field.name.starts_with("eval/"));
    let has_loss = found.iter().any(|field| is_loss(&field.name));
    let is_validation = is_marked || (evaluated && !has_loss) || has_word(before, &VALIDATION);
    let mut values = Values::default();
    let meaning = Meaning { is_validation, has_epochs: kind == Kind::Dict, tps: None };
    let measured = found.iter().filter(|field| !is_step_name(&field.name));
    measured.for_each(|field| values.add(field, meaning));
    (!values.is_empty()).then(|| Found {
        kind,
        name: String::new(),
        step: step.and_then(Field::count),
        total: None,
        is_of_epoch: false,
        values,
        tail: String::new(),
        is_validation,
    })
}

/// Reads an object of JSON. Python writes `NaN` and `Infinity`, which JSON does not have: they are read as null.
fn json_map(object: &str) -> Option<serde_json::Map<String, Value>> {
    let read = serde_json::from_str(object).ok();
    read.or_else(|| serde_json::from_str(&without_nan(object)?).ok())
}

/// Replaces `NaN` and `Infinity` outside of strings by `null`. Returns `None` if there are none.
fn without_nan(object: &str) -> Option<String> {
    if !["NaN", "Infinity"].iter().any(|word| object.contains(word)) {
        return None;
    }
    let mut json = String::with_capacity(object.len());
    let mut rest = object;
    while let Some(next) = rest.chars().next() {
        let length = match next {
            '"' => string_len(rest),
            _ => next.len_utf8(),
        };
        match ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| rest.starts_with(word)) {
            Some(word) => {
                json += "null";
                rest = &rest[word.len()..];
            }
            None => {
                json += &rest[..length];
                rest = &rest[length..];
            }
        }
    }
    Some(json)
}

/// Returns the length of the string of JSON at the start of a text, with its quotes.
fn string_len(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == '"' && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// The depth to which the objects of a JSON line are read.
const DEPTH: usize = 3;

fn flatten(above: &str, map: &serde_json::Map<String, Value>, depth: usize, list: &mut Vec<Field>) {
    for (key, value) in map {
        let name = if above.is_empty() { key.to_lowercase() } else { format!("{above}/{}", key.to_lowercase()) };
        match value {
            Value::Number(number) => list.extend(number.as_f64().map(|value| field(&name, value, !number.is_f64()))),
            Value::String(text) => list.extend(number(text).map(|value| field(&name, value, is_whole(text)))),
            // JSON has no NaN: a loss that is null is not finite.
            Value::Null if is_loss(&name) => list.push(field(&name, f64::NAN, false)),
            Value::Object(inner) if depth < DEPTH => flatten(&name, inner, depth + 1, list),
            _ => {}
        }
    }
}

/// Reads the entries of a dictionary of Python whose values are numbers, or numbers in quotes, and whether another value is a word of
/// validation; `None` if it is not a dictionary.
fn entries(object: &str) -> Option<(Vec<Field>, bool)> {
    let mut rest = object.strip_prefix('{')?.strip_suffix('}')?.trim();
    let mut list = Vec::new();
    let mut is_marked = false;
    while !rest.is_empty() {
        let quote = rest.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
        let (name, after) = rest[1..].split_once(quote)?;
        let after = after.trim_start().strip_prefix(':')?.trim_start();
        let end = end_of_value(after);
        let value = after[..end].trim().trim_matches(['\'', '"']);
        list.extend(number(value).map(|number| field(&name.to_lowercase(), number, is_whole(value))));
        is_marked |= is_word(name, &SPLITS) && is_word(value, &VALIDATION);
        rest = after[end..].trim_start_matches([',', ' ']);
    }
    Some((list, is_marked))
}

/// Returns where a value of a dictionary ends: at the next comma outside brackets and quotes.
fn end_of_value(text: &str) -> usize {
    let (mut depth, mut quote) = (0usize, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => return at,
            _ => {}
        }
    }
    text.len()
}

fn number(text: &str) -> Option<f64> {
    let text = text.strip_prefix("tensor(").map_or(text, |rest| rest.split([',', ')']).next().unwrap_or(rest));
    fields::parse(text.trim())
}

fn is_whole(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn field(name: &str, value: f64, is_whole: bool) -> Field {
    Field {
        name: name.to_owned(),
        last_at: 0,
        value,
        unit: String::new(),
        is_whole,
        of: None,
        is_separated: true,
        at: 0,
    }
}

/// Returns whether a field with this name is a step.
fn is_step_name(name: &str) -> bool {
    STEPS.contains(&name)
}

/// Returns the field with the step.
fn step_of(found: &[Field]) -> Option<&Field> {
    let rank = |field: &Field| {
        let rank_of = |name: &str| STEPS.iter().position(|known| *known == name);
        let rank = rank_of(&field.name).or_else(|| rank_of(field.last()))?;
        field.count().is_some().then_some(rank)
    };
    let ranked = found.iter().filter_map(|field| Some((rank(field)?, field)));
    ranked.min_by_key(|(rank, _)| *rank).map(|(_, field)| field)
}

fn of_text(line: &str, ranks: usize) -> Option<Found> {
    // Most lines of a log have no step. This check is cheap.
    if !mentions(line, &["step", "iter"]) {
        return None;
    }
    let found = fields(line);
    let step = step_of(&found)?;
    let has = |name: &str| found.iter().any(|field| field.name == name);
    let kind = match () {
        () if has("consumed_samples") && has("elapsed_time_per_iteration") => Kind::Megatron,
        () if has("consumed_samples") || has("reduced_train_loss") || has("train_step_timing_in_s") => Kind::Nemo,
        () if has("tps") && (has("memory") || has("tflops")) => Kind::Torchtitan,
        () if has("skipped") && has("mom") || has("iter_time") && has("samples/sec") => Kind::DeepSpeed,
        () => Kind::Text,
    };
    let first = &found[0];
    let of_name = if first == step { first.name.as_str() } else { "" };
    let of_step = of_name.split('_').any(|word| is_word(word, &VALIDATION));
    let is_validation = of_step || is_of_validation(line, &line[..first.at]);
    let mut values = Values::default();
    let tps = (kind == Kind::Torchtitan).then_some(ranks.max(1) as f64);
    let meaning = Meaning { tps, is_validation, has_epochs: false };
    // In text of an unknown program, a name before the step may be that of a file and its line.
    let is_value = |field: &&Field| kind != Kind::Text || field.at > step.at || is_known(&field.name);
    let measured = found.iter().filter(|field| *field != step && !is_step_name(&field.name)).filter(is_value);
    measured.for_each(|field| values.add(field, meaning));
    let (name, total, tail) = (step.last().to_owned(), step.of, String::new());
    let is_of_epoch = total.is_some() && has("epoch");
    (!values.is_empty()).then(|| Found {
        kind,
        name,
        step: step.count(),
        total,
        is_of_epoch,
        values,
        tail,
        is_validation,
    })
}

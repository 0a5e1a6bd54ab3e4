//! Checks and formats the value of a single key, from a file or a `--set` flag.

use toml::Value;

use crate::name::is_name;
use crate::nearest::nearest;
use crate::schema::{MANY, Spec};
use crate::train::TRAINABLE;
use crate::{Bounds, Key, Kind, Pattern, ResumeEffect, TimeLimit};

/// The reason why a value is not valid, and the hint.
#[derive(Debug)]
pub(crate) struct BadValue {
    pub why: String,
    pub fix: String,
}

/// Checks a value against its key and returns it in the key's type.
pub(crate) fn accept(key: &Key, value: &Value) -> Result<Value, BadValue> {
    match (key.kind, value) {
        (Kind::Int { min, max }, Value::Integer(number)) if (min..=max).contains(number) => Ok(value.clone()),
        (Kind::Float(bounds), Value::Float(number)) if within(bounds, *number) => Ok(value.clone()),
        // An integer is valid for a float: `lr = 1`.
        (Kind::Float(bounds), Value::Integer(number)) if within(bounds, *number as f64) => {
            Ok(Value::Float(*number as f64))
        }
        (Kind::Bool, Value::Boolean(_)) => Ok(value.clone()),
        (Kind::OneOf(words), Value::String(word)) if words.contains(&word.as_str()) => Ok(value.clone()),
        (Kind::OptionalPath, Value::String(_)) => Ok(value.clone()),
        (Kind::Path | Kind::Text, Value::String(text)) if !text.is_empty() => Ok(value.clone()),
        (Kind::Words, Value::Array(words)) if words.iter().all(Value::is_str) => Ok(value.clone()),
        (Kind::ListOf(choice), Value::Array(words)) if words.iter().all(Value::is_str) => {
            let unknown = words.iter().filter_map(Value::as_str).find(|word| !choice.contains(word));
            unknown.map_or(Ok(value.clone()), |word| Err(not_one_of(word, choice)))
        }
        (Kind::Variables, Value::Table(variables)) if variables.values().all(Value::is_str) => Ok(value.clone()),
        (Kind::Name, Value::String(name)) if is_name(name) => Ok(value.clone()),
        (Kind::Time, Value::String(text)) if let Ok(limit) = text.parse::<TimeLimit>() => {
            Ok(Value::String(limit.to_string()))
        }
        (Kind::Trainable, Value::String(word)) if TRAINABLE.contains(&word.as_str()) => Ok(value.clone()),
        (Kind::Trainable, Value::Array(patterns)) if !patterns.is_empty() && patterns.iter().all(Value::is_str) => {
            patterns.iter().filter_map(Value::as_str).try_for_each(check_pattern)?;
            Ok(value.clone())
        }
        (Kind::Patterns, Value::Array(patterns)) if patterns.iter().all(Value::is_str) => {
            patterns.iter().filter_map(Value::as_str).try_for_each(check_pattern)?;
            Ok(value.clone())
        }
        (Kind::Groups, Value::Array(groups)) if groups.iter().all(Value::is_table) => {
            let tables = groups.iter().filter_map(Value::as_table);
            tables.map(|group| accept_group(group).map(Value::Table)).collect::<Result<_, _>>().map(Value::Array)
        }
        (Kind::LogPatterns, Value::Array(patterns)) if patterns.iter().all(Value::is_table) => {
            let tables = patterns.iter().filter_map(Value::as_table);
            tables
                .map(|pattern| accept_log_pattern(pattern).map(Value::Table))
                .collect::<Result<_, _>>()
                .map(Value::Array)
        }
        (Kind::Buckets, Value::Array(buckets)) if buckets.iter().all(Value::is_table) => {
            let tables = buckets.iter().filter_map(Value::as_table);
            let accepted: Vec<Vec<Value>> = tables.map(accept_bucket).collect::<Result<_, _>>()?;
            Ok(Value::Array(accepted.concat()))
        }
        (Kind::Sets, Value::Array(sets)) if sets.iter().all(Value::is_table) => {
            let tables = sets.iter().filter_map(Value::as_table);
            tables.map(|set| accept_set(set).map(Value::Table)).collect::<Result<_, _>>().map(Value::Array)
        }
        _ => Err(BadValue {
            why: match (key.kind, value) {
                (Kind::Int { max, .. }, Value::Integer(number)) if *number > max => {
                    format!("expected a whole number of at most {max}, found {}", found(value))
                }
                _ => format!("expected {}, found {}", key.kind.in_words(), found(value)),
            },
            fix: fix(key, value),
        }),
    }
}

/// Checks one of several data sets.
fn accept_set(set: &toml::Table) -> Result<toml::Table, BadValue> {
    const KEYS: [&str; 3] = ["index", "weight", "repeats"];
    let example = || "write index = \"data/clips\", and repeats = 2 or weight = 0.5 as needed".to_owned();
    if let Some(unknown) = set.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let fix = nearest(unknown, KEYS).map(|key| format!("did you mean {key}?")).unwrap_or_else(example);
        return Err(BadValue { why: format!("a data set has no key {unknown}"), fix });
    }
    let Some(index) = set.get("index").and_then(Value::as_str).filter(|index| !index.is_empty()) else {
        return Err(BadValue { why: "a data set has no index, the folder of its latents".into(), fix: example() });
    };
    let wrong = |key: &str, kind: Kind, value: &Value| BadValue {
        why: format!("{key} of the data set \"{index}\": expected {}, found {}", kind.in_words(), found(value)),
        fix: format!("correct it, or remove the set if it is not to be used: {}", example()),
    };
    let mut accepted = set.clone();
    if let Some(value) = set.get("weight") {
        let number = value.as_float().or(value.as_integer().map(|number| number as f64));
        let number = number.filter(|number| within(Bounds::Positive, *number));
        let number = number.ok_or_else(|| wrong("weight", Kind::Float(Bounds::Positive), value))?;
        accepted.insert("weight".into(), Value::Float(number));
    }
    if let Some(value) = set.get("repeats") {
        let fits = value.as_integer().is_some_and(|number| (1..=MOST_REPEATS).contains(&number));
        if !fits {
            return Err(wrong("repeats", Kind::Int { min: 1, max: MOST_REPEATS }, value));
        }
    }
    Ok(accepted)
}

/// The largest number of uses of an item in an epoch.
const MOST_REPEATS: i64 = 1_000_000;

/// Replaces each path in an accepted value by the result of `resolve`.
pub(crate) fn resolve_paths(kind: Kind, value: &mut Value, resolve: &dyn Fn(&str) -> String) {
    match (kind, value) {
        (Kind::Path | Kind::OptionalPath, Value::String(path)) if !path.is_empty() => *path = resolve(path),
        (Kind::Sets, Value::Array(sets)) => {
            for index in sets.iter_mut().filter_map(Value::as_table_mut).filter_map(|set| set.get_mut("index")) {
                resolve_paths(Kind::Path, index, resolve);
            }
        }
        _ => {}
    }
}

/// Returns the place of the first entry of a list that is not valid by itself.
pub(crate) fn bad_entry(key: &Key, value: &Value) -> Option<usize> {
    let entries = value.as_array().filter(|entries| entries.iter().all(Value::is_table))?;
    entries.iter().position(|entry| accept(key, &Value::Array(vec![entry.clone()])).is_err())
}

/// Checks a pattern of log lines.
fn accept_log_pattern(table: &toml::Table) -> Result<toml::Table, BadValue> {
    let example =
        || "write match = 'it (?P<step>\\d+) .*total=(?P<loss>\\S+)', with a named group for each value".to_owned();
    if let Some(unknown) = table.keys().find(|key| *key != "match") {
        return Err(BadValue { why: format!("a pattern has no key {unknown}"), fix: example() });
    }
    let Some(text) = table.get("match").and_then(Value::as_str) else {
        return Err(BadValue { why: "a pattern has no match, the regular expression".into(), fix: example() });
    };
    let pattern = Pattern::new(text).map_err(|error| BadValue {
        why: format!("\"{text}\" is not a regular expression: {}", reason_of(&error)),
        fix: example(),
    })?;
    if pattern.groups().next().is_none() {
        let why = format!("\"{text}\" has no named group, so that it yields no value");
        return Err(BadValue { why, fix: example() });
    }
    Ok(table.clone())
}

/// Checks a group of the optimizer.
fn accept_group(group: &toml::Table) -> Result<toml::Table, BadValue> {
    const KEYS: [&str; 3] = ["match", "lr", "weight_decay"];
    let example = || "write match = 'attn\\.q', lr = 1e-5 and weight_decay = 0.0, the last two as needed".to_owned();
    if let Some(unknown) = group.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let fix = nearest(unknown, KEYS).map(|key| format!("did you mean {key}?")).unwrap_or_else(example);
        return Err(BadValue { why: format!("a group has no key {unknown}"), fix });
    }
    let Some(pattern) = group.get("match").and_then(Value::as_str) else {
        return Err(BadValue { why: "a group has no match, the pattern of its parameters".into(), fix: example() });
    };
    check_pattern(pattern)?;
    let mut accepted = group.clone();
    for (key, bounds) in [("lr", Bounds::Positive), ("weight_decay", Bounds::NotNegative)] {
        let Some(value) = group.get(key) else { continue };
        let number = value.as_float().or(value.as_integer().map(|number| number as f64));
        let Some(number) = number.filter(|number| within(bounds, *number)) else {
            let why = format!(
                "{key} of the group \"{pattern}\": expected {}, found {}",
                Kind::Float(bounds).in_words(),
                found(value)
            );
            return Err(BadValue { why, fix: example() });
        };
        accepted.insert(key.into(), Value::Float(number));
    }
    if accepted.len() == 1 {
        let why = format!("the group \"{pattern}\" sets neither lr nor weight_decay");
        return Err(BadValue { why, fix: example() });
    }
    Ok(accepted)
}

/// The keys of a bucket.
const BUCKET: [(&str, Kind); 14] = [
    ("frames", Kind::Int { min: 1, max: 100_001 }),
    ("height", Kind::Int { min: 8, max: 16_384 }),
    ("width", Kind::Int { min: 8, max: 16_384 }),
    ("size", Kind::Text),
    ("accept", Kind::Float(Bounds::Share)),
    ("stay", Kind::Float(Bounds::Share)),
    ("skip", Kind::Float(Bounds::Share)),
    ("side", Kind::Int { min: 16, max: 16_384 }),
    ("min_side", Kind::Int { min: 16, max: 16_384 }),
    ("max_side", Kind::Int { min: 16, max: 16_384 }),
    ("random_ratio", Kind::Bool),
    ("random_frames", Kind::Bool),
    ("tile", Kind::Bool),
    ("batch", Kind::Int { min: 1, max: 1_000_000 }),
];

/// Checks an entry of `data.buckets`. Returns one bucket for each value of `frames`, which may be a list.
fn accept_bucket(bucket: &toml::Table) -> Result<Vec<Value>, BadValue> {
    let example = || {
        "write frames, height and width in each bucket, for example { frames = 49, height = 480, width = 720 }"
            .to_owned()
    };
    let mut accepted = toml::Table::new();
    let mut frames = Vec::new();
    for (name, value) in bucket {
        let Some((name, kind)) = BUCKET.into_iter().find(|(known, _)| known == name) else {
            let fix = nearest(name, BUCKET.map(|(known, _)| known)).map(|key| format!("did you mean {key}?"));
            return Err(BadValue { why: format!("a bucket has no key {name}"), fix: fix.unwrap_or_else(example) });
        };
        let values = match value {
            Value::Array(list) if name == "frames" && !list.is_empty() => list.clone(),
            value => vec![value.clone()],
        };
        let key = Spec::of(kind).key(name, "see data.buckets", None, (&[], ResumeEffect::Data), None);
        let bad = |bad: BadValue| BadValue { why: format!("{name} of a bucket: {}", bad.why), fix: bad.fix };
        let values: Vec<Value> =
            values.iter().map(|value| accept(&key, value).map_err(bad)).collect::<Result<_, _>>()?;
        match name {
            "frames" => frames = values,
            name => drop(accepted.insert(name.into(), values[0].clone())),
        }
    }
    if frames.is_empty() {
        return Err(BadValue { why: "a bucket has no frames".into(), fix: example() });
    }
    let with = |frames: Value| {
        let mut bucket = accepted.clone();
        bucket.insert("frames".into(), frames);
        Value::Table(bucket)
    };
    Ok(frames.into_iter().map(with).collect())
}

/// Reads the text of a `--set` flag as a value of its key.
///
/// Strings need no quotes; everything else has the syntax of a file.
pub(crate) fn parse(key: &Key, text: &str) -> Result<Value, BadValue> {
    let words = matches!(
        key.kind,
        Kind::Name | Kind::Path | Kind::Text | Kind::OptionalPath | Kind::OneOf(_) | Kind::Trainable | Kind::Time
    );
    match text.parse::<Value>() {
        Ok(value) if !words || value.is_str() || value.is_array() => accept(key, &value),
        _ => accept(key, &Value::String(text.to_owned())),
    }
}

/// Returns a placeholder for a key that the recipe's trainer does not read.
pub(crate) fn unread(kind: Kind) -> Value {
    match kind {
        Kind::Int { min, .. } => Value::Integer(min),
        Kind::Float(_) => Value::Float(1.0),
        Kind::Bool => Value::Boolean(false),
        Kind::Words
        | Kind::ListOf(_)
        | Kind::Patterns
        | Kind::Groups
        | Kind::LogPatterns
        | Kind::Buckets
        | Kind::Sets => Value::Array(Vec::new()),
        Kind::Variables => Value::Table(toml::Table::new()),
        Kind::Name | Kind::Path | Kind::OneOf(_) | Kind::Trainable | Kind::Text | Kind::Time | Kind::OptionalPath => {
            Value::String(String::new())
        }
    }
}

/// Formats a value as in a file.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        // Learning rates and the like are easier to read as `1e-4` than as TOML's `0.0001`.
        Value::Float(number) if *number != 0.0 && number.abs() < 1e-2 => format!("{number:e}"),
        value => value.to_string(),
    }
}

impl Key {
    /// Returns the default as a recipe writes it; `None` if the key must be set.
    pub fn default_text(&self) -> Option<String> {
        self.default_value().map(|value| shown(&value))
    }
}

fn within(bounds: Bounds, number: f64) -> bool {
    number.is_finite()
        && match bounds {
            Bounds::Positive => number > 0.0,
            Bounds::NotNegative => number >= 0.0,
            Bounds::Fraction => (0.0..1.0).contains(&number),
            Bounds::Share => (0.0..=1.0).contains(&number),
        }
}

fn check_pattern(pattern: &str) -> Result<(), BadValue> {
    let Err(error) = Pattern::new(pattern) else { return Ok(()) };
    Err(BadValue {
        why: format!("\"{pattern}\" is not a regular expression: {}", reason_of(&error)),
        fix: "write a regular expression of parameter names, such as '^blocks\\.[0-3]\\.attn\\.'".into(),
    })
}

/// Returns the reason for which a text is not a regular expression.
fn reason_of(error: &impl std::fmt::Display) -> String {
    // The last line is the reason; the lines above show the pattern.
    error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

fn not_one_of(word: &str, choice: &[&str]) -> BadValue {
    let known = choice.join(", ");
    let fix = nearest(word, choice.iter().copied()).map(|word| format!("did you mean \"{word}\"?"));
    BadValue { why: format!("there is no \"{word}\""), fix: fix.unwrap_or_else(|| format!("use one of {known}")) }
}

impl Kind {
    /// Returns the accepted values in words, with their bounds: `a whole number from 0 to 6`.
    pub fn in_words(self) -> String {
        match self {
            Kind::Name => "a name of up to 40 letters, digits and '-'".into(),
            Kind::Path => "a path in quotes".into(),
            Kind::OptionalPath => "a path in quotes, or \"\" for none".into(),
            Kind::Int { min, max: MANY.. } => format!("a whole number of at least {min}"),
            Kind::Int { min, max } => format!("a whole number from {min} to {max}"),
            Kind::Float(Bounds::Positive) => "a number above 0".into(),
            Kind::Float(Bounds::NotNegative) => "a number of at least 0".into(),
            Kind::Float(Bounds::Fraction) => "a number from 0 to below 1".into(),
            Kind::Float(Bounds::Share) => "a number from 0 to 1".into(),
            Kind::Bool => "true or false".into(),
            Kind::OneOf(words) => words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" or "),
            Kind::Time => "a duration such as \"90s\", \"30m\", \"4h\" or \"1d12h\", or \"none\"".into(),
            Kind::Text => "a string in quotes".into(),
            Kind::Words => "a list of strings".into(),
            Kind::Patterns => "a list of regular expressions of parameter names".into(),
            Kind::Groups => "tables [[optimizer.groups]] with match, lr and weight_decay".into(),
            Kind::LogPatterns => {
                "tables [[command.patterns]] with match, a regular expression with named groups".into()
            }
            Kind::Buckets => "tables [[data.buckets]] with frames, height and width".into(),
            Kind::Sets => "tables [[data.sets]] with index and, as needed, repeats or weight".into(),
            Kind::ListOf(words) => {
                format!("a list of {}", words.iter().map(|w| format!("\"{w}\"")).collect::<Vec<_>>().join(", "))
            }
            Kind::Variables => "variables with string values, NAME = \"value\"".into(),
            Kind::Trainable => "\"all\", \"qkvo\", \"lora\" or a list of regular expressions of parameter names".into(),
        }
    }
}

fn found(value: &Value) -> String {
    match value {
        Value::String(_) => format!("the string {value}"),
        Value::Integer(_) | Value::Float(_) => format!("the number {value}"),
        Value::Boolean(_) => value.to_string(),
        Value::Datetime(_) => format!("the date {value}"),
        Value::Array(items) if items.is_empty() => "an empty list".into(),
        Value::Array(_) => "a list".into(),
        Value::Table(_) => "a section".into(),
    }
}

fn fix(key: &Key, value: &Value) -> String {
    let name = key.parts().1;
    match (key.kind, value) {
        (Kind::OneOf(words), Value::String(word)) => {
            // diffusers' constant_with_warmup is our constant.
            let longer = || words.iter().copied().find(|choice| word.starts_with(choice));
            if let Some(word) = nearest(word, words.iter().copied()).or_else(longer) {
                return format!("did you mean \"{word}\"?");
            }
        }
        (Kind::Trainable, Value::String(word)) => {
            return match nearest(word, TRAINABLE) {
                Some(word) => format!("did you mean \"{word}\"?"),
                None => format!("put regular expressions in a list: {name} = [{value}]"),
            };
        }
        (Kind::Int { .. }, Value::Float(number)) if number.fract() == 0.0 => {
            return format!("write it without a decimal point or exponent: {name} = {number}");
        }
        (Kind::Words, Value::String(_)) => {
            return format!(
                "write each argument as its own string, {name} = [\"torchrun\", \"train.py\"]: no shell splits them"
            );
        }
        (Kind::Variables, Value::Table(variables)) => {
            if let Some((name, value)) = variables.iter().find(|(_, value)| !value.is_str()) {
                return format!("put the value in quotes: {name} = \"{value}\"");
            }
        }
        (Kind::Bool, Value::Integer(number @ (0 | 1))) => return format!("write {name} = {}", *number == 1),
        (_, Value::String(text)) => {
            if let Some(value) =
                text.parse::<Value>().ok().filter(|value| !value.is_str() && accept(key, value).is_ok())
            {
                return format!("remove the quotes: {name} = {value}");
            }
        }
        _ => {}
    }
    let is_empty = |value: &Value| match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Table(table) => table.is_empty(),
        _ => false,
    };
    match key.default_value().filter(|default| !is_empty(default)) {
        Some(default) => {
            format!("correct it, or remove it for the default {} ({})", shown(&default), key.doc)
        }
        None => format!("correct it ({})", key.doc),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(path: &str, text: &str) -> Result<Value, BadValue> {
        parse(Key::find(path).unwrap(), text)
    }

    #[test]
    fn flags_are_read_as_the_type_of_their_key() {
        let read = |path, text| set(path, text).unwrap();
        assert_eq!(read("train.steps", "1_000"), Value::Integer(1000));
        assert_eq!(read("optimizer.lr", "3e-4"), Value::Float(3e-4));
        assert_eq!(read("optimizer.lr", "1"), Value::Float(1.0));
        assert_eq!(read("remat.keep_attention", "false"), Value::Boolean(false));
        assert_eq!(read("optimizer.schedule", "cosine"), Value::String("cosine".into()));
        assert_eq!(read("optimizer.schedule", "\"cosine\""), Value::String("cosine".into()));
        assert_eq!(read("data.index", "../a b.jsonl"), Value::String("../a b.jsonl".into()));
        assert_eq!(read("data.index", "2024"), Value::String("2024".into()));
        assert_eq!(read("name", "7"), Value::String("7".into()));
        assert_eq!(read("train.trainable", "qkvo"), Value::String("qkvo".into()));
        assert_eq!(read("train.trainable", "[\"a\", 'b']"), Value::Array(vec!["a".into(), "b".into()]));
    }

    #[test]
    fn a_value_of_the_wrong_type_names_the_expected_and_the_found_type() {
        let wrong = [
            ("train.steps", "ten"),
            ("train.steps", "\"10\""),
            ("train.steps", "1.5"),
            ("train.steps", "0"),
            ("train.steps", "3\nname = 'x'"),
            ("train.seed", "-1"),
            ("optimizer.lr", "0"),
            ("optimizer.lr", "nan"),
            ("optimizer.beta1", "1"),
            ("optimizer.schedule", "cosin"),
            ("optimizer.schedule", "exponential"),
            ("remat.keep_attention", "1"),
            ("train.trainable", "qvko"),
            ("train.trainable", "attn\\.q"),
            ("train.trainable", "[]"),
            ("train.trainable", "[1]"),
            ("train.trainable", "['(']"),
            ("data.index", ""),
            ("name", "two words"),
        ];
        let lines = wrong.map(|(path, text)| {
            let BadValue { why, fix } = set(path, text).unwrap_err();
            format!("{path}={text}: {why}\n    {fix}")
        });
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn a_default_has_the_toml_type_of_its_kind() {
        for key in crate::SCHEMA {
            let Some(default) = key.default_value() else { continue };
            assert!(key.kind.toml_type().split(" or ").any(|word| word == default.type_str()), "{}", key.path);
        }
    }
}

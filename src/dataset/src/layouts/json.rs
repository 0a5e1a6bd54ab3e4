//! Reads tables in JSON: a list of objects, one object per line, an object of objects, or an object with a caption for each path.

use super::table::{Cell, Columns, ReadTable, TableReader, Values};
use super::{SourceRequest, invalid, read_utf8};
use crate::manifest::FORMAT;
use camino::Utf8Path;
use rundir::Failure;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use text_file::NotText;

/// The text of a file. Bytes that are not UTF-8 are replaced by U+FFFD.
struct Document {
    text: String,
    /// The first byte that is not UTF-8.
    fault: Option<NotText>,
}

impl Document {
    fn read(path: &Utf8Path) -> Result<Self, Failure> {
        let bytes = read_utf8(path)?;
        let fault = text_file::check(&bytes).err();
        Ok(Self { text: String::from_utf8_lossy(&bytes).into_owned(), fault })
    }

    fn object(&self, object: Map<String, Value>) -> Object {
        Object { object, fault: self.fault }
    }
}

/// Reads a table with one object per line.
pub(super) fn lines(path: &Utf8Path, root: &Utf8Path, request: &SourceRequest) -> Result<ReadTable, Failure> {
    let document = Document::read(path)?;
    let mut objects = Vec::new();
    for (number, line) in document.text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let origin = format!("{} line {}", path.file_name().unwrap_or_default(), number + 1);
        let object: Map<String, Value> = serde_json::from_str(line).map_err(|error| {
            let why = format!("line {}: {error}", number + 1);
            invalid(
                format!("cannot read {path}"),
                why,
                "write one JSON object per line: {\"video\": …, \"caption\": …}",
            )
        })?;
        if object.get("format").and_then(Value::as_str) == Some(FORMAT) {
            return Err(invalid(
                format!("{path} is a manifest already"),
                "vidtui data check has written it",
                "check the folder or table that it was made from",
            ));
        }
        objects.push((origin, document.object(object)));
    }
    of_objects(path, root, request, objects)
}

/// Reads a table that is one JSON document.
pub(super) fn read(path: &Utf8Path, root: &Utf8Path, request: &SourceRequest) -> Result<ReadTable, Failure> {
    let document = Document::read(path)?;
    let name = path.file_name().unwrap_or_default();
    let fix = "write a list of objects: [{\"video\": …, \"caption\": …}, …]";
    let bad = |why: String| invalid(format!("cannot read {path}"), why, fix);
    match serde_json::from_str(&document.text).map_err(|error| bad(error.to_string()))? {
        Value::Array(items) => {
            let object = |(at, item)| match item {
                Value::Object(object) => Ok((format!("{name} item {}", at + 1), document.object(object))),
                _ => Err(bad(format!("item {} is not an object", at + 1))),
            };
            let objects = items.into_iter().enumerate().map(object).collect::<Result<_, _>>()?;
            of_objects(path, root, request, objects)
        }
        // ttt-video-dit: {"0": {"mp4": …, "text": …}}.
        Value::Object(items) if items.values().all(Value::is_object) => {
            let object = |(key, item)| match item {
                Value::Object(object) => Some((format!("{name} entry {key}"), document.object(object))),
                _ => None,
            };
            of_objects(path, root, request, items.into_iter().filter_map(object).collect())
        }
        // diffusion-pipe: {"a.mp4": ["a caption", "another one"]}.
        Value::Object(items) => {
            let columns = Columns { video: "file".into(), captions: vec!["captions".into()] };
            let mut all = TableReader::with(path, root, columns, request)?;
            for (file, captions) in items {
                if !captions.is_string() && !is_texts(&captions) {
                    return Err(bad(format!("the entry '{file}' is neither an object nor captions")));
                }
                let origin = format!("{name} entry {file}");
                let pair = Map::from_iter([("file".to_owned(), file.into()), ("captions".to_owned(), captions)]);
                all.add(&origin, &document.object(pair))?;
            }
            Ok(all.done())
        }
        _ => Err(bad("it is neither a list nor an object".into())),
    }
}

fn of_objects(
    path: &Utf8Path,
    root: &Utf8Path,
    request: &SourceRequest,
    objects: Vec<(String, Object)>,
) -> Result<ReadTable, Failure> {
    // An object may lack a key that others have.
    let mut names: BTreeSet<&str> = BTreeSet::new();
    objects.iter().for_each(|(_, object)| names.extend(object.object.keys().map(String::as_str)));
    let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
    if objects.is_empty() {
        let fix = "list one video with its caption per entry";
        return Err(invalid(format!("{path} lists no videos"), "it has no entries", fix));
    }
    let mut all = TableReader::begin(path, root, &names, (&names, &names), request)?;
    objects.iter().try_for_each(|(origin, object)| all.add(origin, object))?;
    Ok(all.done())
}

struct Object {
    object: Map<String, Value>,
    fault: Option<NotText>,
}

impl Values for Object {
    fn get(&self, column: &str) -> Cell {
        match self.object.get(column) {
            None | Some(Value::Null) => Cell::Null,
            // In a file that is not UTF-8, a replacement character marks the values with invalid bytes.
            Some(Value::String(shown)) if shown.contains('\u{fffd}') => match self.fault {
                Some(why) => Cell::NotUtf8 { shown: shown.clone(), why },
                None => Cell::Text(shown.clone()),
            },
            Some(Value::String(text)) => Cell::Text(text.clone()),
            // A number of double precision holds no larger whole numbers.
            Some(Value::Number(number)) => match number.as_f64() {
                Some(float) if number.is_f64() || float.abs() < 9e15 => Cell::Number(float),
                _ => Cell::Text(number.to_string()),
            },
            Some(texts) if is_texts(texts) => {
                let texts = texts.as_array().into_iter().flatten().filter_map(Value::as_str);
                Cell::Texts(texts.map(str::to_owned).collect())
            }
            Some(other) => Cell::Text(other.to_string()),
        }
    }
}

fn is_texts(value: &Value) -> bool {
    value.as_array().is_some_and(|items| items.iter().all(Value::is_string))
}

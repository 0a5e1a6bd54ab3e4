//! Reads and writes `failures.jsonl`, the list of items that failed in earlier encodes. After a complete encode, the work folder has
//! only this file, or is removed if there are no failures.

use super::Item;
use super::index::{cannot_write, malformed, unreadable};
use super::names::WORK;
use camino::Utf8Path;
use rundir::{Failure, MAX_TEXT, read_regular, write_atomic};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;

const FAILURES: &str = "failures.jsonl";

/// A line of `failures.jsonl`.
#[derive(Serialize, Deserialize)]
struct FailedLine {
    item: Item,
    failure: Failure,
}

/// Returns the items that failed in earlier encodes of a data set.
pub(crate) fn old_failures(data: &Utf8Path) -> Result<Vec<(Item, Failure)>, Failure> {
    let path = data.join(WORK).join(FAILURES);
    let text = match read_regular(&path, MAX_TEXT) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(unreadable(&path, &e)),
    };
    let lines = text.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    let read = lines.map(|(number, line)| {
        let line: FailedLine = serde_json::from_slice(line).map_err(|e| malformed(&path, number + 1, &e))?;
        Ok((line.item, line.failure))
    });
    read.collect()
}

/// Replaces `failures.jsonl`, or removes it if there are no failures.
pub(super) fn write_failures<'a>(
    work: &Utf8Path,
    failures: impl Iterator<Item = (&'a Item, &'a Failure)>,
) -> Result<(), Failure> {
    let mut text = Vec::new();
    for (item, failure) in failures {
        let line = FailedLine { item: item.clone(), failure: failure.clone() };
        text.extend(serde_json::to_vec(&line).expect("a failure has a JSON form"));
        text.push(b'\n');
    }
    let path = work.join(FAILURES);
    if !text.is_empty() {
        return Ok(write_atomic(&path, &text)?);
    }
    match fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(cannot_write(&path, &e)),
        _ => Ok(()),
    }
}

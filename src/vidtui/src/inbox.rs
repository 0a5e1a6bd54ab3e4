//! Reads the alerts of all runs in a folder, for the console.

use camino::Utf8Path;
use rundir::{AlertReader, AlertState, RunDir};
use std::collections::BTreeMap;
use std::fs;

/// The most alerts that are kept.
const MOST: usize = 500;

/// Follows the alerts of all runs. Only new lines are read.
#[derive(Default)]
pub struct Inbox {
    runs: BTreeMap<RunDir, AlertReader>,
}

impl Inbox {
    /// Reads the new lines, and returns all alerts, newest first. A run that cannot be read now keeps the alerts that were read.
    pub fn poll(&mut self, runs: &Utf8Path) -> Vec<AlertState> {
        let entries = fs::read_dir(runs).into_iter().flatten().flatten();
        let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let dirs = names.iter().filter(|name| !name.starts_with('.')).map(|name| RunDir::new(runs.join(name)));
        let mut before = std::mem::take(&mut self.runs);
        for dir in dirs {
            let mut reader = before.remove(&dir).unwrap_or_else(|| AlertReader::new(&dir));
            // A file that cannot be read now may be readable next time.
            let _ = reader.poll();
            self.runs.insert(dir, reader);
        }
        let mut all: Vec<AlertState> = self.runs.values().flat_map(AlertReader::alerts).collect();
        all.sort_by(|a, b| b.alert.t.total_cmp(&a.alert.t));
        all.truncate(MOST);
        all
    }
}

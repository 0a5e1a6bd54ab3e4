//! Reads the event files of a run.

use super::event::Event;
use super::record::{Next, Records};
use crate::{Log, Point};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{Error, open_regular};
use std::io::{self, BufReader};

/// Bytes that are read at once.
const BUFFER: usize = 1 << 20;

/// Returns the event files of a folder, oldest first.
///
/// # Errors
/// When the folder cannot be listed.
pub fn event_files(folder: &Utf8Path) -> io::Result<Vec<Utf8PathBuf>> {
    let mut files = Vec::new();
    // Names that are not UTF-8 are not TensorBoard's.
    for entry in folder.read_dir_utf8()?.flatten() {
        // The profiler's files hold no scalars.
        let is_events = entry.file_name().contains("tfevents") && !entry.file_name().ends_with(".profile-empty");
        if is_events && entry.path().is_file() {
            files.push(entry.into_path());
        }
    }
    files.sort();
    Ok(files)
}

/// Reads all scalars in the event files of a folder.
///
/// # Errors
/// When the folder or a file cannot be read.
pub fn read_folder(folder: &Utf8Path) -> Result<Log, Error> {
    let files = event_files(folder).map_err(|error| Error::io("list", folder, error))?;
    read_files(&files)
}

/// Reads all scalars in some event files of one run.
///
/// # Errors
/// When a file cannot be read.
pub fn read_files(files: &[Utf8PathBuf]) -> Result<Log, Error> {
    let mut log = Log::default();
    for path in files {
        read_into(&mut log, path).map_err(|error| Error::io("read", path, error))?;
    }
    Ok(log)
}

fn read_into(log: &mut Log, path: &Utf8Path) -> io::Result<()> {
    let file = open_regular(path)?;
    let len = file.metadata()?.len();
    let mut records = Records::new(BufReader::with_capacity(BUFFER, file), len);
    let mut unread = 0;
    loop {
        let event = match records.next()? {
            Next::Record(data) => Event::read(data),
            Next::End => break,
            Next::WrongChecksum(at) => {
                log.warnings
                    .push(format!("{path}: wrong checksum at byte {at} of {len}; the events after it are not read"));
                break;
            }
        };
        // Charts begin at step 0, so a negative step counts as 0.
        let step = u64::try_from(event.step).unwrap_or(0);
        if event.is_start() {
            log.restart_at(step);
        }
        for scalar in event.scalars() {
            match scalar {
                Some((tag, value)) => log.push(tag, Point { step, t: event.wall_time, value }),
                None => unread += 1,
            }
        }
    }
    if unread > 0 {
        log.warnings.push(format!("{path}: numbers left out, because their names or types cannot be read: {unread}"));
    }
    log.end_file(path);
    Ok(())
}

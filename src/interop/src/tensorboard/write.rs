//! Writes an event file.

use super::event::{Event, Value};
use super::record;
use camino::{Utf8Path, Utf8PathBuf};
use prost::Message;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// Writes one event file. Events are kept until they are flushed.
///
/// A flush that fails, for instance on a full disk, can be repeated: it writes the same bytes to the same offset, so that no record is torn.
#[derive(Debug)]
pub struct EventWriter {
    path: Utf8PathBuf,
    file: File,
    /// Bytes of the file that were flushed.
    len: u64,
    pending: Vec<u8>,
}

impl EventWriter {
    /// Creates an event file in a folder, and the folder if it is missing. TensorBoard reads the files of a folder in the order of the
    /// times in their names. The time of the new file is later than those of the existing files, even if this node's clock is behind.
    ///
    /// * `now_s` — Unix seconds.
    /// * `node` — the name of the node as part of a file name.
    ///
    /// # Errors
    /// When the folder or the file cannot be created.
    pub fn create(folder: &Utf8Path, now_s: f64, node: &str) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let second = |path: &Utf8PathBuf| path.file_name()?.split('.').nth(3)?.parse::<u64>().ok();
        let newest = super::event_files(folder)?.iter().filter_map(second).max();
        let second = (now_s as u64).max(newest.map_or(0, |newest| newest.saturating_add(1)));
        let path = folder.join(format!("events.out.tfevents.{second:010}.{node}.{}.0", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        let mut writer = Self { path, file, len: 0, pending: Vec::new() };
        writer.add(now_s, 0, Event::version());
        Ok(writer)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Adds numbers, each with its tag. TensorBoard stores them as `f32`.
    pub fn scalars(&mut self, t: f64, step: u64, scalars: &[(String, f64)]) {
        let values = scalars.iter().map(|(tag, number)| Value::number(tag, *number)).collect();
        self.add(t, step, Event::of(values));
    }

    /// Adds a text in Markdown.
    pub fn text(&mut self, t: f64, step: u64, tag: &str, text: &str) {
        self.add(t, step, Event::of(vec![Value::text(tag, text)]));
    }

    /// Adds an image: its width and height, and the bytes of a PNG, JPEG or GIF file.
    pub fn image(&mut self, t: f64, step: u64, tag: &str, size: (u64, u64), file: &[u8]) {
        self.add(t, step, Event::of(vec![Value::image(tag, size, file)]));
    }

    /// Adds a restart: readers drop the earlier values from this step on, also those in earlier files of the folder.
    pub fn restart_at(&mut self, t: f64, step: u64) {
        self.add(t, step, Event::start());
    }

    fn add(&mut self, wall_time: f64, step: u64, event: Event) {
        let event = Event { wall_time, step: step as i64, ..event };
        record::append(&mut self.pending, &event.encode_to_vec());
    }

    /// Writes the pending events to the file.
    ///
    /// # Errors
    /// When writing fails. The events are kept for the next flush.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.pending, self.len)?;
        self.len += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

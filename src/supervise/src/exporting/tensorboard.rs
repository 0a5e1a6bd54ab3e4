//! TensorBoard's event files, one per attempt: metrics, the recipe as text, and samples as animated GIFs.
//!
//! If an attempt repeats steps of an earlier one, it writes an event that makes TensorBoard drop the earlier steps,
//! also those in earlier files.

use std::io;

use camino::Utf8Path;
use cluster::NodeId;
use interop::tensorboard::{EventWriter, event_files, read_files};
use rundir::{Event, EventKind, MetricSample, NodePoint, RunDir, Tail};
use video::{Cancel, Programs};

use super::Complaint;
use super::logged::{Logged, Written, node_values, step_values};
use crate::job::Job;

/// The most pixels per row of a GIF.
const GIF_WIDTH: u32 = 360;

/// The event files of a run.
pub struct TensorBoard {
    run: RunDir,
    attempt: u32,
    node: NodeId,
    /// The recipe as Markdown.
    recipe: String,
    logged: Logged,
    events: Tail<Event>,
    programs: Programs,
    file: Option<OpenFile>,
    unwritten: Complaint,
    unconverted: Complaint,
}

/// The event file of this attempt.
struct OpenFile {
    writer: EventWriter,
    last: Option<Written>,
}

impl TensorBoard {
    pub fn new(job: &Job, cancel: Cancel) -> Self {
        let run = job.run.clone();
        let mut programs = Programs::default();
        // ffmpeg gets one thread, because the ranks need the cores.
        programs.threads = 1;
        programs.cancel = cancel;
        Self {
            attempt: job.attempt.number,
            node: job.node.clone(),
            recipe: format!("```toml\n{}\n```", job.meta.recipe),
            logged: Logged::new(job),
            events: Tail::new(run.events()),
            programs,
            file: None,
            unwritten: Complaint::default(),
            unconverted: Complaint::default(),
            run,
        }
    }

    /// Writes new metrics and samples to the event file.
    pub fn look(&mut self, now_s: f64, is_end: bool) {
        let result = self.write(now_s, is_end);
        self.unwritten.log(&format!("cannot write {}, retrying", self.run.tensorboard()), result);
    }

    fn write(&mut self, now_s: f64, is_end: bool) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(OpenFile::create(&self.run.tensorboard(), now_s, &self.node, &self.recipe)?),
        };
        // Flush first: on a full disk, nothing more is read into memory.
        file.writer.flush()?;
        loop {
            let (steps, more) = self.logged.steps()?;
            steps.iter().for_each(|sample| file.sample(sample, self.attempt, &self.recipe));
            file.writer.flush()?;
            if !more {
                break;
            }
        }
        self.logged.node_points(is_end)?.iter().for_each(|point| file.node_point(point));
        file.writer.flush()?;
        for event in self.events.poll_all()?.0 {
            if let (EventKind::SampleSaved { path, .. }, true) = (&event.kind, event.attempt == self.attempt) {
                let path = if path.is_absolute() { path.clone() } else { self.run.root.join(path) };
                let converted = self.programs.gif(&path, GIF_WIDTH);
                if let Ok(gif) = &converted {
                    let tag = format!("samples/{}", path.file_stem().unwrap_or_default());
                    let size = (gif.width.into(), gif.height.into());
                    file.writer.image(event.t, event.step.unwrap_or(0), &tag, size, &gif.bytes);
                    file.writer.flush()?;
                }
                self.unconverted.log("TensorBoard lacks a sample", converted.map(|_| ()));
            }
        }
        Ok(())
    }
}

impl OpenFile {
    fn create(folder: &Utf8Path, now_s: f64, node: &NodeId, recipe: &str) -> io::Result<Self> {
        let files = if folder.exists() { event_files(folder)? } else { Vec::new() };
        let logs = files.iter().rev().filter_map(|file| read_files(std::slice::from_ref(file)).ok());
        let last = Written::last(logs);
        let mut writer = EventWriter::create(folder, now_s, &node.file_name())?;
        if files.is_empty() {
            writer.text(now_s, 0, "recipe", recipe);
        }
        Ok(Self { writer, last })
    }

    /// Adds a logged step that the files lack.
    fn sample(&mut self, sample: &MetricSample, attempt: u32, recipe: &str) {
        if Written::contains(self.last, sample, attempt) {
            return;
        }
        if self.last.is_some_and(|last| sample.step <= last.step) {
            self.writer.restart_at(sample.t, sample.step);
            if sample.step == 0 {
                self.writer.text(sample.t, 0, "recipe", recipe);
            }
        }
        self.writer.scalars(sample.t, sample.step, &step_values(sample));
        self.last = Some(Written { step: sample.step, t: sample.t });
    }

    fn node_point(&mut self, point: &NodePoint) {
        self.writer.scalars(point.t, self.last.map_or(0, |last| last.step), &node_values(point));
    }
}

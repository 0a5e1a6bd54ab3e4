//! TensorBoard's event files, one per attempt: metrics, the recipe as text, and samples as animated GIFs.
//!
//! If an attempt repeats steps of an earlier one, it writes an event that makes TensorBoard drop the earlier steps,
//! also those in earlier files.

use std::{fs, io};

use camino::Utf8Path;
use cluster::NodeId;
use interop::tensorboard::{EventWriter, event_files, read_files};
use rundir::{
    Attempt, Error, ErrorCode, Event, EventKind, Failure, MetricSample, NodePoint, Run, RunDir, Tail, read_events,
};
use video::{Cancel, Programs};

use super::Complaint;
use super::logged::{Logged, Written, node_values, step_values};
use crate::job::Job;

/// The most pixels per row of a GIF.
const GIF_WIDTH: u32 = 360;

/// The logged steps after which an export writes to the file.
const STEPS_PER_WRITE: usize = 1000;

/// Writes the event files of a run that has started into a folder, as `log.tensorboard` does while it trains: one for each attempt.
/// Returns why samples are missing. Event files that the folder has are removed.
///
/// Samples are left out if another user could have named any file as one.
///
/// # Errors
/// [`ErrorCode::RunImported`]; [`ErrorCode::NotFound`] if the run has not started; or a file cannot be read or written.
pub fn export(run: &RunDir, folder: &Utf8Path) -> Result<Vec<Failure>, Failure> {
    let what = || format!("cannot export {} to TensorBoard", run.root.file_name().unwrap_or_default());
    let meta = run.read_run()?;
    meta.refuse_if_imported(what())?;
    let recipe = recipe_text(&meta);
    let metrics = Tail::<MetricSample>::new(run.metrics()).poll_all();
    let (mut steps, _) = metrics.map_err(|source| Error::io("read", &run.metrics(), source))?;
    let (mut events, mut missing) = (read_events(run)?, Vec::new());
    events.retain(|event| matches!(event.kind, EventKind::SampleSaved { .. }));
    if !events.is_empty()
        && let Err(untrusted) = run.check_trusted("cannot add the samples")
    {
        missing.extend(events.drain(..).map(|_| untrusted.clone()));
    }
    // An attempt without a file, or without nodes, has not started.
    let numbers = run.attempt_numbers()?.into_iter().filter(|number| run.attempt_toml(*number).exists());
    let mut attempts = numbers.map(|number| run.read_attempt(number)).collect::<Result<Vec<_>, _>>()?;
    attempts.retain(|attempt| !attempt.placement.ranks.is_empty());
    if attempts.is_empty() {
        let fix = "wait until it has started: `vidtui status`";
        return Err(Failure::new(ErrorCode::NotFound, what(), "the run has not started", fix));
    }
    if folder.exists() {
        let earlier = event_files(folder).map_err(|source| Error::io("list", folder, source))?;
        earlier.iter().try_for_each(|file| fs::remove_file(file).map_err(|e| Error::io("remove", file, e)))?;
    }
    for attempt in &attempts {
        let own = steps.extract_if(.., |sample| sample.attempt == attempt.number).collect();
        let first = &attempt.placement.ranks[0].node;
        let result = OpenFile::create(folder, attempt.started_s, first, &recipe).and_then(|mut file| {
            file.attempt(run, attempt, own, &recipe)?;
            for event in events.iter().filter(|event| event.attempt == attempt.number) {
                missing.extend(file.video(run, event, &Programs::default())?.err());
            }
            Ok(())
        });
        result.map_err(|source| Error::io("write", folder, source))?;
    }
    Ok(missing)
}

/// Returns the recipe as Markdown.
fn recipe_text(meta: &Run) -> String {
    format!("```toml\n{}\n```", meta.recipe)
}

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
            recipe: recipe_text(&job.meta),
            logged: Logged::new(&job.run, &job.attempt),
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
            if event.attempt == self.attempt && matches!(event.kind, EventKind::SampleSaved { .. }) {
                let converted = file.video(&self.run, &event, &self.programs)?;
                self.unconverted.log("TensorBoard lacks a sample", converted);
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

    /// Adds all steps of an attempt, and the points of its nodes in the order of time, each at the step before it.
    fn attempt(&mut self, run: &RunDir, attempt: &Attempt, steps: Vec<MetricSample>, recipe: &str) -> io::Result<()> {
        let mut points = Logged::new(run, attempt).node_points(true)?.into_iter().peekable();
        for some in steps.chunks(STEPS_PER_WRITE) {
            for sample in some {
                while let Some(point) = points.next_if(|point| point.t < sample.t) {
                    self.node_point(&point);
                }
                self.sample(sample, attempt.number, recipe);
            }
            self.writer.flush()?;
        }
        points.for_each(|point| self.node_point(&point));
        self.writer.flush()
    }

    /// Adds the video of a saved sample as a GIF. The inner error is that of the conversion.
    fn video(&mut self, run: &RunDir, event: &Event, programs: &Programs) -> io::Result<Result<(), Failure>> {
        let EventKind::SampleSaved { path, .. } = &event.kind else { return Ok(Ok(())) };
        let path = if path.is_absolute() { path.clone() } else { run.root.join(path) };
        let gif = match programs.gif(&path, GIF_WIDTH) {
            Ok(gif) => gif,
            Err(failure) => return Ok(Err(failure)),
        };
        let tag = format!("samples/{}", path.file_stem().unwrap_or_default());
        let size = (gif.width.into(), gif.height.into());
        self.writer.image(event.t, event.step.unwrap_or(0), &tag, size, &gif.bytes);
        self.writer.flush()?;
        Ok(Ok(()))
    }
}

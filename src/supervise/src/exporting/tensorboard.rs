//! TensorBoard's event files, one per attempt: metrics, the recipe as text, and samples as animated GIFs.
//!
//! When a later attempt repeats steps, an event removes those of the attempt before, also from its file.

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use interop::tensorboard::{EventWriter, event_files, read_files};
use rundir::{
    Event, EventKind, METRICS, MetricSample, MetricSource, NodePoint, NodeSample, NodeSeries, RunDir, Tail, find_metric,
};
use video::{Cancel, Programs};

use super::Complaint;
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
    metrics: Tail<MetricSample>,
    events: Tail<Event>,
    nodes: Vec<(NodeId, Tail<NodeSample>)>,
    points: NodeSeries,
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

/// The last step in the event files.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Written {
    step: u64,
    t: f64,
}

impl TensorBoard {
    pub fn new(job: &Job, cancel: Cancel) -> Self {
        let run = job.run.clone();
        let nodes = job.attempt.placement.by_node().into_iter();
        let mut programs = Programs::default();
        // The ranks need the cores.
        programs.threads = 1;
        programs.cancel = cancel;
        Self {
            attempt: job.attempt.number,
            node: job.node.clone(),
            recipe: format!("```toml\n{}\n```", job.meta.recipe),
            metrics: Tail::new(run.metrics()),
            events: Tail::new(run.events()),
            nodes: nodes.map(|(node, _)| (node.clone(), run.tail_gpu_samples(node))).collect(),
            points: NodeSeries::default(),
            programs,
            file: None,
            unwritten: Complaint::default(),
            unconverted: Complaint::default(),
            run,
        }
    }

    /// Writes what is new.
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
            let batch = self.metrics.poll()?;
            batch.items.iter().for_each(|sample| file.sample(sample, self.attempt, &self.recipe));
            file.writer.flush()?;
            if !batch.more {
                break;
            }
        }
        for (node, tail) in &mut self.nodes {
            loop {
                let batch = tail.poll()?;
                let own = batch.items.iter().filter(|sample| sample.attempt == self.attempt);
                own.for_each(|sample| self.points.push(node, sample));
                if !batch.more {
                    break;
                }
            }
        }
        let points = if is_end { self.points.take_rest() } else { self.points.take() };
        points.iter().for_each(|point| file.node_point(point));
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
        let last = last_written(&files);
        let mut writer = EventWriter::create(folder, now_s, node.as_str())?;
        if files.is_empty() {
            writer.text(now_s, 0, "recipe", recipe);
        }
        Ok(Self { writer, last })
    }

    /// Adds a logged step. Those of earlier attempts were written by their supervisors, unless these were killed before.
    fn sample(&mut self, sample: &MetricSample, attempt: u32, recipe: &str) {
        if sample.attempt != attempt && self.last.is_some_and(|last| sample.t <= last.t) {
            return;
        }
        if self.last.is_some_and(|last| sample.step <= last.step) {
            self.writer.restart_at(sample.t, sample.step);
            if sample.step == 0 {
                self.writer.text(sample.t, 0, "recipe", recipe);
            }
        }
        self.writer.scalars(sample.t, sample.step, &scalars(sample));
        self.last = Some(Written { step: sample.step, t: sample.t });
    }

    fn node_point(&mut self, point: &NodePoint) {
        let mut scalars = Vec::new();
        for metric in METRICS {
            if let MetricSource::Nodes { column, value } = metric.source
                && let Some(spread) = value(point)
            {
                scalars.push((format!("{column}/mean"), spread.mean));
                if spread.of_several {
                    scalars.extend([(format!("{column}/min"), spread.min), (format!("{column}/max"), spread.max)]);
                }
            }
        }
        self.writer.scalars(point.t, self.last.map_or(0, |last| last.step), &scalars);
    }
}

/// Returns the metrics of a step, by their names. A `/` makes a group in TensorBoard.
fn scalars(sample: &MetricSample) -> Vec<(String, f64)> {
    let mut scalars = Vec::new();
    for metric in METRICS {
        match metric.source {
            MetricSource::Step(value, _) => scalars.extend(value(sample).map(|value| (metric.name.to_owned(), value))),
            MetricSource::PerRank(values) => {
                let ranks = values(sample).iter().enumerate();
                scalars.extend(ranks.map(|(rank, value)| (format!("{}/rank_{rank}", metric.name), *value)));
            }
            MetricSource::Nodes { .. } => {}
        }
    }
    scalars
}

/// Returns the last step that is in the event files. The files are the only record, so the
/// result is right even after a supervisor was killed.
fn last_written(files: &[Utf8PathBuf]) -> Option<Written> {
    let is_of_step = |tag: &str| find_metric(tag).is_some_and(|(_, m)| matches!(m.source, MetricSource::Step(..)));
    files.iter().rev().find_map(|file| {
        let log = read_files(std::slice::from_ref(file)).ok()?;
        let last = log.series().filter(|(tag, _)| is_of_step(tag)).filter_map(|(_, points)| points.last());
        last.max_by(|a, b| a.t.total_cmp(&b.t)).map(|last| Written { step: last.step, t: last.t })
    })
}

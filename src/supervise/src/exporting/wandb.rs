//! Offline runs of W&B, one per attempt: metrics, the recipe as config, and the end. All attempts have the id of the
//! run, so that W&B joins them into one run.

use std::collections::VecDeque;
use std::io;

use interop::wandb::{NewRun, RunWriter, offline_files, read_file};
use rundir::{ExitReason, MetricSample, NodePoint, RunDir};

use super::Complaint;
use super::logged::{Logged, Written, node_values, step_values};
use crate::job::Job;

/// The project of the runs, unless `wandb sync --project` names another.
const PROJECT: &str = "vidtui";

/// The offline run of this attempt.
pub struct Wandb {
    run: RunDir,
    attempt: u32,
    node: cluster::NodeId,
    id: String,
    name: String,
    started_s: f64,
    /// The sections of the recipe as JSON.
    config: Vec<(String, String)>,
    logged: Logged,
    file: Option<OpenFile>,
    unwritten: Complaint,
}

struct OpenFile {
    writer: RunWriter,
    last: Option<Written>,
    /// Points of the nodes that are not written yet, by time. The next step contains the newest one before it.
    points: VecDeque<NodePoint>,
}

impl Wandb {
    pub fn new(job: &Job) -> Self {
        // Every TOML value has a JSON form.
        let json = |value| serde_json::to_string(value).unwrap_or_default();
        Self {
            run: job.run.clone(),
            attempt: job.attempt.number,
            node: job.node.clone(),
            id: job.id.to_string(),
            name: job.meta.name.clone(),
            started_s: job.attempt.started_s,
            config: job.meta.recipe.iter().map(|(key, value)| (key.clone(), json(value))).collect(),
            logged: Logged::new(&job.run, &job.attempt),
            file: None,
            unwritten: Complaint::default(),
        }
    }

    /// Writes new metrics to the offline run.
    pub fn look(&mut self, now_s: f64, is_end: bool) {
        let result = self.write(now_s, is_end);
        self.unwritten.log(&format!("cannot write {}, retrying", self.run.wandb()), result);
    }

    fn write(&mut self, now_s: f64, is_end: bool) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(self.create(now_s)?);
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        // Flush first: on a full disk, nothing more is read into memory.
        file.writer.flush()?;
        // If the file of a node cannot be read, write the steps anyway and return the error at the end.
        let points = self.logged.node_points(is_end).map(|points| file.points.extend(points));
        loop {
            let (steps, more) = self.logged.steps()?;
            steps.iter().for_each(|sample| file.sample(sample, self.attempt));
            file.writer.flush()?;
            if !more {
                break;
            }
        }
        if is_end {
            let exit = self.run.read_exit(&self.node, self.attempt).ok().flatten();
            let is_good = exit.is_some_and(|exit| matches!(exit.reason, ExitReason::Finished | ExitReason::Stopped));
            file.writer.end(now_s, u8::from(!is_good));
            file.writer.flush()?;
        }
        points
    }

    fn create(&self, now_s: f64) -> io::Result<OpenFile> {
        let files = offline_files(&self.run.wandb())?;
        let last = Written::last(files.iter().rev().filter_map(|file| read_file(file).ok()));
        let run = NewRun {
            id: &self.id,
            name: &self.name,
            project: PROJECT,
            node: self.node.as_str(),
            started_s: self.started_s,
            config: &self.config,
            is_resumed: !files.is_empty(),
        };
        let writer = RunWriter::create(&self.run.wandb(), now_s, &run)?;
        Ok(OpenFile { writer, last, points: VecDeque::new() })
    }
}

impl OpenFile {
    /// Adds a logged step that the files lack, with the newest point of the nodes before it, because the x axis
    /// of W&B is the step.
    fn sample(&mut self, sample: &MetricSample, attempt: u32) {
        if Written::contains(self.last, sample, attempt) {
            return;
        }
        let mut values = step_values(sample);
        let earlier = self.points.partition_point(|point| point.t <= sample.t);
        values.extend(self.points.drain(..earlier).next_back().iter().flat_map(node_values));
        self.writer.history(sample.t, sample.step, &values);
        self.last = Some(Written { step: sample.step, t: sample.t });
    }
}

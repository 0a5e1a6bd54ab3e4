//! A file for node_exporter's textfile collector: `vidtui-<run>.prom`, replaced by renaming.
//!
//! Source of the format: prometheus.io/docs/instrumenting/exposition_formats.

use std::collections::BTreeMap;
use std::fmt::Write;

use camino::Utf8PathBuf;
use cluster::{NodeId, Reading};
use rundir::{Attempt, Error, ExitFile, MetricSample, NodeSample, Run, RunDir, Tail, write_atomic};
use runstate::{Liveness, NewestCache, RunFacts, RunState, derive};

use super::Complaint;
use crate::job::Job;

/// The interval at which the file is replaced. Prometheus reads it every 15 s or less often.
const EVERY_S: f64 = 10.0;

/// The file of a run.
pub struct Prometheus {
    run: RunDir,
    meta: Run,
    attempt: Attempt,
    node: NodeId,
    path: Utf8PathBuf,
    /// The labels of every value: run and recipe.
    labels: String,
    newest: NewestCache,
    nodes: Vec<(NodeId, Tail<NodeSample>, Option<NodeSample>)>,
    written_s: f64,
    unwritten: Complaint,
}

impl Prometheus {
    pub fn new(job: &Job) -> Self {
        let nodes = job.attempt.placement.by_node().into_iter();
        Self {
            path: job.recipe.log.prometheus.join(format!("vidtui-{}.prom", job.id)),
            labels: format!("run={},recipe={}", quoted(job.id.as_str()), quoted(&job.recipe.name)),
            nodes: nodes.map(|(node, _)| (node.clone(), job.run.tail_gpu_samples(node), None)).collect(),
            node: job.node.clone(),
            run: job.run.clone(),
            meta: job.meta.clone(),
            attempt: job.attempt.clone(),
            newest: NewestCache::default(),
            written_s: f64::NEG_INFINITY,
            unwritten: Complaint::default(),
        }
    }

    /// Replaces the file if it is old, or if the attempt ends.
    pub fn look(&mut self, now_s: f64, is_end: bool) {
        if !is_end && now_s - self.written_s < EVERY_S {
            return;
        }
        self.written_s = now_s;
        let text = self.text(now_s, is_end);
        let written = text.and_then(|text| write_atomic(&self.path, text.as_bytes()));
        self.unwritten.log("cannot write for Prometheus, retrying", written);
    }

    fn text(&mut self, now_s: f64, is_end: bool) -> Result<String, Error> {
        let mut facts = RunFacts::of_run(&self.meta, Some(self.attempt.clone()));
        // This process is part of the run.
        facts.alive = Liveness::Alive;
        facts.stopping = self.run.stop_request().is_some();
        facts.see_newest(self.newest.newest(&self.run, self.nodes.iter().map(|(node, ..)| node))?);
        for (node, tail, last) in &mut self.nodes {
            facts.exits.extend(self.run.read_exit(node, self.attempt.number)?);
            loop {
                let batch = tail.poll().map_err(|error| Error::io("read", tail.path(), error))?;
                let newest = batch.items.into_iter().rfind(|sample| sample.attempt == self.attempt.number);
                *last = newest.or(last.take());
                if !batch.more {
                    break;
                }
            }
        }
        if is_end {
            assume_ends(&mut facts.exits, &self.node, self.nodes.iter().map(|(node, ..)| node));
        }
        let state = derive(&facts, now_s);
        let mut page = Page { text: String::new(), labels: &self.labels };
        page.state(&state);
        let own = |sample: &&MetricSample| sample.attempt == self.attempt.number;
        page.one("steps", "Steps of the run.", facts.steps_total as f64);
        if let Some(sample) = facts.newest.metrics.iter().rfind(own) {
            page.step(sample, now_s);
        }
        // After the end of the attempt, other programs may use the GPUs.
        if !is_end {
            page.gpus(self.nodes.iter().filter_map(|(node, _, last)| Some((node, last.as_ref()?))));
        }
        Ok(page.text)
    }
}

/// Adds exit files for nodes that have not written theirs yet. Assumes that they end as this node did.
fn assume_ends<'n>(exits: &mut Vec<ExitFile>, this: &NodeId, nodes: impl Iterator<Item = &'n NodeId>) {
    let Some(own) = exits.iter().find(|exit| exit.node == *this).cloned() else { return };
    for node in nodes {
        if !exits.iter().any(|exit| exit.node == *node) {
            exits.push(ExitFile { node: node.clone(), ..own.clone() });
        }
    }
}

/// The file that is being written.
struct Page<'a> {
    text: String,
    labels: &'a str,
}

impl Page<'_> {
    /// Adds the head of a metric. All metrics are gauges: they may go down after a resume.
    fn head(&mut self, name: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = write!(self.text, "# HELP vidtui_{name} {help}\n# TYPE vidtui_{name} gauge\n");
    }

    fn value(&mut self, name: &str, more_labels: &str, value: f64) {
        let value = match value {
            value if value == f64::INFINITY => "+Inf".into(),
            value if value == f64::NEG_INFINITY => "-Inf".into(),
            value => value.to_string(),
        };
        let _ = writeln!(self.text, "vidtui_{name}{{{}{more_labels}}} {value}", self.labels);
    }

    fn one(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help);
        self.value(name, "", value);
    }

    /// Adds one value for each state, which is 1 for the current one.
    fn state(&mut self, state: &RunState) {
        self.head("run_state", "1 for the state of the run.");
        let current = state_name(state);
        for name in STATES {
            self.value("run_state", &format!(",state={}", quoted(name)), if name == current { 1.0 } else { 0.0 });
        }
    }

    fn step(&mut self, sample: &MetricSample, now_s: f64) {
        self.one("step", "The last logged step.", sample.step as f64);
        self.one("last_step_timestamp_seconds", "When the last step was logged, Unix seconds.", sample.t);
        self.one("last_step_age_seconds", "Seconds since the last step when this file was written.", now_s - sample.t);
        let metrics = [
            ("loss", "loss", "Loss of the last step; NaN if it was not finite."),
            ("step_seconds", "step_s", "Seconds of the last step."),
            ("tokens_per_second", "tokens_per_s", "Tokens per second, all ranks together."),
            ("mfu_ratio", "mfu", "Model FLOP utilization of the last step."),
        ];
        for (name, metric, help) in metrics {
            if let Some((_, metric)) = rundir::find_metric(metric)
                && let rundir::MetricSource::Step(value, _) = metric.source
                && let Some(value) = value(sample)
            {
                self.one(name, help, value);
            }
        }
    }

    fn gpus<'s>(&mut self, nodes: impl Iterator<Item = (&'s NodeId, &'s NodeSample)>) {
        let mut columns: BTreeMap<(&str, &str), Vec<(String, f64)>> = BTreeMap::new();
        for (node, sample) in nodes {
            let gpus = &sample.gpus;
            for (at, index) in gpus.index.iter().enumerate().filter(|(at, _)| gpus.is_used(*at)) {
                let memory = gpus.mem_used_mib.get(at).and_then(Reading::value);
                let utilization = gpus.util_pct.get(at).and_then(Reading::value);
                let readings = [
                    (("gpu_power_watts", "Power of a GPU."), gpus.power_w.get(at).and_then(Reading::value)),
                    (("gpu_memory_used_bytes", "Memory of a GPU in use."), memory.map(|mib| mib as f64 * MIB)),
                    (
                        ("gpu_utilization_ratio", "Share of time in which a kernel ran."),
                        utilization.map(|pct| pct / 100.0),
                    ),
                ];
                for (name, value) in readings {
                    let labels = format!(",node={},gpu=\"{index}\"", quoted(node.as_str()));
                    columns.entry(name).or_default().extend(value.map(|value| (labels, value)));
                }
            }
        }
        for ((name, help), values) in columns.into_iter().filter(|(_, values)| !values.is_empty()) {
            self.head(name, help);
            values.iter().for_each(|(labels, value)| self.value(name, labels, *value));
        }
    }
}

const MIB: f64 = (1u64 << 20) as f64;

/// The names of all states, in the order in which a run passes them.
const STATES: [&str; 12] = [
    "new", "queued", "starting", "running", "saving", "stopping", "stalled", "finished", "stopped", "failed",
    "crashed", "unknown",
];

fn state_name(state: &RunState) -> &'static str {
    match state {
        RunState::New => "new",
        RunState::Queued => "queued",
        RunState::Starting => "starting",
        RunState::Running => "running",
        RunState::Saving => "saving",
        RunState::Stopping => "stopping",
        RunState::Stalled { .. } => "stalled",
        RunState::Finished => "finished",
        RunState::Stopped => "stopped",
        RunState::Failed(_) => "failed",
        RunState::Crashed(_) => "crashed",
        RunState::Unknown => "unknown",
    }
}

/// Returns the value of a label in quotes.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

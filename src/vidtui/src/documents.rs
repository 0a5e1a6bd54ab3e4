//! The JSON documents of `--json`. Scripts depend on the field names, so these types are independent of internal types.
//! `docs/json.md` describes them.

use crate::commands::alerts::state_word;
use crate::workspace::Wait;
use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use cluster::slurm::JobStatus;
use health::Finding;
use recipe::Key;
use rundir::{
    AlertState, Attempt, CheckpointEntry, EncodeStages, Failure, GpuUsage, ItemCounts, RunId, SamplingProgress,
};
use runstate::{EncodeStageProgress, Epochs, Goodput, RunState, RunSummary};
use serde::Serialize;
use ui::Difference;
use ui::run_state::StateKind;

/// A run, in `runs`, `status` and `stop --wait`.
#[derive(Debug, Serialize)]
pub struct RunDocument {
    run: String,
    name: String,
    dir: Utf8PathBuf,
    state: &'static str,
    /// Why the run failed or crashed.
    failure: Option<Failure>,
    /// The nodes that ended because of that failure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    consequences: Vec<String>,
    /// The task: train, encode or sample.
    task: &'static str,
    step: Option<u64>,
    steps_total: Option<u64>,
    /// Epochs of training, if the run counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    epochs: Option<Epochs>,
    /// The clips and captions of an encode.
    #[serde(skip_serializing_if = "Option::is_none")]
    items: Option<ItemsDocument>,
    /// The videos of a run that samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling: Option<SamplingProgress>,
    /// The steps that the trainer skipped, because the loss or the gradient was not finite.
    skipped_steps: u64,
    loss: Option<f64>,
    step_s: Option<f64>,
    eta_s: Option<f64>,
    curriculum: Option<Utf8PathBuf>,
    stage: Option<String>,
    parent: Option<ParentDocument>,
    created_s: f64,
    /// The note of its users.
    note: Option<String>,
    /// The tags in the note.
    tags: Vec<String>,
    attempt: Option<AttemptDocument>,
    checkpoint: Option<CheckpointDocument>,
    /// The Slurm job of the run.
    job: Option<JobDocument>,
    /// The findings, the most urgent first. Only in `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    findings: Option<Vec<FindingDocument>>,
    /// How the time of a training run was spent. Only in `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    goodput: Option<GoodputDocument>,
    /// GPU hours, if its nodes have GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_hours: Option<f64>,
    /// The energy of its GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    energy_kwh: Option<f64>,
}

/// Several runs, in `compare`.
#[derive(Debug, Serialize)]
pub struct ComparisonDocument {
    runs: Vec<RunDocument>,
    differences: Vec<DifferenceDocument>,
}

/// A key in which recipes differ.
#[derive(Debug, Serialize)]
struct DifferenceDocument {
    key: String,
    /// The value in the recipe of each run, as text.
    values: Vec<Option<String>>,
}

impl ComparisonDocument {
    /// Describes the runs and the differences between their recipes.
    pub fn new(runs: &[RunSummary], differences: &[Difference]) -> Self {
        let differences = differences.iter().cloned();
        Self {
            runs: runs.iter().map(RunDocument::new).collect(),
            differences: differences.map(|Difference { key, values }| DifferenceDocument { key, values }).collect(),
        }
    }
}

/// A key of recipes, in `recipe keys`.
#[derive(Debug, Serialize)]
pub struct KeyDocument {
    key: &'static str,
    meaning: &'static str,
    /// The type in TOML.
    r#type: &'static str,
    /// The accepted values in words.
    values: String,
    /// The words that the value may be.
    words: &'static [&'static str],
    default: Option<serde_json::Value>,
    /// The key that can be set instead of this one.
    alternative: Option<&'static str>,
    jobs: Vec<&'static str>,
    /// The jobs whose recipes must set the key.
    needed_by: Vec<&'static str>,
    /// The effect of another value on a run that continues, as a word.
    on_resume: &'static str,
    /// The effect in words.
    effect: &'static str,
}

impl KeyDocument {
    /// Describes a key.
    pub fn new(key: &Key) -> Self {
        let needed = key.jobs.iter().filter(|job| key.is_needed(**job));
        Self {
            key: key.path,
            meaning: key.doc,
            r#type: key.kind.toml_type(),
            values: key.kind.in_words(),
            words: key.kind.words(),
            default: key.default_value().map(|value| serde_json::json!(value)),
            alternative: key.alternative,
            jobs: key.jobs.iter().map(|job| job.name()).collect(),
            needed_by: needed.map(|job| job.name()).collect(),
            on_resume: key.on_resume.name(),
            effect: key.on_resume.in_words(),
        }
    }
}

/// How the wall time of a training run, or of all runs of a curriculum, was spent.
#[derive(Debug, Serialize)]
pub struct GoodputDocument {
    /// The share of the wall time in steps that counted.
    share: Option<f64>,
    wall_s: f64,
    counted_s: f64,
    starting_s: f64,
    repeated_s: f64,
    checkpoints_s: f64,
    samples_s: f64,
    stalled_s: f64,
    unlogged_s: f64,
    down: Vec<DownDocument>,
}

/// Time between attempts.
#[derive(Debug, Serialize)]
struct DownDocument {
    /// How the attempts before these times ended: `stopped`, or the code of a failure.
    cause: String,
    times: u32,
    seconds: f64,
}

/// The items of an encode.
#[derive(Debug, Serialize)]
struct ItemsDocument {
    #[serde(flatten)]
    counts: ItemCounts,
    per_s: Option<f64>,
    /// The progress of each stage: what is done in this attempt, and what is left.
    stages: Option<EncodeStages<EncodeStageProgress>>,
}

/// A finding about a run.
#[derive(Debug, Serialize)]
pub struct FindingDocument {
    rule: health::Rule,
    urgency: health::Urgency,
    /// The subject as text: `GPU 2 of node03`.
    about: String,
    since_s: Option<f64>,
    saw: String,
    fix: String,
}

/// An alert, in `alerts`.
#[derive(Debug, Serialize)]
pub struct AlertDocument {
    id: String,
    run: String,
    attempt: u32,
    kind: &'static str,
    /// The node, the step or the file that the alert is about; empty for the whole run.
    subject: String,
    step: Option<u64>,
    raised_s: f64,
    since_s: f64,
    what: String,
    why: String,
    fix: String,
    state: &'static str,
    snoozed_until_s: Option<f64>,
    not_sent: Vec<NotSentDocument>,
}

/// A channel that an alert did not reach.
#[derive(Debug, Serialize)]
struct NotSentDocument {
    channel: String,
    why: String,
}

impl AlertDocument {
    /// Makes the document of an alert.
    pub fn new(state: &AlertState, now_s: f64) -> Self {
        let alert = state.alert.clone();
        let not_sent = state.not_sent.iter();
        Self {
            id: alert.id,
            run: alert.run.to_string(),
            attempt: alert.attempt,
            kind: alert.kind.name(),
            subject: alert.subject,
            step: alert.step,
            raised_s: alert.t,
            since_s: alert.since_s,
            what: alert.what,
            why: alert.why,
            fix: alert.fix,
            state: state_word(state, now_s),
            snoozed_until_s: state.snoozed_until_s,
            not_sent: not_sent.map(|it| NotSentDocument { channel: it.channel.clone(), why: it.why.clone() }).collect(),
        }
    }
}

/// The last known state of a Slurm job.
#[derive(Debug, Serialize)]
struct JobDocument {
    id: u64,
    /// Slurm's name of the state.
    state: Option<String>,
    /// Slurm's reason for waiting or for the end.
    reason: Option<String>,
    /// The start time, or the start time that Slurm expects.
    start_s: Option<f64>,
    /// The nodes, in the notation of Slurm.
    nodes: Option<String>,
    cancelled_by: Option<String>,
    /// The time since which Slurm has not answered.
    no_reply_since_s: Option<f64>,
    /// The state as a sentence.
    text: String,
}

/// The run that the weights come from.
#[derive(Debug, Serialize)]
struct ParentDocument {
    run: String,
    step: u64,
}

/// An attempt of a run.
#[derive(Debug, Serialize)]
pub struct AttemptDocument {
    number: u32,
    started_s: f64,
    start_step: u64,
    ranks: usize,
    nodes: Vec<String>,
}

/// A checkpoint, complete or not.
#[derive(Debug, Serialize)]
pub struct CheckpointDocument {
    step: u64,
    dir: Utf8PathBuf,
    complete: bool,
    /// Whether the files can be read at present. If not, this can still be the newest complete checkpoint.
    readable: bool,
    bytes: Option<u64>,
    saved_s: Option<f64>,
    /// Whether the checkpoint is kept when old checkpoints are removed.
    pinned: bool,
    /// Why the checkpoint cannot be used.
    why: Option<String>,
}

/// Returns GPU hours and energy in kWh, to a thousandth.
pub fn usage_numbers(usage: Option<GpuUsage>) -> (Option<f64>, Option<f64>) {
    let thousandth = |number: f64| (number * 1000.0).round() / 1000.0;
    (usage.map(|usage| thousandth(usage.gpu_hours())), usage.and_then(|usage| usage.kwh()).map(thousandth))
}

impl RunDocument {
    /// Describes a run.
    pub fn new(summary: &RunSummary) -> Self {
        let (run, note) = (&summary.run, rundir::read_note(&summary.dir));
        Self {
            run: run.id.to_string(),
            name: run.name.clone(),
            dir: summary.dir.root.clone(),
            state: StateKind::of(&summary.state).word(),
            failure: summary.failure().cloned(),
            consequences: summary.consequences.iter().map(ToString::to_string).collect(),
            task: run.task().name(),
            items: summary.items().map(|counts| ItemsDocument {
                counts,
                per_s: summary.items_per_s,
                stages: summary.stages,
            }),
            sampling: summary.videos(),
            step: (!summary.is_stepless() || summary.state == RunState::Finished).then_some(summary.step),
            steps_total: Some(summary.steps_total).filter(|total| *total > 0),
            epochs: summary.epochs(),
            skipped_steps: summary.skipped_steps,
            loss: summary.with_loss.as_ref().and_then(|sample| sample.loss),
            step_s: summary.last.as_ref().map(|sample| sample.step_s),
            eta_s: summary.eta_s,
            curriculum: run.curriculum.clone(),
            stage: run.stage.clone(),
            parent: run.lineage.as_ref().map(|l| ParentDocument { run: l.run.to_string(), step: l.step }),
            created_s: run.created_s,
            tags: note.iter().flat_map(|note| rundir::tags(note)).map(ToOwned::to_owned).collect(),
            note,
            attempt: summary.attempt.as_ref().map(AttemptDocument::new),
            job: summary.job.as_ref().map(JobDocument::new),
            checkpoint: summary.checkpoint.clone().map(|c| CheckpointDocument::new(&CheckpointEntry::Complete(c))),
            findings: None,
            goodput: None,
            gpu_hours: None,
            energy_kwh: None,
        }
    }

    /// Adds the findings.
    pub fn with_findings(self, findings: &[Finding]) -> Self {
        Self { findings: Some(findings.iter().map(FindingDocument::new).collect()), ..self }
    }

    /// Adds the GPU hours and the energy.
    pub fn with_usage(self, usage: Option<GpuUsage>) -> Self {
        let (gpu_hours, energy_kwh) = usage_numbers(usage);
        Self { gpu_hours, energy_kwh, ..self }
    }

    /// Adds the goodput.
    pub fn with_goodput(self, goodput: Option<&Goodput>) -> Self {
        Self { goodput: goodput.map(GoodputDocument::new), ..self }
    }
}

impl GoodputDocument {
    /// Describes a goodput.
    pub fn new(goodput: &Goodput) -> Self {
        let down = goodput.down.iter().map(|down| DownDocument {
            cause: down.cause.to_string(),
            times: down.times,
            seconds: down.seconds,
        });
        Self {
            share: goodput.share(),
            wall_s: goodput.wall_s,
            counted_s: goodput.counted_s,
            starting_s: goodput.starting_s,
            repeated_s: goodput.repeated_s,
            checkpoints_s: goodput.checkpoints_s,
            samples_s: goodput.samples_s,
            stalled_s: goodput.stalled_s,
            unlogged_s: goodput.unlogged_s,
            down: down.collect(),
        }
    }
}

impl AttemptDocument {
    /// Describes an attempt.
    pub fn new(attempt: &Attempt) -> Self {
        Self {
            number: attempt.number,
            started_s: attempt.started_s,
            start_step: attempt.start_step,
            ranks: attempt.mesh.world(),
            nodes: attempt.placement.by_node().into_iter().map(|(node, _)| node.to_string()).collect(),
        }
    }
}

impl FindingDocument {
    /// Describes a finding.
    pub fn new(finding: &Finding) -> Self {
        Self {
            rule: finding.rule,
            urgency: finding.urgency,
            about: finding.about.to_string(),
            since_s: finding.since_s,
            saw: finding.saw.clone(),
            fix: finding.fix.clone(),
        }
    }
}

impl JobDocument {
    fn new(status: &JobStatus) -> Self {
        let job = status.job();
        Self {
            id: status.id,
            state: job.map(|job| job.state.to_string()),
            reason: job.and_then(|job| job.reason.clone()),
            start_s: job.and_then(|job| job.start.as_ref()?.unix_s()),
            nodes: job.and_then(|job| job.node_list.clone()),
            cancelled_by: status.cancelled_by.clone(),
            no_reply_since_s: status.no_reply.as_ref().map(|no_reply| no_reply.since_s),
            text: ui::slurm::sentence(status, rundir::now_s()),
        }
    }
}

impl CheckpointDocument {
    /// Describes a checkpoint.
    pub fn new(entry: &CheckpointEntry) -> Self {
        match entry {
            CheckpointEntry::Complete(summary) => Self {
                step: summary.step,
                dir: summary.dir.clone(),
                complete: true,
                readable: true,
                bytes: Some(summary.bytes),
                saved_s: Some(summary.saved_s),
                pinned: summary.is_pinned,
                why: None,
            },
            CheckpointEntry::Incomplete { step, dir, why } | CheckpointEntry::Unreadable { step, dir, why } => Self {
                step: *step,
                dir: dir.clone(),
                complete: false,
                readable: matches!(entry, CheckpointEntry::Incomplete { .. }),
                bytes: None,
                saved_s: None,
                pinned: false,
                why: Some(why.clone()),
            },
        }
    }
}

/// What an entry of the queue waits for: another entry, or a run on some of its nodes.
#[derive(Debug, Serialize)]
pub struct WaitDocument<'a> {
    pub entry: Option<u32>,
    pub run: Option<&'a str>,
    pub nodes: &'a [NodeId],
}

impl<'a> WaitDocument<'a> {
    /// Returns the document of a wait.
    pub fn of(wait: &'a Wait) -> Self {
        match wait {
            Wait::Turn(id) | Wait::Weights(id) => Self { entry: Some(*id), run: None, nodes: &[] },
            Wait::Nodes { run, nodes } => Self { entry: None, run: Some(run), nodes },
        }
    }
}

/// An entry of the queue.
#[derive(Debug, Serialize)]
pub struct QueueEntryDocument<'a> {
    pub id: u32,
    /// `waiting`, `held`, `failed`, or the state of its run.
    pub state: &'static str,
    pub run: Option<&'a RunId>,
    pub failure: Option<&'a Failure>,
    pub after: Option<u32>,
    pub waits_for: Option<WaitDocument<'a>>,
    pub launch: &'a [String],
    pub folder: &'a Utf8Path,
    pub added_s: f64,
    pub by: &'a str,
    /// The owner of its file, if that is another user.
    pub owner: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rundir::{Alert, NotSent, SCHEMA};
    use runstate::{Down, EndCause};

    /// Collects the names of the fields of a document.
    fn names(value: &serde_json::Value, into: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                into.push(name.clone());
                names(value, into);
            }),
            serde_json::Value::Array(values) => values.iter().for_each(|value| names(value, into)),
            _ => {}
        }
    }

    #[test]
    fn every_field_of_an_entry_of_the_queue_is_in_the_documentation() {
        let document = QueueEntryDocument {
            id: 1,
            state: "waiting",
            run: None,
            failure: None,
            after: None,
            waits_for: Some(WaitDocument { entry: None, run: Some("r"), nodes: &[] }),
            launch: &[],
            folder: Utf8Path::new("/"),
            added_s: 0.0,
            by: "ada@ml-1",
            owner: Some("bob"),
        };
        let mut found = Vec::new();
        names(&serde_json::to_value(&document).unwrap(), &mut found);
        let (_, page) = include_str!("../../../docs/json.md").split_once("## The queue").unwrap();
        let missing: Vec<_> = found.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/json.md lacks {missing:?}");
    }

    #[test]
    fn every_field_of_a_run_is_in_the_documentation() {
        let stages = EncodeStages::<EncodeStageProgress>::default();
        let document = RunDocument {
            run: "r".into(),
            name: "r".into(),
            dir: "runs/r".into(),
            state: "running",
            failure: None,
            consequences: vec!["node01".into()],
            task: "encode",
            step: Some(1),
            steps_total: Some(2),
            epochs: Some(Epochs { done: 0.5, total: 1.0 }),
            items: Some(ItemsDocument { counts: ItemCounts::default(), per_s: None, stages: Some(stages) }),
            sampling: Some(SamplingProgress::default()),
            skipped_steps: 1,
            loss: None,
            step_s: None,
            eta_s: None,
            curriculum: None,
            stage: None,
            parent: Some(ParentDocument { run: "r".into(), step: 1 }),
            created_s: 0.0,
            note: Some("#baseline".into()),
            tags: vec!["baseline".into()],
            attempt: Some(AttemptDocument { number: 1, started_s: 0.0, start_step: 0, ranks: 1, nodes: vec![] }),
            checkpoint: Some(CheckpointDocument::new(&CheckpointEntry::Incomplete {
                step: 1,
                dir: "d".into(),
                why: "w".into(),
            })),
            job: Some(JobDocument::new(&JobStatus::unknown(42))),
            findings: Some(vec![]),
            goodput: Some(GoodputDocument::new(&Goodput {
                down: vec![Down { cause: EndCause::Stopped, times: 1, seconds: 1.0 }],
                ..Goodput::default()
            })),
            gpu_hours: Some(1.0),
            energy_kwh: Some(0.7),
        };
        let raised = Alert { step: Some(1), ..alerts::example() };
        let not_sent = NotSent { v: SCHEMA, t: 1.0, id: raised.id.clone(), channel: "slack".into(), why: "500".into() };
        let state = AlertState {
            alert: raised,
            not_sent: vec![not_sent],
            acknowledged: false,
            snoozed_until_s: Some(1.0),
            mutes: vec![],
        };
        let mut found = Vec::new();
        names(&serde_json::to_value(&document).unwrap(), &mut found);
        names(&serde_json::to_value(AlertDocument::new(&state, 1.0)).unwrap(), &mut found);
        let page = include_str!("../../../docs/json.md");
        let missing: Vec<_> = found.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/json.md lacks {missing:?}");
        assert!(found.len() > 50, "{found:?}");
    }
}

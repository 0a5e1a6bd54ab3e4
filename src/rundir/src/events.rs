//! One line of an `events.jsonl`: an event of a run, for users and for deriving the state.

use crate::lines::{LogLine, json_line};
use crate::{Cause, Error, ErrorCode, Failure, RequestSource, RunDir, RunId, SCHEMA, Tail};
use camino::Utf8PathBuf;
use cluster::NodeId;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    /// [`SCHEMA`].
    pub v: u32,
    /// When the event happened, Unix seconds.
    pub t: f64,
    /// The attempt during which the event happened.
    pub attempt: u32,
    /// The rank that recorded the event; `None` if a supervisor did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// The node whose supervisor recorded the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The last finished step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The kind of the event.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The kind of an event. Some fields have other names on disk, because they would clash with `rank` and `step` of the
/// event itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// All ranks are connected and training begins.
    Started {
        /// The number of ranks.
        world: usize,
    },
    /// A checkpoint was loaded.
    Resumed {
        /// The step of the checkpoint.
        from_step: u64,
        /// The run that saved it.
        of_run: RunId,
    },
    /// The checkpoint to load is damaged, and the one before it is loaded instead.
    CheckpointDamaged {
        /// The step of the damaged checkpoint.
        #[serde(rename = "damaged_step")]
        step: u64,
        /// What is wrong with the checkpoint.
        why: String,
        /// The step that is loaded instead.
        back_to: u64,
    },
    /// Weights were loaded for a new stage.
    WeightsLoaded {
        /// The step directory.
        from: Utf8PathBuf,
    },
    /// Training state was restored from a checkpoint, all of it or a part.
    Restored {
        /// The restored state, as text.
        restored: String,
        /// The state that restarts, as text; empty if everything was restored.
        #[serde(rename = "anew")]
        not_restored: String,
        /// Seconds that reading and verifying the checkpoint took.
        seconds: f64,
    },
    /// A checkpoint was requested in addition to those at the interval.
    #[serde(rename = "save_asked")]
    SaveRequested {
        /// The origin of the request.
        #[serde(default)]
        source: RequestSource,
        /// The origin of the request, as text.
        why: String,
    },
    /// Saving began.
    CheckpointStarted,
    /// A checkpoint is complete.
    CheckpointSaved {
        /// Its step directory.
        path: Utf8PathBuf,
        /// Its size in bytes.
        bytes: u64,
        /// Seconds that saving took.
        seconds: f64,
    },
    /// A checkpoint could not be saved. Training continues, and earlier checkpoints are untouched.
    CheckpointFailed {
        /// The reason.
        failure: Failure,
    },
    /// An old checkpoint was removed, because only the newest few are kept.
    CheckpointPruned {
        /// The step of the removed checkpoint.
        #[serde(rename = "pruned_step")]
        step: u64,
    },
    /// A sample is complete: its video and its sidecar.
    SampleSaved {
        /// The video.
        path: Utf8PathBuf,
        /// Seconds that sampling, decoding and writing took.
        seconds: f64,
    },
    /// Samples could not be made. Training continues.
    SampleFailed {
        /// The reason.
        failure: Failure,
    },
    /// The validation loss was measured.
    Validated {
        /// The mean over the noise levels.
        loss: f64,
        /// The loss at each level, the lowest first.
        by_level: Vec<f64>,
    },
    /// A clip or a caption could not be encoded. The encode continues without it.
    ItemFailed {
        /// The id of the clip, or the key of the text.
        item: String,
        /// The reason.
        failure: Failure,
    },
    /// A sample was requested in addition to those at the interval.
    SampleRequested,
    /// Every rank wrote a trace of some steps.
    Profiled {
        /// The trace of the rank that recorded the event.
        path: Utf8PathBuf,
        /// The number of steps in the trace.
        steps: u64,
    },
    /// The lines with the steps were recognized in the log of a command (`command.adapter = "auto"`).
    LogRecognized {
        /// What they are: `lines of torchtitan`.
        format: String,
        /// The values that they have.
        metrics: Vec<String>,
    },
    /// The log of a command has no lines with steps so far.
    LogNotRecognized {
        /// What was read, and what to do.
        why: String,
    },
    /// An evaluation began. Training pauses until it ends.
    EvaluationStarted,
    /// The evaluation ended.
    EvaluationEnded,
    /// The loss or the gradient was not finite.
    LossNotFinite,
    /// The loss was far above the losses of the steps before.
    LossSpike {
        /// The loss of this step.
        loss: f64,
        /// The median loss of the steps before.
        usual: f64,
    },
    /// The optimizer skipped a step, because the loss or the gradient was not finite.
    StepSkipped {
        /// The first of the clips whose latents or texts have values that are not finite; if there are none, of all clips of the step.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        clips: Vec<String>,
        /// The number of further such clips.
        #[serde(default, skip_serializing_if = "is_zero")]
        more_clips: usize,
        /// Whether the clips have values that are not finite.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        in_data: bool,
    },
    /// The run will stop at the end of this step.
    Stopping {
        /// The origin of the request.
        #[serde(default)]
        source: RequestSource,
        /// The origin of the request, as text.
        why: String,
    },
    /// The run saved and stopped.
    Stopped {
        /// The origin of the request.
        #[serde(default)]
        source: RequestSource,
        /// The origin of the request, as text.
        why: String,
    },
    /// All steps are done.
    Finished,
    /// An attempt failed, and the healer will resume the run.
    HealStarted {
        /// The code of the failure.
        code: ErrorCode,
        /// The last logged step, or the step that the attempt started from.
        at_step: u64,
        /// The node that failed, if it is known.
        failed_node: Option<NodeId>,
    },
    /// The healer cannot resume the run yet.
    HealWaiting {
        /// The reason.
        why: String,
    },
    /// The healer has resumed the run.
    Healed {
        /// The nodes of the previous attempt that have no ranks in the new one.
        without: Vec<NodeId>,
        /// Seconds from the failure to the start of the new attempt.
        down_s: f64,
    },
    /// The healer will not resume the run.
    HealEnded {
        /// The reason.
        failure: Failure,
    },
    /// A rank ended with an error.
    Failed {
        /// The error.
        failure: Failure,
    },
    /// A rank ended unexpectedly; its supervisor records it.
    RankDied {
        /// The rank that ended.
        #[serde(rename = "dead_rank")]
        rank: usize,
        /// Its exit code; `None` if a signal ended it.
        code: Option<i32>,
        /// The signal that ended it; `None` if it exited.
        signal: Option<i32>,
        /// The error that the rank reported, or otherwise the last line of its log.
        message: String,
        /// Where the root cause is.
        #[serde(default, skip_serializing_if = "Cause::is_root")]
        cause: Cause,
    },
    /// Another node was lost. The supervisor of a node that continues without it records this event.
    NodeLost {
        /// The lost node.
        #[serde(rename = "lost_node")]
        node: NodeId,
        /// The evidence for the loss.
        failure: Failure,
    },
    /// A process received a signal.
    SignalReceived {
        /// The signal's number.
        signal: i32,
    },
    /// Programs that do not belong to the run connected to its supervisor, and were refused. It is recorded for the first connection, and
    /// whenever there are ten times as many.
    ConnectionsRefused {
        /// The port of the supervisor.
        port: u16,
        /// The connections refused so far.
        count: u64,
        /// The address of the last one, if it is known.
        from: Option<String>,
        /// Why the last one was refused.
        why: String,
    },
    /// An event that this version cannot parse, kept as text.
    #[serde(untagged)]
    Other {
        /// The name of the event.
        #[serde(rename = "event")]
        name: String,
        /// Its fields, as `key: value, key: value`.
        #[serde(default)]
        text: String,
    },
}

impl EventKind {
    /// Returns whether the healer records events of this kind. Processes of the run record all others.
    pub fn is_of_healer(&self) -> bool {
        matches!(
            self,
            Self::HealStarted { .. } | Self::HealWaiting { .. } | Self::Healed { .. } | Self::HealEnded { .. }
        )
    }
}

impl Event {
    /// Makes an event. [`Event::by_rank`] and [`Event::by_node`] add the rank or node that recorded it.
    pub fn new(t: f64, attempt: u32, step: Option<u64>, kind: EventKind) -> Self {
        Self { v: SCHEMA, t, attempt, rank: None, node: None, step, kind }
    }

    /// Sets the rank that recorded it.
    pub fn by_rank(self, rank: usize) -> Self {
        Self { rank: Some(rank), ..self }
    }

    /// Sets the node whose supervisor recorded it.
    pub fn by_node(self, node: NodeId) -> Self {
        Self { node: Some(node), ..self }
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Head {
            #[serde(default)]
            v: u32,
            t: f64,
            attempt: u32,
            rank: Option<usize>,
            node: Option<NodeId>,
            step: Option<u64>,
        }
        let value = Value::deserialize(deserializer)?;
        let read = || -> Result<Self, serde_json::Error> {
            let Head { v, t, attempt, rank, node, step } = Head::deserialize(&value)?;
            let mut kind = EventKind::deserialize(&value)?;
            if let EventKind::Other { text, .. } = &mut kind
                && text.is_empty()
            {
                *text = fields_as_text(&value);
            }
            if let EventKind::RankDied { message, cause, .. } = &mut kind
                && value.get("cause").is_none()
            {
                *cause = Cause::of_text(message);
            }
            Ok(Self { v, t, attempt, rank, node, step, kind })
        };
        read().map_err(serde::de::Error::custom)
    }
}

/// Returns the fields of an unknown event as text, without the fields that every event has.
fn fields_as_text(event: &Value) -> String {
    const COMMON: [&str; 7] = ["v", "t", "attempt", "rank", "node", "step", "event"];
    let fields = event.as_object().into_iter().flatten().filter(|(key, _)| !COMMON.contains(&key.as_str()));
    let text = fields.map(|(key, value)| match value {
        Value::String(s) => format!("{key}: {s}"),
        other => format!("{key}: {other}"),
    });
    text.collect::<Vec<_>>().join(", ")
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl LogLine for Event {
    fn parse(line: &[u8]) -> Result<Self, String> {
        json_line(line)
    }
}

/// Reads all events of a run, which rank 0, the nodes' supervisors and the healer recorded, sorted by time.
///
/// # Errors
/// [`Error::File`]; a missing file is empty, and bad lines are skipped.
pub fn read_events(run: &RunDir) -> Result<Vec<Event>, Error> {
    let mut files = vec![run.events(), run.healer_events()];
    for node in run.node_ids()? {
        files.push(run.node_events(&node));
    }
    let mut events = Vec::new();
    for path in files {
        let mut tail = Tail::<Event>::new(&path);
        loop {
            let batch = tail.poll().map_err(|e| Error::io("read", &path, e))?;
            events.extend(batch.items);
            if !batch.more {
                break;
            }
        }
    }
    events.sort_by(|a, b| a.t.total_cmp(&b.t));
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LineAppender;
    use crate::fixtures::{node, run_id, temp};

    fn all_kinds() -> Vec<EventKind> {
        vec![
            EventKind::Started { world: 2 },
            EventKind::Resumed { from_step: 40, of_run: run_id() },
            EventKind::CheckpointDamaged { step: 40, why: "its checksum is 1, not 2".into(), back_to: 20 },
            EventKind::WeightsLoaded { from: "runs/a/checkpoints/step-00000040".into() },
            EventKind::Restored {
                restored: "weights".into(),
                not_restored: "optimizer, steps and data".into(),
                seconds: 1.5,
            },
            EventKind::SaveRequested { source: RequestSource::Usr1, why: "SIGUSR1".into() },
            EventKind::LossSpike { loss: 3.5, usual: 0.25 },
            EventKind::CheckpointStarted,
            EventKind::CheckpointSaved { path: "checkpoints/step-00000040".into(), bytes: 123, seconds: 0.5 },
            EventKind::CheckpointPruned { step: 20 },
            EventKind::ConnectionsRefused {
                port: 29501,
                count: 10,
                from: Some("10.0.0.9:41000".into()),
                why: "it does not use this protocol".into(),
            },
            EventKind::LogRecognized { format: "JSON lines".into(), metrics: vec!["loss".into(), "lr".into()] },
            EventKind::LogNotRecognized { why: "400 lines have no step".into() },
            EventKind::EvaluationStarted,
            EventKind::EvaluationEnded,
            EventKind::LossNotFinite,
            EventKind::StepSkipped { clips: Vec::new(), more_clips: 0, in_data: false },
            EventKind::StepSkipped { clips: vec!["clips/a.mp4".into()], more_clips: 3, in_data: true },
            EventKind::Stopping { source: RequestSource::Term, why: "SIGTERM".into() },
            EventKind::Stopped { source: RequestSource::TimeLimit, why: "2 h".into() },
            EventKind::Finished,
            EventKind::HealStarted { code: ErrorCode::NodeLost, at_step: 40, failed_node: Some(node("ml-2")) },
            EventKind::HealWaiting { why: "too few nodes".into() },
            EventKind::Healed { without: vec![node("ml-2")], down_s: 12.5 },
            EventKind::HealEnded { failure: Failure::new(ErrorCode::NodeLost, "cannot resume", "it is lost", "") },
            EventKind::Failed {
                failure: Failure::new(crate::ErrorCode::DiskFull, "cannot save", "the disk is full", "free some space"),
            },
            EventKind::RankDied { rank: 1, code: None, signal: Some(9), message: "killed".into(), cause: Cause::Root },
            EventKind::NodeLost {
                node: node("ml-2"),
                failure: Failure::new(crate::ErrorCode::NodeLost, "node ml-2 was lost", "no heartbeat", "check it"),
            },
            EventKind::SampleSaved { path: "/runs/a/samples/step-00000010/000.mp4".into(), seconds: 2.5 },
            EventKind::Validated { loss: 0.5, by_level: vec![0.25, 0.75] },
            EventKind::SampleRequested,
            EventKind::Profiled {
                path: "/runs/a/nodes/ml-1/0001-rank-00000-step-00000011.trace.json".into(),
                steps: 2,
            },
            EventKind::ItemFailed {
                item: "clips/a.mp4".into(),
                failure: Failure::new(
                    crate::ErrorCode::Malformed,
                    "clips/a.mp4 is damaged",
                    "it is cut",
                    "copy it again",
                ),
            },
            EventKind::SignalReceived { signal: 15 },
            EventKind::Other { name: "coffee_ready".into(), text: "cups: 2".into() },
        ]
    }

    #[test]
    fn every_event_is_read_as_it_was_written() {
        for kind in all_kinds() {
            let event = Event::new(1000.5, 2, Some(41), kind).by_rank(0).by_node(node("ml-1"));
            let line = serde_json::to_string(&event).unwrap();
            assert!(
                line.starts_with("{\"v\":1,\"t\":1000.5,\"attempt\":2,\"rank\":0,\"node\":\"ml-1\",\"step\":41,"),
                "{line}"
            );
            assert_eq!(Event::parse(line.as_bytes()), Ok(event));
        }
    }

    #[test]
    fn the_step_of_a_pruned_checkpoint_is_not_the_step_of_the_event() {
        let event = Event::new(0.0, 1, Some(60), EventKind::CheckpointPruned { step: 20 });
        let read = Event::parse(&serde_json::to_vec(&event).unwrap()).unwrap();
        assert_eq!((read.step, read.kind), (Some(60), EventKind::CheckpointPruned { step: 20 }));
    }

    #[test]
    fn the_source_of_a_stop_that_another_version_wrote_is_unknown() {
        for source in ["", r#","source":"telepathy""#] {
            let line = format!(r#"{{"v":1,"t":1.0,"attempt":1,"event":"stopped","why":"SIGTERM"{source}}}"#);
            let kind = Event::parse(line.as_bytes()).unwrap().kind;
            assert_eq!(kind, EventKind::Stopped { source: RequestSource::Unknown, why: "SIGTERM".into() });
        }
    }

    #[test]
    fn an_unknown_event_is_read_as_text() {
        let line = br#"{"v":1,"t":1.0,"attempt":1,"event":"node_replaced","old":"ml-1","spares":[3,4]}"#;
        let EventKind::Other { name, text } = Event::parse(line).unwrap().kind else { panic!("it is known") };
        assert_eq!((&name[..], &text[..]), ("node_replaced", "old: ml-1, spares: [3,4]"));
    }

    #[test]
    fn a_known_event_with_changed_fields_is_read_as_text() {
        let line = br#"{"v":1,"t":1.0,"attempt":1,"event":"started","ranks":"many"}"#;
        let kind = Event::parse(line).unwrap().kind;
        assert_eq!(kind, EventKind::Other { name: "started".into(), text: "ranks: many".into() });
    }

    #[test]
    fn an_event_without_a_name_or_of_a_newer_version_is_a_bad_line() {
        assert!(Event::parse(br#"{"v":1,"t":1.0,"attempt":1}"#).is_err());
        assert!(Event::parse(br#"[]"#).is_err());
        assert!(Event::parse(br#"{"v":9,"t":1.0,"attempt":1,"event":"started","world":2}"#).is_err());
    }

    #[test]
    fn events_of_all_nodes_are_read_in_the_order_of_their_time() {
        let (_keep, run) = temp();
        assert!(read_events(&run).unwrap().is_empty());
        std::fs::create_dir_all(run.node_dir(&node("ml-1"))).unwrap();
        std::fs::create_dir_all(run.node_dir(&node("ml-2"))).unwrap();
        let write = |path: Utf8PathBuf, t, kind| {
            LineAppender::open(&path).unwrap().append(&Event::new(t, 1, None, kind)).unwrap()
        };
        write(run.events(), 1.0, EventKind::Started { world: 2 });
        write(run.events(), 4.0, EventKind::Finished);
        write(run.node_events(&node("ml-2")), 2.0, EventKind::SignalReceived { signal: 15 });
        write(run.node_events(&node("ml-1")), 3.0, EventKind::SignalReceived { signal: 10 });
        let times: Vec<f64> = read_events(&run).unwrap().iter().map(|e| e.t).collect();
        assert_eq!(times, [1.0, 2.0, 3.0, 4.0]);
    }
}

//! Alerts of a run: what needs the attention of a user, and which alerts users acknowledged or snoozed. Each is one
//! line of a file in the folder `alerts`.

use crate::lines::{LogLine, json_line};
use crate::{Error, LineAppender, RunDir, RunId, SCHEMA, Tail, xxh3_hex};
use camino::Utf8Path;
use serde::{Deserialize, Serialize};
use std::fs;

/// The kind of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlertKind {
    /// All ranks of an attempt are connected, and training began.
    Started,
    /// A checkpoint is complete.
    Checkpoint,
    /// Sample videos are complete.
    Sample,
    /// A stage of a curriculum has done all its steps.
    StageDone,
    /// No step finishes, and the ranks compute nothing.
    Stalled,
    /// Loss or gradient is not finite.
    NotFinite,
    /// A rank ran out of memory.
    OutOfMemory,
    /// A node was lost.
    NodeLost,
    /// The disk of the checkpoints is almost full.
    DiskLow,
    /// The run failed, or a checkpoint could not be saved.
    Failed,
    /// The run failed and was resumed without a user.
    Healed,
    /// All steps are done.
    Finished,
}

impl AlertKind {
    /// All kinds.
    pub const ALL: [Self; 12] = [
        Self::Started,
        Self::Checkpoint,
        Self::Sample,
        Self::StageDone,
        Self::Stalled,
        Self::NotFinite,
        Self::OutOfMemory,
        Self::NodeLost,
        Self::DiskLow,
        Self::Failed,
        Self::Healed,
        Self::Finished,
    ];

    /// Returns the name in settings and on disk.
    pub fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Checkpoint => "checkpoint",
            Self::Sample => "sample",
            Self::StageDone => "stage-done",
            Self::Stalled => "stalled",
            Self::NotFinite => "not-finite",
            Self::OutOfMemory => "out-of-memory",
            Self::NodeLost => "node-lost",
            Self::DiskLow => "disk-low",
            Self::Failed => "failed",
            Self::Healed => "healed",
            Self::Finished => "finished",
        }
    }

    /// Returns whether the kind is normal progress, which a run reports many times.
    pub fn is_routine(self) -> bool {
        matches!(self, Self::Started | Self::Checkpoint | Self::Sample)
    }

    /// Returns whether a user must act on an alert of this kind.
    pub fn needs_action(self) -> bool {
        !self.is_routine() && !matches!(self, Self::StageDone | Self::Healed | Self::Finished)
    }
}

/// Something that happened to a run and that its user should learn about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Alert {
    /// [`SCHEMA`].
    pub v: u32,
    /// When the alert was raised, Unix seconds.
    pub t: f64,
    /// The id, eight hexadecimal digits: see [`Alert::with_id`].
    pub id: String,
    /// The run that the alert is about.
    pub run: RunId,
    /// The attempt during which the event happened.
    pub attempt: u32,
    /// What kind of event it is. Channels choose alerts by kind.
    pub kind: AlertKind,
    /// The node, file or folder that the alert is about; empty for the whole run. Alerts with the same attempt, kind
    /// and subject are repeats of each other.
    #[serde(default)]
    pub subject: String,
    /// Whether the alert reports a failure that ended the attempt.
    #[serde(default)]
    pub ends_attempt: bool,
    /// The last finished step.
    #[serde(default)]
    pub step: Option<u64>,
    /// What happened, in one sentence.
    pub what: String,
    /// The reason; may be empty.
    #[serde(default)]
    pub why: String,
    /// When the event or problem began, Unix seconds.
    pub since_s: f64,
    /// The hint; may be empty.
    #[serde(default)]
    pub fix: String,
}

impl Alert {
    /// Sets the id: a hash of the run, attempt, kind, subject and `since_s`.
    pub fn with_id(self) -> Self {
        let key = format!("{} {} {} {} {}", self.run, self.attempt, self.kind.name(), self.subject, self.since_s);
        Self { id: xxh3_hex(key.as_bytes())[..8].to_owned(), ..self }
    }
}

/// A record that an alert did not reach a channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NotSent {
    /// [`SCHEMA`].
    pub v: u32,
    /// When sending failed, Unix seconds.
    pub t: f64,
    /// The id of the alert.
    pub id: String,
    /// The name of the channel.
    pub channel: String,
    /// The channel's error.
    pub why: String,
}

/// A record that a user acknowledged an alert, or snoozed an alert or a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mute {
    /// [`SCHEMA`].
    pub v: u32,
    /// When the user did so, Unix seconds.
    pub t: f64,
    /// The id of the alert; `None` for all alerts of the run.
    #[serde(default)]
    pub id: Option<String>,
    /// The end of a snooze, Unix seconds; `None` if the alert is acknowledged.
    #[serde(default)]
    pub until_s: Option<f64>,
    /// The user who acknowledged or snoozed the alert.
    #[serde(default)]
    pub by: String,
}

/// A line of a file in the folder of alerts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum AlertLine {
    /// An alert was raised.
    Raised(Alert),
    /// An alert did not reach a channel.
    NotSent(NotSent),
    /// A user acknowledged an alert, or snoozed an alert or the run.
    Muted(Mute),
}

impl LogLine for AlertLine {
    fn parse(line: &[u8]) -> Result<Self, String> {
        json_line(line)
    }
}

/// An alert, and whether it was sent, acknowledged or snoozed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AlertState {
    /// The alert.
    pub alert: Alert,
    /// The channels that the alert did not reach.
    pub not_sent: Vec<NotSent>,
    /// Whether a user acknowledged the alert.
    pub acknowledged: bool,
    /// The end of the newest snooze, Unix seconds.
    pub snoozed_until_s: Option<f64>,
    /// Who acknowledged or snoozed the alert, or snoozed the run, oldest first.
    #[serde(default)]
    pub mutes: Vec<Mute>,
}

impl AlertState {
    /// Returns whether a user still must act: the alert is neither acknowledged nor snoozed at `now_s`.
    pub fn is_open(&self, now_s: f64) -> bool {
        self.alert.kind.needs_action() && !self.acknowledged && !self.is_snoozed(now_s)
    }

    /// Returns whether the alert is snoozed at `now_s`.
    pub fn is_snoozed(&self, now_s: f64) -> bool {
        self.snoozed_until_s.is_some_and(|until_s| now_s < until_s)
    }
}

/// The program that writes a file of alerts. Each file has one kind of writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlertWriter {
    /// The supervisor of the first node.
    Supervisor,
    /// The healer.
    Healer,
    /// Consoles and commands, which acknowledge and snooze.
    User,
}

impl AlertWriter {
    const ALL: [Self; 3] = [Self::Supervisor, Self::Healer, Self::User];

    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Self::Supervisor => "supervisor.jsonl",
            Self::Healer => "healer.jsonl",
            Self::User => "users.jsonl",
        }
    }
}

impl RunDir {
    /// Opens the alerts file of a writer for appending. Creates the folder and the file if they do not exist.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn append_alerts(&self, writer: AlertWriter) -> Result<LineAppender, Error> {
        let path = self.alerts_file(writer);
        fs::create_dir_all(self.alerts()).map_err(|error| Error::io("make", &self.alerts(), error))?;
        LineAppender::open(&path).map_err(|error| Error::io("open", &path, error))
    }

    /// Records that a user acknowledged an alert, or snoozed it or the run.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn mute_alerts(&self, mute: Mute) -> Result<(), Error> {
        let mut file = self.append_alerts(AlertWriter::User)?;
        file.append(&AlertLine::Muted(mute)).map_err(|error| Error::io("write", file.path(), error))
    }
}

impl Mute {
    /// Makes a record. `id` is `None` for the whole run, and `until_s` is `None` to acknowledge.
    pub fn new(t: f64, id: Option<String>, until_s: Option<f64>, by: impl Into<String>) -> Self {
        Self { v: SCHEMA, t, id, until_s, by: by.into() }
    }
}

/// Follows the alerts files of a run.
#[derive(Debug)]
pub struct AlertReader {
    run: RunDir,
    tails: Vec<Tail<AlertLine>>,
    alerts: Vec<Alert>,
    not_sent: Vec<NotSent>,
    mutes: Vec<Mute>,
}

impl AlertReader {
    /// Makes a reader that begins at the start of the files. [`AlertReader::poll`] reads them.
    pub fn new(run: &RunDir) -> Self {
        let tails = AlertWriter::ALL.map(|writer| Tail::new(run.alerts_file(writer))).into();
        Self { run: run.clone(), tails, alerts: Vec::new(), not_sent: Vec::new(), mutes: Vec::new() }
    }

    /// Reads the new lines.
    ///
    /// # Errors
    /// [`Error::File`]; a missing file is empty, and bad lines are skipped.
    pub fn poll(&mut self) -> Result<(), Error> {
        // Most runs have no alerts.
        if self.alerts.is_empty() && self.mutes.is_empty() && !self.run.alerts().is_dir() {
            return Ok(());
        }
        for tail in &mut self.tails {
            let read = tail.poll_all();
            let (lines, restarted) = read.map_err(|error| Error::io("read", Utf8Path::new(tail.path()), error))?;
            if restarted {
                // The lines of the file that was replaced cannot be told apart from those of the other file: read both again.
                *self = Self::new(&self.run.clone());
                return self.poll();
            }
            for line in lines {
                match line {
                    AlertLine::Raised(alert) => self.alerts.push(alert),
                    AlertLine::NotSent(not_sent) => self.not_sent.push(not_sent),
                    AlertLine::Muted(mute) => self.mutes.push(mute),
                }
            }
        }
        Ok(())
    }

    /// Returns all alerts with their states, oldest first.
    pub fn alerts(&self) -> Vec<AlertState> {
        let mut all: Vec<AlertState> = self.alerts.iter().map(|alert| self.state(alert)).collect();
        all.sort_by(|a, b| a.alert.t.total_cmp(&b.alert.t));
        all
    }

    /// Returns the state of an alert. The alert need not be in the files yet.
    ///
    /// A snooze of an alert also applies to later alerts of the same kind and subject. A snooze of a run applies to all
    /// its alerts.
    pub fn state(&self, alert: &Alert) -> AlertState {
        let is_same = |id: &String| {
            let same = |known: &&Alert| known.kind == alert.kind && known.subject == alert.subject;
            *id == alert.id || self.alerts.iter().filter(same).any(|known| known.id == *id)
        };
        let acknowledged = |mute: &&Mute| mute.until_s.is_none() && mute.id.as_ref() == Some(&alert.id);
        let snoozed = |mute: &&Mute| mute.until_s.is_some() && mute.id.as_ref().is_none_or(is_same);
        AlertState {
            alert: alert.clone(),
            not_sent: self.not_sent.iter().filter(|not_sent| not_sent.id == alert.id).cloned().collect(),
            acknowledged: self.mutes.iter().any(|mute| acknowledged(&mute)),
            // The newest snooze counts, so that a user can shorten a snooze.
            snoozed_until_s: self.mutes.iter().filter(snoozed).filter_map(|mute| mute.until_s).next_back(),
            mutes: self.mutes.iter().filter(|mute| acknowledged(mute) || snoozed(mute)).cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{run_id, temp};

    fn alert(kind: AlertKind, since_s: f64) -> Alert {
        Alert {
            v: SCHEMA,
            t: since_s + 1.0,
            id: String::new(),
            run: run_id(),
            attempt: 1,
            kind,
            subject: String::new(),
            ends_attempt: false,
            step: Some(40),
            what: "what".into(),
            why: "why".into(),
            since_s,
            fix: "fix".into(),
        }
        .with_id()
    }

    #[test]
    fn the_name_of_a_kind_is_that_on_disk() {
        for kind in AlertKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }

    #[test]
    fn alerts_are_read_with_what_happened_to_them() {
        let (_keep, run) = temp();
        let mut reader = AlertReader::new(&run);
        reader.poll().unwrap();
        assert!(reader.alerts().is_empty());
        let [stalled, failed, later] =
            [alert(AlertKind::Stalled, 10.0), alert(AlertKind::Failed, 20.0), alert(AlertKind::Stalled, 9000.0)];
        let mut file = run.append_alerts(AlertWriter::Supervisor).unwrap();
        file.append(&AlertLine::Raised(stalled.clone())).unwrap();
        let not_sent =
            NotSent { v: SCHEMA, t: 12.0, id: stalled.id.clone(), channel: "slack".into(), why: "500".into() };
        file.append(&AlertLine::NotSent(not_sent.clone())).unwrap();
        run.append_alerts(AlertWriter::Healer).unwrap().append(&AlertLine::Raised(failed.clone())).unwrap();
        reader.poll().unwrap();
        let found = reader.alerts();
        assert_eq!((&found[0].alert, &found[0].not_sent), (&stalled, &vec![not_sent]));
        assert!(found.iter().all(|state| state.is_open(30.0)));

        run.mute_alerts(Mute::new(30.0, Some(failed.id), None, "ada")).unwrap();
        run.mute_alerts(Mute::new(31.0, Some(stalled.id.clone()), Some(7200.0), "ada")).unwrap();
        reader.poll().unwrap();
        let found = reader.alerts();
        assert_eq!(found.iter().map(|state| state.is_open(40.0)).collect::<Vec<_>>(), [false, false]);
        assert!(found[0].is_open(7200.0) && !found[1].is_open(7200.0));
        assert_eq!(found.iter().map(|state| state.mutes.len()).collect::<Vec<_>>(), [1, 1]);
        assert!(reader.state(&later).is_snoozed(40.0), "it is of the same kind and subject");
        run.mute_alerts(Mute::new(50.0, None, Some(60.0), "ada")).unwrap();
        reader.poll().unwrap();
        assert!(!reader.state(&stalled).is_snoozed(61.0), "the last request counts");
    }

    #[test]
    fn alerts_of_a_file_that_was_replaced_are_not_kept() {
        let (_keep, run) = temp();
        let raise = |writer, alert: &Alert| {
            run.append_alerts(writer).unwrap().append(&AlertLine::Raised(alert.clone())).unwrap();
        };
        let [old, other, new] = [10.0, 20.0, 30.0].map(|since_s| alert(AlertKind::Stalled, since_s));
        raise(AlertWriter::Supervisor, &old);
        raise(AlertWriter::Supervisor, &old);
        raise(AlertWriter::Healer, &other);
        let mut reader = AlertReader::new(&run);
        reader.poll().unwrap();
        fs::remove_file(run.alerts_file(AlertWriter::Supervisor)).unwrap();
        raise(AlertWriter::Supervisor, &new);
        reader.poll().unwrap();
        let found: Vec<f64> = reader.alerts().iter().map(|state| state.alert.since_s).collect();
        assert_eq!(found, [20.0, 30.0]);
    }
}

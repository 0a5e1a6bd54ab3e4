//! Records alerts in the folder of a run and sends them. Each channel has a thread, so that a channel that hangs does not delay the others.

use crate::channel::SendError;
use crate::settings::{Channel, Settings, Target};
use rundir::{Alert, AlertKind, AlertLine, AlertReader, AlertWriter, LineAppender, NotSent, RunDir, SCHEMA, now_s};
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// An alert with the same attempt, kind and subject is raised again only if it began at least this many seconds after the last one.
const REPEAT_S: f64 = 3600.0;
/// The maximum number of alerts about normal progress that a channel gets within an hour.
const ROUTINE_PER_HOUR: usize = 30;

/// The time limits of sending.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The time limit of a request or a program.
    pub request: Duration,
    /// The pauses before each retry, unless the server requests another pause. Their number is the maximum number of retries.
    pub pauses: Vec<Duration>,
    /// The longest pause before a retry, even if the server requests a longer one.
    pub longest_pause: Duration,
    /// The time limit of [`Outbox::end`].
    pub end: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(10),
            pauses: [1, 5, 25].map(Duration::from_secs).into(),
            longest_pause: Duration::from_secs(120),
            end: Duration::from_secs(20),
        }
    }
}

/// Records and sends the alerts of a run.
pub struct Outbox {
    record: Arc<Record>,
    reader: AlertReader,
    settings: Settings,
    /// The id and the time of the last alert of each attempt, kind and subject. The time is [`Alert::since_s`].
    raised: BTreeMap<(u32, AlertKind, String), (String, f64)>,
    queues: Vec<Queue>,
    limits: Limits,
}

/// The file of alerts, which all threads append to.
struct Record {
    file: Mutex<Option<LineAppender>>,
    log: fn(&str),
}

/// The alerts for one channel.
struct Queue {
    channel: Channel,
    alerts: Sender<Alert>,
    /// The ids of alerts that have not been sent yet.
    pending: Arc<Mutex<Vec<String>>>,
    /// Disconnected when the thread has sent all alerts: the thread then drops the sender.
    ended: Receiver<()>,
    /// The times of the alerts about normal progress in the last hour.
    routine: VecDeque<f64>,
}

impl Outbox {
    /// Opens the alerts file of this writer and starts a thread for each channel. Errors are passed to `log`.
    pub fn open(run: &RunDir, writer: AlertWriter, settings: Settings, limits: Limits, log: fn(&str)) -> Self {
        let file = run.append_alerts(writer).inspect_err(|error| log(&error.to_string())).ok();
        let record = Arc::new(Record { file: Mutex::new(file), log });
        let remote = settings.channels.iter().filter(|channel| !channel.to.is_terminal());
        let queues = remote.map(|channel| Queue::start(channel, &record, &limits)).collect();
        Self { record, reader: AlertReader::new(run), settings, raised: BTreeMap::new(), queues, limits }
    }

    /// Records an alert and sends it, unless it was raised before. Drops an alert about normal progress if no channel wants its kind.
    pub fn raise(&mut self, alert: Alert) {
        if alert.kind.is_routine() && !self.settings.channels.iter().any(|channel| channel.wants(&alert)) {
            return;
        }
        let key = (alert.attempt, alert.kind, alert.subject.clone());
        if self.raised.get(&key).is_some_and(|(id, since_s)| *id == alert.id || alert.since_s - since_s < REPEAT_S) {
            return;
        }
        self.raised.insert(key, (alert.id.clone(), alert.since_s));
        if let Err(error) = self.reader.poll() {
            (self.record.log)(&error.to_string());
        }
        let is_snoozed = self.reader.state(&alert).is_snoozed(alert.t);
        self.record.append(&AlertLine::Raised(alert.clone()));
        if is_snoozed {
            return;
        }
        for queue in self.queues.iter_mut().filter(|queue| queue.channel.wants(&alert)) {
            if alert.kind.is_routine() && !queue.has_room(alert.t) {
                let why = format!("more than {ROUTINE_PER_HOUR} alerts about normal progress within an hour");
                self.record.not_sent(&alert.id, &queue.channel.to, why);
                continue;
            }
            lock(&queue.pending).push(alert.id.clone());
            // The send cannot fail: the thread receives until the queue is dropped.
            let _ = queue.alerts.send(alert.clone());
        }
    }

    /// Waits until all alerts are sent, for at most `limit` or [`Limits::end`], whichever is shorter. The remaining alerts are recorded as
    /// not sent.
    pub fn end(self, limit: Duration) {
        let deadline = Instant::now() + limit.min(self.limits.end);
        for Queue { channel, alerts, pending, ended, .. } in self.queues {
            drop(alerts);
            if let Err(mpsc::RecvTimeoutError::Timeout) =
                ended.recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                // Empty the list, so that the thread does not record these alerts as not sent again.
                for id in std::mem::take(&mut *lock(&pending)) {
                    self.record.not_sent(&id, &channel.to, "the run ended before the channel answered".into());
                }
            }
        }
    }
}

impl Queue {
    fn start(channel: &Channel, record: &Arc<Record>, limits: &Limits) -> Self {
        let (alerts, queued) = mpsc::channel::<Alert>();
        let (end, ended) = mpsc::channel();
        let pending: Arc<Mutex<Vec<String>>> = Arc::default();
        let (to, record, limits, waiting) = (channel.to.clone(), record.clone(), limits.clone(), pending.clone());
        thread::spawn(move || {
            // Its drop at the end of the thread disconnects `ended`.
            let _end: Sender<()> = end;
            for alert in queued {
                let sent = send(&to, &alert, &limits);
                let mut waiting = lock(&waiting);
                let before = waiting.len();
                waiting.retain(|id| *id != alert.id);
                if let (Err(error), true) = (sent, waiting.len() < before) {
                    record.not_sent(&alert.id, &to, error.why().to_owned());
                }
            }
        });
        Self { channel: channel.clone(), alerts, pending, ended, routine: VecDeque::new() }
    }

    /// Returns whether another alert about normal progress may be sent now. If so, counts it.
    fn has_room(&mut self, now_s: f64) -> bool {
        self.routine.retain(|t| t + 3600.0 > now_s);
        let has_room = self.routine.len() < ROUTINE_PER_HOUR;
        if has_room {
            self.routine.push_back(now_s);
        }
        has_room
    }
}

/// Sends an alert. Retries if the channel reports a temporary error.
fn send(to: &Target, alert: &Alert, limits: &Limits) -> Result<(), SendError> {
    let mut pauses = limits.pauses.iter();
    loop {
        match (to.send(alert, limits.request), pauses.next()) {
            (Err(SendError::Retry { after, .. }), Some(pause)) => {
                thread::sleep(after.unwrap_or(*pause).min(limits.longest_pause));
            }
            (result, _) => return result,
        }
    }
}

impl Record {
    fn append(&self, line: &AlertLine) {
        if let Some(file) = &mut *lock(&self.file)
            && let Err(error) = file.append(line)
        {
            (self.log)(&format!("cannot append to {}: {error}", file.path()));
        }
    }

    fn not_sent(&self, id: &str, to: &Target, why: String) {
        let channel = to.name().to_owned();
        (self.log)(&format!("alert {id} did not reach {channel}: {why}"));
        self.append(&AlertLine::NotSent(NotSent { v: SCHEMA, t: now_s(), id: id.to_owned(), channel, why }));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

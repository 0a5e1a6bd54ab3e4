//! Watching nodes: frames of what each does, over its one connection, for as long as somebody looks.

use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::ops::ControlFlow;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use cluster::nvidia_smi::{GpuQuery, SmiTrouble};
use cluster::probe::{self, Frame, Frames, Pace};
use rundir::Login;

use crate::backoff::Backoff;
use crate::command::Status;
use crate::ssh::{Ssh, Stream, StreamEvent};
use crate::{Fleet, RemoteError};

/// A node may be silent for so long before it is asked whether it is there: frames come also while nvidia-smi hangs, but
/// not before that is certain.
const SILENCE: Duration = Duration::from_secs(60);
/// The pauses before a node whose script has ended by itself is watched again.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Something seen of a node.
#[derive(Debug)]
pub enum NodeUpdate {
    /// What it does.
    Frame(Box<Frame>),
    /// It is out of sight, and looked for again and again. Told once.
    Unreachable(RemoteError),
}

/// Who is told what is seen. It is called on the connection's thread, and must not wait.
pub type OnUpdate = Box<dyn FnMut(NodeUpdate) -> ControlFlow<()> + Send>;

/// A node that is watched; it no longer is when this is dropped.
#[derive(Debug)]
#[must_use = "a node is watched until this is dropped"]
pub struct NodeWatch {
    inner: Arc<Inner>,
}

struct Inner {
    every: Duration,
    see: Mutex<OnUpdate>,
    ended: AtomicBool,
    source: Mutex<Option<Source>>,
}

/// What must be dropped for the script to end.
enum Source {
    Ssh {
        _streaming: Stream,
    },
    /// Its standard input is what keeps it alive.
    Here(Child),
}

impl Drop for NodeWatch {
    fn drop(&mut self) {
        self.inner.ended.store(true, Ordering::Relaxed);
        self.inner.put(None);
    }
}

impl Fleet {
    /// Watches a node: this machine, or one that is reached by SSH. Returns at once; what goes wrong is told.
    pub fn watch(&self, login: &Login, every: Duration, see: OnUpdate) -> NodeWatch {
        let inner =
            Arc::new(Inner { every, see: Mutex::new(see), ended: AtomicBool::new(false), source: Mutex::new(None) });
        let (here, node) = (self.may_be_this_node(login), login.node.clone());
        let ssh = self.ssh(login);
        let watched = inner.clone();
        // The SSH configuration is read first, by a program that takes its time.
        let begin = move || {
            if here { watched.look_here(&node) } else { open(&watched, &ssh, GpuQuery::default()) }
        };
        if thread::Builder::new().name(format!("watch {}", login.node)).spawn(begin).is_err() {
            let why = std::io::Error::other("the system has no thread to spare");
            let _ = inner.see(NodeUpdate::Unreachable(RemoteError::io(&login.node, "watch it", why)));
        }
        NodeWatch { inner }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("every", &self.every).finish_non_exhaustive()
    }
}

impl Inner {
    fn see(&self, sight: NodeUpdate) -> ControlFlow<()> {
        if self.ended.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        (self.see.lock().unwrap_or_else(PoisonError::into_inner))(sight)
    }

    /// Takes in a frame. Returns the question to ask instead, when the driver does not know this one.
    fn frame(&self, frame: Frame, query: &GpuQuery) -> (ControlFlow<()>, Option<GpuQuery>) {
        let unknown = frame.troubles.iter().find_map(|trouble| match trouble {
            SmiTrouble::UnknownField(field) => query.without(field),
            _ => None,
        });
        match unknown {
            Some(other) => (ControlFlow::Break(()), Some(other)),
            None => (self.see(NodeUpdate::Frame(Box::new(frame))), None),
        }
    }

    /// Keeps what keeps the script alive; the one before ends.
    fn put(&self, source: Option<Source>) {
        let old = {
            let mut place = self.source.lock().unwrap_or_else(PoisonError::into_inner);
            let wanted = source.filter(|_| !self.ended.load(Ordering::Relaxed));
            std::mem::replace(&mut *place, wanted)
        };
        if let Some(Source::Here(mut child)) = old {
            drop(child.stdin.take());
            // It ends when its input does; if it hangs in nvidia-smi, `timeout` ends that.
            thread::spawn(move || child.wait());
        }
    }

    /// Watches this machine until nobody wants it any more.
    fn look_here(&self, node: &cluster::NodeId) {
        let mut query = GpuQuery::default();
        let mut backoff = Backoff::new(AGAIN.0, AGAIN.1);
        while !self.ended.load(Ordering::Relaxed) {
            match self.look_here_once(&query) {
                Ok(Some(other)) => {
                    query = other;
                    continue;
                }
                Ok(None) => return,
                Err(error) => _ = self.see(NodeUpdate::Unreachable(RemoteError::io(node, "watch it", error))),
            }
            thread::sleep(backoff.next());
        }
    }

    /// Watches until it is enough, or another question is to be asked.
    fn look_here_once(&self, query: &GpuQuery) -> std::io::Result<Option<GpuQuery>> {
        let mut child = std::process::Command::new("sh")
            .args(["-c", &probe::script_until_input_ends(query, Pace::every_s(self.every.as_secs_f64()))])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdout = child.stdout.take();
        self.put(Some(Source::Here(child)));
        let mut frames = Frames::new(query.clone());
        let mut stdout = stdout.ok_or_else(|| std::io::Error::other("it has no output"))?;
        let mut bytes = [0; 16 * 1024];
        loop {
            let read = stdout.read(&mut bytes)?;
            if read == 0 {
                break;
            }
            for frame in frames.push(&bytes[..read]) {
                match self.frame(frame, query) {
                    (_, Some(other)) => return Ok(Some(other)),
                    (ControlFlow::Break(()), None) => return Ok(None),
                    (ControlFlow::Continue(()), None) => {}
                }
            }
        }
        if self.ended.load(Ordering::Relaxed) { Ok(None) } else { Err(std::io::Error::other("its script has ended")) }
    }
}

/// When in the round this node's turn is: nodes that are asked at the same moment shall not all answer at the same one.
fn share_of(ssh: &Ssh) -> f64 {
    0.25 + (RandomState::new().hash_one(crate::Shell::node(ssh)) % 1000) as f64 / 1000.0
}

/// Opens the stream of a node; what ends it but the reader's wish has it opened anew.
fn open(inner: &Arc<Inner>, ssh: &Ssh, query: GpuQuery) {
    let every_s = inner.every.as_secs_f64();
    let pace = Pace { first_s: every_s * share_of(ssh), ..Pace::every_s(every_s) };
    let (watched, again) = (inner.clone(), ssh.clone());
    let (script, mut frames) = (probe::script(&query, pace), Frames::new(query.clone()));
    let tell = move |streamed: StreamEvent| match streamed {
        StreamEvent::Connected => {
            // The rest of a frame that the last connection cut off never comes.
            frames = Frames::new(query.clone());
            ControlFlow::Continue(())
        }
        StreamEvent::Line(line) => match frames.push_line(&line).map(|frame| watched.frame(frame, &query)) {
            None => ControlFlow::Continue(()),
            Some((_, Some(other))) => {
                open(&watched, &again, other);
                ControlFlow::Break(())
            }
            Some((flow, None)) => flow,
        },
        StreamEvent::Disconnected(error) => watched.see(NodeUpdate::Unreachable(error)),
        StreamEvent::Ended(output) => {
            let (watched, again, query) = (watched.clone(), again.clone(), query.clone());
            let status = match &output.status {
                Status::Code(code) => format!("exit status {code}"),
                Status::Signal(name) => format!("signal {name}"),
            };
            let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let node = crate::Shell::node(&again).clone();
            let flow = watched.see(NodeUpdate::Unreachable(RemoteError::CommandFailed {
                node,
                action: "watch it".into(),
                status,
                stderr,
            }));
            // This thread must not wait.
            thread::spawn(move || {
                thread::sleep(AGAIN.1);
                open(&watched, &again, query);
            });
            flow
        }
    };
    let mut tell: Option<crate::ssh::OnStreamEvent> = Some(Box::new(tell));
    let mut backoff = Backoff::new(AGAIN.0, AGAIN.1);
    let mut told = false;
    while let Some(reader) = tell.take().filter(|_| !inner.ended.load(Ordering::Relaxed)) {
        match ssh.ready() {
            Ok(()) => match ssh.stream(script.clone(), SILENCE, reader) {
                Ok(streaming) => inner.put(Some(Source::Ssh { _streaming: streaming })),
                Err(error) => _ = inner.see(NodeUpdate::Unreachable(error)),
            },
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    let _ = inner.see(NodeUpdate::Unreachable(error));
                }
                tell = Some(reader);
                thread::sleep(backoff.next());
            }
        }
    }
}

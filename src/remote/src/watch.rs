//! Watches nodes: a script on each node sends frames of samples over the node's connection until the watch is dropped.

use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::ops::ControlFlow;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use cluster::nvidia_smi::{GpuQuery, SmiError};
use cluster::probe::{self, Frame, Frames, Pace};
use rundir::Login;

use crate::backoff::Backoff;
use crate::command::last_lines;
use crate::ssh::{Ssh, Stream, StreamEvent};
use crate::{Connections, RemoteError, threads};

/// The time without output after which a heartbeat is sent. The script also sends frames while nvidia-smi hangs, but only
/// after the time limit of nvidia-smi.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(60);
/// The first and the longest pause before a script that has exited is restarted.
const RESTART: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The stack size of the thread that begins to watch a node or watches this machine.
const STACK: usize = 1 << 20;

/// An update about a watched node.
#[derive(Debug)]
pub enum NodeUpdate {
    /// A new frame of samples.
    Frame(Box<Frame>),
    /// The node is unreachable, or its script failed. Retries continue until the watch is dropped.
    Unreachable(RemoteError),
}

/// Receives the updates of a node. The thread of the connection calls the function, so it must not block.
pub type OnUpdate = Box<dyn FnMut(NodeUpdate) -> ControlFlow<()> + Send>;

/// A watched node. Dropping the value ends the watch.
#[derive(Debug)]
#[must_use = "a node is watched until this is dropped"]
pub struct NodeWatch {
    inner: Arc<Inner>,
}

struct Inner {
    every: Duration,
    on_update: Mutex<OnUpdate>,
    ended: AtomicBool,
    source: Mutex<Option<Source>>,
}

/// The script that sends the frames.
enum Source {
    Ssh {
        _stream: Stream,
    },
    /// A child process on this machine. It exits when its standard input closes.
    Local(Child),
}

impl Drop for NodeWatch {
    fn drop(&mut self) {
        self.inner.ended.store(true, Ordering::Relaxed);
        self.inner.replace_source(None);
    }
}

impl Connections {
    /// Watches this machine, or a node that is reached by SSH. Returns at once and reports errors as updates.
    pub fn watch(&self, login: &Login, every: Duration, on_update: OnUpdate) -> NodeWatch {
        let (on_update, ended, source) = (Mutex::new(on_update), AtomicBool::new(false), Mutex::new(None));
        let inner = Arc::new(Inner { every, on_update, ended, source });
        let (is_local, node) = (self.may_be_this_node(login), login.node.clone());
        let ssh = self.ssh(login);
        let watched = inner.clone();
        // A separate thread, because reading the SSH configuration runs a program.
        let begin = move || {
            if is_local { watched.watch_locally(&node) } else { open(&watched, &ssh, GpuQuery::default()) }
        };
        if threads::spawn_named(format!("watch {}", login.node), STACK, begin).is_err() {
            let why = std::io::Error::other("the system cannot start another thread");
            let _ = inner.send(NodeUpdate::Unreachable(RemoteError::io(&login.node, "stream its metrics", why)));
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
    fn send(&self, update: NodeUpdate) -> ControlFlow<()> {
        if self.ended.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        (self.on_update.lock().unwrap_or_else(PoisonError::into_inner))(update)
    }

    /// Sends a frame. If the driver does not support a field of the query, returns the query to use instead.
    fn frame(&self, frame: Frame, query: &GpuQuery) -> (ControlFlow<()>, Option<GpuQuery>) {
        let unknown = frame.smi_errors.iter().find_map(|error| match error {
            SmiError::UnknownField(field) => query.without(field),
            _ => None,
        });
        match unknown {
            Some(other) => (ControlFlow::Break(()), Some(other)),
            None => (self.send(NodeUpdate::Frame(Box::new(frame))), None),
        }
    }

    /// Stores the new source, unless the watch has ended, and ends the old source.
    fn replace_source(&self, source: Option<Source>) {
        let old = {
            let mut current = self.source.lock().unwrap_or_else(PoisonError::into_inner);
            let new = source.filter(|_| !self.ended.load(Ordering::Relaxed));
            std::mem::replace(&mut *current, new)
        };
        if let Some(Source::Local(mut child)) = old {
            drop(child.stdin.take());
            // The script exits when its input closes. If it hangs in nvidia-smi, `timeout` kills that first.
            threads::spawn(move || drop(child.wait()));
        }
    }

    /// Watches this machine until the watch ends.
    fn watch_locally(&self, node: &cluster::NodeId) {
        let mut query = GpuQuery::default();
        let mut backoff = Backoff::new(RESTART.0, RESTART.1);
        while !self.ended.load(Ordering::Relaxed) {
            match self.run_script(&query, &mut backoff) {
                Ok(Some(other)) => {
                    query = other;
                    continue;
                }
                Ok(None) => return,
                Err(error) => {
                    _ = self.send(NodeUpdate::Unreachable(RemoteError::io(node, "stream its metrics", error)))
                }
            }
            thread::sleep(backoff.next());
        }
    }

    /// Runs the script once, until the watch ends. If the driver needs another query, ends the script and returns that query.
    ///
    /// * `backoff` — the pauses between restarts; each frame resets them.
    fn run_script(&self, query: &GpuQuery, backoff: &mut Backoff) -> std::io::Result<Option<GpuQuery>> {
        let mut child = std::process::Command::new("sh")
            .args(["-c", &probe::script_until_input_ends(query, Pace::every_s(self.every.as_secs_f64()))])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdout = child.stdout.take();
        self.replace_source(Some(Source::Local(child)));
        let mut frames = Frames::new(query.clone());
        let mut stdout = stdout.ok_or_else(|| std::io::Error::other("the script has no output"))?;
        let mut bytes = [0; 16 * 1024];
        loop {
            let read = stdout.read(&mut bytes)?;
            if read == 0 {
                break;
            }
            for frame in frames.push(&bytes[..read]) {
                backoff.reset();
                match self.frame(frame, query) {
                    (_, Some(other)) => return Ok(Some(other)),
                    (ControlFlow::Break(()), None) => return Ok(None),
                    (ControlFlow::Continue(()), None) => {}
                }
            }
        }
        if self.ended.load(Ordering::Relaxed) { Ok(None) } else { Err(std::io::Error::other("the script has exited")) }
    }
}

/// Returns the random time of a node's first frame, as a multiple of the interval, so that nodes do not send at the same time.
fn random_offset(ssh: &Ssh) -> f64 {
    0.25 + (RandomState::new().hash_one(crate::Shell::node(ssh)) % 1000) as f64 / 1000.0
}

/// Reports why the stream of a node has ended, and opens another after a pause.
fn end(inner: &Arc<Inner>, ssh: &Ssh, query: &GpuQuery, error: RemoteError) -> ControlFlow<()> {
    let flow = inner.send(NodeUpdate::Unreachable(error));
    let (inner, ssh, query) = (inner.clone(), ssh.clone(), query.clone());
    // A new thread, because the thread of the connection must not block.
    threads::spawn(move || {
        thread::sleep(RESTART.1);
        open(&inner, &ssh, query);
    });
    flow
}

/// Opens the stream of a node, and reopens it if it ends before the watch does.
fn open(inner: &Arc<Inner>, ssh: &Ssh, query: GpuQuery) {
    let every_s = inner.every.as_secs_f64();
    let pace = Pace { first_s: every_s * random_offset(ssh), ..Pace::every_s(every_s) };
    let (watched, node_ssh) = (inner.clone(), ssh.clone());
    let (script, mut frames) = (probe::script(&query, pace), Frames::new(query.clone()));
    let on_event = move |event: StreamEvent| match event {
        StreamEvent::Connected => {
            // Discards a frame that the last connection did not complete.
            frames = Frames::new(query.clone());
            ControlFlow::Continue(())
        }
        StreamEvent::Line(line) => match frames.push_line(&line).map(|frame| watched.frame(frame, &query)) {
            None => ControlFlow::Continue(()),
            Some((_, Some(other))) => {
                open(&watched, &node_ssh, other);
                ControlFlow::Break(())
            }
            Some((flow, None)) => flow,
        },
        StreamEvent::Disconnected(error) => watched.send(NodeUpdate::Unreachable(error)),
        StreamEvent::Failed(error) => end(&watched, &node_ssh, &query, error),
        StreamEvent::Exited(output) => {
            let error = RemoteError::CommandFailed {
                node: crate::Shell::node(&node_ssh).clone(),
                action: "stream its metrics".into(),
                status: output.status.to_string(),
                stderr: last_lines(&output.stderr),
            };
            end(&watched, &node_ssh, &query, error)
        }
    };
    let mut on_event: Option<crate::ssh::OnStreamEvent> = Some(Box::new(on_event));
    let mut backoff = Backoff::new(RESTART.0, RESTART.1);
    let mut is_reported = false;
    while let Some(reader) = on_event.take().filter(|_| !inner.ended.load(Ordering::Relaxed)) {
        match ssh.read_config() {
            Ok(()) => match ssh.stream(script.clone(), OUTPUT_TIMEOUT, reader) {
                Ok(stream) => inner.replace_source(Some(Source::Ssh { _stream: stream })),
                Err(error) => _ = inner.send(NodeUpdate::Unreachable(error)),
            },
            Err(error) => {
                if !std::mem::replace(&mut is_reported, true) {
                    let _ = inner.send(NodeUpdate::Unreachable(error));
                }
                on_event = Some(reader);
                thread::sleep(backoff.next());
            }
        }
    }
}

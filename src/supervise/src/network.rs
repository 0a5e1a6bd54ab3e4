//! The connections to the supervisors of the other nodes. Threads read them and produce events.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cluster::NodeId;
use rundir::{ErrorCode, Failure, log};

use crate::decide::{Disconnect, Event, HEARTBEAT, Rendezvous};
use crate::events::Events;
use crate::handshake::{Authentic, SealedLines, Sealer, Secret, answer, call};
use crate::message::Message;

/// The number of connections, beyond one per node, that may be in their handshake. If there are more, the oldest is
/// closed: a peer needs milliseconds for a handshake, and a stranger that opens many connections must not block peers.
const SPARE_HANDSHAKES: usize = 32;
/// The interval at which refused connections are logged.
const LOG_REFUSED: Duration = Duration::from_secs(60);

/// The connections of this node's supervisor to the other supervisors.
#[derive(Clone)]
pub struct PeerConnections {
    inner: Arc<Inner>,
}

struct Inner {
    rendezvous: Rendezvous,
    secret: Secret,
    events: Events,
    shared: Mutex<Shared>,
    has_left: AtomicBool,
}

#[derive(Default)]
struct Shared {
    connections: BTreeMap<NodeId, Connection>,
    /// Connections in their handshake, oldest first.
    pending: VecDeque<(u64, TcpStream)>,
    numbers: u64,
    refused: Refused,
}

struct Connection {
    number: u64,
    stream: TcpStream,
    sealer: Sealer,
    is_broken: Arc<AtomicBool>,
    /// Whether the event loop has processed the connection.
    is_known: bool,
}

/// The connections that did not prove that they belong to the attempt.
#[derive(Default)]
struct Refused {
    count: u64,
    /// The count at which the next event is sent.
    next_event: u64,
    logged: Option<Instant>,
}

impl PeerConnections {
    /// Starts to send heartbeats; on the first node, also listens for connections. [`PeerConnections::dial`] connects
    /// the other nodes.
    ///
    /// # Errors
    /// If the first node cannot listen on its port.
    pub fn start(rendezvous: Rendezvous, secret: Secret, events: Events) -> Result<Self, Failure> {
        let listener = rendezvous.is_first().then(|| listen(&rendezvous)).transpose()?;
        let network = Self::new(rendezvous, secret, events);
        if let Some(listener) = listener {
            let this = network.clone();
            thread::spawn(move || this.accept(&listener));
        }
        let this = network.clone();
        thread::spawn(move || {
            while !this.inner.has_left.load(Ordering::Relaxed) {
                this.send(None, &Message::Heartbeat);
                thread::sleep(HEARTBEAT);
            }
        });
        Ok(network)
    }

    pub(crate) fn new(rendezvous: Rendezvous, secret: Secret, events: Events) -> Self {
        let (shared, has_left) = (Mutex::default(), AtomicBool::new(false));
        Self { inner: Arc::new(Inner { rendezvous, secret, events, shared, has_left }) }
    }

    /// Includes a connection in later messages to all nodes. The event loop calls this when it processes the
    /// connection, and then sends the earlier messages to the node.
    pub fn connected(&self, node: &NodeId, number: u64) {
        if let Some(connection) = self.lock().connections.get_mut(node).filter(|new| new.number == number) {
            connection.is_known = true;
        }
    }

    /// Sends a message to one node, or to all connected nodes.
    pub fn send(&self, to: Option<&NodeId>, message: &Message) {
        let line = message.line();
        let mut shared = self.lock();
        let is_addressed = |node: &NodeId, connection: &Connection| to.map_or(connection.is_known, |to| node == to);
        for (_, connection) in shared.connections.iter_mut().filter(|(node, connection)| is_addressed(node, connection))
        {
            let sealed = connection.sealer.seal(&line);
            if connection.stream.write_all(sealed.as_bytes()).is_err() {
                // The writer may see a reset before the reader, which then sees only end of file.
                connection.is_broken.store(true, Ordering::Relaxed);
                let _ = connection.stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Tries once to connect to the first node, in a separate thread.
    pub fn dial(&self) {
        let this = self.clone();
        thread::spawn(move || {
            let Rendezvous { address, port, .. } = &this.inner.rendezvous;
            let called =
                connect(address, *port).and_then(|stream| call(stream, &this.inner.rendezvous, &this.inner.secret));
            match called {
                Ok(authentic) => this.read(authentic),
                Err(error) => this.inner.events.send(Event::DialFailed(error.to_string())),
            }
        });
    }

    /// Stops sending heartbeats.
    pub fn leave(&self) {
        self.inner.has_left.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.inner.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn accept(&self, listener: &TcpListener) {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => self.answer(stream),
                // Retry, because an error such as a lack of file descriptors may be temporary.
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn answer(&self, stream: TcpStream) {
        let from = stream.peer_addr().ok();
        let Ok(pending) = stream.try_clone() else { return };
        let number = self.lock().admit(pending, self.inner.rendezvous.others.len() + SPARE_HANDSHAKES);
        let this = self.clone();
        let answering = thread::Builder::new().spawn(move || {
            let answered = answer(stream, &this.inner.rendezvous, &this.inner.secret);
            this.lock().pending.retain(|(other, _)| *other != number);
            match answered {
                Ok(authentic) => this.read(authentic),
                Err(error) => this.refuse(from, &error),
            }
        });
        if answering.is_err() {
            self.lock().pending.retain(|(other, _)| *other != number);
        }
    }

    fn refuse(&self, from: Option<SocketAddr>, why: &io::Error) {
        let mut shared = self.lock();
        let refused = &mut shared.refused;
        refused.count += 1;
        // Few events, however many connections a port scanner makes.
        if refused.count >= refused.next_event {
            refused.next_event = refused.count.saturating_mul(10);
            self.inner.events.send(Event::Refused {
                port: self.inner.rendezvous.port,
                count: refused.count,
                from: from.map(|from| from.to_string()),
                why: why.to_string(),
            });
        }
        if refused.logged.is_none_or(|logged| logged.elapsed() >= LOG_REFUSED) {
            refused.logged = Some(Instant::now());
            let (count, port) = (refused.count, self.inner.rendezvous.port);
            let from = from.map_or("an unknown address".to_owned(), |from| from.to_string());
            log!(
                "refused {} to port {port}, the last from {from}: {why}",
                units::counted(count as usize, "connection")
            );
        }
    }

    /// Reads a connection to its end. It replaces any earlier connection to that node.
    fn read(&self, authentic: Authentic) {
        let Authentic { node, stream, sealer, lines } = authentic;
        let is_broken = Arc::new(AtomicBool::new(false));
        let connection = {
            let mut shared = self.lock();
            shared.numbers += 1;
            let number = shared.numbers;
            // Register the new connection before the end of the earlier one is noticed, so that the node is not lost.
            self.inner.events.send(Event::Connected { node: node.clone(), connection: number });
            let new = Connection { number, stream, sealer, is_broken: is_broken.clone(), is_known: false };
            if let Some(earlier) = shared.connections.insert(node.clone(), new) {
                // The reading thread then sees the end of the connection.
                let _ = earlier.stream.shutdown(Shutdown::Both);
            }
            number
        };
        let how = match self.read_messages(&node, connection, lines) {
            Ok(()) if is_broken.load(Ordering::Relaxed) => Disconnect::Broken("connection reset".into()),
            Ok(()) => Disconnect::Closed,
            Err(error) => Disconnect::Broken(error.to_string()),
        };
        let mut shared = self.lock();
        if let Some(current) = shared.connections.get(&node).filter(|current| current.number == connection) {
            let _ = current.stream.shutdown(Shutdown::Both);
            shared.connections.remove(&node);
        }
        drop(shared);
        self.inner.events.send(Event::Disconnected { node, connection, how });
    }

    fn read_messages(&self, node: &NodeId, connection: u64, mut lines: SealedLines) -> io::Result<()> {
        while let Some(line) = lines.read()? {
            // A newer version may send additional messages.
            if let Some(message) = Message::read(&line) {
                self.inner.events.send(Event::Message { node: node.clone(), connection, message });
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn refused(&self) -> u64 {
        self.lock().refused.count
    }

    #[cfg(test)]
    pub(crate) fn pending(&self) -> usize {
        self.lock().pending.len()
    }
}

impl Shared {
    /// Adds a connection whose handshake begins, and closes the oldest if there are too many.
    fn admit(&mut self, stream: TcpStream, limit: usize) -> u64 {
        if self.pending.len() >= limit
            && let Some((_, oldest)) = self.pending.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        self.numbers += 1;
        self.pending.push_back((self.numbers, stream));
        self.numbers
    }
}

fn listen(rendezvous: &Rendezvous) -> Result<TcpListener, Failure> {
    let Rendezvous { port, this, .. } = rendezvous;
    let bound = TcpListener::bind(("::", *port)).or_else(|_| TcpListener::bind(("0.0.0.0", *port)));
    bound.map_err(|error| {
        let code = if error.kind() == io::ErrorKind::AddrInUse { ErrorCode::PortInUse } else { ErrorCode::StartFailed };
        Failure::new(
            code,
            "cannot listen to the supervisors of the other nodes",
            format!("port {port} of node {this}, the port after that of the ranks: {error}"),
            format!("`ss -lptn sport = :{port}` there shows the process that uses it; resume: another port is chosen"),
        )
    })
}

fn connect(address: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in (address, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_secs(3)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

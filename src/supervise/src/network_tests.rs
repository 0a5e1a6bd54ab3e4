//! Tests of the connections over real sockets, with peers, strangers, floods and replays.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use cluster::NodeId;
use rundir::{ErrorCode, PeerToken, RunDir};

use crate::decide::{Disconnect, Event, Rendezvous};
use crate::events::{self, Inputs};
use crate::handshake::Secret;
use crate::message::Message;
use crate::network::PeerConnections;
use crate::tests::{on_free_port, until};

/// Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// The network of one node, and the events that it produces.
struct End {
    network: PeerConnections,
    inputs: Inputs,
}

impl End {
    fn new(this: &str, port: u16, token: &PeerToken) -> Self {
        let (rendezvous, secret) = Self::rendezvous(this, "127.0.0.1", port, token);
        let (events, inputs) = events::events();
        Self { network: PeerConnections::new(rendezvous, secret, events), inputs }
    }

    fn rendezvous(this: &str, address: &str, port: u16, token: &PeerToken) -> (Rendezvous, Secret) {
        let rendezvous = Rendezvous {
            run: RunDir::new("/nowhere"),
            attempt: 1,
            this: node(this),
            first: node("node01"),
            others: [node("node02"), node("node03")].into(),
            address: address.into(),
            port,
            is_job: false,
            dependence: crate::decide::Dependence::Mutual,
        };
        (rendezvous, Secret { token: token.clone(), subject: "run 1".into() })
    }

    /// Makes the first node, which listens. Returns it and its port.
    fn listening(token: &PeerToken) -> (Self, u16) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let first = Self::new("node01", port, token);
        let network = first.network.clone();
        thread::spawn(move || network.accept(&listener));
        (first, port)
    }

    /// Returns the next event.
    fn next(&self) -> Event {
        self.within(PATIENCE).expect("no event came")
    }

    fn within(&self, time: Duration) -> Option<Event> {
        let until = self.inputs.elapsed() + time;
        loop {
            if let Some((_, event)) = self.inputs.wait_for_one(until) {
                // As the event loop does.
                if let Event::Connected { node, connection } = &event {
                    self.network.connected(node, *connection);
                }
                return Some(event);
            }
            if self.inputs.elapsed() >= until {
                return None;
            }
        }
    }

    fn connection(&self) -> u64 {
        loop {
            match self.next() {
                Event::Connected { connection, .. } => return connection,
                Event::Refused { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn until_broken(&self) {
        loop {
            match self.next() {
                Event::Disconnected { how: Disconnect::Broken(_), .. } => return,
                Event::Message { message: Message::Heartbeat, .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits until so many connections were refused. The first one, the tenth, the hundredth and so on are events.
    fn until_refused(&self, wanted: u64) {
        until(|| self.network.refused() >= wanted);
        match self.within(Duration::ZERO) {
            Some(Event::Refused { count, from, .. }) => assert!(from.is_some() && count <= wanted),
            other => assert_eq!(other, None, "a refused connection produces no other event"),
        }
    }
}

fn token() -> PeerToken {
    PeerToken::random().unwrap()
}

/// Starts a proxy between a caller and a listener, and returns its port. Each line goes through `change`, which returns
/// the text to forward.
fn between(port: u16, change: impl Fn(&str) -> String + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let own = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for caller in listener.incoming() {
            let (caller, called) = (caller.unwrap(), TcpStream::connect(("127.0.0.1", port)).unwrap());
            let (to_caller, to_called) = (caller.try_clone().unwrap(), called.try_clone().unwrap());
            let change = change.clone();
            thread::spawn(move || pass(&caller, to_called, change));
            thread::spawn(move || pass(&called, to_caller, str::to_owned));
        }
    });
    own
}

fn pass(from: &TcpStream, mut to: TcpStream, change: impl Fn(&str) -> String) {
    let mut lines = BufReader::new(from);
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
        if to.write_all(change(&line).as_bytes()).is_err() {
            return;
        }
        line.clear();
    }
}

#[test]
fn peers_connect_to_an_ipv6_address() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no IPv6");
        return;
    }
    let token = token();
    let end = |this, port| {
        let (rendezvous, secret) = End::rendezvous(this, "::1", port, &token);
        let (events, inputs) = events::events();
        Ok(End { network: PeerConnections::start(rendezvous, secret, events)?, inputs })
    };
    let (port, first) = on_free_port("::1", |port| end("node01", port));
    let other = end("node02", port).unwrap();
    other.network.dial();
    let _connections = (first.connection(), other.connection());
    other.network.send(None, &Message::Stop);
    while !matches!(first.next(), Event::Message { message: Message::Stop, .. }) {}
}

#[test]
fn peers_with_the_same_token_exchange_messages() {
    let token = token();
    let (first, port) = End::listening(&token);
    let other = End::new("node02", port, &token);
    other.network.dial();
    let (at_first, at_other) = (first.connection(), other.connection());
    for message in [Message::Stop, Message::Stopped(node("node03"))] {
        first.network.send(None, &message);
        other.network.send(Some(&node("node01")), &message);
        let (from, to) = (node("node01"), node("node02"));
        assert_eq!(other.next(), Event::Message { node: from, connection: at_other, message: message.clone() });
        assert_eq!(first.next(), Event::Message { node: to, connection: at_first, message });
    }
}

#[test]
fn a_stranger_without_the_token_of_the_attempt_is_refused_on_both_sides() {
    let (first, port) = End::listening(&token());
    let stranger = End::new("node02", port, &token());
    stranger.network.dial();
    assert!(matches!(stranger.next(), Event::DialFailed(_)));
    first.until_refused(1);
    // The strangers: one does not use the protocol, one names no node of the attempt, and one sends a message before
    // its proof.
    let zeros = "0".repeat(64);
    for hello in [
        "GET / HTTP/1.1\r\n",
        "vidtui-peer 1 node09 00\n",
        &format!("vidtui-peer 1 node02 {zeros}\n{zeros}\n{zeros} stop\n"),
    ] {
        let refused = first.network.refused();
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(hello.as_bytes()).unwrap();
        first.until_refused(refused + 1);
    }
}

#[test]
fn a_listener_without_the_token_cannot_pose_as_the_first_node() {
    let (_impostor, port) = End::listening(&token());
    let other = End::new("node02", port, &token());
    other.network.dial();
    assert!(matches!(other.next(), Event::DialFailed(_)));
    other.network.send(None, &Message::Stop);
    assert_eq!(other.within(Duration::ZERO), None);
}

#[test]
fn a_flood_of_connections_does_not_block_a_peer_and_few_stay_open() {
    let token = token();
    let (first, port) = End::listening(&token);
    let mut flood = Vec::new();
    for _ in 0..200 {
        flood.push(TcpStream::connect(("127.0.0.1", port)).unwrap());
        assert!(first.network.pending() <= 34);
    }
    let other = End::new("node02", port, &token);
    other.network.dial();
    first.connection();
    other.connection();
    assert!(first.network.pending() <= 34);
    // The oldest connections were closed.
    flood[0].set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(flood[0].read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn an_endless_line_ends_a_connection_before_and_after_its_handshake() {
    let token = token();
    let (first, port) = End::listening(&token);
    let mut endless = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // Read until the other side has closed.
    while endless.write_all(&[b'a'; 4096]).is_ok() {}
    first.until_refused(1);

    // After the handshake, send a line without an end.
    let port = between(port, |line| match line.ends_with(" stop\n") {
        true => "a".repeat(1 << 20),
        false => line.to_owned(),
    });
    let other = End::new("node02", port, &token);
    other.network.dial();
    other.connection();
    first.connection();
    other.network.send(None, &Message::Stop);
    first.until_broken();
}

#[test]
fn a_line_that_is_altered_repeated_or_left_out_ends_the_connection() {
    let changes: [fn(&str) -> String; 3] = [
        |line| line.replace(" stop\n", " done\n"),
        |line| if line.ends_with(" stop\n") { line.repeat(2) } else { line.to_owned() },
        |line| if line.ends_with(" stop\n") { String::new() } else { line.to_owned() },
    ];
    for (passed, change) in [0, 1, 0].into_iter().zip(changes) {
        let token = token();
        let (first, port) = End::listening(&token);
        let other = End::new("node02", between(port, change), &token);
        other.network.dial();
        let connection = first.connection();
        other.connection();
        other.network.send(None, &Message::Stop);
        other.network.send(None, &Message::Heartbeat);
        for _ in 0..passed {
            let message = Message::Stop;
            assert_eq!(first.next(), Event::Message { node: node("node02"), connection, message });
        }
        assert!(matches!(first.next(), Event::Disconnected { how: Disconnect::Broken(_), .. }));
    }
}

#[test]
fn a_recorded_connection_that_is_replayed_is_refused() {
    let token = token();
    let (first, port) = End::listening(&token);
    let (record, recorded) = std::sync::mpsc::channel();
    let through = between(port, move |line| {
        record.send(line.to_owned()).unwrap();
        line.to_owned()
    });
    let other = End::new("node02", through, &token);
    other.network.dial();
    first.connection();
    other.connection();
    other.network.send(None, &Message::Stop);
    assert!(matches!(first.next(), Event::Message { message: Message::Stop, .. }));
    let lines: Vec<String> = recorded.try_iter().collect();
    assert_eq!(lines.len(), 3, "the greeting, the proof and the message: {lines:?}");
    let mut replay = TcpStream::connect(("127.0.0.1", port)).unwrap();
    replay.write_all(lines.concat().as_bytes()).unwrap();
    first.until_refused(1);
}

#[test]
fn a_reset_connection_is_broken_on_both_sides_and_reconnected() {
    let token = token();
    let (first, port) = End::listening(&token);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let other = End::new("node02", listener.local_addr().unwrap().port(), &token);
    other.network.dial();
    let (caller, _) = listener.accept().unwrap();
    let called = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // The proxy forwards the handshake and no later line.
    for (from, to) in [(&caller, &called), (&called, &caller), (&caller, &called), (&called, &caller)] {
        let mut line = String::new();
        BufReader::with_capacity(1, from).read_line(&mut line).unwrap();
        (&mut &*to).write_all(line.as_bytes()).unwrap();
    }
    let earlier = (first.connection(), other.connection());
    // A socket that is closed while it holds unread bytes resets its connection.
    for (end, socket) in [(&other, caller), (&first, called)] {
        end.network.send(None, &Message::Heartbeat);
        socket.peek(&mut [0]).unwrap();
    }
    first.until_broken();
    other.until_broken();
    let again = End::new("node02", port, &token);
    again.network.dial();
    assert!(first.connection() > earlier.0);
    again.connection();
}

#[test]
fn a_newer_connection_of_a_node_takes_the_place_of_the_earlier_one() {
    let token = token();
    let (first, port) = End::listening(&token);
    let ends = [0, 1].map(|_| {
        let other = End::new("node02", port, &token);
        other.network.dial();
        (other.connection(), first.connection(), other).2
    });
    assert!(matches!(ends[0].next(), Event::Disconnected { .. }));
    first.network.send(Some(&node("node02")), &Message::Stop);
    assert!(matches!(ends[1].next(), Event::Message { message: Message::Stop, .. }));
}

#[test]
fn a_first_node_whose_port_is_taken_cannot_listen() {
    let (_folder, mut job) = crate::tests::job();
    let taken = TcpListener::bind(("0.0.0.0", 0)).unwrap();
    job.master.1 = taken.local_addr().unwrap().port() - 1;
    let secret = Secret { token: token(), subject: "run 1".into() };
    let failure = PeerConnections::start(crate::rendezvous(&job), secret, events::events().0).err().unwrap();
    assert_eq!(failure.code, ErrorCode::PortInUse);
}

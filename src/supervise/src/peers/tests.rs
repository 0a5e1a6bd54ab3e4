//! Supervisors that watch each other, in one process.

use std::cell::RefCell;
use std::fs;
use std::sync::mpsc::{self, Receiver};

use rundir::{ExitFile, SCHEMA};

use super::*;

/// Only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn until(holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it never held");
        thread::sleep(Duration::from_millis(5));
    }
}

impl Peers {
    fn failure(&self) -> Failure {
        self.loss().unwrap().failure()
    }
}

/// The supervisors of node01, the first, and of node02, with a folder in common; not yet connected.
struct Pair {
    _folder: tempfile::TempDir,
    listener: TcpListener,
    first: (Peers, Receiver<i32>),
    other: (Peers, Receiver<i32>),
}

impl Pair {
    fn new() -> Self {
        Self::with(SILENCE)
    }

    fn with(silence: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let [first, other] = ["node01", "node02"].map(|this| {
            let (wake, woken) = mpsc::channel();
            let meeting = Meeting {
                run: RunDir::new(folder.path().to_str().unwrap()),
                is_job: false,
                attempt: 1,
                subject: "run 1".into(),
                this: node(this),
                first: node("node01"),
                others: BTreeSet::from([node("node02")]),
                address: "127.0.0.1".into(),
                port,
                silence,
                steps_take_all: true,
            };
            (Peers::new(meeting, wake), woken)
        });
        Self { _folder: folder, listener, first, other }
    }

    /// Returns what the first and the other know, once they are connected.
    fn connected() -> (Peers, Peers, Receiver<i32>, Receiver<i32>) {
        Self::new().connect()
    }

    fn connect(self) -> (Peers, Peers, Receiver<i32>, Receiver<i32>) {
        let Self { listener, first: (first, first_woken), other: (other, other_woken), .. } = self;
        let (listening, following) = (first.clone(), other.clone());
        thread::spawn(move || listening.listen(&listener));
        thread::spawn(move || following.follow(PATIENCE));
        until(|| [&first, &other].iter().all(|peers| !peers.lock().listeners.is_empty()));
        (first, other, first_woken, other_woken)
    }

    /// Writes how a node ended, as its supervisor does.
    fn ended(&self, name: &str, reason: ExitReason, failure: Option<Failure>) {
        let run = &self.first.0.meeting.run;
        fs::create_dir_all(run.node_dir(&node(name))).unwrap();
        let (ranks, first_failure) = (Vec::new(), None);
        run.write_exit(&ExitFile {
            schema: SCHEMA,
            attempt: 1,
            node: node(name),
            ended_s: 1.0,
            reason,
            first_failure,
            failure,
            ranks,
        })
        .unwrap();
    }
}

#[test]
fn a_failure_is_told_to_all_as_the_reason_of_theirs() {
    let (first, other, woken, _) = Pair::connected();
    other.tell(&Failure::new(
        rundir::ErrorCode::Unclassified,
        "rank 3 on node node02 failed",
        "exit code 9",
        "read its log",
    ));
    assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS));
    let loss = first.failure();
    assert!(loss.is_consequence());
    assert_eq!(loss.why, "node node02 failed: rank 3 on node node02 failed: exit code 9");
}

#[test]
fn that_a_stop_ended_ranks_is_told_to_all_as_that_and_a_failure_counts_more() {
    let (first, other, woken, other_woken) = Pair::connected();
    other.say(&Word::Stopped(node("node02")));
    for (peers, woken) in [(&first, &woken), (&other, &other_woken)] {
        assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS));
        assert_eq!(peers.loss(), Some(Loss::Stopped(node("node02"))));
    }
    other.tell(&Failure::new(
        rundir::ErrorCode::Unclassified,
        "rank 3 on node node02 failed",
        "exit code 9",
        "read its log",
    ));
    assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS));
    assert_eq!(first.failure().why, "node node02 failed: rank 3 on node node02 failed: exit code 9");
}

#[test]
fn a_stop_that_the_first_node_was_asked_for_is_heard_by_those_who_call_later_too() {
    let Pair { _folder, listener, first: (first, _first_woken), other: (other, woken) } = Pair::new();
    first.ask_to_stop();
    let listening = first.clone();
    thread::spawn(move || listening.listen(&listener));
    let following = other.clone();
    thread::spawn(move || following.follow(PATIENCE));
    assert_eq!(woken.recv_timeout(PATIENCE), Ok(STOP));
    assert_eq!(other.loss(), None);
}

#[test]
fn whoever_hangs_up_without_goodbye_is_lost_and_whoever_says_it_is_not() {
    let (first, other, woken, _other_woken) = Pair::connected();
    other.lock().listeners[&node("node01")].shutdown(Shutdown::Both).unwrap();
    assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS));
    assert_eq!(first.failure().what, "node node02 was lost");

    // What a supervisor hears ends with the goodbye, whatever becomes of the connection.
    let Pair { listener, first: (first, _first_woken), other: (other, _), .. } = Pair::new();
    let _lines = other.connect().unwrap();
    other.leave();
    other.lock().listeners[&node("node01")].shutdown(Shutdown::Both).unwrap();
    let (peer, _) = listener.accept().unwrap();
    let (name, lines) = greet(&peer, &first.meeting).unwrap();
    first.hear_follower(&name, peer, lines);
    assert_eq!(first.loss(), None);
}

#[test]
fn a_connection_that_is_reset_is_made_again_and_what_was_said_meanwhile_is_heard() {
    let Pair { _folder, listener: between, first: (first, woken), other: (other, other_woken) } = Pair::with(PATIENCE);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (listening, following) = (first.clone(), other.clone());
    thread::spawn(move || listening.listen(&listener));
    thread::spawn(move || following.follow(PATIENCE));
    between.set_nonblocking(true).unwrap();
    let put_through = || {
        let caller = RefCell::new(None);
        until(|| between.accept().map(|(peer, _)| caller.replace(Some(peer))).is_ok());
        let caller = caller.take().unwrap();
        caller.set_nonblocking(false).unwrap();
        (caller, TcpStream::connect(("127.0.0.1", port)).unwrap())
    };

    let (caller, mut called) = put_through();
    let mut hello = String::new();
    BufReader::with_capacity(1, &caller).read_line(&mut hello).unwrap();
    called.write_all(hello.as_bytes()).unwrap();
    until(|| [&first, &other].iter().all(|peers| !peers.lock().listeners.is_empty()));
    // A socket that is closed while there is something in it that nobody read resets its connection.
    for (peers, socket) in [(&other, caller), (&first, called)] {
        peers.say(&Word::Here);
        socket.peek(&mut [0]).unwrap();
    }
    first.ask_to_stop();
    other.tell(&Failure::new(
        rundir::ErrorCode::Unclassified,
        "rank 3 on node node02 failed",
        "exit code 9",
        "read its log",
    ));

    let (caller, called) = put_through();
    let ways = [(caller.try_clone(), called.try_clone()), (Ok(called), Ok(caller))];
    for (from, to) in ways {
        thread::spawn(move || io::copy(&mut from.unwrap(), &mut to.unwrap()));
    }
    assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS));
    assert_eq!(first.failure().why, "node node02 failed: rank 3 on node node02 failed: exit code 9");
    assert_eq!(other_woken.recv_timeout(PATIENCE), Ok(STOP));
    assert_eq!(other.lock().joined[&node("node01")], 2);
}

#[test]
fn one_whose_connection_broke_and_that_does_not_call_again_is_lost() {
    let Pair { _folder, listener, first: (first, woken), .. } = Pair::with(Duration::from_secs(4));
    let port = listener.local_addr().unwrap().port();
    let listening = first.clone();
    thread::spawn(move || listening.listen(&listener));
    let mut caller = TcpStream::connect(("127.0.0.1", port)).unwrap();
    caller.write_all(b"run 1 node02\n").unwrap();
    until(|| !first.lock().listeners.is_empty());
    first.say(&Word::Here);
    caller.peek(&mut [0]).unwrap();
    drop(caller);
    assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS));
    let loss = first.failure();
    assert_eq!(loss.what, "node node02 was lost");
    assert!(loss.why.ends_with("it did not call again"), "{loss}");
}

#[test]
fn a_first_node_that_hears_nobody_any_more_blames_none_of_them() {
    let said = |seconds: &[u64]| {
        let Pair { _folder, first: (first, _woken), .. } = Pair::new();
        let ago = |seconds: &u64| Instant::now().checked_sub(Duration::from_secs(*seconds)).unwrap();
        let names = (2..).map(|n| node(&format!("node0{n}")));
        first.lock().heard = names.zip(seconds.iter().map(ago)).collect();
        first.take(&node("node02"), Heard::Lost("its supervisor said nothing".into()));
        first.failure()
    };
    assert_eq!(said(&[10, 1, 9]).what, "node node02 was lost");
    assert_eq!(said(&[10]).what, "node node02 was lost", "of two, either may be cut off");
    let alone = said(&[10, 9, 9]);
    assert!(alone.is_consequence());
    assert_eq!(alone.why, "node node01, where rank 0 is, hears no other any more: its network is down");
}

#[test]
fn a_node_that_was_cut_off_and_says_so_on_a_disk_that_it_still_sees_is_lost() {
    let pair = Pair::new();
    let settled = |peers: &Peers, name| match peers.settle(&node(name), Heard::Lost("it said nothing".into())) {
        Heard::Lost(how) => how,
        Heard::Failed(failure) => failure.why,
        Heard::Bye | Heard::Stopped => unreachable!("it failed"),
    };
    let follows = |why: &str| Some(Failure::peer_lost(None, why, ""));
    pair.ended("node02", ExitReason::Failed, follows("node node01, where rank 0 is: its supervisor said nothing"));
    assert_eq!(settled(&pair.first.0, "node02"), "it said nothing");
    // What the first node heard of a third is the reason.
    pair.ended("node01", ExitReason::Failed, follows("node node03 failed: rank 2 failed"));
    assert_eq!(settled(&pair.other.0, "node01"), "node node03 failed: rank 2 failed");
}

#[test]
fn nobody_is_lost_for_silence_while_the_run_makes_steps() {
    // Nobody says anything here.
    let (first, other, woken, _other_woken) = Pair::with(Duration::from_secs(4)).connect();
    let run = first.meeting.run.clone();
    fs::create_dir_all(&run.root).unwrap();
    let mut metrics = fs::File::create(run.metrics()).unwrap();
    let until = Instant::now() + 2 * first.meeting.silence;
    while Instant::now() < until {
        writeln!(metrics, "{{}}").unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((first.loss(), other.loss()), (None, None));
    assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS), "it makes none any more");
    assert_eq!(first.failure().why, "its supervisor said nothing for 4 s: the node or its network is down");
    fs::remove_dir_all(&run.root).unwrap();
}

#[test]
fn the_first_node_is_missed_as_well() {
    let (first, other, _first_woken, woken) = Pair::connected();
    first.lock().listeners[&node("node02")].shutdown(Shutdown::Both).unwrap();
    assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS));
    let loss = other.failure();
    assert_eq!(
        (loss.is_consequence(), loss.why.as_str()),
        (true, "node node01, where rank 0 is: its supervisor hung up without a word")
    );
}

#[test]
fn a_node_that_never_calls_is_lost_and_so_is_a_first_one_that_never_listens() {
    let pair = Pair::new();
    pair.first.0.miss(Duration::ZERO);
    let loss = pair.first.0.failure();
    assert_eq!(loss.what, "node node02 was lost");
    assert!(loss.why.starts_with("its supervisor has not called that of node node01"), "{loss}");
    assert!(loss.why.contains("it has not started"), "{loss}");

    drop(pair.listener);
    pair.other.0.follow(Duration::ZERO);
    let loss = pair.other.0.failure();
    assert!(loss.is_consequence());
    assert!(loss.why.contains("cannot be reached: Connection refused"), "{loss}");
}

#[test]
fn of_a_node_that_ended_before_it_was_connected_its_exit_file_tells() {
    let failed = |node: &str| {
        Some(Failure::new(
            rundir::ErrorCode::Unclassified,
            "cannot start rank 1",
            format!("node {node}: no such file"),
            "look",
        ))
    };
    let pair = Pair::new();
    pair.ended("node02", ExitReason::Failed, failed("node02"));
    pair.first.0.miss(PATIENCE);
    let loss = pair.first.0.failure();
    assert!(loss.is_consequence());
    assert_eq!(loss.why, "node node02 failed: cannot start rank 1: node node02: no such file");

    let pair = Pair::new();
    pair.ended("node01", ExitReason::Failed, failed("node01"));
    drop(pair.listener);
    pair.other.0.follow(PATIENCE);
    assert!(pair.other.0.failure().why.starts_with("node node01 failed: cannot start rank 1"));

    let pair = Pair::new();
    pair.ended("node02", ExitReason::Killed, None);
    pair.first.0.miss(PATIENCE);
    assert_eq!(pair.first.0.loss(), Some(Loss::Stopped(node("node02"))));

    // One that has done what there was to do is not missed.
    let pair = Pair::new();
    pair.ended("node02", ExitReason::Finished, None);
    pair.first.0.miss(PATIENCE);
    assert_eq!(pair.first.0.loss(), None);
}

#[test]
fn a_first_node_whose_port_is_taken_says_so() {
    let (_folder, mut job) = crate::tests::job();
    let taken = TcpListener::bind(("0.0.0.0", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    job.master.1 = port - 1;
    let failure = Peers::watch(&job, mpsc::channel().0).err().unwrap();
    assert_eq!(failure.what, "cannot listen to the supervisors of the other nodes");
    assert!(failure.why.starts_with(&format!("port {port} of node here")), "{failure}");
    assert!(failure.why.contains("in use"), "{failure}");
}

//! Tests of the supervisor with shell scripts as ranks: processes, signals, files and, for two nodes, sockets.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use cluster::{Node, NodeId, Placement};
use recipe::Mesh;
use rundir::{
    Attempt, AttemptWhy, Cause, ErrorCode, EventKind, ExitFile, ExitReason, Failure, Run, RunDir, RunId, SCHEMA,
    StartFrom, read_events,
};
use signal_hook::consts::{SIGKILL, SIGTERM, SIGUSR1};

use super::decide::{Event, Waits};
use super::event_loop::{self, Outside, start_ranks};
use super::events::{self, Events, Inputs};
use super::job::Job;
use super::{connect, state, watch_stop_file};

/// A time limit that no passing test reaches.
const PATIENCE: Duration = Duration::from_secs(60);
/// A grace period that no test waits for.
const LONG: Duration = Duration::from_secs(50);

struct Scene {
    _folder: Arc<tempfile::TempDir>,
    job: Job,
    events: Events,
    inputs: Inputs,
    outside: Option<Outside>,
}

/// Returns a job of one rank on this machine, and its folder.
pub(crate) fn job() -> (Arc<tempfile::TempDir>, Job) {
    let Scene { _folder, job, .. } = scene(1);
    (_folder, job)
}

fn scene(world: usize) -> Scene {
    scene_of(Arc::new(tempfile::tempdir().unwrap()), &["here"], "here", world)
}

/// Returns the job of the node `this`. All nodes have `slots` ranks and share the folder.
fn scene_of(folder: Arc<tempfile::TempDir>, nodes: &[&str], this: &str, slots: usize) -> Scene {
    let root = Utf8PathBuf::from_path_buf(folder.path().join("run")).unwrap();
    let run = RunDir::new(root);
    let node = NodeId::new(this).unwrap();
    fs::create_dir_all(run.log_dir(&node)).unwrap();
    let nodes: Vec<Node> = nodes.iter().map(|id| Node { id: NodeId::new(*id).unwrap(), slots }).collect();
    let world = nodes.len() * slots;
    let placement = Placement::new(&nodes, world).unwrap();
    let attempt = Attempt {
        schema: SCHEMA,
        number: 3,
        why: AttemptWhy::Resume,
        by: "me@here".into(),
        started_s: 0.0,
        start_step: 0,
        start: StartFrom::Random,
        asked_step: None,
        steps: None,
        changed: Vec::new(),
        checkpoint: None,
        waived: Vec::new(),
        mesh: Mesh { dp_replicate: 1, dp_shard: world, tp: 1 },
        placement,
        logins: Vec::new(),
        spares: Vec::new(),
        slurm: None,
    };
    let (events, inputs) = events::events();
    // SIGCHLD would reach every test of this process, so check often instead.
    let tick = events.clone();
    thread::spawn(move || {
        let deadline = Instant::now() + 2 * PATIENCE;
        while Instant::now() < deadline {
            tick.child_exited();
            thread::sleep(Duration::from_millis(5));
        }
    });
    let meta = meta();
    let job = Job {
        recipe: meta.recipe().unwrap(),
        meta,
        secrets: recipe::Secrets::default(),
        local_world: slots,
        id: RunId::parse("2026-11-20T0340-demo-k7f2").unwrap(),
        places: attempt.placement.ranks.iter().filter(|place| place.node == node).cloned().collect(),
        attempt,
        threads: 2,
        master: ("127.0.0.1".into(), 4242),
        store: Some(run.store_file(&node, 3)),
        run,
        node,
    };
    Scene { _folder: folder, job, events, inputs, outside: None }
}

/// Returns the supervisors of two nodes that run a command and connect to each other. The first node's is first.
fn pair() -> [Scene; 2] {
    // Orphans of a command are identified by their node, and other tests run on the same machine.
    static PAIRS: AtomicU32 = AtomicU32::new(0);
    let number = PAIRS.fetch_add(1, Ordering::Relaxed);
    let names = ["one", "two"].map(|name| format!("{name}-{}-{number}", std::process::id()));
    let nodes = [names[0].as_str(), names[1].as_str()];
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let [mut first, mut second] = nodes.map(|this| {
        let mut scene = scene_of(folder.clone(), &nodes, this, 1);
        scene.job.recipe.trainer = recipe::TrainerKind::Command;
        fs::create_dir_all(scene.job.run.attempt_dir(3)).unwrap();
        scene.job.run.make_peer_token(3).unwrap();
        scene
    });
    let (port, outside) = on_free_port("0.0.0.0", |port| {
        first.job.master.1 = port - 1;
        connect(&first.job, &first.events)
    });
    first.outside = Some(outside);
    second.job.master.1 = port - 1;
    second.outside = Some(connect(&second.job, &second.events).unwrap());
    [first, second]
}

/// Calls `listen` with a port that the system has chosen, until it listens: another process may take the port first.
pub(crate) fn on_free_port<T>(address: &str, mut listen: impl FnMut(u16) -> Result<T, Failure>) -> (u16, T) {
    for _ in 0..100 {
        let port = TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port();
        match listen(port) {
            Ok(listening) => return (port, listening),
            Err(failure) => assert_eq!(failure.code, ErrorCode::PortInUse, "{failure}"),
        }
    }
    panic!("every port is taken");
}

/// A supervisor that runs in a separate thread.
struct Supervising {
    events: Events,
    root: Utf8PathBuf,
    exit: JoinHandle<ExitFile>,
}

impl Supervising {
    fn start(scene: Scene, script: &'static str, grace: Duration) -> Self {
        let (events, root) = (scene.events.clone(), scene.job.run.root.clone());
        Self { events, root, exit: thread::spawn(move || scene.supervise(script, grace)) }
    }

    fn until_made(&self, file: &str) {
        until(|| self.root.join(file).exists());
    }
}

/// Waits until a condition holds.
pub(crate) fn until(holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it never held");
        thread::sleep(Duration::from_millis(5));
    }
}

fn meta() -> Run {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
    Run {
        schema: SCHEMA,
        id: RunId::parse("2026-11-20T0340-demo-k7f2").unwrap(),
        name: "demo".into(),
        curriculum: None,
        stage: None,
        created_s: 1000.0,
        git_commit: None,
        trainer_sha256: None,
        trainer_version: "0.1.0".into(),
        libtorch: String::new(),
        start: StartFrom::Random,
        lineage: None,
        imported: None,
        attached: None,
        launched_from: None,
        recipe: recipe::load(path.into(), &[]).unwrap().table,
    }
}

impl Scene {
    /// Supervises ranks that run `script`, in which `$RANK` is the rank and `$RUN` the run directory.
    fn supervise(&self, script: &str, grace: Duration) -> ExitFile {
        let started = Instant::now();
        let command = |_: &cluster::RankPlace| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).env("RUN", &self.job.run.root);
            command
        };
        let exit = self.run(command, grace);
        assert!(started.elapsed() < PATIENCE, "no time limit was reached");
        assert_eq!(
            self.job.run.read_exit(&self.job.node, 3).unwrap().as_ref(),
            Some(&exit),
            "the exit file holds the same"
        );
        exit
    }

    fn run(&self, command: impl Fn(&cluster::RankPlace) -> Command, grace: Duration) -> ExitFile {
        let state = state(&self.job, Waits { grace, lost_grace: grace, reason: LONG });
        let start = || start_ranks(&self.job, command);
        event_loop::run(&self.job, start, &self.inputs, self.outside.as_ref(), state)
    }

    /// Sends `signal` to the supervisor once `file` exists in the run directory.
    fn signal_when(&self, file: &str, signal: i32) {
        let (path, events) = (self.job.run.root.join(file), self.events.clone());
        thread::spawn(move || {
            let deadline = Instant::now() + PATIENCE;
            while !path.exists() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(5));
            }
            events.send(Event::Signal(signal));
        });
    }

    fn events(&self) -> Vec<EventKind> {
        read_events(&self.job.run).unwrap().into_iter().map(|event| event.kind).collect()
    }

    fn log(&self, rank: usize) -> String {
        fs::read_to_string(self.job.run.rank_log(&self.job.node, 3, rank)).unwrap()
    }
}

fn by_rank(exit: &ExitFile) -> BTreeMap<usize, (Option<i32>, Option<i32>)> {
    exit.ranks.iter().map(|rank| (rank.rank, (rank.code, rank.signal))).collect()
}

#[test]
fn ranks_that_all_finish_make_a_finished_attempt() {
    let scene = scene(2);
    let line = r#"{"v":1,"t":1,"attempt":3,"rank":0,"step":20,"event":"finished"}"#;
    let exit = scene.supervise(&format!("[ $RANK = 1 ] || echo '{line}' >> $RUN/events.jsonl"), LONG);
    assert_eq!((exit.reason, exit.first_failure, &exit.failure), (ExitReason::Finished, None, &None));
    assert_eq!(by_rank(&exit), BTreeMap::from([(0, (Some(0), None)), (1, (Some(0), None))]));
    assert_eq!(scene.events(), [EventKind::Finished]);
}

#[test]
fn the_environment_of_a_rank_holds_its_place_and_its_run() {
    let scene = scene(2);
    let names = "VIDTUI_RUN VIDTUI_ATTEMPT RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT OMP_NUM_THREADS";
    let exit =
        scene.supervise(&format!("for n in {names}; do eval echo \\$$n; done; cat; echo $VIDTUI_STORE >&2"), LONG);
    assert_eq!(exit.reason, ExitReason::Stopped, "no event reports that all steps are done");
    let store = &scene.job.store.as_ref().unwrap();
    let want = format!("2026-11-20T0340-demo-k7f2\n3\n1\n1\n2\n2\n0\n127.0.0.1\n4242\n2\n{store}\n");
    assert_eq!(scene.log(1), want);
}

#[test]
fn the_process_file_names_every_process() {
    let scene = scene(2);
    let script = "while [ ! -e $RUN/nodes/here/0003.pid.toml ]; do sleep 0.01; done; echo $$";
    scene.supervise(script, LONG);
    let pids = scene.job.run.read_pid(&scene.job.node, 3).unwrap().unwrap();
    assert_eq!(pids.pid, std::process::id() as i32);
    assert_eq!(pids.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>(), [0, 1]);
    for rank in &pids.ranks {
        assert_eq!(scene.log(rank.rank).trim(), rank.pid.to_string());
        assert!(rank.start_ticks >= pids.start_ticks && pids.start_ticks > 0);
    }
}

#[test]
fn when_a_rank_fails_the_others_are_ended_and_the_first_cause_is_reported() {
    let scene = scene(3);
    let script = r#"
        trap 'exit 1' TERM
        touch $RUN/trap$RANK
        if [ $RANK = 1 ]; then
            while [ ! -e $RUN/trap0 ] || [ ! -e $RUN/trap2 ]; do sleep 0.01; done
            exit 7
        fi
        while :; do sleep 0.01; done"#;
    let reported =
        Failure::new(ErrorCode::Malformed, "cannot read latent.safetensors", "3 bytes are missing", "copy it again");
    scene.job.run.write_rank_failure(&scene.job.node, 3, 1, &reported).unwrap();
    let exit = scene.supervise(script, LONG);
    assert_eq!((exit.reason, exit.first_failure), (ExitReason::Failed, Some(1)));
    assert_eq!(exit.ranks[0].rank, 1, "the first failure is shown first");
    assert_eq!(exit.ranks[0].code, Some(7));
    assert_eq!(by_rank(&exit)[&0], (Some(1), None));
    let failure = exit.failure.unwrap();
    assert_eq!((failure.code, &failure.what, &failure.fix), (reported.code, &reported.what, &reported.fix));
    assert!(failure.why.starts_with(&reported.why) && failure.why.contains("rank 1"), "{failure}");
    let [EventKind::RankDied { rank: 1, code: Some(7), signal: None, message, cause: Cause::Root }] =
        &scene.events()[..]
    else {
        panic!("one event for the first cause: {:?}", scene.events());
    };
    assert_eq!(*message, format!("{}: {}", failure.what, failure.why));
}

#[test]
fn a_rank_that_ignores_term_is_killed_after_the_grace() {
    let scene = scene(2);
    let script = "trap '' TERM; touch $RUN/ready$RANK
        while [ ! -e $RUN/ready0 ]; do sleep 0.01; done
        [ $RANK = 0 ] || exit 3
        while :; do sleep 0.01; done";
    let exit = scene.supervise(script, Duration::from_millis(200));
    assert_eq!(exit.first_failure, Some(1));
    assert_eq!(by_rank(&exit)[&0], (None, Some(SIGKILL)));
    assert_eq!((exit.failure.unwrap().code, exit.ranks[0].code), (ErrorCode::RankFailed, Some(3)));
}

#[test]
fn a_killed_rank_is_reported_with_its_signal() {
    let scene = scene(1);
    let exit = scene.supervise("kill -9 $$", LONG);
    assert_eq!((exit.ranks[0].code, exit.ranks[0].signal), (None, Some(SIGKILL)));
    let failure = exit.failure.unwrap();
    assert_eq!(failure.cause, Cause::Root);
    assert!([ErrorCode::RankKilled, ErrorCode::OutOfMemory].contains(&failure.code), "{failure}");
}

#[test]
fn the_exit_file_is_written_as_soon_as_possible() {
    let scene = scene(1);
    let exit_file = scene.job.run.exit_toml(&scene.job.node, 3);
    // A folder that is not empty is in the place of the file, so that no rename to it succeeds, even as root.
    fs::create_dir_all(exit_file.join("in the way")).unwrap();
    let (ended, obstacle) = (scene.job.run.root.join("ended"), exit_file.clone());
    thread::spawn(move || {
        let deadline = Instant::now() + PATIENCE;
        while !ended.exists() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        fs::remove_dir_all(obstacle).unwrap();
    });
    let exit = scene.supervise("touch $RUN/ended; exit 7", LONG);
    assert_eq!((exit.reason, exit.ranks[0].code), (ExitReason::Failed, Some(7)));
}

#[test]
fn a_supervisor_that_cannot_write_its_exit_file_ends_at_a_term() {
    let scene = scene(1);
    fs::create_dir_all(scene.job.run.exit_toml(&scene.job.node, 3).join("in the way")).unwrap();
    let script = "trap '' TERM; touch $RUN/ready; while [ ! -e $RUN/stop ]; do sleep 0.01; done; exit 7";
    let (events, root, has_ended) =
        (scene.events.clone(), scene.job.run.root.clone(), Arc::new(AtomicBool::new(false)));
    let ended = has_ended.clone();
    thread::spawn(move || {
        while !root.join("ready").exists() {
            thread::sleep(Duration::from_millis(5));
        }
        fs::write(root.join("stop"), "").unwrap();
        // Repeat the signal, because the supervisor ends at TERM only after its rank has ended.
        while !ended.load(Ordering::Relaxed) {
            events.send(Event::Signal(SIGTERM));
            thread::sleep(Duration::from_millis(20));
        }
    });
    let command = |_: &cluster::RankPlace| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("RUN", &scene.job.run.root);
        command
    };
    let exit = scene.run(command, LONG);
    has_ended.store(true, Ordering::Relaxed);
    assert_eq!(exit.ranks[0].code, Some(7));
}

#[test]
fn a_panic_is_reported_by_its_message() {
    let scene = scene(1);
    let script = "echo \"thread 'main' panicked at src/x.rs:1:2:\" >&2
        echo 'no such shard' >&2; echo 'note: run with RUST_BACKTRACE=1' >&2; exit 101";
    let exit = scene.supervise(script, LONG);
    let failure = exit.failure.unwrap();
    assert!(failure.code == ErrorCode::RankFailed && failure.why.ends_with("no such shard"), "{failure}");
}

#[test]
fn term_reaches_every_rank_and_is_no_failure() {
    let scene = scene(2);
    scene.signal_when("ready", SIGTERM);
    let script = "trap 'echo saved; exit 0' TERM; touch $RUN/trap$RANK
        [ -e $RUN/trap0 ] && [ -e $RUN/trap1 ] && touch $RUN/ready
        while :; do sleep 0.01; done";
    let exit = scene.supervise(script, LONG);
    assert_eq!((exit.reason, exit.first_failure), (ExitReason::Stopped, None));
    assert_eq!([scene.log(0), scene.log(1)], ["saved\n", "saved\n"]);
    assert_eq!(scene.events(), [EventKind::SignalReceived { signal: SIGTERM }]);
}

#[test]
fn ranks_that_end_by_the_term_itself_count_as_killed() {
    let scene = scene(2);
    scene.signal_when("ready", SIGTERM);
    let exit = scene.supervise("touch $RUN/ready; while :; do sleep 0.01; done", LONG);
    assert_eq!((exit.reason, exit.first_failure), (ExitReason::Killed, None));
    assert_eq!(by_rank(&exit)[&0], (None, Some(SIGTERM)));
}

#[test]
fn usr1_is_passed_on_and_the_run_continues() {
    let scene = scene(1);
    scene.signal_when("ready", SIGUSR1);
    let script = "trap 'echo saved; exit 0' USR1; touch $RUN/ready; while :; do sleep 0.01; done";
    let exit = scene.supervise(script, LONG);
    assert_eq!((exit.reason, scene.log(0).as_str()), (ExitReason::Stopped, "saved\n"));
    assert_eq!(scene.events(), [EventKind::SignalReceived { signal: SIGUSR1 }]);
}

#[test]
fn a_long_log_is_kept_whole_and_its_last_lines_are_in_the_exit_file() {
    let scene = scene(1);
    let exit =
        scene.supervise("yes 0123456789012345678901234567890 | head -c 10000000; printf '\\033[1mdone\\n' >&2", LONG);
    assert_eq!(scene.log(0).len(), 10_000_000 + 9);
    let tail = &exit.ranks[0].stderr_tail;
    assert_eq!(tail.len(), 20);
    assert_eq!(tail.last().map(String::as_str), Some("done"), "without control sequences");
}

#[test]
fn a_program_that_cannot_be_started_is_an_error_and_leaves_no_rank_behind() {
    let scene = scene(2);
    let command = |place: &cluster::RankPlace| match place.rank {
        0 => {
            let mut command = Command::new("sh");
            command.args(["-c", "exec sleep 100"]);
            command
        }
        _ => Command::new("/nowhere/vidtui-train"),
    };
    let started = Instant::now();
    let failure = scene.run(command, LONG).failure.unwrap();
    assert!(started.elapsed() < PATIENCE, "rank 0 was not waited for");
    assert_eq!(failure.code, ErrorCode::StartFailed);
    assert!(failure.what.contains("rank 1"), "{failure}");
}

#[test]
fn a_stop_file_and_a_term_are_one_stop_request_for_the_ranks_of_all_nodes() {
    let scenes = pair();
    let _folder = scenes[0]._folder.clone();
    watch_stop_file(&scenes[0].job.run, scenes[0].events.clone());
    let script = "trap 'echo stop; touch $RUN/stop$GROUP_RANK' TERM; touch $RUN/ready$GROUP_RANK
        trap '[ ! -e $RUN/again$GROUP_RANK ] || exit 0; touch $RUN/again$GROUP_RANK' USR1
        while :; do sleep 0.01; done";
    let logs = [0, 1].map(|rank| scenes[rank].job.run.rank_log(&scenes[rank].job.node, 3, rank));
    let run = scenes[0].job.run.clone();
    let nodes = scenes.map(|scene| Supervising::start(scene, script, LONG));
    nodes[0].until_made("ready0");
    nodes[1].until_made("ready1");
    fs::write(run.stop_file(), "").unwrap();
    for (rank, node) in nodes.into_iter().enumerate() {
        node.until_made(&format!("stop{rank}"));
        for signal in [SIGTERM, SIGUSR1] {
            node.events.send(Event::Signal(signal));
        }
        // USR1 has arrived, so TERM would have arrived too if it had been passed on. A shell may handle it second, but
        // before another USR1.
        node.until_made(&format!("again{rank}"));
        node.events.send(Event::Signal(SIGUSR1));
        assert_eq!(node.exit.join().unwrap().reason, ExitReason::Stopped);
        assert_eq!(fs::read_to_string(&logs[rank]).unwrap(), "stop\n");
    }
    let stops = read_events(&run).unwrap().into_iter().filter(|event| matches!(event.kind, EventKind::Stopping { .. }));
    assert_eq!(stops.count(), 1);
}

#[test]
fn the_failure_of_a_rank_ends_the_ranks_of_the_other_node_with_that_cause() {
    for failing in [0, 1] {
        let nodes = pair().map(|scene| {
            let failed = scene.job.node.clone();
            let script =
                "touch $RUN/ready$GROUP_RANK; while :; do [ -e $RUN/fail$GROUP_RANK ] && exit 9; sleep 0.01; done";
            (failed, Supervising::start(scene, script, LONG))
        });
        nodes.iter().enumerate().for_each(|(rank, (_, node))| node.until_made(&format!("ready{rank}")));
        fs::write(nodes[0].1.root.join(format!("fail{failing}")), "").unwrap();
        let failed = nodes[failing].0.clone();
        let exits = nodes.map(|(_, node)| node.exit.join().unwrap().failure.unwrap());
        assert_eq!((exits[failing].code, &exits[failing].cause), (ErrorCode::RankFailed, &Cause::Root));
        assert_eq!(
            (exits[1 - failing].code, &exits[1 - failing].cause),
            (ErrorCode::PeerLost, &Cause::Peer(Some(failed)))
        );
    }
}

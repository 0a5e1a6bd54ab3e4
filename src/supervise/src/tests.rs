//! The supervisor with shell scripts for ranks.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use cluster::{Node, NodeId, Placement};
use recipe::Mesh;
use rundir::{
    Attempt, AttemptWhy, Cause, ErrorCode, EventKind, ExitFile, ExitReason, Failure, Run, RunDir, RunId, SCHEMA,
    StartFrom, read_events,
};
use signal_hook::consts::{SIGCHLD, SIGKILL, SIGTERM, SIGUSR1};

use super::job::Job;
use super::peers::{Loss, Peers};
use super::{Waits, heed_stop_file, supervise_with};

/// Longer than anything here takes; the ranks of a test that fails end by themselves.
const PATIENCE: Duration = Duration::from_secs(60);
/// A grace that no test waits for.
const LONG: Duration = Duration::from_secs(50);
const LONG_WAITS: Waits = Waits { grace: LONG, hearsay: LONG };

struct Scene {
    _folder: Arc<tempfile::TempDir>,
    job: Job,
    told: Sender<i32>,
    wakes: mpsc::Receiver<i32>,
    peers: Option<Peers>,
    hearsay: Duration,
}

/// A job of one rank on this machine, and the folder that it is in.
pub(crate) fn job() -> (Arc<tempfile::TempDir>, Job) {
    let Scene { _folder, job, .. } = scene(1);
    (_folder, job)
}

fn scene(world: usize) -> Scene {
    scene_of(Arc::new(tempfile::tempdir().unwrap()), &["here"], "here", world)
}

/// The share of one of some nodes, all with so many ranks, which have a folder in common.
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
        checkpoint: None,
        waived: Vec::new(),
        mesh: Mesh { dp_replicate: 1, dp_shard: world, tp: 1 },
        placement,
        logins: Vec::new(),
        slurm: None,
    };
    let (told, wakes) = mpsc::channel();
    // In place of SIGCHLD, which would reach every test of this process: look often.
    let tick = told.clone();
    thread::spawn(move || {
        while tick.send(SIGCHLD).is_ok() {
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
    Scene { _folder: folder, job, told, wakes, peers: None, hearsay: LONG }
}

/// The supervisors of two nodes that run a command, the first node's first. They know each other.
fn pair() -> [Scene; 2] {
    // What a command leaves behind is known by its node, and other tests run on this machine as well.
    static PAIRS: AtomicU32 = AtomicU32::new(0);
    let number = PAIRS.fetch_add(1, Ordering::Relaxed);
    let names = ["one", "two"].map(|name| format!("{name}-{}-{number}", std::process::id()));
    let nodes = [names[0].as_str(), names[1].as_str()];
    let folder = Arc::new(tempfile::tempdir().unwrap());
    // Free a moment ago.
    let port = TcpListener::bind(("0.0.0.0", 0)).unwrap().local_addr().unwrap().port();
    nodes.map(|this| {
        let mut scene = scene_of(folder.clone(), &nodes, this, 1);
        scene.job.recipe.trainer = recipe::TrainerKind::Command;
        scene.job.master.1 = port - 1;
        scene.peers = Some(Peers::watch(&scene.job, scene.told.clone()).unwrap());
        scene
    })
}

/// A supervisor at work in a thread of its own.
struct Supervising {
    told: Sender<i32>,
    peers: Peers,
    root: Utf8PathBuf,
    exit: JoinHandle<ExitFile>,
}

impl Supervising {
    fn start(scene: Scene, script: &'static str, grace: Duration) -> Self {
        let (told, peers, root) = (scene.told.clone(), scene.peers.clone().unwrap(), scene.job.run.root.clone());
        Self { told, peers, root, exit: thread::spawn(move || scene.supervise(script, grace)) }
    }

    fn until_made(&self, file: &str) {
        until(|| self.root.join(file).exists());
    }

    fn until_it_hears_of_a_stop(&self) {
        until(|| matches!(self.peers.loss(), Some(Loss::Stopped(_))));
    }
}

fn until(holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it never came");
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
        let waits = Waits { grace, hearsay: self.hearsay };
        let exit = supervise_with(&self.job, command, &self.wakes, self.peers.as_ref(), &waits).unwrap();
        assert!(started.elapsed() < PATIENCE, "nothing waited for its limit");
        assert_eq!(
            self.job.run.read_exit(&self.job.node, 3).unwrap().as_ref(),
            Some(&exit),
            "the exit file says the same"
        );
        exit
    }

    /// Sends `signal` to the supervisor once `file` exists in the run directory.
    fn signal_when(&self, file: &str, signal: i32) {
        let (path, told) = (self.job.run.root.join(file), self.told.clone());
        thread::spawn(move || {
            let deadline = Instant::now() + PATIENCE;
            while !path.exists() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(5));
            }
            let _ = told.send(signal);
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
fn a_rank_knows_its_place_and_its_run() {
    let scene = scene(2);
    let names = "VIDTUI_RUN VIDTUI_ATTEMPT RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT OMP_NUM_THREADS";
    let exit =
        scene.supervise(&format!("for n in {names}; do eval echo \\$$n; done; cat; echo $VIDTUI_STORE >&2"), LONG);
    assert_eq!(exit.reason, ExitReason::Stopped, "nobody said that the steps are done");
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
fn when_a_rank_dies_the_others_are_ended_and_the_first_cause_is_told() {
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
    assert_eq!(failure.what, "cannot read latent.safetensors");
    assert_eq!(failure.why, "3 bytes are missing (rank 1 on node here, exit code 7)");
    assert_eq!(failure.fix, "copy it again");
    let [EventKind::RankDied { rank: 1, code: Some(7), signal: None, message, cause: Cause::Root }] =
        &scene.events()[..]
    else {
        panic!("one event for the first cause: {:?}", scene.events());
    };
    assert_eq!(message, "cannot read latent.safetensors: 3 bytes are missing (rank 1 on node here, exit code 7)");
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
    assert_eq!(exit.failure.unwrap().why, "exit code 3; it said nothing");
}

#[test]
fn a_killed_rank_is_told_with_its_signal_and_the_likely_reason() {
    let scene = scene(1);
    let exit = scene.supervise("kill -9 $$", LONG);
    assert_eq!((exit.ranks[0].code, exit.ranks[0].signal), (None, Some(SIGKILL)));
    let failure = exit.failure.unwrap();
    assert_eq!(failure.what, "rank 0 on node here was killed");
    assert!(failure.why.contains("signal 9 (SIGKILL)") && failure.why.contains("memory"), "{failure}");
}

#[test]
fn of_ranks_found_dead_together_the_one_that_lost_contact_is_not_the_first() {
    let scene = scene(3);
    let script = "echo $$ > $RUN/pid$RANK; [ $RANK = 2 ] && exit 9; exit 1";
    for rank in [0, 1] {
        let lost = Failure::peer_lost(None, "reset by peer", "");
        scene.job.run.write_rank_failure(&scene.job.node, 3, rank, &lost).unwrap();
    }
    let root = scene.job.run.root.clone();
    let command = |_: &cluster::RankPlace| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("RUN", &root);
        command
    };
    let (told, wakes) = mpsc::channel();
    let root = root.clone();
    thread::spawn(move || {
        // The supervisor looks for the first time when all are dead, and nobody has collected them.
        let is_dead = |rank: i32| {
            let pid = fs::read_to_string(root.join(format!("pid{rank}"))).unwrap_or_default();
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
            stat.contains(") Z ")
        };
        let deadline = Instant::now() + PATIENCE;
        while !(0..3).all(is_dead) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        while told.send(SIGCHLD).is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
    });
    let exit = supervise_with(&scene.job, command, &wakes, None, &LONG_WAITS).unwrap();
    assert_eq!(exit.first_failure, Some(2));
}

#[test]
fn how_it_ended_is_written_once_that_is_possible() {
    let scene = scene(1);
    let exit_file = scene.job.run.exit_toml(&scene.job.node, 3);
    // A folder that is not empty in the place of a file: nothing can be renamed to it, root or not.
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
fn whoever_cannot_write_how_it_ended_still_ends_when_it_is_asked_to() {
    let scene = scene(1);
    fs::create_dir_all(scene.job.run.exit_toml(&scene.job.node, 3).join("in the way")).unwrap();
    let script = "trap '' TERM; touch $RUN/ready; while [ ! -e $RUN/asked ]; do sleep 0.01; done; exit 7";
    let (told, root) = (scene.told.clone(), scene.job.run.root.clone());
    thread::spawn(move || {
        while !root.join("ready").exists() {
            thread::sleep(Duration::from_millis(5));
        }
        fs::write(root.join("asked"), "").unwrap();
        // Whether its rank has ended by then or not.
        while told.send(SIGTERM).is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    let command = |_: &cluster::RankPlace| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("RUN", &scene.job.run.root);
        command
    };
    let exit = supervise_with(&scene.job, command, &scene.wakes, None, &LONG_WAITS).unwrap();
    assert_eq!(exit.ranks[0].code, Some(7));
}

#[test]
fn a_panic_is_told_by_its_message() {
    let scene = scene(1);
    let script = "echo \"thread 'main' panicked at src/x.rs:1:2:\" >&2
        echo 'no such shard' >&2; echo 'note: run with RUST_BACKTRACE=1' >&2; exit 101";
    let exit = scene.supervise(script, LONG);
    assert_eq!(exit.failure.unwrap().why, "exit code 101; it said: no such shard");
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
fn ranks_that_end_by_the_term_itself_were_killed_before_they_could_save() {
    let scene = scene(2);
    scene.signal_when("ready", SIGTERM);
    let exit = scene.supervise("touch $RUN/ready; while :; do sleep 0.01; done", LONG);
    assert_eq!((exit.reason, exit.first_failure), (ExitReason::Killed, None));
    assert_eq!(by_rank(&exit)[&0], (None, Some(SIGTERM)));
}

#[test]
fn usr1_is_passed_on_and_the_run_goes_on() {
    let scene = scene(1);
    scene.signal_when("ready", SIGUSR1);
    let script = "trap 'echo saved; exit 0' USR1; touch $RUN/ready; while :; do sleep 0.01; done";
    let exit = scene.supervise(script, LONG);
    assert_eq!((exit.reason, scene.log(0).as_str()), (ExitReason::Stopped, "saved\n"));
    assert_eq!(scene.events(), [EventKind::SignalReceived { signal: SIGUSR1 }]);
}

#[test]
fn a_long_log_is_kept_whole_and_its_last_lines_are_told() {
    let scene = scene(1);
    let exit =
        scene.supervise("yes 0123456789012345678901234567890 | head -c 10000000; printf '\\033[1mdone\\n' >&2", LONG);
    assert_eq!(scene.log(0).len(), 10_000_000 + 9);
    let tail = &exit.ranks[0].stderr_tail;
    assert_eq!(tail.len(), 20);
    assert_eq!(tail.last().map(String::as_str), Some("[1mdone"), "without what a terminal would obey");
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
    let failure = supervise_with(&scene.job, command, &scene.wakes, None, &LONG_WAITS).unwrap_err();
    assert!(started.elapsed() < PATIENCE, "rank 0 was not waited for");
    assert_eq!(failure.what, "cannot start rank 1");
    assert_eq!(failure.why, "node here: No such file or directory (os error 2)");
}

/// Runs until it is ended, and knows no saving.
const ENDLESS: &str = "touch $RUN/ready$GROUP_RANK; while :; do sleep 0.01; done";

#[test]
fn a_stop_that_reaches_one_node_later_than_another_is_no_loss() {
    for late in [0, 1] {
        let nodes = pair().map(|scene| Supervising::start(scene, ENDLESS, LONG));
        nodes[0].until_made("ready0");
        nodes[0].until_made("ready1");
        nodes[1 - late].told.send(SIGTERM).unwrap();
        nodes[late].until_it_hears_of_a_stop();
        nodes[late].told.send(SIGTERM).unwrap();
        for node in nodes {
            let exit = node.exit.join().unwrap();
            assert_eq!((exit.reason, exit.failure), (ExitReason::Killed, None), "{}", exit.node);
        }
    }
}

#[test]
fn what_fails_between_the_stop_of_another_node_and_its_own_fails_of_that() {
    let [first, other] = pair();
    let first = Supervising::start(first, "until [ -e $RUN/go ]; do sleep 0.01; done; exit 1", LONG);
    let other = Supervising::start(other, ENDLESS, LONG);
    other.until_made("ready1");
    other.told.send(SIGTERM).unwrap();
    first.until_it_hears_of_a_stop();
    fs::write(first.root.join("go"), "").unwrap();
    let exit = first.exit.join().unwrap();
    assert_eq!((exit.reason, exit.failure, exit.ranks[0].code), (ExitReason::Killed, None, Some(1)));
}

#[test]
fn a_node_that_is_stopped_alone_is_lost_to_the_others() {
    let [mut first, other] = pair();
    first.hearsay = Duration::from_millis(100);
    let stopped = other.job.node.clone();
    let first = Supervising::start(first, ENDLESS, LONG);
    let other = Supervising::start(other, ENDLESS, LONG);
    other.until_made("ready1");
    other.told.send(SIGTERM).unwrap();
    let exit = first.exit.join().unwrap();
    let failure = exit.failure.unwrap();
    assert_eq!((exit.reason, failure.is_consequence()), (ExitReason::Failed, true));
    assert!(failure.why.starts_with(&format!("node {stopped} failed: the ranks of node {stopped} were killed")));
}

#[test]
fn a_command_that_saves_when_it_is_stopped_may_do_so_though_others_ended_at_once() {
    let [first, other] = pair();
    let saves = "trap 'touch $RUN/asked' TERM; trap '[ ! -e $RUN/again ] || exit 0; touch $RUN/again' USR1
        touch $RUN/ready0; while :; do sleep 0.01; done";
    let first = Supervising::start(first, saves, Duration::ZERO);
    let other = Supervising::start(other, ENDLESS, LONG);
    first.until_made("ready0");
    other.until_made("ready1");
    first.told.send(SIGTERM).unwrap();
    first.until_made("asked");
    other.told.send(SIGTERM).unwrap();
    first.until_it_hears_of_a_stop();
    // The second is dealt with only when the supervisor has looked at the news once more.
    first.told.send(SIGUSR1).unwrap();
    first.until_made("again");
    first.told.send(SIGUSR1).unwrap();
    assert_eq!(first.exit.join().unwrap().reason, ExitReason::Stopped);
}

#[test]
fn a_stop_file_is_a_term_for_the_ranks_of_all_nodes_and_a_term_besides_it_is_the_same_wish() {
    let scenes = pair();
    let _folder = scenes[0]._folder.clone();
    heed_stop_file(&scenes[0].job.run, scenes[0].told.clone(), scenes[0].peers.clone());
    let script = "trap 'echo asked; touch $RUN/asked$GROUP_RANK' TERM; touch $RUN/ready$GROUP_RANK
        trap '[ ! -e $RUN/again$GROUP_RANK ] || exit 0; touch $RUN/again$GROUP_RANK' USR1
        while :; do sleep 0.01; done";
    let logs = [0, 1].map(|rank| scenes[rank].job.run.rank_log(&scenes[rank].job.node, 3, rank));
    let run = scenes[0].job.run.clone();
    let nodes = scenes.map(|scene| Supervising::start(scene, script, LONG));
    nodes[0].until_made("ready0");
    nodes[1].until_made("ready1");
    fs::write(run.stop_file(), "").unwrap();
    for (rank, node) in nodes.into_iter().enumerate() {
        node.until_made(&format!("asked{rank}"));
        for signal in [SIGTERM, SIGUSR1] {
            node.told.send(signal).unwrap();
        }
        // USR1 has come, so TERM has if it was passed on; a shell may deal with it second, but before another USR1.
        node.until_made(&format!("again{rank}"));
        node.told.send(SIGUSR1).unwrap();
        assert_eq!(node.exit.join().unwrap().reason, ExitReason::Stopped);
        assert_eq!(fs::read_to_string(&logs[rank]).unwrap(), "asked\n");
    }
    let kinds: Vec<EventKind> = read_events(&run).unwrap().into_iter().map(|event| event.kind).collect();
    let why = "a file in the run directory asks for it".to_owned();
    assert!(kinds.contains(&EventKind::Stopping { why }), "{kinds:?}");
}

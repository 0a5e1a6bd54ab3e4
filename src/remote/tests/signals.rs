//! Tests that signals reach every process that a run owns, and no other. The processes are small shells that the tests start.

#![expect(clippy::unwrap_used, reason = "an unwrap that panics shows where the test failed")]

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, Child};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use plan::{KillHow, KillPlan, NodeKill, RunKill};
use remote::{
    Command, KillReport, Local, Output, Patience, Process, ProcessRole, Recipient, RemoteError, RunProcesses,
    SentSignal, Shell, Signal, StartedScript, Status, Transport, execute_kill, local_transports, retry_unreachable,
    this_node,
};
use rundir::{ErrorCode, ExitReason, RankPid, RunDir, RunId};
use runstate::Liveness;

const RUN: &str = "2026-11-20T0340-demo-k7f2";

/// Long enough for a busy machine; only a failing test waits for it.
const LONG: Duration = Duration::from_secs(60);
const PATIENCE: Patience = Patience { stop: LONG, term: LONG, kill: LONG };

/// A process group with its leader. Dropping the value kills the group.
struct Leader {
    child: Child,
    temp: tempfile::TempDir,
}

impl Leader {
    /// Starts a shell that leads a group, with `VIDTUI_RUN` set, and waits until the script has created the file `ready`.
    fn start(script: &str) -> Self {
        Self::start_as(script, Some(RUN))
    }

    fn start_as(script: &str, run: Option<&str>) -> Self {
        let mut command = process::Command::new("bash");
        Self::start_by(command.process_group(0), script, run)
    }

    /// Starts a shell that leads a session, as a supervisor does. Its children get process groups of their own.
    fn start_session(script: &str) -> Self {
        // `setsid` forks only in a process that leads a group.
        Self::start_by(process::Command::new("setsid").arg("bash"), &format!("set -m; {script}"), Some(RUN))
    }

    fn start_by(command: &mut process::Command, script: &str, run: Option<&str>) -> Self {
        let temp = tempfile::tempdir().unwrap();
        command.arg("-c").arg(script).current_dir(temp.path()).env_remove("VIDTUI_RUN");
        if let Some(run) = run {
            command.env("VIDTUI_RUN", run);
        }
        let child = command.spawn().unwrap();
        let leader = Self { child, temp };
        // Scripts create the file without starting another program, which would belong to the group and could still be exiting.
        until(|| leader.file("ready").exists());
        leader
    }

    fn file(&self, name: &str) -> Utf8PathBuf {
        Utf8Path::from_path(self.temp.path()).unwrap().join(name)
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Returns the process id that the script wrote to a file.
    fn child_in(&self, file: &str) -> i32 {
        fs::read_to_string(self.file(file)).unwrap().trim().parse().unwrap()
    }

    fn target(&self) -> NodeKill {
        let here = this_node().unwrap();
        NodeKill {
            run: RunId::parse(RUN).unwrap(),
            node: here.node,
            attempt: 1,
            pid: self.pid(),
            pgid: self.pid(),
            boot_id: here.boot_id,
            start_ticks: start_ticks(self.pid()),
            ranks: Vec::new(),
            why: String::new(),
        }
    }

    fn plan(&self, how: KillHow, target: NodeKill) -> RunKill {
        let dir = RunDir::new(self.file("run"));
        fs::create_dir_all(dir.node_dir(&target.node)).unwrap();
        RunKill { run: target.run.clone(), dir, how, nodes: vec![target], job: None }
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // The leader has not been waited for, so the group id cannot have been reused.
        let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(self.pid()), nix::sys::signal::SIGKILL);
        let _ = self.child.wait();
    }
}

#[track_caller]
fn until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < deadline, "timeout");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn stat_fields(pid: i32) -> Vec<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace().map(str::to_owned).collect()
}

fn start_ticks(pid: i32) -> u64 {
    stat_fields(pid)[19].parse().unwrap()
}

fn is_live(pid: i32) -> bool {
    stat_fields(pid).first().is_some_and(|state| state != "Z")
}

/// Returns whether a child of a shell has become `sleep`. Before, it is a copy of the shell, and for a moment it has no environment.
fn is_sleep(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().starts_with(b"sleep")
}

fn end(plan: &RunKill) -> KillReport {
    execute_kill(&KillPlan::Run(plan.clone()), &mut local_transports().unwrap(), &PATIENCE, &mut |_| {})
}

fn look(target: &NodeKill) -> RunProcesses {
    Local::new().unwrap().find_processes(target).unwrap()
}

fn assert_refused(leader: &mut Leader, target: &NodeKill, reason: &str) {
    match look(target) {
        RunProcesses::NotOwned(why) => assert!(why.contains(reason), "{why}"),
        other => panic!("{other:?} should not be owned"),
    }
    for how in [KillHow::Stop, KillHow::Kill] {
        let failure = end(&leader.plan(how, target.clone())).failure(RUN).expect("refused");
        assert_eq!(failure.code, ErrorCode::NotOwned, "{failure}");
    }
    assert!(leader.is_running(), "it was signalled");
}

const IDLE: &str = ": > ready; while :; do sleep 0.05; done";

#[test]
fn a_process_whose_boot_start_time_and_environment_match_is_owned() {
    let leader = Leader::start(IDLE);
    let RunProcesses::Owned(members) = look(&leader.target()) else { panic!("not owned") };
    assert_eq!(members.iter().filter(|process| process.role == ProcessRole::Supervisor).count(), 1);
    assert!(members.iter().all(|process| process.pgid == leader.pid()));
}

#[test]
fn a_process_that_started_at_another_time_is_not_signalled() {
    let mut leader = Leader::start(IDLE);
    for wrong in [-1, 1] {
        let mut target = leader.target();
        target.start_ticks = target.start_ticks.saturating_add_signed(wrong);
        let actual = format!("tick {}", start_ticks(leader.pid()));
        assert_refused(&mut leader, &target, &actual);
    }
}

#[test]
fn a_process_of_another_run_or_of_no_run_is_not_signalled() {
    let mut other = Leader::start_as(IDLE, Some("2026-11-20T0340-other-k7f2"));
    let target = other.target();
    assert_refused(&mut other, &target, "has VIDTUI_RUN=2026-11-20T0340-other-k7f2");
    let mut none = Leader::start_as(IDLE, None);
    let target = none.target();
    assert_refused(&mut none, &target, "has no VIDTUI_RUN");
}

#[test]
fn a_process_file_from_before_a_reboot_names_no_process() {
    let mut leader = Leader::start(IDLE);
    let mut target = leader.target();
    target.boot_id = "00000000-0000-0000-0000-000000000000".into();
    assert_eq!(look(&target), RunProcesses::Gone);
    assert!(end(&leader.plan(KillHow::Kill, target)).all_gone());
    assert!(leader.is_running());
}

#[test]
fn a_process_file_whose_process_id_means_many_processes_is_refused() {
    let leader = Leader::start(IDLE);
    for (pid, pgid) in [(0, 0), (1, 1), (-1, -1), (leader.pid(), 0), (leader.pid(), 1)] {
        let target = NodeKill { pid, pgid, ..leader.target() };
        assert!(matches!(look(&target), RunProcesses::NotOwned(_)), "{pid} {pgid}");
    }
}

#[test]
fn the_group_of_this_program_is_never_signalled() {
    let leader = Leader::start(IDLE);
    let own = nix::unistd::getpgrp().as_raw();
    let target = NodeKill { pgid: own, ..leader.target() };
    assert!(matches!(look(&target), RunProcesses::NotOwned(why) if why.contains(&own.to_string())));
}

#[test]
fn a_rank_whose_process_id_was_reused_is_not_signalled() {
    let mut stranger = Leader::start_as(IDLE, None);
    let leader = Leader::start(IDLE);
    let mut target = leader.target();
    target.ranks = vec![RankPid { rank: 0, pid: stranger.pid(), start_ticks: 1 }];
    let report = end(&leader.plan(KillHow::Kill, target));
    assert_eq!(report.failure(RUN), None);
    assert!(!is_live(leader.pid()));
    assert!(stranger.is_running());
}

#[test]
fn a_kill_ends_every_process_of_the_group_even_if_it_ignores_term() {
    let stubborn = "bash -c 'trap \"\" TERM; until [ -s child ]; do sleep 0.01; done; : > ready; while :; do sleep 0.05; done' & echo $! > child; wait";
    let leader = Leader::start(stubborn);
    let child = leader.child_in("child");
    let plan = leader.plan(KillHow::Kill, leader.target());
    // The process ignores TERM.
    let patience = Patience { term: Duration::from_millis(300), ..PATIENCE };
    let report = execute_kill(&plan.clone().into(), &mut local_transports().unwrap(), &patience, &mut |_| {});
    assert_eq!(report.failure(RUN), None);
    assert!(report.all_gone());
    let signals: Vec<Signal> = report.nodes[0].signals.iter().map(|sent| sent.signal).collect();
    assert_eq!(signals, [Signal::Term, Signal::Kill]);
    assert!(!is_live(leader.pid()) && !is_live(child));
    let exit = plan.dir.read_exit(&plan.nodes[0].node, 1).unwrap().expect("an exit file");
    assert_eq!(exit.reason, ExitReason::Killed);
}

#[test]
fn ranks_that_outlive_their_supervisor_are_killed() {
    let mut leader = Leader::start("sleep 600 & echo $! > child; : > ready; wait");
    let child = leader.child_in("child");
    until(|| is_sleep(child));
    let mut target = leader.target();
    target.ranks = vec![RankPid { rank: 0, pid: child, start_ticks: start_ticks(child) }];
    leader.child.kill().unwrap();
    leader.child.wait().unwrap();
    let RunProcesses::Owned(members) = look(&target) else { panic!("not owned") };
    assert_eq!(members.iter().map(|process| process.role).collect::<Vec<_>>(), [ProcessRole::Rank(0)]);
    assert!(end(&leader.plan(KillHow::Kill, target)).all_gone());
    assert!(!is_live(child));
}

/// Returns shell commands that start a process in its own session, with the environment that a supervisor gives to its
/// children, and write its process id to `file`.
fn worker(run: &str, attempt: u32, node: &NodeId, file: &str) -> String {
    format!("VIDTUI_RUN={run} VIDTUI_ATTEMPT={attempt} VIDTUI_NODE={node} setsid sleep 600 & echo $! > {file}; ")
}

#[test]
fn workers_in_their_own_sessions_are_killed_after_their_supervisor_has_ended() {
    let here = this_node().unwrap().node;
    let elsewhere = NodeId::new("ml-64-003").unwrap();
    // Not attempt 1, because tests that run in parallel look for workers of attempt 1. Other runs of these tests on this machine have
    // other numbers.
    let attempt = process::id() + 1;
    let workers = [
        worker(RUN, attempt, &here, "own"),
        worker(RUN, attempt - 1, &here, "other-attempt"),
        worker(RUN, attempt, &elsewhere, "other-node"),
        worker("2026-11-20T0340-other-k7f2", attempt, &here, "other-run"),
    ];
    let mut leader = Leader::start(&format!("{} : > ready; wait", workers.concat()));
    // Here `setsid` leads no group, so it does not fork and keeps its process id.
    let pid = |file: &str| leader.child_in(file);
    let (own, others) = (pid("own"), ["other-attempt", "other-node", "other-run"].map(pid));
    until(|| [&[own], &others[..]].concat().into_iter().all(is_sleep));
    let target = NodeKill { attempt, ..leader.target() };
    leader.child.kill().unwrap();
    leader.child.wait().unwrap();

    let RunProcesses::Owned(members) = look(&target) else { panic!("not owned") };
    assert_eq!(members.iter().map(|process| process.pid).collect::<Vec<_>>(), [own]);
    let report = end(&leader.plan(KillHow::Kill, target));
    assert!(report.all_gone(), "{report:?}");
    assert!(!is_live(own));
    for other in others {
        assert!(is_live(other), "it was signalled");
        // The process is alive, so its id cannot have been reused.
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(other), nix::sys::signal::SIGKILL).unwrap();
    }
}

#[test]
fn a_sampler_that_outlives_its_run_is_killed_and_does_not_count_as_the_run() {
    let mut leader = Leader::start_session("sleep 600 & echo $! > sampler; : > ready; wait");
    let (sampler, target) = (leader.child_in("sampler"), leader.target());
    until(|| is_sleep(sampler));
    assert_ne!(stat_fields(sampler)[2], leader.pid().to_string(), "it has a group of its own");
    let mut local = Local::new().unwrap();
    assert_eq!(local.liveness(&target).unwrap(), Liveness::Alive);
    leader.child.kill().unwrap();
    leader.child.wait().unwrap();
    assert_eq!(local.liveness(&target).unwrap(), Liveness::Dead);
    let RunProcesses::Owned(members) = look(&target) else { panic!("not owned") };
    assert_eq!(members.iter().map(|process| process.pid).collect::<Vec<_>>(), [sampler]);
    assert!(end(&leader.plan(KillHow::Kill, target)).all_gone());
    assert!(!is_live(sampler));
}

#[test]
fn a_process_without_a_run_in_the_session_of_an_ended_run_is_ignored() {
    let mut leader = Leader::start_session("env -u VIDTUI_RUN sleep 600 & echo $! > other; : > ready; wait");
    let (other, target) = (leader.child_in("other"), leader.target());
    until(|| is_sleep(other));
    leader.child.kill().unwrap();
    leader.child.wait().unwrap();
    assert_eq!(look(&target), RunProcesses::Gone);
    assert!(end(&leader.plan(KillHow::Kill, target)).all_gone());
    assert!(is_live(other), "it was signalled");
    // The process is alive, so its id cannot have been reused.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(other), nix::sys::signal::SIGKILL).unwrap();
}

#[test]
fn a_stop_signals_only_the_supervisor_and_waits_until_its_ranks_have_ended() {
    let obedient = "sleep 600 & child=$!; echo $child > child; trap 'kill $child; exit 7' TERM; : > ready; wait";
    let mut leader = Leader::start(obedient);
    let child = leader.child_in("child");
    let report = end(&leader.plan(KillHow::Stop, leader.target()));
    assert!(report.all_gone(), "{report:?}");
    assert_eq!(report.nodes[0].signals, [SentSignal { signal: Signal::Term, pids: vec![leader.pid()] }]);
    assert_eq!(leader.child.wait().unwrap().code(), Some(7));
    assert!(!is_live(child));
}

#[test]
fn a_stop_without_waiting_reports_the_processes_that_remain() {
    let mut leader = Leader::start("trap '' TERM; : > ready; while :; do sleep 0.05; done");
    let plan = leader.plan(KillHow::Stop, leader.target());
    let report =
        execute_kill(&plan.clone().into(), &mut local_transports().unwrap(), &Patience::default(), &mut |_| {});
    assert!(!report.all_gone());
    assert_eq!(report.failure(RUN), None, "the stop request was sent");
    assert!(leader.is_running());
    assert_eq!(plan.dir.read_exit(&plan.nodes[0].node, 1).unwrap(), None);
}

#[test]
fn a_kill_of_ended_processes_sends_no_signal() {
    let mut leader = Leader::start(": > ready; exec sleep 600");
    until(|| is_sleep(leader.pid()));
    let target = leader.target();
    let plan = leader.plan(KillHow::Kill, target);
    assert!(end(&plan).all_gone());
    assert_eq!(leader.child.wait().unwrap().signal(), Some(15));
    let again = end(&plan);
    assert!(again.all_gone() && again.nodes[0].signals.is_empty());
}

#[test]
fn a_node_without_a_connection_is_reported() {
    let mut leader = Leader::start(IDLE);
    let target = NodeKill { node: NodeId::new("ml-64-003").unwrap(), ..leader.target() };
    let failure = end(&leader.plan(KillHow::Kill, target)).failure(RUN).unwrap();
    insta::assert_snapshot!(failure);
    assert!(leader.is_running());
}

/// A node on which processes never end.
struct Stuck(NodeId);

impl Stuck {
    fn processes() -> Vec<Process> {
        let process = |pid, role, state, command: &str| Process {
            pid,
            pgid: 4100,
            start_ticks: 80,
            role,
            state,
            command: command.into(),
        };
        vec![
            process(4101, ProcessRole::Rank(0), 'D', "vidtui-train rank --run-dir /runs/a --attempt 1"),
            process(4177, ProcessRole::Other, 'R', "nvidia-smi"),
        ]
    }
}

impl Shell for Stuck {
    fn node(&self) -> &NodeId {
        &self.0
    }

    fn run(&mut self, _: &Command) -> Result<Output, RemoteError> {
        unreachable!("nothing is run here")
    }
}

impl Transport for Stuck {
    fn start(&mut self, _: &Utf8Path, _: &Utf8Path, _: &[u8]) -> Result<StartedScript, RemoteError> {
        unreachable!("nothing is started here")
    }

    fn find_processes(&mut self, _: &NodeKill) -> Result<RunProcesses, RemoteError> {
        Ok(RunProcesses::Owned(Self::processes()))
    }

    fn liveness(&mut self, _: &NodeKill) -> Result<Liveness, RemoteError> {
        Ok(Liveness::Alive)
    }

    fn signal(&mut self, _: &NodeKill, _: Recipient, _: Signal) -> Result<Vec<Process>, RemoteError> {
        Ok(Self::processes())
    }

    fn free_bytes(&mut self, _: &Utf8Path) -> Result<u64, RemoteError> {
        Ok(0)
    }
}

/// A node that does not answer this number of requests. Later, its processes are gone, or not owned for the given reason.
struct Away(NodeId, u32, Option<&'static str>);

impl Away {
    fn answer<T>(&mut self, answer: T) -> Result<T, RemoteError> {
        let (node, action) = (self.0.clone(), "list its processes".to_owned());
        if self.1 == 0 {
            return self.2.map_or(Ok(answer), |why| Err(RemoteError::NotOwned { node, why: why.to_owned() }));
        }
        self.1 -= 1;
        Err(RemoteError::Timeout { node, action, after: Duration::from_secs(20), printed: String::new() })
    }
}

impl Shell for Away {
    fn node(&self) -> &NodeId {
        &self.0
    }

    fn run(&mut self, _: &Command) -> Result<Output, RemoteError> {
        // The node has no GPUs.
        Ok(Output {
            status: Status::Code(0),
            stdout: b"timeout: no such file\n\n127\nend\n".to_vec(),
            stderr: Vec::new(),
        })
    }
}

impl Transport for Away {
    fn start(&mut self, _: &Utf8Path, _: &Utf8Path, _: &[u8]) -> Result<StartedScript, RemoteError> {
        unreachable!("nothing is started here")
    }

    fn find_processes(&mut self, _: &NodeKill) -> Result<RunProcesses, RemoteError> {
        self.answer(RunProcesses::Gone)
    }

    fn liveness(&mut self, _: &NodeKill) -> Result<Liveness, RemoteError> {
        self.answer(Liveness::Dead)
    }

    fn signal(&mut self, _: &NodeKill, _: Recipient, _: Signal) -> Result<Vec<Process>, RemoteError> {
        self.answer(Vec::new())
    }

    fn free_bytes(&mut self, _: &Utf8Path) -> Result<u64, RemoteError> {
        Ok(0)
    }
}

#[test]
fn a_node_that_answers_again_is_not_reported_as_unreachable() {
    let leader = Leader::start(IDLE);
    let node = NodeId::new("ml-64-001").unwrap();
    let target = NodeKill { node: node.clone(), ..leader.target() };
    let mut away: Vec<Box<dyn Transport>> = vec![Box::new(Away(node, 1, Some("the machine was rebooted")))];
    let patience = Patience { term: Duration::ZERO, kill: Duration::ZERO, ..PATIENCE };
    let report = execute_kill(&leader.plan(KillHow::Kill, target).into(), &mut away, &patience, &mut |_| {});
    assert!(report.unreachable().is_empty(), "{report:?}");
    let failure = report.failure(RUN).unwrap();
    assert_eq!(failure.code, ErrorCode::NotOwned, "{failure}");
}

/// A node whose answer to a signal cannot be read. The processes end, or not.
struct Muddled {
    node: NodeId,
    ends: bool,
}

impl Shell for Muddled {
    fn node(&self) -> &NodeId {
        &self.node
    }

    fn run(&mut self, command: &Command) -> Result<Output, RemoteError> {
        Away(self.node.clone(), 0, None).run(command)
    }
}

impl Transport for Muddled {
    fn start(&mut self, _: &Utf8Path, _: &Utf8Path, _: &[u8]) -> Result<StartedScript, RemoteError> {
        unreachable!("nothing is started here")
    }

    fn find_processes(&mut self, _: &NodeKill) -> Result<RunProcesses, RemoteError> {
        Ok(if self.ends { RunProcesses::Gone } else { RunProcesses::Owned(Stuck::processes()) })
    }

    fn liveness(&mut self, _: &NodeKill) -> Result<Liveness, RemoteError> {
        Ok(Liveness::Alive)
    }

    fn signal(&mut self, _: &NodeKill, _: Recipient, _: Signal) -> Result<Vec<Process>, RemoteError> {
        let (node, action) = (self.node.clone(), "signal its processes".to_owned());
        Err(RemoteError::UnexpectedReply { node, action, answer: "Loading cuda/12.4".into() })
    }

    fn free_bytes(&mut self, _: &Utf8Path) -> Result<u64, RemoteError> {
        Ok(0)
    }
}

#[test]
fn a_kill_whose_answer_cannot_be_read_is_judged_by_the_processes_that_remain() {
    let leader = Leader::start(IDLE);
    let node = NodeId::new("ml-64-001").unwrap();
    let target = NodeKill { node: node.clone(), ..leader.target() };
    let patience = Patience { term: Duration::ZERO, kill: Duration::ZERO, ..PATIENCE };
    let kill = |ends| {
        let mut nodes: Vec<Box<dyn Transport>> = vec![Box::new(Muddled { node: node.clone(), ends })];
        let plan = leader.plan(KillHow::Kill, target.clone()).into();
        execute_kill(&plan, &mut nodes, &patience, &mut |_| {})
    };
    let ended = kill(true);
    assert!(ended.all_gone() && ended.failure(RUN).is_none(), "{ended:?}");
    let left = kill(false).failure(RUN).unwrap();
    assert!(left.why.contains("Loading cuda/12.4") && left.why.contains("nvidia-smi"), "{left}");
}

#[test]
fn nodes_that_do_not_answer_are_reported_and_retried_until_they_do() {
    let leader = Leader::start(IDLE);
    let names = ["ml-64-001", "ml-64-002", "ml-64-003"].map(|name| NodeId::new(name).unwrap());
    let mut plan = leader.plan(KillHow::Kill, leader.target());
    plan.nodes = names.iter().map(|node| NodeKill { node: node.clone(), ..leader.target() }).collect();
    // Each phase sends one request: the second node needs one more round, the third node two.
    let away = [0, 3, 5].into_iter().zip(&names).map(|(times, node)| Box::new(Away(node.clone(), times, None)));
    let mut away: Vec<Box<dyn Transport>> = away.map(|away| away as Box<dyn Transport>).collect();
    let patience = Patience { term: Duration::ZERO, kill: Duration::ZERO, ..PATIENCE };
    let mut report = execute_kill(&plan.clone().into(), &mut away, &patience, &mut |_| {});
    assert_eq!(report.unreachable(), [&names[1], &names[2]]);
    insta::assert_snapshot!(report.failure(RUN).unwrap());

    let mut given_up = report.clone();
    retry_unreachable(&plan.clone().into(), &mut given_up, &mut away, &patience, &mut |_, _| {}, &mut |_| {}, &|| true);
    assert_eq!(given_up, report);

    let mut retried = Vec::new();
    let waits = &mut |nodes: &[&NodeId], _| retried.push(nodes.iter().map(ToString::to_string).collect::<Vec<_>>());
    retry_unreachable(&plan.clone().into(), &mut report, &mut away, &patience, waits, &mut |_| {}, &|| false);
    assert_eq!(retried, [vec!["ml-64-002", "ml-64-003"], vec!["ml-64-003"]]);
    assert!(report.all_gone() && report.failure(RUN).is_none(), "{report:?}");
}

#[test]
fn processes_that_remain_are_reported_with_state_and_command() {
    let leader = Leader::start(IDLE);
    let node = NodeId::new("ml-64-003").unwrap();
    let plan = leader.plan(KillHow::Kill, NodeKill { node: node.clone(), ..leader.target() });
    let mut stuck: Vec<Box<dyn Transport>> = vec![Box::new(Stuck(node))];
    let patience = Patience { term: Duration::ZERO, kill: Duration::ZERO, ..PATIENCE };
    let mut progress = Vec::new();
    let report = execute_kill(&plan.clone().into(), &mut stuck, &patience, &mut |message| progress.push(message.text));
    let failure = report.failure(RUN).unwrap();
    insta::assert_snapshot!(format!("{}\n\n{failure}", progress.join("\n")));
    assert_eq!(plan.dir.read_exit(&plan.nodes[0].node, 1).unwrap(), None, "an exit file of a running process");
}

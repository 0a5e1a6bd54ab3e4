//! Nodes over SSH, on a rig of real SSH servers: commands, processes, streams, and every way not to reach a node.

#![expect(clippy::unwrap_used, reason = "a test that unwraps says where it broke")]

use std::fs;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use cluster::NodeId;
use plan::NodeKill;
use remote::{
    Addressee, Command, Flow, Group, Output, RemoteError, Role, Signal, Ssh, SshOptions, Status, Streamed, Streaming,
    Transport,
};
use rig::{Options, Rig};
use rundir::{Login, RankPid, RunId};

const LONG: Duration = Duration::from_secs(60);
const RUN: &str = "2026-11-20T0340-demo-k7f2";

/// Runs a test in the network of a rig's head; skips it aloud where there is no rig.
fn with_rig(nodes: usize, test: impl FnOnce(&Rig) + Send) {
    let Some(rig) = Options::new(nodes).up_or_skip() else { return };
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            rig.join_network().unwrap();
            test(&rig);
        });
        if let Err(panic) = inside.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn login(node: &str) -> Login {
    Login { node: NodeId::new(node).unwrap(), user: None, port: None }
}

fn ssh(rig: &Rig, node: &str) -> Ssh {
    Ssh::new(SshOptions { config: Some(rig.ssh_config()), ..SshOptions::default() }, login(node))
}

fn run(ssh: &mut Ssh, script: &str) -> Result<Output, RemoteError> {
    ssh.run(&Command::new("be tested", script, LONG))
}

fn said(ssh: &mut Ssh, script: &str) -> String {
    let output = run(ssh, script).unwrap();
    assert!(output.status.is_success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_command_gives_its_output_its_errors_and_how_it_ended() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        let mut command = Command::new("be tested", "cat; echo '$HOME isn'\\''t it' >&2; exit 3", LONG);
        command.input = b"one\0two\xff\n".repeat(100_000);
        let output = node.run(&command).unwrap();
        assert_eq!(output.status, Status::Code(3));
        assert!(output.stdout == command.input, "every byte came back");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "$HOME isn't it\n");

        assert_eq!(run(&mut node, "kill -SEGV $$").unwrap().status, Status::Signal("SEGV".into()));
        assert_eq!(said(&mut node, "hostname"), "node01");
        let flood = run(&mut node, "head -c 3000000 /dev/zero >&2; echo done").unwrap();
        assert_eq!((flood.stdout.as_slice(), flood.stderr.len()), (&b"done\n"[..], 3_000_000));
    });
}

#[test]
fn many_commands_share_a_connection_that_allows_few() {
    with_rig(1, |rig| {
        let node = ssh(rig, "node01");
        thread::scope(|scope| {
            for number in 0..40 {
                let mut node = node.clone();
                scope.spawn(move || {
                    assert_eq!(said(&mut node, &format!("sleep 0.05; echo {number}")), number.to_string());
                });
            }
        });
        let log = fs::read_to_string(rig.node_folder("node01").join("sshd.log")).unwrap();
        assert_eq!(log.matches("Accepted publickey").count(), 1, "one connection for all");
        assert_eq!(log.matches("no more sessions").count(), 0);
    });
}

#[test]
fn a_command_that_takes_too_long_is_given_up_and_the_connection_is_not() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        let slow = Command::new("sleep", "sleep 30", Duration::from_millis(300));
        let error = node.run(&slow).unwrap_err();
        assert!(matches!(error, RemoteError::Silent { .. }) && error.is_blind(), "{error}");
        assert_eq!(said(&mut node, "echo here"), "here");
        let log = fs::read_to_string(rig.node_folder("node01").join("sshd.log")).unwrap();
        assert_eq!(log.matches("Accepted publickey").count(), 1);
    });
}

/// Starts a process group on a node as a supervisor with one rank, and says how its process file would name it.
fn start_group(node: &mut Ssh, folder: &Utf8Path) -> NodeKill {
    let script = folder.join("start.sh");
    let ready = folder.join("ready");
    fs::write(
        &script,
        format!(
            "export VIDTUI_RUN={RUN}\n\
             exec sh -c 'sleep 1000 & echo $! >{folder}/rank; trap \"kill $!; exit\" TERM; echo $$ >{ready}; wait' 2>/dev/null\n"
        ),
    )
    .unwrap();
    assert!(node.start(&script, &ready, b"").unwrap().ended().is_none());
    let number = |name: &str| fs::read_to_string(folder.join(name)).unwrap().trim().parse::<i32>().unwrap();
    let mut ticks = |pid: i32| {
        said(node, &format!("set -- $(sed 's/.*)//' /proc/{pid}/stat); echo ${{20}}")).parse::<u64>().unwrap()
    };
    let (pid, rank) = (number("ready"), number("rank"));
    let (start_ticks, rank_ticks) = (ticks(pid), ticks(rank));
    NodeKill {
        run: RunId::parse(RUN).unwrap(),
        node: node.node().clone(),
        attempt: 1,
        pid,
        pgid: pid,
        boot_id: said(node, "cat /proc/sys/kernel/random/boot_id"),
        start_ticks,
        ranks: vec![RankPid { rank: 0, pid: rank, start_ticks: rank_ticks }],
        why: String::new(),
    }
}

#[test]
fn processes_on_a_node_are_known_and_signalled_by_all_that_names_them() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        let target = start_group(&mut node, &rig.share());
        let Group::Ours(members) = node.look(&target).unwrap() else { panic!("{:?}", node.look(&target)) };
        let roles: Vec<Role> = members.iter().map(|process| process.role).collect();
        assert_eq!(roles, [Role::Supervisor, Role::Rank(0)], "{members:?}");
        assert!(members[1].command.starts_with("sleep 1000"), "{members:?}");

        let others = [
            NodeKill { start_ticks: target.start_ticks + 1, ..target.clone() },
            NodeKill { run: RunId::parse("2026-11-20T0340-demo-aaaa").unwrap(), ..target.clone() },
        ];
        for other in others {
            let error = node.signal(&other, Addressee::Everyone, Signal::Kill).unwrap_err();
            assert!(matches!(error, RemoteError::NotOurs { .. }), "{error}");
        }
        let rebooted = NodeKill { boot_id: "00000000-0000-0000-0000-000000000000".into(), ..target.clone() };
        assert_eq!(node.look(&rebooted).unwrap(), Group::Gone);
        assert_eq!(node.look(&target).unwrap(), Group::Ours(members.clone()), "nothing was signalled so far");

        assert_eq!(node.signal(&target, Addressee::Supervisor, Signal::Term).unwrap(), members[..1]);
        while node.look(&target).unwrap() != Group::Gone {}
        assert_eq!(node.signal(&target, Addressee::Everyone, Signal::Kill).unwrap(), []);
    });
}

#[test]
fn what_was_started_outlives_the_connection_and_is_killed_over_another() {
    with_rig(1, |rig| {
        let target = start_group(&mut ssh(rig, "node01"), &rig.share());
        rig.verb("dropsessions node01").unwrap();
        let mut node = ssh(rig, "node01");
        let Group::Ours(members) = node.look(&target).unwrap() else { panic!("it died with its connection") };
        assert_eq!(node.signal(&target, Addressee::Everyone, Signal::Kill).unwrap(), members);
        while node.look(&target).unwrap() != Group::Gone {}
    });
}

#[test]
fn what_left_its_group_and_its_session_is_known_by_its_environment_and_ended() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        let target = start_group(&mut node, &rig.share());
        let marks = format!("VIDTUI_RUN={RUN} VIDTUI_NODE=node01");
        let script = format!(
            "for attempt in 1 2; do env {marks} VIDTUI_ATTEMPT=$attempt setsid sleep 2000 >/dev/null 2>&1 </dev/null & done"
        );
        said(&mut node, &script);
        node.signal(&target, Addressee::Supervisor, Signal::Term).unwrap();
        loop {
            let Group::Ours(members) = node.look(&target).unwrap() else { panic!("it was not seen") };
            if let [worker] = &members[..]
                && worker.command == "sleep 2000"
            {
                break;
            }
        }
        assert_eq!(node.signal(&target, Addressee::Everyone, Signal::Kill).unwrap().len(), 1);
        while node.look(&target).unwrap() != Group::Gone {}
        assert_eq!(said(&mut node, "pgrep -fc '^sleep 2000'"), "1", "that of another attempt is left alone");
    });
}

#[test]
fn a_script_that_ends_at_once_says_why() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        let script = rig.share().join("start.sh");
        fs::write(&script, "echo no such thing >&2\nexit 3\n").unwrap();
        let ended = node.start(&script, &rig.share().join("never"), b"").unwrap().ended().unwrap();
        assert_eq!((ended.status.as_str(), ended.stderr.trim()), ("exit status: 3", "no such thing"));
    });
}

#[test]
fn secrets_reach_a_script_through_its_standard_input_and_no_command_line() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        let (script, got) = (rig.share().join("start.sh"), rig.share().join("got"));
        let text = format!(
            "umask 077\n{{ echo $VIDTUI_SECRETS; cat; }} >{got}.new\n\
             grep -lae hush-9c1f /proc/[0-9]*/cmdline >{got}.seen 2>/dev/null\n\
             exec 2>/dev/null\nmv {got}.new {got}\nexec sleep 1000\n"
        );
        fs::write(&script, text).unwrap();
        let secrets = b"TOKEN=\"hush-9c1f $HOME 'x'\"\nOTHER=\"\"\n";
        assert!(node.start(&script, &got, secrets).unwrap().ended().is_none());
        assert_eq!(fs::read_to_string(&got).unwrap(), format!("stdin\n{}", String::from_utf8_lossy(secrets)));
        // The search itself has the word on its own command line, and nobody else has.
        let seen = fs::read_to_string(format!("{got}.seen")).unwrap();
        assert!(seen.lines().count() <= 1, "{seen}");
    });
}

#[test]
fn every_way_not_to_reach_a_node_names_the_step_and_the_way_out() {
    with_rig(6, |rig| {
        rig.verb("newkey node01").unwrap();
        rig.verb("nologin node02").unwrap();
        rig.verb("killsshd node03").unwrap();
        rig.verb("stopsshd node04").unwrap();
        rig.verb("drop node05").unwrap();
        let config = fs::read_to_string(rig.ssh_config()).unwrap();
        let hasty = rig.folder().join("hasty_config");
        // node06 is known by no key here, and nobody waits for long.
        let unknown = format!("Host node06\n  UserKnownHostsFile {}/none\nHost *\n  ConnectTimeout 2\n", rig.folder());
        fs::write(&hasty, format!("{unknown}{config}")).unwrap();
        let options = SshOptions { config: Some(hasty), ..SshOptions::default() };
        let mut told = String::new();
        for name in ["node01", "node02", "node03", "node04", "node05", "node06", "nowhere.invalid"] {
            let error = run(&mut Ssh::new(options.clone(), login(name)), "true").unwrap_err();
            assert!(matches!(error, RemoteError::Unreachable { .. }) && error.is_blind(), "{error:?}");
            told += &format!("{}\n\n", error.failure(format!("cannot reach {name}")));
        }
        // Keys are new for each rig.
        let mut shown = told.replace(rig.folder().as_str(), "RIG");
        while let Some(at) = shown.find("SHA256:") {
            shown.replace_range(at..at + "SHA256:".len() + 43, "FINGERPRINT");
        }
        insta::assert_snapshot!(shown);
    });
}

#[test]
fn a_server_that_turns_logins_away_at_random_is_asked_again() {
    with_rig(1, |rig| {
        let config = rig.node_folder("node01").join("sshd_config");
        let text = fs::read_to_string(&config).unwrap().replace("MaxStartups 200", "MaxStartups 1");
        fs::write(&config, text).unwrap();
        rig.verb("killsshd node01").unwrap();
        rig.verb("startsshd node01").unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                let mut node = ssh(rig, "node01");
                scope.spawn(move || assert_eq!(said(&mut node, "hostname"), "node01"));
            }
        });
        let log = fs::read_to_string(rig.node_folder("node01").join("sshd.log")).unwrap();
        assert!(log.contains("past MaxStartups"), "nothing was put to the test: {log}");
        assert_eq!(log.matches("Accepted publickey").count(), 4);
    });
}

#[test]
fn a_new_key_is_noted_where_the_configuration_allows_it() {
    with_rig(1, |rig| {
        let known = rig.folder().join("known by us");
        let config = fs::read_to_string(rig.ssh_config()).unwrap();
        let trusting = rig.folder().join("trusting_config");
        let known_hosts = rig.folder().join("noted");
        fs::write(
            &trusting,
            format!("Host *\n  StrictHostKeyChecking accept-new\n  UserKnownHostsFile {known_hosts}\n{config}"),
        )
        .unwrap();
        let options = SshOptions { config: Some(trusting), ..SshOptions::default() };
        let mut node = Ssh::new(options.clone(), login("node01"));
        assert_eq!(said(&mut node, "hostname"), "node01");
        let noted = fs::read_to_string(&known_hosts).unwrap();
        assert!(noted.starts_with("10.99.0.1 ") && noted.lines().count() == 1, "{noted} {known}");
        // The next time it is known, and another key in its place is not accepted.
        assert_eq!(said(&mut Ssh::new(options.clone(), login("node01")), "hostname"), "node01");
        rig.verb("newkey node01").unwrap();
        let error = run(&mut Ssh::new(options, login("node01")), "true").unwrap_err();
        assert!(error.to_string().contains("is not the one in"), "{error}");
    });
}

#[test]
fn a_node_that_was_away_is_reached_again() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        assert_eq!(said(&mut node, "hostname"), "node01");
        rig.verb("panic node01").unwrap();
        // Lost at first, then refused.
        while !matches!(run(&mut node, "true"), Err(RemoteError::Unreachable { .. })) {}
        rig.verb("poweron node01").unwrap();
        let deadline = Instant::now() + LONG;
        while run(&mut node, "true").is_err() {
            assert!(Instant::now() < deadline, "{:?}", run(&mut node, "true"));
            thread::sleep(Duration::from_millis(20));
        }
    });
}

#[test]
fn an_sshd_that_stops_answering_is_noticed_and_survived() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        assert_eq!(said(&mut node, "hostname"), "node01");
        rig.verb("stop node01").unwrap();
        let hasty = Command::new("be tested", "true", Duration::from_millis(500));
        assert!(matches!(node.run(&hasty), Err(RemoteError::Silent { .. })));
        rig.verb("cont node01").unwrap();
        assert_eq!(said(&mut node, "hostname"), "node01");
    });
}

/// Reads a stream until it has told what is wanted; returns what it told before.
fn until(told: &Receiver<Streamed>, wanted: impl Fn(&Streamed) -> bool) -> Vec<Streamed> {
    let mut before = Vec::new();
    loop {
        let next = told.recv_timeout(LONG).unwrap_or_else(|_| panic!("only {before:?}"));
        if wanted(&next) {
            return before;
        }
        before.push(next);
    }
}

fn stream(node: &Ssh, script: &str) -> (Streaming, Receiver<Streamed>) {
    let (send, told) = mpsc::channel();
    let tell = Box::new(move |what| if send.send(what).is_ok() { Flow::GoOn } else { Flow::Enough });
    (node.stream(script.into(), Duration::from_secs(3), tell).unwrap(), told)
}

const TICKING: &str = "n=0; while :; do n=$((n + 1)); printf 'tick '; sleep 0.02; echo $n; done";

#[test]
fn a_stream_goes_on_after_the_connection_broke_and_tells_whole_lines_only() {
    with_rig(1, |rig| {
        let node = ssh(rig, "node01");
        let (_streaming, told) = stream(&node, TICKING);
        let is_line = |what: &Streamed| matches!(what, Streamed::Line(_));
        until(&told, is_line);
        rig.verb("reset node01").unwrap();
        let before = until(&told, |what| matches!(what, Streamed::Down(RemoteError::Lost { .. })));
        rig.verb("heal node01").unwrap();
        let down = until(&told, |what| matches!(what, Streamed::Up));
        assert!(down.is_empty(), "down is told once: {down:?}");
        until(&told, |what| matches!(what, Streamed::Line(line) if line == "tick 3"));
        let whole = |what: &Streamed| match what {
            Streamed::Line(line) => line.strip_prefix("tick ").is_some_and(|n| n.parse::<u32>().is_ok()),
            _ => false,
        };
        assert!(before.iter().all(whole), "{before:?}");
    });
}

#[test]
fn a_stream_from_a_node_that_falls_silent_is_down_and_comes_back() {
    with_rig(1, |rig| {
        let node = ssh(rig, "node01");
        let (_streaming, told) = stream(&node, TICKING);
        until(&told, |what| matches!(what, Streamed::Line(_)));
        rig.verb("linkdown node01").unwrap();
        until(&told, |what| matches!(what, Streamed::Down(_)));
        rig.verb("heal node01").unwrap();
        until(&told, |what| matches!(what, Streamed::Up));
    });
}

#[test]
fn a_script_that_falls_silent_on_a_node_that_answers_loses_nothing() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        let (_streaming, told) = stream(&node, "echo ready; sleep 8; echo again; sleep 1000");
        until(&told, |what| matches!(what, Streamed::Line(_)));
        // It is silent for longer than it may be, twice.
        assert_eq!(said(&mut node, "sleep 7; hostname"), "node01");
        let silent = until(&told, |what| matches!(what, Streamed::Line(line) if line == "again"));
        assert!(silent.is_empty(), "{silent:?}");
    });
}

#[test]
fn a_streams_script_ends_on_the_node_when_nobody_listens() {
    with_rig(1, |rig| {
        let node = ssh(rig, "node01");
        let mut other = node.clone();
        let mut left = move || said(&mut other, "pgrep -fc '^sleep 4321' || :");
        let (streaming, told) = stream(&node, "sleep 4321 & echo ready; wait");
        until(&told, |what| matches!(what, Streamed::Line(_)));
        assert_eq!(left(), "1");
        drop(streaming);
        while left() != "0" {}
    });
}

#[test]
fn jump_hosts_are_left_to_openssh() {
    with_rig(2, |rig| {
        let config = fs::read_to_string(rig.ssh_config()).unwrap();
        let jump = rig.folder().join("jump_config");
        fs::write(&jump, format!("Host node02\n  ProxyCommand ssh -F {} -W %h:%p node01\n{config}", rig.ssh_config()))
            .unwrap();
        let mut node = Ssh::new(SshOptions { config: Some(jump), ..SshOptions::default() }, login("node02"));
        assert_eq!(said(&mut node, "hostname"), "node02");
        let target = start_group(&mut node, &rig.share());
        assert!(matches!(node.look(&target).unwrap(), Group::Ours(_)));
        node.signal(&target, Addressee::Everyone, Signal::Kill).unwrap();
        while node.look(&target).unwrap() != Group::Gone {}
        let log = fs::read_to_string(rig.node_folder("node02").join("sshd.log")).unwrap();
        assert_eq!(log.matches("Accepted publickey").count(), 1, "one connection for all");

        let (streaming, told) = stream(&node, TICKING);
        until(&told, |what| matches!(what, Streamed::Line(line) if line == "tick 3"));
        drop(streaming);
        let error = node.run(&Command::new("sleep", "sleep 30", Duration::from_millis(300))).unwrap_err();
        assert!(matches!(error, RemoteError::Silent { .. }), "{error}");
        rig.verb("nologin node02").unwrap();
        rig.verb("dropsessions node02").unwrap();
        while !matches!(run(&mut node, "true"), Err(RemoteError::Unreachable { refused, .. }) if refused.step == "login")
        {
        }
    });
}

//! Nodes over SSH, on a rig of real SSH servers: commands, processes, streams, and every way not to reach a node.

#![expect(clippy::unwrap_used, reason = "a test that unwraps says where it broke")]

use std::fs;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::unix::net::UnixListener;
use std::process::{self, Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use cluster::NodeId;
use plan::{KillScope, NodeKill, OrphanKill};
use remote::{
    Command, ConnectStep, Fleet, Output, Patience, Recipient, RemoteError, Role, RunProcesses, Shell, Signal, Ssh,
    SshOptions, Status, Stream, StreamEvent, Transport, execute_kill, list_processes, own_ancestry, this_node,
};
use rig::{Options, Rig};
use rundir::{Login, RankPid, RunId};
use runstate::Liveness;

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

/// Asks again and again until something holds.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
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
        assert!(matches!(error, RemoteError::Timeout { .. }) && error.is_unreachable(), "{error}");
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
    assert!(node.start(&script, &ready, b"").unwrap().exit().is_none());
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
        let RunProcesses::Owned(members) = node.find_processes(&target).unwrap() else {
            panic!("{:?}", node.find_processes(&target))
        };
        let roles: Vec<Role> = members.iter().map(|process| process.role).collect();
        assert_eq!(roles, [Role::Supervisor, Role::Rank(0)], "{members:?}");
        assert!(members[1].command.starts_with("sleep 1000"), "{members:?}");

        let others = [
            NodeKill { start_ticks: target.start_ticks + 1, ..target.clone() },
            NodeKill { run: RunId::parse("2026-11-20T0340-demo-aaaa").unwrap(), ..target.clone() },
        ];
        for other in others {
            let error = node.signal(&other, Recipient::All, Signal::Kill).unwrap_err();
            assert!(matches!(error, RemoteError::NotOwned { .. }), "{error}");
        }
        let rebooted = NodeKill { boot_id: "00000000-0000-0000-0000-000000000000".into(), ..target.clone() };
        assert_eq!(node.find_processes(&rebooted).unwrap(), RunProcesses::Gone);
        assert_eq!(
            node.find_processes(&target).unwrap(),
            RunProcesses::Owned(members.clone()),
            "nothing was signalled so far"
        );

        assert_eq!(node.signal(&target, Recipient::Supervisor, Signal::Term).unwrap(), members[..1]);
        eventually("all of it is gone", || node.find_processes(&target).unwrap() == RunProcesses::Gone);
        assert_eq!(node.signal(&target, Recipient::All, Signal::Kill).unwrap(), []);
    });
}

#[test]
fn what_was_started_outlives_the_connection_and_is_killed_over_another() {
    with_rig(1, |rig| {
        let target = start_group(&mut ssh(rig, "node01"), &rig.share());
        rig.verb("dropsessions node01").unwrap();
        let mut node = ssh(rig, "node01");
        let RunProcesses::Owned(members) = node.find_processes(&target).unwrap() else {
            panic!("it died with its connection")
        };
        assert_eq!(node.signal(&target, Recipient::All, Signal::Kill).unwrap(), members);
        eventually("all of it is gone", || node.find_processes(&target).unwrap() == RunProcesses::Gone);
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
        node.signal(&target, Recipient::Supervisor, Signal::Term).unwrap();
        eventually("the worker alone is left", || {
            let RunProcesses::Owned(members) = node.find_processes(&target).unwrap() else { panic!("it was not seen") };
            matches!(&members[..], [worker] if worker.command == "sleep 2000")
        });
        assert_eq!(node.signal(&target, Recipient::All, Signal::Kill).unwrap().len(), 1);
        eventually("all of it is gone", || node.find_processes(&target).unwrap() == RunProcesses::Gone);
        assert_eq!(said(&mut node, "pgrep -fc '^sleep 2000'"), "1", "that of another attempt is left alone");
    });
}

#[test]
fn a_script_that_ends_at_once_says_why() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        let script = rig.share().join("start.sh");
        fs::write(&script, "echo no such thing >&2\nexit 3\n").unwrap();
        let ended = node.start(&script, &rig.share().join("never"), b"").unwrap().exit().unwrap();
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
        assert!(node.start(&script, &got, secrets).unwrap().exit().is_none());
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
            assert!(matches!(error, RemoteError::Unreachable { .. }) && error.is_unreachable(), "{error:?}");
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
        // What a server with many logins under way does (MaxStartups), and no chance in it.
        let moody = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = moody.local_addr().unwrap().port();
        let turned_away = 3;
        thread::spawn(move || {
            for (number, client) in moody.incoming().enumerate() {
                if number >= turned_away {
                    pass_on(client.unwrap(), TcpStream::connect("10.99.0.1:22").unwrap());
                }
            }
        });
        let config = fs::read_to_string(rig.ssh_config()).unwrap();
        let through = rig.folder().join("moody_config");
        let host = format!("Host node01\n  HostName 127.0.0.1\n  Port {port}\n  HostKeyAlias 10.99.0.1\n");
        fs::write(&through, format!("{host}{config}")).unwrap();
        let mut node = Ssh::new(SshOptions { config: Some(through), ..SshOptions::default() }, login("node01"));
        assert_eq!(said(&mut node, "hostname"), "node01");
    });
}

/// Hands bytes from one connection to the other, both ways, in threads of their own.
fn pass_on(client: TcpStream, server: TcpStream) {
    let ways = [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
    for (mut from, mut to) in ways {
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            to.shutdown(Shutdown::Both)
        });
    }
}

/// An agent for SSH keys, ended when the test is over.
struct Agent(Child);

impl Agent {
    fn start(socket: &Utf8Path) -> Self {
        let agent = Self(process::Command::new("ssh-agent").args(["-D", "-a", socket.as_str()]).spawn().unwrap());
        eventually("the agent is up", || socket.exists());
        agent
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Not collected yet, so that its number is still its own.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn done(command: &mut process::Command) {
    assert!(command.stdin(Stdio::null()).output().unwrap().status.success(), "{command:?}");
}

#[test]
fn a_key_with_a_passphrase_is_used_through_the_agent_and_without_one_the_error_says_how() {
    with_rig(1, |rig| {
        let (locked, socket, config) =
            (rig.folder().join("locked"), rig.folder().join("agent"), rig.folder().join("agent_config"));
        let plain = rig.folder().join("id_ed25519");
        for ending in ["", ".pub"] {
            fs::copy(format!("{plain}{ending}"), format!("{locked}{ending}")).unwrap();
        }
        done(process::Command::new("ssh-keygen").args(["-p", "-P", "", "-N", "secret", "-f", locked.as_str()]));
        let node = |agent: &str| {
            let text = format!(
                "Host *\n  HostName 10.99.0.1\n  User root\n  IdentityFile {locked}\n  IdentitiesOnly yes\n  \
                 IdentityAgent {agent}\n  UserKnownHostsFile {}/known_hosts\n",
                rig.folder()
            );
            fs::write(&config, text).unwrap();
            Ssh::new(SshOptions { config: Some(config.clone()), ..SshOptions::default() }, login("node01"))
        };
        let error = run(&mut node("none"), "true").unwrap_err();
        let failure = error.failure("cannot reach node01");
        assert!(failure.why.contains(&format!("{locked} (it has a passphrase, or cannot be read)")), "{failure}");
        assert_eq!(failure.fix, format!("unlock it once for this session: `ssh-add {locked}`"));

        let _agent = Agent::start(&socket);
        let error = run(&mut node(socket.as_str()), "true").unwrap_err();
        assert!(error.to_string().contains("the agent, which has no key for it"), "{error}");
        done(process::Command::new("ssh-add").arg(plain).env("SSH_AUTH_SOCK", &socket));
        assert_eq!(said(&mut node(socket.as_str()), "hostname"), "node01");
    });
}

#[test]
fn an_agent_that_hangs_up_or_says_nothing_keeps_nobody_from_a_key_file() {
    with_rig(1, |rig| {
        for hangs_up in [true, false] {
            let (socket, config) = (rig.folder().join(format!("agent{hangs_up}")), rig.folder().join("stale_config"));
            let agent = UnixListener::bind(&socket).unwrap();
            thread::spawn(move || {
                let mut kept = Vec::new();
                for call in agent.incoming() {
                    kept.extend(call.ok().filter(|_| !hangs_up));
                }
            });
            let text = fs::read_to_string(rig.ssh_config()).unwrap();
            fs::write(&config, format!("Host *\n  IdentityAgent {socket}\n{text}")).unwrap();
            let options = SshOptions { config: Some(config), ..SshOptions::default() };
            assert_eq!(said(&mut Ssh::new(options, login("node01")), "hostname"), "node01", "hangs up: {hangs_up}");
        }
    });
}

#[test]
fn a_server_with_room_for_one_command_lets_each_have_its_turn() {
    with_rig(1, |rig| {
        let file = rig.node_folder("node01").join("sshd_config");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text}\nMaxSessions 1\n")).unwrap();
        rig.verb("killsshd node01").unwrap();
        rig.verb("startsshd node01").unwrap();
        let mut node = ssh(rig, "node01");
        let (_streaming, told) = stream(&node, TICKING, LONG);
        for _ in 0..2 {
            until(&told, |what| matches!(what, StreamEvent::Line(line) if line == "tick 3"));
            assert_eq!(said(&mut node, "hostname"), "node01");
        }
    });
}

#[test]
fn a_key_that_is_declared_void_is_refused_even_where_any_key_is_trusted() {
    with_rig(1, |rig| {
        let config = fs::read_to_string(rig.ssh_config()).unwrap();
        let (careless, list) = (rig.folder().join("careless_config"), rig.folder().join("void"));
        let key = fs::read_to_string(rig.node_folder("node01").join("host_key.pub")).unwrap();
        let trusting = format!("Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile {list}\n{config}");
        fs::write(&careless, trusting).unwrap();
        let options = SshOptions { config: Some(careless), ..SshOptions::default() };
        fs::write(&list, "").unwrap();
        assert_eq!(said(&mut Ssh::new(options.clone(), login("node01")), "hostname"), "node01");
        fs::write(&list, format!("@revoked 10.99.0.1 {key}")).unwrap();
        let error = run(&mut Ssh::new(options, login("node01")), "true").unwrap_err();
        assert!(error.to_string().contains(&format!("which {list} line 1 declares void")), "{error}");
    });
}

#[test]
fn a_node_that_only_has_this_machines_name_is_not_taken_for_it() {
    with_rig(1, |rig| {
        let named = rig.folder().join("named_config");
        let keys = format!(
            "  IdentityFile {0}/id_ed25519\n  IdentitiesOnly yes\n  UserKnownHostsFile {0}/known_hosts\n",
            rig.folder()
        );
        let name = this_node().unwrap().node;
        let me = said(&mut ssh(rig, "node01"), "id -un");
        let boot_of = |address: &str, user: &str| {
            fs::write(&named, format!("Host {name}\n  HostName {address}\n  User {user}\n{keys}")).unwrap();
            let fleet = Fleet::new(SshOptions { config: Some(named.clone()), ..SshOptions::default() }).unwrap();
            let mut transports = fleet.transports(&[login(name.as_str())]).unwrap();
            assert_eq!((transports.len(), transports[0].node()), (1, &name));
            let command = Command::new("be tested", "cat /proc/sys/kernel/random/boot_id", LONG);
            let text = transports[0].run(&command).and_then(|output| output.text(&name, &command));
            text.map(|text| text.trim().to_owned())
        };
        assert_eq!(boot_of("127.0.0.1", &me).unwrap(), this_node().unwrap().boot_id);
        let theirs = said(&mut ssh(rig, "node01"), "cat /proc/sys/kernel/random/boot_id");
        assert_ne!(theirs, this_node().unwrap().boot_id);
        assert_eq!(boot_of("10.99.0.1", "root").unwrap(), theirs);
        assert!(boot_of("127.0.0.1", "somebody-else").is_err(), "another user of this machine is not this one");
    });
}

#[test]
fn another_user_sees_that_a_run_lives_and_may_not_end_it() {
    with_rig(1, |rig| {
        let target = start_group(&mut ssh(rig, "node01"), &rig.share());
        let options = SshOptions { config: Some(rig.ssh_config()), ..SshOptions::default() };
        let mut other = Ssh::new(options, Login { user: Some("eve".into()), ..login("node01") });
        assert_eq!(said(&mut other, "id -un"), "eve");
        assert_eq!(other.liveness(&target).unwrap(), Liveness::Alive);
        let error = other.signal(&target, Recipient::All, Signal::Kill).unwrap_err();
        assert!(error.to_string().contains("cannot be read: permission denied"), "{error}");
        let reused = NodeKill { start_ticks: target.start_ticks + 1, ranks: Vec::new(), ..target.clone() };
        assert_eq!(other.liveness(&reused).unwrap(), Liveness::Dead);
        let mut owner = ssh(rig, "node01");
        owner.signal(&target, Recipient::All, Signal::Kill).unwrap();
        eventually("it is seen to be gone", || other.liveness(&target).unwrap() == Liveness::Dead);
    });
}

#[test]
fn one_stray_that_may_not_be_signalled_keeps_no_other_from_its_end() {
    with_rig(1, |rig| {
        let options = SshOptions { config: Some(rig.ssh_config()), ..SshOptions::default() };
        let mut eve = Ssh::new(options, Login { user: Some("eve".into()), ..login("node01") });
        let start =
            |ignores: &str| format!("setsid sh -c '{ignores} exec sleep 31417' >/dev/null 2>&1 </dev/null & echo $!");
        said(&mut ssh(rig, "node01"), &start(""));
        said(&mut eve, &start("trap \"\" TERM;"));
        let mut transports: Vec<Box<dyn Transport>> = vec![Box::new(eve)];
        let mut orphans = || {
            let seen = list_processes(&[login("node01").node], &mut transports).remove(0).1.unwrap();
            plan::select_orphans(&seen, KillScope::AllUsers, &own_ancestry().unwrap(), &|line| line == "sleep 31417")
        };
        eventually("both are seen", || orphans().processes.len() == 2);
        let found = orphans();
        let patience = Patience { stop: LONG, term: Duration::from_millis(300), kill: Duration::from_secs(2) };
        let plan = OrphanKill { scope: KillScope::AllUsers, nodes: vec![found] };
        let report = execute_kill(&plan.into(), &mut transports, &patience, &mut |_| {}).nodes.remove(0);
        assert_eq!(report.left.len(), 1, "root's: {report:?}");
        assert!(report.failure.unwrap().to_string().contains("not permitted"));
        let seen = list_processes(&[login("node01").node], &mut transports).remove(0).1.unwrap();
        let left =
            plan::select_orphans(&seen, KillScope::AllUsers, &own_ancestry().unwrap(), &|line| line == "sleep 31417")
                .processes;
        assert_eq!(left.iter().map(|process| process.user.as_str()).collect::<Vec<_>>(), ["root"]);
    });
}

#[test]
fn a_new_key_is_noted_where_the_configuration_allows_it() {
    with_rig(1, |rig| {
        let config = fs::read_to_string(rig.ssh_config()).unwrap();
        let trusting = rig.folder().join("trusting_config");
        let known_hosts = rig.folder().join("noted");
        fs::write(
            &trusting,
            format!("Host *\n  StrictHostKeyChecking accept-new\n  UserKnownHostsFile {known_hosts}\n{config}"),
        )
        .unwrap();
        // Somebody left its last line open.
        fs::write(&known_hosts, "elsewhere ssh-ed25519 AAAA").unwrap();
        let options = SshOptions { config: Some(trusting), ..SshOptions::default() };
        let mut node = Ssh::new(options.clone(), login("node01"));
        assert_eq!(said(&mut node, "hostname"), "node01");
        let noted = fs::read_to_string(&known_hosts).unwrap();
        assert!(noted.starts_with("elsewhere ssh-ed25519 AAAA\n10.99.0.1 "), "{noted}");
        assert!(noted.lines().count() == 2 && noted.ends_with('\n'), "{noted}");
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
        eventually("it is refused", || matches!(run(&mut node, "true"), Err(RemoteError::Unreachable { .. })));
        rig.verb("poweron node01").unwrap();
        eventually("it is reached again", || run(&mut node, "true").is_ok());
    });
}

#[test]
fn an_sshd_that_stops_answering_is_noticed_and_survived() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        assert_eq!(said(&mut node, "hostname"), "node01");
        rig.verb("stop node01").unwrap();
        let hasty = Command::new("be tested", "true", Duration::from_millis(500));
        assert!(matches!(node.run(&hasty), Err(RemoteError::Timeout { .. })));
        rig.verb("cont node01").unwrap();
        assert_eq!(said(&mut node, "hostname"), "node01");
    });
}

/// Reads a stream until it has told what is wanted; returns what it told before.
fn until(told: &Receiver<StreamEvent>, wanted: impl Fn(&StreamEvent) -> bool) -> Vec<StreamEvent> {
    let mut before = Vec::new();
    loop {
        let next = told.recv_timeout(LONG).unwrap_or_else(|_| panic!("only {before:?}"));
        if wanted(&next) {
            return before;
        }
        before.push(next);
    }
}

/// Streams, and bears so long a silence.
fn stream(node: &Ssh, script: &str, silence: Duration) -> (Stream, Receiver<StreamEvent>) {
    let (send, told) = mpsc::channel();
    let tell =
        Box::new(move |what| if send.send(what).is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) });
    (node.stream(script.into(), silence, tell).unwrap(), told)
}

const TICKING: &str = "n=0; while :; do n=$((n + 1)); printf 'tick '; sleep 0.02; echo $n; done";

#[test]
fn a_stream_goes_on_after_the_connection_broke_and_tells_whole_lines_only() {
    with_rig(1, |rig| {
        let node = ssh(rig, "node01");
        let (_streaming, told) = stream(&node, TICKING, LONG);
        let is_line = |what: &StreamEvent| matches!(what, StreamEvent::Line(_));
        until(&told, is_line);
        rig.verb("reset node01").unwrap();
        let before = until(&told, |what| matches!(what, StreamEvent::Disconnected(RemoteError::ConnectionLost { .. })));
        rig.verb("heal node01").unwrap();
        let down = until(&told, |what| matches!(what, StreamEvent::Connected));
        assert!(down.is_empty(), "down is told once: {down:?}");
        until(&told, |what| matches!(what, StreamEvent::Line(line) if line == "tick 3"));
        let whole = |what: &StreamEvent| match what {
            StreamEvent::Line(line) => line.strip_prefix("tick ").is_some_and(|n| n.parse::<u32>().is_ok()),
            _ => false,
        };
        assert!(before.iter().all(whole), "{before:?}");
    });
}

#[test]
fn a_stream_from_a_node_that_falls_silent_is_down_and_comes_back() {
    with_rig(1, |rig| {
        let node = ssh(rig, "node01");
        let (_streaming, told) = stream(&node, TICKING, Duration::from_secs(3));
        until(&told, |what| matches!(what, StreamEvent::Line(_)));
        rig.verb("linkdown node01").unwrap();
        until(&told, |what| matches!(what, StreamEvent::Disconnected(_)));
        rig.verb("heal node01").unwrap();
        until(&told, |what| matches!(what, StreamEvent::Connected));
    });
}

#[test]
fn a_script_that_falls_silent_on_a_node_that_answers_loses_nothing() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        let (_streaming, told) = stream(&node, "echo ready; sleep 8; echo again; sleep 1000", Duration::from_secs(3));
        until(&told, |what| matches!(what, StreamEvent::Line(_)));
        // It is silent for longer than it may be, twice.
        assert_eq!(said(&mut node, "sleep 7; hostname"), "node01");
        let silent = until(&told, |what| matches!(what, StreamEvent::Line(line) if line == "again"));
        assert!(silent.is_empty(), "{silent:?}");
    });
}

#[test]
fn a_streams_script_ends_on_the_node_when_nobody_listens() {
    with_rig(1, |rig| {
        let node = ssh(rig, "node01");
        let mut other = node.clone();
        let mut left = move || said(&mut other, "pgrep -fc '^sleep 4321' || :");
        let (streaming, told) = stream(&node, "sleep 4321 & echo ready; wait", LONG);
        until(&told, |what| matches!(what, StreamEvent::Line(_)));
        assert_eq!(left(), "1");
        drop(streaming);
        eventually("the script has ended", || left() == "0");
    });
}

#[test]
fn jump_hosts_are_left_to_openssh() {
    with_rig(2, |rig| {
        let config = fs::read_to_string(rig.ssh_config()).unwrap();
        let jump = rig.folder().join("jump_config");
        // Two handshakes, one through the other, on a machine that may be busy.
        fs::write(&jump, format!("Host node02\n  ProxyJump node01\nHost *\n  ConnectTimeout 60\n{config}")).unwrap();
        let mut node = Ssh::new(SshOptions { config: Some(jump), ..SshOptions::default() }, login("node02"));
        assert_eq!(said(&mut node, "hostname"), "node02");
        let target = start_group(&mut node, &rig.share());
        assert!(matches!(node.find_processes(&target).unwrap(), RunProcesses::Owned(_)));
        node.signal(&target, Recipient::All, Signal::Kill).unwrap();
        eventually("all of it is gone", || node.find_processes(&target).unwrap() == RunProcesses::Gone);
        let log = fs::read_to_string(rig.node_folder("node02").join("sshd.log")).unwrap();
        assert_eq!(log.matches("Accepted publickey").count(), 1, "one connection for all");

        let (streaming, told) = stream(&node, TICKING, LONG);
        until(&told, |what| matches!(what, StreamEvent::Line(line) if line == "tick 3"));
        for _ in 0..2 {
            rig.verb("dropsessions node02").unwrap();
            until(&told, |what| matches!(what, StreamEvent::Disconnected(RemoteError::ConnectionLost { .. })));
            until(&told, |what| matches!(what, StreamEvent::Connected));
        }
        drop(streaming);
        let error = node.run(&Command::new("sleep", "sleep 30", Duration::from_millis(300))).unwrap_err();
        assert!(matches!(error, RemoteError::Timeout { .. }), "{error}");
        rig.verb("nologin node02").unwrap();
        rig.verb("dropsessions node02").unwrap();
        let is_refused =
            |result| matches!(result, Err(RemoteError::Unreachable { error, .. }) if error.step == ConnectStep::Login);
        eventually("the login is refused", || is_refused(run(&mut node, "true")));
    });
}

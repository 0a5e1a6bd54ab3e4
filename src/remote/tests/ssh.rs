//! Tests the SSH transport with the real SSH servers of a simulated cluster (`rig`): commands, processes, streams and
//! connection errors.

#![expect(clippy::unwrap_used, reason = "a failed unwrap shows its line")]

use std::fs;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{self, Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use cluster::NodeId;
use plan::{KillScope, NodeKill, OrphanKill};
use remote::{
    Command, ConnectStep, Connections, Output, Patience, ProcessRole, Recipient, RemoteError, RunProcesses, Shell,
    Signal, Ssh, SshOptions, Status, Stream, StreamEvent, Transport, execute_kill, list_processes, own_ancestry,
    this_node,
};
use rig::{Options, Rig};
use rundir::{ErrorCode, Login, RankPid, RunId};
use runstate::Liveness;

const LONG: Duration = Duration::from_secs(60);
const RUN: &str = "2026-11-20T0340-demo-k7f2";

/// Runs a test in the network of the simulated cluster's head node. Prints a message and skips it where `rig` cannot
/// run.
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

/// Waits until a condition holds.
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
    ssh.run(&Command::new("run a test", script, LONG))
}

/// Runs a script that must succeed and returns its standard output.
fn stdout(ssh: &mut Ssh, script: &str) -> String {
    let output = run(ssh, script).unwrap();
    assert!(output.status.is_success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_command_returns_its_output_its_standard_error_and_its_exit_status() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        let mut command = Command::new("run a test", "cat; echo '$HOME isn'\\''t it' >&2; exit 3", LONG);
        command.input = b"one\0two\xff\n".repeat(100_000);
        let output = node.run(&command).unwrap();
        assert_eq!(output.status, Status::Code(3));
        assert!(output.stdout == command.input, "the output differs from the input");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "$HOME isn't it\n");

        assert_eq!(run(&mut node, "kill -SEGV $$").unwrap().status, Status::Signal("SEGV".into()));
        assert_eq!(stdout(&mut node, "hostname"), "node01");
        let flood = run(&mut node, "head -c 3000000 /dev/zero >&2; echo done").unwrap();
        assert_eq!((flood.stdout.as_slice(), flood.stderr.len()), (&b"done\n"[..], 3_000_000));
    });
}

#[test]
fn many_commands_share_one_connection_with_few_channels() {
    with_rig(1, |rig| {
        let node = ssh(rig, "node01");
        thread::scope(|scope| {
            for number in 0..40 {
                let mut node = node.clone();
                scope.spawn(move || {
                    assert_eq!(stdout(&mut node, &format!("sleep 0.05; echo {number}")), number.to_string());
                });
            }
        });
        let log = fs::read_to_string(rig.node_folder("node01").join("sshd.log")).unwrap();
        assert_eq!(log.matches("Accepted publickey").count(), 1, "one connection for all");
        assert_eq!(log.matches("no more sessions").count(), 0);
    });
}

#[test]
fn replies_that_arrive_together_reach_their_commands() {
    with_rig(1, |rig| {
        let node = ssh(rig, "node01");
        // The server sends the replies of several commands at once.
        rig.verb("slow node01 20").unwrap();
        thread::scope(|scope| {
            for number in 0..8 {
                let mut node = node.clone();
                scope.spawn(move || {
                    for round in 0..25 {
                        let text = format!("{number} {round}");
                        assert_eq!(stdout(&mut node, &format!("echo {text}")), text);
                    }
                });
            }
        });
    });
}

#[test]
fn a_command_that_times_out_does_not_close_the_connection() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        // The time limit of a command includes the time to connect.
        assert_eq!(stdout(&mut node, "echo here"), "here");
        let slow = Command::new("sleep", "sleep 30", Duration::from_millis(300));
        let error = node.run(&slow).unwrap_err();
        assert!(matches!(error, RemoteError::Timeout { .. }) && error.is_unreachable(), "{error}");
        assert_eq!(stdout(&mut node, "echo here"), "here");
        let log = fs::read_to_string(rig.node_folder("node01").join("sshd.log")).unwrap();
        assert_eq!(log.matches("Accepted publickey").count(), 1);
    });
}

/// Start files of the login shell, bash, which print text or continue as another login shell.
const TALKATIVE: [&str; 5] = [
    "echo 'Loading cuda/12.4'\nprintf 'no end'; printf 'no end' >&2\ntrap 'echo bye' EXIT\n",
    "printf '\\033[32mbase\\033[0m\\r\\n'; echo 'stty: not a terminal' >&2\n",
    "echo \"umask 027\"\r\n",
    "command -v tcsh >/dev/null && exec tcsh -c \"$BASH_EXECUTION_STRING\"\n",
    "command -v fish >/dev/null && exec fish -c \"$BASH_EXECUTION_STRING\"\n",
];

/// The transports of a node through libssh2 and through OpenSSH's program.
fn both_clients(rig: &Rig) -> [Ssh; 2] {
    [false, true].map(|always_program| {
        let options = SshOptions { config: Some(rig.ssh_config()), always_program, ..SshOptions::default() };
        Ssh::new(options, login("node01"))
    })
}

#[test]
fn text_of_login_shells_is_not_part_of_answers() {
    with_rig(1, |rig| {
        let home = rig.node_folder("node01").join("home");
        fs::write(home.join(".tcshrc"), "echo 'Loading cuda/12.4'\n").unwrap();
        fs::create_dir_all(home.join(".config/fish")).unwrap();
        fs::write(home.join(".config/fish/config.fish"), "echo 'Loading cuda/12.4'\n").unwrap();
        for mut node in both_clients(rig) {
            for start in TALKATIVE {
                fs::write(home.join(".bashrc"), start).unwrap();
                assert_eq!(stdout(&mut node, "hostname"), "node01", "{start}");
                let output = run(&mut node, "echo oops >&2; exit 255").unwrap();
                assert_eq!((output.status, &output.stderr[..]), (Status::Code(255), &b"oops\n"[..]), "{start}");
                assert!(node.free_bytes("/".into()).unwrap() > 0, "{start}");
                let (_stream, events) = stream(&node, TICKING, LONG);
                let before = until(&events, |event| matches!(event, StreamEvent::Line(_)));
                assert!(matches!(before[..], [StreamEvent::Connected]), "{start}: {before:?}");
            }
        }
    });
}

#[test]
fn a_login_shell_that_runs_no_command_is_an_error_with_its_text() {
    with_rig(1, |rig| {
        let start = rig.node_folder("node01").join("home/.bashrc");
        for mut node in both_clients(rig) {
            fs::write(&start, "printf 'closed for maintenance'\nexit 1\n").unwrap();
            let error = run(&mut node, "hostname").unwrap_err();
            assert!(matches!(error, RemoteError::NotRun { .. }) && !error.is_unreachable(), "{error:?}");
            assert!(error.to_string().contains("closed for maintenance"), "{error}");
            let (_stream, events) = stream(&node, TICKING, LONG);
            let StreamEvent::Failed(error) = events.recv_timeout(LONG).unwrap() else { panic!("it has not failed") };
            assert!(error.to_string().contains("closed for maintenance"), "{error}");
            // It waits for an answer of the user.
            fs::write(&start, "printf 'Your name? '\nsleep 1000\n").unwrap();
            let hasty = Command::new("run a test", "hostname", Duration::from_secs(2));
            // On a busy machine, the login shell may print nothing within the time limit.
            eventually("the error has the question", || {
                let error = node.run(&hasty).unwrap_err();
                assert!(error.is_unreachable(), "{error}");
                error.to_string().contains("Your name?")
            });
        }
    });
}

#[test]
fn a_line_without_an_end_is_an_error_and_fills_no_memory() {
    with_rig(1, |rig| {
        for node in both_clients(rig) {
            let (_stream, events) = stream(&node, "tr '\\0' x </dev/zero", LONG);
            until(&events, |event| matches!(event, StreamEvent::Failed(RemoteError::UnexpectedReply { .. })));
        }
    });
}

/// Starts a process group on a node as a supervisor with one rank, and returns what its process file would contain.
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
    let number = |name: &str| fs::read_to_string(folder.join(name)).unwrap().trim().parse::<i32>();
    // The file exists before its content is written.
    eventually("the supervisor has written its process id", || number("ready").is_ok());
    let (pid, rank) = (number("ready").unwrap(), number("rank").unwrap());
    let mut stat = |pid: i32| {
        let text = stdout(node, &format!("set -- $(sed 's/.*)//' /proc/{pid}/stat); echo $1 ${{20}}"));
        let (state, ticks) = text.split_once(' ').unwrap();
        (state.to_owned(), ticks.parse::<u64>().unwrap())
    };
    // Tests compare listings of these processes, in which states and commands must not change.
    eventually("the supervisor and its rank wait", || stat(pid).0 == "S" && stat(rank).0 == "S");
    let (start_ticks, rank_ticks) = (stat(pid).1, stat(rank).1);
    eventually("the rank has become its program", || {
        stdout(node, &format!("tr '\\0' ' ' </proc/{rank}/cmdline")) == "sleep 1000"
    });
    NodeKill {
        run: RunId::parse(RUN).unwrap(),
        node: node.node().clone(),
        attempt: 1,
        pid,
        pgid: pid,
        boot_id: stdout(node, "cat /proc/sys/kernel/random/boot_id"),
        start_ticks,
        ranks: vec![RankPid { rank: 0, pid: rank, start_ticks: rank_ticks }],
        why: String::new(),
    }
}

#[test]
fn processes_on_a_node_are_signalled_only_if_start_time_run_and_boot_match() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        let target = start_group(&mut node, &rig.share());
        let RunProcesses::Owned(members) = node.find_processes(&target).unwrap() else {
            panic!("{:?}", node.find_processes(&target))
        };
        let roles: Vec<ProcessRole> = members.iter().map(|process| process.role).collect();
        assert_eq!(roles, [ProcessRole::Supervisor, ProcessRole::Rank(0)], "{members:?}");
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
            "a process was signalled"
        );

        assert_eq!(node.signal(&target, Recipient::Supervisor, Signal::Term).unwrap(), members[..1]);
        eventually("all processes are gone", || node.find_processes(&target).unwrap() == RunProcesses::Gone);
        assert_eq!(node.signal(&target, Recipient::All, Signal::Kill).unwrap(), []);
    });
}

#[test]
fn processes_outlive_the_connection_that_started_them_and_are_killed_over_another() {
    with_rig(1, |rig| {
        let target = start_group(&mut ssh(rig, "node01"), &rig.share());
        rig.verb("dropsessions node01").unwrap();
        let mut node = ssh(rig, "node01");
        let RunProcesses::Owned(members) = node.find_processes(&target).unwrap() else {
            panic!("they exited with the connection")
        };
        assert_eq!(node.signal(&target, Recipient::All, Signal::Kill).unwrap(), members);
        eventually("all processes are gone", || node.find_processes(&target).unwrap() == RunProcesses::Gone);
    });
}

#[test]
fn a_process_outside_the_group_and_session_is_found_by_its_environment_and_killed() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        let target = start_group(&mut node, &rig.share());
        let marks = format!("VIDTUI_RUN={RUN} VIDTUI_NODE=node01");
        let script = format!(
            "for attempt in 1 2; do env {marks} VIDTUI_ATTEMPT=$attempt setsid sleep 2000 >/dev/null 2>&1 </dev/null & done"
        );
        stdout(&mut node, &script);
        // Until they have become `sleep`, the processes do not have the variables.
        eventually("both workers run", || stdout(&mut node, "pgrep -fc '^sleep 2000' || :") == "2");
        node.signal(&target, Recipient::Supervisor, Signal::Term).unwrap();
        eventually("only the worker is left", || {
            let RunProcesses::Owned(members) = node.find_processes(&target).unwrap() else { panic!("not found") };
            matches!(&members[..], [worker] if worker.command == "sleep 2000")
        });
        assert_eq!(node.signal(&target, Recipient::All, Signal::Kill).unwrap().len(), 1);
        eventually("all processes are gone", || node.find_processes(&target).unwrap() == RunProcesses::Gone);
        assert_eq!(stdout(&mut node, "pgrep -fc '^sleep 2000'"), "1", "the process of the other attempt must stay");
    });
}

#[test]
fn a_script_that_exits_at_once_returns_its_status_and_standard_error() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        let script = rig.share().join("start.sh");
        fs::write(&script, "echo no such thing >&2\nexit 3\n").unwrap();
        let exit = node.start(&script, &rig.share().join("never"), b"").unwrap().exit().unwrap();
        assert_eq!((exit.status.as_str(), exit.stderr.trim()), ("exit status: 3", "no such thing"));
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
        // Only the search itself has the secret on its command line.
        let found = fs::read_to_string(format!("{got}.seen")).unwrap();
        assert!(found.lines().count() <= 1, "{found}");
    });
}

#[test]
fn every_connection_error_has_its_step_a_code_and_a_hint() {
    with_rig(6, |rig| {
        rig.verb("newkey node01").unwrap();
        rig.verb("nologin node02").unwrap();
        rig.verb("killsshd node03").unwrap();
        rig.verb("stopsshd node04").unwrap();
        rig.verb("drop node05").unwrap();
        let config = fs::read_to_string(rig.ssh_config()).unwrap();
        let hasty = rig.folder().join("hasty_config");
        // node06 has no known key. The timeout is short only if no answer is possible.
        let unknown = format!(
            "Host node06\n  UserKnownHostsFile {}/none\nHost node04 node05\n  ConnectTimeout 2\nHost *\n  ConnectTimeout 60\n",
            rig.folder()
        );
        fs::write(&hasty, format!("{unknown}{config}")).unwrap();
        let options = SshOptions { config: Some(hasty), ..SshOptions::default() };
        let expected = [
            ("node01", ConnectStep::HostKey, ErrorCode::HostKeyChanged),
            ("node02", ConnectStep::Login, ErrorCode::LoginRefused),
            ("node03", ConnectStep::Connect, ErrorCode::ConnectionRefused),
            ("node04", ConnectStep::Handshake, ErrorCode::NoAnswer),
            ("node05", ConnectStep::Connect, ErrorCode::NoAnswer),
            ("node06", ConnectStep::HostKey, ErrorCode::HostKeyUnknown),
            ("nowhere.invalid", ConnectStep::Connect, ErrorCode::NoAddress),
        ];
        let mut failures = String::new();
        for (name, step, code) in expected {
            let error = run(&mut Ssh::new(options.clone(), login(name)), "true").unwrap_err();
            let RemoteError::Unreachable { error: reason, .. } = &error else { panic!("{error:?}") };
            assert_eq!((reason.step, error.code(), error.is_unreachable()), (step, code, true), "{error}");
            failures += &format!("{}\n\n", error.failure(format!("cannot reach {name}")));
        }
        // `rig` creates new host keys in each test.
        let mut shown = failures.replace(rig.folder().as_str(), "RIG");
        while let Some(at) = shown.find("SHA256:") {
            shown.replace_range(at..at + "SHA256:".len() + 43, "FINGERPRINT");
        }
        insta::assert_snapshot!(shown);
    });
}

#[test]
fn a_handshake_that_the_server_drops_is_retried() {
    with_rig(1, |rig| {
        // Drops the first connections, as a server with many pending logins does at random (MaxStartups).
        let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = proxy.local_addr().unwrap().port();
        let dropped = 3;
        thread::spawn(move || {
            for (number, client) in proxy.incoming().enumerate() {
                if number >= dropped {
                    forward(client.unwrap(), TcpStream::connect("10.99.0.1:22").unwrap());
                }
            }
        });
        let config = fs::read_to_string(rig.ssh_config()).unwrap();
        let through = rig.folder().join("proxy_config");
        let host = format!("Host node01\n  HostName 127.0.0.1\n  Port {port}\n  HostKeyAlias 10.99.0.1\n");
        fs::write(&through, format!("{host}{config}")).unwrap();
        let mut node = Ssh::new(SshOptions { config: Some(through), ..SshOptions::default() }, login("node01"));
        assert_eq!(stdout(&mut node, "hostname"), "node01");
    });
}

#[test]
fn a_node_that_is_back_is_reached_at_once_if_a_user_waits() {
    with_rig(1, |rig| {
        // Nothing listens on this port yet.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = fs::read_to_string(rig.ssh_config()).unwrap();
        let through = rig.folder().join("late_config");
        let host = format!("Host node01\n  HostName 127.0.0.1\n  Port {}\n  HostKeyAlias 10.99.0.1\n", address.port());
        fs::write(&through, format!("{host}{config}")).unwrap();
        let options = SshOptions { config: Some(through), ..SshOptions::default() };
        let connections = Connections::new(options).unwrap();
        let reach = || connections.reach(&[login("node01")]).remove(0).1;
        // The pause until the next try grows to seconds.
        let fails = || {
            let Err(RemoteError::Unreachable { error, .. }) = reach() else { panic!("nothing listens") };
            assert_eq!(error.step, ConnectStep::Connect);
        };
        (0..4).for_each(|_| fails());
        let tried = Instant::now();
        fails();
        let proxy = TcpListener::bind(address).unwrap();
        thread::spawn(move || {
            for client in proxy.incoming() {
                forward(client.unwrap(), TcpStream::connect("10.99.0.1:22").unwrap());
            }
        });
        let ping = Command::new("run a command", ":", LONG);
        let early = connections.ssh(&login("node01")).run(&ping);
        // The shortest pause. On a busy machine, the command may come after it.
        if tried.elapsed() < Duration::from_secs(3) {
            assert!(early.is_err(), "others wait for the next try");
        }
        reach().unwrap();
    });
}

/// Forwards bytes between two connections in both directions, one thread each.
fn forward(client: TcpStream, server: TcpStream) {
    let ways = [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
    for (mut from, mut to) in ways {
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            to.shutdown(Shutdown::Both)
        });
    }
}

/// An SSH agent, killed at the end of the test.
struct Agent(Child);

impl Agent {
    fn start(socket: &Utf8Path) -> Self {
        let agent = Self(process::Command::new("ssh-agent").args(["-D", "-a", socket.as_str()]).spawn().unwrap());
        // The socket exists before the agent listens.
        eventually("the agent is up", || UnixStream::connect(socket).is_ok());
        agent
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // The process has not been reaped, so its id is not reused.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn succeed(command: &mut process::Command) {
    assert!(command.stdin(Stdio::null()).output().unwrap().status.success(), "{command:?}");
}

#[test]
fn a_key_with_a_passphrase_works_through_the_agent_and_without_one_the_error_has_the_command() {
    with_rig(1, |rig| {
        let (locked, socket, config) =
            (rig.folder().join("locked"), rig.folder().join("agent"), rig.folder().join("agent_config"));
        let plain = rig.folder().join("id_ed25519");
        for ending in ["", ".pub"] {
            fs::copy(format!("{plain}{ending}"), format!("{locked}{ending}")).unwrap();
        }
        succeed(process::Command::new("ssh-keygen").args(["-p", "-P", "", "-N", "secret", "-f", locked.as_str()]));
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
        assert_eq!(failure.code, ErrorCode::LoginRefused);
        assert!(failure.why.contains(locked.as_str()), "{failure}");
        assert!(failure.fix.contains(&format!("`ssh-add {locked}`")), "{failure}");

        let _agent = Agent::start(&socket);
        let error = run(&mut node(socket.as_str()), "true").unwrap_err();
        assert_eq!(error.code(), ErrorCode::LoginRefused, "{error}");
        assert!(error.to_string().contains(socket.as_str()), "{error}");
        succeed(process::Command::new("ssh-add").arg(plain).env("SSH_AUTH_SOCK", &socket));
        assert_eq!(stdout(&mut node(socket.as_str()), "hostname"), "node01");
    });
}

#[test]
fn an_agent_that_closes_or_does_not_reply_does_not_prevent_the_use_of_a_key_file() {
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
            assert_eq!(stdout(&mut Ssh::new(options, login("node01")), "hostname"), "node01", "hangs up: {hangs_up}");
        }
    });
}

#[test]
fn a_stream_gives_way_to_a_command_on_a_server_with_one_channel() {
    with_rig(1, |rig| {
        let file = rig.node_folder("node01").join("sshd_config");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text}\nMaxSessions 1\n")).unwrap();
        rig.verb("killsshd node01").unwrap();
        rig.verb("startsshd node01").unwrap();
        let mut node = ssh(rig, "node01");
        let (_stream, events) = stream(&node, TICKING, LONG);
        for _ in 0..2 {
            until(&events, |event| matches!(event, StreamEvent::Line(line) if line == "tick 3"));
            assert_eq!(stdout(&mut node, "hostname"), "node01");
        }
    });
}

#[test]
fn a_revoked_key_is_refused_even_where_any_key_is_trusted() {
    with_rig(1, |rig| {
        let config = fs::read_to_string(rig.ssh_config()).unwrap();
        let (careless, list) = (rig.folder().join("careless_config"), rig.folder().join("void"));
        let key = fs::read_to_string(rig.node_folder("node01").join("host_key.pub")).unwrap();
        let trusting = format!("Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile {list}\n{config}");
        fs::write(&careless, trusting).unwrap();
        let options = SshOptions { config: Some(careless), ..SshOptions::default() };
        fs::write(&list, "").unwrap();
        assert_eq!(stdout(&mut Ssh::new(options.clone(), login("node01")), "hostname"), "node01");
        fs::write(&list, format!("@revoked 10.99.0.1 {key}")).unwrap();
        let error = run(&mut Ssh::new(options, login("node01")), "true").unwrap_err();
        assert_eq!(error.code(), ErrorCode::HostKey, "{error}");
        assert!(error.to_string().contains(&format!("{list} line 1")), "{error}");
    });
}

#[test]
fn a_node_that_has_only_the_name_of_this_machine_is_not_this_machine() {
    with_rig(1, |rig| {
        let named = rig.folder().join("named_config");
        let keys = format!(
            "  IdentityFile {0}/id_ed25519\n  IdentitiesOnly yes\n  UserKnownHostsFile {0}/known_hosts\n",
            rig.folder()
        );
        let name = this_node().unwrap().node;
        let me = stdout(&mut ssh(rig, "node01"), "id -un");
        let boot_of = |address: &str, user: &str| {
            fs::write(&named, format!("Host {name}\n  HostName {address}\n  User {user}\n{keys}")).unwrap();
            let connections =
                Connections::new(SshOptions { config: Some(named.clone()), ..SshOptions::default() }).unwrap();
            let mut transports = connections.transports(&[login(name.as_str())]).unwrap();
            assert_eq!((transports.len(), transports[0].node()), (1, &name));
            let command = Command::new("run a test", "cat /proc/sys/kernel/random/boot_id", LONG);
            let text = transports[0].run(&command).and_then(|output| output.text(&name, &command));
            text.map(|text| text.trim().to_owned())
        };
        assert_eq!(boot_of("127.0.0.1", &me).unwrap(), this_node().unwrap().boot_id);
        let theirs = stdout(&mut ssh(rig, "node01"), "cat /proc/sys/kernel/random/boot_id");
        assert_ne!(theirs, this_node().unwrap().boot_id);
        assert_eq!(boot_of("10.99.0.1", "root").unwrap(), theirs);
        assert!(boot_of("127.0.0.1", "another-user").is_err(), "a login of another user is not this node");
    });
}

#[test]
fn another_user_can_read_the_liveness_of_a_run_and_cannot_kill_it() {
    with_rig(1, |rig| {
        let target = start_group(&mut ssh(rig, "node01"), &rig.share());
        let options = SshOptions { config: Some(rig.ssh_config()), ..SshOptions::default() };
        let mut other = Ssh::new(options, Login { user: Some("eve".into()), ..login("node01") });
        assert_eq!(stdout(&mut other, "id -un"), "eve");
        assert_eq!(other.liveness(&target).unwrap(), Liveness::Alive);
        let error = other.signal(&target, Recipient::All, Signal::Kill).unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotOwned, "{error}");
        let reused = NodeKill { start_ticks: target.start_ticks + 1, ranks: Vec::new(), ..target.clone() };
        assert_eq!(other.liveness(&reused).unwrap(), Liveness::Dead);
        let mut owner = ssh(rig, "node01");
        owner.signal(&target, Recipient::All, Signal::Kill).unwrap();
        eventually("the other user reads that it is dead", || other.liveness(&target).unwrap() == Liveness::Dead);
    });
}

#[test]
fn an_orphan_that_must_not_be_signalled_does_not_prevent_the_kill_of_others() {
    with_rig(1, |rig| {
        let options = SshOptions { config: Some(rig.ssh_config()), ..SshOptions::default() };
        let mut eve = Ssh::new(options, Login { user: Some("eve".into()), ..login("node01") });
        let start =
            |ignores: &str| format!("setsid sh -c '{ignores} exec sleep 31417' >/dev/null 2>&1 </dev/null & echo $!");
        stdout(&mut ssh(rig, "node01"), &start(""));
        stdout(&mut eve, &start("trap \"\" TERM;"));
        let mut transports: Vec<Box<dyn Transport>> = vec![Box::new(eve)];
        let mut orphans = || {
            let seen = list_processes(&[login("node01").node], &mut transports).remove(0).1.unwrap();
            plan::select_orphans(&seen, KillScope::AllUsers, &own_ancestry().unwrap(), &|line| line == "sleep 31417")
        };
        eventually("both are listed", || orphans().processes.len() == 2);
        let found = orphans();
        let patience = Patience { stop: LONG, term: Duration::from_millis(300), kill: Duration::from_secs(2) };
        let plan = OrphanKill { scope: KillScope::AllUsers, nodes: vec![found] };
        let report = execute_kill(&plan.into(), &mut transports, &patience, &mut |_| {}).nodes.remove(0);
        assert_eq!(report.left.len(), 1, "root's: {report:?}");
        assert_eq!(report.failure.unwrap().code, ErrorCode::CommandFailed);
        let seen = list_processes(&[login("node01").node], &mut transports).remove(0).1.unwrap();
        let left =
            plan::select_orphans(&seen, KillScope::AllUsers, &own_ancestry().unwrap(), &|line| line == "sleep 31417")
                .processes;
        assert_eq!(left.iter().map(|process| process.user.as_str()).collect::<Vec<_>>(), ["root"]);
    });
}

#[test]
fn a_new_key_is_added_where_the_configuration_allows_it() {
    with_rig(1, |rig| {
        let config = fs::read_to_string(rig.ssh_config()).unwrap();
        let trusting = rig.folder().join("trusting_config");
        let known_hosts = rig.folder().join("noted");
        let hashed = rig.folder().join("hashed");
        let lines = format!(
            "  StrictHostKeyChecking accept-new\n  HashKnownHosts yes\n  UserKnownHostsFile {hashed}\n  GlobalKnownHostsFile none\n"
        );
        for _ in 0..2 {
            assert_eq!(stdout(&mut ssh_with(rig, "node01", &lines, false), "hostname"), "node01");
        }
        let text = fs::read_to_string(&hashed).unwrap();
        assert!(text.starts_with("|1|") && text.lines().count() == 1, "{text}");
        let mut find = process::Command::new("ssh-keygen");
        succeed(find.args(["-F", "10.99.0.1", "-f", hashed.as_str()]));
        fs::write(
            &trusting,
            format!("Host *\n  StrictHostKeyChecking accept-new\n  UserKnownHostsFile {known_hosts}\n{config}"),
        )
        .unwrap();
        // Its last line has no newline.
        fs::write(&known_hosts, "elsewhere ssh-ed25519 AAAA").unwrap();
        let options = SshOptions { config: Some(trusting), ..SshOptions::default() };
        let mut node = Ssh::new(options.clone(), login("node01"));
        assert_eq!(stdout(&mut node, "hostname"), "node01");
        let noted = fs::read_to_string(&known_hosts).unwrap();
        assert!(noted.starts_with("elsewhere ssh-ed25519 AAAA\n10.99.0.1 "), "{noted}");
        assert!(noted.lines().count() == 2 && noted.ends_with('\n'), "{noted}");
        // The next connection accepts this key, and no other key.
        assert_eq!(stdout(&mut Ssh::new(options.clone(), login("node01")), "hostname"), "node01");
        rig.verb("newkey node01").unwrap();
        let error = run(&mut Ssh::new(options, login("node01")), "true").unwrap_err();
        assert_eq!(error.code(), ErrorCode::HostKeyChanged, "{error}");
    });
}

#[test]
fn a_node_is_reachable_again_after_a_reboot() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        assert_eq!(stdout(&mut node, "hostname"), "node01");
        rig.verb("panic node01").unwrap();
        // The first error is a lost connection, the next a refused connection.
        eventually("it is unreachable", || matches!(run(&mut node, "true"), Err(RemoteError::Unreachable { .. })));
        rig.verb("poweron node01").unwrap();
        eventually("it is reachable again", || run(&mut node, "true").is_ok());
    });
}

#[test]
fn a_command_times_out_while_sshd_is_stopped_and_works_after() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        assert_eq!(stdout(&mut node, "hostname"), "node01");
        rig.verb("stop node01").unwrap();
        let hasty = Command::new("run a test", "true", Duration::from_millis(500));
        assert!(matches!(node.run(&hasty), Err(RemoteError::Timeout { .. })));
        rig.verb("cont node01").unwrap();
        assert_eq!(stdout(&mut node, "hostname"), "node01");
    });
}

/// Reads a stream until a wanted event and returns the events before it.
fn until(events: &Receiver<StreamEvent>, wanted: impl Fn(&StreamEvent) -> bool) -> Vec<StreamEvent> {
    let mut before = Vec::new();
    loop {
        let next = events.recv_timeout(LONG).unwrap_or_else(|_| panic!("only {before:?}"));
        if wanted(&next) {
            return before;
        }
        before.push(next);
    }
}

/// Opens a stream with an output timeout.
fn stream(node: &Ssh, script: &str, output_timeout: Duration) -> (Stream, Receiver<StreamEvent>) {
    let (send, events) = mpsc::channel();
    let on_event = Box::new(
        move |event| if send.send(event).is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) },
    );
    (node.stream(script.into(), output_timeout, on_event).unwrap(), events)
}

const TICKING: &str = "n=0; while :; do n=$((n + 1)); printf 'tick '; sleep 0.02; echo $n; done";

#[test]
fn a_stream_continues_after_a_reset_connection_and_sends_complete_lines_only() {
    with_rig(1, |rig| {
        let node = ssh(rig, "node01");
        let (_stream, events) = stream(&node, TICKING, LONG);
        let is_line = |event: &StreamEvent| matches!(event, StreamEvent::Line(_));
        until(&events, is_line);
        rig.verb("reset node01").unwrap();
        let before =
            until(&events, |event| matches!(event, StreamEvent::Disconnected(RemoteError::ConnectionLost { .. })));
        rig.verb("heal node01").unwrap();
        let down = until(&events, |event| matches!(event, StreamEvent::Connected));
        assert!(down.is_empty(), "the lost connection is reported once: {down:?}");
        until(&events, |event| matches!(event, StreamEvent::Line(line) if line == "tick 3"));
        let is_complete = |event: &StreamEvent| match event {
            StreamEvent::Line(line) => line.strip_prefix("tick ").is_some_and(|n| n.parse::<u32>().is_ok()),
            _ => false,
        };
        assert!(before.iter().all(is_complete), "{before:?}");
    });
}

#[test]
fn a_stream_reconnects_after_the_network_of_the_node_was_down() {
    with_rig(1, |rig| {
        let node = ssh(rig, "node01");
        let (_stream, events) = stream(&node, TICKING, Duration::from_secs(3));
        until(&events, |event| matches!(event, StreamEvent::Line(_)));
        rig.verb("linkdown node01").unwrap();
        until(&events, |event| matches!(event, StreamEvent::Disconnected(_)));
        rig.verb("heal node01").unwrap();
        until(&events, |event| matches!(event, StreamEvent::Connected));
    });
}

#[test]
fn a_script_without_output_on_a_reachable_node_keeps_its_stream() {
    with_rig(1, |rig| {
        let mut node = ssh(rig, "node01");
        let (_stream, events) = stream(&node, "echo ready; sleep 8; echo again; sleep 1000", Duration::from_secs(3));
        until(&events, |event| matches!(event, StreamEvent::Line(_)));
        // Twice, the script writes nothing for longer than the output timeout.
        assert_eq!(stdout(&mut node, "sleep 7; hostname"), "node01");
        let silent = until(&events, |event| matches!(event, StreamEvent::Line(line) if line == "again"));
        assert!(silent.is_empty(), "{silent:?}");
    });
}

#[test]
fn the_script_of_a_dropped_stream_exits_on_the_node() {
    with_rig(1, |rig| {
        let node = ssh(rig, "node01");
        let mut other = node.clone();
        let mut left = move || stdout(&mut other, "pgrep -fc '^sleep 4321' || :");
        let (stream_handle, events) = stream(&node, "sleep 4321 & echo ready; wait", LONG);
        until(&events, |event| matches!(event, StreamEvent::Line(_)));
        // The shell may write the line before its child has become `sleep`.
        eventually("the script runs", || left() == "1");
        drop(stream_handle);
        eventually("the script has exited", || left() == "0");
    });
}

#[test]
fn jump_hosts_are_reached_through_openssh() {
    with_rig(2, |rig| {
        let config = fs::read_to_string(rig.ssh_config()).unwrap();
        let jump = rig.folder().join("jump_config");
        // Two nested handshakes may be slow on a busy machine.
        fs::write(&jump, format!("Host node02\n  ProxyJump node01\nHost *\n  ConnectTimeout 60\n{config}")).unwrap();
        let mut node = Ssh::new(SshOptions { config: Some(jump), ..SshOptions::default() }, login("node02"));
        assert_eq!(stdout(&mut node, "hostname"), "node02");
        let target = start_group(&mut node, &rig.share());
        assert!(matches!(node.find_processes(&target).unwrap(), RunProcesses::Owned(_)));
        node.signal(&target, Recipient::All, Signal::Kill).unwrap();
        eventually("all processes are gone", || node.find_processes(&target).unwrap() == RunProcesses::Gone);
        let log = fs::read_to_string(rig.node_folder("node02").join("sshd.log")).unwrap();
        assert_eq!(log.matches("Accepted publickey").count(), 1, "one connection for all");

        let (stream_handle, events) = stream(&node, TICKING, LONG);
        until(&events, |event| matches!(event, StreamEvent::Line(line) if line == "tick 3"));
        for _ in 0..2 {
            rig.verb("dropsessions node02").unwrap();
            until(&events, |event| matches!(event, StreamEvent::Disconnected(RemoteError::ConnectionLost { .. })));
            until(&events, |event| matches!(event, StreamEvent::Connected));
        }
        drop(stream_handle);
        let error = node.run(&Command::new("sleep", "sleep 30", Duration::from_millis(300))).unwrap_err();
        assert!(matches!(error, RemoteError::Timeout { .. }), "{error}");
        rig.verb("nologin node02").unwrap();
        rig.verb("dropsessions node02").unwrap();
        let is_login_refused =
            |result| matches!(result, Err(RemoteError::Unreachable { error, .. }) if error.step == ConnectStep::Login);
        eventually("the login is refused", || is_login_refused(run(&mut node, "true")));
    });
}

/// Returns a transport with lines in front of the rig's configuration, which has the first value of every option.
fn ssh_with(rig: &Rig, node: &str, lines: &str, always_program: bool) -> Ssh {
    let config = rig.folder().join(format!("config-{}", lines.len()));
    fs::write(&config, format!("Host *\n{lines}{}", fs::read_to_string(rig.ssh_config()).unwrap())).unwrap();
    Ssh::new(SshOptions { config: Some(config), always_program, ..SshOptions::default() }, login(node))
}

/// Replaces lines of a node's sshd_config, in which the first value of an option counts, and restarts the server.
fn configure_sshd(rig: &Rig, node: &str, lines: &str) {
    let file = rig.node_folder(node).join("sshd_config");
    let old = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{lines}{old}")).unwrap();
    rig.verb(&format!("killsshd {node}")).unwrap();
    rig.verb(&format!("startsshd {node}")).unwrap();
}

#[test]
fn options_that_forbid_a_connection_forbid_it_with_both_clients() {
    with_rig(1, |rig| {
        let revoked = rig.folder().join("revoked");
        fs::copy(rig.node_folder("node01").join("host_key.pub"), &revoked).unwrap();
        let cases = [
            (format!("  RevokedHostKeys {revoked}\n"), ConnectStep::HostKey),
            ("  HostKeyAlgorithms ecdsa-sha2-nistp256\n".into(), ConnectStep::Handshake),
            ("  AddressFamily inet6\n".into(), ConnectStep::Connect),
            ("  PubkeyAuthentication no\n".into(), ConnectStep::Login),
            ("  PubkeyAcceptedAlgorithms rsa-sha2-512\n".into(), ConnectStep::Login),
            ("  BindAddress 192.0.2.1\n".into(), ConnectStep::Connect),
        ];
        for (lines, step) in &cases {
            let error = run(&mut ssh_with(rig, "node01", lines, false), "true").unwrap_err();
            let RemoteError::Unreachable { error, .. } = &error else { panic!("{lines}: {error}") };
            assert_eq!(error.step, *step, "{lines}: {error}");
            assert!(run(&mut ssh_with(rig, "node01", lines, true), "true").is_err(), "{lines}");
        }
    });
}

#[test]
fn algorithms_and_addresses_of_the_configuration_are_used() {
    with_rig(1, |rig| {
        let lines = "  Ciphers aes128-ctr\n  MACs hmac-sha2-512\n  KexAlgorithms ecdh-sha2-nistp384\n  \
            HostKeyAlgorithms ssh-ed25519\n  AddressFamily inet\n";
        let sshd = "Ciphers aes128-ctr\nMACs hmac-sha2-512\nKexAlgorithms ecdh-sha2-nistp384\n";
        configure_sshd(rig, "node01", sshd);
        assert_eq!(stdout(&mut ssh_with(rig, "node01", lines, false), "hostname"), "node01");
        for other in ["Ciphers aes256-ctr", "MACs hmac-sha2-256", "KexAlgorithms curve25519-sha256"] {
            let error = run(&mut ssh_with(rig, "node01", &format!("  {other}\n"), false), "true").unwrap_err();
            let RemoteError::Unreachable { error, .. } = &error else { panic!("{other}: {error}") };
            assert_eq!(error.step, ConnectStep::Handshake, "{other}: {error}");
        }

        succeed(rig.command("ip").args(["addr", "add", "10.99.254.1/16", "dev", "br0"]));
        configure_sshd(rig, "node01", "AllowUsers root@10.99.254.1\n");
        assert_eq!(
            run(&mut ssh_with(rig, "node01", lines, false), "true").unwrap_err().code(),
            ErrorCode::LoginRefused
        );
        let bound = format!("{lines}  BindAddress 10.99.254.1\n");
        assert_eq!(stdout(&mut ssh_with(rig, "node01", &bound, false), "hostname"), "node01");
    });
}

#[test]
fn options_for_a_terminal_and_forwarded_ports_do_not_disturb_commands() {
    with_rig(2, |rig| {
        let ran = rig.folder().join("ran");
        let used = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = used.local_addr().unwrap().port();
        let lines = format!(
            "  ConnectTimeout 60\n  RemoteCommand tmux new -A -s main\n  RequestTTY force\n  PermitLocalCommand yes\n  LocalCommand touch {ran}\n  \
             LocalForward {port} localhost:22\n  ExitOnForwardFailure yes\n  ForwardAgent yes\n  ForwardX11 yes\n  \
             SetEnv LC_ALL=de_DE.UTF-8\n  VisualHostKey yes\n  LogLevel DEBUG\n"
        );
        // OpenSSH 8.7 and newer have these.
        let newer = "  IgnoreUnknown SessionType,StdinNull,ForkAfterAuthentication\n  SessionType none\n  StdinNull yes\n  \
            ForkAfterAuthentication yes\n";
        for (always_program, jump) in [(false, ""), (true, ""), (false, "  ProxyJump node01\n")] {
            let lines = match jump {
                "" => format!("{newer}{lines}"),
                // The jump host has its own connection, which these options would end.
                _ => format!("  ConnectTimeout 60\nHost node02\n{jump}{newer}{lines}"),
            };
            let mut node = ssh_with(rig, "node02", &lines, always_program);
            let mut command = Command::new("run a test", "cat; hostname; echo warning >&2", LONG);
            command.input = b"input\n".to_vec();
            let output = node.run(&command).unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "input\nnode02\n");
            assert_eq!(String::from_utf8_lossy(&output.stderr), "warning\n");
            let (_stream, events) = stream(&node, TICKING, LONG);
            until(&events, |event| matches!(event, StreamEvent::Line(line) if line == "tick 3"));
            assert!(!ran.exists(), "the local command ran");
        }
    });
}

/// Makes a node require a code by keyboard-interactive after the key.
fn require_code(rig: &Rig, node: &str, code: &str) {
    let check = rig.share().join("check-code");
    fs::write(&check, format!("#!/bin/sh\ngrep -q '^{code}'\n")).unwrap();
    fs::set_permissions(&check, fs::Permissions::from_mode(0o755)).unwrap();
    let pam = rig.share().join("pam");
    let rules = format!("auth required pam_exec.so quiet expose_authtok {check}\nauth required pam_permit.so\n");
    fs::write(&pam, format!("{rules}account required pam_permit.so\nsession required pam_permit.so\n")).unwrap();
    succeed(rig.command_on(node, "mount").args(["--bind", pam.as_str(), "/etc/pam.d/sshd"]));
    let methods = "PermitRootLogin yes\nUsePAM yes\nKbdInteractiveAuthentication yes\n\
        AuthenticationMethods publickey,keyboard-interactive\n";
    configure_sshd(rig, node, methods);
}

#[test]
fn a_node_that_requires_a_code_is_reached_over_the_connection_that_the_user_opened() {
    with_rig(1, |rig| {
        require_code(rig, "node01", "123456");
        let socket = rig.folder().join("cm-node01");
        let lines = format!("  ControlMaster auto\n  ControlPath {}/cm-%n\n  ControlPersist 600\n", rig.folder());
        let mut clients = [false, true].map(|always_program| ssh_with(rig, "node01", &lines, always_program));
        for node in &mut clients {
            let error = run(node, "true").unwrap_err();
            assert_eq!(error.code(), ErrorCode::LoginRefused, "{error}");
            let failure = error.failure("cannot reach node01");
            assert!(failure.why.contains("keyboard-interactive") && failure.fix.contains("ControlMaster"), "{failure}");
        }

        let answer = rig.folder().join("answer");
        fs::write(&answer, "#!/bin/sh\necho 123456\n").unwrap();
        fs::set_permissions(&answer, fs::Permissions::from_mode(0o755)).unwrap();
        let config = rig.folder().join(format!("config-{}", lines.len()));
        let log_in = || {
            let mut ssh = process::Command::new("ssh");
            ssh.args(["-F", config.as_str(), "-o", "BatchMode=no", "-f", "-N", "node01"]);
            ssh.env("SSH_ASKPASS", &answer).env("SSH_ASKPASS_REQUIRE", "force").env("DISPLAY", ":0");
            let quiet = ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            assert!(quiet.status().unwrap().success(), "the user cannot log in");
        };
        log_in();
        let logins = || {
            let log = fs::read_to_string(rig.node_folder("node01").join("sshd.log")).unwrap();
            log.matches("Accepted keyboard-interactive").count()
        };
        assert_eq!(logins(), 1);
        for node in &mut clients {
            assert_eq!(stdout(node, "hostname"), "node01");
            let (_stream, events) = stream(node, TICKING, LONG);
            until(&events, |event| matches!(event, StreamEvent::Line(line) if line == "tick 3"));
            // The user's connection has as many sessions as the server allows.
            thread::scope(|scope| {
                for number in 0..20 {
                    let mut node = node.clone();
                    scope.spawn(move || {
                        let text = stdout(&mut node, &format!("sleep 0.05; echo {number}"));
                        assert_eq!(text, number.to_string());
                    });
                }
            });
        }
        assert_eq!(logins(), 1, "the connection of the user is shared");

        let exit = ["-F", config.as_str(), "-O", "exit", "node01"];
        assert!(process::Command::new("ssh").args(exit).output().unwrap().status.success());
        eventually("the socket is gone", || !socket.exists());
        for node in &mut clients {
            assert_eq!(run(node, "true").unwrap_err().code(), ErrorCode::LoginRefused);
        }
        log_in();
        for node in &mut clients {
            assert_eq!(stdout(node, "hostname"), "node01");
        }
        succeed(process::Command::new("ssh").args(exit));
    });
}

#[test]
fn a_stream_that_could_not_log_in_ends_when_the_user_opens_a_connection() {
    with_rig(1, |rig| {
        require_code(rig, "node01", "123456");
        let lines = format!("  ControlPath {}/cm-%n\n", rig.folder());
        let node = ssh_with(rig, "node01", &lines, false);
        let (_stream, events) = stream(&node, TICKING, LONG);
        until(&events, |event| matches!(event, StreamEvent::Disconnected(_)));
        // Stands for the user's connection.
        let _master = UnixListener::bind(rig.folder().join("cm-node01")).unwrap();
        until(&events, |event| matches!(event, StreamEvent::Exited(_)));
    });
}

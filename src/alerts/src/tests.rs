//! Tests with an HTTP server on this machine, and with programs.

use crate::channel::answer;
use crate::*;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::fixtures::{attempt, node, run, run_id, temp};
use rundir::{
    Alert, AlertKind, AlertReader, AlertState, AlertWriter, ErrorCode, Event, EventKind, ExitFile, ExitReason, Failure,
    Healer, LineAppender, MetricSample, Mute, RunDir, SCHEMA,
};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A time limit that no test reaches.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that keeps the requests that it gets.
struct Server {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

/// The answer of a server that hangs.
const HANGS: &str = "";

impl Server {
    /// Starts a server that answers requests with these status lines and headers, the last one forever.
    fn start(answers: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let received = requests.clone();
        thread::spawn(move || {
            let mut open = Vec::new();
            for (number, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let (mut head, mut length) = (String::new(), 0);
                let mut reader = BufReader::new(&stream);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if line.trim().is_empty() {
                        break;
                    }
                    let lower = line.trim().to_lowercase();
                    if let Some(value) = lower.strip_prefix("content-length: ") {
                        length = value.parse().unwrap();
                    }
                    if ["post ", "authorization: ", "content-type: "].iter().any(|start| lower.starts_with(start)) {
                        head += &format!("{}\n", line.trim());
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                received.lock().unwrap().push(head + &String::from_utf8(body).unwrap());
                match answers[number.min(answers.len() - 1)] {
                    HANGS => open.push(stream),
                    answer => {
                        write!(stream, "HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
                    }
                }
            }
        });
        Self { url, requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// Returns settings with one webhook to this server, for all kinds.
    fn webhook(&self) -> Settings {
        settings(Target::Webhook { url: self.url.clone(), token: None })
    }
}

fn settings(to: Target) -> Settings {
    Settings { channels: vec![Channel { kinds: AlertKind::ALL.into(), to }] }
}

fn limits() -> Limits {
    let moment = Duration::from_millis(1);
    Limits { request: PATIENCE, pauses: vec![moment; 2], longest_pause: moment, end: PATIENCE }
}

fn alert(kind: AlertKind, since_s: f64) -> Alert {
    Alert {
        v: SCHEMA,
        t: since_s + 90.0,
        id: String::new(),
        run: run_id(),
        attempt: 1,
        kind,
        subject: String::new(),
        ends_attempt: false,
        step: Some(1200),
        what: "no step since step 1200".into(),
        why: "GPU power is <90 W & falling".into(),
        since_s,
        fix: "save the stacks".into(),
    }
    .with_id()
}

fn outbox(run: &RunDir, settings: Settings, limits: Limits) -> Outbox {
    Outbox::open(run, AlertWriter::Supervisor, settings, limits, |line| eprintln!("{line}"))
}

fn alerts(run: &RunDir) -> Vec<AlertState> {
    let mut reader = AlertReader::new(run);
    reader.poll().unwrap();
    reader.alerts()
}

fn kinds(run: &RunDir) -> Vec<AlertKind> {
    alerts(run).iter().map(|state| state.alert.kind).collect()
}

fn file(folder: &Utf8Path, name: &str, text: &str, mode: u32) -> Utf8PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn the_example_in_the_documentation_is_valid_and_shows_no_secret() {
    let (_keep, folder) = temp();
    let page = include_str!("../../../docs/alerts.md");
    let block = |begin: &str| page.split(begin).nth(1).unwrap().split("```").next().unwrap();
    file(&folder.root, "secrets.env", block("```secrets.env\n"), 0o600);
    let read = Settings::parse(&folder.root.join("alerts.toml"), block("```toml\n")).unwrap();
    let names: Vec<_> = read.channels.iter().map(|channel| channel.to.name()).collect();
    assert_eq!(names, ["apprise", "bell", "discord", "exec", "ntfy", "osc", "slack", "webhook"]);
    assert!(!format!("{read:?}").contains("https"), "{read:?}");
    let carried = read.for_attempt().unwrap();
    fs::create_dir_all(folder.attempt_dir(1)).unwrap();
    rundir::write_private(&folder.alert_channels(1), &carried).unwrap();
    assert_eq!(Settings::of_attempt(&folder, 1).unwrap(), read);
    assert_eq!(Settings::of_attempt(&folder, 2).unwrap(), Settings::default());
}

#[test]
fn invalid_settings_have_hints() {
    let cases = [
        "bell",
        "[slak]\nurl = \"$X\"",
        "[slack]\nurll = \"$X\"",
        "[slack]\nurl = \"https://hooks.slack.com/services/T/B/x\"",
        "[slack]",
        "slack = 3",
        "[bell]\nkinds = [\"fail\"]",
        "[bell]\nkinds = \"failed\"",
        "[bell]\nkinds = []",
        "[osc]\nform = \"99\"",
        "[ntfy]\nserver = \"ntfy.sh\"\ntopic = \"a\"",
        "[ntfy]\ntopic = 3",
        "[exec]\ncommand = \"notify-send vidtui\"",
        "[apprise]\nurls = [\"tgram://token/chat\"]",
        "[webhook]\nurl = \"\"",
        "secrets = 1",
    ];
    let shown = cases.map(|text| {
        let failure = Settings::parse("/home/ada/.config/vidtui/alerts.toml".into(), text).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidAlerts, "{failure}");
        format!("{text}\n=> {failure}\n")
    });
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn secrets_come_from_a_file_that_only_its_owner_can_access() {
    let (_keep, folder) = temp();
    let code = |secrets: Option<(&str, u32)>| {
        let path = folder.root.join("keys");
        match secrets {
            Some((text, mode)) => drop(file(&folder.root, "keys", text, mode)),
            None => drop(fs::remove_file(path)),
        }
        let text = "secrets = \"keys\"\n[slack]\nurl = \"$HOOK\"\n";
        Settings::parse(&folder.root.join("alerts.toml"), text).map_err(|failure| {
            assert!(!failure.to_string().contains("hush"), "{failure}");
            failure.code
        })
    };
    assert_eq!(code(None), Err(ErrorCode::NotFound));
    assert_eq!(code(Some(("HOOK=https://hush\n", 0o640))), Err(ErrorCode::InvalidSecrets));
    assert_eq!(code(Some(("hush\n", 0o600))), Err(ErrorCode::InvalidSecrets));
    assert_eq!(code(Some(("OTHER=hush\n", 0o600))), Err(ErrorCode::InvalidAlerts));
    let read = code(Some(("HOOK=https://hush\n", 0o600))).unwrap();
    assert_eq!(read.channels[0].to, Target::Slack { url: "https://hush".into() });
    assert!(read.channels[0].kinds.iter().all(|kind| !kind.is_routine()), "the default");
}

#[test]
fn a_channel_of_failed_gets_every_end_by_a_failure() {
    let channel = |kind| Channel { kinds: vec![kind], to: Target::Bell };
    let memory = alert(AlertKind::OutOfMemory, 1.0);
    assert!(!channel(AlertKind::Failed).wants(&memory));
    assert!(channel(AlertKind::Failed).wants(&Alert { ends_attempt: true, ..memory }));
    assert!(channel(AlertKind::Finished).wants(&alert(AlertKind::StageDone, 1.0)));
    assert!(!channel(AlertKind::StageDone).wants(&alert(AlertKind::Finished, 1.0)));
}

#[test]
fn each_service_gets_its_form_of_a_request() {
    let server = Server::start(&["200 OK"]);
    let (url, token) = (format!("{}/hook", server.url), Some("tk_1".to_owned()));
    let targets = [
        Target::Ntfy { server: server.url.clone(), topic: "runs".into(), token: token.clone() },
        Target::Slack { url: url.clone() },
        Target::Discord { url: url.clone() },
        Target::Webhook { url, token },
    ];
    for target in targets {
        target.send(&alert(AlertKind::Stalled, 1000.0), PATIENCE).unwrap();
    }
    insta::assert_snapshot!(server.requests().join("\n\n"));
}

#[test]
fn an_alert_is_sent_again_after_429_and_after_500() {
    let server = Server::start(&["429 Busy\r\nretry-after: 3600", "500 Fault", "204 OK"]);
    let (_keep, dir) = temp();
    let mut outbox = outbox(&dir, server.webhook(), limits());
    outbox.raise(alert(AlertKind::Failed, 1.0));
    outbox.end(PATIENCE);
    assert_eq!(server.requests().len(), 3);
    assert!(alerts(&dir)[0].not_sent.is_empty());
    let pause = |retry_after| match answer(429, retry_after) {
        Some(SendError::Retry { after, .. }) => after.map(|pause| pause.as_secs_f64()),
        _ => panic!("429 is not final"),
    };
    assert_eq!(
        [pause(Some("7")), pause(Some("0.5")), pause(Some("-1")), pause(None)],
        [Some(7.0), Some(0.5), None, None]
    );
}

#[test]
fn an_alert_that_does_not_arrive_is_recorded() {
    for (answers, tries) in [(&["500 Fault"][..], 3), (&["404 Nothing"], 1), (&["302 Found\r\nlocation: /"], 1)] {
        let server = Server::start(answers);
        let (_keep, dir) = temp();
        let mut outbox = outbox(&dir, server.webhook(), limits());
        outbox.raise(alert(AlertKind::Failed, 1.0));
        outbox.end(PATIENCE);
        let not_sent: Vec<_> = alerts(&dir)[0].not_sent.iter().map(|not_sent| not_sent.channel.clone()).collect();
        assert_eq!((server.requests().len(), not_sent), (tries, vec!["webhook".to_owned()]));
    }
}

#[test]
fn a_server_that_hangs_delays_neither_other_channels_nor_the_end() {
    let (hangs, works) = (Server::start(&[HANGS]), Server::start(&["200 OK"]));
    let (_keep, dir) = temp();
    let settings =
        Settings { channels: [hangs.webhook(), works.webhook()].into_iter().flat_map(|s| s.channels).collect() };
    let mut first = outbox(&dir, settings, limits());
    for kind in [AlertKind::Failed, AlertKind::Stalled, AlertKind::DiskLow] {
        first.raise(alert(kind, 1.0));
    }
    // A channel sends an alert after it has read the answer to the one before.
    while works.requests().len() < 3 || hangs.requests().is_empty() {
        thread::sleep(Duration::from_millis(5));
    }
    first.end(Duration::from_millis(10));
    // Whether the answer to the last one was read in time is not known.
    let answered = alerts(&dir).into_iter().filter(|state| state.alert.kind != AlertKind::DiskLow);
    let unsent: Vec<usize> = answered.map(|state| state.not_sent.len()).collect();
    assert_eq!((unsent, hangs.requests().len()), (vec![1, 1], 1));

    let (_keep, dir) = temp();
    let mut second = outbox(&dir, hangs.webhook(), Limits { request: Duration::from_millis(5), ..limits() });
    second.raise(alert(AlertKind::Failed, 1.0));
    second.end(PATIENCE);
    assert_eq!(alerts(&dir)[0].not_sent.len(), 1, "the request has a time limit of its own");
}

#[test]
fn the_same_alert_is_raised_once_an_hour_and_not_sent_while_it_is_snoozed() {
    let server = Server::start(&["200 OK"]);
    let (_keep, dir) = temp();
    let mut outbox = outbox(&dir, server.webhook(), limits());
    for since_s in [10.0, 10.0, 3000.0, 3611.0, 3000.0] {
        outbox.raise(alert(AlertKind::Stalled, since_s));
    }
    assert_eq!(alerts(&dir).iter().map(|state| state.alert.since_s).collect::<Vec<_>>(), [10.0, 3611.0]);
    dir.mute_alerts(Mute::new(4000.0, None, Some(9000.0), "ada")).unwrap();
    outbox.raise(alert(AlertKind::Failed, 8000.0));
    outbox.raise(Alert { subject: "ml-1".into(), ..alert(AlertKind::NodeLost, 9000.0) }.with_id());
    outbox.end(PATIENCE);
    assert_eq!((alerts(&dir).len(), server.requests().len()), (4, 3));
}

#[test]
fn progress_is_recorded_and_sent_only_if_a_channel_wants_it_and_not_without_limit() {
    let server = Server::start(&["200 OK"]);
    let (_keep, dir) = temp();
    let saved = |n: usize| Alert { subject: n.to_string(), ..alert(AlertKind::Checkpoint, n as f64) }.with_id();
    let mut quiet = outbox(&dir, Settings::default(), limits());
    quiet.raise(saved(0));
    quiet.raise(alert(AlertKind::Finished, 1.0));
    quiet.end(PATIENCE);
    assert_eq!(kinds(&dir), [AlertKind::Finished]);
    let mut busy = outbox(&dir, server.webhook(), limits());
    (0..40).for_each(|n| busy.raise(saved(n)));
    busy.raise(alert(AlertKind::Failed, 2.0));
    busy.end(PATIENCE);
    assert_eq!(server.requests().len(), 31);
    assert_eq!(alerts(&dir).iter().filter(|state| !state.not_sent.is_empty()).count(), 10);
}

#[test]
fn a_program_gets_the_alert_as_json_and_in_variables() {
    let (_keep, dir) = temp();
    let script = file(
        &dir.root,
        "notify",
        "#!/bin/sh\ncat >\"$1/json\"\necho \"$VIDTUI_ALERT_KIND ${RANK-none}\" >\"$1/kind\"\n",
        0o755,
    );
    let send = |words: &[&str], limit| {
        let command = words.iter().map(|word| (*word).to_owned()).collect();
        Target::Exec { command }.send(&alert(AlertKind::DiskLow, 1.0), limit)
    };
    send(&[script.as_str(), dir.root.as_str()], PATIENCE).unwrap();
    let read: Alert = serde_json::from_str(&fs::read_to_string(dir.root.join("json")).unwrap()).unwrap();
    assert_eq!(read, alert(AlertKind::DiskLow, 1.0));
    assert_eq!(fs::read_to_string(dir.root.join("kind")).unwrap(), "disk-low none\n");
    let failed = |sent: Result<(), SendError>| match sent {
        Err(SendError::Lasting { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(failed(send(&["sh", "-c", "echo >&2 no display; exit 3"], PATIENCE)).contains("no display"));
    failed(send(&["/nowhere/notify"], PATIENCE));
    let pid = dir.root.join("pid");
    failed(send(&["sh", "-c", "echo $$ >\"$0\"; exec sleep 600", pid.as_str()], Duration::from_millis(300)));
    let pid = fs::read_to_string(pid).unwrap_or_default();
    assert!(pid.is_empty() || !Utf8Path::new("/proc").join(pid.trim()).exists(), "it was killed");
}

#[test]
fn the_addresses_of_apprise_are_not_on_its_command_line() {
    let (_keep, dir) = temp();
    let bin = dir.root.join("bin");
    fs::create_dir_all(&bin).unwrap();
    file(&bin, "apprise", "#!/bin/sh\n(echo \"$*\"; echo \"$APPRISE_URLS\"; cat) >\"$0.log\"\n", 0o755);
    // Run by its path: other tests of this process share PATH, so it must not change.
    let urls = vec!["tgram://token/chat".to_owned(), "mailto://ada".to_owned()];
    crate::channel::run_apprise(bin.join("apprise").as_str(), &urls, &alert(AlertKind::Healed, 1.0), PATIENCE).unwrap();
    insta::assert_snapshot!(fs::read_to_string(bin.join("apprise.log")).unwrap());
}

#[test]
fn each_channel_is_tested_once_and_a_wrong_name_is_refused() {
    let (good, bad) = (Server::start(&["200 OK"]), Server::start(&["403 No"]));
    let channels = [Target::Bell, Target::Slack { url: good.url.clone() }, Target::Discord { url: bad.url.clone() }];
    let settings = Settings { channels: channels.map(|to| Channel { kinds: vec![], to }).into() };
    let results = |only| {
        let tested = test_alert(&settings, only, PATIENCE).map_err(|failure| failure.code)?;
        Ok(tested.into_iter().map(|(name, result)| (name, result.map_err(|f| f.code))).collect::<Vec<_>>())
    };
    assert_eq!(results(None), Ok(vec![("slack", Ok(())), ("discord", Err(ErrorCode::AlertNotSent))]));
    assert_eq!(results(Some("slack")), Ok(vec![("slack", Ok(()))]));
    assert_eq!(results(Some("ntfy")), Err(ErrorCode::UnknownName));
    assert_eq!((good.requests().len(), bad.requests().len()), (2, 1));
}

/// A run of one node, with its attempt.
fn watched(dir: &RunDir) -> Watch {
    let (meta, attempt) = (run(), attempt(1, 0, &["ml-1"]));
    fs::create_dir_all(dir.node_dir(&node("ml-1"))).unwrap();
    let recipe = meta.recipe().unwrap();
    let all = settings(Target::Bell);
    Watch::new(dir, meta, recipe, attempt, outbox(dir, all, limits()))
}

fn record(dir: &RunDir, t: f64, kind: EventKind) {
    LineAppender::open(&dir.events()).unwrap().append(&Event::new(t, 1, Some(40), kind).by_rank(0)).unwrap();
}

fn exit(dir: &RunDir, code: ErrorCode) {
    let failure = Some(Failure::new(code, "rank 0 died", "why", "fix"));
    let (reason, node) = (ExitReason::Failed, node("ml-1"));
    dir.write_exit(&ExitFile {
        schema: SCHEMA,
        attempt: 1,
        node,
        ended_s: 1100.0,
        reason,
        first_failure: None,
        failure,
        ranks: vec![],
    })
    .unwrap();
}

#[test]
fn events_and_findings_become_alerts() {
    let (_keep, dir) = temp();
    let mut watch = watched(&dir);
    record(&dir, 1001.0, EventKind::Started { world: 1 });
    let mut metrics = LineAppender::open(&dir.metrics()).unwrap();
    for step in 1..=40 {
        let loss = Some(0.5).filter(|_| step < 40);
        let t = 1010.0 + step as f64;
        let grad_norm = Some(1.0);
        metrics
            .append(&MetricSample { attempt: 1, step, t, loss, grad_norm, step_s: 1.0, ..MetricSample::default() })
            .unwrap();
    }
    record(&dir, 1051.0, EventKind::CheckpointSaved { path: "checkpoints/step-40".into(), bytes: 7, seconds: 0.1 });
    for t in [1052.0, 1054.0] {
        watch.look(t).unwrap();
    }
    assert_eq!(kinds(&dir), [AlertKind::Started, AlertKind::Checkpoint, AlertKind::NotFinite]);
    watch.look(1200.0).unwrap();
    let last = alerts(&dir).pop().unwrap().alert;
    assert_eq!((last.kind, last.since_s, last.step), (AlertKind::Stalled, 1051.0, Some(40)));
    record(&dir, 1300.0, EventKind::Finished);
    watch.end(1301.0, PATIENCE).unwrap();
    assert_eq!(kinds(&dir).pop(), Some(AlertKind::Finished));
}

#[test]
fn the_end_of_an_attempt_is_one_alert_of_the_kind_of_its_failure() {
    let codes = [ErrorCode::OutOfMemory, ErrorCode::NodeLost, ErrorCode::NotFinite, ErrorCode::RankKilled];
    let ends = codes.map(|code| {
        let (_keep, dir) = temp();
        let watch = watched(&dir);
        exit(&dir, code);
        watch.end(1101.0, PATIENCE).unwrap();
        let found = alerts(&dir);
        assert_eq!((found.len(), found[0].alert.ends_attempt), (1, true));
        found[0].alert.kind
    });
    assert_eq!(ends, [AlertKind::OutOfMemory, AlertKind::NodeLost, AlertKind::NotFinite, AlertKind::Failed]);
}

#[test]
fn a_failure_that_a_healer_handles_is_left_to_it() {
    let (_keep, dir) = temp();
    let watch = watched(&dir);
    exit(&dir, ErrorCode::NodeLost);
    let healer = Healer { schema: SCHEMA, node: node("ml-1"), pid: 7 };
    let _lock = dir.lock_healer(&healer).unwrap().unwrap();
    watch.end(1101.0, PATIENCE).unwrap();
    assert!(alerts(&dir).is_empty());
    let failure = Failure::new(ErrorCode::OutOfMemory, "not resumed", "why", "fix");
    let reports = [EventKind::Healed { without: vec![node("ml-2")], down_s: 30.0 }, EventKind::HealEnded { failure }];
    let kinds = reports.map(|kind| of_event(&run(), &Event::new(1.0, 2, None, kind), 2.0).map(|alert| alert.kind));
    assert_eq!(kinds, [Some(AlertKind::Healed), Some(AlertKind::OutOfMemory)]);
}

#[test]
fn gpus_of_a_node_that_fail_twice_within_a_day_raise_an_alert_and_others_do_not() {
    let healed = |hours: f64, attempt: u32, code, name: &str| {
        let kind = EventKind::HealStarted { code, at_step: 40, failed_node: Some(node(name)) };
        Event::new(hours * 3600.0, attempt, None, kind)
    };
    let first = healed(0.0, 1, ErrorCode::DeviceFailed, "ml-2");
    let repeated = |event: &Event| crate::of_repeated_fault(&run(), &[first.clone(), event.clone()], event, event.t);
    let alert = repeated(&healed(23.0, 3, ErrorCode::DeviceFailed, "ml-2")).unwrap();
    assert_eq!((alert.kind, alert.attempt, alert.subject.as_str()), (AlertKind::Failed, 3, "ml-2"));
    for other in [
        healed(25.0, 3, ErrorCode::DeviceFailed, "ml-2"),
        healed(23.0, 3, ErrorCode::DeviceFailed, "ml-1"),
        healed(23.0, 3, ErrorCode::RankKilled, "ml-2"),
        first.clone(),
    ] {
        assert_eq!(repeated(&other).map(|alert| alert.what), None, "{other:?}");
    }
}

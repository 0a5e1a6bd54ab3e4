//! Tests of alerts: sent by the supervisor and the healer with no console open, tested and answered by commands and keys.

use crate::documents::blocks;
use crate::pty::ESC;
use crate::test_site::{Finish, TestSite, VIDTUI};
use rundir::{Alert, AlertKind, AlertLine, AlertWriter, RunDir};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::{Arc, Mutex};
use std::thread;

/// The secret of the tests. In a run's folder, only the file with the alert channels of an attempt may contain it.
const SECRET: &str = "hush-77aa-0b1c";

/// An HTTP server that records the alerts that it receives.
struct Receiver {
    url: String,
    received: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    /// Starts a server that answers with a status line. With an empty `answer`, the server never replies.
    fn start(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received: Arc<Mutex<Vec<Value>>> = Arc::default();
        let shared = received.clone();
        thread::spawn(move || {
            let mut open = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                shared.lock().unwrap().push(body(&stream));
                if answer.is_empty() {
                    open.push(stream);
                } else {
                    let _ = write!(stream, "HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                }
            }
        });
        Self { url, received }
    }

    fn kinds(&self) -> Vec<String> {
        let received = self.received.lock().unwrap();
        received.iter().map(|alert| alert["kind"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

/// Reads the JSON body of a request.
fn body(stream: &TcpStream) -> Value {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}

/// Makes a site with a recipe whose command fails, and with these settings of alerts.
fn site(settings: &str) -> TestSite {
    let site = TestSite::new();
    site.write("config/vidtui/alerts.toml", settings);
    secrets(&site, &format!("TOKEN={SECRET}\n"));
    site.write("train.sh", "#!/bin/sh\necho 'ValueError: no video in /data'\nexit 1\n");
    fs::set_permissions(site.root.join("train.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let recipe = format!(
        "trainer = \"command\"\n[command]\nrun = [\"{}/train.sh\"]\nadapter = \"none\"\n[train]\nsteps = 20\n[mesh]\ndp_replicate = 1\n",
        site.root
    );
    site.write("configs/own/own.toml", &recipe);
    site
}

fn secrets(site: &TestSite, text: &str) {
    site.write("config/vidtui/secrets.env", text);
    let path = site.root.join("config/vidtui/secrets.env");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn webhook(receiver: &Receiver) -> String {
    format!("[webhook]\nurl = \"{}\"\ntoken = \"$TOKEN\"\n", receiver.url)
}

/// Records an alert, as the supervisor does.
fn raise(run: &RunDir, id: &str, kind: AlertKind) {
    let alert = Alert { id: id.into(), run: run.read_run().unwrap().id, kind, ..alerts::example() };
    run.append_alerts(AlertWriter::Supervisor).unwrap().append(&AlertLine::Raised(alert)).unwrap();
}

/// Makes a run that has ended.
fn run(site: &TestSite) -> RunDir {
    site.succeeds(&["launch", "configs/small:short", "--set", "train.steps=2", "--wait"]);
    site.runs().remove(0)
}

fn files(folder: &camino::Utf8Path) -> Vec<camino::Utf8PathBuf> {
    let entries = folder.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_run_that_fails_sends_one_alert_with_no_console_open() {
    let receiver = Receiver::start("204 OK");
    let site = site(&webhook(&receiver));
    assert_eq!(site.error(&["launch", "configs/own/own.toml", "--wait"]), (1, "rank-failed".into()));
    let dir = site.runs().remove(0);
    let is_alive = || remote::pid_files(&dir).unwrap().iter().any(|(_, live)| *live != runstate::Liveness::Dead);
    site.until("the supervisor to end", || !is_alive());
    assert_eq!(receiver.kinds(), ["failed"]);

    let listed = site.json(&["alerts", "--json"])["alerts"].clone();
    let [alert] = &listed.as_array().unwrap()[..] else { panic!("{listed}") };
    assert_eq!((&alert["state"], &alert["run"]), (&"open".into(), &dir.name().into()));
    assert!(alert["why"].as_str().unwrap().contains("no video in /data"), "{alert}");
    site.succeeds(&["alerts", "ack", &alert["id"].as_str().unwrap()[..4]]);
    assert_eq!(site.json(&["alerts", "--json"])["alerts"][0]["state"], "acknowledged");
    assert!(site.succeeds(&["alerts"]).contains("acknowledged"));
    assert_eq!(site.error(&["alerts", "ack", "zz"]), (2, "unknown-name".into()));

    let with_secret: Vec<_> = files(&dir.root)
        .into_iter()
        .filter(|path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).contains(SECRET))
        .collect();
    assert_eq!(with_secret, [dir.alert_channels(1)]);
    assert_eq!(fs::metadata(&with_secret[0]).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_webhook_that_hangs_does_not_keep_a_run_from_ending() {
    let receiver = Receiver::start("");
    let site = site(&webhook(&receiver));
    assert_eq!(site.error(&["launch", "configs/own/own.toml", "--wait"]), (1, "rank-failed".into()));
    assert_eq!(site.json(&["status", "latest", "--json"])["failure"]["code"], "rank-failed");
    let not_sent = || site.json(&["alerts", "--json"])["alerts"][0]["not_sent"][0]["channel"] == "webhook";
    site.until("the record that it was not sent", not_sent);
    assert_eq!(receiver.kinds()[0], "failed");
}

#[test]
fn a_healer_reports_a_resume_and_why_it_gives_up() {
    let receiver = Receiver::start("200 OK");
    let site =
        site(&webhook(&receiver)).with("FAKE_STEP_MS", "5").with("FAKE_DIES_AT", "25").with("FAKE_DIES_ALWAYS", "1");
    site.succeeds(&["launch", "configs/small:short", "--set", "run.on_failure=resume"]);
    let dir = site.runs().remove(0);
    site.until("the healer has ended", || receiver.kinds().len() > 1 && dir.healer().is_none());
    assert_eq!(receiver.kinds(), ["healed", "failed"]);
    assert_eq!(site.json(&["alerts", "--json"])["alerts"][0]["kind"], "failed");
}

#[test]
fn invalid_settings_and_exposed_secrets_are_refused_before_anything_starts() {
    let launch = ["launch", "configs/small:short"];
    let misspelled = site("[slak]\n");
    assert_eq!(misspelled.error(&launch), (1, "invalid-alerts".into()));
    let exposed = site("[slack]\nurl = \"$TOKEN\"\n");
    let path = exposed.root.join("config/vidtui/secrets.env");
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(exposed.error(&launch), (1, "invalid-secrets".into()));
    assert!(misspelled.runs().is_empty() && exposed.runs().is_empty());
    assert_eq!(TestSite::new().error(&["alerts", "test"]), (2, "not-found".into()));
}

#[test]
fn the_test_of_the_channels_reports_each_one() {
    let (good, bad) = (Receiver::start("200 OK"), Receiver::start("404 No"));
    let site = site("[slack]\nurl = \"$GOOD\"\n[discord]\nurl = \"$BAD\"\n[exec]\ncommand = [\"true\"]\n");
    secrets(&site, &format!("GOOD={}\nBAD={}\n", good.url, bad.url));
    let tested = site.vidtui(&["alerts", "test"]);
    assert_eq!(tested.code, 1);
    let lines = ["✗ discord", "✓ exec", "✓ slack"];
    assert!(
        lines.iter().all(|line| tested.stdout.contains(line)) && !tested.stdout.contains("http"),
        "{}",
        tested.stdout
    );
    assert_eq!(site.json(&["alerts", "test", "slack", "--json"])["channels"][0]["sent"], true);
    assert_eq!(site.error(&["alerts", "test", "ntfy"]), (2, "unknown-name".into()));
}

#[test]
fn each_command_of_the_document_about_alerts_succeeds() {
    let receiver = Receiver::start("200 OK");
    let site = site("[slack]\nurl = \"$SLACK_URL\"\n").with("FAKE_STEP_MS", "1");
    secrets(&site, &format!("SLACK_URL={}\n", receiver.url));
    raise(&run(&site), "3f9c20aa", AlertKind::Failed);
    // The document uses `~/.config`, so this path links to the settings of the site.
    fs::create_dir_all(site.root.join("home")).unwrap();
    symlink(site.root.join("config"), site.root.join("home/.config")).unwrap();
    symlink(VIDTUI, site.root.join("bin/vidtui")).unwrap();
    let home = site.root.join("home");
    let site = site.with("HOME", home.as_str());
    let page = include_str!("../../docs/alerts.md");
    for command in blocks(page, "sh").iter().flat_map(|block| block.lines()) {
        let done = site.program("sh", &["-c", command]).finish();
        assert_eq!(done.code, 0, "{command}\n{}{}", done.stdout, done.stderr);
    }
    assert_eq!(receiver.kinds().len(), 2);
}

#[test]
fn the_console_counts_lists_and_acknowledges_alerts_and_rings() {
    let site = site("[bell]\n[osc]\nform = \"777\"\n").with("FAKE_STEP_MS", "1");
    let dir = run(&site);
    raise(&dir, "3f9c20aa", AlertKind::Failed);
    let console = site.console((80, 24), &[], &[]);
    console.shows(&["a 1 alert"]).press("a").shows(&["3f9c20aa", "acknowledge"]);
    assert!(!console.raw().contains("\x1b]777;"), "it was raised before the console was opened");
    raise(&dir, "90ab11cd", AlertKind::Stalled);
    console.shows(&["stalled"]);
    console.meanwhile("the notification", || console.raw().contains("\x07\x1b]777;notify;"));
    console.press("A").shows(&["acknowledged"]);
    console.press("Z").shows(&["snoozed"]).press(ESC).shows_no("a 1 alert");
    let listed = site.json(&["alerts", "--json"])["alerts"].clone();
    assert!(listed.as_array().unwrap().iter().all(|alert| alert["state"] == "acknowledged"), "{listed}");
}

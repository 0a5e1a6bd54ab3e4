//! Sends one alert to one channel: builds the request of each service and interprets the response.

use crate::message::{body, title};
use crate::settings::{Channel, Settings, Target};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rundir::{Alert, AlertKind, ErrorCode, Failure, RunId, SCHEMA, now_s};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use ureq::Agent;
use ureq::http::header;
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};

/// The most characters that Discord accepts.
const DISCORD_CHARACTERS: usize = 2000;
/// The hint for a TLS error.
const CERTIFICATES: &str =
    "check the address; a certificate of a company must be among those of the system (or SSL_CERT_FILE)";
/// The interval at which [`run`] checks whether the program has ended.
const CHECK: Duration = Duration::from_millis(20);

/// Why an alert did not reach a channel. Neither text contains a secret.
#[derive(Debug, Clone, PartialEq)]
pub enum SendError {
    /// The server may accept the alert later: it is busy, has a fault or does not answer.
    Retry {
        /// The reason.
        why: String,
        /// The pause that the server requested with `Retry-After`; `None` if it requested none.
        after: Option<Duration>,
    },
    /// The server would refuse the alert again.
    Lasting {
        /// The reason.
        why: String,
        /// The hint.
        fix: String,
    },
}

impl SendError {
    /// Returns the reason.
    pub fn why(&self) -> &str {
        match self {
            Self::Retry { why, .. } | Self::Lasting { why, .. } => why,
        }
    }

    fn lasting(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Lasting { why: why.into(), fix: fix.into() }
    }
}

/// The name of a channel, and whether it accepted the test alert.
pub type TestResult = (&'static str, Result<(), Failure>);

/// Sends a test alert to each channel, or only to the channel `only`, without retries, and returns the results. Skips the bell
/// and the notifications of the terminal, which the console tests.
///
/// * `limit` — the time limit of each request or program.
///
/// # Errors
/// The settings have no channel of the name `only`.
pub fn test_alert(settings: &Settings, only: Option<&str>, limit: Duration) -> Result<Vec<TestResult>, Failure> {
    let wanted = |channel: &&Channel| only.is_none_or(|only| only == channel.to.name());
    let channels: Vec<&Channel> = settings.channels.iter().filter(wanted).collect();
    if let (Some(only), true) = (only, channels.is_empty()) {
        let known: Vec<&str> = settings.channels.iter().map(|channel| channel.to.name()).collect();
        let fix = format!("add [{only}] to alerts.toml, or name one of: {}", known.join(", "));
        let what = format!("cannot test the channel '{only}'");
        return Err(Failure::new(ErrorCode::UnknownName, what, "alerts.toml has no such channel", fix));
    }
    let alert = example();
    let send = |channel: &Channel| {
        channel.to.send(&alert, limit).map_err(|error| {
            let what = format!("the test alert did not reach {}", channel.to.name());
            let fix = match &error {
                SendError::Retry { .. } => "try again later; check the address and the network".to_owned(),
                SendError::Lasting { fix, .. } => fix.clone(),
            };
            Failure::new(ErrorCode::AlertNotSent, what, error.why(), fix)
        })
    };
    let results = thread::scope(|scope| {
        let remote = channels.into_iter().filter(|channel| !channel.to.is_terminal());
        let sends: Vec<_> = remote.map(|channel| (channel.to.name(), scope.spawn(move || send(channel)))).collect();
        let ended = sends.into_iter().filter_map(|(name, send)| Some((name, send.join().ok()?)));
        ended.collect()
    });
    Ok(results)
}

/// Returns the test alert.
pub fn example() -> Alert {
    let now_s = now_s();
    Alert {
        v: SCHEMA,
        t: now_s,
        id: String::new(),
        run: RunId::new(now_s, "test", 0),
        attempt: 1,
        kind: AlertKind::Finished,
        subject: String::new(),
        ends_attempt: false,
        step: None,
        what: "this is a test of vidtui".into(),
        why: String::new(),
        since_s: now_s,
        fix: String::new(),
    }
    .with_id()
}

impl Target {
    /// Sends an alert, with a time limit.
    pub(crate) fn send(&self, alert: &Alert, limit: Duration) -> Result<(), SendError> {
        let text = || format!("{}\n{}", title(alert), body(alert));
        match self {
            Self::Bell | Self::Osc { .. } => Ok(()),
            Self::Ntfy { server, topic, token } => {
                let priority = if alert.kind.needs_action() { 4 } else { 3 };
                let message =
                    json!({ "topic": topic, "title": title(alert), "message": body(alert), "priority": priority });
                self.post(server, token.as_deref(), &message, limit)
            }
            // https://docs.slack.dev/messaging/formatting-message-text: these three characters must be escaped.
            Self::Slack { url } => {
                let text = text().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                self.post(url, None, &json!({ "text": text }), limit)
            }
            Self::Discord { url } => {
                let text: String = text().chars().take(DISCORD_CHARACTERS).collect();
                self.post(url, None, &json!({ "content": text, "allowed_mentions": { "parse": [] } }), limit)
            }
            Self::Webhook { url, token } => self.post(url, token.as_deref(), &json!(alert), limit),
            Self::Apprise { urls } => run_apprise("apprise", urls, alert, limit),
            Self::Exec { command } => {
                let variables = [
                    ("VIDTUI_ALERT_ID", alert.id.clone()),
                    ("VIDTUI_ALERT_RUN", alert.run.to_string()),
                    ("VIDTUI_ALERT_KIND", alert.kind.name().to_owned()),
                    ("VIDTUI_ALERT_TITLE", title(alert)),
                    ("VIDTUI_ALERT_TEXT", body(alert)),
                ];
                run(command, &variables, json!(alert).to_string(), limit)
            }
        }
    }

    fn post(&self, url: &str, token: Option<&str>, message: &Value, limit: Duration) -> Result<(), SendError> {
        // The certificates of the system, because companies install their own certificates there.
        let tls = TlsConfig::builder().provider(TlsProvider::Rustls).root_certs(RootCerts::PlatformVerifier).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            // A redirect would send the secret to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent(concat!("vidtui/", env!("CARGO_PKG_VERSION")))
            .timeout_global(Some(limit))
            .build();
        let mut request = Agent::new_with_config(config).post(url).header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let response = request.send(message.to_string()).map_err(|error| self.unreachable(&error, limit))?;
        let after = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        match answer(response.status().as_u16(), after) {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Makes the error of a request that got no response. The messages of some errors contain the address, which is a secret, so they
    /// are replaced.
    fn unreachable(&self, error: &ureq::Error, limit: Duration) -> SendError {
        let retry = |why: String| SendError::Retry { why, after: None };
        match error {
            ureq::Error::Timeout(_) => retry(format!("no answer within {}", units::duration(limit.as_secs_f64()))),
            ureq::Error::HostNotFound => retry("the name of the host is not known".into()),
            ureq::Error::ConnectionFailed => retry("the connection failed".into()),
            // rustls reports a certificate that it refuses in this way.
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                SendError::lasting(error.to_string(), CERTIFICATES)
            }
            ureq::Error::Io(error) => retry(error.to_string()),
            ureq::Error::Tls(why) => SendError::lasting(format!("TLS: {why}"), CERTIFICATES),
            ureq::Error::Rustls(error) => SendError::lasting(format!("TLS: {error}"), CERTIFICATES),
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
                SendError::lasting("the address is not valid", format!("copy the whole address of {}", self.name()))
            }
            ureq::Error::InvalidProxyUrl => SendError::lasting("the proxy is not valid", "check HTTPS_PROXY"),
            _ => retry("the request failed".into()),
        }
    }
}

/// Runs apprise. The addresses are secrets, so they are passed in the environment: other users can read command lines.
pub(crate) fn run_apprise(program: &str, urls: &[String], alert: &Alert, limit: Duration) -> Result<(), SendError> {
    let command = [program.to_owned(), "--title".to_owned(), title(alert)];
    run(&command, &[("APPRISE_URLS", urls.join(" "))], body(alert), limit)
}

/// Interprets the status of a response. Returns `None` if the server accepted the alert.
pub(crate) fn answer(status: u16, retry_after: Option<&str>) -> Option<SendError> {
    let why = format!("the server answered {status}");
    Some(match status {
        200..=299 => return None,
        408 | 425 | 429 | 500..=599 => {
            let seconds = retry_after.and_then(|text| text.trim().parse::<f64>().ok());
            let after = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            SendError::Retry { why, after }
        }
        300..=399 => SendError::lasting(why, "write the final address; redirects are not followed"),
        401 | 403 => SendError::lasting(why, "the token or the address is not accepted: check the file of secrets"),
        404 | 410 => SendError::lasting(why, "the webhook or topic does not exist: make a new one"),
        _ => SendError::lasting(why, "check the address"),
    })
}

/// Runs a program with a text on its standard input.
///
/// The program is not marked as a training process, because such a process keeps the run alive. It has a process group of its own, which is
/// killed at the time limit.
fn run(command: &[String], variables: &[(&str, String)], input: String, limit: Duration) -> Result<(), SendError> {
    let (program, args) = command.split_first().map_or(("", &[][..]), |(program, args)| (program.as_str(), args));
    let mut command = Command::new(program);
    command.args(args).envs(variables.iter().map(|(name, value)| (name, value)));
    for name in ["VIDTUI_NODE", "RANK", "LOCAL_RANK"] {
        command.env_remove(name);
    }
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| {
        let fix = format!("install {program} on the first node, or write its whole path");
        SendError::lasting(format!("{program} cannot be started: {error}"), fix)
    })?;
    let fix = format!("run {program} by hand");
    if let Some(mut stdin) = child.stdin.take() {
        // In a thread, because writing a large input to a program that does not read it would block.
        thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    }
    let last_line = last_line(&mut child);
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                let line = last_line.recv_timeout(10 * CHECK).unwrap_or_default();
                let line = if line.is_empty() { line } else { format!(": {line}") };
                return Err(SendError::lasting(format!("{program} ended with {status}{line}"), fix));
            }
            Ok(None) if begun.elapsed() < limit => thread::sleep(CHECK),
            _ => {
                let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
                let _ = child.wait();
                let why = format!("{program} did not end within {}", units::duration(limit.as_secs_f64()));
                return Err(SendError::lasting(why, fix));
            }
        }
    }
}

/// Reads the standard error of a program in a thread, and sends its last line that is not empty when the program closes it.
fn last_line(child: &mut Child) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    let stderr = child.stderr.take();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stderr.map(|stderr| stderr.take(64 << 10).read_to_end(&mut bytes));
        let text = String::from_utf8_lossy(&bytes);
        let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
        sender.send(last.unwrap_or_default().to_owned())
    });
    receiver
}

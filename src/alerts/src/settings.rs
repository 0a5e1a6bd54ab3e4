//! The settings of alerts: the channels of a user and the kinds of alerts that each gets. They are read from `alerts.toml`, or from the
//! copy in the folder of an attempt.

use camino::{Utf8Path, Utf8PathBuf};
use recipe::{RecipeErrorKind, Secrets, nearest};
use rundir::{Alert, AlertKind, ErrorCode, Failure, RunDir};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use toml::{Table, Value};

/// The settings of alerts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The channels, in the order of the file.
    pub channels: Vec<Channel>,
}

/// A channel, and the kinds of alerts that it gets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Channel {
    /// The kinds.
    pub kinds: Vec<AlertKind>,
    /// The recipient.
    #[serde(flatten)]
    pub to: Target,
}

/// The recipient of a channel, with its secrets. `{:?}` does not print them.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "channel", rename_all = "snake_case")]
#[allow(missing_docs, reason = "docs/alerts.md describes the keys")]
pub enum Target {
    /// The bell of the console's terminal.
    Bell,
    /// A notification of the console's terminal.
    Osc { form: OscForm },
    /// A topic of ntfy.
    Ntfy { server: String, topic: String, token: Option<String> },
    /// An incoming webhook of Slack.
    Slack { url: String },
    /// A webhook of Discord.
    Discord { url: String },
    /// An HTTP server that gets the alert as JSON.
    Webhook { url: String, token: Option<String> },
    /// The program `apprise`.
    Apprise { urls: Vec<String> },
    /// A program that gets the alert as JSON.
    Exec { command: Vec<String> },
}

/// The escape sequence of a notification.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OscForm {
    /// `OSC 9`: iTerm2, WezTerm, kitty, Ghostty, foot.
    #[default]
    #[serde(rename = "9")]
    Nine,
    /// `OSC 777`, which has a title: urxvt, foot, Ghostty, WezTerm.
    #[serde(rename = "777")]
    SevenSevenSeven,
}

/// The keys of each channel besides `kinds`.
const CHANNELS: [(&str, &[&str]); 8] = [
    ("bell", &[]),
    ("osc", &["form"]),
    ("ntfy", &["server", "topic", "token"]),
    ("slack", &["url"]),
    ("discord", &["url"]),
    ("webhook", &["url", "token"]),
    ("apprise", &["urls"]),
    ("exec", &["command"]),
];
/// The key with the name of the secrets file, and its default. The name is relative to the folder of `alerts.toml`.
const SECRETS: &str = "secrets";
const SECRETS_FILE: &str = "secrets.env";

impl Target {
    /// Returns the name of the channel in `alerts.toml`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bell => "bell",
            Self::Osc { .. } => "osc",
            Self::Ntfy { .. } => "ntfy",
            Self::Slack { .. } => "slack",
            Self::Discord { .. } => "discord",
            Self::Webhook { .. } => "webhook",
            Self::Apprise { .. } => "apprise",
            Self::Exec { .. } => "exec",
        }
    }

    /// Returns whether the channel is the terminal of the console. Only the console can send to it.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Bell | Self::Osc { .. })
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Channel {
    /// Returns whether the channel gets an alert. The kind `failed` includes each alert about a failure that ended an attempt, and the
    /// kind `finished` includes the end of each stage.
    pub fn wants(&self, alert: &Alert) -> bool {
        let also = match alert.kind {
            AlertKind::StageDone => Some(AlertKind::Finished),
            _ => alert.ends_attempt.then_some(AlertKind::Failed),
        };
        self.kinds.contains(&alert.kind) || also.is_some_and(|kind| self.kinds.contains(&kind))
    }
}

impl Settings {
    /// Returns the path of the settings of this user: in `XDG_CONFIG_HOME`, or in `~/.config`.
    pub fn user_file() -> Option<Utf8PathBuf> {
        Some(rundir::user_folder("XDG_CONFIG_HOME", ".config")?.join("vidtui/alerts.toml"))
    }

    /// Reads the settings of this user, with the secrets that they name; `None` if there is no file.
    ///
    /// # Errors
    /// The settings or the secrets file are not valid, or other users can access the secrets file. No error contains a secret.
    pub fn of_user() -> Result<Option<Self>, Failure> {
        let Some(path) = Self::user_file() else { return Ok(None) };
        match rundir::read_text(&path) {
            Ok(text) => Self::parse(&path, &text).map(Some),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the settings in the folder of an attempt. They are empty if the user had no channels.
    ///
    /// # Errors
    /// The file cannot be read or is not valid.
    pub fn of_attempt(run: &RunDir, attempt: u32) -> Result<Self, Failure> {
        let path = run.alert_channels(attempt);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(rundir::FileError::Io { action: "read", path, source }.into()),
        };
        // The error of the parser may contain a secret.
        serde_json::from_slice(&text).map_err(|_| {
            let fix = "resume the run: a new attempt gets a new file";
            Failure::new(ErrorCode::Malformed, format!("cannot read {path}"), "the file is not valid", fix)
        })
    }

    /// Returns the content of the file for the folder of an attempt; `None` without channels.
    pub fn for_attempt(&self) -> Option<Vec<u8>> {
        if self.channels.is_empty() { None } else { serde_json::to_vec(self).ok() }
    }

    /// Parses `alerts.toml`, and reads the secrets that it names.
    ///
    /// # Errors
    /// Those of [`Self::of_user`].
    pub fn parse(path: &Utf8Path, text: &str) -> Result<Self, Failure> {
        let mut file = File { path, secrets_file: Utf8PathBuf::new(), secrets: None };
        let table: Table = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            file.bad(format!("line {line}: {}", error.message()), "docs/alerts.md has an example")
        })?;
        let folder = path.parent().unwrap_or(Utf8Path::new("."));
        file.secrets_file = folder.join(file.text(SECRETS, table.get(SECRETS))?.unwrap_or(SECRETS_FILE));
        let mut channels = Vec::new();
        for (name, value) in table.iter().filter(|(name, _)| *name != SECRETS) {
            let known = CHANNELS.iter().find(|(known, _)| known == name);
            let Some((_, keys)) = known else {
                let names = CHANNELS.iter().map(|(name, _)| *name).chain([SECRETS]);
                return Err(file.unknown(&format!("there is no channel '{name}'"), name, names));
            };
            let Value::Table(table) = value else {
                return Err(file.bad(format!("{name} is not a section"), format!("write [{name}]")));
            };
            if let Some(unknown) = table.keys().find(|key| *key != "kinds" && !keys.contains(&key.as_str())) {
                let why = format!("[{name}] has no key '{unknown}'");
                return Err(file.unknown(&why, unknown, keys.iter().copied().chain(["kinds"])));
            }
            let mut section = Section { file: &mut file, name, table };
            channels.push(Channel { kinds: section.kinds()?, to: section.target()? });
        }
        Ok(Self { channels })
    }
}

/// The path of `alerts.toml`, for error messages, and the secrets, which are read when the first one is needed.
struct File<'a> {
    path: &'a Utf8Path,
    secrets_file: Utf8PathBuf,
    secrets: Option<BTreeMap<String, String>>,
}

impl File<'_> {
    fn bad(&self, why: impl Into<String>, fix: impl Into<String>) -> Failure {
        Failure::new(ErrorCode::InvalidAlerts, format!("cannot use {}", self.path), why, fix)
    }

    /// Makes the error for an unknown word. The hint names the most similar known word, or else all of them.
    fn unknown<'a>(&self, why: &str, word: &str, known: impl Iterator<Item = &'a str> + Clone) -> Failure {
        let fix = match nearest(word, known.clone()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("use one of: {}", known.collect::<Vec<_>>().join(", ")),
        };
        self.bad(why, fix)
    }

    fn text<'a>(&self, key: &str, value: Option<&'a Value>) -> Result<Option<&'a str>, Failure> {
        match value {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
            Some(_) => {
                let name = key.rsplit('.').next().unwrap_or(key);
                Err(self.bad(format!("{key} must be a string that is not empty"), format!("write {name} = \"…\"")))
            }
        }
    }

    /// Returns a secret by its name.
    fn secret(&mut self, name: &str) -> Result<String, Failure> {
        let path = &self.secrets_file;
        if self.secrets.is_none() {
            let read = Secrets::read(path).map_err(|error| match error.kind {
                RecipeErrorKind::Secrets => Failure::from(error),
                _ => {
                    let fix = format!("write {name}=… to {path}, then run: chmod 600 {path}");
                    Failure { fix, ..Failure::from(error) }
                }
            })?;
            self.secrets = Some(read.variables().iter().cloned().collect());
        }
        let found = self.secrets.as_ref().and_then(|secrets| secrets.get(name)).filter(|value| !value.is_empty());
        found.cloned().ok_or_else(|| self.bad(format!("{path} has no {name}"), format!("add a line to it: {name}=…")))
    }
}

/// One section of the file.
struct Section<'a, 'b> {
    file: &'a mut File<'b>,
    name: &'a str,
    table: &'a Table,
}

impl Section<'_, '_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    fn list(&self, key: &str) -> Result<Option<Vec<String>>, Failure> {
        let wrong = || {
            let why = format!("{} must be a list of one or more strings", self.key(key));
            self.file.bad(why, format!("write {key} = [\"…\", \"…\"]"))
        };
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let items = value.as_array().filter(|items| !items.is_empty()).ok_or_else(wrong)?;
        items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<_>>().map(Some).ok_or_else(wrong)
    }

    fn kinds(&self) -> Result<Vec<AlertKind>, Failure> {
        let Some(names) = self.list("kinds")? else {
            return Ok(AlertKind::ALL.into_iter().filter(|kind| !kind.is_routine()).collect());
        };
        let kind = |name: &String| {
            AlertKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
                let why = format!("{} has the unknown kind '{name}'", self.key("kinds"));
                self.file.unknown(&why, name, AlertKind::ALL.into_iter().map(AlertKind::name))
            })
        };
        names.iter().map(kind).collect()
    }

    fn target(&mut self) -> Result<Target, Failure> {
        Ok(match self.name {
            "bell" => Target::Bell,
            "osc" => Target::Osc {
                form: match self.file.text("osc.form", self.table.get("form"))? {
                    None | Some("9") => OscForm::Nine,
                    Some("777") => OscForm::SevenSevenSeven,
                    Some(other) => {
                        let why = format!("osc.form is '{other}'");
                        return Err(self.file.bad(why, "use \"9\" or \"777\""));
                    }
                },
            },
            "ntfy" => Target::Ntfy {
                server: self.url("server", Secrecy::Public)?.unwrap_or_else(|| "https://ntfy.sh".into()),
                topic: self.value("topic", Secrecy::Public)?.ok_or_else(|| self.missing("topic"))?,
                token: self.value("token", Secrecy::Secret)?,
            },
            "slack" => Target::Slack { url: self.needed_url(Secrecy::Secret)? },
            "discord" => Target::Discord { url: self.needed_url(Secrecy::Secret)? },
            "webhook" => {
                Target::Webhook { url: self.needed_url(Secrecy::Public)?, token: self.value("token", Secrecy::Secret)? }
            }
            "apprise" => {
                let urls = self.list("urls")?.ok_or_else(|| self.missing("urls"))?;
                let urls =
                    urls.iter().map(|url| self.resolved("urls", url, Secrecy::Secret)).collect::<Result<_, _>>()?;
                Target::Apprise { urls }
            }
            _ => Target::Exec { command: self.list("command")?.ok_or_else(|| self.missing("command"))? },
        })
    }

    fn missing(&self, key: &str) -> Failure {
        let example = match (self.name, key) {
            ("exec", _) => "command = [\"notify-send\", \"vidtui\"]".to_owned(),
            ("apprise", _) => "urls = [\"$APPRISE_URL\"]".to_owned(),
            (name, key) => format!("{key} = \"${}_{}\"", name.to_uppercase(), key.to_uppercase()),
        };
        self.file.bad(format!("{} is missing", self.key(key)), format!("write {example}"))
    }

    fn value(&mut self, key: &str, secrecy: Secrecy) -> Result<Option<String>, Failure> {
        let text = self.file.text(&self.key(key), self.table.get(key))?;
        text.map(|text| self.resolved(key, text, secrecy)).transpose()
    }

    fn url(&mut self, key: &str, secrecy: Secrecy) -> Result<Option<String>, Failure> {
        let url = self.value(key, secrecy)?;
        match &url {
            Some(url) if !url.starts_with("https://") && !url.starts_with("http://") => {
                let why = format!("{} does not begin with https:// or http://", self.key(key));
                Err(self.file.bad(why, "copy the whole address"))
            }
            _ => Ok(url),
        }
    }

    fn needed_url(&mut self, secrecy: Secrecy) -> Result<String, Failure> {
        self.url("url", secrecy)?.ok_or_else(|| self.missing("url"))
    }

    /// Returns the secret that `$NAME` names, or the text itself if the value may be public.
    fn resolved(&mut self, key: &str, text: &str, secrecy: Secrecy) -> Result<String, Failure> {
        match (text.strip_prefix('$'), secrecy) {
            (Some(name), _) => self.file.secret(name),
            (None, Secrecy::Public) => Ok(text.to_owned()),
            (None, Secrecy::Secret) => {
                let name = format!("{}_{}", self.name, key).to_uppercase();
                let (why, file) =
                    (format!("{} is a secret and must not be in this file", self.key(key)), &self.file.secrets_file);
                let fix = format!("write {name}=… to {file} (chmod 600), and here \"${name}\"");
                Err(self.file.bad(why, fix))
            }
        }
    }
}

/// Whether a value may be in `alerts.toml`.
#[derive(Clone, Copy)]
enum Secrecy {
    /// The value may be in `alerts.toml`.
    Public,
    /// The value must be in the secrets file; `alerts.toml` has `$` and its name.
    Secret,
}

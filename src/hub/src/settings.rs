//! The settings of downloads: endpoint, cache and token.

use camino::Utf8PathBuf;
use failure::{ErrorCode, Failure};
use std::fmt;
use std::time::Duration;

/// The Hub itself.
const ENDPOINT: &str = "https://huggingface.co";

/// A secret that is never shown, neither in errors nor with `{:?}`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Returns the token in a text, without white space at its ends; `None` if the text is empty.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// Returns the header that carries the token.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Returns whether an HTTP header can carry the token.
    fn is_sendable(&self) -> bool {
        self.0.bytes().all(|byte| byte.is_ascii_graphic())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The settings of downloads.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The Hub or a mirror, without a slash at the end.
    pub endpoint: String,
    /// The token of the user, for gated and private models.
    pub token: Option<Token>,
    /// The folder of the cache, by default `~/.cache/huggingface/hub`.
    pub cache: Utf8PathBuf,
    /// Whether only the cache is used, without a network.
    pub offline: bool,
    /// The time limit for a connection that transfers nothing.
    pub silent_limit: Duration,
    /// The number of retries of a download that makes no progress.
    pub retries: u32,
    /// The first pause before a retry; each following one is twice as long.
    pub pause: Duration,
}

impl Settings {
    /// Returns settings with the default timeouts and retries.
    pub fn new(endpoint: &str, token: Option<Token>, cache: Utf8PathBuf) -> Self {
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            cache,
            offline: false,
            silent_limit: Duration::from_secs(60),
            retries: 5,
            pause: Duration::from_secs(1),
        }
    }

    /// Reads the variables that Python's `huggingface_hub` reads: `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`,
    /// `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HF_HUB_OFFLINE`.
    ///
    /// # Errors
    /// `InvalidArgument` if `HF_ENDPOINT` is not a URL, the token has invalid characters, or the home folder is
    /// unknown.
    pub fn from_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            return Err(invalid(
                "HF_ENDPOINT",
                &format!("'{endpoint}' is not a URL"),
                "for example https://hf-mirror.com",
            ));
        }
        let cache_home = || Some(Utf8PathBuf::from(set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")? + "/.cache"))?));
        let home = || set("HF_HOME").map(Utf8PathBuf::from).or_else(|| Some(cache_home()?.join("huggingface")));
        let cache = set("HF_HUB_CACHE").map(Utf8PathBuf::from).or_else(|| Some(home()?.join("hub")));
        let cache = cache.ok_or_else(|| invalid("HOME", "it is not set", "set HF_HOME to a folder for downloads"))?;
        let (token, origin) = match set("HF_TOKEN") {
            Some(token) => (Token::new(&token), "the environment variable HF_TOKEN".to_owned()),
            None => {
                let path = set("HF_TOKEN_PATH").map(Utf8PathBuf::from).or_else(|| Some(home()?.join("token")));
                let read = |path: &Utf8PathBuf| Token::new(&failure::read_text(path).ok()?);
                (path.as_ref().and_then(read), format!("the token in {}", path.unwrap_or_default()))
            }
        };
        if token.as_ref().is_some_and(|token| !token.is_sendable()) {
            return Err(Failure::new(
                ErrorCode::InvalidArgument,
                format!("cannot use {origin}"),
                "it has characters that a token cannot have",
                "copy it again from https://huggingface.co/settings/tokens",
            ));
        }
        let offline = set("HF_HUB_OFFLINE")
            .is_some_and(|value| !matches!(value.to_lowercase().as_str(), "0" | "false" | "no" | "off"));
        Ok(Self { offline, ..Self::new(&endpoint, token, cache) })
    }
}

fn invalid(name: &str, why: &str, fix: &str) -> Failure {
    Failure::new(ErrorCode::InvalidArgument, format!("cannot use the environment variable {name}"), why, fix)
}

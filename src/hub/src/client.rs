//! HTTP requests to the Hub, with redirects, timeouts, and errors with a hint.

use crate::Settings;
use crate::kind::Kind;
use failure::{ErrorCode, Failure};
use std::io;
use std::time::Duration;
use ureq::http::{Response, header};
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body};

/// The largest number of redirects. The Hub redirects to its CDN, and a mirror may redirect once more.
const REDIRECTS: usize = 10;
/// The time limit for a connection attempt.
const CONNECT: Duration = Duration::from_secs(20);

/// A client of one model or data set.
pub(crate) struct Client<'a> {
    agent: Agent,
    settings: &'a Settings,
    pub kind: Kind,
    pub name: &'a str,
}

/// Why a request failed.
pub(crate) enum RequestError {
    /// The request may succeed later: a network error or an overloaded server.
    Transient(Failure),
    /// A repeated request would fail too.
    Lasting(Failure),
}

impl RequestError {
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Self::Transient(failure) | Self::Lasting(failure) => failure,
        }
    }
}

impl<'a> Client<'a> {
    pub(crate) fn new(settings: &'a Settings, kind: Kind, name: &'a str) -> Self {
        // Use the root certificates of the system: clusters add the certificates of their proxies to them.
        let tls = TlsConfig::builder().provider(TlsProvider::Rustls).root_certs(RootCerts::PlatformVerifier).build();
        // Proxies come from HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.
        let config = Agent::config_builder()
            .tls_config(tls)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent(concat!("vidtui/", env!("CARGO_PKG_VERSION")))
            // Disable compression, because a compressed body has another size.
            .accept_encoding("identity")
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(settings.silent_limit))
            .timeout_per_read(Some(settings.silent_limit))
            .build();
        Self { agent: Agent::new_with_config(config), settings, kind, name }
    }

    /// Returns the path of the page, below the endpoint.
    pub(crate) fn page(&self) -> String {
        format!("{}{}", self.kind.prefix(), self.name)
    }

    /// Requests a path below the endpoint, beginning at a byte. The token goes to the endpoint only, not to other
    /// hosts.
    pub(crate) fn get(&self, path: &str, from: u64) -> Result<Response<Body>, RequestError> {
        let mut url = format!("{}{path}", self.settings.endpoint);
        for _ in 0..=REDIRECTS {
            let mut request = self.agent.get(&url);
            if let Some(token) =
                self.settings.token.as_ref().filter(|_| origin(&url) == origin(&self.settings.endpoint))
            {
                request = request.header(header::AUTHORIZATION, token.header());
            }
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            let response = request.call().map_err(|error| self.unreachable(&url, &error))?;
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            match (response.status().as_u16(), location) {
                (301 | 302 | 303 | 307 | 308, Some(location)) => url = absolute(&url, location),
                (200 | 206 | 416, _) => return Ok(response),
                (status, _) => return Err(self.refused(status, &response)),
            }
        }
        let what = format!("cannot download from {}", self.settings.endpoint);
        let why = format!("more than {REDIRECTS} redirects");
        Err(RequestError::Lasting(Failure::new(ErrorCode::HubFailed, what, why, "check HF_ENDPOINT")))
    }

    /// Converts a failed connection into an error with a hint.
    pub(crate) fn unreachable(&self, url: &str, error: &ureq::Error) -> RequestError {
        let host = origin(url);
        let why = match error {
            ureq::Error::HostNotFound => "the name of the host is not known".to_owned(),
            ureq::Error::Io(error) => error.to_string(),
            ureq::Error::Timeout(_) => {
                format!("no answer for {}", units::duration(self.settings.silent_limit.as_secs_f64()))
            }
            other => other.to_string(),
        };
        let what = format!("cannot reach {host}");
        let fix = "check the network; behind a proxy set HTTPS_PROXY, and for a mirror HF_ENDPOINT. On a node without a network, \
                   run the command where there is one and share the cache";
        let failure = Failure::new(ErrorCode::HubUnreachable, what, why, fix);
        match error {
            ureq::Error::BadUri(_) | ureq::Error::InvalidProxyUrl | ureq::Error::Http(_) => {
                RequestError::Lasting(failure)
            }
            _ => RequestError::Transient(failure),
        }
    }

    /// Converts a connection that broke while a body was read into an error with a hint.
    pub(crate) fn broken(&self, error: &io::Error) -> RequestError {
        let what = format!("the download from {} broke off", self.settings.endpoint);
        let fix = "run the command again: it continues where it stopped";
        RequestError::Transient(Failure::new(ErrorCode::HubUnreachable, what, error.to_string(), fix))
    }

    fn refused(&self, status: u16, response: &Response<Body>) -> RequestError {
        let header =
            |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (code, message) = (header("x-error-code"), header("x-error-message"));
        let Settings { endpoint, token, .. } = self.settings;
        let (name, noun, page) = (self.name, self.kind.noun(), self.page());
        let what = format!("cannot download {name}");
        let why = |text: &str| {
            let detail = if message.is_empty() { String::new() } else { format!(": {message}") };
            format!("{endpoint} answered {status}: {text}{detail}")
        };
        let other = match self.kind {
            Kind::Model => "a data set needs --dataset",
            Kind::Dataset => "a model is downloaded without --dataset",
        };
        let set = "export HF_TOKEN=… with a token of https://huggingface.co/settings/tokens";
        let lasting = |error: ErrorCode, text: &str, fix: String| {
            RequestError::Lasting(Failure::new(error, what.clone(), why(text), fix))
        };
        match (status, code, token) {
            (_, "GatedRepo", None) => {
                let fix = format!("accept the licence at {endpoint}/{page}, then {set}");
                lasting(ErrorCode::PermissionDenied, &format!("the {noun} is gated, and HF_TOKEN is not set"), fix)
            }
            (_, "GatedRepo", Some(_)) => {
                let fix = format!("accept the licence at {endpoint}/{page} with the account of the token");
                lasting(
                    ErrorCode::PermissionDenied,
                    &format!("the {noun} is gated, and your account has no access"),
                    fix,
                )
            }
            // Without a token, the Hub also returns 401 for models that do not exist.
            (401, "RepoNotFound", None) => {
                let fix =
                    format!("check the name at {endpoint}/{page}; if the {noun} is private or gated, {set}; {other}");
                lasting(ErrorCode::NotFound, &format!("there is no such {noun}, or it is private"), fix)
            }
            (401 | 403, _, Some(_)) => {
                let fix =
                    format!("check HF_TOKEN: it may be expired, or its account may lack access to {endpoint}/{page}");
                lasting(ErrorCode::PermissionDenied, "the token is not accepted", fix)
            }
            (401 | 403, _, None) => {
                let fix = format!("accept the licence at {endpoint}/{page} if it has one, then {set}");
                lasting(ErrorCode::PermissionDenied, "a token is needed, and HF_TOKEN is not set", fix)
            }
            (404, "RevisionNotFound", _) => {
                let fix = format!("list the branches and tags at {endpoint}/{page}/tree/main");
                lasting(ErrorCode::NotFound, "there is no such revision", fix)
            }
            (404 | 410, ..) => {
                let fix = format!("check the name at {endpoint}/{page}; it has the form OWNER/NAME; {other}");
                lasting(ErrorCode::NotFound, &format!("there is no such {noun} or file"), fix)
            }
            (408 | 429 | 500..=599, ..) => RequestError::Transient(Failure::new(
                ErrorCode::HubFailed,
                what.clone(),
                why("the server is busy or has a fault"),
                "run the command again later: it continues where it stopped; a token in HF_TOKEN raises the limit of requests",
            )),
            _ => lasting(ErrorCode::HubFailed, "unexpected status", "check HF_ENDPOINT and the proxy".into()),
        }
    }
}

/// Returns scheme, host and port of a URL.
fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    &url[..end]
}

/// Returns the target of a redirect.
fn absolute(url: &str, location: &str) -> String {
    if location.contains("://") {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{}//{rest}", url.split("//").next().unwrap_or("https:"))
    } else if location.starts_with('/') {
        format!("{}{location}", origin(url))
    } else {
        let path = url.split(['?', '#']).next().unwrap_or(url);
        let folder = path.rfind('/').filter(|at| *at >= origin(url).len()).map_or(path, |at| &path[..at]);
        format!("{folder}/{location}")
    }
}

/// Encodes a path for a URL: everything except letters, digits and `-._~/`.
pub(crate) fn encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn redirects_are_resolved_and_hosts_compared_with_their_ports() {
        assert_eq!(origin("https://a.b:1/c?d"), "https://a.b:1");
        assert_ne!(origin("https://a.b"), origin("https://a.b.c/"));
        assert_eq!(absolute("https://a/b/c?d=/", "/x"), "https://a/x");
        assert_eq!(absolute("https://a/b/c?d=/", "x"), "https://a/b/x");
        assert_eq!(absolute("http://a/b", "//c/d"), "http://c/d");
        assert_eq!(absolute("https://a/b", "http://c/d"), "http://c/d");
        assert_eq!(encoded("vae/a b+ü.bin"), "vae/a%20b%2B%C3%BC.bin");
    }
}

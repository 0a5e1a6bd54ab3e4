//! Expands paths of the SSH configuration that `ssh -G` prints as they are written: `~`, tokens such as `%h`, and `${VARIABLE}`.

use std::env;
use std::fmt::Write;

use camino::{Utf8Path, Utf8PathBuf};
use nix::unistd::{Uid, User, gethostname};
use sha1::{Digest, Sha1};

/// The values of the tokens that paths may have.
#[derive(Debug, Clone)]
pub struct Tokens {
    /// The home directory of the user of this process (`%d`).
    pub home: Utf8PathBuf,
    /// The login name on this machine (`%u`).
    pub local_user: String,
    /// The name of this machine, with its domain (`%l`, and `%L` without the domain).
    pub this_host: String,
    /// The node as it was named (`%n`).
    pub name: String,
    /// The node's address or name from `HostName` (`%h`).
    pub host: String,
    /// `HostKeyAlias` (`%k`).
    pub key_alias: Option<String>,
    /// `%p`.
    pub port: u16,
    /// `%r`.
    pub user: String,
}

impl Tokens {
    /// Returns the tokens without a node. `ssh` reads the home directory from the user database, not from `HOME`.
    pub fn of_this_user() -> Self {
        let user = User::from_uid(Uid::current()).ok().flatten();
        let home = user.as_ref().and_then(|user| Utf8PathBuf::from_path_buf(user.dir.clone()).ok());
        Self {
            home: home.unwrap_or_else(|| env::var("HOME").unwrap_or_default().into()),
            local_user: user.map(|user| user.name).unwrap_or_default(),
            this_host: gethostname().unwrap_or_default().to_string_lossy().into_owned(),
            name: String::new(),
            host: String::new(),
            key_alias: None,
            port: 22,
            user: String::new(),
        }
    }

    /// Expands `~` and `~USER` at the start of a path.
    pub fn expand_home(&self, path: &str) -> Utf8PathBuf {
        let Some(rest) = path.strip_prefix('~') else { return path.into() };
        let (name, rest) = rest.split_once('/').unwrap_or((rest, ""));
        if name.is_empty() {
            return self.home.join(rest);
        }
        let home = User::from_name(name).ok().flatten().and_then(|user| Utf8PathBuf::from_path_buf(user.dir).ok());
        home.map_or_else(|| path.into(), |home| home.join(rest))
    }

    /// Expands a path. Returns `None` if it has a token or variable without a value, for which `ssh` fails.
    pub fn expand(&self, path: &str) -> Option<Utf8PathBuf> {
        self.expand_with(path, |variable| env::var(variable).ok())
    }

    fn expand_with(&self, path: &str, variable: impl Fn(&str) -> Option<String>) -> Option<Utf8PathBuf> {
        let path = self.expand_home(path).into_string();
        let mut rest = path.as_str();
        let mut expanded = String::with_capacity(path.len());
        while let Some(at) = rest.find(['%', '$']) {
            expanded.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(token) = rest.strip_prefix('%') {
                let letter = token.chars().next()?;
                expanded.push_str(&self.value(letter)?);
                rest = &token[letter.len_utf8()..];
            } else if let Some(named) = rest.strip_prefix("${") {
                let (name, after) = named.split_once('}')?;
                expanded.push_str(&variable(name)?);
                rest = after;
            } else {
                expanded.push('$');
                rest = &rest[1..];
            }
        }
        expanded.push_str(rest);
        Some(Utf8Path::new(&expanded).to_owned())
    }

    fn value(&self, letter: char) -> Option<String> {
        Some(match letter {
            '%' => "%".into(),
            'C' => self.hash(),
            'd' => self.home.to_string(),
            'h' => self.host.clone(),
            'i' => Uid::current().to_string(),
            // ProxyJump: OpenSSH's program connects to nodes with a jump host.
            'j' => String::new(),
            'k' => self.key_alias.clone().unwrap_or_else(|| self.name.clone()),
            'L' => self.this_host.split('.').next().unwrap_or_default().into(),
            'l' => self.this_host.clone(),
            'n' => self.name.clone(),
            'p' => self.port.to_string(),
            'r' => self.user.clone(),
            'u' => self.local_user.clone(),
            _ => return None,
        })
    }

    /// Returns the hash of `%l%h%p%r` in hexadecimal.
    fn hash(&self) -> String {
        let text = format!("{}{}{}{}", self.this_host, self.host, self.port, self.user);
        Sha1::digest(text).iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("writing to a string cannot fail");
            hex
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn tokens() -> Tokens {
        Tokens {
            home: "/home/ada".into(),
            local_user: "ada".into(),
            this_host: "laptop.lan".into(),
            name: "gpu01".into(),
            host: "10.0.0.7".into(),
            key_alias: None,
            port: 2200,
            user: "bob".into(),
        }
    }

    fn expanded(path: &str) -> Option<String> {
        let variable = |name: &str| (name == "KEYS").then(|| "/keys".to_owned());
        tokens().expand_with(path, variable).map(Utf8PathBuf::into_string)
    }

    #[test]
    fn every_token_and_variable_of_a_path_is_expanded() {
        let cases = [
            ("~/.ssh/id", "/home/ada/.ssh/id"),
            ("~", "/home/ada/"),
            ("%d/%h/%n/%k", "/home/ada/10.0.0.7/gpu01/gpu01"),
            ("%L-%l-%u-%r-%p-%j", "laptop-laptop.lan-ada-bob-2200-"),
            ("${KEYS}/%n$x%%h", "/keys/gpu01$x%h"),
            ("/no/such~/$1", "/no/such~/$1"),
        ];
        for (path, want) in cases {
            assert_eq!(expanded(path).as_deref(), Some(want), "{path}");
        }
        for path in ["%z", "x%", "${UNSET}", "${KEYS", "%ü"] {
            assert_eq!(expanded(path), None, "{path}");
        }
        assert_eq!(Tokens { key_alias: Some("alias".into()), ..tokens() }.expand("%k"), Some("alias".into()));
        assert_eq!(tokens().expand("~no-such-user/id"), Some("~no-such-user/id".into()));
    }

    #[test]
    fn tokens_have_the_values_that_ssh_gives_them() {
        let path = "~/%C %d %h %i %k %L %l %n %p %r %u %%";
        let argument = format!("ControlPath=\"{path}\"");
        let options = ["-G", "-F", "/dev/null", "-o", &argument, "-o", "HostName=10.0.0.7", "-p", "2200", "-l", "bob"];
        let Ok(output) = Command::new("ssh").args(options).arg("gpu01").stdin(Stdio::null()).output() else {
            println!("skipped: ssh is not installed");
            return;
        };
        let text = String::from_utf8(output.stdout).unwrap();
        let by_ssh = text.lines().find_map(|line| line.strip_prefix("controlpath ")).unwrap();
        let tokens = Tokens {
            name: "gpu01".into(),
            host: "10.0.0.7".into(),
            port: 2200,
            user: "bob".into(),
            ..Tokens::of_this_user()
        };
        assert_eq!(tokens.expand(path).unwrap(), by_ssh);
    }
}

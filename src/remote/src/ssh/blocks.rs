//! The `Host` blocks of the SSH configuration. Nodes that the same blocks match have the same settings, so that one `ssh -G` is
//! enough for all of them.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use camino::{Utf8Path, Utf8PathBuf};
use rundir::Login;

use super::config::{Settings, SshOptions};
use crate::error::ConnectionError;

/// Results older than this are read again, because a configuration may depend on more than its files.
const FRESH: Duration = Duration::from_secs(2);
/// The depth of `Include` at which OpenSSH gives up.
const MAX_INCLUDES: usize = 16;

/// The `Host` blocks of all configuration files, in order.
#[derive(Debug, Default)]
struct Blocks {
    blocks: Vec<Block>,
    /// The files that were read and the folders of `Include` patterns, each with its stamp at that time.
    read: Vec<(Utf8PathBuf, Stamp)>,
}

/// When a file was changed, and its size; `None` if it does not exist.
type Stamp = Option<(SystemTime, u64)>;

#[derive(Debug, Default)]
struct Block {
    /// The patterns of its `Host` line. Empty for lines before the first `Host`, which apply to all nodes.
    patterns: Vec<String>,
    host_name: Option<String>,
    /// Whether it sets more than `HostName`.
    has_more: bool,
}

/// The Host blocks that apply to a node.
#[derive(Debug, PartialEq, Eq)]
struct Effect {
    /// The numbers of the blocks that match the node, without those that only set `HostName`.
    blocks: Vec<usize>,
    host: String,
}

impl Blocks {
    /// Reads the files that `ssh` reads. Returns `None` if more than a node's name may decide about its settings (`Match`,
    /// canonical names), or if the syntax is not one of the usual forms.
    fn read(options: &SshOptions, home: &Utf8Path) -> Option<Self> {
        let mut blocks = Self::default();
        match &options.config {
            Some(config) => blocks.add_file(config, &home.join(".ssh"), 0)?,
            None => {
                blocks.add_file(&home.join(".ssh/config"), &home.join(".ssh"), 0)?;
                blocks.add_file("/etc/ssh/ssh_config".into(), "/etc/ssh".into(), 0)?;
            }
        }
        Some(blocks)
    }

    fn add_file(&mut self, path: &Utf8Path, folder: &Utf8Path, depth: usize) -> Option<()> {
        self.read.push((path.to_owned(), stamp(path)));
        // `ssh` ignores a file that does not exist, and reports other errors itself.
        let Ok(text) = fs::read_to_string(path) else { return Some(()) };
        self.blocks.push(Block::default());
        let mut is_before_host = true;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (key, value) = line.split_once(|c: char| c.is_whitespace() || c == '=')?;
            let value = value.trim_start_matches(|c: char| c.is_whitespace() || c == '=');
            let key = key.to_ascii_lowercase();
            if matches!(key.as_str(), "host" | "hostname" | "include") && value.contains(['"', '\'', '#', '\\']) {
                return None;
            }
            match key.as_str() {
                "match" | "canonicalizehostname" | "tag" => return None,
                "host" => {
                    let patterns = value.split_whitespace().map(str::to_owned).collect();
                    self.blocks.push(Block { patterns, ..Block::default() });
                    is_before_host = false;
                }
                "include" if !is_before_host || depth == MAX_INCLUDES => return None,
                "include" => {
                    for path in value.split_whitespace() {
                        let files = included(path, folder)?;
                        let parent = folder.join(path).parent().map(Utf8Path::to_owned)?;
                        self.read.push((parent.clone(), stamp(&parent)));
                        for file in files {
                            self.add_file(&file, folder, depth + 1)?;
                        }
                    }
                    self.blocks.push(Block::default());
                }
                "hostname" => {
                    let block = self.blocks.last_mut()?;
                    block.host_name.get_or_insert_with(|| value.to_owned());
                }
                _ => self.blocks.last_mut()?.has_more = true,
            }
        }
        Some(())
    }

    /// Returns whether no file has changed since it was read.
    fn is_current(&self) -> bool {
        self.read.iter().all(|(path, read)| stamp(path) == *read)
    }

    /// Returns the effect on a node; `None` if its host name has a percent sign besides `%h`.
    fn effect(&self, name: &str) -> Option<Effect> {
        let matching = || self.blocks.iter().enumerate().filter(|(_, block)| block.matches(name));
        let host = matching().find_map(|(_, block)| block.host_name.as_deref()).unwrap_or("%h").replace("%h", name);
        let blocks = matching().filter(|(_, block)| block.has_more).map(|(number, _)| number).collect();
        (!host.contains('%')).then_some(Effect { blocks, host })
    }
}

impl Block {
    /// Returns whether a pattern matches the node and no pattern with `!` matches it.
    fn matches(&self, name: &str) -> bool {
        let any = |negated: bool| {
            let chosen = self.patterns.iter().filter(move |pattern| pattern.starts_with('!') == negated);
            chosen.into_iter().any(|pattern| is_match(pattern.trim_start_matches('!').as_bytes(), name.as_bytes()))
        };
        self.patterns.is_empty() || any(false) && !any(true)
    }
}

fn stamp(path: &Utf8Path) -> Stamp {
    let found = fs::metadata(path).ok()?;
    Some((found.modified().ok()?, found.len()))
}

/// Returns whether a name matches a pattern with `*` and `?`.
fn is_match(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|skipped| is_match(rest, &name[skipped..])),
        ([b'?', rest @ ..], [_, tail @ ..]) => is_match(rest, tail),
        ([first, rest @ ..], [byte, tail @ ..]) => first.eq_ignore_ascii_case(byte) && is_match(rest, tail),
        _ => false,
    }
}

/// Returns the files of an `Include`, sorted; `None` if only `ssh` can resolve it.
fn included(path: &str, folder: &Utf8Path) -> Option<Vec<Utf8PathBuf>> {
    if path.starts_with('~') || path.contains(['%', '$', '[', '{']) {
        return None;
    }
    let path = folder.join(path);
    let (parent, name) = (path.parent()?, path.file_name()?);
    if parent.as_str().contains(['*', '?']) {
        return None;
    }
    if !name.contains(['*', '?']) {
        return Some(vec![path]);
    }
    let Ok(entries) = parent.read_dir_utf8() else { return Some(Vec::new()) };
    let names = entries.filter_map(Result::ok).map(|entry| entry.file_name().to_owned());
    let is_included = |file: &String| !file.starts_with('.') && is_match(name.as_bytes(), file.as_bytes());
    let mut files: Vec<Utf8PathBuf> = names.filter(is_included).map(|name| parent.join(name)).collect();
    files.sort();
    Some(files)
}

type Answer = Result<Settings, ConnectionError>;
/// The name of the node for which `ssh -G` was run, and the answer.
type FirstAnswer = OnceLock<(String, Answer)>;
/// User, port and matching blocks.
type Group = (Option<String>, Option<u16>, Vec<usize>);

/// The answers of `ssh -G` with some options, by the blocks, user and port of the nodes.
struct Shared {
    read: Instant,
    blocks: Option<Blocks>,
    answers: Mutex<HashMap<Group, Arc<FirstAnswer>>>,
}

/// Returns the settings of a node from `query`, or from its result for another node that the same blocks match.
pub(super) fn shared(options: &SshOptions, login: &Login, home: &str, query: impl Fn() -> Answer) -> Answer {
    static ALL: LazyLock<Mutex<HashMap<SshOptions, Arc<Shared>>>> = LazyLock::new(Mutex::default);
    let name = login.node.as_str();
    let shared = {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current =
            |shared: &Shared| shared.read.elapsed() < FRESH && shared.blocks.as_ref().is_some_and(Blocks::is_current);
        all.retain(|_, shared| is_current(shared));
        let new =
            || Shared { read: Instant::now(), blocks: Blocks::read(options, home.into()), answers: Mutex::default() };
        all.entry(options.clone()).or_insert_with(|| Arc::new(new())).clone()
    };
    let effect = shared.blocks.as_ref().and_then(|blocks| blocks.effect(name));
    let Some(Effect { blocks, host }) = effect else { return query() };
    let group = (login.user.clone(), login.port, blocks);
    let answer = shared.answers.lock().unwrap_or_else(PoisonError::into_inner).entry(group).or_default().clone();
    let (of, answer) = answer.get_or_init(|| (name.to_owned(), query()));
    match answer {
        // The settings of another node apply only if `ssh -G` and this parser found the same host name for that node.
        Ok(settings) if of == name => Ok(settings.clone()),
        Ok(settings) if shared.blocks.as_ref().and_then(|b| b.effect(of)).is_some_and(|e| e.host == settings.host) => {
            Ok(Settings { host, ..settings.clone() })
        }
        _ => query(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::NodeId;

    struct Site {
        _temp: tempfile::TempDir,
        folder: Utf8PathBuf,
        options: SshOptions,
    }

    fn site(config: &str) -> Site {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap();
        fs::create_dir(folder.join(".ssh")).unwrap();
        fs::write(folder.join("config"), config).unwrap();
        let options = SshOptions { config: Some(folder.join("config")), ..SshOptions::default() };
        Site { _temp: temp, folder, options }
    }

    impl Site {
        fn blocks(&self) -> Option<Blocks> {
            Blocks::read(&self.options, &self.folder)
        }

        fn effect(&self, name: &str) -> (Vec<usize>, String) {
            let Effect { blocks, host } = self.blocks().unwrap().effect(name).unwrap();
            (blocks, host)
        }

        /// Returns the settings by `shared` and by `ssh -G`, and how often `ssh -G` was run for the former.
        fn both(&self, names: &[&str]) -> (Vec<Settings>, Vec<Settings>, usize) {
            let runs = std::cell::Cell::new(0);
            let login = |name: &str| Login { node: NodeId::new(name).unwrap(), user: None, port: None };
            let query = |name: &str| Settings::query(&self.options, &login(name));
            let one = |name: &&str| {
                let counted = || {
                    runs.set(runs.get() + 1);
                    query(name)
                };
                shared(&self.options, &login(name), self.folder.as_str(), counted).unwrap()
            };
            let shared = names.iter().map(one).collect();
            (shared, names.iter().map(|name| query(name).unwrap()).collect(), runs.get())
        }
    }

    const CLUSTER: &str = "\
Host gpu1
  HostName 10.0.0.1
Host gpu2
  HostName 10.0.0.2
Host gpu3 gpu4
  HostName %h.cluster
  Port 2200
Host gpu5
  HostKeyAlias five
Host gpu* !gpu9
  User ada
  IdentityFile /keys/gpu
";

    #[test]
    fn nodes_that_the_same_blocks_match_have_the_settings_that_ssh_gives_them() {
        let site = site(CLUSTER);
        let (shared, each, runs) = site.both(&["gpu1", "gpu2", "gpu3", "gpu4", "gpu5", "gpu6", "gpu9", "login"]);
        assert_eq!(shared, each);
        // gpu1, gpu2 and gpu6; gpu3 and gpu4; gpu5; gpu9 and login.
        assert_eq!(runs, 4);
    }

    #[test]
    fn nodes_whose_settings_may_depend_on_more_than_their_name_are_read_each() {
        for more in
            ["Match user ada\n  Port 2200\n", "CanonicalizeHostname yes\n", "Host \"a b\"\n", "Include ~/more\n"]
        {
            assert!(site(&format!("{CLUSTER}{more}")).blocks().is_none(), "{more}");
        }
        let site = site("Host gpu*\n  HostName a%%b\n");
        let (shared, each, runs) = site.both(&["gpu1", "gpu2"]);
        assert_eq!((shared, runs), (each, 2));
    }

    #[test]
    fn included_files_are_read_in_the_order_of_their_names() {
        let site = site("Include more/*.conf\nHost *\n  User ada\n");
        let more = site.folder.join(".ssh/more");
        fs::create_dir(&more).unwrap();
        fs::write(more.join("b.conf"), "Host gpu1\n  HostName second\n").unwrap();
        fs::write(more.join("a.conf"), "Host=gpu1\n  HostName=first\n").unwrap();
        fs::write(more.join("c.txt"), "Host gpu2\n  HostName third\n").unwrap();
        assert_eq!(site.effect("gpu1").1, "first");
        assert_eq!(site.effect("gpu2").1, "gpu2");
        assert_eq!(site.effect("gpu1").0, site.effect("gpu2").0);
    }
}

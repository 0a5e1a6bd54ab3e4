//! Hostfiles: lists of nodes, one per line.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt;

use crate::hostlist::{self, HostlistError};
use crate::node::shortest_ipv6;
use crate::{Node, NodeId};

/// The nodes of a hostfile, in its order. Rank 0 runs on the first.
///
/// ```text
/// # as in `colossalai run`: a name, an address or an alias of ~/.ssh/config
/// gpu01
/// gpu02 slots=8                       # as in DeepSpeed and Open MPI
/// gpu03:8                             # MPI: 8 slots
/// gpu[004-024,030] slots=8            # Slurm's ranges
/// me@gpu31                            # the user of SSH
/// me@gpu32:2222                       # the user and the port of SSH
/// gpu33:port=2222 slots=8             # the port without a user
/// 2001:db8::7 slots=8                 # an IPv6 address
/// me@[2001:db8::8]:2222 slots=8       # an IPv6 address and the port
/// fe80::9%eth0                        # an IPv6 address with its zone
/// ```
///
/// A number after a colon is the number of slots, as in MPI, unless the address has a user, is in brackets, or the number follows
/// `port=`. 22 and numbers of slots above 256 look like ports and are refused with a hint. A name with two colons is an IPv6 address,
/// so that the port of such an address needs brackets or `port=`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hostfile {
    /// The nodes.
    pub entries: Vec<Entry>,
}

/// A node of a hostfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name that SSH resolves.
    pub node: NodeId,
    /// The number of ranks that the node takes, if given.
    pub slots: Option<usize>,
    /// The user who logs in, if given; otherwise the SSH configuration decides.
    pub user: Option<String>,
    /// The port of the SSH server, if given; otherwise the SSH configuration decides.
    pub port: Option<u16>,
    /// The line number, from 1.
    pub line: usize,
}

/// The reason why a hostfile cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct HostfileError {
    /// The line number, from 1; `None` if the error concerns the whole file or a filter.
    pub line: Option<usize>,
    /// The reason for the error, with the values from the file.
    pub why: String,
    /// The hint: what to write instead.
    pub fix: String,
}

impl fmt::Display for HostfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.why),
            None => write!(f, "{}", self.why),
        }
    }
}

/// A selection of the nodes of a hostfile, as lists of names: `gpu[001-004],gpu009`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Uses only these nodes; `None` for all.
    pub include: Option<String>,
    /// Leaves out these nodes.
    pub exclude: Option<String>,
}

impl Hostfile {
    /// Reads the text of a hostfile.
    ///
    /// # Errors
    /// A line is not valid or lists a node a second time, or the file lists no nodes.
    pub fn parse(text: &str) -> Result<Hostfile, HostfileError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut line_of: BTreeMap<NodeId, usize> = BTreeMap::new();
        for (line, text) in (1..).zip(text.lines()) {
            let read = read_line(text).map_err(|(why, fix)| HostfileError { line: Some(line), why, fix })?;
            for entry in read.into_iter().map(|entry| Entry { line, ..entry }) {
                if let Some(first) = line_of.insert(entry.node.clone(), line) {
                    let why = format!("node {} is already listed in line {first}", entry.node);
                    let fix = format!("list each node once, with its ranks: `{} slots=8`", entry.node);
                    return Err(HostfileError { line: Some(line), why, fix });
                }
                entries.push(entry);
            }
        }
        if entries.is_empty() {
            let fix = "write one node per line, such as `gpu01 slots=8`";
            return Err(HostfileError { line: None, why: "the file lists no nodes".into(), fix: fix.into() });
        }
        Ok(Hostfile { entries })
    }

    /// Returns the nodes that a filter selects, in the file's order.
    ///
    /// # Errors
    /// The filter is not a list of names, names a node that is not in the file, or selects no node.
    pub fn select(&self, filter: &Filter) -> Result<Hostfile, HostfileError> {
        let include = filter.include.as_deref().map(|list| self.named(list, "--include")).transpose()?;
        let exclude = filter.exclude.as_deref().map(|list| self.named(list, "--exclude")).transpose()?;
        let wanted = |entry: &&Entry| {
            let name = entry.node.as_str();
            include.as_ref().is_none_or(|names| names.contains(name))
                && !exclude.as_ref().is_some_and(|names| names.contains(name))
        };
        let entries: Vec<Entry> = self.entries.iter().filter(wanted).cloned().collect();
        if entries.is_empty() {
            let why = format!("--include and --exclude leave none of the {} nodes in the hostfile", self.entries.len());
            return Err(HostfileError { line: None, why, fix: "change --include and --exclude".into() });
        }
        Ok(Hostfile { entries })
    }

    fn named(&self, list: &str, flag: &str) -> Result<BTreeSet<String>, HostfileError> {
        let error = |why: String, fix: String| HostfileError { line: None, why: format!("{flag} {list}: {why}"), fix };
        let names = hostlist::expand(list).map_err(|e| error(e.to_string(), fix_of(&e)))?;
        let known: Vec<&str> = self.entries.iter().map(|entry| entry.node.as_str()).collect();
        if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
            let fix = format!("the hostfile lists {}", hostlist::compress(&known));
            return Err(error(format!("{unknown} is not in the hostfile"), fix));
        }
        Ok(names.into_iter().collect())
    }

    /// Returns the nodes. A node whose line gives no number of slots gets `slots`.
    pub fn nodes(&self, slots: usize) -> Vec<Node> {
        self.entries.iter().map(|e| Node { id: e.node.clone(), slots: e.slots.unwrap_or(slots) }).collect()
    }
}

/// The reason why a line is invalid, and the hint.
type Wrong = (String, String);

fn wrong<T>(why: impl Into<String>, fix: impl Into<String>) -> Result<T, Wrong> {
    Err((why.into(), fix.into()))
}

/// Reads a line. Returns several entries for a range, and none for an empty line.
fn read_line(line: &str) -> Result<Vec<Entry>, Wrong> {
    let line = without_comment(line);
    // Open MPI allows blanks around `=`.
    let line = line.split('=').map(str::trim).collect::<Vec<_>>().join("=");
    let mut words = line.split_whitespace();
    let Some(address) = words.next() else { return Ok(Vec::new()) };
    let Address { user, list, mut slots, mut port } = read_address(address)?;
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            return wrong(format!("{word:?} is not key=value"), "write one node per line, as in `gpu01 slots=8`");
        };
        match key {
            "slots" if slots.is_some() => return wrong("slots is given twice", "give it once"),
            "slots" => slots = Some(read_slots(value)?),
            "port" if port.is_some() => return wrong("port is given twice", "give it once"),
            "port" => port = Some(read_port(value)?),
            // Open MPI's limit of oversubscription, which vidtui does not use.
            "max_slots" | "max-slots" => {}
            _ => return wrong(format!("the key {key:?} is unknown"), "the keys are slots and port"),
        }
    }
    let names = hostlist::expand(list).map_err(|e| (e.to_string(), fix_of(&e)))?;
    let entry = |name: String| {
        let fix = if name.contains(':') { IPV6_FIX } else { "write a name that `ssh` accepts" };
        let node = NodeId::new(name).map_err(|e| (e.to_string(), fix.to_owned()))?;
        Ok(Entry { node, slots, user: user.map(Into::into), port, line: 0 })
    };
    names.into_iter().map(entry).collect()
}

/// Removes a comment, which begins at the start of the line or after a blank.
fn without_comment(line: &str) -> &str {
    let begins = |at: &usize| line[..*at].chars().next_back().is_none_or(char::is_whitespace);
    let comment = line.match_indices('#').map(|(at, _)| at).find(begins);
    &line[..comment.unwrap_or(line.len())]
}

/// The hint for text with several colons that is not an IPv6 address.
const IPV6_FIX: &str = "write `2001:db8::1`, or with a port `[2001:db8::1]:2222`; other names have at most one colon";

/// The first word of a line: `user@list:number`.
struct Address<'a> {
    user: Option<&'a str>,
    list: &'a str,
    slots: Option<usize>,
    port: Option<u16>,
}

fn read_address(word: &str) -> Result<Address<'_>, Wrong> {
    let (user, rest) = match word.split_once('@') {
        Some((user, rest)) if is_user(user) => (Some(user), rest),
        Some((user, _)) => return wrong(format!("{user:?} is not a user name"), "write `user@node`"),
        None => (None, word),
    };
    let whole = Address { user, list: rest, slots: None, port: None };
    // Brackets without a colon contain ranges.
    let in_brackets = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    if let Some((address, after)) = in_brackets.filter(|(address, _)| address.contains(':')) {
        if shortest_ipv6(address).is_none() {
            return wrong(format!("{address:?} is not an IPv6 address"), IPV6_FIX);
        }
        let port = match after.strip_prefix(':') {
            Some(port) => Some(read_port(port.strip_prefix("port=").unwrap_or(port))?),
            None if after.is_empty() => None,
            None => return wrong(format!("{word:?} has text after the brackets"), IPV6_FIX),
        };
        return Ok(Address { list: address, port, ..whole });
    }
    let Some((list, number)) = rest.split_once(':') else { return Ok(whole) };
    // Only an IPv6 address has two colons.
    if number.contains(':') {
        return Ok(whole);
    }
    let address = Address { list, ..whole };
    if let Some(port) = number.strip_prefix("port=") {
        return Ok(Address { port: Some(read_port(port)?), ..address });
    }
    if user.is_some() {
        return Ok(Address { port: Some(read_port(number)?), ..address });
    }
    let slots = read_slots(number)?;
    if slots == 22 || slots > 256 {
        let fix = format!("write `{list}:port={slots}` for a port, or `{list} slots={slots}` for ranks");
        return wrong(format!("a number after a colon means slots, as in MPI, and {slots} looks like a port"), fix);
    }
    Ok(Address { slots: Some(slots), ..address })
}

/// Returns whether a name is valid for `ssh -l` and cannot be confused with an option or an address.
fn is_user(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '$' | '\\');
    !name.is_empty() && !name.starts_with('-') && name.chars().all(allowed)
}

fn read_slots(text: &str) -> Result<usize, Wrong> {
    match text.parse() {
        Ok(0) => wrong("a node with 0 slots takes no ranks", "remove the node"),
        Ok(slots) if slots <= 65_536 => Ok(slots),
        _ => wrong(format!("{text:?} is not a number of slots"), "write the number of GPUs, as in slots=8"),
    }
}

fn read_port(text: &str) -> Result<u16, Wrong> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => wrong(format!("{text:?} is not a port"), "write a number from 1 to 65535"),
    }
}

fn fix_of(error: &HostlistError) -> String {
    match error {
        HostlistError::NoName { .. } => "write a name before and after each comma",
        HostlistError::Brackets { .. } => "write ranges as in gpu[001-024,030]",
        HostlistError::NotARange { .. } => "write ranges of whole numbers, as in gpu[001-024,030]",
        HostlistError::Backwards { .. } => "write the smaller number first",
        HostlistError::TooMany { .. } => "check both ends of the range",
    }
    .into()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use insta::assert_snapshot;
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> Vec<String> {
        let show = |e: &Entry| {
            let slots = e.slots.map_or("-".into(), |slots| slots.to_string());
            let port = e.port.map_or("-".into(), |port| port.to_string());
            format!("{} slots {slots} user {} port {port}", e.node, e.user.as_deref().unwrap_or("-"))
        };
        Hostfile::parse(text).unwrap().entries.iter().map(show).collect()
    }

    #[test]
    fn every_common_hostfile_syntax_is_read() {
        let cases = [
            ("gpu01", "gpu01 slots - user - port -"),
            ("  10.0.0.7\t", "10.0.0.7 slots - user - port -"),
            ("gpu01 slots=8", "gpu01 slots 8 user - port -"),
            ("gpu01 slots = 8 max_slots=16  # ours", "gpu01 slots 8 user - port -"),
            ("gpu01:8", "gpu01 slots 8 user - port -"),
            ("me@gpu01", "gpu01 slots - user me port -"),
            ("me@gpu01:8", "gpu01 slots - user me port 8"),
            ("me@gpu01:2222 slots=8\r", "gpu01 slots 8 user me port 2222"),
            ("gpu01:port=2222", "gpu01 slots - user - port 2222"),
            ("gpu01 port=22 slots=4", "gpu01 slots 4 user - port 22"),
            ("::1 slots=2", "::1 slots 2 user - port -"),
            ("2001:db8::1", "2001:db8::1 slots - user - port -"),
            ("2001:DB8:0:0::1 slots=8 max_slots=16", "2001:db8::1 slots 8 user - port -"),
            ("[::1]", "::1 slots - user - port -"),
            ("[2001:db8::1]:22 slots=8", "2001:db8::1 slots 8 user - port 22"),
            ("[2001:db8::1]:port=2222", "2001:db8::1 slots - user - port 2222"),
            ("2001:db8::1 port=2222", "2001:db8::1 slots - user - port 2222"),
            ("me@::1", "::1 slots - user me port -"),
            ("me@[::1]:2222", "::1 slots - user me port 2222"),
            ("fe80::1%eth0", "fe80::1%eth0 slots - user - port -"),
            ("[fe80::1%eth0]:22", "fe80::1%eth0 slots - user - port 22"),
            ("::ffff:10.0.0.7", "::ffff:10.0.0.7 slots - user - port -"),
        ];
        for (line, entry) in cases {
            assert_eq!(shown(line), [entry], "{line}");
        }
    }

    #[test]
    fn every_node_of_a_range_has_the_settings_of_its_line() {
        assert_eq!(
            shown("# ours\nme@gpu[09-10,12]:22 slots=8\n\nlogin"),
            [
                "gpu09 slots 8 user me port 22",
                "gpu10 slots 8 user me port 22",
                "gpu12 slots 8 user me port 22",
                "login slots - user - port -",
            ]
        );
        let lines: Vec<usize> =
            Hostfile::parse("# ours\na[1-2]\n\nb").unwrap().entries.iter().map(|e| e.line).collect();
        assert_eq!(lines, [2, 2, 4]);
    }

    #[test]
    fn a_range_of_ipv6_addresses_is_read() {
        assert_eq!(
            shown("me@2001:db8::[9-10] slots=8"),
            ["2001:db8::9 slots 8 user me port -", "2001:db8::10 slots 8 user me port -"]
        );
    }

    #[test]
    fn nodes_without_slots_get_the_default() {
        let nodes = Hostfile::parse("a\nb slots=4").unwrap().nodes(8);
        assert_eq!(nodes.iter().map(|n| (n.id.as_str(), n.slots)).collect::<Vec<_>>(), [("a", 8), ("b", 4)]);
    }

    #[test]
    fn every_mistake_is_reported_with_its_line_and_a_hint() {
        let mistakes = [
            "",
            "# nothing\n\n",
            "a\nb\na slots=8",
            "gpu[1-3]\ngpu2",
            "gpu[3-1]",
            "gpu[1-3",
            "gpu[1-x]",
            "gpu[1-99999999]",
            "gpu01:22",
            "gpu01:2222",
            "gpu01:eight",
            "gpu01 slots=0",
            "gpu01 slots=",
            "gpu01 slots=8 slots=8",
            "gpu01:8 slots=8",
            "gpu01 gpus=8",
            "gpu01 gpu02",
            "me@gpu01:0",
            "me@gpu01:99999",
            "me@:22",
            "@gpu01",
            "-oProxyCommand=x@gpu01",
            "gpu/01",
            "[::g]",
            "[::1]8",
            "[::1]:eight",
            "gpu01:8:2",
            "::1\n[0::1] slots=8",
            "a,,b",
        ];
        let reports = mistakes.map(|text| {
            let error = Hostfile::parse(text).unwrap_err();
            format!("{text:?}\n  {error}\n  hint: {}", error.fix)
        });
        assert_snapshot!(reports.join("\n"));
    }

    #[test]
    fn a_filter_keeps_the_order_of_the_file() {
        let file = Hostfile::parse("gpu[01-04]\nlogin").unwrap();
        let names = |include: &str, exclude: &str| {
            let some = |list: &str| (!list.is_empty()).then(|| list.to_owned());
            let selected = file.select(&Filter { include: some(include), exclude: some(exclude) });
            selected.map(|f| f.entries.iter().map(|e| e.node.to_string()).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(names("", "").unwrap(), "gpu01 gpu02 gpu03 gpu04 login");
        assert_eq!(names("login,gpu[01-02]", "").unwrap(), "gpu01 gpu02 login");
        assert_eq!(names("", "login").unwrap(), "gpu01 gpu02 gpu03 gpu04");
        assert_eq!(names("gpu[01-03]", "gpu02").unwrap(), "gpu01 gpu03");
        let file = Hostfile::parse("gpu01\n[2001:db8::1]:2222\n2001:db8::2\nfe80::1%eth0").unwrap();
        let names_of = |include: &str| {
            let selected = file.select(&Filter { include: Some(include.to_owned()), exclude: None }).unwrap();
            selected.entries.iter().map(|e| e.node.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names_of("[2001:db8::1],gpu01"), "gpu01 2001:db8::1");
        assert_eq!(names_of("2001:DB8:0::[1-2]"), "2001:db8::1 2001:db8::2");
        assert_eq!(names_of("fe80::1%eth0"), "fe80::1%eth0");
        let errors = [("gpu09", ""), ("", "gpu[1-x]"), ("gpu01", "gpu01")].map(|(include, exclude)| {
            let error = names(include, exclude).unwrap_err();
            format!("{error} | {}", error.fix)
        });
        assert_snapshot!(errors.join("\n"));
    }

    #[test]
    fn the_example_hostfiles_are_valid() {
        let slots = ["one-node", "rig", "lambda-24-nodes"].map(|name| {
            let file = Hostfile::parse(&fs::read_to_string(format!("../../hostfiles/{name}.txt")).unwrap()).unwrap();
            file.nodes(0).iter().map(|node| node.slots).sum::<usize>()
        });
        assert_eq!(slots, [8, 4, 192]);
    }

    prop_compose! {
        fn any_entry()(name in "[a-z][a-z0-9.-]{0,8}", slots in prop::option::of(1usize..=256), user in prop::option::of("[a-z][a-z0-9_-]{0,6}"),
                       port in prop::option::of(1u16..)) -> (String, Option<usize>, Option<String>, Option<u16>) {
            (name, slots, user, port)
        }
    }

    proptest! {
        #[test]
        fn a_hostfile_survives_a_round_trip(entries in prop::collection::btree_map("[a-z][a-z0-9.-]{0,8}", any_entry(), 1..20)) {
            let mut text = String::new();
            for (name, (_, slots, user, port)) in &entries {
                text += &user.as_ref().map_or(String::new(), |user| format!("{user}@"));
                text += name;
                text += &port.map_or(String::new(), |port| format!(":port={port}"));
                text += &slots.map_or(String::new(), |slots| format!(" slots={slots}"));
                text += "\n";
            }
            let read = Hostfile::parse(&text).unwrap().entries;
            prop_assert_eq!(read.len(), entries.len());
            for (entry, (name, (_, slots, user, port))) in read.iter().zip(&entries) {
                prop_assert_eq!((entry.node.as_str(), entry.slots, &entry.user, entry.port), (name.as_str(), *slots, user, *port));
            }
        }

        #[test]
        fn an_ipv6_address_survives_a_round_trip(bits in any::<u128>(), zone in prop::option::of("[a-z][a-z0-9.-]{0,8}"), slots in prop::option::of(1usize..=256),
                                                  user in prop::option::of("[a-z][a-z0-9_-]{0,6}"), port in prop::option::of(1u16..)) {
            let address = std::net::Ipv6Addr::from(bits);
            let name = zone.map_or(address.to_string(), |zone| format!("{address}%{zone}"));
            let mut text = user.as_ref().map_or(String::new(), |user| format!("{user}@"));
            text += &port.map_or(name.clone(), |port| format!("[{name}]:{port}"));
            text += &slots.map_or(String::new(), |slots| format!(" slots={slots}"));
            let read = Hostfile::parse(&text).unwrap().entries.remove(0);
            prop_assert_eq!((read.node.as_str(), read.slots, read.user, read.port), (name.as_str(), slots, user, port));
        }

        #[test]
        fn no_text_panics(text in r"([a-c@:=#\[\],\-0-9 ]|slots|port|\n|é){0,30}|.{0,80}") {
            let _ = Hostfile::parse(&text);
        }
    }
}

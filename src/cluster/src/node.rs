//! A node with its name and slots, and the number of a rank.

use std::fmt;
use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

/// The name of a node: letters, digits, `.`, `_` and `-`, or an IPv6 address in its shortest form, which may have a zone:
/// `fe80::1%eth0`. [`NodeId::file_name`] is its form in paths.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId(String);

/// The error for an invalid node name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a valid node name: use letters, digits, '.', '_' and '-', and do not begin with '.', or write an IPv6 address"
)]
pub struct NodeIdError {
    /// The name as given.
    pub name: String,
}

impl NodeId {
    /// Validates the name of a node. An IPv6 address becomes its shortest form, so that each address is one node.
    ///
    /// # Errors
    /// The name is empty, begins with a dot or contains a character that is not allowed, and is not an IPv6 address.
    pub fn new(name: impl Into<String>) -> Result<Self, NodeIdError> {
        let name = name.into();
        if let Some(address) = shortest_ipv6(&name) {
            return Ok(NodeId(address));
        }
        if name.is_empty() || name.starts_with('.') || !name.chars().all(is_allowed) {
            return Err(NodeIdError { name });
        }
        Ok(NodeId(name))
    }

    /// Makes a valid name from any hostname: replaces characters that are not allowed with `-`, and removes dots at both ends.
    pub fn from_hostname(hostname: &str) -> Self {
        let name: String =
            hostname.chars().map(|c| if is_allowed(c) { c } else { '-' }).collect::<String>().trim_matches('.').into();
        NodeId(if name.is_empty() { "localhost".into() } else { name })
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name for file and folder names. An IPv6 address has `+` in place of `:`, which separates paths in lists of paths,
    /// and `@` in place of `%`, which NCCL and others expand in paths. No name contains `+` or `@`.
    pub fn file_name(&self) -> String {
        self.0.replace(':', "+").replace('%', "@")
    }

    /// Returns the node with this [`NodeId::file_name`]; `None` if no node has it.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let node = NodeId::new(name.replace('+', ":").replace('@', "%")).ok()?;
        (node.file_name() == name).then_some(node)
    }

    /// Returns whether the name is an IPv6 address.
    pub fn is_ipv6(&self) -> bool {
        self.0.contains(':')
    }
}

/// Returns an IPv6 address in its shortest form (RFC 5952), with its zone; `None` if the text is not an IPv6 address.
pub(crate) fn shortest_ipv6(text: &str) -> Option<String> {
    let (address, zone) = match text.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (text, None),
    };
    let address: Ipv6Addr = address.parse().ok()?;
    match zone {
        None => Some(address.to_string()),
        Some(zone) => (!zone.is_empty() && zone.chars().all(is_allowed)).then(|| format!("{address}%{zone}")),
    }
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for NodeId {
    type Error = NodeIdError;

    fn try_from(name: String) -> Result<Self, NodeIdError> {
        NodeId::new(name)
    }
}

impl From<NodeId> for String {
    fn from(id: NodeId) -> String {
        id.0
    }
}

/// The number of a rank, counted from 0 over all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub usize);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A node and the number of ranks that can run on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The name.
    pub id: NodeId,
    /// The maximum number of ranks: one for each GPU. On a node without GPUs, the ranks share the CPU.
    pub slots: usize,
}

impl Node {
    /// Makes the node of this machine, with slots for `slots` ranks.
    pub fn local(hostname: &str, slots: usize) -> Self {
        Node { id: NodeId::from_hostname(hostname), slots }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_safe_as_a_file_name_is_refused() {
        for name in [
            "",
            "..",
            ".hidden",
            "a/b",
            "../up",
            "a b",
            "knoten-ü",
            "a:b",
            "a+b",
            "gpu01%eth0",
            "::1%",
            "::1%a/b",
            "1::2::3",
        ] {
            assert_eq!(NodeId::new(name), Err(NodeIdError { name: name.into() }));
        }
        assert_eq!(NodeId::new("ml-64-003.lan").map(|id| id.to_string()), Ok("ml-64-003.lan".into()));
    }

    #[test]
    fn an_ipv6_address_becomes_its_shortest_form() {
        let cases = [
            ("::1", "::1"),
            ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
            ("2001:db8::0001", "2001:db8::1"),
            ("::ffff:10.0.0.7", "::ffff:10.0.0.7"),
            ("FE80::1%eth0.100", "fe80::1%eth0.100"),
        ];
        for (given, name) in cases {
            let node = NodeId::new(given).unwrap();
            assert_eq!((node.as_str(), node.is_ipv6()), (name, true), "{given}");
        }
        assert!(!NodeId::new("10.0.0.7").unwrap().is_ipv6());
    }

    #[test]
    fn every_name_is_recovered_from_its_file_name() {
        let cases = [
            ("ml-64-003.lan", "ml-64-003.lan"),
            ("::1", "++1"),
            ("2001:db8::1", "2001+db8++1"),
            ("fe80::1%eth0", "fe80++1@eth0"),
        ];
        for (name, file) in cases {
            let node = NodeId::new(name).unwrap();
            assert_eq!(node.file_name(), file);
            assert_eq!(NodeId::from_file_name(file), Some(node));
        }
        for other in ["::1", "fe80++1%eth0", "2001+DB8++1", "a+b", ".hidden"] {
            assert_eq!(NodeId::from_file_name(other), None, "{other}");
        }
    }

    #[test]
    fn any_hostname_becomes_a_valid_name() {
        let names = ["ml-1", "my laptop", "", "...", "büro"].map(|name| NodeId::from_hostname(name).to_string());
        assert_eq!(names, ["ml-1", "my-laptop", "localhost", "localhost", "b-ro"]);
    }
}

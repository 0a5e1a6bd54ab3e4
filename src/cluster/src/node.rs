//! A node with its name and slots, and the number of a rank.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The name of a node: letters, digits, `.`, `_` and `-`, because it is part of file and folder names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId(String);

/// The error for an invalid node name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a valid node name: use letters, digits, '.', '_' and '-', and do not begin with '.'")]
pub struct NodeIdError {
    /// The name as given.
    pub name: String,
}

impl NodeId {
    /// Validates the name of a node.
    ///
    /// # Errors
    /// The name is empty, begins with a dot or contains a character that is not allowed.
    pub fn new(name: impl Into<String>) -> Result<Self, NodeIdError> {
        let name = name.into();
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
        for name in ["", "..", ".hidden", "a/b", "../up", "a b", "knoten-ü"] {
            assert_eq!(NodeId::new(name), Err(NodeIdError { name: name.into() }));
        }
        assert_eq!(NodeId::new("ml-64-003.lan").map(|id| id.to_string()), Ok("ml-64-003.lan".into()));
    }

    #[test]
    fn any_hostname_becomes_a_valid_name() {
        let names = ["ml-1", "my laptop", "", "...", "büro"].map(|name| NodeId::from_hostname(name).to_string());
        assert_eq!(names, ["ml-1", "my-laptop", "localhost", "localhost", "b-ro"]);
    }
}

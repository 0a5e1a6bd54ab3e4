use std::fmt;

use serde::{Deserialize, Serialize};

/// The name of a machine: letters, digits, `.`, `_` and `-`, since folders and files are named after it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId(String);

/// Says why a name cannot be a node's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} cannot name a node: only letters, digits, '.', '_' and '-', not starting with '.'")]
pub struct NodeIdError {
    /// The name as it was given.
    pub name: String,
}

impl NodeId {
    /// Makes a node's name.
    ///
    /// # Errors
    /// When the name is empty, starts with a dot or holds a character that does not belong in a file name.
    pub fn new(name: impl Into<String>) -> Result<Self, NodeIdError> {
        let name = name.into();
        if name.is_empty() || name.starts_with('.') || !name.chars().all(is_allowed) {
            return Err(NodeIdError { name });
        }
        Ok(NodeId(name))
    }

    /// Makes a name out of what a machine calls itself, with `-` in place of characters that do not belong in one.
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

/// A process of a run, counted from 0 over all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub usize);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A machine and how many ranks it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub id: NodeId,
    /// Ranks it takes: one per GPU, or per share of its CPU.
    pub slots: usize,
}

impl Node {
    /// Describes this machine, with room for `slots` ranks.
    pub fn local(hostname: &str, slots: usize) -> Self {
        Node { id: NodeId::from_hostname(hostname), slots }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_leave_its_folder_is_refused() {
        for name in ["", "..", ".hidden", "a/b", "../up", "a b", "knoten-ü"] {
            assert_eq!(NodeId::new(name), Err(NodeIdError { name: name.into() }));
        }
        assert_eq!(NodeId::new("ml-64-003.lan").map(|id| id.to_string()), Ok("ml-64-003.lan".into()));
    }

    #[test]
    fn any_hostname_becomes_a_name() {
        let names = ["ml-1", "my laptop", "", "...", "büro"].map(|name| NodeId::from_hostname(name).to_string());
        assert_eq!(names, ["ml-1", "my-laptop", "localhost", "localhost", "b-ro"]);
    }
}

//! The answer of a node to the checks: named facts, one to a line.

use std::time::Duration;

use cluster::NodeId;
use plan::LaunchPlan;
use rundir::{ErrorCode, Failure};

use super::check::CheckId;

/// The details of a check that passed, or the reason why the check failed.
pub(super) type CheckResult = Result<String, Failure>;
/// A check of a node.
pub(super) type NodeCheck = (CheckId, CheckResult);
/// Creates the failure of a check from its code, the reason and the hint.
pub(super) type Fail<'a> = &'a dyn Fn(ErrorCode, String, &str) -> CheckResult;

/// The facts that a node reports.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NodeFacts {
    /// The lines of the answer: a name and the rest.
    lines: Vec<(String, String)>,
}

impl NodeFacts {
    /// Reads a complete answer. Returns `None` if it is truncated.
    pub fn read(text: &str) -> Option<Self> {
        let mut lines: Vec<&str> = text.lines().collect();
        (lines.pop()? == "end").then(|| Self {
            lines: lines
                .into_iter()
                .map(|line| line.split_once(' ').unwrap_or((line, "")))
                .map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()))
                .collect(),
        })
    }

    /// Returns the first fact of a name.
    pub fn get<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    /// Returns all facts of a name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.lines.iter().filter(move |(line, _)| line == name).map(|(_, rest)| rest.as_str())
    }
}

/// A complete answer of a node.
pub(super) struct NodeAnswer {
    /// The duration of a request and its answer.
    pub round_trip: Duration,
    /// The seconds by which the node's clock is ahead of this machine's.
    pub ahead_s: f64,
    pub facts: NodeFacts,
}

/// Returns the hint for leaving a node out of a launch.
pub(super) fn leave_out(plan: &LaunchPlan, node: &NodeId) -> String {
    match plan.attempt.slurm {
        Some(_) => format!("leave the node out (extra = [\"--exclude={node}\"] in the Slurm file)"),
        None => "leave the node out (--exclude)".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_only_when_it_is_complete() {
        let facts = NodeFacts::read("sha256 abc\nvisible yes\nend\n").unwrap();
        assert_eq!((facts.get("sha256"), facts.get("visible"), facts.get("broken")), (Some("abc"), Some("yes"), None));
        assert_eq!(NodeFacts::read("sha256 abc\nvisi"), None);
        assert_eq!(NodeFacts::read(""), None);
    }
}

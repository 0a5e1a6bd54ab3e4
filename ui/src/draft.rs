//! The data of the launch form: the draft, which has the arguments of `vidtui launch`, and the shell's answers to it.

use crate::conversion::ConvertOptions;
use camino::{Utf8Path, Utf8PathBuf};
use cluster::{NodeId, hostlist};
use plan::LaunchPlan;
use recipe::Settings;
use rundir::Failure;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A launch as the form describes it: the arguments of `vidtui launch`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LaunchDraft {
    /// A recipe file, or `CURRICULUM:STAGE`.
    pub recipe: String,
    /// The name of the run (`--name`).
    pub name: Option<String>,
    /// The weights that the run starts from: a path or a run (`--init`).
    pub init: Option<String>,
    /// The overridden keys as `section.key=value` (`--set`), in order.
    pub sets: Vec<String>,
    /// The machines on which the run starts.
    pub target: LaunchTarget,
    /// Whether the mesh is fitted to the ranks.
    pub fit: Fit,
    /// Whether the trainer is copied to the nodes (`--push`).
    pub push: bool,
    /// The names of the checks that may fail (`--waive`).
    pub waived: Vec<String>,
    /// How many times the user has requested the checks again.
    pub round: u32,
}

/// The machines of a launch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LaunchTarget {
    /// This machine, with a number of ranks; `None` for the size of the mesh.
    Local(Option<usize>),
    /// Nodes of a hostfile.
    Hostfile {
        /// The hostfile.
        path: Utf8PathBuf,
        /// A list of the only nodes to use.
        include: Option<String>,
        /// A list of the nodes to leave out.
        exclude: Option<String>,
    },
    /// The nodes that Slurm allocates for the request in this file.
    Slurm(Utf8PathBuf),
}

impl Default for LaunchTarget {
    fn default() -> Self {
        Self::Local(None)
    }
}

/// The fitting of the mesh to the ranks of the target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Fit {
    /// The mesh of the recipe.
    #[default]
    Off,
    /// Fitted to this number of ranks.
    To(usize),
    /// Fitted to the ranks that the target has.
    ToTarget,
}

impl LaunchTarget {
    /// Returns the hostfile; `None` for other targets.
    pub fn hostfile(&self) -> Option<&Utf8Path> {
        match self {
            Self::Hostfile { path, .. } => Some(path),
            Self::Local(_) | Self::Slurm(_) => None,
        }
    }

    /// Returns the file that describes the nodes: a hostfile or a Slurm request.
    pub fn file(&self) -> Option<&Utf8Path> {
        match self {
            Self::Hostfile { path, .. } | Self::Slurm(path) => Some(path),
            Self::Local(_) => None,
        }
    }

    /// Returns whether two targets are the same machine or the same file, with any choice of nodes.
    pub fn is_alike(&self, other: &Self) -> bool {
        self.file() == other.file()
    }

    /// Returns whether a node of the hostfile is used.
    pub fn uses(&self, node: &NodeId) -> bool {
        let Self::Hostfile { include, exclude, .. } = self else { return true };
        let names = |list: &Option<String>| list.as_ref().and_then(|list| hostlist::expand(list).ok());
        let has = |names: Vec<String>| names.iter().any(|name| name == node.as_str());
        names(include).is_none_or(has) && !names(exclude).is_some_and(has)
    }

    /// Leaves a node out, or uses it again. `listed` are all nodes of the hostfile.
    pub fn toggle(&mut self, node: &NodeId, listed: &[NodeId]) {
        let was_used = self.uses(node);
        let is_left_out = |other: &&NodeId| if *other == node { was_used } else { !self.uses(other) };
        let left_out: Vec<&str> = listed.iter().filter(is_left_out).map(NodeId::as_str).collect();
        if let Self::Hostfile { include, exclude, .. } = self {
            *include = None;
            *exclude = (!left_out.is_empty()).then(|| hostlist::compress(&left_out));
        }
    }

    /// Removes excluded nodes that the hostfile no longer lists. Returns whether there were any.
    pub fn forget_unlisted(&mut self, listed: &[NodeId]) -> bool {
        let Self::Hostfile { exclude, .. } = self else { return false };
        let Some(names) = exclude.as_ref().and_then(|list| hostlist::expand(list).ok()) else { return false };
        let listed: BTreeSet<&str> = listed.iter().map(NodeId::as_str).collect();
        let still: Vec<&String> = names.iter().filter(|name| listed.contains(name.as_str())).collect();
        if still.len() == names.len() {
            return false;
        }
        *exclude = (!still.is_empty()).then(|| hostlist::compress(&still));
        true
    }
}

impl LaunchDraft {
    /// Overrides a key, and replaces an earlier override.
    pub fn set(&mut self, set: &str) {
        self.unset(key_of(set));
        self.sets.push(set.to_owned());
    }

    /// Removes the override of a key.
    pub fn unset(&mut self, key: &str) {
        self.sets.retain(|set| key_of(set) != key);
    }

    /// Waives a check, or removes its waiver.
    pub fn toggle_waived(&mut self, check: &str) {
        match self.waived.iter().position(|name| name == check) {
            Some(at) => _ = self.waived.remove(at),
            None => self.waived.push(check.to_owned()),
        }
    }

    /// Returns the command that launches the same run. `ranks` is the number of ranks that the target has.
    pub fn command(&self, ranks: Option<usize>) -> String {
        let mut words = vec!["vidtui".to_owned(), "launch".to_owned(), self.recipe.clone()];
        let mut flag = |name: &str, value: &str| words.extend([name.to_owned(), value.to_owned()]);
        for set in &self.sets {
            flag("--set", set);
        }
        for (name, value) in [("--init", &self.init), ("--name", &self.name)] {
            if let Some(value) = value {
                flag(name, value);
            }
        }
        match &self.target {
            LaunchTarget::Local(ranks) => ranks.iter().for_each(|ranks| flag("--local", &ranks.to_string())),
            LaunchTarget::Slurm(path) => flag("--slurm", path.as_str()),
            LaunchTarget::Hostfile { path, include, exclude } => {
                flag("--hostfile", path.as_str());
                include.iter().for_each(|nodes| flag("--include", nodes));
                exclude.iter().for_each(|nodes| flag("--exclude", nodes));
            }
        }
        match (self.fit, ranks) {
            (Fit::To(ranks), _) | (Fit::ToTarget, Some(ranks)) => flag("--fit", &ranks.to_string()),
            (Fit::Off, _) | (Fit::ToTarget, None) => {}
        }
        for check in &self.waived {
            flag("--waive", check);
        }
        if self.push && self.target.hostfile().is_some() {
            words.push("--push".to_owned());
        }
        plan::command_line(&words)
    }
}

/// Returns the key of `section.key=value`.
pub fn key_of(set: &str) -> &str {
    set.split_once('=').map_or(set, |(key, _)| key).trim()
}

/// An answer of the shell to a draft.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum DraftMsg {
    /// The files of the draft were read. This is the first answer. The shell sends it again when a file has changed, and then plans and
    /// checks the launch again.
    Read {
        /// The files that have changed since the last time.
        changed: Vec<Utf8PathBuf>,
        /// What the files of the recipe set, or why they cannot be read.
        settings: Result<Box<Settings>, Failure>,
    },
    /// The other targets that can be chosen.
    Targets(Vec<LaunchTarget>),
    /// The mesh was fitted to this number of ranks.
    Fitted {
        /// The number of ranks.
        ranks: usize,
        /// The changes; none if the mesh fits already.
        changes: Option<String>,
    },
    /// The launch cannot be planned.
    Refused(Failure),
    /// The plan of the launch.
    Planned {
        /// The plan.
        plan: Box<LaunchPlan>,
        /// A hash of the files that the plan was made from.
        files: u64,
    },
    /// The checks so far.
    Checked {
        /// The checks, in order.
        checks: Vec<PreflightRow>,
        /// Whether `checks` has all checks.
        is_complete: bool,
        /// The conversion that makes the weights usable, if they need one.
        convert: Option<Box<ConvertOptions>>,
    },
}

/// A check of the launch, as the form shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreflightRow {
    /// The name of the check, as `--waive` takes it.
    pub name: String,
    /// The node; `None` for a check of the whole launch, or of several nodes that pass it.
    pub node: Option<NodeId>,
    /// The result of the check.
    pub result: PreflightResult,
    /// Whether `--waive` accepts the check.
    pub is_waivable: bool,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PreflightResult {
    /// The check has no result yet.
    Pending,
    /// The check passed; the text gives the values.
    Passed(String),
    /// The check failed.
    Failed(Failure),
    /// The check failed and is waived.
    Waived(Failure),
    /// The check was not run, because it needs others to pass; the text names them.
    Unknown(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Vec<NodeId> {
        (1..=4).map(|n| NodeId::new(format!("gpu{n:02}")).unwrap()).collect()
    }

    #[test]
    fn nodes_are_left_out_and_used_again_one_by_one() {
        let include = Some("gpu[01-03]".to_owned());
        let mut target = LaunchTarget::Hostfile { path: "h.txt".into(), include, exclude: None };
        let nodes = nodes();
        let used = |target: &LaunchTarget| nodes.iter().map(|node| target.uses(node)).collect::<Vec<_>>();
        assert_eq!(used(&target), [true, true, true, false]);
        target.toggle(&nodes[1], &nodes);
        assert_eq!(used(&target), [true, false, true, false]);
        target.toggle(&nodes[3], &nodes);
        assert_eq!(used(&target), [true, false, true, true]);
        assert!(!target.forget_unlisted(&nodes));
        assert!(target.forget_unlisted(&nodes[2..]));
        assert_eq!(target, LaunchTarget::Hostfile { path: "h.txt".into(), include: None, exclude: None });
    }

    #[test]
    fn a_draft_is_a_command() {
        let mut draft = LaunchDraft { recipe: "a b.toml".into(), ..LaunchDraft::default() };
        draft.set("train.steps=7");
        draft.set("name=x");
        draft.set("train.steps = 9");
        draft.unset("name");
        draft.target = LaunchTarget::Hostfile { path: "h.txt".into(), include: None, exclude: Some("gpu02".into()) };
        draft.toggle_waived("GPU memory");
        draft.toggle_waived("clock");
        draft.toggle_waived("clock");
        (draft.fit, draft.push) = (Fit::ToTarget, true);
        let on_nodes = draft.command(Some(24));
        draft.target = LaunchTarget::Local(Some(2));
        (draft.init, draft.fit) = (Some("latest".into()), Fit::Off);
        insta::assert_snapshot!(format!("{on_nodes}\n{}", draft.command(Some(2))));
    }
}

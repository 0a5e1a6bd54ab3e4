//! Which nodes there are to watch, and what nvidia-smi says on one.

use crate::args::NodesArgs;
use crate::refusal::Refusal;
use crate::workspace::Workspace;
use cluster::Node;
use cluster::slurm::SlurmNode;
use plan::Target;
use remote::{Command, Local, Shell, Status};
use rundir::{Failure, Login, RunDir};
use std::time::Duration;
use ui::fleet::{FleetSource, ListedNode};

/// nvidia-smi is ended before this, unless it cannot be.
const SMI: Duration = Duration::from_secs(30);

/// Asks unless one of before hangs, for they would pile up: the kernel does not let go of it, so that nobody can end it.
const SMI_SCRIPT: &str = "ps -C nvidia-smi -o stat=,etimes= |
while read -r state age; do case $state in D*) [ $age -lt 30 ] || exit 124 ;; esac; done || exit
timeout -k 2 20 nvidia-smi 2>&1";

impl Workspace {
    /// The nodes to watch, and how each is reached.
    ///
    /// # Errors
    /// When the hostfile, or the run's attempt, cannot be read.
    pub fn nodes_of(&self, of: &FleetSource) -> Result<Vec<(ListedNode, Login)>, Failure> {
        match of {
            FleetSource::Given => self.nodes_given(&self.nodes).map_err(Refusal::into_failure),
            FleetSource::Run(run) => self.nodes_of_run(&self.dir(run)),
        }
    }

    /// The nodes that a command names: those of a hostfile, those of the partition that a Slurm file names, or this machine.
    ///
    /// # Errors
    /// When the file cannot be used, or Slurm does not answer.
    pub fn nodes_given(&self, nodes: &NodesArgs) -> Result<Vec<(ListedNode, Login)>, Refusal> {
        let nodes = self.wanted(nodes);
        if let Some(path) = &nodes.slurm {
            let spec = self.slurm_spec(path)?;
            let found = self.fleet.partition_nodes(&spec)?;
            let listed = |slurm: SlurmNode| {
                let node = Node { id: slurm.node.clone(), slots: spec.gpus_per_node };
                (ListedNode { node, slurm: Some(slurm.clone()) }, Login::by_name(slurm.node))
            };
            return Ok(found.into_iter().map(listed).collect());
        }
        let Some(path) = &nodes.hostfile else {
            return Ok(self.this_machine());
        };
        let chosen = self.hostfile(path, nodes)?;
        Ok(with_logins(Target::hostfile(&chosen, chosen.entries.len(), "")))
    }

    /// This machine, as a list of nodes.
    pub fn this_machine(&self) -> Vec<(ListedNode, Login)> {
        let here = self.fleet.this_node().node.clone();
        vec![(Node { id: here.clone(), slots: 1 }.into(), Login::by_name(here))]
    }

    /// The nodes that the newest attempt of a run is on; those of its allocation, when it is a Slurm job.
    ///
    /// # Errors
    /// When the run cannot be read, or Slurm has not chosen its nodes yet.
    pub fn nodes_of_run(&self, dir: &RunDir) -> Result<Vec<(ListedNode, Login)>, Failure> {
        let Some(attempt) = dir.latest_attempt()? else { return Ok(Vec::new()) };
        let mut listed = with_logins(Target::of(&attempt));
        let Some(slurm) = &attempt.slurm else { return Ok(listed) };
        if listed.is_empty() {
            let job = slurm.job.map_or_else(|| "its job".into(), |job| format!("job {job}"));
            let why = format!("{job} has not begun to train, and Slurm chooses its nodes before it does");
            let fix = format!("see what it waits for: vidtui status {}", dir.name());
            return Err(Failure::new(
                rundir::ErrorCode::Unclassified,
                format!("{} has no nodes yet", dir.name()),
                why,
                fix,
            ));
        }
        let known = self.fleet.slurm_nodes(self.patience);
        for (listed, _) in &mut listed {
            let of_it = |node: &&SlurmNode| node.node == listed.node.id;
            let wanted = |node: &&SlurmNode| slurm.spec.partition.as_ref().is_none_or(|name| *name == node.partition);
            let found = known.iter().filter(of_it).find(wanted).or_else(|| known.iter().find(of_it));
            listed.slurm = found.cloned();
        }
        Ok(listed)
    }

    /// Where the nodes of [`FleetSource::Given`] come from, for people to read.
    pub fn nodes_from(&self) -> String {
        match (&self.simulate, &self.nodes) {
            (Some(nodes), _) => format!("{nodes} made-up nodes"),
            (None, NodesArgs { slurm: Some(path), .. }) => format!("Slurm file {path}"),
            (None, NodesArgs { hostfile: Some(path), .. }) => format!("hostfile {path}"),
            (None, _) => "this machine".into(),
        }
    }

    /// What nvidia-smi prints on a node.
    ///
    /// # Errors
    /// When the node cannot be reached, or nvidia-smi fails there.
    pub fn smi(&self, login: &Login) -> Result<String, Failure> {
        let what = format!("cannot run nvidia-smi on {}", login.node);
        let command = Command::new("run nvidia-smi", SMI_SCRIPT, SMI);
        let output = match self.fleet.may_be_this_node(login) {
            true => Local::new().and_then(|mut here| here.run(&command)),
            false => self.fleet.ssh(login).run(&command),
        };
        let output = output.map_err(|error| error.failure(&*what))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status {
            Status::Code(0) => Ok(said),
            Status::Code(127) => Err(Failure::new(
                rundir::ErrorCode::Unclassified,
                what,
                "it is not installed there",
                "install the driver's utilities, if it has GPUs",
            )),
            Status::Code(124 | 137) => {
                let fix = "see `dmesg` on the node for Xid errors; a hung driver takes a reboot";
                Err(Failure::new(rundir::ErrorCode::Unclassified, what, "it hangs", fix))
            }
            // A part of its table with an error among it is worth more than the error alone.
            _ if said.contains("NVIDIA-SMI ") && said.contains("|==") => Ok(said),
            _ => Err(Failure::new(rundir::ErrorCode::Unclassified, what, said.trim(), "run it on the node by hand")),
        }
    }
}

fn with_logins(target: Target) -> Vec<(ListedNode, Login)> {
    let Target { nodes, logins, .. } = target;
    let login = |node: &Node| {
        logins.iter().find(|login| login.node == node.id).cloned().unwrap_or_else(|| Login::by_name(node.id.clone()))
    };
    nodes.into_iter().map(|node| (login(&node), node)).map(|(login, node)| (node.into(), login)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_an_nvidia_smi_hangs_no_other_is_started() {
        let bin = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            // Written by another process: one that another test starts meanwhile would hold a file open that this one writes,
            // and what is open for writing cannot be executed.
            let write = std::process::Command::new("sh")
                .args(["-c", "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod 755 \"$0\""])
                .args([bin.path().join(name).as_os_str(), text.as_ref()])
                .status();
            assert!(write.unwrap().success());
        };
        let asked = |seen: &str| {
            write("ps", &format!("printf '{seen}'"));
            let mut sh = std::process::Command::new("sh");
            sh.args(["-c", SMI_SCRIPT]).env("PATH", format!("{}:/usr/bin:/bin", bin.path().display()));
            let output = sh.output().unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        write("nvidia-smi", "echo a table");
        let answers = (Some(0), "a table\n".to_owned());
        // Somebody watches GPUs all day; another one waits for the driver, as each does for a moment.
        for seen in ["", "S    90000\\n", "D    3\\nS 40\\n"] {
            assert_eq!(asked(seen), answers, "{seen}");
        }
        assert_eq!(asked("S    90000\\nD    31\\n"), (Some(124), String::new()));
    }
}

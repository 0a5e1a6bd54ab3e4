//! Lists the nodes to watch, and runs nvidia-smi on a node.

use crate::args::NodesArgs;
use crate::command_error::CommandError;
use crate::workspace::Workspace;
use cluster::Node;
use cluster::slurm::SlurmNode;
use plan::Target;
use remote::{Command, Local, Shell, Status};
use rundir::{ErrorCode, Failure, Login, RunDir};
use std::time::Duration;
use ui::fleet::{FleetSource, ListedNode};

/// The time limit of [`SMI_SCRIPT`]. In the script, `timeout` ends nvidia-smi earlier, unless the driver blocks it.
const SMI: Duration = Duration::from_secs(30);

/// Runs nvidia-smi, unless an earlier one hangs in the kernel: such processes cannot be killed and would accumulate.
const SMI_SCRIPT: &str = "ps -C nvidia-smi -o stat=,etimes= |
while read -r state age; do case $state in D*) [ $age -lt 30 ] || exit 124 ;; esac; done || exit
timeout -k 2 20 nvidia-smi 2>&1";

impl Workspace {
    /// Returns the nodes to watch, each with its login.
    ///
    /// # Errors
    /// The hostfile, the Slurm file or the run cannot be read, or Slurm does not answer.
    pub fn nodes_of(&self, of: &FleetSource) -> Result<Vec<(ListedNode, Login)>, Failure> {
        match of {
            FleetSource::Given => self.nodes_given(&self.nodes).map_err(CommandError::into_failure),
            FleetSource::Hostfile(path) => {
                let nodes = NodesArgs { hostfile: Some(path.clone()), ..NodesArgs::default() };
                self.nodes_given(&nodes).map_err(CommandError::into_failure)
            }
            FleetSource::Run(run) => self.nodes_of_run(&self.dir(run)),
        }
    }

    /// Returns the nodes that a command names: those of a hostfile, those of the partition in a Slurm file, or this machine.
    ///
    /// # Errors
    /// When the file cannot be used, or Slurm does not answer.
    pub fn nodes_given(&self, nodes: &NodesArgs) -> Result<Vec<(ListedNode, Login)>, CommandError> {
        let nodes = self.wanted(nodes);
        if let Some(path) = &nodes.slurm {
            let (spec, _) = self.slurm_spec(path)?;
            let found = self.connections.partition_nodes(&spec)?;
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
        Ok(with_logins(Target::hostfile(&chosen, chosen.entries.len(), 0, "")))
    }

    /// Returns this machine as a list of nodes.
    pub fn this_machine(&self) -> Vec<(ListedNode, Login)> {
        let here = self.connections.this_node().node.clone();
        vec![(Node { id: here.clone(), slots: 1 }.into(), Login::by_name(here))]
    }

    /// Returns the nodes of the newest attempt of a run. For a Slurm job, these are the nodes of its allocation.
    ///
    /// # Errors
    /// When the run cannot be read, or Slurm has not allocated its nodes yet.
    pub fn nodes_of_run(&self, dir: &RunDir) -> Result<Vec<(ListedNode, Login)>, Failure> {
        let Some(attempt) = dir.latest_attempt()? else { return Ok(Vec::new()) };
        let mut listed = with_logins(Target::of(&attempt));
        let Some(slurm) = &attempt.slurm else { return Ok(listed) };
        if listed.is_empty() {
            let job = slurm.job.map_or_else(|| "its job".into(), |job| format!("job {job}"));
            let why = format!("{job} has not started, and Slurm allocates its nodes when it does");
            let fix = format!("see why it is pending: vidtui status {}", dir.name());
            return Err(Failure::new(ErrorCode::SlurmJobState, format!("{} has no nodes yet", dir.name()), why, fix));
        }
        let known = self.connections.slurm_nodes(self.patience);
        for (listed, _) in &mut listed {
            let of_it = |node: &&SlurmNode| node.node == listed.node.id;
            let wanted = |node: &&SlurmNode| slurm.spec.partition.as_ref().is_none_or(|name| *name == node.partition);
            let found = known.iter().filter(of_it).find(wanted).or_else(|| known.iter().find(of_it));
            listed.slurm = found.cloned();
        }
        Ok(listed)
    }

    /// Returns the source of the nodes of [`FleetSource::Given`], in words.
    pub fn nodes_from(&self) -> String {
        match (&self.simulate, &self.nodes) {
            (Some(simulation), _) => format!("{} simulated nodes", simulation.count()),
            (None, NodesArgs { slurm: Some(path), .. }) => format!("Slurm file {path}"),
            (None, NodesArgs { hostfile: Some(path), .. }) => format!("hostfile {path}"),
            (None, _) => "this machine".into(),
        }
    }

    /// Returns the output of nvidia-smi on a node.
    ///
    /// # Errors
    /// When the node cannot be reached, or nvidia-smi fails there.
    pub fn smi(&self, login: &Login) -> Result<String, Failure> {
        let what = format!("cannot run nvidia-smi on {}", login.node);
        let command = Command::new("run nvidia-smi", SMI_SCRIPT, SMI);
        let output = match self.connections.may_be_this_node(login) {
            true => Local::new().and_then(|mut here| here.run(&command)),
            false => self.connections.ssh(login).run(&command),
        };
        let output = output.map_err(|error| error.failure_on_node(&*what))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status {
            Status::Code(0) => Ok(text),
            Status::Code(127) => Err(Failure::new(
                ErrorCode::ProgramMissing,
                what,
                "it is not installed",
                "install the utilities of the NVIDIA driver, if the node has GPUs",
            )),
            Status::Code(124 | 137) => {
                let fix = "look for Xid errors with `dmesg` on the node; a hanging driver needs a reboot";
                Err(Failure::new(ErrorCode::NoAnswer, what, "it hangs", fix))
            }
            // A table with an error in it has more information than the error alone.
            _ if text.contains("NVIDIA-SMI ") && text.contains("|==") => Ok(text),
            _ => Err(Failure::new(ErrorCode::CommandFailed, what, text.trim(), "run nvidia-smi on the node")),
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
    fn no_nvidia_smi_is_started_while_another_hangs() {
        let bin = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            // Another process writes the file: a process that another test starts at the same time could inherit the open
            // file, and a file that is open for writing cannot be executed.
            let write = std::process::Command::new("sh")
                .args(["-c", "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod 755 \"$0\""])
                .args([bin.path().join(name).as_os_str(), text.as_ref()])
                .status();
            assert!(write.unwrap().success());
        };
        let run_with = |processes: &str| {
            write("ps", &format!("printf '{processes}'"));
            let mut sh = std::process::Command::new("sh");
            sh.args(["-c", SMI_SCRIPT]).env("PATH", format!("{}:/usr/bin:/bin", bin.path().display()));
            let output = sh.output().unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        write("nvidia-smi", "echo a table");
        let table = (Some(0), "a table\n".to_owned());
        // The cases: no other nvidia-smi, one that loops all day, and one that waits briefly for the driver.
        for processes in ["", "S    90000\\n", "D    3\\nS 40\\n"] {
            assert_eq!(run_with(processes), table, "{processes}");
        }
        assert_eq!(run_with("S    90000\\nD    31\\n"), (Some(124), String::new()));
    }
}

//! `nodes/NODE/NNNN.environment.toml`: the software, CPUs and GPUs of a node during an attempt.

use crate::files::{Versioned, present, read_toml, write_toml};
use crate::{Error, RunDir};
use cluster::NodeId;
use serde::{Deserialize, Serialize};

/// The software, CPUs and GPUs of a node. The node's supervisor records them when an attempt starts. Fields that the node does not
/// show are `None`. It contains no environment variables, because these may be secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEnvironment {
    /// [`crate::SCHEMA`].
    pub schema: u32,
    /// Version of the supervisor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub supervisor: String,
    /// Name and version of the operating system, in a container that of the container: `Ubuntu 24.04.1 LTS`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// Release of the Linux kernel: `6.8.0-45-generic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Model of the CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Number of logical CPUs that the supervisor and its ranks may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<usize>,
    /// Memory of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_total_mib: Option<u64>,
    /// Version of the NVIDIA driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The GPUs in the order of their indices; empty if nvidia-smi listed none while the attempt ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuModel>,
}

impl Versioned for NodeEnvironment {
    fn version(&self) -> u32 {
        self.schema
    }
}

/// The model and memory of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuModel {
    /// The model: `NVIDIA H100 80GB HBM3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// GPU memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_total_mib: Option<u64>,
}

impl RunDir {
    /// Reads the environment of a node during an attempt. Returns `None` if the node has not recorded it.
    ///
    /// # Errors
    /// As [`read_toml`], except for a missing file.
    pub fn read_environment(&self, node: &NodeId, attempt: u32) -> Result<Option<NodeEnvironment>, Error> {
        present(read_toml(&self.environment_toml(node, attempt)))
    }

    /// Writes the environment of a node during an attempt.
    ///
    /// # Errors
    /// As [`write_toml`].
    pub fn write_environment(&self, node: &NodeId, attempt: u32, environment: &NodeEnvironment) -> Result<(), Error> {
        write_toml(&self.environment_toml(node, attempt), environment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SCHEMA;
    use crate::fixtures::{node, node_environment, temp};
    use std::fs;

    #[test]
    fn an_environment_is_read_as_it_was_written_and_runs_without_one_are_read_too() {
        let (_keep, run) = temp();
        let ml_1 = node("ml-1");
        fs::create_dir_all(run.node_dir(&ml_1)).unwrap();
        assert_eq!(run.read_environment(&ml_1, 2).unwrap(), None);
        let unknown = NodeEnvironment { schema: SCHEMA, ..NodeEnvironment::default() };
        for written in [node_environment(), unknown] {
            run.write_environment(&ml_1, 2, &written).unwrap();
            assert_eq!(run.read_environment(&ml_1, 2).unwrap(), Some(written));
        }
    }
}

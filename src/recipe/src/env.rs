use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

/// The environment of every rank.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Env {
    /// Sets of variables, by name.
    pub presets: Vec<EnvPreset>,
    /// Variables; they win over those of the presets.
    pub variables: BTreeMap<String, String>,
    /// A file of variables that are written nowhere; empty for none.
    pub secrets: Utf8PathBuf,
}

/// A set of variables for one kind of cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvPreset {
    /// H100 nodes with NVLink inside and eight InfiniBand cards between, as Lambda's 1-Click Clusters are.
    NcclInfiniband,
    /// Nodes without RDMA: NCCL talks TCP.
    NcclEthernet,
    /// NCCL says what it does, for the first start on a new cluster.
    NcclDebug,
}

impl EnvPreset {
    /// Returns its variables.
    pub fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::NcclInfiniband => &[
                ("NCCL_P2P_LEVEL", "NVL"),
                ("NCCL_NET_GDR_LEVEL", "PIX"),
                // The first '=' is NCCL's: these cards exactly, not all whose names begin so.
                ("NCCL_IB_HCA", "=mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8"),
                ("NCCL_IB_PCI_RELAXED_ORDERING", "1"),
                ("NCCL_SOCKET_IFNAME", "eno1"),
                ("NCCL_DEBUG", "WARN"),
                ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
                ("TORCH_NCCL_ENABLE_MONITORING", "1"),
                ("TOKENIZERS_PARALLELISM", "false"),
                ("OMP_NUM_THREADS", "16"),
            ],
            Self::NcclEthernet => &[("NCCL_IB_DISABLE", "1"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")],
            Self::NcclDebug => &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV")],
        }
    }
}

/// The variables by which ranks know their place: set for each, so that nobody else's value may stand in their way.
const OURS: [&str; 7] =
    ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"];

/// Tells whether vidtui sets a variable itself, and nobody else may.
pub fn is_reserved(name: &str) -> bool {
    OURS.contains(&name) || name.starts_with("VIDTUI_")
}

/// Tells whether a variable can have this name.
pub fn is_variable_name(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl Env {
    /// Returns all variables, those that win last.
    pub fn all(&self) -> Vec<(String, String)> {
        let presets = self.presets.iter().flat_map(|preset| preset.variables());
        let presets = presets.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let all: BTreeMap<_, _> = presets.chain(self.variables.clone()).collect();
        all.into_iter().collect()
    }

    /// Says what is wrong with a variable, and what to do.
    pub(crate) fn bad_name(&self) -> Option<(String, String)> {
        self.variables.iter().find_map(|(name, value)| {
            if !is_variable_name(name) {
                let why = format!("env.variables: \"{name}\" cannot name a variable");
                Some((why, "use letters, digits and '_', not a digit first".into()))
            } else if is_reserved(name) {
                Some((format!("env.variables: {name} is set for each rank by vidtui"), format!("remove {name}")))
            } else if value.contains('\0') {
                Some((format!("env.variables: the value of {name} has a zero byte in it"), "remove it".into()))
            } else {
                None
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_wins_over_those_of_presets_and_a_later_preset_over_an_earlier() {
        let env = Env {
            presets: vec![EnvPreset::NcclInfiniband, EnvPreset::NcclDebug],
            variables: [("NCCL_SOCKET_IFNAME".to_owned(), "bond0".to_owned())].into(),
            secrets: "".into(),
        };
        let all: BTreeMap<_, _> = env.all().into_iter().collect();
        assert_eq!((all["NCCL_DEBUG"].as_str(), all["NCCL_SOCKET_IFNAME"].as_str()), ("INFO", "bond0"));
        assert_eq!(all["NCCL_IB_HCA"].matches("mlx5_").count(), 8);
    }
}

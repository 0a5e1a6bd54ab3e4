//! The `[env]` section: environment variables of the ranks, and presets of variables for kinds of clusters.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;

use crate::ResumeEffect;
use crate::schema::{EVERY_JOB, Kind, OPTIONAL_PATH, Spec, words_of};

section! {
    /// The environment of every rank.
    pub struct Env("env", EVERY_JOB, ResumeEffect::None) with Default {
        /// sets of environment variables: nccl_infiniband, nccl_ethernet, nccl_debug, nccl_shared_gpus (several ranks on a GPU, to try a
        /// mesh)
        pub presets: Vec<EnvPreset> = Vec::new() => words_of::<EnvPreset>();
        /// environment variables of every rank; they override the presets
        pub variables: BTreeMap<String, String> = BTreeMap::new() => Spec::of(Kind::Variables);
        /// file of KEY=value lines for the environment, readable by its owner only (chmod 600); vidtui never writes or shows the values
        pub secrets: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH;
    }
}

words! {
    /// A set of variables for one kind of cluster.
    pub enum EnvPreset {
        /// Nodes with NVLink inside a node and InfiniBand adapters between nodes. NCCL finds adapters and interfaces by itself.
        NcclInfiniband = "nccl_infiniband",
        /// Nodes without RDMA: NCCL uses TCP.
        NcclEthernet = "nccl_ethernet",
        /// NCCL's log, for the first start on a new cluster.
        NcclDebug = "nccl_debug",
        /// More ranks than GPUs, which share them: a way to try a mesh, not to train. Needs NCCL 2.30.
        NcclSharedGpus = "nccl_shared_gpus",
    }
}

/// The variable with which NCCL (2.30 and newer) lets several ranks use one GPU.
pub const SHARED_GPUS: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

impl EnvPreset {
    /// Returns the variables of the preset.
    pub fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::NcclInfiniband => &[
                ("NCCL_P2P_LEVEL", "NVL"),
                ("NCCL_NET_GDR_LEVEL", "PIX"),
                ("NCCL_IB_PCI_RELAXED_ORDERING", "1"),
                ("NCCL_DEBUG", "WARN"),
                ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
                ("TORCH_NCCL_ENABLE_MONITORING", "1"),
                ("TOKENIZERS_PARALLELISM", "false"),
                ("OMP_NUM_THREADS", "16"),
            ],
            Self::NcclEthernet => &[("NCCL_IB_DISABLE", "1"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")],
            Self::NcclDebug => &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV")],
            // Without NVLS and with few blocks, ranks that take turns on a GPU do not wait for each other's kernels.
            Self::NcclSharedGpus => &[(SHARED_GPUS, "1"), ("NCCL_NVLS_ENABLE", "0"), ("NCCL_MAX_CTAS", "2")],
        }
    }
}

/// The variables that vidtui sets for each rank.
const OURS: [&str; 7] =
    ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"];

/// Returns whether vidtui sets a variable itself. A recipe may not set it.
pub fn is_reserved(name: &str) -> bool {
    OURS.contains(&name) || name.starts_with("VIDTUI_")
}

/// Returns whether a name is valid for a variable.
pub fn is_variable_name(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl Env {
    /// Returns all variables, sorted by name.
    pub fn all(&self) -> Vec<(String, String)> {
        let presets = self.presets.iter().flat_map(|preset| preset.variables());
        let presets = presets.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let all: BTreeMap<_, _> = presets.chain(self.variables.clone()).collect();
        all.into_iter().collect()
    }

    /// Returns whether ranks beyond the GPUs of a node share them.
    pub fn shares_gpus(&self) -> bool {
        self.all().iter().any(|(name, value)| name == SHARED_GPUS && value == "1")
    }

    /// Returns what is wrong with the first invalid variable, and the fix.
    pub(crate) fn bad_name(&self) -> Option<(String, String)> {
        self.variables.iter().find_map(|(name, value)| {
            if !is_variable_name(name) {
                let why = format!("env.variables: \"{name}\" is not a valid variable name");
                Some((why, "use letters, digits and '_', and do not begin with a digit".into()))
            } else if is_reserved(name) {
                Some((format!("env.variables: vidtui sets {name} for each rank"), format!("remove {name}")))
            } else if value.contains('\0') {
                Some((format!("env.variables: the value of {name} contains a zero byte"), "remove it".into()))
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
    fn variables_override_presets_and_later_presets_override_earlier_ones() {
        let env = Env {
            presets: vec![EnvPreset::NcclInfiniband, EnvPreset::NcclDebug],
            variables: [("NCCL_SOCKET_IFNAME".to_owned(), "bond0".to_owned())].into(),
            secrets: "".into(),
        };
        let all: BTreeMap<_, _> = env.all().into_iter().collect();
        assert_eq!((all["NCCL_DEBUG"].as_str(), all["NCCL_SOCKET_IFNAME"].as_str()), ("INFO", "bond0"));
        assert_eq!(all["NCCL_NET_GDR_LEVEL"], "PIX");
        assert!(!env.shares_gpus());
        let shared = Env { presets: vec![EnvPreset::NcclSharedGpus], ..Env::default() };
        let off = Env { variables: [(SHARED_GPUS.to_owned(), "0".to_owned())].into(), ..shared.clone() };
        assert_eq!((shared.shares_gpus(), off.shares_gpus()), (true, false));
    }

    #[test]
    fn presets_name_no_interfaces_or_adapters() {
        let presets = [EnvPreset::NcclInfiniband, EnvPreset::NcclEthernet, EnvPreset::NcclDebug];
        let mut names = presets.iter().flat_map(|preset| preset.variables()).map(|(name, _)| *name);
        assert!(!names.any(|name| ["NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"].contains(&name)));
    }
}

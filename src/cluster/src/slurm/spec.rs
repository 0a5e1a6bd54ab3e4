//! Slurm files: the resources that a user requests from Slurm.

use serde::{Deserialize, Serialize};

use super::sbatch;
use super::value::limit;

/// A Slurm file: the nodes to request, instead of a hostfile.
///
/// An attempt stores a copy, so that a resume makes the same request. Unknown keys of this copy are ignored;
/// [`SlurmSpec::parse`] refuses them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlurmSpec {
    /// The partition; default: Slurm's default partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The account; default: the user's default account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The number of nodes.
    pub nodes: usize,
    /// The smallest number of nodes that the job starts or continues on; default: `nodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_nodes: Option<usize>,
    /// GPUs per node. The job starts one rank for each GPU.
    pub gpus_per_node: usize,
    /// The time limit in the syntax of sbatch: `24:00:00`, `2-00`.
    pub time: String,
    /// How many seconds before the time limit the job saves and requeues itself; default: see [`SlurmSpec::save_before`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_before_s: Option<u64>,
    /// Required features of the nodes: `h100&ib`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
    /// Environment modules to load on each node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// Further options of sbatch: `--exclusive`, `--qos=high`. Options that have a key here, or that would break a run, are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra: Vec<String>,
}

/// The keys, in the order of error messages.
const KEYS: [&str; 10] = [
    "partition",
    "account",
    "nodes",
    "min_nodes",
    "gpus_per_node",
    "time",
    "save_before_s",
    "constraint",
    "modules",
    "extra",
];

/// The default of `save_before_s`. Saving a checkpoint of about 100 GB takes minutes.
const SAVE_BEFORE_S: u64 = 300;

/// The reason why a Slurm file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct SlurmSpecError {
    /// The reason for the error. If the file is not TOML, it names the line.
    pub why: String,
    /// The hint: what to write instead.
    pub fix: String,
}

fn error<T>(why: impl Into<String>, fix: impl Into<String>) -> Result<T, SlurmSpecError> {
    Err(SlurmSpecError { why: why.into(), fix: fix.into() })
}

impl SlurmSpec {
    /// Reads the text of a Slurm file.
    ///
    /// # Errors
    /// The text is not TOML, has an unknown key, lacks a required key, or has an invalid value.
    pub fn parse(text: &str) -> Result<SlurmSpec, SlurmSpecError> {
        let keys = format!("the keys are {}", KEYS.join(", "));
        let not_toml = |e: toml::de::Error| SlurmSpecError { why: e.to_string().trim_end().into(), fix: keys.clone() };
        let table: toml::Table = toml::from_str(text).map_err(not_toml)?;
        if let Some(unknown) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return error(format!("the key {unknown:?} is unknown"), keys);
        }
        let spec: SlurmSpec = toml::from_str(text).map_err(not_toml)?;
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), SlurmSpecError> {
        if self.nodes == 0 || self.gpus_per_node == 0 {
            let why = format!("{} nodes × {} GPUs is not enough", self.nodes, self.gpus_per_node);
            return error(why, "request at least one of each");
        }
        if self.min_nodes.is_some_and(|least| least == 0 || least > self.nodes) {
            let why = format!("min_nodes = {} is not between 1 and nodes = {}", self.least_nodes(), self.nodes);
            return error(why, "write the fewest nodes on which the run may continue, or remove min_nodes");
        }
        if self.time_s().is_none_or(|seconds| seconds == 0) {
            let fix = "write hours:minutes:seconds or days-hours, as in \"24:00:00\"";
            return error(format!("time = {:?} is not a time limit", self.time), fix);
        }
        let limit_s = self.time_s().unwrap_or(0);
        if self.save_before_s.is_some_and(|seconds| seconds == 0 || seconds >= limit_s) {
            let why =
                format!("save_before_s = {} is not within time = {:?}", self.save_before_s.unwrap_or(0), self.time);
            return error(why, "write the duration of a save in seconds with some reserve, less than the time limit");
        }
        let named = [("partition", &self.partition), ("account", &self.account), ("constraint", &self.constraint)];
        let named = named.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        let listed = self.modules.iter().map(|module| ("modules", module));
        for (key, value) in named.chain(listed).chain(self.extra.iter().map(|line| ("extra", line))) {
            // Each value becomes a part of one line of the batch script.
            if value.trim().is_empty() || value.chars().any(char::is_control) {
                return error(
                    format!("{key} = {value:?} is not a single line of text"),
                    "write one line, or remove the key",
                );
            }
        }
        for line in &self.extra {
            sbatch::check(line).map_err(|sbatch::Mistake { why, fix }| SlurmSpecError { why, fix })?;
        }
        Ok(())
    }

    /// Returns whether `extra` has an option, by its long name.
    pub fn requests(&self, option: &str) -> bool {
        let has =
            |line: &String| sbatch::options(line).is_ok_and(|found| found.iter().any(|other| other.name == option));
        self.extra.iter().any(has)
    }

    /// Returns the time limit in seconds.
    pub fn time_s(&self) -> Option<u64> {
        limit(&self.time)
    }

    /// Returns how many seconds before the time limit the job saves: by default 300, or a quarter of a time limit that is shorter
    /// than 20 minutes.
    pub fn save_before(&self) -> u64 {
        self.save_before_s.unwrap_or_else(|| SAVE_BEFORE_S.min(self.time_s().unwrap_or(0) / 4))
    }

    /// Returns the smallest number of nodes on which the job starts or continues.
    pub fn least_nodes(&self) -> usize {
        self.min_nodes.unwrap_or(self.nodes)
    }

    /// Returns the number of ranks if the job gets all `nodes`.
    pub fn world(&self) -> usize {
        self.nodes.saturating_mul(self.gpus_per_node)
    }

    /// Returns the options of sbatch, without `extra` and `modules`, in the order of the file's keys.
    pub fn options(&self) -> Vec<String> {
        let named = |option: &str, value: &Option<String>| value.as_ref().map(|value| format!("--{option}={value}"));
        let mut options: Vec<String> =
            [named("partition", &self.partition), named("account", &self.account)].into_iter().flatten().collect();
        options.push(match self.min_nodes {
            Some(least) => format!("--nodes={least}-{}", self.nodes),
            None => format!("--nodes={}", self.nodes),
        });
        options.push(format!("--gres=gpu:{}", self.gpus_per_node));
        options.push(format!("--time={}", self.time));
        options.extend(named("constraint", &self.constraint));
        options
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SMALL: &str = "nodes = 2\ngpus_per_node = 8\ntime = '1-00'\n";

    #[test]
    fn the_example_slurm_file_is_valid() {
        let spec = SlurmSpec::parse(&fs::read_to_string("../../hostfiles/slurm.toml").unwrap()).unwrap();
        assert_eq!((spec.world(), spec.time_s()), (32, Some(86_400)));
        assert_eq!(spec.options(), ["--partition=train", "--nodes=4", "--gres=gpu:8", "--time=24:00:00"]);
    }

    #[test]
    fn every_key_becomes_an_option_in_the_order_of_the_file() {
        let all = "partition='p'\naccount='a'\nconstraint='h100&ib'\nextra=['--exclusive', '--qos=high']\nmodules=['cuda/12.4']\n";
        let spec = SlurmSpec::parse(&format!("{all}{SMALL}")).unwrap();
        assert_eq!(
            spec.options().join(" "),
            "--partition=p --account=a --nodes=2 --gres=gpu:8 --time=1-00 --constraint=h100&ib"
        );
        assert_eq!(
            (&spec.modules[..], &spec.extra[..]),
            (&["cuda/12.4".into()][..], &["--exclusive".into(), "--qos=high".into()][..])
        );
    }

    #[test]
    fn a_job_that_may_have_fewer_nodes_requests_a_range() {
        let spec = SlurmSpec::parse(&format!("{SMALL}min_nodes = 1\n")).unwrap();
        assert_eq!((spec.least_nodes(), spec.world(), &*spec.options()[0]), (1, 16, "--nodes=1-2"));
        assert_eq!(SlurmSpec::parse(SMALL).unwrap().least_nodes(), 2);
    }

    #[test]
    fn a_job_saves_five_minutes_before_its_limit_by_default() {
        let before = |more: &str, time: &str| {
            SlurmSpec::parse(&format!("nodes = 1\ngpus_per_node = 1\ntime = '{time}'\n{more}")).unwrap().save_before()
        };
        assert_eq!(before("", "24:00:00"), 300);
        assert_eq!(before("", "10:00"), 150);
        assert_eq!(before("save_before_s = 900", "24:00:00"), 900);
    }

    #[test]
    fn an_unknown_key_in_a_stored_attempt_is_ignored() {
        let kept: SlurmSpec = toml::from_str(&format!("{SMALL}colour = 'blue'\n")).unwrap();
        assert_eq!(kept, SlurmSpec::parse(SMALL).unwrap());
        assert_eq!(toml::from_str::<SlurmSpec>(&toml::to_string(&kept).unwrap()).unwrap(), kept);
    }

    #[test]
    fn every_mistake_is_reported_with_a_hint() {
        let mistakes = [
            "",
            "nodes = ",
            "nodes = 2\ngpus = 8\n",
            "nodes = 'two'\n",
            "nodes = 0\ngpus_per_node = 8\ntime = '1'\n",
            "nodes = 1\ngpus_per_node = 8\ntime = 'soon'\n",
            "nodes = 1\ngpus_per_node = 8\ntime = '0'\n",
            &format!("{SMALL}min_nodes = 0\n"),
            &format!("{SMALL}min_nodes = 3\n"),
            &format!("{SMALL}save_before_s = 100000\n"),
            &format!("{SMALL}partition = ''\n"),
            &format!("{SMALL}modules = [\"cuda\\nrm -rf /\"]\n"),
            &format!("{SMALL}extra = ['exclusive']\n"),
            &format!("{SMALL}extra = ['--nodes=4']\n"),
            &format!("{SMALL}extra = ['--exclusive', '-a 0-3']\n"),
        ];
        let reports = mistakes.map(|text| {
            let error = SlurmSpec::parse(text).unwrap_err();
            format!("{text:?}\n  {}\n  hint: {}", error.to_string().replace('\n', "\n  "), error.fix)
        });
        insta::assert_snapshot!(reports.join("\n"));
    }
}

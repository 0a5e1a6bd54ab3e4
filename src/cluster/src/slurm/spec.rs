//! What a Slurm job asks for, as a person writes it down.

use serde::{Deserialize, Serialize};

use super::value::limit;

/// A Slurm file: the nodes to ask for, in place of a hostfile.
///
/// Attempts keep it, so that a resume asks for the same. A key of a newer version is passed over there, and refused by
/// [`SlurmSpec::parse`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlurmSpec {
    /// The partition; without one, Slurm's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The account that pays; without one, the user's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Nodes to ask for.
    pub nodes: usize,
    /// GPUs on each, and as many ranks.
    pub gpus_per_node: usize,
    /// How long it may take, as sbatch takes it: `24:00:00`, `2-00`.
    pub time: String,
    /// How long before its end it saves and puts itself back into the queue, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_before_s: Option<u64>,
    /// Features that the nodes must have: `h100&ib`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
    /// Modules to load on each node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// Further options of sbatch: `--exclusive`, `--qos=high`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra: Vec<String>,
}

/// Its keys, in the order in which people are told of them.
const KEYS: [&str; 9] =
    ["partition", "account", "nodes", "gpus_per_node", "time", "save_before_s", "constraint", "modules", "extra"];

/// How long before its end a job saves when nobody says: a checkpoint of some 100 GB takes minutes.
const SAVE_BEFORE_S: u64 = 300;

/// Says why a Slurm file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct SlurmSpecError {
    /// What is wrong, with its line where the file is not TOML.
    pub why: String,
    /// What to write instead.
    pub fix: String,
}

fn error<T>(why: impl Into<String>, fix: impl Into<String>) -> Result<T, SlurmSpecError> {
    Err(SlurmSpecError { why: why.into(), fix: fix.into() })
}

/// Options that the plan writes itself. `-J` and the like are the same in short.
const TAKEN: [&str; 18] = [
    "--nodes",
    "-N",
    "--ntasks",
    "-n",
    "--ntasks-per-node",
    "--gres",
    "--time",
    "-t",
    "--partition",
    "-p",
    "--output",
    "-o",
    "--job-name",
    "-J",
    "--signal",
    "--open-mode",
    "--error",
    "-e",
];

impl SlurmSpec {
    /// Reads the text of a Slurm file.
    ///
    /// # Errors
    /// When it is not TOML, has an unknown key or lacks one, or a value cannot be one.
    pub fn parse(text: &str) -> Result<SlurmSpec, SlurmSpecError> {
        let keys = format!("the keys are {}", KEYS.join(", "));
        let not_toml = |e: toml::de::Error| SlurmSpecError { why: e.to_string().trim_end().into(), fix: keys.clone() };
        let table: toml::Table = toml::from_str(text).map_err(not_toml)?;
        if let Some(unknown) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return error(format!("it has no key {unknown:?}"), keys);
        }
        let spec: SlurmSpec = toml::from_str(text).map_err(not_toml)?;
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), SlurmSpecError> {
        if self.nodes == 0 || self.gpus_per_node == 0 {
            let why = format!("{} nodes × {} GPUs is no place to train", self.nodes, self.gpus_per_node);
            return error(why, "ask for at least one of each");
        }
        if self.time_s().is_none_or(|seconds| seconds == 0) {
            let fix = "write hours:minutes:seconds or days-hours, as in \"24:00:00\"";
            return error(format!("time = {:?} is not a time limit", self.time), fix);
        }
        let limit_s = self.time_s().unwrap_or(0);
        if self.save_before_s.is_some_and(|seconds| seconds == 0 || seconds >= limit_s) {
            let why =
                format!("save_before_s = {} is not within time = {:?}", self.save_before_s.unwrap_or(0), self.time);
            return error(why, "leave the job time to train: the seconds that a checkpoint takes, and some more");
        }
        let named = [("partition", &self.partition), ("account", &self.account), ("constraint", &self.constraint)];
        let named = named.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        let listed = self.modules.iter().map(|module| ("modules", module));
        for (key, value) in named.chain(listed).chain(self.extra.iter().map(|line| ("extra", line))) {
            // Each becomes a part of a line in a shell script.
            if value.trim().is_empty() || value.chars().any(char::is_control) {
                return error(format!("{key} = {value:?} is not a line of text"), "write one line, or leave it out");
            }
        }
        for line in &self.extra {
            let option = line.split(['=', ' ']).next().unwrap_or("");
            if !option.starts_with('-') {
                return error(format!("extra has {line:?}, which is no option"), "write options as sbatch takes them");
            }
            if TAKEN.contains(&option) {
                let fix = "leave it out of extra: it follows from the other keys and the recipe";
                return error(format!("extra has {option}, which is written already"), fix);
            }
        }
        Ok(())
    }

    /// Returns the time limit in seconds.
    pub fn time_s(&self) -> Option<u64> {
        limit(&self.time)
    }

    /// Returns how long before its end the job saves, in seconds: five minutes, or a quarter of a short job.
    pub fn save_before(&self) -> u64 {
        self.save_before_s.unwrap_or_else(|| SAVE_BEFORE_S.min(self.time_s().unwrap_or(0) / 4))
    }

    /// Returns how many ranks there is room for.
    pub fn world(&self) -> usize {
        self.nodes.saturating_mul(self.gpus_per_node)
    }

    /// Lists the options for sbatch, a word each, in the order of the file's keys; `extra` is not among them.
    pub fn options(&self) -> Vec<String> {
        let named = |option: &str, value: &Option<String>| value.as_ref().map(|value| format!("--{option}={value}"));
        let mut options: Vec<String> =
            [named("partition", &self.partition), named("account", &self.account)].into_iter().flatten().collect();
        options.push(format!("--nodes={}", self.nodes));
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
    fn the_slurm_file_that_comes_with_the_program_is_read() {
        let spec = SlurmSpec::parse(&fs::read_to_string("../../hostfiles/slurm.toml").unwrap()).unwrap();
        assert_eq!((spec.world(), spec.time_s()), (32, Some(86_400)));
        assert_eq!(spec.options(), ["--partition=train", "--nodes=4", "--gres=gpu:8", "--time=24:00:00"]);
    }

    #[test]
    fn every_key_becomes_an_option_in_the_files_order() {
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
    fn a_job_saves_five_minutes_before_its_end_or_as_its_file_says() {
        let before = |more: &str, time: &str| {
            SlurmSpec::parse(&format!("nodes = 1\ngpus_per_node = 1\ntime = '{time}'\n{more}")).unwrap().save_before()
        };
        assert_eq!(before("", "24:00:00"), 300);
        assert_eq!(before("", "10:00"), 150);
        assert_eq!(before("save_before_s = 900", "24:00:00"), 900);
    }

    #[test]
    fn a_key_of_a_newer_version_is_passed_over_where_an_attempt_keeps_the_file() {
        let kept: SlurmSpec = toml::from_str(&format!("{SMALL}colour = 'blue'\n")).unwrap();
        assert_eq!(kept, SlurmSpec::parse(SMALL).unwrap());
        assert_eq!(toml::from_str::<SlurmSpec>(&toml::to_string(&kept).unwrap()).unwrap(), kept);
    }

    #[test]
    fn every_mistake_is_named_with_a_way_out() {
        let mistakes = [
            "",
            "nodes = ",
            "nodes = 2\ngpus = 8\n",
            "nodes = 'two'\n",
            "nodes = 0\ngpus_per_node = 8\ntime = '1'\n",
            "nodes = 1\ngpus_per_node = 8\ntime = 'soon'\n",
            "nodes = 1\ngpus_per_node = 8\ntime = '0'\n",
            &format!("{SMALL}save_before_s = 100000\n"),
            &format!("{SMALL}partition = ''\n"),
            &format!("{SMALL}modules = [\"cuda\\nrm -rf /\"]\n"),
            &format!("{SMALL}extra = ['exclusive']\n"),
            &format!("{SMALL}extra = ['--nodes=4']\n"),
        ];
        let said = mistakes.map(|text| {
            let error = SlurmSpec::parse(text).unwrap_err();
            format!("{text:?}\n  {}\n  hint: {}", error.to_string().replace('\n', "\n  "), error.fix)
        });
        insta::assert_snapshot!(said.join("\n"));
    }
}

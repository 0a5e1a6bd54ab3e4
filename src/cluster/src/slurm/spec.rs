//! What a Slurm job asks for, as a person writes it down.

use serde::Deserialize;

use super::value::limit;

/// A Slurm file: the nodes to ask for, in place of a hostfile.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlurmSpec {
    /// The partition; without one, Slurm's default.
    pub partition: Option<String>,
    /// The account that pays; without one, the user's default.
    pub account: Option<String>,
    /// Nodes to ask for.
    pub nodes: usize,
    /// GPUs on each, and as many ranks.
    pub gpus_per_node: usize,
    /// How long it may take, as sbatch takes it: `24:00:00`, `2-00`.
    pub time: String,
    /// Features that the nodes must have: `h100&ib`.
    pub constraint: Option<String>,
    /// Modules to load on each node.
    #[serde(default)]
    pub modules: Vec<String>,
    /// Further options of sbatch: `--exclusive`, `--qos=high`.
    #[serde(default)]
    pub extra: Vec<String>,
}

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
const TAKEN: [&str; 14] = [
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
];

impl SlurmSpec {
    /// Reads the text of a Slurm file.
    ///
    /// # Errors
    /// When it is not TOML, has an unknown key or lacks one, or a value cannot be one.
    pub fn parse(text: &str) -> Result<SlurmSpec, SlurmSpecError> {
        let keys = "the keys are partition, account, nodes, gpus_per_node, time, constraint, modules and extra";
        let spec: SlurmSpec =
            toml::from_str(text).or_else(|e: toml::de::Error| error(e.to_string().trim_end(), keys))?;
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

    /// Returns how many ranks there is room for.
    pub fn world(&self) -> usize {
        self.nodes.saturating_mul(self.gpus_per_node)
    }

    /// Lists the options for sbatch, one to a line of the script, in the order of the file's keys.
    pub fn options(&self) -> Vec<String> {
        let named = |option: &str, value: &Option<String>| value.as_ref().map(|value| format!("--{option}={value}"));
        let mut options: Vec<String> =
            [named("partition", &self.partition), named("account", &self.account)].into_iter().flatten().collect();
        options.push(format!("--nodes={}", self.nodes));
        options.push(format!("--gres=gpu:{}", self.gpus_per_node));
        options.push(format!("--time={}", self.time));
        options.extend(named("constraint", &self.constraint));
        options.extend(self.extra.iter().cloned());
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
            "--partition=p --account=a --nodes=2 --gres=gpu:8 --time=1-00 --constraint=h100&ib --exclusive --qos=high"
        );
        assert_eq!(spec.modules, ["cuda/12.4"]);
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

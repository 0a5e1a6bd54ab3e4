//! Environment variables that the programs of Slurm read: which of them are removed before vidtui starts one of the programs,
//! and which of them request something for a job.
//!
//! The programs read options from variables, for the users of a shell: `SQUEUE_FORMAT` changes the columns, `SQUEUE_STATES`
//! hides jobs, `SCANCEL_STATE` protects jobs from a signal. vidtui gives every option that it needs on the command line.

use super::sbatch::{self, Meaning, OPTIONS, SbatchOption, Takes};
use super::spec::SlurmSpec;

/// The beginnings of the variables that the programs read. The variables of a job that vidtui runs in have the same.
const PREFIXES: [&str; 9] =
    ["SACCT_", "SALLOC_", "SBATCH_", "SCANCEL_", "SCONTROL_", "SINFO_", "SLURM_", "SQUEUE_", "SRUN_"];

/// Variables that locate the cluster, or that prove who the user is. All programs get them.
const KEPT: [&str; 7] = [
    CLUSTERS,
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "SLURM_JWT",
    "SLURM_SACK_JWKS",
    "SLURM_SACK_KEY",
    "SLURM_SACK_SOCKET",
];

/// The variable from which all programs except sacct read the cluster to work on.
pub const CLUSTERS: &str = "SLURM_CLUSTERS";

/// Returns whether a variable is removed before vidtui starts a program of Slurm.
pub fn is_removed(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !KEPT.contains(&name)
}

/// The variables of srun that the batch script removes, because they would change what the ranks are started with, where
/// their output goes, or when Slurm ends them. The others are set by Slurm from the options of the job, or are settings of
/// the site that the steps of every job should have, or have no effect on a step of a job that runs.
///
/// The variables that begin with `SRUN_` are removed as well.
pub const REMOVED_FROM_STEPS: [&str; 28] = [
    // They copy the program to the nodes, and would copy `bash`.
    "SLURM_BCAST",
    "SLURM_BCAST_EXCLUDE",
    "SLURM_COMPRESS",
    "SLURM_SEND_LIBS",
    // They run another program, or none.
    "SLURM_SRUN_MULTI",
    "SLURM_TEST_EXEC",
    // They change the folder, the environment, or the files of input and output.
    "SLURM_EXPORT_ENV",
    "SLURM_LABELIO",
    "SLURM_REMOTE_CWD",
    "SLURM_STDERRMODE",
    "SLURM_STDINMODE",
    "SLURM_STDOUTMODE",
    "SLURM_WORKING_DIR",
    // They add messages to the output.
    "SLURMD_DEBUG",
    "SLURM_DEBUG",
    // They end the step, or signal it.
    "SLURM_IMMEDIATE",
    "SLURM_KILL_BAD_EXIT",
    "SLURM_NO_KILL",
    "SLURM_SIGNAL",
    "SLURM_TIMELIMIT",
    "SLURM_WAIT",
    // They choose other nodes, or fewer GPUs or CPUs than the job has.
    "SLURM_ARBITRARY_NODELIST",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_GRES",
    "SLURM_HOSTFILE",
    "SLURM_STEP_GRES",
    "SLURM_THREADS",
];

/// The effect of the user's variables on a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adopted {
    /// The options that the variables add, for the user: `--qos=high (SBATCH_QOS)`.
    pub added: Vec<String>,
    /// The variables that have no effect, each with the reason.
    pub ignored: Vec<String>,
}

impl SlurmSpec {
    /// Adds what variables of sbatch request and the Slurm file does not: an account, a QOS, a reservation. The request is then
    /// complete without the variables: a resume from another shell is the same request.
    ///
    /// * `variables` — the environment of the user.
    pub fn adopt(&mut self, variables: impl IntoIterator<Item = (String, String)>) -> Adopted {
        let mut adopted = Adopted::default();
        let mut variables: Vec<(String, String)> = variables.into_iter().collect();
        variables.sort();
        for (name, value) in variables {
            // Both set the same option; SBATCH_HINT counts.
            let name = if name == "SLURM_HINT" { "SBATCH_HINT".to_owned() } else { name };
            if name == "SBATCH_WAIT4SWITCH" {
                let why = "sbatch cannot get it without the number of switches; write --switches=COUNT@TIME in extra";
                adopted.ignored.push(ignored(&name, &value, why));
            }
            let Some(option) = OPTIONS.iter().find(|option| option.variable == name) else { continue };
            let Some(word) = word_of(option, &value) else { continue };
            let line = sbatch::quoted(&word);
            match self.add(option, &value, &line) {
                Ok(()) => adopted.added.push(format!("{line} ({name})")),
                Err(why) => adopted.ignored.push(ignored(&name, &value, &why)),
            }
        }
        adopted
    }

    /// Adds an option that has the value of a variable.
    ///
    /// # Errors
    /// Why the variable is ignored.
    fn add(&mut self, option: &SbatchOption, value: &str, line: &str) -> Result<(), String> {
        let key = match option.meaning {
            Meaning::Refused(why) => return Err(why.into()),
            Meaning::Key("partition") => &mut self.partition,
            Meaning::Key("account") => &mut self.account,
            Meaning::Key("constraint") => &mut self.constraint,
            Meaning::Key(key) => return Err(format!("the Slurm file sets {key}")),
            Meaning::Passes => {
                if self.requests(option.name) {
                    return Err(format!("the Slurm file has --{}", option.name));
                }
                if value.chars().any(char::is_control) {
                    return Err("its value is not a single line of text".into());
                }
                self.extra.push(line.to_owned());
                return Ok(());
            }
        };
        if key.is_some() {
            return Err(format!("the Slurm file sets {}", option.name));
        }
        if value.trim().is_empty() || value.chars().any(char::is_control) {
            return Err("its value is not a single line of text".into());
        }
        *key = Some(value.to_owned());
        Ok(())
    }
}

fn ignored(name: &str, value: &str, why: &str) -> String {
    format!("{name}={}: {why}", value.escape_debug())
}

/// Returns the option that sbatch reads from a variable with this value; `None` if it reads none.
fn word_of(option: &SbatchOption, value: &str) -> Option<String> {
    let with_value = format!("--{}={value}", option.name);
    let alone = format!("--{}", option.name);
    match option.takes {
        Takes::Needs => Some(with_value),
        Takes::May if value.is_empty() => Some(alone),
        Takes::May => Some(with_value),
        // A flag is set by nothing, `yes`, or a number that is not 0.
        Takes::No => {
            let is_set = value.is_empty()
                || value.eq_ignore_ascii_case("yes")
                || value.parse::<i64>().is_ok_and(|number| number != 0);
            is_set.then_some(alone)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adopt(file: &str, variables: &[(&str, &str)]) -> (SlurmSpec, Adopted) {
        let mut spec = SlurmSpec::parse(&format!("nodes = 2\ngpus_per_node = 8\ntime = '1-00'\n{file}")).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let adopted = spec.adopt(variables);
        (spec, adopted)
    }

    /// The variables in the manual pages of Slurm 22.05 and 26.05.
    const OF_QUERIES: &str = "SACCT_FEDERATION SACCT_FORMAT SACCT_LOCAL SALLOC_PARTITION SBATCH_ACCOUNT SBATCH_EXPORT \
        SBATCH_WAIT SCANCEL_ACCOUNT SCANCEL_BATCH SCANCEL_CRON SCANCEL_CTLD SCANCEL_FULL SCANCEL_HURRY SCANCEL_INTERACTIVE \
        SCANCEL_NAME SCANCEL_PARTITION SCANCEL_QOS SCANCEL_STATE SCANCEL_USER SCANCEL_VERBOSE SCANCEL_WCKEY SCONTROL_ALL \
        SCONTROL_FEDERATION SCONTROL_FUTURE SCONTROL_LOCAL SCONTROL_SIB SCONTROL_SIBLING SINFO_ALL SINFO_FEDERATION \
        SINFO_FORMAT SINFO_FUTURE SINFO_LOCAL SINFO_PARTITION SINFO_SORT SLURM_BITSTR_LEN SLURM_CONF_OUT SLURM_DEBUG_FLAGS \
        SLURM_EXIT_ERROR SLURM_EXIT_IMMEDIATE SLURM_HINT SLURM_JOB_ID SLURM_PRIO_PROCESS SLURM_RLIMIT_NOFILE \
        SLURM_SPANK_MODE SLURM_STEP_KILLED_MSG_NODE_ID SLURM_TIME_FORMAT SLURM_TOPO_LEN SLURM_UMASK SQUEUE_ACCOUNT \
        SQUEUE_ALL SQUEUE_ARRAY SQUEUE_FEDERATION SQUEUE_FORMAT SQUEUE_FORMAT2 SQUEUE_LICENSES SQUEUE_LOCAL SQUEUE_NAMES \
        SQUEUE_PARTITION SQUEUE_PRIORITY SQUEUE_QOS SQUEUE_SIB SQUEUE_SIBLING SQUEUE_SORT SQUEUE_STATES SQUEUE_USERS \
        SRUN_CONTAINER SRUN_CPUS_PER_TASK SRUN_EXPORT_ENV";

    #[test]
    fn variables_that_change_a_query_are_removed_and_those_that_locate_the_cluster_are_kept() {
        for name in OF_QUERIES.split_whitespace() {
            assert!(is_removed(name), "{name}");
        }
        for name in KEPT.into_iter().chain(["PATH", "HOME", "VIDTUI_RUN", "SLURMD_NODENAME", "MY_SLURM_DIR"]) {
            assert!(!is_removed(name), "{name}");
        }
    }

    #[test]
    fn what_the_variables_of_sbatch_request_is_added_to_the_request() {
        let variables = [
            ("SBATCH_ACCOUNT", "physics"),
            ("SBATCH_QOS", "high"),
            ("SBATCH_RESERVATION", "winter school"),
            ("SBATCH_EXCLUSIVE", ""),
            ("SBATCH_OVERCOMMIT", "yes"),
            ("SBATCH_SPREAD_JOB", "0"),
            ("SBATCH_EXPORT", "NONE"),
            ("SLURM_HINT", "nomultithread"),
            ("SQUEUE_FORMAT", "%i"),
            ("HOME", "/home/ada"),
        ];
        let (spec, adopted) = adopt("", &variables);
        assert_eq!(spec.account.as_deref(), Some("physics"));
        let extra = ["--exclusive", "--export=NONE", "--overcommit", "--qos=high", "\"--reservation=winter school\""];
        assert_eq!(spec.extra, [&extra[..], &["--hint=nomultithread"]].concat());
        assert_eq!((adopted.added.len(), adopted.ignored), (7, vec![]));
        assert_eq!(adopted.added[0], "--account=physics (SBATCH_ACCOUNT)");
        // The options are valid in a file.
        assert!(spec.extra.iter().all(|line| sbatch::check(line).is_ok()));
    }

    #[test]
    fn the_slurm_file_counts_more_than_variables_and_an_option_that_breaks_a_run_is_ignored() {
        let file = "account = 'art'\nextra = ['-q low']\n";
        let variables = [
            ("SBATCH_ACCOUNT", "physics"),
            ("SBATCH_ARRAY_INX", "0-1"),
            ("SBATCH_PARTITION", ""),
            ("SBATCH_QOS", "high"),
            ("SBATCH_TIMELIMIT", "5"),
            ("SBATCH_WAIT4SWITCH", "5:00"),
            ("SBATCH_WCKEY", "a\nb"),
        ];
        let (spec, adopted) = adopt(file, &variables);
        assert_eq!(spec, adopt(file, &[]).0);
        assert_eq!((adopted.added, adopted.ignored.len()), (vec![], variables.len()));
        insta::assert_snapshot!(adopted.ignored.join("\n"));
    }

    #[test]
    fn the_steps_of_a_job_keep_what_slurm_sets_from_the_options_of_the_job() {
        let from_options = [
            "SLURM_CPUS_PER_TASK",
            "SLURM_CPU_FREQ_REQ",
            "SLURM_DISTRIBUTION",
            "SLURM_JOB_ID",
            "SLURM_JOB_NODELIST",
            "SLURM_JOB_NUM_NODES",
            "SLURM_MEM_PER_NODE",
            "SLURM_MPI_TYPE",
            "SLURM_NNODES",
            "SLURM_NTASKS_PER_NODE",
            "SLURM_OVERCOMMIT",
            "SLURM_OVERLAP",
            "SLURM_PROFILE",
            "SLURM_TASK_PROLOG",
            "SLURM_THREADS_PER_CORE",
        ];
        for name in from_options.into_iter().chain(KEPT) {
            assert!(!REMOVED_FROM_STEPS.contains(&name), "{name}");
        }
    }
}

//! The options of sbatch: which of them a Slurm file may have in `extra`, in every spelling that sbatch accepts.

use Meaning::{Key, Passes, Refused};
use Takes::{May, Needs, No};

/// The decision about an option of sbatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The option is passed to sbatch.
    Passes,
    /// A key of the Slurm file sets it: the name of the key.
    Key(&'static str),
    /// The option would break the run: the reason.
    Refused(&'static str),
}

/// Whether an option takes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    No,
    /// A value is optional. It follows in the same word.
    May,
    /// A value is required. It follows in the same word or in the next.
    Needs,
}

/// An option of sbatch.
#[derive(Debug)]
pub(super) struct SbatchOption {
    pub name: &'static str,
    short: char,
    pub takes: Takes,
    /// The environment variable from which sbatch reads the option.
    pub variable: &'static str,
    pub meaning: Meaning,
}

const fn option(
    name: &'static str,
    short: char,
    takes: Takes,
    variable: &'static str,
    meaning: Meaning,
) -> SbatchOption {
    SbatchOption { name, short, takes, variable, meaning }
}

/// The short name of an option that has none.
const NONE: char = '\0';

const SCRIPT: Meaning = Refused("the batch script sets it");
const ONE_TASK: Meaning = Refused("the batch script starts one supervisor on each node, and it starts the ranks");
const OTHER_CLUSTER: Meaning =
    Refused("vidtui reads jobs from the cluster of SLURM_CLUSTERS or SLURM_CONF, and would not find this one");
const ALL_GPUS: Meaning =
    Refused("the supervisor of a node needs all GPUs of the job on its node, and gives one to each rank");
const CONTAINER: Meaning = Refused("the batch script needs the programs of the node: vidtui, srun and scontrol");
const NO_SUBMISSION: Meaning = Refused("sbatch would print information and submit no job");
const OUTPUT_READ: Meaning = Refused("vidtui reads the output of sbatch");

/// The options of Slurm 20.11 to 26.05, by name.
///
/// Source: Slurm, `src/common/slurm_opt.c`, and `src/sbatch/opt.c` for the variables, August 2026.
pub(super) const OPTIONS: [SbatchOption; 121] = [
    option("account", 'A', Needs, "SBATCH_ACCOUNT", Key("account")),
    option("acctg-freq", NONE, Needs, "SBATCH_ACCTG_FREQ", Passes),
    option(
        "array",
        'a',
        Needs,
        "SBATCH_ARRAY_INX",
        Refused("a run is one job, and the tasks of an array would write to the same run folder"),
    ),
    option("autocomplete", NONE, Needs, "", NO_SUBMISSION),
    option("batch", NONE, Needs, "SBATCH_BATCH", Passes),
    option("bb", NONE, Needs, "SBATCH_BURST_BUFFER", Passes),
    option("bbf", NONE, Needs, "", Passes),
    option("begin", 'b', Needs, "", Passes),
    option(
        "chdir",
        'D',
        Needs,
        "",
        Refused("the job runs in the folder of the run; command.folder of the recipe chooses the folder of a command"),
    ),
    option("cluster", NONE, Needs, "", OTHER_CLUSTER),
    option("cluster-constraint", NONE, Needs, "SBATCH_CLUSTER_CONSTRAINT", OTHER_CLUSTER),
    option("clusters", 'M', Needs, "SBATCH_CLUSTERS", OTHER_CLUSTER),
    option("comment", NONE, Needs, "", Passes),
    option("consolidate-segments", NONE, No, "SBATCH_CONSOLIDATE_SEGMENTS", Passes),
    option("constraint", 'C', Needs, "SBATCH_CONSTRAINT", Key("constraint")),
    option("container", NONE, Needs, "SBATCH_CONTAINER", CONTAINER),
    option("container-id", NONE, Needs, "SBATCH_CONTAINER_ID", CONTAINER),
    option("context", NONE, Needs, "", Passes),
    option("contiguous", NONE, No, "", Passes),
    option("core-spec", 'S', Needs, "SBATCH_CORE_SPEC", Passes),
    option("cores-per-socket", NONE, Needs, "", Passes),
    option("cpu-freq", NONE, Needs, "SBATCH_CPU_FREQ_REQ", Passes),
    option("cpus-per-gpu", NONE, Needs, "SBATCH_CPUS_PER_GPU", Passes),
    option("cpus-per-task", 'c', Needs, "", Passes),
    option("deadline", NONE, Needs, "", Passes),
    option("delay-boot", NONE, Needs, "SBATCH_DELAY_BOOT", Passes),
    option("dependency", 'd', Needs, "", Passes),
    option("distribution", 'm', Needs, "SBATCH_DISTRIBUTION", Passes),
    option("error", 'e', Needs, "SBATCH_ERROR", SCRIPT),
    option("exclude", 'x', Needs, "", Passes),
    option("exclusive", NONE, May, "SBATCH_EXCLUSIVE", Passes),
    // The batch script passes its environment to its steps, also if it got none from sbatch.
    option("export", NONE, Needs, "SBATCH_EXPORT", Passes),
    option("export-file", NONE, Needs, "", Passes),
    option("external", NONE, No, "", Refused("the job would have no batch script")),
    option("extra", NONE, Needs, "", Passes),
    option("extra-node-info", 'B', Needs, "", Passes),
    // Slurm before 25.05 accepts a timeout.
    option("get-user-env", NONE, May, "SBATCH_GET_USER_ENV", Passes),
    option("gid", NONE, Needs, "", Passes),
    option("gpu-bind", NONE, Needs, "SBATCH_GPU_BIND", ALL_GPUS),
    option("gpu-freq", NONE, Needs, "SBATCH_GPU_FREQ", Passes),
    option("gpus", 'G', Needs, "SBATCH_GPUS", Key("gpus_per_node")),
    option("gpus-per-node", NONE, Needs, "SBATCH_GPUS_PER_NODE", Key("gpus_per_node")),
    option("gpus-per-socket", NONE, Needs, "SBATCH_GPUS_PER_SOCKET", Key("gpus_per_node")),
    option("gpus-per-task", NONE, Needs, "SBATCH_GPUS_PER_TASK", Key("gpus_per_node")),
    option("gres", NONE, Needs, "SBATCH_GRES", Key("gpus_per_node")),
    option("gres-flags", NONE, Needs, "SBATCH_GRES_FLAGS", Passes),
    option("help", 'h', No, "", NO_SUBMISSION),
    option("hint", NONE, Needs, "SBATCH_HINT", Passes),
    option("hold", 'H', No, "", Passes),
    option("ignore-pbs", NONE, No, "SBATCH_IGNORE_PBS", Passes),
    option("input", 'i', Needs, "SBATCH_INPUT", Refused("a run has no input, and a job whose file is missing fails")),
    option("job-name", 'J', Needs, "SBATCH_JOB_NAME", Refused("the name of the job is the id of its run")),
    option("kill-on-invalid-dep", NONE, Needs, "", Passes),
    option("licenses", 'L', Needs, "", Passes),
    option("mail-type", NONE, Needs, "", Passes),
    option("mail-user", NONE, Needs, "", Passes),
    option("mcs-label", NONE, Needs, "", Passes),
    option("mem", NONE, Needs, "SBATCH_MEM_PER_NODE", Passes),
    option("mem-bind", NONE, Needs, "SBATCH_MEM_BIND", Passes),
    option("mem-per-cpu", NONE, Needs, "SBATCH_MEM_PER_CPU", Passes),
    option("mem-per-gpu", NONE, Needs, "SBATCH_MEM_PER_GPU", Passes),
    option("mem-update", NONE, Needs, "", Passes),
    option("mincpus", NONE, Needs, "", Passes),
    option("network", NONE, Needs, "SBATCH_NETWORK", Passes),
    option("nice", NONE, May, "", Passes),
    option(
        "no-kill",
        'k',
        May,
        "SBATCH_NO_KILL",
        Refused("the batch script sets it for runs whose ranks are independent"),
    ),
    option(
        "no-requeue",
        NONE,
        No,
        "SBATCH_NO_REQUEUE",
        Refused("the job requeues itself before its time limit and continues"),
    ),
    option("nodefile", 'F', Needs, "", Refused("it sets the number of nodes; write nodes, and --nodelist for names")),
    option("nodelist", 'w', Needs, "", Passes),
    option("nodes", 'N', Needs, "", Key("nodes")),
    option("ntasks", 'n', Needs, "", ONE_TASK),
    option("ntasks-per-core", NONE, Needs, "", ONE_TASK),
    option("ntasks-per-gpu", NONE, Needs, "", ONE_TASK),
    option("ntasks-per-node", NONE, Needs, "", ONE_TASK),
    option("ntasks-per-socket", NONE, Needs, "", ONE_TASK),
    option("ntasks-per-tres", NONE, Needs, "", ONE_TASK),
    option("oom-kill-step", NONE, May, "", Passes),
    option("open-mode", NONE, Needs, "SBATCH_OPEN_MODE", SCRIPT),
    option("output", 'o', Needs, "SBATCH_OUTPUT", SCRIPT),
    option("overcommit", 'O', No, "SBATCH_OVERCOMMIT", Passes),
    option("oversubscribe", 's', No, "", Passes),
    option("parsable", NONE, No, "", OUTPUT_READ),
    option("partition", 'p', Needs, "SBATCH_PARTITION", Key("partition")),
    option("power", NONE, Needs, "SBATCH_POWER", Passes),
    option("prefer", NONE, Needs, "", Passes),
    option("priority", NONE, Needs, "", Passes),
    option("profile", NONE, Needs, "SBATCH_PROFILE", Passes),
    option("propagate", NONE, May, "", Passes),
    option("qos", 'q', Needs, "SBATCH_QOS", Passes),
    option("quiet", 'Q', No, "", OUTPUT_READ),
    option("reboot", NONE, No, "", Passes),
    option("requeue", NONE, May, "SBATCH_REQUEUE", SCRIPT),
    option("reservation", NONE, Needs, "SBATCH_RESERVATION", Passes),
    option("resources", NONE, Needs, "", Passes),
    option("resv-ports", NONE, May, "", Passes),
    option("runtime", NONE, Needs, "SBATCH_RUNTIME", CONTAINER),
    option("segment", NONE, Needs, "SBATCH_SEGMENT_SIZE", Passes),
    option(
        "signal",
        NONE,
        Needs,
        "SBATCH_SIGNAL",
        Refused("the batch script sets it; save_before_s of the Slurm file is its time"),
    ),
    option("sockets-per-node", NONE, Needs, "", Passes),
    option("spread-job", NONE, No, "SBATCH_SPREAD_JOB", Passes),
    option("spread-segments", NONE, No, "SBATCH_SPREAD_SEGMENTS", Passes),
    option("stepmgr", NONE, No, "", Passes),
    option("switches", NONE, Needs, "SBATCH_REQ_SWITCH", Passes),
    option("tasks-per-node", NONE, Needs, "", ONE_TASK),
    option("test-only", NONE, No, "", NO_SUBMISSION),
    option("thread-spec", NONE, Needs, "SBATCH_THREAD_SPEC", Passes),
    option("threads-per-core", NONE, Needs, "SBATCH_THREADS_PER_CORE", Passes),
    option("time", 't', Needs, "SBATCH_TIMELIMIT", Key("time")),
    option("time-min", NONE, Needs, "", Passes),
    option("tmp", NONE, Needs, "", Passes),
    option("tres-bind", NONE, Needs, "SBATCH_TRES_BIND", ALL_GPUS),
    option("tres-per-task", NONE, Needs, "SBATCH_TRES_PER_TASK", Key("gpus_per_node")),
    option("uid", NONE, Needs, "", Refused("the job would belong to another user, and you could not stop the run")),
    option("usage", NONE, No, "", NO_SUBMISSION),
    option("use-min-nodes", NONE, No, "SBATCH_USE_MIN_NODES", Passes),
    option("verbose", 'v', No, "SBATCH_DEBUG", OUTPUT_READ),
    option("version", 'V', No, "", NO_SUBMISSION),
    option("wait", 'W', No, "SBATCH_WAIT", Refused("sbatch would wait for the end of the job; use launch --wait")),
    option("wait-all-nodes", NONE, Needs, "SBATCH_WAIT_ALL_NODES", Passes),
    option("wckey", NONE, Needs, "SBATCH_WCKEY", Passes),
    option("wrap", NONE, Needs, "", Refused("its command would replace the batch script")),
];

/// Why a line of `extra` cannot be a part of the batch script.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    pub why: String,
    pub fix: String,
}

fn mistake<T>(why: impl Into<String>, fix: impl Into<String>) -> Result<T, Mistake> {
    Err(Mistake { why: why.into(), fix: fix.into() })
}

/// Returns the decision about an option, by its full long name or its short name. `None` for an option that is not one of
/// Slurm's, such as one of a plugin of the site.
pub fn meaning(name: &str) -> Option<Meaning> {
    let mut letters = name.chars();
    let short = letters.next().filter(|_| letters.next().is_none());
    OPTIONS.iter().find(|option| option.name == name || short == Some(option.short)).map(|option| option.meaning)
}

/// Checks a line of `extra`, which becomes a line of the batch script.
///
/// # Errors
/// An option is refused or has a key of its own, or sbatch would read the line in another way than it looks.
pub(super) fn check(line: &str) -> Result<(), Mistake> {
    options(line)?.into_iter().try_for_each(|option| match option.meaning {
        Passes => Ok(()),
        Key(key) => mistake(
            format!("extra has --{}, for which the Slurm file has a key", option.name),
            format!("remove it from extra, and set {key}"),
        ),
        Refused(why) => mistake(format!("extra has --{}: {why}", option.name), "remove it from extra"),
    })
}

/// Returns the options of Slurm in a line, found as sbatch finds them: several in a line, abbreviated long names, and short
/// names in one word. Other long options belong to a plugin of the site, and are left out.
pub(super) fn options(line: &str) -> Result<Vec<&'static SbatchOption>, Mistake> {
    let mut found = Vec::new();
    let words = words(line)?;
    let mut words = words.iter().map(String::as_str).peekable();
    let mut is_after_unknown = false;
    while let Some(word) = words.next() {
        let in_next = if let Some(long) = word.strip_prefix("--").filter(|name| !name.is_empty()) {
            let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let option = by_long_name(name)?;
            is_after_unknown = option.is_none() && value.is_none();
            found.extend(option);
            option.is_some_and(|option| option.takes == Needs) && value.is_none()
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty() && word != "--") {
            is_after_unknown = false;
            let (options, in_next) = by_short_names(word, letters)?;
            found.extend(options);
            in_next
        } else if ["hetjob", "packjob"].contains(&word.to_ascii_lowercase().as_str()) || word == ":" {
            return mistake(
                format!("extra has {word:?}: the parts of a heterogeneous job have different nodes"),
                "remove it; all nodes of a run have the same number of GPUs",
            );
        } else if is_after_unknown {
            // The value of an option of a plugin.
            is_after_unknown = false;
            false
        } else {
            return mistake(
                format!("extra has {word:?}, which is not an option"),
                "write options of sbatch, such as \"--exclusive\"",
            );
        };
        if in_next && words.next().is_none() {
            let between = if word.starts_with("--") { '=' } else { ' ' };
            let fix = format!("write {word}{between}VALUE");
            return mistake(format!("extra has {word}, and its value is missing"), fix);
        }
    }
    Ok(found)
}

/// Finds an option by its long name or the beginning of it, as getopt_long does.
fn by_long_name(name: &str) -> Result<Option<&'static SbatchOption>, Mistake> {
    if let Some(option) = OPTIONS.iter().find(|option| option.name == name) {
        return Ok(Some(option));
    }
    let matching: Vec<&SbatchOption> = OPTIONS.iter().filter(|option| option.name.starts_with(name)).collect();
    match matching[..] {
        [] => Ok(None),
        [option] => Ok(Some(option)),
        _ => {
            let names: Vec<String> = matching.iter().map(|option| format!("--{}", option.name)).collect();
            mistake(
                format!("extra has --{name}, which begins several options"),
                format!("write {}", names.join(" or ")),
            )
        }
    }
}

/// Finds the options of a word such as `-HA`, and whether the next word is the value of the last one.
fn by_short_names(word: &str, letters: &str) -> Result<(Vec<&'static SbatchOption>, bool), Mistake> {
    let mut found = Vec::new();
    for (at, letter) in letters.char_indices() {
        let Some(option) = OPTIONS.iter().find(|option| option.short == letter && letter != NONE) else {
            return mistake(
                format!("extra has {word:?}: sbatch has no option -{letter}"),
                "write the long names of options, as in \"--exclusive\"",
            );
        };
        found.push(option);
        let is_last = at + letter.len_utf8() == letters.len();
        if option.takes != No {
            return Ok((found, is_last && option.takes == Needs));
        }
    }
    Ok((found, false))
}

/// Splits a line into words as sbatch does: at blanks, except in quotes and after a backslash.
fn words(line: &str) -> Result<Vec<String>, Mistake> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut quote = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\\', _) => word.get_or_insert_default().extend(letters.next()),
            (letter, Some(end)) if letter == end => quote = None,
            (letter, Some(_)) => word.get_or_insert_default().push(letter),
            ('"' | '\'', None) => quote = Some(letter),
            ('#', None) => {
                return mistake(
                    format!("extra has {line:?}: sbatch ignores the rest of a line after #"),
                    "write the value in quotes, as in '--comment=\"run #7\"'",
                );
            }
            (letter, None) if letter.is_ascii_whitespace() => words.extend(word.take()),
            (letter, None) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    match quote {
        None => Ok(words),
        Some(end) => mistake(format!("extra has {line:?}: the closing {end} is missing"), "close the quotes"),
    }
}

/// Quotes a word for a line of the batch script. For sbatch, a backslash escapes a character even within quotes.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=&|*~[]".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("\"{}\"", word.replace('\\', r"\\").replace('"', r#"\""#))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(line: &str) -> Vec<&'static str> {
        options(line).unwrap().iter().map(|option| option.name).collect()
    }

    #[test]
    fn the_options_are_sorted_and_their_names_and_variables_are_unique() {
        assert!(OPTIONS.is_sorted_by(|a, b| a.name < b.name));
        let mut shorts: Vec<char> = OPTIONS.iter().map(|option| option.short).filter(|short| *short != NONE).collect();
        let mut variables: Vec<&str> = OPTIONS.iter().map(|option| option.variable).filter(|v| !v.is_empty()).collect();
        let counts = (shorts.len(), variables.len());
        shorts.sort_unstable();
        shorts.dedup();
        variables.sort_unstable();
        variables.dedup();
        assert_eq!((shorts.len(), variables.len()), counts);
    }

    #[test]
    fn every_decision_about_an_option_matches_its_snapshot() {
        let line = |option: &SbatchOption| format!("--{}: {:?}", option.name, option.meaning);
        insta::assert_snapshot!(OPTIONS.iter().map(line).collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn an_option_is_found_in_every_spelling_that_sbatch_accepts() {
        for line in
            ["--array=0-1", "--array 0-1", "-a 0-1", "-a0-1", "--arr=0-1", "--ar 0-1", "  --array=\"0-1\"", "-Ha0"]
        {
            assert_eq!(names(line).last(), Some(&"array"), "{line}");
            assert!(check(line).unwrap_err().why.contains("--array"), "{line}");
        }
        assert_eq!(names("--exclusive --qos=high -d afterok:7"), ["exclusive", "qos", "dependency"]);
        assert_eq!(names("-Hs --nice=5 --wckey='a b'"), ["hold", "oversubscribe", "nice", "wckey"]);
        // The value of an option is not an option.
        assert_eq!(names("--comment --array -x -w"), ["comment", "exclude"]);
        // An exact name counts more than the longer names that it begins.
        assert_eq!(names("--mem=0 --gres-flags=enforce-binding --time-min=1"), ["mem", "gres-flags", "time-min"]);
    }

    #[test]
    fn options_of_plugins_pass_with_and_without_values() {
        for line in
            ["--container-image=nvcr.io/pytorch", "--container-image nvcr.io/pytorch", "--no-container-mount-home"]
        {
            assert_eq!((names(line), check(line)), (vec![], Ok(())), "{line}");
        }
    }

    #[test]
    fn a_line_that_sbatch_would_read_in_another_way_is_refused() {
        let lines = [
            "exclusive",
            "--",
            "-",
            "hetjob",
            "HetJob",
            "--nodes=1 : --nodes=2",
            "--comment=a#b",
            "--comment=\"a",
            "--qos",
            "-d",
            "--g=1",
            "-Z",
            "--exclusive node01",
            "--qos=a b",
        ];
        let reports = lines.map(|line| {
            let Mistake { why, fix } = check(line).unwrap_err();
            format!("{line}\n  {why}\n  hint: {fix}")
        });
        insta::assert_snapshot!(reports.join("\n"));
    }

    proptest! {
        #[test]
        fn a_quoted_word_is_read_back(word in r#"[a-z"'\\ #=é-]{1,12}"#) {
            prop_assert_eq!(words(&quoted(&word)).unwrap(), [word]);
        }

        #[test]
        fn no_line_panics(line in r#"(--?[a-zA-Z]{0,6}|[="' #\\é]){0,8}"#) {
            let _ = check(&line);
        }
    }
}

//! Refuses blank arguments: a shell variable that is not set becomes one, and a blank name, path or list of nodes would select what the user
//! did not mean.

use crate::command_error::CommandError;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use rundir::{ErrorCode, Failure};

/// The arguments that may be blank: `kill` refuses a blank pattern after it has counted the processes that the pattern selects, and a blank note
/// removes the note.
const MAY_BE_BLANK: [&str; 2] = ["pattern", "text"];

/// Refuses the first blank value of a command line.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] with the name of the argument.
pub fn refuse_blank(command: &Command, matches: &ArgMatches) -> Result<(), CommandError> {
    if let Some(arg) = command.get_arguments().find(|arg| is_blank(arg, matches)) {
        let name = name(arg);
        let why = "its value is blank; a shell variable that is not set becomes a blank value";
        let fix = format!("give {name} a value, or leave it out");
        return Err(CommandError::request(Failure::new(
            ErrorCode::InvalidArgument,
            format!("cannot use {name}"),
            why,
            fix,
        )));
    }
    match matches.subcommand() {
        Some((name, of_subcommand)) => {
            command.find_subcommand(name).map_or(Ok(()), |subcommand| refuse_blank(subcommand, of_subcommand))
        }
        None => Ok(()),
    }
}

fn is_blank(arg: &Arg, matches: &ArgMatches) -> bool {
    let id = arg.get_id().as_str();
    if MAY_BE_BLANK.contains(&id) || !arg.get_action().takes_values() {
        return false;
    }
    let Ok(Some(mut values)) = matches.try_get_raw(id) else { return false };
    let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
    is_given && values.any(|value| value.to_string_lossy().trim().is_empty())
}

/// Returns the name that the help shows: `--hostfile` or RUN.
fn name(arg: &Arg) -> String {
    match (arg.get_long(), arg.get_value_names()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some([name, ..])) => name.to_string(),
        (None, _) => arg.get_id().as_str().to_uppercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;
    use clap::CommandFactory;

    /// Returns why a command line is refused.
    fn refused(words: &[&str]) -> Option<String> {
        let mut command = Args::command();
        let matches = command.try_get_matches_from_mut([&["vidtui"], words].concat()).unwrap();
        refuse_blank(&command, &matches).err().map(|error| error.into_failure().what)
    }

    #[test]
    fn a_blank_value_of_any_argument_is_refused_by_its_name() {
        let cases: [(&[&str], &str); 12] = [
            (&["stop", ""], "RUN"),
            (&["kill", " "], "RUN"),
            (&["kill", "--training", "--hostfile", ""], "--hostfile"),
            (&["kill", "--training", "--hostfile", "gpus.txt", "--include", ""], "--include"),
            (&["kill", "--training", "--hostfile", "gpus.txt", "--exclude", "\t"], "--exclude"),
            (&["--runs", "", "runs"], "--runs"),
            (&["runs", "--runs", ""], "--runs"),
            (&["launch", "recipe.toml", "--set", "train.steps=2", "--set", ""], "--set"),
            (&["launch", "recipe.toml", "--name", ""], "--name"),
            (&["data", "encode", "videos", "--model", "model", "--out", ""], "--out"),
            (&["data", "prune", ""], "DATA"),
            (&["checkpoints", "", "delete", "7"], "RUN"),
        ];
        for (words, name) in cases {
            assert_eq!(refused(words), Some(format!("cannot use {name}")), "{words:?}");
        }
    }

    #[test]
    fn values_and_flags_and_the_pattern_of_a_kill_are_accepted() {
        let cases: [&[&str]; 5] = [
            &["stop", "latest", "--json"],
            &["kill", "--pattern", "", "--dry-run"],
            &["launch", "recipe.toml", "--set", "sample.negative_prompt="],
            &["runs"],
            &[],
        ];
        for words in cases {
            assert_eq!(refused(words), None, "{words:?}");
        }
    }
}

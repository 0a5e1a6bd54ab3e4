//! Reads the command line of this program.

use super::{Args, refuse_blank};
use crate::command_error::{CommandError, ErrorFormat};
use clap::{CommandFactory, FromArgMatches};
use rundir::{ErrorCode, Failure};

/// The exit code of an invalid command line, as clap's.
const USAGE_ERROR: i32 = 2;

/// Reads the command line of this program. Exits with 2 if it is invalid. Also returns the error of a blank argument.
pub fn read() -> (Args, Option<CommandError>) {
    let mut command = Args::command();
    let matches = command.try_get_matches_from_mut(std::env::args_os()).unwrap_or_else(|error| refuse(&error));
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| refuse(&error));
    (args, refuse_blank(&command, &matches).err())
}

/// Prints the error of an invalid command line, or the help that the user requested, and exits.
fn refuse(error: &clap::Error) -> ! {
    let wants_json = std::env::args_os().skip(1).take_while(|word| word != "--").any(|word| word == "--json");
    if wants_json && error.use_stderr() {
        let _ = CommandError::request(usage_failure(&error.to_string())).report(ErrorFormat::Json);
        std::process::exit(USAGE_ERROR);
    }
    error.exit()
}

/// Returns clap's text of a usage error as a failure: what is wrong, then clap's tips and the usage.
fn usage_failure(text: &str) -> Failure {
    let mut paragraphs = text.trim().split("\n\n").map(|lines| lines.split_whitespace().collect::<Vec<_>>().join(" "));
    let why = paragraphs.next().unwrap_or_default();
    let why = why.strip_prefix("error: ").unwrap_or(&why).to_owned();
    let fix = paragraphs.collect::<Vec<_>>().join("; ");
    Failure::new(ErrorCode::InvalidArgument, "cannot read the command line", why, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Failure {
        let refused = Args::command().try_get_matches_from([&["vidtui"], words].concat());
        usage_failure(&refused.unwrap_err().to_string())
    }

    #[test]
    fn a_usage_error_says_what_is_wrong_and_keeps_the_tips() {
        let Failure { why, fix, .. } = of(&["status", "--jsn"]);
        assert_eq!(why, "unexpected argument '--jsn' found");
        assert!(fix.contains("a similar argument exists: '--json'") && fix.contains("Usage: vidtui status"), "{fix}");
        let Failure { why, fix, .. } = of(&["stop"]);
        assert!(why.starts_with("the following required arguments were not provided"), "{why}");
        assert!(fix.contains("--help"), "{fix}");
    }
}

//! Parses command-line arguments that the user types in the console.

use crate::command_error::CommandError;
use clap::Parser;
use rundir::{ErrorCode, Failure};

/// Parses arguments that are quoted as in a shell.
///
/// * `command` — the command that has these arguments; the error names it.
/// * `example` — valid arguments; the error shows them.
pub fn typed<T: clap::Args>(line: &str, command: &str, example: &str) -> Result<T, CommandError> {
    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct Typed<T: clap::Args> {
        #[command(flatten)]
        args: T,
    }
    let invalid = |why: &str| {
        let fix = format!("for example: {example}; vidtui {command} --help lists all arguments");
        let what = format!("cannot run vidtui {command} {line}");
        CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, fix))
    };
    let words = shell_words::split(line).map_err(|_| invalid("a quote is not closed"))?;
    let typed = Typed::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        let why = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect::<Vec<_>>().join(" ");
        invalid(why.trim_start_matches("error: "))
    })?;
    Ok(typed.args)
}

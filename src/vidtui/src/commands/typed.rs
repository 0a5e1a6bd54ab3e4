//! Parses command-line arguments that the user types in the console.

use crate::args::refuse_blank;
use crate::command_error::CommandError;
use clap::{CommandFactory, FromArgMatches, Parser};
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
    let mut parser = Typed::<T>::command();
    let parsed = parser.try_get_matches_from_mut(words).and_then(|matches| {
        let typed = Typed::from_arg_matches(&matches)?;
        Ok((typed, matches))
    });
    let (typed, matches): (Typed<T>, _) = parsed.map_err(|error| {
        let text = error.to_string();
        let why = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect::<Vec<_>>().join(" ");
        invalid(why.trim_start_matches("error: "))
    })?;
    refuse_blank(&parser, &matches)?;
    Ok(typed.args)
}

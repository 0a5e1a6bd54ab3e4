//! `vidtui logs`: prints the logs of the ranks, and follows them with `--follow`.

use crate::args::LogsArgs;
use crate::command_error::CommandError;
use crate::commands::named_run;
use crate::output;
use crate::terminal::takes_escapes;
use crate::workspace::{Needs, Workspace};
use rundir::{Attempt, Error, ErrorCode, Failure, RunDir, Tail};
use std::io;
use std::thread;
use std::time::Duration;
use units::terminal::{Colours, Escaped};

/// How often growing files are read.
const FOLLOW: Duration = Duration::from_millis(300);

/// The log of a rank, read up to an offset.
struct Log {
    rank: usize,
    tail: Tail<String>,
}

/// Prints the logs of the newest attempt.
pub fn run(workspace: &Workspace, args: &LogsArgs) -> Result<(), CommandError> {
    let dir = named_run(workspace, &args.run, Needs::Nothing, args.json)?;
    let Some(mut attempt) = dir.latest_attempt()? else {
        let fix = format!("see its state: vidtui status {}", dir.name());
        return Err(Failure::new(
            ErrorCode::RunNotStarted,
            format!("{} has no logs", dir.name()),
            "it was never started",
            fix,
        )
        .into());
    };
    let mut logs = open(&dir, &attempt, args.rank)?;
    let mut first = true;
    loop {
        // Read the state before the files: if the run has ended, the files are complete.
        let ended = !args.follow || workspace.summary(&dir)?.0.state.is_end();
        for log in &mut logs {
            let most = args.tail.filter(|_| first);
            read(log, most, ended, |rank, lines| print(args, &attempt, rank, lines))?;
        }
        if ended {
            return Ok(());
        }
        first = false;
        thread::sleep(FOLLOW);
        match dir.latest_attempt()? {
            Some(newer) if newer.number != attempt.number => {
                attempt = newer;
                logs = open(&dir, &attempt, args.rank)?;
            }
            _ => {}
        }
    }
}

fn open(dir: &RunDir, attempt: &Attempt, only: Option<usize>) -> Result<Vec<Log>, CommandError> {
    let places = attempt.placement.ranks.iter().filter(|place| only.is_none_or(|rank| rank == place.rank));
    let logs: Vec<Log> = places
        .map(|place| Log { rank: place.rank, tail: Tail::new(dir.rank_log(&place.node, attempt.number, place.rank)) })
        .collect();
    match (logs.is_empty(), only) {
        (true, Some(rank)) => {
            let last = attempt.placement.world().saturating_sub(1);
            let why = format!("attempt {} has ranks 0 to {last}", attempt.number);
            Err(CommandError::request(Failure::new(
                ErrorCode::UnknownName,
                format!("{} has no rank {rank}", dir.name()),
                why,
                "choose one of them",
            )))
        }
        _ => Ok(logs),
    }
}

/// Prints the new lines of a log: all, or the last `most`. If the run has `ended`, they include the text after the last newline.
fn read(
    log: &mut Log,
    most: Option<usize>,
    ended: bool,
    print: impl Fn(usize, &[String]) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let path = log.tail.path().to_owned();
    let failed = |source| Error::io("read", &path, source);
    let mut kept = Vec::new();
    loop {
        let batch = log.tail.poll().map_err(failed)?;
        kept.extend(batch.items);
        if !batch.more && ended {
            kept.extend(log.tail.rest().map_err(failed)?);
        }
        match most {
            // The next batch may have later lines.
            Some(most) => drop(kept.drain(..kept.len().saturating_sub(most))),
            None => print(log.rank, &std::mem::take(&mut kept))?,
        }
        if !batch.more {
            return print(log.rank, &kept);
        }
    }
}

/// Prints lines: as JSON whole, as text without what controls a terminal. A terminal gets the colours.
fn print(args: &LogsArgs, attempt: &Attempt, rank: usize, lines: &[String]) -> Result<(), CommandError> {
    if args.json {
        for line in lines {
            output::json_line(&serde_json::json!({ "attempt": attempt.number, "rank": rank, "line": line }))?;
        }
        return Ok(());
    }
    let colours = if takes_escapes(&io::stdout()) { Colours::Keep } else { Colours::Remove };
    let prefix = Escaped::text(&if args.rank.is_some() { String::new() } else { format!("{rank}: ") });
    let text = |line: &String| [prefix.clone(), Escaped::shown(line, colours), Escaped::own("\n")];
    output::styled(&lines.iter().flat_map(text).collect())
}

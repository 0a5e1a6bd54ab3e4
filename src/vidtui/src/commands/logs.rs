//! `vidtui logs`: prints the logs of the ranks, and follows them with `--follow`.

use crate::args::LogsArgs;
use crate::command_error::CommandError;
use crate::output;
use crate::workspace::Workspace;
use rundir::{Attempt, Error, ErrorCode, Failure, RunDir, Tail};
use std::thread;
use std::time::Duration;

/// How often growing files are read.
const FOLLOW: Duration = Duration::from_millis(300);

/// The log of a rank, read up to an offset.
struct Log {
    rank: usize,
    tail: Tail<String>,
}

/// Prints the logs of the newest attempt.
pub fn run(workspace: &Workspace, args: &LogsArgs) -> Result<(), CommandError> {
    let dir = workspace.find(&args.run)?;
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
            let lines = read(log)?;
            let from = args.tail.filter(|_| first).map_or(0, |most| lines.len().saturating_sub(most));
            print(args, &attempt, log.rank, &lines[from..])?;
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

/// Returns the new lines of a log.
fn read(log: &mut Log) -> Result<Vec<String>, CommandError> {
    let mut lines = Vec::new();
    loop {
        let path = log.tail.path().to_owned();
        let batch = log.tail.poll().map_err(|source| Error::Io { action: "read", path, source })?;
        lines.extend(batch.items);
        if !batch.more {
            return Ok(lines);
        }
    }
}

fn print(args: &LogsArgs, attempt: &Attempt, rank: usize, lines: &[String]) -> Result<(), CommandError> {
    if args.json {
        for line in lines {
            output::json_line(&serde_json::json!({ "attempt": attempt.number, "rank": rank, "line": line }))?;
        }
        return Ok(());
    }
    let prefix = if args.rank.is_some() { String::new() } else { format!("{rank}: ") };
    output::text(&lines.iter().map(|line| format!("{prefix}{line}\n")).collect::<String>())
}

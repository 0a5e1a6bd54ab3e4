//! Why ranks ended: which failed first, and how to say it.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};

use camino::Utf8Path;
use nix::sys::signal::Signal;
use nix::sys::statvfs::statvfs;
use rundir::{EventKind, ExitFile, ExitReason, Failure, RankExit, SCHEMA, read_events};
use runstate::recent_metrics;
use signal_hook::consts::{SIGKILL, SIGTERM};

use crate::job::Job;
use crate::ranks::{EndedRank, How};

/// How many of a rank's last lines are kept.
const TAIL_LINES: usize = 20;
/// How much of a log is read for them.
const TAIL_BYTES: u64 = 64 * 1024;
/// Longer lines are cut: a line of a megabyte helps nobody.
const LINE_CHARS: usize = 500;

/// The rank whose failure comes first, among all that have ended so far.
///
/// Of ranks that are found dead together, one that only lost contact with another is a consequence, and one that was
/// killed had no say in the order; then the lower rank counts.
pub fn first_failure(job: &Job, ended: &[EndedRank], stop_asked: bool) -> Option<EndedRank> {
    if stop_asked && job.is_command() {
        // Launchers say by their exit code that they were ended. So they were asked to be.
        return None;
    }
    let failed = ended.iter().filter(|rank| is_failure(rank, stop_asked));
    failed.min_by_key(|rank| (lost_a_peer(job, rank), rank.how.signal.is_none(), rank.rank)).cloned()
}

fn lost_a_peer(job: &Job, rank: &EndedRank) -> bool {
    reported(job, rank).is_some_and(|failure| failure.is_consequence())
}

/// The failure that the rank recorded before it gave up.
fn reported(job: &Job, rank: &EndedRank) -> Option<Failure> {
    job.run.read_rank_failure(&job.node, job.attempt.number, rank.rank)
}

/// A rank that ends by TERM, before it could catch it, did as it was asked.
fn is_failure(rank: &EndedRank, stop_asked: bool) -> bool {
    rank.how.code != Some(0) && !(stop_asked && rank.how.signal == Some(SIGTERM))
}

/// Sums up an attempt whose ranks have all ended, the first failure first.
pub fn exit_file(
    job: &Job,
    ended: &[EndedRank],
    first: Option<&EndedRank>,
    stop_asked: bool,
    ooms_before: Option<u64>,
) -> ExitFile {
    let number = job.attempt.number;
    let metrics = recent_metrics(&job.run).unwrap_or_default();
    let last_step = metrics.iter().rev().find(|sample| sample.attempt == number).map(|sample| sample.step);
    let finished = || {
        let events = read_events(&job.run).unwrap_or_default();
        events.iter().any(|event| event.attempt == number && event.kind == EventKind::Finished)
    };
    // Only ours says when all steps are done.
    let is_done = || job.is_command() && !stop_asked;
    let reason = match first {
        Some(_) => ExitReason::Failed,
        None if ended.iter().any(|rank| rank.how.code != Some(0)) => ExitReason::Killed,
        None if is_done() || finished() => ExitReason::Finished,
        None => ExitReason::Stopped,
    };
    let mut ranks: Vec<RankExit> = ended
        .iter()
        .map(|rank| RankExit {
            rank: rank.rank,
            code: rank.how.code,
            signal: rank.how.signal,
            last_step,
            ended_s: rank.ended_s,
            stderr_tail: tail(&rank.log),
        })
        .collect();
    let first_rank = first.map(|rank| rank.rank);
    ranks.sort_by_key(|rank| (Some(rank.rank) != first_rank, rank.rank));
    ExitFile {
        schema: SCHEMA,
        attempt: number,
        node: job.node.clone(),
        ended_s: ended.iter().map(|rank| rank.ended_s).fold(0.0, f64::max),
        reason,
        first_failure: first_rank,
        failure: first.map(|rank| explain(rank, job, ooms_before)),
        ranks,
    }
}

/// Says why a rank failed: in its own words when it left any.
pub fn explain(rank: &EndedRank, job: &Job, ooms_before: Option<u64>) -> Failure {
    let who = format!("rank {} on node {}", rank.rank, job.node);
    let read_log = format!("read {}, then resume from the last checkpoint", rank.log);
    let how = in_words(rank.how);
    if rank.how.signal == Some(SIGKILL) && !rank.by_us {
        let (why, fix) = killed(ooms_before.zip(oom_kills()), &rank.log);
        return Failure::new(rundir::ErrorCode::Unclassified, format!("{who} was killed"), why, fix);
    }
    if let Some(mut failure) = reported(job, rank) {
        failure.why += &format!(" ({who}, {how})");
        return failure;
    }
    let said = says(rank);
    let why = if said.is_empty() { format!("{how}; it said nothing") } else { format!("{how}; it said: {said}") };
    if disk_is_full(&job.run.root) {
        let fix =
            "make room there (`df`, `vidtui checkpoints` lists what was saved), then resume from the last checkpoint";
        return Failure::new(
            rundir::ErrorCode::Unclassified,
            format!("{who} failed"),
            format!("{why}; the disk of {} is full", job.run.root),
            fix,
        );
    }
    Failure::new(rundir::ErrorCode::Unclassified, format!("{who} failed"), why, read_log)
}

/// Tells whether a disk has no room for what a rank would say or save.
fn disk_is_full(dir: &Utf8Path) -> bool {
    statvfs(dir.as_std_path()).is_ok_and(|disk| disk.blocks_available() == 0)
}

/// Explains a SIGKILL that this supervisor did not send, given the kernel's count of out-of-memory kills before and now.
fn killed(ooms: Option<(u64, u64)>, log: &Utf8Path) -> (&'static str, String) {
    let memory = "use more ranks or a smaller model, or free memory on the node (`dmesg` there names the process that the \
                  kernel chose); then resume from the last checkpoint";
    match ooms {
        Some((before, now)) if now > before => {
            ("the node ran out of memory, and the kernel ended the rank with signal 9 (SIGKILL)", memory.to_owned())
        }
        Some(_) => (
            "somebody sent it signal 9 (SIGKILL); the kernel ended no process of this node for want of memory",
            format!("find out who did (a queue's memory or time limit, a person); {log} is its log; then resume"),
        ),
        None => (
            "it got signal 9 (SIGKILL), which its supervisor did not send: most often the node ran out of memory",
            memory.to_owned(),
        ),
    }
}

/// The line of a rank's log that says most: of a panic its message, of Python the error, else the last one.
fn says(rank: &EndedRank) -> String {
    if let Some(error) = python_error(&last_lines(&rank.log, usize::MAX)) {
        return error;
    }
    let lines = tail(&rank.log);
    let panicked = lines.iter().rposition(|line| line.starts_with("thread '") && line.contains("panicked at"));
    let line = panicked
        .and_then(|index| lines.get(index + 1))
        .or_else(|| lines.iter().rev().find(|line| !line.trim().is_empty()));
    line.cloned().unwrap_or_default()
}

fn in_words(how: How) -> String {
    match (how.code, how.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("signal {number} ({signal})"),
            Err(_) => format!("signal {number}"),
        },
        (None, None) => "an unknown end".to_owned(),
    }
}

/// The last error that Python tells of at the end of a traceback: `ValueError: …`. Launchers add theirs below it.
fn python_error(lines: &[String]) -> Option<String> {
    let without_rank = |line: &str| match line.strip_prefix("[rank").and_then(|rest| rest.split_once("]: ")) {
        Some((rank, line)) if rank.bytes().all(|b| b.is_ascii_digit()) => line.to_owned(),
        _ => line.to_owned(),
    };
    let is_error = |line: &String| {
        let name = line.split(':').next().unwrap_or_default();
        let last = name.rsplit('.').next().unwrap_or_default();
        name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
            && ["Error", "Exception", "Interrupt"].iter().any(|ending| last.ends_with(ending))
            && last != "ChildFailedError"
    };
    let traced = lines.iter().any(|line| line.contains("Traceback (most recent call last)"));
    lines.iter().rev().filter(|_| traced).map(|line| without_rank(line)).find(is_error)
}

/// The last lines of a log, without what a terminal would obey.
fn tail(log: &Utf8Path) -> Vec<String> {
    last_lines(log, TAIL_LINES)
}

fn last_lines(log: &Utf8Path, count: usize) -> Vec<String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let len = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(len.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    // Of a progress bar, what was drawn last.
    let drawn = |line| str::rsplit(line, '\r').find(|part| !part.is_empty()).unwrap_or(line);
    let lines: Vec<&str> = text.lines().map(drawn).collect();
    let clean = |line: &&str| line.chars().filter(|c| !c.is_control()).take(LINE_CHARS).collect();
    lines[lines.len().saturating_sub(count)..].iter().map(clean).collect()
}

/// How many processes the kernel has ended since boot for want of memory; none where it does not count them.
pub fn oom_kills() -> Option<u64> {
    let counters = fs::read_to_string("/proc/vmstat").ok()?;
    counters.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_python_the_error_is_told_and_not_what_its_launcher_says_of_it() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let log = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n\
            [rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n\
            E1120 03:40:12 torch/distributed/elastic failed (exitcode: 1)\n\
            torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n============";
        let want = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB";
        assert_eq!(python_error(&lines(log)).as_deref(), Some(want));
        assert_eq!(python_error(&lines("LookupError: said in passing\nexit")), None);
    }

    #[test]
    fn a_kill_is_blamed_on_memory_only_as_far_as_the_kernel_counts() {
        let why = |ooms| killed(ooms, Utf8Path::new("rank.log")).0;
        assert!(why(Some((4, 5))).starts_with("the node ran out of memory"));
        assert!(why(Some((5, 5))).starts_with("somebody sent it signal 9"));
        assert!(why(None).ends_with("most often the node ran out of memory"));
    }
}

//! Determines how and why ranks ended, from their recorded failures, their logs and the kernel's counters.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};

use camino::Utf8Path;
use cluster::RankPlace;
use nix::sys::signal::Signal;
use nix::sys::statvfs::statvfs;
use rundir::{Cause, ErrorCode, ExitFile, Failure, RankExit, SCHEMA, now_s};
use runstate::recent_metrics;
use signal_hook::consts::SIGKILL;
use units::counted;
use units::terminal::{Colours, shown};

use crate::decide::{RankEnd, Verdict};
use crate::job::Job;
use crate::ranks::EndedRank;

/// The number of lines at the end of a rank's log that the exit file contains.
const TAIL_LINES: usize = 20;
/// The bytes at the end of a log that are read.
const TAIL_BYTES: u64 = 64 * 1024;
/// The characters of a line that are kept: a line of a megabyte does not help a reader.
const LINE_CHARS: usize = 500;

/// Reads how a rank ended and why.
pub fn read(rank: &EndedRank, job: &Job, ooms_before: Option<u64>) -> RankEnd {
    let EndedRank { rank: number, code, signal, .. } = *rank;
    RankEnd { rank: number, code, signal, failure: explain(rank, job, ooms_before) }
}

/// Returns the exit file of a node whose ranks have ended. The rank that failed first is the first in the list.
pub fn exit_file(job: &Job, ended: &[EndedRank], verdict: Verdict) -> ExitFile {
    let attempt = job.attempt.number;
    let Verdict { reason, first_failure, failure } = verdict;
    let metrics = recent_metrics(&job.run).unwrap_or_default();
    let last_step = metrics.iter().rev().find(|sample| sample.attempt == attempt).map(|sample| sample.step);
    let mut ranks: Vec<RankExit> = ended
        .iter()
        .map(|rank| RankExit {
            rank: rank.rank,
            code: rank.code,
            signal: rank.signal,
            last_step,
            ended_s: rank.ended_s,
            stderr_tail: tail(&rank.log),
        })
        .collect();
    ranks.sort_by_key(|rank| (Some(rank.rank) != first_failure, rank.rank));
    let ended_s = ended.iter().map(|rank| rank.ended_s).reduce(f64::max).unwrap_or_else(now_s);
    ExitFile { schema: SCHEMA, attempt, node: job.node.clone(), ended_s, reason, first_failure, failure, ranks }
}

/// Returns the failure of a rank: the recorded one, or one derived from its log and the kernel's counters.
fn explain(rank: &EndedRank, job: &Job, ooms_before: Option<u64>) -> Failure {
    let who = format!("rank {} on node {}", rank.rank, job.node);
    let how = describe(rank);
    if rank.signal == Some(SIGKILL) && !rank.by_us {
        let (code, why, fix) = killed(ooms_before.zip(oom_kills()));
        return Failure::new(code, format!("{who} was killed"), why, fix);
    }
    if let Some(mut failure) = job.run.read_rank_failure(&job.node, job.attempt.number, rank.rank) {
        failure.why += &format!(" ({who}, {how})");
        return if failure.cause == Cause::Peer(None) { name_silent_rank(failure, job, rank.ended_s) } else { failure };
    }
    let line = last_output(rank);
    let why =
        if line.is_empty() { format!("{how}; its log is empty") } else { format!("{how}; its log ends with: {line}") };
    if disk_is_full(&job.run.root) {
        let fix = "make room there (`df`, `vidtui checkpoints` lists what was saved), then resume the run";
        let why = format!("{why}; the disk of {} is full", job.run.root);
        return Failure::new(ErrorCode::DiskFull, format!("{who} failed"), why, fix);
    }
    if reports_out_of_memory(&line) {
        return Failure::new(ErrorCode::OutOfMemory, format!("{who} ran out of memory"), why, LESS_MEMORY);
    }
    let fix = if line.is_empty() {
        format!("look at the messages of node {} (`dmesg`), then resume the run", job.node)
    } else {
        format!("read {}, then resume the run", rank.log)
    };
    Failure::new(ErrorCode::RankFailed, format!("{who} failed"), why, fix)
}

/// Names the rank that stopped answering in the failure of a rank that waited for it. A rank that is stopped, or whose node or file
/// system does not respond, writes no heartbeats.
fn name_silent_rank(failure: Failure, job: &Job, ended_s: f64) -> Failure {
    let attempt = job.attempt.number;
    let age_s = |place: &&RankPlace| {
        let beat = job.run.read_heartbeat(&place.node, attempt, place.rank)?;
        beat.is_late(ended_s).then_some(ended_s - beat.t)
    };
    let silent: Vec<_> = job.attempt.placement.ranks.iter().filter_map(|place| Some((place, age_s(&place)?))).collect();
    let Some((RankPlace { rank, node, .. }, age_s)) = silent.first() else { return failure };
    let others = match silent.len() {
        1 => String::new(),
        count => format!(" (and {})", counted(count - 1, "other rank")),
    };
    Failure {
        cause: Cause::Peer(Some(node.clone())),
        why: format!(
            "rank {rank} on node {node}{others} stopped answering: no heartbeat for {age_s:.0} s; {}",
            failure.why
        ),
        fix: format!(
            "look at rank {rank} on node {node}: its process may have been stopped (`ps` shows state T), or its node or file system does \
             not respond; then resume the run"
        ),
        ..failure
    }
}

/// The hint for a rank that used too much memory.
const LESS_MEMORY: &str = "choose settings that need less (`vidtui check RECIPE --fit-memory SIZE` proposes some for the embedded trainer), \
                           then launch again";

/// Returns whether the last line of a log reports that memory is exhausted: in Rust, C++, Python or libtorch.
fn reports_out_of_memory(line: &str) -> bool {
    const TEXTS: [&str; 5] =
        ["out of memory", "can't allocate memory", "std::bad_alloc", "OutOfMemoryError", "MemoryError"];
    TEXTS.iter().any(|text| line.contains(text))
        || (line.starts_with("memory allocation of ") && line.ends_with("failed"))
}

/// Returns true if the disk of `dir` has no free space.
fn disk_is_full(dir: &Utf8Path) -> bool {
    statvfs(dir.as_std_path()).is_ok_and(|disk| disk.blocks_available() == 0)
}

/// Explains a SIGKILL that this supervisor did not send, given the kernel's count of out-of-memory kills before and now.
fn killed(ooms: Option<(u64, u64)>) -> (ErrorCode, &'static str, &'static str) {
    let memory = "use more ranks or settings that need less (`vidtui check RECIPE --fit-memory SIZE`), or free memory on the node (`dmesg` \
                  there names the process that the kernel chose); then resume the run";
    match ooms {
        Some((before, now)) if now > before => (
            ErrorCode::OutOfMemory,
            "the node ran out of memory, and the kernel ended the rank with signal 9 (SIGKILL)",
            memory,
        ),
        Some(_) => (
            ErrorCode::RankKilled,
            "another process sent it signal 9 (SIGKILL); the kernel reports no out-of-memory kill on this node",
            "find that process (a queue with a memory or time limit, a user), then resume the run",
        ),
        None => (
            ErrorCode::RankKilled,
            "it received signal 9 (SIGKILL), which its supervisor did not send; most often the node ran out of memory",
            memory,
        ),
    }
}

/// Returns the most informative line of a rank's log: the message of a panic, the error of Python, or otherwise the
/// last line.
fn last_output(rank: &EndedRank) -> String {
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

fn describe(rank: &EndedRank) -> String {
    match (rank.code, rank.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("signal {number} ({signal})"),
            Err(_) => format!("signal {number}"),
        },
        (None, None) => "its exit status is unknown".to_owned(),
    }
}

/// Returns the last error after a Python traceback: `ValueError: …`. Skips the errors that launchers append.
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

/// Returns the last lines of a log, without control characters.
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
    let lines: Vec<&str> = text.lines().collect();
    // A progress bar redraws its line; only the last version counts.
    let drawn = |line: &&str| shown(line, Colours::Remove).chars().take(LINE_CHARS).collect();
    lines[lines.len().saturating_sub(count)..].iter().map(drawn).collect()
}

/// Returns the number of out-of-memory kills since boot, or `None` if the kernel does not count them.
pub fn oom_kills() -> Option<u64> {
    let counters = fs::read_to_string("/proc/vmstat").ok()?;
    counters.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_python_is_reported_and_not_that_of_its_launcher() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let log = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n\
            [rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n\
            E1120 03:40:12 torch/distributed/elastic failed (exitcode: 1)\n\
            torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n============";
        let want = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB";
        assert_eq!(python_error(&lines(log)).as_deref(), Some(want));
        assert_eq!(python_error(&lines("LookupError: mentioned in passing\nexit")), None);
    }

    #[test]
    fn the_last_line_of_a_log_tells_whether_memory_was_exhausted() {
        for line in [
            "memory allocation of 68719476736 bytes failed",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "terminate called after throwing an instance of 'std::bad_alloc'",
        ] {
            assert!(reports_out_of_memory(line), "{line}");
        }
        assert!(!reports_out_of_memory("ValueError: the memory allocation of the batch is wrong"));
    }

    #[test]
    fn a_kill_is_attributed_to_memory_only_if_the_kernel_counted_one() {
        let code = |ooms| killed(ooms).0;
        assert_eq!(code(Some((4, 5))), ErrorCode::OutOfMemory);
        assert_eq!(code(Some((5, 5))), ErrorCode::RankKilled);
        assert_eq!(code(None), ErrorCode::RankKilled);
    }
}

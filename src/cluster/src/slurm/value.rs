//! Parses values in the output of Slurm's commands: times, durations, exit codes and counts of GPUs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A time as Slurm prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SlurmTime {
    /// Unix seconds, which the commands request.
    Unix(f64),
    /// The cluster's local time, from a Slurm that ignores `SLURM_TIME_FORMAT`: `2026-11-20T06:02:07`.
    Local(String),
}

impl SlurmTime {
    /// Returns Unix seconds, if known.
    pub fn unix_s(&self) -> Option<f64> {
        match self {
            SlurmTime::Unix(seconds) => Some(*seconds),
            SlurmTime::Local(_) => None,
        }
    }
}

/// The exit status and the signal of a job or step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitCode {
    /// The exit status.
    pub code: i32,
    /// The signal that ended it, or 0. Values above 50 are errors of Slurm itself: 53 if it could not open the job's files.
    pub signal: i32,
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.code, self.signal)
    }
}

/// Returns the text of a cell; `None` for Slurm's placeholders for a missing value.
pub(super) fn text(cell: &str) -> Option<String> {
    let nothing = ["", "(null)", "N/A", "n/a", "NONE", "None", "None assigned", "none", "Unknown"];
    (!nothing.contains(&cell)).then(|| cell.into())
}

pub(super) fn time(cell: &str) -> Option<SlurmTime> {
    let digits = !cell.is_empty() && cell.len() <= 12 && cell.bytes().all(|b| b.is_ascii_digit());
    let unix = digits.then(|| cell.parse().ok()).flatten().map(SlurmTime::Unix);
    unix.or_else(|| (cell.len() >= 10 && cell.as_bytes()[4] == b'-').then(|| SlurmTime::Local(cell.into())))
}

/// Reads `3:0`.
pub(super) fn exit_code(cell: &str) -> Option<ExitCode> {
    let (code, signal) = cell.split_once(':')?;
    Some(ExitCode { code: code.parse().ok()?, signal: signal.parse().ok()? })
}

/// Reads a duration in Slurm's output and returns seconds: `1-02:03:04`, `0:05` or plain seconds. Returns `None` for other text,
/// such as `UNLIMITED`.
pub fn read_duration(cell: &str) -> Option<u64> {
    let (days, clock) = cell.split_once('-').unwrap_or(("0", cell));
    let parts = clock.split(':').map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<_>>>()?;
    let seconds = parts.iter().try_fold(0u64, |sum, part| sum.checked_mul(60)?.checked_add(*part))?;
    let days: u64 = days.parse().ok()?;
    (parts.len() <= 3).then(|| days.checked_mul(86_400)?.checked_add(seconds)).flatten()
}

/// Reads a time limit in the syntax of sbatch and returns seconds: minutes, minutes:seconds, hours:minutes:seconds, days-hours,
/// days-hours:minutes or days-hours:minutes:seconds.
pub(super) fn limit(text: &str) -> Option<u64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(days.parse::<u64>().ok()?), clock),
        None => (None, text),
    };
    let parts = clock.split(':').map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<_>>>()?;
    let of = |amount: u64, seconds: u64| amount.checked_mul(seconds);
    let clock = match (days, &parts[..]) {
        (None, &[minutes]) => of(minutes, 60)?,
        (None, &[minutes, seconds]) => of(minutes, 60)?.checked_add(seconds)?,
        (Some(_), &[hours]) => of(hours, 3600)?,
        (Some(_), &[hours, minutes]) => of(hours, 3600)?.checked_add(of(minutes, 60)?)?,
        (_, &[hours, minutes, seconds]) => of(hours, 3600)?.checked_add(of(minutes, 60)?)?.checked_add(seconds)?,
        _ => return None,
    };
    of(days.unwrap_or(0), 86_400)?.checked_add(clock)
}

/// Counts the GPUs of a node in `gpu:h100:8(S:0-1),shard:80`, `gres:gpu:8` or `gres/gpu:8`.
pub(super) fn gpus(cell: &str) -> Option<u64> {
    let one = |resource: &str| {
        let resource = resource.trim_start_matches("gres").trim_start_matches([':', '/']);
        let rest = resource.strip_prefix("gpu")?.split('(').next()?;
        match rest.rsplit_once([':', '=']) {
            Some((_, count)) => count.parse::<u64>().ok(),
            None => rest.is_empty().then_some(1),
        }
    };
    let counts: Vec<u64> = outside_parentheses(cell).filter_map(one).collect();
    (!counts.is_empty()).then(|| counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count)))
}

/// Splits at the commas that are not in parentheses, as in `gpu:8(S:0,1),shard:80`.
fn outside_parentheses(cell: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    cell.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth <= 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_slurm_prints_them() {
        let cells = [
            "0:05",
            "10:00",
            "2:03:04",
            "1-02:03:04",
            "365-00:00:00",
            "5",
            "UNLIMITED",
            "INVALID",
            "",
            "1:2:3:4",
            "-1",
        ];
        let read = cells.map(read_duration);
        let expected = [5, 600, 7384, 93_784, 31_536_000, 5].map(Some);
        assert_eq!(read[..6], expected);
        assert_eq!(read[6..], [None; 5]);
    }

    #[test]
    fn limits_are_read_in_the_syntax_of_sbatch() {
        let cells = [
            "90",
            "90:30",
            "24:00:00",
            "7-00",
            "1-12:30",
            "1-02:03:04",
            "",
            "soon",
            "1-",
            "1:2:3:4",
            "99999999999999999999",
        ];
        let read = cells.map(limit);
        assert_eq!(read[..6], [5400, 5430, 86_400, 604_800, 131_400, 93_784].map(Some));
        assert_eq!(read[6..], [None; 5]);
    }

    #[test]
    fn gpus_are_counted_in_every_notation() {
        let cells = [
            "gpu:8",
            "gpu:h100:8(S:0-1)",
            "gpu:a100:4,gpu:v100:2",
            "gres:gpu:8",
            "gres/gpu:h100:8",
            "gpu",
            "gpu:h100:8(S:0,1),shard:80",
            "(null)",
            "shard:h100:80",
            "",
        ];
        assert_eq!(cells.map(gpus), [Some(8), Some(8), Some(6), Some(8), Some(8), Some(1), Some(8), None, None, None]);
    }
}

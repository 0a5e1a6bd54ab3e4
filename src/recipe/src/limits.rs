//! The `[run]` section: the start and the time limit of attempts, and the reaction to a failure.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The start settings and the time limit of an attempt, and the reaction to its failure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSettings {
    /// The time limit of an attempt. The attempt saves and stops before the limit.
    pub time_limit: TimeLimit,
    /// Whether a launch copies the trainer to nodes that lack it or have another version.
    pub push_trainer: bool,
    /// The reaction to a failed attempt.
    pub on_failure: OnFailure,
    /// The largest number of automatic resumes within an hour.
    pub heals_per_hour: u64,
    /// The number of nodes at the end of the hostfile that a launch leaves free, to replace failed nodes.
    pub spares: usize,
    /// Whether a resume after a failure may use fewer nodes, with the same global batch.
    pub shrink: bool,
}

/// The settings of a recipe without a `[run]` section.
impl Default for RunSettings {
    fn default() -> Self {
        RunSettings {
            time_limit: TimeLimit(None),
            push_trainer: false,
            on_failure: OnFailure::Stop,
            heals_per_hour: 4,
            spares: 0,
            shrink: false,
        }
    }
}

/// The reaction to a failed attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The run stays as it is until a user resumes it.
    #[default]
    Stop,
    /// The supervisor resumes the run from its newest checkpoint.
    Resume,
}

/// A duration or none: `"1h30m"`, `"none"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct TimeLimit(Option<u64>);

/// The units of a duration, in seconds.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)];

impl TimeLimit {
    /// Returns the limit in seconds.
    pub fn seconds(self) -> Option<u64> {
        self.0
    }
}

/// Shows the duration in its largest units.
impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(mut rest) = self.0 else { return f.write_str("none") };
        for (unit, seconds) in UNITS {
            if rest >= seconds {
                write!(f, "{}{unit}", rest / seconds)?;
            }
            rest %= seconds;
        }
        Ok(())
    }
}

impl FromStr for TimeLimit {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WANTED: &str = "expected a time such as \"90s\", \"30m\", \"4h\" or \"1d12h\", or \"none\"";
        if text == "none" {
            return Ok(Self(None));
        }
        let (mut total, mut number) = (0u64, String::new());
        for c in text.chars() {
            match UNITS.iter().find(|(unit, _)| *unit == c) {
                Some((_, seconds)) => {
                    let part = number.parse::<u64>().ok().and_then(|n| n.checked_mul(*seconds)).ok_or(WANTED)?;
                    total = total.checked_add(part).ok_or(WANTED)?;
                    number.clear();
                }
                None => number.push(c),
            }
        }
        // Digits without a unit remain, or the text is empty.
        if total == 0 || !number.is_empty() { Err(WANTED) } else { Ok(Self(Some(total))) }
    }
}

impl From<TimeLimit> for String {
    fn from(limit: TimeLimit) -> Self {
        limit.to_string()
    }
}

impl TryFrom<String> for TimeLimit {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_read_in_any_units_and_shown_in_the_largest() {
        let read = |text: &str| text.parse::<TimeLimit>().map(|limit| (limit.seconds(), limit.to_string()));
        assert_eq!(read("none"), Ok((None, "none".into())));
        assert_eq!(read("90s"), Ok((Some(90), "1m30s".into())));
        assert_eq!(read("36h"), Ok((Some(129_600), "1d12h".into())));
        assert_eq!(read("1d12h"), read("36h"));
        for wrong in ["", "0s", "4", "h", "4h30", "4.5h", "-1h", "4 h", "999999999999999999999s"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}

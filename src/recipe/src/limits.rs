//! The `[run]` section: the start and the time limit of attempts, and the reaction to a failure.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ResumeEffect;
use crate::schema::{BOOL, EMBEDDED, Kind, MANY, Spec, int, word};

section! {
    /// The start settings and the time limit of an attempt, and the reaction to its failure.
    pub struct RunSettings("run", EMBEDDED, ResumeEffect::None) with Default {
        /// time limit of an attempt, such as 90s, 4h or 1d12h; the attempt saves and stops before it
        pub time_limit: TimeLimit = TimeLimit(None) => Spec::of(Kind::Time);
        /// copies the trainer to nodes that lack it or have another version, as --push does
        pub push_trainer: bool = false => BOOL;
        /// what happens when an attempt fails; resume: it continues from the newest checkpoint, without the node that failed if others
        /// can replace it
        pub on_failure: OnFailure = OnFailure::Stop => word::<OnFailure>();
        /// maximum number of resumes after failures within an hour; run.on_failure = "resume"
        pub heals_per_hour: u64 = 4 => int(1, 1000);
        /// number of nodes at the end of the hostfile that are kept to replace failed nodes
        pub spares: usize = 0 => int(0, MANY);
        /// resumes on fewer nodes after a failure, with the same global batch, if too few are left
        pub shrink: bool = false => BOOL;
    }
}

words! {
    /// The reaction to a failed attempt.
    #[derive(Default)]
    pub enum OnFailure {
        /// The run stays as it is until a user resumes it.
        #[default]
        Stop = "stop",
        /// The supervisor resumes the run from its newest checkpoint.
        Resume = "resume",
    }
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

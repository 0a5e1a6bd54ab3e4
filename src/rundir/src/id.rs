//! Ids of runs: they sort by time and are valid file names.

use crate::Error;
use recipe::{is_name_char, name_of};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The most bytes of an id that [`RunId::parse`] accepts. Ids are names of folders, which have at most 255 bytes.
const MAX_ID: usize = 128;

/// The id of a run and the name of its folder: `2026-11-20T0340-demo-2s-k7f2`.
///
/// It consists of the UTC time to the minute, the name and a random tail. It has only letters and digits, of any script, and `-`, so that it
/// never needs quoting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(String);

impl RunId {
    /// Makes the id of a run created at `now_s` (Unix seconds); `random` is any random number, its low 20 bits are used.
    ///
    /// Letters of `name` become lower case, and characters that an id cannot contain become `-`: see [`name_of`].
    pub fn new(now_s: f64, name: &str, random: u32) -> Self {
        let time = jiff::Timestamp::from_second(now_s as i64).unwrap_or_default();
        let time = time.strftime("%Y-%m-%dT%H%M");
        let name = name_of(&name.to_lowercase());
        let name = if name.is_empty() { "run" } else { &name };
        let mut id = format!("{time}-{name}-");
        // Crockford's alphabet has no letter that looks like a digit.
        const TAIL: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        id.extend((0..4).map(|i| TAIL[(random >> (5 * i)) as usize & 31] as char));
        Self(id)
    }

    /// Parses a run id.
    ///
    /// # Errors
    /// [`Error::BadRunId`] with the rule that is broken.
    pub fn parse(id: &str) -> Result<Self, Error> {
        let bad = |why| Err(Error::BadRunId { id: id.chars().take(MAX_ID).collect(), why });
        if id.len() > MAX_ID {
            return bad("it is longer than 128 bytes");
        }
        if !id.chars().all(is_name_char) {
            return bad("it may contain only letters, digits and '-'");
        }
        let shape = b"dddd-dd-ddTdddd-";
        let matches = |(b, s): (&u8, &u8)| if *s == b'd' { b.is_ascii_digit() } else { b == s };
        if id.len() <= shape.len() || !id.as_bytes().iter().zip(shape).all(matches) {
            return bad("it must begin with a time and have a name, like 2026-11-20T0340-demo");
        }
        Ok(Self(id.to_owned()))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name without the time and the random tail: `demo-2s`.
    pub fn name(&self) -> &str {
        let rest = self.0.get(16..).unwrap_or_default();
        rest.rsplit_once('-').map_or(rest, |(name, _tail)| name)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for RunId {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self, Error> {
        Self::parse(s)
    }
}

impl TryFrom<String> for RunId {
    type Error = Error;
    fn try_from(s: String) -> Result<Self, Error> {
        Self::parse(&s)
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-20 03:40:12 UTC.
    const NOW: f64 = 1_795_146_012.0;

    #[test]
    fn an_id_is_time_name_and_tail() {
        let id = RunId::new(NOW, "demo-2s", 12345);
        assert!(id.as_str().starts_with("2026-11-20T0340-demo-2s-"), "{id}");
        assert_eq!(id.name(), "demo-2s");
        assert_eq!(id.as_str().len(), "2026-11-20T0340-demo-2s-k7f2".len());
    }

    #[test]
    fn an_id_of_any_name_parses() {
        for name in
            ["", "../../etc", "Größe 2s", "--", "a b", &"x".repeat(500), "TTT mlp/3s", &"实验".repeat(99), "हिन्दी"]
        {
            let id = RunId::new(NOW, name, u32::MAX);
            assert_eq!(RunId::parse(id.as_str()).unwrap(), id, "{name:?}");
        }
        assert_eq!(RunId::new(NOW, "../../etc", 0).name(), "etc");
        assert_eq!(RunId::new(NOW, "", 0).name(), "run");
        assert_eq!(RunId::new(NOW, "实验一 LR", 0).name(), "实验一-lr");
    }

    #[test]
    fn different_random_numbers_make_different_ids() {
        let ids: std::collections::BTreeSet<_> = (0..1000).map(|r| RunId::new(NOW, "a", r)).collect();
        assert_eq!(ids.len(), 1000);
    }

    #[test]
    fn a_text_that_is_not_an_id_is_refused() {
        for bad in [
            "",
            "demo",
            "2026-11-20T0340-",
            "2026-11-20T0340-../x",
            "2026-11-20 0340-a",
            "x026-11-20T0340-a-b",
            "2026-11-20T0340-a\u{202e}b",
            "2026-11-20T0340-a\u{3000}b",
            "2026-11-20T0340-a\nb",
        ] {
            assert!(RunId::parse(bad).is_err(), "{bad}");
        }
        assert!(RunId::parse(&format!("2026-11-20T0340-{}", "a".repeat(200))).is_err());
        let failure = crate::Failure::from(RunId::parse("demo").unwrap_err());
        assert_eq!(failure.code, crate::ErrorCode::InvalidRunId);
    }
}

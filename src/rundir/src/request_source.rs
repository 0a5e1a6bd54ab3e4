//! The origin of a save request or stop request.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The origin of a save request or stop request. Its name on disk is in kebab case and never changes.
///
/// The order of the variants is their priority: if a request has several origins, the greatest one is reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestSource {
    /// The supervisor of a rank has ended.
    Orphaned,
    /// The time limit is near.
    TimeLimit,
    /// A file in the run directory.
    File,
    /// SIGUSR1.
    Usr1,
    /// SIGTERM or SIGINT.
    Term,
    /// An origin that an older or newer version wrote.
    #[default]
    #[serde(other)]
    Unknown,
}

impl fmt::Display for RequestSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Orphaned => "the supervisor is gone",
            Self::TimeLimit => "the time limit is near",
            Self::File => "a file in the run directory",
            Self::Usr1 => "SIGUSR1",
            Self::Term => "SIGTERM or SIGINT",
            Self::Unknown => "unknown origin",
        })
    }
}

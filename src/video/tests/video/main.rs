//! Tests with clips that ffmpeg makes.

#![expect(clippy::unwrap_used, reason = "a panic shows the failing line")]

mod bad_input;
mod clips;
mod colours;
mod cutting;
mod exactness;
#[path = "../../../../tests/oracle/mod.rs"]
mod oracle;
mod pillow;
mod pooled;
mod writing;

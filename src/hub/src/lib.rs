//! Downloads models and data sets from the Hugging Face Hub, or a mirror, into the cache that Python's `huggingface_hub` reads.
//!
//! An interrupted download continues where it stopped. Every file is checked against the size and hash that the Hub
//! lists, and is visible in the cache only after that. Endpoint, token, cache and revision are given explicitly
//! ([`Settings`]); [`Settings::from_environment`] is the only reader of the environment.

mod cache;
mod client;
mod download;
mod fetch;
mod hash;
mod hint;
mod kind;
mod listing;
mod select;
mod settings;
#[cfg(test)]
mod tests;

pub use cache::Cache;
pub use fetch::{FetchProgress, FetchRequest, Fetched, fetch};
pub use hint::{fetch_command, fetched};
pub use kind::Kind;
pub use settings::{Settings, Token};

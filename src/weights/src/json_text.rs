//! JSON as `config.json` and the index of shards have it.

use serde_json::Value;

/// Formats a JSON file for people.
pub(crate) fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

//! A key of a recipe with its value and its default.

use std::collections::BTreeMap;

/// A key of a recipe with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipeSetting {
    /// The key, such as `optimizer.lr`.
    pub key: String,
    /// The value.
    pub value: String,
    /// The default value, if the key has one.
    pub default: Option<String>,
}

impl RecipeSetting {
    /// Adds the defaults to keys with their values, and keeps their order.
    pub fn with_defaults(settings: Vec<(String, String)>) -> Vec<Self> {
        let defaults: BTreeMap<&str, String> = recipe::default_settings().into_iter().collect();
        let setting = |(key, value): (String, String)| {
            let default = defaults.get(key.as_str()).cloned();
            Self { key, value, default }
        };
        settings.into_iter().map(setting).collect()
    }

    /// Returns whether the value differs from the default, or there is no default.
    pub fn is_set(&self) -> bool {
        self.default.as_ref() != Some(&self.value)
    }
}

/// Returns a value without the quotes of a TOML string; an empty string keeps its quotes.
pub fn bare(value: &str) -> &str {
    match value.trim_matches('"') {
        "" => value,
        bare => bare,
    }
}

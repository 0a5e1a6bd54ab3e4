//! A key of a recipe with its value and its default, and the differences between recipes.

use crate::text;
use std::collections::{BTreeMap, BTreeSet};

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

/// A key whose value differs between recipes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The key, such as `optimizer.lr`.
    pub key: String,
    /// The value in each recipe; `None` if the recipe does not have the key, or while it loads.
    pub values: Vec<Option<String>>,
}

impl Difference {
    /// Returns the values as text: without quotes, and without the leading folders that all paths share. A value that is absent
    /// is `none`.
    pub fn cells(&self, none: &str) -> Vec<String> {
        let texts: Vec<Option<&str>> =
            self.values.iter().map(|value| value.as_deref().map(|v| v.trim_matches('"'))).collect();
        let known: Vec<&str> = texts.iter().copied().flatten().collect();
        let common = match known.iter().all(|text| text.starts_with('/')) {
            true => common_folder(&known),
            false => 0,
        };
        let cell = |text: Option<&str>| match text {
            None => none.to_owned(),
            Some("") => "\"\"".to_owned(),
            Some(text) => text::clean(&text[common..].replace('\n', " ")),
        };
        texts.into_iter().map(cell).collect()
    }
}

/// Returns the keys whose values differ, in the order of a recipe. Recipes that are still loading are not compared.
pub fn differences(recipes: &[Option<&[RecipeSetting]>]) -> Vec<Difference> {
    let mut keys: Vec<&str> = Vec::new();
    let mut seen = BTreeSet::new();
    for setting in recipes.iter().copied().flatten().flatten() {
        if seen.insert(&setting.key) {
            keys.push(&setting.key);
        }
    }
    let value = |recipe: &[RecipeSetting], key: &str| {
        recipe.iter().find(|setting| setting.key == key).map(|setting| setting.value.clone())
    };
    let difference = |key: &str| {
        let known: Vec<_> = recipes.iter().copied().flatten().map(|recipe| value(recipe, key)).collect();
        let differs = known.windows(2).any(|pair| pair[0] != pair[1]);
        let values = || recipes.iter().map(|recipe| value((*recipe)?, key)).collect();
        differs.then(|| Difference { key: key.to_owned(), values: values() })
    };
    keys.into_iter().filter_map(difference).collect()
}

/// Returns the length in bytes of the leading folders that all paths share.
fn common_folder(paths: &[&str]) -> usize {
    let Some((first, others)) = paths.split_first() else { return 0 };
    let common = |other: &&str| first.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    let length = others.iter().map(common).min().unwrap_or(0);
    first.as_bytes()[..length].iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1)
}

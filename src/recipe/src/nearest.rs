//! Suggestions for mistyped words and keys.

use crate::{Key, SCHEMA};

/// Returns the candidate that a mistyped word most likely stands for; `None` if no candidate is similar.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = 1.max(word.chars().count() / 2);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word.to_lowercase(), candidate), candidate))
        .min_by_key(|&(distance, _)| distance)
        .filter(|&(distance, _)| distance <= allowed)
        .map(|(_, candidate)| candidate)
}

/// Sorts dotted names by their similarity to a word that matches none of them, most similar first.
///
/// The word, or its last parts, may be like any part of a name: `attn.qq` is like `blocks.0.attn.q.weight`. Longer parts
/// count more.
pub(crate) fn by_likeness<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let joined = |parts: &[&str]| parts.join(".").to_lowercase();
    let parts: Vec<&str> = word.split('.').collect();
    let ends: Vec<String> = (0..parts.len()).map(|from| joined(&parts[from..])).collect();
    let likeness = |name: &str| {
        let parts: Vec<&str> = name.split('.').collect();
        let runs = (0..parts.len()).flat_map(|from| (from + 1..=parts.len()).map(move |to| (from, to)));
        let runs: Vec<String> = runs.map(|(from, to)| joined(&parts[from..to])).collect();
        let letters = |end: &String, run: &String| strsim::normalized_damerau_levenshtein(end, run) * end.len() as f64;
        ends.iter().flat_map(|end| runs.iter().map(move |run| letters(end, run))).fold(0.0, f64::max)
    };
    let mut sorted: Vec<(f64, &str)> = names.into_iter().map(|name| (likeness(name), name)).collect();
    sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
    sorted.into_iter().map(|(_, name)| name).collect()
}

/// Returns the key that an unknown key most likely stands for.
///
/// Tries the right key in a wrong section, then a mistyped key, then a synonym: `learning_rate` for `lr`, `batch_size` for
/// `global_batch`. Tries the given section before the others.
pub(crate) fn nearest_key(path: &str) -> Option<&'static Key> {
    let (section, name) = path.split_once('.').unwrap_or(("", path));
    let section = nearest(section, sections()).unwrap_or(section);
    let (here, mut elsewhere): (Vec<&'static Key>, Vec<&'static Key>) =
        SCHEMA.iter().partition(|key| key.parts().0 == section);
    // Few recipes have a command.
    elsewhere.sort_by_key(|key| key.parts().0 == "command");
    let exact = here.iter().chain(&elsewhere).find(|key| key.parts().1 == name).copied();
    exact.or_else(|| [here, elsewhere].iter().find_map(|keys| likely(name, keys)))
}

fn likely(name: &str, keys: &[&'static Key]) -> Option<&'static Key> {
    let mistyped = nearest(name, keys.iter().map(|key| key.parts().1));
    keys.iter()
        .find(|key| Some(key.parts().1) == mistyped)
        .or_else(|| keys.iter().find(|key| same_words(name, key.parts().1)))
        .copied()
}

/// Returns whether one name abbreviates the other, or both contain the same word of four or more letters.
fn same_words(a: &str, b: &str) -> bool {
    let initials = |name: &str| name.split('_').filter_map(|word| word.chars().next()).collect::<String>();
    let in_both = |word: &str| word.len() > 3 && b.split('_').any(|other| other == word);
    initials(a) == b || initials(b) == a || a.split('_').any(in_both)
}

/// Returns the sections of a recipe.
pub(crate) fn sections() -> Vec<&'static str> {
    let mut sections: Vec<_> = SCHEMA.iter().map(|key| key.parts().0).filter(|section| !section.is_empty()).collect();
    sections.dedup();
    sections
}

/// Returns a hint for an unknown key.
pub(crate) fn instead_of(path: &str) -> String {
    if let Some(key) = nearest_key(path) {
        return format!("did you mean {}? ({})", key.path, key.doc);
    }
    let section = path.split_once('.').map_or("", |(section, _)| section);
    let keys: Vec<_> = SCHEMA.iter().filter(|key| key.parts().0 == section).map(|key| key.parts().1).collect();
    match sections().contains(&section) {
        true => format!("[{section}] takes {}; `vidtui recipe keys {section}.` explains them", keys.join(", ")),
        false => format!("the sections are {}; `vidtui recipe keys` lists their keys", sections().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_key_suggests_the_intended_one() {
        let meant = |path| nearest_key(path).map(|key| key.path);
        assert_eq!(meant("optimizer.lrr"), Some("optimizer.lr"));
        assert_eq!(meant("optimizer.lr_ssm"), Some("optimizer.lr_ttt"));
        assert_eq!(meant("optimizer.clip_nrom"), Some("optimizer.clip_norm"));
        assert_eq!(meant("optimiser.lr"), Some("optimizer.lr"));
        assert_eq!(meant("optimiser.lr_edn"), Some("optimizer.lr_end"));
        assert_eq!(meant("steps"), Some("train.steps"));
        assert_eq!(meant("training.steps"), Some("train.steps"));
        assert_eq!(meant("train.Steps"), Some("train.steps"));
        assert_eq!(meant("mesh.dp_sharding"), Some("mesh.dp_shard"));
        assert_eq!(meant("optimizer.learning_rate"), Some("optimizer.lr"));
        assert_eq!(meant("train.batch_size"), Some("train.global_batch"));
        assert_eq!(meant("checkpoint.save_interval"), Some("checkpoint.interval"));
    }

    #[test]
    fn a_key_unlike_any_other_lists_the_choices() {
        insta::assert_snapshot!(["log.zzzzzzzzzzz", "wandb.qqqqqqqqqqqqqq"].map(instead_of).join("\n"));
    }
}

//! Completion of overrides: keys from the recipe's table, and values from the words that a key takes.

use recipe::{Key, Settings};

/// A completion of a typed override.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The key, or the key and a value.
    pub text: String,
    /// The meaning of the key; empty for a value.
    pub doc: &'static str,
}

/// Returns what a typed override can become: the keys that begin with the text, else those that contain it; after the `=`, the
/// values.
pub fn candidates(settings: &Settings, text: &str) -> Vec<Candidate> {
    if let Some((key, value)) = text.split_once('=') {
        let words = Key::find(key.trim()).map_or(&[][..], |key| key.kind.words());
        let begins = words.iter().filter(|word| word.starts_with(value.trim()));
        return begins.map(|word| Candidate { text: format!("{}={word}", key.trim()), doc: "" }).collect();
    }
    let typed = text.trim();
    let of = |passes: &dyn Fn(&str) -> bool| -> Vec<Candidate> {
        let keys = settings.keys().filter(|key| passes(key.path));
        keys.map(|key| Candidate { text: key.path.to_owned(), doc: key.doc }).collect()
    };
    let begins = of(&|key| key.starts_with(typed));
    if begins.is_empty() { of(&|key| key.contains(typed)) } else { begins }
}

/// Returns the text completed as far as all candidates agree. A complete key gets its `=`.
pub fn complete(text: &str, candidates: &[Candidate]) -> String {
    let [first, others @ ..] = candidates else { return text.to_owned() };
    if others.is_empty() {
        return if first.text.contains('=') { first.text.clone() } else { format!("{}=", first.text) };
    }
    // Keys and words are ASCII.
    let agreed = others.iter().fold(first.text.len(), |most, other| {
        first.text.bytes().zip(other.text.bytes()).take(most).take_while(|(a, b)| a == b).count()
    });
    if agreed > text.trim().len() { first.text[..agreed].to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_completed_as_far_as_they_agree() {
        let settings = Settings::read("../configs/demo/2s.toml".into()).unwrap();
        let completed = |text: &str| complete(text, &candidates(&settings, text));
        assert_eq!(completed("train.st"), "train.steps=");
        assert_eq!(completed("mesh.dp"), "mesh.dp_");
        assert_eq!(completed("mesh.dp_"), "mesh.dp_", "two keys are left");
        assert_eq!(completed("grad_acc"), "train.grad_accum=", "a part of a key is enough if no key begins with it");
        assert_eq!(completed("train.device=cu"), "train.device=cuda");
        assert_eq!(completed("remat.keep_attention=t"), "remat.keep_attention=true");
        assert_eq!(completed("train.steps=1"), "train.steps=1");
        assert_eq!(completed("nothing.like.it"), "nothing.like.it");
        assert!(candidates(&settings, "encode.").is_empty(), "a training recipe has no keys of an encode");
    }
}

//! The search for keys of a recipe by words.

use crate::nearest::{by_likeness, nearest_key};
use crate::{Key, SCHEMA};

impl Key {
    /// Finds the keys whose path or meaning contains every one of the words, in the order of [`SCHEMA`]. Case does not matter.
    ///
    /// # Errors
    /// [`NoSuchKey`] if there is none.
    pub fn search(words: &[String]) -> Result<Vec<&'static Key>, NoSuchKey> {
        let lower: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
        let contains = |key: &Key, word: &String| key.path.contains(word) || key.doc.to_lowercase().contains(word);
        let found: Vec<&Key> = SCHEMA.iter().filter(|key| lower.iter().all(|word| contains(key, word))).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let is_unknown = |word: &String| !SCHEMA.iter().any(|key| contains(key, word));
        Err(match lower.iter().position(is_unknown) {
            Some(at) => {
                let word = &lower[at];
                let intended = nearest_key(word).map(|key| key.path);
                let similar = by_likeness(word, SCHEMA.iter().map(|key| key.path));
                let others = similar.into_iter().filter(|path| Some(*path) != intended);
                NoSuchKey::Unknown {
                    word: words[at].clone(),
                    nearest: intended.into_iter().chain(others).take(NEAREST).collect(),
                }
            }
            None => NoSuchKey::NotTogether,
        })
    }
}

/// Why no key is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoSuchKey {
    /// No key contains this word.
    Unknown {
        /// The word.
        word: String,
        /// The keys that it most likely stands for, most likely first.
        nearest: Vec<&'static str>,
    },
    /// Some key contains each word, but none contains all.
    NotTogether,
}

/// The number of keys that are proposed for an unknown word.
const NEAREST: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(words: &[&str]) -> Result<Vec<&'static str>, NoSuchKey> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Key::search(&words).map(|keys| keys.into_iter().map(|key| key.path).collect())
    }

    #[test]
    fn a_key_is_found_by_words_of_its_path_and_of_its_meaning() {
        assert_eq!(paths(&[]).unwrap().len(), SCHEMA.len());
        assert_eq!(paths(&["checkpoint.interval"]).unwrap(), ["checkpoint.interval"]);
        assert_eq!(paths(&["Learning", "optimizer.LR_TTT"]).unwrap(), ["optimizer.lr_ttt"]);
    }

    #[test]
    fn an_unknown_word_proposes_the_nearest_keys_and_words_of_different_keys_do_not() {
        let nearest = |word| match paths(&[word]) {
            Err(NoSuchKey::Unknown { nearest, .. }) => nearest,
            found => panic!("{found:?}"),
        };
        assert_eq!(nearest("optimizer.learning_rate")[0], "optimizer.lr");
        assert_eq!(nearest("clip_nrom")[0], "optimizer.clip_norm");
        assert_eq!(nearest("clip_nrom").len(), NEAREST);
        assert_eq!(paths(&["mesh.tp", "optimizer.lr"]), Err(NoSuchKey::NotTogether));
    }
}

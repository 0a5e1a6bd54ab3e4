//! Names of recipes, stages and runs. Folders and files are named after them, so that few characters are valid: letters and digits of any
//! script, and `-`.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// The most characters of a name, so that a list is readable in 80 columns.
const MAX_CHARS: usize = 40;
/// The most bytes of a name. The names of folders have at most 255 bytes, with a time and more beside it.
const MAX_BYTES: usize = 96;

/// Returns whether a character is valid in a name: a letter or digit of any script, a mark of a letter (vowel signs of Hindi, accents),
/// or `-`.
pub fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || is_combining_mark(c) || c == '-'
}

/// Returns whether a name is valid for a recipe or stage.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_BYTES && name.chars().count() <= MAX_CHARS && name.chars().all(is_name_char)
}

/// Makes a name from any text; an empty one if the text has no letter or digit. Characters that are not valid become `-`, but joiners of
/// letters are dropped. Letters have their composed form (NFC), because macOS and keyboards also write `é` as two characters.
pub fn name_of(text: &str) -> String {
    let mut name = String::new();
    let joiners = ['\u{200c}', '\u{200d}'];
    for c in text.nfc().filter(|c| !joiners.contains(c)) {
        let c = if is_name_char(c) { c } else { '-' };
        if c == '-' && (name.is_empty() || name.ends_with('-')) {
            continue;
        }
        if name.len() + c.len_utf8() > MAX_BYTES || name.chars().count() == MAX_CHARS {
            break;
        }
        name.push(c);
    }
    name.truncate(name.trim_end_matches('-').len());
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_the_letters_of_every_script() {
        for (text, name) in [
            ("实验一/学习率 1e-4", "实验一-学习率-1e-4"),
            ("تجربة ١", "تجربة-١"),
            ("हिन्दी_परीक्षण", "हिन्दी-परीक्षण"),
            ("می‌خواهم", "میخواهم"),
            ("실험", "실험"),
            ("Größe 2s", "Größe-2s"),
            // Decomposed, as macOS writes it.
            ("cafe\u{301}", "caf\u{e9}"),
            ("../../etc", "etc"),
            ("a\x1b[2J\u{202e}b", "a-2J-b"),
            ("🎬", ""),
        ] {
            assert_eq!(name_of(text), name, "{text:?}");
            assert!(name.is_empty() || is_name(name), "{name}");
        }
    }

    #[test]
    fn a_long_name_is_cut_to_what_a_folder_can_have() {
        for text in
            ["x".repeat(500), "实".repeat(500), "a-".repeat(500), "𝕏".repeat(500), "e\u{323}\u{301}\u{304}".repeat(500)]
        {
            let name = name_of(&text);
            assert!(is_name(&name), "{name}");
            assert!(name.chars().count() == 40 || name.len() > 90 || name.ends_with('a'), "{name}");
        }
    }
}

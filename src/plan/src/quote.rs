//! Quotes words for shells.
//!
//! `shell_words::quote` leaves `{a,b}` and `!` bare, which bash expands in a script or a pasted line, and it quotes `%`, which is literal.

use std::fmt::Write;

/// Quotes one word for a POSIX shell or bash.
///
/// Words without special characters stay bare, so that scripts are readable. All others get single quotes, within which
/// only the quote itself is special.
pub fn quote(word: &str) -> String {
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Quotes words and joins them to a command line.
pub fn command_line<S: AsRef<str>>(words: &[S]) -> String {
    let mut line = String::new();
    for word in words {
        let gap = if line.is_empty() { "" } else { " " };
        write!(line, "{gap}{}", quote(word.as_ref())).expect("writing to a string cannot fail");
    }
    line
}

/// Returns whether a character is literal everywhere in a command. `=` and `~` are not: they can start an assignment and a
/// home folder.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-./:@%+,".contains(c)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    /// Returns quoted words as a shell reads them, each between angle brackets.
    fn through(shell: &str, words: &[String]) -> Vec<u8> {
        let line = format!("printf '<%s>' {}", command_line(words));
        let out = Command::new(shell).arg("-c").arg(line).output().expect("the shell starts");
        assert!(out.status.success(), "{shell}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    }

    fn printed(words: &[String]) -> Vec<u8> {
        words.iter().map(|word| format!("<{word}>")).collect::<String>().into_bytes()
    }

    #[test]
    fn plain_words_stay_bare_and_others_are_quoted() {
        let words = ["supervise", "/runs/a-1", "", "my runs", "it's", "$HOME", "~", "a=b", "*"];
        insta::assert_snapshot!(command_line(&words), @r"supervise /runs/a-1 '' 'my runs' 'it'\''s' '$HOME' '~' 'a=b' '*'");
    }

    #[test]
    fn special_characters_survive_a_shell() {
        let words: Vec<String> = [
            "'",
            "''",
            "\\'",
            "a\nb",
            "\t",
            "`id`",
            "$(id)",
            "!!",
            "-n",
            "#",
            "\u{1b}[0m",
            "é 😀",
            "a;b&c|d>e<f",
            "\"x\"",
            "{a,b}",
            "{1..3}",
        ]
        .map(String::from)
        .to_vec();
        for shell in ["sh", "bash"] {
            assert_eq!(through(shell, &words), printed(&words), "{shell}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_words_survive_a_shell(words in prop::collection::vec("[^\0]{0,24}", 1..12)) {
            for shell in ["sh", "bash"] {
                prop_assert_eq!(through(shell, &words), printed(&words), "{}", shell);
            }
            // The console splits the lines of a queue with this crate.
            prop_assert_eq!(shell_words::split(&command_line(&words)), Ok(words));
        }
    }
}

use std::fmt::Write;

/// Quotes one word for a POSIX shell. The only place where that is done.
///
/// Words that no shell would touch stay bare, so that scripts stay readable; everything else goes between single
/// quotes, where a shell changes nothing but the quote itself.
pub fn quote(word: &str) -> String {
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Quotes words and joins them to one command line.
pub fn command_line<S: AsRef<str>>(words: &[S]) -> String {
    let mut line = String::new();
    for word in words {
        let gap = if line.is_empty() { "" } else { " " };
        write!(line, "{gap}{}", quote(word.as_ref())).expect("writing to a string cannot fail");
    }
    line
}

/// Characters that mean themselves in every place of a command. `=` and `~` are not among them: an assignment and a home
/// folder begin with them.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-./:@%+,".contains(c)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    /// What `sh` makes of quoted words: each printed between angle brackets.
    fn through_sh(words: &[String]) -> Vec<u8> {
        let line = format!("printf '<%s>' {}", command_line(words));
        let out = Command::new("sh").arg("-c").arg(line).output().expect("sh starts");
        assert!(out.status.success(), "sh: {}", String::from_utf8_lossy(&out.stderr));
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
    fn what_shells_treat_specially_comes_back_unchanged() {
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
        ]
        .map(String::from)
        .to_vec();
        assert_eq!(through_sh(&words), printed(&words));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_words_come_back_from_a_shell_unchanged(words in prop::collection::vec("[^\0]{0,24}", 1..12)) {
            prop_assert_eq!(through_sh(&words), printed(&words));
        }
    }
}

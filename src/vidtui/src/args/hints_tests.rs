//! Tests that every command in a hint, an error or a help text can be typed as it is printed: its subcommand, its flags and the number of
//! its arguments exist, the recipe has the keys that it sets, and a resume may change them.

use super::Args;
use camino::{Utf8Path, Utf8PathBuf};
use clap::error::ErrorKind;
use clap::{Command, CommandFactory};
use recipe::{Key, ResumeEffect};
use std::fs;

/// The folders with the texts that programs print.
const SOURCES: [&str; 2] = ["src", "ui/src"];
/// The values for placeholders. The test uses the first one with which a command can be parsed.
const FILLERS: [&str; 7] = ["60", "latest", "60GiB", "2h", "--set=train.steps=9", "runs", "status"];
/// Ends a command within a text.
const ENDS: [char; 6] = ['`', '(', ')', ';', ',', '\n'];

/// Returns the string literals of a Rust source up to its tests, with the number of the line that each begins on.
fn literals(source: &str) -> Vec<(usize, String)> {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let (mut found, mut line) = (Vec::new(), 1);
    let mut chars = source.chars().peekable();
    let mut last = ' ';
    while let Some(c) = chars.next() {
        line += usize::from(c == '\n');
        match c {
            '/' if chars.peek() == Some(&'/') => {
                while chars.peek().is_some_and(|c| *c != '\n') {
                    chars.next();
                }
            }
            // A character or a lifetime.
            '\'' => match chars.next() {
                Some('\\') => {
                    chars.next();
                    while chars.next().is_some_and(|c| c != '\'') {}
                }
                _ => drop(chars.next_if_eq(&'\'')),
            },
            '"' | '#' if c == '"' || last == 'r' && matches!(chars.peek(), Some('"' | '#')) => {
                let mut hashes = usize::from(c == '#');
                while c == '#' && chars.next_if_eq(&'#').is_some() {
                    hashes += 1;
                }
                if c == '#' {
                    chars.next();
                }
                let (begin, mut text) = (line, String::new());
                let is_raw = last == 'r';
                while let Some(c) = chars.next() {
                    line += usize::from(c == '\n');
                    match c {
                        '"' if (0..hashes).all(|_| chars.next_if_eq(&'#').is_some()) => break,
                        '\\' if !is_raw => match chars.next() {
                            Some('\n') => {
                                line += 1;
                                while chars.peek().is_some_and(|c| c.is_whitespace()) {
                                    line += usize::from(chars.next() == Some('\n'));
                                }
                            }
                            Some('n') => text.push('\n'),
                            Some(other) => text.push(other),
                            None => {}
                        },
                        c => text.push(c),
                    }
                }
                found.push((begin, text));
            }
            _ => {}
        }
        last = c;
    }
    found
}

/// Returns the Rust sources of the folders, without tests.
fn sources() -> Vec<(Utf8PathBuf, String)> {
    let root = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders: Vec<Utf8PathBuf> = SOURCES.iter().map(|folder| root.join(folder)).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().unwrap() {
            let path = entry.unwrap().into_path();
            let name = path.file_name().unwrap().to_owned();
            if path.is_dir() && !["tests", "snapshots", "target", "rig", "xtask", "examples"].contains(&name.as_str()) {
                folders.push(path);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") && name != "fixtures.rs" {
                let text = fs::read_to_string(&path).unwrap();
                files.push((path.strip_prefix(&root).unwrap().to_owned(), text));
            }
        }
    }
    files.sort();
    files
}

/// The place of a text, and the text.
type Printed = (String, String);

/// Returns the texts that programs print: string literals, and the help of every command.
fn printed() -> Vec<Printed> {
    let mut texts = Vec::new();
    for (path, text) in sources() {
        texts.extend(literals(&text).into_iter().map(|(line, text)| (format!("{path}:{line}"), text)));
    }
    let mut commands = vec![Args::command()];
    while let Some(mut command) = commands.pop() {
        // The line of the usage has placeholders of another form, which clap makes.
        let help = command.render_long_help().to_string();
        let help: Vec<&str> = help.lines().filter(|line| !line.starts_with("Usage:")).collect();
        texts.push((format!("help of {}", command.get_name()), help.join("\n")));
        commands.extend(command.get_subcommands().cloned());
    }
    texts
}

/// Returns the commands of vidtui in a text, and whether each is in backticks.
fn commands(text: &str) -> Vec<(&str, bool)> {
    let is_word = |c: char| c.is_alphanumeric() || ['-', '/', '_', '.', '<', '{'].contains(&c);
    let begins = text.match_indices("vidtui ").filter(|(at, _)| !text[..*at].ends_with(is_word));
    let command = |(at, _): (usize, &str)| {
        let rest = &text[at..];
        let end = rest.find(ENDS).unwrap_or(rest.len());
        // The next command of a list is not an argument of this one.
        let end = rest[7..end].find(" vidtui ").map_or(end, |next| 7 + next);
        (rest[..end].trim(), text[..at].ends_with('`'))
    };
    begins.map(command).collect()
}

/// Returns the words of a command, as a shell would split them.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in command.chars() {
        match c {
            '\'' | '"' if quote.is_none() => quote = Some(c),
            c if quote == Some(c) => quote = None,
            ' ' if quote.is_none() => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    let last = words.last_mut().unwrap();
    last.truncate(last.trim_end_matches(['.', ':']).len());
    words
}

/// Returns whether a word of a command stands for a value.
fn is_placeholder(word: &str) -> bool {
    word.contains('{')
        || word == "…"
        || word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase() || "_/".contains(c))
}

/// Returns a word with its placeholder filled.
fn filled(word: &str, filler: &str) -> String {
    if word.contains('{') {
        let (before, rest) = word.split_once('{').unwrap();
        let after = rest.rsplit_once('}').map_or("", |(_, after)| after);
        return format!("{before}{filler}{after}");
    }
    if is_placeholder(word) { filler.to_owned() } else { word.to_owned() }
}

/// Parses the words of a command, whose placeholders are filled in every way.
fn parses(command: &mut Command, words: &[String]) -> bool {
    let places: Vec<usize> = (0..words.len()).filter(|at| is_placeholder(&words[*at])).collect();
    let tries = FILLERS.len().pow(places.len() as u32);
    (0..tries).any(|number| {
        let mut left = number;
        let mut words = words.to_vec();
        for at in &places {
            words[*at] = filled(&words[*at], FILLERS[left % FILLERS.len()]);
            left /= FILLERS.len();
        }
        let parsed = command.try_get_matches_from_mut(words);
        parsed.is_ok() || parsed.is_err_and(|error| error.kind() == ErrorKind::DisplayHelp)
    })
}

/// Returns whether all words but the first name a command: the text mentions the command and gives no arguments.
fn is_name(command: &Command, words: &[String]) -> bool {
    let mut at = command;
    words[1..].iter().all(|word| at.find_subcommand(word).inspect(|found| at = found).is_some())
}

/// Returns whether a command can be typed. Words of a sentence may follow it, but every flag and placeholder belongs to it.
fn can_be_typed(command: &mut Command, words: &[String]) -> bool {
    let needed = words.iter().rposition(|word| word.starts_with('-') || is_placeholder(word)).unwrap_or(1);
    (needed + 1..=words.len()).any(|end| is_name(command, &words[..end]) || parses(command, &words[..end]))
}

#[test]
fn every_command_that_is_printed_can_be_typed() {
    let mut command = Args::command();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (place, text) in printed() {
        for (printed, is_quoted) in commands(&text) {
            let words = words(printed);
            let is_command = words
                .get(1)
                .is_some_and(|word| word.starts_with(['-', '{']) || command.find_subcommand(word).is_some());
            // The name of the program may be the subject of a sentence.
            if !is_command && !is_quoted {
                continue;
            }
            count += 1;
            if !can_be_typed(&mut command, &words) {
                wrong.push(format!("{place}: {printed}"));
            }
        }
    }
    assert!(wrong.is_empty(), "these commands cannot be typed as they are printed:\n{}", wrong.join("\n"));
    assert!(count > 100, "only {count} commands were found");
}

#[test]
fn every_key_that_a_printed_command_sets_exists_and_a_resume_may_change_it() {
    let minimal = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/configs/valid/minimal.toml");
    let recipe = recipe::load(&minimal, &[]).unwrap().recipe;
    let mut resumed = 0;
    for (place, text) in printed() {
        for (printed, _) in commands(&text) {
            let words = words(printed);
            for set in words.windows(2).filter(|pair| pair[0] == "--set").map(|pair| &pair[1]) {
                let Some((key, value)) = set.split_once('=').filter(|(key, _)| !key.contains('{') && *key != "KEY")
                else {
                    continue;
                };
                assert!(Key::find(key).is_some(), "{place}: {printed}: the recipe has no key {key}");
                if words[1] == "resume" {
                    resumed += 1;
                    let value = if is_placeholder(value) { "7" } else { value };
                    let (_, changes) = recipe.with_sets(&minimal, &[format!("{key}={value}")]).unwrap();
                    let effect = changes[0].effect;
                    let is_refused = matches!(effect, ResumeEffect::Refused(_) | ResumeEffect::OtherRun);
                    assert!(!is_refused, "{place}: {printed}: {}", effect.in_words());
                }
            }
        }
    }
    assert!(resumed > 1, "no hint changes a key of a resumed run");
}

#[test]
fn every_command_with_json_has_a_description_of_its_document() {
    fn names(command: &clap::Command, name: &str, into: &mut Vec<String>) {
        if command.get_arguments().any(|arg| arg.get_long() == Some("json")) {
            into.push(name.to_owned());
        }
        command.get_subcommands().for_each(|inner| names(inner, &format!("{name} {}", inner.get_name()), into));
    }
    let mut with_json = Vec::new();
    names(&Args::command(), "vidtui", &mut with_json);
    let docs = include_str!("../../../../docs/json.md");
    with_json.retain(|name| !docs.contains(&format!("`{name}")));
    assert_eq!(with_json, [""; 0]);
}

#[test]
fn the_test_of_hints_finds_flags_and_arguments_that_do_not_exist() {
    let mut command = Args::command();
    let mut is_right = |text: &str| {
        let found = commands(text);
        assert_eq!(found.len(), 1, "{text}");
        can_be_typed(&mut command, &words(found[0].0))
    };
    for right in [
        "look at it: vidtui status {id}",
        "`vidtui resume {} --set optimizer.lr={lr}`, or wait",
        "leave them out (vidtui data verify {data} --drop), and encode again",
        "vidtui checkpoints {run} lists them",
        "see vidtui runs",
        "`vidtui data encode` wrote it",
        "vidtui sample {} --prompt 'a {animal} on a meadow'",
        "vidtui sample latest --prompt \"a rabbit\"",
        "vidtui data verify --help",
    ] {
        assert!(is_right(right), "{right}");
    }
    for wrong in [
        "`vidtui resume {} --lr {lr}`",
        "vidtui data verify {data} --dorp",
        "vidtui status {id} {step}",
        "vidtui resume --set optimizer.lr={lr}",
        "`vidtui stats latest`",
        "vidtui data verify {} --drop lists RUN",
    ] {
        assert!(!is_right(wrong), "{wrong}");
    }
    let source = "let a = 'x'; // vidtui \"no\"\nlet b: &'static str = \"one \\\n   two \\\"three\\\"\"; let c = r#\"four \"five\"\"#;";
    let found = literals(source);
    assert_eq!(found, [(2, "one two \"three\"".to_owned()), (3, "four \"five\"".to_owned())]);
}

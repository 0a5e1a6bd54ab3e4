//! TOML files with the line of each key, and paths that are relative to a file.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use toml::de::{DeTable, DeValue};

use crate::{RecipeError, RecipeErrorKind};

/// A TOML file with the line of each key.
#[derive(Debug)]
pub(crate) struct File {
    /// The path as given.
    pub path: Utf8PathBuf,
    pub table: toml::Table,
    /// Lines by dotted path: `train.steps`, `stage.0.name`.
    lines: BTreeMap<String, usize>,
}

impl File {
    /// Reads a file. `noun` names it in errors: `recipe`, `curriculum`.
    pub fn read(path: &Utf8Path, noun: &str) -> Result<File, RecipeError> {
        let bytes = text_file::read_named(path, text_file::MAX_TEXT).map_err(|error| {
            // Only for a name that does not exist do the names beside it help.
            let names = if error.kind() == std::io::ErrorKind::NotFound { beside(path) } else { None };
            let fix = names.unwrap_or_else(|| format!("check the path and the permissions of the {noun}"));
            let kind = RecipeErrorKind::Io(error.kind());
            RecipeError::new(kind, format!("cannot read {noun} {path}"), error.to_string(), fix)
        })?;
        let text = text_file::decode(bytes).map_err(|not| {
            let (what, fix) = (format!("cannot read {noun} {path}"), not.fix(path.as_str()));
            RecipeError::new(RecipeErrorKind::NotToml, what, not.to_string(), fix)
        })?;
        File::parse(path, noun, &text)
    }

    /// Parses the text of a file.
    pub fn parse(path: &Utf8Path, noun: &str, text: &str) -> Result<File, RecipeError> {
        let bad = |error: toml::de::Error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            let source = text.lines().nth(line - 1).unwrap_or_default().trim();
            RecipeError::new(
                RecipeErrorKind::NotToml,
                format!("cannot use {noun} {path}"),
                format!("line {line} is not TOML: {}", error.message().trim_end()),
                format!("correct the line `{source}`: strings need quotes, and a key may appear only once"),
            )
        };
        let mut lines = BTreeMap::new();
        collect(text, "", DeTable::parse(text).map_err(bad)?.get_ref(), &mut lines);
        Ok(File { path: path.to_owned(), table: toml::from_str(text).map_err(bad)?, lines })
    }

    /// Returns the line of a key, or of the nearest enclosing key.
    pub fn line(&self, key: &str) -> usize {
        let around = std::iter::successors(Some(key), |key| key.rsplit_once('.').map(|(outer, _)| outer));
        around.filter_map(|key| self.lines.get(key)).copied().next().unwrap_or(1)
    }

    /// Returns where a key is set: `line 7` in an error about this file, else `file:7`.
    pub fn place(&self, key: &str, about: &Utf8Path) -> String {
        place(&self.path, self.line(key), about)
    }

    /// Resolves a path that is written in this file and may be relative to the file's folder.
    pub fn resolve(&self, relative: &str) -> Utf8PathBuf {
        tidy(&self.path.parent().unwrap_or(Utf8Path::new("")).join(relative))
    }
}

fn collect(text: &str, prefix: &str, table: &DeTable<'_>, lines: &mut BTreeMap<String, usize>) {
    for (key, value) in table {
        let path = if prefix.is_empty() { key.get_ref().to_string() } else { format!("{prefix}.{}", key.get_ref()) };
        lines.insert(path.clone(), line_of(text, key.span().start));
        collect_value(text, &path, value.get_ref(), lines);
    }
}

fn collect_value(text: &str, path: &str, value: &DeValue<'_>, lines: &mut BTreeMap<String, usize>) {
    match value {
        DeValue::Table(inner) => collect(text, path, inner, lines),
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}.{index}");
                lines.insert(path.clone(), line_of(text, item.span().start));
                collect_value(text, &path, item.get_ref(), lines);
            }
        }
        _ => {}
    }
}

fn line_of(text: &str, byte: usize) -> usize {
    1 + text.as_bytes().iter().take(byte).filter(|&&b| b == b'\n').count()
}

/// Returns the comment at the beginning of a file in one line, without `#`, up to its first empty line.
pub fn first_comment(text: &str) -> String {
    let lines = text.lines().map(str::trim).skip_while(|line| line.is_empty());
    let comment = lines.map_while(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#').trim());
    comment.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Formats a line of a file, without the file's name if the error is about that file.
pub(crate) fn place(path: &Utf8Path, line: usize, about: &Utf8Path) -> String {
    if path == about { format!("line {line}") } else { format!("{path}:{line}") }
}

/// Lists the TOML files and curriculum folders beside a file that does not exist.
fn beside(path: &Utf8Path) -> Option<String> {
    let folder = match path.parent()? {
        parent if parent.as_str().is_empty() => Utf8Path::new("."),
        parent => parent,
    };
    let Ok(entries) = folder.read_dir_utf8() else {
        return Some(format!("the folder {folder} does not exist; check the path"));
    };
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_owned())
        .filter(|name| name.ends_with(".toml") || folder.join(name).join("curriculum.toml").is_file())
        .collect();
    names.sort();
    match names.is_empty() {
        true => Some(format!("{folder} contains no recipe and no curriculum")),
        false => Some(format!("{folder} contains {}", names.join(", "))),
    }
}

/// Makes a path absolute, so that it does not depend on the working folder.
pub(crate) fn absolute(path: &Utf8Path) -> Utf8PathBuf {
    let start = std::env::current_dir().ok().and_then(|folder| Utf8PathBuf::from_path_buf(folder).ok());
    tidy(&start.unwrap_or_default().join(path))
}

/// Removes each `..` together with the folder before it, except after a symbolic link: there `..` is the parent of
/// the link's target.
fn tidy(path: &Utf8Path) -> Utf8PathBuf {
    let mut tidy = Utf8PathBuf::new();
    for part in path.components() {
        let can_leave = tidy.file_name().is_some_and(|name| name != "..") && !tidy.is_symlink();
        match part.as_str() {
            "." => {}
            ".." if can_leave => drop(tidy.pop()),
            name => tidy.push(name),
        }
    }
    tidy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_line_in_any_toml_syntax() {
        let text = "base = 'b.toml'\n\n[train]\nsteps = 3\ntrainable = [\n  'a',\n  'b',\n]\noptimizer.lr = 1\n[[stage]]\nname = 'x'\n[[stage]]\nname = 'y'\n";
        let file = File::parse(Utf8Path::new("x.toml"), "recipe", text).unwrap();
        let keys = ["base", "train", "train.steps", "train.trainable.1", "train.optimizer.lr", "stage.1.name"];
        assert_eq!(keys.map(|key| file.line(key)), [1, 3, 4, 7, 9, 13]);
        assert_eq!(file.line("train.steps.deeper"), 4);
        assert_eq!(file.place("base", "y.toml".into()), "x.toml:1");
        assert_eq!(file.place("train.steps", "x.toml".into()), "line 4");
    }

    #[test]
    fn a_recipe_of_another_encoding_is_read_or_refused_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap().join("x.toml");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            File::read(&path, "recipe")
        };
        let utf16: Vec<u8> = "\u{feff}name = 'é'\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for bytes in [&utf16[..], "\u{feff}name = 'é'\n".as_bytes()] {
            let file = read(bytes).unwrap();
            assert_eq!((file.table["name"].as_str(), file.line("name")), (Some("é"), 1));
        }
        let error = read(b"name = 'x'\n# caf\xe9\n").unwrap_err();
        assert_eq!(error.kind, RecipeErrorKind::NotToml);
        assert!(error.why.contains("line 2") && error.fix.contains("iconv -f LATIN1"), "{error}");
    }

    #[test]
    fn the_first_comment_ends_before_the_settings_and_before_an_empty_line() {
        assert_eq!(first_comment("\n# A model,\n# two stages.\n#\n#   vidtui launch x\n"), "A model, two stages.");
        assert_eq!(first_comment("## Title\nname = 'x' # not this\n# nor this\n"), "Title");
        assert_eq!(first_comment("name = 'x'\n# too late\n"), "");
        assert_eq!(first_comment(""), "");
    }

    #[test]
    fn dots_are_removed_from_paths() {
        assert_eq!(absolute("/no/such/../folder/./x".into()), "/no/folder/x");
        assert_eq!(tidy("../../a/b/../c.toml".into()), "../../a/c.toml");
        assert_eq!(tidy("./a/../../c.toml".into()), "../c.toml");
    }

    #[test]
    fn dots_after_a_symbolic_link_stay() {
        let folder = std::env::temp_dir().join(format!("recipe-link-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("far/away")).unwrap();
        std::os::unix::fs::symlink(folder.join("far/away"), folder.join("near")).unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.join("near/../x")).unwrap();
        assert_eq!(tidy(&path), path);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

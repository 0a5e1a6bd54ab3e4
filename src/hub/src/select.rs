//! Selects the files of a model or a data set to download.

use crate::kind::Kind;
use crate::listing::ListedFile;
use failure::{ErrorCode, Failure};

/// The endings of files that no program reads.
const FOR_PEOPLE: [&str; 10] =
    [".md", ".gitattributes", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".mp4", ".pdf", ".svg"];

/// Returns the files that match a pattern; without patterns, all files of a data set, and all files of a model except those in
/// [`FOR_PEOPLE`].
pub(crate) fn select(
    kind: Kind,
    model: &str,
    files: &[ListedFile],
    patterns: &[String],
) -> Result<Vec<ListedFile>, Failure> {
    if patterns.is_empty() {
        let wanted = |file: &&ListedFile| {
            let name = file.path.to_lowercase();
            kind == Kind::Dataset || !FOR_PEOPLE.iter().any(|ending| name.ends_with(ending))
        };
        return Ok(files.iter().filter(wanted).cloned().collect());
    }
    for pattern in patterns {
        if !files.iter().any(|file| matches(pattern, &file.path)) {
            let near = files.iter().max_by(|a, b| likeness(pattern, &a.path).total_cmp(&likeness(pattern, &b.path)));
            let fix = near.map_or_else(String::new, |near| format!("did you mean {}? ", near.path));
            return Err(Failure::new(
                ErrorCode::UnknownName,
                format!("{model} has no file '{pattern}'"),
                format!("it has {}", units::counted(files.len(), "file")),
                format!("{fix}A folder (vae) and a pattern ('*.json') name several files"),
            ));
        }
    }
    Ok(files.iter().filter(|file| patterns.iter().any(|pattern| matches(pattern, &file.path))).cloned().collect())
}

fn likeness(pattern: &str, path: &str) -> f64 {
    strsim::jaro_winkler(pattern, path)
}

/// Returns whether a pattern matches a file. A pattern is a path, a folder above the file, or a path with `*` for any
/// characters.
fn matches(pattern: &str, path: &str) -> bool {
    let pattern = pattern.trim_start_matches("./").trim_end_matches('/');
    if pattern.contains('*') {
        return is_like(pattern, path);
    }
    path.strip_prefix(pattern).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn is_like(pattern: &str, path: &str) -> bool {
    let parts: Vec<&str> = pattern.split('*').collect();
    let [first, middle @ .., last] = &parts[..] else { return false };
    let Some(mut rest) = path.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else { return false };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn patterns_name_files_folders_and_many_files() {
        for (pattern, path, expected) in [
            ("vae", "vae/config.json", true),
            ("vae/", "vae/config.json", true),
            ("va", "vae/config.json", false),
            ("vae/config.json", "vae/config.json", true),
            ("*.json", "vae/config.json", true),
            ("vae/*.json", "vae/config.json", true),
            ("*00001-of-*", "t/model-00001-of-00002.safetensors", true),
            ("a*a", "a", false),
            ("*.json", "vae/x.bin", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }
}

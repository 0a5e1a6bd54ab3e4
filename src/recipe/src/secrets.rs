//! Secrets: environment variables whose values appear in no log, file or screen.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use camino::Utf8Path;

use crate::{RecipeError, RecipeErrorKind, is_reserved, is_variable_name};

/// Environment variables of the ranks whose values are never shown or written.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secrets {
    variables: Vec<(String, String)>,
}

/// Shows only the names.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Secrets {
    /// Reads a file of `KEY=value` lines that only its owner can access.
    ///
    /// # Errors
    /// When the file cannot be read, other users can access it, or a line is not `KEY=value`. No error contains a value.
    pub fn read(path: &Utf8Path) -> Result<Self, RecipeError> {
        let what = format!("cannot use the secrets in {path}");
        let error = |kind, why: String, fix: String| RecipeError::new(kind, what.clone(), why, fix).key("env.secrets");
        let io = |cause: std::io::Error| {
            error(RecipeErrorKind::Io(cause.kind()), cause.to_string(), "check env.secrets or --secrets FILE".into())
        };
        let mode = fs::metadata(path).map_err(io)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(error(
                RecipeErrorKind::Secrets,
                format!("the file is accessible to other users (mode {mode:04o})"),
                format!("run `chmod 600 {path}`; replace the secrets if other users have logins on this machine"),
            ));
        }
        let text = text_file::decode(text_file::read_named(path, text_file::MAX_TEXT).map_err(io)?).map_err(|not| {
            // The details would show a part of a value.
            error(RecipeErrorKind::Secrets, format!("line {} is not UTF-8", not.line), not.fix(path.as_str()))
        })?;
        Self::parse(&text).map_err(|(line, why)| {
            let fix = "write one KEY=value per line; lines that begin with '#' are ignored";
            error(RecipeErrorKind::Secrets, format!("line {line} {why}"), fix.into())
        })
    }

    /// Reads `KEY=value` lines. An error has the line number and what is wrong.
    pub fn parse(text: &str) -> Result<Self, (usize, &'static str)> {
        let mut variables = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why| Err((index + 1, why));
            let line = line.strip_prefix("export ").unwrap_or(line);
            let Some((name, value)) = line.split_once('=') else { return wrong("has no '='") };
            let quoted = |quote: char| value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote));
            let value = quoted('"').or(quoted('\'')).unwrap_or(value);
            if !is_variable_name(name) {
                return wrong("does not begin with a valid variable name");
            }
            if is_reserved(name) {
                return wrong("sets a variable that vidtui sets for each rank");
            }
            variables.push((name.to_owned(), value.to_owned()));
        }
        Ok(Self { variables })
    }

    /// Returns the names of the variables.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.variables.iter().map(|(name, _)| name.as_str())
    }

    /// Returns names and values.
    pub fn variables(&self) -> &[(String, String)] {
        &self.variables
    }

    /// Formats the variables as [`Secrets::parse`] reads them.
    pub fn to_lines(&self) -> Vec<u8> {
        // `parse` removes one pair of quotes, so a value may contain quotes itself.
        let line = |(name, value): &(String, String)| format!("{name}=\"{value}\"\n");
        self.variables.iter().map(line).collect::<String>().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_a_shell_would_and_survive_a_round_trip() {
        let text = "# keys\nWANDB_API_KEY=abc=d\n\nexport HF_TOKEN=\"hf x\"\nQUOTE='a\"b'\nEMPTY=\nODD=\"\n";
        let secrets = Secrets::parse(text).unwrap();
        let values: Vec<_> = secrets.variables().iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["abc=d", "hf x", "a\"b", "", "\""]);
        assert_eq!(Secrets::parse(&String::from_utf8(secrets.to_lines()).unwrap()), Ok(secrets.clone()));
        assert_eq!(format!("{secrets:?}"), r#"["WANDB_API_KEY", "HF_TOKEN", "QUOTE", "EMPTY", "ODD"]"#);
    }

    #[test]
    fn a_file_that_other_users_can_read_is_refused_and_no_error_contains_a_value() {
        let path = camino::Utf8PathBuf::from_path_buf(std::env::temp_dir())
            .unwrap()
            .join(format!("vidtui-secrets-{}", std::process::id()));
        let refused = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Secrets::read(&path)
        };
        let open = refused("KEY=hush\n", 0o640).unwrap_err();
        assert_eq!(open.kind, RecipeErrorKind::Secrets);
        assert!(open.why.contains("0640") && open.fix.contains(&format!("chmod 600 {path}")), "{open}");
        for text in ["hush", "A B=hush", "RANK=hush", "A=hush\0"] {
            let error = refused(&format!("OK=1\n{text}\n"), 0o600).unwrap_err();
            assert_eq!(error.kind, RecipeErrorKind::Secrets);
            assert!(error.why.contains("line 2") && !error.to_string().contains("hush"), "{error}");
        }
        assert_eq!(refused("KEY=hush\n", 0o400).unwrap().names().collect::<Vec<_>>(), ["KEY"]);
        fs::remove_file(&path).unwrap();
    }
}

//! Loads a recipe from its file, the files it builds on and `--set` flags.

use std::collections::BTreeMap;
use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use toml::Value;

use crate::file::{File, absolute, place};
use crate::name::{is_name, name_of};
use crate::nearest::{instead_of, sections};
use crate::schema::REMOVED;
use crate::value;
use crate::{FamilyName, JobKind, Key, Reader, Recipe, RecipeError, RecipeErrorKind, SCHEMA, Task, check};

/// A recipe with the origin of each value.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// The recipe.
    pub recipe: Recipe,
    /// The recipe as TOML, with every key.
    pub table: toml::Table,
    /// The origin of each value, by key: `optimizer.lr`.
    pub origins: BTreeMap<String, Origin>,
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// The default.
    Default,
    /// A line of a file.
    File {
        /// The path as given.
        path: Utf8PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A `--set` flag as given: `optimizer.lr=1e-4`.
    Flag(String),
    /// `--fit` with this number of ranks.
    Fit(usize),
}

/// Shows `default`, `file:line` or the flag.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.pad("default"),
            Origin::File { path, line } => f.pad(&format!("{path}:{line}")),
            Origin::Flag(text) => f.pad(&format!("--set {text}")),
            Origin::Fit(ranks) => f.pad(&format!("--fit {ranks}")),
        }
    }
}

/// Returns whether a value selects its key instead of the alternative key ([`Key::alternative`]): neither 0 nor an empty list.
fn is_given(value: &Value) -> bool {
    value.as_integer() != Some(0) && value.as_array().is_none_or(|items| !items.is_empty())
}

impl Origin {
    /// Returns whether two values come from the same file, or both are defaults. A flag replaces every value that was set before it.
    fn is_beside(&self, other: &Origin) -> bool {
        match (self, other) {
            (Origin::File { path: one, .. }, Origin::File { path: other, .. }) => one == other,
            (Origin::Default, Origin::Default) => true,
            _ => false,
        }
    }

    /// Returns where a key was set, for an error about the file `about`.
    fn place(&self, key: &str, about: &Utf8Path) -> String {
        match self {
            Origin::Default => format!("{key}: default"),
            Origin::File { path, line } => format!("{key}: {}", place(path, *line, about)),
            Origin::Flag(text) => format!("--set {text}"),
            Origin::Fit(ranks) => format!("--fit {ranks}"),
        }
    }
}

/// Loads a recipe: the file, the files it builds on with `base = "…"`, and `section.key=value` flags, which override
/// both.
///
/// A relative path in a file starts at that file's folder. A relative path in a flag starts at the working folder.
///
/// # Errors
/// When a file is missing or not TOML, a key is unknown or missing, a value is not valid, or a rule between keys does not
/// hold. The error names the file and line, or the flag.
pub fn load(path: &Utf8Path, sets: &[String]) -> Result<Resolved, RecipeError> {
    Settings::read(path)?.with_flags(sets)?.resolve()
}

/// Loads a recipe from text that is not yet written to `path`, with the result of [`load`] after the write. A `base` in the
/// text is ignored.
///
/// # Errors
/// As [`load`].
pub fn load_text(path: &Utf8Path, text: &str, sets: &[String]) -> Result<Resolved, RecipeError> {
    let mut settings = Settings::empty(path);
    settings.overlay_file(&File::parse(path, "recipe", text)?)?;
    settings.with_flags(sets)?.resolve()
}

/// Returns a `--set` flag whose relative paths, which start at the working folder, are absolute. Another flag, also one that is not valid,
/// stays as it is.
pub fn with_full_paths(set: &str) -> String {
    let full = || {
        let (path, text) = set.split_once('=')?;
        let key = Key::find(path.trim())?;
        let value = value::parse(key, text.trim()).ok()?;
        let mut full = value.clone();
        value::resolve_paths(key.kind, &mut full, &|path| absolute(Utf8Path::new(path)).into_string());
        (full != value).then(|| format!("{}={full}", key.path))
    };
    full().unwrap_or_else(|| set.to_owned())
}

/// Makes the error of a rule that does not hold.
fn broken_rule(what: String, broken: check::Broken, why: String) -> RecipeError {
    let is_mesh = broken.keys.iter().any(|key| key.starts_with("mesh."));
    let kind = if is_mesh { RecipeErrorKind::Mesh } else { RecipeErrorKind::BrokenRule };
    let error = RecipeError::new(kind, what, why, broken.fix);
    broken.keys.iter().fold(error, |error, key| error.key(*key))
}

impl Recipe {
    /// Reads the recipe of a run directory.
    ///
    /// Unknown keys of newer versions are ignored, and keys that an older version did not have get their defaults.
    ///
    /// # Errors
    /// As [`load`](crate::load()), without file and line.
    pub fn from_table(table: &toml::Table) -> Result<Recipe, RecipeError> {
        from_table(table)
    }

    /// Checks the range of every value and every rule between keys.
    ///
    /// # Errors
    /// When a rule does not hold. The error shows the arithmetic of the first one, and a change that satisfies it.
    pub fn check(&self) -> Result<(), RecipeError> {
        from_table(&self.to_table()).map(drop)
    }
}

/// Reads a recipe that vidtui wrote. Unknown keys come from a newer version and are ignored.
fn from_table(table: &toml::Table) -> Result<Recipe, RecipeError> {
    let name = table.get("name").and_then(Value::as_str).unwrap_or("without a name");
    let mut values = Settings { path: "".into(), what: format!("cannot use recipe {name}"), set: BTreeMap::new() };
    for key in SCHEMA {
        let value = match key.parts() {
            ("", name) => table.get(name),
            (section, name) => table.get(section).and_then(|section| section.get(name)),
        };
        if let Some(value) = value {
            let value = value::accept(key, value)
                .map_err(|bad| values.invalid(key, format!("{}: {}", key.path, bad.why), bad.fix))?;
            values.set.insert(key.path.to_owned(), (value, Origin::Default));
        }
    }
    let (what, two_lengths) = (values.what.clone(), values.two_lengths());
    let recipe = values.finish("unnamed")?.recipe;
    match two_lengths.or_else(|| check::first_broken(&recipe)) {
        None => Ok(recipe),
        Some(broken) => {
            let why = broken.why.clone();
            Err(broken_rule(what, broken, why))
        }
    }
}

/// Returns the files of a recipe: the file itself, the file it builds on with `base = "…"`, and so on.
///
/// # Errors
/// If a file cannot be read, or a `base` does not exist or leads back to its own file.
pub fn recipe_files(path: &Utf8Path) -> Result<Vec<Utf8PathBuf>, RecipeError> {
    Ok(chain(path)?.into_iter().map(|file| file.path).collect())
}

/// Reads the file, the file it builds on, and so on.
fn chain(path: &Utf8Path) -> Result<Vec<File>, RecipeError> {
    let mut files = vec![File::read(path, "recipe")?];
    let mut seen = vec![real(path)];
    while let Some((base, place)) = base_of(path, &files[files.len() - 1])? {
        if !base.is_file() {
            return Err(base_error(
                path,
                format!("{place} builds on {base}, which does not exist"),
                "correct the path; it is relative to the folder of the file that contains it",
            ));
        }
        let real = real(&base);
        if let Some(first) = seen.iter().position(|earlier| *earlier == real) {
            let mut cycle: Vec<_> = files[first..].iter().map(|file| file.path.as_str()).collect();
            cycle.push(files[first].path.as_str());
            let why = format!("{place} makes a cycle of bases: {}", cycle.join(" -> "));
            return Err(base_error(path, why, format!("remove the base at {place}")));
        }
        files.push(File::read(&base, "recipe")?);
        seen.push(real);
    }
    Ok(files)
}

fn base_error(recipe: &Utf8Path, why: String, fix: impl Into<String>) -> RecipeError {
    RecipeError::new(RecipeErrorKind::Base, format!("cannot use recipe {recipe}"), why, fix).key("base")
}

/// Returns the path of a file with symbolic links resolved.
fn real(path: &Utf8Path) -> Utf8PathBuf {
    path.canonicalize_utf8().unwrap_or_else(|_| absolute(path))
}

fn base_of(recipe: &Utf8Path, file: &File) -> Result<Option<(Utf8PathBuf, String)>, RecipeError> {
    let place = file.place("base", recipe);
    match file.table.get("base") {
        None => Ok(None),
        Some(Value::String(base)) => Ok(Some((file.resolve(base), place))),
        Some(_) => Err(base_error(
            recipe,
            format!("{place}: base is not a string"),
            "write the file to build on in quotes: base = \"base.toml\"",
        )),
    }
}

/// The values that files and flags set, without defaults. Keys may be missing and rules may be broken: the user can still set
/// other values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The file that the user named.
    path: Utf8PathBuf,
    /// The first part of every error.
    what: String,
    /// The values with their origins, by key. Later ones replaced earlier ones.
    set: BTreeMap<String, (Value, Origin)>,
}

/// A key with its value, for display.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingRow {
    /// The key, such as `optimizer.lr`.
    pub key: &'static str,
    /// The value in TOML syntax; `None` if the key is required and not set.
    pub value: Option<String>,
    /// The origin of the value.
    pub origin: Origin,
}

impl Settings {
    /// Reads the file of a recipe and the files that it builds on.
    ///
    /// # Errors
    /// When a file is missing or not TOML, a key is unknown, or a value is not valid.
    pub fn read(path: &Utf8Path) -> Result<Self, RecipeError> {
        let mut settings = Self::empty(path);
        for file in chain(path)?.iter().rev() {
            settings.overlay_file(file)?;
        }
        Ok(settings)
    }

    fn empty(path: &Utf8Path) -> Self {
        Self { path: path.to_owned(), what: format!("cannot use recipe {path}"), set: BTreeMap::new() }
    }

    /// Adds the values of `--set` flags. Relative paths start at the working folder.
    fn with_flags(mut self, sets: &[String]) -> Result<Self, RecipeError> {
        for set in sets {
            self.overlay_flag(set, &|path| absolute(Utf8Path::new(path)).into_string())?;
        }
        Ok(self)
    }

    /// Returns the settings with the value of one more `--set` flag. A relative path stays relative.
    ///
    /// # Errors
    /// When the flag is not `section.key=value`, the key is unknown, or the value is not valid.
    pub fn with_flag(&self, set: &str) -> Result<Self, RecipeError> {
        let mut settings = self.clone();
        settings.overlay_flag(set, &|path| path.to_owned())?;
        Ok(settings)
    }

    /// Fills in the defaults and checks every rule.
    ///
    /// # Errors
    /// When a key is missing or does not apply to the task, or a rule between keys does not hold. The error names the file
    /// and line, or the flag.
    pub fn resolve(&self) -> Result<Resolved, RecipeError> {
        let stem = self.path.file_stem().unwrap_or_default();
        let resolved = self.clone().finish(&name_of(stem))?;
        match self.two_lengths().or_else(|| check::first_broken(&resolved.recipe)) {
            None => Ok(resolved),
            Some(broken) => {
                let place = |key: &&str| resolved.origins[*key].place(key, &self.path);
                let places: Vec<_> = broken.keys.iter().map(place).collect();
                let why = format!("{} ({})", broken.why, places.join(", "));
                Err(broken_rule(self.what.clone(), broken, why))
            }
        }
    }

    /// Returns the keys that the recipe's trainer reads for its task.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> {
        let reader = self.reader();
        SCHEMA.iter().filter(move |key| key.is_for(reader))
    }

    /// Returns every key that the recipe's trainer reads, with its value or default.
    pub fn rows(&self) -> Vec<SettingRow> {
        let row = |key: &'static Key| {
            let (value, origin) = match self.set.get(key.path) {
                Some((value, origin)) => (Some(value.clone()), origin.clone()),
                None => (key.default_value(), Origin::Default),
            };
            SettingRow { key: key.path, value: value.as_ref().map(value::shown), origin }
        };
        let is_replaced = |key: &&Key| {
            let other = key.alternative.and_then(|other| self.set.get(other));
            other.is_some_and(|(value, _)| is_given(value)) && !self.set.contains_key(key.path)
        };
        self.keys().filter(|key| key.default.is_some() || !is_replaced(key)).map(row).collect()
    }

    fn error(&self, kind: RecipeErrorKind, why: String, fix: String) -> RecipeError {
        RecipeError::new(kind, self.what.clone(), why, fix)
    }

    fn invalid(&self, key: &Key, why: String, fix: String) -> RecipeError {
        self.error(RecipeErrorKind::InvalidValue, why, fix).key(key.path)
    }

    fn overlay_file(&mut self, file: &File) -> Result<(), RecipeError> {
        let mut entries = Vec::new();
        for (name, value) in &file.table {
            match value {
                Value::Table(section) if Key::find(name).is_none() && name != "base" => {
                    if section.is_empty() && !sections().contains(&name.as_str()) {
                        entries.push((name.clone(), None));
                    }
                    entries.extend(section.iter().map(|(key, value)| (format!("{name}.{key}"), Some(value))));
                }
                _ if name == "base" => {}
                value => entries.push((name.clone(), Some(value))),
            }
        }
        // In the order of the file, so that the first mistake is reported first.
        entries.sort_by_key(|(path, _)| file.line(path));
        for (path, value) in entries.into_iter().filter(|(path, _)| !REMOVED.contains(&path.as_str())) {
            let place = file.place(&path, &self.path);
            let (Some(key), Some(value)) = (Key::find(&path), value) else {
                return Err(self.unknown(&place, &path));
            };
            let mut value = value::accept(key, value).map_err(|bad| {
                let entry =
                    value::bad_entry(key, value).map(|entry| file.place(&format!("{path}.{entry}"), &self.path));
                self.invalid(key, format!("{}: {path}: {}", entry.unwrap_or(place), bad.why), bad.fix)
            })?;
            value::resolve_paths(key.kind, &mut value, &|path| absolute(&file.resolve(path)).into_string());
            let origin = Origin::File { path: file.path.clone(), line: file.line(&path) };
            self.insert(key, value, origin);
        }
        Ok(())
    }

    /// Applies a flag. `full` makes a path absolute, or returns it unchanged.
    fn overlay_flag(&mut self, set: &str, full: &dyn Fn(&str) -> String) -> Result<(), RecipeError> {
        let Some((path, text)) = set.split_once('=').map(|(path, text)| (path.trim(), text.trim())) else {
            return Err(self.error(
                RecipeErrorKind::Flag,
                format!("--set {set} has no '='"),
                "write --set section.key=value, such as --set train.steps=100".into(),
            ));
        };
        let place = format!("--set {set}");
        if let Some(name) = path.strip_prefix("env.variables.") {
            let key = Key::find("env.variables").expect("SCHEMA has env.variables");
            let value = toml::Table::from_iter([(name.to_owned(), Value::String(text.to_owned()))]);
            self.insert(key, Value::Table(value), Origin::Flag(set.to_owned()));
            return Ok(());
        }
        if REMOVED.contains(&path) {
            return Ok(());
        }
        let Some(key) = Key::find(path) else {
            return Err(self.unknown(&place, path));
        };
        let mut value =
            value::parse(key, text).map_err(|bad| self.invalid(key, format!("{place}: {}", bad.why), bad.fix))?;
        value::resolve_paths(key.kind, &mut value, full);
        self.insert(key, value, Origin::Flag(set.to_owned()));
        Ok(())
    }

    /// Sets a key. A table is merged with the previous table. A key replaces its alternative, unless the same file
    /// sets both.
    fn insert(&mut self, key: &'static Key, value: Value, origin: Origin) {
        if let Some(other) = key.alternative.filter(|_| is_given(&value))
            && self.set.get(other).is_some_and(|(_, before)| !before.is_beside(&origin))
        {
            self.set.remove(other);
        }
        let value = match (self.set.remove(key.path), value) {
            (Some((Value::Table(mut before), _)), Value::Table(more)) => {
                before.extend(more);
                Value::Table(before)
            }
            (_, value) => value,
        };
        self.set.insert(key.path.to_owned(), (value, origin));
    }

    /// Returns the job and the family of the recipe.
    fn reader(&self) -> Reader {
        let word = |key: &str| self.set.get(key).and_then(|(value, _)| value.as_str());
        let job = JobKind::of_words(word("trainer"), word("task"));
        Reader { job, family: FamilyName::of_word(word("model.family")) }
    }

    /// Returns the broken rule if both lengths of a run are set.
    fn two_lengths(&self) -> Option<check::Broken> {
        let number = |key: &str| self.set.get(key)?.0.as_integer().filter(|number| *number > 0);
        Some(check::two_lengths(number("train.steps")?, number("train.epochs")?))
    }

    /// Rejects keys that the recipe's job, or the family of its model, does not read.
    fn check_keys(&self, reader: Reader) -> Result<(), RecipeError> {
        let foreign = SCHEMA.iter().find(|key| !key.is_for(reader) && self.set.contains_key(key.path));
        let Some(key) = foreign else { return Ok(()) };
        let place = self.set[key.path].1.place(key.path, &self.path);
        let job = reader.job;
        if let (true, Some(family)) = (key.jobs.contains(&job), key.family) {
            let why = format!(
                "{place}: this key applies to models of {}, and the recipe has model.family = \"{}\"",
                family.name(),
                reader.family.name()
            );
            let fix = format!("remove the key, or set model.family = \"{}\"", family.name());
            return Err(self.error(RecipeErrorKind::WrongFamily, why, fix).key(key.path));
        }
        let tasks: Vec<_> = key.jobs.iter().filter_map(|job| job.task()).map(Task::name).collect();
        Err(match job.task() {
            Some(task) if !tasks.is_empty() => {
                let tasks: Vec<_> = tasks.iter().map(|task| format!("task = \"{task}\"")).collect();
                self.error(
                    RecipeErrorKind::WrongTask,
                    format!(
                        "{place}: this key applies to {}, and the recipe has task = \"{}\"",
                        tasks.join(" and "),
                        task.name()
                    ),
                    format!("remove the key, or write {} above all sections", tasks[0]),
                )
            }
            Some(_) => self.error(
                RecipeErrorKind::WrongTrainer,
                format!("{place}: this key needs trainer = \"command\", and the recipe uses the embedded trainer"),
                "write trainer = \"command\" above all sections, or remove the section [command]".into(),
            ),
            None => self.error(
                RecipeErrorKind::WrongTrainer,
                format!("{place}: this key applies to the embedded trainer, and the recipe runs a command"),
                "remove the key, and pass the setting to your program in command.run".into(),
            ),
        }
        .key(key.path))
    }

    fn unknown(&self, place: &str, path: &str) -> RecipeError {
        let section = path.split_once('.').map(|(section, _)| section);
        let (why, fix) = match section {
            None if path == "base" => ("a flag cannot set the base".into(), "write base = \"…\" in the recipe".into()),
            None if sections().contains(&path) => {
                (format!("{path} is a section, not a key"), format!("write [{path}] above the keys of the section"))
            }
            None => (format!("there is no key {path}"), instead_of(path)),
            Some(section) if sections().contains(&section) => (format!("there is no key {path}"), instead_of(path)),
            Some(section) => (format!("there is no section [{section}]"), instead_of(path)),
        };
        self.error(RecipeErrorKind::UnknownKey, format!("{place}: {why}"), fix).key(path)
    }

    /// Fills in defaults and builds the recipe.
    fn finish(mut self, name: &str) -> Result<Resolved, RecipeError> {
        let reader = self.reader();
        let job = reader.job;
        self.check_keys(reader)?;
        let is_set = |key: &Key| {
            let value = self.set.get(key.path).map(|(value, _)| value);
            value.is_some_and(|value| value.as_str() != Some("") && value.as_integer() != Some(0))
        };
        let is_replaced = |key: &Key| {
            let mut others = [key.alternative, key.unless].into_iter().flatten();
            others.any(|other| self.set.get(other).is_some_and(|(value, _)| is_given(value)))
        };
        let is_missing = |key: &&Key| key.is_for(reader) && key.is_needed(job) && !is_set(key) && !is_replaced(key);
        let missing: Vec<_> = SCHEMA.iter().filter(is_missing).collect();
        if let Some(first) = missing.first() {
            let keys: Vec<_> = missing.iter().map(|key| key.path).collect();
            let error = self.error(
                RecipeErrorKind::MissingKey,
                format!("{} not set: {}", if keys.len() == 1 { "a key is" } else { "keys are" }, keys.join(", ")),
                format!("set {} ({}), or build on a recipe that sets it: base = \"…\"", first.path, first.doc),
            );
            return Err(keys.into_iter().fold(error, RecipeError::key));
        }
        let mut table = toml::Table::new();
        let mut origins = BTreeMap::new();
        for key in SCHEMA {
            if key.default.is_none() && key.alternative.is_some() && !self.set.contains_key(key.path) {
                origins.insert(key.path.to_owned(), Origin::Default);
                continue;
            }
            let default = || (key.default_value().unwrap_or_else(|| value::unread(key.kind)), Origin::Default);
            let (mut value, origin) = self.set.remove(key.path).unwrap_or_else(default);
            if key.path == "name" && value.as_str() == Some("") {
                value = Value::String(if is_name(name) { name.to_owned() } else { "unnamed".to_owned() });
            }
            match key.parts() {
                ("", name) => drop(table.insert(name.into(), value)),
                (section, name) => {
                    let section = table.entry(section).or_insert_with(|| Value::Table(toml::Table::new()));
                    section.as_table_mut().expect("this loop makes the sections").insert(name.into(), value);
                }
            }
            origins.insert(key.path.to_owned(), origin);
        }
        let recipe: Recipe = table
            .try_into()
            .expect("the keys and the types are of one declaration, and a default is a value of its key");
        Ok(Resolved { table: recipe.to_table(), recipe, origins })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Length;

    const CONFIGS: &str = "../../tests/fixtures/configs";

    fn valid(name: &str, sets: &[&str]) -> Result<Resolved, RecipeError> {
        let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
        load(&Utf8Path::new(CONFIGS).join("valid").join(name), &sets)
    }

    #[test]
    fn only_the_relative_path_of_a_flag_becomes_absolute() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(with_full_paths("data.index = data"), format!("data.index=\"{}/data\"", here.display()));
        for set in ["data.index=/data", "train.steps=9", "name=a/b", "nothing", "no.key=a/b", "train.steps=ten"] {
            assert_eq!(with_full_paths(set), set);
        }
        let full = with_full_paths("data.index=data");
        assert_eq!(with_full_paths(&full), full, "the value can be read again");
    }

    #[test]
    fn every_mistake_in_a_flag_names_the_flag() {
        let wrong = ["train.step=3", "train.steps=ten", "train.steps", "steps=3", "mesh.dp_shard=3", "base=x.toml"];
        let errors =
            wrong.map(|set| valid("minimal.toml", &[set]).unwrap_err().to_string().replace(CONFIGS, "configs"));
        insta::assert_snapshot!(errors.join("\n\n"));
    }

    #[test]
    fn a_file_overrides_its_base_and_a_flag_overrides_both() {
        let resolved = valid("stages/long.toml", &["model.head_dim=16", "train.steps = 7"]).unwrap();
        let origin = |key: &str| resolved.origins[key].to_string().replace(CONFIGS, "configs");
        assert_eq!(resolved.recipe.model.latent_frames, 5);
        assert_eq!(origin("model.latent_frames"), "configs/valid/stages/long.toml:6");
        assert_eq!(resolved.recipe.mesh.dp_shard, 2);
        assert_eq!(origin("mesh.dp_shard"), "configs/valid/stages/short.toml:9");
        assert_eq!(resolved.recipe.train.global_batch, 4);
        assert_eq!(origin("train.global_batch"), "configs/valid/minimal.toml:15");
        assert_eq!(resolved.recipe.model.head_dim, 16);
        assert_eq!(origin("model.head_dim"), "--set model.head_dim=16");
        assert_eq!(resolved.recipe.train.length, Length::Steps(7));
        assert_eq!(resolved.recipe.optimizer.beta2, 0.95);
        assert_eq!(origin("optimizer.beta2"), "default");
    }

    #[test]
    fn settings_with_a_missing_key_list_their_values_and_are_complete_with_a_flag() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap().join("own.toml");
        let text = std::fs::read_to_string(Utf8Path::new(CONFIGS).join("valid/minimal.toml")).unwrap();
        std::fs::write(&path, text.replace("index =", "# index =")).unwrap();
        let settings = Settings::read(&path).unwrap();
        assert_eq!(settings.resolve().unwrap_err().kind, RecipeErrorKind::MissingKey);
        let row = |settings: &Settings, key: &str| settings.rows().into_iter().find(|row| row.key == key).unwrap();
        assert_eq!(row(&settings, "data.index").value, None);
        assert_eq!(row(&settings, "optimizer.beta2").origin, Origin::Default);
        assert_eq!(settings.with_flag("data.indx=/data").unwrap_err().keys, ["data.indx"]);

        let settings = settings.with_flag("data.index=clips").unwrap();
        assert_eq!(settings.resolve().unwrap().recipe.data.index, "clips");
        assert_eq!(row(&settings, "data.index").value.as_deref(), Some("\"clips\""));
        let broken = settings.with_flag("train.grad_accum=3").unwrap().resolve().unwrap_err();
        assert_eq!(broken.kind, RecipeErrorKind::Mesh);
        let text = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
    }

    #[test]
    fn a_relative_path_starts_at_the_folder_of_its_file() {
        let configs = absolute(Utf8Path::new(CONFIGS));
        let index = |name, sets: &[&str]| valid(name, sets).unwrap().recipe.data.index;
        assert_eq!(index("stages/short.toml", &[]), configs.join("valid/data/index.jsonl"));
        assert_eq!(index("stages/long.toml", &[]), configs.join("valid/stages/long.jsonl"));
        assert_eq!(index("minimal.toml", &["data.index=x/../y.jsonl"]), absolute(Utf8Path::new("y.jsonl")));
        assert_eq!(index("minimal.toml", &["data.index=/data/y.jsonl"]), "/data/y.jsonl");
    }

    #[test]
    fn epochs_and_several_sets_replace_the_steps_and_the_index_of_a_base() {
        let sets = ["train.epochs=3", "data.sets=[{index = '/a', weight = 2}, {index = '/b', weight = 0.5}]"];
        let Resolved { recipe, table, .. } = valid("minimal.toml", &sets).unwrap();
        assert_eq!(recipe.train.length, Length::Epochs(3));
        let shares: Vec<_> = recipe.data.all().into_iter().map(|set| (set.index, set.weight)).collect();
        assert_eq!(shares, [("/a".into(), Some(2.0)), ("/b".into(), Some(0.5))]);
        assert_eq!(Recipe::from_table(&table), Ok(recipe));
        let back =
            ["train.epochs=3", "train.steps=7"].map(|set| valid("minimal.toml", &[set]).unwrap().recipe.train.length);
        assert_eq!(back, [Length::Epochs(3), Length::Steps(7)]);
        let last = valid("minimal.toml", &["train.steps=7", "train.epochs=3"]).unwrap().recipe.train;
        assert_eq!(last.length, Length::Epochs(3));
    }

    #[test]
    fn the_index_of_a_set_starts_at_the_folder_of_its_file() {
        let keep = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(keep.path()).unwrap();
        let minimal = absolute(Utf8Path::new(CONFIGS)).join("valid/minimal.toml");
        let text = format!("base = \"{minimal}\"\n[[data.sets]]\nindex = \"clips\"\nrepeats = 2\n");
        std::fs::write(folder.join("own.toml"), text).unwrap();
        let sets = load(&folder.join("own.toml"), &[]).unwrap().recipe.data.sets;
        assert_eq!((sets[0].index.clone(), sets[0].repeats), (absolute(&folder.join("clips")), Some(2)));
    }

    #[test]
    fn a_run_of_epochs_is_checked_again_when_its_steps_are_known() {
        let recipe = valid("minimal.toml", &["train.epochs=3", "optimizer.warmup_steps=50"]).unwrap().recipe;
        assert_eq!(recipe.with_steps(100).unwrap().train.length, Length::Steps(100));
        assert_eq!(recipe.with_steps(20).unwrap_err().keys, ["optimizer.warmup_steps", "train.steps"]);
    }

    #[test]
    fn a_recipe_without_a_name_gets_the_name_of_its_file() {
        assert_eq!(valid("minimal.toml", &[]).unwrap().recipe.name, "minimal");
        assert_eq!(valid("minimal.toml", &["name=first-try"]).unwrap().recipe.name, "first-try");
        assert_eq!(valid("stages/short.toml", &[]).unwrap().recipe.name, "short");
    }

    #[test]
    fn the_table_of_a_recipe_gives_the_same_recipe() {
        for name in ["minimal.toml", "stages/long.toml", "command.toml", "encode.toml"] {
            let Resolved { recipe, table, .. } = valid(name, &[]).unwrap();
            assert_eq!(recipe.to_table(), table);
            assert_eq!(Recipe::from_table(&table), Ok(recipe));
        }
    }

    #[test]
    fn a_recipe_for_a_command_has_only_the_keys_that_apply_to_commands() {
        let Resolved { recipe, table, .. } = valid("command.toml", &["env.variables.HF_HOME=/hf"]).unwrap();
        assert_eq!(recipe.job(), JobKind::Command);
        let variables: Vec<_> = recipe.env.all();
        let of = |name: &str| variables.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        assert_eq!(
            (of("HF_HOME"), of("NCCL_SOCKET_IFNAME"), of("NCCL_IB_DISABLE")),
            (Some("/hf"), Some("eth1"), Some("1"))
        );
        let sections: Vec<_> = table.keys().collect();
        assert_eq!(sections, ["checkpoint", "command", "env", "log", "mesh", "name", "train", "trainer"]);
    }

    #[test]
    fn the_recipe_of_an_older_or_newer_run_is_read() {
        let Resolved { recipe, mut table, .. } = valid("minimal.toml", &[]).unwrap();
        table.insert("invented_later".into(), Value::Integer(1));
        let train = table.get_mut("train").and_then(Value::as_table_mut).unwrap();
        train.insert("invented_later".into(), Value::Boolean(true));
        train.remove("max_bad_steps");
        assert_eq!(Recipe::from_table(&table), Ok(recipe));
    }

    #[test]
    fn the_recipe_of_a_run_is_checked() {
        let Resolved { mut table, .. } = valid("minimal.toml", &[]).unwrap();
        let set = |table: &mut toml::Table, key: &str, value| {
            table.get_mut("train").and_then(Value::as_table_mut).unwrap().insert(key.into(), value);
        };
        set(&mut table, "grad_accum", Value::Integer(3));
        let broken = Recipe::from_table(&table).unwrap_err();
        set(&mut table, "grad_accum", Value::String("two".into()));
        let mistyped = Recipe::from_table(&table).unwrap_err();
        insta::assert_snapshot!(format!("{broken}\n\n{mistyped}"));
    }

    #[test]
    fn the_schema_lists_the_keys_of_the_types() {
        for name in ["minimal.toml", "encode.toml", "command.toml"] {
            let Resolved { recipe, .. } = valid(name, &[]).unwrap();
            let mut keys = Vec::new();
            for (name, value) in recipe.to_table() {
                match value {
                    Value::Table(section) => keys.extend(section.keys().map(|key| format!("{name}.{key}"))),
                    _ => keys.push(name),
                }
            }
            keys.retain(|key| !key.starts_with("env.variables."));
            let mut schema: Vec<_> = SCHEMA.iter().map(|key| key.path.to_owned()).collect();
            keys.sort();
            schema.retain(|key| Key::find(key).unwrap().is_for(recipe.reader()));
            schema.sort();
            assert_eq!(keys, schema, "{name}");
        }
    }

    #[test]
    fn every_default_is_a_value_of_its_key() {
        for key in SCHEMA {
            let Some(default) = key.default_value().filter(|default| default.as_str() != Some("")) else { continue };
            assert_eq!(value::accept(key, &default).map_err(|bad| bad.why), Ok(default), "{}", key.path);
        }
    }

    #[test]
    fn a_changed_recipe_is_checked_again() {
        let recipe = load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[]).unwrap().recipe;
        let error = |change: fn(&mut Recipe)| {
            let mut changed = recipe.clone();
            change(&mut changed);
            let error = changed.check().unwrap_err();
            (error.kind, error.keys)
        };
        assert_eq!(recipe.check(), Ok(()));
        let no_ranks = error(|recipe| recipe.mesh.dp_shard = 0);
        assert_eq!(no_ranks, (RecipeErrorKind::InvalidValue, vec!["mesh.dp_shard".to_owned()]));
        let uneven = error(|recipe| recipe.mesh.dp_shard = 3);
        assert_eq!(uneven.0, RecipeErrorKind::Mesh);
        assert!(uneven.1.contains(&"train.global_batch".to_owned()), "{uneven:?}");
    }
}

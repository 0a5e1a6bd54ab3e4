//! Curricula: recipes that are trained one after another, each from the weights of the one before.

use camino::{Utf8Path, Utf8PathBuf};
use toml::{Table, Value};

use crate::file::{File, absolute};
use crate::name::is_name;
use crate::nearest::nearest;
use crate::value::shown;
use crate::{
    Change, JobKind, Key, Kind, Origin, ParamSpec, RecipeError, RecipeErrorKind, Resolved, SCHEMA, Task, load,
    param_specs,
};

/// Stages in the order in which they are trained.
#[derive(Debug, Clone, PartialEq)]
pub struct Curriculum {
    /// The path of the curriculum file, as given.
    pub path: Utf8PathBuf,
    /// The title that the console shows; by default the file name without its extension.
    pub title: String,
    /// The stages, first to last.
    pub stages: Vec<StageSpec>,
}

/// One stage: a recipe and the origin of its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct StageSpec {
    /// The name, which is unique in the curriculum: up to 40 letters, digits and '-'.
    pub name: String,
    /// The loaded recipe, with the origin of each value.
    pub resolved: Resolved,
    /// The path of the recipe.
    pub recipe_path: Utf8PathBuf,
    /// The weights that training starts from.
    pub start: StageStart,
    /// The differences from the previous stage; for the first stage, the keys that its own file sets.
    pub changes: Vec<Change>,
}

/// The weights that a stage starts from.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum StageStart {
    /// Random weights.
    Random,
    /// The last checkpoint of the previous stage.
    Previous,
    /// The step folder of a checkpoint.
    Path(Utf8PathBuf),
}

impl Curriculum {
    /// Loads a curriculum and the recipes of all its stages. The `--set` flags in `sets` apply to every stage.
    ///
    /// # Errors
    /// As [`load`](crate::load()); also if two stages have the same name, a stage has no valid start or does not train, or
    /// its model cannot load the weights of the previous stage.
    pub fn load(path: &Utf8Path, sets: &[String]) -> Result<Curriculum, RecipeError> {
        let file = File::read(path, "curriculum")?;
        check_keys(&file, "", &file.table, &["title", "stage"])?;
        let title = match file.table.get("title") {
            None => path.file_stem().unwrap_or_default().to_owned(),
            Some(_) => text(&file, "", &file.table, "title")?,
        };
        let entries = match file.table.get("stage") {
            Some(Value::Array(entries)) if !entries.is_empty() => entries,
            _ => {
                return Err(error(
                    RecipeErrorKind::Stage,
                    &file,
                    "stage",
                    "the curriculum has no stages".into(),
                    "write a [[stage]] with name, recipe and start for each stage",
                ));
            }
        };
        let mut stages: Vec<StageSpec> = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let stage = stage(&file, index, entry, stages.last(), sets)?;
            if let Some(at) = stages.iter().position(|earlier| earlier.name == stage.name) {
                let why = format!(
                    "{} and {} are both named {}",
                    file.place(&format!("stage.{at}.name"), &file.path),
                    file.place(&format!("stage.{index}.name"), &file.path),
                    stage.name
                );
                let key = format!("stage.{index}.name");
                return Err(error(RecipeErrorKind::Stage, &file, &key, why, "give each stage a different name"));
            }
            stages.push(stage);
        }
        Ok(Curriculum { path: path.to_owned(), title, stages })
    }

    /// Returns the stage with this name.
    pub fn stage(&self, name: &str) -> Option<&StageSpec> {
        self.stages.iter().find(|stage| stage.name == name)
    }

    /// Returns the stage after the stage with this name; `None` if there is no such stage or it is the last.
    pub fn next_after(&self, name: &str) -> Option<&StageSpec> {
        let at = self.stages.iter().position(|stage| stage.name == name)?;
        self.stages.get(at + 1)
    }
}

fn stage(
    file: &File,
    index: usize,
    entry: &Value,
    previous: Option<&StageSpec>,
    sets: &[String],
) -> Result<StageSpec, RecipeError> {
    let at = format!("stage.{index}");
    let Value::Table(table) = entry else {
        return Err(error(
            RecipeErrorKind::Stage,
            file,
            &at,
            format!("{} is not a stage", file.place(&at, &file.path)),
            "write [[stage]] above each stage",
        ));
    };
    check_keys(file, &at, table, &["name", "recipe", "start"])?;
    let name = text(file, &at, table, "name")?;
    if !is_name(&name) {
        let key = format!("{at}.name");
        return Err(error(
            RecipeErrorKind::InvalidValue,
            file,
            &key,
            format!("{}: \"{name}\" is not a valid name of a stage", file.place(&key, &file.path)),
            "use up to 40 letters, digits and '-'",
        ));
    }
    let recipe_path = file.resolve(&text(file, &at, table, "recipe")?);
    let resolved = load(&recipe_path, sets).map_err(|inner| RecipeError {
        why: format!(
            "{} (the recipe of stage {name}, {}:{})",
            inner.why,
            file.path,
            file.line(&format!("{at}.recipe"))
        ),
        ..inner
    })?;
    let task = resolved.recipe.task;
    if task != Task::Train {
        let why = format!(
            "{}: {recipe_path} has task = \"{}\", and the stages of a curriculum train",
            file.place(&format!("{at}.recipe"), &file.path),
            task.name()
        );
        let fix = format!("remove the stage, and launch {recipe_path} by itself");
        return Err(error(RecipeErrorKind::Stage, file, &format!("{at}.recipe"), why, fix));
    }
    let start = start(file, &at, table, previous)?;
    let is_command = resolved.recipe.job() == JobKind::Command;
    match (&start, previous) {
        (StageStart::Random, _) => {}
        (_, _) if is_command => takes_weights(file, &at, &name, &resolved, &start)?,
        (StageStart::Previous, Some(previous)) => fits(file, &at, previous, &name, &resolved)?,
        _ => {}
    }
    let changes = match previous {
        Some(previous) => differences(&previous.resolved, &resolved),
        None => own_settings(&resolved, &recipe_path),
    };
    Ok(StageSpec { name, resolved, recipe_path, start, changes })
}

fn start(file: &File, at: &str, table: &Table, previous: Option<&StageSpec>) -> Result<StageStart, RecipeError> {
    let key = format!("{at}.start");
    let place = file.place(&key, &file.path);
    let written = match (table.get("start"), previous) {
        (None, None) => return Ok(StageStart::Random),
        (None, Some(_)) => return Ok(StageStart::Previous),
        (Some(_), _) => text(file, at, table, "start")?,
    };
    match written.as_str() {
        "random" => Ok(StageStart::Random),
        "previous" if previous.is_some() => Ok(StageStart::Previous),
        "previous" => Err(error(
            RecipeErrorKind::Stage,
            file,
            &key,
            format!("{place}: the first stage has no previous stage"),
            "write start = \"random\", or the step folder of a checkpoint: start = \"./weights/step-00000500\"",
        )),
        // A slash distinguishes a path from a mistyped word.
        path if path.contains('/') => Ok(StageStart::Path(absolute(&file.resolve(path)))),
        word => Err(error(
            RecipeErrorKind::Stage,
            file,
            &key,
            format!("{place}: \"{word}\" is not \"random\", \"previous\" or a path with a '/'"),
            match nearest(word, ["random", "previous"]) {
                Some(word) => format!("did you mean \"{word}\"?"),
                None => format!("if {word} is a folder beside this file, write \"./{word}\""),
            },
        )),
    }
}

/// Checks that the arguments of a stage's command pass the weights that the stage starts from.
fn takes_weights(
    file: &File,
    at: &str,
    name: &str,
    resolved: &Resolved,
    start: &StageStart,
) -> Result<(), RecipeError> {
    let command = &resolved.recipe.command;
    let (why, fix) = match start {
        _ if !command.takes_weights() => (
            "the command has no argument for weights",
            "set command.start in the recipe, such as [\"--ckpt-path\", \"{weights}\"], or write start = \"random\" here",
        ),
        StageStart::Path(_) if command.needs_previous() => (
            "{previous} is a checkpoint of the previous stage, and this stage starts from a path",
            "write {weights}, which any path fills in, or start = \"previous\" here",
        ),
        _ => return Ok(()),
    };
    let why = format!("{}: stage {name} starts from weights: {why}", file.place(&format!("{at}.start"), &file.path));
    Err(error(RecipeErrorKind::Stage, file, &format!("{at}.start"), why, fix))
}

/// Checks that a stage's model can load the weights of the previous stage.
fn fits(file: &File, at: &str, previous: &StageSpec, name: &str, resolved: &Resolved) -> Result<(), RecipeError> {
    if previous.resolved.recipe.job() == JobKind::Command {
        let why = format!(
            "{}: stage {name} cannot start from the checkpoints of the command of stage {}",
            file.place(&format!("{at}.start"), &file.path),
            previous.name
        );
        let fix = "convert a checkpoint with `vidtui convert`, and write its path here: start = \"./weights/…\"";
        return Err(error(RecipeErrorKind::Stage, file, &format!("{at}.start"), why, fix));
    }
    let (before, after) = (param_specs(&previous.resolved.recipe.model), param_specs(&resolved.recipe.model));
    let shape =
        |specs: &[ParamSpec], name: &str| specs.iter().find(|spec| spec.name == name).map(|spec| spec.shape.clone());
    let names = before.iter().chain(&after).map(|spec| spec.name.as_str());
    let Some((tensor, old, new)) =
        names.map(|name| (name, shape(&before, name), shape(&after, name))).find(|(_, old, new)| old != new)
    else {
        return Ok(());
    };
    let written = |shape: Option<Vec<usize>>| shape.map_or("absent".into(), |shape| format!("{shape:?}"));
    let why = format!(
        "{}: stage {name} cannot start from the weights of stage {}: {tensor} is {} there and {} in {name}",
        file.place(&format!("{at}.start"), &file.path),
        previous.name,
        written(old),
        written(new)
    );
    let fix = format!("use the [model] sizes of stage {}, or write start = \"random\"", previous.name);
    Err(error(RecipeErrorKind::Stage, file, &format!("{at}.start"), why, fix))
}

/// Returns the keys whose values differ, in the order of [`SCHEMA`].
fn differences(before: &Resolved, after: &Resolved) -> Vec<Change> {
    let keys = SCHEMA.iter().filter(|key| key.path != "name");
    keys.filter_map(|key| {
        let (from, to) = (before.value(key.path)?, after.value(key.path)?);
        let (from, to) = match (key.kind, from.as_str(), to.as_str()) {
            _ if from == to => return None,
            (Kind::Path, Some(from), Some(to)) => without_common_folder(from, to),
            (Kind::Words, ..) => without_common_words(from, to),
            _ => (shown(from), shown(to)),
        };
        Some(Change { key: key.path.to_owned(), from: Some(from), to })
    })
    .collect()
}

/// Returns the keys that a recipe's own file sets.
fn own_settings(resolved: &Resolved, recipe_path: &Utf8Path) -> Vec<Change> {
    let own = |key: &&Key| matches!(&resolved.origins[key.path], Origin::File { path, .. } if path == recipe_path);
    let keys = SCHEMA.iter().filter(|key| key.path != "name").filter(own);
    keys.filter_map(|key| {
        let value = resolved.value(key.path)?;
        let file_name = Utf8Path::new(value.as_str().unwrap_or_default()).file_name();
        let to = match (key.kind, file_name) {
            (Kind::Path, Some(file_name)) => file_name.to_owned(),
            _ => shown(value),
        };
        Some(Change { key: key.path.to_owned(), from: None, to })
    })
    .collect()
}

/// Returns two paths without the folders that they have in common.
fn without_common_folder(a: &str, b: &str) -> (String, String) {
    let (a, b) = (Utf8Path::new(a), Utf8Path::new(b));
    let common = a.components().zip(b.components()).take_while(|(a, b)| a == b).count();
    let rest = |path: &Utf8Path| path.components().skip(common).collect::<Utf8PathBuf>().into_string();
    (rest(a), rest(b))
}

/// Returns two lists of words without those that they have in common at the beginning and at the end.
fn without_common_words(a: &Value, b: &Value) -> (String, String) {
    let words = |list: &Value| -> Vec<String> {
        let words = list.as_array().into_iter().flatten().filter_map(Value::as_str);
        words.map(str::to_owned).collect()
    };
    let (a, b) = (words(a), words(b));
    let begin = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[begin..], &b[begin..]);
    let end = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    let rest = |words: &[String]| match &words[..words.len() - end] {
        [] => "nothing".to_owned(),
        words => words.join(" "),
    };
    (rest(a), rest(b))
}

fn error(kind: RecipeErrorKind, file: &File, key: &str, why: String, fix: impl Into<String>) -> RecipeError {
    RecipeError::new(kind, format!("cannot use curriculum {}", file.path), why, fix).key(key)
}

fn join(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}

fn check_keys(file: &File, at: &str, table: &Table, known: &[&str]) -> Result<(), RecipeError> {
    let Some(unknown) = table.keys().find(|key| !known.contains(&key.as_str())) else { return Ok(()) };
    let fix = match nearest(unknown, known.iter().copied()) {
        Some(key) => format!("did you mean {key}?"),
        None => format!("the keys are {}", known.join(", ")),
    };
    let key = join(at, unknown);
    let why = format!("{}: there is no key {unknown}", file.place(&key, &file.path));
    Err(error(RecipeErrorKind::UnknownKey, file, &key, why, fix))
}

fn text(file: &File, at: &str, table: &Table, key: &str) -> Result<String, RecipeError> {
    match table.get(key) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
        Some(_) => Err(error(
            RecipeErrorKind::InvalidValue,
            file,
            &join(at, key),
            format!("{}: {key} is not a string", file.place(&join(at, key), &file.path)),
            format!("write it in quotes: {key} = \"…\""),
        )),
        None => Err(error(
            RecipeErrorKind::MissingKey,
            file,
            &join(at, key),
            format!("{}: the stage has no {key}", file.place(at, &file.path)),
            format!("add {key} = \"…\""),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curriculum() -> Curriculum {
        Curriculum::load("../../tests/fixtures/configs/valid/stages/curriculum.toml".into(), &[]).unwrap()
    }

    fn changes(stage: &StageSpec) -> Vec<String> {
        let line = |change: &Change| match &change.from {
            Some(from) => format!("{}: {from} -> {}", change.key, change.to),
            None => format!("{}: {}", change.key, change.to),
        };
        stage.changes.iter().map(line).collect()
    }

    #[test]
    fn stages_keep_their_order() {
        let curriculum = curriculum();
        assert_eq!(curriculum.title, "Short, then long");
        let names = |stage: Option<&StageSpec>| stage.map(|stage| stage.name.clone());
        assert_eq!(names(curriculum.next_after("first")), Some("second".into()));
        assert_eq!(names(curriculum.next_after("fourth")), None);
        assert_eq!(names(curriculum.next_after("fifth")), None);
        assert_eq!(names(curriculum.stage("third")), Some("third".into()));
    }

    #[test]
    fn a_missing_curriculum_lists_the_curricula_beside_it() {
        let error = Curriculum::load("../../configs/dem".into(), &[]).unwrap_err();
        assert_eq!(error.kind, RecipeErrorKind::Io(std::io::ErrorKind::NotFound));
        insta::assert_snapshot!(error.fix, @"../../configs contains bunny, demo, fun, lambda, open-sora, ttt-linear, ttt-mlp");
    }

    #[test]
    fn the_first_stage_starts_at_random_and_later_stages_from_the_previous_one() {
        let starts: Vec<_> = curriculum().stages.into_iter().map(|stage| stage.start).collect();
        let folder = absolute("../../tests/fixtures/configs/valid/stages".into());
        let path = StageStart::Path(folder.join("weights/step-00000020"));
        assert_eq!(starts, [StageStart::Random, StageStart::Previous, path, StageStart::Random]);
    }

    #[test]
    fn a_stage_lists_its_differences_from_the_previous_one() {
        let curriculum = curriculum();
        assert_eq!(changes(&curriculum.stages[0]), ["model.head_dim: 32", "mesh.dp_shard: 2"]);
        assert_eq!(
            changes(&curriculum.stages[1]),
            [
                "model.latent_frames: 3 -> 5",
                "data.index: data/index.jsonl -> stages/long.jsonl",
                "train.grad_accum: 1 -> 2",
                r#"train.trainable: "all" -> ['attn\.[qk]\.', "^final"]"#,
                "optimizer.lr: 1e-4 -> 1.0",
            ]
        );
        assert_eq!(changes(&curriculum.stages[2]), [""; 0]);
    }

    #[test]
    fn flags_apply_to_every_stage() {
        let path = "../../tests/fixtures/configs/valid/stages/curriculum.toml";
        let curriculum = Curriculum::load(path.into(), &["train.steps=9".into()]).unwrap();
        assert!(curriculum.stages.iter().all(|stage| stage.resolved.recipe.train.length == crate::Length::Steps(9)));
    }

    #[test]
    fn a_stage_lists_the_words_of_its_command_that_differ() {
        let curriculum = Curriculum::load("../../configs/lambda/curriculum.toml".into(), &[]).unwrap();
        let changed = |stage: usize| changes(&curriculum.stages[stage])[0].replace("configs/opensora-v1-2/lambda/", "");
        assert_eq!(changed(1), "command.run: stage1.py -> stage2.py");
        let data = "--data-path OpenVid1M";
        assert_eq!(changed(2), format!("command.run: stage2.py {data}.csv -> stage3.py {data}-MiraData330k.csv"));
    }

    #[test]
    fn the_demo_grows_from_two_seconds_to_four() {
        let curriculum = Curriculum::load("../../configs/demo/curriculum.toml".into(), &[]).unwrap();
        let recipes: Vec<_> = curriculum.stages.iter().map(|stage| &stage.resolved.recipe).collect();
        assert_eq!(recipes.iter().map(|recipe| recipe.model.seq_len()).collect::<Vec<_>>(), [640, 1280]);
        assert_eq!(recipes.iter().map(|recipe| recipe.mesh.check_world(2)).collect::<Vec<_>>(), [Ok(()), Ok(())]);
        assert_eq!(curriculum.stages[1].start, StageStart::Previous);
        let changed = changes(&curriculum.stages[1]);
        for change in [
            "model.segments: 1 -> 2",
            "model.latent_frames: 13 -> 25",
            "data.index: 2s.jsonl -> 4s.jsonl",
            r#"train.trainable: "all" -> "qkvo""#,
        ] {
            assert!(changed.iter().any(|line| line == change), "{change} is not among {changed:?}");
        }
    }
}

//! `vidtui recipe show`: prints the complete recipe of a file, a stage or a run.

use crate::args::RecipeShowArgs;
use crate::command_error::CommandError;
use crate::comparison;
use crate::output;
use crate::workspace::{Workspace, recipe_failure};
use camino::Utf8Path;
use recipe::{Origin, completed, shown_recipe};
use rundir::{ErrorCode, Failure, RunDir};

/// Prints the complete recipe, as TOML that `vidtui launch` can load or as JSON.
pub fn show(workspace: &Workspace, args: &RecipeShowArgs) -> Result<(), CommandError> {
    match run_of(workspace, &args.recipe)? {
        Some(run) => show_run(&run, args),
        None => show_file(workspace, args),
    }
}

/// Finds the run with a name. `None` if the name is that of a file or a stage, or can only be one.
fn run_of(workspace: &Workspace, name: &str) -> Result<Option<RunDir>, CommandError> {
    let is_path = name.contains(['/', ':']) || name.ends_with(".toml") || Utf8Path::new(name).exists();
    if is_path {
        return Ok(None);
    }
    let neither = |error: CommandError| {
        let Failure { code, what, why, fix, .. } = error.into_failure();
        let is_unknown = code == ErrorCode::RunNotFound;
        let what = if is_unknown { format!("there is no recipe file and no run '{name}'") } else { what };
        CommandError::request(Failure::new(code, what, why, fix))
    };
    workspace.find(name).map(Some).map_err(neither)
}

fn show_run(dir: &RunDir, args: &RecipeShowArgs) -> Result<(), CommandError> {
    let run = dir.read_run()?;
    let refused = |option: &str, why: String, fix: &str| {
        let what = format!("cannot use {option} with the run {}", run.id);
        Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, fix)))
    };
    if args.why {
        let why = "its run.toml has the values of the recipe without their sources".to_owned();
        return refused("--why", why, "leave it out, or show the recipe file");
    }
    if let Some(imported) = run.imported.as_ref().filter(|imported| !imported.config.is_empty()) {
        if !args.set.is_empty() {
            let why = format!("it was imported from {}, and has the settings of that log", imported.from);
            return refused("--set", why, "leave it out");
        }
        let settings = comparison::settings(&run, None);
        if !args.output.json {
            return output::text(&output::facts(&settings));
        }
        let value = |text: String| serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text));
        let settings: serde_json::Map<_, _> = settings.into_iter().map(|(key, text)| (key, value(text))).collect();
        return output::json(&settings);
    }
    let last = dir.latest_attempt()?;
    let mut table = completed(&comparison::newest_recipe(&run, last.as_ref()));
    if !args.set.is_empty() {
        let changed = run.recipe()?.with_sets(&dir.run_toml(), &args.set).map_err(recipe_failure)?;
        table = completed(&changed.0.to_table());
    }
    if args.output.json { output::json(&table) } else { output::text(&shown_recipe(&table)) }
}

fn show_file(workspace: &Workspace, args: &RecipeShowArgs) -> Result<(), CommandError> {
    let subject = workspace.subject(&args.recipe, &args.set)?;
    let resolved = subject.resolved();
    match (args.output.json, args.why) {
        (false, why) => output::text(&resolved.show(why)),
        (true, false) => output::json(&resolved.table),
        (true, true) => {
            let origins: serde_json::Map<_, _> =
                resolved.origins.iter().map(|(key, origin)| (key.clone(), in_words(origin).into())).collect();
            output::json(&serde_json::json!({ "recipe": resolved.table, "origins": origins }))
        }
    }
}

fn in_words(origin: &Origin) -> String {
    match origin {
        Origin::Default => "default".into(),
        Origin::File { path, line } => format!("{path}:{line}"),
        Origin::Flag(flag) => format!("--set {flag}"),
        Origin::Fit(ranks) => format!("--fit {ranks}"),
    }
}

//! `vidtui recipe show`: prints the complete recipe.

use crate::args::RecipeShowArgs;
use crate::command_error::CommandError;
use crate::output;
use crate::workspace::Workspace;
use recipe::Origin;

/// Prints the complete recipe, as TOML that `vidtui launch` can load or as JSON.
pub fn show(workspace: &Workspace, args: &RecipeShowArgs) -> Result<(), CommandError> {
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

//! Checks that a user's own command can be started on each node: its program and its working folder.

use std::time::Duration;

use cluster::NodeId;
use plan::{LaunchPlan, quote};
use recipe::{JobKind, Recipe};
use rundir::{ErrorCode, Failure};

use super::check::{Check, CheckId};
use crate::Command;
use crate::parallel::on_nodes;
use crate::transport::Shell;

/// Time limit for finding a program.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Checks that ffmpeg and ffprobe start: on each node of an encode, and on the node of rank 0 if it writes samples.
pub(super) fn ffmpeg<S: Shell + ?Sized>(what: &str, plan: &LaunchPlan, shells: &mut [Box<S>]) -> Vec<Check> {
    let Ok(recipe) = plan.run.recipe() else { return Vec::new() };
    let first = plan.attempt.placement.ranks.first().map(|place| &place.node);
    let runs_it = |node: &NodeId| match recipe.job() {
        JobKind::Command => false,
        JobKind::Encode => true,
        JobKind::Sample => Some(node) == first,
        JobKind::Train => Some(node) == first && !recipe.sample.prompts.is_empty(),
    };
    let nodes: Vec<_> = plan.nodes.iter().map(|launch| &launch.node).filter(|node| runs_it(node)).collect();
    if nodes.is_empty() {
        return Vec::new();
    }
    let command = Command::new("look for ffmpeg", ffmpeg_script(&recipe), TIMEOUT);
    on_nodes(nodes.into_iter().map(|node| (node.clone(), node.clone())).collect(), shells, |node, shell| {
        let answer = shell.run(&command).and_then(|output| output.text(&node, &command));
        let missing = |why: String| {
            let fix = "install it there (apt install ffmpeg, dnf install ffmpeg-free, conda install -c conda-forge ffmpeg), \
                       set PATH in env.variables, or correct VIDTUI_FFMPEG and VIDTUI_FFPROBE";
            Err(Failure::new(ErrorCode::ProgramMissing, what, format!("node {node}: {why}"), fix))
        };
        let result = match answer.as_deref().map(str::trim) {
            Ok(found) => match (found.strip_prefix("none "), found.strip_prefix("broken ")) {
                (Some(program), _) => missing(format!("program {program} not found")),
                (_, Some(output)) => {
                    let (program, last_line) = output.split_once('\n').unwrap_or((output, ""));
                    missing(format!("program {program} does not start: {last_line}"))
                }
                _ => Ok(found.to_owned()),
            },
            Err(error) => return Check::new(CheckId::Node, Some(&node), Err(error.failure(what))),
        };
        Check::new(CheckId::Ffmpeg, Some(&node), result)
    })
}

/// Returns a script that starts ffprobe and ffmpeg as the trainer does, and prints the version of ffmpeg, or the program that does not
/// start and the last line that it printed.
fn ffmpeg_script(recipe: &Recipe) -> String {
    let path = recipe.env.variables.get("PATH").map_or(String::new(), |path| format!("PATH={}\n", quote(path)));
    let script = r#"for program in "${VIDTUI_FFPROBE:-ffprobe}" "${VIDTUI_FFMPEG:-ffmpeg}"; do
    command -v "$program" >/dev/null || { echo "none $program"; exit; }
    version=$("$program" -version 2>&1 </dev/null) ||
        { echo "broken $program"; printf '%s' "$version" | tail -n 1 | cut -c 1-200; exit; }
done
printf '%s\n' "$version" | head -n 1
"#;
    path + script
}

pub(super) fn checks<S: Shell + ?Sized>(what: &str, plan: &LaunchPlan, shells: &mut [Box<S>]) -> Vec<Check> {
    let recipe = match plan.run.recipe() {
        Ok(recipe) if recipe.job() == JobKind::Command => recipe,
        // Another check reports an invalid recipe.
        _ => return Vec::new(),
    };
    let folder = &recipe.command.folder;
    let program = recipe.command.run.first().map_or("", String::as_str);
    let path = recipe.env.variables.get("PATH");
    let script = [
        // The default folder is the run's, which does not exist yet.
        if folder.as_str().is_empty() {
            String::new()
        } else {
            format!("cd {} 2>/dev/null || {{ echo folder; exit; }}", quote(folder.as_str()))
        },
        path.map_or(String::new(), |path| format!("PATH={}", quote(path))),
        format!("command -v {} || echo none", quote(program)),
    ];
    let command = Command::new("look for the command", script.join("\n"), TIMEOUT);
    let nodes = plan.nodes.iter().map(|launch| (launch.node.clone(), launch.node.clone())).collect();
    on_nodes(nodes, shells, |node, shell| {
        let answer = shell.run(&command).and_then(|output| output.text(&node, &command));
        let result = match answer.as_deref().map(str::trim) {
            Ok("folder") => Err(Failure::new(
                ErrorCode::NotFound,
                what,
                format!("node {node}: the working folder {folder} does not exist"),
                "put it on a file system that all nodes share, or change command.folder",
            )),
            Ok("none" | "") => Err(Failure::new(
                ErrorCode::ProgramMissing,
                what,
                format!("node {node}: program {program} not found"),
                "install it there, write its full path into command.run, or set PATH in env.variables",
            )),
            Ok(path) => Ok(path.to_owned()),
            Err(error) => return Check::new(CheckId::Node, Some(&node), Err(error.failure(what))),
        };
        Check::new(CheckId::Command, Some(&node), result)
    })
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;

    use super::*;

    #[test]
    fn the_programs_that_variables_name_are_started() {
        let base = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/demo/2s.toml");
        let answer = |ffmpeg: &str, ffprobe: &str| {
            let recipe = recipe::load(&base, &[]).unwrap().recipe;
            let mut bash = std::process::Command::new("bash");
            bash.args(["-c", &ffmpeg_script(&recipe)]).env("VIDTUI_FFMPEG", ffmpeg).env("VIDTUI_FFPROBE", ffprobe);
            let output = bash.output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        // This program prints its arguments.
        assert_eq!(answer("/bin/echo", "/bin/echo"), "-version");
        assert_eq!(answer("/no/ffmpeg 6", "/bin/echo"), "none /no/ffmpeg 6");
        assert_eq!(answer("/bin/echo", "/no/ffprobe"), "none /no/ffprobe");
        assert_eq!(answer("/bin/false", "/bin/echo"), "broken /bin/false");
    }
}

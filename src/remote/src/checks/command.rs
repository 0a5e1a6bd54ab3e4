//! Checks that a user's own command can be started on each node: its program and its working folder.

use std::time::Duration;

use plan::{LaunchPlan, quote};
use recipe::{Task, TrainerKind};
use rundir::{ErrorCode, Failure};

use super::check::{Check, CheckId};
use crate::Command;
use crate::parallel::on_nodes;
use crate::transport::Shell;

/// Time limit for finding a program.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Checks that an encode finds ffmpeg and ffprobe on each node.
pub(super) fn ffmpeg<S: Shell + ?Sized>(what: &str, plan: &LaunchPlan, shells: &mut [Box<S>]) -> Vec<Check> {
    if plan.task() != Task::Encode {
        return Vec::new();
    }
    let path = plan.run.recipe().ok().and_then(|recipe| recipe.env.variables.get("PATH").cloned());
    let path = path.map_or(String::new(), |path| format!("PATH={}\n", quote(&path)));
    let script = format!(
        "{path}for program in ffmpeg ffprobe; do command -v $program >/dev/null || {{ echo none $program; exit; }}; done\n\
         ffmpeg -version 2>&1 </dev/null | head -n 1"
    );
    let command = Command::new("look for ffmpeg", script, TIMEOUT);
    let nodes = plan.nodes.iter().map(|launch| (launch.node.clone(), launch.node.clone())).collect();
    on_nodes(nodes, shells, |node, shell| {
        let answer = shell.run(&command).and_then(|output| output.text(&node, &command));
        let result = match answer.as_deref().map(str::trim) {
            Ok(found) => match found.strip_prefix("none ") {
                Some(program) => Err(Failure::new(
                    ErrorCode::ProgramMissing,
                    what,
                    format!("node {node}: program {program} not found"),
                    "install it there (apt install ffmpeg, dnf install ffmpeg-free, conda install -c conda-forge ffmpeg), or set PATH in env.variables",
                )),
                None => Ok(found.to_owned()),
            },
            Err(error) => return Check::new(CheckId::Node, Some(&node), Err(error.failure(what))),
        };
        Check::new(CheckId::Ffmpeg, Some(&node), result)
    })
}

pub(super) fn checks<S: Shell + ?Sized>(what: &str, plan: &LaunchPlan, shells: &mut [Box<S>]) -> Vec<Check> {
    let recipe = match plan.run.recipe() {
        Ok(recipe) if recipe.trainer == TrainerKind::Command => recipe,
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

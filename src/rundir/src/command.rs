//! The command of another trainer: its arguments on each node, its working directory and its output folder.

use crate::{Attempt, Run, RunDir, StartFrom};
use camino::Utf8PathBuf;
use cluster::{NodeId, RankPlace};
use recipe::{Per, Recipe};

/// Where a command is started: a node and, if each rank has its own process, the rank.
#[derive(Debug, Clone, Copy)]
pub struct CommandPlace<'a> {
    /// The node on which the command is started.
    pub node: &'a NodeId,
    /// The rank, if the command is started for each rank.
    pub rank: Option<&'a RankPlace>,
    /// The rendezvous address and port on the first node; `None` until they are known.
    pub master: Option<(&'a str, u16)>,
}

/// Returns the ranks of a node for which a command is started, or one `None` if it is started once for the node.
pub fn command_ranks<'a>(recipe: &Recipe, attempt: &'a Attempt, node: &NodeId) -> Vec<Option<&'a RankPlace>> {
    match recipe.command.per {
        Per::Node => vec![None],
        Per::Rank => attempt.placement.ranks.iter().filter(|place| place.node == *node).map(Some).collect(),
    }
}

/// Returns the program and its arguments with every known placeholder filled in. The recipe is the one that the attempt executes
/// ([`Attempt::effective`]).
pub fn command_words(
    dir: &RunDir,
    run: &Run,
    recipe: &Recipe,
    attempt: &Attempt,
    place: &CommandPlace<'_>,
) -> Vec<String> {
    let nodes = attempt.placement.by_node();
    let here = nodes.iter().position(|(node, _)| *node == place.node);
    let value = |name: &str| {
        Some(match name {
            "output" => command_output(dir, run, recipe).to_string(),
            "attempt" => attempt.number.to_string(),
            "steps" => recipe.train.length.steps()?.to_string(),
            "checkpoint_interval" => recipe.checkpoint.interval.to_string(),
            "node" => place.node.to_string(),
            "node_rank" => here?.to_string(),
            "nnodes" => nodes.len().to_string(),
            "nproc_per_node" => nodes[here?].1.len().to_string(),
            "world_size" => attempt.placement.world().to_string(),
            "master_addr" => place.master?.0.to_owned(),
            "master_port" => place.master?.1.to_string(),
            "rank" => place.rank?.rank.to_string(),
            "local_rank" => place.rank?.local_rank.to_string(),
            "checkpoint" => attempt.checkpoint.as_ref()?.to_string(),
            "checkpoint_step" => match attempt.start {
                StartFrom::CheckpointFreshData { step, .. } => step.to_string(),
                _ => attempt.start_step.to_string(),
            },
            "weights" => weights(run)?,
            "previous" => run.lineage.as_ref().and_then(|_| weights(run))?,
            name => of_run(dir, run, name)?,
        })
    };
    command_template(recipe, attempt).map(|word| recipe::fill(word, value)).collect()
}

/// Returns the program and its arguments for an attempt, with placeholders.
pub fn command_template<'a>(recipe: &'a Recipe, attempt: &Attempt) -> impl Iterator<Item = &'a String> {
    let command = &recipe.command;
    let [more, last]: [&[String]; 2] = match (&attempt.checkpoint, &attempt.start) {
        (Some(_), StartFrom::CheckpointFreshData { .. }) => [&command.resume, &command.fresh_data],
        (Some(_), _) => [&command.resume, &[]],
        (None, StartFrom::Weights { .. }) => [&command.start, &[]],
        (None, _) => [&[], &[]],
    };
    command.run.iter().chain(more).chain(last)
}

/// Returns the path of the weights that a run starts from; `None` if it starts otherwise.
fn weights(run: &Run) -> Option<String> {
    match &run.start {
        StartFrom::Weights { path } => Some(path.to_string()),
        _ => None,
    }
}

/// Returns the folder below which a command saves its checkpoints.
pub fn command_output(dir: &RunDir, run: &Run, recipe: &Recipe) -> Utf8PathBuf {
    // A relative `command.output` is relative to the command's working directory.
    let folder = command_folder(dir, recipe);
    folder.join(recipe::fill(&recipe.command.output, |name| of_run(dir, run, name)))
}

/// Returns the working directory of a command.
pub fn command_folder(dir: &RunDir, recipe: &Recipe) -> Utf8PathBuf {
    if recipe.command.folder.as_str().is_empty() { dir.root.clone() } else { recipe.command.folder.clone() }
}

fn of_run(dir: &RunDir, run: &Run, name: &str) -> Option<String> {
    Some(match name {
        "run" => run.id.to_string(),
        "name" => run.name.clone(),
        "run_dir" => dir.root.to_string(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{attempt, node, run, temp};

    #[test]
    fn every_placeholder_is_filled_in_and_a_resume_adds_arguments() {
        let (_keep, dir) = temp();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/command.toml");
        let mut recipe = recipe::load(path.into(), &[]).unwrap().recipe;
        recipe.command.per = Per::Rank;
        recipe.command.run = ["p", "{node}/{node_rank}/{nnodes}/{nproc_per_node}/{world_size}", "{rank}.{local_rank}"]
            .into_iter()
            .chain(["{master_addr}:{master_port}", "{output}", "{run} {name} {attempt} {steps} {checkpoint_interval}"])
            .map(str::to_owned)
            .collect();
        recipe.command.resume = vec!["--load".into(), "{checkpoint}@{checkpoint_step}".into()];
        let attempt = attempt(2, 40, &["ml-1", "ml-2"]);
        let here = node("ml-2");
        let ranks = command_ranks(&recipe, &attempt, &here);
        let place = CommandPlace { node: &here, rank: ranks[0], master: Some(("10.0.0.1", 29_500)) };
        let want = ["p", "ml-2/1/2/1/2", "1.0", "10.0.0.1:29500", &format!("{}/output", dir.root)];
        let first = command_words(&dir, &run(), &recipe, &attempt, &place);
        assert_eq!(first[..5], want);
        assert_eq!(first[5..], [format!("{} demo-2s 2 1000 0", run().id)]);
        let resuming = Attempt { checkpoint: Some("/out/finetrainers_step_40".into()), ..attempt.clone() };
        let resumed = command_words(&dir, &run(), &recipe, &resuming, &place);
        assert_eq!(resumed[6..], ["--load", "/out/finetrainers_step_40@40"]);
        let start = StartFrom::CheckpointFreshData { run: run().id, step: 40 };
        let fresh = Attempt { start, start_step: 0, ..resuming };
        recipe.command.fresh_data = vec!["--start-step".into(), "0".into()];
        assert_eq!(
            command_words(&dir, &run(), &recipe, &fresh, &place)[6..],
            ["--load", "/out/finetrainers_step_40@40", "--start-step", "0"]
        );
        let unknown = CommandPlace { master: None, ..place };
        assert_eq!(command_words(&dir, &run(), &recipe, &attempt, &unknown)[3], "{master_addr}:{master_port}");
    }
    #[test]
    fn a_start_from_weights_adds_arguments_until_the_run_has_a_checkpoint_of_its_own() {
        let (_keep, dir) = temp();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/command.toml");
        let mut recipe = recipe::load(path.into(), &[]).unwrap().recipe;
        recipe.command.run = vec!["p".into(), "{weights}".into()];
        recipe.command.start = vec!["--ckpt-path={previous}".into()];
        recipe.command.resume = vec!["--load".into()];
        let start = StartFrom::Weights { path: "/out/epoch4-global_step2210".into() };
        let lineage = Some(crate::Lineage { run: run().id, step: 2210 });
        let stage = Run { start: start.clone(), lineage, ..run() };
        let attempt = Attempt { start, checkpoint: None, ..attempt(1, 0, &["ml-1"]) };
        let here = node("ml-1");
        let place = CommandPlace { node: &here, rank: None, master: None };
        let words = |run: &Run, attempt: &Attempt| command_words(&dir, run, &recipe, attempt, &place);
        let path = "/out/epoch4-global_step2210";
        assert_eq!(words(&stage, &attempt), ["p", path, &format!("--ckpt-path={path}")]);
        let resuming = Attempt { checkpoint: Some("/out/epoch0-global_step9".into()), ..attempt.clone() };
        assert_eq!(words(&stage, &resuming), ["p", path, "--load"]);
        let of_no_run = Run { lineage: None, ..stage };
        assert_eq!(words(&of_no_run, &attempt)[2], "--ckpt-path={previous}");
    }
}

use camino::{Utf8Path, Utf8PathBuf};
use cluster::{NodeId, Placement};
use recipe::{Mesh, Recipe};
use rundir::{Attempt, AttemptWhy, Failure, Run, RunDir, SCHEMA, StartFrom};

use crate::disk::DiskNeed;
use crate::{Context, command_line, counted, script, size, supervise_command};

/// Exactly what will be started, on which nodes, and everything to know before saying yes.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LaunchPlan {
    /// The run; written to `run.toml` when it is new.
    pub run: Run,
    /// Its folder.
    pub dir: RunDir,
    /// The trainer binary.
    pub trainer: Utf8PathBuf,
    /// The attempt that is made.
    pub attempt: Attempt,
    /// What is started on each node.
    pub nodes: Vec<NodeLaunch>,
    /// What is unusual about it. Nobody needs to be asked about a plan that has none.
    pub warnings: Vec<String>,
    /// What the dialog and `--dry-run` show: names and values, in order.
    pub summary: Vec<(String, String)>,
    /// The disk space that the checkpoints will take.
    pub disk: DiskNeed,
}

/// What is started on one node.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NodeLaunch {
    /// The node.
    pub node: NodeId,
    /// The whole text of its script.
    pub script: String,
}

impl LaunchPlan {
    /// Tells whether a run is created, rather than continued.
    pub fn is_new_run(&self) -> bool {
        self.attempt.why == AttemptWhy::Launch
    }
}

/// What differs between the plans of a launch, a resume and a next stage; [`Draft::finish`] adds what does not.
pub(crate) struct Draft<'a> {
    pub run: Run,
    pub dir: RunDir,
    pub recipe: &'a Recipe,
    pub number: u32,
    pub why: AttemptWhy,
    pub start: StartFrom,
    pub start_step: u64,
    /// Where the weights come from, in words.
    pub weights: String,
    pub mesh: Mesh,
    pub placement: Placement,
    /// The steps of the run, when they are not the recipe's.
    pub steps: Option<u64>,
    /// Complete checkpoints on disk.
    pub saved: u64,
    pub warnings: Vec<String>,
}

impl Draft<'_> {
    pub fn finish(self, cx: &Context) -> LaunchPlan {
        let attempt = Attempt {
            schema: SCHEMA,
            number: self.number,
            why: self.why,
            by: cx.by.clone(),
            started_s: cx.now_s,
            start_step: self.start_step,
            start: self.start,
            steps: self.steps,
            logins: Vec::new(),
            mesh: self.mesh,
            placement: self.placement,
        };
        let steps = self.steps.unwrap_or(self.recipe.train.steps);
        let disk = DiskNeed::new(self.recipe, steps.saturating_sub(self.start_step), self.saved);
        let nodes = attempt
            .placement
            .by_node()
            .into_iter()
            .map(|(node, _)| NodeLaunch {
                node: node.clone(),
                script: script(&cx.trainer.path, &self.dir, &self.run.id, &attempt, node),
            })
            .collect();
        let summary =
            summary(&self.run, &self.dir, self.recipe, &attempt, steps, &self.weights, &disk, &cx.trainer.path);
        LaunchPlan {
            run: self.run,
            dir: self.dir,
            trainer: cx.trainer.path.clone(),
            attempt,
            nodes,
            warnings: self.warnings,
            summary,
            disk,
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "each is a row of the table")]
fn summary(
    run: &Run,
    dir: &RunDir,
    recipe: &Recipe,
    attempt: &Attempt,
    steps: u64,
    weights: &str,
    disk: &DiskNeed,
    trainer: &Utf8Path,
) -> Vec<(String, String)> {
    let mut rows = vec![("recipe", recipe.name.clone())];
    if let (Some(stage), Some(curriculum)) = (&run.stage, &run.curriculum) {
        rows.push(("stage", format!("{stage} of {curriculum}")));
    }
    let by_node = attempt.placement.by_node();
    let ranks = by_node.iter().map(|(node, places)| format!("{} on {node}", places.len())).collect::<Vec<_>>();
    rows.push(("ranks", ranks.join(" + ")));
    rows.push(("mesh", mesh_in_words(&attempt.mesh)));
    let batch = &recipe.train.global_batch;
    rows.push(("steps", format!("{} to {steps}, {} each", attempt.start_step + 1, counted(*batch, "sample"))));
    rows.push(("weights", weights.to_owned()));
    rows.push(("data", recipe.data.index.to_string()));
    rows.push(("checkpoints", checkpoints_in_words(recipe, disk)));
    rows.push(("run directory", dir.root.to_string()));
    if let [(node, _)] = by_node[..] {
        rows.push(("command", command_line(&supervise_command(trainer, dir, attempt.number, node))));
    } else {
        rows.push(("command", format!("{trainer} supervise, once on each of {}", counted(by_node.len(), "node"))));
    }
    rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn checkpoints_in_words(recipe: &Recipe, disk: &DiskNeed) -> String {
    let when = match recipe.checkpoint.interval {
        0 => "at the end and when stopped".into(),
        1 => "every step".into(),
        steps => format!("every {steps} steps"),
    };
    let kept = match recipe.checkpoint.keep_last {
        0 => "all are kept".into(),
        1 => "the newest is kept".into(),
        kept => format!("the newest {kept} are kept"),
    };
    format!("{when}, {} each, {kept}", size(disk.checkpoint_bytes))
}

/// Writes a mesh with its product.
pub(crate) fn mesh_in_words(mesh: &Mesh) -> String {
    format!("dp_replicate {} × dp_shard {} = {}", mesh.dp_replicate, mesh.dp_shard, counted(mesh.world(), "rank"))
}

/// Places the ranks of a mesh.
pub(crate) fn place(what: &str, mesh: &Mesh, cx: &Context) -> Result<Placement, Failure> {
    Placement::new(&cx.place.nodes, mesh.world())
        .map_err(|error| Failure::new(what, error.to_string(), format!("change {}", cx.place.said)))
}

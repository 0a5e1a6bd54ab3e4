use camino::{Utf8Path, Utf8PathBuf};
use cluster::{Node, NodeId, Placement};
use recipe::{Mesh, Per, Recipe};
use rundir::{
    Attempt, AttemptWhy, CommandPlace, Failure, Login, Run, RunDir, SCHEMA, StartFrom, command_folder, command_output,
    command_ranks, command_words,
};

use crate::cost_rows::cost_rows;
use crate::disk::DiskNeed;
use crate::script::Details;
use crate::{Context, JobKill, Master, TrainerBinary, command_line, script, supervise_command};
use units::{counted, size};

/// Exactly what will be started, on which nodes, and everything to know before saying yes.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LaunchPlan {
    /// The run; written to `run.toml` when it is new.
    pub run: Run,
    /// Its folder.
    pub dir: RunDir,
    /// The trainer binary, by the same path on every node.
    pub trainer: TrainerBinary,
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
    /// Where the ranks meet, when there are several nodes.
    pub master: Option<Master>,
    /// The batch script that is submitted, when Slurm is to choose the nodes. Then nothing is started on any.
    #[serde(default)]
    pub job_script: Option<String>,
    /// The job of the attempt before, which is over but for nodes that were lost: it is ended first.
    #[serde(default)]
    pub replaces: Option<JobKill>,
    /// Whether the trainer is copied to nodes that have another one or none.
    #[serde(default)]
    pub push: bool,
    /// Files of the data set that every node must be able to read: a few for all, which would take long.
    #[serde(default)]
    pub data: Vec<Utf8PathBuf>,
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
    /// What is started for an attempt, without a word of it.
    pub(crate) fn of(run: Run, dir: RunDir, recipe: &Recipe, attempt: Attempt, disk: DiskNeed, cx: &Context) -> Self {
        let master = master(&attempt.placement, cx);
        let launch = |(node, _)| node_launch(&run, &dir, recipe, &attempt, node, master.as_ref(), &cx.trainer.path);
        Self {
            nodes: attempt.placement.by_node().into_iter().map(launch).collect(),
            trainer: cx.trainer.clone(),
            warnings: cx.options.warnings.clone(),
            summary: Vec::new(),
            disk,
            master,
            job_script: None,
            replaces: None,
            // Only nodes that are reached by SSH get a copy.
            push: (cx.options.push || recipe.run.push_trainer) && !attempt.logins.is_empty(),
            data: cx.options.data_files.clone(),
            run,
            dir,
            attempt,
        }
    }

    /// Tells whether a program of the user's own trains.
    pub fn is_command(&self) -> bool {
        self.run.recipe().is_ok_and(|recipe| recipe.trainer == recipe::TrainerKind::Command)
    }

    /// Tells whether ranks of vidtui's own trainer use GPUs, where it `finds` some or not.
    pub fn on_gpus(&self, finds: bool) -> bool {
        self.run.recipe().map_or(finds, |recipe| recipe.train.device.on_gpus(finds))
    }

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
    /// The step that a person asked to start from.
    pub asked_step: Option<u64>,
    /// The folder from which a command continues.
    pub checkpoint: Option<Utf8PathBuf>,
    /// Where the weights come from, in words.
    pub weights: String,
    pub mesh: Mesh,
    pub placement: Placement,
    /// The steps of the run, when they are not the recipe's.
    pub steps: Option<u64>,
    /// Complete checkpoints on disk.
    pub saved: u64,
    /// The size of the newest.
    pub newest_bytes: Option<u64>,
    pub warnings: Vec<String>,
    /// The job of the attempt before, which is ended first.
    pub replaces: Option<JobKill>,
}

impl Draft<'_> {
    pub fn finish(self, cx: &Context) -> LaunchPlan {
        let is_chosen = cx.target.pending_slurm().is_none();
        let placement = if is_chosen { self.placement } else { Placement { ranks: Vec::new() } };
        let attempt = Attempt {
            schema: SCHEMA,
            number: self.number,
            why: self.why,
            by: cx.by.clone(),
            started_s: cx.now_s,
            start_step: self.start_step,
            start: self.start,
            asked_step: self.asked_step,
            steps: self.steps,
            checkpoint: self.checkpoint,
            waived: cx.options.waived.clone(),
            logins: logins(&placement, cx),
            mesh: self.mesh,
            placement,
            slurm: cx.target.slurm.clone(),
        };
        let steps = self.steps.unwrap_or(self.recipe.train.steps);
        let disk = DiskNeed::new(self.recipe, self.start_step, steps, self.saved, self.newest_bytes);
        let plan = LaunchPlan::of(self.run, self.dir, self.recipe, attempt, disk, cx);
        let LaunchPlan { run, dir, attempt, disk, .. } = &plan;
        let mut summary = match self.recipe.trainer {
            recipe::TrainerKind::Embedded => {
                summary(run, dir, self.recipe, attempt, steps, &self.weights, disk, &cx.trainer.path)
            }
            recipe::TrainerKind::Command => {
                command_summary(run, dir, self.recipe, attempt, steps, &self.weights, plan.master.as_ref())
            }
        };
        let job_script = cx.target.pending_slurm().map(|_| crate::job::script(dir, &run.id, attempt, cx));
        summary.extend(self.replaces.iter().map(|job| ("before".to_owned(), job.why.clone())));
        let warnings = plan.warnings.iter().cloned().chain(self.warnings).collect();
        LaunchPlan { summary, job_script, warnings, replaces: self.replaces, ..plan }
    }
}

/// The ports on which ranks meet: torchrun's, and those after it, below the ones that Linux gives to connections. Which
/// of them is drawn, so that two runs that share a first node rarely want the same. Only every other one: supervisors meet
/// on the port after it.
const PORTS: std::ops::Range<u16> = 29_500..31_500;

pub(crate) fn master(placement: &Placement, cx: &Context) -> Option<Master> {
    let [(first, _), _, ..] = placement.by_node()[..] else { return None };
    let address = cx.target.address.clone().unwrap_or_else(|| first.to_string());
    let pairs = u32::from((PORTS.end - PORTS.start) / 2);
    // The remainder is below a number that is a u16.
    let port = PORTS.start + 2 * u16::try_from(cx.random % pairs).unwrap_or(0);
    Some(Master { address, port })
}

fn logins(placement: &Placement, cx: &Context) -> Vec<Login> {
    let in_use = |login: &&Login| placement.ranks.iter().any(|place| place.node == login.node);
    cx.target.logins.iter().filter(in_use).cloned().collect()
}

/// Warns of groups whose ranks are not all on one node. The ranks of a TP group talk several times in each layer and
/// wait for it; those of a shard group gather and reduce each layer beside their work.
pub(crate) fn crossing(mesh: &Mesh, placement: &Placement) -> Vec<String> {
    let nodes_of = |group: &[cluster::RankPlace]| {
        group.iter().map(|place| &place.node).collect::<std::collections::BTreeSet<_>>().len()
    };
    let warn = |noun: &str, axis: &str, size: usize, ranks: usize, so: &str| {
        let groups = placement.ranks.chunks(ranks.max(1));
        let total = groups.len();
        let crossing = groups.clone().filter(|group| nodes_of(group) > 1).count();
        let widest = groups.map(nodes_of).max().unwrap_or(0);
        (size > 1 && crossing > 0).then(|| {
            format!(
                "{crossing} of {} ({axis} {size}) {} nodes, up to {widest} each: {so}",
                counted(total, noun),
                if crossing == 1 { "crosses" } else { "cross" },
            )
        })
    };
    let copy = mesh.dp_shard * mesh.tp;
    let warnings = [
        warn("TP group", "tp", mesh.tp, mesh.tp, "every layer waits for the network"),
        warn("shard group", "dp_shard", mesh.dp_shard, copy, "every layer is gathered over the network"),
    ];
    warnings.into_iter().flatten().collect()
}

/// Writes the sizes of a mesh: `2 × 4`.
pub(crate) fn sizes(mesh: &Mesh) -> String {
    mesh.axes().iter().map(|(_, size)| size.to_string()).collect::<Vec<_>>().join(" × ")
}

/// What is started on a node of an attempt.
pub(crate) fn node_launch(
    run: &Run,
    dir: &RunDir,
    recipe: &Recipe,
    attempt: &Attempt,
    node: &NodeId,
    master: Option<&Master>,
    trainer: &Utf8Path,
) -> NodeLaunch {
    let commands = commands(run, dir, recipe, attempt, node, master);
    let secrets = Some(recipe.env.secrets.as_path()).filter(|path| !path.as_str().is_empty());
    let details = Details { master, commands: &commands, secrets };
    NodeLaunch { node: node.clone(), script: script(trainer, dir, &run.id, attempt, node, &details) }
}

/// The commands that a supervisor starts on a node, as a person would type them; none for the embedded trainer.
fn commands(
    run: &Run,
    dir: &RunDir,
    recipe: &Recipe,
    attempt: &Attempt,
    node: &NodeId,
    master: Option<&Master>,
) -> Vec<String> {
    if recipe.trainer == recipe::TrainerKind::Embedded {
        return Vec::new();
    }
    let master = master.map(|master| (master.address.as_str(), master.port));
    let words = |rank| command_words(dir, run, recipe, attempt, &CommandPlace { node, rank, master });
    command_ranks(recipe, attempt, node).into_iter().map(|rank| command_line(&words(rank))).collect()
}

fn command_summary(
    run: &Run,
    dir: &RunDir,
    recipe: &Recipe,
    attempt: &Attempt,
    steps: u64,
    weights: &str,
    master: Option<&Master>,
) -> Vec<(String, String)> {
    let by_node = attempt.placement.by_node();
    let mut rows = vec![("recipe", recipe.name.clone())];
    if let (Some(stage), Some(curriculum)) = (&run.stage, &run.curriculum) {
        rows.push(("stage", format!("{stage} of {curriculum}")));
    }
    let queued = attempt.slurm.as_ref().filter(|_| by_node.is_empty()).map(|slurm| &slurm.spec);
    rows.push(("ranks", queued.map_or_else(|| ranks_in_words(&by_node), crate::job::ranks_in_words)));
    rows.push(("steps", format!("{} to {steps}", attempt.start_step + 1)));
    rows.push(("weights", weights.to_owned()));
    let env = &recipe.env;
    let names: Vec<String> = env.all().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    if !names.is_empty() {
        rows.push(("environment", names.join(" ")));
    }
    if !env.secrets.as_str().is_empty() {
        rows.push(("secrets", env.secrets.to_string()));
    }
    rows.push(("checkpoints", format!("below {}, as the command says", command_output(dir, run, recipe))));
    rows.push(("run directory", dir.root.to_string()));
    rows.push(("folder", command_folder(dir, recipe).to_string()));
    if let Some(spec) = queued {
        rows.push(("job", crate::job::in_words(spec)));
        // Where it will be started, Slurm has yet to say.
        rows.push(("command", command_line(&recipe.command.run)));
        rows.push(("submitted", command_line(&["sbatch", dir.job_script(attempt.number).as_str()])));
    }
    if let Some((first, _)) = by_node.first() {
        let command = commands(run, dir, recipe, attempt, first, master).into_iter().next().unwrap_or_default();
        rows.push(("command", command));
        let times = match recipe.command.per {
            Per::Node => counted(by_node.len(), "node"),
            Per::Rank => counted(attempt.placement.world(), "rank"),
        };
        if times != "1 node" && times != "1 rank" {
            rows.push(("started", format!("once on each of {times}; this is the first")));
        }
    }
    rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
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
    let queued = attempt.slurm.as_ref().filter(|_| by_node.is_empty()).map(|slurm| &slurm.spec);
    rows.push(("ranks", queued.map_or_else(|| ranks_in_words(&by_node), crate::job::ranks_in_words)));
    rows.push(("mesh", attempt.mesh.to_string()));
    let batch = &recipe.train.global_batch;
    rows.push(("steps", format!("{} to {steps}, {} each", attempt.start_step + 1, counted(*batch, "sample"))));
    rows.push(("weights", weights.to_owned()));
    if let Some((restored, anew)) = restored(&attempt.start) {
        rows.push(("restored", restored.into()));
        rows.push(("begins anew", anew.into()));
    }
    rows.push(("data", recipe.data.index.to_string()));
    if recipe.train.text_dropout > 0.0 {
        let none = recipe
            .data
            .null_text()
            .map_or("zeros; when sampling, give zeros for no text too".into(), ToString::to_string);
        rows.push(("dropped text", none));
    }
    rows.push(("checkpoints", checkpoints_in_words(recipe, disk)));
    if recipe.run.time_limit.seconds().is_some() {
        rows.push(("time limit", format!("{}: it saves and stops before", recipe.run.time_limit)));
    }
    rows.push(("run directory", dir.root.to_string()));
    if let Some(spec) = queued {
        rows.push(("job", crate::job::in_words(spec)));
        rows.push(("command", command_line(&["sbatch", dir.job_script(attempt.number).as_str()])));
    } else if let [(node, _)] = by_node[..] {
        rows.push(("command", command_line(&supervise_command(trainer, dir, attempt.number, node))));
    } else {
        rows.push(("command", format!("{trainer} supervise, once on each of {}", counted(by_node.len(), "node"))));
    }
    let mut rows: Vec<(String, String)> = rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    // The size of a checkpoint is among its row already.
    let on_this_mesh = Recipe { mesh: attempt.mesh, ..recipe.clone() };
    rows.extend(cost_rows(&on_this_mesh).into_iter().filter(|(name, _)| name != "checkpoint"));
    rows
}

/// What a start takes over, and what it does not.
fn restored(start: &StartFrom) -> Option<(&'static str, &'static str)> {
    match start {
        StartFrom::Random => None,
        StartFrom::Weights { .. } => Some(("weights", "optimizer, steps, data order and noise")),
        StartFrom::Checkpoint { .. } => Some((
            "weights, optimizer, steps, data order and noise",
            "nothing: another data set or global batch is refused",
        )),
        StartFrom::CheckpointFreshData { .. } => {
            Some(("weights, optimizer, steps", "data order and noise; data set and global batch may be others"))
        }
    }
}

/// `2 on vm`, `8 on gpu01 + 4 on gpu02`, `8 on each of gpu[001-024]`.
fn ranks_in_words(by_node: &[(&NodeId, Vec<&cluster::RankPlace>)]) -> String {
    if let [(_, first), _, ..] = by_node
        && by_node.iter().all(|(_, places)| places.len() == first.len())
    {
        let names: Vec<&str> = by_node.iter().map(|(node, _)| node.as_str()).collect();
        return format!("{} on each of {}", first.len(), cluster::hostlist::compress(&names));
    }
    let ranks: Vec<String> = by_node.iter().map(|(node, places)| format!("{} on {node}", places.len())).collect();
    ranks.join(" + ")
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
    let for_good = match recipe.checkpoint.keep_every {
        steps if steps > 0 && recipe.checkpoint.keep_last > 0 => format!(", and every one at a multiple of {steps}"),
        _ => String::new(),
    };
    format!("{when}, {} each, {kept}{for_good}", size(disk.checkpoint_bytes))
}

/// Places the ranks of a mesh; on stand-ins, where Slurm is still to choose the nodes.
pub(crate) fn place(what: &str, mesh: &Mesh, cx: &Context) -> Result<Placement, Failure> {
    if let Some(spec) = cx.target.pending_slurm() {
        let stand_in =
            |number| Node { id: NodeId::from_hostname(&format!("node-{number}")), slots: spec.gpus_per_node };
        let nodes: Vec<Node> = (0..spec.nodes).map(stand_in).collect();
        return Placement::new(&nodes, mesh.world()).map_err(|error| {
            Failure::new(
                rundir::ErrorCode::Unclassified,
                what,
                error.to_string(),
                format!("change nodes or gpus_per_node in {}", cx.target.description),
            )
        });
    }
    Placement::new(&cx.target.nodes, mesh.world()).map_err(|error| {
        Failure::new(
            rundir::ErrorCode::Unclassified,
            what,
            error.to_string(),
            format!("change {}", cx.target.description),
        )
    })
}

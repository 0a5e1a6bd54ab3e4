//! Launch plans: what is started on which nodes, and the summary that the user confirms.

use camino::{Utf8Path, Utf8PathBuf};
use cluster::slurm::{Adopted, SlurmSpec};
use cluster::{Node, NodeId, Placement, PlacementError};
use recipe::{JobKind, Length, Mesh, Per, Recipe};
use rundir::{
    Attempt, AttemptWhy, CommandPlace, ErrorCode, Failure, Login, Run, RunDir, SCHEMA, StartFrom, command_folder,
    command_output, command_ranks, command_template, command_words,
};

use crate::cost_rows::cost_rows;
use crate::disk::DiskNeed;
use crate::script::Details;
use crate::{Context, JobKill, Master, TrainerBinary, command_line, job_script, script, supervise_command};
use units::{counted, size};

/// The plan of a start: the script of each node, and the summary that the user confirms.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LaunchPlan {
    /// The run; a new run is written to `run.toml`.
    pub run: Run,
    /// The run directory.
    pub dir: RunDir,
    /// The trainer binary, at the same path on every node.
    pub trainer: TrainerBinary,
    /// The attempt that is created.
    pub attempt: Attempt,
    /// The script of each node.
    pub nodes: Vec<NodeLaunch>,
    /// Warnings. The console starts a resume without warnings at once; it shows all other plans to the user first.
    pub warnings: Vec<String>,
    /// The rows of the dialog and of `--dry-run`: names and values, in order.
    pub summary: Vec<(String, String)>,
    /// The disk space that the checkpoints need.
    pub disk: DiskNeed,
    /// The rendezvous of the ranks, if there are several nodes.
    pub master: Option<Master>,
    /// The batch script to submit, if Slurm chooses the nodes. `nodes` is empty then.
    #[serde(default)]
    pub job_script: Option<String>,
    /// The Slurm job of the previous attempt, to cancel before the start. It has ended on all nodes except lost ones.
    #[serde(default)]
    pub replaces: Option<JobKill>,
    /// Whether the trainer is copied to nodes that lack it or have another version.
    #[serde(default)]
    pub push: bool,
    /// A few files of the data set. The checks before the start read them on every node.
    #[serde(default)]
    pub data: Vec<Utf8PathBuf>,
}

/// The script that starts the ranks of one node.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NodeLaunch {
    /// The node.
    pub node: NodeId,
    /// The text of its script.
    pub script: String,
}

impl LaunchPlan {
    /// Makes the plan of an attempt. Its summary, job script and replaced job are empty.
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
            // The trainer is copied only to nodes that are reached by SSH.
            push: (cx.options.push || recipe.run.push_trainer) && !attempt.logins.is_empty(),
            data: cx.options.data_files.clone(),
            run,
            dir,
            attempt,
        }
    }

    /// Returns the job of the run.
    pub fn job(&self) -> JobKind {
        self.run.job()
    }

    /// Returns whether the recipe runs a command.
    pub fn is_command(&self) -> bool {
        self.job() == JobKind::Command
    }

    /// Returns whether the run only watches a program that runs already, which uses the GPUs.
    pub fn only_watches(&self) -> bool {
        self.run.attached.is_some()
    }

    /// Returns the task of the ranks.
    pub fn task(&self) -> recipe::Task {
        self.run.task()
    }

    /// Returns whether ranks of the embedded trainer use GPUs. `finds` is whether the trainer finds GPUs.
    pub fn on_gpus(&self, finds: bool) -> bool {
        self.run.recipe().map_or(finds, |recipe| recipe.on_gpus(finds))
    }

    /// Returns whether all ranks run on the CPUs of this machine.
    pub fn is_on_cpus_here(&self) -> bool {
        let Attempt { logins, slurm, .. } = &self.attempt;
        logins.is_empty() && slurm.is_none() && !self.on_gpus(self.trainer.cuda)
    }

    /// Returns the setting of the recipe that requires GPUs, if there is one.
    pub fn requires_gpus(&self) -> Option<&'static str> {
        self.run.recipe().ok()?.requires_gpus()
    }

    /// Returns the nodes of the previous attempt that have no ranks in this one.
    pub fn nodes_left_out(&self, before: Option<&Attempt>) -> Vec<NodeId> {
        let has_ranks = |node: &NodeId| self.attempt.placement.ranks.iter().any(|place| place.node == *node);
        let before = before.into_iter().flat_map(|attempt| attempt.placement.by_node());
        before.map(|(node, _)| node.clone()).filter(|node| !has_ranks(node)).collect()
    }

    /// Returns whether a resume can start without a question: there is no warning, and nothing of the recipe changes.
    pub fn starts_at_once(&self) -> bool {
        self.warnings.is_empty() && self.attempt.changed.is_empty()
    }

    /// Returns whether the plan creates a run instead of continuing one.
    pub fn is_new_run(&self) -> bool {
        self.attempt.why == AttemptWhy::Launch
    }
}

/// The parts of a plan that a launch, a resume and a next stage determine differently. [`Draft::finish`] adds the rest.
pub(crate) struct Draft<'a> {
    pub run: Run,
    pub dir: RunDir,
    pub recipe: &'a Recipe,
    pub number: u32,
    pub why: AttemptWhy,
    pub start: StartFrom,
    pub start_step: u64,
    /// The step that the user chose to start from.
    pub asked_step: Option<u64>,
    /// The checkpoint folder from which a command continues.
    pub checkpoint: Option<Utf8PathBuf>,
    /// A description of the initial weights.
    pub weights: String,
    pub mesh: Mesh,
    pub placement: Placement,
    /// The steps of the run, if they differ from the recipe's.
    pub steps: Option<u64>,
    /// The keys of the recipe that the attempt changes.
    pub changes: Vec<recipe::ResumeChange>,
    /// The rows about the schedule of the learning rate, if the attempt changes it.
    pub schedule_rows: Vec<(String, String)>,
    /// The number of complete checkpoints on disk.
    pub saved: u64,
    /// The size of the newest checkpoint in bytes.
    pub newest_bytes: Option<u64>,
    pub warnings: Vec<String>,
    /// The Slurm job of the previous attempt, to cancel before the start.
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
            changed: self.changes.iter().map(changed_key).collect(),
            checkpoint: self.checkpoint,
            waived: cx.options.waived.clone(),
            logins: logins(&placement, cx),
            spares: cx.target.spares_beside(&placement),
            mesh: self.mesh,
            placement,
            slurm: cx.target.slurm.clone(),
        };
        let recipe = &attempt.effective(self.recipe);
        let encode = cx.options.encode.as_ref().filter(|_| recipe.job() == JobKind::Encode);
        let disk = match recipe.job() {
            JobKind::Encode => DiskNeed::of_data_set(encode.map_or(0, |encode| encode.disk_bytes)),
            // Videos are small, and there are no checkpoints.
            JobKind::Sample => DiskNeed::of_data_set(0),
            JobKind::Train | JobKind::Command => DiskNeed::new(recipe, self.start_step, self.saved, self.newest_bytes),
        };
        let plan = LaunchPlan::of(self.run, self.dir, recipe, attempt, disk, cx);
        let LaunchPlan { run, dir, attempt, disk, .. } = &plan;
        let cores = plan.is_on_cpus_here().then_some(cx.cores);
        let mut summary = match recipe.job() {
            JobKind::Encode => {
                let rows = encode.map_or(&[][..], |encode| &encode.rows);
                short_summary(dir, recipe, attempt, encode_rows(recipe), rows, &cx.trainer.path)
            }
            JobKind::Sample => {
                let rows = sample_rows(recipe, attempt, &self.weights);
                short_summary(dir, recipe, attempt, rows, &[], &cx.trainer.path)
            }
            JobKind::Train => {
                let mut rows = summary(run, dir, recipe, attempt, &self.weights, disk, &cx.trainer.path);
                let costs = cost_rows(recipe, cores);
                // A row above shows the size of a checkpoint.
                rows.extend(costs.into_iter().filter(|(name, _)| name != "checkpoint"));
                rows
            }
            JobKind::Command => command_summary(run, dir, recipe, attempt, &self.weights, plan.master.as_ref()),
        };
        let job_script = cx.target.pending_slurm().map(|_| job_script::script(dir, run, attempt, cx));
        // First, because a long plan does not fit on a small screen.
        summary.splice(0..0, self.changes.iter().map(change_row).chain(self.schedule_rows));
        let Adopted { added, ignored } = &cx.target.adopted;
        summary.extend((!added.is_empty()).then(|| ("from variables".to_owned(), added.join(", "))));
        summary.extend(ignored.iter().map(|why| ("ignored".to_owned(), why.clone())));
        summary.extend(self.replaces.iter().map(|job| ("cancelled first".to_owned(), job.why.clone())));
        let slow = cores.filter(|_| recipe.job() == JobKind::Train).and_then(|cores| slow_step(recipe, cores));
        let warnings = plan.warnings.iter().cloned().chain(self.warnings).chain(slow).collect();
        LaunchPlan { summary, job_script, warnings, replaces: self.replaces, ..plan }
    }
}

fn changed_key(change: &recipe::ResumeChange) -> rundir::ChangedKey {
    let recipe::Change { key, from, to } = change.change.clone();
    rundir::ChangedKey { key, from, to }
}

/// Returns the row of a changed key: its values, and what the change does to the losses.
fn change_row(recipe::ResumeChange { change, effect }: &recipe::ResumeChange) -> (String, String) {
    let (name, values) = values_row(change);
    (name, format!("{values}; {}", effect.in_words()))
}

/// Returns the row of a changed key with its values alone.
pub(crate) fn values_row(change: &recipe::Change) -> (String, String) {
    let from = change.from.as_deref().unwrap_or("not set");
    ("changed".to_owned(), format!("{}: {from} -> {}", change.key, change.to))
}

/// The ports of the rendezvous: torchrun's default and those above, below the ephemeral ports of Linux. The port is random,
/// so that two runs with the same first node rarely conflict. Only every second port is used, because supervisors
/// connect on the port after it.
const PORTS: std::ops::Range<u16> = 29_500..31_500;

pub(crate) fn master(placement: &Placement, cx: &Context) -> Option<Master> {
    let [(first, _), _, ..] = placement.by_node()[..] else { return None };
    let address = cx.target.address.clone().unwrap_or_else(|| first.to_string());
    let pairs = u32::from((PORTS.end - PORTS.start) / 2);
    // The remainder fits in a u16.
    let port = PORTS.start + 2 * u16::try_from(cx.random % pairs).unwrap_or(0);
    Some(Master { address, port })
}

fn logins(placement: &Placement, cx: &Context) -> Vec<Login> {
    let in_use = |login: &&Login| placement.ranks.iter().any(|place| place.node == login.node);
    cx.target.logins.iter().filter(in_use).cloned().collect()
}

/// Warns of groups whose ranks are on more than one node. A TP group waits for several collectives in each layer. A shard
/// group gathers and reduces each layer while it computes.
pub(crate) fn crossing(mesh: &Mesh, placement: &Placement) -> Vec<String> {
    let nodes_of = |group: &[cluster::RankPlace]| {
        group.iter().map(|place| &place.node).collect::<std::collections::BTreeSet<_>>().len()
    };
    let warn = |noun: &str, axis: &str, size: usize, ranks: usize, effect: &str| {
        let groups = placement.ranks.chunks(ranks.max(1));
        let total = groups.len();
        let crossing = groups.clone().filter(|group| nodes_of(group) > 1).count();
        let widest = groups.map(nodes_of).max().unwrap_or(0);
        (size > 1 && crossing > 0).then(|| {
            format!(
                "{crossing} of {} ({axis} {size}) {} nodes, up to {widest} each: {effect}",
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

/// The seconds of a step on CPUs above which a plan has a warning.
const SLOW_STEP_S: f64 = 600.0;

/// Returns the warning that a step takes long on the `cores` of this machine, if it does.
fn slow_step(recipe: &Recipe, cores: usize) -> Option<String> {
    let step_s = recipe.cost().step_s_on_cores(cores);
    (step_s > SLOW_STEP_S).then(|| {
        let cores = counted(cores, "CPU core");
        format!("a step takes about {} on {cores} of this machine", units::duration(step_s))
    })
}

/// Formats the sizes of a mesh: `2 × 4`.
pub(crate) fn sizes(mesh: &Mesh) -> String {
    mesh.axes().iter().map(|(_, size)| size.to_string()).collect::<Vec<_>>().join(" × ")
}

/// Makes the script of one node of an attempt.
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

/// Returns the command lines that a supervisor starts on a node; an empty list for the embedded trainer.
fn commands(
    run: &Run,
    dir: &RunDir,
    recipe: &Recipe,
    attempt: &Attempt,
    node: &NodeId,
    master: Option<&Master>,
) -> Vec<String> {
    if recipe.job() != JobKind::Command {
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
    weights: &str,
    master: Option<&Master>,
) -> Vec<(String, String)> {
    let by_node = attempt.placement.by_node();
    let mut rows = vec![("recipe", recipe.name.clone())];
    if let (Some(stage), Some(curriculum)) = (&run.stage, &run.curriculum) {
        rows.push(("stage", format!("{stage} of {curriculum}")));
    }
    let queued = queued(attempt);
    rows.push(("ranks", ranks_in_words(attempt)));
    rows.push(("steps", steps_in_words(recipe, attempt)));
    rows.push(("weights", weights.to_owned()));
    let env = &recipe.env;
    let names: Vec<String> = env.all().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    if !names.is_empty() {
        rows.push(("environment", names.join(" ")));
    }
    if !env.secrets.as_str().is_empty() {
        rows.push(("secrets", env.secrets.to_string()));
    }
    rows.push(("checkpoints", format!("in {}, written by the command", command_output(dir, run, recipe))));
    rows.push(("run directory", dir.root.to_string()));
    rows.push(("folder", command_folder(dir, recipe).to_string()));
    if let Some(spec) = queued {
        rows.push(("job", job_script::in_words(spec)));
        // The placeholders are filled in after Slurm has chosen the nodes.
        rows.push(("command", command_line(&command_template(recipe, attempt).collect::<Vec<_>>())));
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
            rows.push(("started", format!("once on each of {times}; the first is shown")));
        }
    }
    rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn summary(
    run: &Run,
    dir: &RunDir,
    recipe: &Recipe,
    attempt: &Attempt,
    weights: &str,
    disk: &DiskNeed,
    trainer: &Utf8Path,
) -> Vec<(String, String)> {
    let mut rows = vec![("recipe", recipe.name.clone())];
    if let (Some(stage), Some(curriculum)) = (&run.stage, &run.curriculum) {
        rows.push(("stage", format!("{stage} of {curriculum}")));
    }
    rows.push(("ranks", ranks_in_words(attempt)));
    rows.push(("mesh", attempt.mesh.to_string()));
    let batch = &recipe.train.global_batch;
    let epochs = match run.length() {
        Some(length @ Length::Epochs(_)) => format!(" ({length})"),
        _ => String::new(),
    };
    let each = match recipe.data.buckets.iter().any(|bucket| bucket.batch.is_some()) {
        true => "samples as in data.buckets".to_owned(),
        false => format!("{} each", counted(*batch, "sample")),
    };
    rows.push(("steps", format!("{}{epochs}, {each}", steps_in_words(recipe, attempt))));
    rows.push(("weights", weights.to_owned()));
    if let Some((restored, reset)) = restored(&attempt.start) {
        rows.push(("restored", restored.into()));
        rows.push(("reset", reset.into()));
    }
    rows.push(("data", recipe.data.in_words()));
    if recipe.train.text_dropout > 0.0 {
        let none = recipe
            .data
            .null_text()
            .map_or("the empty caption of the data set; zeros if it has none".into(), ToString::to_string);
        rows.push(("dropped text", none));
    }
    rows.push(("checkpoints", checkpoints_in_words(recipe, disk)));
    if recipe.run.time_limit.seconds().is_some() {
        rows.push(("time limit", format!("{}; the attempt saves and stops before it", recipe.run.time_limit)));
    }
    rows.push(("run directory", dir.root.to_string()));
    rows.extend(start_rows(dir, attempt, trainer));
    rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the steps of the attempt: `21 to 60`.
fn steps_in_words(recipe: &Recipe, attempt: &Attempt) -> String {
    let first = attempt.start_step + 1;
    recipe.train.length.steps().map_or_else(|| format!("from {first}"), |last| format!("{first} to {last}"))
}

/// Returns the rows about the input and the output of an encode.
fn encode_rows(recipe: &Recipe) -> Vec<(&'static str, String)> {
    let encode = &recipe.encode;
    let rate = encode.rate().map_or_else(String::new, |fps| format!(" at {fps} per second"));
    let mode = encode.mode.name();
    let frames = match recipe.buckets() {
        None => format!("{} ({mode}){rate}, {} × {} pixels", encode.frames, encode.width, encode.height),
        Some(buckets) => {
            format!("{} ({}), {mode}{rate}", counted(buckets.all().len(), "bucket"), recipe.data.bucket_rule.name())
        }
    };
    vec![
        ("manifest", encode.manifest.to_string()),
        ("encoders", recipe.encoders.folder.to_string()),
        ("frames", frames),
        ("data set", encode.out.to_string()),
    ]
}

/// Returns the rows about the input and the output of a run that samples.
fn sample_rows(recipe: &Recipe, attempt: &Attempt, weights: &str) -> Vec<(&'static str, String)> {
    let specs = recipe.samples().unwrap_or_default();
    let steps: u64 = specs.iter().map(|spec| spec.steps as u64).sum();
    let size = specs.first().map_or_else(String::new, |spec| {
        let recipe::SampleSpec { frames, width, height, fps, .. } = spec;
        format!(", {} of {width} × {height} pixels at {fps} per second", counted(*frames, "frame"))
    });
    let mut rows = vec![
        ("mesh", attempt.mesh.to_string()),
        ("weights", weights.to_owned()),
        ("encoders", recipe.encoders.folder.to_string()),
        (
            "videos",
            format!("{}{size}, {} in all", counted(specs.len(), "video"), counted(steps as usize, "sampling step")),
        ),
    ];
    let guidance = specs.first().map_or(recipe.sample.guidance, |spec| spec.guidance);
    let scheduler = recipe.sample.scheduler.name();
    rows.push(("sampler", format!("{scheduler}, guidance {guidance}, computed in {}", recipe.train.dtype.name())));
    rows.extend(recipe.sample.prompts.first().map(|prompt| ("prompt", prompt.clone())));
    rows.extend(recipe.sample.out().map(|out| ("folder", out.to_string())));
    rows
}

/// Returns the summary of an attempt that does not train, with the rows of its task.
fn short_summary(
    dir: &RunDir,
    recipe: &Recipe,
    attempt: &Attempt,
    of_task: Vec<(&'static str, String)>,
    facts: &[(String, String)],
    trainer: &Utf8Path,
) -> Vec<(String, String)> {
    let mut rows = vec![("recipe", recipe.name.clone()), ("ranks", ranks_in_words(attempt))];
    rows.extend(of_task);
    rows.push(("run directory", dir.root.to_string()));
    if recipe.run.time_limit.seconds().is_some() {
        rows.push(("time limit", format!("{}; the attempt stops before it", recipe.run.time_limit)));
    }
    rows.extend(start_rows(dir, attempt, trainer));
    let rows = rows.into_iter().map(|(name, value)| (name.to_owned(), value));
    rows.chain(facts.iter().cloned()).collect()
}

/// Returns the parts that a start restores, and the parts that it resets.
fn restored(start: &StartFrom) -> Option<(&'static str, &'static str)> {
    match start {
        StartFrom::Random => None,
        StartFrom::Weights { .. } => Some(("weights", "optimizer, steps, data order and noise")),
        StartFrom::Checkpoint { .. } => Some((
            "weights, optimizer, steps, data order and noise",
            "nothing; the data set and the global batch must be the same",
        )),
        StartFrom::CheckpointFreshData { .. } => {
            Some(("weights, optimizer, steps", "data order and noise; the data set and the global batch may differ"))
        }
    }
}

/// Returns the Slurm request while Slurm has not chosen nodes.
fn queued(attempt: &Attempt) -> Option<&SlurmSpec> {
    attempt.slurm.as_ref().filter(|_| attempt.placement.ranks.is_empty()).map(|slurm| &slurm.spec)
}

/// Returns the rows `job` and `command` of an attempt of the embedded trainer.
fn start_rows(dir: &RunDir, attempt: &Attempt, trainer: &Utf8Path) -> Vec<(&'static str, String)> {
    if let Some(spec) = queued(attempt) {
        let submit = command_line(&["sbatch", dir.job_script(attempt.number).as_str()]);
        return vec![("job", job_script::in_words(spec)), ("command", submit)];
    }
    let command = match attempt.placement.by_node()[..] {
        [(node, _)] => command_line(&supervise_command(trainer, dir, attempt.number, node)),
        ref by_node => format!("{trainer} supervise, once on each of {}", counted(by_node.len(), "node")),
    };
    vec![("command", command)]
}

/// Formats the ranks of an attempt: `2 on vm`, `8 on gpu01 + 4 on gpu02`, `8 on each of gpu[001-024]`.
fn ranks_in_words(attempt: &Attempt) -> String {
    if let Some(spec) = queued(attempt) {
        return job_script::ranks_in_words(spec);
    }
    let by_node = attempt.placement.by_node();
    if let [(_, first), _, ..] = &by_node[..]
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
        steps if steps > 0 && recipe.checkpoint.keep_last > 0 => {
            format!(", and every one at a multiple of step {steps}")
        }
        _ => String::new(),
    };
    format!("{when}, {} each, {kept}{for_good}", size(disk.checkpoint_bytes))
}

/// Places the ranks of a mesh on the target's nodes, or on placeholders while Slurm has not chosen nodes.
pub(crate) fn place(what: &str, mesh: &Mesh, cx: &Context) -> Result<Placement, Failure> {
    let Some(spec) = cx.target.pending_slurm() else {
        return placed(what, &cx.target.nodes, mesh, format!("change {}", cx.target.description));
    };
    let placeholder = |number| Node { id: NodeId::from_hostname(&format!("node-{number}")), slots: spec.gpus_per_node };
    let nodes: Vec<Node> = (0..spec.nodes).map(placeholder).collect();
    placed(what, &nodes, mesh, format!("change nodes or gpus_per_node in {}", cx.target.description))
}

/// Places the ranks of a mesh on nodes.
pub(crate) fn placed(what: &str, nodes: &[Node], mesh: &Mesh, fix: String) -> Result<Placement, Failure> {
    Placement::new(nodes, mesh.world()).map_err(|error| {
        let code = match error {
            PlacementError::NoRanks => ErrorCode::InvalidMesh,
            PlacementError::TooFewSlots { .. } => ErrorCode::TooFewRanks,
            PlacementError::TwiceListed(_) => ErrorCode::InvalidHostfile,
        };
        Failure::new(code, what, error.to_string(), fix)
    })
}

#[cfg(test)]
mod tests {
    use super::PORTS;

    #[test]
    fn the_page_about_security_names_the_ports_of_the_rendezvous() {
        let page = include_str!("../../../docs/security.md");
        assert!(page.contains(&format!("| {} to {}, even,", PORTS.start, PORTS.end - 2)), "{PORTS:?}");
    }
}

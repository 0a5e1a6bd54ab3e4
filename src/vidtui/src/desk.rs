//! Joins the pure plans with this machine: the runs folder, the clock, dice, the user, the trainer.
//!
//! Keys of the console and commands of the shell both come through here, so that they cannot differ.

use crate::args::NodesArgs;
use crate::evidence::Samples;
use crate::refusal::Refusal;
use camino::{Utf8Path, Utf8PathBuf};
use cluster::hostfile::Filter;
use cluster::slurm::SlurmSpec;
use cluster::{Hostfile, NodeId};
use nix::unistd::{Uid, User};
use plan::{
    Context, Disk, Evidence, Finding, KillHow, KillPlan, LaunchPlan, LaunchRequest, NextRequest, Place, ResumeOptions,
    ResumeRequest, Weights,
};
use recipe::{Curriculum, Resolved, StageSpec, StageStart, Trainer};
use remote::{Fleet, KillProgress, KillReport, Local, NodeStacks, Patience, SshOptions, Transport};
use rundir::{Attempt, Failure, Lineage, Liveness, Load, Login, RunDir, RunFacts, RunId, RunSummary};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;
use ui::StageView;

/// Where we are: every path of a request is relative to this.
pub struct Desk {
    /// The working folder, absolute.
    pub here: Utf8PathBuf,
    /// The folder of all runs, absolute.
    pub runs: Utf8PathBuf,
    /// The folder that curricula are looked for in, absolute.
    pub configs: Utf8PathBuf,
    /// The nodes on which the console trains; none for this machine.
    pub nodes: NodesArgs,
    /// The nodes that we have to do with.
    pub fleet: Fleet,
    /// What nodes wrote of their GPUs.
    pub samples: Samples,
    /// How many nodes are made up, instead of those that there are.
    pub simulate: Option<usize>,
    /// How long nodes may take to say whether a run's processes are there. Those that need longer count as unknown.
    pub patience: Duration,
}

/// What to train, as a command names it.
pub enum Subject {
    /// A recipe file.
    Recipe(Box<Resolved>),
    /// A stage of a curriculum.
    Stage(Box<Curriculum>, String),
}

/// A launch as it is wished for.
pub struct Wish<'a> {
    /// What to train.
    pub subject: &'a Subject,
    /// Number of ranks on this machine; as many as the mesh has, when nobody said.
    pub ranks: Option<usize>,
    /// The nodes, when it is not this machine.
    pub nodes: &'a NodesArgs,
    /// The name of the run; the recipe's, when nobody said.
    pub name: Option<&'a str>,
    /// Where the weights come from; as the stage says, when nobody said.
    pub init: Init<'a>,
    /// What [`Desk::fit`] changed, for people.
    pub fitted: Option<String>,
}

/// How a recipe's mesh comes to the number of ranks that there are.
#[derive(Debug, Clone, Copy)]
pub enum Fitting {
    /// Not at all: a number that it was not written for is a mistake.
    AsItIs,
    /// It is fitted to so many.
    To(usize),
    /// It is fitted to what the nodes give.
    ToNodes,
}

impl From<Option<usize>> for Fitting {
    fn from(given: Option<usize>) -> Self {
        given.map_or(Self::AsItIs, Self::To)
    }
}

/// Where the weights of a launch come from.
pub enum Init<'a> {
    /// As the stage says; random without a stage.
    ByStage,
    /// From a step folder, or the newest checkpoint of a run.
    Given(&'a str),
    /// From the newest checkpoint of this run.
    Run(&'a RunId),
}

impl<'a> From<Option<&'a str>> for Init<'a> {
    fn from(given: Option<&'a str>) -> Self {
        given.map_or(Self::ByStage, Self::Given)
    }
}

impl Desk {
    /// Sets up the desk in the working folder.
    pub fn new(runs: &Utf8Path, configs: &Utf8Path, nodes: NodesArgs, patience: Duration) -> Result<Self, Refusal> {
        let here = std::env::current_dir().map_err(|error| error.to_string());
        let here = here.and_then(|here| Utf8PathBuf::try_from(here).map_err(|error| error.to_string()));
        let here = here.map_err(|why| {
            Refusal::request(Failure::new("cannot use the working folder", why, "change into a folder that exists: cd"))
        })?;
        let fleet =
            Fleet::new(SshOptions::from_env()).map_err(|error| error.failure("cannot tell which machine this is"))?;
        Ok(Self {
            runs: here.join(runs),
            configs: here.join(configs),
            here,
            nodes,
            fleet,
            samples: Samples::default(),
            simulate: None,
            patience,
        })
    }

    /// The folder of a run.
    pub fn dir(&self, run: &RunId) -> RunDir {
        RunDir::of(&self.runs, run)
    }

    /// Finds the run that a person means: its id, the unique beginning or end of one, or `latest`.
    pub fn find(&self, name: &str) -> Result<RunDir, Refusal> {
        let runs: Vec<RunDir> = rundir::list_runs(&self.runs).into_iter().flatten().collect();
        let unknown =
            |why: String, fix: String| Err(Refusal::request(Failure::new(format!("no run '{name}'"), why, fix)));
        if runs.is_empty() {
            let fix = "name the folder with --runs DIR, or start a run: vidtui launch RECIPE";
            return unknown(format!("{} has no runs", self.runs), fix.into());
        }
        // Ids sort by the minute only, so that the file is asked.
        let created_s = |dir: &RunDir| dir.read_run().map_or(0.0, |run| run.created_s);
        if name == "latest"
            && let Some(latest) = runs.iter().max_by(|a, b| created_s(a).total_cmp(&created_s(b)))
        {
            return Ok(latest.clone());
        }
        if let Some(exact) = runs.iter().find(|run| run.name() == name) {
            return Ok(exact.clone());
        }
        let meant: Vec<&RunDir> =
            runs.iter().filter(|run| run.name().starts_with(name) || run.name().ends_with(name)).collect();
        match meant[..] {
            [one] => Ok(one.clone()),
            [] => {
                let last: Vec<&str> = runs.iter().rev().take(3).map(RunDir::name).collect();
                unknown(
                    format!("no id in {} begins or ends so", self.runs),
                    format!("the newest are {}", last.join(", ")),
                )
            }
            _ => {
                let some: Vec<&str> = meant.iter().rev().take(3).map(|run| run.name()).collect();
                let why = format!(
                    "{} ids begin or end so: {}{}",
                    meant.len(),
                    some.join(", "),
                    more(meant.len() - some.len())
                );
                unknown(why, "write more of the id".into())
            }
        }
    }

    /// Sums up a run: its files, and what its processes do.
    pub fn summary(&self, dir: &RunDir) -> Result<(RunSummary, RunFacts), Failure> {
        let run = dir.read_run()?;
        let mut facts = self.fleet.read_facts(dir, &run, self.patience)?;
        let own_s = crate::console::now_s();
        let now_s = match facts.alive {
            Liveness::Alive => self.samples.now_s(dir, &facts, own_s),
            Liveness::Dead | Liveness::Unknown => own_s,
        };
        // GPUs tell more than processors, if they tell anything: a collective that hangs keeps a processor busy.
        if facts.silent_since_s(now_s).is_some()
            && let Some(power @ Load::Power { .. }) = plan::power(&self.samples.of(dir, &facts, own_s), &facts, now_s)
        {
            facts.load = power;
        }
        Ok((RunSummary::new(run, dir.clone(), &facts, now_s), facts))
    }

    /// What a person should know of about a run, the most urgent first.
    pub fn findings(&self, summary: &RunSummary, facts: &RunFacts) -> Vec<Finding> {
        let Some(attempt) = facts.attempt.as_ref().filter(|_| !summary.state.is_end()) else { return Vec::new() };
        let own_s = crate::console::now_s();
        let now_s = self.samples.now_s(&summary.dir, facts, own_s);
        let mut nodes = self.samples.of(&summary.dir, facts, own_s).to_vec();
        for (node, unseen_since_s) in self.fleet.unseen(attempt) {
            nodes
                .iter_mut()
                .filter(|known| known.node == node)
                .for_each(|known| known.unseen_since_s = Some(unseen_since_s));
        }
        let recipe = summary.run.recipe().ok();
        let free_bytes = Local::new().and_then(|mut here| here.free_bytes(&summary.dir.root)).ok();
        // What a command saves is known once it has saved.
        let checkpoint_bytes = match summary.run.is_command() {
            true => summary.checkpoint.as_ref().map(|checkpoint| checkpoint.bytes),
            false => recipe.as_ref().map(|recipe| recipe.cost().checkpoint_bytes),
        };
        let disk = checkpoint_bytes.zip(free_bytes);
        let disk = disk.map(|(checkpoint_bytes, free_bytes)| Disk { free_bytes, checkpoint_bytes });
        let mut found = plan::findings(&Evidence {
            run: summary.run.id.as_str(),
            now_s,
            state: &summary.state,
            facts,
            metrics: &facts.newest.metrics,
            events: &facts.newest.events,
            checkpoint: summary.checkpoint.as_ref(),
            checkpoint_interval: recipe.as_ref().map_or(0, |recipe| recipe.checkpoint.interval),
            disk,
            nodes: &nodes,
        });
        self.samples.complete(&summary.dir, &mut found, now_s);
        found
    }

    /// Writes where the processes of a run are into its folder.
    pub fn stacks(&self, dir: &RunDir) -> Result<Vec<NodeStacks>, Failure> {
        let run = dir.read_run()?.id;
        let attempt = dir.latest_attempt()?;
        let mut files = Vec::new();
        for (node, _) in attempt.iter().flat_map(|attempt| attempt.placement.by_node()) {
            files.extend(dir.read_pid(node, attempt.as_ref().map_or(0, |attempt| attempt.number))?);
        }
        let mut nodes = self.transports(&attempt.map_or_else(Vec::new, |attempt| attempt.logins))?;
        let stacks = remote::collect_stacks(&run, dir, crate::console::now_s(), &files, &mut nodes)?;
        match stacks.iter().all(|node| node.result.is_err()) {
            true => Err(stacks.into_iter().find_map(|node| node.result.err()).unwrap_or_else(|| {
                Failure::new(
                    format!("cannot collect the stacks of {run}"),
                    "it has no nodes",
                    "look at its attempt.toml",
                )
            })),
            false => Ok(stacks),
        }
    }

    /// Sums up all runs, oldest first; then why others cannot be read.
    pub fn summaries(&self) -> (Vec<RunSummary>, Vec<Failure>) {
        let (mut runs, mut unreadable) = (Vec::new(), Vec::new());
        for dir in rundir::list_runs(&self.runs) {
            match dir.and_then(|dir| self.summary(&dir)) {
                Ok((summary, _)) => runs.push(summary),
                Err(failure) => unreadable.push(failure),
            }
        }
        runs.sort_by(|a, b| a.run.created_s.total_cmp(&b.run.created_s));
        (runs, unreadable)
    }

    /// Reads what a command names: a recipe file, or CURRICULUM:STAGE.
    pub fn subject(&self, text: &str, sets: &[String]) -> Result<Subject, Refusal> {
        if let Some((path, stage)) = text.rsplit_once(':')
            && !Utf8Path::new(text).exists()
        {
            let curriculum = curriculum(Utf8Path::new(path), sets)?;
            named_stage(&curriculum, stage)?;
            return Ok(Subject::Stage(Box::new(curriculum), stage.to_owned()));
        }
        let path = Utf8Path::new(text);
        if path.is_dir() || path.file_name() == Some("curriculum.toml") {
            let curriculum = curriculum(path, sets)?;
            let first = curriculum.stages.first().map_or("STAGE", |stage| stage.name.as_str());
            let why = "it is a curriculum, and one stage is trained at a time";
            return Err(Refusal::request(Failure::new(
                format!("cannot use {text}"),
                why,
                format!("name the stage: {text}:{first}"),
            )));
        }
        Ok(Subject::Recipe(Box::new(recipe::load(path, sets).map_err(recipe_failure)?)))
    }

    /// Fits a recipe's mesh and accumulation to a number of ranks; says what changed.
    pub fn fit(&self, resolved: &mut Resolved, fitting: Fitting, nodes: &NodesArgs) -> Result<Option<String>, Refusal> {
        let ranks = match fitting {
            Fitting::AsItIs => return Ok(None),
            // It is started on as many ranks as there are.
            Fitting::ToNodes if resolved.recipe.trainer == Trainer::Command => return Ok(None),
            Fitting::To(ranks) => ranks,
            Fitting::ToNodes => self.place(None, nodes, resolved.recipe.mesh.world())?.slots(),
        };
        let fit = resolved.fit(ranks).map_err(recipe_failure)?;
        let batch = ui::words::counted(resolved.recipe.train.global_batch, "sample");
        Ok((!fit.is_none()).then(|| format!("fitted to this place: {fit}; a step still takes {batch}")))
    }

    /// Plans a launch; starts nothing.
    pub fn plan_launch(&self, wish: &Wish<'_>) -> Result<LaunchPlan, Refusal> {
        let recipe = &wish.subject.resolved().recipe;
        let stage = wish.subject.stage();
        let init = self.weights_of(wish)?;
        let context = self.context(self.place(wish.ranks, wish.nodes, recipe.mesh.world())?, recipe.trainer)?;
        let request = LaunchRequest { recipe, name: wish.name, stage, init };
        let mut plan = plan::launch(&request, &context).map_err(Refusal::request)?;
        plan.warnings.extend(wish.fitted.clone());
        let NodesArgs { waive, push, .. } = self.wanted(wish.nodes).clone();
        Ok(LaunchPlan { waived: waive, push: push || plan.push, ..plan })
    }

    /// Finds the weights that a launch begins from; none when they are random.
    pub fn weights_of(&self, wish: &Wish<'_>) -> Result<Option<Weights>, Refusal> {
        Ok(match (&wish.init, wish.subject.stage()) {
            (Init::Given(given), _) => Some(remote::find_weights(given, &self.runs)?),
            (Init::Run(run), _) => Some(self.newest_weights(&self.dir(run))?),
            (Init::ByStage, Some((curriculum, stage))) => match &stage.start {
                StageStart::Random => None,
                StageStart::Path(path) => Some(remote::find_weights(path.as_str(), &self.runs)?),
                StageStart::Previous => Some(self.weights_of_stage_before(curriculum, stage)?),
            },
            (Init::ByStage, None) => None,
        })
    }

    /// Plans to continue a run; starts nothing.
    pub fn plan_resume(
        &self,
        dir: &RunDir,
        ranks: Option<usize>,
        nodes: &NodesArgs,
        options: ResumeOptions,
    ) -> Result<LaunchPlan, Refusal> {
        let (summary, facts) = self.summary(dir)?;
        let checkpoints = rundir::checkpoints(dir)?;
        let nodes = self.wanted(nodes);
        let world = plan::last_ranks(&summary.run, summary.attempt.as_ref());
        let is_elsewhere = ranks.is_none() && nodes.hostfile.is_none() && nodes.slurm.is_none();
        let (place, away) = match summary.attempt.as_ref().filter(|_| is_elsewhere) {
            Some(Attempt { number, slurm: Some(slurm), .. }) => {
                (Place::slurm(slurm.spec.clone(), format!("the Slurm job of attempt {number}")), Vec::new())
            }
            Some(last) if !last.logins.is_empty() => self.place_again(last, nodes)?,
            _ => (self.place(ranks, nodes, world)?, Vec::new()),
        };
        let context = self.context(place, summary.run.recipe()?.trainer)?;
        let latest = summary.checkpoint.as_ref();
        let request =
            ResumeRequest { run: &summary.run, dir, facts: &facts, checkpoints: &checkpoints, latest, options };
        let plan = plan::resume(&request, &context).map_err(|failure| match &away[..] {
            [] => failure,
            away => Failure { why: format!("{} ({})", failure.why, away.join("; ")), ..failure },
        })?;
        let warnings = away.into_iter().chain(plan.warnings).collect();
        Ok(LaunchPlan { waived: nodes.waive.clone(), push: nodes.push || plan.push, warnings, ..plan })
    }

    /// Plans the stage after a run's; starts nothing.
    pub fn plan_next(
        &self,
        dir: &RunDir,
        ranks: Option<usize>,
        nodes: &NodesArgs,
        sets: &[String],
        fitting: Fitting,
    ) -> Result<LaunchPlan, Refusal> {
        let (summary, facts) = self.summary(dir)?;
        let Some(path) = &summary.run.curriculum else {
            let why = "it was launched from a recipe file, not as a stage of a curriculum";
            let fix = format!("launch what is to follow with --init {}", dir.root);
            return Err(Refusal::request(Failure::new(format!("nothing follows {}", summary.run.id), why, fix)));
        };
        let mut curriculum = curriculum(path, sets)?;
        let next = summary.run.stage.as_deref().and_then(|stage| curriculum.next_after(stage));
        let next = next.map(|next| next.name.clone());
        let stage = curriculum.stages.iter_mut().find(|stage| Some(&stage.name) == next.as_ref());
        let fitted = stage.map_or(Ok(None), |stage| self.fit(&mut stage.resolved, fitting, nodes))?;
        let following = next.as_deref().and_then(|next| curriculum.stage(next));
        let world = following.map_or(1, |stage| stage.resolved.recipe.mesh.world());
        let trainer = following.map_or(Trainer::Embedded, |stage| stage.resolved.recipe.trainer);
        let context = self.context(self.place(ranks, nodes, world)?, trainer)?;
        let latest = summary.checkpoint.as_ref();
        let request = NextRequest { parent: &summary.run, facts: &facts, latest, curriculum: &curriculum, name: None };
        let refuse = if following.is_some() { Refusal::from } else { Refusal::request };
        let mut plan = plan::next(&request, &context).map_err(refuse)?;
        plan.warnings.extend(fitted);
        let NodesArgs { waive, push, .. } = self.wanted(nodes).clone();
        Ok(LaunchPlan { waived: waive, push: push || plan.push, ..plan })
    }

    /// Plans which processes to signal; signals nothing.
    pub fn plan_kill(&self, dir: &RunDir, how: KillHow) -> Result<KillPlan, Failure> {
        let run = dir.read_run()?;
        let attempt = dir.latest_attempt()?;
        let job = attempt.as_ref().and_then(|attempt| self.fleet.see_job(attempt, self.patience));
        // Those of a job are Slurm's to look for.
        let files = match job {
            Some(_) => remote::pid_files(dir)?,
            None => self.fleet.pid_files(dir, self.patience)?,
        };
        plan::kill(&run.id, dir, how, &files, job.as_ref())
    }

    /// Starts what a plan says, after every check that has to do with files.
    pub fn launch(&self, plan: &LaunchPlan, progress: &(dyn Fn(String) + Sync)) -> Result<RunDir, Failure> {
        if !plan.is_command() {
            crate::checks::dataset(&plan.run.recipe()?)?;
        }
        let last = if plan.is_new_run() { None } else { plan.dir.latest_attempt()? };
        let logins = with_those_left_out(&plan.attempt.logins, last.map_or_else(Vec::new, |last| last.logins));
        remote::execute_launch(plan, &mut self.transports(&logins)?, progress)
    }

    /// Signals what a plan says.
    pub fn signal(
        &self,
        plan: &KillPlan,
        patience: &Patience,
        progress: &mut dyn FnMut(KillProgress),
    ) -> Result<KillReport, Failure> {
        let report = remote::execute_kill(plan, &mut self.ways_to_end(plan)?, patience, progress);
        report.failure(plan.run.as_str()).map_or(Ok(report), Err)
    }

    /// Kills what a plan says, and asks nodes that do not answer again until they do or `is_given_up`; `waits` is told which.
    pub fn kill(
        &self,
        plan: &KillPlan,
        waits: &mut dyn FnMut(String),
        progress: &mut dyn FnMut(KillProgress),
        is_given_up: &dyn Fn() -> bool,
    ) -> Result<KillReport, Failure> {
        let (mut transports, patience) = (self.ways_to_end(plan)?, Patience::default());
        let mut report = remote::execute_kill(plan, &mut transports, &patience, progress);
        let waits = &mut |nodes: &[&NodeId], pause: Duration| {
            let names: Vec<String> = nodes.iter().map(ToString::to_string).collect();
            let (names, pause_s) = (cluster::hostlist::compress(&names), pause.as_secs_f64());
            let verb = if nodes.len() == 1 { "does" } else { "do" };
            waits(format!("{names} {verb} not answer, asked again in {pause_s:.0} s"));
        };
        remote::go_on_killing(plan, &mut report, &mut transports, &patience, waits, progress, is_given_up);
        report.failure(plan.run.as_str()).map_or(Ok(report), Err)
    }

    fn ways_to_end(&self, plan: &KillPlan) -> Result<Vec<Box<dyn Transport>>, Failure> {
        self.transports(&plan.dir.latest_attempt()?.map_or_else(Vec::new, |attempt| attempt.logins))
    }

    /// The ways to this machine's processes and to those of nodes.
    pub fn transports(&self, logins: &[Login]) -> Result<Vec<Box<dyn Transport>>, Failure> {
        self.fleet.transports(logins).map_err(|error| error.failure("cannot reach this machine"))
    }

    /// Where a run of `world` ranks goes: to the nodes of a hostfile or those that Slurm chooses, or to this machine.
    pub fn place(&self, ranks: Option<usize>, nodes: &NodesArgs, world: usize) -> Result<Place, Refusal> {
        let here = self.fleet.here().node.as_str();
        let nodes = self.wanted(nodes);
        if let Some(path) = nodes.slurm.as_ref().filter(|_| ranks.is_none()) {
            return self.slurm_place(path);
        }
        let Some(path) = nodes.hostfile.as_ref().filter(|_| ranks.is_none()) else {
            if ranks.is_none() && (nodes.include.is_some() || nodes.exclude.is_some()) {
                let why = "there is no hostfile from which to choose nodes";
                return Err(Refusal::request(Failure::new("cannot choose nodes", why, "name it: --hostfile FILE")));
            }
            return Ok(Place::local(here, ranks.unwrap_or(world)));
        };
        let chosen = self.hostfile(path, nodes)?;
        Ok(self.with_address(Place::hostfile(&chosen, world, format!("hostfile {path}")))?)
    }

    /// Reads a hostfile, and keeps the nodes that are wanted.
    pub fn hostfile(&self, path: &Utf8Path, nodes: &NodesArgs) -> Result<Hostfile, Refusal> {
        let what = format!("cannot use hostfile {path}");
        let text = std::fs::read_to_string(self.here.join(path)).map_err(|error| {
            let fix = "write one with a node to each line, such as `gpu01 slots=8`, or train here: --local N";
            Refusal::request(Failure::new(&*what, error.to_string(), fix))
        })?;
        let filter = Filter { include: nodes.include.clone(), exclude: nodes.exclude.clone() };
        let chosen = Hostfile::parse(&text).and_then(|file| file.select(&filter));
        chosen.map_err(|error| Refusal::request(Failure::new(&*what, error.to_string(), &*error.fix)))
    }

    fn slurm_place(&self, path: &Utf8Path) -> Result<Place, Refusal> {
        Ok(Place::slurm(self.slurm_spec(path)?, format!("Slurm file {path}")))
    }

    /// Reads what is asked of Slurm.
    pub fn slurm_spec(&self, path: &Utf8Path) -> Result<SlurmSpec, Refusal> {
        let what = format!("cannot use Slurm file {path}");
        let text = std::fs::read_to_string(self.here.join(path)).map_err(|error| {
            let fix = "write one like hostfiles/slurm.toml, or name nodes: --hostfile FILE";
            Refusal::request(Failure::new(&*what, error.to_string(), fix))
        })?;
        SlurmSpec::parse(&text).map_err(|e| Refusal::request(Failure::new(&*what, e.why, e.fix)))
    }

    /// The nodes that a command names; those named before the command, when it names none.
    pub fn wanted<'a>(&'a self, nodes: &'a NodesArgs) -> &'a NodesArgs {
        if *nodes == NodesArgs::default() { &self.nodes } else { nodes }
    }

    /// The nodes of an attempt, less those that are not wanted or cannot be reached. Says which of the latter there are.
    fn place_again(&self, last: &Attempt, nodes: &NodesArgs) -> Result<(Place, Vec<String>), Refusal> {
        let mut place = Place::of(last);
        let what = "cannot choose nodes";
        for (list, flag) in [(&nodes.include, "--include"), (&nodes.exclude, "--exclude")] {
            let Some(list) = list else { continue };
            let names = cluster::hostlist::expand(list).map_err(|error| {
                Refusal::request(Failure::new(
                    what,
                    format!("{flag} {list}: {error}"),
                    "write names as in gpu[001-024]",
                ))
            })?;
            let named: Vec<bool> =
                place.nodes.iter().map(|node| names.iter().any(|name| name == node.id.as_str())).collect();
            let wanted = flag == "--include";
            let mut keep = named.into_iter().map(|named| named == wanted);
            place.nodes.retain(|_| keep.next().unwrap_or(false));
        }
        let reached = self.fleet.reach(&place.logins);
        let away: Vec<_> = reached.into_iter().filter_map(|(node, result)| Some((node, result.err()?))).collect();
        let mut warnings = Vec::new();
        for (node, error) in away {
            if place.nodes.iter().any(|other| other.id == node) {
                place.without(&node);
                warnings.push(format!("{node} is left out: {error}"));
            }
        }
        if place.nodes.is_empty() {
            let why = if warnings.is_empty() { "none of its nodes is left".into() } else { warnings.join("; ") };
            return Err(Failure::new("cannot resume on the same nodes", why, "name others: --hostfile FILE").into());
        }
        Ok((self.with_address(place)?, warnings))
    }

    /// Looks up where the ranks of several nodes meet.
    fn with_address(&self, mut place: Place) -> Result<Place, Failure> {
        let first = place.nodes.first().and_then(|node| place.logins.iter().find(|login| login.node == node.id));
        if let (Some(first), [_, _, ..]) = (first, &place.nodes[..]) {
            let address = self.fleet.ssh(first).address();
            place.address = Some(address.map_err(|error| error.failure("cannot plan on these nodes"))?);
        }
        Ok(place)
    }

    /// What a plan needs from outside.
    pub fn context(&self, place: Place, trainer: Trainer) -> Result<Context, Failure> {
        let user = User::from_uid(Uid::effective()).ok().flatten();
        let user = user.map_or_else(|| Uid::effective().to_string(), |user| user.name);
        Ok(Context {
            now_s: crate::console::now_s(),
            // Seeded by the system for every hasher; eight hexadecimal digits are plenty for the tail of an id.
            random: RandomState::new().hash_one(std::process::id()) as u32,
            by: format!("{user}@{}", self.fleet.here().node),
            runs_root: self.runs.clone(),
            git_commit: git_commit(&self.here),
            trainer: program(trainer)?,
            program: own_file()?,
            place,
        })
    }

    /// The newest complete checkpoint of a run, as weights for another.
    fn newest_weights(&self, dir: &RunDir) -> Result<Weights, Failure> {
        let run = dir.read_run()?;
        let Some(checkpoint) = rundir::latest(dir) else {
            let what = format!("cannot start from {}", run.id);
            let fix = format!("let it reach a checkpoint: vidtui resume {}", run.id);
            return Err(Failure::new(what, "it has no complete checkpoint", fix));
        };
        Ok(Weights { path: checkpoint.dir, lineage: Some(Lineage { run: run.id, step: checkpoint.step }) })
    }

    fn weights_of_stage_before(&self, curriculum: &Curriculum, spec: &StageSpec) -> Result<Weights, Failure> {
        let (runs, _) = self.summaries();
        match plan::parent_of(curriculum, &spec.name, &runs) {
            Some(parent) => self.newest_weights(&parent.dir),
            None => Err(Failure::new(
                format!("cannot launch stage {}", spec.name),
                format!("it starts from the stage before it, and no run in {} has a checkpoint of that", self.runs),
                "train the stage before it first, or name a checkpoint: --init PATH",
            )),
        }
    }
}

/// The program that supervises: the trainer itself, or this one where the trainer is a command.
pub fn program(trainer: Trainer) -> Result<plan::Trainer, Failure> {
    match trainer {
        Trainer::Embedded => remote::find_trainer(),
        Trainer::Command => remote::own_program(env!("CARGO_PKG_VERSION")),
    }
}

impl Subject {
    /// The recipe, with where its values come from.
    pub fn resolved(&self) -> &Resolved {
        match self {
            Self::Recipe(resolved) => resolved,
            Self::Stage(curriculum, name) => {
                &curriculum.stage(name).expect("checked when the subject was made").resolved
            }
        }
    }

    /// The recipe, to be changed.
    pub fn resolved_mut(&mut self) -> &mut Resolved {
        match self {
            Self::Recipe(resolved) => resolved,
            Self::Stage(curriculum, name) => {
                let stage = curriculum.stages.iter_mut().find(|stage| stage.name == *name);
                &mut stage.expect("checked when the subject was made").resolved
            }
        }
    }

    /// The stage, when it is one.
    pub fn stage(&self) -> Option<(&Curriculum, &StageSpec)> {
        match self {
            Self::Recipe(_) => None,
            Self::Stage(curriculum, name) => curriculum.stage(name).map(|stage| (&**curriculum, stage)),
        }
    }
}

/// Reads a curriculum from its file, or from the `curriculum.toml` of its folder.
pub fn curriculum(path: &Utf8Path, sets: &[String]) -> Result<Curriculum, Refusal> {
    let file = if path.is_dir() { path.join("curriculum.toml") } else { path.to_owned() };
    // Its absolute path is what runs remember, and by which a stage finds its runs.
    let file = file.canonicalize_utf8().unwrap_or(file);
    Curriculum::load(&file, sets).map_err(recipe_failure)
}

/// A stage as the screen shows it.
pub fn stage_view(stage: &StageSpec) -> StageView {
    let recipe = &stage.resolved.recipe;
    if recipe.trainer == Trainer::Command {
        // Of what a command trains, nothing is known but how long.
        return StageView {
            name: stage.name.clone(),
            command: Some(plan::command_line(&recipe.command.run)),
            params: 0,
            seq_len: 0,
            latent_frames: 0,
            steps: recipe.train.steps,
            global_batch: 0,
            ranks: recipe.mesh.world(),
            start: stage.start.clone(),
            changes: stage.changes.clone(),
        };
    }
    StageView {
        name: stage.name.clone(),
        command: None,
        params: recipe.cost().params,
        seq_len: recipe.model.seq_len(),
        latent_frames: recipe.model.latent_frames,
        steps: recipe.train.steps,
        global_batch: recipe.train.global_batch,
        ranks: recipe.mesh.world(),
        start: stage.start.clone(),
        changes: stage.changes.clone(),
    }
}

/// Finds a stage by name.
pub fn named_stage<'a>(curriculum: &'a Curriculum, name: &str) -> Result<&'a StageSpec, Refusal> {
    curriculum.stage(name).ok_or_else(|| {
        let names: Vec<&str> = curriculum.stages.iter().map(|stage| stage.name.as_str()).collect();
        let what = format!("{} has no stage '{name}'", curriculum.path);
        Refusal::request(Failure::new(what, format!("its stages are {}", names.join(", ")), "name one of them"))
    })
}

/// A recipe that cannot be used is a wrong request, whatever the state of the machine.
pub fn recipe_failure(error: recipe::RecipeError) -> Refusal {
    Refusal::request(Failure::new(error.what, error.why, error.fix))
}

/// How a kill went, in one line: `3 processes ended on devbox`.
pub fn report_in_words(report: &KillReport) -> String {
    if let Some(job) = &report.job {
        return job.text.clone();
    }
    let of_node = |node: &remote::NodeReport| {
        let gone = node.signalled.saturating_sub(node.left.len());
        format!("{} ended on {}", ui::words::counted(gone, "process"), node.node)
    };
    report.nodes.iter().map(of_node).collect::<Vec<_>>().join(", ")
}

/// What became of collecting stacks, in one line.
pub fn stacks_in_words(stacks: &[NodeStacks]) -> String {
    let written: Vec<_> = stacks.iter().filter_map(|node| node.result.as_ref().ok()).collect();
    let processes = ui::words::counted(written.iter().map(|(_, count)| count).sum(), "process");
    let folder = written.first().and_then(|(path, _)| path.parent()).map_or("", Utf8Path::as_str);
    let away: Vec<String> =
        stacks.iter().filter(|node| node.result.is_err()).map(|node| node.node.to_string()).collect();
    let without = if away.is_empty() { String::new() } else { format!("; nothing from {}", away.join(", ")) };
    format!("stacks of {processes} are in {folder}{without}")
}

/// The logins of an attempt, and those of the attempt before to nodes that this one leaves out: whether it has ended there is
/// asked once more.
fn with_those_left_out(logins: &[Login], before: Vec<Login>) -> Vec<Login> {
    let is_left_out = |old: &Login| logins.iter().all(|login| login.node != old.node);
    logins.iter().cloned().chain(before.into_iter().filter(is_left_out)).collect()
}

/// This program's file, which the scripts of Slurm jobs call.
fn own_file() -> Result<Utf8PathBuf, Failure> {
    let path = std::env::current_exe().map_err(|error| error.to_string());
    let path = path.and_then(|path| Utf8PathBuf::try_from(path).map_err(|error| error.to_string()));
    path.map_err(|why| Failure::new("cannot tell where this program is", why, "check that /proc is mounted"))
}

fn more(count: usize) -> String {
    if count == 0 { String::new() } else { format!(" and {count} more") }
}

/// The commit that the folder, or one above it, has checked out; read from git's files, so that git need not exist.
fn git_commit(folder: &Utf8Path) -> Option<String> {
    let git = folder.ancestors().map(|folder| folder.join(".git")).find(|git| git.is_dir())?;
    let head = std::fs::read_to_string(git.join("HEAD")).ok()?;
    let Some(reference) = head.trim().strip_prefix("ref: ") else { return Some(head.trim().to_owned()) };
    if let Ok(commit) = std::fs::read_to_string(git.join(reference)) {
        return Some(commit.trim().to_owned());
    }
    let packed = std::fs::read_to_string(git.join("packed-refs")).ok()?;
    packed.lines().find_map(|line| line.strip_suffix(reference)).map(|commit| commit.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_the_attempt_before_is_logged_in_to_as_this_one_says() {
        let login = |node, user: Option<&str>| Login {
            node: NodeId::new(node).unwrap(),
            user: user.map(ToOwned::to_owned),
            port: None,
        };
        let before = vec![login("ml-1", None), login("ml-2", None)];
        let ways = with_those_left_out(&[login("ml-1", Some("ada"))], before);
        assert_eq!(ways, [login("ml-1", Some("ada")), login("ml-2", None)]);
    }
}

//! One node's share of an attempt: its ranks, their command lines and their environment variables.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use camino::Utf8PathBuf;
use cluster::{NodeId, RankPlace};
use recipe::{JobKind, Per, Recipe, Secrets};
use rundir::{Attempt, CommandPlace, ErrorCode, Failure, Run, RunDir, RunId, command_folder, command_words};

/// The variable with the rendezvous file of the ranks of one node. Without it, the rendezvous is at `MASTER_ADDR`.
pub const STORE_VARIABLE: &str = "VIDTUI_STORE";

/// One node's share of an attempt.
pub struct Job {
    pub run: RunDir,
    pub id: RunId,
    pub meta: Run,
    pub recipe: Recipe,
    pub secrets: Secrets,
    pub attempt: Attempt,
    pub node: NodeId,
    /// The processes that the supervisor starts on this node: one per rank, or one in total for a command per node.
    pub places: Vec<RankPlace>,
    /// The number of ranks on this node.
    pub local_world: usize,
    /// CPU threads of each rank.
    pub threads: i32,
    /// The address and port of the rendezvous, where rank 0 listens.
    pub master: (String, u16),
    /// The rendezvous file, if all ranks are on this node.
    pub store: Option<Utf8PathBuf>,
}

impl Job {
    /// Reads the job from the run directory.
    pub fn read(run: &RunDir, attempt: u32, node: &NodeId) -> Result<Self, Failure> {
        let meta = run.read_run()?;
        let attempt = run.read_attempt(attempt)?;
        let mut places: Vec<_> = attempt.placement.ranks.iter().filter(|place| place.node == *node).cloned().collect();
        if places.is_empty() {
            let nodes: Vec<_> = attempt.placement.by_node().iter().map(|(node, _)| node.to_string()).collect();
            return Err(Failure::new(
                ErrorCode::UnknownName,
                format!("cannot supervise attempt {} on node {node}", attempt.number),
                format!("its ranks are on {}", nodes.join(", ")),
                format!("name one of them with --node, or look at {}", run.attempt_toml(attempt.number)),
            ));
        }
        let recipe = attempt.effective(&meta.recipe()?);
        let (one_node, local_world) = (places.len() == attempt.placement.world(), places.len());
        let is_command = recipe.job() == JobKind::Command;
        if is_command && recipe.command.per == Per::Node {
            places.truncate(1);
        }
        Ok(Self {
            id: meta.id.clone(),
            threads: threads(recipe.train.threads, local_world),
            master: if one_node { loopback()? } else { master_from_environment()? },
            store: (one_node && !is_command).then(|| run.store_file(node, attempt.number)),
            secrets: secrets(&recipe)?,
            local_world,
            meta,
            recipe,
            run: run.clone(),
            node: node.clone(),
            places,
            attempt,
        })
    }

    /// Returns true if a command of the user trains, instead of the embedded trainer.
    pub fn is_command(&self) -> bool {
        self.recipe.job() == JobKind::Command
    }

    /// Returns true if rank 0, which writes the metrics of the run, is here.
    pub fn has_first_rank(&self) -> bool {
        self.places.iter().any(|place| place.rank == 0)
    }

    /// Returns the command of the user with its placeholders filled in.
    pub fn own_command(&self, place: &RankPlace) -> Command {
        let place = CommandPlace {
            node: &self.node,
            rank: (self.recipe.command.per == Per::Rank).then_some(place),
            master: Some((&self.master.0, self.master.1)),
        };
        let words = command_words(&self.run, &self.meta, &self.recipe, &self.attempt, &place);
        // A recipe without a program is rejected when it is read.
        let mut command = Command::new(words.first().map_or("", String::as_str));
        command.args(words.iter().skip(1)).current_dir(command_folder(&self.run, &self.recipe));
        command
    }

    /// Returns the command line of a rank of the embedded trainer.
    pub fn rank_command(&self, trainer: &Path) -> Command {
        let mut command = Command::new(trainer);
        let number = self.attempt.number.to_string();
        command.args(["rank", "--run-dir", self.run.root.as_str(), "--attempt", &number]);
        command
    }

    /// Returns the environment variables of a rank: torchrun's, those that identify processes of a run, those of the
    /// recipe, and secrets.
    pub fn environment(&self, place: &RankPlace) -> Vec<(String, String)> {
        let nodes = self.attempt.placement.by_node();
        let group_rank = nodes.iter().position(|(node, _)| **node == self.node).unwrap_or(0);
        let mut variables = vec![
            ("VIDTUI_RUN", self.id.to_string()),
            ("VIDTUI_ATTEMPT", self.attempt.number.to_string()),
            ("VIDTUI_NODE", self.node.to_string()),
            ("WORLD_SIZE", self.attempt.placement.world().to_string()),
            ("LOCAL_WORLD_SIZE", self.local_world.to_string()),
            ("GROUP_RANK", group_rank.to_string()),
            ("MASTER_ADDR", self.master.0.clone()),
            ("MASTER_PORT", self.master.1.to_string()),
        ];
        variables.extend(self.store.as_ref().map(|path| (STORE_VARIABLE, path.to_string())));
        let mut all = self.recipe.env.all();
        all.extend(self.secrets.variables().iter().cloned());
        // A command per node starts its ranks itself, and sets their numbers and threads.
        if !self.is_command() || self.recipe.command.per == Per::Rank {
            variables.extend([("RANK", place.rank.to_string()), ("LOCAL_RANK", place.local_rank.to_string())]);
            let threads = ("OMP_NUM_THREADS", self.threads.to_string());
            variables.extend(Some(threads).filter(|(name, _)| all.iter().all(|(other, _)| other != name)));
        }
        if self.is_command() {
            // Python buffers the output to a file, so that lines arrive late and in another order than those of the progress bar.
            let unbuffered = ("PYTHONUNBUFFERED", "1".to_owned());
            variables.extend(Some(unbuffered).filter(|(name, _)| all.iter().all(|(other, _)| other != name)));
        } else {
            variables.extend(self.libtorch_variables(&all));
        }
        all.extend(variables.into_iter().map(|(name, value)| (name.to_owned(), value)));
        all
    }
}

impl Job {
    /// Returns libtorch's variables for the ranks of the embedded trainer, without those that the recipe or the user sets.
    fn libtorch_variables(&self, set: &[(String, String)]) -> Vec<(&'static str, String)> {
        let is_set = |name: &str| set.iter().any(|(other, _)| other == name) || std::env::var_os(name).is_some();
        let mut variables = Vec::new();
        if !is_set(DUMPS) {
            let prefix = self.run.nccl_dump_prefix(&self.node, self.attempt.number);
            variables.push((DUMPS, camino::absolute_utf8(&prefix).unwrap_or(prefix).into_string()));
        }
        if !ALLOCATOR.into_iter().any(is_set) {
            variables.push((ALLOCATOR[0], EXPANDABLE.to_owned()));
        }
        variables
    }
}

/// The variable with the path prefix of the records of collectives that libtorch writes if NCCL times out.
const DUMPS: &str = "TORCH_FR_DUMP_TEMP_FILE";
/// The variables with the settings of libtorch's allocator. The second name is the older one, which wins for GPUs.
const ALLOCATOR: [&str; 2] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];
/// Makes segments of memory grow, so that memory that was freed in pieces can be used for a larger tensor.
const EXPANDABLE: &str = "expandable_segments:True";

/// The variable that is set if secrets are passed through standard input.
const SECRETS_VARIABLE: &str = "VIDTUI_SECRETS";

/// Reads the secrets, which are never written to disk: a launch passes them through standard input. A supervisor that a
/// user or a queue starts reads the file on its node.
fn secrets(recipe: &Recipe) -> Result<Secrets, Failure> {
    let path = &recipe.env.secrets;
    if path.as_str().is_empty() {
        return Ok(Secrets::default());
    }
    if std::env::var_os(SECRETS_VARIABLE).is_none() {
        return Ok(Secrets::read(path)?);
    }
    let failed = |why: String| {
        Failure::new(
            ErrorCode::InvalidArgument,
            "cannot read the secrets from standard input",
            why,
            "launch it again, or report this as a bug",
        )
    };
    let text = std::io::read_to_string(std::io::stdin()).map_err(|error| failed(error.to_string()))?;
    Secrets::parse(&text).map_err(|(line, why)| failed(format!("line {line} {why}")))
}

/// Returns the CPU threads of one rank: `wanted` of the recipe if not 0, else `OMP_NUM_THREADS`, else its share of the
/// node's cores.
///
/// torchrun respects the variable in the same way. Clusters set it, because idle OpenMP threads spin and slow down other programs.
pub fn threads(wanted: usize, local_world: usize) -> i32 {
    threads_with(wanted, local_world, std::env::var("OMP_NUM_THREADS").ok().as_deref())
}

fn threads_with(wanted: usize, local_world: usize, variable: Option<&str>) -> i32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // The variable may be a list with the threads of nested levels.
    let set = variable.and_then(|list| list.split(',').next()?.trim().parse().ok());
    let threads = [Some(wanted), set].into_iter().flatten().find(|threads| *threads > 0);
    threads.unwrap_or((cores / local_world).max(1)).try_into().unwrap_or(1)
}

/// Returns an address for ranks of one node, with a port that is free now.
fn loopback() -> Result<(String, u16), Failure> {
    let address = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let address = address.map_err(|error| {
        let why = format!("127.0.0.1 has no free port: {error}");
        Failure::new(
            ErrorCode::StartFailed,
            "cannot start ranks",
            why,
            "check that the loopback interface is up: ip addr show lo",
        )
    })?;
    Ok((address.ip().to_string(), address.port()))
}

/// Returns the address and port of rank 0 from the environment. The program that starts the nodes chooses them.
fn master_from_environment() -> Result<(String, u16), Failure> {
    let address = std::env::var("MASTER_ADDR").ok().filter(|address| !address.is_empty());
    let port = std::env::var("MASTER_PORT").ok().and_then(|port| port.parse().ok());
    address.zip(port).ok_or_else(|| {
        Failure::new(
            ErrorCode::InvalidArgument,
            "cannot start the ranks of several nodes",
            "MASTER_ADDR or MASTER_PORT is missing or not valid: they name where rank 0 listens",
            "set both to the same address and port on every node",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_dump_collectives_into_the_run_and_use_segments_that_grow_unless_these_are_set() {
        let (_folder, job) = crate::tests::job();
        let of = |set: &[(&str, &str)]| -> std::collections::BTreeMap<&str, String> {
            let set: Vec<_> = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            job.libtorch_variables(&set).into_iter().collect()
        };
        let own = of(&[]);
        assert_eq!(own.keys().copied().collect::<Vec<_>>(), [ALLOCATOR[0], DUMPS]);
        assert_eq!(own[ALLOCATOR[0]], "expandable_segments:True");
        // libtorch appends the number of the rank.
        let dump = Utf8PathBuf::from(&own[DUMPS]);
        assert!(dump.is_absolute() && dump.starts_with(job.run.node_dir(&job.node)), "{dump}");
        assert_eq!(dump, job.run.nccl_dump_prefix(&job.node, job.attempt.number));
        for name in ALLOCATOR {
            assert_eq!(of(&[(name, "max_split_size_mb:64")]).keys().copied().collect::<Vec<_>>(), [DUMPS], "{name}");
        }
        assert_eq!(of(&[(DUMPS, "/elsewhere/")]).keys().copied().collect::<Vec<_>>(), [ALLOCATOR[0]]);
        // The ranks get them in their environment.
        let environment: std::collections::BTreeMap<String, String> =
            job.environment(&job.places[0]).into_iter().collect();
        assert!(own.iter().all(|(name, value)| environment.get(*name) == Some(value)), "{environment:?}");
    }

    #[test]
    fn with_zero_threads_the_ranks_of_a_node_share_its_cores() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = |wanted, local_world| threads_with(wanted, local_world, None);
        assert_eq!((threads(3, 1), threads(3, 8)), (3, 3));
        assert_eq!((threads(0, 1), threads(0, cores), threads(0, 10_000)), (cores as i32, 1, 1));
    }

    #[test]
    fn the_variable_of_openmp_counts_unless_the_recipe_sets_threads() {
        let threads = |wanted, variable| threads_with(wanted, 1, Some(variable));
        let cores = threads_with(0, 1, None);
        assert_eq!((threads(0, "5"), threads(0, "6,2"), threads(3, "5")), (5, 6, 3));
        assert_eq!((threads(0, ""), threads(0, "many"), threads(0, "0")), (cores, cores, cores));
    }
}

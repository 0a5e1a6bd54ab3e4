//! The process of one rank: reads the environment that the supervisor set, joins the other ranks and runs the task.

use crate::families::{Work, with_model};
use crate::log::RunLog;
use crate::phase::{self, Phase};
use crate::torch_failure::failed;
use crate::trainer::{Finish, Trainer};
use crate::watchdog::{Reported, Watchdog};
use crate::{device, encode, interface, out_of_memory, sample, signals, torch_failure};
use c10d::Store;
use cluster::NodeId;
use dit::family::Family;
use dit::network::Network;
use dit::objective::Objective;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use recipe::{Recipe, Task, WAIT_OUTSIDE_STEPS};
use rundir::{Attempt, ErrorCode, EventKind, Failure, Run, RunDir};
use sharding::mesh::MeshGroups;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use supervise::{STORE_VARIABLE, threads};
use tch::Device;
use torch_error::TorchError;

/// How long a rank waits for the other ranks to join.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(300);

/// The rank's environment: torchrun's variables.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RankEnv {
    rank: usize,
    world: usize,
    local_rank: usize,
    local_world: usize,
    master_addr: String,
    master_port: u16,
    store: Option<PathBuf>,
}

/// Runs the task of an attempt as one rank.
///
/// # Errors
/// The failure that ended this rank. It is recorded for the supervisor of the node. Unless ranks work independently, rank 0 also logs
/// its failure as an event.
pub fn run(run: &RunDir, attempt: u32) -> Result<Finish, Failure> {
    run_rank(run, attempt).inspect_err(|failure| {
        if let (Some(node), Ok(rank)) = (node(), variable("RANK"))
            && let Err(error) = run.write_rank_failure(&node, attempt, rank, failure)
        {
            rundir::log!("{error}");
        }
    })
}

fn run_rank(run: &RunDir, attempt: u32) -> Result<Finish, Failure> {
    signals::take_over()?;
    raise_file_limit();
    let meta = run.read_run()?;
    let attempt = run.read_attempt(attempt)?;
    let (number, step) = (attempt.number, attempt.start_step);
    let place = RankEnv::read()?;
    let recipe = attempt.effective(&meta.recipe()?);
    let mesh = attempt.mesh;
    let reported = node().filter(|_| recipe.task != Task::Encode).map(|node| Reported {
        run: run.clone(),
        node,
        attempt: number,
        rank: place.rank,
        mesh,
    });
    // Start the watchdog before the rank joins its groups, because that can hang, too.
    phase::enter(Phase::Load);
    let watchdog = reported.map(|reported| Watchdog::start(reported, recipe.train.collective_timeout_s));
    let result = caught(|| match recipe.task {
        Task::Train => train(run, &meta, &recipe, attempt, &place),
        Task::Sample => start(&recipe, &attempt, &place).and_then(|groups| sample::run(run, &meta, attempt, groups)),
        Task::Encode => encode_clips(run, &meta, &recipe, &attempt, &place),
    });
    drop(watchdog);
    let result = result.map_err(|failure| {
        // A device that could not be chosen has no error and no memory to explain.
        let device = device::choose(recipe.train.device, place.local_rank, place.local_world).ok();
        let failure = torch_failure::with_device(failure, device);
        let (ErrorCode::OutOfMemory, Some(device)) = (failure.code, device) else { return failure };
        let mut recipe = recipe.clone();
        recipe.train.device = if device == Device::Cpu { recipe::Device::Cpu } else { recipe::Device::Cuda };
        out_of_memory::ExhaustedRank {
            run,
            recipe: &recipe,
            attempt: number,
            rank: place.rank,
            ranks_on_node: place.local_world,
            device,
            node: node(),
        }
        .explain(failure)
    });
    // If ranks do not need each other, the failure of one rank does not end the run; its supervisor records it.
    if let (Err(failure), 0, true) = (&result, place.rank, recipe.task.ranks_depend_on_each_other())
        && let Ok(mut log) = RunLog::open(run, number, place.rank)
    {
        let step = runstate::recent_metrics(run).ok().and_then(|m| m.last().map(|m| m.step)).unwrap_or(step);
        log.event(step, EventKind::Failed { failure: failure.clone() });
    }
    result
}

/// Runs the task. Turns a panic with an error of libtorch into a failure, and resumes any other panic: operators of tch and of the kernels
/// panic when libtorch fails.
fn caught(task: impl FnOnce() -> Result<Finish, Failure>) -> Result<Finish, Failure> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(task)).unwrap_or_else(|panic| {
        match TorchError::of_panic(panic.as_ref()) {
            Some(error) => Err(torch_failure::operator_failed(error)),
            None => std::panic::resume_unwind(panic),
        }
    })
}

/// Returns the node that the supervisor started this rank on; `None` without a supervisor.
pub(crate) fn node() -> Option<NodeId> {
    std::env::var("VIDTUI_NODE").ok().and_then(|node| NodeId::new(node).ok())
}

fn encode_clips(
    run: &RunDir,
    meta: &Run,
    recipe: &Recipe,
    attempt: &Attempt,
    place: &RankEnv,
) -> Result<Finish, Failure> {
    let threads = threads(recipe.train.threads, place.local_world);
    tch::set_num_threads(threads);
    encode::encode(&encode::Rank {
        run,
        meta,
        recipe,
        attempt,
        place: encode::place(place.rank, place.local_rank)?,
        threads: threads.max(1) as usize,
        device: device::choose(recipe.train.device, place.local_rank, place.local_world)?,
    })
}

fn train(run: &RunDir, meta: &Run, recipe: &Recipe, attempt: Attempt, place: &RankEnv) -> Result<Finish, Failure> {
    struct Training<'a> {
        run: &'a RunDir,
        meta: &'a Run,
        attempt: Attempt,
        groups: (MeshGroups, usize),
    }

    impl Work for Training<'_> {
        type Done = Result<Finish, Failure>;

        fn run<F: Family, O: Objective>(self, network: Network<F>, objective: O) -> Self::Done {
            Trainer::new(self.run.clone(), self.meta, self.attempt, self.groups, (network, objective))?.run()
        }
    }

    let groups = start(recipe, &attempt, place)?;
    with_model(recipe, Training { run, meta, attempt, groups: (groups, place.local_world) })
}

/// Chooses the device and joins the other ranks.
fn start(recipe: &Recipe, attempt: &Attempt, place: &RankEnv) -> Result<MeshGroups, Failure> {
    attempt.mesh.check_world(place.world)?;
    tch::set_num_threads(threads(recipe.train.threads, place.local_world));
    let device = device::choose(recipe.train.device, place.local_rank, place.local_world)?;
    device::check_scan(recipe, device)?;
    device::check_fused(recipe, device)?;
    match place.world {
        1 => Ok(MeshGroups::alone_on(device)),
        _ => place.join(attempt, device).map_err(failed),
    }
}

impl RankEnv {
    fn read() -> Result<Self, Failure> {
        Ok(RankEnv {
            rank: variable("RANK")?,
            world: variable("WORLD_SIZE")?,
            local_rank: variable("LOCAL_RANK")?,
            local_world: variable("LOCAL_WORLD_SIZE")?,
            master_addr: variable("MASTER_ADDR")?,
            master_port: variable("MASTER_PORT")?,
            store: std::env::var_os(STORE_VARIABLE).map(PathBuf::from),
        })
    }

    fn join(&self, attempt: &Attempt, device: Device) -> c10d::Result<MeshGroups> {
        let store = match &self.store {
            Some(file) => Store::file(file, self.world, RENDEZVOUS_TIMEOUT)?,
            None => Store::tcp(&self.master_addr, self.master_port, self.world, self.rank == 0, RENDEZVOUS_TIMEOUT)?,
        };
        // If all ranks are on this node, the loopback interface is enough.
        let one_node = self.world == self.local_world;
        let interface =
            if one_node { Some("lo".to_owned()) } else { interface::towards(&self.master_addr, self.master_port) };
        let (mesh, rank, interface) = (attempt.mesh, self.rank, interface.as_deref());
        let world = MeshGroups::join_world(&store, mesh, rank, WAIT_OUTSIDE_STEPS, interface)?;
        if device.is_cuda() {
            // NCCL connects later too, so its sockets, which do not exist yet, must accept. It may also need the store.
            drop_new_connections(self.store.is_none().then_some(self.master_port));
        }
        let groups = MeshGroups::join_others(world, &store, mesh, rank, device, WAIT_OUTSIDE_STEPS, interface)?;
        if !device.is_cuda() {
            drop_new_connections(None);
        }
        Ok(groups)
    }
}

/// Makes this rank ignore connections of programs that are not its peers. A kernel that refuses this does not prevent training.
fn drop_new_connections(spared: Option<u16>) {
    if let Err(error) = c10d::drop_new_connections(spared) {
        rundir::log!("cannot close the ports of this rank to strangers: {error}");
    }
}

/// Raises the limit of open files, as far as this process may. Until the ranks have joined, any program that reaches their ports can open
/// files in them.
fn raise_file_limit() {
    const ENOUGH: u64 = 1 << 16;
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(soft, hard)| setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(ENOUGH)), hard));
    if let Err(error) = raised {
        rundir::log!("cannot raise the limit of open files: {error}");
    }
}

fn variable<T: FromStr>(name: &str) -> Result<T, Failure> {
    let text = std::env::var(name).ok();
    text.as_deref().and_then(|text| text.parse().ok()).ok_or_else(|| {
        Failure::new(
            rundir::ErrorCode::StartFailed, format!("cannot start a rank: {name} is {}", text.map_or("not set".into(), |t| format!("'{t}'"))),
            "a rank reads its rank and world size from the variables that torchrun sets",
            "start ranks through `vidtui-train supervise`, or set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
        )
    })
}

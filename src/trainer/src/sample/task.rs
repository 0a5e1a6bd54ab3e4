//! The task `sample`: every rank loads the weights, forward only, and the ranks make the videos of the recipe together.

use super::denoise::Denoiser;
use super::texts::Texts;
use super::{Ended, Source, Target, make_round, rounds, specs};
use crate::adapter_files;
use crate::checkpoint::{self, Loaded, Restore, TrainingState};
use crate::deadline::Deadline;
use crate::exchange::{agree_on, finish_together};
use crate::families::{Work, with_model};
use crate::fault;
use crate::log::RunLog;
use crate::optim::OptimizerState;
use crate::parallelize::{frozen_layouts, unit_tables};
use crate::requests::StopSources;
use crate::signals::Signals;
use crate::step::compute_kind;
use crate::torch_failure::failed;
use crate::trainer::Finish;
use c10d::Group;
use dit::family::Family;
use dit::network::Network;
use dit::objective::Objective;
use recipe::{Recipe, UseEma};
use rundir::{
    Attempt, ErrorCode, EventKind, Failure, MetricSample, Run, RunDir, RunId, SampleClaim, SampleFolder,
    SamplingProgress, StartFrom, now_s,
};
use sharding::fsdp::Fsdp;
use sharding::mesh::MeshGroups;
use std::time::Instant;

/// Makes the videos of a run whose task is `sample`, except those that are already complete. A collective.
///
/// # Errors
/// The weights or the encoders cannot be read, a video cannot be made, or a peer is lost.
pub fn run(run: &RunDir, meta: &Run, attempt: Attempt, groups: MeshGroups) -> Result<Finish, Failure> {
    struct Videos<'a> {
        run: &'a RunDir,
        meta: &'a Run,
        attempt: Attempt,
        recipe: &'a Recipe,
        groups: MeshGroups,
    }

    impl Work for Videos<'_> {
        type Done = Result<Finish, Failure>;

        fn run<F: Family, O: Objective>(self, network: Network<F>, _: O) -> Self::Done {
            make(self.run, self.meta, &self.attempt, self.recipe, self.groups, network)
        }
    }

    let recipe = attempt.effective(&meta.recipe()?);
    with_model(&recipe, Videos { run, meta, attempt, recipe: &recipe, groups })
}

/// Does the work of [`run`] with the network of the recipe.
fn make<F: Family>(
    run: &RunDir,
    meta: &Run,
    attempt: &Attempt,
    recipe: &Recipe,
    groups: MeshGroups,
    network: Network<F>,
) -> Result<Finish, Failure> {
    let signals = Signals::watch()?;
    let first = groups.world.rank() == 0;
    let log = if first { Some(RunLog::open(run, attempt.number, 0)) } else { None };
    let mut log = agree_on(&groups.world, log.transpose())?;
    let event = |log: &mut Option<RunLog>, step: u64, kind: EventKind| {
        if let Some(log) = log {
            log.event(step, kind);
        }
    };
    let specs = agree_on(&groups.world, specs(recipe))?;
    let programs = if first { video::check_installed().map(|_| ()) } else { Ok(()) };
    agree_on(&groups.world, programs)?;
    let StartFrom::Weights { path } = attempt.start.clone() else {
        return Err(Failure::new(
            ErrorCode::NoWeights,
            "cannot sample",
            "the run starts from random weights",
            "start it with `vidtui sample RUN`, or launch the recipe with --init CHECKPOINT",
        ));
    };
    // The text encoder is freed before the network is loaded.
    let texts = Texts::encode(&recipe.encoders, &recipe.model, &specs, &groups.world, groups.device)?;
    let tables = unit_tables(recipe);
    let compute = compute_kind(recipe.train.dtype);
    let groups = MeshGroups { tp_pieces: recipe.train.tp_pieces, ..groups };
    let mut fsdp = Fsdp::new(frozen_layouts(recipe, &tables), groups, compute);
    let mut moments = OptimizerState::new(&fsdp, &tables, &recipe.optimizer).map_err(failed)?;
    let mut state = TrainingState { fsdp: &fsdp, moments: &mut moments, ema: None, tables: &tables, base: None };
    // Both kinds of restore require all tensors, also those of TTT layers. They read no optimizer state, because no tensor is trained.
    let restore = if recipe.sample.ema == UseEma::Off { Restore::Everything } else { Restore::Average };
    let loaded = match checkpoint::load(&mut state, &path, restore)? {
        Loaded::Intact(checkpoint) => checkpoint,
        Loaded::Damaged(damage) => return Err(damage),
    };
    if recipe.sample.ema == UseEma::On && !checkpoint::has_average(&loaded) {
        let (what, why) = (format!("cannot sample {path}"), "it has no moving average of the weights");
        let fix = "sample its weights (--ema auto), or a checkpoint of a run with ema.decay above 0";
        return Err(Failure::new(ErrorCode::NoWeights, what, why, fix));
    }
    let hash = agree_on(&fsdp.groups().world, loaded.manifest_sum().map_err(Failure::from))?;
    let merged = adapter_files::merge(&fsdp, &tables, &recipe.sample.merged());
    let lora = agree_on(&fsdp.groups().world, merged)?;
    let source = Source {
        step: loaded.manifest.step,
        weights: path.clone(),
        weights_xxh3: hash.xxh3,
        ema: recipe.sample.ema != UseEma::Off && checkpoint::has_average(&loaded),
        lora,
    };
    let world = attempt.mesh.world();
    let total: u64 = specs.iter().map(|spec| spec.steps as u64).sum();
    let target = Target { folder: run.sample_folder(meta), source: &source };

    let whole = target.whole(recipe, &specs, &fsdp.groups().world)?;
    let wanted: Vec<usize> = (0..specs.len()).filter(|index| !whole.contains(index)).collect();
    let claimed = if first { claim(&target.folder, &meta.id, &wanted) } else { Ok(()) };
    agree_on(&fsdp.groups().world, claimed)?;
    let mut done: u64 = whole.iter().map(|&index| specs[index].steps as u64).sum();
    let mut videos = whole.len();
    event(&mut log, done, EventKind::Started { world });
    event(&mut log, done, EventKind::WeightsLoaded { from: path });
    if attempt.number > 1 {
        let restored = format!("{} of {}", whole.len(), units::counted(specs.len(), "video"));
        let not_restored = "the sampling steps of unfinished videos".to_owned();
        event(&mut log, done, EventKind::Restored { restored, not_restored, seconds: 0.0 });
    }

    let deadline = Deadline::new(recipe.run.time_limit, 0.0);
    let (_, ranks) = fsdp.groups().data_place();
    let network = network.on(fsdp.groups().device);
    let stop = StopSources { signals: &signals, first: first.then_some((run, &deadline)) };
    for round in rounds(&specs, &wanted, ranks) {
        let mut last = Instant::now();
        let began = Instant::now();
        let mut denoiser = Denoiser { fsdp: &mut fsdp, network: &network, compute };
        let many = round.len() as u64;
        let sampled = done + many * specs[round[0]].steps as u64;
        let mut after_step = |world: &Group| {
            fault::pace(last);
            done += many;
            let step_s = last.elapsed().as_secs_f64();
            last = Instant::now();
            if let Some(log) = &mut log {
                log.metrics(&MetricSample {
                    attempt: attempt.number,
                    step: done,
                    t: now_s(),
                    step_s: step_s / many as f64,
                    sampling: Some(SamplingProgress { videos, videos_total: specs.len() }),
                    ..MetricSample::default()
                });
            }
            fault::reached("sampled", done);
            if let Some(why) = stop.agreed(world)? {
                return Err(Ended::Stopped(why));
            }
            // Log an evaluation while the VAE decodes, because no steps follow until it ends.
            if let Some(log) = log.as_mut().filter(|_| done == sampled) {
                log.event(done, EventKind::EvaluationStarted);
            }
            Ok(())
        };
        match make_round(&mut denoiser, recipe, &specs, &round, &texts, &target, &mut after_step) {
            Ok(()) => {}
            Err(Ended::Failed(failure)) => return Err(failure),
            Err(Ended::Stopped(source)) => {
                let why = source.to_string();
                event(&mut log, done, EventKind::Stopping { source, why: why.clone() });
                event(&mut log, done, EventKind::Stopped { source, why: why.clone() });
                return Ok(Finish::Stopped(why));
            }
        }
        event(&mut log, done, EventKind::EvaluationEnded);
        videos += round.len();
        let seconds = began.elapsed().as_secs_f64();
        for &index in &round {
            event(&mut log, done, EventKind::SampleSaved { path: target.video(index), seconds });
        }
    }
    debug_assert_eq!(done, total);
    if first {
        target.folder.release(&meta.id);
    }
    event(&mut log, total, EventKind::Finished);
    finish_together(&fsdp.groups().world);
    Ok(Finish::Complete)
}

/// Claims the folder of the samples. An attempt before this one, or the command that started the run, may have done it.
///
/// # Errors
/// [`ErrorCode::AlreadyExists`] if another run writes its samples there, or the folder has files with the names of the wanted samples.
fn claim(folder: &SampleFolder, run: &RunId, wanted: &[usize]) -> Result<(), Failure> {
    match folder.claim(run)? {
        SampleClaim::Own => Ok(()),
        SampleClaim::New => {
            let existing = folder.existing(wanted.iter().copied());
            let Some(first) = existing.first() else { return Ok(()) };
            folder.release(run);
            let fix = "choose another folder in sample.out, or move these files away";
            Err(Failure::new(ErrorCode::AlreadyExists, format!("cannot write {first}"), "it exists already", fix))
        }
        SampleClaim::Other(other) => {
            let why = format!("the run {other} writes its samples there");
            let fix = "wait until it ends, or choose another folder in sample.out";
            Err(Failure::new(ErrorCode::AlreadyExists, "cannot write the samples", why, fix))
        }
    }
}

//! Loading: verifies a checkpoint and fills the pieces that this rank owns now.

use super::TrainingState;
use super::pieces::{AT_ONCE, AVERAGE, Piece, average_pieces, moment_pieces, scales_key, weight_pieces};
use crate::data::kind;
use crate::exchange::{agree, agree_on};
use crate::torch_failure::failed;
use c10d::Group;
use camino::Utf8Path;
use rundir::{Checkpoint, Failure, LogicalTensor, Overlap, Slice};
use safetensors::Dtype;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::time::{Duration, Instant};
use tch::{Kind, Tensor};
use weights::{Header, read_range};

/// The parts of a checkpoint to restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restore {
    /// Parameters only: a new stage.
    Weights,
    /// Parameters, optimizer state and the average of the weights: a resume.
    Everything,
    /// Parameters for sampling: the average of each trained parameter if the checkpoint has one, otherwise the parameter.
    Average,
}

/// The result of reading a checkpoint, the same on every rank.
#[derive(Debug)]
pub enum Loaded<T> {
    /// The checkpoint is intact.
    Intact(T),
    /// A file is missing or has changed.
    Damaged(Failure),
}

/// How long a rank waits for a checkpoint that rank 0 can open: a shared file system may show an older state on other nodes.
const SHARED_DISK_LAG: Duration = Duration::from_secs(5);

/// Opens a checkpoint on every rank. Only rank 0 decides whether it is damaged: if another rank cannot open it, that is an
/// error of its node. A collective.
fn open(world: &Group, dir: &Utf8Path) -> Result<Loaded<Checkpoint>, Failure> {
    let rank = world.rank();
    let first = (rank == 0).then(|| Checkpoint::open(dir)).transpose();
    let first = match on_every_rank(world, first)? {
        Loaded::Intact(checkpoint) => checkpoint,
        Loaded::Damaged(damage) => return Ok(Loaded::Damaged(damage)),
    };
    let opened = first.map_or_else(|| wait_for(dir, rank), Ok);
    agree_on(world, opened).map(Loaded::Intact)
}

/// Opens a checkpoint that rank 0 has opened.
fn wait_for(dir: &Utf8Path, rank: usize) -> Result<Checkpoint, Failure> {
    let began = Instant::now();
    loop {
        match Checkpoint::open(dir) {
            Ok(checkpoint) => return Ok(checkpoint),
            Err(_) if began.elapsed() < SHARED_DISK_LAG => std::thread::sleep(SHARED_DISK_LAG / 50),
            Err(error) => {
                let Failure { why, .. } = error.into();
                let fix = format!("check {dir} and its disk on the node of rank {rank}, then resume again");
                return Err(Failure::new(
                    rundir::ErrorCode::CheckpointUnreadable,
                    format!("rank {rank} cannot open {dir}, but rank 0 can"),
                    why,
                    fix,
                ));
            }
        }
    }
}

/// Loads this rank's shards from the checkpoint in a folder. A collective.
///
/// # Errors
/// A file cannot be read, this rank cannot open a file that rank 0 can open, a tensor is missing or has another shape, the
/// checkpoint has state of another optimizer, or its base weights have changed or are damaged.
pub fn load(sharded: &mut TrainingState<'_>, dir: &Utf8Path, restore: Restore) -> Result<Loaded<Checkpoint>, Failure> {
    sharded.moments.wait_for_snapshot().map_err(failed)?;
    let world = &sharded.fsdp.groups().world;
    let (rank, ranks) = (world.rank(), world.size());
    let checkpoint = match open(world, dir)? {
        Loaded::Intact(checkpoint) => checkpoint,
        damaged @ Loaded::Damaged(_) => return Ok(damaged),
    };
    let base = agree_on(world, open_base(&checkpoint))?;
    // Load and verify in parallel: bytes that one thread reads from disk are in the page cache for the other.
    let (verified, filled) = std::thread::scope(|scope| {
        let verifying = scope.spawn(|| {
            let of_base = base.as_ref().map_or(Ok(()), |base| verify(base, rank, ranks));
            (verify(&checkpoint, rank, ranks), of_base)
        });
        let of_base = base.as_ref().map_or(Ok(()), |base| fill(sharded, base, Restore::Weights));
        let filled = of_base.and_then(|()| fill(sharded, &checkpoint, restore));
        (verifying.join().expect("verifying a checkpoint does not panic"), filled)
    });
    let (verified, of_base) = verified;
    // Report a damaged file or another optimizer before the load errors that follow from it.
    if let Loaded::Damaged(damage) = on_every_rank(world, verified)? {
        return Ok(Loaded::Damaged(damage));
    }
    if restore == Restore::Everything {
        agree(world, same_optimizer(sharded, &checkpoint))?;
    }
    // Damage of the base is an error: the checkpoints before this one have the same base.
    agree(world, of_base.map_err(|error| damaged_base(&checkpoint, error)))?;
    agree(world, filled)?;
    Ok(Loaded::Intact(checkpoint))
}

/// Returns an error if the checkpoint has the state of another optimizer. Without trained parameters there is no state.
fn same_optimizer(sharded: &TrainingState<'_>, checkpoint: &Checkpoint) -> Result<(), Failure> {
    let (was, is) = (checkpoint.state()?.optimizer, sharded.moments.kind());
    if was == is || sharded.fsdp.shards().next().is_none() {
        return Ok(());
    }
    Err(Failure::new(
        rundir::ErrorCode::TensorMismatch,
        format!("cannot continue from {}", checkpoint.dir),
        format!("its optimizer is {}, and the recipe has optimizer.kind = \"{}\"", was.name(), is.name()),
        format!(
            "set optimizer.kind = \"{}\", or start a new run from the weights alone: vidtui launch RECIPE --init {}",
            was.name(),
            checkpoint.dir
        ),
    ))
}

/// Returns this rank's value if every rank succeeded, otherwise the damage that a rank found. A collective.
fn on_every_rank<T>(world: &Group, read: Result<T, rundir::Error>) -> Result<Loaded<T>, Failure> {
    use rundir::Error::{Checksum, Incomplete};
    let (value, damage) = match read {
        Ok(value) => (Some(value), Ok(None)),
        Err(damage @ (Checksum { .. } | Incomplete { .. })) => (None, Ok(Some(Failure::from(damage)))),
        Err(other) => (None, Err(Failure::from(other))),
    };
    Ok(match agree(world, damage)?.into_iter().flatten().next() {
        Some(damage) => Loaded::Damaged(damage),
        None => Loaded::Intact(value.expect("no rank found damage, so this one has a value")),
    })
}

/// Verifies the checksums of this rank's share of the files. Each file is read by one rank.
fn verify(checkpoint: &Checkpoint, rank: usize, ranks: usize) -> Result<(), rundir::Error> {
    let mut share = checkpoint.manifest.files.iter().skip(rank).step_by(ranks);
    share.try_for_each(|file| checkpoint.verify_file(file))
}

/// Opens the base weights of a checkpoint that contains only adapters; `None` for other checkpoints.
fn open_base(checkpoint: &Checkpoint) -> Result<Option<Checkpoint>, Failure> {
    let Some(base) = &checkpoint.manifest.base else { return Ok(None) };
    let refuse = |why: String, fix: String| {
        let what = format!("cannot start from {}", checkpoint.dir);
        Failure::new(rundir::ErrorCode::TensorMismatch, what, why, fix)
    };
    let lacks = "it contains only adapters, and their base weights";
    let weights = Checkpoint::open(&base.path).map_err(|error| {
        let why = format!("{lacks} cannot be read: {}", Failure::from(error).why);
        refuse(why, format!("move the base weights back to {}, or create a link there", base.path))
    })?;
    let sum = weights.manifest_sum()?.xxh3;
    if sum != base.xxh3 {
        let why =
            format!("{lacks} have changed: the manifest of {} had the checksum {}, now {sum}", base.path, base.xxh3);
        return Err(refuse(why, format!("restore the original weights at {}", base.path)));
    }
    Ok(Some(weights))
}

/// Describes damage of the base weights of a checkpoint that contains only adapters.
fn damaged_base(checkpoint: &Checkpoint, error: rundir::Error) -> Failure {
    let Failure { code, what, why, .. } = Failure::from(error);
    let fix = "replace the folder of the base weights with an intact copy";
    Failure::new(
        code,
        format!("cannot start from {}", checkpoint.dir),
        format!("it contains only adapters, and their base weights are damaged: {what}: {why}"),
        fix,
    )
}

/// Fills the pieces of this rank from the tensors of a checkpoint.
fn fill(sharded: &TrainingState<'_>, checkpoint: &Checkpoint, restore: Restore) -> Result<(), Failure> {
    let tensors: HashMap<&str, &LogicalTensor> =
        checkpoint.manifest.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
    let mut files = Files { dir: &checkpoint.dir, open: BTreeMap::new(), buffer: Vec::new() };
    let mut pieces = weight_pieces(sharded);
    if restore == Restore::Everything {
        pieces.extend(moment_pieces(sharded));
        // If the checkpoint has no average, the average starts as a copy of the weights.
        if has_average(checkpoint) {
            pieces.extend(average_pieces(sharded));
        }
    }
    let refuse = |why: String| {
        Failure::new(
            rundir::ErrorCode::TensorMismatch,
            format!("cannot start from {}", checkpoint.dir),
            why,
            "start from a checkpoint of the same model and trainable parameters, or use its weights only",
        )
    };
    for piece in pieces {
        let average = (restore == Restore::Average).then(|| tensors.get(format!("{AVERAGE}{}", piece.name).as_str()));
        let Some(tensor) = average.flatten().or_else(|| tensors.get(piece.name.as_str())) else {
            let in_base = checkpoint.manifest.base.is_some() && !piece.adapter;
            if in_base || (piece.addable && restore == Restore::Weights) {
                continue;
            }
            return Err(refuse(format!("it has no tensor {}", piece.name)));
        };
        if tensor.shape != piece.shape {
            return Err(refuse(format!(
                "{} has shape {:?} in the checkpoint and {:?} in the recipe",
                piece.name, tensor.shape, piece.shape
            )));
        }
        if (tensor.dtype == Dtype::U8.to_string()) != piece.scales.is_some() {
            return Err(refuse(format!("{} has the dtype {} there and another here", piece.name, tensor.dtype)));
        }
        let mut read = |key: &str, slice: &Slice, begin, len| files.read(&slice.file, key, begin, len);
        if piece.scales.is_none() {
            copy_runs(&piece, tensor, &piece.values, |slice, begin, len| read(&slice.key, slice, begin, len))?;
            sharded.fsdp.release(&[&piece.values]).map_err(failed)?;
            continue;
        }
        // Each code is read with its scale, because another mesh has other blocks.
        let (codes, scales) = (piece.values.empty_like(), piece.values.to_kind(Kind::Float));
        copy_runs(&piece, tensor, &codes, |slice, begin, len| read(&slice.key, slice, begin, len))?;
        copy_runs(&piece, tensor, &scales, |slice, begin, len| {
            scales_of_elements(slice, begin, len, |begin, len| read(&scales_key(&slice.key), slice, begin, len))
        })?;
        tch::no_grad(|| sharded.moments.set_quantized(piece.of, piece.prefix, &codes, &scales));
        let stored: Vec<&Tensor> = std::iter::once(&piece.values).chain(&piece.scales).collect();
        sharded.fsdp.release(&stored).map_err(failed)?;
    }
    sharded.fsdp.frozen_changed();
    Ok(())
}

/// Copies the elements of a piece from the slices of its tensor. `read` returns some elements of a slice: their first and
/// their number.
fn copy_runs(
    piece: &Piece,
    tensor: &LogicalTensor,
    into: &Tensor,
    mut read: impl FnMut(&Slice, u64, u64) -> Result<Tensor, Failure>,
) -> Result<(), Failure> {
    for slice in &tensor.slices {
        // Elements have the same order in piece and slice, so one read spans the first to the last.
        let runs = piece.within.overlaps(piece.range(), &slice.within(&tensor.shape), slice.range());
        for runs in reads(runs) {
            let (Some(first), Some(last)) = (runs.first(), runs.last()) else { continue };
            let begin = first.there;
            let values = read(slice, begin, last.there + last.len - begin)?;
            for run in runs {
                let from = values.narrow(0, (run.there - begin) as i64, run.len as i64);
                tch::no_grad(|| into.narrow(0, run.here as i64, run.len as i64).copy_(&from));
            }
        }
    }
    Ok(())
}

/// The number of 8-bit codes that share a scale.
const BLOCK: u64 = c10d::adamw8::BLOCK as u64;

/// Returns a scale per code for the `len` codes of a slice from `begin` on.
fn scales_of_elements(
    slice: &Slice,
    begin: u64,
    len: u64,
    read: impl FnOnce(u64, u64) -> Result<Tensor, Failure>,
) -> Result<Tensor, Failure> {
    let first = slice.start + begin;
    let (block, place) = (first / BLOCK - slice.start / BLOCK, first % BLOCK);
    let scales = read(block, (place + len).div_ceil(BLOCK))?;
    Ok(scales.repeat_interleave_self_int(BLOCK as i64, 0, None).narrow(0, place as i64, len as i64))
}

/// Groups ranges into reads: a long range is read in parts, and the short ranges of many rows in one read.
fn reads(runs: Vec<Overlap>) -> Vec<Vec<Overlap>> {
    let [Overlap { here, there, len }] = runs[..] else { return vec![runs] };
    let part = |done| Overlap { here: here + done, there: there + done, len: AT_ONCE.min(len - done) };
    (0..len).step_by(AT_ONCE as usize).map(|done| vec![part(done)]).collect()
}

/// The files of a checkpoint that are open.
struct Files<'a> {
    dir: &'a Utf8Path,
    open: BTreeMap<String, (File, Header)>,
    buffer: Vec<u8>,
}

impl Files<'_> {
    /// Reads `len` elements of a tensor from `start` on.
    fn read(&mut self, name: &str, key: &str, start: u64, len: u64) -> Result<Tensor, Failure> {
        let path = self.dir.join(name);
        if !self.open.contains_key(name) {
            let header = Header::read(&path)?;
            let file =
                rundir::open_regular(&path).map_err(|source| weights::Error::Io { path: path.clone(), source })?;
            self.open.insert(name.to_owned(), (file, header));
        }
        let (file, header) = &self.open[name];
        let info = header.tensor(key)?;
        self.buffer.resize(len as usize * info.dtype.size(), 0);
        read_range(file, &path, info, start, len, &mut self.buffer)?;
        Ok(Tensor::from_data_size(&self.buffer, &[len as i64], kind(info.dtype)))
    }
}

/// Returns whether a checkpoint has an average of its weights.
pub fn has_average(checkpoint: &Checkpoint) -> bool {
    checkpoint.manifest.tensors.iter().any(|tensor| tensor.name.starts_with(AVERAGE))
}

//! Saves and loads sharded parameters as logical tensors.
//!
//! Each rank of the first replica writes the pieces that it owns; rank 0 writes the manifest with the place of every piece.
//! Loading looks up the pieces that this rank owns now, so a checkpoint can be loaded on any mesh.

use crate::data::kind;
use crate::ema::EmaWeights;
use crate::exchange::{agree, agree_on};
use crate::fault;
use crate::optim::{OptimizerState, StateTensor, StateValues};
use c10d::Group;
use c10d::cuda::{self, Event};
use camino::Utf8Path;
use recipe::{Mesh, ParamGroup, ParamSpec, Role};
use rundir::{
    Base, Checkpoint, Failure, FileSum, LogicalTensor, Manifest, Overlap, RunDir, RunId, SCHEMA, Slice, Staging,
    SummedFile, TensorBox, TrainState,
};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use sharding::flat::ParamKind;
use sharding::fsdp::{Fsdp, OwnedRange};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};
use weights::{Header, read_range};

/// The sharded state of training.
pub struct TrainingState<'a> {
    /// Parameters.
    pub fsdp: &'a Fsdp,
    /// Optimizer state.
    pub moments: &'a mut OptimizerState,
    /// The average of the trained weights, if there is one.
    pub ema: Option<&'a EmaWeights>,
    /// The parameter tables of the units.
    pub tables: &'a [Vec<ParamSpec>],
    /// The checkpoint that the frozen parameters come from. If it is set, a save contains only the trained parameters.
    pub base: Option<&'a Base>,
}

/// The identity of a checkpoint to save.
pub struct SaveInfo<'a> {
    /// The run.
    pub id: &'a RunId,
    /// The attempt.
    pub attempt: u32,
    /// The mesh.
    pub mesh: Mesh,
    /// The time, Unix seconds.
    pub saved_s: f64,
}

/// The parts of a checkpoint to restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restore {
    /// Parameters only: a new stage.
    Weights,
    /// Parameters, optimizer and the average of the weights.
    Everything,
    /// The average of the trained parameters in their place, if there is one: sampling.
    Average,
}

/// The prefix of the average of a trained tensor.
const AVERAGE: &str = "ema/";

/// Returns whether a checkpoint has an average of its weights.
pub fn has_average(checkpoint: &Checkpoint) -> bool {
    checkpoint.manifest.tensors.iter().any(|tensor| tensor.name.starts_with(AVERAGE))
}

/// This rank's piece of a tensor.
struct Piece {
    name: String,
    /// Whether the tensor may be missing in the initial weights.
    addable: bool,
    /// Whether it is a factor of an adapter, or its optimizer state.
    adapter: bool,
    kind: ParamKind,
    shape: Vec<usize>,
    /// The part of the tensor that this rank's shard group holds, as a box.
    within: TensorBox,
    /// The first element, counted in the box.
    start: i64,
    values: Tensor,
    /// The scales of the blocks, if the values are 8-bit codes.
    scales: Option<Tensor>,
    /// The parameter's unit and slot, and the prefix of optimizer state.
    of: (usize, usize),
    prefix: &'static str,
    /// Whether this rank saves the piece. Only the first rank of a TP group saves a replicated tensor.
    saved: bool,
}

impl Piece {
    /// The elements, counted in the box.
    fn range(&self) -> Range<u64> {
        self.start as u64..(self.start + self.values.size()[0]) as u64
    }

    /// Returns the tensors that a file has of the piece, by name.
    fn tensors(&self) -> impl Iterator<Item = (String, &Tensor)> {
        let scales = self.scales.iter().map(|scales| (scales_key(&self.name), scales));
        std::iter::once((self.name.clone(), &self.values)).chain(scales)
    }

    fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        std::iter::once(&mut self.values).chain(self.scales.as_mut())
    }
}

/// Returns the name, in its file, of the scales of codes.
fn scales_key(codes: &str) -> String {
    format!("{codes}.scale")
}

/// The files and tensors that one rank wrote.
#[derive(Debug, Default, Serialize, Deserialize)]
struct RankPart {
    files: Vec<FileSum>,
    tensors: Vec<LogicalTensor>,
}

/// The host memory that every save copies to. It is kept between saves, because allocating it would take longer than
/// the copy.
#[derive(Debug, Default)]
pub struct StagingMemory {
    ready: VecDeque<Tensor>,
    allocating: Option<JoinHandle<c10d::Result<VecDeque<Tensor>>>>,
}

impl StagingMemory {
    /// Allocates the memory in a thread, so that the first save is as fast as later ones.
    pub fn allocate_ahead(sharded: &TrainingState<'_>) -> Self {
        let device = sharded.fsdp.groups().device;
        let pieces = to_save(sharded).into_iter().flat_map(|(_, pieces)| pieces);
        let like: Vec<Tensor> = pieces.flat_map(|piece| std::iter::once(piece.values).chain(piece.scales)).collect();
        let make = move || {
            set_device(device)?;
            like.iter().map(host_like).collect()
        };
        StagingMemory { ready: VecDeque::new(), allocating: Some(std::thread::spawn(make)) }
    }

    /// Waits for the allocation.
    fn get(&mut self) -> c10d::Result<&mut VecDeque<Tensor>> {
        if let Some(allocating) = self.allocating.take() {
            let panicked = |_| {
                Err(c10d::Error::Torch {
                    doing: "allocate memory for saving".into(),
                    why: "the thread panicked".into(),
                })
            };
            self.ready = allocating.join().unwrap_or_else(panicked)?;
        }
        Ok(&mut self.ready)
    }
}

impl Drop for StagingMemory {
    /// Waits for the thread: a process that exits while a thread is in libtorch may crash.
    fn drop(&mut self) {
        if let Some(allocating) = self.allocating.take() {
            let _ = allocating.join();
        }
    }
}

/// Makes a device current in this thread.
fn set_device(device: Device) -> c10d::Result<()> {
    if let Device::Cuda(gpu) = device { cuda::set_device(gpu) } else { Ok(()) }
}

/// Tensors with fewer elements than this are processed by one thread of libtorch. More threads would slow down
/// training.
const ONE_THREAD: i64 = 16 * 1024;

/// Allocates host memory with the shape and dtype of a tensor. The memory is page-locked if the tensor is on a GPU.
fn host_like(values: &Tensor) -> c10d::Result<Tensor> {
    if values.device() != Device::Cpu {
        return cuda::pinned(values);
    }
    let make = || {
        let memory = values.f_empty_like()?;
        // Linux allocates a page when it is first written.
        memory.f_split(ONE_THREAD, 0)?.into_iter().try_for_each(|mut part| part.f_zero_().map(drop))?;
        Ok(memory)
    };
    make().map_err(|error: tch::TchError| c10d::Error::Torch {
        doing: format!("allocate memory for {:?}", values.size()),
        why: error.to_string(),
    })
}

/// Copies a tensor to the next buffer. Every save must pass the tensors in the same order.
///
/// A copy from a GPU is asynchronous.
fn copy(values: &Tensor, memory: &mut VecDeque<Tensor>) -> c10d::Result<Tensor> {
    let fits = |t: &Tensor| (t.size(), t.kind()) == (values.size(), values.kind());
    let to = memory.pop_front().filter(fits).map_or_else(|| host_like(values), Ok)?;
    if values.device() == Device::Cpu {
        let parts = |of: &Tensor| of.split(ONE_THREAD, 0).into_iter();
        tch::no_grad(|| parts(&to).zip(parts(values)).for_each(|(mut to, from)| to.copy_(&from)));
    } else {
        cuda::copy(&to, values)?;
    }
    Ok(to)
}

/// A checkpoint that is being copied and written while training continues.
pub struct PendingSave {
    /// The training state that it saves.
    pub state: TrainState,
    base: Option<Base>,
    staging: Staging,
    thread: JoinHandle<(Result<RankPart, Failure>, StagingMemory)>,
}

impl PendingSave {
    /// Returns whether this rank has written its part.
    pub fn is_done(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Estimates the size of a checkpoint: tensor values, headers and manifest entries. Every rank computes the same
/// number.
pub fn bytes(sharded: &TrainingState<'_>) -> u64 {
    let frozen = if sharded.base.is_some() { 0 } else { sharded.fsdp.bytes(ParamKind::Frozen) };
    let metadata = sharded.tables.iter().flatten().count() as u64 * METADATA_BYTES;
    let trained = sharded.fsdp.bytes(ParamKind::Trained);
    let average = if sharded.ema.is_some() { trained } else { 0 };
    trained + sharded.moments.saved_bytes + average + frozen + metadata
}

/// Bytes of headers and manifest for a tensor and its two moments, if it is split over a few ranks.
const METADATA_BYTES: u64 = 1500;

/// Returns an error if the disk has too little space for a checkpoint.
fn check_space(dir: &Utf8Path, needed: u64) -> Result<(), Failure> {
    let parent = dir.parent().unwrap_or(dir);
    // If the free space is unknown, the write reports a full disk.
    let Ok(disk) = nix::sys::statvfs::statvfs(parent.as_std_path()) else { return Ok(()) };
    let free = disk.blocks_available() * disk.fragment_size();
    if free >= needed {
        return Ok(());
    }
    let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    Err(Failure::new(
        rundir::ErrorCode::DiskFull,
        format!("cannot save {dir}"),
        format!("it needs {}, but its disk has only {} free", mb(needed), mb(free)),
        "free some space on that disk; earlier checkpoints are untouched",
    ))
}

/// Starts a thread that copies this rank's part of a checkpoint and writes the copy. A collective that does not wait
/// for the copy: the next forward and backward passes only read the weights, and [`OptimizerState::step`] waits until the
/// copy is complete.
///
/// # Errors
/// The staging folder cannot be made, or the disk has too little space.
pub fn begin(
    sharded: &mut TrainingState<'_>,
    run: &RunDir,
    state: TrainState,
    spare: &mut StagingMemory,
) -> Result<PendingSave, Failure> {
    let groups = sharded.fsdp.groups();
    let staging = Staging::new(run, state.step);
    let first = groups.world.rank() == 0;
    fault::reached("asked", state.step);
    let prepare = || {
        staging.prepare()?;
        check_space(&staging.dir(), bytes(sharded)).inspect_err(|_| drop(staging.abandon()))
    };
    agree(&groups.world, if first { prepare() } else { Ok(()) })?;
    fault::reached("prepared", state.step);
    let (files, device, mut spare) = (to_save(sharded), groups.device, std::mem::take(spare));
    let (dir, step) = (staging.dir(), state.step);
    let snapshot = sharded.moments.begin_snapshot();
    let thread = std::thread::spawn(move || {
        let copied = Copies::of(files, device, &mut spare);
        // On a GPU the copies may still run. The optimizer's kernels run after them, because all threads share one stream.
        drop(snapshot);
        fault::reached("copied", step);
        // A copy error is reported when the write ends, where all ranks agree on the result.
        let copies = copied.and_then(Copies::wait);
        let files = copies.map_err(|error| {
            let fix = "free some memory of the node; earlier checkpoints are untouched";
            Failure::new(rundir::ErrorCode::SaveFailed, format!("cannot save {dir}"), error.to_string(), fix)
        });
        match files {
            Ok(files) => {
                let written = write_part(&files, &dir, step);
                let pieces = files.into_iter().flat_map(|(_, pieces)| pieces);
                let memory = pieces.flat_map(|piece| std::iter::once(piece.values).chain(piece.scales));
                (written, StagingMemory { ready: memory.collect(), allocating: None })
            }
            Err(failure) => (Err(failure), StagingMemory::default()),
        }
    });
    Ok(PendingSave { state, base: sharded.base.cloned(), staging, thread })
}

/// The files that a rank writes, with their tensors.
type Files = Vec<(String, Vec<Piece>)>;

/// Returns what this rank saves, by file. Only the first replica saves.
fn to_save(sharded: &TrainingState<'_>) -> Files {
    let groups = sharded.fsdp.groups();
    if groups.replicate.rank() > 0 {
        return Vec::new();
    }
    let rank = groups.world.rank();
    let mut files = vec![
        (format!("rank-{rank:05}.safetensors"), weight_pieces(sharded)),
        (format!("optim-{rank:05}.safetensors"), moment_pieces(sharded)),
        (format!("ema-{rank:05}.safetensors"), average_pieces(sharded)),
    ];
    let is_saved = |piece: &Piece| piece.saved && (sharded.base.is_none() || piece.kind == ParamKind::Trained);
    files.iter_mut().for_each(|(_, pieces)| pieces.retain(is_saved));
    // A frozen model has no optimizer state, and a rank of a very small model may own nothing.
    files.retain(|(_, pieces)| !pieces.is_empty());
    files
}

/// Copies of this rank's tensors. Copies from a GPU may still be in progress.
struct Copies {
    files: Files,
    /// Recorded after the last copy from a GPU.
    done: Option<Event>,
}

impl Copies {
    fn of(mut files: Files, device: Device, spare: &mut StagingMemory) -> c10d::Result<Self> {
        set_device(device)?;
        let memory = spare.get()?;
        for tensor in files.iter_mut().flat_map(|(_, pieces)| pieces).flat_map(Piece::tensors_mut) {
            *tensor = copy(tensor, memory)?;
        }
        Ok(Copies { files, done: (device != Device::Cpu).then(Event::record).transpose()? })
    }

    /// Waits until every copy is complete.
    fn wait(self) -> c10d::Result<Files> {
        self.done.map_or(Ok(()), |done| done.wait())?;
        Ok(self.files)
    }
}

/// Waits until all ranks have written their parts, and publishes the checkpoint. Returns its size in bytes. A collective.
///
/// # Errors
/// The first failure of any rank. The staging folder is then removed; earlier checkpoints are untouched.
pub fn finish(
    fsdp: &Fsdp,
    writing: PendingSave,
    saved: &SaveInfo<'_>,
    spare: &mut StagingMemory,
) -> Result<u64, Failure> {
    let world = &fsdp.groups().world;
    let first = world.rank() == 0;
    let PendingSave { state, base, staging, thread } = writing;
    let (written, memory) = thread.join().expect("writing a checkpoint does not panic");
    *spare = memory;
    let committed = agree(world, written).and_then(|parts| {
        fault::reached("written", state.step);
        let commit = || {
            let bytes = staging.seal(&state, Manifest { base, ..merge(parts, saved, &state) })?;
            fault::reached("sealed", state.step);
            staging.publish()?;
            Ok(bytes)
        };
        agree(world, if first { commit() } else { Ok(0) })
    });
    fault::reached("published", state.step);
    match committed {
        Ok(bytes) => Ok(bytes[0]),
        Err(failure) => {
            if first {
                // If the folder cannot be removed, the next save clears it.
                let _ = staging.abandon();
            }
            Err(failure)
        }
    }
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
/// A file cannot be read, this rank cannot open a file that rank 0 can open, or a tensor is missing or has another
/// shape.
pub fn load(sharded: &mut TrainingState<'_>, dir: &Utf8Path, restore: Restore) -> Result<Loaded<Checkpoint>, Failure> {
    sharded.moments.wait_for_snapshot();
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
    // If loading failed because a file is damaged or of another optimizer, report that.
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

/// Refuses to continue with another optimizer than the checkpoint's. Without trained parameters there is no state.
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

/// Opens the weights that a checkpoint of adapters was trained on, if it is one.
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

/// Describes damage of the weights that adapters were trained on.
fn damaged_base(checkpoint: &Checkpoint, error: rundir::Error) -> Failure {
    let Failure { code, what, why, .. } = Failure::from(error);
    let fix = "delete the folder of the weights, and copy it again from a machine or a backup that has it whole";
    Failure::new(
        code,
        format!("cannot start from {}", checkpoint.dir),
        format!("it holds adapters alone, and of the weights that they were trained on, {what}: {why}"),
        fix,
    )
}

fn fill(sharded: &TrainingState<'_>, checkpoint: &Checkpoint, restore: Restore) -> Result<(), Failure> {
    let tensors: HashMap<&str, &LogicalTensor> =
        checkpoint.manifest.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
    let (mut files, mut buffer) = (BTreeMap::new(), Vec::new());
    let mut pieces = weight_pieces(sharded);
    if restore == Restore::Everything {
        pieces.extend(moment_pieces(sharded));
        // An average that the checkpoint lacks begins with the weights.
        if has_average(checkpoint) {
            pieces.extend(average_pieces(sharded));
        }
    }
    for piece in pieces {
        let refuse = |why: String| {
            Failure::new(
                rundir::ErrorCode::TensorMismatch,
                format!("cannot start from {}", checkpoint.dir),
                why,
                "start from a checkpoint of the same model and trainable parameters, or use its weights only",
            )
        };
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
        let is_quantized = tensor.dtype == Dtype::U8.to_string();
        if is_quantized != piece.scales.is_some() {
            return Err(refuse(format!("{} has the dtype {} there and another here", piece.name, tensor.dtype)));
        }
        // Codes are read with a scale each, because the blocks of another mesh are others.
        let into = match is_quantized {
            true => [piece.values.empty_like(), piece.values.to_kind(Kind::Float)],
            false => [piece.values.shallow_clone(), Tensor::new()],
        };
        for slice in &tensor.slices {
            // Elements have the same order in piece and slice, so one read spans the first to the last.
            let runs = piece.within.overlaps(piece.range(), &slice.within(&tensor.shape), slice.range());
            for runs in reads(runs) {
                let (Some(first), Some(last)) = (runs.first(), runs.last()) else { continue };
                let (begin, end) = (first.there, last.there + last.len);
                let mut read = |key: &str, begin, len| {
                    read_slice(&checkpoint.dir, &slice.file, key, begin, len, &mut files, &mut buffer)
                };
                let values = read(&slice.key, begin, end - begin)?;
                let scales = match is_quantized {
                    true => Some(scales_of_elements(slice, begin, end - begin, |begin, len| {
                        read(&scales_key(&slice.key), begin, len)
                    })?),
                    false => None,
                };
                for run in runs {
                    let cut = |from: &Tensor| from.narrow(0, (run.there - begin) as i64, run.len as i64);
                    let place = |into: &Tensor| into.narrow(0, run.here as i64, run.len as i64);
                    tch::no_grad(|| {
                        place(&into[0]).copy_(&cut(&values));
                        if let Some(scales) = &scales {
                            place(&into[1]).copy_(&cut(scales));
                        }
                    });
                }
            }
        }
        if is_quantized {
            let [codes, scales] = into;
            tch::no_grad(|| sharded.moments.set_quantized(piece.of, piece.prefix, &codes, &scales));
        }
    }
    Ok(())
}

/// Elements of a block of codes.
const BLOCK: u64 = c10d::adamw8::BLOCK as u64;

/// Returns the scale of each of `len` codes of a slice from `begin` on.
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

/// The number of elements that are read or written at a time. They fit in the CPU cache. For 32768 elements or more,
/// libtorch would copy with several threads, which would spin on the cores that compute checksums.
const AT_ONCE: u64 = 16 * 1024;

/// Groups ranges into reads: a long range is read in parts, and the short ranges of many rows in one read.
fn reads(runs: Vec<Overlap>) -> Vec<Vec<Overlap>> {
    let [Overlap { here, there, len }] = runs[..] else { return vec![runs] };
    let part = |done| Overlap { here: here + done, there: there + done, len: AT_ONCE.min(len - done) };
    (0..len).step_by(AT_ONCE as usize).map(|done| vec![part(done)]).collect()
}

fn read_slice(
    dir: &Utf8Path,
    name: &str,
    key: &str,
    start: u64,
    len: u64,
    files: &mut BTreeMap<String, (File, Header)>,
    buffer: &mut Vec<u8>,
) -> Result<Tensor, Failure> {
    let path = dir.join(name);
    if !files.contains_key(name) {
        let header = Header::read(&path)?;
        let file = File::open(&path).map_err(|source| weights::Error::Io { path: path.clone(), source })?;
        files.insert(name.to_owned(), (file, header));
    }
    let (file, header) = &files[name];
    let info = header.tensor(key)?;
    buffer.resize(len as usize * info.dtype.size(), 0);
    read_range(file, &path, info, start, len, buffer)?;
    Ok(Tensor::from_data_size(buffer, &[len as i64], kind(info.dtype)))
}

fn write_part(files: &[(String, Vec<Piece>)], dir: &Utf8Path, step: u64) -> Result<RankPart, Failure> {
    let mut part = RankPart::default();
    for (file, pieces) in files {
        let path = dir.join(file);
        let written = write_tensors(&path, pieces).map_err(|error| {
            Failure::new(
                rundir::ErrorCode::SaveFailed,
                format!("cannot save {path}"),
                error.to_string(),
                format!("free some space on the disk that holds {dir}; earlier checkpoints are untouched"),
            )
        })?;
        fault::reached("half-written", step);
        part.files.push(written);
        part.tensors.extend(pieces.iter().map(|piece| LogicalTensor {
            dtype: dtype(piece.values.kind()).to_string(),
            slices: vec![Slice {
                file: file.clone(),
                key: piece.name.clone(),
                start: piece.start as u64,
                len: piece.values.size()[0] as u64,
                within: (piece.within.size != piece.shape).then(|| piece.within.clone()),
            }],
            shape: piece.shape.clone(),
            name: piece.name.clone(),
        }));
    }
    Ok(part)
}

/// Writes pieces as the tensors of a new safetensors file and computes its checksum in the same pass. The safetensors
/// crate cannot do both.
fn write_tensors(path: &Utf8Path, pieces: &[Piece]) -> io::Result<FileSum> {
    let mut tensors: Vec<(String, &Tensor)> = pieces.iter().flat_map(Piece::tensors).collect();
    // Wide elements first, so that all tensors are aligned.
    let size = |tensor: &Tensor| tensor.kind().elt_size_in_bytes();
    tensors.sort_by(|a, b| size(b.1).cmp(&size(a.1)).then_with(|| a.0.cmp(&b.0)));
    let mut end = 0;
    let describe = |(name, tensor): &(String, &Tensor)| {
        let start = end;
        end += tensor.numel() * size(tensor);
        let info = TensorInfo { dtype: dtype(tensor.kind()), shape: vec![tensor.numel()], data_offsets: (start, end) };
        (name.clone(), info)
    };
    let header = Metadata::new(None, tensors.iter().map(describe).collect()).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = SummedFile::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    let mut buffer = Vec::new();
    for (_, tensor) in tensors {
        for part in tensor.split(AT_ONCE as i64, 0) {
            buffer.resize(part.numel() * size(tensor), 0);
            part.copy_data_u8(&mut buffer, part.numel());
            file.write_all(&buffer)?;
        }
    }
    file.finish()
}

/// Merges the parts of all ranks into one manifest. The slices of a tensor are in the order of its elements.
fn merge(parts: Vec<RankPart>, saved: &SaveInfo<'_>, state: &TrainState) -> Manifest {
    let mut files = Vec::new();
    let mut tensors: BTreeMap<String, LogicalTensor> = BTreeMap::new();
    for part in parts {
        files.extend(part.files);
        for tensor in part.tensors {
            match tensors.get_mut(&tensor.name) {
                Some(known) => known.slices.extend(tensor.slices),
                None => drop(tensors.insert(tensor.name.clone(), tensor)),
            }
        }
    }
    let mut tensors: Vec<LogicalTensor> = tensors.into_values().collect();
    for tensor in &mut tensors {
        tensor.slices.sort_by(|a, b| (&a.within, a.start).cmp(&(&b.within, b.start)));
    }
    let params = tensors.iter().filter(|t| !t.name.contains('/')).filter_map(LogicalTensor::elements).sum();
    Manifest {
        format: SCHEMA,
        run: saved.id.clone(),
        attempt: saved.attempt,
        step: state.step,
        saved_s: saved.saved_s,
        params,
        mesh: saved.mesh,
        base: None,
        files,
        tensors,
    }
}

fn weight_pieces(sharded: &TrainingState<'_>) -> Vec<Piece> {
    let piece = |owned: OwnedRange| {
        let spec = &sharded.tables[owned.unit][owned.range.slot];
        let addable = spec.group == ParamGroup::Ttt || spec.role == Role::Adapter;
        Piece { addable, ..piece(sharded, &owned, "", owned.values.shallow_clone()) }
    };
    sharded.fsdp.owned().into_iter().map(piece).collect()
}

/// Returns the pieces of the optimizer's state. State of whole tensors is loaded by every rank, and saved by one.
fn moment_pieces(sharded: &TrainingState<'_>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for owned in sharded.fsdp.owned().into_iter().filter(|o| o.range.kind == ParamKind::Trained) {
        for StateTensor { prefix, values } in sharded.moments.of(&owned) {
            pieces.push(match values {
                StateValues::Elements(values) => piece(sharded, &owned, prefix, values),
                StateValues::Quantized { codes, scales } => {
                    Piece { scales: Some(scales), ..piece(sharded, &owned, prefix, codes) }
                }
                StateValues::Whole { .. } => unreachable!("state of whole tensors has no range"),
            });
        }
    }
    let groups = sharded.fsdp.groups();
    let saved = groups.shard.rank() == 0 && groups.tp.rank() == 0;
    for (unit, slot, StateTensor { prefix, values }) in sharded.moments.of_whole_tensors() {
        let StateValues::Whole { shape, values } = values else { continue };
        let spec = &sharded.tables[unit][slot];
        pieces.push(Piece {
            name: format!("{prefix}{}", spec.name),
            addable: false,
            adapter: spec.role == Role::Adapter,
            kind: ParamKind::Trained,
            within: TensorBox::whole(&shape),
            shape,
            start: 0,
            values,
            scales: None,
            of: (unit, slot),
            prefix,
            saved,
        });
    }
    pieces
}

fn average_pieces(sharded: &TrainingState<'_>) -> Vec<Piece> {
    let Some(ema) = sharded.ema else { return Vec::new() };
    let trained = sharded.fsdp.owned().into_iter().filter(|owned| owned.range.kind == ParamKind::Trained);
    let piece = |owned: OwnedRange| {
        let shard = ema.of(owned.unit).expect("a trained shard has an average");
        let values = shard.narrow(0, owned.range.shard_start, owned.range.len);
        piece(sharded, &owned, AVERAGE, values)
    };
    trained.map(piece).collect()
}

/// Describes this rank's piece of a tensor. A `prefix` names optimizer state of the same shape.
fn piece(sharded: &TrainingState<'_>, owned: &OwnedRange, prefix: &'static str, values: Tensor) -> Piece {
    let spec = &sharded.tables[owned.unit][owned.range.slot];
    let tp = &sharded.fsdp.groups().tp;
    let (offset, size) = spec.part(tp.rank(), tp.size());
    Piece {
        name: format!("{prefix}{}", spec.name),
        addable: false,
        adapter: spec.role == Role::Adapter,
        kind: owned.range.kind,
        shape: spec.shape.clone(),
        within: TensorBox { offset, size },
        start: owned.range.start,
        values,
        scales: None,
        of: (owned.unit, owned.range.slot),
        prefix,
        saved: spec.is_split() || tp.rank() == 0,
    }
}

fn dtype(kind: Kind) -> Dtype {
    match kind {
        Kind::BFloat16 => Dtype::BF16,
        Kind::Uint8 => Dtype::U8,
        _ => Dtype::F32,
    }
}

#[cfg(test)]
mod tests;

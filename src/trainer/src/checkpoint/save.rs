//! Saving: copies the pieces of this rank while training continues, writes them, and publishes the checkpoint.

use super::TrainingState;
use super::pieces::{AT_ONCE, Piece, average_pieces, moment_pieces, weight_pieces};
use crate::device::set_current;
use crate::exchange::agree;
use crate::fault;
use crate::torch_failure::failed;
use c10d::cuda::{self, CopyStream, Event};
use camino::Utf8Path;
use recipe::Mesh;
use rundir::{
    BaseWeights, CheckpointManifest, Error, ErrorCode, Failure, FileSum, LogicalTensor, RunDir, RunId, SCHEMA, Slice,
    Staging, SummedFile, TrainState,
};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use sharding::flat::ParamKind;
use sharding::fsdp::Fsdp;
use sharding::offload::BackingStore;
use sharding::slab::{self, HostMemory};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread::JoinHandle;
use tch::{Device, Kind, Tensor};

/// The files and tensors that one rank wrote.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RankPart {
    files: Vec<FileSum>,
    pub(super) tensors: Vec<LogicalTensor>,
}

/// The host memory that every save copies to: tensors in the order of the pieces, in few large chunks. A run keeps it between saves,
/// because allocating it takes longer than the copy.
#[derive(Debug, Default)]
pub struct StagingMemory {
    pub(super) ready: Vec<Tensor>,
    pub(super) allocating: Option<JoinHandle<c10d::Result<Vec<Tensor>>>>,
}

impl StagingMemory {
    /// Allocates the memory in a thread, so that the first save is as fast as later ones.
    pub fn allocate_ahead(sharded: &TrainingState<'_>) -> Self {
        let device = sharded.fsdp.groups().device;
        let pieces = to_save(sharded).into_iter().flat_map(|(_, pieces)| pieces);
        let like: Vec<Tensor> = pieces.flat_map(|piece| std::iter::once(piece.values).chain(piece.scales)).collect();
        let store = store_of(sharded.fsdp);
        let make = move || {
            set_current(device)?;
            host_like(&like.iter().collect::<Vec<_>>(), device, store.as_deref())
        };
        StagingMemory { ready: Vec::new(), allocating: Some(std::thread::spawn(make)) }
    }

    /// Waits for the allocation.
    pub(super) fn get(&mut self) -> c10d::Result<&mut Vec<Tensor>> {
        if let Some(allocating) = self.allocating.take() {
            let panicked = |_| Err(c10d::Error::other("allocate memory for saving", "the thread panicked"));
            self.ready = allocating.join().unwrap_or_else(panicked)?;
        }
        Ok(&mut self.ready)
    }

    /// Returns memory for copies of these tensors.
    fn take(
        &mut self,
        like: &[&Tensor],
        device: Device,
        store: Option<&dyn BackingStore>,
    ) -> c10d::Result<Vec<Tensor>> {
        let ready = std::mem::take(self.get()?);
        let fits = |(to, from): (&Tensor, &&Tensor)| (to.size(), to.kind()) == (from.size(), from.kind());
        if ready.len() == like.len() && ready.iter().zip(like).all(fits) {
            return Ok(ready);
        }
        drop(ready);
        host_like(like, device, store)
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

/// Tensors with fewer elements than this are processed by one thread of libtorch. More threads would slow down
/// training.
const ONE_THREAD: i64 = 16 * 1024;

/// Returns the backing store of swapped and offloaded tensors, if there is one.
fn store_of(fsdp: &Fsdp) -> Option<Arc<dyn BackingStore>> {
    fsdp.offload().map(|offload| Arc::clone(offload.store()))
}

fn release(store: Option<&dyn BackingStore>, tensors: &[&Tensor]) -> c10d::Result<()> {
    store.map_or(Ok(()), |store| store.release(tensors))
}

/// Allocates host memory with the shapes and dtypes of tensors. The memory is page-locked if the rank is on a GPU. For a tensor that the
/// backing store keeps in a file, the memory is another file.
fn host_like(like: &[&Tensor], device: Device, store: Option<&dyn BackingStore>) -> c10d::Result<Vec<Tensor>> {
    let is_file = |tensor: &Tensor| store.is_some_and(|store| store.releases(tensor));
    let of_memory = like.iter().filter(|tensor| !is_file(tensor)).map(|tensor| (tensor.size(), tensor.kind()));
    let mut memory = slab::allocate(HostMemory::beside(device), &of_memory.collect::<Vec<_>>())?.into_iter();
    let make = |tensor: &&Tensor| -> c10d::Result<Tensor> {
        if let Some(store) = store.filter(|_| is_file(tensor)) {
            return store.zeros(&tensor.size(), tensor.kind());
        }
        let memory = memory.next().expect("every tensor has a place");
        if device == Device::Cpu {
            // Linux allocates a page when it is first written.
            for mut part in memory.f_split(ONE_THREAD, 0)? {
                let _ = part.f_zero_()?;
            }
        }
        Ok(memory)
    };
    like.iter().map(make).collect()
}

/// Copies a tensor to host memory. A copy from a GPU is complete after the returned event.
fn copy(values: &Tensor, to: &Tensor, store: Option<&dyn BackingStore>) -> c10d::Result<Option<Event>> {
    if values.device() != Device::Cpu {
        return cuda::copy_beside(to, values, CopyStream::Save).map(Some);
    }
    let parts = |of: &Tensor| of.split(ONE_THREAD, 0).into_iter();
    tch::no_grad(|| parts(to).zip(parts(values)).for_each(|(mut to, from)| to.copy_(&from)));
    release(store, &[to, values])?;
    Ok(None)
}

/// The identity of a checkpoint to save.
pub struct SaveInfo<'a> {
    /// The run that saves.
    pub id: &'a RunId,
    /// The number of the attempt that saves.
    pub attempt: u32,
    /// The mesh of the attempt.
    pub mesh: Mesh,
    /// The time of the save, Unix seconds.
    pub saved_s: f64,
}

/// A checkpoint that is being copied and written while training continues.
pub struct PendingSave {
    /// The training state that it saves.
    pub state: TrainState,
    base: Option<BaseWeights>,
    staging: Staging,
    pub(super) thread: JoinHandle<(Result<RankPart, Failure>, StagingMemory)>,
}

impl PendingSave {
    /// Returns whether this rank has written its part.
    pub fn is_done(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Estimates the size of a checkpoint: tensor values, headers and manifest entries. Every rank computes the same
/// number.
pub(super) fn bytes(sharded: &TrainingState<'_>) -> u64 {
    let frozen = if sharded.base.is_some() { 0 } else { sharded.fsdp.bytes(ParamKind::Frozen) };
    let metadata = sharded.tables.iter().flatten().count() as u64 * METADATA_BYTES;
    let trained = sharded.fsdp.bytes(ParamKind::Trained);
    let average = if sharded.ema.is_some() { trained } else { 0 };
    trained + sharded.moments.saved_bytes + average + frozen + metadata
}

/// The estimated bytes of headers and manifest for a tensor and its two moments, split over a few ranks.
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
/// for the copy: the next forward and backward passes only read the weights, and [`step`](crate::optim::OptimizerState::step) waits until the
/// copy is complete.
///
/// # Errors
/// The staging folder cannot be created, or the disk has too little space.
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
    let store = store_of(sharded.fsdp);
    let snapshot = sharded.moments.begin_snapshot().map_err(failed)?;
    let thread = std::thread::spawn(move || {
        let store = store.as_deref();
        let copied = Copies::of(files, device, &mut spare, store);
        snapshot.end(copied.as_ref().ok().and_then(|copies| copies.done.clone()));
        fault::reached("copied", step);
        // A copy error is reported when the write ends, where all ranks agree on the result.
        let copies = copied.and_then(Copies::wait);
        let files = copies.map_err(|error| {
            let fix = "free some memory of the node; earlier checkpoints are untouched";
            Failure::new(rundir::ErrorCode::SaveFailed, format!("cannot save {dir}"), error.to_string(), fix)
        });
        match files {
            Ok(files) => {
                let written = write_part(&files, &dir, step, store);
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
pub(super) type Files = Vec<(String, Vec<Piece>)>;

/// Returns the pieces that this rank saves, by file. Only the first replica saves.
pub(super) fn to_save(sharded: &TrainingState<'_>) -> Files {
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
pub(super) struct Copies {
    files: Files,
    /// The event after the last copy from a GPU; `None` on the CPU.
    done: Option<Arc<Event>>,
}

impl Copies {
    pub(super) fn of(
        mut files: Files,
        device: Device,
        spare: &mut StagingMemory,
        store: Option<&dyn BackingStore>,
    ) -> c10d::Result<Self> {
        set_current(device)?;
        let mut tensors: Vec<&mut Tensor> =
            files.iter_mut().flat_map(|(_, pieces)| pieces).flat_map(Piece::tensors_mut).collect();
        let memory = spare.take(&tensors.iter().map(|tensor| &**tensor).collect::<Vec<_>>(), device, store)?;
        let mut done = None;
        for (tensor, to) in tensors.iter_mut().zip(memory) {
            // The copies of a save are in order: the last event follows all of them.
            done = copy(tensor, &to, store)?.or(done);
            **tensor = to;
        }
        Ok(Copies { files, done: done.map(Arc::new) })
    }

    /// Waits until every copy is complete.
    pub(super) fn wait(self) -> c10d::Result<Files> {
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
            let bytes = staging.seal(&state, CheckpointManifest { base, ..merge(parts, saved, &state) })?;
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

fn write_part(
    files: &[(String, Vec<Piece>)],
    dir: &Utf8Path,
    step: u64,
    store: Option<&dyn BackingStore>,
) -> Result<RankPart, Failure> {
    let mut part = RankPart::default();
    for (file, pieces) in files {
        let path = dir.join(file);
        let written = write_tensors(&path, pieces, store).map_err(|source| {
            let error = Failure::from(Error::io("save", &path, source));
            let code = match error.code {
                ErrorCode::DiskFull | ErrorCode::FileTooLarge => error.code,
                _ => ErrorCode::SaveFailed,
            };
            Failure { code, fix: format!("{}; earlier checkpoints are untouched", error.fix), ..error }
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
fn write_tensors(path: &Utf8Path, pieces: &[Piece], store: Option<&dyn BackingStore>) -> io::Result<FileSum> {
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
        release(store, &[tensor]).map_err(io::Error::other)?;
    }
    file.finish()
}

/// Merges the parts of all ranks into one manifest. The slices of a tensor are in the order of its elements.
fn merge(parts: Vec<RankPart>, saved: &SaveInfo<'_>, state: &TrainState) -> CheckpointManifest {
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
    CheckpointManifest {
        format: SCHEMA,
        run: saved.id.clone(),
        attempt: saved.attempt,
        step: state.step,
        saved_s: saved.saved_s,
        params,
        mesh: saved.mesh,
        base: None,
        same_as: None,
        files,
        tensors,
    }
}

fn dtype(kind: Kind) -> Dtype {
    match kind {
        Kind::BFloat16 => Dtype::BF16,
        Kind::Uint8 => Dtype::U8,
        _ => Dtype::F32,
    }
}

//! Offloading: keeps tensors outside of device memory, in a backing store, and copies them to and from the device.
//!
//! A [`BackingStore`] allocates tensors, and [`Offload`] copies them while the device computes: on the CPU in a
//! separate thread, on a GPU on a second stream. Copies run in the order in which they were started.

use crate::slab::{HostMemory, bytes_of, view};
use c10d::cuda::{self, CopyStream, Event};
use c10d::mapped::{Mapped, copy_in_thread};
use c10d::waits::{self, Place};
use c10d::{Error, Result};
use recipe::{ALIGNMENT, Slab};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tch::{Device, Kind, Tensor};

/// Memory outside of the device: host memory or files.
pub trait BackingStore: Send + Sync {
    /// Allocates a tensor of zeros on the CPU.
    ///
    /// # Errors
    /// The memory is exhausted.
    fn zeros(&self, size: &[i64], kind: Kind) -> Result<Tensor>;

    /// Frees a tensor that [`BackingStore::zeros`] allocated.
    fn free(&self, tensor: Tensor) {
        drop(tensor);
    }

    /// Returns whether [`BackingStore::release`] can release the memory of a tensor.
    fn releases(&self, _tensor: &Tensor) -> bool {
        false
    }

    /// Releases the pages of tensors, or of the tensors that they are views of, if the store also has them in files.
    /// Their values do not change. Ignores tensors that are not in the store.
    ///
    /// # Errors
    /// The operating system cannot release the pages.
    fn release(&self, _tensors: &[&Tensor]) -> Result<()> {
        Ok(())
    }
}

/// Host memory, in chunks that are allocated at the start, because libtorch rounds each request of page-locked memory
/// up to a power of two. A tensor that fits in no free region of the chunks gets its own allocation.
#[derive(Debug)]
pub struct HostStore {
    memory: HostMemory,
    arena: Mutex<Arena>,
}

/// Chunks, and their free and used regions.
#[derive(Debug)]
struct Arena {
    /// Flat tensors of bytes.
    chunks: Vec<Tensor>,
    free: Vec<Region>,
    /// The regions in use, by the address of their tensor.
    used: BTreeMap<usize, Region>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Region {
    chunk: usize,
    start: i64,
    len: i64,
}

impl HostStore {
    /// Allocates chunks with room for tensors of these sizes in bytes.
    ///
    /// # Errors
    /// Host memory is exhausted.
    pub fn with_places(memory: HostMemory, sizes: &[u64]) -> Result<Self> {
        let slab = Slab::of(sizes);
        let free = sizes.iter().zip(&slab.places).filter(|(size, _)| **size > 0).map(|(size, place)| Region {
            chunk: place.chunk,
            start: place.start as i64,
            len: size.next_multiple_of(ALIGNMENT) as i64,
        });
        let arena = Arena { chunks: memory.chunks(&slab)?, free: free.collect(), used: BTreeMap::new() };
        Ok(HostStore { memory, arena: Mutex::new(arena) })
    }

    fn arena(&self) -> MutexGuard<'_, Arena> {
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arena {
    /// Takes the smallest free region with enough bytes. The rest of it stays free.
    fn take(&mut self, bytes: i64) -> Option<Region> {
        let fits = self.free.iter().enumerate().filter(|(_, region)| region.len >= bytes);
        let (at, _) = fits.min_by_key(|(_, region)| region.len)?;
        let region = self.free.swap_remove(at);
        let next = (bytes as u64).next_multiple_of(ALIGNMENT) as i64;
        if region.len > next {
            self.free.push(Region { start: region.start + next, len: region.len - next, ..region });
        }
        Some(Region { len: next, ..region })
    }
}

impl BackingStore for HostStore {
    fn zeros(&self, size: &[i64], kind: Kind) -> Result<Tensor> {
        let bytes = bytes_of(size, kind);
        let mut arena = self.arena();
        let mut tensor = match (bytes > 0).then(|| arena.take(bytes)).flatten() {
            Some(region) => {
                let tensor = view(&arena.chunks[region.chunk], region.start, size, kind);
                arena.used.insert(address(&tensor), region);
                tensor
            }
            None => view(&self.memory.bytes(bytes)?, 0, size, kind),
        };
        let _ = tensor
            .f_zero_()
            .map_err(|error| Error::torch(format!("keep a tensor of {size:?} in the memory of the node"), error))?;
        Ok(tensor)
    }

    fn free(&self, tensor: Tensor) {
        let mut arena = self.arena();
        if let Some(region) = arena.used.remove(&address(&tensor)) {
            arena.free.push(region);
        }
    }
}

/// Unnamed files in a folder, each mapped into memory. The operating system removes them when the process ends.
#[derive(Debug)]
pub struct FileStore {
    folder: PathBuf,
    /// The tensors by address.
    mapped: Mutex<BTreeMap<usize, Mapped>>,
}

fn address(tensor: &Tensor) -> usize {
    tensor.data_ptr() as usize
}

/// Returns the mapped tensor that a tensor is a view of.
fn whole<'a>(mapped: &'a BTreeMap<usize, Mapped>, view: &Tensor) -> Option<&'a Mapped> {
    let (_, before) = mapped.range(..=address(view)).next_back()?;
    before.contains(view).then_some(before)
}

impl FileStore {
    /// Makes a store in a folder, which must be on a disk.
    pub fn new(folder: PathBuf) -> Self {
        FileStore { folder, mapped: Mutex::default() }
    }

    fn mapped(&self) -> MutexGuard<'_, BTreeMap<usize, Mapped>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BackingStore for FileStore {
    fn zeros(&self, size: &[i64], kind: Kind) -> Result<Tensor> {
        let mapped = Mapped::zeros(&self.folder, size, kind)?;
        let tensor = mapped.tensor();
        self.mapped().insert(address(&tensor), mapped);
        Ok(tensor)
    }

    fn free(&self, tensor: Tensor) {
        self.mapped().remove(&address(&tensor));
    }

    fn releases(&self, tensor: &Tensor) -> bool {
        whole(&self.mapped(), tensor).is_some()
    }

    fn release(&self, tensors: &[&Tensor]) -> Result<()> {
        let mapped = self.mapped();
        tensors.iter().filter_map(|tensor| whole(&mapped, tensor)).try_for_each(Mapped::release)
    }
}

/// A backing store and the means to copy from and to it.
pub struct Offload {
    /// Whether the saved inputs of blocks are kept in the store.
    pub takes_inputs: bool,
    /// Whether the optimizer's state is in the store.
    pub takes_state: bool,
    /// Bytes of the largest input. Every buffer is at least this large, so that batches of all shapes use the same
    /// buffers.
    pub input_bytes: usize,
    store: Arc<dyn BackingStore>,
    device: Device,
    /// The thread that copies on the CPU; `None` on a GPU.
    copier: Option<Copier>,
    /// Buffers of saved inputs that are in use. Each is a flat tensor of bytes in the store.
    used: Vec<Tensor>,
    /// Buffers that are not in use, the smallest first.
    spare: Vec<Tensor>,
    /// The copy of an input to the store that is in progress.
    leaving: Option<Copying>,
    /// The input that is being fetched: its tensor in the store, and its copy on the device.
    ahead: Option<(Tensor, Fetched)>,
}

impl std::fmt::Debug for Offload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offload").field("device", &self.device).finish_non_exhaustive()
    }
}

/// A copy in progress.
#[derive(Debug)]
pub enum Copying {
    /// A copy in the copier's thread, which sends the result.
    Thread(Receiver<Result<()>>),
    /// A copy on a CUDA stream. The event is recorded after the copy.
    Stream(Event),
}

impl Copying {
    /// Waits for the copy. On a GPU only the stream that computes waits.
    ///
    /// # Errors
    /// The copy failed.
    pub fn wait(self) -> Result<()> {
        match self {
            Copying::Thread(done) => done.recv().unwrap_or_else(|_| {
                Err(Error::other("copy a tensor from or to the backing store", "the thread ended"))
            }),
            Copying::Stream(event) => event.block(),
        }
    }
}

/// A copy on the device that is complete after [`Fetched::wait`].
#[derive(Debug)]
pub struct Fetched {
    tensor: Tensor,
    kind: Kind,
    copying: Copying,
}

impl Fetched {
    /// Waits for the copy and returns it.
    ///
    /// # Errors
    /// The copy failed.
    pub fn wait(self) -> Result<Tensor> {
        self.copying.wait()?;
        Ok(self.tensor.to_kind(self.kind))
    }
}

/// A thread that copies tensors one after another.
struct Copier {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    to: Tensor,
    from: Tensor,
    done: Sender<Result<()>>,
}

impl Copier {
    fn start(store: Arc<dyn BackingStore>) -> Self {
        let (jobs, next) = channel::<Job>();
        let thread = std::thread::spawn(move || {
            for Job { to, from, done } in next {
                let copied = copy_in_thread(&to, &from).and_then(|()| store.release(&[&to, &from]));
                // Drop the tensors before the caller continues, so that it can free their memory.
                drop((to, from));
                let _ = done.send(copied);
            }
        });
        Copier { jobs: Some(jobs), thread: Some(thread) }
    }
}

impl Drop for Copier {
    /// Waits for the thread: a process that exits while a thread is in libtorch may crash.
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Offload {
    /// Makes an [`Offload`] that copies between a store and a device.
    pub fn new(store: Arc<dyn BackingStore>, device: Device) -> Self {
        let copier = (device == Device::Cpu).then(|| Copier::start(Arc::clone(&store)));
        Offload {
            takes_inputs: false,
            takes_state: false,
            input_bytes: 0,
            store,
            device,
            copier,
            used: Vec::new(),
            spare: Vec::new(),
            leaving: None,
            ahead: None,
        }
    }

    /// Returns the backing store.
    pub fn store(&self) -> &Arc<dyn BackingStore> {
        &self.store
    }

    /// Starts a copy.
    fn start(&self, to: &Tensor, from: &Tensor) -> Result<Copying> {
        let Some(Copier { jobs: Some(jobs), .. }) = &self.copier else {
            return cuda::copy_beside(to, from, CopyStream::Offload).map(Copying::Stream);
        };
        let (done, receiver) = channel();
        // If the thread has ended, the receiver reports it.
        let _ = jobs.send(Job { to: to.shallow_clone(), from: from.shallow_clone(), done });
        Ok(Copying::Thread(receiver))
    }

    /// Starts to copy a tensor of the store to the device, in dtype `kind`.
    ///
    /// # Errors
    /// The memory of the device is exhausted, or the GPU failed.
    pub fn fetch(&self, stored: &Tensor, kind: Kind) -> Result<Fetched> {
        // The thread casts on the CPU. A GPU casts after the copy, because libtorch would cast on the host and wait.
        let copied = if self.device == Device::Cpu { kind } else { stored.kind() };
        let tensor = Tensor::f_empty(stored.size(), (copied, self.device))
            .map_err(|error| Error::torch(format!("fetch a tensor of {:?}", stored.size()), error))?;
        let copying = self.start(&tensor, stored)?;
        Ok(Fetched { tensor, kind, copying })
    }

    /// Starts to copy a tensor to the store, and returns its copy there. [`Offload::fetch_input`] frees the copy.
    ///
    /// # Errors
    /// The memory of the store is exhausted, or the GPU failed.
    pub fn offload_input(&mut self, input: &Tensor) -> Result<Tensor> {
        let bytes = input.numel() * input.kind().elt_size_in_bytes();
        let buffer = self.buffer(bytes)?;
        let to = buffer.narrow(0, 0, bytes as i64).view_dtype(input.kind()).view(input.size().as_slice());
        self.used.push(buffer);
        // At most one input at a time is being copied, so that the memory of inputs on the device is bounded.
        self.wait_leaving()?;
        self.leaving = Some(self.start(&to, &input.contiguous())?);
        Ok(to)
    }

    /// Returns the smallest spare buffer with enough bytes. If no spare buffer is large enough, frees the largest one
    /// and allocates a new one, so that the number of buffers does not grow with the number of shapes.
    fn buffer(&mut self, bytes: usize) -> Result<Tensor> {
        let bytes = bytes.max(self.input_bytes);
        let fits = self.spare.partition_point(|spare| spare.numel() < bytes);
        if fits < self.spare.len() {
            return Ok(self.spare.remove(fits));
        }
        if let Some(too_small) = self.spare.pop() {
            self.store.free(too_small);
        }
        self.store.zeros(&[bytes as i64], Kind::Uint8)
    }

    fn wait_leaving(&mut self) -> Result<()> {
        self.leaving.take().map_or(Ok(()), Copying::wait)
    }

    /// Copies a tensor of [`Offload::offload_input`] back to the device, and frees its copy in the store. Starts to fetch
    /// `next`, the tensor of the following call.
    ///
    /// # Errors
    /// The memory of the device is exhausted, or a copy failed.
    pub fn fetch_input(&mut self, stored: Tensor, next: Option<&Tensor>) -> Result<Tensor> {
        self.wait_leaving()?;
        let fetched = match self.ahead.take() {
            Some((of, fetched)) if of.data_ptr() == stored.data_ptr() => fetched,
            _ => self.fetch(&stored, stored.kind())?,
        };
        let tensor = fetched.wait()?;
        if let Some(next) = next {
            self.ahead = Some((next.shallow_clone(), self.fetch(next, next.kind())?));
        }
        if let Some(place) = self.used.iter().position(|buffer| address(buffer) == address(&stored)) {
            let buffer = self.used.swap_remove(place);
            let smaller = self.spare.partition_point(|spare| spare.numel() < buffer.numel());
            self.spare.insert(smaller, buffer);
        }
        Ok(tensor)
    }

    /// Returns tensors of the store on the device: copies on a GPU, on the CPU the tensors themselves.
    ///
    /// # Errors
    /// The memory of the device is exhausted, or the GPU failed.
    pub fn on_device<const N: usize>(&self, stored: [&Tensor; N]) -> Result<[Tensor; N]> {
        let copy = |tensor: &Tensor| {
            let failed = |error: tch::TchError| Error::torch("fetch optimizer state", error);
            let place = Tensor::f_empty(tensor.size(), (tensor.kind(), self.device)).map_err(failed)?;
            cuda::copy(&place, tensor)?;
            Ok(place)
        };
        if self.device == Device::Cpu {
            return Ok(stored.map(Tensor::shallow_clone));
        }
        let copies: Vec<Tensor> = stored.into_iter().map(copy).collect::<Result<_>>()?;
        Ok(copies.try_into().expect("as many copies as tensors"))
    }

    /// Writes tensors of [`Offload::on_device`] back to the store.
    ///
    /// # Errors
    /// The GPU failed, or the operating system cannot release the pages.
    pub fn write_back<const N: usize>(&self, stored: [&Tensor; N], device: &[Tensor; N]) -> Result<()> {
        if self.device == Device::Cpu {
            return self.store.release(&stored);
        }
        stored.into_iter().zip(device).try_for_each(|(to, from)| cuda::copy(to, from))?;
        // Wait, because the host reads the tensors next: for the snapshot of a save, or for the next fetch.
        waits::at(Place::WriteBack, || Event::record()?.wait())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stores() -> (tempfile::TempDir, [Arc<dyn BackingStore>; 2]) {
        let folder = tempfile::tempdir().unwrap();
        let file = FileStore::new(folder.path().to_owned());
        let host = HostStore::with_places(HostMemory::Pageable, &[20_000; 4]).unwrap();
        (folder, [Arc::new(host), Arc::new(file)])
    }

    #[test]
    fn tensors_come_back_in_any_order_with_their_values() {
        let (_folder, stores) = stores();
        for store in stores {
            let mut offload = Offload::new(store, Device::Cpu);
            let tensors: Vec<Tensor> =
                (0..5).map(|i| Tensor::randn([3, 700 + i], (Kind::Float, Device::Cpu))).collect();
            for round in 0..3 {
                let mut away: Vec<Tensor> = tensors.iter().map(|t| offload.offload_input(t).unwrap()).collect();
                for wanted in tensors.iter().rev() {
                    let stored = away.pop().unwrap();
                    // In the second round the prefetched tensor is not the next one.
                    let next = if round == 1 { away.first() } else { away.last() };
                    assert!(offload.fetch_input(stored, next).unwrap().equal(wanted));
                }
                assert_eq!(offload.spare.len(), 5, "each round uses the same memory");
            }
        }
    }

    #[test]
    fn tensors_of_the_node_are_in_the_chunks_as_long_as_there_is_place() {
        let sizes = [4 * 1000, 4 * 1000, 4 * 300, 2 * 77];
        let store = HostStore::with_places(HostMemory::Pageable, &sizes).unwrap();
        let zeros = |len: i64, kind| store.zeros(&[len], kind).unwrap();
        let in_chunks = |tensor: &Tensor| {
            let within = |chunk: &Tensor| {
                let start = address(chunk);
                (start..start + chunk.numel()).contains(&address(tensor))
            };
            store.arena().chunks.iter().any(within)
        };
        let small = zeros(77, Kind::BFloat16);
        let (mut first, mut second) = (zeros(1000, Kind::Float), zeros(1000, Kind::Float));
        let (_, _) = (first.fill_(1.0), second.fill_(2.0));
        // Three tensors share a region that was allocated for one.
        let parts: Vec<Tensor> = (0..3).map(|_| zeros(60, Kind::Float)).collect();
        assert!([&small, &first, &second].into_iter().all(in_chunks) && in_chunks(&parts[0]));
        let beyond = zeros(1000, Kind::Float);
        assert!(!in_chunks(&beyond));
        assert!([&small, &beyond].into_iter().chain(&parts).all(|tensor| tensor.abs().max().double_value(&[]) == 0.0));
        assert_eq!(first.sum(Kind::Float).double_value(&[]), 1000.0);
        // The region of a freed tensor is used again, filled with zeros.
        let place = address(&first);
        store.free(first);
        let again = zeros(1000, Kind::Float);
        assert_eq!((address(&again), again.abs().max().double_value(&[])), (place, 0.0));
    }

    #[test]
    fn batches_of_several_shapes_share_their_buffers() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(FileStore::new(folder.path().to_owned()));
        let mut offload = Offload::new(Arc::clone(&store) as Arc<dyn BackingStore>, Device::Cpu);
        for (len, kind) in [(700, Kind::Float), (9000, Kind::BFloat16), (20, Kind::Float), (3000, Kind::Float)] {
            let batch: Vec<Tensor> =
                (0..4).map(|_| Tensor::randn([len, 2], (Kind::Float, Device::Cpu)).to_kind(kind)).collect();
            let mut away: Vec<Tensor> = batch.iter().map(|input| offload.offload_input(input).unwrap()).collect();
            for input in batch.iter().rev() {
                let stored = away.pop().unwrap();
                assert!(offload.fetch_input(stored, away.last()).unwrap().equal(input));
            }
            assert_eq!((offload.used.len(), offload.spare.len(), store.mapped().len()), (0, 4, 4), "{len}");
        }
        assert!(offload.spare.iter().all(|buffer| buffer.numel() == 36_000), "the buffers of the largest shape remain");
    }

    #[test]
    fn batches_of_every_shape_stay_in_the_places_of_the_largest_inputs() {
        let largest = 4 * 2 * 9000;
        let host = Arc::new(HostStore::with_places(HostMemory::Pageable, &[largest; 4]).unwrap());
        let mut offload = Offload::new(Arc::clone(&host) as Arc<dyn BackingStore>, Device::Cpu);
        offload.input_bytes = largest as usize;
        // A small batch first: its inputs must not split the places.
        for len in [700, 9000, 20, 3000, 9000] {
            let batch: Vec<Tensor> = (0..4).map(|_| Tensor::randn([len, 2], (Kind::Float, Device::Cpu))).collect();
            let mut away: Vec<Tensor> = batch.iter().map(|input| offload.offload_input(input).unwrap()).collect();
            let places = {
                let arena = host.arena();
                (arena.used.len(), arena.free.len())
            };
            assert_eq!(places, (4, 0), "{len}");
            for input in batch.iter().rev() {
                let stored = away.pop().unwrap();
                assert!(offload.fetch_input(stored, away.last()).unwrap().equal(input));
            }
        }
    }

    #[test]
    fn only_tensors_of_the_store_are_released() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path().to_owned());
        let [mut first, second] = [1 << 20, 1 << 20].map(|len| store.zeros(&[len], Kind::Float).unwrap());
        let elsewhere = Tensor::ones([1 << 20], (Kind::Float, Device::Cpu));
        let _ = first.fill_(2.0);
        let view = second.narrow(0, 1 << 19, 10);
        assert!(store.releases(&first) && store.releases(&view) && !store.releases(&elsewhere));
        store.release(&[&first, &view, &elsewhere]).unwrap();
        let sum = |tensor: &Tensor| tensor.sum(Kind::Double).double_value(&[]);
        assert_eq!([sum(&first), sum(&second), sum(&elsewhere)], [2.0 * f64::from(1 << 20), 0.0, f64::from(1 << 20)]);
        store.free(first);
        assert!(store.releases(&second) && store.mapped().len() == 1);
    }

    #[test]
    fn a_fetch_casts_and_does_not_share_memory() {
        let (_folder, stores) = stores();
        for store in stores {
            let offload = Offload::new(store, Device::Cpu);
            let mut stored = offload.store().zeros(&[40_000], Kind::Float).unwrap();
            let values = Tensor::randn([40_000], (Kind::Float, Device::Cpu));
            stored.copy_(&values);
            let fetched = offload.fetch(&stored, Kind::BFloat16).unwrap().wait().unwrap();
            assert!(fetched.equal(&values.to_kind(Kind::BFloat16)));
            let same = offload.fetch(&stored, Kind::Float).unwrap().wait().unwrap();
            let _ = stored.zero_();
            assert!(same.equal(&values));
        }
    }
}

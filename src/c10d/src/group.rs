//! A group of ranks that call the same collectives in the same order.

use std::ptr::NonNull;
use std::time::Duration;

use tch::{Device, Tensor};

use crate::ffi::{self, GroupHandle, WorkHandle, c_text, check};
use crate::pending::{Combine, Finish, Pending, Work, torch};
use crate::store::millis;
use crate::tokens::{Started, State, TokensInFlight};
use crate::{Error, Reduce, Result, Store};

/// The bytes that one rank of a group sent, by kind of collective, as in a ring algorithm: for W bytes over n ranks, each rank
/// sends (n-1)/n W in an all-gather or reduce-scatter, and twice that in an all-reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    /// Bytes of all-gathers.
    pub gathered: u64,
    /// Bytes of reduce-scatters.
    pub scattered: u64,
    /// Bytes of all-reduces.
    pub summed: u64,
    /// The number of collectives that were started, of any kind. Collectives that were started in one call count as one.
    pub launches: u64,
}

/// A process group. Every rank in it must call the same collectives in the same order.
///
/// A group of one rank uses no network: its collectives are local copies that complete at once.
pub struct Group {
    network: Option<Network>,
    /// The device of the tensors of its collectives.
    device: Device,
    rank: usize,
    size: usize,
}

struct Network(NonNull<GroupHandle>);

// SAFETY: c10d's process groups may be used from any one thread at a time; the handle has one owner and is not Sync.
unsafe impl Send for Network {}

impl Drop for Network {
    fn drop(&mut self) {
        // SAFETY: the shim created the pointer, and this is its only owner.
        unsafe { ffi::vidtui_group_drop(self.0.as_ptr()) }
    }
}

impl Group {
    /// Joins a gloo group of `size` ranks with a rendezvous in `store`; each group needs its own [`Store::prefix`].
    ///
    /// `interface` names the network interface to listen on, such as `lo` when all ranks are on one node; without it,
    /// gloo uses the address that the host name of this node resolves to. A collective that takes longer than `timeout` fails.
    ///
    /// # Errors
    /// `rank` is not below `size`, the interface does not exist, or the other ranks do not join within `timeout`.
    pub fn gloo(store: &Store, rank: usize, size: usize, timeout: Duration, interface: Option<&str>) -> Result<Self> {
        let doing = || match interface {
            Some(name) => format!("join the group of {size} ranks as rank {rank} on interface {name}"),
            None => format!("join the group of {size} ranks as rank {rank}"),
        };
        if size == 1 && rank == 0 {
            return Ok(Self::alone());
        }
        let (rank_c, size_c) = numbers(doing, rank, size)?;
        let prefix = c_text(store.key_prefix(), doing)?;
        let interface_c = interface.map(|name| c_text(name, doing)).transpose()?;
        let interface_ptr = interface_c.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        let mut handle = std::ptr::null_mut();
        // SAFETY: the store and the strings outlive the call, a null interface means the default one, and `handle` is
        // where the shim writes a new handle on success.
        let status = unsafe {
            ffi::vidtui_group_gloo(
                store.raw(),
                prefix.as_ptr(),
                rank_c,
                size_c,
                millis(timeout),
                interface_ptr,
                &mut handle,
            )
        };
        Self::joined(status, handle, doing, Device::Cpu, rank, size)
    }

    /// Joins an NCCL group of `size` ranks, each with its own GPU, and connects to the other ranks at once. Its tensors are on
    /// GPU number `gpu`, and its collectives are ordered with the stream on which they start: [`Pending::wait`]
    /// makes that stream wait and returns without blocking.
    ///
    /// # Errors
    /// `rank` is not below `size`, the other ranks do not join within `timeout`, the GPU cannot be used, or the program was built without
    /// CUDA.
    pub fn nccl(store: &Store, rank: usize, size: usize, timeout: Duration, gpu: usize) -> Result<Self> {
        if size == 1 && rank == 0 {
            return Ok(Self::alone());
        }
        Self::connected(store, rank, size, timeout, gpu)
    }

    /// Joins an NCCL group, also one of a single rank.
    fn connected(store: &Store, rank: usize, size: usize, timeout: Duration, gpu: usize) -> Result<Self> {
        let doing = || format!("join the NCCL group of {size} ranks as rank {rank} with GPU {gpu}");
        let (rank_c, size_c) = numbers(doing, rank, size)?;
        let gpu_c = i32::try_from(gpu).map_err(|_| Error::argument(doing(), "the GPU does not exist"))?;
        let prefix = c_text(store.key_prefix(), doing)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the store and the string outlive the call, and `handle` is where the shim writes a new handle on success.
        let status = unsafe {
            ffi::vidtui_group_nccl(store.raw(), prefix.as_ptr(), rank_c, size_c, millis(timeout), gpu_c, &mut handle)
        };
        Self::joined(status, handle, doing, Device::Cuda(gpu), rank, size)
    }

    fn joined(
        status: ffi::Status,
        handle: *mut GroupHandle,
        doing: impl FnOnce() -> String + Copy,
        device: Device,
        rank: usize,
        size: usize,
    ) -> Result<Self> {
        check(status, doing)?;
        let handle = NonNull::new(handle).ok_or_else(|| Error::other(doing(), "no handle was returned"))?;
        Ok(Self { network: Some(Network(handle)), device, rank, size })
    }

    /// Returns the group of one rank.
    #[must_use]
    pub fn alone() -> Self {
        Self { network: None, device: Device::Cpu, rank: 0, size: 1 }
    }

    /// Returns the number of this rank in the group.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks in the group.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Sets the timeout of the collectives that start after this call.
    ///
    /// # Errors
    /// libtorch returned an error.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        let Some(network) = &self.network else { return Ok(()) };
        // SAFETY: the group is alive; only a number is passed.
        let status = unsafe { ffi::vidtui_group_set_timeout(network.0.as_ptr(), millis(timeout)) };
        check(status, || format!("set the timeout of the group of {} ranks", self.size))
    }

    /// Returns the bytes that this rank sent since it joined, including those of collectives in autograd graphs and backward passes.
    /// The bytes of broadcasts and barriers are not counted: a training step broadcasts only one number.
    #[must_use]
    pub fn sent(&self) -> Sent {
        let Some(network) = &self.network else { return Sent::default() };
        let mut sent = [0; 4];
        // SAFETY: the group is alive, and the shim writes four numbers.
        unsafe { ffi::vidtui_group_sent(network.0.as_ptr(), sent.as_mut_ptr()) };
        let [gathered, scattered, summed, launches] = sent;
        Sent { gathered, scattered, summed, launches }
    }

    /// Returns the seconds that this rank waited for collectives of the group since the last call, including collectives in autograd graphs
    /// and backward passes. On a GPU they are the seconds that its stream waited. This call waits for the end of these collectives, so call
    /// it when the host has waited for the stream anyway.
    ///
    /// # Errors
    /// A CUDA call failed.
    pub fn take_waited_s(&self) -> Result<f64> {
        let Some(network) = &self.network else { return Ok(0.0) };
        let mut seconds = 0.0;
        // SAFETY: the group is alive, and the number outlives the call.
        let status = unsafe { ffi::vidtui_group_take_waited(network.0.as_ptr(), &mut seconds) };
        check(status, || format!("measure the waits of the group of {} ranks", self.size))?;
        Ok(seconds)
    }

    /// Discards the waits since the last [`Group::take_waited_s`], without waiting for the GPU.
    pub fn drop_waited(&self) {
        if let Some(network) = &self.network {
            // SAFETY: the group is alive.
            unsafe { ffi::vidtui_group_drop_waited(network.0.as_ptr()) }
        }
    }

    /// Reduces `tensor` over all ranks, in place.
    pub fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Pending> {
        self.all_reduce_many(&[tensor], reduce)
    }

    /// Reduces each of `tensors` over all ranks, in place. NCCL reduces them in one launch.
    pub fn all_reduce_many(&self, tensors: &[&Tensor], reduce: Reduce) -> Result<Pending> {
        let doing = || format!("all-reduce {} over {} ranks", sizes(tensors), self.size);
        contiguous(doing, tensors)?;
        let pointers: Vec<_> = tensors.iter().map(|tensor| tensor.as_ptr()).collect();
        let work = self.start_many(doing, tensors.len(), |group, out| {
            // SAFETY: group and tensors are alive; the shim keeps its own references to the tensors.
            unsafe { ffi::vidtui_group_all_reduce(group, pointers.as_ptr(), pointers.len(), reduce.code(), out) }
        })?;
        let kept = || tensors.iter().map(|tensor| tensor.shallow_clone()).collect();
        let finish = match reduce {
            Reduce::Avg if self.size > 1 => Finish::Divide(kept(), self.size as i64),
            _ => Finish::Nothing,
        };
        Ok(Pending::new(work, doing(), finish, kept()))
    }

    /// Gathers every rank's `input` into `out`, in rank order; `out` holds `size` times as many elements. `input` may be this rank's part
    /// of `out`.
    pub fn all_gather_into(&self, out: &Tensor, input: &Tensor) -> Result<Pending> {
        self.all_gather_many(&[(out, input)])
    }

    /// Gathers as [`Group::all_gather_into`] does for each pair of `out` and `input`. NCCL gathers them in one launch.
    pub fn all_gather_many(&self, pairs: &[(&Tensor, &Tensor)]) -> Result<Pending> {
        let (outs, inputs): (Vec<&Tensor>, Vec<&Tensor>) = pairs.iter().copied().unzip();
        let doing = || format!("all-gather {} from {} ranks into {}", sizes(&inputs), self.size, sizes(&outs));
        contiguous(doing, &outs)?;
        contiguous(doing, &inputs)?;
        for (out, input) in pairs {
            self.sizes(doing, out, input)?;
            if self.network.is_none() {
                copy(doing, out, input)?;
            }
        }
        let flat = |tensors: &[&Tensor]| tensors.iter().map(|tensor| tensor.view(-1)).collect::<Vec<_>>();
        let pointers = |tensors: &[Tensor]| tensors.iter().map(|tensor| tensor.as_ptr()).collect();
        let (mut to, from) = (flat(&outs), flat(&inputs));
        let (to_ptrs, from_ptrs): (Vec<_>, Vec<_>) = (pointers(&to), pointers(&from));
        let work = self.start_many(doing, pairs.len(), |group, pending| {
            let (to, from) = (to_ptrs.as_ptr(), from_ptrs.as_ptr());
            // SAFETY: group and tensors are alive; the shim keeps its own references to the tensors.
            unsafe { ffi::vidtui_group_all_gather_into(group, to, from, pairs.len(), pending) }
        })?;
        to.extend(from);
        Ok(Pending::new(work, doing(), Finish::Nothing, to))
    }

    /// Reduces `input` over all ranks and writes part `rank` of the result to `out`; `input` holds `size` times as many
    /// elements as `out`, and is not changed.
    pub fn reduce_scatter_into(&self, out: &Tensor, input: &Tensor, reduce: Reduce) -> Result<Pending> {
        let doing = || format!("reduce-scatter {:?} over {} ranks into {:?}", input.size(), self.size, out.size());
        contiguous(doing, &[out, input])?;
        self.sizes(doing, input, out)?;
        if self.network.is_none() {
            copy(doing, out, input)?;
            return Ok(Pending::new(None, doing(), Finish::Nothing, Vec::new()));
        }
        let (flat, len) = (input.view(-1), out.numel() as i64);
        if self.device != Device::Cpu {
            let to = out.view(-1);
            let work = self.start(doing, |group, pending| {
                // SAFETY: group and tensors are alive; the shim keeps its own references to the tensors.
                unsafe {
                    let (to, from) = (to.as_ptr(), flat.as_ptr());
                    ffi::vidtui_group_reduce_scatter(group, to, from, reduce.code(), pending)
                }
            })?;
            let finish = match reduce {
                Reduce::Avg => Finish::Divide(vec![to.shallow_clone()], self.size as i64),
                _ => Finish::Nothing,
            };
            return Ok(Pending::new(work, doing(), finish, vec![to, flat]));
        }
        let parts = Tensor::empty([(self.size as i64 - 1) * len], (input.kind(), input.device()));
        // gloo's own reduce-scatter is an all-reduce and a copy, which takes 40 ms for 26 MiB of fp32 over two processes of one
        // node. This exchange of parts with a local sum takes 14 ms.
        let work = self.start(doing, |group, pending| {
            // SAFETY: group and tensors are alive; the shim keeps its own references to the tensors.
            unsafe { ffi::vidtui_group_exchange(group, flat.as_ptr(), parts.as_ptr(), pending) }
        })?;
        let finish = Finish::Combine(Combine {
            out: out.view(-1),
            own: flat.narrow(0, self.rank as i64 * len, len),
            parts: parts.view([self.size as i64 - 1, len]),
            rank: self.rank,
            reduce,
        });
        Ok(Pending::new(work, doing(), finish, vec![flat]))
    }

    /// Broadcasts `tensor` of rank `root` to all ranks.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Pending> {
        let doing = || format!("broadcast {:?} from rank {root} of {}", tensor.size(), self.size);
        contiguous(doing, &[tensor])?;
        let Some(root_c) = i32::try_from(root).ok().filter(|_| root < self.size) else {
            return Err(Error::argument(doing(), format!("ranks are 0 to {}", self.size - 1)));
        };
        let work = self.start(doing, |group, pending| {
            // SAFETY: group and tensor are alive; the shim keeps its own reference to the tensor.
            unsafe { ffi::vidtui_group_broadcast(group, tensor.as_ptr(), root_c, pending) }
        })?;
        Ok(Pending::new(work, doing(), Finish::Nothing, vec![tensor.shallow_clone()]))
    }

    /// Waits until every rank of the group has called this function.
    pub fn barrier(&self) -> Result<()> {
        let doing = || format!("wait for {} ranks at a barrier", self.size);
        // SAFETY: the group is alive.
        let work = self.start(doing, |group, pending| unsafe { ffi::vidtui_group_barrier(group, pending) })?;
        Pending::new(work, doing(), Finish::Nothing, Vec::new()).wait()
    }

    /// Returns a replicated tensor unchanged; its gradient is the sum of all ranks' gradients.
    ///
    /// This and the next three public functions are Megatron's differentiable collectives. In a group of one rank they return the tensor
    /// unchanged.
    pub fn copy_to(&self, x: &Tensor) -> Result<Tensor> {
        self.parallel(x, 0)
    }

    /// Concatenates the tensors of all ranks along the last dimension; each rank's gradient is its part.
    pub fn gather_from(&self, x: &Tensor) -> Result<Tensor> {
        self.parallel(x, 1)
    }

    /// Starts to concatenate the ranks' parts of `len` tokens, `[B, len / ranks rounded up, …]`, to `[B, len, …]`. The gradient is
    /// this rank's part of the sum of all ranks' gradients. In the backward pass, the wait for the result starts this sum, and this start
    /// waits for it.
    pub fn start_gather_tokens(&self, part: &Tensor, len: i64) -> Result<TokensInFlight> {
        self.start_tokens(part, 0, len)
    }

    /// Starts to sum the tokens `[B, len, …]` of all ranks for this rank's part, `[B, len / ranks rounded up, …]`, in which tokens
    /// after the last are zero. The gradients of all parts are gathered, as [`Group::start_gather_tokens`] sums them.
    pub fn start_reduce_tokens(&self, x: &Tensor) -> Result<TokensInFlight> {
        self.start_tokens(x, 1, 0)
    }

    fn start_tokens(&self, x: &Tensor, kind: i32, len: i64) -> Result<TokensInFlight> {
        let Some(network) = &self.network else { return Ok(TokensInFlight(State::Here(x.shallow_clone()))) };
        let doing = || {
            let what = ["gather", "reduce"][kind as usize];
            format!("{what} the tokens of {} ranks in a tensor of {:?}", self.size, x.size())
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: group and tensor are alive; the shim writes a new handle on success, which keeps what it needs of both.
        check(unsafe { ffi::vidtui_tokens_start(network.0.as_ptr(), x.as_ptr(), kind, len, &mut handle) }, doing)?;
        let handle = NonNull::new(handle).ok_or_else(|| Error::other(doing(), "no handle was returned"))?;
        Ok(TokensInFlight(State::Started(Started { handle, doing: doing() })))
    }

    fn parallel(&self, x: &Tensor, kind: i32) -> Result<Tensor> {
        let Some(network) = &self.network else { return Ok(x.shallow_clone()) };
        let doing = || {
            let what = ["copy to", "gather from"][kind as usize];
            format!("{what} {} ranks a tensor of {:?}", self.size, x.size())
        };
        let mut out = std::ptr::null_mut();
        // SAFETY: group and tensor are alive; the shim writes a new tensor on success.
        check(unsafe { ffi::vidtui_group_parallel(network.0.as_ptr(), x.as_ptr(), kind, &mut out) }, doing)?;
        // SAFETY: the call above created the tensor and transfers ownership to us.
        Ok(unsafe { Tensor::from_ptr(out) })
    }

    /// Starts `count` collectives in one call as [`Group::start`] does; does nothing if `count` is 0.
    fn start_many(
        &self,
        doing: impl FnOnce() -> String + Copy,
        count: usize,
        call: impl FnOnce(*mut GroupHandle, *mut *mut WorkHandle) -> ffi::Status,
    ) -> Result<Option<Work>> {
        if count == 0 { Ok(None) } else { self.start(doing, call) }
    }

    /// Starts a collective. Returns `None` for a group of one rank, which needs no communication.
    fn start(
        &self,
        doing: impl FnOnce() -> String + Copy,
        call: impl FnOnce(*mut GroupHandle, *mut *mut WorkHandle) -> ffi::Status,
    ) -> Result<Option<Work>> {
        let Some(network) = &self.network else { return Ok(None) };
        let mut work = std::ptr::null_mut();
        check(call(network.0.as_ptr(), &mut work), doing)?;
        let work = NonNull::new(work).ok_or_else(|| Error::other(doing(), "no handle was returned"))?;
        Ok(Some(Work(work)))
    }

    /// Checks that `large` has `size` times the elements of `small`, and the same dtype.
    fn sizes(&self, doing: impl FnOnce() -> String, large: &Tensor, small: &Tensor) -> Result<()> {
        let (have, part) = (large.numel(), small.numel());
        if have != part * self.size {
            let why = format!("{part} elements of {} ranks are {}, not {have}", self.size, part * self.size);
            return Err(Error::argument(doing(), why));
        }
        if large.kind() != small.kind() {
            return Err(Error::argument(doing(), format!("{:?} is not {:?}", large.kind(), small.kind())));
        }
        Ok(())
    }
}

/// Converts rank and size to the integers of the shim.
fn numbers(doing: impl FnOnce() -> String, rank: usize, size: usize) -> Result<(i32, i32)> {
    if rank >= size {
        return Err(Error::argument(doing(), format!("ranks are 0 to {}", size.saturating_sub(1))));
    }
    match (i32::try_from(rank), i32::try_from(size)) {
        (Ok(rank), Ok(size)) => Ok((rank, size)),
        _ => Err(Error::argument(doing(), "too many ranks")),
    }
}

/// Returns the shape of a tensor, or the shapes of several.
fn sizes(tensors: &[&Tensor]) -> String {
    match tensors {
        [tensor] => format!("{:?}", tensor.size()),
        _ => format!("{:?}", tensors.iter().map(|tensor| tensor.size()).collect::<Vec<_>>()),
    }
}

fn contiguous(doing: impl FnOnce() -> String, tensors: &[&Tensor]) -> Result<()> {
    match tensors.iter().find(|tensor| !tensor.is_contiguous()) {
        Some(tensor) => Err(Error::argument(doing(), format!("strides {:?} are not contiguous", tensor.stride()))),
        None => Ok(()),
    }
}

fn copy(doing: impl FnOnce() -> String, out: &Tensor, input: &Tensor) -> Result<()> {
    if out.data_ptr() == input.data_ptr() {
        return Ok(());
    }
    torch(&doing(), || tch::no_grad(|| out.f_view(-1)?.f_copy_(&input.f_view(-1)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{collectives, cuda};
    use tch::Kind;

    #[test]
    fn collectives_over_nccl_give_a_single_rank_its_own_numbers() -> Result<()> {
        if !cuda::is_built() || !tch::Cuda::is_available() {
            println!("skipped: no GPU");
            return Ok(());
        }
        const TIMEOUT: Duration = Duration::from_secs(60);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::file(&folder.path().join("store"), 1, TIMEOUT)?.prefix("world");
        cuda::set_device(0)?;
        let group = Group::connected(&store, 0, 1, TIMEOUT, 0)?;
        let numbers = |len| Tensor::arange(len, (Kind::Float, Device::Cuda(0)));
        let zeros = || Tensor::zeros([64], (Kind::Float, Device::Cuda(0)));
        let (x, gathered, second, scattered) = (numbers(64), zeros(), zeros(), zeros());
        for reduce in [Reduce::Sum, Reduce::Avg, Reduce::Max] {
            group.all_reduce_many(&[&x, &numbers(8)], reduce)?.wait()?;
        }
        group.all_gather_many(&[(&gathered, &x), (&second, &x)])?.wait()?;
        group.reduce_scatter_into(&scattered, &x, Reduce::Sum)?.wait()?;
        group.broadcast(&x, 0)?.wait()?;
        group.barrier()?;
        assert!([&gathered, &second, &scattered, &x].iter().all(|tensor| tensor.equal(&numbers(64))));
        assert!(group.take_waited_s()? >= 0.0);
        group.set_timeout(TIMEOUT)?;
        let recorded = collectives::recent()?;
        assert!(recorded.iter().any(|collective| collective.operation.contains("nccl")), "{recorded:?}");
        Ok(())
    }
}

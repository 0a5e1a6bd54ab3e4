//! TP groups whose ranks are threads of this process. All ranks build one autograd graph, so that the gradient of the sum of all ranks'
//! losses is what Megatron's collectives give each rank.

use dit::parallel::{InFlight, TensorParallel, own_tokens};
use recipe::ParamSpec;
use std::sync::{Arc, Barrier, Mutex};
use tch::Tensor;
use torch_error::TorchError;

/// One rank of a group.
pub struct Rank {
    rank: usize,
    tensors: Arc<Mutex<Vec<Tensor>>>,
    barrier: Arc<Barrier>,
    size: usize,
    pieces: i64,
}

/// Runs `work` for each rank of a group in a thread of its own, and returns the results. `inputs` has the input of each rank. The ranks exchange
/// tokens in this number of pieces.
pub fn run<I: Send, T: Send>(inputs: Vec<I>, pieces: i64, work: impl Fn(I, &Rank) -> T + Sync) -> Vec<T> {
    let size = inputs.len();
    let tensors = Arc::new(Mutex::new((0..size).map(|_| Tensor::new()).collect()));
    let barrier = Arc::new(Barrier::new(size));
    let work = &work;
    std::thread::scope(|scope| {
        let start = |(rank, input)| {
            let rank = Rank { rank, tensors: tensors.clone(), barrier: barrier.clone(), size, pieces };
            scope.spawn(move || {
                // Threads of libtorch would wait for the cores of other ranks.
                tch::set_num_threads(1);
                work(input, &rank)
            })
        };
        let threads: Vec<_> = inputs.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// Returns the part of a tensor that a rank of a group has: the whole tensor if it is not split.
pub fn part(spec: &ParamSpec, whole: &Tensor, rank: usize, ranks: usize) -> Tensor {
    let (offset, shape) = spec.part(rank, ranks);
    let along = |tensor: Tensor, dim: usize| tensor.narrow(dim as i64, offset[dim] as i64, shape[dim] as i64);
    (0..shape.len()).fold(whole.shallow_clone(), along)
}

impl Rank {
    /// Returns the tensors that all ranks pass.
    fn exchange(&self, x: &Tensor) -> Vec<Tensor> {
        let tensors = || self.tensors.lock().expect("no rank panics");
        tensors()[self.rank] = x.shallow_clone();
        self.barrier.wait();
        let all = tensors().iter().map(Tensor::shallow_clone).collect();
        self.barrier.wait();
        all
    }
}

impl TensorParallel for Rank {
    fn size(&self) -> i64 {
        self.size as i64
    }

    fn rank(&self) -> i64 {
        self.rank as i64
    }

    fn pieces(&self, _bytes: i64) -> i64 {
        self.pieces
    }

    fn copy_to(&self, x: &Tensor) -> Result<Tensor, TorchError> {
        let others = self.exchange(x).into_iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        // Adds zero, whose gradient is that of the other ranks.
        Ok(others.fold(x.shallow_clone(), |sum, (_, other)| sum + (&other - other.detach())))
    }

    fn gather_from(&self, x: &Tensor) -> Result<Tensor, TorchError> {
        let all: Vec<Tensor> = self.exchange(&x.detach());
        let own = |(rank, other)| if rank == self.rank { x.shallow_clone() } else { other };
        Ok(Tensor::cat(&all.into_iter().enumerate().map(own).collect::<Vec<_>>(), -1))
    }

    fn start_gather_tokens(&self, part: &Tensor, len: i64) -> Result<InFlight, TorchError> {
        let all = Tensor::cat(&self.exchange(part), 1).narrow(1, 0, len);
        Ok(Box::new(move || Ok(all)))
    }

    fn start_reduce_tokens(&self, x: &Tensor) -> Result<InFlight, TorchError> {
        let sum: Tensor = self.exchange(x).into_iter().sum();
        let own = own_tokens(&sum, self);
        Ok(Box::new(move || Ok(own)))
    }
}

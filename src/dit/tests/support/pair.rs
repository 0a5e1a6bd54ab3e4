//! The collectives of a TP group of ranks that are threads of one process, in one graph.
//!
//! Threads exchange tensors with their graphs, so one backward pass covers all ranks. Every collective has the gradient that
//! [`TensorParallel`] defines for it, even where the gradient of the whole computation would be another.

use dit::parallel::{InFlight, TensorParallel};
use std::sync::mpsc::{Receiver, Sender, channel};
use tch::Tensor;
use torch_error::TorchError;

/// A rank of the group.
pub struct Rank {
    rank: usize,
    to: Vec<Sender<Tensor>>,
    from: Vec<Receiver<Tensor>>,
}

/// Returns the ranks of a group.
pub fn ranks(size: usize) -> Vec<Rank> {
    let mut ranks: Vec<Rank> = (0..size).map(|rank| Rank { rank, to: Vec::new(), from: Vec::new() }).collect();
    for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))) {
        let (sender, receiver) = channel();
        ranks[from].to.push(sender);
        ranks[to].from.push(receiver);
    }
    ranks
}

impl Rank {
    /// Sends a tensor to every rank, and returns those of all ranks.
    fn exchange(&self, x: &Tensor) -> Vec<Tensor> {
        self.to.iter().for_each(|peer| peer.send(x.shallow_clone()).expect("the peers run"));
        self.from.iter().map(|peer| peer.recv().expect("the peers run")).collect()
    }
}

impl TensorParallel for Rank {
    fn size(&self) -> i64 {
        self.to.len() as i64
    }

    fn rank(&self) -> i64 {
        self.rank as i64
    }

    fn pieces(&self, _: i64) -> i64 {
        2
    }

    fn copy_to(&self, x: &Tensor) -> Result<Tensor, TorchError> {
        // The value of this rank, and the gradients of the uses of all ranks.
        let sum = self.exchange(x).into_iter().reduce(|a, b| a + b).expect("a group has ranks");
        Ok(x.detach() + &sum - sum.detach())
    }

    fn gather_from(&self, x: &Tensor) -> Result<Tensor, TorchError> {
        let own = |(rank, part): (usize, Tensor)| if rank == self.rank { part } else { part.detach() };
        let parts: Vec<Tensor> = self.exchange(x).into_iter().enumerate().map(own).collect();
        Ok(Tensor::cat(&parts, -1))
    }

    fn start_gather_tokens(&self, part: &Tensor, len: i64) -> Result<InFlight, TorchError> {
        let all = Tensor::cat(&self.exchange(part), 1).narrow(1, 0, len);
        Ok(Box::new(move || Ok(all)))
    }

    fn start_reduce_tokens(&self, x: &Tensor) -> Result<InFlight, TorchError> {
        let sum = self.exchange(x).into_iter().reduce(|a, b| a + b).expect("a group has ranks");
        let own = dit::parallel::own_tokens(&sum, self);
        Ok(Box::new(move || Ok(own)))
    }
}

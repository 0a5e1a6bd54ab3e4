//! The network and the objective of each family. No other module of the trainer names a family, apart from the choice of kernels in `device`.

use crate::parallelize::network_of;
use dit::cogvideox::CogVideoX;
use dit::family::Family;
use dit::network::Network;
use dit::objective::{Objective, VPrediction};
use dit::wan::Wan;
use dit::wan::objective::FlowMatching;
use recipe::Recipe;

/// Work that any family can do.
pub trait Work {
    /// The result.
    type Done;

    /// Does the work with a network and its objective.
    fn run<F: Family, O: Objective>(self, network: Network<F>, objective: O) -> Self::Done;
}

/// Does work with the network and the objective of a recipe.
pub fn with_model<W: Work>(recipe: &Recipe, work: W) -> W::Done {
    match &recipe.model.family {
        recipe::Family::CogVideoX(_) => work.run(cogvideox(recipe), VPrediction::new(&recipe.model, &recipe.loss)),
        recipe::Family::Wan(keys) => {
            let network = network_of(Wan::new(&keys.network(&recipe.model)), recipe);
            work.run(network, FlowMatching::new(&recipe.objective))
        }
    }
}

/// Returns the network of a recipe for CogVideoX.
pub fn cogvideox(recipe: &Recipe) -> Network<CogVideoX> {
    let family = CogVideoX::new(&recipe.model, recipe.remat.scan_group);
    network_of(family.on_gpu(recipe.train.ttt_scan, recipe.train.fused), recipe)
}

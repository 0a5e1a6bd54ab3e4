//! Trains CogVideoX on batches of alternating shapes.

use crate::parallelize::{network, unit_tables};
use crate::step::Step;
use crate::tests::support::{Rank, assert_same_losses, on_ranks, random_batch, recipe};
use dit::objective::VPrediction;
use recipe::Recipe;
use sharding::mesh::MeshGroups;

/// Latent frames, rows and columns of the steps; the recipes have the first shape.
const SHAPES: [[i64; 3]; 3] = [[3, 8, 8], [1, 4, 6], [5, 8, 4]];

const SIZES: [&str; 8] = [
    "model.num_layers=3",
    "model.head_dim=16",
    "model.time_embed_dim=16",
    "model.text_dim=8",
    "train.dtype=float32",
    "train.threads=1",
    "optimizer.lr=0.01",
    "optimizer.warmup_steps=0",
];

/// Trains two rounds over the shapes, beginning with the one at `first`; returns the losses.
fn losses(recipe: &Recipe, groups: MeshGroups, first: usize, steps: u64) -> Vec<f64> {
    let (network, objective) = (network(recipe), VPrediction::new(&recipe.model, &recipe.loss));
    let mut rank = Rank::new(recipe, unit_tables(recipe), network.family(), groups);
    let step = Step { recipe, network: &network, objective: &objective, seed: 3 };
    rank.train(&step, 0..steps, |number, samples| {
        let [frames, height, width] = SHAPES[(first + number as usize) % SHAPES.len()];
        random_batch(samples, &[frames, 16, height, width], &[16, 8])
    })
}

#[test]
fn two_ranks_train_alternating_shapes_with_the_losses_of_one() {
    for positions in ["model.positions=rope", "model.positions=sincos"] {
        let on = |mesh| recipe(mesh, &[&SIZES[..], &[positions]].concat());
        let one = losses(&on([1, 1, 1]), MeshGroups::alone(), 0, 6);
        assert!(one.windows(2).all(|pair| pair[0] != pair[1]), "{one:?}");
        for mesh in [[1, 2, 1], [1, 1, 2]] {
            let recipe = on(mesh);
            for of_rank in on_ranks(recipe.mesh, |groups| losses(&recipe, groups, 0, 6)) {
                assert_same_losses(&one, &of_rank);
            }
        }
    }
}

#[test]
fn a_shape_has_the_loss_of_a_recipe_for_that_shape() {
    let many = recipe([1, 1, 1], &SIZES);
    for (number, [frames, height, width]) in SHAPES.into_iter().enumerate() {
        let mut own = many.clone();
        own.model = many.model.resized(frames as usize, height as usize, width as usize);
        let loss = |recipe: &Recipe| losses(recipe, MeshGroups::alone(), number, 1);
        assert_eq!(loss(&many), loss(&own), "{:?}", SHAPES[number]);
    }
}

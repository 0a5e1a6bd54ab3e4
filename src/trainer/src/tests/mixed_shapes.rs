//! Trains CogVideoX on batches of alternating shapes.

use crate::batches::Batches;
use crate::data::Data;
use crate::families::cogvideox;
use crate::parallelize::unit_tables;
use crate::requests::SaveStopRequests;
use crate::seeds::{self, Purpose};
use crate::step::Step;
use crate::tests::support::{Rank, assert_same_losses, on_ranks, random_batch, recipe};
use c10d::Group;
use dataset::{LATENT, TEXT};
use dit::objective::VPrediction;
use recipe::Recipe;
use rundir::ErrorCode;
use safetensors::tensor::TensorView;
use sharding::mesh::MeshGroups;
use tch::{Device, Tensor};

/// Latent frames, rows and columns of the steps. The model of the recipes has the first shape.
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

/// Trains `steps` steps over the shapes in turn, from the shape at `first` on; returns the losses.
fn losses(recipe: &Recipe, groups: MeshGroups, first: usize, steps: u64) -> Vec<f64> {
    let (network, objective) = (cogvideox(recipe), VPrediction::new(&recipe.model, &recipe.loss));
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

/// Writes a data set with `items` items of each of [`SHAPES`]; returns the path of its index.
fn dataset(folder: &camino::Utf8Path, items: usize) -> camino::Utf8PathBuf {
    let write = |name: &str, key: &str, tensor: &Tensor| {
        let values = Vec::<f32>::try_from(tensor.flatten(0, -1)).unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let shape = tensor.size().iter().map(|size| *size as usize).collect();
        let view = TensorView::new(safetensors::Dtype::F32, shape, &bytes).unwrap();
        std::fs::write(folder.join(name), safetensors::serialize([(key, view)], None).unwrap()).unwrap();
    };
    let mut index = String::new();
    for item in 0..items * SHAPES.len() {
        let [frames, height, width] = SHAPES[item % SHAPES.len()];
        let (latent, text) = (format!("{item}"), format!("{item}.text"));
        write(
            &latent,
            LATENT,
            &seeds::normal(5, Purpose::Latent, item as u64, &[frames, 16, height, width], Device::Cpu),
        );
        write(&text, TEXT, &seeds::normal(5, Purpose::Image, item as u64, &[16, 8], Device::Cpu));
        index += &format!("{{\"vid_emb\": \"{latent}\", \"text_chunk_emb\": [\"{text}\"]}}\n");
    }
    std::fs::write(folder.join("index.jsonl"), index).unwrap();
    folder.join("index.jsonl")
}

/// Trains steps of a data set from sample `first`; returns the loss of each step, and the next sample and the tokens of each step.
fn run(recipe: &Recipe, groups: MeshGroups, first: u64, steps: u64) -> (Vec<f64>, Vec<(u64, f64)>) {
    let (network, objective) = (cogvideox(recipe), VPrediction::new(&recipe.model, &recipe.loss));
    let (mut data, mut batches) = (Data::open(recipe, &groups.world).unwrap(), Batches::default());
    let mut rank = Rank::new(recipe, unit_tables(recipe), network.family(), groups);
    let step = Step { recipe, network: &network, objective: &objective, seed: 3 };
    let mut next = first;
    let mut train = |number| {
        let plan = data.step(next);
        next = plan.numbers().end;
        let requests = SaveStopRequests::default();
        let data_and_batches = (&mut data, &mut batches);
        let outcome = step.run(&mut rank.fsdp, &mut rank.moments, data_and_batches, number, &plan, requests).unwrap();
        (outcome.loss, (next, data.work(&plan).tokens))
    };
    (0..steps).map(&mut train).unzip()
}

#[test]
fn a_data_set_of_mixed_shapes_trains_with_the_same_losses_on_every_mesh() {
    let keep = tempfile::tempdir().unwrap();
    let folder = camino::Utf8Path::from_path(keep.path()).unwrap();
    let index = format!("data.index={}", dataset(folder, 6));
    for shapes in ["grouped", "balanced"] {
        let (shapes, accum) = (format!("data.shapes={shapes}"), "train.grad_accum=2");
        let sets = [&SIZES[..], &["train.steps=9", &index, &shapes]].concat();
        let one = run(&recipe([1, 1, 1], &[&sets[..], &[accum]].concat()), MeshGroups::alone(), 0, 9);
        // The tokens of a step depend on the shape of its samples.
        let tokens: std::collections::BTreeSet<u64> = one.1.iter().map(|(_, tokens)| *tokens as u64).collect();
        assert_eq!(tokens, SHAPES.map(|[t, h, w]| 4 * (16 + t * h * w / 4) as u64).into(), "{shapes}");
        let two = recipe([1, 2, 1], &sets);
        for of_rank in on_ranks(two.mesh, |groups| run(&two, groups, 0, 9)) {
            assert_same_losses(&one.0, &of_rank.0);
            assert_eq!(one.1, of_rank.1);
        }
        // A resume from the next sample continues with the same samples.
        let rest = run(&recipe([1, 1, 1], &[&sets[..], &[accum]].concat()), MeshGroups::alone(), one.1[3].0, 5);
        assert_eq!(rest.1, one.1[4..]);
    }
}

#[test]
fn a_shape_that_the_model_cannot_take_is_refused_with_its_line() {
    let keep = tempfile::tempdir().unwrap();
    let folder = camino::Utf8Path::from_path(keep.path()).unwrap();
    let index = format!("data.index={}", dataset(folder, 1));
    let open = |sets: &[&str]| Data::open(&recipe([1, 1, 1], &[&SIZES[..], &[&index], sets].concat()), &Group::alone());
    // Without `data.shapes`, all latents must have the shape of the model.
    let one = open(&[]).unwrap_err();
    assert_eq!(one.code, ErrorCode::InvalidDataset);
    assert!(one.what.contains("line 2"), "{one}");
    let wide = open(&["data.shapes=grouped", "model.patch_size=4", "model.latent_width=8"]).unwrap_err();
    assert_eq!(wide.code, ErrorCode::InvalidDataset);
    assert!(wide.what.contains("line 2") && wide.why.contains("latent_width 6"), "{wide}");
    // A step needs four samples of one shape, and two epochs have only two.
    let few = open(&["data.shapes=grouped", "train.epochs=2"]).unwrap_err();
    assert_eq!(few.code, ErrorCode::InvalidDataset);
}

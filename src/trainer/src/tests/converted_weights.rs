//! Compares converted weights in the trainer with numbers recorded from diffusers: a saved model is converted, loaded as a
//! run loads it, and must give the recorded output and every recorded gradient.
//!
//! Reads every folder `cogvideox/*/` and `i2v/*/` of the oracle with a transformer and a `forward_backward.safetensors`.

use crate::checkpoint::{self, Loaded, Restore};
use crate::data::kind;
use crate::optim::OptimizerState;
use crate::oracle;
use crate::parallelize::{Sharded, layouts, unit_tables};
use camino::Utf8Path;
use dit::block::ActivationCheckpointing;
use dit::family::Inputs;
use dit::mixers::Kept;
use dit::network::{ForwardBackward, Network};
use recipe::Recipe;
use rundir::Checkpoint;
use sharding::flat::ParamKind;
use sharding::fsdp::Fsdp;
use sharding::mesh::MeshGroups;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tch::{Kind, Tensor};
use weights::{ConvertRequest, Form, Header};

/// Reads a recorded tensor; half precision is converted to fp32.
fn tensor(header: &Header, name: &str) -> Tensor {
    let info = header.tensor(name).unwrap();
    let shape: Vec<i64> = info.shape.iter().map(|&d| d as i64).collect();
    let tensor = Tensor::from_data_size(&header.read_tensor(name).unwrap(), &shape, kind(info.dtype));
    if matches!(tensor.kind(), Kind::Half | Kind::BFloat16) { tensor.to_kind(Kind::Float) } else { tensor }
}

/// Returns a recipe that starts from the converted model, for inputs of the recorded size.
fn recipe(place: &Utf8Path, recorded: &Header) -> Recipe {
    let file = place.join("recipe.toml");
    let rest = "[data]\nindex = \"none.jsonl\"\n[train]\nsteps = 1\nglobal_batch = 1\ndtype = \"float32\"\n";
    std::fs::write(&file, format!("base = \"inner/model.toml\"\n{rest}")).unwrap();
    let latent = &recorded.tensors["in.latent"].shape;
    let sizes = [
        ("text_len", recorded.tensors["in.text"].shape[1]),
        ("latent_frames", latent[1]),
        ("latent_height", latent[3]),
        ("latent_width", latent[4]),
    ];
    let sets = sizes.map(|(key, size)| format!("model.{key}={size}"));
    recipe::load(&file, &sets).unwrap_or_else(|e| panic!("{e}")).recipe
}

/// Loads the checkpoint as a run of one rank does, and runs forward and backward. Returns the gradients by their diffusers names.
fn forward_backward(
    recipe: &Recipe,
    checkpoint: &Checkpoint,
    recorded: &Header,
) -> (ForwardBackward, BTreeMap<String, Tensor>) {
    let tables = unit_tables(recipe);
    let mut fsdp = Fsdp::new(layouts(recipe, &tables), MeshGroups::alone(), Kind::Float);
    let mut moments = OptimizerState::new(&fsdp, &tables, &recipe.optimizer).unwrap();
    let mut sharded =
        checkpoint::TrainingState { fsdp: &fsdp, moments: &mut moments, ema: None, tables: &tables, base: None };
    let loaded = checkpoint::load(&mut sharded, &checkpoint.dir, Restore::Weights).unwrap();
    assert!(matches!(loaded, Loaded::Intact(_)), "{loaded:?}");
    let recorded_tensor = |name: &str| recorded.tensors.contains_key(name).then(|| tensor(recorded, name));
    let (keep, scan_group) = (ActivationCheckpointing::Selective(Kept::ALL), recipe.remat.scan_group);
    let network = match (recorded_tensor("in.rope_cos"), recorded_tensor("in.rope_sin")) {
        (Some(cos), Some(sin)) => {
            // diffusers repeats each angle for both members of a pair.
            let half = |t: Tensor| t.slice(1, 0, None, 2);
            let rotary = dit::cogvideox::positions::rotary_from(&half(cos), &half(sin), recipe.model.text_len as i64);
            Network::with_rotary(&recipe.model, keep, scan_group, Some(rotary))
        }
        _ => Network::new(&recipe.model, keep, scan_group),
    };
    let network = match recorded_tensor("in.ofs") {
        Some(offset) => network.at_offset(&offset),
        None => network,
    };
    let inputs = Inputs {
        latent: tensor(recorded, "in.latent").set_requires_grad(true),
        text: tensor(recorded, "in.text"),
        timestep: tensor(recorded, "in.timestep"),
        conditions: Vec::new(),
    };
    let cotangent = tensor(recorded, "in.grad_sample");
    let pass =
        network.forward_backward(&mut Sharded(&mut fsdp), &inputs, |out| (out * &cotangent).sum(Kind::Float)).unwrap();
    fsdp.finish_reduce().unwrap();
    let grads: Vec<Tensor> = fsdp.shards().map(|shard| shard.grad.shallow_clone()).collect();
    let mut named = BTreeMap::new();
    for owned in fsdp.owned().into_iter().filter(|owned| owned.range.kind == ParamKind::Trained) {
        let spec = &tables[owned.unit][owned.range.slot];
        let name = spec.diffusers.clone().unwrap();
        named.insert(name, grads[owned.unit].narrow(0, owned.range.shard_start, owned.range.len));
    }
    (pass, named)
}

/// Returns `‖got - want‖ / max(‖want‖, floor)`.
fn relative(got: &Tensor, want: &Tensor, floor: f64) -> f64 {
    let (got, want) = (got.to_kind(Kind::Double).flatten(0, -1), want.to_kind(Kind::Double).flatten(0, -1));
    ((got - &want).norm() / want.norm().clamp_min(floor)).double_value(&[])
}

/// Converts a recorded model, runs it, and compares all recorded tensors; returns the number of gradients.
fn follow(folder: &Utf8Path) -> usize {
    let keep = tempfile::tempdir().unwrap();
    let place = Utf8Path::from_path(keep.path()).unwrap();
    let request = ConvertRequest::new(folder, place.join("inner"), Form::Internal);
    let plan = weights::plan_conversion(&request).unwrap_or_else(|failure| panic!("{folder}: {failure}"));
    plan.execute(false, 0.0, 1, &mut |_| ControlFlow::Continue(())).unwrap();
    let recorded = Header::read(&oracle::pass(folder)).unwrap();
    let checkpoint = Checkpoint::open(&place.join("inner")).unwrap();
    let (pass, grads) = forward_backward(&recipe(place, &recorded), &checkpoint, &recorded);
    let error = relative(&pass.output, &tensor(&recorded, "out.sample"), 0.0);
    assert!(error < 1e-5, "{folder}: the output differs by {error:e}");
    let wanted: BTreeMap<&str, Tensor> = recorded
        .tensors
        .keys()
        .filter_map(|name| Some((name.strip_prefix("out.grad.")?, tensor(&recorded, name))))
        .collect();
    for name in grads.keys().filter(|name| !wanted.contains_key(name.as_str())) {
        println!("not compared: {folder} has no out.grad.{name}");
    }
    // Where the gradient is zero, the recorded value is rounding error: see the test in `dit` with the same numbers.
    let floor = wanted.values().map(|t| t.norm().double_value(&[])).fold(0.0, f64::max) * 1e-4;
    let got = |name: &str| grads.get(name).unwrap_or_else(|| panic!("{folder}: no gradient for {name}"));
    let mut errors: Vec<_> = wanted.iter().map(|(name, want)| (relative(got(name), want, floor), *name)).collect();
    match recorded.tensors.contains_key("out.grad_latent") {
        true => {
            let got = pass.grad_latent.expect("the latent requires a gradient");
            errors.push((relative(&got, &tensor(&recorded, "out.grad_latent"), 0.0), "the latent"));
        }
        false => println!("not compared: {folder} has no out.grad_latent"),
    }
    if let Some(worst) = errors.iter().max_by(|a, b| a.0.total_cmp(&b.0)) {
        assert!(worst.0 < 1e-4, "{folder}: the gradient of {} differs by {:e}", worst.1, worst.0);
        println!("{folder}: output {error:e}, {} gradients, worst {:e} ({})", errors.len(), worst.0, worst.1);
    }
    errors.len()
}

#[test]
fn oracle_converted_weights_give_the_outputs_and_gradients_of_diffusers() {
    for folder in oracle::passes() {
        follow(&folder);
    }
}

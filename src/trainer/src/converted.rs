//! Converted weights in the trainer, held to the numbers of diffusers: a model that it saved is converted, loaded as a
//! run loads it, and gives the recorded output and every recorded gradient.
//!
//! Reads `tests/fixtures/oracle`, or the folder in `VIDTUI_ORACLE`: every folder `cogvideox/*/` that has a transformer and
//! a `forward_backward.safetensors`.

use crate::checkpoint::{self, Restore};
use crate::data::kind;
use crate::optim::Moments;
use crate::parallelize::{Sharded, layouts, unit_tables};
use camino::{Utf8Path, Utf8PathBuf};
use dist::flat::Which;
use dist::fsdp::Fsdp;
use dist::mesh::MeshGroups;
use dit::block::Keep;
use dit::embed::Inputs;
use dit::network::{Network, Walk};
use recipe::Recipe;
use rundir::Checkpoint;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tch::{Kind, Tensor};
use weights::{ConvertRequest, Form, Header};

fn models() -> Vec<Utf8PathBuf> {
    let root = std::env::var("VIDTUI_ORACLE")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/oracle").into());
    let folder = Utf8PathBuf::from(root).join("cogvideox");
    let mut found: Vec<_> = folder
        .read_dir_utf8()
        .map(|entries| entries.filter_map(Result::ok).map(|e| e.into_path()).collect::<Vec<_>>())
        .unwrap_or_default();
    found.retain(|f| f.join("transformer/config.json").exists() && f.join("forward_backward.safetensors").exists());
    found.sort();
    if found.is_empty() {
        eprintln!("SKIPPED: no recorded models below {folder}");
    }
    found
}

fn tensor(header: &Header, name: &str) -> Tensor {
    let info = header.tensor(name).unwrap();
    let shape: Vec<i64> = info.shape.iter().map(|&d| d as i64).collect();
    Tensor::from_data_size(&header.read_tensor(name).unwrap(), &shape, kind(info.dtype))
}

/// The recipe that begins with the converted model, for inputs of the recorded size.
fn recipe(place: &Utf8Path, recorded: &Header) -> Recipe {
    let file = place.join("recipe.toml");
    let rest = "[data]\nindex = \"none.jsonl\"\n[train]\nsteps = 1\nglobal_batch = 1\ndtype = \"float32\"\n";
    std::fs::write(&file, format!("base = \"inner/model.toml\"\n{rest}")).unwrap();
    let latent = &recorded.tensors["in.latent"].shape;
    let sizes = [("latent_frames", latent[1]), ("latent_height", latent[3]), ("latent_width", latent[4])];
    let sets = sizes.map(|(key, size)| format!("model.{key}={size}"));
    recipe::load(&file, &sets).unwrap_or_else(|e| panic!("{e}")).recipe
}

/// Loads the checkpoint as a run of one rank does, and walks forward and back; gradients by their diffusers names.
fn walk(recipe: &Recipe, checkpoint: &Checkpoint, recorded: &Header) -> (Walk, BTreeMap<String, Tensor>) {
    let tables = unit_tables(recipe);
    let mut fsdp = Fsdp::new(layouts(recipe, &tables), MeshGroups::alone(), Kind::Float);
    let moments = Moments::new(&fsdp, &tables, &recipe.optimizer);
    let mut sharded = checkpoint::Sharded { fsdp: &fsdp, moments: &moments, tables: &tables };
    checkpoint::load(&mut sharded, checkpoint, Restore::Weights).unwrap();
    let network = Network::new(&recipe.model, Keep::Attention, recipe.remat.scan_group);
    let inputs = Inputs {
        latent: tensor(recorded, "in.latent").set_requires_grad(true),
        text: tensor(recorded, "in.text"),
        timestep: tensor(recorded, "in.timestep"),
    };
    let cotangent = tensor(recorded, "in.grad_sample");
    let walk =
        network.forward_backward(&mut Sharded(&mut fsdp), &inputs, |out| (out * &cotangent).sum(Kind::Float)).unwrap();
    fsdp.finish_reduce().unwrap();
    let grads: Vec<Tensor> = fsdp.shards().map(|shard| shard.grad.shallow_clone()).collect();
    let mut named = BTreeMap::new();
    for owned in fsdp.owned().into_iter().filter(|owned| owned.run.which == Which::Trained) {
        let spec = &tables[owned.unit][owned.run.slot];
        let name = spec.diffusers.clone().unwrap();
        named.insert(name, grads[owned.unit].narrow(0, owned.run.shard_start, owned.run.len));
    }
    (walk, named)
}

/// `‖got - want‖ / max(‖want‖, floor)`
fn relative(got: &Tensor, want: &Tensor, floor: f64) -> f64 {
    let (got, want) = (got.to_kind(Kind::Double).flatten(0, -1), want.to_kind(Kind::Double).flatten(0, -1));
    ((got - &want).norm() / want.norm().clamp_min(floor)).double_value(&[])
}

#[test]
fn oracle_converted_weights_give_the_outputs_and_gradients_of_diffusers() {
    for folder in models() {
        let keep = tempfile::tempdir().unwrap();
        let place = Utf8Path::from_path(keep.path()).unwrap();
        let request = ConvertRequest::new(&folder, place.join("inner"), Form::Internal);
        let plan = weights::plan_conversion(&request).unwrap();
        plan.execute(false, 0.0, 1, &mut |_| ControlFlow::Continue(())).unwrap();
        let recorded = Header::read(&folder.join("forward_backward.safetensors")).unwrap();
        let checkpoint = Checkpoint::open(&place.join("inner")).unwrap();
        let (walk, grads) = walk(&recipe(place, &recorded), &checkpoint, &recorded);
        let error = relative(&walk.output, &tensor(&recorded, "out.sample"), 0.0);
        assert!(error < 1e-5, "{folder}: the output differs by {error:e}");
        let wanted: BTreeMap<&str, Tensor> = recorded
            .tensors
            .keys()
            .filter_map(|name| Some((name.strip_prefix("out.grad.")?, tensor(&recorded, name))))
            .collect();
        assert!(wanted.keys().copied().eq(grads.keys().map(String::as_str)), "{folder}: other gradients");
        // Rounding alone is recorded where the gradient is zero: see the test of `dit` on the same numbers.
        let floor = wanted.values().map(|t| t.norm().double_value(&[])).fold(0.0, f64::max) * 1e-4;
        let worst = wanted.iter().map(|(name, want)| (relative(&grads[*name], want, floor), *name));
        let worst = worst.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
        assert!(worst.0 < 1e-4, "{folder}: the gradient of {} differs by {:e}", worst.1, worst.0);
        println!("{folder}: output {error:e}, {} gradients, worst {:e} ({})", wanted.len(), worst.0, worst.1);
    }
}

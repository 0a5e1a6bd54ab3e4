//! The network held to the numbers of diffusers: forward pass and every gradient of CogVideoX-shaped models.
//!
//! Reads `tests/fixtures/oracle`, or the folder in `VIDTUI_ORACLE`: every folder `cogvideox/*/` that has a transformer
//! and a `forward_backward.safetensors` is tested, with names and sizes taken from its files.

#![expect(clippy::unwrap_used, reason = "a test that unwraps says where it broke")]

mod support;

use camino::Utf8Path;
use dit::block::Keep;
use dit::diffusion::Schedule;
use dit::embed::Inputs;
use dit::network::{Network, Units};
use dit::params::{SlotGrad, UnitParams, unit_specs};
use recipe::{Layer, LrAlignment, Model, ParamSpec, Positions, Role, Unit};
use support::{Tensors, entries, read, relative};
use tch::{Kind, TchError, Tensor};

fn read_folder(folder: &Utf8Path) -> Tensors {
    let mut tensors = Tensors::new();
    for file in folder.read_dir_utf8().unwrap() {
        let path = file.unwrap().into_path();
        if path.extension() == Some("safetensors") {
            read(&path, &mut tensors);
        }
    }
    tensors
}

/// A model with the sizes of a diffusers configuration and of the recorded inputs.
fn model(config: &Utf8Path, case: &Tensors) -> Model {
    let config: serde_json::Value = serde_json::from_slice(&std::fs::read(config).unwrap()).unwrap();
    let size = |key: &str| config[key].as_u64().unwrap_or_else(|| panic!("{key} in config.json")) as usize;
    let flag = |key: &str| config[key].as_bool().unwrap();
    let latent = case["in.latent"].size();
    Model {
        positions: match (flag("use_learned_positional_embeddings"), flag("use_rotary_positional_embeddings")) {
            (true, _) => Positions::Learned,
            (false, true) => Positions::Rope,
            (false, false) => Positions::SinCos,
        },
        num_layers: size("num_layers"),
        num_heads: size("num_attention_heads"),
        head_dim: size("attention_head_dim"),
        time_embed_dim: size("time_embed_dim"),
        text_dim: size("text_embed_dim"),
        text_len: case["in.text"].size()[1] as usize,
        in_channels: size("in_channels"),
        out_channels: size("out_channels"),
        patch_size: size("patch_size"),
        patch_size_t: config["patch_size_t"].as_u64().unwrap_or(1) as usize,
        ofs_embedding: !config["ofs_embed_dim"].is_null(),
        latent_frames: latent[1] as usize,
        latent_height: latent[3] as usize,
        latent_width: latent[4] as usize,
        segments: 1,
        layer: Layer::None,
        ttt_mini_batch: 0,
        ttt_base_lr: 0.1,
        ttt_lr_alignment: LrAlignment::Aligned,
        norm_eps: config["norm_eps"].as_f64().unwrap(),
        qk_norm_eps: 1e-6,
        latent_scale: 1.0,
        spatial_interpolation: config["spatial_interpolation_scale"].as_f64().unwrap(),
        temporal_interpolation: config["temporal_interpolation_scale"].as_f64().unwrap(),
    }
}

fn diffusers(spec: &ParamSpec) -> &str {
    spec.diffusers.as_deref().expect("diffusers has every tensor of plain CogVideoX")
}

/// Whole parameters by their diffusers names; gradients are kept under the same names.
struct Whole<'a> {
    model: &'a Model,
    weights: &'a Tensors,
    grads: Tensors,
}

impl Units for Whole<'_> {
    type Error = TchError;

    fn gather(&mut self, unit: Unit, _: Option<Unit>) -> Result<UnitParams, TchError> {
        let tensors = unit_specs(self.model, unit)
            .iter()
            .map(|spec| self.weights[diffusers(spec)].detach().set_requires_grad(spec.role == Role::Trained))
            .collect();
        Ok(UnitParams::new(tensors))
    }

    fn reduce(&mut self, unit: Unit, grads: Vec<SlotGrad>) -> Result<(), TchError> {
        let specs = unit_specs(self.model, unit);
        for (slot, grad) in grads {
            let twice = self.grads.insert(diffusers(&specs[slot]).to_owned(), grad);
            assert!(twice.is_none(), "{} got two gradients", specs[slot].name);
        }
        Ok(())
    }
}

#[test]
fn oracle_cogvideox_forward_and_every_gradient_are_those_of_diffusers() {
    for folder in entries("cogvideox", |p| {
        p.join("transformer/config.json").exists() && p.join("forward_backward.safetensors").exists()
    }) {
        let mut case = Tensors::new();
        read(&folder.join("forward_backward.safetensors"), &mut case);
        let model = model(&folder.join("transformer/config.json"), &case);
        let weights = read_folder(&folder.join("transformer"));
        let rotary = case.get("in.rope_cos").map(|cos| {
            // diffusers repeats each angle for both members of a pair.
            let half = |t: &Tensor| t.slice(1, 0, None, 2);
            dit::positions::rotary_from(&half(cos), &half(&case["in.rope_sin"]), model.text_len as i64)
        });
        for keep in [Keep::Attention, Keep::Input] {
            let network = Network::with_rotary(&model, keep, 16, rotary.as_ref().map(Tensor::shallow_clone));
            let mut units = Whole { model: &model, weights: &weights, grads: Tensors::new() };
            let inputs = Inputs {
                latent: case["in.latent"].set_requires_grad(true),
                text: case["in.text"].shallow_clone(),
                timestep: case["in.timestep"].shallow_clone(),
            };
            let walk = network
                .forward_backward(&mut units, &inputs, |out| (out * &case["in.grad_sample"]).sum(Kind::Float))
                .expect("nobody to lose");
            let error = relative(&walk.output, &case["out.sample"], 0.0);
            assert!(error < 1e-5, "{folder} {keep:?}: output differs by {error:e}");
            let grad_latent = walk.grad_latent.expect("the latent asked for a gradient");
            let error = relative(&grad_latent, &case["out.grad_latent"], 0.0);
            assert!(error < 1e-4, "{folder} {keep:?}: the latent's gradient differs by {error:e}");
            let recorded = || case.iter().filter_map(|(k, v)| Some((k.strip_prefix("out.grad.")?, v)));
            // Without rotation a constant added to every key changes nothing: that bias has the gradient zero, and what
            // is recorded is rounding. So no gradient is asked to be truer than one part in 1e8 of the largest.
            let floor = recorded().map(|(_, t)| t.norm().double_value(&[])).fold(0.0, f64::max) * 1e-4;
            let mut worst = (0.0, String::new());
            let mut count = 0;
            for (name, want) in recorded() {
                let got = units.grads.get(name).unwrap_or_else(|| panic!("{folder}: no gradient for {name}"));
                let error = relative(got, want, floor);
                assert!(error < 1e-4, "{folder} {keep:?}: the gradient of {name} differs by {error:e}");
                worst = if error > worst.0 { (error, name.to_owned()) } else { worst };
                count += 1;
            }
            assert!(count > 0, "{folder}: no gradients recorded");
            assert_eq!(count, units.grads.len(), "{folder}: gradients that diffusers does not have");
            println!("{folder} {keep:?}: {count} gradients, worst {:e} ({})", worst.0, worst.1);
        }
    }
}

#[test]
fn oracle_cogvideox_schedules_are_those_of_diffusers() {
    for folder in entries("cogvideox", |p| p.join("tables.safetensors").exists()) {
        let mut tables = Tensors::new();
        read(&folder.join("tables.safetensors"), &mut tables);
        let error = relative(&Schedule::default().alphas_cumprod(), &tables["alphas_cumprod"], 0.0);
        assert!(error < 1e-6, "{folder}: ᾱ differs by {error:e}");
    }
}

//! Compares the network with numbers recorded from diffusers: forward pass and every gradient of CogVideoX-shaped models.
//!
//! Reads `tests/fixtures/oracle`, or the folder in `VIDTUI_ORACLE`: every folder `cogvideox/*/` or `i2v/*/` with a
//! transformer and a `forward_backward.safetensors` is tested; names and sizes come from its files.

mod support;

use camino::{Utf8Path, Utf8PathBuf};
use dit::block::ActivationCheckpointing;
use dit::diffusion::NoiseSchedule;
use dit::family::Inputs;
use dit::mixers::Kept;
use dit::network::Network;
use recipe::Model;
use serde_json::Value;
use support::device::{device, there};
use support::whole::{Whole, all_weights};
use support::{Tensors, Twice, load, oracle, relative, write, write_twice};
use tch::{Kind, Tensor};

/// Returns the model of a diffusers configuration, with the sizes of the recorded inputs.
fn model(config: &Utf8Path, case: &Tensors) -> Model {
    let config = weights::Config::read(config).unwrap_or_else(|failure| panic!("{failure}"));
    let model = weights::model_from_diffusers(&config).unwrap_or_else(|failure| panic!("{failure}"));
    let latent = case["in.latent"].size();
    Model {
        text_len: case["in.text"].size()[1] as usize,
        latent_frames: latent[1] as usize,
        latent_height: latent[3] as usize,
        latent_width: latent[4] as usize,
        ..model
    }
}

/// Runs a recorded model forward and backward and compares all recorded tensors; returns the number of gradients.
fn follow(folder: &Utf8Path) -> usize {
    let case = load(&oracle::pass(folder));
    let model = model(&folder.join("transformer/config.json"), &case);
    let weights = all_weights(&folder.join("transformer"));
    let rotary = case.get("in.rope_cos").map(|cos| {
        // diffusers repeats each angle for both members of a pair.
        let half = |t: &Tensor| t.slice(1, 0, None, 2);
        dit::cogvideox::positions::rotary_from(&half(cos), &half(&case["in.rope_sin"]), model.text_len as i64)
    });
    let mut compared = 0;
    for keep in [ActivationCheckpointing::Selective(Kept::ATTENTION), ActivationCheckpointing::Full] {
        let network = match &rotary {
            Some(rotary) => Network::with_rotary(&model, keep, 16, Some(rotary.shallow_clone())),
            None => Network::new(&model, keep, 16),
        };
        let network = match case.get("in.ofs") {
            Some(offset) => network.at_offset(offset),
            None => network,
        };
        let network = network.on(device());
        let mut units = Whole { model: &model, weights: &weights, grads: Tensors::new() };
        let inputs = Inputs {
            latent: case["in.latent"].set_requires_grad(true),
            text: case["in.text"].shallow_clone(),
            timestep: case["in.timestep"].shallow_clone(),
            conditions: Vec::new(),
        };
        let pass = network
            .forward_backward(&mut units, &inputs.map(there), |out| {
                (out * there(&case["in.grad_sample"])).sum(Kind::Float)
            })
            .expect("one rank has no peers");
        let error = relative(&pass.output, &case["out.sample"], 0.0);
        assert!(error < 1e-5, "{folder} {keep:?}: output differs by {error:e}");
        match case.get("out.grad_latent") {
            Some(recorded) => {
                let error = relative(&pass.grad_latent.expect("the latent requires a gradient"), recorded, 0.0);
                assert!(error < 1e-4, "{folder} {keep:?}: the latent's gradient differs by {error:e}");
            }
            None => println!("not compared: {folder} has no out.grad_latent"),
        }
        let recorded = || case.iter().filter_map(|(k, v)| Some((k.strip_prefix("out.grad.")?, v)));
        // Without rotation a constant added to every key changes nothing: the gradient of that bias is zero, and its recorded
        // value is rounding error. So the tolerance of every gradient is at least 1e-8 of the largest.
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
        for name in units.grads.keys().filter(|name| !case.contains_key(&format!("out.grad.{name}"))) {
            println!("not compared: {folder} has no out.grad.{name}");
        }
        println!("{folder} {keep:?}: {count} gradients, worst {:e} ({})", worst.0, worst.1);
        compared += count;
    }
    compared
}

#[test]
fn oracle_cogvideox_forward_and_every_gradient_are_those_of_diffusers() {
    for folder in oracle::passes() {
        follow(&folder);
    }
}

#[test]
fn oracle_the_2b_model_for_inpainting_has_the_numbers_of_videox_fun_at_every_size() {
    let is_model = |folder: &Utf8Path| folder.join("forward_backward_own.safetensors").is_file();
    for folder in oracle::entries("fun", "*/forward_backward_own.safetensors", is_model) {
        let weights = all_weights(&folder.join("transformer"));
        for name in ["own", "other_size", "other_length_and_size", "shorter", "image"] {
            let case = load(&folder.join(format!("forward_backward_{name}.safetensors")));
            let model = model(&folder.join("transformer/config.json"), &case);
            assert!(model.cogvideox().resize_positions, "{folder}");
            let error = relative(&dit::cogvideox::positions::sin_cos(&model), &case["mid.positions"], 0.0);
            assert!(error < 1e-5, "{folder} {name}: positions differ by {error:e}");
            let network = Network::new(&model, ActivationCheckpointing::Full, 16).on(device());
            let mut units = Whole { model: &model, weights: &weights, grads: Tensors::new() };
            let latent = Tensor::cat(&[&case["in.latent"], &case["in.inpaint_latents"]], 2);
            let inputs = Inputs {
                latent: latent.set_requires_grad(true),
                text: case["in.text"].shallow_clone(),
                timestep: case["in.timestep"].shallow_clone(),
                conditions: Vec::new(),
            };
            let loss = |out: &Tensor| (out * there(&case["in.grad_sample"])).sum(Kind::Float);
            let pass = network.forward_backward(&mut units, &inputs.map(there), loss).expect("one rank has no peers");
            let error = relative(&pass.output, &case["out.sample"], 0.0);
            assert!(error < 1e-5, "{folder} {name}: the output differs by {error:e}");
            let recorded = Tensor::cat(&[&case["out.grad_latent"], &case["out.grad_inpaint_latents"]], 2);
            let error = relative(&pass.grad_latent.expect("the latent requires a gradient"), &recorded, 0.0);
            assert!(error < 1e-4, "{folder} {name}: the gradient of the latent differs by {error:e}");
        }
    }
}

#[test]
fn oracle_cogvideox_schedules_are_those_of_diffusers() {
    let has_table = |folder: &Utf8Path| folder.join("tables.safetensors").is_file();
    for folder in oracle::entries("cogvideox", "*/tables.safetensors", has_table) {
        let error = relative(
            NoiseSchedule::default().alphas_cumprod(),
            &load(&folder.join("tables.safetensors"))["alphas_cumprod"],
            0.0,
        );
        assert!(error < 1e-6, "{folder}: ᾱ differs by {error:e}");
    }
}

/// Returns the path of one of the project's fixtures.
fn own(name: &str) -> Utf8PathBuf {
    Utf8Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/oracle/cogvideox")).join(name)
}

#[test]
fn a_model_in_one_file_with_a_variant_and_a_minimal_config_gives_the_recorded_numbers() {
    // CogVideoX 1.5 image-to-video has every feature: rotary tables, an offset, patches of two frames.
    for name in ["cogvideox_2b_tiny", "cogvideox15_5b_i2v_tiny"] {
        let keep = tempfile::tempdir().unwrap();
        let (from, to) = (own(name), Utf8Path::from_path(keep.path()).unwrap());
        let transformer = to.join("transformer");
        std::fs::create_dir(&transformer).unwrap();
        let all = all_weights(&from.join("transformer"));
        write(&transformer.join("diffusion_pytorch_model.safetensors"), &all, Default::default());
        let half: Tensors = all.iter().map(|(name, t)| (name.clone(), t.zeros_like().to_kind(Kind::Half))).collect();
        write(&transformer.join("diffusion_pytorch_model.fp16.safetensors"), &half, Default::default());
        // Remove the keys whose values are diffusers' defaults.
        let text = std::fs::read(from.join("transformer/config.json")).unwrap();
        let mut config: serde_json::Map<String, Value> = serde_json::from_slice(&text).unwrap();
        for (key, default) in [
            ("dropout", Value::from(0.0)),
            ("norm_eps", Value::from(1e-5)),
            ("patch_size", Value::from(2)),
            ("patch_size_t", Value::Null),
            ("ofs_embed_dim", Value::Null),
            ("spatial_interpolation_scale", Value::from(1.875)),
            ("temporal_interpolation_scale", Value::from(1.0)),
            ("temporal_compression_ratio", Value::from(4)),
            ("use_learned_positional_embeddings", Value::from(false)),
            ("flip_sin_to_cos", Value::from(true)),
        ] {
            if config[key] == default {
                config.remove(key);
            }
        }
        std::fs::write(transformer.join("config.json"), serde_json::to_string(&config).unwrap()).unwrap();
        write_twice(&oracle::pass(&from), &oracle::pass(to), |name| match name {
            "out.grad_latent" => Twice::Out,
            "in.rope_cos" | "in.rope_sin" => Twice::Same,
            name if name.starts_with("out.grad.") => Twice::Sum,
            _ => Twice::Again,
        });
        assert!(follow(to) > 100, "{name}");
    }
}

#[test]
fn the_output_depends_on_the_recorded_offset() {
    let folder = own("cogvideox15_5b_i2v_tiny");
    let case = load(&oracle::pass(&folder));
    let model = model(&folder.join("transformer/config.json"), &case);
    let all = all_weights(&folder.join("transformer"));
    let output = |offset: Option<f64>| {
        let network = Network::new(&model, ActivationCheckpointing::Full, 16);
        let network = match offset {
            Some(offset) => network.at_offset(&Tensor::from_slice(&[offset])),
            None => network,
        };
        let network = network.on(device());
        let mut units = Whole { model: &model, weights: &all, grads: Tensors::new() };
        let inputs = Inputs {
            latent: case["in.latent"].shallow_clone(),
            text: case["in.text"].shallow_clone(),
            timestep: case["in.timestep"].shallow_clone(),
            conditions: Vec::new(),
        };
        network
            .forward_backward(&mut units, &inputs.map(there), |out| out.sum(Kind::Float))
            .expect("one rank has no peers")
            .output
    };
    assert_eq!(output(None), output(Some(2.0)));
    assert!(relative(&output(Some(3.0)), &output(None), 0.0) > 1e-4);
}

#[test]
fn tensors_in_half_precision_are_read_as_fp32() {
    let keep = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(keep.path()).unwrap().join("half.safetensors");
    let numbers = Tensor::from_slice(&[0.5f32, -3.0, 1024.0]);
    let kinds = [("f16", Kind::Half), ("bf16", Kind::BFloat16), ("f32", Kind::Float)];
    let tensors = Tensors::from(kinds.map(|(name, kind)| (name.to_owned(), numbers.to_kind(kind))));
    write(&path, &tensors, Default::default());
    for (name, tensor) in load(&path) {
        assert_eq!((tensor.kind(), &tensor), (Kind::Float, &numbers), "{name}");
    }
}

//! Compares the network of Wan with numbers recorded from diffusers: forward pass and every gradient.
//!
//! Reads `wan/` of the recorded numbers: every folder with a transformer and recorded passes is tested; names and sizes come from its files.

mod support;

use camino::Utf8Path;
use dit::block::ActivationCheckpointing;
use dit::family::{Conditions, Inputs};
use dit::mixers::Kept;
use dit::network::Network;
use dit::wan::{FIRST_FRAME, IMAGE_EMBEDS, Wan, positions};
use recipe::families::wan::{Layout, file_tensor, param_specs, recognise};
use support::device::{device, there};
use support::wan::{Recorded, Whole, about, diffusers, recorded, turned};
use support::{Tensors, load, oracle, relative};
use tch::{Kind, Tensor};

/// The recorded passes of a model, of which a model has some.
const PASSES: [&str; 3] = ["forward_backward", "per_token", "one_frame"];

/// Returns the inputs of a recorded pass, with a latent that requires a gradient.
fn inputs(case: &Tensors) -> Inputs {
    let embeds = case.get("in.image_embeds").map(|embeds| (IMAGE_EMBEDS, embeds.shallow_clone()));
    Inputs {
        latent: turned(&case["in.latent"]).contiguous().set_requires_grad(true),
        text: case["in.text"].shallow_clone(),
        timestep: case["in.timestep"].shallow_clone(),
        conditions: embeds.into_iter().collect(),
    }
}

/// Compares all recorded tensors of a pass, with every kind of activation checkpointing; returns the number of gradients.
fn follow(folder: &Utf8Path, name: &str) -> usize {
    let case = load(&folder.join(format!("{name}.safetensors")));
    let recorded = Recorded::read(&folder.join("transformer"), case["in.text"].size()[1]);
    let kept = ActivationCheckpointing::Selective(Kept::ATTENTION);
    let mut compared = 0;
    for (keep, group) in [(kept, 1), (ActivationCheckpointing::Full, 1), (ActivationCheckpointing::Full, 2)] {
        let network = Network::of(Wan::new(&recorded.model), keep).grouped(group).on(device());
        let mut units = recorded.units();
        let cotangent = there(&turned(&case["in.grad_sample"]));
        let pass = network
            .forward_backward(&mut units, &inputs(&case).map(there), |out| (out * &cotangent).sum(Kind::Float))
            .expect("one rank has no peers");
        let error = relative(&pass.output, &turned(&case["out.sample"]), 0.0);
        assert!(error < 1e-5, "{folder} {name} {keep:?}: the output differs by {error:e}");
        let grad_latent = pass.grad_latent.expect("the latent requires a gradient");
        match case.get("out.grad_latent") {
            Some(want) => {
                let error = relative(&grad_latent, &turned(want), 0.0);
                assert!(error < 1e-4, "{folder} {name} {keep:?}: the latent's gradient differs by {error:e}");
            }
            None => println!("not compared: {folder} {name} has no out.grad_latent"),
        }
        compared += compare_gradients(&units, &case, &format!("{folder} {name} {keep:?}"));
    }
    compared
}

/// Compares the recorded gradients of parameters, and returns their number: that of all parameters, or none.
fn compare_gradients(units: &Whole<'_>, case: &Tensors, what: &str) -> usize {
    let recorded = || case.iter().filter_map(|(name, tensor)| Some((name.strip_prefix("out.grad.")?, tensor)));
    // The bias of keys changes nothing where nothing depends on positions, so its recorded gradient may be rounding error.
    let floor = recorded().map(|(_, tensor)| tensor.norm().double_value(&[])).fold(0.0, f64::max) * 1e-4;
    let ours: std::collections::BTreeMap<_, _> =
        units.grads.iter().map(|(name, grad)| (diffusers(name), grad)).collect();
    for (name, want) in recorded() {
        let error = relative(ours[name], want, floor);
        assert!(error < 1e-4, "{what}: the gradient of {name} differs by {error:e}");
    }
    let count = recorded().count();
    assert!(count == 0 || count == ours.len(), "{what}: {count} of {} gradients", ours.len());
    count
}

/// Returns the folders of recorded models.
fn models() -> Vec<camino::Utf8PathBuf> {
    oracle::entries("wan", "*/transformer/config.json", |folder| folder.join("transformer/config.json").is_file())
}

#[test]
fn oracle_wan_forward_and_every_gradient_are_those_of_diffusers() {
    let mut gradients = 0;
    for folder in models() {
        for name in PASSES.into_iter().filter(|name| folder.join(format!("{name}.safetensors")).is_file()) {
            gradients += follow(&folder, name);
        }
    }
    assert!(gradients > 0 || models().is_empty());
}

#[test]
fn oracle_the_rotary_factors_of_wan_are_those_of_diffusers_at_real_sizes() {
    let Some(file) = recorded("rope.safetensors") else { return };
    let case = load(&file);
    let grids: Vec<[i64; 4]> = serde_json::from_value(about(&file)["grids"].clone()).unwrap();
    for [head_dim, frames, rows, columns] in grids {
        let all = Tensor::view_as_real(&positions::rotary(head_dim, [frames, rows, columns]));
        let name = |part: &str| format!("hd{head_dim}_{frames}x{rows}x{columns}.out.{part}");
        let own = all.index_select(0, &case[&name("rows")]);
        for (i, part) in ["cos", "sin"].into_iter().enumerate() {
            // diffusers repeats each angle for both members of a pair.
            let own = own.select(-1, i as i64).repeat_interleave_self_int(2, -1, None);
            let error = (own - &case[&name(part)]).abs().max().double_value(&[]);
            assert!(error < 1e-6, "{part} of {head_dim}: {error:e}");
        }
    }
}

#[test]
fn a_recorded_model_is_recognised_by_its_tensors() {
    for folder in models() {
        let recorded = Recorded::read(&folder.join("transformer"), 512);
        for layout in Layout::ALL {
            let place = |name: &str| file_tensor(layout, name).unwrap().name;
            let tensors =
                param_specs(&recorded.model).into_iter().map(|spec| (place(&spec.name), spec.shape)).collect();
            let found = recognise(&tensors, recorded.model.head_dim).unwrap();
            assert_eq!((found.layout, &found.model, found.release), (layout, &recorded.model, None), "{folder}");
        }
    }
}

/// Returns the output of a recorded model for changed inputs.
fn output(recorded: &Recorded, inputs: &Inputs) -> Tensor {
    let network = Network::of(Wan::new(&recorded.model), ActivationCheckpointing::Full).on(device());
    network.forward(&mut recorded.units(), &inputs.map(there)).expect("one rank has no peers")
}

/// Reads a recorded pass of one of the project's own models.
fn own(folder: &str, name: &str) -> (Recorded, Tensors) {
    let folder = support::wan::own(folder);
    let case = load(&folder.join(format!("{name}.safetensors")));
    (Recorded::read(&folder.join("transformer"), case["in.text"].size()[1]), case)
}

#[test]
fn zero_rows_follow_a_short_text() {
    let (recorded, case) = own("t2v_tiny", "forward_backward");
    let (text, kept) = (&case["in.text"], 5);
    let rest = text.size()[1] - kept;
    let zeroed = Tensor::cat(&[text.narrow(1, 0, kept), text.narrow(1, kept, rest).zeros_like()], 1);
    let of = |text: Tensor| output(&recorded, &Inputs { text, ..inputs(&case) });
    assert_eq!(of(text.narrow(1, 0, kept)), of(zeroed));
    assert!(relative(&of(text.narrow(1, 0, kept)), &of(text.shallow_clone()), 0.0) > 1e-3);
}

#[test]
fn a_clean_first_frame_is_an_input_whose_tokens_have_time_zero() {
    let (recorded, case) = own("ti2v5b_tiny", "per_token");
    let recorded_times = &case["in.timestep"];
    let timestep = recorded_times.amax([-1i64], false);
    let latent = turned(&case["in.latent"]);
    let first = latent.narrow(1, 0, 1);
    let noised = Tensor::cat(&[first.randn_like(), latent.narrow(1, 1, latent.size()[1] - 1)], 1);
    let conditions: Conditions = vec![(FIRST_FRAME, first.shallow_clone())];
    let by_condition = output(&recorded, &Inputs { latent: noised, timestep, conditions, ..inputs(&case) });
    assert!(relative(&by_condition, &turned(&case["out.sample"]), 0.0) < 1e-5);
}

#[test]
fn one_time_for_all_tokens_is_the_time_of_the_sample() {
    let (recorded, case) = own("ti2v5b_tiny", "forward_backward");
    let tokens = own("ti2v5b_tiny", "per_token").1["in.timestep"].size()[1];
    let timestep = case["in.timestep"].unsqueeze(1).repeat([1, tokens]);
    let of_tokens = output(&recorded, &Inputs { timestep, ..inputs(&case) });
    assert!(relative(&of_tokens, &turned(&case["out.sample"]), 0.0) < 1e-5);
}

#[test]
fn embeddings_of_images_are_not_changed() {
    let (recorded, case) = own("flf2v_tiny", "forward_backward");
    let (inputs, before) = (inputs(&case), case["in.image_embeds"].copy());
    let _ = output(&recorded, &inputs);
    assert_eq!(case["in.image_embeds"], before);
}

#[test]
fn a_condition_is_concatenated_with_the_latent_on_the_channels() {
    let (recorded, case) = own("i2v22_tiny", "forward_backward");
    let whole = turned(&case["in.latent"]);
    let noised = recorded.model.out_channels as i64;
    let mask = recorded.model.in_channels as i64 - 2 * noised;
    let part = |start, len| whole.narrow(2, start, len).contiguous();
    let inputs = Inputs {
        latent: part(0, noised),
        conditions: vec![("mask", part(noised, mask)), ("image", part(noised + mask, noised))],
        ..inputs(&case)
    };
    assert!(relative(&output(&recorded, &inputs), &turned(&case["out.sample"]), 0.0) < 1e-5);
}

#[test]
fn the_output_and_gradients_in_bf16_are_close_to_those_in_fp32() {
    for (folder, name) in [("i2v21_tiny", "forward_backward"), ("ti2v5b_tiny", "per_token")] {
        let (mut recorded, case) = own(folder, name);
        let half = |tensor: &Tensor| tensor.to_kind(Kind::BFloat16);
        recorded.weights.values_mut().for_each(|weight| *weight = half(weight));
        let mut inputs = inputs(&case);
        let timestep = inputs.timestep.shallow_clone();
        inputs = Inputs { timestep, ..inputs.map(half) };
        let cotangent = there(&turned(&case["in.grad_sample"]));
        let network = Network::of(Wan::new(&recorded.model), ActivationCheckpointing::Full).on(device());
        let mut units = recorded.units();
        let loss = |out: &Tensor| (out.to_kind(Kind::Float) * &cotangent).sum(Kind::Float);
        let pass = network.forward_backward(&mut units, &inputs.map(there), loss).expect("one rank has no peers");
        assert_eq!(pass.output.kind(), Kind::BFloat16);
        let error = relative(&pass.output, &turned(&case["out.sample"]), 0.0);
        assert!(error < 0.02, "{folder}: the output differs by {error:e}");
        for name in ["blocks.0.modulation", "blocks.1.attn.q_norm.weight", "patch_embed.weight"] {
            let error = relative(&units.grads[name], &case[&format!("out.grad.{}", diffusers(name))], 0.0);
            assert!(error < 0.1, "{folder}: the gradient of {name} differs by {error:e}");
        }
    }
}

//! Compares MMDiTs with numbers recorded from Open-Sora 2 and from Flux of diffusers: the network, its gradients, and conversions between the
//! layouts of files.
//!
//! Reads `opensora/mmdit_*.safetensors`, `opensora/checkpoints` and `flux` in `tests/fixtures/oracle`, or in the folder in `VIDTUI_ORACLE`;
//! sizes come from the files.

mod support;

use camino::{Utf8Path, Utf8PathBuf};
use dit::block::ActivationCheckpointing;
use dit::family::Inputs;
use dit::mixers::Kept;
use dit::mmdit::{GIVEN, GUIDANCE, Mmdit, POOLED};
use dit::network::Network;
use recipe::families::mmdit::{Layout, Mmdit as Sizes, file_tensor, param_specs};
use std::collections::BTreeSet;
use support::device::{device, there};
use support::mmdit::{Parameters, assert_same_grads, below, from_file, packed, sizes, sizes_of, to_file, unpacked};
use support::{Tensors, load, metadata, oracle, relative};
use tch::{Kind, Tensor};

/// Returns the recorded files whose names begin with `start`.
fn files(start: &str) -> Vec<Utf8PathBuf> {
    oracle::entries("opensora", &format!("{start}*.safetensors"), |path| {
        path.extension() == Some("safetensors") && path.file_name().is_some_and(|name| name.starts_with(start))
    })
}

/// Returns the recorded inputs of a network.
fn inputs(case: &Tensors, sizes: &Sizes) -> Inputs {
    let ids = &case["in.img_ids"];
    let grid = [0, 1, 2].map(|axis| ids.select(2, axis).max().double_value(&[]) as i64 + 1);
    let patch = sizes.patch_size as i64;
    let latent = |tokens: &Tensor| unpacked(tokens, grid, patch);
    let mut conditions =
        vec![(POOLED, case["in.y_vec"].shallow_clone()), (GUIDANCE, case["in.guidance"].shallow_clone())];
    conditions.extend(case.get("in.cond").map(|given| (GIVEN, latent(given))));
    Inputs {
        latent: latent(&case["in.img"]),
        text: case["in.txt"].shallow_clone(),
        timestep: case["in.timesteps"].shallow_clone(),
        conditions,
    }
}

/// Runs a recorded network forward and backward and compares all recorded tensors. `layout` is that of the recorded parameters; `None`: the
/// layout that the configuration selects.
fn follow(path: &Utf8Path, layout: Option<Layout>) {
    let case = load(path);
    let (sizes, own) = sizes_of(path, case["in.txt"].size()[1]);
    let (params, layout, patch) = (below(&case, "param."), layout.unwrap_or(own), sizes.patch_size as i64);
    for (keep, group) in [
        (ActivationCheckpointing::Selective(Kept::ATTENTION), 1),
        (ActivationCheckpointing::Full, 1),
        (ActivationCheckpointing::Full, 3),
        (ActivationCheckpointing::Full, sizes.num_blocks()),
    ] {
        let of = format!("{path} {keep:?} {group}");
        let network = Network::of(Mmdit::new(&sizes), keep).on(device()).grouped(group);
        let mut units = Parameters::read(&sizes, layout, &params);
        let mut inputs = inputs(&case, &sizes);
        inputs.latent = inputs.latent.set_requires_grad(true);
        let loss = |out: &Tensor| (packed(out, patch) * there(&case["in.grad_output"])).sum(Kind::Float);
        let pass = network.forward_backward(&mut units, &inputs.map(there), loss).expect("one rank has no peers");
        let error = relative(&packed(&pass.output, patch), &case["out.output"], 0.0);
        assert!(error < 1e-5, "{of}: the output differs by {error:e}");
        let grad = packed(&pass.grad_latent.expect("the latent requires a gradient"), patch);
        let error = relative(&grad, &case["out.grad_in.img"], 0.0);
        assert!(error < 1e-4, "{of}: the gradient of the latent differs by {error:e}");
        let count = assert_same_grads(&of, &units.grads_in_file(&sizes, layout, &params), &below(&case, "out.grad."));
        println!("{of}: {count} gradients");
        assert_eq!(network.forward(&mut units, &inputs.map(there)).expect("one rank has no peers"), pass.output);
    }
}

#[test]
fn oracle_mmdit_forward_and_every_gradient_are_those_of_open_sora() {
    files("mmdit_").iter().for_each(|path| follow(path, None));
}

#[test]
fn oracle_flux_forward_and_every_gradient_are_those_of_diffusers() {
    let is_file = |path: &Utf8Path| path.extension() == Some("safetensors");
    let found = oracle::entries("flux", "*.safetensors", is_file);
    found.iter().for_each(|path| follow(path, Some(Layout::Diffusers)));
}

#[test]
fn oracle_a_network_in_bf16_has_nearly_the_recorded_output_and_gradients() {
    for path in files("mmdit_") {
        let case = load(&path);
        let (sizes, layout) = sizes_of(&path, case["in.txt"].size()[1]);
        let (params, patch) = (below(&case, "param."), sizes.patch_size as i64);
        let bf16 = |tensor: &Tensor| tensor.to_kind(Kind::BFloat16);
        let mut units = Parameters::read(&sizes, layout, &params);
        units.tensors.iter_mut().for_each(|(_, tensor)| *tensor = bf16(tensor));
        let given = inputs(&case, &sizes);
        let inputs = Inputs { timestep: given.timestep.shallow_clone(), ..given.map(bf16) };
        let network = Network::of(Mmdit::new(&sizes), ActivationCheckpointing::Full).on(device());
        let loss = |out: &Tensor| (packed(out, patch) * there(&case["in.grad_output"])).sum(Kind::Float);
        let pass = network.forward_backward(&mut units, &inputs.map(there), loss).expect("one rank has no peers");
        assert_eq!(pass.output.kind(), Kind::BFloat16, "{path}");
        let error = relative(&packed(&pass.output, patch), &case["out.output"], 0.0);
        assert!(error < 0.03, "{path}: the output differs by {error:e}");
        assert!(units.grads.values().all(|grad| grad.kind() == Kind::BFloat16), "{path}");
        let (got, want) = (units.grads_in_file(&sizes, layout, &params), below(&case, "out.grad."));
        let norm = |grads: &Tensors| grads.values().map(|grad| grad.square().sum(Kind::Double)).sum::<Tensor>();
        let difference = want.iter().map(|(name, want)| (name.clone(), &got[name] - want)).collect();
        let error = (norm(&difference) / norm(&want)).sqrt().double_value(&[]);
        assert!(error < 0.05, "{path}: all gradients differ by {error:e}");
        println!("{path}: gradients differ by {error:e}");
    }
}

/// Returns a file of another layout with the same parameters. `like` has the shapes of its tensors.
fn converted(tensors: &Tensors, from: (&Sizes, Layout), to: (&Sizes, Layout), like: &Tensors) -> Tensors {
    let mut written = Tensors::new();
    for spec in param_specs(to.0) {
        let tensor = from_file(tensors, &file_tensor(from.0, from.1, &spec).expect("the layout has it"), &spec.shape);
        let place = file_tensor(to.0, to.1, &spec).expect("the layout has it");
        let shape = like.get(&place.name).unwrap_or_else(|| panic!("no {}", place.name)).size();
        let whole = || Tensor::full(&shape[..], f64::NAN, (tensor.kind(), tensor.device()));
        to_file(written.entry(place.name.clone()).or_insert_with(whole), &place, &tensor);
    }
    written
}

/// Asserts that two files have the same tensors, bit for bit.
fn assert_same_files(got: &Tensors, want: &Tensors) {
    let names = |tensors: &Tensors| tensors.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(got), names(want));
    for (name, want) in want {
        assert_eq!(&got[name], want, "{name}");
    }
}

/// Returns the sizes in the metadata of a checkpoint.
fn recorded_sizes(path: &Utf8Path, key: &str, text_tokens: i64) -> (Sizes, Layout) {
    sizes(&serde_json::from_str(&metadata(path)[key]).expect("the configuration is JSON"), text_tokens)
}

#[test]
fn oracle_the_layout_of_flux_converts_to_that_of_open_sora_and_back_bit_for_bit() {
    let is_flux = |path: &Utf8Path| path.file_name() == Some("flux_layout.safetensors");
    for path in oracle::entries("opensora/checkpoints", "flux_layout.safetensors", is_flux) {
        let (flux, open_sora) = (load(&path), load(&path.with_file_name("v2_layout.safetensors")));
        let (sizes, layout) = recorded_sizes(&path, "config", 1);
        assert_eq!(layout, Layout::Flux);
        // Open-Sora does not embed guidance.
        let plain = Sizes { guidance: false, ..sizes.clone() };
        let got = converted(&flux, (&sizes, layout), (&plain, Layout::OpenSora), &open_sora);
        assert_same_files(&got, &open_sora);
        let mut back = converted(&open_sora, (&plain, Layout::OpenSora), (&plain, Layout::Flux), &flux);
        let guidance = flux.iter().filter(|(name, _)| name.starts_with("guidance_in."));
        back.extend(guidance.map(|(name, tensor)| (name.clone(), tensor.shallow_clone())));
        assert_same_files(&back, &flux);
    }
}

#[test]
fn oracle_the_layouts_of_flux_and_open_sora_give_the_recorded_output() {
    let is_both = |path: &Utf8Path| path.file_name() == Some("layouts_f32.safetensors");
    for path in oracle::entries("opensora/checkpoints", "layouts_f32.safetensors", is_both) {
        let case = load(&path);
        for (key, prefix) in [("config", "v2."), ("flux_config", "flux.")] {
            let (sizes, layout) = recorded_sizes(&path, key, case["in.txt"].size()[1]);
            // The output was recorded without guidance.
            let sizes = Sizes { guidance: false, ..sizes };
            let network = Network::of(Mmdit::new(&sizes), ActivationCheckpointing::Full).on(device());
            let mut units = Parameters::read(&sizes, layout, &below(&case, prefix));
            let out = network.forward(&mut units, &inputs(&case, &sizes).map(there)).expect("one rank has no peers");
            let error = relative(&packed(&out, sizes.patch_size as i64), &case["out.output"], 0.0);
            assert!(error < 1e-5, "{path} {prefix}: the output differs by {error:e}");
        }
    }
}

//! Compares the objective of Wan, ten optimizer steps, and adapters with numbers recorded from diffusers, PEFT, diffusion-pipe and DiffSynth-Studio.
//!
//! Reads `wan/train` and `wan/lora` of the recorded numbers; models and settings come from the headers of the files.

mod support;

use camino::Utf8Path;
use dit::block::ActivationCheckpointing;
use dit::family::{Conditions, Inputs};
use dit::network::{ForwardBackward, Network};
use dit::objective::Objective;
use dit::wan::conditions::{IMAGE, MASK, mask};
use dit::wan::objective::{FlowMatching, Levels, Weighting};
use dit::wan::{FIRST_FRAME, IMAGE_EMBEDS, Wan};
use recipe::Shape;
use recipe::families::wan::{AdapterForm, adapter_names, param_specs};
use support::device::{device, there};
use support::wan::{Recorded, Whole, about, adapter_specs, diffusers, recorded, turned};
use support::{Tensors, load, oracle, relative};
use tch::{Kind, Tensor};

/// The shift of the recorded weights.
const SHIFT: f64 = 3.0;

/// Returns the model that the header of a file names.
fn model_of(file: &Utf8Path, text_len: i64) -> Recorded {
    let transformer = about(file)["transformer"].as_str().expect("a folder").to_owned();
    Recorded::read(&oracle::root().join(transformer), text_len)
}

/// The batch of a recorded objective step.
struct Batch {
    clean: Tensor,
    noise: Tensor,
    timestep: Tensor,
    text: Tensor,
    conditions: Conditions,
}

impl Batch {
    fn of(case: &Tensors) -> Self {
        let clean = turned(&case["in.latent"]).contiguous();
        let mut conditions = Conditions::new();
        if let Some(image) = case.get("in.condition") {
            let size = clean.size();
            conditions.push((MASK, mask([size[0], size[1], size[3], size[4]], false)));
            conditions.push((IMAGE, turned(image).contiguous()));
        }
        if let Some(embeds) = case.get("in.image_embeds") {
            conditions.push((IMAGE_EMBEDS, embeds.shallow_clone()));
        }
        if let Some(first) = case.get("in.first_frame") {
            conditions.push((FIRST_FRAME, turned(first).contiguous()));
        }
        Batch {
            noise: turned(&case["in.noise"]).contiguous(),
            timestep: &case["in.sigma"] * 1000.0,
            text: case["in.text"].shallow_clone(),
            clean,
            conditions,
        }
    }

    /// Runs a step and returns it with the loss of each sample.
    fn step(&self, recorded: &Recorded, units: &mut Whole<'_>, objective: &FlowMatching) -> (ForwardBackward, Tensor) {
        let (latent, target) = objective.noised(&self.clean, &self.noise, &self.timestep, &self.conditions);
        let copy = |(name, tensor): &(&'static str, Tensor)| (*name, tensor.shallow_clone());
        let inputs = Inputs {
            latent,
            text: self.text.shallow_clone(),
            timestep: self.timestep.shallow_clone(),
            conditions: self.conditions.iter().map(copy).collect(),
        };
        let target = target.map(there);
        let network = Network::of(Wan::new(&recorded.model), ActivationCheckpointing::Full)
            .with_adapters(recorded.adapters())
            .on(device());
        let mut losses = None;
        let pass = network
            .forward_backward(units, &inputs.map(there), |output| {
                let loss = target.loss(output);
                losses = Some(loss.detach());
                loss.mean(Kind::Float)
            })
            .expect("one rank has no peers");
        (pass, losses.expect("the loss was computed"))
    }
}

fn close(got: &Tensor, want: &Tensor, tolerance: f64, what: &str) {
    let error = relative(got, want, 1e-12);
    assert!(error < tolerance, "{what} differs by {error:e}");
}

/// Returns the norm of all gradients.
fn norm(grads: &Tensors) -> f64 {
    grads.values().map(|grad| grad.square().sum(Kind::Double).double_value(&[])).sum::<f64>().sqrt()
}

#[test]
fn oracle_an_objective_step_has_the_recorded_loss_and_gradients() {
    let has_kind = |file: &Utf8Path| file.extension() == Some("safetensors") && about(file)["kind"].is_string();
    for file in oracle::entries("wan/train", "*.safetensors", has_kind) {
        let case = load(&file);
        let (batch, recorded) = (Batch::of(&case), model_of(&file, case["in.text"].size()[1]));
        let (latent, _) =
            FlowMatching::default().noised(&batch.clean, &batch.noise, &batch.timestep, &batch.conditions);
        if let (Some(input), None) = (case.get("mid.transformer_input"), case.get("in.first_frame")) {
            let on_channels = batch.conditions.iter().filter(|(name, _)| *name != IMAGE_EMBEDS);
            let parts: Vec<&Tensor> = std::iter::once(&latent).chain(on_channels.map(|(_, tensor)| tensor)).collect();
            close(&Tensor::cat(&parts, 2), &turned(input), 1e-6, &format!("{file}: the input"));
        }
        let mut units = recorded.units();
        let (pass, losses) = batch.step(&recorded, &mut units, &FlowMatching::default());
        close(&pass.output, &turned(&case["out.sample"]), 1e-5, &format!("{file}: the output"));
        close(&losses, &case["out.loss_per_sample"], 1e-5, &format!("{file}: the losses"));
        close(&losses.mean(Kind::Float), &case["out.loss"], 1e-5, &format!("{file}: the loss"));
        for (name, grad) in &units.grads {
            if let Some(want) = case.get(&format!("out.grad.{}", diffusers(name))) {
                close(grad, want, 1e-4, &format!("{file}: the gradient of {name}"));
            }
        }
        let want = case["out.grad_norm"].double_value(&[]);
        assert!((norm(&units.grads) / want - 1.0).abs() < 1e-4, "{file}: norm {} {want}", norm(&units.grads));

        let weighted = FlowMatching { shift: SHIFT, weighting: Weighting::Bell, ..FlowMatching::default() };
        let weight = weighted.weight(&batch.timestep).unwrap();
        let error = (weight - &case["in.weight"]).abs().max().double_value(&[]);
        assert!(error < 1e-5, "{file}: weights differ by {error:e}");
        let (_, losses) = batch.step(&recorded, &mut recorded.units(), &weighted);
        close(&losses.mean(Kind::Float), &case["out.loss_weighted"], 1e-4, &format!("{file}: the weighted loss"));
    }
}

#[test]
fn oracle_noise_levels_and_weights_are_those_of_other_trainers() {
    let Some(file) = recorded("train/tables.safetensors") else { return };
    let tables = load(&file);
    let shifts: Vec<f64> =
        tables.keys().filter_map(|key| key.strip_prefix("diffsynth_")?.strip_suffix(".sigma")?.parse().ok()).collect();
    assert!(!shifts.is_empty());
    let shape = Shape { frames: 1, height: 2, width: 2 };
    let differ = |got: Tensor, want: &Tensor| (got - want).abs().max().double_value(&[]);
    for shift in shifts {
        let objective =
            FlowMatching { levels: Levels::Steps, shift, weighting: Weighting::Bell, ..FlowMatching::default() };
        // The table begins with the noisiest level.
        let quantiles: Vec<f64> = (0..1000).rev().map(|i| (i as f64 + 0.5) / 1000.0).collect();
        let timesteps = objective.timesteps(&quantiles, shape);
        let error = differ(&timesteps / 1000.0, &tables[&format!("diffsynth_{shift}.sigma")]);
        assert!(error < 1e-6, "levels of DiffSynth differ by {error:e}");
        let error = differ(objective.weight(&timesteps).unwrap(), &tables[&format!("diffsynth_{shift}.weight")]);
        assert!(error < 1e-5, "weights of DiffSynth differ by {error:e}");

        let objective = FlowMatching { levels: Levels::LogitNormal { scale: 1.0 }, shift, ..FlowMatching::default() };
        // Every tenth of 10,000 quantiles. The original is rounded to fp32 before the shift.
        let quantiles: Vec<f64> =
            (0..10_000).step_by(10).map(|i| 1e-4 + (1.0 - 2e-4) * f64::from(i) / 9999.0).collect();
        let timesteps = objective.timesteps(&quantiles, shape);
        let error = differ(&timesteps / 1000.0, &tables[&format!("logit_normal_{shift}.sigma")]);
        assert!(error < 1e-5, "levels of diffusion-pipe differ by {error:e}");
    }
}

#[test]
fn oracle_ten_steps_of_adamw_have_the_recorded_losses_and_weights() {
    let Some(file) = recorded("train/steps_t2v.safetensors") else { return };
    let (case, settings) = (load(&file), about(&file));
    let setting = |key: &str| settings[key].as_f64().unwrap_or_else(|| panic!("{key}"));
    let [beta1, beta2]: [f64; 2] = serde_json::from_value(settings["betas"].clone()).unwrap();
    let mut model = model_of(&file, case["in.text"].size()[1]);
    let start: Tensors = model.weights.iter().map(|(name, weight)| (name.clone(), weight.copy())).collect();
    let mut moments: std::collections::HashMap<String, [Tensor; 2]> =
        start.iter().map(|(name, weight)| (name.clone(), [weight.zeros_like(), weight.zeros_like()])).collect();
    let steps = case["out.loss"].size()[0];
    for step in 0..steps {
        let index = case["train.index"].get(step);
        let batch = Batch {
            clean: turned(&case["in.latent"].index_select(0, &index)).contiguous(),
            noise: turned(&case["train.noise"].get(step)).contiguous(),
            timestep: case["train.sigma"].get(step) * 1000.0,
            text: case["in.text"].index_select(0, &index),
            conditions: Conditions::new(),
        };
        let mut units = model.units();
        let (_, losses) = batch.step(&model, &mut units, &FlowMatching::default());
        close(&losses.mean(Kind::Float), &case["out.loss"].get(step), 1e-5, &format!("the loss of step {step}"));
        let grads = units.grads;
        let (norm, want) = (norm(&grads), case["out.grad_norm_before_clip"].double_value(&[step]));
        assert!((norm / want - 1.0).abs() < 1e-4, "the norm of step {step}: {norm} {want}");
        let clip = (setting("clip") / norm).min(1.0);
        let (lr, count) = (setting("lr"), step as i32 + 1);
        for (name, weight) in &mut model.weights {
            let grad = &grads[name] * clip;
            let [first, second] = moments.get_mut(name).unwrap();
            *first = &*first * beta1 + &grad * (1.0 - beta1);
            *second = &*second * beta2 + grad.square() * (1.0 - beta2);
            let root = (&*second / (1.0 - beta2.powi(count))).sqrt() + setting("eps");
            let update = &*first / (1.0 - beta1.powi(count)) / root;
            *weight = &*weight * (1.0 - lr * setting("weight_decay")) - update * lr;
        }
    }
    let mut compared = 0;
    for (name, weight) in &model.weights {
        let Some(want) = case.get(&format!("param.final.{}", diffusers(name))) else { continue };
        let moved = relative(&(weight - &start[name]), &(want - &start[name]), 0.0);
        // Adam enlarges rounding where gradients are near zero.
        assert!(moved < 5e-3, "the path of {name} differs by {moved:e}");
        close(weight, want, 1e-4, name);
        compared += 1;
    }
    assert_eq!(compared, case.keys().filter(|key| key.starts_with("param.final.")).count());
}

/// Returns the folders of recorded adapters.
fn adapters() -> Vec<camino::Utf8PathBuf> {
    let has_pass = |folder: &Utf8Path| folder.join("forward_backward.safetensors").is_file();
    oracle::entries("wan/lora", "*/forward_backward.safetensors", has_pass)
}

/// Returns the layers with a recorded adapter, in the order of the table.
fn adapted(recorded: &Recorded, case: &Tensors) -> Vec<String> {
    let has_adapter = |layer: &str| case.contains_key(&format!("param.{}.lora_A.weight", diffusers(layer)));
    let weights = param_specs(&recorded.model).into_iter();
    let layers = weights.filter_map(|spec| spec.name.strip_suffix(".weight").map(str::to_owned));
    layers.filter(|layer| has_adapter(layer)).collect()
}

#[test]
fn oracle_adapters_have_the_recorded_loss_and_gradients_and_can_be_merged() {
    for folder in adapters() {
        let file = folder.join("forward_backward.safetensors");
        let (case, settings) = (load(&file), about(&file));
        let inputs = load(&oracle::root().join(settings["inputs"].as_str().unwrap()));
        let (rank, alpha) = (settings["r"].as_u64().unwrap() as usize, settings["lora_alpha"].as_f64().unwrap());
        let scale = alpha / rank as f64;
        let (batch, mut recorded) = (Batch::of(&inputs), model_of(&file, inputs["in.text"].size()[1]));
        let layers = adapted(&recorded, &case);
        let factor = |layer: &str, which: &str| {
            let theirs = diffusers(layer);
            case[&format!("param.{theirs}.{which}.weight")].shallow_clone()
        };
        let mut merged = model_of(&file, inputs["in.text"].size()[1]);
        for layer in &layers {
            let [a, b] = ["lora_A", "lora_B"].map(|which| factor(layer, which));
            *merged.weights.get_mut(&format!("{layer}.weight")).unwrap() += b.matmul(&a) * scale;
            recorded.weights.insert(format!("{layer}.lora_a"), a);
            recorded.weights.insert(format!("{layer}.lora_b"), b);
        }
        recorded.adapters = Some((adapter_specs(&param_specs(&recorded.model), &layers, rank), scale));

        let mut units = recorded.units();
        let (pass, losses) = batch.step(&recorded, &mut units, &FlowMatching::default());
        close(&pass.output, &turned(&case["out.sample"]), 1e-5, &format!("{folder}: the output"));
        close(&losses.mean(Kind::Float), &case["out.loss"], 1e-5, &format!("{folder}: the loss"));
        assert_eq!(units.grads.len(), 2 * layers.len(), "only adapters are trained");
        assert_eq!(case.keys().filter(|key| key.starts_with("out.grad.")).count(), 2 * layers.len());
        for layer in &layers {
            for (ours, theirs) in [("lora_a", "lora_A"), ("lora_b", "lora_B")] {
                let place = diffusers(layer);
                let want = &case[&format!("out.grad.{place}.{theirs}.weight")];
                close(
                    &units.grads[&format!("{layer}.{ours}")],
                    want,
                    1e-4,
                    &format!("{folder}: the gradient of {layer}"),
                );
            }
        }
        let (pass, _) = batch.step(&merged, &mut merged.units(), &FlowMatching::default());
        close(&pass.output, &turned(&case["out.sample"]), 1e-5, &format!("{folder}: the output of merged weights"));
    }
}

#[test]
fn oracle_every_tensor_of_an_adapter_is_found_in_every_form() {
    for folder in adapters() {
        let file = folder.join("forward_backward.safetensors");
        let (case, settings) = (load(&file), about(&file));
        let (rank, alpha) = (settings["r"].as_f64().unwrap(), settings["lora_alpha"].as_f64().unwrap());
        let layers = adapted(&model_of(&file, 512), &case);
        for form in AdapterForm::ALL {
            let (name, scale) = match form {
                AdapterForm::Diffusers => ("diffusers/pytorch_lora_weights", alpha / rank),
                // diffusion-pipe does not write alpha, so readers take the rank.
                AdapterForm::ComfyUi => ("comfy", 1.0),
                AdapterForm::Kohya => ("kohya", alpha / rank),
            };
            let tensors = load(&folder.join(format!("{name}.safetensors")));
            let mut used = 0;
            for layer in &layers {
                let names = adapter_names(form, layer).unwrap();
                if let Some(name) = &names.alpha {
                    assert_eq!(tensors[name].double_value(&[]), alpha, "{folder}: {name}");
                }
                let theirs = diffusers(layer);
                let [a, b] = ["A", "B"].map(|which| &case[&format!("param.{theirs}.lora_{which}.weight")]);
                let (got, want) = (tensors[&names.b].matmul(&tensors[&names.a]) * scale, b.matmul(a) * scale);
                close(&got, &want, 1e-5, &format!("{folder} {form:?}: {layer}"));
                used += 2 + usize::from(names.alpha.is_some());
            }
            assert_eq!(used, tensors.len(), "{folder} {form:?}");
        }
    }
}

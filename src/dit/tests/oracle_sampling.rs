//! Compares schedulers and whole sampling runs with numbers recorded from diffusers' pipelines.
//!
//! Reads `sampling/`, `i2v/` and `fun/sampling/` of the oracle. A file with a `case` in its header is a recorded run, which the tests repeat step
//! by step; names and sizes come from the file. So do the latents of images, because the VAE belongs to another crate.

mod support;

use camino::Utf8Path;
use dit::block::ActivationCheckpointing;
use dit::diffusion::NoiseSchedule;
use dit::family::Inputs;
use dit::network::{Network, Units};
use dit::params::{SlotGrad, UnitParams, unit_specs};
use dit::sampler::{Guidance, Prediction, Sampler, Stepped};
use recipe::{FsdpUnit, Model, TimestepSpacing};
use serde_json::Value;
use std::convert::Infallible;
use support::device::{device, there};
use support::{Tensors, load, metadata, oracle, read, relative};
use tch::{Kind, Tensor};
use torch_error::TorchError;

/// The tolerance for schedulers alone.
const SCHEDULER: f64 = 1e-5;
/// The tolerance for latents, model outputs and guidance of a run.
const RUN: f64 = 1e-4;

/// Unsharded parameters by their diffusers names.
struct Whole<'a> {
    model: &'a Model,
    weights: &'a Tensors,
}

impl Units for Whole<'_> {
    type Error = TorchError;

    fn gather(&mut self, unit: FsdpUnit, _: Option<FsdpUnit>) -> Result<UnitParams, TorchError> {
        let tensor = |spec: &recipe::ParamSpec| {
            there(&self.weights[spec.diffusers.as_deref().expect("diffusers has every tensor")])
        };
        Ok(UnitParams::new(unit_specs(self.model, unit).iter().map(tensor).collect()))
    }

    fn reduce(&mut self, _: FsdpUnit, _: Vec<SlotGrad>) -> Result<(), TorchError> {
        unreachable!("sampling has no gradients")
    }
}

fn spacing(name: &str) -> TimestepSpacing {
    serde_json::from_value(name.into()).unwrap_or_else(|_| panic!("the spacing {name} is not supported"))
}

/// Returns a model whose values fill the fields that a test does not set.
fn any_model() -> Model {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
    recipe::load(file.into(), &[]).expect("a valid recipe").recipe.model
}

/// Returns the model with the noise schedule of a scheduler's configuration.
fn with_schedule(model: Model, config: &Value) -> Model {
    let number = |key: &str| config[key].as_f64().unwrap_or_else(|| panic!("the scheduler has no {key}"));
    assert_eq!(config["prediction_type"], "v_prediction");
    model.with_cogvideox(|keys| {
        // DDIM of diffusers, which VideoX-Fun samples with, ignores the shift.
        keys.snr_shift_scale = if config["_class_name"] == "DDIMScheduler" { 1.0 } else { number("snr_shift_scale") };
        keys.timesteps = number("num_train_timesteps") as usize;
        keys.beta_start = number("beta_start");
        keys.beta_end = number("beta_end");
        keys.beta_schedule =
            serde_json::from_value(config["beta_schedule"].clone()).expect("a supported schedule of beta");
        keys.zero_terminal_snr = config["rescale_betas_zero_snr"].as_bool().expect("a flag");
        keys.timestep_spacing = spacing(config["timestep_spacing"].as_str().expect("a spacing"));
    })
}

/// Returns the sampler of a scheduler's configuration.
fn sampler(config: &Value, model: &Model, steps: usize, guidance: Guidance) -> Sampler {
    let schedule = NoiseSchedule::new(model);
    match config["_class_name"].as_str().expect("a class") {
        "CogVideoXDDIMScheduler" | "DDIMScheduler" => {
            Sampler::ddim(&schedule, model.cogvideox().timestep_spacing, steps, guidance)
        }
        "CogVideoXDPMScheduler" => Sampler::dpm(&schedule, model.cogvideox().timestep_spacing, steps, guidance),
        other => panic!("{other} is not supported"),
    }
}

fn json(path: &Utf8Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn files(folder: &str) -> Vec<camino::Utf8PathBuf> {
    oracle::entries(folder, "*.safetensors with a case", |path| {
        path.extension() == Some("safetensors") && metadata(path).contains_key("case")
    })
}

/// Repeats a recorded run and compares every step; returns the number of steps.
fn follow(path: &Utf8Path) -> usize {
    let (case, about) = (load(path), metadata(path));
    let info: Value = serde_json::from_str(&about["case"]).expect("case is JSON");
    let part = |name: &str| oracle::root().join(info["components"][name].as_str().expect("a path"));
    let transformer = part("transformer");
    let mut scheduler: Value = match about.get("scheduler_config") {
        Some(text) => serde_json::from_str(text).expect("scheduler_config is JSON"),
        None => json(&part("scheduler").join("scheduler_config.json")),
    };
    for (key, value) in info["components"]["scheduler_overrides"].as_object().into_iter().flatten() {
        scheduler[key] = value.clone();
    }
    let config = weights::Config::read(&transformer.join("config.json")).unwrap_or_else(|f| panic!("{f}"));
    let model = weights::model_from_diffusers(&config).unwrap_or_else(|f| panic!("{f}"));
    let start = case.get("in.latents").or(case.get("in.latents_drawn")).expect("the noise at the start");
    let size = start.size();
    let text = case.get("in.prompt_embeds").or(case.get("out.prompt_embeds")).expect("the text");
    let without = case.get("in.negative_prompt_embeds").or(case.get("out.negative_prompt_embeds"));
    let model = model.resized(size[1] as usize, size[3] as usize, size[4] as usize);
    let model = with_schedule(Model { text_len: text.size()[1] as usize, ..model }, &scheduler);
    let mut weights = Tensors::new();
    for file in oracle::weight_files(&transformer) {
        read(&file, &mut weights);
    }
    let steps = info["num_inference_steps"].as_u64().expect("a number") as usize;
    let scale = info["guidance_scale"].as_f64().expect("a number");
    let dynamic = info["use_dynamic_cfg"].as_bool().expect("a flag");
    let guidance = if dynamic { Guidance::dynamic(scale) } else { Guidance::Constant(scale) };
    let sampler = sampler(&scheduler, &model, steps, guidance);
    let timesteps: Vec<i64> = Vec::try_from(&case["out.timesteps"]).expect("whole numbers");
    assert_eq!(sampler.timesteps(), timesteps, "{path}");
    if let Some(recorded) = case.get("out.guidance_scale") {
        let error = relative(&Tensor::from_slice(sampler.guidance_scales()), recorded, 0.0);
        assert!(error < RUN, "{path}: guidance differs by {error:e}");
    }

    let network = Network::new(&model, ActivationCheckpointing::Full, 16).on(device());
    let mut units = Whole { model: &model, weights: &weights };
    let halves = if sampler.is_guided() { 2 } else { 1 };
    let texts = match halves {
        1 => text.shallow_clone(),
        _ => Tensor::cat(&[without.expect("the text of guidance"), text], 0),
    };
    let image = case.get("out.image_latents");
    let (mut step, mut worst) = (0, 0.0f64);
    let network = |x: &Tensor, timestep: i64| {
        let latent = match image {
            Some(image) => Tensor::cat(&[x, image], 2),
            None => x.shallow_clone(),
        };
        let inputs = Inputs {
            latent: Tensor::cat(&[&latent, &latent][..halves], 0),
            text: texts.shallow_clone(),
            timestep: Tensor::full([size[0] * halves as i64], timestep, (Kind::Int64, tch::Device::Cpu)),
            conditions: Vec::new(),
        };
        let output = network.forward(&mut units, &inputs.map(there))?.to_device(tch::Device::Cpu);
        assert!(!output.requires_grad(), "sampling builds no graph");
        let error = relative(&output, &case["out.model_output"].get(step), 0.0);
        assert!(error < RUN, "{path}: the network's output at step {step} differs by {error:e}");
        step += 1;
        let part = |half: i64| output.narrow(0, half * size[0], size[0]);
        Ok::<_, TorchError>(match halves {
            1 => Prediction { with_text: output, without_text: None },
            _ => Prediction { with_text: part(1), without_text: Some(part(0)) },
        })
    };
    let draw = |step: usize| case["in.noise"].get(step as i64);
    let after = |stepped: Stepped<'_>| {
        let at = stepped.step as i64;
        for (name, got) in [("pred_original_sample", stepped.clean), ("latents", stepped.latent)] {
            let Some(recorded) = case.get(&format!("out.{name}")) else { continue };
            let error = relative(got, &recorded.get(at), 0.0);
            assert!(error < RUN, "{path}: {name} differ by {error:e} after step {at}");
            worst = worst.max(error);
        }
        Ok(())
    };
    let sampled = sampler.sample(start, network, draw, after).expect("one rank has no peers");
    assert_eq!(sampled.size(), size);
    println!("{path}: {steps} steps, worst {worst:e}");
    steps
}

#[test]
fn oracle_sampling_runs_are_those_of_the_pipelines() {
    for path in files("sampling") {
        follow(&path);
    }
}

#[test]
fn oracle_i2v_runs_are_those_of_the_pipelines() {
    for path in files("i2v") {
        follow(&path);
    }
}

#[test]
fn oracle_runs_of_inpainting_are_those_of_videox_fun() {
    for path in files("fun/sampling") {
        follow(&path);
    }
}

#[test]
fn the_projects_own_fixtures_hold_every_scheduler_spacing_and_condition() {
    if std::env::var(oracle::VARIABLE).is_ok() {
        println!("skipped: {} names another folder", oracle::VARIABLE);
        return;
    }
    assert!(files("sampling").len() >= 5 && files("i2v").len() >= 3 && files("fun/sampling").len() >= 2);
}

/// Returns the file with the traces, timesteps and guidance scales of schedulers; `None` if the oracle has none.
fn scheduler_file() -> Option<camino::Utf8PathBuf> {
    let found = oracle::entries("sampling", "schedulers.safetensors", |path| {
        path.file_name() == Some("schedulers.safetensors")
    });
    found.into_iter().next()
}

#[test]
fn oracle_sampling_schedulers_follow_their_traces_on_a_toy_network() {
    let Some(path) = scheduler_file() else { return };
    let (all, about) = (load(&path), metadata(&path));
    let traces: Value = serde_json::from_str(&about["traces"]).expect("traces are JSON");
    for trace in traces.as_array().expect("a list") {
        let name = trace["name"].as_str().expect("a name");
        let folder = oracle::root().join(trace["scheduler"].as_str().expect("a path"));
        let mut config = json(&folder.join("scheduler_config.json"));
        config["timestep_spacing"] = trace["timestep_spacing"].clone();
        let steps = trace["steps"].as_u64().expect("a number") as usize;
        let model = with_schedule(any_model(), &config);
        let sampler = sampler(&config, &model, steps, Guidance::Constant(1.0));
        let network = |x: &Tensor, timestep: i64| {
            let with_text: Tensor = x * (0.6 * timestep as f64 / 1000.0) + x.sin() * 0.4;
            Ok::<_, Infallible>(Prediction { with_text, without_text: None })
        };
        let draw = |step: usize| all[&format!("{name}.in.noise_used")].get(step as i64);
        let mut worst = 0.0f64;
        let after = |stepped: Stepped<'_>| {
            let want = all[&format!("{name}.out.x")].get(stepped.step as i64);
            let error = relative(stepped.latent, &want, 0.0);
            assert!(error < SCHEDULER, "{name}: step {} differs by {error:e}", stepped.step);
            worst = worst.max(error);
            Ok(())
        };
        let sampled = sampler.sample(&all[&format!("{name}.in.x")], network, draw, after).expect("infallible");
        assert_eq!(sampled.kind(), Kind::Float);
        println!("{name}: {steps} steps, worst {worst:e}");
    }
}

#[test]
fn oracle_sampling_timesteps_and_guidance_are_those_of_diffusers() {
    let Some(path) = scheduler_file() else { return };
    for (name, want) in load(&path) {
        let Some(table) = name.strip_prefix("table.") else { continue };
        let number = |text: &str| text.parse::<usize>().expect("a number");
        if let Some(shift) = table.strip_prefix("alphas_cumprod_snr") {
            let model = any_model().with_cogvideox(|keys| keys.snr_shift_scale = shift.parse().expect("a number"));
            let error = relative(NoiseSchedule::new(&model).alphas_cumprod(), &want, 0.0);
            assert!(error < 1e-12, "{name} differs by {error:e}");
        } else if let Some((kind, steps)) = table.strip_prefix("timesteps_").and_then(|rest| rest.split_once('_')) {
            let steps = number(steps);
            let sampler = Sampler::ddim(&NoiseSchedule::default(), spacing(kind), steps, Guidance::Constant(1.0));
            // diffusers adds a step at timestep -1 for some numbers of steps.
            let want: Vec<i64> = Vec::try_from(want.narrow(0, 0, steps as i64)).expect("whole numbers");
            assert_eq!(sampler.timesteps(), want, "{name}");
        } else if let Some((scale, steps)) =
            table.strip_prefix("dynamic_guidance_").and_then(|rest| rest.split_once('_'))
        {
            let guidance = Guidance::dynamic(scale.parse().expect("a number"));
            let steps = number(steps);
            let sampler = Sampler::ddim(&NoiseSchedule::default(), TimestepSpacing::Trailing, steps, guidance);
            let got = Tensor::from_slice(sampler.guidance_scales());
            let error = relative(&got, &want.narrow(0, 0, steps as i64), 0.0);
            assert!(error < RUN, "{name} differs by {error:e}");
        } else {
            println!("not compared: {name}");
        }
    }
}

//! Compares sampling with Wan with whole runs of diffusers' pipelines: noise levels, steps from recorded velocities, and runs of the network.
//!
//! Reads `wan/sampling` of the recorded numbers; models and settings come from the headers of the files.

mod support;

use camino::{Utf8Path, Utf8PathBuf};
use dit::block::ActivationCheckpointing;
use dit::family::{Conditions, Inputs};
use dit::network::Network;
use dit::sampler::Prediction;
use dit::wan::conditions::{IMAGE, MASK, mask};
use dit::wan::sampling::{Call, Expert, FlowGuidance, FlowSampler, LowNoise, with_first_frame};
use dit::wan::{FIRST_FRAME, IMAGE_EMBEDS, Wan};
use serde_json::Value;
use std::convert::Infallible;
use support::device::{device, there};
use support::wan::{Recorded, about, turned};
use support::{Tensors, load, oracle, relative};
use tch::{Device, Kind, Tensor};
use torch_error::TorchError;

/// Returns the files of recorded runs.
fn runs() -> Vec<Utf8PathBuf> {
    oracle::entries("wan/sampling", "*.safetensors", |file| file.extension() == Some("safetensors"))
}

/// A recorded run.
struct Run {
    case: Tensors,
    settings: Value,
    sampler: FlowSampler,
    guidance: FlowGuidance,
}

impl Run {
    fn read(file: &Utf8Path) -> Self {
        let settings = about(file);
        let number = |of: &Value, key: &str| of[key].as_f64().unwrap_or_else(|| panic!("{file}: no {key}"));
        let (steps, scale) = (number(&settings, "steps") as usize, number(&settings, "guidance"));
        let folder = oracle::root().join(text(&settings["scheduler_folder"]));
        let config = std::fs::read(folder.join("scheduler_config.json")).unwrap_or_else(|e| panic!("{folder}: {e}"));
        let scheduler: Value = serde_json::from_slice(&config).unwrap_or_else(|e| panic!("{folder}: {e}"));
        let sampler = match text(&scheduler["_class_name"]) {
            "UniPCMultistepScheduler" => FlowSampler::unipc(steps, number(&scheduler, "flow_shift")),
            "FlowMatchEulerDiscreteScheduler" => FlowSampler::euler(steps, number(&scheduler, "shift")),
            other => panic!("{other}"),
        };
        let low = |boundary| LowNoise { boundary, scale: settings["guidance_2"].as_f64().unwrap_or(scale) };
        let guidance = FlowGuidance { scale, low: settings["boundary"].as_f64().map(low) };
        Run { case: load(file), settings, sampler, guidance }
    }

    /// Reads the networks.
    fn models(&self) -> Vec<Recorded> {
        let rows = self.case["in.prompt_embeds"].size()[1];
        let folders = self.settings["models"].as_array().expect("folders").iter().map(text);
        folders.map(|folder| Recorded::read(&oracle::root().join(folder), rows)).collect()
    }

    /// Returns the conditions that the pipeline made, from the recorded input of the first step.
    fn conditions(&self) -> Conditions {
        let (input, noise) = (turned(&self.case["mid.transformer_input_0"]), turned(&self.case["in.latents"]));
        let (size, noised) = (noise.size(), noise.size()[2]);
        let mut conditions = Conditions::new();
        if input.size()[2] > noised {
            let mask = mask([size[0], size[1], size[3], size[4]], false);
            let known = mask.size()[2];
            assert_eq!(input.narrow(2, noised, known), mask);
            conditions.push((MASK, mask));
            conditions.push((IMAGE, input.narrow(2, noised + known, noised).contiguous()));
        }
        if let Some(embeds) = self.case.get("in.image_embeds") {
            conditions.push((IMAGE_EMBEDS, embeds.shallow_clone()));
        }
        if self.settings["case"] == "ti2v5b_image" {
            conditions.push((FIRST_FRAME, input.narrow(1, 0, 1).contiguous()));
        }
        conditions
    }
}

/// Returns a text of a header.
fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// Returns the largest difference, relative to the largest magnitude.
fn largest(got: &Tensor, want: &Tensor) -> f64 {
    let got = got.to_device(Device::Cpu);
    ((got - want).abs().max() / want.abs().max()).double_value(&[])
}

#[test]
fn oracle_noise_levels_timesteps_and_experts_are_those_of_the_pipelines() {
    for file in runs() {
        let run = Run::read(&file);
        let sigmas = Tensor::from_slice(run.sampler.sigmas());
        let error = (sigmas - &run.case["out.sigmas"]).abs().max().double_value(&[]);
        assert!(error < 1e-6, "{file}: levels differ by {error:e}");
        let timesteps = Tensor::from_slice(run.sampler.timesteps());
        let recorded = &run.case["out.timesteps"];
        let tolerance = if recorded.kind() == Kind::Int64 { 0.0 } else { 1e-3 };
        let error = (timesteps - recorded).abs().max().double_value(&[]);
        assert!(error <= tolerance, "{file}: timesteps differ by {error:e}");
        let experts = run.sampler.timesteps().iter().map(|timestep| run.guidance.expert(*timestep) as i64);
        assert_eq!(Tensor::from_slice(&experts.collect::<Vec<_>>()), run.case["out.expert"], "{file}");
    }
}

#[test]
fn oracle_steps_from_recorded_velocities_are_those_of_the_schedulers() {
    for file in runs() {
        let run = Run::read(&file);
        let network = |_: &Tensor, call: Call| {
            let with_text = turned(&run.case["out.guided"].get(call.step as i64));
            Ok::<_, Infallible>(Prediction { with_text, without_text: None })
        };
        let mut worst: f64 = 0.0;
        let noise = turned(&run.case["in.latents"]);
        let _ = run
            .sampler
            .sample(&noise, &run.guidance, network, |stepped| {
                let want = turned(&run.case["out.latents"].get(stepped.step as i64));
                worst = worst.max(largest(stepped.latent, &want));
                Ok(())
            })
            .unwrap();
        assert!(worst < 2e-5, "{file}: steps differ by {worst:e}");
    }
}

#[test]
fn oracle_whole_runs_end_at_the_recorded_latent() {
    for file in runs() {
        let run = Run::read(&file);
        let (models, conditions) = (run.models(), run.conditions());
        let families: Vec<_> = models
            .iter()
            .map(|recorded| Network::of(Wan::new(&recorded.model), ActivationCheckpointing::Full).on(device()))
            .collect();
        let predict = |x: &Tensor, call: Call, text: &str| -> Result<Tensor, TorchError> {
            let expert = if call.expert == Expert::High { 0 } else { 1 };
            let inputs = Inputs {
                latent: x.shallow_clone(),
                text: run.case[text].shallow_clone(),
                timestep: Tensor::from_slice(&[call.timestep]),
                conditions: conditions.iter().map(|(name, tensor)| (*name, tensor.shallow_clone())).collect(),
            };
            families[expert].forward(&mut models[expert].units(), &inputs.map(there))
        };
        let last = run.sampler.timesteps().len() - 1;
        let (mut latents, mut outputs) = (0.0f64, 0.0f64);
        let network = |x: &Tensor, call: Call| {
            assert!(call.is_guided, "{file}");
            let with_text = predict(x, call, "in.prompt_embeds")?;
            let without = predict(x, call, "in.negative_prompt_embeds")?;
            if let Some(row) = [0, last].iter().position(|step| *step == call.step) {
                for (got, name) in [(&with_text, "out.cond"), (&without, "out.uncond")] {
                    let want = turned(&run.case[name].get(row as i64));
                    outputs = outputs.max(relative(got, &want, 0.0));
                }
            }
            Ok::<_, TorchError>(Prediction { with_text, without_text: Some(without) })
        };
        let noise = there(&turned(&run.case["in.latents"]).contiguous());
        let sampled = run
            .sampler
            .sample(&noise, &run.guidance, network, |stepped| {
                let want = turned(&run.case["out.latents"].get(stepped.step as i64));
                latents = latents.max(relative(stepped.latent, &want, 0.0));
                Ok(())
            })
            .unwrap();
        let first = conditions.iter().find(|(name, _)| *name == FIRST_FRAME);
        let sampled =
            first.map_or_else(|| sampled.shallow_clone(), |(_, first)| with_first_frame(&sampled, &there(first)));
        let end = relative(&sampled, &turned(&run.case["out.final_latent"]), 0.0);
        println!("{file}: outputs {outputs:e}, latents {latents:e}, final latent {end:e}");
        assert!(outputs < 1e-4, "{file}: outputs differ by {outputs:e}");
        assert!(latents < 1e-4, "{file}: latents differ by {latents:e}");
        assert!(end < 1e-4, "{file}: the final latent differs by {end:e}");
    }
}

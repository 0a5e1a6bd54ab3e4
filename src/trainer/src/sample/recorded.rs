//! Compares whole samples, from the text to the bytes of the pictures, with those that diffusers' pipelines made.
//!
//! Reads `sampling/` and `i2v/` of the oracle: every run with a case in its header. The noise is read from the run's
//! file. The weights are converted and saved as a checkpoint first, as a user does.

use super::decode::{decode, encode_pixels, frames};
use super::denoise::{Denoiser, Draw};
use super::texts::Texts;
use crate::checkpoint::{self, Loaded, Restore, TrainingState};
use crate::families::cogvideox;
use crate::optim::OptimizerState;
use crate::oracle;
use crate::parallelize::{frozen_layouts, unit_tables};
use crate::tensor_file::write;
use camino::{Utf8Path, Utf8PathBuf};
use dit::family::Conditions;
use recipe::{DynamicGuidance, Model, Recipe, SampleScheduler};
use serde_json::Value;
use sharding::fsdp::Fsdp;
use sharding::mesh::MeshGroups;
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use tch::{Device, Kind, Tensor};
use weights::{ConvertRequest, Form, Header, SchedulerConfig, VaeConfig, WeightsSource};

/// The gate for latents, texts and videos, relative.
const GATE: f64 = 1e-4;

struct Case {
    header: Header,
    info: Value,
}

impl Case {
    fn has(&self, name: &str) -> bool {
        self.header.tensors.contains_key(name)
    }

    fn tensor(&self, name: &str) -> Tensor {
        let info = self.header.tensor(name).unwrap();
        let shape: Vec<i64> = info.shape.iter().map(|&size| size as i64).collect();
        Tensor::from_data_size(&self.header.read_tensor(name).unwrap(), &shape, crate::data::kind(info.dtype))
    }

    /// Returns the first of two tensors that the file has.
    fn either(&self, names: [&str; 2]) -> Option<Tensor> {
        names.into_iter().find(|name| self.has(name)).map(|name| self.tensor(name))
    }

    fn part(&self, name: &str) -> Option<Utf8PathBuf> {
        Some(oracle::root().join(self.info["components"][name].as_str()?))
    }

    fn number(&self, key: &str) -> usize {
        self.info[key].as_u64().unwrap() as usize
    }

    /// Returns the model with the noise schedule of the case.
    fn scheduled(&self, model: &Model) -> (Model, SampleScheduler) {
        let file = self.part("scheduler").unwrap().join("scheduler_config.json");
        let text = match self.header.metadata.get("scheduler_config") {
            Some(text) => text.clone(),
            None => std::fs::read_to_string(&file).unwrap(),
        };
        let mut config: Value = serde_json::from_str(&text).unwrap();
        for (key, value) in self.info["components"]["scheduler_overrides"].as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        let config: SchedulerConfig = serde_json::from_value(config).unwrap();
        let scheduler = match config.class_name.as_str() {
            "CogVideoXDDIMScheduler" => SampleScheduler::Ddim,
            _ => SampleScheduler::Dpm,
        };
        (config.apply(&file, model).unwrap(), scheduler)
    }

    /// Returns the recipe that makes the samples of the case. The folder gets its encoders.
    fn recipe(&self, model: &Model, folder: &Utf8Path) -> Recipe {
        let (model, scheduler) = self.scheduled(model);
        let vae = VaeConfig::read(&self.part("vae").unwrap()).unwrap();
        for part in ["vae", "text_encoder", "tokenizer"] {
            if let Some(from) = self.part(part) {
                symlink(from, folder.join(part)).unwrap();
            }
        }
        let text_len = self.number("max_sequence_length");
        let model = Model { text_len, latent_scale: vae.scaling_factor, ..model }
            .with_cogvideox(|keys| keys.invert_image_scale = vae.invert_scale_latents);
        let mut recipe = Recipe::for_sampling(&model, None).unwrap();
        recipe.train.dtype = recipe::ComputeDtype::Float32;
        recipe.encoders.dtype = recipe::ComputeDtype::Float32;
        recipe.encoders.folder = folder.to_owned();
        let sample = &mut recipe.sample;
        sample.scheduler = scheduler;
        sample.steps = self.number("num_inference_steps");
        // The pipelines accept any number of frames, and decode another one if the VAE does not make it.
        sample.frames = recipe::decoded_frames(recipe::latent_frames(self.number("num_frames")));
        (sample.height, sample.width) = (self.number("height"), self.number("width"));
        sample.guidance = self.info["guidance_scale"].as_f64().unwrap();
        let dynamic = self.info["use_dynamic_cfg"].as_bool().unwrap();
        sample.dynamic_guidance = if dynamic { DynamicGuidance::On } else { DynamicGuidance::Off };
        if self.has("in.image") {
            sample.image = "/the/image/is/in/the/file.png".into();
        }
        let prompt = self.info["prompt"][0].as_str().unwrap_or("a text");
        let negative = self.info["negative_prompt"][0].as_str().map(|text| format!(" --n {text}"));
        sample.prompts = vec![format!("{prompt}{}", negative.unwrap_or_default())];
        recipe
    }
}

fn relative(got: &Tensor, want: &Tensor) -> f64 {
    let (got, want) = (got.to_kind(Kind::Double), want.to_kind(Kind::Double));
    assert_eq!(got.size(), want.size());
    ((got - &want).norm() / want.norm()).double_value(&[])
}

/// Loads converted weights as the task `sample` does.
fn load(recipe: &Recipe, checkpoint: &Utf8Path) -> Fsdp {
    let tables = unit_tables(recipe);
    let fsdp = Fsdp::new(frozen_layouts(recipe, &tables), MeshGroups::alone(), Kind::Float);
    let mut moments = OptimizerState::new(&fsdp, &tables, &recipe.optimizer).unwrap();
    let mut state = TrainingState { fsdp: &fsdp, moments: &mut moments, ema: None, tables: &tables, base: None };
    let loaded = checkpoint::load(&mut state, checkpoint, Restore::Everything).unwrap_or_else(|f| panic!("{f}"));
    assert!(matches!(loaded, Loaded::Intact(_)));
    fsdp
}

/// Returns a transformer whose tensors are all fp32: the given one, or a copy of it. diffusers saves learned positions in fp64.
fn in_fp32(transformer: &Utf8Path, copy: &Utf8Path) -> Utf8PathBuf {
    let mut tensors = BTreeMap::new();
    let mut is_fp64 = false;
    for file in oracle::weight_files(transformer) {
        let case = Case { header: Header::read(&file).unwrap(), info: Value::Null };
        for name in case.header.tensors.keys() {
            let tensor = case.tensor(name);
            is_fp64 |= tensor.kind() == Kind::Double;
            tensors.insert(name.clone(), tensor.to_kind(Kind::Float));
        }
    }
    if !is_fp64 {
        return transformer.to_owned();
    }
    std::fs::create_dir(copy).unwrap();
    std::fs::copy(transformer.join("config.json"), copy.join("config.json")).unwrap();
    write(&copy.join("diffusion_pytorch_model.safetensors"), &tensors, HashMap::new());
    copy.to_owned()
}

/// Makes the samples of a recorded run, and compares.
fn follow(path: &Utf8Path) {
    let header = Header::read(path).unwrap();
    let info = serde_json::from_str(&header.metadata["case"]).unwrap();
    let case = Case { header, info };
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(keep.path()).unwrap();
    let checkpoint = folder.join("checkpoint");
    let transformer = in_fp32(&case.part("transformer").unwrap(), &folder.join("transformer"));
    let request = ConvertRequest::new(transformer, &checkpoint, Form::Internal);
    weights::plan_conversion(&request).unwrap().execute(false, 0.0, 1, &mut |_| ControlFlow::Continue(())).unwrap();
    let source = WeightsSource::open(&checkpoint).unwrap();
    let recipe = case.recipe(source.model().unwrap(), folder);
    let spec = &super::specs(&recipe).unwrap_or_else(|failure| panic!("{path}: {failure}"))[0];
    let mut fsdp = load(&recipe, &checkpoint);
    let start = case.either(["in.latents", "in.latents_drawn"]).unwrap();
    let text = case.either(["in.prompt_embeds", "out.prompt_embeds"]).unwrap();
    let negative = case.either(["in.negative_prompt_embeds", "out.negative_prompt_embeds"]);
    for sample in 0..start.size()[0] {
        let own = |tensor: &Tensor| tensor.narrow(0, sample, 1);
        let without = negative.as_ref().map_or_else(|| own(&text).zeros_like(), own);
        let texts = match case.part("text_encoder") {
            Some(_) => {
                let world = &MeshGroups::alone().world;
                let specs = std::slice::from_ref(spec);
                let texts = Texts::encode(&recipe.encoders, &recipe.model, specs, world, Device::Cpu).unwrap();
                for (embedded, want) in
                    [(texts.joined(&spec.texts), own(&text)), (texts.joined(&spec.negatives), without)]
                {
                    let error = relative(&embedded, &want);
                    assert!(error < GATE, "{path}: the text differs by {error:e}");
                }
                texts
            }
            None => Texts::of([(spec.negatives[0].clone(), without), (spec.texts[0].clone(), own(&text))]),
        };
        let mut conditions = Conditions::new();
        if case.has("in.image") {
            let pixels: Tensor = own(&case.tensor("in.image")).unsqueeze(2) * 2.0 - 1.0;
            let noise = |_: &[i64]| own(&case.tensor("in.posterior_noise"));
            let latent = encode_pixels(&recipe, &pixels, noise, Device::Cpu).unwrap();
            let error = relative(&latent, &own(&case.tensor("out.image_latents")).narrow(1, 0, 1));
            assert!(error < GATE, "{path}: the latent of the image differs by {error:e}");
            conditions.push((dataset::IMAGE, latent));
        }
        let mut noise = |draw: Draw, shape: &[i64]| {
            let noise = match draw {
                Draw::Start => own(&start),
                Draw::Step(step) => own(&case.tensor("in.noise").get(step as i64)),
            };
            assert_eq!(noise.size(), shape);
            noise
        };
        let network = cogvideox(&recipe);
        let mut denoiser = Denoiser { fsdp: &mut fsdp, network: &network, compute: Kind::Float };
        let latent = denoiser.sample(spec, &texts, &conditions, &mut noise, &mut |_| Ok(())).unwrap();
        let last = case.tensor("out.latents");
        let want = own(&last.get(last.size()[0] - 1));
        // Frames that were added in front are not part of the result.
        let kept = latent.size()[1];
        let error = relative(&latent, &want.narrow(1, want.size()[1] - kept, kept));
        assert!(error < GATE, "{path}: the latent differs by {error:e}");
        let video = decode(&recipe, &latent, Device::Cpu).unwrap();
        if case.has("out.video") {
            let error = relative(&video, &own(&case.tensor("out.video")));
            assert!(error < GATE, "{path}: the video differs by {error:e}");
        }
        let mut apart = 0;
        if case.has("out.frames_u8") {
            let want = own(&case.tensor("out.frames_u8"));
            let got = frames(&video);
            assert_eq!(want.size()[1..], [got.count, got.height, got.width, 3].map(|size| size as i64));
            let mut bytes = vec![0u8; want.numel()];
            want.contiguous().copy_data_u8(&mut bytes, got.rgb.len());
            apart = bytes.iter().zip(&got.rgb).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
            assert!(apart <= 1, "{path}: a pixel differs by {apart}");
        }
        println!("{path}: sample {sample}, latent {error:e}, pixels {apart}");
    }
}

fn cases(folder: &str) -> Vec<Utf8PathBuf> {
    oracle::entries(folder, "*.safetensors with a case", |path| {
        path.extension() == Some("safetensors") && Header::read(path).unwrap().metadata.contains_key("case")
    })
}

#[test]
fn oracle_text_to_video_equals_the_pipelines() {
    cases("sampling").iter().for_each(|path| follow(path));
}

#[test]
fn oracle_image_to_video_equals_the_pipelines() {
    cases("i2v").iter().for_each(|path| follow(path));
}

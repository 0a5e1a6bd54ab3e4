//! Compares training steps with recorded numbers: inputs, output, loss and every gradient. The steps have conditions,
//! or are of CogVideoX 1.5 with odd frame counts. The numbers are those of diffusers, cogvideox-factory, zai-org's
//! trainer and VideoX-Fun.
//!
//! Reads `tests/fixtures/oracle`, or the folder in `VIDTUI_ORACLE`: `i2v_training/*.safetensors` and the files in
//! `cogvideox15/*/`. Sizes, models and schedules come from the files.

mod support;

use camino::{Utf8Path, Utf8PathBuf};
use dit::block::ActivationCheckpointing;
use dit::conditions;
use dit::diffusion::{NoiseSchedule, Target};
use dit::family::Inputs;
use dit::mixers::Kept;
use dit::network::{ForwardBackward, Network};
use recipe::{Loss, LossWeighting, Model};
use serde_json::Value;
use support::device::{device, there};
use support::whole::{Whole, all_weights};
use support::{Tensors, load, metadata, oracle, relative};
use tch::{Kind, Tensor};

/// A recorded step.
struct Case {
    path: Utf8PathBuf,
    tensors: Tensors,
    config: Value,
    model: Model,
    transformer: Utf8PathBuf,
}

impl Case {
    /// Opens a file whose model is in a folder `transformer/`, for latents of this size.
    fn open(path: &Utf8Path, transformer: Utf8PathBuf, latent: &str) -> Case {
        let tensors = load(path);
        let config: Value = serde_json::from_str(&metadata(path)["config"]).expect("config is JSON");
        let of = weights::Config::read(&transformer.join("config.json")).unwrap_or_else(|failure| panic!("{failure}"));
        let size = tensors[latent].size();
        let frames = config["latent_frames"].as_i64().unwrap_or(size[1]);
        let model = Model {
            text_len: tensors["in.text"].size()[1] as usize,
            latent_frames: frames as usize,
            latent_height: size[3] as usize,
            latent_width: size[4] as usize,
            ..weights::model_from_diffusers(&of).unwrap_or_else(|failure| panic!("{failure}"))
        }
        .with_cogvideox(|keys| keys.ignore_learned_positions = config["ignore_learned_positional_embeddings"] == true);
        Case { path: path.to_owned(), tensors, config, model, transformer }
    }

    fn tensor(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("{}: no {name}", self.path))
    }

    fn number(&self, key: &str) -> f64 {
        self.config[key].as_f64().unwrap_or_else(|| panic!("{}: no {key}", self.path))
    }

    /// Returns the schedule that the file names, or CogVideoX-5B's.
    fn schedule(&self) -> NoiseSchedule {
        let Some(folder) = self.config["scheduler"].as_str() else { return NoiseSchedule::new(&self.model) };
        let path = oracle::root().join(folder).join("scheduler_config.json");
        let config = weights::SchedulerConfig::read(&path).unwrap_or_else(|failure| panic!("{failure}"));
        NoiseSchedule::new(&config.apply(&path, &self.model).unwrap_or_else(|failure| panic!("{failure}")))
    }

    fn near(&self, what: &str, got: &Tensor, name: &str, bound: f64) {
        let Some(want) = self.tensors.get(name) else {
            println!("not compared: {} has no {name}", self.path);
            return;
        };
        let got = got.reshape(want.size());
        let error = relative(&got, want, 1e-30);
        assert!(error < bound, "{}: {what} differs by {error:e}", self.path);
    }

    /// Runs the network on an input and compares its output, the loss of each sample, and every recorded gradient.
    fn step(&self, input: Tensor, target: &Target) {
        let weights = all_weights(&self.transformer);
        let network = Network::new(&self.model, ActivationCheckpointing::Selective(Kept::ATTENTION), 16);
        let network = match self.tensors.get("in.ofs") {
            Some(offset) => network.at_offset(offset),
            None => network,
        };
        let network = network.on(device());
        let mut units = Whole { model: &self.model, weights: &weights, grads: Tensors::new() };
        let inputs = Inputs {
            latent: input,
            text: self.tensor("in.text").shallow_clone(),
            timestep: self.tensor("in.timestep").shallow_clone(),
            conditions: Vec::new(),
        };
        let (mut losses, target) = (None, target.map(there));
        let ForwardBackward { output, .. } = network
            .forward_backward(&mut units, &inputs.map(there), |out| {
                let each = target.loss(out);
                losses = Some(each.detach());
                each.mean(Kind::Float)
            })
            .expect("one rank has no peers");
        let losses = losses.expect("the objective has run");
        self.near("the output", &output, "out.sample", 1e-5);
        if self.tensors.contains_key("out.loss_per_sample") {
            self.near("the loss of each sample", &losses, "out.loss_per_sample", 1e-5);
        }
        self.near("the loss", &losses.mean(Kind::Float), "out.loss", 1e-5);
        self.gradients(&units.grads);
    }

    fn gradients(&self, grads: &Tensors) {
        let recorded = || self.tensors.iter().filter_map(|(k, v)| Some((k.strip_prefix("out.grad.")?, v)));
        // A gradient that is zero is recorded as rounding error; see `oracle_cogvideox.rs`.
        let floor = recorded().map(|(_, t)| t.norm().double_value(&[])).fold(0.0, f64::max) * 1e-4;
        for (name, want) in recorded() {
            let got = grads.get(name).unwrap_or_else(|| panic!("{}: no gradient for {name}", self.path));
            let error = relative(got, want, floor);
            assert!(error < 1e-4, "{}: the gradient of {name} differs by {error:e}", self.path);
        }
        let square: f64 =
            grads.values().map(|grad| grad.to_kind(Kind::Double).square().sum(None).double_value(&[])).sum();
        if let Some(norm) = self.tensors.get("out.grad_norm") {
            let norm = norm.double_value(&[]);
            assert!((square.sqrt() - norm).abs() < 1e-4 * norm, "{}: the gradient norm is {square:e}", self.path);
        }
        println!("{}: {} gradients", self.path, recorded().count());
    }
}

/// Draws a latent `[B, T, C, h, w]` from moments `[B, 2C, T, h, w]`.
fn drawn(moments: &Tensor, noise: &Tensor, scale: f64) -> Tensor {
    let halves = moments.chunk(2, 1);
    ((&halves[0] + (halves[1].clamp(-30.0, 20.0) * 0.5).exp() * noise) * scale).transpose(1, 2)
}

/// Returns pixels in -1..1, `[B, 3, F, H, W]`.
fn pixels(bytes: &Tensor) -> Tensor {
    (bytes.to_kind(Kind::Float) / 127.5 - 1.0).transpose(1, 2)
}

fn factory(case: &Case) {
    let (latent, image) = match case.tensors.get("in.video_u8") {
        Some(video) => {
            let first = pixels(video).narrow(2, 0, 1);
            let noisy = conditions::noised_image(&first, case.tensor("in.sigma_log"), case.tensor("in.image_noise"));
            case.near("the noisy image", &noisy, "mid.noisy_image", 1e-5);
            let scale = case.number("scaling_factor");
            let latent = drawn(case.tensor("mid.video_moments"), case.tensor("in.eps_video"), scale);
            let image = drawn(case.tensor("mid.image_moments"), case.tensor("in.eps_image"), scale);
            case.near("the video's latent", &latent, "mid.video_latent", 1e-5);
            case.near("the image's latent", &image, "mid.image_latent", 1e-5);
            (latent, image)
        }
        None => (case.tensor("in.video_latent").shallow_clone(), case.tensor("in.image_latent").shallow_clone()),
    };
    let dropped = case.tensor("in.dropout_u").double_value(&[]) < case.number("noised_image_dropout");
    let condition = conditions::image(&image, latent.size()[1]) * if dropped { 0.0 } else { 1.0 };
    let schedule = case.schedule();
    let timestep = case.tensor("in.timestep");
    let noised = schedule.noise(&latent, case.tensor("in.noise"), timestep);
    let input = Tensor::cat(&[&noised.latent, &condition], 2);
    case.near("the input", &input, "mid.transformer_input", 1e-5);
    case.near("the weights", &schedule.clean_weight(timestep), "out.weights", 1e-5);
    case.near(
        "the clean latent",
        &schedule.clean(&noised.latent, case.tensor("out.sample"), timestep),
        "out.x0_pred",
        1e-5,
    );
    let loss = Loss { weighting: LossWeighting::Snr, ..Loss::default() };
    case.step(input, &schedule.target(noised, &latent, timestep, &loss));
}

fn inpaint(case: &Case) {
    let (mask, video) = (case.tensor("in.mask"), pixels(case.tensor("in.video_u8")));
    let noise = (case.config["add_noise_in_inpaint_model"] == true)
        .then(|| (case.tensor("in.sigma_log"), case.tensor("in.reference_noise")));
    let masked = conditions::masked_video(&video, mask, noise);
    case.near("the masked video", &masked, "mid.masked_video", 1e-5);
    let scale = case.number("scaling_factor");
    let latent = drawn(case.tensor("mid.moments"), case.tensor("in.eps_video"), scale);
    let size = latent.size();
    let known = conditions::known(mask, [size[1], size[3], size[4]]);
    case.near("the known part", &known, "mid.known", 1e-5);
    let masked = drawn(case.tensor("mid.masked_moments"), case.tensor("in.eps_masked"), scale);
    let keep = case.tensor("in.keep").to_kind(Kind::Float).view([-1, 1, 1, 1, 1]);
    let condition = Tensor::cat(&[known * scale, masked], 2) * keep;
    let (schedule, timestep) = (case.schedule(), case.tensor("in.timestep"));
    let noised = schedule.noise(&latent, case.tensor("in.noise"), timestep);
    case.near("the target", &noised.velocity, "out.target", 1e-5);
    let input = Tensor::cat(&[&noised.latent, &condition], 2);
    case.near("the input", &input, "mid.transformer_input", 1e-5);
    let loss = Loss { motion: case.number("motion_sub_loss_ratio"), ..Loss::default() };
    case.step(input, &schedule.target(noised, &latent, timestep, &loss));
}

fn is_tensors(path: &Utf8Path) -> bool {
    path.extension() == Some("safetensors")
}

#[test]
fn oracle_steps_with_conditions_are_those_of_the_factory_and_videox_fun() {
    for path in oracle::entries("i2v_training", "*.safetensors", is_tensors) {
        let config: Value = serde_json::from_str(&metadata(&path)["config"]).expect("config is JSON");
        let transformer = oracle::root().join(config["transformer"].as_str().expect("a file names its transformer"));
        let case = Case::open(&path, transformer, "in.noise");
        if case.tensors.contains_key("in.mask") { inpaint(&case) } else { factory(&case) }
    }
}

#[test]
fn oracle_odd_frame_counts_of_cogvideox_15_are_padded_as_the_pipeline_and_zai_org_do() {
    let has_model = |folder: &Utf8Path| folder.join("transformer/config.json").is_file();
    for folder in oracle::entries("cogvideox15", "*/transformer/config.json", has_model) {
        let file = |name: &str| Some(folder.join(name)).filter(|path| path.is_file());
        let transformer = folder.join("transformer");
        if let Some(path) = file("train_odd.safetensors") {
            let case = Case::open(&path, transformer.clone(), "in.noise");
            let frames = case.model.padded_frames() as i64;
            let latent = conditions::padded(case.tensor("in.latent"), frames);
            case.near("the padded latent", &latent, "mid.latent", 1e-6);
            let (schedule, timestep) = (case.schedule(), case.tensor("in.timestep"));
            let noised = schedule.noise(&latent, case.tensor("in.noise"), timestep);
            let input = match case.tensors.get("in.image_latent") {
                Some(image) => Tensor::cat(&[&noised.latent, &conditions::image(image, frames)], 2),
                None => noised.latent.shallow_clone(),
            };
            case.near("the input", &input, "mid.transformer_input", 1e-5);
            let loss = Loss { weighting: LossWeighting::Snr, ..Loss::default() };
            case.step(input, &schedule.target(noised, &latent, timestep, &loss));
        }
        for name in
            ["forward_backward_even.safetensors", "forward_backward_odd.safetensors", "single_frame.safetensors"]
        {
            if let Some(path) = file(name) {
                forward_backward(&Case::open(&path, transformer.clone(), "in.latent"));
            }
        }
    }
}

/// Compares a forward and backward pass for which the gradient of the output is recorded. A single frame is followed by
/// a zero frame; other odd counts are padded in front.
fn forward_backward(case: &Case) {
    let (model, given) = (&case.model, case.tensor("in.latent").detach().set_requires_grad(true));
    let single = given.size()[1] == 1;
    let latent =
        if single { Tensor::cat(&[given.shallow_clone(), given.zeros_like()], 1) } else { given.shallow_clone() };
    let weights = all_weights(&case.transformer);
    let network = Network::new(model, ActivationCheckpointing::Full, 16);
    let network = match case.tensors.get("in.ofs") {
        Some(offset) => network.at_offset(offset),
        None => network,
    };
    let network = network.on(device());
    let mut units = Whole { model, weights: &weights, grads: Tensors::new() };
    let inputs = Inputs {
        latent: latent.detach().set_requires_grad(true),
        text: case.tensor("in.text").shallow_clone(),
        timestep: case.tensor("in.timestep").shallow_clone(),
        conditions: Vec::new(),
    };
    let cotangent = &there(case.tensor("in.grad_sample"));
    let count = cotangent.size()[1];
    let kept = |out: &Tensor| out.narrow(1, if single { 0 } else { out.size()[1] - count }, count);
    let pass = network
        .forward_backward(&mut units, &inputs.map(there), |out| (kept(out) * cotangent).sum(Kind::Float))
        .expect("one rank has no peers");
    let whole = case.tensor("out.sample").size()[1] == pass.output.size()[1];
    case.near("the output", &if whole { pass.output.shallow_clone() } else { kept(&pass.output) }, "out.sample", 1e-5);
    if case.tensors.contains_key("out.kept") {
        case.near("the kept output", &kept(&pass.output), "out.kept", 1e-5);
    }
    let grad = pass.grad_latent.expect("the latent requires a gradient");
    case.near("the latent's gradient", &grad.narrow(1, 0, given.size()[1]), "out.grad_latent", 1e-4);
    case.gradients(&units.grads);
}

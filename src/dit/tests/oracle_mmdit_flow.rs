//! Compares the objective and the samplers of MMDiTs with numbers recorded from Open-Sora 2.
//!
//! Reads `opensora/flow_matching_*` in `tests/fixtures/oracle`, or in the folder in `VIDTUI_ORACLE`; sizes and options come from the files.

mod support;

use camino::{Utf8Path, Utf8PathBuf};
use dit::block::ActivationCheckpointing;
use dit::diffusion::Target;
use dit::family::{Conditions, Inputs};
use dit::mmdit::conditions::{dropped, given, with_given};
use dit::mmdit::flow::{CountedFrames, FlowMatching};
use dit::mmdit::sampler::{Euler, Guidance, Predictions};
use dit::mmdit::{GIVEN, GUIDANCE, Mmdit, POOLED};
use dit::network::Network;
use dit::objective::Objective;
use recipe::Shape;
use recipe::families::mmdit::{Given, GivenLengths, Mmdit as Sizes};
use serde_json::Value;
use std::cell::RefCell;
use support::device::{device, there};
use support::mmdit::{Parameters, assert_same_grads, below, packed, sizes_of, unpacked};
use support::{Tensors, load, metadata, oracle, relative};
use tch::{Device, Kind, Tensor};
use torch_error::TorchError;

/// Returns the recorded files `opensora/flow_matching_*.safetensors` that have this key in their metadata.
fn files(key: &str) -> Vec<Utf8PathBuf> {
    oracle::entries("opensora", &format!("flow_matching_*.safetensors with {key}"), |path| {
        path.extension() == Some("safetensors")
            && path.file_name().is_some_and(|name| name.starts_with("flow_matching_"))
            && metadata(path).contains_key(key)
    })
}

/// Returns the file with this name, if it is recorded.
fn file(name: &str) -> Vec<Utf8PathBuf> {
    oracle::entries("opensora", name, |path| path.file_name() == Some(name))
}

/// Returns a value of the metadata, which is JSON.
fn about(path: &Utf8Path, key: &str) -> Value {
    let text = metadata(path).remove(key).unwrap_or_else(|| panic!("{path} has no {key}"));
    serde_json::from_str(&text).unwrap_or_else(|why| panic!("{path}: {key}: {why}"))
}

/// Returns a latent `[B, T, C, h, w]` of one whose channels come before its frames.
fn latent(recorded: &Tensor) -> Tensor {
    recorded.transpose(-4, -3).contiguous()
}

fn shape_of(latent: &Tensor) -> Shape {
    dit::family::shape_of(latent)
}

/// Returns the given frames of a batch, `[B, T, 1 + C, h, w]`.
fn given_frames(case: &Tensors, kinds: &[Given], channels: usize, shape: Shape) -> Tensor {
    let of = |(sample, kind): (usize, &Given)| {
        let ranges = kind.frames(shape.frames, GivenLengths::CAUSAL).expect("the clip is long enough");
        let reference = |i: usize| latent(&case[&format!("in.ref_latent.{sample}.{i}")]);
        let references: Vec<_> = ranges.into_iter().enumerate().map(|(i, range)| (range, reference(i))).collect();
        assert!(
            !case.contains_key(&format!("in.ref_latent.{sample}.{}", references.len())),
            "{kind:?} has another range"
        );
        given(&references, channels as i64, shape, (Kind::Float, Device::Cpu))
    };
    Tensor::stack(&kinds.iter().enumerate().map(of).collect::<Vec<_>>(), 0)
}

/// Returns the velocity of a target: its first tensor.
fn velocity(target: &Target) -> Tensor {
    let first = RefCell::new(None);
    let _ = target.map(|tensor| {
        first.borrow_mut().get_or_insert_with(|| tensor.shallow_clone());
        tensor.shallow_clone()
    });
    first.into_inner().expect("a target has a velocity")
}

fn kinds(path: &Utf8Path) -> Vec<Given> {
    let names: Vec<String> = serde_json::from_value(about(path, "condition_kinds")).expect("a list of names");
    names.iter().map(|name| Given::named(name).unwrap_or_else(|| panic!("{name}"))).collect()
}

#[test]
fn oracle_a_micro_batch_has_the_inputs_loss_and_gradients_of_open_sora() {
    for path in files("shift_alpha") {
        let case = load(&path);
        let (sizes, layout) = sizes_of(&path, case["in.text"].size()[1]);
        let (clean, patch) = (latent(&case["in.latent"]), sizes.patch_size as i64);
        let (shape, objective) = (shape_of(&clean), FlowMatching::new(&sizes, CountedFrames::All));
        let alpha = about(&path, "shift_alpha").as_f64().expect("a number");
        assert!(
            (objective.shift(shape) - alpha).abs() < 1e-12 * alpha,
            "{path}: the shift is {}",
            objective.shift(shape)
        );

        let timestep = objective.timesteps_of(&case["in.normal_for_t"], shape);
        let error = relative(&timestep, &case["out.model_in.timesteps"], 0.0);
        assert!(error < 1e-6, "{path}: timesteps differ by {error:e}");
        let share = |name: &str| about(&path, "dropout_ratio")[name].as_f64().expect("a number");
        let text = dropped(&case["in.text"], &case["in.null_text"], &case["in.uniform_t5"], share("t5"));
        assert_eq!(text, case["out.model_in.txt"], "{path}: the text");
        let pooled = dropped(&case["in.vec"], &case["in.null_vec"], &case["in.uniform_clip"], share("clip"));
        assert_eq!(pooled, case["out.model_in.y_vec"], "{path}: the pooled text");

        let mut conditions: Conditions = vec![(POOLED, pooled)];
        if let Some(recorded) = case.get("out.model_in.cond") {
            let given = given_frames(&case, &kinds(&path), sizes.latent_channels, shape);
            assert_eq!(&packed(&given, patch), recorded, "{path}: the given frames");
            conditions.push((GIVEN, given));
        }
        if sizes.guidance {
            let guidance = about(&path, "guidance").as_f64().expect("a number");
            conditions.push((GUIDANCE, timestep.full_like(guidance)));
        }
        let noise = unpacked(&case["in.noise_packed"], sizes.grid(shape).map(|len| len as i64), patch);
        let (noised, target) = objective.noised(&clean, &noise, &timestep, &conditions);
        for (name, got) in [("out.model_in.img", &noised), ("out.target", &velocity(&target))] {
            let error = relative(&packed(got, patch), &case[name], 0.0);
            assert!(error < 1e-6, "{path}: {name} differs by {error:e}");
        }

        let network = Network::of(Mmdit::new(&sizes), ActivationCheckpointing::Full).on(device());
        let params = below(&case, "param.");
        let mut units = Parameters::read(&sizes, layout, &params);
        let inputs = Inputs { latent: noised, text, timestep, conditions }.map(there);
        let (target, loss) = (target.map(there), RefCell::new(None));
        let pass = network.forward_backward(&mut units, &inputs, |out| {
            let mean = target.loss(out).mean(Kind::Float);
            *loss.borrow_mut() = Some(mean.detach());
            mean
        });
        let pass = pass.expect("one rank has no peers");
        let loss = loss.into_inner().expect("the loss was computed");
        for (name, got) in [("out.prediction", &packed(&pass.output, patch)), ("out.loss", &loss)] {
            let error = relative(got, &case[name], 0.0);
            assert!(error < 1e-5, "{path}: {name} differs by {error:e}");
        }
        let grads = units.grads_in_file(&sizes, layout, &params);
        let count = assert_same_grads(path.as_str(), &grads, &below(&case, "out.grad."));
        println!("{path}: {count} gradients");
    }
}

#[test]
fn oracle_bf16_latents_give_the_tensors_of_open_sora_bit_for_bit() {
    for path in file("flow_matching_bf16_inputs.safetensors") {
        let case = load(&path);
        let grid: [i64; 3] = serde_json::from_value(about(&path, "latent_size")).expect("three numbers");
        let sizes = Sizes::open_sora_2();
        let patch = sizes.patch_size as i64;
        let token_grid = [grid[0], grid[1] / patch, grid[2] / patch];
        // `load` converts to fp32, which changes no value.
        let bf16 = |tensor: &Tensor| tensor.to_kind(Kind::BFloat16);
        let [clean, noise] =
            ["in.x0_packed", "in.noise_packed"].map(|name| bf16(&unpacked(&case[name], token_grid, patch)));
        let objective = FlowMatching::new(&sizes, CountedFrames::All);
        let timestep = objective.timesteps_of(&case["in.normal_for_t"], shape_of(&clean));
        assert_eq!(bf16(&timestep), bf16(&case["out.model_in.timesteps"]));
        let (noised, target) = objective.noised(&clean, &noise, &timestep, &Vec::new());
        assert_eq!(noised.kind(), Kind::BFloat16);
        assert_eq!(packed(&noised, patch), bf16(&case["out.model_in.img"]));
        assert_eq!(packed(&velocity(&target), patch), bf16(&case["out.target"]));
        let recorded = unpacked(&case["out.model_in.cond"], token_grid, patch);
        for (sample, kind) in kinds(&path).into_iter().enumerate() {
            let ranges = kind.frames(grid[0] as usize, GivenLengths::CAUSAL).expect("the clip is long enough");
            let mask = recorded.select(0, sample as i64).select(1, 0).flatten(1, -1);
            let is_given = |frame: i64| ranges.iter().any(|range| range.contains(&(frame as usize)));
            for frame in 0..grid[0] {
                let want = mask.get(frame).full_like(f64::from(u8::from(is_given(frame))));
                assert_eq!(mask.get(frame), want, "{kind:?}, frame {frame}");
            }
        }
    }
}

#[test]
fn oracle_the_loss_without_given_images_is_that_of_open_sora() {
    for path in file("flow_matching_ref_loss.safetensors") {
        let case = load(&path);
        let grid: [i64; 3] = serde_json::from_value(about(&path, "latent_size")).expect("three numbers");
        let sizes = Sizes::open_sora_2();
        let patch = sizes.patch_size as i64;
        let token_grid = [grid[0], grid[1] / patch, grid[2] / patch];
        let [prediction, want] = ["in.prediction", "in.target"].map(|name| unpacked(&case[name], token_grid, patch));
        let mask = case["in.masks"].unsqueeze(2);
        let conditions = vec![(GIVEN, Tensor::cat(&[mask, want.zeros_like()], 2))];
        let loss = |counted| {
            // Without noise, the target is the negative of the clean latent.
            let objective = FlowMatching::new(&sizes, counted);
            let timestep = want.new_zeros([want.size()[0]], (Kind::Float, Device::Cpu));
            let (_, target) = objective.noised(&-&want, &want.zeros_like(), &timestep, &conditions);
            target.loss(&prediction).mean(Kind::Float)
        };
        let error = relative(&loss(CountedFrames::WithoutGivenImages), &case["out.loss"], 0.0);
        assert!(error < 1e-5, "{path}: the loss differs by {error:e}");
        assert!(relative(&loss(CountedFrames::All), &case["out.loss"], 0.0) > 1e-3, "{path}: all frames count");
    }
}

/// Reads the recorded tables.
fn tables() -> Vec<Value> {
    let name = "flow_matching_tables.json";
    let paths = oracle::entries("opensora", name, |path| path.file_name() == Some(name));
    let read = |path: Utf8PathBuf| {
        let text = std::fs::read(&path).unwrap_or_else(|why| panic!("{path}: {why}"));
        serde_json::from_slice(&text).unwrap_or_else(|why| panic!("{path}: {why}"))
    };
    paths.into_iter().map(read).collect()
}

#[test]
fn oracle_shifts_and_timesteps_of_every_size_are_those_of_open_sora() {
    let objective = FlowMatching::new(&Sizes::open_sora_2(), CountedFrames::All);
    for table in tables() {
        for (key, row) in table["rows"].as_object().expect("rows by size") {
            let (tokens, frames) = key.split_once('x').expect("tokens of a frame, and frames");
            let [tokens, frames]: [usize; 2] = [tokens, frames].map(|number| number.parse().expect("a number"));
            let shift = objective.shift(Shape { frames, height: 2, width: 2 * tokens });
            let want = row["alpha"].as_f64().expect("a number");
            assert!((shift - want).abs() <= 1e-12 * want, "{key}: {shift}, not {want}");
            let want: Vec<f64> = serde_json::from_value(row["schedule"].clone()).expect("numbers");
            assert_eq!(Euler::new(want.len() - 1, shift).timesteps(), want, "{key}");
        }
        let scales =
            |name: &str| serde_json::from_value::<Vec<f64>>(table["oscillation"][name].clone()).expect("numbers");
        let (text, image) = (scales("text_7_5"), scales("image_3"));
        let guidance = Guidance { given_rises: false, ..Guidance::default() };
        assert_eq!((0..text.len()).map(|step| guidance.text_at(step)).collect::<Vec<_>>(), text);
        let given = |step| guidance.given_at(step, image.len(), 1, Given::Head)[0];
        assert_eq!((0..image.len()).map(given).collect::<Vec<_>>(), image);
    }
}

/// The options of a recorded sampler.
struct Options(Value);

impl Options {
    fn number(&self, key: &str) -> Option<f64> {
        self.0[key].as_f64()
    }

    fn is(&self, key: &str) -> bool {
        self.0[key].as_bool().unwrap_or_else(|| panic!("{key} is {}", self.0[key]))
    }

    fn steps(&self) -> usize {
        self.number("num_steps").expect("the number of steps") as usize
    }
}

/// A recorded sampler and its network.
struct Case {
    path: Utf8PathBuf,
    tensors: Tensors,
    options: Options,
    sizes: Sizes,
    units: Parameters<'static>,
    network: Network<Mmdit>,
}

impl Case {
    fn read(path: Utf8PathBuf) -> Self {
        let tensors = load(&path);
        let (sizes, layout) = sizes_of(&path, tensors["in.txt"].size()[1]);
        Case {
            options: Options(about(&path, "options")),
            units: Parameters::read(&sizes, layout, &below(&tensors, "param.")),
            network: Network::of(Mmdit::new(&sizes), ActivationCheckpointing::Full).on(device()),
            path,
            tensors,
            sizes,
        }
    }

    /// Returns the sampler.
    fn euler(&self, shape: Shape) -> Euler {
        let objective = FlowMatching::new(&self.sizes, CountedFrames::All);
        let euler =
            Euler::new(self.options.steps(), self.options.number("flow_shift").unwrap_or(objective.shift(shape)));
        let error = relative(&Tensor::from_slice(euler.timesteps()), &self.tensors["out.timesteps"], 0.0);
        assert!(error < 1e-6, "{}: timesteps differ by {error:e}", self.path);
        euler
    }

    /// Returns the predictions for latents, which are repeated as often as there are recorded texts.
    fn predict(&mut self, x: &Tensor, timestep: f64) -> Result<Tensor, TorchError> {
        let case = &self.tensors;
        let batch = case["in.txt"].size()[0];
        let latent = x.repeat([batch / x.size()[0], 1, 1, 1, 1]);
        let grid = self.sizes.grid(shape_of(x)).map(|len| len as i64);
        let mut conditions =
            vec![(POOLED, case["in.y_vec"].shallow_clone()), (GUIDANCE, case["in.guidance"].shallow_clone())];
        conditions
            .extend(case.get("in.cond").map(|given| (GIVEN, unpacked(given, grid, self.sizes.patch_size as i64))));
        let timestep = Tensor::full([batch], timestep, (Kind::Float, Device::Cpu));
        let inputs = Inputs { latent, text: case["in.txt"].shallow_clone(), timestep, conditions };
        Ok(self.network.forward(&mut self.units, &inputs.map(there))?.to_device(Device::Cpu))
    }

    /// Compares a tensor `[…, N, C·p²]` of a step.
    fn assert_close(&self, name: &str, step: usize, got: &Tensor) {
        let want = self.tensors[name].get(step as i64);
        let error = relative(&packed(got, self.sizes.patch_size as i64), &want, 0.0);
        assert!(error < 1e-4, "{}: {name} of step {step} differs by {error:e}", self.path);
    }
}

#[test]
fn oracle_guided_sampling_gives_the_latents_of_open_sora() {
    let guided = files("options").into_iter().map(Case::read).filter(|case| case.tensors.contains_key("in.cond"));
    for mut case in guided {
        let noise = latent(&case.tensors["in.noise"]);
        let (shape, patch) = (shape_of(&noise), case.sizes.patch_size as i64);
        let kind = case.options.0["cond_type"].as_str().and_then(Given::named).expect("a kind of given frames");
        let guidance = Guidance {
            text: case.options.number("guidance").expect("a scale"),
            given: case.options.number("guidance_img").expect("a scale"),
            text_oscillates: case.options.is("text_osci"),
            given_oscillates: case.options.is("image_osci"),
            given_rises: case.options.is("scale_temporal_osci"),
        };
        let kinds = vec![kind; noise.size()[0] as usize];
        let given = given_frames(&case.tensors, &kinds, case.sizes.latent_channels, shape);
        let recorded = case.tensors["in.cond"].chunk(3, 0);
        assert_eq!(packed(&given, patch), recorded[0], "{}: the given frames", case.path);
        assert_eq!(recorded[0], recorded[1], "{}", case.path);

        let euler = case.euler(shape);
        let steps = euler.steps();
        let velocity = |x: &Tensor, step: usize| {
            case.assert_close("out.step_latent_packed", step, x);
            let predicted = case.predict(x, euler.timesteps()[step])?;
            case.assert_close("out.step_prediction", step, &predicted);
            let [all, given, nothing]: [Tensor; 3] = predicted.chunk(3, 0).try_into().expect("three predictions");
            Ok::<_, TorchError>(guidance.velocity(&Predictions { all, given, nothing }, step, steps, kind))
        };
        let sampled = euler.sample(&noise, velocity, |_| Ok(())).expect("one rank has no peers");
        // Open-Sora writes given images over the frames of the first sample only.
        let first = sampled.narrow(0, 0, 1);
        let first = if kind.is_of_images() { with_given(&first, &given.narrow(0, 0, 1)) } else { first };
        let got = Tensor::cat(&[first, sampled.slice(0, 1, None, 1)], 0);
        let error = relative(&got, &latent(&case.tensors["out.latent"]), 0.0);
        assert!(error < 1e-4, "{}: the latent differs by {error:e}", case.path);
        println!("{}: {steps} steps", case.path);
    }
}

#[test]
fn oracle_sampling_with_a_distilled_network_gives_the_latents_of_open_sora() {
    let distilled = files("options").into_iter().map(Case::read).filter(|case| case.sizes.guidance);
    for mut case in distilled {
        let noise = latent(&case.tensors["in.noise"]);
        let euler = case.euler(shape_of(&noise));
        let velocity = |x: &Tensor, step: usize| {
            case.assert_close("out.step_latent_packed", step, x);
            case.predict(x, euler.timesteps()[step])
        };
        let sampled = euler.sample(&noise, velocity, |_| Ok(())).expect("one rank has no peers");
        let error = relative(&sampled, &latent(&case.tensors["out.latent"]), 0.0);
        assert!(error < 1e-4, "{}: the latent differs by {error:e}", case.path);
        println!("{}: {} steps", case.path, euler.steps());
    }
}

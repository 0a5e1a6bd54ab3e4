//! Compares STDiT3 with numbers recorded from Open-Sora 1.2: the network, the objective, masks and sampling.
//!
//! Reads `opensora/` of the oracle: the files `stdit3_*.safetensors`, `rf_loss_*.safetensors`, `rf_sample_*.safetensors`, `rf_tables.json`
//! and `masks/*.json`, and the checkpoint `checkpoints/stdit3_hf`. Names, sizes and settings come from the files.

mod support;

use camino::{Utf8Path, Utf8PathBuf};
use dit::block::ActivationCheckpointing;
use dit::family::{Conditions, Family, Inputs, Tokens};
use dit::mixers::{Kept, Mixers};
use dit::network::{Network, Units};
use dit::objective::Objective;
use dit::parallel::Alone;
use dit::sampler::{Prediction, Stepped};
use dit::stdit3::references::{self, WithReferences};
use dit::stdit3::{self, FlowSampler, Noisy, RectifiedFlow, SpaceTime, masks};
use recipe::families::stdit3::{
    Config, Flow, FrameMask, Layout, Reference, ShownSize, Stdit3, TimestepDraw, file_tensor, param_specs,
};
use recipe::{FsdpUnit, ParamRole};
use serde_json::Value;
use support::device::{device, there};
use support::placed::{Placed, part};
use support::{About, Tensors, load, metadata, oracle, relative};
use tch::{Kind, Tensor};

/// A recorded file.
struct Case {
    path: Utf8PathBuf,
    tensors: Tensors,
    model: Stdit3,
    about: About,
    /// The probability that a caption is dropped.
    dropout: f64,
}

impl Case {
    fn open(path: &Utf8Path) -> Self {
        let about = metadata(path);
        let config: Config = serde_json::from_str(&about["config"]).unwrap_or_else(|e| panic!("{path}: {e}"));
        let model = config.model().unwrap_or_else(|e| panic!("{path}: {e}"));
        Case { path: path.to_owned(), tensors: load(path), model, about, dropout: config.class_dropout_prob }
    }

    fn tensor(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("{}: no {name}", self.path))
    }

    /// Returns a recorded latent or output in the network's order of dimensions, `[B, T, C, height, width]`.
    fn latent(&self, name: &str) -> Tensor {
        self.tensor(name).transpose(1, 2).contiguous()
    }

    fn network(&self, checkpointing: ActivationCheckpointing) -> Network<SpaceTime> {
        Network::of(SpaceTime::new(&self.model), checkpointing).on(device())
    }

    fn params(&self) -> Placed {
        Placed::new(param_specs(&self.model), &self.tensors, "param.", |name| {
            file_tensor(Layout::OpenSora, &self.model, name)
        })
    }

    fn conditions(&self) -> Conditions {
        let mut conditions = vec![
            (stdit3::FPS, self.tensor("in.fps").shallow_clone()),
            (stdit3::HEIGHT, self.tensor("in.height").shallow_clone()),
            (stdit3::WIDTH, self.tensor("in.width").shallow_clone()),
            (stdit3::TEXT_MASK, self.tensor("in.mask").shallow_clone()),
        ];
        conditions.extend(self.tensors.get("in.x_mask").map(|mask| (stdit3::FRAME_MASK, mask.shallow_clone())));
        conditions
    }

    /// Returns a value of the metadata, which is JSON.
    fn about(&self, key: &str) -> Value {
        serde_json::from_str(&self.about[key]).unwrap_or_else(|e| panic!("{}: {key}: {e}", self.path))
    }

    fn flow(&self) -> Flow {
        let scheduler = self.about("scheduler");
        let is = |key: &str| scheduler[key].as_bool().unwrap_or_default();
        let number = |key: &str, default: f64| scheduler[key].as_f64().unwrap_or(default);
        let draw = match scheduler["sample_method"].as_str() {
            _ if is("use_discrete_timesteps") => TimestepDraw::Discrete,
            Some("logit-normal") => {
                TimestepDraw::LogitNormal { mean: number("loc", 0.0), deviation: number("scale", 1.0) }
            }
            _ => TimestepDraw::Uniform,
        };
        let shift = is("use_timestep_transform").then(|| number("transform_scale", 1.0) as f32);
        assert_eq!(number("num_timesteps", 1000.0), 1000.0, "{}", self.path);
        Flow { draw, shift }
    }

    /// Returns the size of each sample's clip.
    fn clips(&self) -> Vec<ShownSize> {
        let numbers = |name: &str| Vec::<f32>::try_from(self.tensor(name)).expect("numbers");
        let (heights, widths, frames) = (numbers("in.height"), numbers("in.width"), numbers("in.num_frames"));
        let clip = |i: usize| ShownSize { height_px: heights[i], width_px: widths[i], frames: frames[i] };
        (0..heights.len()).map(clip).collect()
    }

    /// Returns the quantiles of the recorded draws of timesteps.
    fn quantiles(&self, draw: TimestepDraw) -> Vec<f64> {
        let quantiles = match draw {
            TimestepDraw::Uniform => self.tensor("in.uniform_for_t").to_kind(Kind::Double),
            TimestepDraw::Discrete => (self.tensor("in.integer_t").to_kind(Kind::Double) + 0.5) / 1000.0,
            TimestepDraw::LogitNormal { .. } => self.tensor("in.normal_for_t").to_kind(Kind::Double).special_ndtr(),
        };
        Vec::try_from(quantiles).expect("numbers")
    }

    fn inputs(&self, latent: &Tensor, timestep: &Tensor) -> Inputs {
        Inputs {
            latent: latent.set_requires_grad(true),
            text: self.tensor("in.y").squeeze_dim(1),
            timestep: timestep.shallow_clone(),
            conditions: self.conditions(),
        }
    }

    /// Compares the gradients of all trained parameters, and returns their number.
    fn compare_grads(&self, units: &Placed) -> usize {
        let recorded = |name: &str| self.tensors.get(&format!("out.grad.{name}"));
        let norms = self.tensors.iter().filter(|(name, _)| name.starts_with("out.grad.")).map(|(_, t)| t.norm());
        // The gradient of a bias of keys without rotation is zero, and its recorded value is rounding error.
        let smallest = norms.map(|norm| norm.double_value(&[])).fold(0.0, f64::max) * 1e-4;
        let mut count = 0;
        for spec in param_specs(&self.model).iter().filter(|spec| spec.role == ParamRole::Trained) {
            let place = file_tensor(Layout::OpenSora, &self.model, &spec.name).expect("the layout has every tensor");
            let want = recorded(&place.name).unwrap_or_else(|| panic!("{}: no gradient of {}", self.path, place.name));
            // Attention along the time of an image is constant in queries and keys: the gradients of their rows are rounding error too.
            let floor = smallest.max(want.norm().double_value(&[]) * 1e-2);
            let error = relative(&units.grads[&spec.name], &part(want, &place), floor);
            assert!(error < 1e-4, "{}: the gradient of {} differs by {error:e}", self.path, spec.name);
            count += 1;
        }
        count
    }
}

fn files(start: &str) -> Vec<Utf8PathBuf> {
    oracle::entries("opensora", &format!("{start}*.safetensors"), |path| {
        path.extension() == Some("safetensors") && path.file_name().is_some_and(|name| name.starts_with(start))
    })
}

fn json(path: &Utf8Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[test]
fn oracle_stdit3_forward_and_every_gradient_are_those_of_open_sora() {
    for path in files("stdit3_") {
        let case = Case::open(&path);
        let inputs = case.inputs(&case.latent("in.x"), case.tensor("in.timestep"));
        let pull = case.latent("in.grad_output");
        for keep in [ActivationCheckpointing::Selective(Kept::ATTENTION), ActivationCheckpointing::Full] {
            let mut units = case.params();
            let network = case.network(keep);
            let loss = |out: &Tensor| (out * there(&pull)).sum(Kind::Float);
            let pass = network.forward_backward(&mut units, &inputs.map(there), loss).expect("one rank has no peers");
            let error = relative(&pass.output, &case.latent("out.output"), 0.0);
            assert!(error < 1e-5, "{path} {keep:?}: the output differs by {error:e}");
            let grad = pass.grad_latent.expect("the latent requires a gradient");
            let error = relative(&grad, &case.latent("out.grad_in.x"), 0.0);
            assert!(error < 1e-4, "{path} {keep:?}: the gradient of the latent differs by {error:e}");
            let count = case.compare_grads(&units);
            println!("{path} {keep:?}: {count} gradients");
        }
    }
}

#[test]
fn oracle_stdit3_the_gradient_of_the_text_is_that_of_open_sora() {
    for path in files("stdit3_") {
        let case = Case::open(&path);
        let mut inputs = case.inputs(&case.latent("in.x"), case.tensor("in.timestep")).map(there);
        inputs.text = inputs.text.set_requires_grad(true);
        let (family, mut units) = (SpaceTime::new(&case.model), case.params());
        let grid = family.grid(inputs.shape(), device());
        let root = units.gather(FsdpUnit::Root, None).unwrap();
        let mut tokens: Tokens = family.embed(&grid, &root, &inputs);
        for number in 0..family.num_blocks() {
            let params = units.gather(FsdpUnit::Block(number), None).unwrap();
            tokens.streams = family.block(&grid, number, &params, &tokens, &Mixers::default(), &Alone).unwrap();
        }
        let out = family.head(&grid, &root, &tokens);
        (out * there(&case.latent("in.grad_output"))).sum(Kind::Float).backward();
        let error = relative(&inputs.text.grad(), &case.tensor("out.grad_in.y").squeeze_dim(1), 0.0);
        assert!(error < 1e-4, "{path}: the gradient of the text differs by {error:e}");
    }
}

#[test]
fn oracle_stdit3_positions_are_those_of_open_sora() {
    for path in files("stdit3_") {
        let case = Case::open(&path);
        let latent = case.latent("in.x").size();
        let shape = recipe::Shape { frames: 1, height: latent[3] as usize, width: latent[4] as usize };
        let [_, rows, columns] = case.model.tokens(shape).map(|count| count as i64);
        let sides = ["in.height", "in.width"].map(|name| case.tensor(name).narrow(0, 0, 1));
        let (base, dim) = (case.model.base_side_px, case.model.dim() as i64);
        let table = stdit3::positions::table([&sides[0], &sides[1]], [rows, columns], base, dim);
        let error = relative(&table, case.tensor("out.pos_embed"), 0.0);
        assert!(error < 1e-5, "{path}: positions differ by {error:e}");
    }
}

#[test]
fn oracle_a_folder_of_hugging_face_has_every_tensor_once_and_gives_the_recorded_output() {
    for folder in oracle::entries("opensora/checkpoints", "stdit3_hf*/", |path| path.join("config.json").is_file()) {
        let config: Config = serde_json::from_value(json(&folder.join("config.json"))).unwrap();
        let weights = load(&folder.join("model.safetensors"));
        let model = config.model().unwrap();
        let mut rows = std::collections::BTreeMap::<String, usize>::new();
        for spec in param_specs(&model) {
            *rows.entry(file_tensor(Layout::OpenSora, &model, &spec.name).unwrap().name).or_default() += spec.shape[0];
        }
        for (name, tensor) in &weights {
            let used = rows.remove(name).unwrap_or_default() as i64;
            let computed = name == recipe::families::stdit3::OPEN_SORA_ROPE;
            assert_eq!(used, if computed { 0 } else { tensor.size()[0] }, "{folder}: {name}");
        }
        assert!(rows.is_empty(), "{folder} has no {rows:?}");

        let case = Case::open(&Utf8PathBuf::from(format!("{folder}_io.safetensors")));
        assert_eq!(case.model, model);
        let mut units =
            Placed::new(param_specs(&model), &weights, "", |name| file_tensor(Layout::OpenSora, &model, name));
        let inputs = case.inputs(&case.latent("in.x"), case.tensor("in.timestep"));
        let out = case.network(ActivationCheckpointing::Full).forward(&mut units, &inputs.map(there)).unwrap();
        let error = relative(&out, &case.latent("out.output"), 0.0);
        assert!(error < 1e-5, "{folder}: the output differs by {error:e}");
    }
}

#[test]
fn oracle_rectified_flow_has_the_losses_and_gradients_of_open_sora() {
    for path in files("rf_loss_") {
        let case = Case::open(&path);
        let flow = RectifiedFlow(case.flow());
        let quantiles = case.quantiles(flow.0.draw);
        let timesteps: Vec<Tensor> =
            quantiles.iter().zip(case.clips()).map(|(quantile, clip)| flow.timesteps_of(&[*quantile], clip)).collect();
        let timestep = Tensor::cat(&timesteps, 0);
        let error = relative(&timestep, case.tensor("out.t"), 0.0);
        assert!(error < 1e-6, "{path}: timesteps differ by {error:e}");

        let (clean, noise) = (case.latent("in.x0"), case.latent("in.noise"));
        let (noised, target) = flow.noised(&clean, &noise, &timestep, &case.conditions());
        let error = relative(&noised, &case.latent("out.x_t"), 0.0);
        assert!(error < 1e-6, "{path}: noised latents differ by {error:e}");

        let mut inputs = case.inputs(&noised, &timestep);
        if case.about("class_dropout") == true {
            let draws = case.tensor("in.uniform_class_dropout");
            inputs.conditions.push((stdit3::NO_TEXT, draws.lt(case.dropout)));
        }
        let (mut units, target) = (case.params(), target.map(there));
        let mut losses = None;
        let loss = |out: &Tensor| {
            let of_samples = target.loss(out);
            losses = Some(of_samples.detach());
            of_samples.mean(Kind::Float)
        };
        let network = case.network(ActivationCheckpointing::Full);
        let pass = network.forward_backward(&mut units, &inputs.map(there), loss).expect("one rank has no peers");
        let error = relative(&losses.expect("the loss was computed"), case.tensor("out.loss_per_sample"), 0.0);
        assert!(error < 1e-5, "{path}: losses of samples differ by {error:e}");
        let error = relative(&target.plain_loss(&pass.output), case.tensor("out.loss"), 0.0);
        assert!(error < 1e-5, "{path}: the loss differs by {error:e}");
        println!("{path}: {} gradients", case.compare_grads(&units));
    }
}

#[test]
fn oracle_timesteps_are_shifted_as_in_open_sora() {
    let is_table = |path: &Utf8Path| path.file_name() == Some("rf_tables.json");
    for path in oracle::entries("opensora", "rf_tables.json", is_table) {
        let table = json(&path);
        for row in table["rows"].as_array().expect("rows") {
            let number = |key: &str| row[key].as_f64().expect("a number") as f32;
            let numbers = |key: &str| -> Vec<f32> {
                row[key].as_array().expect("numbers").iter().map(|n| n.as_f64().expect("a number") as f32).collect()
            };
            let clip =
                ShownSize { height_px: number("height"), width_px: number("width"), frames: number("num_frames") };
            let shifted: Vec<f32> = numbers("t").into_iter().map(|t| Flow::default().shifted(t, clip)).collect();
            assert_eq!(shifted, numbers("shifted"), "{row}");
        }
    }
}

/// Returns random numbers that make the recorded draws, in the order of the calls.
fn uniforms(draws: &Value) -> Vec<f64> {
    let number = |value: &Value| value.as_f64().expect("a number");
    let of_call = |call: &Value| match (call[0].as_str().expect("a function"), &call[1]) {
        ("random.random", drawn) => vec![number(drawn)],
        ("random.randint", low) => {
            vec![(number(&call[3]) - number(low) + 0.5) / (number(&call[2]) - number(low) + 1.0)]
        }
        ("random.uniform", low) => vec![(number(&call[3]) - number(low)) / (number(&call[2]) - number(low))],
        ("torch.rand", drawn) => drawn.as_array().expect("numbers").iter().map(number).collect(),
        (other, _) => panic!("{other} is not supported"),
    };
    draws.as_array().expect("draws").iter().flat_map(of_call).collect()
}

#[test]
fn oracle_masks_are_those_of_open_sora() {
    for path in oracle::entries("opensora/masks", "*.json", |path| path.extension() == Some("json")) {
        let file = json(&path);
        let shares = |set: &Value| -> Vec<(FrameMask, f64)> {
            let kinds = file["sets"][set.as_str().expect("a name")].as_array().expect("kinds").iter();
            let share = |kind: &Value| {
                Some((FrameMask::named(kind[0].as_str().expect("a name"))?, kind[1].as_f64().expect("a share")))
            };
            kinds.filter_map(share).collect()
        };
        for case in file["cases"].as_array().expect("cases") {
            let draws = uniforms(&case["draws"]);
            let mut left = draws.iter().copied();
            let frames = case["frames"].as_u64().expect("a number") as usize;
            let mut uniform = || left.next().expect("as many draws as recorded");
            let (kind, noised) = masks::draw(&shares(&case["set"]), frames, &mut uniform);
            let name = case["kind"].as_str().expect("a name");
            assert_eq!(kind, FrameMask::named(name), "{case}");
            let noised: Vec<Value> = noised.into_iter().map(|noised| u8::from(noised).into()).collect();
            assert_eq!(Value::from(noised), case["mask"], "{case}");
            assert_eq!(left.count(), 0, "{case}");
        }
        let frequency = &file["frequency"];
        let (set, frames) = (shares(&frequency["set"]), frequency["frames"].as_u64().expect("a number") as usize);
        let mut state = 1u64;
        // Steele et al. 2014, SplitMix64.
        let mut uniform = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        };
        let draws = 200_000;
        let (mut whole, mut clean) = (0usize, 0usize);
        for _ in 0..draws {
            let (_, noised) = masks::draw(&set, frames, &mut uniform);
            let kept = noised.iter().filter(|noised| !**noised).count();
            whole += usize::from(kept == 0);
            clean += kept;
        }
        // Standard deviations of the recorded and of our share, and of the means: 0.0009 and 0.004 each.
        let close = |got: usize, key: &str, tolerance: f64| {
            let (got, want) = (got as f64 / f64::from(draws), frequency[key].as_f64().expect("a number"));
            assert!((got - want).abs() < tolerance, "{path}: {key} is {got}, not {want}");
        };
        close(whole, "share_without_clean_frames", 0.005);
        close(clean, "mean_clean_frames", 0.02);
    }
}

#[test]
fn oracle_sampling_has_every_step_of_open_sora() {
    for path in files("rf_sample_") {
        let case = Case::open(&path);
        let scheduler = case.about("scheduler");
        let steps = scheduler["num_sampling_steps"].as_u64().expect("a number") as usize;
        let scale = scheduler["cfg_scale"].as_f64().expect("a number");
        let sampler = FlowSampler::new(&case.flow(), &case.clips(), steps, scale);
        let recorded: Vec<f32> =
            Vec::try_from(case.tensor("out.timesteps").to_kind(Kind::Float).flatten(0, -1)).expect("numbers");
        let ours: Vec<f32> = sampler.timesteps().iter().flatten().copied().collect();
        let error = relative(&Tensor::from_slice(&ours), &Tensor::from_slice(&recorded), 0.0);
        assert!(error < 1e-6, "{path}: timesteps differ by {error:e}");

        let noise = case.latent("in.noise");
        let placed = case.about("mask_strategy").as_array().map(|strategies| {
            let of_sample = |(sample, text): (usize, &Value)| {
                let text = text.as_str().expect("a mask string");
                let latents = (0..).map_while(|number| case.tensors.get(&format!("in.ref_latent.{sample}.{number}")));
                (Reference::list(text).expect("a valid string"), latents.map(|latent| latent.transpose(0, 1)).collect())
            };
            let samples: Vec<_> = strategies.iter().enumerate().map(of_sample).collect();
            let alignment = case.about("align").as_u64().map(|align| align as usize);
            references::place(&noise, &samples, 0, alignment).expect("every reference is there")
        });
        if let Some(WithReferences { latent, shares }) = &placed {
            assert_eq!(latent, &case.latent("out.z_with_refs"), "{path}");
            let recorded: Vec<f32> = Vec::try_from(case.tensor("out.mask").flatten(0, -1)).expect("numbers");
            assert_eq!(shares.concat(), recorded, "{path}");
        }

        let (network, mut units) = (case.network(ActivationCheckpointing::Full), case.params());
        let mut step = 0i64;
        let predict = |x: Noisy<'_>| {
            let mut outputs = Vec::new();
            for without in [0i64, 1] {
                let mut inputs = case.inputs(&x.latent.detach(), x.timestep).map(there);
                inputs.conditions.extend(x.frames.map(|frames| (stdit3::FRAME_MASK, there(frames))));
                inputs.conditions.push((stdit3::NO_TEXT, x.timestep.full_like(without)));
                outputs.push(network.forward(&mut units, &inputs).expect("one rank has no peers"));
            }
            if let Some(frames) = x.frames {
                assert_eq!(frames.to_kind(Kind::Uint8), case.tensor("out.step_x_mask").get(step), "{path} {step}");
            }
            let recorded = case.tensor("out.step_latent").get(step).transpose(1, 2);
            let error = relative(x.latent, &recorded, 0.0);
            assert!(error < 1e-4, "{path}: the latent of step {step} differs by {error:e}");
            let recorded = case.tensor("out.step_prediction").get(step).transpose(1, 2);
            let error = relative(&Tensor::cat(&outputs, 0), &recorded, 0.0);
            assert!(error < 1e-4, "{path}: the prediction of step {step} differs by {error:e}");
            step += 1;
            let without_text = outputs.pop();
            let with_text = outputs.pop().expect("both outputs");
            Ok::<_, std::convert::Infallible>(Prediction { with_text, without_text })
        };
        let draw = |step: usize| case.tensor("in.step_noise").get(step as i64).transpose(1, 2);
        let mut clean = None;
        let after = |stepped: Stepped<'_>| {
            clean = Some(stepped.clean.copy());
            Ok(())
        };
        assert!(sampler.is_guided());
        let start = placed.as_ref().map_or(&noise, |placed| &placed.latent);
        let shares = placed.as_ref().map(|placed| &placed.shares[..]);
        let latent = sampler.sample(start, shares, predict, draw, after).expect("nothing fails");
        let error = relative(&latent, &case.latent("out.latent"), 0.0);
        assert!(error < 1e-4, "{path}: the sample differs by {error:e}");
        // The last step leads to the clean latent that it predicts.
        assert_eq!(clean.expect("a step"), latent);
        assert_eq!(step, steps as i64, "{path}");
    }
}

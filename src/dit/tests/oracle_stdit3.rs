//! Compares STDiT3 with numbers recorded from Open-Sora 1.2.
//!
//! Reads `opensora/` of the oracle: the files `stdit3_*.safetensors` and the checkpoint `checkpoints/stdit3_hf`. Names, sizes and settings
//! come from the files.

mod support;

use camino::{Utf8Path, Utf8PathBuf};
use dit::block::ActivationCheckpointing;
use dit::family::{Conditions, Family, Inputs, Tokens};
use dit::mixers::{Kept, Mixers};
use dit::network::{Network, Units};
use dit::parallel::Alone;
use dit::stdit3::{self, SpaceTime};
use recipe::families::stdit3::{Config, Layout, Stdit3, param_specs, place};
use recipe::{FsdpUnit, ParamRole};
use serde_json::Value;
use support::device::{device, there};
use support::placed::{Placed, part};
use support::{Tensors, load, metadata, oracle, relative};
use tch::{Kind, Tensor};

/// A recorded file.
struct Case {
    path: Utf8PathBuf,
    tensors: Tensors,
    model: Stdit3,
}

impl Case {
    fn open(path: &Utf8Path) -> Self {
        let config: Config = serde_json::from_str(&metadata(path)["config"]).unwrap_or_else(|e| panic!("{path}: {e}"));
        let model = config.model().unwrap_or_else(|e| panic!("{path}: {e}"));
        Case { path: path.to_owned(), tensors: load(path), model }
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
            place(Layout::OpenSora, &self.model, name)
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
            let place = place(Layout::OpenSora, &self.model, &spec.name).expect("the layout has every tensor");
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
            *rows.entry(place(Layout::OpenSora, &model, &spec.name).unwrap().name).or_default() += spec.shape[0];
        }
        for (name, tensor) in &weights {
            let used = rows.remove(name).unwrap_or_default() as i64;
            let computed = name == recipe::families::stdit3::OPEN_SORA_ROPE;
            assert_eq!(used, if computed { 0 } else { tensor.size()[0] }, "{folder}: {name}");
        }
        assert!(rows.is_empty(), "{folder} has no {rows:?}");

        let case = Case::open(&Utf8PathBuf::from(format!("{folder}_io.safetensors")));
        assert_eq!(case.model, model);
        let mut units = Placed::new(param_specs(&model), &weights, "", |name| place(Layout::OpenSora, &model, name));
        let inputs = case.inputs(&case.latent("in.x"), case.tensor("in.timestep"));
        let out = case.network(ActivationCheckpointing::Full).forward(&mut units, &inputs.map(there)).unwrap();
        let error = relative(&out, &case.latent("out.output"), 0.0);
        assert!(error < 1e-5, "{folder}: the output differs by {error:e}");
    }
}

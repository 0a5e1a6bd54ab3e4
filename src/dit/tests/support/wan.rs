//! Models of Wan with recorded weights, and their parameters on one rank.

use super::device::there;
use super::whole::all_weights;
use super::{About, Tensors, metadata, oracle};
use camino::{Utf8Path, Utf8PathBuf};
use dit::network::Units;
use dit::params::{Adapters, SlotGrad, UnitParams};
use dit::wan::unit_specs;
use recipe::families::wan::{ImageKeys, Layout, WanModel, file_tensor};
use recipe::{FsdpUnit, ParamRole, ParamSpec, Split};
use serde_json::Value;
use std::collections::BTreeMap;
use tch::{Device, Tensor};
use torch_error::TorchError;

/// Returns a path below the project's own recorded numbers of Wan.
pub fn own(below: &str) -> Utf8PathBuf {
    Utf8Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/oracle/wan")).join(below)
}

/// Returns a recorded file, and prints a line if there is none.
pub fn recorded(file: &str) -> Option<Utf8PathBuf> {
    let path = oracle::root().join("wan").join(file);
    if !path.is_file() {
        println!("skipped: no {path}");
        return None;
    }
    Some(path)
}

/// Returns the JSON value `config` of a recorded file's header.
pub fn about(file: &Utf8Path) -> Value {
    let header: About = metadata(file);
    serde_json::from_str(&header["config"]).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Returns a latent `[B, C, T, h, w]` as `[B, T, C, h, w]`, and the reverse.
pub fn turned(latent: &Tensor) -> Tensor {
    latent.transpose(-4, -3)
}

/// A model with its weights, by our names.
pub struct Recorded {
    pub model: WanModel,
    pub weights: Tensors,
    /// The adapters of each block and their scale, if there are any; then the weights are frozen.
    pub adapters: Option<(Vec<ParamSpec>, f64)>,
}

impl Recorded {
    /// Reads a diffusers folder, for texts of `text_len` rows.
    pub fn read(transformer: &Utf8Path, text_len: i64) -> Self {
        let model = model(&transformer.join("config.json"), text_len as usize);
        let theirs = all_weights(transformer);
        let specs = recipe::families::wan::param_specs(&model);
        assert_eq!(specs.len(), theirs.len(), "{transformer}");
        let own = |spec: ParamSpec| {
            let tensor = theirs[&diffusers(&spec.name)].shallow_clone();
            let shape: Vec<i64> = spec.shape.iter().map(|&size| size as i64).collect();
            assert_eq!(tensor.size(), shape, "{}", spec.name);
            (spec.name, tensor)
        };
        Recorded { weights: specs.into_iter().map(own).collect(), model, adapters: None }
    }

    /// Returns the adapters of each block, for a network.
    pub fn adapters(&self) -> Vec<Adapters> {
        let Some((_, scale)) = &self.adapters else { return Vec::new() };
        (0..self.model.num_layers).map(|i| Adapters::of(&self.specs(FsdpUnit::Block(i)), *scale)).collect()
    }

    /// Returns the specs of a unit, those of adapters last.
    pub fn specs(&self, unit: FsdpUnit) -> Vec<ParamSpec> {
        let mut specs = unit_specs(&self.model, unit);
        let adapters = self.adapters.iter().flat_map(|(specs, _)| specs);
        specs.extend(adapters.filter(|spec| spec.unit == unit).cloned());
        specs
    }

    /// Returns the parameters on one rank.
    pub fn units(&self) -> Whole<'_> {
        Whole { recorded: self, grads: Tensors::new() }
    }
}

/// Returns the specs of the adapters of layers, two for each.
pub fn adapter_specs(of: &[ParamSpec], layers: &[String], rank: usize) -> Vec<ParamSpec> {
    let pair = |layer: &String| {
        let weight = of.iter().find(|spec| spec.name == format!("{layer}.weight")).expect("a layer of the model");
        let spec = |part: &str, shape: [usize; 2]| ParamSpec {
            name: format!("{layer}.{part}"),
            shape: shape.to_vec(),
            role: ParamRole::Adapter,
            split: Split::None,
            ..weight.clone()
        };
        [spec("lora_a", [rank, weight.shape[1]]), spec("lora_b", [weight.shape[0], rank])]
    };
    layers.iter().flat_map(pair).collect()
}

/// Returns the diffusers name of one of our tensors.
pub fn diffusers(name: &str) -> String {
    file_tensor(Layout::Diffusers, name).unwrap_or_else(|| panic!("diffusers has no {name}")).name
}

/// Reads the sizes of a model from diffusers' configuration.
fn model(config: &Utf8Path, text_len: usize) -> WanModel {
    let text = std::fs::read(config).unwrap_or_else(|e| panic!("{config}: {e}"));
    let config: BTreeMap<String, Value> = serde_json::from_slice(&text).expect("JSON");
    let size = |key: &str| config[key].as_u64().map(|size| size as usize);
    let needed = |key: &str| size(key).unwrap_or_else(|| panic!("{key}"));
    let patch: Vec<usize> = serde_json::from_value(config["patch_size"].clone()).expect("sizes");
    WanModel {
        num_layers: needed("num_layers"),
        num_heads: needed("num_attention_heads"),
        head_dim: needed("attention_head_dim"),
        ffn_dim: needed("ffn_dim"),
        text_dim: needed("text_dim"),
        text_len,
        freq_dim: needed("freq_dim"),
        in_channels: needed("in_channels"),
        out_channels: needed("out_channels"),
        patch_size: patch.try_into().expect("three sizes"),
        image: size("image_dim").map(|dim| ImageKeys { dim, positions: size("pos_embed_seq_len") }),
        eps: config["eps"].as_f64().expect("a number"),
    }
}

/// The parameters of a recorded model on one rank. Gradients are stored under our names.
pub struct Whole<'a> {
    recorded: &'a Recorded,
    pub grads: Tensors,
}

impl Units for Whole<'_> {
    type Error = TorchError;

    fn gather(&mut self, unit: FsdpUnit, _: Option<FsdpUnit>) -> Result<UnitParams, TorchError> {
        let trained = if self.recorded.adapters.is_some() { ParamRole::Adapter } else { ParamRole::Trained };
        let tensor = |spec: &ParamSpec| {
            there(&self.recorded.weights[&spec.name]).detach().set_requires_grad(spec.role == trained)
        };
        Ok(UnitParams::new(self.recorded.specs(unit).iter().map(tensor).collect()))
    }

    fn reduce(&mut self, unit: FsdpUnit, grads: Vec<SlotGrad>) -> Result<(), TorchError> {
        let specs = self.recorded.specs(unit);
        for (slot, grad) in grads {
            let twice = self.grads.insert(specs[slot].name.clone(), grad.to_device(Device::Cpu));
            assert!(twice.is_none(), "{} got two gradients", specs[slot].name);
        }
        Ok(())
    }
}

//! MMDiTs of recorded files: their sizes, and their parameters in the layouts of published files.

use super::device::there;
use super::ranks::part;
use super::{Tensors, metadata};
use camino::Utf8Path;
use dit::network::Units;
use dit::parallel::{Alone, TensorParallel};
use dit::params::{SlotGrad, UnitParams};
use dit::patches::{self, ChannelOrder};
use recipe::families::FileTensor;
use recipe::families::mmdit::{Layout, Mmdit, file_tensor, param_specs};
use recipe::{FsdpUnit, ParamSpec};
use serde_json::Value;
use tch::{Device, Tensor};
use torch_error::TorchError;

/// Returns the sizes and the file layout of a configuration of Open-Sora, in its keys.
pub fn sizes(config: &Value, text_tokens: i64) -> (Mmdit, Layout) {
    let number = |key: &str| config[key].as_u64().unwrap_or_else(|| panic!("{key} is {}", config[key])) as usize;
    let is = |key: &str| config[key].as_bool().unwrap_or_else(|| panic!("{key} is {}", config[key]));
    let axes: Vec<usize> = serde_json::from_value(config["axes_dim"].clone()).expect("axes_dim is a list of numbers");
    let patch = number("patch_size");
    let sizes = Mmdit {
        latent_channels: number("in_channels") / (patch * patch),
        patch_size: patch,
        num_heads: number("num_heads"),
        axes: axes.try_into().expect("there are three axes"),
        theta: config["theta"].as_f64().expect("theta is a number"),
        two_stream_blocks: number("depth"),
        one_stream_blocks: number("depth_single_blocks"),
        hidden: (number("hidden_size") as f64 * config["mlp_ratio"].as_f64().expect("mlp_ratio is a number")) as usize,
        text_tokens: text_tokens as usize,
        text_dim: number("context_in_dim"),
        pooled_dim: number("vec_in_dim"),
        qkv_bias: is("qkv_bias"),
        guidance: is("guidance_embed"),
        condition: is("cond_embed"),
    };
    assert_eq!(sizes.dim(), number("hidden_size"));
    assert_ne!(is("fused_qkv"), is("use_liger_rope"), "no published layout has both");
    (sizes, if is("fused_qkv") { Layout::Flux } else { Layout::OpenSora })
}

/// Returns the sizes and the layout of the network in a recorded file.
pub fn sizes_of(path: &Utf8Path, text_tokens: i64) -> (Mmdit, Layout) {
    let config = serde_json::from_str(&metadata(path)["config"]).expect("the configuration is JSON");
    sizes(&config, text_tokens)
}

/// Returns one of our tensors, of this shape, from the tensors of a file.
pub fn from_file(tensors: &Tensors, place: &FileTensor, shape: &[usize]) -> Tensor {
    let whole = tensors.get(&place.name).unwrap_or_else(|| panic!("the file has no {}", place.name));
    let whole = match &place.columns {
        Some(columns) => whole.narrow(1, columns.start as i64, columns.len() as i64),
        None => whole.shallow_clone(),
    };
    let rows = rows(place, shape);
    let tensor = whole.index_select(0, &rows);
    assert_eq!(tensor.size(), shape.iter().map(|&size| size as i64).collect::<Vec<_>>(), "{}", place.name);
    assert!(place.rows.is_some() || whole.size()[0] == tensor.size()[0], "{} has other rows", place.name);
    assert!(place.columns.is_some() || whole.size()[1..] == tensor.size()[1..], "{} has other columns", place.name);
    tensor
}

/// Writes one of our tensors into the tensor of a file.
pub fn to_file(whole: &Tensor, place: &FileTensor, tensor: &Tensor) {
    let part = match &place.columns {
        Some(columns) => whole.narrow(1, columns.start as i64, columns.len() as i64),
        None => whole.shallow_clone(),
    };
    let shape: Vec<usize> = tensor.size().iter().map(|&size| size as usize).collect();
    let _ = tch::no_grad(|| part.shallow_clone().index_copy_(0, &rows(place, &shape), &tensor.to_kind(whole.kind())));
}

fn rows(place: &FileTensor, shape: &[usize]) -> Tensor {
    Tensor::from_slice(&place.source_rows(shape[0]).iter().map(|&row| row as i64).collect::<Vec<_>>())
}

/// The parameters of a network on one rank of a TP group.
pub struct Parameters<'a> {
    /// Each tensor with its spec, in the order of the table: this rank's part.
    pub tensors: Vec<(ParamSpec, Tensor)>,
    /// The gradients by name.
    pub grads: Tensors,
    /// The TP group.
    pub tp: &'a dyn TensorParallel,
}

impl Parameters<'_> {
    /// Reads the parameters of a file whose tensors have these names.
    pub fn read(sizes: &Mmdit, layout: Layout, tensors: &Tensors) -> Self {
        let place = |spec: &ParamSpec| file_tensor(sizes, layout, spec).expect("the layout has every tensor");
        let tensors = param_specs(sizes).into_iter().map(|spec| {
            let tensor = from_file(tensors, &place(&spec), &spec.shape);
            (spec, there(&tensor))
        });
        Parameters { tensors: tensors.collect(), grads: Tensors::new(), tp: &Alone }
    }

    /// Returns the parts that rank `rank` of a TP group of `size` ranks has.
    pub fn parts(&self, rank: usize, size: usize) -> Vec<(ParamSpec, Tensor)> {
        let part = |(spec, tensor): &(ParamSpec, Tensor)| (spec.clone(), part(spec, tensor, rank, size).copy());
        self.tensors.iter().map(part).collect()
    }

    /// Returns the tensors of a unit as leaves that require gradients.
    pub fn of(&self, unit: FsdpUnit) -> UnitParams {
        let own = self.tensors.iter().filter(|(spec, _)| spec.unit == unit);
        UnitParams::new(own.map(|(_, tensor)| tensor.detach().set_requires_grad(true)).collect())
    }

    /// Returns the gradients as a file of this layout has them.
    pub fn grads_in_file(&self, sizes: &Mmdit, layout: Layout, like: &Tensors) -> Tensors {
        let mut all = Tensors::new();
        for (spec, _) in &self.tensors {
            let place = file_tensor(sizes, layout, spec).expect("the layout has every tensor");
            let whole = all.entry(place.name.clone()).or_insert_with(|| like[&place.name].full_like(f64::NAN));
            to_file(whole, &place, &self.grads[&spec.name]);
        }
        all
    }
}

impl Units for Parameters<'_> {
    type Error = TorchError;

    fn gather(&mut self, unit: FsdpUnit, _: Option<FsdpUnit>) -> Result<UnitParams, TorchError> {
        Ok(self.of(unit))
    }

    fn reduce(&mut self, unit: FsdpUnit, grads: Vec<SlotGrad>) -> Result<(), TorchError> {
        let names: Vec<&String> =
            self.tensors.iter().filter(|(spec, _)| spec.unit == unit).map(|(spec, _)| &spec.name).collect();
        for (slot, grad) in grads {
            let twice = self.grads.insert(names[slot].clone(), grad.to_device(Device::Cpu));
            assert!(twice.is_none(), "{} got two gradients", names[slot]);
        }
        Ok(())
    }

    fn tensor_parallel(&self) -> &dyn TensorParallel {
        self.tp
    }
}

/// Returns the tokens of a latent whose patches are squares of one frame.
pub fn packed(latent: &Tensor, side: i64) -> Tensor {
    patches::packed(latent, [1, side, side])
}

/// Returns the latent of tokens that are squares of one frame.
pub fn unpacked(tokens: &Tensor, grid: [i64; 3], side: i64) -> Tensor {
    patches::unpacked(tokens, grid, [1, side, side], ChannelOrder::ChannelsFirst)
}

/// Returns the tensors of a recorded file whose names begin with `prefix`, without it.
pub fn below(case: &Tensors, prefix: &str) -> Tensors {
    case.iter().filter_map(|(name, t)| Some((name.strip_prefix(prefix)?.to_owned(), t.shallow_clone()))).collect()
}

/// Compares gradients in the layout of a file with the recorded ones, and returns their number.
pub fn assert_same_grads(of: &str, got: &Tensors, want: &Tensors) -> usize {
    // A constant added to every key changes nothing, if keys are not rotated: that gradient is zero up to rounding.
    let floor = want.values().map(|t| t.norm().double_value(&[])).fold(0.0, f64::max) * 1e-4;
    for (name, want) in want {
        let got = got.get(name).unwrap_or_else(|| panic!("{of}: no gradient of {name}"));
        let error = super::relative(got, want, floor);
        assert!(error < 1e-4, "{of}: the gradient of {name} differs by {error:e}");
    }
    assert_eq!(got.len(), want.len(), "{of}: gradients");
    want.len()
}

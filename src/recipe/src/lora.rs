//! The `[lora]` section: low-rank adapters that are trained beside frozen weights.
//!
//! Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models"; rsLoRA: Kalajdzievski 2023. Names,
//! scale and initialization are as in the Python package PEFT.

use camino::{Utf8Path, Utf8PathBuf};
use regex::Regex;

use crate::nearest::by_likeness;
use crate::resume::TENSORS;
use crate::schema::{BOOL, FRACTION, NOT_NEGATIVE, OPTIONAL_PATH, TEXTS, TRAIN, TRAIN_AND_SAMPLE, int, word};
use crate::{FsdpUnit, Model, ParamInit, ParamRole, ParamSpec, ResumeEffect, Split, param_specs};

section! {
    /// The adapters of a model. An adapted layer computes `W x + b + scale · B (A x)`, with `A [rank, in]` and `B [out, rank]`.
    pub struct Lora("lora", TRAIN_AND_SAMPLE, TENSORS) with Default {
        /// rank of the adapters (LoRA) that are trained beside the weights; 0: no adapters
        pub rank: usize = 0 => int(0, 4096);
        /// adapters are scaled by alpha / rank; 0: the rank, which scales by 1
        pub alpha: f64 = 0.0 => NOT_NEGATIVE;
        /// layers with an adapter: attention, feed_forward, ttt, modulation, names of layers here or in diffusers (to_q), or regular
        /// expressions of whole names; default: attention
        pub targets: Vec<String> = Vec::new() => TEXTS;
        /// probability that an input of an adapter is dropped in training, as lora_dropout of PEFT; less than 1; 0: never
        pub dropout: f64 = 0.0 => FRACTION.read_by(TRAIN).on_resume(ResumeEffect::Training);
        /// scales adapters by alpha / sqrt(rank) instead (rsLoRA)
        pub rslora: bool = false => BOOL;
        /// initial values of A, as in PEFT; kaiming: uniform within 1 / sqrt(inputs); gaussian: normal, 1 / rank; B starts at zero
        pub init: LoraInit = LoraInit::Kaiming => word::<LoraInit>();
        /// adapter that training starts from instead of lora.init: a file of diffusers, PEFT or kohya, or the folder of a run or a
        /// checkpoint of adapters
        pub from: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH.read_by(TRAIN);
    }
}

words! {
    /// The initial values of A.
    pub enum LoraInit {
        /// Uniform within ±1/√in.
        Kaiming = "kaiming",
        /// Normal with a standard deviation of 1 / rank.
        Gaussian = "gaussian",
    }
}

/// Groups of layers that `lora.targets` can name, and the layers of a block in each.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "attention",
        &["attn.q", "attn.k", "attn.v", "attn.o", "cross_attn.q", "cross_attn.k", "cross_attn.v", "cross_attn.o"],
    ),
    ("feed_forward", &["mlp.up", "mlp.down"]),
    ("ttt", &["ttt.q", "ttt.k", "ttt.v", "ttt.o"]),
    ("modulation", &["norm1.linear", "norm2.linear"]),
];

impl Lora {
    /// Returns whether the model has adapters.
    pub fn is_used(&self) -> bool {
        self.rank > 0
    }

    /// Returns the adapter that training starts from, if there is one.
    pub fn starts_from(&self) -> Option<&Utf8Path> {
        (!self.from.as_str().is_empty()).then_some(self.from.as_path())
    }

    /// Returns alpha, which is the rank by default.
    pub fn alpha(&self) -> f64 {
        if self.alpha == 0.0 { self.rank as f64 } else { self.alpha }
    }

    /// Returns the factor that multiplies `B (A x)`.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha() / if self.rslora { rank.sqrt() } else { rank }
    }

    /// Returns the weights of the layers that have an adapter, in the order of [`param_specs`].
    ///
    /// # Errors
    /// Returns the first target that selects no layer, and the names that resemble it.
    pub fn layers(&self, model: &Model) -> Result<Vec<ParamSpec>, NoSuchLayer> {
        let default = ["attention".to_owned()];
        let targets: &[String] = if self.targets.is_empty() { &default } else { &self.targets };
        let linear: Vec<ParamSpec> = param_specs(model).into_iter().filter(is_linear).collect();
        let targets: Vec<Target> = targets.iter().map(|target| Target::new(target)).collect();
        if let Some(unused) = targets.iter().find(|target| !linear.iter().any(|spec| target.selects(spec))) {
            return Err(NoSuchLayer::new(unused.text, &linear));
        }
        Ok(linear.into_iter().filter(|spec| targets.iter().any(|target| target.selects(spec))).collect())
    }

    /// Returns the tensors of the adapters of a model: A and B of each layer. In a checked recipe, every target selects a
    /// layer.
    pub fn param_specs(&self, model: &Model) -> Vec<ParamSpec> {
        if !self.is_used() {
            return Vec::new();
        }
        self.layers(model).unwrap_or_default().iter().flat_map(|weight| self.pair(weight)).collect()
    }

    /// Returns A and B of one layer. With TP, one of the two is split as the weight is; every rank has the other one
    /// in full.
    fn pair(&self, weight: &ParamSpec) -> [ParamSpec; 2] {
        let (out, fan_in) = (weight.shape[0], weight.shape[1]);
        let [a_split, b_split] = match weight.split {
            Split::Dim(0) => [Split::Summed, Split::Dim(0)],
            Split::Dim(_) => [Split::Dim(1), Split::Summed],
            Split::None | Split::Summed => [Split::None, Split::None],
        };
        let init = match self.init {
            LoraInit::Kaiming => ParamInit::Linear { fan_in },
            LoraInit::Gaussian => ParamInit::Gaussian { rank: self.rank },
        };
        let spec = |ours: &str, theirs: &str, shape: [usize; 2], split, init| ParamSpec {
            name: format!("{}.{ours}", layer_name(&weight.name)),
            diffusers: weight.diffusers.as_deref().map(|name| format!("{}.{theirs}.weight", layer_name(name))),
            shape: shape.to_vec(),
            init,
            split,
            role: ParamRole::Adapter,
            decay: true,
            ..weight.clone()
        };
        [
            spec("lora_a", "lora_A", [self.rank, fan_in], a_split, init),
            spec("lora_b", "lora_B", [out, self.rank], b_split, ParamInit::Zeros),
        ]
    }
}

/// A target that selects no layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoSuchLayer {
    /// The target, as it was written.
    pub target: String,
    /// The valid targets that are most similar, the most similar first.
    pub near: Vec<String>,
    /// The number of layers that can have an adapter.
    pub layers: usize,
}

/// The number of names in a hint.
const NEAR: usize = 4;

impl NoSuchLayer {
    fn new(target: &str, linear: &[ParamSpec]) -> Self {
        // Groups with layers in this model, and the names of a block's layers here and in diffusers.
        let has =
            |layers: &[&str]| linear.iter().any(|spec| layers.iter().any(|layer| ends(layer_name(&spec.name), layer)));
        let groups = GROUPS.iter().filter(|(_, layers)| has(layers)).map(|(name, _)| (*name).to_owned());
        let names = linear.iter().take_while(|spec| spec.unit == linear[0].unit).flat_map(|spec| {
            // Without `blocks.0.` and `transformer_blocks.0.`.
            let in_block = |name| layer_name(name).splitn(3, '.').nth(2);
            let (ours, theirs) = (in_block(&spec.name), spec.diffusers.as_deref().and_then(in_block));
            [ours, theirs].into_iter().flatten().map(str::to_owned).collect::<Vec<_>>()
        });
        let all: Vec<String> = groups.chain(names).collect();
        let near =
            by_likeness(target, all.iter().map(String::as_str)).into_iter().take(NEAR).map(str::to_owned).collect();
        NoSuchLayer { target: target.to_owned(), near, layers: linear.len() }
    }
}

/// Returns whether the last parts of a dotted name are `end`.
fn ends(name: &str, end: &str) -> bool {
    name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Returns whether a tensor is the weight of a linear layer of a block.
fn is_linear(spec: &ParamSpec) -> bool {
    spec.unit != FsdpUnit::Root
        && spec.role == ParamRole::Trained
        && spec.shape.len() == 2
        && spec.name.ends_with(".weight")
}

/// Returns the name of the layer that a weight belongs to.
fn layer_name(weight: &str) -> &str {
    weight.strip_suffix(".weight").unwrap_or(weight)
}

/// One entry of `lora.targets`.
struct Target<'a> {
    text: &'a str,
    group: &'static [&'static str],
    pattern: Option<Regex>,
}

impl<'a> Target<'a> {
    fn new(text: &'a str) -> Self {
        let group = GROUPS.iter().find(|(name, _)| *name == text).map_or(&[][..], |(_, layers)| layers);
        Target { text, group, pattern: Regex::new(&format!("^(?:{text})$")).ok() }
    }

    /// Returns whether the target selects a layer, by its name here or in diffusers. As in PEFT, a name selects every layer
    /// whose name ends with it, and a regular expression matches whole names.
    fn selects(&self, weight: &ParamSpec) -> bool {
        let names = [Some(weight.name.as_str()), weight.diffusers.as_deref()].into_iter().flatten().map(layer_name);
        if !self.group.is_empty() {
            return self.group.iter().any(|layer| ends(layer_name(&weight.name), layer));
        }
        names.into_iter().any(|name| ends(name, self.text) || self.pattern.as_ref().is_some_and(|p| p.is_match(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::tests::flat_lens;
    use crate::{Layer, load};

    fn model() -> Model {
        load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[]).unwrap().recipe.model
    }

    fn layers(targets: &[&str], model: &Model) -> Vec<String> {
        let lora = Lora { rank: 4, targets: targets.iter().map(|&target| target.into()).collect(), ..Lora::default() };
        lora.layers(model).unwrap().iter().map(|spec| layer_name(&spec.name).to_owned()).collect()
    }

    #[test]
    fn a_target_is_a_group_a_name_or_an_expression() {
        let model = model();
        let attention = layers(&[], &model);
        assert_eq!(attention.len(), 4 * model.num_layers);
        assert_eq!(attention[..4], ["blocks.0.attn.q", "blocks.0.attn.k", "blocks.0.attn.v", "blocks.0.attn.o"]);
        assert_eq!(layers(&["to_q", "to_k", "to_v", "to_out.0"], &model), attention);
        assert_eq!(layers(&["attention", "attn.q"], &model), attention);
        assert_eq!(layers(&[r"blocks\.1\.attn\.[qk]"], &model), ["blocks.1.attn.q", "blocks.1.attn.k"]);
        assert_eq!(layers(&["ff.net.0.proj", "mlp.down"], &model), layers(&["feed_forward"], &model));
        assert_eq!(layers(&[".*"], &model).len(), 8 * model.num_layers);
        let ttt = model.with_cogvideox(|keys| keys.layer = Layer::TttMlp);
        assert_eq!(layers(&["ttt"], &ttt).len(), 4 * ttt.num_layers);
    }

    #[test]
    fn a_target_that_selects_nothing_is_named() {
        let model = model();
        let unused = |target: &str| {
            let lora = Lora { rank: 4, targets: vec!["attention".into(), target.into()], ..Lora::default() };
            lora.layers(&model).unwrap_err()
        };
        for target in ["ttt", "attn.x", "tn.q", "patch_embed.text", "("] {
            assert_eq!(unused(target).target, target);
        }
        let nearest = |target: &str| unused(target).near.remove(0);
        assert_eq!(nearest("atention"), "attention");
        assert_eq!(nearest("to_qq"), "attn1.to_q");
        assert_eq!(nearest("transformer_blocks.0.attn1.to_out"), "attn1.to_out.0");
        assert_eq!(nearest("mlp.upp"), "mlp.up");
    }

    #[test]
    fn an_adapter_has_two_factors_with_the_names_of_diffusers() {
        let model = model();
        let lora = Lora { rank: 4, alpha: 2.0, targets: vec!["attn.o".into(), "mlp.up".into()], ..Lora::default() };
        let specs = lora.param_specs(&model);
        let (dim, first) = (model.dim(), &specs[..4]);
        let names: Vec<_> = first.iter().map(|spec| (spec.name.as_str(), spec.diffusers.as_deref().unwrap())).collect();
        assert_eq!(
            names,
            [
                ("blocks.0.attn.o.lora_a", "transformer_blocks.0.attn1.to_out.0.lora_A.weight"),
                ("blocks.0.attn.o.lora_b", "transformer_blocks.0.attn1.to_out.0.lora_B.weight"),
                ("blocks.0.mlp.up.lora_a", "transformer_blocks.0.ff.net.0.proj.lora_A.weight"),
                ("blocks.0.mlp.up.lora_b", "transformer_blocks.0.ff.net.0.proj.lora_B.weight"),
            ]
        );
        let shapes: Vec<_> = first.iter().map(|spec| spec.shape.clone()).collect();
        assert_eq!(shapes, [vec![4, dim], vec![dim, 4], vec![4, dim], vec![4 * dim, 4]]);
        let splits: Vec<_> = first.iter().map(|spec| spec.split).collect();
        assert_eq!(splits, [Split::Dim(1), Split::Summed, Split::Summed, Split::Dim(0)]);
        assert_eq!(lora.scale(), 0.5);
        assert_eq!(Lora { rslora: true, ..lora.clone() }.scale(), 1.0);
        assert_eq!(Lora { alpha: 0.0, ..lora }.scale(), 1.0);
    }

    #[test]
    fn adapters_need_fitting_layers_and_frozen_weights() {
        let broken = |sets: &[&str]| {
            let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
            load("../../tests/fixtures/configs/valid/minimal.toml".into(), &sets).map(drop).unwrap_err().keys
        };
        let trained = "train.trainable=lora";
        assert_eq!(broken(&["lora.rank=4"]), ["lora.rank", "train.trainable"]);
        assert_eq!(broken(&[trained]), ["lora.rank", "train.trainable"]);
        assert_eq!(broken(&["lora.rank=129", trained]), ["lora.rank", "lora.targets"]);
        assert_eq!(broken(&["lora.rank=4", trained, "lora.targets=[\"ttt\"]"]), ["lora.rank", "lora.targets"]);
        assert_eq!(broken(&["lora.rank=4", trained, "lora.dropout=1"]), ["lora.dropout"]);
    }

    #[test]
    fn only_adapters_cost_gradients_optimizer_state_and_checkpoints() {
        let sets = ["lora.rank=4", "train.trainable=lora", "train.dtype=bfloat16"].map(str::to_owned);
        let recipe = load("../../tests/fixtures/configs/valid/minimal.toml".into(), &sets).unwrap().recipe;
        let (cost, dim) = (recipe.cost(), recipe.model.dim() as u64);
        let adapters = recipe.model.num_layers as u64 * 4 * 2 * 4 * dim;
        assert_eq!(cost.trainable, adapters);
        assert_eq!(cost.params, param_specs(&recipe.model).iter().map(ParamSpec::len).sum::<u64>());
        assert_eq!(cost.checkpoint_bytes, 12 * adapters);
        assert_eq!(cost.memory.optimizer, 8 * adapters);
        let frozen = flat_lens(&recipe, |spec| spec.role == ParamRole::Trained).iter().sum::<u64>();
        assert_eq!(cost.memory.weights, 4 * adapters + 2 * frozen);
    }
}

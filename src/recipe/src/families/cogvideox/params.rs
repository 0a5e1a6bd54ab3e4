//! Every tensor of a CogVideoX model, with its names in diffusers and in ttt-video-dit.

use crate::{FsdpUnit, Layer, Model, ParamGroup, ParamInit, ParamRole, ParamSpec, Positions, Split};

/// Returns every tensor of a model without adapters: the root's first, then block by block.
pub(super) fn param_specs(m: &Model) -> Vec<ParamSpec> {
    let own = m.cogvideox();
    let (dim, time) = (m.dim(), own.time_embed_dim);
    let patch = m.patch_size_t * m.patch_size * m.patch_size;

    let mut root = Layers::new(FsdpUnit::Root, "", "");
    // A convolution in CogVideoX 1.0, a linear layer in 1.5. Both order the input by channel, then frame, row, column.
    let video: &[usize] = match m.patch_size_t {
        1 => &[dim, m.in_channels, m.patch_size, m.patch_size],
        _ => &[dim, m.in_channels * patch],
    };
    root.layer("patch_embed.video", "patch_embed.proj", video, ParamInit::Xavier);
    root.layer("patch_embed.text", "patch_embed.text_proj", &[dim, m.text_dim], ParamInit::Xavier);
    if own.positions == Positions::Learned {
        root.buffer("patch_embed.positions", "patch_embed.pos_embedding", &[1, m.learned_positions(), dim]);
    }
    root.layer("time_embed.linear1", "time_embedding.linear_1", &[time, dim], ParamInit::Xavier);
    root.layer("time_embed.linear2", "time_embedding.linear_2", &[time, time], ParamInit::Xavier);
    if own.ofs_embedding {
        root.layer("ofs_embed.linear1", "ofs_embedding.linear_1", &[time, time], ParamInit::Xavier);
        root.layer("ofs_embed.linear2", "ofs_embedding.linear_2", &[time, time], ParamInit::Xavier);
    }
    root.norm("final.norm", "norm_final", dim);
    root.layer("final.adaln.linear", "norm_out.linear", &[2 * dim, time], ParamInit::Zeros);
    root.norm("final.adaln.norm", "norm_out.norm", dim);
    root.layer("final.proj", "proj_out", &[patch * m.out_channels, dim], ParamInit::Zeros);

    let mut specs = root.specs;
    for block in 0..m.num_layers {
        specs.extend(block_specs(m, block));
    }
    specs
}

fn block_specs(m: &Model, index: usize) -> Vec<ParamSpec> {
    let (dim, time) = (m.dim(), m.cogvideox().time_embed_dim);
    let (ours, theirs) = (format!("blocks.{index}."), format!("transformer_blocks.{index}."));
    let mut block = Layers::new(FsdpUnit::Block(index), &ours, &theirs);
    block.layer("norm1.linear", "norm1.linear", &[6 * dim, time], ParamInit::Zeros);
    block.norm("norm1.norm", "norm1.norm", dim);
    block.layer("attn.q", "attn1.to_q", &[dim, dim], ParamInit::Xavier);
    block.layer("attn.k", "attn1.to_k", &[dim, dim], ParamInit::Xavier);
    block.layer("attn.v", "attn1.to_v", &[dim, dim], ParamInit::Xavier);
    block.layer("attn.o", "attn1.to_out.0", &[dim, dim], ParamInit::Xavier);
    block.norm("attn.q_norm", "attn1.norm_q", m.head_dim);
    block.norm("attn.k_norm", "attn1.norm_k", m.head_dim);
    block.layer("norm2.linear", "norm2.linear", &[6 * dim, time], ParamInit::Zeros);
    block.norm("norm2.norm", "norm2.norm", dim);
    block.layer("mlp.up", "ff.net.0.proj", &[4 * dim, dim], ParamInit::Xavier);
    block.layer("mlp.down", "ff.net.2", &[dim, 4 * dim], ParamInit::Xavier);
    if m.cogvideox().layer != Layer::None {
        ttt_specs(m, &mut block);
    }
    block.specs
}

/// Adds the TTT layer of a block and its gates. Source: ttt-video-dit's `ttt_layer.py`, which names them `ssm.ttt.*`
/// and `*_ssm_gating_*`.
fn ttt_specs(m: &Model, block: &mut Layers<'_>) {
    let (dim, heads, head) = (m.dim(), m.num_heads, m.head_dim);
    block.group = ParamGroup::Ttt;
    for name in ["ttt.q", "ttt.k", "ttt.v", "ttt.o"] {
        let init = ParamInit::Linear { fan_in: dim };
        block.push(format!("{name}.weight"), None, &[dim, dim], init, ParamRole::Trained, true);
        block.push(format!("{name}.bias"), None, &[dim], init, ParamRole::Trained, false);
    }
    block.pair("ttt.lr", [&[heads, 1, dim], &[heads, 1]], [ParamInit::Normal, ParamInit::Zeros], true);
    block.pair("ttt.inner_norm", [&[heads, head], &[heads, head]], [ParamInit::Ones, ParamInit::Zeros], false);
    block.pair("ttt.post_norm", [&[dim], &[dim]], [ParamInit::Ones, ParamInit::Zeros], false);
    let hidden = if m.cogvideox().layer == Layer::TttMlp { 4 * head } else { head };
    block.pair(
        "ttt.inner1",
        [&[heads, head, hidden], &[heads, 1, hidden]],
        [ParamInit::Normal, ParamInit::Zeros],
        true,
    );
    if m.cogvideox().layer == Layer::TttMlp {
        block.pair(
            "ttt.inner2",
            [&[heads, hidden, head], &[heads, 1, head]],
            [ParamInit::Normal, ParamInit::Zeros],
            true,
        );
    }
    for name in ["forward.video", "forward.text", "backward.video", "backward.text"] {
        block.push(format!("ttt.gate.{name}"), None, &[dim], ParamInit::Gate, ParamRole::Trained, false);
    }
}

/// The tensors that are split over the ranks of a TP group, by their names within a block. Each rank has the other
/// tensors in full.
///
/// Heads and hidden units are rows of input projections and columns of output projections; the bias of an output
/// projection is added once. All tensors of a TTT layer's head stay with the head. The norm after the heads covers all
/// heads: its gains are split, and the ranks gather its statistics.
const SPLITS: &[(&str, Split)] = &[
    ("attn.q.", Split::Dim(0)),
    ("attn.k.", Split::Dim(0)),
    ("attn.v.", Split::Dim(0)),
    ("attn.o.weight", Split::Dim(1)),
    ("mlp.up.", Split::Dim(0)),
    ("mlp.down.weight", Split::Dim(1)),
    ("ttt.q.", Split::Dim(0)),
    ("ttt.k.", Split::Dim(0)),
    ("ttt.v.", Split::Dim(0)),
    ("ttt.o.weight", Split::Dim(1)),
    ("ttt.lr.", Split::Dim(0)),
    ("ttt.inner", Split::Dim(0)),
    ("ttt.post_norm.", Split::Dim(0)),
];

/// Collects the tensors of one unit.
struct Layers<'a> {
    unit: FsdpUnit,
    ours: &'a str,
    theirs: &'a str,
    group: ParamGroup,
    specs: Vec<ParamSpec>,
}

impl<'a> Layers<'a> {
    fn new(unit: FsdpUnit, ours: &'a str, theirs: &'a str) -> Self {
        Layers { unit, ours, theirs, group: ParamGroup::Rest, specs: Vec::new() }
    }

    /// Adds a linear layer or convolution: a weight, and a bias as long as the weight's first axis.
    fn layer(&mut self, name: &str, diffusers: &str, shape: &[usize], init: ParamInit) {
        self.push(format!("{name}.weight"), Some(format!("{diffusers}.weight")), shape, init, ParamRole::Trained, true);
        let bias = Some(format!("{diffusers}.bias"));
        self.push(format!("{name}.bias"), bias, &shape[..1], ParamInit::Zeros, ParamRole::Trained, false);
    }

    /// Adds a LayerNorm.
    fn norm(&mut self, name: &str, diffusers: &str, width: usize) {
        for (part, init) in [("weight", ParamInit::Ones), ("bias", ParamInit::Zeros)] {
            let theirs = Some(format!("{diffusers}.{part}"));
            self.push(format!("{name}.{part}"), theirs, &[width], init, ParamRole::Trained, false);
        }
    }

    /// Adds a weight and a bias that diffusers does not have; `decay` applies to the weight.
    fn pair(&mut self, name: &str, shapes: [&[usize]; 2], init: [ParamInit; 2], decay: bool) {
        self.push(format!("{name}.weight"), None, shapes[0], init[0], ParamRole::Trained, decay);
        self.push(format!("{name}.bias"), None, shapes[1], init[1], ParamRole::Trained, false);
    }

    fn buffer(&mut self, name: &str, diffusers: &str, shape: &[usize]) {
        self.push(name.into(), Some(diffusers.into()), shape, ParamInit::Positions, ParamRole::Buffer, false);
    }

    fn push(
        &mut self,
        name: String,
        diffusers: Option<String>,
        shape: &[usize],
        init: ParamInit,
        role: ParamRole,
        decay: bool,
    ) {
        let split = SPLITS.iter().find(|(start, _)| self.unit != FsdpUnit::Root && name.starts_with(start));
        self.specs.push(ParamSpec {
            split: split.map_or(Split::None, |(_, split)| *split),
            name: format!("{}{name}", self.ours),
            diffusers: diffusers.map(|name| format!("{}{name}", self.theirs)),
            shape: shape.to_vec(),
            unit: self.unit,
            init,
            role,
            group: self.group,
            decay,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use camino::Utf8Path;
    use serde_json::Value;

    use super::*;
    use crate::oracle;
    use crate::{CogVideoXKeys, Family};

    /// Returns CogVideoX-5B with an input of 49 frames of 480 × 720 pixels.
    fn cogvideox_5b() -> Model {
        Model {
            num_layers: 42,
            num_heads: 48,
            head_dim: 64,
            text_dim: 4096,
            text_len: 226,
            in_channels: 16,
            out_channels: 16,
            patch_size: 2,
            patch_size_t: 1,
            latent_frames: 13,
            latent_height: 60,
            latent_width: 90,
            latent_scale: 0.7,
            ..Model::from_table(
                &"num_layers=1\nnum_heads=1\ntext_len=1\nlatent_frames=1\nlatent_height=2\nlatent_width=2"
                    .parse()
                    .unwrap(),
            )
            .unwrap()
        }
    }

    #[test]
    fn cogvideox_5b_has_the_published_number_of_parameters() {
        let specs = param_specs(&cogvideox_5b());
        assert_eq!(specs.len(), 24 * 42 + 16);
        assert_eq!(specs.iter().map(ParamSpec::len).sum::<u64>(), 5_570_283_072);
    }

    #[test]
    fn cogvideox_1_5_has_patches_of_two_frames_and_an_offset_embedding() {
        let i2v = Model { patch_size_t: 2, in_channels: 32, ..cogvideox_5b() };
        let i2v = i2v.with_cogvideox(|keys| keys.ofs_embedding = true);
        let specs = param_specs(&i2v);
        let shape = |name: &str| &specs.iter().find(|spec| spec.diffusers.as_deref() == Some(name)).unwrap().shape[..];
        assert_eq!(shape("patch_embed.proj.weight"), [3072, 32 * 8]);
        assert_eq!(shape("proj_out.weight"), [16 * 8, 3072]);
        assert_eq!(shape("ofs_embedding.linear_2.weight"), [512, 512]);
        assert_eq!(specs.len(), 24 * 42 + 16 + 4);
    }

    #[test]
    fn ttt_layers_add_the_number_of_parameters_of_the_reference() {
        for (layer, tensors, params) in [(Layer::TttMlp, 1948, 7_230_178_848), (Layer::TttLinear, 1864, 7_171_860_000)]
        {
            let specs = param_specs(&cogvideox_5b().with_cogvideox(|keys| keys.layer = layer));
            assert_eq!(specs.len(), tensors);
            assert_eq!(specs.iter().map(ParamSpec::len).sum::<u64>(), params);
        }
    }

    #[test]
    fn every_tensor_but_learned_positions_has_a_name_in_ttt_video() {
        let specs = param_specs(&cogvideox_5b().with_cogvideox(|keys| keys.layer = Layer::TttMlp));
        let names: std::collections::BTreeSet<_> = specs.iter().map(|spec| spec.ttt_video().unwrap()).collect();
        assert_eq!(names.len(), specs.len());
        assert!(names.contains("layers.41.seq_modeling_block.ssm.ttt.W2"));
        assert!(names.contains("layers.0.seq_modeling_block.q_norm.bias"));
    }

    #[test]
    fn biases_and_norms_are_not_decayed() {
        let specs = param_specs(&cogvideox_5b());
        let (decayed, others): (Vec<_>, Vec<_>) = specs.iter().partition(|spec| spec.decay);
        assert!(decayed.iter().all(|spec| spec.name.ends_with(".weight") && !spec.name.contains("norm.")));
        assert!(others.iter().all(|spec| spec.shape.len() == 1));
        assert_eq!(decayed.len(), 342);
        assert_eq!(decayed.iter().map(|spec| spec.len()).sum::<u64>(), 5_567_021_056);
    }

    #[test]
    fn the_root_is_listed_before_the_blocks_in_order() {
        let units: Vec<_> = param_specs(&cogvideox_5b()).iter().map(|spec| spec.unit).collect();
        assert!(units.is_sorted());
        assert_eq!(units[..16], [FsdpUnit::Root; 16]);
        assert_eq!(units.last(), Some(&FsdpUnit::Block(41)));
    }

    #[test]
    fn tp_splits_most_tensors_of_a_block_and_none_of_the_root() {
        let specs = param_specs(&cogvideox_5b().with_cogvideox(|keys| keys.layer = Layer::TttMlp));
        let whole = |unit| {
            let of = specs.iter().filter(|spec: &&ParamSpec| spec.unit == unit && spec.split == Split::None);
            of.map(|spec| spec.name.rsplit_once("blocks.0.").map_or(spec.name.as_str(), |(_, name)| name)).collect()
        };
        let root: Vec<&str> = whole(FsdpUnit::Root);
        assert_eq!(root.len(), 16);
        let block: Vec<&str> = whole(FsdpUnit::Block(0));
        insta::assert_snapshot!(block.join("\n"));
        for spec in &specs {
            let parts: Vec<_> = (0..4).map(|rank| spec.part(rank, 4)).collect();
            match spec.split {
                Split::None | Split::Summed => {
                    assert!(parts.iter().all(|(at, shape)| at.iter().sum::<usize>() == 0 && *shape == spec.shape))
                }
                Split::Dim(dim) => {
                    assert_eq!(parts[3].0[dim] + parts[3].1[dim], spec.shape[dim], "{}", spec.name);
                    assert_eq!(parts.iter().map(|(_, shape)| shape[dim]).sum::<usize>(), spec.shape[dim]);
                }
            }
        }
    }

    #[test]
    fn a_new_block_is_the_identity() {
        let specs = param_specs(&cogvideox_5b());
        let zeros: Vec<_> =
            specs.iter().filter(|spec| spec.init == ParamInit::Zeros && spec.name.ends_with("weight")).collect();
        assert_eq!(zeros.len(), 2 * 42 + 2);
        assert!(zeros.iter().all(|spec| spec.name.ends_with("linear.weight") || spec.name == "final.proj.weight"));
    }

    /// Reads name and shape of every tensor of a safetensors file: eight bytes of length, then a JSON object.
    fn header(path: &Utf8Path) -> BTreeMap<String, Vec<usize>> {
        let mut file = std::fs::File::open(path).unwrap();
        let mut length = [0; 8];
        file.read_exact(&mut length).unwrap();
        let mut json = vec![0; u64::from_le_bytes(length) as usize];
        file.read_exact(&mut json).unwrap();
        let tensors: BTreeMap<String, Value> = serde_json::from_slice(&json).unwrap();
        let tensors = tensors.into_iter().filter(|(name, _)| name != "__metadata__");
        tensors.map(|(name, info)| (name, serde_json::from_value(info["shape"].clone()).unwrap())).collect()
    }

    /// Reads the model of a `config.json`. Keys with a default may be missing.
    fn model_of(config: &Value) -> Model {
        let size = |key: &str, default: usize| config[key].as_u64().map_or(default, |size| size as usize);
        let flag = |key: &str| config[key].as_bool().unwrap_or(false);
        let keys = CogVideoXKeys {
            positions: match (flag("use_learned_positional_embeddings"), flag("use_rotary_positional_embeddings")) {
                (true, _) => Positions::Learned,
                (false, true) => Positions::Rope,
                (false, false) => Positions::SinCos,
            },
            time_embed_dim: size("time_embed_dim", 512),
            ofs_embedding: size("ofs_embed_dim", 0) > 0,
            ..CogVideoXKeys::default()
        };
        Model {
            family: Family::CogVideoX(keys),
            num_layers: size("num_layers", 30),
            num_heads: size("num_attention_heads", 30),
            head_dim: size("attention_head_dim", 64),
            text_dim: size("text_embed_dim", 4096),
            text_len: size("max_text_seq_length", 226),
            in_channels: size("in_channels", 16),
            out_channels: size("out_channels", 16),
            patch_size: size("patch_size", 2),
            patch_size_t: size("patch_size_t", 1),
            latent_frames: (size("sample_frames", 49) - 1) / size("temporal_compression_ratio", 4) + 1,
            latent_height: size("sample_height", 60),
            latent_width: size("sample_width", 90),
            ..cogvideox_5b()
        }
    }

    #[test]
    fn oracle_every_tensor_of_a_diffusers_folder_is_listed_exactly_once() {
        for model in oracle::models() {
            let transformer = model.join("transformer");
            let config = std::fs::read(transformer.join("config.json")).unwrap();
            let specs = param_specs(&model_of(&serde_json::from_slice(&config).unwrap()));
            let named = |spec: &ParamSpec| (spec.diffusers.clone().unwrap(), spec.shape.clone());
            let ours: BTreeMap<_, _> = specs.iter().map(named).collect();
            assert_eq!(ours.len(), specs.len(), "{model}: a name is listed twice");
            let theirs: Vec<_> = oracle::weight_files(&transformer).iter().flat_map(|file| header(file)).collect();
            assert_eq!(theirs.len(), ours.len(), "{model}");
            assert_eq!(theirs.into_iter().collect::<BTreeMap<_, _>>(), ours, "{model}");
        }
    }
}

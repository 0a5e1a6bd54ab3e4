//! The tensors of published files of MMDiTs.

use super::Mmdit;
use crate::families::file_tensor::part_of;
use crate::families::{FileTensor, RowOrder};
use crate::{FsdpUnit, ParamSpec};

/// The layout of a published file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `Open_Sora_v2.safetensors` and `flux1-dev-fused-rope`: queries, keys and values are separate, and their channels are in halves.
    OpenSora,
    /// `flux1-dev.safetensors`: queries, keys and values (and hidden units) are one matrix.
    Flux,
    /// The folder `transformer` of Flux in diffusers.
    Diffusers,
}

use Layout::{Diffusers, Flux, OpenSora};

/// The part of a file's matrix that is one of our tensors.
#[derive(Debug, Clone, Copy)]
enum Part {
    Whole,
    /// Rows, from this multiple of the width of a token.
    Rows(usize),
    /// Columns, from this multiple of the width of a token.
    Columns(usize),
}

use Part::{Columns, Rows, Whole};

/// A layer's name and part in a file.
type Place = (&'static str, Part);

/// A layer here, and in each layout in the order of [`Layout`]. The norms of queries and keys are listed with the name of their tensor.
type Row = (&'static str, [Option<Place>; 3]);

/// Returns a row of a layer that is whole in every layout and has the same name in Open-Sora and Flux.
const fn same(ours: &'static str, original: &'static str, diffusers: &'static str) -> Row {
    (ours, [Some((original, Whole)), Some((original, Whole)), Some((diffusers, Whole))])
}

/// Returns a row of a layer that is a part of a matrix in Flux.
const fn fused(ours: &'static str, open_sora: Place, flux: Place, diffusers: Place) -> Row {
    (ours, [Some(open_sora), Some(flux), Some(diffusers)])
}

const ROOT: [Row; 11] = [
    same("patch_embed.video", "img_in", "x_embedder"),
    ("patch_embed.condition", [Some(("cond_in", Whole)), Some(("cond_in", Whole)), None]),
    same("patch_embed.text", "txt_in", "context_embedder"),
    same("time_embed.linear1", "time_in.in_layer", "time_text_embed.timestep_embedder.linear_1"),
    same("time_embed.linear2", "time_in.out_layer", "time_text_embed.timestep_embedder.linear_2"),
    same("guidance_embed.linear1", "guidance_in.in_layer", "time_text_embed.guidance_embedder.linear_1"),
    same("guidance_embed.linear2", "guidance_in.out_layer", "time_text_embed.guidance_embedder.linear_2"),
    same("pooled_embed.linear1", "vector_in.in_layer", "time_text_embed.text_embedder.linear_1"),
    same("pooled_embed.linear2", "vector_in.out_layer", "time_text_embed.text_embedder.linear_2"),
    same("final.adaln.linear", "final_layer.adaLN_modulation.1", "norm_out.linear"),
    same("final.proj", "final_layer.linear", "proj_out"),
];

const TWO_STREAMS: [Row; 18] = [
    same("video.modulation.linear", "img_mod.lin", "norm1.linear"),
    fused("video.attn.q", ("img_attn.q_proj", Whole), ("img_attn.qkv", Rows(0)), ("attn.to_q", Whole)),
    fused("video.attn.k", ("img_attn.k_proj", Whole), ("img_attn.qkv", Rows(1)), ("attn.to_k", Whole)),
    fused("video.attn.v", ("img_attn.v_proj", Whole), ("img_attn.qkv", Rows(2)), ("attn.to_v", Whole)),
    same("video.attn.q_norm.weight", "img_attn.norm.query_norm.scale", "attn.norm_q.weight"),
    same("video.attn.k_norm.weight", "img_attn.norm.key_norm.scale", "attn.norm_k.weight"),
    same("video.attn.o", "img_attn.proj", "attn.to_out.0"),
    same("video.mlp.up", "img_mlp.0", "ff.net.0.proj"),
    same("video.mlp.down", "img_mlp.2", "ff.net.2"),
    same("text.modulation.linear", "txt_mod.lin", "norm1_context.linear"),
    fused("text.attn.q", ("txt_attn.q_proj", Whole), ("txt_attn.qkv", Rows(0)), ("attn.add_q_proj", Whole)),
    fused("text.attn.k", ("txt_attn.k_proj", Whole), ("txt_attn.qkv", Rows(1)), ("attn.add_k_proj", Whole)),
    fused("text.attn.v", ("txt_attn.v_proj", Whole), ("txt_attn.qkv", Rows(2)), ("attn.add_v_proj", Whole)),
    same("text.attn.q_norm.weight", "txt_attn.norm.query_norm.scale", "attn.norm_added_q.weight"),
    same("text.attn.k_norm.weight", "txt_attn.norm.key_norm.scale", "attn.norm_added_k.weight"),
    same("text.attn.o", "txt_attn.proj", "attn.to_add_out"),
    same("text.mlp.up", "txt_mlp.0", "ff_context.net.0.proj"),
    same("text.mlp.down", "txt_mlp.2", "ff_context.net.2"),
];

const ONE_STREAM: [Row; 9] = [
    same("modulation.linear", "modulation.lin", "norm.linear"),
    fused("attn.q", ("q_proj", Whole), ("linear1", Rows(0)), ("attn.to_q", Whole)),
    fused("attn.k", ("k_proj", Whole), ("linear1", Rows(1)), ("attn.to_k", Whole)),
    fused("attn.v", ("v_mlp", Rows(0)), ("linear1", Rows(2)), ("attn.to_v", Whole)),
    same("attn.q_norm.weight", "norm.query_norm.scale", "attn.norm_q.weight"),
    same("attn.k_norm.weight", "norm.key_norm.scale", "attn.norm_k.weight"),
    fused("mlp.up", ("v_mlp", Rows(1)), ("linear1", Rows(3)), ("proj_mlp", Whole)),
    fused("attn.o", ("linear2", Columns(0)), ("linear2", Columns(0)), ("proj_out", Columns(0))),
    fused("mlp.down", ("linear2", Columns(1)), ("linear2", Columns(1)), ("proj_out", Columns(1))),
];

/// Returns where a tensor of [`super::param_specs`] is in a file; `None` if the layout does not have it.
///
/// Sources: Open-Sora `opensora/models/mmdit/model.py`; diffusers `FluxTransformer2DModel` and `convert_flux_to_diffusers.py`, which also
/// swaps shift and scale of the last modulation.
pub fn file_tensor(m: &Mmdit, layout: Layout, spec: &ParamSpec) -> Option<FileTensor> {
    let (table, prefix) = match (spec.unit, layout) {
        (FsdpUnit::Root, _) => (&ROOT[..], String::new()),
        (FsdpUnit::Block(i), _) if m.has_two_streams(i) => {
            let blocks = if layout == Diffusers { "transformer_blocks" } else { "double_blocks" };
            (&TWO_STREAMS[..], format!("{blocks}.{i}."))
        }
        (FsdpUnit::Block(i), _) => {
            let blocks = if layout == Diffusers { "single_transformer_blocks" } else { "single_blocks" };
            (&ONE_STREAM[..], format!("{blocks}.{}.", i - m.two_stream_blocks))
        }
    };
    let name = match spec.unit {
        FsdpUnit::Root => spec.name.as_str(),
        FsdpUnit::Block(i) => spec.name.strip_prefix(&format!("blocks.{i}."))?,
    };
    let (places, rest) = table.iter().find_map(|(ours, places)| Some((places, part_of(name, ours)?)))?;
    let (theirs, part) = places[layout as usize]?;
    let mut tensor = FileTensor::whole(format!("{prefix}{theirs}{rest}"));
    match part {
        Rows(after) => tensor.rows = Some(after * m.dim()..after * m.dim() + spec.shape[0]),
        // The bias of a matrix whose columns are parts of ours is whole.
        Columns(after) if spec.shape.len() == 2 => {
            tensor.columns = Some(after * m.dim()..after * m.dim() + spec.shape[1]);
        }
        Columns(_) | Whole => {}
    }
    let is_rotated = ["attn.q.", "attn.k.", "attn.q_norm.", "attn.k_norm."].iter().any(|part| name.contains(part));
    tensor.order = match layout {
        OpenSora if is_rotated => RowOrder::HeadHalves(m.head_dim()),
        Diffusers if name.starts_with("final.adaln.") => RowOrder::Swapped,
        OpenSora | Flux | Diffusers => RowOrder::Same,
    };
    Some(tensor)
}

#[cfg(test)]
mod tests {
    use super::super::param_specs;
    use super::*;
    use std::collections::BTreeMap;

    /// Returns the parts of each tensor of a file.
    fn parts(m: &Mmdit, layout: Layout) -> BTreeMap<String, Vec<(ParamSpec, FileTensor)>> {
        let mut parts: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for spec in param_specs(m) {
            let tensor = file_tensor(m, layout, &spec).unwrap();
            parts.entry(tensor.name.clone()).or_default().push((spec, tensor));
        }
        parts
    }

    #[test]
    fn files_have_the_published_numbers_of_tensors() {
        let open_sora = parts(&Mmdit::open_sora_2(), OpenSora);
        assert_eq!(open_sora.len(), 1082);
        assert_eq!(parts(&Mmdit::flux_dev(), Flux).len(), 780);
        assert!(open_sora.contains_key("single_blocks.37.v_mlp.weight"));
        assert!(parts(&Mmdit::flux_dev(), Diffusers).contains_key("single_transformer_blocks.37.proj_mlp.bias"));
    }

    #[test]
    fn parts_of_a_matrix_join_without_gaps() {
        for (network, layout) in
            [(Mmdit::open_sora_2(), OpenSora), (Mmdit::flux_dev(), Flux), (Mmdit::flux_dev(), Diffusers)]
        {
            for (name, parts) in parts(&network, layout) {
                let mut ends = [0, 0];
                let joined = parts.iter().any(|(_, part)| part.rows.is_some() || part.columns.is_some());
                assert_eq!(joined, parts.len() > 1, "{name}");
                let mut sorted = parts;
                sorted.sort_by_key(|(_, part)| [&part.rows, &part.columns].map(|r| r.as_ref().map_or(0, |r| r.start)));
                for (spec, part) in &sorted {
                    for (dim, range) in [&part.rows, &part.columns].into_iter().enumerate() {
                        let Some(range) = range else { continue };
                        assert_eq!((range.start, range.len()), (ends[dim], spec.shape[dim]), "{}", spec.name);
                        ends[dim] = range.end;
                    }
                }
            }
        }
    }

    #[test]
    fn only_queries_keys_and_their_norms_have_another_order_in_open_sora_and_only_the_last_modulation_in_diffusers() {
        let network = Mmdit { two_stream_blocks: 1, one_stream_blocks: 1, condition: false, ..Mmdit::open_sora_2() };
        let others = |layout| {
            let has_other = |spec: &ParamSpec| file_tensor(&network, layout, spec).unwrap().order != RowOrder::Same;
            param_specs(&network).into_iter().filter(has_other).map(|spec| spec.name).collect::<Vec<_>>()
        };
        // A weight, a bias and a norm of queries and of keys, for each of three streams.
        assert_eq!(others(OpenSora).len(), 18);
        assert!(others(OpenSora).iter().all(|name| [".attn.q", ".attn.k"].iter().any(|part| name.contains(part))));
        assert_eq!(others(Flux), [""; 0]);
        assert_eq!(others(Diffusers), ["final.adaln.linear.weight", "final.adaln.linear.bias"]);
    }

    #[test]
    fn the_layout_of_diffusers_has_no_embedding_of_given_frames() {
        let network = Mmdit::open_sora_2();
        let condition =
            param_specs(&network).into_iter().find(|spec| spec.name == "patch_embed.condition.bias").unwrap();
        assert_eq!(file_tensor(&network, Diffusers, &condition), None);
    }
}

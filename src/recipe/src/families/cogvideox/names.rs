//! The names of CogVideoX's tensors in ttt-video-dit.

use crate::families::file_tensor::part_of;
use crate::{FsdpUnit, ParamSpec};

/// The names within a unit here and in ttt-video-dit. The text after the name is the same in both.
const TTT_VIDEO: &[(&str, &str)] = &[
    ("patch_embed.video", "patch_embedding.vid_proj"),
    ("patch_embed.text", "patch_embedding.text_proj"),
    ("time_embed.linear1", "time_embed.0"),
    ("time_embed.linear2", "time_embed.2"),
    ("final.norm", "transformer_norm"),
    ("final.adaln.linear", "final_layer.adaLN_modulation.1"),
    ("final.adaln.norm", "final_layer.norm"),
    ("final.proj", "final_layer.linear"),
    ("norm1.linear", "pre_seq_adaLN_modulation.1"),
    ("norm1.norm", "pre_seq_layernorm"),
    ("attn", "seq_modeling_block"),
    ("norm2.linear", "pre_mlp_adaLN_modulation.1"),
    ("norm2.norm", "pre_mlp_layernorm"),
    ("mlp.up", "mlp.layer1"),
    ("mlp.down", "mlp.layer2"),
    ("ttt.q", "seq_modeling_block.ssm.ttt.wq"),
    ("ttt.k", "seq_modeling_block.ssm.ttt.wk"),
    ("ttt.v", "seq_modeling_block.ssm.ttt.wv"),
    ("ttt.o", "seq_modeling_block.ssm.ttt.wo"),
    ("ttt.lr.weight", "seq_modeling_block.ssm.ttt.learnable_ttt_lr_weight"),
    ("ttt.lr.bias", "seq_modeling_block.ssm.ttt.learnable_ttt_lr_bias"),
    ("ttt.inner_norm.weight", "seq_modeling_block.ssm.ttt.ttt_norm_weight"),
    ("ttt.inner_norm.bias", "seq_modeling_block.ssm.ttt.ttt_norm_bias"),
    ("ttt.post_norm", "seq_modeling_block.ssm.ttt.post_norm"),
    ("ttt.inner1.weight", "seq_modeling_block.ssm.ttt.W1"),
    ("ttt.inner1.bias", "seq_modeling_block.ssm.ttt.b1"),
    ("ttt.inner2.weight", "seq_modeling_block.ssm.ttt.W2"),
    ("ttt.inner2.bias", "seq_modeling_block.ssm.ttt.b2"),
    ("ttt.gate.forward.video", "seq_modeling_block.forward_ssm_gating_video.gating_alpha"),
    ("ttt.gate.forward.text", "seq_modeling_block.forward_ssm_gating_text.gating_alpha"),
    ("ttt.gate.backward.video", "seq_modeling_block.backward_ssm_gating_video.gating_alpha"),
    ("ttt.gate.backward.text", "seq_modeling_block.backward_ssm_gating_text.gating_alpha"),
];

impl ParamSpec {
    /// Returns the tensor's name in a ttt-video-dit checkpoint, such as `layers.3.seq_modeling_block.q.weight`; `None`
    /// for tensors that such a checkpoint does not have.
    pub fn ttt_video(&self) -> Option<String> {
        let (unit, name) = match self.unit {
            FsdpUnit::Root => (String::new(), self.name.as_str()),
            FsdpUnit::Block(i) => (format!("layers.{i}."), self.name.strip_prefix(&format!("blocks.{i}."))?),
        };
        let (theirs, rest) = TTT_VIDEO.iter().find_map(|(ours, theirs)| Some((theirs, part_of(name, ours)?)))?;
        Some(format!("{unit}{theirs}{rest}"))
    }
}

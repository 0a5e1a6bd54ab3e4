//! The names of adapters (LoRA) in the files of other programs.

use super::Layout;
use super::names::their_name;

/// The forms of published adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterForm {
    /// diffusers and PEFT: their names of layers; alpha is in the metadata `lora_adapter_metadata`.
    Diffusers,
    /// ComfyUI and diffusion-pipe: the original names of layers; there is no alpha, so it is the rank.
    ComfyUi,
    /// kohya and musubi-tuner: the original names with underscores; alpha is a tensor.
    Kohya,
}

impl AdapterForm {
    /// All forms.
    pub const ALL: [AdapterForm; 3] = [AdapterForm::Diffusers, AdapterForm::ComfyUi, AdapterForm::Kohya];
}

/// The names of the tensors of one adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterNames {
    /// A, `[rank, in]`.
    pub a: String,
    /// B, `[out, rank]`.
    pub b: String,
    /// Alpha, a number, in the forms that have it in a tensor.
    pub alpha: Option<String>,
}

/// Returns the names of the adapter of one of our layers, such as `blocks.0.attn.q`; `None` if `layer` is not a layer of Wan.
///
/// The experts of Wan 2.2 have the same names of layers and need two files, so a file must state in its metadata whose adapters it has.
pub fn adapter_names(form: AdapterForm, layer: &str) -> Option<AdapterNames> {
    let layout = if form == AdapterForm::Diffusers { Layout::Diffusers } else { Layout::Original };
    let theirs = their_name(layout, layer)?;
    Some(match form {
        AdapterForm::Diffusers | AdapterForm::ComfyUi => {
            let prefix = if form == AdapterForm::Diffusers { "transformer." } else { "diffusion_model." };
            AdapterNames {
                a: format!("{prefix}{theirs}.lora_A.weight"),
                b: format!("{prefix}{theirs}.lora_B.weight"),
                alpha: None,
            }
        }
        AdapterForm::Kohya => {
            let flat = format!("lora_unet_{}", theirs.replace('.', "_"));
            AdapterNames {
                a: format!("{flat}.lora_down.weight"),
                b: format!("{flat}.lora_up.weight"),
                alpha: Some(format!("{flat}.alpha")),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_has_the_names_of_each_program() {
        let a = AdapterForm::ALL.map(|form| adapter_names(form, "blocks.3.cross_attn.image_k").unwrap().a);
        assert_eq!(
            a,
            [
                "transformer.blocks.3.attn2.add_k_proj.lora_A.weight",
                "diffusion_model.blocks.3.cross_attn.k_img.lora_A.weight",
                "lora_unet_blocks_3_cross_attn_k_img.lora_down.weight",
            ]
        );
        let kohya = adapter_names(AdapterForm::Kohya, "blocks.0.mlp.down").unwrap();
        assert_eq!(kohya.b, "lora_unet_blocks_0_ffn_2.lora_up.weight");
        assert_eq!(kohya.alpha.as_deref(), Some("lora_unet_blocks_0_ffn_2.alpha"));
    }

    #[test]
    fn a_layer_that_is_not_ours_has_no_adapter() {
        for form in AdapterForm::ALL {
            assert_eq!(adapter_names(form, "blocks.0.attn1.to_q"), None);
        }
    }
}

//! The text encoder of CLIP: its configuration and its table of parameters.

use camino::Utf8Path;
use failure::Failure;
use serde::Deserialize;
use weights::ParameterTable;
use weights::encoder_config::{ConfigFile, MOST, MOST_LAYERS, check_range};
use weights::{EncoderFiles, Parameter};

const FOLDER: &str = "the folder of CLIP-L, such as openai/clip-vit-large-patch14";
/// `model_type` of a text encoder alone, and of a whole CLIP.
const ALONE: &str = "clip_text_model";
const WHOLE: &str = "clip";
/// The start of names in the files of a whole CLIP, and in those of transformers before version 5.
const PREFIX: &str = "text_model.";
/// Tensors of a whole CLIP that the text encoder does not use, and positions that older files store.
const UNUSED: [&str; 6] = [
    "vision_model.",
    "visual_projection.",
    "text_projection.",
    "logit_scale",
    "embeddings.position_ids",
    "text_model.embeddings.position_ids",
];

/// The id that old configurations have for the end token, although it is another one.
const LEGACY_END: i64 = 2;

/// The configuration of a text encoder of CLIP. Missing keys have the defaults of transformers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names and meanings are those of transformers")]
pub struct ClipConfig {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub max_position_embeddings: usize,
    pub hidden_act: String,
    pub layer_norm_eps: f64,
    eos_token_id: i64,
}

/// The configuration of a whole CLIP.
#[derive(Deserialize)]
struct WholeConfig {
    text_config: ClipConfig,
}

impl Default for ClipConfig {
    fn default() -> Self {
        Self {
            vocab_size: 49408,
            hidden_size: 512,
            intermediate_size: 2048,
            num_hidden_layers: 12,
            num_attention_heads: 8,
            max_position_embeddings: 77,
            hidden_act: "quick_gelu".into(),
            layer_norm_eps: 1e-5,
            eos_token_id: 49407,
        }
    }
}

impl ClipConfig {
    /// Opens a folder with a text encoder of CLIP, alone or as a part of a whole CLIP: its configuration, and its weights checked
    /// against the table.
    ///
    /// # Errors
    /// The folder holds another model or a form that is not supported, or weights are missing or have other shapes.
    pub fn open(folder: &Utf8Path) -> Result<(Self, EncoderFiles), Failure> {
        let file = ConfigFile::read(folder, FOLDER)?;
        let unsupported = |why| file.unsupported(why, &format!("give {FOLDER}"));
        let (own, config): (_, Self) = match file.json["model_type"].as_str().unwrap_or_default() {
            ALONE => (&file.json, file.parse()?),
            WHOLE => (&file.json["text_config"], file.parse::<WholeConfig>()?.text_config),
            other => return Err(unsupported(format!("it configures a {other} model, expected {ALONE} or {WHOLE}"))),
        };
        config.check().map_err(unsupported)?;
        let alias = |name: &str| Some(format!("{PREFIX}{name}"));
        let files = EncoderFiles::open(folder, own, &config.parameters(), alias, &UNUSED)?;
        Ok((config, files))
    }

    fn check(&self) -> Result<(), String> {
        if self.hidden_act != "quick_gelu" {
            return Err(format!("hidden_act is {}, expected quick_gelu", self.hidden_act));
        }
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_attention_heads),
            ("max_position_embeddings", self.max_position_embeddings),
        ];
        check_range(MOST, &sizes)?;
        check_range(MOST_LAYERS, &[("num_hidden_layers", self.num_hidden_layers)])?;
        let (width, heads) = (self.hidden_size, self.num_attention_heads);
        match width % heads {
            0 => Ok(()),
            _ => Err(format!("hidden_size {width} is not a multiple of num_attention_heads {heads}")),
        }
    }

    /// Returns the id of the end token, or `None` if it is the largest id of each text, as in the files that OpenAI's model was
    /// published with.
    pub fn end_token(&self) -> Option<i64> {
        (self.eos_token_id != LEGACY_END).then_some(self.eos_token_id)
    }

    /// Returns the table of parameters: names and shapes.
    pub fn parameters(&self) -> Vec<Parameter> {
        let (width, inner) = (self.hidden_size, self.intermediate_size);
        let mut table = ParameterTable::default();
        table.tensor("embeddings.token_embedding.weight", [self.vocab_size, width]);
        table.tensor("embeddings.position_embedding.weight", [self.max_position_embeddings, width]);
        for layer in 0..self.num_hidden_layers {
            let name = |name: &str| format!("encoder.layers.{layer}.{name}");
            table.affine(&name("layer_norm1"), [width]);
            for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                table.affine(&name(&format!("self_attn.{part}")), [width, width]);
            }
            table.affine(&name("layer_norm2"), [width]);
            table.affine(&name("mlp.fc1"), [inner, width]);
            table.affine(&name("mlp.fc2"), [width, inner]);
        }
        table.affine("final_layer_norm", [width]);
        table.0
    }
}

//! The T5 v1.1 encoder: its configuration and its table of parameters.

use super::config::{ConfigFile, MOST, MOST_LAYERS, check_range};
use super::{EncoderFiles, Parameter, umt5};
use camino::Utf8Path;
use rundir::Failure;
use serde::Deserialize;

/// The configuration of a T5 encoder. Missing keys have the defaults of transformers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names and meanings are those of transformers")]
pub struct T5Config {
    pub model_type: String,
    pub vocab_size: usize,
    pub d_model: usize,
    pub d_kv: usize,
    pub d_ff: usize,
    pub num_layers: usize,
    pub num_heads: usize,
    pub relative_attention_num_buckets: usize,
    pub relative_attention_max_distance: usize,
    pub layer_norm_epsilon: f64,
    pub feed_forward_proj: String,
}

impl Default for T5Config {
    fn default() -> Self {
        Self {
            model_type: String::new(),
            vocab_size: 32128,
            d_model: 512,
            d_kv: 64,
            d_ff: 2048,
            num_layers: 6,
            num_heads: 8,
            relative_attention_num_buckets: 32,
            relative_attention_max_distance: 128,
            layer_norm_epsilon: 1e-6,
            feed_forward_proj: "relu".into(),
        }
    }
}

impl T5Config {
    /// The folder to give.
    pub const FOLDER: &str = "the text_encoder/ folder of a model of CogVideoX or Wan";

    /// Reads and checks the `config.json` of a `text_encoder/` folder.
    ///
    /// # Errors
    /// The file is missing or not valid, or describes another model or another version of T5.
    pub fn read(folder: &Utf8Path) -> Result<Self, Failure> {
        Self::of(&ConfigFile::read(folder, Self::FOLDER)?)
    }

    fn of(file: &ConfigFile) -> Result<Self, Failure> {
        let config: Self = file.parse()?;
        let fix = || format!("give {}, which is T5 v1.1", Self::FOLDER);
        config.check().map_err(|why| file.unsupported(why, &fix()))?;
        Ok(config)
    }

    /// Returns whether the encoder is umT5: every block has its own position biases, the text is cleaned, and padding is masked and becomes zeros.
    pub fn is_umt5(&self) -> bool {
        self.model_type == umt5::MODEL_TYPE
    }

    /// Returns the tokens of a text that the published networks with this encoder read: Wan's with umT5, CogVideoX's with T5.
    pub fn text_len(&self) -> usize {
        if self.is_umt5() { 512 } else { 226 }
    }

    /// Opens a `text_encoder/` folder of T5 or umT5: its configuration, and its weights checked against the table.
    ///
    /// # Errors
    /// As [`T5Config::read`]; or weights are missing or have other shapes.
    pub fn open(folder: &Utf8Path) -> Result<(Self, EncoderFiles), Failure> {
        Self::open_with(&ConfigFile::read(folder, Self::FOLDER)?)
    }

    /// Opens the folder of a configuration, as [`T5Config::open`].
    ///
    /// # Errors
    /// As [`T5Config::open`].
    pub fn open_with(file: &ConfigFile) -> Result<(Self, EncoderFiles), Failure> {
        if file.json["model_type"] == umt5::MODEL_TYPE {
            return umt5::open(file);
        }
        let config = Self::of(file)?;
        // The embedding can have two names, and the files of a whole T5 contain a decoder too.
        let alias = |name: &str| (name == "shared.weight").then(|| "encoder.embed_tokens.weight".to_owned());
        let ignored = ["decoder.", "lm_head."];
        let files = EncoderFiles::open(file.folder(), &file.json, &config.parameters(), alias, &ignored)?;
        Ok((config, files))
    }

    fn check(&self) -> Result<(), String> {
        if self.model_type != "t5" {
            return Err(match self.model_type.as_str() {
                "" => "model_type is missing".into(),
                other => format!("it configures a {other} model, expected t5"),
            });
        }
        if self.feed_forward_proj != "gated-gelu" {
            return Err(format!("feed_forward_proj is {}, expected gated-gelu", self.feed_forward_proj));
        }
        self.check_sizes()
    }

    /// Checks the numbers of T5 and umT5.
    ///
    /// # Errors
    /// The first number that is not supported.
    pub fn check_sizes(&self) -> Result<(), String> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("d_model", self.d_model),
            ("d_kv", self.d_kv),
            ("d_ff", self.d_ff),
            ("num_heads", self.num_heads),
        ];
        check_range(MOST, &sizes)?;
        check_range(MOST_LAYERS, &[("num_layers", self.num_layers)])?;
        let (buckets, distance) = (self.relative_attention_num_buckets, self.relative_attention_max_distance);
        if buckets < 4 || buckets % 4 != 0 || distance <= buckets / 4 {
            return Err(format!("relative_attention_num_buckets is {buckets} and ..._max_distance is {distance}"));
        }
        Ok(())
    }

    /// Returns the table of parameters: names and shapes.
    pub fn parameters(&self) -> Vec<Parameter> {
        let (dim, inner) = (self.d_model, self.num_heads * self.d_kv);
        let mut table = vec![Parameter::new("shared.weight", [self.vocab_size, dim])];
        for block in 0..self.num_layers {
            let mut add = |name: &str, shape: &[usize]| {
                table.push(Parameter::new(format!("encoder.block.{block}.{name}.weight"), shape));
            };
            for name in ["q", "k", "v"] {
                add(&format!("layer.0.SelfAttention.{name}"), &[inner, dim]);
            }
            add("layer.0.SelfAttention.o", &[dim, inner]);
            if block == 0 {
                let shape = [self.relative_attention_num_buckets, self.num_heads];
                add("layer.0.SelfAttention.relative_attention_bias", &shape);
            }
            add("layer.0.layer_norm", &[dim]);
            add("layer.1.DenseReluDense.wi_0", &[self.d_ff, dim]);
            add("layer.1.DenseReluDense.wi_1", &[self.d_ff, dim]);
            add("layer.1.DenseReluDense.wo", &[dim, self.d_ff]);
            add("layer.1.layer_norm", &[dim]);
        }
        table.push(Parameter::new("encoder.final_layer_norm.weight", [dim]));
        table
    }
}

//! The files of umT5: a T5 v1.1 in which every block has its own table of position biases.

use super::config::{ConfigFile, check_class};
use super::table::ParameterTable;
use super::{EncoderFiles, Parameter, T5Config};
use rundir::Failure;

/// `model_type` in the configuration.
pub const MODEL_TYPE: &str = "umt5";
const FIX: &str = "give the text_encoder/ folder of a Wan model";
/// The table of embeddings, and its other name. Older files have both.
const EMBEDDING: [&str; 2] = ["shared.weight", "encoder.embed_tokens.weight"];

/// Opens the `text_encoder/` folder of a configuration: its fields, and the weights checked against the table.
///
/// # Errors
/// The folder holds another model, or weights are missing or have other shapes.
pub fn open(file: &ConfigFile) -> Result<(T5Config, EncoderFiles), Failure> {
    let config: T5Config = file.parse()?;
    check(&config).map_err(|why| file.unsupported(why, FIX))?;
    let alias = |name: &str| (name == EMBEDDING[0]).then(|| EMBEDDING[1].to_owned());
    let ignored = ["decoder.", "lm_head."];
    let files = EncoderFiles::open(file.folder(), &file.json, &parameters(&config), alias, &ignored)?;
    Ok((config, files))
}

fn check(config: &T5Config) -> Result<(), String> {
    check_class("model_type", &config.model_type, MODEL_TYPE)?;
    if config.feed_forward_proj != "gated-gelu" {
        return Err(format!("feed_forward_proj is {}, expected gated-gelu", config.feed_forward_proj));
    }
    config.check_sizes()
}

/// Returns the table of parameters: that of T5, and the position biases of all blocks.
pub fn parameters(config: &T5Config) -> Vec<Parameter> {
    let mut table = ParameterTable(config.parameters());
    for block in 1..config.num_layers {
        let name = format!("encoder.block.{block}.layer.0.SelfAttention.relative_attention_bias.weight");
        table.tensor(name, [config.relative_attention_num_buckets, config.num_heads]);
    }
    table.0
}

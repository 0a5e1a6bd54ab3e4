//! The files of umT5: a T5 v1.1 in which every block has its own table of position biases.

use crate::files::{Table, check_sizes, parse, read_config, unsupported};
use camino::Utf8Path;
use failure::Failure;
use weights::{EncoderFiles, Parameter, T5Config};

/// `model_type` in the configuration.
pub const MODEL_TYPE: &str = "umt5";
/// The folder to give.
pub const FOLDER: &str = "the text_encoder/ folder of a Wan model";
/// The table of embeddings, and its other name. Older files have both.
const EMBEDDING: [&str; 2] = ["shared.weight", "encoder.embed_tokens.weight"];

/// Opens a `text_encoder/` folder: its configuration, and its weights checked against the table.
///
/// # Errors
/// The folder holds another model, or weights are missing or have other shapes.
pub fn open(folder: &Utf8Path) -> Result<(T5Config, EncoderFiles), Failure> {
    let json = read_config(folder, FOLDER)?;
    let config: T5Config = parse(folder, &json)?;
    check(&config).map_err(|why| unsupported(folder, why, FOLDER))?;
    let alias = |name: &str| (name == EMBEDDING[0]).then(|| EMBEDDING[1].to_owned());
    let files = EncoderFiles::open(folder, &json, &parameters(&config), alias, &["decoder.", "lm_head."])?;
    Ok((config, files))
}

fn check(config: &T5Config) -> Result<(), String> {
    if config.model_type != MODEL_TYPE {
        return Err(format!("model_type is {}, expected {MODEL_TYPE}", config.model_type));
    }
    if config.feed_forward_proj != "gated-gelu" {
        return Err(format!("feed_forward_proj is {}, expected gated-gelu", config.feed_forward_proj));
    }
    check_sizes(&[
        ("vocab_size", config.vocab_size),
        ("d_model", config.d_model),
        ("d_kv", config.d_kv),
        ("d_ff", config.d_ff),
        ("num_layers", config.num_layers),
        ("num_heads", config.num_heads),
    ])?;
    let (buckets, distance) = (config.relative_attention_num_buckets, config.relative_attention_max_distance);
    if buckets < 4 || buckets % 4 != 0 || distance <= buckets / 4 {
        return Err(format!("relative_attention_num_buckets is {buckets} and ..._max_distance is {distance}"));
    }
    Ok(())
}

/// Returns the table of parameters: that of T5, and the position biases of all blocks.
pub fn parameters(config: &T5Config) -> Vec<Parameter> {
    let mut table = Table(config.parameters());
    for block in 1..config.num_layers {
        let name = format!("encoder.block.{block}.layer.0.SelfAttention.relative_attention_bias.weight");
        table.tensor(name, [config.relative_attention_num_buckets, config.num_heads]);
    }
    table.0
}

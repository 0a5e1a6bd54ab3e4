//! The files of Wan: the `config.json` of diffusers, and the original releases, which have no configuration.

use crate::json_text::pretty;
use crate::tensor_spans::Tensors;
use camino::Utf8Path;
use recipe::families::wan::{Layout, Shapes, WanModel, file_tensor, recognise};
use recipe::{Family, FamilyName, Model};
use rundir::{ErrorCode, Failure};
use serde::Deserialize;
use serde_json::{Value, json};

/// The class of diffusers.
pub(crate) const CLASS: &str = "WanTransformer3DModel";
/// The latent frames, rows and columns of 81 frames of 480 × 832 pixels. No file has a size of videos.
const LATENT: [usize; 3] = [21, 60, 104];
/// Those of 121 frames of 704 × 1280 pixels with the VAE of 2.2, whose latents have this number of channels: TI2V 5B.
const LATENT_5B: (usize, [usize; 3]) = (48, [31, 44, 80]);
/// The hint for a network that the trainer does not support.
const SUPPORTED: &str = "use a text-to-video model of Wan 2.1 or 2.2, I2V A14B, or TI2V 5B";
/// The rows of text that all published networks attend to.
const TEXT_LEN: usize = 512;
/// The width of a head in all published networks. The original files do not have it.
const HEAD_DIM: usize = 128;

/// The keys of `config.json`. A missing key has the default of diffusers, which is the 14B network.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Config {
    patch_size: [usize; 3],
    num_attention_heads: usize,
    attention_head_dim: usize,
    in_channels: usize,
    out_channels: usize,
    text_dim: usize,
    freq_dim: usize,
    ffn_dim: usize,
    num_layers: usize,
    cross_attn_norm: bool,
    qk_norm: Option<String>,
    eps: f64,
    image_dim: Option<usize>,
    added_kv_proj_dim: Option<usize>,
    pos_embed_seq_len: Option<usize>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            patch_size: [1, 2, 2],
            num_attention_heads: 40,
            attention_head_dim: 128,
            in_channels: 16,
            out_channels: 16,
            text_dim: 4096,
            freq_dim: 256,
            ffn_dim: 13_824,
            num_layers: 40,
            cross_attn_norm: true,
            qk_norm: Some(QK_NORM.into()),
            eps: 1e-6,
            image_dim: None,
            added_kv_proj_dim: None,
            pos_embed_seq_len: None,
        }
    }
}

/// The form of the norms of queries and keys in all published networks.
const QK_NORM: &str = "rms_norm_across_heads";

/// Returns whether a configuration is that of a network of Wan.
pub(crate) fn is_config(config: &Value) -> bool {
    config["_class_name"] == CLASS
}

/// Returns the model that the `config.json` at `path` describes.
///
/// # Errors
/// The file is malformed, or the trainer does not support the model; the error names the key.
pub(crate) fn model_of_config(path: &Utf8Path, config: &Value) -> Result<Model, Failure> {
    let config = Config::deserialize(config).map_err(|error| {
        let fix = "copy it again from where the weights came";
        Failure::new(ErrorCode::Malformed, format!("cannot use {path}"), error.to_string(), fix)
    })?;
    let unsupported = |key: &str, value: String| {
        let why = format!("it has {key} = {value}, which the trainer does not support");
        Failure::new(ErrorCode::UnsupportedModel, format!("cannot use {path}"), why, SUPPORTED)
    };
    let rows = config.patch_size[1];
    for (key, holds, value) in [
        ("image_dim", config.image_dim.is_none(), format!("{:?}", config.image_dim.unwrap_or(0))),
        (
            "added_kv_proj_dim",
            config.added_kv_proj_dim.is_none(),
            format!("{:?}", config.added_kv_proj_dim.unwrap_or(0)),
        ),
        (
            "pos_embed_seq_len",
            config.pos_embed_seq_len.is_none(),
            format!("{:?}", config.pos_embed_seq_len.unwrap_or(0)),
        ),
        ("patch_size", rows == config.patch_size[2], format!("{:?}", config.patch_size)),
        ("cross_attn_norm", config.cross_attn_norm, "false".into()),
        ("qk_norm", config.qk_norm.as_deref() == Some(QK_NORM), format!("{:?}", config.qk_norm)),
        ("eps", config.eps == 1e-6, format!("{:e}", config.eps)),
    ] {
        if !holds {
            return Err(unsupported(key, value));
        }
    }
    let network = WanModel {
        num_layers: config.num_layers,
        num_heads: config.num_attention_heads,
        head_dim: config.attention_head_dim,
        ffn_dim: config.ffn_dim,
        text_dim: config.text_dim,
        text_len: TEXT_LEN,
        freq_dim: config.freq_dim,
        in_channels: config.in_channels,
        out_channels: config.out_channels,
        patch_size: config.patch_size,
        image: None,
        eps: config.eps,
    };
    let model = model_of_network(&network).map_err(|why| {
        let why = format!("its sizes do not fit: {why}");
        Failure::new(ErrorCode::UnsupportedModel, format!("cannot use {path}"), why, "check its config.json")
    })?;
    if model.condition().is_none() {
        return Err(unsupported("in_channels, out_channels", format!("{:?}", [model.in_channels, model.out_channels])));
    }
    Ok(model)
}

/// Returns the `[model]` section of a network, for the usual size of videos.
fn model_of_network(network: &WanModel) -> Result<Model, String> {
    let size = |n: usize| toml::Value::Integer(i64::try_from(n).unwrap_or(i64::MAX));
    let [patch_t, patch, _] = network.patch_size;
    let [frames, height, width] = if network.out_channels == LATENT_5B.0 { LATENT_5B.1 } else { LATENT };
    let sizes = [
        ("num_layers", network.num_layers),
        ("num_heads", network.num_heads),
        ("head_dim", network.head_dim),
        ("ffn_dim", network.ffn_dim),
        ("freq_dim", network.freq_dim),
        ("text_dim", network.text_dim),
        ("text_len", network.text_len),
        ("in_channels", network.in_channels),
        ("out_channels", network.out_channels),
        ("patch_size", patch),
        ("patch_size_t", patch_t),
        ("latent_frames", frames),
        ("latent_height", height),
        ("latent_width", width),
    ];
    let mut table: toml::Table = sizes.into_iter().map(|(key, value)| (key.to_owned(), size(value))).collect();
    table.insert("family".into(), FamilyName::Wan.name().into());
    Model::from_table(&table).map_err(|error| error.why)
}

/// Returns the `config.json` of diffusers for a model; `None` for other families.
pub(crate) fn config_of(model: &Model) -> Option<Value> {
    let Family::Wan(keys) = &model.family else { return None };
    let network = keys.network(model);
    Some(json!({
        "_class_name": CLASS,
        "added_kv_proj_dim": null,
        "attention_head_dim": network.head_dim,
        "cross_attn_norm": true,
        "eps": network.eps,
        "ffn_dim": network.ffn_dim,
        "freq_dim": network.freq_dim,
        "image_dim": null,
        "in_channels": network.in_channels,
        "num_attention_heads": network.num_heads,
        "num_layers": network.num_layers,
        "out_channels": network.out_channels,
        "patch_size": network.patch_size,
        "pos_embed_seq_len": null,
        "qk_norm": QK_NORM,
        "rope_max_seq_len": 1024,
        "text_dim": network.text_dim,
    }))
}

/// Returns a configuration as text, based on the `config.json` that came with the weights, if there is one: its other keys are kept, and if
/// nothing changes, the text is identical.
pub(crate) fn config_text(config: &Value, came_with: Option<&str>) -> String {
    let theirs = came_with.and_then(|text| Some((text, serde_json::from_str::<Value>(text).ok()?)));
    let Some((text, mut changed)) = theirs.filter(|(_, theirs)| is_config(theirs)) else { return pretty(config) };
    // The longest side of a rotary table has no effect on the weights.
    let own = config.as_object().into_iter().flatten().filter(|(key, _)| *key != "rope_max_seq_len");
    let differ: Vec<_> = own.filter(|(key, value)| changed[key.as_str()] != **value).collect();
    if differ.is_empty() {
        return text.to_owned();
    }
    differ.into_iter().for_each(|(key, value)| changed[key.as_str()] = value.clone());
    pretty(&changed)
}

/// Returns the model of the tensors of an original release, without the prefix of ComfyUI.
///
/// # Errors
/// The tensors are those of another network, or the trainer does not support it.
pub(crate) fn model_of_release(tensors: &Tensors) -> Result<Model, Failure> {
    let refuse = |why: String, fix: &str| {
        Failure::new(ErrorCode::UnsupportedModel, "cannot derive the model from its weights", why, fix)
    };
    let shapes: Shapes = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shape.clone())).collect();
    let found = recognise(&shapes, HEAD_DIM)
        .map_err(|not_wan| refuse(not_wan.to_string(), "give the complete file of a release of Wan"))?;
    if found.model.image.is_some() {
        let why = "it attends to embeddings of images, which the trainer does not support".to_owned();
        return Err(refuse(why, SUPPORTED));
    }
    let model =
        model_of_network(&found.model).map_err(|why| refuse(why, "give the complete file of a release of Wan"))?;
    if model.condition().is_none() {
        let why = format!("no condition has {} channels for {}", model.in_channels, model.out_channels);
        return Err(refuse(why, SUPPORTED));
    }
    Ok(model)
}

/// Returns the name of one of our tensors in an original release.
pub(crate) fn name_in_release(name: &str) -> Option<String> {
    file_tensor(Layout::Original, name).map(|tensor| tensor.name)
}

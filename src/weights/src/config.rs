//! Converts the `config.json` of a diffusers transformer to a model and back.

use crate::json_text::pretty;
use crate::wan;
use camino::Utf8Path;
use recipe::families::wan::Release;
use recipe::{Family, Layer, Model, Positions, Rotary};
use rundir::{ErrorCode, Failure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;
use std::fs;

/// The diffusers class whose configurations are read and written.
const CLASS: &str = "CogVideoXTransformer3DModel";
/// Frames of video per latent frame, the same for every CogVideoX model.
const FRAMES_PER_LATENT: usize = 4;
/// ε of the norms of queries and keys, a constant in the code of diffusers.
const QK_NORM_EPS: f64 = 1e-6;
/// The largest configuration file in bytes. A configuration is a page of text.
const MAX_CONFIG: u64 = 1_000_000;

/// The keys that the shape of a model depends on. A missing key has the default of diffusers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names and meanings are those of diffusers")]
pub struct Config {
    #[serde(rename = "_class_name")]
    pub class_name: String,
    pub num_attention_heads: i64,
    pub attention_head_dim: i64,
    pub in_channels: i64,
    pub out_channels: Option<i64>,
    pub flip_sin_to_cos: bool,
    pub freq_shift: f64,
    pub time_embed_dim: i64,
    pub ofs_embed_dim: Option<i64>,
    pub text_embed_dim: i64,
    pub num_layers: i64,
    pub attention_bias: bool,
    pub sample_width: i64,
    pub sample_height: i64,
    pub sample_frames: i64,
    pub patch_size: i64,
    pub patch_size_t: Option<i64>,
    pub temporal_compression_ratio: i64,
    pub max_text_seq_length: i64,
    pub activation_fn: String,
    pub timestep_activation_fn: String,
    pub norm_elementwise_affine: bool,
    pub norm_eps: f64,
    pub spatial_interpolation_scale: f64,
    pub temporal_interpolation_scale: f64,
    pub use_rotary_positional_embeddings: bool,
    /// `None` if the file does not have the key.
    pub use_learned_positional_embeddings: Option<bool>,
    pub patch_bias: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            class_name: String::new(),
            num_attention_heads: 30,
            attention_head_dim: 64,
            in_channels: 16,
            out_channels: Some(16),
            flip_sin_to_cos: true,
            freq_shift: 0.0,
            time_embed_dim: 512,
            ofs_embed_dim: None,
            text_embed_dim: 4096,
            num_layers: 30,
            attention_bias: true,
            sample_width: 90,
            sample_height: 60,
            sample_frames: 49,
            patch_size: 2,
            patch_size_t: None,
            temporal_compression_ratio: 4,
            max_text_seq_length: 226,
            activation_fn: "gelu-approximate".into(),
            timestep_activation_fn: "silu".into(),
            norm_elementwise_affine: true,
            norm_eps: 1e-5,
            spatial_interpolation_scale: 1.875,
            temporal_interpolation_scale: 1.0,
            use_rotary_positional_embeddings: false,
            use_learned_positional_embeddings: None,
            patch_bias: true,
        }
    }
}

/// A member of the CogVideoX family, named after the published model with the same structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishedModel {
    /// Sine and cosine positions.
    CogVideoX2B,
    /// Rotary positions.
    CogVideoX5B,
    /// Rotary and learned positions, and a latent of the first image.
    CogVideoX5BI2V,
    /// Patches of two frames.
    CogVideoX15,
    /// Patches of two frames, a latent of the first image, and an embedding of its offset.
    CogVideoX15I2V,
    /// A mask and a masked latent besides the latent.
    FunInP,
    /// A second latent besides the latent: that of an image, or of a control video.
    FunControl,
    /// As [`PublishedModel::FunInP`], with patches of two frames.
    Fun15InP,
    /// As [`PublishedModel::FunControl`], with patches of two frames.
    Fun15Control,
    /// A network of Wan; `None` if none of the published networks has its sizes.
    Wan(Option<Release>),
}

impl PublishedModel {
    /// Returns the name of the published model.
    pub fn name(self) -> &'static str {
        match self {
            Self::CogVideoX2B => "CogVideoX-2B",
            Self::CogVideoX5B => "CogVideoX-5B",
            Self::CogVideoX5BI2V => "CogVideoX-5B-I2V",
            Self::CogVideoX15 => "CogVideoX1.5-5B",
            Self::CogVideoX15I2V => "CogVideoX1.5-5B-I2V",
            Self::FunInP => "CogVideoX-Fun-InP",
            Self::FunControl => "CogVideoX-Fun-Control",
            Self::Fun15InP => "CogVideoX-Fun-V1.5-InP",
            Self::Fun15Control => "CogVideoX-Fun-V1.5-Control",
            Self::Wan(release) => release.map_or("Wan", Release::name),
        }
    }

    /// Returns the published model that has the structure of a model of the trainer.
    pub fn of(model: &Model) -> Self {
        if let Family::Wan(keys) = &model.family {
            return Self::Wan(Release::of(&keys.network(model)));
        }
        let channels = (model.in_channels as u64, model.out_channels as u64);
        Self::by_features(
            model.patch_size_t > 1,
            model.cogvideox().ofs_embedding,
            model.cogvideox().positions,
            channels,
        )
    }

    /// Returns the published model with these features. `channels` are the numbers of input and output channels.
    fn by_features(temporal_patches: bool, ofs: bool, positions: Positions, channels: (u64, u64)) -> Self {
        let (input, output) = channels;
        // More input than output channels: a second latent. More than twice as many: a mask and a second latent.
        let (second, mask) = (input > output, input > output.saturating_mul(2));
        match positions {
            _ if temporal_patches && ofs => Self::CogVideoX15I2V,
            _ if temporal_patches && mask => Self::Fun15InP,
            _ if temporal_patches && second => Self::Fun15Control,
            _ if temporal_patches => Self::CogVideoX15,
            Positions::Learned => Self::CogVideoX5BI2V,
            _ if mask => Self::FunInP,
            _ if second => Self::FunControl,
            Positions::SinCos => Self::CogVideoX2B,
            Positions::Rope => Self::CogVideoX5B,
        }
    }
}

impl fmt::Display for PublishedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The architecture of a model, and whether the model also has the size of the published one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelFamily {
    /// The published model with the same structure.
    pub like: PublishedModel,
    /// Whether the number of blocks and their widths are those of the published model.
    pub has_published_size: bool,
}

impl ModelFamily {
    /// Returns the family of a model of the trainer.
    pub fn of(model: &Model) -> Self {
        let like = PublishedModel::of(model);
        if let PublishedModel::Wan(release) = like {
            return Self { like, has_published_size: release.is_some() };
        }
        let size = [model.num_layers, model.num_heads, model.head_dim, model.text_dim];
        Self::new(like, model.cogvideox().positions, size.map(|n| n as i64))
    }

    /// * `size` — blocks, heads, width of a head, width of a text token.
    fn new(like: PublishedModel, positions: Positions, size: [i64; 4]) -> Self {
        // Models with a fixed table of positions, such as CogVideoX-Fun 2B, have the size of CogVideoX-2B.
        let published = if positions == Positions::SinCos { [30, 30, 64, 4096] } else { [42, 48, 64, 4096] };
        Self { like, has_published_size: size == published }
    }

    /// Returns the name of the published model if the model has its size, otherwise that of the architecture.
    pub fn name(self) -> &'static str {
        if self.has_published_size {
            return self.like.name();
        }
        match self.like {
            PublishedModel::CogVideoX2B => "CogVideoX, sincos positions",
            PublishedModel::CogVideoX5B => "CogVideoX, rope positions",
            PublishedModel::CogVideoX5BI2V => "CogVideoX I2V, learned positions",
            PublishedModel::CogVideoX15 => "CogVideoX1.5",
            PublishedModel::CogVideoX15I2V => "CogVideoX1.5 I2V",
            // The names of CogVideoX-Fun have no size, and neither has that of other networks of Wan.
            other => other.name(),
        }
    }
}

impl fmt::Display for ModelFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for ModelFamily {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Config {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// The file is missing, is not JSON, or configures another model.
    pub fn read(path: &Utf8Path) -> Result<Self, Failure> {
        Self::parse(path, &read_text(path)?)
    }

    /// Reads the text of the `config.json` at `path`.
    pub(crate) fn parse(path: &Utf8Path, text: &str) -> Result<Self, Failure> {
        let what = || format!("cannot use {path}");
        let config: Self = serde_json::from_value(json_of(path, text)?).map_err(|e| {
            Failure::new(ErrorCode::Malformed, what(), e.to_string(), "copy it again from where the weights came")
        })?;
        if config.class_name != CLASS {
            let why = match config.class_name.as_str() {
                "" => "_class_name is missing".into(),
                other => format!("it configures a {other}; only {CLASS} is supported"),
            };
            return Err(Failure::new(
                ErrorCode::UnsupportedModel,
                what(),
                why,
                "give the transformer/ folder of a CogVideoX model",
            ));
        }
        Ok(config)
    }

    /// Returns the published model that has the structure of this configuration.
    fn published(&self) -> PublishedModel {
        let channels = |n: i64| u64::try_from(n).unwrap_or(0);
        let channels = (channels(self.in_channels), channels(self.out_channels.unwrap_or(16)));
        PublishedModel::by_features(self.patch_size_t.is_some(), self.ofs().is_some(), self.positions(), channels)
    }

    /// Returns the family of this configuration.
    pub fn family(&self) -> ModelFamily {
        let size = [self.num_layers, self.num_attention_heads, self.attention_head_dim, self.text_embed_dim];
        ModelFamily::new(self.published(), self.positions(), size)
    }

    /// Returns the width of the embedding of the first image's offset; `None` if the model has no such embedding.
    fn ofs(&self) -> Option<i64> {
        self.ofs_embed_dim.filter(|width| *width != 0)
    }

    fn positions(&self) -> Positions {
        match (self.use_learned_positional_embeddings == Some(true), self.use_rotary_positional_embeddings) {
            (true, _) => Positions::Learned,
            (_, true) => Positions::Rope,
            _ => Positions::SinCos,
        }
    }
}

/// Reads a small JSON file.
pub(crate) fn read_json(path: &Utf8Path) -> Result<Value, Failure> {
    json_of(path, &read_text(path)?)
}

pub(crate) fn json_of(path: &Utf8Path, text: &str) -> Result<Value, Failure> {
    let why = |e: serde_json::Error| format!("it is not JSON: {e}");
    serde_json::from_str(text).map_err(|e| {
        Failure::new(ErrorCode::Malformed, format!("cannot read {path}"), why(e), "copy it again from where it came")
    })
}

/// Reads a small file of text.
pub(crate) fn read_text(path: &Utf8Path) -> Result<String, Failure> {
    let what = || format!("cannot read {path}");
    let meta =
        fs::metadata(path).map_err(|e| Failure::new(ErrorCode::of_io(&e), what(), e.to_string(), "check the path"))?;
    if meta.len() > MAX_CONFIG {
        return Err(Failure::new(
            ErrorCode::Malformed,
            what(),
            format!("it has {} bytes, too many for a configuration", meta.len()),
            "check the path",
        ));
    }
    Ok(rundir::read_text(path)?)
}

/// Returns the model that a configuration describes.
///
/// # Errors
/// The trainer does not support the model; the error names the unsupported key.
pub fn model_from_diffusers(config: &Config) -> Result<Model, Failure> {
    let what = || format!("cannot use a {} model", config.published());
    let unsupported = |key: &str, value: String| {
        let why = format!("its config.json has {key} = {value}, which the trainer does not support");
        Err(Failure::new(
            ErrorCode::UnsupportedModel,
            what(),
            why,
            "use a CogVideoX 1.0, CogVideoX 1.5 or CogVideoX-Fun model",
        ))
    };
    let in_time = config.patch_size_t.is_some();
    let ofs = config.ofs();
    if matches!(config.published(), PublishedModel::FunControl | PublishedModel::Fun15Control)
        && config.use_learned_positional_embeddings.is_none()
    {
        return Err(Failure::new(
            ErrorCode::UnsupportedModel,
            what(),
            "its second latent is that of a control video, and the trainer supports second latents of images only",
            "use a CogVideoX-Fun-InP model. If this model takes an image, set use_learned_positional_embeddings = false in its \
             config.json",
        ));
    }
    let learned = config.use_learned_positional_embeddings == Some(true);
    let rules: [(&str, bool, String); 11] = [
        ("patch_size_t", config.patch_size_t != Some(1), "1, a linear layer over single frames".into()),
        (
            "ofs_embed_dim",
            ofs.is_none_or(|width| width == config.time_embed_dim),
            format!("{} with time_embed_dim = {}", ofs.unwrap_or(0), config.time_embed_dim),
        ),
        ("activation_fn", config.activation_fn == "gelu-approximate", config.activation_fn.clone()),
        ("timestep_activation_fn", config.timestep_activation_fn == "silu", config.timestep_activation_fn.clone()),
        ("attention_bias", config.attention_bias, "false".into()),
        ("norm_elementwise_affine", config.norm_elementwise_affine, "false".into()),
        ("flip_sin_to_cos", config.flip_sin_to_cos, "false".into()),
        ("freq_shift", config.freq_shift == 0.0, config.freq_shift.to_string()),
        // diffusers ignores patch_bias when patches span several frames: that layer always has a bias.
        ("patch_bias", config.patch_bias || in_time, "false".into()),
        (
            "use_rotary_positional_embeddings",
            config.use_rotary_positional_embeddings || !learned,
            "false with learned positions".into(),
        ),
        (
            "patch_size_t",
            !in_time || (config.use_rotary_positional_embeddings && !learned),
            "above 1 without rotary positions, or with learned ones".into(),
        ),
    ];
    if let Some((key, _, value)) = rules.into_iter().find(|(_, holds, _)| !holds) {
        return unsupported(key, value);
    }
    let positions = match config.positions() {
        Positions::Learned => "learned",
        Positions::Rope => "rope",
        Positions::SinCos => "sincos",
    };
    let ratio = config.temporal_compression_ratio;
    if ratio < 1 || config.sample_frames < 1 {
        return unsupported("temporal_compression_ratio, sample_frames", format!("{ratio}, {}", config.sample_frames));
    }
    let mut table = toml::Table::new();
    let mut set = |key: &str, value: toml::Value| drop(table.insert(key.to_owned(), value));
    set("positions", positions.into());
    set("num_layers", config.num_layers.into());
    set("num_heads", config.num_attention_heads.into());
    set("head_dim", config.attention_head_dim.into());
    set("time_embed_dim", config.time_embed_dim.into());
    set("text_dim", config.text_embed_dim.into());
    set("text_len", config.max_text_seq_length.into());
    set("in_channels", config.in_channels.into());
    set("out_channels", config.out_channels.unwrap_or(16).into());
    set("patch_size", config.patch_size.into());
    let patch_t = config.patch_size_t.unwrap_or(1);
    set("patch_size_t", patch_t.into());
    set("ofs_embedding", ofs.is_some().into());
    // The trainer pads latent frames to whole patches, as diffusers does: the 81 frames of CogVideoX 1.5 are 21 latent frames, padded to 22.
    let frames = (config.sample_frames - 1) / ratio + 1;
    set("latent_frames", frames.into());
    set("base_frames", frames.into());
    set("base_height", config.sample_height.into());
    set("base_width", config.sample_width.into());
    set("latent_height", config.sample_height.into());
    set("latent_width", config.sample_width.into());
    set("norm_eps", config.norm_eps.into());
    set("qk_norm_eps", QK_NORM_EPS.into());
    set("spatial_interpolation", config.spatial_interpolation_scale.into());
    set("temporal_interpolation", config.temporal_interpolation_scale.into());
    // CogVideoX-Fun's class resizes the table of config.json; its published models for inpainting have this class.
    let is_fun = config.published() == PublishedModel::FunInP;
    set("resize_positions", (is_fun && config.positions() == Positions::SinCos).into());
    // CogVideoX-2B has the default of diffusers' scheduler; all later models have no shift, and VideoX-Fun ignores it.
    let shift = if config.positions() == Positions::SinCos && !is_fun { 3.0 } else { 1.0 };
    set("snr_shift_scale", shift.into());
    Model::from_table(&table).map_err(|e| {
        Failure::new(
            ErrorCode::UnsupportedModel,
            what(),
            format!("its config.json does not fit: {}", e.why),
            "check its config.json",
        )
    })
}

/// Returns the `config.json` of a model, based on the `config.json` that came with its weights, and a note about each part
/// of the model that a `config.json` cannot express.
///
/// Keys with the same meaning are kept unchanged: several numbers of frames give the same number of latent frames, and
/// some keys have no effect on a model. If nothing changes, the text is identical.
pub(crate) fn config_text(model: &Model, came_with: Option<&str>) -> (String, Vec<String>) {
    if let Some(config) = wan::config_of(model) {
        return (wan::config_text(&config, came_with), Vec::new());
    }
    let (plain, notes) = model_to_diffusers(model);
    let text = came_with.and_then(|text| changed(text, &plain)).unwrap_or_else(|| pretty(&plain));
    (text, notes)
}

/// Returns the configuration `text` with the values of `wanted` for keys that differ in meaning, or `None` if the result
/// still differs from `wanted`.
fn changed(text: &str, wanted: &Value) -> Option<String> {
    let meaning = |value: &Value| {
        let config = serde_json::from_value(value.clone()).ok()?;
        Some(model_to_diffusers(&model_from_diffusers(&config).ok()?).0)
    };
    let mut value: Value = serde_json::from_str(text).ok()?;
    let was = meaning(&value)?;
    if was == *wanted {
        return Some(text.to_owned());
    }
    let differ = wanted.as_object()?.iter().filter(|(key, wanted)| was[key.as_str()] != **wanted);
    value.as_object_mut()?.extend(differ.map(|(key, wanted)| (key.clone(), wanted.clone())));
    (meaning(&value)? == *wanted).then(|| pretty(&value))
}

/// Returns the `config.json` of a model, and a note about each part of the model that a `config.json` cannot express.
pub fn model_to_diffusers(model: &Model) -> (Value, Vec<String>) {
    let own = model.cogvideox();
    let in_time = model.patch_size_t > 1;
    let [frames, height, width] = model.base();
    let config = json!({
        "_class_name": CLASS,
        "activation_fn": "gelu-approximate",
        "attention_bias": true,
        "attention_head_dim": model.head_dim,
        "dropout": 0.0,
        "flip_sin_to_cos": true,
        "freq_shift": 0,
        "in_channels": model.in_channels,
        "max_text_seq_length": model.text_len,
        "norm_elementwise_affine": true,
        "norm_eps": own.norm_eps,
        "num_attention_heads": model.num_heads,
        "num_layers": model.num_layers,
        "ofs_embed_dim": own.ofs_embedding.then_some(own.time_embed_dim),
        "out_channels": model.out_channels,
        "patch_bias": !in_time,
        "patch_size": model.patch_size,
        "patch_size_t": in_time.then_some(model.patch_size_t),
        "sample_frames": (frames - 1) * FRAMES_PER_LATENT + 1,
        "sample_height": height,
        "sample_width": width,
        "spatial_interpolation_scale": own.spatial_interpolation,
        "temporal_compression_ratio": FRAMES_PER_LATENT,
        "temporal_interpolation_scale": own.temporal_interpolation,
        "text_embed_dim": model.text_dim,
        "time_embed_dim": own.time_embed_dim,
        "timestep_activation_fn": "silu",
        "use_learned_positional_embeddings": own.positions == Positions::Learned,
        "use_rotary_positional_embeddings": own.positions != Positions::SinCos,
    });
    let mut notes = Vec::new();
    if own.qk_norm_eps != QK_NORM_EPS {
        notes.push(format!(
            "diffusers uses qk_norm_eps {QK_NORM_EPS:e}, this model was trained with {:e}",
            own.qk_norm_eps
        ));
    }
    notes.extend(rotary_note(model));
    if own.layer != Layer::None {
        notes.push(format!("diffusers does not support TTT layers: they are in {}", crate::TTT_FILE));
    }
    if model.latent_scale != 1.0 {
        notes.push(format!("latents were multiplied by {}: that is the VAE's scaling_factor", model.latent_scale));
    }
    (config, notes)
}

/// Returns a note if diffusers' pipelines use other rotary positions than the model was trained with.
pub(crate) fn rotary_note(model: &Model) -> Option<String> {
    let own = model.cogvideox();
    let differs = own.positions != Positions::SinCos && own.rotary != Rotary::Diffusers;
    let [_, height, width] = model.base();
    differs.then(|| {
        format!(
            "rotary = {:?}: diffusers' pipelines use other rotary positions at sizes other than {height} x {width} latents",
            own.rotary.name()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotary_positions_of_other_pipelines_are_noted() {
        let model = model_from_diffusers(&config(r#"{"use_rotary_positional_embeddings":true}"#)).unwrap();
        for (rotary, is_noted) in [(Rotary::Diffusers, false), (Rotary::ResizeCrop, true), (Rotary::Slice, true)] {
            let (_, notes) = model_to_diffusers(&model.with_cogvideox(|keys| keys.rotary = rotary));
            assert_eq!(notes.iter().any(|note| note.contains(rotary.name())), is_noted, "{notes:?}");
        }
        let sin_cos = model.with_cogvideox(|keys| {
            keys.positions = Positions::SinCos;
            keys.rotary = Rotary::Slice;
        });
        assert_eq!(rotary_note(&sin_cos), None);
    }

    fn config(change: &str) -> Config {
        let mut value = json!({ "_class_name": CLASS });
        let change: Value = serde_json::from_str(change).unwrap();
        value.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_published_models_are_distinguished() {
        let cases = [
            ("{}", PublishedModel::CogVideoX2B),
            (r#"{"use_rotary_positional_embeddings":true}"#, PublishedModel::CogVideoX5B),
            (
                r#"{"use_rotary_positional_embeddings":true,"use_learned_positional_embeddings":true,"in_channels":32}"#,
                PublishedModel::CogVideoX5BI2V,
            ),
            (r#"{"patch_size_t":2,"use_rotary_positional_embeddings":true}"#, PublishedModel::CogVideoX15),
            (r#"{"patch_size_t":2,"in_channels":32,"ofs_embed_dim":512}"#, PublishedModel::CogVideoX15I2V),
            (
                r#"{"patch_size_t":2,"use_rotary_positional_embeddings":true,"in_channels":33}"#,
                PublishedModel::Fun15InP,
            ),
            (
                r#"{"patch_size_t":2,"use_rotary_positional_embeddings":true,"in_channels":32}"#,
                PublishedModel::Fun15Control,
            ),
            (r#"{"in_channels":32,"use_learned_positional_embeddings":false}"#, PublishedModel::FunControl),
            (r#"{"in_channels":33}"#, PublishedModel::FunInP),
            (r#"{"in_channels":32,"use_rotary_positional_embeddings":true}"#, PublishedModel::FunControl),
        ];
        for (text, family) in cases {
            assert_eq!(config(text).published(), family, "{text}");
            if let Ok(model) = model_from_diffusers(&config(text)) {
                assert_eq!(PublishedModel::of(&model), family, "{text}");
                assert_eq!(ModelFamily::of(&model), config(text).family(), "{text}");
            }
        }
    }

    #[test]
    fn a_model_of_another_size_has_the_name_of_its_architecture() {
        let rope = r#""use_rotary_positional_embeddings":true"#;
        let large = r#""num_layers":42,"num_attention_heads":48"#;
        let cases = [
            ("{}".to_owned(), "CogVideoX-2B"),
            (r#"{"num_layers":4,"num_attention_heads":2}"#.to_owned(), "CogVideoX, sincos positions"),
            (format!("{{{large}}}"), "CogVideoX, sincos positions"),
            (format!("{{{rope},{large}}}"), "CogVideoX-5B"),
            (format!("{{{rope}}}"), "CogVideoX, rope positions"),
            (format!(r#"{{{rope},{large},"patch_size_t":2}}"#), "CogVideoX1.5-5B"),
            (format!(r#"{{{rope},{large},"patch_size_t":2,"text_embed_dim":24}}"#), "CogVideoX1.5"),
        ];
        for (text, name) in cases {
            assert_eq!(config(&text).family().to_string(), name, "{text}");
        }
    }

    #[test]
    fn control_models_are_refused_by_name_and_other_models_with_a_second_latent_are_not() {
        for control in [
            r#"{"in_channels":32,"use_rotary_positional_embeddings":true}"#,
            r#"{"in_channels":32}"#,
            r#"{"patch_size_t":2,"use_rotary_positional_embeddings":true,"in_channels":32}"#,
        ] {
            let failure = model_from_diffusers(&config(control)).unwrap_err();
            assert_eq!(
                (failure.code, failure.what.contains("Control")),
                (ErrorCode::UnsupportedModel, true),
                "{control}"
            );
        }
        let own = r#"{"in_channels":32,"use_learned_positional_embeddings":false}"#;
        assert!(model_from_diffusers(&config(own)).is_ok());
    }

    #[test]
    fn the_2b_model_for_inpainting_has_resized_positions() {
        let resizes = |text| model_from_diffusers(&config(text)).unwrap().cogvideox().resize_positions;
        assert!(resizes(r#"{"in_channels":33}"#));
        assert!(!resizes("{}") && !resizes(r#"{"in_channels":33,"use_rotary_positional_embeddings":true}"#));
    }

    #[test]
    fn latent_frames_are_padded_to_whole_patches() {
        let published = r#"{"patch_size_t":2,"use_rotary_positional_embeddings":true,"sample_frames":81}"#;
        let model = model_from_diffusers(&config(published)).unwrap();
        assert_eq!((model.latent_frames, model.padded_frames(), model.token_frames()), (21, 22, 11));
    }

    #[test]
    fn a_configuration_survives_a_round_trip() {
        let texts = [
            "{}",
            r#"{"use_rotary_positional_embeddings":true,"num_layers":42,"num_attention_heads":48}"#,
            r#"{"use_rotary_positional_embeddings":true,"patch_size_t":2,"patch_bias":false,"sample_frames":85}"#,
            r#"{"use_rotary_positional_embeddings":true,"patch_size_t":2,"patch_bias":false,"sample_frames":85,"ofs_embed_dim":512,"in_channels":32}"#,
        ];
        for text in texts {
            let model = model_from_diffusers(&config(text)).unwrap();
            let (back, notes) = model_to_diffusers(&model);
            let wanted = Config { use_learned_positional_embeddings: Some(false), ..config(text) };
            assert_eq!(serde_json::from_value::<Config>(back).unwrap(), wanted);
            assert_eq!(notes, [""; 0]);
        }
    }

    #[test]
    fn the_configuration_of_the_source_changes_only_where_its_meaning_differs() {
        let published = r#"{"_class_name":"CogVideoXTransformer3DModel","_diffusers_version":"0.32","dropout":0.1,
            "use_rotary_positional_embeddings":true,"patch_size_t":2,"patch_bias":true,"sample_frames":81}"#;
        let model = model_from_diffusers(&config(published)).unwrap();
        let of = |model: &Model| config_text(model, Some(published)).0;
        // It contains neither TTT layers nor the latent scale, and its base size is not the data size.
        let ttt = Model { latent_scale: 0.7, latent_frames: 4, ..model.clone() }.with_cogvideox(|keys| {
            keys.layer = Layer::TttMlp;
            keys.ttt_mini_batch = 64;
        });
        assert_eq!((of(&model).as_str(), of(&ttt).as_str()), (published, published));
        // Without the key of learned positions, a second latent would be that of a control video.
        let grown = Model { in_channels: 32, ..model.clone() };
        let text: Value = serde_json::from_str(&of(&grown)).unwrap();
        assert_eq!(text, model_to_diffusers(&grown).0);
        let inpainting: Value = serde_json::from_str(&of(&Model { in_channels: 33, ..model.clone() })).unwrap();
        let mut wanted: Value = serde_json::from_str(published).unwrap();
        wanted["in_channels"] = 33.into();
        assert_eq!(inpainting, wanted);
        let shorter: Value = serde_json::from_str(&of(&Model { base_frames: 4, ..model.clone() })).unwrap();
        assert_eq!((&shorter["sample_frames"], &shorter["dropout"]), (&13.into(), &0.1.into()));
        // A configuration that differs in more than the number of frames cannot be corrected, and neither can text that
        // is not JSON.
        for other in [published.replace("\"dropout\":0.1", "\"temporal_compression_ratio\":8"), "{".into()] {
            let made: Value = serde_json::from_str(&config_text(&model, Some(&other)).0).unwrap();
            assert_eq!(made, model_to_diffusers(&model).0);
        }
    }

    #[test]
    fn features_that_the_trainer_lacks_are_named() {
        let cases = [
            r#"{"patch_size_t":1,"use_rotary_positional_embeddings":true}"#,
            r#"{"patch_size_t":2}"#,
            r#"{"ofs_embed_dim":256}"#,
            r#"{"patch_bias":false}"#,
            r#"{"activation_fn":"geglu"}"#,
            r#"{"attention_bias":false}"#,
            r#"{"use_learned_positional_embeddings":true}"#,
            r#"{"num_layers":-3}"#,
            r#"{"sample_frames":0}"#,
            r#"{"sample_height":9223372036854775807}"#,
        ];
        let refused = |text: &str| format!("{text}\n{}", model_from_diffusers(&config(text)).unwrap_err());
        insta::assert_snapshot!(cases.map(refused).join("\n\n"));
    }
}

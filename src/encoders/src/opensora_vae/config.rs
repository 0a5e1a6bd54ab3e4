//! The VAE of Open-Sora 1.2: its configuration and its table of parameters.

use super::temporal::TemporalForm;
use crate::causal::Border;
use crate::kl::{Form, Resample};
use crate::latent::LatentScale;
use camino::Utf8Path;
use failure::Failure;
use serde::{Deserialize, Serialize};
use serde_json::json;
use weights::ParameterTable;
use weights::encoder_config::{ConfigFile, MOST, MOST_LAYERS, MOST_MULTIPLIER, check_class, check_range};
use weights::{EncoderFiles, Parameter};

const FOLDER: &str = "a folder such as hpcai-tech/OpenSora-VAE-v1.2";
const KIND: &str = "VideoAutoencoderPipeline";
/// The start of the type of the VAE over frames.
const TEMPORAL_KIND: &str = "VAE_Temporal";

/// The configuration of Open-Sora 1.2's VAE. Missing keys have the values of the released model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct OpenSoraVaeConfig {
    model_type: String,
    /// The VAE over frames.
    pub vae_temporal: TemporalConfig,
    /// The number of frames that are encoded at a time, each piece by itself; `None` for all.
    pub micro_frame_size: Option<usize>,
    shift: Vec<f64>,
    scale: Vec<f64>,
}

/// The configuration of the VAE over frames.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names and meanings are those of Open-Sora")]
pub struct TemporalConfig {
    #[serde(rename = "type")]
    kind: String,
    pub in_out_channels: usize,
    pub latent_embed_dim: usize,
    pub embed_dim: usize,
    pub filters: usize,
    pub num_res_blocks: usize,
    pub channel_multipliers: Vec<usize>,
    pub temporal_downsample: Vec<bool>,
    pub num_groups: usize,
}

/// The sizes of the VAE over pictures. Its weights are in the same file, but its configuration is in the repository that the
/// configuration names.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names and meanings are those of diffusers")]
pub struct PictureVaeConfig {
    pub in_channels: usize,
    pub out_channels: usize,
    pub latent_channels: usize,
    pub block_out_channels: Vec<usize>,
    pub layers_per_block: usize,
    pub norm_num_groups: usize,
}

impl Default for OpenSoraVaeConfig {
    fn default() -> Self {
        Self {
            model_type: String::new(),
            vae_temporal: TemporalConfig::default(),
            micro_frame_size: Some(17),
            shift: vec![-0.10, 0.34, 0.27, 0.98],
            scale: vec![3.85, 2.32, 2.33, 3.06],
        }
    }
}

impl Default for TemporalConfig {
    fn default() -> Self {
        Self {
            kind: "VAE_Temporal_SD".into(),
            in_out_channels: 4,
            latent_embed_dim: 4,
            embed_dim: 4,
            filters: 128,
            num_res_blocks: 4,
            channel_multipliers: vec![1, 2, 2, 4],
            temporal_downsample: vec![false, true, true],
            num_groups: 32,
        }
    }
}

impl Default for PictureVaeConfig {
    /// The VAE of SDXL, which Open-Sora 1.2 has from PixArt-Σ.
    fn default() -> Self {
        Self {
            in_channels: 3,
            out_channels: 3,
            latent_channels: 4,
            block_out_channels: vec![128, 256, 512, 512],
            layers_per_block: 2,
            norm_num_groups: 32,
        }
    }
}

impl PictureVaeConfig {
    /// Reads the `config.json` of an `AutoencoderKL` of diffusers.
    ///
    /// # Errors
    /// The file is missing or malformed.
    pub fn read(folder: &Utf8Path) -> Result<Self, Failure> {
        ConfigFile::read(folder, "the vae/ folder of an AutoencoderKL")?.parse()
    }

    /// Returns the form of the network.
    pub(super) fn form(&self) -> Form {
        let levels = self.block_out_channels.len();
        Form {
            prefix: "spatial_vae.module.",
            suffix: "",
            kernel_frames: 1,
            border: Border::Zeros,
            border_down: Border::ZerosAfter,
            channels: [self.in_channels, self.out_channels, self.latent_channels],
            widths: self.block_out_channels.clone(),
            layers: self.layers_per_block,
            groups: self.norm_num_groups,
            resample: (1..=levels).map(|level| (level < levels).then_some(Resample::Space)).collect(),
        }
    }
}

impl OpenSoraVaeConfig {
    /// Opens a folder with `config.json` and `model.safetensors`. `picture` has the sizes of the VAE over pictures.
    ///
    /// # Errors
    /// The folder holds another model or a form that is not supported, or weights are missing or have other shapes.
    pub fn open(folder: &Utf8Path, picture: &PictureVaeConfig) -> Result<(Self, EncoderFiles), Failure> {
        let mut file = ConfigFile::read(folder, FOLDER)?;
        let config: Self = file.parse()?;
        config.check(picture).map_err(|why| file.unsupported(why, &format!("give {FOLDER}")))?;
        // The identity of the VAE also depends on the VAE over pictures.
        file.json["picture"] = json!(picture);
        // The scale of latents is read from the configuration.
        let (weights, table) = (folder.join("model.safetensors"), config.parameters(picture));
        let files = EncoderFiles::open(&weights, &file.json, &table, |_| None, &["shift", "scale"])?;
        Ok((config, files))
    }

    fn check(&self, picture: &PictureVaeConfig) -> Result<(), String> {
        let temporal = &self.vae_temporal;
        check_class("model_type", &self.model_type, KIND)?;
        if !temporal.kind.starts_with(TEMPORAL_KIND) {
            return Err(format!("vae_temporal.type is {}, expected {TEMPORAL_KIND}", temporal.kind));
        }
        let sizes = [
            ("in_out_channels", temporal.in_out_channels),
            ("latent_embed_dim", temporal.latent_embed_dim),
            ("embed_dim", temporal.embed_dim),
            ("filters", temporal.filters),
            ("num_groups", temporal.num_groups),
            ("micro_frame_size", self.micro_frame_size.unwrap_or(1)),
            ("norm_num_groups", picture.norm_num_groups),
            ("in_channels", picture.in_channels),
            ("out_channels", picture.out_channels),
        ];
        check_range(MOST, &sizes)?;
        let layers = [("num_res_blocks", temporal.num_res_blocks), ("layers_per_block", picture.layers_per_block)];
        check_range(MOST_LAYERS, &layers)?;
        let (levels, changes) = (temporal.channel_multipliers.len(), temporal.temporal_downsample.len());
        if !(1..=8).contains(&levels) || changes + 1 != levels {
            return Err(format!("channel_multipliers has {levels} levels and temporal_downsample {changes}"));
        }
        for &times in &temporal.channel_multipliers {
            check_range(MOST_MULTIPLIER, &[("channel_multipliers", times)])?;
        }
        let levels = picture.block_out_channels.len();
        if !(1..=8).contains(&levels) {
            return Err(format!("block_out_channels has {levels} levels, expected 1 to 8"));
        }
        for &width in &picture.block_out_channels {
            check_range(65536, &[("block_out_channels", width)])?;
        }
        let widths = temporal.widths();
        let uneven = |widths: &[usize], groups: usize| widths.iter().any(|width| width % groups != 0);
        if uneven(&widths, temporal.num_groups) || uneven(&picture.block_out_channels, picture.norm_num_groups) {
            return Err("channels are not multiples of the number of groups".into());
        }
        if picture.latent_channels != temporal.in_out_channels {
            return Err(format!(
                "pictures have {} latent channels, and frames {}",
                picture.latent_channels, temporal.in_out_channels
            ));
        }
        let fits = |numbers: &[f64]| numbers.len() == temporal.embed_dim && numbers.iter().all(|n| n.is_finite());
        if !fits(&self.shift) || !fits(&self.scale) || self.scale.contains(&0.0) {
            return Err(format!("shift is {:?} and scale {:?}", self.shift, self.scale));
        }
        Ok(())
    }

    /// Returns the scale of latents.
    pub fn latent_scale(&self) -> LatentScale {
        LatentScale { shift: self.shift.clone(), scale: self.scale.clone() }
    }

    /// Returns the number of frames of each piece that is encoded by itself.
    pub fn pieces(&self, frames: usize) -> Vec<usize> {
        let piece = self.micro_frame_size.unwrap_or(frames).max(1);
        (0..frames).step_by(piece).map(|first| piece.min(frames - first)).collect()
    }

    /// Returns the number of latent frames of `frames` frames: those of the pieces, each rounded up.
    pub fn latent_frames(&self, frames: usize) -> usize {
        let factor = self.vae_temporal.time_factor();
        self.pieces(frames).into_iter().map(|piece| piece.div_ceil(factor)).sum()
    }

    /// Returns the table of parameters: names and shapes, the VAE over pictures first.
    pub fn parameters(&self, picture: &PictureVaeConfig) -> Vec<Parameter> {
        let mut table = ParameterTable::default();
        picture.form().add_to(&mut table);
        TemporalForm::of(&self.vae_temporal).add_to(&mut table);
        table.0
    }
}

impl TemporalConfig {
    /// Returns the channels of each level.
    pub(crate) fn widths(&self) -> Vec<usize> {
        self.channel_multipliers.iter().map(|times| self.filters * times).collect()
    }

    /// Returns the number of frames for each latent frame.
    pub fn time_factor(&self) -> usize {
        1 << self.temporal_downsample.iter().filter(|down| **down).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_products_cannot_hold_are_refused() {
        let check = |change: &dyn Fn(&mut TemporalConfig, &mut PictureVaeConfig)| {
            let mut config = OpenSoraVaeConfig { model_type: KIND.into(), ..OpenSoraVaeConfig::default() };
            let mut picture = PictureVaeConfig::default();
            change(&mut config.vae_temporal, &mut picture);
            config.check(&picture)
        };
        assert_eq!(check(&|_, _| ()), Ok(()));
        for hostile in [0, 65, usize::MAX] {
            assert!(check(&|temporal, _| temporal.channel_multipliers[1] = hostile).is_err(), "{hostile}");
        }
        for hostile in [0, 1 << 17, usize::MAX] {
            assert!(check(&|_, picture| picture.block_out_channels[1] = hostile).is_err(), "{hostile}");
        }
        assert!(check(&|_, picture| picture.block_out_channels = vec![32; 9]).is_err());
        assert!(check(&|_, picture| picture.layers_per_block = 1025).is_err());
        assert!(check(&|temporal, _| temporal.num_res_blocks = 1025).is_err());
    }
}

//! `AutoencoderKLHunyuanVideo`: its configuration and its table of parameters.

use crate::causal::Border;
use crate::kl::{Form, Resample};
use crate::latent::LatentScale;
use camino::Utf8Path;
use failure::Failure;
use serde::Deserialize;
use serde_json::Value;
use weights::ParameterTable;
use weights::encoder_config::{ConfigFile, MOST, MOST_LAYERS, check_class, check_range};
use weights::{EncoderFiles, Parameter};

const CLASS: &str = "AutoencoderKLHunyuanVideo";
const FOLDER: &str = "the vae/ folder of a HunyuanVideo model";

/// The configuration of Hunyuan's VAE. Missing keys have the values of the released model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names and meanings are those of diffusers")]
pub struct HunyuanVaeConfig {
    #[serde(rename = "_class_name")]
    class_name: String,
    pub in_channels: usize,
    pub out_channels: usize,
    pub latent_channels: usize,
    pub block_out_channels: Vec<usize>,
    pub layers_per_block: usize,
    pub norm_num_groups: usize,
    /// The factor by which latents are multiplied before the transformer. The VAE itself never scales.
    pub scaling_factor: f64,
    pub spatial_compression_ratio: usize,
    pub temporal_compression_ratio: usize,
    act_fn: String,
    mid_block_add_attention: bool,
}

impl Default for HunyuanVaeConfig {
    fn default() -> Self {
        Self {
            class_name: String::new(),
            in_channels: 3,
            out_channels: 3,
            latent_channels: 16,
            block_out_channels: vec![128, 256, 512, 512],
            layers_per_block: 2,
            norm_num_groups: 32,
            scaling_factor: 0.476986,
            spatial_compression_ratio: 8,
            temporal_compression_ratio: 4,
            act_fn: "silu".into(),
            mid_block_add_attention: true,
        }
    }
}

impl HunyuanVaeConfig {
    /// Opens a `vae/` folder of diffusers, or a file such as Open-Sora's `hunyuan_vae.safetensors`, which is of the released size.
    ///
    /// # Errors
    /// The folder holds another model or a form that is not supported, or weights are missing or have other shapes.
    pub fn open(path: &Utf8Path) -> Result<(Self, EncoderFiles), Failure> {
        let (json, config) = if path.is_file() {
            (Value::Null, Self::default())
        } else {
            let file = ConfigFile::read(path, FOLDER)?;
            let config: Self = file.parse()?;
            config.check().map_err(|why| file.unsupported(why, &format!("give {FOLDER}")))?;
            (file.json, config)
        };
        let files = EncoderFiles::open(path, &json, &config.parameters(), |_| None, &[])?;
        Ok((config, files))
    }

    fn check(&self) -> Result<(), String> {
        check_class("_class_name", &self.class_name, CLASS)?;
        if !["silu", "swish"].contains(&self.act_fn.as_str()) || !self.mid_block_add_attention {
            return Err("only silu and attention in the middle are supported".into());
        }
        let sizes = [
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
            ("latent_channels", self.latent_channels),
            ("norm_num_groups", self.norm_num_groups),
        ];
        check_range(MOST, &sizes)?;
        check_range(MOST_LAYERS, &[("layers_per_block", self.layers_per_block)])?;
        let (widths, groups) = (&self.block_out_channels, self.norm_num_groups);
        if let Some(width) = widths.iter().find(|&&width| width == 0 || width % groups != 0 || width > 65536) {
            return Err(format!("block_out_channels has {width}, not a multiple of norm_num_groups = {groups}"));
        }
        let levels = widths.len();
        let fits = |ratio: usize| ratio.is_power_of_two() && (ratio.ilog2() as usize) < levels;
        if !(1..=8).contains(&levels)
            || !fits(self.spatial_compression_ratio)
            || !fits(self.temporal_compression_ratio)
            || self.temporal_compression_ratio > self.spatial_compression_ratio
        {
            return Err(format!(
                "{levels} levels cannot compress {} times in space and {} times in time",
                self.spatial_compression_ratio, self.temporal_compression_ratio
            ));
        }
        if !(self.scaling_factor.is_finite() && self.scaling_factor > 0.0) {
            return Err(format!("scaling_factor is {}, expected a number above 0", self.scaling_factor));
        }
        Ok(())
    }

    /// Returns the scale of latents.
    pub fn latent_scale(&self) -> LatentScale {
        LatentScale::of_factor(self.scaling_factor, self.latent_channels)
    }

    /// Returns the number of latent frames of `frames` frames: 4k + 1 frames are k + 1 latent frames, and further frames are ignored.
    pub fn latent_frames(&self, frames: usize) -> usize {
        frames.saturating_sub(1) / self.temporal_compression_ratio + 1
    }

    /// Returns the number of frames that `latent_frames` latent frames decode to.
    pub fn frames(&self, latent_frames: usize) -> usize {
        latent_frames.saturating_sub(1) * self.temporal_compression_ratio + 1
    }

    /// Returns which sizes change after a level, the same in the encoder and the decoder. The last levels but one change frames too.
    fn resample(&self, level: usize) -> Option<Resample> {
        let last = self.block_out_channels.len() - 1;
        let [in_space, in_time] =
            [self.spatial_compression_ratio, self.temporal_compression_ratio].map(|ratio| ratio.ilog2() as usize);
        match (level < last && level < in_space, level < last && level + in_time >= last) {
            (true, true) => Some(Resample::SpaceAndTime),
            (true, false) => Some(Resample::Space),
            _ => None,
        }
    }

    /// Returns whether a level of the encoder halves frames, and rows and columns.
    pub(crate) fn halves(&self, level: usize) -> [bool; 2] {
        let resample = self.resample(level);
        [resample == Some(Resample::SpaceAndTime), resample.is_some()]
    }

    /// Returns the form of the network.
    pub(super) fn form(&self) -> Form {
        Form {
            prefix: "",
            suffix: ".conv",
            kernel_frames: 3,
            border: Border::Copies,
            border_down: Border::Copies,
            channels: [self.in_channels, self.out_channels, self.latent_channels],
            widths: self.block_out_channels.clone(),
            layers: self.layers_per_block,
            groups: self.norm_num_groups,
            resample: (0..self.block_out_channels.len()).map(|level| self.resample(level)).collect(),
        }
    }

    /// Returns the table of parameters: names and shapes, the encoder first.
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut table = ParameterTable::default();
        self.form().add_to(&mut table);
        table.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_without_a_class_is_refused() {
        let config: HunyuanVaeConfig = serde_json::from_str("{}").unwrap();
        assert!(config.check().is_err());
        assert!(HunyuanVaeConfig { class_name: CLASS.into(), ..config }.check().is_ok());
    }

    #[test]
    fn the_table_has_the_names_and_shapes_of_the_released_model() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fixtures/oracle/opensora_encoders/vae_hunyuan/names.json"
        );
        let names: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let published = names["shapes"].as_object().unwrap();
        let table = HunyuanVaeConfig::default().parameters();
        for Parameter { name, shape } in &table {
            assert_eq!(published[name], serde_json::json!(shape), "{name}");
        }
        assert_eq!(table.len(), published.len());
    }
}

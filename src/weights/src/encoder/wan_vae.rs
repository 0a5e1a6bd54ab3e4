//! `AutoencoderKLWan`: its configuration and its table of parameters.

use super::config::{ConfigFile, MOST, MOST_LAYERS, MOST_MULTIPLIER, check_class, check_range};
use super::table::ParameterTable;
use super::{EncoderFiles, Parameter};
use camino::Utf8Path;
use rundir::Failure;
use serde::Deserialize;

pub(super) const CLASS: &str = "AutoencoderKLWan";
const FOLDER: &str = "the vae/ folder of a Wan model";
/// The number of ResNet blocks in the middle of the encoder and of the decoder.
pub const MID_LAYERS: usize = 2;

/// The scale of the latents of Wan 2.1, which its configuration need not have.
const MEAN_2_1: [f64; 16] = [
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517, -0.3632, -0.1922,
    -0.9497, 0.2503, -0.2921,
];
const STD_2_1: [f64; 16] = [
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253,
    2.8251, 1.9160,
];

/// The configuration of Wan's VAE, 2.1 or 2.2 (`is_residual`). Missing keys have the defaults of diffusers, which are those of 2.1.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names and meanings are those of diffusers")]
pub struct WanVaeConfig {
    #[serde(rename = "_class_name")]
    class_name: String,
    pub base_dim: usize,
    pub decoder_base_dim: Option<usize>,
    pub z_dim: usize,
    pub dim_mult: Vec<usize>,
    pub num_res_blocks: usize,
    attn_scales: Vec<f64>,
    #[serde(rename = "temperal_downsample")]
    pub temporal_downsample: Vec<bool>,
    pub is_residual: bool,
    pub in_channels: usize,
    pub out_channels: usize,
    pub patch_size: Option<usize>,
    pub latents_mean: Vec<f64>,
    pub latents_std: Vec<f64>,
}

impl Default for WanVaeConfig {
    fn default() -> Self {
        Self {
            class_name: String::new(),
            base_dim: 96,
            decoder_base_dim: None,
            z_dim: 16,
            dim_mult: vec![1, 2, 4, 4],
            num_res_blocks: 2,
            attn_scales: Vec::new(),
            temporal_downsample: vec![false, true, true],
            is_residual: false,
            in_channels: 3,
            out_channels: 3,
            patch_size: None,
            latents_mean: MEAN_2_1.to_vec(),
            latents_std: STD_2_1.to_vec(),
        }
    }
}

/// The plan of a level of the encoder or the decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelPlan {
    /// The channels before it.
    pub input: usize,
    /// The channels behind it.
    pub output: usize,
    /// The names of the ResNet blocks.
    pub resnets: Vec<String>,
    /// The convolutions that change the size after them, if it changes.
    pub resample: Option<ResamplePlan>,
    /// The change of sizes of the shortcut around the level: frames, and rows and columns.
    pub shortcut: Option<[usize; 2]>,
}

/// The convolutions that change sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResamplePlan {
    /// The name of the layer in the files.
    pub name: String,
    /// Whether it also changes the number of frames.
    pub in_time: bool,
    /// The channels behind it.
    pub output: usize,
}

impl WanVaeConfig {
    /// Opens a `vae/` folder of diffusers: its configuration, and its weights checked against the table.
    ///
    /// # Errors
    /// The folder holds another model or a form that is not supported, or weights are missing or have other shapes.
    pub fn open(folder: &Utf8Path) -> Result<(Self, EncoderFiles), Failure> {
        Self::open_with(&ConfigFile::read(folder, FOLDER)?)
    }

    /// Opens the folder of a configuration, as [`WanVaeConfig::open`].
    ///
    /// # Errors
    /// As [`WanVaeConfig::open`].
    pub fn open_with(file: &ConfigFile) -> Result<(Self, EncoderFiles), Failure> {
        let config: Self = file.parse()?;
        config.check().map_err(|why| file.unsupported(why, &format!("give {FOLDER}")))?;
        let files = EncoderFiles::open(file.folder(), &file.json, &config.parameters(), |_| None, &[])?;
        Ok((config, files))
    }

    fn check(&self) -> Result<(), String> {
        check_class("_class_name", &self.class_name, CLASS)?;
        let sizes = [
            ("base_dim", self.base_dim),
            ("decoder_base_dim", self.decoder_base_dim.unwrap_or(1)),
            ("z_dim", self.z_dim),
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
            ("patch_size", self.patch_size.unwrap_or(1)),
        ];
        check_range(MOST, &sizes)?;
        check_range(MOST_LAYERS, &[("num_res_blocks", self.num_res_blocks)])?;
        if !self.attn_scales.is_empty() {
            return Err("attn_scales is not empty; released models have attention only in the middle".into());
        }
        let (levels, changes) = (self.dim_mult.len(), self.temporal_downsample.len());
        if !(1..=8).contains(&levels) || changes + 1 != levels {
            return Err(format!("dim_mult has {levels} levels and temperal_downsample {changes}"));
        }
        for &times in &self.dim_mult {
            check_range(MOST_MULTIPLIER, &[("dim_mult", times)])?;
        }
        if !self.in_channels.is_multiple_of(self.patch().pow(2))
            || !self.out_channels.is_multiple_of(self.patch().pow(2))
        {
            return Err(format!("patches of {} pixels do not fit {} channels", self.patch(), self.in_channels));
        }
        for (side, levels) in [("encoder", self.encoder()), ("decoder", self.decoder())] {
            for LevelPlan { input, output, shortcut, .. } in &levels {
                let [in_time, in_space] = shortcut.unwrap_or([1, 1]);
                let factor = in_time * in_space * in_space;
                let (few, many) = if side == "encoder" { (output, input) } else { (input, output) };
                if shortcut.is_some() && !(many * factor).is_multiple_of(*few) {
                    return Err(format!("the shortcut of the {side} cannot have {input} and {output} channels"));
                }
            }
        }
        if !self.is_residual && self.decoder().iter().any(|level| level.input == 0) {
            return Err(format!("the decoder cannot halve {} channels", self.base_dim));
        }
        let fits = |numbers: &[f64]| numbers.len() == self.z_dim && numbers.iter().all(|number| number.is_finite());
        if !fits(&self.latents_mean) || !fits(&self.latents_std) || self.latents_std.contains(&0.0) {
            return Err(format!("latents_mean and latents_std have to be {} numbers", self.z_dim));
        }
        Ok(())
    }

    /// Returns the number of rows and columns of pixels that are one pixel of the network.
    pub fn patch(&self) -> usize {
        self.patch_size.unwrap_or(1)
    }

    /// Returns the number of channels of a video to encode.
    pub fn video_channels(&self) -> usize {
        self.in_channels / self.patch().pow(2)
    }

    /// Returns the number of pixels along one side of a latent pixel: 8, or 16 for 2.2.
    pub fn spatial_factor(&self) -> usize {
        self.patch() << (self.dim_mult.len() - 1)
    }

    /// Returns the number of frames of a latent frame after the first: 4.
    pub fn temporal_factor(&self) -> usize {
        1 << self.temporal_downsample.iter().filter(|down| **down).count()
    }

    /// Returns the number of latent frames of `frames` frames. 4k + 1 frames are k + 1 latent frames, and further frames are ignored.
    pub fn latent_frames(&self, frames: usize) -> usize {
        frames.saturating_sub(1) / self.temporal_factor() + 1
    }

    /// Returns the number of frames that `latent_frames` latent frames decode to.
    pub fn frames(&self, latent_frames: usize) -> usize {
        latent_frames.saturating_sub(1) * self.temporal_factor() + 1
    }

    /// Returns the levels of the encoder.
    pub fn encoder(&self) -> Vec<LevelPlan> {
        let last = self.dim_mult.len() - 1;
        let mut number = 0;
        let mut input = self.base_dim;
        let level = |(level, times): (usize, &usize)| {
            let output = self.base_dim * times;
            let in_time = level < last && self.temporal_downsample[level];
            // In 2.1, the blocks of all levels are one list.
            let mut next = |of_level: String| {
                let name = if self.is_residual { format!("{level}.{of_level}") } else { number.to_string() };
                number += 1;
                format!("encoder.down_blocks.{name}")
            };
            let resnets = (0..self.num_res_blocks).map(|layer| next(format!("resnets.{layer}"))).collect();
            let resample = (level < last).then(|| ResamplePlan { name: next("downsampler".into()), in_time, output });
            let shortcut = self.is_residual.then(|| [1 + usize::from(in_time), if level < last { 2 } else { 1 }]);
            let plan = LevelPlan { input, output, resnets, resample, shortcut };
            input = output;
            plan
        };
        self.dim_mult.iter().enumerate().map(level).collect()
    }

    /// Returns the levels of the decoder.
    pub fn decoder(&self) -> Vec<LevelPlan> {
        let (base, last) = (self.decoder_base_dim.unwrap_or(self.base_dim), self.dim_mult.len() - 1);
        let mut input = base * self.dim_mult[last];
        let level = |(level, times): (usize, &usize)| {
            let output = base * times;
            let in_time = level < last && self.temporal_downsample[last - 1 - level];
            let name = format!("decoder.up_blocks.{level}");
            let resnets = (0..=self.num_res_blocks).map(|layer| format!("{name}.resnets.{layer}")).collect();
            // In 2.1, the convolution that enlarges frames halves the channels.
            let (part, behind) = if self.is_residual { ("upsampler", output) } else { ("upsamplers.0", output / 2) };
            let resample =
                (level < last).then(|| ResamplePlan { name: format!("{name}.{part}"), in_time, output: behind });
            let shortcut = (self.is_residual && level < last).then(|| [1 + usize::from(in_time), 2]);
            let plan = LevelPlan { input, output, resnets, resample, shortcut };
            input = behind;
            plan
        };
        self.dim_mult.iter().rev().enumerate().map(level).collect()
    }

    /// Returns the table of parameters: names and shapes, the encoder first.
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut table = ParameterTable::default();
        let (encoder, decoder) = (self.encoder(), self.decoder());
        let (smallest, largest) = (encoder[encoder.len() - 1].output, decoder[decoder.len() - 1].output);
        table.affine("encoder.conv_in", [self.base_dim, self.in_channels, 3, 3, 3]);
        levels(&mut table, &encoder, 1);
        middle(&mut table, "encoder.mid_block", smallest);
        table.tensor("encoder.norm_out.gamma", [smallest, 1, 1, 1]);
        table.affine("encoder.conv_out", [2 * self.z_dim, smallest, 3, 3, 3]);
        table.affine("quant_conv", [2 * self.z_dim, 2 * self.z_dim, 1, 1, 1]);
        table.affine("post_quant_conv", [self.z_dim, self.z_dim, 1, 1, 1]);
        let smallest = decoder[0].input;
        table.affine("decoder.conv_in", [smallest, self.z_dim, 3, 3, 3]);
        middle(&mut table, "decoder.mid_block", smallest);
        levels(&mut table, &decoder, 2);
        table.tensor("decoder.norm_out.gamma", [largest, 1, 1, 1]);
        table.affine("decoder.conv_out", [self.out_channels, largest, 3, 3, 3]);
        table.0
    }
}

fn resnet(table: &mut ParameterTable, name: &str, input: usize, output: usize) {
    table.tensor(format!("{name}.norm1.gamma"), [input, 1, 1, 1]);
    table.affine(&format!("{name}.conv1"), [output, input, 3, 3, 3]);
    table.tensor(format!("{name}.norm2.gamma"), [output, 1, 1, 1]);
    table.affine(&format!("{name}.conv2"), [output, output, 3, 3, 3]);
    if input != output {
        table.affine(&format!("{name}.conv_shortcut"), [output, input, 1, 1, 1]);
    }
}

/// Adds levels. `frames` is the number of frames that the convolution over time makes of one: 1 in the encoder, 2 in the decoder.
fn levels(table: &mut ParameterTable, levels: &[LevelPlan], frames: usize) {
    for level in levels {
        let mut input = level.input;
        for name in &level.resnets {
            resnet(table, name, input, level.output);
            input = level.output;
        }
        if let Some(resample) = &level.resample {
            table.affine(&format!("{}.resample.1", resample.name), [resample.output, input, 3, 3]);
            if resample.in_time {
                table.affine(&format!("{}.time_conv", resample.name), [frames * input, input, 3, 1, 1]);
            }
        }
    }
}

fn middle(table: &mut ParameterTable, name: &str, width: usize) {
    for layer in 0..MID_LAYERS {
        resnet(table, &format!("{name}.resnets.{layer}"), width, width);
    }
    table.tensor(format!("{name}.attentions.0.norm.gamma"), [width, 1, 1]);
    table.affine(&format!("{name}.attentions.0.to_qkv"), [3 * width, width, 1, 1]);
    table.affine(&format!("{name}.attentions.0.proj"), [width, width, 1, 1]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_products_cannot_hold_are_refused() {
        let config = |change: &dyn Fn(&mut WanVaeConfig)| {
            let mut config = WanVaeConfig { class_name: CLASS.into(), ..WanVaeConfig::default() };
            change(&mut config);
            config.check()
        };
        assert_eq!(config(&|_| ()), Ok(()));
        assert!(config(&|config| config.class_name.clear()).is_err());
        for hostile in [0, 65, usize::MAX] {
            assert!(config(&|config| config.dim_mult[2] = hostile).is_err(), "{hostile}");
        }
        assert!(config(&|config| config.base_dim = usize::MAX).is_err());
        assert!(config(&|config| config.num_res_blocks = 1025).is_err());
    }
}

//! The VAE of CogVideoX (`AutoencoderKLCogVideoX`): its configuration, its table of parameters, and its windows of frames.

use super::config::{ConfigFile, MOST_LAYERS, check_range};
use super::{EncoderFiles, Parameter};
use camino::Utf8Path;
use rundir::Failure;
use serde::Deserialize;
use serde_json::Value;

const CLASS: &str = "AutoencoderKLCogVideoX";
pub(super) const FOLDER: &str = "the vae/ folder of a CogVideoX model";
const DOWN: &str = "CogVideoXDownBlock3D";
const UP: &str = "CogVideoXUpBlock3D";
/// The number of frames in a window of the encoder. In diffusers, this is a constant that does not depend on the temporal
/// compression.
const ENCODE_WINDOW: usize = 8;
/// The number of latent frames in a window of the decoder.
const DECODE_WINDOW: usize = 2;
/// The number of ResNet blocks in the middle of the encoder and of the decoder.
const MID_LAYERS: usize = 2;

/// The configuration of an `AutoencoderKLCogVideoX`. Missing keys have the defaults of diffusers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names and meanings are those of diffusers")]
pub struct VaeConfig {
    #[serde(rename = "_class_name")]
    pub class_name: String,
    pub in_channels: usize,
    pub out_channels: usize,
    pub down_block_types: Vec<String>,
    pub up_block_types: Vec<String>,
    pub block_out_channels: Vec<usize>,
    pub latent_channels: usize,
    pub layers_per_block: usize,
    pub act_fn: String,
    pub norm_eps: f64,
    pub norm_num_groups: usize,
    pub temporal_compression_ratio: f64,
    pub sample_height: usize,
    pub sample_width: usize,
    /// The factor by which latents are multiplied before the transformer. The VAE itself never scales.
    pub scaling_factor: f64,
    /// Whether image latents are divided by `scaling_factor`, while other latents are multiplied by it.
    pub invert_scale_latents: bool,
    shift_factor: Value,
    latents_mean: Value,
    latents_std: Value,
    use_quant_conv: bool,
    use_post_quant_conv: bool,
}

impl Default for VaeConfig {
    fn default() -> Self {
        Self {
            class_name: String::new(),
            in_channels: 3,
            out_channels: 3,
            down_block_types: vec![DOWN.into(); 4],
            up_block_types: vec![UP.into(); 4],
            block_out_channels: vec![128, 256, 256, 512],
            latent_channels: 16,
            layers_per_block: 3,
            act_fn: "silu".into(),
            norm_eps: 1e-6,
            norm_num_groups: 32,
            temporal_compression_ratio: 4.0,
            sample_height: 480,
            sample_width: 720,
            scaling_factor: 1.15258426,
            invert_scale_latents: false,
            shift_factor: Value::Null,
            latents_mean: Value::Null,
            latents_std: Value::Null,
            use_quant_conv: false,
            use_post_quant_conv: false,
        }
    }
}

/// A window of frames: the range of its frames. Windows are computed one after another.
pub type Window = std::ops::Range<usize>;

/// Splits `frames` frames into as many windows of `window` frames as fit. The first window also contains the remainder.
pub fn windows(frames: usize, window: usize) -> Vec<Window> {
    let rest = frames % window;
    let count = (frames / window).max(1);
    (0..count).map(|k| (if k == 0 { 0 } else { k * window + rest })..((k + 1) * window + rest).min(frames)).collect()
}

impl VaeConfig {
    /// Reads and checks the `config.json` of a `vae/` folder.
    ///
    /// # Errors
    /// The file is missing or not valid, or describes another model or a form that is not supported.
    pub fn read(folder: &Utf8Path) -> Result<Self, Failure> {
        Self::of(&ConfigFile::read(folder, FOLDER)?)
    }

    fn of(file: &ConfigFile) -> Result<Self, Failure> {
        let config: Self = file.parse()?;
        config.check().map_err(|why| match config.class_name.as_str() {
            CLASS => file.unsupported(why, "use the VAE of a released CogVideoX model"),
            _ => file.unsupported(why, &format!("give {FOLDER}")),
        })?;
        Ok(config)
    }

    /// Opens a `vae/` folder: its configuration, and its weights checked against the table.
    ///
    /// # Errors
    /// As [`VaeConfig::read`]; or weights are missing or have other shapes.
    pub fn open(folder: &Utf8Path) -> Result<(Self, EncoderFiles), Failure> {
        Self::open_with(&ConfigFile::read(folder, FOLDER)?)
    }

    /// Opens the folder of a configuration, as [`VaeConfig::open`].
    ///
    /// # Errors
    /// As [`VaeConfig::open`].
    pub fn open_with(file: &ConfigFile) -> Result<(Self, EncoderFiles), Failure> {
        let config = Self::of(file)?;
        let files = EncoderFiles::open(file.folder(), &file.json, &config.parameters(), |_| None, &[])?;
        Ok((config, files))
    }

    /// Returns the first value that is not supported.
    fn check(&self) -> Result<(), String> {
        if self.class_name != CLASS {
            return Err(match self.class_name.as_str() {
                "" => "_class_name is missing".into(),
                other => format!("it configures a {other}, expected {CLASS}"),
            });
        }
        let levels = self.block_out_channels.len();
        if levels == 0 || levels > 8 {
            return Err(format!("block_out_channels has {levels} levels, expected 1 to 8"));
        }
        for (key, types, known) in
            [("down_block_types", &self.down_block_types, DOWN), ("up_block_types", &self.up_block_types, UP)]
        {
            if types.len() != levels {
                return Err(format!("{key} has {} blocks, and block_out_channels has {levels}", types.len()));
            }
            if let Some(other) = types.iter().find(|kind| *kind != known) {
                return Err(format!("{key} has a block {other}; only {known} is supported"));
            }
        }
        if !["silu", "swish"].contains(&self.act_fn.as_str()) {
            return Err(format!("act_fn is {}; only silu is supported", self.act_fn));
        }
        for (key, used) in [("use_quant_conv", self.use_quant_conv), ("use_post_quant_conv", self.use_post_quant_conv)]
        {
            if used {
                return Err(format!("{key} is true; released models do not have that layer, and it is not supported"));
            }
        }
        for (key, value) in [
            ("shift_factor", &self.shift_factor),
            ("latents_mean", &self.latents_mean),
            ("latents_std", &self.latents_std),
        ] {
            if !value.is_null() {
                return Err(format!("{key} is {value}; only null is supported"));
            }
        }
        let sizes = [
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
            ("latent_channels", self.latent_channels),
            ("norm_num_groups", self.norm_num_groups),
        ];
        check_range(65536, &sizes)?;
        check_range(MOST_LAYERS, &[("layers_per_block", self.layers_per_block)])?;
        let groups = self.norm_num_groups;
        if let Some(width) =
            self.block_out_channels.iter().find(|&&width| width == 0 || width % groups != 0 || width > 65536)
        {
            return Err(format!(
                "block_out_channels has {width}, which is not a multiple of norm_num_groups = {groups}"
            ));
        }
        let ratio = self.temporal_compression_ratio;
        if ![1.0, 2.0, 4.0].contains(&ratio) || ratio as usize > 1 << (levels - 1) {
            return Err(format!("temporal_compression_ratio is {ratio} with {levels} levels, expected 4"));
        }
        if !(self.scaling_factor.is_finite() && self.scaling_factor > 0.0) {
            return Err(format!("scaling_factor is {}, expected a number above 0", self.scaling_factor));
        }
        Ok(())
    }

    /// Returns the number of pixels along one side of a latent pixel: 8.
    pub fn spatial_factor(&self) -> usize {
        1 << (self.block_out_channels.len() - 1)
    }

    /// Returns the number of levels that halve the number of frames.
    pub fn temporal_levels(&self) -> usize {
        (self.temporal_compression_ratio as usize).ilog2() as usize
    }

    /// Returns the windows of the encoder over frames.
    pub fn encode_windows(&self, frames: usize) -> Vec<Window> {
        windows(frames, ENCODE_WINDOW)
    }

    /// Returns the windows of the decoder over latent frames.
    pub fn decode_windows(&self, frames: usize) -> Vec<Window> {
        windows(frames, DECODE_WINDOW)
    }

    /// Returns the number of latent frames of `frames` frames.
    pub fn latent_frames(&self, frames: usize) -> usize {
        // Each level averages pairs; an odd count keeps its first frame.
        let halve = |n: usize| n / 2 + n % 2;
        let of_window = |window: Window| (0..self.temporal_levels()).fold(window.len(), |n, _| halve(n));
        self.encode_windows(frames).into_iter().map(of_window).sum()
    }

    /// Returns the number of frames that `latent_frames` latent frames decode to.
    pub fn frames(&self, latent_frames: usize) -> usize {
        let double = |n: usize| if n == 1 { 1 } else { 2 * n - n % 2 };
        let of_window = |window: Window| (0..self.temporal_levels()).fold(window.len(), |n, _| double(n));
        self.decode_windows(latent_frames).into_iter().map(of_window).sum()
    }

    /// Returns the table of parameters: names and shapes, the encoder first.
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut table = Table(Vec::new());
        let (widths, latent, layers) = (&self.block_out_channels, self.latent_channels, self.layers_per_block);
        let (first, last) = (widths[0], *widths.last().expect("check() requires a level"));
        table.conv3d("encoder.conv_in.conv", self.in_channels, first);
        let mut input = first;
        for (level, &width) in widths.iter().enumerate() {
            for layer in 0..layers {
                let name = format!("encoder.down_blocks.{level}.resnets.{layer}");
                table.resnet(&name, if layer == 0 { input } else { width }, width, None);
            }
            if level + 1 < widths.len() {
                table.conv2d(&format!("encoder.down_blocks.{level}.downsamplers.0.conv"), width);
            }
            input = width;
        }
        for layer in 0..MID_LAYERS {
            table.resnet(&format!("encoder.mid_block.resnets.{layer}"), last, last, None);
        }
        table.vector("encoder.norm_out", last);
        table.conv3d("encoder.conv_out.conv", last, 2 * latent);

        table.conv3d("decoder.conv_in.conv", latent, last);
        for layer in 0..MID_LAYERS {
            table.resnet(&format!("decoder.mid_block.resnets.{layer}"), last, last, Some(latent));
        }
        let mut input = last;
        for (level, &width) in widths.iter().rev().enumerate() {
            // The decoder has one more layer per level than the encoder.
            for layer in 0..=layers {
                let name = format!("decoder.up_blocks.{level}.resnets.{layer}");
                table.resnet(&name, if layer == 0 { input } else { width }, width, Some(latent));
            }
            if level + 1 < widths.len() {
                table.conv2d(&format!("decoder.up_blocks.{level}.upsamplers.0.conv"), width);
            }
            input = width;
        }
        table.spatial_norm("decoder.norm_out", first, latent);
        table.conv3d("decoder.conv_out.conv", first, self.out_channels);
        table.0
    }
}

/// Collects the table of parameters.
struct Table(Vec<Parameter>);

impl Table {
    fn vector(&mut self, name: &str, width: usize) {
        self.0.push(Parameter::new(format!("{name}.weight"), [width]));
        self.0.push(Parameter::new(format!("{name}.bias"), [width]));
    }

    fn conv(&mut self, name: &str, input: usize, output: usize, kernel: &[usize]) {
        self.0.push(Parameter::new(format!("{name}.weight"), [&[output, input], kernel].concat()));
        self.0.push(Parameter::new(format!("{name}.bias"), [output]));
    }

    fn conv3d(&mut self, name: &str, input: usize, output: usize) {
        self.conv(name, input, output, &[3, 3, 3]);
    }

    fn conv2d(&mut self, name: &str, width: usize) {
        self.conv(name, width, width, &[3, 3]);
    }

    fn spatial_norm(&mut self, name: &str, width: usize, latent: usize) {
        self.vector(&format!("{name}.norm_layer"), width);
        self.conv(&format!("{name}.conv_y.conv"), latent, width, &[1, 1, 1]);
        self.conv(&format!("{name}.conv_b.conv"), latent, width, &[1, 1, 1]);
    }

    /// Adds a ResNet block. `latent` is the number of latent channels that the norms of the decoder depend on.
    fn resnet(&mut self, name: &str, input: usize, output: usize, latent: Option<usize>) {
        for (n, from, to) in [(1, input, output), (2, output, output)] {
            match latent {
                Some(latent) => self.spatial_norm(&format!("{name}.norm{n}"), from, latent),
                None => self.vector(&format!("{name}.norm{n}"), from),
            }
            self.conv3d(&format!("{name}.conv{n}.conv"), from, to);
        }
        if input != output {
            self.conv(&format!("{name}.conv_shortcut"), input, output, &[1, 1, 1]);
        }
    }
}

//! `cargo xtask decode`: decodes a demo latent to a picture.

use camino::Utf8Path;

use crate::failure::{Failure, Result};
use crate::fixtures::clip;
use crate::fixtures::tensor_file::TensorFile;
use crate::fixtures::transform::{BLOCK_FRAMES, CHANNELS, Latent, decode};

/// Runs the command `decode LATENT OUT`: writes a picture with a tile for each latent frame.
pub fn run(args: &[String]) -> Result<()> {
    let [from, to] = args else {
        let why = format!("2 paths are needed, {} were given", args.len());
        return Err(Failure::request("cannot decode", why, "usage: cargo xtask decode LATENT.safetensors OUT.png"));
    };
    let file = TensorFile::read(Utf8Path::new(from), "latent")?;
    let [t, c, h, w] = file.shape[..] else {
        let why = format!("it has the shape {:?}", file.shape);
        return Err(Failure::request(format!("cannot decode {from}"), why, "give a latent shaped [T, C, H, W]"));
    };
    if t == 0 || c != CHANNELS.len() || h == 0 || w == 0 {
        let why =
            format!("it has {t} frames of {c} channels, {h} × {w}; the transform has {} channels", CHANNELS.len());
        return Err(Failure::request(format!("cannot decode {from}"), why, "give a latent of the demo"));
    }
    let frames = decode(&Latent { shape: [t, c, h, w], values: file.values });
    clip::write_strip(&frames, BLOCK_FRAMES, 5, Utf8Path::new(to))?;
    println!("{to}: {t} frames of {} × {}", frames.width, frames.height);
    Ok(())
}

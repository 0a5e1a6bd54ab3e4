//! `cargo xtask fixtures`: makes latents and texts for tests from the demo's clip, and with `--encoders` the encoders of the demo.
//!
//! The tests train on a real clip without encoders: a fixed transform replaces the VAE ([`transform`]), and seeded word
//! vectors replace T5 ([`captions`]). The demo has encoders, which `fixtures/encoders.py` trained.

pub mod captions;
pub mod clip;
pub mod tensor_file;
pub mod transform;

use std::collections::BTreeMap;
use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::json;

use crate::bench::python::environment_with_text;
use crate::failure::{Failure, Result};
use crate::process::{command, run as run_command};
use crate::workspace::root;
use captions::TEXT_DIM;
use tensor_file::TensorFile;
use transform::{CHANNELS, Frames};

/// A dataset of the demo: windows at equal distances in the clip.
struct Dataset {
    name: &'static str,
    frames: usize,
    windows: usize,
    /// Segments of a window; each has its own text.
    segments: usize,
    /// Tokens of a text. A sequence must be a multiple of a TTT layer's mini-batch.
    text_len: usize,
}

/// Frames from the start of a segment to the start of the next; adjacent segments share one frame.
const SEGMENT: usize = 48;

const DATASETS: [Dataset; 2] = [
    Dataset { name: "2s", frames: 49, windows: 24, segments: 1, text_len: 16 },
    Dataset { name: "4s", frames: 97, windows: 12, segments: 2, text_len: 40 },
];

/// Runs the command: `fixtures [--clip VIDEO | --encoders]`. With a video, first cuts the demo's clip from it. With `--encoders`,
/// only trains the encoders of the demo.
pub fn run(args: &[String]) -> Result<()> {
    let demo = demo_dir();
    match args {
        [] => {}
        [flag] if flag == "--encoders" => return encoders(&demo),
        [flag, video] if flag == "--clip" => clip::cut(Utf8Path::new(video), &demo.join("bunny.mp4"))?,
        _ => {
            let given = args.join(" ");
            let usage = "usage: cargo xtask fixtures [--clip VIDEO | --encoders]";
            return Err(Failure::request("cannot make fixtures", given, usage));
        }
    }
    let frames = clip::read(&demo.join("bunny.mp4"))?;
    let write = |path: &Utf8Path, bytes: &[u8]| {
        fs::write(path, bytes).map_err(|e| Failure::new(format!("cannot write {path}"), e, "check the permissions"))
    };
    for folder in ["latents", "text"] {
        let folder = demo.join(folder);
        let replaced = if folder.exists() { fs::remove_dir_all(&folder) } else { Ok(()) };
        let made = replaced.and_then(|()| fs::create_dir(&folder));
        made.map_err(|e| Failure::new(format!("cannot replace {folder}"), e, "check the permissions"))?;
    }
    let (mut files, mut bytes) = (0, 0);
    for (name, content) in text_files(frames.pixels.len()).into_iter().chain(latent_files(&frames)) {
        write(&demo.join(name), &content)?;
        (files, bytes) = (files + 1, bytes + content.len());
    }
    println!("{files} files, {:.1} MB, from {} frames, in {demo}", bytes as f64 / 1e6, frames.pixels.len());
    println!("peak signal-to-noise ratio of the decoded clip: {:.1} dB", psnr(&frames));
    println!("mean square of the latents: {:.3} (should be near 1)", mean_square(&frames));
    Ok(())
}

/// Trains the demo's VAE, and writes its text encoder and tokenizer.
fn encoders(demo: &Utf8Path) -> Result<()> {
    let python = environment_with_text()?.join("python");
    let program = root().join("src/xtask/src/fixtures/encoders.py");
    let (clip, model) = (demo.join("bunny.mp4"), demo.join("model"));
    let mut train = command(python, [program.as_str(), clip.as_str(), model.as_str()]);
    run_command(&mut train, "see the message above; ffmpeg is needed")
}

fn demo_dir() -> Utf8PathBuf {
    root().join("assets/demo")
}

impl Dataset {
    /// Returns the first frame of each window.
    fn starts(&self, clip_frames: usize) -> impl Iterator<Item = usize> + use<> {
        let (last, gaps) = (clip_frames - self.frames, self.windows - 1);
        (0..self.windows).map(move |i| i * last / gaps)
    }

    fn latent_name(&self, start: usize) -> String {
        format!("latents/{}-{start:03}.safetensors", self.name)
    }
}

/// Returns the index of each dataset and the texts.
fn text_files(clip_frames: usize) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for dataset in &DATASETS {
        let mut index = String::new();
        for start in dataset.starts(clip_frames) {
            let mut names = Vec::new();
            for segment in 0..dataset.segments {
                let begin = start + segment * SEGMENT;
                let caption = captions::caption(begin, begin + SEGMENT + 1);
                // Segments with the same caption share a text.
                let name = format!("text/{}-{}.safetensors", caption.replace(' ', "-"), dataset.text_len);
                let text = TensorFile {
                    name: "text".into(),
                    shape: vec![dataset.text_len, TEXT_DIM],
                    values: captions::embed(&caption, dataset.text_len),
                    metadata: vec![("caption".into(), caption)],
                };
                files.insert(name.clone(), text.to_bytes());
                names.push(name);
            }
            let caption = captions::caption(start, start + dataset.frames);
            let line = json!({ "caption": caption, "text_chunk_emb": names, "vid_emb": dataset.latent_name(start) });
            index += &format!("{line}\n");
        }
        files.insert(format!("{}.jsonl", dataset.name), index.into_bytes());
    }
    files
}

/// Returns the latents.
fn latent_files(clip: &Frames) -> BTreeMap<String, Vec<u8>> {
    let windows = DATASETS.iter().flat_map(|d| d.starts(clip.pixels.len()).map(move |start| (d, start)));
    windows.map(|(d, start)| (d.latent_name(start), latent_file(clip, start, d.frames).to_bytes())).collect()
}

fn latent_file(clip: &Frames, start: usize, frames: usize) -> TensorFile {
    let latent = transform::encode(&window(clip, start, frames));
    let list = |number: fn(&transform::Channel) -> f64| json!(CHANNELS.each_ref().map(number)).to_string();
    let coefficients = CHANNELS.each_ref().map(|c| (c.colour, c.freq_tyx));
    TensorFile {
        name: "latent".into(),
        shape: latent.shape.to_vec(),
        values: latent.values,
        metadata: vec![
            ("channels".into(), json!(coefficients).to_string()),
            ("clip".into(), "bunny.mp4, (c) 2008 Blender Foundation, www.bigbuckbunny.org, CC BY 3.0".into()),
            ("first_frame".into(), start.to_string()),
            ("mean".into(), list(|c| c.mean)),
            ("spread".into(), list(|c| c.spread)),
            (
                "transform".into(),
                "orthonormal DCT-II of 4 frames x 8 x 8 pixels; channels are [colour, [t, y, x]]".into(),
            ),
        ],
    }
}

fn window(clip: &Frames, start: usize, frames: usize) -> Frames {
    Frames { pixels: clip.pixels[start..start + frames].to_vec(), ..*clip }
}

/// Returns the peak signal-to-noise ratio of the decoded clip, in decibels.
fn psnr(clip: &Frames) -> f64 {
    let kept = clip.pixels.len() - (clip.pixels.len() - 1) % transform::BLOCK_FRAMES;
    let clip = window(clip, 0, kept);
    let decoded = transform::decode(&transform::encode(&clip));
    let pairs = clip.pixels.iter().flatten().zip(decoded.pixels.iter().flatten());
    let squares: f64 = pairs.map(|(a, b)| f64::from(a - b.clamp(-1.0, 1.0)).powi(2)).sum();
    let mean = squares / (kept * clip.width * clip.height * 3) as f64;
    10.0 * (4.0 / mean).log10()
}

/// Returns the mean square of the latents, which the scales of the channels bring close to one.
fn mean_square(clip: &Frames) -> f64 {
    let kept = clip.pixels.len() - (clip.pixels.len() - 1) % transform::BLOCK_FRAMES;
    let values = transform::encode(&window(clip, 0, kept)).values;
    values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::works;

    /// The number of frames in the demo clip.
    const CLIP_FRAMES: usize = 132;

    #[test]
    fn the_texts_and_indices_in_the_repository_are_up_to_date() {
        let files = text_files(CLIP_FRAMES);
        for (name, content) in &files {
            assert_eq!(fs::read(demo_dir().join(name)).unwrap(), *content, "{name}; run `cargo xtask fixtures`");
        }
        let latents = DATASETS.iter().flat_map(|d| d.starts(CLIP_FRAMES).map(|start| d.latent_name(start)));
        let expected: Vec<String> = files.into_keys().filter(|name| name.contains('/')).chain(latents).collect();
        let there = ["latents", "text"].map(|folder| demo_dir().join(folder).read_dir_utf8().unwrap().count());
        assert_eq!(there.iter().sum::<usize>(), expected.len(), "some files are in no index");
    }

    #[test]
    fn the_latents_in_the_repository_are_those_of_the_clip() {
        if !works("ffmpeg", &["-version"]) {
            println!("skipped: ffmpeg is not installed; it reads the demo clip");
            return;
        }
        let clip = clip::read(&demo_dir().join("bunny.mp4")).unwrap();
        assert_eq!(clip.pixels.len(), CLIP_FRAMES);
        for dataset in &DATASETS {
            for start in dataset.starts(CLIP_FRAMES) {
                let path = demo_dir().join(dataset.latent_name(start));
                let (stored, made) =
                    (TensorFile::read(&path, "latent").unwrap(), latent_file(&clip, start, dataset.frames));
                assert_eq!((&stored.shape, &stored.metadata), (&made.shape, &made.metadata), "{path}");
                assert_eq!(stored.shape, [dataset.frames / 4 + 1, 16, 12, 16]);
                // Another ffmpeg may round a pixel differently, which moves a latent by up to 0.03.
                let far = stored.values.iter().zip(&made.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(far < 0.1, "{path} differs by {far}; run `cargo xtask fixtures`");
            }
        }
        let (decibels, square) = (psnr(&clip), mean_square(&clip));
        assert!(decibels > 25.0, "the decoded clip has {decibels} dB");
        assert!((0.9..1.1).contains(&square), "the mean square of the latents is {square}");
    }
}

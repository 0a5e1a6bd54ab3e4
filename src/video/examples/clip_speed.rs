//! Measures probing and decoding for `cargo xtask bench video`. Prints one JSON object.
//!
//! usage: `clip_speed probe|list FOLDER WORKERS` or `clip_speed decode CLIP FRAMES FPS WIDTH HEIGHT PASSES`

#![expect(clippy::unwrap_used, reason = "a program for measurements")]

use std::time::Instant;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use video::{FrameChoice, FrameMode, Order, Picture, Pool, PoolOptions, Programs, choose};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| args[index].parse::<usize>().unwrap();
    let printed = match args[0].as_str() {
        "decode" => {
            let choice = FrameChoice {
                mode: FrameMode::TimeFps,
                frames: number(2),
                fps: Some(args[3].parse().unwrap()),
                stride: 1,
                seed: 0,
            };
            decode(args[1].as_str().into(), &choice, &Picture::new(number(4), number(5)), number(6))
        }
        what => probe(args[1].as_str().into(), number(2), what == "list"),
    };
    println!("{printed}");
}

/// Probes all files of a folder; `list` lists their frames too.
fn probe(folder: &Utf8Path, workers: usize, list: bool) -> Value {
    let mut files: Vec<Utf8PathBuf> = folder.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()).collect();
    files.sort();
    let began = Instant::now();
    let options = PoolOptions { workers, order: Order::AsReady };
    let pool = Pool::start(&Programs::default(), options, files, move |programs, path: &Utf8PathBuf| {
        if list {
            let source = programs.open(path)?;
            return Ok((source.probe.duration_s, source.times().len()));
        }
        programs.probe(path).map(|probe| (probe.duration_s, 0))
    });
    let found: Vec<(f64, usize)> = pool.map(|(_, result)| result.unwrap()).collect();
    json!({
        "s": began.elapsed().as_secs_f64(),
        "clips": found.len(),
        "hours": found.iter().map(|(s, _)| s).sum::<f64>() / 3600.0,
        "frames": found.iter().map(|(_, frames)| frames).sum::<usize>(),
    })
}

/// Decodes frames of a clip several times; the first pass is a warm-up.
fn decode(path: &Utf8Path, choice: &FrameChoice, picture: &Picture, passes: usize) -> Value {
    let programs = Programs::default();
    let mut seconds = Vec::new();
    let mut mean = 0.0;
    for _ in 0..passes {
        let began = Instant::now();
        let source = programs.open(path).unwrap();
        let times = choose(&source.times(), choice).unwrap();
        let frames = programs.decode(&source, &times, picture).unwrap();
        // A tensor owns its memory.
        let tensor = frames.rgb.clone();
        seconds.push(began.elapsed().as_secs_f64());
        mean = tensor.iter().map(|&byte| f64::from(byte)).sum::<f64>() / tensor.len() as f64;
    }
    json!({ "s": &seconds[1..], "mean": mean })
}

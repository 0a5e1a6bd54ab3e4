//! Measures the speed of decoding for `cargo xtask bench video`. Prints one JSON object.
//!
//! usage: `clip_speed CLIP FRAMES FPS WIDTH HEIGHT PASSES`

#![expect(clippy::unwrap_used, reason = "a program for measurements")]

use std::time::Instant;

use camino::Utf8Path;
use serde_json::{Value, json};
use video::{FrameChoice, FrameMode, Picture, Programs, choose};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| args[index].parse::<usize>().unwrap();
    let choice = FrameChoice {
        mode: FrameMode::TimeFps,
        frames: number(1),
        fps: Some(args[2].parse().unwrap()),
        stride: 1,
        seed: 0,
    };
    println!("{}", decode(args[0].as_str().into(), &choice, &Picture::new(number(3), number(4)), number(5)));
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
        // Copy the pixels, as a tensor that owns its memory does.
        let tensor = frames.rgb.clone();
        seconds.push(began.elapsed().as_secs_f64());
        mean = tensor.iter().map(|&byte| f64::from(byte)).sum::<f64>() / tensor.len() as f64;
    }
    json!({ "s": &seconds[1..], "mean": mean })
}

//! Measures how a store with a million clips is opened. `cargo xtask bench data` runs this test.

use super::tests::spec;
use super::*;
use camino::{Utf8Path, Utf8PathBuf};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Instant;
use weights::{Dtype, NewTensorFile, TensorToWrite};

/// The number of clips in a shard, as for latents of 49 frames of 480×720.
const PER_SHARD: usize = 450;

/// Writes shards in which each tensor has two elements.
fn write_shards(data: &Utf8Path, kind: &str, clips: usize, shape: &[usize], name: &dyn Fn(usize) -> String) {
    for first in (0..clips).step_by(PER_SHARD) {
        let last = clips.min(first + PER_SHARD);
        let mut file = NewTensorFile::new(format!("{kind}-{:05}.safetensors", first / PER_SHARD));
        file.tensors = (first..last).map(|n| TensorToWrite::zeros(&name(n), shape, Dtype::BF16)).collect();
        let mut out = BufWriter::new(File::create(data.join(&file.name)).unwrap());
        out.write_all(&file.header()).unwrap();
        out.write_all(&vec![0; (last - first) * 4]).unwrap();
        out.flush().unwrap();
    }
}

fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

#[test]
#[ignore = "takes a minute and 1 GB of disk; run by cargo xtask bench data"]
fn a_million_clips_are_opened_in_seconds() {
    let clips: usize = std::env::var("VIDTUI_BENCH_CLIPS").map_or(1_000_000, |clips| clips.parse().unwrap());
    let keep = tempfile::tempdir().unwrap();
    let data = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
    let mut spec = spec();
    (spec.text.len, spec.text.dim) = (1, 2);
    let id = |n: usize| format!("shots/part-{:03}/clip-{n:07}.mp4", n / 1000);
    let key = |n: usize| format!("{:032x}", (n as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    write_shards(&data, "latents", clips, &[1, 2, 1, 1], &id);
    write_shards(&data, "texts", clips, &[1, 2], &key);
    let place = |kind: &str, n: usize, name| TensorLocation {
        shard: format!("{kind}-{:05}.safetensors", n / PER_SHARD),
        name,
        xxh3: crate::TensorSum::of(&[0; 4]),
    };
    let line = |n: usize| Line {
        id: id(n),
        source: format!("/data/videos/{}", id(n)).into(),
        content: key(n + 1),
        times: (0..49).map(|frame| f64::from(frame) * 0.125).collect(),
        shape: vec![1, 2, 1, 1],
        bucket: "49x480x720".into(),
        caption: "A rabbit looks at a butterfly, and the butterfly looks back at the rabbit. ".repeat(3),
        latent: place("latents", n, id(n)),
        latent_key: key(n + 2),
        drawn: false,
        extra: BTreeMap::new(),
        text: vec![place("texts", n, key(n))],
        text_keys: vec![key(n)],
    };
    let head = Head {
        schema: spec.schema,
        clips,
        spec: spec.identity(),
        queue: String::new(),
        empty_text: None,
        empty_key: String::new(),
    };
    rundir::write_toml(&data.join(SPEC), &spec).unwrap();
    write_index(&data, &head, (0..clips).map(|n| Ok(line(n)))).unwrap();
    let mut model = super::tests::model();
    (model.latent_frames, model.latent_height, model.latent_width) = (1, 1, 1);
    (model.text_len, model.text_dim) = (1, 2);
    let before = peak_mib();
    for _ in 0..3 {
        let started = Instant::now();
        let table = crate::Table::open(&data, &model).unwrap();
        let open_s = started.elapsed().as_secs_f64();
        let bytes = table.to_bytes();
        let started = Instant::now();
        let other = crate::Table::from_bytes(&bytes).unwrap();
        let receive_s = started.elapsed().as_secs_f64();
        assert_eq!(other.len(), clips);
        let shared_mib = bytes.len() as f64 / f64::from(1 << 20);
        println!(
            "{}",
            serde_json::json!({ "open_s": open_s, "receive_s": receive_s, "peak_mib": peak_mib(), "before_mib": before, "shared_mib": shared_mib })
        );
    }
}

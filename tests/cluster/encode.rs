//! Tests of encoding on several nodes: a lost node, the bytes of the data set, a second encode, and training on the result.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use rundir::{EventKind, RunDir, SampleSidecar, read_events, xxh3_hex};

use crate::site::{SMALL, TestSite, samples};

const CLIPS: usize = 32;

/// Makes clips with captions, and a folder of small encoders; returns the manifest and the folder of the encoders.
fn videos(site: &TestSite) -> (Utf8PathBuf, Utf8PathBuf) {
    let share = site.rig.share().to_owned();
    let clips = share.join("clips");
    fs::create_dir_all(&clips).unwrap();
    for clip in 0..CLIPS {
        let source = format!("testsrc2=size=96x64:rate=8:duration=2,hue=h={}", clip * 10);
        let file = clips.join(format!("{clip:02}.mp4"));
        let made = Command::new("ffmpeg").args(["-v", "error", "-f", "lavfi", "-i", &source, file.as_str()]).status();
        assert!(made.unwrap().success());
        // Every caption is shared by two clips.
        fs::write(file.with_extension("txt"), format!("a test pattern, number {}", clip / 2)).unwrap();
    }
    let fixtures = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/oracle");
    let model = share.join("model");
    copy(&fixtures.join("vae/cogvideox_5b_tiny/vae"), &model.join("vae"));
    for part in ["text_encoder", "tokenizer"] {
        copy(&fixtures.join("t5/t5_v1_1_tiny").join(part), &model.join(part));
    }
    let manifest = share.join("manifest.jsonl");
    site.does(&format!("data check {clips} --out {manifest}"));
    (manifest, model)
}

fn copy(from: &Utf8Path, to: &Utf8Path) {
    fs::create_dir_all(to).unwrap();
    for file in from.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()) {
        fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
}

/// Returns the hashes of the files of a data set, except the recipe of the encode. The files of the work queue are in a folder.
fn hashes(data: &Utf8Path) -> BTreeMap<String, String> {
    let files = data.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()).filter(|path| path.is_file());
    let hash = |path: Utf8PathBuf| (path.file_name().unwrap().to_owned(), xxh3_hex(&fs::read(&path).unwrap()));
    files.map(hash).filter(|(name, _)| name != "encode.toml").collect()
}

#[test]
fn an_encode_that_loses_a_node_gives_the_same_bytes_and_trains() {
    let Some(site) = TestSite::new() else { return };
    let (manifest, model) = videos(&site);
    let encode = |data: &Utf8Path, target: &str| {
        format!(
            "data encode {manifest} --model {model} --out {data} --frames 9 --height 64 --width 96 --text-len 24 \
             --dtype float32 --set env.variables.ENCODE_LEASE_S=5 {target}"
        )
    };
    let alone = site.rig.share().join("alone");
    site.does(&encode(&alone, "--local 1 --wait"));

    let shared = site.rig.share().join("shared");
    let run = RunDir::new(site.runs.join(site.does(&encode(&shared, "--hostfile hostfiles/rig.txt"))));
    site.until("some clips are done", || samples(&run).last().is_some_and(|sample| sample.step >= 3));
    site.rig.verb("panic node02").unwrap();
    site.until("the others have finished", || site.state() == "finished");
    site.rig.verb("poweron node02").unwrap();
    let lost =
        |event: &rundir::Event| matches!(&event.kind, EventKind::NodeLost { node, .. } if node.as_str() == "node02");
    let events = read_events(&run).unwrap();
    assert!(events.iter().any(lost), "{events:?}");
    assert_eq!(hashes(&shared), hashes(&alone));

    // A second encode changes nothing.
    let again = site.vidtui(&encode(&shared, "--local 1 --wait"));
    assert!(again.ok, "{}", again.err);
    assert_eq!(hashes(&shared), hashes(&alone));

    let shown = site.json(&format!("data show {shared}"));
    assert_eq!((&shown["clips"], &shown["texts"]), (&CLIPS.into(), &(CLIPS / 2).into()), "{shown}");

    let trained = site.vidtui(&format!(
        "launch configs/demo/2s.toml --local 2 {SMALL} --set data.index={shared} --set train.steps=2 --set model.in_channels=4 \
         --set model.out_channels=4 --set model.latent_frames=3 --set model.latent_height=8 --set model.latent_width=12 \
         --set model.text_len=24 --set model.text_dim=24 --set model.latent_scale=0.7 --set model.layer=none \
         --set optimizer.warmup_steps=1 --set encoders.folder={model} --wait"
    ));
    assert!(trained.ok, "{}\n{}", trained.err, trained.out);
    assert_eq!(site.state(), "finished");
    // Encoders, mesh and dtype are those of the run.
    let video = Utf8PathBuf::from(site.does("sample latest --prompt pattern --steps 2 --seed 7"));
    let probe = video::probe(&video).unwrap();
    assert_eq!((probe.width, probe.height), (96, 64));
    assert_eq!(video::frame_times(&video).unwrap().len(), 9);
    let sidecar = |video: &Utf8Path| SampleSidecar::read(&video.with_extension("json")).unwrap().unwrap();
    let alone = sidecar(&video);
    assert_eq!(alone.dtype, "float32");
    // Several nodes sample the same weights.
    let words = "sample latest --prompt pattern --steps 2 --seed 7 --hostfile hostfiles/rig.txt";
    let together = sidecar(Utf8Path::new(&site.does(words)));
    assert_eq!((together.frames, together.seed, together.weights_xxh3), (9, 7, alone.weights_xxh3));
}

//! Tests of encoding on several nodes: a lost node, the bytes of the data set, a second encode, and training on the result.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use rundir::{EventKind, RunDir, SampleSidecar, read_events, xxh3_hex};

use crate::console;
use crate::pty::ENTER;
use crate::site::{SMALL, TestSite, losses, samples};

/// Clips with captions, their manifest, and small encoders.
pub struct Videos {
    clips: usize,
    manifest: Utf8PathBuf,
    model: Utf8PathBuf,
}

impl Videos {
    /// Makes clips with captions and a folder of encoders in the folder that all nodes share.
    pub fn make(site: &TestSite, clips: usize) -> Self {
        let share = site.rig.share().to_owned();
        let folder = share.join("clips");
        fs::create_dir_all(&folder).unwrap();
        for clip in 0..clips {
            let source = format!("testsrc2=size=96x64:rate=8:duration=2,hue=h={}", clip * 10);
            let file = folder.join(format!("{clip:02}.mp4"));
            let made =
                Command::new("ffmpeg").args(["-v", "error", "-f", "lavfi", "-i", &source, file.as_str()]).status();
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
        site.does(&format!("data check {folder} --out {manifest}"));
        Self { clips, manifest, model }
    }

    /// Returns the arguments of an encode.
    pub fn encode(&self, data: &Utf8Path, target: &str) -> String {
        let Self { manifest, model, .. } = self;
        format!(
            "data encode {manifest} --model {model} --out {data} --frames 9 --height 64 --width 96 --text-len 24 \
             --dtype float32 --set env.variables.ENCODE_LEASE_S=5 --set env.variables.ENCODE_RANGE=3 {target}"
        )
    }

    /// Returns the arguments of a launch that trains a small model on a data set.
    pub fn train(&self, data: &Utf8Path) -> String {
        let model = &self.model;
        format!(
            "launch configs/demo/2s.toml {SMALL} --set data.index={data} --set model.in_channels=4 --set model.out_channels=4 \
             --set model.latent_frames=3 --set model.latent_height=8 --set model.latent_width=12 --set model.text_len=24 \
             --set model.text_dim=24 --set model.latent_scale=0.7 --set model.layer=none --set optimizer.warmup_steps=1 \
             --set encoders.folder={model}"
        )
    }
}

fn copy(from: &Utf8Path, to: &Utf8Path) {
    fs::create_dir_all(to).unwrap();
    for file in from.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()) {
        fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
}

/// Returns the hashes of the files of a data set, except the recipe of the encode and the work queue, which is a folder.
pub fn hashes(data: &Utf8Path) -> BTreeMap<String, String> {
    let files = data.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()).filter(|path| path.is_file());
    let hash = |path: Utf8PathBuf| (path.file_name().unwrap().to_owned(), xxh3_hex(&fs::read(&path).unwrap()));
    files.map(hash).filter(|(name, _)| name != "encode.toml").collect()
}

/// Returns the bytes of the videos of a run, by prompt.
fn videos(run: &RunDir) -> Vec<Vec<u8>> {
    let samples = run.list_samples().unwrap();
    samples.iter().map(|sample| fs::read(run.sample_video(sample.step, sample.index)).unwrap()).collect()
}

/// Makes an ffmpeg that takes some seconds more for each clip, so that an encode outlasts the loss of a node. Returns the arguments of an
/// encode that uses it.
pub fn slow_decoder(site: &TestSite, seconds: u32) -> String {
    let folder = site.rig.share().join("slow");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("ffmpeg");
    let script = format!("#!/bin/sh\ncase \"$*\" in *pipe:*) sleep {seconds};; esac\nexec /usr/bin/ffmpeg \"$@\"\n");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    format!("--set env.variables.PATH={folder}:/usr/local/bin:/usr/bin:/bin")
}

#[test]
fn encoding_training_and_sampling_that_lose_a_node_give_what_undisturbed_runs_give() {
    const NODES: &str = "--hostfile hostfiles/rig.txt";
    let Some(site) = TestSite::new() else { return };
    // Each of four nodes takes a range of the queue.
    let clips = Videos::make(&site, 12);
    let alone = site.rig.share().join("alone");
    site.does(&clips.encode(&alone, "--local 1 --wait"));

    let shared = site.rig.share().join("shared");
    let paced = format!("{NODES} {}", slow_decoder(&site, 2));
    let (words, mut console) = (clips.encode(&shared, &paced), console::open(&site));
    console.shows(&["encode-alone", "finished"]).press("E").shows(&["vidtui data encode"]);
    console.press(words.strip_prefix("data encode ").unwrap()).press(ENTER);
    console.shows(&["Start encode-shared?", "Enter start"]).press(ENTER).shows(&["encode-shared", "running"]);
    let run = RunDir::new(site.runs.join(site.status()["run"].as_str().unwrap()));
    // The captions, each of two clips, come first.
    let begun = clips.clips as u64 / 2 + 1;
    site.until("some clips are done", || samples(&run).last().is_some_and(|sample| sample.step >= begun));
    site.rig.verb("panic node02").unwrap();
    site.until("the others have finished", || site.state() == "finished");
    site.rig.verb("poweron node02").unwrap();
    console.shows(&["finished", "12 of 12 clips"]).press("1").shows(&["12/12 clips"]);
    let lost =
        |event: &rundir::Event| matches!(&event.kind, EventKind::NodeLost { node, .. } if node.as_str() == "node02");
    let events = read_events(&run).unwrap();
    assert!(events.iter().any(lost), "{events:?}");
    assert_eq!(hashes(&shared), hashes(&alone));

    // A second encode changes nothing.
    let again = site.vidtui(&clips.encode(&shared, "--local 1 --wait"));
    assert!(again.ok, "{}", again.err);
    assert_eq!(hashes(&shared), hashes(&alone));

    let shown = site.json(&format!("data show {shared}"));
    assert_eq!((&shown["clips"], &shown["texts"]), (&clips.clips.into(), &(clips.clips / 2).into()), "{shown}");

    // Sampling inherits TRAIN_PACE_S from the run that trained, so its steps are as slow. A node must be lost before the last step.
    let train = |target: &str| {
        let sets = "--set mesh.dp_shard=4 --set train.threads=1 --set train.steps=8 --set checkpoint.interval=2";
        let pace = "--set env.variables.TRAIN_PACE_S=1";
        RunDir::new(site.runs.join(site.does(&format!("{} {sets} {pace} {target}", clips.train(&shared)))))
    };
    let calm = train("--local 4 --wait");
    let run = train(NODES);
    site.until("it has saved", || other_trainers::latest(&run).is_some());
    site.rig.verb("panic node03").unwrap();
    site.until("it has failed", || site.state() == "failed");
    site.rig.verb("poweron node03").unwrap();
    site.does("resume latest --wait");
    assert_eq!(losses(&run), losses(&calm));

    // The sample takes encoders, mesh and dtype from the run.
    let video = Utf8PathBuf::from(site.does("sample latest --prompt pattern --steps 2 --seed 7 --local 4"));
    let probe = video::probe(&video).unwrap();
    assert_eq!((probe.width, probe.height), (96, 64));
    assert_eq!(video::frame_times(&video).unwrap().len(), 9);
    let sidecar = |video: &Utf8Path| SampleSidecar::read(&video.with_extension("json")).unwrap().unwrap();
    let alone = sidecar(&video);
    assert_eq!(alone.dtype, "float32");

    // Two rounds of four videos.
    let prompts = site.rig.share().join("prompts.txt");
    fs::write(&prompts, (0..8).map(|n| format!("pattern {n} --d {n}\n")).collect::<String>()).unwrap();
    let sample = |more: &str| site.does(&format!("sample latest --prompts {prompts} --steps 4 {NODES} {more}"));
    let paths = sample("");
    let undisturbed: Vec<Vec<u8>> = paths.lines().map(|path| fs::read(path).unwrap()).collect();
    assert_eq!(undisturbed.len(), 8);
    let run = RunDir::new(site.runs.join(sample("--no-wait")));
    site.until("the second round has begun", || samples(&run).last().is_some_and(|sample| sample.step > 16));
    site.rig.verb("panic node02").unwrap();
    site.until("it has failed", || site.state() == "failed");
    assert_eq!(videos(&run).len(), 4);
    site.rig.verb("poweron node02").unwrap();
    let ssh = || site.rig.command("ssh").args(["node02", "true"]).output().unwrap();
    site.until("node02 answers", || ssh().status.success());
    // The newest run is the first. A resume uses the ranks of the run, not the slots in the hostfile of the console.
    console.press("g").shows(&["failed", "Node node02 was lost"]).press("r");
    // The console asks for a confirmation while it does not know whether ranks still run on node02.
    let finishes = || {
        if console.text().contains("Enter resume") {
            console.press(ENTER);
        }
        site.state() == "finished"
    };
    console.meanwhile("it to finish", finishes).press("q");
    assert_eq!(console.ended(), 0);
    assert!(videos(&run) == undisturbed, "another video after a node was lost");
    assert_eq!(run.list_samples().unwrap()[0].weights_xxh3, alone.weights_xxh3);
}

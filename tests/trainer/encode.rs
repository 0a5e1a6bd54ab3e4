//! Tests of ranks that encode videos, and of training on the encoded conditions. Without ffmpeg, the tests print that they are skipped.

use crate::harness::{Env, RunUnderTest, Running, Scene, losses, small_disk};
use camino::{Utf8Path, Utf8PathBuf};
use dataset::store::{Line, read_index};
use rundir::{ErrorCode, EventKind, StartFrom};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Makes clips with captions and checks them; returns the manifest, or `None` without ffmpeg.
fn manifest(scene: &Scene, clips: usize) -> Option<Utf8PathBuf> {
    if let Err(failure) = video::check_installed() {
        eprintln!("skipped: {failure}");
        return None;
    }
    let folder = scene.path.join("clips");
    fs::create_dir_all(&folder).unwrap();
    let first = folder.join("00.mp4");
    let source = "testsrc2=size=48x32:rate=8:duration=1.5";
    let made = Command::new("ffmpeg").args(["-v", "error", "-f", "lavfi", "-i", source, first.as_str()]).status();
    assert!(made.unwrap().success());
    for clip in 0..clips {
        let path = folder.join(format!("{clip:02}.mp4"));
        if clip > 0 {
            // An appended MP4 box that players skip changes the bytes and not the pictures.
            fs::copy(&first, &path).unwrap();
            let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(&[0, 0, 0, 9, b'f', b'r', b'e', b'e', clip as u8]).unwrap();
        }
        fs::write(path.with_extension("txt"), format!("pattern {}", clip / 2)).unwrap();
    }
    Some(checked(scene, folder))
}

/// Checks a folder of clips, and returns the manifest.
fn checked(scene: &Scene, folder: Utf8PathBuf) -> Utf8PathBuf {
    let source = dataset::SourceRequest { source: folder, ..dataset::SourceRequest::default() };
    let request = dataset::check::CheckRequest { cache: None, ..dataset::check::CheckRequest::new(source) };
    let checked = dataset::check::check(&request, &mut |_| ControlFlow::Continue(())).unwrap();
    let path = scene.path.join("manifest.jsonl");
    checked.manifest.write(&path).unwrap();
    path
}

/// Starts to encode into a folder of the scene.
fn encode(scene: &Scene, manifest: &Utf8Path, out: &str, ranks: usize, sets: &[&str]) -> Running {
    encode_with(scene, manifest, (out, ranks), sets, Vec::new())
}

/// Like [`encode`], with environment variables of the ranks.
fn encode_with(scene: &Scene, manifest: &Utf8Path, (out, ranks): (&str, usize), sets: &[&str], env: Env) -> Running {
    let fixtures = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/oracle");
    let model = scene.path.join("model");
    fs::create_dir_all(&model).unwrap();
    let parts = [
        ("vae", "vae/cogvideox_5b_tiny/vae"),
        ("text_encoder", "t5/t5_v1_1_tiny/text_encoder"),
        ("tokenizer", "t5/t5_v1_1_tiny/tokenizer"),
    ];
    for (part, from) in parts {
        let _ = std::os::unix::fs::symlink(fixtures.join(from).canonicalize_utf8().unwrap(), model.join(part));
    }
    let base = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/configs/valid/encode.toml");
    let own = [
        format!("encoders.folder={model}"),
        format!("encode.manifest={manifest}"),
        format!("encode.out={}", scene.path.join(out)),
        format!("mesh.dp_replicate={ranks}"),
    ];
    let rest = ["encode.frames=9", "encode.height=32", "encode.width=32", "encode.fps=8", "encode.text_len=16"];
    // In some tests, one of two clips fails.
    let kind = ["encoders.dtype=float32", "train.threads=1", "encode.decoders=1", "encode.max_dropped=0.5"];
    let sets = own.iter().map(String::as_str).chain(rest).chain(kind).chain(sets.iter().copied());
    let resolved = recipe::load(&base, &sets.map(str::to_owned).collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{e}"));
    scene.launch_recipe(&format!("encode-{}", out.replace('/', "-")), ranks, resolved, env)
}

fn lines(data: &Utf8Path) -> Vec<Line> {
    let mut lines = Vec::new();
    read_index(data, |_, line| {
        lines.push(line);
        Ok(())
    })
    .unwrap();
    lines
}

/// Returns the files of a data set and their bytes.
fn files(data: &Utf8Path) -> BTreeMap<String, Vec<u8>> {
    names(data).into_iter().map(|name| (name.clone(), fs::read(data.join(name)).unwrap())).collect()
}

/// Returns the names of the files and folders of a data set.
fn names(data: &Utf8Path) -> Vec<String> {
    data.read_dir_utf8().unwrap().map(|entry| entry.unwrap().file_name().to_owned()).collect()
}

/// Trains two steps on a data set that was encoded.
fn train(scene: &Scene, data: &str, name: &str, sets: &[&str]) -> Running {
    let index = format!("data.index={}", scene.path.join(data));
    let model = ["model.text_dim=24", "model.latent_scale=0.7", "train.steps=2", "train.global_batch=2"];
    scene.launch(name, &[1, 1], &[&model[..], &[&index, "optimizer.warmup_steps=1"], sets].concat())
}

#[test]
fn image_to_video_and_inpainting_train_on_an_encoded_data_set() {
    let scene = Scene::new();
    let Some(manifest) = manifest(&scene, 4) else { return };
    // This clip changes after the check.
    let changed = scene.path.join("clips/03.mp4");
    fs::copy(scene.path.join("clips/00.mp4"), &changed).unwrap();

    let image = ["condition.kind=image", "condition.image_noise=true", "condition.draws=2"];
    let run: RunUnderTest = encode(&scene, &manifest, "image", 2, &image).finish();
    assert_eq!(failed(&run), [("03.mp4".to_owned(), ErrorCode::InvalidDataset)]);
    let encoded = lines(&scene.path.join("image"));
    assert_eq!(encoded.len(), 3);
    assert_eq!(encoded[0].extra.keys().collect::<Vec<_>>(), ["image", "image.1"]);

    let trained = train(&scene, "image", "i2v", &[&image[..], &["model.in_channels=8"]].concat()).finish();
    assert!(losses(&trained).iter().all(|loss| loss.is_finite()));
    assert_eq!(trained.samples().len(), 2);

    // A tensor that the data set lacks is reported before the first step.
    let inpaint = ["condition.kind=inpaint", "condition.draws=2"];
    let (_, outputs) = train(&scene, "image", "lacks", &[&inpaint[..], &["model.in_channels=9"]].concat()).wait();
    let printed = String::from_utf8_lossy(&outputs[0].stderr);
    assert!(!outputs[0].status.success() && printed.contains("condition.kind = image"), "{printed}");

    encode(&scene, &manifest, "inpaint", 1, &inpaint).finish();
    let roles: Vec<String> = lines(&scene.path.join("inpaint"))[0].extra.keys().cloned().collect();
    assert_eq!(roles, ["known", "known.1", "masked", "masked.1"]);
    let trained = train(&scene, "inpaint", "inpaint", &[&inpaint[..], &["model.in_channels=9"]].concat()).finish();
    assert!(losses(&trained).iter().all(|loss| loss.is_finite()));
}

#[test]
fn folders_of_frames_are_encoded_without_ffmpeg_and_one_that_changed_after_the_check_is_left_out() {
    let scene = Scene::new();
    let folder = scene.path.join("clips");
    let write = |clip: &str, number: u8, grey: u8| {
        let frames = video::Frames { width: 48, height: 32, count: 1, rgb: vec![grey; 48 * 32 * 3] };
        video::write_png(&folder.join(format!("{clip}/{number}.png")), &frames, 0).unwrap();
    };
    for (clip, grey) in [("a", 0), ("b", 50)] {
        fs::create_dir_all(folder.join(clip)).unwrap();
        (0..12).for_each(|number| write(clip, number, grey + number));
        fs::write(folder.join(format!("{clip}.txt")), format!("a grey room, {clip}")).unwrap();
    }
    let manifest = checked(&scene, folder.clone());
    fs::write(folder.join("b/3.png"), "another picture").unwrap();
    let none = ["VIDTUI_FFMPEG", "VIDTUI_FFPROBE"].map(|name| (name, "/nonesuch".to_owned())).to_vec();
    let run = encode_with(&scene, &manifest, ("frames", 1), &[], none).finish();
    assert_eq!(failed(&run), [("b".to_owned(), ErrorCode::InvalidDataset)]);
    let [clip] = &lines(&scene.path.join("frames"))[..] else { panic!("one clip is encoded") };
    assert_eq!(clip.id, "a");
    // Consecutive frames, at the rate of the encode.
    assert_eq!(clip.times, (0..9).map(|k| f64::from(k) / 8.0).collect::<Vec<_>>());
}

/// Returns how many items wait for probing, decoding, the VAE and the text encoder of rank 0.
fn waiting(run: &RunUnderTest) -> [u64; 4] {
    let stages = run.progress(0).map(|progress| progress.stages).unwrap_or_default();
    [stages.probe, stages.decode, stages.vae, stages.text].map(|stage| stage.waiting)
}

/// Returns the environment with an ffmpeg that first runs `case`, a branch of a shell `case` over its arguments.
fn ffmpeg_that(scene: &Scene, name: &str, case: &str) -> Env {
    let path = scene.path.join(name);
    fs::write(&path, format!("#!/bin/sh\ncase \"$*\" in {case};; esac\nexec ffmpeg \"$@\"\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    vec![("VIDTUI_FFMPEG", path.into_string())]
}

/// Returns the items that failed in a run.
fn failed(run: &RunUnderTest) -> Vec<(String, ErrorCode)> {
    let item = |event: rundir::Event| match event.kind {
        EventKind::ItemFailed { item, failure } => Some((item, failure.code)),
        _ => None,
    };
    run.events().into_iter().filter_map(item).collect()
}

#[test]
fn an_ffmpeg_that_is_killed_once_is_run_again_and_one_that_is_always_killed_costs_its_clip_alone() {
    let scene = Scene::new();
    let Some(manifest) = manifest(&scene, 3) else { return };
    encode(&scene, &manifest, "alone", 1, &[]).finish();
    let whole = files(&scene.path.join("alone"));

    let marker = scene.path.join("killed-once");
    let once = ffmpeg_that(&scene, "ffmpeg-once", &format!("*pipe:*) mkdir {marker} 2>/dev/null && kill -9 $$"));
    let run = encode_with(&scene, &manifest, ("once", 1), &[], once).finish();
    assert!(marker.exists() && failed(&run).is_empty(), "{:?}", failed(&run));
    assert_eq!(files(&scene.path.join("once")), whole);

    let always = ffmpeg_that(&scene, "ffmpeg-always", "*01.mp4*pipe:*) kill -9 $$");
    let run = encode_with(&scene, &manifest, ("always", 1), &[], always).finish();
    assert_eq!(failed(&run), [("01.mp4".to_owned(), ErrorCode::CommandFailed)]);
    let data = scene.path.join("always");
    let ids = || lines(&data).into_iter().map(|line| line.id).collect::<Vec<_>>();
    assert_eq!(ids(), ["00.mp4", "02.mp4"]);
    // With a working ffmpeg, the failed clip is encoded.
    fs::remove_dir_all(scene.path.join("runs")).unwrap();
    encode(&scene, &manifest, "always", 1, &["encode.retry_failed=true"]).finish();
    assert_eq!(ids(), ["00.mp4", "01.mp4", "02.mp4"]);
}

#[test]
fn an_encode_in_which_every_clip_fails_makes_no_data_set_and_the_next_attempt_retries_them() {
    let scene = Scene::new();
    let Some(manifest) = manifest(&scene, 3) else { return };
    let (clips, moved) = (scene.path.join("clips"), scene.path.join("moved"));
    fs::rename(&clips, &moved).unwrap();
    let data = scene.path.join("lost");
    let (run, outputs) = encode(&scene, &manifest, "lost", 2, &[]).wait();
    for output in outputs {
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && printed.contains("3 of 3 clips could not be encoded"), "{printed}");
    }
    assert_eq!(failed(&run).len(), 3);
    assert!(!data.join("index.jsonl").exists());
    fs::rename(&moved, &clips).unwrap();
    fs::remove_dir_all(scene.path.join("runs")).unwrap();
    encode(&scene, &manifest, "lost", 2, &[]).finish();
    assert_eq!(lines(&data).len(), 3);
    assert!(!data.join("work").exists());
}

#[test]
fn an_encode_reports_the_clips_that_wait_for_decoding_and_those_that_wait_for_the_vae() {
    let scene = Scene::new();
    let Some(manifest) = manifest(&scene, 6) else { return };
    // ffmpeg decodes nothing before the gate is open.
    let gate = scene.path.join("gate");
    let env = ffmpeg_that(&scene, "ffmpeg-waits", &format!("*pipe:*) while [ ! -e {gate} ]; do sleep 0.05; done"));
    let mut running = encode_with(&scene, &manifest, ("queue", 1), &[], env);
    // One decoder has the first clip of the range.
    running
        .wait_for("a clip that is decoded", |run| run.progress(0).is_some_and(|report| report.stages.probe.items == 1));
    let [probe, decode, vae, text] = waiting(&running.run);
    assert!(probe > 0 && decode == probe, "{probe} clips wait for probing, {decode} for decoding");
    assert_eq!((vae, text), (0, 0));
    fs::write(&gate, "").unwrap();
    let run = running.finish();
    assert_eq!(waiting(&run), [0; 4], "an item waits after the end");
    let stages = run.progress(0).unwrap().stages;
    assert_eq!([stages.probe, stages.decode, stages.vae].map(|stage| stage.items), [6; 3]);
}

/// Returns whether a rank has stored an item.
fn has_begun(data: &Utf8Path) -> bool {
    let parts = data.join("work/0/parts").read_dir_utf8().into_iter().flatten().flatten();
    parts.filter(|part| part.file_name().ends_with(".jsonl")).any(|part| part.metadata().is_ok_and(|m| m.len() > 0))
}

#[test]
fn a_rank_that_is_killed_while_encoding_leaves_the_bytes_of_an_undisturbed_encode() {
    // The clips fill two ranges of the queue.
    const CLIPS: usize = 8;
    let scene = Scene::new();
    let Some(manifest) = manifest(&scene, CLIPS) else { return };
    encode(&scene, &manifest, "alone", 1, &[]).finish();
    let whole = files(&scene.path.join("alone"));
    assert_eq!(lines(&scene.path.join("alone")).len(), CLIPS);

    // Rank 0 made the queue and holds the lease of the folder.
    let data = scene.path.join("killed");
    let mut ranks = encode(&scene, &manifest, "killed", 2, &[]);
    ranks.wait_for("the first item", |_| has_begun(&data));
    ranks.signal(0, "KILL");
    let (_, outputs) = ranks.wait();
    assert!(outputs[1].status.success(), "{}", String::from_utf8_lossy(&outputs[1].stderr));
    assert_eq!(files(&data), whole);

    // All ranks are killed, and a second attempt completes the data set.
    let data = scene.path.join("resumed");
    let mut ranks = encode(&scene, &manifest, "resumed", 2, &[]);
    ranks.wait_for("the first item", |_| has_begun(&data));
    ranks.signal(0, "KILL");
    ranks.signal(1, "KILL");
    let (run, _) = ranks.wait();
    run.attempt(&[2, 1], StartFrom::Random, 0).finish();
    assert_eq!(files(&data), whole);
}

/// So many clips that they fill three ranges of the queue, and the latents of a range several blocks of a disk.
const MANY: usize = 12;

/// Returns the environment in which all clips but the first one are decoded only after `gate` exists.
fn gated(scene: &Scene, gate: &Utf8Path) -> Env {
    let case = format!("*/0[1-9].mp4*pipe:* | */1?.mp4*pipe:*) while [ ! -e {gate} ]; do sleep 0.05; done");
    ffmpeg_that(scene, &format!("ffmpeg-{}", gate.file_name().unwrap()), &case)
}

#[test]
fn an_encode_that_is_stopped_or_fills_the_disk_resumes_to_the_bytes_of_an_undisturbed_one() {
    let scene = Scene::new();
    let Some(manifest) = manifest(&scene, MANY) else { return };
    encode(&scene, &manifest, "calm", 2, &[]).finish();
    let whole = files(&scene.path.join("calm"));

    let (data, gate) = (scene.path.join("stopped"), scene.path.join("gate-stop"));
    let mut ranks = encode_with(&scene, &manifest, ("stopped", 2), &[], gated(&scene, &gate));
    // A rank that reports its progress handles signals.
    let works = |run: &RunUnderTest| [0, 1].into_iter().all(|rank| run.progress(rank).is_some());
    ranks.wait_for("the first item and both ranks", |run| has_begun(&data) && works(run));
    for rank in [0, 1] {
        ranks.signal(rank, "TERM");
    }
    fs::write(&gate, "").unwrap();
    let run = ranks.finish();
    assert!(!data.join("index.jsonl").exists(), "the encode was finished before the stop");
    assert!(failed(&run).is_empty(), "a stop fails no clip: {:?}", failed(&run));
    run.attempt(&[2, 1], StartFrom::Random, 0).finish();
    assert_eq!(files(&data), whole);

    let Some(disk) = small_disk(&scene, "size=1m") else { return };
    let (data, gate) = (disk.path.join("full"), scene.path.join("gate-full"));
    let mut ranks = encode_with(&scene, &manifest, ("disk/full", 2), &[], gated(&scene, &gate));
    ranks.wait_for("the first item", |_| has_begun(&data));
    let mut ballast = fs::File::create(disk.path.join("ballast")).unwrap();
    while ballast.write_all(&[1; 4096]).is_ok() {}
    fs::write(&gate, "").unwrap();
    let (run, outputs) = ranks.wait();
    for (rank, output) in outputs.iter().enumerate() {
        assert!(!output.status.success(), "rank {rank} stored its items on a full disk");
        assert_eq!(run.rank_failure(rank), Some(ErrorCode::DiskFull));
    }
    assert!(failed(&run).is_empty(), "a full disk fails no clip: {:?}", failed(&run));
    // The folder has no file that a training run reads.
    assert_eq!(names(&data), ["work"]);
    disk.grow().unwrap();
    run.attempt(&[2, 1], StartFrom::Random, 0).finish();
    assert_eq!(files(&data), whole);
}

//! Tests of sampling: every mesh makes the same videos, an interrupted attempt leaves no partial file, and a training
//! run makes videos and measures its validation loss between steps.

use crate::harness::{Env, RunUnderTest, Running, Scene, assert_close, latest, small_disk};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{Layer, Recipe, UseEma};
use rundir::{ErrorCode, EventKind, Failure, MetricSample, SampleSidecar, SamplingProgress, StartFrom};
use safetensors::tensor::TensorView;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use weights::{ConvertRequest, Form};

const ORACLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/oracle");

/// A small diffusers model, and the checkpoint that its transformer was converted to.
pub struct TinyModel {
    pub folder: Utf8PathBuf,
    pub checkpoint: Utf8PathBuf,
}

impl TinyModel {
    pub fn text_to_video(scene: &Scene) -> Self {
        Self::new(scene, "cogvideox_5b_tiny", None)
    }

    pub fn new(scene: &Scene, transformer: &str, layer: Option<Layer>) -> Self {
        let (folder, checkpoint) = (scene.path.join("model"), scene.path.join("checkpoint"));
        fs::create_dir_all(&folder).unwrap();
        let parts = [
            (format!("cogvideox/{transformer}/transformer"), "transformer"),
            ("vae/cogvideox_5b_tiny/vae".to_owned(), "vae"),
            ("t5/t5_v1_1_tiny/text_encoder".to_owned(), "text_encoder"),
            ("t5/t5_v1_1_tiny/tokenizer".to_owned(), "tokenizer"),
            ("sampling/scheduler_5b_dpm".to_owned(), "scheduler"),
        ];
        for (from, to) in parts {
            symlink(Utf8Path::new(ORACLE).join(from), folder.join(to)).unwrap();
        }
        let request = ConvertRequest { layer, ..ConvertRequest::new(&folder, &checkpoint, Form::Internal) };
        let plan = weights::plan_conversion(&request).unwrap();
        plan.execute(false, 0.0, 1, &mut |_| ControlFlow::Continue(())).unwrap();
        TinyModel { folder, checkpoint }
    }

    /// Starts to sample prompts at 32 x 32 pixels.
    pub fn sample(
        &self,
        scene: &Scene,
        name: &str,
        mesh: &[usize],
        prompts: &[&str],
        env: Env,
        change: impl FnOnce(&mut Recipe),
    ) -> Running {
        scene.sample(name, mesh, &self.checkpoint, env, |recipe| {
            recipe.encoders.folder = self.folder.clone();
            recipe.sample.prompts = prompts.iter().map(|prompt| (*prompt).to_owned()).collect();
            (recipe.sample.height, recipe.sample.width) = (32, 32);
            change(recipe);
        })
    }
}

/// Returns the sidecar of a sample.
pub fn sidecar(run: &RunUnderTest, index: usize) -> SampleSidecar {
    run.dir.list_samples().unwrap().into_iter().find(|sample| sample.index == index).unwrap()
}

/// Returns the bytes of the videos of a run, by prompt.
fn videos(run: &RunUnderTest) -> Vec<Vec<u8>> {
    let samples = run.dir.list_samples().unwrap();
    samples.iter().map(|sample| fs::read(run.dir.sample_video(sample.step, sample.index)).unwrap()).collect()
}

/// Returns the pixels of the frames of a sample with `sample.png`.
pub fn pixels(run: &RunUnderTest, index: usize) -> Vec<u8> {
    let sample = sidecar(run, index);
    let folder = run.dir.sample_video(sample.step, index).with_extension("");
    (0..sample.frames).flat_map(|n| video::read_image(&folder.join(format!("{n:04}.png"))).unwrap().rgb).collect()
}

/// Returns the failure that ended a run.
pub fn failure(run: &RunUnderTest) -> Failure {
    let failed = |kind: EventKind| if let EventKind::Failed { failure } = kind { Some(failure) } else { None };
    run.events().into_iter().find_map(|event| failed(event.kind)).expect("the run failed")
}

/// Returns all files in a folder and its subfolders.
fn files(folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    let Ok(entries) = folder.read_dir_utf8() else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().into_path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn every_mesh_makes_the_same_videos() {
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    let prompts = ["a rabbit --d 7 --n blurry", "a kite --f 8 --s 3 --g 1", "a boat --w 48"];
    let run = |name: &str, mesh: &[usize]| {
        model.sample(&scene, name, mesh, &prompts, Vec::new(), |recipe| recipe.sample.png = true).finish()
    };
    let alone = run("alone", &[1, 1]);
    let [first, second, third] = [0, 1, 2].map(|index| sidecar(&alone, index));
    assert_eq!((first.seed, first.negative.as_str(), first.dynamic_guidance), (7, "blurry", true));
    assert_eq!((first.frames, first.width, first.height, first.sampling_steps), (9, 32, 32, 2));
    // An even number of latent frames becomes four frames each.
    assert_eq!((second.frames, second.sampling_steps, second.guidance), (8, 3, 1.0));
    assert_eq!((third.width, third.scheduler.as_str(), third.dtype.as_str()), (48, "dpm", "float32"));
    assert!(!third.libtorch.is_empty() && third.weights_xxh3.len() == 16);
    assert_ne!(pixels(&alone, 0)[..32 * 32], pixels(&alone, 1)[..32 * 32]);
    for (name, mesh) in [("fsdp", [1, 2, 1]), ("tp", [1, 1, 2])] {
        let other = run(name, &mesh);
        for index in 0..3 {
            let (want, got) = (pixels(&alone, index), pixels(&other, index));
            assert_eq!(want.len(), got.len());
            let apart = want.iter().zip(&got).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
            assert!(apart <= 1, "video {index} on mesh {mesh:?} differs by {apart} of 255");
        }
    }
}

#[test]
fn a_model_with_ttt_layers_samples_two_segments_with_a_text_each() {
    let scene = Scene::new();
    let model = TinyModel::new(&scene, "cogvideox_5b_tiny", Some(Layer::TttMlp));
    let run = |name: &str, mesh: &[usize]| {
        let prompts = ["a rabbit || a kite --f 97"];
        let set = |recipe: &mut recipe::Recipe| {
            recipe.sample.png = true;
            recipe.train.tp_pieces = recipe::TokenPieces(3);
        };
        model.sample(&scene, name, mesh, &prompts, Vec::new(), set).finish()
    };
    let (alone, tp) = (run("alone", &[1, 1]), run("tp", &[1, 1, 2]));
    let sample = sidecar(&alone, 0);
    assert_eq!((sample.frames, sample.scheduler.as_str()), (97, "vpsde"));
    assert_eq!(sample.prompt, "a rabbit || a kite");
    let apart = pixels(&alone, 0).iter().zip(&pixels(&tp, 0)).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    assert!(apart <= 1, "TP differs by {apart} of 255");
}

#[test]
fn the_first_image_changes_the_video_of_an_image_to_video_model() {
    let scene = Scene::new();
    let model = TinyModel::new(&scene, "cogvideox_5b_i2v_tiny", None);
    let picture = |name: &str, of: fn(usize) -> u8| {
        let path = scene.path.join(name);
        let frames = video::Frames { width: 40, height: 24, count: 1, rgb: (0..40 * 24 * 3).map(of).collect() };
        video::write_png(&path, &frames, 0).unwrap();
        path
    };
    let (a, b) = (picture("a.png", |i| i as u8), picture("b.png", |i| 255 - (i / 9) as u8));
    let prompts = [format!("a rabbit --i {a}"), format!("a rabbit --i {b}")];
    let prompts = [prompts[0].as_str(), prompts[1].as_str()];
    // Learned positions hold for one size only, so the recipe does not set a size.
    let own_size = |recipe: &mut Recipe| (recipe.sample.height, recipe.sample.width) = (0, 0);
    let run = model.sample(&scene, "images", &[1, 1], &prompts, Vec::new(), own_size).finish();
    assert_eq!((sidecar(&run, 0).image, sidecar(&run, 1).image), (Some(a), Some(b)));
    let videos = videos(&run);
    assert!(videos[0] != videos[1], "the image has no effect");

    let text = scene.path.join("text.png");
    fs::write(&text, "not a picture").unwrap();
    let prompt = format!("a rabbit --i {text}");
    let (run, outputs) = model.sample(&scene, "no-image", &[1, 1], &[&prompt], Vec::new(), own_size).wait();
    assert!(!outputs[0].status.success());
    assert!(failure(&run).what.contains("text.png"), "{}", failure(&run));
    assert_eq!(files(&run.dir.samples()), [""; 0]);
}

#[test]
fn a_model_for_inpainting_trains_with_samples_and_makes_videos_from_text_and_from_a_first_image() {
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    let clips = conditioned(&scene, "clips", 4, 24, &[("known", 3, 1), ("masked", 3, 4)]);
    let picture = |name: &str, of: fn(usize) -> u8| {
        let path = scene.path.join(name);
        let frames = video::Frames { width: 32, height: 32, count: 1, rgb: (0..32 * 32 * 3).map(of).collect() };
        video::write_png(&path, &frames, 0).unwrap();
        path
    };
    let (a, b) = (picture("a.png", |i| i as u8), picture("b.png", |i| 255 - (i / 9) as u8));
    let prompts = ["a rabbit".to_owned(), format!("a rabbit --i {a}"), format!("a rabbit --i {b}")];
    let own = [
        format!("data.index={clips}"),
        format!("encoders.folder={}", model.folder),
        format!("sample.prompts={prompts:?}"),
    ];
    let rest = [
        "model.text_dim=24",
        "model.latent_scale=0.7",
        "model.in_channels=9",
        "condition.kind=inpaint",
        "encoders.dtype=float32",
        "sample.every=4",
        "sample.steps=2",
        "train.steps=4",
        "train.global_batch=2",
        // New weights return zeros, whatever the condition is.
        "optimizer.lr=0.01",
        "optimizer.schedule=constant",
    ];
    let sets: Vec<&str> = own.iter().map(String::as_str).chain(rest).collect();
    let trained = scene.launch("inpaint", &[1, 1], &sets).finish();
    let while_training = videos(&trained);
    assert_eq!(while_training.len(), 3);
    assert!(while_training[0] != while_training[1] && while_training[1] != while_training[2], "images have no effect");
    assert_eq!((sidecar(&trained, 0).image, sidecar(&trained, 1).image), (None, Some(a)));

    // Samples the checkpoint outside training, on one rank and with TP.
    let checkpoint = latest(&trained.dir).unwrap().dir;
    let sample = |name: &str, mesh: &[usize]| {
        let run = scene.sample(name, mesh, &checkpoint, Vec::new(), |recipe| {
            recipe.encoders.folder = model.folder.clone();
            recipe.sample.prompts = prompts.to_vec();
            recipe.sample.png = true;
        });
        run.finish()
    };
    let alone = sample("alone", &[1, 1]);
    assert!(videos(&alone) == while_training, "other videos than while it trained");
    let tp = sample("tp", &[1, 1, 2]);
    for index in 0..3 {
        let apart = pixels(&alone, index).iter().zip(&pixels(&tp, index)).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(apart <= 1, "video {index} differs by {apart} of 255 with TP");
    }
}

#[test]
fn a_killed_or_stopped_attempt_resumes_to_the_bytes_of_an_undisturbed_one() {
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    let prompts = ["a rabbit", "a kite", "a boat", "a horse"];
    let start = |name: &str, env: Env| model.sample(&scene, name, &[1, 2], &prompts, env, |_| ());
    let calm = start("calm", Vec::new()).finish();
    let want = videos(&calm);
    assert_eq!(want.len(), 4);
    // The stall rule does not count the time of decoding.
    let decodes = |kind: EventKind| calm.events().iter().filter(|event| event.kind == kind).count();
    assert_eq!((decodes(EventKind::EvaluationStarted), decodes(EventKind::EvaluationEnded)), (2, 2));
    let finished = |run: &RunUnderTest| run.events().iter().any(|event| event.kind == EventKind::Finished);
    assert!(finished(&calm));

    // The kill is in the second round, which makes the third and the fourth sample.
    let mut running = start("killed", vec![("TRAIN_PACE_S", "1".into())]);
    running.wait_for_step(6);
    running.signal(1, "KILL");
    let (mut run, outputs) = running.wait();
    assert!(outputs.iter().all(|output| !output.status.success()));
    run.env.clear();
    assert!(failure(&run).is_consequence(), "{}", failure(&run));
    let before: Vec<SampleSidecar> = run.dir.list_samples().unwrap();
    assert_eq!(before.len(), 2, "the samples of the first round are whole");
    let weights = StartFrom::Weights { path: model.checkpoint.clone() };
    let run = run.attempt(&[1, 2], weights.clone(), 0).finish();
    assert!(finished(&run));
    assert!(videos(&run) == want, "another video after a kill");
    let after = run.dir.list_samples().unwrap();
    assert_eq!(after[..2], before[..], "whole samples are kept");
    let first = run.samples().into_iter().find(|sample| sample.attempt == 2).and_then(|sample| sample.sampling);
    assert_eq!(first, Some(SamplingProgress { videos: 2, videos_total: 4 }));

    let mut running = start("stopped", vec![("TRAIN_PACE_S", "0.3".into())]);
    running.wait_for("a sampling step", |run| !run.samples().is_empty());
    running.signal(1, "TERM");
    let mut run = running.finish();
    assert!(run.events().iter().any(|event| matches!(event.kind, EventKind::Stopped { .. })));
    assert!(!finished(&run) && videos(&run).len() < 4);
    run.env.clear();
    let run = run.attempt(&[1, 2], weights, 0).finish();
    assert!(finished(&run) && videos(&run) == want, "another video after a stop");
}

#[test]
fn a_full_disk_leaves_no_half_written_video_and_a_resume_makes_it() {
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    // The first disk is full in the middle of the video, the second after it.
    for size in ["size=4k", "size=8k"] {
        let Some(disk) = small_disk(&scene, size) else { return };
        let out = disk.path.clone();
        let running =
            model.sample(&scene, &size[5..], &[1, 1], &["a rabbit"], Vec::new(), |recipe| recipe.sample.out = out);
        let (run, outputs) = running.wait();
        assert!(!outputs[0].status.success());
        assert_eq!(failure(&run).code, ErrorCode::DiskFull, "{}", failure(&run));
        // The claim of the run stays until its samples are complete.
        assert!(files(&disk.path).iter().all(|file| file.file_name() == Some(".vidtui-samples")));
        disk.grow().unwrap();
        let run = run.attempt(&[1, 1], StartFrom::Weights { path: model.checkpoint.clone() }, 0).finish();
        assert!(run.events().iter().any(|event| event.kind == EventKind::Finished));
        let whole = files(&disk.path).into_iter().filter(|file| file.file_name() != Some(".vidtui-samples"));
        assert_eq!(whole.count(), 2);
    }
}

#[test]
fn a_missing_or_killed_ffmpeg_is_named_and_leaves_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    let killed = scene.path.join("ffmpeg");
    let script = "#!/bin/sh\ncase \"$*\" in *pipe:0*) kill -9 $$;; esac\nexec ffmpeg \"$@\"\n";
    fs::write(&killed, script).unwrap();
    fs::set_permissions(&killed, fs::Permissions::from_mode(0o755)).unwrap();
    for (program, code) in [("/nowhere/ffmpeg", ErrorCode::ProgramMissing), (killed.as_str(), ErrorCode::CommandFailed)]
    {
        let env = vec![("VIDTUI_FFMPEG", program.to_owned())];
        let name = if code == ErrorCode::ProgramMissing { "missing" } else { "killed" };
        let (run, outputs) = model.sample(&scene, name, &[1, 1], &["a rabbit"], env, |_| ()).wait();
        assert!(!outputs[0].status.success());
        let failure = failure(&run);
        assert_eq!(failure.code, code, "{failure}");
        assert!(failure.to_string().contains("ffmpeg"), "{failure}");
        assert_eq!(files(&run.dir.samples()), [""; 0]);
    }
}

#[test]
fn encoders_of_another_model_are_refused_by_the_ranks() {
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    fs::remove_file(model.folder.join("vae")).unwrap();
    symlink(Utf8Path::new(ORACLE).join("vae/cogvideox_2b_tiny/vae"), model.folder.join("vae")).unwrap();
    let (run, outputs) = model.sample(&scene, "other", &[1, 2], &["a rabbit"], Vec::new(), |_| ()).wait();
    assert!(outputs.iter().all(|output| !output.status.success()));
    assert_eq!(failure(&run).code, ErrorCode::TensorMismatch, "{}", failure(&run));
}

/// Settings of a training run of the tiny model that samples at steps 2 and 4 and has held-out clips.
fn training(scene: &Scene, model: &TinyModel) -> Vec<String> {
    let latents = scene.dataset("clips", 3, [4, 4], 5);
    let held_out = scene.dataset("held-out", 3, [4, 4], 3);
    let sets = [
        "model.text_dim=24".to_owned(),
        "model.latent_scale=0.7".to_owned(),
        format!("data.index={}", scene.text_dataset_of_width(&latents, 16, 1, 24)),
        format!("sample.validation_index={}", scene.text_dataset_of_width(&held_out, 16, 1, 24)),
        format!("encoders.folder={}", model.folder),
        "encoders.dtype=float32".to_owned(),
        "sample.prompts=[\"a rabbit\",\"a kite --d 7\"]".to_owned(),
        "sample.every=2".to_owned(),
        "sample.steps=2".to_owned(),
        "train.steps=4".to_owned(),
        "checkpoint.interval=2".to_owned(),
        "optimizer.schedule=constant".to_owned(),
    ];
    sets.to_vec()
}

/// Returns the measured validation losses, by step.
fn validation(run: &RunUnderTest) -> Vec<(u64, Vec<f64>)> {
    let measured = run.samples().into_iter().filter(|sample| sample.validation_loss.is_some());
    measured.map(|sample| (sample.step, sample.validation_loss_by_level)).collect()
}

#[test]
fn a_training_run_samples_and_validates_on_all_ranks_together() {
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    let sets = training(&scene, &model);
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let alone = scene.launch("alone", &[1, 1], &[&sets[..], &["train.global_batch=2"]].concat()).finish();
    let two = scene.launch("two", &[1, 2], &[&sets[..], &["train.global_batch=2"]].concat()).finish();
    for run in [&alone, &two] {
        let points = validation(run);
        assert_eq!(
            points.iter().map(|(step, _)| *step).collect::<Vec<_>>(),
            [0, 2, 4],
            "the first point is before step 1"
        );
        assert!(points.iter().all(|(_, levels)| levels.len() == 9));
        for sample in run.samples().iter().filter(|sample| sample.validation_loss.is_some()) {
            let mean = sample.validation_loss_by_level.iter().sum::<f64>() / 9.0;
            assert!((sample.validation_loss.unwrap() / mean - 1.0).abs() < 1e-4);
        }
        let events = run.events();
        let count = |wanted: fn(&EventKind) -> bool| events.iter().filter(|event| wanted(&event.kind)).count();
        assert_eq!(count(|kind| matches!(kind, EventKind::Validated { .. })), 3);
        assert_eq!(count(|kind| matches!(kind, EventKind::SampleSaved { .. })), 4);
        // The stall rule does not count the time between these.
        assert_eq!(count(|kind| *kind == EventKind::EvaluationStarted), 5);
        assert_eq!(count(|kind| *kind == EventKind::EvaluationEnded), 5);
        let samples = run.dir.list_samples().unwrap();
        assert_eq!(
            samples.iter().map(|s| (s.step, s.index, s.seed)).collect::<Vec<_>>(),
            [(2, 0, 42), (2, 1, 7), (4, 0, 42), (4, 1, 7)]
        );
        assert_eq!(samples[0].weights_xxh3, samples[1].weights_xxh3);
        assert_ne!(samples[0].weights_xxh3, samples[2].weights_xxh3);
        let spent =
            |step: u64| run.samples().iter().find(|s| s.step == step).map_or(0.0, |s: &MetricSample| s.sample_s);
        assert!(spent(1) > 0.0, "the first validation is reported with the first step");
        assert!(spent(3) > 0.0, "the time of samples is reported with the next step");
        assert!(spent(4) > 0.0 && spent(4) > spent(2), "the time of the last samples is not lost");
    }
    for ((_, one), (_, two)) in validation(&alone).iter().zip(&validation(&two)) {
        assert_close(two, one, 1e-4, "the validation loss of two ranks");
    }
}

#[test]
fn sidecars_record_whether_a_video_is_made_from_the_average_of_the_weights() {
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    let sets = training(&scene, &model);
    let more = ["train.global_batch=2", "train.steps=2", "ema.decay=0.9"];
    let sets: Vec<&str> = sets.iter().map(String::as_str).chain(more).collect();
    let train = |name: &str, sets: &[&str]| scene.launch(name, &[1, 1], sets).finish();
    let averaged = train("averaged", &sets);
    assert!(sidecar(&averaged, 0).ema);
    assert!(!sidecar(&train("current", &[&sets[..], &["sample.ema=off"]].concat()), 0).ema);

    let checkpoint = latest(&averaged.dir).unwrap().dir;
    let sample = |name: &str, weights: &Utf8Path, ema: UseEma| {
        let run = scene.sample(name, &[1, 1], weights, Vec::new(), |recipe| {
            recipe.encoders.folder = model.folder.clone();
            recipe.sample.prompts = vec!["a rabbit".to_owned()];
            (recipe.sample.height, recipe.sample.width) = (32, 32);
            recipe.sample.ema = ema;
        });
        sidecar(&run.finish(), 0).ema
    };
    assert!(sample("auto", &checkpoint, UseEma::Auto));
    assert!(!sample("off", &checkpoint, UseEma::Off));
    assert!(!sample("none", &model.checkpoint, UseEma::Auto), "converted weights have no average");
}

/// Writes clips with the tensors of a condition beside their latents, and texts of `text_dim` features; returns the index. `tensors`
/// has the name, the frames and the channels of each tensor. The masks of the first clip hide everything.
fn conditioned(
    scene: &Scene,
    name: &str,
    clips: usize,
    text_dim: usize,
    tensors: &[(&str, usize, usize)],
) -> Utf8PathBuf {
    let folder = scene.dataset(name, 3, [4, 4], clips);
    for clip in 0..clips {
        let path = folder.join(format!("latent-{clip}.safetensors"));
        let value = |i: usize| ((i * 7 + clip * 5) % 11) as f32 / 5.0 - 1.0;
        let all = [("latent", 3, 4)].into_iter().chain(tensors.iter().copied()).map(|(tensor, frames, channels)| {
            let values = (0..frames * channels * 16).map(|i| match tensor {
                "known" if clip == 0 => 0.0,
                "known" => (i % 2) as f32,
                _ => value(i + tensor.len()),
            });
            (tensor, [frames, channels, 4, 4].to_vec(), values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
        });
        let all: Vec<_> = all.collect();
        let views = all.iter().map(|(tensor, shape, bytes)| {
            (*tensor, TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, path.as_std_path()).unwrap();
    }
    scene.text_dataset_of_width(&folder, 16, 1, text_dim)
}

#[test]
fn the_validation_loss_of_models_with_conditions_has_the_same_noise_masks_and_drops_at_every_point() {
    let scene = Scene::new();
    let cases = [
        ("image", "image_dropout", 8, &[("image", 1, 4)][..]),
        ("inpaint", "mask_dropout", 9, &[("known", 3, 1), ("masked", 3, 4)][..]),
    ];
    for (kind, dropout, channels, tensors) in cases {
        let trained = conditioned(&scene, &format!("{kind}-clips"), 4, 8, tensors);
        let held_out = conditioned(&scene, &format!("{kind}-held-out"), 3, 8, tensors);
        let launch = |name: &str, mesh: &[usize], share: f64, sets: &[&str], start: StartFrom| {
            let own = [
                format!("data.index={trained}"),
                format!("sample.validation_index={held_out}"),
                format!("condition.kind={kind}"),
                format!("condition.{dropout}={share}"),
                format!("model.in_channels={channels}"),
            ];
            let rest = ["sample.every=2", "train.steps=4", "train.global_batch=2", "optimizer.schedule=constant"];
            let sets: Vec<&str> = own.iter().map(String::as_str).chain(rest).chain(sets.iter().copied()).collect();
            scene.launch_from(&format!("{kind}-{name}"), mesh, &sets, start).finish()
        };
        // New weights return zeros, whatever the condition is.
        let learned = launch("learned", &[1, 1], 0.0, &["optimizer.lr=0.01"], StartFrom::Random);
        let path = latest(&learned.dir).unwrap().dir;
        // Weights that do not move have the same loss at every point if the validation draws nothing new.
        let still = ["optimizer.lr=1e-30", "optimizer.lr_end=1e-30", "optimizer.weight_decay=0"];
        let points = |name: &str, mesh: &[usize], share: f64| {
            let points = validation(&launch(name, mesh, share, &still, StartFrom::Weights { path: path.clone() }));
            let steps: Vec<u64> = points.iter().map(|(step, _)| *step).collect();
            assert_eq!(steps, [0, 2, 4], "{kind}: the first point of {name} is before step 1");
            assert!(points.iter().all(|(_, levels)| *levels == points[0].1), "{kind}: {name}: {points:?}");
            points[0].1.clone()
        };
        let (kept, dropped) = (points("kept", &[1, 1], 0.0), points("dropped", &[1, 1], 0.99));
        assert!(kept.len() == 9 && kept != dropped, "{kind}: the condition has no effect");
        let (one, two) = (points("one", &[1, 1], 0.5), points("two", &[1, 2], 0.5));
        assert_close(&two, &one, 1e-4, &format!("{kind}: the validation loss of two ranks"));
    }
}

#[test]
fn an_attempt_makes_the_missing_samples_of_the_last_one_and_keeps_the_others() {
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    let sets = training(&scene, &model);
    let sets: Vec<&str> = sets.iter().map(String::as_str).chain(["train.global_batch=2", "train.steps=2"]).collect();
    let mut run = scene.launch("resumed", &[1, 2], &sets).finish();
    let (before, bytes) = (run.dir.list_samples().unwrap(), videos(&run));
    assert_eq!(before.len(), 2);
    fs::remove_file(run.dir.sample_video(2, 1).with_extension("json")).unwrap();
    run.train_on_to(3);
    let run = run.resume(&[1, 2]).finish();
    let after = run.dir.list_samples().unwrap();
    assert_eq!(after[0], before[0], "the whole sample is kept");
    assert!(after[1].t > before[1].t && after[1].weights_xxh3 == before[1].weights_xxh3, "the other one is made again");
    assert_eq!(after.len(), 4, "the last step has samples too");
    assert!(videos(&run).starts_with(&bytes));
    assert_eq!(latest(&run.dir).unwrap().step, 3);
}

#[test]
fn a_file_in_the_run_folder_requests_samples_and_a_stop_interrupts_them() {
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    let sets = training(&scene, &model);
    let more = ["train.global_batch=2", "train.steps=100000", "sample.every=0", "sample.steps=1000"];
    let sets: Vec<&str> = sets.iter().map(String::as_str).chain(more).collect();
    let mut running = scene.launch("now", &[1, 1], &sets);
    running.wait_for_step(1);
    fs::write(running.run.dir.sample_file(), "").unwrap();
    running.wait_for("the request", |run| run.events().iter().any(|e| e.kind == EventKind::EvaluationStarted));
    assert!(!running.run.dir.sample_file().exists());
    // A thousand sampling steps would take minutes.
    running.signal(0, "TERM");
    let run = running.finish();
    let events = run.events();
    assert!(events.iter().any(|event| event.kind == EventKind::SampleRequested));
    assert!(events.iter().any(|event| matches!(event.kind, EventKind::Stopped { .. })));
    assert_eq!(run.dir.list_samples().unwrap(), []);
    assert_eq!(latest(&run.dir).unwrap().step, run.samples().last().unwrap().step);
}

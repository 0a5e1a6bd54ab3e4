//! `vidtui sample`: a diffusers folder as the weights, and inputs that are refused before a run starts.

use crate::real_trainer::trainer;
use crate::test_site::{Finish, TestSite, error_code};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{RunDir, SampleSidecar};
use std::fs;
use std::os::unix::fs::symlink;

fn oracle(path: &str) -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/oracle")
        .join(path)
        .canonicalize_utf8()
        .unwrap()
}

/// The parts of a small diffusers folder. Videos have 9 frames of 64 x 96, texts 6 tokens.
const PARTS: [(&str, &str); 5] = [
    ("transformer", "cogvideox/cogvideox_5b_tiny/transformer"),
    ("vae", "vae/cogvideox_5b_tiny/vae"),
    ("text_encoder", "t5/t5_v1_1_tiny/text_encoder"),
    ("tokenizer", "t5/t5_v1_1_tiny/tokenizer"),
    ("scheduler", "sampling/scheduler_5b_ddim"),
];

/// A recipe that makes videos while it trains.
const PROMPTS: &str = r#"base = "short.toml"
name = "prompts"

[model]
in_channels = 4
out_channels = 4
text_dim = 24
text_len = 6
latent_scale = 0.7

[data]
index = "../../data/tiny.jsonl"

[encoders]
folder = "../../model"

[sample]
every = 2
prompts = ["a rabbit"]
"#;

/// Makes a diffusers folder of links; `other` replaces a part.
pub fn model(site: &TestSite, name: &str, other: &[(&str, &str)]) {
    let folder = site.root.join(name);
    fs::create_dir_all(&folder).unwrap();
    for (part, path) in PARTS {
        let path = other.iter().find(|(replaced, _)| *replaced == part).map_or(path, |(_, path)| path);
        symlink(oracle(path), folder.join(part)).unwrap();
    }
}

/// Replaces a linked folder by a copy of it.
fn copied(site: &TestSite, folder: &str) -> Utf8PathBuf {
    let folder = site.root.join(folder);
    let from = folder.canonicalize_utf8().unwrap();
    fs::remove_file(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    for file in from.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()) {
        fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
    }
    folder
}

fn failed(code: &str) -> (i32, String) {
    (1, code.to_owned())
}

fn refused(code: &str) -> (i32, String) {
    (2, code.to_owned())
}

#[test]
fn encoders_of_another_model_are_refused_before_anything_is_converted() {
    let site = TestSite::new();
    let error = |folder: &str| site.error(&["sample", folder, "--prompt", "a rabbit"]);
    // Another scale of latents, and another number of channels.
    model(&site, "scale", &[("vae", "vae/cogvideox_2b_tiny/vae")]);
    model(&site, "own", &[]);
    assert_eq!(site.error(&["sample", "own", "--prompt", "a", "--encoders", "scale"]), failed("tensor-mismatch"));
    model(&site, "channels", &[("vae", "vae/cogvideox_1_5_5b_i2v_tiny/vae")]);
    assert_eq!(error("channels"), failed("tensor-mismatch"));
    model(&site, "tokens", &[]);
    let tokenizer = copied(&site, "tokens/tokenizer");
    let added = r#"{"added_tokens_decoder": {"40000": {"content": "<more>"}}}"#;
    fs::write(tokenizer.join("tokenizer_config.json"), added).unwrap();
    assert_eq!(error("tokens"), failed("tensor-mismatch"));
    model(&site, "without", &[]);
    fs::remove_file(site.root.join("without/text_encoder")).unwrap();
    assert_eq!(error("without"), refused("no-weights"));
    assert!(!site.root.join("runs").exists());
}

#[test]
fn a_run_that_writes_videos_is_refused_without_ffmpeg_before_it_starts() {
    let site = TestSite::new().with("VIDTUI_FFMPEG", "/nonesuch/ffmpeg");
    model(&site, "model", &[]);
    site.write_tensor("data/tiny.latent.safetensors", "latent", &[3, 4, 4, 4]);
    site.write_tensor("data/tiny.text.safetensors", "text", &[6, 24]);
    let line = r#"{"vid_emb": "tiny.latent.safetensors", "text_chunk_emb": ["tiny.text.safetensors"]}"#;
    site.write("data/tiny.jsonl", &format!("{line}\n{line}\n"));
    site.write("configs/small/prompts.toml", PROMPTS);
    let sample = ["sample", "model", "--prompt", "a rabbit", "--height", "32", "--width", "32", "--frames", "9"];
    let train = ["launch", "configs/small/prompts.toml"];
    let without_prompts = [&train[..], &["--set", "sample.prompts=[]", "--set", "sample.every=0"]].concat();
    for missing in ["VIDTUI_FFMPEG", "VIDTUI_FFPROBE"] {
        let site = &site;
        let error = |args: &[&str]| {
            let mut command = site.command(&[args, &["--json"]].concat());
            command.env_remove("VIDTUI_FFMPEG").env(missing, "/nonesuch/program");
            let done = command.finish();
            (done.code, error_code(&done.stderr))
        };
        assert_eq!(error(&sample), failed("program-missing"), "{missing}");
        assert_eq!(error(&train), failed("program-missing"), "{missing}");
        assert!(site.runs().is_empty(), "{missing}");
    }
    // This run writes no videos.
    site.succeeds(&without_prompts);
    assert_eq!(site.runs().len(), 1);
}

#[test]
fn weights_with_a_missing_tensor_are_refused() {
    let site = TestSite::new();
    model(&site, "cut", &[]);
    let transformer = copied(&site, "cut/transformer");
    fs::remove_file(transformer.join("diffusion_pytorch_model-00002-of-00004.safetensors")).unwrap();
    let (code, error) = site.error(&["sample", "cut", "--prompt", "a rabbit"]);
    assert_eq!(code, 1, "{error}");
    model(&site, "short", &[]);
    let vae = copied(&site, "short/vae");
    // The same tensors, but for one with another name.
    let file = vae.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path());
    let file = file.into_iter().find(|path| path.extension() == Some("safetensors")).unwrap();
    let bytes = fs::read(&file).unwrap();
    let text = String::from_utf8_lossy(&bytes[..4096.min(bytes.len())]).into_owned();
    let name = text.split('"').find(|name| name.ends_with(".weight")).unwrap();
    let at = bytes.windows(name.len()).position(|part| part == name.as_bytes()).unwrap();
    let mut other = bytes;
    other[at] = b'X';
    fs::write(&file, other).unwrap();
    let (code, error) = site.error(&["sample", "short", "--prompt", "a rabbit"]);
    assert_eq!((code, error.as_str()), (1, "tensor-mismatch"));
}

#[test]
fn files_in_the_folder_of_out_are_replaced_only_with_force() {
    let site = TestSite::new();
    model(&site, "model", &[]);
    site.write("videos/001.json", "{}");
    site.write("videos/002.mp4", "of another run, with more prompts");
    let sample = |more: &[&str]| {
        let prompts = ["sample", "model", "--prompt", "a rabbit", "--out", "videos", "--dry-run"];
        site.vidtui(&[&prompts[..], more].concat())
    };
    assert_eq!(sample(&[]).code, 0);
    let refused = sample(&["--prompt", "a kite"]);
    assert_eq!((refused.code, refused.stderr.contains("001.json")), (1, true), "{}", refused.stderr);
    assert_eq!(sample(&["--prompt", "a kite", "--force"]).code, 0);
    assert_eq!(
        site.vidtui(&["sample", "model", "--prompt", "a", "--force", "--dry-run"]).code,
        2,
        "--force needs --out"
    );
}

#[test]
fn prompts_sizes_and_images_that_cannot_be_sampled_are_refused() {
    let site = TestSite::new();
    model(&site, "model", &[]);
    let error = |args: &[&str]| site.error(&[&["sample", "model"], args].concat());
    for args in [
        ["--prompt", ""],
        ["--prompt", "a --w 33"],
        ["--prompt", "a --f 13"],
        ["--prompt", "a --s 0"],
        ["--prompt", "a --g much"],
        ["--prompt", "a --x 3"],
        ["--prompt", "a --i picture.png"],
    ] {
        assert_eq!(error(&args), refused("invalid-argument"), "{args:?}");
    }
    for (args, named) in [(["--frames", "100"], "--frames: "), (["--image", "picture.png"], "--image: ")] {
        let shown = site.fails(&[&["sample", "model", "--prompt", "a"], &args[..]].concat());
        assert!(shown.contains(named), "{shown}");
    }
    assert_eq!(error(&[]), refused("invalid-argument"));
    assert_eq!(error(&["--prompts", "nowhere.txt"]), failed("not-found"));
    site.write("prompts.txt", "# two prompts\na rabbit --w 32 --h 48 --f 9 --d 7 --s 2 --g 1.5\na kite --h 50\n");
    assert_eq!(error(&["--prompts", "prompts.txt"]), refused("invalid-argument"));
    assert!(site.fails(&["sample", "model", "--prompts", "prompts.txt"]).contains("line 3 of prompts.txt"));
    fs::write(site.root.join("latin.txt"), b"a rabbit\na caf\xe9\n").unwrap();
    assert_eq!(error(&["--prompts", "latin.txt"]), refused("malformed"));

    model(&site, "i2v", &[("transformer", "cogvideox/cogvideox_5b_i2v_tiny/transformer")]);
    site.write("text.png", "not a picture");
    let image = |args: &[&str]| site.error(&[&["sample", "i2v", "--prompt", "a rabbit"], args].concat());
    assert_eq!(image(&[]), refused("invalid-argument"));
    assert_eq!(image(&["--image", "nowhere.png"]), failed("not-found"));
    assert_eq!(image(&["--image", "text.png"]), failed("malformed"));
    // Learned positions exist for one size.
    let frames = video::Frames { width: 8, height: 8, count: 1, rgb: vec![9; 8 * 8 * 3] };
    video::write_png(&site.root.join("picture.png"), &frames, 0).unwrap();
    assert_eq!(image(&["--image", "picture.png", "--height", "32"]), refused("invalid-argument"));
    assert!(!site.root.join("runs").exists());
}

#[test]
fn adapters_that_do_not_fit_the_model_are_refused_before_anything_is_converted() {
    let site = TestSite::new();
    let adapter = oracle("../weights/lora/peft");
    model(&site, "model", &[]);
    let with = |model: &str, adapter: &str| site.error(&["sample", model, "--prompt", "a rabbit", "--lora", adapter]);
    assert_eq!(with("model", "nowhere.safetensors:0.5"), refused("not-found"));
    assert_eq!(with("model", "model/vae"), failed("unsupported-model"));
    // The blocks of the 2B model are narrower.
    let other = [("transformer", "cogvideox/cogvideox_2b_tiny/transformer"), ("vae", "vae/cogvideox_2b_tiny/vae")];
    model(&site, "other", &other);
    assert_eq!(with("other", adapter.as_str()), failed("tensor-mismatch"));
    assert_eq!(site.error(&["sample", adapter.as_str(), "--prompt", "a rabbit"]), refused("unsupported-model"));
    let weighted = format!("{adapter}:0.5");
    let args =
        ["sample", "model", "--prompt", "a rabbit", "--lora", adapter.as_str(), "--lora", &weighted, "--dry-run"];
    assert_eq!(site.vidtui(&args).code, 0);
    assert!(!site.root.join("runs").exists());
}

#[test]
fn a_dry_run_shows_the_conversion_and_warns_of_a_prompt_that_is_cut() {
    let site = TestSite::new();
    model(&site, "model", &[]);
    let prompt = "a rabbit on a meadow ".repeat(500);
    let done = site.vidtui(&["sample", "model", "--prompt", &prompt, "--dry-run"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    insta::assert_snapshot!("warning_about_a_prompt_that_is_cut", done.stderr);
    assert!(done.stdout.contains("runs/weights/model-"), "{}", done.stdout);
    assert!(!site.root.join("runs").exists());
}

#[test]
fn a_diffusers_folder_is_converted_once_and_sampled() {
    let Some(trainer) = trainer() else {
        eprintln!("skipped: no vidtui-train beside vidtui; `cargo xtask test` builds it");
        return;
    };
    let site = TestSite::new().with("VIDTUI_TRAIN", trainer.as_str());
    model(&site, "model", &[]);
    let args = ["--steps", "2", "--height", "32", "--width", "32", "--frames", "9"];
    let sample = |from: &str| {
        let printed = site.succeeds(&[&["sample", from, "--prompt", "a rabbit --d 7"], &args[..]].concat());
        let video = Utf8PathBuf::from(printed.trim());
        let sample = SampleSidecar::read(&video.with_extension("json")).unwrap().unwrap();
        (fs::read(video).unwrap(), sample)
    };
    let (video, about) = sample("model");
    // The sampler is that of the folder, and the dtype suits its weights.
    assert_eq!((about.scheduler.as_str(), about.dtype.as_str(), about.frames, about.seed), ("ddim", "float32", 9, 7));
    let converted = || site.root.join("runs/weights").read_dir_utf8().unwrap().count();
    assert_eq!(converted(), 1);
    let (again, _) = sample("model");
    assert!(again == video && converted() == 1);
    // A run samples with the recipe and the encoders of the run.
    let (third, _) = sample("./model/transformer");
    assert!(third == video);
}

#[test]
fn each_checkpoint_of_a_run_gets_samples_that_belong_to_the_run() {
    let Some(trainer) = trainer() else {
        eprintln!("skipped: no vidtui-train beside vidtui; `cargo xtask test` builds it");
        return;
    };
    let site = TestSite::new().with("VIDTUI_TRAIN", trainer.as_str());
    model(&site, "model", &[]);
    site.write_tensor("data/tiny.latent.safetensors", "latent", &[3, 4, 4, 4]);
    site.write_tensor("data/tiny.text.safetensors", "text", &[6, 24]);
    let line = r#"{"vid_emb": "tiny.latent.safetensors", "text_chunk_emb": ["tiny.text.safetensors"]}"#;
    site.write("data/tiny.jsonl", &format!("{line}\n{line}\n"));
    let prompts = PROMPTS.replace("every = 2", "steps = 2\nheight = 32\nwidth = 32\nframes = 9");
    site.write("configs/small/prompts.toml", &prompts);
    let sets = ["train.steps=4", "checkpoint.interval=2", "checkpoint.keep_last=0"].map(|set| ["--set", set]).concat();
    let run = site.succeeds(&[&["launch", "configs/small/prompts.toml"], &sets[..]].concat());
    let run = RunDir::new(site.root.join("runs").join(run.trim()));
    // It ends with the run, and the second time there is nothing to do.
    let printed = site.succeeds(&["sample", "prompts", "--follow"]);
    assert_eq!(site.succeeds(&["sample", "prompts", "--follow"]), "");
    let samples = run.list_samples().unwrap();
    let made: Vec<_> = samples.iter().map(|sample| (sample.step, sample.index, sample.prompt.as_str())).collect();
    assert_eq!(made, [(2, 0, "a rabbit"), (4, 0, "a rabbit")]);
    let videos = samples.iter().map(|sample| run.sample_video(sample.step, sample.index));
    assert_eq!(printed.lines().map(Utf8PathBuf::from).collect::<Vec<_>>(), videos.collect::<Vec<_>>());
}

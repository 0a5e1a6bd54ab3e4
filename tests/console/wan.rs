//! Wan from a folder of clips to a sampled video, with the commands of docs/wan.md, at a toy size. Without the trainer, the test prints
//! that it is skipped.

use crate::real_trainer::site_with_trainer;
use crate::test_site::TestSite;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::RunDir;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use weights::Header;

/// The settings that make a model and its training small.
const TINY: &str = "[model]\nnum_layers = 2\nnum_heads = 2\nhead_dim = 20\nffn_dim = 72\nfreq_dim = 32\ntext_dim = 24\ntext_len = 20\n\
    latent_frames = 3\nlatent_height = 6\nlatent_width = 8\n\
    [data]\nindex = \"data\"\n\
    [train]\nsteps = 6\nglobal_batch = 2\ndtype = \"float32\"\n\
    [encoders]\nfolder = \"model\"\ndtype = \"float32\"\n\
    [optimizer]\nwarmup_steps = 0\n\
    [checkpoint]\ninterval = 3\n";

fn project(path: &str) -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path).canonicalize_utf8().unwrap()
}

/// Writes the text encoder of the T5 of the fixtures as umT5: every block has the position biases of the first one.
fn umt5(folder: &Utf8Path) {
    let t5 = project("tests/fixtures/oracle/t5/t5_v1_1_tiny/text_encoder");
    fs::create_dir_all(folder).unwrap();
    let config = fs::read_to_string(t5.join("config.json")).unwrap().replace("\"t5\"", "\"umt5\"");
    fs::write(folder.join("config.json"), config).unwrap();
    let files = t5.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path());
    let headers: Vec<Header> =
        files.filter(|file| file.extension() == Some("safetensors")).map(|file| Header::read(&file).unwrap()).collect();
    let bias = |block: usize| format!("encoder.block.{block}.layer.0.SelfAttention.relative_attention_bias.weight");
    let own = headers.iter().flat_map(|header| header.tensors.keys()).map(|name| (name.clone(), name.clone()));
    let more = (1..3).map(|block| (bias(block), bias(0)));
    let (mut table, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, from) in own.chain(more) {
        let header = headers.iter().find(|header| header.tensors.contains_key(&from)).unwrap();
        let begin = data.len();
        data.extend(header.read_tensor(&from).unwrap());
        let entry = serde_json::json!({
            "dtype": "F32", "shape": header.tensor(&from).unwrap().shape, "data_offsets": [begin, data.len()]
        });
        table.insert(name, entry);
    }
    let table = serde_json::Value::Object(table).to_string();
    let file = [&(table.len() as u64).to_le_bytes(), table.as_bytes(), &data].concat();
    fs::write(folder.join("model.safetensors"), file).unwrap();
}

/// Makes a folder with the encoders of Wan, the weights of a network, and two clips with captions.
fn prepare(site: &TestSite) {
    prepare_with(site, "vae21_tiny", "t2v_tiny", "64:48");
}

/// As [`prepare`], with a VAE and a network of the fixtures, and clips of a size, columns and rows.
fn prepare_with(site: &TestSite, vae: &str, network: &str, size: &str) {
    let model = site.root.join("model");
    umt5(&model.join("text_encoder"));
    for (part, from) in [
        ("vae", format!("tests/fixtures/oracle/wan/{vae}/vae")),
        ("transformer", format!("tests/fixtures/oracle/wan/{network}/transformer")),
        ("tokenizer", "tests/fixtures/oracle/t5/t5_v1_1_tiny/tokenizer".to_owned()),
    ] {
        symlink(project(&from), model.join(part)).unwrap();
    }
    fs::create_dir_all(site.root.join("videos")).unwrap();
    for (name, start) in [("one", "0"), ("two", "1")] {
        let clip = site.root.join(format!("videos/{name}.mp4"));
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-v", "error", "-ss", start, "-i", project("assets/demo/bunny.mp4").as_str()]);
        let filter = format!("fps=16,scale={size}");
        ffmpeg.args(["-vf", &filter, "-frames:v", "9", clip.as_str()]);
        assert!(ffmpeg.status().unwrap().success());
        site.write(&format!("videos/{name}.txt"), "a  rabbit &amp; a butterfly");
    }
    let recipes = [
        ("full", "2.1-1.3b"),
        ("lora", "2.1-1.3b-lora"),
        ("low", "2.2-a14b-low-lora"),
        ("image", "2.2-i2v-a14b-high-lora"),
        ("5b", "2.2-5b-lora"),
    ];
    for (name, base) in recipes {
        let base = project(&format!("configs/wan/{base}.toml"));
        let lora = if name == "full" { "" } else { "[lora]\nrank = 4\n" };
        site.write(&format!("{name}.toml"), &format!("base = \"{base}\"\nname = \"{name}\"\n{TINY}{lora}"));
    }
}

#[test]
fn a_folder_of_clips_becomes_an_adapter_of_wan_and_a_video() {
    let Some(site) = site_with_trainer() else { return };
    prepare(&site);
    site.succeeds(&["convert", "model", "weights", "--to", "internal"]);
    site.succeeds(&["data", "encode", "videos", "--for", "lora.toml", "--out", "data", "--local", "1", "--wait"]);
    let spec: toml::Table = fs::read_to_string(site.root.join("data/dataset.toml")).unwrap().parse().unwrap();
    assert_eq!((spec["vae"]["channels"].as_integer(), spec["vae"]["scaling_factor"].as_float()), (Some(16), Some(1.0)));

    // Without a recipe, captions have as many tokens as Wan reads.
    let plain = ["data", "encode", "videos", "--model", "model", "--frames", "9", "--height", "48", "--width", "64"];
    site.succeeds(&[&plain[..], &["--out", "plain", "--local", "1", "--wait"]].concat());
    let plain: toml::Table = fs::read_to_string(site.root.join("plain/dataset.toml")).unwrap().parse().unwrap();
    assert_eq!(plain["text"]["len"].as_integer(), Some(512));

    // Fewer ranks than the recipe has: it is fitted to them.
    let start = ["--init", "weights", "--set", "mesh.dp_shard=2", "--local", "2", "--wait", "--json"];
    let started = site.json(&[&["launch", "lora.toml"], &start[..]].concat());
    let run = RunDir::new(started["dir"].as_str().unwrap());
    let losses: Vec<f64> = runstate::recent_metrics(&run).unwrap().iter().filter_map(|sample| sample.loss).collect();
    assert_eq!(losses.len(), 6);
    assert!(losses.iter().all(|loss| loss.is_finite() && *loss > 0.0), "{losses:?}");

    let made =
        site.json(&["sample", "latest", "--prompt", "a rabbit", "--steps", "3", "--out", "videos-of-lora", "--json"]);
    let sample = &made["videos"][0]["sample"];
    assert_eq!((&sample["frames"], &sample["fps"], &sample["scheduler"]), (&9.into(), &16.0.into(), &"unipc".into()));
    assert!(video::probe(made["videos"][0]["path"].as_str().unwrap().into()).is_ok());

    // The adapter in the names of diffusers, and merged into the weights.
    site.succeeds(&["convert", "latest", "adapter", "--to", "lora-diffusers"]);
    let header = Header::read(&site.root.join("adapter/pytorch_lora_weights.safetensors")).unwrap();
    assert!(
        header.tensors.contains_key("transformer.blocks.0.attn1.to_q.lora_A.weight"),
        "{:?}",
        header.tensors.keys()
    );
    site.succeeds(&["convert", "model", "merged", "--to", "diffusers", "--merge", "adapter"]);
    let config = |folder: &str| fs::read_to_string(site.root.join(folder).join("config.json")).unwrap();
    assert_eq!(config("merged"), config("model/transformer"));

    // The same data trains all parameters, and an expert for low noise.
    for recipe in ["full.toml", "low.toml"] {
        let sets = ["--set", "train.steps=2", "--set", "mesh.dp_shard=1", "--set", "mesh.tp=2"];
        site.succeeds(&[&["launch", recipe, "--init", "weights", "--local", "2", "--wait"], &sets[..]].concat());
    }
}

#[test]
fn encoders_and_weights_of_another_family_are_refused_before_the_start() {
    let Some(site) = site_with_trainer() else { return };
    prepare(&site);
    let t5 = site.root.join("model/text_encoder");
    fs::remove_dir_all(&t5).unwrap();
    symlink(project("tests/fixtures/oracle/t5/t5_v1_1_tiny/text_encoder"), &t5).unwrap();
    let refused = site.fails(&["data", "encode", "videos", "--for", "lora.toml", "--out", "data", "--local", "1"]);
    assert!(refused.contains("its text encoder is that of CogVideoX, and the model is one of Wan"), "{refused}");
    // The VAE of 2.2, for a model of 2.1.
    fs::remove_file(&t5).unwrap();
    umt5(&t5);
    let vae = site.root.join("model/vae");
    fs::remove_file(&vae).unwrap();
    symlink(project("tests/fixtures/oracle/wan/vae22_tiny/vae"), &vae).unwrap();
    let refused = site.fails(&["data", "encode", "videos", "--for", "lora.toml", "--out", "data", "--local", "1"]);
    assert!(refused.contains("48 channels"), "{refused}");
    let refused = site.fails(&[
        "data",
        "encode",
        "videos",
        "--for",
        "5b.toml",
        "--set",
        "encoders.latent_pixels=8",
        "--out",
        "data",
    ]);
    assert!(refused.contains("encoders.latent_pixels = 16"), "{refused}");
    let image = project("tests/fixtures/oracle/wan/i2v21_tiny/transformer");
    let refused = site.fails(&["convert", image.as_str(), "weights", "--to", "internal"]);
    assert!(refused.contains("image_dim"), "{refused}");
}

/// Returns the roles of the tensors that the first clip of the data set `data` has besides its latent.
fn stored(site: &TestSite) -> Vec<String> {
    let index = fs::read_to_string(site.root.join("data/index.jsonl")).unwrap();
    let line: serde_json::Value = serde_json::from_str(index.lines().nth(1).unwrap()).unwrap();
    line["extra"].as_object().map(|extra| extra.keys().cloned().collect()).unwrap_or_default()
}

/// Returns the mean difference of the first picture of a video to another picture, from 0 to 255.
fn difference(video: &str, picture: &Utf8Path) -> f64 {
    let rgb = |path: &str, size: &str| {
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-v", "error", "-i", path, "-vf", &format!("scale={size}"), "-frames:v", "1"]);
        ffmpeg.args(["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]).output().unwrap().stdout
    };
    let (a, b) = (rgb(video, "64:64"), rgb(picture.as_str(), "64:64"));
    assert_eq!((a.len(), b.len()), (64 * 64 * 3, 64 * 64 * 3));
    a.iter().zip(&b).map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>() / a.len() as f64
}

#[test]
fn a_folder_of_clips_becomes_an_adapter_that_makes_videos_of_images() {
    for (network, vae, recipe, size, extra) in [
        ("i2v22_tiny", "vae21_tiny", "image.toml", "64:48", &["masked"][..]),
        ("ti2v5b_tiny", "vae22_tiny", "5b.toml", "128:96", &[]),
    ] {
        let Some(site) = site_with_trainer() else { return };
        prepare_with(&site, vae, network, size);
        site.succeeds(&["convert", "model", "weights", "--to", "internal"]);
        site.succeeds(&["data", "encode", "videos", "--for", recipe, "--out", "data", "--local", "1", "--wait"]);
        assert_eq!(stored(&site), extra, "{network}");
        let sets = ["--set", "mesh.dp_shard=2", "--set", "condition.image_dropout=0.5"];
        let start = ["--init", "weights", "--local", "2", "--wait", "--json"];
        let started = site.json(&[&["launch", recipe], &start[..], &sets[..]].concat());
        let run = RunDir::new(started["dir"].as_str().unwrap());
        let losses: Vec<f64> =
            runstate::recent_metrics(&run).unwrap().iter().filter_map(|sample| sample.loss).collect();
        assert!(losses.len() == 6 && losses.iter().all(|loss| loss.is_finite() && *loss > 0.0), "{losses:?}");

        let picture = site.root.join("picture.png");
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-v", "error", "-i", site.root.join("videos/one.mp4").as_str(), "-frames:v", "1"]);
        assert!(ffmpeg.arg(picture.as_str()).status().unwrap().success());
        let prompt = ["--prompt", "a rabbit", "--steps", "3", "--json", "--image", "picture.png"];
        let made = site.json(&[&["sample", "latest"], &prompt[..]].concat());
        let video = made["videos"][0]["path"].as_str().unwrap();
        assert_eq!(made["videos"][0]["sample"]["frames"], 9, "{network}");
        if network == "ti2v5b_tiny" {
            // Weights that no run trained: the pixels of a latent pixel and the use of an image follow from the folder.
            let folder = [&["sample", "model", "--frames", "9", "--width", "128", "--height", "96"], &prompt[..]];
            let of_folder = site.json(&folder.concat());
            assert_eq!(of_folder["videos"][0]["sample"]["fps"], 24.0);
            // The VAE is random: what it makes of the picture is the first frame of every video that begins with it.
            let first = video::read_image(&picture)
                .map(|_| difference(video, Utf8Path::new(of_folder["videos"][0]["path"].as_str().unwrap())));
            assert!(first.unwrap() < 3.0, "the first frames are those of the picture");
        }
        let refused = site.fails(&["sample", "latest", "--prompt", "a rabbit", "--steps", "3", "--width", "72"]);
        assert!(refused.contains("--width"), "{refused}");
    }
}

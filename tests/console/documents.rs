//! The commands of `docs/your-videos.md`, `docs/lora.md`, `docs/memory.md` and README's "Your videos", run as a reader runs them.
//!
//! Small stand-ins replace the Hub, the model and the ranks, so that the tests take seconds on a machine without GPUs.

use crate::hub;
use crate::pty::Pty;
use crate::real_trainer::trainer;
use crate::test_site::{Finish, TestSite, VIDTUI};
use camino::Utf8Path;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

const YOUR_VIDEOS: &str = include_str!("../../docs/your-videos.md");
const LORA: &str = include_str!("../../docs/lora.md");
const MEMORY: &str = include_str!("../../docs/memory.md");
const README: &str = include_str!("../../README.md");
const TOUR: &str = include_str!("../../docs/tour.md");
const RUNS: &str = include_str!("../../docs/runs.md");
const NODES: &str = include_str!("../../docs/nodes.md");

/// The flags that are appended to commands with these beginnings: the sizes of the small model, and `--wait` if the
/// next command needs the result.
const STAND_INS: [(&str, &str); 10] = [
    ("vidtui data encode ", "--text-len 6"),
    ("vidtui data encode ", SIZES),
    ("vidtui data import ", "--channels 4"),
    ("vidtui check ", SMALL),
    ("vidtui launch ", SMALL),
    ("vidtui launch ", WAIT),
    ("vidtui check configs/cogvideox/5b-lora.toml ", "--set lora.rank=4"),
    ("vidtui launch configs/cogvideox/5b-lora.toml ", "--set lora.rank=4"),
    ("vidtui launch mine.toml ", "--set sample.every=2 --set sample.steps=2"),
    ("vidtui launch mine.toml ", LIVE),
];

/// Waits for a run, unless a later command of its block stops it.
const WAIT: &str = "--wait";

/// Makes a run last until a later command of its block stops it.
const LIVE: &str = "--set train.steps=100000 --set env.variables.TRAIN_PACE_S=0.2 --set sample.every=100000";

/// The sizes of small clips, for encodes of one size.
const SIZES: &str = "--frames 9 --height 64 --width 96";

/// The shape of the small model in place of CogVideoX-5B's, and a short run.
const SMALL: &str = "--set model.num_layers=2 --set model.num_heads=4 --set model.head_dim=16 --set model.time_embed_dim=32 \
     --set model.text_dim=24 --set model.text_len=6 --set model.in_channels=4 --set model.out_channels=4 \
     --set model.latent_frames=3 --set model.latent_height=8 --set model.latent_width=12 --set model.base_frames=3 \
     --set model.base_height=8 --set model.base_width=12 --set mesh.dp_shard=2 --set train.global_batch=2 \
     --set train.steps=2 --set optimizer.warmup_steps=1";

/// The beginnings of commands that need the trainer or its results.
const NEEDS_TRAINER: [&str; 13] = [
    "vidtui data buckets data-buckets ",
    "vidtui data encode ",
    "vidtui data prune ",
    "vidtui data show ",
    "vidtui data verify ",
    "vidtui status ",
    "vidtui stop ",
    "vidtui resume ",
    "touch ",
    "vidtui check ",
    "vidtui launch ",
    "vidtui sample ",
    "vidtui convert latest ",
];

/// Returns the code blocks of a document in one language.
pub fn blocks<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    document.split(&begin).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Makes a site with what a reader has at the start: videos with captions, and a Hub.
fn site() -> TestSite {
    let site = TestSite::new();
    let project = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize_utf8().unwrap();
    small_recipes(&project.join("configs/cogvideox"), &site.root.join("configs/cogvideox"));
    symlink(VIDTUI, site.root.join("bin/vidtui")).unwrap();
    let titles = "video,long_caption,short,aesthetic,ocr_score,motion";
    site.write(
        "tables/metadata.csv",
        &format!("{titles}\na.mp4,a ball rolls,ball,5.5,0.01,1.2\nb.mp4,a cube turns,cube,6,0,3\n"),
    );
    let make = |source: &str, file: &str| {
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-v", "error", "-f", "lavfi", "-i", source, "-frames:v", "56", "-pix_fmt", "yuv420p"]);
        assert!(ffmpeg.arg(site.root.join(file)).status().unwrap().success());
    };
    for (name, source) in [("a", "testsrc2"), ("b", "mandelbrot")] {
        site.write(&format!("videos/{name}.txt"), &format!("a picture of {source}"));
        make(&format!("{source}=size=96x64:rate=8"), &format!("videos/{name}.mp4"));
    }
    fs::create_dir(site.root.join("films")).unwrap();
    // Two scenes of 3.5 s.
    make("color=red:size=96x64:rate=8,drawbox=c=white:t=fill:enable='gte(t,3.5)'", "films/film.mp4");
    symlink(project.join("tests/fixtures/dataset/factory"), site.root.join("prepared")).unwrap();
    let (model, oracle) = (site.root.join("hub"), project.join("tests/fixtures/oracle"));
    for (part, from) in [
        ("transformer", "cogvideox/cogvideox_5b_tiny/transformer"),
        ("scheduler", "sampling/scheduler_5b_dpm"),
        ("vae", "vae/cogvideox_5b_tiny/vae"),
        ("text_encoder", "t5/t5_v1_1_tiny/text_encoder"),
        ("tokenizer", "t5/t5_v1_1_tiny/tokenizer"),
    ] {
        let from = oracle.join(from);
        fs::create_dir_all(model.join(part)).unwrap();
        for file in from.read_dir_utf8().unwrap().map(Result::unwrap) {
            fs::copy(file.path(), model.join(part).join(file.file_name())).unwrap();
        }
    }
    site.write("hub/model_index.json", r#"{"_class_name": "CogVideoXPipeline"}"#);
    let (url, home, cache) = (hub::serve(&model), site.root.join("home"), site.root.join("cache"));
    let site = site.with("HF_ENDPOINT", &url).with("HF_HOME", home.as_str()).with("XDG_CACHE_HOME", cache.as_str());
    match trainer() {
        Some(trainer) => site.with("VIDTUI_TRAIN", trainer.as_str()),
        None => site,
    }
}

/// Copies recipes, with the text and latent channels of the small encoders.
fn small_recipes(from: &Utf8Path, to: &Utf8Path) {
    fs::create_dir_all(to).unwrap();
    let small = [
        ("text_dim = 4096", "text_dim = 24"),
        ("out_channels = 16", "out_channels = 4"),
        ("in_channels = 16", "in_channels = 4"),
        ("in_channels = 32", "in_channels = 8"),
        ("in_channels = 33", "in_channels = 9"),
    ];
    for file in from.read_dir_utf8().unwrap().map(Result::unwrap) {
        let text = fs::read_to_string(file.path()).unwrap();
        let text = small.iter().fold(text, |text, (from, to)| text.replace(from, to));
        fs::write(to.join(file.file_name()), text).unwrap();
    }
}

/// Writes the files that a document shows: blocks that begin with `# NAME`.
fn write_files(site: &TestSite, document: &str) {
    for block in [blocks(document, "toml"), blocks(document, "text")].concat() {
        let name =
            block.lines().next().and_then(|line| line.strip_prefix("# ")).expect("the first line names the file");
        // The buckets have the size of the small clips, not that of CogVideoX-5B.
        let small = [("height = 480, width = 720", "height = 64, width = 96"), ("frames = 49", "frames = 5")];
        let block = if name == "buckets.toml" {
            small.iter().fold(block.to_owned(), |block, (from, to)| block.replace(from, to))
        } else {
            block.to_owned()
        };
        site.write(name, &block);
    }
}

/// Returns the number of samples of all runs.
fn samples(site: &TestSite) -> usize {
    site.runs().iter().map(|run| run.list_samples().unwrap().len()).sum()
}

/// Runs the commands of the blocks in their order, with the flags of the stand-ins.
fn run(site: &TestSite, blocks: &[&str], stand_ins: &[(&str, &str)]) {
    let lines = blocks.iter().flat_map(|block| {
        let stops = block.contains("\nvidtui stop ");
        block.lines().map(move |line| (line, stops))
    });
    for (line, stops) in lines.filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#')) {
        let command = line.split(" #").next().unwrap().trim();
        let command = command.replace("--local 8", "--local 2").replace("--local 1", "--local 2");
        let command = command.split_whitespace().collect::<Vec<_>>().join(" ");
        let needs_run = command.contains(" --merge latest");
        if trainer().is_none() && (needs_run || NEEDS_TRAINER.iter().any(|begin| command.starts_with(begin))) {
            eprintln!("skipped: {command}: no vidtui-train; `cargo xtask test` builds it");
            continue;
        }
        let fits = |added: &str| match added {
            SIZES => !command.contains("buckets.toml"),
            WAIT => !stops && !command.contains(WAIT),
            LIVE => stops,
            _ => !command.contains(added),
        };
        let added = stand_ins.iter().filter(|(begin, added)| command.starts_with(begin) && fits(added));
        let command = added.fold(command.clone(), |command, (_, added)| format!("{command} {added}"));
        let (requests, before) = (command.contains(" --now") || command.starts_with("touch "), samples(site));
        // Pictures need a terminal, in which standard output is not separate.
        if command.contains(" --picture") {
            let mut terminal = Pty::start((100, 30), "sh", &["-c", &command], &site.env(), &site.root);
            assert_eq!(terminal.ended(), 0, "{command}\n{}", terminal.text());
            assert!(terminal.raw().contains("\x1b[38;2;"), "{command}\n{}", terminal.text());
            continue;
        }
        let done = site.program("sh", &["-c", &command]).finish();
        assert_eq!(done.code, 0, "{command}\n{}{}", done.stdout, done.stderr);
        if requests {
            // The samples of both prompts.
            site.until("the requested samples", || samples(site) >= before + 2);
        }
        if command.starts_with("vidtui sample ") && !requests {
            assert!(done.stdout.lines().count() > 0, "{command}");
            for video in done.stdout.lines() {
                let video = Utf8Path::new(video);
                let probe = video::probe(video).unwrap();
                assert!(matches!((probe.width, probe.height), (96, 64) | (128, 96)), "{command}");
                assert!(video.with_extension("json").exists());
            }
        }
        // The document needs a second data set, `held-out`. A copy of `data` stands in for it.
        if command.starts_with("vidtui data encode ") {
            let copied =
                Command::new("cp").arg("-r").args(["data", "held-out"].map(|name| site.root.join(name))).status();
            assert!(copied.unwrap().success());
        }
    }
}

#[test]
fn each_command_of_the_document_succeeds() {
    let site = site();
    write_files(&site, YOUR_VIDEOS);
    run(&site, &blocks(YOUR_VIDEOS, "sh"), &STAND_INS);
    assert_eq!(dataset::ClipManifest::read(&site.root.join("videos.jsonl")).unwrap().usable().count(), 2);
    assert!(["clips/film-0001.mp4", "clips/film-0002.mp4"].iter().all(|clip| site.root.join(clip).exists()));
    if trainer().is_some() {
        let frames = |name: &str| video::frame_times(&site.root.join(name)).unwrap().len();
        assert_eq!((frames("clip.mp4"), frames("image.mp4"), frames("masked.mp4")), (9, 1, 9));
        let watched = site.runs().into_iter().find(|run| run.name().contains("-mine-")).expect("a run of mine.toml");
        let samples = watched.list_samples().unwrap();
        // Each of the two requests sampled both prompts.
        assert_eq!(samples.iter().map(|sample| sample.seed).collect::<Vec<_>>(), [42, 7, 42, 7]);
        assert!(samples[0].step < samples[2].step);
        assert_eq!(watched.attempt_numbers().unwrap(), [1, 2], "it was stopped and resumed");
        let measured = rundir::Tail::<rundir::MetricSample>::new(watched.metrics()).poll().unwrap().items;
        assert!(measured.iter().any(|sample| sample.validation_loss_by_level.len() == 9));
    }
}

#[test]
fn the_commands_that_label_find_and_delete_runs_succeed() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    symlink(VIDTUI, site.root.join("bin/vidtui")).unwrap();
    let started = site.succeeds(&["launch", "configs/small/short.toml", "--set", "train.steps=2", "--wait"]);
    run(&site, &blocks(RUNS, "sh"), &[]);
    assert_eq!(site.json(&["runs", "trash", "--json"])["deleted"][0]["run"], started.trim());
}

/// Returns the part of docs/lora.md about the demo's model, and the part about a released model.
fn parts_of_lora() -> (&'static str, &'static str) {
    let (_, rest) = LORA.split_once("\n## Try it with the demo's model\n").expect("docs/lora.md has the section");
    rest.split_once("\n## ").expect("another section follows")
}

#[test]
fn the_commands_that_train_an_adapter_on_the_demos_model_succeed() {
    if trainer().is_none() {
        eprintln!("skipped: no vidtui-train; `cargo xtask test` builds it");
        return;
    }
    let site = site();
    let project = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize_utf8().unwrap();
    for folder in ["configs/bunny", "assets"] {
        symlink(project.join(folder), site.root.join(folder)).unwrap();
    }
    // A few files as the demo makes them: clips with captions, and a model.
    for clip in 0..4 {
        site.write(&format!("demo/clips/2s/{clip}.txt"), &format!("a grey rabbit yawns {clip}"));
        let video = site.root.join(format!("demo/clips/2s/{clip}.mp4"));
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-v", "error", "-ss", &clip.to_string(), "-i", project.join("assets/demo/bunny.mp4").as_str()]);
        assert!(ffmpeg.args(["-t", "2", video.as_str()]).status().unwrap().success());
    }
    let short = "--set train.steps=2 --set optimizer.warmup_steps=1 --set sample.every=0";
    let encode =
        "vidtui data encode demo/clips/2s --model assets/demo/model --fps 12.5 --dtype float32 --wait --local 2";
    for command in [
        format!("{encode} --for configs/bunny/2s.toml --out 2s"),
        format!("vidtui launch configs/bunny/2s.toml --set data.index=2s {short} --wait"),
    ] {
        let done = site.program("sh", &["-c", &command]).finish();
        assert_eq!(done.code, 0, "{command}\n{}{}", done.stdout, done.stderr);
    }
    // The recipe is in the repository, whose `demo/` is not that of this site.
    let launch = format!("--set data.index=demo/lora {short}");
    let stand_ins = [("vidtui launch ", launch.as_str())];
    run(&site, &blocks(parts_of_lora().0, "sh"), &stand_ins);
    assert!(site.root.join("demo/lora-diffusers/pytorch_lora_weights.safetensors").is_file());
    let sampled = site.runs().into_iter().find(|run| run.name().contains("-sample-")).expect("a run that samples");
    let weights = sampled.read_run().unwrap().lineage.expect("weights of a run").run;
    let trained = site.runs().into_iter().find(|run| run.name() == weights.as_str()).unwrap().read_run().unwrap();
    assert_eq!(trained.name, "bunny-lora");
    assert!(trained.lineage.is_some_and(|base| base.run.as_str().contains("-bunny-2s-")), "the demo's run");
}

#[test]
fn each_command_of_the_document_about_lora_succeeds() {
    let site = site();
    let (_, document) = parts_of_lora();
    write_files(&site, document);
    run(&site, &blocks(document, "sh"), &STAND_INS);
    if trainer().is_none() {
        return;
    }
    let mine = recipe::load(&site.root.join("mine.toml"), &[]).unwrap().recipe;
    assert_eq!((mine.lora.rank, mine.lora.dropout), (64, 0.1));
    for file in ["lora/pytorch_lora_weights", "lora-peft/adapter_model", "lora-kohya/lora"] {
        assert!(site.root.join(format!("{file}.safetensors")).is_file(), "{file}");
    }
    let trained = site.runs().into_iter().filter(|run| run.read_run().unwrap().task() == recipe::Task::Train);
    let from: Vec<bool> =
        trained.map(|run| run.read_run().unwrap().recipe().unwrap().lora.starts_from().is_some()).collect();
    assert_eq!(from.iter().filter(|from| **from).count(), 1, "{from:?}");
    let sampled = site.runs().into_iter().flat_map(|run| run.list_samples().unwrap());
    let weights: Vec<Vec<f64>> = sampled.map(|sample| sample.lora.iter().map(|lora| lora.weight).collect()).collect();
    for wanted in [vec![], vec![1.0], vec![0.8, 0.3]] {
        assert!(weights.contains(&wanted), "{weights:?}");
    }
}

#[test]
fn each_command_of_the_document_about_memory_succeeds_without_a_trainer() {
    let site = TestSite::new();
    let project = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize_utf8().unwrap();
    symlink(project.join("configs/cogvideox"), site.root.join("configs/cogvideox")).unwrap();
    let lines: Vec<&str> = blocks(MEMORY, "sh").into_iter().flat_map(str::lines).collect();
    let args = |line: &'static str| -> Vec<&'static str> {
        let command = line.split(" #").next().unwrap().trim();
        command.strip_prefix("vidtui ").expect("a command of vidtui").split_whitespace().collect()
    };
    let [fit, table] = lines[..] else { panic!("{lines:?}") };
    let fits = site.json(&[&args(fit)[..], &["--json"]].concat());
    assert!(fits["fits"][0]["peak"].as_u64().unwrap() <= fits["limit_bytes"].as_u64().unwrap());
    assert!(site.json(&[&args(table)[..], &["--json"]].concat())["rows"].as_array().unwrap().len() > 10);
    insta::assert_snapshot!("fit_memory", [fit, table].map(|line| site.succeeds(&args(line))).join("\n"));
    let none = [&args(fit)[..2], &["--fit-memory", "2GiB"]].concat();
    assert_eq!(site.error(&none), (1, "out-of-memory".into()));
    assert_eq!(site.vidtui(&["check", "configs/cogvideox/2b.toml", "--fit-memory", "much"]).code, 2);
}

#[test]
fn every_command_of_the_readme_and_the_tour_has_arguments_that_exist() {
    let site = TestSite::new();
    let lines = [README, TOUR, NODES].into_iter().flat_map(|page| blocks(page, "sh")).flat_map(str::lines);
    let commands: Vec<&str> = lines
        .filter_map(|line| {
            let names = ["target/release/vidtui ", "$vidtui ", "vidtui "];
            names.into_iter().find_map(|name| line.strip_prefix(name))
        })
        .map(|line| line.split(" #").next().unwrap().trim())
        .collect();
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands {
        // With `--help`, a command only parses the arguments before it.
        let done = site.program("sh", &["-c", &format!("{VIDTUI} {command} --help")]).finish();
        assert_eq!(done.code, 0, "{command}\n{}", done.stderr);
    }
}

#[test]
fn each_command_about_videos_in_the_readme_succeeds() {
    let (_, section) = README.split_once("\n## Your videos\n").expect("README has the section");
    let section = section.split("\n## ").next().unwrap();
    run(&site(), &blocks(section, "sh"), &STAND_INS);
}

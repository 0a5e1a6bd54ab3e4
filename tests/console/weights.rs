//! Tests of `vidtui convert` and `vidtui inspect`, from a diffusers model to a run and back.

use crate::pty::{ENTER, RIGHT};
use crate::real_trainer::trainer;
use crate::test_site::TestSite;
use camino::{Utf8Path, Utf8PathBuf};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

fn model() -> Utf8PathBuf {
    let folder = "../../tests/fixtures/oracle/cogvideox/cogvideox_5b_tiny/transformer";
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).canonicalize_utf8().unwrap()
}

/// Links the model to a short path. Long paths wrap on the screen, and the test must not depend on the path of the checkout.
fn nearby_model(site: &TestSite) -> Utf8PathBuf {
    let link = site.root.join("theirs");
    std::os::unix::fs::symlink(model(), &link).unwrap();
    link
}

/// Writes a recipe for the converted weights `inner`, and data of their shape.
fn recipe(site: &TestSite) {
    site.write_tensor("data/tiny.latent.safetensors", "latent", &[3, 4, 8, 12]);
    site.write_tensor("data/tiny.text.safetensors", "text", &[6, 24]);
    let line = r#"{"vid_emb": "tiny.latent.safetensors", "text_chunk_emb": ["tiny.text.safetensors"]}"#;
    site.write("data/tiny.jsonl", &format!("{line}\n"));
    let rest = "[data]\nindex = \"data/tiny.jsonl\"\n[train]\nsteps = 1\nglobal_batch = 1\ndtype = \"float32\"\n";
    site.write("tiny.toml", &format!("base = \"inner/model.toml\"\n{rest}"));
}

#[test]
fn a_launch_starts_from_a_converted_diffusers_model() {
    let site = TestSite::new();
    let model = model();
    let printed = site.succeeds(&["convert", model.as_str(), "inner", "--to", "internal"]);
    assert_eq!(printed.trim(), "inner");
    recipe(&site);
    let shown = site.succeeds(&["launch", "tiny.toml", "--init", "inner", "--dry-run"]);
    // No run has trained the weights.
    assert!(shown.lines().any(|line| line.starts_with("weights ") && line.ends_with("/inner")), "{shown}");
    let inspected = site.json(&["inspect", "inner", "--json"]);
    assert_eq!(
        (inspected["kind"].as_str(), inspected["family"].as_str()),
        (Some("checkpoint"), Some("CogVideoX, rope positions"))
    );
    assert_eq!((inspected["complete"].as_bool(), inspected["layers"].as_u64()), (Some(true), Some(2)));
    let found = site.json(&["inspect", model.as_str(), "inner", "--json"]);
    assert_eq!(found["difference"]["same"], 64);
}

#[test]
fn a_dry_run_lists_the_result_for_every_tensor_and_writes_nothing() {
    let site = TestSite::new();
    let args =
        ["convert", model().as_str(), "inner", "--to", "internal", "--layer", "ttt_linear", "--in-channels", "9"]
            .map(str::to_owned);
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    args.push("--dry-run");
    let shown = site.succeeds(&args);
    insta::assert_snapshot!(shown.replace(model().as_str(), "MODEL"));
    assert!(!site.root.join("inner").exists());
    args.push("--json");
    let document = site.json(&args);
    assert_eq!(document["report"]["initialized"].as_array().unwrap().len(), 40);
    assert_eq!(document["done"], false);
}

#[test]
fn invalid_conversions_have_hints() {
    let site = TestSite::new();
    let model = model();
    site.succeeds(&["convert", model.as_str(), "inner", "--to", "internal"]);
    let output = [
        site.fails(&["convert", model.as_str(), "inner", "--to", "internal"]),
        site.fails(&["convert", "nowhere", "outer", "--to", "diffusers"]),
        site.fails(&["convert", "./nowhere", "outer", "--to", "diffusers"]),
        site.fails(&["convert", "data", "outer", "--to", "diffusers"]),
        site.fails(&["inspect", "configs"]),
    ];
    insta::assert_snapshot!(output.join("\n").replace(model.as_str(), "MODEL"));
}

#[test]
fn values_that_are_not_finite_are_listed_and_refused() {
    let site = TestSite::new();
    let folder = site.root.join("broken");
    fs::create_dir(&folder).unwrap();
    for file in model().read_dir_utf8().unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    let name = "proj_out.bias";
    let mut files = folder.read_dir_utf8().unwrap().map(|file| file.unwrap().into_path());
    let shard = files.find(|file| weights::Header::read(file).is_ok_and(|header| header.tensor(name).is_ok())).unwrap();
    let at = weights::Header::read(&shard).unwrap().tensors[name].begin as usize;
    let mut bytes = fs::read(&shard).unwrap();
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&shard, bytes).unwrap();
    let convert = ["convert", "broken", "inner", "--to", "internal"];
    assert_eq!(site.error(&convert), (1, "not-finite".to_owned()));
    assert!(!site.root.join("inner").exists());
    let done = site.json(&[&convert[..], &["--allow-not-finite", "--json"]].concat());
    assert_eq!(done["not_finite"], serde_json::json!([{ "tensor": name, "values": 1 }]));
    let seen = site.json(&["inspect", "broken", "--values", "--json"]);
    let row = seen["tensors"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
    assert_eq!((&row["stats"]["nan"], &row["stats"]["infinite"]), (&1.into(), &0.into()));
    assert!(site.succeeds(&["inspect", "broken", "--values"]).contains("proj_out.bias (1)"));
}

#[test]
fn the_trainer_starts_from_converted_weights_and_its_checkpoint_converts_back() {
    let Some(trainer) = trainer() else {
        eprintln!("skipped: no vidtui-train; `cargo xtask test` builds it");
        return;
    };
    let site = TestSite::new().with("VIDTUI_TRAIN", trainer.as_str());
    let model = model();
    site.succeeds(&["convert", model.as_str(), "inner", "--to", "internal"]);
    recipe(&site);
    // The learning rate is so small that the weights change by at most 1e-8.
    let launch = ["launch", "tiny.toml", "--init", "inner", "--set", "optimizer.lr=1e-9", "--wait"];
    let run = site.succeeds(&launch);
    site.succeeds(&["convert", run.trim(), "outer", "--to", "diffusers"]);
    let found = site.json(&["inspect", model.as_str(), "outer", "--json"]);
    let config = |folder: &Utf8Path| fs::read_to_string(folder.join("config.json")).unwrap();
    assert_eq!(config(&site.root.join("outer")), config(&model), "the config of the source is kept");
    let found = &found["difference"];
    assert_eq!((found["missing"].as_array().unwrap().len(), found["extra"].as_array().unwrap().len()), (0, 0));
    for changed in found["changed"].as_array().unwrap() {
        assert!(changed["largest"].as_f64().unwrap() <= 1e-8, "{changed}");
    }
}

/// Writes a diffusers model of half a gigabyte as a sparse file of zeros.
fn large(site: &TestSite) {
    let config = r#"{"_class_name": "CogVideoXTransformer3DModel", "num_layers": 2, "num_attention_heads": 32}"#;
    site.write("large/config.json", config);
    let config = weights::Config::read(&site.root.join("large/config.json")).unwrap();
    let model = weights::model_from_diffusers(&config).unwrap();
    let mut at = 0;
    let entries = recipe::param_specs(&model).into_iter().map(|spec| {
        let (name, begin) = (spec.diffusers.as_ref().unwrap(), at);
        at += 4 * spec.len();
        format!(r#""{name}":{{"dtype":"F32","shape":{:?},"data_offsets":[{begin},{at}]}}"#, spec.shape)
    });
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    let mut file = File::create(site.root.join("large/diffusion_pytorch_model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + at).unwrap();
}

#[test]
fn an_interrupted_conversion_leaves_no_folder_and_can_be_repeated() {
    let site = TestSite::new();
    large(&site);
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let (target, part) = (site.root.join(signal.as_str()), site.root.join(format!(".{signal}.part")));
        let args = ["convert", "large", signal.as_str(), "--to", "internal"];
        let ended = (0..20).find_map(|_| {
            let mut child = site.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let writes = || part.read_dir_utf8().is_ok_and(|mut files| files.next().is_some());
            while !writes() && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
            let ended = child.wait().unwrap();
            // A conversion that completed before the signal is repeated.
            let completed = target.exists();
            if completed {
                fs::remove_dir_all(&target).unwrap();
            }
            (!completed).then_some(ended)
        });
        assert_eq!(ended.and_then(|ended| ended.signal()), Some(signal as i32));
        assert_eq!(part.exists(), signal == Signal::SIGKILL, "only a killed process leaves its temporary files");
        site.succeeds(&args);
        assert!(!part.exists());
        rundir::Checkpoint::open(&target).unwrap().verify_checksums().unwrap();
    }
}

#[test]
fn the_console_previews_a_conversion_and_executes_it() {
    let site = TestSite::new();
    let console = site.console((120, 50), &[], &[]);
    console.shows(&["No runs yet"]).press("4").shows(&["Convert weights", "a diffusers folder"]);
    console.press(ENTER).shows(&["Source:"]);
    console.press(nearby_model(&site).as_str()).press(ENTER).shows(&["theirs-internal", "in 1 file"]);
    console.press("j").press(ENTER).shows(&["New folder:"]);
    // The first key replaces the proposed folder.
    console.press("inner").press(ENTER);
    console.shows(&["inner, 639 KiB in 1 file", "convert as shown", "blocks.{i}.attn.q.weight"]);
    assert!(!site.root.join("inner").exists(), "a preview writes nothing");
    console.press("C").shows(&["Wrote inner"]);
    let found = site.json(&["inspect", model().as_str(), "inner", "--json"]);
    assert_eq!((found["difference"]["same"].as_u64(), found["difference"]["norm"].as_f64()), (Some(64), Some(0.0)));
    // The target exists now.
    console.press("j").press("j").press(RIGHT).shows(&["The folder exists", "! replace it"]);
    console.press("!").shows(&["Replaces the existing conversion in that folder.", "do not replace"]);
    console.press("C").shows(&["vidtui launch RECIPE --init inner"]);
    let inspected = site.json(&["inspect", "inner", "--json"]);
    assert_eq!((inspected["kind"].as_str(), inspected["complete"].as_bool()), (Some("checkpoint"), Some(true)));
}

#[test]
fn the_console_converts_a_run_by_its_name_or_as_the_latest() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let args = ["launch", "configs/small/short.toml", "--name", "cats", "--set", "train.steps=2", "--wait"];
    let run = site.succeeds(&args);
    let console = site.console((120, 50), &[], &[]);
    console.shows(&["finished"]).press("4").shows(&["Convert weights"]).press(ENTER).shows(&["Source:"]);
    console.press("cats").press(ENTER).shows(&["cats-internal", run.trim()]);
    console.press(ENTER).shows(&["Source:"]).press(&"\x7f".repeat(4)).press("latest").press(ENTER);
    console.shows(&["latest-internal", run.trim()]);
}

#[test]
fn a_stage_that_starts_from_a_diffusers_model_offers_to_convert_it() {
    let site = TestSite::new();
    let stages = format!(
        "title = \"Theirs\"\n[[stage]]\nname = \"begin\"\nrecipe = \"../small/short.toml\"\nstart = \"{}/\"\n",
        nearby_model(&site)
    );
    site.write("configs/theirs/curriculum.toml", &stages);
    let console = site.console((100, 40), &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Theirs", "begin"]);
    console.press("G").press(ENTER).shows(&["✗ weights", "C convert"]);
    console.press("C").shows(&["Convert weights", "theirs-internal", "convert as shown"]);
}

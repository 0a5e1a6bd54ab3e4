//! `vidtui check` on the recipes of the released models: the cost, the missing files, and the commands that make them.

use crate::test_site::TestSite;
use camino::Utf8Path;
use recipe::ConditionKind;
use serde_json::Value;
use std::collections::BTreeMap;

/// Recipe, parameters, tokens, and GiB of the weights, gradients and optimizer of each of 8 ranks.
const RECIPES: [(&str, u64, u64, f64); 6] = [
    ("2b", 1_693_783_872, 17_776, 3.15),
    ("5b", 5_570_283_072, 17_776, 10.38),
    ("5b-i2v", 5_570_479_680, 17_776, 10.39),
    ("1.5-5b", 5_570_676_352, 45_106, 10.38),
    ("1.5-5b-i2v", 5_571_594_880, 45_106, 10.38),
    ("fun-5b-inp", 5_570_491_968, 13_538, 10.38),
];

/// The checks whose results depend on this machine.
const OF_THE_MACHINE: [&str; 5] = ["disk", "inodes", "memory", "node", "trainer"];

fn config(name: &str) -> String {
    let path = format!("../../configs/cogvideox/{name}.toml");
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join(path).canonicalize_utf8().unwrap().into_string()
}

/// Runs `vidtui check`, which may fail. Returns the document, and the result and code of each check.
fn check(site: &TestSite, args: &[&str]) -> (Value, BTreeMap<String, (String, Option<String>)>) {
    check_on(site, "8", args)
}

/// As [`check`], with a number of ranks.
fn check_on(site: &TestSite, ranks: &str, args: &[&str]) -> (Value, BTreeMap<String, (String, Option<String>)>) {
    let done = site.vidtui(&[&["check"], args, &["--local", ranks, "--json"]].concat());
    let document: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {}", done.stderr));
    assert_eq!(done.code, i32::from(document["ready"] != true));
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let checks = document["checks"].as_array().unwrap().iter();
    let checks = checks
        .map(|check| (text(&check["id"]).unwrap(), (text(&check["result"]).unwrap(), text(&check["failure"]["code"]))));
    let checks = checks.collect();
    (document, checks)
}

/// Makes a data set of one clip with the shapes of a recipe.
fn data(site: &TestSite, name: &str) -> String {
    let recipe = recipe::load(Utf8Path::new(&config(name)), &[]).unwrap().recipe;
    let model = &recipe.model;
    let [frames, channels] = [model.latent_frames, model.out_channels];
    let shape = |frames: usize, channels: usize| [frames, channels, model.latent_height, model.latent_width];
    let (latent, image, known) = (shape(frames, channels), shape(1, channels), shape(frames, 1));
    let of_condition: Vec<(&str, &[usize])> = match recipe.condition.kind {
        ConditionKind::None => vec![],
        ConditionKind::Image => vec![("image", &image)],
        ConditionKind::Inpaint => vec![("known", &known), ("masked", &latent)],
        other => unreachable!("CogVideoX has no condition {other:?}"),
    };
    let mut tensors: Vec<(String, &[usize])> = vec![("latent".into(), &latent)];
    for draw in 0..recipe.condition.draws() {
        let name = |role: &str| if draw == 0 { role.to_owned() } else { format!("{role}.{draw}") };
        tensors.extend(of_condition.iter().map(|(role, shape)| (name(role), *shape)));
    }
    let tensors: Vec<(&str, &[usize])> = tensors.iter().map(|(name, shape)| (name.as_str(), *shape)).collect();
    site.write_tensors(&format!("data/{name}.safetensors"), &tensors);
    site.write_tensor(&format!("data/{name}.text.safetensors"), "text", &[model.text_len, model.text_dim]);
    let line = format!(r#"{{"vid_emb": "{name}.safetensors", "text_chunk_emb": ["{name}.text.safetensors"]}}"#);
    site.write(&format!("data/{name}.index.jsonl"), &format!("{line}\n"));
    format!("data.index=data/{name}.index.jsonl")
}

#[test]
fn each_recipe_of_a_released_model_is_checked_and_shows_what_it_needs() {
    let site = TestSite::new();
    for (name, params, tokens, state_gib) in RECIPES {
        let (document, checks) = check(&site, &[&config(name), "--set", &data(&site, name)]);
        for (id, (result, code)) in &checks {
            assert!(result == "good" || OF_THE_MACHINE.contains(&id.as_str()), "{name}: {id}: {result} {code:?}");
        }
        let cost = &document["cost"];
        assert_eq!((cost["params"].as_u64(), cost["seq_len"].as_u64()), (Some(params), Some(tokens)), "{name}");
        assert_eq!(cost["trainable"].as_u64().map(|count| count <= params), Some(true));
        let gib = |part: &str| cost["memory"][part].as_f64().unwrap() / f64::from(1 << 30);
        let state = gib("weights") + gib("gradients") + gib("optimizer");
        assert!((state - state_gib).abs() < 0.02 * state_gib, "{name}: {state}");
        // Weights and both moments, in float32.
        let checkpoint = cost["checkpoint_bytes"].as_f64().unwrap() / params as f64;
        assert!((checkpoint - 12.0).abs() < 0.2, "{name}: {checkpoint}");
        assert_eq!(document["mesh"]["dp_shard"], 8);
    }
}

/// LoRA recipe, the recipe that it builds on, ranks, and adapters in millions of parameters.
const LORA_RECIPES: [(&str, &str, &str, f64); 5] = [
    ("2b-lora", "2b", "1", 58.98),
    ("5b-lora", "5b", "1", 132.12),
    ("5b-i2v-lora", "5b-i2v", "1", 132.12),
    ("1.5-5b-lora", "1.5-5b", "2", 33.03),
    ("../fun/5b-inp-lora", "fun-5b-inp", "1", 49.55),
];

#[test]
fn each_lora_recipe_is_checked_and_its_checkpoints_hold_adapters_alone() {
    let site = TestSite::new();
    for (name, full, ranks, millions) in LORA_RECIPES {
        let (document, checks) = check_on(&site, ranks, &[&config(name), "--set", &data(&site, full)]);
        for (id, (result, code)) in &checks {
            assert!(result == "good" || OF_THE_MACHINE.contains(&id.as_str()), "{name}: {id}: {result} {code:?}");
        }
        let trainable = document["cost"]["trainable"].as_f64().unwrap();
        assert!((trainable / 1e6 - millions).abs() < 0.01, "{name}: {trainable}");
        assert_eq!(document["cost"]["checkpoint_bytes"].as_f64(), Some(12.0 * trainable), "{name}");
    }
    // An adapter to start from belongs to weights.
    let adapter = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/weights/lora/peft");
    let from = format!("lora.from={}", adapter.canonicalize_utf8().unwrap());
    let (_, checks) = check_on(&site, "1", &[&config("5b-lora"), "--set", &data(&site, "5b"), "--set", &from]);
    assert_eq!(checks["weights"], ("bad".to_owned(), Some("no-weights".to_owned())));
}

#[test]
fn samples_whose_encoders_or_held_out_clips_are_missing_are_refused_before_the_start() {
    let site = TestSite::new();
    let short = ["configs/small/short.toml", "--set", "mesh.dp_shard=8", "--set", "train.global_batch=8"];
    let with = |sets: &[&str]| check(&site, &[&short[..], sets].concat()).1["data"].0.clone();
    assert_eq!(with(&[]), "good");
    let prompts =
        ["--set", "sample.every=1", "--set", "sample.prompts=[\"a rabbit\"]", "--set", "encoders.folder=nonesuch"];
    assert_eq!(with(&prompts), "bad");
    let held_out =
        |index: &str| with(&["--set", "sample.every=1", "--set", &format!("sample.validation_index={index}")]);
    let [same, missing] =
        ["data/short.jsonl", "data/nonesuch.jsonl"].map(|path| held_out(site.root.join(path).as_str()));
    assert_eq!((same.as_str(), missing.as_str()), ("good", "bad"));
}

#[test]
fn missing_files_are_named_with_the_command_that_makes_them() {
    let site = TestSite::new();
    let fix = |document: &Value, id: &str| {
        let checks = document["checks"].as_array().unwrap();
        checks.iter().find(|check| check["id"] == id).unwrap()["failure"]["fix"].as_str().unwrap().to_owned()
    };
    let (document, checks) = check(&site, &[&config("5b"), "--init", "CogVideoX-5b"]);
    let bad = |code: &str| ("bad".to_owned(), Some(code.to_owned()));
    assert_eq!((&checks["data"], &checks["weights"]), (&bad("invalid-dataset"), &bad("not-found")));
    assert!(fix(&document, "data").contains("vidtui data encode"), "{document}");
    assert!(fix(&document, "weights").contains("vidtui fetch zai-org/CogVideoX-5b"), "{document}");
    assert!(fix(&document, "weights").contains("vidtui convert"), "{document}");
    // The same in commands that read weights.
    site.write("clips.jsonl", "");
    for args in [
        &["convert", "zai-org/CogVideoX-5b", "weights", "--to", "internal"][..],
        &["convert", "CogVideoX-5b", "weights", "--to", "internal"],
        &["inspect", "CogVideoX-5b"],
        &["sample", "CogVideoX-5b", "--prompt", "a rabbit"],
    ] {
        let done = site.vidtui(args);
        assert_ne!(done.code, 0, "{args:?}");
        assert!(done.stderr.contains("vidtui fetch zai-org/CogVideoX-5b"), "{args:?}: {}", done.stderr);
    }
}

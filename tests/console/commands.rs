//! Tests of the commands without a terminal: output, errors and exit codes.

use crate::test_site::{Finish, TestSite};
use std::process::Stdio;

#[test]
fn a_run_is_launched_stopped_and_resumed_by_commands() {
    let site = TestSite::new();
    let run = site.succeeds(&["launch", "configs/small/curriculum.toml:short", "--local", "2"]);
    let run = run.trim();
    assert!(run.contains("small-short"), "{run}");
    site.until_step(run, 3);
    assert_eq!(site.json(&["status", run, "--json"])["state"], "running");
    site.until("the ranks to write their logs", || {
        let logs = site.succeeds(&["logs", run]);
        logs.contains("0: rank 0 begins") && logs.contains("1: rank 1 begins")
    });

    site.succeeds(&["stop", run, "--wait"]);
    let stopped = site.json(&["status", run, "--json"]);
    assert_eq!(stopped["state"], "stopped");
    let saved = stopped["checkpoint"]["step"].as_u64().unwrap();

    assert_eq!(site.succeeds(&["resume", run]).trim(), run);
    site.until_step(run, saved + 2);
    let resumed = site.json(&["status", run, "--json"]);
    assert_eq!(resumed["attempt"]["number"], 2);
    assert_eq!(resumed["attempt"]["start_step"].as_u64(), Some(saved));
}

#[test]
fn the_next_stage_starts_with_the_weights_of_the_finished_one() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    site.succeeds(&["launch", "configs/small/curriculum.toml:short", "--set", "train.steps=30", "--wait"]);
    let run = site.succeeds(&["next", "latest", "--wait"]);
    let document = site.json(&["status", run.trim(), "--json"]);
    assert_eq!(document["stage"], "long");
    assert_eq!(document["state"], "finished");
    assert_eq!(document["parent"]["step"], 30);
    let stages = site.json(&["stages", "configs/small", "--json"]);
    assert_eq!(stages["stages"][0]["state"], "finished");
    assert_eq!(stages["stages"][1]["changes"][0]["key"], "model.latent_frames");
}

#[test]
fn a_run_of_some_epochs_and_a_new_run_from_its_weights_have_the_steps_of_these_epochs() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    site.succeeds(&["launch", "configs/small/short.toml", "--set", "train.epochs=30", "--wait"]);
    // A resume takes the steps from the last attempt, not from the data set.
    let data = std::fs::read_to_string(site.root.join("data/short.jsonl")).unwrap();
    site.write("data/short.jsonl", "");
    let longer = ["resume", "latest", "--set", "train.steps=40", "--dry-run", "--json"];
    assert_eq!(site.json(&longer)["attempt"]["start_step"], 30);
    site.write("data/short.jsonl", &data);
    site.succeeds(&["resume", "latest", "--weights-only", "--wait"]);
    let steps: Vec<_> = site.runs().iter().map(|run| run.latest_attempt().unwrap().unwrap().steps).collect();
    assert_eq!(steps, [Some(30), Some(30)]);
}

#[test]
fn a_run_has_a_note_and_goes_to_the_trash_and_back_unless_another_one_needs_it() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let parent = site.succeeds(&["launch", "configs/small/curriculum.toml:short", "--set", "train.steps=3", "--wait"]);
    let parent = parent.trim();
    let noted = site.json(&["runs", "note", parent, "#baseline", "of the sweep", "--json"]);
    assert_eq!((&noted["note"], &noted["tags"][0]), (&"#baseline of the sweep".into(), &"baseline".into()));
    site.succeeds(&["runs", "note", parent, ""]);
    assert_eq!(site.json(&["runs", "note", parent, "--json"])["note"], serde_json::Value::Null);
    site.succeeds(&["runs", "note", parent, "#baseline of the sweep"]);
    let child = site.succeeds(&["next", parent, "--set", "train.steps=100000"]);
    let child = child.trim();
    assert_eq!(site.error(&["runs", "delete", parent, "--yes"]), (1, "checkpoint-in-use".into()));
    assert_eq!(site.error(&["runs", "delete", child, "--yes"]), (1, "run-is-alive".into()));
    site.succeeds(&["stop", child, "--wait"]);
    let found = site.json(&["runs", "--tag", "baseline", "--json"]);
    assert_eq!((found["runs"].as_array().unwrap().len(), &found["runs"][0]["run"]), (1, &parent.into()));
    // Without a terminal, the question is not answered.
    assert_ne!(site.vidtui(&["runs", "delete", parent]).code, 0);
    assert_eq!(site.json(&["runs", "delete", parent, "--yes", "--json"])["deleted"][0], parent);
    assert_eq!(site.json(&["runs", "--json"])["runs"].as_array().unwrap().len(), 1);
    assert_eq!(site.json(&["runs", "trash", "--json"])["deleted"][0]["run"], parent);
    site.succeeds(&["runs", "restore", parent]);
    assert_eq!(site.json(&["status", parent, "--json"])["note"], "#baseline of the sweep");
    site.succeeds(&["runs", "delete", parent, "--yes"]);
    assert_eq!(site.json(&["runs", "trash", "--empty", "--yes", "--json"])["removed"][0], parent);
    assert!(!site.root.join("runs/trash").join(parent).exists());
}

#[test]
fn a_damaged_parquet_table_is_an_error_and_not_a_panic_of_its_library() {
    let site = TestSite::new();
    for name in ["short-dictionary", "negative-length"] {
        let fixture = format!("{}/../../tests/fixtures/fuzz/parquet/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::copy(fixture, site.root.join("clips.parquet")).unwrap();
        let error = site.fails(&["data", "check", "clips.parquet"]);
        assert!(error.contains("cannot read") && !error.contains("panicked"), "{error}");
    }
}

#[test]
fn a_run_is_found_by_prefix_and_suffix_of_its_id_and_as_latest() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let run = site.succeeds(&["launch", "configs/small/short.toml", "--set", "train.steps=2", "--wait"]);
    let run = run.trim();
    for name in [run, &run[..run.len() - 2], &run[run.len() - 6..], "latest"] {
        assert_eq!(site.json(&["status", name, "--json"])["run"], run);
    }
    insta::assert_snapshot!(site.fails(&["status", "nonesuch"]));
}

#[test]
fn a_run_is_found_by_its_name_unless_another_run_has_it_too() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let launch = |name| {
        let run =
            site.succeeds(&["launch", "configs/small/short.toml", "--set", "train.steps=2", "--name", name, "--wait"]);
        run.trim().to_owned()
    };
    let (mine, other) = (launch("Mine"), launch("other"));
    for (name, run) in [("Mine", &mine), ("mine", &mine), ("other", &other)] {
        assert_eq!(site.json(&["status", name, "--json"])["run"], **run);
    }
    let again = launch("Mine");
    assert_eq!(site.error(&["status", "Mine"]), (2, "ambiguous-name".into()));
    let shown = site.vidtui(&["stop", "Mine"]).stderr;
    assert!(shown.contains(&mine) && shown.contains(&again) && !shown.contains(&other), "{shown}");
}

#[test]
fn runs_are_listed_by_name_state_and_number() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let launch = |name: &str| {
        let args = ["launch", "configs/small/short.toml", "--set", "train.steps=2", "--name", name, "--wait"];
        site.succeeds(&args).trim().to_owned()
    };
    let (first, second, third) = (launch("mine"), launch("other"), launch("Mine-2"));
    let listed = |more: &[&str]| -> Vec<String> {
        let document = site.json(&[&["runs", "--json"], more].concat());
        let runs = document["runs"].as_array().unwrap().iter();
        runs.map(|run| run["run"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(&["--name", "mine"]), [&*third, &*first]);
    assert_eq!(listed(&["--name", "Mine-2"]), [&*third]);
    assert_eq!(listed(&["--limit", "2"]), [&*third, &*second]);
    assert_eq!(listed(&["--state", "finished", "--state", "failed", "--name", "mine", "--limit", "1"]), [&*third]);
    assert_eq!(listed(&["--state", "failed"]), [""; 0]);
    assert_eq!(site.vidtui(&["runs", "--state", "done"]).code, 2);
    let text = site.succeeds(&["runs", "--name", "other"]);
    assert!(text.contains(&second) && !text.contains(&first), "{text}");
}

#[test]
fn a_dry_run_shows_everything_and_starts_nothing() {
    let site = TestSite::new();
    let shown = site.succeeds(&["launch", "configs/small/short.toml", "--local", "2", "--dry-run"]);
    assert!(shown.contains("supervise --run-dir"), "{shown}");
    assert!(site.runs().is_empty());
    let document = site.json(&["launch", "configs/small/short.toml", "--dry-run", "--json"]);
    assert!(document["summary"]["mesh"].as_str().unwrap().contains("2 ranks"));
}

#[test]
fn a_kill_without_a_terminal_needs_yes_and_leaves_no_process() {
    let site = TestSite::new();
    let run = site.succeeds(&["launch", "configs/small/short.toml"]);
    let run = run.trim();
    site.until_step(run, 1);
    let plan = site.json(&["kill", run, "--dry-run", "--json"]);
    assert_eq!(plan["nodes"][0]["ranks"].as_array().unwrap().len(), 2);
    assert_eq!(site.error(&["kill", run]), (2, "no-terminal".into()));
    assert_eq!(site.json(&["status", run, "--json"])["state"], "running");
    site.succeeds(&["kill", run, "--yes"]);
    let files = remote::pid_files(&site.runs()[0]).unwrap();
    assert!(files.iter().all(|(_, live)| *live == runstate::Liveness::Dead));
    assert_eq!(site.error(&["kill", run, "--yes"]), (1, "run-not-running".into()));
}

#[test]
fn a_killed_rank_fails_the_run_and_resume_continues_it() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1").with("FAKE_DIES_AT", "25");
    let launch = ["launch", "configs/small/short.toml", "--set", "train.steps=40", "--wait"];
    assert_eq!(site.error(&launch), (1, "rank-killed".into()));
    let document = site.json(&["status", "latest", "--json"]);
    assert_eq!((document["state"].as_str(), document["checkpoint"]["step"].as_u64()), (Some("failed"), Some(20)));
    site.succeeds(&["resume", "latest", "--wait"]);
    assert_eq!(site.json(&["status", "latest", "--json"])["state"], "finished");
}

#[test]
fn one_of_two_concurrent_resumes_fails() {
    let site = TestSite::new();
    let run = site.succeeds(&["launch", "configs/small/short.toml"]);
    let run = run.trim();
    site.until_step(run, 1);
    site.succeeds(&["stop", run, "--wait"]);
    let resume = || {
        site.command(&["resume", run, "--json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    };
    let both = [resume().unwrap(), resume().unwrap()].map(|child| child.wait_with_output().unwrap());
    let won: Vec<bool> = both.iter().map(|output| output.status.success()).collect();
    assert_eq!(won.iter().filter(|won| **won).count(), 1, "{both:?}");
    let lost = &both[won.iter().position(|won| !won).unwrap()];
    // Either the lock of the attempts or the state of the run refuses the resume, depending on timing.
    let code = crate::test_site::error_code(&String::from_utf8_lossy(&lost.stderr));
    assert!(["attempt-conflict", "run-is-alive"].contains(&code.as_str()), "{code}");
    assert_eq!(site.runs()[0].attempt_numbers().unwrap(), [1, 2]);
}

#[test]
fn curves_are_exported_as_svg_png_and_csv() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    site.succeeds(&["launch", "configs/small/short.toml", "--set", "train.steps=30", "--wait"]);
    let read = |name: &str| std::fs::read(site.root.join(name)).unwrap();
    site.succeeds(&["export", "latest", "--out", "loss.svg"]);
    let svg = String::from_utf8(read("loss.svg")).unwrap();
    assert!(svg.contains("<svg") && svg.contains("Gradient norm"));
    let again = ["export", "latest", "--chart", "loss", "--out", "loss.svg"];
    let refused = site.vidtui(&again);
    assert!(refused.code == 2 && refused.stderr.contains("--force"), "{refused:?}");
    assert_eq!(String::from_utf8(read("loss.svg")).unwrap(), svg);
    site.succeeds(&[&again[..], &["--force"]].concat());
    assert_ne!(String::from_utf8(read("loss.svg")).unwrap(), svg);
    site.succeeds(&["export", "latest", "--out", "loss.png", "--metric", "loss", "--metric", "mem_gib"]);
    assert!(read("loss.png").starts_with(b"\x89PNG"));
    site.succeeds(&["export", "latest", "--out", "all.csv"]);
    let csv = String::from_utf8(read("all.csv")).unwrap();
    assert_eq!(csv.lines().count(), 31);
    assert!(csv.starts_with("attempt,step,t,loss,grad_norm"));
    site.succeeds(&["export", "latest", "--out", "part.csv", "--from", "5", "--to", "9", "--metric", "loss"]);
    assert_eq!(String::from_utf8(read("part.csv")).unwrap().lines().count(), 6);
    site.succeeds(&["export", "latest", "--with", "latest", "--x", "time", "--out", "compared.svg"]);
    assert!(String::from_utf8(read("compared.svg")).unwrap().contains("Comparison of 2 runs"));
    site.succeeds(&["export", "latest", "--with", "latest", "--chart", "learning-rate", "--out", "rates.svg"]);
    let rates = String::from_utf8(read("rates.svg")).unwrap();
    assert!(rates.contains("Comparison of 2 runs") && rates.contains("learning rate"), "{rates}");
    assert_eq!(site.vidtui(&["export", "latest", "--with", "latest", "--out", "x.csv"]).code, 2);
    for wrong in [&["--from", "9", "--to", "5"][..], &["--smooth", "1"], &["--metric", "los"]] {
        assert_eq!(site.vidtui(&[&["export", "latest", "--out", "x.svg"], wrong].concat()).code, 2);
    }
    assert_eq!(site.vidtui(&["export", "latest", "--out", "x.csv", "--log"]).code, 2);
    insta::assert_snapshot!("export_to_an_unknown_format", site.fails(&["export", "latest", "--out", "loss.gif"]));
    let unwritable = site.fails(&["export", "latest", "--out", "/nonesuch/loss.svg"]);
    insta::assert_snapshot!("export_to_an_unwritable_folder", unwritable);
}

#[test]
fn a_usage_error_is_json_under_json_and_text_otherwise() {
    let site = TestSite::new();
    let wrong = site.vidtui(&["status", "--jsn", "--json"]);
    let error: serde_json::Value = serde_json::from_str(&wrong.stderr).unwrap();
    assert_eq!((wrong.code, &error["error"]["code"]), (2, &"invalid-argument".into()), "{error}");
    assert!(error["error"]["why"].as_str().unwrap().contains("--jsn"), "{error}");
    let text = site.vidtui(&["status", "--jsn"]);
    assert!(text.code == 2 && text.stderr.starts_with("error: unexpected argument '--jsn'"), "{}", text.stderr);
    assert_eq!(site.vidtui(&["status", "--json", "--help"]).code, 0);
}

#[test]
fn latest_is_the_newest_run_with_the_chart_or_the_weights() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let launch = || {
        let run = site.succeeds(&["launch", "configs/small/short.toml", "--set", "train.steps=2", "--wait"]);
        run.trim().to_owned()
    };
    let (first, second) = (launch(), launch());
    let folder = |run: &str| site.root.join("runs").join(run);
    std::fs::remove_file(folder(&second).join("metrics.jsonl")).unwrap();
    let loss = |run| site.vidtui(&["export", run, "--chart", "loss", "--out", "loss.svg", "--force"]);
    let exported = loss("latest");
    assert!(exported.code == 0 && exported.stderr.contains(&first), "{}", exported.stderr);
    assert_eq!(loss(&second).code, 1, "a picture without a curve");
    assert_eq!(site.json(&["status", "latest", "--json"])["run"], *second);
    // A run that samples has no checkpoints.
    let file = folder(&second).join("run.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("task = \"train\""), "{text}");
    std::fs::write(&file, text.replace("task = \"train\"", "task = \"sample\"")).unwrap();
    assert_eq!(site.json(&["checkpoints", "latest", "--json"])["run"], *first);
    // A resume of `latest` does not make the videos again.
    let resumed = site.vidtui(&["resume", "latest", "--weights-only", "--dry-run"]);
    assert!(resumed.code == 0 && resumed.stderr.contains(&format!("latest is {first}")), "{}", resumed.stderr);
}

#[test]
fn latest_is_the_newest_run_with_a_checkpoint_for_commands_that_read_weights() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let launch = ["launch", "configs/small/short.toml", "--set", "train.steps=2", "--wait"];
    let run = site.succeeds(&launch);
    let (first, second) = (run.trim(), site.succeeds(&launch));
    let checkpoints = site.root.join("runs").join(second.trim()).join("checkpoints");
    std::fs::remove_dir_all(checkpoints).unwrap();
    let plan = site.json(&["launch", "configs/small/short.toml", "--init", "latest", "--dry-run", "--json"]);
    assert!(plan["summary"]["weights"].as_str().unwrap().contains(first), "{plan}");
    assert_eq!(site.json(&["status", "latest", "--json"])["run"], second.trim());
}

#[test]
fn commands_that_only_read_a_run_read_the_newest_by_default_and_print_which_it_is() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let launch = ["launch", "configs/small/short.toml", "--set", "train.steps=2", "--wait"];
    let _older = site.succeeds(&launch);
    let run = site.succeeds(&launch);
    let chosen = format!("latest is {run}");
    for command in
        [&["status"][..], &["logs"], &["checkpoints"], &["export", "--out", "a.svg"], &["report", "--out", "a.html"]]
    {
        let done = site.vidtui(command);
        assert_eq!((done.code, done.stderr.as_str()), (0, &*chosen), "{command:?}");
    }
    let json = site.vidtui(&["status", "--json"]);
    assert_eq!((json.code, json.stderr.as_str()), (0, ""));
    for changes in ["stop", "kill", "resume", "next", "heal", "profile"] {
        assert_eq!(site.vidtui(&[changes]).code, 2, "{changes} needs a run");
    }
    assert_eq!(site.vidtui(&["checkpoints", "delete", "2"]).code, 2);
}

#[test]
fn a_launch_starts_from_the_weights_of_a_run_by_any_of_its_names() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let run = site.succeeds(&["launch", "configs/small/short.toml", "--set", "train.steps=2", "--wait"]);
    let (_, suffix) = run.trim().rsplit_once('-').unwrap();
    for name in ["latest", suffix, run.trim()] {
        let plan = site.json(&["launch", "configs/small/short.toml", "--init", name, "--dry-run", "--json"]);
        assert!(plan["summary"]["weights"].as_str().unwrap().contains(run.trim()), "{name}: {plan}");
    }
    let error = site.error(&["launch", "configs/small/short.toml", "--init", "nothing", "--dry-run"]);
    assert_eq!(error, (1, "not-found".into()));
}

#[test]
fn stages_show_their_changes_and_recipes_the_origin_of_values() {
    let site = TestSite::new();
    insta::assert_snapshot!("stages", site.redacted(&site.succeeds(&["stages", "configs/small"])));
    let why = site.succeeds(&["recipe", "show", "configs/small/long.toml", "--why", "--set", "train.seed=7"]);
    for line in [
        "num_layers = 1                           # configs/small/short.toml:4",
        "latent_frames = 5                        # configs/small/long.toml:5",
        "seed = 7                                 # --set train.seed=7",
        "beta1 = 0.9                              # default",
    ] {
        assert!(why.contains(line), "{line} is not in\n{why}");
    }
    let json = site.succeeds(&["recipe", "show", "configs/small/curriculum.toml:long", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["model"]["latent_frames"], 5);
}

#[test]
fn a_shown_recipe_loads_again() {
    let site = TestSite::new();
    let shown = site.succeeds(&["recipe", "show", "configs/small/long.toml"]);
    site.write("again.toml", &shown);
    assert_eq!(site.succeeds(&["recipe", "show", "again.toml"]), shown);
}

#[test]
fn the_recipe_of_a_run_is_shown_as_that_of_its_file() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let run = site.succeeds(&["launch", "configs/small/short.toml", "--set", "train.steps=2", "--wait"]);
    let run = run.trim();
    let of_file = site.succeeds(&["recipe", "show", "configs/small/short.toml", "--set", "train.steps=2"]);
    for name in [run, &run[run.len() - 6..], "latest"] {
        assert_eq!(site.succeeds(&["recipe", "show", name]), of_file, "{name}");
    }
    let json = site.succeeds(&["recipe", "show", "latest", "--set", "train.steps=3", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["train"]["steps"], &json["model"]["num_layers"]), (&3.into(), &1.into()));
    insta::assert_snapshot!("recipe_of_a_run_why", site.fails(&["recipe", "show", "latest", "--why"]));
    insta::assert_snapshot!("recipe_of_no_run", site.fails(&["recipe", "show", "nonesuch"]));
}

#[test]
fn runs_are_compared_by_their_last_values_and_the_keys_that_differ() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    for sets in [["train.steps=2", "train.seed=7"], ["train.steps=3", "train.seed=8"]] {
        site.succeeds(&["launch", "configs/small/short.toml", "--set", sets[0], "--set", sets[1], "--wait"]);
    }
    let mut dirs = site.runs();
    dirs.sort_by_key(|run| run.read_run().unwrap().recipe().unwrap().train.seed);
    for run in &dirs {
        let set = |line: &str| {
            let mut sample: serde_json::Value = serde_json::from_str(line).unwrap();
            sample["step_s"] = 0.25.into();
            format!("{sample}\n")
        };
        let lines: String = std::fs::read_to_string(run.metrics()).unwrap().lines().map(set).collect();
        std::fs::write(run.metrics(), lines).unwrap();
    }
    let [first, second] = &dirs[..] else { panic!("{} runs", dirs.len()) };
    insta::assert_snapshot!("compare", site.redacted(&site.succeeds(&["compare", first.name(), second.name()])));
    let compared = site.json(&["compare", second.name(), first.name(), "--json"]);
    assert_eq!((&compared["runs"][0]["run"], &compared["runs"][1]["step"]), (&second.name().into(), &2.into()));
    assert_eq!(compared["runs"][0]["loss"], site.json(&["status", second.name(), "--json"])["loss"]);
    let seed = serde_json::json!({ "key": "train.seed", "values": ["8", "7"] });
    assert!(compared["differences"].as_array().unwrap().contains(&seed), "{compared}");
    assert_eq!(site.error(&["compare", first.name(), first.name()]), (2, "invalid-argument".into()));
    assert_eq!(site.error(&["compare", first.name(), "nonesuch"]), (2, "run-not-found".into()));
}

#[test]
fn the_keys_of_recipes_are_found_by_words() {
    let site = TestSite::new();
    insta::assert_snapshot!("recipe_keys", site.succeeds(&["recipe", "keys", "moving", "average"]));
    let must_be_set = ["train.steps", "encode.frames"].map(|key| site.succeeds(&["recipe", "keys", key]));
    insta::assert_snapshot!("recipe_keys_that_must_be_set", must_be_set.join("\n"));
    insta::assert_snapshot!("recipe_keys_unknown", site.fails(&["recipe", "keys", "optimizer.learning_rat"]));
    let found = site.json(&["recipe", "keys", "train.steps", "--json"]);
    let steps = &found["keys"][0];
    assert_eq!(
        (&steps["key"], &steps["type"], &steps["default"]),
        (&"train.steps".into(), &"integer".into(), &().into())
    );
    assert_eq!((&steps["alternative"], &steps["needed_by"][0]), (&"train.epochs".into(), &"train".into()));
    let all = site.json(&["recipe", "keys", "--json"]);
    assert_eq!(all["keys"].as_array().unwrap().len(), recipe::SCHEMA.len());
    assert_eq!(site.error(&["recipe", "keys", "mesh.tp", "optimizer.lr"]), (2, "unknown-name".into()));
}

#[test]
fn check_reports_every_check_and_starts_nothing() {
    let site = TestSite::new();
    let document = site.json(&["check", "configs/small/short.toml", "--local", "2", "--json"]);
    let results: Vec<_> = document["checks"].as_array().unwrap().iter().map(|check| &check["result"]).collect();
    assert!(results.len() >= 7 && results.iter().all(|result| *result == "good"), "{document}");
    assert!(site.runs().is_empty());
    assert_eq!(site.json(&["check", "configs/small/short.toml", "--json"])["ready"], true);

    site.write("configs/small/other.toml", "base = \"short.toml\"\n[data]\nindex = \"../../data/long.jsonl\"\n");
    let report = site.fails(&["check", "configs/small/other.toml", "--local", "3"]);
    // The number of cores is that of the machine.
    let lines: Vec<&str> = report.lines().filter(|line| !line.starts_with("step time")).collect();
    assert_eq!(lines.len() + 1, report.lines().count());
    insta::assert_snapshot!("check_wrong_shape", lines.join("\n"));
}

#[test]
fn invalid_requests_exit_with_2_and_have_hints() {
    let site = TestSite::new();
    site.write("broken.toml", "[model\nnum_layers = 1\n");
    site.write("typo.toml", "base = \"configs/small/short.toml\"\n[optimizer]\nlearning_rate = 1e-3\n");
    let cases: &[(&str, &[&str])] = &[
        ("missing_recipe", &["launch", "nonesuch.toml"]),
        ("broken_recipe", &["launch", "broken.toml"]),
        ("unknown_key", &["check", "typo.toml"]),
        ("unknown_key_in_set", &["recipe", "show", "configs/small/short.toml", "--set", "train.step=3"]),
        ("curriculum_without_stage", &["launch", "configs/small"]),
        ("unknown_stage", &["launch", "configs/small:middle"]),
        ("no_runs", &["status", "latest"]),
        ("unknown_command", &["lunch"]),
        ("replay_of_no_recording", &["replay", "broken.toml", "--screen", "80x24"]),
        ("metric_that_is_none", &["export", "latest", "--out", "x.svg", "--metric", "los"]),
    ];
    for (name, args) in cases {
        let refused = site.fails(args);
        assert!(refused.starts_with("exit code 2"), "{args:?}: {refused}");
        insta::assert_snapshot!(*name, refused);
    }
    assert!(site.runs().is_empty());
}

#[test]
fn with_json_a_failure_is_one_json_object_with_a_stable_code() {
    let site = TestSite::new();
    site.write("typo.toml", "base = \"configs/small/short.toml\"\n[optimizer]\nlearning_rate = 1e-3\n");
    let invalid: &[(&[&str], &str)] = &[
        (&["status", "nonesuch"], "run-not-found"),
        (&["launch", "typo.toml"], "invalid-recipe"),
        (&["stages", "configs"], "not-found"),
        (&["launch", "configs/small:middle"], "unknown-stage"),
        (&["launch", "configs/small/short.toml", "--hostfile", "none.txt"], "not-found"),
        (&["resume", "latest", "--set", "train.steps=many"], "invalid-argument"),
        (&["nodes", "--sort", "colour"], "unknown-name"),
        (&["inspect", "nowhere"], "not-found"),
    ];
    for (args, code) in invalid {
        assert_eq!(site.error(args), (2, (*code).to_owned()), "{args:?}");
    }
    let failed: &[(&[&str], &str)] = &[(&["launch", "configs/small:long"], "no-checkpoint")];
    for (args, code) in failed {
        assert_eq!(site.error(args), (1, (*code).to_owned()), "{args:?}");
    }
    assert!(site.runs().is_empty());
}

#[test]
fn a_launch_that_cannot_run_here_starts_nothing() {
    let site = TestSite::new();
    site.write("nodata.toml", "base = \"configs/small/short.toml\"\n[data]\nindex = \"nonesuch.jsonl\"\n");
    let cases: &[(&str, &[&str])] = &[
        ("mesh_that_does_not_fit", &["launch", "configs/small/short.toml", "--local", "3"]),
        ("missing_data_set", &["launch", "nodata.toml"]),
        ("no_weights_for_the_second_stage", &["launch", "configs/small:long"]),
        ("init_from_nothing", &["launch", "configs/small/short.toml", "--init", "nonesuch"]),
    ];
    for (name, args) in cases {
        insta::assert_snapshot!(*name, site.fails(args));
    }
    let site = site.with("VIDTUI_TRAIN", "/nonesuch/vidtui-train");
    insta::assert_snapshot!("missing_trainer", site.fails(&["launch", "configs/small/short.toml"]));
    assert!(site.runs().is_empty());
}

#[test]
fn without_a_terminal_the_console_fails_without_escape_codes() {
    let site = TestSite::new();
    let done = site.command(&[]).stdin(Stdio::null()).finish();
    assert_eq!(done.code, 2);
    assert_eq!(done.stdout, "");
    assert!(!done.stderr.contains('\x1b'));
    insta::assert_snapshot!(done.stderr);
}

/// Screen readers and files need text without escape codes.
#[test]
fn commands_print_plain_text_into_a_pipe_and_with_no_color_into_a_terminal() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    site.succeeds(&["launch", "configs/small:short", "--set", "train.steps=30", "--wait"]);
    let node = remote::this_node().unwrap().node;
    let commands: [&[&str]; 21] = [
        &["runs"],
        &["status", "latest"],
        &["status", "latest", "--oneline"],
        &["nodes", "--local"],
        &["smi", node.as_str()],
        &["logs", "latest"],
        &["checkpoints", "latest"],
        &["stages", "configs/small"],
        &["recipe", "show", "latest"],
        &["compare", "latest", "latest"],
        &["alerts"],
        &["queue"],
        &["config"],
        &["recipe", "show", "configs/small/short.toml"],
        &["recipe", "keys", "lr"],
        &["check", "configs/small:short"],
        &["launch", "configs/small:short", "--dry-run"],
        &["inspect", "data/short.latent.safetensors"],
        &["export", "latest", "--out", "curves.csv", "--force"],
        &["status", "no-such-run"],
        &["--help"],
    ];
    for args in commands {
        let piped = site.vidtui(args);
        assert!(!piped.stdout.contains('\x1b') && !piped.stderr.contains('\x1b'), "{args:?}: {piped:?}");
        let mut console = site.console((100, 30), args, &[("NO_COLOR", "1")]);
        assert_eq!(console.ended() as i32, piped.code, "{args:?}: {}", console.raw());
        assert!(!console.raw().contains('\x1b'), "{args:?}: {}", console.raw());
    }
    // `--watch` prints repeatedly. On a terminal with colours, it clears the screen before each output.
    let watched = |env: &[(&str, &str)]| {
        let console = site.console((100, 30), &["nodes", "--simulate", "2", "--watch"], env);
        console.shows(&["sim0001"]);
        console.raw()
    };
    assert!(!watched(&[("NO_COLOR", "1")]).contains('\x1b'));
    assert!(!watched(&[("TERM", "dumb")]).contains('\x1b'));
    assert!(watched(&[]).contains("\x1b[2J"));
    // The console cannot be plain text, so it names the commands that are.
    let mut console = site.console((100, 30), &[], &[("TERM", "dumb")]);
    assert_eq!(console.ended(), 2);
    assert!(console.raw().contains("vidtui runs") && !console.raw().contains('\x1b'), "{}", console.raw());
}

#[test]
fn the_completions_of_every_shell_have_the_commands() {
    let site = TestSite::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(site.succeeds(&["completions", shell]).contains("checkpoints"), "{shell}");
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let script = format!("{} completions bash | head -1; echo ${{PIPESTATUS[0]}}", crate::test_site::VIDTUI);
    let done = std::process::Command::new("bash").args(["-c", &script]).finish();
    assert_eq!(done.stdout.lines().last(), Some("0"), "{}", done.stderr);
}

/// Logs, names and errors come from programs, and from other people.
#[test]
fn text_from_files_cannot_control_the_terminal() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    site.succeeds(&["launch", "configs/small:short", "--set", "train.steps=3", "--wait"]);
    let run = &site.runs()[0];
    let attempt = run.latest_attempt().unwrap().unwrap();
    let place = &attempt.placement.ranks[0];
    let log = run.rank_log(&place.node, attempt.number, place.rank);
    let line = "\x1b[31mred\x1b[0m\x1b[2J\x1b]0;title\x07 \u{202e}end without a line break";
    std::fs::write(&log, format!("first\n{line}")).unwrap();
    run.write_attempt(&rundir::Attempt { by: "ada\x1b[2J\u{9b}1m\nlovelace".into(), ..attempt }).unwrap();
    site.write_tensor("evil.safetensors", "a\\u001b[2J", &[2]);

    let logs = site.succeeds(&["logs", "latest", "--rank", "0"]);
    assert_eq!(logs, "first\nred end without a line break\n");
    let json = site.succeeds(&["logs", "latest", "--rank", "0", "--json"]);
    let last: serde_json::Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    assert_eq!((last["line"].as_str(), json.contains('\u{202e}')), (Some(line), false));
    let mut console = site.console((100, 30), &["logs", "latest", "--rank", "0"], &[]);
    assert_eq!(console.ended(), 0);
    let raw = console.raw();
    assert!(raw.contains("\x1b[31mred\x1b[0m end") && !raw.contains("\x1b[2J") && !raw.contains("title"), "{raw:?}");

    let status = site.succeeds(&["status", "latest"]);
    assert!(status.contains("by ada\\u{1b}[2J\\u{9b}1m\\nlovelace\n"), "{status}");
    for args in
        [&["inspect", "evil.safetensors"][..], &["convert", "evil.safetensors", "to"], &["status", "latest", "--json"]]
    {
        let done = site.vidtui(args);
        let printed = done.stdout + &done.stderr;
        assert!(!printed.contains(['\x1b', '\u{9b}']), "{args:?}: {printed:?}");
    }
}

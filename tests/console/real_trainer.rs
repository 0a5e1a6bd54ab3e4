//! A session with the real `vidtui-train` on the demo data, with few steps. Skipped with a message if either is missing.

use crate::pty::ENTER;
use crate::test_site::{TestSite, VIDTUI};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{History, MetricSample, RunDir, Tail};

/// Finds the trainer beside the console, or in the release folder: it is always built in release mode.
pub fn trainer() -> Option<Utf8PathBuf> {
    let folder = Utf8Path::new(VIDTUI).parent().unwrap();
    let places = [folder.join("vidtui-train"), folder.with_file_name("release").join("vidtui-train")];
    places.into_iter().find(|site| site.exists())
}

/// Returns a site with the real trainer, and a cache of its own. Without the trainer, prints that the test is skipped.
pub fn site_with_trainer() -> Option<TestSite> {
    let Some(trainer) = trainer() else {
        eprintln!("skipped: no vidtui-train beside vidtui; `cargo xtask test` builds it");
        return None;
    };
    let site = TestSite::new().with("VIDTUI_TRAIN", trainer.as_str());
    let cache = site.root.join("cache");
    Some(site.with("XDG_CACHE_HOME", cache.as_str()))
}

fn history(run: &RunDir) -> History {
    let mut history = History::new();
    history.extend(Tail::<MetricSample>::new(run.metrics()).poll().unwrap().items);
    history
}

#[test]
fn the_demo_is_launched_stopped_resumed_and_followed_by_its_second_stage() {
    let Some(trainer) = trainer() else {
        eprintln!("skipped: no vidtui-train beside {VIDTUI}; `cargo xtask test` builds it");
        return;
    };
    let project = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize_utf8().unwrap();
    let demo = project.join("configs/demo");
    if !project.join("assets/demo").exists() {
        eprintln!("skipped: no assets/demo; `cargo xtask fixtures` makes it");
        return;
    }
    let site = TestSite::new().with("VIDTUI_TRAIN", trainer.as_str());
    std::fs::remove_dir_all(site.root.join("configs")).unwrap();
    let stage = |name: &str, steps: u32| {
        let recipe = format!("name = \"demo-{name}\"\nbase = \"{demo}/{name}.toml\"\n[train]\nsteps = {steps}\n");
        // A small model and steps of at least a fifth of a second: `s` arrives before the last step, and the test takes little CPU.
        let rest = "[model]\nnum_layers = 1\nnum_heads = 2\nhead_dim = 16\n[checkpoint]\ninterval = 2\n\
                    [env.variables]\nTRAIN_PACE_S = \"0.2\"\n";
        site.write(&format!("configs/demo/{name}.toml"), &format!("{recipe}{rest}"));
    };
    stage("2s", 30);
    stage("4s", 6);
    site.write("configs/demo/curriculum.toml", &std::fs::read_to_string(demo.join("curriculum.toml")).unwrap());

    let mut console = site.console((100, 30), &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["2s", "4s"]).press(ENTER).shows(&["Start 2s?"]).press(ENTER);
    console.shows(&["demo-2s", "running", "Gradient norm"]);
    let first = site.runs()[0].clone();
    console.meanwhile("the second step", || history(&first).last().is_some_and(|sample| sample.step >= 2));
    console.press("s").shows(&["resume from step"]);
    let saved = other_trainers::latest(&first).unwrap().step;
    assert!(saved >= 2);
    console.press("r").shows(&["running"]);
    for step in saved + 1..=30 {
        // Each step has its own time limit, because the machine may be shared.
        console.meanwhile(&format!("step {step}"), || history(&first).last().is_some_and(|last| last.step >= step));
    }
    console.shows(&["n start next stage"]);
    let losses = history(&first);
    let steps: Vec<u64> = losses.effective().iter().map(|sample| sample.step).collect();
    assert_eq!(steps, (1..=30).collect::<Vec<_>>(), "every step once, in order, over both attempts");
    assert!(losses.effective().iter().all(|sample| sample.loss.is_some_and(f64::is_finite)));
    assert!(losses.effective().iter().all(|sample| sample.attempt == if sample.step <= saved { 1 } else { 2 }));

    console.press("e").shows(&["Export to:", ".svg"]).press(ENTER).shows(&["Wrote "]);
    console.press("n").shows(&["Start 4s?"]).press(ENTER).shows_no("Start 4s?");
    console.meanwhile("the second run", || site.runs().len() == 2);
    console.shows(&["demo-4s", "step 6 of 6", "finished"]);
    let second = site.json(&["status", "latest", "--json"]);
    assert_eq!((second["stage"].as_str(), second["parent"]["step"].as_u64()), (Some("4s"), Some(30)));
    console.press("q");
    assert_eq!(console.ended(), 0);
}

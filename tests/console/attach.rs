//! Tests of `vidtui attach`: programs that were started without vidtui.

use crate::test_site::TestSite;
use camino::Utf8PathBuf;
use interop::tensorboard::EventWriter;
use rundir::RunDir;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

/// A program that the test ends, also if it fails.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program that prints 40 steps as a progress bar, one every 50 ms, into `train.log`.
fn program(site: &TestSite) -> (Program, Utf8PathBuf) {
    let log = site.root.join("train.log");
    let script = "import time\n\
        for i in range(1, 41):\n    \
        print(f'Steps: {i * 100 // 40}%|#| {i}/40 [00:01<00:10, 0.05s/it, loss={1 / i:.4f}, lr=1e-5]', end='\\r', flush=True)\n    \
        time.sleep(0.05)\n";
    let child = Command::new("python3").args(["-c", script]).stdout(File::create(&log).unwrap()).spawn().unwrap();
    (Program(child), log)
}

fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_true() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_program_that_runs_already_is_watched_until_it_ends() {
    let site = TestSite::new();
    let (mut child, log) = program(&site);
    until("the first lines", || fs::read(&log).is_ok_and(|text| text.len() > 200));
    let plan = site.json(&["attach", "train.log", "--dry-run", "--json"]);
    assert_eq!(plan["summary"]["steps"], "40");
    let process = plan["summary"]["process"].as_str().unwrap();
    let id = child.0.id().to_string();
    assert!(process.split(' ').next() == Some(&id) && process.contains("it writes the log"), "{process}");
    let id = site.succeeds(&["attach", "train.log"]).trim().to_owned();
    let run = RunDir::new(site.root.join("runs").join(&id));
    until("a loss", || runstate::recent_metrics(&run).is_ok_and(|lines| lines.iter().any(|line| line.loss.is_some())));
    let status = site.succeeds(&["status", &id]);
    assert!(status.contains(" of 40") && status.contains(&format!("until process {} ends", child.0.id())), "{status}");
    // The program has ended before the run does.
    child.0.wait().unwrap();
    until("the end", || site.json(&["status", &id, "--json"])["state"] == "finished");
    let steps: Vec<u64> = runstate::recent_metrics(&run).unwrap().iter().map(|line| line.step).collect();
    assert_eq!((steps.last(), steps.is_sorted()), (Some(&40), true));
    for command in [&["resume", &id][..], &["heal", &id], &["next", &id], &["sample", &id, "--prompt", "x"]] {
        assert_eq!(site.error(command), (1, "run-attached".into()), "{command:?}");
    }
}

#[test]
fn a_stop_ends_the_watching_and_not_the_program() {
    let site = TestSite::new();
    // The braces of a path are no placeholders.
    fs::create_dir_all(site.root.join("out/{run}")).unwrap();
    let log = site.root.join("out/{run}/train-{lr}.log");
    let file = File::create(&log).unwrap();
    file.set_permissions(Permissions::from_mode(0o600)).unwrap();
    let child = Command::new("sh")
        .args(["-c", "for i in 10 11 12 13; do echo step $i loss 0.5 lr 1e-5; done; exec sleep 600"])
        .stdout(file)
        .spawn()
        .unwrap();
    let mut child = Program(child);
    let id = site.succeeds(&["attach", "out/{run}/train-{lr}.log", "--name", "theirs"]).trim().to_owned();
    assert!(id.contains("-theirs-"), "{id}");
    // Others cannot read the log, so they cannot read its copy.
    let mode = site.root.join("runs").join(&id).metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    until("a step", || site.json(&["status", &id, "--json"])["step"] == 13);
    let stopped = site.succeeds(&["stop", &id]);
    assert!(stopped.contains("no longer watched; the program goes on"), "{stopped}");
    until("the end", || site.json(&["status", &id, "--json"])["state"] == "stopped");
    assert!(child.0.try_wait().unwrap().is_none(), "the program goes on");
}

#[test]
fn event_files_of_tensorboard_are_followed_while_they_grow() {
    let site = TestSite::new();
    let folder = site.root.join("logs/version_0");
    let mut writer = EventWriter::create(&folder, 1000.0, "node").unwrap();
    let mut write = |steps: std::ops::Range<u64>| {
        for step in steps {
            let values = [("train/loss".to_owned(), 1.0 / step as f64), ("reward/ocr".to_owned(), step as f64)];
            writer.scalars(1000.0 + step as f64, step, &values);
        }
        writer.flush().unwrap();
    };
    write(1..5);
    let id = site.succeeds(&["attach", "logs", "--steps", "100"]).trim().to_owned();
    let run = RunDir::new(site.root.join("runs").join(&id));
    let steps = || runstate::recent_metrics(&run).unwrap_or_default().iter().map(|line| line.step).collect::<Vec<_>>();
    until("the first steps", || steps() == [1, 2, 3, 4]);
    write(5..8);
    until("the new steps", || steps() == [1, 2, 3, 4, 5, 6, 7]);
    let last = runstate::recent_metrics(&run).unwrap().pop().unwrap();
    assert!(last.loss.is_some_and(|loss| (loss - 1.0 / 7.0).abs() < 1e-6));
    assert_eq!(last.other["reward/ocr"], Some(7.0));
    site.succeeds(&["stop", &id, "--wait"]);
}

#[test]
fn what_cannot_be_watched_is_refused_by_name() {
    let site = TestSite::new();
    fs::create_dir(site.root.join("empty")).unwrap();
    site.write("train.log", "step 1 loss 0.5\n");
    for (arguments, word) in [
        (&["attach", "nothing.log"][..], "No such file"),
        (&["attach", "empty"], "no event files of TensorBoard and no run of W&B"),
        (&["attach", "/dev/null"], "neither a file nor a folder"),
        (&["attach", "train.log", "--pid", "4194305"], "no such process"),
    ] {
        let refused = site.fails(arguments);
        assert!(refused.contains(word), "{arguments:?}: {refused}");
    }
    let plan = site.json(&["attach", "train.log", "--dry-run", "--json"]);
    assert!(plan["summary"]["process"].as_str().unwrap().starts_with("unknown: "), "{plan}");
    assert!(site.runs().is_empty());
}

//! Tests that vidtui reads files of TensorBoard 2.21.0 and wandb 0.31.0 (`tests/fixtures/interop/make.py`), and that both read ours.

#![expect(clippy::unwrap_used, reason = "a panic shows the failing line")]

use camino::{Utf8Path, Utf8PathBuf};
use interop::tensorboard::{EventWriter, event_files, read_files, read_folder};
use interop::wandb::{NewRun, RunWriter};
use interop::{Log, wandb};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

fn fixtures() -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/interop")
}

fn temp() -> (tempfile::TempDir, Utf8PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::try_from(folder.path().join("tensorboard")).unwrap();
    (folder, path)
}

fn values(log: &Log, tag: &str) -> Vec<(u64, f64)> {
    log.points(tag).iter().map(|point| (point.step, (point.value * 1e4).round() / 1e4)).collect()
}

#[test]
fn the_files_of_tensorboard_are_one_run_in_which_the_resume_counts() {
    let log = read_folder(&fixtures().join("tensorboard")).unwrap();
    let loss = [(1, 1.0), (2, 0.5), (3, 0.3333), (4, 2.5), (5, 2.0), (6, 1.6667), (7, 1.4286)];
    assert_eq!(values(&log, "train/loss"), loss);
    // A number in a tensor.
    assert_eq!(values(&log, "lr")[..2], [(1, 0.0001), (2, 0.0002)]);
    assert_eq!(log.points("lr").len(), 7);
    assert!(log.points("val").is_empty(), "step 5 was repeated without it");
    let [warning] = &log.warnings[..] else { panic!("{:?}", log.warnings) };
    assert!(warning.ends_with("left out: 6"), "two steps of two series, and two of val: {warning}");
    let first = read_files(&event_files(&fixtures().join("tensorboard")).unwrap()[..1]).unwrap();
    assert!(first.points("val")[0].value.is_nan());
    assert_eq!((first.points("train/loss").len(), first.points("lr").len()), (6, 5), "the last record is torn");
    assert_eq!(first.points("train/loss")[4].t, 1005.0);
}

#[test]
fn at_a_wrong_checksum_the_values_before_it_count_and_a_warning_names_the_place() {
    let (_keep, folder) = temp();
    fs::create_dir(&folder).unwrap();
    let files = event_files(&fixtures().join("tensorboard")).unwrap();
    let mut bytes = fs::read(&files[0]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(folder.join(files[0].file_name().unwrap()), bytes).unwrap();
    let log = read_folder(&folder).unwrap();
    assert!((1..5).contains(&log.points("train/loss").len()));
    assert_eq!(log.warnings.len(), 1);
    assert!(log.warnings[0].contains("checksum at byte"), "{:?}", log.warnings);
    // A later file of the run is read.
    fs::copy(&files[1], folder.join(files[1].file_name().unwrap())).unwrap();
    assert_eq!(read_folder(&folder).unwrap().points("train/loss").last().unwrap().step, 7);
}

#[test]
fn an_offline_run_of_wandb_is_read() {
    let files = wandb::run_files(&fixtures().join("offline-run")).unwrap();
    assert_eq!(files.len(), 1);
    let log = wandb::read_file(&files[0]).unwrap();
    assert_eq!(log.name.as_deref(), Some("a small run"));
    assert_eq!(log.config["lr"], "0.0001");
    assert_eq!(log.config["model"], "{\"layers\":2}");
    let tags: Vec<&str> = log.series().map(|(tag, _)| tag).collect();
    assert_eq!(tags.len(), 4, "{tags:?}");
    assert_eq!(values(&log, "nested.a").last(), Some(&(5, 5.0)));
    let loss = log.points("train/loss");
    assert_eq!((loss[0].step, loss[0].value, loss[6].step, loss[6].value), (1, 1.0, 7, 0.125));
    assert!(loss[5].value.is_nan() && log.points("val/loss")[0].value.is_infinite());
    assert!(loss[0].t > 1.7e9 && loss[0].t <= loss[6].t);
    assert_eq!(log.warnings, [""; 0]);
}

#[test]
fn the_steps_that_a_later_start_of_a_wandb_run_repeats_count() {
    let (_keep, folder) = temp();
    let run = NewRun {
        id: "demo-k7f2",
        name: "demo",
        project: "vidtui",
        node: "ml-1",
        started_s: 1000.0,
        config: &[],
        is_resumed: false,
    };
    let read_after = |start: f64, steps: std::ops::RangeInclusive<u64>| {
        let mut writer = RunWriter::create(&folder, 1_763_612_345.0 + start, &run).unwrap();
        steps.for_each(|step| writer.history(1000.0 + start, step, &[("loss".into(), start + step as f64)]));
        writer.flush().unwrap();
        let log = wandb::read_files(&wandb::offline_files(&folder).unwrap()).unwrap();
        (values(&log, "loss"), log.warnings.len())
    };
    assert_eq!(read_after(0.0, 1..=4).1, 0);
    let resumed = read_after(100.0, 3..=5);
    assert_eq!(resumed, (vec![(1, 1.0), (2, 2.0), (3, 103.0), (4, 104.0), (5, 105.0)], 1));
    let from_the_beginning = read_after(200.0, 1..=2);
    assert_eq!(from_the_beginning, (vec![(1, 201.0), (2, 202.0)], 2), "a warning for each start that replaces values");
}

#[test]
fn a_cut_log_of_wandb_keeps_the_steps_before_the_cut() {
    let (_keep, path) = temp();
    let whole = fs::read(fixtures().join("offline-run/run-small.wandb")).unwrap();
    for len in (7..whole.len()).step_by(11) {
        fs::write(&path, &whole[..len]).unwrap();
        let log = wandb::read_file(&path).unwrap();
        assert!(log.warnings.is_empty() && log.points("train/loss").len() <= 7, "{len}");
    }
}

/// Writes a run of two attempts: the second repeats steps from 4 on.
fn write_run(folder: &Utf8Path) {
    let mut first = EventWriter::create(folder, 1000.0, "devbox").unwrap();
    first.text(1000.0, 0, "recipe", "```toml\nname = \"x\"\n```");
    for step in 1..=6 {
        first.scalars(1000.0 + step as f64, step, &[("loss".into(), 1.0 / step as f64), ("lr".into(), 1e-4)]);
    }
    first.scalars(1006.0, 6, &[("grad_norm".into(), f64::NAN)]);
    first.flush().unwrap();
    // The clock of this node is behind.
    let mut second = EventWriter::create(folder, 990.0, "other").unwrap();
    second.restart_at(2000.0, 4);
    second.scalars(2000.0, 4, &[("loss".into(), 0.125)]);
    let gif = b"GIF89a\x01\0\x01\0\0\0\0;";
    second.image(2001.0, 4, "samples/000", (1, 1), gif);
    second.flush().unwrap();
}

#[test]
fn what_is_written_is_read_again() {
    let (_keep, folder) = temp();
    write_run(&folder);
    let log = read_folder(&folder).unwrap();
    assert_eq!(values(&log, "loss"), [(1, 1.0), (2, 0.5), (3, 0.3333), (4, 0.125)]);
    assert_eq!(log.points("lr").len(), 3);
    assert!(log.points("grad_norm").is_empty());
}

#[test]
fn events_that_could_not_be_flushed_are_flushed_later() {
    let (_keep, folder) = temp();
    let mut writer = EventWriter::create(&folder, 1000.0, "devbox").unwrap();
    for step in 1..=3 {
        writer.scalars(1000.0, step, &[("loss".into(), 1.0)]);
        writer.flush().unwrap();
    }
    assert_eq!(read_folder(&folder).unwrap().len(), 3);
}

/// Returns a Python with TensorBoard and W&B, if it is installed.
fn viewers() -> Option<Utf8PathBuf> {
    let folder = rundir::user_folder("XDG_CACHE_HOME", ".cache")?.join("vidtui/viewers-python");
    let found = folder.join("complete").exists();
    if !found {
        println!(
            "skipped: there is no Python with TensorBoard and W&B (`cargo xtask ci` and `cargo xtask bench console` install one)"
        );
    }
    found.then(|| folder.join("bin/python"))
}

#[test]
fn oracle_tensorboard_shows_what_was_written() {
    let Some(python) = viewers() else { return };
    let (_keep, folder) = temp();
    write_run(&folder);
    let script = "
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
run = EventAccumulator(sys.argv[1], size_guidance={'images': 0, 'scalars': 0})
run.Reload()
print(sorted(run.Tags()['scalars']), run.Tags()['images'], run.Tags()['tensors'])
print([(e.step, e.value) for e in run.Scalars('loss')][-2:], len(run.Scalars('lr')))
print(run.Images('samples/000')[0].encoded_image_string[:6], run.Tensors('recipe')[0].tensor_proto.string_val[0][:7])
print(run.SummaryMetadata('recipe').plugin_data.plugin_name)
";
    let run = Command::new(&python).args(["-c", script, folder.as_str()]).output().unwrap();
    let wanted = "['grad_norm', 'loss', 'lr'] ['samples/000'] ['recipe']\n[(3, 0.3333333432674408), (4, 0.125)] 3\nb'GIF89a' b'```toml'\ntext\n";
    assert_eq!(String::from_utf8_lossy(&run.stdout), wanted, "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn oracle_wandb_sync_uploads_the_values_of_all_starts_of_a_run() {
    let Some(python) = viewers() else { return };
    let (keep, runs) = temp();
    let config = [("model".to_owned(), "{\"num_layers\":2}".to_owned())];
    let run = NewRun {
        id: "demo-k7f2",
        name: "demo",
        project: "vidtui",
        node: "ml-1",
        started_s: 1000.5,
        config: &config,
        is_resumed: false,
    };
    let value = |key: &str, value| (key.to_owned(), value);
    // One record is longer than a block of the file.
    let many: Vec<_> = (0..3000).map(|n| (format!("metric_{n:04}"), f64::from(n) / 3.0)).collect();
    let mut first = RunWriter::create(&runs, 1_763_612_345.0, &run).unwrap();
    first.history(1010.25, 1, &[value("loss", 0.1), value("mem_gib/rank_0", 2.0)]);
    first.history(1020.0, 2, &[value("loss", f64::NAN), value("a.b", f64::INFINITY)]);
    first.history(1030.0, 3, &many);
    first.end(1031.0, 1);
    first.flush().unwrap();
    let resumed = NewRun { started_s: 1040.0, is_resumed: true, ..run };
    let mut second = RunWriter::create(&runs, 1_763_612_400.0, &resumed).unwrap();
    second.history(1050.0, 4, &[value("loss", 1e-20)]);
    second.end(1051.0, 0);
    second.flush().unwrap();

    let script = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wandb_sync.py");
    let sync = Command::new(&python).arg(script).args([keep.path(), runs.as_std_path()]).output().unwrap();
    assert!(sync.status.success(), "{}", String::from_utf8_lossy(&sync.stderr));
    let received: Value = serde_json::from_slice(&sync.stdout).unwrap();
    let new = &received["runs"][0];
    assert_eq!(
        (&new["name"], &new["displayName"], &new["host"]),
        (&json!("demo-k7f2"), &json!("demo"), &json!("ml-1"))
    );
    let config: Value = serde_json::from_str(new["config"].as_str().unwrap()).unwrap();
    assert_eq!(config["model"]["value"], json!({ "num_layers": 2 }));
    assert_eq!((&received["resumed"], &received["exit_codes"]), (&json!(1), &json!([1, 0])), "the second continues it");
    let steps = received["history"].as_array().unwrap();
    assert_eq!(steps.iter().map(|step| step["_step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let first = json!({ "loss": 0.1, "mem_gib/rank_0": 2, "_step": 1, "_timestamp": 1010.25, "_runtime": 9.75 });
    assert_eq!(steps[0], first);
    assert_eq!((&steps[1]["loss"], &steps[1]["a.b"]), (&json!("nan"), &json!("inf")));
    assert!(many.iter().all(|(key, value)| steps[2][key.as_str()].as_f64() == Some(*value)));
    assert_eq!(steps[3]["loss"], 1e-20);
}

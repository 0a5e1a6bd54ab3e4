//! Tests of the files for TensorBoard, W&B and Prometheus.

use std::fs;
use std::process::Command;

use camino::Utf8PathBuf;
use interop::Log;
use interop::tensorboard::read_folder;
use rundir::{Event, EventKind, ExitFile, ExitReason, LineAppender, MetricSample, SCHEMA};
use video::Cancel;

use super::*;

fn append(job: &Job, attempt: u32, steps: impl IntoIterator<Item = u64>) {
    let mut file = LineAppender::open(&job.run.metrics()).unwrap();
    for step in steps {
        let t = f64::from(attempt) * 1000.0 + step as f64;
        let loss = Some(f64::from(attempt) / 10.0);
        let mem_gib_by_rank = vec![1.5, 2.5];
        let sample = MetricSample { attempt, step, t, loss, step_s: 2.0, mem_gib_by_rank, ..MetricSample::default() };
        file.append(&sample).unwrap();
    }
}

fn shown(job: &Job) -> Log {
    read_folder(&job.run.tensorboard()).unwrap()
}

fn losses(log: &Log) -> Vec<(u64, f64)> {
    log.points("loss").iter().map(|point| (point.step, (point.value * 10.0).round())).collect()
}

#[test]
fn tensorboard_shows_the_metrics_by_their_names_while_the_run_trains() {
    let (_folder, job) = crate::tests::job();
    let mut tensorboard = TensorBoard::new(&job, Cancel::default());
    append(&job, 3, 1..=2);
    tensorboard.look(5000.0, false);
    append(&job, 3, 3..=4);
    tensorboard.look(5002.0, true);
    let log = shown(&job);
    assert_eq!(losses(&log), [(1, 3.0), (2, 3.0), (3, 3.0), (4, 3.0)]);
    assert_eq!(log.points("mem_gib/rank_1").last().map(|point| (point.t, point.value)), Some((3004.0, 2.5)));
    assert_eq!(log.points("step_s").len(), 4);
    assert!(log.points("lr_ttt").is_empty(), "a metric that is not measured has no series");
}

#[test]
fn after_a_resume_tensorboard_shows_the_repeated_steps_of_the_later_attempt() {
    let (_folder, mut job) = crate::tests::job();
    append(&job, 3, 1..=6);
    TensorBoard::new(&job, Cancel::default()).look(5000.0, true);
    // The supervisor was killed before it wrote step 7.
    append(&job, 3, 7..=7);
    job.attempt.number = 4;
    append(&job, 4, [5, 6, 8]);
    // The first node of the next attempt has a clock that is behind.
    TensorBoard::new(&job, Cancel::default()).look(4000.0, true);
    assert_eq!(losses(&shown(&job)), [(1, 3.0), (2, 3.0), (3, 3.0), (4, 3.0), (5, 4.0), (6, 4.0), (8, 4.0)]);
    job.attempt.number = 5;
    append(&job, 5, 9..=9);
    TensorBoard::new(&job, Cancel::default()).look(6000.0, true);
    assert_eq!(losses(&shown(&job))[6..], [(8, 4.0), (9, 5.0)]);
}

#[test]
fn steps_that_a_killed_supervisor_did_not_write_are_written_by_the_next() {
    let (_folder, mut job) = crate::tests::job();
    append(&job, 3, 1..=3);
    TensorBoard::new(&job, Cancel::default()).look(5000.0, true);
    append(&job, 3, 4..=6);
    job.attempt.number = 4;
    append(&job, 4, 7..=7);
    TensorBoard::new(&job, Cancel::default()).look(6000.0, true);
    let steps: Vec<u64> = shown(&job).points("loss").iter().map(|point| point.step).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_folder_that_cannot_be_written_does_not_end_the_thread_and_is_retried() {
    let (_folder, job) = crate::tests::job();
    append(&job, 3, 1..=2);
    fs::write(job.run.tensorboard(), "in the way").unwrap();
    let mut tensorboard = TensorBoard::new(&job, Cancel::default());
    tensorboard.look(5000.0, false);
    fs::remove_file(job.run.tensorboard()).unwrap();
    tensorboard.look(5002.0, false);
    assert_eq!(shown(&job).points("loss").len(), 2);
}

#[test]
fn samples_are_animated_pictures() {
    let (_folder, job) = crate::tests::job();
    let path = job.run.root.join("samples/step-00000002/000.mp4");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let source = ["-v", "error", "-f", "lavfi", "-i", "testsrc2=size=64x32:rate=8:duration=1"];
    if !Command::new("ffmpeg").args(source).arg(&path).status().is_ok_and(|status| status.success()) {
        println!("skipped: no ffmpeg on PATH");
        return;
    }
    let mut events = LineAppender::open(&job.run.events()).unwrap();
    for path in [job.run.root.join("samples/step-00000001/lost.mp4"), path] {
        let kind = EventKind::SampleSaved { path, seconds: 1.0 };
        events.append(&Event { step: Some(2), ..Event::new(3002.0, 3, Some(0), kind) }).unwrap();
    }
    TensorBoard::new(&job, Cancel::default()).look(5000.0, true);
    let files = interop::tensorboard::event_files(&job.run.tensorboard()).unwrap();
    let bytes = fs::read(&files[0]).unwrap();
    let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    assert!(has(b"GIF89a\x40\0\x20\0") && has(b"samples/000") && has(b"NETSCAPE2.0"));
    assert!(!has(b"samples/lost"));
}

/// Returns a folder to export to, after it stored the files of the run and of its attempt.
fn stored(job: &Job) -> Utf8PathBuf {
    job.run.write_run(&job.meta).unwrap();
    fs::create_dir_all(job.run.attempt_dir(job.attempt.number)).unwrap();
    job.run.write_attempt(&job.attempt).unwrap();
    job.run.root.with_file_name("exported")
}

/// Returns the contents of the event files in the order of their names.
fn event_bytes(folder: &Utf8PathBuf) -> Vec<Vec<u8>> {
    let files = interop::tensorboard::event_files(folder).unwrap();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

#[test]
fn an_export_writes_the_event_files_that_the_supervisor_writes_during_the_run() {
    let (_folder, mut job) = crate::tests::job();
    append(&job, 3, 1..=6);
    TensorBoard::new(&job, Cancel::default()).look(job.attempt.started_s, true);
    stored(&job);
    (job.attempt.number, job.attempt.started_s) = (4, 4000.0);
    append(&job, 4, 5..=9);
    TensorBoard::new(&job, Cancel::default()).look(job.attempt.started_s, true);
    let folder = stored(&job);
    assert_eq!(export_tensorboard(&job.run, &folder).unwrap(), []);
    let exported = event_bytes(&folder);
    assert!(exported.len() == 2 && exported == event_bytes(&job.run.tensorboard()));
    assert_eq!(losses(&read_folder(&folder).unwrap())[3..6], [(4, 3.0), (5, 4.0), (6, 4.0)]);
}

#[test]
fn an_export_has_the_points_of_nodes_at_the_step_before_them() {
    let (_folder, job) = crate::tests::job();
    append(&job, 3, [1, 8, 20, 30]);
    let mut file = LineAppender::open(&job.run.gpu_samples(&job.node)).unwrap();
    for t in [2995.0, 3010.0, 3025.0, 3060.0] {
        let power_w = vec![cluster::Reading::Value(t)];
        let gpus = rundir::GpuColumns { index: vec![0], power_w, ..Default::default() };
        file.append(&node_sample(t, gpus)).unwrap();
    }
    let folder = stored(&job);
    export_tensorboard(&job.run, &folder).unwrap();
    let log = read_folder(&folder).unwrap();
    let power: Vec<(u64, f64)> = log.points("power_w/mean").iter().map(|point| (point.step, point.value)).collect();
    assert_eq!(power, [(0, 2995.0), (8, 3010.0), (20, 3025.0), (30, 3060.0)]);
}

#[test]
fn an_export_returns_the_samples_that_it_lacks_and_refuses_a_run_that_has_not_started() {
    let (_folder, job) = crate::tests::job();
    let kind = EventKind::SampleSaved { path: "samples/step-00000001/lost.mp4".into(), seconds: 1.0 };
    let mut events = LineAppender::open(&job.run.events()).unwrap();
    events.append(&Event { step: Some(1), ..Event::new(3002.0, 3, Some(0), kind) }).unwrap();
    append(&job, 3, 1..=2);
    job.run.write_run(&job.meta).unwrap();
    let folder = job.run.root.with_file_name("exported");
    assert_eq!(export_tensorboard(&job.run, &folder).unwrap_err().code, rundir::ErrorCode::NotFound);
    stored(&job);
    assert_eq!(export_tensorboard(&job.run, &folder).unwrap().len(), 1);
    assert_eq!(read_folder(&folder).unwrap().points("loss").len(), 2);
}

fn wandb_logs(job: &Job) -> Vec<Log> {
    let files = interop::wandb::offline_files(&job.run.wandb()).unwrap();
    files.iter().map(|file| interop::wandb::read_file(file).unwrap()).collect()
}

#[test]
fn an_attempt_is_an_offline_run_of_wandb_with_the_recipe_as_its_config() {
    let (_folder, job) = crate::tests::job();
    let mut wandb = Wandb::new(&job);
    append(&job, 3, 1..=2);
    wandb.look(5000.0, false);
    append(&job, 3, 3..=3);
    wandb.look(5002.0, true);
    let logs = wandb_logs(&job);
    assert_eq!((logs.len(), logs[0].name.as_deref()), (1, Some(job.meta.name.as_str())));
    assert_eq!(losses(&logs[0]), [(1, 3.0), (2, 3.0), (3, 3.0)]);
    assert_eq!(logs[0].points("mem_gib/rank_1").last().map(|point| (point.t, point.value)), Some((3003.0, 2.5)));
    let train: serde_json::Value = serde_json::from_str(&logs[0].config["train"]).unwrap();
    assert_eq!(train["steps"], job.recipe.train.steps());
}

#[test]
fn a_resumed_attempt_writes_its_own_steps_and_those_that_a_killed_supervisor_did_not_write() {
    let (_folder, mut job) = crate::tests::job();
    append(&job, 3, 1..=6);
    Wandb::new(&job).look(5000.0, false);
    append(&job, 3, 7..=7);
    job.attempt.number = 4;
    append(&job, 4, [5, 6, 8]);
    // The next attempt begins in the same second.
    Wandb::new(&job).look(5000.0, true);
    let logs = wandb_logs(&job);
    assert_eq!(losses(&logs[0]), (1..=6).map(|step| (step, 3.0)).collect::<Vec<_>>());
    assert_eq!(losses(&logs[1]), [(5, 4.0), (6, 4.0), (8, 4.0)]);
    let files = interop::wandb::offline_files(&job.run.wandb()).unwrap();
    assert!(files.iter().all(|file| file.file_name() == Some(&format!("run-{}.wandb", job.id))), "{files:?}");
}

#[test]
fn steps_of_wandb_have_the_newest_values_of_the_nodes_before_them() {
    let (_folder, job) = crate::tests::job();
    let mut samples = LineAppender::open(&job.run.gpu_samples(&job.node)).unwrap();
    for t in [3001.0, 3006.0, 3011.0] {
        let power_w = vec![cluster::Reading::Value(t - 3000.0)];
        let gpus = rundir::GpuColumns { index: vec![0], power_w, ..Default::default() };
        samples.append(&node_sample(t, gpus)).unwrap();
    }
    append(&job, 3, [1, 8, 20, 30]);
    Wandb::new(&job).look(5000.0, true);
    let power = wandb_logs(&job)[0].points("power_w/mean").to_vec();
    assert_eq!(power.iter().map(|point| (point.step, point.value)).collect::<Vec<_>>(), [(8, 6.0), (20, 11.0)]);
}

fn node_sample(t: f64, gpus: rundir::GpuColumns) -> rundir::NodeSample {
    rundir::NodeSample {
        v: SCHEMA,
        attempt: 3,
        t,
        took_s: None,
        cpu_pct: None,
        mem_used_mib: None,
        mem_total_mib: None,
        net_rx_bytes_per_s: None,
        net_tx_bytes_per_s: None,
        ib_rx_bytes_per_s: None,
        ib_tx_bytes_per_s: None,
        gpus,
        usage: None,
        smi_errors: Vec::new(),
        xids: Vec::new(),
    }
}

fn prometheus_job(recipe: &str) -> (std::sync::Arc<tempfile::TempDir>, Job, Utf8PathBuf) {
    let (folder, mut job) = crate::tests::job();
    let collected = job.run.root.join("collected");
    fs::create_dir(&collected).unwrap();
    job.recipe.log.prometheus = collected.clone();
    job.recipe.name = recipe.into();
    let path = collected.join(format!("vidtui-{}.prom", job.id));
    (folder, job, path)
}

#[test]
fn prometheus_gets_the_newest_step_and_the_state() {
    let (_folder, job, path) = prometheus_job("a \"b\"\\");
    let mut prometheus = Prometheus::new(&job);
    append(&job, 3, 1..=2);
    prometheus.look(3012.0, false);
    let text = fs::read_to_string(&path).unwrap();
    let labels = format!("{{run=\"{}\",recipe=\"a \\\"b\\\"\\\\\"", job.id);
    for (name, more, value) in [
        ("step", "", "2"),
        ("loss", "", "0.3"),
        ("step_seconds", "", "2"),
        ("last_step_age_seconds", "", "10"),
        ("last_step_timestamp_seconds", "", "3002"),
        ("run_state", ",state=\"running\"", "1"),
        ("run_state", ",state=\"failed\"", "0"),
    ] {
        let line = format!("\nvidtui_{name}{labels}{more}}} {value}\n");
        assert!(text.contains(&line), "{line}\n{text}");
    }
    assert!(!text.contains("mfu"), "it was not measured");
    let heads = text.lines().filter(|line| line.starts_with("# TYPE")).count();
    assert_eq!(heads, text.lines().filter(|line| line.starts_with("# HELP")).count());
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn prometheus_gets_only_the_gpus_that_the_ranks_use() {
    let (_folder, job, path) = prometheus_job("demo");
    append(&job, 3, 1..=2);
    let power_w = vec![cluster::Reading::Value(60.0), cluster::Reading::Value(412.0)];
    let gpus = rundir::GpuColumns { index: vec![0, 1], used: vec![1], power_w, ..Default::default() };
    LineAppender::open(&job.run.gpu_samples(&job.node)).unwrap().append(&node_sample(3002.0, gpus)).unwrap();
    Prometheus::new(&job).look(3003.0, false);
    let text = fs::read_to_string(&path).unwrap();
    let power: Vec<&str> = text.lines().filter(|line| line.starts_with("vidtui_gpu_power_watts{")).collect();
    assert!(power.len() == 1 && power[0].ends_with(",node=\"here\",gpu=\"1\"} 412"), "{text}");
}

#[test]
fn at_the_end_prometheus_gets_the_last_state_before_other_nodes_record_theirs_and_no_gpus() {
    let (_folder, mut job, path) = prometheus_job("demo");
    let mut elsewhere = job.attempt.placement.ranks[0].clone();
    elsewhere.node = cluster::NodeId::new("there").unwrap();
    job.attempt.placement.ranks.push(elsewhere);
    append(&job, 3, 1..=2);
    let gpus =
        rundir::GpuColumns { index: vec![0], power_w: vec![cluster::Reading::Value(412.0)], ..Default::default() };
    let sample = node_sample(3002.0, gpus);
    LineAppender::open(&job.run.gpu_samples(&job.node)).unwrap().append(&sample).unwrap();
    let mut prometheus = Prometheus::new(&job);
    prometheus.look(3003.0, false);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(",node=\"here\",gpu=\"0\"} 412\n"), "{text}");
    let exit = ExitFile {
        schema: SCHEMA,
        attempt: 3,
        node: job.node.clone(),
        ended_s: 3003.0,
        reason: ExitReason::Finished,
        first_failure: None,
        failure: None,
        ranks: Vec::new(),
    };
    job.run.write_exit(&exit).unwrap();
    prometheus.look(3004.0, true);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("state=\"finished\"} 1\n") && !text.contains("gpu_power"), "{text}");
}

#[test]
fn the_thread_writes_the_last_step_at_the_end_of_the_attempt() {
    let (_folder, mut job, path) = prometheus_job("demo");
    assert!(Exporting::start(&Job { recipe: job.meta.recipe().unwrap(), ..crate::tests::job().1 }).is_none());
    job.recipe.log.tensorboard = true;
    let exporting = Exporting::start(&job).unwrap();
    append(&job, 3, 1..=5);
    exporting.request_end();
    exporting.wait();
    assert_eq!(shown(&job).points("loss").len(), 5);
    assert!(fs::read_to_string(&path).unwrap().contains("vidtui_step{"));
}

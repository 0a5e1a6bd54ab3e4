//! Opens the run directory that was frozen with version 1 of the formats. It must open forever.
//!
//! `tests/fixtures/runs/v1` is never made again: a new version of the formats gets a folder of its own beside it.

#![expect(clippy::unwrap_used, reason = "a fixture that cannot be read is a failed test")]

use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use rundir::*;

const ID: &str = "2026-11-20T0340-demo-2s-k7f2";
const NOW: f64 = 1_795_147_000.0;

fn frozen() -> Utf8PathBuf {
    Utf8Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/runs/v1")).to_owned()
}

fn run() -> RunDir {
    RunDir::new(frozen().join(ID))
}

fn node() -> NodeId {
    NodeId::new("ml-1").unwrap()
}

#[test]
fn the_frozen_run_is_listed_and_its_recipe_holds() {
    let runs = list_runs(&frozen());
    assert_eq!(runs, [Ok(run())]);
    let frozen = run().read_run().unwrap();
    assert_eq!(frozen.id.as_str(), ID);
    assert_eq!((frozen.stage.as_deref(), frozen.start.clone()), (Some("2s"), StartFrom::Random));
    let recipe = frozen.recipe().unwrap();
    assert_eq!((recipe.train.steps, recipe.mesh.world()), (20, 2));
}

#[test]
fn the_frozen_attempts_say_why_and_where() {
    let run = run();
    assert_eq!(run.attempt_numbers().unwrap(), [1, 2]);
    let first = run.read_attempt(1).unwrap();
    assert_eq!((first.why, first.start_step, first.placement.ranks.len()), (AttemptWhy::Launch, 0, 2));
    let second = run.latest_attempt().unwrap().unwrap();
    assert_eq!((second.number, second.why, second.start_step), (2, AttemptWhy::Resume, 8));
    assert_eq!(second.start, StartFrom::Checkpoint { run: RunId::parse(ID).unwrap(), step: 8 });
    assert!(std::fs::read_to_string(run.launch_script(1, &node())).unwrap().starts_with("#!"));
}

#[test]
fn the_frozen_metrics_are_merged_and_their_torn_end_is_not_read() {
    let mut tail = Tail::<MetricSample>::new(run().metrics());
    let batch = tail.poll().unwrap();
    // The first attempt was killed in the middle of step 13, and the second ended that line before it began its own.
    assert_eq!(batch.bad.len(), 1);
    let mut history = History::new();
    history.extend(batch.items);
    let counts: Vec<(u32, u64)> = history.effective().iter().map(|s| (s.attempt, s.step)).collect();
    let wanted: Vec<(u32, u64)> = (1..=8).map(|step| (1, step)).chain((9..=14).map(|step| (2, step))).collect();
    assert_eq!(counts, wanted);
    assert_eq!(history.superseded().len(), 4);
    assert_eq!(history.effective()[10].loss, None, "step 11 was not finite");
    assert_eq!(history.last().unwrap().mem_peak_gib_by_rank, [0.75, 0.5]);
    assert!(tail.offset() < std::fs::metadata(run().metrics()).unwrap().len(), "the last line is torn");
}

#[test]
fn the_frozen_events_are_read_with_those_of_the_node() {
    let events = read_events(&run()).unwrap();
    let names: Vec<String> =
        events.iter().map(|e| serde_json::to_value(e).unwrap()["event"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        names,
        [
            "started",
            "checkpoint_started",
            "checkpoint_saved",
            "rank_died",
            "started",
            "resumed",
            "loss_not_finite",
            "step_skipped",
            "spare_node_offered",
            "checkpoint_started",
        ]
    );
    let EventKind::Other { text, .. } = &events[8].kind else { panic!("{:?}", events[8]) };
    assert_eq!(text, "spare: ml-9");
}

#[test]
fn the_frozen_checkpoints_are_one_complete_and_one_not() {
    let entries = checkpoints(&run()).unwrap();
    assert_eq!(entries.iter().map(CheckpointEntry::step).collect::<Vec<_>>(), [8, 14]);
    assert!(matches!(&entries[1], CheckpointEntry::Incomplete { why, .. } if why.contains("no manifest.toml")));
    let latest = latest(&run()).unwrap();
    assert_eq!((latest.step, latest.attempt), (8, 1));
    let checkpoint = Checkpoint::open(&latest.dir).unwrap();
    checkpoint.verify_checksums().unwrap();
    assert_eq!(checkpoint.state().unwrap().samples_seen, 32);
    let tensor = checkpoint.tensor("exp_avg/final.norm.bias").unwrap();
    assert_eq!((tensor.elements(), tensor.slices.len()), (Some(6), 2));
}

#[test]
fn the_frozen_run_crashed_as_far_as_its_files_tell() {
    let run = run();
    let pid = run.read_pid(&node(), 2).unwrap().unwrap();
    assert_eq!((pid.pid, pid.ranks.len()), (5200, 2));
    let exit = run.read_exit(&node(), 1).unwrap().unwrap();
    assert_eq!((exit.reason, exit.first_failure), (ExitReason::Failed, Some(1)));
    assert_eq!(exit.ranks[1].stderr_tail, ["step 12", "Killed"]);

    let mut facts = RunFacts {
        attempt: run.latest_attempt().unwrap(),
        alive: Liveness::Dead,
        steps_total: 20,
        ..RunFacts::default()
    };
    facts.exits.extend(run.read_exit(&node(), 2).unwrap());
    read_events(&run).unwrap().iter().for_each(|event| facts.see_event(event));
    recent_metrics(&run).unwrap().iter().for_each(|sample| facts.see_metric(sample));
    let summary = RunSummary::new(run.read_run().unwrap(), run.clone(), &facts, NOW).unwrap();
    assert!(matches!(summary.state, RunState::Crashed(_)), "{:?}", summary.state);
    assert_eq!((summary.step, summary.steps_total), (14, 20));
    let log = Tail::<String>::new(run.rank_log(&node(), 2, 1)).poll().unwrap();
    assert_eq!(log.items.last().map(String::as_str), Some("step 14"));
}

/// How the fixture was made, once.
mod made {
    use super::*;
    use cluster::{Placement, RankPlace};
    use recipe::Mesh;
    use std::fs;
    use std::io::Write;

    const T: f64 = 1_795_146_012.0;
    const MESH: Mesh = Mesh { dp_replicate: 1, dp_shard: 2 };

    #[test]
    #[ignore = "the fixture is frozen; this shows how it was made"]
    fn the_frozen_run() {
        let run = run();
        fs::create_dir_all(frozen()).unwrap();
        fs::create_dir(&run.root).expect("it is made once");
        let minimal = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
        let sets = ["name=demo-2s", "mesh.dp_shard=2", "data.index=/data/demo/index.jsonl"].map(String::from);
        run.write_run(&Run {
            schema: SCHEMA,
            id: RunId::parse(ID).unwrap(),
            name: "demo-2s".into(),
            curriculum: Some("/home/ada/vidtui/configs/demo/curriculum.toml".into()),
            stage: Some("2s".into()),
            created_s: T,
            git_commit: Some("0123456789abcdef0123456789abcdef01234567".into()),
            trainer_sha256: Some("ab".repeat(32)),
            trainer_version: "0.1.0".into(),
            libtorch: "2.11.0".into(),
            start: StartFrom::Random,
            lineage: None,
            recipe: recipe::load(minimal.into(), &sets).unwrap().table,
        })
        .unwrap();
        let resumed = StartFrom::Checkpoint { run: RunId::parse(ID).unwrap(), step: 8 };
        attempt(&run, 1, AttemptWhy::Launch, StartFrom::Random, 0);
        first_attempt(&run);
        attempt(&run, 2, AttemptWhy::Resume, resumed, 8);
        second_attempt(&run);
    }

    fn attempt(run: &RunDir, number: u32, why: AttemptWhy, start: StartFrom, start_step: u64) {
        let started_s = T + f64::from(number - 1) * 300.0;
        let script = run.launch_script(number, &node());
        fs::create_dir_all(script.parent().unwrap()).unwrap();
        fs::create_dir_all(run.log_dir(&node())).unwrap();
        fs::write(&script, format!("#!/usr/bin/env bash\nexport VIDTUI_RUN={ID}\nexec vidtui-train supervise\n"))
            .unwrap();
        let place = |rank| RankPlace { rank, node: node(), local_rank: rank };
        run.write_attempt(&Attempt {
            schema: SCHEMA,
            number,
            why,
            by: "ada@ml-1".into(),
            started_s,
            start_step,
            start,
            steps: None,
            mesh: MESH,
            placement: Placement { ranks: vec![place(0), place(1)] },
            logins: Vec::new(),
        })
        .unwrap();
        let pid = 5000 + 100 * number as i32;
        let rank = |rank: usize| RankPid { rank, pid: pid + 1 + rank as i32, start_ticks: 90_010 };
        run.write_pid(&PidFile {
            schema: SCHEMA,
            attempt: number,
            node: node(),
            pid,
            pgid: pid,
            boot_id: "7b1d3c56-8a51-4d0c-9f0b-2f8e2a6f1c11".into(),
            start_ticks: 90_000,
            started_s: started_s + 0.5,
            ranks: vec![rank(0), rank(1)],
        })
        .unwrap();
    }

    fn sample(attempt: u32, step: u64) -> MetricSample {
        MetricSample {
            attempt,
            step,
            t: T + f64::from(attempt - 1) * 300.0 + 2.5 * step as f64,
            loss: (step != 11 || attempt == 1).then_some(1.0 / step as f64),
            grad_norm: (step != 11 || attempt == 1).then_some(0.5),
            lr: 1e-4,
            lr_ttt: (attempt == 2).then_some(1e-3),
            step_s: 2.5,
            data_s: 0.01,
            forward_s: 0.75,
            backward_s: 1.5,
            optimizer_s: 0.25,
            checkpoint_s: 0.0,
            samples_per_s: 1.6,
            tokens_per_s: 409.6,
            mem_gib_by_rank: vec![0.625, 0.5],
            mem_peak_gib_by_rank: vec![0.75, 0.5],
            step_s_by_rank: vec![2.5, 2.25],
            ..MetricSample::default()
        }
    }

    fn first_attempt(run: &RunDir) {
        let mut metrics = LineAppender::open(&run.metrics()).unwrap();
        (1..=12).for_each(|step| metrics.append(&sample(1, step)).unwrap());
        tear(&run.metrics(), &sample(1, 13));
        let mut events = LineAppender::open(&run.events()).unwrap();
        let mut tell = |t, step, kind| events.append(&Event::new(T + t, 1, step, kind).by_rank(0)).unwrap();
        tell(1.0, Some(0), EventKind::Started { world: 2 });
        tell(20.5, Some(8), EventKind::CheckpointStarted);
        let saved = EventKind::CheckpointSaved { path: "checkpoints/step-00000008".into(), bytes: 512, seconds: 0.25 };
        tell(20.75, Some(8), saved);
        checkpoint(run, 8);
        let died = EventKind::RankDied { rank: 1, code: None, signal: Some(9), message: "Killed".into() };
        let mut of_node = LineAppender::open(&run.node_events(&node())).unwrap();
        of_node.append(&Event::new(T + 33.0, 1, Some(12), died).by_node(node())).unwrap();
        for rank in 0..2 {
            fs::write(run.rank_log(&node(), 1, rank), "step 11\nstep 12\nKilled\n").unwrap();
        }
        let ended = |rank, code, signal, stderr: &[&str]| RankExit {
            rank,
            code,
            signal,
            last_step: Some(12),
            ended_s: T + 33.0,
            stderr_tail: stderr.iter().map(|line| (*line).to_owned()).collect(),
        };
        run.write_exit(&ExitFile {
            schema: SCHEMA,
            attempt: 1,
            node: node(),
            ended_s: T + 34.0,
            reason: ExitReason::Failed,
            first_failure: Some(1),
            failure: Some(Failure::new(
                "rank 1 died",
                "signal 9 (killed)",
                "look for the memory killer: dmesg, then resume",
            )),
            ranks: vec![ended(0, Some(1), None, &["a peer is gone"]), ended(1, None, Some(9), &["step 12", "Killed"])],
        })
        .unwrap();
    }

    fn second_attempt(run: &RunDir) {
        let mut metrics = LineAppender::open(&run.metrics()).unwrap();
        (9..=14).for_each(|step| metrics.append(&sample(2, step)).unwrap());
        tear(&run.metrics(), &sample(2, 15));
        let mut events = LineAppender::open(&run.events()).unwrap();
        let mut tell = |t, step, kind| events.append(&Event::new(T + 300.0 + t, 2, step, kind).by_rank(0)).unwrap();
        tell(1.0, Some(8), EventKind::Started { world: 2 });
        tell(2.0, Some(8), EventKind::Resumed { from_step: 8, of_run: RunId::parse(ID).unwrap() });
        tell(27.5, Some(11), EventKind::LossNotFinite);
        tell(27.75, Some(11), EventKind::StepSkipped);
        // An event that this version does not know.
        tell(30.0, Some(12), EventKind::Other { name: "spare_node_offered".into(), text: String::new() });
        tell(35.5, Some(14), EventKind::CheckpointStarted);
        let text = fs::read_to_string(run.events()).unwrap();
        let unknown = r#""event":"spare_node_offered","spare":"ml-9""#;
        fs::write(run.events(), text.replace(r#""event":"spare_node_offered","text":"""#, unknown)).unwrap();
        // Killed while saving: one of two files, and no manifest.
        fs::create_dir_all(run.step_dir(14)).unwrap();
        fs::write(run.step_dir(14).join("rank-00000.safetensors"), safetensors("x", &[0.0; 3])).unwrap();
        for rank in 0..2 {
            fs::write(run.rank_log(&node(), 2, rank), "step 13\nstep 14\n").unwrap();
        }
    }

    fn tear(path: &Utf8Path, sample: &MetricSample) {
        let line = serde_json::to_string(sample).unwrap();
        fs::OpenOptions::new().append(true).open(path).unwrap().write_all(&line.as_bytes()[..70]).unwrap();
    }

    /// A tensor of six elements in two halves, and its optimizer state.
    fn checkpoint(run: &RunDir, step: u64) {
        let dir = run.step_dir(step);
        fs::create_dir_all(&dir).unwrap();
        let names = ["final.norm.bias", "exp_avg/final.norm.bias"];
        let file = |prefix: &str, rank: usize| format!("{prefix}-{rank:05}.safetensors");
        for rank in 0..2 {
            let first = 3.0 * rank as f32;
            let half = [first, first + 1.0, first + 2.0];
            fs::write(dir.join(file("rank", rank)), safetensors(names[0], &half)).unwrap();
            fs::write(dir.join(file("optim", rank)), safetensors(names[1], &half)).unwrap();
        }
        let state = TrainState {
            step,
            samples_seen: 4 * step,
            epoch: 1,
            position: 2,
            seed: 0,
            adam_step: step,
            global_batch: 4,
            data_fingerprint: "8d5f0c1b2a394e67".into(),
            bad_steps: 0,
        };
        write_toml(&dir.join("state.toml"), &state).unwrap();
        let files = [file("rank", 0), file("rank", 1), file("optim", 0), file("optim", 1), "state.toml".into()];
        let tensor = |name: &str, prefix: &str| LogicalTensor {
            name: name.into(),
            dtype: "F32".into(),
            shape: vec![6],
            slices: (0..2)
                .map(|rank| Slice { file: file(prefix, rank), key: name.into(), start: 3 * rank as u64, len: 3 })
                .collect(),
        };
        let manifest = Manifest {
            format: SCHEMA,
            run: RunId::parse(ID).unwrap(),
            attempt: 1,
            step,
            saved_s: T + 20.75,
            params: 6,
            mesh: MESH,
            files: files.iter().map(|name| file_sum(&dir.join(name)).unwrap()).collect(),
            tensors: vec![tensor(names[0], "rank"), tensor(names[1], "optim")],
        };
        write_toml(&dir.join("manifest.toml"), &manifest).unwrap();
    }

    fn safetensors(name: &str, values: &[f32]) -> Vec<u8> {
        let bytes = 4 * values.len();
        let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{bytes}]}}}}"#, values.len());
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        values.iter().for_each(|v| file.extend(v.to_le_bytes()));
        file
    }
}

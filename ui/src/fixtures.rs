//! Test data: runs of the demo curriculum, with fixed times and curves, and a console under test.

use crate::*;
use camino::Utf8PathBuf;
use cluster::{Node, NodeId, Placement};
use health::{Finding, Rule, Subject, Urgency};
use plan::{KillHow, LaunchPlan, NodeKill, NodeLaunch, RunKill};
use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;
use recipe::{Change, Mesh, StageStart, Task};
use rundir::*;
use runstate::{Epochs, RunState};

/// The time of every test: 2026-11-20 04:00:00 UTC.
pub const NOW: f64 = 1_795_147_200.0;

pub fn id(text: &str) -> RunId {
    RunId::parse(text).unwrap()
}

pub fn stage_1() -> RunId {
    id("2026-11-20T0340-demo-2s-k7f2")
}

pub fn stage_2() -> RunId {
    id("2026-11-20T0355-demo-4s-q2xw")
}

pub fn node() -> NodeId {
    NodeId::new("devbox").unwrap()
}

pub fn curriculum_path() -> Utf8PathBuf {
    "/home/ada/vidtui/configs/demo/curriculum.toml".into()
}

/// A realistic sample: the loss falls, the learning rate warms up, memory grows a little in the first steps.
pub fn sample(attempt: u32, step: u64) -> MetricSample {
    let x = step as f64;
    let wave = ((x * 12.9898).sin() * 43758.5453).fract();
    MetricSample {
        attempt,
        step,
        t: NOW - 300.0 + x * 1.21,
        loss: Some(0.12 + 0.9 * (-x / 30.0).exp() + 0.03 * wave),
        grad_norm: Some(0.4 + 2.0 * (-x / 12.0).exp() + 0.1 * wave.abs()),
        lr: 1e-4 * (x / 20.0).min(1.0),
        step_s: 1.21 + 0.05 * wave + if step % 40 == 1 { 0.6 } else { 0.0 },
        data_s: 0.02 + 0.01 * wave.abs(),
        weight_norm: Some(41.0 + 0.01 * x),
        mfu: Some(0.31 + 0.02 * wave),
        busy_s_by_rank: vec![1.02, if (30..44).contains(&step) { 1.6 } else { 1.04 + 0.08 * wave.abs() }],
        mem_gib_by_rank: vec![1.21 + 0.2 * (1.0 - (-x / 5.0).exp()), 1.18 + 0.2 * (1.0 - (-x / 5.0).exp())],
        ..Default::default()
    }
}

pub fn row(run: RunId, stage: &str, state: RunState, step: u64) -> RunRow {
    RunRow {
        name: run.name().to_owned(),
        run,
        curriculum: Some(curriculum_path()),
        stage: Some(stage.to_owned()),
        lineage: None,
        state,
        step,
        steps_total: 240,
        loss: sample(1, step.max(1)).loss.filter(|_| step > 0),
        step_s: Some(1.21).filter(|_| step > 1),
        eta_s: None,
        ranks: 2,
        created_s: NOW - 310.0,
        updated_s: NOW - 1.0,
        checkpoint_step: Some(step / 80 * 80).filter(|s| *s > 0),
        findings: vec![],
        job: None,
        is_command: false,
        is_stepless: false,
        task: Task::Train,
        items: None,
        stages: None,
        videos: None,
        epochs: None,
        start_deadline_s: None,
        longer_steps: None,
        launch: None,
        is_imported: false,
        is_attached: false,
        note: None,
    }
}

/// A run whose collective hangs.
pub fn stalled() -> RunRow {
    let hang = finding(
        Rule::Stalled,
        Urgency::Act,
        Subject::Run,
        "no step since step 83 (one usually takes 1.2 s), and its GPUs draw 960 W where they drew 5200 W",
    );
    let fix = format!("collect the stacks of all ranks first (vidtui stacks {}), then kill and resume it", stage_1());
    let findings = vec![Finding { since_s: Some(NOW - 190.0), fix, ..hang }];
    RunRow { findings, ..row(stage_1(), "2s", RunState::Stalled { since_s: NOW - 190.0 }, 83) }
}

/// A running run with two findings.
pub fn slowed() -> RunRow {
    let gpu = Subject::Gpu(NodeId::new("node03").unwrap(), 2);
    let hot = finding(Rule::Throttled, Urgency::Look, gpu, "throttled: thermal, by hardware, 91 °C, 1100 MHz");
    let unseen = Subject::Node(NodeId::new("node02").unwrap());
    let away = finding(Rule::NodeLost, Urgency::Note, unseen, "the node cannot be reached from this machine");
    RunRow { findings: vec![Finding { since_s: Some(NOW - 420.0), ..hot }, away], ..running(83) }
}

fn finding(rule: Rule, urgency: Urgency, about: Subject, saw: &str) -> Finding {
    let fix = "look at its cooling and power supply; every other rank waits for it";
    Finding { rule, urgency, about, since_s: None, saw: saw.into(), fix: fix.into() }
}

pub fn running(step: u64) -> RunRow {
    let epochs = Some(Epochs { done: step as f64 / 6.0, total: 40.0 });
    RunRow { eta_s: Some((240 - step) as f64 * 1.21), epochs, ..row(stage_1(), "2s", RunState::Running, step) }
}

pub fn failure() -> Failure {
    Failure::new(
        rundir::ErrorCode::OutOfMemory,
        "rank 1 died",
        "out of memory: it wanted 3.2 GiB and 1.1 GiB were free on devbox",
        "set train.grad_accum = 2, or train on a machine with more memory",
    )
}

/// A run with the Slurm job of a line of `squeue`.
pub fn as_job(row: RunRow, line: &str) -> RunRow {
    use cluster::slurm::{JobReply, JobStatus, read_queue};
    let reply = JobReply::Job(Box::new(read_queue(line).rows.remove(0)));
    RunRow { job: Some(JobStatus { reply, ..JobStatus::unknown(42) }), ranks: 4, ..row }
}

/// A run that was requeued.
pub fn queued() -> RunRow {
    let start = NOW + 750.0;
    let line = format!("42|PENDING|Resources|0:00|1-00:00:00|4||{start}|N/A|ada|train|gres:gpu:1|demo");
    as_job(row(stage_1(), "2s", RunState::Queued, 97), &line)
}

/// A runs folder with every kind of run.
pub fn many_runs() -> RunList {
    let at = |minutes: f64, row: RunRow| RunRow {
        created_s: NOW - minutes * 60.0,
        updated_s: if run_state::StateKind::of(&row.state).is_active() { NOW - 1.0 } else { NOW - minutes * 50.0 },
        ..row
    };
    let other = |tail: &str, stage: &str, state, step| {
        let id = id(&format!("2026-11-19T2210-demo-{stage}-{tail}"));
        row(id, stage, state, step)
    };
    RunList {
        rows: vec![
            at(5.0, running(83)),
            at(
                2.0,
                RunRow {
                    lineage: Some(Lineage { run: stage_1(), step: 240 }),
                    steps_total: 120,
                    ..row(stage_2(), "4s", RunState::Starting, 0)
                },
            ),
            at(61.0, other("a3cd", "2s", RunState::Finished, 240)),
            at(95.0, other("zz01", "2s", RunState::Stopped, 97)),
            at(180.0, other("m0n9", "2s", RunState::Stalled { since_s: NOW - 190.0 }, 120)),
            at(1500.0, other("e5p8", "4s", RunState::Failed(failure()), 42)),
            at(2900.0, other("h4rd", "2s", RunState::Crashed(failure()), 7)),
        ],
        unreadable: vec![],
    }
}

/// Three runs to compare: one trains, one is stopped, one was resumed and has finished.
pub fn compared_runs() -> Vec<RunRow> {
    let at = |minutes: f64, row: RunRow| RunRow { created_s: NOW - 60.0 * minutes, ..row };
    let other = |tail: &str, state, step| row(id(&format!("2026-11-19T2210-demo-2s-{tail}")), "2s", state, step);
    vec![
        at(5.0, running(83)),
        at(9.0, other("lr3e4", RunState::Stopped, 60)),
        at(14.0, other("4s", RunState::Finished, 120)),
    ]
}

pub fn attempt(number: u32, start_step: u64) -> Attempt {
    Attempt {
        schema: 1,
        number,
        why: if number == 1 { AttemptWhy::Launch } else { AttemptWhy::Resume },
        by: "ada@devbox".into(),
        started_s: NOW - 310.0,
        start_step,
        start: if number == 1 { StartFrom::Random } else { StartFrom::Checkpoint { run: stage_1(), step: start_step } },
        asked_step: None,
        steps: None,
        changed: Vec::new(),
        checkpoint: None,
        waived: vec![],
        mesh: Mesh { dp_replicate: 1, dp_shard: 2, tp: 1 },
        placement: Placement::new(&[Node::local("devbox", 2)], 2).unwrap(),
        logins: vec![],
        spares: vec![],
        slurm: None,
    }
}

pub fn status(row: RunRow) -> Box<RunStatus> {
    Box::new(RunStatus {
        dir: format!("/home/ada/vidtui/runs/{}", row.run).into(),
        row,
        start: StartFrom::Random,
        attempt: Some(attempt(1, 0)),
        samples: None,
    })
}

pub fn event(seconds_ago: f64, step: Option<u64>, kind: EventKind) -> Event {
    Event::new(NOW - seconds_ago, 1, step, kind)
}

pub fn events() -> Vec<Event> {
    let dir: Utf8PathBuf = "/home/ada/vidtui/runs/x/checkpoints/step-00000080".into();
    vec![
        event(309.0, None, EventKind::Started { world: 2 }),
        event(204.0, Some(80), EventKind::CheckpointStarted),
        event(203.6, Some(80), EventKind::CheckpointSaved { path: dir, bytes: 3_300_000, seconds: 0.41 }),
        event(120.0, Some(81), EventKind::LossNotFinite),
        event(120.0, Some(81), EventKind::StepSkipped { clips: Vec::new(), more_clips: 0, in_data: false }),
    ]
}

pub fn checkpoint(step: u64, seconds_ago: f64) -> CheckpointEntry {
    CheckpointEntry::Complete(CheckpointSummary {
        step,
        dir: format!("/home/ada/vidtui/runs/x/checkpoints/step-{step:08}").into(),
        attempt: 1,
        bytes: 3_300_000,
        saved_s: NOW - seconds_ago,
        is_pinned: false,
    })
}

pub fn curricula() -> Vec<CurriculumView> {
    let change = |key: &str, from: Option<&str>, to: &str| Change {
        key: key.into(),
        from: from.map(str::to_owned),
        to: to.into(),
    };
    let stage = |name: &str, frames: usize, steps, start, changes| StageView {
        name: name.into(),
        command: None,
        params: 1_840_000,
        seq_len: 16 + frames * 60,
        latent_frames: frames,
        length: recipe::Length::Steps(steps),
        global_batch: 4,
        ranks: 2,
        start,
        changes,
    };
    let first = vec![change("model.latent_frames", None, "13"), change("train.steps", None, "240")];
    let second = vec![
        change("model.latent_frames", Some("13"), "25"),
        change("data.index", Some("/home/ada/vidtui/assets/demo/2s.jsonl"), "/home/ada/vidtui/assets/demo/4s.jsonl"),
        change("optimizer.lr", Some("0.001"), "0.0005"),
        change("train.steps", Some("240"), "120"),
        change("train.trainable", Some("all"), "qkvo"),
    ];
    vec![CurriculumView {
        path: curriculum_path(),
        title: "Demo: a rabbit on two cores".into(),
        stages: Ok(vec![
            stage("2s", 13, 240, StageStart::Random, first),
            stage("4s", 25, 120, StageStart::Previous, second),
        ]),
    }]
}

fn recipe_view(path: &str, about: &str, facts: Result<RecipeFacts, Failure>) -> RecipeView {
    RecipeView { path: format!("/home/ada/vidtui/configs/{path}").into(), about: about.into(), bases: 0, facts }
}

/// Recipes of three folders: a base, trained models, a command, and one with a mistake.
pub fn recipes() -> Vec<RecipeView> {
    let settings = [
        ("model.num_layers", "42"),
        ("model.num_heads", "48"),
        ("data.index", "\"/home/ada/data/disney/index.jsonl\""),
        ("optimizer.lr", "4e-4"),
        ("train.steps", "20000"),
    ];
    let model = |name: &str, kind: &str, params, ranks| {
        Ok(RecipeFacts {
            name: name.into(),
            kind: kind.into(),
            command: None,
            params: Some(params),
            seq_len: Some(17_776),
            length: "20000 steps of 8 samples".into(),
            mesh: format!("dp_replicate 1 × dp_shard {ranks} = {ranks} ranks"),
            ranks,
            settings: settings.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec(),
        })
    };
    let command = Ok(RecipeFacts {
        name: "finetrainers".into(),
        kind: "finetrainers".into(),
        command: Some("torchrun '--nnodes={nnodes}' train.py --parallel_backend ptd --model_name cogvideox".into()),
        params: None,
        seq_len: None,
        length: "3000 steps".into(),
        mesh: "dp_replicate 8 × dp_shard 1 = 8 ranks".into(),
        ranks: 8,
        settings: vec![("trainer".into(), "\"command\"".into()), ("command.trainer".into(), "\"finetrainers\"".into())],
    });
    let missing = Failure::new(
        rundir::ErrorCode::InvalidRecipe,
        "cannot use recipe configs/cogvideox/base.toml",
        "keys are not set: model.num_layers, model.num_heads",
        "set model.num_layers (number of transformer blocks), or build on a recipe that sets it: base = \"…\"",
    );
    let wrong = Failure::new(
        rundir::ErrorCode::InvalidRecipe,
        "cannot use recipe configs/mine.toml",
        "line 7: there is no key train.step",
        "did you mean train.steps? (steps of the optimizer)",
    );
    let of_5b = "LoRA of CogVideoX-5B, text to video, on one GPU. The values are those of cogvideox-factory's script.";
    vec![
        recipe_view("cogvideox/5b-lora.toml", of_5b, model("cogvideox-5b-lora", "LoRA", 5_632_000_000, 1)),
        recipe_view(
            "cogvideox/5b.toml",
            "CogVideoX-5B, text to video.",
            model("cogvideox-5b", "train", 5_570_283_072, 8),
        ),
        RecipeView {
            bases: 9,
            ..recipe_view("cogvideox/base.toml", "Settings that all recipes of this folder share.", Err(missing))
        },
        recipe_view("mine/mine.toml", "", Err(wrong)),
        recipe_view(
            "others/finetrainers.toml",
            "finetrainers: LoRA of CogVideoX-5B with FSDP over all ranks.",
            command,
        ),
    ]
}

fn run(id: RunId, stage: &str) -> Run {
    Run {
        schema: 1,
        name: id.name().into(),
        id,
        curriculum: Some(curriculum_path()),
        stage: Some(stage.into()),
        created_s: NOW,
        git_commit: None,
        trainer_sha256: None,
        trainer_version: "0.1.0".into(),
        libtorch: "2.11.0".into(),
        start: StartFrom::Random,
        lineage: None,
        imported: None,
        attached: None,
        launched_from: None,
        recipe: Default::default(),
    }
}

fn plan(id: RunId, stage: &str, attempt: Attempt, warnings: Vec<String>, weights: &str) -> Box<LaunchPlan> {
    let dir = RunDir::of("/home/ada/vidtui/runs".into(), &id);
    let summary = [
        ("recipe", format!("demo-{stage}")),
        ("stage", format!("{stage} of {}", curriculum_path())),
        ("ranks", "2 on devbox".into()),
        ("mesh", "dp_replicate 1 × dp_shard 2 = 2 ranks".into()),
        ("steps", "1 to 240, 4 samples each".into()),
        ("weights", weights.into()),
        ("data", format!("/home/ada/vidtui/assets/demo/{stage}.jsonl")),
        ("checkpoints", "every 80 steps, 22 MB each, the newest 3 are kept".into()),
        ("run directory", dir.root.to_string()),
        (
            "command",
            format!(
                "/home/ada/vidtui/target/release/vidtui-train supervise --run-dir {} --attempt 1 --node devbox",
                dir.root
            ),
        ),
    ];
    Box::new(LaunchPlan {
        run: run(id, stage),
        dir,
        attempt,
        nodes: vec![NodeLaunch { node: node(), script: "#!/bin/bash\n".into() }],
        warnings,
        summary: summary.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        trainer: plan::TrainerBinary {
            path: "/home/ada/vidtui/target/release/vidtui-train".into(),
            version: "0.1.0".into(),
            tch: "0.24.0".into(),
            libtorch: "2.11.0".into(),
            cuda: false,
            sha256: "5d41402a".repeat(8),
        },
        disk: plan::DiskNeed { checkpoint_bytes: 22_000_000, count: 3, is_data_set: false },
        master: None,
        job_script: None,
        replaces: None,
        push: false,
        data: vec![],
    })
}

pub fn launch_plan(warnings: Vec<String>) -> Box<LaunchPlan> {
    plan(stage_1(), "2s", attempt(1, 0), warnings, "random, seed 7")
}

pub fn resume_plan(warnings: Vec<String>) -> Box<LaunchPlan> {
    plan(stage_1(), "2s", attempt(2, 80), warnings, "checkpoint at step 80 of this run")
}

/// The preview of converting a published model to a checkpoint.
pub fn convert_preview() -> Box<ConvertPreview> {
    let row = |count, source: &str, target: &str| ConvertRow {
        count,
        source: source.into(),
        target: target.into(),
        wrong: false,
    };
    let options = ConvertOptions {
        source: "/home/ada/models/CogVideoX-5b".into(),
        target: "/home/ada/models/CogVideoX-5b-internal".into(),
        layer: Some(recipe::Layer::TttMlp),
        ..ConvertOptions::default()
    };
    let facts = [
        ("from", "/home/ada/models/CogVideoX-5b (CogVideoX-5B, diffusers pipeline)"),
        ("to", "/home/ada/models/CogVideoX-5b-internal, 13.5 GiB in 14 files"),
        ("mapped", "1024"),
        ("unused", "0"),
        ("initialized", "924"),
    ];
    let mut rows = vec![
        row(1, "patch_embed.proj.weight", "patch_embed.video.weight"),
        row(1, "time_embedding.linear_1.weight", "time_embed.linear1.weight"),
    ];
    for (theirs, ours) in [("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "o")] {
        rows.push(row(
            42,
            &format!("transformer_blocks.{{i}}.attn1.{theirs}.weight"),
            &format!("blocks.{{i}}.attn.{ours}.weight"),
        ));
    }
    for n in ["q", "k", "v", "o"] {
        rows.push(row(42, "(uniform within ±1/√3072)", &format!("blocks.{{i}}.ttt.{n}.weight")));
    }
    for n in ["forward.video", "forward.text", "backward.video", "backward.text"] {
        rows.push(row(42, "(0.1)", &format!("blocks.{{i}}.ttt.gate.{n}")));
    }
    Box::new(ConvertPreview {
        command: format!("vidtui convert {} {} --to internal --layer ttt_mlp", options.source, options.target),
        facts: facts.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        rows,
        bytes: 14_460_357_696,
        refusal: None,
        in_the_way: false,
        fingerprint: "2d06800538d394c2".into(),
        options,
    })
}

pub fn kill_plan() -> Box<RunKill> {
    Box::new(RunKill {
        run: stage_1(),
        dir: RunDir::of("/home/ada/vidtui/runs".into(), &stage_1()),
        how: KillHow::Kill,
        nodes: vec![NodeKill {
            run: stage_1(),
            node: node(),
            attempt: 1,
            pid: 41_200,
            pgid: 41_200,
            boot_id: "5c9d".into(),
            start_ticks: 812_345,
            ranks: vec![
                RankPid { rank: 0, pid: 41_207, start_ticks: 812_350 },
                RankPid { rank: 1, pid: 41_208, start_ticks: 812_351 },
            ],
            why: "TERM to group 41200, KILL after 10 s to what is left; boot, start time and VIDTUI_RUN agree with nodes/devbox/0001.pid.toml".into(),
        }],
        job: None,
    })
}

/// A console under test: messages in, effects out, the screen as text.
pub struct Ui {
    pub model: Model,
}

impl Ui {
    pub fn new() -> Self {
        Self::with_setup(|_| {})
    }

    pub fn with_setup(change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup {
            size: Size { width: 80, height: 24 },
            now: NOW,
            theme: Theme::no_color(),
            symbols: Symbols::unicode(),
            keys: KeyMap::default(),
            runs_dir: "/home/ada/vidtui/runs".into(),
            export_dir: "/home/ada/vidtui".into(),
            nodes_from: "hostfile gpus.txt".into(),
            launch: draft::LaunchDraft::default(),
            has_desktop: false,
            open: None,
            session: None,
            problem: None,
        };
        change(&mut setup);
        Self { model: Model::new(setup) }
    }

    /// The Runs screen with this list, and the demo curriculum.
    pub fn with_runs(rows: Vec<RunRow>) -> Self {
        let mut ui = Self::new();
        ui.send(Msg::Curricula(curricula()));
        ui.send(Msg::Runs(Ok(RunList { rows, unreadable: vec![] })));
        ui
    }

    /// The Run screen of the first stage in this state, after `steps` steps.
    pub fn on_run(row: RunRow) -> Self {
        let steps = row.step;
        let mut ui = Self::on_empty_run(row);
        ui.run_msg(RunMsg::Metrics((1..=steps).map(|step| sample(1, step)).collect()));
        ui.run_msg(RunMsg::Events(events()));
        ui.run_msg(RunMsg::Checkpoints(if steps >= 80 { vec![checkpoint(80, 203.0)] } else { vec![] }));
        ui
    }

    /// The Compare screen of the runs of [`compared_runs`], one of them resumed, with their recipes.
    pub fn on_compare() -> Self {
        let mut ui = Self::with_runs(compared_runs());
        ui.press("Space Space Space =");
        let recipe = |lr: &str, data: &str, frames: &str| {
            let keys = [
                ("model.latent_frames", frames),
                ("data.index", data),
                ("optimizer.lr", lr),
                ("optimizer.kind", "\"adamw\""),
                ("train.steps", "240"),
            ];
            RunMsg::Recipe(keys.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec())
        };
        let data = ["\"/home/ada/data/2s/index.jsonl\"", "\"/home/ada/data/4s/index.jsonl\""];
        let recipes = [recipe("1e-4", data[0], "13"), recipe("3e-4", data[0], "13"), recipe("1e-4", data[1], "25")];
        let runs: Vec<RunId> = compared_runs().into_iter().map(|row| row.run).collect();
        for (number, recipe) in recipes.into_iter().enumerate() {
            let other = |attempt, step| {
                let usual = sample(attempt, step);
                let scale = 1.0 + 0.4 * number as f64;
                let loss = usual.loss.map(|loss| loss * scale);
                MetricSample {
                    loss,
                    step_s: usual.step_s * scale,
                    t: NOW - 300.0 + step as f64 * scale,
                    tokens_per_s: 900.0,
                    ..usual
                }
            };
            let mut samples: Vec<MetricSample> = (1..=[83, 60, 97][number]).map(|step| other(1, step)).collect();
            if number == 2 {
                samples.extend((81..=120).map(|step| MetricSample { t: NOW + step as f64, ..other(2, step) }));
            }
            for what in [RunMsg::Opened, recipe, RunMsg::Metrics(samples)] {
                ui.send(Msg::Run { run: runs[number].clone(), what });
            }
        }
        ui
    }

    /// The Run screen of a run that has written nothing but its state.
    pub fn on_empty_run(row: RunRow) -> Self {
        let mut ui = Self::with_runs(vec![row.clone()]);
        ui.press("Enter");
        ui.run_msg(RunMsg::Opened);
        ui.run_msg(RunMsg::State(status(row)));
        ui
    }

    /// The Logs screen with some lines of rank 0.
    pub fn on_logs(lines: Vec<String>) -> Self {
        let mut ui = Self::on_run(running(83));
        ui.press("l ]");
        ui.log(0, lines);
        ui
    }

    /// The Convert screen with a preview.
    pub fn on_convert(preview: Box<ConvertPreview>) -> Self {
        let mut ui = Self::with_runs(vec![running(83)]);
        ui.press("4 Enter");
        ui.type_in(preview.options.source.as_str());
        let effects = ui.press("Enter");
        let [Effect::Job { job, request: Request::PlanConvert { .. } }] = effects[..] else { panic!("{effects:?}") };
        ui.model.screens.convert.options = preview.options.clone();
        ui.answer(job, JobMsg::ConvertPlanned(preview));
        ui
    }

    /// The Logs screen with the merged log of a run on `nodes` nodes of 8 ranks.
    pub fn on_merged_logs(row: RunRow, nodes: usize, lines: Vec<(usize, String)>) -> Self {
        let names =
            (0..nodes).map(|n| Node { id: NodeId::new(format!("node{n:02}")).unwrap(), slots: 8 }).collect::<Vec<_>>();
        let mut ui = Self::on_run(row.clone());
        let mut status = status(row);
        status.attempt = Some(Attempt { placement: Placement::new(&names, nodes * 8).unwrap(), ..attempt(1, 0) });
        ui.run_msg(RunMsg::State(status));
        ui.press("l");
        ui.merged(true, lines);
        ui
    }

    pub fn merged(&mut self, from_start: bool, lines: Vec<(usize, String)>) {
        let (is_caught_up, zone_s) = (true, Some(0));
        let lines = RankLines { attempt: 1, from_start, is_caught_up, skipped_bytes: 0, zone_s, lines };
        self.run_msg(RunMsg::Logs(lines));
    }

    pub fn log(&mut self, rank: usize, lines: Vec<String>) {
        let chunk = LogChunk { rank, attempt: 1, from_start: true, skipped_bytes: 0, lines };
        self.run_msg(RunMsg::Log(chunk));
    }

    pub fn send(&mut self, msg: Msg) -> Vec<Effect> {
        update(&mut self.model, msg)
    }

    /// Sends an update of the open run; of the first stage's run if none is open.
    pub fn run_msg(&mut self, what: RunMsg) -> Vec<Effect> {
        let run = self.model.screens.run.as_ref().map_or_else(stage_1, |run| run.id.clone());
        self.send(Msg::Run { run, what })
    }

    pub fn answer(&mut self, job: JobId, what: JobMsg) -> Vec<Effect> {
        self.send(Msg::Job { job, what })
    }

    /// Presses keys, written as in the help and separated by spaces; returns the effects of the last one.
    pub fn press(&mut self, keys: &str) -> Vec<Effect> {
        keys.split(' ').map(|name| self.send(Msg::Key(key(name)))).last().unwrap_or_default()
    }

    /// Types a text letter by letter.
    pub fn type_in(&mut self, text: &str) {
        for c in text.chars() {
            self.send(Msg::Key(Key::ch(c)));
        }
    }

    pub fn resize(&mut self, width: u16, height: u16) {
        self.send(Msg::Resize(Size { width, height }));
    }

    pub fn terminal(&self) -> Terminal<TestBackend> {
        let Size { width, height } = self.model.size;
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view(&self.model, frame)).unwrap();
        terminal
    }

    /// The screen as text, without the blanks at the ends of lines.
    pub fn screen(&self) -> String {
        let terminal = self.terminal();
        let buffer = terminal.backend().buffer();
        let mut out = String::new();
        for y in 0..buffer.area.height {
            let mut line = String::new();
            let mut skip = 0;
            for x in 0..buffer.area.width {
                let symbol = buffer[(x, y)].symbol();
                if skip == 0 {
                    line.push_str(symbol);
                    skip = text::width(symbol).saturating_sub(1);
                } else {
                    skip -= 1;
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// Returns the key with this name.
pub fn key(name: &str) -> Key {
    let code = match name {
        "Enter" => KeyCode::Enter,
        "Esc" => KeyCode::Esc,
        "Tab" => KeyCode::Tab,
        "Shift-Tab" => KeyCode::BackTab,
        "Backspace" => KeyCode::Backspace,
        "Home" => KeyCode::Home,
        "Delete" => KeyCode::Delete,
        "Up" => KeyCode::Up,
        "Down" => KeyCode::Down,
        "Left" => KeyCode::Left,
        "Right" => KeyCode::Right,
        "PgUp" => KeyCode::PageUp,
        "PgDn" => KeyCode::PageDown,
        "Space" => KeyCode::Char(' '),
        "Ctrl-C" => return Key::ctrl('c'),
        "Ctrl-Z" => return Key::ctrl('z'),
        "F1" => KeyCode::F(1),
        "F9" => KeyCode::F(9),
        one => KeyCode::Char(one.chars().next().unwrap()),
    };
    Key::code(code)
}

/// A complete sample.
pub fn video_sample(step: u64, index: usize, prompt: &str) -> rundir::SampleSidecar {
    rundir::SampleSidecar {
        v: 1,
        step,
        index,
        prompt: prompt.to_owned(),
        negative: String::new(),
        image: None,
        image_end: None,
        video: None,
        mask: None,
        seed: 42,
        width: 128,
        height: 96,
        frames: 17,
        fps: 8.0,
        sampling_steps: 20,
        scheduler: "dpm".into(),
        guidance: 6.0,
        dynamic_guidance: true,
        dtype: "float32".into(),
        ema: false,
        weights: "checkpoints/step-00000080".into(),
        weights_xxh3: "0123456789abcdef".into(),
        lora: vec![],
        trainer: "0.1.0".into(),
        libtorch: "2.11.0".into(),
        took_s: 12.0,
        t: NOW - 60.0,
    }
}

/// A clip of `count` frames, each filled with its number.
pub fn clip(size: Size, count: usize) -> Clip {
    let area = ratatui_core::layout::Rect::new(0, 0, size.width, size.height);
    let frame = |at: usize| {
        ratatui_core::buffer::Buffer::filled(area, ratatui_core::buffer::Cell::new(["0", "1", "2"][at % 3]))
    };
    Clip { fps: 8.0, frames: std::sync::Arc::new((0..count).map(frame).collect()) }
}

//! Snapshots of every screen and dialog at the two most common sizes.

use crate::fixtures::*;
use crate::model::{FailureDialog, HelpDialog, KillDialog, LaunchDialog, Modal};
use crate::*;
use rundir::{CheckpointEntry, EventKind};
use runstate::{Down, EndCause, Goodput, RunState};

/// Compares a screen at 80×24 and at 160×48 cells with its snapshots.
pub(super) fn picture(name: &str, mut ui: Ui) {
    for (width, height) in [(80, 24), (160, 48)] {
        ui.resize(width, height);
        insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!(format!("{name}_{width}x{height}"), ui.screen());
        });
    }
}

fn small(name: &str, mut ui: Ui, width: u16, height: u16) {
    ui.resize(width, height);
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!(format!("{name}_{width}x{height}"), ui.screen());
    });
}

fn stopped() -> RunRow {
    RunRow { updated_s: NOW - 95.0, ..row(stage_1(), "2s", RunState::Stopped, 97) }
}

fn finished() -> RunRow {
    RunRow { updated_s: NOW - 12.0, ..row(stage_1(), "2s", RunState::Finished, 240) }
}

#[test]
fn runs_loading() {
    picture("runs_loading", Ui::new());
}

#[test]
fn runs_empty() {
    picture("runs_empty", Ui::with_runs(vec![]));
}

#[test]
fn runs_unreadable() {
    let mut ui = Ui::new();
    ui.send(Msg::Runs(Err(rundir::Failure::new(
        rundir::ErrorCode::PermissionDenied,
        "cannot list /home/ada/vidtui/runs",
        "permission denied (os error 13)",
        "check who owns /home/ada/vidtui/runs and its permissions: ls -ld /home/ada/vidtui/runs",
    ))));
    picture("runs_unreadable", ui);
}

#[test]
fn runs_of_every_state() {
    let mut ui = Ui::with_runs(many_runs().rows);
    let bad = rundir::Failure::new(
        rundir::ErrorCode::NewerFormat,
        "cannot read /home/ada/vidtui/runs/x/run.toml",
        "written by a newer vidtui",
        "upgrade",
    );
    ui.send(Msg::Runs(Ok(RunList { unreadable: vec![bad], ..many_runs() })));
    picture("runs", ui);
}

#[test]
fn runs_with_a_failed_one_selected() {
    let mut ui = Ui::with_runs(many_runs().rows);
    ui.press("j j j j j");
    picture("runs_failed", ui);
}

#[test]
fn runs_with_a_finished_one_selected() {
    picture("runs_finished", Ui::with_runs(vec![finished()]));
}

#[test]
fn a_finished_run_shows_whether_its_next_stage_has_started() {
    let lineage = Some(rundir::Lineage { run: stage_1(), step: 240 });
    let next = RunRow { lineage, ..row(stage_2(), "4s", RunState::Running, 10) };
    assert!(!Ui::with_runs(vec![finished()]).screen().contains("start next stage 4s again"));
    let mut ui = Ui::with_runs(vec![finished(), next]);
    // Active runs are listed first.
    ui.press("G");
    assert!(ui.screen().contains("start next stage 4s again"));
}

#[test]
fn the_next_stage_starts_from_the_selected_run_also_if_another_run_of_its_stage_is_newer() {
    let newer = RunRow { run: stage_2(), checkpoint_step: Some(99), ..finished() };
    let older = finished();
    let started_from = |keys: &str| {
        let mut ui = Ui::with_runs(vec![newer.clone(), older.clone()]);
        ui.press(keys);
        ui.screen()
    };
    assert!(started_from("g n").contains("step 99"));
    assert!(started_from("G n").contains("step 240"));
}

#[test]
fn a_run_that_watches_a_program_says_so_and_is_not_resumed() {
    let watching = RunRow { is_attached: true, is_command: true, steps_total: 0, ..running(83) };
    let screen = Ui::with_runs(vec![watching.clone()]).screen();
    assert!(screen.contains("A stop ends the watching") && screen.contains("stop watching"), "{screen}");
    assert!(!screen.contains("83/0") && !screen.contains("weights"), "{screen}");
    let mut ended = Ui::with_runs(vec![RunRow { state: RunState::Stopped, ..watching }]);
    assert!(ended.screen().contains("No longer watched") && !ended.screen().contains("start again at step 0"));
    ended.press("r");
    assert!(ended.screen().contains("watches another program; press + to watch it again"), "{}", ended.screen());
}

#[test]
fn convert_empty() {
    let mut ui = Ui::with_runs(vec![running(83)]);
    ui.press("4");
    picture("convert_empty", ui);
}

#[test]
fn convert_with_a_preview() {
    picture("convert_preview", Ui::on_convert(convert_preview()));
}

#[test]
fn convert_that_is_refused() {
    let mut preview = convert_preview();
    preview.refusal = Some(rundir::Failure::new(
        rundir::ErrorCode::TensorMismatch,
        "cannot convert /home/ada/models/CogVideoX-5b",
        "1 tensor has no place in the target: transformer_blocks.0.extra.weight",
        "if they are not needed, pass --allow-unused 'transformer_blocks.0.extra.weight'",
    ));
    let row = ConvertRow {
        count: 1,
        source: "transformer_blocks.0.extra.weight".into(),
        target: "(unused)".into(),
        wrong: true,
    };
    preview.rows.insert(0, row);
    picture("convert_refused", Ui::on_convert(preview));
}

#[test]
fn convert_that_replaces_an_earlier_one() {
    let mut preview = convert_preview();
    (preview.in_the_way, preview.options.replace) = (true, true);
    preview.command += " --force";
    picture("convert_replaces", Ui::on_convert(preview));
}

#[test]
fn convert_at_work() {
    let mut ui = Ui::on_convert(convert_preview());
    let effects = ui.press("C");
    let [Effect::Job { job, request: Request::Convert { .. } }] = effects[..] else { panic!("{effects:?}") };
    ui.send(Msg::Tick(NOW + 20.0));
    ui.answer(job, JobMsg::Converting { done: 6_100_000_000, total: 14_460_357_696 });
    picture("convert_at_work", ui);
}

#[test]
fn convert_that_is_done() {
    let mut ui = Ui::on_convert(convert_preview());
    let effects = ui.press("C");
    let [Effect::Job { job, request: Request::Convert { .. } }] = effects[..] else { panic!("{effects:?}") };
    ui.answer(job, JobMsg::Done(Outcome::Converted(convert_preview().options.target)));
    picture("convert_done", ui);
}

#[test]
fn runs_while_filtering() {
    let mut ui = Ui::with_runs(many_runs().rows);
    ui.press("/");
    ui.type_in("4s");
    picture("runs_filter", ui);
}

#[test]
fn run_loading() {
    let ui = Ui::with_setup(|setup| setup.open = Some(stage_1()));
    picture("run_loading", ui);
}

#[test]
fn run_starting() {
    let mut ui = Ui::on_run(RunRow { checkpoint_step: None, ..row(stage_1(), "2s", RunState::Starting, 0) });
    ui.run_msg(RunMsg::Opened);
    ui.run_msg(RunMsg::Checkpoints(vec![]));
    picture("run_starting", ui);
}

#[test]
fn run_running() {
    picture("run_running", Ui::on_run(running(83)));
}

#[test]
fn run_with_its_goodput() {
    let mut ui = Ui::on_run(running(83));
    let cause = EndCause::Failed(rundir::ErrorCode::NodeLost);
    ui.run_msg(RunMsg::Goodput(Goodput {
        wall_s: 8000.0,
        counted_s: 7449.0,
        starting_s: 240.0,
        repeated_s: 61.0,
        checkpoints_s: 0.2,
        down: vec![Down { cause, times: 1, seconds: 250.0 }],
        ..Goodput::default()
    }));
    ui.run_msg(RunMsg::Usage(rundir::GpuUsage { gpu_s: 64_000.0, energy_j: 4.1e7 }));
    picture("run_with_goodput", ui);
}

#[test]
fn runs_queued_and_running_as_jobs() {
    let line = "43|RUNNING|None|1:12:05|1-00:00:00|4|node[01-04]|N/A|N/A|ada|train|gres:gpu:1|demo";
    let job = as_job(RunRow { run: stage_2(), ..running(83) }, line);
    picture("runs_queued", Ui::with_runs(vec![queued(), job]));
}

#[test]
fn run_queued() {
    picture("run_queued", Ui::on_run(queued()));
}

#[test]
fn run_as_a_job_while_slurm_is_not_responding() {
    let line = "42|RUNNING|None|1:12:05|1-00:00:00|4|node[01-04]|N/A|N/A|ada|train|gres:gpu:1|demo";
    let mut row = as_job(running(83), line);
    let why = "Slurm's controller does not answer; jobs go on without it".into();
    row.job.as_mut().unwrap().no_reply = Some(cluster::slurm::NoReply { since_s: NOW - 40.0, why });
    picture("run_slurm_silent", Ui::on_run(row));
}

#[test]
fn kill_dialog_of_a_job() {
    let mut ui = Ui::on_run(queued());
    let plan = plan::RunKill {
        nodes: vec![],
        job: Some(plan::JobKill {
            id: 42,
            is_cancelled: true,
            is_waiting: true,
            lost: Vec::new(),
            why: "scancel 42: it is pending and is removed from the queue; only if job 42 is yours and is named x"
                .into(),
        }),
        ..*kill_plan()
    };
    ui.model.modal = Some(Modal::Kill(KillDialog { plan: Box::new(plan), yes: false, scroll: 0 }));
    picture("kill_job", ui);
}

#[test]
fn run_stopped() {
    picture("run_stopped", Ui::on_run(stopped()));
}

#[test]
fn run_resumed() {
    let mut ui = Ui::on_run(running(97));
    ui.run_msg(RunMsg::Metrics((81..=120).map(|step| sample(2, step)).collect()));
    ui.run_msg(RunMsg::State(status(running(120))));
    picture("run_resumed", ui);
}

#[test]
fn run_finished() {
    picture("run_finished", Ui::on_run(finished()));
}

#[test]
fn run_failed() {
    picture("run_failed", Ui::on_run(row(stage_1(), "2s", RunState::Failed(failure()), 97)));
}

#[test]
fn a_failure_that_every_node_reports_is_shown_once() {
    let mut ui = Ui::on_run(row(stage_1(), "2s", RunState::Failed(failure()), 97));
    let lost = || EventKind::Failed {
        failure: rundir::Failure::new(rundir::ErrorCode::NodeLost, "node gpu03 was lost", "no heartbeat for 30 s", ""),
    };
    ui.run_msg(RunMsg::Events((0..4).map(|n| event(20.0 - f64::from(n), None, lost())).collect()));
    insta::assert_snapshot!("run_with_a_failure_of_four_nodes_80x24", ui.screen());
}

#[test]
fn run_stalled() {
    picture("run_stalled", Ui::on_run(stalled()));
}

#[test]
fn run_with_findings() {
    picture("run_with_findings", Ui::on_run(slowed()));
}

#[test]
fn runs_with_findings() {
    let rows = vec![slowed(), RunRow { run: stage_2(), ..stalled() }, finished()];
    picture("runs_with_findings", Ui::with_runs(rows));
}

#[test]
fn run_lost() {
    let mut ui = Ui::on_run(running(83));
    ui.run_msg(RunMsg::Lost(rundir::Failure::new(
        rundir::ErrorCode::NotFound,
        "cannot read /home/ada/vidtui/runs/2026-11-20T0340-demo-2s-k7f2/metrics.jsonl",
        "no such file or directory (os error 2)",
        "was the folder moved or removed?",
    )));
    picture("run_lost", ui);
}

#[test]
fn run_with_one_chart_enlarged_and_a_cursor() {
    let mut ui = Ui::on_run(running(83));
    ui.press("S Enter Left Left Left Left");
    picture("run_enlarged", ui);
}

#[test]
fn run_with_memory_of_both_ranks_enlarged() {
    let mut ui = Ui::on_run(running(83));
    ui.press("Tab Tab Tab Tab z x");
    picture("run_memory", ui);
}

#[test]
fn run_with_the_last_panels_of_the_column() {
    let mut ui = Ui::on_run(running(83));
    ui.press("Tab Tab Tab Tab Tab Tab Tab");
    picture("run_ranks_small", ui);
}

#[test]
fn run_with_many_ranks_of_which_some_lag() {
    let mut ui = Ui::on_run(running(0));
    let busy = |rank: usize, step: u64| match (rank, step) {
        (201, 60..) => 1.9,
        (64..72, 20..30) => 1.2,
        (rank, step) => 1.0 + 0.03 * ((rank as u64 * 31 + step * 17) % 7) as f64 / 7.0,
    };
    let wide = |step| rundir::MetricSample {
        busy_s_by_rank: (0..256).map(|rank| busy(rank, step)).collect(),
        ..sample(1, step)
    };
    ui.run_msg(RunMsg::Metrics((1..=83).map(wide).collect()));
    ui.run_msg(RunMsg::State(status(running(83))));
    ui.press("Tab Tab Tab Tab Tab Tab Tab z Left Left Left");
    picture("run_ranks", ui);
}

#[test]
fn run_checkpoints() {
    let mut ui = Ui::on_run(stopped());
    let why = "rank-00001.safetensors is 12 KiB, its manifest says 1.6 MiB".into();
    let incomplete = CheckpointEntry::Incomplete { step: 97, dir: "/x".into(), why };
    let why = "manifest.toml: Stale file handle (os error 116)".into();
    let unreadable = CheckpointEntry::Unreadable { step: 100, dir: "/x".into(), why };
    ui.run_msg(RunMsg::Checkpoints(vec![checkpoint(40, 250.0), checkpoint(80, 203.0), incomplete, unreadable]));
    ui.press("c");
    picture("run_checkpoints", ui);
}

#[test]
fn stages() {
    let mut ui = Ui::with_runs(vec![finished()]);
    ui.press("2");
    picture("stages", ui);
}

#[test]
fn stages_before_the_first_run() {
    let mut ui = Ui::with_runs(vec![]);
    ui.press("n");
    picture("stages_new", ui);
}

#[test]
fn stages_that_cannot_start_yet() {
    let mut ui = Ui::with_runs(vec![RunRow { checkpoint_step: None, ..running(12) }]);
    ui.press("2 G");
    picture("stages_waiting", ui);
}

#[test]
fn stages_broken_and_missing() {
    let mut ui = Ui::with_runs(vec![]);
    ui.press("2");
    let mut curricula = curricula();
    let broken = rundir::Failure::new(
        rundir::ErrorCode::InvalidRecipe,
        "cannot use configs/long/curriculum.toml",
        "line 7: unknown key 'trian.steps'",
        "did you mean 'train.steps'?",
    );
    curricula.push(CurriculumView {
        path: "/home/ada/vidtui/configs/long/curriculum.toml".into(),
        title: "configs/long/curriculum.toml".into(),
        stages: Err(broken),
    });
    ui.send(Msg::Curricula(curricula));
    picture("stages_broken", ui);
    let mut ui = Ui::with_runs(vec![]);
    ui.press("2");
    ui.send(Msg::Curricula(vec![]));
    picture("stages_none", ui);
}

fn log_lines() -> Vec<String> {
    let mut lines: Vec<String> =
        (1..=60).map(|i| format!("step {i:>4}  loss {:.4}  1.21 s", sample(1, i).loss.unwrap())).collect();
    lines.push("warning: the data loader waited 0.4 s for /home/ada/vidtui/assets/demo/latents/bunny-000012.safetensors, twice as long as usual".into());
    lines.push("\x1b[31merror: the loss is not finite at step 61; the step is skipped\x1b[0m".into());
    lines.push("step   62  loss 0.2312  1.20 s".into());
    lines
}

#[test]
fn logs() {
    picture("logs", Ui::on_logs(log_lines()));
}

#[test]
fn logs_searching() {
    let mut ui = Ui::on_logs(log_lines());
    ui.press("/");
    ui.type_in("loss 0.2");
    picture("logs_search", ui);
}

#[test]
fn logs_loading() {
    let mut ui = Ui::on_run(running(83));
    ui.press("l");
    picture("logs_loading", ui);
}

#[test]
fn recipes_of_every_kind() {
    let mut ui = Ui::with_runs(vec![]);
    ui.press("5");
    picture("recipes_loading", ui);
    for (name, keys) in [
        ("recipes", "5"),
        ("recipes_base", "5 j j"),
        ("recipes_broken", "5 j j j"),
        ("recipes_command", "5 G"),
        ("recipes_filtered", "5 / l o r a Enter"),
        ("recipes_unmatched", "5 / z z Enter"),
    ] {
        let mut ui = Ui::with_runs(vec![]);
        ui.send(Msg::Recipes(recipes()));
        ui.press(keys);
        picture(name, ui);
    }
    let mut ui = Ui::with_runs(vec![]);
    ui.send(Msg::Recipes(vec![]));
    ui.press("5");
    picture("recipes_none", ui);
}

#[test]
fn launch_dialog() {
    let mut ui = Ui::with_runs(vec![finished()]);
    ui.press("2");
    let warning = "this machine has 2 cores for 2 ranks: each gets 1 thread".into();
    ui.model.modal = Some(Modal::Launch(LaunchDialog { plan: launch_plan(vec![warning]), resumes: false, scroll: 0 }));
    picture("launch", ui);
}

#[test]
fn resume_dialog() {
    let mut ui = Ui::on_run(stopped());
    let warning = "the data changed since the checkpoint: its fingerprint was 1f0c, now it is 77ab".into();
    ui.model.modal = Some(Modal::Launch(LaunchDialog { plan: resume_plan(vec![warning]), resumes: true, scroll: 0 }));
    picture("resume", ui);
}

#[test]
fn kill_dialog() {
    let mut ui = Ui::on_run(running(83));
    ui.model.modal = Some(Modal::Kill(KillDialog { plan: kill_plan(), yes: false, scroll: 0 }));
    picture("kill", ui);
}

#[test]
fn failure_of_a_job() {
    let mut ui = Ui::on_run(stopped());
    let failure = rundir::Failure::new(
        rundir::ErrorCode::AttemptConflict,
        "cannot resume demo-2s-k7f2",
        "attempt 2 exists already: another console on devbox resumed it 3 s ago",
        "watch that attempt here, or stop it first",
    );
    ui.model.modal = Some(Modal::Failure(FailureDialog { failure, scroll: 0 }));
    picture("failure", ui);
}

#[test]
fn help_dialog() {
    let mut ui = Ui::on_run(running(83));
    ui.model.modal = Some(Modal::Help(HelpDialog { context: Context::Run, scroll: 0 }));
    picture("help", ui);
}

#[test]
fn a_small_terminal_shows_what_matters() {
    small("run", Ui::on_run(running(83)), 40, 10);
    small("runs", Ui::with_runs(many_runs().rows), 40, 10);
    small("logs", Ui::on_logs(log_lines()), 40, 10);
    small("run", Ui::on_run(stopped()), 60, 16);
    let mut stages = Ui::with_runs(vec![finished()]);
    stages.press("2");
    small("stages", stages, 40, 10);
    let mut kill = Ui::on_run(running(83));
    kill.model.modal = Some(Modal::Kill(KillDialog { plan: kill_plan(), yes: false, scroll: 0 }));
    small("kill", kill, 40, 10);
}

#[test]
fn without_utf_8_the_screen_is_plain_ascii() {
    let mut ui = Ui::with_setup(|setup| setup.symbols = Symbols::ascii());
    ui.send(Msg::Curricula(curricula()));
    ui.send(Msg::Runs(Ok(many_runs())));
    small("ascii_runs", ui, 80, 24);
    let mut ui = Ui::on_run(running(83));
    ui.model.symbols = Symbols::ascii();
    assert!(ui.screen().is_ascii());
    small("ascii_run", ui, 80, 24);
}

#[test]
fn no_color_writes_no_colour() {
    let mut uis = vec![Ui::on_run(running(83)), Ui::with_runs(many_runs().rows), Ui::on_logs(log_lines())];
    let mut kill = Ui::on_run(running(83));
    kill.model.modal = Some(Modal::Kill(KillDialog { plan: kill_plan(), yes: false, scroll: 0 }));
    uis.push(kill);
    for ui in uis {
        let terminal = ui.terminal();
        let reset = ratatui_core::style::Color::Reset;
        assert!(terminal.backend().buffer().content.iter().all(|cell| cell.fg == reset && cell.bg == reset));
    }
}

fn queue(count: u32) -> Msg {
    let row = |id: u32| QueueRow {
        id,
        recipe: format!("/home/ada/vidtui/configs/cogvideox/5b-lora-{id}.toml"),
        state: if id == 8 {
            "waits for demo-2s-k7f2 on devbox".into()
        } else {
            format!("waits for entry {} to start", id - 1)
        },
    };
    Msg::Queue((8..8 + count).map(row).collect())
}

#[test]
fn the_runs_that_wait_in_the_queue_are_below_the_list() {
    let mut ui = Ui::with_runs(vec![running(83)]);
    assert!(watches(&ui.model).contains(&Watch::Queue));
    ui.send(queue(5));
    insta::assert_snapshot!("runs_with_a_queue_80x24", ui.screen());
    ui.press("Q");
    insta::assert_snapshot!("runs_with_the_whole_queue_80x24", ui.screen());
    ui.resize(160, 48);
    insta::assert_snapshot!("runs_with_the_whole_queue_160x48", ui.screen());
}

#[test]
fn the_list_of_actions_finds_the_queue_which_may_be_empty() {
    let mut ui = Ui::with_runs(vec![running(83)]);
    ui.press("2 :");
    ui.type_in("queue");
    ui.press("Enter");
    insta::assert_snapshot!("runs_with_an_empty_queue_80x24", ui.screen());
}

//! Tests of the effects and watches that follow from keys and messages.

use crate::fixtures::*;
use crate::model::Modal;
use crate::*;
use rundir::StartFrom;
use runstate::RunState;

fn stopped() -> RunRow {
    row(stage_1(), "2s", RunState::Stopped, 97)
}

fn finished() -> RunRow {
    row(stage_1(), "2s", RunState::Finished, 240)
}

#[test]
fn killing_asks_first_and_only_a_yes_kills() {
    for answers in ["Enter", "n", "Esc", "q", "Tab Tab Enter", "x Enter"] {
        let mut ui = Ui::with_runs(vec![running(83)]);
        let planned = ui.press("K");
        let [Effect::Job { job, request: Request::PlanKill { run } }] = &planned[..] else { panic!("{planned:?}") };
        assert_eq!(*run, stage_1());
        assert!(ui.answer(*job, JobMsg::KillPlanned(kill_plan())).is_empty());
        assert!(ui.press(answers).is_empty(), "{answers} killed");
        assert!(ui.model.modal.is_none());
    }
    for answers in ["y", "Tab Enter", "Right Enter"] {
        let mut ui = Ui::with_runs(vec![running(83)]);
        let planned = ui.press("K");
        let [Effect::Job { job, request: Request::PlanKill { .. } }] = &planned[..] else { panic!("{planned:?}") };
        ui.answer(*job, JobMsg::KillPlanned(kill_plan()));
        let effects = ui.press(answers);
        assert!(
            matches!(&effects[..], [Effect::Job { request: Request::Kill { plan, .. }, .. }] if *plan == kill_plan()),
            "{answers}: {effects:?}"
        );
    }
}

#[test]
fn a_kill_that_waits_for_nodes_is_cancelled_with_the_same_key() {
    let mut ui = Ui::with_runs(vec![running(83)]);
    let planned = ui.press("K");
    let [Effect::Job { job, request: Request::PlanKill { .. } }] = &planned[..] else { panic!("{planned:?}") };
    ui.answer(*job, JobMsg::KillPlanned(kill_plan()));
    let effects = ui.press("y");
    let [Effect::Job { job, request: Request::Kill { .. } }] = &effects[..] else { panic!("{effects:?}") };
    ui.answer(*job, JobMsg::Progress("TERM sent to 3 processes: 1, 2, 3".into()));
    assert!(ui.press("K").is_empty(), "a kill in progress is not interrupted");
    ui.answer(*job, JobMsg::Waiting("ml-[2-3] do not answer, next try in 4 s".into()));
    insta::assert_snapshot!("kill_waiting_for_nodes_80x24", ui.screen());
    ui.send(Msg::Tick(NOW + 125.0));
    ui.answer(*job, JobMsg::Progress("connecting to ml-2 and ml-3".into()));
    ui.answer(*job, JobMsg::Waiting("ml-[2-3] do not answer, next try in 30 s".into()));
    for key in ["r", "s"] {
        assert!(ui.press(key).is_empty());
        let (_, waiting) = ui.model.jobs.waiting_kill(&stage_1()).unwrap();
        assert_eq!(waiting.since_s, NOW, "retries do not reset the wait");
        assert!(ui.model.notice.as_ref().unwrap().is_warning);
    }
    insta::assert_snapshot!("kill_waiting_for_nodes_refuses_a_stop_80x24", ui.screen());
    let effects = ui.press("K");
    assert!(matches!(&effects[..], [Effect::StopJob(cancelled)] if cancelled == job), "{effects:?}");
}

#[test]
fn resume_is_one_key() {
    let mut ui = Ui::with_runs(vec![stopped()]);
    let effects = ui.press("r");
    let [Effect::Job { job, request: Request::PlanResume { run, .. } }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*run, stage_1());
    let effects = ui.answer(*job, JobMsg::LaunchPlanned(resume_plan(vec![])));
    assert!(
        matches!(&effects[..], [Effect::Job { request: Request::Launch { plan, .. }, .. }] if *plan == resume_plan(vec![])),
        "{effects:?}"
    );
    assert!(ui.model.modal.is_none());
}

#[test]
fn a_resume_with_warnings_asks() {
    let mut ui = Ui::with_runs(vec![stopped()]);
    let effects = ui.press("r");
    let [Effect::Job { job, request: Request::PlanResume { .. } }] = &effects[..] else { panic!("{effects:?}") };
    let plan = resume_plan(vec!["the data changed since the checkpoint".into()]);
    assert!(ui.answer(*job, JobMsg::LaunchPlanned(plan)).is_empty());
    assert!(matches!(ui.model.modal, Some(Modal::Launch(_))));
    assert!(matches!(&ui.press("Enter")[..], [Effect::Job { request: Request::Launch { .. }, .. }]));
}

#[test]
fn a_second_press_while_the_first_is_in_progress_does_nothing() {
    let mut ui = Ui::with_runs(vec![stopped()]);
    assert_eq!(ui.press("r").len(), 1);
    assert!(ui.press("r").is_empty());
    let mut ui = Ui::with_runs(vec![running(83)]);
    assert_eq!(ui.press("s").len(), 1);
    assert!(ui.press("s").is_empty());
    assert!(ui.press("K").is_empty());
    assert!(ui.model.notice.as_ref().unwrap().is_warning);
}

#[test]
fn a_run_without_processes_shows_how_long_it_still_counts_as_starting() {
    let starting = |left_s: f64, step: u64| {
        let row = row(stage_1(), "2s", RunState::Starting, step);
        Ui::with_runs(vec![RunRow { start_deadline_s: Some(NOW + left_s), ..row }])
    };
    let left_s = |ui: &Ui| advice::start_left_s(&ui.model, ui.model.selected_run().unwrap());
    assert_eq!(left_s(&starting(175.0, 0)), None, "a start may take some seconds");
    let ui = starting(130.0, 0);
    assert_eq!(left_s(&ui), Some(130.0));
    insta::assert_snapshot!("runs_with_a_late_start_80x24", ui.screen());
    let mut ui = starting(130.0, 97);
    assert!(ui.press("r").is_empty());
    insta::assert_snapshot!("runs_with_a_late_start_refuse_a_resume_80x24", ui.screen());
}

#[test]
fn stopping_needs_no_dialog() {
    let mut ui = Ui::on_run(running(83));
    let effects = ui.press("s");
    let [Effect::Job { job, request: Request::Stop { run } }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*run, stage_1());
    ui.answer(*job, JobMsg::Done(Outcome::StopSent(stage_1())));
    assert!(ui.model.modal.is_none());
    assert!(!ui.model.notice.as_ref().unwrap().is_warning);
}

#[test]
fn impossible_actions_are_refused_with_a_reason() {
    let refusals = [
        (running(83), "r"),
        (finished(), "r"),
        (stopped(), "s"),
        (stopped(), "K"),
        (row(stage_1(), "2s", RunState::Stopping, 97), "s"),
    ];
    let reasons = refusals.map(|(row, key)| {
        let mut ui = Ui::with_runs(vec![row]);
        assert!(ui.press(key).is_empty());
        let notice = ui.model.notice.clone().unwrap();
        assert!(notice.is_warning);
        notice.text
    });
    insta::assert_snapshot!("reasons_of_refused_actions", reasons.join("\n"));
}

#[test]
fn the_next_stage_starts_from_the_finished_run() {
    let mut ui = Ui::on_run(finished());
    let effects = ui.press("n");
    let [Effect::Job { job, request: Request::PlanNext { run, step: None } }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(*run, stage_1());
    ui.answer(*job, JobMsg::LaunchPlanned(launch_plan(vec![])));
    let effects = ui.press("Enter");
    let [Effect::Job { job, request: Request::Launch { .. } }] = &effects[..] else { panic!("{effects:?}") };
    ui.answer(*job, JobMsg::Done(Outcome::Launched(stage_2())));
    assert_eq!(watches(&ui.model).last(), Some(&Watch::Run(stage_2())));
}

#[test]
fn a_stage_starts_from_the_newest_finished_run_of_the_stage_before() {
    let unfinished = RunRow { created_s: NOW, ..row(id("2026-11-20T0358-demo-2s-new1"), "2s", RunState::Stopped, 97) };
    let mut ui = Ui::with_runs(vec![unfinished, finished()]);
    ui.press("2 G");
    ui.press("Enter");
    let draft = &ui.model.screens.form.as_ref().unwrap().draft;
    assert_eq!(draft.recipe, format!("{}:4s", curriculum_path()));
    assert_eq!(draft.init.as_deref(), Some(stage_1().as_str()));
}

#[test]
fn a_stage_without_weights_is_refused_and_names_the_stage_before_it() {
    let mut ui = Ui::with_runs(vec![]);
    ui.press("n G");
    assert!(ui.press("Enter").is_empty());
    let Some(Modal::Failure(dialog)) = &ui.model.modal else { panic!() };
    assert_eq!(dialog.failure.code, rundir::ErrorCode::NoCheckpoint);
    insta::assert_snapshot!("stage_without_weights_80x24", ui.screen());
}

#[test]
fn new_run_selects_the_stage_after_the_finished_one() {
    let mut ui = Ui::with_runs(vec![finished()]);
    ui.press("n Enter");
    assert!(ui.model.screens.form.unwrap().draft.recipe.ends_with(":4s"));
}

#[test]
fn leaving_the_log_screen_stops_the_log_stream() {
    let mut ui = Ui::on_run(running(83));
    let quiet = watches(&ui.model);
    ui.press("l");
    let logs = Watch::Logs { run: stage_1(), attempt: None };
    assert!(watches(&ui.model).contains(&logs));
    ui.press("Esc");
    assert_eq!(watches(&ui.model), quiet);
}

#[test]
fn another_rank_means_another_log_stream() {
    let mut ui = Ui::on_logs(vec!["one".into()]);
    ui.press("]");
    assert!(watches(&ui.model).contains(&Watch::Log { run: stage_1(), node: node(), rank: 1 }));
    assert!(!watches(&ui.model).contains(&Watch::Log { run: stage_1(), node: node(), rank: 0 }));
    ui.log(0, vec!["late line of rank 0".into()]);
    assert!(!ui.screen().contains("late line"));
}

#[test]
fn leaving_the_run_screen_stops_its_stream_and_late_messages_are_ignored() {
    let mut ui = Ui::on_run(running(83));
    assert!(watches(&ui.model).contains(&Watch::Run(stage_1())));
    ui.press("Esc");
    assert!(!watches(&ui.model).contains(&Watch::Run(stage_1())));
    ui.send(Msg::Run { run: stage_2(), what: RunMsg::Metrics(vec![sample(1, 1)]) });
    assert_eq!(ui.model.screens.run.as_ref().unwrap().series.live().len(), 83);
}

#[test]
fn a_reopened_stream_replaces_earlier_data() {
    let mut ui = Ui::on_run(running(83));
    ui.run_msg(RunMsg::Opened);
    ui.run_msg(RunMsg::Metrics(vec![sample(1, 1), sample(1, 2)]));
    ui.run_msg(RunMsg::Events(vec![]));
    let run = ui.model.screens.run.as_ref().unwrap();
    assert_eq!((run.series.live().len(), run.events.len(), run.checkpoints.is_none()), (2, 0, true));
}

#[test]
fn export_requests_the_focused_chart_as_it_is_shown() {
    let mut ui = Ui::on_run(running(83));
    ui.press("Tab Tab L S x +");
    assert!(ui.press("e").is_empty(), "the file is asked for first");
    assert_eq!(ui.model.input.as_ref().unwrap().text, "demo-2s-k7f2-gradient-norm.svg");
    ui.press("Backspace Backspace Backspace");
    ui.type_in("pdf");
    assert!(ui.press("Enter").is_empty() && ui.model.notice.as_ref().is_some_and(|notice| notice.is_warning));
    ui.press("e");
    ui.send(Msg::Key(Key::ctrl('u')));
    ui.type_in("charts/norm.png");
    let effects = ui.press("Enter");
    let [Effect::Job { request: Request::Export { chart, to, .. }, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(to, "/home/ada/vidtui/charts/norm.png");
    assert_eq!(
        (&chart.chart, chart.x, chart.log_y, chart.format),
        (&PlottedChart::Chart(rundir::Chart::GradNorm), XAxis::Time, true, ImageFormat::Png)
    );
    assert_eq!(chart.smoothing, Some(0.9));
    assert!(chart.window.is_some_and(|(low, high)| high - low < 60.0));
}

#[test]
fn quitting_leaves_runs_alone_and_lists_them() {
    for key in ["q", "Ctrl-C"] {
        let mut ui = Ui::with_runs(vec![running(83)]);
        assert!(matches!(&ui.press(key)[..], [Effect::Quit]));
        assert!(ui.model.quitting());
        insta::assert_snapshot!("closing_message_with_one_running_run", closing_message(&ui.model).unwrap());
    }
    assert_eq!(closing_message(&Ui::with_runs(vec![finished()]).model), None);
    // The open run was resumed after the list had been read.
    let mut ui = Ui::on_run(finished());
    ui.run_msg(RunMsg::State(status(RunRow { run: finished().run, ..running(83) })));
    assert!(closing_message(&ui.model).is_some());
}

#[test]
fn ctrl_c_quits_and_ctrl_z_suspends_in_dialogs_too() {
    let mut ui = Ui::with_runs(vec![running(83)]);
    ui.press("?");
    assert!(matches!(&ui.press("Ctrl-Z")[..], [Effect::Suspend]));
    assert!(matches!(&ui.press("Ctrl-C")[..], [Effect::Quit]));
}

#[test]
fn pasted_text_triggers_no_keys() {
    let mut ui = Ui::with_runs(vec![running(83)]);
    assert!(ui.send(Msg::Paste("K\ny\nqs".into())).is_empty());
    assert!(ui.model.modal.is_none() && !ui.model.quitting());
    ui.press("/");
    ui.send(Msg::Paste("demo\n".into()));
    assert_eq!(ui.model.screens.runs.filter, "demo");
}

#[test]
fn typing_filters_the_list_and_escape_restores_it() {
    let mut ui = Ui::new();
    ui.send(Msg::Runs(Ok(many_runs())));
    ui.press("/");
    ui.type_in("stalled q");
    ui.press("Backspace Backspace Enter");
    assert_eq!(ui.model.visible_runs().len(), 1);
    ui.press("Esc");
    assert_eq!(ui.model.visible_runs().len(), 7);
}

#[test]
fn the_selection_stays_on_its_run_when_a_newer_one_appears() {
    let mut ui = Ui::with_runs(vec![running(83)]);
    ui.press("j");
    let newer = RunRow { created_s: NOW, ..row(stage_2(), "4s", RunState::Starting, 0) };
    ui.send(Msg::Runs(Ok(RunList { rows: vec![newer, running(84)], unreadable: vec![] })));
    assert_eq!(ui.model.selected_run().unwrap().run, stage_1());
}

#[test]
fn a_failed_job_opens_the_error_dialog() {
    let mut ui = Ui::with_runs(vec![stopped()]);
    let effects = ui.press("r");
    let [Effect::Job { job, request: Request::PlanResume { .. } }] = &effects[..] else { panic!("{effects:?}") };
    ui.answer(*job, JobMsg::Failed(failure()));
    let Some(Modal::Failure(dialog)) = &ui.model.modal else { panic!("{:?}", ui.model.modal) };
    assert_eq!(dialog.failure, failure());
    ui.press("Enter");
    assert!(ui.model.modal.is_none());
    assert_eq!(ui.press("r").len(), 1, "the key works again");
}

#[test]
fn a_clock_tick_redraws_only_when_a_shown_age_changes() {
    let mut ui = Ui::with_runs(vec![running(83)]);
    ui.model.drawn();
    ui.send(Msg::Tick(NOW + 0.2));
    assert!(!ui.model.dirty());
    ui.send(Msg::Tick(NOW + 1.1));
    assert!(ui.model.dirty());
    let quiet = RunRow { updated_s: NOW - 900.0, ..finished() };
    let mut ui = Ui::with_runs(vec![quiet.clone()]);
    ui.model.drawn();
    ui.send(Msg::Tick(NOW + 1.1));
    ui.send(Msg::Runs(Ok(RunList { rows: vec![quiet], unreadable: vec![] })));
    assert!(!ui.model.dirty());
}

#[test]
fn a_notice_goes_away() {
    let mut ui = Ui::with_runs(vec![stopped()]);
    ui.press("s");
    assert!(ui.model.notice.is_some());
    ui.send(Msg::Tick(NOW + 30.0));
    assert!(ui.model.notice.is_none());
    ui.press("s");
    assert!(ui.model.notice.is_some());
    // The clock was an hour ahead and is set back.
    ui.send(Msg::Tick(NOW - 3600.0));
    assert!(ui.model.notice.is_none());
}

#[test]
fn opening_on_a_run_watches_it_from_the_first_frame() {
    let ui = Ui::with_setup(|setup| setup.open = Some(stage_1()));
    assert!(watches(&ui.model).contains(&Watch::Run(stage_1())));
}

#[test]
fn copying_gives_the_path_of_the_run() {
    let mut ui = Ui::on_run(running(83));
    let effects = ui.press("y");
    assert!(matches!(&effects[..], [Effect::Copy(path)] if path.ends_with("runs/2026-11-20T0340-demo-2s-k7f2")));
}

#[test]
fn messages_survive_a_recording() {
    let mut plan = launch_plan(vec![]);
    plan.attempt.start = StartFrom::Random;
    let msgs = [
        Msg::Key(Key::ctrl('c')),
        Msg::Runs(Ok(many_runs())),
        Msg::Runs(Err(failure())),
        Msg::Curricula(curricula()),
        Msg::Recipes(recipes()),
        Msg::Draft { draft: Box::default(), what: super::launch_form::read(&[]) },
        Msg::Draft { draft: Box::default(), what: super::launch_form::planned(launch_plan(vec![])) },
        Msg::Draft { draft: Box::default(), what: super::launch_form::some_failed(true) },
        Msg::Run { run: stage_1(), what: RunMsg::Metrics(vec![sample(1, 3)]) },
        Msg::Run { run: stage_1(), what: RunMsg::Events(events()) },
        Msg::Run { run: stage_1(), what: RunMsg::State(status(running(3))) },
        Msg::Nodes { of: fleet::FleetSource::Given, nodes: Ok(vec![cluster::Node::local("devbox", 2).into()]) },
        Msg::Node { node: node(), what: NodeMsg::Down(failure()) },
        Msg::Job { job: JobId(1), what: JobMsg::LaunchPlanned(plan) },
        Msg::Job { job: JobId(2), what: JobMsg::KillPlanned(kill_plan()) },
        Msg::Job { job: JobId(3), what: JobMsg::ActionPlanned(crate::tests::actions::nodes_kill()) },
    ];
    for msg in msgs {
        let text = serde_json::to_string(&msg).unwrap();
        let back: Msg = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
    }
}

#[test]
fn a_failure_that_does_not_fit_is_cut_visibly_and_keeps_the_keys() {
    let why = "the loader of rank 3 could not open a file ".repeat(20);
    let failure = rundir::Failure::new(rundir::ErrorCode::RankFailed, "the run failed", why, "read the log");
    let mut ui = Ui::on_run(row(stage_1(), "2s", RunState::Failed(failure), 97));
    for (width, height) in [(80, 24), (40, 12)] {
        ui.resize(width, height);
        insta::assert_snapshot!(format!("run_with_a_long_failure_{width}x{height}"), ui.screen());
    }
}

#[test]
fn hidden_stages_below_the_list_are_counted() {
    let mut many = curricula();
    let stages = many[0].stages.as_mut().unwrap();
    stages.extend(vec![stages[0].clone(); 12]);
    let mut ui = Ui::with_runs(vec![]);
    ui.press("2");
    ui.send(Msg::Curricula(many));
    insta::assert_snapshot!("stages_with_hidden_ones_80x24", ui.screen());
    ui.press("G");
    insta::assert_snapshot!("stages_at_the_end_of_the_list_80x24", ui.screen());
}

#[test]
fn arguments_of_a_launch_are_typed_on_the_stages_screen_and_kept_for_correction() {
    let mut ui = Ui::with_runs(vec![finished()]);
    ui.press("2 n");
    insta::assert_snapshot!("launch_input_80x24", ui.screen());
    ui.type_in("mine.toml --init x");
    ui.press("Backspace");
    ui.type_in("latest");
    let effects = ui.press("Enter");
    let [Effect::Job { job, request: Request::ReadLaunch { arguments } }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(arguments, "mine.toml --init latest");
    ui.answer(*job, JobMsg::Failed(rundir::Failure::new(rundir::ErrorCode::NotFound, "a", "b", "c")));
    ui.press("Enter n Home Delete");
    ui.type_in("w");
    insta::assert_snapshot!("launch_input_again_80x24", ui.screen());
    let effects = ui.press("Enter");
    let [Effect::Job { job, request: Request::ReadLaunch { arguments } }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(arguments, "wine.toml --init latest");
    let draft = draft::LaunchDraft { recipe: "wine.toml".into(), init: Some("latest".into()), ..Default::default() };
    ui.answer(*job, JobMsg::LaunchRead(Box::new(draft.clone())));
    assert!(watches(&ui.model).contains(&Watch::Draft(Box::new(draft))));
    ui.press("Esc n");
    assert_eq!(ui.model.input.as_ref().unwrap().text, "", "only a mistake is kept");
}

#[test]
fn the_selection_stays_on_its_recipe_when_others_appear() {
    let mut ui = Ui::with_runs(vec![]);
    assert!(!watches(&ui.model).contains(&Watch::Recipes));
    ui.press("5");
    assert!(watches(&ui.model).contains(&Watch::Recipes));
    ui.send(Msg::Recipes(recipes().split_off(3)));
    ui.press("j");
    ui.send(Msg::Recipes(recipes()));
    assert_eq!(screens::recipes::selected(&ui.model).unwrap().path, recipes()[4].path);
}

#[test]
fn an_encode_leads_to_the_stages() {
    let mut ui =
        Ui::with_runs(vec![RunRow { task: recipe::Task::Encode, stage: None, curriculum: None, ..finished() }]);
    ui.press("Enter n");
    assert_eq!(ui.model.screen, Screen::Stages);
}

#[test]
fn a_large_runs_screen_shows_the_curve_of_the_selected_run() {
    let mut ui = Ui::with_runs(many_runs().rows);
    ui.press("j");
    let stream = |run| Watch::Run(run);
    assert!(!watches(&ui.model).contains(&stream(stage_1())), "there is no room");
    ui.resize(160, 48);
    assert!(!watches(&ui.model).contains(&stream(stage_1())), "the selection may still move");
    ui.send(Msg::Tick(NOW + 1.0));
    assert!(watches(&ui.model).contains(&stream(stage_1())));
    for what in [
        RunMsg::Opened,
        RunMsg::State(status(running(83))),
        RunMsg::Metrics((1..=83).map(|step| sample(1, step)).collect()),
        RunMsg::Goodput(runstate::Goodput { wall_s: 100.0, counted_s: 93.0, starting_s: 7.0, ..Default::default() }),
    ] {
        ui.send(Msg::Run { run: stage_1(), what });
    }
    insta::assert_snapshot!("runs_with_the_curve_of_the_selected_one_160x48", ui.screen());
    ui.press("Enter");
    let run = ui.model.screens.run.as_ref().unwrap();
    assert_eq!((run.series.live().len(), run.goodput.is_some()), (83, true), "the stream goes on");
    ui.press("Esc");
    assert!(screens::preview::loaded(&ui.model).is_some_and(|open| !open.series.live().is_empty()));
    ui.press("j");
    assert!(screens::preview::loaded(&ui.model).is_none());
    assert!(watches(&ui.model).iter().all(|watch| !matches!(watch, Watch::Run(_))));
}

fn of_recipe(row: RunRow) -> RunRow {
    let launch = draft::LaunchDraft {
        recipe: "/home/ada/lora.toml".into(),
        name: Some("cats".into()),
        init: Some("/home/ada/weights".into()),
        sets: vec!["train.steps=200".into()],
        ..draft::LaunchDraft::default()
    };
    RunRow { curriculum: None, stage: None, launch: Some(Box::new(launch)), ..row }
}

#[test]
fn a_failed_run_without_a_checkpoint_is_planned_from_step_0() {
    let failed = RunRow { checkpoint_step: None, ..row(stage_1(), "2s", RunState::Failed(failure()), 7) };
    let mut ui = Ui::with_runs(vec![failed]);
    insta::assert_snapshot!("runs_with_a_failed_run_without_a_checkpoint_80x24", ui.screen());
    let effects = ui.press("r");
    let [Effect::Job { job, request: Request::PlanResume { run, .. } }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*run, stage_1());
    let plan = resume_plan(vec!["the run has no complete checkpoint: it starts at step 0".into()]);
    assert!(ui.answer(*job, JobMsg::LaunchPlanned(plan)).is_empty());
    assert!(matches!(ui.model.modal, Some(Modal::Launch(_))));
}

#[test]
fn a_run_of_a_recipe_opens_the_form_with_its_overrides() {
    let failed = of_recipe(row(stage_1(), "2s", RunState::Failed(failure()), 7));
    for mut ui in [Ui::with_runs(vec![failed.clone()]), Ui::on_run(failed.clone())] {
        let launch = failed.launch.as_deref().unwrap();
        ui.model.launch.target = draft::LaunchTarget::Local(Some(2));
        assert!(ui.press("n").is_empty());
        assert_eq!(ui.model.screen, model::Screen::Launch);
        let expected = draft::LaunchDraft { target: draft::LaunchTarget::Local(Some(2)), ..launch.clone() };
        assert_eq!(ui.model.screens.form.as_ref().unwrap().draft, expected);
        // The form keeps changes until another run opens it.
        ui.model.screens.form.as_mut().unwrap().change(|draft| draft.set("optimizer.lr=1e-5"));
        ui.press("1 n");
        assert_eq!(ui.model.screens.form.as_ref().unwrap().draft.sets.len(), 2);
    }
}

#[test]
fn an_imported_run_is_not_resumed() {
    let imported = RunRow { is_imported: true, checkpoint_step: None, ..stopped() };
    let mut ui = Ui::with_runs(vec![imported]);
    assert!(ui.press("r").is_empty());
    assert!(ui.model.notice.as_ref().unwrap().is_warning);
}

#[test]
fn a_resume_of_a_finished_run_proposes_its_steps() {
    let done = RunRow { longer_steps: Some(480), ..finished() };
    for (place, mut ui) in [("runs", Ui::with_runs(vec![done.clone()])), ("run", Ui::on_run(done.clone()))] {
        assert!(ui.press("r").is_empty());
        insta::assert_snapshot!(format!("{place}_with_the_steps_of_a_longer_run_80x24"), ui.screen());
        let newer = RunRow { created_s: NOW, ..row(stage_2(), "4s", RunState::Stopped, 97) };
        ui.send(Msg::Runs(Ok(RunList { rows: vec![newer, done.clone()], ..RunList::default() })));
        let effects = ui.press("Enter");
        let [Effect::Job { job, request: Request::PlanResumeWith { run, arguments } }] = &effects[..] else {
            panic!("{effects:?}")
        };
        assert_eq!((run, arguments.as_str()), (&stage_1(), "--set train.steps=480"));
        ui.answer(*job, JobMsg::LaunchPlanned(resume_plan(vec![])));
        assert!(matches!(ui.model.modal, Some(Modal::Launch(_))), "the plan is shown before the start");
    }
}

#[test]
fn a_finished_run_on_a_wide_screen_offers_to_train_longer() {
    let mut ui = Ui::with_runs(vec![RunRow { longer_steps: Some(480), ..of_recipe(finished()) }]);
    ui.resize(160, 48);
    insta::assert_snapshot!("runs_with_a_finished_run_of_a_recipe_160x48", ui.screen());
    ui.press("Enter");
    insta::assert_snapshot!("run_that_finished_of_a_recipe_160x48", ui.screen());
}

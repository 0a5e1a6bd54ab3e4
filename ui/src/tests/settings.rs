//! Tests of the settings of the user: keys and colours, and of the restored session.

use crate::fixtures::*;
use crate::fleet::gpu_value::GpuValue;
use crate::fleet::{FleetSource, HistoryWindow, Sort};
use crate::log_lines::Level;
use crate::model::Modal;
use crate::*;

fn with_keys(changes: &[(Option<Context>, Action, &str)]) -> KeyMap {
    let mut keys = KeyMap::default();
    for (context, action, key) in changes {
        keys.change(KeyChange { context: *context, action: *action, keys: vec![Key::parse(key).unwrap()] }).unwrap();
    }
    keys.check().unwrap();
    keys
}

#[test]
fn changed_keys_work_and_are_shown_by_the_bar_the_help_and_the_list_of_actions() {
    let mut ui = Ui::with_runs(vec![running(83)]);
    ui.model.keys = with_keys(&[
        (Some(Context::Runs), Action::Stop, "F9"),
        (None, Action::ShowNodes, "B"),
        (None, Action::Help, "F1"),
    ]);
    insta::assert_snapshot!("runs_with_changed_keys_80x24", ui.screen());
    assert!(matches!(ui.press("F9")[..], [Effect::Job { request: Request::Stop { .. }, .. }]));
    assert!(ui.press("s").is_empty());
    ui.press("F1 j j j j");
    insta::assert_snapshot!("help_with_changed_keys_80x24", ui.screen());
    ui.press("Esc :");
    ui.type_in("save");
    insta::assert_snapshot!("palette_with_changed_keys_80x24", ui.screen());
    ui.press("Esc B");
    assert_eq!(ui.model.screen, Screen::Nodes);
}

#[test]
fn the_last_screen_is_opened_again() {
    let mut ui = Ui::on_run(running(83));
    ui.press("x S l");
    let session = ui.model.session();
    assert_eq!((session.screen, session.run.clone()), (Screen::Logs, Some(stage_1())));
    let again = Ui::with_setup(|setup| setup.session = Some(session.clone()));
    assert_eq!(again.model.session(), session);
    assert!(watches(&again.model).contains(&Watch::Logs { run: stage_1(), attempt: None }));
}

#[test]
fn an_opened_run_replaces_the_last_screen_and_keeps_how_charts_are_shown() {
    let mut ui = Ui::on_run(running(83));
    ui.press("x S l");
    let session = Session { panels: Some(vec!["memory".into()]), ..ui.model.session() };
    let again = Ui::with_setup(|setup| (setup.session, setup.open) = (Some(session.clone()), Some(stage_2())));
    let expected = Session { screen: Screen::Run, run: Some(stage_2()), selected: Some(stage_2()), ..session };
    let shown = |session: &Session| (session.screen, session.run.clone(), session.x, session.smoothing);
    assert_eq!(shown(&again.model.session()), shown(&expected));
    assert_eq!(again.model.session().panels.is_some(), expected.panels.is_some());
}

#[test]
fn every_screen_can_be_opened_again_or_is_replaced_by_one_that_can() {
    for (keys, screen) in [("c", Screen::Run), ("3", Screen::Nodes), ("2", Screen::Stages), ("a", Screen::Alerts)] {
        let mut ui = Ui::on_run(running(83));
        ui.press(keys);
        let again = Ui::with_setup(|setup| setup.session = Some(ui.model.session()));
        assert_eq!(again.model.screen, screen);
    }
    let form = super::launch_form::on_form().model.session();
    assert_eq!(Ui::with_setup(|setup| setup.session = Some(form)).model.screen, Screen::Recipes);
    // A session that another version wrote.
    let odd = Session { screen: Screen::Logs, run: None, smoothing: Some(99), ..Session::default() };
    assert_eq!(Ui::with_setup(|setup| setup.session = Some(odd)).model.screen, Screen::Runs);
}

#[test]
fn a_comparison_is_opened_again() {
    let mut ui = Ui::on_compare();
    ui.press("Tab x S");
    let session = ui.model.session();
    let again = Ui::with_setup(|setup| setup.session = Some(session.clone()));
    assert_eq!((again.model.screen, again.model.session()), (Screen::Compare, session.clone()));
    let streams = compared_runs().into_iter().map(|row| Watch::Compared(row.run));
    assert!(watches(&again.model).is_superset(&streams.collect()));
    // One of the two runs was removed.
    let alone = Session { compared: session.compared[..1].to_vec(), ..session };
    assert_eq!(Ui::with_setup(|setup| setup.session = Some(alone)).model.screen, Screen::Runs);
}

#[test]
fn the_open_node_and_the_list_of_processes_are_opened_again() {
    let mut ui = super::nodes::on_node();
    for screen in [Screen::Node, Screen::Processes] {
        let session = ui.model.session();
        let mut again = Ui::with_setup(|setup| setup.session = Some(session.clone()));
        assert_eq!((again.model.screen, again.model.session()), (screen, session));
        assert!(watches(&again.model).contains(&Watch::Nodes(FleetSource::Given)));
        assert!(!again.screen().contains("no longer listed"), "{}", again.screen());
        again.press("Esc");
        assert_eq!(again.model.screen, Screen::Nodes);
        ui.press("P");
    }
    // The nodes cannot be listed, such as those of a run that was deleted.
    let session = Session { screen: Screen::Node, node: cluster::NodeId::new("gpu001").ok(), ..Session::default() };
    let mut gone = Ui::with_setup(|setup| setup.session = Some(session));
    gone.send(Msg::Nodes { of: FleetSource::Given, nodes: Err(failure()) });
    assert!(gone.screen().contains("Rank 1 died"), "{}", gone.screen());
    // The node of a session that another version wrote is missing.
    for screen in [Screen::Node, Screen::Processes] {
        let odd = Session { screen, ..Session::default() };
        assert_eq!(Ui::with_setup(|setup| setup.session = Some(odd)).model.screen, Screen::Nodes);
    }
}

#[test]
fn the_nodes_of_a_run_are_listed_again_in_the_same_order_as_a_heat_map() {
    let mut ui = Ui::on_run(running(83));
    ui.press("N > > < h h -");
    let session = ui.model.session();
    let again = Ui::with_setup(|setup| setup.session = Some(session.clone()));
    assert_eq!((again.model.screen, again.model.session()), (Screen::Nodes, session.clone()));
    assert_eq!(again.model.fleet.of, FleetSource::Run(stage_1()));
    let nodes = &again.model.screens.nodes;
    assert_eq!((nodes.sort, nodes.reverse, nodes.window), (Sort::Power, true, HistoryWindow::Hour));
    assert_eq!(nodes.heat, Some(GpuValue::Utilization));
    let odd = Session {
        node_order: "of-a-newer-version".into(),
        heat_map: Some("of-a-newer-version".into()),
        history_s: 7,
        ..session
    };
    let again = Ui::with_setup(|setup| setup.session = Some(odd));
    let nodes = &again.model.screens.nodes;
    assert_eq!((nodes.sort, nodes.heat, nodes.window), (Sort::Faults, None, HistoryWindow::TenMinutes));
}

#[test]
fn the_zoom_of_a_run_and_the_filters_of_its_log_are_restored() {
    let mut ui = Ui::on_run(running(83));
    ui.press("+ + l Tab R 1 Enter /");
    ui.type_in("step");
    ui.press("Enter");
    let session = ui.model.session();
    let again = Ui::with_setup(|setup| setup.session = Some(session.clone()));
    assert_eq!((again.model.screen, again.model.session()), (Screen::Logs, session.clone()));
    let view = |ui: &Ui| ui.model.screens.run.as_ref().unwrap().view;
    assert!(view(&ui).span.is_some() && view(&again) == view(&ui), "{:?}", view(&again));
    let logs = again.model.screens.logs.as_ref().unwrap();
    assert_eq!((logs.level, logs.only.to_string()), (Level::Warning, "1".to_owned()));
    assert_eq!(logs.search.as_ref().map(|search| search.text.as_str()), Some("step"));
    // Another run that is named at the start is not zoomed.
    let other = Ui::with_setup(|setup| (setup.session, setup.open) = (Some(session.clone()), Some(stage_2())));
    assert_eq!(view(&other).span, None);
    let odd = Session { zoom: Some((f64::NAN, None)), log_ranks: "x".into(), ..session };
    let again = Ui::with_setup(|setup| setup.session = Some(odd));
    assert_eq!(view(&again).span, None);
    assert!(again.model.screens.logs.as_ref().unwrap().only.is_empty());
}

#[test]
fn values_that_this_version_does_not_know_are_ignored() {
    let newer = r#"{"screen":"newer","run":"2026-11-20T0340-demo-2s-k7f2","x":"newer","aligned":{"newer":1},"zoom":"newer",
        "log_level":"Newer","node":"../newer","processes":7,"node_order":"newer","newer":[1]}"#;
    let session: Session = serde_json::from_str(newer).unwrap();
    assert_eq!(session, Session { run: Some(stage_1()), node_order: "newer".into(), ..Session::default() });
    let saved = Session { zoom: Some((12.5, None)), log_level: Level::Error, ..session };
    let read: Session = serde_json::from_str(&serde_json::to_string(&saved).unwrap()).unwrap();
    assert_eq!(read, saved);
}

#[test]
fn a_file_of_an_earlier_version_is_read() {
    let before = r#"{"screen":"run","run":"2026-11-20T0340-demo-2s-k7f2","x":"time","panels":["memory","ranks"]}"#;
    let session: Session = serde_json::from_str(before).unwrap();
    let again = Ui::with_setup(|setup| setup.session = Some(session));
    assert_eq!(again.model.screen, Screen::Run);
    assert_eq!(again.model.panels.picked, Some(vec!["memory".to_owned(), "ranks".to_owned()]));
}

#[test]
fn a_run_that_is_named_at_the_start_replaces_the_last_screen() {
    let ui = Ui::with_setup(|setup| {
        setup.session = Some(Session { screen: Screen::Nodes, ..Session::default() });
        setup.open = Some(stage_2());
    });
    assert_eq!((ui.model.screen, ui.model.screens.run.as_ref().unwrap().id.clone()), (Screen::Run, stage_2()));
}

#[test]
fn settings_that_cannot_be_used_are_shown_at_the_start() {
    let problem = rundir::Failure::new(
        rundir::ErrorCode::InvalidConfig,
        "cannot use /home/ada/.config/vidtui/config.toml",
        "line 7: in run, s is the key of stop and of logs",
        "choose another key for one of them; until then, the default settings apply",
    );
    let mut ui = Ui::with_setup(|setup| setup.problem = Some(problem));
    insta::assert_snapshot!("settings_that_cannot_be_used_80x24", ui.screen());
    ui.press("Enter");
    assert!(!matches!(ui.model.modal, Some(Modal::Failure(_))));
}

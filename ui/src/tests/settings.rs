//! Tests of the settings of the user: keys and colours, and of the restored session.

use crate::fixtures::*;
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
        (None, Action::ShowNodes, "M"),
        (None, Action::Help, "F1"),
    ]);
    insta::assert_snapshot!("runs_with_changed_keys_80x24", ui.screen());
    assert!(matches!(ui.press("F9")[..], [Effect::Stop { .. }]));
    assert!(ui.press("s").is_empty());
    ui.press("F1 j j j j");
    insta::assert_snapshot!("help_with_changed_keys_80x24", ui.screen());
    ui.press("Esc :");
    ui.type_in("save");
    insta::assert_snapshot!("palette_with_changed_keys_80x24", ui.screen());
    ui.press("Esc M");
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
    assert_eq!((ui.model.screen, ui.model.run.as_ref().unwrap().id.clone()), (Screen::Run, stage_2()));
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

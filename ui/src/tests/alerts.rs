//! Tests of the Alerts screen, and of the effects of new alerts.

use super::screens::picture;
use crate::fixtures::*;
use crate::*;
use rundir::{Alert, AlertKind, AlertState, Mute, NotSent};

pub(super) fn alert(id: &str, minutes: f64, kind: AlertKind, what: &str) -> AlertRow {
    let alert = Alert {
        v: 1,
        t: NOW - minutes * 60.0,
        id: id.into(),
        run: if kind == AlertKind::Healed { stage_2() } else { stage_1() },
        attempt: 1,
        kind,
        subject: String::new(),
        ends_attempt: false,
        step: Some(1240),
        what: what.into(),
        why: "it wanted 3.2 GiB and 1.1 GiB were free on devbox".into(),
        since_s: NOW - minutes * 60.0 - 90.0,
        fix: "set train.grad_accum = 2, or train on a machine with more memory".into(),
    };
    let state = AlertState { alert, not_sent: vec![], acknowledged: false, snoozed_until_s: None, mutes: vec![] };
    AlertRow { state, bell: true, osc: kind == AlertKind::OutOfMemory }
}

fn all() -> Vec<AlertRow> {
    let mut failed = alert("5b1e77c0", 90.0, AlertKind::Failed, "rank 1 died on node devbox");
    failed.state.acknowledged = true;
    let mut memory = alert("3f9c20aa", 3.0, AlertKind::OutOfMemory, "rank 1 died: out of memory");
    let why = "the server answered 500".to_owned();
    memory.state.not_sent = vec![NotSent { v: 1, t: NOW, id: "3f9c20aa".into(), channel: "slack".into(), why }];
    vec![
        memory,
        alert("90ab11cd", 12.0, AlertKind::Healed, "the run failed and was resumed after 34 s"),
        alert(
            "77aa00ff",
            40.0,
            AlertKind::Stalled,
            "no step since step 83 (a step usually takes 1.2 s), and GPU power is 960 W",
        ),
        failed,
    ]
}

/// The Alerts screen.
pub(super) fn on_alerts() -> Ui {
    let mut ui = with_alerts(all());
    ui.press("a");
    ui
}

fn with_alerts(rows: Vec<AlertRow>) -> Ui {
    let mut ui = Ui::with_runs(vec![running(83)]);
    assert!(ui.send(Msg::Alerts(rows)).is_empty(), "alerts from before are not announced");
    ui
}

#[test]
fn alerts_are_listed_and_counted() {
    picture("runs_with_alerts", with_alerts(all()));
    let mut ui = with_alerts(all());
    ui.press("a");
    picture("alerts", ui);
    let mut ui = with_alerts(vec![]);
    ui.press("a");
    picture("alerts_none", ui);
}

#[test]
fn keys_acknowledge_snooze_test_and_open() {
    let mut ui = with_alerts(all());
    ui.press("a");
    let muted = |effects: Vec<Effect>| match &effects[..] {
        [Effect::Job { request: Request::MuteAlerts { alerts, until_s, .. }, .. }] => (alerts.clone(), *until_s),
        other => panic!("{other:?}"),
    };
    let id = |id: &str| Some(id.to_owned());
    assert_eq!(muted(ui.press("Space")), (vec![(stage_1(), id("3f9c20aa"))], None));
    assert_eq!(muted(ui.press("A")), (vec![(stage_1(), id("3f9c20aa")), (stage_1(), id("77aa00ff"))], None));
    assert_eq!(muted(ui.press("j Z")), (vec![(stage_2(), None)], Some(NOW + 7200.0)));
    assert!(matches!(ui.press("!")[..], [Effect::Job { request: Request::TestAlerts, .. }]));
    // The selected alert stays selected when a newer one arrives.
    let newest = alert("00000000", 0.0, AlertKind::Failed, "rank 0 died");
    ui.send(Msg::Alerts([vec![newest], all()].concat()));
    ui.press("Enter");
    assert_eq!(
        (ui.model.screen, ui.model.screens.run.as_ref().map(|run| run.id.clone())),
        (Screen::Run, Some(stage_2()))
    );
    ui.press("a Esc");
    assert_eq!(ui.model.screen, Screen::Run);
}

#[test]
fn a_new_alert_is_announced_once() {
    let mut ui = with_alerts(all()[1..].to_vec());
    let effects = ui.send(Msg::Alerts(all()));
    let [Effect::Notify { bell: true, text: Some((title, _)) }] = &effects[..] else { panic!("{effects:?}") };
    assert!(title.contains("out of memory"), "{title}");
    assert!(ui.send(Msg::Alerts(all())).is_empty());
    let mut snoozed = alert("00000000", 0.0, AlertKind::Failed, "rank 0 died");
    snoozed.state.snoozed_until_s = Some(NOW + 60.0);
    assert!(ui.send(Msg::Alerts([vec![snoozed], all()].concat())).is_empty());
}

#[test]
fn a_large_screen_shows_the_run_of_the_alert_and_what_happened_around_it() {
    let mut ui = with_alerts(all());
    ui.resize(160, 48);
    ui.press("a");
    let stream = Watch::Run(stage_1());
    assert!(!watches(&ui.model).contains(&stream), "the selection may still move");
    ui.send(Msg::Tick(NOW + 1.0));
    assert!(watches(&ui.model).contains(&stream));
    for what in [
        RunMsg::Opened,
        RunMsg::State(status(running(83))),
        RunMsg::Metrics((1..=83).map(|step| sample(1, step)).collect()),
        RunMsg::Events(events()),
    ] {
        ui.send(Msg::Run { run: stage_1(), what });
    }
    insta::assert_snapshot!("alerts_with_events_160x48", ui.screen());
    ui.press("j");
    assert!(watches(&ui.model).iter().all(|watch| !matches!(watch, Watch::Run(_))), "that run is not in the list");
}

#[test]
fn the_details_name_who_acknowledged_and_snoozed_an_alert() {
    let mut rows = all();
    let id = rows[0].state.alert.id.clone();
    rows[0].state.mutes =
        vec![Mute::new(NOW - 120.0, Some(id), None, "ada"), Mute::new(NOW - 60.0, None, Some(NOW + 7140.0), "grace")];
    let mut ui = with_alerts(rows);
    ui.press("a");
    for text in ["Acknowledged by ada, 2 min ago", "Run snoozed by grace for 2 h, 1 min ago"] {
        assert!(ui.screen().contains(text), "{text} is not on the screen:\n{}", ui.screen());
    }
}

#[test]
fn a_long_list_leaves_room_for_the_details_of_a_tall_screen() {
    let many = (0..200).map(|n| alert(&format!("{n:08x}"), f64::from(n), AlertKind::Failed, "rank 1 died"));
    let mut ui = with_alerts(many.collect());
    ui.press("a");
    for (width, height, has_more) in [(80, 24, false), (100, 40, true), (160, 48, true)] {
        ui.resize(width, height);
        assert_eq!(ui.screen().contains("Other alerts of this run"), has_more, "{}", ui.screen());
    }
}

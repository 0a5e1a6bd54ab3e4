//! The Alerts screen: lists the alerts of all runs, newest first, with the details of the selected one.

use crate::bindings::{Action, Context};
use crate::effect::{Effect, Request};
use crate::jobs::Intent;
use crate::layout;
use crate::model::{Model, Screen};
use crate::msg::{AlertRow, RunRow};
use crate::run_state::{StateKind, short_id};
use crate::screens::{Behaviour, Press, alert_details};
use crate::text;
use crate::widgets::table::{self, Align, Column, Rows, Table};
use crate::widgets::{details, hint, write_centered};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use rundir::{AlertKind, AlertState};

/// Rows of the details below the list.
const DETAILS: u16 = 9;
/// The duration of a snooze, seconds.
const SNOOZE_S: f64 = 2.0 * 3600.0;

/// Opens the screen.
pub fn open(model: &mut Model) {
    if model.screen != Screen::Alerts {
        model.screens.alerts.from = Some(model.screen);
    }
    model.screen = Screen::Alerts;
    keep_selection(model);
}

/// Scrolls to the selected alert.
pub fn keep_selection(model: &mut Model) {
    model.screens.alerts.top = listed(model, list_area(model).0).scrolled();
}

/// Stores the alerts of all runs. Returns the effect that announces new ones, if one of their channels is the
/// terminal.
pub fn on_alerts(model: &mut Model, rows: Vec<AlertRow>) -> Vec<Effect> {
    let before = model.alerts.replace(rows);
    keep_selection(model);
    // Alerts that existed before the console opened are not announced.
    let (Some(before), Some(rows)) = (before, &model.alerts) else { return Vec::new() };
    let is_new = |row: &&AlertRow| {
        !row.state.is_snoozed(model.now) && before.iter().all(|known| known.state.alert.id != row.state.alert.id)
    };
    let new: Vec<&AlertRow> = rows.iter().filter(is_new).collect();
    let bell = new.iter().any(|row| row.bell);
    let shown: Vec<&AlertRow> = new.into_iter().filter(|row| row.osc).collect();
    let text = shown.first().map(|row| {
        let more = if shown.len() > 1 { format!(" (and {} more)", shown.len() - 1) } else { String::new() };
        let alert = &row.state.alert;
        (format!("{}: {}", short_id(&alert.run), words(alert.kind)), format!("{}{more}", alert.what))
    });
    if bell || text.is_some() { vec![Effect::Notify { bell, text }] } else { Vec::new() }
}

/// Returns the number of open alerts: those that need action and are neither acknowledged nor snoozed.
pub fn open_alerts(model: &Model) -> usize {
    rows(model).iter().filter(|row| row.state.is_open(model.now)).count()
}

fn rows(model: &Model) -> &[AlertRow] {
    model.alerts.as_deref().unwrap_or_default()
}

fn position(model: &Model) -> usize {
    let is_it = |row: &AlertRow| Some(&row.state.alert.id) == model.screens.alerts.selected.as_ref();
    rows(model).iter().position(is_it).unwrap_or(0)
}

/// Returns the selected alert.
pub fn selected(model: &Model) -> Option<&AlertState> {
    rows(model).get(position(model)).map(|row| &row.state)
}

/// Returns whether an alert needs an acknowledgement.
pub fn is_unanswered(state: &AlertState) -> bool {
    !state.acknowledged && state.alert.kind.needs_action()
}

/// The screen.
pub struct Alerts;

impl Behaviour for Alerts {
    fn on_action(&self, model: &mut Model, action: Action) -> Vec<Effect> {
        let (at, last) = (position(model), rows(model).len().saturating_sub(1));
        let page = listed(model, list_area(model).0).page();
        if let Some(to) = layout::moved(action, at, page, last) {
            model.screens.alerts.selected = rows(model).get(to).map(|row| row.state.alert.id.clone());
            keep_selection(model);
            return Vec::new();
        }
        match action {
            Action::Back => model.screen = model.screens.alerts.from.take().unwrap_or(Screen::Runs),
            Action::TestAlerts => {
                let job = model.jobs.start(Intent::TestAlerts);
                return vec![Effect::Job { job, request: Request::TestAlerts }];
            }
            _ if selected(model).is_none() => model.warn("There is no alert"),
            Action::Open => {
                if let Some(run) = selected(model).map(|state| state.alert.run.clone()) {
                    model.open_run(run);
                }
            }
            Action::Acknowledge | Action::AcknowledgeAll | Action::Snooze => return mute(model, action),
            _ => {}
        }
        Vec::new()
    }

    fn view(&self, model: &Model, buf: &mut Buffer, body: Rect) {
        if model.alerts.is_none() {
            write_centered(model, buf, body, vec![Line::styled("Loading alerts…", model.theme.faint)]);
            return;
        }
        let Some(chosen) = selected(model) else {
            let lines = vec![
                Line::styled("No alerts", model.theme.strong),
                Line::styled("Runs report here what needs you: failures, stalls, a full disk.", model.theme.faint),
                Line::styled("To get alerts without the console, see docs/alerts.md.", model.theme.faint),
                Line::default(),
                Line::from(hint(
                    model,
                    &model.keys.name(Context::Alerts, Action::TestAlerts),
                    "send a test alert to all channels",
                )),
            ];
            write_centered(model, buf, body, lines);
            return;
        };
        let (list, below) = list_area(model);
        table(model, buf, list);
        alert_details::view(model, buf, below, chosen);
    }

    fn open(&self, model: &mut Model) {
        open(model);
    }

    fn tab(&self) -> Action {
        Action::ShowAlerts
    }

    fn keep_selection(&self, model: &mut Model) {
        keep_selection(model);
    }

    fn on_press(&self, model: &mut Model, at: Position) -> Press {
        Press::row(listed(model, list_area(model).0).until(at.y))
    }

    fn preview<'a>(&self, model: &'a Model) -> Option<&'a RunRow> {
        model.row(&selected(model)?.alert.run).filter(|_| details::has_more(model.size))
    }
}

fn mute(model: &mut Model, action: Action) -> Vec<Effect> {
    let of = |state: &AlertState| (state.alert.run.clone(), Some(state.alert.id.clone()));
    let (alerts, until_s): (Vec<_>, _) = match action {
        Action::Snooze => (
            selected(model).map(|state| (state.alert.run.clone(), None)).into_iter().collect(),
            Some(model.now + SNOOZE_S),
        ),
        Action::AcknowledgeAll => {
            (rows(model).iter().map(|row| &row.state).filter(|state| state.is_open(model.now)).map(of).collect(), None)
        }
        _ => (selected(model).map(of).into_iter().collect(), None),
    };
    let job = model.jobs.start(Intent::MuteAlerts);
    vec![Effect::Job { job, request: Request::MuteAlerts { alerts, until_s } }]
}

fn list_area(model: &Model) -> (Rect, Rect) {
    let body = layout::areas(model.size).body;
    layout::list_and_details(body, rows(model).len() as u16 + 2, details::least_rows(model.size, DETAILS))
}

fn listed(model: &Model, area: Rect) -> Rows {
    Rows { area, top: model.screens.alerts.top, selected: position(model), count: rows(model).len() }
}

/// Returns the kind of an alert in words.
pub fn words(kind: AlertKind) -> String {
    kind.name().replace('-', " ")
}

/// The columns of the table.
#[derive(Debug, Clone, Copy)]
enum AlertColumn {
    Age,
    Kind,
    Run,
    What,
}

fn table(model: &Model, buf: &mut Buffer, area: Rect) {
    const KIND: usize = 13;
    const AGE: usize = 6;
    let run_width = table::widest(rows(model).iter().map(|row| short_id(&row.state.alert.run)));
    let run_width = run_width.min(usize::from(area.width) / 4).max(3);
    let table = Table::new(usize::from(area.width).saturating_sub(4)).with([
        Column::new(AlertColumn::Age, "age", Align::Right, AGE),
        Column::new(AlertColumn::Kind, "alert", Align::Left, KIND),
        Column::new(AlertColumn::Run, "run", Align::Left, run_width),
        Column::rest(AlertColumn::What, "what"),
    ]);
    let line = |at: usize, is_selected: bool| {
        let (state, alert) = (&rows(model)[at].state, &rows(model)[at].state.alert);
        let is_open = state.is_open(model.now);
        let style = match (is_selected, is_open) {
            (true, _) => model.theme.strong,
            (false, true) => Style::new(),
            (false, false) => model.theme.faint,
        };
        let glyph = model.symbols.states[StateKind::Stalled as usize];
        let mark = if is_open { Span::styled(format!("{glyph} "), model.theme.warn) } else { Span::raw("  ") };
        let cell = |column: &Column<AlertColumn>| match column.of {
            AlertColumn::Age => Span::styled(units::short_duration(model.now - alert.t), style),
            AlertColumn::Kind => Span::styled(words(alert.kind), if is_open { model.theme.bad } else { style }),
            AlertColumn::Run => Span::styled(short_id(&alert.run).to_owned(), style),
            AlertColumn::What => Span::styled(text::clean(&alert.what), style),
        };
        table.line(model, vec![table::pointer(model, is_selected, false), mark], table.columns.iter().map(cell))
    };
    listed(model, area).draw(model, buf, table.heading(model, 4), line);
}

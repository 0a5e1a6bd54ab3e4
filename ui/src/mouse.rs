//! Handles the mouse: a click selects, a click on the selected entry opens it, the wheel scrolls or zooms, and a drag
//! over a chart zooms.
//!
//! The layout functions that drawing uses also locate the clicked area. A click on an item of the key bar performs
//! the action of its key. Dialogs accept keys only, so that a second click cannot confirm what the first one opened, and
//! only keys start the run of the launch form and waive its checks.

use crate::bindings::{Action, Context};
use crate::effect::Effect;
use crate::layout::{self, Panel};
use crate::model::{Model, Screen, context};
use crate::msg::{Key, KeyCode, Mouse, MouseKind};
use crate::screens::compare::ClickedPart;
use crate::screens::{
    alerts, compare, convert, history_cursor, launch, logs, node, nodes, processes, recipes, run, runs, samples, stages,
};
use crate::update::act;
use crate::view::{header_action, key_bar_action};
use crate::widgets::shared_axis::position_at;
use ratatui_core::layout::{Position, Rect};

/// Rows that one notch of the wheel scrolls.
const NOTCH: usize = 3;

/// The factor by which one notch of the wheel changes the visible range of a chart.
const ZOOM: f64 = 0.8;

/// A drag over a chart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drag {
    /// The area between the axes of the chart.
    plot: Rect,
    /// The visible range when the drag began.
    window: (f64, f64),
    /// The positions of the ends of the drag on the x axis.
    range: (f64, f64),
    /// The columns of the ends of the drag.
    columns: (u16, u16),
}

impl Drag {
    /// Returns the range to show; `None` for a click, during which the pointer may move by a column on some
    /// terminals.
    pub fn shown(&self) -> Option<(f64, f64)> {
        (self.columns.0.abs_diff(self.columns.1) >= 2).then_some(self.range)
    }
}

/// Handles a mouse event.
pub fn on_mouse(model: &mut Model, mouse: Mouse) -> Vec<Effect> {
    let at = Position { x: mouse.column, y: mouse.row };
    match mouse.kind {
        MouseKind::WheelUp => wheel(model, at, Action::Up),
        MouseKind::WheelDown => wheel(model, at, Action::Down),
        // The open text input or dialog accepts keys only, except that a click chooses a completion.
        kind if model.modal.is_some() || model.input.is_some() => {
            if kind == MouseKind::Press && model.modal.is_none() {
                launch::press_completion(model, at);
            }
            model.drag = None;
            Vec::new()
        }
        MouseKind::Press => press(model, at),
        MouseKind::Drag => {
            drag(model, at);
            Vec::new()
        }
        MouseKind::Release => {
            if let Some(range) = model.drag.take().and_then(|drag| drag.shown()) {
                match (model.screen, &mut model.run, &mut model.compare) {
                    (Screen::Run, Some(run), _) => run.show(range),
                    (Screen::Compare, _, Some(open)) => open.show(range),
                    _ => {}
                }
            }
            Vec::new()
        }
    }
}

fn drag(model: &mut Model, at: Position) {
    if let Some(drag) = &mut model.drag {
        drag.columns.1 = at.x.clamp(drag.plot.left(), drag.plot.right().saturating_sub(1));
        drag.range.1 = position_at(drag.plot, drag.window, drag.columns.1);
        return;
    }
    match (model.screen, history_at(model, at)) {
        (Screen::Samples, _) => samples::drag(model, at),
        (_, Some(plot)) => history_cursor::put(model, plot, at.x),
        _ => {}
    }
}

/// Returns the area of the lines in the history of a node, if a position of the terminal is in it.
fn history_at(model: &Model, at: Position) -> Option<Rect> {
    match model.screen {
        Screen::Nodes => nodes::history_at(model, at),
        Screen::Node => node::history_at(model, at),
        _ => None,
    }
}

fn wheel(model: &mut Model, at: Position, direction: Action) -> Vec<Effect> {
    let factor = if direction == Action::Up { ZOOM } else { 1.0 / ZOOM };
    if model.modal.is_none()
        && let Some((plot, window)) = plot_at(model, at)
    {
        let x = Some(position_at(plot, window, at.x));
        match (model.screen, &mut model.run, &mut model.compare) {
            (Screen::Run, Some(run), _) => run.zoom(factor, x),
            (_, _, Some(open)) => open.zoom(factor, x),
            _ => {}
        }
        return Vec::new();
    }
    if model.modal.is_none() && model.input.is_some() {
        return Vec::new();
    }
    let context = context(model);
    // Scroll the list under the pointer.
    match model.screen {
        _ if model.modal.is_some() => {}
        Screen::Run => {
            let panel = run::panel_at(model, at).map(|under| under.panel);
            if let (Some(run), Some(panel @ (Panel::Events | Panel::Checkpoints | Panel::Samples | Panel::Recipe))) =
                (&mut model.run, panel)
            {
                focus(run, panel);
            }
        }
        Screen::Launch => launch::focus(model, at),
        Screen::Convert if convert::is_over_preview(model, at) => {
            let lines = NOTCH as isize;
            convert::scroll(model, if direction == Action::Up { -lines } else { lines });
            return Vec::new();
        }
        Screen::Samples => {
            let action = samples::wheel_action(model, at, direction);
            return act(model, context, action);
        }
        Screen::Nodes | Screen::Node if history_at(model, at).is_some() => {
            nodes::zoom(model, if direction == Action::Up { Action::ZoomIn } else { Action::ZoomOut });
            return Vec::new();
        }
        _ => {}
    }
    // Scroll only if the direction is bound here: in some dialogs, these keys have other actions.
    let moves = context.bindings().iter().any(|binding| binding.action == direction);
    let notches = if moves { NOTCH } else { 0 };
    (0..notches).flat_map(|_| act(model, context, direction)).collect()
}

/// Returns the plot area of the chart at a position, and the visible range of the chart.
fn plot_at(model: &Model, at: Position) -> Option<(Rect, (f64, f64))> {
    match (model.screen, &model.run, &model.compare) {
        (Screen::Run, Some(run), _) => Some((run::panel_at(model, at)?.plot?, run.window())),
        (Screen::Compare, _, Some(open)) => Some((compare::plot_at(model, at)?.0, open.window())),
        _ => None,
    }
}

fn press(model: &mut Model, at: Position) -> Vec<Effect> {
    let areas = layout::areas(model.size);
    let context = context(model);
    if areas.header.contains(at) {
        return header_action(model, areas.header, at.x).map_or_else(Vec::new, |action| act(model, context, action));
    }
    if areas.keys.contains(at) {
        let action = key_bar_action(model, &areas, at.x);
        return match (context, action) {
            (Context::Launch, Some(action @ (Action::Accept | Action::Waive))) => {
                let what = if action == Action::Accept { "start the run" } else { "waive the selected check" };
                model.notify(format!("Press {} to {what}", model.keys.name(context, action)));
                Vec::new()
            }
            _ => action.map_or_else(Vec::new, |action| act(model, context, action)),
        };
    }
    if let Some((plot, window)) = plot_at(model, at) {
        let x = position_at(plot, window, at.x);
        model.drag = Some(Drag { plot, window, range: (x, x), columns: (at.x, at.x) });
        let panel = run::panel_at(model, at).map(|under| under.panel);
        let quantity = compare::plot_at(model, at).map(|(_, quantity)| quantity);
        match (model.screen, &mut model.run, &mut model.compare) {
            (Screen::Run, Some(run), _) => {
                run.put_cursor_at(x);
                panel.into_iter().for_each(|panel| focus(run, panel));
            }
            (_, _, Some(open)) => {
                open.view.put_cursor(Some(x), open.full_range());
                open.quantity = quantity.unwrap_or_else(|| open.quantity.clone());
            }
            _ => {}
        }
        return Vec::new();
    }
    if let Some(plot) = history_at(model, at) {
        history_cursor::put(model, plot, at.x);
        return Vec::new();
    }
    let until = match model.screen {
        Screen::Run => return press_panel(model, at),
        Screen::Launch => {
            launch::press(model, at);
            return Vec::new();
        }
        Screen::Samples => {
            samples::press(model, at);
            return Vec::new();
        }
        Screen::Compare => {
            let part = compare::part_at(model, at);
            if let (Some(part), Some(open)) = (part, &mut model.compare) {
                match part {
                    ClickedPart::Quantity(quantity) => open.quantity = quantity,
                    ClickedPart::Run(number) => open.toggle_run(number),
                }
            }
            return Vec::new();
        }
        Screen::Logs => {
            if let (Some(line), Some(logs)) = (logs::line_at(model, at.y), &mut model.logs) {
                if logs.current == Some(line) {
                    logs.toggle(line);
                } else {
                    // Do not scroll: the lines must not move under the pointer.
                    (logs.current, logs.seeks_later) = (Some(line), None);
                }
            }
            return Vec::new();
        }
        Screen::Runs => runs::runs_until(model, at.y),
        Screen::Stages => stages::stages_until(model, at.y),
        Screen::Recipes => recipes::recipes_until(model, at.y),
        Screen::Nodes => nodes::nodes_until(model, at),
        Screen::Processes => processes::processes_until(model, at.y),
        Screen::Alerts => alerts::alerts_until(model, at.y),
        Screen::Convert => convert::fields_until(model, at.y),
        Screen::Node => None,
    };
    match until {
        None => Vec::new(),
        Some(0) => {
            let enter = context.bindings().iter().find(|binding| binding.keys.contains(&Key::code(KeyCode::Enter)));
            enter.map_or_else(Vec::new, |binding| act(model, context, binding.action))
        }
        Some(entries) => {
            let direction = if entries < 0 { Action::Up } else { Action::Down };
            (0..entries.unsigned_abs()).flat_map(|_| act(model, context, direction)).collect()
        }
    }
}

/// Focuses a panel of the Run screen. A click on the focused panel enlarges the panel, or opens its selected entry.
fn press_panel(model: &mut Model, at: Position) -> Vec<Effect> {
    let Some(under) = run::panel_at(model, at) else { return Vec::new() };
    let context = context(model);
    let Some(run) = &mut model.run else { return Vec::new() };
    let was_focused = run.focus == under.panel;
    focus(run, under.panel);
    match under.event {
        Some(event) if run.scroll != event => {
            run.scroll = event;
            Vec::new()
        }
        _ if was_focused => act(model, context, Action::Open),
        _ => Vec::new(),
    }
}

fn focus(run: &mut crate::model::RunScreen, panel: Panel) {
    if run.focus != panel {
        (run.focus, run.scroll) = (panel, 0);
    }
}

//! Handles the mouse: a click selects, a click on the selected entry opens it, the wheel scrolls or zooms, and a drag
//! over a chart zooms.
//!
//! The layout functions that drawing uses also locate the clicked area. A click on an item of the key bar performs
//! the action of its key. Dialogs accept keys only, so that a second click cannot confirm what the first one opened, and
//! only keys start the run of the launch form and waive its checks.

use crate::bindings::{Action, Context};
use crate::dispatch::act;
use crate::effect::Effect;
use crate::layout;
use crate::model::{Drag, Model, context};
use crate::msg::{Key, KeyCode, Mouse, MouseKind};
use crate::screens::{NOTCH, Press, Wheel, behaviour, launch};
use crate::view::{header_action, key_bar_action};
use crate::widgets::shared_axis::position_at;
use ratatui_core::layout::Position;

/// The factor by which one notch of the wheel changes the visible range of a chart.
const ZOOM: f64 = 0.8;

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
                behaviour(model.screen).show_range(model, range);
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
    behaviour(model.screen).on_drag(model, at);
}

fn wheel(model: &mut Model, at: Position, direction: Action) -> Vec<Effect> {
    let factor = if direction == Action::Up { ZOOM } else { 1.0 / ZOOM };
    let screen = behaviour(model.screen);
    if model.modal.is_none()
        && let Some((plot, window)) = screen.chart_at(model, at)
    {
        screen.zoom_chart(model, factor, position_at(plot, window, at.x));
        return Vec::new();
    }
    if model.modal.is_none() && model.input.is_some() {
        return Vec::new();
    }
    let context = context(model);
    // Scroll the list under the pointer.
    let scroll = if model.modal.is_some() { Wheel::Scroll } else { screen.on_wheel(model, at, direction) };
    match scroll {
        Wheel::Scroll => {}
        Wheel::Done => return Vec::new(),
        Wheel::Act(action) => return act(model, context, action),
    }
    // Scroll only if the direction is bound here: in some dialogs, these keys have other actions.
    let moves = context.bindings().iter().any(|binding| binding.action == direction);
    let notches = if moves { NOTCH } else { 0 };
    (0..notches).flat_map(|_| act(model, context, direction)).collect()
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
    let screen = behaviour(model.screen);
    if let Some((plot, window)) = screen.chart_at(model, at) {
        let x = position_at(plot, window, at.x);
        model.drag = Some(Drag { plot, window, range: (x, x), columns: (at.x, at.x) });
        screen.press_chart(model, at, x);
        return Vec::new();
    }
    match screen.on_press(model, at) {
        Press::Done => Vec::new(),
        Press::Act(action) => act(model, context, action),
        Press::Select(0) => {
            let enter = context.bindings().iter().find(|binding| binding.keys.contains(&Key::code(KeyCode::Enter)));
            enter.map_or_else(Vec::new, |binding| act(model, context, binding.action))
        }
        Press::Select(entries) => {
            let direction = if entries < 0 { Action::Up } else { Action::Down };
            (0..entries.unsigned_abs()).flat_map(|_| act(model, context, direction)).collect()
        }
    }
}

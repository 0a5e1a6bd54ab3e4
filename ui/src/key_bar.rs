//! The key bar in the last row: shows the keys that are possible now, from the key tables.

use crate::bindings::{Action, Binding, Condition};
use crate::conditions::{is_shown, label};
use crate::model::{Model, context};
use crate::widgets::write;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::text::{Line, Span};

/// Draws the key bar. Keys whose action would be refused are hidden.
pub fn draw(model: &Model, buf: &mut Buffer, area: Rect) {
    let mut spans = shown(model, area).into_iter().flat_map(|binding| item(model, binding)).collect::<Vec<_>>();
    spans.pop();
    write(model, buf, area, Line::from(spans));
}

/// Returns the action of the item at a column of the key bar.
pub fn action_at(model: &Model, area: Rect, column: u16) -> Option<Action> {
    let mut end = usize::from(area.x);
    let under = |binding: &&Binding| {
        end += item_width(model, binding);
        // Two blanks follow an item.
        usize::from(column) + 2 < end
    };
    let found = shown(model, area).into_iter().find(under)?;
    (column >= area.x).then_some(found.action)
}

/// Returns the bindings whose items fit the key bar.
fn shown(model: &Model, area: Rect) -> Vec<&'static Binding> {
    let context = context(model);
    let mut own: Vec<&'static Binding> = context.bindings().iter().filter(|binding| is_shown(model, binding)).collect();
    // The key for stack traces is offered only when the run may hang; it then comes first. The keys of charts are offered only
    // if a chart is enlarged; they then come before the others.
    own.sort_by_key(|binding| match binding.shown_when {
        Condition::RunMayHang => 0,
        Condition::ChartEnlarged => 1,
        _ => 2,
    });
    let last: Vec<&'static Binding> = context.global().iter().filter(|binding| !binding.label.is_empty()).collect();
    let width = |bindings: &[&Binding]| bindings.iter().map(|binding| item_width(model, binding)).sum::<usize>();
    // There is no gap after the last item.
    let mut room = (usize::from(area.width) + 2).saturating_sub(width(&last));
    own.retain(|binding| {
        let fits = item_width(model, binding) <= room;
        room = if fits { room - item_width(model, binding) } else { 0 };
        fits
    });
    own.extend(last);
    own
}

/// Returns the name of a key in the key bar; keys for opposite directions share an item.
fn bar_key(model: &Model, binding: &Binding) -> String {
    let name = |action| model.keys.name(context(model), action);
    let own = name(binding.action);
    match binding.action {
        Action::CursorRight => format!("{}/{own}", name(Action::CursorLeft)),
        Action::OptionNext => format!("{}/{own}", name(Action::OptionPrevious)),
        Action::SampleNext => format!("{}/{own}", name(Action::SamplePrevious)),
        Action::Down => format!("{}/{own}", name(Action::Up)),
        Action::ZoomIn => format!("{own}/{}", name(Action::ZoomOut)),
        _ => own,
    }
}

fn item(model: &Model, binding: &Binding) -> Vec<Span<'static>> {
    let key = bar_key(model, binding);
    vec![
        Span::styled(key, model.theme.accent),
        Span::styled(format!(" {}", label(model, binding)), model.theme.faint),
        Span::raw("  "),
    ]
}

fn item_width(model: &Model, binding: &Binding) -> usize {
    crate::text::width(&bar_key(model, binding)) + 1 + crate::text::width(label(model, binding)) + 2
}

//! The section of the Runs screen with the entries of the queue whose runs have not started.

use crate::bindings::{Action, Context};
use crate::layout;
use crate::model::Model;
use crate::msg::QueueRow;
use crate::text;
use crate::widgets::{panel, write_lines};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::text::{Line, Span};

/// The most entries that are shown unless the user requests all.
const FIRST: usize = 3;
/// The least rows of the screen that show the section unless the user requests it.
const LEAST_BODY: u16 = 16;

/// Splits the screen into the runs with their details, and the section of the queue. It has no rows if the queue is empty.
pub fn areas(model: &Model) -> (Rect, Rect) {
    let body = layout::areas(model.size).body;
    let count = model.queue.len();
    let rows = match model.screens.runs.whole_queue {
        true => (count.max(1) + 1).min(usize::from(body.height / 2)),
        false if count == 0 || body.height < LEAST_BODY => 0,
        false => count.min(FIRST) + 1,
    };
    layout::cut_top(body, body.height.saturating_sub(rows as u16))
}

/// Draws the section.
pub fn view(model: &Model, buf: &mut Buffer, area: Rect) {
    if area.height == 0 {
        return;
    }
    let count = Span::styled(model.queue.len().to_string(), model.theme.strong);
    let area = panel(model, buf, area, "Queue", vec![count], false);
    if model.queue.is_empty() {
        let text = "No run waits. Add one: vidtui queue add RECIPE";
        write_lines(model, buf, area, [Line::styled(text, model.theme.faint)]);
        return;
    }
    let room = usize::from(area.height);
    let shown = if model.queue.len() > room { room.saturating_sub(1) } else { room };
    let mut lines = lines(model, &model.queue[..shown.min(model.queue.len())], usize::from(area.width));
    if let more @ 1.. = model.queue.len().saturating_sub(shown) {
        let how = match model.screens.runs.whole_queue {
            true => "vidtui queue".to_owned(),
            false => model.keys.name(Context::Runs, Action::Queue),
        };
        lines.push(Line::styled(format!("{} {more} more: {how}", model.symbols.ellipsis), model.theme.faint));
    }
    write_lines(model, buf, area, lines);
}

/// Returns a line for each entry: its number, its recipe and what it waits for.
fn lines(model: &Model, rows: &[QueueRow], width: usize) -> Vec<Line<'static>> {
    let numbers = rows.iter().map(|row| row.id.to_string().len()).max().unwrap_or(0);
    let recipes = rows.iter().map(|row| text::width(&text::clean(&row.recipe))).max().unwrap_or(0).min(width / 2);
    let line = |row: &QueueRow| {
        // The end of a path names the recipe.
        let recipe = text::fit_end(&text::clean(&row.recipe), recipes, model.symbols.ellipsis);
        let pad = " ".repeat(recipes.saturating_sub(text::width(&recipe)));
        let room = width.saturating_sub(numbers + recipes + 4);
        let state = text::fit(&text::clean(&row.state), room, model.symbols.ellipsis);
        Line::from(vec![
            Span::styled(format!("{:>numbers$}  ", row.id), model.theme.faint),
            Span::raw(format!("{recipe}{pad}  ")),
            Span::styled(state, model.theme.faint),
        ])
    };
    rows.iter().map(line).collect()
}

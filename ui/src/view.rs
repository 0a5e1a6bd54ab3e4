//! Draws the model: header, screen, notice line, key bar and dialog.

use crate::bindings::{Action, Context};
use crate::jobs::Job;
use crate::key_bar;
use crate::layout;
use crate::memo;
use crate::modals;
use crate::model::{Input, Model};
use crate::screens::{alerts, behaviour};
use crate::text;
use crate::widgets::{self, write, write_split};
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Modifier;
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Span};
use units::terminal::is_control;

/// Draws the model into a frame of any size.
pub fn view(model: &Model, frame: &mut Frame<'_>) {
    let area = frame.area();
    let buf = frame.buffer_mut();
    if area.as_size() == model.size.into() && model.symbols.braille {
        draw(model, buf);
        return;
    }
    // The model gets the new size of a terminal through a message. Until then, draw to a separate buffer and copy the
    // part that fits.
    let mut canvas = Buffer::empty(ratatui_core::layout::Rect::new(0, 0, model.size.width, model.size.height));
    draw(model, &mut canvas);
    if !model.symbols.braille {
        only_ascii(&mut canvas);
    }
    for y in 0..area.height.min(canvas.area.height) {
        for x in 0..area.width.min(canvas.area.width) {
            buf[(area.x + x, area.y + y)] = canvas[(x, y)].clone();
        }
    }
}

fn draw(model: &Model, buf: &mut Buffer) {
    memo::begin_frame();
    let areas = layout::areas(model.size);
    header(model, buf, areas.header);
    behaviour(model.screen).view(model, buf, areas.body);
    let notice = notice(model);
    if key_bar_is_shown(model, &areas, notice.is_some()) {
        key_bar::draw(model, buf, areas.keys);
    }
    if let Some(notice) = notice {
        write(model, buf, areas.notice, notice);
    }
    if let Some(modal) = &model.modal {
        modals::view(modal, model, buf);
    }
    without_controls(buf);
}

/// Removes characters that reorder or hide text. ratatui drops control characters, but appends characters without a width to the cell
/// before them, so that a name or a caption could change how the rest of the row looks.
fn without_controls(buf: &mut Buffer) {
    for cell in &mut buf.content {
        if cell.symbol().len() > 1 && cell.symbol().contains(is_control) {
            let kept: String = cell.symbol().chars().filter(|c| !is_control(*c)).collect();
            cell.set_symbol(if kept.is_empty() { " " } else { &kept });
        }
    }
}

/// Returns whether the key bar is on the screen. A dialog replaces it with its own keys, and on a low screen a notice
/// replaces it.
fn key_bar_is_shown(model: &Model, areas: &layout::Areas, has_notice: bool) -> bool {
    model.modal.is_none() && (!has_notice || areas.notice != areas.keys)
}

/// Returns the action of a click on a column of the key bar; `None` if the key bar is hidden.
pub fn key_bar_action(model: &Model, areas: &layout::Areas, column: u16) -> Option<Action> {
    let is_shown = key_bar_is_shown(model, areas, notice(model).is_some());
    key_bar::action_at(model, areas.keys, column).filter(|_| is_shown)
}

/// Returns the items of the header, each with the action of a click on it: the product name, the screens with their
/// keys, and the number of alerts.
fn header_items(model: &Model) -> Vec<(Vec<Span<'static>>, Option<Action>)> {
    let theme = &model.theme;
    let key = |action| model.keys.name(Context::Runs, action);
    let tab = |action, title: &str, here: bool| {
        let style = if here { theme.accent.add_modifier(Modifier::UNDERLINED) } else { theme.faint };
        (vec![Span::raw("   "), Span::styled(format!("{} {title}", key(action)), style)], Some(action))
    };
    let here = behaviour(model.screen).tab();
    let tab = |action, title| tab(action, title, here == action);
    let mut items = vec![
        (vec![Span::styled("vidtui", theme.strong)], None),
        tab(Action::ShowRuns, "Runs"),
        tab(Action::ShowStages, "Stages"),
        tab(Action::ShowNodes, "Nodes"),
        tab(Action::ShowConvert, "Convert"),
        tab(Action::ShowRecipes, "Recipes"),
    ];
    let open = alerts::open_alerts(model);
    if here == Action::ShowAlerts {
        items.push(tab(Action::ShowAlerts, "Alerts"));
    } else if open > 0 {
        let count = format!("{} {}", key(Action::ShowAlerts), units::counted(open, "alert"));
        items.push((vec![Span::raw("   "), Span::styled(count, theme.warn)], Some(Action::ShowAlerts)));
    }
    items
}

/// Returns the action of a click on a column of the header.
pub fn header_action(model: &Model, area: ratatui_core::layout::Rect, column: u16) -> Option<Action> {
    let mut end = usize::from(area.x);
    let under = |(spans, _): &(Vec<Span<'static>>, Option<Action>)| {
        end += spans.iter().map(Span::width).sum::<usize>();
        usize::from(column) < end
    };
    header_items(model).into_iter().find(under)?.1
}

/// Draws the header: the product name, the screens with their keys, and at the right the open run, folder or
/// hostfile.
fn header(model: &Model, buf: &mut Buffer, area: ratatui_core::layout::Rect) {
    let theme = &model.theme;
    let left: Vec<Span<'static>> = header_items(model).into_iter().flat_map(|(spans, _)| spans).collect();
    let used: usize = left.iter().map(Span::width).sum();
    let room = usize::from(area.width).saturating_sub(used + 4);
    let place = behaviour(model.screen).subject(model, room);
    let place = if room >= 12 { text::fit_end(&place, room, model.symbols.ellipsis) } else { String::new() };
    write_split(model, buf, area, Line::from(left), Line::styled(place, theme.faint));
}

/// Returns the content of the notice line: the text input, a job in progress, or the latest notice.
fn notice(model: &Model) -> Option<Line<'static>> {
    let theme = &model.theme;
    // The launch form draws its own fields.
    if let Some(input) = model.input.as_ref().filter(|input| !input.purpose.is_of_form()) {
        return Some(input_line(model, input));
    }
    // A warning has priority over a job in progress, and any notice over a waiting job, because the wait may take
    // days.
    let is_first = |job: &&Job| model.notice.as_ref().is_none_or(|notice| !notice.is_warning && job.waiting.is_none());
    if let Some(job) = model.jobs.latest().filter(is_first) {
        let text = match &job.waiting {
            Some(waiting) => {
                format!("kill pending: {}; {} cancels it", waiting.text, model.key_name(Action::Kill))
            }
            None => job.progress.clone().unwrap_or_else(|| job.intent.text()),
        };
        return Some(Line::styled(format!("{}…", text::capitalized(&text)), theme.accent));
    }
    let notice = model.notice.as_ref()?;
    Some(Line::styled(notice.text.clone(), if notice.is_warning { theme.warn } else { theme.good }))
}

/// Returns the line of a text input. If the text is too long, the beginning before the cursor and the end after it
/// are cut.
fn input_line(model: &Model, input: &Input) -> Line<'static> {
    widgets::edited(model, input, input.purpose.title(), usize::from(layout::areas(model.size).notice.width))
}

/// Replaces characters that are not ASCII, for terminals without UTF-8.
fn only_ascii(buf: &mut Buffer) {
    for cell in buf.content.iter_mut().filter(|cell| !cell.symbol().is_ascii()) {
        let plain = match cell.symbol() {
            "…" => "~",
            "·" | "–" | "─" => "-",
            "×" => "x",
            "→" => ">",
            "°" => " ",
            _ => "?",
        };
        cell.set_symbol(plain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui_core::layout::Rect;
    use ratatui_core::widgets::Widget;

    #[test]
    fn a_name_cannot_reorder_or_hide_the_text_beside_it() {
        let mut buf = Buffer::empty(Rect::new(0, 0, 12, 1));
        let line = Line::from("a\u{202e}b\u{200b}\x1b[2J हि 实\u{feff}|");
        line.render(buf.area, &mut buf);
        without_controls(&mut buf);
        let row: String = buf.content.iter().map(|cell| cell.symbol()).collect();
        assert_eq!(row.trim_end(), "ab[2J हि  实 |", "the second cell of a wide cluster is a space");
    }
}

//! Draws the field of the launch form that the user is typing into: the text, and below it the error with a hint, or the
//! meaning of the key and the completions.

use crate::completion::{self, Candidate};
use crate::layout::cut_top;
use crate::model::{Input, LaunchForm, Model, Purpose};
use crate::run_state::StateKind;
use crate::screens::launch::wrong;
use crate::screens::launch_view::{self, marked};
use crate::text;
use crate::widgets::edited;
use crate::widgets::{panel, write_lines};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::text::{Line, Span};
use recipe::Key;

/// Draws the field.
pub fn view(model: &Model, buf: &mut Buffer, area: Rect, form: &LaunchForm, input: &Input) {
    let title = match input.purpose {
        Purpose::Override => "Override a key: section.key=value",
        Purpose::Ranks => "Ranks on this machine",
        _ => "Weights to start from: a checkpoint, or a run such as latest",
    };
    let inner = panel(model, buf, area, title, Vec::new(), true);
    let FieldLines { mut lines, completions } = field_lines(model, form, input, inner);
    lines.extend(completions.into_iter().map(|(_, line)| line));
    write_lines(model, buf, inner, lines);
}

/// Returns the completion at a position of the terminal.
pub fn completion_at(model: &Model, at: Position) -> Option<Candidate> {
    let (form, input) = (model.screens.form.as_ref()?, model.input.as_ref()?);
    let inner = cut_top(launch_view::field_area(model, form), 1).1;
    let FieldLines { lines, mut completions } = field_lines(model, form, input, inner);
    let row = usize::from(at.y.checked_sub(inner.y).filter(|_| inner.contains(at))?).checked_sub(lines.len())?;
    (row < completions.len()).then(|| completions.swap_remove(row).0).flatten()
}

/// The lines of a field.
struct FieldLines {
    /// The text, and the error or the meaning of the key.
    lines: Vec<Line<'static>>,
    /// The lines below, each with its completion; the last line may have none and count those that do not fit.
    completions: Vec<(Option<Candidate>, Line<'static>)>,
}

fn field_lines(model: &Model, form: &LaunchForm, input: &Input, inner: Rect) -> FieldLines {
    let theme = &model.theme;
    let width = usize::from(inner.width);
    let mut lines = vec![edited(model, input, "  ", width)];
    let text = input.text.trim();
    let is_key = input.purpose == Purpose::Override && !text.contains('=');
    let settings = form.settings.as_ref().and_then(|settings| settings.as_ref().ok());
    let found = settings.filter(|_| input.purpose == Purpose::Override);
    let found: Vec<Candidate> = found.map_or_else(Vec::new, |settings| completion::candidates(settings, &input.text));
    let mark = model.symbols.states[StateKind::Failed as usize];
    let problem = match wrong(form, input.purpose, &input.text) {
        // An incomplete key that can still be completed is not an error.
        Some(_) if is_key && !found.is_empty() => None,
        Some(wrong) => Some((wrong.why, wrong.fix, theme.bad)),
        None if input.purpose == Purpose::Override && !text.is_empty() => match form.tried(text) {
            // Another override may make the recipe valid again.
            Some(Ok(Err(error))) => Some((error.why, error.fix, theme.warn)),
            _ => None,
        },
        None => None,
    };
    if let Some((why, fix, style)) = &problem {
        lines.extend(marked(mark, &text::capitalized(why), width, *style));
        lines.extend(marked(" ", &format!("hint: {fix}"), width, theme.accent));
    } else if input.purpose == Purpose::Override {
        let key = Key::find(crate::draft::key_of(text));
        if let Some(key) = key {
            let now = form.rows.iter().find(|row| row.key == key.path).and_then(|row| row.value.clone());
            let now = now.map_or_else(String::new, |now| format!("; now {now}"));
            lines.extend(marked(" ", &format!("{}{now}", key.doc), width, theme.faint));
        }
    }
    let mut completions = Vec::new();
    let is_done = found.len() == 1 && found[0].text == text;
    if !is_done && problem.is_none() {
        let left = usize::from(inner.height).saturating_sub(lines.len());
        let shown = if found.len() > left { left.saturating_sub(1) } else { found.len() };
        let names = found.iter().map(|candidate| candidate.text.len()).max().unwrap_or(0);
        let more = found.len() - shown;
        for candidate in found.into_iter().take(shown) {
            let name = format!("  {:<names$}  ", candidate.text);
            let line = Line::from(vec![Span::raw(name), Span::styled(candidate.doc, theme.faint)]);
            completions.push((Some(candidate), line));
        }
        if more > 0 {
            let text = format!("  {} and {more} more", model.symbols.ellipsis);
            completions.push((None, Line::styled(text, theme.faint)));
        }
    }
    FieldLines { lines, completions }
}

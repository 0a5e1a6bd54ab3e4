//! Draws the checks of the launch form, with the warnings above them.

use crate::bindings::{Action, Context};
use crate::draft::{LaunchTarget, PreflightResult, PreflightRow};
use crate::model::{FormPanel, LaunchForm, Model};
use crate::msg::RunRow;
use crate::run_state::{StateKind, short_id};
use crate::screens::launch_view::{List, NO_ENTRY, heading, marked};
use crate::text;
use crate::widgets::hint;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

/// Draws the panel of the checks.
pub fn view(model: &Model, buf: &mut Buffer, area: Rect, form: &LaunchForm) {
    if area.height == 0 {
        return;
    }
    let (theme, symbols) = (&model.theme, &model.symbols);
    let count = |is: fn(&PreflightResult) -> bool| form.checks.iter().filter(|row| is(&row.result)).count();
    let passed = count(|result| matches!(result, PreflightResult::Passed(_)));
    let failed = count(|result| matches!(result, PreflightResult::Failed(_)));
    let waived = count(|result| matches!(result, PreflightResult::Waived(_)));
    let mut value = vec![Span::styled(format!("{passed} passed"), theme.good)];
    if failed > 0 {
        value.push(Span::styled(format!(", {failed} failed"), theme.bad));
    }
    if waived > 0 {
        value.push(Span::styled(format!(", {waived} waived"), theme.warn));
    }
    if !form.is_checked {
        value.push(Span::styled(format!(", checking{}", symbols.ellipsis), theme.accent));
    }
    let inner = heading(model, buf, area, form, FormPanel::Checks, "Checks before the start", value);
    list(model, form, inner).draw(model, buf);
}

/// Returns the list of checks, with the warnings above them.
pub fn list(model: &Model, form: &LaunchForm, area: Rect) -> List {
    let (theme, symbols) = (&model.theme, &model.symbols);
    let width = usize::from(area.width);
    let mut lines: Vec<(usize, Line<'static>)> = Vec::new();
    let mut at_the_top = |text: &str, style: Style| {
        let warning = symbols.states[StateKind::Stalled as usize];
        lines.extend(marked(warning, text, width, style).into_iter().map(|line| (NO_ENTRY, line)));
    };
    if !form.changed.is_empty() {
        let files: Vec<&str> = form.changed.iter().map(|path| path.file_name().unwrap_or(path.as_str())).collect();
        at_the_top(&format!("{} changed on disk; this is a new plan", files.join(", ")), theme.warn);
    }
    for warning in form.plan.iter().flat_map(|(plan, _)| &plan.warnings) {
        at_the_top(warning, theme.warn);
    }
    for row in busy_here(model, form) {
        let text = format!("{} is still {} on this machine", short_id(&row.run), StateKind::of(&row.state).word());
        at_the_top(&text, theme.warn);
    }
    if form.broken.is_some() {
        lines.push((0, Line::styled("Nothing is checked until the recipe is valid", theme.faint)));
    } else if let Some(failure) = &form.refused {
        let mark = symbols.states[StateKind::Failed as usize];
        let text = text::capitalized(&format!("{}: {}", failure.what, failure.why));
        lines.extend(marked(mark, &text, width, theme.bad).into_iter().map(|line| (0, line)));
        let fix = marked(" ", &format!("hint: {}", failure.fix), width, theme.accent);
        lines.extend(fix.into_iter().map(|line| (0, line)));
    } else if form.checks.is_empty() {
        lines.push((0, Line::styled("Checking the recipe, the data and the weights…", theme.faint)));
    }
    let names = form.checks.iter().map(|row| text::width(&row.name)).max().unwrap_or(0);
    let chosen = form.check_position();
    for (at, row) in form.checks.iter().enumerate() {
        let is_chosen = at == chosen && form.focus == FormPanel::Checks;
        lines.extend(check_lines(model, form, row, is_chosen, names, width).into_iter().map(|line| (at, line)));
    }
    // The warnings at the top stay visible until the user moves to the checks or a check fails.
    let selected = if form.focus == FormPanel::Checks || form.failed().next().is_some() { chosen } else { NO_ENTRY };
    List { area, lines, selected }
}

/// Returns the runs that are active on this machine, if the launch would share it with them.
fn busy_here<'a>(model: &'a Model, form: &LaunchForm) -> Vec<&'a RunRow> {
    let own = form.plan.as_ref().map(|(plan, _)| &plan.run.id);
    let is_busy = |row: &&RunRow| {
        let is_other = Some(&row.run) != own && row.job.is_none();
        is_other && StateKind::of(&row.state).is_active()
    };
    match form.draft.target {
        LaunchTarget::Local(_) => model.rows().iter().filter(is_busy).collect(),
        LaunchTarget::Hostfile { .. } | LaunchTarget::Slurm(_) => Vec::new(),
    }
}

fn check_lines(
    model: &Model,
    form: &LaunchForm,
    row: &PreflightRow,
    is_chosen: bool,
    names: usize,
    width: usize,
) -> Vec<Line<'static>> {
    let (theme, symbols) = (&model.theme, &model.symbols);
    let (mark, style) = match &row.result {
        PreflightResult::Pending => (symbols.ellipsis, theme.accent),
        PreflightResult::Passed(_) => (symbols.states[StateKind::Finished as usize], theme.good),
        PreflightResult::Failed(_) => (symbols.states[StateKind::Failed as usize], theme.bad),
        PreflightResult::Waived(_) => (symbols.separator, theme.warn),
        PreflightResult::Unknown(_) => (symbols.separator, theme.faint),
    };
    let detail = match (&row.result, &row.node) {
        (PreflightResult::Pending, Some(node)) => format!("{node}: no answer yet"),
        (PreflightResult::Pending, None) => "no answer yet".to_owned(),
        (PreflightResult::Passed(detail), Some(node)) => format!("{node}: {detail}"),
        (PreflightResult::Passed(detail), None) => detail.clone(),
        // The reason already names the node.
        (PreflightResult::Failed(failure), Some(_)) => failure.why.clone(),
        (PreflightResult::Failed(failure), None) => format!("{}: {}", failure.what, failure.why),
        (PreflightResult::Waived(failure), _) => format!("waived: {}", failure.why),
        (PreflightResult::Unknown(needs), _) => format!("not checked, requires {needs}"),
    };
    let pointer = if is_chosen { symbols.pointer } else { " " };
    let indent = 2 + text::width(mark) + 1 + names + 2;
    let room = width.saturating_sub(indent).max(20);
    let faint = if form.plan.is_none() && form.refused.is_none() { theme.faint } else { Style::new() };
    let detail = text::clean(&detail.replace('\n', " "));
    let details = match &row.result {
        PreflightResult::Failed(_) => text::wrap(&detail, room),
        _ => vec![text::fit(&detail, room, symbols.ellipsis)],
    };
    let mut lines = Vec::new();
    for (n, detail) in details.into_iter().enumerate() {
        let mut spans = if n == 0 {
            let name = format!("{:<names$}  ", row.name);
            let name_style = if is_chosen { theme.strong } else { faint };
            vec![
                Span::styled(format!("{pointer} "), theme.accent),
                Span::styled(format!("{mark} "), style),
                Span::styled(name, name_style),
            ]
        } else {
            vec![Span::raw(" ".repeat(indent))]
        };
        spans.push(Span::styled(detail, faint));
        lines.push(Line::from(spans));
    }
    let PreflightResult::Failed(failure) = &row.result else { return lines };
    if !failure.fix.is_empty() {
        let wrapped = text::wrap(&text::clean(&format!("hint: {}", failure.fix)), room);
        let line = |text| Line::from(vec![Span::raw(" ".repeat(indent)), Span::styled(text, theme.accent)]);
        lines.extend(wrapped.into_iter().map(line));
    }
    if is_chosen && row.is_waivable {
        let mut spans = vec![Span::raw(" ".repeat(indent))];
        let text = format!("starts the run without the check '{}'", row.name);
        spans.extend(hint(model, &model.keys.name(Context::Launch, Action::Waive), &text));
        lines.push(Line::from(spans));
    }
    lines
}

//! Draws the launch form: settings, target, checks and plan, and the field that the user is typing into.

use crate::bindings::{Action, Context};
use crate::completion::{self, Candidate};
use crate::draft::{LaunchTarget, PreflightResult, PreflightRow};
use crate::fleet::{Link, NodeView};
use crate::layout::{self, cut_top};
use crate::model::{FormPanel, Input, LaunchForm, Model, Purpose};
use crate::msg::RunRow;
use crate::run_state::{StateKind, short_id};
use crate::screens::launch::{listed, wrong};
use crate::screens::node_table;
use crate::text;
use crate::view::edited;
use crate::widgets::{capitalized, failure_lines, hint, panel, write, write_centered, write_lines};
use camino::Utf8Path;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use recipe::{Key, Origin, SettingRow};
use rundir::RunId;
use std::collections::BTreeMap;
use units::counted;

/// The minimum width for two columns of panels.
const WIDE: u16 = 120;
/// Rows of the field that the user is typing into, with its error and its completions.
const FIELD_ROWS: u16 = 9;

/// The parts of the form. A part without room has height 0.
struct FormAreas {
    settings: Rect,
    target: Rect,
    checks: Rect,
    plan: Rect,
    field: Rect,
}

/// Places the panels. On a small terminal, the lower panel shows the checks, or the plan if it has the focus, and the
/// focused panel gets more rows. A terminal with very few rows shows only the focused panel.
fn areas(model: &Model, form: &LaunchForm) -> FormAreas {
    let body = layout::areas(model.size).body;
    let typing = model.input.as_ref().is_some_and(|input| input.purpose.is_of_form());
    let field_rows = if typing { FIELD_ROWS.min(body.height * 2 / 3) } else { 0 };
    let (body, field) = cut_top(body, body.height - field_rows);
    let none = Rect { height: 0, ..body };
    let target_rows = u16::try_from(listed(model).len()).unwrap_or(u16::MAX).clamp(1, 12) + 1;
    if body.width >= WIDE && body.height >= 20 {
        const GAP: u16 = 3;
        let left = Rect { width: (body.width - GAP) / 2, ..body };
        let right = Rect { x: left.right() + GAP, width: body.width - GAP - left.width, ..body };
        let (target, rest) = cut_top(right, target_rows);
        let (_, rest) = cut_top(rest, 1);
        let (checks, rest) = cut_top(rest, rest.height * 11 / 20);
        let (_, plan) = cut_top(rest, 1);
        return FormAreas { settings: left, target, checks, plan, field };
    }
    let at_plan = form.focus == FormPanel::Plan;
    let lower = |area| if at_plan { (none, area) } else { (area, none) };
    if body.height < 12 {
        let shown = |panel| if form.focus == panel { body } else { none };
        let (settings, target) = (shown(FormPanel::Settings), shown(FormPanel::Target));
        return FormAreas { settings, target, checks: shown(FormPanel::Checks), plan: shown(FormPanel::Plan), field };
    }
    let target_rows = target_rows.min(if form.focus == FormPanel::Target { 8 } else { 4 });
    let lower_rows = match form.focus {
        FormPanel::Checks | FormPanel::Plan => (body.height - target_rows) * 2 / 3,
        FormPanel::Settings | FormPanel::Target => (body.height - target_rows) / 2,
    };
    let (settings, rest) = cut_top(body, body.height - target_rows - lower_rows);
    let (target, rest) = cut_top(rest, target_rows);
    let (checks, plan) = lower(rest);
    FormAreas { settings, target, checks, plan, field }
}

/// Returns the number of rows by which Page Down moves in the focused panel.
pub fn page(model: &Model) -> usize {
    let Some(form) = &model.form else { return 1 };
    let areas = areas(model, form);
    let area = match form.focus {
        FormPanel::Settings => areas.settings,
        FormPanel::Target => areas.target,
        FormPanel::Checks => areas.checks,
        FormPanel::Plan => areas.plan,
    };
    usize::from(area.height.saturating_sub(2)).max(1)
}

/// Draws the screen.
pub fn view(model: &Model, buf: &mut Buffer, body: Rect) {
    let Some(form) = &model.form else {
        write_centered(model, buf, body, vec![Line::styled("No launch is open", model.theme.faint)]);
        return;
    };
    let areas = areas(model, form);
    settings(model, buf, areas.settings, form);
    target(model, buf, areas.target, form);
    checks(model, buf, areas.checks, form);
    if areas.plan.height > 0 {
        let inner = heading(model, buf, areas.plan, form, FormPanel::Plan, "Plan", Vec::new());
        let lines = plan_lines_of(model, form, usize::from(inner.width));
        let top = form.plan_top.min(lines.len().saturating_sub(fitting(inner, lines.len())));
        write_from(model, buf, inner, lines, top);
    }
    if let Some(input) = model.input.as_ref().filter(|_| areas.field.height > 0) {
        field(model, buf, areas.field, form, input);
    }
}

fn heading(
    model: &Model,
    buf: &mut Buffer,
    area: Rect,
    form: &LaunchForm,
    which: FormPanel,
    title: &str,
    value: Vec<Span<'static>>,
) -> Rect {
    panel(model, buf, area, title, value, form.focus == which)
}

/// Returns the number of lines that fit into an area. If not all fit, the last row shows the number of hidden lines
/// instead.
fn fitting(area: Rect, lines: usize) -> usize {
    let height = usize::from(area.height);
    if lines > height && height > 2 { height - 1 } else { height }
}

/// Writes lines, scrolled so that those of the selected row are visible. Each line has the position of its row; a row
/// may have several lines.
fn write_rows(model: &Model, buf: &mut Buffer, area: Rect, lines: Vec<(usize, Line<'static>)>, selected: usize) {
    let height = fitting(area, lines.len());
    let first = lines.iter().position(|(row, _)| *row == selected).unwrap_or(0);
    let last = lines.iter().rposition(|(row, _)| *row == selected).unwrap_or(0);
    let top = layout::scrolled(0, last, height).min(first);
    write_from(model, buf, area, lines.into_iter().map(|(_, line)| line).collect(), top);
}

/// Writes the lines from `top` on, and the number of hidden lines below them.
fn write_from(model: &Model, buf: &mut Buffer, area: Rect, lines: Vec<Line<'static>>, top: usize) {
    let height = fitting(area, lines.len());
    let hidden = lines.len().saturating_sub(top + height);
    let (shown, last_row) = cut_top(area, height as u16);
    write_lines(model, buf, shown, lines.into_iter().skip(top));
    if hidden > 0 {
        let text = format!("  {} {hidden} more", model.symbols.ellipsis);
        write(model, buf, last_row, Line::styled(text, model.theme.faint));
    }
}

fn settings(model: &Model, buf: &mut Buffer, area: Rect, form: &LaunchForm) {
    let theme = &model.theme;
    let hidden = form.rows.len() - form.shown_rows().len();
    let mut value = Vec::new();
    if hidden > 0 || form.with_defaults {
        let key = model.keys.name(Context::Launch, Action::Defaults);
        let text = if form.with_defaults { "hides".to_owned() } else { format!("shows {hidden}") };
        value.extend(hint(model, &key, &format!("{text} defaults")));
    }
    let verb =
        if form.plan.is_some() { format!("Start {}?", form.title()) } else { format!("Launch {}", form.title()) };
    let inner = heading(model, buf, area, form, FormPanel::Settings, &verb, value);
    let width = usize::from(inner.width);
    match &form.settings {
        None => {
            write(model, buf, inner, Line::styled("Reading the recipe…", theme.faint));
            return;
        }
        Some(Err(failure)) => {
            write_lines(model, buf, inner, failure_lines(model, failure, width));
            return;
        }
        Some(Ok(_)) => {}
    }
    let mut rest = inner;
    if let Some(error) = &form.broken {
        let mark = model.symbols.states[StateKind::Failed as usize];
        let mut lines = marked(mark, &capitalized(&error.why), width, theme.bad);
        let hint = marked(" ", &format!("hint: {}", error.fix), width, theme.accent);
        let most = usize::from(inner.height * 2 / 3);
        lines.truncate(most.saturating_sub(hint.len()));
        lines.extend(hint);
        let (top, below) = cut_top(inner, lines.len().min(most) as u16);
        write_lines(model, buf, top, lines);
        rest = below;
    }
    let rows = form.shown_rows();
    let keys = rows.iter().map(|row| text::width(row.key)).max().unwrap_or(0).clamp(8, 30);
    let origins = (width / 3).clamp(10, 28);
    let room = width.saturating_sub(2 + keys + 2 + origins + 2);
    let folder = recipe_folder(form);
    let line = |(at, row): (usize, &&SettingRow)| {
        let is_chosen = at == form.key_position() && form.focus == FormPanel::Settings;
        let pointer = if is_chosen { model.symbols.pointer } else { " " };
        let style = match (&row.value, &row.origin) {
            (None, _) => theme.bad,
            _ if is_chosen => theme.strong,
            (_, Origin::Default) => theme.faint,
            _ => Style::new(),
        };
        let value = row.value.as_deref().unwrap_or("not set");
        let value = text::fit(&text::clean(value), room, model.symbols.ellipsis);
        let pad = " ".repeat(room.saturating_sub(text::width(&value)) + 2);
        let origin = match &row.origin {
            _ if row.value.is_none() => Span::raw(""),
            Origin::Default => Span::styled("default", theme.faint),
            Origin::Flag(_) => Span::styled("override", theme.accent),
            Origin::Fit(ranks) => Span::styled(format!("fitted to {}", counted(*ranks, "rank")), theme.accent),
            Origin::File { path, line } => {
                let path = path.strip_prefix(&folder).unwrap_or(path);
                let text = text::fit_end(&format!("{path}:{line}"), origins, model.symbols.ellipsis);
                Span::styled(text, theme.faint)
            }
        };
        let key = format!("{:<keys$}  ", text::fit(row.key, keys, model.symbols.ellipsis));
        let spans = vec![
            Span::styled(format!("{pointer} "), theme.accent),
            Span::styled(key, if is_chosen { theme.strong } else { Style::new() }),
            Span::styled(format!("{value}{pad}"), style),
            origin,
        ];
        (at, Line::from(spans))
    };
    let lines = rows.iter().enumerate().map(line).collect();
    write_rows(model, buf, rest, lines, form.key_position());
}

/// Returns the folder of the recipe; paths inside it are shown relative to it.
fn recipe_folder(form: &LaunchForm) -> String {
    let recipe = form.draft.recipe.as_str();
    let file =
        if recipe.ends_with(".toml") { recipe } else { recipe.rsplit_once(':').map_or(recipe, |(file, _)| file) };
    let file = Utf8Path::new(file);
    let folder = if file.extension() == Some("toml") { file.parent() } else { Some(file) };
    folder.map(ToString::to_string).unwrap_or_default()
}

/// Wraps a text, and puts a mark before its first line.
fn marked(mark: &str, text: &str, width: usize, style: Style) -> Vec<Line<'static>> {
    let wrapped = text::wrap(&text::clean(&text.replace('\n', " ")), width.saturating_sub(2));
    let line = |(n, line): (usize, String)| {
        let mark = if n == 0 { mark } else { " " };
        Line::styled(format!("{mark} {line}"), style)
    };
    wrapped.into_iter().enumerate().map(line).collect()
}

fn target(model: &Model, buf: &mut Buffer, area: Rect, form: &LaunchForm) {
    let theme = &model.theme;
    let title = match &form.draft.target {
        LaunchTarget::Local(_) => "On this machine".to_owned(),
        LaunchTarget::Hostfile { path, .. } => format!("On hostfile {path}"),
        LaunchTarget::Slurm(path) => format!("On Slurm: {path}"),
    };
    let others = form.targets.iter().filter(|target| !target.is_alike(&form.draft.target)).count();
    let key = model.keys.name(Context::Launch, Action::Targets);
    let value = if others > 0 { hint(model, &key, &counted(others, "other target")) } else { Vec::new() };
    let inner = heading(model, buf, area, form, FormPanel::Target, &title, value);
    match &form.draft.target {
        LaunchTarget::Local(ranks) => {
            let ranks = match (ranks, form.ranks()) {
                (Some(ranks), _) => counted(*ranks, "rank"),
                (None, Some(ranks)) => format!("{}, the mesh of the recipe", counted(ranks, "rank")),
                (None, None) => "the ranks of the mesh".to_owned(),
            };
            let mut spans = vec![Span::raw(format!("  {ranks}   "))];
            spans.extend(hint(model, &model.keys.name(Context::Launch, Action::Ranks), "changes it"));
            write(model, buf, inner, Line::from(spans));
        }
        LaunchTarget::Slurm(_) => {
            let text = "  Slurm chooses the nodes when the job starts; the plan shows the request";
            write(model, buf, inner, Line::styled(text, theme.faint));
        }
        LaunchTarget::Hostfile { .. } => nodes(model, buf, inner, form),
    }
}

fn nodes(model: &Model, buf: &mut Buffer, area: Rect, form: &LaunchForm) {
    let theme = &model.theme;
    if listed(model).is_empty() {
        let lines = match &model.fleet.listed {
            Some(Err(failure)) => failure_lines(model, failure, usize::from(area.width)),
            _ => vec![Line::styled("Reading the hostfile…", theme.faint)],
        };
        write_lines(model, buf, area, lines);
        return;
    }
    let views = model.fleet.nodes();
    let chosen = form.node.min(views.len() - 1);
    let names = views.iter().map(|view| text::width(view.node.id.as_str())).max().unwrap_or(0).clamp(5, 28);
    let line = |(at, view): (usize, &NodeView)| {
        let is_chosen = at == chosen && form.focus == FormPanel::Target;
        let is_used = form.draft.target.uses(&view.node.id);
        let condition = view.condition(model.now);
        let style = if is_used { Style::new() } else { theme.faint };
        let pointer = if is_chosen { model.symbols.pointer } else { " " };
        let name = text::fit(view.node.id.as_str(), names, model.symbols.ellipsis);
        let slots = counted(view.node.slots, "slot");
        let spans = vec![
            Span::styled(format!("{pointer} "), theme.accent),
            Span::styled(if is_used { "[x] " } else { "[ ] " }, if is_used { theme.accent } else { theme.faint }),
            Span::styled(format!("{name:<names$}  {slots:<9}"), if is_chosen { theme.strong } else { style }),
            Span::styled(
                format!("{} ", node_table::glyph(model, condition)),
                node_table::condition_style(model, condition),
            ),
            Span::styled(runs_on(model, view), if is_used { Style::new() } else { theme.faint }),
        ];
        (at, Line::from(spans))
    };
    write_rows(model, buf, area, views.iter().enumerate().map(line).collect(), chosen);
}

/// Returns what runs on a node: its runs, and the commands of other processes that use its GPUs, with their owners.
fn runs_on(model: &Model, view: &NodeView) -> String {
    let frame = match (&view.link, &view.frame) {
        (Link::Unreachable { .. }, _) => return node_table::unreachable(model.now, view),
        (_, None) => return "connecting".to_owned(),
        (_, Some(frame)) => frame,
    };
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for process in frame.gpus.iter().flat_map(|gpu| &gpu.processes).chain(&frame.elsewhere) {
        let text = match &process.owner {
            None => process.name.clone(),
            Some(owner) => {
                let run = owner.run.as_deref();
                let run =
                    run.map(|run| RunId::parse(run).map_or_else(|_| run.to_owned(), |id| short_id(&id).to_owned()));
                let command = || owner.command.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
                format!("{} ({})", run.unwrap_or_else(command), owner.user)
            }
        };
        *found.entry(text::clean(&text)).or_default() += 1;
    }
    let busy: Vec<String> =
        found.into_iter().map(|(text, n)| if n == 1 { text } else { format!("{n} × {text}") }).collect();
    match (busy.is_empty(), view.faults.first()) {
        (false, _) => busy.join(", "),
        (true, Some(fault)) => fault.to_string(),
        (true, None) => match view.summary.load {
            Some(load) => format!("idle, load {load:.1}"),
            None => "idle".to_owned(),
        },
    }
}

fn checks(model: &Model, buf: &mut Buffer, area: Rect, form: &LaunchForm) {
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
    let width = usize::from(inner.width);
    let mut lines: Vec<(usize, Line<'static>)> = Vec::new();
    let mut at_the_top = |text: &str, style: Style| {
        let warning = symbols.states[StateKind::Stalled as usize];
        lines.extend(marked(warning, text, width, style).into_iter().map(|line| (usize::MAX, line)));
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
        let text = capitalized(&format!("{}: {}", failure.what, failure.why));
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
    let selected = if form.focus == FormPanel::Checks || form.failed().next().is_some() { chosen } else { usize::MAX };
    write_rows(model, buf, inner, lines, selected);
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

/// Returns the lines of the plan.
pub fn plan_lines(model: &Model) -> Vec<Line<'static>> {
    let Some(form) = &model.form else { return Vec::new() };
    let width = usize::from(areas(model, form).plan.width);
    plan_lines_of(model, form, width)
}

fn plan_lines_of(model: &Model, form: &LaunchForm, width: usize) -> Vec<Line<'static>> {
    let theme = &model.theme;
    let Some((plan, _)) = &form.plan else {
        let text = if form.is_checked { "There is no plan" } else { "Planning…" };
        return vec![Line::styled(text, theme.faint)];
    };
    let mut rows = plan.summary.clone();
    if let Some((ranks, changes)) = &form.fitted {
        let fits = || format!("the mesh fits {} as it is", counted(*ranks, "rank"));
        rows.push(("fit".to_owned(), changes.clone().unwrap_or_else(fits)));
    }
    rows.push(("shell".to_owned(), form.draft.command(form.ranks())));
    let names = rows.iter().map(|(name, _)| text::width(name)).max().unwrap_or(0).min(width / 3);
    let mut lines = Vec::new();
    for (name, value) in rows {
        let name = text::fit(&name, names, model.symbols.ellipsis);
        let pad = " ".repeat(names.saturating_sub(text::width(&name)));
        for (i, value) in text::wrap(&value, width.saturating_sub(names + 2)).into_iter().enumerate() {
            let name = if i == 0 { format!("{name}{pad}  ") } else { " ".repeat(names + 2) };
            lines.push(Line::from(vec![Span::styled(name, theme.faint), Span::raw(value)]));
        }
    }
    lines
}

/// Draws the field that the user is typing into: the text, and below it the error with a hint, or the meaning of the
/// key and the completions.
fn field(model: &Model, buf: &mut Buffer, area: Rect, form: &LaunchForm, input: &Input) {
    let theme = &model.theme;
    let title = match input.purpose {
        Purpose::Override => "Override a key: section.key=value",
        Purpose::Ranks => "Ranks on this machine",
        _ => "Weights to start from: a checkpoint, or a run such as latest",
    };
    let inner = panel(model, buf, area, title, Vec::new(), true);
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
        lines.extend(marked(mark, &capitalized(why), width, *style));
        lines.extend(marked(" ", &format!("hint: {fix}"), width, theme.accent));
    } else if input.purpose == Purpose::Override {
        let key = Key::find(crate::draft::key_of(text));
        if let Some(key) = key {
            let now = form.rows.iter().find(|row| row.key == key.path).and_then(|row| row.value.clone());
            let now = now.map_or_else(String::new, |now| format!("; now {now}"));
            lines.extend(marked(" ", &format!("{}{now}", key.doc), width, theme.faint));
        }
    }
    let is_done = found.len() == 1 && found[0].text == text;
    if !is_done && problem.is_none() {
        let left = usize::from(inner.height).saturating_sub(lines.len());
        let shown = if found.len() > left { left.saturating_sub(1) } else { found.len() };
        let names = found.iter().map(|candidate| candidate.text.len()).max().unwrap_or(0);
        for candidate in &found[..shown] {
            let name = format!("  {:<names$}  ", candidate.text);
            lines.push(Line::from(vec![Span::raw(name), Span::styled(candidate.doc, theme.faint)]));
        }
        if shown < found.len() {
            let text = format!("  {} and {} more", model.symbols.ellipsis, found.len() - shown);
            lines.push(Line::styled(text, theme.faint));
        }
    }
    write_lines(model, buf, inner, lines);
}

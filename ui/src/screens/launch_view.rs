//! Draws the launch form: settings, target and plan. [`launch_checks`] draws the checks, and [`launch_field`] the field that
//! the user is typing into.

use crate::bindings::{Action, Context};
use crate::draft::LaunchTarget;
use crate::fleet::{Link, NodeView};
use crate::layout::{self, cut_top};
use crate::model::{FormPanel, LaunchForm, Model};
use crate::run_state::{StateKind, short_id};
use crate::screens::launch::listed;
use crate::screens::{launch_checks, launch_field, node_table};
use crate::text;
use crate::widgets::{failure_lines, hint, panel, write, write_centered, write_lines};
use camino::Utf8Path;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use recipe::{Origin, SettingRow};
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

impl FormAreas {
    fn of(&self, panel: FormPanel) -> Rect {
        match panel {
            FormPanel::Settings => self.settings,
            FormPanel::Target => self.target,
            FormPanel::Checks => self.checks,
            FormPanel::Plan => self.plan,
        }
    }
}

/// Places the panels. On a small terminal, the lower panel shows the checks, or the plan if it has the focus, and the
/// focused panel gets more rows. A terminal with very few rows shows only the focused panel.
fn areas(model: &Model, form: &LaunchForm) -> FormAreas {
    let body = layout::areas(model.size).body;
    let typing = model.input.as_ref().is_some_and(|input| input.purpose.is_of_form());
    let field_rows = if typing { FIELD_ROWS.min(body.height * 2 / 3) } else { 0 };
    let (body, field) = cut_top(body, body.height - field_rows);
    let none = Rect { height: 0, ..body };
    let target_rows = u16::try_from(listed(&model.fleet, form).len()).unwrap_or(u16::MAX).clamp(1, 12) + 1;
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
pub fn page(model: &Model, form: &LaunchForm) -> usize {
    usize::from(areas(model, form).of(form.focus).height.saturating_sub(2)).max(1)
}

/// Returns the panel at a position of the terminal.
pub fn panel_at(model: &Model, form: &LaunchForm, at: Position) -> Option<FormPanel> {
    let areas = areas(model, form);
    FormPanel::ALL.into_iter().find(|panel| areas.of(*panel).contains(at))
}

/// Returns the position of the key, node or check at a position of the terminal, among the entries of its panel.
pub fn entry_at(model: &Model, form: &LaunchForm, at: Position) -> Option<usize> {
    let panel = panel_at(model, form, at)?;
    let inner = cut_top(areas(model, form).of(panel), 1).1;
    let list = match panel {
        FormPanel::Settings => settings_list(model, form, inner).1,
        FormPanel::Target => nodes_list(model, form, inner)?,
        FormPanel::Checks => launch_checks::list(model, form, inner),
        FormPanel::Plan => return None,
    };
    list.entry_at(at.y)
}

/// Returns the area of the field that the user is typing into. It has height 0 while no field is open.
pub fn field_area(model: &Model, form: &LaunchForm) -> Rect {
    areas(model, form).field
}

/// Draws the screen.
pub fn view(model: &Model, buf: &mut Buffer, body: Rect) {
    let Some(form) = &model.screens.form else {
        write_centered(model, buf, body, vec![Line::styled("No launch is open", model.theme.faint)]);
        return;
    };
    let areas = areas(model, form);
    settings(model, buf, areas.settings, form);
    target(model, buf, areas.target, form);
    launch_checks::view(model, buf, areas.checks, form);
    if areas.plan.height > 0 {
        let inner = heading(model, buf, areas.plan, form, FormPanel::Plan, "Plan", Vec::new());
        let lines = plan_lines_of(model, form, usize::from(inner.width));
        let top = form.plan_top.min(lines.len().saturating_sub(fitting(inner, lines.len())));
        write_from(model, buf, inner, lines, top);
    }
    if let Some(input) = model.input.as_ref().filter(|_| areas.field.height > 0) {
        launch_field::view(model, buf, areas.field, form, input);
    }
}

/// Draws the heading of a panel, and returns the area below.
pub fn heading(
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

/// The position of an entry that cannot be selected, such as a warning above the checks.
pub const NO_ENTRY: usize = usize::MAX;

/// A list of entries, scrolled so that the lines of the selected entry are visible.
pub struct List {
    /// The area below the heading of the panel.
    pub area: Rect,
    /// Each line with the position of its entry; an entry may have several lines.
    pub lines: Vec<(usize, Line<'static>)>,
    /// The position of the selected entry.
    pub selected: usize,
}

impl List {
    /// Returns the first visible line.
    fn top(&self) -> usize {
        let first = self.lines.iter().position(|(entry, _)| *entry == self.selected).unwrap_or(0);
        let last = self.lines.iter().rposition(|(entry, _)| *entry == self.selected).unwrap_or(0);
        layout::scrolled(0, last, fitting(self.area, self.lines.len())).min(first)
    }

    /// Draws the list.
    pub fn draw(self, model: &Model, buf: &mut Buffer) {
        let top = self.top();
        write_from(model, buf, self.area, self.lines.into_iter().map(|(_, line)| line).collect(), top);
    }

    /// Returns the position of the entry in a row of the terminal.
    fn entry_at(&self, row: u16) -> Option<usize> {
        let at = usize::from(row.checked_sub(self.area.y)?);
        let (entry, _) = self.lines.get(self.top() + at).filter(|_| at < fitting(self.area, self.lines.len()))?;
        Some(*entry).filter(|entry| *entry != NO_ENTRY)
    }
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
    let (problem, list) = settings_list(model, form, inner);
    write_lines(model, buf, inner, problem);
    list.draw(model, buf);
}

/// Returns the error of the recipe, which is at the top of the panel, and the list of keys below it.
fn settings_list(model: &Model, form: &LaunchForm, inner: Rect) -> (Vec<Line<'static>>, List) {
    let theme = &model.theme;
    let width = usize::from(inner.width);
    let (mut problem, mut area) = (Vec::new(), inner);
    if let Some(error) = &form.broken {
        let mark = model.symbols.states[StateKind::Failed as usize];
        let mut lines = marked(mark, &text::capitalized(&error.why), width, theme.bad);
        let hint = marked(" ", &format!("hint: {}", error.fix), width, theme.accent);
        let most = usize::from(inner.height * 2 / 3);
        lines.truncate(most.saturating_sub(hint.len()));
        lines.extend(hint);
        lines.truncate(most);
        area = cut_top(inner, lines.len() as u16).1;
        problem = lines;
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
    (problem, List { area, lines, selected: form.key_position() })
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
pub fn marked(mark: &str, text: &str, width: usize, style: Style) -> Vec<Line<'static>> {
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
    if let Some(list) = nodes_list(model, form, area) {
        list.draw(model, buf);
        return;
    }
    let lines = match &model.fleet.listed {
        Some(Err(failure)) => failure_lines(model, failure, usize::from(area.width)),
        _ => vec![Line::styled("Reading the hostfile…", model.theme.faint)],
    };
    write_lines(model, buf, area, lines);
}

/// Returns the list of the nodes of the hostfile; `None` until it is read.
fn nodes_list(model: &Model, form: &LaunchForm, area: Rect) -> Option<List> {
    let theme = &model.theme;
    if listed(&model.fleet, form).is_empty() {
        return None;
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
        let name = node_table::name(model, &view.node.id, names);
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
    Some(List { area, lines: views.iter().enumerate().map(line).collect(), selected: chosen })
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

/// Returns the lines of the plan.
pub fn plan_lines(model: &Model, form: &LaunchForm) -> Vec<Line<'static>> {
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

//! The Nodes screen: lists the watched nodes with their condition, values and faults, as a table or a heat map.

use crate::bindings::{Action, Context};
use crate::effect::{Effect, Watch};
use crate::fleet::gpu_value::{GpuReader, GpuValue, is_current};
use crate::fleet::{FleetSource, Link, NodeHealth, NodeView, Sort};
use crate::layout;
use crate::model::{Input, Model, NodesScreen, Purpose, RunScreen, Screen, Session};
use crate::run_state::short_id;
use crate::screens::node_heat::{self, HeatGrid};
use crate::screens::node_history::{self, Lanes};
use crate::screens::node_table::{self, NODE_COLUMNS, NodeColumn};
use crate::screens::{Behaviour, Press, Wheel, history_cursor, node, processes};
use crate::slurm;
use crate::widgets::table::{self, Align, Column, GAP, Rows, Table};
use crate::widgets::{failure_lines, hint, panel, write, write_centered, write_lines};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use std::collections::BTreeSet;
use units::counted;

/// Rows of the details below the list.
const DETAILS: u16 = 6;
/// The minimum height of the body that reserves rows for the history below a long list.
const HISTORY_FROM: u16 = 36;

/// Opens the screen with the nodes of a source. Another source than before resets the selection, marks and filter.
pub fn open(model: &mut Model, of: FleetSource) {
    if !model.screen.is_of_nodes() {
        model.screens.nodes.from = Some(model.screen);
    }
    if model.fleet.of != of {
        model.fleet.turn_to(of);
        let NodesScreen { from, sort, window, .. } = model.screens.nodes;
        model.screens.nodes = NodesScreen { from, sort, window, ..NodesScreen::default() };
        model.screens.node = None;
        model.screens.processes = None;
    }
    model.screen = Screen::Nodes;
    renew(model);
}

/// Stores the run whose nodes are shown, and the selected node.
pub fn save(model: &Model, session: &mut Session) {
    if let FleetSource::Run(run) = &model.fleet.of {
        session.nodes_of = Some(run.clone());
    }
    session.node = model.screens.nodes.selected.clone();
    // The next console lists the nodes of a hostfile only with its own launch form.
    if matches!(model.fleet.of, FleetSource::Hostfile(_)) {
        session.screen = Screen::Nodes;
    }
}

/// Updates the nodes on the screen. They send frames all the time, and are drawn once per tick, so that rows do not jump and the cost
/// is fixed.
pub fn on_tick(model: &mut Model) {
    renew(model);
    model.dirty = true;
}

/// Updates the faults, sorts and filters the nodes again, and scrolls to the selected one.
pub fn renew(model: &mut Model) {
    search_outliers(model);
    let NodesScreen { sort, reverse, filter, .. } = &model.screens.nodes;
    model.screens.nodes.order = model.fleet.order(*sort, *reverse, filter, model.now);
    keep_selection(model);
}

/// Searches for outliers; also for slow ranks while the heat map shows step times.
fn search_outliers(model: &mut Model) {
    let has_step_times = model.screens.nodes.heat == Some(GpuValue::StepTime);
    let run = model.screens.run.as_ref();
    let steps = has_step_times.then(|| GpuReader::new(GpuValue::StepTime, || run.and_then(RunScreen::step_times)));
    model.fleet.judge(model.now, steps.as_ref());
}

/// Scrolls to the selected node.
pub fn keep_selection(model: &mut Model) {
    // The heat map needs no scroll position: it shows the page of the selected node.
    model.screens.nodes.top = listed(model, areas(model).table).filled();
}

/// Sets the filter.
pub fn set_filter(model: &mut Model, filter: String) {
    model.screens.nodes.filter = filter;
    model.screens.nodes.top = 0;
    renew(model);
}

/// The screen.
pub struct Nodes;

impl Behaviour for Nodes {
    fn on_action(&self, model: &mut Model, action: Action) -> Vec<Effect> {
        let at = model.node_position();
        let areas = areas(model);
        let page = listed(model, areas.table).page();
        let last = model.screens.nodes.order.len().saturating_sub(1);
        let column = model.screens.nodes.heat.map(|_| HeatGrid::new(model, areas.table).rows);
        let beside = match (action, column) {
            (Action::CursorLeft, Some(column)) => at.checked_sub(column),
            (Action::CursorRight, Some(column)) => Some((at + column).min(last)),
            _ => None,
        };
        if let Some(target) = layout::moved(action, at, page, last).or(beside) {
            let target = model.screens.nodes.order.get(target).and_then(|at| model.fleet.nodes().get(*at));
            model.screens.nodes.selected = target.map(|view| view.node.id.clone());
            keep_selection(model);
            return Vec::new();
        }
        match action {
            Action::Open => node::open(model),
            Action::Filter => {
                model.input = Some(Input::new(Purpose::NodeFilter, model.screens.nodes.filter.clone()));
            }
            Action::HeatMap => {
                let next = match model.screens.nodes.heat {
                    None => Some(GpuValue::Power),
                    Some(value) => value.next(),
                };
                model.screens.nodes.heat = next.filter(|value| *value != GpuValue::StepTime || has_step_times(model));
            }
            Action::ZoomIn | Action::ZoomOut => zoom(model, action),
            Action::CursorLeft | Action::CursorRight if model.screens.nodes.heat.is_none() => {
                history_cursor::step(model, action == Action::CursorRight);
            }
            Action::Sort => {
                model.screens.nodes.sort = model.screens.nodes.sort.next();
                model.screens.nodes.reverse = false;
                renew(model);
            }
            Action::ReverseSort => {
                model.screens.nodes.reverse = !model.screens.nodes.reverse;
                renew(model);
            }
            Action::Mark => {
                if let Some(node) = model.selected_node().map(|view| view.node.id.clone()) {
                    if !model.screens.nodes.marked.remove(&node) {
                        model.screens.nodes.marked.insert(node);
                    }
                    return self.on_action(model, Action::Down);
                }
            }
            Action::Processes => processes::open(model),
            Action::Kill => return processes::kill_on_nodes(model),
            Action::Back if !model.screens.nodes.marked.is_empty() => model.screens.nodes.marked.clear(),
            Action::Back if !model.screens.nodes.filter.is_empty() => set_filter(model, String::new()),
            Action::Back => {
                let run = model.screens.run.is_some();
                let back = model.screens.nodes.from.filter(|from| run || !from.is_of_run());
                model.screen = back.unwrap_or(Screen::Runs);
            }
            _ => {}
        }
        Vec::new()
    }

    fn view(&self, model: &Model, buf: &mut Buffer, body: Rect) {
        match &model.fleet.listed {
            None => {
                write_centered(model, buf, body, vec![Line::styled("Loading nodes…", model.theme.faint)]);
                return;
            }
            Some(Err(failure)) if model.fleet.nodes().is_empty() => {
                let width = usize::from(body.width.min(76));
                write_centered(model, buf, body, failure_lines(model, failure, width));
                return;
            }
            Some(_) => {}
        }
        let areas = areas(model);
        write(model, buf, areas.summary, summary(model));
        if model.screens.nodes.order.is_empty() {
            let nothing = format!("No node matches \"{}\"", model.screens.nodes.filter);
            let clear = hint(model, &model.keys.name(Context::Nodes, Action::Back), "show all nodes");
            write_centered(model, buf, areas.table, vec![Line::from(nothing), Line::default(), Line::from(clear)]);
            return;
        }
        match model.screens.nodes.heat {
            Some(value) => node_heat::view(model, buf, areas.table, value),
            None => table(model, buf, areas.table),
        }
        if let Some(view) = model.selected_node() {
            details(model, buf, areas.details, view);
            node_history::view(model, view, Lanes::All, buf, areas.history);
        }
    }

    fn open(&self, model: &mut Model) {
        open(model, model.fleet.of.clone());
    }

    fn tab(&self) -> Action {
        Action::ShowNodes
    }

    fn subject(&self, model: &Model, _: usize) -> String {
        model.nodes_source()
    }

    fn keep_selection(&self, model: &mut Model) {
        keep_selection(model);
    }

    fn on_tick(&self, model: &mut Model) {
        on_tick(model);
    }

    fn watches(&self, model: &Model, wanted: &mut BTreeSet<Watch>) {
        wanted.insert(Watch::Nodes(model.fleet.of.clone()));
        watch_history(model, model.selected_node(), wanted);
        // The heat map of step times shows the newest step of the open run.
        if let (Some(GpuValue::StepTime), Some(open)) = (model.screens.nodes.heat, &model.screens.run) {
            wanted.insert(Watch::Run(open.id.clone()));
        }
    }

    fn on_press(&self, model: &mut Model, at: Position) -> Press {
        match history_at(model, at) {
            Some(plot) => {
                history_cursor::put(model, plot, at.x);
                Press::Done
            }
            None => Press::row(nodes_until(model, at)),
        }
    }

    fn on_drag(&self, model: &mut Model, at: Position) {
        if let Some(plot) = history_at(model, at) {
            history_cursor::put(model, plot, at.x);
        }
    }

    fn on_wheel(&self, model: &mut Model, at: Position, direction: Action) -> Wheel {
        match history_at(model, at) {
            Some(_) => zoom_by_wheel(model, direction),
            None => Wheel::Scroll,
        }
    }

    fn on_typed(&self, model: &mut Model, _: Purpose, text: &str) {
        set_filter(model, text.to_owned());
    }

    fn save(&self, model: &Model, session: &mut Session) {
        save(model, session);
    }
}

/// Shows a shorter or a longer time window of the history.
pub fn zoom(model: &mut Model, action: Action) {
    let window = model.screens.nodes.window;
    model.screens.nodes.window = if action == Action::ZoomIn { window.shorter() } else { window.longer() };
}

/// Shows a shorter or a longer time window of the history, as the wheel turns.
pub fn zoom_by_wheel(model: &mut Model, direction: Action) -> Wheel {
    zoom(model, if direction == Action::Up { Action::ZoomIn } else { Action::ZoomOut });
    Wheel::Done
}

/// How often the recorded samples of a node are read at most, in seconds.
const RECORDS_EVERY_S: f64 = 120.0;

/// Adds the recorded samples of the node whose history is visible.
pub fn watch_history(model: &Model, view: Option<&NodeView>, wanted: &mut BTreeSet<Watch>) {
    let FleetSource::Run(run) = &model.fleet.of else { return };
    // The recorded samples lack the memory size of the GPUs, so that they are read once the node has sent a sample.
    // They are read at most every few minutes, because the node on top changes often if nodes are sorted by a reading.
    let is_due = |view: &&NodeView| view.records_s.is_none_or(|read_s| model.now - read_s > RECORDS_EVERY_S);
    let due = view.filter(|view| view.frame.is_some()).filter(is_due);
    wanted.extend(due.map(|view| Watch::Recorded { run: run.clone(), node: view.node.id.clone() }));
}

/// Returns whether the open run has step times for a GPU of any watched node.
fn has_step_times(model: &Model) -> bool {
    let reader = GpuReader::new(GpuValue::StepTime, || model.step_times());
    model.fleet.nodes().iter().any(|view| view.gpus().iter().any(|gpu| reader.of(view, gpu).is_some()))
}

struct NodesAreas {
    summary: Rect,
    table: Rect,
    details: Rect,
    history: Rect,
}

fn areas(model: &Model) -> NodesAreas {
    let body = layout::areas(model.size).body;
    let (summary, rest) = layout::cut_top(body, u16::from(body.height >= 5));
    let (_, rest) = layout::cut_top(rest, u16::from(rest.height >= 14));
    let history = if body.height >= HISTORY_FROM { node_history::TALL } else { 0 };
    let (top, _) = layout::cut_top(rest, rest.height - history);
    let rows = u16::try_from(model.screens.nodes.order.len()).unwrap_or(u16::MAX).saturating_add(2);
    let (table, _) = match model.screens.nodes.heat {
        Some(_) => node_heat::area(model, top, DETAILS),
        None => layout::list_and_details(top, rows, DETAILS),
    };
    let (_, below) = layout::cut_top(rest, table.height);
    // The history gets all rows that the table and the details leave.
    let details = if below.height >= DETAILS + node_history::LEAST { DETAILS } else { below.height };
    let (details, history) = layout::cut_top(below, details);
    NodesAreas { summary, table, details, history }
}

/// Returns the area of the lines in the history of the selected node, if a position of the terminal is in it.
fn history_at(model: &Model, at: Position) -> Option<Rect> {
    let plot = node_history::plot(model, model.selected_node()?, Lanes::All, areas(model).history)?;
    Some(plot).filter(|plot| plot.contains(at))
}

/// Returns the number of nodes from the selected one to the one at a position of the terminal, in the sort order.
fn nodes_until(model: &Model, at: Position) -> Option<isize> {
    let (table, selected, count) = (areas(model).table, model.node_position(), model.screens.nodes.order.len());
    if model.screens.nodes.heat.is_some() {
        let place = HeatGrid::new(model, table).place_at(table, selected, count, at)?;
        return Some(place as isize - selected as isize);
    }
    listed(model, table).until(at.y)
}

fn listed(model: &Model, area: Rect) -> Rows {
    Rows { area, top: model.screens.nodes.top, selected: model.node_position(), count: model.screens.nodes.order.len() }
}

/// Returns the totals over all nodes as one line.
fn summary(model: &Model) -> Line<'static> {
    let theme = &model.theme;
    let sum = model.fleet.summary();
    let dot = || Span::styled(format!(" {} ", model.symbols.separator), theme.faint);
    let mut spans = vec![Span::styled(counted(sum.nodes, "node"), theme.strong)];
    if let FleetSource::Run(run) = &model.fleet.of {
        spans.push(Span::raw(format!(" of {}", short_id(run))));
    }
    let mut add = |text: String, style: Style| spans.extend([dot(), Span::styled(text, style)]);
    add(format!("{} up", sum.up), if sum.up == sum.nodes { theme.good } else { Style::new() });
    // The list could not be updated: the nodes of the previous list are still watched.
    if let Some(Err(failure)) = &model.fleet.listed {
        add(format!("list not updated: {}", failure.why), theme.warn);
    }
    if sum.unreachable > 0 {
        add(format!("{} unreachable", sum.unreachable), theme.faint);
    }
    let connecting = sum.nodes - sum.up - sum.unreachable;
    if connecting > 0 {
        add(format!("{connecting} connecting"), theme.faint);
    }
    if sum.faults > 0 {
        add(counted(sum.faults, "fault"), theme.bad);
    }
    if sum.gpus > 0 {
        add(counted(sum.gpus, "GPU"), Style::new());
    }
    if let Some(power) = sum.power_w_mean {
        add(format!("mean {power:.0} W"), Style::new());
    }
    match sum.mem_used_mib.zip(sum.mem_total_mib) {
        Some((used, total)) => add(node_table::of_memory(used, total), Style::new()),
        None if sum.gpus > 0 => add("memory unknown".to_owned(), theme.faint),
        None => {}
    }
    if !model.screens.nodes.marked.is_empty() {
        add(format!("{} marked", model.screens.nodes.marked.len()), theme.accent);
    }
    if model.screens.nodes.sort != Sort::default() || model.screens.nodes.reverse {
        let reversed = if model.screens.nodes.reverse { ", reversed" } else { "" };
        add(format!("sorted by {}{reversed}", model.screens.nodes.sort.word()), theme.accent);
    }
    if !model.screens.nodes.filter.is_empty() {
        add(format!("filter \"{}\": {}", model.screens.nodes.filter, model.screens.nodes.order.len()), theme.accent);
    }
    Line::from(spans)
}

/// The width that less important columns leave to the notes on faults.
const NOTE: usize = 18;
/// The width of a note below which the table has none.
const LEAST_NOTE: usize = 6;
/// The width of the columns that are more important than the GPU bars: GPUs and power.
const FIRST_COLUMNS: usize = 14;
/// The columns of the table, in their order.
#[derive(Clone, Copy)]
enum ShownColumn {
    Name,
    Value(&'static NodeColumn),
    Bars,
    Note,
}

/// The columns that fit, and how the bars are drawn.
struct Columns {
    table: Table<ShownColumn>,
    /// The number of GPUs with a bar; 0 without bars.
    bars: usize,
    /// The blank cells between two bars.
    apart: usize,
}

fn columns(model: &Model, shown: &[&NodeView], width: usize) -> Columns {
    let nodes = model.fleet.nodes();
    let name = table::widest(shown.iter().map(|view| view.node.id.as_str())).clamp(6, 32).min((width / 3).max(6));
    let mut table =
        Table::new(width.saturating_sub(4)).with([Column::new(ShownColumn::Name, "node", Align::Left, name)]);
    // The GPU bars are more important than all columns except the first ones.
    let most = nodes.iter().map(|view| view.summary.gpus).max().unwrap_or(0).clamp(5, 16);
    let current = || nodes.iter().filter(|view| is_current(view)).flat_map(NodeView::gpus);
    let title = bar_value(model.screens.nodes.sort).name_and_scale(current());
    let bars = Column::new(ShownColumn::Bars, title, Align::Left, most);
    let has_bars = model.fleet.has_gpus() && table.add([bars], FIRST_COLUMNS + NOTE + GAP);
    for (i, column) in NODE_COLUMNS.iter().filter(|column| node_table::is_shown(column, &model.fleet)).enumerate() {
        let cells = table::widest(shown.iter().filter_map(|view| node_table::cell(column, view)));
        let align = if column.right { Align::Right } else { Align::Left };
        // The notes are more important than all columns after the first three.
        let spare = if i < 3 { 0 } else { NOTE + GAP };
        let width = cells.max(column.width);
        table.add([Column::new(ShownColumn::Value(column), column.title, align, width)], spare);
    }
    // If there is room, leave gaps between the bars: equal bars side by side look like one block.
    let apart = usize::from(has_bars && table.room() >= most + GAP + NOTE);
    table.widen(|column| matches!(column, ShownColumn::Bars), (most - 1) * apart);
    let note = table.room().saturating_sub(GAP);
    // The sort keeps the order of the values.
    table.columns.sort_by_key(|column| matches!(column.of, ShownColumn::Bars));
    if note >= LEAST_NOTE {
        table = table.with([Column::new(ShownColumn::Note, "", Align::Left, note)]);
    }
    Columns { table, bars: if has_bars { most } else { 0 }, apart }
}

fn table(model: &Model, buf: &mut Buffer, area: Rect) {
    let listed = listed(model, area);
    let nodes = model.fleet.nodes();
    let shown: Vec<&NodeView> = (model.screens.nodes.order.iter().skip(model.screens.nodes.top))
        .take(usize::from(listed.below().height))
        .filter_map(|at| nodes.get(*at))
        .collect();
    let columns = columns(model, &shown, usize::from(area.width));
    let line = |at: usize, is_selected: bool| {
        let view = &nodes[model.screens.nodes.order[at]];
        row(model, view, is_selected, &columns)
    };
    listed.draw(model, buf, columns.table.heading(model, 4), line);
}

fn row(model: &Model, view: &NodeView, is_selected: bool, columns: &Columns) -> Line<'static> {
    let faint = model.theme.faint;
    let condition = view.condition(model.now);
    // The values of an unreachable node are old and drawn faint.
    let style = match condition {
        NodeHealth::Unreachable | NodeHealth::Connecting => faint,
        _ if is_selected => model.theme.strong,
        _ => Style::new(),
    };
    let cell = |column: &Column<ShownColumn>| match column.of {
        ShownColumn::Name => Line::from(Span::styled(node_table::name(model, &view.node.id, column.width()), style)),
        ShownColumn::Value(value) => {
            let style = match &view.slurm {
                // Slurm reports the current state even when the node is unreachable.
                Some(slurm) if value.title == "slurm" && !slurm.state.takes_jobs() => model.theme.warn,
                Some(_) if value.title == "slurm" && !is_selected => Style::new(),
                _ => style,
            };
            let text = node_table::cell(value, view).unwrap_or_else(|| model.symbols.none.to_owned());
            Line::from(Span::styled(text, style))
        }
        ShownColumn::Bars => Line::from(bars(model, view, columns)),
        ShownColumn::Note => match note_of(model, view, condition) {
            Some((note, style)) => Line::from(Span::styled(note, style)),
            None => Line::default(),
        },
    };
    let is_marked = model.screens.nodes.marked.contains(&view.node.id);
    let sign = format!("{} ", node_table::glyph(model, condition));
    let margin = vec![
        table::pointer(model, is_selected, is_marked),
        Span::styled(sign, node_table::condition_style(model, condition)),
    ];
    columns.table.line(model, margin, columns.table.columns.iter().map(cell))
}

/// Returns a bar for each GPU of a node.
fn bars(model: &Model, view: &NodeView, columns: &Columns) -> Vec<Span<'static>> {
    let value = bar_value(model.screens.nodes.sort);
    let mut spans = Vec::new();
    for (number, gpu) in view.gpus().iter().take(columns.bars).enumerate() {
        spans.extend((number > 0).then(|| Span::raw(" ".repeat(columns.apart))));
        let (bar, ink) = node_heat::cell(model, value.share(gpu));
        spans.push(match is_current(view) {
            false => Span::styled(node_heat::UNKNOWN, model.theme.faint),
            true if model.fleet.is_outlier(value, gpu) => Span::styled(bar, node_heat::outlier_style(model)),
            true => Span::styled(bar, ink),
        });
    }
    spans
}

/// Returns the quantity that the bars of the table show: the one by which the nodes are sorted, or power.
fn bar_value(sort: Sort) -> GpuValue {
    match sort {
        Sort::Util => GpuValue::Utilization,
        Sort::Memory => GpuValue::Memory,
        Sort::Temperature => GpuValue::Temperature,
        Sort::Faults | Sort::Listed | Sort::Name | Sort::Power | Sort::Processes => GpuValue::Power,
    }
}

/// Returns the note on a node: its first fault, its condition, or the reason from Slurm.
fn note_of(model: &Model, view: &NodeView, condition: NodeHealth) -> Option<(String, Style)> {
    let style = node_table::condition_style(model, condition);
    let reason = view.slurm.as_ref().and_then(slurm::reason).map(|reason| (reason, model.theme.warn));
    Some(match condition {
        NodeHealth::Well => return reason,
        NodeHealth::Unreachable | NodeHealth::Connecting if reason.is_some() => return reason,
        NodeHealth::Connecting => ("connecting".into(), style),
        NodeHealth::Unreachable => (node_table::unreachable(model.now, view), style),
        NodeHealth::Late => (format!("no sample for {}", units::short_duration(view.late_s(model.now)?)), style),
        NodeHealth::Warned | NodeHealth::Faulty => {
            let more = match view.faults.len() {
                0 | 1 => String::new(),
                n => format!(" (+{})", n - 1),
            };
            (format!("{}{more}", view.faults.first()?), style)
        }
    })
}

fn details(model: &Model, buf: &mut Buffer, area: Rect, view: &NodeView) {
    if area.height < 2 {
        return;
    }
    let below = panel(model, buf, area, view.node.id.as_str(), Vec::new(), false);
    let width = usize::from(below.width);
    let mut lines = Vec::new();
    if view.frame.is_some() {
        lines.push(Line::styled(node_table::machine(model, view), model.theme.faint));
    }
    if let Some(slurm) = &view.slurm {
        let style = if slurm.state.takes_jobs() { model.theme.faint } else { model.theme.warn };
        lines.push(Line::styled(slurm::of_node(slurm, model.now), style));
    }
    let condition = view.condition(model.now);
    match (&view.link, condition) {
        (Link::Unreachable { .. }, _) => lines.extend(node_table::unreachable_lines(model, view, width)),
        (_, NodeHealth::Late) => {
            lines.push(Line::styled("Connected, but no samples arrive; nvidia-smi may hang.", model.theme.warn));
        }
        (Link::Connecting, _) => lines.push(Line::styled("Connecting…", model.theme.faint)),
        _ => {}
    }
    if !matches!(view.link, Link::Unreachable { .. }) {
        lines.extend(view.faults.iter().flat_map(|fault| node_table::fault_lines(model, fault, width)));
    }
    lines.extend(node_table::finding_lines(model, &view.node.id, width));
    let room = usize::from(below.height);
    let open = hint(model, &model.keys.name(Context::Nodes, Action::Open), "show details");
    if view.frame.is_some() && lines.len() < room {
        lines.push(Line::from(open));
    }
    write_lines(model, buf, below, lines);
}

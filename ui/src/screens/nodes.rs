//! All watched nodes, a line each: who is up, what they draw, what is wrong.

use crate::advice::finding_in_words;
use crate::effect::Effect;
use crate::fleet::{Condition, Fleet, FleetSource, Link, NodeView, Sort};
use crate::keymap::{Action, Context};
use crate::layout;
use crate::model::{Input, Model, Purpose, Screen};
use crate::msg::RunRow;
use crate::run_state::short_id;
use crate::screens::node;
use crate::slurm;
use crate::text;
use crate::widgets::key_bar::{hint, key_of};
use crate::widgets::{failure_lines, panel, write, write_centered, write_lines};
use cluster::fault::{Fault, FaultWeight};
use cluster::{GpuSample, NodeId};
use health::{Finding, Rule};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use units::counted;

/// Rows of the part below the list.
const DETAILS: u16 = 6;

/// What the Nodes screen remembers.
#[derive(Debug, Clone, Default)]
pub struct NodesScreen {
    /// The selected node; the first one if none was chosen.
    pub selected: Option<NodeId>,
    /// First visible row.
    pub top: usize,
    /// Only nodes that contain this.
    pub filter: String,
    /// What they are sorted by.
    pub sort: Sort,
    /// The other way round.
    pub reverse: bool,
    /// The nodes that pass, in order: places in the fleet. Renewed by the clock, so that rows do not jump about.
    pub order: Vec<usize>,
    /// The screen to go back to.
    pub from: Option<Screen>,
}

/// Shows the nodes that come from there.
pub fn open(model: &mut Model, of: FleetSource) {
    if !matches!(model.screen, Screen::Nodes | Screen::Node) {
        model.nodes.from = Some(model.screen);
    }
    if model.fleet.of != of {
        model.fleet.turn_to(of);
        model.nodes = NodesScreen { from: model.nodes.from, sort: model.nodes.sort, ..NodesScreen::default() };
        model.node = None;
    }
    model.screen = Screen::Nodes;
    renew(model);
}

/// Puts the nodes in order again, and scrolls so that the selected one is visible.
pub fn renew(model: &mut Model) {
    let NodesScreen { sort, reverse, filter, .. } = &model.nodes;
    model.nodes.order = model.fleet.order(*sort, *reverse, filter, model.now);
    keep_selection(model);
}

fn position(model: &Model) -> usize {
    let chosen = model.nodes.selected.as_ref();
    let nodes = model.fleet.nodes();
    let at = |id: &NodeId| model.nodes.order.iter().position(|at| nodes.get(*at).is_some_and(|n| n.node.id == *id));
    chosen.and_then(at).unwrap_or(0)
}

/// Returns the node that keys act on.
pub fn selected(model: &Model) -> Option<&NodeView> {
    model.fleet.nodes().get(*model.nodes.order.get(position(model))?)
}

/// Scrolls so that the selected node is visible.
pub fn keep_selection(model: &mut Model) {
    let rows = usize::from(areas(model).table.height.saturating_sub(1));
    let top = layout::scrolled(model.nodes.top, position(model), rows);
    // No empty rows below while there are nodes above.
    model.nodes.top = top.min(model.nodes.order.len().saturating_sub(rows.max(1)));
}

/// Narrows the list.
pub fn set_filter(model: &mut Model, filter: String) {
    model.nodes.filter = filter;
    model.nodes.top = 0;
    renew(model);
}

/// Reacts to a key.
pub fn on_action(model: &mut Model, action: Action) -> Vec<Effect> {
    let at = position(model);
    let page = usize::from(areas(model).table.height.saturating_sub(2)).max(1);
    let last = model.nodes.order.len().saturating_sub(1);
    let target = match action {
        Action::Up => at.saturating_sub(1),
        Action::Down => at + 1,
        Action::PageUp => at.saturating_sub(page),
        Action::PageDown => at + page,
        Action::Top => 0,
        Action::Bottom => last,
        _ => {
            match action {
                Action::Open => node::open(model),
                Action::Filter => {
                    model.input = Some(Input { purpose: Purpose::NodeFilter, text: model.nodes.filter.clone() });
                }
                Action::Sort => {
                    model.nodes.sort = model.nodes.sort.next();
                    model.nodes.reverse = false;
                    renew(model);
                }
                Action::ReverseSort => {
                    model.nodes.reverse = !model.nodes.reverse;
                    renew(model);
                }
                Action::Back if !model.nodes.filter.is_empty() => set_filter(model, String::new()),
                Action::Back => {
                    let run = model.run.is_some();
                    let back = model.nodes.from.filter(|from| run || !matches!(from, Screen::Run | Screen::Logs));
                    model.screen = back.unwrap_or(Screen::Runs);
                }
                _ => {}
            }
            return Vec::new();
        }
    };
    let target = model.nodes.order.get(target.min(last)).and_then(|at| model.fleet.nodes().get(*at));
    model.nodes.selected = target.map(|view| view.node.id.clone());
    keep_selection(model);
    Vec::new()
}

struct NodesAreas {
    summary: Rect,
    table: Rect,
    details: Rect,
}

fn areas(model: &Model) -> NodesAreas {
    let body = layout::areas(model.size).body;
    let (summary, rest) = layout::cut_top(body, u16::from(body.height >= 5));
    let (_, rest) = layout::cut_top(rest, u16::from(rest.height >= 14));
    let rows = u16::try_from(model.nodes.order.len()).unwrap_or(u16::MAX).saturating_add(2);
    let (table, details) = layout::list_and_details(rest, rows, DETAILS);
    NodesAreas { summary, table, details }
}

/// Draws the screen.
pub fn view(model: &Model, buf: &mut Buffer, body: Rect) {
    match &model.fleet.listed {
        None => {
            write_centered(model, buf, body, vec![Line::styled("Looking for the nodes…", model.theme.faint)]);
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
    if model.nodes.order.is_empty() {
        let nothing = format!("No node matches \"{}\".", model.nodes.filter);
        let clear = hint(model, &key_of(Context::Nodes, Action::Back), "shows all nodes");
        write_centered(model, buf, areas.table, vec![Line::from(nothing), Line::default(), Line::from(clear)]);
        return;
    }
    table(model, buf, areas.table);
    if let Some(view) = selected(model) {
        details(model, buf, areas.details, view);
    }
}

/// All nodes in one line.
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
    // Those listed before are watched on.
    if let Some(Err(failure)) = &model.fleet.listed {
        add(format!("not listed anew: {}", failure.why), theme.warn);
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
    if sum.mem_total_mib > 0 {
        add(of_memory(sum.mem_used_mib, sum.mem_total_mib), Style::new());
    }
    if model.nodes.sort != Sort::Listed {
        let reversed = if model.nodes.reverse { ", reversed" } else { "" };
        add(format!("by {}{reversed}", model.nodes.sort.word()), theme.accent);
    }
    if !model.nodes.filter.is_empty() {
        add(format!("with \"{}\": {}", model.nodes.filter, model.nodes.order.len()), theme.accent);
    }
    Line::from(spans)
}

/// Formats `70.2/79.6 GiB`: memory in use of memory there is.
pub fn of_memory(used_mib: u64, total_mib: u64) -> String {
    let gib = |mib: u64| mib as f64 / 1024.0;
    let (used, total) = (gib(used_mib), gib(total_mib));
    match total {
        0.0..100.0 => format!("{used:.1}/{total:.1} GiB"),
        100.0..10_240.0 => format!("{used:.0}/{total:.0} GiB"),
        _ => format!("{:.1}/{:.1} TiB", used / 1024.0, total / 1024.0),
    }
}

/// One column of the table.
pub struct NodeColumn {
    /// Its heading, and the key of scripts.
    pub title: &'static str,
    width: usize,
    /// Words stand on the left, numbers on the right.
    pub right: bool,
    /// Whether it says nothing where no node has GPUs.
    pub of_gpus: bool,
    cell: fn(&NodeView) -> Option<String>,
}

const fn column(title: &'static str, width: usize, of_gpus: bool, cell: fn(&NodeView) -> Option<String>) -> NodeColumn {
    NodeColumn { title, width, right: true, of_gpus, cell }
}

/// The columns between a node's name and what is wrong with it, the most useful first.
pub const NODE_COLUMNS: [NodeColumn; 10] = [
    NodeColumn {
        right: false,
        ..column("slurm", 5, false, |view| view.slurm.as_ref().map(|slurm| slurm.state.to_string()))
    },
    column("gpus", 4, true, |view| Some(view.summary.gpus.to_string())),
    column("power", 6, true, |view| view.summary.power_w_mean.map(|w| format!("{w:.0} W"))),
    column("memory", 8, false, |view| view.memory_mib().map(|(used, total)| of_memory(used, total))),
    column("util", 5, true, |view| view.summary.util_pct_mean.map(|pct| format!("{pct:.0} %"))),
    column("temp", 5, true, |view| view.summary.temp_c_max.map(|c| format!("{c:.0} °C"))),
    column("procs", 5, true, |view| Some(view.summary.processes.to_string())),
    column("cpu", 5, false, |view| view.summary.cpu_pct.map(|pct| format!("{pct:.0} %"))),
    column("load", 5, false, |view| view.summary.load.map(|load| format!("{load:.1}"))),
    column("clock", 8, true, |view| view.summary.sm_clock_mhz_mean.map(|mhz| format!("{mhz:.0} MHz"))),
];

/// Returns whether a column has something to say of such nodes.
pub fn is_shown(column: &NodeColumn, fleet: &Fleet) -> bool {
    match column.title {
        "slurm" => fleet.is_of_slurm(),
        _ => !column.of_gpus || fleet.has_gpus(),
    }
}

/// A node's text in a column; none where there is nothing to say.
pub fn cell(column: &NodeColumn, view: &NodeView) -> Option<String> {
    // Slurm knows its nodes, seen or not.
    if column.title == "slurm" {
        return (column.cell)(view);
    }
    let says = view.frame.is_some() && (!column.of_gpus || view.summary.gpus > 0 || column.title == "gpus");
    if says { (column.cell)(view) } else { None }
}

/// Cells for what is wrong, at least.
const NOTE: usize = 14;
const GAP: usize = 2;

fn table(model: &Model, buf: &mut Buffer, area: Rect) {
    let faint = model.theme.faint;
    let (top, below) = layout::cut_top(area, 1);
    let nodes = model.fleet.nodes();
    let shown: Vec<&NodeView> = (model.nodes.order.iter().skip(model.nodes.top))
        .take(usize::from(below.height))
        .filter_map(|at| nodes.get(*at))
        .collect();
    let width = usize::from(area.width);
    let name_width = shown.iter().map(|view| text::width(view.node.id.as_str())).max().unwrap_or(0).clamp(6, 32);
    let name_width = name_width.min((width / 3).max(6));
    let has_gpus = model.fleet.has_gpus();
    let mut room = width.saturating_sub(4 + name_width);
    let mut columns: Vec<(&NodeColumn, usize)> = Vec::new();
    for (i, column) in NODE_COLUMNS.iter().filter(|column| is_shown(column, &model.fleet)).enumerate() {
        let cells = shown.iter().filter_map(|view| cell(column, view));
        let wanted = cells.map(|cell| text::width(&cell)).max().unwrap_or(0).max(column.width);
        // What is wrong with a node is worth more than all but the first columns.
        let kept = if i < 3 { 0 } else { NOTE + GAP };
        if wanted + GAP + kept <= room {
            room -= wanted + GAP;
            columns.push((column, wanted));
        }
    }
    let widest = nodes.iter().map(|view| view.summary.gpus).max().unwrap_or(0).clamp(5, 16);
    let bars = has_gpus && room >= widest + GAP + NOTE + GAP;
    let note = room.saturating_sub(GAP + if bars { widest + GAP } else { 0 });

    let mut heading = vec![Span::styled(format!("    {:<name_width$}", "node"), faint)];
    for (column, width) in &columns {
        heading.push(Span::styled(padded(column, *width, column.title), faint));
    }
    if bars {
        heading.push(Span::styled(format!("{:GAP$}{:<widest$}", "", "each"), faint));
    }
    write(model, buf, top, Line::from(heading));

    let chosen = selected(model).map(|view| &view.node.id);
    for (y, view) in (below.top()..below.bottom()).zip(shown) {
        let is_chosen = chosen == Some(&view.node.id);
        let condition = view.condition(model.now);
        // What is not seen now is grey: the numbers are old.
        let style = match condition {
            Condition::Unreachable | Condition::Connecting => faint,
            _ if is_chosen => model.theme.strong,
            _ => Style::new(),
        };
        let pointer = if is_chosen { model.symbols.pointer } else { " " };
        let name = text::fit(view.node.id.as_str(), name_width, model.symbols.ellipsis);
        let pad = " ".repeat(name_width.saturating_sub(text::width(&name)));
        let mut line = vec![
            Span::styled(format!("{pointer} "), model.theme.accent),
            Span::styled(format!("{} ", glyph(model, condition)), condition_style(model, condition)),
            Span::styled(format!("{name}{pad}"), style),
        ];
        for (column, width) in &columns {
            let cell = cell(column, view).unwrap_or_else(|| model.symbols.none.to_owned());
            let style = match &view.slurm {
                // Slurm's word is of now.
                Some(slurm) if column.title == "slurm" && !slurm.state.takes_jobs() => model.theme.warn,
                Some(_) if column.title == "slurm" && !is_chosen => Style::new(),
                _ => style,
            };
            line.push(Span::styled(padded(column, *width, &cell), style));
        }
        if bars {
            let bars = power_bars(model, view.gpus());
            let fill = " ".repeat(widest.saturating_sub(text::width(&bars)));
            let ink = if condition == Condition::Unreachable { faint } else { model.theme.lines[0] };
            line.extend([Span::raw(" ".repeat(GAP)), Span::styled(bars + &fill, ink)]);
        }
        if note >= 6
            && let Some((said, style)) = said(model, view, condition)
        {
            line.push(Span::raw(" ".repeat(GAP)));
            line.push(Span::styled(text::fit(&said, note, model.symbols.ellipsis), style));
        }
        write(model, buf, Rect { y, height: 1, ..area }, Line::from(line));
    }
}

fn padded(column: &NodeColumn, width: usize, cell: &str) -> String {
    let fill = " ".repeat(width.saturating_sub(text::width(cell)));
    if column.right { format!("{:GAP$}{fill}{cell}", "") } else { format!("{:GAP$}{cell}{fill}", "") }
}

/// Returns the sign of a condition.
pub fn glyph(model: &Model, condition: Condition) -> &'static str {
    use crate::run_state::StateKind::*;
    let state = match condition {
        Condition::Well => Running,
        Condition::Connecting => Starting,
        Condition::Warned | Condition::Late => Stalled,
        Condition::Faulty => Failed,
        Condition::Unreachable => New,
    };
    model.symbols.states[state as usize]
}

/// Returns the colour of a condition. What cannot be seen is grey, never red: nobody knows how it is.
pub fn condition_style(model: &Model, condition: Condition) -> Style {
    match condition {
        Condition::Well => model.theme.good,
        Condition::Connecting | Condition::Unreachable => model.theme.faint,
        Condition::Warned | Condition::Late => model.theme.warn,
        Condition::Faulty => model.theme.bad,
    }
}

/// What there is to say of a node besides its numbers.
fn said(model: &Model, view: &NodeView, condition: Condition) -> Option<(String, Style)> {
    let style = condition_style(model, condition);
    let reason = view.slurm.as_ref().and_then(slurm::reason).map(|reason| (reason, model.theme.warn));
    Some(match condition {
        Condition::Well => return reason,
        Condition::Unreachable | Condition::Connecting if reason.is_some() => return reason,
        Condition::Connecting => ("connecting".into(), style),
        Condition::Unreachable => (unreachable(model.now, view), style),
        Condition::Late => (format!("silent for {}", units::short_duration(view.late_s(model.now)?)), style),
        Condition::Warned | Condition::Faulty => {
            let more = match view.faults.len() {
                0 | 1 => String::new(),
                n => format!(" (+{})", n - 1),
            };
            (format!("{}{more}", view.faults.first()?), style)
        }
    })
}

/// Says since when a node has been out of sight.
pub fn unreachable(now: f64, view: &NodeView) -> String {
    match &view.link {
        Link::Unreachable { since_s, .. } => format!("unreachable {}", units::short_duration(now - since_s)),
        _ => String::new(),
    }
}

/// What each GPU draws of what it may, in one cell each.
pub fn power_bars(model: &Model, gpus: &[GpuSample]) -> String {
    let levels = &model.symbols.levels;
    let bar = |gpu: &GpuSample| match (gpu.power_w.value(), gpu.power_limit_w.value()) {
        (Some(power), Some(limit)) if limit > 0.0 => {
            let at = (power / limit * levels.len() as f64).clamp(0.0, levels.len() as f64 - 1.0);
            levels[at as usize]
        }
        (Some(_), _) => levels[0],
        (None, _) => model.symbols.not_finite,
    };
    gpus.iter().take(16).map(bar).collect()
}

/// Returns a fault as a line, with what to do.
pub fn fault_line(model: &Model, fault: &Fault) -> Line<'static> {
    let (condition, style) = match fault.weight {
        FaultWeight::Warn => (Condition::Warned, model.theme.warn),
        FaultWeight::Bad => (Condition::Faulty, model.theme.bad),
    };
    Line::from(vec![
        Span::styled(format!("{} {fault}", glyph(model, condition)), style),
        Span::styled(format!("  {}", fault.fix), model.theme.faint),
    ])
}

/// Returns what was found of a node by watching its runs for some time, as lines. What one look at it shows is among its
/// faults already.
pub fn finding_lines(model: &Model, node: &NodeId) -> Vec<Line<'static>> {
    let at_once = [Rule::NodeLost, Rule::GpuLost, Rule::Ecc, Rule::Xid, Rule::Throttled, Rule::Smi];
    let found = model.rows().iter().flat_map(|row| row.findings.iter().map(move |finding| (row, finding)));
    let of_node = found.filter(|(_, f)| f.about.node() == Some(node) && !at_once.contains(&f.rule));
    let line = |(row, finding): (&RunRow, &Finding)| {
        let said = format!("{} {}", glyph(model, Condition::Warned), finding_in_words(model.now, finding));
        Line::from(vec![
            Span::styled(said, model.theme.warn),
            Span::styled(format!("  {}: {}", short_id(&row.run), finding.fix), model.theme.faint),
        ])
    };
    of_node.map(line).collect()
}

/// Returns what a machine is, in one line: its GPUs' model, its processors and memory.
pub fn machine(model: &Model, view: &NodeView) -> String {
    let dot = format!(" {} ", model.symbols.separator);
    let summary = &view.summary;
    let mut facts = Vec::new();
    match view.gpus().first() {
        Some(gpu) => {
            let name = gpu.name.as_deref().unwrap_or("GPU");
            let times = if model.symbols.braille { "×" } else { "x" };
            facts.push(format!("{} {times} {name}", summary.gpus));
        }
        None if view.frame.is_some() => facts.push("no GPUs".to_owned()),
        None => {}
    }
    facts.extend(summary.cpu_pct.map(|pct| format!("CPU {pct:.0} %")));
    facts.extend(summary.load.map(|load| format!("load {load:.1}")));
    let memory = summary.mem_used_mib.zip(summary.mem_total_mib);
    facts.extend(memory.map(|(used, total)| format!("memory {}", of_memory(used, total))));
    facts.join(&dot)
}

fn details(model: &Model, buf: &mut Buffer, area: Rect, view: &NodeView) {
    if area.height < 2 {
        return;
    }
    let below = panel(model, buf, area, view.node.id.as_str(), Vec::new(), false);
    let mut lines = Vec::new();
    if view.frame.is_some() {
        lines.push(Line::styled(machine(model, view), model.theme.faint));
    }
    if let Some(slurm) = &view.slurm {
        let style = if slurm.state.takes_jobs() { model.theme.faint } else { model.theme.warn };
        lines.push(Line::styled(slurm::of_node(slurm, model.now), style));
    }
    let condition = view.condition(model.now);
    match (&view.link, condition) {
        (Link::Unreachable { why, .. }, _) => {
            lines.push(Line::styled(unreachable(model.now, view), model.theme.faint));
            lines.extend(failure_lines(model, why, usize::from(below.width)));
        }
        (_, Condition::Late) => {
            lines.push(Line::styled("It is connected and says nothing: nvidia-smi may hang.", model.theme.warn));
        }
        (Link::Connecting, _) => lines.push(Line::styled("Connecting…", model.theme.faint)),
        _ => {}
    }
    if !matches!(view.link, Link::Unreachable { .. }) {
        lines.extend(view.faults.iter().map(|fault| fault_line(model, fault)));
    }
    lines.extend(finding_lines(model, &view.node.id));
    let room = usize::from(below.height);
    let open = hint(model, &key_of(Context::Nodes, Action::Open), "shows what runs on it");
    if view.frame.is_some() && lines.len() < room {
        lines.push(Line::from(open));
    }
    write_lines(model, buf, below, lines);
}

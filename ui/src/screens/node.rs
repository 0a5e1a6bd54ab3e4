//! The Node screen: shows the GPUs of one node with meters and history and the processes with their owners, or the
//! output of nvidia-smi.

use crate::bindings::Action;
use crate::effect::{Effect, Watch};
use crate::fleet::{Link, NodeHealth, NodeView};
use crate::layout;
use crate::model::{Model, NodeScreen, Screen, Session};
use crate::run_state::short_id;
use crate::screens::node_gpus::{self, GpuColumns};
use crate::screens::node_history::{self, Lanes};
use crate::screens::{Behaviour, Press, Wheel, history_cursor, node_table, nodes, open_with_node, processes};
use crate::text;
use crate::widgets::{failure_lines, panel, write, write_centered, write_lines};
use cluster::{GpuProcess, NodeId};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::text::{Line, Span};
use rundir::{Failure, RunId};
use std::collections::BTreeSet;

/// Opens the selected node.
pub fn open(model: &mut Model) {
    if let Some(id) = model.selected_node().map(|view| view.node.id.clone()) {
        show(model, id);
    }
}

fn show(model: &mut Model, id: NodeId) {
    let raw = model.screens.node.as_ref().is_some_and(|node| node.raw);
    if model.screens.node.as_ref().is_none_or(|node| node.id != id) {
        model.screens.node = Some(NodeScreen { id: id.clone(), raw, smi: None, scroll: 0 });
    }
    model.screens.nodes.selected = Some(id);
    model.screen = Screen::Node;
}

/// Stores the output of nvidia-smi if the node is still open.
pub fn on_smi(model: &mut Model, node: &NodeId, output: Result<String, Failure>) {
    if let Some(open) = model.screens.node.as_mut().filter(|open| open.id == *node) {
        open.smi = Some(output);
    }
}

/// The screen.
pub struct Node;

impl Behaviour for Node {
    fn on_action(&self, model: &mut Model, action: Action) -> Vec<Effect> {
        let room = usize::from(areas(model).1.height).max(1);
        let lines = lines_of(model);
        let last = lines.saturating_sub(room);
        let Some(node) = &mut model.screens.node else { return Vec::new() };
        if let Some(to) = layout::moved(action, node.scroll.min(last), room, last) {
            node.scroll = to;
            return Vec::new();
        }
        match action {
            Action::RawText => (node.raw, node.scroll) = (!node.raw, 0),
            Action::Processes => processes::open(model),
            Action::ZoomIn | Action::ZoomOut => nodes::zoom(model, action),
            Action::CursorLeft | Action::CursorRight => history_cursor::step(model, action == Action::CursorRight),
            Action::Kill => return processes::kill_on_nodes(model),
            Action::NodeNext | Action::NodePrevious => {
                step(model, action == Action::NodeNext);
                nodes::keep_selection(model);
            }
            Action::Back => model.screen = Screen::Nodes,
            _ => {}
        }
        Vec::new()
    }

    fn view(&self, model: &Model, buf: &mut Buffer, body: Rect) {
        let Some((open, view)) = opened(model) else {
            let faint = |text: String| vec![Line::styled(text, model.theme.faint)];
            let gone = match (&model.screens.node, &model.fleet.listed) {
                (Some(_), None) => faint("Loading nodes…".to_owned()),
                (Some(_), Some(Err(failure))) => failure_lines(model, failure, usize::from(body.width.min(76))),
                (Some(open), Some(Ok(()))) => faint(format!("{} is no longer listed", open.id)),
                (None, _) => Vec::new(),
            };
            write_centered(model, buf, body, gone);
            return;
        };
        let (head, rest) = areas(model);
        write(model, buf, head, head_line(model, view));
        let width = usize::from(rest.width);
        let total = lines_of(model);
        let room = usize::from(rest.height);
        let top = open.scroll.min(total.saturating_sub(room));
        if open.raw {
            let below =
                panel(model, buf, rest, "nvidia-smi", position(model, top, room.saturating_sub(1), total), false);
            let lines: Vec<Line<'static>> = match &open.smi {
                None => vec![Line::styled("Running nvidia-smi…", model.theme.faint)],
                Some(Err(failure)) => failure_lines(model, failure, width),
                Some(Ok(output)) => {
                    output.lines().skip(top).take(room).map(|line| Line::from(text::clean(line))).collect()
                }
            };
            write_lines(model, buf, below, lines);
            return;
        }
        let lines = NodeLines::of(model, view, width, room);
        let columns = GpuColumns::new(model, view, width);
        let mut drawn: Option<(usize, Buffer)> = None;
        for (y, row) in (rest.top()..rest.bottom()).zip(lines.rows.into_iter().skip(top)) {
            let line = Rect { y, height: 1, ..rest };
            match row {
                NodeLine::Text(text) => write(model, buf, line, text),
                NodeLine::Heading(title, value) => drop(panel(model, buf, line, &title, value, false)),
                NodeLine::Gpu { at, row, history } => {
                    let Some(gpu) = view.gpus().get(at) else { continue };
                    // A GPU is drawn as a whole into a separate buffer, from which its visible rows are copied.
                    if drawn.as_ref().is_none_or(|(gpu, _)| *gpu != at) {
                        let area = Rect::new(0, 0, rest.width, history as u16 + 1);
                        let mut all = Buffer::empty(area);
                        node_gpus::draw(model, view, gpu, &columns, &mut all, area);
                        drawn = Some((at, all));
                    }
                    let Some((_, all)) = &drawn else { continue };
                    for x in 0..rest.width {
                        if let (Some(to), Some(from)) = (buf.cell_mut((rest.x + x, y)), all.cell((x, row as u16))) {
                            *to = from.clone();
                        }
                    }
                }
            }
        }
        let (lanes, below) = history_area(model, view);
        node_history::view(model, view, lanes, buf, below);
    }

    fn can_open(&self, model: &Model) -> bool {
        model.selected_node().is_some()
    }

    fn open(&self, model: &mut Model) {
        open_with_node(model, open);
    }

    fn tab(&self) -> Action {
        Action::ShowNodes
    }

    fn subject(&self, model: &Model, _: usize) -> String {
        model.nodes_source()
    }

    fn on_tick(&self, model: &mut Model) {
        nodes::on_tick(model);
    }

    fn watches(&self, model: &Model, wanted: &mut BTreeSet<Watch>) {
        wanted.insert(Watch::Nodes(model.fleet.of.clone()));
        let Some(open) = &model.screens.node else { return };
        nodes::watch_history(model, model.fleet.node(&open.id), wanted);
        if open.raw {
            wanted.insert(Watch::Smi { of: model.fleet.of.clone(), node: open.id.clone() });
        }
    }

    fn on_press(&self, model: &mut Model, at: Position) -> Press {
        self.on_drag(model, at);
        Press::Done
    }

    fn on_drag(&self, model: &mut Model, at: Position) {
        if let Some(plot) = history_at(model, at) {
            history_cursor::put(model, plot, at.x);
        }
    }

    fn on_wheel(&self, model: &mut Model, at: Position, direction: Action) -> Wheel {
        match history_at(model, at) {
            Some(_) => nodes::zoom_by_wheel(model, direction),
            None => Wheel::Scroll,
        }
    }

    fn save(&self, model: &Model, session: &mut Session) {
        nodes::save(model, session);
        session.node = model.screens.node.as_ref().map(|open| open.id.clone()).or(session.node.take());
    }

    fn restore(&self, model: &mut Model, session: &Session) -> Screen {
        model.screens.node = session.node.clone().map(NodeScreen::new);
        if model.screens.node.is_some() { Screen::Node } else { Screen::Nodes }
    }
}

/// Opens the next or previous node of the list.
fn step(model: &mut Model, forward: bool) {
    let nodes = model.fleet.nodes();
    let order: Vec<&NodeId> =
        model.screens.nodes.order.iter().filter_map(|at| Some(&nodes.get(*at)?.node.id)).collect();
    let at = model.screens.node.as_ref().and_then(|open| order.iter().position(|id| **id == open.id));
    let to = match at {
        Some(at) if forward => (at + 1).min(order.len() - 1),
        Some(at) => at.saturating_sub(1),
        None => 0,
    };
    if let Some(id) = order.get(to).map(|id| (*id).clone()) {
        show(model, id);
    }
}

/// Returns the areas of the first line and of the scrollable part.
fn areas(model: &Model) -> (Rect, Rect) {
    let body = layout::areas(model.size).body;
    let (head, rest) = layout::cut_top(body, 1);
    (head, layout::cut_top(rest, u16::from(rest.height >= 14)).1)
}

fn opened(model: &Model) -> Option<(&NodeScreen, &NodeView)> {
    let open = model.screens.node.as_ref()?;
    Some((open, model.fleet.node(&open.id)?))
}

/// Returns the area of the history below the other lines, and the lanes that it shows.
fn history_area(model: &Model, view: &NodeView) -> (Lanes, Rect) {
    let lines = u16::try_from(lines_of(model) + 1).unwrap_or(u16::MAX);
    let lanes = if view.gpus().is_empty() { Lanes::All } else { Lanes::OfNode };
    (lanes, layout::cut_top(areas(model).1, lines).1)
}

/// Returns the area of the lines in the history of the node or of a GPU, if a position of the terminal is in it.
fn history_at(model: &Model, at: Position) -> Option<Rect> {
    let (open, view) = opened(model).filter(|(open, _)| !open.raw)?;
    let (lanes, area) = history_area(model, view);
    let of_node = node_history::plot(model, view, lanes, area).filter(|plot| plot.contains(at));
    of_node.or_else(|| gpu_history_at(model, open, view, at))
}

/// Returns the row of a GPU's history at a position of the terminal.
fn gpu_history_at(model: &Model, open: &NodeScreen, view: &NodeView, at: Position) -> Option<Rect> {
    let rest = areas(model).1;
    if !rest.contains(at) {
        return None;
    }
    let lines = NodeLines::of(model, view, usize::from(rest.width), usize::from(rest.height));
    let top = open.scroll.min(lines.rows.len().saturating_sub(usize::from(rest.height)));
    let line = lines.rows.get(top + usize::from(at.y - rest.y))?;
    if !matches!(line, NodeLine::Gpu { row: 1.., .. }) {
        return None;
    }
    let columns = GpuColumns::new(model, view, usize::from(rest.width));
    let (x, width) = columns.history_at(usize::from(at.x - rest.x))?;
    Some(Rect { x: rest.x + x as u16, y: at.y, width: width as u16, height: 1 })
}

/// Returns which lines are visible; empty if all lines fit.
fn position(model: &Model, top: usize, room: usize, total: usize) -> Vec<Span<'static>> {
    match total > room {
        true => {
            vec![Span::styled(format!("lines {}-{} of {total}", top + 1, (top + room).min(total)), model.theme.faint)]
        }
        false => Vec::new(),
    }
}

/// Returns the number of lines of the scrollable part.
fn lines_of(model: &Model) -> usize {
    let Some((open, view)) = opened(model) else { return 0 };
    match &open.smi {
        // The heading takes a row too.
        Some(Ok(output)) if open.raw => output.lines().count() + 1,
        _ if open.raw => 1,
        _ => {
            let area = areas(model).1;
            NodeLines::of(model, view, usize::from(area.width), usize::from(area.height)).rows.len()
        }
    }
}

fn head_line(model: &Model, view: &NodeView) -> Line<'static> {
    let condition = view.condition(model.now);
    let sign = format!("{} {}", node_table::glyph(model, condition), view.state(model.now));
    let mut spans = vec![
        Span::styled(sign, node_table::condition_style(model, condition)),
        Span::raw("  "),
        Span::styled(view.node.id.to_string(), model.theme.strong),
    ];
    if view.frame.is_some() {
        spans.push(Span::styled(format!("  {}", node_table::machine(model, view)), model.theme.faint));
    }
    Line::from(spans)
}

enum NodeLine {
    Text(Line<'static>),
    Heading(String, Vec<Span<'static>>),
    /// One row of a GPU: row 0 shows the meters, and the `history` rows below show the history.
    Gpu {
        at: usize,
        row: usize,
        history: usize,
    },
}

/// The lines of the scrollable part.
struct NodeLines {
    rows: Vec<NodeLine>,
}

impl NodeLines {
    fn of(model: &Model, view: &NodeView, width: usize, room: usize) -> Self {
        let mut lines = Self { rows: Vec::new() };
        let faint = model.theme.faint;
        match (&view.link, view.condition(model.now)) {
            (Link::Unreachable { .. }, _) => {
                node_table::unreachable_lines(model, view, width).into_iter().for_each(|line| lines.text(line));
                if view.frame.is_some() {
                    lines.text(Line::styled("The last sample is below.", faint));
                }
                lines.text(Line::default());
            }
            (_, NodeHealth::Late) => {
                let late = units::short_duration(view.late_s(model.now).unwrap_or(0.0));
                let text = format!("No sample for {late}: the node is connected, but nvidia-smi may hang.");
                lines.text(Line::styled(text, model.theme.warn));
                lines.text(Line::default());
            }
            (Link::Connecting, _) => lines.text(Line::styled("Connecting…", faint)),
            _ if !view.faults.is_empty() => {
                let faults = view.faults.iter().flat_map(|fault| node_table::fault_lines(model, fault, width));
                faults.for_each(|line| lines.text(line));
                lines.text(Line::default());
            }
            _ => {}
        }
        let found = node_table::finding_lines(model, &view.node.id, width);
        if !found.is_empty() {
            found.into_iter().for_each(|line| lines.text(line));
            lines.text(Line::default());
        }
        let Some(frame) = &view.frame else { return lines };
        // The history of a node without GPUs is drawn below these lines.
        if frame.gpus.is_empty() {
            return lines;
        }
        let mut processes: Vec<(Option<u32>, &GpuProcess)> =
            frame.gpus.iter().flat_map(|gpu| gpu.processes.iter().map(|process| (Some(gpu.index), process))).collect();
        processes.extend(frame.elsewhere.iter().map(|process| (None, process)));
        let gpus = frame.gpus.len();
        // Two heading rows each for GPUs and processes, and an empty row between them. A long list of processes
        // scrolls.
        let others = lines.rows.len() + 5 + processes.len().clamp(1, gpus.max(8));
        let history = node_gpus::history_rows(gpus, others, room);
        let power = view.summary.power_w.map(|watts| Span::styled(format!("{watts:.0} W"), model.theme.strong));
        let mut value = Vec::new();
        let columns = GpuColumns::new(model, view, width);
        if history > 0 {
            let window = units::short_duration(model.screens.nodes.window.seconds());
            let scale = if columns.has_all_meters() { "on the scale of the meter" } else { "from 0 to the limit" };
            value.push(Span::styled(format!("history of {window}, {scale}  "), faint));
        }
        match history_cursor::time(model) {
            Some(t) => value.push(Span::styled(format!("values of {}", units::ago(model.now, t)), model.theme.strong)),
            None => value.extend(power),
        }
        lines.heading("GPUs", value);
        lines.text(Line::styled(columns.heading(view), faint));
        for at in 0..gpus {
            lines.rows.extend((0..=history).map(|row| NodeLine::Gpu { at, row, history }));
        }
        lines.text(Line::default());
        let count = Span::styled(processes.len().to_string(), model.theme.strong);
        lines.heading("Processes", vec![count]);
        if processes.is_empty() {
            lines.text(Line::styled("No processes on the GPUs", faint));
            return lines;
        }
        let has_usage = width >= USAGE_WIDTH;
        let usage = if has_usage { "     cpu  host mem" } else { "" };
        let heading = format!("gpu      pid  user        rank  memory{usage}      age     run, command");
        lines.text(Line::styled(heading, faint));
        for (gpu, process) in processes {
            lines.text(process_line(model, view, (gpu, process), has_usage));
        }
        lines
    }

    fn text(&mut self, line: Line<'static>) {
        self.rows.push(NodeLine::Text(line));
    }

    fn heading(&mut self, title: &str, value: Vec<Span<'static>>) {
        self.rows.push(NodeLine::Heading(title.to_owned(), value));
    }
}

/// The width from which the processes have columns for CPU and memory of the node.
const USAGE_WIDTH: usize = 110;

fn process_line(
    model: &Model,
    view: &NodeView,
    (gpu, process): (Option<u32>, &GpuProcess),
    has_usage: bool,
) -> Line<'static> {
    let none = || model.symbols.none.to_owned();
    let gpu = gpu.map_or_else(none, |index| index.to_string());
    let pid = process.pid.value().map_or_else(none, |pid| pid.to_string());
    let memory = process.mem_used_mib.value().map_or_else(none, |mib| units::short_size(mib << 20));
    let owner = process.owner.as_ref();
    let user = owner.map_or_else(none, |owner| text::fit(&text::clean(&owner.user), 10, model.symbols.ellipsis));
    let rank = owner.and_then(|owner| owner.rank).map_or_else(none, |rank| rank.to_string());
    let age = owner.map_or_else(none, |owner| units::short_duration(owner.age_s as f64));
    let usage = if has_usage {
        let cpu = process.pid.value().and_then(|pid| view.process_cpu_pct.get(&pid));
        let cpu = cpu.map_or_else(none, |pct| format!("{pct:.0} %"));
        let host = owner.and_then(|owner| owner.host_mem_mib);
        let host = host.map_or_else(none, |mib| units::short_size(mib << 20));
        format!("  {cpu:>6}  {host:>8}")
    } else {
        String::new()
    };
    let text = format!("{gpu:>3}  {pid:>7}  {user:<10}  {rank:>4}  {memory:>7}{usage}  {age:>7}     ");
    let mut spans = vec![Span::raw(text)];
    let run = owner.and_then(|owner| owner.run.as_deref());
    if let Some(run) = run {
        let name = RunId::parse(run).map_or_else(|_| run.to_owned(), |id| short_id(&id).to_owned());
        spans.push(Span::styled(format!("{}  ", text::clean(&name)), model.theme.accent));
    }
    let command = owner.map_or(process.name.as_str(), |owner| owner.command.as_str());
    spans.push(Span::styled(text::clean(command), model.theme.faint));
    Line::from(spans)
}

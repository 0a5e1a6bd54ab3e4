//! The Node screen: GPUs, processes with their owners, or the output of nvidia-smi.

use crate::bindings::Action;
use crate::effect::Effect;
use crate::fleet::{Link, NodeHealth, NodeView};
use crate::layout;
use crate::model::{Model, NodeScreen, Screen};
use crate::run_state::short_id;
use crate::screens::{node_table, processes};
use crate::text;
use crate::widgets::{failure_lines, panel, write, write_centered, write_lines};
use cluster::{GpuProcess, GpuSample, NodeId, Reading};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use rundir::{Failure, RunId};
use std::collections::VecDeque;

/// Opens the selected node.
pub fn open(model: &mut Model) {
    if let Some(id) = model.selected_node().map(|view| view.node.id.clone()) {
        show(model, id);
    }
}

fn show(model: &mut Model, id: NodeId) {
    let raw = model.node.as_ref().is_some_and(|node| node.raw);
    if model.node.as_ref().is_none_or(|node| node.id != id) {
        model.node = Some(NodeScreen { id: id.clone(), raw, smi: None, scroll: 0 });
    }
    model.nodes.selected = Some(id);
    model.screen = Screen::Node;
}

/// Records the output of nvidia-smi on the open node.
pub fn on_smi(model: &mut Model, node: &NodeId, output: Result<String, Failure>) {
    if let Some(open) = model.node.as_mut().filter(|open| open.id == *node) {
        open.smi = Some(output);
    }
}

/// Handles an action.
pub fn on_action(model: &mut Model, action: Action) -> Vec<Effect> {
    let room = usize::from(areas(model).1.height).max(1);
    let lines = lines_of(model);
    let last = lines.saturating_sub(room);
    let Some(node) = &mut model.node else { return Vec::new() };
    if let Some(to) = layout::moved(action, node.scroll.min(last), room, last) {
        node.scroll = to;
        return Vec::new();
    }
    match action {
        Action::RawText => (node.raw, node.scroll) = (!node.raw, 0),
        Action::Processes => processes::open(model),
        Action::Kill => return processes::kill_on_nodes(model),
        Action::NodeNext | Action::NodePrevious => step(model, action == Action::NodeNext),
        Action::Back => model.screen = Screen::Nodes,
        _ => {}
    }
    Vec::new()
}

/// Opens the next or previous node of the list.
fn step(model: &mut Model, forward: bool) {
    let nodes = model.fleet.nodes();
    let order: Vec<&NodeId> = model.nodes.order.iter().filter_map(|at| Some(&nodes.get(*at)?.node.id)).collect();
    let at = model.node.as_ref().and_then(|open| order.iter().position(|id| **id == open.id));
    let to = match at {
        Some(at) if forward => (at + 1).min(order.len() - 1),
        Some(at) => at.saturating_sub(1),
        None => 0,
    };
    if let Some(id) = order.get(to).map(|id| (*id).clone()) {
        show(model, id);
    }
}

/// Returns the areas of the head and of the scrolled part.
fn areas(model: &Model) -> (Rect, Rect) {
    let body = layout::areas(model.size).body;
    let (head, rest) = layout::cut_top(body, 1);
    (head, layout::cut_top(rest, u16::from(rest.height >= 14)).1)
}

fn opened(model: &Model) -> Option<(&NodeScreen, &NodeView)> {
    let open = model.node.as_ref()?;
    Some((open, model.fleet.node(&open.id)?))
}

/// Draws the screen.
pub fn view(model: &Model, buf: &mut Buffer, body: Rect) {
    let Some((open, view)) = opened(model) else {
        let gone = model.node.as_ref().map_or_else(String::new, |open| format!("{} is no longer listed", open.id));
        write_centered(model, buf, body, vec![Line::styled(gone, model.theme.faint)]);
        return;
    };
    let (head, rest) = areas(model);
    write(model, buf, head, head_line(model, view));
    let width = usize::from(rest.width);
    let total = lines_of(model);
    let room = usize::from(rest.height);
    let top = open.scroll.min(total.saturating_sub(room));
    if open.raw {
        let below = panel(model, buf, rest, "nvidia-smi", position(model, top, room.saturating_sub(1), total), false);
        let lines: Vec<Line<'static>> = match &open.smi {
            None => vec![Line::styled("Running nvidia-smi…", model.theme.faint)],
            Some(Err(failure)) => failure_lines(model, failure, width),
            Some(Ok(output)) => output.lines().skip(top).take(room).map(|line| Line::from(text::clean(line))).collect(),
        };
        write_lines(model, buf, below, lines);
        return;
    }
    let lines = NodeLines::of(model, view, width);
    for (y, row) in (rest.top()..rest.bottom()).zip(lines.rows.into_iter().skip(top)) {
        let at = Rect { y, height: 1, ..rest };
        match row {
            NodeLine::Text(line) => write(model, buf, at, line),
            NodeLine::Heading(title, value) => drop(panel(model, buf, at, &title, value, false)),
        }
    }
}

/// Returns the scroll position, if the text does not fit.
fn position(model: &Model, top: usize, room: usize, total: usize) -> Vec<Span<'static>> {
    match total > room {
        true => {
            vec![Span::styled(format!("lines {}-{} of {total}", top + 1, (top + room).min(total)), model.theme.faint)]
        }
        false => Vec::new(),
    }
}

/// Returns the number of lines to scroll through.
fn lines_of(model: &Model) -> usize {
    let Some((open, view)) = opened(model) else { return 0 };
    match &open.smi {
        // The heading takes a row too.
        Some(Ok(output)) if open.raw => output.lines().count() + 1,
        _ if open.raw => 1,
        _ => NodeLines::of(model, view, usize::from(areas(model).1.width)).rows.len(),
    }
}

fn head_line(model: &Model, view: &NodeView) -> Line<'static> {
    let condition = view.condition(model.now);
    let sign = format!("{} {}", node_table::glyph(model, condition), condition.word());
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
}

/// The scrolled part, a few dozen lines per node.
struct NodeLines {
    rows: Vec<NodeLine>,
}

impl NodeLines {
    fn of(model: &Model, view: &NodeView, width: usize) -> Self {
        let mut lines = Self { rows: Vec::new() };
        let faint = model.theme.faint;
        match (&view.link, view.condition(model.now)) {
            (Link::Unreachable { why, .. }, _) => {
                let since = match view.frame {
                    Some(_) => format!("{}; the last sample is below", node_table::unreachable(model.now, view)),
                    None => node_table::unreachable(model.now, view),
                };
                lines.text(Line::styled(since, faint));
                failure_lines(model, why, width).into_iter().for_each(|line| lines.text(line));
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
        if frame.gpus.is_empty() {
            lines.heading("CPU", Vec::new());
            let trace = view.traces.first().map(|trace| sparkline(model, trace, width.saturating_sub(12), Some(100.0)));
            let now = view.summary.cpu_pct.map_or_else(|| model.symbols.none.to_owned(), |pct| format!("{pct:.0} %"));
            lines.text(Line::from(vec![
                Span::raw(format!("CPU {now:>6}  ")),
                Span::styled(trace.unwrap_or_default(), model.theme.lines[0]),
            ]));
            return lines;
        }
        let power = view.summary.power_w.map(|watts| Span::styled(format!("{watts:.0} W"), model.theme.strong));
        lines.heading("GPUs", power.into_iter().collect());
        lines.text(Line::styled(GPU_HEADING, faint));
        for gpu in &frame.gpus {
            lines.text(gpu_line(model, view, gpu, width));
        }
        lines.text(Line::default());
        let mut processes: Vec<(Option<u32>, &GpuProcess)> =
            frame.gpus.iter().flat_map(|gpu| gpu.processes.iter().map(|process| (Some(gpu.index), process))).collect();
        processes.extend(frame.elsewhere.iter().map(|process| (None, process)));
        let count = Span::styled(processes.len().to_string(), model.theme.strong);
        lines.heading("Processes", vec![count]);
        if processes.is_empty() {
            lines.text(Line::styled("No processes on the GPUs", faint));
            return lines;
        }
        lines.text(Line::styled(PROCESS_HEADING, faint));
        for (gpu, process) in processes {
            lines.text(process_line(model, gpu, process));
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

const GPU_HEADING: &str = "gpu        power   util         memory   temp     clock";

fn gpu_line(model: &Model, view: &NodeView, gpu: &GpuSample, width: usize) -> Line<'static> {
    let none = model.symbols.none;
    let reading = |reading: &Reading<f64>, unit: &str| match reading.value() {
        Some(value) => format!("{value:.0} {unit}"),
        None => none.to_owned(),
    };
    let power = match (gpu.power_w.value(), gpu.power_limit_w.value()) {
        (Some(power), Some(limit)) => format!("{power:.0}/{limit:.0} W"),
        (Some(power), None) => format!("{power:.0} W"),
        _ => none.to_owned(),
    };
    let memory = match (gpu.mem_used_mib.value(), gpu.mem_total_mib.value()) {
        (Some(used), Some(total)) => node_table::of_memory(used, total),
        (Some(used), None) => units::short_size(used << 20),
        _ => none.to_owned(),
    };
    let util = if gpu.mig { "MIG".to_owned() } else { reading(&gpu.util_pct, "%") };
    let (temp, clock) = (reading(&gpu.temp_c, "°C"), reading(&gpu.sm_clock_mhz, "MHz"));
    let text = format!("{:>3}  {power:>11}  {util:>5}  {memory:>13}  {temp:>5}  {clock:>8}", gpu.index);
    let used = text::width(&text);
    let fault = view.faults.iter().find(|fault| fault.gpu == Some(gpu.index));
    let stale = matches!(view.link, Link::Unreachable { .. });
    let mut spans = vec![Span::styled(text, if stale { model.theme.faint } else { Style::new() })];
    let mut room = width.saturating_sub(used + 2);
    if let Some(fault) = fault {
        let note = text::fit(&fault.what, room.min(40), model.symbols.ellipsis);
        room = room.saturating_sub(text::width(&note) + 2);
        spans.push(Span::styled(format!("  {note}"), node_table::condition_style(model, NodeHealth::Faulty)));
    }
    if room >= 8
        && let Some(trace) = view.traces.get(gpu.index as usize)
    {
        let ink = if stale { model.theme.faint } else { model.theme.lines[0] };
        let line = sparkline(model, trace, room.min(100), gpu.power_limit_w.value());
        spans.extend([Span::raw("  "), Span::styled(line, ink)]);
    }
    Line::from(spans)
}

/// Draws values in one row, oldest first, scaled from 0 to `most`; a missing value is a gap.
fn sparkline(model: &Model, trace: &VecDeque<f32>, width: usize, most: Option<f64>) -> String {
    let levels = &model.symbols.levels;
    let highest = trace.iter().copied().filter(|value| value.is_finite()).fold(0.0, f32::max);
    let most = most.map_or(highest, |most| most as f32).max(f32::MIN_POSITIVE);
    // If there are more values than cells, each cell shows the mean of several.
    let each = trace.len().div_ceil(width.max(1)).max(1);
    // Cells are counted from the first value, so that they do not change when values are added.
    let cell = |values: &[f32]| {
        let finite: Vec<f32> = values.iter().copied().filter(|value| value.is_finite()).collect();
        if finite.is_empty() {
            return " ";
        }
        let mean = finite.iter().sum::<f32>() / finite.len() as f32;
        let at = (mean / most * levels.len() as f32).clamp(0.0, levels.len() as f32 - 1.0);
        levels[at as usize]
    };
    let values: Vec<f32> = trace.iter().copied().collect();
    values.chunks(each).map(cell).collect()
}

const PROCESS_HEADING: &str = "gpu      pid  user        rank  memory      age     run, command";

fn process_line(model: &Model, gpu: Option<u32>, process: &GpuProcess) -> Line<'static> {
    let none = || model.symbols.none.to_owned();
    let gpu = gpu.map_or_else(none, |index| index.to_string());
    let pid = process.pid.value().map_or_else(none, |pid| pid.to_string());
    let memory = process.mem_used_mib.value().map_or_else(none, |mib| units::short_size(mib << 20));
    let owner = process.owner.as_ref();
    let user = owner.map_or_else(none, |owner| text::fit(&text::clean(&owner.user), 10, model.symbols.ellipsis));
    let rank = owner.and_then(|owner| owner.rank).map_or_else(none, |rank| rank.to_string());
    let age = owner.map_or_else(none, |owner| units::short_duration(owner.age_s as f64));
    let text = format!("{gpu:>3}  {pid:>7}  {user:<10}  {rank:>4}  {memory:>7}  {age:>7}     ");
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

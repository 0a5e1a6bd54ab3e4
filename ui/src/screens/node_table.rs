//! Functions that the Nodes screen, the Node screen and `vidtui nodes` share: table columns, glyphs, faults and
//! findings.

use crate::advice::finding_in_words;
use crate::fleet::{Fleet, Link, NodeHealth, NodeView};
use crate::model::Model;
use crate::msg::RunRow;
use crate::run_state::short_id;
use crate::screens::node_history;
use crate::text;
use cluster::NodeId;
use cluster::fault::{Fault, FaultSeverity};
use health::{Finding, Rule};
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

/// Formats used and total memory: `70.2/79.6 GiB`.
pub fn of_memory(used_mib: u64, total_mib: u64) -> String {
    let gib = |mib: u64| mib as f64 / 1024.0;
    let (used, total) = (gib(used_mib), gib(total_mib));
    match total {
        0.0..100.0 => format!("{used:.1}/{total:.1} GiB"),
        100.0..10_240.0 => format!("{used:.0}/{total:.0} GiB"),
        _ => format!("{:.1}/{:.1} TiB", used / 1024.0, total / 1024.0),
    }
}

/// One column of the table of nodes.
pub struct NodeColumn {
    /// The heading, which is also the name of the column for scripts.
    pub title: &'static str,
    pub(super) width: usize,
    /// Whether the cells are aligned right.
    pub right: bool,
    /// Whether only nodes with GPUs have values; without such nodes, the column is hidden.
    pub of_gpus: bool,
    cell: fn(&NodeView) -> Option<String>,
}

const fn column(title: &'static str, width: usize, of_gpus: bool, cell: fn(&NodeView) -> Option<String>) -> NodeColumn {
    NodeColumn { title, width, right: true, of_gpus, cell }
}

/// The columns between the name of a node and the note, the most useful first.
pub const NODE_COLUMNS: [NodeColumn; 12] = [
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
    column("network", 10, false, |view| {
        let summary = &view.summary;
        Some(node_history::rate(summary.net_rx_bytes_per_s?.max(summary.net_tx_bytes_per_s?) as f32))
    }),
    column("ib", 10, false, |view| {
        let summary = &view.summary;
        Some(node_history::rate(summary.ib_rx_bytes_per_s?.max(summary.ib_tx_bytes_per_s?) as f32))
    }),
];

/// Returns whether a column has values for these nodes.
pub fn is_shown(column: &NodeColumn, fleet: &Fleet) -> bool {
    match column.title {
        "slurm" => fleet.is_of_slurm(),
        "network" | "ib" => fleet.nodes().iter().any(|view| cell(column, view).is_some()),
        _ => !column.of_gpus || fleet.has_gpus(),
    }
}

/// Returns the text of a node in a column; `None` if there is no value.
pub fn cell(column: &NodeColumn, view: &NodeView) -> Option<String> {
    // Slurm reports the state even when the node is unreachable.
    if column.title == "slurm" {
        return (column.cell)(view);
    }
    let has_value = view.frame.is_some() && (!column.of_gpus || view.summary.gpus > 0 || column.title == "gpus");
    if has_value { (column.cell)(view) } else { None }
}

/// Returns the glyph of a condition.
pub fn glyph(model: &Model, condition: NodeHealth) -> &'static str {
    use crate::run_state::StateKind::*;
    let state = match condition {
        NodeHealth::Well => Running,
        NodeHealth::Connecting => Starting,
        NodeHealth::Warned | NodeHealth::Late => Stalled,
        NodeHealth::Faulty => Failed,
        NodeHealth::Unreachable => New,
    };
    model.symbols.states[state as usize]
}

/// Returns the colour of a condition. An unreachable node is grey, not red: its state is unknown.
pub fn condition_style(model: &Model, condition: NodeHealth) -> Style {
    match condition {
        NodeHealth::Well => model.theme.good,
        NodeHealth::Connecting | NodeHealth::Unreachable => model.theme.faint,
        NodeHealth::Warned | NodeHealth::Late => model.theme.warn,
        NodeHealth::Faulty => model.theme.bad,
    }
}

/// Returns the name of a node in at most `max` cells. The end of an IPv6 address is more useful than its beginning.
pub fn name(model: &Model, node: &NodeId, max: usize) -> String {
    let ellipsis = model.symbols.ellipsis;
    if node.is_ipv6() { text::fit_end(node.as_str(), max, ellipsis) } else { text::fit(node.as_str(), max, ellipsis) }
}

/// Returns the state of an unreachable node and for how long it has had it: `refused 2 min`; empty if the node is reachable.
pub fn unreachable(now: f64, view: &NodeView) -> String {
    match &view.link {
        Link::Unreachable { since_s, .. } => format!("{} {}", view.state(now), units::short_duration(now - since_s)),
        _ => String::new(),
    }
}

/// Returns the state of an unreachable node, for how long it has had it, the reason and the hint, on one line if they fit; empty if
/// the node is reachable.
pub fn unreachable_lines(model: &Model, view: &NodeView, width: usize) -> Vec<Line<'static>> {
    let Link::Unreachable { since_s, why } = &view.link else { return Vec::new() };
    let (state, time) = (view.state(model.now), units::short_duration(model.now - since_s));
    let clean = |text: &str| text::clean(&text.replace('\n', " "));
    with_hint(model, format!("{state} for {time}: {}", clean(&why.why)), Style::new(), &clean(&why.fix), width)
}

/// Returns the glyph and the colour of a fault.
pub fn fault_sign(model: &Model, severity: FaultSeverity) -> (&'static str, Style) {
    match severity {
        FaultSeverity::Warn => (glyph(model, NodeHealth::Warned), model.theme.warn),
        FaultSeverity::Bad => (glyph(model, NodeHealth::Faulty), model.theme.bad),
    }
}

/// Returns a fault with its hint, on one line if both fit.
pub fn fault_lines(model: &Model, fault: &Fault, width: usize) -> Vec<Line<'static>> {
    let (sign, style) = fault_sign(model, fault.severity);
    with_hint(model, format!("{sign} {fault}"), style, &fault.fix, width)
}

/// Returns a text and its hint on one line, or below each other and wrapped if they do not fit.
fn with_hint(model: &Model, text: String, style: Style, hint: &str, width: usize) -> Vec<Line<'static>> {
    if text::width(&text) + 2 + text::width(hint) <= width {
        return vec![Line::from(vec![Span::styled(text, style), Span::styled(format!("  {hint}"), model.theme.faint)])];
    }
    let indented = |text: &str| text::wrap(text, width.saturating_sub(2));
    let first = text::wrap(&text, width).into_iter().map(|line| Line::styled(line, style));
    let rest = indented(hint).into_iter().map(|line| Line::styled(format!("  {line}"), model.theme.faint));
    first.chain(rest).collect()
}

/// Returns the findings about a node from the health checks of its runs, as lines. Rules that need only one sample
/// are left out, because the faults of the node already include them.
pub fn finding_lines(model: &Model, node: &NodeId, width: usize) -> Vec<Line<'static>> {
    let at_once = [Rule::NodeLost, Rule::GpuLost, Rule::Ecc, Rule::Xid, Rule::Throttled, Rule::Smi];
    let found = model.rows().iter().flat_map(|row| row.findings.iter().map(move |finding| (row, finding)));
    let of_node = found.filter(|(_, f)| f.about.node() == Some(node) && !at_once.contains(&f.rule));
    let lines = |(row, finding): (&RunRow, &Finding)| {
        let text = format!("{} {}", glyph(model, NodeHealth::Warned), finding_in_words(model.now, finding));
        with_hint(model, text, model.theme.warn, &format!("{}: {}", short_id(&row.run), finding.fix), width)
    };
    of_node.flat_map(lines).collect()
}

/// Returns the hardware and the load of a node as one line: GPU model, CPU, memory.
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

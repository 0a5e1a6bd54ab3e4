//! The details of the selected process. A large terminal also shows the state of its run, the other processes of that
//! run, and the totals of each node.

use crate::bindings::{Action, Context};
use crate::fleet::NodeView;
use crate::model::{Model, ProcessesScreen};
use crate::msg::RunRow;
use crate::run_state::StateKind;
use crate::screens::node_heat;
use crate::screens::node_table::of_memory;
use crate::screens::processes::is_orphan;
use crate::screens::run_sections;
use crate::text;
use crate::widgets::aligned;
use crate::widgets::details::{self, Section};
use crate::widgets::hint;
use crate::widgets::table::{self, Align};
use cluster::{GpuSample, NodeId};
use plan::ListedProcess;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use std::collections::BTreeSet;
use units::counted;

/// Draws the details.
pub fn view(
    model: &Model,
    buf: &mut Buffer,
    area: Rect,
    open: &ProcessesScreen,
    node: &NodeId,
    process: &ListedProcess,
) {
    if area.height < 2 {
        return;
    }
    let width = details::width(model.size, area);
    let title = format!("process {} on {node}", process.pid);
    let lines = match details::has_more(model.size) {
        true => all_facts(model, open, node, process, width),
        false => few_facts(model, process, width),
    };
    let run = || -> Vec<Section> {
        let row = run_of(model, process);
        row.map(|row| run_sections::state_section(model, row, None, width)).into_iter().collect()
    };
    let beside =
        || -> Vec<Section> { [nodes(model, open)].into_iter().chain(others(model, open, node, process)).collect() };
    details::view(model, buf, area, Section::new(title, Vec::new(), lines), run, beside);
}

fn run_of<'a>(model: &'a Model, process: &ListedProcess) -> Option<&'a RunRow> {
    let run = process.run.as_deref()?;
    model.rows().iter().find(|row| row.run.as_str() == run)
}

fn few_facts(model: &Model, process: &ListedProcess, width: usize) -> Vec<Line<'static>> {
    let mut facts = vec![
        text::clean(&process.user),
        format!("started {} ago", units::short_duration(process.age_s as f64)),
        format!("process group {}", process.pgid),
        format!("parent {}", process.parent),
    ];
    facts.extend(process.rank.map(|rank| format!("rank {rank}")));
    facts.extend(process.on_gpu.then(|| format!("{} of GPU memory", gpu_memory(process))));
    let dot = format!(" {} ", model.symbols.separator);
    let mut lines = vec![Line::styled(facts.join(&dot), model.theme.faint)];
    if process.run.is_some() {
        lines.extend(ownership(model, process, width));
    }
    lines.extend(text::wrap(&text::clean(&process.command), width).into_iter().map(Line::from));
    lines
}

/// Returns the run that a process belongs to, and why it is an orphan process.
fn ownership(model: &Model, process: &ListedProcess, width: usize) -> Vec<Line<'static>> {
    let text = match (&process.run, run_of(model, process)) {
        (None, _) => "Belongs to no run, as far as its environment can be read".to_owned(),
        (Some(run), Some(row)) if row.state.is_end() => {
            format!("Orphan process of {run}, which has ended ({})", StateKind::of(&row.state).word())
        }
        (Some(run), Some(row)) => format!("Belongs to {run} ({})", StateKind::of(&row.state).word()),
        (Some(run), None) => format!("Belongs to {}, which is not in {}", text::clean(run), model.runs_dir),
    };
    let style = if is_orphan(model, process) { model.theme.warn } else { Style::new() };
    text::wrap(&text, width).into_iter().map(|line| Line::styled(line, style)).collect()
}

fn all_facts(
    model: &Model,
    open: &ProcessesScreen,
    node: &NodeId,
    process: &ListedProcess,
    width: usize,
) -> Vec<Line<'static>> {
    let listed = open.listed.get(node).and_then(|listed| listed.as_ref().ok());
    let is_other_user = listed.is_some_and(|listed| listed.uid != process.uid);
    let parent = listed.and_then(|listed| listed.processes.iter().find(|other| other.pid == process.parent));
    let mut lines = ownership(model, process, width);
    lines.push(Line::default());
    let facts = [
        ("user", format!("{}{}", process.user, if is_other_user { ", another user" } else { "" })),
        ("started", format!("{} ago", units::duration(process.age_s as f64))),
        ("state", state_in_words(process.state)),
        ("rank", process.rank.map(|rank| rank.to_string()).unwrap_or_default()),
        ("GPU memory", if process.on_gpu { shown_memory(process.gpu_mib, units::size) } else { String::new() }),
        ("GPUs", gpus(model, node, process.pid)),
        (
            "parent",
            format!("{}{}", process.parent, parent.map_or(String::new(), |parent| format!(" {}", parent.command))),
        ),
        ("group", format!("{}, session {}", process.pgid, process.session)),
        ("command", process.command.clone()),
    ];
    lines.extend(aligned::facts(model, &facts, width));
    if is_orphan(model, process) {
        let key = model.keys.name(Context::Processes, Action::Kill);
        lines.extend([Line::default(), Line::from(hint(model, &key, "kill it (shows the plan first)"))]);
    }
    lines
}

/// Returns the state letter of a process in words (`man 5 proc_pid_stat`).
fn state_in_words(state: char) -> String {
    match state {
        'R' => "running".to_owned(),
        'S' => "sleeping".to_owned(),
        'D' => "uninterruptible sleep: waits for I/O, and signals take effect after it".to_owned(),
        'T' | 't' => "stopped by a signal or a debugger".to_owned(),
        'Z' => "zombie: has ended, and its parent has not read its exit status".to_owned(),
        other => text::clean(&other.to_string()),
    }
}

/// Returns the GPUs that a process uses, with their utilization and memory: `3 (97 %, 69.3/79.6 GiB)`.
fn gpus(model: &Model, node: &NodeId, pid: i32) -> String {
    let is_used = |gpu: &&GpuSample| {
        gpu.processes.iter().any(|process| process.pid.value().map(i64::from) == Some(i64::from(pid)))
    };
    let text = |gpu: &GpuSample| {
        let memory = gpu.mem_used_mib.value().zip(gpu.mem_total_mib.value());
        let facts = [
            gpu.util_pct.value().map(|pct| format!("{pct:.0} %")),
            memory.map(|(used, total)| of_memory(used, total)),
            gpu.temp_c.value().map(|c| format!("{c:.0} °C")),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        if facts.is_empty() { gpu.index.to_string() } else { format!("{} ({})", gpu.index, facts.join(", ")) }
    };
    let all = model.fleet.node(node).map_or(&[][..], NodeView::gpus);
    all.iter().filter(is_used).map(text).collect::<Vec<_>>().join(", ")
}

/// Returns the memory of a process on a GPU as text.
pub fn gpu_memory(process: &ListedProcess) -> String {
    shown_memory(process.gpu_mib, units::short_size)
}

/// Returns a size in MiB as text, or that it is not known.
fn shown_memory(mib: Option<u64>, size: fn(u64) -> String) -> String {
    mib.map_or_else(|| node_heat::UNKNOWN.to_owned(), |mib| size(mib << 20))
}

/// Returns the memory that processes hold on GPUs; the glyph for no value if none of them is on a GPU.
fn memory<'a>(model: &Model, processes: impl Iterator<Item = &'a ListedProcess>) -> String {
    let held = processes.filter(|process| process.on_gpu).map(|process| process.gpu_mib);
    let total = held.reduce(|sum, mib| Some(sum?.saturating_add(mib?)));
    total.map_or_else(|| model.symbols.none.to_owned(), |mib| shown_memory(mib, units::short_size))
}

/// Returns the processes of each node: how many, how many of them are orphans, and the memory that they hold.
fn nodes(model: &Model, open: &ProcessesScreen) -> Section {
    let theme = &model.theme;
    let ended: BTreeSet<&str> =
        model.rows().iter().filter(|row| row.state.is_end()).map(|row| row.run.as_str()).collect();
    let columns = [
        ("node", Align::Left),
        ("processes", Align::Right),
        ("of yours", Align::Right),
        ("orphans", Align::Right),
        ("GPU memory", Align::Right),
        ("GPUs", Align::Right),
        ("utilization", Align::Right),
    ];
    let (mut all, mut orphans) = (0, 0);
    let mut row = |node: &NodeId| {
        let name = Span::raw(node.to_string());
        let listed = match open.listed.get(node) {
            Some(Ok(listed)) => listed,
            Some(Err(_)) => return vec![name, Span::styled("unreachable", theme.warn)],
            None => return vec![name, Span::styled("listing", theme.faint)],
        };
        let is_of_ended = |process: &&ListedProcess| process.run.as_deref().is_some_and(|run| ended.contains(run));
        let left = listed.processes.iter().filter(is_of_ended).count();
        let own = listed.processes.iter().filter(|process| process.uid == listed.uid).count();
        all += listed.processes.len();
        orphans += left;
        let summary = model.fleet.node(node).filter(|view| view.frame.is_some()).map(|view| &view.summary);
        let none = || model.symbols.none.to_owned();
        vec![
            name,
            Span::raw(listed.processes.len().to_string()),
            Span::raw(own.to_string()),
            Span::styled(left.to_string(), if left > 0 { theme.warn } else { Style::new() }),
            Span::raw(memory(model, listed.processes.iter())),
            Span::raw(summary.map_or_else(none, |summary| summary.gpus.to_string())),
            Span::raw(summary.and_then(|sum| sum.util_pct_mean).map_or_else(none, |pct| format!("{pct:.0} %"))),
        ]
    };
    let rows = open.nodes.iter().map(&mut row).collect();
    let mut value = vec![Span::styled(counted(all, "process"), theme.strong)];
    value.extend((orphans > 0).then(|| Span::styled(format!(", {}", counted(orphans, "orphan")), theme.warn)));
    Section::new("Nodes", value, table::lines(model, &columns, rows))
}

/// Returns the other listed processes of the run of a process.
fn others(model: &Model, open: &ProcessesScreen, node: &NodeId, process: &ListedProcess) -> Option<Section> {
    let run = process.run.as_ref()?;
    let key = process.key(node);
    let rows = open.rows().into_iter();
    let others: Vec<(&NodeId, &ListedProcess)> =
        rows.filter(|(node, other)| other.run.as_ref() == Some(run) && other.key(node) != key).collect();
    if others.is_empty() {
        return None;
    }
    let columns = [
        ("node", Align::Left),
        ("pid", Align::Right),
        ("rank", Align::Right),
        ("age", Align::Right),
        ("GPU memory", Align::Right),
        ("command", Align::Left),
    ];
    let cells = |(node, process): &(&NodeId, &ListedProcess)| {
        let rank = process.rank.map_or_else(|| model.symbols.none.to_owned(), |rank| rank.to_string());
        vec![
            Span::raw(node.to_string()),
            Span::raw(process.pid.to_string()),
            Span::raw(rank),
            Span::raw(units::short_duration(process.age_s as f64)),
            Span::raw(memory(model, [*process].into_iter())),
            Span::styled(text::clean(&process.command), model.theme.faint),
        ]
    };
    let lines = |most: usize| table::lines(model, &columns, others.iter().take(most).map(cells).collect());
    Some(Section::of_first(model, "Other processes of this run", others.len(), lines))
}

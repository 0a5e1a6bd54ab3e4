//! The Processes screen: lists the processes of some nodes that use GPUs or belong to training, with their owners.

use crate::action_plan::ActionRequest;
use crate::bindings::{Action, Context};
use crate::effect::Effect;
use crate::jobs::Intent;
use crate::layout;
use crate::model::{Model, ProcessesScreen, Screen};
use crate::run_state::{StateKind, short_id};
use crate::screens::process_details;
use crate::text;
use crate::widgets::{details, failure_lines, hint, write, write_centered, write_lines};
use cluster::NodeId;
use plan::{KillScope, ListedProcess, NodeProcesses, ProcessKey};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use rundir::{Failure, RunId};
use std::collections::BTreeSet;
use units::counted;

/// Rows of the details below the list.
const DETAILS: u16 = 6;

/// Opens the screen with the processes of the open node, of the marked nodes, or else of the selected node.
pub fn open(model: &mut Model) {
    let nodes = nodes(model);
    if nodes.is_empty() {
        return;
    }
    if model.processes.as_ref().is_none_or(|open| open.nodes != nodes) {
        let scope = model.processes.as_ref().map_or(KillScope::Own, |open| open.scope);
        model.processes = Some(ProcessesScreen::new(nodes, scope, model.screen));
    } else if let Some(open) = &mut model.processes {
        open.from = model.screen;
    }
    model.screen = Screen::Processes;
}

/// Returns the nodes to which keys apply: the open node on the Node screen, else the marked nodes, else the selected
/// one.
fn nodes(model: &Model) -> Vec<NodeId> {
    match (model.screen, &model.node) {
        (Screen::Node, Some(open)) => vec![open.id.clone()],
        _ if !model.nodes.marked.is_empty() => {
            let all = model.fleet.nodes().iter().map(|view| view.node.id.clone());
            all.filter(|node| model.nodes.marked.contains(node)).collect()
        }
        _ => model.selected_node().map(|view| view.node.id.clone()).into_iter().collect(),
    }
}

/// Requests the plan that ends all training of the user on the open node, on the marked nodes, or else on the
/// selected node.
pub fn kill_on_nodes(model: &mut Model) -> Vec<Effect> {
    let nodes = nodes(model);
    if nodes.is_empty() {
        return Vec::new();
    }
    plan(model, nodes, KillScope::Own, None)
}

fn plan(model: &mut Model, nodes: Vec<NodeId>, scope: KillScope, chosen: Option<BTreeSet<ProcessKey>>) -> Vec<Effect> {
    if model.jobs.planning_action() {
        model.warn("A kill is already being prepared");
        return Vec::new();
    }
    let what = format!("listing the processes of {}", counted(nodes.len(), "node"));
    let job = model.jobs.start(Intent::PlanAction { what });
    let request = ActionRequest::KillOnNodes { of: model.fleet.of.clone(), nodes, scope, chosen };
    vec![Effect::PlanAction { job, request }]
}

/// Stores the processes of a node, and drops the marks of processes that have ended.
pub fn on_listed(model: &mut Model, node: NodeId, listed: Result<NodeProcesses, Failure>) {
    let Some(open) = model.processes.as_mut().filter(|open| open.nodes.contains(&node)) else { return };
    open.listed.insert(node, listed);
    let live: BTreeSet<ProcessKey> = open.rows().iter().map(|(node, process)| process.key(node)).collect();
    open.marked.retain(|key| live.contains(key));
    keep_selection(model);
}

/// Scrolls to the selected process.
pub fn keep_selection(model: &mut Model) {
    let rows = usize::from(areas(model).1.height.saturating_sub(1));
    if let Some(open) = &mut model.processes {
        open.top = layout::scrolled(open.top, open.position(), rows);
        open.top = open.top.min(open.rows().len().saturating_sub(rows.max(1)));
    }
}

/// Handles an action.
pub fn on_action(model: &mut Model, action: Action) -> Vec<Effect> {
    let page = usize::from(areas(model).1.height.saturating_sub(2)).max(1);
    let Some(open) = &mut model.processes else { return Vec::new() };
    let (at, rows) = (open.position(), open.rows().len());
    let key_at = |open: &ProcessesScreen, at: usize| open.rows().get(at).map(|(node, process)| process.key(node));
    if let Some(to) = layout::moved(action, at, page, rows.saturating_sub(1)) {
        open.selected = key_at(open, to);
        keep_selection(model);
        return Vec::new();
    }
    match action {
        Action::Mark => {
            if let Some(key) = key_at(open, at)
                && !open.marked.remove(&key)
            {
                open.marked.insert(key);
            }
            open.selected = key_at(open, (at + 1).min(rows.saturating_sub(1)));
            keep_selection(model);
        }
        Action::AllUsers => {
            open.scope = if open.scope == KillScope::Own { KillScope::AllUsers } else { KillScope::Own };
            let live: BTreeSet<ProcessKey> = open.rows().iter().map(|(node, process)| process.key(node)).collect();
            open.marked.retain(|key| live.contains(key));
            keep_selection(model);
        }
        Action::Kill => {
            let marked = (!open.marked.is_empty()).then(|| open.marked.clone());
            let Some(chosen) = marked.or_else(|| Some(BTreeSet::from([key_at(open, at)?]))) else {
                return Vec::new();
            };
            let nodes = open.nodes.iter().filter(|node| chosen.iter().any(|key| key.node == **node)).cloned();
            let (nodes, scope) = (nodes.collect(), open.scope);
            return plan(model, nodes, scope, Some(chosen));
        }
        Action::Back if !open.marked.is_empty() => open.marked.clear(),
        Action::Back => model.screen = open.from,
        _ => {}
    }
    Vec::new()
}

/// Returns the areas of the summary, the table and the details.
fn areas(model: &Model) -> (Rect, Rect, Rect) {
    let body = layout::areas(model.size).body;
    let (summary, rest) = layout::cut_top(body, u16::from(body.height >= 5));
    let (_, rest) = layout::cut_top(rest, u16::from(rest.height >= 14));
    let rows = model.processes.as_ref().map_or(0, |open| open.rows().len() + open.away().count());
    let rows = u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(2);
    let (table, details) = layout::list_and_details(rest, rows, details::least_rows(model.size, DETAILS));
    (summary, table, details)
}

/// Returns the number of processes from the selected one to the one at a row of the terminal.
pub fn processes_until(model: &Model, row: u16) -> Option<isize> {
    let open = model.processes.as_ref()?;
    let list = layout::cut_top(areas(model).1, 1).1;
    layout::entries_until(list, row, open.top, open.position(), open.rows().len())
}

/// Draws the screen.
pub fn view(model: &Model, buf: &mut Buffer, body: Rect) {
    let Some(open) = &model.processes else { return };
    let (top, area, below) = areas(model);
    write(model, buf, top, summary(model, open));
    let (rows, away) = (open.rows(), open.away().count());
    if rows.is_empty() && away == 0 {
        let text = if open.listed.len() < open.nodes.len() {
            format!("Listing processes{}", model.symbols.ellipsis)
        } else {
            "No process uses GPUs or belongs to training".to_owned()
        };
        let all =
            Line::from(hint(model, &model.keys.name(Context::Processes, Action::AllUsers), "include other users"));
        let lines = vec![Line::styled(text, model.theme.faint), Line::default(), all];
        let lines = if open.scope == KillScope::Own { lines } else { lines.into_iter().take(1).collect() };
        write_centered(model, buf, Rect { y: area.y, height: body.bottom().saturating_sub(area.y), ..area }, lines);
        return;
    }
    table(model, buf, area, open, &rows);
    match rows.get(open.position()) {
        Some((node, process)) => process_details::view(model, buf, below, open, node, process),
        None => {
            let why = open.away().next().map(|(_, why)| failure_lines(model, why, usize::from(below.width)));
            write_lines(model, buf, below, why.into_iter().flatten());
        }
    }
}

fn summary(model: &Model, open: &ProcessesScreen) -> Line<'static> {
    let theme = &model.theme;
    let dot = format!(" {} ", model.symbols.separator);
    let whose = if open.scope == KillScope::Own { " of yours" } else { "" };
    let on = match &open.nodes[..] {
        [only] => only.to_string(),
        nodes => counted(nodes.len(), "node"),
    };
    let mut spans = vec![
        Span::styled(format!("{}{whose}", counted(open.rows().len(), "process")), theme.strong),
        Span::raw(format!(" on {on}")),
    ];
    let mut add = |text: String, style: Style| spans.push(Span::styled(format!("{dot}{text}"), style));
    let hidden = open.hidden();
    if hidden > 0 {
        add(format!("{hidden} of other users"), theme.faint);
    }
    if !open.marked.is_empty() {
        add(format!("{} marked", open.marked.len()), theme.accent);
    }
    match open.away().count() {
        0 => {}
        n => add(format!("{n} unreachable"), theme.warn),
    }
    Line::from(spans)
}

/// One column of the table.
struct ProcessColumn {
    title: &'static str,
    right: bool,
    cell: fn(&Model, &NodeId, &ListedProcess) -> String,
}

/// The columns before the command, in their order. On a narrow terminal, columns with a higher number are left out
/// first.
static COLUMNS: [(u8, ProcessColumn); 7] = [
    (0, ProcessColumn { title: "node", right: false, cell: |_, node, _| node.to_string() }),
    (0, ProcessColumn { title: "pid", right: true, cell: |_, _, process| process.pid.to_string() }),
    (2, ProcessColumn { title: "user", right: false, cell: |_, _, process| text::clean(&process.user) }),
    (0, ProcessColumn { title: "run", right: false, cell: |model, _, process| run_name(model, process) }),
    (
        1,
        ProcessColumn {
            title: "rank",
            right: true,
            cell: |model, _, process| process.rank.map_or_else(|| model.symbols.none.to_owned(), |r| r.to_string()),
        },
    ),
    (0, ProcessColumn { title: "age", right: true, cell: |_, _, process| units::short_duration(process.age_s as f64) }),
    (
        1,
        ProcessColumn {
            title: "GPU memory",
            right: true,
            cell: |model, _, process| match process.on_gpu {
                true => process_details::gpu_memory(process),
                false => model.symbols.none.to_owned(),
            },
        },
    ),
];

/// The minimum width of the command.
const COMMAND: usize = 20;
const GAP: usize = 2;

fn table(model: &Model, buf: &mut Buffer, area: Rect, open: &ProcessesScreen, rows: &[(&NodeId, &ListedProcess)]) {
    let faint = model.theme.faint;
    let (top, below) = layout::cut_top(area, 1);
    let width_of = |column: &ProcessColumn| {
        let cells = rows.iter().map(|(node, process)| text::width(&(column.cell)(model, node, process)));
        cells.chain([text::width(column.title)]).max().unwrap_or(0).min(24)
    };
    let mut columns: Vec<(u8, &ProcessColumn, usize)> =
        COLUMNS.iter().map(|(order, column)| (*order, column, width_of(column))).collect();
    if open.nodes.len() == 1 {
        columns.remove(0);
    }
    let room = usize::from(area.width).saturating_sub(2 + COMMAND);
    for order in [2, 1] {
        if columns.iter().map(|(_, _, width)| width + GAP).sum::<usize>() > room {
            columns.retain(|(other, ..)| *other != order);
        }
    }
    let padded = |column: &ProcessColumn, width: usize, cell: &str| {
        let cell = text::fit(cell, width, model.symbols.ellipsis);
        let fill = " ".repeat(width.saturating_sub(text::width(&cell)));
        if column.right { format!("{fill}{cell}{:GAP$}", "") } else { format!("{cell}{fill}{:GAP$}", "") }
    };
    let mut heading = "  ".to_owned();
    columns.iter().for_each(|(_, column, width)| heading += &padded(column, *width, column.title));
    write(model, buf, top, Line::styled(heading + "command", faint));

    let lines = rows.iter().enumerate().map(|(i, (node, process))| {
        let is_chosen = i == open.position();
        let is_marked = open.marked.contains(&process.key(node));
        let pointer = if is_chosen { model.symbols.pointer } else { " " };
        let mark = if is_marked { model.symbols.mark } else { " " };
        let style = if is_chosen { model.theme.strong } else { Style::new() };
        let mut line = vec![Span::styled(format!("{pointer}{mark}"), model.theme.accent)];
        for (_, column, width) in &columns {
            let style = match column.title {
                "run" if is_orphan(model, process) => model.theme.warn,
                _ => style,
            };
            line.push(Span::styled(padded(column, *width, &(column.cell)(model, node, process)), style));
        }
        line.push(Span::styled(text::clean(&process.command), if is_chosen { style } else { faint }));
        Line::from(line)
    });
    let away = open.away().map(|(node, _)| {
        let glyph = model.symbols.states[StateKind::Unknown as usize];
        Line::styled(format!("{glyph} {node}  unreachable: its processes are unknown"), model.theme.warn)
    });
    write_lines(model, buf, below, lines.chain(away).skip(open.top));
}

/// Returns the short id of the run of a process, or the glyph for no value.
fn run_name(model: &Model, process: &ListedProcess) -> String {
    match process.run.as_deref() {
        Some(run) => RunId::parse(run).map_or_else(|_| text::clean(run), |id| short_id(&id).to_owned()),
        None => model.symbols.none.to_owned(),
    }
}

/// Returns whether a process belongs to a run that has ended.
pub fn is_orphan(model: &Model, process: &ListedProcess) -> bool {
    let id = process.run.as_deref().and_then(|run| RunId::parse(run).ok());
    let row = id.and_then(|id| model.rows().iter().find(|row| row.run == id));
    row.is_some_and(|row| row.state.is_end())
}

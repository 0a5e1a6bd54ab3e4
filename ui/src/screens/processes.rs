//! The Processes screen: lists the processes of some nodes that use GPUs or belong to training, with their owners.

use crate::action_plan::ActionRequest;
use crate::bindings::{Action, Context};
use crate::effect::{Effect, Request, Watch};
use crate::jobs::Intent;
use crate::layout;
use crate::model::{Model, ProcessesScreen, Screen, Session};
use crate::run_state::{StateKind, short_id};
use crate::screens::{Behaviour, Press, nodes, open_with_node, process_details};
use crate::text;
use crate::widgets::table::{self, Align, Column, GAP, Rows, Table};
use crate::widgets::{details, failure_lines, hint, write, write_centered, write_lines};
use cluster::NodeId;
use plan::{KillScope, ListedProcess, NodeProcesses, ProcessKey};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
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
    if model.screens.processes.as_ref().is_none_or(|open| open.nodes != nodes) {
        let scope = model.screens.processes.as_ref().map_or(KillScope::Own, |open| open.scope);
        model.screens.processes = Some(ProcessesScreen::new(nodes, scope, model.screen));
    } else if let Some(open) = &mut model.screens.processes {
        open.from = model.screen;
    }
    model.screen = Screen::Processes;
}

/// Returns the nodes to which keys apply: the open node on the Node screen, else the marked nodes, else the selected
/// one.
fn nodes(model: &Model) -> Vec<NodeId> {
    match (model.screen, &model.screens.node) {
        (Screen::Node, Some(open)) => vec![open.id.clone()],
        _ if !model.screens.nodes.marked.is_empty() => {
            let all = model.fleet.nodes().iter().map(|view| view.node.id.clone());
            all.filter(|node| model.screens.nodes.marked.contains(node)).collect()
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
    vec![Effect::Job { job, request: Request::PlanAction(request) }]
}

/// Stores the processes of a node, and drops the marks of processes that have ended.
pub fn on_listed(model: &mut Model, node: NodeId, listed: Result<NodeProcesses, Failure>) {
    let Some(open) = model.screens.processes.as_mut().filter(|open| open.nodes.contains(&node)) else { return };
    open.listed.insert(node, listed);
    let live: BTreeSet<ProcessKey> = open.rows().iter().map(|(node, process)| process.key(node)).collect();
    open.marked.retain(|key| live.contains(key));
    keep_selection(model);
}

/// Scrolls to the selected process.
pub fn keep_selection(model: &mut Model) {
    let area = areas(model).1;
    if let Some(open) = &mut model.screens.processes {
        open.top = listed(open, area).filled();
    }
}

/// The screen.
pub struct Processes;

impl Behaviour for Processes {
    fn on_action(&self, model: &mut Model, action: Action) -> Vec<Effect> {
        let area = areas(model).1;
        let Some(open) = &mut model.screens.processes else { return Vec::new() };
        let page = listed(open, area).page();
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

    fn view(&self, model: &Model, buf: &mut Buffer, body: Rect) {
        let Some(open) = &model.screens.processes else { return };
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

    fn keep_selection(&self, model: &mut Model) {
        keep_selection(model);
    }

    fn on_tick(&self, model: &mut Model) {
        nodes::on_tick(model);
    }

    fn watches(&self, model: &Model, wanted: &mut BTreeSet<Watch>) {
        let of = &model.fleet.of;
        wanted.insert(Watch::Nodes(of.clone()));
        let nodes = model.screens.processes.as_ref().map(|open| open.nodes.clone());
        wanted.extend(nodes.map(|nodes| Watch::Processes { of: of.clone(), nodes }));
    }

    fn on_press(&self, model: &mut Model, at: Position) -> Press {
        Press::row(processes_until(model, at.y))
    }

    fn save(&self, model: &Model, session: &mut Session) {
        nodes::save(model, session);
        session.processes = model.screens.processes.as_ref().map_or_else(Vec::new, |open| open.nodes.clone());
    }

    fn restore(&self, model: &mut Model, session: &Session) -> Screen {
        if session.processes.is_empty() {
            return Screen::Nodes;
        }
        model.screens.processes = Some(ProcessesScreen::new(session.processes.clone(), KillScope::Own, Screen::Nodes));
        Screen::Processes
    }
}

/// Returns the areas of the summary, the table and the details.
fn areas(model: &Model) -> (Rect, Rect, Rect) {
    let body = layout::areas(model.size).body;
    let (summary, rest) = layout::cut_top(body, u16::from(body.height >= 5));
    let (_, rest) = layout::cut_top(rest, u16::from(rest.height >= 14));
    let rows = model.screens.processes.as_ref().map_or(0, |open| open.rows().len() + open.away().count());
    let rows = u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(2);
    let (table, details) = layout::list_and_details(rest, rows, details::least_rows(model.size, DETAILS));
    (summary, table, details)
}

fn listed(open: &ProcessesScreen, area: Rect) -> Rows {
    Rows { area, top: open.top, selected: open.position(), count: open.rows().len() }
}

/// Returns the number of processes from the selected one to the one at a row of the terminal.
fn processes_until(model: &Model, row: u16) -> Option<isize> {
    listed(model.screens.processes.as_ref()?, areas(model).1).until(row)
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

/// The columns of the table, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ProcessColumn {
    Node,
    Pid,
    User,
    Run,
    Rank,
    Age,
    GpuMemory,
    Command,
}

impl ProcessColumn {
    fn cell(self, model: &Model, node: &NodeId, process: &ListedProcess) -> String {
        let none = || model.symbols.none.to_owned();
        match self {
            Self::Node => node.to_string(),
            Self::Pid => process.pid.to_string(),
            Self::User => text::clean(&process.user),
            Self::Run => run_name(model, process),
            Self::Rank => process.rank.map_or_else(none, |rank| rank.to_string()),
            Self::Age => units::short_duration(process.age_s as f64),
            Self::GpuMemory if process.on_gpu => process_details::gpu_memory(process),
            Self::GpuMemory => none(),
            Self::Command => text::clean(&process.command),
        }
    }
}

/// The minimum width of the command.
const COMMAND: usize = 20;
/// The maximum width of the other columns.
const WIDEST: usize = 24;

fn columns(
    model: &Model,
    open: &ProcessesScreen,
    rows: &[(&NodeId, &ListedProcess)],
    width: usize,
) -> Table<ProcessColumn> {
    let column = |(of, title, align): (ProcessColumn, &'static str, Align)| {
        let cells = table::widest(rows.iter().map(|(node, process)| of.cell(model, node, process)));
        Column::new(of, title, align, cells.max(text::width(title)).min(WIDEST))
    };
    let always = [
        (ProcessColumn::Node, "node", Align::Left),
        (ProcessColumn::Pid, "pid", Align::Right),
        (ProcessColumn::Run, "run", Align::Left),
        (ProcessColumn::Age, "age", Align::Right),
    ];
    let first = usize::from(open.nodes.len() == 1);
    let mut table = Table::new(width).with(always.into_iter().skip(first).map(column));
    let spare = COMMAND + GAP;
    // On a narrow terminal, the user is left out first.
    let of_training =
        [(ProcessColumn::Rank, "rank", Align::Right), (ProcessColumn::GpuMemory, "GPU memory", Align::Right)];
    if table.add(of_training.map(column), spare) {
        table.add([column((ProcessColumn::User, "user", Align::Left))], spare);
    }
    table.columns.sort_by_key(|column| column.of);
    table.with([Column::rest(ProcessColumn::Command, "command")])
}

fn table(model: &Model, buf: &mut Buffer, area: Rect, open: &ProcessesScreen, rows: &[(&NodeId, &ListedProcess)]) {
    let table = columns(model, open, rows, usize::from(area.width).saturating_sub(2));
    let line = |at: usize, is_selected: bool| {
        let (node, process) = rows[at];
        let is_marked = open.marked.contains(&process.key(node));
        let style = if is_selected { model.theme.strong } else { Style::new() };
        let cell = |column: &Column<ProcessColumn>| {
            let style = match column.of {
                ProcessColumn::Run if is_orphan(model, process) => model.theme.warn,
                ProcessColumn::Command if !is_selected => model.theme.faint,
                _ => style,
            };
            Span::styled(column.of.cell(model, node, process), style)
        };
        table.line(model, vec![table::pointer(model, is_selected, is_marked)], table.columns.iter().map(cell))
    };
    let listed = listed(open, area);
    listed.draw(model, buf, table.heading(model, 2), line);
    let away = open.away().map(|(node, _)| {
        let glyph = model.symbols.states[StateKind::Unknown as usize];
        Line::styled(format!("{glyph} {node}  unreachable: its processes are unknown"), model.theme.warn)
    });
    let (_, below) = layout::cut_top(listed.below(), (rows.len() - open.top.min(rows.len())) as u16);
    write_lines(model, buf, below, away.skip(open.top.saturating_sub(rows.len())));
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

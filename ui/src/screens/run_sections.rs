//! Panels about runs in the details of list screens: the state and the results of a run, its checkpoints and events,
//! tables of runs, and a chart where there is room.

use crate::advice;
use crate::model::{Model, RunScreen};
use crate::msg::RunRow;
use crate::run_state::{StateKind, short_id};
use crate::screens::{run, run_lists};
use crate::series::Track;
use crate::slurm;
use crate::text;
use crate::widgets::aligned;
use crate::widgets::details::Section;
use crate::widgets::state;
use crate::widgets::table::{self, Align};
use cluster::NodeId;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::text::{Line, Span};
use recipe::Task;
use rundir::Event;
use units::{Unit, counted};

/// The minimum number of rows of a chart below the details.
const CHART: u16 = 10;
/// The largest width of the name of a run in a table.
const NAME: usize = 24;

/// Returns task, stage, ranks, origin of the weights, Slurm job, newest checkpoint and note of a run as one line.
pub fn facts_line(model: &Model, row: &RunRow) -> String {
    let mut facts = Vec::new();
    facts.extend((row.task != Task::Train).then(|| row.task.name().to_owned()));
    facts.extend(row.stage.as_ref().map(|stage| format!("stage {stage}")));
    facts.push(counted(row.ranks, "rank"));
    facts.extend(advice::origin(row));
    facts.extend(row.job.as_ref().map(slurm::short));
    facts.extend(row.checkpoint_step.map(|step| format!("checkpoint at step {}", units::grouped(step))));
    facts.extend(row.note.clone());
    facts.join(&format!(" {} ", model.symbols.separator))
}

/// Returns a panel with the state of a run, what the state means, and what the run has done.
pub fn state_section(model: &Model, row: &RunRow, open: Option<&RunScreen>, width: usize) -> Section {
    let facts = text::wrap(&facts_line(model, row), width).into_iter();
    let mut lines: Vec<Line<'static>> = facts.map(|line| Line::styled(line, model.theme.faint)).collect();
    lines.extend(advice::situation(model, row, width));
    lines.push(Line::default());
    lines.extend(results(model, row, open, width));
    let title = format!("Run {}", short_id(&row.run));
    Section::new(title, vec![state(model, StateKind::of(&row.state))], lines)
}

/// Returns panels with the results, the checkpoints and the events of a run. `open` is `None` while the run loads.
pub fn of_run(model: &Model, row: &RunRow, open: Option<&RunScreen>, width: usize) -> Vec<Section> {
    let results = results(model, row, open, width);
    let mut sections = vec![Section::new("Results", Vec::new(), results)];
    let Some(open) = open else { return sections };
    if let Some(all) = &open.checkpoints {
        let lines = |most: usize| run_lists::checkpoint_lines(model, all).take(most).collect::<Vec<_>>();
        sections.push(Section::of_first(model, "Checkpoints", all.len(), lines));
    }
    // A run that samples has its events in the place of the chart.
    if row.task != Task::Sample {
        let events = run_lists::visible_events(open);
        let lines = |most: usize| event_lines(model, open, &events[..most], |t| units::ago(model.now, t), width);
        sections.push(Section::of_first(model, "Events", events.len(), lines));
    }
    sections
}

/// Returns what a run has done, as names with texts.
fn results(model: &Model, row: &RunRow, open: Option<&RunScreen>, width: usize) -> Vec<Line<'static>> {
    let metric = |name: &str| open.and_then(|open| newest_and_lowest(open, name));
    let epochs = row.epochs.map_or_else(String::new, |epochs| format!(", {}", epochs.in_words()));
    let ended = row.state.is_end().then(|| {
        let took = units::duration(row.updated_s - row.created_s);
        format!("{}, {took} after the start", units::ago(model.now, row.updated_s))
    });
    let step_s = row.step_s.filter(|_| row.task != Task::Encode);
    let samples = open.and_then(|open| open.samples.samples.as_ref()).filter(|samples| !samples.is_empty());
    let facts = [
        ("progress", format!("{}{epochs}", row.progress().in_words())),
        ("loss", metric("loss").or_else(|| row.loss.map(units::number)).unwrap_or_default()),
        ("validation", metric("validation_loss").unwrap_or_default()),
        ("step time", step_s.map(|s| units::value(s, Unit::Seconds)).unwrap_or_default()),
        ("time left", row.eta_s.map(units::duration).unwrap_or_default()),
        ("created", units::ago(model.now, row.created_s)),
        ("ended", ended.unwrap_or_default()),
        ("attempts", open.and_then(attempts).unwrap_or_default()),
        ("samples", samples.map(|samples| counted(samples.len(), "video")).unwrap_or_default()),
        ("next stage", next_stage(model, row).unwrap_or_default()),
        ("folder", open.and_then(|open| open.status.as_ref()).map(|status| status.dir.to_string()).unwrap_or_default()),
    ];
    aligned::facts(model, &facts, width)
}

/// Returns the newest and the lowest value of a metric: `0.1404, lowest 0.1312`.
fn newest_and_lowest(open: &RunScreen, metric: &str) -> Option<String> {
    let live = open.series.live();
    let column = live.column(Track::of(metric));
    let newest = column.get(column.last_finite(live.len())?);
    let lowest = column.extent(0, live.len()).min;
    let [newest, lowest] = [newest, lowest].map(|value| units::number(f64::from(value)));
    Some(format!("{newest}, lowest {lowest}"))
}

/// Returns the number of attempts and the nodes of the newest one: `2, the newest on gpu001, gpu002`.
fn attempts(open: &RunScreen) -> Option<String> {
    let attempt = open.status.as_ref()?.attempt.as_ref()?;
    let mut nodes: Vec<&NodeId> = open.places().iter().map(|place| &place.node).collect();
    nodes.dedup();
    let nodes = units::listed(&nodes, 4, |node| node.to_string());
    Some(match attempt.number {
        1 => format!("1, on {nodes}"),
        n => format!("{n}, the newest on {nodes}"),
    })
}

/// Returns the next stage of a run's curriculum, and the runs of it that started from this run.
fn next_stage(model: &Model, row: &RunRow) -> Option<String> {
    let next = &model.next_stage(row)?.name;
    let started: Vec<&RunRow> = model.rows().iter().filter(|other| other.continues(row, next)).collect();
    if started.is_empty() {
        return Some(format!("{next}, not started from this run"));
    }
    let run = |other: &&RunRow| format!("{} ({})", short_id(&other.run), StateKind::of(&other.state).word());
    Some(format!("{next}: {}", units::listed(&started, 3, run)))
}

/// Returns events as lines, each with its time in the words of `when`.
pub fn event_lines(
    model: &Model,
    open: &RunScreen,
    events: &[&Event],
    when: impl Fn(f64) -> String,
    width: usize,
) -> Vec<Line<'static>> {
    // An item number, unlike a step, is not a position in the history of the run.
    let has_steps = open.status.as_ref().is_none_or(|status| status.row.task != Task::Encode);
    let step = |event: &&Event| event.step.filter(|_| has_steps).map(|step| format!("step {}  ", units::grouped(step)));
    let times: Vec<String> = events.iter().map(|event| when(event.t)).collect();
    let steps: Vec<String> = events.iter().map(|event| step(event).unwrap_or_default()).collect();
    let widest = |texts: &[String]| texts.iter().map(|text| text::width(text)).max().unwrap_or(0);
    let (time_width, step_width) = (widest(&times), widest(&steps));
    let lines = events.iter().zip(times.iter().zip(&steps)).flat_map(|(event, (time, step))| {
        let (glyph, what, style) = run_lists::event_words(model, event);
        let begin = format!("{time:>time_width$}  {step:>step_width$}");
        let first = vec![Span::styled(begin, model.theme.faint), Span::styled(format!("{glyph} "), style)];
        aligned::hanging(first, &what, style, width)
    });
    lines.collect()
}

/// Returns a panel with a table of runs: state, name, progress, loss, newest checkpoint and age.
pub fn of_runs(model: &Model, title: String, rows: &[&RunRow]) -> Section {
    Section::of_first(model, title, rows.len(), |most| table(model, &rows[..most]))
}

fn table(model: &Model, rows: &[&RunRow]) -> Vec<Line<'static>> {
    if rows.is_empty() {
        return vec![Line::styled("None yet", model.theme.faint)];
    }
    let columns = [
        ("state", Align::Left),
        ("run", Align::Left),
        ("done", Align::Right),
        ("loss", Align::Right),
        ("checkpoint", Align::Right),
        ("age", Align::Right),
    ];
    let none = || model.symbols.none.to_owned();
    let cells = |row: &&RunRow| {
        vec![
            state(model, StateKind::of(&row.state)),
            Span::raw(text::fit(short_id(&row.run), NAME, model.symbols.ellipsis)),
            Span::raw(row.progress().short()),
            Span::raw(row.loss.map_or_else(none, units::number)),
            Span::raw(row.checkpoint_step.map_or_else(none, units::grouped)),
            Span::raw(units::short_duration(model.now - row.created_s)),
        ]
    };
    table::lines(model, &columns, rows.iter().map(cells).collect())
}

/// Draws the main chart of a run, if the area has room for it. `open` is `None` while the run loads.
pub fn chart(model: &Model, row: &RunRow, open: Option<&RunScreen>, buf: &mut Buffer, area: Rect) {
    // A run that samples has no main chart.
    if area.height >= CHART && row.task != Task::Sample {
        run::preview(model, row, open, buf, area);
    }
}

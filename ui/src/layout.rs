//! The layout of the screens: pure functions of the size, shared by `update` (paging) and `view` (drawing).

use crate::bindings::Action;
use crate::msg::Size;
use ratatui_core::layout::Rect;
use recipe::Task;
use rundir::Chart;

/// The parts of every screen. A part without room has height 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Areas {
    /// Product name and screen tabs.
    pub header: Rect,
    /// The content of the screen.
    pub body: Rect,
    /// Notices, progress and text input; the same row as the keys when there is no room for both.
    pub notice: Rect,
    /// The key bar.
    pub keys: Rect,
}

/// Splits the terminal.
pub fn areas(size: Size) -> Areas {
    let Size { width, height } = size;
    let margin = u16::from(width >= 50);
    let row = |y: u16, rows: u16| Rect::new(margin, y, width.saturating_sub(2 * margin), rows);
    let header = u16::from(height >= 6);
    let air = u16::from(height >= 20);
    let keys = u16::from(height >= 4);
    let notice = u16::from(height >= 9);
    let body = height - header - air - keys - notice;
    let keys_row = row(height - keys, keys);
    Areas {
        header: row(0, header),
        body: row(header + air, body),
        notice: if notice == 1 { row(height - 2, 1) } else { keys_row },
        keys: keys_row,
    }
}

/// A part of the run screen that can be focused and enlarged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Panel {
    /// One chart.
    Chart(Chart),
    /// A chart of one metric, by its index in [`METRICS`](rundir::METRICS).
    Metric(usize),
    /// A chart of a series of an imported run, by its position in [`Series::names`](crate::series::Series::names).
    Named(usize),
    /// The recipe of the run.
    Recipe,
    /// The slowness of each rank.
    Ranks,
    /// The stages of an encode: probe, decode, VAE, text.
    Pipeline,
    /// The newest sample, moving.
    Samples,
    /// The checkpoints.
    Checkpoints,
    /// The events.
    Events,
}

impl Panel {
    /// Returns whether the panel is a chart.
    pub fn is_chart(self) -> bool {
        matches!(self, Self::Chart(_) | Self::Metric(_) | Self::Named(_))
    }
}

/// The facts that decide which panels a run has, and how large they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunContent {
    /// The task of the run.
    pub task: Task,
    /// Whether the run has samples of its nodes.
    pub nodes: bool,
    /// Whether the run has a validation loss.
    pub validation: bool,
    /// Whether the run's GPUs report their utilization.
    pub utilization: bool,
    /// Whether the terminal has room for lanes below the large chart, and for more panels beside it.
    pub large: bool,
    /// Whether the run has made videos, and there is room for one beside its charts.
    pub videos: bool,
    /// The picked panels that a training run has, in the order of the user; `None` for the usual ones.
    pub picked: Option<Vec<Panel>>,
    /// The measured charts and own series of an imported run, which replace the usual ones; `None` for other runs.
    pub imported: Option<Vec<Panel>>,
    /// The number of columns of a grid of all panels; 0 or 1 for the usual layout.
    pub columns: u8,
    /// The charts whose values do not change. Each shows its value in its heading and gets few rows.
    pub constant: Vec<Panel>,
    /// Whether throughput, utilization or goodput are known.
    pub facts: bool,
    /// The number of events.
    pub events: usize,
    /// The number of checkpoints.
    pub checkpoints: usize,
}

impl RunContent {
    /// Returns the panels in the order of the Tab key.
    pub fn panels(&self) -> Vec<Panel> {
        let main = [self.main()].into_iter().chain(self.lanes());
        let all = self.top().into_iter().chain(main).chain(self.beside()).chain(self.side()).chain(self.foot());
        all.chain([Panel::Events]).collect()
    }

    /// The panel above all others.
    fn top(&self) -> Option<Panel> {
        (self.task == Task::Encode).then_some(Panel::Pipeline)
    }

    /// The large panel.
    pub fn main(&self) -> Panel {
        match self.task {
            Task::Train => Panel::Chart(Chart::Loss),
            Task::Encode => Panel::Chart(Chart::ItemRate),
            Task::Sample => Panel::Samples,
        }
    }

    /// The panel above the right column.
    fn beside(&self) -> Option<Panel> {
        (self.videos && self.task == Task::Train).then_some(Panel::Samples)
    }

    /// Returns the panels below the large one, on the same x axis.
    fn lanes(&self) -> Vec<Panel> {
        let large = self.has_lanes();
        let of_nodes =
            [(Chart::Power, true), (Chart::Utilization, large && self.utilization), (Chart::NodeMemory, true)];
        let nodes =
            of_nodes.into_iter().filter(|(_, shown)| self.nodes && *shown).map(|(chart, _)| Panel::Chart(chart));
        let side = self.usual_side();
        let steps = Panel::Chart(Chart::StepTime);
        let steps = (large && self.imported.as_ref().is_none_or(|own| own.contains(&steps))).then_some(steps);
        let usual = nodes.filter(|panel| !side.contains(panel)).chain(steps);
        usual.filter(|panel| self.is_picked(*panel)).collect()
    }

    /// Returns whether the lanes have marks and share the labels of their x axis.
    fn has_lanes(&self) -> bool {
        self.large && self.task == Task::Train
    }

    /// Returns whether the user has not hidden a panel.
    fn is_picked(&self, panel: Panel) -> bool {
        self.task != Task::Train || self.picked.as_ref().is_none_or(|picked| picked.contains(&panel))
    }

    /// Returns whether a picked panel has something to show.
    fn has(&self, panel: Panel) -> bool {
        match panel {
            Panel::Chart(Chart::Power | Chart::NodeMemory) => self.nodes,
            Panel::Chart(Chart::Utilization) => self.nodes && self.utilization,
            Panel::Chart(Chart::ValidationLoss) => self.validation,
            _ => true,
        }
    }

    /// The panels of the right column, which scrolls if they do not all fit.
    fn side(&self) -> Vec<Panel> {
        let Some(picked) = self.picked.as_ref().filter(|_| self.task == Task::Train) else { return self.usual_side() };
        let lanes = self.lanes();
        picked.iter().copied().filter(|panel| self.has(*panel) && !lanes.contains(panel)).collect()
    }

    fn usual_side(&self) -> Vec<Panel> {
        if let Some(own) = self.imported.as_ref().filter(|_| self.task == Task::Train) {
            let is_lane = |panel: &Panel| self.large && *panel == Panel::Chart(Chart::StepTime);
            return own.iter().copied().filter(|panel| !is_lane(panel)).collect();
        }
        let charts: &[Chart] = match self.task {
            // The step time is among the lanes.
            Task::Train if self.large => {
                &[Chart::LearningRate, Chart::GradNorm, Chart::Memory, Chart::Mfu, Chart::WeightNorm]
            }
            Task::Train => {
                &[Chart::LearningRate, Chart::GradNorm, Chart::StepTime, Chart::Memory, Chart::WeightNorm, Chart::Mfu]
            }
            Task::Encode => &[Chart::Queue, Chart::ItemBytes, Chart::FailedItems, Chart::Memory],
            // This column has only one other chart, so it also has the charts of the nodes.
            Task::Sample if self.nodes => &[Chart::StepTime, Chart::Power, Chart::NodeMemory],
            Task::Sample => &[Chart::StepTime],
        };
        let mut panels: Vec<Panel> = charts.iter().copied().map(Panel::Chart).collect();
        if self.task == Task::Train {
            panels.push(Panel::Ranks);
            panels.extend(self.validation.then_some(Panel::Chart(Chart::ValidationLoss)));
        }
        panels
    }

    /// The panel at the end of the right column. It is always visible.
    fn foot(&self) -> Option<Panel> {
        (self.task == Task::Train).then_some(Panel::Checkpoints)
    }

    /// Returns the rows that a panel of `usual` rows gets at least: a chart of a constant has only a heading and two more rows.
    fn least(&self, panel: Panel, usual: u16, air: u16) -> u16 {
        if self.constant.contains(&panel) { (CONSTANT + air).min(usual) } else { usual }
    }

    /// Shares rows among panels. A chart of a constant gets few, and one of the learning rate, which changes slowly, half as many
    /// as the others if `halved`. `air` of the rows of each panel stay blank.
    fn shares(&self, rows: u16, panels: &[Panel], halved: bool, air: u16) -> Vec<u16> {
        let is_constant = |panel: &Panel| self.constant.contains(panel);
        let all_are_constant = panels.iter().all(is_constant);
        let weight = |panel: &Panel| match *panel {
            _ if is_constant(panel) && !all_are_constant => 0,
            Panel::Chart(Chart::LearningRate) if halved => 1,
            _ => 2,
        };
        let fixed = panels.iter().filter(|panel| weight(panel) == 0).count() as u16 * (CONSTANT + air);
        let mut left = rows.saturating_sub(fixed);
        let mut weights: u16 = panels.iter().map(weight).sum();
        let mut share = |panel: &Panel| match weight(panel) {
            0 => CONSTANT + air,
            weight => {
                let height = left * weight / weights.max(1);
                weights -= weight;
                left -= height;
                height
            }
        };
        panels.iter().map(&mut share).collect()
    }
}

/// The maximum number of panels in the right column, besides the samples and the checkpoints.
const SHOWN_OF_SIDE: usize = 4;

/// The largest number of panels beside the charts where there is room for lanes.
const SHOWN_OF_LARGE_SIDE: usize = 7;
/// Rows of a chart of a constant: its heading, and a line that shows where it is measured.
const CONSTANT: u16 = 3;
/// Rows of the marks above the lanes: a heading and the marks.
const MARKS: u16 = 2;
/// The most rows of a lane.
const LANE: u16 = 9;
/// The least rows of a lane: a heading and a readable chart.
const LEAST_LANE: u16 = 4;
/// The least rows of the large chart above the marks and the lanes.
const LEAST_MAIN: u16 = 6;

/// Rows of the pipeline of an encode: a heading, the names of the columns, and four stages.
const PIPELINE_ROWS: u16 = 6;

/// Parts of the run screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAreas {
    /// State, progress, time left.
    pub state: Rect,
    /// Advice on the state and the next keys.
    pub advice: Rect,
    /// Throughput and utilization.
    pub facts: Rect,
    /// The marks of events above the lanes.
    pub marks: Rect,
    /// The charts that draw the labels of the x axis for other charts too. Empty if no labels are shared.
    pub x_labels: Vec<Panel>,
    /// The visible panels.
    pub panels: Vec<(Panel, Rect)>,
}

/// Splits the body of the run screen. `advice` is the preferred height of the advice.
pub fn run_areas(body: Rect, advice: u16, focus: Panel, enlarged: bool, content: &RunContent) -> RunAreas {
    let (state, rest) = cut_top(body, 1);
    // On a low screen, the facts take the place of the blank row above the panels.
    let has_facts = content.facts && (content.has_lanes() || rest.height >= 19);
    let (facts, rest) = cut_top(rest, u16::from(has_facts));
    let most = match rest.height {
        0..4 => 0,
        4..10 => 1,
        10..16 => 2,
        // The cause of a failure is more important than a large chart.
        _ => (rest.height / 3).max(5),
    };
    let (advice, rest) = cut_top(rest, advice.min(most));
    let (_, rest) = cut_top(rest, u16::from(rest.height >= 17 && (content.has_lanes() || !has_facts)));
    let none = Rect { height: 0, ..rest };
    let mut areas = RunAreas { state, advice, facts, marks: none, x_labels: Vec::new(), panels: Vec::new() };
    if rest.height == 0 {
        return areas;
    }
    if enlarged || rest.width < 60 || rest.height < 15 {
        areas.panels = vec![(focus, rest)];
    } else if content.columns > 1 && content.task == Task::Train {
        areas.panels = even_grid(rest, focus, content);
    } else {
        columns(&mut areas, rest, focus, content);
    }
    areas
}

/// Blank columns between panels.
const GAP: u16 = 3;

/// Places all panels in a grid of equal cells. The grid scrolls to the row of the focused panel.
fn even_grid(area: Rect, focus: Panel, content: &RunContent) -> Vec<(Panel, Rect)> {
    const LEAST: (u16, u16) = (26, 7);
    let panels = content.panels();
    let columns = u16::from(content.columns).min((area.width + GAP) / (LEAST.0 + GAP)).max(1);
    let rows = (panels.len() as u16).div_ceil(columns);
    let shown = (area.height / LEAST.1).clamp(1, rows);
    let focused = panels.iter().position(|panel| *panel == focus).unwrap_or(0) as u16 / columns;
    let first = (focused + 1).saturating_sub(shown).min(rows - shown);
    let width = (area.width - GAP * (columns - 1)) / columns;
    let cell = |(at, panel): (u16, Panel)| {
        let (row, column) = (at / columns, at % columns);
        let (top, bottom) = (area.height * row / shown, area.height * (row + 1) / shown);
        (panel, Rect { x: area.x + column * (width + GAP), y: area.y + top, width, height: bottom - top })
    };
    let visible = panels.into_iter().skip(usize::from(first * columns)).take(usize::from(shown * columns));
    (0..).zip(visible).map(cell).collect()
}

/// Places the large panel, the node charts and the events on the left, and the other panels on the right. The right column
/// scrolls to the focused panel.
fn columns(areas: &mut RunAreas, area: Rect, focus: Panel, content: &RunContent) {
    // Tall terminals have a blank row between panels, and more rows of checkpoints and events.
    let (air, checkpoints) = if area.height >= 36 { (1, area.height / 5) } else { (0, 3) };
    let (top, area) = cut_top(area, if content.top().is_some() { PIPELINE_ROWS } else { 0 });
    let (_, area) = cut_top(area, if content.top().is_some() { air } else { 0 });
    let right_width = (area.width * 2 / 5).max(34).min(area.width / 2);
    let left = Rect { width: area.width - right_width - GAP, ..area };
    let right = Rect { x: left.right() + GAP, width: right_width, ..area };
    let lanes = content.lanes();
    let has_lanes = content.has_lanes() && !lanes.is_empty();
    // A heading, and a row for each event. On a low screen, the lanes need the rows more.
    let share = match (has_lanes, air) {
        (true, 0) => 5,
        (true, _) => 4,
        (false, _) => 3,
    };
    let events = (content.events as u16).saturating_add(1).clamp(3, (area.height / share).max(5));
    let (main, events) = cut_top(left, area.height - events);
    let main = Rect { height: main.height - air, ..main };
    let side = content.side();
    let of_nodes = [Chart::Power, Chart::NodeMemory].map(Panel::Chart).into_iter();
    let of_nodes: Vec<Panel> =
        of_nodes.filter(|panel| content.nodes && content.is_picked(*panel) && !side.contains(panel)).collect();
    let mut panels: Vec<(Panel, Rect)> = content.top().map(|panel| (panel, top)).into_iter().collect();
    if has_lanes {
        let (marks, lowest) = under_a_large_main(&mut panels, content, main, focus, &lanes);
        areas.marks = marks;
        areas.x_labels.extend(lowest);
    } else {
        panels.extend(under_the_main(content.main(), main, air, focus, &of_nodes));
    }
    let mut rest = right;
    if let Some(beside) = content.beside() {
        let (top, below) = cut_top(rest, area.height * 2 / 5);
        panels.push((beside, Rect { height: top.height - air, ..top }));
        rest = below;
    }
    let foot = content.foot();
    let wanted = (content.checkpoints as u16).saturating_add(1).max(2);
    let foot_height = if foot.is_some() { wanted.min(checkpoints) } else { 0 };
    let charts = rest.height.saturating_sub(foot_height);
    let (least, most) = match (has_lanes, air) {
        (true, _) => (5, SHOWN_OF_LARGE_SIDE),
        (false, 0) => (3, SHOWN_OF_SIDE),
        (false, _) => (6, SHOWN_OF_SIDE),
    };
    let air = if has_lanes { 0 } else { air };
    let visible = shown_of_column(&side, focus, charts, most, |panel| content.least(panel, least, air));
    for (panel, height) in visible.iter().zip(content.shares(charts, visible, has_lanes, air)) {
        let (top, below) = cut_top(rest, height.saturating_sub(air));
        panels.push((*panel, top));
        rest = cut_top(below, air.min(height)).1;
    }
    if has_lanes {
        areas.x_labels.extend(visible.iter().rev().find(|panel| panel.is_chart() || **panel == Panel::Ranks));
    }
    panels.extend(foot.map(|foot| (foot, rest)));
    panels.push((Panel::Events, events));
    areas.panels = panels;
}

/// Returns the panels of a column that are visible: as many as fit, the focused one among them.
fn shown_of_column(side: &[Panel], focus: Panel, rows: u16, most: usize, least: impl Fn(Panel) -> u16) -> &[Panel] {
    let focused = side.iter().position(|panel| *panel == focus).unwrap_or(0);
    let from = |first: usize| {
        let mut left = rows;
        let fits = |panel: &&Panel| {
            let fits = least(**panel) <= left;
            left = left.saturating_sub(least(**panel));
            fits
        };
        let count = side[first..].iter().take(most).take_while(fits).count().max(1);
        &side[first..(first + count).min(side.len())]
    };
    let first = (0..side.len()).find(|first| focused < first + from(*first).len()).unwrap_or(0);
    if side.is_empty() { side } else { from(first) }
}

/// Places the marks and as many lanes as are readable below the large panel, the focused lane among them. Returns the area
/// of the marks and the lowest lane.
fn under_a_large_main(
    panels: &mut Vec<(Panel, Rect)>,
    content: &RunContent,
    area: Rect,
    focus: Panel,
    lanes: &[Panel],
) -> (Rect, Option<Panel>) {
    let main = content.main();
    // The last lane also has the labels of the x axis.
    let room = area.height.saturating_sub(LEAST_MAIN + MARKS + 1);
    let lanes = shown_of_column(lanes, focus, room, lanes.len(), |lane| content.least(lane, LEAST_LANE, 0));
    let varying = lanes.iter().filter(|lane| !content.constant.contains(lane)).count() as u16;
    let most = varying * LANE + (lanes.len() as u16 - varying) * CONSTANT;
    let rows = ((area.height - MARKS) * 2 / 3).max(LEAST_LANE * lanes.len() as u16).min(most).min(room);
    let (top, mut rest) = cut_top(area, area.height - rows - 1);
    let (top, marks) = cut_top(top, top.height - MARKS);
    panels.push((main, top));
    let heights = content.shares(rows, lanes, false, 0);
    for (number, (lane, height)) in (1..).zip(lanes.iter().zip(heights)) {
        let (chart, below) = cut_top(rest, height + u16::from(number == lanes.len()));
        panels.push((*lane, chart));
        rest = below;
    }
    (marks, lanes.last().copied())
}

/// Returns whether the body of the screen has room for lanes below the large chart. A terminal of 120 × 36 has room for
/// three, and for at least one if the advice is long.
pub fn has_room_for_lanes(body: Rect) -> bool {
    body.width >= 116 && body.height >= 32
}

/// Returns whether the body of the screen has room for a picture beside the charts of a training run.
pub fn has_room_for_video(body: Rect) -> bool {
    body.width >= 110 && body.height >= 34
}

/// Places power and memory below the large panel; if there is no room for both, only the focused one.
fn under_the_main(main: Panel, area: Rect, air: u16, focus: Panel, of_nodes: &[Panel]) -> Vec<(Panel, Rect)> {
    let Some(first) = of_nodes.first() else { return vec![(main, area)] };
    let (rows, below) = match area.height {
        0..20 => {
            let shown = if of_nodes.contains(&focus) { focus } else { *first };
            ((area.height * 2 / 5).clamp(3, 6), vec![shown])
        }
        tall => ((tall / 4).max(6), of_nodes.to_vec()),
    };
    let (top, mut rest) = cut_top(area, area.height.saturating_sub((rows + air) * below.len() as u16));
    let mut panels = vec![(main, top)];
    for panel in below {
        let (_, under) = cut_top(rest, air);
        let (chart, next) = cut_top(under, rows);
        panels.push((panel, chart));
        rest = next;
    }
    panels
}

/// Splits a list screen into the list and the details below it. A small terminal shows no details.
pub fn list_and_details(body: Rect, rows: u16, details: u16) -> (Rect, Rect) {
    if body.height < 9 {
        return (body, Rect { height: 0, ..body });
    }
    // The list gets all its rows if the details still fit. Otherwise the list shrinks, to no less than a third of the space.
    let list = rows.min(body.height.saturating_sub(details)).max((body.height / 3).min(rows));
    cut_top(body, list)
}

/// Cuts rows off the top of an area.
pub fn cut_top(area: Rect, rows: u16) -> (Rect, Rect) {
    let rows = rows.min(area.height);
    (Rect { height: rows, ..area }, Rect { y: area.y + rows, height: area.height - rows, ..area })
}

/// Returns a box of this size in the middle of the terminal, or the size of the terminal if that is smaller.
pub fn centered(size: Size, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(size.width), height.min(size.height));
    Rect::new((size.width - width) / 2, (size.height - height) / 2, width, height)
}

/// Returns the number of entries from the selected one to the one in a row of the terminal. `list` has one row per entry, from
/// entry `top` on.
pub fn entries_until(list: Rect, row: u16, top: usize, selected: usize, count: usize) -> Option<isize> {
    let at = row.checked_sub(list.y).filter(|at| *at < list.height)?;
    let entry = top + usize::from(at);
    (entry < count).then(|| entry as isize - selected as isize)
}

/// Returns the new position in a list or text after a movement action; `None` for other actions.
pub fn moved(action: Action, at: usize, page: usize, last: usize) -> Option<usize> {
    let to = match action {
        Action::Up => at.saturating_sub(1),
        Action::Down => at + 1,
        Action::PageUp => at.saturating_sub(page),
        Action::PageDown => at + page,
        Action::Top => 0,
        Action::Bottom => last,
        _ => return None,
    };
    Some(to.min(last))
}

/// Returns the first visible line after scrolling from `top` just far enough to show line `selected`.
pub fn scrolled(top: usize, selected: usize, visible: usize) -> usize {
    if selected < top {
        selected
    } else if visible > 0 && selected >= top + visible {
        selected + 1 - visible
    } else {
        top
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panel_set::PICKABLE;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_stay_in_the_terminal_and_do_not_overlap(
            width in 1u16..300, height in 1u16..120, advice in 0u16..8, nodes: bool, videos: bool, task in 0usize..3,
            picked in prop::option::of(prop::sample::subsequence(PICKABLE.to_vec(), 0..8)), columns in 0u8..5,
            imported in prop::option::of(prop::sample::subsequence(PICKABLE.to_vec(), 0..12)),
            constant in prop::sample::subsequence(PICKABLE.to_vec(), 0..12), events in 0usize..40, checkpoints in 0usize..40,
        ) {
            let screen = Rect::new(0, 0, width, height);
            let areas = areas(Size { width, height });
            let content = RunContent {
                task: Task::ALL[task],
                nodes,
                validation: nodes,
                utilization: nodes,
                large: has_room_for_lanes(areas.body),
                videos,
                picked,
                imported,
                columns,
                constant,
                facts: nodes,
                events,
                checkpoints,
            };
            let run = run_areas(areas.body, advice, Panel::Events, false, &content);
            let mut parts = vec![areas.header, areas.keys, run.state, run.facts, run.advice, run.marks];
            parts.extend(run.panels.iter().map(|(_, area)| *area));
            parts.retain(|part| part.area() > 0);
            for (i, part) in parts.iter().enumerate() {
                prop_assert_eq!(part.intersection(screen), *part);
                prop_assert!(parts[..i].iter().all(|other| !other.intersects(*part)), "{:?}", parts);
            }
        }
    }
}

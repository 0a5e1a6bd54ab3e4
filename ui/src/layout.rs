//! The layout of the screens: pure functions of the size, shared by `update` (paging) and `view` (drawing).

use crate::bindings::Action;
use crate::msg::Size;
use crate::panel_set::{PICKABLE, PanelSet};
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

/// The facts that decide which panels a run has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunContent {
    /// The task of the run.
    pub task: Task,
    /// Whether there are samples of its nodes.
    pub nodes: bool,
    /// Whether it has a validation loss.
    pub validation: bool,
    /// Whether its GPUs report their utilization.
    pub utilization: bool,
    /// Whether the terminal has room for lanes below the large chart, and for more panels beside it.
    pub large: bool,
    /// Whether it has made videos, and there is room for one beside its charts.
    pub videos: bool,
    /// The panels that the user has picked for training runs; `None` for the usual ones.
    pub picked: Option<PanelSet>,
}

impl RunContent {
    /// Returns the panels in the order of the Tab key.
    pub fn panels(self) -> Vec<Panel> {
        let main = [self.main()].into_iter().chain(self.lanes());
        let beside = (self.videos && self.task == Task::Train).then_some(Panel::Samples);
        let all = self.top().into_iter().chain(main).chain(beside).chain(self.side()).chain(self.foot());
        all.chain([Panel::Events]).collect()
    }

    /// The panel above all others.
    fn top(self) -> Option<Panel> {
        (self.task == Task::Encode).then_some(Panel::Pipeline)
    }

    /// The large panel.
    pub fn main(self) -> Panel {
        match self.task {
            Task::Train => Panel::Chart(Chart::Loss),
            Task::Encode => Panel::Chart(Chart::ItemRate),
            Task::Sample => Panel::Samples,
        }
    }

    /// Returns the panels below the large one, on the same x axis.
    fn lanes(self) -> Vec<Panel> {
        let large = self.has_lanes();
        let of_nodes =
            [(Chart::Power, true), (Chart::Utilization, large && self.utilization), (Chart::NodeMemory, true)];
        let nodes =
            of_nodes.into_iter().filter(|(_, shown)| self.nodes && *shown).map(|(chart, _)| Panel::Chart(chart));
        let side = self.usual_side();
        let steps = large.then_some(Panel::Chart(Chart::StepTime));
        let usual = nodes.filter(|panel| !side.contains(panel)).chain(steps);
        usual.filter(|panel| self.is_picked(*panel)).collect()
    }

    /// Returns whether the lanes have marks and share the labels of their x axis.
    fn has_lanes(self) -> bool {
        self.large && self.task == Task::Train
    }

    /// Returns whether the user has not hidden a panel.
    fn is_picked(self, panel: Panel) -> bool {
        self.task != Task::Train || self.picked.is_none_or(|picked| picked.contains(panel))
    }

    /// Returns whether a picked panel has something to show.
    fn has(self, panel: Panel) -> bool {
        match panel {
            Panel::Chart(Chart::Power | Chart::NodeMemory) => self.nodes,
            Panel::Chart(Chart::Utilization) => self.nodes && self.utilization,
            Panel::Chart(Chart::ValidationLoss) => self.validation,
            _ => true,
        }
    }

    /// The panels of the right column, which scrolls if they do not all fit.
    fn side(self) -> Vec<Panel> {
        if self.task != Task::Train || self.picked.is_none() {
            return self.usual_side();
        }
        let lanes = self.lanes();
        let picked = PICKABLE.into_iter().filter(|panel| self.is_picked(*panel) && self.has(*panel));
        picked.filter(|panel| !lanes.contains(panel)).collect()
    }

    fn usual_side(self) -> Vec<Panel> {
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
    fn foot(self) -> Option<Panel> {
        (self.task == Task::Train).then_some(Panel::Checkpoints)
    }
}

/// The maximum number of panels in the right column, besides the samples and the checkpoints.
const SHOWN_OF_SIDE: usize = 4;

/// The largest number of panels beside the charts where there is room for lanes.
const SHOWN_OF_LARGE_SIDE: usize = 6;
/// Rows of the events below the lanes.
const EVENTS_BELOW_LANES: u16 = 8;
/// Rows of the marks above the lanes: a heading and the marks.
const MARKS: u16 = 2;

/// Rows of the table of an encode: a heading, the names of the columns, and four stages.
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
    /// The charts that have the labels of an x axis which others share. Empty if none is shared.
    pub x_labels: Vec<Panel>,
    /// The visible panels.
    pub panels: Vec<(Panel, Rect)>,
}

/// Splits the body of the run screen. `advice` is the preferred height of the advice.
pub fn run_areas(body: Rect, advice: u16, focus: Panel, enlarged: bool, content: RunContent) -> RunAreas {
    let (state, rest) = cut_top(body, 1);
    let (facts, rest) = cut_top(rest, u16::from(content.has_lanes()));
    let most = match rest.height {
        0..4 => 0,
        4..10 => 1,
        10..16 => 2,
        // The cause of a failure is more important than a large chart.
        _ => (rest.height / 3).max(5),
    };
    let (advice, rest) = cut_top(rest, advice.min(most));
    let (_, rest) = cut_top(rest, u16::from(rest.height >= 17));
    let none = Rect { height: 0, ..rest };
    let mut areas = RunAreas { state, advice, facts, marks: none, x_labels: Vec::new(), panels: Vec::new() };
    if rest.height == 0 {
        return areas;
    }
    if enlarged || rest.width < 60 || rest.height < 15 {
        areas.panels = vec![(focus, rest)];
    } else {
        grid(&mut areas, rest, focus, content);
    }
    areas
}

/// Places the large panel, the node charts and the events on the left, and the other panels on the right. The right column
/// scrolls to the focused panel.
fn grid(areas: &mut RunAreas, area: Rect, focus: Panel, content: RunContent) {
    const GAP: u16 = 3;
    // Tall terminals have a blank row between panels, and more rows of checkpoints.
    let (air, checkpoints) = if area.height >= 36 { (1, 7) } else { (0, 3) };
    let (top, area) = cut_top(area, if content.top().is_some() { PIPELINE_ROWS } else { 0 });
    let (_, area) = cut_top(area, if content.top().is_some() { air } else { 0 });
    let right_width = (area.width * 2 / 5).max(34).min(area.width / 2);
    let left = Rect { width: area.width - right_width - GAP, ..area };
    let right = Rect { x: left.right() + GAP, width: right_width, ..area };
    let lanes = content.lanes();
    let has_lanes = content.has_lanes() && area.height >= 30 && !lanes.is_empty();
    let events = if has_lanes { EVENTS_BELOW_LANES } else { (area.height / 3).max(5) };
    let (main, events) = cut_top(left, area.height - events);
    let main = Rect { height: main.height - air, ..main };
    let side = content.side();
    let of_nodes = [Chart::Power, Chart::NodeMemory].map(Panel::Chart).into_iter();
    let of_nodes: Vec<Panel> =
        of_nodes.filter(|panel| content.nodes && content.is_picked(*panel) && !side.contains(panel)).collect();
    let mut panels: Vec<(Panel, Rect)> = content.top().map(|panel| (panel, top)).into_iter().collect();
    if has_lanes {
        areas.x_labels.extend(lanes.last());
        areas.marks = under_a_large_main(&mut panels, content.main(), main, &lanes);
    } else {
        panels.extend(under_the_main(content.main(), main, air, focus, &of_nodes));
    }
    let mut rest = right;
    if content.task == Task::Train && content.videos {
        let (top, below) = cut_top(rest, area.height * 2 / 5);
        panels.push((Panel::Samples, Rect { height: top.height - air, ..top }));
        rest = below;
    }
    let foot = content.foot();
    let foot_height = if foot.is_some() { checkpoints } else { 0 };
    let charts = rest.height.saturating_sub(foot_height);
    let (least, most) = match (has_lanes, air) {
        (true, _) => (5, SHOWN_OF_LARGE_SIDE),
        (false, 0) => (3, SHOWN_OF_SIDE),
        (false, _) => (6, SHOWN_OF_SIDE),
    };
    let air = if has_lanes { 0 } else { air };
    let shown = usize::from(charts / least).clamp(1, most).min(side.len());
    let focused = side.iter().position(|panel| *panel == focus).unwrap_or(0);
    let first = (focused + 1).saturating_sub(shown).min(side.len() - shown);
    let visible = &side[first..first + shown];
    // Learning rates change slowly: half the height of another chart is enough.
    let weight = |panel: &Panel| if has_lanes && *panel == Panel::Chart(Chart::LearningRate) { 1 } else { 2 };
    let mut weights: u16 = visible.iter().map(weight).sum();
    let mut charts = charts;
    for panel in visible {
        let height = charts * weight(panel) / weights.max(1);
        weights -= weight(panel);
        charts -= height;
        let (top, below) = cut_top(rest, height.saturating_sub(air));
        panels.push((*panel, top));
        rest = cut_top(below, air.min(height)).1;
    }
    if has_lanes {
        areas.x_labels.extend(visible.iter().rev().find(|panel| matches!(panel, Panel::Chart(_))));
    }
    panels.extend(foot.map(|foot| (foot, rest)));
    panels.push((Panel::Events, events));
    areas.panels = panels;
}

/// Places the marks and all lanes below the large panel, and returns the area of the marks.
fn under_a_large_main(panels: &mut Vec<(Panel, Rect)>, main: Panel, area: Rect, lanes: &[Panel]) -> Rect {
    let area = Rect { height: area.height - 1, ..area };
    let count = lanes.len() as u16;
    let each = (area.height / 2 / count).clamp(4, 9);
    // The last lane has the labels of the x axis.
    let (top, mut rest) = cut_top(area, area.height - each * count - 1);
    let (top, marks) = cut_top(top, top.height - MARKS);
    panels.push((main, top));
    for (number, lane) in (1..).zip(lanes) {
        let (chart, below) = cut_top(rest, each + u16::from(number == count));
        panels.push((*lane, chart));
        rest = below;
    }
    marks
}

/// Returns whether the body of the screen has room for lanes below the large chart.
pub fn has_room_for_lanes(body: Rect) -> bool {
    body.width >= 156 && body.height >= 42
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
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_stay_in_the_terminal_and_do_not_overlap(width in 1u16..300, height in 1u16..120, advice in 0u16..8, nodes: bool, videos: bool, task in 0usize..3, picked in prop::option::of(prop::collection::vec(0..PICKABLE.len(), 0..6))) {
            let screen = Rect::new(0, 0, width, height);
            let areas = areas(Size { width, height });
            let large = has_room_for_lanes(areas.body);
            let content = RunContent { task: Task::ALL[task], nodes, validation: nodes, utilization: nodes, large, videos, picked: picked.map(|all| PanelSet::of(all.into_iter().map(|at| PICKABLE[at]))) };
            let run = run_areas(areas.body, advice, Panel::Events, false, content);
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

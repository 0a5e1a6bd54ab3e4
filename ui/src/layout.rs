//! The layout of the screens: pure functions of the size, shared by `update` (paging) and `view` (drawing).

use crate::keymap::Action;
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
    /// Whether it has made videos, and there is room for one beside its charts.
    pub videos: bool,
}

impl RunContent {
    /// Returns the panels in the order of the Tab key.
    pub fn panels(self) -> Vec<Panel> {
        let nodes = [Chart::Power, Chart::NodeMemory].map(Panel::Chart).into_iter().filter(|_| self.nodes);
        let main = [self.main()].into_iter().chain(nodes.filter(|panel| !self.side().contains(panel)));
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

    /// The panels of the right column, which scrolls if they do not all fit.
    fn side(self) -> Vec<Panel> {
        let charts: &[Chart] = match self.task {
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

/// Rows of the table of an encode: a heading, the names of the columns, and four stages.
const PIPELINE_ROWS: u16 = 6;

/// Parts of the run screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAreas {
    /// State, progress, time left.
    pub state: Rect,
    /// Advice on the state and the next keys.
    pub advice: Rect,
    /// The visible panels.
    pub panels: Vec<(Panel, Rect)>,
}

/// Splits the body of the run screen. `advice` is the preferred height of the advice.
pub fn run_areas(body: Rect, advice: u16, focus: Panel, enlarged: bool, content: RunContent) -> RunAreas {
    let (state, rest) = cut_top(body, 1);
    let most = match rest.height {
        0..4 => 0,
        4..10 => 1,
        10..16 => 2,
        // The cause of a failure is more important than a large chart.
        _ => (rest.height / 3).max(5),
    };
    let (advice, rest) = cut_top(rest, advice.min(most));
    let (_, rest) = cut_top(rest, u16::from(rest.height >= 17));
    let panels = if rest.height == 0 {
        Vec::new()
    } else if enlarged || rest.width < 60 || rest.height < 15 {
        vec![(focus, rest)]
    } else {
        grid(rest, focus, content)
    };
    RunAreas { state, advice, panels }
}

/// Places the large panel, the node charts and the events on the left, and the other panels on the right. The right column
/// scrolls to the focused panel.
fn grid(area: Rect, focus: Panel, content: RunContent) -> Vec<(Panel, Rect)> {
    const GAP: u16 = 3;
    // Tall terminals have a blank row between panels, and more rows of checkpoints.
    let (air, checkpoints) = if area.height >= 36 { (1, 7) } else { (0, 3) };
    let (top, area) = cut_top(area, if content.top().is_some() { PIPELINE_ROWS } else { 0 });
    let (_, area) = cut_top(area, if content.top().is_some() { air } else { 0 });
    let right_width = (area.width * 2 / 5).max(34).min(area.width / 2);
    let left = Rect { width: area.width - right_width - GAP, ..area };
    let right = Rect { x: left.right() + GAP, width: right_width, ..area };
    let (main, events) = cut_top(left, area.height - (area.height / 3).max(5));
    let main = Rect { height: main.height - air, ..main };
    let side = content.side();
    let nodes = content.nodes && !side.contains(&Panel::Chart(Chart::Power));
    let mut panels: Vec<(Panel, Rect)> = content.top().map(|panel| (panel, top)).into_iter().collect();
    panels.extend(under_the_main(content.main(), main, air, focus, nodes));
    let mut rest = right;
    if content.task == Task::Train && content.videos {
        let (top, below) = cut_top(rest, area.height * 2 / 5);
        panels.push((Panel::Samples, Rect { height: top.height - air, ..top }));
        rest = below;
    }
    let foot = content.foot();
    let foot_height = if foot.is_some() { checkpoints } else { 0 };
    let charts = rest.height.saturating_sub(foot_height);
    let least = if air > 0 { 6 } else { 3 };
    let shown = usize::from(charts / least).clamp(1, SHOWN_OF_SIDE).min(side.len());
    let chart_height = (charts / shown as u16).saturating_sub(air);
    let focused = side.iter().position(|panel| *panel == focus).unwrap_or(0);
    let first = (focused + 1).saturating_sub(shown);
    for panel in &side[first..first + shown] {
        let (top, below) = cut_top(rest, chart_height);
        panels.push((*panel, top));
        rest = cut_top(below, air).1;
    }
    panels.extend(foot.map(|foot| (foot, rest)));
    panels.push((Panel::Events, events));
    panels
}

/// Returns whether the body of the screen has room for a picture beside the charts of a training run.
pub fn has_room_for_video(body: Rect) -> bool {
    body.width >= 110 && body.height >= 34
}

/// Places power and memory below the large panel; if there is no room for both, only the focused one.
fn under_the_main(main: Panel, area: Rect, air: u16, focus: Panel, nodes: bool) -> Vec<(Panel, Rect)> {
    let [power, memory] = [Chart::Power, Chart::NodeMemory].map(Panel::Chart);
    if !nodes {
        return vec![(main, area)];
    }
    let (rows, below) = match area.height {
        0..20 => ((area.height * 2 / 5).clamp(3, 6), vec![if focus == memory { memory } else { power }]),
        tall => ((tall / 4).max(6), vec![power, memory]),
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
        fn parts_stay_in_the_terminal_and_do_not_overlap(width in 1u16..300, height in 1u16..120, advice in 0u16..8, nodes: bool, videos: bool, task in 0usize..3) {
            let screen = Rect::new(0, 0, width, height);
            let areas = areas(Size { width, height });
            let content = RunContent { task: Task::ALL[task], nodes, validation: nodes, videos };
            let run = run_areas(areas.body, advice, Panel::Events, false, content);
            let mut parts = vec![areas.header, areas.keys, run.state, run.advice];
            parts.extend(run.panels.iter().map(|(_, area)| *area));
            parts.retain(|part| part.area() > 0);
            for (i, part) in parts.iter().enumerate() {
                prop_assert_eq!(part.intersection(screen), *part);
                prop_assert!(parts[..i].iter().all(|other| !other.intersects(*part)), "{:?}", parts);
            }
        }
    }
}

//! Everything the console knows. Plain data: no handles, no clock, no paths it opens itself.

mod convert_screen;
mod dialogs;
mod logs_screen;
mod run_screen;
mod screen;

pub use convert_screen::{ConvertScreen, Preview, Work};
pub use dialogs::{FailureDialog, HelpDialog, KillDialog, LaunchDialog, Modal};
pub(crate) use logs_screen::{LineKind, LogLine};
pub use logs_screen::{LogsScreen, Search};
pub use run_screen::RunScreen;
pub use screen::{NodeScreen, NodesScreen, RunsScreen, Screen, StagesScreen};

use crate::effect::Watch;
use crate::fleet::{Fleet, FleetSource, NodeView};
use crate::jobs::Jobs;
use crate::keymap::Context;
use crate::msg::{CurriculumView, RunList, RunRow, Size, StageView};
use crate::run_state::{StateKind, short_id};
use crate::theme::{Symbols, Theme};
use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use rundir::{Failure, RunId};
use std::collections::BTreeSet;

/// What the shell decides before the first frame.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The terminal's size.
    pub size: Size,
    /// Unix seconds.
    pub now: f64,
    /// Colours the terminal can show.
    pub theme: Theme,
    /// Glyphs the terminal can show.
    pub symbols: Symbols,
    /// The runs folder, for people to read.
    pub runs_dir: Utf8PathBuf,
    /// Where exported charts go.
    pub export_dir: Utf8PathBuf,
    /// Where the nodes to watch come from, for people to read: a hostfile, or this machine.
    pub nodes_from: String,
    /// Begin on this run's screen.
    pub open: Option<RunId>,
}

/// A line that is being typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// What it is for.
    pub purpose: Purpose,
    /// What was typed so far.
    pub text: String,
}

/// What a typed line does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Narrows the list of runs.
    Filter,
    /// Narrows the list of nodes.
    NodeFilter,
    /// Finds text in a log.
    Search,
    /// Says what is converted.
    ConvertSource,
    /// Says where it goes.
    ConvertTarget,
    /// Says which adapter is added.
    ConvertMerge,
}

/// A line that answers what was just done, shown for a few seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Notice {
    /// One sentence.
    pub text: String,
    /// Whether it says no.
    pub is_warning: bool,
    /// When it was shown, Unix seconds.
    pub since_s: f64,
}

/// How long a notice stays: long enough to read a path twice.
const NOTICE_S: f64 = 10.0;

/// Everything the console knows.
#[derive(Debug, Clone)]
pub struct Model {
    /// Set by ticks.
    pub now: f64,
    /// The terminal's size.
    pub size: Size,
    /// Colours.
    pub theme: Theme,
    /// Glyphs.
    pub symbols: Symbols,
    /// The runs folder.
    pub runs_dir: Utf8PathBuf,
    /// Where exported charts go.
    pub export_dir: Utf8PathBuf,
    /// Where the nodes come from that no run names.
    pub nodes_from: String,
    /// All runs, newest first; `None` until they were read.
    pub runs: Option<Result<RunList, Failure>>,
    /// All curricula; `None` until they were read.
    pub curricula: Option<Vec<CurriculumView>>,
    /// What is shown.
    pub screen: Screen,
    /// State of the Runs screen.
    pub runs_screen: RunsScreen,
    /// The open run; kept while another screen is shown.
    pub run: Option<RunScreen>,
    /// State of the Stages screen.
    pub stages: StagesScreen,
    /// The open log.
    pub logs: Option<LogsScreen>,
    /// The nodes that are watched.
    pub fleet: Fleet,
    /// State of the Nodes screen.
    pub nodes: NodesScreen,
    /// The open node.
    pub node: Option<NodeScreen>,
    /// State of the Convert screen.
    pub convert: ConvertScreen,
    /// A line being typed.
    pub input: Option<Input>,
    /// A dialog on top.
    pub modal: Option<Modal>,
    /// What was asked of the shell and is not answered.
    pub jobs: Jobs,
    /// The latest notice.
    pub notice: Option<Notice>,
    pub(crate) quitting: bool,
    pub(crate) dirty: bool,
}

impl Model {
    /// Makes the model of a console that was just opened.
    pub fn new(setup: Setup) -> Self {
        Self {
            now: setup.now,
            size: setup.size,
            theme: setup.theme,
            symbols: setup.symbols,
            runs_dir: setup.runs_dir,
            export_dir: setup.export_dir,
            nodes_from: setup.nodes_from,
            runs: None,
            curricula: None,
            screen: if setup.open.is_some() { Screen::Run } else { Screen::Runs },
            runs_screen: RunsScreen { selected: setup.open.clone(), ..Default::default() },
            run: setup.open.map(RunScreen::new),
            stages: StagesScreen::default(),
            logs: None,
            fleet: Fleet::default(),
            nodes: NodesScreen::default(),
            node: None,
            convert: ConvertScreen::default(),
            input: None,
            modal: None,
            jobs: Jobs::default(),
            notice: None,
            quitting: false,
            dirty: true,
        }
    }

    /// Returns whether the console was asked to close.
    pub fn quitting(&self) -> bool {
        self.quitting
    }

    /// Returns whether the picture may differ from the one last drawn.
    pub fn dirty(&self) -> bool {
        self.dirty
    }

    /// Says that the model was drawn.
    pub fn drawn(&mut self) {
        self.dirty = false;
    }

    /// Returns all runs, newest first.
    pub fn rows(&self) -> &[RunRow] {
        match &self.runs {
            Some(Ok(list)) => &list.rows,
            _ => &[],
        }
    }

    /// Returns the newest facts about a run.
    pub fn row(&self, run: &RunId) -> Option<&RunRow> {
        // The open run's own stream is ahead of the list, but it stands still while another screen is shown.
        let open = self.run.as_ref().filter(|open| open.id == *run).and_then(|open| open.status.as_ref());
        let listed = || self.rows().iter().find(|row| row.run == *run);
        match self.screen {
            Screen::Run | Screen::Logs => open.map(|status| &status.row).or_else(listed),
            Screen::Runs | Screen::Stages | Screen::Nodes | Screen::Node | Screen::Convert => listed(),
        }
    }

    /// Returns the run that keys such as "resume" act on.
    pub fn target(&self) -> Option<&RunRow> {
        match self.screen {
            Screen::Runs => self.selected_run(),
            Screen::Run | Screen::Logs => self.run.as_ref().and_then(|open| self.row(&open.id)),
            Screen::Stages | Screen::Nodes | Screen::Node | Screen::Convert => None,
        }
    }

    /// Returns the runs that pass the filter of the Runs screen.
    pub fn visible_runs(&self) -> Vec<&RunRow> {
        let wanted = self.runs_screen.filter.to_lowercase();
        let passes = |row: &&RunRow| {
            let stage = row.stage.as_deref().unwrap_or_default();
            let word = StateKind::of(&row.state).word();
            wanted.is_empty() || format!("{} {} {stage} {word}", row.run, row.name).to_lowercase().contains(&wanted)
        };
        self.rows().iter().filter(passes).collect()
    }

    /// Returns the position of the selected run among those that are visible.
    pub(crate) fn run_position(&self, rows: &[&RunRow]) -> usize {
        let chosen = self.runs_screen.selected.as_ref();
        chosen.and_then(|run| rows.iter().position(|row| row.run == *run)).unwrap_or(0)
    }

    /// Returns the run that is selected on the Runs screen.
    pub fn selected_run(&self) -> Option<&RunRow> {
        let rows = self.visible_runs();
        rows.get(self.run_position(&rows)).copied()
    }

    /// Returns the position of the selected node among those that pass the filter.
    pub(crate) fn node_position(&self) -> usize {
        let nodes = self.fleet.nodes();
        let at = |id: &NodeId| self.nodes.order.iter().position(|at| nodes.get(*at).is_some_and(|n| n.node.id == *id));
        self.nodes.selected.as_ref().and_then(at).unwrap_or(0)
    }

    /// Returns the node that is selected on the Nodes screen.
    pub fn selected_node(&self) -> Option<&NodeView> {
        self.fleet.nodes().get(*self.nodes.order.get(self.node_position())?)
    }

    /// Returns the stages of a curriculum, if it could be read.
    pub fn stages_of(&self, curriculum: &Utf8Path) -> &[StageView] {
        let found = self.curricula.iter().flatten().find(|view| view.path == curriculum);
        found.and_then(|view| view.stages.as_ref().ok()).map_or(&[], Vec::as_slice)
    }

    /// Returns the stage that follows a run's own.
    pub fn next_stage(&self, row: &RunRow) -> Option<&StageView> {
        let stages = self.stages_of(row.curriculum.as_deref()?);
        let at = stages.iter().position(|stage| Some(&stage.name) == row.stage.as_ref())?;
        stages.get(at + 1)
    }

    /// Returns the runs of a stage, newest first.
    pub fn runs_of_stage<'a>(&'a self, curriculum: &'a Utf8Path, stage: &'a str) -> impl Iterator<Item = &'a RunRow> {
        self.rows()
            .iter()
            .filter(move |row| row.curriculum.as_deref() == Some(curriculum) && row.stage.as_deref() == Some(stage))
    }

    /// Returns where the watched nodes come from, for people to read.
    pub(crate) fn nodes_source(&self) -> String {
        match &self.fleet.of {
            FleetSource::Given => self.nodes_from.clone(),
            FleetSource::Run(run) => run.to_string(),
        }
    }

    pub(crate) fn notify(&mut self, text: impl Into<String>) {
        self.notice = Some(Notice { text: text.into(), is_warning: false, since_s: self.now });
    }

    pub(crate) fn warn(&mut self, text: impl Into<String>) {
        self.notice = Some(Notice { text: text.into(), is_warning: true, since_s: self.now });
    }

    /// Shows a run's screen; what was known of it is kept if it was open already.
    pub(crate) fn open_run(&mut self, run: RunId) {
        if self.run.as_ref().is_none_or(|open| open.id != run) {
            self.run = Some(RunScreen::new(run.clone()));
        }
        self.runs_screen.selected = Some(run);
        self.logs = None;
        self.screen = Screen::Run;
    }

    pub(crate) fn set_runs(&mut self, mut runs: Result<RunList, Failure>) {
        if let Ok(list) = &mut runs {
            list.rows.sort_by(|a, b| b.created_s.total_cmp(&a.created_s).then_with(|| b.run.cmp(&a.run)));
        }
        let runs = Some(runs);
        self.dirty |= self.runs != runs;
        self.runs = runs;
    }

    /// Moves the clock, and marks the picture as old if a text on it depends on that.
    pub(crate) fn tick(&mut self, now: f64) {
        let before = std::mem::replace(&mut self.now, now);
        // A clock that was put back must not keep it for longer either.
        if self.notice.as_ref().is_some_and(|notice| !(0.0..=NOTICE_S).contains(&(now - notice.since_s))) {
            self.notice = None;
            self.dirty = true;
        }
        let active = |row: &RunRow| StateKind::of(&row.state).is_active() || now - row.updated_s < 60.0;
        // Ages count seconds while something is going on, and minutes after that.
        let period = if !self.jobs.is_empty() || self.rows().iter().any(active) { 1.0 } else { 20.0 };
        self.dirty |= (before / period).floor() != (now / period).floor();
        if matches!(self.screen, Screen::Nodes | Screen::Node) {
            // Nodes send frames all the time. They are drawn once per tick, so that rows do not jump and the cost is fixed.
            self.dirty = true;
        }
    }
}

/// Returns what the keyboard talks to: the table behind dispatch, the key bar and the help.
pub fn keymap(model: &Model) -> Context {
    match (&model.modal, &model.input, model.screen) {
        (Some(modal), _, _) => modal.context(),
        (None, Some(_), _) => Context::Input,
        (None, None, Screen::Runs) => Context::Runs,
        (None, None, Screen::Run) => Context::Run,
        (None, None, Screen::Stages) => Context::Stages,
        (None, None, Screen::Logs) => Context::Logs,
        (None, None, Screen::Nodes) => Context::Nodes,
        (None, None, Screen::Node) => Context::Node,
        (None, None, Screen::Convert) => Context::Convert,
    }
}

/// Returns the streams that should be running now. They follow from what is shown, so none can be forgotten.
pub fn watches(model: &Model) -> BTreeSet<Watch> {
    let mut wanted = BTreeSet::from([Watch::Runs, Watch::Curricula]);
    if matches!(model.screen, Screen::Nodes | Screen::Node) {
        wanted.insert(Watch::Nodes(model.fleet.of.clone()));
    }
    if let (Screen::Node, Some(open)) = (model.screen, model.node.as_ref().filter(|open| open.raw)) {
        wanted.insert(Watch::Smi { of: model.fleet.of.clone(), node: open.id.clone() });
    }
    if matches!(model.screen, Screen::Run | Screen::Logs)
        && let Some(open) = &model.run
    {
        wanted.insert(Watch::Run(open.id.clone()));
        if model.screen == Screen::Logs
            && let Some(place) = model.logs.as_ref().and_then(|logs| logs.place(open))
        {
            wanted.insert(Watch::Log { run: open.id.clone(), node: place.node.clone(), rank: place.rank });
        }
    }
    wanted
}

/// Returns what to print when the console has closed: that runs go on, and how to come back.
pub fn farewell(model: &Model) -> Option<String> {
    let active: Vec<&RunRow> = model.rows().iter().filter(|row| StateKind::of(&row.state).is_active()).collect();
    let first = active.first()?;
    let what = match active.len() {
        1 => {
            let id = short_id(&first.run);
            format!("{id} goes on without the console (step {} of {})", first.step, first.steps_total)
        }
        n => format!("{n} runs go on without the console"),
    };
    Some(format!("{what}. Open it again with: vidtui --runs {}", model.runs_dir))
}

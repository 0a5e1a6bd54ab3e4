//! The state of the console. Plain data: no handles, no clock, no open files.

mod compare_screen;
mod convert_screen;
mod dialogs;
mod drag;
mod input;
mod launch_form;
mod log_store;
mod logs_screen;
mod processes_screen;
mod run_screen;
mod samples_screen;
mod screen;
mod session;
mod sought_event;
mod viewport;

pub use compare_screen::{CompareScreen, ComparedRun, MOST_COMPARED, Quantity};
pub use convert_screen::{ConvertScreen, Preview, Work};
pub use dialogs::{
    ActionDialog, CheckpointsDialog, FailureDialog, HelpDialog, KillDialog, LaunchDialog, Modal, PaletteDialog,
    PanelsDialog, ResultsDialog, TargetsDialog,
};
pub(crate) use drag::Drag;
pub(crate) use input::one_line;
pub use input::{Input, Purpose};
pub use launch_form::{FormPanel, LaunchForm};
pub(crate) use log_store::LogLine;
pub(crate) use logs_screen::EarlierSearch;
pub use logs_screen::LogsScreen;
pub use processes_screen::ProcessesScreen;
pub use run_screen::RunScreen;
pub use samples_screen::SamplesScreen;
pub use screen::{NodeScreen, NodesScreen, RunsScreen, Screens};
pub use session::Session;
pub use sought_event::SoughtEvent;
pub use viewport::Viewport;

pub use crate::bindings::Screen;
use crate::bindings::{Action, Context};
use crate::draft::LaunchDraft;
use crate::fleet::gpu_value::StepTimes;
use crate::fleet::{Fleet, FleetSource, NodeView};
use crate::jobs::Jobs;
use crate::key_map::KeyMap;
use crate::layout;
use crate::msg::{AlertRow, CurriculumView, QueueRow, RecipeView, RunList, RunRow, Size, StageView};
use crate::panel_set::PanelChoice;
use crate::run_state::{StateKind, short_id};
use crate::theme::{Symbols, Theme};
use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use rundir::{Failure, RunId};

/// A short message about the latest action, shown for a few seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Notice {
    /// The message.
    pub text: String,
    /// Whether it is a warning.
    pub is_warning: bool,
    /// When it was shown, Unix seconds.
    pub since_s: f64,
}

/// Seconds for which a notice is shown: long enough to read a path.
const NOTICE_S: f64 = 10.0;

/// The state of the console.
#[derive(Debug, Clone)]
pub struct Model {
    /// The time of the latest tick, Unix seconds.
    pub now: f64,
    /// The terminal's size.
    pub size: Size,
    /// The colours.
    pub theme: Theme,
    /// The glyphs.
    pub symbols: Symbols,
    /// The key bindings.
    pub keys: KeyMap,
    /// The runs folder.
    pub runs_dir: Utf8PathBuf,
    /// The folder for exported charts.
    pub export_dir: Utf8PathBuf,
    /// The source of the watched nodes when they are not those of a run, for display.
    pub nodes_from: String,
    /// The defaults of a new launch: the target and options that the console was started with, without a recipe.
    pub launch: LaunchDraft,
    /// Whether the programs of a desktop can open files on this machine.
    pub has_desktop: bool,
    /// All runs, newest first; `None` while they load.
    pub runs: Option<Result<RunList, Failure>>,
    /// All curricula; `None` while they load.
    pub curricula: Option<Vec<CurriculumView>>,
    /// The alerts of all runs, newest first; `None` while they load.
    pub alerts: Option<Vec<AlertRow>>,
    /// The entries of the queue whose runs have not started, in their order.
    pub queue: Vec<QueueRow>,
    /// All recipes; `None` while they load.
    pub recipes: Option<Vec<RecipeView>>,
    /// The screen that is shown.
    pub screen: Screen,
    /// The state of each screen.
    pub screens: Screens,
    /// The panels of training runs and their layout, as the user picked them.
    pub panels: PanelChoice,
    /// The watched nodes.
    pub fleet: Fleet,
    /// The open text input.
    pub input: Option<Input>,
    /// The arguments of the last encode; the user can correct a mistake in them.
    pub encode_arguments: String,
    /// The arguments of the last launch; the user can correct a mistake in them.
    pub launch_arguments: String,
    /// The open dialog.
    pub modal: Option<Modal>,
    /// Requests to the shell that are not answered yet.
    pub jobs: Jobs,
    /// The drag over a chart that is in progress.
    pub(crate) drag: Option<Drag>,
    /// The latest notice.
    pub notice: Option<Notice>,
    pub(crate) quitting: bool,
    pub(crate) dirty: bool,
}

impl Model {
    /// Returns the name of an action's key on this screen, or on the Runs screen if it has no key here.
    pub(crate) fn key_name(&self, action: Action) -> String {
        let names = [self.screen.context(), Context::Runs].map(|context| self.keys.name(context, action));
        names.into_iter().find(|name| !name.is_empty()).unwrap_or_default()
    }

    /// Returns whether the user has quit.
    pub fn quitting(&self) -> bool {
        self.quitting
    }

    /// Returns whether the screen must be drawn again.
    pub fn dirty(&self) -> bool {
        self.dirty
    }

    /// Marks the current state of the model as drawn.
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

    /// Returns the most recent row of a run: from the stream of the open run on its screens, otherwise from the list.
    pub fn row(&self, run: &RunId) -> Option<&RunRow> {
        // The stream of the open run is newer than the list, but it runs only while its screens are shown.
        let open = self.screens.run.as_ref().filter(|open| open.id == *run).and_then(|open| open.status.as_ref());
        let listed = || self.rows().iter().find(|row| row.run == *run);
        if self.screen.is_of_run() { open.map(|status| &status.row).or_else(listed) } else { listed() }
    }

    /// Returns the run that keys such as "resume" apply to.
    pub fn target(&self) -> Option<&RunRow> {
        match self.screen {
            Screen::Runs => self.selected_run(),
            screen if screen.is_of_run() => self.screens.run.as_ref().and_then(|open| self.row(&open.id)),
            _ => None,
        }
    }

    /// Returns the run whose screen is opened: the current run, the open run, or the run selected on the Runs screen.
    pub(crate) fn run_to_open(&self) -> Option<RunId> {
        let shown = self.target().map(|row| row.run.clone());
        let run = shown.or_else(|| self.screens.run.as_ref().map(|run| run.id.clone()));
        run.or_else(|| self.selected_run().map(|row| row.run.clone()))
    }

    /// Returns the id of the open run, without its date if there is no room for all of it.
    pub(crate) fn run_subject(&self, room: usize) -> String {
        match &self.screens.run {
            Some(run) if run.id.as_str().len() > room => short_id(&run.id).to_owned(),
            Some(run) => run.id.to_string(),
            None => self.runs_dir.to_string(),
        }
    }

    /// Returns the runs that pass the filter of the Runs screen.
    pub fn visible_runs(&self) -> Vec<&RunRow> {
        let wanted = self.screens.runs.filter.to_lowercase();
        let passes = |row: &&RunRow| {
            let stage = row.stage.as_deref().unwrap_or_default();
            let word = StateKind::of(&row.state).word();
            let note = row.note.as_deref().unwrap_or_default();
            let text = || format!("{} {} {stage} {word} {note}", row.run, row.name).to_lowercase();
            wanted.is_empty() || text().contains(&wanted)
        };
        self.rows().iter().filter(passes).collect()
    }

    /// Returns the position of the selected run among those that are visible.
    pub(crate) fn run_position(&self, rows: &[&RunRow]) -> usize {
        let chosen = self.screens.runs.selected.as_ref();
        chosen.and_then(|run| rows.iter().position(|row| row.run == *run)).unwrap_or(0)
    }

    /// Returns the run that is selected on the Runs screen.
    pub fn selected_run(&self) -> Option<&RunRow> {
        let rows = self.visible_runs();
        rows.get(self.run_position(&rows)).copied()
    }

    /// Returns the step times of the open run on the GPUs of its nodes.
    pub fn step_times(&self) -> Option<StepTimes<'_>> {
        self.screens.run.as_ref().and_then(RunScreen::step_times)
    }

    /// Returns the position of the selected node among those that pass the filter.
    pub(crate) fn node_position(&self) -> usize {
        let nodes = self.fleet.nodes();
        let at = |id: &NodeId| {
            self.screens.nodes.order.iter().position(|at| nodes.get(*at).is_some_and(|n| n.node.id == *id))
        };
        self.screens.nodes.selected.as_ref().and_then(at).unwrap_or(0)
    }

    /// Returns the node that is selected on the Nodes screen.
    pub fn selected_node(&self) -> Option<&NodeView> {
        self.fleet.nodes().get(*self.screens.nodes.order.get(self.node_position())?)
    }

    /// Returns the stages of a curriculum; empty if the file is unknown or cannot be read.
    pub fn stages_of(&self, curriculum: &Utf8Path) -> &[StageView] {
        let found = self.curricula.iter().flatten().find(|view| view.path == curriculum);
        found.and_then(|view| view.stages.as_ref().ok()).map_or(&[], Vec::as_slice)
    }

    /// Returns the stage that follows the stage of a run.
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

    /// Returns the source of the watched nodes, for display.
    pub(crate) fn nodes_source(&self) -> String {
        match &self.fleet.of {
            FleetSource::Given => self.nodes_from.clone(),
            FleetSource::Run(run) => run.to_string(),
            FleetSource::Hostfile(path) => format!("hostfile {path}"),
        }
    }

    pub(crate) fn notify(&mut self, text: impl Into<String>) {
        self.notice = Some(Notice { text: text.into(), is_warning: false, since_s: self.now });
    }

    pub(crate) fn warn(&mut self, text: impl Into<String>) {
        self.notice = Some(Notice { text: text.into(), is_warning: true, since_s: self.now });
    }

    /// Opens a run's screen. A run that is already open keeps its data.
    pub(crate) fn open_run(&mut self, run: RunId) {
        if self.screens.run.as_ref().is_none_or(|open| open.id != run) {
            // A large chart has room for the raw line behind the moving average.
            let smoothing = layout::has_room_for_lanes(layout::areas(self.size).body).then_some(0);
            // The Runs screen may already stream this run: keep its data and its stream.
            let shown = self.screens.preview.take_if(|open| open.id == run);
            self.screens.run = Some(RunScreen { smoothing, ..shown.unwrap_or_else(|| RunScreen::new(run.clone())) });
        }
        self.screens.runs.selected = Some(run);
        self.screens.logs = None;
        self.screen = Screen::Run;
    }

    pub(crate) fn set_runs(&mut self, mut runs: Result<RunList, Failure>) {
        if let Ok(list) = &mut runs {
            list.rows.sort_by(|a, b| b.created_s.total_cmp(&a.created_s).then_with(|| b.run.cmp(&a.run)));
        }
        let runs = Some(runs);
        self.dirty |= self.runs != runs;
        if let Some(Ok(list)) = &runs {
            self.screens.runs.marked.retain(|run| list.rows.iter().any(|row| row.run == *run));
        }
        self.runs = runs;
    }

    /// Sets the clock, and marks the screen as dirty if a text on it depends on the time.
    pub(crate) fn tick(&mut self, now: f64) {
        let before = std::mem::replace(&mut self.now, now);
        if now < before {
            self.fleet.clock_set_back(now);
        }
        // A clock that was set back must not extend the notice.
        if self.notice.as_ref().is_some_and(|notice| !(0.0..=NOTICE_S).contains(&(now - notice.since_s))) {
            self.notice = None;
            self.dirty = true;
        }
        let active = |row: &RunRow| StateKind::of(&row.state).is_active() || now - row.updated_s < 60.0;
        // Ages change every second while a run is active, and every 20 seconds otherwise.
        let period = if !self.jobs.is_empty() || self.rows().iter().any(active) { 1.0 } else { 20.0 };
        self.dirty |= (before / period).floor() != (now / period).floor();
    }
}

/// Returns the context of key presses: the table of keys for dispatch, key bar and help.
pub fn context(model: &Model) -> Context {
    match (&model.modal, &model.input) {
        (Some(modal), _) => modal.context(),
        (None, Some(_)) => Context::Input,
        (None, None) => model.screen.context(),
    }
}

/// Returns the text to print after the console closes, if runs are active: which runs continue, and how to reopen the
/// console.
pub fn closing_message(model: &Model) -> Option<String> {
    // The stream of the open run is newer than the list: a run that was just resumed is active only there.
    let newest = model.rows().iter().filter_map(|row| model.row(&row.run));
    let active: Vec<&RunRow> = newest.filter(|row| StateKind::of(&row.state).is_active()).collect();
    let first = active.first()?;
    let what = match active.len() {
        1 => {
            format!("{} continues without the console ({})", short_id(&first.run), first.progress().in_words())
        }
        n => format!("{n} runs continue without the console"),
    };
    Some(format!("{what}. Reopen it with: vidtui --runs {}", model.runs_dir))
}

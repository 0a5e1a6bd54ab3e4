//! The start of a console: the settings of the shell, the first model, and what it restores of the previous console.

use crate::draft::LaunchDraft;
use crate::fleet::gpu_value::GpuValue;
use crate::fleet::{Fleet, FleetSource, HistoryWindow, Sort};
use crate::jobs::Jobs;
use crate::key_map::KeyMap;
use crate::model::{FailureDialog, Modal, Model, NodesScreen, RunScreen, RunsScreen, Screen, Screens, Session};
use crate::msg::Size;
use crate::panel_set::{MOST_COLUMNS, PanelChoice};
use crate::screens::behaviour;
use crate::series::XAxis;
use crate::theme::{Symbols, Theme};
use camino::Utf8PathBuf;
use rundir::{Failure, RunId};

/// Settings that the shell chooses before the first frame.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The terminal's size.
    pub size: Size,
    /// The time of the start, Unix seconds.
    pub now: f64,
    /// The colours that the terminal can show.
    pub theme: Theme,
    /// The glyphs that the terminal can show.
    pub symbols: Symbols,
    /// The key bindings, with the changes of the user.
    pub keys: KeyMap,
    /// The runs folder, for display.
    pub runs_dir: Utf8PathBuf,
    /// The folder for exported charts.
    pub export_dir: Utf8PathBuf,
    /// The source of the watched nodes, for display: a hostfile, or this machine.
    pub nodes_from: String,
    /// The launch that the command-line options describe; its recipe is empty.
    pub launch: LaunchDraft,
    /// Whether the programs of a desktop can open files on this machine.
    pub has_desktop: bool,
    /// The run to open at the start.
    pub open: Option<RunId>,
    /// The last screen of the previous console; `open` replaces its screen and its run.
    pub session: Option<Session>,
    /// Why the user's settings cannot be used; shown at the start.
    pub problem: Option<Failure>,
}

impl Model {
    /// Returns the model of a console that has just opened.
    pub fn new(setup: Setup) -> Self {
        // The run to open replaces only the screen and the run of the restored session.
        let session = setup.session.map(|session| match &setup.open {
            Some(run) => Session { screen: Screen::Run, run: Some(run.clone()), zoom: None, ..session },
            None => session,
        });
        let modal = setup.problem.map(|failure| Modal::Failure(FailureDialog { failure, scroll: 0 }));
        let mut model = Self {
            now: setup.now,
            size: setup.size,
            theme: setup.theme,
            symbols: setup.symbols,
            keys: setup.keys,
            runs_dir: setup.runs_dir,
            export_dir: setup.export_dir,
            nodes_from: setup.nodes_from,
            launch: setup.launch,
            has_desktop: setup.has_desktop,
            runs: None,
            curricula: None,
            alerts: None,
            queue: Vec::new(),
            recipes: None,
            screen: if setup.open.is_some() { Screen::Run } else { Screen::Runs },
            screens: Screens {
                runs: RunsScreen { selected: setup.open.clone(), ..Default::default() },
                run: setup.open.map(RunScreen::new),
                ..Screens::default()
            },
            panels: PanelChoice::default(),
            fleet: Fleet::default(),
            input: None,
            encode_arguments: String::new(),
            launch_arguments: String::new(),
            modal,
            jobs: Jobs::default(),
            drag: None,
            notice: None,
            quitting: false,
            dirty: true,
        };
        if let Some(session) = session {
            model.restore(&session);
        }
        model
    }

    /// Returns the state that the next console restores.
    pub fn session(&self) -> Session {
        let open = self.screens.run.as_ref();
        let mut session = Session {
            screen: self.screen,
            selected: self.screens.runs.selected.clone(),
            filter: self.screens.runs.filter.clone(),
            x: open.map_or_else(XAxis::default, |open| open.x),
            smoothing: open.and_then(|open| open.smoothing),
            panels: self.panels.picked.clone(),
            columns: self.panels.columns,
            log_y: self.panels.log_y.clone(),
            node_order: self.screens.nodes.sort.word().to_owned(),
            node_order_reversed: self.screens.nodes.reverse,
            heat_map: self.screens.nodes.heat.map(|value| value.word().to_owned()),
            history_s: self.screens.nodes.window.seconds() as u32,
            ..Session::default()
        };
        behaviour(self.screen).save(self, &mut session);
        session
    }

    /// Restores the state of a previous console.
    fn restore(&mut self, session: &Session) {
        self.restore_nodes(session);
        self.screens.runs.selected = session.run.clone().or_else(|| session.selected.clone());
        self.screens.runs.filter.clone_from(&session.filter);
        let (picked, log_y) = (session.panels.clone(), session.log_y.clone());
        self.panels = PanelChoice { picked, columns: session.columns.min(MOST_COLUMNS), log_y };
        self.screen = behaviour(session.screen).restore(self, session);
    }

    /// Restores the source and the order of the nodes, and how they are shown.
    fn restore_nodes(&mut self, session: &Session) {
        if let Some(run) = &session.nodes_of {
            self.fleet.turn_to(FleetSource::Run(run.clone()));
        }
        let order = Sort::ALL.into_iter().find(|(_, word)| *word == session.node_order);
        let shown = |word: &String| GpuValue::ALL.into_iter().find(|value| value.word() == word);
        let heat = session.heat_map.as_ref().and_then(shown);
        // The open run has the step times of ranks, and no run is open beside the nodes now.
        let heat = heat.map(|value| if value == GpuValue::StepTime { GpuValue::Power } else { value });
        let mut windows = [HistoryWindow::TenMinutes, HistoryWindow::Hour, HistoryWindow::TwelveHours].into_iter();
        let window = windows.find(|window| window.seconds() == f64::from(session.history_s));
        self.screens.nodes = NodesScreen {
            selected: session.node.clone(),
            heat,
            sort: order.map_or_else(Sort::default, |(sort, _)| sort),
            reverse: session.node_order_reversed,
            window: window.unwrap_or_default(),
            ..NodesScreen::default()
        };
    }
}

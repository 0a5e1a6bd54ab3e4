//! Every key, once: dispatch, the key bar and the help screen all read these tables.

use crate::msg::{Key, KeyCode};

/// What a key means. Named by meaning, so that a binding can move without a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is described by its binding's help text, shown on the help screen")]
pub enum Action {
    // everywhere
    Quit,
    Suspend,
    Help,
    ShowRuns,
    ShowStages,
    ShowNodes,
    NodesOfRun,
    ShowConvert,
    Back,
    // moving in lists and text
    Up,
    Down,
    PageUp,
    PageDown,
    Top,
    Bottom,
    // runs
    Open,
    NewRun,
    NextStage,
    Resume,
    Stop,
    Kill,
    Stacks,
    Logs,
    Filter,
    CopyPath,
    // charts
    FocusNext,
    FocusPrevious,
    Enlarge,
    CursorLeft,
    CursorRight,
    ZoomIn,
    ZoomOut,
    ResetView,
    LogY,
    Smooth,
    ToggleX,
    ExportSvg,
    ExportPng,
    Checkpoints,
    // stages
    StartStage,
    // convert
    Edit,
    OptionNext,
    OptionPrevious,
    Convert,
    Replace,
    CancelWork,
    // logs
    Follow,
    Wrap,
    Search,
    SearchNext,
    SearchPrevious,
    RankNext,
    RankPrevious,
    // nodes
    Sort,
    ReverseSort,
    RawText,
    NodeNext,
    NodePrevious,
    // dialogs
    Accept,
    Cancel,
    Yes,
    No,
    Toggle,
}

/// One row of a key table.
#[derive(Debug, Clone, Copy)]
pub struct Binding {
    /// The keys that do it; the first one is shown in the key bar.
    pub keys: &'static [Key],
    /// What they do.
    pub action: Action,
    /// One or two words for the key bar; empty when it belongs only in the help.
    pub label: &'static str,
    /// A sentence for the help screen.
    pub help: &'static str,
}

/// What the keyboard talks to at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "one per screen and dialog")]
pub enum Context {
    Runs,
    Run,
    Stages,
    Logs,
    Nodes,
    Node,
    Convert,
    Help,
    LaunchDialog,
    KillDialog,
    FailureDialog,
    Input,
}

impl Context {
    /// All of them, screens first.
    pub const ALL: [Self; 12] = [
        Self::Runs,
        Self::Run,
        Self::Stages,
        Self::Logs,
        Self::Nodes,
        Self::Node,
        Self::Convert,
        Self::LaunchDialog,
        Self::KillDialog,
        Self::FailureDialog,
        Self::Input,
        Self::Help,
    ];

    /// Returns the heading of its section on the help screen.
    pub fn title(self) -> &'static str {
        match self {
            Self::Runs => "Runs",
            Self::Run => "One run",
            Self::Stages => "Stages",
            Self::Logs => "Logs",
            Self::Nodes => "Nodes",
            Self::Node => "One node",
            Self::Convert => "Convert",
            Self::Help => "This help",
            Self::LaunchDialog => "Launch dialog",
            Self::KillDialog => "Kill dialog",
            Self::FailureDialog => "Failure message",
            Self::Input => "While typing",
        }
    }

    /// Returns its own bindings, the most useful first.
    pub fn bindings(self) -> &'static [Binding] {
        match self {
            Self::Runs => RUNS,
            Self::Run => RUN,
            Self::Stages => STAGES,
            Self::Logs => LOGS,
            Self::Nodes => NODES,
            Self::Node => NODE,
            Self::Convert => CONVERT,
            Self::Help => HELP,
            Self::LaunchDialog => LAUNCH,
            Self::KillDialog => KILL,
            Self::FailureDialog => FAILURE,
            Self::Input => INPUT,
        }
    }

    /// Returns the bindings that work here besides its own: all global ones on screens, the vital ones in dialogs.
    pub fn global(self) -> &'static [Binding] {
        match self {
            Self::Runs | Self::Run | Self::Stages | Self::Logs | Self::Nodes | Self::Node | Self::Convert => SCREENS,
            _ => ALWAYS,
        }
    }

    /// Iterates over everything that works here, its own bindings first.
    pub fn all_bindings(self) -> impl Iterator<Item = &'static Binding> {
        self.bindings().iter().chain(self.global())
    }

    /// Returns the name of an action's first key here; empty where it has none.
    pub fn key_of(self, action: Action) -> String {
        let binding = self.all_bindings().find(|binding| binding.action == action);
        binding.and_then(|binding| binding.keys.first()).map_or_else(String::new, |key| key.name())
    }

    /// Returns what a key means here.
    pub fn action(self, key: Key) -> Option<Action> {
        self.all_bindings().find(|binding| binding.keys.contains(&key)).map(|binding| binding.action)
    }
}

impl Key {
    /// Returns what the key is called on the screen.
    pub fn name(self) -> String {
        let name = match self.code {
            KeyCode::Char(' ') => "Space".to_owned(),
            KeyCode::Char(c) if self.ctrl => c.to_uppercase().to_string(),
            KeyCode::Char(c) => c.to_string(),
            KeyCode::Enter => "Enter".to_owned(),
            KeyCode::Esc => "Esc".to_owned(),
            KeyCode::Tab => "Tab".to_owned(),
            KeyCode::BackTab => "Shift-Tab".to_owned(),
            KeyCode::Backspace => "Backspace".to_owned(),
            KeyCode::Delete => "Delete".to_owned(),
            KeyCode::Up => "Up".to_owned(),
            KeyCode::Down => "Down".to_owned(),
            KeyCode::Left => "Left".to_owned(),
            KeyCode::Right => "Right".to_owned(),
            KeyCode::Home => "Home".to_owned(),
            KeyCode::End => "End".to_owned(),
            KeyCode::PageUp => "PgUp".to_owned(),
            KeyCode::PageDown => "PgDn".to_owned(),
        };
        match (self.ctrl, self.alt) {
            (true, _) => format!("Ctrl-{name}"),
            (_, true) => format!("Alt-{name}"),
            _ => name,
        }
    }
}

const fn bind(keys: &'static [Key], action: Action, label: &'static str, help: &'static str) -> Binding {
    Binding { keys, action, label, help }
}

const ENTER: Key = Key::code(KeyCode::Enter);
const ESC: Key = Key::code(KeyCode::Esc);

// Moving is the same everywhere; a macro because constant slices cannot be concatenated.
macro_rules! with_motion {
    ($($binding:expr),* $(,)?) => {
        &[
            $($binding,)*
            bind(&[Key::code(KeyCode::Down), Key::ch('j')], Action::Down, "", "move down"),
            bind(&[Key::code(KeyCode::Up), Key::ch('k')], Action::Up, "", "move up"),
            bind(&[Key::code(KeyCode::PageDown), Key::ctrl('d')], Action::PageDown, "", "move down a page"),
            bind(&[Key::code(KeyCode::PageUp), Key::ctrl('u')], Action::PageUp, "", "move up a page"),
            bind(&[Key::ch('g'), Key::code(KeyCode::Home)], Action::Top, "", "go to the beginning"),
            bind(&[Key::ch('G'), Key::code(KeyCode::End)], Action::Bottom, "", "go to the end"),
        ]
    };
}

/// Works everywhere, in dialogs too.
const ALWAYS: &[Binding] = &[
    bind(&[Key::ctrl('c')], Action::Quit, "", "close the console; runs go on"),
    bind(&[Key::ctrl('z')], Action::Suspend, "", "suspend the console; fg brings it back"),
];

/// Works on every screen.
const SCREENS: &[Binding] = &[
    bind(&[Key::ch('?')], Action::Help, "help", "show the keys"),
    bind(&[Key::ch('q'), Key::ctrl('c')], Action::Quit, "quit", "close the console; runs go on"),
    bind(&[Key::ch('1')], Action::ShowRuns, "", "show all runs"),
    bind(&[Key::ch('2')], Action::ShowStages, "", "show the stages"),
    bind(&[Key::ch('3')], Action::ShowNodes, "", "show the nodes of the hostfile, or this machine"),
    bind(&[Key::ch('4')], Action::ShowConvert, "", "convert weights"),
    bind(&[Key::ctrl('z')], Action::Suspend, "", "suspend the console; fg brings it back"),
];

const RUNS: &[Binding] = with_motion![
    bind(&[ENTER], Action::Open, "open", "open the selected run: its charts, checkpoints and events"),
    bind(&[Key::ch('r')], Action::Resume, "resume", "go on from the run's newest checkpoint"),
    bind(&[Key::ch('s')], Action::Stop, "stop", "save a checkpoint, then stop the run"),
    bind(&[Key::ch('n')], Action::NewRun, "new run", "choose a stage and start it"),
    bind(&[Key::ch('l')], Action::Logs, "logs", "read what the run's ranks print"),
    bind(&[Key::ch('/')], Action::Filter, "filter", "show only runs whose name, stage or state contains a text"),
    bind(&[Key::ch('K')], Action::Kill, "kill", "end the run's processes by force; asks first"),
    bind(
        &[Key::ch('t')],
        Action::Stacks,
        "stacks",
        "write the stacks of all ranks into the run's folder: where a run that hangs is; signals nothing",
    ),
    bind(&[Key::ch('N')], Action::NodesOfRun, "nodes", "watch the nodes that the run is on"),
    bind(&[Key::ch('y')], Action::CopyPath, "", "copy the path of the run's folder"),
    bind(&[ESC], Action::Back, "", "clear the filter"),
];

const RUN: &[Binding] = &[
    bind(&[Key::ch('r')], Action::Resume, "resume", "go on from the newest checkpoint"),
    bind(&[Key::ch('n')], Action::NextStage, "next stage", "start the next stage from this run's newest checkpoint"),
    bind(&[Key::ch('s')], Action::Stop, "stop", "save a checkpoint, then stop the run"),
    bind(&[Key::ch('l')], Action::Logs, "logs", "read what the run's ranks print"),
    bind(
        &[Key::code(KeyCode::Tab)],
        Action::FocusNext,
        "next panel",
        "move to the next panel: a chart, the checkpoints or the events",
    ),
    bind(&[Key::code(KeyCode::BackTab)], Action::FocusPrevious, "", "move to the previous panel"),
    bind(&[ENTER, Key::ch('z')], Action::Enlarge, "enlarge", "give the panel the whole screen, or make it small again"),
    bind(&[Key::ch('e')], Action::ExportSvg, "export", "write the chart to an SVG file"),
    bind(&[Key::ch('E')], Action::ExportPng, "", "write the chart to a PNG file"),
    bind(&[ESC], Action::Back, "back", "make the panel small again, or go back to the runs"),
    bind(&[Key::code(KeyCode::Left)], Action::CursorLeft, "", "read values further left; the view follows"),
    bind(
        &[Key::code(KeyCode::Right)],
        Action::CursorRight,
        "read values",
        "read values further right; the view follows",
    ),
    bind(
        &[Key::code(KeyCode::PageUp), Key::ctrl('u')],
        Action::PageUp,
        "",
        "move the view half a width left, or a list up",
    ),
    bind(
        &[Key::code(KeyCode::PageDown), Key::ctrl('d')],
        Action::PageDown,
        "",
        "move the view half a width right, or a list down",
    ),
    bind(&[Key::ch('+'), Key::ch('=')], Action::ZoomIn, "zoom", "zoom in"),
    bind(&[Key::ch('-'), Key::ch('_')], Action::ZoomOut, "", "zoom out"),
    bind(&[Key::ch('0')], Action::ResetView, "all", "show everything again and follow the newest step"),
    bind(&[Key::ch('L')], Action::LogY, "log y", "logarithmic y axis, on or off"),
    bind(&[Key::ch('S')], Action::Smooth, "smooth", "smooth the lines more, or not at all; the raw line stays, faint"),
    bind(&[Key::ch('x')], Action::ToggleX, "time", "x axis: steps or time"),
    bind(&[Key::ch('N')], Action::NodesOfRun, "nodes", "watch the nodes that the run is on"),
    bind(&[Key::ch('c')], Action::Checkpoints, "checkpoints", "list the checkpoints"),
    bind(&[Key::ch('K')], Action::Kill, "kill", "end the run's processes by force; asks first"),
    bind(
        &[Key::ch('t')],
        Action::Stacks,
        "stacks",
        "write the stacks of all ranks into the run's folder: where a run that hangs is; signals nothing",
    ),
    bind(&[Key::ch('y')], Action::CopyPath, "", "copy the path of the run's folder"),
    bind(&[Key::code(KeyCode::Down), Key::ch('j')], Action::Down, "", "move down in a list"),
    bind(&[Key::code(KeyCode::Up), Key::ch('k')], Action::Up, "", "move up in a list"),
    bind(&[Key::ch('g'), Key::code(KeyCode::Home)], Action::Top, "", "go to the beginning"),
    bind(&[Key::ch('G'), Key::code(KeyCode::End)], Action::Bottom, "", "go to the end"),
];

const STAGES: &[Binding] = with_motion![
    bind(&[ENTER], Action::StartStage, "start", "start the selected stage; shows what would run and asks"),
    bind(&[Key::ch('o')], Action::Open, "open its run", "open the newest run of the selected stage"),
    bind(&[ESC], Action::Back, "back", "go back"),
];

const CONVERT: &[Binding] = with_motion![
    bind(&[ENTER], Action::Edit, "change", "type the path of the selected line, or choose the next option"),
    bind(&[Key::ch('c')], Action::Convert, "convert", "convert as the preview shows it"),
    bind(&[Key::ch('X')], Action::CancelWork, "cancel", "stop the conversion; nothing of it is left"),
    bind(&[Key::ch('r')], Action::Replace, "", "replace an earlier conversion that is in the way, or leave it"),
    bind(&[Key::code(KeyCode::Right), Key::ch(' ')], Action::OptionNext, "option", "choose the next option"),
    bind(&[Key::code(KeyCode::Left)], Action::OptionPrevious, "", "choose the option before"),
    bind(&[ESC], Action::Back, "back", "go back to the runs; a conversion goes on"),
];

const LOGS: &[Binding] = with_motion![
    bind(&[Key::ch('f')], Action::Follow, "follow", "keep to the newest lines, on or off"),
    bind(&[Key::ch('/')], Action::Search, "search", "find a text (a regular expression)"),
    bind(&[Key::ch('n')], Action::SearchNext, "next", "go to the next match"),
    bind(&[Key::ch('N')], Action::SearchPrevious, "", "go to the previous match"),
    bind(&[Key::ch(']')], Action::RankNext, "next rank", "show the next rank's log"),
    bind(&[Key::ch('[')], Action::RankPrevious, "", "show the previous rank's log"),
    bind(&[Key::ch('w')], Action::Wrap, "wrap", "break long lines, or cut them"),
    bind(&[ESC], Action::Back, "back", "clear the search, or go back to the run"),
];

const NODES: &[Binding] = with_motion![
    bind(&[ENTER], Action::Open, "open", "open the selected node: its GPUs and what runs on them"),
    bind(&[Key::ch('o')], Action::Sort, "sort", "sort by the next thing: faults, power, utilization, memory, …"),
    bind(&[Key::ch('O')], Action::ReverseSort, "reverse", "sort the other way round"),
    bind(&[Key::ch('/')], Action::Filter, "filter", "show only nodes whose name, state or fault contains a text"),
    bind(&[ESC], Action::Back, "back", "clear the filter, or go back"),
];

const NODE: &[Binding] = with_motion![
    bind(&[Key::ch('t')], Action::RawText, "nvidia-smi", "show what nvidia-smi prints there, or the tables again"),
    bind(&[Key::ch(']')], Action::NodeNext, "next node", "show the next node"),
    bind(&[Key::ch('[')], Action::NodePrevious, "", "show the previous node"),
    bind(&[ESC], Action::Back, "back", "go back to all nodes"),
];

const HELP: &[Binding] =
    with_motion![bind(&[ESC, Key::ch('?'), Key::ch('q'), ENTER], Action::Cancel, "close", "close the help")];

const LAUNCH: &[Binding] = with_motion![
    bind(&[ENTER], Action::Accept, "start", "start the run as shown"),
    bind(&[ESC, Key::ch('q')], Action::Cancel, "cancel", "close without starting anything"),
];

const KILL: &[Binding] = with_motion![
    bind(&[Key::ch('y')], Action::Yes, "yes, kill", "kill what is listed"),
    bind(&[Key::ch('n'), ESC, Key::ch('q')], Action::No, "no", "close without killing anything"),
    bind(
        &[Key::code(KeyCode::Tab), Key::code(KeyCode::BackTab), Key::code(KeyCode::Left), Key::code(KeyCode::Right)],
        Action::Toggle,
        "",
        "move between No and Yes",
    ),
    bind(&[ENTER], Action::Accept, "", "press the marked button; No is marked at first"),
];

const FAILURE: &[Binding] = with_motion![
    bind(&[ENTER, ESC, Key::ch('q')], Action::Cancel, "close", "close the message"),
    bind(&[Key::ch('c')], Action::Convert, "", "convert the weights that a stage cannot start from as they are"),
];

const INPUT: &[Binding] =
    &[bind(&[ENTER], Action::Accept, "done", "keep the text"), bind(&[ESC], Action::Cancel, "clear", "drop the text")];

//! The tables of the default keys, which dispatch, the key bar and the help dialog share. [`KeyMap`](crate::KeyMap) has the
//! changes of the user.

mod condition;

pub use condition::Condition;

use crate::msg::{Key, KeyCode};
use serde::{Deserialize, Serialize};

/// The action of a key. It is named by its meaning, so that changing a key needs no rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the help text of its binding describes it")]
pub enum Action {
    // all screens
    Quit,
    Suspend,
    Help,
    Palette,
    ShowRuns,
    ShowStages,
    ShowNodes,
    NodesOfRun,
    ShowConvert,
    ShowAlerts,
    ShowRecipes,
    Back,
    // movement in lists and text
    Up,
    Down,
    PageUp,
    PageDown,
    Top,
    Bottom,
    // runs
    Open,
    NewRun,
    Queue,
    NextStage,
    Resume,
    ResumeWith,
    Note,
    Stop,
    Kill,
    Stacks,
    PickPanels,
    Logs,
    Filter,
    CopyPath,
    Compare,
    RankMap,
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
    MetricNext,
    MetricPrevious,
    Recipes,
    Export,
    Checkpoints,
    WeightsOnly,
    FreshData,
    Pin,
    Delete,
    Samples,
    Encode,
    Attach,
    Prompt,
    // samples
    SampleNext,
    SamplePrevious,
    Play,
    SideBySide,
    // stages
    StartStage,
    LaunchRecipe,
    LaunchForm,
    // launch form
    SetKey,
    EditKey,
    UnsetKey,
    Defaults,
    Targets,
    Ranks,
    Fit,
    Weights,
    Push,
    Waive,
    CheckAgain,
    // convert
    Edit,
    OptionNext,
    OptionPrevious,
    Convert,
    Replace,
    CancelWork,
    // alerts
    Acknowledge,
    AcknowledgeAll,
    Snooze,
    TestAlerts,
    // logs
    Follow,
    Wrap,
    Search,
    SearchNext,
    SearchPrevious,
    RankNext,
    RankPrevious,
    AllRanks,
    LogRanks,
    NextLevel,
    FirstError,
    Expand,
    Unfold,
    // nodes
    HeatMap,
    Sort,
    ReverseSort,
    Mark,
    Processes,
    AllUsers,
    RawText,
    NodeNext,
    NodePrevious,
    // text input
    LineStart,
    LineEnd,
    DeleteBefore,
    DeleteAfter,
    DeleteWord,
    DeleteToStart,
    Complete,
    // dialogs
    Accept,
    Cancel,
    Yes,
    No,
    Toggle,
    MoveEarlier,
    MoveLater,
    Columns,
}

/// One row of a key table.
#[derive(Debug, Clone, Copy)]
pub struct Binding {
    /// The default keys; the key bar shows the first one.
    pub keys: &'static [Key],
    /// What the keys do.
    pub action: Action,
    /// One or two words for the key bar; empty for bindings that only the help lists.
    pub label: &'static str,
    /// A phrase for the help dialog.
    pub help: &'static str,
    /// When the action is possible. The list of actions dims an action that is not possible, and the key bar hides its key.
    pub when: Condition,
    /// When the key bar shows the key, in addition to `when`.
    pub shown_when: Condition,
    /// Labels that replace `label` while their condition holds; the first one that holds counts.
    pub labels: &'static [(Condition, &'static str)],
}

impl Binding {
    /// Sets when the action is possible.
    const fn when(self, when: Condition) -> Self {
        Self { when, ..self }
    }

    /// Sets when the key bar shows the key, if the action is possible.
    const fn shown_when(self, shown_when: Condition) -> Self {
        Self { shown_when, ..self }
    }

    /// Sets labels for some states.
    const fn labels(self, labels: &'static [(Condition, &'static str)]) -> Self {
        Self { labels, ..self }
    }
}

/// Declares the screens and dialogs, each with the heading of its section on the help screen, and its key table with the most useful
/// binding first.
macro_rules! contexts {
    (
        screens { $($(#[$default:meta])* $screen:ident: $screen_title:literal, $screen_table:ident;)* }
        dialogs { $($dialog:ident: $dialog_title:literal, $dialog_table:ident;)* }
    ) => {
        /// The screen that fills the terminal.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[allow(missing_docs, reason = "one per file in screens/")]
        pub enum Screen {
            $($(#[$default])* $screen,)*
        }

        /// The screen or dialog that receives key presses.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[allow(missing_docs, reason = "one per screen and dialog")]
        pub enum Context {
            $($screen,)*
            $($dialog,)*
        }

        impl Screen {
            /// All screens.
            pub const ALL: [Self; [$(Screen::$screen),*].len()] = [$(Self::$screen),*];

            /// Returns the key table of the screen.
            pub fn context(self) -> Context {
                match self {
                    $(Self::$screen => Context::$screen,)*
                }
            }
        }

        impl Context {
            /// All contexts, screens first.
            pub const ALL: [Self; [$(Context::$screen,)* $(Context::$dialog),*].len()] =
                [$(Self::$screen,)* $(Self::$dialog),*];

            /// Returns the screen; `None` for a dialog.
            pub fn screen(self) -> Option<Screen> {
                match self {
                    $(Self::$screen => Some(Screen::$screen),)*
                    $(Self::$dialog => None,)*
                }
            }

            /// Returns the heading of the context's section on the help screen.
            pub fn title(self) -> &'static str {
                match self {
                    $(Self::$screen => $screen_title,)*
                    $(Self::$dialog => $dialog_title,)*
                }
            }

            /// Returns the bindings of this context alone, the most useful first.
            pub fn bindings(self) -> &'static [Binding] {
                match self {
                    $(Self::$screen => $screen_table,)*
                    $(Self::$dialog => $dialog_table,)*
                }
            }
        }
    };
}

contexts! {
    screens {
        #[default]
        Runs: "Runs", RUNS;
        Run: "Run", RUN;
        Compare: "Compare", COMPARE;
        Stages: "Stages", STAGES;
        Recipes: "Recipes", RECIPES;
        Launch: "Launch form", FORM;
        Logs: "Logs", LOGS;
        Samples: "Samples", SAMPLES;
        Nodes: "Nodes", NODES;
        Node: "Node", NODE;
        Processes: "Processes", PROCESSES;
        Convert: "Convert", CONVERT;
        Alerts: "Alerts", ALERTS;
    }
    dialogs {
        LaunchDialog: "Launch dialog", LAUNCH;
        KillDialog: "Kill dialog", KILL;
        ActionDialog: "Plan dialog", ACTION;
        ResultsDialog: "Results dialog", RESULTS;
        CheckpointsDialog: "Checkpoints dialog", CHECKPOINTS;
        TargetsDialog: "Targets dialog", TARGETS;
        PanelsDialog: "Panels dialog", PANELS;
        FailureDialog: "Error dialog", FAILURE;
        Palette: "Actions", PALETTE;
        Input: "Text input", INPUT;
        Help: "Help", HELP;
    }
}

impl Action {
    /// Returns whether the action changes a run, a form, weights or alerts. Some of these actions need no dialog.
    pub fn changes_something(self) -> bool {
        matches!(
            self,
            Self::NextStage
                | Self::Resume
                | Self::ResumeWith
                | Self::Stop
                | Self::Kill
                | Self::Stacks
                | Self::FreshData
                | Self::WeightsOnly
                | Self::Pin
                | Self::Delete
                | Self::StartStage
                | Self::UnsetKey
                | Self::Defaults
                | Self::Fit
                | Self::Push
                | Self::Waive
                | Self::Convert
                | Self::Replace
                | Self::CancelWork
                | Self::Acknowledge
                | Self::AcknowledgeAll
                | Self::Snooze
                | Self::TestAlerts
                | Self::Accept
        )
    }

    /// Returns whether the action only moves on the screen where its key is pressed, or leaves that screen or dialog.
    pub fn is_motion(self) -> bool {
        matches!(
            self,
            Self::Up
                | Self::Down
                | Self::PageUp
                | Self::PageDown
                | Self::Top
                | Self::Bottom
                | Self::CursorLeft
                | Self::CursorRight
                | Self::Back
                | Self::Cancel
                | Self::No
        )
    }
}

impl Context {
    /// Returns whether the context is a screen, not a dialog.
    pub fn is_screen(self) -> bool {
        self.screen().is_some()
    }

    /// Returns the global bindings that work in a context: all on screens, only quit and suspend in dialogs.
    pub fn global(self) -> &'static [Binding] {
        if self.is_screen() { SCREENS } else { ALWAYS }
    }

    /// Iterates over all bindings that work in this context, its own first.
    pub fn all_bindings(self) -> impl Iterator<Item = &'static Binding> {
        self.bindings().iter().chain(self.global())
    }
}

const fn bind(keys: &'static [Key], action: Action, label: &'static str, help: &'static str) -> Binding {
    Binding { keys, action, label, help, when: Condition::Always, shown_when: Condition::Always, labels: &[] }
}

const ENTER: Key = Key::code(KeyCode::Enter);
const ESC: Key = Key::code(KeyCode::Esc);

// A macro, because constant slices cannot be concatenated.
macro_rules! with_motion {
    ($($binding:expr),* $(,)?) => {
        &[
            $($binding,)*
            bind(&[Key::code(KeyCode::Down), Key::ch('j')], Action::Down, "", "Move down"),
            bind(&[Key::code(KeyCode::Up), Key::ch('k')], Action::Up, "", "Move up"),
            bind(&[Key::code(KeyCode::PageDown), Key::ctrl('d')], Action::PageDown, "", "Page down"),
            bind(&[Key::code(KeyCode::PageUp), Key::ctrl('u')], Action::PageUp, "", "Page up"),
            bind(&[Key::ch('g'), Key::code(KeyCode::Home)], Action::Top, "", "Go to the top"),
            bind(&[Key::ch('G'), Key::code(KeyCode::End)], Action::Bottom, "", "Go to the bottom"),
        ]
    };
}

/// Bindings that work in dialogs.
const ALWAYS: &[Binding] = &[
    bind(&[Key::ctrl('c')], Action::Quit, "", "Close the console; runs continue"),
    bind(&[Key::ctrl('z')], Action::Suspend, "", "Suspend the console; fg resumes it"),
];

/// The binding of the list of actions, on every screen and in the dialogs that list entries. Dialogs that ask for an
/// answer do not have it: the list must not give the answer.
const ACTIONS: Binding =
    bind(&[Key::ch(':')], Action::Palette, "actions", "List every action with its key; type to filter, Enter executes");

/// Bindings that work on every screen.
const SCREENS: &[Binding] = &[
    bind(&[Key::ch('?')], Action::Help, "help", "Show all keys"),
    bind(&[Key::ch('q'), Key::ctrl('c')], Action::Quit, "quit", "Close the console; runs continue"),
    ACTIONS,
    bind(&[Key::ch('1')], Action::ShowRuns, "", "List all runs"),
    bind(&[Key::ch('2')], Action::ShowStages, "", "List the stages"),
    bind(&[Key::ch('3')], Action::ShowNodes, "", "List the nodes of the hostfile, or this machine"),
    bind(&[Key::ch('4')], Action::ShowConvert, "", "Convert weights"),
    bind(&[Key::ch('a')], Action::ShowAlerts, "", "List the alerts of all runs"),
    bind(&[Key::ch('5')], Action::ShowRecipes, "", "List the recipes"),
    bind(&[Key::ctrl('z')], Action::Suspend, "", "Suspend the console; fg resumes it"),
];

const RUNS: &[Binding] = with_motion![
    bind(&[ENTER], Action::Open, "open", "Open the selected run: charts, checkpoints, events")
        .when(Condition::RunAllows),
    bind(&[Key::ch('r')], Action::Resume, "resume", "Resume the run; training continues from the newest checkpoint")
        .when(Condition::Any(&[Condition::RunsMarked, Condition::RunAllows]))
        .labels(&[(Condition::RunsMarked, "resume"), (Condition::RunFinished, "train longer")]),
    bind(&[Key::ch('s')], Action::Stop, "stop", "Stop the run; training saves a checkpoint first")
        .when(Condition::Any(&[Condition::RunsMarked, Condition::RunAllows])),
    bind(
        &[Key::ch('n')],
        Action::NewRun,
        "new run",
        "Open the launch form of the run's recipe, or choose a stage and start it"
    ),
    bind(&[Key::ch('E')], Action::Encode, "encode", "Encode videos: type the arguments of vidtui data encode"),
    bind(&[Key::ch('l')], Action::Logs, "logs", "Show the logs of all ranks, merged, or of one rank")
        .when(Condition::RunAllows),
    bind(&[Key::ch('/')], Action::Filter, "filter", "Filter runs by name, stage or state")
        .shown_when(Condition::SeveralRuns),
    bind(
        &[Key::ch('+')],
        Action::Attach,
        "attach",
        "Watch a program that was started without vidtui: type the arguments of vidtui attach"
    ),
    bind(&[Key::ch('K')], Action::Kill, "kill", "Kill the run's processes; asks for confirmation")
        .when(Condition::Any(&[Condition::RunsMarked, Condition::RunAllows])),
    bind(
        &[Key::ch('t')],
        Action::Stacks,
        "stacks",
        "Write the stack traces of all ranks to the run's folder; sends no signal",
    )
    .when(Condition::RunAllows)
    .shown_when(Condition::RunMayHang),
    bind(&[Key::ch('N')], Action::NodesOfRun, "nodes", "List the nodes of the run").when(Condition::RunChosen),
    bind(
        &[Key::ch(' ')],
        Action::Mark,
        "mark",
        "Mark the run and go to the next; resume, stop, kill and delete then apply to all marked runs"
    )
    .shown_when(Condition::SeveralRunsListed),
    bind(&[Key::ch('=')], Action::Compare, "compare", "Compare the metrics and recipes of the marked runs")
        .when(Condition::SeveralRunsMarked),
    bind(
        &[Key::ch('#')],
        Action::Note,
        "",
        "Write a note about the run; words with # are tags, which the filter finds"
    )
    .when(Condition::RunChosen),
    bind(
        &[Key::ch('D'), Key::code(KeyCode::Delete)],
        Action::Delete,
        "",
        "Move the run, or all marked runs, into the trash; asks for confirmation"
    )
    .when(Condition::Any(&[Condition::RunsMarked, Condition::RunAllows])),
    bind(&[Key::ch('Q')], Action::Queue, "", "Show all entries of the queue, or only the first ones"),
    bind(&[Key::ch('y')], Action::CopyPath, "", "Copy the path of the run's folder"),
    bind(&[ESC], Action::Back, "", "Clear the marks, or the filter"),
];

const RUN: &[Binding] = &[
    bind(&[Key::ch('r')], Action::Resume, "resume", "Resume the run; training continues from the newest checkpoint")
        .when(Condition::RunAllows)
        .labels(&[(Condition::RunFinished, "train longer")]),
    bind(
        &[Key::ch('w')],
        Action::ResumeWith,
        "",
        "Resume with changes: type --set SECTION.KEY=VALUE, --fresh-data or --step; shows the plan first",
    )
    .when(Condition::RunAllows),
    bind(
        &[Key::ch('n')],
        Action::NextStage,
        "next stage",
        "Start the next stage from the newest checkpoint, or open the form of the run's recipe",
    )
    .when(Condition::Any(&[Condition::RunEncodes, Condition::RunAllows]))
    .shown_when(Condition::RunFinished)
    .labels(&[(Condition::RunOfRecipe, "new run")]),
    bind(&[Key::ch('s')], Action::Stop, "stop", "Stop the run; training saves a checkpoint first")
        .when(Condition::RunAllows),
    bind(&[Key::ch('l')], Action::Logs, "logs", "Show the logs of all ranks, merged, or of one rank")
        .when(Condition::RunAllows),
    bind(&[Key::ch('v')], Action::Samples, "samples", "Show the videos that the run made")
        .shown_when(Condition::VideosSampled),
    bind(&[Key::code(KeyCode::Tab)], Action::FocusNext, "panel", "Next panel: charts, samples, checkpoints, events")
        .shown_when(Condition::RunChosen),
    bind(&[Key::code(KeyCode::BackTab)], Action::FocusPrevious, "", "Previous panel"),
    bind(&[ENTER], Action::Open, "enlarge", "Enlarge the panel, or restore it; on an event, open the log at its line")
        .when(Condition::RunChosen)
        .labels(&[(Condition::EventInLog, "log"), (Condition::PanelEnlarged, "restore")]),
    bind(&[Key::ch('z')], Action::Enlarge, "", "Enlarge the panel, or restore it"),
    bind(&[ESC], Action::Back, "back", "Restore the panel, or go back to the runs"),
    bind(&[Key::ch('e')], Action::Export, "export", "Export the chart as SVG or PNG; asks for the file")
        .when(Condition::ChartFocused),
    bind(&[Key::ch('p')], Action::Prompt, "new video", "Make a video of a prompt from the newest checkpoint")
        .when(Condition::RunSamples),
    bind(&[Key::ch('#')], Action::Note, "", "Write a note about the run; words with # are tags")
        .when(Condition::RunChosen),
    bind(&[Key::code(KeyCode::Left)], Action::CursorLeft, "", "Move the cursor left; the view follows"),
    bind(&[Key::code(KeyCode::Right)], Action::CursorRight, "cursor", "Move the cursor right; the view follows")
        .shown_when(Condition::ChartEnlarged),
    bind(
        &[Key::code(KeyCode::PageUp), Key::ctrl('u')],
        Action::PageUp,
        "",
        "Scroll the view left by half, or a list up",
    ),
    bind(
        &[Key::code(KeyCode::PageDown), Key::ctrl('d')],
        Action::PageDown,
        "",
        "Scroll the view right by half, or a list down",
    ),
    bind(&[Key::ch('+'), Key::ch('=')], Action::ZoomIn, "zoom", "Zoom in").shown_when(Condition::ChartEnlarged),
    bind(&[Key::ch('-'), Key::ch('_')], Action::ZoomOut, "", "Zoom out"),
    bind(&[Key::ch('0')], Action::ResetView, "reset", "Show all steps and follow the newest")
        .shown_when(Condition::ChartEnlarged),
    bind(&[Key::ch('L')], Action::LogY, "log y", "Turn the logarithmic y axis on or off")
        .shown_when(Condition::ChartEnlarged),
    bind(&[Key::ch('S')], Action::Smooth, "smooth", "Change smoothing: light, strong, off; the raw line stays visible")
        .shown_when(Condition::ChartEnlarged),
    bind(&[Key::ch('x')], Action::ToggleX, "time", "Switch the x axis between steps and time")
        .shown_when(Condition::ChartEnlarged),
    bind(&[Key::ch('d')], Action::Recipes, "recipe", "Show the recipe of the run, or all panels")
        .shown_when(Condition::RecipeHidden),
    bind(&[Key::ch('R')], Action::RankMap, "ranks", "Show the slowness of each rank over the steps, or all panels")
        .shown_when(Condition::RanksHidden),
    bind(
        &[Key::ch('m')],
        Action::PickPanels,
        "metrics",
        "Pick the metrics and panels of training runs, and their layout",
    )
    .when(Condition::RunTrains),
    bind(&[Key::ch('N')], Action::NodesOfRun, "nodes", "List the nodes of the run").when(Condition::RunChosen),
    bind(
        &[Key::ch('c')],
        Action::Checkpoints,
        "checkpoints",
        "List the checkpoints: resume from one, start the next stage, convert, pin, delete",
    )
    .when(Condition::RunTrains),
    bind(&[Key::ch('K')], Action::Kill, "kill", "Kill the run's processes; asks for confirmation")
        .when(Condition::RunAllows),
    bind(
        &[Key::ch('t')],
        Action::Stacks,
        "stacks",
        "Write the stack traces of all ranks to the run's folder; sends no signal",
    )
    .when(Condition::RunAllows)
    .shown_when(Condition::RunMayHang),
    bind(&[Key::ch('y')], Action::CopyPath, "", "Copy the path of the run's folder"),
    bind(&[Key::code(KeyCode::Down), Key::ch('j')], Action::Down, "", "Move down in a list"),
    bind(&[Key::code(KeyCode::Up), Key::ch('k')], Action::Up, "", "Move up in a list"),
    bind(&[Key::ch('g'), Key::code(KeyCode::Home)], Action::Top, "", "Go to the top"),
    bind(&[Key::ch('G'), Key::code(KeyCode::End)], Action::Bottom, "", "Go to the bottom"),
];

const COMPARE: &[Binding] = &[
    bind(&[Key::code(KeyCode::Tab), Key::ch(']')], Action::MetricNext, "metric", "Compare the next metric"),
    bind(&[Key::code(KeyCode::BackTab), Key::ch('[')], Action::MetricPrevious, "", "Compare the metric before"),
    bind(&[Key::ch('x')], Action::ToggleX, "align", "Align the runs by steps, by time or by tokens")
        .when(Condition::ChartsCompared),
    bind(&[Key::ch('d')], Action::Recipes, "recipes", "Show the keys in which the recipes differ, or the charts"),
    bind(&[ESC], Action::Back, "back", "Go back to the runs; they stay marked"),
    bind(
        &[ENTER, Key::ch('z')],
        Action::Enlarge,
        "enlarge",
        "Show the chart of the chosen metric alone, or several charts",
    )
    .when(Condition::ChartsCompared),
    bind(&[Key::ch(' ')], Action::Toggle, "one run", "Show the lines of one run alone, then of the next; then of all")
        .when(Condition::ChartsCompared),
    bind(
        &[Key::code(KeyCode::Right)],
        Action::CursorRight,
        "cursor",
        "Move the cursor right; the legend shows each run's value there",
    )
    .when(Condition::ChartsCompared),
    bind(&[Key::code(KeyCode::Left)], Action::CursorLeft, "", "Move the cursor left"),
    bind(&[Key::ch('e')], Action::Export, "export", "Export the chart as SVG or PNG; asks for the file")
        .when(Condition::ChartsCompared),
    bind(&[Key::ch('S')], Action::Smooth, "smooth", "Change smoothing: light, strong, off; the raw line stays visible")
        .when(Condition::ChartsCompared),
    bind(&[Key::ch('L')], Action::LogY, "log y", "Turn the logarithmic y axis on or off")
        .when(Condition::ChartsCompared),
    bind(&[Key::ch('+'), Key::ch('=')], Action::ZoomIn, "zoom", "Zoom in").when(Condition::ChartsCompared),
    bind(&[Key::ch('-'), Key::ch('_')], Action::ZoomOut, "", "Zoom out"),
    bind(&[Key::ch('0')], Action::ResetView, "reset", "Show everything and follow the newest samples")
        .when(Condition::ChartsCompared),
    bind(
        &[Key::code(KeyCode::PageUp), Key::ctrl('u')],
        Action::PageUp,
        "",
        "Scroll the charts left, or the recipes up",
    ),
    bind(
        &[Key::code(KeyCode::PageDown), Key::ctrl('d')],
        Action::PageDown,
        "",
        "Scroll the charts right, or the recipes down",
    ),
    bind(&[Key::code(KeyCode::Down), Key::ch('j')], Action::Down, "", "Scroll the recipes down"),
    bind(&[Key::code(KeyCode::Up), Key::ch('k')], Action::Up, "", "Scroll the recipes up"),
    bind(&[Key::ch('g'), Key::code(KeyCode::Home)], Action::Top, "", "Go to the first sample or key"),
    bind(&[Key::ch('G'), Key::code(KeyCode::End)], Action::Bottom, "", "Go to the newest sample or the last key"),
];

const STAGES: &[Binding] = with_motion![
    bind(&[ENTER], Action::StartStage, "start", "Start the selected stage; shows the plan first")
        .when(Condition::StageStartable),
    bind(&[Key::ch('o')], Action::Open, "open run", "Open the newest run of the selected stage")
        .when(Condition::StageHasRun),
    bind(&[ESC], Action::Back, "back", "Go back to the runs"),
    bind(
        &[Key::ch('n')],
        Action::LaunchRecipe,
        "launch recipe",
        "Launch a recipe: type the arguments of vidtui launch"
    ),
];

const RECIPES: &[Binding] = with_motion![
    bind(
        &[ENTER],
        Action::LaunchForm,
        "launch",
        "Launch the selected recipe; shows its settings, checks and plan first"
    ),
    bind(&[Key::ch('/')], Action::Filter, "filter", "Filter recipes by folder, name or description")
        .shown_when(Condition::SeveralRecipes),
    bind(&[Key::ch('n')], Action::LaunchRecipe, "other", "Launch any recipe: type the arguments of vidtui launch"),
    bind(&[ESC], Action::Back, "back", "Clear the filter, or go back to the runs"),
];

const FORM: &[Binding] = with_motion![
    bind(&[ENTER], Action::Accept, "start", "Start the run as shown, when all checks have passed"),
    bind(&[Key::ch('+')], Action::SetKey, "set", "Override a key of the recipe: type section.key=value"),
    bind(&[Key::ch('T')], Action::Targets, "target", "Choose where to run: this machine, a hostfile or a Slurm file")
        .when(Condition::SeveralTargets),
    bind(&[Key::ch(' ')], Action::Toggle, "node", "Use the selected node, or leave it out")
        .when(Condition::SeveralTargetNodes),
    bind(&[Key::ch('W')], Action::Waive, "waive", "Waive the selected check, or require it again")
        .when(Condition::CheckWaivable),
    bind(&[Key::ch('C')], Action::Convert, "convert", "Convert the weights that the launch needs")
        .when(Condition::WeightsUnconverted),
    bind(&[Key::code(KeyCode::Tab)], Action::FocusNext, "panel", "Next panel: settings, target, checks, plan"),
    bind(
        &[Key::ch('M')],
        Action::Fit,
        "fit",
        "Fit the mesh to the ranks of the target, or keep it; the batch stays the same"
    ),
    bind(&[Key::ch('=')], Action::EditKey, "edit", "Override the selected key"),
    bind(
        &[Key::code(KeyCode::Delete), Key::code(KeyCode::Backspace)],
        Action::UnsetKey,
        "unset",
        "Remove the override of the selected key"
    )
    .when(Condition::KeysOverridden),
    bind(&[ESC], Action::Back, "back", "Discard the launch; nothing starts"),
    bind(&[Key::ch('R')], Action::Ranks, "ranks", "Change the number of ranks on this machine")
        .when(Condition::TargetLocal),
    bind(&[Key::ch('i')], Action::Weights, "weights", "Choose the weights to start from: a checkpoint, or a run"),
    bind(&[Key::code(KeyCode::BackTab)], Action::FocusPrevious, "", "Previous panel"),
    bind(&[Key::ch('d')], Action::Defaults, "", "Show the keys with their default too, or hide them"),
    bind(&[Key::ch('u')], Action::Push, "", "Copy the trainer to nodes where it is missing or differs: on or off"),
    bind(&[Key::ctrl('r')], Action::CheckAgain, "", "Plan and check again"),
];

const CONVERT: &[Binding] = with_motion![
    bind(&[ENTER], Action::Edit, "edit", "Edit the path, or choose the next option"),
    bind(&[Key::ch('C')], Action::Convert, "convert", "Convert as shown in the preview")
        .when(Condition::ConversionReady),
    bind(&[Key::ch('X')], Action::CancelWork, "cancel", "Cancel the conversion and remove its output")
        .when(Condition::ConversionRuns),
    bind(&[Key::ch('!')], Action::Replace, "", "Replace the existing conversion, or keep it"),
    bind(&[Key::code(KeyCode::Right), Key::ch(' ')], Action::OptionNext, "option", "Choose the next option"),
    bind(&[Key::code(KeyCode::Left)], Action::OptionPrevious, "", "Choose the previous option"),
    bind(&[ESC], Action::Back, "back", "Go back to the runs; a running conversion continues"),
];

const ALERTS: &[Binding] = with_motion![
    bind(&[ENTER], Action::Open, "open run", "Open the run of the selected alert").when(Condition::AlertChosen),
    bind(&[Key::ch(' ')], Action::Acknowledge, "acknowledge", "Acknowledge the selected alert")
        .when(Condition::AlertUnanswered),
    bind(&[Key::ch('A')], Action::AcknowledgeAll, "acknowledge all", "Acknowledge all open alerts")
        .when(Condition::SeveralAlertsOpen),
    bind(&[Key::ch('Z')], Action::Snooze, "snooze run", "Send no alerts of this run for two hours")
        .when(Condition::AlertChosen),
    bind(&[Key::ch('!')], Action::TestAlerts, "test", "Send a test alert to every channel of alerts.toml"),
    bind(&[ESC], Action::Back, "back", "Go back"),
];

const LOGS: &[Binding] = with_motion![
    bind(&[Key::ch('f')], Action::Follow, "follow", "Follow the newest lines, or stop following"),
    bind(&[Key::ch('/')], Action::Search, "search", "Search with a regular expression"),
    bind(&[Key::ch('n')], Action::SearchNext, "next", "Go to the next match").when(Condition::LogSearched),
    bind(&[Key::ch('N')], Action::SearchPrevious, "", "Go to the previous match").when(Condition::LogSearched),
    bind(&[Key::ch('!')], Action::FirstError, "first error", "Go to the first error").when(Condition::LogHasError),
    bind(&[Key::code(KeyCode::Tab)], Action::NextLevel, "level", "Show all lines, warnings and errors, or only errors"),
    bind(&[Key::ch('R')], Action::LogRanks, "ranks", "Show only the lines of some ranks: type 0-3,8")
        .when(Condition::All(&[Condition::LogOfAllRanks, Condition::SeveralRanks])),
    bind(&[Key::ch(']')], Action::RankNext, "one rank", "Show the log of one rank; then of the next rank")
        .when(Condition::SeveralRanks),
    bind(&[Key::ch('[')], Action::RankPrevious, "", "Show the log of the previous rank").when(Condition::SeveralRanks),
    bind(&[Key::ch('0')], Action::AllRanks, "all ranks", "Show the lines of all ranks in one log")
        .when(Condition::LogOfOneRank),
    bind(&[Key::ch('|')], Action::Wrap, "wrap", "Wrap long lines, or cut them"),
    bind(
        &[ENTER],
        Action::Expand,
        "",
        "Show the text of each rank of the marked line, or fold it; a match, the first error or a click marks a line"
    ),
    bind(&[Key::ch('A')], Action::Unfold, "", "Show the texts of all ranks of all lines, or fold equal lines"),
    bind(&[ESC], Action::Back, "back", "Clear the search or the filters, or go back to the run"),
];

const SAMPLES: &[Binding] = &[
    bind(&[Key::code(KeyCode::Right), Key::ch(']')], Action::SampleNext, "step", "Show the sample of the next step")
        .when(Condition::VideosSampled),
    bind(&[Key::code(KeyCode::Left), Key::ch('[')], Action::SamplePrevious, "", "Show the sample of the step before")
        .when(Condition::VideosSampled),
    bind(&[Key::code(KeyCode::Down), Key::ch('j')], Action::Down, "prompt", "Show the next prompt")
        .shown_when(Condition::SeveralPrompts),
    bind(&[Key::code(KeyCode::Up), Key::ch('k')], Action::Up, "", "Show the previous prompt"),
    bind(&[Key::ch('b')], Action::SideBySide, "side by side", "Show the same prompt over steps, side by side")
        .when(Condition::VideosSampled),
    bind(&[ESC], Action::Back, "back", "Go back to the run"),
    bind(&[Key::ch('p')], Action::Prompt, "new video", "Make a video of a prompt from the newest checkpoint")
        .when(Condition::RunSamples),
    bind(&[Key::ch(' ')], Action::Play, "pause", "Pause the videos, or play them")
        .when(Condition::VideosSampled)
        .labels(&[(Condition::VideosPaused, "play")]),
    bind(&[Key::ch('o')], Action::Open, "open", "Open the video with the desktop's player, or copy its path")
        .when(Condition::VideosSampled),
    bind(&[Key::ch('y')], Action::CopyPath, "", "Copy the path of the video"),
    bind(&[Key::ch('g'), Key::code(KeyCode::Home)], Action::Top, "", "Show the sample of the first step"),
    bind(&[Key::ch('G'), Key::code(KeyCode::End)], Action::Bottom, "", "Show the newest sample, and follow it"),
];

const NODES: &[Binding] = with_motion![
    bind(&[ENTER], Action::Open, "open", "Open the selected node: GPUs and processes").when(Condition::NodeChosen),
    bind(
        &[Key::ch(' ')],
        Action::Mark,
        "mark",
        "Mark the node and go to the next; the keys for processes and kill then apply to all marked"
    )
    .shown_when(Condition::SeveralNodes),
    bind(&[Key::ch('P')], Action::Processes, "processes", "List the processes that use GPUs or belong to training")
        .when(Condition::Any(&[Condition::NodeOpen, Condition::NodeChosen])),
    bind(&[Key::ch('K')], Action::Kill, "kill all", "Kill all your training on the marked nodes; shows the plan first")
        .when(Condition::Any(&[Condition::NodeOpen, Condition::NodeChosen])),
    bind(
        &[Key::ch('h')],
        Action::HeatMap,
        "heat map",
        "Show a heat map of all GPUs: power, utilization, memory, temperature, step time; then the list"
    )
    .when(Condition::GpusWatched),
    bind(&[Key::ch('+'), Key::ch('=')], Action::ZoomIn, "", "Show a shorter part of the history"),
    bind(
        &[Key::ch('-'), Key::ch('_')],
        Action::ZoomOut,
        "history",
        "Show a longer part of the history: 10 minutes, 1 hour, 12 hours"
    )
    .shown_when(Condition::NodeSampled),
    bind(
        &[Key::code(KeyCode::Right)],
        Action::CursorRight,
        "",
        "Move right in the heat map, or move the cursor of the history to a later time"
    ),
    bind(
        &[Key::code(KeyCode::Left)],
        Action::CursorLeft,
        "",
        "Move left in the heat map, or move the cursor of the history to an earlier time"
    ),
    bind(
        &[Key::ch('>')],
        Action::Sort,
        "sort",
        "Change the order: faults first, as listed, power, utilization, memory, …"
    )
    .shown_when(Condition::SeveralNodes),
    bind(&[Key::ch('<')], Action::ReverseSort, "reverse", "Reverse the order").shown_when(Condition::OrderReversible),
    bind(&[Key::ch('/')], Action::Filter, "filter", "Filter nodes by name, state or fault")
        .shown_when(Condition::SeveralNodes),
    bind(&[ESC], Action::Back, "back", "Clear the marks or the filter, or go back"),
];

const NODE: &[Binding] = with_motion![
    bind(&[Key::code(KeyCode::Tab)], Action::RawText, "nvidia-smi", "Show the output of nvidia-smi, or the tables"),
    bind(&[Key::ch('+'), Key::ch('=')], Action::ZoomIn, "", "Show a shorter part of the history"),
    bind(
        &[Key::ch('-'), Key::ch('_')],
        Action::ZoomOut,
        "history",
        "Show a longer part of the history: 10 minutes, 1 hour, 12 hours"
    )
    .shown_when(Condition::NodeSampled),
    bind(
        &[Key::code(KeyCode::Right)],
        Action::CursorRight,
        "",
        "Move the cursor of the history to a later time; at the end, it shows the newest values"
    ),
    bind(&[Key::code(KeyCode::Left)], Action::CursorLeft, "", "Move the cursor of the history to an earlier time"),
    bind(&[Key::ch(']')], Action::NodeNext, "next node", "Show the next node").shown_when(Condition::SeveralNodes),
    bind(&[Key::ch('[')], Action::NodePrevious, "", "Show the previous node"),
    bind(&[Key::ch('P')], Action::Processes, "processes", "List the processes that use GPUs or belong to training")
        .when(Condition::Any(&[Condition::NodeOpen, Condition::NodeChosen])),
    bind(&[Key::ch('K')], Action::Kill, "kill all", "Kill all your training on the node; shows the plan first")
        .when(Condition::Any(&[Condition::NodeOpen, Condition::NodeChosen])),
    bind(&[ESC], Action::Back, "back", "Go back to all nodes"),
];

const PROCESSES: &[Binding] = with_motion![
    bind(&[Key::ch('K')], Action::Kill, "kill", "Kill the marked processes, or the selected one; shows the plan first")
        .when(Condition::ProcessesListed),
    bind(&[Key::ch(' ')], Action::Mark, "mark", "Mark the process and go to the next"),
    bind(&[Key::ch('A')], Action::AllUsers, "all users", "Show the processes of all users, or only yours"),
    bind(&[ESC], Action::Back, "back", "Clear the marks, or go back"),
];

const HELP: &[Binding] =
    with_motion![bind(&[ESC, Key::ch('?'), Key::ch('q'), ENTER], Action::Cancel, "close", "Close the help")];

const PALETTE: &[Binding] = &[
    bind(&[ENTER], Action::Accept, "execute", "Execute the selected action"),
    bind(&[Key::code(KeyCode::Down), Key::code(KeyCode::Tab)], Action::Down, "", "Select the next action"),
    bind(&[Key::code(KeyCode::Up), Key::code(KeyCode::BackTab)], Action::Up, "", "Select the action before"),
    bind(&[Key::code(KeyCode::PageDown)], Action::PageDown, "", "Page down"),
    bind(&[Key::code(KeyCode::PageUp)], Action::PageUp, "", "Page up"),
    bind(&[Key::code(KeyCode::Backspace)], Action::DeleteBefore, "", "Delete the last character of the filter"),
    bind(&[Key::ctrl('u')], Action::DeleteToStart, "", "Delete the filter"),
    bind(&[ESC], Action::Cancel, "close", "Close the list; nothing is executed"),
];

const LAUNCH: &[Binding] = with_motion![
    bind(&[ENTER], Action::Accept, "start", "Start the run as shown"),
    bind(&[ESC, Key::ch('q')], Action::Cancel, "cancel", "Cancel; nothing is started"),
];

const KILL: &[Binding] = with_motion![
    bind(&[Key::ch('y')], Action::Yes, "yes, kill", "Kill the listed processes"),
    bind(&[Key::ch('n'), ESC, Key::ch('q')], Action::No, "no", "Cancel; nothing is killed"),
    bind(
        &[Key::code(KeyCode::Tab), Key::code(KeyCode::BackTab), Key::code(KeyCode::Left), Key::code(KeyCode::Right)],
        Action::Toggle,
        "",
        "Move between No and Yes",
    ),
    bind(&[ENTER], Action::Accept, "", "Choose the marked button; No is marked at first"),
];

const ACTION: &[Binding] = with_motion![
    bind(&[ENTER], Action::Accept, "execute", "Execute the plan as shown"),
    bind(&[Key::ch('y')], Action::Yes, "", "Execute the plan as shown"),
    bind(&[ESC, Key::ch('q'), Key::ch('n')], Action::Cancel, "cancel", "Cancel; nothing is changed"),
];

const RESULTS: &[Binding] =
    with_motion![bind(&[ESC, Key::ch('q'), ENTER], Action::Cancel, "close", "Close the dialog; the work continues")];

const CHECKPOINTS: &[Binding] = with_motion![
    bind(
        &[ENTER, Key::ch('r')],
        Action::Resume,
        "resume from it",
        "Resume from the selected checkpoint; shows the plan first"
    ),
    bind(&[Key::ch('F')], Action::FreshData, "with fresh data", "Resume from it; the data order restarts"),
    bind(&[Key::ch('i')], Action::WeightsOnly, "weights only", "Start a new run from its weights"),
    bind(&[Key::ch('n')], Action::NextStage, "next stage from it", "Start the next stage from its weights"),
    bind(&[Key::ch('C')], Action::Convert, "convert", "Convert it on the Convert screen"),
    bind(&[Key::ch('*')], Action::Pin, "pin", "Pin it, so that it stays when old checkpoints are removed; or unpin it"),
    bind(&[Key::ch('D'), Key::code(KeyCode::Delete)], Action::Delete, "delete", "Delete it; asks first"),
    bind(&[ESC, Key::ch('q'), Key::ch('c')], Action::Cancel, "close", "Close the list"),
    ACTIONS,
];

const TARGETS: &[Binding] = with_motion![
    bind(&[ENTER], Action::Accept, "choose", "Run on the selected target"),
    bind(&[ESC, Key::ch('q'), Key::ch('T')], Action::Cancel, "cancel", "Keep the target"),
    ACTIONS,
];

const PANELS: &[Binding] = with_motion![
    bind(&[Key::ch(' ')], Action::Toggle, "show or hide", "Show the selected panel, or hide it"),
    bind(&[Key::ch('[')], Action::MoveEarlier, "", "Move the selected panel up"),
    bind(&[Key::ch(']')], Action::MoveLater, "", "Move the selected panel down"),
    bind(
        &[Key::code(KeyCode::Tab)],
        Action::Columns,
        "columns",
        "Arrange all panels in a grid of 2, 3 or 4 columns, or as usual"
    ),
    bind(&[Key::ch('L')], Action::LogY, "log y", "Turn the logarithmic y axis of the selected chart on or off"),
    bind(&[Key::ch('0')], Action::Defaults, "usual panels", "Show the usual panels"),
    bind(
        &[ESC, ENTER, Key::ch('q'), Key::ch('m')],
        Action::Cancel,
        "close",
        "Close the list; the panels stay as shown"
    ),
    ACTIONS,
];

const FAILURE: &[Binding] =
    with_motion![bind(&[ENTER, ESC, Key::ch('q')], Action::Cancel, "close", "Close the message")];

const INPUT: &[Binding] = &[
    bind(&[ENTER], Action::Accept, "apply", "Apply the text")
        .labels(&[(Condition::InputLaunches, "open the form"), (Condition::InputPlans, "show the plan")]),
    bind(&[Key::code(KeyCode::Tab)], Action::Complete, "complete", "Complete the key or the value")
        .shown_when(Condition::InputOverrides),
    bind(&[ESC], Action::Cancel, "cancel", "Close the input; a filter or a search is cleared")
        .labels(&[(Condition::InputLive, "clear")]),
    bind(&[Key::code(KeyCode::Left)], Action::CursorLeft, "", "Move the cursor left"),
    bind(&[Key::code(KeyCode::Right)], Action::CursorRight, "", "Move the cursor right"),
    bind(&[Key::code(KeyCode::Home), Key::ctrl('a')], Action::LineStart, "", "Move the cursor to the start"),
    bind(&[Key::code(KeyCode::End), Key::ctrl('e')], Action::LineEnd, "", "Move the cursor to the end"),
    bind(&[Key::code(KeyCode::Backspace)], Action::DeleteBefore, "", "Delete the character before the cursor"),
    bind(&[Key::code(KeyCode::Delete)], Action::DeleteAfter, "", "Delete the character after the cursor"),
    bind(&[Key::ctrl('w')], Action::DeleteWord, "delete word", "Delete the word before the cursor")
        .shown_when(Condition::InputPlans),
    bind(&[Key::ctrl('u')], Action::DeleteToStart, "delete all", "Delete the text before the cursor")
        .shown_when(Condition::InputPlans),
];

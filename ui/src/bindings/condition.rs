//! The conditions of the key tables.

/// When a key applies: a statement about the state of the console, which `conditions` evaluates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Always.
    Always,
    /// At least one of these conditions holds.
    Any(&'static [Condition]),
    /// All of these conditions hold.
    All(&'static [Condition]),
    /// There is a run to which keys apply.
    RunChosen,
    /// The action is possible for that run now.
    RunAllows,
    /// That run may hang, and its stack traces can be written.
    RunMayHang,
    /// That run has finished, and the action is possible for it.
    RunFinished,
    /// That run came from a recipe file, not from a stage of a curriculum.
    RunOfRecipe,
    /// That run trains.
    RunTrains,
    /// That run encodes.
    RunEncodes,
    /// A checkpoint of that run can make a video.
    RunSamples,
    /// Runs are marked.
    RunsMarked,
    /// Several runs are marked.
    SeveralRunsMarked,
    /// Several runs pass the filter.
    SeveralRunsListed,
    /// There are several runs.
    SeveralRuns,
    /// There are several recipes.
    SeveralRecipes,
    /// The recipe of the open run is known, and its panel does not have the focus.
    RecipeHidden,
    /// The open run has several ranks, and their panel does not have the focus.
    RanksHidden,
    /// A chart of the open run fills the screen.
    ChartEnlarged,
    /// Any panel of the open run fills the screen.
    PanelEnlarged,
    /// A chart of the open run has the focus and shows samples.
    ChartFocused,
    /// The selected event of the open run is in a log.
    EventInLog,
    /// The open run has sampled videos.
    VideosSampled,
    /// The open run has samples of several prompts.
    SeveralPrompts,
    /// The videos are paused.
    VideosPaused,
    /// The comparison shows charts, not recipes.
    ChartsCompared,
    /// The selected stage can start.
    StageStartable,
    /// The selected stage has a run.
    StageHasRun,
    /// The launch form overrides keys of the recipe.
    KeysOverridden,
    /// The launch form lists several nodes.
    SeveralTargetNodes,
    /// The launch form has several targets to choose from.
    SeveralTargets,
    /// A check of the launch form can be waived.
    CheckWaivable,
    /// The weights of the launch form need a conversion.
    WeightsUnconverted,
    /// The launch form starts ranks on this machine.
    TargetLocal,
    /// The conversion can start.
    ConversionReady,
    /// A conversion runs.
    ConversionRuns,
    /// An alert is selected.
    AlertChosen,
    /// The selected alert needs an acknowledgement.
    AlertUnanswered,
    /// Several alerts are open.
    SeveralAlertsOpen,
    /// The log is searched.
    LogSearched,
    /// The log shows one rank.
    LogOfOneRank,
    /// The log shows all ranks.
    LogOfAllRanks,
    /// The log has an error.
    LogHasError,
    /// The open run has several ranks.
    SeveralRanks,
    /// A node is selected.
    NodeChosen,
    /// A node is open.
    NodeOpen,
    /// The selected node has sent a sample.
    NodeSampled,
    /// Several nodes are watched.
    SeveralNodes,
    /// A watched node has GPUs.
    GpusWatched,
    /// The order of the nodes has a direction.
    OrderReversible,
    /// Processes are listed.
    ProcessesListed,
    /// The open text input takes the arguments of a launch.
    InputLaunches,
    /// The open text input takes text from which a plan is made.
    InputPlans,
    /// The open text input takes effect while the user types.
    InputLive,
    /// The open text input takes the override of a key.
    InputOverrides,
}

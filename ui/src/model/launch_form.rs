//! State of the launch form: the draft of the launch, and the answers of the shell to the draft.

use super::{Model, NodesScreen};
use crate::conversion::ConvertOptions;
use crate::draft::{DraftMsg, LaunchDraft, LaunchTarget, PreflightResult, PreflightRow};
use crate::fleet::FleetSource;
use crate::model::Screen;
use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use plan::LaunchPlan;
use recipe::{Origin, RecipeError, Resolved, SettingRow, Settings};
use rundir::{Failure, RunId};

/// State of the launch form.
#[derive(Debug, Clone)]
pub struct LaunchForm {
    /// The launch that the user is describing. Answers to an earlier draft are ignored.
    pub draft: LaunchDraft,
    /// The launch with which the form was opened.
    pub opened_with: LaunchDraft,
    /// The screen to go back to.
    pub from: Screen,
    /// The settings in the files of the recipe, without overrides; `None` while the shell reads them.
    pub settings: Option<Result<Box<Settings>, Failure>>,
    /// Every key with its value and origin.
    pub rows: Vec<SettingRow>,
    /// Why the recipe is not valid with the overrides.
    pub broken: Option<RecipeError>,
    /// The number of ranks to which the shell fitted the mesh, and the changes to the mesh; no changes if it already
    /// fits.
    pub fitted: Option<(usize, Option<String>)>,
    /// The other targets that can be chosen.
    pub targets: Vec<LaunchTarget>,
    /// The files that have changed on disk since the form read them.
    pub changed: Vec<Utf8PathBuf>,
    /// The plan to execute, with a hash of the files from which the shell made it.
    pub plan: Option<(Box<LaunchPlan>, u64)>,
    /// Why the launch cannot be planned.
    pub refused: Option<Failure>,
    /// The results of the preflight checks. Those of the previous plan stay until new results arrive.
    pub checks: Vec<PreflightRow>,
    /// Whether all checks of this plan have a result.
    pub is_checked: bool,
    /// The conversion that would make the initial weights loadable, if the check of the weights failed for that
    /// reason.
    pub convert: Option<Box<ConvertOptions>>,
    /// Whether the run starts as soon as all checks have passed: the user has pressed Enter.
    pub is_armed: bool,
    /// The panel that keys apply to.
    pub focus: FormPanel,
    /// Whether keys that have their default value are shown too.
    pub with_defaults: bool,
    /// The selected key; `None` for the first one.
    pub key: Option<&'static str>,
    /// The position of the selected node.
    pub node: usize,
    /// The name and node of the selected check; `None` for the first check that failed.
    pub check: Option<(String, Option<NodeId>)>,
    /// First visible line of the plan.
    pub plan_top: usize,
}

/// A panel of the launch form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormPanel {
    /// The keys of the recipe with their values and origins.
    Settings,
    /// The target and its nodes.
    Target,
    /// The checks before the start.
    Checks,
    /// The plan.
    Plan,
}

impl FormPanel {
    /// All panels, in the order of the Tab key.
    pub const ALL: [Self; 4] = [Self::Settings, Self::Target, Self::Checks, Self::Plan];

    /// Returns the panel `by` places later in the order of the Tab key.
    pub fn turned(self, by: isize) -> Self {
        let at = Self::ALL.iter().position(|panel| *panel == self).unwrap_or(0) as isize;
        Self::ALL[(at + by).rem_euclid(Self::ALL.len() as isize) as usize]
    }
}

impl LaunchForm {
    /// Returns the targets that can be chosen. The current target of the form keeps its choice of nodes and ranks.
    pub fn all_targets(&self) -> Vec<LaunchTarget> {
        let now = &self.draft.target;
        let listed = self.targets.iter();
        let mut all: Vec<LaunchTarget> =
            listed.map(|target| if target.is_alike(now) { now.clone() } else { target.clone() }).collect();
        if !all.contains(now) {
            all.insert(0, now.clone());
        }
        all
    }

    /// Opens the form.
    pub fn new(draft: LaunchDraft, from: Screen) -> Self {
        Self {
            opened_with: draft.clone(),
            draft,
            from,
            settings: None,
            rows: Vec::new(),
            broken: None,
            fitted: None,
            targets: Vec::new(),
            changed: Vec::new(),
            plan: None,
            refused: None,
            checks: Vec::new(),
            is_checked: false,
            convert: None,
            is_armed: false,
            focus: FormPanel::Settings,
            with_defaults: false,
            key: None,
            node: 0,
            check: None,
            plan_top: 0,
        }
    }

    /// Changes the draft. A change discards the plan and ends the checks of the previous draft.
    pub fn change(&mut self, change: impl FnOnce(&mut LaunchDraft)) {
        let before = self.draft.clone();
        change(&mut self.draft);
        if self.draft != before {
            self.forget_plan();
            self.changed.clear();
            self.fitted = None;
            self.renew_rows();
        }
    }

    fn forget_plan(&mut self) {
        (self.plan, self.refused, self.convert) = (None, None, None);
        (self.is_checked, self.is_armed) = (false, false);
    }

    /// Applies an answer of the shell.
    pub fn take_in(&mut self, what: DraftMsg) {
        match what {
            DraftMsg::Read { changed, settings } => {
                // The first answer lists no changed files, and the start that the user requested remains.
                let is_armed = self.is_armed && changed.is_empty();
                self.forget_plan();
                self.is_armed = is_armed;
                for file in changed {
                    if !self.changed.contains(&file) {
                        self.changed.push(file);
                    }
                }
                (self.settings, self.fitted) = (Some(settings), None);
                self.renew_rows();
            }
            DraftMsg::Targets(targets) => self.targets = targets,
            DraftMsg::Fitted { ranks, changes } => {
                self.fitted = Some((ranks, changes));
                self.renew_rows();
            }
            DraftMsg::Refused(failure) => {
                (self.refused, self.is_armed, self.is_checked) = (Some(failure), false, true);
                self.checks.clear();
            }
            DraftMsg::Planned { plan, files } => self.plan = Some((plan, files)),
            DraftMsg::Checked { checks, is_complete, convert } => {
                (self.checks, self.is_checked, self.convert) = (checks, is_complete, convert);
                let has_failed = self.failed().next().is_some();
                self.is_armed &= !has_failed;
            }
        }
    }

    /// Returns the settings with the overrides applied; `None` while they load or if they cannot be read.
    pub fn overridden(&self) -> Option<Result<Settings, RecipeError>> {
        let settings = self.settings.as_ref()?.as_ref().ok()?;
        let with = |settings: Settings, set: &String| settings.with_flag(set);
        Some(self.draft.sets.iter().try_fold((**settings).clone(), with))
    }

    /// Resolves the recipe with one more override. The outer error: the text is not a valid override. The inner
    /// error: the recipe is not valid with the override. `None` while the settings load or if they cannot be read.
    pub fn tried(&self, set: &str) -> Option<Result<Result<Resolved, RecipeError>, RecipeError>> {
        let settings = self.settings.as_ref()?.as_ref().ok()?;
        let mut draft = self.draft.clone();
        draft.set(set);
        let with = |settings: Settings, set: &String| settings.with_flag(set);
        Some(draft.sets.iter().try_fold((**settings).clone(), with).map(|settings| settings.resolve()))
    }

    /// Recomputes the values of all keys.
    fn renew_rows(&mut self) {
        let (rows, broken) = match self.overridden() {
            None => (Vec::new(), None),
            Some(Err(error)) => (std::mem::take(&mut self.rows), Some(error)),
            Some(Ok(settings)) => match settings.resolve() {
                Err(error) => (settings.rows(), Some(error)),
                Ok(mut resolved) => {
                    if let Some((ranks, _)) = &self.fitted {
                        // A mesh that does not fit is an error that the shell reports.
                        let _ = resolved.fit(*ranks);
                    }
                    (resolved.rows(), None)
                }
            },
        };
        (self.rows, self.broken) = (rows, broken);
    }

    /// Returns the rows that are shown: missing keys first, then overrides, then the others in the order of the schema.
    pub fn shown_rows(&self) -> Vec<&SettingRow> {
        let is_shown = |row: &&SettingRow| self.with_defaults || row.origin != Origin::Default || row.value.is_none();
        let mut rows: Vec<&SettingRow> = self.rows.iter().filter(is_shown).collect();
        let is_own = |row: &SettingRow| matches!(row.origin, Origin::Flag(_) | Origin::Fit(_));
        rows.sort_by_key(|row| (row.value.is_some(), !is_own(row)));
        rows
    }

    /// Returns the position of the selected key among the rows that are shown.
    pub fn key_position(&self) -> usize {
        let chosen = self.key;
        self.shown_rows().iter().position(|row| Some(row.key) == chosen).unwrap_or(0)
    }

    /// Returns the checks that failed and so prevent the launch.
    pub fn failed(&self) -> impl Iterator<Item = &PreflightRow> {
        self.checks.iter().filter(|row| matches!(row.result, PreflightResult::Failed(_)))
    }

    /// Returns the position of the selected check.
    pub fn check_position(&self) -> usize {
        let chosen = self.check.as_ref();
        let is_chosen = |row: &PreflightRow| chosen.is_some_and(|(name, node)| row.name == *name && row.node == *node);
        let failed = || self.checks.iter().position(|row| matches!(row.result, PreflightResult::Failed(_)));
        self.checks.iter().position(is_chosen).or_else(failed).unwrap_or(0)
    }

    /// Returns the number of ranks of the plan.
    pub fn ranks(&self) -> Option<usize> {
        self.plan.as_ref().map(|(plan, _)| plan.attempt.mesh.world())
    }

    /// Returns the title: the stage or the name of the run; before there is a plan, the stage or the file name of the
    /// recipe.
    pub fn title(&self) -> String {
        if let Some((plan, _)) = &self.plan {
            return plan.run.stage.clone().unwrap_or_else(|| plan.run.name.clone());
        }
        let recipe = &self.draft.recipe;
        match recipe.rsplit_once(':') {
            Some((_, stage)) if !recipe.ends_with(".toml") => stage.to_owned(),
            _ => Utf8Path::new(recipe).file_stem().unwrap_or(recipe).to_owned(),
        }
    }
}

impl Model {
    /// Opens the launch form. If the form of the same recipe is still open, it keeps its settings.
    pub fn open_form(&mut self, draft: LaunchDraft) {
        let is_open = self.screens.form.as_ref().is_some_and(|form| form.draft.recipe == draft.recipe);
        if !is_open {
            let from = if self.screen == Screen::Launch { Screen::Recipes } else { self.screen };
            self.screens.form = Some(LaunchForm::new(draft, from));
        }
        self.screen = Screen::Launch;
        self.keep_nodes_of_form();
    }

    /// Opens the launch form for a recipe, with the target that the console was started with.
    pub fn open_form_of(&mut self, recipe: String) {
        let draft = LaunchDraft { recipe, ..self.launch.clone() };
        self.open_form(draft);
    }

    /// Opens the launch form with the recipe and the overrides of a run, for the target that the console was started with. If the form that
    /// this run opened is still open, it keeps its settings. Returns `false` if the recipe file of the run is not known.
    pub fn open_form_again(&mut self, run: &RunId) -> bool {
        let Some(launch) = self.row(run).and_then(|row| row.launch.as_deref()) else { return false };
        let LaunchDraft { recipe, name, init, sets, .. } = launch.clone();
        let draft = LaunchDraft { recipe, name, init, sets, ..self.launch.clone() };
        self.screens.form.take_if(|form| form.opened_with != draft);
        self.open_form(draft);
        true
    }

    /// Switches the watched nodes to those of the form's hostfile while the form is shown.
    pub fn keep_nodes_of_form(&mut self) {
        let Some(form) = self.screens.form.as_ref().filter(|_| self.screen == Screen::Launch) else { return };
        let Some(path) = form.draft.target.hostfile() else { return };
        let of = FleetSource::Hostfile(path.to_owned());
        if self.fleet.of != of {
            self.fleet.turn_to(of);
            self.screens.nodes = NodesScreen { sort: self.screens.nodes.sort, ..NodesScreen::default() };
            self.screens.node = None;
        }
    }
}

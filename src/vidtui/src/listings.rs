//! The lists of runs, curricula and recipes for the screen, cached until their files change.
//!
//! The console refreshes the lists every second or two, and a folder can hold hundreds of old runs. An ended run costs only a few
//! `stat` calls; a run that has not ended is read again.

use crate::file_stamp::{FileStamp, stamp_of};
use crate::workspace::{self, Workspace};
use camino::{Utf8Path, Utf8PathBuf};
use cluster::slurm::JobStatus;
use recipe::{JobKind, RecipeErrorKind, Resolved, Task};
use rundir::{Failure, Run, RunDir, SampleFolder, StartFrom};
use runstate::{RunFacts, RunState, RunSummary};
use std::collections::BTreeMap;
use std::sync::Arc;
use ui::draft::LaunchDraft;
use ui::{CurriculumView, RecipeFacts, RecipeView, RunList, RunRow, RunStatus};

/// Lists the runs repeatedly.
pub struct RunLister {
    workspace: Arc<Workspace>,
    folders: BTreeMap<Utf8PathBuf, FileStamp>,
    runs: Vec<Result<RunDir, Failure>>,
    known: BTreeMap<RunDir, CachedRun>,
}

/// The status of one run, with the stamps of the files that it was read from.
#[derive(Default)]
pub struct CachedRun {
    stamps: Vec<FileStamp>,
    status: Option<Result<RunStatus, Failure>>,
}

impl CachedRun {
    /// Returns the current status of the run.
    pub fn status(&mut self, workspace: &Workspace, dir: &RunDir) -> &Result<RunStatus, Failure> {
        let stamps = files_of(dir);
        // The status of an ended run depends on its files alone, not on processes or the clock.
        let kept = self.status.take().filter(|status| self.stamps == stamps && is_settled(status));
        self.stamps = stamps;
        let read = || {
            let read = status(workspace, dir);
            if is_settled(&read) {
                workspace.samples.forget(dir);
                workspace.connections.forget_lines(dir);
            }
            read
        };
        self.status.insert(kept.unwrap_or_else(read))
    }
}

impl RunLister {
    /// Makes a lister with an empty cache.
    pub fn new(workspace: Arc<Workspace>) -> Self {
        Self { workspace, folders: BTreeMap::new(), runs: Vec::new(), known: BTreeMap::new() }
    }

    /// Returns the current list of runs.
    pub fn list(&mut self) -> RunList {
        let folders = folders(&self.workspace.runs);
        if folders != self.folders || self.runs.is_empty() {
            self.folders = folders;
            self.runs = runstate::list_runs(&self.workspace.runs);
        }
        let mut list = RunList::default();
        let mut still = BTreeMap::new();
        for run in &self.runs {
            let dir = match run {
                Ok(dir) => dir,
                Err(failure) => {
                    list.unreadable.push(failure.clone());
                    continue;
                }
            };
            let mut known = self.known.remove(dir).unwrap_or_default();
            match known.status(&self.workspace, dir) {
                Ok(status) => list.rows.push(status.row.clone()),
                Err(failure) => list.unreadable.push(failure.clone()),
            }
            still.insert(dir.clone(), known);
        }
        self.known = still;
        list
    }
}

fn status(workspace: &Workspace, dir: &RunDir) -> Result<RunStatus, Failure> {
    let (summary, facts) = workspace.summary(dir)?;
    let row = RunRow { findings: workspace.findings(&summary, &facts), ..row(&summary, &facts) };
    let samples = Some(dir.sample_folder(&summary.run));
    Ok(RunStatus { row, dir: dir.root.clone(), start: summary.run.start, attempt: summary.attempt, samples })
}

fn row(summary: &RunSummary, facts: &RunFacts) -> RunRow {
    let run = &summary.run;
    let written = [
        summary.attempt.as_ref().map(|attempt| attempt.started_s),
        summary.last.as_ref().map(|sample| sample.t),
        facts.last_event.as_ref().map(|event| event.t),
        facts.exits.iter().map(|exit| exit.ended_s).reduce(f64::max),
    ];
    RunRow {
        run: run.id.clone(),
        name: run.name.clone(),
        curriculum: run.curriculum.clone(),
        stage: run.stage.clone(),
        lineage: run.lineage.clone(),
        state: summary.state.clone(),
        step: summary.step,
        steps_total: summary.steps_total,
        loss: summary.with_loss.as_ref().and_then(|sample| sample.loss),
        step_s: facts.median_step_s,
        eta_s: summary.eta_s,
        ranks: summary.attempt.as_ref().map_or(0, |attempt| attempt.mesh.world()),
        created_s: run.created_s,
        updated_s: written.into_iter().flatten().fold(run.created_s, f64::max),
        checkpoint_step: summary.checkpoint.as_ref().map(|checkpoint| checkpoint.step),
        findings: Vec::new(),
        job: summary.job.clone(),
        is_command: run.is_command(),
        is_stepless: summary.is_stepless(),
        task: run.task(),
        items: summary.items(),
        stages: summary.stages,
        videos: summary.videos(),
        epochs: summary.epochs(),
        start_deadline_s: facts.starting_until_s(),
        longer_steps: longer_steps(summary),
        launch: launch_of(&summary.dir, run),
        is_imported: run.imported.is_some(),
        is_attached: run.attached.is_some(),
        note: rundir::read_note(&summary.dir),
    }
}

/// Returns the total steps that a resume of a finished training run proposes.
fn longer_steps(summary: &RunSummary) -> Option<u64> {
    let run = &summary.run;
    if summary.state != RunState::Finished
        || run.task() != Task::Train
        || run.imported.is_some()
        || run.attached.is_some()
    {
        return None;
    }
    let done = summary.checkpoint.as_ref()?.step;
    plan::longer_steps(&run.recipe().ok()?, summary.attempt.as_ref(), done)
}

/// Returns the draft of the launch form that starts a run like this one. `None` if the recipe file of the run is not known, or if the run
/// must not start programs with the rights of this user: overrides name programs, too.
fn launch_of(dir: &RunDir, run: &Run) -> Option<Box<LaunchDraft>> {
    let from = run.launched_from.as_ref()?;
    dir.check_trusted("cannot launch it again").ok()?;
    let name_of_recipe = run.recipe.get("name").and_then(|name| name.as_str());
    let init = match &run.start {
        StartFrom::Weights { path } => Some(path.to_string()),
        StartFrom::Random | StartFrom::Checkpoint { .. } | StartFrom::CheckpointFreshData { .. } => None,
    };
    Some(Box::new(LaunchDraft {
        recipe: from.recipe.to_string(),
        name: Some(run.name.clone()).filter(|name| Some(name.as_str()) != name_of_recipe),
        init,
        sets: from.sets.clone(),
        ..LaunchDraft::default()
    }))
}

fn is_settled(status: &Result<RunStatus, Failure>) -> bool {
    let is_over = |status: &RunStatus| {
        // A job that is not over may start another attempt.
        status.row.state.is_end() && status.row.job.as_ref().is_none_or(JobStatus::is_over)
    };
    status.as_ref().is_ok_and(is_over)
}

fn folders(runs: &Utf8Path) -> BTreeMap<Utf8PathBuf, FileStamp> {
    let folders = runs.read_dir_utf8().into_iter().flatten().flatten().map(|entry| entry.path().to_owned());
    folders.map(|folder| (folder.clone(), stamp_of(&RunDir::new(folder).run_toml()))).collect()
}

/// Returns the stamps of the checkpoint folders of a run. The stamp changes when a manifest is written.
pub fn checkpoint_folders(dir: &RunDir) -> BTreeMap<Utf8PathBuf, FileStamp> {
    other_trainers::checkpoint_folders(dir).into_iter().map(|folder| (folder.clone(), stamp_of(&folder))).collect()
}

/// Returns the stamps of the sample folders of a run. A stamp changes when a sample is complete.
pub fn sample_folders(samples: &SampleFolder) -> BTreeMap<Utf8PathBuf, FileStamp> {
    samples.folders().into_iter().map(|folder| (folder.clone(), stamp_of(&folder))).collect()
}

/// Returns the stamps of all files and folders that change when the status of a run changes.
fn files_of(dir: &RunDir) -> Vec<FileStamp> {
    let mut files = vec![
        dir.run_toml(),
        dir.note_file(),
        dir.metrics(),
        dir.events(),
        dir.healer_events(),
        dir.attempts(),
        dir.checkpoints(),
    ];
    for node in dir.node_ids().unwrap_or_default() {
        files.extend([dir.node_dir(&node), dir.node_events(&node)]);
    }
    files.iter().map(|file| stamp_of(file)).collect()
}

/// Lists the curricula repeatedly.
#[derive(Default)]
pub struct CurriculumLister {
    files: BTreeMap<Utf8PathBuf, FileStamp>,
    views: Vec<CurriculumView>,
}

impl CurriculumLister {
    /// Returns the current curricula: each `curriculum.toml` in the folder or in one of its subfolders.
    pub fn list(&mut self, configs: &Utf8Path) -> Vec<CurriculumView> {
        // A recipe can be the base of others, so any file can change any stage.
        let files = toml_files(configs);
        if files != self.files {
            let curricula = files.keys().filter(|file| file.file_name() == Some("curriculum.toml"));
            self.views = curricula.map(|file| view(file)).collect();
            self.files = files;
        }
        self.views.clone()
    }
}

/// Lists the recipes repeatedly.
#[derive(Default)]
pub struct RecipeLister {
    files: BTreeMap<Utf8PathBuf, FileStamp>,
    views: Vec<RecipeView>,
}

impl RecipeLister {
    /// Returns the current recipes: each TOML file in the folder or in one of its subfolders, except curricula.
    pub fn list(&mut self, configs: &Utf8Path) -> Vec<RecipeView> {
        // Canonical paths, because `bases_of` returns canonical paths too.
        let files = toml_files(&configs.canonicalize_utf8().unwrap_or_else(|_| configs.to_owned()));
        if files != self.files {
            let recipes: Vec<&Utf8PathBuf> =
                files.keys().filter(|file| file.file_name() != Some("curriculum.toml")).collect();
            let bases: Vec<Utf8PathBuf> = recipes.iter().flat_map(|file| bases_of(file)).collect();
            let builds_on = |file: &Utf8Path| bases.iter().filter(|base| *base == file).count();
            self.views = recipes.iter().map(|file| recipe_view(file, builds_on(file))).collect();
            self.files = files;
        }
        self.views.clone()
    }
}

/// Returns the files that a recipe builds on.
fn bases_of(file: &Utf8Path) -> Vec<Utf8PathBuf> {
    recipe::recipe_files(file).unwrap_or_default().into_iter().skip(1).collect()
}

fn recipe_view(path: &Utf8Path, builds_on_it: usize) -> RecipeView {
    let about = rundir::read_text(path).map(|text| recipe::first_comment(&text)).unwrap_or_default();
    let loaded = recipe::load(path, &[]);
    // A base may lack keys that the recipes built on it set. Any other error in a base is an error of these recipes too.
    let lacks = [RecipeErrorKind::MissingKey, RecipeErrorKind::BrokenRule, RecipeErrorKind::Mesh];
    let is_base = loaded.as_ref().map_or_else(|error| lacks.contains(&error.kind), |_| true);
    RecipeView {
        path: path.to_owned(),
        about,
        bases: if is_base { builds_on_it } else { 0 },
        facts: loaded.map(|resolved| recipe_facts(&resolved)).map_err(Failure::from),
    }
}

fn recipe_facts(resolved: &Resolved) -> RecipeFacts {
    let recipe = &resolved.recipe;
    let (job, length) = (recipe.job(), recipe.train.length);
    let kind = match job {
        JobKind::Command => recipe.command.adapter.program().unwrap_or("command"),
        JobKind::Train if recipe.lora.is_used() => "LoRA",
        JobKind::Train | JobKind::Encode | JobKind::Sample => recipe.task.name(),
    };
    RecipeFacts {
        name: recipe.name.clone(),
        kind: kind.to_owned(),
        command: (job == JobKind::Command).then(|| plan::command_line(&recipe.command.run)),
        params: job.has_model().then(|| recipe.cost().params),
        seq_len: job.has_model().then(|| recipe.model.seq_len()),
        length: match job {
            JobKind::Command => length.to_string(),
            JobKind::Train => format!("{length} of {}", units::counted(recipe.train.global_batch, "sample")),
            JobKind::Encode | JobKind::Sample => String::new(),
        },
        mesh: recipe.mesh.to_string(),
        ranks: recipe.mesh.world(),
        settings: set_keys(resolved),
    }
}

/// Returns the keys of a recipe whose values differ from their defaults, with their values.
fn set_keys(resolved: &Resolved) -> Vec<(String, String)> {
    let defaults: BTreeMap<&str, String> = recipe::default_settings().into_iter().collect();
    let settings = recipe::shown_settings(&resolved.table).into_iter();
    let set = settings.filter(|(key, value)| defaults.get(key) != Some(value));
    set.map(|(key, value)| (key.to_owned(), value)).collect()
}

fn toml_files(configs: &Utf8Path) -> BTreeMap<Utf8PathBuf, FileStamp> {
    let in_folder =
        |folder: &Utf8Path| folder.read_dir_utf8().into_iter().flatten().flatten().map(|e| e.path().to_owned());
    let top: Vec<Utf8PathBuf> = in_folder(configs).collect();
    let below = top.iter().filter(|path| path.is_dir()).flat_map(|folder| in_folder(folder).collect::<Vec<_>>());
    let files = below.chain(top.iter().cloned()).filter(|path| path.extension() == Some("toml"));
    files.map(|file| (file.clone(), stamp_of(&file))).collect()
}

fn view(file: &Utf8Path) -> CurriculumView {
    match workspace::curriculum(file, &[]) {
        Ok(curriculum) => CurriculumView {
            path: curriculum.path,
            title: curriculum.title,
            stages: Ok(curriculum.stages.iter().map(workspace::stage_view).collect()),
        },
        Err(refusal) => CurriculumView {
            path: file.to_owned(),
            title: file.parent().and_then(Utf8Path::file_name).unwrap_or("curriculum").to_owned(),
            stages: Err(refusal.into_failure()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_a_recipe_is_launched_again_with_its_overrides_and_weights() {
        let sets = vec!["train.steps=2".to_owned()];
        let run = Run {
            name: "cats".into(),
            start: StartFrom::Weights { path: "/weights".into() },
            launched_from: Some(rundir::LaunchedFrom { recipe: "/a/lora.toml".into(), sets: sets.clone() }),
            ..rundir::fixtures::run()
        };
        let keep = tempfile::tempdir().unwrap();
        let dir = RunDir::new(Utf8PathBuf::try_from(keep.path().join("cats")).unwrap());
        std::fs::create_dir(&dir.root).unwrap();
        dir.write_run(&run).unwrap();
        let launch_of = |run: &Run| super::launch_of(&dir, run);
        let launch = launch_of(&run).unwrap();
        assert_eq!((launch.recipe.as_str(), launch.name.as_deref()), ("/a/lora.toml", Some("cats")));
        assert_eq!((launch.init.as_deref(), &launch.sets), (Some("/weights"), &sets));
        let name = run.recipe["name"].as_str().unwrap().to_owned();
        let named = Run { name, ..run };
        assert_eq!(launch_of(&named).unwrap().name, None, "the recipe has this name already");
        assert_eq!(launch_of(&rundir::fixtures::run()), None);
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(dir.run_toml(), all).unwrap();
        assert_eq!(launch_of(&named), None, "other users may have written the overrides");
    }

    #[test]
    fn a_recipe_lists_only_the_keys_that_differ_from_their_defaults() {
        let path = Utf8Path::new("../../tests/fixtures/configs/valid/stages/long.toml");
        let resolved = recipe::load(path, &["train.seed=12345".into()]).unwrap();
        let defaults: BTreeMap<&str, String> = recipe::default_settings().into_iter().collect();
        let set = set_keys(&resolved);
        assert!(set.contains(&("train.seed".into(), "12345".into())), "{set:?}");
        assert!(set.iter().all(|(key, value)| defaults.get(key.as_str()) != Some(value)), "{set:?}");
    }
}

//! Converts the draft of the launch form to a launch: its subject, its nodes, and the files that it depends on.

use super::{Fitting, Subject, Workspace, curriculum, named_stage};
use crate::args::{LaunchArgs, NodesArgs};
use crate::command_error::CommandError;
use camino::{Utf8Path, Utf8PathBuf};
use recipe::Settings;
use rundir::{ErrorCode, Failure};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use ui::draft::{Fit, LaunchDraft, LaunchTarget};

/// The files of a draft, each with the hash of its content. The hash is `None` for a file that cannot be read.
pub type DraftFiles = Vec<(Utf8PathBuf, Option<u64>)>;

/// A draft as options of a launch.
pub struct DraftLaunch {
    /// The recipe or stage, with its mesh fitted.
    pub subject: Subject,
    /// The number of ranks on this machine. `None` for nodes, or for the size of the mesh.
    pub ranks: Option<usize>,
    /// The node flags.
    pub nodes: NodesArgs,
    /// What was changed to fit the mesh, in words. `None` if nothing was.
    pub fitted: Option<String>,
}

/// Returns the node flags for the target of a draft.
fn nodes_args(draft: &LaunchDraft) -> NodesArgs {
    let nodes = NodesArgs { waive: draft.waived.clone(), replaces: true, ..NodesArgs::default() };
    match draft.target.clone() {
        LaunchTarget::Local(_) => nodes,
        LaunchTarget::Slurm(path) => NodesArgs { slurm: Some(path), ..nodes },
        LaunchTarget::Hostfile { path, include, exclude } => {
            NodesArgs { hostfile: Some(path), include, exclude, push: draft.push, ..nodes }
        }
    }
}

/// Returns a draft with the target that node flags describe, without a recipe.
pub fn draft_of(nodes: &NodesArgs, local: Option<usize>) -> LaunchDraft {
    let NodesArgs { hostfile, slurm, include, exclude, push, waive, replaces: _ } = nodes.clone();
    let target = match (local, slurm, hostfile) {
        (Some(_), _, _) | (None, None, None) => LaunchTarget::Local(local),
        (None, Some(path), _) => LaunchTarget::Slurm(path),
        (None, None, Some(path)) => LaunchTarget::Hostfile { path, include, exclude },
    };
    LaunchDraft { target, push, waived: waive, ..LaunchDraft::default() }
}

impl Workspace {
    /// Returns the draft that the arguments of `vidtui launch` describe.
    pub fn draft(&self, args: LaunchArgs) -> LaunchDraft {
        let stage = args.stage;
        let sets = stage.how.sets();
        LaunchDraft {
            recipe: stage.recipe,
            name: args.name,
            init: stage.init,
            sets,
            fit: stage.fit.map_or(Fit::Off, Fit::To),
            ..draft_of(self.wanted(&stage.how.nodes), stage.how.local)
        }
    }

    /// Reads the recipe of a draft, with its overrides, and fits its mesh.
    pub fn draft_launch(&self, draft: &LaunchDraft) -> Result<DraftLaunch, CommandError> {
        let mut subject = self.subject(&draft.recipe, &draft.sets)?;
        let nodes = nodes_args(draft);
        let ranks = if let LaunchTarget::Local(ranks) = draft.target { ranks } else { None };
        let fitting = match (draft.fit, ranks) {
            (Fit::Off, _) => Fitting::Off,
            (Fit::To(ranks), _) | (Fit::ToTarget, Some(ranks)) => Fitting::To(ranks),
            (Fit::ToTarget, None) => Fitting::ToNodes,
        };
        let fitted = self.fit(subject.resolved_mut(), fitting, &nodes)?;
        Ok(DraftLaunch { subject, ranks, nodes, fitted })
    }

    /// Reads the settings in the recipe files of a draft, without the overrides of the draft.
    pub fn draft_settings(&self, draft: &LaunchDraft) -> Result<Settings, Failure> {
        let file = recipe_of(&draft.recipe).map_err(CommandError::into_failure)?;
        Ok(Settings::read(&file)?)
    }

    /// Reads the files that the plan of a draft depends on: the recipe with its bases, its curriculum, and the hostfile or Slurm
    /// file.
    pub fn draft_files(&self, draft: &LaunchDraft) -> DraftFiles {
        let mut files = BTreeSet::new();
        if let Some((file, _)) = stage_of(&draft.recipe) {
            files.insert(if file.is_dir() { file.join("curriculum.toml") } else { file.to_owned() });
        }
        if let Ok(recipe) = recipe_of(&draft.recipe) {
            files.extend(recipe::recipe_files(&recipe).unwrap_or_else(|_| vec![recipe]));
        }
        files.extend(draft.target.file().map(|path| self.here.join(path)));
        let hash = |path: Utf8PathBuf| {
            let bytes = std::fs::read(&path).ok();
            (path, bytes.map(|bytes| hashed(&bytes)))
        };
        files.into_iter().map(hash).collect()
    }

    /// Checks that the files of a draft have not changed since it was planned.
    ///
    /// * `planned` — the [`hashed`] files when the plan was made.
    ///
    /// # Errors
    /// `CheckFailed` if a file has changed.
    pub fn check_draft_files(&self, draft: &LaunchDraft, planned: u64) -> Result<(), Failure> {
        if hashed(&self.draft_files(draft)) == planned {
            return Ok(());
        }
        let why = "the recipe, the hostfile or the Slurm file has changed since the plan was made";
        let fix = "the form makes a new plan: check it, then launch";
        Err(Failure::new(ErrorCode::CheckFailed, format!("cannot launch {}", draft.recipe), why, fix))
    }

    /// Returns the targets that a form offers: this machine, the target of the options before the command, and the files in
    /// `hostfiles/`.
    pub fn targets(&self) -> Vec<LaunchTarget> {
        let folder = Utf8Path::new("hostfiles");
        let entries = self.here.join(folder).read_dir_utf8().into_iter().flatten().flatten();
        let mut files: Vec<Utf8PathBuf> = entries.map(|entry| folder.join(entry.file_name())).collect();
        files.retain(|file| {
            !file.file_name().is_some_and(|name| name.starts_with('.')) && self.here.join(file).is_file()
        });
        files.sort();
        let target = |path: Utf8PathBuf| match path.extension() {
            Some("toml") => LaunchTarget::Slurm(path),
            _ => LaunchTarget::Hostfile { path, include: None, exclude: None },
        };
        let mut targets = vec![LaunchTarget::Local(None)];
        for target in [draft_of(&self.nodes, None).target].into_iter().chain(files.into_iter().map(target)) {
            if !targets.iter().any(|other| other.is_alike(&target)) {
                targets.push(target);
            }
        }
        targets
    }
}

/// Hashes a value. Compare hashes only within one process, because Rust releases may hash differently.
pub fn hashed(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Splits `CURRICULUM:STAGE`.
fn stage_of(subject: &str) -> Option<(&Utf8Path, &str)> {
    let (file, stage) = subject.rsplit_once(':').filter(|_| !Utf8Path::new(subject).exists())?;
    Some((Utf8Path::new(file), stage))
}

/// Returns the file of a recipe, or of the recipe of a stage.
fn recipe_of(subject: &str) -> Result<Utf8PathBuf, CommandError> {
    match stage_of(subject) {
        None => Ok(subject.into()),
        Some((file, stage)) => Ok(named_stage(&curriculum(file, &[])?, stage)?.recipe_path.clone()),
    }
}

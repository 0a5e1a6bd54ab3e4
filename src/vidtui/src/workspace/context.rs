//! Gathers the context of a plan: time, random number, user, commit, programs.

use super::Workspace;
use crate::args::NodesArgs;
use crate::git_commit::git_commit;
use camino::Utf8PathBuf;
use nix::unistd::{Uid, User};
use plan::{Context, StartOptions, Target};
use recipe::{Recipe, TrainerKind};
use rundir::{ErrorCode, Failure};
use std::hash::{BuildHasher, RandomState};

impl Workspace {
    /// Returns the context of a plan. For a new run whose recipe gives the length in epochs, the caller sets the number of steps.
    ///
    /// * `recipe` — the recipe to train, if it is known.
    /// * `nodes` — the node flags of the command. If there are none, the node flags before the command apply.
    /// * `warnings` — warnings from preparing the request.
    pub fn context(
        &self,
        target: Target,
        recipe: Option<&Recipe>,
        nodes: &NodesArgs,
        warnings: Vec<String>,
    ) -> Result<Context, Failure> {
        let trainer = recipe.map_or(TrainerKind::Embedded, |recipe| recipe.trainer);
        let checked = recipe.filter(|_| trainer == TrainerKind::Embedded && target.has_other_nodes());
        let NodesArgs { waive, push, .. } = self.wanted(nodes).clone();
        let encode = recipe.and_then(crate::dataset::encode_facts);
        let data_files = checked.map_or_else(Vec::new, crate::dataset::sample_files);
        Ok(Context {
            now_s: rundir::now_s(),
            // The system seeds every hasher. Eight hexadecimal digits are enough for the end of an id.
            random: RandomState::new().hash_one(std::process::id()) as u32,
            by: self.user(),
            runs_root: self.runs.clone(),
            git_commit: git_commit(self.here.as_std_path()),
            trainer: self.trainer(trainer)?,
            program: own_file()?,
            cores: cores(),
            target,
            options: StartOptions { waived: waive, push, data_files, steps: None, encode, warnings },
        })
    }

    /// Returns the program that supervises the ranks: the trainer, or this program if the recipe trains with a command.
    pub fn trainer(&self, kind: TrainerKind) -> Result<plan::TrainerBinary, Failure> {
        match kind {
            TrainerKind::Embedded => self.trainer.find(),
            TrainerKind::Command => remote::own_program(env!("CARGO_PKG_VERSION")),
        }
    }

    /// Returns the user and this machine: `ada@devbox`.
    pub fn user(&self) -> String {
        let user = User::from_uid(Uid::effective()).ok().flatten();
        let user = user.map_or_else(|| Uid::effective().to_string(), |user| user.name);
        format!("{user}@{}", self.connections.this_node().node)
    }
}

/// Returns the CPU cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// Returns the path of this program. The scripts of Slurm jobs call it.
fn own_file() -> Result<Utf8PathBuf, Failure> {
    let path = std::env::current_exe().map_err(|error| error.to_string());
    let path = path.and_then(|path| Utf8PathBuf::try_from(path).map_err(|error| error.to_string()));
    path.map_err(|why| {
        Failure::new(ErrorCode::Io, "cannot find the path of this program", why, "check that /proc is mounted")
    })
}

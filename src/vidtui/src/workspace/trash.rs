//! Deletes runs: plans it, moves them into the trash and back, and removes those whose days are over.

use super::Workspace;
use plan::{DeleteRunRequest, RunDelete};
use rundir::{DeletedRun, ErrorCode, Failure, QueueEntry, QueueState, RunDir, RunId, Trash, now_s};

impl Workspace {
    /// Returns the trash of the folder of runs.
    pub fn trash(&self) -> Trash {
        Trash::of(&self.runs)
    }

    /// Plans to move a run into the trash. Moves nothing.
    ///
    /// # Errors
    /// The run is or may be active, a checkpoint of it is pinned, or an active run or an entry of the queue needs it.
    pub fn plan_delete_run(&self, dir: &RunDir) -> Result<RunDelete, Failure> {
        let (summary, _) = self.summary(dir)?;
        let entries = self.queue().entries()?;
        let queued = entries.iter().filter(|entry| starts_from(entry, &entries, &summary.run.id));
        plan::delete_run(DeleteRunRequest {
            run: &summary.run,
            dir,
            state: &summary.state,
            heals: dir.healer().is_some(),
            checkpoints: &other_trainers::checkpoints(dir)?,
            uses: self.uses_of_run(&summary),
            queued: queued.map(|entry| entry.id).collect(),
        })
    }

    /// Moves a run into the trash as planned.
    ///
    /// # Errors
    /// Another run has begun to need it since the plan was made, or its folder cannot be moved.
    pub fn delete_run(&self, plan: &RunDelete) -> Result<(), Failure> {
        self.plan_delete_run(&plan.dir)?;
        self.trash().put(&plan.dir, &self.user(), now_s())?;
        self.known_runs.forget(&plan.dir);
        Ok(())
    }

    /// Finds a run in the trash by its id, or by a part of it that no other run there has.
    ///
    /// # Errors
    /// No run in the trash has it, or several have.
    pub fn find_deleted(&self, name: &str) -> Result<DeletedRun, Failure> {
        let all = self.trash().list()?;
        let has_name = |id: &str| RunId::parse(id).is_ok_and(|id| id.name() == name);
        let is_it = |deleted: &&DeletedRun| {
            let id = deleted.run.as_str();
            !name.is_empty() && (id.starts_with(name) || id.ends_with(name) || has_name(id))
        };
        let found: Vec<&DeletedRun> = all.iter().filter(is_it).collect();
        let what = format!("the trash has no run '{name}'");
        match found[..] {
            [one] => Ok(one.clone()),
            [] => Err(Failure::new(
                ErrorCode::RunNotFound,
                what,
                format!(
                    "none of its {} has an id that starts or ends with it, or this name",
                    units::counted(all.len(), "run")
                ),
                "list them: vidtui runs trash",
            )),
            _ => {
                let ids: Vec<&str> = found.iter().map(|deleted| deleted.run.as_str()).collect();
                let why = format!("several match: {}", ids.join(", "));
                Err(Failure::new(ErrorCode::AmbiguousName, what, why, "write the whole id"))
            }
        }
    }
}

/// Returns whether an entry of the queue that waits will start from the weights of a run, or is starting it.
fn starts_from(entry: &QueueEntry, all: &[QueueEntry], run: &RunId) -> bool {
    let starts = |entry: &QueueEntry| match &entry.state {
        QueueState::Starting { run: own, .. } | QueueState::Started { run: own, .. } => own == run,
        _ => false,
    };
    let is_after = || entry.after.is_some_and(|id| all.iter().any(|other| other.id == id && starts(other)));
    let is_starting = matches!(&entry.state, QueueState::Starting { run: own, .. } if own == run);
    is_starting || entry.is_pending() && (entry.launch.iter().any(|word| word == run.as_str()) || is_after())
}

//! The plan to move a run into the trash.

use camino::Utf8PathBuf;
use rundir::{CheckpointEntry, ErrorCode, Failure, Run, RunDir, RunId};
use runstate::RunState;
use units::{counted, size};

use crate::{CheckpointUse, UseOf};

/// The request to delete a run.
#[derive(Debug, Clone)]
pub struct DeleteRunRequest<'a> {
    /// The run.
    pub run: &'a Run,
    /// Its folder.
    pub dir: &'a RunDir,
    /// Its state.
    pub state: &'a RunState,
    /// Whether a program resumes the run when it fails.
    pub heals: bool,
    /// Its checkpoints.
    pub checkpoints: &'a [CheckpointEntry],
    /// The other runs that use its checkpoints.
    pub uses: Vec<CheckpointUse>,
    /// The entries of the queue that wait and will start from the run.
    pub queued: Vec<u32>,
}

/// A run that will be moved into the trash.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RunDelete {
    /// The run.
    pub run: RunId,
    /// Its folder.
    pub dir: RunDir,
    /// The number of its checkpoints.
    pub checkpoints: usize,
    /// The size of its complete checkpoints in bytes.
    pub bytes: u64,
    /// The other runs that use them. None of them is active.
    pub uses: Vec<CheckpointUse>,
    /// The folder of checkpoints that a command wrote outside the folder of the run; it stays.
    pub stays: Option<Utf8PathBuf>,
}

impl RunDelete {
    /// Returns what the deletion removes, and what it means for others, one sentence each.
    pub fn consequences(&self) -> Vec<String> {
        let has = match self.checkpoints {
            0 => "It has no checkpoint.".to_owned(),
            count => format!("It has {} ({}).", counted(count, "checkpoint"), size(self.bytes)),
        };
        let uses = self.uses.iter().map(|user| match user.of {
            UseOf::Start => format!("{} started from it.", user.run),
            UseOf::Base => format!("{} has adapters that cannot be loaded without its weights.", user.run),
        });
        let stays =
            self.stays.iter().map(|folder| format!("The checkpoints in {folder} stay: the command wrote them."));
        std::iter::once(has).chain(uses).chain(stays).collect()
    }
}

/// Plans to delete a run.
///
/// # Errors
/// When the run is or may be active, has a pinned checkpoint, or an active run or an entry of the queue needs it.
pub fn delete_run(request: DeleteRunRequest<'_>) -> Result<RunDelete, Failure> {
    let DeleteRunRequest { run, dir, state, heals, checkpoints, uses, queued } = request;
    let id = &run.id;
    let what = format!("cannot delete {id}");
    let refused = |code, why: String, fix: String| Err(Failure::new(code, &*what, why, fix));
    match state {
        RunState::Unknown => {
            let fix = format!("delete it when its nodes can be reached: vidtui status {id}");
            return refused(ErrorCode::RunStateUnknown, "its state is unknown: it may be active".into(), fix);
        }
        state if !(state.is_end() || *state == RunState::New) => {
            return refused(ErrorCode::RunIsAlive, "it is active".into(), format!("stop it first: vidtui stop {id}"));
        }
        _ if heals => {
            let why = "a program resumes it when it fails".into();
            return refused(ErrorCode::RunIsAlive, why, format!("stop it first: vidtui stop {id}"));
        }
        _ => {}
    }
    let mut complete = checkpoints.iter().filter_map(CheckpointEntry::complete);
    if let Some(pinned) = complete.find(|checkpoint| checkpoint.is_pinned) {
        let fix = format!("unpin it first: vidtui checkpoints {id} unpin {}", pinned.step);
        return refused(ErrorCode::CheckpointInUse, format!("its checkpoint of step {} is pinned", pinned.step), fix);
    }
    if let Some((why, fix)) = CheckpointUse::refusal(&uses) {
        return refused(ErrorCode::CheckpointInUse, why, fix);
    }
    if let Some(entry) = queued.first() {
        let fix = format!("remove the entry first: vidtui queue remove {entry}");
        return refused(ErrorCode::CheckpointInUse, format!("entry {entry} of the queue will start from it"), fix);
    }
    let (inside, outside): (Vec<&CheckpointEntry>, Vec<_>) =
        checkpoints.iter().partition(|entry| entry.dir().starts_with(&dir.root));
    Ok(RunDelete {
        run: id.clone(),
        dir: dir.clone(),
        checkpoints: inside.len(),
        bytes: inside.iter().filter_map(|entry| entry.complete()).map(|checkpoint| checkpoint.bytes).sum(),
        uses,
        stays: outside.first().and_then(|entry| entry.dir().parent()).map(ToOwned::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Past, coded, past};

    fn plan(past: &Past, state: &RunState, uses: Vec<CheckpointUse>, queued: Vec<u32>) -> Result<RunDelete, Failure> {
        let (run, dir, checkpoints) = (&past.run, &past.dir, &past.checkpoints);
        delete_run(DeleteRunRequest { run, dir, state, heals: false, checkpoints, uses, queued })
    }

    fn used(of: UseOf, is_active: bool) -> Vec<CheckpointUse> {
        vec![CheckpointUse { run: RunId::parse("2026-11-20T0355-demo-4s-q2xw").unwrap(), of, is_active }]
    }

    #[test]
    fn a_run_that_others_need_or_that_may_be_active_is_not_deleted() {
        let (ended, mut pinned) = (past(60, &[20, 40]), past(60, &[20, 40]));
        let CheckpointEntry::Complete(first) = &mut pinned.checkpoints[0] else { panic!("it is complete") };
        first.is_pinned = true;
        let refusals = [
            plan(&ended, &RunState::Running, vec![], vec![]),
            plan(&ended, &RunState::Unknown, vec![], vec![]),
            plan(&pinned, &RunState::Stopped, vec![], vec![]),
            plan(&ended, &RunState::Stopped, used(UseOf::Start, true), vec![]),
            plan(&ended, &RunState::Stopped, used(UseOf::Base, true), vec![]),
            plan(&ended, &RunState::Stopped, vec![], vec![3, 4]),
        ];
        insta::assert_snapshot!(refusals.map(|refusal| coded(&refusal.unwrap_err())).join("\n\n"));
    }

    #[test]
    fn the_plan_names_the_checkpoints_and_the_runs_that_used_them() {
        let past = past(60, &[20, 40]);
        let delete = plan(&past, &RunState::Finished, used(UseOf::Base, false), vec![]).unwrap();
        assert_eq!((delete.checkpoints, delete.stays.as_ref()), (2, None));
        let [has, base] = &delete.consequences()[..] else { panic!("{:?}", delete.consequences()) };
        assert!(has.contains("2 checkpoints") && base.contains("demo-4s-q2xw"), "{has} {base}");
        assert_eq!(plan(&past, &RunState::New, vec![], vec![]).unwrap().uses, []);
    }
}

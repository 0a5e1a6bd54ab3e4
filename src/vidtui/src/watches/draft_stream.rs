//! The stream of the launch form: reads, plans and checks a draft, and repeats this when one of its files changes.

use super::{Ended, LIST, Stream};
use crate::checks;
use crate::workspace::{DraftFiles, DraftLaunch, Init, LaunchOptions, conversions, hashed};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{JobKind, StageStart};
use remote::{Check, CheckId};
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::task::block_in_place;
use ui::Msg;
use ui::draft::{DraftMsg, LaunchDraft, LaunchTarget, PreflightRow};

/// The time before a draft is read: the user may be changing several fields, and each change starts a stream.
const SETTLE: Duration = Duration::from_millis(120);

impl Stream {
    /// Sends the targets, the settings, the plan and the checks of a draft, and repeats this when its files change.
    pub(super) async fn draft(&self, draft: &LaunchDraft) -> Result<Infallible, Ended> {
        let mut known = KnownDraft::default();
        self.pause(SETTLE).await?;
        loop {
            block_in_place(|| self.read_draft(draft, &mut known))?;
            self.pause(LIST).await?;
        }
    }

    /// Sends the targets if they have changed. If a file of the draft has changed, reads the settings and plans the draft.
    fn read_draft(&self, draft: &LaunchDraft, known: &mut KnownDraft) -> Result<(), Ended> {
        let send = |what| self.send_blocking(Msg::Draft { draft: Box::new(draft.clone()), what });
        let now = self.workspace.targets();
        if known.targets.as_ref() != Some(&now) {
            send(DraftMsg::Targets(now.clone()))?;
            known.targets = Some(now);
        }
        let files = self.workspace.draft_files(draft);
        if known.files.as_ref() != Some(&files) {
            let changed = known.files.as_ref().map_or_else(Vec::new, |before| changed(before, &files));
            let settings = self.workspace.draft_settings(draft).map(Box::new);
            send(DraftMsg::Read { changed, settings })?;
            self.plan(draft, hashed(&files), &send)?;
            known.files = Some(files);
        }
        Ok(())
    }

    /// Plans a draft and checks the plan.
    fn plan(
        &self,
        draft: &LaunchDraft,
        files: u64,
        send: &(dyn Fn(DraftMsg) -> Result<(), Ended> + Sync),
    ) -> Result<(), Ended> {
        let launch = match self.workspace.draft_launch(draft) {
            Ok(launch) => launch,
            Err(refusal) => return send(DraftMsg::Refused(refusal.into_failure())),
        };
        let recipe = &launch.subject.resolved().recipe;
        let is_fitted = draft.fit != ui::draft::Fit::Off && recipe.job() != JobKind::Command;
        if is_fitted {
            send(DraftMsg::Fitted { ranks: recipe.mesh.world(), changes: launch.fitted.clone() })?;
        }
        let DraftLaunch { subject, ranks, nodes, fitted } = &launch;
        let init = draft.init.as_deref().into();
        let options =
            LaunchOptions { subject, ranks: *ranks, nodes, name: draft.name.as_deref(), init, fitted: fitted.clone() };
        let planned = Mutex::new(Vec::new());
        let on_plan = |plan: &plan::LaunchPlan| {
            let nodes = plan.nodes.iter().map(|launch| launch.node.clone()).collect();
            *planned.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
            // The next message fails if the stream was stopped.
            let _ = send(DraftMsg::Planned { plan: Box::new(plan.clone()), files });
        };
        let rows = |checks: &[Check], is_complete| {
            let nodes = planned.lock().unwrap_or_else(PoisonError::into_inner).clone();
            checks::preflight(checks, &nodes, is_complete)
        };
        let checked =
            |checks: Vec<PreflightRow>, is_complete, convert| send(DraftMsg::Checked { checks, is_complete, convert });
        let progress = |checks: &[Check]| drop(checked(rows(checks, false), false, None));
        let all = checks::all(&self.workspace, &options, &on_plan, &progress);
        let failed = |id: CheckId| all.iter().any(|check| check.id == id && check.failure().is_some());
        let convert = if failed(CheckId::Weights) { conversion_for(&options) } else { None };
        checked(rows(&all, true), true, convert.map(Box::new))
    }
}

/// The targets and files that the last read of a draft found.
#[derive(Default)]
struct KnownDraft {
    targets: Option<Vec<LaunchTarget>>,
    files: Option<DraftFiles>,
}

/// Returns the files that were added, changed or removed.
fn changed(before: &DraftFiles, now: &DraftFiles) -> Vec<Utf8PathBuf> {
    let differs = |(path, hash): &&(Utf8PathBuf, Option<u64>)| {
        before.iter().find(|(other, _)| other == path).is_none_or(|(_, other)| other != hash)
    };
    let gone = before.iter().filter(|(path, _)| !now.iter().any(|(other, _)| other == path));
    now.iter().filter(differs).chain(gone).map(|(path, _)| path.clone()).collect()
}

/// Returns the conversion that makes the weights of a launch usable; `None` if their format cannot be converted.
fn conversion_for(options: &LaunchOptions<'_>) -> Option<ui::ConvertOptions> {
    let path = match (&options.init, options.subject.stage()) {
        (Init::Given(path), _) => Utf8Path::new(path),
        (Init::ByStage, Some((_, stage))) => match &stage.start {
            StageStart::Path(path) => path,
            StageStart::Random | StageStart::Previous => return None,
        },
        (Init::Run(_), _) | (Init::ByStage, None) => return None,
    };
    let layer = options.subject.resolved().recipe.model.layer();
    conversions::that_helps(path, layer).map(|(_, conversion)| conversion)
}

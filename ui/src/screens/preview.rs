//! The run whose metrics and events a list screen shows beside its list.

use crate::model::{Model, RunScreen};
use crate::screens::behaviour;

/// Returns the metrics and events of that run, if they are loaded.
pub fn loaded(model: &Model) -> Option<&RunScreen> {
    let shown = &behaviour(model.screen).preview(model)?.run;
    [&model.screens.run, &model.screens.preview].into_iter().flatten().find(|open| open.id == *shown)
}

/// Starts to load that run. Called once per tick, so that scrolling fast through a list loads no other runs.
pub fn prepare(model: &mut Model) {
    if loaded(model).is_some() {
        return;
    }
    if let Some(run) = behaviour(model.screen).preview(model).map(|row| row.run.clone()) {
        model.screens.preview = Some(RunScreen { smoothing: Some(0), ..RunScreen::new(run) });
        model.dirty = true;
    }
}

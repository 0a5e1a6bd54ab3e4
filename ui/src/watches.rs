//! Selects the data streams that the console needs for the current screen.

use crate::effect::Watch;
use crate::model::Model;
use crate::screens::{behaviour, preview};
use std::collections::BTreeSet;

/// Returns the streams that should run now. The shell (the program around this crate, which does all IO) starts and
/// stops streams until exactly these run. The streams depend only on the model, so that screens need not start or
/// stop them.
pub fn watches(model: &Model) -> BTreeSet<Watch> {
    let mut wanted = BTreeSet::from([Watch::Runs, Watch::Curricula, Watch::Alerts]);
    wanted.extend(preview::loaded(model).map(|open| Watch::Run(open.id.clone())));
    behaviour(model.screen).watches(model, &mut wanted);
    wanted
}

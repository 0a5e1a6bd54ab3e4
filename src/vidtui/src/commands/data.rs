//! `vidtui data import`: converts a data set for training.

use crate::args::DataImportArgs;
use crate::command_error::CommandError;
use crate::commands::transfer::Transfer;
use crate::output;
use ::dataset::{ImportRequest, Imported, plan_import};

/// Converts a data set of torch pickles.
pub fn import(args: &DataImportArgs) -> Result<(), CommandError> {
    let DataImportArgs { index, target, root, channels, force, .. } = args;
    let request =
        ImportRequest { index: index.clone(), root: root.clone(), target: target.clone(), channels: *channels };
    let plan = plan_import(&request)?;
    let mut transfer = Transfer::begin();
    let done = plan.execute(*force, &mut |progress| transfer.step(progress));
    transfer.end();
    let done = done?;
    if args.output.json {
        return output::json(&done);
    }
    let Imported { index, samples, files, bytes } = done;
    eprintln!(
        "{} in {}, {}; set data.index to the index below",
        units::counted(samples, "sample"),
        units::counted(files, "file"),
        units::bytes(bytes)
    );
    output::line(index.as_str())
}

//! `vidtui data import` and `vidtui data prune`: imports the latents of another program, and removes shards that no index names.

use crate::args::{DataImportArgs, DataPruneArgs};
use crate::command_error::CommandError;
use crate::commands::transfer::Transfer;
use crate::output::{self, note};
use crate::workspace::Workspace;
use ::dataset::store::{remove_unused, unused_shards};
use ::dataset::{ImportRequest, Imported, NotFiniteClip, NotFiniteClips, plan_import, store_folder};
use camino::Utf8Path;
use rundir::{ErrorCode, Failure};

/// Imports the latents and texts that another program prepared as torch pickles.
pub fn import(args: &DataImportArgs) -> Result<(), CommandError> {
    let DataImportArgs { index, target, root, channels, drop_not_finite, force, .. } = args;
    let not_finite = if *drop_not_finite { NotFiniteClips::Drop } else { NotFiniteClips::Refuse };
    let (index, root, target) = (index.clone(), root.clone(), target.clone());
    let request = ImportRequest { index, root, target, channels: *channels, not_finite };
    let plan = plan_import(&request)?;
    let mut transfer = Transfer::begin();
    let done = plan.execute(*force, &mut |progress| transfer.step(progress));
    transfer.end();
    let done = done?;
    if args.output.json {
        return output::json(&done);
    }
    let Imported { index, samples, files, bytes, dropped } = done;
    if !dropped.is_empty() {
        let clip = |clip: &NotFiniteClip| format!("'{}'", clip.id);
        let (count, clips) = (units::counted(dropped.len(), "clip"), units::listed(&dropped, 5, clip));
        note!("left out {count} with values that are NaN or infinite: {clips}");
    }
    note!(
        "{} in {}, {}; set data.index to the index below",
        units::counted(samples, "sample"),
        units::counted(files, "file"),
        units::short_size(bytes)
    );
    output::line(index.as_str())
}

/// Removes the shards that the index of a data set does not name.
pub fn prune(workspace: &Workspace, args: &DataPruneArgs) -> Result<(), CommandError> {
    let data = store_folder(&args.data).unwrap_or_else(|| args.data.clone());
    if !args.dry_run && !args.force {
        refuse_if_read(workspace, &data)?;
    }
    let shards = if args.dry_run { unused_shards(&data)? } else { remove_unused(&data)? };
    if args.output.json {
        return output::json(&serde_json::json!({ "data": data, "removed": !args.dry_run, "shards": shards }));
    }
    for shard in &shards {
        output::line(&format!("{} {}", data.join(&shard.name), units::short_size(shard.bytes)))?;
    }
    let (count, bytes) = (units::counted(shards.len(), "unused shard"), shards.iter().map(|shard| shard.bytes).sum());
    note!("{} {count}, {}", if args.dry_run { "found" } else { "removed" }, units::short_size(bytes));
    Ok(())
}

/// Fails if a run trains on the data set. The run keeps the index that it read at its start, and opens shards later.
fn refuse_if_read(workspace: &Workspace, data: &Utf8Path) -> Result<(), Failure> {
    let same = |index: &Utf8Path| {
        let folder = store_folder(index).unwrap_or_else(|| index.to_owned());
        matches!((folder.canonicalize_utf8(), data.canonicalize_utf8()), (Ok(a), Ok(b)) if a == b)
    };
    let (runs, unreadable) = workspace.summaries();
    if let Some(failure) = unreadable.into_iter().next() {
        return Err(Failure::new(
            failure.code,
            format!("cannot remove shards of {data}"),
            format!("a run that may read them cannot be checked: {}: {}", failure.what, failure.why),
            "make the run readable or remove it, or remove the shards anyway with --force",
        ));
    }
    let reader = runs
        .iter()
        .filter(|summary| !summary.state.is_end())
        .find(|summary| data_sets(&summary.run.recipe).any(|index| !index.is_empty() && same(Utf8Path::new(index))));
    let Some(reader) = reader else { return Ok(()) };
    Err(Failure::new(
        ErrorCode::RunIsAlive,
        format!("cannot remove shards of {data}"),
        format!("{} trains on it and may open these shards later", reader.run.id),
        "wait until it ends, or remove them anyway with --force",
    ))
}

/// Returns the data sets that a recipe names: `data.index`, those of `data.sets`, and `sample.validation_index`. Reads the table, because
/// this version may be unable to parse a recipe of another version.
fn data_sets(recipe: &toml::Table) -> impl Iterator<Item = &str> {
    let of = |section: &str, key: &str| recipe.get(section).and_then(|section| section.get(key));
    let sets = of("data", "sets").and_then(toml::Value::as_array).into_iter().flatten();
    let sets = sets.filter_map(|set| set.get("index"));
    let alone = [of("data", "index"), of("sample", "validation_index")].into_iter().flatten();
    alone.chain(sets).filter_map(toml::Value::as_str)
}

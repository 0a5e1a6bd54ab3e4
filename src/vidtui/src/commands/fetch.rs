//! `vidtui fetch`: downloads a model or a data set from the Hugging Face Hub.

use crate::args::FetchArgs;
use crate::command_error::CommandError;
use crate::commands::transfer::{Measure, Step, Transfer};
use crate::output::{self, note};
use hub::{FetchRequest, Kind, Settings, fetch};
use rundir::ErrorCode;

/// Downloads a model or a data set, and prints its folder.
pub fn run(args: &FetchArgs) -> Result<(), CommandError> {
    let FetchArgs { model, files, dataset, revision, cache, .. } = args;
    let kind = if *dataset { Kind::Dataset } else { Kind::Model };
    let request = FetchRequest { kind, model: model.clone(), revision: revision.clone(), files: files.clone() };
    let mut settings = Settings::from_environment(&|name| std::env::var(name).ok()).map_err(CommandError::request)?;
    if let Some(cache) = cache {
        settings.cache.clone_from(cache);
    }
    // Print an absolute folder, so that commands in other folders can use it.
    settings.cache = camino::absolute_utf8(&settings.cache).unwrap_or(settings.cache);
    let mut transfer = Transfer::begin();
    let fetched = fetch(&request, &settings, &mut |progress| {
        let name = progress.file.rsplit('/').next().unwrap_or_default();
        let phase = match progress.file {
            "" => "listing files".to_owned(),
            _ if progress.verifies => format!("verifying {name}"),
            _ => name.to_owned(),
        };
        transfer.step(Step { phase: &phase, done: progress.done, total: progress.total, measure: Measure::Bytes })
    });
    transfer.end();
    let fetched = fetched.map_err(|failure| match failure.code {
        ErrorCode::InvalidArgument | ErrorCode::UnknownName => CommandError::request(failure),
        _ => failure.into(),
    })?;
    if args.output.json {
        return output::json(&fetched);
    }
    note!(
        "{} at commit {}: {}, {}, {} downloaded now",
        model,
        &fetched.commit[..12.min(fetched.commit.len())],
        units::counted(fetched.files, "file"),
        units::short_size(fetched.bytes),
        fetched.downloaded,
    );
    output::line(fetched.folder.as_str())
}

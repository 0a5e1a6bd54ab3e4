//! `vidtui data verify`: reads every latent and text of a data set, and lists those that are damaged.

use crate::args::DataVerifyArgs;
use crate::command_error::CommandError;
use crate::commands::transfer::Transfer;
use crate::output::{self, Side, table};
use ::dataset::store::{DamagedTensor, Repair, Verified, repair, verify};
use ::dataset::{store_folder, verify_files};
use camino::Utf8Path;
use rundir::{ErrorCode, Failure};
use serde::Serialize;

/// The maximum number of damaged tensors in the table, and of the clips of each. `--json` lists all of them.
const ROWS: usize = 20;
const CLIPS: usize = 3;

/// The document of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    data: &'a Utf8Path,
    #[serde(flatten)]
    verified: &'a Verified,
    /// The clips that `--drop` left out.
    dropped: Vec<String>,
}

/// Verifies a data set. Fails if a latent or text is damaged and its clips stay in the index.
pub fn run(args: &DataVerifyArgs) -> Result<(), CommandError> {
    let store = store_folder(&args.data);
    if store.is_none() && args.data.exists() && (args.drop || args.record) {
        let (what, why) =
            (format!("cannot change {}", args.data), "its clips have separate files, which have no checksums");
        let fix = format!("import it into a data set that has them: vidtui data import {} NEW_FOLDER", args.data);
        return Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, fix)));
    }
    let data = store.clone().unwrap_or_else(|| args.data.clone());
    let mut transfer = Transfer::begin();
    let verified = match &store {
        Some(folder) => verify(folder, &mut |progress| transfer.step(progress)),
        None => verify_files(&data, &mut |progress| transfer.step(progress)),
    };
    transfer.end();
    let verified = verified?;
    let repairs: Vec<Repair> = [
        (args.drop && !verified.damaged.is_empty(), Repair::Drop),
        (args.record && verified.without_checksum > 0, Repair::Record),
    ]
    .into_iter()
    .filter_map(|(is_asked, repair)| is_asked.then_some(repair))
    .collect();
    let dropped = if repairs.is_empty() { Vec::new() } else { repair(&data, &verified, &repairs)? };
    if args.output.json {
        output::json(&Document { data: &data, verified: &verified, dropped: dropped.clone() })?;
    } else {
        output::text(&shown(&data, &verified, &repairs, dropped.len()))?;
    }
    if verified.damaged.is_empty() || args.drop { Ok(()) } else { Err(is_damaged(&data, &verified).into()) }
}

fn shown(data: &Utf8Path, verified: &Verified, repairs: &[Repair], dropped: usize) -> String {
    let Verified { clips, tensors, bytes, without_checksum, damaged, .. } = verified;
    let clips = units::counted(*clips, "clip");
    let (tensors, size) = (units::counted(*tensors, "tensor"), units::short_size(*bytes));
    let mut text = format!("read {clips} of {data}: {tensors}, {size}\n");
    if *without_checksum > 0 {
        let count = units::grouped(*without_checksum as u64);
        text += &match repairs.contains(&Repair::Record) {
            _ if !data.is_dir() => format!(
                "separate files have no checksums, so damage that leaves finite values is not found; \
                 import them: vidtui data import {data} NEW_FOLDER\n"
            ),
            true => format!("recorded the checksums of {count} of them\n"),
            false => format!(
                "{count} of them have no checksum, because an earlier version wrote them; \
                 record the checksums: vidtui data verify {data} --record\n"
            ),
        };
    }
    if damaged.is_empty() {
        return text + "nothing is damaged\n";
    }
    let row = |found: &DamagedTensor| {
        let clips = match found.clips.is_empty() {
            true => "none: the empty caption".into(),
            false => units::listed(&found.clips, CLIPS, String::clone),
        };
        vec![clips, found.role.clone(), found.shard.clone(), found.why.clone()]
    };
    let rows: Vec<Vec<String>> = damaged.iter().take(ROWS).map(row).collect();
    let columns = ["clip", "damaged", "shard", "why"].map(|name| (name, Side::Left));
    text += &format!("\n{}", table(&columns, &rows));
    if damaged.len() > ROWS {
        text += &format!("{} more: --json lists all\n", units::grouped((damaged.len() - ROWS) as u64));
    }
    if repairs.contains(&Repair::Drop) {
        text += &format!("\nleft out {}; encode their videos again to restore them\n", units::counted(dropped, "clip"));
    }
    text
}

fn is_damaged(data: &Utf8Path, verified: &Verified) -> Failure {
    let clips: std::collections::BTreeSet<&String> = verified.damaged.iter().flat_map(|found| &found.clips).collect();
    let clips: Vec<&String> = clips.into_iter().collect();
    let named = units::listed(&clips, CLIPS, |clip| format!("'{clip}'"));
    let why = match clips.len() {
        0 => "the text of the empty caption is damaged".to_owned(),
        n => format!("{} cannot be trained on: {named}", units::counted(n, "clip")),
    };
    if !data.is_dir() {
        let fix = "copy these files again from their source, or remove their lines from the index";
        return Failure::new(ErrorCode::InvalidDataset, format!("the data set {data} is damaged"), why, fix);
    }
    let fix = format!(
        "copy the damaged shards again from their source; or leave out these clips (vidtui data verify {data} --drop), \
         and encode their videos again"
    );
    Failure::new(ErrorCode::InvalidDataset, format!("the data set {data} is damaged"), why, fix)
}

//! `vidtui check --fit-memory` and `--table`: proposes settings that fit a size of memory, and prints the memory of each way to train.

use crate::command_error::CommandError;
use crate::output::{self, Side};
use recipe::{MemoryFit, MemoryRow, PublishedPeak, Recipe};
use rundir::Failure;
use serde_json::json;
use units::size;

/// The maximum number of proposals that are shown.
const PROPOSALS: usize = 4;

/// Proposes settings with which a rank fits a device with `total` bytes.
pub fn fit(recipe: &Recipe, named: &str, total: u64, as_json: bool) -> Result<(), CommandError> {
    let limit = recipe.usable_memory(total);
    let fits = recipe.fit_memory(limit, PROPOSALS).map_err(Failure::from)?;
    let now = recipe.peak_memory();
    if as_json {
        return output::json(&json!({ "recipe": named, "limit_bytes": limit, "peak_bytes": now, "fits": fits }));
    }
    let [first, others @ ..] = fits.as_slice() else { return Ok(()) };
    let mut text = format!(
        "{named} needs {} per rank at the peak; the limit is {}{}\n",
        size(now),
        size(limit),
        of_device(limit, total)
    );
    if first.sets.is_empty() {
        return output::text(&format!("{text}it fits without a change\n"));
    }
    text += &format!("\nthe fastest settings that fit:\n{}", described(first));
    if !others.is_empty() {
        text += &format!("\nother ways:\n{}", others.iter().map(described).collect::<Vec<_>>().join("\n"));
    }
    output::text(&text)
}

/// Returns the words for the memory of the device, if a plan may not take all of it.
fn of_device(limit: u64, total: u64) -> String {
    if limit == total { String::new() } else { format!(" of the {} of a GPU", size(total)) }
}

fn described(fit: &MemoryFit) -> String {
    let flags: String = fit.sets.iter().map(|set| format!(" --set {set}")).collect();
    format!("  {} ({}, about {:.2} × the time)\n   {flags}\n", fit.changes.join(", "), size(fit.peak), fit.time)
}

/// Prints the planned memory of each way to train the model on one GPU, beside published figures.
pub fn table(recipe: &Recipe, named: &str, as_json: bool) -> Result<(), CommandError> {
    let rows = recipe.memory_table();
    if as_json {
        return output::json(&json!({ "recipe": named, "rows": rows }));
    }
    let columns = [
        ("training", Side::Left),
        ("recompute", Side::Left),
        ("optimizer", Side::Left),
        ("batch", Side::Right),
        ("plan", Side::Right),
        ("cogvideox-factory", Side::Right),
    ];
    let cells = |row: &MemoryRow| {
        let training = if row.lora_rank == 0 { "all weights".into() } else { format!("LoRA {}", row.lora_rank) };
        let published = match row.published {
            None => String::new(),
            Some(PublishedPeak::Gb(gb)) => format!("{gb:.1} GB"),
            Some(PublishedPeak::OutOf80Gb) => "over 80 GB".into(),
        };
        vec![
            training,
            if row.recompute { "yes" } else { "no" }.into(),
            format!("{}{}", row.optimizer.name(), if row.offload { ", offloaded" } else { "" }),
            row.batch.to_string(),
            format!("{:.1} GB", row.planned as f64 / 1e9),
            published,
        ]
    };
    let table = output::table(&columns, &rows.iter().map(cells).collect::<Vec<_>>());
    let note = match rows.iter().any(|row| row.published.is_some()) {
        true => {
            "\nThe plan is for one GPU in bfloat16. Trained weights and their gradients are float32.\n\
                 cogvideox-factory measured the peak of training on an A100 with 80 GB. With small\n\
                 batches, it reaches this peak while it loads the text encoder. To train all weights\n\
                 offloaded, it offloads optimizer state and gradients, and the plan swaps every block.\n"
        }
        false => "\nThe plan is for one GPU in bfloat16. Trained weights and their gradients are float32.\n",
    };
    output::text(&format!("{table}{note}"))
}

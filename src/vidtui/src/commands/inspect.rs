//! `vidtui inspect`: prints the properties of weights, or their differences from other weights.

use crate::args::InspectArgs;
use crate::command_error::CommandError;
use crate::commands::report_latest;
use crate::commands::transfer::Transfer;
use crate::output::{self, Side};
use crate::workspace::Workspace;
use camino::Utf8Path;
use weights::{Changed, Difference, Inspection, NotFinite, TensorRow, WeightsSource};

/// Shows the properties of weights, or their differences from other weights.
pub fn run(workspace: &Workspace, args: &InspectArgs) -> Result<(), CommandError> {
    let path = workspace.find_weights(&args.path)?;
    report_latest(&args.path, &path, args.output.json);
    if let Some(other) = &args.other {
        return compare(&path, &workspace.find_weights(other)?, args);
    }
    let mut transfer = Transfer::begin();
    let seen = weights::inspect_with(&path, args.stats, &mut |progress| transfer.step(progress));
    transfer.end();
    let mut seen = seen?;
    if args.output.json {
        if !args.tensors && !args.stats {
            seen.tensors.clear();
        }
        return output::json(&seen);
    }
    output::text(&output::facts(&facts(&seen)))?;
    if args.tensors || args.stats {
        output::text(&format!("\n{}", tensor_table(&seen.tensors, args.stats)))?;
    }
    Ok(())
}

fn facts(seen: &Inspection) -> Vec<(String, String)> {
    let mut facts = vec![("path".to_owned(), seen.path.to_string()), ("kind".to_owned(), seen.kind.to_string())];
    let mut add = |name: &str, value: Option<String>| facts.extend(value.map(|value| (name.to_owned(), value)));
    add("family", seen.family.map(|family| family.to_string()));
    add("layers", seen.layers.map(|layers| layers.to_string()));
    add("run", seen.run.as_ref().map(|run| format!("{run}, step {}", seen.step.unwrap_or(0))));
    if seen.parameters > 0 {
        let types: Vec<&str> = seen.dtypes.keys().copied().collect();
        add("parameters", Some(format!("{} in {} tensors", units::grouped(seen.parameters), seen.tensors.len())));
        add("type", Some(types.join(", ")));
        add("size", Some(units::short_size(seen.bytes)));
    }
    if seen.optimizer_tensors > 0 {
        add("optimizer", Some(format!("{} tensors", seen.optimizer_tensors)));
    }
    add("values", not_finite(seen));
    add("complete", Some(if seen.complete { "yes" } else { "no" }.into()));
    add("why", seen.why.as_ref().map(|why| format!("{}: {}", why.what, why.why)));
    add("trainable", seen.unusable.as_ref().map(|why| format!("no: {}", why.why)));
    facts
}

/// Returns how many values are not finite; `None` if the values were not read.
fn not_finite(seen: &Inspection) -> Option<String> {
    let read = seen.tensors.iter().filter_map(|row| Some((row, row.stats?)));
    let mut found = Vec::new();
    let mut is_read = false;
    for (row, stats) in read {
        is_read = true;
        let values = stats.nan + stats.infinite;
        found.extend((values > 0).then(|| NotFinite { tensor: row.name.clone(), values }));
    }
    is_read.then(|| if found.is_empty() { "all finite".to_owned() } else { NotFinite::words(&found) })
}

fn tensor_table(tensors: &[TensorRow], stats: bool) -> String {
    let mut columns = vec![("tensor", Side::Left), ("type", Side::Left), ("shape", Side::Left)];
    if stats {
        columns.extend(["min", "max", "mean", "mean |x|", "NaN", "infinite"].map(|title| (title, Side::Right)));
    }
    let number = |value: Option<f64>| value.map_or("-".into(), units::number);
    let row = |tensor: &TensorRow| {
        let mut row = vec![tensor.name.clone(), tensor.dtype.to_owned(), format!("{:?}", tensor.shape)];
        if let Some(stats) = tensor.stats {
            row.extend([stats.min, stats.max, stats.mean, stats.mean_abs].map(number));
            row.extend([stats.nan.to_string(), stats.infinite.to_string()]);
        }
        row
    };
    output::table(&columns, &tensors.iter().map(row).collect::<Vec<_>>())
}

fn compare(first: &Utf8Path, second: &Utf8Path, args: &InspectArgs) -> Result<(), CommandError> {
    let (a, b) = (WeightsSource::open(first)?, WeightsSource::open(second)?);
    let mut transfer = Transfer::begin();
    let found = weights::compare(&a, &b, &mut |progress| transfer.step(progress));
    transfer.end();
    let found = found?;
    if args.output.json {
        return output::json(&serde_json::json!({ "first": first, "second": second, "difference": found }));
    }
    output::text(&in_words(first, second, &found))
}

fn in_words(first: &Utf8Path, second: &Utf8Path, found: &Difference) -> String {
    let mut text = output::facts(&[
        ("first".into(), first.to_string()),
        ("second".into(), second.to_string()),
        ("same".into(), found.same.to_string()),
        ("changed".into(), found.changed.len().to_string()),
        ("missing".into(), found.missing.len().to_string()),
        ("extra".into(), found.extra.len().to_string()),
        ("norm".into(), units::number(found.norm)),
    ]);
    let named = |word: &str, name: &String| vec![word.to_owned(), name.clone()];
    let number = |value: Option<f64>| value.map_or("-".into(), units::number);
    let changed = |row: &Changed| {
        let types =
            if row.first == row.second { row.first.clone() } else { format!("{} -> {}", row.first, row.second) };
        let mut cells = named("changed", &row.name);
        cells.extend([types, number(row.norm), number(row.relative), number(row.largest)]);
        cells
    };
    let mut rows: Vec<Vec<String>> = found.changed.iter().map(changed).collect();
    rows.extend(found.missing.iter().map(|name| named("missing", name)));
    rows.extend(found.extra.iter().map(|name| named("extra", name)));
    if !rows.is_empty() {
        let left = ["", "tensor", "type and shape"].map(|title| (title, Side::Left));
        let right = ["norm", "relative", "largest"].map(|title| (title, Side::Right));
        text += &format!("\n{}", output::table(&[left, right].concat(), &rows));
    }
    text
}

//! `vidtui data buckets`: shows which clips go into which bucket of a recipe, what is thrown away, and what each bucket costs.

use crate::args::DataBucketsArgs;
use crate::command_error::CommandError;
use crate::commands::data_check::{Wanted, check_source, frame_choice, rate};
use crate::commands::transfer::Transfer;
use crate::output::{self, Side, facts, table};
use crate::workspace::Workspace;
use camino::Utf8Path;
use dataset::check::CAPTION_TOKENS;
use dataset::order::Order;
use dataset::store::{INDEX, read_index};
use dataset::{Assigner, BucketClips, ClipManifest, store_folder};
use recipe::{Bucket, Length, Mesh, Recipe, Shape};
use rundir::{ErrorCode, Failure};
use serde::Serialize;
use std::collections::BTreeMap;
use video::FrameMode;

/// The maximum number of buckets without clips that the text names. `--json` lists all of them.
const NAMED: usize = 3;

/// The number of epochs over which the steps of an epoch are averaged. Samples that do not fill a step wait for the next epoch.
const EPOCHS: u64 = 100;

/// The clips, tokens and memory of each bucket, and the clips that are not used.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Document {
    source: String,
    recipe: String,
    mesh: Mesh,
    /// The number of micro-batches of a rank in a step.
    grad_accum: usize,
    /// The number of clips of the source, including those that are thrown away.
    clips: usize,
    buckets: Vec<BucketRow>,
    /// The mean number of steps of an epoch, with the trainer's order of samples.
    steps_per_epoch: f64,
    /// The number of clips whose bucket fills no step in 100 epochs.
    unused: usize,
    thrown_away: Vec<Away>,
    /// Buckets of the recipe without clips.
    empty_buckets: Vec<Bucket>,
}

/// A bucket with its clips.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct BucketRow {
    #[serde(flatten)]
    bucket: Bucket,
    clips: usize,
    /// `null` for a data set of latents.
    hours: Option<f64>,
    /// Tokens of a sample, text included.
    tokens: u64,
    /// The number of samples in a micro-batch of a rank.
    batch: usize,
    /// Whole micro-batches in an epoch, over all ranks.
    micro_batches: usize,
    /// The peak memory of a rank.
    memory_bytes: u64,
}

/// Clips that are not used, and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Away {
    reason: &'static str,
    clips: usize,
}

/// The clips of a source: their number, and for each bucket the number of its clips and their hours.
struct ClipSet {
    clips: usize,
    buckets: Vec<(Bucket, usize, Option<f64>)>,
    thrown_away: Vec<Away>,
}

/// Prints the buckets of a recipe for a source.
pub fn run(workspace: &Workspace, args: &DataBucketsArgs) -> Result<(), CommandError> {
    let subject = workspace.subject(&args.recipe, &args.sets)?;
    let recipe = &subject.resolved().recipe;
    let fps = rate(args.fps, args.mode, args.stride, Some(recipe));
    let choice = frame_choice(fps, args.mode.unwrap_or(FrameMode::Head), args.stride.unwrap_or(1))?;
    let assigner = Assigner::new(recipe, choice).ok_or_else(|| no_buckets(&args.recipe))?;
    let store = store_folder(&args.source).filter(|data| data.join(INDEX).is_file());
    let found = match (store, ClipManifest::is_one(&args.source)) {
        (Some(data), _) => {
            args.refuse_with_latents()?;
            of_store(&data, recipe)?
        }
        (None, true) => {
            args.listed.refuse_with_manifest(&args.source)?;
            let mut manifest = ClipManifest::read(&args.source)?;
            manifest.assign(Some(&assigner));
            of_manifest(&manifest)
        }
        (None, false) => {
            let buckets = Some(assigner.clone());
            let wanted =
                Wanted { frames: None, size: None, buckets, tokens: CAPTION_TOKENS, tokenizer: None, keep_all: false };
            let mut transfer = Transfer::begin();
            let checked = check_source(&args.source, &args.listed, &wanted, &mut |step| transfer.step(step));
            transfer.end();
            of_manifest(&checked?.manifest)
        }
    };
    let document = document(&args.source, &args.recipe, recipe, &assigner, found)?;
    if args.output.json { output::json(&document) } else { output::text(&shown(&document)) }
}

fn no_buckets(recipe: &str) -> Failure {
    Failure::new(
        ErrorCode::InvalidRecipe,
        format!("cannot show the buckets of {recipe}"),
        "data.buckets is empty: all clips have the size of the model",
        "add entries to the recipe: [[data.buckets]] with frames, height and width",
    )
}

fn of_manifest(manifest: &ClipManifest) -> ClipSet {
    let mut away: BTreeMap<&'static str, usize> = BTreeMap::new();
    manifest.excluded().for_each(|(_, reason)| *away.entry(reason.title()).or_default() += 1);
    let mut thrown_away: Vec<Away> = away.into_iter().map(|(reason, clips)| Away { reason, clips }).collect();
    thrown_away.sort_by_key(|away| std::cmp::Reverse(away.clips));
    let row = |BucketClips { bucket, clips, hours }| (bucket, clips, Some(hours));
    ClipSet { clips: manifest.clips.len(), buckets: manifest.buckets().into_iter().map(row).collect(), thrown_away }
}

/// Counts the latents of a data set by their shape.
fn of_store(data: &Utf8Path, recipe: &Recipe) -> Result<ClipSet, Failure> {
    let mut shapes: BTreeMap<Shape, usize> = BTreeMap::new();
    read_index(data, |_, line| {
        if let [frames, _, height, width] = line.shape[..] {
            *shapes.entry(Shape { frames, height, width }).or_default() += 1;
        }
        Ok(())
    })?;
    let clips = shapes.values().sum();
    let buckets = shapes.into_iter().map(|(shape, clips)| (recipe.clip_of(shape), clips, None)).collect();
    Ok(ClipSet { clips, buckets, thrown_away: Vec::new() })
}

fn document(
    source: &Utf8Path,
    name: &str,
    recipe: &Recipe,
    assigner: &Assigner,
    found: ClipSet,
) -> Result<Document, Failure> {
    let row = |&(bucket, clips, hours): &(Bucket, usize, Option<f64>)| {
        let shape = recipe.latent_of(bucket);
        let cost = recipe.cost_at(shape);
        let batch = recipe.micro_batch_at(shape);
        let micro_batches = clips / batch;
        BucketRow {
            bucket,
            clips,
            hours,
            tokens: cost.seq_len,
            batch,
            micro_batches,
            memory_bytes: cost.memory.total(),
        }
    };
    let buckets: Vec<BucketRow> = found.buckets.iter().map(row).collect();
    let mut counts: BTreeMap<Shape, usize> = BTreeMap::new();
    buckets.iter().for_each(|row| *counts.entry(recipe.latent_of(row.bucket)).or_default() += row.clips);
    let (mut steps_per_epoch, mut unused) = (0.0, 0);
    if !counts.is_empty() {
        let order = Order::of_counts(recipe, &counts)?;
        let forecast = order.forecast(Length::Epochs(EPOCHS));
        steps_per_epoch = forecast.steps as f64 / EPOCHS as f64;
        unused = forecast.unused.iter().map(|bucket| order.buckets()[*bucket].items()).sum();
    }
    let used: Vec<Bucket> = buckets.iter().map(|row| row.bucket).collect();
    Ok(Document {
        source: source.to_string(),
        recipe: name.to_owned(),
        mesh: recipe.mesh,
        grad_accum: recipe.train.grad_accum,
        clips: found.clips,
        steps_per_epoch,
        unused,
        thrown_away: found.thrown_away,
        empty_buckets: assigner.unused(&used),
        buckets,
    })
}

fn shown(document: &Document) -> String {
    let Document { buckets, thrown_away, empty_buckets, .. } = document;
    let hours = |hours: Option<f64>| hours.map_or_else(|| "-".to_owned(), |hours| format!("{hours:.2}"));
    let number = |n: usize| units::grouped(n as u64);
    let rows: Vec<Vec<String>> = buckets
        .iter()
        .map(|row| {
            vec![
                row.bucket.to_string(),
                number(row.clips),
                hours(row.hours),
                units::grouped(row.tokens),
                number(row.batch),
                number(row.micro_batches),
                units::short_size(row.memory_bytes),
            ]
        })
        .collect();
    let right = |title| (title, Side::Right);
    let columns = [
        ("bucket", Side::Left),
        right("clips"),
        right("hours"),
        right("tokens"),
        right("batch"),
        right("batches"),
        right("memory of a rank"),
    ];
    let used: usize = buckets.iter().map(|row| row.clips).sum();
    let mut lines = vec![("clips".to_owned(), format!("{} of {} have a bucket", number(used), number(document.clips)))];
    let away: Vec<String> = thrown_away.iter().map(|away| format!("{} {}", number(away.clips), away.reason)).collect();
    lines.extend(away.into_iter().map(|away| ("thrown away".to_owned(), away)));
    if document.unused > 0 {
        let why = format!("{} in buckets that fill no step in {EPOCHS} epochs", number(document.unused));
        lines.push(("not used".into(), why));
    }
    let accum = match document.grad_accum {
        1 => String::new(),
        n => format!(", {n} micro-batches each"),
    };
    let (steps, ranks) = (units::number(document.steps_per_epoch), units::counted(document.mesh.world(), "rank"));
    lines.push(("epoch".into(), format!("{steps} steps on {ranks}{accum}")));
    if let Some(most) = buckets.iter().max_by_key(|row| row.memory_bytes) {
        lines.push(("memory".into(), format!("{} at most, for {}", units::short_size(most.memory_bytes), most.bucket)));
    }
    if !empty_buckets.is_empty() {
        lines.push(("no clip".into(), units::listed(empty_buckets, NAMED, ToString::to_string)));
    }
    format!("{}\n{}", table(&columns, &rows), facts(&lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataset::{Clip, ManifestHeader};

    const BUCKETS: &str = "data.buckets=[{ frames = 49, height = 480, width = 720 }, { frames = 17, height = 480, width = 720, batch = 3 }, \
         { frames = 1, height = 480, width = 720, batch = 40 }, { frames = 49, height = 720, width = 480 }]";

    fn recipe() -> Recipe {
        let sets = [BUCKETS, "train.global_batch=8", "train.grad_accum=2", "mesh.dp_shard=4"].map(str::to_owned);
        recipe::load("../../configs/cogvideox/5b.toml".into(), &sets).unwrap().recipe
    }

    fn clip(n: usize, frames: usize, height: usize) -> Clip {
        let fps = if frames == 1 { 0.0 } else { 8.0 };
        let duration_s = if frames == 1 { 0.0 } else { frames as f64 / fps };
        let (id, content) = (format!("{n}.mp4"), n.to_string());
        Clip { id, content, frames, height, width: height * 3 / 2, fps, duration_s, ..Clip::default() }
    }

    fn manifest() -> ClipManifest {
        let long = (0..1205).map(|n| clip(n, 60, 720));
        let short = (2000..2041).map(|n| clip(n, 20, 480));
        let pictures = (3000..3100).map(|n| clip(n, 1, 900));
        let others = [clip(4000, 9, 480), clip(4001, 60, 100), clip(4002, 60, 120)];
        let clips = long.chain(short).chain(pictures).chain(others).collect();
        ClipManifest { header: ManifestHeader::new("videos".into(), "pairs", "/videos".into()), clips }
    }

    fn made() -> Document {
        let (recipe, mut manifest) = (recipe(), manifest());
        let assigner = Assigner::new(&recipe, video::FrameChoice::of(&recipe::Encode::default())).unwrap();
        manifest.assign(Some(&assigner));
        document("videos".into(), "mine.toml", &recipe, &assigner, of_manifest(&manifest)).unwrap()
    }

    #[test]
    fn the_buckets_fit_80_columns() {
        let text = shown(&made());
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn every_clip_has_a_bucket_or_a_reason() {
        let document = made();
        let used: usize = document.buckets.iter().map(|row| row.clips).sum();
        let away: usize = document.thrown_away.iter().map(|away| away.clips).sum();
        assert_eq!((used, away, document.clips), (1205 + 41 + 100, 3, 1349));
        // A step has 8 micro-batches of one shape, of 1, 3 or 40 samples. This counts the steps of 100 epochs.
        assert_eq!(document.steps_per_epoch, (120_500 / 8 + 4_100 / 3 / 8 + 10_000 / 40 / 8) as f64 / 100.0);
        assert_eq!(document.unused, 0);
        assert_eq!(document.empty_buckets.iter().map(ToString::to_string).collect::<Vec<_>>(), ["49x720x480"]);
        let longest = &document.buckets[2];
        assert_eq!((longest.tokens, longest.batch, longest.micro_batches), (226 + 13 * 30 * 45, 1, 1205));
        // 40 pictures have more tokens than 3 clips of 17 frames.
        assert!(document.buckets[0].memory_bytes > document.buckets[1].memory_bytes);
    }

    #[test]
    fn a_recipe_without_buckets_is_refused_with_the_keys_to_add() {
        assert_eq!(no_buckets("mine.toml").code, ErrorCode::InvalidRecipe);
        assert!(no_buckets("mine.toml").fix.contains("[[data.buckets]]"));
    }
}

//! Checks that the data set of a recipe fits the model, and picks sample files of it.

use ::dataset::order::Order;
use ::dataset::store::{INDEX, SPEC, StoreSpec};
use ::dataset::{
    Clip, ClipManifest, ENCODER_FOLDERS, EncodeInputs, Index, Table, check_encoders, frame_rate, open_null_text,
    store_folder,
};
use camino::{Utf8Path, Utf8PathBuf};
use plan::EncodeFacts;
use recipe::{DataSet, JobKind, Length, Recipe, Task};
use rundir::Failure;
use std::collections::BTreeSet;

/// Checks that the inputs of a recipe exist, and that every latent and text has the shape that the model expects. Returns a
/// one-line summary.
///
/// # Errors
/// A file is missing or has the wrong shape. The failure names the first such line of the index.
pub fn check(recipe: &Recipe) -> Result<String, Failure> {
    if recipe.job() == JobKind::Encode {
        let inputs = EncodeInputs::open(recipe)?;
        let (clips, excluded) = (inputs.manifest.usable().count(), inputs.manifest.excluded().count());
        return Ok(format!("{}, {excluded} excluded; the encoders are complete", units::counted(clips, "clip")));
    }
    if recipe.job() == JobKind::Sample {
        check_encoders(&recipe.encoders, &recipe.model, Task::Sample)?;
        return Ok(format!("the VAE and the text encoder in {} belong to the model", recipe.encoders.folder));
    }
    let table = Table::of(recipe)?;
    let (order, forecast) = Order::checked(recipe, &table)?;
    if let Some(path) = recipe.data.null_text() {
        open_null_text(path, &recipe.model)?;
    }
    check_samples(recipe)?;
    let (sets, shapes) = (recipe.data.all().len(), order.buckets().len());
    let mut text = format!("{} samples", table.info.samples);
    if sets > 1 {
        text += &format!(" in {}", units::counted(sets, "data set"));
    }
    text += &format!(", {}, ", units::short_size(table.info.bytes));
    text += &if shapes > 1 { units::counted(shapes, "shape") } else { "all shapes match".into() };
    if let length @ Length::Epochs(_) = recipe.train.length {
        text += &format!("; {length} are {}", Length::Steps(forecast.steps));
    }
    if recipe.train.text_dropout > 0.0 && recipe.data.null_text().is_none() && table.empty_text().is_none() {
        text += "; train.text_dropout drops texts to zeros, because no text of the empty prompt is there";
    }
    text += &unscaled(recipe).unwrap_or_default();
    Ok(forecast.unused_in_words.map_or(text.clone(), |unused| format!("{text}; {unused}")))
}

/// Returns the number of training steps if the recipe gives the length in epochs; `None` otherwise.
///
/// # Errors
/// The data sets cannot be opened, or have too few samples for a step.
pub fn steps_of_epochs(recipe: &Recipe) -> Result<Option<u64>, Failure> {
    let (JobKind::Train, Length::Epochs(_)) = (recipe.job(), recipe.train.length) else { return Ok(None) };
    Order::checked(recipe, &Table::of(recipe)?).map(|(_, forecast)| Some(forecast.steps))
}

/// Returns the recipe of a training run with the frame rate of its data sets, if it sets none and they agree. So the run and its samples
/// keep the rate without the data.
pub fn with_frame_rate(recipe: &Recipe) -> Recipe {
    let mut recipe = recipe.clone();
    if recipe.job() == JobKind::Train && recipe.data.fps == 0.0 {
        // A data set that cannot be read is reported by the checks.
        let rates = recipe.data.all().into_iter().map(|set| frame_rate(&set.index).ok().flatten());
        let rates: Option<Vec<f64>> = rates.collect();
        if let Some([first, rest @ ..]) = rates.as_deref()
            && rest.iter().all(|rate| rate == first)
        {
            recipe.data.fps = *first;
        }
    }
    recipe
}

/// Returns a note if latents stay unscaled although their VAE has a scaling factor.
fn unscaled(recipe: &Recipe) -> Option<String> {
    let factor = |set: DataSet| StoreSpec::read(&store_folder(&set.index)?).ok().map(|spec| spec.vae.scaling_factor);
    let factor = recipe.data.all().into_iter().find_map(factor)?;
    let is_note = recipe.model.latent_scale == 1.0 && factor != 0.0 && factor != 1.0;
    is_note.then(|| format!("; latents stay unscaled: model.latent_scale is 1, the VAE has {factor}"))
}

/// Checks the encoders and the held-out clips of a run that samples while it trains. Without this check, such a run would fail hours later.
fn check_samples(recipe: &Recipe) -> Result<(), Failure> {
    if !recipe.sample.prompts.is_empty() {
        check(&Recipe { task: Task::Sample, ..recipe.clone() })?;
    }
    let Some(index) = recipe.sample.validation_index() else { return Ok(()) };
    let held_out = Recipe { data: recipe.data.of(index), ..recipe.clone() };
    let table = Table::without_conditions(&held_out, index).map_err(|failure| {
        let fix = "set sample.validation_index to a data set for this model, or remove it".to_owned();
        Failure { fix, ..failure }
    })?;
    table.with_conditions(&recipe.condition, &recipe.model).map(drop)
}

/// Returns the number of inputs, the memory and the disk space of an encoding run. `None` for other tasks, and for inputs that cannot
/// be used, which another check reports.
pub fn encode_facts(recipe: &Recipe) -> Option<EncodeFacts> {
    if recipe.job() != JobKind::Encode {
        return None;
    }
    let inputs = EncodeInputs::open(recipe).ok()?;
    let (cost, clips, captions) = (inputs.cost(), inputs.manifest.usable().count(), inputs.captions());
    let size = units::size;
    let disk_bytes = cost.disk_bytes(clips as u64, captions as u64);
    let tiled = cost.tiled.map_or(String::new(), |tiled| format!(", in tiles {}", size(tiled.total())));
    let rows = [
        ("clips", format!("{}, {} each", units::grouped(clips as u64), size(cost.latent_bytes))),
        ("captions", format!("{} different ones, {} each", units::grouped(captions as u64), size(cost.text_bytes))),
        (
            "memory",
            format!(
                "{} per rank at the peak: the text encoder {}, then the VAE {}{tiled}; both at once would need {}",
                size(cost.peak_bytes()),
                size(cost.text.total()),
                size(cost.vae.total()),
                size(cost.both_bytes())
            ),
        ),
        ("decoding", format!("{} of node memory per clip that is decoded ahead", size(cost.clip_bytes))),
        ("disk", format!("{} for the data set, as much again while it is joined", size(disk_bytes / 2))),
    ];
    Some(EncodeFacts { disk_bytes, rows: rows.map(|(name, value)| (name.to_owned(), value)).into() })
}

/// Returns some input files of a recipe: the files of the first, middle and last sample, or the index and the first shard of a store,
/// and the null text. To encode or sample, returns clips and files of the encoders.
pub fn sample_files(recipe: &Recipe) -> Vec<Utf8PathBuf> {
    if recipe.job() == JobKind::Encode {
        let clips = ClipManifest::read(&recipe.encode.manifest).map_or_else(|_| Vec::new(), |manifest| manifest.clips);
        let paths: Vec<_> = clips.into_iter().filter(Clip::is_usable).map(|clip| clip.path).collect();
        let picked = BTreeSet::from([0, paths.len() / 2, paths.len().saturating_sub(1)]);
        let picked = picked.into_iter().filter_map(|at| paths.get(at).cloned());
        let of_encoders = ENCODER_FOLDERS.into_iter().zip(["config.json", "config.json", "spiece.model"]);
        let folder = &recipe.encoders.folder;
        return picked.chain(of_encoders.map(|(name, file)| folder.join(name).join(file))).collect();
    }
    if recipe.job() == JobKind::Sample {
        let folder = &recipe.encoders.folder;
        return ["vae/config.json", "text_encoder/config.json"].map(|file| folder.join(file)).to_vec();
    }
    let null_text = recipe.data.null_text().map(Utf8Path::to_owned);
    // Another check reports a broken index.
    recipe.data.all().iter().flat_map(|set| files_of_set(&set.index)).chain(null_text).collect()
}

fn files_of_set(index: &Utf8Path) -> Vec<Utf8PathBuf> {
    match store_folder(index) {
        Some(folder) => {
            let names = [SPEC, INDEX, "latents-00000.safetensors"].map(|name| folder.join(name));
            names.into_iter().filter(|file| file.exists()).collect()
        }
        None => {
            let samples = Index::open(index).map_or_else(|_| Vec::new(), |index| index.samples);
            let last = samples.len().saturating_sub(1);
            let picked = BTreeSet::from([0, last / 2, last]).into_iter().filter_map(|at| samples.get(at));
            picked.flat_map(|sample| std::iter::once(&sample.latent).chain(&sample.text)).cloned().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::dataset::{ImportRequest, plan_import};
    use rundir::ErrorCode;
    use std::ops::ControlFlow;

    #[test]
    fn held_out_clips_without_the_tensors_of_the_condition_are_refused_before_a_start() {
        let keep = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(keep.path()).unwrap();
        let fixtures = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let import = |name: &str| {
            let (index, target) = (fixtures.join("dataset").join(name), folder.join(name));
            let request = ImportRequest {
                index,
                root: None,
                target: target.clone(),
                channels: 4,
                not_finite: ::dataset::NotFiniteClips::Refuse,
            };
            plan_import(&request).unwrap().execute(false, &mut |_| ControlFlow::Continue(())).unwrap();
            target
        };
        let (with_images, without) = (import("factory"), import("finetrainers"));
        let of = |held_out: &Utf8Path| {
            let model = ["text_dim=6", "text_len=8", "latent_frames=3", "latent_height=4", "latent_width=4"];
            let model = model.into_iter().chain(["in_channels=8", "out_channels=4"]).map(|set| format!("model.{set}"));
            let data = [format!("data.index={with_images}"), format!("sample.validation_index={held_out}")];
            let rest = ["condition.kind=image".to_owned(), "sample.every=1".to_owned()];
            let sets: Vec<String> = model.chain(data).chain(rest).collect();
            check(&recipe::load(&fixtures.join("configs/valid/minimal.toml"), &sets).unwrap().recipe)
        };
        of(&with_images).unwrap();
        let failure = of(&without).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidDataset);
        assert!(failure.why.contains("finetrainers") && failure.fix.contains("vidtui data encode"), "{failure}");
        assert!(of(Utf8Path::new("/nonesuch")).unwrap_err().fix.contains("sample.validation_index"));
    }

    #[test]
    fn the_first_the_middle_and_the_last_sample_are_picked() {
        let path = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/demo/2s.toml");
        let recipe = recipe::load(&path, &[]).unwrap().recipe;
        let samples = Index::open(&recipe.data.index).unwrap().samples;
        assert_eq!(samples.len(), 24);
        let of = |at: usize| [vec![samples[at].latent.clone()], samples[at].text.clone()].concat();
        assert_eq!(sample_files(&recipe), [of(0), of(11), of(23)].concat());
    }
}

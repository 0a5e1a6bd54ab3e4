//! The data set of a recipe: checks that it fits the model, and picks sample files.

use ::dataset::store::{INDEX, SPEC};
use ::dataset::{Index, Table, open_null_text, store_folder};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::Recipe;
use rundir::Failure;
use std::collections::BTreeSet;

/// Checks that the data set exists, and that every latent and text has the shape that the model expects.
///
/// # Errors
/// When a file is missing or has the wrong shape; the failure names the first line.
pub fn check(recipe: &Recipe) -> Result<String, Failure> {
    let table = Table::open(&recipe.data.index, &recipe.model)?;
    let info = table.with_conditions(recipe.condition.kind, &recipe.model)?.info;
    if let Some(path) = recipe.data.null_text() {
        open_null_text(path, &recipe.model)?;
    }
    Ok(format!("{} samples, {}, all shapes match", info.samples, units::bytes(info.bytes)))
}

/// Returns the files of the first, middle and last sample, or of a store its index and first shard, and the null text.
pub fn sample_files(recipe: &Recipe) -> Vec<Utf8PathBuf> {
    let null_text = recipe.data.null_text().map(Utf8Path::to_owned);
    // Another check reports a broken index.
    let files: Vec<Utf8PathBuf> = match store_folder(&recipe.data.index) {
        Some(folder) => {
            let names = [SPEC, INDEX, "latents-00000.safetensors"].map(|name| folder.join(name));
            names.into_iter().filter(|file| file.exists()).collect()
        }
        None => {
            let samples = Index::open(&recipe.data.index).map_or_else(|_| Vec::new(), |index| index.samples);
            let last = samples.len().saturating_sub(1);
            let picked = BTreeSet::from([0, last / 2, last]).into_iter().filter_map(|at| samples.get(at));
            picked.flat_map(|sample| std::iter::once(&sample.latent).chain(&sample.text)).cloned().collect()
        }
    };
    files.into_iter().chain(null_text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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

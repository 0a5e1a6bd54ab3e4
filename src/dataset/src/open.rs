//! Opens a data set, which is a store or an index whose clips have separate files.

use crate::index::Index;
use crate::latent_channels;
use crate::store::{self, INDEX, SPEC, StoreSpec};
use crate::table::Table;
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{Model, Recipe, Shape, Shapes};
use rundir::{ErrorCode, Failure};

impl Table {
    /// Opens a data set and checks that every tensor exists, is complete, and fits `model`. `path` is the folder of a store,
    /// its index, or an index whose clips have separate files.
    ///
    /// # Errors
    /// The data set cannot be read, or a tensor is missing or does not fit; the failure names the first such sample.
    pub fn open(path: &Utf8Path, model: &Model) -> Result<Self, Failure> {
        Self::open_any(path, Latents { model, any: None })
    }

    /// Opens the data sets of a recipe as one table, with the tensors of its condition. Latents may have any shape that the model
    /// can take, if `data.shapes` allows it.
    ///
    /// # Errors
    /// As [`Table::open`], and if a data set was encoded with another condition.
    pub fn of(recipe: &Recipe) -> Result<Self, Failure> {
        let of_set = |index: &Utf8Path| {
            Self::without_conditions(recipe, index)?.with_conditions(&recipe.condition, &recipe.model)
        };
        let tables = recipe.data.all().iter().map(|set| of_set(&set.index)).collect::<Result<_, _>>()?;
        Ok(Self::join(tables).expect("a recipe has a data set"))
    }

    /// Opens a data set for a recipe, without the tensors of the recipe's condition.
    ///
    /// # Errors
    /// As [`Table::open`].
    pub fn without_conditions(recipe: &Recipe, index: &Utf8Path) -> Result<Self, Failure> {
        check_rate(recipe.data.fps, index)?;
        let any = (recipe.shapes() != Shapes::One).then_some(recipe);
        Self::open_any(index, Latents { model: &recipe.model, any })
    }

    fn open_any(path: &Utf8Path, latents: Latents<'_>) -> Result<Self, Failure> {
        match store_folder(path) {
            Some(folder) => store::open_table(&folder, latents),
            None => Index::open(path)?.table_of(latents),
        }
    }
}

/// Returns the rate in frames per second at which the encode of a data set took frames, if it is known.
///
/// # Errors
/// The specification of the data set cannot be read.
pub fn frame_rate(index: &Utf8Path) -> Result<Option<f64>, Failure> {
    let spec = store_folder(index).map(|folder| StoreSpec::read(&folder)).transpose()?;
    Ok(spec.and_then(|spec| spec.frames.fps))
}

/// Checks that the frames of a data set have the rate of the recipe, if both are known.
fn check_rate(fps: f64, index: &Utf8Path) -> Result<(), Failure> {
    let Some(found) = frame_rate(index)?.filter(|found| fps > 0.0 && (found / fps - 1.0).abs() > 1e-6) else {
        return Ok(());
    };
    let (found, fps) = (units::number(found), units::number(fps));
    Err(Failure::new(
        ErrorCode::InvalidDataset,
        format!("the data set {index} does not fit the recipe"),
        format!("its frames were taken at {found} per second, data.fps is {fps}"),
        format!("encode the videos again with --fps {fps}, or set data.fps = {found}"),
    ))
}

/// The shapes of latents that a data set may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Latents<'a> {
    /// The model, for the channels of latents and for texts.
    pub model: &'a Model,
    /// The recipe, if latents may have any shape that its model can take; `None` if they must have the shape of `model`.
    pub any: Option<&'a Recipe>,
}

impl Latents<'_> {
    /// Checks the shape of a latent; with `moments`, of its means and log-variances. `what` puts the place in front of a failure's first
    /// words, and `holder` names the latent's file or tensor.
    pub fn check(
        self,
        what: impl Fn(&str) -> String,
        holder: &str,
        found: &[usize],
        moments: bool,
    ) -> Result<(), Failure> {
        let wanted = latent_shape(self.model, moments);
        if found == wanted {
            return Ok(());
        }
        let (Some(recipe), [frames, channels, height, width]) = (self.any, found) else {
            return Err(wrong_latent(what("has a latent of the wrong shape"), holder, found, wanted, moments));
        };
        if *channels != wanted[1] {
            let wanted = [*frames, wanted[1], *height, *width];
            return Err(wrong_latent(what("has a latent of the wrong shape"), holder, found, wanted, moments));
        }
        let shape = Shape { frames: *frames, height: *height, width: *width };
        if shape.frames * shape.height * shape.width == 0 {
            return Err(wrong_latent(what("has an empty latent"), holder, found, wanted, moments));
        }
        recipe.model_at(shape).map(drop).map_err(|why| {
            let what = what("has a latent that the model cannot take");
            let why = format!("{holder} has shape {found:?}: {why}");
            Failure::new(ErrorCode::InvalidDataset, what, why, "encode the clip at another size, or remove the line")
        })
    }
}

/// Returns the shape of a latent of a model; with `moments`, of its means and log-variances.
fn latent_shape(model: &Model, moments: bool) -> [usize; 4] {
    let channels = latent_channels(model) * if moments { 2 } else { 1 };
    [model.latent_frames, channels, model.latent_height, model.latent_width]
}

/// Returns the failure for a latent of another shape. `holder` names its file or tensor.
fn wrong_latent(what: String, holder: &str, found: &[usize], wanted: [usize; 4], moments: bool) -> Failure {
    const KEYS: [&str; 4] = ["model.latent_frames", "model.in_channels", "model.latent_height", "model.latent_width"];
    let fix = if found.len() == wanted.len() {
        let axes = KEYS.iter().zip(found).zip(wanted).filter(|((_, found), wanted)| *found != wanted);
        let halved = |key: &str, found: usize| if key == KEYS[1] && moments { found / 2 } else { found };
        let sets: Vec<String> = axes.map(|((key, found), _)| format!("{key} = {}", halved(key, *found))).collect();
        format!("set {}, or encode the clip again", sets.join(" and "))
    } else {
        "write latents as [frames, channels, rows, columns], without a batch axis".into()
    };
    Failure::new(
        ErrorCode::InvalidDataset,
        what,
        format!("{holder} has shape {found:?}, the recipe expects {wanted:?}"),
        fix,
    )
}

/// Returns the folder of a store, if `path` is a folder or the index of a store.
pub fn store_folder(path: &Utf8Path) -> Option<Utf8PathBuf> {
    if path.is_dir() {
        return Some(path.to_owned());
    }
    let folder = path.parent().unwrap_or(Utf8Path::new(""));
    (path.file_name() == Some(INDEX) && folder.join(SPEC).exists()).then(|| folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Order;
    use crate::{LATENT, TEXT};
    use recipe::Length;
    use weights::Dtype;
    use weights::fixtures::{temp, write};

    #[test]
    fn a_folder_of_videos_is_refused_with_the_command_that_encodes_them() {
        let (_keep, folder) = temp();
        let model = recipe::load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[]).unwrap().recipe.model;
        let refused = |videos: &Utf8Path| {
            std::fs::create_dir_all(videos).unwrap();
            std::fs::write(videos.join("a.MP4"), "").unwrap();
            Table::open(&folder, &model).unwrap_err()
        };
        std::fs::write(folder.join("notes.txt"), "").unwrap();
        let other = Table::open(&folder, &model).unwrap_err();
        assert!(!other.fix.contains("data encode"), "{other}");
        for videos in [folder.join("clips"), folder.clone()] {
            let failure = refused(&videos);
            assert_eq!(failure.code, ErrorCode::InvalidDataset);
            assert!(failure.why.contains(videos.join("a.MP4").as_str()), "{failure}");
            assert!(failure.fix.contains(&format!("vidtui data encode {folder}")), "{failure}");
        }
    }

    /// Writes a data set with latents of these shapes; returns its index.
    fn index(folder: &Utf8Path, name: &str, shapes: &[[usize; 3]]) -> Utf8PathBuf {
        let mut lines = String::new();
        for (item, [frames, height, width]) in shapes.iter().enumerate() {
            let (latent, text) = (format!("{name}-{item}.latent"), format!("{name}-{item}.text"));
            write(&folder.join(&latent), &[(LATENT, Dtype::F32, &[*frames, 16, *height, *width])]);
            write(&folder.join(&text), &[(TEXT, Dtype::F32, &[16, 32])]);
            lines += &format!("{{\"vid_emb\": \"{latent}\", \"text_chunk_emb\": [\"{text}\"]}}\n");
        }
        let index = folder.join(format!("{name}.jsonl"));
        std::fs::write(&index, lines).unwrap();
        index
    }

    fn recipe(sets: &[String]) -> Recipe {
        let minimal = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
        let all: Vec<String> = ["model.text_dim=32".into()].into_iter().chain(sets.iter().cloned()).collect();
        recipe::load(minimal.into(), &all).unwrap_or_else(|error| panic!("{error}")).recipe
    }

    #[test]
    fn several_data_sets_are_one_table_in_which_each_keeps_its_files_and_shapes() {
        let (_keep, folder) = temp();
        let videos = index(&folder, "videos", &[[3, 8, 8], [5, 8, 4], [3, 8, 8]]);
        let images = index(&folder, "images", &[[1, 8, 8], [1, 4, 4]]);
        let sets = |weights: [&str; 2]| {
            let set = |(path, weight): (&Utf8PathBuf, &str)| format!("{{index = '{path}'{weight}}}");
            let sets: Vec<String> = [&videos, &images].into_iter().zip(weights).map(set).collect();
            format!("data.sets=[{}]", sets.join(", "))
        };
        let recipe_of = |weights, more: &[&str]| {
            let more = more.iter().map(|set| (*set).to_owned());
            recipe(&[sets(weights), "data.shapes=balanced".to_owned()].into_iter().chain(more).collect::<Vec<_>>())
        };
        let plain = recipe_of(["", ""], &[]);
        let table = Table::of(&plain).unwrap();
        assert_eq!((table.len(), table.sets()), (5, vec![0..3, 3..5]));
        let shapes: Vec<String> = (0..5).map(|item| table.shape(item).to_string()).collect();
        assert_eq!(shapes, ["3 × 8 × 8", "5 × 8 × 4", "3 × 8 × 8", "1 × 8 × 8", "1 × 4 × 4"]);
        assert_eq!(table.files_of(4), [folder.join("images-1.latent"), folder.join("images-1.text")]);
        assert_eq!(table.reader().read(table.latent(4)).unwrap().shape, [1, 16, 4, 4]);
        assert_eq!(Table::from_bytes(&table.to_bytes()), Some(table.clone()));
        // The fingerprint has one part for each set.
        let own = |index: &Utf8Path| Table::of(&Recipe { data: plain.data.of(index), ..plain.clone() }).unwrap();
        let parts = [&videos, &images].map(|index| own(index).info.fingerprint);
        assert_eq!(table.info.fingerprint, parts.join("+"));

        // Two thirds of the samples are images by weight, and half of them by share.
        let samples = |recipe: &Recipe| {
            let order = Order::of(recipe, &table).unwrap();
            assert!(order.forecast(Length::Epochs(30)).unused.is_empty());
            let of = |images: bool| {
                let buckets = order.buckets().iter().filter(|bucket| (bucket.shape.frames == 1) == images);
                let parts = buckets.flat_map(|bucket| &bucket.parts);
                parts.map(|part| part.uses * part.items.len() as f64).sum::<f64>()
            };
            [of(true), of(false)]
        };
        assert_eq!(samples(&recipe_of([", weight = 1", ", weight = 2"], &[])), [6.0, 3.0]);
        assert_eq!(samples(&recipe_of(["", ""], &["data.image_share=0.5"])), [3.0, 3.0]);
        assert_eq!(samples(&recipe_of(["", ", repeats = 4"], &[])), [8.0, 3.0]);
        let no_images = Recipe { data: plain.data.of(&videos), ..recipe_of(["", ""], &[]) };
        let no_images = Recipe { data: recipe::Data { image_share: 0.5, ..no_images.data.clone() }, ..no_images };
        let failure = Order::of(&no_images, &Table::of(&no_images).unwrap()).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidDataset);
    }

    #[test]
    fn a_latent_that_the_model_cannot_take_is_refused_with_its_line() {
        let (_keep, folder) = temp();
        let odd = index(&folder, "odd", &[[3, 8, 8], [3, 8, 7]]);
        let flat = index(&folder, "flat", &[[3, 8, 0]]);
        let of = |index: &Utf8Path, shapes: &str| {
            Table::of(&recipe(&[format!("data.index={index}"), format!("data.shapes={shapes}")])).unwrap_err()
        };
        for (index, shapes, line) in
            [(&odd, "grouped", "line 2"), (&odd, "one", "line 2"), (&flat, "grouped", "line 1")]
        {
            let failure = of(index, shapes);
            assert_eq!(failure.code, ErrorCode::InvalidDataset);
            assert!(failure.what.contains(line), "{failure}");
        }
        let why = of(&odd, "grouped").why;
        assert!(["model.latent_width 7", "model.patch_size 2"].iter().all(|key| why.contains(key)), "{why}");
    }
}

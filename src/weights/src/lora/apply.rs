//! Applies adapters to a model: checks that they fit the model, and reads the factors of its layers.

use super::{LoraFile, module};
use crate::WeightsSource;
use crate::cast::values;
use crate::finite::{self, NotFinite};
use crate::tensor_spans::{Files, StoredTensor};
use camino::Utf8Path;
use recipe::{ParamRole, ParamSpec, Recipe};
use rundir::{Checkpoint, ErrorCode, Failure};
use std::collections::BTreeSet;

/// The factors of one layer: `up · down · scale` is added to the weight of the layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Factors {
    /// The rank.
    pub rank: usize,
    /// The down projection, `[rank, in]`.
    pub down: Vec<f32>,
    /// The up projection, `[out, rank]`.
    pub up: Vec<f32>,
    /// Alpha / rank.
    pub scale: f64,
}

impl LoraFile {
    /// Opens an adapter. If it is a checkpoint, verifies its checksums. Also returns a hash that identifies the adapter: the XXH3 of
    /// its file, or of the manifest of the checkpoint.
    ///
    /// # Errors
    /// As [`LoraFile::open`]; or a file of the checkpoint is damaged.
    pub fn open_verified(path: &Utf8Path) -> Result<(Self, String), Failure> {
        let lora = Self::open(path)?;
        let files: BTreeSet<&Utf8Path> = lora
            .layers
            .values()
            .flat_map(|layer| [&layer.down, &layer.up])
            .flat_map(|t| &t.spans)
            .map(|s| &*s.file)
            .collect();
        let Some(folder) = lora.base.as_ref().and_then(|_| files.first()?.parent()) else {
            let sums: Result<Vec<String>, rundir::Error> =
                files.into_iter().map(|file| Ok(rundir::file_sum(file)?.xxh3)).collect();
            return Ok((lora, sums?.join(" ")));
        };
        let checkpoint = Checkpoint::open(folder)?;
        checkpoint.manifest.files.iter().try_for_each(|file| checkpoint.verify_file(file))?;
        let sum = checkpoint.manifest_sum()?.xxh3;
        Ok((lora, sum))
    }

    /// Returns a warning unless the adapter was trained on the parameters of `source`. `None` also if either does not identify its
    /// weights. No tensors are read: checkpoints are compared by their manifests, and a conversion that changes no parameter records the
    /// manifest of its source.
    pub fn other_base(&self, source: &WeightsSource) -> Option<String> {
        let trained_on = self.base.as_ref()?;
        let checkpoint = source.checkpoint.as_ref()?;
        let own = &checkpoint.manifest;
        let xxh3 = match &own.base {
            Some(base) => base.xxh3.clone(),
            None => checkpoint.manifest_sum().ok()?.xxh3,
        };
        // The base may have been moved, or replaced.
        let base = Checkpoint::open(&trained_on.path).ok();
        let base = base.filter(|base| base.manifest_sum().is_ok_and(|sum| sum.xxh3 == trained_on.xxh3));
        let base = base.map(|base| base.manifest);
        let of_base = [Some(&trained_on.xxh3), base.as_ref().and_then(|base| base.same_as.as_ref())];
        if [Some(&xxh3), own.same_as.as_ref()].into_iter().flatten().any(|sum| of_base.contains(&Some(sum))) {
            return None;
        }
        // Conversions from other formats have step 0, and may have the same parameters.
        let is_other = base.is_some_and(|base| {
            own.base.is_none() && own.step > 0 && base.step > 0 && (&own.run, own.step) != (&base.run, base.step)
        });
        Some(match is_other {
            true => format!("{} was trained on other weights: {}", self.path, trained_on.path),
            false => {
                format!("{} was trained on {}, which may have other weights than these", self.path, trained_on.path)
            }
        })
    }

    /// Checks that the model has every layer of the adapter, in the same shape.
    ///
    /// # Errors
    /// [`ErrorCode::TensorMismatch`] names a layer that the model does not have or has in another shape, or a tensor without a layer.
    pub fn check_model(&self, specs: &[ParamSpec]) -> Result<(), Failure> {
        let refuse = |why: String, fix: &str| {
            Err(Failure::new(ErrorCode::TensorMismatch, format!("cannot use the adapter {}", self.path), why, fix))
        };
        let other = "use an adapter of this model, or the model that it was trained on";
        let mut used = BTreeSet::new();
        for spec in specs.iter().filter(|spec| spec.role == ParamRole::Trained) {
            let Some((module, layer)) = self.layer_of(spec) else { continue };
            let shape = [layer.up.shape[0], layer.down.shape[1]];
            if spec.shape != shape {
                return refuse(
                    format!("its layer {module} is {shape:?}, and that of the model is {:?}", spec.shape),
                    other,
                );
            }
            used.insert(module.to_owned());
        }
        if let Some(module) = self.layers.keys().find(|module| !used.contains(*module)) {
            let why = match self.layers.len() - used.len() - 1 {
                0 => format!("the model has no layer {module}"),
                more => format!("the model has no layer {module}, and lacks {more} more of its layers"),
            };
            return refuse(why, other);
        }
        if let Some(name) = self.unused.first() {
            let fix = "use an adapter (LoRA) of a transformer of CogVideoX or Wan";
            return refuse(format!("{} of its tensors belong to no layer, such as {name}", self.unused.len()), fix);
        }
        Ok(())
    }

    /// Checks that the training of a recipe can start from this adapter: both have the same layers with the same rank.
    ///
    /// # Errors
    /// [`ErrorCode::TensorMismatch`] names the layer that differs and the recipe keys to change.
    pub fn check_start(&self, recipe: &Recipe) -> Result<(), Failure> {
        let specs = recipe::param_specs(&recipe.model);
        self.check_model(&specs)?;
        let refuse = |why: String, fix: String| {
            Err(Failure::new(
                ErrorCode::TensorMismatch,
                format!("cannot start from the adapter {}", self.path),
                why,
                fix,
            ))
        };
        let adapted = recipe.lora.layers(&recipe.model).unwrap_or_default();
        let mut wanted = BTreeSet::new();
        for name in adapted.iter().filter_map(module) {
            let Some(layer) = self.layers.get(name) else {
                let fix = "set lora.targets to the layers that it has, as `vidtui inspect` lists them".to_owned();
                return refuse(format!("it has no layer {name}, which lora.targets selects"), fix);
            };
            if layer.rank() != recipe.lora.rank {
                let why =
                    format!("the rank of {name} is {} there, and lora.rank is {}", layer.rank(), recipe.lora.rank);
                return refuse(why, format!("set lora.rank = {}", layer.rank()));
            }
            wanted.insert(name);
        }
        match self.layers.keys().find(|name| !wanted.contains(name.as_str())) {
            Some(name) => refuse(
                format!("it has the layer {name}, which lora.targets does not select"),
                "add this layer to lora.targets".into(),
            ),
            None => Ok(()),
        }
    }

    /// Reads all factors, and checks that their values are finite.
    ///
    /// # Errors
    /// [`ErrorCode::NotFinite`] names the tensors with other values; or a file cannot be read.
    pub fn check_finite(&self) -> Result<(), Failure> {
        let (mut files, mut found) = (Files::default(), Vec::new());
        for (name, tensor) in self.layers.values().flat_map(|layer| layer.factors()) {
            found.extend(NotFinite::of(name, finite::count(tensor.dtype, &files.read_all(tensor)?)));
        }
        self.refuse_not_finite(&found)
    }

    fn refuse_not_finite(&self, found: &[NotFinite]) -> Result<(), Failure> {
        if found.is_empty() {
            return Ok(());
        }
        Err(Failure::new(
            ErrorCode::NotFinite,
            format!("cannot use the adapter {}", self.path),
            NotFinite::words(found),
            "use an earlier checkpoint of its training, or copy it again from its source",
        ))
    }

    /// Reads the factors of the layer of a weight; `None` if the layer has no adapter.
    ///
    /// # Errors
    /// A file cannot be read, or a factor has a value that is not finite.
    pub fn factors(&self, weight: &ParamSpec, files: &mut Files) -> Result<Option<Factors>, Failure> {
        let Some((_, layer)) = self.layer_of(weight) else { return Ok(None) };
        let mut found = Vec::new();
        let mut read = |name: &str, tensor: &StoredTensor| -> Result<Vec<f32>, Failure> {
            let bytes = files.read_all(tensor)?;
            found.extend(NotFinite::of(name, finite::count(tensor.dtype, &bytes)));
            Ok(values(tensor.dtype, &bytes).map(|value| value as f32).collect())
        };
        let [of_down, of_up] = &layer.names;
        let (down, up, rank) = (read(of_down, &layer.down)?, read(of_up, &layer.up)?, layer.rank());
        self.refuse_not_finite(&found)?;
        Ok(Some(Factors { rank, down, up, scale: layer.alpha / rank as f64 }))
    }
}

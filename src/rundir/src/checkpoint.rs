//! A checkpoint: logical tensors, the slices of files that hold them, and the state of training.
//!
//! A checkpoint describes tensors, never a mesh. Each tensor, or box of it, is flattened row by row, and its slices record
//! which range is in which file, so that any number of ranks with any sharding can read it.

use crate::attempt::known_axes;
use crate::files::{Versioned, is_file_name, parse_toml, read_toml, toml_text, write_atomic};
use crate::layout::{MODEL_CONFIG, parse_step_dir, step_files};
use crate::{Error, RunDir, RunId, TensorBox};
use camino::{Utf8Path, Utf8PathBuf};
use failure::{is_no_answer, read_text};
use recipe::{Mesh, OptimizerKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// `manifest.toml`: the contents of a checkpoint. It is written last, and its existence makes the checkpoint complete.
///
/// Its first line is a comment with the checksum of all that follows ([`CheckpointManifest::write`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointManifest {
    /// [`crate::SCHEMA`].
    pub format: u32,
    /// The run that saved it.
    pub run: RunId,
    /// The attempt that saved it.
    pub attempt: u32,
    /// The steps done.
    pub step: u64,
    /// When it was saved, Unix seconds.
    pub saved_s: f64,
    /// The number of parameters.
    pub params: u64,
    /// The checksum of the `manifest.toml` of the checkpoint that was converted, if all parameters are the same. Adapters of either
    /// fit both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_as: Option<String>,
    /// The mesh that saved it, for display; loading does not depend on it.
    #[serde(deserialize_with = "known_axes")]
    pub mesh: Mesh,
    /// The base weights, if the checkpoint contains LoRA adapters instead of the whole model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseWeights>,
    /// Every file except the manifest.
    pub files: Vec<FileSum>,
    /// Every tensor. The optimizer's tensors are named `exp_avg/NAME` and `exp_avg_sq/NAME`, and the moving averages of
    /// the weights (EMA) `ema/NAME`. Tensors of an 8-bit optimizer have the dtype `U8`. The same file contains their
    /// float32 scales as `NAME.scale`: one for each block of 256 elements. Blocks begin at multiples of 256 in the box.
    pub tensors: Vec<LogicalTensor>,
}

impl Versioned for CheckpointManifest {
    const KEY: &'static str = "format";

    fn version(&self) -> u32 {
        self.format
    }
}

/// The base weights of adapters. Tensors that are not in the checkpoint of the adapters are loaded from these weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BaseWeights {
    /// The step directory of these weights.
    pub path: Utf8PathBuf,
    /// The checksum of the `manifest.toml` in it.
    pub xxh3: String,
    /// The factor by which the product of an adapter's two tensors is multiplied.
    pub scale: f64,
}

impl BaseWeights {
    /// Describes the base of new adapters: `weights` or, if `weights` is a checkpoint of adapters, its base.
    ///
    /// # Errors
    /// [`Error::File`] if the manifest of `weights` cannot be read.
    pub fn of(weights: &Checkpoint, scale: f64) -> Result<Self, Error> {
        match &weights.manifest.base {
            Some(base) => Ok(BaseWeights { scale, ..base.clone() }),
            None => Ok(BaseWeights { path: weights.dir.clone(), xxh3: weights.manifest_sum()?.xxh3, scale }),
        }
    }
}

/// A file of a checkpoint, with its size and checksum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// Its name in the step directory.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its XXH3 checksum of 64 bits, as 16 hex digits.
    pub xxh3: String,
}

/// A whole tensor, and the slices of files that contain it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogicalTensor {
    /// Its name in the table of parameters.
    pub name: String,
    /// Its element type, as safetensors names it: `F32`.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The slices, which together cover the tensor once.
    pub slices: Vec<Slice>,
}

/// A range of a flattened tensor or of a flattened box of it, and where it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// The name of the file in the step directory.
    pub file: String,
    /// The name of the tensor in that file. It contains exactly the range.
    pub key: String,
    /// The index of the first element in the flattened tensor or box.
    pub start: u64,
    /// The number of elements.
    pub len: u64,
    /// The box of the tensor that the range belongs to; `None` for the whole tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<TensorBox>,
}

impl Slice {
    /// Returns the box that the range belongs to, in a tensor of this shape.
    pub fn within(&self, shape: &[usize]) -> TensorBox {
        self.within.clone().unwrap_or_else(|| TensorBox::whole(shape))
    }

    /// Returns the range of element indices in the flattened box.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.start..self.start.saturating_add(self.len)
    }
}

/// `state.toml`: the state of training besides tensors. With it, training continues bit for bit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainState {
    /// The steps done.
    pub step: u64,
    /// Samples that were trained on, over all epochs.
    pub samples_seen: u64,
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// Samples consumed in this epoch.
    pub position: u64,
    /// The seed of data order and noise.
    pub seed: u64,
    /// Updates the optimizer has applied; fewer than steps when some were skipped.
    pub adam_step: u64,
    /// Samples per step.
    pub global_batch: usize,
    /// The fingerprints of the data sets, joined by `+`. A resume with other data needs the user's consent.
    pub data_fingerprint: String,
    /// The fingerprint of everything else that determines the samples of a step: shapes, batch sizes, shares of data
    /// sets. Empty if all items have one shape and are used once per epoch.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub data_order: String,
    /// The number of consecutive steps that were not finite.
    #[serde(default)]
    pub bad_steps: u64,
    /// The number of all steps that were not finite.
    #[serde(default)]
    pub skipped_steps: u64,
    /// Updates of the moving average of the weights (EMA); 0 without one.
    #[serde(default)]
    pub ema_updates: u64,
    /// The optimizer whose state the checkpoint contains.
    #[serde(default)]
    pub optimizer: OptimizerKind,
    /// The scalars of the optimizer's state, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub optimizer_numbers: BTreeMap<String, f64>,
}

impl Versioned for TrainState {
    const KEY: &'static str = "format";

    /// Returns the current version, because `state.toml` has none: the manifest records the version of both files.
    fn version(&self) -> u32 {
        crate::SCHEMA
    }
}

/// A complete checkpoint. Only [`Checkpoint::open`] makes one.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The steps done.
    pub step: u64,
    /// Its step directory.
    pub dir: Utf8PathBuf,
    /// Its manifest.
    pub manifest: CheckpointManifest,
    /// Its size in bytes, without the manifest.
    pub bytes: u64,
}

impl Checkpoint {
    /// Returns the size and hash of the manifest, which has the checksums of all files.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn manifest_sum(&self) -> Result<FileSum, Error> {
        file_sum(&self.dir.join(step_files::MANIFEST))
    }

    /// Opens a step directory and checks that nothing is missing.
    ///
    /// Only sizes are checked. [`Checkpoint::verify_checksums`] reads all files and checks their checksums.
    ///
    /// # Errors
    /// [`Error::Incomplete`] with the first thing that is missing or wrong, [`Error::Newer`] for a newer format, and
    /// [`Error::File`] if the file system does not answer, so that it is unknown whether the checkpoint is complete.
    pub fn open(dir: &Utf8Path) -> Result<Self, Error> {
        let incomplete = |why: String| Error::Incomplete { dir: dir.to_owned(), why };
        let manifest = match CheckpointManifest::read(dir) {
            Ok(manifest) => manifest,
            Err(e) if e.is_not_found() => {
                return Err(incomplete("it has no manifest.toml: saving was interrupted".into()));
            }
            Err(e @ Error::Newer { .. }) => return Err(e),
            Err(Error::Malformed { why, .. }) => {
                return Err(incomplete(format!("its manifest.toml is damaged: {why}")));
            }
            Err(e) => return Err(e),
        };
        let mark = dir.join(step_files::DAMAGED);
        match text_file::read_regular(&mark, text_file::MAX_TEXT) {
            Ok(why) => return Err(incomplete(String::from_utf8_lossy(&why).trim_end().to_owned())),
            Err(error) if is_no_answer(&error) => return Err(Error::io("read", &mark, error)),
            // The checkpoint has no mark. A folder with the name of the mark does not count.
            Err(_) => {}
        }
        if let Some(step) = dir.file_name().and_then(parse_step_dir)
            && step != manifest.step
        {
            return Err(incomplete(format!("its manifest belongs to step {}", manifest.step)));
        }
        if !manifest.files.iter().any(|f| f.name == step_files::STATE) {
            return Err(incomplete("its manifest does not list state.toml".into()));
        }
        for file in &manifest.files {
            check_file(dir, file)?;
        }
        manifest.check_slices().map_err(incomplete)?;
        let bytes = manifest.files.iter().map(|f| f.bytes).sum();
        Ok(Self { step: manifest.step, dir: dir.to_owned(), manifest, bytes })
    }

    /// Reads the state of training.
    ///
    /// # Errors
    /// As [`read_toml`].
    pub fn state(&self) -> Result<TrainState, Error> {
        read_toml(&self.dir.join(step_files::STATE))
    }

    /// Reads every file and compares its checksum with the manifest.
    ///
    /// # Errors
    /// As [`Checkpoint::verify_file`], for the first damaged file.
    pub fn verify_checksums(&self) -> Result<(), Error> {
        self.manifest.files.iter().try_for_each(|file| self.verify_file(file))
    }

    /// Reads one file and compares its checksum with the manifest. If they differ, marks the checkpoint as damaged, so
    /// that [`Checkpoint::open`] refuses it from then on.
    ///
    /// # Errors
    /// [`Error::Checksum`] if they differ, or [`Error::File`] if the file cannot be read.
    pub fn verify_file(&self, wanted: &FileSum) -> Result<(), Error> {
        let path = self.dir.join(&wanted.name);
        let found = file_sum(&path)?.xxh3;
        if found == wanted.xxh3 {
            return Ok(());
        }
        let why =
            format!("{} is damaged: its checksum is {found}, expected {} by the manifest\n", wanted.name, wanted.xxh3);
        // If the mark cannot be written, the caller still gets the error.
        let _ = write_atomic(&self.dir.join(step_files::DAMAGED), why.as_bytes());
        Err(Error::Checksum { path, found, wanted: wanted.xxh3.clone() })
    }

    /// Returns the tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&LogicalTensor> {
        self.manifest.tensors.iter().find(|t| t.name == name)
    }
}

/// Returns the path of the `config.json` of the diffusers model from which the weights in a checkpoint were converted,
/// if any. It is beside the weights or in the run that contains them.
pub fn model_config(dir: &Utf8Path) -> Option<Utf8PathBuf> {
    let real = dir.canonicalize_utf8().unwrap_or(dir.to_owned());
    let run = real.ancestors().nth(2).map(RunDir::new).filter(|run| Some(&*run.checkpoints()) == real.parent());
    let places = [Some(dir.join(MODEL_CONFIG)), run.map(|run| run.model_config())];
    places.into_iter().flatten().find(|path| path.is_file())
}

/// Returns the `[model]` section of the weights in a checkpoint, from the `model.toml` beside them or from the run that
/// contains them.
pub fn model_section(dir: &Utf8Path) -> Option<toml::Table> {
    let real = dir.canonicalize_utf8().unwrap_or(dir.to_owned());
    let run = real.ancestors().nth(2).map(RunDir::new).filter(|run| Some(&*run.checkpoints()) == real.parent());
    let section = |table: toml::Table| table.get("model")?.as_table().cloned();
    let beside = read_text(&dir.join("model.toml")).ok().and_then(|text| section(text.parse().ok()?));
    beside.or_else(|| section(run?.read_run().ok()?.recipe))
}

/// Formats a box as the range of each dimension: `0..4 × 8..16`.
fn shown(within: &TensorBox) -> String {
    let ranges = within.offset.iter().zip(&within.size).map(|(at, size)| format!("{at}..{}", at.saturating_add(*size)));
    ranges.collect::<Vec<_>>().join(" × ")
}

fn check_file(dir: &Utf8Path, file: &FileSum) -> Result<(), Error> {
    let name = &file.name;
    let incomplete = |why: String| Err(Error::Incomplete { dir: dir.to_owned(), why });
    if !is_file_name(name) {
        return incomplete(format!("its manifest names a file outside its folder: '{name}'"));
    }
    let path = dir.join(name);
    match fs::metadata(&path) {
        Ok(meta) if !meta.is_file() => incomplete(format!("{name} is not a file")),
        Ok(meta) if meta.len() != file.bytes => {
            incomplete(format!("{name} has {} of {} bytes", meta.len(), file.bytes))
        }
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => incomplete(format!("{name} is missing")),
        Err(e) => Err(Error::io("inspect", &path, e)),
    }
}

/// The beginning of a manifest with a checksum. The checksum is in the first line because a truncation removes the end.
const SUM: &str = "# XXH3 of what follows: ";

/// The beginning of the name of the id that a conversion gives to weights that no run has trained.
pub const CONVERTED: &str = "converted-";

impl CheckpointManifest {
    /// Returns the run that saved the checkpoint; `None` if a conversion made it from other weights.
    pub fn trained_by(&self) -> Option<&RunId> {
        (self.step > 0 || !self.run.name().starts_with(CONVERTED)).then_some(&self.run)
    }

    /// Writes the manifest into a step directory, which completes the checkpoint.
    ///
    /// # Errors
    /// As [`crate::write_toml`].
    pub fn write(&self, dir: &Utf8Path) -> Result<(), Error> {
        let path = dir.join(step_files::MANIFEST);
        let text = toml_text(&path, self)?;
        write_atomic(&path, format!("{SUM}{}\n{text}", xxh3_hex(text.as_bytes())).as_bytes())
    }

    fn read(dir: &Utf8Path) -> Result<Self, Error> {
        let path = dir.join(step_files::MANIFEST);
        let text = read_text(&path)?;
        // Earlier versions wrote no checksum.
        if text.starts_with('#') {
            let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
            let wanted = format!("{SUM}{}", xxh3_hex(rest.as_bytes()));
            if first != wanted {
                return Err(Error::malformed(&path, format!("its first line is '{first}', expected '{wanted}'")));
            }
        }
        parse_toml(&path, &text)
    }

    /// Checks that the slices of each tensor cover it once, without gaps, and are in files that the manifest lists.
    ///
    /// # Errors
    /// The first tensor that fails this check, and why.
    pub fn check_slices(&self) -> Result<(), String> {
        let files: std::collections::BTreeSet<&str> = self.files.iter().map(|f| f.name.as_str()).collect();
        for tensor in &self.tensors {
            let name = &tensor.name;
            let elements = tensor.elements().ok_or_else(|| format!("tensor {name}: its shape overflows"))?;
            if let Some(slice) = tensor.slices.iter().find(|s| !files.contains(s.file.as_str())) {
                return Err(format!("tensor {name} is in {}, which the manifest does not list", slice.file));
            }
            let mut boxes: BTreeMap<TensorBox, Vec<&Slice>> = BTreeMap::new();
            for slice in &tensor.slices {
                boxes.entry(slice.within(&tensor.shape)).or_default().push(slice);
            }
            let mut covered = 0u64;
            for (within, slices) in &mut boxes {
                if !within.fits(&tensor.shape) {
                    return Err(format!("tensor {name} of shape {:?} has no box {}", tensor.shape, shown(within)));
                }
                slices.sort_by_key(|s| s.start);
                let mut end = 0u64;
                for slice in slices {
                    if slice.start != end {
                        return Err(format!("tensor {name}: a slice begins at {}, expected {end}", slice.start));
                    }
                    end = end.saturating_add(slice.len);
                }
                if within.size != tensor.shape && within.elements() != Some(end) {
                    return Err(format!("tensor {name}: its slices hold {end} elements of the box {}", shown(within)));
                }
                covered = covered.saturating_add(end);
            }
            if covered != elements {
                return Err(format!("tensor {name}: its slices hold {covered} of {elements} elements"));
            }
            let boxes: Vec<&TensorBox> = boxes.keys().collect();
            for (i, one) in boxes.iter().enumerate() {
                if let Some(other) = boxes[..i].iter().find(|other| other.meets(one)) {
                    return Err(format!("tensor {name}: the boxes {} and {} overlap", shown(other), shown(one)));
                }
            }
        }
        Ok(())
    }
}

impl LogicalTensor {
    /// Returns the number of elements, or `None` if it overflows.
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d as u64))
    }
}

/// Returns the 64-bit XXH3 checksum of some bytes as 16 hex digits, as in a manifest.
pub fn xxh3_hex(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}

/// Reads a file and returns its manifest entry.
///
/// # Errors
/// [`Error::File`].
pub fn file_sum(path: &Utf8Path) -> Result<FileSum, Error> {
    let sum = || -> io::Result<FileSum> {
        let mut file = text_file::open_regular(path)?;
        let mut hasher = Xxh3::new();
        let mut buffer = vec![0; 1024 * 1024];
        let mut bytes = 0;
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    hasher.update(&buffer[..n]);
                    bytes += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let name = path.file_name().unwrap_or_default().to_owned();
        Ok(FileSum { name, bytes, xxh3: format!("{:016x}", hasher.digest()) })
    };
    sum().map_err(|e| Error::io("read", path, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{latest, save, state, temp};
    use crate::{ErrorCode, Failure, FileError};
    use insta::assert_snapshot;

    fn why(run: &RunDir, step: u64) -> String {
        match Checkpoint::open(&run.step_dir(step)) {
            Err(Error::Incomplete { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_complete_checkpoint_is_opened() {
        let (_keep, run) = temp();
        let manifest = save(&run, 40, 1);
        let checkpoint = Checkpoint::open(&run.step_dir(40)).unwrap();
        assert_eq!(checkpoint.manifest, manifest);
        assert_eq!(checkpoint.bytes, manifest.files.iter().map(|f| f.bytes).sum::<u64>());
        assert_eq!(checkpoint.state().unwrap(), state(40));
        assert_eq!(checkpoint.tensor("patch_embed.video.bias").unwrap().elements(), Some(6));
        checkpoint.verify_checksums().unwrap();
    }

    #[test]
    fn the_configuration_of_the_model_is_beside_the_weights_or_in_their_run() {
        let (_keep, run) = temp();
        let step = run.step_dir(40);
        fs::create_dir_all(&step).unwrap();
        assert_eq!(model_config(&step), None);
        fs::write(run.model_config(), "{}").unwrap();
        assert_eq!(model_config(&step).unwrap().canonicalize().unwrap(), run.model_config().canonicalize().unwrap());
        fs::write(step.join("config.json"), "{}").unwrap();
        assert_eq!(model_config(&step), Some(step.join("config.json")));
        fs::remove_file(step.join("config.json")).unwrap();
        let elsewhere = run.root.join("weights/converted");
        fs::create_dir_all(&elsewhere).unwrap();
        assert_eq!(model_config(&elsewhere), None, "the folder two levels up is not a run");
    }

    #[test]
    fn the_missing_or_cut_file_is_named() {
        let (_keep, run) = temp();
        save(&run, 40, 1);
        let file = run.step_dir(40).join("rank-00001.safetensors");
        fs::write(&file, [2; 59]).unwrap();
        assert_snapshot!(why(&run, 40), @"rank-00001.safetensors has 59 of 60 bytes");
        fs::remove_file(&file).unwrap();
        assert!(why(&run, 40).contains("rank-00001.safetensors"));
        fs::remove_file(run.step_dir(40).join("manifest.toml")).unwrap();
        assert!([40, 41].iter().all(|step| why(&run, *step).contains("manifest.toml")));
    }

    #[test]
    fn a_file_that_cannot_be_inspected_is_an_io_error_and_not_damage() {
        let (_keep, run) = temp();
        save(&run, 40, 1);
        let file = run.step_dir(40).join("rank-00001.safetensors");
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&file, &file).unwrap();
        let error = Checkpoint::open(&run.step_dir(40)).unwrap_err();
        assert!(
            matches!(&error, Error::File(FileError::Io { action: "inspect", path, .. }) if *path == file),
            "{error}"
        );
    }

    #[test]
    fn a_manifest_of_another_step_is_refused() {
        let (_keep, run) = temp();
        save(&run, 40, 1);
        fs::rename(run.step_dir(40), run.step_dir(50)).unwrap();
        assert!(why(&run, 50).contains("step 40"));
    }

    #[test]
    fn a_manifest_cannot_name_files_outside_its_folder() {
        let (_keep, run) = temp();
        let mut manifest = save(&run, 40, 1);
        manifest.files[0].name = "../../run.toml".into();
        manifest.write(&run.step_dir(40)).unwrap();
        assert!(why(&run, 40).contains("../../run.toml"));
    }

    #[test]
    fn a_newer_format_is_an_error_of_its_own() {
        let (_keep, run) = temp();
        let manifest = CheckpointManifest { format: 2, ..save(&run, 40, 1) };
        manifest.write(&run.step_dir(40)).unwrap();
        let error = Checkpoint::open(&run.step_dir(40)).unwrap_err();
        assert!(matches!(error, Error::Newer { key: "format", found: 2, .. }), "{error}");
    }

    #[test]
    fn a_cut_or_changed_manifest_is_never_complete() {
        let (_keep, run) = temp();
        save(&run, 40, 1);
        let path = run.step_dir(40).join("manifest.toml");
        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            Checkpoint::open(&run.step_dir(40)).expect_err(&format!("the first {len} bytes are accepted"));
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                fs::write(&path, &changed).unwrap();
                Checkpoint::open(&run.step_dir(40))
                    .expect_err(&format!("a change of bit {bit} of byte {at} is accepted"));
            }
        }
        fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        assert!(why(&run, 40).contains(SUM));
    }

    #[test]
    fn a_manifest_without_a_checksum_is_read() {
        let (_keep, run) = temp();
        let manifest = save(&run, 40, 1);
        crate::write_toml(&run.step_dir(40).join("manifest.toml"), &manifest).unwrap();
        assert_eq!(Checkpoint::open(&run.step_dir(40)).unwrap().manifest, manifest);
    }

    #[test]
    fn slices_must_cover_each_tensor_once() {
        let (_keep, run) = temp();
        let good = save(&run, 40, 1);
        let broken = |change: fn(&mut Vec<Slice>)| {
            let mut manifest = good.clone();
            change(&mut manifest.tensors[0].slices);
            manifest.check_slices().unwrap_err()
        };
        assert_eq!(good.check_slices(), Ok(()));
        let broken = [
            broken(|s| s[0].start = 5),
            broken(|s| s[0].len = 1),
            broken(Vec::clear),
            broken(|s| s[0].file = "x".into()),
        ];
        assert_snapshot!(broken.join("\n"));
    }

    #[test]
    fn boxes_must_cover_each_tensor_once() {
        let (_keep, run) = temp();
        let good = save(&run, 40, 1);
        // A tensor of 2 × 3: one column in two slices, and the other two columns in one.
        let check = |boxes: [(usize, usize, u64, u64); 3]| {
            let mut manifest = good.clone();
            let one = manifest.tensors[0].slices[0].clone();
            let slice = |(offset, size, start, len)| {
                let within = TensorBox { offset: vec![0, offset], size: vec![2, size] };
                Slice { start, len, within: Some(within), ..one.clone() }
            };
            manifest.tensors[0].slices = boxes.map(slice).into();
            manifest.check_slices()
        };
        assert_eq!(check([(0, 1, 1, 1), (0, 1, 0, 1), (1, 2, 0, 4)]), Ok(()));
        let broken = [
            [(0, 1, 1, 1), (0, 1, 0, 1), (1, 2, 0, 3)],
            [(0, 1, 1, 1), (0, 1, 0, 1), (1, 3, 0, 4)],
            [(0, 1, 0, 2), (0, 0, 0, 0), (1, 1, 0, 2)],
            [(0, 2, 0, 4), (1, 1, 0, 2), (2, 0, 0, 0)],
        ];
        assert_snapshot!(broken.map(|boxes| check(boxes).unwrap_err()).join("\n"));
        let text = toml::to_string(&good).unwrap();
        assert!(!text.contains("within"), "{text}");
    }

    #[test]
    fn a_changed_byte_is_found_by_the_checksum() {
        let (_keep, run) = temp();
        save(&run, 40, 1);
        let path = run.step_dir(40).join("rank-00000.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        bytes[50] ^= 1;
        fs::write(&path, bytes).unwrap();
        let error = Checkpoint::open(&run.step_dir(40)).unwrap().verify_checksums().unwrap_err();
        assert!(matches!(&error, Error::Checksum { path: damaged, .. } if *damaged == path), "{error}");
        assert_eq!(Failure::from(error).code, ErrorCode::CheckpointDamaged);
        assert!(why(&run, 40).contains("rank-00000.safetensors"));
    }

    #[test]
    fn a_checkpoint_that_was_found_damaged_is_skipped() {
        let (_keep, run) = temp();
        save(&run, 20, 1);
        save(&run, 40, 1);
        fs::write(run.step_dir(40).join("rank-00001.safetensors"), [7; 60]).unwrap();
        let newest = latest(&run).unwrap();
        assert_eq!(newest.step, 40, "its sizes are right");
        Checkpoint::open(&newest.dir).unwrap().verify_checksums().unwrap_err();
        assert_eq!(latest(&run).unwrap().step, 20);
    }

    #[test]
    fn the_checksums_of_a_file_and_of_its_bytes_are_equal() {
        let (_keep, run) = temp();
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| n as u8).collect();
        let path = run.root.join("a");
        fs::write(&path, &bytes).unwrap();
        let sum = file_sum(&path).unwrap();
        assert_eq!((sum.bytes, sum.xxh3), (3_000_000, xxh3_hex(&bytes)));
        // A published value, so that another implementation can check our checkpoints.
        assert_eq!(xxh3_hex(b""), "2d06800538d394c2");
    }
}

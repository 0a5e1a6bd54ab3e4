//! A checkpoint: logical tensors, the slices of files that hold them, and the state of training.
//!
//! A checkpoint describes tensors, never a mesh. Each tensor, or box of it, is flattened row by row, and its slices say
//! which range lies in which file, so ranks in any number, sharding in any way, read what any others wrote.

use crate::attempt::known_axes;
use crate::failure::is_no_answer;
use crate::files::{Versioned, parse_toml, read_text, read_toml, toml_text, write_atomic};
use crate::layout::{MODEL_CONFIG, parse_step_dir, step_files};
use crate::{Error, RunDir, RunId, TensorBox};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::Mesh;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// `manifest.toml`: what is in a checkpoint. It is written last, and its existence makes the checkpoint complete.
///
/// Its first line is a comment with the checksum of all that follows ([`Manifest::write`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
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
    /// The mesh that saved it; for people, loading does not depend on it.
    #[serde(deserialize_with = "known_axes")]
    pub mesh: Mesh,
    /// Every file but the manifest.
    pub files: Vec<FileSum>,
    /// Every tensor. The optimizer's are named `exp_avg/NAME` and `exp_avg_sq/NAME`.
    pub tensors: Vec<LogicalTensor>,
}

impl Versioned for Manifest {
    const KEY: &'static str = "format";

    fn version(&self) -> u32 {
        self.format
    }
}

/// A file of a checkpoint, as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// Its name in the step directory.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its XXH3 checksum of 64 bits, as 16 hex digits.
    pub xxh3: String,
}

/// A tensor, whole, whatever its slices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogicalTensor {
    /// Its name in the table of parameters.
    pub name: String,
    /// Its element type, in the words of safetensors: `F32`.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The ranges that make it up.
    pub slices: Vec<Slice>,
}

/// A range of a flattened tensor or of a flattened box of it, and where it lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// The file.
    pub file: String,
    /// The tensor of that file that holds the range, and nothing else.
    pub key: String,
    /// The first element.
    pub start: u64,
    /// The number of elements.
    pub len: u64,
    /// The box of the tensor that the range is of; all of it when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<TensorBox>,
}

impl Slice {
    /// The box of a tensor of this shape that the range is of.
    pub fn within(&self, shape: &[usize]) -> TensorBox {
        self.within.clone().unwrap_or_else(|| TensorBox::whole(shape))
    }

    /// The range, counted in the box.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.start..self.start.saturating_add(self.len)
    }
}

/// `state.toml`: what training needs besides tensors to go on bit for bit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Identity of the data set: a resume with other data must say so.
    pub data_fingerprint: String,
    /// Steps in a row that were not finite.
    #[serde(default)]
    pub bad_steps: u64,
}

impl Versioned for TrainState {
    const KEY: &'static str = "format";

    /// The manifest beside it says which format both have.
    fn version(&self) -> u32 {
        crate::SCHEMA
    }
}

/// A complete checkpoint. There is no other way to get one than [`Checkpoint::open`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The steps done.
    pub step: u64,
    /// Its step directory.
    pub dir: Utf8PathBuf,
    /// What is in it.
    pub manifest: Manifest,
    /// Its size, without the manifest.
    pub bytes: u64,
}

impl Checkpoint {
    /// Opens a step directory and checks that nothing is missing.
    ///
    /// Sizes are checked, checksums are not: that is [`Checkpoint::verify_checksums`], which reads everything.
    ///
    /// # Errors
    /// [`Error::Incomplete`] with the first thing that is missing or wrong, [`Error::Newer`] for a newer format, and
    /// [`Error::Io`] when the file system did not answer, which says nothing about the checkpoint.
    pub fn open(dir: &Utf8Path) -> Result<Self, Error> {
        let incomplete = |why: String| Error::Incomplete { dir: dir.to_owned(), why };
        let manifest = match Manifest::read(dir) {
            Ok(manifest) => manifest,
            Err(e) if e.is_not_found() => {
                return Err(incomplete("it has no manifest.toml: saving it did not end".into()));
            }
            Err(e @ Error::Newer { .. }) => return Err(e),
            Err(Error::Malformed { why, .. }) => {
                return Err(incomplete(format!("its manifest.toml is damaged: {why}")));
            }
            Err(e) => return Err(e),
        };
        let mark = dir.join(step_files::DAMAGED);
        match fs::read(&mark) {
            Ok(why) => return Err(incomplete(String::from_utf8_lossy(&why).trim_end().to_owned())),
            Err(error) if is_no_answer(&error) => return Err(Error::io("read", &mark, error)),
            // There is none; what else may be in its place is no mark.
            Err(_) => {}
        }
        if let Some(step) = dir.file_name().and_then(parse_step_dir)
            && step != manifest.step
        {
            return Err(incomplete(format!("its manifest is that of step {}", manifest.step)));
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

    /// Reads one file and compares its checksum with the manifest. If it has changed, the checkpoint is marked as damaged,
    /// so that nobody takes it for complete again.
    ///
    /// # Errors
    /// [`Error::Checksum`] when it has changed, or [`Error::Io`].
    pub fn verify_file(&self, wanted: &FileSum) -> Result<(), Error> {
        let path = self.dir.join(&wanted.name);
        let found = file_sum(&path)?.xxh3;
        if found == wanted.xxh3 {
            return Ok(());
        }
        let why = format!("{} is damaged: its checksum is {found}, the manifest says {}\n", wanted.name, wanted.xxh3);
        // Where the mark cannot be written, the error still says it.
        let _ = write_atomic(&self.dir.join(step_files::DAMAGED), why.as_bytes());
        Err(Error::Checksum { path, found, wanted: wanted.xxh3.clone() })
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&LogicalTensor> {
        self.manifest.tensors.iter().find(|t| t.name == name)
    }
}

/// Finds the `config.json` that the weights in a checkpoint came with, where they came from a diffusers model: beside them,
/// or in the run around them.
pub fn model_config(dir: &Utf8Path) -> Option<Utf8PathBuf> {
    let real = dir.canonicalize_utf8().unwrap_or(dir.to_owned());
    let run = real.ancestors().nth(2).map(RunDir::new).filter(|run| Some(&*run.checkpoints()) == real.parent());
    let places = [Some(dir.join(MODEL_CONFIG)), run.map(|run| run.model_config())];
    places.into_iter().flatten().find(|path| path.is_file())
}

/// Writes a box as the range of each dimension: `0..4 × 8..16`.
fn shown(within: &TensorBox) -> String {
    let ranges = within.offset.iter().zip(&within.size).map(|(at, size)| format!("{at}..{}", at.saturating_add(*size)));
    ranges.collect::<Vec<_>>().join(" × ")
}

fn check_file(dir: &Utf8Path, file: &FileSum) -> Result<(), Error> {
    let name = &file.name;
    let incomplete = |why: String| Err(Error::Incomplete { dir: dir.to_owned(), why });
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return incomplete(format!("its manifest names a file outside of it: '{name}'"));
    }
    let path = dir.join(name);
    match fs::metadata(&path) {
        Ok(meta) if !meta.is_file() => incomplete(format!("{name} is not a file")),
        Ok(meta) if meta.len() != file.bytes => {
            incomplete(format!("{name} has {} of {} bytes", meta.len(), file.bytes))
        }
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => incomplete(format!("{name} is missing")),
        Err(e) => Err(Error::io("look at", &path, e)),
    }
}

/// How a manifest begins that has a checksum. It comes first, because what is cut off is the end.
const SUM: &str = "# XXH3 of what follows: ";

impl Manifest {
    /// Writes it into a step directory, which is a complete checkpoint from then on.
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
        // Those written before there were checksums begin with what they say.
        if text.starts_with('#') {
            let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
            let wanted = format!("{SUM}{}", xxh3_hex(rest.as_bytes()));
            if first != wanted {
                return Err(Error::malformed(&path, format!("it begins with '{first}', and should with '{wanted}'")));
            }
        }
        parse_toml(&path, &text)
    }

    /// Checks that the slices of each tensor cover it once, without gaps, and lie in files that the manifest lists.
    ///
    /// # Errors
    /// The first tensor of which that is not so, and why.
    pub fn check_slices(&self) -> Result<(), String> {
        let files: std::collections::BTreeSet<&str> = self.files.iter().map(|f| f.name.as_str()).collect();
        for tensor in &self.tensors {
            let name = &tensor.name;
            let elements = tensor.elements().ok_or_else(|| format!("tensor {name}: its shape overflows"))?;
            if let Some(slice) = tensor.slices.iter().find(|s| !files.contains(s.file.as_str())) {
                return Err(format!("tensor {name} lies in {}, which the manifest does not list", slice.file));
            }
            let mut boxes: BTreeMap<TensorBox, Vec<&Slice>> = BTreeMap::new();
            for slice in &tensor.slices {
                boxes.entry(slice.within(&tensor.shape)).or_default().push(slice);
            }
            let mut covered = 0u64;
            for (within, slices) in &mut boxes {
                if !within.fits(&tensor.shape) {
                    return Err(format!("tensor {name} of {:?}: it has no box {}", tensor.shape, shown(within)));
                }
                slices.sort_by_key(|s| s.start);
                let mut end = 0u64;
                for slice in slices {
                    if slice.start != end {
                        return Err(format!("tensor {name}: a slice begins at {}, not at {end}", slice.start));
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
                    return Err(format!("tensor {name}: the boxes {} and {} meet", shown(other), shown(one)));
                }
            }
        }
        Ok(())
    }
}

impl LogicalTensor {
    /// The number of elements; none if that overflows.
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d as u64))
    }
}

/// The checksum of some bytes, as a manifest holds it.
pub fn xxh3_hex(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}

/// Reads a file and gives its manifest entry.
///
/// # Errors
/// [`Error::Io`].
pub fn file_sum(path: &Utf8Path) -> Result<FileSum, Error> {
    let sum = || -> io::Result<FileSum> {
        let mut file = File::open(path)?;
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
    use crate::Failure;
    use crate::fixtures::{latest, save, state, temp};

    fn why(run: &RunDir, step: u64) -> String {
        match Checkpoint::open(&run.step_dir(step)) {
            Err(Error::Incomplete { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_complete_checkpoint_is_opened_with_all_that_is_in_it() {
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
    fn the_configuration_that_weights_came_with_lies_beside_them_or_in_their_run() {
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
        assert_eq!(model_config(&elsewhere), None, "a folder two levels up is not always a run");
    }

    #[test]
    fn what_is_missing_or_cut_is_named() {
        let (_keep, run) = temp();
        save(&run, 40, 1);
        let file = run.step_dir(40).join("rank-00001.safetensors");
        fs::write(&file, [2; 59]).unwrap();
        assert_eq!(why(&run, 40), "rank-00001.safetensors has 59 of 60 bytes");
        fs::remove_file(&file).unwrap();
        assert_eq!(why(&run, 40), "rank-00001.safetensors is missing");
        fs::remove_file(run.step_dir(40).join("manifest.toml")).unwrap();
        assert_eq!(why(&run, 40), "it has no manifest.toml: saving it did not end");
        assert_eq!(why(&run, 41), "it has no manifest.toml: saving it did not end");
    }

    #[test]
    fn a_file_system_that_does_not_answer_is_no_damage() {
        let (_keep, run) = temp();
        save(&run, 40, 1);
        let file = run.step_dir(40).join("rank-00001.safetensors");
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&file, &file).unwrap();
        let error = Checkpoint::open(&run.step_dir(40)).unwrap_err();
        assert!(matches!(&error, Error::Io { action: "look at", path, .. } if *path == file), "{error}");
    }

    #[test]
    fn a_manifest_that_does_not_fit_its_folder_is_refused() {
        let (_keep, run) = temp();
        save(&run, 40, 1);
        fs::rename(run.step_dir(40), run.step_dir(50)).unwrap();
        assert_eq!(why(&run, 50), "its manifest is that of step 40");
    }

    #[test]
    fn a_manifest_cannot_name_files_elsewhere() {
        let (_keep, run) = temp();
        let mut manifest = save(&run, 40, 1);
        manifest.files[0].name = "../../run.toml".into();
        manifest.write(&run.step_dir(40)).unwrap();
        assert_eq!(why(&run, 40), "its manifest names a file outside of it: '../../run.toml'");
    }

    #[test]
    fn a_newer_format_is_refused_and_not_called_incomplete() {
        let (_keep, run) = temp();
        let manifest = Manifest { format: 2, ..save(&run, 40, 1) };
        manifest.write(&run.step_dir(40)).unwrap();
        let error = Checkpoint::open(&run.step_dir(40)).unwrap_err();
        assert!(matches!(error, Error::Newer { key: "format", found: 2, .. }), "{error}");
    }

    #[test]
    fn a_manifest_that_was_cut_or_changed_anywhere_is_never_complete() {
        let (_keep, run) = temp();
        save(&run, 40, 1);
        let path = run.step_dir(40).join("manifest.toml");
        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            Checkpoint::open(&run.step_dir(40)).expect_err(&format!("the first {len} bytes are taken for all"));
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                fs::write(&path, &changed).unwrap();
                Checkpoint::open(&run.step_dir(40)).expect_err(&format!("bit {bit} of byte {at} is not missed"));
            }
        }
        fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        let said = why(&run, 40);
        assert!(said.starts_with("its manifest.toml is damaged: it begins with '# XXH3 of what follows: "), "{said}");
    }

    #[test]
    fn a_manifest_of_before_there_were_checksums_is_read() {
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
        assert_eq!(broken(|s| s[0].start = 5), "tensor patch_embed.video.bias: a slice begins at 5, not at 4");
        assert_eq!(broken(|s| s[0].len = 1), "tensor patch_embed.video.bias: its slices hold 5 of 6 elements");
        assert_eq!(broken(Vec::clear), "tensor patch_embed.video.bias: its slices hold 0 of 6 elements");
        assert_eq!(
            broken(|s| s[0].file = "x".into()),
            "tensor patch_embed.video.bias lies in x, which the manifest does not list"
        );
    }

    #[test]
    fn boxes_must_cover_each_tensor_once() {
        let (_keep, run) = temp();
        let good = save(&run, 40, 1);
        // 2 × 3: a column in two slices, and the other two columns.
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
        let broken = |boxes| check(boxes).unwrap_err();
        let name = "tensor patch_embed.video.bias";
        assert_eq!(
            broken([(0, 1, 1, 1), (0, 1, 0, 1), (1, 2, 0, 3)]),
            format!("{name}: its slices hold 3 elements of the box 0..2 × 1..3")
        );
        assert_eq!(
            broken([(0, 1, 1, 1), (0, 1, 0, 1), (1, 3, 0, 4)]),
            format!("{name} of [2, 3]: it has no box 0..2 × 1..4")
        );
        assert_eq!(
            broken([(0, 1, 0, 2), (0, 0, 0, 0), (1, 1, 0, 2)]),
            format!("{name}: its slices hold 4 of 6 elements")
        );
        assert_eq!(
            broken([(0, 2, 0, 4), (1, 1, 0, 2), (2, 0, 0, 0)]),
            format!("{name}: the boxes 0..2 × 0..2 and 0..2 × 1..2 meet")
        );
        let text = toml::to_string(&good).unwrap();
        assert!(!text.contains("within"), "{text}");
    }

    #[test]
    fn a_changed_byte_is_found_by_its_checksum() {
        let (_keep, run) = temp();
        save(&run, 40, 1);
        let path = run.step_dir(40).join("rank-00000.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        bytes[50] ^= 1;
        fs::write(&path, bytes).unwrap();
        let error = Checkpoint::open(&run.step_dir(40)).unwrap().verify_checksums().unwrap_err();
        let failure = Failure::from(error);
        assert!(failure.what.contains("rank-00000.safetensors is damaged"), "{failure}");
        assert!(failure.fix.contains("resume again"), "{failure}");
        assert!(why(&run, 40).starts_with("rank-00000.safetensors is damaged: its checksum is "));
    }

    #[test]
    fn a_damaged_checkpoint_is_passed_over_from_then_on() {
        let (_keep, run) = temp();
        save(&run, 20, 1);
        save(&run, 40, 1);
        fs::write(run.step_dir(40).join("rank-00001.safetensors"), [7; 60]).unwrap();
        let newest = latest(&run).unwrap();
        assert_eq!(newest.step, 40, "sizes alone do not tell");
        Checkpoint::open(&newest.dir).unwrap().verify_checksums().unwrap_err();
        assert_eq!(latest(&run).unwrap().step, 20);
    }

    #[test]
    fn a_checksum_is_the_same_for_a_file_and_its_bytes() {
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

//! Imports latents and texts that another program prepared into a new store, without running code in pickles.

mod source;
#[cfg(test)]
mod tests;

use crate::store::{
    ConditionSpec, FrameSpec, Head, INDEX, Line, PictureSpec, SPEC, StoreSpec, TensorLocation, TextSpec, VaeSpec,
    write_index,
};
use crate::{IMAGE, TensorSum};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{ConditionKind, Conditioning};
use rundir::{ErrorCode, Failure, WholeFolder, write_toml, xxh3_hex};
use serde::Serialize;
use source::Prepared;
use std::collections::HashMap;
use std::fs;
use weights::{
    Dtype, NewTensorFile, OnProgress, StoredTensor, TensorToWrite, WrittenFiles, destination, write_tensor_files,
};

/// The size of a shard in bytes. A shard is closed before it would grow beyond this.
const SHARD: u64 = 2_000_000_000;

/// The value of [`FrameSpec::mode`] and [`PictureSpec::crop`] in an imported store: another program made its latents, with settings that are
/// not known.
pub(crate) const IMPORTED: &str = "imported";

/// The options of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportRequest {
    /// The index of a data set of ttt-video-dit, or the folder that finetrainers or cogvideox-factory prepared.
    pub index: Utf8PathBuf,
    /// The folder that paths of an index are relative to. The default is the folder of the index.
    pub root: Option<Utf8PathBuf>,
    /// The folder to create.
    pub target: Utf8PathBuf,
    /// The number of channels of a latent. A tensor with twice as many channels holds means and log-variances.
    pub channels: usize,
    /// Whether clips with values that are NaN or infinite are refused or left out.
    pub not_finite: NotFiniteClips,
}

/// The choice for clips whose latent or text has values that are NaN or infinite.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NotFiniteClips {
    /// The import fails and names them.
    #[default]
    Refuse,
    /// They are left out.
    Drop,
}

/// A planned import, with every file that it will write.
#[derive(Debug, Clone)]
pub struct ImportPlan {
    /// The folder to create.
    pub target: Utf8PathBuf,
    /// The number of samples.
    pub samples: usize,
    source: Utf8PathBuf,
    files: Vec<NewTensorFile>,
    spec: StoreSpec,
    head: Head,
    lines: Vec<Line>,
    not_finite: NotFiniteClips,
}

/// A completed import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// The index of the new store.
    pub index: Utf8PathBuf,
    /// The number of samples.
    pub samples: usize,
    /// The number of shards.
    pub files: usize,
    /// The size of all files.
    pub bytes: u64,
    /// The clips that were left out, because they have values that are NaN or infinite.
    pub dropped: Vec<NotFiniteClip>,
}

/// A clip that has values that are NaN or infinite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotFiniteClip {
    /// The id of the clip.
    pub id: String,
    /// The file of its latent.
    pub source: Utf8PathBuf,
    /// The number of such values in its latent, its texts and the latent of its image.
    pub values: u64,
}

/// Plans an import. Reads only headers and pickles, and writes nothing.
///
/// # Errors
/// A file cannot be read or imported; the failure names the first such file and the reason.
pub fn plan_import(request: &ImportRequest) -> Result<ImportPlan, Failure> {
    if !request.index.exists() {
        let fix = "name the index of a data set of ttt-video-dit, or the folder that finetrainers or cogvideox-factory prepared";
        let what = format!("cannot import {}", request.index);
        return Err(Failure::new(ErrorCode::InvalidDataset, what, "it does not exist", fix));
    }
    let (program, clips) = source::read(&request.index, request.root.as_deref(), request.channels)?;
    let spec = spec(program, &clips, request)?;
    let (mut latents, mut texts) = (Shards::new("latents"), Shards::new("texts"));
    let mut known: HashMap<Utf8PathBuf, (TensorLocation, String)> = HashMap::new();
    let mut lines = Vec::with_capacity(clips.len());
    for clip in clips {
        let content = content(&clip.source, &request.index)?;
        let shape = clip.latent.shape.clone();
        let latent = latents.push(&clip.id, clip.latent);
        let image = clip.image.map(|image| (IMAGE.to_owned(), latents.push(&format!("{}/{IMAGE}", clip.id), image)));
        let (mut text, mut text_keys) = (Vec::new(), Vec::new());
        for (path, tensor) in clip.texts {
            let (place, key) = match known.get(&path) {
                Some(known) => known.clone(),
                None => {
                    let key = content_key(&path, &request.index)?;
                    let new = (texts.push(&key, tensor), key);
                    known.insert(path, new.clone());
                    new
                }
            };
            text.push(place);
            text_keys.push(key);
        }
        lines.push(Line {
            latent_key: spec.latent_key(&content),
            id: clip.id,
            source: clip.source,
            content,
            times: Vec::new(),
            bucket: format!("{}x{}x{}", shape[0], shape[2], shape[3]),
            drawn: shape[1] == request.channels,
            shape,
            caption: clip.caption,
            latent,
            extra: image.into_iter().collect(),
            text,
            text_keys,
        });
    }
    let head = Head {
        schema: spec.schema,
        clips: lines.len(),
        spec: spec.identity(),
        queue: String::new(),
        empty_text: None,
        empty_key: String::new(),
    };
    let files = latents.files.into_iter().chain(texts.files).collect();
    let (target, source, samples) = (request.target.clone(), request.index.clone(), lines.len());
    Ok(ImportPlan { target, samples, source, files, spec, head, lines, not_finite: request.not_finite })
}

/// Checks that all texts have the same shape, and returns the specification of the new store. Settings of the other program that are
/// not known are empty or 0.
fn spec(program: &str, clips: &[Prepared], request: &ImportRequest) -> Result<StoreSpec, Failure> {
    let mut texts = clips.iter().flat_map(|clip| &clip.texts);
    let (len, dim) = texts.next().map_or((0, 0), |(_, text)| (text.shape[0], text.shape[1]));
    if let Some((path, text)) = texts.find(|(_, text)| text.shape != [len, dim]) {
        return Err(Failure::new(
            ErrorCode::InvalidDataset,
            format!("{path} cannot be imported"),
            format!("it has shape {:?}, and the first text has [{len}, {dim}]", text.shape),
            "encode all texts with the same length and the same encoder",
        ));
    }
    let name = format!("imported from {program}");
    let unknown = String::new;
    let vae = VaeSpec {
        name: name.clone(),
        identity: unknown(),
        channels: request.channels,
        scaling_factor: 0.0,
        dtype: unknown(),
    };
    // Images of cogvideox-factory are encoded without noise.
    let condition = Conditioning { kind: ConditionKind::Image, image_noise: false, ..Conditioning::default() };
    let condition = if clips.iter().any(|clip| clip.image.is_some()) { ConditionSpec::of(&condition)? } else { None };
    let spec = StoreSpec::new(
        FrameSpec { mode: IMPORTED.into(), count: 0, fps: None, stride: 1, seed: 0 },
        PictureSpec { width: 0, height: 0, crop: IMPORTED.into(), colour_rule: unknown() },
        vae,
        TextSpec { name, tokenizer: unknown(), encoder: unknown(), len, dim, dtype: unknown() },
    );
    Ok(StoreSpec { condition, ..spec })
}

/// Identifies a file by its path below the source and its size. Hashing the content would read terabytes a second time.
fn content(path: &Utf8Path, source: &Utf8Path) -> Result<String, Failure> {
    let meta = fs::metadata(path).map_err(|e| {
        Failure::new(ErrorCode::of_io(&e), format!("cannot read {path}"), e.to_string(), "check that it exists")
    })?;
    let folder = if source.is_dir() { source } else { source.parent().unwrap_or(Utf8Path::new("")) };
    let name = path.strip_prefix(folder).unwrap_or(path);
    Ok(xxh3_hex(format!("{name} {}", meta.len()).as_bytes()))
}

fn content_key(path: &Utf8Path, source: &Utf8Path) -> Result<String, Failure> {
    Ok(format!("imported-{}", content(path, source)?))
}

/// Shards of one kind of tensors, in order.
struct Shards {
    kind: &'static str,
    files: Vec<NewTensorFile>,
    size: u64,
}

impl Shards {
    fn new(kind: &'static str) -> Self {
        Self { kind, files: Vec::new(), size: 0 }
    }

    fn push(&mut self, name: &str, tensor: StoredTensor) -> TensorLocation {
        let StoredTensor { dtype, shape, spans } = tensor;
        let dtype: Dtype = dtype;
        let tensor = TensorToWrite::copied(name, &shape, dtype, spans);
        if self.files.is_empty() || self.size + tensor.bytes() > SHARD {
            self.files.push(NewTensorFile::new(format!("{}-{:05}.safetensors", self.kind, self.files.len())));
            self.size = 0;
        }
        self.size += tensor.bytes();
        let file = self.files.last_mut().expect("a file was pushed");
        file.tensors.push(tensor);
        TensorLocation { shard: file.name.clone(), name: name.to_owned(), xxh3: None }
    }
}

impl ImportPlan {
    /// Returns the number of bytes of the shards to write.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(NewTensorFile::bytes).sum()
    }

    /// Executes the plan. On success the target is complete; on failure it is unchanged.
    ///
    /// # Errors
    /// The target exists (with `force`: and is not an earlier import), the disk has too little space, a file cannot be read or written, or
    /// a clip has values that are not finite.
    pub fn execute(&self, force: bool, progress: OnProgress<'_>) -> Result<Imported, Failure> {
        destination::check(&self.target, &[&self.source], force)?;
        destination::check_space(&self.target, self.bytes())?;
        let folder = WholeFolder::beside(&self.target);
        let _lock = destination::lock(&folder)?;
        folder.prepare()?;
        let done = self.fill(&folder, progress);
        if done.is_err() {
            // The first failure is the one to report. The next attempt removes the partial folder.
            let _ = folder.abandon();
        }
        done
    }

    fn fill(&self, folder: &WholeFolder, progress: OnProgress<'_>) -> Result<Imported, Failure> {
        let written = write_tensor_files(folder.dir(), &self.files, progress)?;
        let (lines, dropped) = self.finite_lines(&written)?;
        write_toml(&folder.dir().join(SPEC), &self.spec)?;
        let (samples, head) = (lines.len(), Head { clips: lines.len(), ..self.head.clone() });
        write_index(folder.dir(), &head, lines.into_iter().map(Ok))?;
        folder.commit()?;
        let index = self.target.join(INDEX);
        Ok(Imported { index, samples, files: self.files.len(), bytes: self.bytes(), dropped })
    }

    /// Returns the lines of the index with the checksums of their tensors, and the clips that are left out.
    fn finite_lines(&self, written: &WrittenFiles) -> Result<(Vec<Line>, Vec<NotFiniteClip>), Failure> {
        let tensors = self.files.iter().flat_map(|file| file.tensors.iter().map(|tensor| (&file.name, &tensor.name)));
        let sums: HashMap<(&String, &String), u64> = tensors.zip(written.tensors.iter().copied()).collect();
        let bad: HashMap<&str, u64> =
            written.not_finite.iter().map(|found| (found.tensor.as_str(), found.values)).collect();
        let (mut lines, mut dropped) = (Vec::with_capacity(self.lines.len()), Vec::new());
        for mut line in self.lines.iter().cloned() {
            let mut values = 0;
            for place in std::iter::once(&mut line.latent).chain(line.extra.values_mut()).chain(&mut line.text) {
                place.xxh3 = sums.get(&(&place.shard, &place.name)).copied().and_then(TensorSum::new);
                values += bad.get(place.name.as_str()).unwrap_or(&0);
            }
            match values {
                0 => lines.push(line),
                _ => dropped.push(NotFiniteClip { id: line.id, source: line.source, values }),
            }
        }
        if dropped.is_empty() || self.not_finite == NotFiniteClips::Drop && !lines.is_empty() {
            return Ok((lines, dropped));
        }
        let clip = |clip: &NotFiniteClip| format!("'{}' ({}: {})", clip.id, clip.source, units::grouped(clip.values));
        let fix = match lines.is_empty() {
            true => "prepare the data set again: no clip is usable",
            false => "prepare these clips again, or leave them out: add --drop-not-finite to the command",
        };
        Err(Failure::new(
            ErrorCode::NotFinite,
            format!("cannot import {}", self.source),
            format!(
                "{} of {} {} values that are NaN or infinite: {}",
                units::grouped(dropped.len() as u64),
                units::counted(self.lines.len(), "clip"),
                if dropped.len() == 1 { "has" } else { "have" },
                units::listed(&dropped, 5, clip)
            ),
            fix,
        ))
    }
}

//! Imports a dataset of ttt-video-dit: converts every pickle to a safetensors file and writes a new index.
//!
//! Source formats: `vid_emb` is one tensor `[T, 2C, H, W]` of means and log-variances (or `[T, C, H, W]`, a latent),
//! `text_chunk_emb` a list of tensors `[t, width]`, one per segment, each in a file of `torch.save` or of safetensors.

use crate::index::DTYPES;
use crate::{Index, LATENT, MOMENTS, Sample, TEXT};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure, WholeFolder, write_atomic};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::Arc;
use weights::{
    Files, Header, NewTensorFile, OnProgress, StoredTensor, TensorToWrite, destination, is_torch_file,
    open_torch_tensor, tensors_of_header, write_tensor_files,
};

/// The name of an index within its folder.
const INDEX: &str = "index.jsonl";

/// The options of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportRequest {
    /// The index of the dataset.
    pub index: Utf8PathBuf,
    /// The folder that relative paths start from. The default is the folder of the index.
    pub root: Option<Utf8PathBuf>,
    /// The folder to create.
    pub target: Utf8PathBuf,
    /// The number of channels of a latent. A file with twice as many channels holds means and log-variances.
    pub channels: usize,
}

/// A planned import that fixes every file of the output.
#[derive(Debug, Clone)]
pub struct ImportPlan {
    /// The folder to create.
    pub target: Utf8PathBuf,
    /// The number of samples.
    pub samples: usize,
    source: Utf8PathBuf,
    files: Vec<NewTensorFile>,
    index: String,
}

/// A completed import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// The new index.
    pub index: Utf8PathBuf,
    /// The number of samples.
    pub samples: usize,
    /// The number of files with tensors.
    pub files: usize,
    /// The size of all files.
    pub bytes: u64,
}

/// A line of the new index.
#[derive(Serialize)]
struct Line<'a> {
    vid_emb: &'a str,
    text_chunk_emb: Vec<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    caption: &'a str,
}

/// Plans an import. Reads only headers and pickles, and writes nothing.
///
/// # Errors
/// Names the first line that cannot be imported, its file, and why.
pub fn plan_import(request: &ImportRequest) -> Result<ImportPlan, Failure> {
    let folder = request.index.parent().unwrap_or(Utf8Path::new(""));
    let source = Index::open_in(&request.index, request.root.as_deref().unwrap_or(folder))?;
    let mut import =
        Importing { request, source: &source, disk: Files::default(), files: Vec::new(), names: HashMap::new() };
    let (width, mut index) = (source.samples.len().to_string().len().max(6), String::new());
    for (number, sample) in source.samples.iter().enumerate() {
        let latent = import.latent(sample, &format!("{number:0width$}.latent.safetensors"))?;
        let texts: Vec<String> = (sample.text.iter().enumerate())
            .map(|(chunk, path)| import.text(sample, path, &format!("{number:0width$}.text-{chunk:02}.safetensors")))
            .collect::<Result<_, _>>()?;
        let texts = texts.iter().map(String::as_str).collect();
        let line = Line { vid_emb: &latent, text_chunk_emb: texts, caption: &sample.caption };
        index += &serde_json::to_string(&line).expect("strings can be written as JSON");
        index.push('\n');
    }
    let (files, samples) = (import.files, source.samples.len());
    Ok(ImportPlan { target: request.target.clone(), samples, source: request.index.clone(), files, index })
}

/// The expected shape or the reason of a failure, and the hint.
type Refused = (String, String);

/// The state of planning an import.
struct Importing<'a> {
    request: &'a ImportRequest,
    source: &'a Index,
    disk: Files,
    files: Vec<NewTensorFile>,
    /// The new name of every planned latent and text, so that a file that samples share is written once.
    names: HashMap<(&'static str, Utf8PathBuf), String>,
}

impl Importing<'_> {
    fn latent(&mut self, sample: &Sample, name: &str) -> Result<String, Failure> {
        let channels = self.request.channels;
        self.file(sample, (LATENT, &sample.latent), name, &|shape| match shape {
            [_, c, _, _] if *c == channels => Ok(LATENT),
            [_, c, _, _] if *c == 2 * channels => Ok(MOMENTS),
            [_, c, _, _] => Err((
                format!("[frames, {channels} or {} channels, rows, columns]", 2 * channels),
                format!("if the latents have {c} channels, set --channels {c}"),
            )),
            _ => Err((
                format!("[frames, {channels} or {} channels, rows, columns]", 2 * channels),
                "encode the video again, without a batch axis".into(),
            )),
        })
    }

    fn text(&mut self, sample: &Sample, path: &Utf8Path, name: &str) -> Result<String, Failure> {
        self.file(sample, (TEXT, path), name, &|shape| match shape {
            [_, _] => Ok(TEXT),
            _ => Err(("[tokens, width]".into(), "save the text of each segment to its own file".into())),
        })
    }

    /// Plans the import of a file under a new name. `kind` maps the shape of its tensor to the tensor's name.
    fn file(
        &mut self,
        sample: &Sample,
        (what, path): (&'static str, &Utf8Path),
        name: &str,
        kind: &dyn Fn(&[usize]) -> Result<&'static str, Refused>,
    ) -> Result<String, Failure> {
        let key = (what, path.to_owned());
        if let Some(known) = self.names.get(&key) {
            return Ok(known.clone());
        }
        let code = if path.exists() { ErrorCode::Malformed } else { ErrorCode::NotFound };
        let bad =
            |why: String, fix: String| Failure::new(code, self.source.what(sample, "cannot be imported"), why, fix);
        let stored = only_tensor(&mut self.disk, path).map_err(|(why, fix)| bad(format!("{path}: {why}"), fix))?;
        if !DTYPES.contains(&stored.dtype) {
            let why = format!("{path} has dtype {}, expected F32, F16 or BF16", stored.dtype);
            return Err(bad(why, "save the tensor as F32, F16 or BF16".into()));
        }
        let tensor = kind(&stored.shape)
            .map_err(|(wanted, fix)| bad(format!("{path} has shape {:?}, expected {wanted}", stored.shape), fix))?;
        let target = TensorToWrite::copied(tensor, &stored.shape, stored.dtype, stored.spans);
        self.files.push(NewTensorFile { name: name.to_owned(), metadata: BTreeMap::new(), tensors: vec![target] });
        self.names.insert(key, name.to_owned());
        Ok(name.to_owned())
    }
}

/// Returns the only tensor of a file, or the reason why there is none and a hint.
fn only_tensor(disk: &mut Files, path: &Utf8Path) -> Result<StoredTensor, Refused> {
    let again = || format!("recreate {path}, or copy it again from its source");
    if is_torch_file(path) {
        let len = fs::metadata(path).map_err(|e| (e.to_string(), again()))?.len();
        return open_torch_tensor(disk, &Arc::from(path), 0, len).map_err(|why| (why, again()));
    }
    let header = Header::read(path).map_err(|error| {
        let failure = Failure::from(error);
        let why =
            if path.exists() { format!("{}; it is not a torch.save file either", failure.why) } else { failure.why };
        (why, failure.fix)
    })?;
    match <[StoredTensor; 1]>::try_from(tensors_of_header(&header).into_values().collect::<Vec<_>>()) {
        Ok([only]) => Ok(only),
        Err(tensors) => {
            Err((format!("it has {} tensors, expected 1", tensors.len()), "save each tensor to its own file".into()))
        }
    }
}

impl ImportPlan {
    /// Returns the number of bytes to write.
    pub fn bytes(&self) -> u64 {
        self.index.len() as u64 + self.files.iter().map(NewTensorFile::bytes).sum::<u64>()
    }

    /// Executes the plan. On success the target is complete; on failure it is unchanged.
    ///
    /// # Errors
    /// Fails when the target exists (with `force`, when it is not an earlier import), or when an I/O error occurs.
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
        write_tensor_files(folder.dir(), &self.files, progress)?;
        write_atomic(&folder.dir().join(INDEX), self.index.as_bytes())?;
        folder.commit()?;
        let index = self.target.join(INDEX);
        Ok(Imported { index, samples: self.samples, files: self.files.len(), bytes: self.bytes() })
    }
}

#[cfg(test)]
mod tests;

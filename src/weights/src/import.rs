//! Brings a dataset as ttt-video-dit writes it into the form that training reads: every pickle becomes a safetensors file,
//! and the index a new one.
//!
//! Source forms: `vid_emb` is one tensor `[T, 2C, H, W]` of means and log-variances (or `[T, C, H, W]`, a latent),
//! `text_chunk_emb` a list of tensors `[t, width]`, one per segment, each in a file of `torch.save` or of safetensors.

use crate::dataset::DTYPES;
use crate::safetensors::Header;
use crate::stream::{Segment, Target};
use crate::tensor_spans::{Files, StoredTensor, of_header};
use crate::write::{NewFile, OnProgress, write_files};
use crate::{Index, LATENT, MOMENTS, Sample, TEXT, destination, torch_file};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure, WholeFolder, write_atomic};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::Arc;

/// The name of an index within its folder.
const INDEX: &str = "index.jsonl";

/// What to import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportRequest {
    /// The index of the dataset.
    pub index: Utf8PathBuf,
    /// Where its relative paths start; at its own folder when not given.
    pub root: Option<Utf8PathBuf>,
    /// The folder that is made.
    pub target: Utf8PathBuf,
    /// Channels of a latent; a file with twice as many holds means and log-variances.
    pub channels: usize,
}

/// An import, down to every file.
#[derive(Debug, Clone)]
pub struct ImportPlan {
    /// The folder that is made.
    pub target: Utf8PathBuf,
    /// The number of samples.
    pub samples: usize,
    source: Utf8PathBuf,
    files: Vec<NewFile>,
    index: String,
}

/// An import that was carried out.
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

/// Plans an import. Reads what says where the numbers lie, and writes nothing.
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
        index += &serde_json::to_string(&line).expect("texts have a place in JSON");
        index.push('\n');
    }
    let (files, samples) = (import.files, source.samples.len());
    Ok(ImportPlan { target: request.target.clone(), samples, source: request.index.clone(), files, index })
}

/// What was wanted or why it cannot be, and what to do.
type Refused = (String, String);

/// An import as it is being planned.
struct Importing<'a> {
    request: &'a ImportRequest,
    source: &'a Index,
    disk: Files,
    files: Vec<NewFile>,
    /// The new name of every latent and text that was met: what samples share is written once.
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
                format!("if {c} channels are right, say so: --channels {c}"),
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
            _ => Err(("[tokens, width]".into(), "write one text of one segment to a file".into())),
        })
    }

    /// Takes a file over under a new name. `kind` tells what its tensor is by its shape.
    fn file(
        &mut self,
        sample: &Sample,
        (what, path): (&'static str, &Utf8Path),
        name: &str,
        kind: &dyn Fn(&[usize]) -> Result<&'static str, Refused>,
    ) -> Result<String, Failure> {
        let met = (what, path.to_owned());
        if let Some(known) = self.names.get(&met) {
            return Ok(known.clone());
        }
        let bad = |why: String, fix: String| {
            Failure::new(ErrorCode::Malformed, self.source.what(sample, "cannot be imported"), why, fix)
        };
        let stored = only_tensor(&mut self.disk, path).map_err(|(why, fix)| bad(format!("{path}: {why}"), fix))?;
        if !DTYPES.contains(&stored.dtype) {
            let why = format!("{path} holds {}, wanted is F32, F16 or BF16", stored.dtype);
            return Err(bad(why, "write it as one of those".into()));
        }
        let tensor = kind(&stored.shape)
            .map_err(|(wanted, fix)| bad(format!("{path} holds {:?}, wanted is {wanted}", stored.shape), fix))?;
        let segments = stored.spans.into_iter().map(Segment::File).collect();
        let target = Target::new(tensor, &stored.shape, stored.dtype, stored.dtype, segments);
        self.files.push(NewFile { name: name.to_owned(), metadata: BTreeMap::new(), tensors: vec![target] });
        self.names.insert(met, name.to_owned());
        Ok(name.to_owned())
    }
}

/// The one tensor of a file, or why there is none and what to do.
fn only_tensor(disk: &mut Files, path: &Utf8Path) -> Result<StoredTensor, Refused> {
    let again = || format!("make {path} again, or copy it again from where it came");
    if torch_file::is_one(path) {
        let len = fs::metadata(path).map_err(|e| (e.to_string(), again()))?.len();
        return torch_file::open_tensor(disk, &Arc::from(path), 0, len).map_err(|why| (why, again()));
    }
    let header = Header::read(path).map_err(|error| {
        let failure = Failure::from(error);
        let why = if path.exists() { format!("{}, and no file of torch.save", failure.why) } else { failure.why };
        (why, failure.fix)
    })?;
    match <[StoredTensor; 1]>::try_from(of_header(&header).into_values().collect::<Vec<_>>()) {
        Ok([only]) => Ok(only),
        Err(tensors) => Err((format!("it holds {} tensors", tensors.len()), "write one tensor to a file".into())),
    }
}

impl ImportPlan {
    /// The bytes that will be written.
    pub fn bytes(&self) -> u64 {
        self.index.len() as u64 + self.files.iter().map(NewFile::bytes).sum::<u64>()
    }

    /// Carries the plan out: the folder is there whole afterwards, or as it was before.
    ///
    /// # Errors
    /// When there is something at the target (with `force`, when it is no earlier import), or what the disk said.
    pub fn execute(&self, force: bool, progress: OnProgress<'_>) -> Result<Imported, Failure> {
        destination::check(&self.target, &[&self.source], force)?;
        destination::check_space(&self.target, self.bytes())?;
        let folder = WholeFolder::beside(&self.target);
        let _lock = destination::lock(&folder)?;
        folder.prepare()?;
        let done = self.fill(&folder, progress);
        if done.is_err() {
            // The failure is what matters; what is left is cleared by the next attempt.
            let _ = folder.abandon();
        }
        done
    }

    fn fill(&self, folder: &WholeFolder, progress: OnProgress<'_>) -> Result<Imported, Failure> {
        write_files(folder.dir(), &self.files, progress)?;
        write_atomic(&folder.dir().join(INDEX), self.index.as_bytes())?;
        folder.commit()?;
        let index = self.target.join(INDEX);
        Ok(Imported { index, samples: self.samples, files: self.files.len(), bytes: self.bytes() })
    }
}

#[cfg(test)]
mod tests;

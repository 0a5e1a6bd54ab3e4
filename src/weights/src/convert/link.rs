//! Makes hard links in a new checkpoint to unchanged files of its source, so that their bytes are not copied.

use super::ConvertRequest;
use crate::finite::Scan;
use crate::location::SourceKind;
use crate::source::WeightsSource;
use crate::stream::{Segment, TensorToWrite};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::sync::Arc;

/// A file of the source that the target links to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Linked {
    /// The name of the link in the target.
    pub name: String,
    /// The path of the file with symbolic links resolved.
    pub source: Utf8PathBuf,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// The tensors of the target in this file, each with its name in the file.
    pub tensors: Vec<(String, TensorToWrite)>,
}

/// Checks that `--link` is used only to convert a diffusers model to a checkpoint: only then can files stay unchanged.
pub(super) fn check(request: &ConvertRequest, source: &WeightsSource) -> Result<(), Failure> {
    let theirs = matches!(source.location.kind, SourceKind::Diffusers | SourceKind::Pipeline);
    if !request.link || (theirs && request.to == super::Form::Internal) {
        return Ok(());
    }
    Err(Failure::new(
        ErrorCode::InvalidArgument,
        format!("cannot convert {}", request.source),
        "--link only supports the conversion of a diffusers model to a checkpoint",
        "omit --link",
    ))
}

/// Removes from `body` the tensors of files that can be linked, and returns those files. A file can be linked when
/// every tensor that the target reads from it is unchanged. `keys` maps names in the target to names in the source.
pub(super) fn linked_files(
    body: &mut Vec<TensorToWrite>,
    keys: &BTreeMap<String, String>,
) -> Result<Vec<Linked>, Failure> {
    let changed: BTreeSet<Arc<Utf8Path>> =
        body.iter().filter(|target| unchanged_file(target).is_none()).flat_map(files).cloned().collect();
    let linked = |target: &TensorToWrite| unchanged_file(target).is_some_and(|file| !changed.contains(file));
    let mut by_file: BTreeMap<Arc<Utf8Path>, Vec<(String, TensorToWrite)>> = BTreeMap::new();
    for target in body.extract_if(.., |target| linked(target)) {
        if let Some(file) = unchanged_file(&target).cloned() {
            by_file.entry(file).or_default().push((keys[&target.name].clone(), target));
        }
    }
    let count = by_file.len();
    let named = by_file.into_iter().enumerate().map(|(n, (file, tensors))| {
        let cannot = |e: std::io::Error| {
            Failure::new(ErrorCode::NotFound, format!("cannot find {file}"), e.to_string(), "check the path")
        };
        let source = file.canonicalize_utf8().map_err(cannot)?;
        let bytes = fs::metadata(&source).map_err(cannot)?.len();
        Ok(Linked { name: format!("linked-{:05}-of-{count:05}.safetensors", n + 1), source, bytes, tensors })
    });
    named.collect()
}

/// Returns the source file of a target tensor whose bytes are one unchanged range of that file. A checkpoint has safetensors only.
fn unchanged_file(target: &TensorToWrite) -> Option<&Arc<Utf8Path>> {
    let is_unchanged = target.from == target.to && target.merge.is_none();
    match &target.segments[..] {
        [Segment::File(span)] if is_unchanged && span.file.as_str().ends_with(".safetensors") => Some(&span.file),
        _ => None,
    }
}

fn files(target: &TensorToWrite) -> impl Iterator<Item = &Arc<Utf8Path>> {
    target.segments.iter().filter_map(|segment| match segment {
        Segment::File(span) => Some(&span.file),
        _ => None,
    })
}

impl Linked {
    /// Returns a scan of the tensors of the target for values that are not finite.
    pub fn scan(&self) -> Scan {
        Scan::new(self.tensors.iter().filter_map(|(key, tensor)| match &tensor.segments[..] {
            [Segment::File(span)] => Some((key.as_str(), tensor.from, span)),
            _ => None,
        }))
    }

    /// Creates the hard link in a folder.
    pub fn link(&self, dir: &Utf8Path) -> Result<(), Failure> {
        // Sync the file first: earlier writes to it may still be in the page cache only.
        let linked = File::open(&self.source).and_then(|file| file.sync_all());
        linked.and_then(|()| fs::hard_link(&self.source, dir.join(&self.name))).map_err(|error| {
            let why = match error.kind() {
                ErrorKind::CrossesDevices => "it is on another file system".to_owned(),
                _ => error.to_string(),
            };
            Failure::new(
                ErrorCode::Io,
                format!("cannot link to {}", self.source),
                why,
                "omit --link to copy the tensors",
            )
        })
    }
}

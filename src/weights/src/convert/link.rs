//! Files of the source that a checkpoint takes over as they are: under a second name, so that none of their bytes is
//! written.

use super::ConvertRequest;
use crate::source::{Source, SourceKind};
use crate::stream::{Segment, Target};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::sync::Arc;

/// A file that is taken over.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Linked {
    /// Its name in the target.
    pub name: String,
    /// The file itself, which no link stands for.
    pub source: Utf8PathBuf,
    /// Its size.
    pub bytes: u64,
    /// What the target has of it, each with its name in the file.
    pub tensors: Vec<(String, Target)>,
}

/// Refuses to take files over where their form is another.
pub(super) fn check(request: &ConvertRequest, source: &Source) -> Result<(), Failure> {
    let theirs = matches!(source.location.kind, SourceKind::Diffusers | SourceKind::Pipeline);
    if !request.link || (theirs && request.to == super::Form::Internal) {
        return Ok(());
    }
    Err(Failure::new(
        ErrorCode::InvalidArgument,
        format!("cannot convert {}", request.source),
        "only the files of a diffusers model can be taken over, and only into a checkpoint",
        "leave out --link",
    ))
}

/// Takes the tensors out of `body` that need not be written: those of files from which nothing but whole tensors goes over,
/// byte for byte. `keys` has the name in the source of each.
pub(super) fn taken_over(body: &mut Vec<Target>, keys: &BTreeMap<String, String>) -> Result<Vec<Linked>, Failure> {
    let changed: BTreeSet<Arc<Utf8Path>> =
        body.iter().filter(|target| as_it_is(target).is_none()).flat_map(files).cloned().collect();
    let linked = |target: &Target| as_it_is(target).is_some_and(|file| !changed.contains(file));
    let mut by_file: BTreeMap<Arc<Utf8Path>, Vec<(String, Target)>> = BTreeMap::new();
    for target in body.extract_if(.., |target| linked(target)) {
        if let Some(file) = as_it_is(&target).cloned() {
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

/// The file of which a target is one whole tensor, as it lies there.
fn as_it_is(target: &Target) -> Option<&Arc<Utf8Path>> {
    match &target.segments[..] {
        [Segment::File(span)] if target.from == target.to && target.merge.is_none() => Some(&span.file),
        _ => None,
    }
}

fn files(target: &Target) -> impl Iterator<Item = &Arc<Utf8Path>> {
    target.segments.iter().filter_map(|segment| match segment {
        Segment::File(span) => Some(&span.file),
        _ => None,
    })
}

impl Linked {
    /// Gives the file its second name in a folder.
    pub fn link(&self, dir: &Utf8Path) -> Result<(), Failure> {
        // What was written to it may not be on the disk yet.
        let linked = File::open(&self.source).and_then(|file| file.sync_all());
        linked.and_then(|()| fs::hard_link(&self.source, dir.join(&self.name))).map_err(|error| {
            let why = match error.kind() {
                ErrorKind::CrossesDevices => "it lies on another disk".to_owned(),
                _ => error.to_string(),
            };
            Failure::new(
                ErrorCode::Io,
                format!("cannot take over {}", self.source),
                why,
                "leave out --link: its tensors are copied then",
            )
        })
    }
}

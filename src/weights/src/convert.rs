//! Converting weights: planned from headers alone, so that it can be looked at, then carried out as planned.

mod link;
mod lora;
mod model;

use crate::lora::{Lora, LoraForm};
use crate::report::Report;
use crate::source::{Source, SourceKind};
use crate::write::{Doing, NewFile, OnProgress, Progress, stopped, write_files};
use crate::{Dtype, destination};
use camino::{Utf8Path, Utf8PathBuf};
use link::Linked;
use recipe::{Layer, Mesh, Model};
use rundir::{
    ErrorCode, Failure, FileSum, LogicalTensor, Manifest, RunId, SCHEMA, Slice, Staging, TrainState, WholeFolder,
    write_atomic,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use xxhash_rust::xxh3::Xxh3;

/// What weights are converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// A checkpoint that the trainer starts from.
    Internal,
    /// A folder that diffusers loads.
    Diffusers,
    /// An adapter, from an adapter.
    Lora(LoraForm),
}

/// A conversion as it is wished for.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvertRequest {
    /// What to convert.
    pub source: Utf8PathBuf,
    /// The folder to make.
    pub target: Utf8PathBuf,
    /// What to convert it to.
    pub to: Form,
    /// The layers that the target has besides attention; as the source has them, when nobody said.
    pub layer: Option<Layer>,
    /// The input channels of the target; as many as the source has, when nobody said.
    pub in_channels: Option<usize>,
    /// The type of the parameters; that of the source, when nobody said.
    pub dtype: Option<Dtype>,
    /// Seeds the values of new layers.
    pub seed: u64,
    /// Tensors of the source that need not be used; `*` at the end stands for any rest.
    pub allow_unused: Vec<String>,
    /// Whether an earlier conversion may be replaced.
    pub force: bool,
    /// The size that files are kept to; a good one, when nobody said.
    pub shard_bytes: Option<u64>,
    /// Whether files are taken over that would be copied byte for byte: a second name for each, and one content.
    pub link: bool,
    /// An adapter that is added to the weights.
    pub merge: Option<Utf8PathBuf>,
    /// How much of the adapter is added.
    pub scale: f64,
}

impl ConvertRequest {
    /// A conversion that changes nothing but the form.
    pub fn new(source: impl Into<Utf8PathBuf>, target: impl Into<Utf8PathBuf>, to: Form) -> Self {
        Self {
            source: source.into(),
            target: target.into(),
            to,
            layer: None,
            in_channels: None,
            dtype: None,
            seed: 42,
            allow_unused: Vec::new(),
            force: false,
            shard_bytes: None,
            link: false,
            merge: None,
            scale: 1.0,
        }
    }
}

/// A conversion, down to every byte: what is shown is what is done.
#[derive(Debug, Clone)]
pub struct ConvertPlan {
    /// What is converted.
    pub source: Source,
    /// The folder that is made.
    pub target: Utf8PathBuf,
    /// What it is converted to.
    pub to: Form,
    /// The adapter that is added to it.
    pub merge: Option<Utf8PathBuf>,
    /// The model that the target is; none for an adapter.
    pub model: Option<Model>,
    /// What becomes of every tensor.
    pub report: Report,
    files: Vec<NewFile>,
    /// Files of the source that are taken over.
    links: Vec<Linked>,
    /// Small files beside them.
    texts: Vec<(String, String)>,
}

/// A conversion that was carried out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Converted {
    /// The folder that was made.
    pub target: Utf8PathBuf,
    /// The size of its files.
    pub bytes: u64,
    /// The number of its files with tensors.
    pub files: usize,
}

/// Plans a conversion. Reads headers only, writes nothing.
///
/// # Errors
/// When the source cannot be read or its tensors contradict its configuration. Tensors that are left over or missing are
/// no error yet: [`Report::check`] says so, and the report can be shown first.
pub fn plan_conversion(request: &ConvertRequest) -> Result<ConvertPlan, Failure> {
    let source = Source::open(&request.source)?;
    let refuse = |why: &str, fix: &str| {
        Err(Failure::new(ErrorCode::InvalidArgument, format!("cannot convert {}", request.source), why, fix))
    };
    if !request.scale.is_finite() {
        return refuse(&format!("{} is no scale for an adapter", request.scale), "give a number: --scale 1");
    }
    match (request.to, source.location.kind == SourceKind::Lora) {
        (Form::Lora(form), true) => lora::plan(request, source, form),
        (Form::Lora(_), false) => refuse("it is a model, and a model cannot become an adapter", "choose another --to"),
        (_, true) => refuse(
            "it is an adapter",
            "make another form of it (--to lora-…), or convert its model and merge it (--merge)",
        ),
        (_, false) => {
            let merge = request.merge.as_deref().map(Lora::open).transpose()?;
            model::plan(request, source, merge.as_ref())
        }
    }
}

impl ConvertPlan {
    /// The bytes that will be written.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(NewFile::bytes).sum()
    }

    /// The number of files with tensors.
    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Identifies the plan: two with the same fingerprint read the same places and write the same files.
    pub fn fingerprint(&self) -> String {
        rundir::xxh3_hex(
            format!("{:?}", (&self.target, self.to, &self.report, &self.files, &self.links, &self.texts)).as_bytes(),
        )
    }

    /// Makes every check that needs no tensor to be read: the report, the target's place, the space on its disk.
    ///
    /// # Errors
    /// The first that does not hold.
    pub fn check(&self, force: bool) -> Result<(), Failure> {
        self.report.check(self.source.location.path.as_str())?;
        let sources: Vec<&Utf8Path> =
            self.merge.iter().chain([&self.source.location.path]).map(|path| &**path).collect();
        destination::check(&self.target, &sources, force)?;
        destination::check_space(&self.target, self.bytes())
    }

    /// Carries the plan out: the target is there whole afterwards, or as it was before.
    ///
    /// `now_s` and `random` make the id that the new checkpoint carries.
    ///
    /// # Errors
    /// What [`ConvertPlan::check`] says, a checksum of the source that is wrong, or what the disk said.
    pub fn execute(
        &self,
        force: bool,
        now_s: f64,
        random: u32,
        progress: OnProgress<'_>,
    ) -> Result<Converted, Failure> {
        self.check(force)?;
        let folder = WholeFolder::beside(&self.target);
        let _lock = destination::lock(&folder)?;
        folder.prepare()?;
        let done = self.fill(&folder, now_s, random, progress);
        if done.is_err() {
            // The failure is what matters; what is left is cleared by the next attempt.
            let _ = folder.abandon();
        }
        done
    }

    /// The files of a checkpoint that are read, with the checksums that it says they have.
    fn summed(&self) -> Vec<(&FileSum, Utf8PathBuf)> {
        let Some(checkpoint) = &self.source.checkpoint else { return Vec::new() };
        let used: BTreeSet<&Utf8Path> =
            self.source.tensors.values().flat_map(|t| &t.spans).map(|span| &*span.file).collect();
        let files = checkpoint.manifest.files.iter().map(|wanted| (wanted, checkpoint.dir.join(&wanted.name)));
        files.filter(|(_, path)| used.contains(path.as_path())).collect()
    }

    /// Writes the tensors or takes their files over, and meanwhile compares the checksums of a checkpoint that they come from:
    /// damage is found before it is passed on, without reading everything twice in turn.
    fn write(&self, dir: &Utf8Path, progress: OnProgress<'_>) -> Result<Vec<FileSum>, Failure> {
        let files = self.summed();
        let checked: u64 = files.iter().map(|(wanted, _)| wanted.bytes).sum();
        let total = checked + self.links.iter().map(|linked| linked.bytes).sum::<u64>();
        self.links.iter().try_for_each(|linked| linked.link(dir))?;
        let (damaged, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let (tell, told) = channel();
        thread::scope(|scope| {
            let (damaged, stop) = (&damaged, &stop);
            let telling = |tell: Sender<u64>| {
                move |bytes| {
                    // Whoever stops listening has said so.
                    let _ = tell.send(bytes);
                    if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                }
            };
            let mut read = telling(tell.clone());
            let checking = scope.spawn(move || {
                let checked = verify(&files, &mut read);
                damaged.store(checked.is_err() && !stop.load(Ordering::Relaxed), Ordering::Relaxed);
                checked
            });
            let summing: Vec<_> = self
                .links
                .iter()
                .map(|linked| {
                    let mut read = telling(tell.clone());
                    scope.spawn(move || checksum(&linked.source, &mut read))
                })
                .collect();
            drop(tell);
            let written = write_files(dir, &self.files, &mut |written| match damaged.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => progress(written),
            });
            stop.fetch_or(written.is_err(), Ordering::Relaxed);
            let mut done = 0;
            for bytes in told {
                done += bytes;
                let broken = progress(Progress { doing: Doing::Checking, done, total }).is_break();
                stop.fetch_or(broken, Ordering::Relaxed);
            }
            let checked = checking.join().expect("checking does not panic");
            let summed = self.links.iter().zip(summing).map(|(linked, thread)| {
                let xxh3 = thread.join().expect("checking does not panic")?;
                Ok(FileSum { name: linked.name.clone(), bytes: linked.bytes, xxh3 })
            });
            // Writing ends with whatever went wrong first: damage, if that is what stopped it.
            let mut sums = match damaged.load(Ordering::Relaxed) {
                true => checked.and(written),
                false => written.and_then(|sums| checked.map(|()| sums)),
            }?;
            sums.extend(summed.collect::<Result<Vec<_>, Failure>>()?);
            Ok(sums)
        })
    }

    fn fill(
        &self,
        folder: &WholeFolder,
        now_s: f64,
        random: u32,
        progress: OnProgress<'_>,
    ) -> Result<Converted, Failure> {
        let dir = folder.dir();
        let sums = self.write(dir, progress)?;
        let bytes = sums.iter().map(|sum| sum.bytes).sum();
        let count = sums.len();
        let mut files = sums;
        for (name, text) in &self.texts {
            write_atomic(&dir.join(name), text.as_bytes())?;
            files.push(rundir::file_sum(&dir.join(name))?);
        }
        match self.to {
            Form::Diffusers | Form::Lora(_) => folder.commit()?,
            Form::Internal => {
                let id =
                    RunId::new(now_s, &format!("converted-{}", self.target.file_name().unwrap_or("weights")), random);
                Staging::alone(&self.target).commit(&untrained(), self.manifest(id, now_s, files))?;
            }
        }
        Ok(Converted { target: self.target.clone(), bytes, files: count })
    }

    fn manifest(&self, run: RunId, now_s: f64, files: Vec<FileSum>) -> Manifest {
        let written =
            self.files.iter().flat_map(|file| file.tensors.iter().map(|tensor| (&file.name, &tensor.name, tensor)));
        let linked =
            self.links.iter().flat_map(|file| file.tensors.iter().map(|(key, tensor)| (&file.name, key, tensor)));
        let tensors: Vec<LogicalTensor> = written
            .chain(linked)
            .map(|(file, key, tensor)| LogicalTensor {
                name: tensor.name.clone(),
                dtype: tensor.to.name().to_owned(),
                shape: tensor.shape.clone(),
                slices: vec![Slice {
                    file: file.clone(),
                    key: key.clone(),
                    start: 0,
                    len: tensor.shape.iter().map(|&d| d as u64).product(),
                    within: None,
                }],
            })
            .collect();
        Manifest {
            format: SCHEMA,
            run,
            attempt: 1,
            step: 0,
            saved_s: now_s,
            params: tensors.iter().filter_map(LogicalTensor::elements).sum(),
            mesh: Mesh { dp_replicate: 1, dp_shard: 1, tp: 1 },
            files,
            tensors,
        }
    }
}

/// Compares the checksums of files, as it tells.
fn verify(files: &[(&FileSum, Utf8PathBuf)], read: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<(), Failure> {
    files.iter().try_for_each(|(wanted, path)| {
        let found = checksum(path, read)?;
        if found == wanted.xxh3 {
            return Ok(());
        }
        Err(rundir::Error::Checksum { path: path.clone(), found, wanted: wanted.xxh3.clone() }.into())
    })
}

/// Reads a whole file, as it tells; returns its checksum as manifests have it.
fn checksum(path: &Utf8Path, read: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<String, Failure> {
    let io = |source| crate::Error::Io { path: path.to_owned(), source };
    let (mut file, mut sum, mut buffer) = (File::open(path).map_err(io)?, Xxh3::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(format!("{:016x}", sum.digest())),
            Ok(n) => {
                sum.update(&buffer[..n]);
                if read(n as u64).is_break() {
                    return Err(stopped());
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(io(error).into()),
        }
    }
}

/// The state of weights that were not trained here.
fn untrained() -> TrainState {
    TrainState {
        step: 0,
        samples_seen: 0,
        epoch: 0,
        position: 0,
        seed: 0,
        adam_step: 0,
        global_batch: 0,
        data_fingerprint: String::new(),
        bad_steps: 0,
    }
}

#[cfg(test)]
mod tests;

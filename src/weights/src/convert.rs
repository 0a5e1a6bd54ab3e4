//! Converts weights in two phases: the plan reads only headers and can be shown; the execution follows the plan exactly.

mod link;
mod lora;
mod model;

use crate::finite::NotFinite;
use crate::location::SourceKind;
use crate::lora::{LoraFile, LoraForm};
use crate::report::{Mapped, Report};
use crate::source::WeightsSource;
use crate::write::{Doing, NewTensorFile, OnProgress, WriteProgress, WrittenFiles, stopped, write_tensor_files};
use crate::{Dtype, destination};
use camino::{Utf8Path, Utf8PathBuf};
use link::Linked;
use recipe::{Layer, Mesh, Model, UseEma};
use rundir::{
    CONVERTED, CheckpointManifest, ErrorCode, Failure, FileSum, LogicalTensor, RunId, SCHEMA, Slice, Staging,
    TrainState, WholeFolder, open_regular, write_atomic,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use xxhash_rust::xxh3::Xxh3;

/// The target format of a conversion.
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

/// The options of a conversion.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvertRequest {
    /// The file or folder to convert.
    pub source: Utf8PathBuf,
    /// The folder to create.
    pub target: Utf8PathBuf,
    /// The target format.
    pub to: Form,
    /// The sequence layers (TTT) that the target has besides attention. By default, the layers of the source.
    pub layer: Option<Layer>,
    /// The input channels of the target. The default is the number of the source.
    pub in_channels: Option<usize>,
    /// The dtype of the parameters. By default, each tensor keeps the dtype of the source; F64 becomes F32.
    pub dtype: Option<Dtype>,
    /// The seed of the values of new layers.
    pub seed: u64,
    /// Tensors of the source that may stay unused. A `*` at the end matches any suffix.
    pub allow_unused: Vec<String>,
    /// Whether weights and adapters may have values that are NaN or infinite.
    pub allow_not_finite: bool,
    /// Whether the output of an earlier conversion may be replaced.
    pub force: bool,
    /// The largest size of a shard. The default depends on the target format.
    pub shard_bytes: Option<u64>,
    /// Whether files that would be copied byte for byte become hard links instead.
    pub link: bool,
    /// An adapter to merge into the weights.
    pub merge: Option<Utf8PathBuf>,
    /// The factor by which the merged adapter is scaled.
    pub scale: f64,
    /// Whether the source's moving average takes the place of its weights.
    pub ema: UseEma,
}

impl ConvertRequest {
    /// Creates a request that changes only the format.
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
            allow_not_finite: false,
            force: false,
            shard_bytes: None,
            link: false,
            merge: None,
            scale: 1.0,
            ema: UseEma::Auto,
        }
    }
}

/// A planned conversion that fixes every byte of the output.
#[derive(Debug, Clone)]
pub struct ConvertPlan {
    /// The source weights.
    pub source: WeightsSource,
    /// The folder to create.
    pub target: Utf8PathBuf,
    /// The target format.
    pub to: Form,
    /// The adapter that is merged into the weights.
    pub merge: Option<Utf8PathBuf>,
    /// The model of the target; `None` for an adapter.
    pub model: Option<Model>,
    /// The mapping of every tensor.
    pub report: Report,
    /// Whether values that are NaN or infinite are written.
    allow_not_finite: bool,
    files: Vec<NewTensorFile>,
    /// Files of the source that the target links to.
    links: Vec<Linked>,
    /// The names and contents of small text files beside the tensor files.
    texts: Vec<(String, String)>,
}

/// A completed conversion.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Converted {
    /// The created folder.
    pub target: Utf8PathBuf,
    /// The total size of the tensor files in bytes, linked files included.
    pub bytes: u64,
    /// The number of tensor files, linked files included.
    pub files: usize,
    /// The tensors with values that are not finite, if the request allows them.
    pub not_finite: Vec<NotFinite>,
}

/// Plans a conversion. Reads headers only, writes nothing.
///
/// # Errors
/// Fails when the source cannot be read or its tensors contradict its configuration. Unused and missing tensors are not
/// an error here, so that the report can be shown first; [`Report::check`] reports them.
pub fn plan_conversion(request: &ConvertRequest) -> Result<ConvertPlan, Failure> {
    let source = WeightsSource::open_average(&request.source, request.ema)?;
    let refuse = |why: &str, fix: &str| {
        Err(Failure::new(ErrorCode::InvalidArgument, format!("cannot convert {}", request.source), why, fix))
    };
    if !request.scale.is_finite() {
        return refuse(
            &format!("--scale is {}, which is not a finite number", request.scale),
            "set a number: --scale 1",
        );
    }
    // A checkpoint or run of this trainer may hold adapters.
    let has_base = source.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.manifest.base.is_some());
    match (request.to, has_base || source.location.kind == SourceKind::Lora) {
        (Form::Lora(form), true) => lora::plan(request, source, form),
        (Form::Lora(_), false) => {
            refuse("it is a model; only an adapter can be converted to an adapter", "choose another --to")
        }
        (_, true) => refuse(
            "it is an adapter, not a model",
            "convert it to another adapter format (--to lora-…), or convert its model and merge the adapter (--merge)",
        ),
        (_, false) => {
            let merge = request.merge.as_deref().map(LoraFile::open).transpose()?;
            let warning = merge.as_ref().and_then(|lora| lora.other_base(&source));
            let note = merge.as_ref().and_then(LoraFile::note).map(str::to_owned);
            let mut plan = model::plan(request, source, merge.as_ref())?;
            plan.report.notes.extend(warning.into_iter().chain(note));
            Ok(plan)
        }
    }
}

impl ConvertPlan {
    /// Returns the number of bytes to write, without linked files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(NewTensorFile::bytes).sum()
    }

    /// Returns the number of tensor files to write, without linked files.
    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Returns a hash that identifies the plan: plans with the same hash read the same file ranges and write the same files.
    pub fn fingerprint(&self) -> String {
        rundir::xxh3_hex(
            format!("{:?}", (&self.target, self.to, &self.report, &self.files, &self.links, &self.texts)).as_bytes(),
        )
    }

    /// Runs every check that does not read tensor data: the report, the target folder and the free disk space.
    ///
    /// # Errors
    /// Returns the first failed check.
    pub fn check(&self, force: bool) -> Result<(), Failure> {
        if matches!(self.to, Form::Lora(_)) {
            lora::check(self)?;
        }
        self.report.check(self.source.location.path.as_str())?;
        let sources: Vec<&Utf8Path> =
            self.merge.iter().chain([&self.source.location.path]).map(|path| &**path).collect();
        destination::check(&self.target, &sources, force)?;
        destination::check_space(&self.target, self.bytes())
    }

    /// Executes the plan. On success the target is complete; on failure it is unchanged.
    ///
    /// `now_s` and `random` determine the run ID in the manifest of a new checkpoint, unless a checkpoint is converted.
    ///
    /// # Errors
    /// Fails when [`ConvertPlan::check`] fails, a checksum of the source does not match, a value is not finite and the request does
    /// not allow it, or an I/O error occurs.
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
            // The first failure is the one to report. The next attempt removes the partial folder.
            let _ = folder.abandon();
        }
        done
    }

    /// Returns the checkpoint files that the plan reads, with the checksums in their manifest.
    fn summed(&self) -> Vec<(&FileSum, Utf8PathBuf)> {
        let Some(checkpoint) = &self.source.checkpoint else { return Vec::new() };
        let used: BTreeSet<&Utf8Path> =
            self.source.tensors.values().flat_map(|t| &t.spans).map(|span| &*span.file).collect();
        let files = checkpoint.manifest.files.iter().map(|wanted| (wanted, checkpoint.dir.join(&wanted.name)));
        files.filter(|(_, path)| used.contains(path.as_path())).collect()
    }

    /// Writes or links the tensor files and verifies the checksums of the source checkpoint at the same time, so that a
    /// damaged source is found before the target is committed.
    fn write(&self, dir: &Utf8Path, progress: OnProgress<'_>) -> Result<WrittenFiles, Failure> {
        let files = self.summed();
        let checked: u64 = files.iter().map(|(wanted, _)| wanted.bytes).sum();
        let total = checked + self.links.iter().map(|linked| linked.bytes).sum::<u64>();
        self.links.iter().try_for_each(|linked| linked.link(dir))?;
        let (damaged, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let (report_bytes, reported_bytes) = channel();
        thread::scope(|scope| {
            let (damaged, stop) = (&damaged, &stop);
            let reporter = |report_bytes: Sender<u64>| {
                move |bytes| {
                    // The receiver only closes when the work ends.
                    let _ = report_bytes.send(bytes);
                    if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                }
            };
            let mut read = reporter(report_bytes.clone());
            let checking = scope.spawn(move || {
                let checked = verify(&files, &mut read);
                damaged.store(checked.is_err() && !stop.load(Ordering::Relaxed), Ordering::Relaxed);
                checked
            });
            let summing: Vec<_> = self
                .links
                .iter()
                .map(|linked| {
                    let mut read = reporter(report_bytes.clone());
                    scope.spawn(move || checksum_and_count(linked, &mut read))
                })
                .collect();
            drop(report_bytes);
            let written = write_tensor_files(dir, &self.files, &mut |written| match damaged.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => progress(written),
            });
            stop.fetch_or(written.is_err(), Ordering::Relaxed);
            let mut done = 0;
            for bytes in reported_bytes {
                done += bytes;
                let broken = progress(WriteProgress { doing: Doing::Checking, done, total }).is_break();
                stop.fetch_or(broken, Ordering::Relaxed);
            }
            let checked = checking.join().expect("checksum threads do not panic");
            let summed = self.links.iter().zip(summing).map(|(linked, thread)| {
                let (xxh3, not_finite) = thread.join().expect("checksum threads do not panic")?;
                Ok((FileSum { name: linked.name.clone(), bytes: linked.bytes, xxh3 }, not_finite))
            });
            // Damage in the source stops the writer, so the damage is the error to report.
            let mut written = match damaged.load(Ordering::Relaxed) {
                true => checked.and(written),
                false => written.and_then(|written| checked.map(|()| written)),
            }?;
            let sources: BTreeMap<&str, &str> =
                self.report.mapped.iter().map(|row| (row.target.as_str(), row.source.as_str())).collect();
            for found in &mut written.not_finite {
                if let Some(source) = sources.get(found.tensor.as_str()) {
                    found.tensor = (*source).to_owned();
                }
            }
            for (sum, not_finite) in summed.collect::<Result<Vec<_>, Failure>>()? {
                written.sums.push(sum);
                written.not_finite.extend(not_finite);
            }
            Ok(written)
        })
    }

    /// Checks that all values are finite, unless the request allows others.
    fn check_finite(&self, not_finite: &[NotFinite]) -> Result<(), Failure> {
        if not_finite.is_empty() || self.allow_not_finite {
            return Ok(());
        }
        Err(Failure::new(
            ErrorCode::NotFinite,
            format!("cannot convert {}", self.source.location.path),
            NotFinite::words(not_finite),
            "get the weights again, or use an earlier checkpoint; add --allow-not-finite to convert them as they are",
        ))
    }

    fn fill(
        &self,
        folder: &WholeFolder,
        now_s: f64,
        random: u32,
        progress: OnProgress<'_>,
    ) -> Result<Converted, Failure> {
        let dir = folder.dir();
        let WrittenFiles { sums, not_finite, .. } = self.write(dir, progress)?;
        self.check_finite(&not_finite)?;
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
                let manifest = self.manifest(now_s, random, files);
                Staging::alone(&self.target).commit(&untrained(), manifest)?;
            }
        }
        Ok(Converted { target: self.target.clone(), bytes, files: count, not_finite })
    }

    /// Returns the manifest of a new checkpoint. It names the run and the step of a checkpoint that was converted.
    fn manifest(&self, now_s: f64, random: u32, files: Vec<FileSum>) -> CheckpointManifest {
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
        // No run has the sum of weights and an adapter.
        let origin = self.source.checkpoint.as_ref().filter(|_| self.merge.is_none());
        let (run, attempt, step) = match origin.map(|checkpoint| &checkpoint.manifest) {
            Some(origin) => (origin.run.clone(), origin.attempt, origin.step),
            None => {
                let name = format!("{CONVERTED}{}", self.target.file_name().unwrap_or("weights"));
                (RunId::new(now_s, &name, random), 1, 0)
            }
        };
        CheckpointManifest {
            format: SCHEMA,
            run,
            attempt,
            step,
            saved_s: now_s,
            params: tensors.iter().filter_map(LogicalTensor::elements).sum(),
            mesh: Mesh { dp_replicate: 1, dp_shard: 1, tp: 1 },
            base: None,
            same_as: origin.filter(|_| self.keeps_parameters()).and_then(|origin| match &origin.manifest.same_as {
                Some(first) => Some(first.clone()),
                None => origin.manifest_sum().ok().map(|sum| sum.xxh3),
            }),
            files,
            tensors,
        }
    }

    /// Returns whether the target has the same parameters as the source, bit for bit.
    fn keeps_parameters(&self) -> bool {
        let Report { mapped, waived, initialized, .. } = &self.report;
        let is_kept = |row: &Mapped| row.from == row.to && row.new_channels == 0;
        let is_alone = self.merge.is_none() && self.source.averages == 0;
        is_alone && waived.is_empty() && initialized.is_empty() && mapped.iter().all(is_kept)
    }
}

/// Verifies the checksums of files. Calls `read` with the number of bytes after each read; `read` can stop the work.
fn verify(files: &[(&FileSum, Utf8PathBuf)], read: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<(), Failure> {
    files.iter().try_for_each(|(wanted, path)| {
        let found = checksum(path, read, &mut |_| ())?;
        if found == wanted.xxh3 {
            return Ok(());
        }
        Err(rundir::Error::Checksum { path: path.clone(), found, wanted: wanted.xxh3.clone() }.into())
    })
}

/// Returns the checksum of a linked file, and the tensors in it that have values that are not finite. Calls `read` as [`verify`] does.
fn checksum_and_count(
    linked: &Linked,
    read: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<(String, Vec<NotFinite>), Failure> {
    let mut scan = linked.scan();
    let xxh3 = checksum(&linked.source, read, &mut |bytes| scan.see(bytes))?;
    Ok((xxh3, scan.found()))
}

/// Returns the checksum of a file in the format of manifests. Calls `read` as [`verify`] does, and `see` with all bytes in order.
fn checksum(
    path: &Utf8Path,
    read: &mut dyn FnMut(u64) -> ControlFlow<()>,
    see: &mut dyn FnMut(&[u8]),
) -> Result<String, Failure> {
    let io = |source| crate::Error::Io { path: path.to_owned(), source };
    let (mut file, mut sum, mut buffer) = (open_regular(path).map_err(io)?, Xxh3::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(format!("{:016x}", sum.digest())),
            Ok(n) => {
                sum.update(&buffer[..n]);
                see(&buffer[..n]);
                if read(n as u64).is_break() {
                    return Err(stopped());
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(io(error).into()),
        }
    }
}

/// Returns the training state of weights that this trainer has not trained.
fn untrained() -> TrainState {
    TrainState::default()
}

#[cfg(test)]
mod tests;

//! Samples: the videos that a run made from its weights, each with a sidecar that describes how it was made.

use crate::files::{present, read_run_text};
use crate::{Error, Run, RunDir, RunId, SCHEMA, write_atomic};
use camino::{Utf8Path, Utf8PathBuf};
use failure::read_text;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use recipe::Task;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::OwnedFd;

/// The sidecar of a sample, which describes how it was made: `samples/step-00000120/000.json` beside `000.mp4`.
///
/// It is written after the video, so a sample is complete if its sidecar exists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleSidecar {
    /// The version of the format.
    pub v: u32,
    /// The number of optimizer steps behind the weights.
    pub step: u64,
    /// The number of the prompt, counted from 0 in the order of the recipe or the file.
    pub index: usize,
    /// The prompt.
    pub prompt: String,
    /// The negative text of classifier-free guidance; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub negative: String,
    /// The image that the video begins with, if the model takes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Utf8PathBuf>,
    /// The image that the video ends with, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_end: Option<Utf8PathBuf>,
    /// The video whose masked pixels were replaced, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub video: Option<Utf8PathBuf>,
    /// The mask of that video.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<Utf8PathBuf>,
    /// Seed of the initial noise and of the noise of each sampling step.
    pub seed: u64,
    /// Pixels per row.
    pub width: usize,
    /// Rows of pixels.
    pub height: usize,
    /// Frames of the video.
    pub frames: usize,
    /// Frames per second of the video.
    pub fps: f64,
    /// Sampling steps.
    pub sampling_steps: usize,
    /// The sampler, such as `ddim` or `dpm`.
    pub scheduler: String,
    /// The scale of classifier-free guidance.
    pub guidance: f64,
    /// Whether the guidance depends on the timestep.
    #[serde(default)]
    pub dynamic_guidance: bool,
    /// The dtype that the network computed in.
    pub dtype: String,
    /// Whether the weights are the exponential moving average.
    #[serde(default)]
    pub ema: bool,
    /// The checkpoint or folder of the weights; for a sample during training, the run.
    pub weights: Utf8PathBuf,
    /// XXH3 of the checkpoint's manifest; for a sample during training, of the weights in memory, rank by rank.
    pub weights_xxh3: String,
    /// The adapters that were merged into the weights, besides those of the checkpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lora: Vec<SampleLora>,
    /// The version of the trainer that made the sample.
    pub trainer: String,
    /// The version of libtorch.
    #[serde(default)]
    pub libtorch: String,
    /// Seconds that sampling and decoding took.
    pub took_s: f64,
    /// When the sample was complete, Unix seconds.
    pub t: f64,
}

/// An adapter that was merged into the weights of a sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleLora {
    /// The file or the checkpoint.
    pub path: Utf8PathBuf,
    /// The factor by which the product of the adapter's two tensors is multiplied.
    pub weight: f64,
    /// XXH3 of the file, or of the checkpoint's manifest.
    pub xxh3: String,
}

/// The folder to which a run writes its samples.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SampleFolder {
    /// The folder of the run, with a folder for each step.
    OfRun(RunDir),
    /// The folder that `sample.out` names.
    Named {
        /// The path of the folder.
        folder: Utf8PathBuf,
        /// The number of prompts of the run. Files with higher indices belong to another run.
        prompts: usize,
    },
}

/// Why the video of a sample cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadVideo {
    /// It does not exist.
    #[error("the video was removed")]
    Removed,
    /// It is a link or in a folder that is one, so that it may be a file of the reader that the run does not own; or it is no
    /// regular file.
    #[error("the video is left out: {0} is not a regular file in the folder of the samples")]
    NotInFolder(Utf8PathBuf),
    /// It has another format.
    #[error("the video is left out: {0} does not begin as an MP4 file")]
    NotMp4(Utf8PathBuf),
    /// It cannot be read.
    #[error("the video is left out: {0} cannot be read: {1}")]
    Io(Utf8PathBuf, io::Error),
}

/// The file in a folder of the user that holds the id of the run which writes its samples there.
const CLAIM: &str = ".vidtui-samples";

/// The result of claiming a folder for the samples of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SampleClaim {
    /// The run has it now.
    New,
    /// The run had it before.
    Own,
    /// A run with this id has it.
    Other(String),
}

impl SampleFolder {
    /// Returns the video of a sample; its sidecar has the same name with the extension `json`.
    pub fn video(&self, step: u64, index: usize) -> Utf8PathBuf {
        match self {
            Self::OfRun(run) => run.sample_video(step, index),
            Self::Named { folder, .. } => folder.join(format!("{index:03}.mp4")),
        }
    }

    /// Opens the video of a sample to show it or to copy it. The run may be one of another user, who can put a link to a private file of
    /// the reader in its place, or a file that makes a program for videos open others.
    ///
    /// # Errors
    /// The video does not exist, is not a regular file in the folder of the samples, or is no MP4 file.
    pub fn open_video(&self, step: u64, index: usize) -> Result<File, BadVideo> {
        let path = self.video(step, index);
        let root = match self {
            Self::OfRun(run) => &run.root,
            Self::Named { folder, .. } => folder,
        };
        let file =
            open_inside(root, &path).map_err(|error| match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
                Errno::ENOENT => BadVideo::Removed,
                // A link, a link to a folder, or a socket.
                Errno::ELOOP | Errno::ENOTDIR | Errno::ENXIO => BadVideo::NotInFolder(path.clone()),
                _ => BadVideo::Io(path.clone(), error),
            })?;
        let io = |error| BadVideo::Io(path.clone(), error);
        if !file.metadata().map_err(io)?.is_file() {
            return Err(BadVideo::NotInFolder(path));
        }
        let mut start = Vec::new();
        (&file).take(8).read_to_end(&mut start).map_err(io)?;
        if start.get(4..) != Some(b"ftyp") {
            return Err(BadVideo::NotMp4(path));
        }
        (&file).rewind().map_err(io)?;
        Ok(file)
    }

    /// Returns the files of these prompts in a folder of the user: videos, sidecars and folders of frames. The list is empty for the folder
    /// of a run: other runs do not write there.
    pub fn existing(&self, indices: impl Iterator<Item = usize>) -> Vec<Utf8PathBuf> {
        let Self::Named { .. } = self else { return Vec::new() };
        let files = indices.flat_map(|index| {
            let video = self.video(0, index);
            [video.with_extension("json"), video.with_extension(""), video]
        });
        files.filter(|path| path.symlink_metadata().is_ok()).collect()
    }

    /// Claims a folder of the user for a run until [`Self::release`], so that two runs at a time do not replace each other's samples. The
    /// folder of a run is always its own.
    ///
    /// # Errors
    /// [`Error::File`] if the folder cannot be written.
    pub fn claim(&self, run: &RunId) -> Result<SampleClaim, Error> {
        let Self::Named { folder, .. } = self else { return Ok(SampleClaim::Own) };
        fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
        let path = folder.join(CLAIM);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(mut file) => {
                let written = file.write_all(run.as_str().as_bytes());
                // An empty claim would belong to no run.
                let written = written.inspect_err(|_| drop(fs::remove_file(&path)));
                written.map_err(|error| Error::io("write", &path, error))?;
                Ok(SampleClaim::New)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => match read_text(&path)? {
                found if found == run.as_str() => Ok(SampleClaim::Own),
                found => Ok(SampleClaim::Other(found)),
            },
            Err(error) => Err(Error::io("create", &path, error)),
        }
    }

    /// Claims a folder for a run, whichever run had it.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub fn take_over(&self, run: &RunId) -> Result<(), Error> {
        let Self::Named { folder, .. } = self else { return Ok(()) };
        fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
        write_atomic(&folder.join(CLAIM), run.as_str().as_bytes())
    }

    /// Ends the claim of a run.
    pub fn release(&self, run: &RunId) {
        let Self::Named { folder, .. } = self else { return };
        let path = folder.join(CLAIM);
        if read_text(&path).is_ok_and(|found| found == run.as_str()) {
            // A claim that stays names an ended run, which is no obstacle.
            let _ = fs::remove_file(&path);
        }
    }

    /// Lists the complete samples, by step and then by prompt. The list is empty if the run has made no samples.
    ///
    /// # Errors
    /// A folder or sidecar cannot be read.
    pub fn list(&self) -> Result<Vec<SampleSidecar>, Error> {
        match self {
            Self::OfRun(run) => run.list_samples(),
            Self::Named { prompts, .. } => {
                let sidecars = (0..*prompts).map(|index| self.video(0, index).with_extension("json"));
                sidecars.filter_map(|sidecar| SampleSidecar::read(&sidecar).transpose()).collect()
            }
        }
    }

    /// Returns the folders of sidecars, whose modification times change when a sample is complete.
    pub fn folders(&self) -> Vec<Utf8PathBuf> {
        match self {
            Self::OfRun(run) => entries(&run.samples()).unwrap_or_default(),
            Self::Named { folder, .. } => vec![folder.clone()],
        }
    }
}

impl RunDir {
    /// Returns the folder to which the run writes its samples. A training run always writes them to its own folder.
    pub fn sample_folder(&self, run: &Run) -> SampleFolder {
        let of = |key: &str| run.recipe.get("sample").and_then(|sample| sample.get(key));
        let out = of("out").and_then(toml::Value::as_str).filter(|out| !out.is_empty() && run.task() == Task::Sample);
        let prompts = of("prompts").and_then(toml::Value::as_array).map_or(0, Vec::len);
        match out {
            Some(out) => SampleFolder::Named { folder: out.into(), prompts },
            None => SampleFolder::OfRun(self.clone()),
        }
    }

    /// Returns the folder of all samples.
    pub fn samples(&self) -> Utf8PathBuf {
        self.root.join("samples")
    }

    /// Returns the folder of the samples of a step.
    pub fn samples_of(&self, step: u64) -> Utf8PathBuf {
        self.samples().join(format!("step-{step:08}"))
    }

    /// Returns the video of a sample; its sidecar has the same name with the extension `json`.
    pub fn sample_video(&self, step: u64, index: usize) -> Utf8PathBuf {
        self.samples_of(step).join(format!("{index:03}.mp4"))
    }

    /// Lists the complete samples, by step and then by prompt. The list is empty if the run has made no samples.
    ///
    /// # Errors
    /// A folder or sidecar cannot be read.
    pub fn list_samples(&self) -> Result<Vec<SampleSidecar>, Error> {
        let mut samples = Vec::new();
        for step in entries(&self.samples())? {
            for file in entries(&step)?.iter().filter(|file| file.extension() == Some("json")) {
                samples.extend(SampleSidecar::read(file)?);
            }
        }
        samples.sort_by_key(|sample: &SampleSidecar| (sample.step, sample.index));
        Ok(samples)
    }
}

impl SampleSidecar {
    /// Writes a sidecar.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, path: &Utf8Path) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(self).map_err(|error| Error::malformed(path, error.to_string()))?;
        write_atomic(path, &text)
    }

    /// Reads a sidecar. Returns `None` if the file does not exist.
    ///
    /// # Errors
    /// The sidecar cannot be read, is malformed, or has a newer format.
    pub fn read(path: &Utf8Path) -> Result<Option<SampleSidecar>, Error> {
        let Some(text) = present(read_run_text(path))? else { return Ok(None) };
        let malformed = |error: serde_json::Error| Error::malformed(path, error.to_string());
        let version = serde_json::from_str::<serde_json::Value>(&text).map_err(malformed)?["v"].as_u64();
        if let Some(found) = version.filter(|found| *found > u64::from(SCHEMA)) {
            return Err(Error::Newer { path: path.to_owned(), key: "v", found, known: SCHEMA });
        }
        serde_json::from_str(&text).map(Some).map_err(malformed)
    }
}

/// Opens a file in a folder. Fails if a part of its path below the folder is a link, and does not wait for the writer of a named pipe.
fn open_inside(folder: &Utf8Path, path: &Utf8Path) -> io::Result<File> {
    let inside = path.strip_prefix(folder).map_err(io::Error::other)?;
    let mut at: OwnedFd = File::open(folder)?.into();
    let mut parts = inside.iter().peekable();
    while let Some(part) = parts.next() {
        let kind = if parts.peek().is_some() { OFlag::O_DIRECTORY } else { OFlag::O_NONBLOCK };
        at = openat(&at, part, OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | kind, Mode::empty())?;
    }
    Ok(at.into())
}

/// Returns the paths in a folder; an empty list if it does not exist.
fn entries(folder: &Utf8Path) -> Result<Vec<Utf8PathBuf>, Error> {
    let listed = match fs::read_dir(folder) {
        Ok(listed) => listed,
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(Error::io("list", folder, error)),
    };
    let paths: Result<Vec<_>, _> = listed.map(|entry| entry.map(|entry| entry.path())).collect();
    let paths = paths.map_err(|error| Error::io("list", folder, error))?;
    Ok(paths.into_iter().filter_map(|path| Utf8PathBuf::try_from(path).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;
    use crate::fixtures::{sample, temp};

    #[test]
    fn samples_are_listed_by_step_and_prompt_once_their_sidecar_exists() {
        let (_folder, run) = temp();
        assert_eq!(run.list_samples().unwrap(), []);
        for (step, index) in [(240, 0), (120, 1), (120, 0)] {
            fs::create_dir_all(run.samples_of(step)).unwrap();
            fs::write(run.sample_video(step, index), b"video").unwrap();
            sample(step, index).write(&run.sample_video(step, index).with_extension("json")).unwrap();
        }
        fs::write(run.sample_video(240, 1), b"a video whose sidecar is missing").unwrap();
        fs::write(run.samples().join("notes.txt"), b"a file of the user").unwrap();
        assert_eq!(run.list_samples().unwrap(), [sample(120, 0), sample(120, 1), sample(240, 0)]);
    }

    #[test]
    fn only_a_regular_mp4_file_in_the_folder_is_the_video_of_a_sample() {
        let (_keep, run) = temp();
        let folder = SampleFolder::OfRun(run.clone());
        fs::create_dir_all(run.samples_of(120)).unwrap();
        let mp4 = b"\0\0\0\x20ftypisom and more";
        fs::write(run.sample_video(120, 0), mp4).unwrap();
        let mut read = Vec::new();
        folder.open_video(120, 0).unwrap().read_to_end(&mut read).unwrap();
        assert_eq!(read, mp4);
        assert!(matches!(folder.open_video(120, 1), Err(BadVideo::Removed)));
        fs::write(run.sample_video(120, 1), b"#EXTM3U").unwrap();
        assert!(matches!(folder.open_video(120, 1), Err(BadVideo::NotMp4(_))));
    }

    #[test]
    fn a_link_or_a_named_pipe_is_not_the_video_of_a_sample() {
        let (_keep, run) = temp();
        let folder = SampleFolder::OfRun(run.clone());
        fs::create_dir_all(run.samples_of(120)).unwrap();
        let private = run.root.join("private");
        fs::create_dir(&private).unwrap();
        fs::write(private.join("000.mp4"), b"\0\0\0\x20ftypisom").unwrap();
        std::os::unix::fs::symlink(private.join("000.mp4"), run.sample_video(120, 0)).unwrap();
        nix::unistd::mkfifo(run.sample_video(120, 1).as_std_path(), Mode::S_IRWXU).unwrap();
        fs::create_dir(run.sample_video(120, 2)).unwrap();
        std::os::unix::fs::symlink(&private, run.samples_of(240)).unwrap();
        for (step, index) in [(120, 0), (120, 1), (120, 2), (240, 0)] {
            let opened = folder.open_video(step, index);
            assert!(matches!(opened, Err(BadVideo::NotInFolder(_))), "{step} {index}: {opened:?}");
        }
    }

    #[test]
    fn samples_in_a_folder_of_the_user_are_those_of_the_prompts_of_the_run() {
        let (folder, run) = temp();
        let out = Utf8PathBuf::from_path_buf(folder.path().join("videos")).unwrap();
        let named = SampleFolder::Named { folder: out.clone(), prompts: 2 };
        assert_eq!(named.list().unwrap(), []);
        fs::create_dir(&out).unwrap();
        for index in [1, 2] {
            let video = named.video(120, index);
            assert_eq!(video, out.join(format!("00{index}.mp4")));
            sample(120, index).write(&video.with_extension("json")).unwrap();
        }
        // An earlier run with more prompts made the third video.
        assert_eq!(named.list().unwrap(), [sample(120, 1)]);
        assert_eq!(run.list_samples().unwrap(), []);
    }

    #[test]
    fn a_folder_of_the_user_belongs_to_one_run_at_a_time_and_its_files_are_known() {
        let (folder, run) = temp();
        let out = Utf8PathBuf::from_path_buf(folder.path().join("deep/videos")).unwrap();
        let named = SampleFolder::Named { folder: out.clone(), prompts: 2 };
        let [a, b] = ["2026-11-20T0340-sample-k7f2", "2026-11-20T0341-sample-k7f3"].map(|id| RunId::parse(id).unwrap());
        assert_eq!(named.claim(&a).unwrap(), SampleClaim::New);
        assert_eq!(named.claim(&a).unwrap(), SampleClaim::Own);
        assert_eq!(named.claim(&b).unwrap(), SampleClaim::Other(a.to_string()));
        named.release(&b);
        assert_eq!(named.claim(&b).unwrap(), SampleClaim::Other(a.to_string()));
        named.take_over(&b).unwrap();
        assert_eq!(named.claim(&b).unwrap(), SampleClaim::Own);
        named.release(&b);
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
        for name in ["000.mp4", "001.json", "002.mp4"] {
            fs::write(out.join(name), b"").unwrap();
        }
        fs::create_dir(out.join("001")).unwrap();
        assert_eq!(named.existing(0..2), ["000.mp4", "001.json", "001"].map(|name| out.join(name)));
        assert_eq!(
            (SampleFolder::OfRun(run.clone()).existing(0..2), SampleFolder::OfRun(run).claim(&a).unwrap()),
            (vec![], SampleClaim::Own)
        );
    }

    #[test]
    fn a_sidecar_of_a_newer_format_is_refused_and_unknown_fields_are_ignored() {
        let (_folder, run) = temp();
        let path = run.root.join("000.json");
        let mut value = serde_json::to_value(sample(1, 0)).unwrap();
        value["mood"] = "good".into();
        fs::write(&path, value.to_string()).unwrap();
        assert_eq!(SampleSidecar::read(&path).unwrap(), Some(sample(1, 0)));
        value["v"] = (SCHEMA + 1).into();
        fs::write(&path, value.to_string()).unwrap();
        assert_eq!(crate::Failure::from(SampleSidecar::read(&path).unwrap_err()).code, ErrorCode::NewerFormat);
        assert_eq!(SampleSidecar::read(&run.root.join("001.json")).unwrap(), None);
    }
}

//! Writes the tables and folders that other trainers read, for `vidtui data export`.

mod formats;
#[cfg(test)]
mod tests;
mod ttt;

use crate::each_file::{CheckProgress, OnProgress};
use crate::{Clip, ClipManifest, FieldValue};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::Bucket;
use rundir::{Error, ErrorCode, Failure};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::symlink;
use std::str::FromStr;
use video::{FrameChoice, FrameMode, Programs};

/// The trainers whose tables and folders are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExportFormat {
    /// A CSV with the sizes of the clips, for versions 1.2 and 2.
    OpenSora,
    /// `videos.txt` and `prompts.txt`.
    Finetrainers,
    /// A JSON list, with the sizes of the clips.
    VideoxFun,
    /// A line of JSON per clip.
    Musubi,
    /// A folder of links to the videos, and `captions.json`.
    DiffusionPipe,
    /// Videos of 480 × 720 pixels at 16 frames per second, for the programs that prepare latents and texts.
    TttVideoDit,
}

/// The formats and their names.
const NAMES: [(ExportFormat, &str); 6] = [
    (ExportFormat::OpenSora, "open-sora"),
    (ExportFormat::Finetrainers, "finetrainers"),
    (ExportFormat::VideoxFun, "videox-fun"),
    (ExportFormat::Musubi, "musubi"),
    (ExportFormat::DiffusionPipe, "diffusion-pipe"),
    (ExportFormat::TttVideoDit, "ttt-video-dit"),
];

impl ExportFormat {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(format, _)| *format == self).map(|(_, name)| *name).expect("the table has every format")
    }

    /// Returns the frames that a clip must have, for `size` and for clips with so many segments. `None`: any clip is long enough.
    pub fn choice(self, frames: Option<usize>, segments: usize) -> Option<FrameChoice> {
        let choice = |frames, fps| FrameChoice { mode: FrameMode::Head, frames, fps, stride: 1, seed: 0 };
        match self {
            Self::OpenSora | Self::VideoxFun => frames.map(|frames| choice(frames, None)),
            Self::Finetrainers | Self::Musubi | Self::DiffusionPipe => {
                Some(choice(frames.unwrap_or(DEFAULT.frames), None))
            }
            Self::TttVideoDit => Some(choice(ttt::frames(segments), Some(ttt::FPS))),
        }
    }

    /// Returns whether the trainer reads pictures, and whether it reads folders of frames, beside videos.
    fn reads(self) -> [bool; 2] {
        match self {
            Self::OpenSora | Self::VideoxFun | Self::DiffusionPipe => [true, false],
            Self::Musubi => [false, true],
            Self::Finetrainers => [false, false],
            // Their pixels are decoded here.
            Self::TttVideoDit => [false, true],
        }
    }
}

impl FromStr for ExportFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = NAMES.iter().find(|(_, name)| *name == text).map(|(format, _)| *format);
        found.ok_or_else(|| format!("the formats are {}", NAMES.map(|(_, name)| name).join(", ")))
    }
}

/// The size of clips if none is given: that of CogVideoX.
const DEFAULT: Bucket = Bucket { frames: 49, height: 480, width: 720 };

/// A request to export clips.
#[derive(Debug, Clone)]
pub struct ExportRequest {
    /// The trainer.
    pub format: ExportFormat,
    /// The folder to write to, which is created.
    pub out: Utf8PathBuf,
    /// The frames that the trainer takes of a clip. `None`: the default of the format.
    pub frames: Option<usize>,
    /// The height and width that the trainer scales to. `None`: 480 × 720.
    pub size: Option<[usize; 2]>,
    /// Whether existing tables are replaced.
    pub force: bool,
    /// ffmpeg and ffprobe.
    pub programs: Programs,
}

/// The values that a check keeps of each clip.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KeptColumns {
    /// The names of the columns.
    pub names: Vec<String>,
    /// The values of each clip, in the order of the manifest.
    pub rows: Vec<Vec<FieldValue>>,
}

/// The result of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Exported {
    /// The format.
    pub format: ExportFormat,
    /// The number of clips.
    pub clips: usize,
    /// The files that were written, except videos and links.
    pub files: Vec<Utf8PathBuf>,
    /// Pictures and folders of frames that the trainer does not read.
    pub left_out: usize,
    /// The next step for the user, as text: which key or command of the trainer reads the files.
    pub next: String,
}

/// A clip and its values in further columns.
struct ExportClip<'a> {
    clip: &'a Clip,
    values: &'a [FieldValue],
}

/// The folder that an export writes, and the files written so far.
struct Folder<'a> {
    request: &'a ExportRequest,
    /// The absolute path of the folder.
    path: Utf8PathBuf,
    files: Vec<Utf8PathBuf>,
}

/// Writes the usable clips of a manifest as another trainer reads them. Videos stay where they are, except for ttt-video-dit, which needs
/// others.
///
/// # Errors
/// `AlreadyExists`, if a file exists; the folder is that of the clips; no clip is left; the folder cannot be written; or `on_progress`
/// breaks (`Cancelled`).
pub fn export(
    request: &ExportRequest,
    manifest: &ClipManifest,
    kept: &KeptColumns,
    on_progress: OnProgress<'_>,
) -> Result<Exported, Failure> {
    let out = &request.out;
    let [pictures, folders] = request.format.reads();
    let reads = |clip: &&Clip| if clip.frame_folder { folders } else { pictures || clip.fps > 0.0 };
    let usable = manifest.usable().count();
    let rows = manifest.clips.iter().enumerate().filter(|(_, clip)| clip.is_usable() && reads(clip));
    let values = |at: usize| kept.rows.get(at).map_or(&[][..], Vec::as_slice);
    let clips: Vec<ExportClip<'_>> = rows.map(|(at, clip)| ExportClip { clip, values: values(at) }).collect();
    if clips.is_empty() {
        let why = format!(
            "{} of {} are usable, and the trainer reads none of them",
            usable,
            units::counted(manifest.clips.len(), "clip")
        );
        let what = format!("there is nothing to export as {}", request.format.name());
        return Err(Failure::new(ErrorCode::InvalidDataset, what, why, "check the clips: vidtui data check SRC"));
    }
    fs::create_dir_all(out).map_err(|error| Error::io("create", out, error))?;
    let path = out.canonicalize_utf8().map_err(|error| Error::io("open", out, error))?;
    if path == manifest.header.root {
        let what = format!("cannot export to {out}");
        let why = "it is the folder of the clips, whose layout the new files would change";
        return Err(Failure::new(ErrorCode::InvalidArgument, what, why, "name another folder with --out"));
    }
    let mut folder = Folder { request, path, files: Vec::new() };
    let next = match request.format {
        ExportFormat::OpenSora => formats::open_sora(&mut folder, &clips, &kept.names),
        ExportFormat::Finetrainers => formats::finetrainers(&mut folder, &clips),
        ExportFormat::VideoxFun => formats::videox_fun(&mut folder, &clips),
        ExportFormat::Musubi => formats::musubi(&mut folder, &clips),
        ExportFormat::DiffusionPipe => formats::diffusion_pipe(&mut folder, &clips),
        ExportFormat::TttVideoDit => ttt::write(&mut folder, &clips, on_progress),
    }?;
    let Folder { files, .. } = folder;
    Ok(Exported { format: request.format, clips: clips.len(), files, left_out: usable - clips.len(), next })
}

impl Folder<'_> {
    /// Returns the size of clips, for the configuration of a trainer.
    fn bucket(&self) -> Bucket {
        let [height, width] = self.request.size.unwrap_or([DEFAULT.height, DEFAULT.width]);
        Bucket { frames: self.request.frames.unwrap_or(DEFAULT.frames), height, width }
    }

    /// Refuses to write if one of these files exists.
    fn refuse_existing(&self, names: &[&str]) -> Result<(), Failure> {
        let exists = |name: &&&str| self.path.join(name).symlink_metadata().is_ok();
        match names.iter().find(exists).filter(|_| !self.request.force) {
            None => Ok(()),
            Some(name) => Err(already_exists(
                &self.path.join(name),
                "the file exists",
                "choose another folder, or replace it with --force",
            )),
        }
    }

    /// Writes a file, and returns its path.
    fn write(&mut self, name: &str, text: &str) -> Result<Utf8PathBuf, Failure> {
        let path = self.path.join(name);
        rundir::write_atomic(&path, text.as_bytes())?;
        self.files.push(path.clone());
        Ok(path)
    }

    /// Makes a folder for links to videos, and returns its path. Links of an earlier export are removed if files may be replaced, because
    /// trainers read every file of the folder.
    fn folder_of_links(&self, name: &str) -> Result<Utf8PathBuf, Failure> {
        let path = self.folder(name)?;
        let entries = path.read_dir_utf8().map_err(|error| Error::io("read", &path, error))?;
        for entry in entries.filter_map(Result::ok).filter(|entry| entry.path().is_symlink()) {
            if !self.request.force {
                return Err(already_exists(
                    entry.path(),
                    "it is a link of an earlier export",
                    "choose another folder, or replace it with --force",
                ));
            }
            fs::remove_file(entry.path()).map_err(|error| Error::io("remove", entry.path(), error))?;
        }
        Ok(path)
    }

    /// Makes a folder, and returns its path.
    fn folder(&self, name: &str) -> Result<Utf8PathBuf, Failure> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).map_err(|error| Error::io("create", &path, error))?;
        Ok(path)
    }
}

/// Makes a link to a file, unless it exists already.
fn link(from: &Utf8Path, to: &Utf8Path) -> Result<(), Failure> {
    match symlink(from, to) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => match fs::read_link(to) {
            Ok(target) if target == from.as_std_path() => Ok(()),
            _ => Err(already_exists(to, "another file or link has this name", "choose another folder with --out")),
        },
        Err(error) => Err(Error::io("link", to, error).into()),
    }
}

fn already_exists(path: &Utf8Path, why: &str, fix: &str) -> Failure {
    Failure::new(ErrorCode::AlreadyExists, format!("cannot write {path}"), why, fix)
}

/// Returns the failure of an interrupted export.
fn interrupted(progress: CheckProgress) -> Failure {
    crate::each_file::interrupted("export", progress)
}

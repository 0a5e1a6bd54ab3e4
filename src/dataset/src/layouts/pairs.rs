//! Reads a folder in which each video has its caption beside it: `clips/a.mp4` and `clips/a.txt`.

use super::text::caption_file;
use super::{ClipRow, OTHER_PICTURES, VIDEO_ENDINGS, invalid, unreadable};
use crate::ExclusionReason;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::Failure;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// The files below a folder, without hidden files.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Videos, in the order of their paths.
    pub videos: Vec<Utf8PathBuf>,
    /// Text files.
    pub texts: BTreeSet<Utf8PathBuf>,
    /// Pictures that have a text file of the same name and no video, in the order of their paths.
    pub pictures: Vec<Utf8PathBuf>,
    /// The number of pictures without a text file of the same name, or with a video of the same name.
    pub without_caption: usize,
    /// The number of pictures of formats that cannot be read.
    pub other_pictures: usize,
    /// Videos whose names are not UTF-8.
    pub unnamed: Vec<PathBuf>,
}

impl Files {
    /// Lists the files below a folder. Links are followed, also to files and folders elsewhere, but no folder is listed twice.
    pub(super) fn below(folder: &Utf8Path) -> Result<Self, Failure> {
        let mut files = Self::default();
        let mut seen = BTreeSet::new();
        files.add(folder, &mut seen)?;
        files.videos.sort();
        files.choose_pictures();
        files.unnamed.sort();
        Ok(files)
    }

    /// Skips pictures without a caption, such as thumbnails of videos.
    fn choose_pictures(&mut self) {
        let videos: BTreeSet<Utf8PathBuf> = self.videos.iter().map(|path| path.with_extension("")).collect();
        let found = self.pictures.len();
        self.pictures.retain(|path| {
            self.texts.contains(&path.with_extension("txt")) && !videos.contains(&path.with_extension(""))
        });
        self.pictures.sort();
        self.without_caption = found - self.pictures.len();
    }

    fn add(&mut self, folder: &Utf8Path, seen: &mut BTreeSet<PathBuf>) -> Result<(), Failure> {
        let real = fs::canonicalize(folder).map_err(|error| unreadable(folder, error))?;
        if !seen.insert(real) {
            return Ok(());
        }
        let entries = fs::read_dir(folder).map_err(|error| unreadable(folder, error))?;
        let entries = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<PathBuf>, _>>();
        let mut entries = entries.map_err(|error| unreadable(folder, error))?;
        // If several links lead to a folder, the files have the same names in every check.
        entries.sort();
        for entry in entries {
            match Utf8PathBuf::from_path_buf(entry) {
                Ok(path) if path.file_name().is_some_and(|name| name.starts_with('.')) => {}
                Ok(path) if path.is_dir() => self.add(&path, seen)?,
                Ok(path) if is_of(path.extension(), &VIDEO_ENDINGS) => self.videos.push(path),
                Ok(path) if is_of(path.extension(), &["txt"]) => _ = self.texts.insert(path),
                Ok(path) if video::is_picture(&path) => self.pictures.push(path),
                Ok(path) if is_of(path.extension(), &OTHER_PICTURES) => self.other_pictures += 1,
                Ok(_) => {}
                Err(path) => {
                    let ending = path.extension().and_then(|ending| ending.to_str());
                    if is_of(ending, &VIDEO_ENDINGS) {
                        self.unnamed.push(path);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns whether a file name has one of these extensions, in upper or lower case.
pub(super) fn is_of(ending: Option<&str>, endings: &[&str]) -> bool {
    ending.is_some_and(|ending| endings.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

/// Reads the rows of a folder, and notes about other files in it.
pub(super) fn read(folder: &Utf8Path, files: Files) -> Result<(Vec<ClipRow>, Vec<String>), Failure> {
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    let mut used = BTreeSet::new();
    for path in files.videos.into_iter().chain(files.pictures) {
        let text = path.with_extension("txt");
        let caption = caption_file(&text).map_err(|error| unreadable(&text, error))?;
        let below = |path: &Utf8Path| path.strip_prefix(folder).unwrap_or(path).to_string();
        rows.push(ClipRow { name: below(&path), origin: below(&text), caption, path, ..ClipRow::default() });
        used.insert(text);
    }
    for path in files.unnamed {
        let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
        let excluded = Some(ExclusionReason::NameNotUtf8);
        rows.push(ClipRow { path: folder.join(&name), name, excluded, ..ClipRow::default() });
    }
    let alone: Vec<&Utf8PathBuf> = files.texts.difference(&used).collect();
    if let Some(first) = alone.first() {
        let first = first.strip_prefix(folder).unwrap_or(first);
        let counted = units::counted(alone.len(), "text file");
        notes.push(format!("{counted} without a video of the same name, first {first}"));
    }
    if files.without_caption > 0 {
        let skipped = units::counted(files.without_caption, "picture");
        notes.push(format!(
            "{skipped} skipped: a picture needs a .txt file of the same name, and no video of that name"
        ));
    }
    if files.other_pictures > 0 {
        let skipped = units::counted(files.other_pictures, "picture");
        notes.push(format!("{skipped} skipped: {} cannot be read; convert them to png", OTHER_PICTURES.join(", ")));
    }
    Ok((rows, notes))
}

/// Makes the error for a folder without videos.
pub(super) fn no_videos(folder: &Utf8Path, files: &Files) -> Failure {
    let what = format!("{folder} has no videos");
    let endings = VIDEO_ENDINGS[..5].join(", ");
    match (files.without_caption, files.other_pictures, files.texts.len()) {
        (0, 0, 0) => invalid(
            what,
            format!("no file below it ends in {endings}…"),
            "name the folder that holds the videos, or a table: metadata.csv, .tsv, .json, .jsonl or .parquet",
        ),
        (0, 0, texts) => invalid(
            what,
            format!("it has {}, and no file that ends in {endings}…", units::counted(texts, "text file")),
            "put each video beside its text file, or list the videos in videos.txt beside prompts.txt",
        ),
        (0, pictures, _) => invalid(
            what,
            format!("it has {}, and {} cannot be read", units::counted(pictures, "picture"), OTHER_PICTURES.join(", ")),
            "convert the pictures to png, jpg or webp, for example: ffmpeg -i a.bmp a.png",
        ),
        (pictures, ..) => invalid(
            what,
            format!("it has {} without a text file of the same name", units::counted(pictures, "picture")),
            "write the caption of a.png to a.txt, or make a video of pictures: ffmpeg -framerate 8 -pattern_type glob -i '*.png' clip.mp4",
        ),
    }
}

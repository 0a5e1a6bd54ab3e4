//! Reads a folder in which each video, picture or folder of frames has its caption beside it: `clips/a.mp4` and `clips/a.txt`.

use super::paths::on_disk;
use super::text::caption_file;
use super::{ClipRow, VIDEO_ENDINGS, invalid, unreadable};
use crate::ExclusionReason;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::Failure;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use video::OTHER_PICTURE_ENDINGS;

/// The files below a folder, without hidden files.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Videos, in the order of their paths.
    pub videos: Vec<Utf8PathBuf>,
    /// Text files.
    pub texts: BTreeSet<Utf8PathBuf>,
    /// Pictures that have a text file of the same name and no video, in the order of their paths.
    pub pictures: Vec<Utf8PathBuf>,
    /// Folders of pictures that have a text file of the same name beside them and no video, in the order of their paths. No picture in them
    /// has its own caption.
    pub frame_folders: Vec<Utf8PathBuf>,
    /// All folders of pictures below the folder, in the order of their paths.
    pub picture_folders: Vec<Utf8PathBuf>,
    /// The number of pictures that are neither clips nor frames: without a text file of the same name, or with a video of the same name.
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
        let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
        files.add(folder, &mut seen, &mut found)?;
        files.videos.sort();
        files.pictures.sort();
        files.unnamed.sort();
        found.sort();
        files.choose_folders(folder, found);
        Ok(files)
    }

    /// Returns whether there is neither a video nor a picture with a caption.
    pub(super) fn has_no_files(&self) -> bool {
        self.videos.is_empty() && self.unnamed.is_empty() && self.pictures.is_empty()
    }

    /// Chooses the folders whose pictures are the frames of a clip.
    fn choose_folders(&mut self, root: &Utf8Path, found: Vec<PictureFolder>) {
        let videos: BTreeSet<Utf8PathBuf> = self.videos.iter().map(|path| path.with_extension("")).collect();
        for PictureFolder { path, with_caption, without_caption } in found {
            let has_text = self.texts.contains(&on_disk(text_of_folder(&path)));
            if path != root && has_text && with_caption == 0 && !videos.contains(&path) {
                self.frame_folders.push(path.clone());
            } else {
                self.without_caption += without_caption;
            }
            if path != root {
                self.picture_folders.push(path);
            }
        }
    }

    fn add(
        &mut self,
        folder: &Utf8Path,
        seen: &mut BTreeSet<PathBuf>,
        found: &mut Vec<PictureFolder>,
    ) -> Result<(), Failure> {
        let real = fs::canonicalize(folder).map_err(|error| unreadable(folder, error))?;
        if !seen.insert(real) {
            return Ok(());
        }
        let entries = fs::read_dir(folder).map_err(|error| unreadable(folder, error))?;
        let entries = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<PathBuf>, _>>();
        let mut entries = entries.map_err(|error| unreadable(folder, error))?;
        // If several links lead to a folder, the files have the same names in every check.
        entries.sort();
        let (mut folders, mut pictures, mut videos) = (Vec::new(), Vec::new(), BTreeSet::new());
        for entry in entries {
            match Utf8PathBuf::from_path_buf(entry) {
                Ok(path) if path.file_name().is_some_and(|name| name.starts_with('.')) => {}
                Ok(path) if path.is_dir() => folders.push(path),
                Ok(path) if is_of(path.extension(), &VIDEO_ENDINGS) => {
                    videos.insert(path.with_extension(""));
                    self.videos.push(path);
                }
                Ok(path) if is_of(path.extension(), &["txt"]) => _ = self.texts.insert(path),
                Ok(path) if video::is_picture(&path) => pictures.push(path),
                Ok(path) if is_of(path.extension(), &OTHER_PICTURE_ENDINGS) => self.other_pictures += 1,
                Ok(_) => {}
                Err(path) => {
                    let ending = path.extension().and_then(|ending| ending.to_str());
                    if is_of(ending, &VIDEO_ENDINGS) {
                        self.unnamed.push(path);
                    }
                }
            }
        }
        if !pictures.is_empty() {
            // Skip pictures without a caption, such as thumbnails of videos. A folder of frames can have many, so count them only.
            let all = pictures.len();
            pictures.retain(|path: &Utf8PathBuf| {
                self.texts.contains(&on_disk(path.with_extension("txt"))) && !videos.contains(&path.with_extension(""))
            });
            let (with_caption, without_caption) = (pictures.len(), all - pictures.len());
            found.push(PictureFolder { path: folder.to_owned(), with_caption, without_caption });
            self.pictures.extend(pictures);
        }
        for folder in folders {
            self.add(&folder, seen, found)?;
        }
        Ok(())
    }
}

/// A folder with pictures.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PictureFolder {
    path: Utf8PathBuf,
    /// The number of pictures with a text file of the same name and no video.
    with_caption: usize,
    /// The number of other pictures.
    without_caption: usize,
}

/// Returns the path of the caption of a folder of frames. A point in the name of a folder does not begin an extension.
pub(super) fn text_of_folder(folder: &Utf8Path) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{folder}.txt"))
}

/// Returns whether a file name has one of these extensions, in upper or lower case.
pub(super) fn is_of(ending: Option<&str>, endings: &[&str]) -> bool {
    ending.is_some_and(|ending| endings.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

/// Reads the rows of a folder, and notes about other files in it.
pub(super) fn read(folder: &Utf8Path, files: Files) -> Result<(Vec<ClipRow>, Vec<String>), Failure> {
    let mut notes = Vec::new();
    let named = files.videos.into_iter().chain(files.pictures).map(|path| (path.with_extension("txt"), path));
    let folders = files.frame_folders.into_iter().map(|path| (text_of_folder(&path), path));
    let (mut rows, used) = rows_of(folder, named.chain(folders))?;
    for path in files.unnamed {
        let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
        let excluded = Some(ExclusionReason::NameNotUtf8);
        rows.push(ClipRow { path: folder.join(&name), name, excluded, ..ClipRow::default() });
    }
    notes.extend(texts_alone(folder, &files.texts, &used, "video"));
    if files.without_caption > 0 {
        let skipped = units::counted(files.without_caption, "picture");
        notes.push(format!(
            "{skipped} skipped: a picture needs a .txt file of the same name, and no video of that name"
        ));
    }
    notes.extend(others_skipped(files.other_pictures));
    Ok((rows, notes))
}

/// Makes a row for each path with its text file. Returns also the text files.
pub(super) fn rows_of(
    folder: &Utf8Path,
    paths: impl Iterator<Item = (Utf8PathBuf, Utf8PathBuf)>,
) -> Result<(Vec<ClipRow>, BTreeSet<Utf8PathBuf>), Failure> {
    let (mut rows, mut texts) = (Vec::new(), BTreeSet::new());
    for (text, path) in paths {
        let text = on_disk(text);
        let caption = caption_file(&text).map_err(|error| unreadable(&text, error))?;
        let below = |path: &Utf8Path| path.strip_prefix(folder).unwrap_or(path).to_string();
        rows.push(ClipRow { name: below(&path), origin: below(&text), caption, path, ..ClipRow::default() });
        texts.insert(text);
    }
    Ok((rows, texts))
}

/// Returns the note about text files that are not the caption of a clip.
pub(super) fn texts_alone(
    folder: &Utf8Path,
    texts: &BTreeSet<Utf8PathBuf>,
    used: &BTreeSet<Utf8PathBuf>,
    clip: &str,
) -> Option<String> {
    let alone: Vec<&Utf8PathBuf> = texts.difference(used).collect();
    let first = alone.first()?;
    let first = first.strip_prefix(folder).unwrap_or(first);
    let counted = units::counted(alone.len(), "text file");
    Some(format!("{counted} without a {clip} of the same name, first {first}"))
}

/// Returns the note about pictures of formats that cannot be read.
pub(super) fn others_skipped(count: usize) -> Option<String> {
    let skipped = units::counted(count, "picture");
    let endings = OTHER_PICTURE_ENDINGS.join(", ");
    (count > 0).then(|| format!("{skipped} skipped: {endings} cannot be read; convert them to png"))
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
            format!(
                "it has {}, and {} cannot be read",
                units::counted(pictures, "picture"),
                OTHER_PICTURE_ENDINGS.join(", ")
            ),
            "convert the pictures to png, jpg or webp, for example: ffmpeg -i a.bmp a.png",
        ),
        (pictures, ..) => invalid(
            what,
            format!("it has {} without a text file of the same name", units::counted(pictures, "picture")),
            "write the caption of a.png to a.txt; if a folder holds the frames of one clip, write the caption of clip/ to clip.txt beside it",
        ),
    }
}

//! Reads a folder in which each clip is a folder of pictures with its caption beside it: `clips/a/1.png`, `clips/a/2.png`… and
//! `clips/a.txt`.

use super::pairs::{Files, others_skipped, rows_of, text_of_folder, texts_alone};
use super::{ClipRow, invalid};
use camino::Utf8Path;
use rundir::Failure;

/// Reads the rows of a folder, one per folder of pictures below it, and notes about other files.
pub(super) fn read(folder: &Utf8Path, files: Files) -> Result<(Vec<ClipRow>, Vec<String>), Failure> {
    let paths = files.picture_folders.into_iter().map(|path| (text_of_folder(&path), path));
    let (rows, used) = rows_of(folder, paths)?;
    let mut notes: Vec<String> = texts_alone(folder, &files.texts, &used, "folder").into_iter().collect();
    let pictures = files.pictures.iter().filter(|path| path.parent() == Some(folder)).count();
    let others = [(files.videos.len() + files.unnamed.len(), "video"), (pictures, "picture")];
    let others = others.into_iter().filter(|(count, _)| *count > 0).map(|(count, kind)| units::counted(count, kind));
    let others: Vec<String> = others.collect();
    if !others.is_empty() {
        notes.push(format!("{} skipped: --layout pairs reads files and folders of frames", others.join(" and ")));
    }
    notes.extend(others_skipped(files.other_pictures));
    Ok((rows, notes))
}

/// Formats a number of folders.
pub(super) fn counted(folders: usize) -> String {
    format!("{} of frames", units::counted(folders, "folder"))
}

/// Makes the error for a folder without folders of pictures.
pub(super) fn no_folders(folder: &Utf8Path) -> Failure {
    invalid(
        format!("{folder} has no folders of frames"),
        "no folder below it has pictures: png, jpg or webp",
        "put the frames of each clip into a folder, clip/0001.png, clip/0002.png…, and its caption beside the folder: clip.txt",
    )
}

//! Two text files with the same number of lines: `prompts.txt` and `videos.txt`.

use super::paths::{Located, locate_bytes};
use super::table::Rows;
use super::text::caption;
use super::{ClipRow, invalid, read_utf8};
use camino::Utf8Path;
use rundir::Failure;

/// The names of the list of captions, in order of preference.
pub(super) const CAPTIONS: [&str; 4] = ["prompts.txt", "captions.txt", "prompt.txt", "caption.txt"];
/// The names of the list of videos.
pub(super) const VIDEOS: [&str; 2] = ["videos.txt", "video.txt"];

/// Returns the first of the names that exists as a file in the folder.
pub(super) fn find(folder: &Utf8Path, names: &[&'static str]) -> Option<&'static str> {
    names.iter().copied().find(|name| folder.join(name).is_file())
}

/// Reads the rows of two lists.
pub(super) fn read(folder: &Utf8Path, root: &Utf8Path, captions: &str, videos: &str) -> Result<Vec<ClipRow>, Failure> {
    let lines = |name: &str| -> Result<Vec<Vec<u8>>, Failure> {
        let path = folder.join(name);
        let bytes = read_utf8(&path)?;
        // A newline at the end of the file does not begin another line.
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        Ok(if bytes.is_empty() { vec![] } else { bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect() })
    };
    let (captions_of, videos_of) = (lines(captions)?, lines(videos)?);
    if captions_of.len() != videos_of.len() {
        return Err(invalid(
            format!("cannot pair {captions} with {videos} in {folder}"),
            format!(
                "{captions} has {}, {videos} has {}",
                units::counted(captions_of.len(), "line"),
                units::counted(videos_of.len(), "line")
            ),
            "line N of one belongs to line N of the other: a caption must be on one line",
        ));
    }
    let row = |(number, (text, video)): (usize, (Vec<u8>, Vec<u8>))| {
        let Located { name, path, excluded } = locate_bytes(root, &video);
        let origin = format!("{captions} line {}", number + 1);
        ClipRow { name, path, excluded, caption: caption(text), origin, ..ClipRow::default() }
    };
    let path = folder.join(captions);
    let mut all = Rows::of(&path);
    all.add(captions_of.into_iter().zip(videos_of).enumerate().map(row))?;
    Ok(all.done())
}

//! Reads captions: decodes their bytes and cleans the text.

use super::{Caption, CaptionFault};
use camino::Utf8Path;
use std::fs;
use std::io;

/// Reads the caption in a file. The whole file is one caption.
pub(super) fn caption_file(path: &Utf8Path) -> io::Result<Caption> {
    match fs::read(path) {
        Ok(bytes) => Ok(caption(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Err(CaptionFault::Missing)),
        Err(error) => Err(error),
    }
}

/// Makes a caption from bytes: without byte order mark, with `\n` between lines, without white space at its ends.
pub(super) fn caption(bytes: &[u8]) -> Caption {
    let text = std::str::from_utf8(without_mark(bytes)).map_err(|_| CaptionFault::NotUtf8)?;
    clean(text)
}

/// Makes a caption from a text, as [`caption`] does from bytes.
pub(super) fn clean(text: &str) -> Caption {
    match text.trim() {
        "" => Err(CaptionFault::Empty),
        text => Ok(text.replace("\r\n", "\n")),
    }
}

/// Removes the byte order mark that editors of Windows write.
pub(super) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captions_lose_marks_and_white_space_and_keep_their_lines() {
        assert_eq!(caption(b"\xef\xbb\xbf a cat\r\nsleeps \r\n"), Ok("a cat\nsleeps".into()));
        assert_eq!(caption(b" \r\n"), Err(CaptionFault::Empty));
        assert_eq!(caption(b"caf\xe9"), Err(CaptionFault::NotUtf8));
        // UTF-16, which Notepad writes.
        assert_eq!(caption(b"\xff\xfea\0"), Err(CaptionFault::NotUtf8));
    }
}

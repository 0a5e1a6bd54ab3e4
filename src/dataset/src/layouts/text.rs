//! Reads captions: decodes their bytes and cleans the text.

use super::{Caption, CaptionFault};
use camino::Utf8Path;
use std::fs;
use std::io;

/// Reads the caption in a file. The whole file is one caption.
pub(super) fn caption_file(path: &Utf8Path) -> io::Result<Caption> {
    match fs::read(path) {
        Ok(bytes) => Ok(caption(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Err(CaptionFault::Missing)),
        Err(error) => Err(error),
    }
}

/// Makes a caption from bytes: without byte order mark, with `\n` between lines, without white space at its ends.
pub(super) fn caption(bytes: Vec<u8>) -> Caption {
    clean(&text_file::decode(bytes).map_err(CaptionFault::NotUtf8)?)
}

/// Makes a caption from a text, as [`caption`] does from bytes.
pub(super) fn clean(text: &str) -> Caption {
    match text.trim() {
        "" => Err(CaptionFault::Empty),
        text => Ok(text.replace("\r\n", "\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captions_lose_marks_and_white_space_and_keep_their_lines() {
        let caption = |bytes: &[u8]| caption(bytes.to_vec());
        assert_eq!(caption(b"\xef\xbb\xbf a cat\r\nsleeps \r\n"), Ok("a cat\nsleeps".into()));
        assert_eq!(caption(b" \r\n"), Err(CaptionFault::Empty));
        assert!(matches!(caption(b"caf\xe9"), Err(CaptionFault::NotUtf8(_))));
        // UTF-16, which Notepad writes.
        assert_eq!(caption(b"\xff\xfea\0"), Ok("a".into()));
    }
}

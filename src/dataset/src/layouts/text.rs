//! Reads captions: decodes their bytes and cleans the text.

use super::{Caption, CaptionFault};
use camino::Utf8Path;
use rundir::read_regular;
use std::io::{self, ErrorKind};

/// The largest file of a caption: 1 MiB. A caption has a few thousand characters.
const MAX_CAPTION: u64 = 1 << 20;

/// Reads the caption in a file. The whole file is one caption.
pub(super) fn caption_file(path: &Utf8Path) -> io::Result<Caption> {
    match read_regular(path, MAX_CAPTION) {
        Ok(bytes) => Ok(caption(bytes)),
        Err(error) => match error.kind() {
            ErrorKind::NotFound => Ok(Err(CaptionFault::Missing)),
            ErrorKind::InvalidInput | ErrorKind::IsADirectory => Ok(Err(CaptionFault::NotAFile)),
            ErrorKind::InvalidData => Ok(Err(CaptionFault::TooLarge)),
            ErrorKind::PermissionDenied => Ok(Err(CaptionFault::NotAllowed)),
            _ => Err(error),
        },
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
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_pipe_a_device_a_folder_and_a_huge_file_are_not_captions() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| camino::Utf8PathBuf::from_path_buf(folder.path().join(name)).unwrap();
        mkfifo(at("pipe").as_std_path(), Mode::S_IRWXU).unwrap();
        symlink("/dev/zero", at("device")).unwrap();
        std::fs::File::create(at("huge")).unwrap().set_len(1 << 40).unwrap();
        let read = |path: &Utf8Path| caption_file(path).unwrap();
        assert_eq!(read(&at("pipe")), Err(CaptionFault::NotAFile));
        assert_eq!(read(&at("device")), Err(CaptionFault::NotAFile));
        assert_eq!(read(&at("")), Err(CaptionFault::NotAFile));
        assert_eq!(read(&at("huge")), Err(CaptionFault::TooLarge));
        assert_eq!(read(&at("none")), Err(CaptionFault::Missing));
        if nix::unistd::Uid::effective().is_root() {
            std::fs::write(at("private"), "a secret").unwrap();
            std::fs::set_permissions(at("private"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            symlink(at("private"), at("stolen")).unwrap();
            std::os::unix::fs::lchown(at("stolen"), Some(1042), None).unwrap();
            assert_eq!(read(&at("stolen")), Err(CaptionFault::NotAllowed));
        }
    }

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

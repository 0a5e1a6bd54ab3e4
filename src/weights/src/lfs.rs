//! Recognizes the pointers of git-lfs: small files of text that a clone without git-lfs has in place of large files.

use camino::Utf8Path;
use rundir::{ErrorCode, Failure};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The first bytes of every pointer. Source: `docs/spec.md` of git-lfs.
const BEGIN: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Returns whether a file is a pointer.
pub(crate) fn is_pointer(file: &File) -> bool {
    let mut head = [0u8; BEGIN.len()];
    file.read_exact_at(&mut head, 0).is_ok() && head == *BEGIN
}

/// Returns the failure of reading a pointer as tensors.
pub(crate) fn failure(path: &Utf8Path) -> Failure {
    Failure::new(
        ErrorCode::Malformed,
        format!("cannot read {path}"),
        "it is a pointer of git-lfs: the clone does not have the data of this file",
        "run git lfs pull in the clone, or download the model with vidtui fetch OWNER/NAME",
    )
}

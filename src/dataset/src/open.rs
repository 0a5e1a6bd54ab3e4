//! Opens a data set, which is a store or an index of one file per clip.

use crate::index::Index;
use crate::store::{self, INDEX, SPEC};
use crate::table::Table;
use camino::{Utf8Path, Utf8PathBuf};
use recipe::Model;
use rundir::Failure;

impl Table {
    /// Opens a data set and checks that every tensor exists, is complete, and fits `model`. `path` is the folder of a store,
    /// its index, or an index with one file per clip.
    ///
    /// # Errors
    /// Names the first item that does not fit.
    pub fn open(path: &Utf8Path, model: &Model) -> Result<Self, Failure> {
        match store_folder(path) {
            Some(folder) => store::open_table(&folder, model),
            None => Index::open(path)?.table(model),
        }
    }
}

/// Returns the folder of a store, if `path` is one or its index.
pub fn store_folder(path: &Utf8Path) -> Option<Utf8PathBuf> {
    if path.is_dir() {
        return Some(path.to_owned());
    }
    let folder = path.parent().unwrap_or(Utf8Path::new(""));
    (path.file_name() == Some(INDEX) && folder.join(SPEC).exists()).then(|| folder.to_owned())
}

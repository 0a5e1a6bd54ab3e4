//! The folders of the repository and the user's cache.

use std::env;

use camino::{Utf8Path, Utf8PathBuf};

use crate::failure::{Failure, Result};

/// Returns the repository's folder.
pub fn root() -> &'static Utf8Path {
    let manifest = Utf8Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).expect("the crate is in src/xtask")
}

/// Returns the folder of cargo's release builds.
pub fn release_dir() -> Utf8PathBuf {
    match env::var("CARGO_TARGET_DIR") {
        Ok(dir) if !dir.is_empty() => root().join(dir).join("release"),
        _ => root().join("target/release"),
    }
}

/// Returns the user's cache folder for this project, which all checkouts share.
pub fn cache_dir() -> Result<Utf8PathBuf> {
    let absolute = |name| env::var(name).ok().map(Utf8PathBuf::from).filter(|dir| dir.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("vidtui")).ok_or_else(|| {
        Failure::new("cannot find a cache folder", "neither XDG_CACHE_HOME nor HOME is an absolute path", "set HOME")
    })
}

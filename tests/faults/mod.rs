//! A library that makes operators of libtorch fail in one rank, with the types of exceptions that libtorch throws.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the environment variables that make the copies of the optimizer in a rank fail after some calls. Compiles the library into a
/// folder. Returns `None`, and prints why, without libtorch's headers.
///
/// `kind` is one of those in `operator.cpp`.
pub fn environment(folder: &Path, kind: &str, rank: usize, after: usize) -> Option<Vec<(&'static str, String)>> {
    let library = library(folder)?;
    Some(vec![
        ("LD_PRELOAD", library.display().to_string()),
        ("FAULT_KIND", kind.to_owned()),
        ("FAULT_RANK", rank.to_string()),
        ("FAULT_AFTER", after.to_string()),
    ])
}

fn library(folder: &Path) -> Option<PathBuf> {
    let library = folder.join("fault.so");
    if library.exists() {
        return Some(library);
    }
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let libtorch = std::env::var_os("LIBTORCH").map_or_else(|| project.join(".libtorch"), PathBuf::from);
    let (headers, libraries) = (libtorch.join("include"), libtorch.join("lib"));
    if !headers.join("c10").is_dir() {
        println!("skipped: no headers of libtorch in {}; `cargo xtask test` installs them", headers.display());
        return None;
    }
    let source = project.join("tests/faults/operator.cpp");
    let mut compile = Command::new("c++");
    compile.args(["-std=c++17", "-O1", "-fPIC", "-shared", "-isystem"]).arg(headers);
    // Shells inherit the variable too, and have no libtorch of their own.
    let linked = [format!("-L{}", libraries.display()), format!("-Wl,-rpath,{}", libraries.display())];
    let done = compile.arg(source).arg("-o").arg(&library).args(linked).args(["-lc10", "-ldl"]).output();
    let done = done.unwrap_or_else(|error| panic!("cannot start c++: {error}"));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(library)
}

//! Gives the program its version with the commit and the target that it was built from, for `vidtui --version`.

#[path = "src/git_commit.rs"]
mod git_commit;

use std::env;
use std::path::Path;

/// The characters of a commit that are enough to find it.
const SHORT: usize = 12;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/git_commit.rs");
    println!("cargo:rerun-if-env-changed=VIDTUI_COMMIT");
    let [version, target] = ["CARGO_PKG_VERSION", "TARGET"].map(|name| env::var(name).expect("cargo sets it"));
    let commit = env::var("VIDTUI_COMMIT").ok().filter(|commit| !commit.is_empty()).or_else(own_commit);
    let commit = commit.map_or_else(String::new, |commit| {
        let short: String = commit.chars().take(SHORT).collect();
        format!("commit {short}, ")
    });
    println!("cargo:rustc-env=VIDTUI_VERSION={version} ({commit}{target})");
}

/// Returns the commit that the sources of this program are checked out from; `None` in an archive of the sources. A debug build has
/// none, because each commit would build it again.
fn own_commit() -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // A repository around the archive of the sources has other commits.
    if env::var("PROFILE").is_ok_and(|profile| profile == "debug") || !root.join(".git").exists() {
        return None;
    }
    let head = git_commit::git_folder(&root)?.join("logs/HEAD");
    // Cargo runs this script before every build if it watches a file that does not exist.
    if head.exists() {
        println!("cargo:rerun-if-changed={}", head.display());
    }
    git_commit::git_commit(&root)
}

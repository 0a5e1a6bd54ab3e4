//! Finds the commit of a folder. The build script uses this file too, for the commit of this program.

use std::path::{Path, PathBuf};

/// Returns the commit that is checked out in the folder or in a folder above it. Reads the files of git, because git may be missing.
pub fn git_commit(folder: &Path) -> Option<String> {
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    let git = git_folder(folder)?;
    let head = read(git.join("HEAD"))?;
    let Some(reference) = head.trim().strip_prefix("ref: ") else { return Some(head.trim().to_owned()) };
    // A worktree shares the references of its repository.
    let shared = read(git.join("commondir")).map_or_else(|| git.clone(), |path| git.join(path.trim()));
    if let Some(commit) = read(git.join(reference)).or_else(|| read(shared.join(reference))) {
        return Some(commit.trim().to_owned());
    }
    let packed = read(shared.join("packed-refs"))?;
    packed.lines().find_map(|line| line.strip_suffix(reference)).map(|commit| commit.trim().to_owned())
}

/// Returns the folder in which git keeps the commit that is checked out.
pub fn git_folder(folder: &Path) -> Option<PathBuf> {
    let git = folder.ancestors().map(|folder| folder.join(".git")).find(|git| git.exists())?;
    // In a worktree and in a submodule, a file has the path of the folder.
    match std::fs::read_to_string(&git) {
        Ok(file) => Some(git.parent()?.join(file.trim().strip_prefix("gitdir: ")?)),
        Err(_) => Some(git),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_of_a_worktree_is_found_through_the_file_that_names_its_folder() {
        let keep = tempfile::tempdir().unwrap();
        let root = keep.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("main/.git/HEAD", "ref: refs/heads/main\n");
        write("main/.git/refs/heads/main", "aaaa\n");
        write("main/.git/refs/heads/side", "bbbb\n");
        write("main/.git/worktrees/side/HEAD", "ref: refs/heads/side\n");
        write("main/.git/worktrees/side/commondir", "../..\n");
        write("side/.git", &format!("gitdir: {}/main/.git/worktrees/side\n", root.display()));
        std::fs::create_dir_all(root.join("side/configs")).unwrap();
        assert_eq!(git_commit(&root.join("main")).as_deref(), Some("aaaa"));
        assert_eq!(git_commit(&root.join("side/configs")).as_deref(), Some("bbbb"));
    }
}

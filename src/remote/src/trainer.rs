//! Finds the trainer on this machine and reads its version and hash.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use plan::TrainerBinary;
use rundir::{ErrorCode, Failure};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::child::wait;

/// The name of the trainer's binary.
const BINARY: &str = "vidtui-train";
/// The environment variable that names a trainer. It takes precedence over all other locations.
const VARIABLE: &str = "VIDTUI_TRAIN";
/// The time limit of `version --json`. Loading libtorch from a cold disk takes seconds.
const VERSION_TIMEOUT: Duration = Duration::from_secs(60);

const WHAT: &str = "cannot find the trainer";

/// Finds the trainer. Reads its version and hash again only when its file has changed, because loading libtorch takes a quarter
/// of a second of CPU time.
#[derive(Debug, Default)]
pub struct TrainerFinder {
    known: Mutex<Option<(FileVersion, TrainerBinary)>>,
}

/// The path of a file, with the metadata that change when it is replaced or written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileVersion {
    path: Utf8PathBuf,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileVersion {
    fn of(path: &Utf8Path) -> io::Result<Self> {
        let meta = path.metadata()?;
        Ok(Self {
            path: path.to_owned(),
            inode: meta.ino(),
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }
}

impl TrainerFinder {
    /// Finds the trainer and reads its version: `$VIDTUI_TRAIN`, else beside this program, else in `$PATH`.
    ///
    /// # Errors
    /// When the trainer is in none of these locations, or does not run.
    pub fn find(&self) -> Result<TrainerBinary, Failure> {
        self.read(&trainer_path()?)
    }

    fn read(&self, path: &Utf8Path) -> Result<TrainerBinary, Failure> {
        let version = FileVersion::of(path).ok();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(version), Some((known, binary))) = (&version, &*known)
            && version == known
        {
            return Ok(binary.clone());
        }
        let binary = probe(path)?;
        *known = version.map(|version| (version, binary.clone()));
        Ok(binary)
    }
}

/// Returns this program as the trainer binary, because this program supervises runs of a user's command.
///
/// # Errors
/// When the file of this program cannot be read.
pub fn own_program(version: &str) -> Result<TrainerBinary, Failure> {
    let failed = |why: String| {
        Failure::new(ErrorCode::TrainerUnusable, "cannot supervise a command", why, "check that /proc is mounted")
    };
    let path = env::current_exe().map_err(|error| failed(format!("the path of this program is unknown: {error}")))?;
    let path = Utf8PathBuf::from_path_buf(path)
        .map_err(|path| failed(format!("the path of this program is not UTF-8: {}", path.display())))?;
    let sha256 = sha256(&path).map_err(|error| failed(format!("{path}: {error}")))?;
    let (tch, libtorch) = (String::new(), String::new());
    Ok(TrainerBinary { path, version: version.to_owned(), tch, libtorch, cuda: false, sha256 })
}

/// Finds the trainer in the locations of [`TrainerFinder::find`], without running it.
///
/// # Errors
/// When the trainer is in none of them.
pub fn trainer_path() -> Result<Utf8PathBuf, Failure> {
    let own = env::current_exe().ok().and_then(|path| Utf8PathBuf::from_path_buf(path).ok());
    find(env::var_os(VARIABLE), own.as_deref(), env::var_os("PATH"))
}

/// Finds the binary: the one that the variable names, the one beside `own`, or the first in `path`.
fn find(variable: Option<OsString>, own: Option<&Utf8Path>, path: Option<OsString>) -> Result<Utf8PathBuf, Failure> {
    if let Some(named) = variable {
        let named = Utf8PathBuf::from(named.to_string_lossy().into_owned());
        if is_executable(&named) {
            return Ok(absolute(named));
        }
        let why = format!("{VARIABLE} is set to {named}, which is not an executable file");
        let fix = format!("set {VARIABLE} to the {BINARY} to use, or unset it");
        return Err(Failure::new(ErrorCode::TrainerUnusable, WHAT, why, fix));
    }
    let mut folders = Vec::new();
    if let Some(folder) = own.and_then(Utf8Path::parent) {
        folders.push(folder.to_owned());
        // The trainer is always built in the release profile; the console may be a debug build.
        if folder.file_name() == Some("debug") {
            folders.push(folder.with_file_name("release"));
        }
    }
    let path = path.unwrap_or_default();
    let of_path = env::split_paths(&path).filter_map(|folder| Utf8PathBuf::from_path_buf(folder).ok());
    let mut candidates = folders.iter().cloned().chain(of_path).map(|folder| folder.join(BINARY));
    if let Some(found) = candidates.find(|path| is_executable(path)) {
        return Ok(absolute(found));
    }
    let searched = folders.iter().map(|folder| folder.as_str()).chain(["$PATH"]).collect::<Vec<_>>();
    let why = format!("there is no {BINARY} in {}", searched.join(", "));
    let fix = format!("build it with `cargo xtask build`, or set {VARIABLE} to its path");
    Err(Failure::new(ErrorCode::TrainerUnusable, WHAT, why, fix))
}

fn is_executable(path: &Utf8Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn absolute(path: Utf8PathBuf) -> Utf8PathBuf {
    camino::absolute_utf8(&path).unwrap_or(path)
}

/// The output of `vidtui-train version --json`.
#[derive(Deserialize)]
struct Version {
    version: String,
    tch: String,
    libtorch: String,
    cuda: bool,
}

/// Runs a trainer to read its version, and hashes its file.
fn probe(path: &Utf8Path) -> Result<TrainerBinary, Failure> {
    let what = format!("cannot use the trainer {path}");
    let fail = |why: String| {
        let fix = format!("test it: `{path} version --json`; rebuild it with `cargo xtask build`, or set {VARIABLE}");
        Failure::new(ErrorCode::TrainerUnusable, &*what, why, fix)
    };
    let io = |error: io::Error| fail(error.to_string());
    let mut child = Command::new(path)
        .args(["version", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(io)?;
    // The output fits into the pipes, so the trainer does not block before it is read.
    let Some(status) = wait(&mut child, VERSION_TIMEOUT).map_err(io)? else {
        return Err(fail(format!("`version --json` did not exit within {} s", VERSION_TIMEOUT.as_secs())));
    };
    let (mut stdout, mut stderr) = (String::new(), String::new());
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut stdout).map_err(io)?;
    }
    if let Some(mut pipe) = child.stderr.take() {
        pipe.read_to_string(&mut stderr).map_err(io)?;
    }
    if !status.success() {
        return Err(fail(format!("`version --json` failed with {status}: {}", stderr.trim())));
    }
    let version: Version = serde_json::from_str(&stdout).map_err(|error| {
        fail(format!("`version --json` printed {:?}, which is not a version: {error}", stdout.trim()))
    })?;
    Ok(TrainerBinary {
        path: path.to_owned(),
        version: version.version,
        tch: version.tch,
        libtorch: version.libtorch,
        cuda: version.cuda,
        sha256: sha256(path).map_err(io)?,
    })
}

fn sha256(path: &Utf8Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap();
        (temp, path)
    }

    /// Writes an executable script named like the trainer.
    fn script(folder: &Utf8Path, text: &str) -> Utf8PathBuf {
        fs::create_dir_all(folder).unwrap();
        let path = folder.join(BINARY);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn the_variable_has_precedence_over_the_console_folder_and_that_over_path() {
        let (_temp, root) = folder();
        let [named, beside, in_path] =
            ["named", "target/release", "bin"].map(|name| script(&root.join(name), "#!/bin/sh\n"));
        let own = root.join("target/release/vidtui");
        let path = || Some(OsString::from(in_path.parent().unwrap()));
        assert_eq!(find(Some(named.as_os_str().to_owned()), Some(&own), path()), Ok(named));
        assert_eq!(find(None, Some(&own), path()), Ok(beside.clone()));
        assert_eq!(find(None, Some(&root.join("target/debug/vidtui")), path()), Ok(beside));
        assert_eq!(find(None, Some(&root.join("elsewhere/vidtui")), path()), Ok(in_path));
    }

    #[test]
    fn a_missing_trainer_is_an_error_that_lists_the_searched_folders() {
        let (_temp, root) = folder();
        fs::write(root.join(BINARY), "not executable").unwrap();
        let refusals = [
            find(None, Some(&root.join("debug/vidtui")), None),
            find(None, Some(&root.join("vidtui")), Some(root.as_os_str().to_owned())),
            find(Some(root.join(BINARY).into()), None, None),
        ];
        let refusals = refusals.map(|refusal| refusal.unwrap_err().to_string().replace(root.as_str(), "ROOT"));
        insta::assert_snapshot!(refusals.join("\n\n"));
    }

    /// Links to the fake trainer, whose name selects its behaviour. A link, because a file that was just written cannot be
    /// executed while another test starts a process.
    fn fake(folder: &Utf8Path, name: &str) -> Utf8PathBuf {
        let fake = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fakes/bin/vidtui-train");
        let link = folder.join(name);
        std::os::unix::fs::symlink(fake, &link).unwrap();
        link
    }

    #[test]
    fn the_version_of_a_trainer_is_read_and_its_file_is_hashed() {
        let (_temp, root) = folder();
        let trainer = probe(&fake(&root, BINARY)).unwrap();
        assert_eq!((trainer.version.as_str(), trainer.libtorch.as_str(), trainer.cuda), ("0.1.0", "2.11.0", false));
        assert_eq!(trainer.sha256.len(), 64);
        fs::write(root.join("empty"), "").unwrap();
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(&root.join("empty")).unwrap(), empty);
    }

    #[test]
    fn a_trainer_is_read_again_only_after_its_file_has_changed() {
        let (_temp, root) = folder();
        let runs = root.join("runs");
        let text = |version: &str| {
            let document = format!(r#"{{"version": "{version}", "tch": "", "libtorch": "", "cuda": false}}"#);
            format!("#!/bin/sh\necho >> {runs}\necho '{document}'\n")
        };
        let path = script(&root, &text("0.1.0"));
        let finder = TrainerFinder::default();
        // Another test may start a process while the script is open for writing.
        let read = || {
            let result = (0..3000).find_map(|_| {
                finder.read(&path).ok().or_else(|| {
                    std::thread::sleep(Duration::from_millis(20));
                    None
                })
            });
            result.expect("the script runs")
        };
        let (first, second) = (read(), read());
        assert_eq!(first, second);
        assert_eq!(fs::read_to_string(&runs).unwrap().lines().count(), 1);
        script(&root, &text("0.2.0 "));
        assert_eq!(read().version, "0.2.0 ");
    }

    #[test]
    fn a_trainer_that_does_not_run_is_an_error_with_its_output() {
        let (_temp, root) = folder();
        let paths = [fake(&root, "vidtui-train-broken"), "/bin/echo".into(), root.join("gone")];
        let refusals = paths.map(|path| probe(&path).unwrap_err().to_string().replace(root.as_str(), "ROOT"));
        insta::assert_snapshot!(refusals.join("\n\n"));
    }
}

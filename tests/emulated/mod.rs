//! Support for tests of CUDA kernels: compiles and runs the kernels on a CPU, and breaks them on purpose.
//!
//! `src/kernels/cuda/on_cpu` has an emulator of the CUDA instructions that the kernels use, a race checker, and programs that compare
//! kernels with a reference. g++ compiles them, so they need neither a GPU, nor CUDA, nor libtorch.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use tempfile::TempDir;

/// The exit statuses of the programs.
pub const AGREES: i32 = 0;
const NUMBERS_DIFFER: i32 = 1;
const THREADS_RACE: i32 = 2;
const STOPPED: i32 = 3;

/// Returns the folder of the kernels.
pub fn cuda() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/cuda").canonicalize().unwrap()
}

/// Returns g++'s flag for an include folder.
pub fn include(path: &Path) -> String {
    format!("-I{}", path.display())
}

fn compile<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Output {
    Command::new("g++").arg("-std=c++17").args(args).output().expect("g++ starts")
}

/// Runs g++, which must succeed.
pub fn compiled<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) {
    let out = compile(args);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// A program that runs kernels: sources in `on_cpu`.
pub struct Program {
    /// The source that includes the kernels.
    pub kernels: &'static str,
    /// The sources without kernels.
    pub parts: &'static [&'static str],
}

impl Program {
    /// Returns the program with the kernels in the folder `kernels`. Compiles it, unless it was compiled from the same files in the last
    /// month.
    pub fn compile(&self, kernels: &Path, defines: &[String]) -> PathBuf {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
        let program = kept.join(format!("{}-{:016x}", self.kernels, hash(kernels, defines)));
        if !program.exists() {
            fs::create_dir_all(&kept).unwrap();
            remove_old(&kept);
            let dir = TempDir::new_in(&kept).unwrap();
            // Another test may compile the same program.
            fs::rename(self.compile_in(dir.path(), kernels, defines), &program).unwrap();
        }
        program
    }

    fn compile_in(&self, dir: &Path, kernels: &Path, defines: &[String]) -> PathBuf {
        let program = dir.join("check");
        let source = |name: &str| cuda().join("on_cpu").join(name).with_extension("cpp").display().to_string();
        let object = |name: &str| dir.join(name).with_extension("o").display().to_string();
        for part in self.parts {
            compiled(["-O2", "-c", &source(part), "-o", &object(part)]);
        }
        // The race checker takes the place of the sanitizer's library, so linking does not name the sanitizer.
        let flags = ["-O1", "-fsanitize=thread", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-c"];
        let own = [
            include(&cuda().join("on_cpu")),
            include(kernels),
            source(self.kernels),
            "-o".to_owned(),
            object(self.kernels),
        ];
        compiled(flags.into_iter().chain(defines.iter().chain(&own).map(String::as_str)));
        let objects = self.parts.iter().chain([&self.kernels]).map(|name| object(name));
        compiled(objects.chain(["-o".to_owned(), program.display().to_string()]));
        program
    }
}

/// Returns a hash of the compiler's version, the sources and the flags.
fn hash(kernels: &Path, defines: &[String]) -> u64 {
    let mut hash = DefaultHasher::new();
    (compile(["--version"]).stdout, defines).hash(&mut hash);
    // A change of the flags is a change of this file.
    include_str!("mod.rs").hash(&mut hash);
    for folder in [&cuda().join("on_cpu"), kernels] {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files: BTreeSet<PathBuf> = entries.filter(|path| path.is_file()).collect();
        files.iter().for_each(|file| (file.file_name(), fs::read(file).unwrap()).hash(&mut hash));
    }
    hash.finish()
}

/// Removes programs that were compiled more than a month ago, and folders of compilations that were killed. Another test may have removed
/// one before.
fn remove_old(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let age = entry.metadata().ok().and_then(|meta| meta.modified().ok()?.elapsed().ok()).unwrap_or_default();
        if age > Duration::from_secs(30 * 86400) {
            let _ = fs::remove_file(entry.path()).or_else(|_| fs::remove_dir_all(entry.path()));
        }
    }
}

/// Runs a program; returns its exit status and what it printed.
pub fn run(program: &Path, args: &[String]) -> (i32, String) {
    let out = Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    (out.status.code().unwrap_or(STOPPED), text.into_owned())
}

/// Runs a program with each list of arguments; returns the reason of the first failure.
pub fn failure(program: &Path, runs: impl IntoIterator<Item = Vec<String>>, what: &str) -> Option<&'static str> {
    for args in runs {
        match run(program, &args).0 {
            AGREES => {}
            NUMBERS_DIFFER => return Some("numbers differ"),
            THREADS_RACE => return Some("threads race"),
            STOPPED => return Some("the emulator stopped the kernel"),
            status => panic!("{what}: exit status {status}"),
        }
    }
    None
}

/// The ways in which kernels are broken, one at a time.
pub struct Breaks {
    /// Headers that the kernels need. All are copied.
    pub headers: &'static [&'static str],
    /// The headers in which statements are removed.
    pub kernels: &'static [&'static str],
    /// Statements that are removed, one place at a time.
    pub statements: &'static [&'static str],
    /// Texts that are replaced, each in one file: file, text, replacement.
    pub wrong: &'static [(&'static str, &'static str, &'static str)],
}

/// A broken copy of one file.
pub struct Mutant {
    file: &'static str,
    what: String,
    text: String,
}

impl Breaks {
    /// Returns all broken files.
    pub fn mutants(&self) -> Vec<Mutant> {
        let read = |file: &str| fs::read_to_string(cuda().join(file)).unwrap();
        let mut all = Vec::new();
        for file in self.kernels {
            let text = read(file);
            for statement in self.statements {
                for (at, _) in text.match_indices(statement) {
                    let line = text[..at].lines().count();
                    let text = format!("{};{}", &text[..at], &text[at + statement.len()..]);
                    all.push(Mutant { file, what: format!("{file}:{line} without {statement}"), text });
                }
            }
        }
        for (file, right, wrong) in self.wrong {
            let text = read(file);
            assert!(text.contains(right), "{file} does not contain {right:?}");
            all.push(Mutant {
                file,
                what: format!("{file}: {wrong} for {right}"),
                text: text.replacen(right, wrong, 1),
            });
        }
        all
    }

    /// Checks that a test finds every broken file. `why` compiles the kernels in a folder, runs them, and returns why they fail.
    pub fn all_found(
        &self,
        mutants: impl IntoIterator<Item = Mutant>,
        why: impl Fn(&Path, &str) -> Option<&'static str>,
    ) {
        let mut missed = Vec::new();
        for mutant in mutants {
            let dir = TempDir::new().unwrap();
            for file in self.headers {
                fs::copy(cuda().join(file), dir.path().join(file)).unwrap();
            }
            fs::write(dir.path().join(mutant.file), &mutant.text).unwrap();
            let why = why(dir.path(), &mutant.what);
            println!("{}: {}", mutant.what, why.unwrap_or("not found"));
            if why.is_none() {
                missed.push(mutant.what);
            }
        }
        assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
    }
}

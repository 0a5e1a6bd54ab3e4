//! Support for tests of CUDA kernels: compiles and runs the kernels on a CPU, and breaks them on purpose.
//!
//! `src/kernels/cuda/on_cpu` has an emulator of the CUDA instructions that the kernels use, a race checker, and programs that compare
//! kernels with a reference. g++ compiles them, so they need neither a GPU, nor CUDA, nor libtorch.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
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
            "-include".to_owned(),
            "fault.h".to_owned(),
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
    let out = Command::new(program).args(args).env_remove("FAULT").output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    (out.status.code().unwrap_or(STOPPED), text.into_owned())
}

/// Runs a program with each list of arguments, with the fault of this number; returns the reason of the first failure.
pub fn failure(program: &Path, fault: usize, runs: impl IntoIterator<Item = Vec<String>>) -> Option<&'static str> {
    for args in runs {
        let status = Command::new(program).args(&args).env("FAULT", fault.to_string()).output().unwrap().status;
        match status.code().unwrap_or(STOPPED) {
            AGREES => {}
            NUMBERS_DIFFER => return Some("numbers differ"),
            THREADS_RACE => return Some("threads race"),
            STOPPED => return Some("the emulator stopped the kernel"),
            status => panic!("fault {fault}, {args:?}: exit status {status}"),
        }
    }
    None
}

/// Faults of kernels. They are compiled into one program, and a run has at most one of them.
pub struct Faults {
    /// Headers that the kernels need. All are copied.
    pub headers: &'static [&'static str],
    /// The headers in which statements are removed.
    pub kernels: &'static [&'static str],
    /// Statements that are removed, one place at a time.
    pub removed: &'static [&'static str],
    /// Changes of one place: a file, and its code around the place, which is written `«right|wrong»` or `«right|wrong|another wrong»`. The
    /// place is an expression, or statements that end with a semicolon.
    pub wrong: &'static [(&'static str, &'static str)],
}

/// The place of a fault in a file.
struct Place {
    code: Range<usize>,
    /// The number of the first fault, and the code of each fault.
    first: usize,
    wrong: Vec<String>,
}

impl Faults {
    /// Writes the headers with all faults into a folder. A fault is active in a run whose variable `FAULT` is its number. Returns the
    /// descriptions of the faults, which have the numbers 1, 2, 3, …
    pub fn write(&self, folder: &Path) -> Vec<String> {
        let mut described = Vec::new();
        for file in self.headers {
            let code = fs::read_to_string(cuda().join(file)).unwrap();
            let mut places = self.places(file, &code, &mut described);
            places.sort_by_key(|place| place.code.start);
            let (mut text, mut end) = (String::new(), 0);
            for place in &places {
                assert!(end <= place.code.start, "{file}: faults overlap at {:?}", &code[place.code.clone()]);
                text += &code[end..place.code.start];
                text += &place.choice(&code[place.code.clone()]);
                end = place.code.end;
            }
            fs::write(folder.join(file), text + &code[end..]).unwrap();
        }
        described
    }

    fn places(&self, file: &str, code: &str, described: &mut Vec<String>) -> Vec<Place> {
        let mut places = Vec::new();
        let mut add = |code: Range<usize>, wrong: Vec<String>, what: Vec<String>| {
            places.push(Place { code, first: described.len() + 1, wrong });
            described.extend(what);
        };
        for statement in self.removed.iter().filter(|_| self.kernels.contains(&file)) {
            for (at, _) in code.match_indices(statement) {
                let line = code[..at].lines().count();
                add(at..at + statement.len(), vec![String::new()], vec![format!("{file}:{line} without {statement}")]);
            }
        }
        for (_, marked) in self.wrong.iter().filter(|(of, _)| *of == file) {
            let (before, rest) = marked.split_once('«').unwrap();
            let (choice, after) = rest.split_once('»').unwrap();
            let (right, wrong) = choice.split_once('|').unwrap();
            let at = code.find(&format!("{before}{right}{after}"));
            let at = at.unwrap_or_else(|| panic!("{file} does not contain {marked:?}")) + before.len();
            let wrong: Vec<String> = wrong.split('|').map(str::to_owned).collect();
            let what = wrong.iter().map(|wrong| format!("{file}: {wrong} for {right}")).collect();
            add(at..at + right.len(), wrong, what);
        }
        places
    }
}

impl Place {
    /// Returns code that executes the code of the active fault, or else the right code.
    fn choice(&self, right: &str) -> String {
        let wrong = self.wrong.iter().enumerate().rev();
        if right.ends_with(';') {
            let choose = |rest, (i, code): (usize, &String)| {
                format!("if (has_fault({})) {{ {code} }} else {{ {rest} }}", self.first + i)
            };
            return format!("{{ {} }}", wrong.fold(right.to_owned(), choose));
        }
        let choose =
            |rest, (i, code): (usize, &String)| format!("(has_fault({}) ? ({code}) : ({rest}))", self.first + i);
        wrong.fold(right.to_owned(), choose)
    }
}

/// Checks that `why` returns the reason of a failure for each fault, and none for a run without fault.
pub fn all_found(faults: &[String], why: impl Fn(usize) -> Option<&'static str>) {
    assert_eq!(why(0), None, "the kernels without fault fail");
    let mut missed = Vec::new();
    for (fault, what) in faults.iter().enumerate() {
        let why = why(fault + 1);
        println!("{what}: {}", why.unwrap_or("not found"));
        if why.is_none() {
            missed.push(what.as_str());
        }
    }
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
}

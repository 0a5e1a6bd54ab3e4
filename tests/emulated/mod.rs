//! Support for tests of CUDA kernels: compiles and runs the kernels on a CPU, and breaks them on purpose.
//!
//! `src/kernels/cuda/on_cpu` has an emulator of the CUDA instructions that the kernels use, a race checker, and programs that compare
//! kernels with a reference. g++ compiles them, so they need neither a GPU, nor CUDA, nor libtorch.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

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

/// A program that runs kernels: sources in `on_cpu`. Each test binary has one.
pub struct Program {
    /// The source that includes the kernels.
    pub kernels: &'static str,
    /// The sources without kernels.
    pub parts: &'static [&'static str],
}

impl Program {
    /// Compiles the parts that do not contain kernels, once.
    fn parts(&self) -> &'static [PathBuf] {
        static PARTS: OnceLock<(TempDir, Vec<PathBuf>)> = OnceLock::new();
        let (_, parts) = PARTS.get_or_init(|| {
            let dir = TempDir::new().unwrap();
            let part = |name: &&str| {
                let object = dir.path().join(name).with_extension("o");
                let source = cuda().join("on_cpu").join(name).with_extension("cpp");
                compiled([OsStr::new("-O2"), "-c".as_ref(), source.as_ref(), "-o".as_ref(), object.as_ref()]);
                object
            };
            let parts = self.parts.iter().map(part).collect();
            (dir, parts)
        });
        parts
    }

    /// Compiles the program with the kernels in the folder `kernels` into `dir`.
    pub fn compile(&self, dir: &Path, kernels: &Path, defines: &[String]) -> PathBuf {
        let (program, object) = (dir.join("check"), dir.join("kernels.o"));
        let on_cpu = cuda().join("on_cpu");
        // The race checker takes the place of the sanitizer's library, so linking does not name the sanitizer.
        let flags = ["-O1", "-fsanitize=thread", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-c"];
        let own = [
            include(&on_cpu),
            include(kernels),
            on_cpu.join(self.kernels).with_extension("cpp").display().to_string(),
            "-o".to_owned(),
            object.display().to_string(),
        ];
        compiled(flags.into_iter().chain(defines.iter().chain(&own).map(String::as_str)));
        let objects = self.parts().iter().chain([&object]).map(|p| p.as_os_str());
        compiled(objects.chain(["-o".as_ref(), program.as_os_str()]));
        program
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

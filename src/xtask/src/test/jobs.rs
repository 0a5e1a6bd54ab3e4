//! The processes that `cargo xtask test` starts: test binaries, whole or one process per test.

use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::process::{cargo, command, not_started, output, shown};

/// Binaries with long tests: each test is a process of its own, so that tests that wait run beside tests that compute. Those with
/// the longest tests come first.
const SPLIT: &[&str] = &[
    "vidtui/cluster",
    "remote/watch",
    "remote/nodes",
    "remote/launches",
    "remote/signals",
    "vidtui/console",
    "trainer/trainer",
    "rig/rig",
    "c10d/processes",
    "supervise",
];

/// Other binaries that take 20 s or more. They start before all other jobs whose duration is unknown, as on a clean checkout: at the end,
/// they would run alone.
///
/// The first one has many tests, but each process of it would load libtorch, which takes 0.2 s of CPU.
const LONG: &[&str] = &["trainer/vidtui-train", "remote/ssh", "video/video", "xtask/scan", "recipe"];

/// A process that runs one test, or all tests of a binary.
pub struct Job {
    /// `plan` for a whole binary, `vidtui/cluster life::a_kill_ends_every_process` for one test.
    pub name: String,
    /// The program to start.
    pub command: Command,
    /// For a whole binary, the command that runs single tests when their names are added.
    pub by_name: Option<Command>,
}

/// A test binary.
#[derive(Debug, Clone, PartialEq)]
pub struct Binary {
    /// `plan` for the unit tests of a library, `vidtui/cluster` for any other target.
    name: String,
    path: Utf8PathBuf,
    /// The folder of the package, in which cargo runs the binary. The folder has the package's name.
    folder: Utf8PathBuf,
}

/// Builds all programs and tests; returns the test binaries.
///
/// Everything has one profile, so that every crate is compiled once.
pub fn build() -> Result<Vec<Binary>> {
    let messages = "--message-format=json-render-diagnostics";
    let mut build = cargo(["test", "--profile", super::PROFILE, "--workspace", "--no-run", messages]);
    let built = build.stderr(Stdio::inherit()).output().map_err(|e| not_started(&build, &e))?;
    if !built.status.success() {
        return Err(Failure::new(
            format!("`{}` failed", shown(&build)),
            built.status,
            "see the compiler's errors above",
        ));
    }
    let messages = String::from_utf8_lossy(&built.stdout);
    Ok(messages.lines().filter_map(|line| Binary::read(&serde_json::from_str(line).ok()?)).collect())
}

/// Returns the jobs that run all tests whose names contain one of the filters; without filters, all tests.
pub fn plan(mut binaries: Vec<Binary>, filters: &[String]) -> Result<Vec<Job>> {
    let place = |binary: &Binary| LONG.iter().chain(SPLIT).position(|name| *name == binary.name);
    binaries.sort_by_key(|binary| place(binary).unwrap_or(usize::MAX));
    let mut jobs = Vec::new();
    for binary in &binaries {
        if SPLIT.contains(&binary.name.as_str()) {
            jobs.extend(binary.list(filters, &[])?.iter().map(|test| binary.one(test, &[])));
        } else {
            jobs.push(binary.whole(filters));
        }
    }
    Ok(jobs)
}

/// Returns the jobs that run the ignored tests of one binary.
pub fn ignored(binaries: &[Binary], name: &str) -> Result<Vec<Job>> {
    let flags = ["--ignored"];
    let mut jobs = Vec::new();
    for binary in binaries.iter().filter(|binary| binary.name == name) {
        jobs.extend(binary.list(&[], &flags)?.iter().map(|test| binary.one(test, &flags)));
    }
    Ok(jobs)
}

impl Job {
    /// Returns the job for a second try. It runs the tests with these names; without names, it is the same job.
    pub fn again(self, tests: &[String]) -> Self {
        let command = match self.by_name {
            Some(mut command) if !tests.is_empty() => {
                command.args(tests);
                command
            }
            _ => self.command,
        };
        Self { name: self.name, command, by_name: None }
    }
}

impl Binary {
    /// Reads a JSON message of cargo; returns `None` if the message is not about a test binary.
    fn read(message: &Value) -> Option<Self> {
        let path = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
        let folder = Utf8Path::new(message["manifest_path"].as_str()?).parent()?;
        let (package, target) = (folder.file_name()?, message["target"]["name"].as_str()?);
        let is_library = message["target"]["kind"][0] == "lib";
        let name = if is_library { package.to_owned() } else { format!("{package}/{target}") };
        Some(Self { name, path: path.into(), folder: folder.into() })
    }

    /// Makes a command that runs the binary as cargo does. Sets cargo's variables, because the inherited ones describe xtask.
    ///
    /// As many tests run side by side as there are cores. A second thread of OpenMP would spin on the core of another test: the
    /// encoders' oracle test took 82 s of CPU with two threads on two busy cores, and 8 s with one.
    fn command(&self) -> Command {
        let mut command = command::<&str>(&self.path, []);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.env("CARGO_PKG_NAME", self.folder.file_name().unwrap_or_default());
        command.env("OMP_NUM_THREADS", "1");
        command
    }

    fn list(&self, filters: &[String], flags: &[&str]) -> Result<Vec<String>> {
        let mut list = self.command();
        let listed = output(list.args(filters).args(flags).args(["--list", "--format", "terse"]), "run it by hand")?;
        Ok(tests(&String::from_utf8_lossy(&listed.stdout)))
    }

    fn whole(&self, filters: &[String]) -> Job {
        let flags = ["--show-output", "--test-threads=1"];
        let (mut command, mut by_name) = (self.command(), self.command());
        command.args(filters).args(flags);
        by_name.arg("--exact").args(flags);
        Job { name: self.name.clone(), command, by_name: Some(by_name) }
    }

    fn one(&self, test: &str, flags: &[&str]) -> Job {
        let mut command = self.command();
        command.args(["--exact", test, "--show-output"]).args(flags);
        Job { name: format!("{} {test}", self.name), command, by_name: None }
    }
}

/// Reads the lines `module::name: test`.
fn tests(listed: &str) -> Vec<String> {
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn test_binaries_are_named_by_package_and_target() {
        let message = |kind: &str, target: &str, test: bool| {
            json!({
                "manifest_path": "/w/src/plan/Cargo.toml", "target": { "kind": [kind], "name": target },
                "profile": { "test": test }, "executable": "/w/target/tests/deps/x-1",
            })
        };
        let name = |message| Binary::read(&message).map(|binary| binary.name);
        assert_eq!(name(message("lib", "plan", true)).as_deref(), Some("plan"));
        assert_eq!(name(message("test", "launch", true)).as_deref(), Some("plan/launch"));
        assert_eq!(name(message("bin", "plan", false)), None, "a program is not a test");
        assert_eq!(name(json!({ "reason": "build-finished", "success": true })), None);
    }

    #[test]
    fn the_second_try_of_a_binary_runs_the_failed_tests_by_name_and_without_names_all() {
        let binary = Binary { name: "plan".into(), path: "/w/plan-1".into(), folder: "/w/src/plan".into() };
        let args = |job: Job| job.command.get_args().map(|arg| arg.to_str().unwrap().to_owned()).collect::<Vec<_>>();
        let whole = || binary.whole(&["launch".into()]);
        assert_eq!(args(whole().again(&["a::b".into()])), ["--exact", "--show-output", "--test-threads=1", "a::b"]);
        assert_eq!(args(whole().again(&[])), args(whole()));
        assert_eq!(args(binary.one("a::b", &[]).again(&[])), args(binary.one("a::b", &[])));
    }

    #[test]
    fn benchmarks_and_counts_are_not_tests() {
        assert_eq!(super::tests("a::b: test\nc: bench\n\n1 test, 1 benchmark\n"), ["a::b"]);
    }
}

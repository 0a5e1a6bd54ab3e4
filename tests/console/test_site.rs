//! A folder to run `vidtui` in, with a small curriculum, its data, a fake trainer, and no runs.

use crate::fake_trainer;
use crate::pty::{Pty, comes_true};
use camino::Utf8PathBuf;
use rundir::RunDir;
use runstate::Liveness;
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The binary under test.
pub const VIDTUI: &str = env!("CARGO_BIN_EXE_vidtui");

/// A temporary folder. Dropping it kills the runs in it.
pub struct TestSite {
    pub root: Utf8PathBuf,
    env: Vec<(String, String)>,
    _folder: TempDir,
}

/// The result of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl TestSite {
    /// Makes a folder with all files that a launch needs.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("vidtui-test-").tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let trainer = fake_trainer::install(&root);
        let env = vec![("VIDTUI_TRAIN".to_owned(), trainer.to_string()), ("USER".to_owned(), "ada".to_owned())];
        let path = format!("{root}/bin:{}", std::env::var("PATH").unwrap_or_default());
        let config = root.join("config");
        let site = Self { root, env, _folder: folder }.with("PATH", &path);
        // The tests do not send alerts to the channels of the user who runs them.
        let site = site.with("XDG_CONFIG_HOME", config.as_str());
        // The tests do not depend on the GPUs of this machine.
        site.nvidia_smi("exit 127");
        site.write("configs/small/curriculum.toml", CURRICULUM);
        site.write("configs/small/short.toml", SHORT);
        site.write("configs/small/long.toml", LONG);
        for (name, frames) in [("short", 3), ("long", 5)] {
            site.write(&format!("data/{name}.jsonl"), &index(name));
            site.write_tensor(&format!("data/{name}.latent.safetensors"), "latent", &[frames, 16, 4, 4]);
            site.write_tensor(&format!("data/{name}.text.safetensors"), "text", &[4, 8]);
        }
        site
    }

    /// Sets an environment variable for commands started later.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Replaces nvidia-smi with a shell script.
    pub fn nvidia_smi(&self, script: &str) {
        self.write("bin/nvidia-smi", &format!("#!/bin/sh\n{script}\n"));
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.root.join("bin/nvidia-smi"), mode).unwrap();
    }

    /// Writes a file.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Writes a file with one tensor of zeros.
    pub fn write_tensor(&self, path: &str, name: &str, shape: &[usize]) {
        self.write_tensors(path, &[(name, shape)]);
    }

    /// Writes a file with tensors of zeros, which take no room on the disk.
    pub fn write_tensors(&self, path: &str, tensors: &[(&str, &[usize])]) {
        let mut end = 0;
        let entries = tensors.iter().map(|(name, shape)| {
            let begin = end;
            end += 4 * shape.iter().product::<usize>();
            format!(r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
        });
        let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
        let mut start = (header.len() as u64).to_le_bytes().to_vec();
        start.extend(header.as_bytes());
        let mut file = std::fs::File::create(self.root.join(path)).unwrap();
        file.write_all(&start).unwrap();
        file.set_len((start.len() + end) as u64).unwrap();
    }

    /// Runs a command without a terminal until it ends.
    pub fn vidtui(&self, args: &[&str]) -> CommandOutput {
        self.command(args).stdin(Stdio::null()).finish()
    }

    /// Runs a command that must succeed. Returns its standard output.
    pub fn succeeds(&self, args: &[&str]) -> String {
        let done = self.vidtui(args);
        assert_eq!(done.code, 0, "vidtui {args:?} failed:\n{}{}", done.stdout, done.stderr);
        done.stdout
    }

    /// Runs a command that must succeed and print one JSON document.
    ///
    /// `docs/json.md` must name each field of its document.
    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        let document = serde_json::from_str(&self.succeeds(args)).unwrap();
        let missing = undocumented(&document);
        assert!(missing.is_empty(), "docs/json.md does not name {missing:?} of `vidtui {}`", args.join(" "));
        document
    }

    /// Runs a command that must fail. Returns its exit code and output, with varying text replaced, for a snapshot.
    pub fn fails(&self, args: &[&str]) -> String {
        let done = self.vidtui(args);
        assert_ne!(done.code, 0, "vidtui {args:?} did not fail:\n{}", done.stdout);
        format!("exit code {}\n{}{}", done.code, self.redacted(&done.stdout), self.redacted(&done.stderr))
    }

    /// Runs a command with `--json` that must fail. Returns its exit code and the code of the error.
    pub fn error(&self, args: &[&str]) -> (i32, String) {
        let done = self.vidtui(&[args, &["--json"]].concat());
        (done.code, error_code(&done.stderr))
    }

    /// Returns a command, not started yet.
    pub fn command(&self, args: &[&str]) -> Command {
        self.program(VIDTUI, args)
    }

    /// Returns a command of another program, not started yet.
    pub fn program(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.root);
        for name in ["NO_COLOR", "VIDTUI_RUN"] {
            command.env_remove(name);
        }
        command.env("LC_ALL", "C.UTF-8").env("COLUMNS", "100");
        command.envs(self.env.iter().cloned());
        command
    }

    /// Returns the environment variables of commands.
    pub fn env(&self) -> Vec<(&str, &str)> {
        self.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    /// Opens the console in a terminal.
    pub fn console(&self, size: (u16, u16), args: &[&str], env: &[(&str, &str)]) -> Pty {
        Pty::start(size, VIDTUI, args, &[&self.env(), env].concat(), &self.root)
    }

    /// Opens an interactive shell in a terminal.
    pub fn shell(&self, size: (u16, u16)) -> Pty {
        let env = [&self.env()[..], &[("PS1", "$ ")]].concat();
        Pty::start(size, "bash", &["--norc", "--noprofile", "-i"], &env, &self.root)
    }

    /// Returns the folders of all runs, oldest first.
    pub fn runs(&self) -> Vec<RunDir> {
        runstate::list_runs(&self.root.join("runs")).into_iter().flatten().collect()
    }

    /// Waits for a condition.
    pub fn until(&self, what: &str, is: impl Fn() -> bool) {
        assert!(comes_true(is), "timed out waiting for {what}");
    }

    /// Waits until a run has completed a step.
    pub fn until_step(&self, run: &str, step: u64) {
        self.until(&format!("{run} to reach step {step}"), || self.has_reached(run, step));
    }

    /// Returns whether a run has completed a step.
    pub fn has_reached(&self, run: &str, step: u64) -> bool {
        self.json(&["status", run, "--json"])["step"].as_u64().is_some_and(|done| done >= step)
    }

    /// Replaces the text that differs between two executions of a test.
    pub fn redacted(&self, text: &str) -> String {
        let mut text = text.replace(self.root.as_str(), "[HERE]").replace(VIDTUI, "[VIDTUI]");
        let node = remote::this_node().unwrap().node;
        for run in self.runs() {
            text = text.replace(run.name(), "[RUN]");
        }
        text = text.replace(&format!("ada@{node}"), "ada@[NODE]").replace(&format!(" {node}"), " [NODE]");
        text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

impl Drop for TestSite {
    fn drop(&mut self) {
        // The worker of the queue is killed first, because it would start more runs.
        if let Some(worker) = rundir::Queue::of(&self.root.join("runs")).worker() {
            let _ = Command::new("kill").args(["-KILL", &worker.pid.to_string()]).status();
        }
        for run in self.runs() {
            let alive =
                remote::pid_files(&run).is_ok_and(|files| files.iter().any(|(_, live)| *live == Liveness::Alive));
            if alive {
                let _ =
                    self.command(&["kill", run.name(), "--yes"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
            }
        }
    }
}

/// Runs a command until it ends.
pub trait Finish {
    /// Collects its output.
    fn finish(&mut self) -> CommandOutput;
}

impl Finish for Command {
    fn finish(&mut self) -> CommandOutput {
        let output = self.output().unwrap();
        CommandOutput {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Returns the code of the error on standard error. Progress and warnings come before the error.
pub fn error_code(stderr: &str) -> String {
    let line = stderr.lines().last().unwrap_or_default();
    let document: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    document["error"]["code"].as_str().unwrap().to_owned()
}

fn index(name: &str) -> String {
    let line = format!(
        r#"{{"vid_emb": "{name}.latent.safetensors", "text_chunk_emb": ["{name}.text.safetensors"], "caption": "a {name} clip"}}"#
    );
    format!("{line}\n{line}\n")
}

const CURRICULUM: &str = r#"title = "Small: short, then long"

[[stage]]
name = "short"
recipe = "short.toml"
start = "random"

[[stage]]
name = "long"
recipe = "long.toml"
start = "previous"
"#;

const SHORT: &str = r#"name = "small-short"

[model]
num_layers = 1
num_heads = 1
time_embed_dim = 16
text_dim = 8
text_len = 4
latent_frames = 3
latent_height = 4
latent_width = 4

[data]
index = "../../data/short.jsonl"

[train]
steps = 6000
global_batch = 2

[mesh]
dp_shard = 2

[checkpoint]
interval = 20
keep_last = 0
"#;

const LONG: &str = r#"name = "small-long"
base = "short.toml"

[model]
latent_frames = 5

[data]
index = "../../data/long.jsonl"

[train]
steps = 40

[optimizer]
lr = 1e-5
"#;

/// Returns the fields of a document that `docs/json.md` does not name.
fn undocumented(document: &serde_json::Value) -> BTreeSet<&str> {
    /// Fields whose objects have names of their own: keys of recipes, nodes, metrics, and what other files define.
    const OPEN: [&str; 17] = [
        "recipe",
        "origins",
        "summary",
        "scripts",
        "spec",
        "buckets",
        "shapes",
        "extra",
        "dtypes",
        "report",
        "metrics",
        "sample",
        "cost",
        "step_flops_of_a_sample",
        "overhead",
        "memory",
        "published",
    ];
    const DOCS: &str = include_str!("../../docs/json.md");
    match document {
        serde_json::Value::Array(values) => values.iter().flat_map(undocumented).collect(),
        serde_json::Value::Object(fields) => {
            let unnamed = fields.keys().filter(|key| !DOCS.contains(&format!("`{key}`")));
            let inside = fields.iter().filter(|(key, value)| !(value.is_object() && OPEN.contains(&key.as_str())));
            unnamed.map(String::as_str).chain(inside.flat_map(|(_, value)| undocumented(value))).collect()
        }
        _ => BTreeSet::new(),
    }
}

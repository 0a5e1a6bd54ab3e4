//! `cargo xtask demo`: trains a small model on a clip and samples a video.
//!
//! Cuts the clip into short ones, checks and encodes them, trains both stages of the curriculum and samples the result. On a
//! terminal, the console is open during training; otherwise, or with `--headless`, progress is printed. With `--nodes`, everything
//! runs on nodes that network namespaces simulate on this machine.

mod clips;
mod target;

use std::fs;
use std::io::{BufRead, BufReader, IsTerminal, stdin, stdout};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use crate::build;
use crate::failure::{Failure, Result};
use crate::libtorch::system;
use crate::process::{not_started, output, run as run_command};
use crate::progress::Progress;
use crate::workspace::root;
use clips::{FPS, HEIGHT, STAGES, Stage, WIDTH};
use target::Target;

const CURRICULUM: &str = "configs/bunny/curriculum.toml";
/// The encoders, in the form of a released model.
const ENCODERS: &str = "assets/demo/model";
/// Tokens of a caption, as in the recipes.
const TEXT_LEN: &str = "16";
/// The prompt of the sampled video, which is a caption of the clips.
const PROMPT: &str = "a grey rabbit yawns then rubs its head on a hill";
const USAGE: &str = "usage: cargo xtask demo [--headless] [--nodes N [--slurm]]";

/// The demo in progress.
struct Demo {
    target: Target,
    began: Instant,
    /// Lines of the summary, each with its duration.
    done: Vec<(Duration, String)>,
}

/// Whether the console uses the terminal, so that this process must not print.
static CONSOLE_IS_OPEN: AtomicBool = AtomicBool::new(false);

/// A training run in progress.
struct Started {
    run: String,
    dir: Utf8PathBuf,
}

/// The options of the command line.
#[derive(Debug, Default, PartialEq)]
struct Options {
    headless: bool,
    nodes: Option<usize>,
    slurm: bool,
}

impl Options {
    fn read(args: &[String]) -> Result<Self> {
        let wrong = |why: String| Failure::request("cannot run the demo", why, USAGE);
        let mut options = Options::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--headless" => options.headless = true,
                "--slurm" => options.slurm = true,
                "--nodes" => {
                    let given = args.next().map_or("", String::as_str);
                    // The demo's batch has four videos, at least one per rank.
                    let nodes = given.parse().ok().filter(|nodes| [1, 2, 4].contains(nodes));
                    options.nodes =
                        Some(nodes.ok_or_else(|| wrong(format!("--nodes takes 1, 2 or 4, not {given:?}")))?);
                }
                other => return Err(wrong(format!("{other:?} is not known"))),
            }
        }
        if options.slurm && options.nodes.is_none() {
            return Err(wrong("--slurm needs --nodes".into()));
        }
        Ok(options)
    }
}

/// Runs the command: `demo [--headless] [--nodes N [--slurm]]`.
pub fn run(args: &[String]) -> Result<()> {
    let options = Options::read(args)?;
    system::require(&[system::DECODER])?;
    build::run(&[])?;
    let target = match options.nodes {
        None => Target::Local,
        Some(nodes) => Target::rig(nodes, options.slurm)?,
    };
    let mut demo = Demo { target, began: Instant::now(), done: Vec::new() };
    if options.headless || !(stdin().is_terminal() && stdout().is_terminal()) {
        let summary = demo.prepare().and_then(|()| demo.launch()).and_then(|first| demo.train_and_sample(first));
        demo.target.leave();
        println!("\n{}", summary?);
        return Ok(());
    }
    let first = demo.prepare().and_then(|()| demo.launch()).inspect_err(|_| demo.target.leave())?;
    demo.target.print_how_to_end();
    demo.beside_the_console(first)
}

impl Demo {
    /// Makes the data sets of all stages.
    fn prepare(&mut self) -> Result<()> {
        let folder = root().join("demo");
        for stage in &STAGES {
            let began = Instant::now();
            let (name, frames) = (stage.name, stage.frames.to_string());
            let clips = folder.join("clips").join(name);
            println!("\n{} clips for the stage {name}, in {clips}", stage.clips);
            stage.cut(&clips)?;
            let manifest = folder.join(format!("{name}.jsonl"));
            let form = ["--frames", &frames, "--fps", FPS, "--height", HEIGHT, "--width", WIDTH];
            let check = [&["data", "check", clips.as_str(), "--out", manifest.as_str()], &form[..]].concat();
            self.shown(&check)?;
            self.done
                .push((began.elapsed(), format!("{} clips of {} frames cut and checked", stage.clips, stage.span)));

            let began = Instant::now();
            let out = folder.join(name);
            let encode = [
                "data",
                "encode",
                manifest.as_str(),
                "--model",
                ENCODERS,
                "--out",
                out.as_str(),
                "--text-len",
                TEXT_LEN,
            ];
            let more = ["--dtype", "float32", "--wait"];
            let place = self.target.place();
            let place: Vec<&str> = place.iter().map(String::as_str).collect();
            self.shown(&[&encode, &form[..], &more, &place].concat())?;
            self.done.push((began.elapsed(), format!("encoded to latents and texts in {}", relative(&out))));
        }
        Ok(())
    }

    /// Starts the first stage.
    fn launch(&self) -> Result<Started> {
        self.start(&["launch", &format!("{CURRICULUM}:{}", STAGES[0].name)])
    }

    /// Waits for the first stage, trains the others and samples the last one. Returns the summary.
    fn train_and_sample(&mut self, first: Started) -> Result<String> {
        let mut current = first;
        for (number, stage) in STAGES.iter().enumerate() {
            if number > 0 {
                current = self.start(&["next", &current.run])?;
            }
            self.watch(stage, &current)?;
        }
        let began = Instant::now();
        print_line(&format!("sampling {}: {PROMPT}", current.run));
        let place = self.target.place();
        let place: Vec<&str> = place.iter().map(String::as_str).collect();
        let sampled = self.document(&[&["sample", &current.run, "--prompt", PROMPT][..], &place].concat())?;
        let video = sampled["videos"][0]["path"].as_str().ok_or_else(|| unreadable(&["sample"], &sampled))?;
        self.done.push((began.elapsed(), "a video sampled from the last checkpoint".into()));
        Ok(self.summary(&current, Utf8Path::new(video)))
    }

    /// Opens the console, and continues the demo while the console is open and after it is closed.
    fn beside_the_console(&mut self, first: Started) -> Result<()> {
        let mut console = self.target.vidtui(&[]);
        CONSOLE_IS_OPEN.store(true, Relaxed);
        thread::scope(|scope| {
            let rest = scope.spawn(|| self.train_and_sample(first));
            // The console is in the same job of the shell: it receives the terminal's signals, and suspending it
            // suspends this process too.
            let closed = console.status();
            CONSOLE_IS_OPEN.store(false, Relaxed);
            closed.map_err(|error| not_started(&console, &error))?;
            if !rest.is_finished() {
                println!("the demo continues; Ctrl-C ends it, but not the run in progress");
            }
            let summary = rest.join().expect("the rest of the demo does not panic")?;
            println!("\n{summary}");
            Ok(())
        })
    }

    /// Runs a command of `vidtui` with its output on the terminal.
    fn shown(&self, args: &[&str]) -> Result<()> {
        run_command(self.target.vidtui(args).stdin(Stdio::null()), "see the message above")
    }

    /// Starts a training run.
    fn start(&self, args: &[&str]) -> Result<Started> {
        let target = [self.target.place(), self.target.sets()].concat();
        let args: Vec<&str> = args.iter().copied().chain(target.iter().map(String::as_str)).collect();
        let started = self.document(&args)?;
        let text = |key: &str| started[key].as_str().map(str::to_owned).ok_or_else(|| unreadable(&args, &started));
        Ok(Started { run: text("run")?, dir: text("dir")?.into() })
    }

    /// Runs a command of `vidtui` with `--json` and returns the JSON.
    fn document(&self, args: &[&str]) -> Result<Value> {
        let mut vidtui = self.target.vidtui(args);
        vidtui.arg("--json");
        let fix = if CONSOLE_IS_OPEN.load(Relaxed) {
            "see `vidtui status latest`"
        } else {
            vidtui.stderr(Stdio::inherit());
            "see the message above"
        };
        let out = output(&mut vidtui, fix)?;
        serde_json::from_slice(&out.stdout).map_err(|e| unreadable(args, &e.to_string().into()))
    }

    /// Shows a run's progress until it ends. Fails unless the run has finished.
    fn watch(&mut self, stage: &Stage, Started { run, dir }: &Started) -> Result<()> {
        let began = Instant::now();
        let name = stage.name;
        print_line(&format!("\nstage {name}: {run} (`vidtui stop {run}` ends it)"));
        let mut progress = None;
        loop {
            let status = self.document(&["status", run])?;
            let (step, steps) = (status["step"].as_u64().unwrap_or(0), status["steps_total"].as_u64().unwrap_or(0));
            let (state, loss) = (status["state"].as_str(), status["loss"].as_f64());
            let note = match (state, loss) {
                (Some("running"), Some(loss)) => format!("loss {loss:.4}"),
                (state, _) => state.unwrap_or_default().to_owned(),
            };
            if !CONSOLE_IS_OPEN.load(Relaxed) {
                progress.get_or_insert_with(|| Progress::new("training", "steps", steps)).show(step, &note);
            }
            if let Some("finished" | "failed" | "crashed" | "stopped") = state {
                progress.iter().for_each(Progress::stop);
            }
            match state {
                Some("finished") => {
                    let shown = |loss: Option<f64>| loss.map_or("not a number".into(), |loss| format!("{loss:.4}"));
                    let (first, last) = (shown(first_loss(dir)), shown(loss));
                    let line =
                        format!("stage {name}: {step} steps, loss {first} at first, {last} at last; {}", relative(dir));
                    self.done.push((began.elapsed(), line));
                    return Ok(());
                }
                Some(state @ ("failed" | "crashed" | "stopped")) => {
                    let text = |key: &str| status["failure"][key].as_str().map(str::to_owned);
                    return Err(Failure::new(
                        format!("stage {name} {state} at step {step} of {steps}"),
                        text("why").unwrap_or_else(|| "a user or another program ended it".into()),
                        text("fix").unwrap_or_else(|| format!("continue it with `vidtui resume {run}`")),
                    ));
                }
                _ => sleep(Duration::from_millis(500)),
            }
        }
    }

    fn summary(&self, last: &Started, video: &Utf8Path) -> String {
        let took = self.began.elapsed().as_secs();
        let mut text = format!("from bunny.mp4 to a sampled video in {took} s {}\n", self.target.location());
        for (took, what) in &self.done {
            text += &format!("{:>7.1} s  {what}\n", took.as_secs_f64());
        }
        text += &format!("video     {}\n", relative(video));
        text += &format!("folder    {}\n", relative(video.parent().unwrap_or(video)));
        text += &format!("training  {}, samples of the same prompt over steps\n", relative(&last.dir.join("samples")));
        text += &format!("another   target/release/vidtui sample {} --prompt \"{PROMPT}\" --seed 7\n", last.run);
        text + "The model is small and trained for minutes on one clip: expect a soft copy of it.\n\
                Open the console with `cargo run --release`; `Enter` and `v` on a run show its samples."
    }
}

/// Prints a line, unless the console is open.
fn print_line(line: &str) {
    if !CONSOLE_IS_OPEN.load(Relaxed) {
        println!("{line}");
    }
}

/// Shortens a path in the repository.
fn relative(path: &Utf8Path) -> &Utf8Path {
    path.strip_prefix(root()).unwrap_or(path)
}

fn unreadable(args: &[&str], answer: &Value) -> Failure {
    let what = format!("cannot read the output of `vidtui {}`", args.join(" "));
    Failure::new(what, answer, "this is a bug of the demo; run the command by hand")
}

/// Reads the loss of the first logged step.
fn first_loss(dir: &Utf8Path) -> Option<f64> {
    let line = BufReader::new(fs::File::open(dir.join("metrics.jsonl")).ok()?).lines().next()?.ok()?;
    serde_json::from_str::<Value>(&line).ok()?["loss"].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &str) -> Result<Options> {
        Options::read(&args.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_select_this_machine_ssh_or_slurm() {
        assert_eq!(read("").unwrap(), Options::default());
        let four = Options { headless: true, nodes: Some(4), slurm: true };
        assert_eq!(read("--nodes 4 --slurm --headless").unwrap(), four);
    }

    #[test]
    fn invalid_options_are_refused() {
        for (args, why) in
            [("--nodes 3", "1, 2 or 4"), ("--nodes", "1, 2 or 4"), ("--slurm", "needs --nodes"), ("4", "known")]
        {
            let refused = read(args).unwrap_err().to_string();
            assert!(refused.contains(why), "{args}: {refused}");
        }
    }
}

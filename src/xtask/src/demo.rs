//! `cargo xtask demo`: from a fresh clone to a live training run.
//!
//! On a terminal it starts the first stage and opens the console on it. Without one it trains all stages, shows their
//! progress and ends with a summary.

use std::fs;
use std::io::{BufRead, BufReader, IsTerminal, stdin, stdout};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use crate::build;
use crate::failure::{Failure, Result};
use crate::process::{command, not_started, output};
use crate::progress::Progress;
use crate::workspace::{release_dir, root};

const CURRICULUM: &str = "configs/demo/curriculum.toml";
const STAGES: [&str; 2] = ["2s", "4s"];
const RANKS: &str = "2";

/// A stage that was trained.
struct Trained {
    stage: &'static str,
    run: String,
    dir: Utf8PathBuf,
    steps: u64,
    first_loss: Option<f64>,
    last_loss: Option<f64>,
}

/// Runs the command: `demo [--headless]`.
pub fn run(args: &[String]) -> Result<()> {
    let headless = match args {
        [] => !(stdin().is_terminal() && stdout().is_terminal()),
        [flag] if flag == "--headless" => true,
        _ => {
            let given = args.join(" ");
            return Err(Failure::request("cannot run the demo", given, "usage: cargo xtask demo [--headless]"));
        }
    };
    build::run(&[])?;
    let first = format!("{CURRICULUM}:{}", STAGES[0]);
    if !headless {
        start(&["launch", &first, "--local", RANKS])?;
        return open_console();
    }
    let began = Instant::now();
    let mut trained: Vec<Trained> = Vec::new();
    for stage in STAGES {
        let run = match trained.last() {
            None => start(&["launch", &first, "--local", RANKS])?,
            Some(previous) => start(&["next", &previous.run, "--local", RANKS])?,
        };
        trained.push(watch(stage, run)?);
    }
    println!("\n{}", summary(&trained, began.elapsed()));
    Ok(())
}

/// The console, in the repository's folder, where its defaults for runs and recipes are right.
fn vidtui(args: &[&str]) -> Command {
    let mut vidtui = command(release_dir().join("vidtui"), args);
    vidtui.current_dir(root());
    vidtui
}

/// Starts a run; returns its id and folder.
fn start(args: &[&str]) -> Result<(String, Utf8PathBuf)> {
    let started = ask(args)?;
    let text = |key: &str| started[key].as_str().map(str::to_owned).ok_or_else(|| not_understood(args, &started));
    Ok((text("run")?, text("dir")?.into()))
}

/// Asks the console's command line for a JSON document.
fn ask(args: &[&str]) -> Result<Value> {
    let mut vidtui = vidtui(args);
    let out = output(vidtui.arg("--json").stderr(Stdio::inherit()), "see the message above")?;
    serde_json::from_slice(&out.stdout).map_err(|e| not_understood(args, &e.to_string().into()))
}

fn not_understood(args: &[&str], answer: &Value) -> Failure {
    let what = format!("cannot understand what `vidtui {}` prints", args.join(" "));
    Failure::new(what, answer, "this is a bug of the demo; try the command by hand")
}

/// Shows a run's progress until it has ended; anything but the end of training is a failure.
fn watch(stage: &'static str, (run, dir): (String, Utf8PathBuf)) -> Result<Trained> {
    println!("stage {stage}: {run} (`vidtui stop {run}` ends it)");
    let mut progress = None;
    loop {
        let status = ask(&["status", &run])?;
        let (step, steps) = (status["step"].as_u64().unwrap_or(0), status["steps_total"].as_u64().unwrap_or(0));
        let bar = progress.get_or_insert_with(|| Progress::new("training", "steps", steps));
        let (state, loss) = (status["state"].as_str(), status["loss"].as_f64());
        let note = match (state, loss) {
            (Some("running"), Some(loss)) => format!("loss {loss:.4}"),
            (state, _) => state.unwrap_or_default().to_owned(),
        };
        bar.show(step, &note);
        match state {
            Some("finished") => {
                bar.stop();
                return Ok(Trained { stage, first_loss: first_loss(&dir), last_loss: loss, run, dir, steps: step });
            }
            Some(state @ ("failed" | "crashed" | "stopped")) => {
                bar.stop();
                let said = |key: &str| status["failure"][key].as_str().map(str::to_owned);
                return Err(Failure::new(
                    format!("stage {stage} {state} at step {step} of {steps}"),
                    said("why").unwrap_or_else(|| "a person or another program ended it".into()),
                    said("fix").unwrap_or_else(|| format!("continue it with `vidtui resume {run}`")),
                ));
            }
            _ => sleep(Duration::from_millis(500)),
        }
    }
}

/// Reads the loss of the first logged step, which is a random model's.
fn first_loss(dir: &Utf8Path) -> Option<f64> {
    let line = BufReader::new(fs::File::open(dir.join("metrics.jsonl")).ok()?).lines().next()?.ok()?;
    serde_json::from_str::<Value>(&line).ok()?["loss"].as_f64()
}

fn summary(trained: &[Trained], took: Duration) -> String {
    let loss = |loss: Option<f64>| loss.map_or("not a number".into(), |loss| format!("{loss:.4}"));
    let shown = |path: &Utf8Path| path.strip_prefix(root()).unwrap_or(path).to_owned();
    let mut text =
        format!("trained {} stages in {} s on this machine, in {RANKS} ranks\n", trained.len(), took.as_secs());
    for t in trained {
        let (first, last) = (loss(t.first_loss), loss(t.last_loss));
        text += &format!("  {}: {} steps, loss {first} at first, {last} at last\n", t.stage, t.steps);
        text += &format!("      checkpoints in {}\n", shown(&t.dir.join("checkpoints")));
    }
    text + "look at them with `cargo run --release`"
}

/// Opens the console in this process's place, so that job control and signals are its own.
fn open_console() -> Result<()> {
    use std::os::unix::process::CommandExt;
    let mut console = vidtui(&[]);
    let error = console.exec();
    Err(not_started(&console, &error))
}

//! `cargo xtask demo`: from a fresh clone to a live training run.
//!
//! On a terminal it starts the first stage and opens the console on it. Without one it trains all stages, shows their
//! progress and ends with a summary. With `--nodes` the ranks are spread over a cluster on this machine.

mod ground;

use std::fs;
use std::io::{BufRead, BufReader, IsTerminal, stdin, stdout};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use crate::build;
use crate::failure::{Failure, Result};
use crate::process::{not_started, output};
use crate::progress::Progress;
use crate::workspace::root;
use ground::Ground;

const CURRICULUM: &str = "configs/demo/curriculum.toml";
const STAGES: [&str; 2] = ["2s", "4s"];
const USAGE: &str = "usage: cargo xtask demo [--headless] [--nodes N [--slurm]]";

/// A stage that was trained.
struct Trained {
    stage: &'static str,
    run: String,
    dir: Utf8PathBuf,
    steps: u64,
    first_loss: Option<f64>,
    last_loss: Option<f64>,
}

/// What was asked for.
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
                    // The demo's batch is four videos, and each rank wants one.
                    let nodes = given.parse().ok().filter(|nodes| [1, 2, 4].contains(nodes));
                    options.nodes =
                        Some(nodes.ok_or_else(|| wrong(format!("--nodes takes 1, 2 or 4, not {given:?}")))?);
                }
                other => return Err(wrong(format!("{other:?} is not known"))),
            }
        }
        if options.slurm && options.nodes.is_none() {
            return Err(wrong("--slurm says how nodes are reached, and there are none".into()));
        }
        Ok(options)
    }
}

/// Runs the command: `demo [--headless] [--nodes N [--slurm]]`.
pub fn run(args: &[String]) -> Result<()> {
    let options = Options::read(args)?;
    build::run(&[])?;
    let ground = match options.nodes {
        None => Ground::Local,
        Some(nodes) => Ground::rig(nodes, options.slurm)?,
    };
    if options.headless || !(stdin().is_terminal() && stdout().is_terminal()) {
        let trained = train_all(&ground);
        ground.leave();
        println!("\n{}", trained?);
        return Ok(());
    }
    let first = format!("{CURRICULUM}:{}", STAGES[0]);
    start(&ground, &["launch", &first]).inspect_err(|_| ground.leave())?;
    ground.say_how_to_leave();
    open_console(&ground)
}

/// Trains one stage after the other, and returns the summary.
fn train_all(ground: &Ground) -> Result<String> {
    let began = Instant::now();
    let mut trained: Vec<Trained> = Vec::new();
    for stage in STAGES {
        let run = match trained.last() {
            None => start(ground, &["launch", &format!("{CURRICULUM}:{stage}")])?,
            Some(previous) => start(ground, &["next", &previous.run])?,
        };
        trained.push(watch(ground, stage, run)?);
    }
    Ok(summary(ground, &trained, began.elapsed()))
}

/// Starts a run; returns its id and folder.
fn start(ground: &Ground, args: &[&str]) -> Result<(String, Utf8PathBuf)> {
    let place = ground.place();
    let args: Vec<&str> = args.iter().copied().chain(place.iter().map(String::as_str)).collect();
    let started = ask(ground, &args)?;
    let text = |key: &str| started[key].as_str().map(str::to_owned).ok_or_else(|| not_understood(&args, &started));
    Ok((text("run")?, text("dir")?.into()))
}

/// Asks the console's command line for a JSON document.
fn ask(ground: &Ground, args: &[&str]) -> Result<Value> {
    let mut vidtui = ground.vidtui(args);
    let out = output(vidtui.arg("--json").stderr(Stdio::inherit()), "see the message above")?;
    serde_json::from_slice(&out.stdout).map_err(|e| not_understood(args, &e.to_string().into()))
}

fn not_understood(args: &[&str], answer: &Value) -> Failure {
    let what = format!("cannot understand what `vidtui {}` prints", args.join(" "));
    Failure::new(what, answer, "this is a bug of the demo; try the command by hand")
}

/// Shows a run's progress until it has ended; anything but the end of training is a failure.
fn watch(ground: &Ground, stage: &'static str, (run, dir): (String, Utf8PathBuf)) -> Result<Trained> {
    println!("stage {stage}: {run} (`vidtui stop {run}` ends it)");
    let mut progress = None;
    loop {
        let status = ask(ground, &["status", &run])?;
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

fn summary(ground: &Ground, trained: &[Trained], took: Duration) -> String {
    let loss = |loss: Option<f64>| loss.map_or("not a number".into(), |loss| format!("{loss:.4}"));
    let shown = |path: &Utf8Path| path.strip_prefix(root()).unwrap_or(path).to_owned();
    let mut text = format!("trained {} stages in {} s {}\n", trained.len(), took.as_secs(), ground.said());
    for t in trained {
        let (first, last) = (loss(t.first_loss), loss(t.last_loss));
        text += &format!("  {}: {} steps, loss {first} at first, {last} at last\n", t.stage, t.steps);
        text += &format!("      checkpoints in {}\n", shown(&t.dir.join("checkpoints")));
    }
    text + "look at them with `cargo run --release`"
}

/// Opens the console in this process's place, so that job control and signals are its own.
fn open_console(ground: &Ground) -> Result<()> {
    use std::os::unix::process::CommandExt;
    let mut console = ground.vidtui(&[]);
    let error = console.exec();
    Err(not_started(&console, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &str) -> Result<Options> {
        Options::read(&args.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn it_runs_here_or_on_a_cluster_by_ssh_or_slurm() {
        assert_eq!(read("").unwrap(), Options::default());
        let four = Options { headless: true, nodes: Some(4), slurm: true };
        assert_eq!(read("--nodes 4 --slurm --headless").unwrap(), four);
    }

    #[test]
    fn what_it_cannot_do_is_refused_before_anything_is_built() {
        for (args, why) in [("--nodes 3", "1, 2 or 4"), ("--nodes", "1, 2 or 4"), ("--slurm", "none"), ("4", "known")] {
            let refused = read(args).unwrap_err().to_string();
            assert!(refused.contains(why), "{args}: {refused}");
        }
    }
}

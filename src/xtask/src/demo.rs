//! `cargo xtask demo`: trains the demo.
//!
//! On a terminal it starts the first stage and opens the console. Otherwise it trains all stages, shows their progress and
//! prints a summary. With `--nodes` the ranks run on a cluster of namespaces on this machine.

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
    ground.print_how_to_end();
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
    let target = ground.target();
    let args: Vec<&str> = args.iter().copied().chain(target.iter().map(String::as_str)).collect();
    let started = document(ground, &args)?;
    let text = |key: &str| started[key].as_str().map(str::to_owned).ok_or_else(|| unreadable(&args, &started));
    Ok((text("run")?, text("dir")?.into()))
}

/// Runs the console with `--json` and returns its document.
fn document(ground: &Ground, args: &[&str]) -> Result<Value> {
    let mut vidtui = ground.vidtui(args);
    let out = output(vidtui.arg("--json").stderr(Stdio::inherit()), "see the message above")?;
    serde_json::from_slice(&out.stdout).map_err(|e| unreadable(args, &e.to_string().into()))
}

fn unreadable(args: &[&str], answer: &Value) -> Failure {
    let what = format!("cannot read the output of `vidtui {}`", args.join(" "));
    Failure::new(what, answer, "this is a bug of the demo; run the command by hand")
}

/// Shows a run's progress until it ends. Any end but a finished run is a failure.
fn watch(ground: &Ground, stage: &'static str, (run, dir): (String, Utf8PathBuf)) -> Result<Trained> {
    println!("stage {stage}: {run} (`vidtui stop {run}` ends it)");
    let mut progress = None;
    loop {
        let status = document(ground, &["status", &run])?;
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
                let text = |key: &str| status["failure"][key].as_str().map(str::to_owned);
                return Err(Failure::new(
                    format!("stage {stage} {state} at step {step} of {steps}"),
                    text("why").unwrap_or_else(|| "a user or another program ended it".into()),
                    text("fix").unwrap_or_else(|| format!("continue it with `vidtui resume {run}`")),
                ));
            }
            _ => sleep(Duration::from_millis(500)),
        }
    }
}

/// Reads the loss of the first logged step.
fn first_loss(dir: &Utf8Path) -> Option<f64> {
    let line = BufReader::new(fs::File::open(dir.join("metrics.jsonl")).ok()?).lines().next()?.ok()?;
    serde_json::from_str::<Value>(&line).ok()?["loss"].as_f64()
}

fn summary(ground: &Ground, trained: &[Trained], took: Duration) -> String {
    let loss = |loss: Option<f64>| loss.map_or("not a number".into(), |loss| format!("{loss:.4}"));
    let shown = |path: &Utf8Path| path.strip_prefix(root()).unwrap_or(path).to_owned();
    let mut text = format!("trained {} stages in {} s {}\n", trained.len(), took.as_secs(), ground.location());
    for t in trained {
        let (first, last) = (loss(t.first_loss), loss(t.last_loss));
        text += &format!("  {}: {} steps, loss {first} at first, {last} at last\n", t.stage, t.steps);
        text += &format!("      checkpoints in {}\n", shown(&t.dir.join("checkpoints")));
    }
    text + "open the console with `cargo run --release`"
}

/// Replaces this process with the console, so that the console has job control and signals.
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

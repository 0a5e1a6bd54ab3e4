//! Measures what it costs to watch a program by its log: reading a log of a million lines, and following one, beside `tail -f | grep`.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use camino::Utf8Path;

use super::console::{in_folder, row};
use super::table::Row;
use crate::failure::{Failure, Result};
use crate::process::{command, output, state_and_cpu, with_variable};
use crate::workspace::release_dir;

const LINES: u64 = 1_000_000;
const ROUNDS: usize = 3;
/// How long a log is followed, and its lines per second.
const FOLLOWED: Duration = Duration::from_secs(20);
const LINES_PER_S: u64 = 20;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Measures `vidtui attach`.
pub fn rows() -> Result<Vec<Row>> {
    let (mut read, mut redrawn, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        println!("logs: round {round} of {ROUNDS}");
        read.push(in_folder("log", |folder| opened(folder, |step| format!("{}\n", line(step))))?);
        redrawn.push(in_folder("log", |folder| opened(folder, bar))?);
        ours.push(in_folder("log", followed)?);
        theirs.push(in_folder("log", grepped)?);
    }
    let note = format!("tail -f | grep: {:.2} % of a core", super::table::median(&theirs));
    Ok(vec![
        row("from attach to the last of 1,000,000 logged steps", "s", read, 1.0, ""),
        row("the same, a bar that is drawn 1,000,000 times", "s", redrawn, 1.0, "each step is drawn ten times"),
        row("CPU while following a log, 20 steps per second", "%", ours, 2.0, &note),
    ])
}

fn line(step: u64) -> String {
    format!("step {step} loss 0.{:04} lr 1e-05 grad_norm 1.25", step % 9973)
}

/// Returns a drawing of a bar of tqdm, each step of which is drawn ten times.
fn bar(drawing: u64) -> String {
    let (step, total) = (drawing.div_ceil(10), LINES / 10);
    format!("\rSteps:  12%|█▏        | {step}/{total} [02:00<14:40,  1.00s/it, loss=0.{:04}, lr=1e-05]", step % 9973)
}

/// Returns the seconds from `vidtui attach` to the last step in the metrics.
fn opened(folder: &Utf8Path, text: impl Fn(u64) -> String) -> Result<f64> {
    let log = folder.join("train.log");
    let write = || {
        let mut file = BufWriter::new(File::create(&log)?);
        (1..=LINES).try_for_each(|number| file.write_all(text(number).as_bytes()))?;
        file.write_all(b"\n")?;
        file.flush()
    };
    write().map_err(failed(&log))?;
    let last = if text(LINES).starts_with('\r') { LINES / 10 } else { LINES };
    let began = Instant::now();
    let run = attach(folder, &log)?;
    let metrics = folder.join("runs").join(&run).join("metrics.jsonl");
    let wanted = format!("\"step\":{last},");
    while !end_of(&metrics).contains(&wanted) {
        if began.elapsed() > TIMEOUT {
            stop(folder, &run)?;
            return Err(Failure::new(format!("step {last} of {log} was not read"), "it is late", "run it by hand"));
        }
        thread::sleep(Duration::from_millis(5));
    }
    let took_s = began.elapsed().as_secs_f64();
    stop(folder, &run)?;
    Ok(took_s)
}

/// Returns the CPU of all processes of a run, in percent of a core, while its log grows.
fn followed(folder: &Utf8Path) -> Result<f64> {
    let log = folder.join("train.log");
    grow(&log, 1..=100, Duration::ZERO)?;
    let run = attach(folder, &log)?;
    // The start of the run is not measured.
    thread::sleep(Duration::from_secs(2));
    let processes = with_variable(&format!("VIDTUI_RUN={run}"));
    let before = cpu_s(&processes);
    grow(&log, 101..=100 + LINES_PER_S * FOLLOWED.as_secs(), FOLLOWED)?;
    let used_s = cpu_s(&processes) - before;
    stop(folder, &run)?;
    Ok(100.0 * used_s / FOLLOWED.as_secs_f64())
}

/// Returns the CPU of `tail -f | grep`, in percent of a core, while the same log grows.
fn grepped(folder: &Utf8Path) -> Result<f64> {
    let log = folder.join("train.log");
    grow(&log, 1..=100, Duration::ZERO)?;
    let mut children: Vec<Child> = Vec::new();
    let mut tail = command("tail", ["-f", log.as_str()]).stdout(Stdio::piped()).spawn().map_err(failed(&log))?;
    let lines = tail.stdout.take().map_or(Stdio::null(), Stdio::from);
    children.push(tail);
    let grep = command("grep", ["--line-buffered", "step"]).stdin(lines).stdout(Stdio::null()).spawn();
    children.push(grep.map_err(failed(&log))?);
    let processes: Vec<u32> = children.iter().map(Child::id).collect();
    thread::sleep(Duration::from_secs(1));
    let before = cpu_s(&processes);
    let grown = grow(&log, 101..=100 + LINES_PER_S * FOLLOWED.as_secs(), FOLLOWED);
    let used_s = cpu_s(&processes) - before;
    for mut child in children {
        // A process that has ended already cannot be killed.
        let _ = child.kill();
        let _ = child.wait();
    }
    grown.map(|()| 100.0 * used_s / FOLLOWED.as_secs_f64())
}

/// Appends steps to a log, spread over a time.
fn grow(log: &Utf8Path, steps: std::ops::RangeInclusive<u64>, over: Duration) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(log).map_err(failed(log))?;
    let pause = over / u32::try_from(steps.clone().count().max(1)).unwrap_or(u32::MAX);
    for step in steps {
        writeln!(file, "{}", line(step)).map_err(failed(log))?;
        thread::sleep(pause);
    }
    Ok(())
}

/// Attaches to a log and returns the id of the run.
fn attach(folder: &Utf8Path, log: &Utf8Path) -> Result<String> {
    let runs = folder.join("runs");
    let program = release_dir().join("vidtui");
    let mut attach = command(program.as_str(), ["--runs", runs.as_str(), "attach", log.as_str(), "--name", "bench"]);
    Ok(String::from_utf8_lossy(&output(&mut attach, "run it by hand")?.stdout).trim().to_owned())
}

fn stop(folder: &Utf8Path, run: &str) -> Result<()> {
    let runs = folder.join("runs");
    let program = release_dir().join("vidtui");
    output(&mut command(program.as_str(), ["--runs", runs.as_str(), "kill", run, "--yes"]), "run it by hand").map(drop)
}

/// Returns the seconds of CPU that processes and their ended children have used.
fn cpu_s(processes: &[u32]) -> f64 {
    processes.iter().map(|pid| state_and_cpu(*pid).1.as_secs_f64()).sum()
}

/// Returns the last bytes of a file; nothing if it does not exist yet.
fn end_of(path: &Utf8Path) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(1024)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        std::io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default()
}

fn failed(path: &Utf8Path) -> impl Fn(std::io::Error) -> Failure {
    move |error| Failure::new(format!("cannot write {path} or read it"), error, "check the disk and the permissions")
}

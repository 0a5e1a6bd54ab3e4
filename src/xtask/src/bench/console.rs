//! Measures the console: opening long runs, memory, frames, keys, a live run, many nodes and a simulated day, beside `wandb leet`
//! (W&B's viewer of runs in a terminal), TensorBoard's loader, bottom and nvtop.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use super::made_run;
use super::python::environment_with_viewers;
use super::table::Row;
use crate::failure::{Failure, Result};
use crate::process::{command, output};
use crate::workspace::{cache_dir, release_dir, root};

const STEPS: u64 = 100_000;
const ROUNDS: usize = 3;
/// The memory of a console without data, which is not counted per point.
const BASE_MIB: f64 = 40.0;

/// The graphics protocols besides half blocks, and their values of `VIDTUI_PICTURES`.
const PROTOCOLS: [(&str, &str); 3] =
    [("Kitty's protocol", "kitty"), ("iTerm2's protocol", "iterm2"), ("Sixel", "sixel")];

/// Measures the console in a pseudo-terminal.
pub fn rows() -> Result<Vec<Row>> {
    in_folder("short", |runs| {
        made_run::finished(runs, STEPS)?;
        let mut rounds = Vec::new();
        for round in 1..=ROUNDS {
            println!("console on {STEPS} logged steps: round {round} of {ROUNDS}");
            rounds.push(measure("first", "10", &own(&["--runs", runs.as_str()]))?);
        }
        let figure = |key: &str, scale: f64| figure(&rounds, key, scale);
        let mut rows = vec![
            row("first frame of the console, 100,000 steps", "ms", figure("first_frame_s", 1e3), 100.0, ""),
            row("the run's last step on screen", "ms", figure("run_shown_s", 1e3), 100.0, ""),
            row("CPU of the idle console", "%", figure("idle_cpu", 100.0), 0.5, &monitors()?),
            row("written to the terminal by the idle console", "B/s", figure("idle_bytes_per_s", 1.0), 0.0, ""),
            row("CPU of a frame, a video of 30 fps in 150 × 44 cells", "ms", figure("frame_cpu_s", 1e3), 4.0, ""),
        ];
        for (protocol, value) in PROTOCOLS {
            println!("a video by {protocol}");
            let with_protocol = ["env".to_owned(), format!("VIDTUI_PICTURES={value}")];
            let argv = [&with_protocol[..], &own(&["--runs", runs.as_str()])].concat();
            let figures = self::figure(&[measure("first", "10", &argv)?], "frame_cpu_s", 1e3);
            rows.push(row(&format!("CPU of a frame of that video by {protocol}"), "ms", figures, 4.0, ""));
        }
        Ok(rows)
    })
}

/// Returns the CPU of other idle monitors, as a note. All are optional: bottom is installed with `cargo install bottom`; htop, btop and nvtop
/// are packages of the system, and nvtop needs a GPU.
fn monitors() -> Result<String> {
    let mut notes = Vec::new();
    for (name, program) in [("bottom", "btm"), ("htop", "htop"), ("btop", "btop"), ("nvtop", "nvtop")] {
        if command("which", [program]).output().is_ok_and(|found| found.status.success()) {
            let argv = [program.to_owned()];
            notes.push(match measure("idle", "20", &argv) {
                Ok(figures) => format!("{name}: {:.2} %", 100.0 * number(&figures, "cpu")),
                Err(_) => format!("{name} did not start"),
            });
        } else {
            notes.push(format!("{name} is not installed"));
        }
    }
    Ok(notes.join(", "))
}

/// Measures runs of a million and of ten million points, and leet and TensorBoard on a million.
pub fn long_run_rows() -> Result<Vec<Row>> {
    let peers = format!("{}; {}", leet(1_000_000)?, tensorboard(1_000_000)?);
    let mut rows = opened(1_000_000, 0.5, &peers)?;
    rows.extend(opened(10_000_000, 5.0, "")?);
    rows.push(frame_of_all_charts(10_000_000)?);
    Ok(rows)
}

/// Measures the frame of a run in which every chart has values, on a screen that has room for all charts.
fn frame_of_all_charts(points: u64) -> Result<Row> {
    in_folder("charts", |runs| {
        made_run::with_all_charts(runs, points)?;
        let mut rounds = Vec::new();
        for round in 1..=ROUNDS {
            println!("frames of all charts on {points} points: round {round} of {ROUNDS}");
            rounds.push(measure("keys", "10", &own(&["--runs", runs.as_str(), "--open", made_run::ID]))?);
        }
        let charts = rounds.iter().map(|round| number(round, "charts")).fold(f64::INFINITY, f64::min);
        let what = format!("CPU of a frame of {charts} charts at 200 × 60, {} M points, p99", points / 1_000_000);
        Ok(row(&what, "ms", figure(&rounds, "frame_cpu_s", 1e3), 2.0, "each frame moves the cursor of every chart"))
    })
}

fn opened(points: u64, limit_s: f64, note: &str) -> Result<Vec<Row>> {
    in_folder("long", |runs| {
        made_run::with_points(runs, points)?;
        let argv = own(&["--runs", runs.as_str(), "--open", made_run::ID]);
        let (mut loaded, mut keys) = (Vec::new(), Vec::new());
        for round in 1..=ROUNDS {
            println!("console on {points} points: round {round} of {ROUNDS}");
            loaded.push(measure("loaded", "60", &argv)?);
            keys.push(measure("keys", "10", &argv)?);
        }
        let bytes = |mib: f64| (mib - BASE_MIB) * f64::from(1 << 20) / points as f64;
        let memory: Vec<f64> = figure(&loaded, "memory_mib", 1.0);
        let used = format!("{:.0} MiB resident; {BASE_MIB} MiB of them are not counted", memory[0]);
        let m = points / 1_000_000;
        Ok(vec![
            row(&format!("open a run of {m} M points"), "s", figure(&loaded, "loaded_s", 1.0), limit_s, note),
            row(&format!("memory per point, {m} M points"), "B", memory.into_iter().map(bytes).collect(), 24.0, &used),
            row(
                &format!("key to frame while {m} M points load, p99"),
                "ms",
                figure(&keys, "key_while_loading_s", 1e3),
                16.0,
                "",
            ),
            row(&format!("key to frame, {m} M points, p99"), "ms", figure(&keys, "key_s", 1e3), 16.0, ""),
        ])
    })
}

/// Returns the time and memory of leet on a run of this many points, as a note.
fn leet(points: u64) -> Result<String> {
    let bin = environment_with_viewers()?;
    in_folder("leet", |folder| {
        println!("writing a run of {points} points with wandb");
        let (steps, script) = ((points / made_run::METRICS).to_string(), root().join("tests/bench/wandb_run.py"));
        output(&mut command(bin.join("python"), [script.as_str(), folder.as_str(), &steps]), "")?;
        let figures = measure("loaded", "120", &leet_on(&bin, &wandb_file(folder)?))?;
        let (seconds, memory) = (number(&figures, "loaded_s"), number(&figures, "memory_mib"));
        Ok(format!("leet: {seconds:.1} s, {memory:.0} MiB"))
    })
}

/// Returns the time and memory of TensorBoard's loader on a run of this many points, as a note.
fn tensorboard(points: u64) -> Result<String> {
    let python = environment_with_viewers()?.join("python");
    in_folder("tensorboard", |folder| {
        println!("writing and loading a run of {points} points with TensorBoard");
        let (steps, script) = ((points / made_run::METRICS).to_string(), root().join("tests/bench/tensorboard_run.py"));
        output(&mut command(&python, [script.as_str(), "write", folder.as_str(), &steps]), "run it by hand")?;
        let printed =
            output(&mut command(&python, [script.as_str(), "load", folder.as_str()]), "run it by hand")?.stdout;
        let figures = serde_json::from_slice(&printed)
            .map_err(|error| Failure::new("TensorBoard's loader printed no numbers", error, "run it by hand"))?;
        let (seconds, memory) = (number(&figures, "loaded_s"), number(&figures, "memory_mib"));
        Ok(format!("TensorBoard's loader: {seconds:.1} s, {memory:.0} MiB"))
    })
}

/// Returns the CPU of leet while it follows a run that logs ten metrics ten times a second, as a note.
fn leet_following() -> Result<String> {
    let bin = environment_with_viewers()?;
    in_folder("leet-live", |folder| {
        println!("leet on a live run");
        let script = root().join("tests/bench/wandb_run.py");
        let mut writer = command(bin.join("python"), [script.as_str(), folder.as_str(), "1000000", "10"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Failure::new("cannot start wandb", error, "run tests/bench/wandb_run.py by hand"))?;
        let until = Instant::now() + Duration::from_secs(30);
        let file = loop {
            match wandb_file(folder) {
                Err(_) if Instant::now() < until => thread::sleep(Duration::from_millis(200)),
                found => break found,
            }
        };
        let figures = file.and_then(|file| measure("idle", "20", &leet_on(&bin, &file)));
        let _ = writer.kill();
        let _ = writer.wait();
        Ok(format!("leet: {:.2} %", 100.0 * number(&figures?, "cpu")))
    })
}

fn leet_on(bin: &Utf8Path, file: &Utf8Path) -> Vec<String> {
    [bin.join("wandb").as_str(), "leet", "run", file.as_str()].map(str::to_owned).into()
}

fn wandb_file(folder: &Utf8Path) -> Result<Utf8PathBuf> {
    let runs = fs::read_dir(folder.join("wandb")).into_iter().flatten().flatten();
    let folders = runs.filter_map(|entry| Utf8PathBuf::from_path_buf(entry.path()).ok());
    let mut files = folders.filter(|path| !path.is_symlink()).filter_map(|path| {
        let mut files = path.read_dir_utf8().ok()?.flatten();
        files.find(|file| file.path().extension() == Some("wandb")).map(|file| file.path().to_owned())
    });
    files.next().ok_or_else(|| Failure::new("wandb wrote no run", folder, "see its messages above"))
}

/// Measures the console while a run logs ten metrics ten times a second, and on 128 nodes of eight GPUs.
pub fn live_rows() -> Result<Vec<Row>> {
    let (mut live, mut nodes) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        println!("console on a live run and on 128 nodes: round {round} of {ROUNDS}");
        live.push(followed()?);
        nodes.push(in_folder("nodes", |runs| {
            measure("idle", "30", &own(&["--runs", runs.as_str(), "--simulate", "128", "--keys", "3"]))
        })?);
    }
    Ok(vec![
        row("CPU while following a run, 10 metrics × 10 Hz", "%", figure(&live, "cpu", 100.0), 2.0, &leet_following()?),
        row("CPU with 128 nodes × 8 GPUs at 2 s", "%", figure(&nodes, "cpu", 100.0), 3.0, ""),
        row("memory with 128 nodes × 8 GPUs", "MiB", figure(&nodes, "memory_mib", 1.0), 60.0, ""),
    ])
}

/// Measures the console on a run to which a thread appends ten lines per second.
fn followed() -> Result<Value> {
    in_folder("live", |runs| {
        let dir = made_run::begun(runs, STEPS)?;
        let failed = |error| Failure::new(format!("cannot write to {dir}"), error, "check the disk");
        let mut file = OpenOptions::new().create(true).append(true).open(dir.join("metrics.jsonl")).map_err(failed)?;
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for step in (1..).take_while(|_| !ended.load(Ordering::Relaxed)) {
                    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                    // If the disk is full, the console shows no new steps, and the measurement is too good. Other rows fail then.
                    let _ = writeln!(file, "{}", made_run::line(step, now.as_secs_f64()));
                    thread::sleep(Duration::from_millis(100));
                }
            });
            let figures = measure("idle", "20", &own(&["--runs", runs.as_str(), "--open", made_run::ID]));
            ended.store(true, Ordering::Relaxed);
            figures
        })
    })
}

/// How many times faster than real time the simulated day passes.
const DAY_SPEED: f64 = 100.0;
/// Runs that train at the same time in the simulated day.
const DAY_RUNS: u64 = 4;
/// Steps of each run: six hours at ten seconds per step.
const DAY_STEPS: u64 = 2160;

/// Seconds between two samples of a node, as supervisors write them. They are real seconds, because the console keeps the samples of the
/// last minutes: more samples per minute would measure a cluster that does not exist.
const DAY_SAMPLES_S: f64 = 5.0;

/// Simulates a day of a busy cluster at 100 times the speed: 16 nodes, four runs at a time that log, save and end after six hours, and a user
/// who looks at the runs, one run, its log and the nodes in turn. This takes a quarter of an hour.
///
/// The growth from a tenth of the day has two reasons: the open run is longer at the end of the day, and what the console keeps. From a
/// quarter of the day, when the first runs end, only the second one remains.
pub fn day_rows() -> Result<Vec<Row>> {
    let seconds = 86_400.0 / DAY_SPEED;
    println!("a simulated day of 16 nodes and {DAY_RUNS} runs: {seconds} s");
    let figures = in_folder("day", |runs| {
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            for slot in 0..DAY_RUNS {
                let ended = &ended;
                scope.spawn(move || busy_slot(runs, slot, ended));
            }
            // The keys show the runs, the first run, its log, the run again and the nodes.
            let argv = own(&["--runs", runs.as_str(), "--simulate", "16@100", "--tour", "1\rl\x1b3"]);
            let figures = measure("growth", &seconds.to_string(), &argv);
            ended.store(true, Ordering::Relaxed);
            figures
        })
    })?;
    let grown = |from: &str, to: &str| 100.0 * (number(&figures, to) / number(&figures, from) - 1.0);
    let of_memory = |what: &str, from: &str| {
        let note = format!("from {:.1} to {:.1} MiB", number(&figures, from), number(&figures, "late_mib"));
        row(what, "%", vec![grown(from, "late_mib")], 5.0, &note)
    };
    Ok(vec![
        of_memory("growth of memory in a simulated day of a busy cluster", "early_mib"),
        of_memory("the same, from the end of the first runs", "quarter_mib"),
        row("growth of open files in a simulated day", "%", vec![grown("early_files", "late_files")], 0.0, ""),
    ])
}

/// Trains one run after the other until the day ends. If the disk is full, it writes nothing more.
fn busy_slot(runs: &Utf8Path, slot: u64, ended: &AtomicBool) {
    for number in 0.. {
        let id = format!("2026-11-20T{:02}{:02}-busy-{slot}{number:03}", number % 24, slot);
        let Ok(dir) = made_run::begun_as(runs, &id, DAY_STEPS) else { return };
        let Ok(()) = fs::create_dir_all(dir.join("nodes/bench/logs")) else { return };
        let open = |path: &str| OpenOptions::new().create(true).append(true).open(dir.join(path));
        let files = ["metrics.jsonl", "events.jsonl", "nodes/bench/gpu.jsonl", "nodes/bench/logs/0001-rank-00000.log"];
        let [Ok(mut metrics), Ok(mut events), Ok(mut samples), Ok(mut log)] = files.map(open) else { return };
        let mut sampled_s = 0.0;
        for step in 1..=DAY_STEPS {
            if ended.load(Ordering::Relaxed) {
                return;
            }
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let _ = writeln!(metrics, "{}", made_run::line(step, now));
            if now - sampled_s >= DAY_SAMPLES_S {
                sampled_s = now;
                let _ = writeln!(samples, "{}", made_run::node_line(now, step));
            }
            let _ = writeln!(log, "2026-11-20 04:00:00 step {step}: loss 0.{step:04}");
            // The run saves every half hour.
            if step % 180 == 0 {
                let saved = format!(
                    "{{\"v\":1,\"t\":{now},\"attempt\":1,\"step\":{step},\"event\":\"checkpoint_saved\",\
                     \"path\":\"checkpoints/step-{step:08}\",\"bytes\":1000000,\"seconds\":4.0}}"
                );
                let _ = writeln!(events, "{saved}");
            }
            thread::sleep(Duration::from_secs_f64(10.0 / DAY_SPEED));
        }
        let _ = made_run::end(&dir, DAY_STEPS);
    }
}

/// Returns the command line of this console.
fn own(args: &[&str]) -> Vec<String> {
    let program = release_dir().join("vidtui");
    [program.as_str()].iter().chain(args).map(|&word| word.to_owned()).collect()
}

/// Runs a scenario of `tests/bench/console.py` and returns its figures.
fn measure(scenario: &str, seconds: &str, argv: &[String]) -> Result<Value> {
    let script = root().join("tests/bench/console.py");
    let words = [script.as_str(), scenario, seconds].into_iter().chain(argv.iter().map(String::as_str));
    let printed = output(&mut command("python3", words), "run it by hand")?.stdout;
    serde_json::from_slice(&printed).map_err(|error| {
        Failure::new("the console bench printed no numbers", error, "run tests/bench/console.py by hand")
    })
}

/// Returns one figure of each round.
fn figure(rounds: &[Value], key: &str, scale: f64) -> Vec<f64> {
    rounds.iter().map(|round| scale * number(round, key)).collect()
}

fn number(figures: &Value, key: &str) -> f64 {
    figures[key].as_f64().unwrap_or(f64::NAN)
}

/// Returns a row.
pub fn row(what: &str, unit: &'static str, rounds: Vec<f64>, at_most: f64, note: &str) -> Row {
    Row { what: what.into(), unit, rounds, at_most, note: note.into() }
}

/// Calls `measure` with a new folder, and removes the folder.
pub fn in_folder<T>(name: &str, measure: impl FnOnce(&Utf8Path) -> Result<T>) -> Result<T> {
    let folder = cache_dir()?.join(format!("bench-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder)
        .map_err(|e| Failure::new(format!("cannot create {folder}"), e, "check the disk and the permissions"))?;
    let measured = measure(&folder);
    // Files left in the cache folder do no harm.
    let _ = fs::remove_dir_all(&folder);
    measured
}

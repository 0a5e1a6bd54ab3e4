//! Probing clips, compared with a Python loop over ffprobe, and decoding chosen frames, compared with PyAV.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use super::python;
use super::table::{Row, median};
use crate::failure::{Failure, Result};
use crate::libtorch::system;
use crate::process::{cargo, command, output, run, shown};
use crate::workspace::{cache_dir, release_dir, root};

const ROUNDS: usize = 5;
/// Clips that are probed, and the workers of both sides.
const CLIPS: usize = 200;
const WORKERS: &str = "2";
/// The number, rate, width and height of decoded frames, as in CogVideoX; and the number of passes, of which the first
/// is a warm-up.
const DECODED: [&str; 5] = ["49", "8", "720", "480", "3"];
/// The largest difference of the means of all pixels: the scalers round differently, and another frame differs by more.
const APART: f64 = 0.5;

/// Measures 200 clips of 4 s, and 49 frames over 6 s of a clip of 1280 × 720.
pub fn rows() -> Result<Vec<Row>> {
    system::require(&[system::DECODER])?;
    let bin = python::environment_with_pyav()?;
    let fix = "see the compiler's errors above";
    run(&mut cargo(["build", "--release", "--package", "video", "--example", "clip_speed"]), fix)?;
    let sides = Sides { ours: release_dir().join("examples/clip_speed"), python: bin.join("python") };
    let clips = Clips::make()?;
    let mut rows = Vec::new();
    // Nearly all of the time is the start of ffprobe, which both sides pay.
    let verbs =
        [("probe", "probe 200 clips, 2 workers", 1.0), ("list", "probe 200 clips, list their frames", f64::INFINITY)];
    for (verb, what, at_most) in verbs {
        let args = [verb, clips.folder.as_str(), WORKERS];
        let check = |ours: &Value, theirs: &Value| ours["clips"] == CLIPS && ours["frames"] == theirs["frames"];
        rows.push(sides.row(&format!("{what}: time"), &args, at_most, check)?);
    }
    let args = [&["decode", clips.large.as_str()], &DECODED[..]].concat();
    let same = |ours: &Value, theirs: &Value| {
        let mean = |side: &Value| side["mean"].as_f64().unwrap_or(f64::NAN);
        (mean(ours) - mean(theirs)).abs() < APART
    };
    rows.push(sides.row("decode 49 chosen frames to a tensor: time of PyAV", &args, 1.2, same)?);
    Ok(rows)
}

/// The two programs.
struct Sides {
    ours: Utf8PathBuf,
    python: Utf8PathBuf,
}

impl Sides {
    /// Runs both programs in turn; `same` checks that they did the same work.
    fn row(&self, what: &str, args: &[&str], at_most: f64, same: impl Fn(&Value, &Value) -> bool) -> Result<Row> {
        let script = root().join("tests/bench/video.py");
        let mut rounds = Vec::new();
        for round in 1..=ROUNDS {
            println!("{what}: round {round} of {ROUNDS}");
            let ours = figures(&mut command(&self.ours, args))?;
            let theirs = figures(&mut command(&self.python, [&[script.as_str()], args].concat()))?;
            if !same(&ours, &theirs) {
                let why = format!("ours is {ours}, theirs is {theirs}");
                let fix = "compare src/video/examples/clip_speed.rs with tests/bench/video.py";
                return Err(Failure::new(format!("the two sides of {what:?} did different work"), why, fix));
            }
            rounds.push((seconds(&ours), seconds(&theirs)));
        }
        let all = |pick: fn(&(f64, f64)) -> f64| median(&rounds.iter().map(pick).collect::<Vec<_>>());
        Ok(Row {
            what: what.into(),
            unit: "×",
            note: format!("ours {:.2} s, theirs {:.2} s", all(|r| r.0), all(|r| r.1)),
            rounds: rounds.iter().map(|(ours, theirs)| ours / theirs).collect(),
            at_most,
        })
    }
}

/// Returns the seconds of one side: those of its only pass, or the median of its passes.
fn seconds(side: &Value) -> f64 {
    match side["s"].as_array() {
        Some(passes) => median(&passes.iter().filter_map(Value::as_f64).collect::<Vec<_>>()),
        None => side["s"].as_f64().unwrap_or(f64::NAN),
    }
}

fn figures(program: &mut std::process::Command) -> Result<Value> {
    let printed = output(program, "run it by hand")?.stdout;
    serde_json::from_slice(&printed)
        .map_err(|e| Failure::new(format!("`{}` gave no figures", shown(program)), e, "run it by hand"))
}

/// The clips, removed at the end.
struct Clips {
    all: Utf8PathBuf,
    /// The folder of the small ones.
    folder: Utf8PathBuf,
    large: Utf8PathBuf,
}

impl Clips {
    fn make() -> Result<Self> {
        let all = cache_dir()?.join(format!("bench-video-{}", std::process::id()));
        let clips = Self { folder: all.join("clips"), large: all.join("large.mp4"), all };
        let failed = |e| Failure::new(format!("cannot write to {}", clips.all), e, "check the disk");
        fs::create_dir_all(&clips.folder).map_err(failed)?;
        println!("making {CLIPS} clips and one of 1280 × 720");
        let first = clips.folder.join("0.mp4");
        encode("testsrc2=size=320x240:rate=25:duration=4", "format=yuv420p", &first)?;
        for number in 1..CLIPS {
            fs::copy(&first, clips.folder.join(format!("{number}.mp4"))).map_err(failed)?;
        }
        // Noise makes it as hard to decode as film.
        let film = "mandelbrot=size=1280x720:rate=24:maxiter=300";
        encode(film, "trim=duration=6.3,noise=alls=6:allf=t:all_seed=1,format=yuv420p", &clips.large)?;
        Ok(clips)
    }
}

fn encode(source: &str, filters: &str, to: &Utf8Path) -> Result<()> {
    let mut ffmpeg = command("ffmpeg", ["-v", "error", "-y", "-f", "lavfi", "-i", source, "-vf", filters]);
    ffmpeg.args(["-c:v", "libx264", "-preset", "medium", "-crf", "20", "-colorspace", "bt709", "-color_range", "tv"]);
    run(ffmpeg.arg(to), "install an ffmpeg with libx264")
}

impl Drop for Clips {
    fn drop(&mut self) {
        // Files left in the cache folder do no harm.
        let _ = fs::remove_dir_all(&self.all);
    }
}

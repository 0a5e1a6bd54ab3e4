//! Measures checking clips, compared with a Python loop over ffprobe, and decoding chosen frames, compared with PyAV.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use super::figures::{printed, timed};
use super::python;
use super::table::{Row, median};
use crate::failure::{Failure, Result};
use crate::libtorch::system;
use crate::process::{cargo, command, run};
use crate::workspace::{cache_dir, release_dir, root};

const ROUNDS: usize = 5;
/// Clips that are checked.
const CLIPS: usize = 200;
/// The number, rate, width and height of decoded frames, as in CogVideoX, and the number of passes. The first pass is a
/// warm-up.
const DECODED: [&str; 5] = ["49", "8", "720", "480", "3"];
/// The largest difference of the means of all pixels: the scalers round differently, and a wrong frame differs by more.
const APART: f64 = 0.5;

/// Measures 200 clips of 4 s, and 49 frames over 6 s of a clip of 1280 × 720.
pub fn rows() -> Result<Vec<Row>> {
    system::require(&[system::DECODER])?;
    let bin = python::environment_with_pyav()?;
    let fix = "see the compiler's errors above";
    run(&mut cargo(["build", "--release", "--package", "video", "--example", "clip_speed"]), fix)?;
    let (python, script) = (bin.join("python"), root().join("tests/bench/video.py"));
    let clips = Clips::make()?;
    let mut rows = check(&clips, &python, &script)?;
    rows.push(decode(&clips, &python, &script)?);
    Ok(rows)
}

/// Measures whole programs: both read the captions, hash the videos, and start one ffprobe for each clip, which lists its frames, with
/// as many workers as there are cores. `vidtui data check` also prints its report. Nearly all of the time is the start of ffprobe.
fn check(clips: &Clips, python: &Utf8Path, script: &Utf8Path) -> Result<Vec<Row>> {
    const WHAT: &str = "check 200 clips";
    let mut rounds = Vec::new();
    for round in 1..=ROUNDS {
        println!("{WHAT}: round {round} of {ROUNDS}");
        let mut vidtui = command(release_dir().join("vidtui"), ["data", "check", clips.folder.as_str(), "--json"]);
        // The cache is empty, so that no result of an earlier check is used.
        vidtui.env("XDG_CACHE_HOME", clips.all.join(format!("cache-{round}")));
        let ours = timed(&mut vidtui)?;
        let theirs = timed(&mut command(python, [script.as_str(), "check", clips.folder.as_str()]))?;
        let report = &ours.0["report"];
        let hours = |side: &Value| side["hours"].as_f64().unwrap_or(f64::NAN);
        let is_same = (hours(report) - hours(&theirs.0)).abs() < 1e-6;
        if report["usable"] != CLIPS || theirs.0["clips"] != CLIPS || !is_same {
            return Err(different(WHAT, report, &theirs.0));
        }
        rounds.push([(ours.1, theirs.1), (ours.2, theirs.2)]);
    }
    let row = |of: &str, pick: usize, at_most| {
        ratio(format!("{WHAT}: {of}"), rounds.iter().map(|r| r[pick]).collect(), at_most)
    };
    Ok(vec![row("time", 0, 1.0), row("CPU time", 1, f64::INFINITY)])
}

/// Measures passes within each program, from the path of a clip to a tensor.
fn decode(clips: &Clips, python: &Utf8Path, script: &Utf8Path) -> Result<Row> {
    const WHAT: &str = "decode 49 chosen frames to a tensor: time of PyAV";
    let args = [&["decode", clips.large.as_str()], &DECODED[..]].concat();
    let mut rounds = Vec::new();
    for round in 1..=ROUNDS {
        println!("{WHAT}: round {round} of {ROUNDS}");
        let ours = printed(&mut command(release_dir().join("examples/clip_speed"), &args[1..]))?;
        let theirs = printed(&mut command(python, [&[script.as_str()], &args[..]].concat()))?;
        let mean = |side: &Value| side["mean"].as_f64().unwrap_or(f64::NAN);
        if (mean(&ours) - mean(&theirs)).abs() >= APART {
            return Err(different(WHAT, &ours, &theirs));
        }
        rounds.push((seconds(&ours), seconds(&theirs)));
    }
    Ok(ratio(WHAT.into(), rounds, 1.2))
}

fn different(what: &str, ours: &Value, theirs: &Value) -> Failure {
    let why = format!("ours is {ours}, theirs is {theirs}");
    let fix = "compare src/video/examples/clip_speed.rs with tests/bench/video.py";
    Failure::new(format!("the two sides of {what:?} did different work"), why, fix)
}

/// Makes a row of the seconds of both sides in each round.
fn ratio(what: String, rounds: Vec<(f64, f64)>, at_most: f64) -> Row {
    let all = |pick: fn(&(f64, f64)) -> f64| median(&rounds.iter().map(pick).collect::<Vec<_>>());
    Row {
        what,
        unit: "×",
        note: format!("ours {:.2} s, theirs {:.2} s", all(|r| r.0), all(|r| r.1)),
        rounds: rounds.iter().map(|(ours, theirs)| ours / theirs).collect(),
        at_most,
    }
}

/// Returns the seconds of the fastest pass of a side.
fn seconds(side: &Value) -> f64 {
    side["s"].as_array().into_iter().flatten().filter_map(Value::as_f64).fold(f64::NAN, f64::min)
}

/// The clips. Dropping this value removes them.
struct Clips {
    all: Utf8PathBuf,
    /// The folder of the small clips.
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
        for number in 0..CLIPS {
            let clip = clips.folder.join(format!("{number}.mp4"));
            if number > 0 {
                fs::copy(&first, &clip).map_err(failed)?;
            }
            fs::write(clip.with_extension("txt"), format!("a test pattern, number {number}")).map_err(failed)?;
        }
        // Noise makes the clip as hard to decode as film.
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

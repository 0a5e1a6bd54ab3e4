//! Measures how rank 0 opens a store of a million synthetic clips at the start of a run, how the other ranks receive its table,
//! and the share of time that the VAE waits for decoded clips in an encode.

use std::fs;
use std::os::unix::fs::symlink;

use camino::Utf8Path;
use serde_json::Value;

use super::table::Row;
use super::{encoders, python};
use crate::failure::{Failure, Result};
use crate::libtorch::system;
use crate::process::{cargo, command, output};
use crate::workspace::{cache_dir, release_dir, root};

/// The number of encodes of the same clips, each into a new folder.
const ROUNDS: usize = 3;
/// Clips of 2 s that are cut from the demo's film, and the frames between their starts.
const CLIPS: usize = 12;
const APART: usize = 7;
/// The frames that are encoded, as in the demo.
const FRAMES: [&str; 8] = ["--frames", "25", "--fps", "12.5", "--height", "96", "--width", "128"];

/// Measures the store of a million clips, and how long the VAE waits for decoding in an encode.
pub fn rows() -> Result<Vec<Row>> {
    let mut rows = million_clips()?;
    rows.push(decode_wait()?);
    Ok(rows)
}

/// Encodes clips of the demo's film with the VAE of `bench encoders`, in one rank on all cores.
fn decode_wait() -> Result<Row> {
    system::require(&[system::DECODER])?;
    let models = encoders::models(&python::environment_with_text()?)?;
    let folder = cache_dir()?.join(format!("bench-encode-{}", std::process::id()));
    let measured = encode(&folder, &models);
    // Files left in the cache folder do no harm.
    let _ = fs::remove_dir_all(&folder);
    let row = |rounds| Row {
        what: "encoding the demo's clips: VAE waits for decoding".into(),
        unit: "%",
        rounds,
        at_most: 5.0,
        note: "of the time from the first claim to the last clip".into(),
    };
    measured.map(row)
}

/// Returns the share of time that the VAE waits in each round, in percent.
fn encode(folder: &Utf8Path, models: &Utf8Path) -> Result<Vec<f64>> {
    let failed = |e| Failure::new(format!("cannot write to {folder}"), e, "check the disk");
    let (clips, model, runs) = (folder.join("clips"), folder.join("model"), folder.join("runs"));
    fs::create_dir_all(&clips).and_then(|()| fs::create_dir_all(&model)).map_err(failed)?;
    let t5 = root().join("tests/fixtures/oracle/t5/t5_v1_1_tiny");
    for part in [models.join("vae"), t5.join("text_encoder"), t5.join("tokenizer")] {
        symlink(&part, model.join(part.file_name().unwrap_or_default())).map_err(failed)?;
    }
    let film = root().join("assets/demo/bunny.mp4");
    for number in 0..CLIPS {
        let (first, clip) = (number * APART, clips.join(format!("{number:02}.mp4")));
        let filter = format!("trim=start_frame={first}:end_frame={},setpts=PTS-STARTPTS", first + 49);
        let args = ["-v", "error", "-i", film.as_str(), "-an", "-vf", &filter, "-c:v", "libx264", clip.as_str()];
        output(&mut command("ffmpeg", args), "use an ffmpeg that has libx264, as Debian's")?;
        fs::write(clip.with_extension("txt"), format!("a rabbit, part {number}")).map_err(failed)?;
    }
    let vidtui = release_dir().join("vidtui");
    let manifest = folder.join("clips.jsonl");
    let check = ["data", "check", clips.as_str(), "--out", manifest.as_str()];
    output(&mut command(&vidtui, check), "see its message")?;
    let share = |round| {
        println!("encoding {CLIPS} clips: round {round} of {ROUNDS}");
        let (data, run) = (folder.join(format!("data-{round}")), format!("round-{round}"));
        let mut encode = command(&vidtui, ["data", "encode", manifest.as_str(), "--model", model.as_str()]);
        encode.args(["--out", data.as_str(), "--name", &run, "--dtype", "float32", "--local", "1", "--wait"]);
        output(encode.args(["--runs", runs.as_str()]).args(FRAMES), "see its message")?;
        waited(&runs, &run)
    };
    (1..=ROUNDS).map(share).collect()
}

/// Reads the share of time that the VAE waits, in percent, from the last line of the metrics of a finished run.
fn waited(runs: &Utf8Path, run: &str) -> Result<f64> {
    let no_metrics = |e| Failure::new(format!("cannot read the metrics of {run} in {runs}"), e, "run it by hand");
    for entry in runs.read_dir_utf8().map_err(no_metrics)?.filter_map(std::result::Result::ok) {
        if entry.file_name().contains(run) {
            let text = fs::read_to_string(entry.path().join("metrics.jsonl")).map_err(no_metrics)?;
            let lines = text.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let vae = lines.map(|line| line["items"]["stages"]["vae"].clone()).find(|vae| vae["items"] == CLIPS);
            let seconds = |key: &str| vae.as_ref().and_then(|vae| vae[key].as_f64()).unwrap_or(f64::NAN);
            return Ok(100.0 * seconds("wait_s") / (seconds("wait_s") + seconds("busy_s")));
        }
    }
    Err(Failure::new(format!("there is no run {run} in {runs}"), "the encode wrote none", "run it by hand"))
}

/// Runs the measuring test of the crate `dataset`, which makes the store.
fn million_clips() -> Result<Vec<Row>> {
    println!("opening a store of a million clips");
    let mut test = cargo(["test", "--release", "--quiet", "--package", "dataset", "--lib", "--", "--ignored"]);
    test.args(["--nocapture", "a_million_clips"]);
    let printed = output(&mut test, "run it by hand; it needs 2 GB of disk in the folder of temporary files")?.stdout;
    let text = String::from_utf8_lossy(&printed);
    let rounds: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let rounds: Vec<&Value> = rounds.iter().filter(|round| round["open_s"].is_number()).collect();
    if rounds.is_empty() {
        return Err(Failure::new("the bench of a million clips printed no numbers", text, "run the test by hand"));
    }
    let values = |key: &str| -> Vec<f64> { rounds.iter().filter_map(|round| round[key].as_f64()).collect() };
    let shared = values("shared_mib").first().copied().unwrap_or(f64::NAN);
    let row =
        |what: &str, unit, key, at_most, note| Row { what: what.into(), unit, rounds: values(key), at_most, note };
    Ok(vec![
        row("a million clips: open and check the store (rank 0)", "s", "open_s", 5.0, String::new()),
        row("a million clips: peak memory of rank 0", "MiB", "peak_mib", 1024.0, String::new()),
        row(
            "a million clips: read the table of rank 0",
            "s",
            "receive_s",
            5.0,
            format!("{shared:.0} MiB to each rank"),
        ),
    ])
}

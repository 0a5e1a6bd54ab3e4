//! `cargo xtask fuzz`: gives damaged and hostile files to the readers of weights.

use std::fs;

use crate::failure::{Failure, Result};
use crate::process::{cargo, run as run_command};

/// The default seconds for each reader.
const SECONDS: f64 = 30.0;

/// Runs the command: `fuzz [SECONDS] [READER]`.
pub fn run(args: &[String]) -> Result<()> {
    let (seconds, reader) = match args {
        [] => (SECONDS, None),
        [seconds] => (seconds_of(seconds)?, None),
        [seconds, reader] => (seconds_of(seconds)?, Some(reader)),
        [_, _, extra, ..] => {
            let fix = "give at most seconds and the name of a reader";
            return Err(Failure::request("cannot fuzz", format!("{extra:?} is one argument too many"), fix));
        }
    };
    let mut test = cargo(["test", "--release", "--quiet", "--package", "weights", "--lib", "--"]);
    test.args(["--exact", "--nocapture", "fuzz::readers_survive_whatever_they_are_given"]);
    test.env("VIDTUI_FUZZ_S", seconds.to_string());
    if let Some(reader) = reader {
        test.env("VIDTUI_FUZZ", reader);
    }
    // The readers get thousands of small files per second: keep them in memory if possible.
    if fs::metadata("/dev/shm").is_ok_and(|shm| shm.is_dir()) {
        test.env("TMPDIR", "/dev/shm");
    }
    let fix = "the input is in the folder vidtui-fuzz named above: fix the reader, and add the input to \
               tests/fixtures/weights/corpus";
    run_command(&mut test, fix)
}

fn seconds_of(word: &str) -> Result<f64> {
    word.parse().ok().filter(|seconds: &f64| *seconds > 0.0 && seconds.is_finite()).ok_or_else(|| {
        Failure::request("cannot fuzz", format!("{word:?} is not a number of seconds"), "give a number above 0")
    })
}

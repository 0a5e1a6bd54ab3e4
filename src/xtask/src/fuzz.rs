//! `cargo xtask fuzz`: hostile and damaged weights, for as long as one likes.

use std::fs;

use crate::failure::{Failure, Result};
use crate::process::{cargo, run as run_command};

/// Seconds for each reader, when nobody said.
const SECONDS: f64 = 30.0;

/// Runs the command: `fuzz [SECONDS] [READER]`.
pub fn run(args: &[String]) -> Result<()> {
    let (seconds, reader) = match args {
        [] => (SECONDS, None),
        [seconds] => (seconds_of(seconds)?, None),
        [seconds, reader] => (seconds_of(seconds)?, Some(reader)),
        [_, _, extra, ..] => {
            let fix = "give seconds, and the name of a reader at most";
            return Err(Failure::request("cannot fuzz", format!("{extra:?} is too much"), fix));
        }
    };
    let mut test = cargo(["test", "--release", "--quiet", "--package", "weights", "--lib", "--"]);
    test.args(["--exact", "--nocapture", "fuzz::readers_survive_whatever_they_are_given"]);
    test.env("VIDTUI_FUZZ_S", seconds.to_string());
    if let Some(reader) = reader {
        test.env("VIDTUI_FUZZ", reader);
    }
    // Thousands of small files a second: in memory, where there is such a place.
    if fs::metadata("/dev/shm").is_ok_and(|shm| shm.is_dir()) {
        test.env("TMPDIR", "/dev/shm");
    }
    let fix = "the input lies in the vidtui-fuzz folder named above: mend the reader, and add the input to \
               tests/fixtures/weights/corpus";
    run_command(&mut test, fix)
}

fn seconds_of(word: &str) -> Result<f64> {
    word.parse().ok().filter(|seconds: &f64| *seconds > 0.0 && seconds.is_finite()).ok_or_else(|| {
        Failure::request("cannot fuzz", format!("{word:?} is not a number of seconds"), "give a number above 0")
    })
}

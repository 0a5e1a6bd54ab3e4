//! `cargo xtask fuzz [TARGET]… [--minutes N]`: feeds the readers of `tests/fuzz` with inputs that reach new code.

use std::fs;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};

use crate::failure::{Failure, Result};
use crate::process::{command, run as run_command, works};
use crate::workspace::root;

/// The targets, each with the folders of fixtures that it begins with, and the endings of their names.
const TARGETS: [(&str, &[(&str, &str)]); 13] = [
    ("safetensors", &[("tests/fixtures/weights", ".safetensors"), ("tests/fixtures/weights/corpus/safetensors", "")]),
    (
        "pickle",
        &[
            ("tests/fixtures/weights", ".pt"),
            ("tests/fixtures/dataset", ".pt"),
            ("tests/fixtures/weights/corpus/torch", ""),
        ],
    ),
    ("dcp", &[("tests/fixtures/weights/dcp", ".metadata"), ("tests/fixtures/weights/corpus/dcp", "")]),
    ("parquet", &[("tests/fixtures/videos", ".parquet")]),
    ("table", &[]),
    ("index", &[]),
    ("hostfile", &[("hostfiles", ".txt")]),
    ("nvidia_smi", &[("tests/fixtures/nvidia-smi", "")]),
    ("slurm", &[("tests/fixtures/slurm", ".txt"), ("hostfiles", ".toml")]),
    ("tensorboard", &[("tests/fixtures/interop/tensorboard", "")]),
    ("wandb", &[("tests/fixtures/interop/offline-run", ".wandb")]),
    ("prompts", &[]),
    ("recipe", &[("configs", ".toml"), ("tests/fixtures/configs", ".toml")]),
];
/// The largest fixture that a target begins with. Longer inputs are slow, and find nothing more.
const LARGEST: u64 = 1 << 16;
/// The folder of further inputs: a folder per target, to which inputs that break a reader are written.
const INPUTS: &str = "tests/fixtures/fuzz";

/// Runs the command.
pub fn run(args: &[String]) -> Result<()> {
    let (named, minutes) = read(args)?;
    if !works("cargo", &["+nightly", "--version"]) {
        let fix = "rustup toolchain install nightly";
        return Err(Failure::new(
            "cannot fuzz",
            "it needs a nightly compiler for the counters of code that inputs reach",
            fix,
        ));
    }
    let tools = root().join("target/tools");
    let cargo_fuzz = tools.join("bin/cargo-fuzz");
    if !cargo_fuzz.exists() {
        println!("installing cargo-fuzz from crates.io into {tools}");
        let mut install = command("cargo", ["install", "--locked", "--quiet", "cargo-fuzz", "--root", tools.as_str()]);
        run_command(&mut install, "check the network")?;
    }
    for name in named {
        let corpus = root().join("target/fuzz/corpus").join(name);
        seed(name, &corpus)
            .map_err(|error| Failure::new(format!("cannot prepare {corpus}"), error, "check the folder"))?;
        println!("{name}: {minutes} min");
        run_command(
            &mut fuzzer(&cargo_fuzz, name, &corpus, minutes),
            &format!("the input is in {INPUTS}/{name}: mend the reader, and keep the input"),
        )?;
    }
    Ok(())
}

/// Returns the chosen targets and the minutes of each.
fn read(args: &[String]) -> Result<(Vec<&'static str>, u64)> {
    let refuse = |why: String, fix: &str| Failure::request("cannot fuzz", why, fix);
    let (mut named, mut minutes) = (Vec::new(), 1);
    let mut words = args.iter();
    while let Some(word) = words.next() {
        if word == "--minutes" {
            // libFuzzer runs without end for 0 seconds.
            let number = words.next().and_then(|number| number.parse().ok()).filter(|number| *number > 0);
            minutes = number.ok_or_else(|| refuse("--minutes has no number above 0".into(), "write --minutes 60"))?;
            continue;
        }
        let known = TARGETS.iter().map(|(name, _)| *name).find(|name| name == word);
        let names = TARGETS.map(|(name, _)| name).join(", ");
        named.push(
            known.ok_or_else(|| refuse(format!("{word:?} is not a target"), &format!("choose some of {names}")))?,
        );
    }
    if named.is_empty() {
        named = TARGETS.map(|(name, _)| name).to_vec();
    }
    Ok((named, minutes))
}

/// Copies the fixtures of a target to its corpus.
fn seed(target: &str, corpus: &Utf8Path) -> std::io::Result<()> {
    fs::create_dir_all(corpus)?;
    let files = fixtures(target)?;
    for (number, file) in files.iter().enumerate() {
        fs::copy(file, corpus.join(format!("seed-{number}")))?;
    }
    Ok(())
}

/// Returns the fixtures of a target.
fn fixtures(target: &str) -> std::io::Result<Vec<Utf8PathBuf>> {
    let places = TARGETS.iter().find(|(name, _)| *name == target).map_or(&[][..], |(_, places)| places);
    let inputs = format!("{INPUTS}/{target}");
    let mut files = Vec::new();
    for (folder, ending) in places.iter().copied().chain([(inputs.as_str(), "")]) {
        files_below(&root().join(folder), ending, &mut files)?;
    }
    Ok(files)
}

/// Adds the files of a folder and its subfolders whose names have an ending.
fn files_below(folder: &Utf8Path, ending: &str, into: &mut Vec<Utf8PathBuf>) -> std::io::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in folder.read_dir_utf8()? {
        let entry = entry?;
        let path = entry.path().to_owned();
        match entry.metadata()? {
            meta if meta.is_dir() => files_below(&path, ending, into)?,
            meta if meta.is_file() && meta.len() <= LARGEST && path.as_str().ends_with(ending) => into.push(path),
            _ => {}
        }
    }
    Ok(())
}

fn fuzzer(cargo_fuzz: &Utf8Path, target: &str, corpus: &Utf8Path, minutes: u64) -> Command {
    let findings = root().join(INPUTS).join(target);
    let _ = fs::create_dir_all(&findings);
    let time = format!("-max_total_time={}", minutes * 60);
    let place = format!("-artifact_prefix={findings}/");
    // cargo-fuzz calls the cargo of the nightly compiler by this variable of rustup.
    let mut fuzz = command(
        cargo_fuzz,
        ["run", "--fuzz-dir", "tests/fuzz", "--target-dir", "target/fuzz", "--sanitizer", "none", target],
    );
    fuzz.args([
        corpus.as_str(),
        "--",
        "-rss_limit_mb=2048",
        "-timeout=20",
        "-max_len=65536",
        "-print_final_stats=1",
        &time,
        &place,
    ]);
    fuzz.current_dir(root()).env("RUSTUP_TOOLCHAIN", "nightly").env_remove("CARGO");
    fuzz
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_a_program_and_begins_with_fixtures() {
        let manifest = fs::read_to_string(root().join("tests/fuzz/Cargo.toml")).unwrap();
        assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
        for (name, _) in TARGETS {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
            assert!(!fixtures(name).unwrap().is_empty(), "{name} has no fixture");
        }
    }

    #[test]
    fn targets_are_chosen_by_name_and_all_run_without_one() {
        let read = |args: &[&str]| read(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        assert_eq!(read(&["pickle", "--minutes", "60"]).unwrap(), (vec!["pickle"], 60));
        assert_eq!(read(&[]).unwrap().0.len(), TARGETS.len());
        assert!(read(&["pickles"]).is_err_and(|failure| failure.fix.contains("safetensors")));
        assert!(read(&["--minutes"]).is_err() && read(&["--minutes", "0"]).is_err());
    }
}

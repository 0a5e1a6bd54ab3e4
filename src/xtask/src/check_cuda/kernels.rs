//! Compiles the CUDA kernels and compares their registers and spilled bytes with the recorded numbers.
//!
//! A kernel that spills its state to memory still computes the right numbers, but many times slower. No test on a CPU detects
//! this. So a file records the registers and spilled bytes of each kernel, and a change of them shows in the diff of that file.
//! The file also has the shared memory of each kernel, which is set at the kernel's launch: `tests/scan` compares those lines.

use std::fmt::Write;
use std::fs;

use camino::Utf8Path;

use crate::bench::python;
use crate::failure::{Failure, Result};
use crate::process::{command, output};
use crate::workspace::root;

/// The compiled targets. The last one is PTX, which the driver compiles for newer GPUs.
const TARGETS: [&str; 4] = [
    "arch=compute_80,code=sm_80",
    "arch=compute_90,code=sm_90",
    "arch=compute_100,code=sm_100",
    "arch=compute_90,code=compute_90",
];

/// The text of the lines that `tests/scan` compares.
const SHARED: &str = "bytes of shared memory";

/// With this environment variable, the file is written instead of compared.
const UPDATE: &str = "UPDATE_KERNEL_RESOURCES";

/// The sources of kernels.
const SOURCES: [&str; 3] = ["ttt", "fused", "normal"];

/// The file into which the build of the crate `kernels` writes the compiler's reports.
const REPORTS: &str = "ptxas.log";

/// Compiles the kernels in `src/kernels/cuda`, and compares their resources with the recorded ones.
pub fn compile_and_compare() -> Result<()> {
    let (nvcc, folder, target) = (python::nvcc()?, root().join("src/kernels/cuda"), root().join("target/cuda"));
    fs::create_dir_all(&target).map_err(|e| Failure::new(format!("cannot create {target}"), e, "check the disk"))?;
    println!("compiling the CUDA kernels for {} targets (a minute)", TARGETS.len());
    let mut log = String::new();
    for source in SOURCES {
        let mut compile = command(&nvcc, ["-std=c++17", "-O3", "--threads", "2", "-Xptxas", "-v", "-c"]);
        compile.args(TARGETS.iter().flat_map(|target| ["-gencode", target]));
        compile.arg(folder.join(source).with_extension("cu")).arg("-o").arg(target.join(source).with_extension("o"));
        let out = output(&mut compile, "see the compiler's errors above")?;
        log += &String::from_utf8_lossy(&out.stderr);
    }
    compare(&log)
}

/// Compares the resources of the kernels that the newest build in a folder of cargo has with the recorded ones.
pub fn compare_built(profile: &Utf8Path) -> Result<()> {
    let built = profile.join("build").read_dir_utf8().into_iter().flatten().flatten();
    let reports = built.map(|entry| entry.path().join("out").join(REPORTS)).filter(|path| path.is_file());
    let newest = reports.max_by_key(|path| path.metadata().and_then(|meta| meta.modified()).ok());
    let Some(path) = newest else {
        let why = format!("no folder in {profile}/build has {REPORTS}");
        return Err(Failure::new("cannot compare the CUDA kernels", why, "remove that folder and run this again"));
    };
    let log = fs::read_to_string(&path).map_err(|e| Failure::new(format!("cannot read {path}"), e, "remove it"))?;
    compare(&log)
}

/// Compares the resources in the reports of ptxas with `resources.txt`.
fn compare(log: &str) -> Result<()> {
    let found = resources(log);
    let file = root().join("src/kernels/cuda/resources.txt");
    let recorded =
        fs::read_to_string(&file).map_err(|e| Failure::new(format!("cannot read {file}"), e, "check it out"))?;
    let (others, recorded): (Vec<_>, Vec<_>) = recorded.lines().partition(|line| line.contains(SHARED));
    if std::env::var_os(UPDATE).is_some() {
        let all: String = found.lines().chain(others).fold(String::new(), |text, line| text + line + "\n");
        return fs::write(&file, all).map_err(|e| Failure::new(format!("cannot write {file}"), e, "check the disk"));
    }
    match differences(&recorded, &found.lines().collect::<Vec<_>>()) {
        None => {
            println!("registers and spilled bytes equal {file}: {} lines", found.lines().count());
            Ok(())
        }
        Some(lines) => Err(Failure::new(
            "the CUDA kernels need other registers than recorded",
            format!("these lines of {file} change:\n{lines}"),
            format!("if that is intended, run `{UPDATE}=1 cargo xtask check-cuda --kernels` and commit the file"),
        )),
    }
}

/// Returns a sorted line per kernel and target from the report of `ptxas -v`.
fn resources(log: &str) -> String {
    let mut lines = Vec::new();
    let (mut kernel, mut spills) = (String::new(), 0);
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let (name, target) = rest.split_once("' for '").unwrap_or((rest, ""));
            kernel = format!("{} {}", kernel_name(name), target.trim_end_matches('\''));
        } else if let Some((before, _)) = line.split_once(" bytes spill stores") {
            spills = before.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        } else if let Some((_, rest)) = line.split_once(": Used ") {
            let registers = rest.split(' ').next().unwrap_or("?");
            lines.push(format!("{kernel}: {registers} registers, {spills} bytes spilled"));
        }
    }
    lines.sort();
    lines.into_iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{line}");
        text
    })
}

/// Shortens a mangled name: `_ZN3ttt9ttt_chainINS_5SizesILi64ELb1ELi2EEEEEv…` is `chain mlp 64 of 2 blocks`, and `_ZN5fused12norm_forwardItLi4EEEv…`,
/// whose lanes have four pieces of a row of 16-bit numbers, is `norm_forward bf16 4`.
fn kernel_name(mangled: &str) -> String {
    if let Some(name) = mangled.strip_prefix("_ZN5fused").and_then(fused_name) {
        return name;
    }
    if mangled.starts_with("_ZN6normal") {
        return "normal_numbers".to_owned();
    }
    let Some((_, sizes)) = mangled.split_once("SizesILi") else {
        return mangled.to_owned();
    };
    let width: String = sizes.chars().take_while(char::is_ascii_digit).collect();
    let (kind, rest) = match sizes[width.len()..].strip_prefix("ELb1") {
        Some(rest) => ("mlp", rest),
        None => ("linear", sizes[width.len()..].trim_start_matches("ELb0")),
    };
    let blocks = rest.strip_prefix("ELi").and_then(|rest| rest.split_once('E')).map_or("1", |(blocks, _)| blocks);
    let names =
        [("ForwardResults", "forward"), ("ReplayResults", "replay"), ("ttt_chain", "chain"), ("ttt_keys", "keys")];
    let name = names.into_iter().find(|(part, _)| mangled.contains(part)).map_or(mangled, |(_, name)| name);
    match blocks {
        "1" => format!("{name} {kind} {width}"),
        _ => format!("{name} {kind} {width} of {blocks} blocks"),
    }
}

/// Shortens a mangled name after the namespace of the fused operators: the length of the name, the name, the type, and
/// perhaps a number.
fn fused_name(rest: &str) -> Option<String> {
    let name = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let length: usize = rest[..rest.len() - name.len()].parse().ok()?;
    let (name, arguments) = name.split_at_checked(length)?;
    let arguments = arguments.strip_prefix('I')?;
    let dtype = if arguments.starts_with('t') { "bf16" } else { "float" };
    let number = arguments[1..].strip_prefix("Li").and_then(|rest| rest.split_once('E')).map(|(number, _)| number);
    Some([name, dtype].into_iter().chain(number).collect::<Vec<_>>().join(" "))
}

/// Returns the lines that are in one list only, or `None` if the lists have the same lines.
fn differences(recorded: &[&str], found: &[&str]) -> Option<String> {
    let missing = recorded.iter().filter(|line| !found.contains(line)).map(|line| format!("- {line}"));
    let new = found.iter().filter(|line| !recorded.contains(line)).map(|line| format!("+ {line}"));
    let lines: Vec<_> = missing.chain(new).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN3ttt9ttt_chainINS_5SizesILi64ELb1ELi2EEEEEvNS_5ShapeE' for 'sm_90'
ptxas info    : Function properties for _ZN3ttt9ttt_chainINS_5SizesILi64ELb1ELi2EEEEEvNS_5ShapeE
    160 bytes stack frame, 160 bytes spill stores, 208 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 160 bytes cumulative stack size
ptxas info    : Compiling entry function '_ZN3ttt8ttt_scanINS_5SizesILi16ELb0ELi1EEENS_14ForwardResultsEEEvNS_5ShapeE' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 96 registers, used 1 barriers, 472 bytes cmem[0]";

    #[test]
    fn the_report_of_ptxas_gives_a_line_per_kernel_and_target() {
        let want = "chain mlp 64 of 2 blocks sm_90: 255 registers, 160 bytes spilled\n\
                    forward linear 16 sm_80: 96 registers, 0 bytes spilled\n";
        assert_eq!(resources(LOG), want);
    }

    #[test]
    fn names_of_fused_operators_have_their_type_and_pieces() {
        let name = |rest: &str| kernel_name(&format!("_ZN5fused{rest}"));
        assert_eq!(name("12norm_forwardItLi4EEEvNS_4RowsENS_4NormEPvNS_10StatisticsE"), "norm_forward bf16 4");
        assert_eq!(name("7rotatedIfEEvNS_4RowsEiPKvPKffPv"), "rotated float");
    }

    #[test]
    fn a_changed_a_missing_and_a_new_kernel_are_differences() {
        assert_eq!(differences(&["a: 1", "b: 2"], &["b: 2", "a: 1"]), None);
        assert_eq!(
            differences(&["a: 1", "b: 2"], &["a: 3", "c: 2"]).as_deref(),
            Some("- a: 1\n- b: 2\n+ a: 3\n+ c: 2")
        );
    }
}

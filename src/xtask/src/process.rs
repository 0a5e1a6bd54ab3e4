//! Runs programs and reports their failures.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use camino::Utf8Path;

use crate::failure::{Failure, Result};
use crate::workspace::root;

/// Returns a command with these arguments.
pub fn command<A: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// Returns a command of the cargo that started this program, in the repository's folder.
pub fn cargo<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), args);
    command.current_dir(root());
    // Cargo has set these for this program. If they differ from those of a cargo that a developer starts, it builds some crates again.
    let of_this_program = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    std::env::vars_os().map(|(name, _)| name).filter(of_this_program).for_each(|name| _ = command.env_remove(name));
    command
}

/// Formats a command as a user would type it.
pub fn shown(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let name = Utf8Path::new(&*program).file_name().unwrap_or(&program).to_owned();
    std::iter::once(name)
        .chain(command.get_args().map(|a| a.to_string_lossy().into_owned()))
        .map(|word| if word.contains([' ', '\n', '"']) { format!("{word:?}") } else { word })
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a command with its output on the terminal. If it does not succeed, `fix` is the hint of the failure.
pub fn run(command: &mut Command, fix: &str) -> Result<()> {
    let status = command.status().map_err(|e| not_started(command, &e))?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("`{}` failed", shown(command)), status, fix)) }
}

/// Runs a command and returns its output. If it does not succeed, the failure has the end of its standard error.
pub fn output(command: &mut Command, fix: &str) -> Result<Output> {
    let out = command.stdin(Stdio::null()).output().map_err(|e| not_started(command, &e))?;
    if out.status.success() {
        return Ok(out);
    }
    Err(Failure::new(format!("`{}` failed", shown(command)), tail(&out.stderr, &out.status.to_string()), fix))
}

/// Returns whether a command can be started and succeeds.
pub fn works(program: &str, args: &[&str]) -> bool {
    let mut command = command(program, args);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Returns the failure of a program that cannot be started.
pub fn not_started(command: &Command, error: &std::io::Error) -> Failure {
    let program = command.get_program().to_string_lossy();
    Failure::new(format!("cannot start {program}"), error, format!("install {program}, or put it on PATH"))
}

/// Returns the ids of the processes whose environment has a variable with a value: `NAME=VALUE`.
pub fn with_variable(variable: &str) -> Vec<u32> {
    let has_it = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
    };
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.parse().ok()).filter(has_it).collect()
}

/// Returns whether a child process may have ended, and the CPU time of it and of its descendants that have ended. Without `/proc`, it may
/// always have ended, and the time is zero.
pub fn state_and_cpu(pid: u32) -> (bool, Duration) {
    // The state is field 3. Ticks of 10 ms: utime, stime, cutime and cstime are fields 14 to 17. The program's name, field 2, may hold spaces.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
    let mut fields = fields.split_whitespace();
    let may_have_ended = fields.next().is_none_or(|state| state == "Z");
    let ticks = fields.skip(10).take(4).filter_map(|n| n.parse::<u64>().ok()).sum::<u64>();
    (may_have_ended, Duration::from_millis(10 * ticks))
}

fn tail(stderr: &[u8], status: &str) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let end = lines[lines.len().saturating_sub(20)..].join("\n");
    if end.is_empty() { status.to_owned() } else { format!("{status}\n{end}") }
}

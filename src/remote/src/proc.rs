//! Processes of this machine, read from `/proc`.

use std::fs;
use std::io::{self, ErrorKind};

/// A process as `/proc/PID/stat` describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Process id.
    pub pid: i32,
    /// One letter: `R` running, `S` sleeping, `D` in uninterruptible sleep, `Z` zombie…
    pub state: char,
    /// Process group.
    pub pgid: i32,
    /// Session.
    pub session: i32,
    /// When it started, in clock ticks since boot. Start time and process id identify one process of a boot.
    pub start_ticks: u64,
}

impl Stat {
    /// Returns whether the process has not exited; zombies have.
    pub fn is_live(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

/// Reads one process; `None` when no process has this id.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn stat(pid: i32) -> io::Result<Option<Stat>> {
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(bytes) => parse(&String::from_utf8_lossy(&bytes)).map(Some),
        // ESRCH: the process exited between opening and reading the file.
        Err(error) if error.kind() == ErrorKind::NotFound || is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the parent of a process; 0 if it has none.
pub fn parent(pid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok()).unwrap_or(0)
}

/// Reads every process of this machine that has not exited.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn live_processes() -> io::Result<Vec<Stat>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        match stat(pid) {
            Ok(stat) => found.extend(stat.filter(Stat::is_live)),
            // A process of another user, which `/proc` hides (hidepid).
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

/// Returns whether processes of other users are visible: `/proc` may hide them (hidepid).
pub fn other_users_visible() -> bool {
    matches!(stat(1), Ok(Some(_)))
}

/// Returns the command line of a process as text, or the kernel's name for it in brackets if it has none.
pub fn command(pid: i32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&words).replace('\0', " ");
    if !line.trim().is_empty() {
        return line.trim().to_owned();
    }
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("[{}]", name.trim())
}

/// Returns whether a process has a command line. Kernel threads and exiting processes have none.
pub fn has_command_line(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| !words.is_empty())
}

/// Reads a variable from the environment that a process was started with.
///
/// # Errors
/// When the environment cannot be read, most often because the process is another user's.
pub fn environment(pid: i32, key: &str) -> io::Result<Option<String>> {
    let bytes = fs::read(format!("/proc/{pid}/environ"))?;
    let found = bytes
        .split(|&byte| byte == 0)
        .filter_map(|pair| std::str::from_utf8(pair).ok())
        .find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
    Ok(found.map(str::to_owned))
}

/// Returns whether the environment that a process was started with contains all of these variables, each as `NAME=value`.
/// Returns false if it cannot be read.
pub fn has_variables(pid: i32, wanted: &[String]) -> bool {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    wanted.iter().all(|wanted| bytes.split(|&byte| byte == 0).any(|pair| pair == wanted.as_bytes()))
}

/// Returns the random id that Linux chooses at every boot.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Returns the meaning of a state letter.
pub fn state_in_words(state: char) -> &'static str {
    match state {
        'R' => "running",
        'S' => "sleeping",
        'D' => "waiting for a device, cannot be interrupted",
        'T' | 't' => "stopped",
        'Z' | 'X' => "ended",
        'I' => "idle",
        _ => "unknown",
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32)
}

/// Parses `/proc/PID/stat`. The name in parentheses may itself contain spaces and parentheses, so fields are counted from
/// the last parenthesis.
fn parse(text: &str) -> io::Result<Stat> {
    let malformed =
        || io::Error::new(ErrorKind::InvalidData, format!("not a line of /proc/PID/stat: {:?}", text.trim()));
    let (head, tail) = text.rsplit_once(')').ok_or_else(malformed)?;
    let pid = head.split(' ').next().and_then(|pid| pid.parse().ok()).ok_or_else(malformed)?;
    let fields: Vec<&str> = tail.split_whitespace().collect();
    // proc_pid_stat(5): state is field 3, the group 5, the session 6, the start time 22.
    let field = |number: usize| fields.get(number - 3).copied().ok_or_else(malformed);
    Ok(Stat {
        pid,
        state: field(3)?.chars().next().ok_or_else(malformed)?,
        pgid: field(5)?.parse().map_err(|_| malformed())?,
        session: field(6)?.parse().map_err(|_| malformed())?,
        start_ticks: field(22)?.parse().map_err(|_| malformed())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let line = "42 (a) b (c) S 1 40 39 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 98765 1000 200 18446744073709551615\n";
        let expected = Stat { pid: 42, state: 'S', pgid: 40, session: 39, start_ticks: 98765 };
        assert_eq!(parse(line).unwrap(), expected);
    }

    #[test]
    fn a_malformed_line_is_an_error_that_shows_it() {
        assert!(parse("42 sleep S 1").unwrap_err().to_string().contains("42 sleep S 1"));
        assert!(parse("42 (sleep) S 1").unwrap_err().to_string().contains("(sleep)"));
    }

    #[test]
    fn this_process_is_live_and_one_that_cannot_exist_is_not() {
        let own = std::process::id() as i32;
        assert!(stat(own).unwrap().is_some_and(|process| process.is_live()));
        assert_eq!(stat(i32::MAX).unwrap(), None);
        assert!(live_processes().unwrap().iter().any(|process| process.pid == own));
    }
}

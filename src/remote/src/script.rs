//! Scripts that run on nodes in any POSIX shell, and the parsers of their output.

use camino::Utf8Path;
use plan::{NodeKill, quote};

use crate::ownership::{self, ObservedProcess, ProcessSnapshot};
use crate::proc::Stat;
use crate::transport::{Process, Recipient, Signal};

const RUN_PROCESSES: &str = include_str!("scripts/run_processes.sh");
const SIGNAL: &str = include_str!("scripts/signal.sh");
/// The script that starts `@SCRIPT` and waits for `@PID_FILE`.
pub const START: &str = include_str!("scripts/start.sh");

/// Returns the script that lists the processes that a process file names.
pub fn list_processes(target: &NodeKill) -> String {
    let pids: Vec<String> =
        [target.pid].into_iter().chain(target.ranks.iter().map(|r| r.pid)).map(|p| p.to_string()).collect();
    let script = RUN_PROCESSES
        .replace("@MARKED", &marked(target))
        .replace("@PGID", &target.pgid.to_string())
        .replace("@PIDS", &pids.join(" "));
    script.replace("@PID", &target.pid.to_string())
}

/// Returns the command that lists, in `/proc`, the environments that contain the run, the attempt and the node.
pub fn marked(target: &NodeKill) -> String {
    let grep = |mark: &String| format!("grep -lszxF {}", quote(mark));
    let [run, others @ ..] = ownership::marks(&target.run, target.attempt, &target.node);
    let others = others.iter().map(|mark| format!(" | xargs -r {} --", grep(mark)));
    format!("{} -- [0-9]*/environ{}", grep(&run), others.collect::<String>())
}

/// Parses the output of [`list_processes`]. Returns `None` if any part of it is malformed.
pub fn parse_processes(text: &str) -> Option<ProcessSnapshot> {
    let mut lines = text.lines();
    let boot_id = lines.next()?.strip_prefix("boot ")?.to_owned();
    let mut processes = Vec::new();
    for line in lines.by_ref() {
        if line == "end" {
            processes.sort_by_key(|process: &ObservedProcess| process.stat.pid);
            return lines.next().is_none().then_some(ProcessSnapshot { boot_id, own_group: None, processes });
        }
        processes.push(read_process(line.strip_prefix("process\t")?)?);
    }
    // The output is incomplete.
    None
}

fn read_process(line: &str) -> Option<ObservedProcess> {
    let fields: Vec<&str> = line.splitn(9, '\t').collect();
    let [pid, state, pgid, session, start_ticks, run, mark, name, words] = fields[..] else { return None };
    let stat = Stat {
        pid: pid.parse().ok()?,
        state: state.chars().next()?,
        pgid: pgid.parse().ok()?,
        session: session.parse().ok()?,
        start_ticks: start_ticks.parse().ok()?,
    };
    let run = match run.strip_prefix('=') {
        Some(run) => Ok(Some(run.to_owned())),
        None if run == "-" => Ok(None),
        None if run == "!" => Err("permission denied".to_owned()),
        None => return None,
    };
    let words = words.trim();
    let command = if words.is_empty() { format!("[{name}]") } else { words.to_owned() };
    Some(ObservedProcess { stat, run, is_marked: mark == "marked", has_command_line: !words.is_empty(), command })
}

/// Returns the script that signals the listed processes. For [`Recipient::All`], the script signals the whole group, so
/// that no process escapes by forking between the listing and the signal.
pub fn signal(target: &NodeKill, recipients: &[Process], to: Recipient, signal: Signal) -> String {
    let send = |process: &Process| {
        let Process { pid, pgid, start_ticks, .. } = process;
        let still = format!("is_still {pid} {start_ticks} {pgid}");
        if to == Recipient::All && *pgid == target.pgid {
            format!("[ -n \"$sent_group\" ] || {{ {still} && sent_group=yes && send -{pgid}; }}")
        } else {
            format!("{still} && send {pid}")
        }
    };
    let sends: Vec<String> = recipients.iter().map(send).collect();
    let name = match signal {
        Signal::Term => "TERM",
        Signal::Kill => "KILL",
    };
    let script = SIGNAL.replace("@BOOT", &quote(&target.boot_id)).replace("@SIGNAL", name).replace("@KILL", "kill");
    script.replace("@SENDS", &sends.join("\n"))
}

/// Returns the script that prints the free KiB on the disk of a folder, or of the nearest existing folder above it.
pub fn free_space(dir: &Utf8Path) -> String {
    format!("{}\nset -- $(df -Pk \"$dir\" | tail -n 1)\necho \"$4\"", existing(dir))
}

/// Returns the shell lines that set `dir` to a folder, or to the nearest existing one above it.
pub fn existing(dir: &Utf8Path) -> String {
    format!("dir={}\nwhile [ ! -d \"$dir\" ]; do dir=$(dirname -- \"$dir\"); done", quote(dir.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "boot 4f70\n\
        process\t4101\tS\t4100\t4100\t80\t=a-1\tmarked\t\tvidtui-train rank\n\
        process\t4100\tS\t4100\t4100\t77\t=a-1\t-\t\tvidtui-train supervise\n\
        process\t4177\tD\t4100\t4100\t99\t!\t-\t\tnvidia-smi\n\
        process\t4188\tR\t4100\t4100\t99\t-\t-\tkworker\t\n\
        end\n";

    #[test]
    fn processes_are_parsed_completely_and_sorted_by_pid() {
        insta::assert_debug_snapshot!(parse_processes(OUTPUT).unwrap());
    }

    #[test]
    fn output_that_is_incomplete_or_malformed_is_rejected() {
        for cut in 0..OUTPUT.len() - 1 {
            assert!(parse_processes(&OUTPUT[..cut]).is_none(), "{:?}", &OUTPUT[..cut]);
        }
        for malformed in ["", "Welcome!\n", &format!("Welcome!\n{OUTPUT}"), &format!("{OUTPUT}more\n")] {
            assert!(parse_processes(malformed).is_none(), "{malformed:?}");
        }
    }
}

//! Scripts that run on nodes in any POSIX shell, and the parsers of their output.

use camino::Utf8Path;
use plan::{NodeKill, quote};

use crate::ownership::{self, ObservedProcess, ProcessSnapshot};
use crate::proc::Stat;
use crate::transport::{Process, Recipient, Signal};

const RUN_PROCESSES: &str = concat!(include_str!("scripts/proc.sh"), include_str!("scripts/run_processes.sh"));
/// The script that signals `@SENDS`.
pub const SIGNAL: &str = concat!(include_str!("scripts/proc.sh"), include_str!("scripts/signal.sh"));
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

/// Parses the output of [`list_processes`]. Returns `None` if it is incomplete.
pub fn parse_processes(text: &str) -> Option<ProcessSnapshot> {
    let fields: Vec<&str> = text.strip_suffix('\0')?.split('\0').collect();
    let ["boot", boot_id, records @ .., "end"] = &fields[..] else { return None };
    let records = records.chunks_exact(RECORD);
    if !records.remainder().is_empty() {
        return None;
    }
    // A process that exits while it is read may lack fields.
    let mut processes: Vec<ObservedProcess> = records.filter_map(read_process).collect();
    processes.sort_by_key(|process| process.stat.pid);
    Some(ProcessSnapshot { boot_id: (*boot_id).to_owned(), own_group: None, processes })
}

/// The fields of a process: the word `process` and nine facts.
const RECORD: usize = 10;

fn read_process(record: &[&str]) -> Option<ObservedProcess> {
    let ["process", pid, state, pgid, session, start_ticks, run, mark, name, words] = *record else { return None };
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

    const OUTPUT: &str = "boot\x004f70\0\
        process\x004101\0S\x004100\x004100\x0080\0=a-1\0marked\0\0vidtui-train rank\0\
        process\x004100\0S\x004100\x004100\x0077\0=a-1\0-\0\0vidtui-train supervise\0\
        process\x004177\0D\x004100\x004100\x0099\0!\0-\0\0nvidia-smi\0\
        process\x004188\0R\x004100\x004100\x0099\0-\0-\0kworker\0\0\
        end\0";

    #[test]
    fn processes_are_parsed_completely_and_sorted_by_pid() {
        insta::assert_debug_snapshot!(parse_processes(OUTPUT).unwrap());
    }

    #[test]
    fn output_that_is_incomplete_is_rejected() {
        for cut in 0..OUTPUT.len() - 1 {
            assert!(parse_processes(&OUTPUT[..cut]).is_none(), "{:?}", &OUTPUT[..cut]);
        }
        for malformed in ["", "Welcome!\n", &format!("Welcome!\n{OUTPUT}"), &format!("{OUTPUT}more\n")] {
            assert!(parse_processes(malformed).is_none(), "{malformed:?}");
        }
    }

    #[test]
    fn a_process_with_an_odd_run_or_command_hides_no_other() {
        let odd = "process\x004200\0S\x004100\x004100\x0099\0=a\n\tb\0-\0\0python\nprocess\t1\tend\0\
                   process\x004201\0S\x004100\x004100\0\0-\0-\0\0exited\0";
        let read = parse_processes(&OUTPUT.replace("end\0", &format!("{odd}end\0"))).unwrap();
        let pids: Vec<i32> = read.processes.iter().map(|process| process.stat.pid).collect();
        assert_eq!(pids, [4100, 4101, 4177, 4188, 4200]);
        assert_eq!(read.processes[4].run, Ok(Some("a\n\tb".into())));
    }
}

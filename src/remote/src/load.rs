//! Measures the CPU usage of a run's ranks, to detect a hang on nodes that report no GPU power.

use std::collections::BTreeMap;
use std::time::Duration;

use plan::{NodeKill, quote};
use runstate::Load;

use crate::command::Command;
use crate::script::marked;
use crate::{RemoteError, Transport};

const USAGE: &str = concat!(include_str!("scripts/proc.sh"), include_str!("scripts/usage.sh"));

/// The time limit of the script, which sleeps for one second.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Measures for a second and returns the CPU usage of the run's busiest process on a node; 1.0 is one core.
///
/// # Errors
/// When the script cannot be run.
pub(crate) fn busiest_cpu(target: &NodeKill, transport: &mut dyn Transport) -> Result<Option<f64>, RemoteError> {
    let script = USAGE
        .replace("@MARKED", &marked(target))
        .replace("@BOOT", &quote(&target.boot_id))
        .replace("@PGID", &target.pgid.to_string())
        .replace("@PID", &target.pid.to_string())
        .replace("@START_TICKS", &target.start_ticks.to_string());
    let command = Command::new("measure its CPU usage", script, TIMEOUT);
    let node = transport.node().clone();
    let text = transport.run(&command)?.text(&node, &command)?;
    Ok(read(&text))
}

/// Returns the load of the busiest node. One rank that computes is enough to show that the run does not hang.
pub(crate) fn join(nodes: impl IntoIterator<Item = Option<f64>>) -> Load {
    nodes.into_iter().flatten().reduce(f64::max).map_or(Load::Unknown, |most| Load::Cpu { most })
}

/// Parses the output of the script. Returns `None` if there are no processes or the output is incomplete.
fn read(text: &str) -> Option<f64> {
    let (mut rate, mut began, mut ended): (f64, f64, Option<f64>) = (0.0, 0.0, None);
    let mut before: BTreeMap<u32, u64> = BTreeMap::new();
    let mut used: Vec<u64> = Vec::new();
    let mut lines: Vec<&str> = text.lines().collect();
    (lines.pop()? == "end").then_some(())?;
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["rate", ticks, time] => (rate, began) = (ticks.parse().ok()?, time.parse().ok()?),
            ["again", time] => ended = Some(time.parse().ok()?),
            // A stopped process does not compute, regardless of the CPU time it used before.
            ["T" | "t" | "Z", ..] => {}
            [_, pid, ticks] => {
                let (pid, ticks) = (pid.parse().ok()?, ticks.parse().ok()?);
                match (ended, before.get(&pid)) {
                    (None, _) => _ = before.insert(pid, ticks),
                    (Some(_), Some(earlier)) => used.push(ticks.saturating_sub(*earlier)),
                    // The process started between the two samples.
                    (Some(_), None) => {}
                }
            }
            _ => return None,
        }
    }
    let seconds = ended? - began;
    let most = used.into_iter().max()? as f64;
    (rate > 0.0 && seconds > 0.0).then(|| most / rate / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_that_of_the_busiest_process() {
        let text = "rate 100 1000.0\nS 11 500\nR 12 700\nagain 1002.0\nS 11 501\nR 12 890\nS 13 9000\nend\n";
        assert_eq!(read(text), Some(0.95));
        assert_eq!(join([None, read(text), Some(0.1)]), Load::Cpu { most: 0.95 });
    }

    #[test]
    fn a_computing_process_uses_more_cpu_than_a_waiting_one() {
        use std::io::Read;
        use std::os::unix::process::CommandExt;
        use std::process::Stdio;
        let run = rundir::RunId::parse("2026-11-20T0340-demo-2s-k7f2").unwrap();
        // Processes of other runs of this test on this machine do not count.
        let attempt = std::process::id();
        let used = |script: &str| {
            let mut command = std::process::Command::new("bash");
            for mark in crate::ownership::marks(&run, attempt, &crate::this_node().unwrap().node) {
                let (name, value) = mark.split_once('=').unwrap();
                command.env(name, value);
            }
            let mut leader = command.args(["-c", script]).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
            let pid = leader.id() as i32;
            // The child writes one byte when it has started.
            leader.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
            let (here, stat) = (crate::this_node().unwrap(), crate::proc::stat(pid).unwrap().unwrap());
            let target = NodeKill {
                run: run.clone(),
                node: here.node,
                attempt,
                pid,
                pgid: pid,
                boot_id: here.boot_id,
                start_ticks: stat.start_ticks,
                ranks: Vec::new(),
                why: String::new(),
            };
            let used = busiest_cpu(&target, &mut crate::Local::new().unwrap()).unwrap();
            // The group belongs to this test, and its leader has not been waited for, so that its id is not reused.
            let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL);
            let _ = leader.wait();
            used.unwrap()
        };
        // The leader plays the supervisor, its child a rank.
        assert!(used("(echo; exec sleep 1000) & wait") < 0.2);
        // On a busy machine the process may get a small part of a core.
        assert!(used("bash -c 'echo; while :; do :; done' & wait") > 0.0);
        // torchrun starts its workers in sessions of their own. This one exits after the leader.
        assert!(used("setsid timeout 30 bash -c 'echo; while kill -0 \"$0\"; do :; done' $$ & wait") > 0.0);
    }

    #[test]
    fn the_load_is_unknown_without_processes_or_with_incomplete_output() {
        for text in
            ["", "end\n", "rate 100 1000.0\nR 12 700\nagain 1001.0\nR 12 800\n", "rate 100 1.0\nagain 2.0\nend\n"]
        {
            assert_eq!(read(text), None, "{text:?}");
        }
        assert_eq!(join([None]), Load::Unknown);
    }
}

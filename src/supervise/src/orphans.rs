//! Ends orphan processes of a command, whose launcher may end before processes that it started in other sessions.

use rundir::log;
use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::job::Job;

/// Kills every process of this attempt on this node except this one, so that none outlives the attempt.
pub fn end(job: &Job) {
    let marks = [
        format!("VIDTUI_RUN={}", job.id),
        format!("VIDTUI_ATTEMPT={}", job.attempt.number),
        // Nodes may share a machine, for example in tests.
        format!("VIDTUI_NODE={}", job.node),
    ];
    let is_orphan = |pid: &i32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let has = |mark: &String| environ.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
        *pid != std::process::id() as i32 && marks.iter().all(has)
    };
    // Repeat, because the processes may start others in the meantime.
    for _ in 0..10 {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let orphans: Vec<i32> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_orphan).collect();
        if orphans.is_empty() {
            return;
        }
        log!("ending orphan processes of the command: {orphans:?}");
        for pid in orphans {
            // The process belonged to the run a moment ago, and may have ended since.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

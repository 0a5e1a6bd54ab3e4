//! Orphan processes of a command: its launcher may end before the processes that it started in sessions of their own.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::job::Job;

/// Ends every process of this attempt on this node but this one, so that none outlives the attempt.
pub fn end(job: &Job) {
    let marks = [
        format!("VIDTUI_RUN={}", job.id),
        format!("VIDTUI_ATTEMPT={}", job.attempt.number),
        // Nodes may share a machine, as those of a test do.
        format!("VIDTUI_NODE={}", job.node),
    ];
    let is_orphan = |pid: &i32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let has = |mark: &String| environ.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
        *pid != std::process::id() as i32 && marks.iter().all(has)
    };
    // They may start others meanwhile.
    for _ in 0..10 {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let orphans: Vec<i32> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_orphan).collect();
        if orphans.is_empty() {
            return;
        }
        log!("ending orphan processes of the command: {orphans:?}");
        for pid in orphans {
            // It may be gone by now, and was the run's a moment ago.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

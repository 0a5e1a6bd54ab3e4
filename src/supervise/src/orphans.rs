//! What a command leaves behind: its launcher may be gone before the processes that it started in sessions of their own.

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
    let is_stray = |pid: &i32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let has = |mark: &String| environ.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
        *pid != std::process::id() as i32 && marks.iter().all(has)
    };
    // They may start others in the meantime.
    for _ in 0..10 {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let strays: Vec<i32> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_stray).collect();
        if strays.is_empty() {
            return;
        }
        log!("ending what the command left behind: {strays:?}");
        for pid in strays {
            // It may be gone by now, and was the run's a moment ago.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

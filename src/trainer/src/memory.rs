//! The memory that a rank uses and may use.

use serde::{Deserialize, Serialize};
use std::path::Path;
use tch::Device;

/// Memory in GiB: tensors on a GPU, or the whole process on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// In use now.
    pub now_gib: f64,
    /// The peak so far.
    pub peak_gib: f64,
}

const KIB: u64 = 1 << 10;

impl Memory {
    /// Reads libtorch's allocator for a GPU, `/proc/self/status` for a process; zeros if neither is available.
    pub fn of(device: Device) -> Self {
        const GIB: f64 = (1u64 << 30) as f64;
        if let Device::Cuda(gpu) = device {
            let (now, peak) = c10d::cuda::memory_bytes(gpu).unwrap_or_default();
            return Memory { now_gib: now as f64 / GIB, peak_gib: peak as f64 / GIB };
        }
        let status = text("/proc/self/status");
        let gib = |key| kib(&status, key).unwrap_or_default() as f64 / GIB;
        Memory { now_gib: gib("VmRSS:"), peak_gib: gib("VmHWM:") }
    }
}

/// Returns the bytes that a rank may use: the memory of its GPU; on the CPU its part of the memory of the node, or less if its control
/// group or its process is limited. `None` if the limit is unknown.
pub fn limit(device: Device, ranks_on_node: usize) -> Option<u64> {
    if let Device::Cuda(gpu) = device {
        let sharing = crate::device::ranks_per_gpu(ranks_on_node) as u64;
        return c10d::cuda::total_bytes(gpu).ok().map(|bytes| bytes / sharing);
    }
    let of_groups = own_groups().into_iter().map(|group| group.limit).min();
    let of_node = [kib(&text("/proc/meminfo"), "MemTotal:"), of_groups].into_iter().flatten().min();
    let shared = of_node.map(|bytes| bytes / ranks_on_node.max(1) as u64);
    [shared, process_limit()].into_iter().flatten().min()
}

/// Returns the memory in bytes that this process may use by its limits (`ulimit -v` and `-d`), less the address space that it has
/// reserved and does not use. `None` without a limit.
fn process_limit() -> Option<u64> {
    let (limits, status) = (text("/proc/self/limits"), text("/proc/self/status"));
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let used = |key| kib(&status, key).unwrap_or(0);
    let less = |limit: u64, reserved: u64| limit.saturating_sub(reserved.saturating_sub(used("VmRSS:")));
    let address_space = limit("Max address space").map(|limit| less(limit, used("VmSize:")));
    let data = limit("Max data size").map(|limit| less(limit, used("VmData:")));
    [address_space, data].into_iter().flatten().min()
}

/// Returns the bytes of memory that this process may use for new tensors: those that the node has free, or less if its control group is
/// limited.
pub fn node_available() -> Option<u64> {
    let of_groups = own_groups().into_iter().map(|group| group.free).min();
    [kib(&text("/proc/meminfo"), "MemAvailable:"), of_groups].into_iter().flatten().min()
}

/// The memory of a control group (cgroup) that has a limit, in bytes.
#[derive(Debug, PartialEq)]
struct GroupMemory {
    limit: u64,
    free: u64,
}

impl GroupMemory {
    /// Reads the memory of the group with this folder; `None` if it has no limit.
    fn of(folder: &Path) -> Option<Self> {
        let number = |text: String| text.trim().parse::<u64>().ok();
        let limit = number(text(folder.join("memory.max")))?;
        let used = number(text(folder.join("memory.current"))).unwrap_or(0);
        let stat = text(folder.join("memory.stat"));
        let cached = |key| {
            let line = stat.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|bytes| number(bytes.to_owned())).unwrap_or(0)
        };
        // The kernel evicts the cache of files when the group needs memory.
        let cache = cached("inactive_file ") + cached("active_file ");
        Some(GroupMemory { limit, free: limit.saturating_sub(used.saturating_sub(cache)) })
    }
}

/// Returns the limited control groups of this process.
fn own_groups() -> Vec<GroupMemory> {
    limited_groups(Path::new("/sys/fs/cgroup"), &text("/proc/self/cgroup"))
}

/// Returns the control group (version 2) of a process and its ancestors up to `root`, without those that have no limit. `memberships` is
/// the text of `/proc/PID/cgroup`.
fn limited_groups(root: &Path, memberships: &str) -> Vec<GroupMemory> {
    let group = memberships.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
    Path::new(group).ancestors().filter_map(|group| GroupMemory::of(&root.join(group))).collect()
}

fn text(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns the bytes that the line `key` of a file in `/proc` states in kB, such as `VmRSS:    1024 kB`.
fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * KIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_and_its_peak_is_not_below_it() {
        let memory = Memory::of(Device::Cpu);
        assert!(memory.now_gib > 0.0 && memory.peak_gib >= memory.now_gib, "{memory:?}");
    }

    #[test]
    fn every_control_group_above_a_process_limits_its_memory() {
        let root = tempfile::tempdir().unwrap();
        let job = root.path().join("system.slice/slurmstepd.scope/job_7");
        let task = job.join("step_0/user/task_0");
        std::fs::create_dir_all(&task).unwrap();
        let write = |folder: &Path, file: &str, text: &str| std::fs::write(folder.join(file), text).unwrap();
        write(&task, "memory.max", "max\n");
        write(&task, "memory.current", "600\n");
        write(&job, "memory.max", "1000\n");
        write(&job, "memory.current", "700\n");
        write(&job, "memory.stat", "anon 300\nfile 400\ninactive_file 100\nactive_file 50\n");
        write(root.path(), "memory.max", "5000\n");
        let of = |text: &str| limited_groups(root.path(), text);
        let [limited, whole] = [(1000, 450), (5000, 5000)].map(|(limit, free)| GroupMemory { limit, free });
        assert_eq!(
            of("1:name=systemd:/other\n0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"),
            [limited, whole]
        );
        // In a container the process is in the root group; without version 2 there is no line.
        for text in ["0::/\n", ""] {
            assert_eq!(of(text), [GroupMemory { limit: 5000, free: 5000 }], "{text:?}");
        }
    }

    #[test]
    fn ranks_share_the_memory_of_their_node() {
        let [one, four] = [1, 4].map(|ranks| limit(Device::Cpu, ranks).unwrap());
        assert!(one > KIB * KIB && four <= one && node_available().unwrap() > 0, "{one} {four}");
    }
}

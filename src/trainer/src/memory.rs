//! The memory that a rank uses and may use.

use serde::{Deserialize, Serialize};
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
        return c10d::cuda::total_bytes(gpu).ok();
    }
    let group = text("/sys/fs/cgroup/memory.max").trim().parse::<u64>().ok();
    let of_node = [kib(&text("/proc/meminfo"), "MemTotal:"), group].into_iter().flatten().min();
    let shared = of_node.map(|bytes| bytes / ranks_on_node.max(1) as u64);
    [shared, process_limit()].into_iter().flatten().min()
}

/// Returns the limit of this process, less the address space that it has reserved and does not use.
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

/// Returns the bytes of memory that the node has free for new tensors.
pub fn node_available() -> Option<u64> {
    kib(&text("/proc/meminfo"), "MemAvailable:")
}

fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns the bytes of a line of `/proc`, such as `VmRSS:    1024 kB`.
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
    fn ranks_share_the_memory_of_their_node() {
        let [one, four] = [1, 4].map(|ranks| limit(Device::Cpu, ranks).unwrap());
        assert!(one > KIB * KIB && four <= one && node_available().unwrap() > 0, "{one} {four}");
    }
}

//! The memory that a rank uses.

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

impl Memory {
    /// Reads libtorch's allocator for a GPU, `/proc/self/status` for a process; zeros if neither is available.
    pub fn of(device: Device) -> Self {
        const GIB: f64 = (1u64 << 30) as f64;
        if let Device::Cuda(gpu) = device {
            let (now, peak) = c10d::cuda::memory_bytes(gpu).unwrap_or_default();
            return Memory { now_gib: now as f64 / GIB, peak_gib: peak as f64 / GIB };
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok()
        };
        let gib = |key| kib(key).unwrap_or_default() / (1024.0 * 1024.0);
        Memory { now_gib: gib("VmRSS:"), peak_gib: gib("VmHWM:") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_and_its_peak_is_not_below_it() {
        let memory = Memory::of(Device::Cpu);
        assert!(memory.now_gib > 0.0 && memory.peak_gib >= memory.now_gib, "{memory:?}");
    }
}

//! How much memory this process has.

/// Resident memory in GiB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Memory {
    /// Now.
    pub now_gib: f64,
    /// At its highest.
    pub peak_gib: f64,
}

impl Memory {
    /// Reads `/proc/self/status`; zeros where there is none.
    pub fn read() -> Self {
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
        let memory = Memory::read();
        assert!(memory.now_gib > 0.0 && memory.peak_gib >= memory.now_gib, "{memory:?}");
    }
}

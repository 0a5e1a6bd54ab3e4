//! Measures the peak of resident memory.

#![allow(dead_code, reason = "every test program compiles this module, but not every one uses all of it")]

/// The largest allowed factor between an estimate and the measurement, in both directions. The estimate does not model
/// allocators and workspaces of libraries.
pub const FACTOR: f64 = 2.0;

/// Returns a size in bytes that the system reports for this process.
pub fn status(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim();
    Some(line.strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// Returns by how many bytes the peak of resident memory exceeds `before`, or `None` if the system does not report it.
pub fn peak_of<T>(before: Option<u64>, compute: impl FnOnce() -> T) -> Option<u64> {
    let before = before?;
    // Resets the peak.
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    drop(compute());
    status("VmHWM").map(|peak| peak.saturating_sub(before))
}

/// Compares an estimate with a measured peak.
pub fn compare(what: &str, estimate: u64, measured: Option<u64>) {
    let Some(measured) = measured else { return println!("skipped: {what}: this system does not report peak memory") };
    let ratio = estimate as f64 / measured as f64;
    println!("{what}: estimated {} MiB, measured {} MiB", estimate >> 20, measured >> 20);
    assert!((1.0 / FACTOR..FACTOR).contains(&ratio), "{what}: estimated {estimate} bytes, measured {measured}");
}

//! Settings of the C library's allocator.

/// Makes glibc return freed memory to the system. Call this before other threads start.
///
/// By default, glibc moves ever larger blocks from mappings of their own to its heaps, as soon as one was freed, and has several heaps per
/// core. Between blocks in use they become fragmented: a console that was open for a day used 55 MiB for 8 MiB of data. With fixed limits
/// it used 32 MiB, and with one heap for all threads 28 MiB. The threads rarely allocate at the same time.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in
        [(libc::M_MMAP_THRESHOLD, 64 << 10), (libc::M_TRIM_THRESHOLD, 128 << 10), (libc::M_ARENA_MAX, 1)]
    {
        // SAFETY: mallopt takes no pointers and may be called at any time. It refuses a value that it does not know.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Returns the free pages between blocks in use to the system. Takes a millisecond or more, in which other threads cannot allocate.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes no pointers and may be called at any time.
    unsafe {
        libc::malloc_trim(0)
    };
}

#[cfg(test)]
mod tests {
    /// The tests measure the process, so they run one after the other.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn a_large_block_has_a_mapping_of_its_own_also_after_larger_ones_were_freed() {
        let _alone = ALONE.lock();
        super::return_freed_memory();
        let mapped_kib = || {
            let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc");
            let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("the size of this process");
            line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number")
        };
        drop(vec![1u8; 8 << 20]);
        let before = mapped_kib();
        let block = vec![1u8; 4 << 20];
        let during = mapped_kib();
        drop(block);
        assert_eq!((during - before, mapped_kib()), (4100, before), "4 MiB and a page");
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn free_pages_between_used_blocks_return_to_the_system() {
        let _alone = ALONE.lock();
        let resident_kib = || {
            let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc");
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the size of this process");
            line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number")
        };
        // 40 MB in blocks that are not mappings. One of 64 stays in use.
        let mut blocks: Vec<_> = (0..4096).map(|_| Some(vec![1u8; 10_000])).collect();
        blocks.iter_mut().enumerate().filter(|(i, _)| i % 64 != 0).for_each(|(_, block)| *block = None);
        let before = resident_kib();
        super::trim();
        assert!(resident_kib() + 20_000 < before, "{before} KiB, then {} KiB", resident_kib());
    }
}

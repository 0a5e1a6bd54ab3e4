//! Tests of joining shards on a full disk: a small file system in memory, which only root can mount.

use super::tests::{files, finish, holder, manifest, spec, temp, timing, work};
use super::*;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::ErrorCode;
use std::fs;
use std::io::Write;
use std::process::Command;
use std::sync::Arc;

/// The size of a block of the file system, its smallest unit.
const BLOCK: u64 = 4096;

/// A file system of one megabyte, unmounted when dropped.
struct SmallDisk(Utf8PathBuf);

impl SmallDisk {
    fn mount(path: &Utf8Path) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let args = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", path.as_str()];
        let mounted = Command::new("mount").args(args).output().ok()?;
        mounted.status.success().then(|| Self(path.to_owned()))
    }

    /// Fills the disk except for some blocks. Removing the file frees the rest.
    fn fill(&self, free: u64) -> Utf8PathBuf {
        let path = self.0.join("ballast");
        let mut file = fs::File::create(&path).unwrap();
        while file.write_all(&[1; BLOCK as usize]).is_ok() {}
        let full = file.metadata().unwrap().len() / BLOCK;
        file.set_len(full.saturating_sub(free) * BLOCK).unwrap();
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_while_shards_are_joined_leaves_nothing_half_written_and_the_next_join_gives_the_same_bytes() {
    let ids: Vec<usize> = (1..=40).collect();
    let (_keep, whole) = temp();
    super::tests::encode(&whole, &manifest(&ids), &spec());
    let whole = files(&whole);
    let (_keep, folder) = temp();
    let mut refused = 0;
    for free in 0.. {
        let Some(disk) = SmallDisk::mount(&folder.join("disk")) else {
            eprintln!("skipped: a small disk cannot be mounted here (needs root)");
            return;
        };
        let data = disk.0.join("data");
        let clock = Arc::default();
        let plan = plan_encode(&data, &manifest(&ids), &spec(), Quarantined::Skip).unwrap();
        // All latents are in one part, which is removed after the last of their shards.
        let timing = || Timing { range: Some(100), ..timing(&clock) };
        let queue = Queue::create(&data, &plan, &holder("a"), timing()).unwrap();
        work(&queue).unwrap();
        let ballast = disk.fill(free);
        let joined = finish(&queue);
        let failure = match joined {
            Ok(_) => break,
            Err(failure) => failure,
        };
        refused += 1;
        assert_eq!(failure.code, ErrorCode::DiskFull, "{free} blocks are free: {failure}");
        // Shards that were complete before the disk was full are kept.
        for (name, bytes) in files(&data) {
            assert!(
                name == "work" || whole.get(&name) == Some(&bytes),
                "{free} blocks are free: {name} is half-written"
            );
        }
        assert!(!data.join(INDEX).exists(), "an index without its shards");
        assert_eq!(queue.progress().unwrap().latents_done, ids.len(), "an encoded latent is lost");
        fs::remove_file(ballast).unwrap();
        // The same worker retries, or the next encode continues.
        if free % 2 == 0 {
            drop(queue);
            let queue = Queue::create(&data, &plan, &holder("b"), timing()).unwrap();
            assert_eq!(work(&queue).unwrap(), 0, "an item was encoded again");
            assert!(matches!(finish(&queue).unwrap(), QueueFinish::Joined(_)));
        } else {
            assert!(matches!(finish(&queue).unwrap(), QueueFinish::Joined(_)));
            drop(queue);
        }
        assert_eq!(files(&data), whole, "{free} blocks are free");
    }
    // The join fails at its lease, its folder, each shard, the specification, and the index.
    assert!(refused > 5, "the disk was full only {refused} times");
}

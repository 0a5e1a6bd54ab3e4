//! Names of files and folders of a store that several modules use.

/// The work folder within the data set.
pub const WORK: &str = "work";
/// The file of the queue within the work folder.
pub const QUEUE: &str = "queue.jsonl";
/// The beginning of the names of shards with latents.
pub const LATENTS: &str = "latents-";
/// The beginning of the names of shards with texts.
pub const TEXTS: &str = "texts-";

/// Returns the number of a shard whose name begins with `start`.
pub fn shard_number(name: &str, start: &str) -> Option<usize> {
    name.strip_prefix(start)?.strip_suffix(".safetensors")?.parse().ok()
}

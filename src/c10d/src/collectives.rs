//! Reads libtorch's "flight recorder", the record of the last collectives of this process, which shows what each group waits for.

use std::collections::HashSet;
use std::ffi::c_char;

use crate::cuda;
use crate::ffi::{self, check};
use crate::{Error, Result};

/// A collective in the flight recorder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collective {
    /// The name of the group: the prefix of its store, without the last `/`.
    pub group: String,
    /// The sequence number of the collective in the group, the same on all ranks.
    pub number: u64,
    /// The operation: `gloo:all_gather`, `nccl:_all_gather_base`.
    pub operation: String,
    /// Whether it is complete on this rank.
    pub complete: bool,
    /// When this rank started it, nanoseconds since 1970.
    pub started_ns: u64,
}

/// Returns the last collectives of all groups of this process: those of gloo, then those of NCCL, each in the order in which they started.
/// libtorch keeps the last 2,000 of each, or as many as the variable `TORCH_FR_BUFFER_SIZE`. Any thread may call this function, even while
/// another thread waits for a collective.
///
/// # Errors
/// libtorch fails to write its record, or the record is not in the known format.
pub fn recent() -> Result<Vec<Collective>> {
    let mut all = parse(&text(ffi::vidtui_collectives)?, Backend::Gloo)?;
    if cuda::is_built() {
        all.extend(parse(&text(ffi::vidtui_collectives_nccl)?, Backend::Nccl)?);
    }
    Ok(all)
}

/// The library that runs a collective.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backend {
    Gloo,
    Nccl,
}

const DOING: &str = "read the record of collectives";

fn text(call: unsafe extern "C" fn(*mut *mut c_char) -> ffi::Status) -> Result<String> {
    let mut text = std::ptr::null_mut();
    // SAFETY: `text` is where the shim writes a new C string on success.
    check(unsafe { call(&mut text) }, || DOING.to_owned())?;
    // SAFETY: the shim created the string, which is not used again.
    Ok(unsafe { ffi::take_text(text) })
}

/// Reads libtorch's JSON, version 2.10 of its format.
fn parse(json: &str, backend: Backend) -> Result<Vec<Collective>> {
    #[derive(serde::Deserialize)]
    struct Record {
        #[serde(default)]
        entries: Vec<Entry>,
    }
    #[derive(serde::Deserialize)]
    struct Entry {
        process_group: (String, String),
        collective_seq_id: u64,
        profiling_name: String,
        state: String,
        retired: bool,
        time_created_ns: u64,
    }
    let record: Record = serde_json::from_str(json).map_err(|error| Error::other(DOING, error.to_string()))?;
    // NCCL's coalesced operations have no CUDA events of their own. They are complete when the entry `coalesced` with the same number is.
    let ended: HashSet<(String, u64)> = record
        .entries
        .iter()
        .filter(|entry| entry.state == "completed")
        .map(|entry| (entry.process_group.0.clone(), entry.collective_seq_id))
        .collect();
    let read = |entry: Entry| Collective {
        // gloo has no CUDA events, so its collectives never reach the state `completed`. They are retired when they end. NCCL's
        // collectives are also retired when they time out, so for NCCL `retired` does not mean complete.
        complete: ended.contains(&(entry.process_group.0.clone(), entry.collective_seq_id))
            || (backend == Backend::Gloo && entry.retired),
        group: entry.process_group.0.trim_end_matches('/').to_owned(),
        number: entry.collective_seq_id,
        operation: entry.profiling_name,
        started_ns: entry.time_created_ns,
    };
    Ok(record.entries.into_iter().map(read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collective_of_nccl_that_timed_out_is_not_complete() {
        let entry = |state: &str, retired: bool| {
            format!(
                r#"{{"entries":[{{"process_group":["tp/",""],"collective_seq_id":7,"profiling_name":"nccl:all_reduce",
                "state":"{state}","retired":{retired},"time_created_ns":5,"is_p2p":false}}]}}"#
            )
        };
        let complete = |state, retired, backend| parse(&entry(state, retired), backend).unwrap()[0].complete;
        assert!(complete("completed", true, Backend::Nccl) && !complete("started", true, Backend::Nccl));
        assert!(complete("scheduled", true, Backend::Gloo) && !complete("scheduled", false, Backend::Gloo));
        let read = parse(&entry("started", false), Backend::Nccl).unwrap();
        assert_eq!((read[0].group.as_str(), read[0].number, read[0].started_ns), ("tp", 7, 5));
        assert_eq!(parse(r#"{"version":"2.10"}"#, Backend::Gloo).unwrap(), []);
        assert!(parse("not JSON", Backend::Gloo).is_err());
    }

    #[test]
    fn operations_that_nccl_coalesced_are_complete_with_the_whole() {
        let entry = |name: &str, number: u64, state: &str| {
            format!(
                r#"{{"process_group":["shard/",""],"collective_seq_id":{number},"profiling_name":"nccl:{name}","state":"{state}",
                "retired":false,"time_created_ns":5,"is_p2p":false}}"#
            )
        };
        let entries = [
            entry("_all_gather_base", 7, "scheduled"),
            entry("coalesced", 7, "completed"),
            entry("_all_gather_base", 8, "scheduled"),
            entry("coalesced", 8, "started"),
        ];
        let read = parse(&format!(r#"{{"entries":[{}]}}"#, entries.join(",")), Backend::Nccl).unwrap();
        assert_eq!(read.iter().map(|entry| entry.complete).collect::<Vec<_>>(), [true, true, false, false]);
    }
}

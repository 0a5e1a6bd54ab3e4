//! Reads the record of collectives that the flight recorder of libtorch writes when NCCL times out: a pickle of dicts and lists.
//!
//! Source: `FlightRecorder` of PyTorch 2.11, version 2.10 of its format.

use crate::archive::MAX_PICKLE;
use crate::pickle::{At, Node, Pickle};
use camino::Utf8Path;
use rundir::{ErrorCode, Failure, read_regular};

/// A collective of the record.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedCollective {
    /// The name of the process group, without the last `/`.
    pub group: String,
    /// The number of the collective in the group.
    pub number: u64,
    /// The operation, such as `nccl:all_reduce`.
    pub operation: String,
    /// The shapes of the inputs.
    pub shapes: Vec<Vec<u64>>,
    /// Whether the collective is complete on the rank that wrote the record.
    pub is_complete: bool,
    /// When the rank started the collective, in Unix seconds.
    pub started_s: f64,
    /// The functions that called the collective, the innermost first. Empty unless libtorch records stacks.
    pub stack: Vec<String>,
}

/// Reads a record, in the order in which the rank started the collectives. Nothing in the file is executed.
///
/// # Errors
/// The file cannot be read or is not such a record.
pub fn read_flight_record(path: &Utf8Path) -> Result<Vec<RecordedCollective>, Failure> {
    let bad = |why: String| {
        let what = format!("cannot read libtorch's record of collectives {path}");
        Failure::new(ErrorCode::Malformed, what, why, "read it with PyTorch's torchfrtrace")
    };
    let bytes = read_regular(path, MAX_PICKLE).map_err(|error| bad(error.to_string()))?;
    collectives(&Pickle::read(&bytes).map_err(bad)?).ok_or_else(|| bad("it does not list collectives".into()))
}

fn collectives(pickle: &Pickle) -> Option<Vec<RecordedCollective>> {
    // The record of a rank that has started no collective has no list.
    let Some(entries) = pickle.get(pickle.root, "entries") else {
        return pickle.get(pickle.root, "version").map(|_| Vec::new());
    };
    pickle.items(entries)?.iter().map(|entry| collective(pickle, *entry)).collect()
}

fn collective(pickle: &Pickle, entry: At) -> Option<RecordedCollective> {
    let get = |key| pickle.get(entry, key);
    let items = |key| get(key).and_then(|at| pickle.items(at));
    let (text, number) = (|key| pickle.text(get(key)?), |key| pickle.size(get(key)?));
    let group = pickle.text(*items("process_group")?.first()?)?.trim_end_matches('/').to_owned();
    let operation = text("profiling_name")?.to_owned();
    // libtorch marks a CPU collective (gloo) as ended only when it is retired.
    let is_retired = get("retired").is_some_and(|at| *pickle.node(at) == Node::Bool(true));
    let is_complete = text("state")? == "completed" || (operation.starts_with("gloo:") && is_retired);
    let shapes = items("input_sizes").and_then(|sizes| sizes.iter().map(|size| pickle.sizes(*size)).collect());
    let frames = items("frames").unwrap_or_default().iter();
    Some(RecordedCollective {
        group,
        number: number("collective_seq_id")?,
        operation,
        shapes: shapes.unwrap_or_default(),
        is_complete,
        started_s: number("time_created_ns")? as f64 / 1e9,
        stack: frames.filter_map(|at| frame(pickle, *at)).collect(),
    })
}

/// The name prefixes of the functions that record a stack. They are the innermost functions of every stack.
const OWN: [&str; 3] = ["torch::unwind::", "torch::CapturedTraceback::", "c10d::FlightRecorder<"];

/// Returns the name and source location of a function in a stack; `None` for the functions in [`OWN`].
fn frame(pickle: &Pickle, at: At) -> Option<String> {
    let text = |key| pickle.text(pickle.get(at, key)?);
    let (name, file) = (text("name")?, text("filename")?);
    if OWN.iter().any(|own| name.starts_with(own)) {
        return None;
    }
    // Functions without debug information have no file, or no line.
    let line = pickle.get(at, "line").and_then(|at| pickle.size(at)).filter(|line| *line > 0);
    Some(match (file, line) {
        ("" | "??", _) => name.to_owned(),
        (file, None) => format!("{name} ({file})"),
        (file, Some(line)) => format!("{name} ({file}:{line})"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use camino::Utf8PathBuf;
    use std::fs;

    fn fixture() -> Utf8PathBuf {
        "../../tests/fixtures/weights/flight-record".into()
    }

    /// Written by `c10d::dump_fr_trace` of libtorch 2.11 with `TORCH_FR_CPP_STACK=1`, of a rank that waits in the second of two groups.
    #[test]
    fn a_record_of_libtorch_lists_its_collectives_with_group_shapes_and_stack() {
        let all = read_flight_record(&fixture()).unwrap();
        let about: Vec<_> =
            all.iter().map(|one| (one.group.as_str(), one.number, one.operation.as_str(), one.is_complete)).collect();
        let (tp, sum) = ("tp-of-replica-0-shard-0", "gloo:all_reduce");
        assert_eq!(about, [(tp, 1, sum, true), ("world", 1, sum, true), ("world", 2, sum, false)]);
        assert_eq!((&all[0].shapes, &all[2].shapes), (&vec![vec![3, 4]], &vec![vec![7]]));
        assert!(all.is_sorted_by(|one, next| one.started_s <= next.started_s));
        assert!(all[2].stack[0].starts_with("c10d::ProcessGroupGloo::enqueue("), "{:?}", all[2].stack);
        assert!(all[2].stack[1].starts_with("c10d::ProcessGroupGloo::allreduce("), "{:?}", all[2].stack);
    }

    #[test]
    fn another_pickle_and_a_torn_record_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap().join("record");
        let good = fs::read(fixture()).unwrap();
        for bytes in [&good[..good.len() / 2], b"\x80\x02}.", b"\x80\x02cos\nsystem\n."] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(read_flight_record(&path).unwrap_err().code, ErrorCode::Malformed);
        }
        assert!(read_flight_record(&path.with_file_name("none")).is_err());
    }
}

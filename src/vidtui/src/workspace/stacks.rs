//! Collects the stack traces of a run's processes, the phases of its ranks, and the collectives that they wait for.

use super::Workspace;
use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use health::{CollectiveWait, collective_waits};
use remote::NodeStacks;
use rundir::{
    Attempt, ErrorCode, Failure, GroupCollectives, Heartbeat, RankCollectives, RunDir, SCHEMA, WaitingCollective,
    now_s, write_atomic,
};
use std::collections::BTreeMap;
use weights::{RecordedCollective, read_flight_record};

/// The stack traces of a run's processes and the states of its ranks.
pub struct CollectedStacks {
    /// The stack traces of each node.
    pub nodes: Vec<NodeStacks>,
    /// The phases and the collectives.
    pub ranks: RankStates,
}

/// The states of the ranks of an attempt, read from the files that they write.
#[derive(Default)]
pub struct RankStates {
    /// The last heartbeat of each rank that has one.
    pub heartbeats: Vec<(NodeId, Heartbeat)>,
    /// The collectives in which ranks wait.
    pub waits: Vec<CollectiveWait>,
    /// The records that libtorch wrote when NCCL timed out.
    pub nccl_dumps: Vec<NcclDump>,
}

/// A record of a rank's collectives that libtorch wrote when NCCL timed out.
pub struct NcclDump {
    /// The file.
    pub path: Utf8PathBuf,
    /// The rank that wrote the file, from the file name. `None` if the name does not end in a number.
    pub rank: Option<usize>,
    /// The collectives, or why they cannot be read.
    pub collectives: Result<Vec<RecordedCollective>, Failure>,
}

impl NcclDump {
    fn read(path: Utf8PathBuf) -> Self {
        // libtorch appends the rank to the name.
        let digits = path.file_name().and_then(|name| name.rsplit('-').next());
        NcclDump { rank: digits.and_then(|rank| rank.parse().ok()), collectives: read_flight_record(&path), path }
    }

    /// Returns the collectives in which the rank waits.
    fn waiting(&self) -> impl Iterator<Item = &RecordedCollective> {
        self.collectives.iter().flatten().filter(|collective| !collective.is_complete)
    }

    /// Returns the process groups in the record, each with the number of its last started collective and its waiting collectives.
    fn groups(&self) -> BTreeMap<&str, (u64, Vec<WaitingCollective>)> {
        let mut groups: BTreeMap<&str, (u64, Vec<WaitingCollective>)> = BTreeMap::new();
        for collective in self.collectives.iter().flatten() {
            let (started, waiting) = groups.entry(&collective.group).or_default();
            *started = collective.number.max(*started);
            if !collective.is_complete {
                let RecordedCollective { number, operation, started_s, .. } = collective;
                waiting.push(WaitingCollective {
                    number: *number,
                    operation: operation.clone(),
                    started_s: *started_s,
                });
            }
        }
        groups
    }

    /// Returns a line for the first collective that the rank waits in, and one for each function of its stack.
    fn in_words(&self) -> Vec<String> {
        let rank = self.rank.map_or_else(String::new, |rank| format!(" of rank {rank}"));
        if let Err(failure) = &self.collectives {
            return vec![format!("libtorch's record{rank}, {}: {}", self.path, failure.why)];
        }
        let Some(first) = self.waiting().next() else {
            return vec![format!("libtorch's record{rank}, {}: every collective is complete", self.path)];
        };
        let RecordedCollective { group, number, operation, shapes, .. } = first;
        let shapes: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
        let of = if shapes.is_empty() { String::new() } else { format!(" of {}", shapes.join(", ")) };
        let line =
            format!("libtorch's record{rank}, {}: in {operation}{of}, group {group}, collective {number}", self.path);
        let functions = first.stack.iter().take(STACK).map(|function| format!("    {function}"));
        std::iter::once(line).chain(functions).collect()
    }
}

/// Compares the libtorch records of all ranks, and returns the collectives in which ranks wait.
fn waits_of_dumps(dumps: &[NcclDump]) -> Vec<CollectiveWait> {
    let by_rank: Vec<_> = dumps.iter().filter_map(|dump| Some((dump.rank?, dump.groups()))).collect();
    let members = |name: &str| -> Vec<usize> {
        by_rank.iter().filter(|(_, groups)| groups.contains_key(name)).map(|(rank, _)| *rank).collect()
    };
    let record = |(rank, groups): &(usize, BTreeMap<&str, (u64, Vec<WaitingCollective>)>)| {
        let group = |(name, (started, waiting)): (&&str, &(u64, Vec<WaitingCollective>))| GroupCollectives {
            group: (*name).to_owned(),
            ranks: members(name),
            started: *started,
            waiting: waiting.clone(),
        };
        RankCollectives { v: SCHEMA, rank: *rank, t: 0.0, groups: groups.iter().map(group).collect() }
    };
    collective_waits(&by_rank.iter().map(record).collect::<Vec<_>>())
}

/// The most functions of a stack that are printed. libtorch records the innermost function first.
const STACK: usize = 24;

impl Workspace {
    /// Writes the stack traces of the processes of a run, and a summary of the states of its ranks, into the folder of the run.
    pub fn stacks(&self, dir: &RunDir) -> Result<CollectedStacks, Failure> {
        let run = dir.read_run()?;
        run.refuse_if_imported(format!("cannot collect the stacks of {}", run.id))?;
        if let Some(attached) = &run.attached {
            return Err(Failure::new(
                ErrorCode::RunAttached,
                format!("cannot collect the stacks of {}", run.id),
                "the run watches a program, whose processes are not its own",
                match attached.pid {
                    Some(pid) => format!("for a program in Python: py-spy dump --pid {pid}"),
                    None => "for a program in Python: py-spy dump --pid PID".to_owned(),
                },
            ));
        }
        let run = run.id;
        let attempt = dir.latest_attempt()?;
        let mut files = Vec::new();
        for (node, _) in attempt.iter().flat_map(|attempt| attempt.placement.by_node()) {
            files.extend(dir.read_pid(node, attempt.as_ref().map_or(0, |attempt| attempt.number))?);
        }
        let mut nodes = self.transports(&attempt.as_ref().map_or_else(Vec::new, Attempt::ssh_logins))?;
        let at_s = now_s();
        let stacks = remote::collect_stacks(&run, dir, at_s, &files, &mut nodes)?;
        // The files of ranks are in the folder of the run, also when no node can be reached.
        let ranks = attempt.as_ref().map_or_else(RankStates::default, |attempt| RankStates::read(dir, attempt));
        let is_unreachable =
            |node: &NodeStacks| node.result.as_ref().is_err_and(|failure| failure.code != ErrorCode::RunNotRunning);
        let has_states = !ranks.heartbeats.is_empty() && stacks.iter().any(is_unreachable);
        if !has_states && stacks.iter().all(|node| node.result.is_err()) {
            return Err(stacks.into_iter().find_map(|node| node.result.err()).unwrap_or_else(|| {
                Failure::new(
                    ErrorCode::RunNotStarted,
                    format!("cannot collect the stacks of {run}"),
                    "its newest attempt has no nodes",
                    format!("check its state: `vidtui status {run}`"),
                )
            }));
        }
        let number = attempt.map_or(0, |attempt| attempt.number);
        // If the disk is full, the caller still prints what was collected.
        if std::fs::create_dir_all(dir.stacks_dir(number, at_s)).is_ok() {
            let _ = write_atomic(&dir.stacks_summary(number, at_s), ranks.in_words(at_s).as_bytes());
        }
        Ok(CollectedStacks { nodes: stacks, ranks })
    }
}

impl RankStates {
    /// Reads the files of all ranks of an attempt.
    pub fn read(dir: &RunDir, attempt: &Attempt) -> Self {
        let places = || attempt.placement.ranks.iter();
        let heartbeat = |node: &NodeId, rank| dir.read_heartbeat(node, attempt.number, rank);
        let heartbeats: Vec<(NodeId, Heartbeat)> = places()
            .filter_map(|place| heartbeat(&place.node, place.rank).map(|beat| (place.node.clone(), beat)))
            .collect();
        // A record that is older than the phase is about an earlier phase.
        let phase_s =
            |rank| heartbeats.iter().find(|(_, beat)| beat.rank == rank).map_or(0.0, |(_, beat)| beat.phase_t);
        let records: Vec<_> = places()
            .filter_map(|place| dir.read_rank_collectives(&place.node, attempt.number, place.rank))
            .filter(|record| record.t >= phase_s(record.rank))
            .collect();
        let nodes = attempt.placement.by_node();
        let dumps = nodes.iter().flat_map(|(node, _)| dir.nccl_dumps(node, attempt.number));
        let nccl_dumps: Vec<NcclDump> = dumps.map(NcclDump::read).collect();
        let mut waits = collective_waits(&records);
        // libtorch writes its records when NCCL times out. Often there are no other records.
        let known: Vec<(String, u64)> = waits.iter().map(|wait| (wait.group.clone(), wait.number)).collect();
        let of_dumps = waits_of_dumps(&nccl_dumps).into_iter();
        waits.extend(of_dumps.filter(|wait| !known.contains(&(wait.group.clone(), wait.number))));
        Self { heartbeats, waits, nccl_dumps }
    }

    /// Returns one line per rank and collective, and lines about each record of libtorch.
    pub fn in_words(&self, now_s: f64) -> String {
        let mut lines = Vec::new();
        for (node, beat) in &self.heartbeats {
            let (in_phase_s, age_s) = (beat.t - beat.phase_t, now_s - beat.t);
            let missing = match beat.is_late(now_s) {
                true => format!("; no heartbeat for {age_s:.0} s"),
                false => String::new(),
            };
            lines.push(format!(
                "rank {} on {node}: in phase {} after step {}, for {in_phase_s:.0} s{missing}",
                beat.rank, beat.phase, beat.step
            ));
        }
        for wait in &self.waits {
            let CollectiveWait { group, number, operations, absent, unrecorded } = wait;
            let inside: Vec<String> =
                operations.iter().map(|(name, ranks)| format!("{} in {name}", numbered(ranks))).collect();
            let reason = match (operations.len(), absent.is_empty(), unrecorded.is_empty()) {
                (_, false, true) => format!("not started by {}", numbered(absent)),
                (_, false, false) => {
                    format!("not started by {}; no record of {}", numbered(absent), numbered(unrecorded))
                }
                (1, true, true) => "all ranks of the group have started it; check the network and the GPUs".to_owned(),
                (1, true, false) => format!("no record of {}", numbered(unrecorded)),
                (_, true, _) => "the operations differ, so they never complete".to_owned(),
            };
            lines.push(format!("group {group}, collective {number}: {}; {reason}", inside.join(", ")));
        }
        lines.extend(self.nccl_dumps.iter().flat_map(NcclDump::in_words));
        lines.into_iter().map(|line| line + "\n").collect()
    }
}

fn numbered(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, numbers.join(", "))
}

/// Returns the result of collecting stacks, in one line.
pub fn stacks_in_words(stacks: &[NodeStacks]) -> String {
    let written: Vec<_> = stacks.iter().filter_map(|node| node.result.as_ref().ok()).collect();
    let processes = units::counted(written.iter().map(|(_, count)| count).sum(), "process");
    let folder = written.first().and_then(|(path, _)| path.parent()).map_or("", Utf8Path::as_str);
    let failed: Vec<String> =
        stacks.iter().filter(|node| node.result.is_err()).map(|node| node.node.to_string()).collect();
    let without = if failed.is_empty() { String::new() } else { format!("; failed on {}", failed.join(", ")) };
    match written.is_empty() {
        true => format!("no stacks{without}"),
        false => format!("stacks of {processes} are in {folder}{without}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_phases_absent_ranks_and_records() {
        let beat = |rank, t, phase: &str| Heartbeat {
            v: 1,
            rank,
            t,
            step: 41,
            phase: phase.into(),
            phase_t: 1000.0,
            unwritten: None,
            failed_save: None,
        };
        let node = NodeId::new("ml-1").unwrap();
        let wait = |group: &str, operations: &[(&str, &[usize])], absent: &[usize]| CollectiveWait {
            group: group.into(),
            number: 57,
            operations: operations.iter().map(|(name, ranks)| ((*name).to_owned(), ranks.to_vec())).collect(),
            absent: absent.to_vec(),
            unrecorded: vec![],
        };
        let ranks = RankStates {
            heartbeats: vec![(node.clone(), beat(0, 1072.0, "backward")), (node, beat(1, 1003.0, "forward"))],
            waits: vec![
                wait("tp-of-replica-0-shard-0", &[("nccl:all_reduce", &[0])], &[1]),
                wait("replicas-of-shard-0-tp-0", &[("nccl:all_reduce", &[0]), ("nccl:_all_gather_base", &[2])], &[]),
                wait("world", &[("gloo:all_gather", &[0, 1])], &[]),
                CollectiveWait { unrecorded: vec![2, 3], ..wait("all", &[("gloo:all_reduce", &[0, 1])], &[]) },
            ],
            nccl_dumps: vec![
                dump(0, vec![recorded("tp-of-replica-0-shard-0", 57, false, &["reduce_from (shim.cpp:104)", "main"])]),
                dump(1, vec![recorded("tp-of-replica-0-shard-0", 56, true, &[])]),
                NcclDump {
                    collectives: Err(Failure::new(ErrorCode::Malformed, "what", "it is truncated", "fix")),
                    ..dump(2, vec![])
                },
            ],
        };
        insta::assert_snapshot!(ranks.in_words(1074.0));
    }

    fn recorded(group: &str, number: u64, is_complete: bool, stack: &[&str]) -> RecordedCollective {
        RecordedCollective {
            group: group.into(),
            number,
            operation: "nccl:all_reduce".into(),
            shapes: vec![vec![2, 3072]],
            is_complete,
            started_s: 0.0,
            stack: stack.iter().map(|function| (*function).to_owned()).collect(),
        }
    }

    fn dump(rank: usize, collectives: Vec<RecordedCollective>) -> NcclDump {
        let path = format!("runs/r/nodes/ml-1/0001-nccl-rank-{rank}").into();
        NcclDump { path, rank: Some(rank), collectives: Ok(collectives) }
    }

    #[test]
    fn the_records_of_libtorch_show_the_rank_that_others_wait_for() {
        let of = |number, is_complete| recorded("tp", number, is_complete, &[]);
        let dumps = [
            dump(0, vec![of(6, true), of(7, false), recorded("world", 3, true, &[])]),
            dump(1, vec![of(6, true)]),
            dump(4, vec![recorded("world", 3, true, &[])]),
        ];
        let waits = waits_of_dumps(&dumps);
        assert_eq!(waits.len(), 1);
        let CollectiveWait { group, number, operations, absent, unrecorded } = &waits[0];
        assert_eq!((group.as_str(), *number, absent.as_slice(), unrecorded.as_slice()), ("tp", 7, &[1][..], &[][..]));
        assert_eq!(operations["nccl:all_reduce"], [0]);
    }

    #[test]
    fn a_dump_has_the_rank_of_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("0001-nccl-rank-12")).unwrap();
        std::fs::copy("../../tests/fixtures/weights/flight-record", &path).unwrap();
        let dump = NcclDump::read(path);
        assert_eq!(dump.rank, Some(12));
        assert_eq!(dump.waiting().map(|one| (one.group.as_str(), one.number)).collect::<Vec<_>>(), [("world", 2)]);
    }
}

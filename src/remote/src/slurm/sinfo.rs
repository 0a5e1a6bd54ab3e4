//! The nodes of the cluster as Slurm reports them, queried in the background for all readers.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cluster::slurm::{self, SlurmError, SlurmNode, SlurmSpec};
use rundir::{ErrorCode, Failure};

use super::{TIMEOUT, failure, run};
use crate::threads;

/// The shortest time between two queries. Nodes change less often than jobs.
const EVERY: Duration = Duration::from_secs(5);
/// The pause after a query is at least this many times its duration.
const PAUSE_FACTOR: u32 = 10;
const WHAT: &str = "cannot list Slurm's nodes";

/// The nodes of the cluster as Slurm reports them. One query in the background serves all readers.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlurmNodes {
    shared: Arc<(Mutex<Known>, Condvar)>,
}

#[derive(Debug, Default)]
struct Known {
    latest: Option<Result<Vec<SlurmNode>, SlurmError>>,
    is_querying: bool,
    /// When Slurm may be queried again.
    next: Option<Instant>,
}

impl SlurmNodes {
    /// Lists the nodes of the partitions that a job requests, once each. Waits some seconds for the first reply of Slurm; later
    /// calls return the latest reply at once.
    pub fn of_partitions(&self, spec: &SlurmSpec) -> Result<Vec<SlurmNode>, Failure> {
        let nodes = self.latest(TIMEOUT * 2).unwrap_or(Err(SlurmError::ControllerDown));
        in_partitions(spec, &nodes.map_err(|error| failure(WHAT, &error))?)
    }

    /// Returns the latest reply, and waits up to `timeout` for the first.
    pub fn latest(&self, timeout: Duration) -> Option<Result<Vec<SlurmNode>, SlurmError>> {
        let mut known = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.is_querying && known.next.is_none_or(|next| Instant::now() >= next) {
            known.is_querying = true;
            let nodes = self.clone();
            threads::spawn(move || nodes.query());
        }
        let is_pending = |known: &mut Known| known.is_querying && known.latest.is_none();
        let waited = self.shared.1.wait_timeout_while(known, timeout, is_pending);
        waited.unwrap_or_else(PoisonError::into_inner).0.latest.clone()
    }

    fn query(&self) {
        let began = Instant::now();
        let nodes = run("list its nodes", &slurm::NODES).map(|output| slurm::read_nodes(&output).rows);
        let mut known = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        // If the controller does not reply, retry soon: the query causes it no load.
        let pause = if nodes.is_ok() { EVERY.max(began.elapsed() * PAUSE_FACTOR) } else { EVERY };
        *known = Known { latest: Some(nodes), is_querying: false, next: Some(Instant::now() + pause) };
        self.shared.1.notify_all();
    }
}

/// Returns the nodes of the requested partitions. A node in several of them is listed once.
fn in_partitions(spec: &SlurmSpec, nodes: &[SlurmNode]) -> Result<Vec<SlurmNode>, Failure> {
    let first = partition(WHAT, spec, nodes)?;
    let wanted: Vec<&str> = spec.partition.as_deref().unwrap_or(&first).split(',').collect();
    let mut listed = BTreeSet::new();
    let matching = nodes.iter().filter(|node| wanted.contains(&node.partition.as_str()));
    Ok(matching.filter(|node| listed.insert(&node.node)).cloned().collect())
}

/// Returns the first of the requested partitions, or the default partition if none is requested.
pub(crate) fn partition(what: &str, spec: &SlurmSpec, nodes: &[SlurmNode]) -> Result<String, Failure> {
    let mut names: Vec<&str> = nodes.iter().map(|node| node.partition.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let known = names.join(", ");
    match &spec.partition {
        // The request may be a list, of which Slurm chooses the first partition that has room.
        Some(wanted) => match wanted.split(',').find(|wanted| !names.contains(wanted)) {
            None => Ok(wanted.split(',').next().unwrap_or(wanted).to_owned()),
            Some(missing) => {
                let why = format!("partition {missing} does not exist; the cluster has {known}");
                Err(Failure::new(ErrorCode::InvalidSlurmFile, what, why, "set one of these in the Slurm file"))
            }
        },
        None => nodes.iter().find(|node| node.is_default).map(|node| node.partition.clone()).ok_or_else(|| {
            let why = format!("the cluster has no default partition; it has {known}");
            Failure::new(ErrorCode::InvalidSlurmFile, what, why, "set one of these in the Slurm file: partition = …")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINFO: &str = "node02|train*|drained|8|64000|gpu:8|1795147200|bad fan\nnode01|train*|idle|8|64000|gpu:8|Unknown|none\n\
                        node01|debug|idle|8|64000|gpu:8|Unknown|none\nnode09|debug|down*|8|64000|gpu:8|Unknown|Not responding\n";

    fn listed(partition: &str) -> Result<Vec<String>, Failure> {
        let file = format!("{partition}\nnodes = 1\ngpus_per_node = 1\ntime = '1:00'\n");
        let nodes = in_partitions(&SlurmSpec::parse(&file).unwrap(), &slurm::read_nodes(SINFO).rows)?;
        Ok(nodes.iter().map(|node| format!("{} {}", node.node, node.state)).collect())
    }

    #[test]
    fn the_nodes_of_partitions_are_listed_once_each_in_any_state() {
        assert_eq!(listed("").unwrap(), ["node02 drained", "node01 idle"]);
        assert_eq!(listed("partition = 'debug'").unwrap(), ["node01 idle", "node09 down*"]);
        assert_eq!(listed("partition = 'debug,train'").unwrap(), ["node02 drained", "node01 idle", "node09 down*"]);
        assert_eq!(listed("partition = 'big'").unwrap_err().code, ErrorCode::InvalidSlurmFile);
    }
}

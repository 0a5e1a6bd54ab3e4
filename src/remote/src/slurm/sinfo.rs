use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cluster::slurm::{self, SlurmNode, SlurmSpec, SlurmTrouble};
use rundir::Failure;

use super::{ANSWER, failure, run};

/// How often Slurm is asked, at most: nodes change less often than jobs.
const EVERY: Duration = Duration::from_secs(5);
/// It has at least this many times as long to rest as it needed to answer.
const REST: u32 = 10;
/// What cannot be done without its answer.
const WHAT: &str = "cannot list Slurm's nodes";

/// What Slurm says of the cluster's nodes: one question for all who look, asked in the background.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlurmNodes {
    shared: Arc<(Mutex<Known>, Condvar)>,
}

#[derive(Debug, Default)]
struct Known {
    said: Option<Result<Vec<SlurmNode>, SlurmTrouble>>,
    is_asking: bool,
    /// When Slurm may be asked again.
    next: Option<Instant>,
}

impl SlurmNodes {
    /// Lists the nodes of the partitions that a job asks for, once each. Waits for the first answer, which comes or is given up
    /// in some seconds; later calls have the newest one at once.
    pub fn of(&self, spec: &SlurmSpec) -> Result<Vec<SlurmNode>, Failure> {
        let said = self.see(ANSWER * 2).unwrap_or(Err(SlurmTrouble::ControllerDown));
        in_partition(spec, &said.map_err(|trouble| failure(WHAT, &trouble))?)
    }

    /// Returns what was said last, and waits that long for the first answer.
    pub fn see(&self, patience: Duration) -> Option<Result<Vec<SlurmNode>, SlurmTrouble>> {
        let mut known = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.is_asking && known.next.is_none_or(|next| Instant::now() >= next) {
            known.is_asking = true;
            let nodes = self.clone();
            thread::spawn(move || nodes.ask());
        }
        let is_open = |known: &mut Known| known.is_asking && known.said.is_none();
        let waited = self.shared.1.wait_timeout_while(known, patience, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0.said.clone()
    }

    fn ask(&self) {
        let began = Instant::now();
        let said = run("list its nodes", &slurm::NODES).map(|answer| slurm::read_nodes(&answer).rows);
        let mut known = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One that does not answer at all has little to do, and should be seen to be back.
        let rest = if said.is_ok() { EVERY.max(began.elapsed() * REST) } else { EVERY };
        *known = Known { said: Some(said), is_asking: false, next: Some(Instant::now() + rest) };
        self.shared.1.notify_all();
    }
}

/// Keeps the nodes of the partitions that are asked for. One that is in several of them is listed once.
fn in_partition(spec: &SlurmSpec, nodes: &[SlurmNode]) -> Result<Vec<SlurmNode>, Failure> {
    let first = partition(WHAT, spec, nodes)?;
    let wanted: Vec<&str> = spec.partition.as_deref().unwrap_or(&first).split(',').collect();
    let mut seen = BTreeSet::new();
    let of_them = nodes.iter().filter(|node| wanted.contains(&node.partition.as_str()));
    Ok(of_them.filter(|node| seen.insert(&node.node)).cloned().collect())
}

/// Returns the first of the partitions that are asked for, or the one of those who ask for none.
pub(crate) fn partition(what: &str, spec: &SlurmSpec, nodes: &[SlurmNode]) -> Result<String, Failure> {
    let mut names: Vec<&str> = nodes.iter().map(|node| node.partition.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let known = names.join(", ");
    match &spec.partition {
        // Several may be named: the first that has room takes the job.
        Some(wanted) => match wanted.split(',').find(|wanted| !names.contains(wanted)) {
            None => Ok(wanted.split(',').next().unwrap_or(wanted).to_owned()),
            Some(missing) => {
                let why = format!("there is no partition {missing}; there are {known}");
                Err(Failure::new(rundir::ErrorCode::Unclassified, what, why, "name one of them in the Slurm file"))
            }
        },
        None => nodes.iter().find(|node| node.is_default).map(|node| node.partition.clone()).ok_or_else(|| {
            let why = format!("this cluster has no default partition; there are {known}");
            Failure::new(
                rundir::ErrorCode::Unclassified,
                what,
                why,
                "name one of them: partition = … in the Slurm file",
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "node02|train*|drained|8|64000|gpu:8|1795147200|bad fan\nnode01|train*|idle|8|64000|gpu:8|Unknown|none\n\
                        node01|debug|idle|8|64000|gpu:8|Unknown|none\nnode09|debug|down*|8|64000|gpu:8|Unknown|Not responding\n";

    fn listed(partition: &str) -> Result<Vec<String>, Failure> {
        let file = format!("{partition}\nnodes = 1\ngpus_per_node = 1\ntime = '1:00'\n");
        let nodes = in_partition(&SlurmSpec::parse(&file).unwrap(), &slurm::read_nodes(SAID).rows)?;
        Ok(nodes.iter().map(|node| format!("{} {}", node.node, node.state)).collect())
    }

    #[test]
    fn the_nodes_of_a_partition_are_listed_once_each_whatever_their_state() {
        assert_eq!(listed("").unwrap(), ["node02 drained", "node01 idle"]);
        assert_eq!(listed("partition = 'debug'").unwrap(), ["node01 idle", "node09 down*"]);
        assert_eq!(listed("partition = 'debug,train'").unwrap(), ["node02 drained", "node01 idle", "node09 down*"]);
        assert_eq!(listed("partition = 'big'").unwrap_err().why, "there is no partition big; there are debug, train");
    }
}

//! The streams of nodes: their list, their live and recorded samples, their processes, and the output of nvidia-smi.

use super::{Ended, FOLLOW, LIST, Stream, pieces};
use crate::queue::Item;
use crate::simulate::{self, Simulation};
use cluster::NodeId;
use remote::{NodeUpdate, NodeWatch, OnUpdate};
use rundir::{ErrorCode, Failure, Login, NodeSample, RunDir, RunId, Tail};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::task::{JoinSet, block_in_place};
use ui::fleet::{FleetSource, HistoryWindow, ListedNode};
use ui::{Msg, NodeMsg};

/// How often a node sends a sample.
pub const EVERY: Duration = Duration::from_secs(2);
/// How often processes are listed.
const PROCESSES_EVERY: Duration = Duration::from_secs(3);
/// How often the table of nvidia-smi is read.
const SMI_EVERY: Duration = Duration::from_secs(4);
/// The bytes at the end of a node's recorded samples that are read first: six hours of eight GPUs.
const RECORDED_FIRST_BYTES: u64 = 2 << 20;
/// The most bytes of a node's recorded samples that are read: twelve hours of sixteen GPUs.
const RECORDED_BYTES: u64 = 8 << 20;

impl Stream {
    /// Watches nodes. The list can change: the user edits a hostfile, a run resumes on other nodes, Slurm drains a node.
    pub(super) async fn nodes(&self, of: &FleetSource) -> Result<Infallible, Ended> {
        if let (FleetSource::Given, Some(simulation)) = (of, self.workspace.simulate) {
            return self.simulated(simulation).await;
        }
        let mut sent: Option<Result<Vec<ListedNode>, Failure>> = None;
        let mut watching: BTreeMap<Login, NodeWatch> = BTreeMap::new();
        loop {
            let listed = block_in_place(|| self.workspace.nodes_of(of));
            let nodes = listed.as_ref().map(|all| all.iter().map(|(node, _)| node.clone()).collect::<Vec<_>>());
            let nodes = nodes.map_err(Clone::clone);
            if sent.as_ref() != Some(&nodes) {
                self.send(Msg::Nodes { of: of.clone(), nodes: nodes.clone() }).await?;
                sent = Some(nodes);
            }
            // If the list cannot be read for a moment, the known nodes are still watched.
            if let Ok(listed) = listed {
                watching.retain(|login, _| listed.iter().any(|(_, wanted)| wanted == login));
                // This can block: `watch` may query a name server to find out whether a node is this machine.
                block_in_place(|| {
                    for (_, login) in listed {
                        let on_update = self.on_update(login.node.clone());
                        watching
                            .entry(login)
                            .or_insert_with_key(|login| self.workspace.connections.watch(login, EVERY, on_update));
                    }
                });
            }
            self.pause(LIST).await?;
        }
    }

    /// Returns the callback that sends the updates of a node to the queue.
    fn on_update(&self, node: NodeId) -> OnUpdate {
        let (queue, stop) = (self.queue.clone(), self.stop.clone());
        Box::new(move |update| {
            let what = match update {
                NodeUpdate::Frame(frame) => NodeMsg::Frame(frame),
                NodeUpdate::Unreachable(error) => {
                    NodeMsg::Down(error.failure_on_node(format!("cannot watch node {node}")))
                }
            };
            let item = Item::Stream(stop.clone(), Msg::Node { node: node.clone(), what });
            if stop.is_cancelled() || queue.stream_blocking(item).is_err() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
    }

    async fn simulated(&self, simulation: Simulation) -> Result<Infallible, Ended> {
        self.send(Msg::Nodes {
            of: FleetSource::Given,
            nodes: Ok(simulation.nodes().into_iter().map(ListedNode::from).collect()),
        })
        .await?;
        let mut nodes = simulate::Nodes::new(simulation);
        loop {
            self.pause(nodes.pause()).await?;
            for (node, frame) in nodes.due() {
                self.send(Msg::Node { node, what: NodeMsg::Frame(frame) }).await?;
            }
        }
    }

    /// Lists the processes of nodes repeatedly.
    pub(super) async fn processes(&self, of: &FleetSource, nodes: &[NodeId]) -> Result<Infallible, Ended> {
        loop {
            // Nodes are listed in parallel, so that a node that does not answer delays no other node.
            let mut listing = JoinSet::new();
            for node in nodes {
                let (workspace, of, node) = (self.workspace.clone(), of.clone(), node.clone());
                listing.spawn_blocking(move || Msg::Node {
                    what: NodeMsg::Processes(workspace.training_on(&of, &node)),
                    node,
                });
            }
            while let Some(listed) = self.stop.run_until_cancelled(listing.join_next()).await.ok_or(Ended)? {
                // A panic has already ended the program.
                if let Ok(msg) = listed {
                    self.send(msg).await?;
                }
            }
            self.pause(PROCESSES_EVERY).await?;
        }
    }

    /// Reads the samples of a node that the supervisor of a run recorded in the last hours.
    pub(super) async fn recorded(&self, run: &RunId, node: &NodeId) -> Result<Infallible, Ended> {
        // Nothing is read for nodes that the selection only passes.
        self.pause(FOLLOW).await?;
        let dir = self.workspace.dir(run);
        let samples = block_in_place(|| recorded_samples(&dir, node, rundir::now_s()));
        for samples in pieces(samples) {
            self.send(Msg::Node { node: node.clone(), what: NodeMsg::Recorded(samples) }).await?;
        }
        self.send(Msg::Node { node: node.clone(), what: NodeMsg::Recorded(Vec::new()) }).await?;
        self.stop.cancelled().await;
        Err(Ended)
    }

    /// Runs nvidia-smi on one node repeatedly.
    pub(super) async fn smi(&self, of: &FleetSource, node: &NodeId) -> Result<Infallible, Ended> {
        loop {
            let table = block_in_place(|| match self.workspace.nodes_of(of) {
                _ if self.workspace.simulate.is_some() && *of == FleetSource::Given => Ok(simulate::TABLE.to_owned()),
                Ok(listed) => match listed.into_iter().find(|(_, login)| login.node == *node) {
                    Some((_, login)) => self.workspace.smi(&login),
                    None => Err(Failure::new(
                        ErrorCode::UnknownName,
                        format!("cannot run nvidia-smi on {node}"),
                        "it is no longer in the list of nodes",
                        "press Esc and choose another node",
                    )),
                },
                // A Slurm node is reached by its node name, so the list is not needed.
                Err(_) if *of == FleetSource::Given && self.workspace.nodes.slurm.is_some() => {
                    self.workspace.smi(&Login::by_name(node.clone()))
                }
                Err(failure) => Err(failure),
            });
            self.send(Msg::Node { node: node.clone(), what: NodeMsg::Smi(table) }).await?;
            self.pause(SMI_EVERY).await?;
        }
    }
}

/// Returns the recorded samples of a node that a history can show. A file that cannot be read has no samples.
fn recorded_samples(dir: &RunDir, node: &NodeId, now_s: f64) -> Vec<NodeSample> {
    let since_s = now_s - HistoryWindow::TwelveHours.seconds();
    let reaches = |samples: &[NodeSample]| samples.first().is_some_and(|first| first.t < since_s);
    let read = Tail::<NodeSample>::near_end_with(dir.gpu_samples(node), RECORDED_FIRST_BYTES, RECORDED_BYTES, reaches);
    let mut samples = read.map(|(_, samples)| samples).unwrap_or_default();
    samples.retain(|sample| sample.t >= since_s);
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use camino::Utf8Path;

    #[test]
    fn the_recorded_samples_of_twelve_hours_are_read_without_the_half_written_line() {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap());
        let (node, now_s) = (NodeId::new("ml-1").unwrap(), 1_795_147_200.0);
        assert!(recorded_samples(&dir, &node, now_s).is_empty(), "the file does not exist");
        let line = |ago_s: f64| {
            let gpus = r#"{"index":[0,1],"power_w":[612.5,70.0],"mem_used_mib":[70210,3]}"#;
            format!("{{\"v\":1,\"attempt\":1,\"t\":{},\"gpus\":{gpus}}}\n", now_s - ago_s)
        };
        let mut text: String = [60_000.0, 43_300.0, 43_100.0, 3_600.0, 5.0].map(line).concat();
        text.push_str("{\"v\":1,\"att");
        std::fs::create_dir_all(dir.node_dir(&node)).unwrap();
        std::fs::write(dir.gpu_samples(&node), text).unwrap();
        let samples = recorded_samples(&dir, &node, now_s);
        let ago_s: Vec<f64> = samples.iter().map(|sample| now_s - sample.t).collect();
        assert_eq!(ago_s, [43_100.0, 3_600.0, 5.0]);
        assert_eq!(samples[0].gpus()[0].power_w.value(), Some(612.5));
    }
}

//! The streams of nodes: their list, their samples, their processes, and the output of nvidia-smi.

use super::{Ended, LIST, Stream};
use crate::queue::Item;
use crate::simulate::{self, Simulation};
use cluster::NodeId;
use remote::{NodeUpdate, NodeWatch, OnUpdate};
use rundir::{ErrorCode, Failure, Login};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::task::{JoinSet, block_in_place};
use ui::fleet::{FleetSource, ListedNode};
use ui::{Msg, NodeMsg};

/// How often a node sends a sample.
pub const EVERY: Duration = Duration::from_secs(2);
/// How often processes are listed.
const PROCESSES_EVERY: Duration = Duration::from_secs(3);
/// How often the table of nvidia-smi is read.
const SMI_EVERY: Duration = Duration::from_secs(4);

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
                NodeUpdate::Unreachable(error) => NodeMsg::Down(error.failure(format!("cannot watch node {node}"))),
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

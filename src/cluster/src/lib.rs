//! Nodes, ranks and their placement; parsers for hostfiles and for the output of nvidia-smi, node probes and Slurm.
//!
//! This crate reads no files and starts no programs: callers pass it text.

pub mod fault;
pub mod gpu;
pub mod hostfile;
pub mod hostlist;
mod node;
pub mod nvidia_smi;
mod pci;
mod placement;
pub mod probe;
pub mod slurm;
mod traffic;
mod xid;

pub use gpu::{Absent, GpuProcess, GpuSample, ProcessOwner, Reading, ThrottleReasons};
pub use hostfile::{Hostfile, HostfileError};
pub use node::{Node, NodeId, NodeIdError, Rank};
pub use placement::{Placement, PlacementError, RankPlace};
pub use traffic::{LinkBytes, LinkKind, Rate};
pub use xid::{Xid, XidAction, XidAt, remove_ended};

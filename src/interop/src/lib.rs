//! Files of other tools: reads and writes TensorBoard's event files and the offline runs of Weights & Biases (W&B).
//!
//! Both are logs of protobuf messages, each with its own framing. Readers accept a torn last record, unknown fields, and steps that go
//! backwards. At a wrong checksum they stop and report it; the records before it count.

mod metrics;
mod series;
pub mod tensorboard;
mod tool;
pub mod wandb;

pub use metrics::{Mapped, map_metrics};
pub use series::{Log, Point};
pub use tool::Tool;

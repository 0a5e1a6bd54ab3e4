//! Tests of the whole trainer: comparisons with recorded numbers and between meshes, with ranks as threads and as
//! processes.

mod another_family;
mod collective_traffic;
mod converted_weights;
mod mixed_shapes;
mod offloaded;
mod planned_state;
mod recorded_adapters;
mod recorded_conditions;
mod recorded_training;
mod released_models;
mod sharded_settings;
pub(crate) mod support;
mod token_pieces;
mod waits;

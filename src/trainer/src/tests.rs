//! Tests of the whole trainer: against recorded numbers, over meshes, with ranks as threads and as processes.

mod collective_traffic;
mod converted_weights;
mod recorded_conditions;
mod recorded_training;
mod released_models;

//! One file per screen, with its state, its reaction to keys and its drawing.

pub mod convert;
pub mod logs;
pub mod node;
pub mod node_table;
pub mod nodes;
pub mod run;
pub mod run_panels;
pub mod runs;
pub mod stages;

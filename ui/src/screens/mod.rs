//! One file per screen, which handles the actions of that screen and draws it.

pub mod alerts;
pub mod compare;
pub mod compare_recipes;
pub mod convert;
pub mod launch;
pub mod launch_view;
pub mod logs;
pub mod node;
pub mod node_gpus;
pub mod node_heat;
pub mod node_history;
pub mod node_table;
pub mod nodes;
pub mod processes;
pub mod recipes;
pub mod run;
pub mod run_marks;
pub mod run_panels;
pub mod run_recipe;
pub mod runs;
pub mod samples;
pub mod stages;

//! Tests of the whole crate: they send messages, and compare effects, watches and snapshots of the screen.

mod actions;
mod alerts;
mod any_input;
mod charts;
mod compare;
mod convert;
mod details;
mod encode;
mod keys;
mod launch_form;
mod logs;
mod marks;
mod merged_logs;
mod mouse;
mod nodes;
mod palette;
mod panels;
mod samples;
mod screens;
mod settings;
mod updates;

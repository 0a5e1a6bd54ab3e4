//! Tests of the `vidtui` binary: the commands without a terminal, and the console in a pseudo-terminal.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failure of the test")]

mod actions;
mod alerts;
mod attach;
mod chains;
mod commands;
mod data_check;
mod data_sets;
mod documents;
mod encodes;
mod fake_trainer;
mod heal;
mod hub;
mod interop;
mod launch_form;
mod nodes_and_smi;
mod other_trainers;
mod own_video;
mod pty;
mod queue;
mod real_trainer;
mod released_models;
mod samples;
mod session;
mod terminal;
mod test_site;
mod ttt_curriculum;
mod wan;
mod weights;

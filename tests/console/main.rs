//! Drives the real `vidtui`: its commands without a terminal, and the console in a pseudo-terminal.

#![allow(clippy::unwrap_used, reason = "everything here is a test, and a panic is how a test fails")]

mod commands;
mod fake_trainer;
mod nodes_and_smi;
mod other_trainers;
mod pty;
mod real_trainer;
mod session;
mod terminal;
mod test_site;
mod weights;

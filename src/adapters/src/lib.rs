//! What other trainers' output says: bytes of a log in, metrics and events out.
//!
//! A [`LogReader`] takes whatever a log has grown by and cuts it into lines as a terminal would show them. What a line
//! means is told by one function per system. Nothing here reads a file or a clock.

mod bar;
mod lines;
mod reader;
mod system;

#[cfg(test)]
mod tests;

pub use lines::clean;
pub use reader::{LogReader, Said};

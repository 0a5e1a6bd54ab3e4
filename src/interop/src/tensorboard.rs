//! TensorBoard's event files: `events.out.tfevents.<seconds>.<node>.<process>.<n>`, each a sequence of `Event` messages.

mod event;
mod read;
mod record;
mod write;

pub use read::{event_files, read_files, read_folder};
pub use write::EventWriter;

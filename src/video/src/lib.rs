//! Video files: lists their frames, chooses some by time, and decodes their pixels.
//!
//! FFmpeg is not linked. The programs `ffprobe` and `ffmpeg` run as child processes, so that a damaged clip that crashes, hangs or
//! fills the memory ends one process and not the trainer. They run without a shell, with a limit on the time without progress, and
//! are killed when the caller drops or cancels its work.
//!
//! Frames are chosen by time: [`Programs::open`] lists the presentation time of every frame, [`choose`] takes some of them, and
//! [`Programs::decode`] returns exactly those. The free functions do the same with the programs on `PATH`.
//!
//! The rules of decoding are fixed, and [`COLOUR_RULE`] names them for the keys of caches:
//! * Every frame is passed through: none is repeated or dropped to reach a constant rate.
//! * The rotation that the file states is applied, and pixels are made square. All sizes are those after both.
//! * Colours are converted by the file's tags; without tags by BT.709 if the video has 720 lines or more, else by BT.601.
//! * HDR (PQ and HLG) is tone-mapped to BT.709, or refused if this ffmpeg cannot do it.
//! * A folder of pictures is a clip with a frame per picture, in the order of the numbers in their names. It has no rate of its own.
//! * A video is one file: playlists, lists and patterns that refer to other files are refused.
//! * A file is suspect if ffprobe or ffmpeg logs an error about it. A suspect file is a failure, never silently used.

mod cancel;
mod child;
mod choose;
mod colour;
mod decode;
mod failures;
mod frame_folder;
mod frames;
mod geometry;
mod gif;
mod input;
mod install;
mod pictures;
mod pool;
mod probe;
mod programs;
mod resample;
mod scenes;
mod source;
mod write;

pub use cancel::Cancel;
pub use choose::{FrameChoice, NotEnough, choose, repeated};
pub use colour::{COLOUR_RULE, Colour, Hdr, Matrix};
pub use decode::decode;
pub use failures::{ClipError, ClipFault};
pub use frame_folder::frame_files;
pub use frames::Frames;
pub use geometry::Picture;
pub use gif::Gif;
pub use pictures::{OTHER_PICTURE_ENDINGS, is_picture, read_image, write_png};
pub use pool::{Order, Pool, PoolOptions};
pub use probe::{Probe, probe};
pub use programs::{Programs, check_installed};
pub use recipe::{CropMode, FrameMode};
pub use resample::{Filter, resize};
pub use scenes::{Cutting, FrameChange, GreyFrames};
pub use source::{Scan, VideoFile, frame_times, is_variable};
pub use write::write_mp4;

//! Converts a video to an animated GIF, for programs that cannot show videos, such as TensorBoard.

use camino::Utf8Path;
use failure::{ErrorCode, Failure};

use crate::child::{self, Run};
use crate::failures::{self, Complaints, check_file};
use crate::input;
use crate::programs::Programs;

/// Frames per second of the GIF. Browsers play GIFs of more than 50 frames per second too slowly.
const FPS: u32 = 8;
/// The largest size of a GIF in bytes.
const MAX_BYTES: usize = 32 << 20;

/// An animated GIF.
#[derive(Debug, Clone, PartialEq)]
pub struct Gif {
    /// The content of the file.
    pub bytes: Vec<u8>,
    /// Pixels per row.
    pub width: u16,
    /// Rows of pixels.
    pub height: u16,
}

impl Programs {
    /// Converts a video to an animated GIF of 8 frames per second, at most `max_width` pixels wide, that repeats forever.
    ///
    /// # Errors
    /// The file is missing, empty or not a regular file; `ProgramMissing`; `NoAnswer`; `CommandFailed` if ffmpeg cannot read the file or the GIF is larger than 32 MiB.
    pub fn gif(&self, video: &Utf8Path, max_width: u32) -> Result<Gif, Failure> {
        check_file(video)?;
        let mut command = self.ffmpeg_command();
        self.limit_threads(&mut command);
        // `palettegen` computes the best 256 colours for this video.
        let filter = format!(
            "fps={FPS},scale='min({max_width},iw)':-2:flags=lanczos,split[a][b];[a]palettegen[p];[b][p]paletteuse"
        );
        input::add(&mut command, video);
        command.args(["-an", "-vf", &filter, "-loop", "0", "-f", "gif", "pipe:1"]);
        let run = Run { limit: self.silent_limit, cancel: &self.cancel, max_bytes: MAX_BYTES, capacity: 0 };
        let mut complaints = Complaints::default();
        let done = child::run(command, &run, None, &mut |line| complaints.add(line))
            .map_err(|stop| failures::stopped(&self.ffmpeg, stop))?;
        let size = |at: usize| Some(u16::from_le_bytes(done.bytes.get(at..at + 2)?.try_into().ok()?));
        match (done.status.success(), size(6).zip(size(8))) {
            (true, Some((width, height))) => Ok(Gif { width, height, bytes: done.bytes }),
            _ => Err(Failure::new(
                ErrorCode::CommandFailed,
                format!("cannot convert {video} to a GIF"),
                format!("ffmpeg: {}", complaints.shown()),
                "check that the video can be played",
            )),
        }
    }
}

//! The demo's videos: short clips with captions, cut from `bunny.mp4`.

use std::fs;

use camino::Utf8Path;

use crate::failure::{Failure, Result};
use crate::fixtures::captions::caption;
use crate::process::{command, output};
use crate::workspace::root;

/// Height of a clip in pixels.
pub const HEIGHT: &str = "96";
/// Width of a clip in pixels.
pub const WIDTH: &str = "128";
/// Frames per second that the model learns: every second frame of the clip.
pub const FPS: &str = "12.5";
/// Frames of `bunny.mp4`, at 25 per second.
const CLIP_FRAMES: usize = 132;

/// A stage of the demo's curriculum and its clips.
pub struct Stage {
    /// The name of the stage in the curriculum.
    pub name: &'static str,
    /// Frames that the model learns.
    pub frames: usize,
    /// Frames of a clip, from the first to the last of `frames` at [`FPS`].
    pub span: usize,
    /// The number of clips. Their first frames are evenly spaced.
    pub clips: usize,
}

/// The stages in the order of training.
pub const STAGES: [Stage; 2] =
    [Stage { name: "2s", frames: 25, span: 49, clips: 12 }, Stage { name: "4s", frames: 49, span: 97, clips: 6 }];

impl Stage {
    /// Cuts the clips into a folder, each with its caption in a text file. Replaces existing clips.
    pub fn cut(&self, folder: &Utf8Path) -> Result<()> {
        let failed =
            |e| Failure::new(format!("cannot write clips into {folder}"), e, "check the permissions and the disk");
        fs::create_dir_all(folder).map_err(failed)?;
        let clip = root().join("assets/demo/bunny.mp4");
        for first in self.starts() {
            let end = first + self.span;
            let video = folder.join(format!("bunny-{first:03}.mp4"));
            let filter = format!("trim=start_frame={first}:end_frame={end},setpts=PTS-STARTPTS");
            let mut ffmpeg = command("ffmpeg", ["-v", "error", "-y", "-i", clip.as_str(), "-an", "-vf", &filter]);
            ffmpeg.args(["-c:v", "libx264", "-crf", "12", "-pix_fmt", "yuv420p", "-threads", "1", video.as_str()]);
            output(&mut ffmpeg, "use an ffmpeg that has libx264, as Debian's")?;
            fs::write(video.with_extension("txt"), caption(first, end)).map_err(failed)?;
        }
        Ok(())
    }

    /// Returns the first frame of each clip.
    fn starts(&self) -> impl Iterator<Item = usize> + use<> {
        let (last, gaps) = (CLIP_FRAMES - self.span, self.clips - 1);
        (0..self.clips).map(move |i| i * last / gaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::PROMPT;

    #[test]
    fn the_last_clip_of_a_stage_ends_with_the_film_and_the_prompt_is_a_caption() {
        for stage in &STAGES {
            assert_eq!(stage.starts().last().map(|first| first + stage.span), Some(CLIP_FRAMES));
            assert_eq!(stage.span, 2 * (stage.frames - 1) + 1, "12.5 of 25 frames per second");
        }
        let captions =
            |stage: &Stage| stage.starts().map(|first| caption(first, first + stage.span)).collect::<Vec<_>>();
        assert!(STAGES.iter().any(|stage| captions(stage).contains(&PROMPT.to_owned())));
    }
}

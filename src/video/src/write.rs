//! Writes frames as an mp4.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use failure::{ErrorCode, Failure, FileError};

use crate::child::{self, Run};
use crate::colour::SCALE_FLAGS;
use crate::failures::{self, Complaints};
use crate::frames::Frames;
use crate::programs::Programs;

/// The encoders in order of preference, each with options for a quality without visible loss.
pub(crate) const ENCODERS: [(&str, &[&str]); 3] = [
    ("libx264", &["-preset", "medium", "-crf", "16"]),
    ("libopenh264", &["-b:v", "8M"]),
    // Every ffmpeg has this encoder.
    ("mpeg4", &["-q:v", "2"]),
];

/// Writes frames as an mp4 with the ffmpeg on `PATH`; see [`Programs::write_mp4`].
///
/// # Errors
/// As [`Programs::write_mp4`].
pub fn write_mp4(path: &Utf8Path, frames: &Frames, fps: f64) -> Result<(), Failure> {
    Programs::default().write_mp4(path, frames, fps)
}

impl Programs {
    /// Writes frames as an mp4 in BT.709, first under a temporary name. An existing file is replaced. The codec is H.264, or MPEG-4
    /// if this ffmpeg has no encoder for H.264.
    ///
    /// Players need even sizes. An odd size is extended by repeating the last column or row.
    ///
    /// # Errors
    /// `InvalidArgument`, if the frames are incomplete or the rate is not within 0 to 1000; `DiskFull`, `Io` and other codes of the file
    /// system; `ProgramMissing`; `NoAnswer`; `CommandFailed`, if ffmpeg fails.
    pub fn write_mp4(&self, path: &Utf8Path, frames: &Frames, fps: f64) -> Result<(), Failure> {
        let what = format!("cannot write {path}");
        let mismatch = frames.mismatch();
        let wrong = mismatch.or_else(|| {
            let valid = fps.is_finite() && fps > 0.0 && fps <= 1000.0;
            (!valid).then(|| format!("the rate is {fps} frames per second"))
        });
        if let Some(why) = wrong {
            return Err(Failure::new(ErrorCode::InvalidArgument, what, why, "give whole frames and a rate up to 1000"));
        }
        let part = Part::beside(path);
        let mut encoders = ENCODERS.iter();
        loop {
            let Some((encoder, options)) = encoders.next() else {
                let why = "this ffmpeg has no encoder for mp4";
                return Err(Failure::new(ErrorCode::CommandFailed, what, why, "install an ffmpeg with libx264"));
            };
            let complaints = self.encode(&part.0, frames, fps, encoder, options)?;
            let Some(complaints) = complaints else { break };
            if complaints.lines.iter().any(|line| line.contains("Unknown encoder")) {
                continue;
            }
            let full = complaints.lines.iter().any(|line| line.contains("No space left"));
            let (code, fix) = if full {
                (ErrorCode::DiskFull, "free some space on the disk")
            } else {
                (ErrorCode::CommandFailed, "check the folder and its disk")
            };
            return Err(Failure::new(code, what, format!("ffmpeg: {}", complaints.shown()), fix));
        }
        part.rename(path)
    }

    /// Runs ffmpeg, and returns its errors if it fails.
    fn encode(
        &self,
        part: &Utf8Path,
        frames: &Frames,
        fps: f64,
        encoder: &str,
        options: &[&str],
    ) -> Result<Option<Complaints>, Failure> {
        let (width, height) = (frames.width.next_multiple_of(2), frames.height.next_multiple_of(2));
        let mut command = self.ffmpeg_command();
        command.args(["-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-video_size", &format!("{width}x{height}")]);
        command.args(["-framerate", &fps.to_string(), "-i", "pipe:0"]);
        let convert =
            format!("scale=flags={SCALE_FLAGS}:in_range=pc:out_range=tv:out_color_matrix=bt709,format=yuv420p");
        command.args(["-vf", &convert, "-c:v", encoder]).args(options);
        command.args([
            "-colorspace",
            "bt709",
            "-color_primaries",
            "bt709",
            "-color_trc",
            "bt709",
            "-color_range",
            "tv",
        ]);
        // These options make the bytes depend on the frames alone.
        command.args(["-map_metadata", "-1", "-fflags", "+bitexact", "-flags:v", "+bitexact"]);
        command.args(["-movflags", "+faststart", "-f", "mp4"]).arg(format!("file:{part}"));
        let mut index = 0;
        let mut next = || {
            (index < frames.count).then(|| {
                index += 1;
                even(frames.frame(index - 1), frames.width, frames.height)
            })
        };
        let run = Run { limit: self.silent_limit, cancel: &self.cancel, max_bytes: 1 << 16, capacity: 0 };
        let mut complaints = Complaints::default();
        let done = child::run(command, &run, Some(&mut next), &mut |line| complaints.add(line))
            .map_err(|stop| failures::stopped(&self.ffmpeg, stop))?;
        if let Some(failure) = failures::not_started(&self.ffmpeg, done.status, &complaints) {
            return Err(failure);
        }
        if done.status.success() && complaints.count == 0 {
            return Ok(None);
        }
        if complaints.count == 0 {
            complaints.add(&done.status.to_string());
        }
        Ok(Some(complaints))
    }
}

/// Returns a frame `[H, W, 3]` whose last column or row is repeated if the width or height is odd.
fn even(frame: &[u8], width: usize, height: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(width.next_multiple_of(2) * height.next_multiple_of(2) * 3);
    let row = |bytes: &mut Vec<u8>, row: &[u8]| {
        bytes.extend_from_slice(row);
        if !width.is_multiple_of(2) {
            bytes.extend_from_slice(&row[row.len() - 3..]);
        }
    };
    for line in frame.chunks_exact(width * 3) {
        row(&mut bytes, line);
    }
    if !height.is_multiple_of(2) {
        row(&mut bytes, &frame[(height - 1) * width * 3..]);
    }
    bytes
}

/// A file that is being written, removed unless it is renamed.
pub(crate) struct Part(pub Utf8PathBuf);

impl Part {
    /// Returns a name in the same folder that only this process uses.
    pub fn beside(path: &Utf8Path) -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = path.file_name().unwrap_or_default();
        Self(path.with_file_name(format!(".{name}.{}-{number}.part", std::process::id())))
    }

    /// Renames the file to its final name.
    pub fn rename(self, path: &Utf8Path) -> Result<(), Failure> {
        fs::rename(&self.0, path).map_err(|error| FileError::io("write", path, error))?;
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // This fails if the file was renamed or never created.
        let _ = fs::remove_file(&self.0);
    }
}

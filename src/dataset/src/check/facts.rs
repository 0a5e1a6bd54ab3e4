//! Probes one file with ffprobe, or reads the pictures of a folder of frames, and collects the facts about the video.

use crate::{ExclusionReason, Unusual};
use camino::Utf8Path;
use rundir::{ErrorCode, Failure, open_regular};
use serde::{Deserialize, Serialize};
use std::io::Read;
use video::{ClipError, ClipFault, Programs, is_variable};

/// The properties of a video that can be read. The sizes are in pixels, after rotation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Facts {
    pub width: usize,
    pub height: usize,
    pub fps: f64,
    pub duration_s: f64,
    pub frames: usize,
    pub codec: String,
    pub hdr: bool,
    pub variable_rate: bool,
    #[serde(flatten)]
    pub unusual: Unusual,
    /// The file is a picture: a clip of one frame.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub picture: bool,
    /// The clip is a folder of frames, which has no rate of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frame_folder: bool,
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ProbeResult {
    /// A video.
    Video(Facts),
    /// The reason why the file cannot be used.
    Excluded(ExclusionReason),
}

/// A probe result, and whether it may be cached until the file changes.
pub(super) struct Probed {
    pub found: ProbeResult,
    pub cacheable: bool,
}

/// Probes a file. Reads all pictures of a folder of frames.
///
/// # Errors
/// No file can be probed, because ffprobe is missing or the check was cancelled.
pub(super) fn probe(programs: &Programs, path: &Utf8Path) -> Result<Probed, Failure> {
    let examined = programs.examine(path).and_then(|source| programs.check_frames(&source).map(|()| source));
    match examined {
        Ok(source) => Ok(Probed { found: ProbeResult::Video(facts(&source.probe, &source.times())), cacheable: true }),
        Err(error) if matches!(error.failure.code, ErrorCode::ProgramMissing | ErrorCode::Cancelled) => {
            Err(error.failure)
        }
        Err(error) => {
            let cacheable = error.failure.code == ErrorCode::Malformed;
            Ok(Probed { found: ProbeResult::Excluded(reason(path, error)), cacheable })
        }
    }
}

fn facts(probe: &video::Probe, times: &[f64]) -> Facts {
    let frames = times.len();
    let span_s = times.last().zip(times.first()).map_or(0.0, |(last, first)| last - first);
    let has_times = span_s > 0.0 && !probe.is_frames();
    let measured = if has_times { (frames - 1) as f64 / span_s } else { probe.fps };
    // If the rates agree, use the stated rate, which is exact, for example 23.976.
    let fps = if (measured - probe.fps).abs() < 0.002 * probe.fps { probe.fps } else { measured };
    Facts {
        width: probe.width,
        height: probe.height,
        fps,
        duration_s: if fps > 0.0 { frames as f64 / fps } else { probe.duration_s },
        frames,
        codec: probe.codec.clone(),
        hdr: probe.hdr.is_some(),
        variable_rate: is_variable(times),
        unusual: Unusual::of(probe),
        picture: probe.is_picture(),
        frame_folder: probe.is_frames(),
    }
}

fn reason(path: &Utf8Path, ClipError { fault, failure }: ClipError) -> ExclusionReason {
    match fault {
        ClipFault::NoPicture => ExclusionReason::AudioOnly,
        ClipFault::NotAVideo => ExclusionReason::NotAVideo { what: failure.why },
        ClipFault::Unsupported => ExclusionReason::Unsupported { why: failure.why },
        ClipFault::CutOff if is_begun(path) => ExclusionReason::Truncated { why: short(path, &failure.why) },
        ClipFault::None if failure.code == ErrorCode::NotFound => ExclusionReason::VideoMissing,
        ClipFault::CutOff | ClipFault::Damaged | ClipFault::None => {
            ExclusionReason::Unreadable { why: short(path, &failure.why) }
        }
    }
}

/// Returns whether a file begins like a video. ffprobe treats any file named `.mp4` as a video, text included.
fn is_begun(path: &Utf8Path) -> bool {
    let mut start = [0; 12];
    let read = open_regular(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && (&start[4..8] == b"ftyp" || !start.is_ascii())
}

/// Removes from a message the path, which the table of clips shows in another column, and the names of ffprobe's
/// components.
fn short(path: &Utf8Path, why: &str) -> String {
    let why = why.strip_prefix("ffprobe cannot read it: ").or_else(|| why.strip_prefix("ffprobe: ")).unwrap_or(why);
    let mut why = why.replace(&format!("file:{path}: "), "").replace(path.as_str(), "it");
    // `[mov,mp4,m4a @ 0x55d0c8] `: a component of ffprobe and its address in memory.
    while let Some(start) = why.find('[')
        && let Some(end) = why[start..].find("] ")
        && why[start..start + end].contains(" @ 0x")
    {
        why.replace_range(start..start + end + 2, "");
    }
    why
}

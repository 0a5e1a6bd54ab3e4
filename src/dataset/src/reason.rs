//! The reasons why a clip cannot be used.

use recipe::Misfit;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The reason why a clip is excluded. Its name on disk (`kind`) is in kebab case and never changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ExclusionReason {
    /// The video does not exist.
    VideoMissing,
    /// The path of the video leaves the folder of the data set.
    OutsideFolder,
    /// The name of the file is not UTF-8.
    NameNotUtf8,
    /// The file has no bytes.
    VideoEmpty,
    /// The file is not a video: a picture or text.
    NotAVideo {
        /// The detected type of the file.
        what: String,
    },
    /// The file has sound and no picture.
    AudioOnly,
    /// The video is intact, but has a property that is not supported.
    Unsupported {
        /// The property.
        why: String,
    },
    /// The video cannot be read, or is damaged.
    Unreadable {
        /// The message of ffprobe or of the operating system.
        why: String,
    },
    /// The file ends before the video does.
    Truncated {
        /// The evidence.
        why: String,
    },
    /// The video has a single frame.
    OneFrame,
    /// The video has a high dynamic range, which this ffmpeg cannot convert.
    HighDynamicRange,
    /// The video has too few frames, or is too short.
    TooShort {
        /// Frames that can be chosen.
        frames: usize,
        /// Frames that are needed.
        needed: usize,
        /// Seconds from the first to the last frame.
        span_s: f64,
        /// Seconds that are needed, if the frames are chosen at a frame rate.
        needed_s: Option<f64>,
    },
    /// No bucket of the recipe takes the clip.
    NoBucket {
        /// The reason.
        misfit: Misfit,
        /// Frames that can be chosen.
        frames: usize,
        /// The height of the video in pixels.
        height: usize,
        /// The width of the video in pixels.
        width: usize,
    },
    /// There is no caption.
    CaptionMissing,
    /// The caption is empty.
    CaptionEmpty,
    /// The caption is not UTF-8.
    CaptionNotUtf8 {
        /// The line, the byte and the probable encoding; empty in manifests of earlier versions.
        #[serde(default)]
        why: String,
    },
    /// The file of the caption cannot be read as text.
    CaptionUnreadable {
        /// The fault.
        why: String,
    },
    /// The caption has too many characters.
    CaptionTooLong {
        /// Characters.
        characters: usize,
        /// The limit.
        most: usize,
    },
    /// The same video with the same caption is listed earlier.
    ListedTwice {
        /// The clip that is kept.
        first: String,
    },
    /// Another file has the same bytes, and the same caption.
    DoubledFile {
        /// The clip that is kept.
        first: String,
    },
    /// A reason that a newer version of vidtui wrote.
    #[serde(other)]
    Other,
}

impl ExclusionReason {
    /// Returns the title of this kind of reason, for lists of clips.
    pub fn title(&self) -> &'static str {
        match self {
            Self::VideoMissing => "video missing",
            Self::OutsideFolder => "outside the folder",
            Self::NameNotUtf8 => "name not UTF-8",
            Self::VideoEmpty => "empty file",
            Self::NotAVideo { .. } => "not a video",
            Self::AudioOnly => "audio only",
            Self::Unsupported { .. } => "unsupported video",
            Self::Unreadable { .. } => "unreadable video",
            Self::Truncated { .. } => "truncated video",
            Self::OneFrame => "one frame",
            Self::HighDynamicRange => "HDR video",
            Self::TooShort { .. } => "too short",
            Self::NoBucket { misfit: Misfit::TooShort, .. } => "shorter than all buckets",
            Self::NoBucket { misfit: Misfit::TooSmall, .. } => "smaller than all buckets",
            Self::NoBucket { misfit: Misfit::NotDrawn, .. } => "no bucket drawn",
            Self::CaptionMissing => "no caption",
            Self::CaptionEmpty => "empty caption",
            Self::CaptionNotUtf8 { .. } => "caption not UTF-8",
            Self::CaptionUnreadable { .. } => "unreadable caption",
            Self::CaptionTooLong { .. } => "caption too long",
            Self::ListedTwice { .. } => "listed twice",
            Self::DoubledFile { .. } => "doubled file",
            Self::Other => "other reason",
        }
    }
}

/// Shows the details, with the real values; shows nothing if the title is sufficient.
impl fmt::Display for ExclusionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAVideo { what: why }
            | Self::Unsupported { why }
            | Self::Unreadable { why }
            | Self::Truncated { why }
            | Self::CaptionNotUtf8 { why }
            | Self::CaptionUnreadable { why } => write!(f, "{why}"),
            Self::TooShort { frames, needed, span_s, needed_s } => {
                write!(f, "{frames} of {needed} frames")?;
                needed_s.map_or(Ok(()), |needed_s| write!(f, ", {span_s:.2} of {needed_s:.2} s"))
            }
            Self::NoBucket { misfit: Misfit::TooShort, frames, .. } => {
                write!(f, "{}", units::counted(*frames, "frame"))
            }
            Self::NoBucket { height, width, .. } => write!(f, "{width} × {height} pixels"),
            Self::CaptionTooLong { characters, most } => write!(f, "{characters} characters, at most {most}"),
            Self::ListedTwice { first } | Self::DoubledFile { first } => write!(f, "same as {first}"),
            Self::HighDynamicRange => f.write_str("this ffmpeg lacks the filters zscale and tonemap"),
            Self::VideoMissing
            | Self::OutsideFolder
            | Self::NameNotUtf8
            | Self::VideoEmpty
            | Self::AudioOnly
            | Self::OneFrame
            | Self::CaptionMissing
            | Self::CaptionEmpty
            | Self::Other => Ok(()),
        }
    }
}

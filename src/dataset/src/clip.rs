//! One clip of a manifest.

use crate::{ExclusionReason, Stamp};
use camino::Utf8PathBuf;
use recipe::Bucket;
use serde::{Deserialize, Serialize};
use video::{FrameChoice, Probe};

/// A video with its caption. Measured fields are zero or empty if the video could not be read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Clip {
    /// The id, unique in its manifest: the path of the video below the folder of the data set. Further clips of the same video, with
    /// other captions, have `#2`, `#3`… appended.
    pub id: String,
    /// The absolute path of the video, or of the folder with its frames. In the manifest's file, a path below
    /// [`crate::ManifestHeader::root`] is written relative to this root.
    pub path: Utf8PathBuf,
    /// The caption, without white space at its ends. If each segment of the video has its own caption: all captions,
    /// one per line.
    pub caption: String,
    /// The captions of the video's segments, for models with several segments; empty if one caption describes the whole
    /// video.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<String>,
    /// Where the caption was read, for people: `clips/a.txt`, `metadata.csv line 17`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub origin: String,
    /// The hash of the bytes of the video: 128-bit XXH3 in hexadecimal digits. That of a folder of frames is the hash of the hashes of its
    /// pictures, in their order.
    pub content: String,
    /// The size and modification time of the file when it was checked.
    #[serde(flatten)]
    pub stamp: Stamp,
    /// Pixels, after rotation.
    pub width: usize,
    /// Pixels, after rotation.
    pub height: usize,
    /// Mean frames per second. That of a folder of frames is the rate at which the check took frames, or 0 without a rate.
    pub fps: f64,
    /// Seconds; 0 for a picture, or a folder of frames without a rate.
    pub duration_s: f64,
    /// The number of frames.
    pub frames: usize,
    /// Name of the codec, as ffprobe prints it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub codec: String,
    /// The clip is a folder of pictures, one per frame.
    #[serde(skip_serializing_if = "is_false")]
    pub frame_folder: bool,
    /// The video has a high dynamic range (PQ or HLG).
    #[serde(skip_serializing_if = "is_false")]
    pub hdr: bool,
    /// The time between frames varies.
    #[serde(skip_serializing_if = "is_false")]
    pub variable_rate: bool,
    /// Interlacing, rotation and other unusual properties.
    #[serde(flatten)]
    pub unusual: Unusual,
    /// The size that its latent is encoded at, if the recipe has buckets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket: Option<Bucket>,
    /// The number of tokens of the caption (of the longest one with several segments); `None` if no tokenizer was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
    /// Why the clip cannot be used. `None` for a usable clip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded: Option<ExclusionReason>,
}

/// Properties in which a video differs from most videos. A field with the usual value is omitted on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unusual {
    /// The frames consist of two fields.
    #[serde(skip_serializing_if = "is_false")]
    pub interlaced: bool,
    /// The clockwise rotation in degrees that shows the picture upright: 90, 180 or 270. `None`: upright as stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation: Option<u32>,
    /// Width to height of a stored pixel. `None`: square.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_aspect: Option<[u32; 2]>,
    /// The start time of the stream in seconds. `None`: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_s: Option<f64>,
    /// The number of video streams without cover art. `None`: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub video_streams: Option<usize>,
}

impl Unusual {
    /// Selects the unusual properties from a probe.
    pub(crate) fn of(probe: &Probe) -> Self {
        let [across, down] = probe.sample_aspect;
        Self {
            interlaced: probe.interlaced,
            rotation: (probe.rotation != 0).then_some(probe.rotation),
            sample_aspect: (across != down).then_some([across, down]),
            start_s: (probe.start_s != 0.0).then_some(probe.start_s),
            video_streams: (probe.video_streams > 1).then_some(probe.video_streams),
        }
    }
}

impl Clip {
    /// Returns whether the clip can be used.
    pub fn is_usable(&self) -> bool {
        self.excluded.is_none()
    }

    /// Returns how frames are taken from this clip. The frames of a folder have the rate at which frames are taken, so they are taken by
    /// their numbers.
    pub(crate) fn choice(&self, choice: &FrameChoice) -> FrameChoice {
        if self.frame_folder { choice.by_number() } else { choice.clone() }
    }

    /// Returns the captions, one per segment of the video.
    pub fn captions(&self) -> impl Iterator<Item = &str> {
        let whole = self.segments.is_empty().then_some(self.caption.as_str());
        whole.into_iter().chain(self.segments.iter().map(String::as_str))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_false(value: &bool) -> bool {
    !*value
}

//! Reads the properties that decide how a file is decoded, with ffprobe.

use camino::Utf8Path;
use failure::Failure;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::child::{self, Run};
use crate::colour::{Colour, Hdr, Matrix};
use crate::failures::{self, ClipError, ClipFault, Complaints, about, check_file, damaged, not_run, unusable};
use crate::frame_folder::FRAMES;
use crate::input;
use crate::pictures::{PICTURE, too_large};
use crate::programs::Programs;

/// The maximum number of bytes of JSON output. 64 MiB hold about a million packets.
const MAX_JSON: usize = 64 << 20;

/// The properties of a file and of the video stream that is used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The container: `mov,mp4,m4a,3gp,3g2,mj2`, `matroska,webm`…
    pub container: String,
    /// The codec: `h264`, `hevc`, `vp9`…
    pub codec: String,
    /// The number of the stream in the file: the default video stream, else the first. Cover art does not count.
    pub stream: usize,
    /// Video streams of the file without cover art.
    pub video_streams: usize,
    /// Width in square pixels, after rotation.
    pub width: usize,
    /// Height in square pixels, after rotation.
    pub height: usize,
    /// Width as stored, before rotation.
    pub stored_width: usize,
    /// Height as stored, before rotation.
    pub stored_height: usize,
    /// The clockwise rotation in degrees that shows the picture upright: 0, 90, 180 or 270.
    pub rotation: u32,
    /// Width to height of a stored pixel.
    pub sample_aspect: [u32; 2],
    /// Average frames per second; 0 if unknown, as for a folder of frames.
    pub fps: f64,
    /// The number of frames that the container states, if it does. [`crate::frame_times`] counts the frames.
    pub frames: Option<u64>,
    /// The duration in seconds; 0 if unknown.
    pub duration_s: f64,
    /// The time of the first frame in seconds, as the container states it.
    pub start_s: f64,
    /// The unit of time stamps in seconds: numerator and denominator.
    pub time_base: [u64; 2],
    /// The pixel format: `yuv420p`, `yuv420p10le`…
    pub pixel_format: String,
    /// Bits of a colour component.
    pub bit_depth: u32,
    /// The colour tags.
    pub colour: Colour,
    /// The matrix that decoding uses.
    pub matrix: Matrix,
    /// Whether decoding uses the full range of values.
    pub full_range: bool,
    /// The transfer function of high dynamic range; `None` for SDR.
    pub hdr: Option<Hdr>,
    /// Whether the container or the codec states that frames consist of two fields.
    pub interlaced: bool,
    /// The size of the file.
    pub bytes: u64,
    /// The first errors that ffprobe logged about the file. A file with errors is suspect.
    pub errors: Vec<String>,
}

impl Probe {
    /// Returns whether the file is a picture: one frame at time 0.
    pub fn is_picture(&self) -> bool {
        self.container == PICTURE
    }

    /// Returns whether the clip is a folder of pictures, one per frame.
    pub fn is_frames(&self) -> bool {
        self.container == FRAMES
    }

    /// Returns the seconds of a time stamp.
    pub(crate) fn seconds(&self, pts: i64) -> f64 {
        let [num, den] = self.time_base;
        pts as f64 * num as f64 / den as f64
    }

    /// Returns an error if the file is suspect.
    pub(crate) fn check_not_suspect(&self, path: &Utf8Path) -> Result<(), ClipError> {
        if self.errors.is_empty() { Ok(()) } else { Err(damaged(path, format!("ffprobe: {}", self.errors.join("; ")))) }
    }
}

/// Probes a file with the ffprobe on `PATH`; see [`Programs::probe`].
///
/// # Errors
/// As [`Programs::probe`].
pub fn probe(path: &Utf8Path) -> Result<Probe, Failure> {
    Programs::default().probe(path)
}

impl Programs {
    /// Probes a file with one ffprobe process, which reads the header and the first frames.
    ///
    /// # Errors
    /// `NotFound` and other codes of the file system; `Malformed`, if ffprobe cannot read the file; `InvalidDataset`, if the file has no
    /// video stream or this crate does not support the stream; `NoAnswer`; `ProgramMissing`.
    pub fn probe(&self, path: &Utf8Path) -> Result<Probe, Failure> {
        let asked = Asked::run(self, path, &["-select_streams", "v", "-show_streams", "-show_format"])?;
        Ok(read(path, asked.bytes, &asked.json, asked.complaints)?)
    }
}

/// The output of a successful ffprobe.
pub(crate) struct Asked {
    /// Size of the file.
    pub bytes: u64,
    pub json: Value,
    pub complaints: Complaints,
}

impl Asked {
    /// Requests JSON about a file from ffprobe.
    pub fn run(programs: &Programs, path: &Utf8Path, what: &[&str]) -> Result<Self, ClipError> {
        let bytes = check_file(path)?;
        let mut command = programs.ffprobe_command();
        command.args(what).args(["-of", "json=compact=1"]);
        input::add(&mut command, path);
        let run = Run { limit: programs.silent_limit, cancel: &programs.cancel, max_bytes: MAX_JSON, capacity: 0 };
        let mut complaints = Complaints::default();
        let done = child::run(command, &run, None, &mut |line| complaints.add(line))
            .map_err(|stop| about(path, failures::stopped(&programs.ffprobe, stop)))?;
        if let Some(failure) = not_run(path, &programs.ffprobe, done.status, &complaints) {
            return Err(failure.into());
        }
        if !done.status.success() {
            if let Some(refused) = input::refused(path, &complaints.lines) {
                return Err(refused);
            }
            return Err(damaged(path, format!("ffprobe cannot read it: {}", complaints.shown())));
        }
        let json = serde_json::from_slice(&done.bytes)
            .map_err(|error| damaged(path, format!("ffprobe returned no JSON: {error}")))?;
        Ok(Self { bytes, json, complaints })
    }
}

/// Parses the output of ffprobe.
pub(crate) fn read(path: &Utf8Path, bytes: u64, json: &Value, complaints: Complaints) -> Result<Probe, ClipError> {
    let container = json["format"]["format_name"].as_str().unwrap_or_default();
    let empty = Vec::new();
    let streams = json["streams"].as_array().unwrap_or(&empty);
    let is_picture = |stream: &Value| stream["disposition"]["attached_pic"] == 1;
    let videos: Vec<&Value> = streams.iter().filter(|s| s["codec_type"] == "video" && !is_picture(s)).collect();
    let chosen = videos.iter().find(|s| s["disposition"]["default"] == 1).or(videos.first());
    let Some(&stream) = chosen else {
        let why = match streams.len() {
            0 => "it has no video stream",
            _ => "its only picture is cover art",
        };
        return Err(unusable(path, ClipFault::NoPicture, why, "remove it from the data set"));
    };
    // ffmpeg reads a PNG or a JPEG as a video of one frame.
    if container == "image2" || container.ends_with("_pipe") {
        return Err(unusable(
            path,
            ClipFault::NotAVideo,
            "it is a picture, not a video",
            "remove it from the data set",
        ));
    }
    let text = |key: &str| stream[key].as_str().unwrap_or_default();
    let size = |key: &str| stream[key].as_u64().filter(|size| *size > 0).map(|size| size as usize);
    let (Some(stored_width), Some(stored_height)) = (size("width"), size("height")) else {
        return Err(damaged(path, format!("the size of its frames is unknown. {}", complaints.shown())));
    };
    if let Some(why) = too_large(stored_width as u64, stored_height as u64) {
        return Err(unusable(path, ClipFault::Unsupported, why, "scale it down and re-encode it"));
    }
    let pixel_format = text("pix_fmt").to_owned();
    if pixel_format.is_empty() {
        if complaints.count > 0 {
            return Err(damaged(path, format!("ffprobe finds no picture in it: {}", complaints.shown())));
        }
        let why = format!("this ffprobe cannot decode its codec {}", text("codec_name"));
        return Err(unusable(
            path,
            ClipFault::Unsupported,
            why,
            "install an ffmpeg with that decoder, or re-encode the clip",
        ));
    }
    let rotation = rotation(stream).map_err(|degrees| {
        unusable(
            path,
            ClipFault::Unsupported,
            format!("it is rotated by {degrees}°"),
            "turn it upright and re-encode it",
        )
    })?;
    let sample_aspect = ratio(text("sample_aspect_ratio"), ':').filter(|r| r[0] > 0 && r[1] > 0).unwrap_or([1, 1]);
    let colour = colour(stream);
    let matrix = colour.matrix(&pixel_format, stored_height).map_err(|tag| {
        let fix = "re-encode it, for example with `ffmpeg -i IN -vf zscale=matrix=709 OUT`";
        unusable(path, ClipFault::Unsupported, format!("its colour matrix {tag} is not supported"), fix)
    })?;
    if dolby_vision_profile(stream) == Some(5) {
        let fix = "convert it to HDR10 or SDR with another program";
        return Err(unusable(path, ClipFault::Unsupported, "its colours are those of Dolby Vision profile 5", fix));
    }
    let (width, height) = shown_size(stored_width, stored_height, rotation, sample_aspect);
    if let Some(why) = too_large(width as u64, height as u64) {
        return Err(unusable(path, ClipFault::Unsupported, why, "correct the shape of its pixels, or re-encode it"));
    }
    let number = |value: &Value| value.as_str().and_then(|text| text.parse::<f64>().ok()).filter(|n| n.is_finite());
    let fps = [text("avg_frame_rate"), text("r_frame_rate")].into_iter().filter_map(|text| ratio(text, '/'));
    let fps = fps.filter(|r| r[0] > 0 && r[1] > 0).map(|r| f64::from(r[0]) / f64::from(r[1])).next();
    let time_base = text("time_base").split_once('/').and_then(|(n, d)| Some([n.parse().ok()?, d.parse().ok()?]));
    let Some(time_base) = time_base.filter(|[num, den]: &[u64; 2]| *num > 0 && *den > 0) else {
        return Err(damaged(path, format!("its time base is {:?}", text("time_base"))));
    };
    Ok(Probe {
        container: container.to_owned(),
        codec: text("codec_name").to_owned(),
        stream: stream["index"].as_u64().unwrap_or_default() as usize,
        video_streams: videos.len(),
        width,
        height,
        stored_width,
        stored_height,
        rotation,
        sample_aspect,
        fps: fps.unwrap_or_default(),
        frames: stream["nb_frames"].as_str().and_then(|n| n.parse().ok()),
        duration_s: number(&stream["duration"]).or_else(|| number(&json["format"]["duration"])).unwrap_or_default(),
        start_s: number(&stream["start_time"]).unwrap_or_default(),
        time_base,
        bit_depth: bit_depth(stream, &pixel_format),
        hdr: colour.hdr(),
        full_range: colour.is_full_range(&pixel_format),
        matrix,
        colour,
        pixel_format,
        interlaced: !matches!(text("field_order"), "" | "progressive" | "unknown"),
        bytes,
        errors: complaints.lines,
    })
}

/// Returns the size after rotation, in square pixels of the stored height.
fn shown_size(width: usize, height: usize, rotation: u32, aspect: [u32; 2]) -> (usize, usize) {
    let width = (width as f64 * f64::from(aspect[0]) / f64::from(aspect[1])).round().max(1.0) as usize;
    if rotation % 180 == 90 { (height, width) } else { (width, height) }
}

/// Returns the clockwise rotation from the display matrix, or from the tag that older versions of ffprobe report.
fn rotation(stream: &Value) -> Result<u32, f64> {
    let empty = Vec::new();
    let data = stream["side_data_list"].as_array().unwrap_or(&empty);
    let by_matrix = data.iter().find_map(|data| data["rotation"].as_f64()).map(|counter| -counter);
    let by_tag = || stream["tags"]["rotate"].as_str().and_then(|tag| tag.parse::<f64>().ok());
    let degrees = by_matrix.or_else(by_tag).unwrap_or(0.0).rem_euclid(360.0);
    let quarter = (degrees / 90.0).round();
    if (degrees - quarter * 90.0).abs() < 1.0 { Ok(quarter as u32 % 4 * 90) } else { Err(degrees) }
}

fn dolby_vision_profile(stream: &Value) -> Option<u64> {
    stream["side_data_list"].as_array()?.iter().find_map(|data| data["dv_profile"].as_u64())
}

fn colour(stream: &Value) -> Colour {
    let tag = |key: &str| {
        let known = |tag: &&str| !matches!(*tag, "" | "unknown" | "unspecified" | "reserved");
        stream[key].as_str().filter(known).map(str::to_owned)
    };
    Colour {
        space: tag("color_space"),
        primaries: tag("color_primaries"),
        transfer: tag("color_transfer"),
        range: tag("color_range"),
    }
}

/// Returns the bits per component, from the codec or from the name of the pixel format (`yuv420p10le`, `rgb48be`).
fn bit_depth(stream: &Value, pixel_format: &str) -> u32 {
    const ENDS: [(&str, u32); 9] =
        [("16", 16), ("48", 16), ("64", 16), ("14", 14), ("12", 12), ("10", 10), ("9", 9), ("f32", 32), ("f16", 16)];
    let stated = stream["bits_per_raw_sample"].as_str().and_then(|bits| bits.parse().ok());
    // Formats of more than a byte state their byte order; `nv12` has 8 bits.
    let name = pixel_format.strip_suffix("le").or_else(|| pixel_format.strip_suffix("be"));
    let by_name =
        || ENDS.iter().find(|(end, _)| name.is_some_and(|name| name.ends_with(end))).map_or(8, |(_, bits)| *bits);
    stated.filter(|bits| *bits > 0).unwrap_or_else(by_name)
}

fn ratio(text: &str, separator: char) -> Option<[u32; 2]> {
    let (a, b) = text.split_once(separator)?;
    Some([a.parse().ok()?, b.parse().ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stream(more: &Value) -> Value {
        let mut stream = json!({
            "index": 0, "codec_type": "video", "codec_name": "h264", "width": 640, "height": 480, "pix_fmt": "yuv420p",
            "time_base": "1/12800", "avg_frame_rate": "25/1",
        });
        for (key, value) in more.as_object().unwrap() {
            stream[key] = value.clone();
        }
        stream
    }

    fn probed(streams: &[Value]) -> Result<Probe, Failure> {
        let json = json!({ "streams": streams, "format": { "format_name": "mov,mp4", "duration": "2.5" } });
        Ok(read(Utf8Path::new("a.mp4"), 1, &json, Complaints::default())?)
    }

    #[test]
    fn pixels_are_made_square_and_then_turned() {
        let wide = json!({ "sample_aspect_ratio": "4:3", "side_data_list": [{ "rotation": -90 }] });
        let probe = probed(&[stream(&wide)]).unwrap();
        assert_eq!((probe.width, probe.height, probe.rotation), (480, 853, 90));
        let old = probed(&[stream(&json!({ "tags": { "rotate": "270" } }))]).unwrap();
        assert_eq!((old.width, old.height, old.rotation), (480, 640, 270));
        assert!(probed(&[stream(&json!({ "side_data_list": [{ "rotation": 30 }] }))]).is_err());
    }

    #[test]
    fn frames_of_too_many_pixels_are_refused_as_stored_and_as_shown() {
        for large in [
            json!({ "width": 30_000, "height": 30_000 }),
            json!({ "width": u64::MAX, "height": u64::MAX }),
            json!({ "sample_aspect_ratio": "4000000000:1" }),
        ] {
            let failure = probed(&[stream(&large)]).unwrap_err();
            assert_eq!(failure.code, failure::ErrorCode::InvalidDataset);
            assert!(failure.why.contains("megapixels"), "{failure}");
        }
    }

    #[test]
    fn the_default_stream_is_taken_and_cover_art_is_not() {
        let cover = stream(&json!({ "disposition": { "attached_pic": 1, "default": 1 } }));
        let other = stream(&json!({ "index": 1, "disposition": { "default": 0 } }));
        let default = stream(&json!({ "index": 2, "disposition": { "default": 1 } }));
        let probe = probed(&[cover.clone(), other.clone(), default]).unwrap();
        assert_eq!((probe.stream, probe.video_streams), (2, 2));
        assert_eq!(probed(&[cover.clone(), other]).unwrap().stream, 1);
        assert_eq!(probed(&[cover]).unwrap_err().code, failure::ErrorCode::InvalidDataset);
    }

    #[test]
    fn the_bit_depth_is_that_of_the_codec_or_the_pixel_format() {
        let depth = |more: Value| probed(&[stream(&more)]).unwrap().bit_depth;
        assert_eq!(depth(json!({ "pix_fmt": "yuv420p10le" })), 10);
        assert_eq!(depth(json!({ "pix_fmt": "p010le" })), 10);
        assert_eq!(depth(json!({ "pix_fmt": "yuv420p" })), 8);
        assert_eq!(depth(json!({ "pix_fmt": "nv12" })), 8);
        assert_eq!(depth(json!({ "pix_fmt": "yuv420p12le", "bits_per_raw_sample": "12" })), 12);
    }

    #[test]
    fn colours_that_are_not_supported_are_refused() {
        assert!(probed(&[stream(&json!({ "color_space": "ictcp" }))]).is_err());
        assert!(probed(&[stream(&json!({ "side_data_list": [{ "dv_profile": 5 }] }))]).is_err());
    }
}

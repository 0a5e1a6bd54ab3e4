//! Measures how much the frames of a video differ from each other, and writes a range of its frames as a video of its own.

use std::ops::{ControlFlow, Range};
use std::process::Command;

use camino::Utf8Path;
use failure::{ErrorCode, Failure};
use recipe::CropMode;

use crate::child::{self, Run};
use crate::failures::{self, Complaints, about, damaged};
use crate::geometry::Picture;
use crate::input;
use crate::programs::Programs;
use crate::source::{APART, VideoFile, frame_pts, is_variable};
use crate::write::{ENCODERS, Part};

/// The width that frames are scaled to before they are compared. Noise of single pixels vanishes, and less work remains.
const WIDTH: usize = 320;
/// Luma below this is black. Limited range has black at 16.
const BLACK: u32 = 24;
/// The longest side of a sampled frame.
const SAMPLE_SIDE: usize = 1280;
/// The codecs whose packets an mp4 holds.
const IN_MP4: [&str; 5] = ["h264", "hevc", "av1", "vp9", "mpeg4"];
/// The options of the first of the [`ENCODERS`] for a clip: fast, and of a quality that survives the encoding of a training.
const X264_OPTIONS: &[&str] = &["-preset", "veryfast", "-crf", "12"];
/// The maximum number of bytes of the reports of progress of one clip, which suffices for days.
const MAX_REPORTS: usize = 64 << 20;
/// The largest difference of a frame's time in a written clip, in seconds: half a unit of the coarsest usual time base, that of Matroska.
const TIME_SLACK_S: f64 = 6e-4;

/// What the filters of ffmpeg measured in a frame.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FrameChange {
    /// How much more the frame differs from the frame before than the two frames before or after it do, 0 to 100. It is high at a cut, and
    /// low in steady motion.
    ///
    /// The score of the filter `scdet` considers only the frame before: it misses a cut from strong motion to a still picture, and a cut to
    /// strong motion scores twice.
    pub score: f64,
    /// The mean difference of luma to the frame before in percent.
    pub difference: f64,
    /// The share of black pixels in percent.
    pub black: f64,
    /// The score of ffmpeg's filter `vmafmotion`: the mean difference of blurred luma, 0 to 255, to the frame before, at full size. 0 in
    /// [`Programs::changes`].
    pub motion: f64,
}

/// Frames as luma, 0 to 255.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GreyFrames {
    /// Pixels.
    pub width: usize,
    /// Pixels.
    pub height: usize,
    /// The pixels `[H, W]` of each frame.
    pub frames: Vec<Vec<u8>>,
}

/// How a clip was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cutting {
    /// The packets of the source were copied.
    Copied,
    /// The frames were decoded and encoded.
    Encoded,
}

impl Programs {
    /// Decodes a whole video and measures each frame. `on_frame` receives the number of measured frames, and may end the work.
    ///
    /// # Errors
    /// `Malformed`, if ffmpeg logs an error about the file or does not decode every frame; `Cancelled`; otherwise as [`Programs::open`].
    pub fn changes(
        &self,
        source: &VideoFile,
        on_frame: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Vec<FrameChange>, Failure> {
        let [num, den] = source.probe.time_base;
        let filters = format!(
            "settb={num}/{den},scale={WIDTH}:-2:flags=fast_bilinear,scdet=threshold=100,blackframe=amount=0:threshold={BLACK},\
             metadata=mode=print:file='pipe\\:2':direct=1"
        );
        let mut measured = Measured::of(source);
        self.walk(&source.path, &source.probe, &filters, &mut |line| {
            let count = measured.count;
            let is_expected = measured.read(source, line);
            if measured.count > count && measured.count % 64 == 1 && on_frame(measured.count).is_break() {
                self.cancel.cancel();
            }
            is_expected
        })?;
        measured.done(source)
    }

    /// Decodes a whole video once: measures each frame, with its motion, and returns the luma of some frames. Pictures and folders of frames
    /// are not measured: their changes are empty.
    ///
    /// * `samples` — the numbers of the frames, ascending.
    ///
    /// # Errors
    /// As [`Programs::changes`].
    pub fn measure(&self, source: &VideoFile, samples: &[usize]) -> Result<(Vec<FrameChange>, GreyFrames), Failure> {
        let (width, height) = within(source.probe.width, source.probe.height, SAMPLE_SIDE);
        if source.probe.is_picture() || source.probe.is_frames() {
            let times: Vec<f64> = samples.iter().map(|&frame| source.probe.seconds(source.pts[frame])).collect();
            let frames =
                self.decode(source, &times, &Picture { crop: CropMode::None, ..Picture::new(width, height) })?;
            let frames = (0..frames.count).map(|at| luma(frames.frame(at))).collect();
            return Ok((Vec::new(), GreyFrames { width, height, frames }));
        }
        let [num, den] = source.probe.time_base;
        let select: Vec<String> = samples.iter().map(|&frame| format!("eq(pts,{})", source.pts[frame])).collect();
        let graph = format!(
            "[0:{}]settb={num}/{den},format=yuv420p,split[a][b];\
             [a]vmafmotion,scale={WIDTH}:-2:flags=fast_bilinear,scdet=threshold=100,blackframe=amount=0:threshold={BLACK},\
             metadata=mode=print:file='pipe\\:2':direct=1,{APART}[x];\
             [b]select='{}',scale={width}:{height}:flags=area:out_range=pc,format=gray,{APART}[y]",
            source.probe.stream,
            select.join("+")
        );
        let mut command = self.decode_command(source, None);
        let passthrough = self.passthrough()?;
        command.args(["-filter_complex", &graph, "-map", "[x]"]).args(passthrough).args(["-f", "null", "-"]);
        command.args(["-map", "[y]"]).args(passthrough).args(["-f", "rawvideo", "pipe:1"]);
        let bytes = width * height * samples.len();
        let run = Run { limit: self.silent_limit, cancel: &self.cancel, max_bytes: bytes, capacity: bytes };
        let (mut measured, mut complaints) = (Measured::of(source), Complaints::default());
        let done = child::run(command, &run, None, &mut |line| {
            if !measured.read(source, line) {
                complaints.add(line);
            }
        })
        .map_err(|stop| about(&source.path, failures::stopped(&self.ffmpeg, stop)))?;
        self.ended_well(&source.path, done.status, &complaints)?;
        if done.bytes.len() != bytes {
            let why = format!("ffmpeg wrote {} bytes of pixels instead of {bytes}", done.bytes.len());
            return Err(damaged(&source.path, why).into());
        }
        let frames = done.bytes.chunks_exact(width * height).map(<[u8]>::to_vec).collect();
        Ok((measured.done(source)?, GreyFrames { width, height, frames }))
    }

    /// Writes a range of the frames of a video as an mp4 without sound, first under a temporary name. An existing file is not replaced.
    ///
    /// The packets are copied if the range begins at a keyframe, and ends before one or at the end of the video; otherwise the frames are
    /// encoded as H.264 with a quality without visible loss. The times of all frames of the result are compared with those of the source.
    ///
    /// # Errors
    /// `AlreadyExists`; `InvalidArgument`, if the video has no such frames; `Malformed`, if ffmpeg logs an error about the source;
    /// `DiskFull`, `CommandFailed` and codes of the file system, if the result cannot be written or has other frames.
    pub fn cut(&self, source: &VideoFile, frames: Range<usize>, to: &Utf8Path) -> Result<Cutting, Failure> {
        let failed = |code, why: String, fix: &str| Failure::new(code, format!("cannot write {to}"), why, fix);
        if frames.is_empty() || frames.end > source.pts.len() {
            let why = format!("{} has {} frames, {frames:?} are requested", source.path, source.pts.len());
            return Err(failed(ErrorCode::InvalidArgument, why, "measure the frames of the video again"));
        }
        if to.symlink_metadata().is_ok() {
            return Err(failed(ErrorCode::AlreadyExists, "the file exists".into(), "choose another folder"));
        }
        let part = Part::beside(to);
        let is_key = |frame: usize| source.keys.binary_search(&source.pts[frame]).is_ok();
        let ends_well = frames.end == source.pts.len() || is_key(frames.end);
        let is_whole = is_key(frames.start) && ends_well && IN_MP4.contains(&source.probe.codec.as_str());
        // A packet of an open group of pictures may need the group before it. Only the result shows that.
        let cutting =
            if is_whole && self.copied(source, &frames, &part.0)? { Cutting::Copied } else { Cutting::Encoded };
        if cutting == Cutting::Encoded {
            self.encode_cut(source, &frames, &part.0)?;
            if let Err(why) = self.same_frames(source, &frames, &part.0) {
                let fix = "convert the video to mp4 with `ffmpeg -i IN -c:v libx264 -crf 12 OUT`, then cut it";
                return Err(failed(ErrorCode::CommandFailed, why, fix));
            }
        }
        part.rename(to)?;
        Ok(cutting)
    }

    /// Copies the packets of a range, and returns whether the copy has exactly the frames of the range.
    fn copied(&self, source: &VideoFile, frames: &Range<usize>, part: &Utf8Path) -> Result<bool, Failure> {
        // Absolute: otherwise ffmpeg adds the start of the earliest stream, which may be the sound.
        let start = source.probe.seconds(source.pts[frames.start]);
        // In Matroska, ffmpeg seeks to the keyframe before, drops the packets up to the start, and counts them.
        let before = source.keys.partition_point(|key| *key < source.pts[frames.start]);
        let before = before.checked_sub(1).and_then(|at| source.pts.binary_search(&source.keys[at]).ok());
        let dropped = frames.start - before.unwrap_or(frames.start);
        for packets in [frames.len(), frames.len() + dropped] {
            let mut command = self.ffmpeg_command();
            command.args(["-seek_timestamp", "1", "-ss", &format!("{:.6}", (start * 1e6).ceil() / 1e6)]);
            input::add(&mut command, &source.path);
            // Between two keyframes, the packets in the order of decoding are those in the order of showing. A limit on the time would
            // be one on the time of decoding.
            command.args(["-map", &format!("0:{}", source.probe.stream), "-c", "copy"]);
            command.args(["-frames:v", &packets.to_string()]);
            if self.write_part(command, source, part)?.is_some() {
                // This mp4 cannot hold the stream.
                return Ok(false);
            }
            if self.same_frames(source, frames, part).is_ok() && self.begins_alike(source, frames, part)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether a copy begins with the first frame of the range. At a constant rate, times do not show that.
    fn begins_alike(&self, source: &VideoFile, frames: &Range<usize>, part: &Utf8Path) -> Result<bool, Failure> {
        let Ok(clip) = self.open(part) else { return Ok(false) };
        let picture = Picture { crop: CropMode::None, ..Picture::new(source.probe.width, source.probe.height) };
        let wanted = self.decode(source, &[source.times()[frames.start]], &picture)?;
        let own = self.decode(&clip, &[clip.times()[0]], &picture);
        Ok(own.is_ok_and(|own| own.rgb == wanted.rgb))
    }

    fn encode_cut(&self, source: &VideoFile, frames: &Range<usize>, part: &Utf8Path) -> Result<(), Failure> {
        let [num, den] = source.probe.time_base;
        let first = source.pts[frames.start];
        // A wrong seek is no failure: the video is decoded from its start then.
        let seek = source.seek(frames.start);
        let end = source.pts.get(frames.end).map_or_else(String::new, |end| format!(":end_pts={end}"));
        // H.264 with 4:2:0 needs even sizes.
        let is_odd = !source.probe.width.is_multiple_of(2) || !source.probe.height.is_multiple_of(2);
        let format = if is_odd { ",format=yuv444p" } else { "" };
        let filters = format!("settb={num}/{den},trim=start_pts={first}{end},setpts=PTS-STARTPTS{format}");
        let mut last = None;
        for seek in [seek, None].into_iter().skip(usize::from(seek.is_none())) {
            for (encoder, options) in ENCODERS {
                let mut command = self.decode_command(source, seek);
                command.args(["-map", &format!("0:{}", source.probe.stream), "-vf", &filters]);
                command.args(self.passthrough()?).args(["-enc_time_base", &format!("{num}:{den}")]);
                if num == 1 {
                    command.args(["-video_track_timescale", &den.to_string()]);
                }
                command.args(["-c:v", encoder]).args(if encoder == "libx264" { X264_OPTIONS } else { options });
                let Some(complaints) = self.write_part(command, source, part)? else {
                    if seek.is_some() && self.same_frames(source, frames, part).is_err() {
                        break;
                    }
                    return Ok(());
                };
                let is_unknown = complaints.lines.iter().any(|line| line.contains("Unknown encoder"));
                last = Some(complaints);
                if !is_unknown {
                    break;
                }
            }
        }
        Err(damaged(&source.path, format!("ffmpeg: {}", last.unwrap_or_default().shown())).into())
    }

    /// Runs a command that writes an mp4 without sound. Returns what ffmpeg logged if it failed because of the source.
    fn write_part(
        &self,
        mut command: Command,
        source: &VideoFile,
        part: &Utf8Path,
    ) -> Result<Option<Complaints>, Failure> {
        // A data stream with time codes would be an additional stream.
        command.args(["-map_metadata", "-1", "-map_chapters", "-1", "-write_tmcd", "0", "-fflags", "+bitexact"]);
        // The reports of progress show that ffmpeg works, while it writes nothing else for minutes.
        command.args(["-progress", "pipe:1", "-stats_period", "5"]);
        command.args(["-movflags", "+faststart", "-f", "mp4", "-y"]).arg(format!("file:{part}"));
        let run = Run { limit: self.silent_limit, cancel: &self.cancel, max_bytes: MAX_REPORTS, capacity: 0 };
        let mut complaints = Complaints::default();
        let done = child::run(command, &run, None, &mut |line| complaints.add(line))
            .map_err(|stop| about(&source.path, failures::stopped(&self.ffmpeg, stop)))?;
        if let Some(failure) = failures::not_run(&source.path, &self.ffmpeg, done.status, &complaints) {
            return Err(failure);
        }
        if complaints.lines.iter().any(|line| line.contains("No space left")) {
            let what = format!("cannot write {part}");
            let fix = "free some space on the disk, and run the command again: it continues";
            return Err(Failure::new(ErrorCode::DiskFull, what, format!("ffmpeg: {}", complaints.shown()), fix));
        }
        if done.status.success() && complaints.count == 0 {
            return Ok(None);
        }
        if complaints.count == 0 {
            complaints.add(&done.status.to_string());
        }
        Ok(Some(complaints))
    }

    /// Compares the times of the frames of a written clip with those of the source.
    fn same_frames(&self, source: &VideoFile, frames: &Range<usize>, part: &Utf8Path) -> Result<(), String> {
        let clip = self.open(part).map_err(|failure| format!("{}: {}", failure.what, failure.why))?;
        let (all, times) = (source.times(), clip.times());
        let wanted = &all[frames.clone()];
        if times.len() != wanted.len() {
            return Err(format!("it has {} frames instead of {}", times.len(), wanted.len()));
        }
        let differs =
            |(time, wanted_at): (&f64, &f64)| ((time - times[0]) - (wanted_at - wanted[0])).abs() > TIME_SLACK_S;
        match times.iter().zip(wanted).position(differs) {
            // Frames of a constant rate may be rounded to the time base of the clip.
            Some(at) if is_variable(wanted) || is_variable(&times) => {
                Err(format!("the time of its frame {at} differs"))
            }
            _ if (clip.probe.width, clip.probe.height) != (source.probe.width, source.probe.height) => {
                Err(format!("it has {} × {} pixels", clip.probe.width, clip.probe.height))
            }
            _ => Ok(()),
        }
    }
}

/// What is measured so far.
struct Measured {
    changes: Vec<FrameChange>,
    /// The frame that the last lines are about.
    frame: Option<usize>,
    count: usize,
}

impl Measured {
    fn of(source: &VideoFile) -> Self {
        Self { changes: vec![FrameChange::default(); source.pts.len()], frame: None, count: 0 }
    }

    /// Reads a line of ffmpeg, and returns whether it is about a frame. Any other line is an error of ffmpeg.
    fn read(&mut self, source: &VideoFile, line: &str) -> bool {
        if let Some(pts) = frame_pts(line) {
            self.frame = source.pts.binary_search(&pts).ok();
            self.count += usize::from(self.frame.is_some());
            return true;
        }
        let Some((key, value)) = line.split_once('=').filter(|(key, _)| key.starts_with("lavfi.")) else {
            return false;
        };
        if let Some(change) = self.frame.map(|at| &mut self.changes[at]) {
            let value = value.parse().unwrap_or_default();
            match key {
                "lavfi.scd.mafd" => change.difference = value,
                "lavfi.blackframe.pblack" => change.black = value,
                "lavfi.vmafmotion.score" => change.motion = value,
                _ => {}
            }
        }
        true
    }

    fn done(mut self, source: &VideoFile) -> Result<Vec<FrameChange>, Failure> {
        if self.count == source.pts.len() {
            score(&mut self.changes);
            return Ok(self.changes);
        }
        let why = format!("{} of its {} frames are decoded", self.count, source.pts.len());
        Err(damaged(&source.path, why).into())
    }
}

/// Computes the scores of all frames from their differences.
fn score(changes: &mut [FrameChange]) {
    // The first frame has no frame before it.
    let difference = |frame: usize| changes.get(frame).filter(|_| frame > 0).map(|change| change.difference);
    let largest = |frames: [Option<usize>; 2]| frames.into_iter().flatten().filter_map(difference).reduce(f64::max);
    let score = |frame: usize| {
        let before = largest([frame.checked_sub(1), frame.checked_sub(2)]);
        let after = largest([Some(frame + 1), Some(frame + 2)]);
        let usual = before.into_iter().chain(after).reduce(f64::min).unwrap_or(0.0);
        difference(frame).map_or(0.0, |difference| (difference - usual).max(0.0))
    };
    let scores: Vec<f64> = (0..changes.len()).map(score).collect();
    changes.iter_mut().zip(scores).for_each(|(change, score)| change.score = score);
}

/// Returns a size within a square, with the same ratio. A smaller size stays.
fn within(width: usize, height: usize, side: usize) -> (usize, usize) {
    let larger = width.max(height);
    let fit = |pixels: usize| if larger <= side { pixels } else { (pixels * side / larger).max(1) };
    (fit(width), fit(height))
}

/// Returns the luma of pixels `[…, 3]` by BT.709.
fn luma(rgb: &[u8]) -> Vec<u8> {
    let of = |pixel: &[u8; 3]| {
        let [red, green, blue] = pixel.map(f64::from);
        (0.2126 * red + 0.7152 * green + 0.0722 * blue).round() as u8
    };
    rgb.as_chunks::<3>().0.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(differences: &[f64]) -> Vec<f64> {
        let of = |difference: &f64| FrameChange { difference: *difference, ..FrameChange::default() };
        let mut changes: Vec<FrameChange> = differences.iter().map(of).collect();
        score(&mut changes);
        changes.iter().map(|change| change.score).collect()
    }

    #[test]
    fn a_cut_scores_high_on_one_frame_and_steady_motion_does_not() {
        assert_eq!(scored(&[0.0, 1.0, 1.0, 31.0, 1.0, 1.0]), [0.0, 0.0, 0.0, 30.0, 0.0, 0.0]);
        // From a still picture to strong motion, and back.
        assert_eq!(scored(&[0.0, 0.0, 0.0, 50.0, 40.0, 40.0, 40.0]), [0.0, 0.0, 0.0, 50.0, 0.0, 0.0, 0.0]);
        assert_eq!(scored(&[0.0, 40.0, 40.0, 40.0, 35.0, 0.0, 0.0]), [0.0, 0.0, 0.0, 5.0, 35.0, 0.0, 0.0]);
        // Every second frame of an animation repeats the one before.
        assert_eq!(scored(&[0.0, 0.0, 12.0, 0.0, 12.0, 0.0, 12.0, 0.0, 12.0])[3..7], [0.0; 4]);
        assert_eq!((scored(&[0.0]), scored(&[0.0, 20.0])), (vec![0.0], vec![0.0, 20.0]));
    }

    #[test]
    fn sizes_are_scaled_down_only() {
        assert_eq!(
            (within(1920, 1080, 1280), within(640, 360, 1280), within(1, 5000, 1280)),
            ((1280, 720), (640, 360), (1, 1280))
        );
    }
}

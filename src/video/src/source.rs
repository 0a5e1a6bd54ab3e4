//! Opens a video file for decoding: reads its properties, and lists the time of every frame.

use std::collections::BTreeSet;
use std::process::ExitStatus;

use camino::{Utf8Path, Utf8PathBuf};
use failure::Failure;
use serde_json::Value;

use crate::child::{self, Run};
use crate::failures::{self, ClipError, Complaints, about, damaged, not_run};
use crate::frame_folder;
use crate::input;
use crate::pictures::{is_picture, picture};
use crate::probe::{self, Asked, Probe};
use crate::programs::Programs;

/// The key of the line that ffmpeg writes for each frame.
pub(crate) const FRAME_KEY: &str = "vidtui";

/// The filter that moves the times of frames far apart, after ffmpeg has written their own times.
///
/// A muxer counts time in periods of the average rate, and two frames of a variable rate may fall into the same period.
pub(crate) const APART: &str = "settb=1,setpts=N*1000";

/// A video file, or a folder of frames, with the times of its frames.
#[derive(Debug, Clone, PartialEq)]
pub struct VideoFile {
    /// The path of the file or folder.
    pub path: Utf8PathBuf,
    /// The properties of the file.
    pub probe: Probe,
    /// The time stamps of the frames in units of the time base, ascending.
    pub(crate) pts: Vec<i64>,
    /// The time stamps at which decoding can start, ascending; empty if unknown.
    pub(crate) keys: Vec<i64>,
    /// The pictures of a folder of frames, in order; empty for other files.
    pub(crate) pictures: Vec<Utf8PathBuf>,
}

impl VideoFile {
    /// Returns the presentation time of every frame in seconds, ascending. The first one need not be 0.
    pub fn times(&self) -> Vec<f64> {
        self.pts.iter().map(|&pts| self.probe.seconds(pts)).collect()
    }

    /// Returns the time of the key frame at or before a frame, in seconds, or `None` if decoding from the start is no more work.
    pub(crate) fn seek(&self, frame: usize) -> Option<f64> {
        let before = self.keys.partition_point(|&key| key <= self.pts[frame]);
        (before > 1).then(|| self.probe.seconds(self.keys[before - 1]))
    }

    /// Returns the index of the frame at a time, within half a microsecond or half a unit of the time base.
    pub(crate) fn index_at(&self, time: f64) -> Option<usize> {
        let [num, den] = self.probe.time_base;
        let unit = num as f64 / den as f64;
        let near = (time / unit).round() as i64;
        let slack_s = (unit / 2.0).max(5e-7);
        let first = self.pts.partition_point(|&pts| pts < near);
        let around = first.saturating_sub(1)..(first + 2).min(self.pts.len());
        let away = |&i: &usize| (self.probe.seconds(self.pts[i]) - time).abs();
        around.min_by(|a, b| away(a).total_cmp(&away(b))).filter(|i| away(i) <= slack_s)
    }
}

/// Returns the presentation time of every frame in seconds, with the ffprobe on `PATH`; see [`Programs::open`].
///
/// # Errors
/// As [`Programs::open`].
pub fn frame_times(path: &Utf8Path) -> Result<Vec<f64>, Failure> {
    Programs::default().open(path).map(|source| source.times())
}

/// Returns whether the distances of frames differ by more than rounding: from the median by more than 1.5 ms and a tenth of it.
pub fn is_variable(times: &[f64]) -> bool {
    let mut gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_by(f64::total_cmp);
    let Some(&median) = gaps.get(gaps.len() / 2) else { return false };
    let slack = (median * 0.1).max(1.5e-3);
    gaps[0] < median - slack || gaps[gaps.len() - 1] > median + slack
}

impl Programs {
    /// Probes a file and lists its frames. A file with the extension of a PNG, JPEG or WebP has one frame at time 0. A folder with such
    /// pictures has a frame per picture; see [`VideoFile::at_rate`].
    ///
    /// For other files, one ffprobe process reads the whole file and decodes only the first frames. Files without packet time
    /// stamps are decoded once to list their frames. So are interlaced files, because their packets may be fields.
    ///
    /// # Errors
    /// As [`Programs::probe`]; also `Malformed`, if ffprobe logs an error about the file (for example because it is cut off) or the
    /// file has no frame.
    pub fn open(&self, path: &Utf8Path) -> Result<VideoFile, Failure> {
        Ok(self.examine(path)?)
    }

    /// Opens a file as [`Programs::open`] does, and classifies the fault of a clip that cannot be used.
    ///
    /// # Errors
    /// As [`Programs::open`], with the fault of the clip.
    pub fn examine(&self, path: &Utf8Path) -> Result<VideoFile, ClipError> {
        if path.is_dir() {
            return frame_folder::open(path);
        }
        if is_picture(path) {
            return picture(path);
        }
        let what =
            ["-select_streams", "v", "-show_streams", "-show_format", "-show_entries", "packet=stream_index,pts,flags"];
        let asked = Asked::run(self, path, &what)?;
        let probe = probe::read(path, asked.bytes, &asked.json, asked.complaints)?;
        probe.check_not_suspect(path)?;
        let listed = if probe.interlaced { None } else { packets(path, &asked.json, probe.stream)? };
        let (pts, keys) = match listed {
            Some(listed) => listed,
            None => (self.frames(path, &probe)?, BTreeSet::new()),
        };
        if pts.is_empty() {
            return Err(damaged(path, "it has no frame"));
        }
        let (pts, keys) = (pts.into_iter().collect(), keys.into_iter().collect());
        Ok(VideoFile { path: path.to_owned(), probe, pts, keys, pictures: Vec::new() })
    }

    /// Lists the frames by decoding them. Their time stamps are the same as in [`Programs::decode`].
    fn frames(&self, path: &Utf8Path, probe: &Probe) -> Result<BTreeSet<i64>, ClipError> {
        let mut pts = BTreeSet::new();
        self.walk(path, probe, &frame_filters(probe), &mut |line| {
            pts.extend(frame_pts(line));
            line.starts_with("frame:") || line.starts_with(FRAME_KEY)
        })?;
        Ok(pts)
    }

    /// Decodes a whole file and counts its frames. This check finds damage anywhere in the file.
    ///
    /// # Errors
    /// `Malformed`, if ffmpeg logs an error about the file; otherwise as [`Programs::open`].
    pub fn scan(&self, source: &VideoFile) -> Result<Scan, Failure> {
        const KEY: &str = "lavfi.idet.multiple.current_frame";
        if source.probe.is_frames() {
            self.check_frames(source)?;
            return Ok(Scan { frames: source.pts.len(), interlaced: 0 });
        }
        let filters = format!("idet,metadata=mode=print:key={KEY}:file='pipe\\:2':direct=1");
        let mut scan = Scan::default();
        self.walk(&source.path, &source.probe, &filters, &mut |line| {
            let kind = line.strip_prefix(KEY);
            scan.frames += usize::from(kind.is_some());
            scan.interlaced += usize::from(matches!(kind, Some("=tff" | "=bff")));
            kind.is_some() || line.starts_with("frame:")
        })?;
        Ok(scan)
    }

    /// Decodes a whole file with filters that write lines. Each line for which `expected` returns false is an error of
    /// ffmpeg.
    pub(crate) fn walk(
        &self,
        path: &Utf8Path,
        probe: &Probe,
        filters: &str,
        expected: &mut dyn FnMut(&str) -> bool,
    ) -> Result<(), ClipError> {
        let mut command = self.ffmpeg_command();
        command.args(["-xerror", "-err_detect", "explode"]);
        self.limit_threads(&mut command);
        command.arg("-copyts");
        input::add(&mut command, path);
        command.args(["-map", &format!("0:{}", probe.stream), "-vf"]).arg(format!("{filters},{APART}"));
        command.args(self.passthrough()?).args(["-f", "null", "-"]);
        let mut complaints = Complaints::default();
        let run = Run { limit: self.silent_limit, cancel: &self.cancel, max_bytes: 1 << 16, capacity: 0 };
        let done = child::run(command, &run, None, &mut |line| {
            if !expected(line) {
                complaints.add(line);
            }
        })
        .map_err(|stop| about(path, failures::stopped(&self.ffmpeg, stop)))?;
        self.ended_well(path, done.status, &complaints)
    }

    /// Checks that ffmpeg succeeded and logged no error.
    pub(crate) fn ended_well(
        &self,
        path: &Utf8Path,
        status: ExitStatus,
        complaints: &Complaints,
    ) -> Result<(), ClipError> {
        if let Some(failure) = not_run(path, &self.ffmpeg, status, complaints) {
            return Err(failure.into());
        }
        if complaints.count == 0 && status.success() {
            return Ok(());
        }
        // The file was replaced after it was probed.
        if let Some(refused) = input::refused(path, &complaints.lines) {
            return Err(refused);
        }
        let shown = if complaints.count == 0 { status.to_string() } else { complaints.shown() };
        Err(damaged(path, format!("ffmpeg: {shown}")))
    }
}

/// Returns the filters that write a line with the time stamp of each frame, in units of the stream's time base.
pub(crate) fn frame_filters(probe: &Probe) -> String {
    let [num, den] = probe.time_base;
    format!(
        "settb={num}/{den},metadata=mode=add:key={FRAME_KEY}:value=1,\
         metadata=mode=print:key={FRAME_KEY}:file='pipe\\:2':direct=1"
    )
}

/// The frames of a whole file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scan {
    /// Frames that were decoded.
    pub frames: usize,
    /// Frames that look interlaced (ffmpeg's filter `idet`).
    pub interlaced: usize,
}

/// Returns the time stamp in a line that ffmpeg writes for a frame: `frame:3 pts:1536 pts_time:0.12`.
pub(crate) fn frame_pts(line: &str) -> Option<i64> {
    let (_, rest) = line.strip_prefix("frame:")?.split_once(" pts:")?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Time stamps of all frames, and of the frames at which decoding can start.
type Listed = (BTreeSet<i64>, BTreeSet<i64>);

/// Lists the packets that are shown. Returns `None` if a packet has no time stamp.
fn packets(path: &Utf8Path, json: &Value, stream: usize) -> Result<Option<Listed>, ClipError> {
    let (mut pts, mut keys) = Listed::default();
    let all = json["packets"].as_array().map(Vec::as_slice).unwrap_or_default();
    for packet in all.iter().filter(|packet| packet["stream_index"].as_u64() == Some(stream as u64)) {
        let flags = packet["flags"].as_str().unwrap_or_default();
        if flags.contains('C') {
            return Err(damaged(path, "the container marks a packet as corrupt"));
        }
        // An edit list hides packets that other packets need for decoding.
        if flags.contains('D') {
            continue;
        }
        let Some(time) = packet["pts"].as_i64() else { return Ok(None) };
        pts.insert(time);
        if flags.contains('K') {
            keys.insert(time);
        }
    }
    Ok(Some((pts, keys)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_frames_are_distinguished_from_errors() {
        assert_eq!(frame_pts("frame:3    pts:1536    pts_time:0.12"), Some(1536));
        assert_eq!(frame_pts("frame:0    pts:-40 pts_time:-0.04"), Some(-40));
        assert_eq!(frame_pts("[h264 @ 0x55] error while decoding MB 3 4"), None);
    }

    #[test]
    fn a_rate_is_variable_when_distances_differ_by_more_than_rounding() {
        let ntsc: Vec<f64> = (0..100).map(|i| (f64::from(i) * 1001.0 / 30.0).round() / 1000.0).collect();
        assert!(!is_variable(&ntsc), "Matroska rounds to milliseconds");
        assert!(is_variable(&[0.0, 0.04, 0.08, 0.2, 0.24]));
        assert!(!is_variable(&[]) && !is_variable(&[1.0]));
    }
}

//! Decodes the pixels of chosen frames.

use std::collections::BTreeSet;
use std::process::Command;

use camino::Utf8Path;
use failure::{ErrorCode, Failure};

use crate::child::{self, Run};
use crate::colour;
use crate::failures::{self, ClipFault, Complaints, about, damaged, unusable};
use crate::frames::Frames;
use crate::geometry::{Fit, Picture};
use crate::input;
use crate::pictures::decode_picture;
use crate::programs::Programs;
use crate::source::{APART, FRAME_KEY, VideoFile, frame_filters, frame_pts};

/// The maximum number of runs of consecutive frames in one command, which keeps the command line below its limit.
const MAX_RUNS: usize = 4096;

/// The longest side of a picture.
const MAX_SIDE: usize = 16_384;

/// Decodes the frames at these times with the programs on `PATH`; see [`Programs::decode`].
///
/// # Errors
/// As [`Programs::open`] and [`Programs::decode`].
pub fn decode(path: &Utf8Path, times: &[f64], picture: &Picture) -> Result<Frames, Failure> {
    let programs = Programs::default();
    programs.decode(&programs.open(path)?, times, picture)
}

impl Programs {
    /// Decodes the frames at these times, which [`VideoFile::times`] lists, in the order given. A time may be given twice.
    ///
    /// ffmpeg starts at the last keyframe before the first chosen frame, and writes the time stamp of every frame that it
    /// decodes. If a chosen frame is missing or ffmpeg logs an error, the file is decoded again from its start, and only
    /// errors of that attempt are failures. Pictures are read without ffmpeg.
    ///
    /// # Errors
    /// `Malformed`, if a frame is missing or ffmpeg logs an error; `InvalidArgument`, if there is no frame at a time;
    /// `InvalidDataset`, if the clip is HDR and this ffmpeg cannot convert that; `NoAnswer`; `CommandFailed`, if ffmpeg was killed;
    /// `ProgramMissing`.
    pub fn decode(&self, source: &VideoFile, times: &[f64], picture: &Picture) -> Result<Frames, Failure> {
        source.probe.check_not_suspect(&source.path)?;
        let indices = indices(source, times)?;
        if source.probe.is_picture() {
            return decode_picture(&source.path, picture, indices.len());
        }
        if source.probe.is_frames() {
            return self.decode_frames(source, &indices, picture);
        }
        let plan = Plan::new(self, source, &indices, picture)?;
        let attempts = [plan.indices.first().and_then(|&first| source.seek(first)), None];
        // Without a seek, both attempts are the same.
        let mut attempts = attempts.iter().skip(usize::from(attempts[0].is_none()));
        let mut rgb = loop {
            let (seek, last) = (attempts.next().copied().flatten(), attempts.len() == 0);
            match self.attempt(source, &plan, seek) {
                Err(failure) if failure.code == ErrorCode::Malformed && !last => {}
                result => break result?,
            }
        };
        let (size, unique) = (picture.width * picture.height * 3, &plan.indices);
        if !indices.iter().eq(unique) {
            // A frame is requested twice, or the order differs.
            let place = |index: &usize| unique.binary_search(index).expect("the plan has every index") * size;
            rgb = indices.iter().map(place).flat_map(|at| rgb[at..at + size].iter().copied()).collect();
        }
        Ok(Frames { width: picture.width, height: picture.height, count: indices.len(), rgb })
    }

    /// Returns an ffmpeg with a video as the input that it decodes, with the file's time stamps. `seek` is the time in seconds to start
    /// reading at. Damage ends it with an error.
    pub(crate) fn decode_command(&self, source: &VideoFile, seek: Option<f64>) -> Command {
        let mut command = self.ffmpeg_command();
        command.args(["-xerror", "-err_detect", "explode"]);
        self.limit_threads(&mut command);
        command.arg("-copyts");
        if let Some(seconds) = seek {
            let microseconds = (seconds * 1e6).ceil() / 1e6;
            command.args(["-noaccurate_seek", "-seek_timestamp", "1", "-ss", &format!("{microseconds:.6}")]);
        }
        input::add(&mut command, &source.path);
        command
    }

    fn attempt(&self, source: &VideoFile, plan: &Plan, seek: Option<f64>) -> Result<Vec<u8>, Failure> {
        let path = &source.path;
        let mut command = self.decode_command(source, seek);
        command.args(["-map", &format!("0:{}", source.probe.stream), "-vf", &plan.filters]);
        command.args(self.passthrough()?).args(["-frames:v", &plan.indices.len().to_string()]);
        command.args(["-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:1"]);
        let mut missing: BTreeSet<i64> = plan.indices.iter().map(|&index| source.pts[index]).collect();
        let mut complaints = Complaints::default();
        let bytes = plan.bytes;
        let run = Run { limit: self.silent_limit, cancel: &self.cancel, max_bytes: bytes, capacity: bytes };
        let done = child::run(command, &run, None, &mut |line| match frame_pts(line) {
            Some(pts) => drop(missing.remove(&pts)),
            None if line.starts_with(FRAME_KEY) => {}
            None => complaints.add(line),
        })
        .map_err(|stop| about(path, failures::stopped(&self.ffmpeg, stop)))?;
        self.ended_well(path, done.status, &complaints)?;
        if let Some(&pts) = missing.first() {
            let (count, first) = (missing.len(), source.probe.seconds(pts));
            return Err(
                damaged(path, format!("{count} of its frames are not decoded, the first at {first:.3} s")).into()
            );
        }
        if done.bytes.len() != bytes {
            return Err(
                damaged(path, format!("ffmpeg wrote {} bytes of pixels instead of {bytes}", done.bytes.len())).into()
            );
        }
        Ok(done.bytes)
    }
}

/// Returns the number of the frame at each time.
fn indices(source: &VideoFile, times: &[f64]) -> Result<Vec<usize>, Failure> {
    let what = || format!("cannot decode {}", source.path);
    let invalid =
        |why: String| Failure::new(ErrorCode::InvalidArgument, what(), why, "choose times that `choose` returns");
    if times.is_empty() {
        return Err(invalid("no frame is chosen".into()));
    }
    let find = |&time: &f64| {
        source.index_at(time).ok_or_else(|| {
            let why = format!("it has no frame at {time} s; the file may have changed since its frames were chosen");
            Failure::new(ErrorCode::InvalidArgument, what(), why, "check the data again")
        })
    };
    times.iter().map(find).collect()
}

/// The arguments of one call of ffmpeg.
struct Plan {
    /// The frames in ascending order, without repetitions.
    indices: Vec<usize>,
    filters: String,
    /// The size in bytes of the pixels of all frames.
    bytes: usize,
}

impl Plan {
    fn new(programs: &Programs, source: &VideoFile, indices: &[usize], picture: &Picture) -> Result<Self, Failure> {
        let Picture { width, height, .. } = *picture;
        if !(1..=MAX_SIDE).contains(&width) || !(1..=MAX_SIDE).contains(&height) {
            let why = format!("the requested picture has {width} × {height} pixels; a side must have 1 to {MAX_SIDE}");
            let what = format!("cannot decode {}", source.path);
            return Err(Failure::new(ErrorCode::InvalidArgument, what, why, "correct the size"));
        }
        let probe = &source.probe;
        let indices: Vec<usize> = indices.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let fit = Fit::new(probe.width, probe.height, picture);
        let (across, down) = fit.scaled;
        let convert = match probe.hdr {
            None => colour::filters(probe.matrix, probe.full_range, across, down),
            Some(hdr) if programs.can_tone_map()? => colour::tone_map_filters(hdr, probe.full_range, across, down),
            Some(hdr) => {
                let why = format!(
                    "its dynamic range is high ({hdr:?}), and this ffmpeg lacks the filters zscale and tonemap"
                );
                let fix = "install an ffmpeg with libzimg, for example conda-forge's, or convert the clip to SDR";
                return Err(unusable(&source.path, ClipFault::Unsupported, why, fix).into());
            }
        };
        let select = select(source, &indices)?;
        let mut filters = format!("{},select='{select}',{APART},{convert}", frame_filters(probe));
        if let Some(filter) = fit.filter(picture) {
            filters = filters + "," + &filter;
        }
        // Convert to packed RGB last, so that only the pixels of the picture are packed.
        filters += ",format=rgb24";
        let bytes = width * height * 3 * indices.len();
        Ok(Self { indices, filters, bytes })
    }
}

/// Returns the ffmpeg expression that selects the chosen frames: one range for each run of consecutive frames.
fn select(source: &VideoFile, indices: &[usize]) -> Result<String, Failure> {
    let runs: Vec<&[usize]> = indices.chunk_by(|a, b| a + 1 == *b).collect();
    if runs.len() > MAX_RUNS {
        let why = format!("{} separate frames are chosen, {MAX_RUNS} is the limit", runs.len());
        let what = format!("cannot decode {}", source.path);
        return Err(Failure::new(ErrorCode::InvalidArgument, what, why, "choose fewer frames at a time"));
    }
    let term = |run: &[usize]| match (source.pts[run[0]], source.pts[run[run.len() - 1]]) {
        (first, last) if first == last => format!("eq(pts,{first})"),
        (first, last) => format!("between(pts,{first},{last})"),
    };
    Ok(runs.into_iter().map(term).collect::<Vec<_>>().join("+"))
}

//! A clip as a folder of pictures, one per frame: `clip/0001.png`, `clip/0002.png`…
//!
//! The pictures are ordered by the numbers in their names, so 2 comes before 10, as DiffSynth-Studio orders them
//! (`diffsynth/utils/data/__init__.py`, `search_for_images`). musubi-tuner orders them by characters (`media_utils.py`, `glob_images`).
//! Both orders are the same for names with leading zeros.
//!
//! A folder states no rate. Its frames have the rate at which frames are chosen, so none is skipped or repeated. Without a rate, the
//! time of a frame in seconds is its number.

use std::cmp::Ordering;
use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use failure::{ErrorCode, Failure, FileError};

use crate::choose::{FrameChoice, NotEnough, choose};
use crate::failures::{ClipError, ClipFault, unusable};
use crate::frames::Frames;
use crate::geometry::Picture;
use crate::pictures::{OTHER_PICTURE_ENDINGS, fitted, has_ending, image_size, is_picture, probe, read_image};
use crate::programs::Programs;
use crate::source::VideoFile;

/// [`crate::Probe::container`] of a folder of frames.
pub(crate) const FRAMES: &str = "frames";

/// Lists the pictures of a folder of frames, in the order of the numbers in their names. Leaves out hidden files and files that are not
/// pictures. Returns at least one picture.
///
/// # Errors
/// [`ClipFault::NotAVideo`] if the folder has no picture; [`ClipFault::Unsupported`] if a picture has another format or a name that is not
/// UTF-8, or if two pictures have the same number; codes of the file system.
pub fn frame_files(folder: &Utf8Path) -> Result<Vec<Utf8PathBuf>, ClipError> {
    let io = |error| ClipError::from(FileError::io("list", folder, error));
    let refuse = |why: String, fix: &str| Err(unusable(folder, ClipFault::Unsupported, why, fix));
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        match entry.map_err(io)?.file_name().into_string() {
            Ok(name) if name.starts_with('.') => {}
            Ok(name) => names.push(name),
            Err(name) => {
                let name = name.to_string_lossy();
                if is_picture(Utf8Path::new(&*name)) {
                    return refuse(format!("the name of its frame {name} is not UTF-8"), "rename the picture");
                }
            }
        }
    }
    names.sort_by(|a, b| natural(stem(a), stem(b)).then_with(|| a.cmp(b)));
    if let Some(name) = names.iter().find(|name| has_ending(Utf8Path::new(name), &OTHER_PICTURE_ENDINGS)) {
        let fix = "convert its pictures to png, jpg or webp, for example: ffmpeg -i a.bmp a.png";
        return refuse(format!("its frame {name} is not a png, jpg or webp"), fix);
    }
    names.retain(|name| is_picture(Utf8Path::new(name)));
    if let Some(pair) = names.windows(2).find(|pair| natural(stem(&pair[0]), stem(&pair[1])).is_eq()) {
        let why = format!("its frames {} and {} have the same name or number", pair[0], pair[1]);
        return refuse(why, "remove or rename one of the two pictures");
    }
    if names.is_empty() {
        let fix = "name a video, or a folder with the frames of a clip: 0001.png, 0002.png…";
        return Err(unusable(folder, ClipFault::NotAVideo, "it is a folder without pictures", fix));
    }
    Ok(names.iter().map(|name| folder.join(name)).collect())
}

/// Opens a folder of frames. Reads only the header of the first picture; [`Programs::check_frames`] reads all pictures.
pub(crate) fn open(folder: &Utf8Path) -> Result<VideoFile, ClipError> {
    let pictures = frame_files(folder)?;
    let (first, count) = (&pictures[0], pictures.len());
    let size = image_size(first).map_err(|failure| of_frame(folder, first, failure))?;
    let bytes: u64 = pictures.iter().map(|picture| fs::metadata(picture).map_or(0, |metadata| metadata.len())).sum();
    let probe = probe(FRAMES, first, size, count, bytes);
    Ok(VideoFile { path: folder.to_owned(), probe, pts: (0..count as i64).collect(), keys: Vec::new(), pictures })
}

impl VideoFile {
    /// Sets the rate of a folder of frames: frame k is at k / `fps` seconds. Changes nothing without a rate, and nothing about other files.
    pub fn at_rate(mut self, fps: Option<f64>) -> Self {
        // The units of a time base are whole, and rates such as 23.976 are not.
        const UNITS: u64 = 1_000_000;
        let rate = fps.filter(|fps| self.probe.is_frames() && fps.is_finite() && *fps > 0.0);
        if let Some(fps) = rate {
            self.probe.fps = fps;
            self.probe.duration_s = self.pictures.len() as f64 / fps;
            self.probe.time_base = [UNITS, ((fps * UNITS as f64).round() as u64).max(1)];
        }
        self
    }

    /// Chooses frames by their times, as [`choose`] does. The frames of a folder have the rate of the choice, so none is skipped or
    /// repeated to reach it.
    ///
    /// # Errors
    /// [`NotEnough::failure`]: the clip is too short, or the choice is invalid.
    pub fn choose(&self, choice: &FrameChoice) -> Result<Vec<f64>, Failure> {
        let times = self.times();
        if !self.probe.is_frames() {
            return choose(&times, choice).map_err(|error| error.failure(&self.path));
        }
        choose(&times, &choice.by_number()).map_err(|error| {
            let failure = error.failure(&self.path);
            let fix = match error {
                NotEnough::Invalid(_) => failure.fix,
                _ => {
                    "choose fewer frames or a smaller stride, or remove the clip. The frames of a folder have the rate of --fps, \
                     and none is repeated"
                        .into()
                }
            };
            Failure { fix, ..failure }
        })
    }
}

impl Programs {
    /// Reads every picture of a folder of frames. This check finds damage and other sizes anywhere in the clip. Does nothing for other
    /// files.
    ///
    /// # Errors
    /// A picture cannot be read or has another size than the first one; the failure names it. `Cancelled`.
    pub fn check_frames(&self, source: &VideoFile) -> Result<(), ClipError> {
        (0..source.pictures.len()).try_for_each(|index| self.frame(source, index).map(drop))
    }

    /// Reads frames of a folder, and scales and crops them as pictures.
    pub(crate) fn decode_frames(
        &self,
        source: &VideoFile,
        indices: &[usize],
        picture: &Picture,
    ) -> Result<Frames, Failure> {
        let size = picture.width * picture.height * 3;
        let mut rgb: Vec<u8> = Vec::with_capacity(size * indices.len());
        for (at, index) in indices.iter().enumerate() {
            if at > 0 && indices[at - 1] == *index {
                rgb.extend_from_within(rgb.len() - size..);
            } else {
                rgb.extend(fitted(&self.frame(source, *index)?, picture));
            }
        }
        Ok(Frames { width: picture.width, height: picture.height, count: indices.len(), rgb })
    }

    /// Reads a frame of a folder.
    fn frame(&self, source: &VideoFile, index: usize) -> Result<Frames, ClipError> {
        let (folder, picture) = (&source.path, &source.pictures[index]);
        if self.cancel.is_cancelled() {
            let what = format!("cannot read {folder}");
            return Err(Failure::new(ErrorCode::Cancelled, what, "the work was cancelled", "start it again").into());
        }
        let frame = read_image(picture).map_err(|failure| of_frame(folder, picture, failure))?;
        let (width, height) = (source.probe.width, source.probe.height);
        if (frame.width, frame.height) == (width, height) {
            return Ok(frame);
        }
        let why = format!(
            "its frame {} has {} × {} pixels, and {} has {width} × {height}",
            name(picture),
            frame.width,
            frame.height,
            name(&source.pictures[0])
        );
        Err(unusable(folder, ClipFault::Unsupported, why, "give all frames of the clip one size"))
    }
}

/// Returns the failure of a clip one of whose frames cannot be read.
fn of_frame(folder: &Utf8Path, picture: &Utf8Path, failure: Failure) -> ClipError {
    let why = format!("its frame {}: {}", name(picture), failure.why);
    let failure = match failure.code {
        ErrorCode::Malformed => {
            let fix = "copy the picture again and look at it, or remove the clip from the data set";
            Failure::new(ErrorCode::Malformed, format!("{folder} is damaged"), why, fix)
        }
        _ => Failure { why, ..failure },
    };
    ClipError { fault: ClipFault::Damaged, failure }
}

fn name(path: &Utf8Path) -> &str {
    path.file_name().unwrap_or_default()
}

/// Returns a file name without its extension.
fn stem(name: &str) -> &str {
    Utf8Path::new(name).file_stem().unwrap_or(name)
}

/// Compares names by the numbers in them: `2` comes before `10`, and `01` is equal to `1`.
fn natural(mut a: &str, mut b: &str) -> Ordering {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    while !a.is_empty() && !b.is_empty() {
        let (in_a, in_b) = (digits(a), digits(b));
        let order = if in_a > 0 && in_b > 0 {
            let ((x, rest_a), (y, rest_b)) = (a.split_at(in_a), b.split_at(in_b));
            (a, b) = (rest_a, rest_b);
            // Numbers may have more digits than fit into an integer.
            let (x, y) = (x.trim_start_matches('0'), y.trim_start_matches('0'));
            x.len().cmp(&y.len()).then_with(|| x.cmp(y))
        } else {
            let (mut of_a, mut of_b) = (a.chars(), b.chars());
            let order = of_a.next().cmp(&of_b.next());
            (a, b) = (of_a.as_str(), of_b.as_str());
            order
        };
        if order.is_ne() {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pictures::write_png;
    use recipe::FrameMode;

    /// Makes a folder of frames of 4 × 2 pixels. Every component of a frame has the value that is given with its name.
    fn clip(frames: &[(&str, u8)]) -> (tempfile::TempDir, Utf8PathBuf) {
        let keep = tempfile::tempdir().unwrap();
        let folder = Utf8PathBuf::from_path_buf(keep.path().join("clip")).unwrap();
        fs::create_dir(&folder).unwrap();
        for (name, value) in frames {
            frame(&folder, name, *value, 2);
        }
        (keep, folder)
    }

    fn frame(folder: &Utf8Path, name: &str, value: u8, height: usize) {
        let rgb = vec![value; 4 * height * 3];
        write_png(&folder.join(name), &Frames { width: 4, height, count: 1, rgb }, 0).unwrap();
    }

    fn listed(folder: &Utf8Path) -> Result<Vec<String>, ClipError> {
        Ok(frame_files(folder)?.iter().map(|path| name(path).to_owned()).collect())
    }

    fn choice(mode: FrameMode, frames: usize, fps: Option<f64>) -> FrameChoice {
        FrameChoice { mode, frames, fps, stride: 1, seed: 0 }
    }

    #[test]
    fn frames_are_in_the_order_of_their_numbers_and_other_files_are_left_out() {
        let (_keep, folder) = clip(&[("10.png", 3), ("2.PNG", 2), ("1.png", 1)]);
        fs::write(folder.join(".3.png"), "of a file manager").unwrap();
        fs::write(folder.join("notes.txt"), "").unwrap();
        assert_eq!(listed(&folder).unwrap(), ["1.png", "2.PNG", "10.png"]);
    }

    #[test]
    fn names_are_compared_by_their_numbers_and_then_by_their_characters() {
        let mut names = ["b", "a10c", "a2", "a", "a10", "a9d", "100000000000000000000000", "99999999999999999999999"];
        names.sort_by(|a, b| natural(a, b));
        let expected = ["99999999999999999999999", "100000000000000000000000", "a", "a2", "a9d", "a10", "a10c", "b"];
        assert_eq!(names, expected);
        assert!(natural("f007", "f7").is_eq() && natural("f0", "f00").is_eq() && natural("0", "").is_gt());
    }

    #[test]
    fn a_folder_is_refused_if_the_order_or_the_number_of_its_frames_is_not_clear() {
        let fault = |folder: &Utf8Path| listed(folder).map_err(|error| error.fault);
        let (_keep, folder) = clip(&[]);
        fs::write(folder.join("a.txt"), "").unwrap();
        assert_eq!(fault(&folder), Err(ClipFault::NotAVideo));
        frame(&folder, "1.png", 1, 2);
        assert_eq!(fault(&folder), Ok(vec!["1.png".into()]));
        for other in ["2.bmp", "3.TIFF", "1.jpg", "01.png"] {
            fs::write(folder.join(other), "").unwrap();
            assert_eq!(fault(&folder), Err(ClipFault::Unsupported), "{other}");
            fs::remove_file(folder.join(other)).unwrap();
        }
        let missing = frame_files(&folder.join("none")).unwrap_err();
        assert_eq!((missing.fault, missing.failure.code), (ClipFault::None, ErrorCode::NotFound));
    }

    #[test]
    fn the_chosen_frames_are_decoded_as_pictures_without_ffmpeg() {
        let (_keep, folder) = clip(&[("1.png", 10), ("2.png", 20), ("10.png", 100), ("11.png", 110)]);
        let programs = Programs::at("no-ffmpeg", "no-ffprobe");
        let source = programs.open(&folder).unwrap();
        assert_eq!((source.probe.width, source.probe.height, source.times()), (4, 2, vec![0.0, 1.0, 2.0, 3.0]));
        assert!(source.probe.is_frames() && !source.probe.is_picture());
        programs.check_frames(&source).unwrap();
        let source = source.at_rate(Some(8.0));
        assert_eq!((source.times(), source.probe.fps), (vec![0.0, 0.125, 0.25, 0.375], 8.0));
        let times = source.choose(&choice(FrameMode::Middle, 2, Some(8.0))).unwrap();
        assert_eq!(times, [0.125, 0.25]);
        // Cropped to 2 × 2. A time may be given twice.
        let frames = programs.decode(&source, &[0.125, 0.125, 0.375], &Picture::new(2, 2)).unwrap();
        assert_eq!((frames.width, frames.height, frames.count), (2, 2, 3));
        assert_eq!(frames.rgb, [[20; 12], [20; 12], [110; 12]].concat());
        let wide = programs.decode(&source, &[0.25], &Picture::new(8, 4)).unwrap();
        assert_eq!(wide.rgb, [100; 8 * 4 * 3]);
        assert_eq!(programs.scan(&source).unwrap().frames, 4);
    }

    #[test]
    fn frames_have_the_rate_of_the_choice_and_none_is_skipped_or_repeated() {
        let names: Vec<String> = (0..9).map(|n| format!("{n}.png")).collect();
        let (_keep, folder) = clip(&names.iter().map(|name| (name.as_str(), 1_u8)).collect::<Vec<_>>());
        let programs = Programs::at("no-ffmpeg", "no-ffprobe");
        for fps in [8.0, 23.976, 60.0] {
            let source = programs.open(&folder).unwrap().at_rate(Some(fps));
            for mode in [FrameMode::Head, FrameMode::Middle, FrameMode::Random, FrameMode::TimeFps] {
                let all = source.choose(&choice(mode, 9, Some(fps))).unwrap();
                assert_eq!(all, source.times(), "{mode:?} at {fps}");
                let failure = source.choose(&choice(mode, 10, Some(fps))).unwrap_err();
                assert_eq!(failure.code, ErrorCode::InvalidDataset);
                assert!(failure.fix.contains("--fps"), "{failure}");
            }
            assert!((source.times()[8] - 8.0 / fps).abs() < 1e-6);
        }
        // Without a rate, the times are numbers, and every n-th frame can be taken.
        let source = programs.open(&folder).unwrap().at_rate(None);
        let apart = FrameChoice { stride: 3, ..choice(FrameMode::Head, 3, None) };
        assert_eq!(source.choose(&apart).unwrap(), [0.0, 3.0, 6.0]);
        assert_eq!(source.choose(&choice(FrameMode::TimeFps, 3, None)).unwrap_err().code, ErrorCode::InvalidArgument);
    }

    #[test]
    fn a_damaged_frame_and_one_of_another_size_are_named() {
        let programs = Programs::at("no-ffmpeg", "no-ffprobe");
        let (_keep, folder) = clip(&[("1.png", 1), ("2.png", 2), ("3.png", 3)]);
        let whole = fs::read(folder.join("2.png")).unwrap();
        fs::write(folder.join("2.png"), &whole[..whole.len() / 2]).unwrap();
        let source = programs.open(&folder).unwrap();
        let error = programs.check_frames(&source).unwrap_err();
        assert_eq!((error.fault, error.failure.code), (ClipFault::Damaged, ErrorCode::Malformed));
        assert!(error.failure.why.contains("2.png"), "{}", error.failure);
        assert_eq!(programs.decode(&source, &[1.0], &Picture::new(4, 2)).unwrap_err(), error.failure);
        assert!(programs.decode(&source, &[0.0, 2.0], &Picture::new(4, 2)).is_ok(), "the frame is not chosen");
        frame(&folder, "2.png", 2, 4);
        let error = programs.check_frames(&source).unwrap_err();
        assert_eq!((error.fault, error.failure.code), (ClipFault::Unsupported, ErrorCode::InvalidDataset));
        assert!(error.failure.why.contains("2.png has 4 × 4") && error.failure.why.contains("1.png has 4 × 2"));
    }
}

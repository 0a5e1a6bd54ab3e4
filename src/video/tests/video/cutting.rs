//! Tests of measuring frames and of cutting clips out of a video.

use std::ops::ControlFlow;

use camino::Utf8PathBuf;
use failure::ErrorCode;
use video::{CropMode, Cutting, Picture};

use crate::clips::{HEIGHT, WIDTH, clip, converted, numbers, programs, turned, with_ffmpeg};

fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
    (folder, path)
}

/// The clips of a video, as arguments of ffmpeg: scenes of 40, 30, 10 black, 35 and 1 frames.
const SCENES: [&str; 12] = [
    "-f",
    "lavfi",
    "-i",
    "testsrc2=size=160x120:rate=25:duration=1.6",
    "-f",
    "lavfi",
    "-i",
    "mandelbrot=size=160x120:rate=25",
    "-filter_complex",
    "[1]trim=duration=1.2[m];color=black:size=160x120:rate=25:duration=0.4[k];\
     smptebars=size=160x120:rate=25:duration=1.4[s];color=red:size=160x120:rate=25:duration=0.04[r];\
     [0][m][k][s][r]concat=n=5:v=1,format=yuv420p[v]",
    "-map",
    "[v]",
];

#[test]
fn cuts_and_black_frames_are_measured_in_the_frame_in_which_they_are() {
    let path = converted("scenes.mp4", &[&SCENES[..], &["-c:v", "libx264", "-g", "250"]].concat());
    let source = programs().open(&path).unwrap();
    let mut seen = 0;
    let changes = programs().changes(&source, &mut |frames| {
        seen = frames;
        ControlFlow::Continue(())
    });
    let changes = changes.unwrap();
    assert_eq!((changes.len(), seen), (116, 65));
    let cuts: Vec<usize> = (0..116).filter(|at| changes[*at].score >= 10.0).collect();
    assert_eq!(cuts, [40, 70, 80, 115]);
    let black: Vec<usize> = (0..116).filter(|at| changes[*at].black >= 98.0).collect();
    assert_eq!(black, (70..80).collect::<Vec<_>>());
    let stopped = programs();
    let failure = stopped.changes(&source, &mut |_| ControlFlow::Break(())).unwrap_err();
    assert_eq!(failure.code, ErrorCode::Cancelled);
}

#[test]
fn a_clip_has_exactly_its_frames_and_is_copied_between_keyframes() {
    let (_keep, folder) = folder();
    let path = clip("cut.mp4", 100, &[]);
    let sources = [
        ("mp4", path.clone()),
        ("mkv", converted("cut.mkv", &["-i", path.as_str(), "-c", "copy"])),
        ("ts", converted("cut.ts", &["-i", path.as_str(), "-c", "copy"])),
        ("late", converted("late.mp4", &["-i", path.as_str(), "-c", "copy", "-output_ts_offset", "7.3"])),
        // An AVI has no time stamps of its own, and mp4 cannot hold this codec.
        ("avi", converted("cut.avi", &["-i", path.as_str(), "-c:v", "ffv1"])),
    ];
    for (name, path) in sources {
        let source = programs().open(&path).unwrap();
        let ranges = [
            (24..48, Cutting::Copied),
            (25..48, Cutting::Encoded),
            (96..100, Cutting::Copied),
            (91..100, Cutting::Encoded),
            (0..12, Cutting::Copied),
            (0..100, Cutting::Copied),
            (24..47, Cutting::Encoded),
            (5..6, Cutting::Encoded),
        ];
        // The first ones are those in which containers differ.
        for (range, cutting) in ranges.into_iter().take(if name == "mp4" { 8 } else { 3 }) {
            let to = folder.join(format!("{name}-{}.mp4", range.start * 1000 + range.end));
            let done = programs().cut(&source, range.clone(), &to).unwrap();
            if name != "avi" {
                assert_eq!(done, cutting, "{name} {range:?}");
            }
            let clip = programs().open(&to).unwrap();
            let picture = Picture { crop: CropMode::None, ..Picture::new(WIDTH, HEIGHT) };
            let frames = programs().decode(&clip, &clip.times(), &picture).unwrap();
            assert_eq!(numbers(&frames), range.clone().map(Some).collect::<Vec<_>>(), "{name} {range:?}");
            assert!((clip.probe.fps - 25.0).abs() < 0.01, "{name} {range:?}: {}", clip.probe.fps);
        }
    }
}

#[test]
fn the_frames_of_a_variable_rate_keep_their_times_and_a_turned_video_stays_upright() {
    let (_keep, folder) = folder();
    let path = clip("cut.mp4", 100, &[]);
    let select = "select='not(mod(n,3))+lt(n,30)',setpts='N*512+if(gt(N,20),(N-20)*700,0)'";
    let vfr = ["-i", path.as_str(), "-vf", select, "-fps_mode", "passthrough", "-c:v", "libx264", "-crf", "8"];
    let sources = [converted("cut-vfr.mp4", &vfr), turned("cut-turned.mp4", &path)];
    for (number, path) in sources.iter().enumerate() {
        let source = programs().open(path).unwrap();
        for range in [0..30, 7..41] {
            let to = folder.join(format!("{number}-{}.mp4", range.start));
            programs().cut(&source, range.clone(), &to).unwrap();
            let clip = programs().open(&to).unwrap();
            let (all, times) = (source.times(), clip.times());
            let away = |at: usize| ((times[at] - times[0]) - (all[range.start + at] - all[range.start])).abs();
            assert_eq!(times.len(), range.len());
            assert!((0..times.len()).all(|at| away(at) < 1e-3), "{path} {range:?}");
            let size = (source.probe.width, source.probe.height);
            assert_eq!((clip.probe.width, clip.probe.height), size);
        }
    }
}

#[test]
fn a_file_that_exists_a_full_disk_and_a_range_without_frames_are_failures_that_leave_nothing() {
    let (_keep, folder) = folder();
    let source = programs().open(&clip("cut.mp4", 100, &[])).unwrap();
    let to = folder.join("a.mp4");
    for range in [5..5, 90..101] {
        assert_eq!(programs().cut(&source, range, &to).unwrap_err().code, ErrorCode::InvalidArgument);
    }
    let full = with_ffmpeg("full-disk-cut", "echo 'av_interleaved_write_frame(): No space left on device' >&2; exit 1");
    assert_eq!(full.cut(&source, 5..20, &to).unwrap_err().code, ErrorCode::DiskFull);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::write(&to, "mine").unwrap();
    assert_eq!(programs().cut(&source, 0..12, &to).unwrap_err().code, ErrorCode::AlreadyExists);
    assert_eq!(std::fs::read_to_string(&to).unwrap(), "mine");
}

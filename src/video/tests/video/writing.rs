//! Tests of writing mp4 files.

use std::fs;

use failure::ErrorCode;
use video::{CropMode, Frames, Picture};

use crate::clips::{HEIGHT, WIDTH, numbered, numbers, programs, with_ffmpeg, with_hanging_ffmpeg};

fn folder() -> (tempfile::TempDir, camino::Utf8PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = camino::Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
    (folder, path)
}

#[test]
fn written_frames_are_read_back_in_order_with_their_rate_and_colours() {
    let (_keep, folder) = folder();
    let path = folder.join("out.mp4");
    let frames = numbered(20);
    programs().write_mp4(&path, &frames, 8.0).unwrap();
    let source = programs().open(&path).unwrap();
    assert_eq!((source.probe.fps, source.probe.width, source.probe.height), (8.0, WIDTH, HEIGHT));
    assert_eq!(source.probe.colour.space.as_deref(), Some("bt709"));
    let picture = Picture { crop: CropMode::None, ..Picture::new(WIDTH, HEIGHT) };
    let back = programs().decode(&source, &source.times(), &picture).unwrap();
    assert_eq!(numbers(&back), (0..20).map(Some).collect::<Vec<_>>());
    let sum: u64 = back.rgb.iter().zip(&frames.rgb).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    let mean = sum as f64 / frames.rgb.len() as f64;
    assert!(mean < 2.0, "mean difference {mean}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn the_same_frames_give_the_same_bytes_and_replace_the_file() {
    let (_keep, folder) = folder();
    let (a, b) = (folder.join("a.mp4"), folder.join("b.mp4"));
    fs::write(&b, "an older file").unwrap();
    for path in [&a, &b] {
        programs().write_mp4(path, &numbered(9), 16.0).unwrap();
    }
    assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap());
}

#[test]
fn odd_sizes_and_single_frames_are_written() {
    let (_keep, folder) = folder();
    for (width, height, count) in [(33, 17, 3), (1, 1, 1), (16, 16, 1)] {
        let path = folder.join(format!("{width}.mp4"));
        let rgb = vec![120; width * height * 3 * count];
        programs().write_mp4(&path, &Frames { width, height, count, rgb }, 8.0).unwrap();
        let source = programs().open(&path).unwrap();
        let even = (width.next_multiple_of(2), height.next_multiple_of(2));
        assert_eq!((source.probe.width, source.probe.height, source.times().len()), (even.0, even.1, count));
    }
}

#[test]
fn a_failed_write_leaves_nothing() {
    let (_keep, folder) = folder();
    let path = folder.join("out.mp4");
    let code = |programs: &video::Programs| programs.write_mp4(&path, &numbered(5), 8.0).unwrap_err().code;
    let full = "for part; do :; done\npart=${part#file:}\nhead -c 1000 /dev/zero > \"$part\"\necho 'av_interleaved_write_frame(): No space left on device' >&2\nexit 1";
    assert_eq!(code(&with_ffmpeg("full-disk", full)), ErrorCode::DiskFull);
    let hangs = "for part; do :; done\necho x > \"${part#file:}\"\nexec sleep 60";
    assert_eq!(code(&with_hanging_ffmpeg("write-hangs", hangs)), ErrorCode::NoAnswer);
    let killed = "cat > /dev/null\nkill -9 $$";
    assert_eq!(code(&with_ffmpeg("write-killed", killed)), ErrorCode::CommandFailed);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    let missing = programs().write_mp4(&folder.join("none/out.mp4"), &numbered(2), 8.0).unwrap_err();
    assert_eq!(missing.code, ErrorCode::CommandFailed);
}

#[test]
fn an_ffmpeg_without_x264_writes_another_codec() {
    let (_keep, folder) = folder();
    let path = folder.join("out.mp4");
    let without = "for arg; do case $arg in libx264|libopenh264) echo \"Unknown encoder '$arg'\" >&2; exit 1;; esac; done\nexec ffmpeg \"$@\"";
    with_ffmpeg("no-x264", without).write_mp4(&path, &numbered(5), 8.0).unwrap();
    assert_eq!(programs().probe(&path).unwrap().codec, "mpeg4");
}

#[test]
fn frames_and_rates_that_make_no_video_are_refused() {
    let (_keep, folder) = folder();
    let path = folder.join("out.mp4");
    let none = Frames { width: 0, height: 0, count: 0, rgb: vec![] };
    let torn = Frames { rgb: vec![0; 10], ..numbered(2) };
    for (frames, fps) in [(&none, 8.0), (&torn, 8.0), (&numbered(2), 0.0), (&numbered(2), f64::NAN)] {
        assert_eq!(programs().write_mp4(&path, frames, fps).unwrap_err().code, ErrorCode::InvalidArgument);
    }
}

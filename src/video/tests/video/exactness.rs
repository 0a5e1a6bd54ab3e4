//! Tests that decoding returns the right frames, identified by the numbers in their pixels.

use video::{CropMode, FrameChoice, FrameMode, Picture, Programs, VideoFile, choose, is_variable};

use crate::clips::{HEIGHT, WIDTH, X264, clip, converted, encoded, numbered, numbers, programs, turned};

fn picture() -> Picture {
    Picture { crop: CropMode::None, ..Picture::new(WIDTH, HEIGHT) }
}

fn opened(path: &camino::Utf8Path) -> VideoFile {
    programs().open(path).unwrap()
}

fn decoded(source: &VideoFile, times: &[f64]) -> Vec<usize> {
    let frames = programs().decode(source, times, &picture()).unwrap();
    numbers(&frames).into_iter().map(Option::unwrap).collect()
}

/// Times of frames in a file, by their numbers.
fn times(source: &VideoFile, indices: &[usize]) -> Vec<f64> {
    let times = source.times();
    indices.iter().map(|&i| times[i]).collect()
}

#[test]
fn every_frame_is_decoded_as_itself() {
    let source = opened(&clip("numbered.mp4", 60, &[]));
    assert_eq!(decoded(&source, &source.times()), (0..60).collect::<Vec<_>>());
    assert_eq!(source.probe.frames, Some(60));
    assert!(!is_variable(&source.times()));
}

#[test]
fn chosen_frames_come_in_the_order_given_and_as_often_as_given() {
    let source = opened(&clip("numbered.mp4", 60, &[]));
    for indices in [&[0, 59][..], &[47], &[13, 14, 15, 40, 41], &[30, 5, 5, 59, 30]] {
        assert_eq!(decoded(&source, &times(&source, indices)), indices);
    }
}

#[test]
fn containers_codecs_and_gaps_between_keyframes_do_not_matter() {
    let numbers = numbered(60);
    let cases: [(&str, &[&str]); 6] = [
        ("numbered.mkv", X264),
        ("numbered.ts", X264),
        ("open-gop.mp4", &[X264, &["-x264-params", "open-gop=1:keyint=10:min-keyint=10:bframes=3"]].concat()),
        ("numbered.webm", &["-c:v", "libvpx", "-b:v", "2M", "-g", "15", "-auto-alt-ref", "1", "-lag-in-frames", "8"]),
        ("numbered.avi", &["-c:v", "mpeg4", "-q:v", "3", "-bf", "2", "-g", "12"]),
        (
            "hevc.mp4",
            &[
                "-c:v",
                "libx265",
                "-preset",
                "ultrafast",
                "-crf",
                "12",
                "-x265-params",
                "keyint=12:bframes=3:log-level=none",
            ],
        ),
    ];
    for (name, options) in cases {
        let source = opened(&encoded(name, &numbers, options));
        assert_eq!(source.times().len(), 60, "{name}");
        for indices in [&[0, 20, 59][..], &[25, 26, 27], &[47], &[24, 36, 48]] {
            assert_eq!(decoded(&source, &times(&source, indices)), indices, "{name}");
        }
    }
}

#[test]
fn a_variable_rate_is_passed_through() {
    // Frames at 0.02 n + 0.001 n² s.
    let vfr = [
        "-vf",
        "settb=1/90000,setpts=(0.02*N+0.001*N*N)/TB",
        "-fps_mode",
        "passthrough",
        "-video_track_timescale",
        "90000",
    ];
    let vfr = [&["-enc_time_base", "1:90000"], &vfr[..]].concat();
    let source = opened(&clip("vfr.mp4", 40, &vfr));
    let all = source.times();
    assert!(is_variable(&all));
    for (n, time) in all.iter().enumerate() {
        let n = n as f64;
        assert!((time - (0.02 * n + 0.001 * n * n)).abs() < 1e-4, "frame {n} is at {time} s");
    }
    assert_eq!(decoded(&source, &all), (0..40).collect::<Vec<_>>(), "none is repeated or dropped");
    let choice = FrameChoice { mode: FrameMode::TimeFps, frames: 9, fps: Some(5.0), stride: 1, seed: 0 };
    let chosen = decoded(&source, &choose(&all, &choice).unwrap());
    // Frame k is the n whose time 0.02 n + 0.001 n² is nearest to 0.2 k.
    assert_eq!(chosen, [0, 7, 12, 16, 20, 23, 26, 29, 31]);
}

#[test]
fn a_file_that_does_not_start_at_zero_keeps_its_times() {
    let from = clip("numbered.mp4", 60, &[]);
    let late = converted(
        "late.ts",
        &["-i", from.as_str(), "-c", "copy", "-output_ts_offset", "20", "-muxdelay", "0", "-f", "mpegts"],
    );
    let source = opened(&late);
    assert!(source.times()[0] > 19.0 && source.probe.start_s > 19.0);
    assert_eq!(decoded(&source, &times(&source, &[0, 29, 30, 59])), [0, 29, 30, 59]);
}

#[test]
fn frames_that_an_edit_list_hides_are_neither_listed_nor_decoded() {
    // A copy from the middle of a group of pictures starts at its keyframe and hides the frames before the cut.
    let from = clip("numbered.mp4", 60, &[]);
    let cut = converted("cut.mp4", &["-ss", "0.8", "-i", from.as_str(), "-c", "copy", "-f", "mp4"]);
    let source = opened(&cut);
    assert_eq!(source.times().len(), 40);
    assert_eq!(decoded(&source, &times(&source, &[0, 1, 20, 39])), [20, 21, 40, 59]);
}

#[test]
fn a_rotated_clip_is_decoded_upright_with_its_size_after_rotation() {
    let source = opened(&turned("turned.mp4", &clip("numbered.mp4", 60, &[])));
    let probe = &source.probe;
    assert_eq!((probe.width, probe.height, probe.rotation), (HEIGHT, WIDTH, 90));
    assert_eq!((probe.stored_width, probe.stored_height), (WIDTH, HEIGHT));
    let upright = Picture { crop: CropMode::None, ..Picture::new(HEIGHT, WIDTH) };
    let turned = programs().decode(&source, &times(&source, &[37]), &upright).unwrap();
    let mut back = turned.clone();
    (back.width, back.height) = (WIDTH, HEIGHT);
    for y in 0..HEIGHT {
        for x in 0..WIDTH {
            // Clockwise: the first row becomes the last column.
            let from = (x * HEIGHT + HEIGHT - 1 - y) * 3;
            let to = (y * WIDTH + x) * 3;
            back.rgb[to..to + 3].copy_from_slice(&turned.rgb[from..from + 3]);
        }
    }
    assert_eq!(numbers(&back), [Some(37)]);
}

#[test]
fn pixels_that_are_not_square_are_made_square() {
    let probe = programs().probe(&clip("wide.mp4", 3, &["-vf", "setsar=2"])).unwrap();
    assert_eq!((probe.width, probe.height, probe.sample_aspect), (2 * WIDTH, HEIGHT, [2, 1]));
    // A picture of the stored size shows the middle half of the width: bits 2 to 5.
    let source = opened(&clip("wide.mp4", 3, &["-vf", "setsar=2"]));
    let frame = programs().decode(&source, &times(&source, &[2]), &Picture::new(WIDTH, HEIGHT)).unwrap();
    let levels: Vec<bool> = (0..4).map(|i| frame.rgb[(8 * WIDTH + i * 32 + 16) * 3] > 128).collect();
    assert_eq!(levels, [false, false, false, false], "bit 1 of the number 2 is cut off");
}

#[test]
fn the_first_video_stream_is_read_unless_another_is_the_default() {
    let (first, second) = (clip("numbered.mp4", 60, &[]), clip("second.mp4", 60, &["-vf", "negate"]));
    let both = |name: &str, more: &[&str]| {
        let inputs = ["-i", first.as_str(), "-i", second.as_str(), "-map", "0", "-map", "1", "-c", "copy"];
        opened(&converted(name, &[&inputs, more].concat()))
    };
    let plain = both("two.mkv", &["-disposition:v:0", "0", "-disposition:v:1", "0"]);
    assert_eq!((plain.probe.stream, plain.probe.video_streams), (0, 2));
    let other = both("two-default.mkv", &["-disposition:v:0", "0", "-disposition:v:1", "default"]);
    assert_eq!(other.probe.stream, 1);
    // The inverted frame n reads as the number 255 − n.
    assert_eq!(decoded(&other, &times(&other, &[9])), [255 - 9]);
}

#[test]
fn cover_art_is_not_a_video() {
    let clip_ = clip("numbered.mp4", 60, &[]);
    let cover = converted("cover.png", &["-i", clip_.as_str(), "-frames:v", "1", "-f", "image2", "-update", "1"]);
    let inputs = ["-i", cover.as_str(), "-i", clip_.as_str(), "-map", "0", "-map", "1", "-c", "copy"];
    let source = opened(&converted("cover.mp4", &[&inputs[..], &["-disposition:v:0", "attached_pic"]].concat()));
    assert_eq!((source.probe.codec.as_str(), source.probe.video_streams), ("h264", 1));
    assert_eq!(decoded(&source, &times(&source, &[31])), [31]);
}

#[test]
fn a_seek_that_lands_too_late_is_detected_and_decoding_starts_again_from_the_start() {
    // This ffmpeg seeks a second too far, as some demuxers do.
    let late = "n=0\nfor arg; do\n  n=$((n+1))\n  if [ \"$last\" = -ss ]; then late=1; arg=2.0; fi\n  last=$arg\n  set -- \"$@\" \"$arg\"\ndone\nshift $n\nif [ -n \"$late\" ]; then echo late >> \"$0.log\"; fi\nexec ffmpeg \"$@\"";
    let programs: Programs = crate::clips::with_ffmpeg("late-seek", late);
    let source = opened(&clip("numbered.mp4", 60, &[]));
    let frames = programs.decode(&source, &times(&source, &[30, 55]), &picture()).unwrap();
    assert_eq!(numbers(&frames), [Some(30), Some(55)]);
    assert!(camino::Utf8PathBuf::from(format!("{}.log", programs.ffmpeg)).exists(), "it never sought");
}

#[test]
fn an_ffmpeg_before_5_1_passes_frames_through_by_its_older_option() {
    let old = "for arg; do case $arg in -version) echo 'ffmpeg version 4.4.2-0ubuntu0.22.04.1 Copyright'; exit;; esac; done\n\
               echo \"$@\" >> \"$0.log\"\nexec ffmpeg \"$@\"";
    let programs = Programs::at(crate::clips::program("ffmpeg-4.4", old), "ffprobe");
    let source = opened(&clip("numbered.mp4", 60, &[]));
    let frames = programs.decode(&source, &times(&source, &[7, 8]), &picture()).unwrap();
    assert_eq!(numbers(&frames), [Some(7), Some(8)]);
    let log = std::fs::read_to_string(format!("{}.log", programs.ffmpeg)).unwrap();
    assert!(log.contains(" -vsync 0 ") && !log.contains("-fps_mode"));
}

#[test]
fn odd_sizes_are_decoded() {
    let odd = encoded(
        "odd.mkv",
        &video::Frames { width: 61, height: 37, count: 4, rgb: vec![90; 61 * 37 * 3 * 4] },
        &["-c:v", "ffv1"],
    );
    let source = opened(&odd);
    assert_eq!((source.probe.width, source.probe.height), (61, 37));
    for crop in CropMode::ALL {
        let picture = Picture { crop, ..Picture::new(33, 47) };
        let frames = programs().decode(&source, &source.times(), &picture).unwrap();
        assert_eq!((frames.width, frames.height, frames.count, frames.rgb.len()), (33, 47, 4, 33 * 47 * 3 * 4));
        let middle = frames.frame(3)[(23 * 33 + 16) * 3];
        assert!(middle.abs_diff(90) <= 1, "{crop:?}: {middle}");
    }
}

#[test]
fn interlaced_video_is_detected_and_its_frames_are_whole() {
    let source =
        opened(&clip("interlaced.ts", 24, &["-flags", "+ildct+ilme", "-x264-params", "tff=1", "-f", "mpegts"]));
    assert!(source.probe.interlaced);
    assert_eq!(source.times().len(), 24);
    assert_eq!(decoded(&source, &times(&source, &[0, 13, 23])), [0, 13, 23]);
    let scan = programs().scan(&source).unwrap();
    assert_eq!((scan.frames, scan.interlaced), (24, 0), "frames of blocks show no fields");
}

//! Checks of data sets with videos made by ffmpeg: good clips, and each reason why a clip is dropped.

use super::*;
use crate::{Clip, ExclusionReason, Unusual};
use camino::Utf8Path;
use rundir::ErrorCode;
use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::OnceLock;
use video::FrameMode;

/// The videos that tests copy, each with its name and the arguments with which ffmpeg makes it.
const MATERIAL: [(&str, &str); 10] = [
    ("long.mp4", "-f lavfi -i testsrc2=size=64x48:rate=25 -frames:v 50 -movflags +faststart"),
    ("short.mp4", "-f lavfi -i testsrc2=size=64x48:rate=25 -frames:v 10"),
    ("tall.mkv", "-f lavfi -i testsrc2=size=48x64:rate=12 -frames:v 50"),
    ("one.mp4", "-f lavfi -i testsrc2=size=64x48:rate=25 -frames:v 1"),
    ("audio.mp4", "-f lavfi -i sine=duration=1"),
    ("ten-bit.mp4", "-f lavfi -i testsrc2=size=64x48:rate=25 -frames:v 12 -c:v libx264 -pix_fmt yuv420p10le"),
    (
        "hdr.mp4",
        "-f lavfi -i testsrc2=size=64x48:rate=25 -frames:v 13 -c:v libx264 -pix_fmt yuv420p10le -colorspace bt2020nc \
         -color_primaries bt2020 -color_trc smpte2084",
    ),
    ("picture.png", "-f lavfi -i testsrc2=size=64x48 -frames:v 1"),
    ("fields.mp4", "-f lavfi -i testsrc2=size=64x48:rate=25 -frames:v 10 -flags +ilme+ildct"),
    (
        "several.mkv",
        "-f lavfi -i testsrc2=size=64x48:rate=25:duration=0.4 -f lavfi -i testsrc2=size=64x48:rate=25:duration=0.4 \
         -map 0 -map 1 -vf setsar=2 -output_ts_offset 20",
    ),
];

fn material() -> &'static Utf8Path {
    static FOLDER: OnceLock<Site> = OnceLock::new();
    let site = FOLDER.get_or_init(|| {
        let site = Site::new();
        for (name, args) in MATERIAL {
            let mut ffmpeg = Command::new("ffmpeg");
            ffmpeg.current_dir(&site.path).args(["-v", "error"]).args(args.split(' ')).arg(name);
            assert!(ffmpeg.status().expect("ffmpeg is installed").success(), "{name}");
        }
        site
    });
    &site.path
}

/// A data set that a test fills.
struct Site {
    keep: tempfile::TempDir,
    path: Utf8PathBuf,
}

impl Site {
    fn new() -> Self {
        let keep = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(keep.path()).unwrap().canonicalize_utf8().unwrap().join("data");
        fs::create_dir(&path).unwrap();
        Self { keep, path }
    }

    fn with(self, name: &str, bytes: impl AsRef<[u8]>) -> Self {
        fs::write(self.path.join(name), bytes).unwrap();
        self
    }

    /// Adds a video and its caption.
    fn video(self, name: &str, of: &str, caption: &str) -> Self {
        let bytes = fs::read(material().join(of)).unwrap();
        let text = Utf8Path::new(name).with_extension("txt");
        self.with(name, bytes).with(text.as_str(), caption)
    }

    /// Adds a folder of frames of 64 × 48 pixels, each of one grey, and its caption.
    fn frames(self, name: &str, greys: &[u8], caption: &str) -> Self {
        fs::create_dir_all(self.path.join(name)).unwrap();
        for (number, grey) in greys.iter().enumerate() {
            self.frame(&format!("{name}/{number}.png"), *grey, 48);
        }
        self.with(&format!("{name}.txt"), caption)
    }

    fn frame(&self, name: &str, grey: u8, height: usize) {
        let frames = video::Frames { width: 64, height, count: 1, rgb: vec![grey; 64 * height * 3] };
        video::write_png(&self.path.join(name), &frames, 0).unwrap();
    }

    fn cache(&self) -> Utf8PathBuf {
        Utf8Path::from_path(self.keep.path()).unwrap().join("cache")
    }

    fn request(&self) -> CheckRequest<'static> {
        let source = SourceRequest { source: self.path.clone(), ..SourceRequest::default() };
        CheckRequest { cache: Some(self.cache()), ..CheckRequest::new(source) }
    }

    fn check(&self) -> Checked {
        checked(&self.request())
    }
}

fn checked(request: &CheckRequest<'_>) -> Checked {
    check(request, &mut |_| ControlFlow::Continue(())).unwrap()
}

fn reasons(checked: &Checked) -> BTreeMap<&str, Option<&ExclusionReason>> {
    checked.manifest.clips.iter().map(|clip| (clip.id.as_str(), clip.excluded.as_ref())).collect()
}

#[test]
fn a_good_clip_has_its_size_rate_length_and_hash() {
    let checked = Site::new().video("a.mp4", "long.mp4", "a test").video("b.mkv", "tall.mkv", "a tall one").check();
    let [a, b] = &checked.manifest.clips[..] else { panic!("{:?}", checked.manifest) };
    assert_eq!((a.width, a.height, a.fps, a.frames, a.codec.as_str()), (64, 48, 25.0, 50, "h264"));
    assert_eq!((b.width, b.height, b.frames), (48, 64, 50));
    assert!((a.duration_s - 2.0).abs() < 1e-9 && (b.fps - 12.0).abs() < 0.05, "{a:?} {b:?}");
    assert!(a.content.len() == 32 && a.content != b.content);
    assert!(checked.manifest.refuse_if_dropped(0.0).is_ok());
    assert_eq!(
        checked.report.histogram.iter().map(|bar| (bar.from, bar.clips)).collect::<Vec<_>>(),
        [(49, 1), (49, 1)]
    );
}

#[test]
fn every_video_that_cannot_be_used_is_excluded_with_its_reason() {
    let long = fs::read(material().join("long.mp4")).unwrap();
    let short = fs::read(material().join("short.mp4")).unwrap();
    let mut site = Site::new()
        .video("good.mp4", "long.mp4", "good")
        .video("one.mp4", "one.mp4", "one")
        .video("audio.mp4", "audio.mp4", "audio")
        .video("picture.mp4", "picture.png", "picture")
        .with("empty.mp4", "")
        .with("text.mp4", "this is not a video")
        // The table of frames is at the start of one file. In the other it is at the end, and is lost.
        .with("cut.mp4", &long[..long.len() * 2 / 3])
        .with("headless.mp4", &short[..short.len() / 2]);
    for name in ["empty.txt", "text.txt", "cut.txt", "headless.txt"] {
        site = site.with(name, "caption");
    }
    let checked = site.check();
    let reasons = reasons(&checked);
    let reason = |name: &str| reasons[name].unwrap_or_else(|| panic!("{name} is not excluded"));
    assert_eq!(reasons["good.mp4"], None);
    assert_eq!(reason("one.mp4"), &ExclusionReason::OneFrame);
    assert_eq!(reason("audio.mp4"), &ExclusionReason::AudioOnly);
    assert!(matches!(reason("picture.mp4"), ExclusionReason::NotAVideo { .. }), "{:?}", reason("picture.mp4"));
    assert_eq!(reason("empty.mp4"), &ExclusionReason::VideoEmpty);
    assert!(matches!(reason("text.mp4"), ExclusionReason::Unreadable { .. }), "{:?}", reason("text.mp4"));
    for name in ["cut.mp4", "headless.mp4"] {
        assert!(matches!(reason(name), ExclusionReason::Truncated { .. }), "{:?}", reason(name));
    }
    assert_eq!(checked.report.dropped.len(), 7);
    assert_eq!(checked.manifest.refuse_if_dropped(0.05).unwrap_err().code, ErrorCode::TooManyDropped);
}

/// Rotates an mp4 by 90°: changes the display matrix of its track, because the option of ffmpeg for this differs between versions.
fn turned(mut mp4: Vec<u8>) -> Vec<u8> {
    let at = mp4.windows(4).position(|w| w == b"tkhd").unwrap() + 44;
    let matrix: [i32; 9] = [0, 0x10000, 0, -0x10000, 0, 0, 0, 0, 0x4000_0000];
    mp4.splice(at..at + 36, matrix.iter().flat_map(|n| n.to_be_bytes()));
    mp4
}

/// Writes a program that takes the place of ffmpeg or ffprobe.
fn program(path: &Utf8Path, script: &str) -> Utf8PathBuf {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_owned()
}

#[test]
fn rotated_and_10_bit_videos_are_used_and_hdr_videos_if_ffmpeg_can_tone_map() {
    let site = Site::new()
        .with("turned.mp4", turned(fs::read(material().join("long.mp4")).unwrap()))
        .with("turned.txt", "from a phone")
        .video("ten-bit.mp4", "ten-bit.mp4", "ten bits")
        .video("hdr.mp4", "hdr.mp4", "a bright light");
    let program = |name: &str, script: &str| program(&site.path.join("..").join(name), script);
    let with =
        |ffmpeg: Utf8PathBuf| checked(&CheckRequest { programs: Programs::at(ffmpeg, "ffprobe"), ..site.request() });
    let can = program("can", "echo ' ... zscale V->V x'; echo ' ... tonemap V->V x'");
    let found = with(can);
    assert_eq!(found.manifest.usable().count(), 3);
    let clip = |id: &str| found.manifest.clips.iter().find(|clip| clip.id == id).unwrap();
    assert_eq!((clip("turned.mp4").width, clip("turned.mp4").height), (48, 64), "the size after the rotation");
    assert_eq!((clip("ten-bit.mp4").frames, clip("ten-bit.mp4").hdr, clip("hdr.mp4").hdr), (12, false, true));
    // The results of the first check are cached, but the filters of ffmpeg are not.
    let can_not = with(program("can-not", "echo ' ... scale V->V x'"));
    assert_eq!(reasons(&can_not)["hdr.mp4"], Some(&ExclusionReason::HighDynamicRange));
    assert_eq!((can_not.report.cached, can_not.manifest.usable().count()), (3, 2));
    assert_eq!(with("/nonesuch/ffmpeg".into()).manifest.usable().count(), 3);
}

#[test]
fn unusual_properties_are_recorded_with_each_clip_and_counted_in_the_report() {
    let site = Site::new()
        .video("plain.mp4", "long.mp4", "a ball rolls")
        .video("fields.mp4", "fields.mp4", "from a television")
        .video("several.mkv", "several.mkv", "from two cameras")
        .with("turned.mp4", turned(fs::read(material().join("long.mp4")).unwrap()))
        .with("turned.txt", "from a phone");
    let first = site.check();
    let unusual = |id: &str| first.manifest.clips.iter().find(|clip| clip.id == id).unwrap().unusual;
    let usual = Unusual::default();
    assert_eq!(unusual("plain.mp4"), usual);
    assert_eq!(unusual("fields.mp4"), Unusual { interlaced: true, ..usual });
    assert_eq!(unusual("turned.mp4"), Unusual { rotation: Some(90), ..usual });
    let several = Unusual { sample_aspect: Some([2, 1]), start_s: Some(20.0), video_streams: Some(2), ..usual };
    assert_eq!(unusual("several.mkv"), several);
    // The cache and the file of the manifest have them too. Usual values are omitted.
    let second = site.check();
    assert_eq!((second.report.cached, &second.manifest), (4, &first.manifest));
    let path = site.cache().with_file_name("manifest.jsonl");
    first.manifest.write(&path).unwrap();
    assert_eq!(ClipManifest::read(&path).unwrap(), first.manifest);
    let written = fs::read_to_string(&path).unwrap();
    for key in ["interlaced", "rotation", "sample_aspect", "start_s", "video_streams"] {
        assert_eq!(written.matches(&format!("\"{key}\":")).count(), 1, "{key} in {written}");
    }
    let text = first.report.text(None);
    let notes: Vec<&str> = text.lines().filter(|line| line.starts_with("note")).collect();
    insta::assert_snapshot!(notes.join("\n"));
}

#[test]
fn a_video_that_may_not_be_read_is_excluded_and_probed_again() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::new().video("a.mp4", "long.mp4", "a");
    fs::set_permissions(site.path.join("a.mp4"), fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(site.path.join("a.mp4")).is_ok() {
        return without_the_right_to_read_every_file(
            "check::tests::a_video_that_may_not_be_read_is_excluded_and_probed_again",
        );
    }
    assert!(matches!(site.check().manifest.clips[0].excluded, Some(ExclusionReason::Unreadable { .. })));
    fs::set_permissions(site.path.join("a.mp4"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(site.check().manifest.clips[0].excluded, None);
}

/// Runs a test in another process, without root's capability to read every file.
fn without_the_right_to_read_every_file(test: &str) {
    // This variable is set in the other process. It ends the recursion if that process can still read every file.
    const AGAIN: &str = "TEST_WITHOUT_RIGHTS";
    let mut setpriv = std::process::Command::new("setpriv");
    setpriv.args(["--bounding-set=-dac_override,-dac_read_search"]).arg(std::env::current_exe().unwrap());
    let done = setpriv.args(["--exact", test, "--nocapture"]).env(AGAIN, "1").output();
    let is_first = std::env::var_os(AGAIN).is_none();
    match done.ok().filter(|_| is_first) {
        Some(done) => {
            let printed = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success() && printed.contains("1 passed"), "{printed}");
            eprint!("{}", String::from_utf8_lossy(&done.stderr));
        }
        None => eprintln!("skipped: this user may read every file, and setpriv cannot take that right away"),
    }
}

#[test]
fn captions_that_cannot_be_used_are_counted() {
    let site = Site::new()
        .video("empty.mp4", "long.mp4", " \n")
        .video("long.mp4", "long.mp4", &"w".repeat(10_000))
        .video("bytes.mp4", "long.mp4", "")
        .with("bytes.txt", b"caf\xe9")
        .video("missing.mp4", "long.mp4", "")
        .video("same-a.mp4", "long.mp4", "the same")
        .video("same-b.mp4", "short.mp4", "the same");
    fs::remove_file(site.path.join("missing.txt")).unwrap();
    let checked = site.check();
    let reasons = reasons(&checked);
    assert_eq!(reasons["empty.mp4"], Some(&ExclusionReason::CaptionEmpty));
    assert_eq!(
        reasons["long.mp4"],
        Some(&ExclusionReason::CaptionTooLong { characters: 10_000, most: CAPTION_CHARACTERS })
    );
    let Some(ExclusionReason::CaptionNotUtf8 { why }) = reasons["bytes.mp4"] else { panic!("{reasons:?}") };
    assert!(why.contains("byte 4 (0xe9)"), "{why}");
    let hint = checked.report.notes.iter().find(|note| note.contains("iconv")).expect("a note");
    assert!(hint.contains("bytes.txt > "), "{hint}");
    assert_eq!(reasons["missing.mp4"], Some(&ExclusionReason::CaptionMissing));
    let captions = &checked.report.captions;
    assert_eq!((captions.empty, captions.missing, captions.not_utf8, captions.too_long), (1, 1, 1, 1));
    assert_eq!((captions.doubled, checked.report.usable), (2, 2));
}

#[test]
fn a_pipe_is_neither_a_caption_nor_a_video_and_the_check_goes_on() {
    let site = Site::new()
        .video("a.mp4", "long.mp4", "a")
        .video("b.mp4", "short.mp4", "b")
        .video("c.mp4", "short.mp4", "c")
        .video("d.mp4", "short.mp4", "d");
    for name in ["b.txt", "c.mp4"] {
        fs::remove_file(site.path.join(name)).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(site.path.join(name)).status().unwrap().success());
    }
    fs::remove_file(site.path.join("d.txt")).unwrap();
    fs::create_dir(site.path.join("d.txt")).unwrap();
    let checked = site.check();
    let reasons = reasons(&checked);
    assert_eq!(reasons["a.mp4"], None);
    assert!(matches!(reasons["b.mp4"], Some(ExclusionReason::CaptionUnreadable { .. })), "{reasons:?}");
    assert!(matches!(reasons["c.mp4"], Some(ExclusionReason::NotAVideo { .. })), "{reasons:?}");
    assert!(matches!(reasons["d.mp4"], Some(ExclusionReason::CaptionUnreadable { .. })), "{reasons:?}");
}

#[test]
fn a_check_whose_disk_hangs_while_the_source_is_read_can_be_interrupted() {
    let (release, hangs) = std::sync::mpsc::channel::<()>();
    let read = move || {
        // Returns when the test ends.
        let _ = hangs.recv();
        read_source(&SourceRequest::default())
    };
    let stopped = read_in_thread(read, &mut |_| ControlFlow::Break(()));
    assert_eq!(stopped.unwrap_err().code, ErrorCode::Cancelled);
    drop(release);
}

#[test]
fn tokens_are_counted_and_longer_captions_are_cut_and_not_dropped() {
    let site = Site::new().video("a.mp4", "long.mp4", "one two three").video("b.mp4", "short.mp4", "one");
    let words = |text: &str| text.split(' ').count();
    let checked = checked(&CheckRequest { count_tokens: Some(&words), most_tokens: 2, ..site.request() });
    let captions = &checked.report.captions;
    assert_eq!((captions.median_tokens, captions.most_tokens, captions.cut), (Some(3), Some(3), Some(1)));
    assert_eq!(checked.manifest.clips.iter().map(|clip| clip.tokens).collect::<Vec<_>>(), [Some(3), Some(1)]);
}

#[test]
fn clips_that_repeat_another_one_are_excluded() {
    let table = "video,caption\na.mp4,one\na.mp4,one\na.mp4,two\ncopy.mp4,one\ncopy.mp4,three\n";
    let site = Site::new().video("a.mp4", "long.mp4", "").video("copy.mp4", "long.mp4", "").with("metadata.csv", table);
    let checked = site.check();
    let first = || "a.mp4".to_owned();
    let reasons = reasons(&checked);
    assert_eq!(reasons["a.mp4"], None);
    assert_eq!(reasons["a.mp4#2"], Some(&ExclusionReason::ListedTwice { first: first() }));
    // The same video with another caption is another clip.
    assert_eq!((reasons["a.mp4#3"], reasons["copy.mp4#2"]), (None, None));
    assert_eq!(reasons["copy.mp4"], Some(&ExclusionReason::DoubledFile { first: first() }));
    assert_eq!(checked.report.same_bytes_groups, [["a.mp4", "a.mp4#3", "copy.mp4#2"]]);
}

#[test]
fn files_with_the_same_bytes_and_other_captions_are_used_and_listed() {
    let site = Site::new()
        .video("a.mp4", "long.mp4", "one")
        .video("b.mp4", "long.mp4", "two")
        .video("c.mp4", "short.mp4", "three")
        .frames("x", &[1, 2, 3], "four")
        .frames("y", &[1, 2, 3], "five")
        .frames("z", &[3, 2, 1], "six");
    let report = site.check().report;
    assert_eq!((report.usable, report.same_bytes), (6, 4));
    assert_eq!(report.same_bytes_groups, [["a.mp4", "b.mp4"], ["x", "y"]]);
    let text = report.text(Some(80));
    let line = text.lines().find(|line| line.contains("a.mp4 = b.mp4")).unwrap();
    insta::assert_snapshot!(line, @"note      4 clips with the bytes of another file and another caption: a.mp4 = b.mp4, x = y");
    // One file with two captions is not repeated by mistake.
    let table = "video,caption\na.mp4,one\na.mp4,two\n";
    let report = Site::new().video("a.mp4", "long.mp4", "").with("metadata.csv", table).check().report;
    assert_eq!((report.usable, report.same_bytes, report.same_bytes_groups.len()), (2, 0, 0));
}

#[test]
fn a_folder_of_frames_is_a_clip_at_the_rate_of_the_choice_and_needs_no_ffprobe() {
    let greys: Vec<u8> = (0..12).collect();
    let site = Site::new().frames("a", &greys, "twelve frames").frames("b", &greys[..3], "three frames");
    let request = || CheckRequest { programs: Programs::at("/nonesuch/ffmpeg", "/nonesuch/ffprobe"), ..site.request() };
    let first = checked(&request());
    let clip = &first.manifest.clips[0];
    assert_eq!((clip.id.as_str(), clip.width, clip.height, clip.frames), ("a", 64, 48, 12));
    assert_eq!((clip.codec.as_str(), clip.fps, clip.duration_s), ("png", 0.0, 0.0));
    assert_eq!((first.report.layout, first.report.usable, first.report.frame_folders), ("frames", 2, 2));
    let path = site.cache().with_file_name("manifest.jsonl");
    first.manifest.write(&path).unwrap();
    assert_eq!(ClipManifest::read(&path).unwrap(), first.manifest);
    // Neither is skipped or repeated at any rate: 12 frames are enough for 12.
    for fps in [8.0, 50.0] {
        let choice = FrameChoice { mode: FrameMode::Middle, frames: 12, fps: Some(fps), stride: 1, seed: 0 };
        let second = checked(&CheckRequest { frames: Some(choice), ..request() });
        assert_eq!(second.report.cached, 2);
        let [a, b] = &second.manifest.clips[..] else { panic!("{:?}", second.manifest) };
        assert_eq!((a.excluded.as_ref(), a.fps, a.duration_s), (None, fps, 12.0 / fps));
        let reason = ExclusionReason::TooShort { frames: 3, needed: 12, span_s: 2.0 / fps, needed_s: None };
        assert_eq!(b.excluded, Some(reason));
    }
    // Without a rate, the frames are taken by their numbers.
    let mut first = first;
    first.manifest.exclude_short(&FrameChoice { mode: FrameMode::Head, frames: 4, fps: None, stride: 3, seed: 0 });
    let excluded: Vec<bool> = first.manifest.clips.iter().map(|clip| !clip.is_usable()).collect();
    assert_eq!(excluded, [false, true]);
}

#[test]
fn a_table_can_name_folders_of_frames() {
    let table = "{\"video_path\": \"clips/a\", \"caption\": \"a room\"}\n{\"video_path\": \"clips\", \"caption\": \"no frames\"}\n";
    let checked = Site::new().frames("clips/a", &[1, 2, 3], "").with("metadata.jsonl", table).check();
    let [a, none] = &checked.manifest.clips[..] else { panic!("{:?}", checked.manifest) };
    assert_eq!((a.id.as_str(), a.frames, a.frame_folder, a.excluded.as_ref()), ("clips/a", 3, true, None));
    assert!(matches!(none.excluded, Some(ExclusionReason::NotAVideo { .. })), "{none:?}");
}

#[test]
fn a_folder_with_a_damaged_frame_or_with_frames_that_do_not_belong_together_is_excluded_with_the_name_of_the_frame() {
    let site = Site::new()
        .frames("good", &[1, 2, 3], "good")
        .frames("hurt", &[4, 5, 6], "one picture is no picture")
        .frames("sizes", &[7, 8, 9], "one picture is smaller")
        .frames("mixed", &[10, 11], "one picture has another format")
        .frames("one", &[12], "a single frame")
        .with("hurt/1.png", "this is not a picture")
        .with("mixed/2.bmp", "");
    site.frame("sizes/2.png", 9, 32);
    let checked = site.check();
    let reasons = reasons(&checked);
    assert_eq!((reasons["good"], reasons["one"]), (None, Some(&ExclusionReason::OneFrame)));
    let named = |clip: &str, frame: &str| match reasons[clip] {
        Some(ExclusionReason::Unreadable { why } | ExclusionReason::Unsupported { why }) => why.contains(frame),
        _ => false,
    };
    assert!(named("hurt", "1.png") && named("sizes", "2.png") && named("mixed", "2.bmp"), "{reasons:?}");
    // A picture that is replaced changes the clip.
    site.frame("hurt/1.png", 5, 48);
    let again = site.check();
    assert_eq!(again.manifest.clips.iter().find(|clip| clip.id == "hurt").unwrap().excluded, None);
}

#[test]
fn missing_paths_and_paths_outside_the_folder_are_excluded() {
    let table = "video,caption\nnone.mp4,one\n../a.mp4,two\n,three\n.,four\n";
    let checked = Site::new().with("metadata.csv", table).check();
    use ExclusionReason::{NotAVideo, OutsideFolder, VideoMissing};
    let reasons: Vec<_> = checked.manifest.clips.iter().filter_map(|clip| clip.excluded.as_ref()).collect();
    assert!(matches!(reasons[..], [VideoMissing, OutsideFolder, VideoMissing, NotAVideo { .. }]), "{reasons:?}");
    let ids: std::collections::BTreeSet<&str> = checked.manifest.clips.iter().map(|clip| clip.id.as_str()).collect();
    assert_eq!(ids.len(), 4);
}

#[test]
fn clips_that_are_too_short_are_excluded_and_included_again_for_a_shorter_choice() {
    let site = Site::new().video("a.mp4", "long.mp4", "two seconds").video("b.mp4", "short.mp4", "0.4 seconds");
    let choice = |frames, fps| FrameChoice { mode: FrameMode::Head, frames, fps, stride: 1, seed: 0 };
    let request = CheckRequest { frames: Some(choice(9, Some(8.0))), size: Some([96, 64]), ..site.request() };
    let mut checked = checked(&request);
    let reason = ExclusionReason::TooShort { frames: 4, needed: 9, span_s: 9.0 / 25.0, needed_s: Some(1.0) };
    assert_eq!(reasons(&checked)["b.mp4"], Some(&reason));
    assert_eq!((checked.report.usable, checked.report.enlarged), (1, 1));
    checked.manifest.exclude_short(&choice(49, None));
    let reason = ExclusionReason::TooShort { frames: 10, needed: 49, span_s: 9.0 / 25.0, needed_s: None };
    assert_eq!(reasons(&checked)["b.mp4"], Some(&reason));
    checked.manifest.exclude_short(&choice(10, None));
    assert_eq!(checked.manifest.usable().count(), 2);
}

#[test]
fn a_clip_is_too_short_exactly_if_choosing_frames_fails() {
    let clip = |frames, fps| Clip { frames, fps, ..Clip::default() };
    for frames in [2, 9, 10, 16, 17, 48, 49, 50] {
        for fps in [8.0, 12.5, 23.976, 30.0] {
            let times: Vec<f64> = (0..frames).map(|at| at as f64 / fps).collect();
            for (wanted, rate) in [(1, None), (9, None), (49, None), (9, Some(8.0)), (17, Some(8.0)), (49, Some(24.0))]
            {
                for mode in [FrameMode::Head, FrameMode::Linspace, FrameMode::Stride, FrameMode::Random] {
                    let choice = FrameChoice { mode, frames: wanted, fps: rate, stride: 2, seed: 1 };
                    let mut manifest = ClipManifest { clips: vec![clip(frames, fps)], ..ClipManifest::default() };
                    manifest.exclude_short(&choice);
                    let is_enough = video::choose(&times, &choice).is_ok();
                    assert_eq!(manifest.clips[0].is_usable(), is_enough, "{frames} frames at {fps}, {choice:?}");
                    if let Some(ExclusionReason::TooShort { frames, needed, .. }) = manifest.clips[0].excluded {
                        assert!(frames < needed, "{frames} of {needed}, {choice:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_second_check_probes_only_what_changed() {
    let site =
        Site::new().video("a.mp4", "long.mp4", "a").video("b.mp4", "short.mp4", "b").video("c.mp4", "one.mp4", "c");
    let first = site.check();
    assert_eq!(first.report.cached, 0);
    let second = site.check();
    assert_eq!((second.report.cached, &second.manifest), (3, &first.manifest));
    // The content of a video changes, and so does a caption. Captions are never cached.
    let site = site.video("b.mp4", "tall.mkv", "another caption");
    let third = site.check();
    assert_eq!(third.report.cached, 2);
    assert_eq!((third.manifest.clips[1].width, third.manifest.clips[1].caption.as_str()), (48, "another caption"));
}

#[test]
fn an_interrupted_check_continues_with_the_rest() {
    let mut site = Site::new();
    for n in 0..6 {
        site = site.video(&format!("{n}.mp4"), "short.mp4", &n.to_string());
    }
    let request = CheckRequest { workers: 1, ..site.request() };
    let stopped = check(&request, &mut |progress| match progress.done {
        0..3 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    assert_eq!(stopped.unwrap_err().code, ErrorCode::Cancelled);
    assert_eq!(site.check().report.cached, 3);
    // A torn line and lines of other versions are left out.
    let kept = fs::read_dir(site.cache()).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&kept).unwrap();
    fs::write(&kept, text[..text.len() - 9].replacen("\"rules\":5", "\"rules\":2", 1)).unwrap();
    assert_eq!(site.check().report.cached, 4);
}

#[test]
fn a_cache_that_cannot_be_written_is_noted() {
    let site = Site::new().video("a.mp4", "long.mp4", "a");
    let request = CheckRequest { cache: Some(site.path.join("a.mp4/cache")), ..site.request() };
    let checked = checked(&request);
    assert_eq!((checked.report.usable, checked.report.notes.len()), (1, 1));
}

#[test]
fn a_program_that_does_not_start_ends_the_check_and_is_not_cached_as_a_fault_of_a_video() {
    let site = Site::new().video("a.mp4", "long.mp4", "a").with("b.mp4", "no video").with("b.txt", "b");
    // The message of the dynamic linker if a library of ffmpeg is missing.
    let broken = program(
        &site.path.with_file_name("broken"),
        "echo 'ffprobe: error while loading shared libraries: libopenh264.so.5: cannot open shared object file' >&2; exit 127",
    );
    // The program breaks during the check.
    let breaks = program(&site.path.with_file_name("breaks"), "[ \"$1\" = -version ] || exit 127");
    for ffprobe in [broken, breaks] {
        let request = CheckRequest { programs: Programs::at("ffmpeg", ffprobe), ..site.request() };
        let failure = check(&request, &mut |_| ControlFlow::Continue(())).unwrap_err();
        assert_eq!(failure.code, ErrorCode::ProgramMissing, "{failure}");
    }
    let repaired = site.check();
    assert_eq!((repaired.report.cached, repaired.report.usable), (0, 1));
    assert_eq!(site.check().report.cached, 2);
    // An earlier version cached the faults of the program, and playlists as videos.
    let kept = fs::read_dir(site.cache()).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&kept).unwrap();
    fs::write(&kept, text.replace("\"rules\":5", "\"rules\":4")).unwrap();
    assert_eq!(site.check().report.cached, 0);
}

#[test]
fn without_ffprobe_the_check_names_the_program() {
    let site = Site::new().video("a.mp4", "long.mp4", "a");
    let request = CheckRequest { programs: Programs::at("/nonesuch/ffmpeg", "/nonesuch/ffprobe"), ..site.request() };
    let failure = check(&request, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(failure.code, ErrorCode::ProgramMissing);
    assert!(!failure.fix.is_empty());
}

#[test]
fn the_report_fits_80_columns_and_is_not_cut_in_a_pipe() {
    let name = "a-name-that-is-much-longer-than-any-column-of-a-terminal-\u{1b}[31mred.mp4";
    let site = Site::new()
        .video("clip-1.mp4", "long.mp4", "a ball rolls")
        .video("clip-2.mp4", "tall.mkv", "a tower of bricks")
        .video("clip-3.mp4", "short.mp4", "a blink")
        .video(name, "one.mp4", "still")
        .with("headless.mp4", &fs::read(material().join("short.mp4")).unwrap()[..900])
        .with("headless.txt", "lost")
        .with("alone.txt", "no video");
    let choice = FrameChoice { mode: FrameMode::Head, frames: 9, fps: Some(8.0), stride: 1, seed: 0 };
    let report = checked(&CheckRequest { frames: Some(choice), size: Some([48, 64]), ..site.request() }).report;
    let narrow = report.text(Some(80));
    assert!(narrow.lines().all(|line| unicode_width::UnicodeWidthStr::width(line) <= 80), "{narrow}");
    assert!(!narrow.contains('\u{1b}'));
    let shown = without_bytes(&narrow, &units::short_size(report.bytes));
    insta::assert_snapshot!(shown);
    assert!(report.text(None).contains("any-column-of-a-terminal"));
}

/// Replaces the size of the videos, which depends on the version of ffmpeg.
fn without_bytes(text: &str, bytes: &str) -> String {
    text.replace(bytes, "BYTES")
}

#[test]
fn pictures_with_a_caption_are_clips_of_one_frame() {
    let site = Site::new()
        .video("a.mp4", "long.mp4", "a video")
        .with("a.png", "its thumbnail")
        .video("b.png", "picture.png", "a picture")
        .with("c.webp", "a picture without a caption")
        .video("d.png", "long.mp4", "a video with the name of a picture");
    let checked = site.check();
    let picture = &checked.manifest.clips[1];
    assert_eq!((picture.id.as_str(), picture.frames, picture.width, picture.height), ("b.png", 1, 64, 48));
    assert_eq!(reasons(&checked)["b.png"], None);
    assert!(matches!(reasons(&checked)["d.png"], Some(ExclusionReason::Unreadable { .. })));
    assert_eq!(checked.manifest.clips.len(), 3, "the others are skipped");
    insta::assert_snapshot!("notes_about_skipped_pictures", checked.report.notes.join("\n"));
    let choice = video::FrameChoice { mode: FrameMode::Head, frames: 9, fps: None, stride: 1, seed: 0 };
    let long =
        super::check(&CheckRequest { frames: Some(choice), ..site.request() }, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(reasons(&long.unwrap())["b.png"], Some(ExclusionReason::TooShort { frames: 1, needed: 9, .. })));
}

#[test]
fn buckets_are_counted_and_clips_without_one_are_dropped() {
    let site = Site::new()
        .video("long.mp4", "long.mp4", "long")
        .video("short.mp4", "short.mp4", "short")
        .video("tall.mkv", "tall.mkv", "tall")
        .video("b.png", "picture.png", "a picture");
    let set = "data.buckets=[{ frames = 9, height = 48, width = 64 }, { frames = 33, height = 48, width = 64 }, \
               { frames = 49, height = 64, width = 48 }, { frames = 5, height = 96, width = 96 }]";
    let recipe = recipe::load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[set.into()]).unwrap().recipe;
    let buckets = Assigner::new(&recipe, video::FrameChoice::of(&recipe::Encode::default()));
    let checked = checked(&CheckRequest { buckets, ..site.request() });
    let counts: Vec<(String, usize)> =
        checked.report.buckets.iter().map(|of| (of.bucket.to_string(), of.clips)).collect();
    let one = |bucket: &str| (bucket.to_owned(), 1);
    assert_eq!(counts, [one("9x48x64"), one("33x48x64"), one("49x64x48")]);
    assert_eq!(checked.report.empty_buckets.iter().map(ToString::to_string).collect::<Vec<_>>(), ["5x96x96"]);
    let picture = reasons(&checked)["b.png"].cloned();
    assert!(
        matches!(picture, Some(ExclusionReason::NoBucket { misfit: recipe::Misfit::TooShort, frames: 1, .. })),
        "{picture:?}"
    );
    assert_eq!(checked.manifest.refuse_if_dropped(0.05).unwrap_err().code, ErrorCode::TooManyDropped);
    let text = checked.report.text(Some(80));
    let from_buckets: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("bucket")).collect();
    assert!(from_buckets.iter().all(|line| line.chars().count() <= 80), "{text}");
    insta::assert_snapshot!(from_buckets[..8].join("\n"));
}

#[test]
fn conditions_on_measured_numbers_leave_out_clips_and_are_recorded() {
    let table = "path,text,motion\na.mkv,one,1\nsmall.mp4,two,3\nnone.mp4,three,4\n";
    let site =
        Site::new().video("a.mkv", "tall.mkv", "").video("small.mp4", "long.mp4", "").with("metadata.csv", table);
    let clips = |conditions: &str| {
        let mut request = site.request();
        request.source.filter = Some(conditions.parse().unwrap());
        let Checked { manifest, report, .. } = super::check(&request, &mut |_| ControlFlow::Continue(()))?;
        assert_eq!(manifest.header.conditions, conditions);
        assert_eq!((report.left_out, report.clips), (3 - manifest.clips.len(), manifest.clips.len()));
        Ok::<_, Failure>(manifest.clips.into_iter().map(|clip| clip.id).collect::<Vec<_>>())
    };
    let all = checked(&site.request()).manifest.clips;
    let (large, small) = (all[0].height, all[1].height);
    assert!(large > small);
    // A video that cannot be read has no height. It stays, with its reason.
    assert_eq!(clips(&format!("height > {small}")).unwrap(), ["a.mkv", "none.mp4"]);
    assert_eq!(clips(&format!("height > {small} or motion = 3")).unwrap(), ["a.mkv", "small.mp4", "none.mp4"]);
    assert_eq!(clips("motion < 4 and width > 0 and duration_s < 0.01").unwrap_err().code, ErrorCode::InvalidDataset);
}

#[test]
fn captions_are_written_by_a_template_and_a_missing_value_names_its_row() {
    let table = "path,text,motion\nlong.mp4,a cat,1.25\nnone.mp4,a dog,\n";
    let site = Site::new().video("long.mp4", "long.mp4", "").with("metadata.csv", table);
    let check = |template: &str| {
        let mut request = site.request();
        request.source.template = Some(template.parse().unwrap());
        super::check(&request, &mut |_| ControlFlow::Continue(()))
    };
    // A clip that cannot be used needs no value.
    let template = "sks {caption} motion score: {motion:.1f}, {fps} FPS";
    let Checked { manifest, report, .. } = check(template).unwrap();
    let caption = "sks a cat motion score: 1.2, 25 FPS";
    assert_eq!((manifest.clips[0].caption.as_str(), manifest.header.caption.as_str()), (caption, template));
    assert_eq!(report.template, Some([template.to_owned(), caption.to_owned()]));
    let site = site.with("metadata.csv", table.replace("none.mp4", "long.mp4"));
    let mut request = site.request();
    request.source.template = Some(template.parse().unwrap());
    let failure = super::check(&request, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(failure.why.contains("metadata.csv line 3") && failure.why.contains("{motion}"), "{failure}");
    request.source.filter = Some("motion >= 0".parse().unwrap());
    assert_eq!(checked(&request).manifest.clips.len(), 1);
}

#[test]
fn the_template_writes_the_caption_of_each_segment_within_its_scene() {
    let table = r#"[{"video": "long.mp4", "segments": ["a cat", "a dog"], "scene_start": [true, false], "fps": 16}]"#;
    let site = Site::new().video("long.mp4", "long.mp4", "").with("metadata.json", table);
    let mut request = site.request();
    request.source.template = Some("{caption}, {fps} FPS".parse().unwrap());
    let clip = &checked(&request).manifest.clips[0];
    assert_eq!(clip.segments, [format!("{}a cat, 16 FPS", tokenizer::SCENE_START), "a dog, 16 FPS".into()]);
    assert_eq!(clip.caption, clip.segments.join("\n"));
}

//! Tests of bad input: each file causes a failure with the right code, and none yields pixels.

use std::fs;
use std::time::Duration;

use failure::{ErrorCode, Failure};
use video::{ClipFault, Frames, Picture, Programs};

use crate::clips::{
    changed, clip, converted, encoded, file, folder, numbered, program, programs, with_ffmpeg, with_hanging_ffmpeg,
};

/// Opens a file and decodes all of its frames.
fn used(path: &camino::Utf8Path) -> Result<Frames, Failure> {
    used_with(&programs(), path)
}

fn used_with(programs: &Programs, path: &camino::Utf8Path) -> Result<Frames, Failure> {
    let source = programs.open(path)?;
    let times = source.times();
    programs.decode(&source, &times, &Picture::new(32, 16))
}

fn code(path: &camino::Utf8Path) -> ErrorCode {
    used(path).unwrap_err().code
}

#[test]
fn files_that_are_no_videos_are_refused() {
    assert_eq!(code(&folder().join("none.mp4")), ErrorCode::NotFound);
    let keep = tempfile::tempdir().unwrap();
    assert_eq!(code(camino::Utf8Path::from_path(keep.path()).unwrap()), ErrorCode::InvalidDataset);
    let empty = file("empty.mp4", 0, |path| fs::write(path, b"").unwrap());
    assert_eq!(code(&empty), ErrorCode::Malformed);
    let text = file("text.mp4", 0, |path| fs::write(path, "no video\n".repeat(100)).unwrap());
    assert_eq!(code(&text), ErrorCode::Malformed);
}

#[test]
fn a_file_without_read_permission_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let path = file("secret.mp4", 0, |path| fs::write(path, "x").unwrap());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o0)).unwrap();
    // Root can read every file. Then the failure is that the file is not a video.
    let is_root = fs::read(&path).is_ok();
    assert_eq!(code(&path), if is_root { ErrorCode::Malformed } else { ErrorCode::PermissionDenied });
}

#[test]
fn a_file_with_sound_only_is_refused() {
    let sound = converted("sound.m4a", &["-f", "lavfi", "-i", "sine=duration=1", "-c:a", "aac"]);
    assert_eq!(code(&sound), ErrorCode::InvalidDataset);
    assert_eq!(programs().probe(&sound).unwrap_err().code, ErrorCode::InvalidDataset);
}

#[test]
fn a_clip_of_one_frame_is_a_clip() {
    let path = clip("one.mp4", 1, &[]);
    let source = programs().open(&path).unwrap();
    assert_eq!(source.times().len(), 1);
    assert_eq!(used(&path).unwrap().count, 1);
    let picture = converted(
        "a.png",
        &["-f", "lavfi", "-i", "testsrc=size=64x64", "-frames:v", "1", "-update", "1", "-f", "image2"],
    );
    assert_eq!(used(&picture).unwrap().count, 1);
}

#[test]
fn an_mp4_without_its_index_is_damaged() {
    let cut = changed("no-moov.mp4", &clip("numbered.mp4", 60, &[]), |bytes| bytes.truncate(bytes.len() / 2));
    assert_eq!(code(&cut), ErrorCode::Malformed);
    assert_eq!(programs().probe(&cut).unwrap_err().code, ErrorCode::Malformed);
}

#[test]
fn a_file_that_is_cut_off_after_its_index_is_damaged() {
    let whole = clip("faststart.mp4", 60, &["-movflags", "+faststart"]);
    for part in [3, 2] {
        let cut = changed("cut-off.mp4", &whole, |bytes| bytes.truncate(bytes.len() - bytes.len() / part));
        assert_eq!(code(&cut), ErrorCode::Malformed, "1/{part} is missing");
    }
    let cut = changed("cut-off.mkv", &clip("numbered.mkv", 60, &[]), |bytes| bytes.truncate(bytes.len() * 2 / 3));
    assert_eq!(code(&cut), ErrorCode::Malformed);
}

#[test]
fn damaged_bits_are_detected_even_if_ffmpeg_succeeds() {
    let whole = clip("numbered.mp4", 60, &[]);
    for seed in [1_usize, 2, 3] {
        let hurt = changed("hurt.mp4", &whole, |bytes| {
            let data = bytes.windows(4).position(|w| w == b"mdat").unwrap() + 1000;
            // Damage the content of packets, not their headers: every decoder checks the lengths in headers.
            for i in 0..40 {
                let at = data + i * 41 * seed + i;
                if at < bytes.len() * 2 / 3 {
                    bytes[at] ^= 0x5a;
                }
            }
        });
        let plain =
            std::process::Command::new("ffmpeg").args(["-v", "quiet", "-i", hurt.as_str(), "-f", "null", "-"]).status();
        println!("ffmpeg alone ended with {:?}", plain.unwrap().code());
        assert_eq!(code(&hurt), ErrorCode::Malformed, "{hurt}");
        let source = programs().open(&hurt);
        assert!(source.is_err() || programs().scan(&source.unwrap()).is_err());
    }
}

#[test]
fn damage_after_the_chosen_frames_is_found_by_a_scan() {
    // FFV1 has a checksum per slice, which only the decoder reads.
    let checked = ["-c:v", "ffv1", "-level", "3", "-slicecrc", "1"];
    let whole = encoded("checked.mkv", &numbered(60), &checked);
    let hurt = changed("hurt-end.mkv", &whole, |bytes| {
        let at = bytes.len() * 9 / 10;
        bytes[at] ^= 1;
    });
    let source = programs().open(&hurt).unwrap();
    assert!(programs().decode(&source, &source.times()[..5], &Picture::new(32, 16)).is_ok());
    assert_eq!(programs().scan(&source).unwrap_err().code, ErrorCode::Malformed);
    assert_eq!(programs().scan(&programs().open(&whole).unwrap()).unwrap().frames, 60);
}

#[test]
fn times_and_sizes_that_do_not_exist_are_refused() {
    let source = programs().open(&clip("numbered.mp4", 60, &[])).unwrap();
    let decode = |times: &[f64], picture: &Picture| programs().decode(&source, times, picture).unwrap_err().code;
    let picture = Picture::new(32, 16);
    for times in [&[][..], &[0.02], &[0.0, 2.4], &[-0.04], &[f64::NAN]] {
        assert_eq!(decode(times, &picture), ErrorCode::InvalidArgument, "{times:?}");
    }
    for (width, height) in [(0, 16), (32, 0), (1 << 20, 16)] {
        assert_eq!(decode(&[0.0], &Picture::new(width, height)), ErrorCode::InvalidArgument);
    }
}

#[test]
fn a_missing_program_is_named_with_the_command_that_installs_it() {
    let path = clip("numbered.mp4", 60, &[]);
    let nowhere = Programs::at("/nowhere/ffmpeg", "/nowhere/ffprobe");
    let half = Programs::at("/nowhere/ffmpeg", "ffprobe");
    let failures = [
        nowhere.check().unwrap_err(),
        half.check().unwrap_err(),
        nowhere.probe(&path).unwrap_err(),
        used_with(&half, &path).unwrap_err(),
        half.write_mp4(&folder().join("unwritten.mp4"), &crate::clips::numbered(2), 8.0).unwrap_err(),
    ];
    for failure in failures {
        assert_eq!(failure.code, ErrorCode::ProgramMissing, "{failure}");
        assert!(failure.fix.contains("install ffmpeg"), "{failure}");
    }
    assert!(video::check_installed().unwrap().starts_with("ffmpeg version"));
}

#[test]
fn a_program_that_does_not_start_is_not_a_damaged_clip() {
    let path = clip("numbered.mp4", 60, &[]);
    let script = "echo 'error while loading shared libraries: libx264.so.164' >&2; exit 127";
    let broken = Programs::at(program("no-library", script), program("no-library-probe", script));
    let half = with_ffmpeg("no-library-decoder", script);
    let failures = [
        broken.check_ffprobe().unwrap_err(),
        broken.probe(&path).unwrap_err(),
        used_with(&half, &path).unwrap_err(),
        broken.write_mp4(&folder().join("unwritten.mp4"), &crate::clips::numbered(2), 8.0).unwrap_err(),
    ];
    for failure in failures {
        assert_eq!(failure.code, ErrorCode::ProgramMissing, "{failure}");
        assert!(failure.why.contains("libx264.so.164"), "{failure}");
    }
}

#[test]
fn a_killed_ffmpeg_does_not_make_the_clip_suspect() {
    let path = clip("numbered.mp4", 60, &[]);
    let killed = with_ffmpeg("killed", "head -c 5000 /dev/zero\nkill -9 $$");
    assert_eq!(used_with(&killed, &path).unwrap_err().code, ErrorCode::CommandFailed);
}

#[test]
fn an_ffmpeg_that_hangs_is_killed_after_the_limit() {
    let path = clip("numbered.mp4", 60, &[]);
    let pid = folder().join(format!("hang-{}.pid", std::process::id()));
    let script = format!("echo $$ > '{pid}'\nhead -c 5000 /dev/zero\nexec sleep 600");
    let mut hangs = with_hanging_ffmpeg("hangs", &script);
    let mut number = String::new();
    // On a busy machine, the shell may not have written its process id when it is killed.
    while !number.ends_with('\n') {
        assert!(hangs.silent_limit < Duration::from_secs(60), "the shell wrote nothing");
        assert_eq!(used_with(&hangs, &path).unwrap_err().code, ErrorCode::NoAnswer);
        number = fs::read_to_string(&pid).unwrap_or_default();
        hangs.silent_limit *= 2;
    }
    fs::remove_file(&pid).unwrap();
    assert!(!fs::exists(format!("/proc/{}", number.trim())).unwrap(), "process {number} is left");
}

#[test]
fn an_ffprobe_that_hangs_is_killed_after_the_limit() {
    let mut programs = Programs::at("ffmpeg", program("probe-hangs", "exec sleep 600"));
    programs.silent_limit = Duration::from_millis(300);
    assert_eq!(programs.probe(&clip("numbered.mp4", 60, &[])).unwrap_err().code, ErrorCode::NoAnswer);
}

#[test]
fn an_ffmpeg_that_writes_too_much_or_too_little_is_an_error() {
    let path = clip("numbered.mp4", 60, &[]);
    let much = with_ffmpeg("too-much", "exec head -c 10000000 /dev/zero");
    assert_eq!(used_with(&much, &path).unwrap_err().code, ErrorCode::Malformed);
    let little = with_ffmpeg("too-little", "exec head -c 1000 /dev/zero");
    assert_eq!(used_with(&little, &path).unwrap_err().code, ErrorCode::Malformed);
    let loud = with_ffmpeg("loud", "head -c 50000000 /dev/zero | tr '\\0' 'x\\n' >&2\nexit 1");
    let failure = used_with(&loud, &path).unwrap_err();
    assert_eq!(failure.code, ErrorCode::Malformed);
    assert!(failure.why.len() < 20_000, "an error of {} bytes", failure.why.len());
}

#[test]
fn a_playlist_and_a_list_of_videos_are_refused_and_the_videos_are_not_read() {
    let keep = tempfile::tempdir().unwrap();
    let folder = camino::Utf8Path::from_path(keep.path()).unwrap();
    fs::create_dir(folder.join("data")).unwrap();
    let video = converted("v.ts", &["-f", "lavfi", "-i", "testsrc2=s=128x96:r=25:d=1", "-c:v", "mpeg2video"]);
    fs::copy(&video, folder.join("v.ts")).unwrap();
    assert_eq!(used(&folder.join("v.ts")).unwrap().count, 25);
    let hls = |path: &str| format!("#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:1,\n{path}\n#EXT-X-ENDLIST\n");
    for (name, text) in [
        ("relative.mp4", hls("../v.ts")),
        ("absolute.mkv", hls(folder.join("v.ts").as_str())),
        ("hls.m3u8", hls("../v.ts")),
        ("concat.mp4", format!("ffconcat version 1.0\nfile {}\n", folder.join("v.ts"))),
        ("dash.mp4", "<?xml version=\"1.0\"?>\n<MPD type=\"static\"></MPD>\n".into()),
    ] {
        let path = folder.join("data").join(name);
        fs::write(&path, text).unwrap();
        let error = programs().examine(&path).unwrap_err();
        assert_eq!((error.fault, error.failure.code), (ClipFault::NotAVideo, ErrorCode::InvalidDataset), "{name}");
        assert!(error.failure.why.contains("refers to other files"), "{}", error.failure);
        assert!(programs().gif(&path, 64).is_err(), "{name}");
    }
}

#[test]
fn a_file_that_becomes_a_playlist_after_it_was_probed_is_not_decoded() {
    let keep = tempfile::tempdir().unwrap();
    let folder = camino::Utf8Path::from_path(keep.path()).unwrap();
    let (path, other) = (folder.join("a.mp4"), folder.join("v.ts"));
    fs::copy(clip("numbered.mp4", 60, &[]), &path).unwrap();
    fs::copy(converted("v.ts", &["-f", "lavfi", "-i", "testsrc2=s=128x96:r=25:d=1", "-c:v", "mpeg2video"]), &other)
        .unwrap();
    let source = programs().open(&path).unwrap();
    fs::write(&path, format!("#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:1,\n{other}\n#EXT-X-ENDLIST\n")).unwrap();
    let failure = programs().decode(&source, &source.times(), &Picture::new(32, 16)).unwrap_err();
    assert!(failure.why.contains("playlist"), "{failure}");
    assert!(programs().scan(&source).is_err());
}

#[test]
fn pipes_are_no_videos_and_no_pictures() {
    let keep = tempfile::tempdir().unwrap();
    let folder = camino::Utf8Path::from_path(keep.path()).unwrap();
    for name in ["a.mp4", "a.png"] {
        let path = folder.join(name);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(programs().examine(&path).unwrap_err().fault, ClipFault::NotAVideo, "{name}");
    }
    // The only frame of a folder of frames.
    let error = programs().examine(folder).unwrap_err();
    assert!(error.failure.why.contains("it is a pipe"), "{}", error.failure);
}

#[test]
fn names_that_look_like_options_or_protocols_are_files() {
    let whole = clip("numbered.mp4", 60, &[]);
    let keep = tempfile::tempdir().unwrap();
    let folder = camino::Utf8Path::from_path(keep.path()).unwrap();
    for name in ["-i.mp4", "concat:a|b.mp4", "a 'quoted' %03d, [x]; é.mp4", "http:clip.mp4"] {
        let path = folder.join(name);
        fs::copy(&whole, &path).unwrap();
        assert_eq!(used(&path).unwrap().count, 60, "{name}");
    }
    let list = folder.join("list.m3u8");
    fs::write(&list, "#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n").unwrap();
    assert!(used(&list).is_err(), "a playlist must not open a connection");
}

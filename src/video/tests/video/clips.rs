//! Clips for the tests, which the ffmpeg of this machine makes once, and programs that misbehave.
//!
//! The frames of a numbered clip carry their number as eight black or white blocks, so that a test can identify a frame
//! without trusting its time stamp.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use video::{Frames, Programs};

/// The side of a block in pixels.
const BLOCK: usize = 16;

/// The width of a numbered clip in pixels.
pub const WIDTH: usize = 8 * BLOCK;
/// The height of a numbered clip in pixels.
pub const HEIGHT: usize = 2 * BLOCK;

/// Encodes H.264 with a keyframe every 12 frames and B-frames.
pub const X264: &[&str] =
    &["-c:v", "libx264", "-preset", "veryfast", "-crf", "12", "-g", "12", "-bf", "2", "-pix_fmt", "yuv420p"];

/// Returns the folder of the clips. Clips are kept between test runs, under names that depend on how they are made.
pub fn folder() -> &'static Utf8Path {
    static FOLDER: OnceLock<Utf8PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Utf8Path::new(env!("CARGO_TARGET_TMPDIR")).join("video-clips");
        fs::create_dir_all(&folder).unwrap();
        folder
    })
}

/// The programs of this machine.
pub fn programs() -> Programs {
    Programs::default()
}

/// Returns the file that `make` writes. Calls `make` only if the file is missing, so the content must depend only on `key`.
pub fn file(name: &str, key: impl Hash, make: impl FnOnce(&Utf8Path)) -> Utf8PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut hasher = DefaultHasher::new();
    (name, key).hash(&mut hasher);
    let path = folder().join(format!("{:016x}-{name}", hasher.finish()));
    if !path.exists() {
        let part =
            folder().join(format!("part-{}-{}-{name}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        make(&part);
        fs::rename(&part, &path).unwrap();
    }
    path
}

/// Returns `count` frames with their numbers.
pub fn numbered(count: usize) -> Frames {
    let mut rgb = Vec::new();
    for number in 0..count {
        for y in 0..HEIGHT {
            for x in 0..WIDTH {
                // The second row is the inverse of the first. A damaged or turned frame rarely has this property.
                let bit = (number >> (x / BLOCK)) & 1 == 1;
                rgb.extend([if bit == (y < BLOCK) { 235 } else { 16 }; 3]);
            }
        }
    }
    Frames { width: WIDTH, height: HEIGHT, count, rgb }
}

/// Reads the numbers of decoded frames `[F, H, W, 3]`; `None` for a frame whose two rows of blocks do not agree.
pub fn numbers(frames: &Frames) -> Vec<Option<usize>> {
    let (across, down) = (frames.width / 8, frames.height / 2);
    let number = |index: usize| {
        let at = |x: usize, y: usize| frames.frame(index)[(y * frames.width + x) * 3 + 1];
        (0..8).try_fold(0, |number, bit| {
            let x = bit * across + across / 2;
            let (above, below) = (at(x, down / 2), at(x, down + down / 2));
            match (above > 170, above < 85, below > 170, below < 85) {
                (true, _, _, true) => Some(number | 1 << bit),
                (_, true, true, _) => Some(number),
                _ => None,
            }
        })
    };
    (0..frames.count).map(number).collect()
}

/// Makes a clip of 25 frames per second from frames; `options` come between input and output.
pub fn encoded(name: &str, frames: &Frames, options: &[&str]) -> Utf8PathBuf {
    let key = (options, &frames.rgb, frames.width);
    file(name, key, |path| {
        let size = format!("{}x{}", frames.width, frames.height);
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-video_size", &size]);
        ffmpeg.args(["-framerate", "25", "-i", "-"]).args(options).arg(path);
        let mut child = ffmpeg.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&frames.rgb).unwrap();
        assert!(child.wait().unwrap().success(), "ffmpeg cannot make {name}");
    })
}

/// Makes a numbered clip of 25 frames per second.
pub fn clip(name: &str, count: usize, options: &[&str]) -> Utf8PathBuf {
    encoded(name, &numbered(count), &[X264, options].concat())
}

/// Makes a file with ffmpeg, which gets the path of the file as its last argument.
pub fn converted(name: &str, args: &[&str]) -> Utf8PathBuf {
    file(name, args, |path| {
        let status = Command::new("ffmpeg").args(["-v", "error", "-y"]).args(args).arg(path).status().unwrap();
        assert!(status.success(), "ffmpeg cannot make {name}");
    })
}

/// Makes a file from the bytes of another.
pub fn changed(name: &str, from: &Utf8Path, change: impl FnOnce(&mut Vec<u8>)) -> Utf8PathBuf {
    let mut bytes = fs::read(from).unwrap();
    change(&mut bytes);
    file(name, &bytes, |path| fs::write(path, &bytes).unwrap())
}

/// Turns an mp4 by a quarter clockwise: changes the display matrix of its track.
pub fn turned(name: &str, from: &Utf8Path) -> Utf8PathBuf {
    changed(name, from, |bytes| {
        let at = bytes.windows(4).position(|w| w == b"tkhd").unwrap() + 44;
        let matrix: [i32; 9] = [0, 0x10000, 0, -0x10000, 0, 0, 0, 0, 0x4000_0000];
        bytes.splice(at..at + 36, matrix.iter().flat_map(|n| n.to_be_bytes()));
    })
}

/// Makes a program from a shell script.
pub fn program(name: &str, script: &str) -> Utf8PathBuf {
    file(name, script, |path| {
        fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    })
}

/// Returns the programs with an ffmpeg that hangs, and with a limit of two seconds without output.
pub fn with_hanging_ffmpeg(name: &str, script: &str) -> Programs {
    let mut programs = with_ffmpeg(name, script);
    // Read version and filters with the real program first.
    programs.check().unwrap();
    // A shell takes a second to start on a busy machine.
    programs.silent_limit = Duration::from_secs(2);
    programs
}

/// Returns the programs with another ffmpeg.
///
/// The script is started for decoding only; the real ffmpeg handles `-version` and `-filters`.
pub fn with_ffmpeg(name: &str, script: &str) -> Programs {
    let ask = "for arg; do case $arg in -version|-filters) exec ffmpeg \"$@\";; esac; done";
    let mut programs = programs();
    programs.ffmpeg = program(name, &format!("{ask}\n{script}"));
    programs
}

//! Tests of colours: decoded patches must have the RGB values that were encoded.

use failure::ErrorCode;
use video::{CropMode, Frames, Hdr, Matrix, Picture, Programs};

use crate::clips::{converted, encoded, program, programs};

/// The colours of the patches, from left to right.
const PATCHES: [[u8; 3]; 8] = [
    [200, 40, 40],
    [40, 190, 50],
    [40, 60, 200],
    [220, 210, 60],
    [128, 128, 128],
    [60, 200, 200],
    [20, 20, 20],
    [235, 235, 235],
];

fn patches(width: usize, height: usize) -> Frames {
    let line: Vec<u8> = (0..width).flat_map(|x| PATCHES[x * 8 / width]).collect();
    Frames { width, height, count: 1, rgb: line.repeat(height) }
}

/// Encodes the patches with a matrix and a range; `tags` are the colour tags of the file.
fn tagged(name: &str, height: usize, matrix: &str, range: &str, tags: &[&str], pix_fmt: &str) -> camino::Utf8PathBuf {
    let convert = format!(
        "scale=in_range=pc:out_range={range}:out_color_matrix={matrix}:flags=accurate_rnd+full_chroma_inp,format={pix_fmt}"
    );
    let x264 = ["-vf", &convert, "-c:v", "libx264", "-preset", "veryfast", "-crf", "4"];
    encoded(name, &patches(256, height), &[&x264[..], tags].concat())
}

/// Decodes at the stored size and returns the colour in the middle of each patch.
fn seen(programs: &Programs, path: &camino::Utf8Path) -> Vec<[u8; 3]> {
    let source = programs.open(path).unwrap();
    let (width, height) = (source.probe.width, source.probe.height);
    let picture = Picture { crop: CropMode::None, ..Picture::new(width, height) };
    let frames = programs.decode(&source, &source.times(), &picture).unwrap();
    let at = |x: usize| (height / 2 * width + x) * 3;
    (0..8).map(|i| at(i * width / 8 + width / 16)).map(|at| [0, 1, 2].map(|c| frames.rgb[at + c])).collect()
}

/// Returns the largest difference from the patches.
fn error(path: &camino::Utf8Path) -> u8 {
    let seen = seen(&programs(), path);
    seen.iter().flatten().zip(PATCHES.iter().flatten()).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

const TAGS_709: &[&str] =
    &["-colorspace", "bt709", "-color_primaries", "bt709", "-color_trc", "bt709", "-color_range", "tv"];
const TAGS_601: &[&str] = &["-colorspace", "smpte170m", "-color_range", "tv"];
const TAGS_FULL: &[&str] = &["-colorspace", "bt709", "-color_range", "pc"];

#[test]
fn pixels_are_those_of_scaling_to_packed_rgb() {
    const SIZE: &str = "testsrc2=size=322x182:duration=0.04";
    let picture = Picture::new(96, 64);
    for format in ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuvj420p", "gbrp"] {
        let name = format!("packed-{format}.nut");
        let clip = converted(&name, &["-f", "lavfi", "-i", SIZE, "-pix_fmt", format, "-c:v", "ffv1"]);
        let source = programs().open(&clip).unwrap();
        let range = if source.probe.full_range { "pc" } else { "tv" };
        let colours = match source.probe.matrix {
            Matrix::Rgb => String::new(),
            _ => format!(":in_color_matrix=smpte170m:in_range={range}:out_range=pc"),
        };
        let filters = format!(
            "scale=113:64:flags=bicubic+accurate_rnd+full_chroma_int+full_chroma_inp+bitexact{colours},format=rgb24,crop=96:64:8:0"
        );
        let packed = std::process::Command::new("ffmpeg")
            .args(["-v", "error", "-i", clip.as_str(), "-vf", &filters, "-f", "rawvideo", "-"])
            .output()
            .unwrap();
        let frames = programs().decode(&source, &source.times(), &picture).unwrap();
        assert!(frames.rgb == packed.stdout, "{format}: other pixels");
    }
}

#[test]
fn tagged_colours_come_back() {
    let cases = [
        ("709-small.mp4", 64, "bt709", "tv", TAGS_709),
        ("601-large.mp4", 720, "smpte170m", "tv", TAGS_601),
        ("full.mp4", 64, "bt709", "pc", TAGS_FULL),
    ];
    for (name, height, matrix, range, tags) in cases {
        assert!(error(&tagged(name, height, matrix, range, tags, "yuv420p")) <= 3, "{name}");
    }
}

#[test]
fn untagged_video_is_hd_from_720_lines_on() {
    assert!(error(&tagged("709-untagged.mp4", 720, "bt709", "tv", &[], "yuv420p")) <= 3);
    assert!(error(&tagged("601-untagged.mp4", 64, "smpte170m", "tv", &[], "yuv420p")) <= 3);
    let wrong = error(&tagged("709-untagged-small.mp4", 64, "bt709", "tv", &[], "yuv420p"));
    assert!(wrong > 10, "the patches distinguish the matrices: {wrong}");
}

#[test]
fn ten_bits_are_rounded_to_eight() {
    let path = tagged("ten-bit.mp4", 64, "bt709", "tv", TAGS_709, "yuv420p10le");
    assert_eq!(programs().probe(&path).unwrap().bit_depth, 10);
    assert!(error(&path) <= 3);
}

#[test]
fn rgb_video_has_no_matrix() {
    let path = encoded("rgb.mkv", &patches(256, 64), &["-c:v", "ffv1", "-pix_fmt", "gbrp"]);
    assert_eq!(programs().probe(&path).unwrap().matrix, Matrix::Rgb);
    assert_eq!(error(&path), 0);
}

/// Grey patches of HDR: code values of 10 bits for 0, 1, 10, 50, 100, 203, 400 and 1000 cd/m² in PQ.
const PQ: [u16; 8] = [64, 195, 326, 450, 509, 573, 636, 723];

fn hdr(name: &str, transfer: &str) -> camino::Utf8PathBuf {
    // yuv420p10le of neutral grey, written by hand.
    let mut bytes: Vec<u8> = Vec::new();
    for _ in 0..32 {
        bytes.extend((0..256).flat_map(|x| PQ[x * 8 / 256].to_le_bytes()));
    }
    bytes.extend([512_u16; 2 * 128 * 16].iter().flat_map(|v| v.to_le_bytes()));
    let raw = crate::clips::file("hdr.yuv", &bytes, |path| std::fs::write(path, &bytes).unwrap());
    let x265 =
        ["-f", "rawvideo", "-pix_fmt", "yuv420p10le", "-video_size", "256x32", "-i", raw.as_str(), "-c:v", "libx264"];
    let tags = [
        "-preset",
        "veryfast",
        "-crf",
        "2",
        "-colorspace",
        "bt2020nc",
        "-color_primaries",
        "bt2020",
        "-color_trc",
        transfer,
    ];
    crate::clips::converted(name, &[&x265[..], &tags, &["-color_range", "tv"]].concat())
}

#[test]
fn hdr_is_tone_mapped() {
    if !has_tone_mapping() {
        println!("skipped: this ffmpeg has no filters zscale and tonemap");
        return;
    }
    for (name, transfer, kind) in [("pq.mp4", "smpte2084", Hdr::Pq), ("hlg.mp4", "arib-std-b67", Hdr::Hlg)] {
        let path = hdr(name, transfer);
        assert_eq!(programs().probe(&path).unwrap().hdr, Some(kind));
        let seen = seen(&programs(), &path);
        for [r, g, b] in &seen {
            assert!(r.abs_diff(*g) <= 2 && g.abs_diff(*b) <= 2, "{name}: grey stays grey: {seen:?}");
        }
        let levels: Vec<u8> = seen.iter().map(|rgb| rgb[1]).collect();
        assert!(levels.is_sorted() && levels[0] <= 3, "{name}: {levels:?}");
        if kind == Hdr::Pq {
            // Conversion without tone mapping shows 100 cd/m², the white of SDR, as a dark grey of 129, and 1000 cd/m²
            // as 191. With tone mapping, the peak is white.
            assert!(levels[7] >= 245, "{levels:?}");
            assert!(levels[4] >= 80 && levels[4] < levels[7] - 40, "{levels:?}");
        }
    }
}

#[test]
fn hdr_is_refused_with_a_reason_if_ffmpeg_lacks_the_filters() {
    let path = hdr("pq.mp4", "smpte2084");
    let without = "for arg; do case $arg in -filters) ffmpeg -hide_banner -filters 2>&1 | grep -v -e zscale -e tonemap; exit;; esac; done\nexec ffmpeg \"$@\"";
    let programs = Programs::at(program("no-zscale", without), "ffprobe");
    let source = programs.open(&path).unwrap();
    let failure = programs.decode(&source, &source.times(), &Picture::new(64, 32)).unwrap_err();
    assert_eq!(failure.code, ErrorCode::InvalidDataset);
    assert!(failure.why.contains("zscale"));
}

fn has_tone_mapping() -> bool {
    let listed = std::process::Command::new("ffmpeg").args(["-hide_banner", "-filters"]).output().unwrap();
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    text.contains(" zscale ") && text.contains(" tonemap ")
}

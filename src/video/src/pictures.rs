//! Single pictures: frames to PNG, and the picture that conditions a video.

use std::io::{BufReader, BufWriter, ErrorKind, Write};

use camino::Utf8Path;
use failure::{ErrorCode, Failure, FileError};
use image::codecs::png::PngEncoder;
use image::metadata::Orientation;
use image::{DynamicImage, ExtendedColorType, ImageDecoder, ImageEncoder, ImageError, ImageReader};
use text_file::open_regular;

use crate::colour::{Colour, Matrix};
use crate::failures::{ClipError, ClipFault, check_file};
use crate::frames::Frames;
use crate::geometry::{Fit, Picture};
use crate::probe::Probe;
use crate::resample::{Filter, resize};
use crate::source::VideoFile;
use crate::write::Part;

/// The file name extensions of pictures that are read as one frame.
const PICTURE_ENDINGS: [&str; 4] = ["png", "jpg", "jpeg", "webp"];
/// The file name extensions of pictures that cannot be read.
pub const OTHER_PICTURE_ENDINGS: [&str; 4] = ["bmp", "tif", "tiff", "avif"];
/// The maximum number of pixels of a picture or a frame. The largest cameras have 150 megapixels. Each pixel takes up to 8 bytes while a
/// picture is read, and every core may read one.
const MAX_PIXELS: u64 = 160_000_000;
/// [`Probe::container`] of a picture.
pub(crate) const PICTURE: &str = "picture";

/// Writes one frame as a PNG, first under a temporary name. An existing file is replaced.
///
/// # Errors
/// `InvalidArgument` if there is no such frame; `DiskFull`, `Io` and other codes of the file system.
pub fn write_png(path: &Utf8Path, frames: &Frames, index: usize) -> Result<(), Failure> {
    let none = || format!("there are {} frames, but frame {index} was requested", frames.count);
    if let Some(why) = frames.mismatch().or_else(|| (index >= frames.count).then(none)) {
        let what = format!("cannot write {path}");
        return Err(Failure::new(ErrorCode::InvalidArgument, what, why, "give a frame that exists"));
    }
    let part = Part::beside(path);
    let write = || -> Result<(), ImageError> {
        let mut file = BufWriter::new(std::fs::File::create(&part.0)?);
        let (width, height) = (frames.width as u32, frames.height as u32);
        PngEncoder::new(&mut file).write_image(frames.frame(index), width, height, ExtendedColorType::Rgb8)?;
        Ok(file.flush()?)
    };
    write().map_err(|error| failure("write", path, error))?;
    part.rename(path)
}

/// Reads a PNG, JPEG or WebP as one frame.
///
/// The picture is turned as its EXIF data states. An alpha channel is dropped, as Pillow's `convert("RGB")` does.
///
/// # Errors
/// `NotFound` and other codes of the file system; `Malformed`, if the file is not a valid picture of these formats; `InvalidDataset`, if it
/// has too many pixels.
pub fn read_image(path: &Utf8Path) -> Result<Frames, Failure> {
    let load = || -> Result<DynamicImage, ImageError> {
        let mut decoder = decoder(path)?;
        let orientation = decoder.orientation()?;
        let mut picture = DynamicImage::from_decoder(decoder)?;
        picture.apply_orientation(orientation);
        Ok(picture)
    };
    let picture = load().map_err(|error| failure("read", path, error))?.into_rgb8();
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    Ok(Frames { width, height, count: 1, rgb: picture.into_raw() })
}

/// Returns the width and height of a PNG, JPEG or WebP, after the turn that its EXIF data states. Reads only the header.
pub(crate) fn image_size(path: &Utf8Path) -> Result<(usize, usize), Failure> {
    let size = || -> Result<(u32, u32), ImageError> {
        let mut decoder = decoder(path)?;
        let (width, height) = decoder.dimensions();
        Ok(match decoder.orientation()? {
            Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH => (height, width),
            _ => (width, height),
        })
    };
    let (width, height) = size().map_err(|error| failure("read", path, error))?;
    Ok((width as usize, height as usize))
}

/// Opens a picture and reads its header. A picture with too many pixels is an error, before memory is allocated for it.
fn decoder(path: &Utf8Path) -> Result<impl ImageDecoder, ImageError> {
    let reader = ImageReader::new(BufReader::new(open_regular(path)?)).with_guessed_format()?;
    let decoder = reader.into_decoder()?;
    let (width, height) = decoder.dimensions();
    match too_large(width.into(), height.into()) {
        Some(why) => Err(ImageError::IoError(std::io::Error::new(ErrorKind::InvalidData, why))),
        None => Ok(decoder),
    }
}

/// Returns why a picture of this size is not decoded, if it is too large.
pub(crate) fn too_large(width: u64, height: u64) -> Option<String> {
    width
        .checked_mul(height)
        .is_none_or(|pixels| pixels > MAX_PIXELS)
        .then(|| format!("it has {width} × {height} pixels, and the limit is {} megapixels", MAX_PIXELS / 1_000_000))
}

/// Returns whether the extension of a file is that of a PNG, JPEG or WebP, which is read as a video of one frame.
pub fn is_picture(path: &Utf8Path) -> bool {
    has_ending(path, &PICTURE_ENDINGS)
}

/// Returns whether a file name has one of these extensions, in upper or lower case.
pub(crate) fn has_ending(path: &Utf8Path, endings: &[&str]) -> bool {
    path.extension().is_some_and(|ending| endings.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

/// Reads a picture as a clip of one frame at time 0. Does not use ffmpeg, which ignores the rotation in EXIF data and
/// converts the colours of a JPEG without tags by the wrong rule.
pub(crate) fn picture(path: &Utf8Path) -> Result<VideoFile, ClipError> {
    let bytes = check_file(path)?;
    let Frames { width, height, .. } = read_image(path).map_err(|failure| match failure.code {
        ErrorCode::InvalidDataset => ClipError { fault: ClipFault::Unsupported, failure },
        ErrorCode::Malformed => damaged_picture(path, failure.why),
        _ => failure.into(),
    })?;
    let probe = probe(PICTURE, path, (width, height), 1, bytes);
    Ok(VideoFile { path: path.to_owned(), probe, pts: vec![0], keys: Vec::new(), pictures: Vec::new() })
}

/// Returns the properties of a clip of pictures of one size.
///
/// * `container` — [`PICTURE`], or the container of a folder of frames.
/// * `first` — the first picture.
/// * `bytes` — the size of all pictures.
pub(crate) fn probe(
    container: &str,
    first: &Utf8Path,
    (width, height): (usize, usize),
    frames: usize,
    bytes: u64,
) -> Probe {
    Probe {
        container: container.into(),
        codec: first.extension().unwrap_or_default().to_ascii_lowercase(),
        stream: 0,
        video_streams: 1,
        width,
        height,
        stored_width: width,
        stored_height: height,
        rotation: 0,
        sample_aspect: [1, 1],
        fps: 0.0,
        frames: Some(frames as u64),
        duration_s: 0.0,
        start_s: 0.0,
        time_base: [1, 1],
        pixel_format: "rgb24".into(),
        bit_depth: 8,
        colour: Colour::default(),
        matrix: Matrix::Rgb,
        full_range: true,
        hdr: None,
        interlaced: false,
        bytes,
        errors: Vec::new(),
    }
}

fn damaged_picture(path: &Utf8Path, why: String) -> ClipError {
    let fix = "copy the file again, or remove it from the data set";
    let failure = Failure::new(ErrorCode::Malformed, format!("{path} is damaged"), why, fix);
    ClipError { fault: ClipFault::Damaged, failure }
}

/// Reads a picture, scales it with Pillow's Lanczos filter and crops it. Returns `count` copies.
pub(crate) fn decode_picture(path: &Utf8Path, picture: &Picture, count: usize) -> Result<Frames, Failure> {
    let rgb = fitted(&read_image(path)?, picture).repeat(count);
    Ok(Frames { width: picture.width, height: picture.height, count, rgb })
}

/// Scales a frame with Pillow's Lanczos filter, crops it, and returns its pixels `[H, W, 3]`.
pub(crate) fn fitted(frame: &Frames, picture: &Picture) -> Vec<u8> {
    let fit = Fit::new(frame.width, frame.height, picture);
    let scaled = resize(frame, fit.scaled.0, fit.scaled.1, Filter::Lanczos);
    let row = |row: usize| {
        let start = ((fit.at.1 + row) * scaled.width + fit.at.0) * 3;
        &scaled.rgb[start..start + picture.width * 3]
    };
    (0..picture.height).flat_map(row).copied().collect()
}

fn failure(action: &'static str, path: &Utf8Path, error: ImageError) -> Failure {
    match error {
        ImageError::IoError(error) if error.kind() == ErrorKind::InvalidData => Failure::new(
            ErrorCode::InvalidDataset,
            format!("cannot {action} {path}"),
            error.to_string(),
            "scale the picture down",
        ),
        ImageError::IoError(error) if error.kind() != ErrorKind::UnexpectedEof => {
            FileError::io(action, path, error).into()
        }
        error => {
            let fix = "give a PNG, JPEG or WebP; `ffmpeg -i IN OUT.png` converts other formats";
            Failure::new(ErrorCode::Malformed, format!("cannot {action} {path}"), error.to_string(), fix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, camino::Utf8PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = camino::Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
        (folder, path)
    }

    #[test]
    fn a_picture_is_a_clip_of_one_frame_that_is_scaled_and_cut() {
        let keep = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(keep.path()).unwrap().join("a.PNG");
        let rgb: Vec<u8> = (0..16 * 8 * 3).map(|n| n as u8).collect();
        write_png(&path, &Frames { width: 16, height: 8, count: 1, rgb: rgb.clone() }, 0).unwrap();
        let programs = crate::Programs::default();
        let source = programs.open(&path).unwrap();
        assert_eq!((source.probe.width, source.probe.height, source.times()), (16, 8, vec![0.0]));
        assert!(source.probe.is_picture());
        let decoded = |width, height| programs.decode(&source, &[0.0], &Picture::new(width, height)).unwrap();
        assert_eq!(decoded(16, 8).rgb, rgb);
        let cut = decoded(8, 8);
        assert_eq!((cut.width, cut.height, cut.count), (8, 8, 1));
        assert_eq!(cut.rgb[..24], rgb[4 * 3..12 * 3], "the middle of the first row");
        let half = resize(&Frames { width: 16, height: 8, count: 1, rgb }, 8, 4, Filter::Lanczos);
        assert_eq!(decoded(8, 4).rgb, half.rgb);
        std::fs::write(&path, "no picture").unwrap();
        let error = programs.examine(&path).unwrap_err();
        assert_eq!((error.fault, error.failure.code), (ClipFault::Damaged, ErrorCode::Malformed));
    }

    /// Changes the size in the header of a PNG.
    fn resized(path: &Utf8Path, width: u32, height: u32) {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[16..20].copy_from_slice(&width.to_be_bytes());
        bytes[20..24].copy_from_slice(&height.to_be_bytes());
        let bit = |sum: u32| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
        let sum =
            bytes[12..29].iter().fold(u32::MAX, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), |sum, _| bit(sum)));
        bytes[29..33].copy_from_slice(&(!sum).to_be_bytes());
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn a_picture_of_too_many_pixels_is_refused_before_it_is_decoded() {
        let (_keep, folder) = folder();
        let path = folder.join("a.png");
        write_png(&path, &Frames { width: 2, height: 1, count: 1, rgb: vec![0; 6] }, 0).unwrap();
        resized(&path, 2, 1);
        assert_eq!(read_image(&path).unwrap().width, 2, "the checksum is right");
        resized(&path, 30_000, 30_000);
        let error = picture(&path).unwrap_err();
        assert_eq!((error.fault, error.failure.code), (ClipFault::Unsupported, ErrorCode::InvalidDataset));
        for failure in [error.failure, read_image(&path).unwrap_err(), image_size(&path).unwrap_err()] {
            assert!(failure.why.contains("30000 × 30000 pixels") && failure.what.contains("a.png"), "{failure}");
        }
        assert_eq!(too_large(16_000, 10_000), None);
        assert!(too_large(16_000, 10_001).is_some() && too_large(u64::MAX, 2).is_some());
    }

    #[test]
    fn a_frame_written_as_png_is_read_back() {
        let (_keep, folder) = folder();
        let rgb: Vec<u8> = (0..2 * 5 * 3 * 3).map(|i| i as u8 * 2).collect();
        let frames = Frames { width: 5, height: 3, count: 2, rgb };
        write_png(&folder.join("b.png"), &frames, 1).unwrap();
        assert_eq!(read_image(&folder.join("b.png")).unwrap().rgb, frames.frame(1));
        assert_eq!(write_png(&folder.join("c.png"), &frames, 2).unwrap_err().code, ErrorCode::InvalidArgument);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn files_that_are_no_pictures_are_refused() {
        let (_keep, folder) = folder();
        let code = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            std::fs::write(&path, bytes).unwrap();
            read_image(&path).unwrap_err().code
        };
        assert_eq!(code("empty.png", b""), ErrorCode::Malformed);
        assert_eq!(code("text.jpg", b"not a picture"), ErrorCode::Malformed);
        assert_eq!(code("cut.png", b"\x89PNG\r\n\x1a\n\0\0"), ErrorCode::Malformed);
        assert_eq!(read_image(&folder.join("none.png")).unwrap_err().code, ErrorCode::NotFound);
        let frames = Frames { width: 1, height: 1, count: 1, rgb: vec![0; 3] };
        let missing = folder.join("no-folder/a.png");
        assert_eq!(write_png(&missing, &frames, 0).unwrap_err().code, ErrorCode::NotFound);
    }
}

//! The input options of ffmpeg and ffprobe: a video is one file, and no other file is read for it.
//!
//! ffmpeg chooses the demuxer by the content of a file, whatever its name, and some demuxers open the files that their input names: a
//! playlist (HLS, DASH), a list (concat), a script, a pattern of image names. The frames would be those of another file, of which neither
//! the check nor the hash of the clip knows.

use std::io::Read;
use std::process::Command;

use camino::Utf8Path;
use text_file::open_regular;

use crate::failures::{ClipError, ClipFault, unusable};

/// The demuxers that read only the file itself: containers and raw streams of videos, files of sound and pictures, which are refused with
/// their own reasons later. Names that an ffmpeg does not have are ignored. `image2` is left out: it reads the files that a pattern names.
const DEMUXERS: &str = "3dostr,4xm,aac,ac3,aiff,amr,apng,asf,asf_o,au,av1,avi,avs2,avs3,bmp_pipe,caf,cavsvideo,dav,dhav,dirac,dnxhd,dts,\
    dv,eac3,evc,exr_pipe,ffv1,flac,flv,gif,gif_pipe,gxf,h261,h263,h264,hevc,ivf,jpeg_pipe,jpegls_pipe,jpegxl_anim,jpegxl_pipe,j2k_pipe,\
    live_flv,lxf,m4v,matroska,mjpeg,mjpeg_2000,mov,mp3,mpeg,mpegts,mpegvideo,mpjpeg,mxf,nsv,nut,obu,ogg,pam_pipe,pbm_pipe,pcx_pipe,\
    pgm_pipe,pgmyuv_pipe,png_pipe,ppm_pipe,psd_pipe,qoi_pipe,rm,roq,smjpeg,sunrast_pipe,swf,tiff_pipe,truehd,tta,vc1,vc1test,vvc,w64,wav,\
    webp_pipe,wtv,wv,xwd_pipe,yuv4mpegpipe";

/// The error of ffmpeg and ffprobe for a demuxer that is not in [`DEMUXERS`].
const NOT_LISTED: &str = "Format not on whitelist";

/// The bytes that are searched for the beginning of a playlist.
const BEGIN: u64 = 4096;

/// The beginnings of files that refer to other files.
const REFERENCES: [(&str, &str); 8] = [
    ("#EXTM3U", "a playlist (HLS)"),
    ("ffconcat version", "a list of videos (concat)"),
    ("<MPD", "a playlist (DASH)"),
    ("<SmoothStreamingMedia", "a playlist (Smooth Streaming)"),
    ("<AssetMap", "a playlist (IMF)"),
    ("<CompositionPlaylist", "a playlist (IMF)"),
    ("[playlist]", "a playlist (PLS)"),
    ("v=0", "a description of a stream (SDP)"),
];

/// Adds the input to a command of ffmpeg or ffprobe.
pub(crate) fn add(command: &mut Command, path: &Utf8Path) {
    command.args(["-protocol_whitelist", "file", "-format_whitelist", DEMUXERS]);
    command.arg("-i").arg(format!("file:{path}"));
}

/// Returns the failure of a file that refers to others or whose format is not read, if ffmpeg or ffprobe failed because of that.
///
/// * `errors` — the first lines that the program logged.
pub(crate) fn refused(path: &Utf8Path, errors: &[String]) -> Option<ClipError> {
    let refuse = |why: String, fix: &str| Some(unusable(path, ClipFault::NotAVideo, why, fix));
    if let Some(kind) = reference(path) {
        let fix = "name the videos themselves, or join them to one file with ffmpeg";
        return refuse(format!("it is {kind} that refers to other files"), fix);
    }
    if errors.iter().any(|line| line.contains(NOT_LISTED)) {
        let fix = "convert it to mp4, mkv, webm or mov, or remove it from the data set";
        return refuse("its format is not one of those that are read".into(), fix);
    }
    None
}

/// Returns the kind of a file that refers to others.
fn reference(path: &Utf8Path) -> Option<&'static str> {
    let mut begin = Vec::new();
    open_regular(path).and_then(|file| file.take(BEGIN).read_to_end(&mut begin)).ok()?;
    let text = String::from_utf8_lossy(&begin);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let is_xml = text.starts_with('<');
    let begins = |mark: &str| text.starts_with(mark) || (is_xml && mark.starts_with('<') && text.contains(mark));
    REFERENCES.iter().find(|(mark, _)| begins(mark)).map(|(_, kind)| *kind)
}

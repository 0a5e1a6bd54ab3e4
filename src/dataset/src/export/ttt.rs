//! The files of ttt-video-dit: videos of one size, rate and length, the texts of their segments, and the index of a training.
//!
//! Source: ttt-video-dit `data/precomp_video.py`, `data/precomp_text.py`, `ttt/datasets/preembedding_dataset.py`.

use super::formats::pretty;
use super::{ExportClip, Folder, interrupted};
use crate::Clip;
use crate::each_file::{CheckProgress, OnProgress};
use camino::Utf8Path;
use rundir::{ErrorCode, Failure};
use serde_json::{Map, json};
use std::collections::BTreeSet;
use tokenizer::{SCENE_END, SCENE_START};
use video::{CropMode, FrameChoice, Picture, Programs, choose};

/// The rate of its videos.
pub(super) const FPS: f64 = 16.0;
/// The height and width of its videos in pixels.
const SIZE: [usize; 2] = [480, 720];
/// The seconds that one caption describes.
const SEGMENT_S: usize = 3;
/// The number of tokens of a caption for each length of a video in seconds. Other lengths take the first one.
const TEXT_LEN: [(usize, usize); 5] = [(3, 498), (9, 502), (18, 471), (30, 497), (63, 458)];

/// Returns the frames of a video with so many segments.
pub(super) fn frames(segments: usize) -> usize {
    segments.max(1) * SEGMENT_S * FPS as usize + 1
}

/// Writes the videos, and the lists of their texts and of the files that the programs of ttt-video-dit make of both.
pub(super) fn write(
    folder: &mut Folder<'_>,
    clips: &[ExportClip<'_>],
    on_progress: OnProgress<'_>,
) -> Result<String, Failure> {
    let counts: BTreeSet<usize> = clips.iter().map(|clip| clip.clip.captions().count()).collect();
    let segments = match counts.iter().copied().collect::<Vec<_>>().as_slice() {
        [segments] => *segments,
        several => {
            let why = format!(
                "the clips have {several:?} captions each, one per {SEGMENT_S} s, and all videos of a training have one length"
            );
            let what = "cannot export as ttt-video-dit";
            return Err(Failure::new(ErrorCode::InvalidDataset, what, why, "export the clips of each length apart"));
        }
    };
    folder.refuse_existing(&["texts.json", "train.jsonl"])?;
    let videos = folder.folder("videos")?;
    keep_or_remove(folder, &videos, clips, segments)?;
    let seconds = segments * SEGMENT_S;
    let text_len = TEXT_LEN.iter().find(|(of, _)| *of == seconds).unwrap_or(&TEXT_LEN[0]).1;
    let (mut texts, mut index) = (Map::new(), String::new());
    for (number, ExportClip { clip, .. }) in clips.iter().enumerate() {
        let progress = CheckProgress { done: number, total: clips.len(), cached: 0 };
        if on_progress(progress).is_break() {
            return Err(interrupted(progress));
        }
        // The programs take the number of a video from this name.
        let name = format!("video_sample_{number:04}");
        let path = videos.join(format!("{name}.mp4"));
        if !path.exists() {
            convert(&folder.request.programs, clip, segments, &path)?;
        }
        let mut embeddings = Vec::new();
        for (segment, caption) in clip.captions().enumerate() {
            let (start, text) = caption.strip_prefix(SCENE_START).map_or((false, caption), |text| (true, text));
            let (end, text) = text.strip_suffix(SCENE_END).map_or((false, text), |text| (true, text));
            let of_segment = videos.join(format!("{name}-{segment}.mp4"));
            let entry = json!({ "mp4": of_segment, "text": text, "scene_start": start, "scene_end": end });
            texts.insert(texts.len().to_string(), entry);
            // The program writes each variant of the tokens of scenes into a folder of its own.
            let variant = match (start, end) {
                (false, false) => "",
                (true, false) => "start",
                (false, true) => "end",
                (true, true) => "both",
            };
            embeddings.push(format!(
                "texts/tom-and-jerry-{seconds}s-{text_len}-{variant}/videos/{name}-{segment}_txt_emb.pt"
            ));
        }
        index += &json!({ "vid_emb": format!("latents/{name}.pt"), "text_chunk_emb": embeddings }).to_string();
        index.push('\n');
    }
    let texts = folder.write("texts.json", &pretty(&texts.into()))?;
    folder.write("train.jsonl", &index)?;
    let out = &folder.path;
    Ok(format!(
        "prepare the texts with precomp_text.py --video_length {seconds} --max_length {text_len} --input_jsonl_file {texts} \
         --output_path {out}/texts, and the videos with precomp_video.py from {videos} to {out}/latents; \
         then train with training.dataset_path = \"{out}\" and training.jsonl_paths = \"{out}/train.jsonl\""
    ))
}

/// The file that lists which clips the videos show, in their order. The names of the videos are numbers only.
const SOURCES: &str = "sources.json";

/// Removes the videos of an export of other clips, and writes [`SOURCES`]. Those of an interrupted export of the same clips are kept.
fn keep_or_remove(
    folder: &Folder<'_>,
    videos: &Utf8Path,
    clips: &[ExportClip<'_>],
    segments: usize,
) -> Result<(), Failure> {
    let list = videos.join(SOURCES);
    let shown: Vec<_> = clips.iter().map(|of| json!([of.clip.path, of.clip.stamp])).collect();
    let sources = pretty(&json!({ "segments": segments, "clips": shown }));
    if rundir::read_text(&list).is_ok_and(|earlier| earlier == sources) {
        return Ok(());
    }
    let old = (0..).map(|number| videos.join(format!("video_sample_{number:04}.mp4")));
    for path in old.take_while(|path| path.symlink_metadata().is_ok()) {
        if !folder.request.force {
            let fix = "choose another folder, or replace it with --force";
            return Err(super::already_exists(&path, "it is of an export of other clips", fix));
        }
        std::fs::remove_file(&path).map_err(|error| rundir::Error::io("remove", &path, error))?;
    }
    Ok(rundir::write_atomic(&list, sources.as_bytes())?)
}

/// Writes a clip in the size, rate and length of ttt-video-dit.
fn convert(programs: &Programs, clip: &Clip, segments: usize, to: &camino::Utf8Path) -> Result<(), Failure> {
    let source = programs.open(&clip.path)?;
    let choice = super::ExportFormat::TttVideoDit.choice(None, segments).expect("the format has a length");
    let choice: FrameChoice = clip.choice(&choice);
    let times = choose(&source.times(), &choice).map_err(|error| error.failure(&clip.path))?;
    let [height, width] = SIZE;
    let picture = Picture { crop: CropMode::Center, ..Picture::new(width, height) };
    programs.write_mp4(to, &programs.decode(&source, &times, &picture)?, FPS)
}

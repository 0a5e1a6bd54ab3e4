//! The formats of trainers that read videos where they are.
//!
//! Sources: Open-Sora `opensora/datasets/datasets.py`, `scripts/cnv/meta.py`; finetrainers `finetrainers/data/dataset.py`; VideoX-Fun
//! `videox_fun/data/dataset_image_video.py`; musubi-tuner `dataset/datasources.py`, `docs/dataset_config.md`; diffusion-pipe
//! `utils/dataset.py`, `examples/dataset.toml`.

use super::{ExportClip, Folder, link};
use crate::{Clip, FieldValue};
use camino::Utf8Path;
use recipe::Bucket;
use rundir::Failure;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The columns that Open-Sora needs.
const OPEN_SORA: [&str; 8] = ["path", "text", "num_frames", "height", "width", "aspect_ratio", "resolution", "fps"];
/// The column of Open-Sora 2 for what `vidtui data score` writes as `motion`.
const VMAF_MOTION: &str = "score_vmafmotion";

/// Writes the table of Open-Sora 1.2 and 2, with the columns of numbers of the source.
pub(super) fn open_sora(
    folder: &mut Folder<'_>,
    clips: &[ExportClip<'_>],
    names: &[String],
) -> Result<String, Failure> {
    const NAME: &str = "train.csv";
    folder.refuse_existing(&[NAME])?;
    let has_motion = names.iter().any(|name| name == VMAF_MOTION);
    let title = |name: &str| if name == "motion" && !has_motion { VMAF_MOTION.to_owned() } else { name.to_owned() };
    let is_numeric = |at: usize| {
        let mut values = clips.iter().filter_map(|clip| clip.values.get(at));
        values.all(|value| matches!(value, FieldValue::Missing) || value.number().is_some())
    };
    let more: Vec<(usize, String)> = names
        .iter()
        .enumerate()
        .filter(|(at, name)| !OPEN_SORA.contains(&name.as_str()) && is_numeric(*at))
        .map(|(at, name)| (at, title(name)))
        .collect();
    let mut table = csv::Writer::from_writer(Vec::new());
    let mut write =
        |row: &[String]| table.write_record(row).expect("memory can be written, and rows have the same length");
    let titles = OPEN_SORA.iter().map(|name| (*name).to_owned()).chain(more.iter().map(|(_, name)| name.clone()));
    write(&titles.collect::<Vec<_>>());
    for ExportClip { clip, values } in clips {
        let Clip { path, caption, frames, height, width, fps, .. } = clip;
        let rate = if *fps > 0.0 { fps.to_string() } else { String::new() };
        let mut row = vec![
            path.to_string(),
            caption.clone(),
            frames.to_string(),
            height.to_string(),
            width.to_string(),
            (*height as f64 / *width as f64).to_string(),
            (height * width).to_string(),
            rate,
        ];
        row.extend(more.iter().map(|(at, _)| {
            values.get(*at).and_then(FieldValue::number).map_or_else(String::new, |number| number.to_string())
        }));
        write(&row);
    }
    let text = String::from_utf8(table.into_inner().expect("memory can be written")).expect("all values are UTF-8");
    let path = folder.write(NAME, &text)?;
    Ok(format!("set dataset.data_path (Open-Sora 1.2: --data-path) to {path}"))
}

/// Writes the two lists of finetrainers, and its configuration of the data set.
pub(super) fn finetrainers(folder: &mut Folder<'_>, clips: &[ExportClip<'_>]) -> Result<String, Failure> {
    folder.refuse_existing(&["videos.txt", "prompts.txt", "training.json"])?;
    let (mut videos, mut prompts) = (String::new(), String::new());
    for ExportClip { clip, .. } in clips {
        let _ = writeln!(videos, "{}", clip.path);
        let _ = writeln!(prompts, "{}", one_line(&clip.caption));
    }
    folder.write("videos.txt", &videos)?;
    folder.write("prompts.txt", &prompts)?;
    let Bucket { frames, height, width } = folder.bucket();
    let set = json!({
        "data_root": folder.path,
        "dataset_type": "video",
        "video_resolution_buckets": [[frames, height, width]],
        "reshape_mode": "bicubic",
        "remove_common_llm_caption_prefixes": false,
    });
    let path = folder.write("training.json", &pretty(&json!({ "datasets": [set] })))?;
    Ok(format!("start train.py of finetrainers with --dataset_config {path}"))
}

/// Writes the list of VideoX-Fun.
pub(super) fn videox_fun(folder: &mut Folder<'_>, clips: &[ExportClip<'_>]) -> Result<String, Failure> {
    const NAME: &str = "metadata.json";
    folder.refuse_existing(&[NAME])?;
    let entry = |ExportClip { clip, .. }: &ExportClip<'_>| {
        let kind = if clip.fps > 0.0 { "video" } else { "image" };
        json!({ "file_path": clip.path, "text": clip.caption, "type": kind, "width": clip.width, "height": clip.height })
    };
    let path = folder.write(NAME, &pretty(&Value::Array(clips.iter().map(entry).collect())))?;
    Ok(format!("start the training script of VideoX-Fun with --train_data_dir=\"\" --train_data_meta={path}"))
}

/// Writes the lines of musubi-tuner, and its configuration of the data set.
pub(super) fn musubi(folder: &mut Folder<'_>, clips: &[ExportClip<'_>]) -> Result<String, Failure> {
    folder.refuse_existing(&["videos.jsonl", "dataset.toml"])?;
    let videos = folder.folder_of_links("videos")?;
    let mut lines = String::new();
    // The trainer names its caches by the file name without folder and ending.
    for (number, ExportClip { clip, .. }) in clips.iter().enumerate() {
        let to = videos.join(format!("{number:06}-{}", clip.path.file_name().unwrap_or("video.mp4")));
        link(&clip.path, &to)?;
        lines += &(json!({ "video_path": to, "caption": clip.caption }).to_string() + "\n");
    }
    let list = folder.write("videos.jsonl", &lines)?;
    let Bucket { frames, height, width } = folder.bucket();
    let rates: BTreeSet<u64> = clips.iter().map(|clip| (clip.clip.fps * 100.0).round() as u64).collect();
    // The rate of all clips, which musubi-tuner converts to that of the model. It must have a point.
    let rate = match rates.iter().collect::<Vec<_>>().as_slice() {
        [rate] if **rate > 0 => format!("source_fps = {:?}\n", **rate as f64 / 100.0),
        _ => "# The clips have several rates. Without source_fps, every frame is used, whatever its time.\n".into(),
    };
    let (list, cache) = (quoted(&list), quoted(&folder.path.join("cache")));
    let text = format!(
        "[general]\nresolution = [{width}, {height}]\nbatch_size = 1\nenable_bucket = true\nbucket_no_upscale = false\n\n\
         [[datasets]]\nvideo_jsonl_file = {list}\ncache_directory = {cache}\ntarget_frames = [{frames}]\n\
         frame_extraction = \"head\"\n{rate}"
    );
    let path = folder.write("dataset.toml", &text)?;
    Ok(format!("start the scripts of musubi-tuner with --dataset_config {path}"))
}

/// Writes the folder of diffusion-pipe: a link to each video, the captions, and the configuration of the data set.
pub(super) fn diffusion_pipe(folder: &mut Folder<'_>, clips: &[ExportClip<'_>]) -> Result<String, Failure> {
    folder.refuse_existing(&["dataset.toml", "videos/captions.json"])?;
    let videos = folder.folder_of_links("videos")?;
    let mut names: BTreeMap<&Utf8Path, String> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    let mut captions: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for ExportClip { clip, .. } in clips {
        if !names.contains_key(clip.path.as_path()) {
            let name = unique(clip.path.file_name().unwrap_or("video.mp4"), &mut taken);
            link(&clip.path, &videos.join(&name))?;
            names.insert(&clip.path, name);
        }
        captions.entry(names[clip.path.as_path()].clone()).or_default().push(&clip.caption);
    }
    folder.write("videos/captions.json", &pretty(&json!(captions)))?;
    let Bucket { frames, height, width } = folder.bucket();
    let text = format!(
        "resolutions = [[{width}, {height}]]\nenable_ar_bucket = true\nmin_ar = 0.5\nmax_ar = 2.0\nnum_ar_buckets = 7\n\
         frame_buckets = [1, {frames}]\n\n[[directory]]\npath = {}\nnum_repeats = 1\n",
        quoted(&videos)
    );
    let path = folder.write("dataset.toml", &text)?;
    Ok(format!("set dataset in the configuration of diffusion-pipe to {path}"))
}

/// Returns a name that no other file has: `a.mp4`, `a-2.mp4`…
fn unique(name: &str, taken: &mut BTreeSet<String>) -> String {
    let path = Utf8Path::new(name);
    let (stem, ending) = (path.file_stem().unwrap_or(name), path.extension().unwrap_or("mp4"));
    let numbered = (2..).map(|number| format!("{stem}-{number}.{ending}"));
    let name = std::iter::once(name.to_owned()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or_default();
    taken.insert(name.clone());
    name
}

/// Returns a caption on one line. Python divides lines at more characters than a newline.
fn one_line(caption: &str) -> String {
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    caption.split(breaks).map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Returns a path as a string of TOML.
fn quoted(path: &Utf8Path) -> String {
    // A string of JSON without control characters is one of TOML.
    Value::from(path.as_str()).to_string()
}

pub(super) fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("a value has a JSON form") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_unique_and_captions_have_one_line() {
        let mut taken = BTreeSet::new();
        let names = ["a.mp4", "a.mp4", "a.mp4", "b"].map(|name| unique(name, &mut taken));
        assert_eq!(names, ["a.mp4", "a-2.mp4", "a-3.mp4", "b"]);
        assert_eq!(one_line("a cat\nsleeps \r\n on\u{2028}a mat"), "a cat sleeps on a mat");
    }
}

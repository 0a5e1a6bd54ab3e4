//! Reads the latents and texts that other trainers prepared, in three layouts.
//!
//! | program | latents | texts |
//! |---|---|---|
//! | ttt-video-dit | an index; a file with `[T, 2C, H, W]` per video | a file with `[tokens, width]` per segment |
//! | finetrainers | `finetrainers-precomputed-data/latent-N.pt`: a dict with `latents` `[1, T, 2C, H, W]` | `condition-N.pt`: a dict with `encoder_hidden_states` `[1, tokens, width]` |
//! | cogvideox-factory | `video_latents/*.pt`: `[2C, T, H, W]` | `prompt_embeds/*.pt`: `[tokens, width]`, captions in `prompts/*.txt` |
//!
//! A latent has 2C channels (means, then log-variances), or C channels if the program already drew it from them.
//!
//! With `--save_image_latents`, cogvideox-factory also saves `image_latents/*.pt`, `[2C, 1, H, W]`: it encodes the first frame alone, without
//! noise. The other two programs save no latents of images for CogVideoX. No program saves masked videos.

use crate::index::DTYPES;
use crate::{Index, TrainingSample};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use weights::{
    Files, Header, Span, StoredTensor, is_torch_file, open_torch_file, open_torch_tensor, tensors_of_header,
};

/// A prepared clip.
pub(super) struct Prepared {
    pub id: String,
    /// The file of the latent.
    pub source: Utf8PathBuf,
    pub caption: String,
    /// `[T, C or 2C, H, W]`
    pub latent: StoredTensor,
    /// The texts `[tokens, width]` and their files.
    pub texts: Vec<(Utf8PathBuf, StoredTensor)>,
    /// The latent of the first image, `[1, C or 2C, H, W]`.
    pub image: Option<StoredTensor>,
}

/// The reason of a failure, and a hint.
pub(super) type Refused = (String, String);

/// The name of the folder that finetrainers writes.
const FINETRAINERS: &str = "finetrainers-precomputed-data";

/// Returns the program that prepared a data set, and its clips.
pub(super) fn read(
    path: &Utf8Path,
    root: Option<&Utf8Path>,
    channels: usize,
) -> Result<(&'static str, Vec<Prepared>), Failure> {
    if !path.exists() {
        return Err(Failure::new(
            ErrorCode::NotFound,
            format!("cannot import {path}"),
            "there is no such file or folder",
            "check the spelling of the path and that its file system is mounted",
        ));
    }
    let finetrainers = [path.join(FINETRAINERS), path.to_owned()]
        .into_iter()
        .find(|folder| folder.join("latent-0.pt").exists() || folder.file_name() == Some(FINETRAINERS));
    let mut disk = Files::default();
    if !path.is_dir() {
        return Ok(("ttt-video-dit", of_index(&mut disk, path, root, channels)?));
    }
    if let Some(folder) = finetrainers.filter(|folder| folder.is_dir()) {
        return Ok(("finetrainers", of_finetrainers(&folder, channels)?));
    }
    if path.join("video_latents").is_dir() {
        return Ok(("cogvideox-factory", of_factory(&mut disk, path, channels)?));
    }
    Err(Failure::new(
        ErrorCode::InvalidDataset,
        format!("cannot import {path}"),
        format!("it has neither {FINETRAINERS}/ nor video_latents/"),
        "name the index file of ttt-video-dit, or the folder that finetrainers or cogvideox-factory wrote",
    ))
}

fn of_index(
    disk: &mut Files,
    path: &Utf8Path,
    root: Option<&Utf8Path>,
    channels: usize,
) -> Result<Vec<Prepared>, Failure> {
    let folder = path.parent().unwrap_or(Utf8Path::new(""));
    let index = Index::open_in(path, root.unwrap_or(folder))?;
    let width = index.samples.len().to_string().len().max(6);
    let clip = |(number, sample): (usize, &TrainingSample)| {
        let bad = |file: &Utf8Path, (why, fix): Refused| {
            let what = index.what(sample, "cannot be imported");
            Failure::new(code(file), what, format!("{file}{why}"), fix)
        };
        let latent = only_tensor(disk, &sample.latent).and_then(|tensor| checked_latent(tensor, channels));
        let latent = latent.map_err(|refused| bad(&sample.latent, refused))?;
        let mut texts = Vec::with_capacity(sample.text.len());
        for file in &sample.text {
            let text = only_tensor(disk, file).and_then(checked_text).map_err(|refused| bad(file, refused))?;
            texts.push((file.clone(), text));
        }
        Ok(Prepared {
            id: format!("{number:0width$}"),
            source: sample.latent.clone(),
            caption: sample.caption.clone(),
            latent,
            texts,
            image: None,
        })
    };
    index.samples.iter().enumerate().map(clip).collect()
}

fn of_finetrainers(folder: &Utf8Path, channels: usize) -> Result<Vec<Prepared>, Failure> {
    let mut numbers: BTreeMap<u64, Utf8PathBuf> = BTreeMap::new();
    for path in files(folder)? {
        let name = path.file_name().unwrap_or_default();
        if let Some(number) = name.strip_prefix("latent-").and_then(|rest| rest.strip_suffix(".pt")?.parse().ok()) {
            numbers.insert(number, path);
        }
    }
    let clips = numbers.into_iter().map(|(number, latent_file)| {
        let text_file = folder.join(format!("condition-{number}.pt"));
        let latent = of_dict(&latent_file, &["latents"])
            .and_then(without_batch)
            .and_then(|tensor| checked_latent(tensor, channels))
            .map_err(|refused| cannot(&latent_file, refused))?;
        let text = of_dict(&text_file, &["encoder_hidden_states", "prompt_embeds"])
            .and_then(without_batch)
            .and_then(checked_text)
            .map_err(|refused| cannot(&text_file, refused))?;
        let id = format!("{number:06}");
        let texts = vec![(text_file, text)];
        Ok(Prepared { id, source: latent_file, caption: String::new(), latent, texts, image: None })
    });
    let clips = clips.collect::<Result<Vec<_>, Failure>>()?;
    not_empty(folder, "latent-N.pt", clips)
}

fn of_factory(disk: &mut Files, folder: &Utf8Path, channels: usize) -> Result<Vec<Prepared>, Failure> {
    let mut latents = files(&folder.join("video_latents"))?;
    latents.retain(|path| path.extension() == Some("pt"));
    let images = folder.join("image_latents");
    // Some versions of the program create an empty folder.
    let has_images = images.is_dir() && !files(&images)?.is_empty();
    let clips = latents.into_iter().map(|latent_file| {
        let id = latent_file.file_stem().unwrap_or_default().to_owned();
        let text_file = folder.join("prompt_embeds").join(format!("{id}.pt"));
        let latent = only_tensor(disk, &latent_file)
            .and_then(frames_first)
            .and_then(|tensor| checked_latent(tensor, channels))
            .map_err(|refused| cannot(&latent_file, refused))?;
        let text = only_tensor(disk, &text_file).and_then(checked_text);
        let text = text.map_err(|refused| cannot(&text_file, refused))?;
        // Training does not read the caption; `data show` prints it.
        let caption = match rundir::read_text(&folder.join("prompts").join(format!("{id}.txt"))) {
            Ok(caption) => caption.trim().to_owned(),
            Err(error) if error.is_not_found() => String::new(),
            Err(error) => return Err(error.into()),
        };
        let image = match has_images {
            true => Some(image_of_factory(disk, &images.join(format!("{id}.pt")), &latent)?),
            false => None,
        };
        Ok(Prepared { id, source: latent_file, caption, latent, texts: vec![(text_file, text)], image })
    });
    let clips = clips.collect::<Result<Vec<_>, Failure>>()?;
    not_empty(folder, "video_latents/*.pt", clips)
}

/// Reads the latent of the first image of a clip, which has the size and the channels of the clip's latent.
fn image_of_factory(disk: &mut Files, file: &Utf8Path, latent: &StoredTensor) -> Result<StoredTensor, Failure> {
    let [_, channels, height, width] = latent.shape[..] else {
        return Err(cannot(file, (" belongs to a latent of another form".into(), again(file))));
    };
    let expected = [1, channels, height, width];
    let image = only_tensor(disk, file).and_then(frames_first).and_then(|image| match image.shape == expected {
        true => checked_dtype(image),
        false => Err((
            format!(" has shape {:?} with frames first, expected {expected:?} as the clip's latent", image.shape),
            "prepare the data set again with --save_image_latents".into(),
        )),
    });
    let rest = "; to import the clips without images, move the folder image_latents away";
    image.map_err(|(why, fix)| cannot(file, (why, fix + rest)))
}

fn not_empty(folder: &Utf8Path, what: &str, clips: Vec<Prepared>) -> Result<Vec<Prepared>, Failure> {
    if !clips.is_empty() {
        return Ok(clips);
    }
    Err(Failure::new(
        ErrorCode::InvalidDataset,
        format!("cannot import {folder}"),
        format!("it has no {what}"),
        "name the folder that the program wrote",
    ))
}

/// Returns the files of a folder, sorted.
fn files(folder: &Utf8Path) -> Result<Vec<Utf8PathBuf>, Failure> {
    let failed = |e: std::io::Error| {
        Failure::new(ErrorCode::of_io(&e), format!("cannot list {folder}"), e.to_string(), "check its permissions")
    };
    let entries = folder.read_dir_utf8().map_err(failed)?.map(|entry| entry.map(|entry| entry.into_path()));
    let mut files: Vec<Utf8PathBuf> = entries.collect::<Result<_, _>>().map_err(failed)?;
    // macOS writes such files beside those that it copies to other file systems.
    files.retain(|path| !path.file_name().is_some_and(|name| name.starts_with("._")));
    files.sort();
    Ok(files)
}

fn cannot(file: &Utf8Path, (why, fix): Refused) -> Failure {
    Failure::new(code(file), format!("{file} cannot be imported"), format!("{file}{why}"), fix)
}

fn code(file: &Utf8Path) -> ErrorCode {
    if file.exists() { ErrorCode::Malformed } else { ErrorCode::NotFound }
}

fn again(path: &Utf8Path) -> String {
    format!("recreate {path}, or copy it again from its source")
}

/// Returns the first of the named tensors of a dict that `torch.save` wrote.
fn of_dict(path: &Utf8Path, names: &[&str]) -> Result<StoredTensor, Refused> {
    let mut tensors = open_torch_file(path).map_err(|failure| (format!(": {}", failure.why), failure.fix))?;
    names.iter().find_map(|name| tensors.remove(*name)).ok_or_else(|| {
        let has: Vec<&str> = tensors.keys().take(5).map(String::as_str).collect();
        (format!(" has no tensor '{}'; it has '{}'", names[0], has.join("', '")), again(path))
    })
}

/// Returns the only tensor of a file, or the reason why there is none and a hint.
fn only_tensor(disk: &mut Files, path: &Utf8Path) -> Result<StoredTensor, Refused> {
    let colon = |why: String| format!(": {why}");
    if is_torch_file(path) {
        let len = fs::metadata(path).map_err(|e| (colon(e.to_string()), again(path)))?.len();
        return open_torch_tensor(disk, &Arc::from(path), 0, len).map_err(|why| (colon(why), again(path)));
    }
    let header = Header::read(path).map_err(|error| {
        let failure = Failure::from(error);
        let why =
            if path.exists() { format!("{}; it is not a torch.save file either", failure.why) } else { failure.why };
        (colon(why), failure.fix)
    })?;
    match <[StoredTensor; 1]>::try_from(tensors_of_header(&header).into_values().collect::<Vec<_>>()) {
        Ok([only]) => Ok(only),
        Err(tensors) => Err((
            colon(format!("it has {} tensors, expected 1", tensors.len())),
            "save each tensor to its own file".into(),
        )),
    }
}

/// Removes a batch axis of length 1.
fn without_batch(mut tensor: StoredTensor) -> Result<StoredTensor, Refused> {
    match tensor.shape.first() {
        Some(1) => {
            tensor.shape.remove(0);
            Ok(tensor)
        }
        _ => Err((
            format!(" has shape {:?}, expected a batch axis of 1 in front", tensor.shape),
            "prepare the data set again with one clip per file".into(),
        )),
    }
}

/// The maximum number of frames times channels of a latent. A latent of a minute has 4000.
const MAX_PICTURES: usize = 1 << 16;

/// Transposes `[C, T, H, W]` to `[T, C, H, W]`.
fn frames_first(tensor: StoredTensor) -> Result<StoredTensor, Refused> {
    let [channels, frames, height, width] = tensor.shape[..] else { return Ok(tensor) };
    if frames.saturating_mul(channels) > MAX_PICTURES {
        let why = format!(" has {channels} channels of {frames} frames, and the limit is {MAX_PICTURES} in all");
        return Err((why, "save the latent of each clip to its own file".into()));
    }
    let picture = (height * width * tensor.dtype.size()) as u64;
    let pictures = (0..frames).flat_map(|frame| (0..channels).map(move |channel| (channel * frames + frame) as u64));
    let spans: Vec<Span> = pictures.flat_map(|at| tensor.cut(at * picture, picture)).collect();
    Ok(StoredTensor { shape: vec![frames, channels, height, width], spans, ..tensor })
}

fn checked_latent(tensor: StoredTensor, channels: usize) -> Result<StoredTensor, Refused> {
    let expected = format!("expected [frames, {channels} or {} channels, rows, columns]", 2 * channels);
    let why = format!(" has shape {:?}, {expected}", tensor.shape);
    match tensor.shape[..] {
        [_, c, _, _] if c == channels || c == 2 * channels => checked_dtype(tensor),
        [_, c, _, _] => Err((why, format!("if the latents have {c} channels, set --channels {c}"))),
        _ => Err((why, "encode the video again, without a batch axis".into())),
    }
}

fn checked_text(tensor: StoredTensor) -> Result<StoredTensor, Refused> {
    match tensor.shape[..] {
        [_, _] => checked_dtype(tensor),
        _ => Err((
            format!(" has shape {:?}, expected [tokens, width]", tensor.shape),
            "save the text of each segment to its own file".into(),
        )),
    }
}

fn checked_dtype(tensor: StoredTensor) -> Result<StoredTensor, Refused> {
    if DTYPES.contains(&tensor.dtype) {
        return Ok(tensor);
    }
    Err((
        format!(" has dtype {}, expected F32, F16 or BF16", tensor.dtype),
        "save the tensor as F32, F16 or BF16".into(),
    ))
}

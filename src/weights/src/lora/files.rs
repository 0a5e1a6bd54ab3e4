//! Opens the files of an adapter: a file of any name, shards with an index, or the folder of one of these.

use super::names::Refusal;
use super::{DIFFUSERS_FILE, FILES, PEFT_CONFIG, has_adapter_names};
use crate::shards::{self, Shards};
use crate::tensor_spans::Tensors;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::Failure;
use std::collections::BTreeMap;

/// The file that finetrainers writes beside an adapter if it trained norms too.
const NORMS: &str = "norm_state_dict.safetensors";

/// The opened files of an adapter.
#[derive(Debug)]
pub(crate) struct Opened {
    /// All tensors of the files.
    pub tensors: Tensors,
    /// The metadata in the header of a safetensors file.
    pub metadata: BTreeMap<String, String>,
    /// The configuration of PEFT that belongs to the file.
    pub config: Option<Utf8PathBuf>,
    /// The size of the files in bytes.
    pub bytes: u64,
}

/// Opens the files of an adapter. Reads only headers.
///
/// # Errors
/// The folder has no file or several candidates, a file is damaged, or the path is one of several shards.
pub(crate) fn open(path: &Utf8Path) -> Result<Opened, Failure> {
    let file = match path.file_name() {
        Some(PEFT_CONFIG) => choose(folder_of(path))?,
        _ if path.is_dir() => choose(path)?,
        _ => path.to_owned(),
    };
    let file = whole(file)?;
    let folder = folder_of(&file);
    if file.file_name() == Some(DIFFUSERS_FILE) && folder.join(NORMS).is_file() {
        let why = format!("{NORMS} beside it replaces norms of the model, which no LoRA can");
        let fix = format!("merge both with finetrainers and convert the result; without the norms: move {NORMS} away");
        return Err(Refusal::new(why, fix).of(path));
    }
    let Shards { tensors, metadata, bytes } = shards::open_any(&file)?;
    Ok(Opened { tensors, metadata, config: config_beside(&file), bytes })
}

/// Returns whether a file or folder is an adapter: by the file names of PEFT, diffusers and vidtui, or by the names of its tensors.
pub(crate) fn is_adapter(path: &Utf8Path) -> bool {
    let named = || own_names().chain([PEFT_CONFIG.to_owned()]).any(|name| path.join(name).is_file());
    path.file_name() == Some(PEFT_CONFIG)
        || (path.is_dir() && named())
        || shards::open_any(path).is_ok_and(|shards| has_adapter_names(&shards.tensors))
}

/// Returns the file names of adapters in folders: those of safetensors files, then those of files of `torch.save`.
fn own_names() -> impl Iterator<Item = String> {
    FILES.into_iter().map(str::to_owned).chain(FILES.into_iter().map(|name| name.replace(".safetensors", ".bin")))
}

/// Returns the folder of a file.
fn folder_of(file: &Utf8Path) -> &Utf8Path {
    file.parent().filter(|folder| !folder.as_str().is_empty()).unwrap_or(Utf8Path::new("."))
}

/// Finds the file of an adapter in a folder: the only one with a usual name, or else the only file of tensors.
fn choose(folder: &Utf8Path) -> Result<Utf8PathBuf, Failure> {
    let usual: Vec<String> = own_names().filter(|name| folder.join(name).is_file()).collect();
    let ending = |end: &str| usual.iter().filter(|name| name.ends_with(end)).cloned().collect::<Vec<String>>();
    let safetensors = ending(".safetensors");
    let files = if safetensors.is_empty() { ending(".bin") } else { safetensors };
    match &files[..] {
        [] => shards::choose_any(folder),
        [one] => Ok(folder.join(one)),
        _ => Err(shards::several(folder, &files)),
    }
}

/// Returns the index of a shard, or the file itself if it is not a shard.
fn whole(file: Utf8PathBuf) -> Result<Utf8PathBuf, Failure> {
    let Some((stem, count, end)) = file.file_name().and_then(shard) else { return Ok(file) };
    let index = file.with_file_name(format!("{stem}.{end}.index.json"));
    if index.is_file() {
        return Ok(index);
    }
    let why = format!("it is one of {count} shards, and their index is missing");
    Err(Refusal::new(why, format!("copy all shards and {index}, and give the path of their folder")).of(&file))
}

/// Splits the name of a shard, such as `model-00001-of-00002.safetensors`, into its stem, the number of shards and its extension.
fn shard(name: &str) -> Option<(&str, u64, &str)> {
    let (rest, end) = name.rsplit_once('.')?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    number.parse::<u64>().ok()?;
    let count = count.parse().ok().filter(|count| *count > 1)?;
    Some((stem, count, end))
}

/// Returns the configuration of PEFT beside a file, if it belongs to this file: the file has PEFT's name, or there is no other file of
/// tensors.
fn config_beside(file: &Utf8Path) -> Option<Utf8PathBuf> {
    let folder = folder_of(file);
    let config = folder.join(PEFT_CONFIG);
    let is_of_peft = file.file_name().is_some_and(|name| name.starts_with("adapter_model"));
    let is_other = |name: &String| {
        let has_tensors = name.ends_with(".safetensors") || name.ends_with(".bin");
        has_tensors && shard(name).is_none() && Some(name.as_str()) != file.file_name()
    };
    let is_alone = || shards::names(folder).is_ok_and(|names| !names.iter().any(is_other));
    (config.is_file() && (is_of_peft || is_alone())).then_some(config)
}

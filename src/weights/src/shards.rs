//! Opens weights in files of tensors: one file, or shards with an index that maps tensors to shards.

use crate::tensor_spans::{StoredTensor, Tensors, tensors_of_header};
use crate::{Header, lora, torch_file};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure, is_file_name};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

/// The largest index in bytes. A larger file is not an index and is not read into memory.
const MAX_INDEX: u64 = 100_000_000;

/// The end of the name of a safetensors file.
const SAFETENSORS: &str = ".safetensors";
/// The end of the name of a file that `torch.save` wrote, in the folders of diffusers and PEFT.
const BIN: &str = ".bin";

/// The tensors of a folder or file.
#[derive(Debug, Clone, PartialEq)]
pub struct Shards {
    /// The tensors.
    pub tensors: Tensors,
    /// The metadata in the header of the first file.
    pub metadata: BTreeMap<String, String>,
    /// The total size of the files in bytes.
    pub bytes: u64,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Opens a safetensors file, an index of shards, or a folder that contains one of them.
///
/// # Errors
/// Fails when a file is missing or damaged, or when the index and the shards contradict each other.
pub fn open(path: &Utf8Path) -> Result<Shards, Failure> {
    open_file(&if path.is_dir() { choose(path, &[SAFETENSORS])? } else { path.to_owned() })
}

/// Does the same as [`open`], and also opens files that `torch.save` wrote. In a folder, safetensors take precedence.
///
/// # Errors
/// Fails as [`open`] does.
pub fn open_any(path: &Utf8Path) -> Result<Shards, Failure> {
    open_file(&if path.is_dir() { choose_any(path)? } else { path.to_owned() })
}

/// Finds the file or the index that [`open_any`] opens in a folder.
///
/// # Errors
/// The folder has no such file, or several candidates.
pub fn choose_any(folder: &Utf8Path) -> Result<Utf8PathBuf, Failure> {
    choose(folder, &[SAFETENSORS, BIN])
}

fn open_file(file: &Utf8Path) -> Result<Shards, Failure> {
    if is_index(file) { open_index(file) } else { single(file) }
}

fn single(file: &Utf8Path) -> Result<Shards, Failure> {
    if torch_file::has_torch_name(file) {
        let tensors = torch_file::open_torch_file(file)?;
        let bytes = tensors.values().map(StoredTensor::bytes).sum();
        return Ok(Shards { tensors, metadata: BTreeMap::new(), bytes });
    }
    let header = Header::read(file)?;
    Ok(Shards { tensors: tensors_of_header(&header), bytes: header.bytes, metadata: header.metadata })
}

fn is_index(path: &Utf8Path) -> bool {
    path.file_name().is_some_and(|name| name.contains(".index.") && name.ends_with(".json"))
}

/// Returns the sorted names of the entries of a folder. macOS writes a file `._NAME` beside each file on some disks; these are left out.
///
/// # Errors
/// The folder cannot be listed.
pub(crate) fn names(folder: &Utf8Path) -> Result<Vec<String>, Failure> {
    // The parent of a plain file name is the empty path.
    let listed = if folder.as_str().is_empty() { Utf8Path::new(".") } else { folder };
    let failed = |e: io::Error| {
        let fix = format!("check its permissions: ls -l {listed}");
        Failure::new(ErrorCode::Io, format!("cannot read the weights in {listed}"), e.to_string(), fix)
    };
    let mut names = Vec::new();
    for entry in listed.read_dir_utf8().map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().to_owned());
    }
    names.retain(|name| !name.starts_with("._"));
    names.sort();
    Ok(names)
}

/// Finds the index or the only tensor file of a folder. The first end of names that a file has takes precedence.
fn choose(folder: &Utf8Path, ends: &[&str]) -> Result<Utf8PathBuf, Failure> {
    let names = names(folder)?;
    for end in ends {
        if let Some(file) = candidate(folder, &names, end)? {
            return Ok(file);
        }
    }
    let is_shard = |name: &&String| ends.iter().any(|end| name.ends_with(end)) && *name != crate::TTT_FILE;
    let why = match names.iter().find(is_shard) {
        Some(shard) => format!("it has shards ({shard}) but no index"),
        None => format!("it has no {} file", ends.join(" or ")),
    };
    Err(Failure::new(
        ErrorCode::NotFound,
        format!("cannot read the weights in {folder}"),
        why,
        "give the folder of a model with its weights, or copy the folder again",
    ))
}

/// Finds the index or the only tensor file among names with one end. Plain names take precedence over variants such as `.fp16.`.
fn candidate(folder: &Utf8Path, names: &[String], end: &str) -> Result<Option<Utf8PathBuf>, Failure> {
    let is_own_index = |name: &&String| is_index(Utf8Path::new(name)) && name.contains(".bin.index.") == (end == BIN);
    let indices: Vec<&String> = names.iter().filter(is_own_index).collect();
    let plain_end = format!("{end}.index.json");
    let plain: Vec<&String> = indices.iter().filter(|name| name.ends_with(&plain_end)).copied().collect();
    let mut files: Vec<&String> = names.iter().filter(|name| name.ends_with(end) && *name != crate::TTT_FILE).collect();
    // An adapter may lie beside the weights of its model.
    if files.iter().any(|name| !lora::is_adapter_name(name)) {
        files.retain(|name| !lora::is_adapter_name(name));
    }
    let whole: Vec<&String> =
        files.iter().filter(|name| name.split('.').count() == 2 && !name.contains("-of-")).copied().collect();
    // Shards without an index are not candidates: a missing shard could not be detected.
    let lone: Vec<&String> = files.iter().filter(|name| !name.contains("-of-")).copied().collect();
    for candidates in [plain, whole, indices, lone] {
        match candidates[..] {
            [] => {}
            [one] => return Ok(Some(folder.join(one))),
            _ => return Err(several(folder, &candidates)),
        }
    }
    Ok(None)
}

/// Returns the failure of a folder with several files, each of which could be opened.
pub(crate) fn several(folder: &Utf8Path, candidates: &[impl AsRef<str>]) -> Failure {
    let all = candidates.iter().map(AsRef::as_ref).collect::<Vec<&str>>();
    let first = all.first().map_or_else(|| folder.to_owned(), |first| folder.join(first));
    Failure::new(
        ErrorCode::Malformed,
        format!("cannot read the weights in {folder}"),
        format!("it has several candidates: {}", all.join(", ")),
        format!("give the path of one, such as {first}"),
    )
}

fn open_index(path: &Utf8Path) -> Result<Shards, Failure> {
    let bad = |why: String| {
        Failure::new(
            ErrorCode::Malformed,
            format!("{path} is not a valid index of shards"),
            why,
            "copy it again from its source",
        )
    };
    let folder = path.parent().unwrap_or(Utf8Path::new(""));
    let io = |e: io::Error| {
        Failure::new(ErrorCode::of_io(&e), format!("cannot read {path}"), e.to_string(), "check the path")
    };
    if fs::metadata(path).map_err(io)?.len() > MAX_INDEX {
        return Err(bad(format!("its size is over the limit of {MAX_INDEX} bytes")));
    }
    let text = rundir::read_text(path)?;
    let index: Index = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    if index.weight_map.is_empty() {
        return Err(bad("it lists no tensors".into()));
    }
    let shards: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    if let Some(outside) = shards.iter().find(|name| !is_file_name(name)) {
        return Err(bad(format!("it lists a file outside of its folder: '{}'", outside.escape_debug())));
    }
    let mut all = Shards { tensors: Tensors::new(), metadata: BTreeMap::new(), bytes: 0 };
    for shard in shards {
        let file = folder.join(shard);
        if !file.exists() {
            let listed = index.weight_map.values().filter(|name| *name == shard).count();
            return Err(Failure::new(
                ErrorCode::NotFound,
                format!("shard {file} is missing"),
                format!("{path} lists {listed} tensors in it"),
                "copy or download it again; most download tools can resume an interrupted download",
            ));
        }
        let Shards { tensors, metadata, bytes } = single(&file)?;
        for (name, tensor) in tensors {
            match index.weight_map.get(&name) {
                Some(listed) if listed == shard => drop(all.tensors.insert(name, tensor)),
                Some(listed) => return Err(bad(format!("it lists {name} in {listed}, and {shard} has it"))),
                None => return Err(bad(format!("it does not list {name}, which {shard} has"))),
            }
        }
        if all.bytes == 0 {
            all.metadata = metadata;
        }
        all.bytes += bytes;
    }
    match index.weight_map.iter().find(|(name, _)| !all.tensors.contains_key(*name)) {
        Some((name, shard)) => Err(bad(format!("it lists {name} in {shard}, which does not have it"))),
        None => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;
    use crate::fixtures::{shown, temp, write};

    const INDEX: &str = "model.safetensors.index.json";

    /// Writes two shards with three tensors, and their index.
    fn sharded(folder: &Utf8Path) {
        write(&folder.join("model-1-of-2.safetensors"), &[("a", Dtype::F32, &[2]), ("b", Dtype::F32, &[3])]);
        write(&folder.join("model-2-of-2.safetensors"), &[("c", Dtype::BF16, &[4])]);
        index(folder, &[("a", 1), ("b", 1), ("c", 2)]);
    }

    fn index(folder: &Utf8Path, map: &[(&str, u32)]) {
        let map: BTreeMap<_, _> =
            map.iter().map(|(name, shard)| (*name, format!("model-{shard}-of-2.safetensors"))).collect();
        fs::write(folder.join(INDEX), serde_json::json!({ "metadata": {}, "weight_map": map }).to_string()).unwrap();
    }

    fn refused(change: impl Fn(&Utf8Path)) -> String {
        let (_keep, folder) = temp();
        sharded(&folder);
        change(&folder);
        let failure = open(&folder).unwrap_err();
        format!("{:?}\n{}", failure.code, shown(&failure, &folder))
    }

    #[test]
    fn the_tensors_of_all_shards_are_found() {
        let (_keep, folder) = temp();
        sharded(&folder);
        let shards = open(&folder).unwrap();
        assert_eq!(shards.tensors.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(shards.tensors["c"].file().ends_with("model-2-of-2.safetensors"));
        assert_eq!(open(&folder.join(INDEX)).unwrap(), shards);
    }

    #[test]
    fn a_plain_file_wins_over_its_variants() {
        let (_keep, folder) = temp();
        write(&folder.join("model.fp16.safetensors"), &[("a", Dtype::F16, &[2])]);
        assert_eq!(open(&folder).unwrap().tensors["a"].dtype, Dtype::F16);
        write(&folder.join("model.safetensors"), &[("a", Dtype::F32, &[2])]);
        assert_eq!(open(&folder).unwrap().tensors["a"].dtype, Dtype::F32);
        write(&folder.join("other.safetensors"), &[("a", Dtype::F32, &[2])]);
        let failure = open(&folder).unwrap_err();
        assert_eq!(failure.code, ErrorCode::Malformed);
        insta::assert_snapshot!(shown(&failure, &folder));
    }

    #[test]
    fn files_of_macos_and_adapters_beside_the_weights_are_no_candidates() {
        let (_keep, folder) = temp();
        sharded(&folder);
        let expected = open(&folder).unwrap();
        for name in [INDEX, "model-1-of-2.safetensors", "model-2-of-2.safetensors"] {
            fs::write(folder.join(format!("._{name}")), "\0\u{5}\u{16}\u{7}\0\u{2}\0\0Mac OS X").unwrap();
        }
        assert_eq!(open(&folder).unwrap(), expected);
        let (_keep, folder) = temp();
        write(&folder.join("model.safetensors"), &[("a", Dtype::F32, &[2])]);
        write(&folder.join("lora.safetensors"), &[("b", Dtype::F32, &[2])]);
        assert_eq!(open(&folder).unwrap().tensors.keys().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn an_index_and_shards_that_contradict_each_other_are_refused() {
        let refusals = [
            refused(|f| fs::remove_file(f.join("model-2-of-2.safetensors")).unwrap()),
            refused(|f| index(f, &[("a", 1), ("b", 2), ("c", 2)])),
            refused(|f| index(f, &[("a", 1), ("c", 2)])),
            refused(|f| index(f, &[("a", 1), ("b", 1), ("c", 2), ("d", 2)])),
            refused(|f| index(f, &[])),
            refused(|f| fs::write(f.join(INDEX), "{]").unwrap()),
            refused(|f| fs::remove_file(f.join(INDEX)).unwrap()),
        ];
        insta::assert_snapshot!(refusals.join("\n\n"));
    }

    #[test]
    fn an_index_cannot_lead_out_of_its_folder() {
        let names = ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", ".hidden"];
        let refusals = names.map(|name| {
            refused(|folder| {
                let map = serde_json::json!({ "weight_map": { "a": name } });
                fs::write(folder.join(INDEX), map.to_string()).unwrap();
            })
        });
        insta::assert_snapshot!(refusals.join("\n\n"));
    }
}

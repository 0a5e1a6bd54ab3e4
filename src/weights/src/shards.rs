//! Opens weights in safetensors: one file, or shards with an index that maps tensors to shards.

use crate::tensor_spans::{Tensors, tensors_of_header};
use crate::{Header, tensor_spans};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

/// The largest index in bytes. A larger file is not an index and is not read into memory.
const MAX_INDEX: u64 = 100_000_000;

/// The tensors of a folder or file, and the files that hold them.
#[derive(Debug, Clone, PartialEq)]
pub struct Shards {
    /// The tensors.
    pub tensors: Tensors,
    /// The headers of the files.
    pub files: Vec<Header>,
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
    if !path.is_dir() {
        return if is_index(path) { open_index(path) } else { Ok(single(Header::read(path)?)) };
    }
    match choose(path)? {
        file if is_index(&file) => open_index(&file),
        file => Ok(single(Header::read(&file)?)),
    }
}

fn single(header: Header) -> Shards {
    Shards { tensors: tensors_of_header(&header), files: vec![header] }
}

fn is_index(path: &Utf8Path) -> bool {
    path.file_name().is_some_and(|name| name.contains(".index.") && name.ends_with(".json"))
}

/// Finds the index or the only tensor file of a folder. Plain names take precedence over variants such as `.fp16.`.
fn choose(folder: &Utf8Path) -> Result<Utf8PathBuf, Failure> {
    let what = || format!("cannot read the weights in {folder}");
    let list = |e: io::Error| {
        Failure::new(ErrorCode::Io, what(), e.to_string(), format!("check its permissions: ls -l {folder}"))
    };
    let mut names = Vec::new();
    for entry in folder.read_dir_utf8().map_err(list)? {
        names.push(entry.map_err(list)?.file_name().to_owned());
    }
    names.sort();
    let indices: Vec<&String> = names.iter().filter(|name| is_index(Utf8Path::new(name))).collect();
    let plain: Vec<&String> =
        indices.iter().filter(|name| name.ends_with(".safetensors.index.json")).copied().collect();
    let files: Vec<&String> =
        names.iter().filter(|name| name.ends_with(".safetensors") && *name != crate::TTT_FILE).collect();
    let whole: Vec<&String> =
        files.iter().filter(|name| name.split('.').count() == 2 && !name.contains("-of-")).copied().collect();
    // Shards without an index are not candidates: a missing shard could not be detected.
    let lone: Vec<&String> = files.iter().filter(|name| !name.contains("-of-")).copied().collect();
    for candidates in [plain, whole, indices, lone] {
        match candidates[..] {
            [] => {}
            [one] => return Ok(folder.join(one)),
            [first, ..] => {
                let all = candidates.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
                let fix = format!("give the path of one, such as {}", folder.join(first));
                return Err(Failure::new(
                    ErrorCode::Malformed,
                    what(),
                    format!("it has several candidates: {all}"),
                    fix,
                ));
            }
        }
    }
    let why = match files.first() {
        Some(shard) => format!("it has shards ({shard}) but no index"),
        None => "it has no .safetensors file".into(),
    };
    Err(Failure::new(
        ErrorCode::NotFound,
        what(),
        why,
        "give the folder of a model with its weights, or copy the folder again",
    ))
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
    let text = fs::read(path).map_err(io)?;
    let index: Index = serde_json::from_slice(&text).map_err(|e| bad(e.to_string()))?;
    if index.weight_map.is_empty() {
        return Err(bad("it lists no tensors".into()));
    }
    let shards: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    if let Some(outside) = shards.iter().find(|name| !is_plain(name)) {
        return Err(bad(format!("it lists a file outside of its folder: '{}'", outside.escape_debug())));
    }
    let (mut tensors, mut files) = (Tensors::new(), Vec::new());
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
        let header = Header::read(&file)?;
        for (name, tensor) in tensor_spans::tensors_of_header(&header) {
            match index.weight_map.get(&name) {
                Some(listed) if listed == shard => drop(tensors.insert(name, tensor)),
                Some(listed) => return Err(bad(format!("it lists {name} in {listed}, and {shard} has it"))),
                None => return Err(bad(format!("it does not list {name}, which {shard} has"))),
            }
        }
        files.push(header);
    }
    match index.weight_map.iter().find(|(name, _)| !tensors.contains_key(*name)) {
        Some((name, shard)) => Err(bad(format!("it lists {name} in {shard}, which does not have it"))),
        None => Ok(Shards { tensors, files }),
    }
}

/// Returns whether a name is a plain file name without a path.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\\', '\0']) && !name.starts_with('.')
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

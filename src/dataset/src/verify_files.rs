//! Verifies a data set whose clips have separate files. Such files have no checksums, so that only files that cannot be read and values
//! that are not finite are found.

use crate::index::Index;
use crate::store::{DamagedTensor, Verified};
use camino::Utf8Path;
use rundir::{ErrorCode, Failure};
use std::collections::BTreeMap;
use std::fs;
use weights::{Doing, Header, OnProgress, WriteProgress, count_not_finite};

/// Reads all files that an index names.
///
/// # Errors
/// The index cannot be read, or `progress` returns `Break`.
pub fn verify_files(path: &Utf8Path, progress: OnProgress<'_>) -> Result<Verified, Failure> {
    let index = Index::open(path)?;
    let mut files: BTreeMap<&Utf8Path, (&str, Vec<String>)> = BTreeMap::new();
    for sample in &index.samples {
        let texts = sample.text.iter().map(|file| ("text", file));
        for (role, file) in std::iter::once(("latent", &sample.latent)).chain(texts) {
            let (_, clips) = files.entry(file).or_insert((role, Vec::new()));
            clips.push(format!("line {}", sample.line));
            clips.dedup();
        }
    }
    let total = files.keys().map(|file| fs::metadata(file).map_or(0, |meta| meta.len())).sum();
    let mut verified = Verified { clips: index.samples.len(), ..Verified::default() };
    for (file, (role, clips)) in files {
        let mut damaged = |tensor: &str, why: String| {
            let (shard, tensor, role) = (file.to_string(), tensor.to_owned(), role.to_owned());
            verified.damaged.push(DamagedTensor {
                shard,
                tensor,
                role,
                clips: clips.clone(),
                empty_caption: false,
                why,
            });
        };
        let header = match Header::read(file) {
            Ok(header) => header,
            Err(error) => {
                damaged("", error.to_string());
                continue;
            }
        };
        for (name, info) in &header.tensors {
            match header.read_tensor(name) {
                Err(error) => damaged(name, error.to_string()),
                Ok(bytes) => {
                    verified.bytes += bytes.len() as u64;
                    let values = count_not_finite(info.dtype, &bytes);
                    if values > 0 {
                        damaged(name, crate::store::not_finite_in_words(values));
                    }
                }
            }
        }
        verified.tensors += header.tensors.len();
        let step = WriteProgress { doing: Doing::Checking, done: verified.bytes, total };
        if progress(step).is_break() {
            let (what, why) = (format!("{path} was not verified"), "the command was interrupted");
            return Err(Failure::new(ErrorCode::Cancelled, what, why, "run it again"));
        }
    }
    verified.without_checksum = verified.tensors;
    Ok(verified)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LATENT, TEXT};
    use std::ops::ControlFlow;
    use weights::Dtype;
    use weights::fixtures::{temp, write};

    #[test]
    fn files_that_cannot_be_read_or_have_nan_are_found_with_the_lines_that_use_them() {
        let (_keep, folder) = temp();
        let mut index = String::new();
        for clip in 0..3 {
            write(&folder.join(format!("{clip}.latent")), &[(LATENT, Dtype::BF16, &[1, 4, 4, 4])]);
            index += &format!("{{\"vid_emb\": \"{clip}.latent\", \"text_chunk_emb\": [\"text\"]}}\n");
        }
        write(&folder.join("text"), &[(TEXT, Dtype::BF16, &[8, 6])]);
        let path = folder.join("train.jsonl");
        fs::write(&path, index).unwrap();
        let verified = || verify_files(&path, &mut |_| ControlFlow::Continue(())).unwrap();
        let intact = verified();
        assert_eq!((intact.clips, intact.tensors, intact.without_checksum, intact.damaged), (3, 4, 4, vec![]));

        let whole = fs::read(folder.join("1.latent")).unwrap();
        fs::write(folder.join("1.latent"), &whole[..whole.len() - 1]).unwrap();
        // bfloat16 NaN as the last value.
        let mut text = fs::read(folder.join("text")).unwrap();
        let end = text.len();
        text[end - 2..].copy_from_slice(&[0xc0, 0x7f]);
        fs::write(folder.join("text"), text).unwrap();
        let damaged = verified().damaged;
        let clips: Vec<(&str, usize)> = damaged.iter().map(|found| (found.role.as_str(), found.clips.len())).collect();
        assert_eq!(clips, [("latent", 1), ("text", 3)]);
        assert!(damaged[0].clips == ["line 2"] && damaged[0].why.contains("is truncated"), "{damaged:?}");
    }
}

//! Tests of damage to a store: what a reader and [`verify`] find, and how the index is repaired.

use super::tests::{encode, manifest, model, spec, temp};
use super::*;
use crate::Table;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure};
use std::fs;
use std::ops::ControlFlow;
use weights::Header;

fn lines(data: &Utf8Path) -> Vec<Line> {
    let mut lines = Vec::new();
    read_index(data, |_, line| {
        lines.push(line);
        Ok(())
    })
    .unwrap();
    lines
}

/// Adds 1 to some bytes of a tensor, from its byte `at` on.
fn damage(data: &Utf8Path, place: &TensorLocation, at: u64, count: usize) {
    let path = data.join(&place.shard);
    let begin = (Header::read(&path).unwrap().tensor(&place.name).unwrap().begin + at) as usize;
    let mut bytes = fs::read(&path).unwrap();
    bytes[begin..begin + count].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
    fs::write(&path, bytes).unwrap();
}

/// Writes the index as versions before checksums did.
fn forget_checksums(data: &Utf8Path) {
    let path = data.join(INDEX);
    let text = fs::read_to_string(&path).unwrap();
    let old: Vec<String> = text
        .lines()
        .map(|line| {
            let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
            forget(&mut value);
            format!("{value}\n")
        })
        .collect();
    fs::write(&path, old.concat()).unwrap();
}

fn forget(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            fields.remove("xxh3");
            fields.values_mut().for_each(forget);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(forget),
        _ => {}
    }
}

fn verified(data: &Utf8Path) -> Verified {
    verify(data, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Returns the clips of each damaged tensor.
fn damaged_clips(data: &Utf8Path) -> Vec<(String, Vec<String>)> {
    verified(data).damaged.into_iter().map(|found| (found.role, found.clips)).collect()
}

/// A store of seven clips. Clips 1 and 2 have one caption, and so have 4 and 5.
fn store() -> (tempfile::TempDir, Utf8PathBuf) {
    let (keep, data) = temp();
    encode(&data, &manifest(&[4, 1, 2, 3, 5, 9, 8]), &spec());
    (keep, data)
}

/// Changes a text in the index.
fn replace(data: &Utf8Path, old: &str, new: &str) {
    let text = fs::read_to_string(data.join(INDEX)).unwrap();
    assert!(text.contains(old), "{old}: {text}");
    fs::write(data.join(INDEX), text.replacen(old, new, 1)).unwrap();
}

/// Returns what training and `verify` report about the index.
fn refused(data: &Utf8Path) -> [Failure; 2] {
    let read = verify(data, &mut |_| ControlFlow::Continue(())).unwrap_err();
    [Table::open(data, &model()).unwrap_err(), read]
}

#[test]
fn a_shard_outside_of_the_folder_is_refused_with_its_line() {
    for name in ["../data/latents-00000", "/data/latents-00000", "sub/latents-00000", ".."] {
        let (_keep, data) = store();
        replace(&data, "\"shard\":\"latents-00000", &format!("\"shard\":\"{name}"));
        for failure in refused(&data) {
            assert_eq!(failure.code, ErrorCode::InvalidDataset);
            let (what, why) = (&failure.what, &failure.why);
            assert!(what.contains(INDEX) && why.contains("line 2") && why.contains(name), "{failure}");
        }
    }
    let (_keep, data) = store();
    replace(&data, "\"shard\":\"texts-00000", "\"shard\":\"../texts-00000");
    for failure in refused(&data) {
        assert!(failure.why.contains("../texts-00000"), "{failure}");
    }
}

#[test]
fn a_number_of_clips_that_cannot_be_is_refused_with_its_line() {
    for clips in [1_000_000, u64::MAX] {
        let (_keep, data) = store();
        replace(&data, "\"clips\":7", &format!("\"clips\":{clips}"));
        for failure in refused(&data) {
            assert!(failure.why.contains("line 1") && failure.why.contains(&clips.to_string()), "{failure}");
        }
    }
}

#[test]
fn a_line_that_does_not_end_is_refused_and_is_not_read_into_memory() {
    let (_keep, data) = store();
    let file = fs::OpenOptions::new().write(true).open(data.join(INDEX)).unwrap();
    file.set_len(1 << 40).unwrap();
    for failure in refused(&data) {
        assert!(failure.why.contains("line 9") && failure.why.contains("limit"), "{failure}");
    }
}

fn read_all(data: &Utf8Path) -> Vec<Result<(), Failure>> {
    let table = Table::open(data, &model()).unwrap();
    let reader = table.reader();
    let read = |sample| reader.read(table.latent(sample)).and_then(|_| reader.read(table.texts(sample)[0])).map(drop);
    (0..table.len()).map(read).collect()
}

#[test]
fn a_store_that_nobody_touched_is_intact_and_every_tensor_has_a_checksum() {
    let (_keep, data) = store();
    let found = verified(&data);
    // Seven latents, five captions and the empty caption.
    assert_eq!((found.clips, found.tensors, found.without_checksum, found.damaged), (7, 13, 0, vec![]));
    assert_eq!(found.bytes, 7 * 32 + 6 * 8);
    assert_eq!(crate::show::summarize(&data).unwrap().without_checksum, 0);
}

#[test]
fn damaged_bytes_fail_the_read_of_their_clip_alone_and_the_failure_names_it() {
    let (_keep, data) = store();
    let all = lines(&data);
    damage(&data, &all[2].latent, 5, 20);
    let read = read_all(&data);
    assert_eq!(read.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, true, true, true, true]);
    let failure = read[2].clone().unwrap_err();
    assert_eq!(failure.code, ErrorCode::InvalidDataset);
    for part in ["clips/2.mp4", data.as_str(), &all[2].latent.shard] {
        assert!(failure.what.contains(part) || failure.why.contains(part), "{part}: {failure}");
    }
    assert_eq!(damaged_clips(&data), [("latent".to_owned(), vec!["clips/2.mp4".to_owned()])]);
}

#[test]
fn a_damaged_text_names_all_clips_that_use_it() {
    let (_keep, data) = store();
    damage(&data, &lines(&data)[1].text[0], 7, 1);
    let clips = ["clips/1.mp4", "clips/2.mp4"].map(str::to_owned);
    assert_eq!(damaged_clips(&data), [("text".to_owned(), clips.to_vec())]);
    let failed = read_all(&data).into_iter().filter(Result::is_err).count();
    assert_eq!(failed, 2);
}

#[test]
fn a_shard_that_is_cut_while_it_is_read_has_too_few_bytes() {
    let (_keep, data) = store();
    let table = Table::open(&data, &model()).unwrap();
    // One reader has the file open already, and the other opens it after it was cut.
    let (open, fresh) = (table.reader(), table.reader());
    let first = lines(&data)[0].latent.clone();
    open.read(table.latent(0)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(data.join(&first.shard)).unwrap();
    file.set_len(100).unwrap();
    for reader in [open, fresh] {
        let failures: Vec<Failure> = (0..7)
            .filter_map(|sample| reader.read(table.latent(sample)).err())
            .filter(|f| f.what.contains(&first.shard))
            .collect();
        assert!(!failures.is_empty());
        assert!(failures.iter().all(|failure| failure.code == ErrorCode::Malformed && failure.why.contains("100 of ")));
    }
    // Training cannot open the shard, so that all its clips are damaged.
    let of_shard = lines(&data).iter().filter(|line| line.latent.shard == first.shard).count();
    assert_eq!(damaged_clips(&data).len(), of_shard);
    fs::remove_file(data.join(&first.shard)).unwrap();
    assert_eq!(damaged_clips(&data).len(), of_shard);
}

#[test]
fn a_store_without_checksums_is_read_and_can_record_them() {
    let (_keep, data) = store();
    forget_checksums(&data);
    assert!(read_all(&data).iter().all(Result::is_ok));
    let found = verified(&data);
    assert_eq!((found.without_checksum, found.damaged.len()), (13, 0));
    assert_eq!(crate::show::summarize(&data).unwrap().without_checksum, 7);

    let dropped = repair(&data, &found, &[Repair::Record]).unwrap();
    assert!(dropped.is_empty());
    assert_eq!(verified(&data).without_checksum, 0);
    damage(&data, &lines(&data)[6].latent, 0, 1);
    assert_eq!(damaged_clips(&data).len(), 1);
}

#[test]
fn values_that_are_not_finite_are_damage_even_without_a_checksum() {
    let (_keep, data) = store();
    forget_checksums(&data);
    let place = lines(&data)[3].latent.clone();
    let path = data.join(&place.shard);
    let begin = Header::read(&path).unwrap().tensor(&place.name).unwrap().begin as usize;
    let mut bytes = fs::read(&path).unwrap();
    // bfloat16 NaN and infinity.
    bytes[begin + 4..begin + 8].copy_from_slice(&[0xc0, 0x7f, 0x80, 0xff]);
    fs::write(&path, bytes).unwrap();
    let found = verified(&data).damaged;
    assert_eq!(found.len(), 1);
    assert!(found[0].why.starts_with("2 of its values") && found[0].clips == ["clips/3.mp4"], "{found:?}");
}

#[test]
fn dropped_clips_leave_the_index_and_the_next_encode_restores_them() {
    let (_keep, data) = store();
    let before = lines(&data);
    damage(&data, &before[0].latent, 0, 3);
    damage(&data, &before[1].text[0], 0, 1);
    let head = read_index(&data, |_, _| Ok(())).unwrap();
    damage(&data, &head.empty_text.unwrap(), 0, 1);
    let dropped = repair(&data, &verified(&data), &[Repair::Drop]).unwrap();
    assert_eq!(dropped, ["clips/4.mp4", "clips/1.mp4", "clips/2.mp4"]);
    assert_eq!(lines(&data), [before[3].clone(), before[4].clone(), before[5].clone(), before[6].clone()]);
    assert!(verified(&data).damaged.is_empty());
    assert_eq!(Table::open(&data, &model()).unwrap().empty_text(), None);

    // The caption of clip 4 is intact, because clip 5 uses it too. The latents of clips 1 and 2 are no longer in the index.
    let (plan, encoded) = encode(&data, &manifest(&[4, 1, 2, 3, 5, 9, 8]), &spec());
    assert_eq!((plan.new, plan.reuse, encoded), (3, 4, 5));
    let found = verified(&data);
    assert_eq!((found.clips, found.without_checksum, found.damaged), (7, 0, vec![]));
    assert!(read_all(&data).iter().all(Result::is_ok));
}

#[test]
fn the_clips_of_samples_are_named_by_their_ids() {
    let (_keep, data) = store();
    let table = Table::open(&data, &model()).unwrap();
    assert_eq!(table.clip_names(&[5, 0]), ["clips/4.mp4", "clips/9.mp4"]);
    // The index was replaced since the start: the shard still has the names.
    let (head, empty) = (read_index(&data, |_, _| Ok(())).unwrap(), Vec::new());
    write_index(&data, &Head { clips: 0, ..head }, empty.into_iter()).unwrap();
    assert_eq!(table.clip_names(&[5, 0]), ["clips/4.mp4", "clips/9.mp4"]);
}

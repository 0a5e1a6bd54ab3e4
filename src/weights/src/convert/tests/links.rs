//! Tests of hard links to the files of the source instead of copies.

use super::*;
use crate::fixtures::{shown, temp};
use rundir::Checkpoint;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;

#[test]
fn files_that_would_be_copied_byte_for_byte_are_linked_on_request() {
    let (_keep, folder) = temp();
    let shards = folder.join("shards");
    go(&ConvertRequest { shard_bytes: Some(300_000), ..ConvertRequest::new(small(), &shards, Form::Diffusers) })
        .unwrap();
    let count = names(&shards).iter().filter(|name| name.ends_with(".safetensors")).count() as u64;
    assert!(count > 1);
    // In the cache of the Hub, a shard is a symbolic link to a blob.
    let first = shards.join(names(&shards).into_iter().find(|name| name.ends_with(".safetensors")).unwrap());
    fs::rename(&first, folder.join("blob")).unwrap();
    std::os::unix::fs::symlink("../blob", &first).unwrap();
    let links = |target: &Utf8Path| {
        let files = target.read_dir_utf8().unwrap().map(|file| file.unwrap().path().symlink_metadata().unwrap());
        files.filter(|meta| meta.is_file() && meta.nlink() == 2).count() as u64
    };
    let place = folder.join("inner");
    let request = ConvertRequest { link: true, ..ConvertRequest::new(&shards, &place, Form::Internal) };
    let plan = plan_conversion(&request).unwrap();
    assert_eq!((plan.bytes(), plan.file_count()), (0, 0));
    let mut sentences = vec![plan.report.notes.last().unwrap().clone()];
    let mut last = None;
    let mut see = |progress| {
        last = Some(progress);
        ControlFlow::Continue(())
    };
    plan.execute(false, NOW_S, 7, &mut see).unwrap();
    assert!(last.is_some_and(|last: WriteProgress| last.doing == Doing::Checking && last.done == last.total));
    assert_eq!(links(&place), count);
    // The tensors equal copied ones, and converting back gives the same model.
    let copied = folder.join("copied");
    go(&ConvertRequest::new(small(), &copied, Form::Internal)).unwrap();
    assert!(of(&place) == of(&copied));
    Checkpoint::open(&place).unwrap().verify_checksums().unwrap();
    go(&ConvertRequest::new(&place, folder.join("back"), Form::Diffusers)).unwrap();
    assert!(of(&folder.join("back")) == of(&small()));
    // A shard in which a tensor changes is written, and so are added layers.
    let grown = ConvertRequest { in_channels: Some(8), layer: Some(Layer::TttLinear), force: true, ..request.clone() };
    assert_eq!(go(&grown).unwrap().files as u64, count);
    assert_eq!(links(&place), count - 1);
    go(&ConvertRequest { link: false, target: folder.join("grown"), ..grown }).unwrap();
    assert!(of(&place) == of(&folder.join("grown")));
    // No file can be linked when every value is rounded.
    let short = ConvertRequest { dtype: Some(Dtype::BF16), force: true, ..request.clone() };
    let plan = plan_conversion(&short).unwrap();
    assert!(plan.links.is_empty());
    sentences.push(plan.report.notes.last().unwrap().clone());
    go(&short).unwrap();
    assert_eq!(links(&place), 0);
    // A write to the source also changes the checkpoint, which then fails its checksums.
    go(&ConvertRequest { force: true, ..request.clone() }).unwrap();
    let blob = folder.join("blob");
    let mut file = fs::OpenOptions::new().write(true).open(&blob).unwrap();
    file.seek(SeekFrom::End(-1)).unwrap();
    file.write_all(&[77]).unwrap();
    Checkpoint::open(&place).unwrap().verify_checksums().unwrap_err();
    let outward = ConvertRequest { to: Form::Diffusers, target: folder.join("x"), ..request };
    let failure = go(&outward).unwrap_err();
    assert_eq!(failure.code, ErrorCode::InvalidArgument);
    sentences.push(shown(&failure, &folder));
    insta::assert_snapshot!(sentences.join("\n\n"));
}

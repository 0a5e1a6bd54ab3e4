//! Tests of the import of datasets of ttt-video-dit.

use super::*;
use crate::fixtures::{shown, temp, write};
use half::bf16;
use std::ops::ControlFlow;
use weights::Dtype;

fn fixture(name: &str) -> Utf8PathBuf {
    Utf8PathBuf::from("../../tests/fixtures/dataset").join(name)
}

fn request(index: Utf8PathBuf, target: &Utf8Path) -> ImportRequest {
    ImportRequest { index, root: None, target: target.to_owned(), channels: 4 }
}

fn import(request: &ImportRequest, force: bool) -> Result<Imported, Failure> {
    plan_import(request)?.execute(force, &mut |_| ControlFlow::Continue(()))
}

/// Wants three segments of 8 tokens of width 6, and 37 latent frames of 4 channels.
fn model() -> recipe::Model {
    let sets = ["text_dim=6", "text_len=8", "segments=3", "latent_frames=37", "in_channels=4", "out_channels=4"];
    let sets = sets.into_iter().chain(["latent_height=4", "latent_width=4"]).map(|set| format!("model.{set}"));
    let minimal = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
    recipe::load(minimal.into(), &sets.collect::<Vec<_>>()).unwrap().recipe.model
}

fn values(files: &mut Files, tensor: &StoredTensor) -> Vec<f64> {
    assert_eq!(tensor.dtype, Dtype::BF16);
    files.read_all(tensor).unwrap().as_chunks::<2>().0.iter().map(|two| bf16::from_le_bytes(*two).to_f64()).collect()
}

#[test]
fn a_dataset_of_ttt_video_is_imported_with_equal_values() {
    let (_keep, folder) = temp();
    let target = folder.join("new");
    let source = fixture("train.jsonl");
    let done = import(&request(source.clone(), &target), false).unwrap();
    assert_eq!((done.samples, done.files, &done.index), (2, 6, &target.join("index.jsonl")));

    let expected = tensors_of_header(&Header::read(&fixture("expected.safetensors")).unwrap());
    let (old, new) = (Index::open(&source).unwrap(), Index::open(&done.index).unwrap());
    let mut files = Files::default();
    for (old, new) in old.samples.iter().zip(&new.samples) {
        let pairs = std::iter::once((&old.latent, &new.latent, MOMENTS))
            .chain(old.text.iter().zip(&new.text).map(|(old, new)| (old, new, TEXT)));
        for (old, new, name) in pairs {
            let wanted = &expected[old.strip_prefix(fixture("")).unwrap().as_str()];
            let found = &tensors_of_header(&Header::read(new).unwrap())[name];
            assert_eq!((&found.shape, found.dtype), (&wanted.shape, Dtype::BF16), "{old}");
            assert_eq!(values(&mut files, found), values(&mut files, wanted), "{old}");
        }
    }
    assert_eq!(new.samples[0].text[1..], new.samples[1].text[1..], "a shared text is written once");
    let info = new.check(&model()).unwrap();
    assert_eq!((info.samples, info.bytes < done.bytes * 2), (2, true));
}

#[test]
fn paths_may_start_elsewhere_than_at_the_index() {
    let (_keep, folder) = temp();
    let moved = folder.join("moved.jsonl");
    fs::copy(fixture("train.jsonl"), &moved).unwrap();
    let mut asked = request(moved, &folder.join("new"));
    let failure = plan_import(&asked).unwrap_err();
    assert_eq!(failure.code, ErrorCode::NotFound);
    insta::assert_snapshot!(shown(&failure, &folder));
    asked.root = Some(fixture(""));
    assert_eq!(import(&asked, false).unwrap().samples, 2);
}

#[test]
fn an_imported_dataset_can_be_imported_again_and_is_replaced_only_when_forced() {
    let (_keep, folder) = temp();
    let (first, second) = (folder.join("first"), folder.join("second"));
    let done = import(&request(fixture("train.jsonl"), &first), false).unwrap();
    let again = import(&request(done.index.clone(), &second), false).unwrap();
    let identity = |index: &Utf8Path| Index::open(index).unwrap().check(&model()).unwrap().fingerprint;
    assert_eq!(identity(&again.index), identity(&done.index));
    let refused = import(&request(fixture("train.jsonl"), &second), false).unwrap_err();
    assert_eq!(refused.code, ErrorCode::AlreadyExists);
    import(&request(fixture("train.jsonl"), &second), true).unwrap();
    fs::write(second.join("notes.txt"), "mine").unwrap();
    let foreign = import(&request(fixture("train.jsonl"), &second), true).unwrap_err();
    assert_eq!(foreign.code, ErrorCode::AlreadyExists);
    insta::assert_snapshot!([refused, foreign].map(|failure| shown(&failure, &folder)).join("\n\n"));
}

#[test]
fn the_first_line_that_cannot_be_imported_is_named() {
    let (_keep, folder) = temp();
    let said = |latent: &str, text: &str| {
        let index = folder.join("index.jsonl");
        fs::write(&index, format!("\n{{\"vid_emb\": \"{latent}\", \"text_chunk_emb\": [\"{text}\"]}}\n")).unwrap();
        let failure = plan_import(&request(index, &folder.join("new"))).unwrap_err();
        assert_eq!(failure.what, format!("line 2 of {folder}/index.jsonl cannot be imported"));
        format!("{}\nhint: {}", failure.why, failure.fix).replace(folder.as_str(), "")
    };
    let video = |name: &str, shape: &[usize], dtype| write(&folder.join(name), &[("x", dtype, shape)]);
    video("good", &[3, 8, 4, 4], Dtype::BF16);
    video("batched", &[1, 3, 8, 4, 4], Dtype::BF16);
    video("wide", &[3, 32, 4, 4], Dtype::BF16);
    video("whole", &[3, 8, 4, 4], Dtype::I64);
    write(&folder.join("two"), &[("x", Dtype::F32, &[3, 8, 4, 4]), ("y", Dtype::F32, &[1])]);
    fs::write(folder.join("garbage"), "PK\x03\x04 and no more").unwrap();
    fs::write(folder.join("words"), "a rabbit, a very grey one").unwrap();
    let latents = ["batched", "wide", "whole", "two", "garbage", "words", "absent"].map(|name| said(name, "good"));
    let texts = ["good", "absent"].map(|name| said("good", name));
    insta::assert_snapshot!([&latents[..], &texts[..]].concat().join("\n\n"));
}

#[test]
fn a_pickle_that_would_run_something_is_refused_by_the_name_of_what_it_wants() {
    let (_keep, folder) = temp();
    let mut bytes = fs::read(fixture("texts/text_3.pt")).unwrap();
    let at = bytes.windows(12).position(|window| window == b"torch._utils").unwrap();
    bytes[at..at + 12].copy_from_slice(b"os.utilities");
    fs::write(folder.join("evil.pt"), bytes).unwrap();
    let index = folder.join("index.jsonl");
    fs::write(&index, r#"{"vid_emb": "evil.pt", "text_chunk_emb": ["evil.pt"]}"#).unwrap();
    let failure = plan_import(&request(index, &folder.join("new"))).unwrap_err();
    assert_eq!(failure.code, ErrorCode::Malformed);
    insta::assert_snapshot!(shown(&failure, &folder));
}

#[test]
fn an_interrupted_import_leaves_nothing() {
    let (_keep, folder) = temp();
    let plan = plan_import(&request(fixture("train.jsonl"), &folder.join("new"))).unwrap();
    plan.execute(false, &mut |_| ControlFlow::Break(())).unwrap_err();
    assert_eq!(folder.read_dir_utf8().unwrap().count(), 0);
}

#[test]
fn training_on_what_is_not_imported_is_refused_with_the_command_that_does() {
    let failure = Index::open(&fixture("train.jsonl")).unwrap().check(&model()).unwrap_err();
    assert_eq!(failure.code, ErrorCode::InvalidDataset);
    insta::assert_snapshot!(failure.to_string());
}

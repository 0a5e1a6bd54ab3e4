//! Tests of the import of data sets of ttt-video-dit, finetrainers and cogvideox-factory.

use super::*;
use crate::{Index, Table};
use half::bf16;
use std::ops::ControlFlow;
use weights::fixtures::{shown, temp, write};
use weights::{Files, Header, tensors_of_header};

fn fixture(name: &str) -> Utf8PathBuf {
    Utf8PathBuf::from("../../tests/fixtures/dataset").join(name)
}

fn request(index: Utf8PathBuf, target: &Utf8Path) -> ImportRequest {
    ImportRequest { index, root: None, target: target.to_owned(), channels: 4, not_finite: NotFiniteClips::Refuse }
}

fn import(request: &ImportRequest, force: bool) -> Result<Imported, Failure> {
    plan_import(request)?.execute(force, &mut |_| ControlFlow::Continue(()))
}

/// A model with three segments of 8 tokens of width 6, and 37 latent frames of 4 channels.
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

/// Returns the lines of a store.
fn lines(index: &Utf8Path) -> Vec<Line> {
    let mut lines = Vec::new();
    let data = index.parent().unwrap();
    crate::store::read_index(data, |_, line| {
        lines.push(line);
        Ok(())
    })
    .unwrap();
    lines
}

/// Compares a tensor of a store with an expected one.
fn compare(index: &Utf8Path, place: &TensorLocation, expected: &StoredTensor) {
    let header = Header::read(&index.with_file_name(&place.shard)).unwrap();
    let found = &tensors_of_header(&header)[&place.name];
    assert_eq!((&found.shape, found.dtype), (&expected.shape, Dtype::BF16), "{}", place.name);
    let mut files = Files::default();
    assert_eq!(values(&mut files, found), values(&mut files, expected), "{}", place.name);
}

#[test]
fn a_dataset_of_ttt_video_is_imported_with_equal_values() {
    let (_keep, folder) = temp();
    let target = folder.join("new");
    let source = fixture("train.jsonl");
    let done = import(&request(source.clone(), &target), false).unwrap();
    assert_eq!((done.samples, done.files, &done.index), (2, 2, &target.join("index.jsonl")));

    let expected = tensors_of_header(&Header::read(&fixture("expected.safetensors")).unwrap());
    let (old, new) = (Index::open(&source).unwrap(), lines(&done.index));
    let name = |path: &Utf8Path| path.strip_prefix(fixture("")).unwrap().to_string();
    for (old, new) in old.samples.iter().zip(&new) {
        compare(&done.index, &new.latent, &expected[&name(&old.latent)]);
        for (old, new) in old.text.iter().zip(&new.text) {
            compare(&done.index, new, &expected[&name(old)]);
        }
    }
    assert_eq!(new[0].text[1..], new[1].text[1..], "a shared text is written once");
    assert_eq!((new[0].drawn, &new[0].bucket[..]), (false, "37x4x4"));
    for path in [&done.index, &target] {
        assert_eq!(Table::open(path, &model()).unwrap().info.samples, 2);
    }
}

#[test]
fn latents_of_finetrainers_and_of_cogvideox_factory_are_imported_with_equal_values() {
    let expected = tensors_of_header(&Header::read(&fixture("prepared.safetensors")).unwrap());
    for (name, count, caption) in [("finetrainers", 3, ""), ("factory", 2, "caption 7c2d")] {
        let (_keep, folder) = temp();
        let done = import(&request(fixture(name), &folder.join("new")), false).unwrap();
        assert_eq!((done.samples, done.files), (count, 2));
        let lines = lines(&done.index);
        for (number, line) in lines.iter().enumerate() {
            compare(&done.index, &line.latent, &expected[&format!("{name}.{number}.latent")]);
            compare(&done.index, &line.text[0], &expected[&format!("{name}.{number}.text")]);
        }
        assert_eq!(lines[1].caption, caption);
        let fits = recipe::Model { latent_frames: 3, ..model() }.with_cogvideox(|keys| keys.segments = 1);
        assert_eq!(Table::open(&done.index, &fits).unwrap().len(), count);
    }
}

#[test]
fn an_import_records_checksums_and_refuses_clips_with_values_that_are_not_finite() {
    let (_keep, folder) = temp();
    let write = |name: &str, tensor: &str, shape: &[usize]| {
        weights::fixtures::write(&folder.join(name), &[(tensor, Dtype::BF16, shape)]);
    };
    let mut index = String::new();
    for clip in 0..3 {
        write(&format!("{clip}.latent"), "latent", &[1, 4, 4, 4]);
        write(&format!("{clip}.text"), "text", &[8, 6]);
        index += &format!("{{\"vid_emb\": \"{clip}.latent\", \"text_chunk_emb\": [\"{clip}.text\"]}}\n");
    }
    std::fs::write(folder.join("index.jsonl"), index).unwrap();
    let spoil = |name: &str, values: &[[u8; 2]]| {
        let path = folder.join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        let begin = Header::read(&path).unwrap().tensors.values().next().unwrap().begin as usize;
        bytes[begin..begin + 2 * values.len()].copy_from_slice(values.as_flattened());
        std::fs::write(&path, bytes).unwrap();
    };
    let wanted = request(folder.join("index.jsonl"), &folder.join("new"));
    let done = import(&wanted, false).unwrap();
    let continued = &mut |_| std::ops::ControlFlow::Continue(());
    let found = crate::store::verify(&wanted.target, continued).unwrap();
    assert_eq!((done.dropped.len(), found.tensors, found.without_checksum, found.damaged), (0, 6, 0, vec![]));

    // bfloat16 NaN and minus infinity.
    spoil("1.latent", &[[0xc0, 0x7f], [0x80, 0xff]]);
    spoil("2.text", &[[0x80, 0x7f]]);
    let failure = import(&wanted, true).unwrap_err();
    assert_eq!(failure.code, ErrorCode::NotFinite);
    assert!(["'000001'", "1.latent", "'000002'"].iter().all(|part| failure.why.contains(part)), "{failure}");
    assert_eq!(lines(&done.index).len(), 3, "the earlier import is unchanged");
    let rest = ImportRequest { not_finite: NotFiniteClips::Drop, ..wanted };
    let done = import(&rest, true).unwrap();
    let dropped: Vec<(&str, u64)> = done.dropped.iter().map(|clip| (clip.id.as_str(), clip.values)).collect();
    assert_eq!((done.samples, dropped), (1, vec![("000001", 2), ("000002", 1)]));
    assert_eq!(lines(&done.index)[0].id, "000000");
    spoil("0.latent", &[[0x80, 0x7f]]);
    assert_eq!(import(&rest, true).unwrap_err().code, ErrorCode::NotFinite, "no clip is left");
}

/// Opens an imported store for a recipe with a condition.
fn with_condition(index: &Utf8Path, condition: &Conditioning) -> Result<Table, Failure> {
    let model = recipe::Model { latent_frames: 3, ..model() }.with_cogvideox(|keys| keys.segments = 1);
    Table::open(index, &model).unwrap().with_conditions(condition, &model)
}

#[test]
fn images_of_cogvideox_factory_are_imported_and_train_image_to_video_without_noise() {
    let expected = tensors_of_header(&Header::read(&fixture("prepared.safetensors")).unwrap());
    let (_keep, folder) = temp();
    let done = import(&request(fixture("factory"), &folder.join("new")), false).unwrap();
    for (number, line) in lines(&done.index).iter().enumerate() {
        assert_eq!(line.extra.keys().collect::<Vec<_>>(), ["image"]);
        compare(&done.index, &line.extra["image"], &expected[&format!("factory.{number}.image")]);
    }
    let image = Conditioning { kind: ConditionKind::Image, ..Conditioning::default() };
    let table = with_condition(&done.index, &image).unwrap();
    assert_eq!((table.extras(0).len(), table.extras(1).len()), (1, 1));
    assert!(table.reader().read(table.extras(0)[0]).unwrap().moments);
    let noise = Conditioning { image_noise: true, ..image.clone() };
    let failure = with_condition(&done.index, &noise).unwrap_err();
    assert!(failure.why.contains("condition.image_noise = false"), "{failure}");
}

#[test]
fn an_import_without_the_tensors_of_a_condition_names_its_program_and_the_encode() {
    let (_keep, folder) = temp();
    let condition = |kind| Conditioning { kind, ..Conditioning::default() };
    let done = import(&request(fixture("finetrainers"), &folder.join("new")), false).unwrap();
    let shown: Vec<String> = [ConditionKind::Image, ConditionKind::Inpaint]
        .map(|kind| with_condition(&done.index, &condition(kind)).unwrap_err())
        .into_iter()
        .chain({
            let images = import(&request(fixture("factory"), &folder.join("images")), false).unwrap();
            with_condition(&images.index, &condition(ConditionKind::Inpaint)).err()
        })
        .inspect(|failure| assert_eq!(failure.code, ErrorCode::InvalidDataset))
        .map(|failure| shown(&failure, &folder))
        .collect();
    insta::assert_snapshot!(shown.join("\n\n"));
}

#[test]
fn images_must_be_complete_and_fit_their_clips() {
    let (_keep, folder) = temp();
    let copy = |name: &str| {
        let to = folder.join(name);
        for part in ["video_latents", "prompt_embeds", "image_latents"] {
            fs::create_dir_all(to.join(part)).unwrap();
            for file in fixture("factory").join(part).read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()) {
                fs::copy(&file, to.join(part).join(file.file_name().unwrap())).unwrap();
            }
        }
        to
    };
    let gone = copy("gone");
    fs::remove_file(gone.join("image_latents/7c2d.pt")).unwrap();
    let longer = copy("longer");
    fs::copy(fixture("factory/video_latents/7c2d.pt"), longer.join("image_latents/7c2d.pt")).unwrap();
    let failures = [gone.clone(), longer].map(|source| {
        let failure = import(&request(source, &folder.join("new")), false).unwrap_err();
        assert!(!folder.join("new").exists());
        failure
    });
    assert_eq!(failures.each_ref().map(|failure| failure.code), [ErrorCode::NotFound, ErrorCode::Malformed]);
    insta::assert_snapshot!(failures.map(|failure| shown(&failure, &folder)).join("\n\n"));
    // Some versions of cogvideox-factory create the folder and save nothing in it.
    fs::remove_file(gone.join("image_latents/0a1b.pt")).unwrap();
    let done = import(&request(gone, &folder.join("new")), false).unwrap();
    assert!(lines(&done.index).iter().all(|line| line.extra.is_empty()));
}

#[test]
fn folders_that_no_program_prepared_and_clips_without_a_text_are_refused() {
    let (_keep, folder) = temp();
    let code = |path: &Utf8Path, channels| {
        let request = ImportRequest { channels, ..request(path.to_owned(), &folder.join("new")) };
        let failure = plan_import(&request).unwrap_err();
        (failure.code, failure.why)
    };
    assert_eq!(code(&folder, 4).0, ErrorCode::InvalidDataset);
    let latents = folder.join("video_latents");
    fs::create_dir(&latents).unwrap();
    assert_eq!(code(&folder, 4).0, ErrorCode::InvalidDataset);
    fs::copy(fixture("factory/video_latents/0a1b.pt"), latents.join("0a1b.pt")).unwrap();
    let (no_text, why) = code(&folder, 4);
    assert_eq!(no_text, ErrorCode::NotFound);
    assert!(why.contains("prompt_embeds/0a1b.pt"), "{why}");
    assert_eq!(code(&fixture("finetrainers"), 16).0, ErrorCode::Malformed);
    let other = folder.join("finetrainers-precomputed-data");
    fs::create_dir(&other).unwrap();
    fs::copy(fixture("finetrainers/finetrainers-precomputed-data/condition-0.pt"), other.join("latent-0.pt")).unwrap();
    let (no_latent, why) = code(&folder, 4);
    assert_eq!(no_latent, ErrorCode::Malformed);
    assert!(why.contains("'latents'"), "{why}");
}

#[test]
fn paths_can_be_relative_to_a_folder_other_than_that_of_the_index() {
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
fn an_import_is_replaced_only_when_forced() {
    let (_keep, folder) = temp();
    let (first, second) = (folder.join("first"), folder.join("second"));
    let identity = |target: &Utf8Path| {
        import(&request(fixture("train.jsonl"), target), false).unwrap();
        Table::open(target, &model()).unwrap().info.fingerprint
    };
    assert_eq!(identity(&first), identity(&second));
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
    let refusal = |latent: &str, text: &str| {
        let index = folder.join("index.jsonl");
        fs::write(&index, format!("\n{{\"vid_emb\": \"{latent}\", \"text_chunk_emb\": [\"{text}\"]}}\n")).unwrap();
        let failure = plan_import(&request(index, &folder.join("new"))).unwrap_err();
        failure.to_string().replace(folder.as_str(), "")
    };
    let video = |name: &str, shape: &[usize], dtype| write(&folder.join(name), &[("x", dtype, shape)]);
    video("good", &[3, 8, 4, 4], Dtype::BF16);
    video("batched", &[1, 3, 8, 4, 4], Dtype::BF16);
    video("wide", &[3, 32, 4, 4], Dtype::BF16);
    video("whole", &[3, 8, 4, 4], Dtype::I64);
    write(&folder.join("two"), &[("x", Dtype::F32, &[3, 8, 4, 4]), ("y", Dtype::F32, &[1])]);
    fs::write(folder.join("garbage"), "PK\x03\x04 and no more").unwrap();
    fs::write(folder.join("words"), "a rabbit, a very grey one").unwrap();
    let latents = ["batched", "wide", "whole", "two", "garbage", "words", "absent"].map(|name| refusal(name, "good"));
    let texts = ["good", "absent"].map(|name| refusal("good", name));
    insta::assert_snapshot!([&latents[..], &texts[..]].concat().join("\n\n"));
}

#[test]
fn a_pickle_that_would_run_code_is_refused_and_the_function_named() {
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
fn training_on_a_data_set_that_is_not_imported_is_refused_with_the_import_command() {
    let failure = Index::open(&fixture("train.jsonl")).unwrap().check(&model()).unwrap_err();
    assert_eq!(failure.code, ErrorCode::InvalidDataset);
    insta::assert_snapshot!(failure.to_string());
}

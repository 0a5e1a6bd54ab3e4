//! Compares masked T5 and umT5 with numbers recorded from transformers: `opensora_encoders/t5_masked` and every
//! `wan/*/len*.safetensors` beside a `text_encoder/`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap reports its line")]

#[path = "../../../tests/oracle/device.rs"]
mod device;
#[path = "../../../tests/oracle/mod.rs"]
mod oracle;
mod support;

use camino::{Utf8Path, Utf8PathBuf};
use device::{device, there};
use encoders::{T5Encoder, without_padding};
use failure::ErrorCode;
use support::{distance, load, near};
use tch::{Device, Kind, Tensor};

/// Returns the folders with a `text_encoder/` and a recorded file.
fn folders(below: &str, recorded: &str) -> Vec<Utf8PathBuf> {
    let has = |folder: &Utf8Path| {
        folder.join("text_encoder/config.json").is_file() && folder.join(format!("{recorded}.safetensors")).is_file()
    };
    oracle::entries(below, &format!("{recorded}.safetensors beside a text_encoder/"), has)
}

fn masked() -> Vec<Utf8PathBuf> {
    folders("opensora_encoders", "encode")
        .into_iter()
        .filter(|folder| folder.file_name() == Some("t5_masked"))
        .collect()
}

fn t5(folder: &Utf8Path, kind: Kind) -> T5Encoder {
    T5Encoder::open(&folder.join("text_encoder"), kind, device()).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn oracle_t5_attends_to_padding_only_without_a_mask() {
    for folder in masked() {
        let recorded = load(&folder.join("encode.safetensors"));
        let (ids, mask) = (there(&recorded["in.ids"]), there(&recorded["in.mask"]));
        assert!(distance(&recorded["out.masked"], &recorded["out.unmasked"]) > 0.01);
        for kind in [Kind::Float, Kind::BFloat16] {
            let t5 = t5(&folder, kind);
            near(&format!("{folder} masked"), &t5.encode_masked(&ids, &mask).unwrap(), &recorded["out.masked"]);
            near(&format!("{folder} unmasked"), &t5.encode(&ids).unwrap(), &recorded["out.unmasked"]);
        }
    }
}

#[test]
fn oracle_umt5_has_the_prompt_embeddings_of_wan() {
    for folder in folders("wan", "len20") {
        let files = folder.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path());
        let files: Vec<_> = files.filter(|path| path.extension() == Some("safetensors")).collect();
        assert!(files.len() > 1, "{folder} has recordings of several lengths");
        for (path, kind) in files.iter().flat_map(|path| [(path, Kind::Float), (path, Kind::BFloat16)]) {
            let recorded = load(path);
            let mask = there(&recorded["in.attention_mask"]);
            let states = t5(&folder, kind).encode_masked(&there(&recorded["in.input_ids"]), &mask).unwrap();
            if let Some(want) = recorded.get("out.hidden_states") {
                near(&format!("{path} states"), &states, want);
            }
            near(&format!("{path} embeddings"), &without_padding(&states, &mask), &recorded["out.prompt_embeds"]);
        }
    }
}

#[test]
fn the_length_of_a_batch_does_not_change_the_states_of_masked_texts() {
    for folder in folders("wan", "len300") {
        let recorded = load(&folder.join("len300.safetensors"));
        let umt5 = t5(&folder, Kind::Float);
        let (ids, mask) = (there(&recorded["in.input_ids"]), there(&recorded["in.attention_mask"]));
        // More texts than are computed at a time.
        let repeat = |tensor: &Tensor| tensor.repeat([4, 1]);
        let several = umt5.encode_masked(&repeat(&ids), &repeat(&mask)).unwrap();
        let one = umt5.encode_masked(&ids, &mask).unwrap();
        assert!(distance(&several, &one.repeat([4, 1, 1])) < 1e-6);
        let padded = umt5.encode_masked(&ids.constant_pad_nd([0, 20]), &mask.constant_pad_nd([0, 20])).unwrap();
        let (padded, one) = (padded.narrow(1, 0, 300), without_padding(&one, &mask));
        assert!(distance(&without_padding(&padded, &mask), &one) < 1e-6);
    }
}

#[test]
fn a_text_without_tokens_is_refused() {
    for folder in masked() {
        let ids = Tensor::ones([2, 3], (Kind::Int64, Device::Cpu));
        let mask = Tensor::from_slice(&[1i64, 1, 0, 0, 0, 0]).view([2, 3]);
        let t5 = t5(&folder, Kind::Float);
        assert_eq!(t5.encode_masked(&ids, &mask).unwrap_err().code, ErrorCode::InvalidArgument);
        assert_eq!(t5.encode_masked(&ids, &mask.narrow(1, 0, 2)).unwrap_err().code, ErrorCode::InvalidArgument);
    }
}

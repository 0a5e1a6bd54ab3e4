//! Compares the text encoder of CLIP with numbers recorded from transformers: `opensora_encoders/clip`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap reports its line")]

#[path = "../../../tests/oracle/device.rs"]
mod device;
#[path = "../../../tests/oracle/mod.rs"]
mod oracle;
mod support;

use camino::{Utf8Path, Utf8PathBuf};
use device::{device, there};
use encoders::ClipEncoder;
use failure::ErrorCode;
use support::{load, near};
use tch::{Device, Kind, Tensor};

fn folders() -> Vec<Utf8PathBuf> {
    let has = |folder: &Utf8Path| folder.file_name() == Some("clip") && folder.join("encode.safetensors").is_file();
    oracle::entries("opensora_encoders", "clip/encode.safetensors", has)
}

fn clip(folder: &Utf8Path, kind: Kind) -> ClipEncoder {
    ClipEncoder::open(folder, kind, device()).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn oracle_clip_has_the_states_of_transformers() {
    for folder in folders() {
        let recorded = load(&folder.join("encode.safetensors"));
        for kind in [Kind::Float, Kind::BFloat16] {
            let states = clip(&folder.join("text_encoder"), kind).encode(&there(&recorded["in.ids"])).unwrap();
            near(&format!("{folder} states"), &states.states, &recorded["out.last_hidden_state"]);
            near(&format!("{folder} pooled"), &states.pooled, &recorded["out.pooled"]);
        }
    }
}

/// Writes a whole CLIP as OpenAI published it: the text encoder's tensors have a prefix, other tensors are beside them, and the
/// configuration has another end token.
fn write_whole_clip(text_encoder: &Utf8Path, folder: &Utf8Path) {
    let text = std::fs::read_to_string(text_encoder.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["eos_token_id"] = 2.into();
    let whole = serde_json::json!({"model_type": "clip", "text_config": config, "vision_config": {}});
    std::fs::write(folder.join("config.json"), whole.to_string()).unwrap();
    let bytes = std::fs::read(text_encoder.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let positions = [0u8; 8];
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::I64, vec![1], &positions).unwrap();
    let mut views: Vec<_> = file.iter().map(|(name, view)| (format!("text_model.{name}"), view)).collect();
    views.push(("text_model.embeddings.position_ids".into(), view.clone()));
    views.push(("vision_model.embeddings.position_ids".into(), view));
    std::fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn oracle_the_published_clip_pools_the_largest_id() {
    for folder in folders() {
        let recorded = load(&folder.join("encode.safetensors"));
        let keep = tempfile::tempdir().unwrap();
        let whole = Utf8Path::from_path(keep.path()).unwrap();
        write_whole_clip(&folder.join("text_encoder"), whole);
        let states = clip(whole, Kind::Float).encode(&there(&recorded["in.ids"])).unwrap();
        near(&format!("{folder} pooled"), &states.pooled, &recorded["out.pooled_legacy"]);
    }
}

#[test]
fn ids_that_clip_cannot_pool_are_refused() {
    for folder in folders() {
        let clip = clip(&folder.join("text_encoder"), Kind::Float);
        let code = |ids: &Tensor| clip.encode(ids).unwrap_err().code;
        let ids = |n: i64| Tensor::zeros([1, n], (Kind::Int64, Device::Cpu));
        assert_eq!(code(&ids(78)), ErrorCode::InvalidArgument);
        assert_eq!(code(&ids(3)), ErrorCode::TensorMismatch, "no end token");
        assert_eq!(code(&(ids(3) + 100_000)), ErrorCode::TensorMismatch);
    }
}

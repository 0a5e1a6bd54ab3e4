//! Tests of the encoders' configurations, tables of parameters, and tiles.

use super::*;
use crate::fixtures::{temp, write};
use serde_json::json;
use std::fs;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/oracle");

fn vae_folder() -> Utf8PathBuf {
    Utf8Path::new(FIXTURES).join("vae/cogvideox_5b_tiny/vae")
}

fn t5_folder() -> Utf8PathBuf {
    Utf8Path::new(FIXTURES).join("t5/t5_v1_1_tiny/text_encoder")
}

fn config_of(folder: &Utf8Path) -> serde_json::Map<String, Value> {
    serde_json::from_slice(&fs::read(folder.join(CONFIG_FILE)).unwrap()).unwrap()
}

/// Returns the code and the reason of the refusal of a configuration with one key changed.
fn refused(
    from: &Utf8Path,
    read: fn(&Utf8Path) -> Result<(), Failure>,
    key: &str,
    value: Value,
) -> (ErrorCode, String) {
    let (_keep, folder) = temp();
    let mut config = config_of(from);
    config.insert(key.to_owned(), value);
    fs::write(folder.join(CONFIG_FILE), serde_json::to_string(&config).unwrap()).unwrap();
    let failure = read(&folder).expect_err(key);
    (failure.code, failure.why)
}

#[test]
fn every_tensor_of_the_recorded_models_is_in_the_table() {
    for folder in Utf8Path::new(FIXTURES).join("vae").read_dir_utf8().unwrap() {
        let (config, files) = VaeConfig::open(&folder.unwrap().path().join("vae")).unwrap();
        assert_eq!(files.tensors.len(), config.parameters().len());
    }
    let (config, files) = T5Config::open(&t5_folder()).unwrap();
    assert_eq!(files.tensors.len(), config.parameters().len());
}

#[test]
fn the_released_vae_has_216_million_parameters_and_t5_xxl_4_8_billion() {
    let count = |table: Vec<Parameter>| table.iter().map(|p| p.shape.iter().product::<usize>()).sum::<usize>();
    assert_eq!(count(VaeConfig::default().parameters()) / 1_000_000, 215);
    let xxl = T5Config { d_model: 4096, d_ff: 10240, num_layers: 24, num_heads: 64, ..T5Config::default() };
    assert_eq!(count(xxl.parameters()) / 100_000_000, 47);
}

#[test]
fn vae_configurations_that_are_not_supported_are_refused() {
    let read = |folder: &Utf8Path| VaeConfig::read(folder).map(drop);
    for (key, value) in [
        ("_class_name", json!("AutoencoderKLWan")),
        ("_class_name", json!("")),
        (
            "down_block_types",
            json!(["CogVideoXDownBlock3D", "DownEncoderBlock2D", "CogVideoXDownBlock3D", "CogVideoXDownBlock3D"]),
        ),
        ("up_block_types", json!(["CogVideoXUpBlock3D"])),
        ("act_fn", json!("gelu")),
        ("use_quant_conv", json!(true)),
        ("shift_factor", json!(0.1)),
        ("norm_num_groups", json!(4)),
        ("layers_per_block", json!(0)),
        ("layers_per_block", json!(1025)),
        ("temporal_compression_ratio", json!(3)),
        ("temporal_compression_ratio", json!(8)),
        ("scaling_factor", json!(0.0)),
        ("block_out_channels", json!([])),
    ] {
        let (code, why) = refused(&vae_folder(), read, key, value);
        assert_eq!(code, ErrorCode::UnsupportedModel, "{key}: {why}");
        assert!(why.contains(key) || key == "_class_name", "{key}: {why}");
    }
    let (code, _) = refused(&vae_folder(), read, "block_out_channels", json!("wide"));
    assert_eq!(code, ErrorCode::Malformed);
}

#[test]
fn t5_configurations_that_are_not_supported_are_refused() {
    let read = |folder: &Utf8Path| T5Config::read(folder).map(drop);
    for (key, value) in [
        ("model_type", json!("umt5")),
        ("feed_forward_proj", json!("relu")),
        ("num_heads", json!(0)),
        ("num_layers", json!(1025)),
        ("relative_attention_num_buckets", json!(3)),
    ] {
        let (code, why) = refused(&t5_folder(), read, key, value);
        assert_eq!(code, ErrorCode::UnsupportedModel, "{key}: {why}");
    }
}

#[test]
fn a_folder_without_a_configuration_or_with_another_model_is_refused() {
    let (_keep, folder) = temp();
    assert_eq!(VaeConfig::read(&folder).unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(T5Config::read(&folder.join("none")).unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(VaeConfig::read(&t5_folder()).unwrap_err().code, ErrorCode::UnsupportedModel);
    assert_eq!(T5Config::read(&vae_folder()).unwrap_err().code, ErrorCode::UnsupportedModel);
    fs::write(folder.join(CONFIG_FILE), "{]").unwrap();
    assert_eq!(VaeConfig::read(&folder).unwrap_err().code, ErrorCode::Malformed);
}

/// Opens encoder files with the table `a.weight`, `b` (alias `tied`), after `change` has changed their tensors.
fn open_with(change: impl Fn(&mut Vec<(&'static str, Dtype, &'static [usize])>)) -> Result<EncoderFiles, Failure> {
    let (_keep, folder) = temp();
    let mut tensors: Vec<(&'static str, Dtype, &'static [usize])> =
        vec![("a.weight", Dtype::F32, &[2, 3]), ("tied", Dtype::BF16, &[4])];
    change(&mut tensors);
    write(&folder.join("model.safetensors"), &tensors);
    let table = [Parameter::new("a.weight", [2, 3]), Parameter::new("b", [4])];
    let alias = |name: &str| (name == "b").then(|| "tied".to_owned());
    EncoderFiles::open(&folder, &serde_json::Value::Null, &table, alias, &["decoder."])
}

#[test]
fn weights_that_do_not_match_the_table_are_refused() {
    assert_eq!(open_with(|_| ()).unwrap().tensors.keys().collect::<Vec<_>>(), ["a.weight", "b"]);
    assert!(open_with(|tensors| tensors.push(("decoder.x", Dtype::F32, &[1]))).is_ok());
    assert!(open_with(|tensors| tensors.push(("b", Dtype::BF16, &[4]))).is_ok(), "tied tensors may be there twice");
    type Change = fn(&mut Vec<(&'static str, Dtype, &'static [usize])>);
    let cases: [(Change, ErrorCode); 4] = [
        (|tensors| tensors.truncate(1), ErrorCode::TensorMismatch),
        (|tensors| tensors[0].2 = &[3, 2], ErrorCode::TensorMismatch),
        (|tensors| tensors.push(("other", Dtype::F32, &[1])), ErrorCode::TensorMismatch),
        (|tensors| tensors[0].1 = Dtype::U8, ErrorCode::UnsupportedModel),
    ];
    for (number, (change, code)) in cases.into_iter().enumerate() {
        let failure = open_with(change).unwrap_err();
        assert_eq!(failure.code, code, "{number}: {failure}");
    }
}

#[test]
fn the_identity_depends_on_weights_and_settings_and_not_on_comments() {
    let (_keep, folder) = temp();
    for name in [CONFIG_FILE, "diffusion_pytorch_model.safetensors"] {
        fs::copy(vae_folder().join(name), folder.join(name)).unwrap();
    }
    let identity = || VaeConfig::open(&folder).unwrap().1.identity().unwrap();
    let first = identity();
    let change = |key: &str, value: Value| {
        let mut config = config_of(&folder);
        config.insert(key.to_owned(), value);
        fs::write(folder.join(CONFIG_FILE), serde_json::to_string(&config).unwrap()).unwrap();
    };
    change("_diffusers_version", json!("9.9"));
    assert_eq!(identity(), first);
    change("scaling_factor", json!(0.9));
    let second = identity();
    assert_ne!(second, first);
    let weights = folder.join("diffusion_pytorch_model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    assert_ne!(identity(), second);
}

#[test]
fn rows_are_those_of_the_whole_matrix() {
    let (_, files) = T5Config::open(&t5_folder()).unwrap();
    let mut reader = files.reader();
    let (whole, dtype, shape) = reader.read("shared.weight").unwrap();
    let row = shape[1] * dtype.size();
    let rows = files.rows("shared.weight").unwrap().read(&[5, 0, 5, 1151]).unwrap();
    let wanted = [5, 0, 5, 1151].map(|n| &whole[n * row..(n + 1) * row]).concat();
    assert_eq!(rows, wanted);
}

#[test]
fn the_first_window_of_frames_has_the_remainder() {
    let lengths = |frames, window| windows(frames, window).iter().map(|w| w.len()).collect::<Vec<_>>();
    assert_eq!(lengths(49, 8), [9, 8, 8, 8, 8, 8]);
    assert_eq!(lengths(13, 8), [13]);
    assert_eq!(lengths(5, 8), [5]);
    assert_eq!(lengths(13, 2), [3, 2, 2, 2, 2, 2]);
    assert_eq!(windows(17, 8), [0..9, 9..17]);
    let config = VaeConfig::default();
    assert_eq!([1, 5, 8, 9, 17, 49, 81].map(|frames| config.latent_frames(frames)), [1, 2, 2, 3, 5, 13, 21]);
    assert_eq!([1, 2, 3, 4, 13].map(|frames| config.frames(frames)), [1, 8, 9, 16, 49]);
    // Recipes have the same numbers without the files of a VAE.
    for latent_frames in 1..60 {
        let frames = config.frames(latent_frames);
        assert_eq!(recipe::decoded_frames(latent_frames), frames);
        assert_eq!((recipe::latent_frames(frames), config.latent_frames(frames)), (latent_frames, latent_frames));
    }
}

#[test]
fn with_the_default_overlaps_tiles_of_multiples_of_48_and_40_stay_on_the_grid() {
    let config = VaeConfig::default();
    let default = TileSize::of(&config);
    assert_eq!((default.height, default.width), (240, 360));
    default.check(&config).unwrap();
    for size in 1..500 {
        assert_eq!(TileSize { height: size, ..default }.check(&config).is_ok(), size % 48 == 0, "height {size}");
        assert_eq!(TileSize { width: size, ..default }.check(&config).is_ok(), size % 40 == 0, "width {size}");
    }
    let failure = TileSize { height: 256, ..default }.check(&config).unwrap_err();
    assert_eq!(failure.code, ErrorCode::InvalidArgument);
    assert!(failure.fix.contains("240 or 288"), "{failure}");
    for overlap in [0.0, 1.0, -1.0, f64::NAN] {
        assert!(TileSize { overlap_width: overlap, ..default }.check(&config).is_err());
    }
    assert!(default.encode(&config, 240, 360).is_none());
    assert!(default.decode(&config, 31, 45).is_some());
}

#[test]
fn tiles_need_less_memory_and_larger_videos_more() {
    let config = VaeConfig::default();
    let tiles = TileSize::of(&config);
    let peak = |shape, tiling: Option<&TileSize>| vae_memory(&config, shape, tiling, 2).work;
    let whole = peak([49, 480, 720], None);
    let tiled = peak([49, 480, 720], Some(&tiles));
    assert!(tiled * 2 < whole, "{tiled} {whole}");
    assert!(peak([49, 768, 1360], None) > 2 * whole);
    assert_eq!(peak([49, 240, 360], Some(&tiles)), peak([49, 240, 360], None));
}

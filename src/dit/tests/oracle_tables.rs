//! Compares noise schedules, losses, position tables and rotations with numbers recorded from diffusers and VideoX-Fun.
//!
//! Reads `tests/fixtures/oracle`, or the folder in `VIDTUI_ORACLE`: the folders `schedules/noise_*`, the files of `rotary/` and
//! `sampling/positions`. Sizes come from the files.

mod support;

use camino::Utf8Path;
use dit::cogvideox::positions::{self, Crop};
use dit::diffusion::NoiseSchedule;
use kernels::OnGpu;
use kernels::fused::rotate;
use recipe::{Loss, LossWeighting, Model, Positions, Rotary};
use serde_json::Value;
use support::{Tensors, load, metadata, oracle, relative};
use tch::{Kind, Tensor};

/// Returns a model whose values fill the fields that a test does not set.
fn any_model() -> Model {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
    recipe::load(file.into(), &[]).expect("a valid recipe").recipe.model
}

/// Returns the largest absolute difference.
fn apart(got: &Tensor, want: &Tensor) -> f64 {
    (got.to_kind(Kind::Double) - want.to_kind(Kind::Double)).abs().max().double_value(&[])
}

#[test]
fn oracle_schedules_and_losses_are_those_of_diffusers() {
    let has_tables = |folder: &Utf8Path| folder.join("tables.safetensors").is_file();
    for folder in oracle::entries("schedules", "*/tables.safetensors", has_tables) {
        let case = load(&folder.join("tables.safetensors"));
        for (class, bound) in [("ddim", 1e-12), ("dpm", 1e-12), ("ddpm", 1e-6)] {
            let path = folder.join(format!("scheduler_{class}/scheduler_config.json"));
            let Some(wanted) = case.get(&format!("out.{class}.alphas_cumprod")).filter(|_| path.is_file()) else {
                println!("not compared: {folder} has no schedule of {class}");
                continue;
            };
            let config = weights::SchedulerConfig::read(&path).unwrap_or_else(|failure| panic!("{failure}"));
            let model = config.apply(&path, &any_model()).unwrap_or_else(|failure| panic!("{failure}"));
            let schedule = NoiseSchedule::new(&model);
            let error = apart(schedule.alphas_cumprod(), wanted);
            if model.cogvideox().beta_schedule == recipe::BetaSchedule::Linear && class != "ddpm" {
                assert_eq!(error, 0.0, "{path}: ᾱ of a linear β, each operation of which is in fp32 in diffusers too");
            }
            assert!(error < bound, "{path}: ᾱ differs by {error:e}");
            if class == "ddim" && case.contains_key("in.x_0") {
                println!("{folder}: ᾱ {error:e}");
                losses(&folder, &schedule, &case);
            }
        }
    }
}

fn losses(folder: &Utf8Path, schedule: &NoiseSchedule, case: &Tensors) {
    let (clean, noise, timestep) = (&case["in.x_0"], &case["in.noise"], &case["in.timestep"]);
    let output = &case["in.model_output"];
    let noised = schedule.noise(clean, noise, timestep);
    let estimate = schedule.clean(&noised.latent, output, timestep);
    let all: Vec<i64> = (0..schedule.timesteps()).collect();
    let finite = |snr: &Tensor| snr.narrow(0, 0, schedule.timesteps() - 1);
    let near = |what: &str, got: &Tensor, name: &str| {
        let error = relative(got, &case[name], 0.0);
        assert!(error < 1e-5, "{folder}: {what} differs by {error:e}");
    };
    near("the noised latent", &noised.latent, "out.add_noise");
    // cogvideox-factory calls diffusers' `get_velocity` with the model's output in place of the sample, to estimate the clean
    // latent.
    near("the clean latent", &estimate, "out.x0_pred");
    near("the weight", &schedule.clean_weight(timestep), "out.loss_weight");
    let snr = schedule.snr(&Tensor::from_slice(&all));
    let error = relative(&finite(&snr), &finite(&case["out.snr_f64"]), 0.0);
    assert!(error < 1e-9, "{folder}: the signal-to-noise ratio differs by {error:e}");
    for weighting in [LossWeighting::Snr, LossWeighting::None] {
        let loss = Loss { weighting, ..Loss::default() };
        let noised = schedule.noise(clean, noise, timestep);
        let target = schedule.target(noised, clean, timestep, &loss);
        near("the loss", &target.loss(output), "out.loss_per_sample");
    }
}

/// Returns the model of a recorded table.
fn sized(config: &Value, rotary: Rotary) -> Model {
    let size = |key: &str| config[key].as_u64().map(|size| size as usize);
    let need = |key: &str| size(key).unwrap_or_else(|| panic!("{config} has no {key}"));
    Model {
        text_len: 1,
        head_dim: need("head_dim"),
        patch_size: need("patch_size"),
        patch_size_t: size("patch_size_t").unwrap_or(1),
        latent_frames: need("latent_frames"),
        latent_height: size("height").map_or_else(|| need("rows"), |height| height / 8),
        latent_width: size("width").map_or_else(|| need("columns"), |width| width / 8),
        base_height: need("sample_height"),
        base_width: need("sample_width"),
        ..any_model()
    }
    .with_cogvideox(|keys| {
        keys.positions = Positions::Rope;
        keys.rotary = rotary;
        keys.segments = 1;
    })
}

/// Compares the video tokens of a rotary table with recorded cosines and sines of some rows.
fn same_table(what: &str, model: &Model, rows: Option<&Tensor>, cos: &Tensor, sin: &Tensor) {
    let table = positions::rotary(model);
    let table = table.narrow(0, 1, table.size()[0] - 1);
    let table = match rows {
        Some(rows) => table.index_select(0, rows),
        None => table,
    };
    for (got, want) in [(table.real(), cos), (table.imag(), sin)] {
        // Both members of a pair have the same angle.
        for member in [0, 1] {
            let error = apart(&got, &want.slice(1, member, None, 2));
            assert!(error < 1e-5, "{what}: the table differs by {error:e}");
        }
    }
}

fn rotary_file(path: &Utf8Path, case: &Tensors, config: &Value) {
    let model = sized(config, Rotary::Diffusers);
    let found = positions::rotary_positions(&model);
    for (axis, found) in ["t", "h", "w"].into_iter().zip(&found) {
        let Some(wanted) = case.get(&format!("out.position_{axis}")) else { continue };
        let error = apart(&Tensor::from_slice(found), wanted);
        assert!(error < 1e-5, "{path}: positions {axis} differ by {error:e}");
    }
    same_table(path.as_str(), &model, case.get("out.rows"), &case["out.cos"], &case["out.sin"]);
    if model.patch_size_t > 1 {
        for rotary in [Rotary::ResizeCrop, Rotary::Slice] {
            assert_eq!(
                positions::rotary_positions(&model.with_cogvideox(|keys| keys.rotary = rotary)),
                found,
                "{path} {rotary:?}"
            );
        }
    }
    let fun = positions::rotary_positions(&model.with_cogvideox(|keys| keys.rotary = Rotary::ResizeCrop));
    for (axis, positions) in [("h", &fun[1]), ("w", &fun[2])] {
        let Some(cos) = case.get(&format!("fun.cos_{axis}")) else { continue };
        let width = cos.size()[1];
        let exponent = Tensor::arange_start_step(0, width, 2, (Kind::Double, tch::Device::Cpu)) / width as f64;
        let angles = Tensor::from_slice(positions).outer(&(exponent * -10_000f64.ln()).exp());
        for (got, want) in [(angles.cos(), cos), (angles.sin(), &case[&format!("fun.sin_{axis}")])] {
            let error = apart(&got, &want.slice(1, 0, None, 2));
            assert!(error < 1e-5, "{path}: VideoX-Fun's {axis} differs by {error:e}");
        }
    }
}

/// Compares queries or keys that attention rotates by a recorded table, `[B, N, L, H]`: batch, heads, tokens, head dim. Text
/// tokens come first and are not rotated.
fn rotated(path: &Utf8Path, case: &Tensors, config: &Value) {
    let text_len = config["text_len"].as_i64().unwrap_or_else(|| panic!("{path}: no text_len"));
    // diffusers repeats each angle for both members of a pair.
    let half = |name: &str| case[name].slice(1, 0, None, 2);
    let factors = positions::rotary_from(&half("in.cos"), &half("in.sin"), text_len);
    // A block rotates `[B, L, N, H]`.
    let got = rotate(&case["in.x"].transpose(1, 2), &factors, OnGpu::Operators).transpose(1, 2);
    let error = relative(&got, &case["out.x"], 0.0);
    assert!(error < 1e-5, "{path}: rotated tokens differ by {error:e}");
    println!("{path}: rotated tokens {error:e}");
}

/// Returns the sine and cosine table of the video tokens.
fn sin_cos(width: usize, scales: &Value, [frames, rows, columns]: [usize; 3]) -> Tensor {
    let scale = |key: &str| scales[key].as_f64().unwrap_or_else(|| panic!("{scales} has no {key}"));
    let model = Model {
        num_heads: 1,
        head_dim: width,
        text_len: 1,
        patch_size: 1,
        patch_size_t: 1,
        latent_frames: frames,
        latent_height: rows,
        latent_width: columns,
        ..any_model()
    }
    .with_cogvideox(|keys| {
        keys.positions = Positions::SinCos;
        keys.segments = 1;
        keys.spatial_interpolation = scale("spatial_interpolation_scale");
        keys.temporal_interpolation = scale("temporal_interpolation_scale");
    });
    let table = positions::sin_cos(&model).squeeze_dim(0);
    table.narrow(0, 1, table.size()[0] - 1)
}

#[test]
fn oracle_position_tables_and_rotations_are_those_of_diffusers_and_videox_fun() {
    let is_file = |path: &Utf8Path| path.extension() == Some("safetensors");
    for path in oracle::entries("rotary", "*.safetensors", is_file) {
        let (case, about) = (load(&path), metadata(&path));
        let config: Value = serde_json::from_str(&about["config"]).expect("config is JSON");
        if case.contains_key("out.position_h") {
            rotary_file(&path, &case, &config);
        } else if let Some(table) = case.get("out.table") {
            let grid: [usize; 3] = serde_json::from_value(config["grid"].clone()).expect("a grid has three sizes");
            let width = config["embed_dim"].as_u64().expect("a width") as usize;
            let got = sin_cos(width, &config, grid).index_select(0, &case["out.rows"]);
            let error = apart(&got, table);
            assert!(error < 1e-5, "{path}: the table differs by {error:e}");
        } else if case.contains_key("in.x") {
            rotated(&path, &case, &config);
        } else {
            println!("not compared: {path} has neither a table nor rotated tokens");
        }
    }
}

#[test]
fn oracle_positions_of_sampling_are_those_of_the_pipelines() {
    let is_it = |path: &Utf8Path| path.file_name() == Some("positions.safetensors");
    for path in oracle::entries("sampling", "positions.safetensors", is_it) {
        let (case, about) = (load(&path), metadata(&path));
        let json = |key: &str| -> Value { serde_json::from_str(&about[key]).expect("the header holds JSON") };
        for config in json("cases").as_array().expect("a list") {
            let name = config["name"].as_str().expect("a case has a name");
            let model = sized(config, Rotary::Diffusers);
            same_table(name, &model, None, &case[&format!("{name}.cos")], &case[&format!("{name}.sin")]);
        }
        type Recorded = ([i64; 2], [i64; 2], [[i64; 2]; 2]);
        let crops: Vec<Recorded> = serde_json::from_value(json("crops")).expect("crops are numbers");
        for ([rows, columns], [base_columns, base_rows], [[top, left], [bottom, right]]) in crops {
            let crop = Crop::of((rows, columns), (base_rows, base_columns));
            assert_eq!(
                (crop.top, crop.left, crop.top + crop.height, crop.left + crop.width),
                (top, left, bottom, right),
                "{rows} × {columns} of {base_rows} × {base_columns}"
            );
        }
        let scales = json("sincos");
        let width = scales["dim"].as_u64().expect("a width") as usize;
        for (name, table) in case.iter().filter(|(name, _)| name.starts_with("sincos_")) {
            let sizes: Vec<usize> =
                name["sincos_".len()..].split('x').map(|size| size.parse().expect("a size")).collect();
            let [frames, height, width_px] = sizes[..] else { panic!("{name}") };
            let error = apart(&sin_cos(width, &scales, [frames, height / 2, width_px / 2]), table);
            assert!(error < 1e-5, "{name}: the table differs by {error:e}");
        }
    }
}

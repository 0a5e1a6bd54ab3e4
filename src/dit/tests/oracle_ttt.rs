//! Compares TTT layers with numbers recorded from the reference.
//!
//! Reads `ttt/*.safetensors` of the oracle: every file with a matching name is tested, with all sizes from the file. The
//! tests print every part that a file lacks.

mod support;

use camino::{Utf8Path, Utf8PathBuf};
use dit::block::ActivationCheckpointing;
use dit::cogvideox::block::Block;
use dit::cogvideox::ttt::Ttt;
use dit::cogvideox::{Grid, Scan, positions};
use dit::diffusion::NoiseSchedule;
use dit::family;
use dit::mixers::{Kept, Mixers};
use dit::network::{Network, Units};
use dit::parallel::Alone;
use dit::params::{SlotGrad, UnitParams, unit_specs};
use dit::sampler::{Guidance, Prediction, Sampler, Stepped};
use dit::waves::sinusoid;
use kernels::OnGpu;
use kernels::ttt::{Blocks, Inputs, Settings, scan};
use recipe::{FsdpUnit, Layer, Loss, LrAlignment, Model, Positions};
use std::collections::HashMap;
use std::convert::Infallible;
use support::device::{device, there};
use support::{Tensors, Twice, load, metadata, oracle, relative, write_twice};
use tch::{Kind, Tensor};
use torch_error::TorchError;

/// Compares the inner loop with a recorded one; returns the number of gradients.
fn operator(path: &Utf8Path) -> usize {
    let case = load(path);
    let Some(form) = ["f64_eps1e-6", "f32_eps1e-6"].into_iter().find(|form| case.contains_key(&format!("out.{form}")))
    else {
        println!("not compared: {path} has nothing for our ε, 1e-6");
        return 0;
    };
    let size = case["XK"].size();
    let (samples, heads, batches, b, f) = (size[0], size[1], size[2], size[3], size[4]);
    // Every row of the recorded matrix holds the tokens' rates, so the gradient of a rate is the sum of its column.
    let rates = case["eta"].select(3, 0);
    if (&case["eta"] - rates.unsqueeze(3)).abs().max().double_value(&[]) > 0.0 {
        println!("not compared: {path} has tokens with a learning rate for each query, which no kernel computes");
        return 0;
    }
    // [B, H, NC, b, F] is N sequences of NC·b tokens.
    let sequences = |t: &Tensor| t.reshape([samples * heads, batches * b, f]);
    let (q, k) = (sequences(&case["XQ"]), sequences(&case["XK"]));
    let target = sequences(&case["XV"]) - &k;
    let mut leaves = vec![q, k, target, rates.reshape([samples * heads, batches * b])];
    let names = ["ttt_norm_weight", "ttt_norm_bias", "W1", "b1", "W2", "b2"];
    leaves.extend(names.iter().filter_map(|name| Some(case.get(*name)?.shallow_clone())));
    let x: Vec<Tensor> = leaves.iter().map(|t| there(t).detach().set_requires_grad(true)).collect();
    let inputs = Inputs {
        q: &x[0],
        k: &x[1],
        target: &x[2],
        eta: &x[3],
        norm: (&x[4], &x[5]),
        first: (&x[6], &x[7]),
        second: (x.len() > 8).then(|| (&x[8], &x[9])),
    };
    // out and its cotangent are [B, NC, b, H, F].
    let recorded = |name: &str| case[name].permute([0, 3, 1, 2, 4]).reshape([samples * heads, batches * b, f]);
    let mut compared = 0;
    for scan_group in [1, 2, 16] {
        let out = scan(
            Settings { mini_batch: b, scan_group, eps: 1e-6, on_gpu: OnGpu::Operators, blocks: Blocks::Auto },
            &inputs,
            None,
        );
        let error = relative(&out, &recorded(&format!("out.{form}")), 0.0);
        assert!(error < 1e-5, "{path}: output differs by {error:e}");
        let scalar = (out * there(&recorded("dy"))).sum(Kind::Float);
        let grads = Tensor::run_backward(&[scalar], &x, false, false);
        let back = |t: &Tensor| t.reshape(&size);
        let recorded_eta = case[&format!("grad.eta.{form}")].sum_dim_intlist(3i64, false, Kind::Double);
        let mut worst: f64 = 0.0;
        let mut compare = |name: &str, got: &Tensor, want: &Tensor| {
            let error = relative(got, want, 0.0);
            assert!(error < 1e-4, "{path}: gradient of {name} differs by {error:e} (groups of {scan_group})");
            worst = worst.max(error);
            compared += 1;
        };
        let grad = |name: &str| &case[&format!("grad.{name}.{form}")];
        compare("XQ", &back(&grads[0]), grad("XQ"));
        compare("XK", &(back(&grads[1]) - back(&grads[2])), grad("XK"));
        compare("XV", &back(&grads[2]), grad("XV"));
        compare("the learning rates", &grads[3].reshape(recorded_eta.size()), &recorded_eta);
        for (name, got) in names.iter().zip(&grads[4..]) {
            compare(name, got, grad(name));
        }
        println!("{path}: worst gradient {worst:e}");
    }
    compared
}

#[test]
fn oracle_ttt_operator_and_every_gradient_equal_the_reference() {
    for path in oracle::ttt_files("op_") {
        operator(&path);
    }
}

/// The supported alignments of learning rates, by the prefix of their recorded tensors.
const SEMANTICS: [(&str, LrAlignment); 2] = [("aligned", LrAlignment::Aligned), ("kernel", LrAlignment::Upstream)];

/// Returns the alignments that a file has numbers for, and prints the missing ones.
fn semantics(path: &Utf8Path, case: &Tensors, number: &str) -> Vec<(&'static str, LrAlignment)> {
    let recorded = |prefix: &str| case.contains_key(&format!("{prefix}.{number}"));
    for (prefix, _) in SEMANTICS.iter().filter(|(prefix, _)| !recorded(prefix)) {
        println!("not compared: {path} has no {prefix}.{number}");
    }
    SEMANTICS.into_iter().filter(|(prefix, _)| recorded(prefix)).collect()
}

/// Returns a model with the sizes in a file's metadata.
fn model(path: &Utf8Path, alignment: LrAlignment) -> Model {
    let about = metadata(path);
    let config: serde_json::Value = serde_json::from_str(&about["config"]).expect("config is JSON");
    let size = |key: &str| config[key].as_u64().unwrap_or_else(|| panic!("{path}: {key}")) as usize;
    let whole = |key: &str| about[key].parse::<usize>().unwrap_or_else(|e| panic!("{path}: {key}: {e}"));
    let patch = size("patch_size");
    Model {
        num_layers: size("num_layers"),
        num_heads: size("num_heads"),
        head_dim: size("model_dim") / size("num_heads"),
        text_dim: size("text_dim"),
        text_len: whole("text_len"),
        in_channels: size("in_channels"),
        out_channels: size("out_channels"),
        patch_size: patch,
        patch_size_t: 1,
        latent_frames: whole("latent_frames"),
        latent_height: size("latent_rows") * patch,
        latent_width: size("latent_cols") * patch,
        latent_scale: 1.0,
        ..any_model()
    }
    .with_cogvideox(|keys| {
        keys.positions = Positions::Rope;
        keys.time_embed_dim = size("time_embed_dim");
        keys.segments = whole("segments");
        keys.ofs_embedding = false;
        keys.layer = if config["layer"] == "ttt_mlp" { Layer::TttMlp } else { Layer::TttLinear };
        keys.ttt_mini_batch = size("mini_batch_size");
        keys.ttt_base_lr = config["ttt_base_lr"].as_f64().expect("a number");
        keys.ttt_lr_alignment = alignment;
        keys.norm_eps = 1e-6;
        keys.qk_norm_eps = 1e-6;
        keys.spatial_interpolation = 1.0;
        keys.temporal_interpolation = 1.0;
    })
}

/// Returns the parameters of a unit as leaves; those without a value in `named` are zero and frozen.
fn unit(model: &Model, unit: FsdpUnit, named: impl Fn(&str) -> Option<Tensor>) -> UnitParams {
    let tensor = |spec: &recipe::ParamSpec| {
        let name = spec.ttt_video().expect("upstream has every tensor");
        let shape: Vec<i64> = spec.shape.iter().map(|&d| d as i64).collect();
        named(&name).map_or_else(
            || Tensor::zeros(&shape, (Kind::Float, device())),
            |t| there(&t).detach().view(shape.as_slice()).set_requires_grad(true),
        )
    };
    UnitParams::new(unit_specs(model, unit).iter().map(tensor).collect())
}

/// Compares a layer with a recorded one; returns the number of gradients.
fn layer(path: &Utf8Path) -> usize {
    let case = load(path);
    let mut compared = 0;
    for (prefix, alignment) in semantics(path, &case, "out") {
        let model = model(path, alignment);
        let ttt = Ttt::new(&model, 4).expect("a TTT layer");
        let inner = "layers.0.seq_modeling_block.ssm.ttt.";
        let named = |name: &str| case.get(&format!("param.{}", name.strip_prefix(inner)?)).map(Tensor::shallow_clone);
        let params = unit(&model, FsdpUnit::Block(0), named);
        let x = there(&case["x"]).detach().set_requires_grad(true);
        let out =
            ttt.layer(&Scan::new(&model).on(device()), &params, &x, &Mixers::default()).expect("one rank has no peers");
        let error = relative(&out, &case[&format!("{prefix}.out")], 0.0);
        assert!(error < 1e-5, "{path} {prefix}: output differs by {error:e}");
        let mut wanted = vec![("x".to_owned(), x.shallow_clone())];
        for (spec, tensor) in unit_specs(&model, FsdpUnit::Block(0)).iter().zip(params.tensors()) {
            if tensor.requires_grad() {
                let name = spec.ttt_video().expect("a name").replace(inner, "");
                wanted.push((name, tensor.shallow_clone()));
            }
        }
        assert!(wanted.len() > 15, "{path}: only {} gradients", wanted.len());
        let scalar = (out * there(&case["dy"])).sum(Kind::Float);
        let leaves: Vec<&Tensor> = wanted.iter().map(|(_, t)| t).collect();
        let mut worst: f64 = 0.0;
        for ((name, _), got) in wanted.iter().zip(Tensor::run_backward(&[scalar], &leaves, false, false)) {
            let Some(want) = case.get(&format!("{prefix}.grad.{name}")) else {
                println!("not compared: {path} has no {prefix}.grad.{name}");
                continue;
            };
            let error = relative(&got.view(want.size().as_slice()), want, 0.0);
            assert!(error < 1e-4, "{path} {prefix}: gradient of {name} differs by {error:e}");
            worst = worst.max(error);
            compared += 1;
        }
        println!("{path} {prefix}: worst gradient {worst:e}");
    }
    compared
}

#[test]
fn oracle_ttt_layer_and_every_gradient_equal_the_reference() {
    for path in oracle::ttt_files("layer_") {
        layer(&path);
    }
}

/// Compares attention and TTT layer of a block with recorded ones; returns the number of outputs.
fn sequence_block(path: &Utf8Path) -> usize {
    let case = load(path);
    let mut compared = 0;
    for (prefix, alignment) in semantics(path, &case, "out_vid") {
        let model = model(path, alignment);
        let (block, grid, mixers) = (Block::new(&model, 4), Grid::new(&model).on(device()), Mixers::default());
        let inner = "layers.0.seq_modeling_block.";
        let named = |name: &str| case.get(&format!("param.{}", name.strip_prefix(inner)?)).map(Tensor::shallow_clone);
        let params = unit(&model, FsdpUnit::Block(0), named);
        let x = there(&Tensor::cat(&[&case["text"], &case["vid"]], 1));
        if let Some(want) = case.get("attn_out_text_then_vid") {
            let attended = block.attention(&grid, &params, &x, &mixers, &Alone).expect("one rank has no peers");
            let error = relative(&attended, want, 0.0);
            assert!(error < 1e-5, "{path}: attention differs by {error:e}");
            compared += 1;
        } else {
            println!("not compared: {path} has no attn_out_text_then_vid");
        }
        let mixed = block.mix(&grid, &params, &x, &mixers, &Alone).expect("one rank has no peers");
        let want = Tensor::cat(&[&case[&format!("{prefix}.out_text")], &case[&format!("{prefix}.out_vid")]], 1);
        let error = relative(&mixed, &want, 0.0);
        assert!(error < 1e-5, "{path} {prefix}: the block differs by {error:e}");
        compared += 1;
    }
    compared
}

#[test]
fn oracle_ttt_sequence_block_equals_the_reference() {
    for path in oracle::ttt_files("seqblock_") {
        sequence_block(&path);
    }
}

/// Unsharded parameters of a network, by upstream's names.
struct Whole<'a> {
    model: &'a Model,
    case: &'a Tensors,
    grads: HashMap<String, Tensor>,
}

impl Units for Whole<'_> {
    type Error = TorchError;

    fn gather(&mut self, which: FsdpUnit, _: Option<FsdpUnit>) -> Result<UnitParams, TorchError> {
        Ok(unit(self.model, which, |name| Some(self.case[&format!("param.dit.{name}")].shallow_clone())))
    }

    fn reduce(&mut self, which: FsdpUnit, grads: Vec<SlotGrad>) -> Result<(), TorchError> {
        let specs = unit_specs(self.model, which);
        for (slot, grad) in grads {
            self.grads.insert(specs[slot].ttt_video().expect("a name"), grad.to_device(tch::Device::Cpu));
        }
        Ok(())
    }
}

/// Compares a network with a recorded one; returns the number of gradients.
fn network(path: &Utf8Path) -> usize {
    let case = load(path);
    let mut compared = 0;
    for (prefix, alignment) in semantics(path, &case, "dit_out") {
        for keep in [ActivationCheckpointing::Selective(Kept::ALL), ActivationCheckpointing::Full] {
            let model = model(path, alignment);
            let network = Network::new(&model, keep, 4).on(device());
            let mut whole = Whole { model: &model, case: &case, grads: HashMap::new() };
            let text = case["text_emb"].flatten(1, 2);
            let pass = |whole: &mut Whole<'_>, latent: Tensor, objective: &dyn Fn(&Tensor) -> Tensor| {
                let inputs = family::Inputs {
                    latent,
                    text: text.shallow_clone(),
                    timestep: case["idx"].shallow_clone(),
                    conditions: Vec::new(),
                };
                network.forward_backward(whole, &inputs.map(there), objective).expect("one rank has no peers")
            };
            let plain = pass(&mut whole, case["vid_latent"].shallow_clone(), &|out| out.sum(Kind::Float));
            let error = relative(&plain.output, &case[&format!("{prefix}.dit_out")], 0.0);
            assert!(error < 1e-4, "{path} {prefix}: output differs by {error:e}");

            whole.grads.clear();
            let (schedule, clean, timestep) = (NoiseSchedule::default(), &case["vid_latent"], &case["idx"]);
            let noised = schedule.noise(clean, &case["noise"], timestep);
            let latent = noised.latent.shallow_clone();
            let target = schedule.target(noised, clean, timestep, &Loss::default()).map(there);
            let losses = std::cell::RefCell::new(Tensor::new());
            pass(&mut whole, latent, &|out| {
                let per_sample = target.loss(out);
                *losses.borrow_mut() = per_sample.detach();
                per_sample.mean(Kind::Float)
            });
            let error = relative(&losses.borrow(), &case[&format!("{prefix}.loss_per_sample")], 0.0);
            assert!(error < 1e-4, "{path} {prefix}: loss differs by {error:e}");
            let recorded = format!("{prefix}.grad.dit.");
            let grads: Vec<_> = case.iter().filter_map(|(k, v)| Some((k.strip_prefix(&recorded)?, v))).collect();
            for name in whole.grads.keys().filter(|name| !case.contains_key(&format!("{recorded}{name}"))) {
                println!("not compared: {path} has no {recorded}{name}");
            }
            let floor = grads.iter().map(|(_, t)| t.norm().double_value(&[])).fold(0.0, f64::max) * 1e-4;
            let mut worst: f64 = 0.0;
            for (name, want) in grads {
                let error = relative(&whole.grads[name], want, floor);
                assert!(error < 1e-4, "{path} {prefix} {keep:?}: gradient of {name} differs by {error:e}");
                worst = worst.max(error);
                compared += 1;
            }
            println!("{path} {prefix} {keep:?}: worst gradient {worst:e}");
        }
    }
    compared
}

#[test]
fn oracle_ttt_network_loss_and_every_gradient_equal_the_reference() {
    for path in oracle::ttt_files("model_") {
        network(&path);
    }
}

/// Returns a model whose values fill the fields that a test does not set.
fn any_model() -> Model {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
    recipe::load(file.into(), &[]).expect("a valid recipe").recipe.model
}

/// Compares rotary tables with recorded ones; returns the number of tables.
///
/// `NAME.cos` and `NAME.sin` are whole tables `[T·P, F]`, or the rows `NAME.rows` of one. The metadata has the grid under
/// a prefix of the name: `h=2 w=3 frames=37 head_dim=16`.
fn rotary_tables(path: &Utf8Path) -> usize {
    let (case, about) = (load(path), metadata(path));
    let mut compared = 0;
    for (name, cos) in case.iter().filter_map(|(key, cos)| Some((key.strip_suffix(".cos")?, cos))) {
        let Some((_, grid)) = about.iter().find(|(start, _)| name.starts_with(start.as_str())) else {
            println!("not compared: {path} does not name the grid of {name}");
            continue;
        };
        let size = |key: &str| {
            let value =
                grid.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok());
            value.unwrap_or_else(|| panic!("{path}: {grid} has no {key}"))
        };
        let model = Model {
            head_dim: size("head_dim"),
            latent_frames: size("frames"),
            latent_height: size("h"),
            latent_width: size("w"),
            text_len: 1,
            patch_size: 1,
            patch_size_t: 1,
            ..any_model()
        }
        .with_cogvideox(|keys| {
            keys.positions = Positions::Rope;
            keys.segments = 1;
        });
        let table = positions::rotary(&model);
        let mut table = table.narrow(0, 1, table.size()[0] - 1);
        if let Some(rows) = case.get(&format!("{name}.rows")) {
            table = table.index_select(0, rows);
        }
        for (got, want) in [(table.real(), cos), (table.imag(), &case[&format!("{name}.sin")])] {
            // Both members of a pair have the same angle.
            for member in [0, 1] {
                let error = relative(&got, &want.slice(1, member, None, 2), 0.0);
                assert!(error < 1e-5, "{path}: {name} differs by {error:e}");
            }
            compared += 1;
        }
    }
    compared
}

#[test]
fn oracle_ttt_rotary_tables_equal_the_reference() {
    for path in oracle::ttt_files("rope_tables") {
        rotary_tables(&path);
    }
}

/// Computes the table that corresponds to a recorded diffusion table, by its name.
fn diffusion_table(name: &str) -> Option<Tensor> {
    if name.starts_with("train_alphas_cumprod_sqrt") {
        return Some(NoiseSchedule::default().alphas_cumprod().sqrt());
    }
    if let Some(rest) = name.strip_prefix("timestep_embedding_dim") {
        let mut words = rest.split('_');
        let width = words.next()?.parse().ok()?;
        let timesteps = words.map(|word| word.trim_start_matches('t').parse().ok()).collect::<Option<Vec<i64>>>()?;
        return Some(sinusoid(&Tensor::from_slice(&timesteps), width));
    }
    let (steps, what) = name.strip_prefix("sample")?.split_once('_')?;
    let steps: usize = steps.parse().ok()?;
    let sampler = Sampler::vpsde(steps, Guidance::default());
    let ascending = |noisiest_first: Tensor| noisiest_first.flip([0]);
    match what {
        "timesteps_ascending" => Some(ascending(Tensor::from_slice(sampler.timesteps()))),
        "alphas_cumprod_sqrt_noisiest_first" => Some(Tensor::from_slice(&Sampler::vpsde_signal(steps))),
        "dynamic_cfg_scale_for_those_timesteps" => Some(ascending(Tensor::from_slice(sampler.guidance_scales()))),
        _ => None,
    }
}

/// Compares noise levels, timesteps, guidance and the embedding of time; returns the number of tables.
fn diffusion_tables(path: &Utf8Path) -> usize {
    let mut compared = 0;
    for (name, want) in load(path) {
        let Some(got) = diffusion_table(&name) else {
            println!("not compared: {name} of {path} is not a supported table");
            continue;
        };
        assert_eq!(got.size(), want.size(), "{path}: {name}");
        let error = relative(&got, &want, 0.0);
        assert!(error < 1e-5, "{path}: {name} differs by {error:e}");
        println!("{path}: {name} {error:e}");
        compared += 1;
    }
    compared
}

#[test]
fn oracle_ttt_diffusion_tables_equal_the_reference() {
    for path in oracle::ttt_files("diffusion_tables") {
        diffusion_tables(&path);
    }
}

/// Samples with the recorded noise and the toy network in the file's metadata; returns the number of steps.
fn sampler_trace(path: &Utf8Path) -> usize {
    let case = load(path);
    let about = metadata(path);
    if !about.get("net").is_some_and(|net| net.starts_with("0.3*tanh(x)+0.05*mean(c)+1e-4*t")) {
        println!("not compared: {path} was recorded with another network: {:?}", about.get("net"));
        return 0;
    }
    let want = &case["x_after_each_step"];
    let steps = want.size()[0] as usize - 1;
    let (draws, mean) = (&case["noise_draws_in_call_order"], |name: &str| case[name].mean(Kind::Float));
    let (text, none) = (mean("cond"), mean("uncond"));
    let network = |x: &Tensor, timestep: i64| {
        let velocity = |mean: &Tensor| x.tanh() * 0.3 + mean * 0.05 + 1e-4 * timestep as f64;
        Ok::<_, Infallible>(Prediction { without_text: Some(velocity(&none)), with_text: velocity(&text) })
    };
    // From its second step on, the reference draws twice and uses the second draw; the last step draws nothing.
    let twice = draws.size()[0] as usize == 2 * steps - 3;
    let draw = |step: usize| draws.get(if twice { 2 * step } else { step } as i64);
    let mut step = 0;
    let after = |stepped: Stepped<'_>| {
        step += 1;
        let error = relative(stepped.latent, &want.get(step), 0.0);
        assert!(error < 1e-5, "{path}: after step {step} the sample differs by {error:e}");
        Ok(())
    };
    let sampled = Sampler::vpsde(steps, Guidance::default()).sample(&case["x0"], network, draw, after);
    let error = relative(&sampled.expect("the network is infallible"), &case["final"], 0.0);
    assert!(error < 1e-5, "{path}: the sample differs by {error:e}");
    println!("{path}: {steps} steps, the sample differs by {error:e}");
    steps
}

#[test]
fn oracle_ttt_every_sampling_step_equals_the_reference() {
    for path in oracle::ttt_files("sampler_trace") {
        sampler_trace(&path);
    }
}

/// Returns the path of one of the project's fixtures.
fn own(name: &str) -> Utf8PathBuf {
    Utf8Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/oracle/ttt")).join(name)
}

#[test]
fn files_with_duplicated_samples_and_fewer_tensors_are_compared_too() {
    let keep = tempfile::tempdir().expect("a temporary folder");
    let place = Utf8Path::from_path(keep.path()).expect("a path in UTF-8");
    let twice = |name: &str, what: fn(&str) -> Twice| {
        write_twice(&own(name), &place.join(name), what);
        place.join(name)
    };
    let path = twice("op_ttt_mlp_hd16.safetensors", |name| match name {
        name if name.ends_with("eps1e-8") => Twice::Out,
        name if name.starts_with("grad.X") || name.starts_with("grad.eta") => Twice::Again,
        name if name.starts_with("grad.") => Twice::Sum,
        name if name.starts_with("ttt_norm") || name.starts_with(['W', 'b']) => Twice::Same,
        _ => Twice::Again,
    });
    assert_eq!(operator(&path), 3 * 10);
    let path = twice("layer_ttt_linear_3seg.safetensors", |name| match name {
        "aligned.grad.wo.bias" => Twice::Out,
        "x" | "dy" | "aligned.out" | "aligned.grad.x" => Twice::Again,
        name if name.starts_with("aligned.") => Twice::Sum,
        name if name.starts_with("param.") => Twice::Same,
        _ => Twice::Out,
    });
    assert!(layer(&path) > 15);
    let path = twice("seqblock_ttt_mlp_3seg.safetensors", |name| match name {
        "text" | "vid" | "aligned.out_vid" | "aligned.out_text" => Twice::Again,
        name if name.starts_with("param.") => Twice::Same,
        _ => Twice::Out,
    });
    assert_eq!(sequence_block(&path), 1);
    let path = twice("model_ttt_mlp_3seg.safetensors", |name| match name {
        "aligned.dit_out" | "aligned.loss_per_sample" => Twice::Again,
        name if name.starts_with("kernel") => Twice::Out,
        name if name.contains('.') => Twice::Same,
        _ => Twice::Again,
    });
    assert!(network(&path) > 200);
}

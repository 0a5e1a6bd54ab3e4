//! TTT layers held to the numbers of the reference.
//!
//! Reads `ttt/*.safetensors` below `tests/fixtures/oracle`, or below the folder in `VIDTUI_ORACLE`: every file whose
//! name fits is tested, with all sizes taken from the file.

mod support;

use camino::Utf8Path;
use dit::block::{Block, Keep};
use dit::diffusion::{Schedule, velocity_loss};
use dit::embed;
use dit::network::{Network, Units};
use dit::parallel::Alone;
use dit::params::{SlotGrad, UnitParams, unit_specs};
use dit::ttt::Ttt;
use kernels::ttt::{Inputs, Settings, scan};
use recipe::{Layer, LrAlignment, Model, Positions, Unit};
use std::collections::HashMap;
use support::{Tensors, entries, metadata, read, relative};
use tch::{Kind, TchError, Tensor};

fn files(prefix: &str) -> Vec<camino::Utf8PathBuf> {
    entries("ttt", |p| p.file_name().is_some_and(|name| name.starts_with(prefix)))
}

fn load(path: &Utf8Path) -> Tensors {
    let mut tensors = Tensors::new();
    read(path, &mut tensors);
    tensors
}

#[test]
fn oracle_ttt_operator_and_every_gradient_are_those_of_the_reference() {
    for path in files("op_") {
        let case = load(&path);
        let size = case["XK"].size();
        let (samples, heads, batches, b, f) = (size[0], size[1], size[2], size[3], size[4]);
        // [B, H, NC, b, F] is N sequences of NC·b tokens.
        let sequences = |t: &Tensor| t.reshape([samples * heads, batches * b, f]);
        let (q, k) = (sequences(&case["XQ"]), sequences(&case["XK"]));
        let target = sequences(&case["XV"]) - &k;
        // Every row of the recorded matrix holds the tokens' rates, so the gradient of a rate is its column's sum.
        let eta = case["eta"].select(3, 0).reshape([samples * heads, batches * b]);
        let mut leaves = vec![q, k, target, eta];
        let names = ["ttt_norm_weight", "ttt_norm_bias", "W1", "b1", "W2", "b2"];
        leaves.extend(names.iter().filter_map(|name| Some(case.get(*name)?.shallow_clone())));
        let x: Vec<Tensor> = leaves.iter().map(|t| t.detach().set_requires_grad(true)).collect();
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
        for scan_group in [1, 2, 16] {
            let out = scan(Settings { mini_batch: b, scan_group, eps: 1e-6 }, &inputs);
            let error = relative(&out, &recorded("out.f64_eps1e-6"), 0.0);
            assert!(error < 1e-5, "{path}: output differs by {error:e}");
            let scalar = (out * recorded("dy")).sum(Kind::Float);
            let grads = Tensor::run_backward(&[scalar], &x, false, false);
            let back = |t: &Tensor| t.reshape(&size);
            let recorded_eta = case["grad.eta.f64_eps1e-6"].sum_dim_intlist(3i64, false, Kind::Double);
            let mut worst: f64 = 0.0;
            let mut compare = |name: &str, got: &Tensor, want: &Tensor| {
                let error = relative(got, want, 0.0);
                assert!(error < 1e-4, "{path}: gradient of {name} differs by {error:e} (groups of {scan_group})");
                worst = worst.max(error);
            };
            let grad = |name: &str| &case[&format!("grad.{name}.f64_eps1e-6")];
            compare("XQ", &back(&grads[0]), grad("XQ"));
            compare("XK", &(back(&grads[1]) - back(&grads[2])), grad("XK"));
            compare("XV", &back(&grads[2]), grad("XV"));
            compare("the learning rates", &grads[3].reshape(recorded_eta.size()), &recorded_eta);
            for (name, got) in names.iter().zip(&grads[4..]) {
                compare(name, got, grad(name));
            }
            println!("{path}: worst gradient {worst:e}");
        }
    }
}

/// The semantics that we offer, by the prefix of their numbers.
const SEMANTICS: [(&str, LrAlignment); 2] = [("aligned", LrAlignment::Aligned), ("kernel", LrAlignment::Upstream)];

/// A model with the sizes in a file's metadata.
fn model(path: &Utf8Path, alignment: LrAlignment) -> Model {
    let about = metadata(path);
    let config: serde_json::Value = serde_json::from_str(&about["config"]).expect("config is JSON");
    let size = |key: &str| config[key].as_u64().unwrap_or_else(|| panic!("{path}: {key}")) as usize;
    let whole = |key: &str| about[key].parse::<usize>().unwrap_or_else(|e| panic!("{path}: {key}: {e}"));
    let patch = size("patch_size");
    Model {
        positions: Positions::Rope,
        num_layers: size("num_layers"),
        num_heads: size("num_heads"),
        head_dim: size("model_dim") / size("num_heads"),
        time_embed_dim: size("time_embed_dim"),
        text_dim: size("text_dim"),
        text_len: whole("text_len"),
        segments: whole("segments"),
        in_channels: size("in_channels"),
        out_channels: size("out_channels"),
        patch_size: patch,
        patch_size_t: 1,
        ofs_embedding: false,
        latent_frames: whole("latent_frames"),
        latent_height: size("latent_rows") * patch,
        latent_width: size("latent_cols") * patch,
        layer: if config["layer"] == "ttt_mlp" { Layer::TttMlp } else { Layer::TttLinear },
        ttt_mini_batch: size("mini_batch_size"),
        ttt_base_lr: config["ttt_base_lr"].as_f64().expect("a number"),
        ttt_lr_alignment: alignment,
        norm_eps: 1e-6,
        qk_norm_eps: 1e-6,
        latent_scale: 1.0,
        spatial_interpolation: 1.0,
        temporal_interpolation: 1.0,
    }
}

/// The parameters of a unit as leaves; what `named` does not give is zero and frozen.
fn unit(model: &Model, unit: Unit, named: impl Fn(&str) -> Option<Tensor>) -> UnitParams {
    let tensor = |spec: &recipe::ParamSpec| {
        let name = spec.ttt_video().expect("upstream has every tensor");
        let shape: Vec<i64> = spec.shape.iter().map(|&d| d as i64).collect();
        named(&name).map_or_else(
            || Tensor::zeros(&shape, (Kind::Float, tch::Device::Cpu)),
            |t| t.detach().view(shape.as_slice()).set_requires_grad(true),
        )
    };
    UnitParams::new(unit_specs(model, unit).iter().map(tensor).collect())
}

#[test]
fn oracle_ttt_layer_and_every_gradient_are_those_of_the_reference() {
    for path in files("layer_") {
        let case = load(&path);
        for (prefix, alignment) in SEMANTICS {
            let model = model(&path, alignment);
            let ttt = Ttt::new(&model, 4).expect("a TTT layer");
            let inner = "layers.0.seq_modeling_block.ssm.ttt.";
            let named =
                |name: &str| case.get(&format!("param.{}", name.strip_prefix(inner)?)).map(Tensor::shallow_clone);
            let params = unit(&model, Unit::Block(0), named);
            let x = case["x"].detach().set_requires_grad(true);
            let out = ttt.layer(&params, &x, &Alone).expect("nobody to lose");
            let error = relative(&out, &case[&format!("{prefix}.out")], 0.0);
            assert!(error < 1e-5, "{path} {prefix}: output differs by {error:e}");
            let mut wanted = vec![("x".to_owned(), x.shallow_clone())];
            for (spec, tensor) in unit_specs(&model, Unit::Block(0)).iter().zip(params.tensors()) {
                if tensor.requires_grad() {
                    let name = spec.ttt_video().expect("a name").replace(inner, "");
                    wanted.push((name, tensor.shallow_clone()));
                }
            }
            let scalar = (out * &case["dy"]).sum(Kind::Float);
            let leaves: Vec<&Tensor> = wanted.iter().map(|(_, t)| t).collect();
            let mut worst: f64 = 0.0;
            for ((name, _), got) in wanted.iter().zip(Tensor::run_backward(&[scalar], &leaves, false, false)) {
                let want = &case[&format!("{prefix}.grad.{name}")];
                let error = relative(&got.view(want.size().as_slice()), want, 0.0);
                assert!(error < 1e-4, "{path} {prefix}: gradient of {name} differs by {error:e}");
                worst = worst.max(error);
            }
            assert!(wanted.len() > 15, "{path}: only {} gradients", wanted.len());
            println!("{path} {prefix}: worst gradient {worst:e}");
        }
    }
}

#[test]
fn oracle_ttt_sequence_block_is_that_of_the_reference() {
    for path in files("seqblock_") {
        let case = load(&path);
        for (prefix, alignment) in SEMANTICS {
            let model = model(&path, alignment);
            let block = Block::new(&model, Some(dit::segments::attention_rotary(&model)), 4);
            let inner = "layers.0.seq_modeling_block.";
            let named =
                |name: &str| case.get(&format!("param.{}", name.strip_prefix(inner)?)).map(Tensor::shallow_clone);
            let params = unit(&model, Unit::Block(0), named);
            let x = Tensor::cat(&[&case["text"], &case["vid"]], 1);
            let (attention, _) = block.attention(&params, &x, None, &Alone).expect("nobody to lose");
            let error = relative(&attention, &case["attn_out_text_then_vid"], 0.0);
            assert!(error < 1e-5, "{path}: attention differs by {error:e}");
            let (mixed, _) = block.mix(&params, &x, None, &Alone).expect("nobody to lose");
            let want = Tensor::cat(&[&case[&format!("{prefix}.out_text")], &case[&format!("{prefix}.out_vid")]], 1);
            let error = relative(&mixed, &want, 0.0);
            assert!(error < 1e-5, "{path} {prefix}: the block differs by {error:e}");
        }
    }
}

/// Whole parameters of a network, by upstream's names.
struct Whole<'a> {
    model: &'a Model,
    case: &'a Tensors,
    grads: HashMap<String, Tensor>,
}

impl Units for Whole<'_> {
    type Error = TchError;

    fn gather(&mut self, which: Unit, _: Option<Unit>) -> Result<UnitParams, TchError> {
        Ok(unit(self.model, which, |name| Some(self.case[&format!("param.dit.{name}")].shallow_clone())))
    }

    fn reduce(&mut self, which: Unit, grads: Vec<SlotGrad>) -> Result<(), TchError> {
        let specs = unit_specs(self.model, which);
        for (slot, grad) in grads {
            self.grads.insert(specs[slot].ttt_video().expect("a name"), grad);
        }
        Ok(())
    }
}

#[test]
fn oracle_ttt_network_loss_and_every_gradient_are_those_of_the_reference() {
    for path in files("model_") {
        let case = load(&path);
        for (prefix, alignment) in SEMANTICS {
            for keep in [Keep::Attention, Keep::Input] {
                let model = model(&path, alignment);
                let network = Network::new(&model, keep, 4);
                let mut whole = Whole { model: &model, case: &case, grads: HashMap::new() };
                let text = case["text_emb"].flatten(1, 2);
                let walk = |whole: &mut Whole<'_>, latent: Tensor, objective: &dyn Fn(&Tensor) -> Tensor| {
                    let inputs =
                        embed::Inputs { latent, text: text.shallow_clone(), timestep: case["idx"].shallow_clone() };
                    network.forward_backward(whole, &inputs, objective).expect("nobody to lose")
                };
                let plain = walk(&mut whole, case["vid_latent"].shallow_clone(), &|out| out.sum(Kind::Float));
                let error = relative(&plain.output, &case[&format!("{prefix}.dit_out")], 0.0);
                assert!(error < 1e-4, "{path} {prefix}: output differs by {error:e}");

                whole.grads.clear();
                let noised = Schedule::default().noise(&case["vid_latent"], &case["noise"], &case["idx"]);
                let losses = std::cell::RefCell::new(Tensor::new());
                walk(&mut whole, noised.latent, &|out| {
                    let per_sample = velocity_loss(out, &noised.velocity);
                    *losses.borrow_mut() = per_sample.detach();
                    per_sample.mean(Kind::Float)
                });
                let error = relative(&losses.borrow(), &case[&format!("{prefix}.loss_per_sample")], 0.0);
                assert!(error < 1e-4, "{path} {prefix}: loss differs by {error:e}");
                let recorded = format!("{prefix}.grad.dit.");
                let grads: Vec<_> = case.iter().filter_map(|(k, v)| Some((k.strip_prefix(&recorded)?, v))).collect();
                assert!(!grads.is_empty(), "{path}: no gradients recorded");
                assert_eq!(grads.len(), whole.grads.len(), "{path}");
                let floor = grads.iter().map(|(_, t)| t.norm().double_value(&[])).fold(0.0, f64::max) * 1e-4;
                let mut worst: f64 = 0.0;
                for (name, want) in grads {
                    let error = relative(&whole.grads[name], want, floor);
                    assert!(error < 1e-4, "{path} {prefix} {keep:?}: gradient of {name} differs by {error:e}");
                    worst = worst.max(error);
                }
                println!("{path} {prefix} {keep:?}: worst gradient {worst:e}");
            }
        }
    }
}

//! TTT layers held to the numbers of the reference.
//!
//! Reads `ttt/*.safetensors` below `tests/fixtures/oracle`, or below the folder in `VIDTUI_ORACLE`: every file whose
//! name fits is tested, with all sizes taken from the file.

mod support;

use camino::Utf8Path;
use kernels::ttt::{Inputs, Settings, scan};
use support::{Tensors, entries, read, relative};
use tch::{Kind, Tensor};

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

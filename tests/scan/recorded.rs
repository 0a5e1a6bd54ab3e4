//! Compares the plain loops and the kernels with numbers of ttt-video-dit's scan, recorded in fp64: the files `op_ttt_*`.

#[path = "../oracle/mod.rs"]
mod oracle;

use std::fs;
use std::process::Command;

use camino::Utf8Path;
use serde_json::Value;
use tempfile::TempDir;

use crate::{AGREES, whole};

/// A tensor of a safetensors file, as doubles.
struct Tensor {
    shape: Vec<usize>,
    values: Vec<f64>,
}

struct Recorded {
    header: Value,
    data: Vec<u8>,
}

impl Recorded {
    fn read(path: &Utf8Path) -> Self {
        let mut bytes = fs::read(path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let data = bytes.split_off(8 + length);
        Recorded { header: serde_json::from_slice(&bytes[8..]).unwrap(), data }
    }

    fn tensor(&self, name: &str) -> Tensor {
        let entry = self.header.get(name).unwrap_or_else(|| panic!("no tensor {name}"));
        let number = |v: &Value| v.as_u64().unwrap() as usize;
        let bytes = &self.data[number(&entry["data_offsets"][0])..number(&entry["data_offsets"][1])];
        let values = match entry["dtype"].as_str().unwrap() {
            "F32" => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()).into()).collect(),
            "F64" => bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
            other => panic!("{name} is {other}"),
        };
        Tensor { shape: entry["shape"].as_array().unwrap().iter().map(number).collect(), values }
    }

    /// Returns the numbers of one head and sample in the order that the program reads.
    fn sequence(&self, sample: usize, head: usize, mlp: bool) -> Vec<f64> {
        // Tokens are [B, H, mini-batches, b, F].
        let shape = self.tensor("XK").shape;
        let (heads, batches, tokens, width) = (shape[1], shape[2], shape[3], shape[4]);
        let inner = |name: &str| {
            let span = batches * tokens * width;
            self.tensor(name).values[(sample * heads + head) * span..][..span].to_vec()
        };
        // Outputs are [B, mini-batches, b, H, F].
        let output = |name: &str| -> Vec<f64> {
            let values = self.tensor(name).values;
            let rows =
                values.chunks_exact(width).skip(sample * batches * tokens * heads).take(batches * tokens * heads);
            rows.skip(head).step_by(heads).flatten().copied().collect()
        };
        // Learning rates are a matrix of equal rows per mini-batch; the gradient of a rate is the sum over its column.
        let rates = |name: &str, sum: bool| -> Vec<f64> {
            let values = self.tensor(name).values;
            let span = batches * tokens * tokens;
            let matrices = values[(sample * heads + head) * span..][..span].chunks_exact(tokens * tokens);
            let column = |m: &[f64], i: usize| {
                if sum { m.iter().skip(i).step_by(tokens).sum() } else { m[(tokens - 1) * tokens + i] }
            };
            matrices.flat_map(|m| (0..tokens).map(move |i| column(m, i)).collect::<Vec<_>>()).collect()
        };
        let of_head = |name: &str| {
            let t = self.tensor(name);
            let span = t.values.len() / heads;
            t.values[head * span..][..span].to_vec()
        };
        let plus = |a: Vec<f64>, b: Vec<f64>, sign: f64| a.iter().zip(b).map(|(a, b)| a + sign * b).collect::<Vec<_>>();
        let layers: &[&str] = if mlp { &["W1", "b1", "W2", "b2"] } else { &["W1", "b1"] };

        // XV is the target plus the keys.
        let mut all = [inner("XQ"), inner("XK"), plus(inner("XV"), inner("XK"), -1.0), rates("eta", false)].concat();
        all.extend([of_head("ttt_norm_weight"), of_head("ttt_norm_bias")].concat());
        all.extend(layers.iter().flat_map(|name| of_head(name)));
        all.extend([output("dy"), output("out.f64_eps1e-6")].concat());
        let grad = |name: &str| format!("grad.{name}.f64_eps1e-6");
        let targets = inner(&grad("XV"));
        all.extend([inner(&grad("XQ")), plus(inner(&grad("XK")), targets.clone(), 1.0), targets].concat());
        all.extend(rates(&grad("eta"), true));
        all
    }

    /// Returns the gradients of norm and weights of one head, which the file sums over samples.
    fn gradients_of_head(&self, head: usize, mlp: bool) -> Vec<f64> {
        let mut names = vec!["ttt_norm_weight", "ttt_norm_bias", "W1", "b1"];
        names.extend(mlp.then_some(["W2", "b2"]).into_iter().flatten());
        let of_head = |name: &str| {
            let t = self.tensor(&format!("grad.{name}.f64_eps1e-6"));
            let span = t.values.len() / t.shape[0];
            t.values[head * span..][..span].to_vec()
        };
        names.into_iter().flat_map(of_head).collect()
    }
}

#[test]
fn oracle_of_the_scan_has_the_numbers_of_the_reference_and_of_the_kernels() {
    let dir = TempDir::new().unwrap();
    for kind in ["mlp", "linear"] {
        let path = oracle::root().join(format!("ttt/op_ttt_{kind}_hd64_init.safetensors"));
        if !path.exists() {
            println!("skipped: {path} does not exist");
            continue;
        }
        let (file, mlp) = (Recorded::read(&path), kind == "mlp");
        let shape = file.tensor("XK").shape;
        assert_eq!(shape[0], 1, "{path}: gradients of weights are summed over samples");
        let (heads, width) = (shape[1], shape[4]);
        let sizes =
            [usize::from(mlp), heads, shape[2] * shape[3], width, if mlp { 4 * width } else { width }, shape[3]];
        let mut numbers: Vec<f64> = sizes.iter().map(|n| *n as f64).collect();
        for head in 0..heads {
            numbers.extend(file.sequence(0, head, mlp));
            numbers.extend(file.gradients_of_head(head, mlp));
        }
        let input = dir.path().join(kind);
        fs::write(&input, numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>()).unwrap();
        let out = Command::new(whole(64)).arg("recorded").arg(&input).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        println!("{kind}:\n{text}");
        assert_eq!(out.status.code(), Some(AGREES), "{path}:\n{text}");
    }
}

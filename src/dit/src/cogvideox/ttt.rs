//! TTT layers, which mix tokens across the whole video, forward and backward in time.
//!
//! Source: reference `ttt/models/ssm/ttt_layer.py` and `dit.py`; Dalal et al. 2025, "One-Minute Video Generation with
//! Test-Time Training".

use super::Scan;
use crate::mixers::Mixers;
use crate::parallel::{Alone, TensorParallel, own_split};
use crate::params::UnitParams;
use kernels::OnGpu;
use kernels::fused::{self, rotate};
use kernels::ttt::{Blocks, Inputs, Settings};
use recipe::{FsdpUnit, Layer, Model, TttScan};
use tch::{Kind, Tensor};
use torch_error::TorchError;

/// ε of the inner norm, in both directions, and of the norm before the output projection.
const EPS: f64 = 1e-6;

/// The TTT layer of every block: sizes, and the slots of its parameters in the unit's table.
#[derive(Debug)]
pub struct Ttt {
    head_dim: i64,
    base_lr: f64,
    settings: Settings,
    /// The implementation of gates and rotary embeddings on GPUs.
    fused: OnGpu,
    q: usize,
    k: usize,
    v: usize,
    o: usize,
    lr: usize,
    inner_norm: usize,
    post_norm: usize,
    inner1: usize,
    inner2: Option<usize>,
    gates: [Gate; 2],
}

/// A direction of time.
#[derive(Debug, Clone, Copy)]
enum Way {
    There,
    Back,
}

/// The slots of the gates of one direction.
#[derive(Debug, Clone, Copy)]
struct Gate {
    video: usize,
    text: usize,
}

impl Ttt {
    /// Looks up the parameters by name; `None` for a model without TTT layers.
    pub fn new(model: &Model, scan_group: usize) -> Option<Self> {
        let own = model.cogvideox();
        if own.layer == Layer::None {
            return None;
        }
        let slots = super::slots(model, FsdpUnit::Block(0));
        let gate = |direction: &str| {
            let find = |stream| {
                let name = format!("ttt.gate.{direction}.{stream}");
                slots.find(&name).expect("the parameter table names every gate")
            };
            Gate { video: find("video"), text: find("text") }
        };
        Some(Ttt {
            head_dim: model.head_dim as i64,
            base_lr: own.ttt_base_lr,
            settings: Settings {
                mini_batch: own.ttt_mini_batch as i64,
                scan_group: scan_group as i64,
                eps: EPS,
                on_gpu: OnGpu::Operators,
                blocks: Blocks::Auto,
            },
            fused: OnGpu::Operators,
            q: slots.affine("ttt.q"),
            k: slots.affine("ttt.k"),
            v: slots.affine("ttt.v"),
            o: slots.affine("ttt.o"),
            lr: slots.affine("ttt.lr"),
            inner_norm: slots.affine("ttt.inner_norm"),
            post_norm: slots.affine("ttt.post_norm"),
            inner1: slots.affine("ttt.inner1"),
            inner2: (own.layer == Layer::TttMlp).then(|| slots.affine("ttt.inner2")),
            gates: [gate("forward"), gate("backward")],
        })
    }

    /// Sets the implementations of the scan, and of gates and rotary embeddings, on GPUs.
    pub fn on_gpu(&mut self, scan: TttScan, fused: OnGpu) {
        self.fused = fused;
        (self.settings.on_gpu, self.settings.blocks) = match scan {
            TttScan::Auto => (OnGpu::Auto, Blocks::Auto),
            TttScan::Operators => (OnGpu::Operators, Blocks::Auto),
            TttScan::Kernel => (OnGpu::Kernel, Blocks::Auto),
            TttScan::KernelWithoutClusters => (OnGpu::Kernel, Blocks::One),
        };
    }

    /// Returns the slots of the parameters that every rank of a TP group has and applies to its own tokens.
    pub fn replicated(&self) -> Vec<usize> {
        self.gates.iter().flat_map(|gate| [gate.text, gate.video]).chain([self.o + 1]).collect()
    }

    /// Adds the gated output of the layer in both directions of time to this rank's part of `len` tokens, `[B, L, D]` on one rank.
    ///
    /// The second direction scans the output of the first, so one call cannot compute both.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub fn both_ways(
        &self,
        scan: &Scan,
        p: &UnitParams,
        x_bld: &Tensor,
        len: i64,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TorchError> {
        let one_way = |x: &Tensor, way| self.one_way(scan, p, (x, len), way, mixers, tp);
        let there = one_way(x_bld, Way::There)?;
        let there = self.gated_add(scan, p, self.gates[0], x_bld, &there, tp);
        let back = one_way(&there, Way::Back)?;
        Ok(self.gated_add(scan, p, self.gates[1], &there, &back, tp))
    }

    /// Applies the layer on one rank to tokens `[B, L, D]` in sequence order; the output has the same order.
    ///
    /// # Errors
    /// libtorch's errors.
    pub fn layer(&self, scan: &Scan, p: &UnitParams, x_bld: &Tensor, mixers: &Mixers) -> Result<Tensor, TorchError> {
        self.one_way(scan, p, (x_bld, x_bld.size()[1]), Way::There, mixers, &Alone)
    }

    /// Applies the layer in one direction of time to this rank's part of so many tokens. Takes and returns sequence order, and computes this
    /// rank's heads for all tokens.
    fn one_way(
        &self,
        scan: &Scan,
        p: &UnitParams,
        (part, len): (&Tensor, i64),
        way: Way,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TorchError> {
        // Reversed twice, tokens are in their order again.
        let order = |x: &Tensor| match way {
            Way::There => x.shallow_clone(),
            Way::Back => scan.order.reversed(x),
        };
        let batch = part.size()[0];
        let (lr, own_heads) = (p.affine(self.lr), p.affine(self.inner_norm).weight.size()[0]);
        let project = |all: &Tensor| {
            let [q, k, v] = [self.q, self.k, self.v].map(|slot| p.affine(slot).linear(all));
            [q, k, v, all.linear(&lr.weight.squeeze_dim(1), Some(&lr.bias().squeeze_dim(1)))]
        };
        let [q, k, v, wanted] = p.collectives(tp).gather(part, len, order, project)?;
        let heads = |x: Tensor| x.view([batch, len, own_heads, self.head_dim]);
        let unit = |x: Tensor| {
            let norm = x.norm_scalaropt_dim(2.0, -1i64, true).clamp_min(1e-12);
            rotate(&(x / norm), &scan.rotary, self.fused)
        };
        let (q, k, v) = (unit(heads(q)), unit(heads(k)), heads(v));

        // Target: value minus key, normalized with the unbiased standard deviation.
        let norm = p.affine(self.inner_norm);
        let lack = v - &k;
        let centred = &lack - lack.mean_dim(-1i64, true, None::<Kind>);
        let target = centred / (lack.std_dim(-1i64, true, true) + 1e-8) * norm.weight + norm.bias();

        let tokens = (self.head_dim * self.settings.mini_batch) as f64;
        let eta = wanted.sigmoid() * (self.base_lr / tokens);

        // [B, L, H, …] in scan order, as one sequence per sample and head.
        let sequences =
            |x: &Tensor| scan.order.to_scan_order(x).transpose(1, 2).reshape([batch * own_heads, len, self.head_dim]);
        let eta = scan.order.rates(&eta).transpose(1, 2).reshape([batch * own_heads, len]);
        let (first, second) = (p.affine(self.inner1), self.inner2.map(|slot| p.affine(slot)));
        let out = mixers.scan(
            self.settings,
            &Inputs {
                q: &sequences(&q),
                k: &sequences(&k),
                target: &sequences(&target),
                eta: &eta,
                norm: (norm.weight, norm.bias()),
                first: (first.weight, first.bias()),
                second: second.map(|a| (a.weight, a.bias())),
            },
        );
        let merged = out.view([batch, own_heads, len, self.head_dim]).transpose(1, 2).reshape([batch, len, -1]);
        let normed = self.post_norm(p, &scan.order.to_sequence_order(&merged), tp)?;
        let o = p.affine(self.o);
        let sum = p.collectives(tp).reduce(&normed, order, |x| o.row_product(x, tp))?;
        Ok(o.plus_bias(sum, tp))
    }

    /// Applies LayerNorm over all heads, although this rank holds only some. The ranks gather means and variances, and
    /// each rank uses them for its own heads, so their gradients are summed.
    fn post_norm(&self, p: &UnitParams, x_bld: &Tensor, tp: &dyn TensorParallel) -> Result<Tensor, TorchError> {
        let norm = p.affine(self.post_norm);
        if tp.size() == 1 {
            return Ok(norm.layer_norm(x_bld, EPS));
        }
        let mean_of = |x: &Tensor| x.mean_dim(-1i64, true, Kind::Float);
        let x = x_bld.to_kind(Kind::Float);
        let own_mean = mean_of(&x);
        let own_var = mean_of(&(&x - &own_mean).square());
        let joined = tp.copy_to(&tp.gather_from(&Tensor::cat(&[own_mean, own_var], -1))?)?;
        let pairs = joined.unflatten(-1, [-1, 2]);
        let (means, vars) = (pairs.select(-1, 0), pairs.select(-1, 1));
        let mean = mean_of(&means);
        let var = mean_of(&(vars + (means - &mean).square()));
        let normed = (x - mean) * (var + EPS).rsqrt() * norm.weight + norm.bias();
        Ok(normed.to_kind(x_bld.kind()))
    }

    /// Adds the output of one direction, each stream scaled by `tanh` of its gate.
    fn gated_add(
        &self,
        scan: &Scan,
        p: &UnitParams,
        gate: Gate,
        x_bld: &Tensor,
        update: &Tensor,
        tp: &dyn TensorParallel,
    ) -> Tensor {
        let [text, video] = [gate.text, gate.video].map(|slot| p.tensor(slot).tanh());
        let text_tokens = own_split(scan.text_tokens, x_bld.size()[1], tp);
        fused::gated_add(x_bld, update, [&text, &video], text_tokens, self.fused)
    }
}

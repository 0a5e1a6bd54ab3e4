//! Prodigy: AdamW whose learning rate is multiplied by an estimate of the distance to the solution.
//!
//! Source: Mishchenko and Defazio 2023 (arXiv 2306.06101), algorithm 4; `prodigyopt` 1.1.2.

use super::{LearningRates, Segment, StateTensor, StateValues, counts, segments, sum_over_replica, trained};
use recipe::{Optimizer, ParamSpec};
use sharding::fsdp::{Fsdp, OwnedRange};
use std::collections::BTreeMap;
use tch::{Kind, Tensor};

/// The estimate, the same on every rank, and the tensors of this rank's shards.
pub struct Prodigy {
    shards: Vec<Shard>,
    /// The estimate of the distance.
    d: f64,
    /// The largest estimate so far.
    d_max: f64,
    /// The decayed sum of the numerators.
    numerator: f64,
}

struct Shard {
    unit: usize,
    /// Moments, the decayed sum of gradients, and the weights before the first update; with the length of the shard.
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    sum: Tensor,
    first: Tensor,
    segments: Vec<Segment>,
    /// The runs that this rank counts for its TP group: start and length.
    counted: Vec<(i64, i64)>,
}

impl Shard {
    /// Sums the counted elements.
    fn sum_of(&self, tensor: &Tensor) -> Tensor {
        let parts = self.counted.iter().map(|&(start, len)| tensor.narrow(0, start, len).sum(Kind::Double));
        parts.reduce(|a, b| a + b).unwrap_or_else(|| Tensor::zeros([], (Kind::Double, tensor.device())))
    }
}

impl Prodigy {
    pub fn new(fsdp: &Fsdp, tables: &[Vec<ParamSpec>], o: &Optimizer) -> Self {
        let counted = |unit: usize| {
            let own = trained(fsdp).filter(|owned| owned.unit == unit && counts(fsdp.groups(), owned.range.tp_layout));
            own.map(|owned| (owned.range.shard_start, owned.range.len)).collect()
        };
        let shards = fsdp.shards().map(|shard| Shard {
            unit: shard.unit,
            exp_avg: shard.master.zeros_like(),
            exp_avg_sq: shard.master.zeros_like(),
            sum: shard.master.zeros_like(),
            first: shard.master.zeros_like(),
            segments: segments(fsdp, tables, o, shard.unit),
            counted: counted(shard.unit),
        });
        Prodigy { shards: shards.collect(), d: o.prodigy_d0, d_max: o.prodigy_d0, numerator: 0.0 }
    }

    pub fn step(
        &mut self,
        fsdp: &Fsdp,
        o: &Optimizer,
        lr: LearningRates,
        grad_scale: f64,
        step: u64,
    ) -> c10d::Result<()> {
        let (lr, beta1, beta2) = (lr.rest, lr.beta1, o.beta2);
        let beta3 = if o.prodigy_beta3 == 0.0 { beta2.sqrt() } else { o.prodigy_beta3 };
        let (d, relative) = (self.d, self.d / o.prodigy_d0);
        let correction = match o.prodigy_bias_correction {
            true => (1.0 - beta2.powf(step as f64)).sqrt() / (1.0 - beta1.powf(step as f64)),
            false => 1.0,
        };
        let rate = d * lr * correction;
        let weight = relative * if o.prodigy_safeguard_warmup { d } else { rate };
        // The numerator and the denominator of the estimate.
        let sums = Tensor::zeros([2], (Kind::Double, fsdp.groups().device));
        for (view, shard) in fsdp.shards().zip(&mut self.shards) {
            tch::no_grad(|| {
                let mut grad = view.grad.shallow_clone();
                if grad_scale != 1.0 {
                    let _ = grad.g_mul_scalar_(grad_scale);
                }
                if step == 1 {
                    shard.first.copy_(view.master);
                }
                if lr == 0.0 {
                    return;
                }
                let moved = &shard.first - view.master;
                let _ = sums.get(0).g_add_(&shard.sum_of(&(&grad * moved)));
                let _ = shard.exp_avg.g_mul_scalar_(beta1);
                shard.exp_avg += &grad * (d * (1.0 - beta1));
                let _ = shard.exp_avg_sq.g_mul_scalar_(beta2);
                shard.exp_avg_sq += grad.square() * (d * d * (1.0 - beta2));
                let _ = shard.sum.g_mul_scalar_(beta3);
                shard.sum += &grad * weight;
                let _ = sums.get(1).g_add_(&shard.sum_of(&shard.sum.abs()));
            });
        }
        sum_over_replica(fsdp.groups(), &sums)?;
        let (delta, denominator) = (sums.double_value(&[0]), sums.double_value(&[1]));
        self.numerator = self.numerator * beta3 + relative * rate * delta;
        // Without any gradient there is no estimate and no update.
        if denominator == 0.0 {
            return Ok(());
        }
        if lr > 0.0 {
            self.estimate(o, self.numerator / denominator);
        }
        for (view, shard) in fsdp.shards().zip(&self.shards) {
            tch::no_grad(|| {
                for segment in shard.segments.iter().filter(|segment| segment.weight_decay != 0.0) {
                    let _ = segment.part(view.master).g_mul_scalar_(1.0 - segment.weight_decay * rate);
                }
                let root = shard.exp_avg_sq.sqrt() + self.d * o.eps;
                let mut master = view.master.shallow_clone();
                master -= &shard.exp_avg / root * rate;
            });
        }
        Ok(())
    }

    /// Raises the estimate of the distance to `ratio`, within the limits of the recipe.
    fn estimate(&mut self, o: &Optimizer, ratio: f64) {
        let found = o.prodigy_d_coef * ratio;
        if self.d == o.prodigy_d0 {
            self.d = self.d.max(found);
        }
        self.d_max = self.d_max.max(found);
        let growth = if o.prodigy_growth == 0.0 { f64::INFINITY } else { o.prodigy_growth };
        self.d = self.d_max.min(self.d * growth);
    }

    pub fn of(&self, owned: &OwnedRange) -> Vec<StateTensor> {
        let shard = self.shards.iter().find(|shard| shard.unit == owned.unit).expect("a trained shard has state");
        let tensors = [
            ("exp_avg/", &shard.exp_avg),
            ("exp_avg_sq/", &shard.exp_avg_sq),
            ("s/", &shard.sum),
            ("p0/", &shard.first),
        ];
        let cut = |of: &Tensor| StateValues::Elements(of.narrow(0, owned.range.shard_start, owned.range.len));
        tensors.into_iter().map(|(prefix, tensor)| StateTensor { prefix, values: cut(tensor) }).collect()
    }

    pub fn numbers(&self) -> BTreeMap<String, f64> {
        let numbers = [("d", self.d), ("d_max", self.d_max), ("d_numerator", self.numerator)];
        numbers.map(|(name, number)| (name.to_owned(), number)).into()
    }

    pub fn set_numbers(&mut self, numbers: &BTreeMap<String, f64>) {
        let of = |name: &str, now: f64| numbers.get(name).copied().unwrap_or(now);
        self.d = of("d", self.d);
        self.d_max = of("d_max", self.d_max);
        self.numerator = of("d_numerator", self.numerator);
    }
}

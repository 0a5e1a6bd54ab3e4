//! Prodigy: AdamW whose learning rate is multiplied by an estimate of the distance to the solution.
//!
//! Source: Mishchenko and Defazio 2023 (arXiv 2306.06101), algorithm 4; `prodigyopt` 1.1.2.

use super::{Method, Segment, StateTensor, StateValues, Update, counts, segments, state_like, trained, with_state};
use c10d::waits::{self, Place};
use recipe::{Optimizer, ParamSpec};
use sharding::fsdp::{Access, Fsdp, OwnedRange, ShardView};
use std::collections::BTreeMap;
use tch::{Kind, Tensor};

/// The estimate, the same on every rank, and the tensors of this rank's shards.
pub struct Prodigy {
    shards: Vec<Shard>,
    /// The estimate of the distance.
    d: f64,
    /// The largest estimate so far.
    d_max: f64,
    /// The decayed sum of the numerators of the estimate.
    numerator: f64,
}

struct Shard {
    unit: usize,
    /// Both moments, the decayed sum of gradients, and the weights before the first update; each with the length of the shard.
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    sum: Tensor,
    first: Tensor,
    segments: Vec<Segment>,
    /// The start and the length of each range that this rank adds to sums over its TP group.
    counted: Vec<(i64, i64)>,
}

impl Shard {
    /// Returns the moments, the sum and the first weights.
    fn state(&self) -> [&Tensor; 4] {
        [&self.exp_avg, &self.exp_avg_sq, &self.sum, &self.first]
    }

    /// Sums the counted elements.
    fn sum_of(&self, tensor: &Tensor) -> Tensor {
        let parts = self.counted.iter().map(|&(start, len)| tensor.narrow(0, start, len).sum(Kind::Double));
        parts.reduce(|a, b| a + b).unwrap_or_else(|| Tensor::zeros([], (Kind::Double, tensor.device())))
    }
}

impl Prodigy {
    pub fn new(fsdp: &Fsdp, tables: &[Vec<ParamSpec>], o: &Optimizer) -> c10d::Result<Self> {
        let counted = |unit: usize| {
            let own = trained(fsdp).filter(|owned| owned.unit == unit && counts(fsdp.groups(), owned.range.tp_layout));
            own.map(|owned| (owned.range.shard_start, owned.range.len)).collect()
        };
        let shard = |shard: ShardView<'_>| {
            Ok(Shard {
                unit: shard.unit,
                exp_avg: state_like(fsdp, shard.master)?,
                exp_avg_sq: state_like(fsdp, shard.master)?,
                sum: state_like(fsdp, shard.master)?,
                first: state_like(fsdp, shard.master)?,
                segments: segments(fsdp, tables, o, shard.unit),
                counted: counted(shard.unit),
            })
        };
        let shards = fsdp.shards().map(shard).collect::<c10d::Result<_>>()?;
        Ok(Prodigy { shards, d: o.prodigy_d0, d_max: o.prodigy_d0, numerator: 0.0 })
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
}

impl Method for Prodigy {
    fn step(&mut self, update: &Update<'_>) -> c10d::Result<()> {
        let &Update { fsdp, optimizer: o, lr, grad_scale, step } = update;
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
        let no_grad = tch::no_grad_guard();
        let mut shards = self.shards.iter();
        // `Access::Write` also writes back the scaled gradient, which no step reads again. This costs little.
        fsdp.visit(Access::Write, |view| {
            let shard = shards.next().expect("every trained shard has state");
            with_state(fsdp, shard.state(), |state| {
                let [mut exp_avg, mut exp_avg_sq, mut sum, mut first] = state.map(Tensor::shallow_clone);
                let mut grad = view.grad.shallow_clone();
                if grad_scale != 1.0 {
                    let _ = grad.g_mul_scalar_(grad_scale);
                }
                if step == 1 {
                    first.copy_(view.master);
                }
                if lr == 0.0 {
                    return Ok(());
                }
                let moved = &first - view.master;
                let _ = sums.get(0).g_add_(&shard.sum_of(&(&grad * moved)));
                let _ = exp_avg.g_mul_scalar_(beta1);
                exp_avg += &grad * (d * (1.0 - beta1));
                let _ = exp_avg_sq.g_mul_scalar_(beta2);
                exp_avg_sq += grad.square() * (d * d * (1.0 - beta2));
                let _ = sum.g_mul_scalar_(beta3);
                sum += &grad * weight;
                let _ = sums.get(1).g_add_(&shard.sum_of(&sum.abs()));
                Ok(())
            })
        })?;
        fsdp.groups().sum_over_replica(&sums)?;
        let [delta, denominator] = waits::read(Place::OptimizerSums, &sums)[..] else {
            unreachable!("there are two sums")
        };
        self.numerator = self.numerator * beta3 + relative * rate * delta;
        // Without any gradient there is no estimate and no update.
        if denominator == 0.0 {
            return Ok(());
        }
        if lr > 0.0 {
            self.estimate(o, self.numerator / denominator);
        }
        let mut shards = self.shards.iter();
        let moved = fsdp.visit(Access::Write, |view| {
            let shard = shards.next().expect("every trained shard has state");
            with_state(fsdp, [&shard.exp_avg, &shard.exp_avg_sq], |[exp_avg, exp_avg_sq]| {
                for segment in shard.segments.iter().filter(|segment| segment.weight_decay != 0.0) {
                    let _ = segment.part(view.master).g_mul_scalar_(1.0 - segment.weight_decay * rate);
                }
                let root = exp_avg_sq.sqrt() + self.d * o.eps;
                let mut master = view.master.shallow_clone();
                master -= exp_avg / root * rate;
                Ok(())
            })
        });
        drop(no_grad);
        moved
    }

    fn of(&self, owned: &OwnedRange) -> Vec<StateTensor> {
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

    fn numbers(&self) -> BTreeMap<String, f64> {
        let numbers = [("d", self.d), ("d_max", self.d_max), ("d_numerator", self.numerator)];
        numbers.map(|(name, number)| (name.to_owned(), number)).into()
    }

    fn set_numbers(&mut self, numbers: &BTreeMap<String, f64>) {
        let of = |name: &str, now: f64| numbers.get(name).copied().unwrap_or(now);
        self.d = of("d", self.d);
        self.d_max = of("d_max", self.d_max);
        self.numerator = of("d_numerator", self.numerator);
    }
}

//! AdamW, with moments in fp32 or as 8-bit codes.

use super::{LearningRates, Segment, StateTensor, StateValues, segments, trained};
use c10d::adamw8::{Maps, Quantized};
use c10d::ops;
use recipe::{Optimizer, ParamSpec};
use sharding::fsdp::{Fsdp, OwnedRange};
use tch::Tensor;

/// The prefixes of the names of both moments.
const PREFIXES: [&str; 2] = ["exp_avg/", "exp_avg_sq/"];

/// The moments of this rank's shards: the mean of gradients and that of squared gradients.
pub struct AdamW {
    shards: Vec<Shard>,
    /// The maps of quantized moments; `None` if all are in fp32.
    maps: Option<Maps>,
}

enum Shard {
    /// fp32, each with the length of the shard.
    Whole { unit: usize, moments: [Tensor; 2], segments: Vec<Segment> },
    /// Every tensor has its own blocks.
    Ranges { unit: usize, ranges: Vec<Range> },
}

/// The moments of a range of one tensor.
struct Range {
    slot: usize,
    segment: Segment,
    moments: Moments,
}

enum Moments {
    Full([Tensor; 2]),
    Quantized([Quantized; 2]),
}

impl AdamW {
    pub fn new(fsdp: &Fsdp, tables: &[Vec<ParamSpec>], o: &Optimizer) -> Self {
        let device = fsdp.groups().device;
        if !o.kind.quantizes() {
            let shard = |unit: usize, master: &Tensor| {
                let moments = [0, 1].map(|_| master.zeros_like());
                Shard::Whole { unit, moments, segments: segments(fsdp, tables, o, unit) }
            };
            let shards = fsdp.shards().map(|shard_of| shard(shard_of.unit, shard_of.master)).collect();
            return AdamW { shards, maps: None };
        }
        let range = |owned: OwnedRange| {
            let spec = &tables[owned.unit][owned.range.slot];
            let (start, len) = (owned.range.start, owned.range.len);
            let moments = match o.quantizes(spec) {
                true => Moments::Quantized([0, 1].map(|_| Quantized::zeros(start, len, device))),
                false => Moments::Full([0, 1].map(|_| owned.values.zeros_like())),
            };
            Range { slot: owned.range.slot, segment: Segment::of(o, spec, &owned), moments }
        };
        let shards = fsdp.shards().map(|shard| {
            let ranges = trained(fsdp).filter(|owned| owned.unit == shard.unit).map(&range).collect();
            Shard::Ranges { unit: shard.unit, ranges }
        });
        AdamW { shards: shards.collect(), maps: Some(Maps::on(device)) }
    }

    pub fn step(
        &mut self,
        fsdp: &Fsdp,
        o: &Optimizer,
        lr: LearningRates,
        grad_scale: f64,
        step: u64,
    ) -> c10d::Result<()> {
        let adamw = |segment: &Segment| ops::AdamW {
            lr: lr.of(o, segment.rate),
            beta1: lr.beta1,
            beta2: o.beta2,
            eps: o.eps,
            weight_decay: segment.weight_decay,
            step,
            grad_scale,
        };
        for (view, shard) in fsdp.shards().zip(&mut self.shards) {
            match shard {
                Shard::Whole { moments: [first, second], segments, .. } => {
                    for segment in segments.iter() {
                        let [p, g, m, v] = [view.master, view.grad, &*first, &*second].map(|t| segment.part(t));
                        adamw(segment).step(&p, &g, &m, &v)?;
                    }
                }
                Shard::Ranges { ranges, .. } => {
                    for Range { segment, moments, .. } in ranges {
                        let [p, g] = [view.master, view.grad].map(|t| segment.part(t));
                        match moments {
                            Moments::Full([m, v]) => adamw(segment).step(&p, &g, m, v)?,
                            Moments::Quantized([m, v]) => {
                                let maps = self.maps.as_ref().expect("quantized moments have maps");
                                adamw(segment).step8(&p, &g, [m, v], maps)?;
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    pub fn of(&self, owned: &OwnedRange) -> Vec<StateTensor> {
        let elements = |of: &Tensor| StateValues::Elements(of.shallow_clone());
        let values = match self.shard(owned.unit) {
            Shard::Whole { moments, .. } => {
                let cut = |of: &Tensor| elements(&of.narrow(0, owned.range.shard_start, owned.range.len));
                [cut(&moments[0]), cut(&moments[1])]
            }
            Shard::Ranges { ranges, .. } => {
                let range = ranges.iter().find(|range| range.slot == owned.range.slot);
                match &range.expect("an owned range has moments").moments {
                    Moments::Full([m, v]) => [elements(m), elements(v)],
                    Moments::Quantized(moments) => moments.each_ref().map(|moment| StateValues::Quantized {
                        codes: moment.codes.shallow_clone(),
                        scales: moment.scales.shallow_clone(),
                    }),
                }
            }
        };
        PREFIXES.into_iter().zip(values).map(|(prefix, values)| StateTensor { prefix, values }).collect()
    }

    fn shard(&self, unit: usize) -> &Shard {
        let is_of = |shard: &&Shard| matches!(shard, Shard::Whole { unit: of, .. } | Shard::Ranges { unit: of, .. } if *of == unit);
        self.shards.iter().find(is_of).expect("a trained shard has moments")
    }

    /// Fills the quantized moment `prefix` of a tensor's range, given by unit and slot.
    pub fn set_quantized(&self, (unit, slot): (usize, usize), prefix: &str, codes: &Tensor, scales: &Tensor) {
        let (Some(maps), Shard::Ranges { ranges, .. }) = (&self.maps, self.shard(unit)) else { return };
        let Some(range) = ranges.iter().find(|range| range.slot == slot) else { return };
        let Moments::Quantized([first, second]) = &range.moments else { return };
        match prefix == PREFIXES[0] {
            true => first.set_scaled(&maps.signed, codes, scales),
            false => second.set_scaled(&maps.unsigned, codes, scales),
        }
    }
}

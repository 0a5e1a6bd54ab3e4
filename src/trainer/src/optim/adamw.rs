//! AdamW, with moments in fp32 or as 8-bit codes.

use super::{
    Method, Segment, StateTensor, StateValues, Update, segments, state_like, state_zeros, trained, with_state,
};
use c10d::adamw8::{Maps, Quantized};
use c10d::ops;
use recipe::{Optimizer, ParamSpec};
use sharding::fsdp::{Access, Fsdp, OwnedRange, ShardView};
use tch::Tensor;

/// The prefixes of the names of both moments.
const PREFIXES: [&str; 2] = ["exp_avg/", "exp_avg_sq/"];

/// The moments of this rank's shards: the mean of gradients and that of squared gradients.
pub struct AdamW {
    shards: Vec<Shard>,
    /// The quantization maps of 8-bit moments; `None` if all moments are fp32.
    maps: Option<Maps>,
}

enum Shard {
    /// fp32, each with the length of the shard.
    Whole { unit: usize, moments: [Tensor; 2], segments: Vec<Segment> },
    /// One range for each tensor, because quantized tensors have their own blocks.
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
    pub fn new(fsdp: &Fsdp, tables: &[Vec<ParamSpec>], o: &Optimizer) -> c10d::Result<Self> {
        let device = fsdp.groups().device;
        if !o.kind.quantizes() {
            let shard = |shard: ShardView<'_>| {
                let moments = [state_like(fsdp, shard.master)?, state_like(fsdp, shard.master)?];
                Ok(Shard::Whole { unit: shard.unit, moments, segments: segments(fsdp, tables, o, shard.unit) })
            };
            return Ok(AdamW { shards: fsdp.shards().map(shard).collect::<c10d::Result<_>>()?, maps: None });
        }
        let range = |owned: OwnedRange| {
            let spec = &tables[owned.unit][owned.range.slot];
            let (start, len) = (owned.range.start, owned.range.len);
            let quantized = || -> c10d::Result<Quantized> {
                let zeros = |len: i64, kind| state_zeros(fsdp, len, kind);
                Quantized::zeros_in(start, len, zeros)
            };
            let moments = match o.quantizes(spec) {
                true => Moments::Quantized([quantized()?, quantized()?]),
                false => Moments::Full([state_like(fsdp, &owned.values)?, state_like(fsdp, &owned.values)?]),
            };
            Ok(Range { slot: owned.range.slot, segment: Segment::of(o, spec, &owned), moments })
        };
        let shards = fsdp.shards().map(|shard| {
            let ranges = trained(fsdp).filter(|owned| owned.unit == shard.unit).map(&range);
            Ok(Shard::Ranges { unit: shard.unit, ranges: ranges.collect::<c10d::Result<_>>()? })
        });
        Ok(AdamW { shards: shards.collect::<c10d::Result<_>>()?, maps: Some(Maps::on(device)) })
    }

    fn shard(&self, unit: usize) -> &Shard {
        let is_of = |shard: &&Shard| matches!(shard, Shard::Whole { unit: of, .. } | Shard::Ranges { unit: of, .. } if *of == unit);
        self.shards.iter().find(is_of).expect("a trained shard has moments")
    }
}

impl Method for AdamW {
    fn step(&mut self, update: &Update<'_>) -> c10d::Result<()> {
        let &Update { fsdp, optimizer: o, lr, grad_scale, step } = update;
        let adamw = |segment: &Segment| ops::AdamW {
            lr: lr.of(o, segment.rate),
            beta1: lr.beta1,
            beta2: o.beta2,
            eps: o.eps,
            weight_decay: segment.weight_decay,
            step,
            grad_scale,
        };
        let mut shards = self.shards.iter();
        fsdp.visit(Access::Write, |view| match shards.next().expect("every trained shard has moments") {
            Shard::Whole { moments: [first, second], segments, .. } => {
                with_state(fsdp, [first, second], |[first, second]| {
                    segments.iter().try_for_each(|segment| {
                        let [p, g, m, v] = [view.master, view.grad, first, second].map(|t| segment.part(t));
                        adamw(segment).step(&p, &g, &m, &v)
                    })
                })
            }
            Shard::Ranges { ranges, .. } => ranges.iter().try_for_each(|Range { segment, moments, .. }| {
                let [p, g] = [view.master, view.grad].map(|t| segment.part(t));
                match moments {
                    Moments::Full([m, v]) => with_state(fsdp, [m, v], |[m, v]| adamw(segment).step(&p, &g, m, v)),
                    Moments::Quantized([m, v]) => {
                        let maps = self.maps.as_ref().expect("quantized moments have maps");
                        let state = [&m.codes, &m.scales, &v.codes, &v.scales];
                        with_state(fsdp, state, |[m_codes, m_scales, v_codes, v_scales]| {
                            let [mut m, mut v] = [m.with(m_codes, m_scales), v.with(v_codes, v_scales)];
                            adamw(segment).step8(&p, &g, [&mut m, &mut v], maps)
                        })
                    }
                }
            }),
        })
    }

    fn of(&self, owned: &OwnedRange) -> Vec<StateTensor> {
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

    fn set_quantized(&self, (unit, slot): (usize, usize), prefix: &str, codes: &Tensor, scales: &Tensor) {
        let (Some(maps), Shard::Ranges { ranges, .. }) = (&self.maps, self.shard(unit)) else { return };
        let Some(range) = ranges.iter().find(|range| range.slot == slot) else { return };
        let Moments::Quantized([first, second]) = &range.moments else { return };
        match prefix == PREFIXES[0] {
            true => first.set_scaled(&maps.signed, codes, scales),
            false => second.set_scaled(&maps.unsigned, codes, scales),
        }
    }
}

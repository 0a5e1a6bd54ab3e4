//! AdamW, with moments in fp32 or as 8-bit codes.

use super::{
    Method, Segment, StateTensor, StateValues, Update, segments, state_like, state_zeros, trained, with_state,
};
use c10d::adamw8::{Maps, Quantized};
use c10d::ops;
use recipe::{Optimizer, ParamSpec};
use sharding::fsdp::{Access, Fsdp, OwnedRange, ShardView};
use std::cell::Cell;
use tch::{Kind, Tensor};

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
        let shards = fsdp.shards().map(|shard| {
            let unit = shard.unit;
            let owned: Vec<OwnedRange> = trained(fsdp).filter(|owned| owned.unit == unit).collect();
            Ok(Shard::Ranges { unit, ranges: Range::of_unit(fsdp, &tables[unit], o, &owned)? })
        });
        Ok(AdamW { shards: shards.collect::<c10d::Result<_>>()?, maps: Some(Maps::on(device)) })
    }

    fn shard(&self, unit: usize) -> &Shard {
        let is_of = |shard: &&Shard| matches!(shard, Shard::Whole { unit: of, .. } | Shard::Ranges { unit: of, .. } if *of == unit);
        self.shards.iter().find(is_of).expect("a trained shard has moments")
    }
}

impl Range {
    /// Creates the moments of a unit's ranges.
    fn of_unit(fsdp: &Fsdp, specs: &[ParamSpec], o: &Optimizer, owned: &[OwnedRange]) -> c10d::Result<Vec<Range>> {
        let quantizes = |owned: &OwnedRange| o.quantizes(&specs[owned.range.slot]);
        let sum = |quantized: bool, of: fn(&OwnedRange) -> i64| -> i64 {
            owned.iter().filter(|owned| quantizes(owned) == quantized).map(of).sum()
        };
        let len = |owned: &OwnedRange| owned.range.len;
        let blocks = |owned: &OwnedRange| Quantized::blocks(owned.range.start, owned.range.len);
        let moment = || -> c10d::Result<[Divided; 3]> {
            Ok([
                Divided::zeros(fsdp, sum(true, len), Kind::Uint8)?,
                Divided::zeros(fsdp, sum(true, blocks), Kind::Float)?,
                Divided::zeros(fsdp, sum(false, len), Kind::Float)?,
            ])
        };
        let moments = [moment()?, moment()?];
        let range = |owned: &OwnedRange| {
            let (start, len) = (owned.range.start, owned.range.len);
            let quantized = |[codes, scales, _]: &[Divided; 3]| {
                Quantized::zeros_in(start, len, |len, kind| {
                    Ok(if kind == Kind::Uint8 { codes } else { scales }.take(len))
                })
            };
            let [first, second] = &moments;
            let moments = match quantizes(owned) {
                true => Moments::Quantized([quantized(first)?, quantized(second)?]),
                false => Moments::Full([first[2].take(len), second[2].take(len)]),
            };
            let slot = owned.range.slot;
            Ok(Range { slot, segment: Segment::of(o, &specs[slot], owned), moments })
        };
        owned.iter().map(range).collect()
    }
}

/// A flat tensor of state that the ranges of a unit divide among them. The state of a unit is in few tensors, as the memory plan counts
/// it (`recipe::cost`), and not in several for each range.
struct Divided {
    whole: Tensor,
    /// The number of elements that ranges have.
    used: Cell<i64>,
}

impl Divided {
    fn zeros(fsdp: &Fsdp, len: i64, kind: Kind) -> c10d::Result<Self> {
        // The backing store has no empty tensors.
        let whole = match len {
            0 => Tensor::zeros([0], (kind, fsdp.groups().device)),
            len => state_zeros(fsdp, len, kind)?,
        };
        Ok(Divided { whole, used: Cell::new(0) })
    }

    /// Returns the next `len` elements.
    fn take(&self, len: i64) -> Tensor {
        let start = self.used.get();
        self.used.set(start + len);
        self.whole.narrow(0, start, len)
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
                    let mut alike: Vec<(&Segment, Vec<[Tensor; 4]>)> = Vec::new();
                    for segment in segments {
                        let part = [view.master, view.grad, first, second].map(|t| segment.part(t));
                        match alike.iter_mut().find(|(other, _)| segment.has_settings_of(other)) {
                            Some((_, parts)) => parts.push(part),
                            None => alike.push((segment, vec![part])),
                        }
                    }
                    alike.iter().try_for_each(|(segment, parts)| adamw(segment).step_each(parts))
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

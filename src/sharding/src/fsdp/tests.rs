//! Tests of FSDP. The ranks of a mesh are threads of this process, which communicate with gloo.

use super::*;
use crate::flat::Layout;
use c10d::Store;
use c10d::collectives::recent;
use recipe::Mesh;
use std::time::Duration;
use tch::Device;

/// The timeout of ranks, long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs every rank of a mesh in a separate thread, and returns their results. The names of their groups begin with `name`.
fn on_ranks<T: Send>(mesh: Mesh, name: &str, run: impl Fn(MeshGroups) -> T + Sync) -> Vec<T> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let (path, run) = (&path, &run);
            scope.spawn(move || {
                let store = Store::file(path, mesh.world(), LIMIT).unwrap().prefix(name);
                run(MeshGroups::join(&store, mesh, rank, Device::Cpu, LIMIT, Some("lo")).unwrap())
            })
        };
        let ranks: Vec<_> = (0..mesh.world()).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Returns the layouts of `units` FSDP units. Each unit has a trained matrix and a trained vector.
fn units(units: usize, shards: usize) -> Vec<Layout> {
    let tensors = [vec![7, 5], vec![3]].map(|shape| (shape, ParamKind::Trained, TpLayout::Replicated));
    (0..units).map(|_| Layout::new(tensors.clone(), shards)).collect()
}

/// Returns gradients for the trained slots of a unit. They differ between units and between ranks.
fn grads(fsdp: &Fsdp, unit: usize) -> Vec<(usize, Tensor)> {
    let shift = (10 * fsdp.groups().world.rank() + unit) as f64;
    let of = |(slot, s): (usize, &Slot)| {
        let numbers = Tensor::arange(s.len, (Kind::Float, Device::Cpu)) + shift;
        (slot, numbers.view(s.shape.as_slice()))
    };
    let slots = fsdp.layout(unit).slots.iter().enumerate();
    slots.filter(|(_, slot)| slot.kind == ParamKind::Trained).map(of).collect()
}

/// Returns the reduced gradient of each range that this rank owns: unit, slot, first element, values.
fn reduced(fsdp: &Fsdp) -> Vec<(usize, usize, i64, Vec<f32>)> {
    let of = |owned: OwnedRange| {
        let shard = fsdp.shards().find(|shard| shard.unit == owned.unit).unwrap();
        let values = shard.grad.narrow(0, owned.range.shard_start, owned.range.len);
        (owned.unit, owned.range.slot, owned.range.start, Vec::try_from(&values).unwrap())
    };
    fsdp.owned().into_iter().filter(|owned| owned.range.kind == ParamKind::Trained).map(of).collect()
}

#[test]
fn the_sum_over_replicas_of_a_unit_starts_before_the_last_unit_is_reduced() {
    for (dp_shard, name) in [(2, "sums-of-two-shards"), (1, "sums-of-one-shard")] {
        let mesh = Mesh { dp_replicate: 2, dp_shard, tp: 1 };
        let sums = || {
            let of_replicas = format!("{name}/replicas");
            recent().unwrap().iter().filter(|one| one.group.starts_with(&of_replicas)).count()
        };
        let started = on_ranks(mesh, name, |groups| {
            let mut fsdp = Fsdp::new(units(3, dp_shard), groups, Kind::Float);
            fsdp.summed_at_once = 1;
            let reduce = |fsdp: &mut Fsdp, unit| {
                let grads = grads(fsdp, unit);
                fsdp.reduce(unit, grads).unwrap();
            };
            reduce(&mut fsdp, 2);
            reduce(&mut fsdp, 1);
            // At this barrier, no rank has started to reduce the last unit.
            fsdp.groups().world.barrier().unwrap();
            let before = sums();
            fsdp.groups().world.barrier().unwrap();
            reduce(&mut fsdp, 0);
            fsdp.finish_reduce().unwrap();
            fsdp.groups().world.barrier().unwrap();
            for (unit, _, start, values) in reduced(&fsdp) {
                let ranks = mesh.world() as f32;
                let of_ranks = 10.0 * ranks * (ranks - 1.0) / 2.0;
                let wanted = |i: usize| ranks * (start as f32 + i as f32 + unit as f32) + of_ranks;
                assert!(values.iter().enumerate().all(|(i, value)| *value == wanted(i)), "{unit} {start} {values:?}");
            }
            (before, sums())
        });
        // With two shards, the reduce-scatter of unit 1 is still in flight at the barrier, so only unit 2 has been summed.
        let before = if dp_shard == 2 { 1 } else { 2 } * mesh.world();
        assert!(started.iter().all(|sums| *sums == (before, 3 * mesh.world())), "{started:?}");
    }
}

#[test]
fn gradients_that_are_accumulated_in_shards_are_the_sums_of_unsharded_ones() {
    let mesh = Mesh { dp_replicate: 2, dp_shard: 2, tp: 1 };
    let of = |accumulate| {
        on_ranks(mesh, "accumulated", |groups| {
            let mut fsdp = Fsdp::new(units(3, 2), groups, Kind::Float).accumulating(accumulate);
            // The second step verifies that it does not include gradients of the first one.
            for _ in 0..2 {
                for part in 0..3 {
                    fsdp.set_grad_sync(if part == 2 { GradSync::Reduce } else { GradSync::Accumulate });
                    for unit in (0..3).rev() {
                        let grads = grads(&fsdp, unit).into_iter().map(|(slot, grad)| (slot, grad * (part + 1)));
                        fsdp.reduce(unit, grads.collect()).unwrap();
                    }
                    assert_eq!(
                        fsdp.units[1].trained.as_ref().unwrap().whole.is_some(),
                        part < 2 && accumulate == Accumulate::Whole
                    );
                }
                fsdp.finish_reduce().unwrap();
            }
            let sent = [fsdp.groups.shard.sent().scattered, fsdp.groups.replicate.sent().summed];
            (reduced(&fsdp), sent)
        })
    };
    // The gradients are small integers, so that their sums are exact in any order.
    for ((whole, of_whole), (sharded, of_shards)) in of(Accumulate::Whole).into_iter().zip(of(Accumulate::Sharded)) {
        assert_eq!(whole, sharded);
        assert_eq!([3 * of_whole[0], of_whole[1]], of_shards, "a reduce-scatter in each of three parts, one sum");
    }
}

#[test]
fn a_kept_frozen_tensor_is_gathered_once_and_again_after_a_change_of_the_weights() {
    let mesh = Mesh { dp_replicate: 1, dp_shard: 2, tp: 1 };
    on_ranks(mesh, "kept", |groups| {
        let tensors = [(vec![7], ParamKind::Trained), (vec![40, 9], ParamKind::Frozen)];
        let tensors = tensors.map(|(shape, kind)| (shape, kind, TpLayout::Replicated));
        let layouts = (0..2).map(|_| Layout::new(tensors.clone(), 2)).collect();
        let mut fsdp = Fsdp::new(layouts, groups, Kind::Float).keeping(&[false, true]);
        let fill = |fsdp: &Fsdp, value: f64| {
            fsdp.owned().into_iter().for_each(|owned| drop(tch::no_grad(|| owned.values.shallow_clone().fill_(value))));
        };
        let gathered = |fsdp: &mut Fsdp, unit: usize, next| {
            let before = fsdp.groups.shard.sent().gathered;
            let tensors = fsdp.gather(unit, next).unwrap();
            let values = tensors.iter().map(|tensor| (tensor.min().double_value(&[]), tensor.max().double_value(&[])));
            (values.collect::<Vec<_>>(), fsdp.groups.shard.sent().gathered - before)
        };
        fill(&fsdp, 1.0);
        let (trained, frozen) = (4 * 128, 4 * 256);
        assert_eq!(gathered(&mut fsdp, 0, Some(1)), (vec![(1.0, 1.0); 2], 2 * (trained + frozen)));
        assert_eq!(gathered(&mut fsdp, 1, None), (vec![(1.0, 1.0); 2], 0));
        assert_eq!(gathered(&mut fsdp, 1, None), (vec![(1.0, 1.0); 2], trained));
        assert_eq!(gathered(&mut fsdp, 0, Some(1)), (vec![(1.0, 1.0); 2], 2 * trained + frozen));
        assert_eq!(gathered(&mut fsdp, 1, None), (vec![(1.0, 1.0); 2], 0));
        fill(&fsdp, 2.0);
        fsdp.frozen_changed();
        assert_eq!(gathered(&mut fsdp, 1, None), (vec![(2.0, 2.0); 2], trained + frozen));
        assert_eq!(gathered(&mut fsdp, 1, None), (vec![(2.0, 2.0); 2], trained));
    });
}

/// Gathers and reduces every unit once.
fn step(fsdp: &mut Fsdp) {
    let last = fsdp.units.len() - 1;
    for unit in 0..=last {
        fsdp.gather(unit, (unit < last).then_some(unit + 1)).unwrap();
    }
    for unit in (0..=last).rev() {
        let grads = grads(fsdp, unit);
        fsdp.reduce(unit, grads).unwrap();
    }
    fsdp.finish_reduce().unwrap();
}

#[test]
fn a_unit_is_gathered_and_reduced_with_one_launch_each_and_small_units_are_summed_together() {
    let mesh = Mesh { dp_replicate: 2, dp_shard: 2, tp: 1 };
    let of = |summed_at_once| {
        on_ranks(mesh, "launches", |groups| {
            let tensors = [(vec![7, 5], ParamKind::Trained), (vec![40, 9], ParamKind::Frozen)];
            let tensors = tensors.map(|(shape, kind)| (shape, kind, TpLayout::Replicated));
            let layouts = (0..6).map(|_| Layout::new(tensors.clone(), 2)).collect();
            let mut fsdp = Fsdp::new(layouts, groups, Kind::BFloat16);
            fsdp.summed_at_once = summed_at_once;
            for owned in fsdp.owned() {
                let start = owned.range.start as f64;
                let numbers = Tensor::arange(owned.range.len, (Kind::Float, Device::Cpu)) + start;
                tch::no_grad(|| owned.values.shallow_clone().copy_(&numbers));
            }
            let [shard, replicate] = [fsdp.groups.shard.sent(), fsdp.groups.replicate.sent()];
            step(&mut fsdp);
            let gathered = fsdp.gather(2, None).unwrap();
            for tensor in gathered {
                let numbers = Tensor::arange(tensor.numel() as i64, (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
                assert!(tensor.view(-1).equal(&numbers));
            }
            let launches = [fsdp.groups.shard.sent(), fsdp.groups.replicate.sent()].map(|sent| sent.launches);
            let grads: Vec<(usize, usize, i64, Vec<f32>)> = reduced(&fsdp);
            (launches[0] - shard.launches, launches[1] - replicate.launches, fsdp.groups.replicate.sent().summed, grads)
        })
    };
    let (one_by_one, together) = (of(1), of(SUMMED_AT_ONCE));
    for (one, all) in one_by_one.iter().zip(&together) {
        assert_eq!(((one.0, one.1), (all.0, all.1)), ((7 + 6, 6), (7 + 6, 1)));
        assert_eq!((one.2, &one.3), (all.2, &all.3), "the same bytes and the same bits");
    }
}

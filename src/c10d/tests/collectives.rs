//! Tests of the results of collectives, over gloo on the loopback interface.

mod together;

use c10d::{Error, Group, Pending, Reduce, Result, TokensInFlight};
use tch::{Device, Kind, Tensor};
use together::{TIMEOUT, on_ranks};

const SIZES: [usize; 3] = [1, 2, 4];
const KINDS: [Kind; 2] = [Kind::Float, Kind::BFloat16];

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(Kind::Double).view(-1)).expect("a flat tensor of doubles is a vector")
}

/// Returns small integers, so that sums are exact in bf16 too.
fn counting(from: i64, len: i64, kind: Kind) -> Tensor {
    Tensor::arange_start(from, from + len, (Kind::Float, Device::Cpu)).to_kind(kind)
}

#[test]
fn all_reduce_gives_every_rank_the_sum_the_maximum_and_the_mean() -> Result<()> {
    for (size, kind) in SIZES.into_iter().flat_map(|size| KINDS.map(|kind| (size, kind))) {
        let n = size as f64;
        for (reduce, want) in [
            (Reduce::Sum, [(n - 1.0) * n / 2.0, n]),
            (Reduce::Max, [n - 1.0, 1.0]),
            (Reduce::Avg, [(n - 1.0) / 2.0, 1.0]),
        ] {
            let got = on_ranks(size, |group, _| {
                let tensor = Tensor::from_slice(&[group.rank() as f64, 1.0]).to_kind(kind);
                group.all_reduce(&tensor, reduce)?.wait()?;
                Ok(values(&tensor))
            })?;
            assert!(got.iter().all(|values| *values == want), "{reduce:?} of {size} ranks in {kind:?}: {got:?}");
        }
    }
    Ok(())
}

#[test]
fn integers_are_reduced_too() -> Result<()> {
    let got = on_ranks(2, |group, _| {
        let flag = Tensor::from_slice(&[group.rank() as i64 * 3]);
        group.all_reduce(&flag, Reduce::Max)?.wait()?;
        Ok(flag.int64_value(&[0]))
    })?;
    assert_eq!(got, [3, 3]);
    Ok(())
}

#[test]
fn all_gather_returns_the_parts_in_rank_order() -> Result<()> {
    for (size, kind) in SIZES.into_iter().flat_map(|size| KINDS.map(|kind| (size, kind))) {
        let got = on_ranks(size, |group, _| {
            let input = counting(group.rank() as i64 * 3, 3, kind);
            let out = Tensor::zeros([size as i64, 3], (kind, Device::Cpu));
            group.all_gather_into(&out, &input)?.wait()?;
            Ok(values(&out))
        })?;
        let want: Vec<f64> = (0..3 * size).map(|i| i as f64).collect();
        assert!(got.iter().all(|values| *values == want), "{size} ranks in {kind:?}: {got:?}");
    }
    Ok(())
}

#[test]
fn reduce_scatter_gives_each_rank_its_part_of_the_reduction() -> Result<()> {
    for (size, kind) in SIZES.into_iter().flat_map(|size| KINDS.map(|kind| (size, kind))) {
        let (n, len) = (size as f64, size as i64 * 2);
        let got = on_ranks(size, |group, _| {
            [Reduce::Sum, Reduce::Max, Reduce::Avg]
                .into_iter()
                .map(|reduce| {
                    let input = counting(group.rank() as i64, len, kind);
                    let out = Tensor::full([1, 2], -1.0, (kind, Device::Cpu));
                    group.reduce_scatter_into(&out, &input, reduce)?.wait()?;
                    assert_eq!(values(&input), values(&counting(group.rank() as i64, len, kind)), "input changed");
                    Ok(values(&out))
                })
                .collect::<Result<Vec<_>>>()
        })?;
        for (rank, rank_got) in got.iter().enumerate() {
            let at = |i: usize| (2 * rank + i) as f64;
            let sum = [0, 1].map(|i| n * at(i) + n * (n - 1.0) / 2.0);
            assert_eq!(rank_got[0], sum, "sum on rank {rank} of {size} in {kind:?}");
            assert_eq!(rank_got[1], [0, 1].map(|i| at(i) + n - 1.0), "max on rank {rank} of {size} in {kind:?}");
            assert_eq!(rank_got[2], sum.map(|s| s / n), "mean on rank {rank} of {size} in {kind:?}");
        }
    }
    Ok(())
}

#[test]
fn many_tensors_are_reduced_and_gathered_in_place_with_one_launch() -> Result<()> {
    for size in SIZES {
        let got = on_ranks(size, |group, _| {
            let rank = group.rank() as i64;
            let [first, second] = [counting(rank, 3, Kind::Float), counting(10 * rank, 2, Kind::BFloat16)];
            group.all_reduce_many(&[&first, &second], Reduce::Avg)?.wait()?;
            let wholes = [(3, Kind::BFloat16), (1, Kind::Float)]
                .map(|(len, kind)| (len, Tensor::zeros([len * size as i64], (kind, Device::Cpu))));
            let own = |(len, whole): &(i64, Tensor)| whole.narrow(0, len * rank, *len);
            let parts = wholes.each_ref().map(own);
            for (part, (len, _)) in parts.iter().zip(&wholes) {
                part.shallow_clone().copy_(&counting(len * rank, *len, part.kind()));
            }
            let before = group.sent().launches;
            let pairs: Vec<_> = wholes.iter().zip(&parts).map(|((_, whole), part)| (whole, part)).collect();
            group.all_gather_many(&pairs)?.wait()?;
            group.all_gather_many(&[])?.wait()?;
            let launches = group.sent().launches - before;
            Ok((values(&first), values(&second), values(&wholes[0].1), values(&wholes[1].1), launches))
        })?;
        let (mean, all) =
            ((size as f64 - 1.0) / 2.0, |len: usize| (0..len * size).map(|i| i as f64).collect::<Vec<_>>());
        let want = (
            vec![mean, mean + 1.0, mean + 2.0],
            vec![10.0 * mean, 10.0 * mean + 1.0],
            all(3),
            all(1),
            u64::from(size > 1),
        );
        assert!(got.iter().all(|got| *got == want), "{size} ranks: {got:?}");
    }
    Ok(())
}

#[test]
fn broadcast_copies_the_tensor_of_the_root() -> Result<()> {
    for (size, kind) in SIZES.into_iter().flat_map(|size| KINDS.map(|kind| (size, kind))) {
        let root = size - 1;
        let got = on_ranks(size, |group, _| {
            let tensor = counting(group.rank() as i64 * 10, 2, kind);
            group.broadcast(&tensor, root)?.wait()?;
            Ok(values(&tensor))
        })?;
        let first = root as f64 * 10.0;
        assert!(got.iter().all(|values| *values == [first, first + 1.0]), "{size} ranks in {kind:?}: {got:?}");
    }
    Ok(())
}

#[test]
fn collectives_can_overlap_and_be_waited_for_out_of_order() -> Result<()> {
    let got = on_ranks(2, |group, _| {
        let options = (Kind::Float, Device::Cpu);
        let grad = Tensor::ones([1 << 20], options);
        let (first, second) = (Tensor::zeros([1 << 19], options), Tensor::zeros([1 << 19], options));
        let all = Tensor::zeros([2 << 20], options);
        let a = group.reduce_scatter_into(&first, &grad, Reduce::Sum)?;
        let b = group.all_gather_into(&all, &grad)?;
        let c = group.reduce_scatter_into(&second, &grad, Reduce::Avg)?;
        c.wait()?;
        b.wait()?;
        a.wait()?;
        Ok([&first, &all, &second].map(|tensor| tensor.mean(Kind::Double).double_value(&[])))
    })?;
    assert_eq!(got, [[2.0, 1.0, 1.0]; 2]);
    Ok(())
}

#[test]
fn two_groups_in_one_store_do_not_mix() -> Result<()> {
    let got = on_ranks(4, |world, store| {
        let pair = store.prefix(&format!("pair{}", world.rank() / 2));
        let pair = Group::gloo(&pair, world.rank() % 2, 2, TIMEOUT, Some("lo"))?;
        let tensor = Tensor::from_slice(&[world.rank() as f64]);
        pair.all_reduce(&tensor, Reduce::Sum)?.wait()?;
        Ok(tensor.double_value(&[0]))
    })?;
    assert_eq!(got, [1.0, 1.0, 5.0, 5.0]);
    Ok(())
}

#[test]
fn dropping_a_pending_waits_for_the_collective() -> Result<()> {
    let got = on_ranks(2, |group, _| {
        let tensor = Tensor::from_slice(&[1.0f32]);
        drop(group.all_reduce(&tensor, Reduce::Sum)?);
        Ok(tensor.double_value(&[0]))
    })?;
    assert_eq!(got, [2.0, 2.0]);
    Ok(())
}

#[test]
fn an_error_about_mismatched_sizes_shows_the_arithmetic() {
    let group = Group::alone();
    let (out, input) = (Tensor::zeros([3], (Kind::Float, Device::Cpu)), Tensor::zeros([2], (Kind::Float, Device::Cpu)));
    let error = group.all_gather_into(&out, &input).err().expect("3 is not 1 × 2");
    assert!(
        matches!(&error, Error::Argument { doing, .. } if doing.contains("[2]") && doing.contains("[3]")),
        "{error}"
    );
    let error = group.broadcast(&out, 1).err().expect("there is no rank 1");
    assert!(matches!(error, Error::Argument { .. }), "{error}");
    let error = group.all_reduce(&Tensor::zeros([2, 3], (Kind::Float, Device::Cpu)).tr(), Reduce::Sum);
    assert!(matches!(error, Err(Error::Argument { .. })), "a transposed tensor");
}

/// Splits two linear layers, the first by columns and the second by rows, between a norm and a residual that each rank computes for its
/// part of the tokens. Compares outputs and gradients with the whole ones.
#[test]
fn split_layers_between_parts_of_the_tokens_equal_whole_ones_forward_and_backward() -> Result<()> {
    let whole = |shape: &[i64], seed: f64| {
        (Tensor::arange(shape.iter().product::<i64>(), (Kind::Float, Device::Cpu)) * seed).sin().view(shape)
    };
    // Two samples of five tokens: every number of ranks needs padding.
    let tokens = 5;
    for size in SIZES {
        let errors = on_ranks(size, |group, _| {
            let (x, up, down) = (whole(&[2, tokens, 8], 0.7), whole(&[8, 8], 0.3), whole(&[8, 8], 0.5));
            let (gain, weights) = (whole(&[8], 0.9), whole(&[2, tokens, 8], 1.1));
            let leaf = |t: &Tensor| t.detach().set_requires_grad(true);
            let [x0, up0, down0, gain0] = [&x, &up, &down, &gain].map(leaf);
            let want = &x0 + (&x0 * &gain0).linear(&up0, None::<&Tensor>).tanh().linear(&down0, None::<&Tensor>);
            let leaves = [&x0, &up0, &down0, &gain0];
            let want_grads = Tensor::run_backward(&[(&want * &weights).sum(Kind::Float)], &leaves, false, false);

            let (rank, size) = (group.rank() as i64, size as i64);
            let mine = |t: &Tensor, dim: i64| t.narrow(dim, rank * 8 / size, 8 / size);
            let part_len = (tokens + size - 1) / size;
            let part = |t: &Tensor| {
                let missing = Tensor::zeros([2, part_len * size - tokens, 8], (Kind::Float, Device::Cpu));
                Tensor::cat(&[t, &missing], 1).narrow(1, rank * part_len, part_len)
            };
            let [x1, up1, down1, gain1] = [&part(&x), &mine(&up, 0), &mine(&down, 1), &gain].map(leaf);
            let normed = group.start_gather_tokens(&(&x1 * group.copy_to(&gain1)?), tokens)?.wait()?;
            let hidden = normed.linear(&up1, None::<&Tensor>).tanh();
            // The gathered units of all ranks, of which each rank uses its own; the graph then contains this gather too.
            let hidden = mine(&group.gather_from(&hidden)?, -1);
            let got = &x1 + group.start_reduce_tokens(&hidden.linear(&down1, None::<&Tensor>))?.wait()?;
            let leaves = [&x1, &up1, &down1, &gain1];
            let grads = Tensor::run_backward(&[(&got * part(&weights)).sum(Kind::Float)], &leaves, false, false);
            let off = |a: &Tensor, b: &Tensor| (a - b).abs().max().double_value(&[]);
            Ok([
                off(&got, &part(&want)),
                off(&grads[0], &part(&want_grads[0])),
                off(&grads[1], &mine(&want_grads[1], 0)),
                off(&grads[2], &mine(&want_grads[2], 1)),
                off(&grads[3], &want_grads[3]),
            ])
        })?;
        assert!(errors.iter().flatten().all(|e| *e < 1e-5), "{size} ranks: {errors:?}");
    }
    Ok(())
}

#[test]
fn two_exchanges_of_tokens_in_flight_have_their_own_results_and_gradients() -> Result<()> {
    for size in SIZES {
        let errors = on_ranks(size, |group, _| {
            let (rank, ranks) = (group.rank() as i64, size as i64);
            let whole = (Tensor::arange(4 * ranks * 3, (Kind::Float, Device::Cpu)) * 0.7).sin().view([1, 4 * ranks, 3]);
            let part = whole.narrow(1, rank * 4, 4).detach().set_requires_grad(true);
            let pieces = part.split(2, 1);
            let gathering: Vec<_> =
                pieces.iter().map(|piece| group.start_gather_tokens(piece, 2 * ranks)).collect::<Result<_>>()?;
            let gathered: Vec<Tensor> = gathering.into_iter().map(TokensInFlight::wait).collect::<Result<_>>()?;
            let reducing: Vec<_> =
                gathered.iter().map(|all| group.start_reduce_tokens(&all.square())).collect::<Result<_>>()?;
            let sums: Vec<Tensor> = reducing.into_iter().map(TokensInFlight::wait).collect::<Result<_>>()?;
            let got = Tensor::cat(&sums, 1);
            let want = part.detach().square() * ranks;
            let grad = Tensor::run_backward(&[got.sin().sum(Kind::Float)], &[&part], false, false).remove(0);
            // Every rank's square of a token is part of the sum, and has the gradient of the sum.
            let want_grad = want.cos() * 2.0 * part.detach() * ranks;
            let off = |a: &Tensor, b: &Tensor| (a - b).abs().max().double_value(&[]);
            // Rank 0 drops a collective without a wait. The other ranks still complete it.
            if rank == 0 {
                drop(group.start_gather_tokens(&part, 4 * ranks)?);
            } else {
                let _ = group.start_gather_tokens(&part, 4 * ranks)?.wait()?;
            }
            Ok([off(&got, &want), off(&grad, &want_grad)])
        })?;
        assert!(errors.iter().flatten().all(|e| *e < 1e-5), "{size} ranks: {errors:?}");
    }
    Ok(())
}

#[test]
fn the_record_of_collectives_has_those_that_are_complete_and_those_that_wait() -> Result<()> {
    let name = "a-group-that-only-this-test-has";
    on_ranks(2, |_, store| {
        let rank = store.add("next-rank", 1)? as usize - 1;
        let group = Group::gloo(&store.prefix(name), rank, 2, TIMEOUT, Some("lo"))?;
        let tensor = Tensor::ones([3], (Kind::Float, Device::Cpu));
        group.all_reduce(&tensor, Reduce::Sum)?.wait()?;
        if rank == 0 {
            let pending = group.all_reduce(&tensor, Reduce::Sum)?;
            store.get("compared")?;
            return pending.wait();
        }
        // Both ranks are threads of this process, so one record has the collectives of both.
        let done = |complete| -> Result<Vec<u64>> {
            let all = c10d::collectives::recent()?.into_iter();
            let own = all.filter(|one| one.group == name && one.complete == complete);
            Ok(own
                .inspect(|one| assert!(one.operation.contains("all_reduce"), "{one:?}"))
                .map(|one| one.number)
                .collect())
        };
        // A collective is retired a moment after its wait ends.
        let (complete, waiting) = loop {
            let both = (done(true)?, done(false)?);
            if (both.0.len(), both.1.len()) == (2, 1) {
                break both;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        store.set("compared", b"")?;
        group.all_reduce(&tensor, Reduce::Sum)?.wait()?;
        assert!(complete.iter().all(|number| *number < waiting[0]), "{complete:?} {waiting:?}");
        Ok(())
    })
    .map(drop)
}

#[test]
fn a_shorter_timeout_ends_the_collectives_that_start_later() -> Result<()> {
    // gloo reduces and scatters with sends and receives, which have another timeout than its collectives.
    let ones = |len: i64| Tensor::ones([len], (Kind::Float, Device::Cpu));
    type Collective<'a> = &'a (dyn Fn(&Group) -> Result<Pending> + Sync);
    let collectives: [(&str, Collective); 3] = [
        ("all-reduce", &|group| group.all_reduce(&ones(3), Reduce::Sum)),
        ("all-gather", &|group| group.all_gather_into(&ones(6), &ones(3))),
        ("reduce-scatter", &|group| group.reduce_scatter_into(&ones(3), &ones(6), Reduce::Sum)),
    ];
    for (name, collective) in collectives {
        let ended = on_ranks(2, |_, store| {
            let rank = store.add("next-rank", 1)? as usize - 1;
            let group = Group::gloo(&store.prefix("short"), rank, 2, TIMEOUT, Some("lo"))?;
            group.barrier()?;
            group.set_timeout(std::time::Duration::from_secs(1))?;
            if rank == 1 {
                store.get("timed out")?;
                return Ok(None);
            }
            let ended = collective(&group)?.wait();
            store.set("timed out", b"")?;
            Ok(Some(ended))
        })?;
        let ended = ended.into_iter().flatten().next().expect("one rank waited");
        let error = ended.expect_err(name);
        assert!(matches!(error, Error::Torch { .. }) && error.to_string().contains("1000ms"), "{name}: {error}");
    }
    Ok(())
}

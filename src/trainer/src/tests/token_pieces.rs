//! The order of exchanges of tokens and computations in a backward pass, from libtorch's trace.

use crate::families::cogvideox;
use crate::parallelize::{Sharded, unit_tables};
use crate::tests::support::{Rank, on_ranks, recipe};
use c10d::profile::Recording;
use dit::parallel::TokenCollectives;
use serde_json::Value;
use tch::{Device, Kind, Tensor};

/// Returns the nodes of the backward pass of `run` on one of two ranks, in the order in which they ran: `W` starts an exchange (the backward
/// pass of a wait), `S` waits for it (that of a start), and `M` is the matrix product of a piece.
fn backward_order(run: impl Fn(&TokenCollectives<'_>, &Tensor, &Tensor) -> Tensor + Sync) -> String {
    let recipe = recipe([1, 1, 2], &["train.tp_pieces=3", "train.threads=1"]);
    let folder = tempfile::tempdir().unwrap();
    on_ranks(recipe.mesh, |groups| {
        let first = groups.tp.rank() == 0;
        let mut rank = Rank::new(&recipe, unit_tables(&recipe), cogvideox(&recipe).family(), groups);
        let tp = Sharded(&mut rank.fsdp);
        let leaf = |size: &[i64]| Tensor::ones(size, (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let (x, weight) = (leaf(&[1, 7, 4]), leaf(&[4, 4]));
        let out = run(&TokenCollectives::new(&tp, true), &x, &weight);
        let recording = first.then(|| Recording::begin(false).unwrap());
        let _ = Tensor::run_backward(&[out.sum(Kind::Float)], &[&x, &weight], false, false);
        if let Some(recording) = recording {
            recording.end(&folder.path().join("trace.json")).unwrap();
        }
    });
    let trace: Value = serde_json::from_slice(&std::fs::read(folder.path().join("trace.json")).unwrap()).unwrap();
    let nodes = trace["traceEvents"].as_array().unwrap().iter().filter_map(|event| {
        let name = event["name"].as_str()?.strip_prefix("autograd::engine::evaluate_function: ")?;
        let kinds = [("WaitForTokens", 'W'), ("StartTokens", 'S'), ("MmBackward", 'M')];
        let (_, letter) = kinds.into_iter().find(|(part, _)| name.contains(part))?;
        Some((event["ts"].as_f64()?, letter))
    });
    let mut nodes: Vec<_> = nodes.collect();
    nodes.sort_by(|a, b| a.0.total_cmp(&b.0));
    nodes.into_iter().map(|(_, letter)| letter).collect()
}

fn product(x: &Tensor, weight: &Tensor) -> Tensor {
    x.view([-1, 4]).mm(weight).view([1, -1, 4])
}

/// The first product of a gather has no exchange beside it, nor has the last one of a reduction; all others have.
#[test]
fn pieces_overlap_in_the_backward_pass_as_in_the_forward_pass() {
    let both = backward_order(|tokens, x, w| tokens.gather_and_reduce(x, 14, |all| product(all, w)).unwrap());
    assert_eq!(both, "WWSMWWSMWSSMWSS");
    let gather = backward_order(|tokens, x, w| {
        let [all] = tokens.gather(x, 14, Tensor::shallow_clone, |all| [product(all, w)]).unwrap();
        all
    });
    assert_eq!(gather, "MWMWSMWSS");
    let reduce = backward_order(|tokens, x, w| {
        let all = Tensor::cat(&[x, x], 1);
        tokens.reduce(&all, Tensor::shallow_clone, |all| product(all, w)).unwrap()
    });
    assert_eq!(reduce, "WWSMWSMSM");
}

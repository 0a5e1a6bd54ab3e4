//! Tests of the failures that ranks record when an operator of libtorch fails in one of them.

use crate::harness::{NODE, Scene};
use crate::operator_faults;
use cluster::NodeId;
use rundir::{Cause, ErrorCode, Failure};

const SETS: [&str; 4] = ["train.steps=100000", "train.global_batch=4", "checkpoint.interval=0", "train.dtype=bfloat16"];

/// Makes an operator of rank 1 fail, and returns the failures of rank 0 and of rank 1.
fn failures(scene: &Scene, name: &str, mesh: [usize; 3], kind: &str) -> Option<[Failure; 2]> {
    let env = operator_faults::environment(scene.path.as_std_path(), kind, 1, 2)?;
    let (run, outputs) = scene.launch_with(env, name, &mesh, &SETS).wait();
    assert!(outputs.iter().all(|output| !output.status.success()), "{kind} on {mesh:?} ended no rank");
    let node = NodeId::new(NODE).unwrap();
    let of = |rank: usize| {
        let recorded = run.dir.read_rank_failure(&node, 1, rank);
        recorded.unwrap_or_else(|| panic!("rank {rank}, {kind}: {}", String::from_utf8_lossy(&outputs[rank].stderr)))
    };
    Some([of(0), of(1)])
}

#[test]
fn the_failure_of_a_rank_has_the_kind_of_its_exception_and_the_others_lose_contact() {
    let scene = Scene::new();
    let cases = [
        ("ecc", ErrorCode::DeviceFailed, "uncorrectable ECC error", "nvidia-smi -q -d ECC"),
        ("address", ErrorCode::DeviceFailed, "illegal memory access", "Xid"),
        ("memory", ErrorCode::OutOfMemory, "Tried to allocate 2.00 GiB", "--set"),
        ("shape", ErrorCode::Internal, "must match the size of tensor b", "log"),
        // Only the type of an exception decides, not its text.
        ("text", ErrorCode::Internal, "uncorrectable ECC error", "log"),
    ];
    for (mesh, shards) in [([1, 2, 1], "fsdp"), ([1, 1, 2], "tp")] {
        for (kind, code, why, fix) in cases {
            let Some([other, own]) = failures(&scene, &format!("{kind}-{shards}"), mesh, kind) else { return };
            assert_eq!((own.code, &own.cause), (code, &Cause::Root), "{kind} on {mesh:?}: {own}");
            assert!(own.why.contains(why) && own.fix.contains(fix), "{kind} on {mesh:?}: {own}");
            assert_eq!((other.code, other.cause.is_peer()), (ErrorCode::PeerLost, true), "{kind} on {mesh:?}: {other}");
        }
        let Some([other, own]) = failures(&scene, &format!("network-{shards}"), mesh, "network") else { return };
        assert!(own.cause.is_peer() && other.cause.is_peer(), "{own}\n{other}");
    }
}

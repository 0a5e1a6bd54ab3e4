//! Training of Wan: the same results on every mesh, and after a resume.

use crate::harness::{Scene, assert_close, latest, losses};
use rundir::EventKind;

#[test]
fn wan_gives_the_same_losses_on_every_mesh() {
    let scene = Scene::of_wan();
    let sets = ["train.steps=20", "train.global_batch=4", "checkpoint.interval=0", "optimizer.lr=1e-3"];
    let want = losses(&scene.launch("one", &[1, 1], &sets).finish());
    assert_eq!(want.len(), 20);
    assert!(want[15..].iter().sum::<f64>() < want[..5].iter().sum::<f64>(), "it learns: {want:?}");
    for mesh in [&[1, 2][..], &[2, 1], &[1, 1, 2], &[1, 2, 2]] {
        let run = scene.launch(&format!("mesh-{}", mesh.iter().product::<usize>()), mesh, &sets).finish();
        assert_close(&losses(&run), &want, 1e-4, &format!("mesh {mesh:?}"));
    }
}

#[test]
fn adapters_and_an_average_of_wan_resume_on_another_mesh() {
    let scene = Scene::of_wan();
    let adapters = ["train.trainable=lora", "lora.rank=4", "lora.targets=[\"attention\", \"feed_forward\"]"];
    let sets = [
        "train.steps=8",
        "train.global_batch=4",
        "checkpoint.interval=4",
        "ema.decay=0.9",
        "optimizer.schedule=constant",
    ];
    let sets = [&sets[..], &adapters].concat();
    let whole = scene.launch("whole", &[1, 1], &sets).finish();
    let mut halves = scene.launch("halves", &[1, 2, 2], &[&sets[..], &["train.steps=4"]].concat()).finish();
    let checkpoint = latest(&halves.dir).unwrap();
    assert_eq!(checkpoint.step, 4);
    halves.train_on_to(8);
    let resumed = halves.resume(&[1, 2]).finish();
    assert!(resumed.events().iter().any(|event| matches!(event.kind, EventKind::Resumed { from_step: 4, .. })));
    assert_close(&losses(&resumed), &losses(&whole), 1e-4, "a resume on another mesh");
}

#[test]
fn objectives_of_wan_train_in_bf16_and_within_a_range_of_noise_levels() {
    let scene = Scene::of_wan();
    let sets = ["train.steps=2", "train.dtype=bfloat16", "checkpoint.interval=0"];
    for objective in [
        &["objective.levels=logit_normal", "objective.shift=3"][..],
        &["objective.levels=steps", "objective.weighting=bell"],
        &["objective.min_level=0.875"],
        &["objective.max_level=0.875", "remat.mode=none"],
    ] {
        let name = objective[0].replace(['.', '=', '_'], "-");
        let losses = losses(&scene.launch(&name, &[1, 2], &[&sets[..], objective].concat()).finish());
        assert!(losses.iter().all(|loss| loss.is_finite() && *loss > 0.0), "{objective:?}: {losses:?}");
    }
}

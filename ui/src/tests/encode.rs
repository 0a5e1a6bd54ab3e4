//! Snapshots of the Run screen of an encode.

use super::screens::picture;
use crate::fixtures::*;
use crate::*;
use recipe::Task;
use rundir::{
    EncodeStageCount, EncodeStages, ErrorCode, EventKind, Failure, ItemCounts, ItemsSample, MetricSample, NodePoint,
    Spread,
};
use runstate::{EncodeStageProgress, RunState};

/// The clips and captions stored after `second` seconds: captions first, then 20 clips per second.
fn counts(second: u64) -> ItemCounts {
    let passed = (20 * second.saturating_sub(40)).min(9_849);
    let failed = passed / 900;
    ItemCounts {
        clips_done: passed - failed,
        clips: 9_849,
        texts_done: (110 * second).min(4_210),
        texts: 4_210,
        failed,
    }
}

/// The line of `metrics.jsonl` of a second.
fn line(second: u64) -> MetricSample {
    let counts = counts(second);
    let passed = counts.clips_done + counts.failed;
    let is_done = passed == counts.clips;
    let ahead = |by: u64| (passed + by).min(counts.clips);
    let queue = |waiting: u64| if is_done { 0 } else { waiting };
    let of = |items, bytes, waiting| EncodeStageCount {
        items,
        bytes: items * bytes,
        waiting,
        ..EncodeStageCount::default()
    };
    let wave = second * 7 % 5;
    let stages = EncodeStages {
        probe: of(ahead(40), 0, 0),
        decode: EncodeStageCount {
            failed: counts.failed,
            ..of(ahead(12 + wave) - counts.failed, 50_803_200, queue(24 - 2 * wave))
        },
        vae: of(counts.clips_done, 2_246_400, queue(12 + wave)),
        text: of(counts.texts_done, 1_851_392, 0),
    };
    let clips_per_s = if second > 40 && !is_done { 20.0 + wave as f64 - 2.0 } else { 0.0 };
    let per_s = EncodeStages {
        probe: clips_per_s * 1.05,
        decode: clips_per_s,
        vae: clips_per_s,
        text: if second < 39 { 110.0 } else { 0.0 },
    };
    MetricSample {
        attempt: 1,
        step: counts.done(),
        t: NOW - 110.0 + second as f64,
        mem_gib_by_rank: vec![4.1 + 0.1 * wave as f64, 4.3],
        items: Some(ItemsSample { counts, stages, per_s, ranks: 2 }),
        ..MetricSample::default()
    }
}

/// The progress of the stages, as the shell derives it from the metrics.
fn progress(items: &ItemsSample) -> EncodeStages<EncodeStageProgress> {
    let ItemCounts { clips, failed, texts, .. } = items.counts;
    let all = EncodeStages { probe: clips, decode: clips, vae: clips - failed, text: texts };
    let left = items.stages.zip(all, |count, all| (count, all - count.items - count.failed));
    left.zip(items.per_s, |(count, left), per_s| {
        let per_s = Some(per_s).filter(|per_s| *per_s > 0.0);
        EncodeStageProgress { count, left, per_s, eta_s: per_s.map(|per_s| left as f64 / per_s) }
    })
}

/// The row of an encode after `seconds`; no items are counted at 0.
fn encode(state: RunState, seconds: u64) -> RunRow {
    let counts = Some(counts(seconds)).filter(|_| seconds > 0);
    let stages = counts.and_then(|_| line(seconds).items).map(|items| progress(&items));
    RunRow {
        curriculum: None,
        stage: None,
        steps_total: counts.map_or(0, |counts| counts.total()),
        step: counts.map_or(0, |counts| counts.done()),
        loss: None,
        eta_s: stages.and_then(|stages| stages.vae.eta_s),
        checkpoint_step: None,
        task: Task::Encode,
        items: counts,
        stages,
        ..row(id("2026-11-20T0358-encode-data-m3xq"), "", state, 0)
    }
}

/// The Run screen of an encode after `seconds`.
fn on_encode(state: RunState, seconds: u64) -> Ui {
    let mut ui = Ui::on_empty_run(encode(state, seconds));
    ui.run_msg(RunMsg::Metrics((1..=seconds).map(line).collect()));
    let damaged = Failure::new(
        ErrorCode::Malformed,
        "cannot decode videos/kite-0031.mp4",
        "ffmpeg reports 3 errors; the first is: Invalid NAL unit size (1245 > 402)",
        "copy it again from its source",
    );
    let mut events = vec![event(109.0, None, EventKind::Started { world: 2 })];
    if seconds > 85 {
        events.push(event(24.0, None, EventKind::ItemFailed { item: "kite-0031.mp4".into(), failure: damaged }));
    }
    ui.run_msg(RunMsg::Events(events));
    ui.run_msg(RunMsg::Checkpoints(vec![]));
    ui.run_msg(RunMsg::Samples(vec![]));
    ui
}

/// The power and memory of two nodes with GPUs.
fn power(second: u64) -> NodePoint {
    let spread = |mean: f64| Some(Spread { mean, min: mean * 0.9, max: mean * 1.1, of_several: true });
    NodePoint {
        t: NOW - 110.0 + second as f64,
        power_w: spread(if second > 40 { 610.0 } else { 240.0 }),
        gpu_mem_gib: spread(31.0),
        temp_c: None,
        cpu_pct: spread(70.0),
        mem_gib: spread(40.0),
        ..NodePoint::default()
    }
}

#[test]
fn an_encode_that_starts() {
    let mut ui = Ui::on_empty_run(encode(RunState::Starting, 0));
    ui.run_msg(RunMsg::Checkpoints(vec![]));
    picture("encode_starting", ui);
}

#[test]
fn an_encode_of_captions() {
    picture("encode_captions", on_encode(RunState::Running, 20));
}

#[test]
fn an_encode_of_clips() {
    picture("encode", on_encode(RunState::Running, 100));
}

#[test]
fn an_encode_on_nodes_with_gpus() {
    let mut ui = on_encode(RunState::Running, 100);
    ui.run_msg(RunMsg::NodePoints((0..=100).map(power).collect()));
    picture("encode_nodes", ui);
}

#[test]
fn a_chart_of_an_encode_enlarged() {
    let mut ui = on_encode(RunState::Running, 100);
    ui.press("Tab z Left");
    picture("encode_queue", ui);
}

#[test]
fn an_encode_that_was_stopped() {
    picture("encode_stopped", on_encode(RunState::Stopped, 100));
}

#[test]
fn an_encode_that_has_finished() {
    picture("encode_finished", on_encode(RunState::Finished, 540));
}

#[test]
fn an_encode_that_failed() {
    let full = Failure::new(
        ErrorCode::DiskFull,
        "cannot write /data/videos/latents-00003-of-m3xq.safetensors",
        "no space left on device (os error 28)",
        "free at least 2 GB on /data, then resume the run",
    );
    let mut ui = on_encode(RunState::Failed(full.clone()), 100);
    ui.run_msg(RunMsg::Events(vec![event(9.0, None, EventKind::Failed { failure: full })]));
    picture("encode_failed", ui);
}

#[test]
fn an_encode_among_other_runs() {
    let mut rows = many_runs().rows;
    rows.truncate(2);
    rows.push(encode(RunState::Running, 100));
    let mut ui = Ui::with_runs(rows);
    ui.press("G");
    picture("runs_encode", ui);
}

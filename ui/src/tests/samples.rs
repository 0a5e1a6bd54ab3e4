//! Tests of the Samples screen and of the Samples panel on the Run screen: which clips they request, and what they
//! show.

use crate::fixtures::*;
use crate::*;
use recipe::Task;
use rundir::{ErrorCode, EventKind, Failure, MetricSample, SampleFolder, SamplingProgress};
use runstate::RunState;

/// The Samples screen of a run with two prompts, sampled at three steps.
pub(super) fn on_samples() -> Ui {
    let mut ui = trained_with_samples();
    ui.press("v");
    ui
}

/// The Run screen of the same run.
fn trained_with_samples() -> Ui {
    let mut ui = Ui::on_run(running(83));
    let all = [20, 40, 80].into_iter().flat_map(|step| {
        ["a white rabbit leaves its burrow and stretches in the morning sun", "a butterfly over a meadow"]
            .into_iter()
            .enumerate()
            .map(move |(index, prompt)| video_sample(step, index, prompt))
    });
    ui.run_msg(RunMsg::Samples(all.collect()));
    ui
}

/// The Run screen of a sampling run that makes three videos with 30 sampling steps each.
fn on_sampling(state: RunState, videos: usize) -> Ui {
    let steps = (30 * videos as u64 + 14).min(90);
    let line = |step: u64| MetricSample {
        attempt: 1,
        step,
        t: NOW - 60.0 + step as f64 * 0.8,
        step_s: 0.8 + 0.02 * (step % 3) as f64,
        sampling: Some(SamplingProgress { videos: (step / 30) as usize, videos_total: 3 }),
        ..MetricSample::default()
    };
    let mut ui = Ui::on_empty_run(RunRow {
        step: steps,
        steps_total: 90,
        eta_s: Some((90 - steps) as f64 * 0.8).filter(|_| state == RunState::Running),
        step_s: Some(0.8),
        videos: Some(SamplingProgress { videos, videos_total: 3 }),
        ..sampling(state)
    });
    ui.run_msg(RunMsg::Metrics((1..=steps).map(line).collect()));
    let prompts = ["a rabbit on a meadow", "a red kite in the wind", "a boat on a calm lake at dawn"];
    let made = prompts.into_iter().enumerate().take(videos);
    ui.run_msg(RunMsg::Samples(made.map(|(index, prompt)| video_sample(240, index, prompt)).collect()));
    let path = |index| format!("/home/ada/vidtui/runs/x/samples/step-00000240/{index:03}.mp4").into();
    let saved = |index| event(30.0, None, EventKind::SampleSaved { path: path(index), seconds: 24.2 });
    let started = event(64.0, None, EventKind::Started { world: 2 });
    ui.run_msg(RunMsg::Events([started].into_iter().chain((0..videos).map(saved)).collect()));
    ui.run_msg(RunMsg::Checkpoints(vec![]));
    ui
}

/// The row of a sampling run that has not made anything yet.
fn sampling(state: RunState) -> RunRow {
    RunRow {
        curriculum: None,
        stage: None,
        steps_total: 0,
        checkpoint_step: None,
        lineage: Some(rundir::Lineage { run: stage_1(), step: 240 }),
        task: Task::Sample,
        ..row(id("2026-11-20T0358-sample-7hq2"), "", state, 0)
    }
}

/// The clips that the screen requests: step, prompt and size.
fn requested(ui: &Ui) -> Vec<(u64, usize, Size)> {
    let clips = watches(&ui.model).into_iter();
    let clip =
        |watch| if let Watch::Clip { step, prompt, size, .. } = watch { Some((step, prompt, size)) } else { None };
    clips.filter_map(clip).collect()
}

/// Answers every request with a clip of three frames that is smaller than requested.
pub(super) fn answer(ui: &mut Ui) {
    for (step, prompt, size) in requested(ui) {
        let made = Size { width: size.width.min(20), height: size.height.min(6) };
        ui.run_msg(RunMsg::Clip { step, prompt, size, clip: Ok(clip(made, 3)) });
    }
}

fn picture(name: &str, ui: &mut Ui) {
    for (width, height) in [(80, 24), (160, 48)] {
        ui.resize(width, height);
        answer(ui);
        insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!(format!("{name}_{width}x{height}"), ui.screen());
        });
    }
}

#[test]
fn the_newest_sample_is_shown() {
    picture("samples", &mut on_samples());
}

#[test]
fn the_same_prompt_over_steps_is_shown_side_by_side() {
    let mut ui = on_samples();
    ui.press("b");
    picture("samples_side_by_side", &mut ui);
}

#[test]
fn a_run_without_samples_shows_how_to_make_some() {
    let mut ui = Ui::on_run(running(83));
    ui.run_msg(RunMsg::Samples(vec![]));
    ui.press("v");
    picture("samples_none", &mut ui);
}

#[test]
fn a_video_that_cannot_be_shown_shows_why() {
    let mut ui = on_samples();
    let [(step, prompt, size)] = requested(&ui)[..] else { panic!("one clip is shown") };
    ui.run_msg(RunMsg::Clip { step, prompt, size, clip: Err(failure()) });
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("samples_unreadable_80x24", ui.screen());
    });
    ui.resize(160, 48);
    let [(step, prompt, size)] = requested(&ui)[..] else { panic!("one clip is shown") };
    ui.run_msg(RunMsg::Clip { step, prompt, size, clip: Err(failure()) });
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("samples_unreadable_160x48", ui.screen());
    });
}

#[test]
fn the_samples_screen_while_samples_load() {
    let mut ui = Ui::on_run(running(83));
    ui.press("v");
    picture("samples_loading", &mut ui);
}

#[test]
fn a_wide_run_screen_shows_the_newest_sample_beside_the_charts() {
    picture("run_with_samples", &mut trained_with_samples());
}

#[test]
fn a_video_beside_the_charts_that_cannot_be_shown_shows_why() {
    let mut ui = trained_with_samples();
    ui.resize(160, 48);
    let [(step, prompt, size)] = requested(&ui)[..] else { panic!("one clip is shown") };
    ui.run_msg(RunMsg::Clip { step, prompt, size, clip: Err(failure()) });
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("run_with_an_unreadable_sample_160x48", ui.screen());
    });
}

#[test]
fn a_run_that_samples_before_its_first_video() {
    let mut ui = Ui::on_empty_run(sampling(RunState::Starting));
    ui.run_msg(RunMsg::Samples(vec![]));
    picture("sample_starting", &mut ui);
}

#[test]
fn a_run_that_samples_shows_its_videos() {
    picture("sample", &mut on_sampling(RunState::Running, 1));
}

#[test]
fn a_run_that_has_sampled() {
    picture("sample_finished", &mut on_sampling(RunState::Finished, 3));
}

#[test]
fn a_run_that_failed_to_sample() {
    let lost = Failure::new(
        ErrorCode::RankFailed,
        "rank 1 was killed by SIGKILL",
        "the log of rank 1 ends without an error",
        "look for the out-of-memory killer in the kernel's log of devbox: dmesg",
    );
    picture("sample_failed", &mut on_sampling(RunState::Failed(lost), 1));
}

#[test]
fn keys_choose_step_and_prompt_and_the_newest_is_followed() {
    let mut ui = on_samples();
    let shown = |ui: &Ui| requested(ui).iter().map(|(step, prompt, _)| (*step, *prompt)).collect::<Vec<_>>();
    assert_eq!(shown(&ui), [(80, 0)]);
    ui.press("Left");
    assert_eq!(shown(&ui), [(40, 0)]);
    ui.press("Left Left j");
    assert_eq!(shown(&ui), [(20, 1)]);
    ui.press("b Right");
    assert_eq!(shown(&ui), [(20, 1), (40, 1)]);
    ui.press("b G");
    let more = [20, 40, 80, 120].map(|step| video_sample(step, 1, "a butterfly over a meadow"));
    ui.run_msg(RunMsg::Samples(more.to_vec()));
    assert_eq!(shown(&ui), [(120, 1)]);
    ui.press("Esc");
    assert_eq!((ui.model.screen, shown(&ui)), (Screen::Run, vec![]));
}

#[test]
fn frames_are_requested_only_while_a_video_moves() {
    let frames = |ui: &Ui| watches(&ui.model).iter().any(|watch| matches!(watch, Watch::Frames { every_ms: 125, .. }));
    let mut ui = on_samples();
    assert!(!frames(&ui), "no clip yet");
    answer(&mut ui);
    assert!(frames(&ui));
    ui.press("Space");
    assert!(!frames(&ui), "paused");
    ui.press("Space");
    assert!(frames(&ui));
    let before = ui.screen();
    ui.run_msg(RunMsg::NextFrame);
    assert_ne!(before, ui.screen());
    ui.press("Esc");
    assert!(!frames(&ui), "another screen");
}

#[test]
fn a_video_is_opened_on_a_desktop_and_its_path_copied_elsewhere() {
    let mut ui = on_samples();
    let video = "/home/ada/vidtui/runs/2026-11-20T0340-demo-2s-k7f2/samples/step-00000080/000.mp4";
    assert!(matches!(&ui.press("o")[..], [Effect::Copy(path)] if path == video));
    ui.model.has_desktop = true;
    assert!(matches!(&ui.press("o")[..], [Effect::OpenFile(path)] if path == video));
}

#[test]
fn a_video_in_a_folder_of_the_user_is_opened_there() {
    let mut ui = on_sampling(RunState::Finished, 3);
    let mut status = status(sampling(RunState::Finished));
    status.samples = Some(SampleFolder::Named { folder: "/home/ada/videos".into(), prompts: 3 });
    ui.run_msg(RunMsg::State(status));
    ui.press("v");
    assert!(matches!(&ui.press("o")[..], [Effect::Copy(path)] if path == "/home/ada/videos/000.mp4"));
}

#[test]
fn the_steps_with_a_sample_are_listed_a_page_at_a_time() {
    let mut ui = on_samples();
    let row = |ui: &Ui| ui.screen().lines().find(|line| line.trim_start().starts_with("step  ")).map(str::to_owned);
    assert_eq!(row(&ui).as_deref().map(str::trim), Some("step  20   40  ▸80"));
    let all = (1..=100).map(|step| video_sample(step, 0, "a butterfly over a meadow"));
    ui.run_msg(RunMsg::Samples(all.collect()));
    let shown = row(&ui).unwrap();
    assert!(shown.contains("▸100") && !shown.contains(" 50 "), "{shown}");
    ui.press("g");
    let shown = ui.screen();
    assert!(shown.contains("step ▸1 ") && !shown.contains("100 "), "{shown}");
    ui.run_msg(RunMsg::Samples(vec![video_sample(20, 0, "a butterfly over a meadow")]));
    assert_eq!(row(&ui), None, "one step needs no list");
}

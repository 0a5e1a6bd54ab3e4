//! Tests of the Samples screen: the videos that it requests, and its content.

use crate::fixtures::*;
use crate::*;

/// The Samples screen of a run with two prompts, sampled at three steps.
fn on_samples() -> Ui {
    let mut ui = Ui::on_run(running(83));
    let all = [20, 40, 80].into_iter().flat_map(|step| {
        ["a white rabbit leaves its burrow and stretches in the morning sun", "a butterfly over a meadow"]
            .into_iter()
            .enumerate()
            .map(move |(index, prompt)| video_sample(step, index, prompt))
    });
    ui.run_msg(RunMsg::Samples(all.collect()));
    ui.press("v");
    ui
}

/// The clips that the screen requests: step, prompt, size.
fn requested(ui: &Ui) -> Vec<(u64, usize, Size)> {
    let clips = watches(&ui.model).into_iter();
    let clip =
        |watch| if let Watch::Clip { step, prompt, size, .. } = watch { Some((step, prompt, size)) } else { None };
    clips.filter_map(clip).collect()
}

/// Answers every request with a clip of three frames in a smaller size.
fn answer(ui: &mut Ui) {
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

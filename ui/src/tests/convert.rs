//! Tests of the Convert screen: options, previews, progress and cancellation.

use crate::fixtures::*;
use crate::model::Preview;
use crate::*;

fn job_of(effects: &[Effect]) -> JobId {
    match effects {
        [
            Effect::Job { job, request: Request::PlanConvert { .. } }
            | Effect::Job { job, request: Request::Convert { .. } },
        ] => *job,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_source_gets_a_target_beside_it_which_follows_the_form_until_it_is_changed() {
    let mut ui = Ui::new();
    ui.press("4 Enter");
    ui.type_in("/models/cog");
    ui.press("Enter");
    assert_eq!(ui.model.screens.convert.options.target, "/models/cog-internal");
    ui.press("Down Down Right");
    assert_eq!(ui.model.screens.convert.options.to, ConvertForm::Diffusers);
    assert_eq!(ui.model.screens.convert.options.target, "/models/cog-diffusers");
    ui.press("Up Enter Left Right");
    ui.type_in("2");
    ui.press("Enter Down Left");
    assert_eq!(ui.model.screens.convert.options.target, "/models/cog-diffusers2");
}

#[test]
fn the_first_key_replaces_the_proposed_target_but_not_a_chosen_one() {
    let mut ui = Ui::new();
    ui.press("4 Enter");
    ui.type_in("n3eg");
    ui.press("Enter Down Enter");
    insta::assert_snapshot!("convert_with_a_proposed_target_80x24", ui.screen());
    ui.type_in("out");
    ui.press("Enter");
    assert_eq!(ui.model.screens.convert.options.target, "out");
    ui.press("Enter");
    ui.type_in("2");
    let effects = ui.press("Enter");
    let [Effect::Job { request: Request::PlanConvert { options }, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((options.source.as_str(), options.target.as_str()), ("n3eg", "out2"));
    ui.resize(160, 48);
    insta::assert_snapshot!("convert_of_a_run_160x48", ui.screen());
}

#[test]
fn the_shown_preview_is_the_one_that_is_executed() {
    let shown = convert_preview();
    let mut ui = Ui::on_convert(shown.clone());
    let effects = ui.press("C");
    let [Effect::Job { request: Request::Convert { preview, .. }, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*preview, shown);
    assert!(ui.press("C").is_empty(), "one conversion at a time");
}

#[test]
fn an_answer_to_an_earlier_request_is_ignored() {
    let mut ui = Ui::on_convert(convert_preview());
    let first = job_of(&ui.press("Down Down Down Right"));
    let second = job_of(&ui.press("Right"));
    ui.answer(first, JobMsg::ConvertPlanned(convert_preview()));
    assert!(matches!(ui.model.screens.convert.preview, Preview::Requested(job) if job == second));
    assert!(ui.press("C").is_empty(), "the options have changed since the preview");
}

#[test]
fn an_impossible_conversion_is_not_executed() {
    let mut preview = convert_preview();
    preview.refusal = Some(failure());
    assert!(Ui::on_convert(preview).press("C").is_empty());
}

#[test]
fn an_existing_target_is_replaced_only_after_a_preview_with_permission() {
    let mut preview = convert_preview();
    (preview.refusal, preview.in_the_way) = (Some(failure()), true);
    let mut ui = Ui::on_convert(preview.clone());
    insta::assert_snapshot!("convert_with_an_existing_target_80x24", ui.screen());
    let effects = ui.press("!");
    let [Effect::Job { job, request: Request::PlanConvert { options } }] = &effects[..] else { panic!("{effects:?}") };
    assert!(options.replace);
    assert!(ui.press("C").is_empty(), "the preview is shown first");
    (preview.refusal, preview.options) = (None, options.clone());
    ui.answer(*job, JobMsg::ConvertPlanned(preview));
    insta::assert_snapshot!("convert_that_replaces_the_target_80x24", ui.screen());
    let job = job_of(&ui.press("C"));
    ui.answer(job, JobMsg::Done(Outcome::Converted("/x".into())));
    assert!(!ui.model.screens.convert.options.replace, "the permission applies to one conversion only");
    assert!(ui.press("C").is_empty(), "the conversion has finished");
}

#[test]
fn the_permission_to_replace_one_folder_does_not_apply_to_another() {
    let mut preview = convert_preview();
    preview.in_the_way = true;
    let mut ui = Ui::on_convert(preview);
    ui.press("! Down Enter Left Right");
    ui.type_in("2");
    let effects = ui.press("Enter");
    let [Effect::Job { request: Request::PlanConvert { options, .. }, .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert!(options.target.as_str().ends_with("-internal2") && !options.replace);
    assert!(Ui::on_convert(convert_preview()).press("!").is_empty(), "there is no existing conversion");
}

#[test]
fn an_adapter_to_merge_can_be_set_and_removed() {
    let mut ui = Ui::on_convert(convert_preview());
    ui.press("G Enter");
    ui.type_in("/loras/style");
    let effects = ui.press("Enter");
    let [Effect::Job { request: Request::PlanConvert { options, .. }, .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(options.merge.as_deref().map(|path| path.as_str()), Some("/loras/style"));
    ui.press("Enter");
    "/loras/style".chars().for_each(|_| drop(ui.press("Backspace")));
    ui.press("Enter");
    assert_eq!(ui.model.screens.convert.options.merge, None);
}

#[test]
fn a_cancelled_conversion_clears_the_screen() {
    let mut ui = Ui::on_convert(convert_preview());
    let job = job_of(&ui.press("C"));
    let effects = ui.press("X");
    assert!(matches!(effects[..], [Effect::StopJob(stopped)] if stopped == job));
    assert!(ui.model.screens.convert.work.as_ref().unwrap().stopping);
    ui.answer(job, JobMsg::Done(Outcome::ConvertStopped("/x".into())));
    assert!(ui.model.screens.convert.work.is_none());
    assert!(ui.model.notice.as_ref().is_some_and(|notice| !notice.is_warning));
}

#[test]
fn after_a_failed_conversion_another_can_start() {
    let mut ui = Ui::on_convert(convert_preview());
    let job = job_of(&ui.press("C"));
    ui.answer(job, JobMsg::Failed(failure()));
    assert!(ui.model.screens.convert.work.is_none() && ui.model.modal.is_some());
}

#[test]
fn the_end_of_a_typed_path_is_always_visible() {
    let mut ui = Ui::new();
    ui.press("4 Enter");
    ui.type_in(&"/mnt/shared/models/of/a/long/name/".repeat(3));
    ui.type_in("THE-END");
    for width in [80, 40] {
        ui.resize(width, 24);
        let screen = ui.screen();
        assert!(screen.contains("…") && screen.contains("THE-END▏"), "{screen}");
    }
}

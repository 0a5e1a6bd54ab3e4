//! The Convert screen: what is shown is what is asked for, and what is asked for can be stopped.

use crate::fixtures::*;
use crate::model::Preview;
use crate::*;

fn job_of(effects: &[Effect]) -> JobId {
    match effects {
        [Effect::PlanConvert { job, .. } | Effect::Convert { job, .. }] => *job,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_source_gets_a_target_beside_it_which_follows_the_form_until_it_is_changed() {
    let mut ui = Ui::new();
    ui.press("4 Enter");
    ui.type_in("/models/cog");
    ui.press("Enter");
    assert_eq!(ui.model.convert.options.target, "/models/cog-internal");
    ui.press("Down Down Right");
    assert_eq!(ui.model.convert.options.to, ConvertForm::Diffusers);
    assert_eq!(ui.model.convert.options.target, "/models/cog-diffusers");
    ui.press("Up Enter");
    ui.type_in("2");
    ui.press("Enter Down Left");
    assert_eq!(ui.model.convert.options.target, "/models/cog-diffusers2");
}

#[test]
fn what_is_shown_is_what_is_carried_out() {
    let shown = convert_preview();
    let mut ui = Ui::on_convert(shown.clone());
    let effects = ui.press("c");
    let [Effect::Convert { preview, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*preview, shown);
    assert!(ui.press("c").is_empty(), "one at a time");
}

#[test]
fn an_answer_to_an_earlier_wish_is_not_shown() {
    let mut ui = Ui::on_convert(convert_preview());
    let first = job_of(&ui.press("Down Down Down Right"));
    let second = job_of(&ui.press("Right"));
    ui.answer(first, JobMsg::ConvertPlanned(convert_preview()));
    assert!(matches!(ui.model.convert.preview, Preview::Requested(job) if job == second));
    assert!(ui.press("c").is_empty(), "what is shown no longer is what is wished for");
}

#[test]
fn a_preview_that_would_be_refused_is_not_carried_out() {
    let mut preview = convert_preview();
    preview.refusal = Some(failure());
    assert!(Ui::on_convert(preview).press("c").is_empty());
}

#[test]
fn what_is_in_the_way_is_replaced_only_when_somebody_has_said_so_and_seen_it() {
    let mut preview = convert_preview();
    (preview.refusal, preview.in_the_way) = (Some(failure()), true);
    let mut ui = Ui::on_convert(preview.clone());
    assert!(ui.screen().contains("r replace it"), "{}", ui.screen());
    let effects = ui.press("r");
    let [Effect::PlanConvert { job, options }] = &effects[..] else { panic!("{effects:?}") };
    assert!(options.replace);
    assert!(ui.press("c").is_empty(), "what it would do is shown first");
    (preview.refusal, preview.options) = (None, options.clone());
    ui.answer(*job, JobMsg::ConvertPlanned(preview));
    assert!(ui.screen().contains("Replaces the earlier conversion there."), "{}", ui.screen());
    let job = job_of(&ui.press("c"));
    ui.answer(job, JobMsg::Done(Outcome::Converted("/x".into())));
    assert!(!ui.model.convert.options.replace, "it was said of that one only");
    assert!(ui.press("c").is_empty(), "it is done");
}

#[test]
fn leave_to_replace_one_folder_is_none_to_replace_another() {
    let mut preview = convert_preview();
    preview.in_the_way = true;
    let mut ui = Ui::on_convert(preview);
    ui.press("r Down Enter");
    ui.type_in("2");
    let effects = ui.press("Enter");
    let [Effect::PlanConvert { options, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert!(options.target.as_str().ends_with("-internal2") && !options.replace);
    assert!(Ui::on_convert(convert_preview()).press("r").is_empty(), "nothing is in the way");
}

#[test]
fn an_adapter_is_named_to_be_merged_and_left_out_again() {
    let mut ui = Ui::on_convert(convert_preview());
    ui.press("G Enter");
    ui.type_in("/loras/style");
    let effects = ui.press("Enter");
    let [Effect::PlanConvert { options, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(options.merge.as_deref().map(|path| path.as_str()), Some("/loras/style"));
    ui.press("Enter");
    "/loras/style".chars().for_each(|_| drop(ui.press("Backspace")));
    ui.press("Enter");
    assert_eq!(ui.model.convert.options.merge, None);
}

#[test]
fn a_conversion_is_stopped_by_its_key_and_leaves_the_screen_as_before() {
    let mut ui = Ui::on_convert(convert_preview());
    let job = job_of(&ui.press("c"));
    let effects = ui.press("X");
    assert!(matches!(effects[..], [Effect::StopConvert { job: stopped }] if stopped == job));
    assert!(ui.screen().contains("stopping"));
    ui.answer(job, JobMsg::Done(Outcome::ConvertStopped("/x".into())));
    assert!(ui.model.convert.work.is_none());
    assert!(ui.screen().contains("nothing was left at /x"), "{}", ui.screen());
}

#[test]
fn a_failed_conversion_says_why_and_another_can_begin() {
    let mut ui = Ui::on_convert(convert_preview());
    let job = job_of(&ui.press("c"));
    ui.answer(job, JobMsg::Failed(failure()));
    assert!(ui.model.convert.work.is_none() && ui.model.modal.is_some());
}

#[test]
fn the_dialog_of_weights_that_must_be_converted_leads_to_the_screen() {
    let mut ui = Ui::with_runs(vec![]);
    let effects = ui.press("2 Enter");
    let [Effect::PlanLaunch { job, .. }] = effects[..] else { panic!("{effects:?}") };
    let options = convert_preview().options;
    ui.answer(job, JobMsg::ConvertFirst { failure: failure(), options: Box::new(options.clone()) });
    let effects = ui.press("c");
    assert_eq!((ui.model.screen, &ui.model.convert.options), (Screen::Convert, &options));
    assert!(matches!(&effects[..], [Effect::PlanConvert { options: asked, .. }] if *asked == options));
    assert!(ui.model.modal.is_none());
}

#[test]
fn the_end_of_a_path_that_is_being_typed_is_always_in_sight() {
    let mut ui = Ui::new();
    ui.press("4 Enter");
    ui.type_in(&"/mnt/shared/models/of/a/long/name/".repeat(3));
    ui.type_in("THE-END");
    for width in [80, 40] {
        ui.resize(width, 24);
        let screen = ui.screen();
        assert!(screen.contains("THE-END▏") && screen.contains("Convert: …"), "{screen}");
    }
}

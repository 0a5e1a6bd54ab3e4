//! Tests of the launch form: the draft that keys change, the plan that is started, and snapshots.

use super::screens::picture;
use crate::draft::{DraftMsg, Fit, LaunchDraft, LaunchTarget, PreflightResult, PreflightRow};
use crate::fixtures::*;
use crate::fleet::FleetSource;
use crate::model::FormPanel;
use crate::*;
use cluster::{Node, NodeId};
use recipe::{Origin, Settings};
use rundir::{ErrorCode, Failure};
use runstate::RunState;

const RECIPE: &str = "../tests/fixtures/configs/valid/stages/long.toml";

/// The draft of [`on_form`].
pub(super) fn form_draft() -> LaunchDraft {
    LaunchDraft { recipe: RECIPE.into(), sets: vec!["data.index=/data/clips".into()], ..LaunchDraft::default() }
}

pub(super) fn read(changed: &[&str]) -> DraftMsg {
    let settings = Ok(Box::new(Settings::read(RECIPE.into()).unwrap()));
    DraftMsg::Read { changed: changed.iter().map(Into::into).collect(), settings }
}

pub(super) fn targets() -> DraftMsg {
    let hostfile = |path: &str| LaunchTarget::Hostfile { path: path.into(), include: None, exclude: None };
    let slurm = LaunchTarget::Slurm("hostfiles/slurm.toml".into());
    DraftMsg::Targets(vec![LaunchTarget::Local(None), hostfile("hostfiles/gpus.txt"), slurm])
}

pub(super) fn planned(plan: Box<plan::LaunchPlan>) -> DraftMsg {
    DraftMsg::Planned { plan, files: 7 }
}

fn named(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn row(name: &str, node: Option<&str>, result: PreflightResult, is_waivable: bool) -> PreflightRow {
    PreflightRow { name: name.into(), node: node.map(named), result, is_waivable }
}

fn passed(name: &str, detail: &str) -> PreflightRow {
    row(name, None, PreflightResult::Passed(detail.into()), false)
}

fn checked(checks: Vec<PreflightRow>, is_complete: bool) -> DraftMsg {
    DraftMsg::Checked { checks, is_complete, convert: None }
}

pub(super) fn all_passed() -> DraftMsg {
    let mesh = passed("mesh", "dp_replicate 1 × dp_shard 2 = 2 ranks");
    checked(vec![passed("recipe", "long: valid"), mesh, passed("weights", "random, from seed 0")], true)
}

/// Checks of which one passed, one failed, and one failed and can be waived; unless `is_complete`, one more is
/// pending.
pub(super) fn some_failed(is_complete: bool) -> DraftMsg {
    let skew = Failure::new(
        ErrorCode::ClockSkew,
        "cannot launch long",
        "node gpu02: its clock is 41.0 s ahead of the others",
        "set it (chrony, ntpd), or waive this check: --waive clock",
    );
    let mesh = Failure::new(
        ErrorCode::InvalidMesh,
        "long does not fit 24 ranks",
        "train.global_batch 4 cannot be divided equally among 24 ranks",
        "train on 4 ranks",
    );
    let mut rows = vec![
        passed("recipe", "long: valid"),
        row("mesh", None, PreflightResult::Failed(mesh), false),
        row("clock", Some("gpu02"), PreflightResult::Failed(skew), true),
    ];
    if !is_complete {
        rows.push(row("node", Some("gpu03"), PreflightResult::Pending, false));
    }
    checked(rows, is_complete)
}

/// The form before the first answer of the shell.
pub(super) fn on_form() -> Ui {
    let mut ui = Ui::with_runs(vec![]);
    ui.press("5 n");
    ui.type_in("x");
    let effects = ui.press("Enter");
    let [Effect::Job { job, request: Request::ReadLaunch { .. } }] = effects[..] else { panic!("{effects:?}") };
    ui.answer(job, JobMsg::LaunchRead(Box::new(form_draft())));
    ui
}

pub(super) fn answer(ui: &mut Ui, what: DraftMsg) -> Vec<Effect> {
    let draft = Box::new(ui.model.screens.form.as_ref().unwrap().draft.clone());
    ui.send(Msg::Draft { draft, what })
}

/// The form with a plan for this machine.
pub(super) fn with_plan() -> Ui {
    let mut ui = on_form();
    answer(&mut ui, targets());
    answer(&mut ui, read(&[]));
    answer(&mut ui, planned(launch_plan(vec![])));
    ui
}

/// The form with a hostfile of three nodes, of which one is busy and one is unreachable.
pub(super) fn with_nodes() -> Ui {
    let mut ui = with_plan();
    ui.press("T j Enter");
    let of = FleetSource::Hostfile("hostfiles/gpus.txt".into());
    let nodes = ["gpu01", "gpu02", "gpu03"].map(|name| Node { id: named(name), slots: 8 }.into());
    ui.send(Msg::Nodes { of, nodes: Ok(nodes.to_vec()) });
    let frame = |frame| NodeMsg::Frame(Box::new(frame));
    ui.send(Msg::Node { node: named("gpu01"), what: frame(super::nodes::no_gpus(1)) });
    ui.send(Msg::Node { node: named("gpu02"), what: frame(super::nodes::busy(1)) });
    ui.send(Msg::Node { node: named("gpu03"), what: NodeMsg::Down(super::nodes::away()) });
    answer(&mut ui, read(&[]));
    answer(&mut ui, planned(launch_plan(vec![])));
    ui
}

fn draft(ui: &Ui) -> &LaunchDraft {
    &ui.model.screens.form.as_ref().unwrap().draft
}

fn is_warned(ui: &Ui) -> bool {
    ui.model.notice.as_ref().is_some_and(|notice| notice.is_warning)
}

#[test]
fn enter_on_a_recipe_and_on_a_stage_opens_the_form() {
    let mut ui = Ui::with_setup(|setup| setup.launch.target = LaunchTarget::Slurm("slurm.toml".into()));
    ui.send(Msg::Curricula(curricula()));
    ui.send(Msg::Recipes(recipes()));
    ui.press("5 j Enter");
    assert_eq!(draft(&ui).recipe, recipes()[1].path);
    assert_eq!(
        draft(&ui).target,
        LaunchTarget::Slurm("slurm.toml".into()),
        "the target that the console was started with"
    );
    assert!(watches(&ui.model).contains(&Watch::Draft(Box::new(draft(&ui).clone()))));
    ui.press("Esc");
    assert_eq!(ui.model.screen, Screen::Recipes);
    assert!(ui.model.screens.form.is_none());
    ui.press("2 Enter");
    assert_eq!(draft(&ui).recipe, format!("{}:2s", curriculum_path()));
    assert_eq!(draft(&ui).fit, Fit::ToTarget, "a stage is fitted to the target");
    ui.press("Esc");
    assert_eq!(ui.model.screen, Screen::Stages);
}

#[test]
fn enter_starts_the_plan_that_is_shown() {
    let mut ui = with_plan();
    answer(&mut ui, all_passed());
    let effects = ui.press("Enter");
    let [Effect::Job { job, request: Request::LaunchDraft { draft, files, plan } }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((draft.as_ref(), *files, plan), (&form_draft(), 7, &launch_plan(vec![])));
    assert!(ui.press("Enter").is_empty(), "it is started once");
    ui.answer(*job, JobMsg::Done(Outcome::Launched(stage_1())));
    assert_eq!((ui.model.screen, ui.model.screens.form.is_none()), (Screen::Run, true));
}

#[test]
fn enter_before_the_checks_are_complete_starts_when_they_have_passed() {
    let mut ui = with_plan();
    assert!(ui.press("Enter").is_empty());
    let effects = answer(&mut ui, all_passed());
    assert!(matches!(&effects[..], [Effect::Job { request: Request::LaunchDraft { .. }, .. }]), "{effects:?}");

    let mut ui = with_plan();
    ui.press("Enter");
    assert!(answer(&mut ui, some_failed(false)).is_empty() && is_warned(&ui));
    assert!(answer(&mut ui, all_passed()).is_empty(), "a failed check ends the wait");

    let mut ui = on_form();
    ui.press("Enter");
    answer(&mut ui, read(&[]));
    answer(&mut ui, planned(launch_plan(vec![])));
    assert!(
        matches!(&answer(&mut ui, all_passed())[..], [Effect::Job { request: Request::LaunchDraft { .. }, .. }]),
        "there was no plan yet"
    );

    let mut ui = with_plan();
    ui.press("Enter Esc");
    assert!(answer(&mut ui, all_passed()).is_empty(), "Escape ends the wait");
    assert!(ui.model.screens.form.is_some(), "and not the form");

    let mut ui = with_plan();
    ui.press("Enter");
    answer(&mut ui, read(&["hostfile"]));
    answer(&mut ui, planned(launch_plan(vec![])));
    assert!(answer(&mut ui, all_passed()).is_empty(), "a changed file ends the wait: the user looks at the new plan");
}

#[test]
fn a_failed_check_refuses_the_start_until_it_is_waived_by_name() {
    let mut ui = with_nodes();
    answer(&mut ui, some_failed(true));
    assert!(ui.press("Enter").is_empty() && is_warned(&ui));
    // The first failed check is selected, and it cannot be waived.
    ui.press("W");
    assert!(draft(&ui).waived.is_empty() && is_warned(&ui));
    ui.press("j W");
    assert_eq!(draft(&ui).waived, ["clock"]);
    assert!(ui.press("Enter").is_empty(), "the plan without the check is not there yet");
    answer(&mut ui, planned(launch_plan(vec![])));
    let skew = Failure::new(ErrorCode::ClockSkew, "a", "b", "c");
    answer(&mut ui, checked(vec![row("clock", Some("gpu02"), PreflightResult::Waived(skew), true)], true));
    assert!(matches!(&ui.press("Enter")[..], [Effect::Job { request: Request::LaunchDraft { .. }, .. }]));
    ui.press("W");
    assert!(draft(&ui).waived.is_empty());
}

#[test]
fn a_launch_that_cannot_be_planned_is_refused_with_the_reason() {
    let mut ui = on_form();
    answer(&mut ui, read(&[]));
    answer(&mut ui, DraftMsg::Refused(failure()));
    assert!(ui.press("Enter").is_empty() && is_warned(&ui));
    picture("form_refused", ui);
}

#[test]
fn answers_to_an_earlier_draft_are_ignored() {
    let mut ui = with_plan();
    let before = Box::new(draft(&ui).clone());
    ui.press("M");
    assert_eq!(draft(&ui).fit, Fit::ToTarget);
    assert!(ui.model.screens.form.as_ref().unwrap().plan.is_none(), "the plan does not fit the draft any more");
    ui.send(Msg::Draft { draft: before, what: planned(launch_plan(vec![])) });
    assert!(ui.model.screens.form.as_ref().unwrap().plan.is_none());
}

#[test]
fn an_override_is_completed_checked_and_shown_with_its_origin() {
    let mut ui = with_plan();
    ui.press("+");
    ui.type_in("train.st");
    ui.press("Tab");
    assert_eq!(ui.model.input.as_ref().unwrap().text, "train.steps=");
    ui.type_in("ten");
    ui.press("Enter");
    assert!(ui.model.input.is_some(), "a wrong value stays open");
    picture("form_wrong_value", Ui { model: ui.model.clone() });
    ui.press("Backspace Backspace Backspace");
    ui.type_in("30");
    ui.press("Enter");
    assert_eq!(draft(&ui).sets, ["data.index=/data/clips", "train.steps=30"]);
    let origin = |ui: &Ui| {
        let rows = &ui.model.screens.form.as_ref().unwrap().rows;
        rows.iter().find(|row| row.key == "train.steps").unwrap().origin.clone()
    };
    assert_eq!(origin(&ui), Origin::Flag("train.steps=30".into()));
    // The key of the last override is selected.
    ui.press("Delete");
    assert_eq!(draft(&ui).sets, ["data.index=/data/clips"]);
    assert!(matches!(origin(&ui), Origin::File { .. }));
    ui.press("=");
    assert_eq!(ui.model.input.as_ref().unwrap().text, "train.steps=20");
}

#[test]
fn overrides_that_contradict_the_mesh_are_shown_and_another_override_resolves_them() {
    let mut ui = with_plan();
    ui.press("+");
    ui.type_in("mesh.dp_shard=3");
    picture("form_contradiction", Ui { model: ui.model.clone() });
    ui.press("Enter");
    assert!(ui.model.input.is_none(), "another override can make it valid");
    assert_eq!(ui.model.screens.form.as_ref().unwrap().broken.as_ref().unwrap().kind, recipe::RecipeErrorKind::Mesh);
    assert!(ui.press("Enter").is_empty() && is_warned(&ui));
    picture("form_broken", Ui { model: ui.model.clone() });
    ui.press("+");
    ui.type_in("train.global_batch=6");
    ui.press("Enter");
    assert_eq!(ui.model.screens.form.as_ref().unwrap().broken, None);
}

#[test]
fn wrong_text_of_each_field_stays_open_and_changes_nothing() {
    let wrong = [
        ("+", "train.step=3"),
        ("+", "train.steps"),
        ("+", "nonsense"),
        ("+", "train.steps=0"),
        ("+", "encode.fps=3"),
        ("+", "base=x.toml"),
        ("R", "0"),
        ("R", "two"),
        ("R", "-1"),
        ("R", "1000000"),
    ];
    for (key, text) in wrong {
        let mut ui = with_plan();
        ui.press(key);
        ui.type_in(text);
        ui.press("Enter");
        assert_eq!(*draft(&ui), form_draft(), "{key} {text}");
        assert!(ui.model.input.is_some(), "{key} {text}");
        ui.press("Esc");
        assert!(ui.model.input.is_none() && ui.model.screens.form.is_some());
    }
    let mut ui = with_plan();
    ui.press("R");
    ui.type_in("4");
    ui.press("Enter i");
    ui.type_in("latest");
    ui.press("Enter");
    assert_eq!((&draft(&ui).target, draft(&ui).init.as_deref()), (&LaunchTarget::Local(Some(4)), Some("latest")));
    ui.press("R Backspace Enter i Backspace Backspace Backspace Backspace Backspace Backspace Enter");
    assert_eq!(*draft(&ui), form_draft());
}

#[test]
fn the_target_is_chosen_from_a_list_and_nodes_with_space() {
    let mut ui = with_nodes();
    assert!(watches(&ui.model).contains(&Watch::Nodes(FleetSource::Hostfile("hostfiles/gpus.txt".into()))));
    ui.press("Tab j Space");
    let exclude = |ui: &Ui| match &draft(ui).target {
        LaunchTarget::Hostfile { exclude, .. } => exclude.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(exclude(&ui).as_deref(), Some("gpu02"));
    ui.press("j Space");
    assert_eq!(exclude(&ui).as_deref(), Some("gpu[02-03]"));
    ui.press("g Space");
    assert!(is_warned(&ui), "one node is left");
    // The hostfile changes and no longer lists an excluded node.
    let nodes = ["gpu01", "gpu03"].map(|name| Node { id: named(name), slots: 8 }.into());
    ui.send(Msg::Nodes { of: FleetSource::Hostfile("hostfiles/gpus.txt".into()), nodes: Ok(nodes.to_vec()) });
    assert_eq!(exclude(&ui).as_deref(), Some("gpu03"));
    ui.press("T j Esc");
    assert_eq!(exclude(&ui).as_deref(), Some("gpu03"), "a cancelled choice keeps the target and its nodes");
    ui.press("T Enter");
    assert_eq!(exclude(&ui).as_deref(), Some("gpu03"), "the target that it has keeps its nodes");
    ui.press("T j Enter");
    assert_eq!(draft(&ui).target, LaunchTarget::Slurm("hostfiles/slurm.toml".into()));
    ui.press("R");
    assert!(ui.model.input.is_none() && is_warned(&ui));
    ui.press("T g Enter");
    assert_eq!(draft(&ui).target, LaunchTarget::Local(None));
    ui.press("T j Enter");
    assert_eq!(draft(&ui).target.file().unwrap(), "hostfiles/gpus.txt");
}

#[test]
fn a_form_keeps_its_settings_while_another_screen_is_shown() {
    let mut ui = with_nodes();
    ui.press("M 3");
    assert_eq!(ui.model.fleet.of, FleetSource::Given);
    assert!(!watches(&ui.model).iter().any(|watch| matches!(watch, Watch::Draft(_))));
    ui.press("Esc");
    assert_eq!((ui.model.screen, draft(&ui).fit), (Screen::Launch, Fit::ToTarget));
    assert_eq!(ui.model.fleet.of, FleetSource::Hostfile("hostfiles/gpus.txt".into()));
}

#[test]
fn weights_that_must_be_converted_lead_to_the_convert_screen() {
    let mut ui = with_plan();
    let failed = row("weights", None, PreflightResult::Failed(failure()), false);
    let options = convert_preview().options;
    let convert = Some(Box::new(options.clone()));
    answer(&mut ui, DraftMsg::Checked { checks: vec![failed], is_complete: true, convert });
    picture("form_convert", Ui { model: ui.model.clone() });
    let effects = ui.press("C");
    assert_eq!((ui.model.screen, &ui.model.screens.convert.options), (Screen::Convert, &options));
    assert!(
        matches!(&effects[..], [Effect::Job { request: Request::PlanConvert { options: previewed, .. }, .. }] if *previewed == options)
    );
}

#[test]
fn a_failed_start_plans_again() {
    let mut ui = with_plan();
    answer(&mut ui, all_passed());
    let effects = ui.press("Enter");
    let [Effect::Job { job, request: Request::LaunchDraft { .. } }] = effects[..] else { panic!("{effects:?}") };
    ui.answer(job, JobMsg::Failed(failure()));
    assert!(ui.model.modal.is_some());
    assert_eq!((draft(&ui).round, ui.model.screens.form.as_ref().unwrap().plan.is_none()), (1, true));
}

#[test]
fn form_pictures() {
    picture("form_loading", on_form());

    let mut ui = with_plan();
    answer(&mut ui, all_passed());
    picture("form", ui);

    let mut ui = on_form();
    answer(&mut ui, read(&[]));
    answer(&mut ui, planned(launch_plan(vec!["this machine has 2 cores for 4 ranks".into()])));
    ui.send(Msg::Runs(Ok(RunList {
        rows: vec![crate::fixtures::row(stage_2(), "4s", RunState::Running, 3)],
        unreadable: vec![],
    })));
    answer(&mut ui, all_passed());
    ui.press("d");
    picture("form_defaults", ui);

    let mut ui = with_nodes();
    ui.press("T j");
    picture("form_targets", ui);

    let mut ui = with_nodes();
    answer(&mut ui, some_failed(false));
    picture("form_checking", ui);

    let mut ui = with_nodes();
    answer(&mut ui, read(&["/home/ada/hostfiles/gpus.txt"]));
    answer(&mut ui, planned(launch_plan(vec![])));
    answer(&mut ui, some_failed(true));
    ui.press("Tab Tab j");
    picture("form_failed", ui);

    let mut ui = with_nodes();
    answer(&mut ui, all_passed());
    ui.press("Tab j Space");
    assert_eq!(ui.model.screens.form.as_ref().unwrap().focus, FormPanel::Target);
    picture("form_nodes", ui);

    let mut ui = with_plan();
    ui.press("M");
    answer(&mut ui, read(&[]));
    let changes = "fitted to the ranks: dp_replicate 2 × dp_shard 2 = 4 ranks; a step still takes 4 samples";
    answer(&mut ui, DraftMsg::Fitted { ranks: 4, changes: Some(changes.into()) });
    answer(&mut ui, planned(launch_plan(vec![changes.into()])));
    answer(&mut ui, all_passed());
    ui.press("Tab Tab Tab");
    picture("form_fitted", ui);

    let mut ui = with_plan();
    ui.press("+");
    ui.type_in("train.");
    picture("form_completion", ui);

    let mut ui = with_plan();
    ui.press("R");
    ui.type_in("two");
    picture("form_ranks", ui);
}

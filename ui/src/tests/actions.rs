//! Tests of actions on several nodes, processes and runs, and on checkpoints: plans, confirmation and results.

use crate::fixtures::*;
use crate::fleet::FleetSource;
use crate::model::{Modal, Purpose};
use crate::tests::screens::picture;
use crate::*;
use cluster::{Node, NodeId};
use plan::{
    CheckpointDelete, CheckpointUse, KillPlan, KillScope, ListedProcess, NodeOrphans, NodeProcesses, NodesKill,
    OrphanKill, ResumeKind, ResumeOptions, RunDelete, Spared, SparedProcess, UseOf,
};
use rundir::{CheckpointEntry, ErrorCode, Failure};
use runstate::RunState;

fn named(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn process(pid: i32, user: &str, run: Option<&str>, command: &str) -> ListedProcess {
    ListedProcess {
        pid,
        parent: 1,
        pgid: pid,
        session: pid,
        start_ticks: pid as u64,
        state: 'S',
        uid: if user == "ada" { 1000 } else { 1001 },
        user: user.into(),
        age_s: 5400,
        run: run.map(str::to_owned),
        rank: None,
        on_gpu: false,
        gpu_mib: None,
        command: command.into(),
    }
}

/// A rank of a live run, an orphan process of an ended run, another trainer, and a process of another user.
pub(super) fn processes() -> Vec<ListedProcess> {
    let (live, ended) = (stage_1().to_string(), stage_2().to_string());
    let gpu = |mib, rank, process| ListedProcess { on_gpu: true, gpu_mib: Some(mib), rank, ..process };
    vec![
        gpu(71_000, Some(3), process(4100, "ada", Some(&live), "/opt/vidtui/vidtui-train rank --run-dir /runs/x")),
        process(4177, "ada", Some(&ended), "sh -c exec sleep 300"),
        gpu(70_200, Some(1), process(5200, "ada", None, "/usr/bin/python3 -u train.py --config configs/5b.yaml")),
        gpu(12_000, None, process(6001, "grace", None, "python3 notebook.py")),
    ]
}

fn of_node(name: &str, processes: Vec<ListedProcess>) -> NodeProcesses {
    NodeProcesses { node: named(name), boot_id: "4f70".into(), uid: 1000, user: "ada".into(), processes }
}

fn away(name: &str) -> Failure {
    let why = format!("node {name} cannot be reached: connecting: it does not answer within 10 s");
    Failure::new(ErrorCode::NodeUnreachable, format!("cannot list the processes of {name}"), why, "check that it is up")
}

fn ended() -> RunRow {
    RunRow { stage: Some("4s".into()), ..row(stage_2(), "4s", RunState::Failed(failure()), 42) }
}

/// The Nodes screen with three nodes.
fn on_nodes() -> Ui {
    let mut ui = Ui::with_runs(vec![running(83), ended()]);
    ui.press("3");
    let nodes = ["gpu001", "gpu002", "gpu003"].map(|name| Node { id: named(name), slots: 8 }.into());
    ui.send(Msg::Nodes { of: FleetSource::Given, nodes: Ok(nodes.into()) });
    ui
}

fn list(ui: &mut Ui, name: &str, listed: Result<NodeProcesses, Failure>) {
    ui.send(Msg::Node { node: named(name), what: NodeMsg::Processes(listed) });
}

/// The Processes screen with two nodes, of which one is unreachable.
pub(super) fn on_processes() -> Ui {
    let mut ui = on_nodes();
    ui.press("Space Space P");
    list(&mut ui, "gpu001", Ok(of_node("gpu001", processes())));
    list(&mut ui, "gpu002", Err(away("gpu002")));
    ui
}

pub(super) fn nodes_kill() -> Box<ActionPlan> {
    let mut run = *kill_plan();
    run.nodes[0].node = named("gpu001");
    run.nodes.push(plan::NodeKill { node: named("gpu007"), ..run.nodes[0].clone() });
    let [rank, orphan, other, graces] = <[ListedProcess; 4]>::try_from(processes()).unwrap();
    let on_first = |processes| NodeOrphans { node: named("gpu001"), boot_id: "4f70".into(), processes };
    let orphans = OrphanKill { scope: KillScope::Own, nodes: vec![on_first(vec![other.clone()])] };
    let left = plan::RunKill { run: stage_2(), nodes: vec![run.nodes[0].clone()], ..run.clone() };
    let kill = NodesKill {
        scope: KillScope::Own,
        nodes: vec![on_first(vec![rank, orphan, other]), NodeOrphans { node: named("gpu003"), ..on_first(vec![]) }],
        plans: vec![KillPlan::Run(run), KillPlan::Run(left), KillPlan::Orphans(orphans)],
        spared: vec![SparedProcess { node: named("gpu001"), process: graces, why: Spared::OtherUser }],
        unreachable: vec![(named("gpu002"), away("gpu002"))],
    };
    Box::new(ActionPlan::KillOnNodes { of: FleetSource::Given, kill })
}

pub(super) fn results() -> Vec<ActionResult> {
    let result = |subject: &str, end, text: &str| ActionResult { subject: subject.into(), end, text: text.into() };
    vec![
        result("gpu001", ActionEnd::Done, "3 processes ended"),
        result(
            "gpu007",
            ActionEnd::Failed,
            "still there: process 4100, state D (waits for a device): vidtui-train rank",
        ),
        result(
            "gpu002",
            ActionEnd::Unknown,
            "unreachable, so unknown: node gpu002 cannot be reached: no answer in 10 s",
        ),
    ]
}

fn requested(effects: Vec<Effect>) -> (JobId, ActionRequest) {
    match <[Effect; 1]>::try_from(effects) {
        Ok([Effect::Job { job, request: Request::PlanAction(request) }]) => (job, request),
        other => panic!("{other:?}"),
    }
}

#[test]
fn marked_nodes_are_shown_and_counted() {
    let mut ui = on_nodes();
    ui.press("Space Space");
    insta::assert_snapshot!("nodes_marked_80x24", ui.screen());
    ui.press("Esc");
    assert!(ui.model.screens.nodes.marked.is_empty());
}

#[test]
fn the_processes_of_marked_nodes_are_listed_while_they_are_shown() {
    let mut ui = on_processes();
    let watch = Watch::Processes { of: FleetSource::Given, nodes: vec![named("gpu001"), named("gpu002")] };
    assert!(watches(&ui.model).contains(&watch));
    let shown = |ui: &Ui| ui.model.screens.processes.as_ref().unwrap().rows().len();
    assert_eq!(shown(&ui), 3);
    ui.press("A");
    assert_eq!(shown(&ui), 4);
    ui.press("A Esc");
    assert!(!watches(&ui.model).contains(&watch));
}

#[test]
fn processes_show_owner_run_rank_age_memory_and_orphans() {
    let mut ui = on_processes();
    ui.press("j Space");
    ui.press("k");
    picture("processes", ui);
}

#[test]
fn nodes_without_training_processes_show_a_note() {
    let mut ui = on_nodes();
    ui.press("P");
    insta::assert_snapshot!("processes_loading_80x24", ui.screen());
    list(&mut ui, "gpu001", Ok(of_node("gpu001", vec![])));
    insta::assert_snapshot!("processes_none_80x24", ui.screen());
}

#[test]
fn kill_on_processes_is_about_the_marked_ones_or_else_the_selected_one() {
    let mut ui = on_processes();
    let pids = |request: ActionRequest| match request {
        ActionRequest::KillOnNodes { nodes, chosen: Some(chosen), .. } => {
            assert_eq!(nodes, [named("gpu001")]);
            chosen.into_iter().map(|key| key.pid).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let (job, request) = requested(ui.press("j j K"));
    assert_eq!(pids(request), [4177]);
    assert!(ui.press("K").is_empty(), "one plan at a time");
    ui.answer(job, JobMsg::Failed(failure()));
    let (_, request) = requested(ui.press("Esc g Space j Space K"));
    assert_eq!(pids(request), [4177, 5200]);
}

#[test]
fn the_marks_of_ended_processes_are_dropped() {
    let mut ui = on_processes();
    ui.press("Space");
    assert_eq!(ui.model.screens.processes.as_ref().unwrap().marked.len(), 1);
    list(&mut ui, "gpu001", Ok(of_node("gpu001", vec![])));
    assert!(ui.model.screens.processes.as_ref().unwrap().marked.is_empty());
}

#[test]
fn a_kill_on_marked_nodes_shows_its_plan_and_then_the_result_of_each_node() {
    let mut ui = on_nodes();
    let (job, request) = requested(ui.press("Space Space Space K"));
    let ActionRequest::KillOnNodes { nodes, scope: KillScope::Own, chosen: None, .. } = request else {
        panic!("{request:?}")
    };
    assert_eq!(nodes.len(), 3);
    ui.answer(job, JobMsg::ActionPlanned(nodes_kill()));
    let shown = Ui { model: ui.model.clone() };
    picture("kill_on_nodes", shown);
    let effects = ui.press("Enter");
    let [Effect::Job { job, request: Request::Act { .. } }] = effects[..] else { panic!("{effects:?}") };
    assert!(ui.model.screens.nodes.marked.is_empty());
    ui.answer(job, JobMsg::Results(vec![ActionResult { end: ActionEnd::Pending, ..results().remove(0) }]));
    insta::assert_snapshot!("kill_on_nodes_in_progress_80x24", ui.screen());
    ui.answer(job, JobMsg::Done(Outcome::Acted(results())));
    picture("kill_on_nodes_results", Ui { model: ui.model.clone() });
    ui.press("Enter");
    assert!(ui.model.modal.is_none());
}

#[test]
fn nothing_is_killed_before_enter_and_an_empty_plan_cannot_be_executed() {
    for keys in ["Esc", "q", "n"] {
        let mut ui = on_nodes();
        let (job, _) = requested(ui.press("K"));
        ui.answer(job, JobMsg::ActionPlanned(nodes_kill()));
        assert!(ui.press(keys).is_empty() && ui.model.modal.is_none(), "{keys}");
    }
    let mut ui = on_nodes();
    let (job, _) = requested(ui.press("K"));
    let ActionPlan::KillOnNodes { of, kill } = *nodes_kill() else { panic!("it is a kill") };
    let kill = NodesKill { plans: vec![], nodes: vec![], ..kill };
    ui.answer(job, JobMsg::ActionPlanned(Box::new(ActionPlan::KillOnNodes { of, kill })));
    insta::assert_snapshot!("kill_on_nodes_without_processes_80x24", ui.screen());
    assert!(ui.press("Enter").is_empty() && ui.model.modal.is_none());
}

#[test]
fn results_that_are_not_verified_are_shown_again_after_the_dialog_was_closed() {
    let after = |results: Vec<ActionResult>| {
        let mut ui = on_nodes();
        let (job, _) = requested(ui.press("K"));
        ui.answer(job, JobMsg::ActionPlanned(nodes_kill()));
        let effects = ui.press("Enter");
        let [Effect::Job { job, request: Request::Act { .. } }] = effects[..] else { panic!("{effects:?}") };
        ui.press("Esc");
        assert!(ui.model.modal.is_none());
        ui.answer(job, JobMsg::Done(Outcome::Acted(results)));
        ui
    };
    assert!(matches!(after(results()).model.modal, Some(Modal::Results(_))));
    let done = after(results().into_iter().take(1).collect());
    assert!(done.model.modal.is_none() && done.model.notice.is_some());
}

fn with_checkpoints() -> Ui {
    let stopped = row(stage_1(), "2s", RunState::Stopped, 97);
    let lineage = Some(rundir::Lineage { run: stage_1(), step: 40 });
    let rows = vec![stopped.clone(), RunRow { lineage, ..ended() }];
    let mut ui = Ui::on_run(stopped);
    ui.send(Msg::Runs(Ok(RunList { rows, unreadable: vec![] })));
    let CheckpointEntry::Complete(first) = checkpoint(20, 300.0) else { panic!("it is complete") };
    let pinned = CheckpointEntry::Complete(rundir::CheckpointSummary { is_pinned: true, ..first });
    let why = "rank-00001.safetensors has 12 of 1600 bytes".into();
    let incomplete = CheckpointEntry::Incomplete { step: 97, dir: "/x".into(), why };
    let all = vec![pinned, checkpoint(40, 250.0), checkpoint(80, 203.0), incomplete];
    ui.run_msg(RunMsg::Checkpoints(all));
    ui.press("c");
    ui
}

#[test]
fn checkpoints_are_listed_with_their_state_and_the_keys_for_them() {
    let mut ui = with_checkpoints();
    ui.press("j");
    picture("checkpoints", ui);
}

#[test]
fn a_resume_from_a_checkpoint_restores_what_its_key_names_and_shows_the_plan() {
    let keys = [
        ("Enter", ResumeKind::Everything),
        ("r", ResumeKind::Everything),
        ("F", ResumeKind::FreshData),
        ("i", ResumeKind::WeightsOnly),
    ];
    for (key, kind) in keys {
        let mut ui = with_checkpoints();
        let effects = ui.press(&format!("j j {key}"));
        let [Effect::Job { job, request: Request::PlanResume { run, options } }] = &effects[..] else {
            panic!("{key}: {effects:?}")
        };
        assert_eq!(
            (run, *options),
            (&stage_1(), ResumeOptions { step: Some(40), kind, ..ResumeOptions::default() }),
            "{key}"
        );
        // A checkpoint that the user chose is never resumed without the dialog.
        assert!(ui.answer(*job, JobMsg::LaunchPlanned(resume_plan(vec![]))).is_empty());
        assert!(matches!(ui.model.modal, Some(Modal::Launch(_))), "{key}");
    }
}

#[test]
fn a_checkpoint_can_start_the_next_stage_be_converted_and_pinned() {
    let effects = with_checkpoints().press("j n");
    assert!(
        matches!(&effects[..], [Effect::Job { request: Request::PlanNext { step: Some(80), .. }, .. }]),
        "{effects:?}"
    );
    let mut ui = with_checkpoints();
    let effects = ui.press("j C");
    let [Effect::Job { request: Request::PlanConvert { options, .. }, .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert!(options.source.as_str().ends_with("step-00000080"));
    assert_eq!(ui.model.screen, Screen::Convert);
    let pins = |keys: &str| match with_checkpoints().press(keys)[..] {
        [Effect::Job { request: Request::PinCheckpoint { step, is_pinned, .. }, .. }] => (step, is_pinned),
        ref other => panic!("{other:?}"),
    };
    assert_eq!((pins("j *"), pins("G *")), ((80, true), (20, false)));
}

#[test]
fn deleting_a_checkpoint_shows_who_started_from_it_and_asks() {
    let mut ui = with_checkpoints();
    let (job, request) = requested(ui.press("j D"));
    assert_eq!(request, ActionRequest::DeleteCheckpoint { run: stage_1(), step: 80 });
    let uses = vec![CheckpointUse { run: stage_2(), of: UseOf::Start, is_active: false }];
    let delete = CheckpointDelete {
        run: stage_1(),
        dir: rundir::RunDir::of("/home/ada/vidtui/runs".into(), &stage_1()),
        checkpoint: checkpoint(80, 203.0),
        uses,
        falls_back_to: Some(40),
        is_newest: true,
    };
    ui.answer(job, JobMsg::ActionPlanned(Box::new(ActionPlan::DeleteCheckpoint(Box::new(delete)))));
    insta::assert_snapshot!("delete_checkpoint_80x24", ui.screen());
    let effects = ui.press("Enter");
    let [Effect::Job { job, request: Request::Act { .. } }] = effects[..] else { panic!("{effects:?}") };
    let result = ActionResult { subject: "Checkpoint of step 80".into(), end: ActionEnd::Done, text: "deleted".into() };
    ui.answer(job, JobMsg::Done(Outcome::Acted(vec![result])));
    assert!(ui.model.modal.is_none() && ui.model.notice.is_some());
}

fn delete_plan() -> Box<RunDelete> {
    let dir = rundir::RunDir::new("/home/ada/project/runs/2026-11-20T0340-demo-2s-k7f2");
    let uses = vec![CheckpointUse { run: stage_2(), of: UseOf::Start, is_active: false }];
    Box::new(RunDelete { run: stage_1(), dir, checkpoints: 3, bytes: 1_310_720, uses, stays: None })
}

#[test]
fn a_run_moves_to_the_trash_after_a_dialog_unless_it_is_active() {
    let mut ui = Ui::with_runs(vec![running(83)]);
    assert!(ui.press("D").is_empty() && ui.model.notice.is_some());
    let mut ui = Ui::with_runs(vec![ended()]);
    let (_, request) = requested(ui.press("D"));
    assert_eq!(request, ActionRequest::Runs { verb: RunVerb::Delete, runs: vec![stage_2()] });
}

#[test]
fn a_note_is_typed_and_found_by_the_filter() {
    let noted = RunRow { note: Some("#baseline".into()), ..running(83) };
    let mut ui = Ui::with_runs(vec![noted.clone()]);
    ui.press("#");
    let input = ui.model.input.as_ref().unwrap();
    assert_eq!((input.purpose, input.text.as_str()), (Purpose::Note, "#baseline"));
    let effects = ui.press("Space a Enter");
    let [Effect::Job { request: Request::WriteNote { run, note }, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((run, note.as_str()), (&stage_1(), "#baseline a"));
    let mut ui = Ui::with_runs(vec![noted, ended()]);
    ui.press("/");
    "#base".chars().for_each(|key| drop(ui.press(&key.to_string())));
    assert_eq!(ui.model.visible_runs().len(), 1);
}

fn planned(verb: RunVerb, first: RunPlan) -> Box<ActionPlan> {
    let why = "attempt 1 is training on devbox";
    let refused = Failure::new(ErrorCode::RunIsAlive, format!("cannot {} x", verb.word()), why, "stop it first");
    Box::new(ActionPlan::Runs { verb, runs: vec![(stage_1(), Ok(first)), (stage_2(), Err(refused))] })
}

#[test]
fn marked_runs_are_resumed_stopped_or_killed_after_one_dialog() {
    let verbs = [("r", RunVerb::Resume), ("s", RunVerb::Stop), ("K", RunVerb::Kill), ("D", RunVerb::Delete)];
    for (key, verb) in verbs {
        let mut ui = Ui::with_runs(vec![running(83), ended()]);
        let (job, request) = requested(ui.press(&format!("Space Space {key}")));
        let ActionRequest::Runs { verb: requested, runs } = request else { panic!("{request:?}") };
        assert_eq!((requested, runs.len()), (verb, 2));
        let first = match verb {
            RunVerb::Resume => RunPlan::Start(resume_plan(vec!["steps 81 to 97 are trained again".into()])),
            RunVerb::Stop | RunVerb::Kill => RunPlan::End(kill_plan()),
            RunVerb::Delete => RunPlan::Delete(delete_plan()),
        };
        ui.answer(job, JobMsg::ActionPlanned(planned(verb, first)));
        insta::assert_snapshot!(format!("{}_marked_runs_80x24", verb.word()), ui.screen());
        let effects = ui.press("Enter");
        assert!(matches!(&effects[..], [Effect::Job { request: Request::Act { .. }, .. }]), "{effects:?}");
        assert!(ui.model.screens.runs.marked.is_empty());
        assert!(ui.model.jobs.busy_with(&stage_1()).is_some() && ui.model.jobs.busy_with(&stage_2()).is_none());
    }
}

#[test]
fn marked_runs_are_shown_and_their_marks_end_with_them() {
    let mut ui = Ui::with_runs(many_runs().rows);
    ui.press("Space j Space");
    insta::assert_snapshot!("runs_marked_80x24", ui.screen());
    let kept: Vec<RunRow> = many_runs().rows.into_iter().take(1).collect();
    ui.send(Msg::Runs(Ok(RunList { rows: kept, unreadable: vec![] })));
    assert!(ui.model.screens.runs.marked.is_empty());
    ui.press("Space Esc");
    assert!(ui.model.screens.runs.marked.is_empty());
}

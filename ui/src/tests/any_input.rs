//! Property tests: no sequence of inputs makes drawing panic, at any size.

use crate::fixtures::*;
use crate::fleet::FleetSource;
use crate::tests::actions::{nodes_kill, processes, results};
use crate::*;
use cluster::nvidia_smi::GpuQuery;
use cluster::probe::Frames;
use cluster::{Node, NodeId};
use plan::{ListedProcess, NodeProcesses};
use proptest::prelude::*;
use ratatui_core::style::Color;
use rundir::{AlertKind, CheckpointEntry, NodePoint, NodeSample, Spread};
use runstate::{Goodput, RunState};
use std::collections::BTreeMap;

fn any_key() -> impl Strategy<Value = Msg> {
    let named = prop::sample::select(vec![
        "Enter",
        "Esc",
        "Tab",
        "Shift-Tab",
        "Backspace",
        "Up",
        "Down",
        "Left",
        "Right",
        "PgUp",
        "PgDn",
        "Ctrl-Z",
    ]);
    prop_oneof![
        3 => named.prop_map(|name| Msg::Key(key(name))),
        4 => prop::sample::select("rsnlKyczxXeELS+-0gGjkfwpduNtTiR[]/?12345oaO=_vbm: \u{301}長".chars().collect::<Vec<_>>())
            .prop_map(|c| Msg::Key(Key::ch(c))),
        1 => any::<char>().prop_map(|c| Msg::Key(Key::ch(c))),
    ]
}

fn any_mouse() -> impl Strategy<Value = Msg> {
    use MouseKind::*;
    let kind = prop::sample::select(vec![Press, Press, Drag, Drag, Release, WheelUp, WheelDown]);
    let place = prop_oneof![4 => (0u16..100, 0u16..40), 1 => (any::<u16>(), any::<u16>())];
    (kind, place).prop_map(|(kind, (column, row))| Msg::Mouse(Mouse { kind, column, row }))
}

fn any_state() -> impl Strategy<Value = RunState> {
    prop::sample::select(vec![
        RunState::New,
        RunState::Starting,
        RunState::Running,
        RunState::Saving,
        RunState::Stopping,
        RunState::Stalled { since_s: NOW - 100.0 },
        RunState::Finished,
        RunState::Stopped,
        RunState::Failed(failure()),
        RunState::Crashed(failure()),
        RunState::Unknown,
    ])
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        5 => -10.0..10.0f64,
        1 => Just(0.0),
        1 => prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE, 1e-300, -1e300]),
    ]
}

/// Steps, some of them more than a million apart.
fn any_step() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..200, 2 => (0u64..5, 0u64..200).prop_map(|(millions, step)| millions * 1_000_000 + step), 1 => Just(u64::MAX)]
}

fn any_size() -> impl Strategy<Value = (u16, u16)> {
    prop_oneof![4 => (1u16..=300, 1u16..=100), 2 => (1u16..=80, 1u16..=24), 1 => (0u16..=12, 0u16..=6)]
}

/// Any theme. Drawing must use only colours that the theme has.
fn any_theme() -> impl Strategy<Value = Theme> {
    let themes =
        [Theme::no_color(), Theme::ansi16(), Theme::truecolor(), Theme::dark(), Theme::light(), Theme::colour_blind()];
    prop::sample::select(themes.to_vec())
}

/// The names of series of imported runs. The first two can be picked as panels.
fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![4 => prop::sample::select(vec!["train/aux", "eval/loss", ""]).prop_map(str::to_owned), 1 => any_text()]
}

fn any_metrics() -> impl Strategy<Value = RunMsg> {
    let other = prop::collection::btree_map(any_name(), prop::option::of(any_number()), 0..3);
    let one = (1u32..4, any_step(), any_number(), prop::option::of(any_number()), 0usize..12, other);
    type Values = (u32, u64, f64, Option<f64>, usize, BTreeMap<String, Option<f64>>);
    let make = |(attempt, step, number, loss, ranks, other): Values| rundir::MetricSample {
        loss,
        grad_norm: loss,
        lr: number,
        lr_ttt: loss,
        step_s: number,
        t: NOW + number,
        tokens_per_s: number,
        mem_gib_by_rank: vec![number; ranks],
        busy_s_by_rank: vec![number; ranks],
        other,
        ..sample(attempt, step.min(1 << 40))
    };
    prop::collection::vec(one.prop_map(make), 0..60).prop_map(RunMsg::Metrics)
}

/// Metrics of the nodes of a run.
fn any_node_points() -> impl Strategy<Value = RunMsg> {
    let spread = (any_number(), any_number(), any_number(), any::<bool>());
    let spread = spread.prop_map(|(mean, min, max, of_several)| Spread { mean, min, max, of_several });
    let one = (any_number(), prop::collection::vec(prop::option::of(spread), 6));
    let make = |(t, spreads): (f64, Vec<Option<Spread>>)| NodePoint {
        t: NOW + t,
        power_w: spreads[0],
        gpu_mem_gib: spreads[1],
        util_pct: spreads[2],
        temp_c: spreads[3],
        cpu_pct: spreads[4],
        mem_gib: spreads[5],
        ..NodePoint::default()
    };
    prop::collection::vec(one.prop_map(make), 0..40).prop_map(RunMsg::NodePoints)
}

fn any_alerts() -> impl Strategy<Value = Msg> {
    let kind = prop::sample::select(AlertKind::ALL.to_vec());
    let one = (0u32..9, any_number(), kind, any_text(), any::<bool>(), prop::option::of(any_number()));
    prop::collection::vec(one, 0..6).prop_map(|alerts| {
        let make =
            |(id, minutes, kind, what, acknowledged, snoozed): (u32, f64, AlertKind, String, bool, Option<f64>)| {
                let mut row = super::alerts::alert(&format!("{id:08x}"), minutes, kind, &what);
                row.state.acknowledged = acknowledged;
                row.state.snoozed_until_s = snoozed.map(|later| NOW + later);
                row
            };
        Msg::Alerts(alerts.into_iter().map(make).collect())
    })
}

fn any_queue() -> impl Strategy<Value = Msg> {
    let row = (any::<u32>(), any_text(), any_text()).prop_map(|(id, recipe, state)| QueueRow { id, recipe, state });
    prop::collection::vec(row, 0..9).prop_map(Msg::Queue)
}

fn any_row() -> impl Strategy<Value = RunRow> {
    let ids = prop::sample::select(vec![stage_1(), stage_2(), id("2026-11-20T0340-a-b")]);
    (ids, any_state(), any::<u64>(), any::<u64>(), any_number(), prop::option::of(any_number())).prop_map(
        |(run, state, step, total, number, maybe)| RunRow {
            steps_total: total,
            step,
            loss: maybe,
            eta_s: maybe,
            step_s: maybe,
            epochs: maybe.map(|done| runstate::Epochs { done, total: number }),
            start_deadline_s: maybe,
            created_s: NOW + number,
            updated_s: number,
            findings: if step % 2 == 0 { slowed().findings } else { vec![] },
            ..row(run, "2s", state, 80)
        },
    )
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[a-z ./\u{1b}\\[m長]{0,300}"]
}

/// Any answer to the draft of the launch form.
fn any_answer() -> impl Strategy<Value = Msg> {
    use super::launch_form::*;
    let what = prop_oneof![
        Just(read(&[])),
        any_text().prop_map(|path| read(&[&path])),
        Just(targets()),
        any_text().prop_map(|warning| planned(launch_plan(vec![warning]))),
        any::<bool>().prop_map(some_failed),
        any_text().prop_map(|why| draft::DraftMsg::Refused(rundir::Failure { why, ..failure() })),
        (1usize..9, any_text()).prop_map(|(ranks, text)| draft::DraftMsg::Fitted { ranks, changes: Some(text) }),
    ];
    what.prop_map(|what| Msg::Draft { draft: Box::new(form_draft()), what })
}

/// The open run, or one of the compared runs.
fn any_run() -> impl Strategy<Value = rundir::RunId> {
    let compared: Vec<_> = compared_runs().into_iter().map(|row| row.run).collect();
    prop_oneof![3 => Just(stage_1()), 1 => prop::sample::select(compared)]
}

fn any_msg() -> impl Strategy<Value = Msg> {
    let log = (0usize..3, 1u32..3, any::<bool>(), prop::collection::vec(any_text(), 0..30)).prop_map(
        |(rank, attempt, from_start, lines)| {
            RunMsg::Log(LogChunk { rank, attempt, from_start, skipped_bytes: 1 << 20, lines })
        },
    );
    let logs = (1u32..3, any::<bool>(), any::<bool>(), prop::collection::vec((0usize..70, any_text()), 0..60))
        .prop_map(|(attempt, from_start, is_caught_up, lines)| {
            let skipped_bytes = lines.len() as u64 % 3;
            let zone_s = from_start.then_some(3600);
            RunMsg::Logs(RankLines { attempt, from_start, is_caught_up, skipped_bytes, zone_s, lines })
        });
    let earlier = (prop::option::of(0usize..3), 1u32..3, prop::collection::vec(any_text(), 0..20), 0usize..20)
        .prop_map(|(of, attempt, lines, error)| {
            let lines = lines.into_iter().map(|line| (log_lines::Level::Error, line)).collect();
            let found = EarlierError { rank: 1, lines, error, bytes_before: 9, hidden_bytes: 1 << 20 };
            RunMsg::EarlierErrors(EarlierErrors { of, attempt, found: Some(found), unsearched_bytes: 0 })
        });
    let bad_checkpoint = any_text().prop_map(|why| {
        RunMsg::Checkpoints(vec![checkpoint(80, 1.0), CheckpointEntry::Incomplete { step: 90, dir: "/x".into(), why }])
    });
    let run = prop_oneof![
        1 => Just(RunMsg::Opened),
        4 => any_metrics(),
        2 => any_node_points(),
        1 => Just(RunMsg::Events(events())),
        2 => any_row().prop_map(|row| RunMsg::State(status(RunRow { run: stage_1(), ..row }))),
        1 => bad_checkpoint,
        2 => log,
        3 => logs,
        1 => earlier,
        2 => prop::collection::vec((0u64..4, 0usize..3, any_text()), 0..8).prop_map(|all| {
            RunMsg::Samples(all.into_iter().map(|(step, index, prompt)| video_sample(step, index, &prompt)).collect())
        }),
        2 => (0u64..4, 0usize..3, 1u16..80, 1u16..30).prop_map(|(step, prompt, width, height)| {
            let size = Size { width, height };
            RunMsg::Clip { step, prompt, size, clip: Ok(clip(size, 3)) }
        }),
        1 => (0.0..1e6, 0.0..1e6).prop_map(|(wall_s, counted_s)| {
            RunMsg::Goodput(Goodput { wall_s, counted_s, stalled_s: wall_s - counted_s, ..Goodput::default() })
        }),
        1 => (0.0..1e9, 0.0..1e12).prop_map(|(gpu_s, energy_j)| RunMsg::Usage(rundir::GpuUsage { gpu_s, energy_j })),
        1 => Just(RunMsg::NextFrame),
        1 => Just(RunMsg::Lost(failure())),
        1 => prop::collection::vec((any_text(), any_text()), 0..6).prop_map(RunMsg::Recipe),
    ];
    let job = prop_oneof![
        any_text().prop_map(JobMsg::Progress),
        any_text().prop_map(|why| JobMsg::LaunchPlanned(launch_plan(vec![why]))),
        Just(JobMsg::LaunchPlanned(resume_plan(vec![]))),
        Just(JobMsg::KillPlanned(kill_plan())),
        Just(JobMsg::ActionPlanned(nodes_kill())),
        Just(JobMsg::Results(results())),
        Just(JobMsg::Done(Outcome::Acted(results()))),
        any_text().prop_map(|text| {
            let mut preview = convert_preview();
            preview.facts.push((text.clone(), text.clone()));
            preview.rows.push(ConvertRow { count: 3, source: text.clone(), target: text, wrong: true });
            JobMsg::ConvertPlanned(preview)
        }),
        (any::<u64>(), any::<u64>()).prop_map(|(done, total)| JobMsg::Converting { done, total }),
        any_text().prop_map(|why| JobMsg::Failed(rundir::Failure { why, ..failure() })),
        Just(JobMsg::Done(Outcome::Launched(stage_2()))),
    ];
    let nodes = prop::sample::select(vec![FleetSource::Given, FleetSource::Run(stage_1())]);
    let nodes = (nodes, 0usize..30).prop_map(|(of, count)| Msg::Nodes {
        of,
        nodes: Ok((0..count).map(|i| Node { id: NodeId::new(format!("n{i}")).unwrap(), slots: 1 }.into()).collect()),
    });
    let what = prop_oneof![
        8 => (any_text(), any_text()).prop_map(|(gpus, apps)| {
            let text = format!("#frame 1 5\n#gpus\n0, GPU-0, H100, 0:1:0.0, {gpus}\n\n#exit 0\n#apps\nGPU-0, 1, x, {apps}\n\n#exit 0\n#end 1\n");
            NodeMsg::Frame(Box::new(Frames::new(GpuQuery::default()).push(text.as_bytes()).remove(0)))
        }),
        4 => prop::collection::vec(any_number(), 0..20).prop_map(|powers| {
            let row = |(i, power): (usize, &f64)| {
                format!("{}, GPU-{i}, H100, 0:1:0.0, {power}, {power}, {i}, 0, {power}, {power}, {power}, {i}, 0x{i:x}, Disabled, {power}, {i}, {i}\n", i * i)
            };
            let rows: String = powers.iter().enumerate().map(row).collect();
            let text = format!("#frame 1 5\n#gpus\n{rows}\n#exit 0\n#end 1\n");
            NodeMsg::Frame(Box::new(Frames::new(GpuQuery::default()).push(text.as_bytes()).remove(0)))
        }),
        1 => prop::collection::vec(any_number(), 0..20).prop_map(|times| {
            let text = "#frame 1 5\n#gpus\n0, GPU-0, H100, 0:1:0.0, 600, 700, 5, 9, 100, 59, 1980, 0, 0x0, Disabled, [N/A], 5, 16\n\n#exit 0\n#end 1\n";
            let frame = Frames::new(GpuQuery::default()).push(text.as_bytes()).remove(0);
            let sample = NodeSample::new(1, &frame, None);
            NodeMsg::Recorded(times.into_iter().map(|t| NodeSample { t: NOW + t, ..sample.clone() }).collect())
        }),
        1 => Just(NodeMsg::Down(failure())),
        1 => Just(NodeMsg::Processes(Err(failure()))),
        3 => (0usize..5, any_text()).prop_map(|(i, command)| {
            let node = NodeId::new(format!("n{i}")).unwrap();
            let processes = processes().into_iter().map(|process| ListedProcess { command: command.clone(), ..process });
            let (boot_id, user) = ("4f70".into(), "ada".into());
            NodeMsg::Processes(Ok(NodeProcesses { node, boot_id, uid: 1000, user, processes: processes.collect() }))
        }),
        1 => any_text().prop_map(|output| NodeMsg::Smi(Ok(output))),
    ];
    let of_node =
        (0usize..5, what).prop_map(|(i, what)| Msg::Node { node: NodeId::new(format!("n{i}")).unwrap(), what });
    prop_oneof![
        12 => any_key(),
        6 => any_mouse(),
        1 => nodes,
        4 => of_node,
        1 => any_text().prop_map(Msg::Paste),
        2 => any_size().prop_map(|(width, height)| Msg::Resize(Size { width, height })),
        1 => any_number().prop_map(|t| Msg::Tick(NOW + t)),
        2 => prop::collection::vec(any_row(), 0..6).prop_map(|rows| Msg::Runs(Ok(RunList { rows, unreadable: vec![failure()] }))),
        2 => any_alerts(),
        1 => any_queue(),
        1 => Just(Msg::Runs(Err(failure()))),
        1 => Just(Msg::Curricula(curricula())),
        1 => any_text().prop_map(|about| Msg::Recipes(vec![RecipeView { about, ..recipes().remove(1) }, recipes().remove(3)])),
        1 => Just(Msg::Curricula(vec![CurriculumView { stages: Err(failure()), ..curricula().remove(0) }])),
        6 => (any_run(), run).prop_map(|(run, what)| Msg::Run { run, what }),
        4 => any_answer(),
        2 => (1u64..20, job).prop_map(|(job, what)| Msg::Job { job: JobId(job), what }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_messages_makes_drawing_panic(
        start in 0..13,
        msgs in prop::collection::vec(any_msg(), 1..40),
        sizes in prop::collection::vec(any_size(), 3),
        theme in any_theme(),
        picked in prop::option::of(prop::sample::subsequence(panel_set::PICKABLE.to_vec(), 0..8)),
        named in any::<bool>(),
        columns in 0u8..5,
        ascii in any::<bool>(),
    ) {
        let mut ui = match start {
            0 => Ui::new(),
            1 => Ui::on_run(running(83)),
            4 => {
                let mut ui = Ui::on_run(running(83));
                ui.press("3");
                let nodes = (0..5).map(|i| Node { id: NodeId::new(format!("n{i}")).unwrap(), slots: 1 }.into()).collect();
                ui.send(Msg::Nodes { of: FleetSource::Given, nodes: Ok(nodes) });
                ui.press("h");
                ui
            }
            2 => Ui::on_logs(vec!["one line".into(); 60]),
            3 => Ui::on_convert(convert_preview()),
            12 => {
                let mut ui = Ui::on_run(running(83));
                ui.press("c :");
                ui
            }
            5 => super::launch_form::on_form(),
            6 => Ui::on_compare(),
            8 => super::alerts::on_alerts(),
            9 => super::samples::on_samples(),
            10 => super::nodes::on_nodes(),
            11 => super::nodes::on_node(),
            7 => Ui::on_merged_logs(running(83), 8, (0..64).map(|rank| (rank, format!("[rank{rank}]: Error: x"))).collect()),
            _ => Ui::with_runs(many_runs().rows),
        };
        if ascii {
            ui.model.symbols = Symbols::ascii();
        }
        ui.model.theme = theme;
        let name = |panel| panel_set::name(panel, &Default::default());
        let own = ["series:train/aux", "series:eval/loss", "metric:temperature", "metric:tokens_per_s"].into_iter();
        let own = own.filter(|_| named).map(str::to_owned);
        ui.model.panels.picked = picked.map(|panels| panels.into_iter().map(name).chain(own).collect());
        ui.model.panels.columns = columns;
        for msg in msgs {
            ui.send(msg);
            watches(&ui.model);
        }
        for (width, height) in sizes.into_iter().chain([(0, 0), (1, 1), (40, 10), (80, 24), (300, 100)]) {
            ui.resize(width, height);
            let screen = ui.screen();
            prop_assert!(!ascii || screen.is_ascii());
            if theme == Theme::no_color() {
                let terminal = ui.terminal();
                let cells = &terminal.backend().buffer().content;
                prop_assert!(cells.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
            }
            if theme == Theme::ansi16() {
                let terminal = ui.terminal();
                let other = |color| matches!(color, Color::Rgb(..) | Color::Indexed(_));
                let cells = &terminal.backend().buffer().content;
                prop_assert!(!cells.iter().any(|cell| other(cell.fg) || other(cell.bg) || other(cell.underline_color)));
            }
        }
    }
}

#[test]
fn every_screen_and_dialog_draws_at_every_small_size() {
    let mut uis = vec![Ui::new(), Ui::on_run(running(83)), Ui::on_logs(vec!["a line that is long".into(); 9])];
    uis.push(Ui::with_runs(many_runs().rows));
    let mut stages = Ui::with_runs(many_runs().rows);
    stages.press("2");
    uis.push(stages);
    let mut listed = Ui::with_runs(vec![]);
    listed.send(Msg::Recipes(recipes()));
    listed.press("5 j j j");
    uis.push(listed);
    let plans = [
        JobMsg::LaunchPlanned(launch_plan(vec!["careful".into()])),
        JobMsg::KillPlanned(kill_plan()),
        JobMsg::ActionPlanned(nodes_kill()),
    ];
    for dialog in plans {
        let mut ui = Ui::with_runs(vec![running(83)]);
        let effects = ui.press("K");
        let [Effect::Job { job, request: Request::PlanKill { .. } }] = &effects[..] else { panic!("{effects:?}") };
        ui.answer(*job, dialog);
        uis.push(ui);
    }
    let mut checkpoints = Ui::on_run(running(83));
    checkpoints.press("c");
    uis.push(checkpoints);
    let mut palette = Ui::on_run(running(83));
    palette.press(": Down");
    uis.push(palette);
    let mut help = Ui::on_run(running(83));
    help.press("?");
    uis.push(help);
    for keys in ["Tab", "Tab Tab", "Tab Tab Tab", "+ t r"] {
        let mut form = super::launch_form::with_nodes();
        super::launch_form::answer(&mut form, super::launch_form::some_failed(true));
        form.press(keys);
        uis.push(form);
    }
    uis.push(Ui::on_compare());
    let mut recipes = Ui::on_compare();
    recipes.press("d");
    uis.push(recipes);
    for mut ui in uis {
        // A terminal without a size yet reports 0 × 0.
        for width in 0..45 {
            for height in 0..26 {
                ui.resize(width, height);
                ui.terminal();
            }
        }
    }
}

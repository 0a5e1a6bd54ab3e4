//! Tests of the Nodes and Node screens: conditions, sorting, filtering and watches.

use crate::fixtures::*;
use crate::fleet::{FleetSource, ListedNode, NodeHealth, Sort};
use crate::*;
use cluster::nvidia_smi::GpuQuery;
use cluster::probe::{Frame, Frames};
use cluster::{Absent, Node, NodeId, Reading};
use health::{Finding, Rule, Subject, Urgency};
use ratatui_core::style::Modifier;
use rundir::{ErrorCode, Failure, NodeSample};

fn named(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// A sample, parsed from the text that a node sends.
fn frame(number: u64, gpus: &str, apps: &str) -> Frame {
    let text = format!(
        "#frame {number} {}\n#host\n3.50 2.00 1.00 3/900 4711\nMemTotal: 2113331240 kB\nMemAvailable: 1900000000 kB\n\
         cpu  {} 0 0 {} 0 0 0 0 0 0\nnet eth0 {} {}\nib mlx5_0/1 {} {}\n#gpus\n{gpus}#end {number}\n",
        1_795_147_200 + 2 * number,
        number * 100,
        number * 700,
        number * 400_000_000,
        number * 20_000_000 + number * number * 100_000,
        number * 2_750_000_000,
        number * 2_200_000_000,
    );
    let text = text.replace("#end", &format!("{apps}#end"));
    Frames::new(GpuQuery::default()).push(text.as_bytes()).remove(0)
}

fn rows(power: u64, last: &str) -> String {
    let row = |i: u64| {
        format!(
            "{i}, GPU-{i}, NVIDIA H100 80GB HBM3, 00000000:1{i}:00.0, {power}.5, 700.00, 70210, 81559, 100, 59, 1980, 0, 0x0, Disabled, [N/A], 5, 16\n"
        )
    };
    (0..3).map(row).collect::<String>() + last + "\n#exit 0\n"
}

pub(super) fn busy(number: u64) -> Frame {
    let apps = "#apps\nGPU-0, 4100, vidtui-train, 70200\nGPU-1, 4101, python3, 70200\n\n#exit 0\n#processes\n\
                4100 ada 3700 /opt/vidtui/vidtui-train rank --run-dir /runs/x\n4101 grace 90 python3 train.py\n\
                #environment\n/proc/4100/environ:VIDTUI_RUN=2026-11-20T0340-demo-2s-k7f2\n/proc/4100/environ:RANK=12\n";
    frame(number, &rows(600 + number, ""), apps)
}

fn hot() -> Frame {
    let ecc = "3, GPU-3, NVIDIA H100 80GB HBM3, 00000000:13:00.0, ERR!, 700.00, 70210, 81559, 100, 91, 1410, 2, 0x40, Disabled, [N/A], 5, 16\n";
    frame(1, &rows(430, ecc), "")
}

fn lost() -> Frame {
    let error = "Unable to determine the device handle for GPU3: 0000:13:00.0: GPU is lost.  Reboot the system to recover this GPU\n";
    frame(1, &rows(630, error).replace("#exit 0", "#exit 15"), "")
}

fn mig() -> Frame {
    let row = "0, GPU-0, NVIDIA H100 80GB HBM3, 00000000:10:00.0, 210.1, 700.00, 11091, 81559, [N/A], 39, 1980, 0, 0x0, Enabled, [N/A], 5, 16\n";
    frame(
        1,
        &format!("{row}\n#exit 0\n"),
        "#apps\nGPU-0, [Insufficient Permissions], [Insufficient Permissions], [Insufficient Permissions]\n\n#exit 0\n",
    )
}

pub(super) fn no_gpus(number: u64) -> Frame {
    frame(number, "sh: 1: nvidia-smi: not found\n\n#exit 127\n", "")
}

pub(super) fn away() -> Failure {
    Failure::new(
        ErrorCode::NoAnswer,
        "cannot watch node gpu005",
        "10.0.0.5 port 22 did not answer within 10 s",
        "check that the node and its network are up: ping 10.0.0.5",
    )
}

/// The Nodes screen with these nodes and their samples. The samples are two seconds apart, and the last one is from
/// now.
fn with(nodes: &[(&str, Vec<Frame>)]) -> Ui {
    let mut ui = Ui::with_runs(vec![running(83)]);
    ui.press("3");
    let listed = nodes.iter().map(|(name, _)| Node { id: named(name), slots: 8 }.into()).collect();
    ui.send(Msg::Nodes { of: FleetSource::Given, nodes: Ok(listed) });
    let longest = nodes.iter().map(|(_, frames)| frames.len()).max().unwrap_or(0);
    for later in (0..longest).rev() {
        ui.send(Msg::Tick(NOW - 2.0 * later as f64));
        for (name, frames) in nodes {
            if let Some(frame) = frames.len().checked_sub(later + 1).map(|at| &frames[at]) {
                ui.send(Msg::Node { node: named(name), what: NodeMsg::Frame(Box::new(frame.clone())) });
            }
        }
    }
    ui.send(Msg::Tick(NOW + 1.0));
    ui
}

/// Nodes in every condition.
fn mixed() -> Ui {
    let mut ui = with(&[
        ("gpu001", (1..90).map(busy).collect()),
        ("gpu002", vec![hot()]),
        ("gpu003", vec![lost()]),
        ("gpu004", vec![mig()]),
        ("gpu005", vec![busy(1)]),
        ("cpu006", vec![no_gpus(1), no_gpus(2)]),
        ("gpu007", vec![]),
        ("gpu008", vec![busy(2)]),
    ]);
    ui.send(Msg::Node { node: named("gpu005"), what: NodeMsg::Down(away()) });
    // These nodes have newer samples; the others do not.
    ui.model.tick(NOW + 136.0);
    for (name, frame) in
        [("gpu001", busy(90)), ("gpu002", hot()), ("gpu003", lost()), ("gpu004", mig()), ("cpu006", no_gpus(3))]
    {
        ui.send(Msg::Node { node: named(name), what: NodeMsg::Frame(Box::new(frame)) });
    }
    // Three searches for outliers.
    [137.0, 139.0, 141.0].into_iter().for_each(|later| _ = ui.send(Msg::Tick(NOW + later)));
    ui
}

/// The Nodes screen with nodes in every condition.
pub(super) fn on_nodes() -> Ui {
    mixed()
}

/// The Node screen of the selected node.
pub(super) fn on_node() -> Ui {
    let mut ui = mixed();
    ui.press("Enter");
    assert_eq!(ui.model.screen, Screen::Node);
    ui
}

#[test]
fn nodes_are_shown_in_every_state() {
    let mut ui = mixed();
    insta::assert_snapshot!(ui.screen());
    ui.resize(160, 48);
    insta::assert_snapshot!("nodes_are_shown_in_every_state_at_160x48", ui.screen());
}

#[test]
fn the_slurm_state_of_unreachable_nodes_is_shown_too() {
    let output = "gpu001|train*|allocated|64|2000000|gpu:8|Unknown|none\n\
                gpu002|train*|draining|64|2000000|gpu:8|1795140000|fan 3 is loud\n\
                gpu003|train*|down*|64|2000000|gpu:8|1795147000|Not responding\n\
                gpu004|train*|idle|64|2000000|gpu:8|Unknown|none\n";
    let slurm = cluster::slurm::read_nodes(output).rows.into_iter();
    let listed = |slurm: cluster::slurm::SlurmNode| ListedNode {
        node: Node { id: slurm.node.clone(), slots: 8 },
        slurm: Some(slurm),
    };
    let listed: Vec<ListedNode> = slurm.map(listed).collect();
    let mut ui = with(&[]);
    ui.send(Msg::Nodes { of: FleetSource::Given, nodes: Ok(listed.clone()) });
    for name in ["gpu001", "gpu002"] {
        ui.send(Msg::Node { node: named(name), what: NodeMsg::Frame(Box::new(busy(1))) });
    }
    for name in ["gpu003", "gpu004"] {
        ui.send(Msg::Node { node: named(name), what: NodeMsg::Down(away()) });
    }
    ui.send(Msg::Tick(NOW + 1.0));
    ui.press("> j j");
    insta::assert_snapshot!(ui.screen());
    // When Slurm stops responding, the previous list stays, with a note.
    let silent = Failure::new(
        rundir::ErrorCode::SlurmUnreachable,
        "cannot list Slurm's nodes",
        "Slurm's controller does not answer",
        "wait",
    );
    ui.send(Msg::Nodes { of: FleetSource::Given, nodes: Err(silent) });
    insta::assert_snapshot!("nodes_of_slurm_that_does_not_respond_80x24", ui.screen());
    ui.press("/");
    ui.type_in("down");
    ui.press("Enter");
    assert!(ui.screen().contains("gpu003") && !ui.screen().contains("gpu001"), "{}", ui.screen());
}

#[test]
fn an_unreachable_node_shows_since_when_and_why() {
    let mut ui = mixed();
    ui.press("> j j j j");
    insta::assert_snapshot!("nodes_with_an_unreachable_one_selected_80x24", ui.screen());
    ui.press("Enter");
    insta::assert_snapshot!("node_unreachable_80x24", ui.screen());
    ui.send(Msg::Node { node: named("gpu005"), what: NodeMsg::Frame(Box::new(busy(7))) });
    ui.send(Msg::Tick(NOW + 142.0));
    assert_eq!(ui.model.selected_node().unwrap().condition(ui.model.now), NodeHealth::Well);
}

#[test]
fn the_state_of_an_unreachable_node_is_its_kind_of_error() {
    let mut ui = with(&[("gpu001", vec![])]);
    for (code, state) in [
        (ErrorCode::NoAddress, "no address"),
        (ErrorCode::ConnectionRefused, "refused"),
        (ErrorCode::HostKeyChanged, "key changed"),
        (ErrorCode::HostKeyUnknown, "key unknown"),
        (ErrorCode::NoAnswer, "no answer"),
        (ErrorCode::LoginRefused, "login failed"),
        (ErrorCode::NodeUnreachable, "unreachable"),
        (ErrorCode::HostKey, "unreachable"),
    ] {
        let why = Failure::new(code, "cannot watch node gpu001", "a reason", "a hint");
        ui.send(Msg::Node { node: named("gpu001"), what: NodeMsg::Down(why) });
        let view = ui.model.fleet.node(&named("gpu001")).unwrap();
        assert_eq!((view.state(ui.model.now), view.condition(ui.model.now)), (state, NodeHealth::Unreachable));
        assert!(ui.screen().contains(&format!("{state} for 0 s: a reason  a hint")), "{}", ui.screen());
        ui.press("/");
        ui.type_in(state);
        ui.press("Enter");
        assert!(ui.screen().contains("gpu001"), "{}", ui.screen());
        ui.press("Esc");
    }
}

#[test]
fn a_long_ipv6_address_keeps_its_end() {
    let mut ui = with(&[("2001:db8:1234:5678:9abc:def0:1234:5678", vec![busy(1)])]);
    assert!(ui.screen().contains("…:5678:9abc:def0:1234:5678 "), "{}", ui.screen());
    ui.resize(160, 48);
    assert!(ui.screen().contains("…8:1234:5678:9abc:def0:1234:5678 "), "{}", ui.screen());
}

#[test]
fn a_node_shows_its_gpus_and_the_owners_of_processes() {
    let mut ui = mixed();
    ui.press("> Enter");
    insta::assert_snapshot!(ui.screen());
    ui.resize(160, 48);
    insta::assert_snapshot!("a_node_shows_its_gpus_and_the_owners_of_processes_at_160x48", ui.screen());
}

#[test]
fn a_node_with_faults_shows_them_with_hints() {
    let mut ui = mixed();
    ui.press("> j Enter");
    insta::assert_snapshot!(ui.screen());
}

#[test]
fn a_node_with_mig_has_no_utilization_and_no_fault() {
    let mut ui = mixed();
    ui.press("> j j j Enter");
    insta::assert_snapshot!(ui.screen());
}

#[test]
fn nodes_without_gpus_show_cpu_and_memory() {
    let mut ui = with(&[("cpu001", (1..40).map(no_gpus).collect()), ("cpu002", vec![no_gpus(1)])]);
    insta::assert_snapshot!(ui.screen());
    ui.press("Enter");
    insta::assert_snapshot!("a_node_without_gpus", ui.screen());
}

#[test]
fn gpus_that_use_the_memory_of_their_node_show_it() {
    let gb10 = |number: u64| {
        let row = "0, GPU-0, NVIDIA GB10, 0000000F:01:00.0, 38.2, [N/A], [N/A], [N/A], 96, 61, 2411, [N/A], 0x0, [N/A], [N/A], 1, 1\n";
        frame(number, &format!("{row}\n#exit 0\n"), "#apps\n\n#exit 0\n")
    };
    let mut ui = with(&[("spark1", (1..40).map(gb10).collect())]);
    let screen = ui.screen();
    assert!(screen.contains("203/2015 GiB"), "{screen}");
    ui.press("Enter");
    insta::assert_snapshot!("a_node_whose_gpus_use_its_memory", ui.screen());
}

#[test]
fn a_list_of_nodes_loads_or_shows_why_it_cannot_be_read() {
    let mut ui = Ui::new();
    ui.press("3");
    assert!(ui.model.fleet.listed.is_none());
    insta::assert_snapshot!("nodes_loading_80x24", ui.screen());
    let why = Failure::new(
        rundir::ErrorCode::InvalidHostfile,
        "cannot use hostfile gpus.txt",
        "line 3: gpu001 is listed again",
        "list it once",
    );
    ui.send(Msg::Nodes { of: FleetSource::Given, nodes: Err(why) });
    insta::assert_snapshot!("nodes_with_a_broken_hostfile_80x24", ui.screen());
}

#[test]
fn nvidia_smi_runs_only_while_its_output_is_shown() {
    let mut ui = mixed();
    let nodes = Watch::Nodes(FleetSource::Given);
    assert!(watches(&ui.model).contains(&nodes));
    ui.press("> Enter Tab");
    let smi = Watch::Smi { of: FleetSource::Given, node: named("gpu001") };
    assert!(watches(&ui.model).contains(&smi) && watches(&ui.model).contains(&nodes));
    let output: String = (0..60).map(|i| format!("| line {i} |\n")).collect();
    ui.send(Msg::Node { node: named("gpu001"), what: NodeMsg::Smi(Ok(output)) });
    assert!(ui.screen().contains("line 0 ") && !ui.screen().contains("line 59"));
    ui.press("G");
    assert!(ui.screen().contains("line 59 ") && ui.screen().contains("of 61"), "{}", ui.screen());
    ui.press("Tab");
    assert!(!watches(&ui.model).contains(&smi));
    ui.press("Esc Esc");
    assert!(!watches(&ui.model).contains(&nodes), "hidden nodes are not sampled");
}

#[test]
fn nodes_are_sorted_by_value_and_filtered_by_name_or_fault() {
    let mut ui = mixed();
    let order = |ui: &Ui| -> Vec<String> {
        ui.model.screens.nodes.order.iter().map(|at| ui.model.fleet.nodes()[*at].node.id.to_string()).collect()
    };
    assert_eq!(order(&ui)[..4], ["gpu005", "gpu002", "gpu003", "gpu004"], "faults, then the outlier");
    assert_eq!(order(&ui)[4..], ["gpu001", "cpu006", "gpu007", "gpu008"], "then as listed");
    ui.press(">");
    assert_eq!((ui.model.screens.nodes.sort, order(&ui)[0].as_str()), (Sort::Listed, "gpu001"));
    ui.press(">");
    assert_eq!(order(&ui)[..2], ["gpu001", "gpu003"], "most power first");
    ui.press("<");
    assert_eq!(order(&ui)[0], "gpu004", "least power first");
    assert!(order(&ui)[6..].contains(&"gpu007".to_owned()), "a node without the value is last in either direction");
    ui.press("/");
    ui.type_in("memory err");
    ui.press("Enter");
    assert_eq!(order(&ui), ["gpu002"]);
    ui.press("Esc");
    assert_eq!(order(&ui).len(), 8);
}

#[test]
fn the_selection_stays_on_its_node_when_the_order_changes() {
    let mut ui = with(&[("a", vec![busy(1)]), ("b", vec![busy(9)])]);
    ui.press("j > >");
    assert_eq!(ui.model.selected_node().unwrap().node.id, named("b"));
    ui.send(Msg::Nodes { of: FleetSource::Given, nodes: Ok(vec![Node { id: named("b"), slots: 8 }.into()]) });
    let view = ui.model.selected_node().unwrap();
    assert!(view.node.id == named("b") && view.frame.is_some(), "its sample is kept");
    ui.send(Msg::Node { node: named("a"), what: NodeMsg::Frame(Box::new(busy(1))) });
    assert_eq!(ui.model.fleet.nodes().len(), 1, "a late sample of a removed node is ignored");
}

#[test]
fn one_key_shows_the_nodes_of_a_run_and_esc_goes_back() {
    let mut ui = Ui::on_run(running(83));
    ui.press("N");
    assert!(watches(&ui.model).contains(&Watch::Nodes(FleetSource::Run(stage_1()))));
    ui.send(Msg::Nodes { of: FleetSource::Given, nodes: Ok(vec![Node { id: named("other"), slots: 1 }.into()]) });
    assert!(ui.model.fleet.nodes().is_empty(), "a list of another source is ignored");
    ui.press("Esc");
    assert_eq!(ui.model.screen, Screen::Run);
}

#[test]
fn samples_of_nodes_are_drawn_with_the_next_tick() {
    let mut ui = mixed();
    ui.model.drawn();
    ui.send(Msg::Node { node: named("gpu001"), what: NodeMsg::Frame(Box::new(busy(91))) });
    assert!(!ui.model.dirty());
    ui.send(Msg::Tick(NOW + 142.0));
    assert!(ui.model.dirty());
}

#[test]
fn the_next_node_follows_the_order_of_the_list() {
    let mut ui = mixed();
    ui.press("> Enter ]");
    assert_eq!(ui.model.screens.node.as_ref().unwrap().id, named("gpu002"));
    ui.press("[ [");
    assert_eq!(ui.model.screens.node.as_ref().unwrap().id, named("gpu001"));
}

#[test]
fn a_thousand_nodes_can_be_scrolled() {
    let names: Vec<String> = (1..=1024).map(|i| format!("gpu{i:04}")).collect();
    let nodes: Vec<(&str, Vec<Frame>)> = names.iter().map(|name| (name.as_str(), vec![busy(1)])).collect();
    let mut ui = with(&nodes);
    let sum = ui.model.fleet.summary();
    assert_eq!((sum.nodes, sum.up, sum.gpus), (1024, 1024, 3072));
    ui.press("G");
    assert!(ui.screen().contains("▸ ● gpu1024"), "{}", ui.screen());
    ui.press("PgUp g");
    assert!(ui.screen().contains("▸ ● gpu0001"));
}

#[test]
fn totals_over_unknown_values_are_unknown_and_means_are_over_the_known_ones() {
    let unknown = |mut frame: Frame| {
        frame.gpus[1].mem_used_mib = Reading::Absent(Absent::NotAvailable);
        frame.gpus[1].power_w = Reading::Absent(Absent::UnknownError);
        frame
    };
    let all = |first: Frame| with(&[("gpu001", vec![first]), ("gpu002", vec![busy(1)])]);
    let (known, partly) = (all(busy(1)), all(unknown(busy(1))));
    let node = |ui: &Ui| ui.model.fleet.nodes()[0].summary.clone();
    assert!(node(&known).power_w.is_some() && node(&known).gpu_mem_used_mib.is_some());
    assert_eq!((node(&partly).power_w, node(&partly).gpu_mem_used_mib), (None, None));
    assert!(node(&partly).power_w_mean.is_some() && node(&partly).gpu_mem_total_mib.is_some());
    let (known, sum) = (known.model.fleet.summary(), partly.model.fleet.summary());
    assert!(known.mem_used_mib > Some(0) && known.mem_total_mib > Some(0));
    assert_eq!((sum.mem_used_mib, sum.mem_total_mib), (None, None));
    assert!(sum.power_w_mean.is_some());
    assert!(partly.screen().contains("memory unknown"), "{}", partly.screen());
}

#[test]
fn findings_about_a_node_are_shown_with_it() {
    let mut ui = mixed();
    let node = ui.model.fleet.nodes()[0].node.id.clone();
    let about = Subject::Gpu(node, 2);
    let (saw, fix) = ("it draws 210 W where the others draw 650 W".into(), "see its power limit".into());
    let found = Finding { rule: Rule::PowerLow, urgency: Urgency::Look, about, since_s: Some(NOW - 120.0), saw, fix };
    let rows = vec![RunRow { findings: vec![found], ..running(83) }];
    ui.send(Msg::Runs(Ok(RunList { rows, unreadable: vec![] })));
    ui.resize(160, 48);
    ui.press("> g");
    insta::assert_snapshot!("nodes_with_a_finding_160x48", ui.screen());
    ui.press("Enter");
    insta::assert_snapshot!("node_with_a_finding_160x48", ui.screen());
}

/// Nodes with eight GPUs each. One GPU draws little power, and one node is unreachable.
fn many(count: usize) -> Ui {
    let gpu = |node: usize, gpu: usize| {
        let power = if (node, gpu) == (7, 3) { 210 } else { 610 + (node * 7 + gpu * 13) % 60 };
        let temp = 55 + (node + gpu) % 9;
        format!(
            "{gpu}, GPU-{gpu}, NVIDIA H100 80GB HBM3, 00000000:1{gpu}:00.0, {power}.0, 700.00, 70210, 81559, 100, {temp}, 1980, 0, 0x0, Disabled, [N/A], 5, 16\n"
        )
    };
    let names: Vec<String> = (0..count).map(|node| format!("gpu{node:03}")).collect();
    let sample = |node: usize| {
        let rows: String = (0..8).map(|at| gpu(node, at)).collect();
        vec![frame(1, &format!("{rows}\n#exit 0\n"), "")]
    };
    let nodes: Vec<(&str, Vec<Frame>)> = names.iter().enumerate().map(|(n, name)| (name.as_str(), sample(n))).collect();
    let mut ui = with(&nodes);
    ui.send(Msg::Node { node: named("gpu009"), what: NodeMsg::Down(away()) });
    // Three searches for outliers.
    [2.0, 4.0, 6.0].into_iter().for_each(|later| _ = ui.send(Msg::Tick(NOW + later)));
    ui
}

#[test]
fn a_heat_map_shows_every_gpu_of_128_nodes() {
    let mut ui = many(128);
    ui.press("h");
    super::screens::picture("heat_map", ui);
}

#[test]
fn one_key_cycles_the_heat_map() {
    let mut ui = many(12);
    let shown = |ui: &Ui| ui.model.screens.nodes.heat.map(|value| value.word());
    let mut words = Vec::new();
    for _ in 0..5 {
        ui.press("h");
        words.push(shown(&ui));
    }
    assert_eq!(words, [Some("power"), Some("utilization"), Some("memory"), Some("temperature"), None]);
}

#[test]
fn a_gpu_far_from_the_others_is_an_outlier_and_noise_is_not() {
    use crate::fleet::gpu_value::{GpuReader, GpuSpread, GpuValue};
    let ui = many(12);
    let nodes = ui.model.fleet.nodes();
    let outliers = |value: GpuValue| {
        let spread = GpuSpread::of(&GpuReader::new(value, || None), nodes).unwrap();
        let gpus = nodes.iter().flat_map(|view| view.gpus().iter().map(move |gpu| (view.node.id.to_string(), gpu)));
        gpus.filter(|(_, gpu)| spread.is_outlier(value.of(gpu)))
            .map(|(node, gpu)| (node, gpu.index))
            .collect::<Vec<_>>()
    };
    assert_eq!(outliers(GpuValue::Power), [("gpu007".to_owned(), 3)]);
    assert_eq!(outliers(GpuValue::Temperature), []);
    assert_eq!(GpuSpread::of(&GpuReader::new(GpuValue::Power, || None), &[]), None);
}

#[test]
fn the_selection_moves_over_the_columns_of_the_heat_map() {
    let mut ui = many(128);
    ui.resize(160, 48);
    let selected = |ui: &Ui| ui.model.selected_node().unwrap().node.id.to_string();
    ui.press("> h Right");
    let beside = selected(&ui);
    assert_ne!(beside, "gpu000");
    ui.press("Left");
    assert_eq!(selected(&ui), "gpu000");
    ui.press("Left j");
    assert_eq!(selected(&ui), "gpu001");
    ui.press("G");
    assert!(ui.screen().contains("gpu127"));
}

#[test]
fn a_clock_that_is_set_back_leaves_the_history_in_order_and_still_finds_late_nodes() {
    let mut ui = with(&[("gpu001", (1..20).map(busy).collect())]);
    ui.resize(160, 48);
    let hour = 3600.0;
    ui.send(Msg::Tick(NOW - hour));
    for number in 20..25 {
        ui.send(Msg::Node { node: named("gpu001"), what: NodeMsg::Frame(Box::new(busy(number))) });
        ui.send(Msg::Tick(NOW - hour + 2.0 * f64::from(number as u32 - 19)));
    }
    let node = ui.model.selected_node().unwrap();
    let times: Vec<f64> = node.history.samples().map(|moment| moment.t).collect();
    assert!(times.is_sorted() && times.len() == 24, "{times:?}");
    assert_eq!(node.condition(ui.model.now), NodeHealth::Well);
    ui.send(Msg::Tick(NOW - hour + 100.0));
    assert_eq!(ui.model.selected_node().unwrap().condition(ui.model.now), NodeHealth::Late);
}

#[test]
fn a_selected_node_has_a_history_where_there_is_room() {
    let mut ui = mixed();
    ui.resize(160, 48);
    ui.press(">");
    let history = &ui.model.selected_node().unwrap().history;
    assert_eq!((history.samples().len(), history.newest().unwrap().power_w), (90, 690.5));
    for lane in ["Mean GPU power", "GPU utilization", "GPU memory", "InfiniBand", "10 min ago"] {
        assert!(ui.screen().contains(lane), "{lane}");
    }
    ui.resize(80, 24);
    assert!(!ui.screen().contains("Mean GPU power"), "the list and the details need the rows");
}

#[test]
fn a_short_list_leaves_rows_for_a_history_on_a_small_terminal_too() {
    let ui = with(&[("gpu001", (1..90).map(busy).collect()), ("gpu002", vec![busy(1)])]);
    assert!(ui.screen().contains("Mean GPU power"), "{}", ui.screen());
}

#[test]
fn two_keys_zoom_the_history_and_both_screens_share_it() {
    let mut ui = mixed();
    ui.resize(160, 48);
    ui.press("> - -");
    assert!(ui.screen().contains("12 h ago"), "{}", ui.screen());
    ui.press("Enter +");
    assert!(ui.screen().contains("history of 1 h"), "{}", ui.screen());
    ui.press("Esc");
    assert!(ui.screen().contains("1 h ago"));
    // The time window stays when another list of nodes is shown.
    ui.model.fleet.turn_to(FleetSource::Run(stage_1()));
    ui.press("3");
    assert_eq!(ui.model.screens.nodes.window, crate::fleet::HistoryWindow::Hour);
}

#[test]
fn the_history_of_a_node_of_a_run_begins_with_the_samples_that_its_supervisor_recorded() {
    let mut ui = Ui::on_run(running(83));
    ui.press("N");
    let listed = vec![Node { id: named("gpu001"), slots: 8 }.into()];
    ui.send(Msg::Nodes { of: FleetSource::Run(stage_1()), nodes: Ok(listed) });
    let stream = Watch::Recorded { run: stage_1(), node: named("gpu001") };
    assert!(!watches(&ui.model).contains(&stream), "the memory size of the GPUs is unknown");
    ui.send(Msg::Node { node: named("gpu001"), what: NodeMsg::Frame(Box::new(busy(1))) });
    assert!(watches(&ui.model).contains(&stream));
    // Eleven hours, and a sample from the future.
    let rates = (Some(200_000_000), Some(4_400_000_000));
    let sample = NodeSample::new(1, &frame(1, &rows(300, ""), ""), None);
    let sample = NodeSample { net_rx_bytes_per_s: rates.0, ib_tx_bytes_per_s: rates.1, ..sample };
    let times = (1..=5657).rev().map(|at| NOW - 7.0 * f64::from(at)).chain([NOW + 100.0]);
    let samples: Vec<NodeSample> = times.map(|t| NodeSample { t, ..sample.clone() }).collect();
    for piece in samples.chunks(250) {
        ui.send(Msg::Node { node: named("gpu001"), what: NodeMsg::Recorded(piece.to_vec()) });
    }
    let history = &ui.model.selected_node().unwrap().history;
    let power: Vec<_> = history.points(|moment| moment.power_w).collect();
    assert!(power.windows(2).all(|pair| (1.0..100.0).contains(&(pair[1].t - pair[0].t))), "{power:?}");
    assert!(NOW - power[0].t > 39_500.0);
    let (newest, recorded) = power.split_last().unwrap();
    assert_eq!((newest.t, newest.value), (NOW, 601.5));
    assert!(recorded.iter().all(|point| point.value == 300.5));
    assert!(history.points(|moment| moment.mem_share).all(|point| (0.85..0.87).contains(&point.value)));
    assert!(history.gpu_points(2, |gpu| gpu.mem_share()).all(|point| (0.85..0.87).contains(&point.value)));
    assert!(history.points(|moment| moment.temp_c).all(|point| point.value == 59.0));
    assert!(history.gpu_points(2, |gpu| gpu.temp_c()).all(|point| point.value == 59.0));
    // The rates of the newest sample are unknown, because it is the first one that the console got.
    let network: Vec<f32> = history.points(|moment| moment.net_rx).map(|point| point.value).collect();
    let infiniband: Vec<f32> = history.points(|moment| moment.ib_tx).map(|point| point.value).collect();
    for (rate, recorded) in [(2e8, network), (4.4e9, infiniband)] {
        let (newest, recorded) = recorded.split_last().unwrap();
        assert!(newest.is_nan() && recorded.iter().all(|value| (value / rate - 1.0).abs() < 1e-5), "{recorded:?}");
    }
    // All are sent. Later, the samples of the time in which the screen was hidden are read.
    ui.send(Msg::Node { node: named("gpu001"), what: NodeMsg::Recorded(Vec::new()) });
    assert!(!watches(&ui.model).contains(&stream));
    ui.model.now += 130.0;
    assert!(watches(&ui.model).contains(&stream));
    ui.press("Esc");
    assert!(!watches(&ui.model).contains(&stream));
}

#[test]
fn the_histories_of_the_last_lists_of_nodes_stay_while_another_list_is_shown() {
    let mut ui = with(&[("gpu001", (1..20).map(busy).collect())]);
    ui.press("1 N");
    assert!(ui.model.fleet.of != FleetSource::Given && ui.model.fleet.nodes().is_empty());
    ui.press("3");
    let samples = |ui: &Ui| ui.model.selected_node().map(|view| view.history.samples().len());
    assert_eq!(samples(&ui), Some(19));
    ui.send(Msg::Nodes { of: FleetSource::Given, nodes: Ok(vec![Node { id: named("gpu001"), slots: 8 }.into()]) });
    assert_eq!(samples(&ui), Some(19));
    for number in 0..4 {
        ui.model.fleet.turn_to(FleetSource::Hostfile(format!("hostfiles/{number}.txt").into()));
        ui.model.fleet.list(Ok(vec![Node { id: named("gpu001"), slots: 8 }.into()]));
    }
    ui.model.fleet.turn_to(FleetSource::Given);
    assert!(ui.model.fleet.nodes().is_empty(), "the oldest of more than three other lists is dropped");
}

#[test]
fn full_load_is_a_line_and_not_a_block() {
    let full = (1..=300).map(|number| frame(number, &rows(699, ""), "")).collect();
    let mut ui = with(&[("gpu001", full)]);
    ui.resize(160, 48);
    ui.press("Enter");
    let screen = ui.screen();
    let dots = |line: &str| line.chars().filter(|c| ('\u{2801}'..='\u{28ff}').contains(c)).count();
    let drawn: Vec<usize> = screen.split("Processes").next().unwrap().lines().map(dots).collect();
    let widest = *drawn.iter().max().unwrap();
    // Each of the three GPUs has at least four rows of history; only the first of these rows has the lines of power
    // and utilization.
    assert_eq!(drawn.iter().filter(|count| **count > widest / 2).count(), 3, "{screen}");
}

#[test]
fn a_node_is_pictured_with_its_history() {
    let gpu = |node: u64, number: u64, gpu: u64| {
        let wave = |period: f64| ((number as f64 / period + (node * 3 + gpu) as f64).sin() + 1.0) / 2.0;
        let (power, util) = if number % 60 < 6 { (310.0, 40) } else { (590.0 + 80.0 * wave(9.0), 100) };
        let (mem, temp) = (70_210 + number * 4, 58 + (6.0 * wave(30.0)) as u64);
        let (power, temp) = if (node, gpu) == (2, 5) { (power * 0.45, 41) } else { (power, temp) };
        format!(
            "{gpu}, GPU-{gpu}, NVIDIA H100 80GB HBM3, 00000000:1{gpu}:00.0, {power:.1}, 700.00, {mem}, 81559, {util}, {temp}, 1980, 0, 0x4, Disabled, [N/A], 5, 16\n"
        )
    };
    let apps: String = (0..8).map(|gpu| format!("GPU-{gpu}, {}, vidtui-train, 70200\n", 4100 + gpu)).collect();
    let owners: String = (0..8)
        .map(|gpu| format!("{} ada 3700 /opt/vidtui/vidtui-train rank --run-dir /runs/x\n", 4100 + gpu))
        .collect();
    let set: String = (0..8)
        .map(|gpu| {
            format!(
                "/proc/{0}/environ:VIDTUI_RUN=2026-11-20T0340-demo-2s-k7f2\n/proc/{0}/environ:RANK={1}\n",
                4100 + gpu,
                8 + gpu
            )
        })
        .collect();
    let sample = |node: u64, number: u64| {
        let rows: String = (0..8).map(|at| gpu(node, number, at)).collect();
        let usage: String =
            (0..8).map(|gpu| format!("{} {} 12 {}\n", 4100 + gpu, number * (203 + gpu), (9 + gpu) << 20)).collect();
        let apps = format!("#apps\n{apps}\n#exit 0\n#processes\n{owners}#usage\n{usage}#environment\n{set}");
        frame(number, &format!("{rows}\n#exit 0\n"), &apps)
    };
    let names = ["node01", "node02", "node03", "node04"];
    let nodes: Vec<(&str, Vec<Frame>)> =
        (1..).zip(names).map(|(node, name)| (name, (1..=290).map(|n| sample(node, n)).collect())).collect();
    let mut ui = with(&nodes);
    super::screens::picture("nodes_in_training", Ui { model: ui.model.clone() });
    ui.press("Enter");
    super::screens::picture("node_in_training", ui);
}

#[test]
fn an_outlier_of_a_few_samples_does_not_reorder_the_nodes() {
    let power = |power: u64| frame(1, &rows(power, ""), "");
    let mut ui = with(&[("a", vec![power(600)]), ("b", vec![power(600)]), ("c", vec![power(600)])]);
    let first = |ui: &Ui| ui.model.fleet.nodes()[ui.model.screens.nodes.order[0]].node.id.to_string();
    let mut now = NOW + 1.0;
    let mut hear = |ui: &mut Ui, watts: u64| {
        now += 2.0;
        for (name, watts) in [("a", 600), ("b", 600), ("c", watts)] {
            ui.send(Msg::Node { node: named(name), what: NodeMsg::Frame(Box::new(power(watts))) });
        }
        ui.send(Msg::Tick(now));
        first(ui)
    };
    let firsts: Vec<String> = (0..60).map(|turn| hear(&mut ui, if turn % 4 == 1 { 200 } else { 600 })).collect();
    assert!(firsts.iter().all(|first| first == "a"), "{firsts:?}");
    let turns = (0..60).position(|_| hear(&mut ui, 200) == "c").unwrap();
    assert!((4..12).contains(&turns), "{turns}");
    assert!((0..29).all(|_| hear(&mut ui, 600) == "c"), "it stays for a minute");
    assert!((0..30).any(|_| hear(&mut ui, 600) == "a"));
}

#[test]
fn a_heat_map_of_more_nodes_than_fit_names_the_visible_ones() {
    let mut ui = many(128);
    ui.press("> h");
    assert!(ui.screen().contains("nodes 1-33 of 128"), "{}", ui.screen());
    ui.press("G");
    assert!(ui.screen().contains("of 128") && !ui.screen().contains("nodes 1-"), "{}", ui.screen());
    ui.resize(160, 48);
    assert!(!ui.screen().contains("of 128"), "all fit");
}

#[test]
fn a_click_in_the_heat_map_selects_the_node_and_another_one_opens_it() {
    let mut ui = many(128);
    ui.press("> h");
    let click = |ui: &mut Ui, name: &str| {
        let screen = ui.screen();
        let (row, line) = screen.lines().enumerate().find(|(_, line)| line.contains(name)).unwrap();
        let column = line.split(name).next().unwrap().chars().count();
        // Click on a bar behind the name.
        ui.send(Msg::Mouse(Mouse { kind: MouseKind::Press, column: column as u16 + 9, row: row as u16 }));
    };
    click(&mut ui, "gpu017");
    assert_eq!((ui.model.selected_node().unwrap().node.id.as_str(), ui.model.screen), ("gpu017", Screen::Nodes));
    click(&mut ui, "gpu030");
    click(&mut ui, "gpu030");
    assert_eq!((ui.model.selected_node().unwrap().node.id.as_str(), ui.model.screen), ("gpu030", Screen::Node));
}

#[test]
fn the_heat_map_shows_the_step_times_of_the_open_run_on_its_gpus() {
    let nodes = ["gpu001", "gpu002"].map(|name| Node { id: named(name), slots: 3 });
    let mut ui = Ui::on_run(running(83));
    let mut status = status(running(83));
    status.attempt = Some(rundir::Attempt { placement: cluster::Placement::new(&nodes, 6).unwrap(), ..attempt(1, 0) });
    ui.run_msg(RunMsg::State(status));
    let slow = rundir::MetricSample { busy_s_by_rank: vec![1.0, 1.02, 1.01, 1.0, 1.9, 1.03], ..sample(1, 84) };
    ui.run_msg(RunMsg::Metrics(vec![slow]));
    ui.press("N");
    let of = FleetSource::Run(stage_1());
    ui.send(Msg::Nodes { of, nodes: Ok(nodes.into_iter().map(ListedNode::from).collect()) });
    for name in ["gpu001", "gpu002"] {
        ui.send(Msg::Node { node: named(name), what: NodeMsg::Frame(Box::new(busy(3))) });
    }
    ui.send(Msg::Tick(NOW + 1.0));
    ui.press("h h h h h");
    assert_eq!(ui.model.screens.nodes.heat.map(|value| value.word()), Some("step time"));
    ui.resize(160, 48);
    let screen = ui.screen();
    assert!(screen.contains("step 84") && screen.contains("median 1.02 s") && screen.contains("1 outlier"), "{screen}");
    super::screens::picture("heat_map_of_step_times", Ui { model: ui.model.clone() });
    ui.press("h");
    assert_eq!(ui.model.screens.nodes.heat, None);
}

#[test]
fn a_slow_rank_on_128_nodes_is_the_only_outlier_and_its_node_moves_to_the_top() {
    let nodes: Vec<Node> = (0..128).map(|node| Node { id: named(&format!("gpu{node:03}")), slots: 8 }).collect();
    let mut ui = Ui::on_run(running(83));
    let mut status = status(running(83));
    let placement = cluster::Placement::new(&nodes, 1024).unwrap();
    status.attempt = Some(rundir::Attempt { placement, ..attempt(1, 0) });
    ui.run_msg(RunMsg::State(status));
    let busy_s = |rank: usize| if rank == 77 * 8 + 3 { 1.3 } else { 1.0 + (rank % 5) as f64 * 0.01 };
    let step = rundir::MetricSample { busy_s_by_rank: (0..1024).map(busy_s).collect(), ..sample(1, 84) };
    ui.run_msg(RunMsg::Metrics(vec![step]));
    ui.press("N");
    let of = FleetSource::Run(stage_1());
    ui.send(Msg::Nodes { of, nodes: Ok(nodes.iter().cloned().map(ListedNode::from).collect()) });
    let row = |gpu: u64| {
        format!(
            "{gpu}, GPU-{gpu}, NVIDIA H100 80GB HBM3, 00000000:1{gpu}:00.0, 640.0, 700.00, 70210, 81559, 100, 59, 1980, 0, 0x0, Disabled, [N/A], 5, 16\n"
        )
    };
    let rows: String = (0..8).map(row).collect();
    let alike = frame(1, &format!("{rows}\n#exit 0\n"), "");
    let search = |ui: &mut Ui, later: f64| {
        for node in &nodes {
            ui.send(Msg::Node { node: node.id.clone(), what: NodeMsg::Frame(Box::new(alike.clone())) });
        }
        ui.send(Msg::Tick(NOW + later));
    };
    let first = |ui: &Ui| ui.model.fleet.nodes()[ui.model.screens.nodes.order[0]].node.id.to_string();
    search(&mut ui, 3.0);
    ui.press("h h h h h");
    assert_eq!(ui.model.screens.nodes.heat, Some(crate::fleet::gpu_value::GpuValue::StepTime));
    ui.resize(160, 48);
    let screen = ui.screen();
    assert!(screen.contains("median 1.02 s") && screen.contains("1 outlier"), "{screen}");
    let (y, line) = screen.lines().enumerate().find(|(_, line)| line.contains("gpu077 ")).unwrap();
    let x = line.split("gpu077 ").next().unwrap().chars().count() + "gpu077 ".len();
    let terminal = ui.terminal();
    let buffer = terminal.backend().buffer();
    let cell = |gpu: usize| &buffer[((x + gpu) as u16, y as u16)];
    let bold: Vec<usize> = (0..8).filter(|gpu| cell(*gpu).modifier.contains(Modifier::BOLD)).collect();
    assert_eq!(bold, [3]);
    assert_ne!(cell(3).symbol(), cell(2).symbol(), "its bar is higher");

    assert_eq!(first(&ui), "gpu000");
    [5.0, 7.0, 9.0, 11.0].into_iter().for_each(|later| search(&mut ui, later));
    assert_eq!(first(&ui), "gpu077");
    ui.resize(80, 24);
    assert!(ui.screen().lines().find(|line| line.contains("● gpu")).unwrap().contains("gpu077"), "{}", ui.screen());
}

#[test]
fn the_bars_of_the_list_show_the_quantity_by_which_it_is_sorted_and_name_their_scale() {
    let mut ui = with(&[("gpu001", vec![busy(1)])]);
    let heading = |ui: &Ui| ui.screen().lines().find(|line| line.contains("  gpus  ")).unwrap().to_owned();
    assert!(heading(&ui).ends_with("  power, 0 to 700 W"), "{}", heading(&ui));
    // Sorted as listed, then by power, utilization, memory and temperature.
    ui.press("> >");
    for scale in ["utilization, 0 to 100 %", "memory, 0 to 79.6 GiB", "temperature, 20 to 95 °C"] {
        ui.press(">");
        assert!(heading(&ui).ends_with(scale), "{}", heading(&ui));
    }
    let limits = rows(600, "").replacen("700.00", "400.00", 1);
    let mut ui = with(&[("gpu001", vec![frame(1, &limits, "")])]);
    ui.resize(160, 48);
    assert!(heading(&ui).ends_with("power, 0 to the limit of each GPU"), "{}", heading(&ui));
}

#[test]
fn a_wide_node_screen_shows_the_temperature_over_time_the_pcie_link_and_the_fan() {
    let with_fan = |number: u64| frame(number, &rows(600, "").replacen("[N/A], 5, 16", "45, 4, 8", 1), "");
    let mut ui = with(&[("gpu001", (1..90).map(with_fan).collect())]);
    ui.press("Enter");
    assert!(!ui.screen().contains("PCIe") && !ui.screen().contains("temperature"), "{}", ui.screen());
    ui.resize(160, 48);
    let screen = ui.screen();
    for shown in ["power, 0 to 700 W", "temperature, 20 to 95 °C", "1980 MHz  PCIe 4 ×8  fan 45 %", "PCIe 5 ×16"] {
        assert!(screen.contains(shown), "{shown}: {screen}");
    }
    assert_eq!(screen.matches("  fan ").count(), 1, "the other GPUs have no fan");
    let lines: Vec<&str> = screen.lines().collect();
    let at = lines.iter().position(|line| line.contains("temperature,")).unwrap();
    let column = lines[at].split("temperature,").next().unwrap().chars().count();
    let is_drawn = |line: &&str| line.chars().skip(column).take(24).any(|c| ('\u{2801}'..='\u{28ff}').contains(&c));
    assert!(lines[at + 2..at + 6].iter().any(is_drawn), "{screen}");
}

#[test]
fn rates_of_links_are_differences_of_two_samples() {
    let mut ui = with(&[("gpu001", vec![busy(1)])]);
    let rates = |ui: &Ui| {
        let summary = &ui.model.fleet.nodes()[0].summary;
        (summary.net_rx_bytes_per_s, summary.ib_tx_bytes_per_s)
    };
    assert_eq!(rates(&ui), (None, None));
    ui.send(Msg::Node { node: named("gpu001"), what: NodeMsg::Frame(Box::new(busy(2))) });
    assert_eq!(rates(&ui), (Some(2e8), Some(4.4e9)));
    // The node has rebooted: its counters begin at zero.
    ui.send(Msg::Node { node: named("gpu001"), what: NodeMsg::Frame(Box::new(Frame { t: NOW + 99.0, ..busy(1) })) });
    assert_eq!(rates(&ui), (None, None));
}

#[test]
fn an_unreachable_node_has_no_bars() {
    let mut ui = many(12);
    let line = |ui: &Ui| ui.screen().lines().find(|line| line.contains("gpu009")).unwrap().to_owned();
    assert!(line(&ui).contains("????????") && line(&ui).contains("no answer"), "{}", line(&ui));
    ui.press("> h");
    assert!(line(&ui).contains("gpu009 ????????"), "{}", line(&ui));
}

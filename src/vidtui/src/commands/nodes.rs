//! `vidtui nodes` and `vidtui smi`: print the state of nodes, as a table or as JSON.

use crate::appearance;
use crate::args::{NodesArgs, NodesCommandArgs, SmiArgs};
use crate::command_error::CommandError;
use crate::commands::named_run;
use crate::output::{self, Side, note};
use crate::simulate;
use crate::terminal::takes_escapes;
use crate::workspace::{Needs, Workspace};
use cluster::fault::Fault;
use cluster::slurm::SlurmNode;
use cluster::{GpuProcess, GpuSample, LinkBytes, Node, NodeId, Reading};
use remote::{NodeUpdate, NodeWatch};
use rundir::{ErrorCode, Failure, Login, RunId, now_s};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use ui::fleet::{Fleet, FleetSummary, Link, ListedNode, NodeHealth, NodeSummary, NodeView, Sort};
use ui::screens::node_table::{NODE_COLUMNS, NodeColumn, cell, is_shown, of_memory};
use ui::{NodeMsg, run_state};
use units::terminal::Escaped;

/// How often nodes send samples.
const EVERY: Duration = Duration::from_secs(2);
/// The time limit for a node's first sample, including the connection. Slower nodes are shown without a sample.
const PATIENCE: Duration = Duration::from_secs(15);

/// Shows the state of nodes, once or repeatedly.
pub fn nodes(workspace: &Workspace, args: &NodesCommandArgs) -> Result<(), CommandError> {
    let list = || match &args.run {
        Some(run) => Ok(workspace.nodes_of_run(&named_run(workspace, run, Needs::Nothing, args.output.json)?)?),
        None if args.local => Ok(workspace.this_machine()),
        None => workspace.nodes_given(&args.nodes.nodes()),
    };
    let listed = list()?;
    if let Some(path) =
        workspace.wanted(&args.nodes.nodes()).hostfile.as_deref().filter(|_| !args.local && args.run.is_none())
        && std::fs::read(workspace.here.join(path)).is_ok_and(|bytes| text_file::is_utf16(&bytes))
    {
        let convert = text_file::conversion("UTF-16", path.as_str());
        note!(
            "note: hostfile {path} is UTF-16, which other programs such as mpirun do not read; to convert it: {convert}"
        );
    }
    let sort = sort_of(args.sort.as_deref())?;
    let mut updates = Updates::of(workspace, listed);
    let mut fleet = Fleet::default();
    fleet.list(Ok(updates.nodes.clone()));
    updates.wait_for_all(&mut fleet);
    loop {
        let now = now_s();
        fleet.judge(now, None);
        let order = fleet.order(sort, args.reverse, "", now);
        let views: Vec<&NodeView> = order.iter().filter_map(|at| fleet.nodes().get(*at)).collect();
        match (args.output.json, args.watch) {
            (true, true) => output::json_line(&document(&fleet, &views, now))?,
            (true, false) => output::json(&document(&fleet, &views, now))?,
            (false, watch) => {
                // On a terminal, clear the screen first, as the command `watch` does.
                let clear = if watch && takes_escapes(&std::io::stdout()) { "\x1b[H\x1b[2J" } else { "" };
                output::styled(&Escaped::own(clear).and(&Escaped::text(&table(&fleet, &views, now))))?;
            }
        }
        if !args.watch {
            return Ok(());
        }
        updates.wait(&mut fleet, EVERY);
        // The nodes of Slurm and their states change. While Slurm does not answer, keep the last list.
        if fleet.is_of_slurm()
            && let Ok(listed) = list()
        {
            updates.watch(listed);
            fleet.list(Ok(updates.nodes.clone()));
        }
    }
}

/// Shows one node: its GPUs, the processes on them, and the output of nvidia-smi.
pub fn smi(workspace: &Workspace, args: &SmiArgs) -> Result<(), CommandError> {
    let login = login_of(workspace, args)?;
    let node = Node { id: login.node.clone(), slots: 1 };
    let mut updates = Updates::of(workspace, vec![(node.into(), login.clone())]);
    let mut fleet = Fleet::default();
    fleet.list(Ok(updates.nodes.clone()));
    updates.wait_for_all(&mut fleet);
    let view = fleet.nodes().first();
    let Some(view) = view.filter(|view| view.frame.is_some()) else {
        let timeout = || {
            let why = format!("no sample arrived within {} s", PATIENCE.as_secs());
            let fix = "check whether nvidia-smi hangs on the node: run it there, and see `dmesg`";
            Failure::new(ErrorCode::NoAnswer, format!("cannot watch node {}", login.node), why, fix)
        };
        return Err(match view.map(|view| &view.link) {
            Some(Link::Unreachable { why, .. }) => why.clone(),
            _ => timeout(),
        }
        .into());
    };
    let table = workspace.smi(&login);
    if args.output.json {
        let table = table.as_ref().map(String::as_str);
        return output::json(&SmiDocument {
            node: NodeDocument::new(view, now_s()),
            nvidia_smi: table.ok(),
            failure: table.err(),
        });
    }
    let mut text = format!("{}: {}\n", view.node.id, facts(view));
    for fault in &view.faults {
        text += &format!("{fault}\n  hint: {}\n", fault.fix);
    }
    if !view.gpus().is_empty() {
        text += &format!("\n{}", gpu_table(view.gpus()));
        let processes: Vec<_> = processes(view);
        text.push('\n');
        text += &if processes.is_empty() { "no processes on its GPUs\n".to_owned() } else { process_table(&processes) };
    }
    match table {
        Ok(table) => text += &format!("\n{}\n", table.trim_end()),
        // A node without GPUs needs no nvidia-smi.
        Err(_) if view.gpus().is_empty() => {}
        Err(failure) => text += &format!("\n{failure}\n"),
    }
    output::text(&text)
}

fn login_of(workspace: &Workspace, args: &SmiArgs) -> Result<Login, CommandError> {
    let what = format!("cannot show {}", args.node);
    let node = NodeId::new(args.node.strip_prefix('[').and_then(|node| node.strip_suffix(']')).unwrap_or(&args.node));
    let nodes = args.nodes.nodes();
    let known = match &args.run {
        Some(run) => Some(workspace.nodes_of_run(&named_run(workspace, run, Needs::Nothing, args.output.json)?)?),
        None if matches!(workspace.wanted(&nodes), NodesArgs { hostfile: None, slurm: None, .. }) => None,
        None => Some(workspace.nodes_given(&nodes)?),
    };
    let Some(known) = known else {
        let node = node.map_err(|error| {
            CommandError::request(Failure::new(
                ErrorCode::InvalidArgument,
                &*what,
                error.to_string(),
                "use the name that you use with ssh",
            ))
        })?;
        return Ok(Login::by_name(node));
    };
    let found = known.iter().find(|(_, login)| Ok(&login.node) == node.as_ref()).map(|(_, login)| login.clone());
    found.ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(listed, _)| listed.node.id.as_str()).collect();
        let why = format!("the nodes are {}", cluster::hostlist::compress(&names));
        CommandError::request(Failure::new(ErrorCode::UnknownName, what, why, "choose one of them"))
    })
}

fn sort_of(word: Option<&str>) -> Result<Sort, CommandError> {
    let Some(word) = word else { return Ok(Sort::Listed) };
    let found = Sort::ALL.iter().find(|(_, known)| *known == word).map(|(sort, _)| *sort);
    found.ok_or_else(|| {
        let words: Vec<&str> = Sort::ALL.iter().map(|(_, word)| *word).collect();
        let why = format!("the columns are {}", words.join(", "));
        CommandError::request(Failure::new(
            ErrorCode::UnknownName,
            format!("cannot sort by '{word}'"),
            why,
            "choose one of them",
        ))
    })
}

/// The updates of watched nodes. Dropping this ends the watches.
struct Updates<'a> {
    workspace: &'a Workspace,
    nodes: Vec<ListedNode>,
    sender: Sender<(NodeId, NodeMsg)>,
    receiver: Receiver<(NodeId, NodeMsg)>,
    watching: BTreeMap<NodeId, NodeWatch>,
}

impl<'a> Updates<'a> {
    fn of(workspace: &'a Workspace, listed: Vec<(ListedNode, Login)>) -> Self {
        let (sender, receiver) = mpsc::channel();
        let mut updates = Self { workspace, nodes: Vec::new(), sender, receiver, watching: BTreeMap::new() };
        if let Some(simulation) = workspace.simulate {
            let sender = updates.sender.clone();
            remote::spawn(move || {
                let mut nodes = simulate::Nodes::new(simulation);
                while nodes.due().into_iter().all(|(node, frame)| sender.send((node, NodeMsg::Frame(frame))).is_ok()) {
                    std::thread::sleep(nodes.pause());
                }
            });
            updates.nodes = simulation.nodes().into_iter().map(ListedNode::from).collect();
        } else {
            updates.watch(listed);
        }
        updates
    }

    /// Watches these nodes and no others. Nodes that are watched already stay connected.
    fn watch(&mut self, listed: Vec<(ListedNode, Login)>) {
        let mut previous = std::mem::take(&mut self.watching);
        self.nodes.clear();
        for (listed, login) in listed {
            let node = listed.node.id.clone();
            let watching = previous.remove(&node).unwrap_or_else(|| self.begin(node.clone(), &login));
            self.watching.insert(node, watching);
            self.nodes.push(listed);
        }
    }

    fn begin(&self, node: NodeId, login: &Login) -> NodeWatch {
        let sender = self.sender.clone();
        let on_update = move |update| {
            let what = match update {
                NodeUpdate::Frame(frame) => NodeMsg::Frame(frame),
                NodeUpdate::Unreachable(error) => {
                    NodeMsg::Down(error.failure_on_node(format!("cannot watch node {node}")))
                }
            };
            if sender.send((node.clone(), what)).is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        self.workspace.connections.watch(login, EVERY, Box::new(on_update))
    }

    /// Handles updates until every node has sent a sample or is known to be unreachable.
    fn wait_for_all(&mut self, fleet: &mut Fleet) {
        let deadline = Instant::now() + PATIENCE;
        while fleet.nodes().iter().any(|view| view.link == Link::Connecting) && self.handle_one(fleet, deadline) {}
    }

    /// Handles updates for the duration `time`.
    fn wait(&mut self, fleet: &mut Fleet, time: Duration) {
        let deadline = Instant::now() + time;
        while self.handle_one(fleet, deadline) {}
    }

    fn handle_one(&mut self, fleet: &mut Fleet, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((node, update)) = self.receiver.recv_timeout(left) else { return false };
        match update {
            NodeMsg::Frame(frame) => fleet.sampled(&node, frame, now_s()),
            NodeMsg::Down(why) => fleet.unreachable(&node, why, now_s()),
            NodeMsg::Smi(_) | NodeMsg::Processes(_) | NodeMsg::Recorded(_) => {}
        }
        true
    }
}

fn table(fleet: &Fleet, views: &[&NodeView], now: f64) -> String {
    let has_gpus = fleet.has_gpus();
    // CPU use needs two samples. Empty columns are left out.
    let has_values = |column: &&NodeColumn| views.is_empty() || views.iter().any(|view| cell(column, view).is_some());
    let columns: Vec<_> = NODE_COLUMNS.iter().filter(|column| is_shown(column, fleet)).filter(has_values).collect();
    let mut titles = vec![("node", Side::Left), ("state", Side::Left)];
    titles.extend(columns.iter().map(|column| (column.title, if column.right { Side::Right } else { Side::Left })));
    if has_gpus {
        titles.push(("W per GPU", Side::Left));
    }
    titles.push(("", Side::Left));
    let none = if appearance::is_unicode() { "–" } else { "-" };
    let row = |view: &&NodeView| {
        let mut row = vec![view.node.id.to_string(), view.state(now).to_owned()];
        row.extend(columns.iter().map(|column| ascii(cell(column, view).unwrap_or_else(|| none.to_owned()))));
        if has_gpus {
            let watts = |gpu: &GpuSample| gpu.power_w.value().map_or_else(|| "?".to_owned(), |w| format!("{w:.0}"));
            row.push(view.gpus().iter().map(watts).collect::<Vec<_>>().join(" "));
        }
        row.push(note(view, now));
        row
    };
    let rows: Vec<Vec<String>> = views.iter().map(row).collect();
    format!("{}{}\n", output::table(&titles, &rows), ascii(summary(&fleet.summary())))
}

/// Returns the faults of a node; for how long it has been late; or for how long it has been unreachable, why, and the hint.
fn note(view: &NodeView, now: f64) -> String {
    let mut notes: Vec<String> = view.slurm.iter().filter_map(ui::slurm::reason).collect();
    match (&view.link, view.condition(now)) {
        (Link::Unreachable { since_s, why }, _) => {
            let hint = if why.fix.is_empty() { String::new() } else { format!("; hint: {}", why.fix) };
            let note = format!("for {}: {}{hint}", units::short_duration(now - since_s), why.why);
            notes.push(note.lines().collect::<Vec<_>>().join(" "));
        }
        (_, NodeHealth::Late) => {
            notes.push(format!("for {}", units::short_duration(view.late_s(now).unwrap_or(0.0))));
        }
        _ => notes.extend(view.faults.iter().map(Fault::to_string)),
    }
    notes.join("; ")
}

fn summary(sum: &FleetSummary) -> String {
    let mut facts = vec![units::counted(sum.nodes, "node"), format!("{} up", sum.up)];
    if sum.unreachable > 0 {
        facts.push(format!("{} unreachable", sum.unreachable));
    }
    if sum.faults > 0 {
        facts.push(units::counted(sum.faults, "fault"));
    }
    if sum.gpus > 0 {
        facts.push(units::counted(sum.gpus, "GPU"));
    }
    facts.extend(sum.power_w_mean.map(|power| format!("mean {power:.0} W")));
    match sum.mem_used_mib.zip(sum.mem_total_mib) {
        Some((used, total)) => facts.push(of_memory(used, total)),
        None if sum.gpus > 0 => facts.push("memory unknown".into()),
        None => {}
    }
    facts.join(", ")
}

fn facts(view: &NodeView) -> String {
    let digest = &view.summary;
    let mut facts = Vec::new();
    match view.gpus().first().and_then(|gpu| gpu.name.clone()) {
        Some(name) => facts.push(format!("{} of {name}", units::counted(digest.gpus, "GPU"))),
        None if digest.gpus == 0 => facts.push("no GPUs".into()),
        None => facts.push(units::counted(digest.gpus, "GPU")),
    }
    facts.extend(digest.power_w.map(|power| format!("{power:.0} W")));
    facts.extend(digest.load.map(|load| format!("load {load:.1}")));
    let memory = digest.mem_used_mib.zip(digest.mem_total_mib);
    facts.extend(memory.map(|(used, total)| format!("memory {}", of_memory(used, total))));
    facts.join(", ")
}

fn gpu_table(gpus: &[GpuSample]) -> String {
    let titles = ["gpu", "power", "limit", "util", "memory", "temp", "clock", "ecc"].map(|title| (title, Side::Right));
    let titles: Vec<_> = titles.into_iter().chain([("", Side::Left)]).collect();
    let reading = |reading: &Reading<f64>, unit: &str| match reading.value() {
        Some(value) => format!("{value:.0} {unit}"),
        None => reading.to_string(),
    };
    let row = |gpu: &GpuSample| {
        let memory = gpu.mem_used_mib.value().zip(gpu.mem_total_mib.value());
        let reasons = gpu.throttle_reasons.value().filter(|reasons| reasons.is_slowed());
        vec![
            gpu.index.to_string(),
            reading(&gpu.power_w, "W"),
            reading(&gpu.power_limit_w, "W"),
            if gpu.mig { "MIG".into() } else { reading(&gpu.util_pct, "%") },
            memory.map_or_else(|| gpu.mem_used_mib.to_string(), |(used, total)| of_memory(used, total)),
            ascii(reading(&gpu.temp_c, "°C")),
            reading(&gpu.sm_clock_mhz, "MHz"),
            gpu.ecc_uncorrected.to_string(),
            reasons.map(|reasons| reasons.to_string()).unwrap_or_default(),
        ]
    };
    output::table(&titles, &gpus.iter().map(row).collect::<Vec<_>>())
}

fn processes(view: &NodeView) -> Vec<(Option<u32>, &GpuProcess)> {
    let on = |gpu: &'_ GpuSample| gpu.index;
    let listed = view.gpus().iter().flat_map(|gpu| gpu.processes.iter().map(move |process| (Some(on(gpu)), process)));
    let elsewhere = view.frame.iter().flat_map(|frame| frame.elsewhere.iter().map(|process| (None, process)));
    listed.chain(elsewhere).collect()
}

fn process_table(processes: &[(Option<u32>, &GpuProcess)]) -> String {
    let titles = [
        ("gpu", Side::Right),
        ("pid", Side::Right),
        ("user", Side::Left),
        ("run", Side::Left),
        ("rank", Side::Right),
        ("memory", Side::Right),
        ("age", Side::Right),
        ("command", Side::Left),
    ];
    let row = |(gpu, process): &(Option<u32>, &GpuProcess)| {
        let owner = process.owner.clone().unwrap_or_default();
        let known = process.owner.is_some();
        let run = owner.run.as_deref().map(|run| match RunId::parse(run) {
            Ok(id) => run_state::short_id(&id).to_owned(),
            Err(_) => run.to_owned(),
        });
        let clean = |text: &str| ui::text::clean(text);
        vec![
            gpu.map_or_else(|| "?".into(), |gpu| gpu.to_string()),
            process.pid.to_string(),
            clean(&owner.user),
            clean(&run.unwrap_or_default()),
            owner.rank.map(|rank| rank.to_string()).unwrap_or_default(),
            process
                .mem_used_mib
                .value()
                .map_or_else(|| process.mem_used_mib.to_string(), |mib| units::short_size(mib << 20)),
            if known { units::short_duration(owner.age_s as f64) } else { String::new() },
            clean(if known { &owner.command } else { &process.name }),
        ]
    };
    output::table(&titles, &processes.iter().map(row).collect::<Vec<_>>())
}

/// Removes degree signs if the terminal does not support UTF-8.
fn ascii(text: String) -> String {
    if appearance::is_unicode() { text } else { text.replace("°", "") }
}

/// The JSON document of `vidtui nodes`.
#[derive(Serialize)]
struct Document<'a> {
    t: f64,
    summary: FleetSummary,
    nodes: Vec<NodeDocument<'a>>,
}

#[derive(Serialize)]
struct NodeDocument<'a> {
    node: &'a NodeId,
    /// The condition. The code of `failure` is why the node cannot be reached.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    slurm: Option<SlurmDocument<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a Failure>,
    #[serde(flatten)]
    digest: &'a NodeSummary,
    faults: &'a [Fault],
    /// The last sample of each GPU.
    gpu: &'a [GpuSample],
    /// The byte counters of the node's network links.
    links: &'a [LinkBytes],
}

/// The state of a node in Slurm.
#[derive(Serialize)]
struct SlurmDocument<'a> {
    partition: &'a str,
    state: String,
    takes_jobs: bool,
    reason: Option<&'a str>,
    reason_since_s: Option<f64>,
}

impl<'a> SlurmDocument<'a> {
    fn new(node: &'a SlurmNode) -> Self {
        Self {
            partition: &node.partition,
            state: node.state.to_string(),
            takes_jobs: node.state.takes_jobs(),
            reason: node.reason.as_deref(),
            reason_since_s: node.reason_since.as_ref().and_then(|since| since.unix_s()),
        }
    }
}

#[derive(Serialize)]
struct SmiDocument<'a> {
    #[serde(flatten)]
    node: NodeDocument<'a>,
    nvidia_smi: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a Failure>,
}

impl<'a> NodeDocument<'a> {
    fn new(view: &'a NodeView, now: f64) -> Self {
        let (since_s, failure) = match &view.link {
            Link::Unreachable { since_s, why } => (Some(*since_s), Some(why)),
            _ => (None, None),
        };
        Self {
            node: &view.node.id,
            state: view.condition(now).word(),
            slurm: view.slurm.as_ref().map(SlurmDocument::new),
            since_s,
            failure,
            digest: &view.summary,
            faults: &view.faults,
            gpu: view.gpus(),
            links: view.frame.as_ref().map_or(&[], |frame| &frame.host.links),
        }
    }
}

fn document<'a>(fleet: &'a Fleet, views: &[&'a NodeView], now: f64) -> Document<'a> {
    Document {
        t: now,
        summary: fleet.summary(),
        nodes: views.iter().map(|view| NodeDocument::new(view, now)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the row and the document of a node that cannot be reached for two minutes.
    fn shown(code: ErrorCode, why: &str, fix: &str) -> (String, serde_json::Value) {
        let node = Node { id: NodeId::new("::1").unwrap(), slots: 8 };
        let mut fleet = Fleet::default();
        fleet.list(Ok(vec![node.clone().into()]));
        fleet.unreachable(&node.id, Failure::new(code, "cannot watch node ::1", why, fix), 1000.0);
        let views: Vec<&NodeView> = fleet.nodes().iter().collect();
        let table = table(&fleet, &views, 1125.0);
        let document = serde_json::to_value(document(&fleet, &views, 1125.0)).unwrap();
        (table.lines().nth(1).unwrap_or_default().to_owned(), document)
    }

    #[test]
    fn an_unreachable_node_is_one_line_with_state_time_reason_and_hint() {
        let (row, document) = shown(ErrorCode::NoAddress, "its name has no address", "check the name");
        let words: Vec<&str> = row.split("  ").filter(|word| !word.is_empty()).map(str::trim).collect();
        assert_eq!(words, ["::1", "no address", "for 2 min: its name has no address; hint: check the name"]);
        let node = &document["nodes"][0];
        assert_eq!((node["state"].as_str(), node["since_s"].as_f64()), (Some("unreachable"), Some(1000.0)));
        assert_eq!(node["failure"]["code"].as_str(), Some("no-address"));
        assert_eq!(node["failure"]["why"].as_str(), Some("its name has no address"));
        let (row, _) = shown(ErrorCode::CommandFailed, "cannot stream its metrics: exit status 1\nno shell", "");
        assert!(row.ends_with("unreachable  for 2 min: cannot stream its metrics: exit status 1 no shell"), "{row}");
    }
}

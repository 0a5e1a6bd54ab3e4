//! What must hold on every node before a run starts there: asked of all nodes at once, in two commands each.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use cluster::{NodeId, Xid, XidAction};
use plan::{CLOCKS_APART_S, LaunchPlan, check_disk, quote, size};
use rundir::Failure;
use serde::Deserialize;

use crate::at_once::at_once;
use crate::checks::{Check, room, weights_dir};
use crate::command::Command;
use crate::{RemoteError, Transport, now_s, script};

const SCRIPT: &str = include_str!("scripts/preflight.sh");
/// The part of it that is about GPUs.
const GPUS: &str = include_str!("scripts/preflight_gpus.sh");
/// What both parts use.
const ONE_LINE: &str = "one_line() { tr '\\n\\t' '  ' | cut -c 1-300; }";
/// Memory that the driver takes for itself.
const DRIVER_MIB: u64 = 1024;

/// How long a node may take to tell its time.
const SOON: Duration = Duration::from_secs(20);
/// How long a node may take for all the rest. Loading libtorch from a cold disk takes seconds.
const THOROUGH: Duration = Duration::from_secs(90);
/// Files that a run makes, and some room: logs and checkpoints have far fewer.
const INODES: u64 = 10_000;

/// What a node tells.
#[derive(Debug, Clone, Default, PartialEq)]
struct Told {
    /// The rows of its answer: a name and the rest.
    rows: Vec<(String, String)>,
}

impl Told {
    /// Reads an answer that is whole.
    fn read(text: &str) -> Option<Self> {
        let mut lines: Vec<&str> = text.lines().collect();
        (lines.pop()? == "end").then(|| Self {
            rows: lines
                .into_iter()
                .map(|line| line.split_once(' ').unwrap_or((line, "")))
                .map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()))
                .collect(),
        })
    }

    fn get<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.rows.iter().filter(move |(row, _)| row == name).map(|(_, rest)| rest.as_str())
    }
}

/// What `vidtui-train version --json` prints, as far as it matters here.
#[derive(Deserialize)]
struct Version {
    libtorch: String,
    cuda: bool,
}

/// One node and what it said.
struct Asked {
    node: NodeId,
    answer: Result<Answered, RemoteError>,
}

struct Answered {
    /// How long a question and its answer take.
    round_trip: Duration,
    /// How far its clock is ahead of this machine's.
    ahead_s: f64,
    told: Told,
}

/// Makes the checks of every node of a plan that goes over SSH.
pub(crate) fn checks(what: &str, plan: &LaunchPlan, transports: &mut [Box<dyn Transport>]) -> Vec<Check> {
    let marker = Marker::new(plan);
    let asked = {
        let script = script(plan, &marker);
        let nodes = plan.nodes.iter().map(|launch| (launch.node.clone(), launch.node.clone())).collect();
        at_once(nodes, transports, |node, transport| Asked { node, answer: ask(transport, &script) })
    };
    let usual_s = usual(asked.iter().filter_map(|a| Some(a.answer.as_ref().ok()?.ahead_s)).collect());
    let mut checks = Vec::new();
    for launch in &plan.nodes {
        let asked = asked.iter().find(|asked| asked.node == launch.node);
        let rows: Vec<(&str, Result<String, Failure>)> = match asked.map(|asked| &asked.answer) {
            None => vec![("node", Err(no_way(what, &launch.node)))],
            Some(Err(error)) => vec![("node", Err(error.failure(what)))],
            Some(Ok(answered)) => rows(what, plan, &launch.node, answered, usual_s),
        };
        checks.extend(rows.into_iter().map(|(name, result)| Check::new(plan, name, Some(&launch.node), result)));
    }
    for (node, other) in twins(&asked) {
        let why = format!("node {node} is the same machine as {other}");
        let fix = format!("name each machine once: leave one of them out, such as with --exclude {node}");
        checks.push(Check::new(plan, "machine", Some(node), Err(Failure::new(what, why, fix))));
    }
    checks
}

/// Nodes that are a machine which another name before them means too: each would start a supervisor there.
fn twins(asked: &[Asked]) -> Vec<(&NodeId, &NodeId)> {
    let mut first_of: BTreeMap<&str, &NodeId> = BTreeMap::new();
    let mut twins = Vec::new();
    for asked in asked {
        let machine = asked.answer.as_ref().ok().and_then(|answered| answered.told.get("machine"));
        let Some(machine) = machine else { continue };
        let first = *first_of.entry(machine).or_insert(&asked.node);
        if *first != asked.node {
            twins.push((&asked.node, first));
        }
    }
    twins
}

/// The offset that is right if most clocks are, this machine's among them. Of one node alone, any is: there is no other
/// whose events could be confused with its own.
fn usual(mut offsets: Vec<f64>) -> f64 {
    if let [only] = offsets[..] {
        return only;
    }
    offsets.push(0.0);
    offsets.sort_by(f64::total_cmp);
    offsets[offsets.len() / 2]
}

pub(crate) fn no_way(what: &str, node: &NodeId) -> Failure {
    Failure::new(what, format!("node {node} cannot be reached from here"), format!("start it on {node}"))
}

fn ask(transport: &mut dyn Transport, script: &str) -> Result<Answered, RemoteError> {
    let node = transport.node().clone();
    let odd = |action: &str, answer: &str| RemoteError::Odd {
        node: node.clone(),
        action: action.into(),
        answer: answer.chars().take(200).collect(),
    };
    let clock = Command::new("tell its time", "date +%s.%N", SOON);
    // The first answer may include the time to connect.
    transport.run(&clock)?;
    let asked = now_s();
    let text = transport.run(&clock)?.text(&node, &clock)?;
    let answered = now_s();
    let node_s: f64 = text.trim().parse().map_err(|_| odd("tell its time", &text))?;
    let thorough = Command::new("be checked", script, THOROUGH);
    let text = transport.run(&thorough)?.text(&node, &thorough)?;
    let told = Told::read(&text).ok_or_else(|| odd("be checked", &text))?;
    let round_trip = Duration::from_secs_f64((answered - asked).max(0.0));
    Ok(Answered { round_trip, ahead_s: node_s - (asked + answered) / 2.0, told })
}

fn rows(
    what: &str,
    plan: &LaunchPlan,
    node: &NodeId,
    answered: &Answered,
    usual_s: f64,
) -> Vec<(&'static str, Result<String, Failure>)> {
    let told = &answered.told;
    let fail = |why: String, fix: &str| Err(Failure::new(what, format!("node {node}: {why}"), fix));
    let yes = |name: &str| told.get(name) == Some("yes");
    let runs = plan.dir.root.parent().unwrap_or(&plan.dir.root);
    let mut rows = vec![("node", Ok(format!("answers in {:.0} ms", answered.round_trip.as_secs_f64() * 1e3)))];

    let apart_s = answered.ahead_s - usual_s;
    let unsure_s = answered.round_trip.as_secs_f64() / 2.0;
    rows.push(("clock", {
        let in_words = format!("{:.1} s {}", apart_s.abs(), if apart_s < 0.0 { "behind" } else { "ahead of" });
        if apart_s.abs() - unsure_s > CLOCKS_APART_S {
            fail(format!("its clock is {in_words} the others"), "set it (chrony, ntpd), or waive it: --waive clock")
        } else {
            Ok(format!("{:.0} ms apart", apart_s.abs() * 1e3))
        }
    }));

    let trainer = &plan.trainer;
    rows.push((
        "trainer",
        match (told.get("missing"), told.get("sha256")) {
            (None, Some(sha256)) if sha256 == trainer.sha256 => Ok(format!("{} ({})", trainer.path, short(sha256))),
            _ if plan.push => Ok(format!("{} ({}), which the launch copies there", trainer.path, short(&trainer.sha256))),
            (None, Some(sha256)) => fail(
                format!(
                    "{} is another binary there: {} here, {} there",
                    trainer.path,
                    short(&trainer.sha256),
                    short(sha256)
                ),
                "copy this machine's there with --push, or put it on a file system that all share (VIDTUI_TRAIN names it)",
            ),
            _ => fail(
                format!("{} is not there, or not executable", trainer.path),
                "put it on a file system that all nodes share (VIDTUI_TRAIN names it), or copy it there: --push",
            ),
        },
    ));

    let is_command = plan.is_command();
    let version = told.get("version").and_then(|text| serde_json::from_str::<Version>(text).ok());
    if told.get("missing").is_none() && !is_command {
        rows.push((
            "libtorch",
            match (&version, told.get("broken")) {
                (Some(version), _) if plan.on_gpus(version.cuda) && !version.cuda => Err(no_gpus(what, node)),
                (Some(version), _) => {
                    Ok(format!("{} for {}", version.libtorch, if version.cuda { "GPUs" } else { "CPUs" }))
                }
                (None, said) => fail(
                    format!("the trainer does not run there: {}", said.unwrap_or("it says no version")),
                    "try it there: `vidtui-train version`; libtorch must be where it is here",
                ),
            },
        ));
    }

    rows.push((
        "run folder",
        if !yes("visible") {
            fail(
                format!("{runs} is not the folder that this machine sees under that name"),
                "put the runs on a file system that all nodes share, and name it with --runs DIR",
            )
        } else if !yes("writable") {
            fail(format!("{runs} cannot be written to"), "change its permissions, or log in as another user")
        } else {
            Ok(format!("{runs}, the same as here"))
        },
    ));

    let free = told.get("free_kib").and_then(|kib| kib.parse::<u64>().ok()).map(|kib| kib * 1024);
    rows.push((
        "disk",
        match free {
            Some(free) => check_disk(what, &plan.disk, free, runs).map(|()| room(plan, free)),
            None => fail(format!("df does not tell the free space of {runs}"), "look at its disks: df"),
        },
    ));
    // File systems that make them as they need have no number to tell.
    if let Some(inodes) = told.get("inodes").and_then(|text| text.parse::<u64>().ok()).filter(|inodes| *inodes > 0) {
        rows.push((
            "inodes",
            if inodes < INODES {
                fail(
                    format!("{runs} has room for {inodes} more files"),
                    "remove some there, or choose another disk with --runs",
                )
            } else {
                Ok(format!("{inodes} free"))
            },
        ));
    }

    let data = plan.run.recipe().map(|recipe| recipe.data.index);
    if !is_command {
        rows.push((
            "data",
            match &data {
                Ok(index) if yes("data") => Ok(index.to_string()),
                Ok(index) => fail(
                    format!("data set {index} cannot be read"),
                    "put it on a file system that all nodes share, or copy it to the same place on each",
                ),
                Err(error) => Err(Failure::new(what, error.to_string(), "launch it again")),
            },
        ));
    }
    if let Some(dir) = weights_dir(plan) {
        rows.push((
            "weights",
            if yes("weights") {
                Ok(dir.to_string())
            } else {
                fail(format!("checkpoint {dir} cannot be read"), "put it on a file system that all nodes share")
            },
        ));
    }

    if let Some(master) = &plan.master {
        let ports: Vec<(&str, &str)> =
            told.all("port").map(|said| said.split_once(' ').unwrap_or((said, ""))).collect();
        rows.push(("rendezvous", match ports.iter().find(|(_, said)| *said != "free") {
            None => Ok(format!("{} ports {} and {}", master.address, master.port, master.port + 1)),
            Some((port, said)) => {
                let who = if *port == master.port.to_string() { "ranks" } else { "supervisors" };
                let at = format!("{} port {port}, where the {who} are to meet,", master.address);
                match *said {
                    "taken" => fail(format!("{at} is taken"), "launch again: another port is drawn"),
                    "silent" => fail(
                        format!("{at} does not answer this node"),
                        "open the ports between the nodes, or give the first node an address (HostName) that the others reach",
                    ),
                    other => fail(
                        format!("{at} is out of its reach: {}", other.trim_start_matches("unknown ")),
                        "give the first node an address (HostName) that the others reach",
                    ),
                }
            }
        }));
    }

    // A command takes what there is; who wants it on CPUs says so by a node without a driver.
    let has_gpus = told.get("gpus").is_some_and(|gpus| gpus != "none" && gpus != "0");
    let finds = version.as_ref().is_some_and(|version| version.cuda) || trainer.cuda;
    let on_gpus = if is_command { finds || has_gpus } else { plan.on_gpus(finds) };
    rows.extend(gpu_rows(what, plan, node, told, on_gpus));
    rows
}

/// The refusal of a node whose trainer finds no GPUs, when the recipe wants them.
pub(crate) fn no_gpus(what: &str, node: &NodeId) -> Failure {
    Failure::new(
        what,
        format!("node {node}: train.device is \"cuda\", and the trainer finds no GPU there"),
        "see `vidtui-train version` there: it must be built with the feature `cuda`; or set train.device = \"cpu\"",
    )
}

/// What GPUs tell, on whichever node.
fn gpu_rows(
    what: &str,
    plan: &LaunchPlan,
    node: &NodeId,
    told: &Told,
    on_gpus: bool,
) -> Vec<(&'static str, Result<String, Failure>)> {
    let fail = |why: String, fix: &str| Err(Failure::new(what, format!("node {node}: {why}"), fix));
    let mut rows = Vec::new();
    let ranks = plan.attempt.placement.ranks.iter().filter(|place| place.node == *node).count();
    rows.push((
        "GPUs",
        match (told.get("gpus"), told.get("smi")) {
            (Some("none") | None, None) if on_gpus => fail(
                "it has no nvidia-smi, and the trainer wants GPUs".into(),
                "install NVIDIA's driver, or choose another node",
            ),
            (Some("none") | None, None) => Ok("none, and none needed".into()),
            (_, Some(said)) if on_gpus => fail(
                format!("nvidia-smi fails: {}", said.split_once(' ').map_or(said, |(_, text)| text)),
                "mend its driver, or leave the node out: --exclude",
            ),
            (_, Some(_)) => Ok("nvidia-smi fails, and no GPU is needed".into()),
            (Some(gpus), None) => match gpus.parse::<usize>() {
                Ok(gpus) if on_gpus && ranks > gpus => fail(
                    format!("{} are to run on {gpus} GPUs", plan::counted(ranks, "rank")),
                    "give it fewer slots in the hostfile",
                ),
                Ok(gpus) if on_gpus => Ok(format!("{} on {gpus}", plan::counted(ranks, "rank"))),
                Ok(gpus) => Ok(format!("{gpus}, not used: this trainer runs on CPUs")),
                Err(_) => fail(format!("nvidia-smi lists {gpus:?}"), "try it there: nvidia-smi -L"),
            },
        },
    ));
    let apps: Vec<String> = told.all("app").filter_map(app_in_words).collect();
    rows.push((
        "GPU processes",
        if apps.is_empty() {
            Ok("none left over".into())
        } else {
            fail(
                format!("its GPUs are in use: {}", apps.join("; ")),
                "end what is left over (vidtui kill --pattern), leave the node out (--exclude), or waive it: --waive 'GPU processes'",
            )
        },
    ));
    let gpus: Vec<Gpu> = told.all("gpu").filter_map(Gpu::read).collect();
    if !gpus.is_empty() {
        rows.push(("GPU memory", memory_row(&gpus, ranks, &fail)));
        rows.push(("GPU errors", errors_row(&gpus, told, &fail)));
    }
    rows
}

/// A row of nvidia-smi; what is no number there is none here.
struct Gpu {
    index: u32,
    used_mib: Option<u64>,
    total_mib: Option<u64>,
    ecc: Option<u64>,
}

impl Gpu {
    fn read(row: &str) -> Option<Self> {
        let cells: Vec<&str> = row.split(',').map(str::trim).collect();
        let [index, used, total, ecc] = cells[..] else { return None };
        let number = |cell: &str| cell.parse().ok();
        let index = index.parse().ok()?;
        Some(Self { index, used_mib: number(used), total_mib: number(total), ecc: number(ecc) })
    }
}

type Row = Result<String, Failure>;

/// The GPUs that ranks will use, which are the first ones, must be empty but for what the driver takes.
fn memory_row(gpus: &[Gpu], ranks: usize, fail: &dyn Fn(String, &str) -> Row) -> Row {
    let ours = || gpus.iter().filter(|gpu| (gpu.index as usize) < ranks.max(1));
    let taken: Vec<String> = ours()
        .filter_map(|gpu| Some((gpu.index, gpu.used_mib.filter(|used| *used > DRIVER_MIB)?, gpu.total_mib?)))
        .map(|(index, used, total)| format!("{} of {} of GPU {index}", size(used << 20), size(total << 20)))
        .collect();
    if !taken.is_empty() {
        return fail(
            format!("memory is taken: {}", taken.join(", ")),
            "end what holds it (vidtui kill --pattern), leave the node out (--exclude), or waive it: --waive 'GPU memory'",
        );
    }
    let free = ours().filter_map(|gpu| Some((gpu.total_mib?.saturating_sub(gpu.used_mib?)) << 20)).min();
    Ok(free.map_or("it cannot be told".into(), |least| format!("{} free", size(least))))
}

/// Errors since the driver was loaded: some need a reset of the GPU before it computes what it should.
fn errors_row(gpus: &[Gpu], told: &Told, fail: &dyn Fn(String, &str) -> Row) -> Row {
    let memory = gpus.iter().filter(|gpu| gpu.ecc.is_some_and(|errors| errors > 0)).map(|gpu| {
        let errors = plan::counted(gpu.ecc.unwrap_or(0) as usize, "memory error");
        format!("{errors} of GPU {} that could not be corrected", gpu.index)
    });
    let mut bad: Vec<String> = memory.collect();
    let mut xids: Vec<Xid> = told.all("xid").filter_map(Xid::read).collect();
    xids.sort();
    xids.dedup();
    let worst = xids.iter().map(Xid::action).max();
    bad.extend(xids.iter().filter(|xid| xid.action() >= XidAction::Reset).map(Xid::to_string));
    let harmless: Vec<String> = xids.iter().filter(|xid| xid.action() < XidAction::Reset).map(Xid::to_string).collect();
    if !bad.is_empty() {
        let fix = worst.filter(|action| *action >= XidAction::Reset).unwrap_or(XidAction::Reset).in_words();
        return fail(bad.join("; "), &format!("{fix}; or waive it: --waive 'GPU errors'"));
    }
    let log = if told.get("log") == Some("unread") { ", as far as may be read (dmesg may not)" } else { "" };
    match &harmless[..] {
        [] => Ok(format!("none{log}")),
        some => Ok(format!("{}, of programs that failed", some.join("; "))),
    }
}

/// Checks the GPUs of this machine for a trainer that wants some.
pub(crate) fn local_gpus(
    what: &str,
    plan: &LaunchPlan,
    node: &NodeId,
    transport: &mut dyn Transport,
) -> Vec<(&'static str, Result<String, Failure>)> {
    let command = Command::new("tell of its GPUs", format!("export LC_ALL=C\n{ONE_LINE}\n{GPUS}echo end\n"), THOROUGH);
    let told = transport.run(&command).and_then(|output| output.text(node, &command));
    match told.map(|text| Told::read(&text).unwrap_or_default()) {
        Ok(told) => gpu_rows(what, plan, node, &told, true),
        Err(error) => vec![("GPUs", Err(error.failure(what)))],
    }
}

/// `PID USER MEMORY NAME`, as people read it.
fn app_in_words(row: &str) -> Option<String> {
    let mut words = row.splitn(4, ' ');
    let (pid, user, memory, name) = (words.next()?, words.next()?, words.next()?, words.next().unwrap_or("?"));
    let memory =
        memory.trim_end_matches(',').parse::<u64>().map_or(String::new(), |mib| format!(" with {}", size(mib << 20)));
    Some(format!("process {pid} of {user}{memory} ({name})"))
}

fn short(sha256: &str) -> &str {
    sha256.get(..12).unwrap_or(sha256)
}

fn script(plan: &LaunchPlan, marker: &Marker) -> String {
    let runs = plan.dir.root.parent().unwrap_or(&plan.dir.root);
    let data = plan.run.recipe().map_or_else(|_| Utf8PathBuf::new(), |recipe| recipe.data.index);
    let (address, port) = plan.master.as_ref().map_or(("", 0), |master| (master.address.as_str(), master.port));
    let weights = weights_dir(plan).unwrap_or_default();
    SCRIPT
        .replace("@ONE_LINE", ONE_LINE)
        .replace("@GPUS\n", GPUS)
        .replace("@TRAINER", &quote(plan.trainer.path.as_str()))
        .replace("@MARKER", &quote(marker.path.as_str()))
        .replace("@TOKEN", &quote(&marker.token))
        .replace("@EXISTING", &script::existing(runs))
        .replace("@DATA", &quote(data.as_str()))
        .replace("@MANIFEST", if plan.attempt.checkpoint.is_some() { "." } else { "manifest.toml" })
        .replace("@WEIGHTS", &quote(weights.as_str()))
        .replace("@ADDRESS", &quote(address))
        .replace("@PORT", &port.to_string())
}

/// A file that every node must see if the folder of runs is the same for all. It goes when the checks are over.
struct Marker {
    path: Utf8PathBuf,
    token: String,
}

impl Marker {
    fn new(plan: &LaunchPlan) -> Self {
        static UNIQUE: AtomicU32 = AtomicU32::new(0);
        let runs = plan.dir.root.parent().unwrap_or(&plan.dir.root);
        let folder = runs.ancestors().find(|folder| folder.is_dir()).unwrap_or(Utf8Path::new("/"));
        let token = format!("{}-{}-{}", plan.run.id, std::process::id(), UNIQUE.fetch_add(1, Ordering::Relaxed));
        let path = folder.join(format!(".check-{token}"));
        // If it cannot be written, the check of this machine's folder says so.
        let _ = fs::write(&path, &token);
        Self { path, token }
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_that_differs_from_most_is_the_one_that_is_wrong() {
        assert_eq!(usual(vec![]), 0.0);
        assert_eq!(usual(vec![7.0]), 7.0);
        assert_eq!(usual(vec![0.1, 7.0]), 0.1);
        assert_eq!(usual(vec![7.0, 7.1, 7.2]), 7.1, "this machine's own");
        assert_eq!(usual(vec![-7.0, 0.2, 0.1]), 0.1);
    }

    #[test]
    fn an_answer_counts_only_when_it_is_whole() {
        let whole = "sha256 abc\nvisible yes\napp 12 ada 70000 python train.py\nend\n";
        let told = Told::read(whole).unwrap();
        assert_eq!((told.get("sha256"), told.get("visible"), told.get("data")), (Some("abc"), Some("yes"), None));
        assert_eq!(Told::read("sha256 abc\nvisi"), None);
        assert_eq!(Told::read(""), None);
        let app = told.all("app").next().and_then(app_in_words);
        assert_eq!(app.as_deref(), Some("process 12 of ada with 68.4 GiB (python train.py)"));
    }
}

//! What is to be said of a node, from what it told and what the others did.

use cluster::NodeId;
use health::CLOCKS_APART_S;
use plan::LaunchPlan;
use rundir::Failure;
use serde::Deserialize;

use super::disks;
use super::gpus::{self, Gpus, no_gpus};
use super::nodes::{Answered, Told, leave_out};
use crate::weights::weights_dir;

/// What was found, or what is wrong.
pub(super) type Found = Result<String, Failure>;
/// What was looked at, and what was found.
pub(super) type Row = (&'static str, Found);
/// Makes a refusal of why, and what to do.
pub(super) type Fail<'a> = &'a dyn Fn(String, &str) -> Found;

/// What `vidtui-train version --json` prints, as far as it matters here.
#[derive(Deserialize)]
struct Version {
    libtorch: String,
    cuda: bool,
}

impl Version {
    /// That of a node's trainer, where it is the one that will run.
    fn of(plan: &LaunchPlan, told: &Told) -> Option<Self> {
        let said = told.get("version").filter(|_| !is_replaced(plan, told));
        said.and_then(|text| serde_json::from_str(text).ok())
    }
}

/// Whether the launch copies another trainer over that of a node.
fn is_replaced(plan: &LaunchPlan, told: &Told) -> bool {
    plan.push && told.get("sha256") != Some(&plan.trainer.sha256)
}

/// What most nodes say, or one of them: a node that differs is the odd one.
pub(super) struct Usual<'a> {
    /// How far their clocks are ahead of this machine's.
    ahead_s: f64,
    /// The libtorch of most, and the first node that has it.
    libtorch: Option<(String, &'a NodeId)>,
    /// Why ranks compute on GPUs, if they do. It is the same for all: one rank on a CPU would keep all others waiting.
    why_gpus: Option<WhyGpus<'a>>,
}

#[derive(Clone, Copy)]
enum WhyGpus<'a> {
    /// This node has some, the first of all.
    Has(&'a NodeId),
    /// What is to run wants some.
    Wanted(&'static str),
}

impl<'a> Usual<'a> {
    pub(super) fn of(plan: &LaunchPlan, answers: &[(&'a NodeId, &'a Answered)]) -> Self {
        let versions: Vec<_> =
            answers.iter().filter_map(|(node, answer)| Some((*node, Version::of(plan, &answer.told)?))).collect();
        let with_gpus: Vec<&NodeId> = if plan.is_command() {
            let has_gpus =
                |(node, answer): &(&'a NodeId, &Answered)| Gpus::read(plan, &answer.told).are_there().then_some(*node);
            answers.iter().filter_map(has_gpus).collect()
        } else {
            versions.iter().filter(|(_, version)| version.cuda).map(|(node, _)| *node).collect()
        };
        // Where no node has the trainer yet, this machine's tells.
        let finds = !with_gpus.is_empty() || (versions.is_empty() && plan.trainer.cuda);
        let count = |libtorch: &str| versions.iter().filter(|(_, version)| version.libtorch == libtorch).count();
        // Of as many, the first: `max_by_key` would take the last.
        let most = versions.iter().rev().max_by_key(|(_, version)| count(&version.libtorch));
        Self {
            ahead_s: usual_offset(answers.iter().map(|(_, answer)| answer.ahead_s).collect()),
            libtorch: most.map(|(node, version)| (version.libtorch.clone(), *node)),
            why_gpus: plan.on_gpus(finds).then(|| match with_gpus.first() {
                Some(first) => WhyGpus::Has(first),
                None if plan.on_gpus(false) => WhyGpus::Wanted("train.device is \"cuda\""),
                None => WhyGpus::Wanted("the trainer is one for GPUs"),
            }),
        }
    }

    /// Why a node must have GPUs, if so.
    pub(super) fn why_gpus(&self, node: &NodeId) -> Option<String> {
        self.why_gpus.map(|why| match why {
            WhyGpus::Has(first) if first == node => "it has GPUs".into(),
            WhyGpus::Has(first) => format!("{first} has GPUs"),
            WhyGpus::Wanted(why) => why.into(),
        })
    }
}

/// The offset that is right if most clocks are, this machine's among them. Of one node alone, any is: there is no other
/// whose events could be confused with its own.
pub(super) fn usual_offset(mut offsets: Vec<f64>) -> f64 {
    if let [only] = offsets[..] {
        return only;
    }
    offsets.push(0.0);
    offsets.sort_by(f64::total_cmp);
    offsets[offsets.len() / 2]
}

/// Everything that is looked at on a node.
pub(super) fn rows(what: &str, plan: &LaunchPlan, node: &NodeId, answered: &Answered, usual: &Usual<'_>) -> Vec<Row> {
    let told = &answered.told;
    let fail = |why: String, fix: &str| {
        Err(Failure::new(rundir::ErrorCode::Unclassified, what, format!("node {node}: {why}"), fix))
    };
    let yes = |name: &str| told.get(name) == Some("yes");
    let runs = disks::runs(plan);
    let mut rows = vec![("node", Ok(format!("answers in {:.0} ms", answered.round_trip.as_secs_f64() * 1e3)))];

    let apart_s = answered.ahead_s - usual.ahead_s;
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
    if told.get("missing").is_none() && !is_replaced(plan, told) && !is_command {
        rows.push(("libtorch", libtorch_row(what, plan, node, told, usual)));
    }

    rows.push((
        "run folder",
        if !yes("visible") {
            fail(
                format!("{runs} is not the folder that this machine sees under that name"),
                "put the runs on a file system that all nodes share, and name it with --runs DIR",
            )
        } else if !yes("runs_writable") {
            fail(format!("{runs} cannot be written to"), "change its permissions, or log in as another user")
        } else {
            Ok(format!("{runs}, the same as here"))
        },
    ));

    rows.extend(disks::rows(plan, told, &fail));

    if !is_command {
        let unread: Vec<&str> = told.all("unread").collect();
        rows.push((
            "data",
            match (plan.run.recipe(), &unread[..]) {
                (Ok(recipe), []) => Ok(recipe.data.index.to_string()),
                (Ok(_), [first, others @ ..]) => {
                    let others = if others.is_empty() { "" } else { ", nor can others of it" };
                    fail(
                        format!("{first} of the data set cannot be read{others}"),
                        "put it on a file system that all nodes share, or copy it to the same place on each",
                    )
                }
                (Err(error), _) => {
                    Err(Failure::new(rundir::ErrorCode::Unclassified, what, error.to_string(), "launch it again"))
                }
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

    rows.extend(gpus::rows(what, plan, node, told, usual));
    rows
}

/// The library must load, be the same on all nodes, and find GPUs on all or on none.
fn libtorch_row(what: &str, plan: &LaunchPlan, node: &NodeId, told: &Told, usual: &Usual<'_>) -> Found {
    let fail = |why: String, fix: &str| {
        Err(Failure::new(rundir::ErrorCode::Unclassified, what, format!("node {node}: {why}"), fix))
    };
    let Some(version) = Version::of(plan, told) else {
        let said = told.get("broken").unwrap_or("it says no version");
        return fail(
            format!("the trainer does not run there: {said}"),
            "try it there: `vidtui-train version`; libtorch must be where it is here",
        );
    };
    match (&usual.libtorch, usual.why_gpus(node)) {
        (Some((most, at)), _) if *most != version.libtorch => fail(
            format!("its libtorch is {}, that of {at} is {most}", version.libtorch),
            &format!(
                "put the same trainer on all nodes (--push copies this machine's), {}, or waive it: --waive libtorch",
                leave_out(plan, node)
            ),
        ),
        (_, Some(why)) if !version.cuda => Err(no_gpus(what, plan, node, &why)),
        _ => Ok(format!("{} for {}", version.libtorch, if version.cuda { "GPUs" } else { "CPUs" })),
    }
}

fn short(sha256: &str) -> &str {
    sha256.get(..12).unwrap_or(sha256)
}

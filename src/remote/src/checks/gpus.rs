//! What nodes tell of their GPUs, and what is to be said of it.

use std::collections::BTreeMap;

use cluster::nvidia_smi::{Answer, COMPUTE_APPS, ComputeApp, FORMAT, GpuQuery, SmiTrouble, read_compute_apps};
use cluster::{GpuSample, NodeId, Xid, XidAction};
use plan::LaunchPlan;
use rundir::{Failure, now_s};
use units::{counted, size};

use super::node::{Fail, Found, Row, Usual};
use super::nodes::{Told, leave_out};

const SCRIPT: &str = include_str!("../scripts/preflight_gpus.sh");
/// Memory that the driver takes for itself.
const DRIVER_MIB: u64 = 1024;

/// The part of a script that is about GPUs.
pub(super) fn script() -> String {
    format!("query='{}' format='{FORMAT}' apps='{COMPUTE_APPS}'\n{}{SCRIPT}", GpuQuery::of_use(), Xid::SCRIPT)
}

/// What a node tells of its GPUs.
pub(super) struct Gpus {
    /// Those that nvidia-smi lists and ranks can see, in their order.
    listed: Vec<GpuSample>,
    /// Why it does not list some, or any.
    troubles: Vec<SmiTrouble>,
    /// Whether something of NVIDIA's is plugged in.
    are_plugged_in: bool,
    apps: Answer<ComputeApp>,
    owners: BTreeMap<u32, String>,
    xids: Vec<Xid>,
    /// Whether the kernel's log may be read.
    is_log_read: bool,
}

impl Gpus {
    pub(super) fn read(plan: &LaunchPlan, told: &Told) -> Self {
        let text = |name| told.all(name).map(|line| format!("{line}\n")).collect::<String>();
        let status = |name| told.get(name).and_then(|status| status.parse().ok());
        let Answer { rows: listed, troubles } = GpuQuery::of_use().read(&text("gpu"), status("gpu_status"), now_s());
        let mut apps = read_compute_apps(&text("app"), status("app_status"));
        let mut xids: Vec<Xid> = told.all("xid").filter_map(Xid::read).collect();
        // A queue may have given a part of them to others, who work there.
        let recipe = plan.run.recipe().ok();
        let chosen = recipe.as_ref().and_then(|recipe| recipe.env.variables.get("CUDA_VISIBLE_DEVICES"));
        let (listed, others) = in_sight(chosen.map(String::as_str).or(told.get("in_sight")), listed);
        apps.rows.retain(|app| !others.iter().any(|gpu| gpu.uuid.is_some() && gpu.uuid == app.gpu_uuid));
        xids.retain(|xid| !others.iter().any(|gpu| gpu.bus_id.as_ref().is_some_and(|place| xid.is_at(place))));
        let owner =
            |row: &str| row.split_once(' ').and_then(|(pid, user)| Some((pid.parse().ok()?, user.trim().into())));
        Self {
            listed,
            troubles,
            are_plugged_in: told.get("plugged_in").is_some(),
            apps,
            owners: told.all("owner").filter_map(owner).collect(),
            xids,
            is_log_read: told.all("xid").all(|line| line != "denied"),
        }
    }

    /// Whether the node has GPUs: nvidia-smi lists some, or would if its driver were well. Programs for GPUs are also
    /// installed where there are none, so that it fails is no sign.
    pub(super) fn are_there(&self) -> bool {
        use SmiTrouble::{GpuLost, TimedOut, VersionMismatch};
        let ails = |trouble: &SmiTrouble| matches!(trouble, GpuLost { .. } | TimedOut | VersionMismatch { .. });
        !self.listed.is_empty() || self.are_plugged_in || self.troubles.iter().any(ails)
    }
}

/// Parts GPUs into those that `CUDA_VISIBLE_DEVICES` names, in its order, and all others. Where it names what is not listed, as
/// a part of a GPU, all are in sight.
fn in_sight(names: Option<&str>, listed: Vec<GpuSample>) -> (Vec<GpuSample>, Vec<GpuSample>) {
    let is_named = |gpu: &GpuSample, name: &str| {
        let is_uuid = || name.starts_with("GPU-") && gpu.uuid.as_ref().is_some_and(|uuid| uuid.starts_with(name));
        name.parse() == Ok(gpu.index) || is_uuid()
    };
    let find = |name: &str| listed.iter().find(|gpu| is_named(gpu, name.trim())).cloned();
    let Some(named) = names.and_then(|names| names.split(',').map(find).collect::<Option<Vec<_>>>()) else {
        return (listed, Vec::new());
    };
    let others = listed.into_iter().filter(|gpu| named.iter().all(|named| named.index != gpu.index)).collect();
    (named, others)
}

/// The refusal of a node whose trainer finds no GPUs, when ranks are to compute on some, `because` of something.
pub(super) fn no_gpus(what: &str, plan: &LaunchPlan, node: &NodeId, because: &str) -> Failure {
    Failure::new(
        rundir::ErrorCode::Unclassified,
        what,
        format!("node {node}: {because}, and the trainer finds no GPU there"),
        format!(
            "see `vidtui-train version` and `nvidia-smi` there: the trainer must be built with the feature `cuda`; {}, or set \
             train.device = \"cpu\"",
            leave_out(plan, node)
        ),
    )
}

/// The rows of a node's GPUs.
pub(super) fn rows(what: &str, plan: &LaunchPlan, node: &NodeId, told: &Told, usual: &Usual<'_>) -> Vec<Row> {
    let gpus = Gpus::read(plan, told);
    let fail = |why: String, fix: &str| {
        Err(Failure::new(rundir::ErrorCode::Unclassified, what, format!("node {node}: {why}"), fix))
    };
    let ranks = plan.attempt.placement.ranks.iter().filter(|place| place.node == *node).count();
    let leave_out = leave_out(plan, node);
    let mut rows = vec![("GPUs", gpus_row(&gpus, ranks, usual.why_gpus(node), &leave_out, &fail))];
    if !gpus.listed.is_empty() {
        rows.push(("GPU processes", processes_row(&gpus, &leave_out, &fail)));
        rows.push(("GPU memory", memory_row(&gpus.listed, ranks, &leave_out, &fail)));
        rows.push(("GPU errors", errors_row(&gpus, &fail)));
    }
    rows
}

/// Where one node computes on GPUs, each must: `why` says whose are the reason.
fn gpus_row(gpus: &Gpus, ranks: usize, why: Option<String>, leave_out: &str, fail: Fail<'_>) -> Found {
    let or_else = format!("{leave_out}, or waive it: --waive GPUs");
    let listed = gpus.listed.len();
    let Some(why) = why else {
        return Ok(match (gpus.troubles.first(), listed) {
            (None | Some(SmiTrouble::NotFound), 0) => "none, and none needed".into(),
            (Some(trouble), 0) => format!("none, and none needed: {trouble}"),
            (_, listed) => format!("{listed}, not used: this trainer runs on CPUs"),
        });
    };
    match gpus.troubles.first() {
        Some(SmiTrouble::NotFound) => {
            fail(format!("{why}, but there is no nvidia-smi"), &format!("install NVIDIA's driver, {or_else}"))
        }
        Some(trouble) => fail(format!("{why}, but {trouble}"), &format!("{}, {or_else}", trouble.fix())),
        None if ranks > listed => fail(
            format!("{} are to run on {}", counted(ranks, "rank"), counted(listed, "GPU")),
            "give it fewer slots in the hostfile",
        ),
        None => Ok(format!("{} on {listed}", counted(ranks, "rank"))),
    }
}

/// Processes that were there before the run.
fn processes_row(gpus: &Gpus, leave_out: &str, fail: Fail<'_>) -> Found {
    const WAIVE: &str = "or waive it: --waive 'GPU processes'";
    let in_words = |app: &ComputeApp| {
        let (pid, name) = (app.process.pid.value()?, &app.process.name);
        let user = gpus.owners.get(&pid).map_or("?", String::as_str);
        let memory = app.process.mem_used_mib.value().map_or(String::new(), |mib| format!(" with {}", size(mib << 20)));
        Some(format!("process {pid} of {user}{memory} ({name})"))
    };
    let apps: Vec<String> = gpus.apps.rows.iter().filter_map(in_words).collect();
    if !apps.is_empty() {
        let fix = format!("end what is left over (vidtui kill --pattern), {leave_out}, {WAIVE}");
        return fail(format!("its GPUs are in use: {}", apps.join("; ")), &fix);
    }
    let cannot = "what is left over on its GPUs cannot be told";
    match (gpus.apps.troubles.first(), gpus.apps.rows.len()) {
        (Some(trouble), _) => fail(format!("{cannot}: {trouble}"), &format!("{}; {WAIVE}", trouble.fix())),
        (None, 0) => Ok("none left over".into()),
        (None, hidden) => fail(
            format!("{cannot}: nvidia-smi hides {} from this user", counted(hidden, "process")),
            &format!("see `sudo nvidia-smi` there, {WAIVE}"),
        ),
    }
}

/// The GPUs that ranks will use, which are the first ones, must be empty but for what the driver takes.
fn memory_row(gpus: &[GpuSample], ranks: usize, leave_out: &str, fail: Fail<'_>) -> Found {
    let ours = || gpus.iter().take(ranks.max(1));
    let memory = |gpu: &GpuSample| Some((gpu.mem_used_mib.value()?, gpu.mem_total_mib.value()?));
    let taken: Vec<String> = ours()
        .filter_map(|gpu| Some((gpu.index, memory(gpu).filter(|(used, _)| *used > DRIVER_MIB)?)))
        .map(|(index, (used, total))| format!("{} of {} of GPU {index}", size(used << 20), size(total << 20)))
        .collect();
    if !taken.is_empty() {
        return fail(
            format!("memory is taken: {}", taken.join(", ")),
            &format!("end what holds it (vidtui kill --pattern), {leave_out}, or waive it: --waive 'GPU memory'"),
        );
    }
    let free = ours().filter_map(memory).map(|(used, total)| total.saturating_sub(used) << 20).min();
    Ok(free.map_or("it cannot be told".into(), |least| format!("{} free", size(least))))
}

/// Errors since the driver was loaded: some need a reset of the GPU before it computes what it should.
fn errors_row(gpus: &Gpus, fail: Fail<'_>) -> Found {
    let memory = gpus.listed.iter().filter_map(|gpu| {
        let errors = gpu.ecc_uncorrected.value().filter(|errors| *errors > 0)?;
        let errors = counted(usize::try_from(errors).unwrap_or(usize::MAX), "memory error");
        Some(format!("{errors} of GPU {} that could not be corrected", gpu.index))
    });
    let mut bad: Vec<String> = memory.collect();
    let mut xids = gpus.xids.clone();
    xids.sort();
    xids.dedup();
    let worst = xids.iter().map(Xid::action).max();
    bad.extend(xids.iter().filter(|xid| xid.action() >= XidAction::Reset).map(Xid::to_string));
    let harmless: Vec<String> = xids.iter().filter(|xid| xid.action() < XidAction::Reset).map(Xid::to_string).collect();
    if !bad.is_empty() {
        let fix = worst.filter(|action| *action >= XidAction::Reset).unwrap_or(XidAction::Reset).in_words();
        return fail(bad.join("; "), &format!("{fix}; or waive it: --waive 'GPU errors'"));
    }
    match &harmless[..] {
        [] if gpus.is_log_read => Ok("none".into()),
        [] => {
            Ok("none of memory; Xids cannot be told: this user may read neither dmesg nor the kernel's journal".into())
        }
        some => Ok(format!("{}, of programs that failed", some.join("; "))),
    }
}

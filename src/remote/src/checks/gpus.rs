//! Checks of a node's GPUs, from the output of nvidia-smi and the kernel's log.

use std::collections::BTreeMap;

use cluster::nvidia_smi::{COMPUTE_APPS, ComputeApp, FORMAT, GpuQuery, Output, SmiError, read_compute_apps};
use cluster::{GpuSample, NodeId, Xid, XidAction, remove_ended};
use plan::LaunchPlan;
use recipe::{GPU_SHARE, JobKind};
use rundir::{ErrorCode, now_s};
use units::{counted, size};

use super::answer::{CheckResult, Fail, NodeCheck, NodeFacts, leave_out};
use super::check::CheckId;

const SCRIPT: &str = include_str!("../scripts/preflight_gpus.sh");
/// GPU memory in MiB that the driver may take. If more is used, a process uses the GPU.
const DRIVER_MIB: u64 = 1024;

/// Returns the part of the script that queries the GPUs.
pub(super) fn script() -> String {
    format!("query='{}' format='{FORMAT}' apps='{COMPUTE_APPS}'\n{}{SCRIPT}", GpuQuery::of_use(), Xid::SCRIPT)
}

/// The GPUs of a node.
pub(super) struct Gpus {
    /// The GPUs that nvidia-smi lists and ranks can use, in their order.
    listed: Vec<GpuSample>,
    /// Why nvidia-smi lists only some of the GPUs, or none.
    smi_errors: Vec<SmiError>,
    /// Whether a PCI device of NVIDIA is plugged in.
    is_device_plugged_in: bool,
    apps: Output<ComputeApp>,
    owners: BTreeMap<u32, String>,
    xids: Vec<Xid>,
    /// Whether this user can read the kernel's log.
    is_log_readable: bool,
}

impl Gpus {
    pub(super) fn read(plan: &LaunchPlan, facts: &NodeFacts) -> Self {
        let text = |name| facts.all(name).map(|line| format!("{line}\n")).collect::<String>();
        let status = |name| facts.get(name).and_then(|status| status.parse().ok());
        let Output { rows: listed, mut smi_errors } =
            GpuQuery::of_use().read(&text("gpu"), status("gpu_status"), now_s());
        smi_errors.retain(|error| !error.is_warning());
        let mut apps = read_compute_apps(&text("app"), status("app_status"));
        let mut xids: Vec<Xid> = facts.all("xid").filter_map(Xid::read).collect();
        remove_ended(&mut xids, |xid| xid);
        // Slurm may have assigned some of the GPUs to other jobs.
        let recipe = plan.run.recipe().ok();
        let chosen = recipe.as_ref().and_then(|recipe| recipe.env.variables.get("CUDA_VISIBLE_DEVICES"));
        let (listed, others) = visible(chosen.map(String::as_str).or(facts.get("in_sight")), listed);
        apps.rows.retain(|app| !others.iter().any(|gpu| gpu.uuid.is_some() && gpu.uuid == app.gpu_uuid));
        xids.retain(|xid| !others.iter().any(|gpu| gpu.bus_id.as_ref().is_some_and(|place| xid.is_at(place))));
        let owner =
            |row: &str| row.split_once(' ').and_then(|(pid, user)| Some((pid.parse().ok()?, user.trim().into())));
        Self {
            listed,
            smi_errors,
            is_device_plugged_in: facts.get("plugged_in").is_some(),
            apps,
            owners: facts.all("owner").filter_map(owner).collect(),
            xids,
            is_log_readable: facts.all("xid").all(|line| line != "denied"),
        }
    }

    /// Whether the node has GPUs: nvidia-smi lists some, or would list them with a working driver. An installed
    /// nvidia-smi that fails does not prove that there are GPUs.
    pub(super) fn are_present(&self) -> bool {
        use SmiError::{GpuLost, TimedOut, VersionMismatch};
        let is_broken_gpu = |error: &SmiError| matches!(error, GpuLost { .. } | TimedOut | VersionMismatch { .. });
        !self.listed.is_empty() || self.is_device_plugged_in || self.smi_errors.iter().any(is_broken_gpu)
    }
}

/// Splits GPUs into those that `CUDA_VISIBLE_DEVICES` names, in its order, and the others. If it names a device that is not
/// listed, such as a MIG instance, all are visible.
fn visible(names: Option<&str>, listed: Vec<GpuSample>) -> (Vec<GpuSample>, Vec<GpuSample>) {
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

/// Returns the failure of a node whose ranks need GPUs and whose trainer finds none; `reason` is why they need GPUs.
pub(super) fn no_gpus(plan: &LaunchPlan, node: &NodeId, reason: &str, fail: Fail<'_>) -> CheckResult {
    let fix = format!(
        "run `vidtui-train version` and `nvidia-smi` there: the trainer must be built with the feature `cuda`; {}, or set \
         train.device = \"cpu\"",
        leave_out(plan, node)
    );
    fail(ErrorCode::NoGpu, format!("{reason}, but the trainer finds no GPU there"), &fix)
}

/// Checks the GPUs of a node; `required` is the reason why the node must have GPUs.
pub(super) fn checks(
    plan: &LaunchPlan,
    node: &NodeId,
    facts: &NodeFacts,
    required: Option<String>,
    fail: Fail<'_>,
) -> Vec<NodeCheck> {
    let gpus = Gpus::read(plan, facts);
    let ranks = plan.attempt.placement.ranks.iter().filter(|place| place.node == *node).count();
    let leave_out = leave_out(plan, node);
    let is_shared = plan.run.recipe().is_ok_and(|recipe| recipe.env.shares_gpus());
    let on_gpu = if is_shared { ranks.div_ceil(gpus.listed.len().max(1)) } else { 1 };
    // Ranks that share GPUs use as many GPUs as there are.
    let used = if is_shared { ranks.min(gpus.listed.len()) } else { ranks };
    let mut checks = vec![(CheckId::Gpus, present(&gpus, ranks, is_shared, required, &leave_out, fail))];
    if !gpus.listed.is_empty() {
        checks.push((CheckId::GpuProcesses, processes(&gpus, &leave_out, fail)));
        checks.push((CheckId::GpuMemory, memory(plan, &gpus.listed, used, on_gpu, &leave_out, fail)));
        checks.push((CheckId::GpuErrors, errors(&gpus, fail)));
    }
    checks
}

fn present(
    gpus: &Gpus,
    ranks: usize,
    is_shared: bool,
    required: Option<String>,
    leave_out: &str,
    fail: Fail<'_>,
) -> CheckResult {
    let or_else = format!("{leave_out}, or waive this check: --waive GPUs");
    let listed = gpus.listed.len();
    let Some(why) = required else {
        return Ok(match (gpus.smi_errors.first(), listed) {
            (None | Some(SmiError::NotFound), 0) => "none, and none required".into(),
            (Some(error), 0) => format!("none, and none required: {error}"),
            (_, listed) => format!("{listed}, not used: this trainer runs on CPUs"),
        });
    };
    match gpus.smi_errors.first() {
        Some(SmiError::NotFound) => fail(
            ErrorCode::NoGpu,
            format!("{why}, but nvidia-smi is not installed"),
            &format!("install the NVIDIA driver, {or_else}"),
        ),
        Some(error) => fail(ErrorCode::NoGpu, format!("{why}, but {error}"), &format!("{}, {or_else}", error.fix())),
        None if ranks > listed && !(is_shared && listed > 0) => fail(
            ErrorCode::TooFewRanks,
            format!("{} on {}", counted(ranks, "rank"), counted(listed, "GPU")),
            "give it fewer slots in the hostfile; to try a mesh with several ranks on a GPU: env.presets = [\"nccl_shared_gpus\"]",
        ),
        None => Ok(format!("{} on {listed}", counted(ranks, "rank"))),
    }
}

/// Checks that no other process uses the GPUs.
fn processes(gpus: &Gpus, leave_out: &str, fail: Fail<'_>) -> CheckResult {
    const WAIVE: &str = "or waive this check: --waive 'GPU processes'";
    let describe = |app: &ComputeApp| {
        let (pid, name) = (app.process.pid.value()?, &app.process.name);
        let user = gpus.owners.get(&pid).map_or("?", String::as_str);
        let memory = app.process.mem_used_mib.value().map_or(String::new(), |mib| format!(" with {}", size(mib << 20)));
        Some(format!("process {pid} of {user}{memory} ({name})"))
    };
    let apps: Vec<String> = gpus.apps.rows.iter().filter_map(describe).collect();
    if !apps.is_empty() {
        let why = format!("its GPUs are in use: {}", apps.join("; "));
        let fix = format!("end orphan processes (vidtui kill --pattern REGEX), {leave_out}, {WAIVE}");
        return fail(ErrorCode::CheckFailed, why, &fix);
    }
    let cannot = "cannot list the processes on its GPUs";
    match (gpus.apps.failure(), gpus.apps.rows.len()) {
        (Some(error), _) => {
            fail(ErrorCode::CheckFailed, format!("{cannot}: {error}"), &format!("{}; {WAIVE}", error.fix()))
        }
        (None, 0) => Ok("no other process".into()),
        (None, hidden) => fail(
            ErrorCode::CheckFailed,
            format!("{cannot}: nvidia-smi hides {} from this user", counted(hidden, "process")),
            &format!("run `sudo nvidia-smi` there, {WAIVE}"),
        ),
    }
}

/// Checks that the memory of the GPUs that ranks will use is free, except for the driver's share, and that the planned memory of a
/// rank fits.
fn memory(
    plan: &LaunchPlan,
    gpus: &[GpuSample],
    used: usize,
    ranks_on_gpu: usize,
    leave_out: &str,
    fail: Fail<'_>,
) -> CheckResult {
    let ours = || gpus.iter().take(used.max(1));
    let memory = |gpu: &GpuSample| Some((gpu.mem_used_mib.value()?, gpu.mem_total_mib.value()?));
    let used: Vec<String> = ours()
        .filter_map(|gpu| Some((gpu.index, memory(gpu).filter(|(used, _)| *used > DRIVER_MIB)?)))
        .map(|(index, (used, total))| format!("{} of {} of GPU {index}", size(used << 20), size(total << 20)))
        .collect();
    if !used.is_empty() {
        return fail(
            ErrorCode::CheckFailed,
            format!("GPU memory is in use: {}", used.join(", ")),
            &format!(
                "end the processes that hold it (vidtui kill --pattern REGEX), {leave_out}, or waive this check: --waive 'GPU memory'"
            ),
        );
    }
    let least = ours().filter_map(|gpu| gpu.mem_total_mib.value()).min().map(|mib| mib << 20);
    if let Some((planned, fix)) = least.and_then(|total| too_large(plan, ranks_on_gpu as u64, total)) {
        return fail(ErrorCode::OutOfMemory, planned, &fix);
    }
    let unknown: Vec<String> = ours().filter(|gpu| memory(gpu).is_none()).map(|gpu| gpu.index.to_string()).collect();
    let free = ours().filter_map(memory).map(|(used, total)| total.saturating_sub(used) << 20).min();
    Ok(match free {
        None => "not reported".into(),
        Some(least) if unknown.is_empty() => format!("{} free", size(least)),
        Some(least) => format!("{} free, not reported by GPU {}", size(least), unknown.join(", ")),
    })
}

/// The number of parts of the planned memory that a failure names.
const LARGEST: usize = 4;

/// Returns why the planned memory of `ranks` ranks does not fit a GPU with `total` bytes, and the fix. Only the memory of training with the
/// embedded trainer is planned.
fn too_large(plan: &LaunchPlan, ranks: u64, total: u64) -> Option<(String, String)> {
    let is_planned = plan.job() == JobKind::Train && plan.on_gpus(plan.trainer.cuda);
    let recipe = plan.run.recipe().ok().filter(|_| is_planned)?;
    // The plan is an estimate. A resume on the mesh on which earlier attempts already trained is not rejected.
    if plan.attempt.start_step > 0 && plan.attempt.mesh == recipe.mesh {
        return None;
    }
    let recipe = plan.attempt.effective(&recipe);
    let (peak, limit) = (recipe.peak_memory(), recipe.usable_memory(total));
    if peak * ranks <= limit {
        return None;
    }
    let share = GPU_SHARE * 100.0;
    let planned = format!(
        "a rank needs about {}{}, most of it {}, and may take {} ({share:.0} %) of a GPU of {}",
        size(peak),
        if ranks > 1 { format!(" ({ranks} of them share a GPU: {})", size(peak * ranks)) } else { String::new() },
        recipe.largest_parts(LARGEST),
        size(limit),
        size(total)
    );
    let fix = format!(
        "`vidtui check RECIPE --fit-memory {}GiB` proposes settings; or waive this check: --waive 'GPU memory'",
        total >> 30
    );
    Some((planned, fix))
}

/// Checks that no GPU is lost, and for errors since the driver was loaded. After some errors, a GPU computes wrong results until
/// it is reset.
fn errors(gpus: &Gpus, fail: Fail<'_>) -> CheckResult {
    let lost = gpus.listed.iter().filter_map(|gpu| Some(format!("GPU {}: {}", gpu.index, gpu.fault()?)));
    let memory = gpus.listed.iter().filter_map(|gpu| {
        let errors = gpu.ecc_uncorrected.value().filter(|errors| *errors > 0)?;
        let errors = counted(usize::try_from(errors).unwrap_or(usize::MAX), "uncorrectable memory error");
        Some(format!("{errors} on GPU {}", gpu.index))
    });
    let mut severe: Vec<String> = lost.chain(memory).collect();
    let mut xids = gpus.xids.clone();
    xids.sort();
    xids.dedup();
    let worst = xids.iter().map(Xid::action).max();
    severe.extend(xids.iter().filter(|xid| xid.action().is_fault()).map(Xid::to_string));
    if !severe.is_empty() {
        let fix = worst.filter(|action| action.is_fault()).unwrap_or(XidAction::Reset).in_words();
        let fix = format!("{fix}; or waive this check: --waive 'GPU errors'");
        return fail(ErrorCode::DeviceFailed, severe.join("; "), &fix);
    }
    let harmless: Vec<String> = xids.iter().map(Xid::to_string).collect();
    Ok(match &harmless[..] {
        [] if gpus.is_log_readable => "none".into(),
        [] => "no memory errors; Xid errors unknown: this user can read neither dmesg nor the kernel's journal".into(),
        some => format!("{}; the GPUs can be used", some.join("; ")),
    })
}

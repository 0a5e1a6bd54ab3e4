//! Checks of a node's disks: the disk of the run folder, and the disk that a command saves to.

use camino::{Utf8Path, Utf8PathBuf};
use plan::{DiskNeed, LaunchPlan, check_disk};
use recipe::JobKind;
use rundir::{ErrorCode, Failure};
use units::size;

use super::answer::{CheckResult, Fail, NodeCheck, NodeFacts};
use super::check::CheckId;
use crate::script::existing;
use crate::transport::Transport;

const SCRIPT: &str = include_str!("../scripts/preflight_disk.sh");
/// Free inodes that a run needs, with a margin: logs and checkpoints take far fewer.
const INODES: u64 = 10_000;

/// Returns the part of the script that queries the disks.
pub(super) fn script(plan: &LaunchPlan) -> String {
    let of = |name: &str, dir: &Utf8Path| SCRIPT.replace("@EXISTING", &existing(dir)).replace("@NAME", name);
    of("runs", runs(plan)) + &output(plan).map_or(String::new(), |output| of("output", &output))
}

/// Returns the folder of all runs.
pub(super) fn runs(plan: &LaunchPlan) -> &Utf8Path {
    plan.dir.root.parent().unwrap_or(&plan.dir.root)
}

/// Returns the folder that a command or an encode writes to, if it is outside the folder of runs.
fn output(plan: &LaunchPlan) -> Option<Utf8PathBuf> {
    let recipe = plan.run.recipe().ok()?;
    let output = match plan.job() {
        JobKind::Command => rundir::command_output(&plan.dir, &plan.run, &recipe),
        JobKind::Encode => recipe.encode.out,
        JobKind::Train | JobKind::Sample => return None,
    };
    Some(output).filter(|output| !output.starts_with(runs(plan)))
}

/// Checks the free space for a Slurm job, whose nodes are not known yet, from this machine.
pub(super) fn of_this_machine(what: &str, plan: &LaunchPlan, transport: &mut dyn Transport) -> CheckResult {
    let free = transport.free_bytes(&plan.dir.root).map_err(|error| error.failure(what))?;
    check_disk(what, &plan.disk, free, runs(plan), "--runs")?;
    Ok(space(&plan.disk, free))
}

/// Checks the disks of a node.
pub(super) fn checks(plan: &LaunchPlan, facts: &NodeFacts, fail: Fail<'_>) -> Vec<NodeCheck> {
    let (runs, output) = (runs(plan), output(plan));
    // A command or an encode that writes elsewhere takes no space in the run folder.
    let need = if output.is_some() { DiskNeed::default() } else { plan.disk };
    let mut checks = vec![(CheckId::Disk, free_space(&need, facts, "runs", runs, "--runs", fail))];
    checks.extend(free_inodes(facts, "runs", runs, fail).map(|result| (CheckId::Inodes, result)));
    if let Some(output) = output {
        checks.push((CheckId::Output, output_folder(plan, facts, &output, fail)));
    }
    checks
}

fn output_folder(plan: &LaunchPlan, facts: &NodeFacts, output: &Utf8Path, fail: Fail<'_>) -> CheckResult {
    if facts.get("output_writable").is_none() {
        return fail(
            ErrorCode::PermissionDenied,
            format!("{output} is not writable"),
            &format!("change its permissions, or choose another folder: {}", output_key(plan)),
        );
    }
    let space = free_space(&plan.disk, facts, "output", output, output_key(plan), fail)?;
    free_inodes(facts, "output", output, fail).transpose()?;
    Ok(format!("{output}, {space}"))
}

/// Returns the key that names the folder that a command or an encode writes to.
fn output_key(plan: &LaunchPlan) -> &'static str {
    if plan.is_command() { "command.output" } else { "encode.out" }
}

/// Checks the free space on the disk of a folder; `setting` is the setting that chooses the folder.
fn free_space(
    need: &DiskNeed,
    facts: &NodeFacts,
    name: &str,
    at: &Utf8Path,
    setting: &str,
    fail: Fail<'_>,
) -> CheckResult {
    let Some(kib) = facts.get(&format!("{name}_free_kib")).and_then(|kib| kib.parse::<u64>().ok()) else {
        return fail(ErrorCode::CheckFailed, format!("df prints no free space for {at}"), "run df there");
    };
    match check_disk("", need, kib * 1024, at, setting) {
        Ok(()) => Ok(space(need, kib * 1024)),
        Err(Failure { why, fix, .. }) => fail(ErrorCode::DiskFull, why, &fix),
    }
}

/// Checks the free inodes. A file system that allocates inodes on demand reports none.
fn free_inodes(facts: &NodeFacts, name: &str, at: &Utf8Path, fail: Fail<'_>) -> Option<CheckResult> {
    let inodes = facts.get(&format!("{name}_inodes"))?.parse::<u64>().ok().filter(|inodes| *inodes > 0)?;
    Some(if inodes < INODES {
        fail(
            ErrorCode::DiskFull,
            format!("{at} has room for {inodes} more files, a run needs up to {INODES}"),
            "delete some files there, or choose another disk",
        )
    } else {
        Ok(format!("{inodes} free"))
    })
}

/// Formats the required space, if it can be predicted, and the free space.
fn space(need: &DiskNeed, free: u64) -> String {
    match need.count {
        0 => format!("{} free; what the command saves cannot be predicted", size(free)),
        _ => format!("{} needed, {} free", size(need.bytes()), size(free)),
    }
}

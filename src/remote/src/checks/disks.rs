//! What a run needs of disks: that of its own folder, and that of what a command saves.

use camino::{Utf8Path, Utf8PathBuf};
use plan::{DiskNeed, LaunchPlan, check_disk};
use rundir::Failure;

use super::node::{Fail, Found, Row};
use super::nodes::Told;
use super::room;
use crate::script::existing;

const SCRIPT: &str = include_str!("../scripts/preflight_disk.sh");
/// Files that a run makes, and some room: logs and checkpoints have far fewer.
const INODES: u64 = 10_000;

/// The part of a script that is about disks.
pub(super) fn script(plan: &LaunchPlan) -> String {
    let of = |name: &str, dir: &Utf8Path| SCRIPT.replace("@EXISTING", &existing(dir)).replace("@NAME", name);
    of("runs", runs(plan)) + &output(plan).map_or(String::new(), |output| of("output", &output))
}

/// The folder of all runs.
pub(super) fn runs(plan: &LaunchPlan) -> &Utf8Path {
    plan.dir.root.parent().unwrap_or(&plan.dir.root)
}

/// The folder that a command saves to, where that is not the run's own.
fn output(plan: &LaunchPlan) -> Option<Utf8PathBuf> {
    let recipe = plan.run.recipe().ok().filter(|_| plan.is_command())?;
    Some(rundir::command_output(&plan.dir, &plan.run, &recipe)).filter(|output| !output.starts_with(runs(plan)))
}

/// The rows of a node's disks.
pub(super) fn rows(plan: &LaunchPlan, told: &Told, fail: Fail<'_>) -> Vec<Row> {
    let (runs, output) = (runs(plan), output(plan));
    // What a command saves elsewhere takes nothing here.
    let need = if output.is_some() { DiskNeed::default() } else { plan.disk };
    let mut rows = vec![("disk", space(&need, told, "runs", runs, "--runs", fail))];
    rows.extend(files(told, "runs", runs, fail).map(|found| ("inodes", found)));
    if let Some(output) = output {
        rows.push(("output", room_for_output(plan, told, &output, fail)));
    }
    rows
}

fn room_for_output(plan: &LaunchPlan, told: &Told, output: &Utf8Path, fail: Fail<'_>) -> Found {
    let (name, setting) = ("output", "command.output");
    if told.get("output_writable").is_none() {
        return fail(
            format!("{output} cannot be written to"),
            "change its permissions, or choose another: command.output",
        );
    }
    let space = space(&plan.disk, told, name, output, setting, fail)?;
    files(told, name, output, fail).transpose()?;
    Ok(format!("{output}, {space}"))
}

/// The space on the disk of a folder, which `setting` chooses.
fn space(need: &DiskNeed, told: &Told, name: &str, at: &Utf8Path, setting: &str, fail: Fail<'_>) -> Found {
    let Some(kib) = told.get(&format!("{name}_free_kib")).and_then(|kib| kib.parse::<u64>().ok()) else {
        return fail(format!("df does not tell the free space of {at}"), "look at its disks: df");
    };
    match check_disk("", need, kib * 1024, at, setting) {
        Ok(()) => Ok(room(need, kib * 1024)),
        Err(Failure { why, fix, .. }) => fail(why, &fix),
    }
}

/// How many files a disk has room for. File systems that make them as they need have no number to tell.
fn files(told: &Told, name: &str, at: &Utf8Path, fail: Fail<'_>) -> Option<Found> {
    let inodes = told.get(&format!("{name}_inodes"))?.parse::<u64>().ok().filter(|inodes| *inodes > 0)?;
    Some(if inodes < INODES {
        fail(format!("{at} has room for {inodes} more files"), "remove some there, or choose another disk")
    } else {
        Ok(format!("{inodes} free"))
    })
}

//! The checks that a launch runs before it starts anything.
//!
//! [`run_checks`] checks the inputs of a launch, plans it, and checks the plan; [`check_launch`] checks a plan. Every
//! check is a [`Check`], with a [`CheckId`] for programs.

mod answer;
mod check;
mod command;
mod disks;
mod files;
mod gpus;
mod inputs;
mod majority;
mod memory;
mod node;
mod nodes;
mod offload;
mod slurm;

use std::sync::{Mutex, PoisonError};

use cluster::NodeId;
use plan::LaunchPlan;
use rundir::{ErrorCode, Failure, Login};

use crate::transport::{Shell, Transport};
pub use check::{Check, CheckId, CheckStatus, merge_passed};
pub(crate) use files::secrets;
pub use inputs::LaunchInputs;

/// Runs every check of a launch and starts nothing. First checks the inputs; if they pass, plans the launch and checks
/// the plan. `progress` receives the checks that are known so far, after the inputs and after the reply of each node.
pub fn run_checks(
    inputs: LaunchInputs<'_>,
    plan: impl FnOnce() -> Result<LaunchPlan, Failure>,
    connect: impl FnOnce(&[Login]) -> Result<Vec<Box<dyn Transport>>, Failure>,
    progress: &(dyn Fn(&[Check]) + Sync),
) -> Vec<Check> {
    let mut checks = inputs::checks(inputs);
    progress(&checks);
    if !checks.iter().all(Check::is_passed) {
        let status = CheckStatus::Unknown("the checks above".into());
        checks.push(Check { id: CheckId::DiskAndRunFolder, node: None, status });
        return checks;
    }
    let plan = match plan() {
        Ok(plan) => plan,
        Err(failure) => {
            checks.push(Check::new(CheckId::Plan, None, Err(failure)));
            return checks;
        }
    };
    match connect(&plan.attempt.logins) {
        Ok(mut transports) => {
            // The inputs have been checked already.
            let is_new = |check: &Check| check.node.is_some() || checks.iter().all(|done| done.id != check.id);
            let known = Mutex::new(checks.clone());
            let on_reply = |check: Check| {
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                known.push(check);
                progress(&known);
            };
            let of_plan = check_plan(&plan, &mut transports, &on_reply);
            let of_plan: Vec<Check> = of_plan.into_iter().filter(is_new).collect();
            checks.extend(of_plan);
            let command = plan.summary.iter().find(|(name, _)| plan.is_command() && name == "command");
            checks.extend(command.map(|(_, line)| Check::new(CheckId::Starts, None, Ok(line.clone()))));
        }
        Err(failure) => checks.push(Check::new(CheckId::Node, None, Err(failure))),
    }
    checks
}

/// Runs every check of a launch plan and starts nothing.
///
/// It does not check that the data set fits the recipe; `dataset::Table::open` does.
pub fn check_launch(plan: &LaunchPlan, transports: &mut [Box<dyn Transport>]) -> Vec<Check> {
    check_plan(plan, transports, &|_| {})
}

/// Runs every check of a launch plan. `on_reply` receives whether a node answers as soon as that is known.
fn check_plan(
    plan: &LaunchPlan,
    transports: &mut [Box<dyn Transport>],
    on_reply: &(dyn Fn(Check) + Sync),
) -> Vec<Check> {
    let what = cannot(plan);
    let mut checks = files::checks(&what, plan);
    if let (Some(script), Some(asked)) = (&plan.job_script, &plan.attempt.slurm) {
        let disk = transports.first_mut().map(|here| disks::of_this_machine(&what, plan, here.as_mut()));
        checks.extend(disk.map(|result| Check::new(CheckId::Disk, None, result)));
        checks.extend(slurm::checks(&what, plan, &asked.spec, script));
    } else if plan.attempt.logins.is_empty() {
        for launch in &plan.nodes {
            let transport = transports.iter_mut().find(|transport| *transport.node() == launch.node);
            checks.extend(nodes::this_machine(&what, plan, &launch.node, transport));
        }
        checks.extend(command::checks(&what, plan, transports));
        checks.extend(command::ffmpeg(&what, plan, transports));
    } else {
        checks.extend(check_nodes(&what, plan, transports, on_reply));
    }
    check::waive(&mut checks, plan);
    checks
}

/// Runs the checks of every node of a plan. `on_reply` receives whether a node answers as soon as that is known.
pub(crate) fn check_nodes<S: Shell + ?Sized>(
    what: &str,
    plan: &LaunchPlan,
    shells: &mut [Box<S>],
    on_reply: &(dyn Fn(Check) + Sync),
) -> Vec<Check> {
    let mut checks = nodes::checks(what, plan, shells, on_reply);
    checks.extend(command::checks(what, plan, shells));
    checks.extend(command::ffmpeg(what, plan, shells));
    check::waive(&mut checks, plan);
    checks
}

/// Returns the first words of every failure of a launch: `cannot launch demo`.
pub(crate) fn cannot(plan: &LaunchPlan) -> String {
    if plan.is_new_run() {
        format!("cannot launch {}", plan.run.name)
    } else {
        format!("cannot resume {}", plan.run.id)
    }
}

fn no_transport(what: &str, node: &NodeId) -> Failure {
    let why = format!("node {node} is not this machine, and the launch has no hostfile with it");
    Failure::new(ErrorCode::NodeUnreachable, what, why, format!("launch on {node}, or list it in a hostfile"))
}

//! `vidtui stop` and `vidtui kill`: what will be signalled is shown before it is.

use crate::args::{KillArgs, StopArgs};
use crate::commands::{kill_orphans, waiting};
use crate::documents::RunDocument;
use crate::output;
use crate::refusal::Refusal;
use crate::workspace::{Workspace, report_in_words};
use plan::{KillHow, KillScope, RunKill};
use remote::{GpuMemory, NodeReport, Patience};
use rundir::Failure;
use std::io::{self, BufRead, IsTerminal, Write};

/// Asks a run to save and stop.
pub fn stop(workspace: &Workspace, args: &StopArgs) -> Result<(), Refusal> {
    let Some(run) = &args.run else {
        let how = kill_orphans::How {
            kill: KillHow::Stop,
            dry_run: args.dry_run,
            yes: true,
            wait: false,
            json: args.output.json,
        };
        return kill_orphans::runs(workspace, &args.on.nodes(), &how);
    };
    let dir = workspace.find(run)?;
    let plan = workspace.plan_kill(&dir, KillHow::Stop)?;
    if args.dry_run {
        return show(&plan, args.output.json);
    }
    let report =
        workspace.signal(&plan, &Patience::default(), &mut |step| eprintln!("{}: {}", step.node, step.text))?;
    if args.wait {
        let summary = waiting::until_ended(workspace, &dir)?;
        if args.output.json {
            return output::json(&RunDocument::new(&summary));
        }
        let saved = match &summary.checkpoint {
            Some(checkpoint) => format!("its checkpoint is of step {}", checkpoint.step),
            None => "it has no checkpoint".into(),
        };
        return output::line(&format!("{} has ended; {saved}", plan.run));
    }
    if args.output.json {
        return output::json(&serde_json::json!({ "run": plan.run, "stopping": true }));
    }
    if plan.job.as_ref().is_some_and(|job| job.is_cancelled) {
        return output::line(&report_in_words(&report));
    }
    output::line(&format!("{} saves a checkpoint and stops; see: vidtui status {0}", plan.run))
}

/// Ends a run now.
pub fn kill(workspace: &Workspace, args: &KillArgs) -> Result<(), Refusal> {
    let how = kill_orphans::How {
        kill: KillHow::Kill,
        dry_run: args.dry_run,
        yes: args.yes,
        wait: args.wait,
        json: args.output.json,
    };
    if let Some(pattern) = &args.pattern {
        let reach = match (args.sudo, args.all_users) {
            (true, _) => KillScope::Sudo,
            (false, true) => KillScope::AllUsers,
            (false, false) => KillScope::Own,
        };
        return kill_orphans::orphans(workspace, &args.on.nodes(), pattern, reach, &how);
    }
    let Some(run) = &args.run else { return kill_orphans::runs(workspace, &args.on.nodes(), &how) };
    let dir = workspace.find(run)?;
    let plan = workspace.plan_kill(&dir, KillHow::Kill)?;
    if args.dry_run {
        return show(&plan, args.output.json);
    }
    if !args.yes {
        eprint!("{}", in_words(&plan));
        let question = "Steps since the last checkpoint are lost. Kill?";
        if !confirmed(plan.run.as_str(), question, &format!("vidtui kill {} --yes", plan.run))? {
            return Err(Failure::new(
                rundir::ErrorCode::Unclassified,
                format!("{} goes on", plan.run),
                "nobody said yes",
                "",
            )
            .into());
        }
    }
    // Without --wait, it is given up as soon as a node would be waited for.
    let report = workspace.kill(
        &plan,
        &mut |text| eprintln!("{text}"),
        &mut |step| eprintln!("{}: {}", step.node, step.text),
        &|| !args.wait,
    )?;
    if args.output.json {
        return output::json(
            &serde_json::json!({ "run": plan.run, "killed": true, "report": report_in_words(&report), "nodes": nodes(&report.nodes) }),
        );
    }
    output::line(&report_in_words(&report))
}

/// Asks on the terminal; what is not a clear yes is a no.
pub fn confirmed(what: &str, question: &str, say_yes: &str) -> Result<bool, Refusal> {
    if !io::stdin().is_terminal() {
        let why = "it asks first, and there is no terminal to ask on";
        let fix = format!("say yes beforehand: {say_yes}");
        return Err(Refusal::request(Failure::new(
            rundir::ErrorCode::Unclassified,
            format!("cannot kill {what}"),
            why,
            fix,
        )));
    }
    eprint!("{question} [y/N] ");
    // A question that cannot be shown is not answered with yes.
    let _ = io::stderr().flush();
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    Ok(read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// What became of nodes, for scripts.
pub fn nodes(reports: &[NodeReport]) -> Vec<serde_json::Value> {
    let of_node = |report: &NodeReport| {
        let memory = match report.gpu_memory {
            GpuMemory::Unasked => "unasked",
            GpuMemory::NoGpus(_) => "no_gpus",
            GpuMemory::Released => "released",
            GpuMemory::Hidden(_) => "hidden",
            GpuMemory::Held(_) => "held",
            GpuMemory::Unknown(_) => "unknown",
        };
        serde_json::json!({
            "node": report.node,
            "gone": report.all_gone(),
            "signalled": report.signalled,
            "gpu_memory": memory,
            "left": report.survivors(),
            "failure": report.failure,
        })
    };
    reports.iter().map(of_node).collect()
}

fn show(plan: &RunKill, json: bool) -> Result<(), Refusal> {
    if !json {
        return output::text(&in_words(plan));
    }
    output::json(&document(plan))
}

/// What would be signalled, for scripts.
pub fn document(plan: &RunKill) -> serde_json::Value {
    let nodes: Vec<_> = plan
        .nodes
        .iter()
        .map(|node| {
            let ranks: Vec<_> =
                node.ranks.iter().map(|rank| serde_json::json!({ "rank": rank.rank, "pid": rank.pid })).collect();
            serde_json::json!({ "node": node.node, "pid": node.pid, "pgid": node.pgid, "ranks": ranks, "why": node.why })
        })
        .collect();
    let how = if plan.how == KillHow::Stop { "stop" } else { "kill" };
    let job = plan.job.as_ref().map(|job| serde_json::json!({ "id": job.id, "why": job.why }));
    serde_json::json!({ "run": plan.run, "how": how, "nodes": nodes, "job": job })
}

/// What would be signalled, for people.
pub fn in_words(plan: &RunKill) -> String {
    if let Some(job) = &plan.job {
        return format!("{}\n{}\n", plan.run, job.why);
    }
    let lines = plan.nodes.iter().map(|node| format!("{}: {}\n", node.node, node.why));
    format!("{}\n{}", plan.run, lines.collect::<String>())
}

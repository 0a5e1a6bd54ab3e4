//! `vidtui status`: prints the state of a run.

use crate::args::StatusArgs;
use crate::command_error::CommandError;
use crate::commands::named_run;
use crate::documents::RunDocument;
use crate::output;
use crate::workspace::{Needs, Workspace};
use cluster::{NodeId, hostlist};
use health::Finding;
use recipe::Task;
use rundir::{AttemptWhy, EncodeStages, now_s};
use runstate::{EncodeStageProgress, Goodput, Progress, RunState, RunSummary};
use ui::advice::finding_in_words;
use ui::goodput_text;
use ui::run_state::StateKind;

/// Shows one run: state, progress, loss, checkpoint.
pub fn run(workspace: &Workspace, args: &StatusArgs) -> Result<(), CommandError> {
    let (summary, known) =
        workspace.summary(&named_run(workspace, &args.run, Needs::Nothing, args.output.json || args.oneline)?)?;
    if args.oneline {
        return output::line(&one_line(&summary));
    }
    let findings = workspace.findings(&summary, &known);
    let goodput = workspace.goodput(&summary)?;
    if args.output.json {
        return output::json(
            &RunDocument::new(&summary)
                .with_findings(&findings)
                .with_goodput(goodput.as_ref())
                .with_usage(summary.dir.gpu_usage()),
        );
    }
    output::text(&output::facts(&facts(&summary, &findings, goodput.as_ref(), now_s())))
}

/// Returns the printed lines as names and values. A line with an empty name continues the line above.
pub fn facts(summary: &RunSummary, findings: &[Finding], goodput: Option<&Goodput>, now: f64) -> Vec<(String, String)> {
    let run = &summary.run;
    let mut facts = vec![("run", run.id.to_string()), ("state", StateKind::of(&summary.state).word().into())];
    if let Some(note) = rundir::read_note(&summary.dir) {
        facts.insert(1, ("note", note));
    }
    if let Some(failure) = summary.failure() {
        facts.push(("", format!("{}: {}", failure.what, failure.why)));
        facts.push(("", format!("hint: {}", failure.fix)));
        if !summary.consequences.is_empty() {
            let nodes: Vec<&str> = summary.consequences.iter().map(NodeId::as_str).collect();
            facts.push(("", format!("nodes that ended because of it: {}", hostlist::compress(&nodes))));
        }
    }
    if let Some(job) = &summary.job {
        facts.push(("job", ui::slurm::sentence(job, now)));
    }
    for (n, finding) in findings.iter().enumerate() {
        facts.push((if n == 0 { "findings" } else { "" }, finding_in_words(now, finding)));
        facts.push(("", format!("hint: {}", finding.fix)));
    }
    if let (Some(stage), Some(curriculum)) = (&run.stage, &run.curriculum) {
        facts.push(("stage", format!("{stage} of {curriculum}")));
    }
    if let Some(parent) = &run.lineage {
        facts.push(("weights", format!("step {} of {}", parent.step, parent.run)));
    }
    let mut progress = match summary.progress() {
        Progress::Unknown { .. } if run.attached.is_some() => {
            "unknown: no steps have been read from the log (vidtui check --log LOG shows why)".into()
        }
        Progress::Unknown { .. } => {
            "unknown: no steps are read from the log of the command (see command.adapter)".into()
        }
        Progress::Steps { step, total: 0 } => units::grouped(step),
        Progress::Steps { step, total } => format!("{} of {}", units::grouped(step), units::grouped(total)),
        done => done.in_words(),
    };
    if let Some(epochs) = summary.epochs() {
        progress += &format!(", {}", epochs.in_words());
    }
    if let Some(left) = summary.eta_s {
        progress += &format!(", {} left", units::duration(left));
    }
    facts.push((if run.task() == Task::Train { "step" } else { "done" }, progress));
    if summary.skipped_steps > 0 {
        let count = units::counted(summary.skipped_steps as usize, "step");
        facts.push(("skipped", format!("{count}, because the loss or the gradient was not finite")));
    }
    if let Some(EncodeStages { probe, decode, vae, text }) = summary.stages {
        let stages = [("probe", probe), ("decode", decode), ("VAE", vae), ("text", text)];
        facts.extend(stages.map(|(name, stage)| (name, stage_in_words(&stage))));
    }
    if let Some(sample) = summary.with_loss.as_ref().filter(|sample| sample.is_training()) {
        facts.push(("loss", sample.loss.map_or("not a finite number".into(), units::number)));
    }
    if let Some(sample) = summary.last.as_ref().filter(|sample| sample.is_training()) {
        if !sample.is_from_log || sample.step_s > 0.0 {
            facts.push(("step time", units::value(sample.step_s, units::Unit::Seconds)));
        }
        if let Some(most) = sample.mem_peak_gib_by_rank.iter().copied().reduce(f64::max) {
            facts.push(("memory", format!("peak {} in a rank", units::value(most, units::Unit::Gib))));
        }
    }
    if let Some(goodput) = goodput {
        facts.push(("goodput", goodput_text::sentence(goodput)));
        let losses = goodput_text::losses(goodput);
        facts.extend(Some(("", format!("lost: {losses}"))).filter(|_| !losses.is_empty()));
    }
    if let Some(usage) = summary.dir.gpu_usage() {
        facts.push(("GPUs", usage.in_words()));
    }
    if let Some(imported) = &run.imported {
        facts.push(("imported", format!("from {}, by {}", imported.from, imported.tool)));
    } else if let Some(attempt) = &summary.attempt {
        let nodes: Vec<String> = attempt.placement.by_node().into_iter().map(|(node, _)| node.to_string()).collect();
        let why = match attempt.why {
            AttemptWhy::Launch => "launched",
            AttemptWhy::Resume => "resumed",
            AttemptWhy::Requeue => "requeued",
            AttemptWhy::Heal => "resumed after a failure",
        };
        let ranks = units::counted(attempt.mesh.world(), "rank");
        let on = if nodes.is_empty() { "nodes that Slurm has not allocated yet".into() } else { nodes.join(", ") };
        let ago = units::ago(now, attempt.started_s);
        facts.push(("attempt", format!("{}: {ranks} on {on}, {why} {ago} by {}", attempt.number, attempt.by)));
    }
    if let Some(attached) = &run.attached {
        let process = attached.pid.map_or(String::new(), |pid| format!(", until process {pid} ends"));
        facts.push(("watches", format!("{}{process}", attached.path)));
    }
    let has_lost_steps = summary.state.is_end() && summary.state != RunState::Finished;
    let checkpoint = match &summary.checkpoint {
        Some(c) => {
            let saved = format!("step {}, {}, {}", c.step, units::short_size(c.bytes), units::ago(now, c.saved_s));
            match summary.progress() {
                Progress::Steps { step, .. } if has_lost_steps && step > c.step => {
                    format!("{saved}; a resume repeats {}", units::counted((step - c.step) as usize, "step"))
                }
                _ => saved,
            }
        }
        None => "none yet".into(),
    };
    if run.task() == Task::Train && run.imported.is_none() && run.attached.is_none() {
        facts.push(("checkpoint", checkpoint));
    }
    if let Some(healer) = summary.dir.healer() {
        facts.push(("healer", format!("resumes the run after a failure: process {} on {}", healer.pid, healer.node)));
    }
    facts.push(("folder", summary.dir.root.to_string()));
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns state, steps, loss and time left in one line, always in this order. A part that is not known is `-`.
fn one_line(summary: &RunSummary) -> String {
    let loss = summary.with_loss.as_ref().filter(|sample| sample.is_training());
    let loss = loss.map(|last| last.loss.map_or("nan".into(), units::number));
    let absent = || "-".to_owned();
    [
        StateKind::of(&summary.state).word().to_owned(),
        Some(summary.progress().short()).filter(|done| !done.is_empty()).unwrap_or_else(absent),
        format!("loss {}", loss.unwrap_or_else(absent)),
        format!("eta {}", summary.eta_s.map(units::short_duration).unwrap_or_else(absent)),
    ]
    .join("  ")
}

/// Returns the progress of an encoding stage: `1,204 done, 3 failed, 3.4 GB, 12 waiting, 8,645 left at 37/s: 4 min`.
fn stage_in_words(stage: &EncodeStageProgress) -> String {
    let mut words = format!("{} done", units::grouped(stage.count.items));
    let counted = [(stage.count.failed, "failed"), (stage.count.waiting, "waiting")];
    counted
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .for_each(|(n, what)| words += &format!(", {} {what}", units::grouped(n)));
    if stage.count.bytes > 0 {
        words += &format!(", {}", units::size(stage.count.bytes));
    }
    if stage.left > 0 {
        words += &format!(", {} left", units::grouped(stage.left));
        if let Some((per_s, eta_s)) = stage.per_s.zip(stage.eta_s) {
            words += &format!(" at {}/s: {}", units::number(per_s), units::duration(eta_s));
        }
    }
    words
}

//! Rules for the files that a run writes: steps, losses, checkpoints.

use rundir::{ErrorCode, Event, EventKind, History, MetricSample, Unwritten};
use runstate::{Load, RunState};

use super::diverged::diverged;
use super::spikes::{Level, WINDOW, median};
use super::{Evidence, Finding, Rule, Subject, Urgency};
use units::{counted, size};

/// The minimum ratio of a straggler's time to that of the median rank.
const STRAGGLER: f64 = 1.2;
/// The minimum difference in seconds, because very short steps vary more.
const STRAGGLER_MIN_S: f64 = 0.02;
/// The number of recent logged steps that are compared. At least 80 % of them must have the same straggler.
const STRAGGLER_LINES: usize = 10;
/// The newest checkpoint is stale after more than this many intervals.
const STALE_INTERVALS: u64 = 2;
/// A disk with room for fewer checkpoints than this is reported.
const FEW_CHECKPOINTS: u64 = 3;
/// A start that takes longer than this many seconds is reported.
const SLOW_START_S: f64 = 900.0;
/// The number of clips that a finding names.
const NAMED_CLIPS: usize = 5;
/// A save that takes longer than this many seconds is reported. It is reported earlier if it takes more than five times
/// as long as the last save and more than 60 s.
const SAVING_S: f64 = 600.0;

pub fn findings(evidence: &Evidence<'_>) -> Vec<Finding> {
    let rules = [
        stalled as fn(&Evidence<'_>) -> Option<Finding>,
        slow_step,
        slow_start,
        skipped_steps,
        not_finite,
        loss_diverged,
        loss_spike,
        unwritten,
        disk,
        checkpoint_failed,
        checkpoint_damaged,
        checkpoint_stale,
        straggler,
    ];
    let of_nodes = evidence.nodes.iter().filter_map(|node| {
        let since_s = node.unreachable_since_s?;
        // While steps advance, all ranks of the unreachable node are alive.
        let advances = evidence.facts.last_metric.is_some_and(|(_, t)| t >= since_s + 10.0);
        let about = Subject::Node(node.node.clone());
        Some(if advances {
            let fix = "nothing to do: training steps advance, and vidtui reconnects to the node";
            Finding::new(Rule::NodeLost, Urgency::Note, about, "the node is unreachable", fix).since(since_s)
        } else {
            let fix = "wait until the other supervisors report the node as lost, or check the node";
            let saw = "the node is unreachable, and no step has finished since";
            Finding::new(Rule::NodeLost, Urgency::Look, about, saw, fix).since(since_s)
        })
    });
    rules.iter().filter_map(|rule| rule(evidence)).chain(of_nodes).collect()
}

/// Returns the findings about the training of a run that has ended.
pub fn past_findings(evidence: &Evidence<'_>) -> Vec<Finding> {
    let found = [skipped_steps(evidence), loss_diverged(evidence), loss_spike(evidence)].into_iter().flatten();
    // The problem no longer holds, so it has no duration.
    found.map(|finding| Finding { since_s: None, ..finding }).collect()
}

fn stalled(evidence: &Evidence<'_>) -> Option<Finding> {
    let RunState::Stalled { since_s } = *evidence.state else { return None };
    let seen = match evidence.facts.load {
        Load::Power { now_w, before_w } => {
            format!(", and GPU power is {now_w:.0} W, down from {before_w:.0} W")
        }
        Load::Unknown if evidence.facts.is_attached => String::new(),
        Load::Cpu { .. } => ", and no rank uses the CPU".into(),
        Load::Unknown => "; it is unknown whether ranks compute".into(),
    };
    let fix = match evidence.facts.is_attached {
        true => {
            format!("look at the program, which may have ended; to watch it no longer: vidtui stop {}", evidence.run)
        }
        false => format!("save the stacks of all ranks (vidtui stacks {}), then kill and resume the run", evidence.run),
    };
    let evaluates = if evidence.facts.evaluating_since.is_some() { ", during an evaluation" } else { "" };
    let saw = format!("{}{evaluates}{}{seen}", no_step(evidence), usual(evidence));
    Some(Finding::new(Rule::Stalled, Urgency::Act, Subject::Run, saw, fix).since(since_s))
}

/// Finds a run whose steps do not advance while its ranks compute: an evaluation without an event, or a rank in an endless
/// loop.
fn slow_step(evidence: &Evidence<'_>) -> Option<Finding> {
    let works = *evidence.state == RunState::Running && evidence.facts.evaluating_since.is_none();
    let since_s = evidence.facts.inactive_since_s(evidence.now_s).filter(|_| works)?;
    let activity = match evidence.facts.load {
        Load::Power { now_w, .. } => format!("GPU power is {now_w:.0} W"),
        _ => "its ranks use the CPU".into(),
    };
    let saw = format!("{}{}, but {activity}", no_step(evidence), usual(evidence));
    let fix = match evidence.facts.is_attached {
        true => "wait if the program is evaluating; otherwise look at it".to_owned(),
        false => {
            format!("wait if the run is evaluating; otherwise see where its ranks are: vidtui stacks {}", evidence.run)
        }
    };
    Some(Finding::new(Rule::SlowStep, Urgency::Look, Subject::Run, saw, fix).since(since_s))
}

/// Finds a start that takes too long. Loading a large model takes minutes; a failed rendezvous never ends.
fn slow_start(evidence: &Evidence<'_>) -> Option<Finding> {
    let attempt = evidence.facts.attempt.as_ref().filter(|_| *evidence.state == RunState::Starting)?;
    let since_s = attempt.started_s;
    if evidence.now_s - since_s <= SLOW_START_S {
        return None;
    }
    let run = evidence.run;
    let fix = match evidence.facts.is_attached {
        true => format!("see what its log yields: vidtui logs {run}, vidtui check --log LOG"),
        false => format!("read the logs of the ranks (vidtui logs {run}) and see where they wait: vidtui stacks {run}"),
    };
    let saw = "the run is starting and has finished no step";
    Some(Finding::new(Rule::SlowStart, Urgency::Look, Subject::Run, saw, fix).since(since_s))
}

fn no_step(evidence: &Evidence<'_>) -> String {
    evidence.facts.last_metric.map_or("no step has finished".into(), |(step, _)| format!("no step since step {step}"))
}

fn usual(evidence: &Evidence<'_>) -> String {
    evidence.facts.median_step_s.map_or(String::new(), |s| format!(" (a step usually takes {})", seconds(s)))
}

fn seconds(s: f64) -> String {
    if s < 10.0 { format!("{s:.1} s") } else { format!("{s:.0} s") }
}

/// Returns the metrics of the newest attempt.
fn lines<'a>(evidence: &'a Evidence<'_>) -> &'a [MetricSample] {
    let newest = evidence.facts.attempt.as_ref().map(|attempt| attempt.number);
    let begin = evidence.metrics.iter().rposition(|sample| Some(sample.attempt) != newest).map_or(0, |at| at + 1);
    &evidence.metrics[begin..]
}

/// Returns the events of the newest attempt, newest first.
fn events<'a>(evidence: &Evidence<'a>) -> impl Iterator<Item = &'a Event> {
    let newest = evidence.facts.attempt.as_ref().map(|attempt| attempt.number);
    evidence.events.iter().rev().filter(move |event| Some(event.attempt) == newest)
}

/// Returns the commands that verify the data sets of a run, with a flag: `vidtui data verify data`. `None` if they are not known.
fn verify_data(evidence: &Evidence<'_>, flag: &str) -> Option<String> {
    let commands: Vec<String> = evidence.data.iter().map(|set| format!("vidtui data verify {set}{flag}")).collect();
    (!commands.is_empty()).then(|| commands.join(", "))
}

/// Returns the command that continues a run with half the learning rate.
fn resume_slower(evidence: &Evidence<'_>) -> String {
    let lr = evidence.lr.map_or("LR".into(), |lr| units::number(lr / 2.0));
    format!("vidtui resume {} --set optimizer.lr={lr}", evidence.run)
}

/// Returns what to do first with a run that trains.
fn first_stop(evidence: &Evidence<'_>) -> String {
    if evidence.state.is_end() { String::new() } else { format!("stop it (vidtui stop {}), then ", evidence.run) }
}

/// Returns a hint, unless the run only watches a program: vidtui can neither stop nor resume it.
fn unless_attached(evidence: &Evidence<'_>, fix: impl FnOnce() -> String) -> String {
    match evidence.facts.is_attached {
        true => "look at the program: vidtui only watches it".to_owned(),
        false => fix(),
    }
}

/// Returns the logged steps at the end of the newest attempt whose loss or gradient is not finite.
fn not_finite_lines<'a>(evidence: &'a Evidence<'_>) -> &'a [MetricSample] {
    let lines = lines(evidence);
    // The lines of data preparation and sampling have no loss.
    if lines.last().is_some_and(|line| !line.is_training()) {
        return &[];
    }
    // Most other trainers do not print the gradient norm: it is missing, not non-finite.
    let has_gradient = !evidence.facts.is_command;
    let lacks_loss = |sample: &MetricSample| sample.loss.is_none() && !sample.has_no_loss;
    let is_bad = |sample: &&MetricSample| lacks_loss(sample) || has_gradient && sample.grad_norm.is_none();
    let bad = lines.iter().rev().take_while(is_bad).count();
    &lines[lines.len() - bad..]
}

/// Finds steps that the trainer skipped, and names their clips.
fn skipped_steps(evidence: &Evidence<'_>) -> Option<Finding> {
    let count = evidence.facts.skipped_steps();
    if count == 0 {
        return None;
    }
    let (mut in_data, mut others): (Vec<&str>, Vec<&str>) = Default::default();
    let (mut more, mut first_s, mut last) = (0, None, None);
    for event in events(evidence) {
        let EventKind::StepSkipped { clips, more_clips, in_data: is_in_data } = &event.kind else { continue };
        let names = if *is_in_data { &mut in_data } else { &mut others };
        names.extend(clips.iter().map(String::as_str).filter(|clip| !names.contains(clip)).collect::<Vec<_>>());
        more += if *is_in_data { 0 } else { *more_clips };
        first_s = Some(event.t);
        last = last.or(event.step);
    }
    let mut saw = format!(
        "{} skipped, because the loss or the gradient was not finite",
        match count {
            1 => "a step was".to_owned(),
            count => format!("{} steps were", units::grouped(count)),
        }
    );
    if let Some(last) = last {
        saw += &format!("; the last one was step {}", units::grouped(last));
    }
    let names = |clips: &[&str]| units::listed(clips, NAMED_CLIPS, |clip| format!("'{clip}'"));
    let fix = if !in_data.is_empty() {
        saw += &format!("; the data of {} have values that are NaN or infinite", names(&in_data));
        let drop = verify_data(evidence, " --drop").unwrap_or_else(|| "vidtui data verify DATA --drop".into());
        let then = match evidence.state {
            // There is no step left for a resume.
            RunState::Finished => "before you train on the data set again".into(),
            _ => format!("and continue: vidtui resume {} --fresh-data", evidence.run),
        };
        format!("{}leave out these clips ({drop}), {then}; or encode or import them again", first_stop(evidence))
    } else {
        if !others.is_empty() {
            others.sort_unstable();
            let more = if more > 0 { " and more" } else { "" };
            saw += &format!("; their batches have {}{more}", names(&others));
        }
        let check = verify_data(evidence, "").map(|verify| format!("check the data ({verify})"));
        let slower = match evidence.state {
            RunState::Finished => "if others are skipped in the next run, lower optimizer.lr".to_owned(),
            _ => format!(
                "if more steps are skipped, {}continue with a lower learning rate: {}",
                first_stop(evidence),
                resume_slower(evidence)
            ),
        };
        check.into_iter().chain([slower]).collect::<Vec<_>>().join("; ")
    };
    let urgency = if not_finite_lines(evidence).len() > 1 { Urgency::Act } else { Urgency::Look };
    let since_s = first_s.or_else(|| lines(evidence).iter().find(|line| line.skipped_steps > 0).map(|line| line.t));
    Some(Finding { since_s, ..Finding::new(Rule::SkippedSteps, urgency, Subject::Run, saw, fix) })
}

/// Finds a loss that is not finite. The finding about skipped steps says more, if the trainer reports them.
fn not_finite(evidence: &Evidence<'_>) -> Option<Finding> {
    let bad = not_finite_lines(evidence);
    let first = bad.first().filter(|_| evidence.facts.skipped_steps() == 0)?;
    let (bad, has_gradient) = (bad.len(), !evidence.facts.is_command);
    let what = if first.loss.is_none() { "loss" } else { "gradient" };
    let saw = match bad {
        1 => format!("the {what} of step {} is not finite", first.step),
        _ => format!("the {what} is not finite since step {}", first.step),
    };
    let fix = unless_attached(evidence, || match has_gradient {
        true => format!(
            "if it does not recover, {}continue with a lower learning rate: {}",
            first_stop(evidence),
            resume_slower(evidence)
        ),
        false => format!(
            "{}resume from an earlier checkpoint: vidtui resume {} --step STEP (vidtui checkpoints {} lists them)",
            first_stop(evidence),
            evidence.run,
            evidence.run
        ),
    });
    let urgency = if bad > 1 { Urgency::Act } else { Urgency::Look };
    Some(Finding::new(Rule::NotFinite, urgency, Subject::Run, saw, fix).since(first.t))
}

/// Finds a loss that left its range and has not come back.
fn loss_diverged(evidence: &Evidence<'_>) -> Option<Finding> {
    let attempt = evidence.facts.attempt.as_ref()?;
    // With other settings, losses may have another range.
    let oldest = if attempt.changed.is_empty() { 0 } else { attempt.number };
    let mut history = History::new();
    let counts = |line: &&MetricSample| line.is_training() && line.loss.is_some() && line.attempt >= oldest;
    history.extend(evidence.metrics.iter().filter(counts).cloned());
    let start = evidence.facts.start_step();
    let is_before = |event: &Event| event.attempt == attempt.number || event.step.is_some_and(|step| step <= start);
    let known = evidence.events.iter().filter(|event| event.attempt >= oldest && is_before(event));
    let known =
        known.filter_map(|event| if let EventKind::LossSpike { usual, .. } = event.kind { Some(usual) } else { None });
    let lines = history.effective();
    // Steps of an earlier attempt after the start of this one do not count.
    let lines: Vec<&MetricSample> =
        lines.iter().filter(|line| line.attempt == attempt.number || line.step <= start).collect();
    let losses: Vec<f64> = lines.iter().filter_map(|line| line.loss).collect();
    let found = diverged(&losses, known.reduce(f64::min), evidence.spike)?;
    let (first, run) = (lines[found.since], evidence.run);
    let saw = format!(
        "the loss rose from about {} to {} at step {} and has not come back",
        units::number(found.usual),
        units::number(found.now),
        units::grouped(first.step)
    );
    let step = evidence.checkpoint.filter(|newest| newest.step < first.step);
    let (step, listed) = match step {
        Some(newest) => (newest.step.to_string(), String::new()),
        None => ("STEP".into(), format!(" (vidtui checkpoints {run} lists them)")),
    };
    let check = verify_data(evidence, "").map_or(String::new(), |verify| format!("check the data ({verify}), then "));
    let fix = unless_attached(evidence, || {
        format!(
            "{}{check}continue from a checkpoint before that step{listed}: vidtui resume {run} --step {step}",
            first_stop(evidence)
        )
    });
    let urgency = if evidence.state.is_end() { Urgency::Look } else { Urgency::Act };
    Some(Finding::new(Rule::LossDiverged, urgency, Subject::Run, saw, fix).since(first.t))
}

/// Finds a loss spike over the last three steps, so that a single batch does not count.
fn loss_spike(evidence: &Evidence<'_>) -> Option<Finding> {
    let lines = lines(evidence);
    let resume = format!("vidtui resume {} --step STEP", evidence.run);
    let fix = unless_attached(evidence, || {
        format!("if the loss stays high, {}resume from an earlier checkpoint: {resume}", first_stop(evidence))
    });
    if evidence.spike == 0.0 || loss_diverged(evidence).is_some() {
        return None;
    }
    // An event of the trainer counts until the loss has fallen by half of the spike.
    let reported = events(evidence).find_map(|event| match event.kind {
        EventKind::LossSpike { loss, usual } if !evidence.state.is_end() => Some((event.t, loss, usual)),
        _ => None,
    });
    if let Some((t, loss, usual)) = reported
        && let Some(now) = lines.last().and_then(|line| line.loss)
        && now - usual > (loss - usual) / 2.0
    {
        let saw = format!("the loss rose from about {usual:.3} to {loss:.3}");
        return Some(Finding::new(Rule::LossSpike, Urgency::Look, Subject::Run, saw, fix).since(t));
    }
    let (before, last) = lines.split_at(lines.len().checked_sub(3)?);
    let losses = |samples: &[MetricSample]| samples.iter().filter_map(|sample| sample.loss).collect::<Vec<f64>>();
    let level = Level::of(&losses(&before[before.len().saturating_sub(WINDOW)..]), evidence.spike)?;
    let now = losses(last);
    if now.len() < 3 || now.iter().any(|loss| *loss <= level.spike) {
        return None;
    }
    let (first, newest) = (last.first()?, last.last()?);
    let saw = format!("the loss rose from about {:.3} to {:.3}", level.median, newest.loss?);
    Some(Finding::new(Rule::LossSpike, Urgency::Look, Subject::Run, saw, fix).since(first.t))
}

/// Finds metrics and events that cannot be written. Rank 0 reports them in its heartbeat, which needs no space.
fn unwritten(evidence: &Evidence<'_>) -> Option<Finding> {
    let unwritten = evidence.facts.unwritten.as_ref().filter(|_| !evidence.state.is_end())?;
    let Unwritten { since_s, path, why, lines, lost, .. } = unwritten;
    let (what, fix) = match unwritten.code {
        ErrorCode::DiskFull => {
            ("the disk of the run is full", format!("free some space on the disk that holds {path}"))
        }
        _ => ("metrics cannot be written", format!("check {path} and its disk")),
    };
    let lost = if *lost > 0 { format!(", {} are lost", counted(*lost as usize, "line")) } else { String::new() };
    let saw =
        format!("{what} ({why}); {} of metrics and events wait in memory{lost}", counted(*lines as usize, "line"));
    let fix = format!("{fix}: training continues, and they are written when that is possible");
    Some(Finding::new(Rule::Unwritten, Urgency::Act, Subject::Run, saw, fix).since(*since_s))
}

fn disk(evidence: &Evidence<'_>) -> Option<Finding> {
    let disk = evidence.disk.filter(|disk| disk.checkpoint_bytes > 0)?;
    let room = disk.free_bytes / disk.checkpoint_bytes;
    if room >= FEW_CHECKPOINTS {
        return None;
    }
    let (free, one) = (size(disk.free_bytes), size(disk.checkpoint_bytes));
    let saw = match room {
        0 => format!("the disk has {free} free, and the next checkpoint needs {one}"),
        _ => format!("the disk has {free} free, enough for {} of {one}", counted(room as usize, "checkpoint")),
    };
    let urgency = if room == 0 { Urgency::Act } else { Urgency::Look };
    let list = format!("vidtui checkpoints {}", evidence.run);
    let fix = format!("free space before the next checkpoint; to list those of this run: {list}");
    Some(Finding::new(Rule::DiskFilling, urgency, Subject::Run, saw, fix))
}

/// Finds a failed save if no later save has succeeded.
fn checkpoint_failed(evidence: &Evidence<'_>) -> Option<Finding> {
    let newest = events(evidence).find_map(|event| match &event.kind {
        EventKind::CheckpointFailed { failure } => Some(Some((event.t, failure))),
        EventKind::CheckpointSaved { .. } => Some(None),
        _ => None,
    });
    // The heartbeat has it at once, even if the event cannot be written.
    let in_heartbeat = evidence.facts.failed_save.as_ref().filter(|_| !evidence.state.is_end());
    let (t, failure) = in_heartbeat.map(|failed| (failed.t, &failed.failure)).or(newest.flatten())?;
    let then = match evidence.state {
        RunState::Stopping => "; the run cannot stop without losing steps, so it goes on and tries again",
        _ => "",
    };
    let saw = format!("{}: {}{then}", failure.what, failure.why);
    Some(Finding::new(Rule::CheckpointFailed, Urgency::Act, Subject::Run, saw, failure.fix.clone()).since(t))
}

/// Finds an attempt that started from an older checkpoint because the newest was damaged.
fn checkpoint_damaged(evidence: &Evidence<'_>) -> Option<Finding> {
    let damaged = |event: &'_ Event| match &event.kind {
        EventKind::CheckpointDamaged { step, why, back_to } => Some((event.t, *step, why.clone(), *back_to)),
        _ => None,
    };
    let (t, step, why, back_to) = events(evidence).find_map(damaged)?;
    let saw = format!("the checkpoint of step {step} is damaged, and the run continued from step {back_to}: {why}");
    let fix = "check the disk of the checkpoints; only the steps in between are lost";
    Some(Finding::new(Rule::CheckpointDamaged, Urgency::Look, Subject::Run, saw, fix).since(t))
}

fn checkpoint_stale(evidence: &Evidence<'_>) -> Option<Finding> {
    let facts = evidence.facts;
    if let Some(since_s) = facts.checkpointing_since {
        let last = evidence.events.iter().rev().find_map(|event| match event.kind {
            EventKind::CheckpointSaved { seconds, .. } => Some(seconds),
            _ => None,
        });
        let patience = last.map_or(SAVING_S, |seconds| SAVING_S.min(5.0 * seconds).max(60.0));
        if evidence.now_s - since_s > patience && *evidence.state == RunState::Saving {
            let took = last.map_or(String::new(), |s| format!(" (the last save took {})", seconds(s)));
            let saw = format!("a save is taking long{took}");
            let fix =
                format!("check the disk of the checkpoints; to see where ranks wait: vidtui stacks {}", evidence.run);
            return Some(Finding::new(Rule::CheckpointStale, Urgency::Look, Subject::Run, saw, fix).since(since_s));
        }
    }
    // The checkpoints of a program that another process started are not known.
    let interval = if facts.is_attached { 0 } else { evidence.checkpoint_interval };
    let (step, _) = facts.last_metric?;
    let start = facts.start_step();
    let saved = evidence.checkpoint.map_or(start, |checkpoint| checkpoint.step.max(start));
    let behind = step.saturating_sub(saved);
    if interval == 0 || behind <= STALE_INTERVALS * interval {
        return None;
    }
    let saw = match evidence.checkpoint {
        Some(_) => {
            format!("the newest checkpoint is of step {saved}, {behind} steps ago; the interval is {interval} steps")
        }
        None => format!("there is no checkpoint after {behind} steps; the interval is {interval} steps"),
    };
    let since_s = evidence.checkpoint.map(|checkpoint| checkpoint.saved_s);
    let fix = "check the events and the disk of the run for the reason";
    Some(Finding { since_s, ..Finding::new(Rule::CheckpointStale, Urgency::Look, Subject::Run, saw, fix) })
}

/// Finds the rank that all others wait for: the rank with the longest busy time, or with the longest steps if ranks report
/// no busy times.
fn straggler(evidence: &Evidence<'_>) -> Option<Finding> {
    let lines = lines(evidence);
    let recent = &lines[lines.len().checked_sub(STRAGGLER_LINES)?..];
    let last: Vec<Option<(usize, f64)>> = recent.iter().map(arrived_last).collect();
    let (rank, _) = last.last().copied().flatten()?;
    let same: Vec<f64> = last.iter().flatten().filter(|(who, _)| *who == rank).map(|(_, more_s)| *more_s).collect();
    if same.len() * 10 < STRAGGLER_LINES * 8 {
        return None;
    }
    let more_s = median(same)?;
    let begin = lines.iter().rposition(|line| arrived_last(line).is_none_or(|(who, _)| who != rank));
    let since_s = lines.get(begin.map_or(0, |at| at + 1)).map(|line| line.t);
    let place = evidence.facts.attempt.as_ref().and_then(|a| a.placement.ranks.iter().find(|p| p.rank == rank));
    let about = Subject::Rank(rank, place.map(|place| place.node.clone()));
    // Independent ranks do not wait for each other.
    let saw = match recent.last().is_some_and(|line| line.items.is_some()) {
        true => format!("this rank takes {more_s:.2} s longer per clip than the others"),
        false => format!("all other ranks wait {more_s:.2} s per step for this rank"),
    };
    let fix =
        "check clocks, temperature and processes of its GPU (vidtui nodes), or resume without the node: --exclude";
    let since_s = since_s.or(recent.first().map(|line| line.t));
    Some(Finding { since_s, ..Finding::new(Rule::Straggler, Urgency::Look, about, saw, fix) })
}

/// Returns the rank that a step waited for, and how long in seconds.
fn arrived_last(line: &MetricSample) -> Option<(usize, f64)> {
    // Step times include waiting for other ranks and are about equal; busy times differ.
    let times = if line.busy_s_by_rank.is_empty() { &line.step_s_by_rank } else { &line.busy_s_by_rank };
    if times.len() < 2 {
        return None;
    }
    // The median is the lower of the two middle values: with two ranks, the slow one must not be the reference.
    let mut sorted = times.clone();
    sorted.sort_by(f64::total_cmp);
    let usual = sorted[(sorted.len() - 1) / 2];
    let (rank, slowest) = times.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let more = slowest - usual;
    (slowest > STRAGGLER * usual && more > STRAGGLER_MIN_S).then_some((rank, more))
}

//! Rules over what a run writes: steps, losses, checkpoints.

use rundir::{Event, EventKind, MetricSample};
use runstate::{Load, RunState};

use super::{Evidence, Finding, Rule, Subject, Urgency};
use units::{counted, size};

/// A rank is a straggler when it needs so much more time than the median rank,
const STRAGGLER: f64 = 1.2;
/// and more than this beside the others, since tiny steps vary by more,
const STRAGGLER_MIN_S: f64 = 0.02;
/// in nearly all of so many logged steps.
const STRAGGLER_LINES: usize = 10;
/// A loss is a spike when its logarithm is so many deviations above the usual. Six is one in a billion by chance.
const SPIKE: f64 = 6.0;
/// The usual is taken from at least so many steps.
const SPIKE_LINES: usize = 20;
/// The least deviation of the logarithm that is assumed: a flat curve makes any bump look rare.
const SPIKE_LEAST: f64 = 0.03;
/// A checkpoint is stale when more than twice the interval has gone by without a newer one.
const STALE_INTERVALS: u64 = 2;
/// Room for fewer checkpoints than this will be gone soon.
const FEW_CHECKPOINTS: u64 = 3;
/// A start that takes longer than this is worth a look.
const SLOW_START_S: f64 = 900.0;
/// Writing a checkpoint may take this long before it is worth a look, or five times as long as the last one took.
const SAVING_S: f64 = 600.0;

pub fn findings(evidence: &Evidence<'_>) -> Vec<Finding> {
    let rules = [
        stalled as fn(&Evidence<'_>) -> Option<Finding>,
        slow_step,
        slow_start,
        not_finite,
        loss_spike,
        disk,
        checkpoint_failed,
        checkpoint_damaged,
        checkpoint_stale,
        straggler,
    ];
    let of_nodes = evidence.nodes.iter().filter_map(|node| {
        let since_s = node.unseen_since_s?;
        // What it writes is seen although it is not: as long as steps come, none of its ranks is gone.
        let goes_on = evidence.facts.last_metric.is_some_and(|(_, t)| t >= since_s + 10.0);
        let about = Subject::Node(node.node.clone());
        Some(if goes_on {
            let fix = "nothing is lost: the run goes on, and the node is tried again";
            Finding::new(Rule::NodeLost, Urgency::Note, about, "it cannot be seen from here", fix).since(since_s)
        } else {
            let fix = "wait for its supervisors to tell (they watch each other), or look at the node itself";
            let saw = "it cannot be seen from here, and no step has been made since";
            Finding::new(Rule::NodeLost, Urgency::Look, about, saw, fix).since(since_s)
        })
    });
    rules.iter().filter_map(|rule| rule(evidence)).chain(of_nodes).collect()
}

fn stalled(evidence: &Evidence<'_>) -> Option<Finding> {
    let RunState::Stalled { since_s } = *evidence.state else { return None };
    let seen = match evidence.facts.load {
        Load::Power { now_w, before_w } => {
            format!(", and its GPUs draw {now_w:.0} W where they drew {before_w:.0} W")
        }
        Load::Cpu { .. } => ", and none of its ranks uses the processor".into(),
        Load::Unknown => "; whether its ranks still compute cannot be seen".into(),
    };
    let fix =
        format!("collect the stacks of all ranks first (vidtui stacks {}), then kill and resume it", evidence.run);
    let evaluates = if evidence.facts.evaluating_since.is_some() { ", in an evaluation" } else { "" };
    let saw = format!("{}{evaluates}{}{seen}", no_step(evidence), usual(evidence));
    Some(Finding::new(Rule::Stalled, Urgency::Act, Subject::Run, saw, fix).since(since_s))
}

/// Silence while work goes on: an evaluation that nobody announced, or one rank that computes forever.
fn slow_step(evidence: &Evidence<'_>) -> Option<Finding> {
    let works = *evidence.state == RunState::Running && evidence.facts.evaluating_since.is_none();
    let since_s = evidence.facts.silent_since_s(evidence.now_s).filter(|_| works)?;
    let at_work = match evidence.facts.load {
        Load::Power { now_w, .. } => format!("its GPUs draw {now_w:.0} W"),
        _ => "its ranks compute".into(),
    };
    let saw = format!("{}{}, but {at_work}", no_step(evidence), usual(evidence));
    let fix = format!("wait if it evaluates; if not, see what its ranks do: vidtui stacks {}", evidence.run);
    Some(Finding::new(Rule::SlowStep, Urgency::Look, Subject::Run, saw, fix).since(since_s))
}

/// Loading a large model takes minutes, and ranks that never meet take forever.
fn slow_start(evidence: &Evidence<'_>) -> Option<Finding> {
    let attempt = evidence.facts.attempt.as_ref().filter(|_| *evidence.state == RunState::Starting)?;
    let since_s = attempt.started_s;
    if evidence.now_s - since_s <= SLOW_START_S {
        return None;
    }
    let run = evidence.run;
    let fix = format!("read the logs of its ranks (vidtui logs {run}), and see where they wait: vidtui stacks {run}");
    let saw = "it is starting, and has made no step yet";
    Some(Finding::new(Rule::SlowStart, Urgency::Look, Subject::Run, saw, fix).since(since_s))
}

fn no_step(evidence: &Evidence<'_>) -> String {
    evidence.facts.last_metric.map_or("no step".into(), |(step, _)| format!("no step since step {step}"))
}

fn usual(evidence: &Evidence<'_>) -> String {
    evidence.facts.median_step_s.map_or(String::new(), |s| format!(" (one usually takes {})", seconds(s)))
}

fn seconds(s: f64) -> String {
    if s < 10.0 { format!("{s:.1} s") } else { format!("{s:.0} s") }
}

/// Lines of the newest attempt.
fn lines<'a>(evidence: &'a Evidence<'_>) -> &'a [MetricSample] {
    let newest = evidence.facts.attempt.as_ref().map(|attempt| attempt.number);
    let begin = evidence.metrics.iter().rposition(|sample| Some(sample.attempt) != newest).map_or(0, |at| at + 1);
    &evidence.metrics[begin..]
}

/// Events of the newest attempt, the newest first.
fn events<'a>(evidence: &Evidence<'a>) -> impl Iterator<Item = &'a Event> {
    let newest = evidence.facts.attempt.as_ref().map(|attempt| attempt.number);
    evidence.events.iter().rev().filter(move |event| Some(event.attempt) == newest)
}

fn not_finite(evidence: &Evidence<'_>) -> Option<Finding> {
    let lines = lines(evidence);
    // Most programs do not print their gradient: then it is not told, rather than not finite.
    let has_gradient = !evidence.facts.is_command;
    let is_bad = |sample: &&MetricSample| sample.loss.is_none() || has_gradient && sample.grad_norm.is_none();
    let bad = lines.iter().rev().take_while(is_bad).count();
    let first = &lines[lines.len() - bad..].first()?;
    let what = if first.loss.is_none() { "loss" } else { "gradient" };
    let saw = match bad {
        1 => format!("the {what} of step {} is not a finite number", first.step),
        _ => format!("the {what} is not a finite number since step {}", first.step),
    };
    let fix = match has_gradient {
        true => "resume from a checkpoint before it with a lower optimizer.lr or a smaller optimizer.clip_norm",
        false => "resume from a checkpoint before it, and with a lower learning rate if it comes again",
    };
    let urgency = if bad > 1 { Urgency::Act } else { Urgency::Look };
    Some(Finding::new(Rule::NotFinite, urgency, Subject::Run, saw, fix).since(first.t))
}

/// The last three steps together, so that one odd batch is no alarm.
fn loss_spike(evidence: &Evidence<'_>) -> Option<Finding> {
    let lines = lines(evidence);
    let resume = format!("vidtui resume {} --step N", evidence.run);
    let fix = format!("if it does not come down, resume from a checkpoint before it ({resume})");
    // The trainer's own word, with the threshold of its recipe, counts for as long as the loss is near it.
    let told = events(evidence).find_map(|event| match event.kind {
        EventKind::LossSpike { loss, usual } => Some((event.t, loss, usual)),
        _ => None,
    });
    if let Some((t, loss, usual)) = told
        && let Some(now) = lines.last().and_then(|line| line.loss)
        && now - usual > (loss - usual) / 2.0
    {
        let saw = format!("the loss rose from about {usual:.3} to {loss:.3}");
        return Some(Finding::new(Rule::LossSpike, Urgency::Look, Subject::Run, saw, fix).since(t));
    }
    let (before, last) = lines.split_at(lines.len().checked_sub(3)?);
    let logs = |samples: &[MetricSample]| -> Vec<f64> {
        samples.iter().filter_map(|sample| sample.loss).filter(|loss| *loss > 0.0).map(f64::ln).collect()
    };
    let usual = logs(&before[before.len().saturating_sub(100)..]);
    let now = logs(last);
    if usual.len() < SPIKE_LINES || now.len() < 3 {
        return None;
    }
    let center = median(usual.clone())?;
    let spread = 1.4826 * median(usual.iter().map(|x| (x - center).abs()).collect())?;
    let least = now.iter().copied().fold(f64::INFINITY, f64::min);
    if (least - center) / spread.max(SPIKE_LEAST) < SPIKE {
        return None;
    }
    let (first, newest) = (last.first()?, last.last()?);
    let saw = format!("the loss rose from about {:.3} to {:.3}", center.exp(), newest.loss?);
    Some(Finding::new(Rule::LossSpike, Urgency::Look, Subject::Run, saw, fix).since(first.t))
}

fn disk(evidence: &Evidence<'_>) -> Option<Finding> {
    let disk = evidence.disk.filter(|disk| disk.checkpoint_bytes > 0)?;
    let room = disk.free_bytes / disk.checkpoint_bytes;
    if room >= FEW_CHECKPOINTS {
        return None;
    }
    let (free, one) = (size(disk.free_bytes), size(disk.checkpoint_bytes));
    let saw = match room {
        0 => format!("its disk has {free} free, and the next checkpoint takes {one}"),
        _ => format!("its disk has {free} free, room for {} of {one}", counted(room as usize, "checkpoint")),
    };
    let urgency = if room == 0 { Urgency::Act } else { Urgency::Look };
    let list = format!("vidtui checkpoints {}", evidence.run);
    let fix = format!("make room there before the next checkpoint; this run's own are listed by {list}");
    Some(Finding::new(Rule::DiskFilling, urgency, Subject::Run, saw, fix))
}

/// The newest word on checkpoints is that one could not be saved.
fn checkpoint_failed(evidence: &Evidence<'_>) -> Option<Finding> {
    let newest = events(evidence).find_map(|event| match &event.kind {
        EventKind::CheckpointFailed { failure } => Some(Some((event.t, failure))),
        EventKind::CheckpointSaved { .. } => Some(None),
        _ => None,
    });
    let (t, failure) = newest.flatten()?;
    let saw = format!("{}: {}", failure.what, failure.why);
    Some(Finding::new(Rule::CheckpointFailed, Urgency::Act, Subject::Run, saw, failure.fix.clone()).since(t))
}

/// The attempt began before the checkpoint that it was to go on from.
fn checkpoint_damaged(evidence: &Evidence<'_>) -> Option<Finding> {
    let damaged = |event: &'_ Event| match &event.kind {
        EventKind::CheckpointDamaged { step, why, back_to } => Some((event.t, *step, why.clone(), *back_to)),
        _ => None,
    };
    let (t, step, why, back_to) = events(evidence).find_map(damaged)?;
    let saw = format!("the checkpoint of step {step} is damaged: it went on from step {back_to} ({why})");
    let fix = "look at the disk that holds its checkpoints; nothing but the steps between is lost";
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
            let took = last.map_or(String::new(), |s| format!(" (the one before took {})", seconds(s)));
            let saw = format!("it has been writing a checkpoint for long{took}");
            let fix =
                format!("look at the disk it writes to; vidtui stacks {} shows where its ranks wait", evidence.run);
            return Some(Finding::new(Rule::CheckpointStale, Urgency::Look, Subject::Run, saw, fix).since(since_s));
        }
    }
    let interval = evidence.checkpoint_interval;
    let (step, _) = facts.last_metric?;
    let start = facts.start_step();
    let saved = evidence.checkpoint.map_or(start, |checkpoint| checkpoint.step.max(start));
    let behind = step.saturating_sub(saved);
    if interval == 0 || behind <= STALE_INTERVALS * interval {
        return None;
    }
    let saw = match evidence.checkpoint {
        Some(_) => format!("its newest checkpoint is of step {saved}, {behind} steps ago; one is due every {interval}"),
        None => format!("it has no checkpoint after {behind} steps; one is due every {interval}"),
    };
    let since_s = evidence.checkpoint.map(|checkpoint| checkpoint.saved_s);
    let fix = "look at its events and disk for what keeps it from saving";
    Some(Finding { since_s, ..Finding::new(Rule::CheckpointStale, Urgency::Look, Subject::Run, saw, fix) })
}

/// The rank that everyone waits for: the one that arrives last.
///
/// Where ranks tell waiting from work, it is the one that is busy longest; else the one whose steps take longest.
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
    let saw = format!("all others wait for it, {more_s:.2} s in each step");
    let fix = "look at its GPU's clocks, temperature and processes (vidtui nodes), or leave its node out at the next resume: --exclude";
    let since_s = since_s.or(recent.first().map(|line| line.t));
    Some(Finding { since_s, ..Finding::new(Rule::Straggler, Urgency::Look, about, saw, fix) })
}

/// The rank that a step waited for, and for how long, if there is one.
fn arrived_last(line: &MetricSample) -> Option<(usize, f64)> {
    // With the waiting for each other, all ranks take about the same time.
    let times = if line.busy_s_by_rank.is_empty() { &line.step_s_by_rank } else { &line.busy_s_by_rank };
    if times.len() < 2 {
        return None;
    }
    // The lower of the two in the middle: of two ranks, the slow one must not be its own yardstick.
    let mut sorted = times.clone();
    sorted.sort_by(f64::total_cmp);
    let usual = sorted[(sorted.len() - 1) / 2];
    let (rank, slowest) = times.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let more = slowest - usual;
    (slowest > STRAGGLER * usual && more > STRAGGLER_MIN_S).then_some((rank, more))
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

//! Executes the jobs that the screen requests: each runs as a blocking task that sends its progress and one answer.

use crate::args::NodesArgs;
use crate::chart_export;
use crate::command_error::CommandError;
use crate::commands::alerts::user_settings;
use crate::commands::{attach, encode, launch, refuse_existing, sample};
use crate::comparison;
use crate::curves::{self, View};
use crate::output::note;
use crate::queue::{Item, Sender};
use crate::workspace::conversions;
use crate::workspace::{Fitting, KillCallbacks, Workspace, report_in_words, stacks_in_words};
use alerts::{Limits, test_alert};
use camino::Utf8Path;
use plan::KillHow;
use rundir::{Failure, Mute, now_s};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::{JoinSet, spawn_blocking};
use ui::{JobId, JobMsg, Msg, Outcome, PlottedChart, Request};
use units::short_size;
use weights::{Doing, WriteProgress};

/// Starts jobs, and waits for those that must not be interrupted.
pub struct Runner {
    workspace: Arc<Workspace>,
    queue: Sender,
    /// The jobs that must not be interrupted, because they change something.
    running: JoinSet<()>,
    /// The stop flags of conversions and kills.
    stops: BTreeMap<JobId, Arc<AtomicBool>>,
    /// The stop flags of kills. The runner sets them when the console closes, because a node can be unreachable for days.
    kills: Vec<Arc<AtomicBool>>,
}

impl Runner {
    /// Makes a runner that sends answers to `queue`.
    pub fn new(workspace: Arc<Workspace>, queue: Sender) -> Self {
        Self { workspace, queue, running: JoinSet::new(), stops: BTreeMap::new(), kills: Vec::new() }
    }

    /// Starts a job. Must be called within the runtime.
    pub fn start(&mut self, job: JobId, request: Request) {
        let stop = Arc::new(AtomicBool::new(false));
        if matches!(request, Request::Convert { .. } | Request::Kill { .. }) {
            self.stops.insert(job, stop.clone());
        }
        if matches!(request, Request::Kill { .. }) {
            self.kills.push(stop.clone());
        }
        let is_read_only = request.is_read_only();
        let (workspace, queue) = (self.workspace.clone(), self.queue.clone());
        let answer = move || {
            // After the console has closed, the answer is dropped.
            let send = |what| drop(queue.urgent(Item::Msg(Msg::Job { job, what })));
            let answer = run(&workspace, request, &send, &stop);
            send(answer.unwrap_or_else(|refusal| JobMsg::Failed(refusal.into_failure())));
        };
        while self.running.try_join_next().is_some() {}
        if is_read_only {
            spawn_blocking(answer);
        } else {
            self.running.spawn_blocking(answer);
        }
    }

    /// Requests a conversion or a kill to stop.
    pub fn stop(&mut self, job: JobId) {
        if let Some(stop) = self.stops.remove(&job) {
            stop.store(true, Ordering::Relaxed);
        }
    }

    /// Waits for jobs in progress. A launch takes about a second, a kill some seconds.
    pub async fn finish(mut self) {
        self.kills.iter().for_each(|given_up| given_up.store(true, Ordering::Relaxed));
        while self.running.try_join_next().is_some() {}
        if !self.running.is_empty() {
            note!("waiting for launches and kills in progress (Ctrl-C quits now)");
        }
        // A panic in a task has already ended the program.
        while self.running.join_next().await.is_some() {}
    }
}

fn run(
    at: &Workspace,
    request: Request,
    send: &(dyn Fn(JobMsg) + Sync),
    stop: &AtomicBool,
) -> Result<JobMsg, CommandError> {
    let progress: &(dyn Fn(String) + Sync) = &|line| send(JobMsg::Progress(line));
    Ok(match request {
        Request::PlanConvert { options } => JobMsg::ConvertPlanned(Box::new(conversions::preview(at, &options)?)),
        Request::Convert { preview } => {
            let moved = |progress: WriteProgress| {
                let WriteProgress { doing, done, total } = progress;
                send(match doing {
                    Doing::Writing => JobMsg::Converting { done, total },
                    doing => JobMsg::Progress(format!(
                        "{} the source, {} of {}",
                        doing.word(),
                        short_size(done),
                        short_size(total)
                    )),
                });
            };
            JobMsg::Done(conversions::convert(at, &preview, stop, &moved)?)
        }
        Request::PlanEncode { arguments } => {
            JobMsg::LaunchPlanned(Box::new(encode::plan_typed(at, &arguments, &|line| progress(line))?))
        }
        Request::PlanAttach { arguments } => JobMsg::LaunchPlanned(Box::new(attach::plan_typed(at, &arguments)?)),
        Request::ReadLaunch { arguments } => JobMsg::LaunchRead(Box::new(launch::read_typed(at, &arguments)?)),
        Request::PlanSample { run, prompt } => JobMsg::LaunchPlanned(Box::new(sample::plan_prompt(at, &run, prompt)?)),
        Request::PlanResume { run, options } => {
            let plan = at.plan_resume(&at.dir(&run), None, &NodesArgs::default(), options, &[])?;
            JobMsg::LaunchPlanned(Box::new(plan))
        }
        Request::PlanResumeWith { run, arguments } => {
            JobMsg::LaunchPlanned(Box::new(launch::plan_typed_resume(at, &run, &arguments)?))
        }
        Request::PlanNext { run, step } => {
            let plan = at.plan_next(&at.dir(&run), step, None, &at.nodes, &[], Fitting::ToNodes)?;
            JobMsg::LaunchPlanned(Box::new(plan))
        }
        Request::PlanAction(request) => JobMsg::ActionPlanned(Box::new(at.plan_action(request)?)),
        Request::Act { plan, confirmed: _ } => {
            JobMsg::Done(Outcome::Acted(at.act(&plan, &|results| send(JobMsg::Results(results)))?))
        }
        Request::PinCheckpoint { run, step, is_pinned } => {
            at.pin_checkpoint(&at.dir(&run), step, is_pinned)?;
            JobMsg::Done(Outcome::Pinned { step, is_pinned })
        }
        Request::WriteNote { run, note } => {
            rundir::write_note(&at.dir(&run), &note)?;
            JobMsg::Done(Outcome::Noted(run))
        }
        Request::PlanKill { run } => JobMsg::KillPlanned(Box::new(at.plan_kill(&at.dir(&run), KillHow::Kill)?)),
        Request::LaunchDraft { draft, files, plan } => {
            at.check_draft_files(&draft, files)?;
            progress("checking data and disk".into());
            at.launch(&plan, progress)?;
            JobMsg::Done(Outcome::Launched(plan.run.id.clone()))
        }
        Request::Launch { plan } => {
            progress("checking data and disk".into());
            at.launch(&plan, progress)?;
            JobMsg::Done(Outcome::Launched(plan.run.id.clone()))
        }
        Request::Stop { run } => {
            let plan = at.plan_kill(&at.dir(&run), KillHow::Stop)?;
            let callbacks = KillCallbacks { on_wait: &mut |_| {}, progress: &mut |_| {}, is_cancelled: &|| true };
            let report = at.kill(&plan, callbacks)?;
            let is_cancelled = plan.job.is_some_and(|job| job.is_cancelled);
            JobMsg::Done(if is_cancelled {
                Outcome::Killed { run, report: report_in_words(&report) }
            } else {
                Outcome::StopSent(run)
            })
        }
        Request::Kill { plan, confirmed: _ } => {
            let callbacks = KillCallbacks {
                on_wait: &mut |text| send(JobMsg::Waiting(text)),
                progress: &mut |step| progress(step.text),
                is_cancelled: &|| stop.load(Ordering::Relaxed),
            };
            let report = at.kill(&plan, callbacks)?;
            JobMsg::Done(Outcome::Killed { run: plan.run.clone(), report: report_in_words(&report) })
        }
        Request::CollectStacks { run } => {
            let stacks = at.stacks(&at.dir(&run))?.nodes;
            JobMsg::Done(Outcome::Stacks { run, report: stacks_in_words(&stacks) })
        }
        Request::Export { chart, to } => {
            refuse_replacing(&to)?;
            let (summary, _) = at.summary(&at.dir(&chart.run))?;
            let measured = curves::read(&summary.dir)?;
            let group = match &chart.chart {
                PlottedChart::Chart(chart) => curves::Group::of_chart(*chart, &measured),
                PlottedChart::Metric(name) => curves::Group::of_column(curves::Column::Metric(curves::metric(name)?)),
                PlottedChart::Named(name) => curves::Group::of_column(curves::Column::Other(name.clone())),
            };
            let marks = curves::read_marks(&summary, &measured)?;
            chart_export::write(&curves::chart(&[group], View::from(&chart), &summary, &measured, &marks), &to)?;
            JobMsg::Done(Outcome::Exported(to))
        }
        Request::ExportComparison { comparison, to } => {
            refuse_replacing(&to)?;
            let read = |run| comparison::read(at, &at.dir(run));
            let runs = comparison.runs.iter().map(read).collect::<Result<Vec<_>, _>>()?;
            let has_series = |name: &str| runs.iter().any(|run| run.measured.others().contains(name));
            let column = curves::Column::named(&comparison.metric, has_series)?;
            chart_export::write(&comparison::chart(&[column], View::from(&comparison), &runs), &to)?;
            JobMsg::Done(Outcome::Exported(to))
        }
        Request::MuteAlerts { alerts, until_s } => {
            for (run, id) in &alerts {
                at.dir(run).mute_alerts(Mute::new(now_s(), id.clone(), until_s, at.user()))?;
            }
            JobMsg::Done(Outcome::AlertsMuted)
        }
        Request::TestAlerts => {
            let tested = test_alert(&user_settings()?, None, Limits::default().request)?;
            let failed: Vec<String> = tested
                .iter()
                .filter_map(|(name, result)| Some(format!("{name}: {}", result.as_ref().err()?.why)))
                .collect();
            if let Some(first) = tested.iter().find_map(|(_, result)| result.as_ref().err()) {
                return Err(Failure { why: failed.join("; "), ..first.clone() }.into());
            }
            JobMsg::Done(Outcome::AlertsTested(tested.into_iter().map(|(name, _)| name.to_owned()).collect()))
        }
    })
}

/// Refuses to export to a file that exists.
fn refuse_replacing(to: &Utf8Path) -> Result<(), CommandError> {
    let refused = |error: CommandError| Failure { fix: "choose another name".into(), ..error.into_failure() };
    refuse_existing(to, false).map_err(|error| refused(error).into())
}

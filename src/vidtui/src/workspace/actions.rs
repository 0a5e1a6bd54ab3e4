//! Plans and executes the console's actions on several nodes, processes or runs, and on a checkpoint. Reports results one by one.

use super::{KillCallbacks, Workspace, execute_kill, report_in_words};
use crate::args::NodesArgs;
use crate::command_error::CommandError;
use cluster::NodeId;
use plan::{KillHow, KillPlan, KillScope, NodeProcesses, NodesKill, ProcessKey, ResumeOptions};
use remote::{GpuMemory, KillReport, NodeReport, list_processes};
use rundir::{ErrorCode, Failure, Login, RunId};
use std::collections::{BTreeMap, BTreeSet};
use ui::fleet::FleetSource;
use ui::{ActionEnd, ActionPlan, ActionRequest, ActionResult, RunPlan, RunVerb};

/// Receives all results so far.
type Show<'a> = &'a dyn Fn(Vec<ActionResult>);

/// The processes of a node, or why they cannot be listed.
type ListedNode = Result<NodeProcesses, Failure>;

impl Workspace {
    /// Plans an action. Changes nothing.
    pub fn plan_action(&self, request: ActionRequest) -> Result<ActionPlan, CommandError> {
        Ok(match request {
            ActionRequest::KillOnNodes { of, nodes, scope, chosen } => {
                let kill = self.plan_kill_on_nodes(&of, &nodes, scope, chosen.as_ref())?;
                ActionPlan::KillOnNodes { of, kill }
            }
            ActionRequest::Runs { verb, runs } => {
                let planned = runs.into_iter().map(|run| {
                    let plan = self.plan_for_run(&run, verb).map_err(CommandError::into_failure);
                    (run, plan)
                });
                ActionPlan::Runs { verb, runs: planned.collect() }
            }
            ActionRequest::DeleteCheckpoint { run, step } => {
                ActionPlan::DeleteCheckpoint(Box::new(self.plan_delete(&self.dir(&run), step)?))
            }
        })
    }

    fn plan_for_run(&self, run: &RunId, verb: RunVerb) -> Result<RunPlan, CommandError> {
        let dir = self.dir(run);
        Ok(match verb {
            RunVerb::Resume => {
                let nodes = NodesArgs::default();
                RunPlan::Start(Box::new(self.plan_resume(&dir, None, &nodes, ResumeOptions::default(), &[])?))
            }
            RunVerb::Stop => RunPlan::End(Box::new(self.plan_kill(&dir, KillHow::Stop)?)),
            RunVerb::Kill => RunPlan::End(Box::new(self.plan_kill(&dir, KillHow::Kill)?)),
            RunVerb::Delete => RunPlan::Delete(Box::new(self.plan_delete_run(&dir)?)),
        })
    }

    /// Executes a plan, and returns the result for each node or run.
    ///
    /// # Errors
    /// The list of nodes cannot be read, or the checkpoint cannot be deleted. Other failures are results.
    pub fn act(&self, plan: &ActionPlan, show: Show<'_>) -> Result<Vec<ActionResult>, CommandError> {
        match plan {
            ActionPlan::KillOnNodes { of, kill } => Ok(self.kill_on_nodes(of, kill, show)?),
            ActionPlan::Runs { runs, .. } => Ok(self.act_on_runs(runs, show)),
            ActionPlan::DeleteCheckpoint(delete) => {
                self.delete_checkpoint(delete)?;
                let step = units::grouped(delete.checkpoint.step());
                let subject = format!("Checkpoint of step {step}");
                Ok(vec![ActionResult { subject, end: ActionEnd::Done, text: "deleted".into() }])
            }
        }
    }

    fn act_on_runs(&self, runs: &[(RunId, Result<RunPlan, Failure>)], show: Show<'_>) -> Vec<ActionResult> {
        let possible = || runs.iter().filter_map(|(run, plan)| Some((run, plan.as_ref().ok()?)));
        let pending = |(run, _): (&RunId, &RunPlan)| ActionResult {
            subject: ui::run_state::short_id(run).to_owned(),
            end: ActionEnd::Pending,
            text: "waiting".into(),
        };
        let mut results: Vec<ActionResult> = possible().map(pending).collect();
        for (at, (_, plan)) in possible().enumerate() {
            results[at].text = "in progress".into();
            show(results.clone());
            let done = match plan {
                RunPlan::Start(plan) => self.launch(plan, &|_| {}).map(|_| "is starting".to_owned()),
                RunPlan::Delete(plan) => self.delete_run(plan).map(|()| "is in the trash".to_owned()),
                RunPlan::End(plan) => {
                    let callbacks =
                        KillCallbacks { on_wait: &mut |_| {}, progress: &mut |_| {}, is_cancelled: &|| true };
                    let stopped = plan.how == KillHow::Stop && plan.job.as_ref().is_none_or(|job| !job.is_cancelled);
                    let report = self.kill(plan, callbacks);
                    report.map(|report| if stopped { "saves and stops".into() } else { report_in_words(&report) })
                }
            };
            (results[at].end, results[at].text) = match done {
                Ok(text) => (ActionEnd::Done, text),
                Err(failure) if failure.code.is_of_unreachable_node() => (ActionEnd::Unknown, failure.why),
                Err(failure) => (ActionEnd::Failed, failure.why),
            };
        }
        results
    }

    /// Lists the processes of a node that use GPUs or belong to training, without this program and its ancestors.
    ///
    /// # Errors
    /// When the list of nodes cannot be read, or the node cannot be reached.
    pub fn training_on(&self, of: &FleetSource, node: &NodeId) -> Result<NodeProcesses, Failure> {
        let own = remote::own_ancestry().map_err(|error| error.failure("cannot list processes"))?;
        let mut listed = self.processes_on(of, std::slice::from_ref(node))?;
        let Some((_, listed)) = listed.pop() else { return Err(not_listed(node)) };
        let listed = listed?;
        let selected = plan::select_orphans(&listed, KillScope::AllUsers, &own, &|_| true);
        let processes = selected.processes.into_iter().filter(plan::ListedProcess::trains).collect();
        Ok(NodeProcesses { processes, ..listed })
    }

    fn processes_on(&self, of: &FleetSource, nodes: &[NodeId]) -> Result<Vec<(NodeId, ListedNode)>, Failure> {
        let logins = self.logins_of(of, nodes)?;
        let listed = list_processes(nodes, &mut self.transports(&logins)?);
        let failure = |node: &NodeId, error: remote::RemoteError| {
            error.failure_on_node(format!("cannot list the processes of {node}"))
        };
        let mut listed: BTreeMap<NodeId, ListedNode> =
            listed.into_iter().map(|(node, result)| (node.clone(), result.map_err(|e| failure(&node, e)))).collect();
        let of_node = |node: &NodeId| (node.clone(), listed.remove(node).unwrap_or_else(|| Err(not_listed(node))));
        Ok(nodes.iter().map(of_node).collect())
    }

    fn logins_of(&self, of: &FleetSource, nodes: &[NodeId]) -> Result<Vec<Login>, Failure> {
        if self.simulate.is_some() && *of == FleetSource::Given {
            let why = "the nodes are simulated";
            let fix = "open the console without --simulate";
            return Err(Failure::new(ErrorCode::InvalidArgument, "cannot list processes", why, fix));
        }
        let logins = self.nodes_of(of)?.into_iter().map(|(_, login)| login);
        Ok(logins.filter(|login| nodes.contains(&login.node)).collect())
    }

    fn plan_kill_on_nodes(
        &self,
        of: &FleetSource,
        nodes: &[NodeId],
        scope: KillScope,
        chosen: Option<&BTreeSet<ProcessKey>>,
    ) -> Result<NodesKill, Failure> {
        let own = remote::own_ancestry().map_err(|error| error.failure("cannot list processes"))?;
        let (mut listed, mut unreachable) = (Vec::new(), Vec::new());
        for (node, result) in self.processes_on(of, nodes)? {
            match result {
                Ok(processes) => listed.push(processes),
                Err(failure) => unreachable.push((node, failure)),
            }
        }
        let mut plans_of = |found| self.plans_of_detected(found, KillHow::Kill);
        Ok(plan::kill_on_nodes(&listed, unreachable, scope, &own, chosen, &mut plans_of))
    }

    /// Kills processes as planned, and returns the verified result for each node.
    fn kill_on_nodes(&self, of: &FleetSource, kill: &NodesKill, show: Show<'_>) -> Result<Vec<ActionResult>, Failure> {
        let listed: Vec<NodeId> = kill.nodes.iter().map(|node| node.node.clone()).collect();
        let mut logins = self.logins_of(of, &listed)?;
        let mut results = Results::default();
        for plan in &kill.plans {
            if let KillPlan::Run(run) = plan {
                // The newest attempt may have other nodes too.
                let attempt = run.dir.latest_attempt().ok().flatten();
                for login in attempt.map_or_else(Vec::new, |attempt| attempt.ssh_logins()) {
                    if logins.iter().all(|known| known.node != login.node) {
                        logins.push(login);
                    }
                }
            }
            nodes_of(plan).for_each(|node| results.add(node.as_str(), ActionEnd::Pending, "in progress"));
        }
        for (node, failure) in &kill.unreachable {
            results.add(node.as_str(), ActionEnd::Unknown, &format!("unreachable, so unknown: {}", failure.why));
        }
        show(results.list());
        let mut transports = self.transports(&logins)?;
        for plan in &kill.plans {
            let mut progress = |step: remote::KillProgress| {
                results.progress(step.node.as_str(), &step.text);
                show(results.list());
            };
            let callbacks = KillCallbacks { on_wait: &mut |_| {}, progress: &mut progress, is_cancelled: &|| true };
            let report = execute_kill(plan, &mut transports, callbacks);
            results.record(plan, &report);
            show(results.list());
        }
        Ok(results.list())
    }
}

fn not_listed(node: &NodeId) -> Failure {
    let (what, fix) = (format!("cannot list the processes of {node}"), "go back and choose another node");
    Failure::new(ErrorCode::UnknownName, what, "it is no longer in the list of nodes", fix)
}

fn nodes_of(plan: &KillPlan) -> Box<dyn Iterator<Item = &NodeId> + '_> {
    match plan {
        KillPlan::Run(run) => Box::new(run.nodes.iter().map(|node| &node.node)),
        KillPlan::Orphans(orphans) => Box::new(orphans.nodes.iter().map(|node| &node.node)),
    }
}

/// The result of a plan on a node, and its text.
type EndedPlan = (ActionEnd, String);

/// The results of several plans, node by node. A node may be in more than one plan.
#[derive(Default)]
struct Results {
    order: Vec<String>,
    /// For each subject: the text of the plan in progress, and the results of ended plans.
    of: BTreeMap<String, (Option<String>, Vec<EndedPlan>)>,
    /// The number of plans of each subject that have not ended.
    open: BTreeMap<String, usize>,
}

impl Results {
    fn add(&mut self, subject: &str, end: ActionEnd, text: &str) {
        if !self.of.contains_key(subject) {
            self.order.push(subject.to_owned());
        }
        let entry = self.of.entry(subject.to_owned()).or_default();
        if end == ActionEnd::Pending {
            *self.open.entry(subject.to_owned()).or_default() += 1;
            entry.0 = Some(text.to_owned());
        } else {
            entry.1.push((end, text.to_owned()));
        }
    }

    fn progress(&mut self, subject: &str, text: &str) {
        if let Some((now, _)) = self.of.get_mut(subject) {
            *now = Some(text.to_owned());
        }
    }

    fn record(&mut self, plan: &KillPlan, report: &KillReport) {
        for node in &report.nodes {
            let (end, text) = verdict(node);
            let subject = node.node.to_string();
            let open = self.open.entry(subject.clone()).or_default();
            *open = open.saturating_sub(1);
            self.add(&subject, end, &text);
        }
        // Slurm ends a pending job without a report about nodes.
        for node in nodes_of(plan).filter(|node| report.nodes.iter().all(|report| report.node != **node)) {
            let open = self.open.entry(node.to_string()).or_default();
            *open = open.saturating_sub(1);
        }
        match &report.job {
            Some(Ok(text)) => self.add(&plan.subject(), ActionEnd::Done, text),
            Some(Err(failure)) => self.add(&plan.subject(), ActionEnd::Failed, &failure.why),
            None => {}
        }
    }

    fn list(&self) -> Vec<ActionResult> {
        let of = |subject: &String| {
            let (now, ended) = &self.of[subject];
            let is_open = self.open.get(subject).is_some_and(|open| *open > 0);
            let (end, text) = match now {
                Some(text) if is_open => (ActionEnd::Pending, text.clone()),
                _ => {
                    let end = ended.iter().map(|(end, _)| *end).max().unwrap_or(ActionEnd::Unknown);
                    let mut texts: Vec<&str> = Vec::new();
                    for (_, text) in ended {
                        if !texts.contains(&text.as_str()) {
                            texts.push(text);
                        }
                    }
                    (end, if texts.is_empty() { "not checked".to_owned() } else { texts.join("; ") })
                }
            };
            ActionResult { subject: subject.clone(), end, text }
        };
        self.order.iter().map(of).collect()
    }
}

/// Returns the verified result of a kill on a node, and its text.
fn verdict(node: &NodeReport) -> (ActionEnd, String) {
    let survivors = || node.survivors().join("; ");
    match (&node.failure, &node.gpu_memory) {
        (Some(failure), _) if node.is_unreachable => {
            (ActionEnd::Unknown, format!("unreachable, so unknown: {}", failure.why))
        }
        (Some(failure), _) if node.left.is_empty() => (ActionEnd::Failed, failure.why.clone()),
        (Some(failure), _) => (ActionEnd::Failed, format!("still there: {}; {}", survivors(), failure.why)),
        (None, _) if !node.left.is_empty() => (ActionEnd::Failed, format!("still there: {}", survivors())),
        (None, GpuMemory::Held(_)) => (ActionEnd::Failed, node.summary()),
        (None, GpuMemory::Unknown(_)) => (ActionEnd::Unknown, node.summary()),
        (None, _) => {
            let gone = units::counted(node.signalled, "process");
            let text = if node.signalled == 0 { "no process was left".to_owned() } else { format!("{gone} ended") };
            (ActionEnd::Done, text)
        }
    }
}

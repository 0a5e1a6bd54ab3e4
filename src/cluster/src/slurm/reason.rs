//! Why a job is pending: Slurm's reasons, which of them end by themselves, and what the user can do about the others.

use Wait::{Depends, Ends, Never};

use super::{Job, JobState};

/// Whether a job that is pending for a reason starts by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The job starts by itself.
    Ends,
    /// The job may start by itself, or another person or job decides.
    Depends,
    /// The job does not start until the user or an administrator changes something.
    Never,
}

/// A reason of Slurm for a pending job.
#[derive(Debug, PartialEq, Eq)]
pub struct PendingReason {
    /// The reason as Slurm prints it, with `*` for any text.
    pattern: &'static str,
    /// Whether the job starts by itself.
    pub wait: Wait,
    /// The meaning: it follows `the job waits` if the job may start by itself, and otherwise it is a sentence.
    text: &'static str,
    /// The hint, with `JOB` for the id of the job. Empty if the job starts by itself.
    cure: &'static str,
}

impl PendingReason {
    /// Returns what the job waits for as a sentence without a full stop: `job 42 waits for free nodes (Resources) and starts by
    /// itself`.
    ///
    /// * `reason` — the reason as Slurm prints it; empty if it prints none.
    pub fn sentence(&self, job: u64, reason: &str) -> String {
        let text = self.text;
        let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
        match self.wait {
            Ends => format!("job {job} waits {text}{reason} and starts by itself"),
            Depends => format!("job {job} waits {text}{reason}"),
            Never => format!("job {job} never starts by itself: {text}{reason}"),
        }
    }

    /// Returns what the user can do about it; empty if the job starts by itself.
    pub fn fix(&self, job: u64) -> String {
        self.cure.replace("JOB", &job.to_string())
    }
}

const fn reason(pattern: &'static str, wait: Wait, text: &'static str, cure: &'static str) -> PendingReason {
    PendingReason { pattern, wait, text, cure }
}

const RELEASE: &str = "release it: `scontrol release JOB`";
const RELEASE_AFTER: &str = "`scontrol show job JOB` and attempts/*/job.log in the run's folder show why; then release \
    it: `scontrol release JOB`";
const REQUEST_LESS: &str = "compare `scontrol show job JOB` with `sacctmgr show qos` and `sacctmgr show assoc`; then stop \
    the run, change the Slurm file, and resume with it";
const OTHER_ACCOUNT: &str = "`sacctmgr show assoc user=$USER` lists your accounts and QOS, `scontrol show partition` those \
    that a partition allows; set one: `scontrol update JobId=JOB Account=… QOS=… Partition=…`";
const ADMINISTRATORS: &str = "ask the administrators of the cluster, or use another partition: `scontrol update JobId=JOB \
    Partition=…`";
const NODES: &str = "`sinfo -R` shows why nodes are down; if these nodes are not the only ones that fit, remove --nodelist \
    from the Slurm file";
const LIMIT: &str = "if no other job of the account, the QOS or the user is running, the request exceeds the limit alone: \
    compare `scontrol show job JOB` with `sacctmgr show qos` and `sacctmgr show assoc`";
const BUDGET: &str = "`sshare` and `sreport` show the use; a site may forget use with time, otherwise ask for more or use \
    another account: `scontrol update JobId=JOB Account=…`";

const IN_LIMIT: &str = "until other jobs end, because a limit of its account, QOS or user is reached";
const USED_UP: &str = "because the time that its account or QOS may use is used up";
const EXCEEDS: &str = "its request exceeds a limit for one job of its account or QOS";

/// The reasons of Slurm 20.11 to 26.05. The first match counts. Blanks are compared as `_`, as older versions print them.
///
/// Source: Slurm, `src/common/job_state_reason.c`, `doc/html/job_reason_codes.shtml`, and the descriptions that slurmctld
/// writes instead of a code (`state_desc`), August 2026.
const REASONS: &[PendingReason] = &[
    // The usual reasons.
    reason("None", Ends, "until Slurm has considered it", ""),
    reason("Resources", Ends, "for free nodes", ""),
    reason("Priority", Ends, "behind jobs with higher priority", ""),
    reason("BeginTime", Ends, "for its start time", ""),
    reason("Dependency", Ends, "for another job", ""),
    reason("Licenses", Ends, "for a licence", ""),
    reason("Reservation", Ends, "for its reservation", ""),
    reason("Prolog", Ends, "for the preparation of its nodes", ""),
    reason("Cleaning", Ends, "until its last start is cleaned up", ""),
    reason("JobArrayTaskLimit", Ends, "for other tasks of its array", ""),
    reason("BurstBufferResources", Ends, "for space in a burst buffer", ""),
    reason("BurstBufferStageIn", Ends, "until its files are in the burst buffer", ""),
    reason("FedJobLock", Ends, "for the other clusters of the federation", ""),
    reason("SchedDefer", Ends, "for the next scheduling", ""),
    reason("MpiPortsBusy", Ends, "for free ports", ""),
    reason("NvidiaImexChannels", Ends, "for a free IMEX channel", ""),
    reason("MaxPoweredUpNodes", Ends, "until fewer nodes are powered up", ""),
    reason("PowerNotAvail", Ends, "for electric power", ""),
    reason("PowerReserved", Ends, "for electric power", ""),
    reason("BlockFreeAction", Ends, "until its nodes are freed", ""),
    // The reasons of a start that failed. Slurm has requeued the job.
    reason("JobLaunchFailure", Ends, "for another start, because the last one failed", ""),
    reason("NonZeroExitCode", Ends, "for another start, because the last one failed", ""),
    reason("RaisedSignal*", Ends, "for another start, because a signal ended the last one", ""),
    reason("OutOfMemory", Ends, "for another start, because the last one ran out of memory", ""),
    reason("TimeLimit", Ends, "for another start, because the last one reached its time limit", ""),
    reason("InactiveLimit", Ends, "for another start, because the last one was inactive", ""),
    reason("SystemFailure", Ends, "for another start, because of an error of Slurm or of a node", ""),
    // Dependencies and holds.
    reason(
        "DependencyNeverSatisfied",
        Never,
        "a job that it depends on did not end as the dependency requires",
        "remove the dependency: `scontrol update JobId=JOB Dependency=`, or end the run and remove --dependency from the \
         Slurm file",
    ),
    reason("JobHeldUser", Never, "it is held by its user", RELEASE),
    reason(
        "JobHeldAdmin",
        Never,
        "it is held by an administrator",
        "only an administrator can release it: ask why it is held (`scontrol show job JOB` may show a comment)",
    ),
    reason("JobHoldMaxRequeue", Never, "it is held, because it was requeued too often", RELEASE_AFTER),
    reason("job_requeued_in_held_state", Never, "it is held after a requeue", RELEASE_AFTER),
    reason("job_requeued_in_special_exit_state", Never, "it is held after a requeue", RELEASE_AFTER),
    reason("launch_fail*_requeued_held", Never, "it is held after a failed launch", RELEASE_AFTER),
    reason(
        "user_env_retrieval_failed_requeued_held",
        Never,
        "it is held, because Slurm could not read the user's environment on its node",
        "a file such as ~/.bashrc prints or waits there: mend it, or write --export=ALL in extra; then release the job: \
         `scontrol release JOB`",
    ),
    reason("REQUEUE_HOLD", Never, "it is held after a requeue", RELEASE_AFTER),
    reason("SPECIAL_EXIT", Never, "it is held after a requeue", RELEASE_AFTER),
    reason(
        "ReservationDeleted",
        Never,
        "its reservation was deleted",
        "leave the reservation: `scontrol update JobId=JOB ReservationName=`, then `scontrol release JOB`",
    ),
    reason(
        "Reservation_*_was_deleted",
        Never,
        "its reservation was deleted",
        "leave the reservation: `scontrol update JobId=JOB ReservationName=`, then `scontrol release JOB`",
    ),
    reason(
        "RESV_DEL_HOLD",
        Never,
        "its reservation was deleted",
        "leave the reservation: `scontrol update JobId=JOB ReservationName=`, then `scontrol release JOB`",
    ),
    reason(
        "Reservation*nvalid",
        Never,
        "its reservation is invalid",
        "leave the reservation: `scontrol update JobId=JOB ReservationName=`, then `scontrol release JOB`",
    ),
    reason(
        "License_request_*holding_job",
        Never,
        "a licence that it requests no longer exists",
        "`scontrol show licenses` lists the licences; end the run, change --licenses in the Slurm file, and resume with it",
    ),
    reason(
        "BurstBufferOperation*",
        Never,
        "an operation of its burst buffer failed",
        "read `scontrol show job JOB`, change --bb or --bbf in the Slurm file, then `scontrol release JOB`",
    ),
    reason(
        "Burst_buffer*error",
        Never,
        "an operation of its burst buffer failed",
        "read `scontrol show job JOB`, change --bb or --bbf in the Slurm file, then `scontrol release JOB`",
    ),
    reason("DeadLine", Never, "it cannot end before its deadline", "end the run, and resume with a later --deadline"),
    // Accounts and partitions.
    reason("AccountNotAllowed", Never, "its account may not use its partition", OTHER_ACCOUNT),
    reason("Job's_account_*", Never, "its account may not use its partition", OTHER_ACCOUNT),
    reason("uid_*_not_in_group_*", Never, "your groups may not use its partition", OTHER_ACCOUNT),
    reason("QOSNotAllowed", Never, "its QOS may not use its partition, or its account not the QOS", OTHER_ACCOUNT),
    reason("Job's_QOS_*", Never, "its QOS may not use its partition", OTHER_ACCOUNT),
    reason("InvalidAccount", Never, "its account is not valid", OTHER_ACCOUNT),
    reason("InvalidQOS", Never, "its QOS is not valid", OTHER_ACCOUNT),
    reason(
        "PartitionTimeLimit",
        Never,
        "its time limit exceeds that of its partition",
        "`scontrol show partition` shows the limit (MaxTime): `scontrol update JobId=JOB TimeLimit=…`, or use another \
         partition",
    ),
    reason(
        "PartitionNodeLimit",
        Depends,
        "because it requests more or fewer nodes than its partition allows, or some of its nodes are down",
        "`scontrol show partition` shows the limits (MinNodes, MaxNodes) and the nodes, `sinfo -R` the nodes that are down",
    ),
    reason("PartitionConfig", Depends, "because it exceeds a limit of its partition", ADMINISTRATORS),
    reason("PartitionDown", Depends, "until its partition is up", ADMINISTRATORS),
    reason("PartitionInactive", Depends, "until its partition is active", ADMINISTRATORS),
    // Nodes.
    reason("ReqNodeNotAvail,_May_be_reserved_for_other_job*", Ends, "for nodes that are reserved for other jobs", ""),
    reason("ReqNodeNotAvail,_Reserved_for_maintenance*", Ends, "for the end of a maintenance", ""),
    reason("ReqNodeNotAvail*", Depends, "for nodes that are down, drained or reserved", NODES),
    reason("Nodes_required_for_job_are_DOWN*", Depends, "for nodes that are down, drained or reserved", NODES),
    reason("NodeDown", Depends, "for a node that is down", NODES),
    reason("FrontEndDown", Depends, "for a node that is down", NODES),
    reason("BlockMaxError", Depends, "for nodes that have errors", NODES),
    reason(
        "BadConstraints",
        Never,
        "no nodes have what it requests",
        "`sinfo --Node --long` lists the nodes with CPUs, memory and features; end the run, change the Slurm file, and \
         resume with it",
    ),
    reason(
        "Constraints",
        Depends,
        "because no nodes have what it requests now",
        "`sinfo --Node --long` lists the nodes with CPUs, memory and features",
    ),
    // Limits on the number of jobs.
    reason("*SubmitJob*", Ends, IN_LIMIT, ""),
    reason("*MaxJobs*", Ends, IN_LIMIT, ""),
    reason("*GrpJobsLimit", Ends, IN_LIMIT, ""),
    reason("AssociationJobLimit", Ends, IN_LIMIT, ""),
    reason("QOSJobLimit", Ends, IN_LIMIT, ""),
    // Limits on what one job may request.
    reason("MaxMemPerLimit", Never, "it requests more memory per CPU or node than Slurm allows", REQUEST_LESS),
    reason("AssocMax*PerJob*", Never, EXCEEDS, REQUEST_LESS),
    reason("AssocMax*PerNode*", Never, EXCEEDS, REQUEST_LESS),
    reason("QOSMax*PerJob*", Never, EXCEEDS, REQUEST_LESS),
    reason("QOSMax*PerNode*", Never, EXCEEDS, REQUEST_LESS),
    reason("QOSMin*", Never, "it requests less than its QOS requires of a job", REQUEST_LESS),
    // Limits on what all jobs of an account, a QOS or a user have, now or in the remaining time of the running jobs.
    reason("*RunMin*", Depends, IN_LIMIT, LIMIT),
    reason("AssocGrp*Minutes*", Depends, USED_UP, BUDGET),
    reason("QOSGrp*Minutes*", Depends, USED_UP, BUDGET),
    reason("*GrpWallLimit", Depends, USED_UP, BUDGET),
    reason("AssociationTimeLimit", Depends, USED_UP, BUDGET),
    reason("QOSTimeLimit", Depends, USED_UP, BUDGET),
    reason("QOSUsageThreshold", Depends, "because its account has used more than its share", BUDGET),
    reason("AssocGrp*", Depends, IN_LIMIT, LIMIT),
    reason("QOSGrp*", Depends, IN_LIMIT, LIMIT),
    reason("QOSMax*PerUser*", Depends, IN_LIMIT, LIMIT),
    reason("Max*PerAccount", Depends, IN_LIMIT, LIMIT),
    reason("AssociationResourceLimit", Depends, IN_LIMIT, LIMIT),
    reason("QOSResourceLimit", Depends, IN_LIMIT, LIMIT),
    reason("AccountingPolicy", Depends, IN_LIMIT, LIMIT),
];

impl Job {
    /// Returns why the job is pending, if it is and if the reason is known.
    pub fn pending_reason(&self) -> Option<&'static PendingReason> {
        if !self.state.is_waiting() || self.state == JobState::Configuring {
            return None;
        }
        let state = self.state.to_string();
        let reason = self.reason.as_deref();
        reason.and_then(find).or_else(|| find(&state)).or_else(|| find("None").filter(|_| reason.is_none()))
    }
}

fn find(reason: &str) -> Option<&'static PendingReason> {
    let reason = reason.replace(' ', "_");
    REASONS.iter().find(|known| matches(known.pattern, &reason))
}

/// Returns whether a text matches a pattern, in which `*` is any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let Some(last) = pattern.contains('*').then(|| parts.next_back()).flatten() else { return rest.is_empty() };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reasons of Slurm 20.11, 22.05 and 26.05, and texts that slurmctld prints instead of them.
    const ALL: &str = include_str!("../../../../tests/fixtures/slurm/reasons.list");

    #[test]
    fn every_reason_of_slurm_has_a_meaning() {
        let reasons: Vec<&str> = ALL.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(reasons.len() > 220, "the fixture has moved");
        let unknown: Vec<&&str> = reasons.iter().filter(|reason| find(reason).is_none()).collect();
        assert_eq!(unknown, [&""; 0]);
        let line = |reason: &&str| {
            let known = find(reason).unwrap();
            known.sentence(42, reason)
        };
        insta::assert_snapshot!(reasons.iter().map(line).collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn every_pattern_is_the_first_match_of_some_reason() {
        let found: Vec<_> = ALL.lines().filter_map(find).collect();
        let states = ["REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"].map(|state| find(state).unwrap());
        let is_used = |known: &&PendingReason| found.contains(known) || states.contains(known);
        let unused: Vec<_> = REASONS.iter().filter(|known| !is_used(known)).map(|known| known.pattern).collect();
        assert_eq!(unused, [""; 0]);
    }

    #[test]
    fn a_reason_has_a_cure_unless_it_ends_by_itself() {
        for known in REASONS {
            assert_eq!(known.wait == Ends, known.fix(42).is_empty(), "{}", known.pattern);
            assert!(!known.fix(42).contains("JOB"), "{}", known.fix(42));
        }
    }

    #[test]
    fn only_a_job_that_has_not_started_is_pending_for_a_reason() {
        let of = |state: &str, reason: &str| {
            let line = format!("42|{state}|{reason}|0:00|10:00|2||N/A|N/A|ada|train|gres:gpu:1|demo");
            super::super::read_queue(&line).rows[0].pending_reason().map(|known| (known.pattern, known.wait))
        };
        assert_eq!(of("PENDING", "Resources"), Some(("Resources", Ends)));
        assert_eq!(of("PENDING", "None"), Some(("None", Ends)));
        assert_eq!(of("PENDING", "Moonphase"), None);
        assert_eq!(of("PENDING", "DependencyNeverSatisfied"), Some(("DependencyNeverSatisfied", Never)));
        for reason in ["launch failed requeued held", "launch_failed_requeued_held"] {
            assert_eq!(of("PENDING", reason), Some(("launch_fail*_requeued_held", Never)));
        }
        assert_eq!(of("SPECIAL_EXIT", "Whatever"), Some(("SPECIAL_EXIT", Never)));
        assert_eq!(of("RUNNING", "None").or(of("CONFIGURING", "None")).or(of("FAILED", "NonZeroExitCode")), None);
    }

    #[test]
    fn a_pattern_matches_a_whole_text() {
        for (pattern, text, is_match) in [
            ("None", "None", true),
            ("None", "Nonesuch", false),
            ("A*", "A", true),
            ("A*Z", "AZ", true),
            ("A*Z", "A", false),
            ("A*B*Z", "AxBxZ", true),
            ("*B*", "AB", true),
            ("AB*BA", "ABA", false),
        ] {
            assert_eq!(matches(pattern, text), is_match, "{pattern} {text}");
        }
    }
}

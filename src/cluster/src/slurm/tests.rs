//! Tests of parsing recorded output of Slurm's commands.

use std::fmt::Debug;
use std::fs;

use proptest::prelude::*;

use super::*;

const FIXTURES: &str = "../../tests/fixtures/slurm";

/// Reads a fixture without its two lines of comments.
fn fixture(name: &str) -> String {
    let whole = fs::read_to_string(format!("{FIXTURES}/{name}.txt")).unwrap();
    let comments: usize = whole.split_inclusive('\n').take_while(|line| line.starts_with("# ")).map(str::len).sum();
    whole[comments..].to_owned()
}

fn lines(rows: Vec<impl Debug>, odd: Vec<String>) -> String {
    let rows = rows.iter().map(|row| format!("{row:?}"));
    rows.chain(odd.iter().map(|line| format!("! {line}"))).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_output_matches_its_snapshot() {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../../../tests/fixtures/slurm");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let mut count = 0;
    settings.bind(|| {
        for entry in fs::read_dir(FIXTURES).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            if path.extension().is_none_or(|extension| extension != "txt") {
                continue;
            }
            count += 1;
            let text = fixture(&name);
            let read = match name.split('_').next().unwrap() {
                "queue" => read_queue(&text).shown(),
                "nodes" => read_nodes(&text).shown(),
                "accounting" => read_accounting(&text).shown(),
                "job" => format!("{:#?}", read_job(&text).unwrap()),
                _ => panic!("{name} is not the name of a command's output"),
            };
            insta::assert_snapshot!(name, read);
        }
    });
    assert!(count >= 17, "the fixtures have moved");
}

impl<T: Debug> Rows<T> {
    fn shown(self) -> String {
        lines(self.rows, self.odd)
    }
}

#[test]
fn a_name_may_contain_the_separator() {
    let names: Vec<_> = read_queue(&fixture("queue")).rows.into_iter().map(|job| (job.id, job.name)).collect();
    assert!(names.contains(&("2".into(), "a|b c".into())), "{names:?}");
}

#[test]
fn a_running_job_has_nodes_and_a_pending_one_has_a_reason() {
    let queue = read_queue(&fixture("queue")).rows;
    let job = |id: &str| queue.iter().find(|job| job.id == id).unwrap();
    assert_eq!(job("1").nodes().unwrap(), ["node01", "node02"]);
    assert_eq!((job("1").limit_s, job("1").gpus_per_node), (Some(600), Some(8)));
    assert_eq!((job("9").nodes().unwrap().len(), job("9").reason.as_deref()), (0, Some("JobHeldUser")));
    assert!(job("9").state.is_waiting() && job("3").state.is_over() && !job("1").state.is_over());
}

#[test]
fn a_completing_job_is_left_only_on_its_listed_nodes() {
    let left = |state: &str, list: &str, nodes: &[&str]| {
        let line = format!("7|{state}|None|0:05|10:00|2|{list}|1000|1600|ada|train|gres:gpu:1|demo");
        let nodes: Vec<_> = nodes.iter().map(|name| crate::NodeId::new(*name).unwrap()).collect();
        read_queue(&line).rows[0].is_left_only_on(&nodes)
    };
    assert!(left("COMPLETING", "node03", &["node02", "node03"]));
    assert!(left("COMPLETING", "node[02-03]", &["node02", "node03"]));
    assert!(!left("COMPLETING", "node[02-03]", &["node03"]) && !left("COMPLETING", "node03", &[]));
    assert!(
        !left("COMPLETING", "", &["node03"]) && !left("COMPLETING", "node[0", &["node03"]),
        "its nodes are unknown"
    );
    assert!(!left("RUNNING", "node03", &["node03"]));
}

#[test]
fn every_state_of_slurm_is_pending_running_or_ended() {
    let words = |is: fn(&JobState) -> bool| {
        let rows = read_queue(&fixture("queue_of_every_state")).rows.into_iter();
        rows.filter(|job| is(&job.state)).map(|job| job.state.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        words(JobState::is_waiting),
        "PENDING CONFIGURING REQUEUED EXPEDITING LAUNCH_FAILED POWER_UP_NODE RECONFIG_FAIL REQUEUE_FED REQUEUE_HOLD \
         RESV_DEL_HOLD SPECIAL_EXIT"
    );
    assert_eq!(
        words(JobState::is_over),
        "COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED OUT_OF_MEMORY BOOT_FAIL DEADLINE"
    );
    assert_eq!(words(JobState::is_halted), "SUSPENDED STOPPED");
    let rest = |state: &JobState| !state.is_waiting() && !state.is_over() && !state.is_halted();
    assert_eq!(words(rest), "RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT UPDATE_DB REVOKED");
}

#[test]
fn gpus_per_node_are_read_from_every_version_of_slurm() {
    for version in ["20_11", "24_11"] {
        let queue = read_queue(&fixture(&format!("queue_of_slurm_{version}"))).rows;
        let gpus: Vec<_> = queue.iter().map(|job| job.gpus_per_node).collect();
        assert_eq!(gpus, [Some(8), Some(8), None], "{version}");
        let job = read_job(&fixture(&format!("job_of_slurm_{version}"))).unwrap();
        assert_eq!((job.state, job.batch_node.as_deref()), (JobState::Running, Some("gpu001")), "{version}");
        assert_eq!(job.stdout.as_deref(), Some("/data/runs/demo/attempts/0001/job.log"), "{version}");
    }
}

#[test]
fn times_without_a_time_zone_are_kept_as_text() {
    let job = read_queue(&fixture("queue_without_the_time_format")).rows.remove(0);
    assert_eq!(job.start, Some(SlurmTime::Local("2026-11-20T06:02:07".into())));
    assert_eq!(job.start.unwrap().unix_s(), None);
}

#[test]
fn a_requeued_job_has_a_restart_count() {
    let job = read_job(&fixture("job_requeued")).unwrap();
    assert_eq!((job.restarts, job.state, job.reason.as_deref()), (1, JobState::Pending, Some("BeginTime")));
    assert_eq!(job.comment.as_deref(), Some("run=2026-11-20T0340-demo-2s-k7f2"));
}

#[test]
fn a_node_that_does_not_answer_takes_no_jobs() {
    let text = fixture("nodes") + &fixture("nodes_down") + &fixture("nodes_of_a_cloud");
    let takes = read_nodes(&text).rows.into_iter().filter(|node| node.state.takes_jobs());
    let names: Vec<_> = takes.map(|node| node.node.to_string()).collect();
    assert_eq!(names, ["node01", "node01", "node03", "node01", "node01", "node03", "gpu001", "gpu002", "gpu004"]);
}

proptest! {
    #[test]
    fn no_output_panics(text in r"([0-9]{1,3}|[|:=*(),\-~ \n]|RUNNING|JobId=|gpu|[A-Z]){0,60}|.{0,200}") {
        read_queue(&text);
        read_nodes(&text);
        read_accounting(&text);
        read_job(&text);
        read_job(&format!("JobId=1{text}"));
        parse_error(&text);
        read_submitted(&text);
        let _ = SlurmSpec::parse(&text);
    }

    #[test]
    fn no_damage_to_real_output_panics(at in any::<prop::sample::Index>(), with in r"[|\n=]{0,4}|.{0,3}") {
        for name in ["queue", "nodes_of_a_cloud", "accounting", "job_running"] {
            let text = fixture(name);
            let at = (0..=at.index(text.len() + 1)).rev().find(|&at| text.is_char_boundary(at)).unwrap();
            let damaged = format!("{}{with}{}", &text[..at], &text[at..]);
            read_queue(&damaged);
            read_nodes(&damaged);
            read_accounting(&damaged);
            read_job(&damaged);
        }
    }
}

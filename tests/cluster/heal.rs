//! Tests of the healer on several nodes: it resumes a run after a failure, without a user.

use cluster::NodeId;
use rundir::{AttemptWhy, EventKind, RunDir, read_events};

use crate::site::{SMALL, TestSite, losses};

/// Launches a run of 16 steps of a second on `ranks` nodes of the rig. The healer resumes the run after a failure.
fn launch(site: &TestSite, ranks: usize, more: &str) -> RunDir {
    let words = format!(
        "launch configs/demo/2s.toml {SMALL} --hostfile hostfiles/rig.txt --set mesh.dp_shard={ranks} --set train.threads=1 \
         --set train.steps=16 --set checkpoint.interval=3 --set optimizer.warmup_steps=1 --set run.on_failure=resume \
         --set env.variables.TRAIN_PACE_S=1 {more}"
    );
    RunDir::new(site.runs.join(site.does(&words)))
}

fn nodes(run: &RunDir, attempt: u32) -> Vec<String> {
    let placement = run.read_attempt(attempt).unwrap().placement;
    placement.by_node().into_iter().map(|(node, _)| node.to_string()).collect()
}

#[test]
fn a_run_that_loses_a_node_is_trained_to_its_end_on_a_spare_node() {
    let Some(site) = TestSite::new() else { return };
    let words = format!(
        "launch configs/demo/2s.toml {SMALL} --local 2 --set mesh.dp_shard=2 --set train.threads=1 --set train.steps=16 \
         --set checkpoint.interval=3 --set optimizer.warmup_steps=1 --wait"
    );
    let undisturbed = losses(&RunDir::new(site.runs.join(site.does(&words))));
    let run = launch(&site, 2, "--set run.spares=2");
    assert_eq!(nodes(&run, 1), ["node01", "node02"]);
    site.until("it has saved", || other_trainers::latest(&run).is_some());
    site.rig.verb("panic node02").unwrap();
    site.until("it has finished", || site.state() == "finished");
    let attempt = run.read_attempt(2).unwrap();
    assert_eq!((attempt.why, run.attempt_numbers().unwrap().len()), (AttemptWhy::Heal, 2));
    assert_eq!(nodes(&run, 2), ["node01", "node03"]);
    assert_eq!(losses(&run), undisturbed);
    let events = read_events(&run).unwrap();
    let without = vec![NodeId::new("node02").unwrap()];
    assert!(
        events.iter().any(|event| matches!(&event.kind, EventKind::Healed { without: left, .. } if *left == without))
    );
    site.until("the healer has ended", || run.healer().is_none());
}

#[test]
fn a_run_without_spare_nodes_continues_on_fewer_nodes_if_it_may() {
    let Some(site) = TestSite::new() else { return };
    let run = launch(&site, 4, "--set run.shrink=true");
    site.until("it has saved", || other_trainers::latest(&run).is_some());
    site.rig.verb("panic node03").unwrap();
    site.until("it has finished", || site.state() == "finished");
    let attempt = run.read_attempt(2).unwrap();
    assert_eq!((attempt.why, run.attempt_numbers().unwrap().len()), (AttemptWhy::Heal, 2));
    assert!(attempt.mesh.world() < 4 && !nodes(&run, 2).contains(&"node03".to_owned()), "{:?}", nodes(&run, 2));
    assert_eq!(losses(&run).len(), 16, "every step was made");
}

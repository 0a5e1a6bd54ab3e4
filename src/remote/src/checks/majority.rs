//! The values that most nodes of a launch report, to find nodes that differ.

use cluster::NodeId;
use plan::LaunchPlan;
use serde::Deserialize;

use super::answer::{NodeAnswer, NodeFacts};
use super::gpus::Gpus;

/// The fields of `vidtui-train version --json` that the checks need.
#[derive(Deserialize)]
pub(super) struct Version {
    pub libtorch: String,
    pub cuda: bool,
}

impl Version {
    /// Returns the version of a node's trainer, unless the launch replaces that trainer.
    pub fn of(plan: &LaunchPlan, facts: &NodeFacts) -> Option<Self> {
        let version = facts.get("version").filter(|_| !is_replaced(plan, facts));
        version.and_then(|text| serde_json::from_str(text).ok())
    }
}

/// Whether the launch copies another trainer over that of a node.
pub(super) fn is_replaced(plan: &LaunchPlan, facts: &NodeFacts) -> bool {
    plan.push && facts.get("sha256") != Some(&plan.trainer.sha256)
}

/// The values that most nodes report.
pub(super) struct Majority<'a> {
    /// The seconds by which the clocks of most nodes are ahead of this machine's.
    pub ahead_s: f64,
    /// The most frequent version of libtorch, and the first node that has it.
    pub libtorch: Option<(String, &'a NodeId)>,
    /// The reason why ranks use GPUs, if they do. It applies to all nodes, because one rank on a CPU would slow down
    /// all others.
    gpus: Option<GpuReason<'a>>,
}

/// Why every node must have GPUs.
#[derive(Clone, Copy)]
enum GpuReason<'a> {
    /// The first node that has GPUs.
    Has(&'a NodeId),
    /// The recipe or the trainer requires them.
    Required(&'static str),
}

impl<'a> Majority<'a> {
    pub fn of(plan: &LaunchPlan, answers: &[(&'a NodeId, &'a NodeAnswer)]) -> Self {
        let versions: Vec<_> =
            answers.iter().filter_map(|(node, answer)| Some((*node, Version::of(plan, &answer.facts)?))).collect();
        let with_gpus: Vec<&NodeId> = if plan.is_command() {
            let has_gpus = |(node, answer): &(&'a NodeId, &NodeAnswer)| {
                Gpus::read(plan, &answer.facts).are_present().then_some(*node)
            };
            answers.iter().filter_map(has_gpus).collect()
        } else {
            versions.iter().filter(|(_, version)| version.cuda).map(|(node, _)| *node).collect()
        };
        // If no node has the trainer yet, the trainer of this machine decides.
        let finds_gpus = !with_gpus.is_empty() || (versions.is_empty() && plan.trainer.cuda);
        let count = |libtorch: &str| versions.iter().filter(|(_, version)| version.libtorch == libtorch).count();
        // Among equal counts, the first node's version: `max_by_key` returns the last.
        let most = versions.iter().rev().max_by_key(|(_, version)| count(&version.libtorch));
        Self {
            ahead_s: majority_offset(answers.iter().map(|(_, answer)| answer.ahead_s).collect()),
            libtorch: most.map(|(node, version)| (version.libtorch.clone(), *node)),
            gpus: plan.on_gpus(finds_gpus).then(|| match with_gpus.first() {
                Some(first) => GpuReason::Has(first),
                None => GpuReason::Required(plan.requires_gpus().unwrap_or("the trainer was built for GPUs")),
            }),
        }
    }

    /// Returns why a node must have GPUs, if it must.
    pub fn why_gpus(&self, node: &NodeId) -> Option<String> {
        self.gpus.map(|reason| match reason {
            GpuReason::Has(first) if first == node => "it has GPUs".into(),
            GpuReason::Has(first) => format!("{first} has GPUs"),
            GpuReason::Required(why) => why.into(),
        })
    }
}

/// Returns the median offset of the clocks, including that of this machine. For a single node, returns its own
/// offset, because its events are not compared with those of other nodes.
fn majority_offset(mut offsets: Vec<f64>) -> f64 {
    if let [only] = offsets[..] {
        return only;
    }
    offsets.push(0.0);
    offsets.sort_by(f64::total_cmp);
    offsets[offsets.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_compared_with_those_of_most_nodes() {
        assert_eq!(majority_offset(vec![]), 0.0);
        assert_eq!(majority_offset(vec![7.0]), 7.0);
        assert_eq!(majority_offset(vec![0.1, 7.0]), 0.1);
        assert_eq!(majority_offset(vec![7.0, 7.1, 7.2]), 7.1, "this machine's clock is the odd one");
        assert_eq!(majority_offset(vec![-7.0, 0.2, 0.1]), 0.1);
    }
}

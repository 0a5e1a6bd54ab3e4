//! Explains out-of-memory errors of libtorch: the training phase, the plan, and settings that need less memory.

use crate::memory::{self, Memory};
use crate::phase;
use cluster::NodeId;
use recipe::{MemoryFit, Recipe, Task};
use rundir::{ErrorCode, Failure, RunDir};
use serde_json::json;
use tch::Device;
use units::size;

/// The fix if memory is exhausted while a rank encodes or samples videos.
const LESS_WORK: &str = "use a GPU with more memory, or fewer frames or a smaller size";

/// The maximum number of proposals that a failure shows.
const PROPOSALS: usize = 3;
/// The number of parts of the memory plan, and of tensors, that a failure shows.
const LARGEST: usize = 3;

/// Returns the failure for an error of kind `OutOfMemory`, without a fix.
pub fn failure(error: &c10d::Error) -> Failure {
    let what = format!("out of memory in the phase '{}'", phase::current().name());
    Failure::new(ErrorCode::OutOfMemory, what, error.to_string(), "")
}

/// The rank that ran out of memory.
pub struct ExhaustedRank<'a> {
    pub run: &'a RunDir,
    /// The recipe, with the mesh of the attempt.
    pub recipe: &'a Recipe,
    pub attempt: u32,
    pub rank: usize,
    pub ranks_on_node: usize,
    pub device: Device,
    pub node: Option<NodeId>,
}

impl ExhaustedRank<'_> {
    /// Adds the memory that the rank has and needs to a failure of [`failure`], and settings that need less. Writes a snapshot of the
    /// memory to the folder of the node. A failure that has a fix stays unchanged. Only training has a memory plan, so that the failures
    /// of other tasks get only a fix.
    pub fn explain(&self, failure: Failure) -> Failure {
        if !failure.fix.is_empty() {
            return failure;
        }
        if self.recipe.task != Task::Train {
            return Failure { fix: LESS_WORK.into(), ..failure };
        }
        let plan = self.recipe.rank_memory();
        let limit = memory::limit(self.device, self.ranks_on_node);
        let used = Memory::of(self.device);
        let fits = self.fits(limit);
        let allocator = self.allocator();
        let snapshot = json!({
            "schema": 1,
            "phase": phase::current().name(),
            "error": failure.why,
            "limit_bytes": limit,
            "now_gib": used.now_gib,
            "peak_gib": used.peak_gib,
            "plan": plan,
            "plan_bytes": self.recipe.peak_memory(),
            "overhead": self.recipe.overhead(),
            "allocator": allocator,
            "fits": fits.as_ref().ok(),
        });
        let written =
            self.node.as_ref().map(|node| self.run.write_memory_snapshot(node, self.attempt, self.rank, &snapshot));
        if let Some(Err(error)) = written {
            rundir::log!("{error}");
        }
        let limit = limit.map_or(String::new(), |limit| format!(", of at most {}", size(limit)));
        let tensors = match largest_tensors(&allocator) {
            tensors if tensors.is_empty() => String::new(),
            tensors => format!("; its largest tensors take {}", tensors.join(", ")),
        };
        let why = format!(
            "{}; the rank used {:.1} GiB{limit}{tensors}; its plan is {} at the peak, most of it {}",
            failure.why,
            used.peak_gib,
            size(self.recipe.peak_memory()),
            self.recipe.largest_parts(LARGEST),
        );
        let fix = match fits {
            Ok(fits) => proposals(&fits),
            Err(fix) => fix,
        };
        Failure { why, fix, ..failure }
    }

    /// Returns settings that need less memory, or advice if there are none.
    fn fits(&self, limit: Option<u64>) -> Result<Vec<MemoryFit>, String> {
        let plan = self.recipe.peak_memory();
        // If the plan fits the limit, either the plan was too low or other processes used the memory.
        let goal = limit.filter(|limit| *limit < plan).unwrap_or(plan / 8 * 7);
        self.recipe.fit_memory(goal, PROPOSALS).map_err(|error| error.fix)
    }

    /// Returns the snapshot of libtorch's GPU allocator; null on the CPU, whose allocator keeps no record.
    fn allocator(&self) -> serde_json::Value {
        let Device::Cuda(gpu) = self.device else { return serde_json::Value::Null };
        let text = c10d::cuda::memory_snapshot(gpu).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }
}

/// Returns the sizes of the largest tensors in a snapshot of the allocator.
fn largest_tensors(allocator: &serde_json::Value) -> Vec<String> {
    let blocks = allocator.get("largest_tensors").and_then(serde_json::Value::as_array);
    blocks.into_iter().flatten().filter_map(serde_json::Value::as_u64).take(LARGEST).map(size).collect()
}

fn proposals(fits: &[MemoryFit]) -> String {
    let one = |fit: &MemoryFit| {
        let flags: String = fit.sets.iter().map(|set| format!(" --set {set}")).collect();
        format!("{} ({}, {:.2} × the time)", flags.trim_start(), size(fit.peak), fit.time)
    };
    let listed = fits.iter().map(one).collect::<Vec<_>>().join("; or ");
    format!("launch again with less memory, fastest first: {listed}; --init RUN continues from the weights of this run")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::support::recipe;

    #[test]
    fn the_largest_tensors_are_those_of_the_allocator() {
        let allocator = json!({ "segments": [], "largest_tensors": [3u64 << 30, 1u64 << 30, 1u64 << 20, 5] });
        assert_eq!(largest_tensors(&allocator), ["3.0 GiB", "1.0 GiB", "1.0 MiB"]);
        assert!(largest_tensors(&serde_json::Value::Null).is_empty());
    }

    #[test]
    fn every_task_gets_a_fix_and_a_failure_keeps_its_own() {
        let mut recipe = recipe([1, 1, 1], &[]);
        let run = RunDir::new("/no/such/folder");
        let explain = |recipe: &Recipe, fix: &str| {
            let (run, device) = (&run, Device::Cpu);
            ExhaustedRank { run, recipe, attempt: 1, rank: 0, ranks_on_node: 1, device, node: None }
                .explain(Failure::new(ErrorCode::OutOfMemory, "out of memory", "std::bad_alloc", fix))
        };
        assert_eq!(explain(&recipe, "use tiles").fix, "use tiles");
        let trained = explain(&recipe, "");
        assert!(trained.fix.contains("--set") && trained.why.starts_with("std::bad_alloc"), "{trained}");
        for task in [Task::Sample, Task::Encode] {
            recipe.task = task;
            assert_eq!(
                (explain(&recipe, "use tiles").fix, explain(&recipe, "").fix),
                ("use tiles".into(), LESS_WORK.into())
            );
        }
    }
}

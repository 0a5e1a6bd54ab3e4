//! Whether processes that are gone have given their GPU memory back.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::command::Command;
use crate::{RemoteError, Transport};

const SCRIPT: &str = include_str!("scripts/gpu_memory.sh");

/// How long a node may take; its script gives nvidia-smi less.
const SOON: Duration = Duration::from_secs(20);

/// What is known of the GPU memory of processes that were ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum GpuMemory {
    /// Nobody looked.
    #[default]
    Unasked,
    /// There is no nvidia-smi, so there are no GPUs.
    NoGpus,
    /// None of them is listed any more.
    Released,
    /// These are listed still, with their MiB where that is said.
    Held(Vec<(i32, Option<u64>)>),
    /// nvidia-smi does not answer; with what it said.
    Unknown(String),
}

impl GpuMemory {
    /// Says it to a person, as the end of a sentence about a node.
    pub fn in_words(&self) -> String {
        match self {
            Self::Unasked => String::new(),
            Self::NoGpus => "it has no GPUs (no nvidia-smi)".into(),
            Self::Released => "their GPU memory is released".into(),
            Self::Held(held) => {
                let one = |(pid, mib): &(i32, Option<u64>)| {
                    let size = mib.map_or(String::new(), |mib| format!("{} by ", plan::size(mib << 20)));
                    format!("{size}process {pid}")
                };
                format!("GPU memory is still held: {}", held.iter().map(one).collect::<Vec<_>>().join(", "))
            }
            Self::Unknown(said) => {
                format!("whether their GPU memory is released is not known: nvidia-smi fails: {said}")
            }
        }
    }
}

/// Asks a node which of these processes hold GPU memory.
///
/// # Errors
/// When the node does not answer.
pub(crate) fn look(pids: &BTreeSet<i32>, transport: &mut dyn Transport) -> Result<GpuMemory, RemoteError> {
    let command = Command::new("list who holds GPU memory", SCRIPT, SOON);
    let node = transport.node().clone();
    let text = transport.run(&command)?.text(&node, &command)?;
    read(&text, pids).ok_or_else(|| RemoteError::Odd {
        node,
        action: command.action,
        answer: text.chars().take(200).collect(),
    })
}

fn read(text: &str, pids: &BTreeSet<i32>) -> Option<GpuMemory> {
    let mut lines: Vec<&str> = text.lines().collect();
    (lines.pop()? == "end").then_some(())?;
    let mut held = Vec::new();
    for line in lines {
        match line.splitn(3, ' ').collect::<Vec<_>>()[..] {
            ["none"] => return Some(GpuMemory::NoGpus),
            ["failed", status, said] => {
                let said = said.trim();
                let silent = matches!(status, "124" | "137");
                return Some(GpuMemory::Unknown(if silent { "it does not answer".into() } else { said.into() }));
            }
            ["held", pid, mib] => held.push((pid.parse().ok()?, mib.trim().parse().ok())),
            _ => return None,
        }
    }
    held.retain(|(pid, _)| pids.contains(pid));
    Some(if held.is_empty() { GpuMemory::Released } else { GpuMemory::Held(held) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_of_the_processes_in_question_counts() {
        let ours = BTreeSet::from([4101, 4102]);
        let answers = [
            "none\nend\n",
            "end\n",
            "held 77 2048\nend\n",
            "held 77 2048\nheld 4102 18432\nheld 4101 [N/A]\nend\n",
            "failed 124 \nend\n",
            "failed 9 NVIDIA-SMI has failed\nend\n",
        ];
        let words: Vec<String> = answers.iter().map(|text| read(text, &ours).unwrap().in_words()).collect();
        assert_eq!(
            words,
            [
                "it has no GPUs (no nvidia-smi)",
                "their GPU memory is released",
                "their GPU memory is released",
                "GPU memory is still held: 18.0 GiB by process 4102, process 4101",
                "whether their GPU memory is released is not known: nvidia-smi fails: it does not answer",
                "whether their GPU memory is released is not known: nvidia-smi fails: NVIDIA-SMI has failed",
            ]
        );
        assert_eq!(read("held 4101 1\n", &ours), None, "it was cut off");
    }
}

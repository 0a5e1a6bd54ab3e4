//! Whether processes that are gone have given their GPU memory back.

use std::collections::BTreeSet;
use std::time::Duration;

use cluster::nvidia_smi::{COMPUTE_APPS, FORMAT, SmiTrouble, read_compute_apps};
use units::{counted, size};

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
    /// There are no GPUs, or no driver through which memory of them could be held; with how that is known.
    NoGpus(String),
    /// None of them is listed any more.
    Released,
    /// None of them is, and of so many that are, whose they are is hidden. A user's own are not, but for containers and MIG.
    Hidden(usize),
    /// These are listed still, with their MiB where that is said.
    Held(Vec<(u32, Option<u64>)>),
    /// Nobody can tell, and why.
    Unknown(String),
}

impl GpuMemory {
    /// Says it to a person, as the end of a sentence about a node.
    pub fn in_words(&self) -> String {
        match self {
            Self::Unasked => String::new(),
            Self::NoGpus(said) => format!("it has no GPUs ({said})"),
            Self::Released => "their GPU memory is released".into(),
            Self::Hidden(others) => {
                format!(
                    "their GPU memory is released, unless it is that of {} which nvidia-smi hides",
                    counted(*others, "process")
                )
            }
            Self::Held(held) => {
                let one = |(pid, mib): &(u32, Option<u64>)| {
                    let size = mib.map_or(String::new(), |mib| format!("{} by ", size(mib << 20)));
                    format!("{size}process {pid}")
                };
                format!("GPU memory is still held: {}", held.iter().map(one).collect::<Vec<_>>().join(", "))
            }
            Self::Unknown(why) => format!("whether their GPU memory was given back cannot be told: {why}"),
        }
    }
}

/// Asks a node which of these processes hold GPU memory.
///
/// # Errors
/// When the node does not answer.
pub(crate) fn look(pids: &BTreeSet<i32>, transport: &mut dyn Transport) -> Result<GpuMemory, RemoteError> {
    let script = format!("apps='{COMPUTE_APPS}' format='{FORMAT}'\n{SCRIPT}");
    let command = Command::new("list who holds GPU memory", script, SOON);
    let node = transport.node().clone();
    let text = transport.run(&command)?.text(&node, &command)?;
    read(&text, pids).ok_or_else(|| RemoteError::UnexpectedReply {
        node,
        action: command.action,
        answer: text.chars().take(200).collect(),
    })
}

fn read(text: &str, pids: &BTreeSet<i32>) -> Option<GpuMemory> {
    let (answer, status) = text.strip_suffix("\nend\n")?.rsplit_once('\n')?;
    let apps = read_compute_apps(answer, Some(status.parse().ok()?));
    let known = apps.rows.iter().filter_map(|app| Some((app.process.pid.value()?, app.process.mem_used_mib.value())));
    let held: Vec<(u32, Option<u64>)> =
        known.clone().filter(|(pid, _)| i32::try_from(*pid).is_ok_and(|pid| pids.contains(&pid))).collect();
    let hidden = apps.rows.len() - known.count();
    Some(match apps.troubles.first() {
        _ if !held.is_empty() => GpuMemory::Held(held),
        Some(trouble @ (SmiTrouble::NotFound | SmiTrouble::NoDriver | SmiTrouble::NoDevices)) => {
            GpuMemory::NoGpus(trouble.to_string())
        }
        Some(trouble) => GpuMemory::Unknown(trouble.to_string()),
        None if hidden > 0 => GpuMemory::Hidden(hidden),
        None => GpuMemory::Released,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_only_where_nvidia_smi_says_so() {
        let ours = BTreeSet::from([4101, 4102]);
        let answers = [
            "timeout: failed to run command 'nvidia-smi': No such file or directory\n\n127\nend\n",
            "\n0\nend\n",
            "GPU-a, 77, python, 2048\n\n0\nend\n",
            "GPU-a, 77, python, 2048\nGPU-a, 4102, python, 18432\nGPU-b, 4101, python, [N/A]\n\n0\nend\n",
            "\n124\nend\n",
            "Failed to initialize NVML: Unknown Error\n\n255\nend\n",
            "GPU-a, 77, python, 2048\nGPU-a, [Insufficient Permissions], [Insufficient Permissions], [N/A]\n\n0\nend\n",
        ];
        let words: Vec<String> = answers.iter().map(|text| read(text, &ours).unwrap().in_words()).collect();
        let unknown = "whether their GPU memory was given back cannot be told";
        assert_eq!(
            words,
            [
                "it has no GPUs (nvidia-smi is not installed)".into(),
                "their GPU memory is released".into(),
                "their GPU memory is released".into(),
                "GPU memory is still held: 18.0 GiB by process 4102, process 4101".into(),
                format!("{unknown}: nvidia-smi hangs"),
                format!("{unknown}: NVML does not start: Unknown Error"),
                "their GPU memory is released, unless it is that of 1 process which nvidia-smi hides".into(),
            ]
        );
        assert_eq!(read("GPU-a, 4101, python, 1\n", &ours), None, "it was cut off");
    }
}

//! Checks whether processes that ended have released their GPU memory.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use cluster::nvidia_smi::{COMPUTE_APPS, FORMAT, SmiError, read_compute_apps};
use units::{counted, size};

use crate::command::Command;
use crate::{RemoteError, Transport};

const SCRIPT: &str = include_str!("scripts/gpu_memory.sh");

/// Time limit for the query. The script has a shorter limit for nvidia-smi.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The interval of queries while the driver releases memory.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The state of the GPU memory of processes that ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum GpuMemory {
    /// The memory was not checked.
    #[default]
    NotChecked,
    /// There are no GPUs, or no driver through which processes could hold memory. The text is the evidence.
    NoGpus(String),
    /// nvidia-smi lists none of the processes.
    Released,
    /// nvidia-smi lists none of the processes, but hides this many. It hides the user's own processes only in
    /// containers and with MIG.
    Hidden(usize),
    /// nvidia-smi still lists these processes, with their MiB if it reports them.
    Held(Vec<(u32, Option<u64>)>),
    /// The state is unknown, with the reason.
    Unknown(String),
}

impl GpuMemory {
    /// Describes the state, as the end of a sentence about a node.
    pub fn in_words(&self) -> String {
        match self {
            Self::NotChecked => String::new(),
            Self::NoGpus(why) => format!("no GPUs ({why})"),
            Self::Released => "GPU memory released".into(),
            Self::Hidden(others) => {
                format!(
                    "GPU memory released, as far as nvidia-smi shows: it hides {} from this user",
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
            Self::Unknown(why) => format!("cannot verify that GPU memory was released: {why}"),
        }
    }
}

/// Waits until processes have released their GPU memory, or the timeout has passed. The driver releases it with a delay.
pub(crate) fn wait_until_released(pids: &BTreeSet<i32>, transport: &mut dyn Transport, timeout: Duration) -> GpuMemory {
    let deadline = Instant::now() + timeout;
    loop {
        let memory = query(pids, transport).unwrap_or_else(|error| GpuMemory::Unknown(error.to_string()));
        if !matches!(memory, GpuMemory::Held(_)) || Instant::now() >= deadline {
            return memory;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Queries which of these processes hold GPU memory.
fn query(pids: &BTreeSet<i32>, transport: &mut dyn Transport) -> Result<GpuMemory, RemoteError> {
    let script = format!("apps='{COMPUTE_APPS}' format='{FORMAT}'\n{SCRIPT}");
    let command = Command::new("list the processes that hold GPU memory", script, TIMEOUT);
    let node = transport.node().clone();
    let text = transport.run(&command)?.text(&node, &command)?;
    read(&text, pids).ok_or_else(|| RemoteError::unexpected(&node, command.action, &text))
}

fn read(text: &str, pids: &BTreeSet<i32>) -> Option<GpuMemory> {
    let (answer, status) = text.strip_suffix("\nend\n")?.rsplit_once('\n')?;
    let apps = read_compute_apps(answer, Some(status.parse().ok()?));
    let known = apps.rows.iter().filter_map(|app| Some((app.process.pid.value()?, app.process.mem_used_mib.value())));
    let held: Vec<(u32, Option<u64>)> =
        known.clone().filter(|(pid, _)| i32::try_from(*pid).is_ok_and(|pid| pids.contains(&pid))).collect();
    let hidden = apps.rows.len() - known.count();
    Some(match apps.failure() {
        _ if !held.is_empty() => GpuMemory::Held(held),
        Some(error @ (SmiError::NotFound | SmiError::NoDriver | SmiError::NoDevices)) => {
            GpuMemory::NoGpus(error.to_string())
        }
        Some(error) => GpuMemory::Unknown(error.to_string()),
        None if hidden > 0 => GpuMemory::Hidden(hidden),
        None => GpuMemory::Released,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_counts_as_released_only_if_nvidia_smi_lists_none_of_the_processes() {
        let ours = BTreeSet::from([4101, 4102]);
        let read = |text| read(text, &ours);
        let missing = "timeout: failed to run command 'nvidia-smi': No such file or directory\n\n127\nend\n";
        assert!(matches!(read(missing), Some(GpuMemory::NoGpus(_))));
        assert_eq!(read("\n0\nend\n"), Some(GpuMemory::Released));
        assert_eq!(read("GPU-a, 77, python, 2048\n\n0\nend\n"), Some(GpuMemory::Released));
        let held = "GPU-a, 77, python, 2048\nGPU-a, 4102, python, 18432\nGPU-b, 4101, python, [N/A]\n\n0\nend\n";
        assert_eq!(read(held), Some(GpuMemory::Held(vec![(4102, Some(18432)), (4101, None)])));
        for unknown in ["\n124\nend\n", "Failed to initialize NVML: Unknown Error\n\n255\nend\n"] {
            assert!(matches!(read(unknown), Some(GpuMemory::Unknown(_))), "{unknown}");
        }
        for warnings in [
            "WARNING: infoROM is corrupted at gpu 0000:19:00.0\n\n14\nend\n",
            "ERROR: ld.so: object 'a.so'\n\n0\nend\n",
        ] {
            assert_eq!(read(warnings), Some(GpuMemory::Released), "{warnings}");
        }
        let hidden =
            "GPU-a, 77, python, 2048\nGPU-a, [Insufficient Permissions], [Insufficient Permissions], [N/A]\n\n0\nend\n";
        assert_eq!(read(hidden), Some(GpuMemory::Hidden(1)));
        assert_eq!(read("GPU-a, 4101, python, 1\n"), None, "the answer was cut off");
    }

    #[test]
    fn a_missing_nvidia_smi_is_missing_although_a_folder_of_the_path_cannot_be_searched() {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: only root can make a folder that another user cannot search");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = format!("{}:/usr/bin:/bin", folder.path().display());
        let mut script = std::process::Command::new("setpriv");
        script.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", SCRIPT]).env("PATH", path);
        // The test is about a node without GPUs.
        if ["/usr/bin/nvidia-smi", "/bin/nvidia-smi"].iter().any(|program| std::path::Path::new(program).exists()) {
            println!("skipped: this machine has nvidia-smi");
            return;
        }
        let printed = script.output().unwrap();
        let text = String::from_utf8(printed.stdout).unwrap();
        assert!(matches!(read(&text, &BTreeSet::from([1])), Some(GpuMemory::NoGpus(_))), "{text}");
    }

    #[test]
    fn each_state_of_gpu_memory_is_described() {
        let states = [
            GpuMemory::NoGpus("nvidia-smi is not installed".into()),
            GpuMemory::Released,
            GpuMemory::Hidden(1),
            GpuMemory::Held(vec![(4102, Some(18432)), (4101, None)]),
            GpuMemory::Unknown("nvidia-smi does not answer".into()),
        ];
        insta::assert_snapshot!(states.each_ref().map(GpuMemory::in_words).join("\n"));
    }
}

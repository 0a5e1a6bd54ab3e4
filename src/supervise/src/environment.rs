//! Records the software, CPUs and GPUs of the node in its `NNNN.environment.toml`.
//!
//! The file is written before the ranks start, and once more when nvidia-smi has listed the GPUs, because nvidia-smi may take
//! seconds or hang.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::thread;

use cluster::{GpuSample, NodeId};
use rundir::{GpuModel, NodeEnvironment, RunDir, SCHEMA, log};

use crate::job::Job;

/// The recorded environment of a node.
pub(crate) struct EnvironmentFile {
    run: RunDir,
    node: NodeId,
    attempt: u32,
    environment: NodeEnvironment,
}

impl EnvironmentFile {
    /// Records the environment without GPUs.
    pub fn start(job: &Job) -> Self {
        let (run, node, attempt) = (job.run.clone(), job.node.clone(), job.attempt.number);
        let file = Self { run, node, attempt, environment: read() };
        file.write();
        file
    }

    /// Records the GPUs, unless as many were recorded already.
    pub fn see(&mut self, gpus: &[GpuSample]) {
        if gpus.len() > self.environment.gpus.len() {
            let model = |gpu: &GpuSample| GpuModel { name: gpu.name.clone(), mem_total_mib: gpu.mem_total_mib.value() };
            self.environment.gpus = gpus.iter().map(model).collect();
            self.write();
        }
    }

    /// Writes the file. An error is only logged, because a missing record must not end the run.
    fn write(&self) {
        if let Err(error) = self.run.write_environment(&self.node, self.attempt, &self.environment) {
            log!("{error}");
        }
    }
}

/// Reads what the system shows without other programs.
fn read() -> NodeEnvironment {
    let mib = |field: String| Some(field.strip_suffix(" kB")?.trim().parse::<u64>().ok()? / 1024);
    NodeEnvironment {
        schema: SCHEMA,
        supervisor: env!("CARGO_PKG_VERSION").into(),
        os: field("/etc/os-release", "PRETTY_NAME", '=').map(|name| name.trim_matches('"').to_owned()),
        kernel: line("/proc/sys/kernel/osrelease"),
        cpu: field("/proc/cpuinfo", "model name", ':'),
        cpus: thread::available_parallelism().ok().map(usize::from),
        mem_total_mib: field("/proc/meminfo", "MemTotal", ':').and_then(mib),
        driver: line("/sys/module/nvidia/version"),
        gpus: Vec::new(),
    }
}

/// Returns the text of a file of one line.
fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Returns the first value with a name in a file of names and values.
fn field(path: &str, name: &str, separator: char) -> Option<String> {
    let value = |line: String| {
        let (key, value) = line.split_once(separator)?;
        (key.trim() == name).then(|| value.trim().to_owned())
    };
    // `/proc/cpuinfo` of many CPUs takes long to read as a whole.
    BufReader::new(File::open(path).ok()?).lines().map_while(Result::ok).find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::job;

    #[test]
    fn the_system_of_this_machine_is_read() {
        let environment = read();
        assert!(environment.kernel.is_some_and(|kernel| !kernel.is_empty() && !kernel.contains('\n')));
        assert!(environment.os.is_none_or(|os| !os.contains('"')));
        assert!(environment.cpus > Some(0) && environment.mem_total_mib > Some(100));
    }

    #[test]
    fn gpus_are_recorded_when_nvidia_smi_lists_them_and_a_later_loss_does_not_remove_them() {
        let (_keep, job) = job();
        let recorded = || job.run.read_environment(&job.node, job.attempt.number).unwrap().unwrap();
        let mut file = EnvironmentFile::start(&job);
        assert_eq!(recorded(), NodeEnvironment { gpus: Vec::new(), ..read() });
        let gpu = |index| {
            let text = format!(r#"{{"t": 1.0, "index": {index}, "name": "H100", "mem_total_mib": 81559}}"#);
            serde_json::from_str::<GpuSample>(&text).unwrap()
        };
        let model = GpuModel { name: Some("H100".into()), mem_total_mib: Some(81_559) };
        for seen in [vec![], vec![gpu(0), gpu(1)], vec![gpu(1)]] {
            file.see(&seen);
        }
        assert_eq!(recorded().gpus, [model.clone(), model]);
    }
}

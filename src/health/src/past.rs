//! The state kept for a node over the whole attempt: when each problem began.

use std::collections::BTreeMap;

use cluster::{Absent, GpuSample, Xid};
use rundir::NodeSample;

/// The problems of a node over an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NodePast {
    /// The time of the newest sample.
    sampled_s: f64,
    /// Errors of nvidia-smi, with the time when each began.
    pub smi_errors: BTreeMap<String, f64>,
    /// Xid errors in the kernel log, with the time of the first occurrence.
    pub xids: BTreeMap<Xid, f64>,
    /// The GPUs, by index.
    pub gpus: BTreeMap<u32, GpuPast>,
}

/// The problems of a GPU.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GpuPast {
    /// When nvidia-smi last listed the GPU.
    pub listed_s: f64,
    /// The number of samples since then that list other GPUs but not this one.
    pub missed: u32,
    /// Why the GPU does not respond, and since when. `None`: it responds.
    pub lost: Option<(Absent, f64)>,
    /// Uncorrected memory errors.
    pub ecc: Option<Ecc>,
}

/// Uncorrected memory errors since the driver was loaded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ecc {
    /// The first count and its time.
    pub before: (u64, f64),
    /// The newest count.
    pub count: u64,
    /// When the count first rose; `None`: it has not.
    pub rose_s: Option<f64>,
}

impl NodePast {
    /// Adds a sample; `gpus` are the samples of the GPUs that the run uses.
    pub fn see(&mut self, sample: &NodeSample, gpus: &[GpuSample]) {
        self.sampled_s = sample.t;
        let now = |known: &BTreeMap<String, f64>, error: &String| {
            (error.clone(), known.get(error).copied().unwrap_or(sample.t))
        };
        self.smi_errors = sample.smi_errors.iter().map(|error| now(&self.smi_errors, error)).collect();
        for at in &sample.xids {
            self.xids.retain(|earlier, _| *earlier == at.xid || !at.xid.ends(earlier));
            self.xids.entry(at.xid.clone()).or_insert(at.t);
        }
        if sample.gpus.is_empty() {
            return;
        }
        for past in self.gpus.values_mut() {
            past.missed += 1;
        }
        for gpu in gpus {
            let new = GpuPast { listed_s: gpu.t, missed: 0, lost: None, ecc: None };
            self.gpus.entry(gpu.index).or_insert(new).see(gpu);
        }
    }

    /// Returns the time of the newest sample.
    pub fn sampled_s(&self) -> f64 {
        self.sampled_s
    }
}

impl GpuPast {
    fn see(&mut self, gpu: &GpuSample) {
        (self.listed_s, self.missed) = (gpu.t, 0);
        let lost = gpu.fault().cloned();
        let since_s = self.lost.as_ref().map_or(gpu.t, |(_, since_s)| *since_s);
        self.lost = lost.map(|why| (why, since_s));
        if let Some(count) = gpu.ecc_uncorrected.value() {
            let ecc = self.ecc.get_or_insert(Ecc { before: (count, gpu.t), count, rose_s: None });
            if count < ecc.before.0 {
                // The counter was reset.
                *ecc = Ecc { before: (count, gpu.t), count, rose_s: None };
            } else if count > ecc.before.0 {
                ecc.rose_s.get_or_insert(gpu.t);
            }
            ecc.count = count;
        }
    }
}

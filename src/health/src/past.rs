//! What is remembered of a node for longer than its samples: since when something is wrong.

use std::collections::BTreeMap;

use cluster::{Absent, GpuSample, Xid};
use rundir::NodeSample;

/// What a node's samples have told over an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NodePast {
    /// When it was sampled last.
    sampled_s: f64,
    /// What keeps nvidia-smi from answering, in words, with since when.
    pub troubles: BTreeMap<String, f64>,
    /// Errors of its GPUs in the kernel's log, with when they happened first.
    pub xids: BTreeMap<Xid, f64>,
    /// Its GPUs, by their numbers.
    pub gpus: BTreeMap<u32, GpuPast>,
}

/// What a GPU's samples have told.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GpuPast {
    /// When it was listed last.
    pub listed_s: f64,
    /// Samples of other GPUs that came since then without it.
    pub missed: u32,
    /// Why it does not answer, with since when.
    pub lost: Option<(Absent, f64)>,
    /// Memory errors that could not be corrected.
    pub ecc: Option<Ecc>,
}

/// Memory errors that could not be corrected, counted since the driver was loaded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ecc {
    /// As many there were when they were counted first, and when that was.
    pub before: (u64, f64),
    /// As many there are.
    pub count: u64,
    /// Since when there are more.
    pub rose_s: Option<f64>,
}

impl NodePast {
    /// Takes in the next sample, `gpus` being those of it that matter.
    pub fn see(&mut self, sample: &NodeSample, gpus: &[GpuSample]) {
        self.sampled_s = sample.t;
        let now = |known: &BTreeMap<String, f64>, trouble: &String| {
            (trouble.clone(), known.get(trouble).copied().unwrap_or(sample.t))
        };
        self.troubles = sample.troubles.iter().map(|trouble| now(&self.troubles, trouble)).collect();
        for at in &sample.xids {
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

    /// When the newest sample was taken.
    pub fn sampled_s(&self) -> f64 {
        self.sampled_s
    }
}

impl GpuPast {
    fn see(&mut self, gpu: &GpuSample) {
        (self.listed_s, self.missed) = (gpu.t, 0);
        let readings = [gpu.power_w.absent(), gpu.util_pct.absent(), gpu.mem_used_mib.absent(), gpu.temp_c.absent()];
        let lost = [Absent::GpuIsLost, Absent::RequiresReset].into_iter().find(|why| readings.contains(&Some(why)));
        let since_s = self.lost.as_ref().map_or(gpu.t, |(_, since_s)| *since_s);
        self.lost = lost.map(|why| (why, since_s));
        if let Some(count) = gpu.ecc_uncorrected.value() {
            let ecc = self.ecc.get_or_insert(Ecc { before: (count, gpu.t), count, rose_s: None });
            if count < ecc.before.0 {
                // It was reset.
                *ecc = Ecc { before: (count, gpu.t), count, rose_s: None };
            } else if count > ecc.before.0 {
                ecc.rose_s.get_or_insert(gpu.t);
            }
            ecc.count = count;
        }
    }
}

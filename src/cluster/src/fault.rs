//! What is wrong with a node, seen at one moment.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::gpu::{Absent, GpuSample};
use crate::nvidia_smi::SmiTrouble;
use crate::probe::Frame;

/// Something that a healthy node does not show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The GPU's number; none when it is about the whole node.
    pub gpu: Option<u32>,
    /// How bad it is.
    pub weight: FaultWeight,
    /// What, in a few words.
    pub what: String,
    /// What to do.
    pub fix: String,
}

/// How bad a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultWeight {
    /// Training goes on, slower or at a risk.
    Warn,
    /// A GPU, or all of them, cannot be used.
    Bad,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gpu {
            Some(gpu) => write!(f, "GPU {gpu}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// Lists what is wrong in a frame, the worst first.
///
/// A node without nvidia-smi has no GPUs, which is no fault; nor is a power that cannot be told for a moment.
pub fn faults(frame: &Frame) -> Vec<Fault> {
    let mut faults: Vec<Fault> = frame.troubles.iter().filter_map(of_trouble).collect();
    faults.extend(frame.gpus.iter().flat_map(of_gpu));
    faults.sort_by_key(|fault| std::cmp::Reverse(fault.weight));
    faults
}

fn of_trouble(trouble: &SmiTrouble) -> Option<Fault> {
    use SmiTrouble::*;
    let weight = match trouble {
        NotFound | UnknownField(_) | HalfRow(_) => return None,
        Said(_) => FaultWeight::Warn,
        _ => FaultWeight::Bad,
    };
    let gpu = match trouble {
        GpuLost { gpu, .. } => gpu.index,
        _ => None,
    };
    // The number stands before it.
    let what = match trouble {
        GpuLost { gpu, why } if gpu.index.is_some() => format!("does not answer: {why}"),
        other => other.to_string(),
    };
    Some(Fault { gpu, weight, what, fix: trouble.fix().into() })
}

fn of_gpu(gpu: &GpuSample) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut add = |weight, what: String, fix: &str| {
        faults.push(Fault { gpu: Some(gpu.index), weight, what, fix: fix.into() });
    };
    let absent = [
        gpu.mem_used_mib.absent(),
        gpu.temp_c.absent(),
        gpu.util_pct.absent(),
        gpu.sm_clock_mhz.absent(),
        gpu.power_w.absent(),
    ];
    let mut broken = absent.into_iter().flatten().filter(|why| why.is_fault());
    // `ERR!` for power alone is gone the next time; for anything else the GPU is not well.
    let only_power = gpu.power_w.absent().is_some_and(|why| *why == Absent::Error) && broken.clone().count() == 1;
    if let Some(why) = broken.next().filter(|_| !only_power) {
        let fix = match why {
            Absent::RequiresReset => "end what runs on it, then `nvidia-smi --gpu-reset`, or reboot the node",
            _ => "take the node out of the run and reboot it; see `dmesg` for Xid errors",
        };
        add(FaultWeight::Bad, why.to_string(), fix);
    }
    if let Some(errors) = gpu.ecc_uncorrected.value().filter(|errors| *errors > 0) {
        let errors = format!("{errors} uncorrected memory error{}", if errors == 1 { "" } else { "s" });
        add(FaultWeight::Bad, errors, "results may be wrong: take it out of the run and reset it");
    }
    if let Some(reasons) = gpu.throttle_reasons.value().filter(|reasons| reasons.is_worrying()) {
        add(FaultWeight::Warn, format!("throttled: {reasons}"), "look at the node's cooling and power supply");
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvidia_smi::GpuQuery;
    use crate::probe::Frames;

    fn said(rows: &str, status: i32) -> Vec<String> {
        let text = format!("#frame 1 5\n#gpus\n{rows}\n#exit {status}\n#end 1\n");
        let frame = Frames::new(GpuQuery::default()).push(text.as_bytes()).remove(0);
        faults(&frame).iter().map(ToString::to_string).collect()
    }

    fn row(power: &str, util: &str, ecc: &str, throttle: &str) -> String {
        format!(
            "0, GPU-a, H100, 00000000:19:00.0, {power}, 700.00, 70210, 81559, {util}, 59, 1980, {ecc}, {throttle}, Disabled\n"
        )
    }

    #[test]
    fn busy_idle_and_capped_gpus_have_no_faults_nor_has_a_node_without_any() {
        assert_eq!(said(&row("631.95", "100", "0", "0x4"), 0), [""; 0]);
        assert_eq!(said(&row("70.1", "0", "[N/A]", "0x1"), 0), [""; 0]);
        assert_eq!(said("", 127), [""; 0]);
    }

    #[test]
    fn a_power_that_cannot_be_told_for_a_moment_is_no_fault_and_any_other_number_is() {
        assert_eq!(said(&row("ERR!", "100", "0", "0x0"), 0), [""; 0]);
        assert_eq!(said(&row("ERR!", "ERR!", "0", "0x0"), 0), ["GPU 0: ERR!"]);
        assert_eq!(
            said(&row("[GPU is lost]", "[GPU is lost]", "[GPU is lost]", "[GPU is lost]"), 0),
            ["GPU 0: GPU is lost"]
        );
    }

    #[test]
    fn the_worst_comes_first() {
        let lost = "Unable to determine the device handle for GPU1: 0000:0A:00.0: GPU is lost.  Reboot the system\n";
        let rows = row("300", "100", "2", "0x48") + lost;
        assert_eq!(
            said(&rows, 15),
            [
                "GPU 1: does not answer: GPU is lost",
                "GPU 0: 2 uncorrected memory errors",
                "GPU 0: throttled: hardware slowdown, thermal, by hardware",
            ]
        );
    }
}

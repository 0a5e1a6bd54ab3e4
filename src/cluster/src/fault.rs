//! Finds the faults of a node and its GPUs in one [`Frame`], a sample of the node probe.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::gpu::{Absent, GpuSample};
use crate::nvidia_smi::{FALLEN_OFF, GpuName, SmiError};
use crate::probe::Frame;
use crate::xid::{Xid, XidAction};

/// Seconds for which an Xid error (a driver error in the kernel log) is shown if a program caused it and the GPU is healthy.
const HOUR_S: f64 = 3600.0;
/// Seconds for which an Xid error that needs a reset is shown: longer than a night. The fault ends after this time, not at the
/// next boot: the kernel log does not record a reset, so the GPU may be healthy again without a boot.
const DAY_S: f64 = 24.0 * HOUR_S;

/// A fault of a node or GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The index of the GPU; `None` if the fault concerns the whole node, or if the GPU is unknown.
    pub gpu: Option<u32>,
    /// The severity.
    #[serde(rename = "weight")]
    pub severity: FaultSeverity,
    /// The problem, in a few words.
    pub what: String,
    /// The hint: how the user can repair the node.
    pub fix: String,
}

/// The severity of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultSeverity {
    /// Training continues, slower or at risk.
    Warn,
    /// A GPU or all GPUs of the node cannot be used, or their results may be wrong.
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

/// Returns the faults of a frame, most severe first.
///
/// A node without nvidia-smi has no GPUs, which is not a fault. A reading that the driver cannot read is not a fault either: it
/// is unknown at that moment.
pub fn faults(frame: &Frame) -> Vec<Fault> {
    let mut faults: Vec<Fault> = frame.smi_errors.iter().filter_map(|error| of_smi_error(error, frame)).collect();
    faults.extend(frame.gpus.iter().flat_map(of_gpu));
    faults.extend(of_xids(frame));
    faults.sort_by_key(|fault| std::cmp::Reverse(fault.severity));
    faults
}

fn of_smi_error(error: &SmiError, frame: &Frame) -> Option<Fault> {
    use SmiError::*;
    let severity = match error {
        NotFound | UnknownField(_) | HalfRow(_) => return None,
        Reported(_) | Warning(_) | InfoRomCorrupted { .. } => FaultSeverity::Warn,
        // GPUs that nvidia-smi lists can be used.
        Failed { status: FALLEN_OFF } => FaultSeverity::Bad,
        Failed { .. } | NotPermitted if !frame.gpus.is_empty() => FaultSeverity::Warn,
        _ => FaultSeverity::Bad,
    };
    let index = |name: &GpuName| {
        let is_named = |gpu: &&GpuSample| gpu.bus_id.as_ref().is_some_and(|bus_id| name.is_at(bus_id));
        name.index.or_else(|| frame.gpus.iter().find(is_named).map(|gpu| gpu.index))
    };
    let gpu = match error {
        GpuLost { gpu, .. } | InfoRomCorrupted { gpu } => index(gpu),
        _ => None,
    };
    // `Fault` shows the index of the GPU before the text.
    let what = match error {
        GpuLost { why, .. } if gpu.is_some() => format!("does not respond: {why}"),
        InfoRomCorrupted { .. } if gpu.is_some() => "its infoROM is corrupted".into(),
        other => other.to_string(),
    };
    Some(Fault { gpu, severity, what, fix: error.fix().into() })
}

/// Returns the faults from recent Xid errors in the kernel log, without duplicates.
fn of_xids(frame: &Frame) -> Vec<Fault> {
    let recent = frame.xids.iter().filter_map(|at| {
        let (severity, shown_s) = match at.xid.action() {
            XidAction::Note => return None,
            XidAction::Restart => (FaultSeverity::Warn, HOUR_S),
            action if action.is_fault() => (FaultSeverity::Bad, DAY_S),
            _ => (FaultSeverity::Warn, DAY_S),
        };
        (frame.t - at.t < shown_s).then_some((&at.xid, severity))
    });
    let fault = |(xid, severity): (&Xid, FaultSeverity)| {
        let gpu = frame.gpus.iter().find(|gpu| gpu.bus_id.as_ref().is_some_and(|place| xid.is_at(place)));
        Fault { gpu: gpu.map(|gpu| gpu.index), severity, what: xid.to_string(), fix: xid.action().in_words().into() }
    };
    recent.collect::<BTreeSet<_>>().into_iter().map(fault).collect()
}

fn of_gpu(gpu: &GpuSample) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut add = |severity, what: String, fix: &str| {
        faults.push(Fault { gpu: Some(gpu.index), severity, what, fix: fix.into() });
    };
    if let Some(why) = gpu.fault() {
        let fix = match why {
            Absent::RequiresReset => "end its processes and run `nvidia-smi --gpu-reset`, or reboot the node",
            _ => "resume without the node (--exclude) and reboot it; check `dmesg` for Xid errors",
        };
        add(FaultSeverity::Bad, why.to_string(), fix);
    } else if let Some(why) = gpu.unreadable() {
        let fix = "if this repeats, check `dmesg` on the node for Xid errors";
        add(FaultSeverity::Warn, format!("its readings are unknown: {why}"), fix);
    }
    if let Some(errors) = gpu.ecc_uncorrected.value().filter(|errors| *errors > 0) {
        let errors = format!("{errors} uncorrected memory error{}", if errors == 1 { "" } else { "s" });
        add(FaultSeverity::Bad, errors, "results may be wrong: resume without the node (--exclude) and reset the GPU");
    }
    if let Some(reasons) = gpu.throttle_reasons.value().filter(|reasons| reasons.is_worrying()) {
        add(FaultSeverity::Warn, format!("throttled: {reasons}"), "check cooling and power supply of the node");
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvidia_smi::GpuQuery;
    use crate::probe::Frames;

    fn frame(rows: &str, status: i32) -> Frame {
        let text = format!("#frame 1 5\n#gpus\n{rows}\n#exit {status}\n#end 1\n");
        Frames::new(GpuQuery::default()).push(text.as_bytes()).remove(0)
    }

    fn shown(rows: &str, status: i32) -> Vec<String> {
        faults(&frame(rows, status)).iter().map(ToString::to_string).collect()
    }

    fn row(power: &str, util: &str, ecc: &str, throttle: &str) -> String {
        format!(
            "0, GPU-a, H100, 00000000:19:00.0, {power}, 700.00, 70210, 81559, {util}, 59, 1980, {ecc}, {throttle}, Disabled, [N/A], 5, 16\n"
        )
    }

    #[test]
    fn busy_idle_and_capped_gpus_and_nodes_without_gpus_have_no_faults() {
        assert_eq!(shown(&row("631.95", "100", "0", "0x4"), 0), [""; 0]);
        assert_eq!(shown(&row("70.1", "0", "[N/A]", "0x1"), 0), [""; 0]);
        assert_eq!(shown("", 127), [""; 0]);
    }

    #[test]
    fn a_gpu_is_faulty_on_evidence_alone_and_a_reading_that_fails_is_unknown() {
        for unread in
            ["ERR!", "[Unknown Error]", "[N/A]", "[Not Supported]", "[Requires root]", "[Insufficient Permissions]"]
        {
            assert_eq!(shown(&row(unread, "100", "0", "0x0"), 0), [""; 0], "{unread}");
            assert_eq!(shown(&row("631.95", unread, unread, unread), 0), [""; 0], "{unread}");
        }
        assert_eq!(shown(&row("ERR!", "ERR!", "0", "0x0"), 0), [""; 0], "the temperature is known");
        let table = "0, GPU-a, H100, 00000000:19:00.0, ERR!, ERR!, 0, 81559, ERR!, ERR!, ERR!, ERR!, ERR!, Disabled, ERR!, 5, 16\n";
        let frame = frame(table, 0);
        assert_eq!(faults(&frame).iter().map(|fault| fault.severity).collect::<Vec<_>>(), [FaultSeverity::Warn]);
        for (evidence, fault) in
            [("[GPU is lost]", "GPU 0: GPU is lost"), ("[GPU requires reset]", "GPU 0: GPU requires reset")]
        {
            assert_eq!(shown(&row(evidence, evidence, evidence, evidence), 0), [fault]);
            assert_eq!(shown(&row("[Unknown Error]", evidence, "0", "0x0"), 0), [fault]);
        }
    }

    #[test]
    fn a_warning_of_nvidia_smi_is_a_warning_of_its_gpu_and_an_unexplained_failure_is_none_of_listed_gpus() {
        let row = row("300", "100", "0", "0x0");
        let severities =
            |rows: &str, status| faults(&frame(rows, status)).iter().map(|f| (f.gpu, f.severity)).collect::<Vec<_>>();
        let corrupted = format!("WARNING: infoROM is corrupted at gpu 0000:19:00.0\n{row}");
        assert_eq!(severities(&corrupted, 14), [(Some(0), FaultSeverity::Warn)]);
        assert_eq!(severities(&row, 14), [(None, FaultSeverity::Warn)]);
        assert_eq!(severities(&row, 255), [(None, FaultSeverity::Warn)]);
        assert_eq!(severities(&row, 15), [(None, FaultSeverity::Bad)]);
        assert_eq!(severities("", 255), [(None, FaultSeverity::Bad)]);
        let hidden = "Unable to determine the device handle for GPU1: 0000:2D:00.0: Insufficient Permissions\n";
        assert_eq!(severities(&format!("{row}{hidden}"), 255), [(None, FaultSeverity::Warn)]);
    }

    #[test]
    fn an_xid_error_is_a_fault_of_its_gpu_for_some_time() {
        let mut frames = Frames::new(GpuQuery::default());
        let mut shown = |number: u32, up_s: u32, log: &str| {
            let rows = row("300", "100", "0", "0x0");
            let text = format!("#frame {number} 1763612345 {up_s}\n#gpus\n{rows}\n#exit 0\n{log}#end {number}\n");
            let frame = frames.push(text.as_bytes()).remove(0);
            let number = |fault: &Fault| -> Option<u32> { fault.what.split_whitespace().nth(1)?.parse().ok() };
            faults(&frame).iter().map(|fault| (fault.severity, fault.gpu, number(fault))).collect::<Vec<_>>()
        };
        let line = |at: u32, place: &str, number: u32| format!("[ {at}.5] NVRM: Xid (PCI:0000:{place}:00): {number}\n");
        let log = [
            // Drivers repeat messages.
            line(50_000, "19", 48),
            line(50_001, "19", 48),
            line(99_000, "19", 31),
            line(90_000, "19", 13),
            // Xid 45 only follows from other errors.
            line(99_990, "19", 45),
            line(99_991, "3b", 79),
        ];
        let lost = (FaultSeverity::Bad, None, Some(79));
        let all = [(FaultSeverity::Bad, Some(0), Some(48)), lost, (FaultSeverity::Warn, Some(0), Some(31))];
        assert_eq!(shown(1, 100_000, &format!("#xids\n{}", log.concat())), all);
        // A frame without the kernel log keeps the errors of the last frame that had it.
        assert_eq!(shown(2, 100_002, ""), all);
        assert_eq!(shown(13, 100_030, &format!("#xids\n{}", log[5])), [lost]);
        assert_eq!(shown(25, 190_000, &format!("#xids\n{}", log[5])), vec![], "a day later");
    }

    #[test]
    fn the_most_severe_fault_is_first() {
        let lost = "Unable to determine the device handle for GPU1: 0000:0A:00.0: GPU is lost.  Reboot the system\n";
        let rows = row("300", "100", "2", "0x48") + lost;
        insta::assert_snapshot!(shown(&rows, 15).join("\n"), @r"
        GPU 1: does not respond: GPU is lost
        GPU 0: 2 uncorrected memory errors
        GPU 0: throttled: hardware slowdown, thermal, by hardware
        ");
    }
}

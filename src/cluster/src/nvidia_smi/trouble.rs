//! Errors of nvidia-smi.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The reason why nvidia-smi, or a part of its output, could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SmiTrouble {
    /// nvidia-smi is not installed on the node.
    NotFound,
    /// The driver is not loaded.
    NoDriver,
    /// The driver finds no GPU.
    NoDevices,
    /// The driver's library and the loaded kernel module have different versions.
    VersionMismatch {
        /// The version of the library, if reported.
        library: Option<String>,
    },
    /// NVML does not start for another reason.
    NvmlFailed(String),
    /// NVML's library is missing.
    NoLibrary,
    /// A GPU does not respond; others may.
    GpuLost {
        /// The GPU.
        gpu: GpuName,
        /// nvidia-smi's reason: `GPU is lost`, `Unknown Error`.
        why: String,
    },
    /// The driver does not have a field: retry [without it](super::GpuQuery::without).
    UnknownField(String),
    /// The user may not use nvidia-smi.
    NotPermitted,
    /// nvidia-smi did not answer in time and was killed.
    TimedOut,
    /// An incomplete row: the connection or nvidia-smi ended in the middle.
    HalfRow(String),
    /// Another message.
    Reported(String),
    /// nvidia-smi failed without a message.
    Failed {
        /// The exit status.
        status: i32,
    },
}

/// A GPU in an error message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuName {
    /// The index, if given.
    pub index: Option<u32>,
    /// The PCI bus id: `0000:19:00.0`, with a shorter domain than in a [sample](crate::GpuSample).
    pub bus_id: Option<String>,
}

impl GpuName {
    /// Returns whether the GPU has this PCI bus id.
    pub fn is_at(&self, bus_id: &str) -> bool {
        let parts = |id: &str| {
            let (domain, rest) = id.split_once(':')?;
            Some((u32::from_str_radix(domain, 16).ok()?, rest.to_ascii_lowercase()))
        };
        self.bus_id.as_deref().and_then(parts).is_some_and(|ours| parts(bus_id) == Some(ours))
    }
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.index, &self.bus_id) {
            (Some(index), Some(bus_id)) => write!(f, "GPU {index} at {bus_id}"),
            (Some(index), None) => write!(f, "GPU {index}"),
            (None, Some(bus_id)) => write!(f, "the GPU at {bus_id}"),
            (None, None) => write!(f, "a GPU"),
        }
    }
}

impl fmt::Display for SmiTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SmiTrouble::NotFound => write!(f, "nvidia-smi is not installed"),
            SmiTrouble::NoDriver => write!(f, "the NVIDIA driver is not loaded"),
            SmiTrouble::NoDevices => write!(f, "the NVIDIA driver finds no GPU"),
            SmiTrouble::VersionMismatch { library: Some(library) } => {
                write!(f, "the kernel module of the NVIDIA driver does not match its library, version {library}")
            }
            SmiTrouble::VersionMismatch { library: None } => {
                write!(f, "the kernel module of the NVIDIA driver does not match its library")
            }
            SmiTrouble::NvmlFailed(why) => write!(f, "NVML does not start: {why}"),
            SmiTrouble::NoLibrary => write!(f, "libnvidia-ml.so is missing"),
            SmiTrouble::GpuLost { gpu, why } => write!(f, "{gpu} does not respond: {why}"),
            SmiTrouble::UnknownField(field) => write!(f, "the NVIDIA driver does not support the field {field}"),
            SmiTrouble::NotPermitted => write!(f, "the user may not use nvidia-smi"),
            SmiTrouble::TimedOut => write!(f, "nvidia-smi hangs"),
            SmiTrouble::HalfRow(row) => write!(f, "nvidia-smi printed an incomplete row: {row:?}"),
            SmiTrouble::Reported(text) => write!(f, "nvidia-smi reports {text:?}"),
            SmiTrouble::Failed { status } => write!(f, "nvidia-smi failed with exit status {status} and no message"),
        }
    }
}

impl SmiTrouble {
    /// Returns the hint: what to do about it.
    pub fn fix(&self) -> &'static str {
        match self {
            SmiTrouble::NotFound | SmiTrouble::NoLibrary => "install the driver's utilities on the node",
            SmiTrouble::NoDriver => "load the driver (`modprobe nvidia`), or reboot the node",
            SmiTrouble::NoDevices => "check the GPUs of the node with `lspci -d 10de:`, and `dmesg` for Xid errors",
            SmiTrouble::VersionMismatch { .. } => "reboot the node, or reload the driver while no process uses it",
            SmiTrouble::NvmlFailed(_) => "in a container, restart the container; otherwise check `dmesg` on the node",
            SmiTrouble::GpuLost { .. } => {
                "resume without the node (--exclude) and reboot it; check `dmesg` for Xid errors"
            }
            SmiTrouble::UnknownField(_) => "nothing to do: vidtui queries its former name or skips it",
            SmiTrouble::NotPermitted => "log in as a user of the group that owns /dev/nvidia*",
            SmiTrouble::TimedOut => "check `dmesg` on the node for Xid errors; a hung driver needs a reboot",
            SmiTrouble::HalfRow(_) => "nothing to do unless it repeats: the next sample replaces it",
            SmiTrouble::Reported(_) | SmiTrouble::Failed { .. } => "run nvidia-smi on the node by hand",
        }
    }
}

/// Interprets the lines that are not rows, and the exit status if no line explains the failure.
pub(super) fn all(lines: &[&str], status: Option<i32>) -> Vec<SmiTrouble> {
    let mut troubles: Vec<SmiTrouble> = Vec::new();
    for line in lines {
        match (of_line(line), troubles.last_mut()) {
            (Some(Line::Trouble(trouble)), _) => troubles.push(trouble),
            (Some(Line::LibraryVersion(version)), Some(SmiTrouble::VersionMismatch { library })) => {
                *library = Some(version.into());
            }
            _ => {}
        }
    }
    let by_status = match status {
        None | Some(0) => None,
        Some(124 | 137) => Some(SmiTrouble::TimedOut),
        Some(126) => Some(SmiTrouble::NotPermitted),
        Some(127) => Some(SmiTrouble::NotFound),
        Some(4) if troubles.is_empty() => Some(SmiTrouble::NotPermitted),
        Some(6) if troubles.is_empty() => Some(SmiTrouble::NoDevices),
        Some(9) if troubles.is_empty() => Some(SmiTrouble::NoDriver),
        Some(12) if troubles.is_empty() => Some(SmiTrouble::NoLibrary),
        Some(status) if troubles.is_empty() => Some(SmiTrouble::Failed { status }),
        Some(_) => None,
    };
    match by_status {
        // Further messages of the shell or of `timeout` are redundant.
        Some(trouble @ (SmiTrouble::NotFound | SmiTrouble::TimedOut)) => {
            troubles.retain(|t| !matches!(t, SmiTrouble::Reported(_) | SmiTrouble::NotFound));
            troubles.push(trouble);
        }
        Some(trouble) if !troubles.contains(&trouble) => troubles.push(trouble),
        Some(_) | None => {}
    }
    troubles
}

enum Line<'a> {
    Trouble(SmiTrouble),
    LibraryVersion(&'a str),
}

/// Interprets a line that is not a row. Returns none for a line that only explains the previous one.
fn of_line(line: &str) -> Option<Line<'_>> {
    use SmiTrouble::*;
    if let Some(version) = line.strip_prefix("NVML library version: ") {
        return Some(Line::LibraryVersion(version));
    }
    if line.starts_with("Please also try adding directory") || line.starts_with("Make sure that the latest") {
        return None;
    }
    let field = line.strip_prefix("Field \"").and_then(|rest| rest.split_once("\" is not a valid field"));
    Some(Line::Trouble(if let Some((field, _)) = field {
        UnknownField(field.into())
    } else if let Some(lost) = line.strip_prefix("Unable to determine the device handle for ") {
        lost_gpu(lost)
    } else if line.contains("couldn't communicate with the NVIDIA driver") {
        NoDriver
    } else if let Some(why) = line.strip_prefix("Failed to initialize NVML: ") {
        match why {
            "Driver/library version mismatch" => VersionMismatch { library: None },
            "Insufficient Permissions" => NotPermitted,
            "Driver Not Loaded" => NoDriver,
            _ => NvmlFailed(why.into()),
        }
    } else if line.starts_with("No devices were found") {
        NoDevices
    } else if line.contains("couldn't find libnvidia-ml.so") {
        NoLibrary
    } else if line.ends_with("command not found") || line.ends_with("nvidia-smi: not found") {
        NotFound
    } else if line.ends_with("Permission denied") {
        NotPermitted
    } else if looks_like_a_row(line) {
        HalfRow(cut(line))
    } else {
        Reported(cut(line))
    }))
}

/// Reads `GPU1: 0000:0A:00.0: GPU is lost.  Reboot…`, `GPU 0000:02:00.0: …` and `GPU0000:CB:00.0: Unknown Error`.
fn lost_gpu(rest: &str) -> SmiTrouble {
    let rest = rest.strip_prefix("GPU").unwrap_or(rest).trim_start();
    let (name, why) = rest.rsplit_once(": ").unwrap_or((rest, "not found"));
    let (index, bus_id) = match name.split_once(": ") {
        Some((index, bus_id)) => (index.parse().ok(), bus_id),
        None => (None, name),
    };
    let bus_id = (bus_id.matches(':').count() == 2).then(|| bus_id.trim().to_owned());
    let why = why.split_once(".  ").map_or(why, |(why, _)| why).trim_end_matches('.');
    SmiTrouble::GpuLost { gpu: GpuName { index, bus_id }, why: why.into() }
}

/// Returns whether a line is part of `3, GPU-…, NVIDIA H100…` or of `GPU-…, 4100, …`.
fn looks_like_a_row(line: &str) -> bool {
    let first = line.split(',').next().unwrap_or("").trim();
    let number = !first.is_empty() && first.len() <= 3 && first.bytes().all(|b| b.is_ascii_digit());
    number || first.starts_with("GPU-") || (first.starts_with('[') && line.contains(','))
}

/// Truncates a message: a broken node can print a lot.
fn cut(line: &str) -> String {
    line.chars().filter(|c| !c.is_control()).take(200).collect()
}

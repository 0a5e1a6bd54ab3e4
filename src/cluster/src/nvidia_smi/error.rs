//! Parses nvidia-smi's error messages and exit status into [`SmiError`].

use std::fmt;

use serde::{Deserialize, Serialize};

/// The reason why nvidia-smi, or a part of its output, could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SmiError {
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
    /// NVML does not start for another reason, which nvidia-smi printed.
    NvmlFailed(String),
    /// NVML's library is missing.
    NoLibrary,
    /// A GPU does not respond. The other GPUs of the node may still work.
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
    /// Another message of nvidia-smi or the shell.
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

impl fmt::Display for SmiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SmiError::NotFound => write!(f, "nvidia-smi is not installed"),
            SmiError::NoDriver => write!(f, "the NVIDIA driver is not loaded"),
            SmiError::NoDevices => write!(f, "the NVIDIA driver finds no GPU"),
            SmiError::VersionMismatch { library: Some(library) } => {
                write!(f, "the kernel module of the NVIDIA driver does not match its library, version {library}")
            }
            SmiError::VersionMismatch { library: None } => {
                write!(f, "the kernel module of the NVIDIA driver does not match its library")
            }
            SmiError::NvmlFailed(why) => write!(f, "NVML does not start: {why}"),
            SmiError::NoLibrary => write!(f, "libnvidia-ml.so is missing"),
            SmiError::GpuLost { gpu, why } => write!(f, "{gpu} does not respond: {why}"),
            SmiError::UnknownField(field) => write!(f, "the NVIDIA driver does not support the field {field}"),
            SmiError::NotPermitted => write!(f, "the user may not use nvidia-smi"),
            SmiError::TimedOut => write!(f, "nvidia-smi hangs"),
            SmiError::HalfRow(row) => write!(f, "nvidia-smi printed an incomplete row: {row:?}"),
            SmiError::Reported(text) => write!(f, "nvidia-smi reports {text:?}"),
            SmiError::Failed { status } => write!(f, "nvidia-smi failed with exit status {status} and no message"),
        }
    }
}

impl SmiError {
    /// Returns the hint: what to do about it.
    pub fn fix(&self) -> &'static str {
        match self {
            SmiError::NotFound | SmiError::NoLibrary => "install the driver's utilities on the node",
            SmiError::NoDriver => "load the driver (`modprobe nvidia`), or reboot the node",
            SmiError::NoDevices => "check the GPUs of the node with `lspci -d 10de:`, and `dmesg` for Xid errors",
            SmiError::VersionMismatch { .. } => "reboot the node, or reload the driver while no process uses it",
            SmiError::NvmlFailed(_) => "in a container, restart the container; otherwise check `dmesg` on the node",
            SmiError::GpuLost { .. } => {
                "resume without the node (--exclude) and reboot it; check `dmesg` for Xid errors"
            }
            SmiError::UnknownField(_) => "nothing to do: vidtui queries its former name or skips it",
            SmiError::NotPermitted => "log in as a user of the group that owns /dev/nvidia*",
            SmiError::TimedOut => "check `dmesg` on the node for Xid errors; a hung driver needs a reboot",
            SmiError::HalfRow(_) => "nothing to do unless it repeats: the next sample replaces it",
            SmiError::Reported(_) | SmiError::Failed { .. } => "run nvidia-smi on the node by hand",
        }
    }
}

/// Interprets the lines that are not rows, and the exit status if no line explains the failure.
pub(super) fn all(lines: &[&str], status: Option<i32>) -> Vec<SmiError> {
    let mut smi_errors: Vec<SmiError> = Vec::new();
    for line in lines {
        match (of_line(line), smi_errors.last_mut()) {
            (Some(Line::Error(error)), _) => smi_errors.push(error),
            (Some(Line::LibraryVersion(version)), Some(SmiError::VersionMismatch { library })) => {
                *library = Some(version.into());
            }
            _ => {}
        }
    }
    let by_status = match status {
        None | Some(0) => None,
        Some(124 | 137) => Some(SmiError::TimedOut),
        Some(126) => Some(SmiError::NotPermitted),
        Some(127) => Some(SmiError::NotFound),
        Some(4) if smi_errors.is_empty() => Some(SmiError::NotPermitted),
        Some(6) if smi_errors.is_empty() => Some(SmiError::NoDevices),
        Some(9) if smi_errors.is_empty() => Some(SmiError::NoDriver),
        Some(12) if smi_errors.is_empty() => Some(SmiError::NoLibrary),
        Some(status) if smi_errors.is_empty() => Some(SmiError::Failed { status }),
        Some(_) => None,
    };
    match by_status {
        // Further messages of the shell or of `timeout` are redundant.
        Some(error @ (SmiError::NotFound | SmiError::TimedOut)) => {
            smi_errors.retain(|t| !matches!(t, SmiError::Reported(_) | SmiError::NotFound));
            smi_errors.push(error);
        }
        Some(error) if !smi_errors.contains(&error) => smi_errors.push(error),
        Some(_) | None => {}
    }
    smi_errors
}

enum Line<'a> {
    Error(SmiError),
    LibraryVersion(&'a str),
}

/// Interprets a line that is not a row. Returns `None` for a line that only continues the message before it.
fn of_line(line: &str) -> Option<Line<'_>> {
    use SmiError::*;
    if let Some(version) = line.strip_prefix("NVML library version: ") {
        return Some(Line::LibraryVersion(version));
    }
    if line.starts_with("Please also try adding directory") || line.starts_with("Make sure that the latest") {
        return None;
    }
    let field = line.strip_prefix("Field \"").and_then(|rest| rest.split_once("\" is not a valid field"));
    Some(Line::Error(if let Some((field, _)) = field {
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
fn lost_gpu(rest: &str) -> SmiError {
    let rest = rest.strip_prefix("GPU").unwrap_or(rest).trim_start();
    let (name, why) = rest.rsplit_once(": ").unwrap_or((rest, "not found"));
    let (index, bus_id) = match name.split_once(": ") {
        Some((index, bus_id)) => (index.parse().ok(), bus_id),
        None => (None, name),
    };
    let bus_id = (bus_id.matches(':').count() == 2).then(|| bus_id.trim().to_owned());
    let why = why.split_once(".  ").map_or(why, |(why, _)| why).trim_end_matches('.');
    SmiError::GpuLost { gpu: GpuName { index, bus_id }, why: why.into() }
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

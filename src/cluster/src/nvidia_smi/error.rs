//! Parses nvidia-smi's error messages and exit status into [`SmiError`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::pci;

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
    /// The infoROM of a GPU is corrupted. It stores counters of errors, and the GPU computes without it.
    InfoRomCorrupted {
        /// The GPU.
        gpu: GpuName,
    },
    /// A message beside complete rows.
    Warning(String),
    /// Another message of nvidia-smi or the shell, without complete rows.
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
        self.bus_id.as_deref().is_some_and(|ours| pci::is_same(ours, bus_id))
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
            SmiError::InfoRomCorrupted { gpu } => write!(f, "the infoROM of {gpu} is corrupted"),
            SmiError::Warning(text) | SmiError::Reported(text) => write!(f, "nvidia-smi reports {text:?}"),
            SmiError::Failed { status } => {
                write!(f, "nvidia-smi failed with exit status {status}")?;
                match STATUS.iter().find(|(known, _)| known == status) {
                    Some((_, meaning)) => write!(f, ": {meaning}"),
                    None => write!(f, " and no message"),
                }
            }
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
            SmiError::InfoRomCorrupted { .. } => {
                "the GPU can be used; if the warning remains after a reboot, ask the vendor to replace the GPU"
            }
            SmiError::Failed { status: FALLEN_OFF } => {
                "resume without the node (--exclude) and reboot it; check `dmesg` for Xid errors"
            }
            SmiError::Warning(_) | SmiError::Reported(_) | SmiError::Failed { .. } => {
                "run nvidia-smi on the node by hand"
            }
        }
    }

    /// Returns whether the rows of the output are complete in spite of this message.
    pub fn is_warning(&self) -> bool {
        matches!(self, SmiError::InfoRomCorrupted { .. } | SmiError::Warning(_))
    }
}

/// The exit status of a corrupted infoROM. The rows are complete.
const INFO_ROM: i32 = 14;
/// The exit status of a GPU that has fallen off the bus.
pub const FALLEN_OFF: i32 = 15;

/// Meanings of the exit statuses that are not errors of their own. Source: `man nvidia-smi`, section RETURN VALUE.
const STATUS: [(i32, &str); 7] = [
    (2, "an argument is invalid"),
    (3, "the operation is not available on the GPU"),
    (8, "a power cable of a GPU is not connected"),
    (10, "the kernel does not receive the interrupts of a GPU"),
    (13, "NVML lacks a function, because its version and that of nvidia-smi differ"),
    (INFO_ROM, "the infoROM of a GPU is corrupted"),
    (FALLEN_OFF, "a GPU has fallen off the bus"),
];

/// Interprets the lines that are not rows, and the exit status if no line explains the failure.
///
/// * `has_rows` — whether the output has all rows if nvidia-smi has not failed.
pub(super) fn all(lines: &[&str], status: Option<i32>, has_rows: bool) -> Vec<SmiError> {
    let is_complete = has_rows && matches!(status, Some(0 | INFO_ROM));
    let mut smi_errors: Vec<SmiError> = Vec::new();
    for line in lines {
        match (of_line(line), smi_errors.last_mut()) {
            (Some(Line::Error(SmiError::Reported(text))), _) if is_complete => smi_errors.push(SmiError::Warning(text)),
            (Some(Line::Error(error)), _) => smi_errors.push(error),
            (Some(Line::LibraryVersion(version)), Some(SmiError::VersionMismatch { library })) => {
                *library = Some(version.into());
            }
            _ => {}
        }
    }
    let is_explained = smi_errors.iter().any(|error| !error.is_warning());
    let is_info_rom = |error: &SmiError| matches!(error, SmiError::InfoRomCorrupted { .. });
    let by_status = match status {
        None | Some(0) => None,
        Some(124 | 137) => Some(SmiError::TimedOut),
        Some(126) => Some(SmiError::NotPermitted),
        Some(127) => Some(SmiError::NotFound),
        Some(INFO_ROM) if smi_errors.iter().any(is_info_rom) && has_rows => None,
        Some(INFO_ROM) if has_rows => Some(SmiError::InfoRomCorrupted { gpu: GpuName::default() }),
        Some(_) if is_explained => None,
        Some(4) => Some(SmiError::NotPermitted),
        Some(6) => Some(SmiError::NoDevices),
        Some(9) => Some(SmiError::NoDriver),
        Some(12) => Some(SmiError::NoLibrary),
        Some(status) => Some(SmiError::Failed { status }),
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
    // The dynamic linker and the shell print these before any program starts.
    if line.starts_with("ERROR: ld.so: ") || line.contains(": warning: setlocale: ") {
        return None;
    }
    let field = line.strip_prefix("Field \"").and_then(|rest| rest.split_once("\" is not a valid field"));
    Some(Line::Error(if let Some((field, _)) = field {
        UnknownField(field.into())
    } else if let Some(lost) = line.strip_prefix("Unable to determine the device handle for ") {
        lost_gpu(lost)
    } else if let Some((_, bus_id)) = line.split_once("infoROM is corrupted at gpu ") {
        InfoRomCorrupted { gpu: GpuName { index: None, bus_id: Some(bus_id.trim().into()) } }
    } else if line.contains("couldn't communicate with the NVIDIA driver") {
        NoDriver
    } else if let Some(why) = line.strip_prefix("Failed to initialize NVML: ") {
        match why {
            "Driver/library version mismatch" => VersionMismatch { library: None },
            "Insufficient Permissions" => NotPermitted,
            "Driver Not Loaded" => NoDriver,
            _ => NvmlFailed(why.into()),
        }
    } else if line.starts_with("NVIDIA-SMI has failed because you do not have sufficient permissions") {
        NotPermitted
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
    let rest = rest.strip_prefix("GPU").or_else(|| rest.strip_prefix("gpu")).unwrap_or(rest).trim_start();
    let (name, why) = rest.rsplit_once(": ").unwrap_or((rest, "not found"));
    let (index, bus_id) = match name.split_once(": ") {
        Some((index, bus_id)) => (index.parse().ok(), bus_id),
        None => (None, name),
    };
    let bus_id = (bus_id.matches(':').count() == 2).then(|| bus_id.trim().to_owned());
    let why = why.split_once(".  ").map_or(why, |(why, _)| why).trim_end_matches('.');
    // A container or a user without access to one of the GPUs.
    if why == "Insufficient Permissions" {
        return SmiError::NotPermitted;
    }
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

//! What nvidia-smi says when it cannot answer.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Says what keeps nvidia-smi, or a part of its answer, from being read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SmiTrouble {
    /// There is no nvidia-smi on the node.
    NotFound,
    /// The driver is not loaded.
    NoDriver,
    /// The driver finds no GPU.
    NoDevices,
    /// The driver was replaced under the running kernel module.
    VersionMismatch {
        /// The library's version, where it is said.
        library: Option<String>,
    },
    /// NVML does not start, for another reason.
    NvmlFailed(String),
    /// NVML's library is not where it should be.
    NoLibrary,
    /// A GPU does not answer; the others may.
    GpuLost {
        /// Which.
        gpu: GpuName,
        /// In nvidia-smi's words: `GPU is lost`, `Unknown Error`.
        why: String,
    },
    /// The driver does not know a field: ask again, [without it](super::GpuQuery::without).
    UnknownField(String),
    /// The user may not ask.
    NotPermitted,
    /// It did not answer in time and was ended.
    TimedOut,
    /// A row that is not whole: the connection or nvidia-smi ended in the middle.
    HalfRow(String),
    /// Something else, in its own words.
    Said(String),
    /// It failed without a word.
    Failed {
        /// Its exit status.
        status: i32,
    },
}

/// A GPU as an error message names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuName {
    /// Its number, where it is said.
    pub index: Option<u32>,
    /// Where it is plugged in: `0000:19:00.0`, with a shorter domain than a [sample](crate::GpuSample) has.
    pub bus_id: Option<String>,
}

impl GpuName {
    /// Says whether this is the GPU that is plugged in there.
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
            SmiTrouble::NoDevices => write!(f, "the driver finds no GPU"),
            SmiTrouble::VersionMismatch { library: Some(library) } => {
                write!(f, "the driver's kernel module is not that of its library, {library}")
            }
            SmiTrouble::VersionMismatch { library: None } => {
                write!(f, "the driver's kernel module is not that of its library")
            }
            SmiTrouble::NvmlFailed(why) => write!(f, "NVML does not start: {why}"),
            SmiTrouble::NoLibrary => write!(f, "libnvidia-ml.so is missing"),
            SmiTrouble::GpuLost { gpu, why } => write!(f, "{gpu} does not answer: {why}"),
            SmiTrouble::UnknownField(field) => write!(f, "this driver does not know {field}"),
            SmiTrouble::NotPermitted => write!(f, "the user may not use nvidia-smi"),
            SmiTrouble::TimedOut => write!(f, "nvidia-smi hangs"),
            SmiTrouble::HalfRow(row) => write!(f, "a row ends in the middle: {row:?}"),
            SmiTrouble::Said(text) => write!(f, "nvidia-smi says {text:?}"),
            SmiTrouble::Failed { status } => write!(f, "nvidia-smi ended with status {status} and no word"),
        }
    }
}

impl SmiTrouble {
    /// Says what to do about it.
    pub fn fix(&self) -> &'static str {
        match self {
            SmiTrouble::NotFound | SmiTrouble::NoLibrary => "install the driver's utilities on the node",
            SmiTrouble::NoDriver => "load the driver (`modprobe nvidia`), or reboot the node",
            SmiTrouble::NoDevices => "see `lspci -d 10de:` on the node for the GPUs it has, and `dmesg` for Xid errors",
            SmiTrouble::VersionMismatch { .. } => "reboot the node, or reload the driver when nothing uses it",
            SmiTrouble::NvmlFailed(_) => "in a container, start it again; else see `dmesg` on the node",
            SmiTrouble::GpuLost { .. } => "take the node out of the run and reboot it; see `dmesg` for Xid errors",
            SmiTrouble::UnknownField(_) => "none is needed: it is asked for by its former name, or left out",
            SmiTrouble::NotPermitted => "log in as a user of the group that owns /dev/nvidia*",
            SmiTrouble::TimedOut => "see `dmesg` on the node for Xid errors; a hung driver takes a reboot",
            SmiTrouble::HalfRow(_) => "none is needed unless it stays: the next round is read",
            SmiTrouble::Said(_) | SmiTrouble::Failed { .. } => "run nvidia-smi on the node by hand",
        }
    }
}

/// Reads what was no row, and adds what the exit status says if nothing else does.
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
        // What the shell or `timeout` says of it is no news.
        Some(trouble @ (SmiTrouble::NotFound | SmiTrouble::TimedOut)) => {
            troubles.retain(|t| !matches!(t, SmiTrouble::Said(_) | SmiTrouble::NotFound));
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

/// Reads a line that is no row. A line that only explains the one before is none.
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
        Said(cut(line))
    }))
}

/// Reads `GPU1: 0000:0A:00.0: GPU is lost.  Reboot…`, `GPU 0000:02:00.0: …` and `GPU0000:CB:00.0: Unknown Error`.
fn lost_gpu(rest: &str) -> SmiTrouble {
    let rest = rest.strip_prefix("GPU").unwrap_or(rest).trim_start();
    let (name, why) = rest.rsplit_once(": ").unwrap_or((rest, "it cannot be found"));
    let (index, bus_id) = match name.split_once(": ") {
        Some((index, bus_id)) => (index.parse().ok(), bus_id),
        None => (None, name),
    };
    let bus_id = (bus_id.matches(':').count() == 2).then(|| bus_id.trim().to_owned());
    let why = why.split_once(".  ").map_or(why, |(why, _)| why).trim_end_matches('.');
    SmiTrouble::GpuLost { gpu: GpuName { index, bus_id }, why: why.into() }
}

/// Half of `3, GPU-…, NVIDIA H100…` or of `GPU-…, 4100, …`.
fn looks_like_a_row(line: &str) -> bool {
    let first = line.split(',').next().unwrap_or("").trim();
    let number = !first.is_empty() && first.len() <= 3 && first.bytes().all(|b| b.is_ascii_digit());
    number || first.starts_with("GPU-") || (first.starts_with('[') && line.contains(','))
}

/// What a machine that has lost its mind says can be long.
fn cut(line: &str) -> String {
    line.chars().filter(|c| !c.is_control()).take(200).collect()
}

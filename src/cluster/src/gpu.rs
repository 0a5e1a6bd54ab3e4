//! A sample of one GPU: the values that nvidia-smi reports, and the processes on the GPU.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, IntoDeserializer};
use serde::{Deserialize, Deserializer, Serialize};

/// A number that a GPU reported, or the reason why there is none. A missing number is never 0.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Reading<T> {
    /// The number.
    Value(T),
    /// No number.
    Absent(Absent),
}

impl<T: Copy> Reading<T> {
    /// Returns the number, if there is one.
    pub fn value(&self) -> Option<T> {
        match self {
            Reading::Value(value) => Some(*value),
            Reading::Absent(_) => None,
        }
    }
}

impl<T> Reading<T> {
    /// Returns why there is no number.
    pub fn absent(&self) -> Option<&Absent> {
        match self {
            Reading::Value(_) => None,
            Reading::Absent(why) => Some(why),
        }
    }
}

/// Written by hand: the derived implementation tries each variant on a copy of the input, which is too slow for millions of
/// samples.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for Reading<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrReason(PhantomData))
    }
}

struct NumberOrReason<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> de::Visitor<'de> for NumberOrReason<T> {
    type Value = Reading<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or the reason why there is none")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        T::deserialize(number.into_deserializer()).map(Reading::Value)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        T::deserialize(number.into_deserializer()).map(Reading::Value)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        T::deserialize(number.into_deserializer()).map(Reading::Value)
    }

    fn visit_str<E: de::Error>(self, reason: &str) -> Result<Self::Value, E> {
        Ok(Reading::Absent(Absent::from(reason.to_owned())))
    }
}

/// Returns [`Absent::NotAsked`], for samples that an older version wrote without the field.
impl<T> Default for Reading<T> {
    fn default() -> Self {
        Reading::Absent(Absent::NotAsked)
    }
}

/// Shows the number, or nvidia-smi's reason.
impl<T: fmt::Display> fmt::Display for Reading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reading::Value(value) => value.fmt(f),
            Reading::Absent(why) => why.fmt(f),
        }
    }
}

/// The reason why there is no number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Absent {
    /// `[N/A]`: this GPU never has the value, or does not have it in this mode (utilization under MIG).
    NotAvailable,
    /// `[Not Supported]`: the same, from older drivers.
    NotSupported,
    /// `[Unknown Error]`: the driver failed to read the value.
    UnknownError,
    /// `ERR!`: the same. The next sample is often valid.
    Error,
    /// `[GPU is lost]`: the GPU has fallen off the bus; the node needs a reboot.
    GpuIsLost,
    /// `[GPU requires reset]`.
    RequiresReset,
    /// `[Insufficient Permissions]`: in containers, and for MIG.
    NotPermitted,
    /// `[Function Not Found]`: the driver is too old.
    NoFunction,
    /// `[Requested functionality has been deprecated]`: the driver is too new.
    Deprecated,
    /// The driver does not have the field, so it was not queried.
    NotAsked,
    /// Any other text that is not a number.
    Other(String),
}

impl Absent {
    const NAMED: [(Absent, &str); 10] = [
        (Absent::NotAvailable, "N/A"),
        (Absent::NotSupported, "Not Supported"),
        (Absent::UnknownError, "Unknown Error"),
        (Absent::Error, "ERR!"),
        (Absent::GpuIsLost, "GPU is lost"),
        (Absent::RequiresReset, "GPU requires reset"),
        (Absent::NotPermitted, "Insufficient Permissions"),
        (Absent::NoFunction, "Function Not Found"),
        (Absent::Deprecated, "Requested functionality has been deprecated"),
        (Absent::NotAsked, "not asked"),
    ];

    /// Returns whether the reason proves a fault of the GPU.
    pub fn is_fault(&self) -> bool {
        matches!(self, Absent::GpuIsLost | Absent::RequiresReset)
    }

    /// Returns whether the driver failed to read the value at that moment. Alone, this is not a fault of the GPU.
    pub fn is_failed_read(&self) -> bool {
        matches!(self, Absent::UnknownError | Absent::Error)
    }
}

impl From<String> for Absent {
    fn from(cell: String) -> Absent {
        let bare = cell.trim();
        let bare = bare.strip_prefix('[').and_then(|bare| bare.strip_suffix(']')).unwrap_or(bare).trim();
        let named = Absent::NAMED.iter().find(|(_, name)| name.eq_ignore_ascii_case(bare));
        named.map_or_else(|| Absent::Other(bare.into()), |(absent, _)| absent.clone())
    }
}

impl From<Absent> for String {
    fn from(absent: Absent) -> String {
        absent.to_string()
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absent::Other(text) => f.pad(text),
            known => {
                let name = Absent::NAMED.iter().find(|(absent, _)| absent == known).map_or("", |(_, name)| name);
                f.pad(name)
            }
        }
    }
}

/// A sample of one GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// The time by the node's clock, Unix seconds.
    pub t: f64,
    /// The index on the node, from 0; if it cannot be read, the number of the row.
    pub index: u32,
    /// The UUID: `GPU-…`.
    #[serde(default)]
    pub uuid: Option<String>,
    /// The model: `NVIDIA H100 80GB HBM3`.
    #[serde(default)]
    pub name: Option<String>,
    /// The PCI bus id: `00000000:19:00.0`. Messages about a lost GPU contain it.
    #[serde(default)]
    pub bus_id: Option<String>,
    /// GPU power.
    #[serde(default)]
    pub power_w: Reading<f64>,
    /// The power limit.
    #[serde(default)]
    pub power_limit_w: Reading<f64>,
    /// GPU memory in use by all processes.
    #[serde(default)]
    pub mem_used_mib: Reading<u64>,
    /// GPU memory.
    #[serde(default)]
    pub mem_total_mib: Reading<u64>,
    /// The share of time in which a kernel ran, in percent. A collective that waits for other ranks also counts as 100 %.
    #[serde(default)]
    pub util_pct: Reading<f64>,
    /// The GPU temperature.
    #[serde(default)]
    pub temp_c: Reading<f64>,
    /// The SM clock.
    #[serde(default)]
    pub sm_clock_mhz: Reading<f64>,
    /// The fan speed, in percent of its maximum. Most data-centre GPUs have no fan.
    #[serde(default)]
    pub fan_pct: Reading<f64>,
    /// The generation of the PCIe link. Some GPUs lower it while they are idle.
    #[serde(default)]
    pub pcie_gen: Reading<u64>,
    /// The lanes of the PCIe link.
    #[serde(default)]
    pub pcie_lanes: Reading<u64>,
    /// Uncorrected memory errors since the driver was loaded.
    #[serde(default)]
    pub ecc_uncorrected: Reading<u64>,
    /// Why the clocks are not at their maximum.
    #[serde(default)]
    pub throttle_reasons: Reading<ThrottleReasons>,
    /// Whether MIG is enabled. Then utilization is absent.
    #[serde(default)]
    pub mig: bool,
    /// The compute processes.
    #[serde(default)]
    pub processes: Vec<GpuProcess>,
}

impl GpuSample {
    /// Returns the reason that proves a fault of the GPU, if any reading has one.
    pub fn fault(&self) -> Option<&Absent> {
        let whole = [&self.mem_used_mib, &self.mem_total_mib, &self.ecc_uncorrected].map(Reading::absent);
        self.live().into_iter().chain(whole).flatten().find(|why| why.is_fault())
    }

    /// Returns why the driver cannot read the GPU: it fails to read more than one live reading, and reads none.
    pub fn unreadable(&self) -> Option<&Absent> {
        let has_value = self.live().iter().any(Option::is_none);
        let mut failed = self.live().into_iter().flatten().filter(|why| why.is_failed_read());
        failed.next().filter(|_| !has_value && failed.next().is_some())
    }

    /// Returns whether the GPU has no memory of its own, but uses that of the node (GB10, GH200 in some modes): it reports none.
    pub fn shares_memory(&self) -> bool {
        !self.mig && matches!(self.mem_total_mib.absent(), Some(Absent::NotAvailable | Absent::NotSupported))
    }

    /// Returns why the readings that change with the load are absent; `None` for those that are not.
    fn live(&self) -> [Option<&Absent>; 4] {
        [&self.power_w, &self.util_pct, &self.temp_c, &self.sm_clock_mhz].map(Reading::absent)
    }
}

/// A compute process on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// The process id on the node; in a container it may differ from that of `ps`.
    pub pid: Reading<u32>,
    /// The path of the program.
    pub name: String,
    /// GPU memory of the process.
    pub mem_used_mib: Reading<u64>,
    /// Details of the process, if the node has them.
    pub owner: Option<ProcessOwner>,
}

/// User, age and command of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessOwner {
    /// The user.
    pub user: String,
    /// Seconds since it started.
    pub age_s: u64,
    /// The command line, truncated.
    pub command: String,
    /// CPU time since it started, in hundredths of a second; two samples give its CPU utilization.
    #[serde(default)]
    pub cpu_ticks: Option<u64>,
    /// Resident memory.
    #[serde(default)]
    pub host_mem_mib: Option<u64>,
    /// The run, from `VIDTUI_RUN` in the environment, if that can be read.
    pub run: Option<String>,
    /// The rank, from `RANK`.
    pub rank: Option<usize>,
}

/// Why a GPU's clocks are not at their maximum: the bits of NVML's `nvmlClocksEventReason*`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ThrottleReasons(pub u64);

impl ThrottleReasons {
    /// NVML's bit, the name, and whether the reason slows a busy GPU down.
    const TABLE: [(u64, &'static str, bool); 9] = [
        (0x1, "idle", false),
        (0x2, "application clocks", false),
        (0x4, "power cap", true),
        (0x8, "hardware slowdown", true),
        (0x10, "sync boost", false),
        (0x20, "thermal, by software", true),
        (0x40, "thermal, by hardware", true),
        (0x80, "power brake", true),
        (0x100, "display clocks", false),
    ];

    /// Returns the names of the reasons; unknown bits are skipped.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::TABLE.into_iter().filter(move |(bit, ..)| self.0 & bit != 0).map(|(_, name, _)| name)
    }

    /// Returns whether heat or power slows the GPU down. A power cap alone is normal under full load.
    pub fn is_slowed(self) -> bool {
        Self::TABLE.into_iter().any(|(bit, _, slowed)| slowed && self.0 & bit != 0)
    }

    /// Returns whether anything other than the power cap slows the GPU down, which is never normal.
    pub fn is_worrying(self) -> bool {
        ThrottleReasons(self.0 & !0x4).is_slowed()
    }
}

impl fmt::Display for ThrottleReasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.names().collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_a_number_or_a_reason_in_json() {
        let read = |json: &str| serde_json::from_str::<Reading<f64>>(json).unwrap();
        assert_eq!(read("631.95"), Reading::Value(631.95));
        assert_eq!(read("\"[GPU is lost]\""), Reading::Absent(Absent::GpuIsLost));
        for (absent, name) in Absent::NAMED {
            let json = serde_json::to_string(&Reading::<f64>::Absent(absent.clone())).unwrap();
            assert_eq!(json, format!("{name:?}"));
            assert_eq!(read(&json), Reading::Absent(absent));
        }
        assert_eq!(read("\"[Feeling Odd]\"").to_string(), "Feeling Odd");
    }

    #[test]
    fn a_sample_of_an_older_version_is_read() {
        let sample: GpuSample =
            serde_json::from_str(r#"{"t":1.5,"index":3,"power_w":631.95,"temp_c":"ERR!"}"#).unwrap();
        assert_eq!((sample.power_w.value(), sample.temp_c.absent()), (Some(631.95), Some(&Absent::Error)));
        assert_eq!((sample.util_pct.absent(), sample.processes.len()), (Some(&Absent::NotAsked), 0));
    }

    #[test]
    fn hot_gpus_are_worrying_and_idle_or_capped_ones_are_not() {
        let reasons = [0x0, 0x1, 0x4, 0x24, 0x40, 0x8000].map(ThrottleReasons);
        assert_eq!(reasons.map(ThrottleReasons::is_slowed), [false, false, true, true, true, false]);
        assert_eq!(reasons.map(ThrottleReasons::is_worrying), [false, false, false, true, true, false]);
        insta::assert_snapshot!(reasons[3]);
    }
}

//! What is known of a GPU at one moment.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, IntoDeserializer};
use serde::{Deserialize, Deserializer, Serialize};

/// A number that a GPU reported, or why there is none. Never 0 for want of a number.
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

/// By hand, because the derived one tries each variant on a copy, and samples are read by the million.
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

/// No number, because nobody asked: what a sample of an older program has for a field that is new.
impl<T> Default for Reading<T> {
    fn default() -> Self {
        Reading::Absent(Absent::NotAsked)
    }
}

/// The number, or the reason in the words of nvidia-smi.
impl<T: fmt::Display> fmt::Display for Reading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reading::Value(value) => value.fmt(f),
            Reading::Absent(why) => why.fmt(f),
        }
    }
}

/// Says why there is no number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Absent {
    /// `[N/A]`: this GPU does not have it, or not in this mode (utilization under MIG).
    NotAvailable,
    /// `[Not Supported]`: the same, from older drivers.
    NotSupported,
    /// `[Unknown Error]`: the driver could not tell.
    UnknownError,
    /// `ERR!`: the driver could not tell. For power alone it is often gone the next time.
    Error,
    /// `[GPU is lost]`: it fell off the bus; the node needs a reboot.
    GpuIsLost,
    /// `[GPU requires reset]`.
    RequiresReset,
    /// `[Insufficient Permissions]`: in containers, and for MIG.
    NotPermitted,
    /// `[Function Not Found]`: the driver is too old for it.
    NoFunction,
    /// `[Requested functionality has been deprecated]`: the driver is too new for it.
    Deprecated,
    /// This driver does not know the field, so it was left out of the question.
    NotAsked,
    /// Anything else that is not a number.
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

    /// Says whether it is a fault of the GPU, and not a number that this GPU never has.
    pub fn is_fault(&self) -> bool {
        matches!(self, Absent::UnknownError | Absent::Error | Absent::GpuIsLost | Absent::RequiresReset)
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

/// One reading of one GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// When, in Unix seconds of the node's clock.
    pub t: f64,
    /// Its number on the node, from 0; where that cannot be read, its place among the rows.
    pub index: u32,
    /// Its name for life: `GPU-…`.
    #[serde(default)]
    pub uuid: Option<String>,
    /// Its model: `NVIDIA H100 80GB HBM3`.
    #[serde(default)]
    pub name: Option<String>,
    /// Where it is plugged in: `00000000:19:00.0`. A GPU that is lost is named by it.
    #[serde(default)]
    pub bus_id: Option<String>,
    /// What it draws now.
    #[serde(default)]
    pub power_w: Reading<f64>,
    /// What it may draw.
    #[serde(default)]
    pub power_limit_w: Reading<f64>,
    /// Memory in use by everyone.
    #[serde(default)]
    pub mem_used_mib: Reading<u64>,
    /// Memory there is.
    #[serde(default)]
    pub mem_total_mib: Reading<u64>,
    /// The share of time in which a kernel ran. 100 in a collective that waits, too.
    #[serde(default)]
    pub util_pct: Reading<f64>,
    /// The temperature of the chip.
    #[serde(default)]
    pub temp_c: Reading<f64>,
    /// The clock of its multiprocessors.
    #[serde(default)]
    pub sm_clock_mhz: Reading<f64>,
    /// Memory errors since the driver was loaded that could not be corrected.
    #[serde(default)]
    pub ecc_uncorrected: Reading<u64>,
    /// Why its clocks are not at their highest.
    #[serde(default)]
    pub throttle_reasons: Reading<ThrottleReasons>,
    /// Whether it is cut into instances. Then utilization is absent.
    #[serde(default)]
    pub mig: bool,
    /// The processes that compute on it.
    #[serde(default)]
    pub processes: Vec<GpuProcess>,
}

/// A process that computes on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Its process id on the node; in a container it may be another's than `ps` shows.
    pub pid: Reading<u32>,
    /// The program's path.
    pub name: String,
    /// GPU memory it holds.
    pub mem_used_mib: Reading<u64>,
    /// Who started it, where the node can tell.
    pub owner: Option<ProcessOwner>,
}

/// What the node knows of a process besides its GPU memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessOwner {
    /// The user.
    pub user: String,
    /// Seconds since it started.
    pub age_s: u64,
    /// Its command line, cut short.
    pub command: String,
    /// The run it belongs to, from `VIDTUI_RUN` in its environment, where that can be read.
    pub run: Option<String>,
    /// Its rank, from `RANK`.
    pub rank: Option<usize>,
}

/// Why a GPU's clocks are not at their highest: the bits of NVML's `nvmlClocksEventReason*`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ThrottleReasons(pub u64);

impl ThrottleReasons {
    /// Bit, name, and whether the GPU is slower than it should be.
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

    /// Lists the reasons in words; bits that have none are left out.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::TABLE.into_iter().filter(move |(bit, ..)| self.0 & bit != 0).map(|(_, name, _)| name)
    }

    /// Says whether heat or power holds the GPU back. A power cap alone is usual under full load.
    pub fn is_slowed(self) -> bool {
        Self::TABLE.into_iter().any(|(bit, _, slowed)| slowed && self.0 & bit != 0)
    }

    /// Says whether anything but the power cap holds it back, which a healthy GPU does not show.
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
    fn a_reading_is_a_number_or_a_reason_in_json_too() {
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
    fn a_sample_without_a_field_that_came_later_is_read() {
        let sample: GpuSample =
            serde_json::from_str(r#"{"t":1.5,"index":3,"power_w":631.95,"temp_c":"ERR!"}"#).unwrap();
        assert_eq!((sample.power_w.value(), sample.temp_c.absent()), (Some(631.95), Some(&Absent::Error)));
        assert_eq!((sample.util_pct.absent(), sample.processes.len()), (Some(&Absent::NotAsked), 0));
    }

    #[test]
    fn idle_and_capped_gpus_do_not_worry_and_hot_ones_do() {
        let reasons = [0x0, 0x1, 0x4, 0x24, 0x40, 0x8000].map(ThrottleReasons);
        assert_eq!(reasons.map(ThrottleReasons::is_slowed), [false, false, true, true, true, false]);
        assert_eq!(reasons.map(ThrottleReasons::is_worrying), [false, false, false, true, true, false]);
        assert_eq!(reasons[3].to_string(), "power cap, thermal, by software");
    }
}

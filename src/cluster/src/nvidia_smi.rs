//! Queries of nvidia-smi, and the parser of its output.
//!
//! Rows are read by position, because headers do not contain the queried names. Errors and rows are mixed on both streams, so
//! the streams are read as one text, line by line.

use std::fmt;

use crate::gpu::{Absent, GpuProcess, GpuSample, Reading, ThrottleReasons};

mod error;

pub use error::{FALLEN_OFF, GpuName, SmiError};

/// The output format of both queries.
pub const FORMAT: &str = "--format=csv,noheader,nounits";

/// Queries the compute processes, one row per process and GPU.
pub const COMPUTE_APPS: &str = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory";

/// A query of all GPUs: the fields, in the order of the cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuQuery {
    fields: Vec<Field>,
}

/// A field of the query with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Field {
    cell: Cell,
    name: &'static str,
    /// The name in older drivers.
    former: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Index,
    Uuid,
    Name,
    BusId,
    Power,
    PowerLimit,
    MemUsed,
    MemTotal,
    Util,
    Temp,
    SmClock,
    Ecc,
    Throttle,
    Mig,
    Fan,
    PcieGen,
    PcieLanes,
}

const fn field(cell: Cell, name: &'static str) -> Field {
    Field { cell, name, former: None }
}

/// nvidia-smi has no field for the throughput of the PCIe link.
#[rustfmt::skip]
const FIELDS: [Field; 17] = [
    field(Cell::Index, "index"),
    field(Cell::Uuid, "uuid"),
    field(Cell::Name, "name"),
    field(Cell::BusId, "pci.bus_id"),
    field(Cell::Power, "power.draw"),
    field(Cell::PowerLimit, "power.limit"),
    field(Cell::MemUsed, "memory.used"),
    field(Cell::MemTotal, "memory.total"),
    field(Cell::Util, "utilization.gpu"),
    field(Cell::Temp, "temperature.gpu"),
    field(Cell::SmClock, "clocks.sm"),
    field(Cell::Ecc, "ecc.errors.uncorrected.volatile.total"),
    Field { cell: Cell::Throttle, name: "clocks_event_reasons.active", former: Some("clocks_throttle_reasons.active") },
    field(Cell::Mig, "mig.mode.current"),
    field(Cell::Fan, "fan.speed"),
    field(Cell::PcieGen, "pcie.link.gen.current"),
    field(Cell::PcieLanes, "pcie.link.width.current"),
];

impl Default for GpuQuery {
    /// Queries everything that a [`GpuSample`] contains.
    fn default() -> Self {
        GpuQuery { fields: FIELDS.to_vec() }
    }
}

impl GpuQuery {
    /// Queries only the fields that show whether GPUs can be used. Every driver has them, so that the query never needs a retry.
    pub fn of_use() -> Self {
        const CELLS: [Cell; 6] = [Cell::Index, Cell::Uuid, Cell::BusId, Cell::MemUsed, Cell::MemTotal, Cell::Ecc];
        GpuQuery { fields: FIELDS.into_iter().filter(|field| CELLS.contains(&field.cell)).collect() }
    }

    /// Returns the query to try after the driver has rejected a field: with the field's former name, or else without the
    /// field. Returns none if nothing can be changed.
    pub fn without(&self, unknown: &str) -> Option<GpuQuery> {
        let at = self.fields.iter().position(|field| field.name == unknown)?;
        let mut fields = self.fields.clone();
        match fields[at].former {
            Some(former) => fields[at] = Field { name: former, former: None, ..fields[at] },
            None => drop(fields.remove(at)),
        }
        (!fields.is_empty()).then_some(GpuQuery { fields })
    }

    /// Reads the output of both streams as one text, and the exit status if known.
    ///
    /// A last line without a line end is incomplete and is not read.
    pub fn read(&self, text: &str, status: Option<i32>, t: f64) -> Output<GpuSample> {
        let mut output = Output::read(text, status, Rows::OnePerGpu, |line, place| {
            let cells = cells(line, self.fields.len(), self.fields.iter().position(|f| f.cell == Cell::Name))?;
            // A message may have as many commas as a row, but no index in front.
            let numbered = cells[0].bytes().all(|b| b.is_ascii_digit()) || cells[0].starts_with('[');
            (numbered && !cells[0].is_empty()).then(|| self.sample(&cells, place, t))
        });
        // The status adds nothing to a row that shows which GPU is lost.
        if output.rows.iter().any(|gpu| gpu.fault().is_some()) {
            output.smi_errors.retain(|error| *error != SmiError::Failed { status: FALLEN_OFF });
        }
        output
    }

    fn sample(&self, cells: &[&str], place: usize, t: f64) -> GpuSample {
        let of = |cell| self.fields.iter().position(|field| field.cell == cell).map(|at| cells[at]);
        let text = |cell| of(cell).filter(|text| !text.is_empty() && !text.starts_with('[')).map(str::to_owned);
        GpuSample {
            t,
            index: of(Cell::Index).and_then(|cell| cell.parse().ok()).unwrap_or(place as u32),
            uuid: text(Cell::Uuid),
            name: text(Cell::Name),
            bus_id: text(Cell::BusId),
            power_w: number(of(Cell::Power)),
            power_limit_w: number(of(Cell::PowerLimit)),
            mem_used_mib: whole(of(Cell::MemUsed)),
            mem_total_mib: whole(of(Cell::MemTotal)),
            util_pct: number(of(Cell::Util)),
            temp_c: number(of(Cell::Temp)),
            sm_clock_mhz: number(of(Cell::SmClock)),
            fan_pct: number(of(Cell::Fan)),
            pcie_gen: whole(of(Cell::PcieGen)),
            pcie_lanes: whole(of(Cell::PcieLanes)),
            ecc_uncorrected: whole(of(Cell::Ecc)),
            throttle_reasons: read_cell(of(Cell::Throttle), |cell| {
                u64::from_str_radix(cell.strip_prefix("0x")?, 16).ok().map(ThrottleReasons)
            }),
            mig: of(Cell::Mig) == Some("Enabled"),
            processes: Vec::new(),
        }
    }
}

/// Shows the argument of nvidia-smi: `--query-gpu=index,…`.
impl fmt::Display for GpuQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.fields.iter().map(|field| field.name).collect();
        write!(f, "--query-gpu={}", names.join(","))
    }
}

/// The output of a query: rows and errors.
#[derive(Debug, Clone, PartialEq)]
pub struct Output<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// Lines that are not rows, and errors and warnings of nvidia-smi.
    pub smi_errors: Vec<SmiError>,
}

/// How many rows an output has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// One row per GPU, so that an output without rows is incomplete.
    OnePerGpu,
    /// Any number.
    Any,
}

impl<T> Output<T> {
    /// Returns why rows may be missing. Warnings beside complete rows do not count.
    pub fn failure(&self) -> Option<&SmiError> {
        self.smi_errors.iter().find(|error| !error.is_warning())
    }

    fn read(text: &str, status: Option<i32>, count: Rows, mut row: impl FnMut(&str, usize) -> Option<T>) -> Self {
        let (mut rows, mut others) = (Vec::new(), Vec::new());
        for line in text.split_inclusive('\n') {
            let trimmed = line.trim();
            let whole = line.ends_with('\n');
            match row(trimmed, rows.len()).filter(|_| whole) {
                Some(read) => rows.push(read),
                None if trimmed.is_empty() => {}
                None if whole => others.push(trimmed),
                None => others.push(line),
            }
        }
        let has_rows = count == Rows::Any || !rows.is_empty();
        Output { rows, smi_errors: error::all(&others, status, has_rows) }
    }
}

/// A compute process with its GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputeApp {
    /// The GPU; under MIG, the GPU of the instance.
    pub gpu_uuid: Option<String>,
    /// The process.
    pub process: GpuProcess,
}

/// Reads the output of [`COMPUTE_APPS`] like [`GpuQuery::read`].
///
/// A program's name may contain commas, so the memory is read from the right.
pub fn read_compute_apps(text: &str, status: Option<i32>) -> Output<ComputeApp> {
    Output::read(text, status, Rows::Any, |line, _| {
        let cells = cells(line, 4, Some(2))?;
        let listed = cells[0].starts_with("GPU-") || cells[0].starts_with("MIG-") || cells[0].starts_with('[');
        listed.then(|| ComputeApp {
            gpu_uuid: (!cells[0].starts_with('[')).then(|| cells[0].into()),
            process: GpuProcess {
                pid: read_cell(Some(cells[1]), |cell| cell.parse().ok()),
                name: cells[2].into(),
                mem_used_mib: whole(Some(cells[3])),
                owner: None,
            },
        })
    })
}

/// Splits a row into cells. Extra commas belong to the cell with free text.
fn cells(line: &str, count: usize, free: Option<usize>) -> Option<Vec<&str>> {
    let commas: Vec<usize> = line.match_indices(',').map(|(at, _)| at).collect();
    let extra = (commas.len() + 1).checked_sub(count).filter(|&extra| extra == 0 || free.is_some())?;
    let free = free.unwrap_or(count);
    let mut cells = Vec::with_capacity(count);
    let mut start = 0;
    for cell in 0..count {
        // The comma after this cell; commas inside the free text are skipped.
        let comma = if cell < free { cell } else { cell + extra };
        let end = commas.get(comma).copied().unwrap_or(line.len());
        cells.push(line[start..end].trim());
        start = end + 1;
    }
    Some(cells)
}

fn number(cell: Option<&str>) -> Reading<f64> {
    read_cell(cell, |cell| cell.parse().ok().filter(|number: &f64| number.is_finite()))
}

fn whole(cell: Option<&str>) -> Reading<u64> {
    read_cell(cell, |cell| cell.parse().ok())
}

/// Reads a cell without its unit. A missing cell was not queried.
fn read_cell<T>(cell: Option<&str>, read: impl Fn(&str) -> Option<T>) -> Reading<T> {
    let Some(cell) = cell else { return Reading::Absent(Absent::NotAsked) };
    let bare = cell.rsplit_once(' ').filter(|(_, unit)| matches!(*unit, "W" | "MiB" | "%" | "MHz" | "C"));
    match read(bare.map_or(cell, |(number, _)| number)) {
        Some(value) => Reading::Value(value),
        None => Reading::Absent(Absent::from(cell.to_owned())),
    }
}

#[cfg(test)]
mod tests;

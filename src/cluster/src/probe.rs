//! Node probes: a script that prints frames of samples, and the parser of those frames.
//!
//! One shell per node prints all frames, so that monitoring needs no further logins and never starts a second nvidia-smi while
//! one hangs. A frame is
//!
//! ```text
//! #frame 17 1763612345.123456789 512.31  number, node clock in Unix seconds, uptime
//! #host                                boot id, /proc/loadavg, lines of /proc/meminfo, the first of /proc/stat,
//!                                      byte counters of network interfaces and InfiniBand ports
//! #gpus                                rows or errors
//!                                      (an empty line: the last row is complete)
//! #exit 0
//! #apps                                rows of compute processes or errors, as after #gpus
//!
//! #exit 0
//! #processes                           pid, user, age and command of each
//! #usage                               pid, user and kernel ticks, resident memory in KiB of each
//! #environment                         /proc/PID/environ:RANK=3
//! #xids                                in some frames: Xid lines of the kernel log, or `denied`
//! #end 17 513.02                       number, uptime
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::gpu::{GpuProcess, GpuSample, ProcessOwner};
use crate::nvidia_smi::{COMPUTE_APPS, ComputeApp, FORMAT, GpuQuery, SmiError, read_compute_apps};
use crate::{LinkBytes, Xid, XidAt, remove_ended};

/// A longer line is truncated and a longer frame is dropped.
const LONGEST_LINE: usize = 16 * 1024;
const LONGEST_FRAME: usize = 1024 * 1024;

/// The intervals at which a node prints frames.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Seconds between two frames.
    pub every_s: f64,
    /// Seconds between the first two frames. The value differs between nodes, so that they do not print frames at the same time.
    pub first_s: f64,
    /// Seconds after which nvidia-smi counts as hung and frames continue without it. The script tries to kill nvidia-smi a little
    /// earlier.
    pub hung_s: u32,
}

impl Pace {
    /// Makes a pace with equal intervals and the default limit for nvidia-smi.
    pub fn every_s(every_s: f64) -> Self {
        Pace { every_s, first_s: every_s, hung_s: 25 }
    }
}

/// Ends the loop as soon as the connection closes standard input. Without this, the loop would end only when its next write fails.
const UNTIL_INPUT_ENDS: &str = "frames &
loop=$!
cat >/dev/null
kill $loop 2>/dev/null";

/// Returns the probe script for `sh -c`, which ends when its standard input closes.
pub fn script_until_input_ends(query: &GpuQuery, pace: Pace) -> String {
    format!("{}{UNTIL_INPUT_ENDS}", functions(query, pace))
}

/// Returns the probe script for `sh -c`, which runs until the caller ends it or closes its output.
pub fn script(query: &GpuQuery, pace: Pace) -> String {
    format!("{}frames", functions(query, pace))
}

fn functions(query: &GpuQuery, pace: Pace) -> String {
    let Pace { every_s, first_s, hung_s } = pace;
    format!(
        "query='{query}' format='{FORMAT}' apps='{COMPUTE_APPS}' every={every_s} first={first_s} hung={hung_s} sys=/sys\n{}{}",
        Xid::SCRIPT,
        include_str!("probe.sh")
    )
}

/// A sample of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// The number of the frame, counted from the start of the stream.
    pub number: u64,
    /// The node's clock at the start of the frame, Unix seconds.
    pub t: f64,
    /// Seconds from the start to the end of the frame. Most of this is nvidia-smi.
    #[serde(default)]
    pub took_s: f64,
    /// CPU and memory.
    pub host: HostSample,
    /// The GPUs with their processes.
    pub gpus: Vec<GpuSample>,
    /// Compute processes on GPUs that are not in `gpus`, such as lost GPUs.
    pub elsewhere: Vec<GpuProcess>,
    /// Errors of nvidia-smi.
    #[serde(rename = "troubles")]
    pub smi_errors: Vec<SmiError>,
    /// Xid errors since boot, from the last frame that contained the kernel log.
    #[serde(default)]
    pub xids: Vec<XidAt>,
    /// Whether the user may not read the kernel log.
    #[serde(default)]
    pub xids_denied: bool,
}

/// A sample of CPU, memory and network.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HostSample {
    /// The boot id; it changes when the node reboots.
    pub boot_id: Option<String>,
    /// The load average over one minute.
    pub load: Option<f64>,
    /// Available memory.
    pub mem_available_mib: Option<u64>,
    /// Total memory.
    pub mem_total_mib: Option<u64>,
    /// CPU ticks since boot.
    #[serde(default)]
    pub cpu: Option<CpuTicks>,
    /// The counters of network interfaces and InfiniBand ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkBytes>,
}

/// Clock ticks of all CPUs since boot; two samples give the CPU utilization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTicks {
    /// Busy ticks.
    pub busy: u64,
    /// All ticks.
    pub total: u64,
}

impl CpuTicks {
    /// Returns the CPU utilization since an earlier sample, over all CPUs, in percent.
    pub fn busy_pct_since(self, earlier: CpuTicks) -> Option<f64> {
        let total = self.total.checked_sub(earlier.total).filter(|total| *total > 0)?;
        Some(self.busy.checked_sub(earlier.busy)? as f64 / total as f64 * 100.0)
    }
}

/// The section of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    Host,
    Gpus,
    Apps,
    Processes,
    Usage,
    Environment,
    Xids,
}

const SECTIONS: [(&str, Section); 7] = [
    ("#host", Section::Host),
    ("#gpus", Section::Gpus),
    ("#apps", Section::Apps),
    ("#processes", Section::Processes),
    ("#usage", Section::Usage),
    ("#environment", Section::Environment),
    ("#xids", Section::Xids),
];

/// Reads frames from a stream of bytes in pieces of any size.
#[derive(Debug, Clone)]
pub struct Frames {
    query: GpuQuery,
    /// The incomplete last line.
    line: Vec<u8>,
    open: Option<Open>,
    /// The Xid errors of the last frame with the kernel log, which frames without it get too.
    xids: Vec<XidAt>,
}

/// An incomplete frame.
#[derive(Debug, Clone)]
struct Open {
    number: u64,
    t: f64,
    up_s: Option<f64>,
    section: Option<Section>,
    texts: BTreeMap<Section, String>,
    exits: BTreeMap<Section, i32>,
    length: usize,
}

impl Frames {
    /// Makes a parser for the output of [`script`] with this query.
    pub fn new(query: GpuQuery) -> Self {
        Frames { query, line: Vec::new(), open: None, xids: Vec::new() }
    }

    /// Reads the next bytes and returns the frames that they complete.
    pub fn push(&mut self, mut bytes: &[u8]) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.keep(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            frames.extend(self.push_line(&String::from_utf8_lossy(&line)));
        }
        self.keep(bytes);
        frames
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = LONGEST_LINE.saturating_sub(self.line.len());
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Reads the next line, without its line end, and returns the frame that it completes.
    pub fn push_line(&mut self, line: &str) -> Option<Frame> {
        if let Some(header) = line.strip_prefix("#frame ") {
            let open = read_header(header);
            // A line that begins like a header but is not valid is the output of another program.
            if open.is_some() {
                self.open = open;
            }
            return None;
        }
        let open = self.open.as_mut()?;
        if let Some((_, section)) = SECTIONS.iter().find(|(name, _)| *name == line) {
            open.section = Some(*section);
            open.texts.entry(*section).or_default();
        } else if let Some(status) = line.strip_prefix("#exit ").and_then(|status| status.parse().ok()) {
            if let Some(section) = open.section {
                open.exits.insert(section, status);
            }
            open.section = None;
        } else if let Some((number, up_s)) = line.strip_prefix("#end ").and_then(read_end)
            && number == open.number
        {
            let open = self.open.take()?;
            if let Some(xids) = open.xids() {
                self.xids = xids;
            }
            return Some(Frame { xids: self.xids.clone(), ..open.close(&self.query, up_s) });
        } else if let Some(section) = open.section {
            open.length += line.len() + 1;
            if open.length > LONGEST_FRAME {
                self.open = None;
                return None;
            }
            let text = open.texts.entry(section).or_default();
            text.push_str(line);
            text.push('\n');
        }
        None
    }
}

/// Reads `17 1763612345.123456789 512.31`.
fn read_header(header: &str) -> Option<Open> {
    let mut words = header.split(' ');
    let (number, clock) = (words.next()?.parse().ok()?, words.next()?);
    let t: f64 = clock.parse().ok().filter(|t: &f64| t.is_finite())?;
    let up_s = words.next().map_or(Some(None), |up| up.parse().ok().map(Some))?;
    let (texts, exits) = (BTreeMap::new(), BTreeMap::new());
    Some(Open { number, t, up_s, section: None, texts, exits, length: 0 })
}

/// Reads `17 513.02`.
fn read_end(end: &str) -> Option<(u64, Option<f64>)> {
    let (number, up_s) = end.split_once(' ').unzip();
    Some((number.unwrap_or(end).parse().ok()?, up_s.and_then(|up| up.parse().ok())))
}

impl Open {
    /// Returns the Xid errors that no later line ends, if this frame contains the kernel log.
    fn xids(&self) -> Option<Vec<XidAt>> {
        let text = self.texts.get(&Section::Xids)?;
        let mut xids = text.lines().filter_map(|line| XidAt::read(line, self.t, self.up_s?)).collect();
        remove_ended(&mut xids, |at: &XidAt| &at.xid);
        Some(xids)
    }

    fn close(self, query: &GpuQuery, up_s: Option<f64>) -> Frame {
        let text = |section| self.texts.get(&section).map_or("", String::as_str);
        let status = |section| self.exits.get(&section).copied();
        let gpus = query.read(rows(text(Section::Gpus)), status(Section::Gpus), self.t);
        let apps = read_compute_apps(rows(text(Section::Apps)), status(Section::Apps));
        let owners = read_owners(text(Section::Processes), text(Section::Usage), text(Section::Environment));
        let mut frame = Frame {
            number: self.number,
            t: self.t,
            took_s: up_s.zip(self.up_s).map_or(0.0, |(end, start)| end - start).max(0.0),
            host: read_host(text(Section::Host)),
            gpus: gpus.rows,
            elsewhere: Vec::new(),
            smi_errors: gpus.smi_errors,
            xids: Vec::new(),
            xids_denied: text(Section::Xids).trim() == "denied",
        };
        for ComputeApp { gpu_uuid, mut process } in apps.rows {
            process.owner = process.pid.value().and_then(|pid| owners.get(&pid).cloned());
            match frame.gpus.iter_mut().find(|gpu| gpu_uuid.is_some() && gpu.uuid == gpu_uuid) {
                Some(gpu) => gpu.processes.push(process),
                None => frame.elsewhere.push(process),
            }
        }
        // Both queries report errors such as a missing driver: keep each error once.
        let more: Vec<_> = apps.smi_errors.into_iter().filter(|error| !frame.smi_errors.contains(error)).collect();
        frame.smi_errors.extend(more);
        frame
    }
}

/// Removes the line end that the script adds. The remaining text ends with a line end only if the last row is complete.
fn rows(text: &str) -> &str {
    text.strip_suffix('\n').unwrap_or(text)
}

fn read_host(text: &str) -> HostSample {
    let mut host = HostSample::default();
    for line in text.lines() {
        let mib = |rest: &str| Some(rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? / 1024);
        if let Some(rest) = line.strip_prefix("MemTotal:") {
            host.mem_total_mib = mib(rest);
        } else if let Some(rest) = line.strip_prefix("MemAvailable:") {
            host.mem_available_mib = mib(rest);
        } else if let Some(rest) = line.strip_prefix("cpu ") {
            host.cpu = read_cpu(rest);
        } else if let Some(link) = LinkBytes::read(line) {
            host.links.push(link);
        } else if line.len() == 36 && !line.contains(' ') {
            host.boot_id = Some(line.into());
        } else if let Some(load) = line.split(' ').next().and_then(|load| load.parse().ok()) {
            host.load = Some(load);
        }
    }
    host
}

/// Reads `user nice system idle iowait irq softirq steal guest guest_nice`; user and nice include the guests.
fn read_cpu(rest: &str) -> Option<CpuTicks> {
    let ticks: Vec<u64> = rest.split_whitespace().take(8).map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let total: u64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4).unwrap_or(&0);
    Some(CpuTicks { busy: total.checked_sub(idle)?, total })
}

/// Reads lines of `ps`, `4100 me 3600 python3 train.py`, of `/proc/PID/stat` and of the environments of the processes.
fn read_owners(processes: &str, usage: &str, environment: &str) -> BTreeMap<u32, ProcessOwner> {
    let mut owners = BTreeMap::new();
    for line in processes.lines() {
        let mut words = line.split_whitespace();
        let (Some(pid), Some(user), Some(age)) = (words.next(), words.next(), words.next()) else { continue };
        let (Ok(pid), Ok(age_s)) = (pid.parse(), age.parse()) else { continue };
        let command = words.collect::<Vec<_>>().join(" ");
        owners.insert(pid, ProcessOwner { user: user.into(), age_s, command, ..ProcessOwner::default() });
    }
    for line in usage.lines() {
        let numbers: Option<Vec<u64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        let Some(&[pid, user, kernel, memory_kib]) = numbers.as_deref() else { continue };
        if let Some(owner) = u32::try_from(pid).ok().and_then(|pid| owners.get_mut(&pid)) {
            owner.cpu_ticks = user.checked_add(kernel);
            owner.host_mem_mib = Some(memory_kib / 1024);
        }
    }
    let mut set = BTreeSet::new();
    for line in environment.lines() {
        let read = line.strip_prefix("/proc/").and_then(|rest| rest.split_once("/environ:"));
        let Some((pid, (key, value))) = read.and_then(|(pid, set)| Some((pid, set.split_once('=')?))) else { continue };
        let Some((pid, owner)) = pid.parse().ok().and_then(|pid| Some((pid, owners.get_mut(&pid)?))) else { continue };
        // The first value of a variable counts, as for getenv.
        if set.insert((pid, key.to_owned())) {
            match key {
                "VIDTUI_RUN" => owner.run = Some(value.into()),
                "RANK" => owner.rank = value.parse().ok(),
                _ => {}
            }
        }
    }
    owners
}

#[cfg(test)]
mod tests;

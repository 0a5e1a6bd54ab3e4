//! Errors that NVIDIA's driver writes to the kernel's log, by their numbers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One error: `NVRM: Xid (PCI:0000:19:00): 79, pid='<unknown>', GPU has fallen off the bus.`
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Xid {
    /// Its number.
    pub number: u32,
    /// Where the GPU is plugged in: `0000:19:00`.
    pub bus_id: String,
}

/// An error, and when it happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct XidAt {
    /// Unix seconds of the node's clock.
    pub t: f64,
    /// The error.
    #[serde(flatten)]
    pub xid: Xid,
}

impl XidAt {
    /// Reads a line that says for how long the node had been up: `[ 4711.123456] NVRM: Xid …`. At `now_s` it has been for
    /// `up_s` seconds.
    pub fn read(line: &str, now_s: f64, up_s: f64) -> Option<Self> {
        let (stamp, _) = line.strip_prefix('[')?.split_once(']')?;
        let at_s: f64 = stamp.trim().parse().ok()?;
        Some(Self { t: now_s - (up_s - at_s), xid: Xid::read(line)? })
    }
}

/// What is to be done about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum XidAction {
    /// Nothing: another error is the cause, or the driver has dealt with it.
    Note,
    /// The program failed; the GPU is well.
    Restart,
    /// The GPU needs a reset before it is used again.
    Reset,
    /// The machine needs a reboot.
    Reboot,
}

impl Xid {
    /// What the numbers that matter mean. NVIDIA's "Xid Errors" lists all of them.
    const TABLE: [(u32, XidAction, &str); 20] = [
        (13, XidAction::Restart, "a kernel used memory that is not its own"),
        (31, XidAction::Restart, "a kernel used memory that is not its own"),
        (43, XidAction::Note, "a program was ended; the error before it is the cause"),
        (45, XidAction::Note, "a program was ended; the error before it is the cause"),
        (48, XidAction::Reset, "a memory error that could not be corrected"),
        (62, XidAction::Reset, "its controller stopped"),
        (63, XidAction::Note, "a row of its memory was replaced"),
        (64, XidAction::Reset, "a row of its memory could not be replaced"),
        (74, XidAction::Reset, "NVLink failed"),
        (79, XidAction::Reboot, "it has fallen off the bus"),
        (92, XidAction::Note, "many memory errors were corrected"),
        (94, XidAction::Restart, "a memory error, kept to one program"),
        (95, XidAction::Reset, "a memory error, not kept to one program"),
        (109, XidAction::Reset, "it did not switch between programs in time"),
        (119, XidAction::Reset, "its system processor does not answer"),
        (120, XidAction::Reset, "its system processor failed"),
        (140, XidAction::Reset, "a memory error that could not be corrected"),
        (144, XidAction::Reset, "NVLink failed"),
        (145, XidAction::Reset, "NVLink failed"),
        (149, XidAction::Reset, "NVLink failed"),
    ];

    /// Defines `xids` for `sh`, which prints the lines of the kernel's log that are about GPUs, or `denied` to a user who may
    /// not read it.
    pub const SCRIPT: &str = include_str!("xids.sh");

    /// Reads one line of the kernel's log; nothing if it is about something else.
    pub fn read(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once("NVRM: Xid (PCI:")?;
        let (bus_id, rest) = rest.split_once("): ")?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
        Some(Self { number: digits.parse().ok()?, bus_id: bus_id.into() })
    }

    /// Whether it is of the GPU that nvidia-smi has at this place: `00000000:19:00.0`.
    pub fn is_at(&self, bus_id: &str) -> bool {
        let (place, _function) = bus_id.rsplit_once('.').unwrap_or((bus_id, ""));
        place.to_ascii_lowercase().ends_with(&self.bus_id.to_ascii_lowercase())
    }

    /// What it means; nothing for a number that is not in the table.
    fn meaning(&self) -> Option<&'static str> {
        self.row().map(|(.., meaning)| *meaning)
    }

    /// What is to be done. An unknown number is taken for the program's fault, as most are.
    pub fn action(&self) -> XidAction {
        self.row().map_or(XidAction::Restart, |(_, action, _)| *action)
    }

    fn row(&self) -> Option<&'static (u32, XidAction, &'static str)> {
        Self::TABLE.iter().find(|(number, ..)| *number == self.number)
    }
}

/// `Xid 79 at 0000:19:00: it has fallen off the bus`.
impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Xid {} at {}", self.number, self.bus_id)?;
        self.meaning().map_or(Ok(()), |meaning| write!(f, ": {meaning}"))
    }
}

impl XidAction {
    /// Says it to a person.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Note => "nothing is to be done",
            Self::Restart => "the GPU is well; start again what failed",
            Self::Reset => "reset the GPU before it is used again (nvidia-smi -r), or leave the node out: --exclude",
            Self::Reboot => "reboot the node before it is used again, or leave it out: --exclude",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_found_in_the_kernels_log_and_nowhere_else() {
        let lines = [
            "[Thu Nov 20 03:40:12 2026] NVRM: Xid (PCI:0000:19:00): 79, pid='<unknown>', GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:3b:00): 13, Graphics SM Warp Exception",
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
            "NVRM: Xid (PCI:0000:3b:00): many",
        ];
        let read: Vec<(u32, XidAction)> =
            lines.iter().filter_map(|line| Xid::read(line)).map(|xid| (xid.number, xid.action())).collect();
        assert_eq!(read, [(79, XidAction::Reboot), (13, XidAction::Restart)]);
        assert_eq!(Xid::read(lines[0]).unwrap().bus_id, "0000:19:00");
        // As `dmesg` and `journalctl -o short-monotonic` write it.
        for line in [
            "[ 4711.500000] NVRM: Xid (PCI:0000:3b:00): 48, pid=7",
            "[ 4711.500000] ml-1 kernel: NVRM: Xid (PCI:0000:3b:00): 48",
        ] {
            let xid = Xid { number: 48, bus_id: "0000:3b:00".into() };
            assert_eq!(XidAt::read(line, 100_000.0, 4720.0), Some(XidAt { t: 99_991.5, xid }));
        }
    }
}

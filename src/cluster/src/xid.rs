//! Xid errors, which NVIDIA's driver writes to the kernel log.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One error: `NVRM: Xid (PCI:0000:19:00): 79, pid='<unknown>', GPU has fallen off the bus.`
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Xid {
    /// The Xid number.
    pub number: u32,
    /// The PCI bus id of the GPU: `0000:19:00`.
    pub bus_id: String,
}

/// An error with its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct XidAt {
    /// The time by the node's clock, Unix seconds.
    pub t: f64,
    /// The error.
    #[serde(flatten)]
    pub xid: Xid,
}

impl XidAt {
    /// Reads a line that begins with the uptime: `[ 4711.123456] NVRM: Xid …`. At `now_s` the uptime is `up_s` seconds.
    pub fn read(line: &str, now_s: f64, up_s: f64) -> Option<Self> {
        let (stamp, _) = line.strip_prefix('[')?.split_once(']')?;
        let at_s: f64 = stamp.trim().parse().ok()?;
        Some(Self { t: now_s - (up_s - at_s), xid: Xid::read(line)? })
    }
}

/// The action that an error requires from the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum XidAction {
    /// Nothing. Another error is the cause, or the driver has corrected this one.
    Note,
    /// The program failed; the GPU is healthy.
    Restart,
    /// The GPU needs a reset before it is used again.
    Reset,
    /// The node needs a reboot.
    Reboot,
}

impl Xid {
    /// Action and meaning of the numbers that matter for training. NVIDIA's documentation "Xid Errors" lists all numbers.
    const TABLE: [(u32, XidAction, &str); 20] = [
        (13, XidAction::Restart, "a kernel accessed invalid memory"),
        (31, XidAction::Restart, "a kernel accessed invalid memory"),
        (43, XidAction::Note, "a program was terminated; the previous error is the cause"),
        (45, XidAction::Note, "a program was terminated; the previous error is the cause"),
        (48, XidAction::Reset, "an uncorrected memory error"),
        (62, XidAction::Reset, "the internal microcontroller stopped"),
        (63, XidAction::Note, "a memory row was remapped"),
        (64, XidAction::Reset, "a memory row could not be remapped"),
        (74, XidAction::Reset, "NVLink failed"),
        (79, XidAction::Reboot, "the GPU has fallen off the bus"),
        (92, XidAction::Note, "many corrected memory errors"),
        (94, XidAction::Restart, "an uncorrected memory error, contained to one program"),
        (95, XidAction::Reset, "an uncorrected memory error, not contained to one program"),
        (109, XidAction::Reset, "a context switch timed out"),
        (119, XidAction::Reset, "the GPU system processor (GSP) does not respond"),
        (120, XidAction::Reset, "the GPU system processor (GSP) failed"),
        (140, XidAction::Reset, "an uncorrected memory error"),
        (144, XidAction::Reset, "NVLink failed"),
        (145, XidAction::Reset, "NVLink failed"),
        (149, XidAction::Reset, "NVLink failed"),
    ];

    /// The shell function `xids`, which prints the Xid lines of the kernel log, or `denied` if the user may not read the log.
    pub const SCRIPT: &str = include_str!("xids.sh");

    /// Reads a line of the kernel log. Returns `None` if the line is not an Xid error.
    pub fn read(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once("NVRM: Xid (PCI:")?;
        let (bus_id, rest) = rest.split_once("): ")?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
        Some(Self { number: digits.parse().ok()?, bus_id: bus_id.into() })
    }

    /// Returns whether the error is about the GPU with this PCI bus id, in nvidia-smi's format: `00000000:19:00.0`.
    pub fn is_at(&self, bus_id: &str) -> bool {
        let (place, _function) = bus_id.rsplit_once('.').unwrap_or((bus_id, ""));
        place.to_ascii_lowercase().ends_with(&self.bus_id.to_ascii_lowercase())
    }

    /// Returns the meaning, if the number is in the table.
    fn meaning(&self) -> Option<&'static str> {
        self.row().map(|(.., meaning)| *meaning)
    }

    /// Returns the required action. For an unknown number, this is a restart of the program, because programs cause most Xid
    /// errors.
    pub fn action(&self) -> XidAction {
        self.row().map_or(XidAction::Restart, |(_, action, _)| *action)
    }

    fn row(&self) -> Option<&'static (u32, XidAction, &'static str)> {
        Self::TABLE.iter().find(|(number, ..)| *number == self.number)
    }
}

/// Shows `Xid 79 at 0000:19:00: the GPU has fallen off the bus`.
impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Xid {} at {}", self.number, self.bus_id)?;
        self.meaning().map_or(Ok(()), |meaning| write!(f, ": {meaning}"))
    }
}

impl XidAction {
    /// Returns the advice for the user.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Note => "nothing to do",
            Self::Restart => "the GPU is healthy; restart the failed program",
            Self::Reset => "reset the GPU before you use it again (nvidia-smi -r), or exclude the node: --exclude",
            Self::Reboot => "reboot the node before you use it again, or exclude it: --exclude",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_xid_lines_of_the_kernel_log_are_read() {
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
        // The formats of `dmesg` and `journalctl -o short-monotonic`.
        for line in [
            "[ 4711.500000] NVRM: Xid (PCI:0000:3b:00): 48, pid=7",
            "[ 4711.500000] ml-1 kernel: NVRM: Xid (PCI:0000:3b:00): 48",
        ] {
            let xid = Xid { number: 48, bus_id: "0000:3b:00".into() };
            assert_eq!(XidAt::read(line, 100_000.0, 4720.0), Some(XidAt { t: 99_991.5, xid }));
        }
    }
}

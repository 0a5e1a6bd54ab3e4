//! Xid errors, which NVIDIA's driver writes to the kernel log.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::pci;

/// One error: `NVRM: Xid (PCI:0000:19:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.`
///
/// NVSwitches have errors of the same form: `nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Fatal, …`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Xid {
    /// The Xid number.
    pub number: u32,
    /// The PCI bus id of the GPU, as in the log: `0000:19:00`.
    pub bus_id: String,
    /// The action that the message requires, where it states more than the number does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<XidAction>,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XidAction {
    /// Nothing. Another error is the cause, or the driver has corrected this one.
    Note,
    /// The program failed; the GPU is healthy.
    Restart,
    /// The number is not in `CATALOG`, or the catalog requires a look at the hardware.
    Check,
    /// The GPU can be used, and a reset completes a repair.
    ResetLater,
    /// Programs that use links between GPUs must end before the GPU is used again.
    Drain,
    /// The GPU needs a reset before it is used again.
    Reset,
    /// The node needs a reboot.
    Reboot,
}

use XidAction::{Check, Drain, Note, Reboot, Reset, ResetLater, Restart};

/// Numbers with the action that NVIDIA recommends, and their meaning.
///
/// Source: column "Immediate Action" of the Xid catalog in NVIDIA's documentation "Xid Errors" (`docs.nvidia.com/deploy/xid-errors`),
/// as of 2025-10-29. Numbers that the catalog lists as unused are left out. The catalog refers to workflows for 45, 48, 74 and 144
/// to 150. This table has the action for an error that stands alone, and [`required`] reads the message.
#[rustfmt::skip]
const CATALOG: [(&[u32], XidAction, &str); 46] = [
    (&[8], Restart, "a program made the GPU stop processing"),
    (&[11, 25, 32, 69, 80], Restart, "a program sent invalid commands"),
    (&[13, 31], Restart, "a kernel accessed invalid memory"),
    (&[37, 38], Note, "the driver's firmware had an error"),
    (&[39, 40, 41, 70, 71, 72, 75, 76, 77, 85], Restart, "a copy engine failed"),
    (&[126, 127, 128, 129, 130, 131, 132, 133, 134, 135], Restart, "a copy engine failed"),
    (&[43, 45], Note, "a program was terminated; the previous error is the cause"),
    (&[44], Note, "a context switch failed"),
    (&[46], Reset, "the GPU stopped processing"),
    (&[48], Reset, "an uncorrected memory error"),
    (&[54], Check, "the power cable of the GPU is not connected"),
    (&[60, 68, 82, 83, 84, 86, 88, 89, 139], Restart, "a video engine failed"),
    (&[96, 97, 98, 99, 100, 101, 102, 103, 104, 105], Restart, "a video engine failed"),
    (&[62], Reset, "the internal microcontroller stopped"),
    (&[63], Note, "a memory row was remapped"),
    (&[64], Reset, "a memory row could not be remapped"),
    (&[66, 67], Note, "the driver accessed a protected register"),
    (&[74], Reset, "NVLink failed"),
    (&[78], Check, "a virtual GPU does not start"),
    (&[79], Reboot, "the GPU has fallen off the bus"),
    (&[92], Note, "many corrected memory errors"),
    (&[93], Note, "the GPU's infoROM was written often"),
    (&[94], Restart, "an uncorrected memory error, contained to one program"),
    (&[95], Reset, "an uncorrected memory error, not contained to one program"),
    (&[106, 107], Note, "a test message"),
    (&[108, 137], Note, "a program accessed invalid memory over NVLink"),
    (&[109], Reset, "a context switch timed out"),
    (&[110], Reset, "a security fault"),
    (&[119], Reset, "the GPU system processor (GSP) does not respond"),
    (&[120], Reset, "the GPU system processor (GSP) failed"),
    (&[121], Note, "the link between CPU and GPU had an error"),
    (&[136], Reset, "the training of an NVLink failed"),
    (&[140], Reset, "an uncorrected memory error"),
    (&[141], Note, "CUDA's fast path had an error"),
    (&[143], Reset, "the GPU did not initialize"),
    (&[144, 145, 146, 147, 148, 149, 150, 155], Reset, "NVLink failed"),
    (&[151], Reboot, "the keys of confidential computing were not renewed"),
    (&[152, 153], Note, "the deep learning accelerator had an error"),
    (&[154], Check, "the driver changed the recovery action of the GPU"),
    (&[156], Reset, "a defective unit of the GPU was retired"),
    (&[157], Note, "a defective unit of the GPU could not be retired"),
    (&[158], Reset, "the GPU does not respond"),
    (&[160], Note, "a memory channel was retired"),
    (&[161], Note, "a memory channel could not be retired"),
    (&[162, 163, 164, 165], Note, "the state of power smoothing changed"),
    (&[171, 172], Note, "details of an uncorrected memory error (Xid 48)"),
];

/// The number by which the driver reports the recovery action of a GPU, each time when it changes.
const RECOVERY: u32 = 154;
/// The least number of an SXid, an error of an NVSwitch. Numbers of Xid errors are smaller.
const LEAST_SXID: u32 = 10_000;

impl Xid {
    /// The shell function `xids`, which prints the Xid lines of the kernel log, or `denied` if the user may not read the log.
    pub const SCRIPT: &str = include_str!("xids.sh");

    /// Reads a line of the kernel log. Returns `None` if the line is not an Xid error.
    ///
    /// The address may lack `PCI:` and the domain, and have a function; under MIG, the instance follows it:
    /// `Xid (PCI:0000:19:00 GPU-I:05 GPU-CI:02): 94, …`, `Xid (0000:19:00): 79, …`, `Xid (0019:00): 13, …`.
    pub fn read(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once("NVRM: Xid (").or_else(|| line.split_once("SXid ("))?;
        let (place, rest) = rest.split_once("): ")?;
        let address = place.strip_prefix("PCI:").unwrap_or(place).split(' ').next()?;
        let bus_id = address.split_once('.').map_or(address, |(bus_id, _function)| bus_id);
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, message) = (rest[..digits].parse().ok()?, &rest[digits..]);
        let required = required(number, message);
        // The other lines of an SXid have its number and only data.
        let is_error = number < LEAST_SXID || required.is_some();
        (is_error && pci::is_address(bus_id)).then(|| Self { number, bus_id: bus_id.into(), required })
    }

    /// Returns whether the error is about the GPU with this PCI bus id, in nvidia-smi's format: `00000000:19:00.0`.
    pub fn is_at(&self, bus_id: &str) -> bool {
        pci::is_same(&self.bus_id, bus_id)
    }

    /// Returns whether this later line ends an earlier error of the same GPU. Only the last recovery action of a GPU counts, and
    /// if it is none, the driver requires nothing any more.
    pub fn ends(&self, earlier: &Self) -> bool {
        self.number == RECOVERY
            && self.is_at(&earlier.bus_id)
            && (earlier.number == RECOVERY || self.required == Some(Note))
    }

    /// Returns the meaning, if it is known.
    fn meaning(&self) -> Option<&'static str> {
        let by_message = match (self.number, self.required?) {
            (RECOVERY, Note) => "the driver requires no recovery",
            (RECOVERY, Drain) => "the driver requires that programs end which use links of this GPU",
            (RECOVERY, Reboot) => "the driver requires a reboot of the node",
            (RECOVERY, _) => "the driver requires a reset of the GPU",
            (63 | 64 | 160, _) => "defective memory is replaced at the next reset of the GPU",
            (94 | 95, Restart) => "an uncorrected memory error, contained to one program",
            (94 | 95, _) => "an uncorrected memory error, after which the GPU needs a reset",
            (LEAST_SXID.., Note) => "an error of an NVSwitch that is not fatal",
            (LEAST_SXID.., _) => "a fatal error of an NVSwitch",
            _ => "an NVLink error that is not fatal",
        };
        Some(by_message)
    }

    /// Returns the required action: that of the message, or else that of the number.
    pub fn action(&self) -> XidAction {
        self.required.or_else(|| self.row().map(|(_, action, _)| *action)).unwrap_or(Check)
    }

    fn row(&self) -> Option<&'static (&'static [u32], XidAction, &'static str)> {
        CATALOG.iter().find(|(numbers, ..)| numbers.contains(&self.number))
    }
}

/// Removes errors that a later line of the log [ends](Xid::ends); `xid` returns the error of an item.
pub fn remove_ended<T>(log: &mut Vec<T>, xid: impl Fn(&T) -> &Xid) {
    let is_ended = |at: usize| log[at + 1..].iter().any(|later| xid(later).ends(xid(&log[at])));
    let mut kept: Vec<bool> = (0..log.len()).map(|at| !is_ended(at)).collect();
    kept.reverse();
    log.retain(|_| kept.pop().unwrap_or(true));
}

/// Returns the action that a message requires, where it states more than the number does.
///
/// Sources: the messages in NVIDIA's open kernel modules, and "GPU Memory Error Management" in NVIDIA's documentation.
fn required(number: u32, message: &str) -> Option<XidAction> {
    let message = message.to_ascii_lowercase();
    let has = |words: &str| message.contains(words);
    let is_not_fatal = || has("nonfatal") || has("non-fatal");
    match number {
        RECOVERY => recovery(&message),
        // `New row marked for remapping, reset gpu to activate`; 64 also reports a row that is `already pending`.
        63 | 64 | 160 => (has("to activate") || has("pending")).then_some(ResetLater),
        // `RST` is a reset, and `D-RST` a reset after the programs of the GPU have ended.
        94 | 95 if has("rst: yes") => Some(Reset),
        95 if has(", contained:") => Some(Restart),
        // `RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (…)`
        74 | 144..=150 => is_not_fatal().then_some(Restart),
        LEAST_SXID.. if is_not_fatal() => Some(Note),
        LEAST_SXID.. => has("fatal").then_some(Reset),
        _ => None,
    }
}

/// Reads `gpu recovery action changed from 0x0 (none) to 0x2 (node reboot required)`. The numbers are those of NVML's
/// `nvmlDeviceGpuRecoveryAction_t`; the words differ between drivers.
fn recovery(message: &str) -> Option<XidAction> {
    let (_, action) = message.rsplit_once(" to ")?;
    let has = |word: &str| action.contains(word);
    let digits = action.strip_prefix("0x").and_then(|number| number.split(' ').next());
    Some(match digits.and_then(|number| u32::from_str_radix(number, 16).ok()) {
        Some(0) => Note,
        Some(3 | 5) => Drain,
        Some(1 | 4 | 6) => Reset,
        Some(2 | 7) => Reboot,
        _ if has("reboot") => Reboot,
        _ if has("reset") => Reset,
        _ if has("none") => Note,
        _ => Check,
    })
}

/// Shows `Xid 79 at 0000:19:00: the GPU has fallen off the bus`.
impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.number < LEAST_SXID { "Xid" } else { "SXid" };
        write!(f, "{kind} {} at {}", self.number, self.bus_id)?;
        let meaning = self.meaning().or_else(|| self.row().map(|(.., meaning)| *meaning));
        meaning.map_or(Ok(()), |meaning| write!(f, ": {meaning}"))
    }
}

impl XidAction {
    /// Returns whether the GPU must not be used before the action is done.
    pub fn is_fault(self) -> bool {
        self >= Drain
    }

    /// Returns the advice for the user.
    pub fn in_words(self) -> &'static str {
        match self {
            Note => "nothing to do",
            Restart => "the GPU is healthy; restart the failed program",
            Check => "read the line in `dmesg`, and look the number up in NVIDIA's Xid catalog",
            ResetLater => "the GPU can be used; reset it when its programs have ended (nvidia-smi -r)",
            Drain => {
                "end all programs on the GPUs of the node before you use them again, or exclude the node: --exclude"
            }
            Reset => "reset the GPU before you use it again (nvidia-smi -r), or exclude the node: --exclude",
            Reboot => "reboot the node before you use it again, or exclude it: --exclude",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Xid {
        Xid::read(line).unwrap_or_else(|| panic!("{line}"))
    }

    #[test]
    fn only_xid_lines_of_the_kernel_log_are_read() {
        for line in [
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
            "NVRM: Xid (PCI:0000:3b:00): many",
            "NVRM: Xid (43, pid: 5678): ROBUST_CHANNEL_ERROR",
            "NVRM: Xid : 32, pid=2280636",
            "NVRM: Xid (PCI:0000:3b:00",
            "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Severity 0 Engine instance 28 Sub-engine instance 00",
            "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Data {0x50610002, 0x00000000}",
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal",
            "",
        ] {
            assert_eq!(Xid::read(line), None, "{line}");
        }
        // The formats of `dmesg`, also with the caller's thread, and of `journalctl -o short-monotonic`.
        for line in [
            "[ 4711.500000] NVRM: Xid (PCI:0000:3b:00): 48, pid=7",
            "[ 4711.500000][  T123] NVRM: Xid (PCI:0000:3b:00): 48, pid=7",
            "[ 4711.500000] ml-1 kernel: NVRM: Xid (PCI:0000:3b:00): 48",
        ] {
            let xid = Xid { number: 48, bus_id: "0000:3b:00".into(), required: None };
            assert_eq!(XidAt::read(line, 100_000.0, 4720.0), Some(XidAt { t: 99_991.5, xid }));
        }
    }

    #[test]
    fn every_form_of_the_address_is_read_and_is_that_of_the_gpu() {
        for place in [
            "PCI:0000:19:00",
            "PCI:0000:19:00.0",
            "PCI:0000:19:00 GPU-I:05",
            "PCI:0000:19:00 GPU-I:05 GPU-CI:02",
            "0000:19:00",
            "0019:00",
            "19:00",
        ] {
            let xid = read(&format!("NVRM: Xid ({place}): 13, pid='<unknown>', name=<unknown>, Graphics Exception"));
            assert!(
                xid.number == 13 && xid.is_at("00000000:19:00.0") && !xid.is_at("00000000:1A:00.0"),
                "{place}: {xid}"
            );
        }
        assert!(!read("NVRM: Xid (PCI:0001:19:00): 13, Ch 00000008").is_at("00000000:19:00.0"));
    }

    #[test]
    fn the_message_decides_where_it_states_more_than_the_number() {
        for (message, action) in [
            ("154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", Reset),
            ("154, GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)", Reset),
            ("154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", Reboot),
            ("154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", Reboot),
            ("154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", Drain),
            ("154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", Reset),
            ("154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)", Note),
            ("154, GPU recovery action changed from 0x0 (None) to 0x9 (System Reboot Required)", Reboot),
            ("154, pid=7, name=a, GPU recovery action changed to Drain and Reset", Reset),
            ("154", Check),
            ("145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04000000 0x00000004)", Restart),
            ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)", Reset),
            ("74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 7(0x0, 0x0)", Reset),
            ("94, pid=7194, name=python3, Contained: CE User Channel (0x9). RST: No, D-RST: No", Restart),
            ("94, pid=7194, name=python3, Contained: LTC TAG (0x2, 0x1). RST: No, D-RST: Yes", Reset),
            ("95, pid=7062, name=python3, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No", Reset),
            ("95, pid=7062, name=python3, Uncontained: LTC TAG (0x2, 0x1). RST: No, D-RST: No", Reset),
            ("95, pid=7062, name=python3, Contained: SM (0x1). RST: No, D-RST: No", Restart),
            ("63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.", ResetLater),
            ("63, Dynamic Page Retirement: New page retired, reboot to activate (0x5b2ca).", ResetLater),
            ("63, Row remapping event", Note),
            ("64, Row Remapper Error: (0x18f31d80) - All reserved rows for bank are remapped", Reset),
            ("64, Row Remapper: (0x1) - Attempting to remap a row that is already pending remapping.", ResetLater),
            ("64, Dynamic Page Retirement: Fatal error, unable to retire page (0x3fdf5e)", Reset),
        ] {
            assert_eq!(read(&format!("NVRM: Xid (PCI:0000:19:00): {message}")).action(), action, "{message}");
        }
        let of_switch = |message: &str| read(&format!("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {message}"));
        assert_eq!(of_switch("12028, Fatal, Link 32 egress non-posted PRIV error").action(), Reset);
        assert_eq!(of_switch("20009, Non-fatal, Link 28 RX Short Error Rate").action(), Note);
    }

    #[test]
    fn numbers_have_the_action_of_the_catalog_and_unknown_numbers_must_be_looked_up() {
        for (action, numbers) in [
            (Note, &[43, 45, 63, 66, 92, 137, 171][..]),
            (Restart, &[8, 13, 31, 32, 68, 94, 130]),
            (Check, &[54, 154, 167, 999]),
            (Reset, &[46, 48, 62, 64, 74, 95, 109, 119, 120, 136, 140, 143, 144, 150, 158]),
            (Reboot, &[79]),
        ] {
            for number in numbers {
                assert_eq!(read(&format!("NVRM: Xid (PCI:0000:19:00): {number}, pid=7")).action(), action, "{number}");
            }
        }
        let mut numbers: Vec<u32> = CATALOG.iter().flat_map(|(numbers, ..)| *numbers).copied().collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "a number is listed twice");
    }

    #[test]
    fn the_last_recovery_action_of_a_gpu_counts_and_none_ends_its_errors() {
        let to = |place: &str, action: &str| {
            read(&format!("NVRM: Xid (PCI:{place}): 154, GPU recovery action changed to {action}"))
        };
        let error = |place: &str, number: u32| read(&format!("NVRM: Xid (PCI:{place}): {number}, pid=7"));
        let (one, other) = ("0000:19:00", "0000:2d:00");
        let left = |log: &[Xid]| {
            let mut log = log.to_vec();
            remove_ended(&mut log, |xid| xid);
            log
        };
        let open = [error(one, 119), to(one, "0x2 (OS Reboot)"), error(other, 48)];
        assert_eq!(left(&[&[to(one, "0x1 (GPU Reset Required)")], &open[..]].concat()), open);
        let cured = [&open[..], &[to(one, "0x0 (None)"), error(one, 31)]].concat();
        assert_eq!(left(&cured), [error(other, 48), to(one, "0x0 (None)"), error(one, 31)]);
    }

    #[test]
    fn an_error_of_an_earlier_version_is_read_and_the_action_of_a_message_is_kept() {
        let earlier = r#"{"t":5.0,"number":79,"bus_id":"0000:19:00"}"#;
        let read_back: XidAt = serde_json::from_str(earlier).unwrap();
        assert_eq!((read_back.xid.action(), serde_json::to_string(&read_back).unwrap().as_str()), (Reboot, earlier));
        let line =
            "[ 1.5] NVRM: Xid (PCI:0000:19:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)";
        let at = XidAt::read(line, 5.0, 2.0).unwrap();
        assert_eq!(serde_json::from_str::<XidAt>(&serde_json::to_string(&at).unwrap()).unwrap(), at);
    }

    #[test]
    fn an_error_is_shown_with_its_meaning() {
        let shown: Vec<String> = [
            "NVRM: Xid (PCI:0000:19:00): 79, pid='<unknown>', GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:19:00): 154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)",
            "NVRM: Xid (PCI:0000:19:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17",
            "NVRM: Xid (PCI:0000:19:00): 63, Row Remapper: New row marked for remapping, reset gpu to activate.",
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 32 egress non-posted PRIV error",
            "NVRM: Xid (PCI:0000:19:00): 999, news",
        ]
        .map(|line| format!("{}\n  {}", read(line), read(line).action().in_words()))
        .into();
        insta::assert_snapshot!(shown.join("\n"), @r"
        Xid 79 at 0000:19:00: the GPU has fallen off the bus
          reboot the node before you use it again, or exclude it: --exclude
        Xid 154 at 0000:19:00: the driver requires that programs end which use links of this GPU
          end all programs on the GPUs of the node before you use them again, or exclude the node: --exclude
        Xid 145 at 0000:19:00: an NVLink error that is not fatal
          the GPU is healthy; restart the failed program
        Xid 63 at 0000:19:00: defective memory is replaced at the next reset of the GPU
          the GPU can be used; reset it when its programs have ended (nvidia-smi -r)
        SXid 12028 at 0000:c1:00: a fatal error of an NVSwitch
          reset the GPU before you use it again (nvidia-smi -r), or exclude the node: --exclude
        Xid 999 at 0000:19:00
          read the line in `dmesg`, and look the number up in NVIDIA's Xid catalog
        ");
    }
}

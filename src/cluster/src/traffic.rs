//! The bytes that a node sends and receives: counters of its network interfaces and InfiniBand ports, and their rates.

use serde::{Deserialize, Serialize};

use crate::probe::Frame;

/// InfiniBand counts words of four bytes (InfiniBand Architecture Specification, PortXmitData).
const INFINIBAND_WORD: u64 = 4;

/// The kind of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// A physical network interface.
    Network,
    /// A port of an InfiniBand or RoCE adapter. Its traffic is not in the counters of network interfaces.
    Infiniband,
}

/// The counters of one link since boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkBytes {
    /// `eth0`, or adapter and port: `mlx5_0/1`.
    pub name: String,
    /// Its kind.
    pub kind: LinkKind,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
}

impl LinkBytes {
    /// Reads a line of the probe: `net eth0 1200 3400`, or `ib mlx5_0/1 300 850` in words of four bytes.
    pub(crate) fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (kind, word_bytes) = match words.next()? {
            "net" => (LinkKind::Network, 1),
            "ib" => (LinkKind::Infiniband, INFINIBAND_WORD),
            _ => return None,
        };
        let name = words.next().filter(|name| !name.is_empty())?.to_owned();
        let mut bytes = || words.next()?.parse::<u64>().ok()?.checked_mul(word_bytes);
        let (rx_bytes, tx_bytes) = (bytes()?, bytes()?);
        Some(Self { name, kind, rx_bytes, tx_bytes })
    }
}

/// Bytes per second, summed over the links of one kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Received.
    pub rx_bytes_per_s: f64,
    /// Sent.
    pub tx_bytes_per_s: f64,
}

impl Rate {
    /// Returns the rate over all links of a kind between two frames of a node.
    ///
    /// Returns `None` if no link of this kind is in both frames, if the node has rebooted, if its clock was set back, or if a
    /// counter is smaller than before (the driver was reloaded, or the counter wrapped).
    pub fn between(before: &Frame, now: &Frame, kind: LinkKind) -> Option<Self> {
        let seconds = Some(now.t - before.t).filter(|seconds| *seconds > 0.0)?;
        if before.host.boot_id != now.host.boot_id {
            return None;
        }
        let of_kind = |frame: &'_ Frame| -> Vec<LinkBytes> {
            frame.host.links.iter().filter(|link| link.kind == kind).cloned().collect()
        };
        let (earlier, mut sum) = (of_kind(before), None);
        for link in of_kind(now) {
            // A link that is new since `before` has no earlier counters.
            let Some(earlier) = earlier.iter().find(|earlier| earlier.name == link.name) else { continue };
            let (rx, tx) = sum.unwrap_or((0, 0));
            let rx: u64 = link.rx_bytes.checked_sub(earlier.rx_bytes)?.saturating_add(rx);
            let tx: u64 = link.tx_bytes.checked_sub(earlier.tx_bytes)?.saturating_add(tx);
            sum = Some((rx, tx));
        }
        let (rx, tx) = sum?;
        Some(Self { rx_bytes_per_s: rx as f64 / seconds, tx_bytes_per_s: tx as f64 / seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvidia_smi::GpuQuery;
    use crate::probe::Frames;

    fn frame(t: f64, lines: &str) -> Frame {
        let text =
            format!("#frame 1 {t}\n#host\n1c2d3e4f-0000-4000-8000-123456789abc\n{lines}\n#gpus\n#exit 127\n#end 1\n");
        Frames::new(GpuQuery::default()).push(text.as_bytes()).remove(0)
    }

    fn rate(before: (f64, &str), now: (f64, &str), kind: LinkKind) -> Option<(f64, f64)> {
        let rate = Rate::between(&frame(before.0, before.1), &frame(now.0, now.1), kind)?;
        Some((rate.rx_bytes_per_s, rate.tx_bytes_per_s))
    }

    #[test]
    fn rates_are_sums_of_differences_per_second() {
        let before = (10.0, "net eth0 1000 5000\nnet eth1 0 0\nib mlx5_0/1 100 0\nib mlx5_1/1 7 7");
        let now = (12.0, "net eth0 3000 5100\nnet eth1 200 0\nib mlx5_0/1 1100 50\nib mlx5_1/1 7 7");
        assert_eq!(rate(before, now, LinkKind::Network), Some((1100.0, 50.0)));
        assert_eq!(rate(before, now, LinkKind::Infiniband), Some((2000.0, 100.0)), "words of four bytes");
    }

    #[test]
    fn there_is_no_rate_after_a_reset_a_wrap_a_reboot_or_without_an_earlier_sample() {
        let before = (10.0, "net eth0 1000 5000");
        assert_eq!(rate(before, (12.0, "net eth0 900 5100"), LinkKind::Network), None, "reset");
        assert_eq!(rate((10.0, "net eth0 18446744073709551615 0"), (12.0, "net eth0 5 0"), LinkKind::Network), None);
        assert_eq!(rate(before, (10.0, "net eth0 2000 6000"), LinkKind::Network), None, "no time has passed");
        assert_eq!(rate(before, (9.0, "net eth0 2000 6000"), LinkKind::Network), None, "the clock was set back");
        assert_eq!(rate(before, (12.0, ""), LinkKind::Network), None);
        assert_eq!(rate(before, (12.0, "net eth1 2000 6000"), LinkKind::Network), None, "another interface");
        let mut rebooted = frame(12.0, "net eth0 2000 6000");
        rebooted.host.boot_id = Some("another".into());
        assert_eq!(Rate::between(&frame(before.0, before.1), &rebooted, LinkKind::Network), None);
    }

    #[test]
    fn an_interface_that_appears_does_not_count_before_its_second_sample() {
        let (before, now) = ((10.0, "net eth0 0 0"), (11.0, "net eth0 10 20\nnet usb0 900000 900000"));
        assert_eq!(rate(before, now, LinkKind::Network), Some((10.0, 20.0)));
    }

    #[test]
    fn lines_that_are_no_counters_are_not_read() {
        for line in ["net", "net eth0", "net eth0 1", "net eth0 x 1", "net eth0 -1 1", "wlan eth0 1 1", "net  1 1", ""]
        {
            assert_eq!(LinkBytes::read(line), None, "{line}");
        }
        assert_eq!(LinkBytes::read("ib mlx5_0/1 18446744073709551615 0"), None, "more bytes than a counter has");
    }
}

//! Tests of the probe script with fake programs, and of parsing its stream at any point of division.

use proptest::prelude::*;

use super::*;
use crate::{Absent, LinkKind, Reading};

const STREAM: &str = "\
message of the day: maintenance on Sunday
#frame 1 1763612345.5 512.25
#host
1c2d3e4f-0000-4000-8000-123456789abc
3.50 2.00 1.00 3/900 4711
MemTotal:       2113331240 kB
MemAvailable:   1900000000 kB
cpu  700 100 200 8000 1000 0 0 0 500 0
net eth0 808666053 999481
ib mlx5_0/1 1000 250
#gpus
0, GPU-a, NVIDIA H100 80GB HBM3, 00000000:19:00.0, 631.95, 700.00, 70210, 81559, 100, 59, 1980, 0, 0x0000000000000000, Disabled, [N/A], 5, 16
1, GPU-b, NVIDIA H100 80GB HBM3, 00000000:2D:00.0, [Unknown Error], 700.00, 0, 81559, 0, 31, 345, 0, 0x0000000000000001, Disabled, [N/A], 5, 16

#exit 0
#apps
GPU-a, 4100, /opt/venv/bin/python3, 70210
GPU-gone, 4101, /opt/venv/bin/python3, 5

#exit 0
#processes
   4100 me                                3600 python3 -m train  --steps 10
   4101 you                                 12 jupyter
#usage
4100 1000 234 8388608
4101 1
#environment
/proc/4100/environ:VIDTUI_RUN=2026-11-20T0340-demo-2s-k7f2
/proc/4100/environ:RANK=3
/proc/4100/environ:RANK=7
#end 1 513.75
#frame 2 1763612347.5
#host
#gpus
timeout: failed to run command 'nvidia-smi': No such file or directory

#exit 127
#end 2
";

fn frames(text: &str) -> Vec<Frame> {
    Frames::new(GpuQuery::default()).push(text.as_bytes())
}

#[test]
fn a_frame_has_gpus_and_their_processes_with_owners() {
    let frame = &frames(STREAM)[0];
    assert_eq!((frame.number, frame.t, frame.took_s, frame.gpus.len()), (1, 1763612345.5, 1.5, 2));
    assert_eq!(frame.gpus[1].power_w, Reading::Absent(Absent::UnknownError));
    let [process] = &frame.gpus[0].processes[..] else { panic!("{frame:?}") };
    let owner = ProcessOwner {
        user: "me".into(),
        age_s: 3600,
        command: "python3 -m train --steps 10".into(),
        cpu_ticks: Some(1234),
        host_mem_mib: Some(8192),
        run: Some("2026-11-20T0340-demo-2s-k7f2".into()),
        rank: Some(3),
    };
    assert_eq!((process.pid.value(), &process.owner), (Some(4100), &Some(owner)));
    assert_eq!(frame.elsewhere[0].owner.as_ref().unwrap().user, "you");
    assert_eq!(
        frame.host,
        HostSample {
            boot_id: Some("1c2d3e4f-0000-4000-8000-123456789abc".into()),
            load: Some(3.5),
            mem_available_mib: Some(1_855_468),
            mem_total_mib: Some(2_063_800),
            cpu: Some(CpuTicks { busy: 1000, total: 10_000 }),
            links: vec![
                LinkBytes { name: "eth0".into(), kind: LinkKind::Network, rx_bytes: 808_666_053, tx_bytes: 999_481 },
                LinkBytes { name: "mlx5_0/1".into(), kind: LinkKind::Infiniband, rx_bytes: 4000, tx_bytes: 1000 },
            ],
        }
    );
}

#[test]
fn cpu_utilization_is_the_share_of_busy_ticks_between_two_samples() {
    let at = |busy, total| CpuTicks { busy, total };
    assert_eq!(at(1300, 11_000).busy_pct_since(at(1000, 10_000)), Some(30.0));
    // The node has rebooted, or no time has passed.
    assert_eq!(at(1, 10).busy_pct_since(at(1000, 10_000)), None);
    assert_eq!(at(1000, 10_000).busy_pct_since(at(1000, 10_000)), None);
}

#[test]
fn a_node_without_gpus_still_has_frames() {
    let frame = &frames(STREAM)[1];
    assert_eq!((frame.number, frame.gpus.len(), &frame.smi_errors[..]), (2, 0, &[SmiError::NotFound][..]));
}

#[test]
fn a_truncated_frame_is_skipped_and_the_next_one_is_read() {
    let middle = STREAM.find("NVIDIA H100").unwrap();
    let text = format!("{}\n{STREAM}", &STREAM[..middle]);
    let mut stream = Frames::new(GpuQuery::default());
    assert_eq!(stream.push(text.as_bytes()), frames(STREAM));
}

#[test]
fn a_truncated_row_within_a_complete_frame_is_skipped() {
    let text = STREAM.replace(", 5, 16\n\n", ", 5, 1\n");
    let frame = &frames(&text)[0];
    assert_eq!(frame.gpus.len(), 1);
    assert!(matches!(&frame.smi_errors[..], [SmiError::HalfRow(_)]), "{:?}", frame.smi_errors);
}

/// Runs the script with fake programs until `enough` of its frames are read, and returns these frames.
fn made_with(programs: &[(&str, &str)], enough: impl Fn(&[Frame]) -> bool) -> Vec<Frame> {
    made_in("/sys", programs, enough)
}

/// Does the same as [`made_with`], with the folder `sys` in place of /sys.
fn made_in(sys: &str, programs: &[(&str, &str)], enough: impl Fn(&[Frame]) -> bool) -> Vec<Frame> {
    use std::io::Read;
    let bin = tempfile::tempdir().unwrap();
    for (name, text) in programs {
        // Another process writes the file: a process that a parallel test starts would inherit the open file, and a file
        // that is open for writing cannot be executed.
        let write = std::process::Command::new("sh")
            .args(["-c", "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod 755 \"$0\""])
            .args([bin.path().join(name).as_os_str(), text.as_ref()])
            .status();
        assert!(write.unwrap().success());
    }
    let pace = Pace { hung_s: 1, ..Pace::every_s(0.05) };
    let mut child = std::process::Command::new("sh")
        .args([
            "-c",
            &script_until_input_ends(&GpuQuery::default(), pace).replace("sys=/sys\n", &format!("sys={sys}\n")),
        ])
        .env("PATH", format!("{}:/usr/bin:/bin", bin.path().display()))
        .env("BIN", bin.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stream, mut frames, mut buffer) = (Frames::new(GpuQuery::default()), Vec::new(), [0; 4096]);
    let mut stdout = child.stdout.take().unwrap();
    while !enough(&frames) {
        let read = stdout.read(&mut buffer).unwrap();
        assert!(read > 0, "the stream ended: {frames:?}");
        frames.extend(stream.push(&buffer[..read]));
    }
    drop((child.stdin.take(), stdout));
    child.wait().unwrap();
    frames
}

#[test]
fn frames_continue_while_nvidia_smi_hangs_and_no_second_nvidia_smi_starts() {
    // Waits like `timeout` for a process that is stuck in the kernel.
    let stuck = "echo asked >>$BIN/asked\nwhile [ ! -e $BIN/free ]; do sleep 0.05; done\n\
        [ $(wc -l <$BIN/asked) = 1 ] || exit 127";
    // The first nvidia-smi ends after three frames that report the hang; then the second one starts.
    let uptimes =
        "hung=$(ls $BIN | grep -c clock)\n[ $hung -lt 4 ] || : >$BIN/free\n: >$BIN/clock$hung\nexec /bin/date \"$@\"";
    let frames = made_with(&[("timeout", stuck), ("date", uptimes)], |frames| {
        frames.last().is_some_and(|frame| frame.smi_errors == [SmiError::NotFound])
    });
    let (hung, after) = frames.split_at(frames.iter().rposition(|f| f.smi_errors == [SmiError::TimedOut]).unwrap() + 1);
    assert!(hung.len() >= 3 && hung.iter().all(|frame| frame.smi_errors == [SmiError::TimedOut]), "{frames:?}");
    assert!(hung.iter().all(|frame| frame.host.mem_total_mib.is_some() && frame.took_s < 20.0), "{hung:?}");
    assert!(after.iter().all(|frame| frame.smi_errors == [SmiError::NotFound]), "{after:?}");
    assert!(frames.is_sorted_by(|a, b| a.number < b.number && a.t < b.t));
}

#[test]
fn xid_errors_have_the_time_at_which_they_happened() {
    let row = "echo '0, GPU-a, H100, 00000000:19:00.0, 631.95, 700.00, 70210, 81559, 100, 59, 1980, 0, 0x0, Disabled, [N/A], 5, 16'";
    let smi = ("nvidia-smi", row);
    // Ten seconds ago.
    let log = "read -r up _ </proc/uptime\necho '[    1.000000] NVRM: loading'\n\
        echo \"[ $((${up%.*} - 10)).500000] NVRM: Xid (PCI:0000:19:00): 79, pid=1\"";
    let frame = &made_with(&[smi, ("dmesg", log)], |frames| !frames.is_empty())[0];
    let [at] = &frame.xids[..] else { panic!("{frame:?}") };
    assert_eq!((at.xid.number, frame.xids_denied), (79, false));
    assert!((8.0..=12.0).contains(&(frame.t - at.t)), "{at:?} at {}", frame.t);

    // An error that repeats does not hide the others.
    let storm = "printf '[ 5.000000] NVRM: Xid (PCI:0000:19:00): 79, GPU has fallen off the bus.\\n'\n\
        for n in $(seq 900); do echo \"[ 6.$n] NVRM: Xid (PCI:0000:19:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link $n (0x0${n}a)\"; done\n\
        echo '[ 7.000000] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 32 egress'\n\
        echo '[ 8.000000] NVRM: Xid (PCI:0000:19:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)'\n\
        echo '[ 8.000000] NVRM: Xid (PCI:0000:19:00): 154, GPU recovery action changed from 0x1 (PF FLR) to 0x2 (OS Reboot)'";
    let frame = &made_with(&[smi, ("dmesg", storm)], |frames| !frames.is_empty())[0];
    let numbers: Vec<u32> = frame.xids.iter().map(|at| at.xid.number).collect();
    assert_eq!(numbers, [79, 145, 12028, 154], "{frame:?}");

    let journal = |does| {
        let frames = made_with(&[smi, ("dmesg", "exit 1"), ("journalctl", does)], |frames| !frames.is_empty());
        (frames[0].xids.iter().map(|at| at.xid.number).collect::<Vec<_>>(), frames[0].xids_denied)
    };
    assert_eq!(journal("exit 1"), (vec![], true));
    assert_eq!(journal("echo '-- No entries --'"), (vec![], true), "for a user without permission");
    assert_eq!(journal("echo '[    0.000000] ml-1 kernel: Linux version 6.12'"), (vec![], false));
    let one = "echo '[    9.000000] ml-1 kernel: NVRM: Xid (PCI:0000:19:00): 48, pid=1'";
    assert_eq!(journal(one), (vec![48], false));
}

/// Makes a folder like /sys: an Ethernet interface, IP over InfiniBand, virtual interfaces, and a port of an adapter.
fn fake_sys(with_devices: bool) -> tempfile::TempDir {
    let sys = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = sys.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for (name, kind, is_device) in [("eth0", 1, true), ("ib0", 32, true), ("lo", 772, false), ("veth9", 1, false)] {
        write(&format!("class/net/{name}/type"), &format!("{kind}\n"));
        write(&format!("class/net/{name}/statistics/rx_bytes"), "1000\n");
        write(&format!("class/net/{name}/statistics/tx_bytes"), "2000\n");
        if is_device && with_devices {
            write(&format!("class/net/{name}/device/vendor"), "0x15b3\n");
        }
    }
    // An interface without counters, as if it vanished during the read, and a port whose driver has no counters.
    write("class/net/eth1/device/vendor", "0x15b3\n");
    write("class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
    write("class/infiniband/mlx5_0/ports/2/counters/port_rcv_data", "500\n");
    write("class/infiniband/mlx5_0/ports/2/counters/port_xmit_data", "250\n");
    if !with_devices {
        std::fs::remove_dir_all(sys.path().join("class/net/eth1")).unwrap();
    }
    sys
}

#[test]
fn only_physical_interfaces_and_infiniband_ports_are_counted() {
    let counted = |with_devices| {
        let sys = fake_sys(with_devices);
        let frame = made_in(sys.path().to_str().unwrap(), &[], |frames| !frames.is_empty()).remove(0);
        let links = frame.host.links.into_iter().map(|link| (link.name, link.rx_bytes, link.tx_bytes));
        links.collect::<Vec<_>>()
    };
    let link = |name: &str, rx, tx| (name.to_owned(), rx, tx);
    assert_eq!(counted(true), [link("eth0", 1000, 2000), link("mlx5_0/2", 2000, 1000)]);
    let in_a_container = [link("eth0", 1000, 2000), link("veth9", 1000, 2000), link("mlx5_0/2", 2000, 1000)];
    assert_eq!(counted(false), in_a_container, "without devices");
}

#[test]
fn xid_errors_are_read_while_nvidia_smi_hangs() {
    let stuck = ("timeout", "while [ -e $BIN/timeout ]; do sleep 0.05; done");
    // The Xid number counts the reads of the log.
    let log = ("dmesg", "echo >>$BIN/asked\necho \"[ 1.5] NVRM: Xid (PCI:0000:19:00): $(wc -l <$BIN/asked), pid=1\"");
    let frames = made_with(&[stuck, log], |frames| frames.iter().any(|frame| !frame.xids.is_empty()));
    let frame = frames.iter().find(|frame| !frame.xids.is_empty()).unwrap();
    assert_eq!((frame.xids[0].xid.number, &frame.smi_errors[..]), (1, &[SmiError::TimedOut][..]), "{frame:?}");
    assert!(frames.len() >= 12, "the log is not read for every frame: {frames:?}");
}

#[test]
fn a_frame_has_its_duration() {
    let frames = made_with(&[("nvidia-smi", "sleep 0.3\nexit 9")], |frames| !frames.is_empty());
    assert!(frames[0].took_s >= 0.5, "two queries: {}", frames[0].took_s);
}

#[test]
fn the_cpu_time_and_memory_of_a_process_on_a_gpu_are_sampled() {
    // The rows of both queries are those of this process.
    let row = "0, GPU-a, NVIDIA H100 80GB HBM3, 00000000:19:00.0, 631.95, 700.00, 70210, 81559, 100, 59, 1980, 0, 0x0, Disabled, [N/A], 5, 16";
    let (pid, memory) = (std::process::id(), vec![1_u8; 64 << 20]);
    let smi = format!("case $1 in --query-gpu=*) echo '{row}' ;; *) echo 'GPU-a, {pid}, test, 100' ;; esac");
    let frames = made_with(&[("nvidia-smi", &smi)], |frames| {
        // Some CPU time passes until the next sample.
        let sum = (0..10_000_000_u64).fold(memory.len() as u64, |sum, n| std::hint::black_box(sum ^ n));
        std::hint::black_box(sum);
        frames.len() >= 2
    });
    let usage = |frame: &Frame| {
        let owner = frame.gpus[0].processes[0].owner.clone().unwrap();
        (owner.cpu_ticks.unwrap(), owner.host_mem_mib.unwrap())
    };
    let [(before, mem_mib), (after, _)] = [usage(&frames[0]), usage(&frames[1])];
    assert!(after >= before && after > 0 && (64..4096).contains(&mem_mib), "{before} {after} {mem_mib}");
}

#[test]
fn endless_output_does_not_fill_the_memory() {
    let mut stream = Frames::new(GpuQuery::default());
    stream.push(b"#frame 1 1763612345.5\n#gpus\n");
    for _ in 0..300 {
        stream.push(&[b'x'; 16 * 1024]);
    }
    assert!(stream.line.len() <= LONGEST_LINE);
    for _ in 0..300 {
        stream.push(&[&[b'x'; 16 * 1024][..], b"\n"].concat());
    }
    assert!(stream.open.is_none());
    assert_eq!(stream.push(STREAM.as_bytes()).len(), 2);
}

#[test]
fn a_script_without_a_reader_ends() {
    use std::io::Read;
    let mut child = std::process::Command::new("sh")
        .args(["-c", &script(&GpuQuery::default(), Pace::every_s(0.05))])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    assert!(stdout.read(&mut [0; 64]).unwrap() > 0);
    drop(stdout);
    // This returns because the script fails to write to the closed pipe.
    child.wait().unwrap();
}

#[test]
fn the_script_makes_the_queries_that_are_read() {
    let script = script(&GpuQuery::default(), Pace::every_s(2.0));
    assert!(
        script.starts_with("query='--query-gpu=index,uuid,") && script.contains("every=2 first=2 hung=25 sys=/sys\n"),
        "{script}"
    );
}

proptest! {
    #[test]
    fn frames_do_not_depend_on_where_the_stream_is_cut(sizes in prop::collection::vec(1usize..200, 1..200)) {
        let mut stream = Frames::new(GpuQuery::default());
        let (mut read, mut rest) = (Vec::new(), STREAM.as_bytes());
        for size in sizes.into_iter().cycle() {
            let (piece, after) = rest.split_at(size.min(rest.len()));
            read.extend(stream.push(piece));
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(read, frames(STREAM));
    }

    #[test]
    fn no_stream_panics(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..20), lines in r"(#(frame|end|exit) [0-9. ]{0,9}\n|#(host|gpus|apps|processes|environment)\n|[0-9a-z,: /]{0,40}\n){0,30}") {
        let mut stream = Frames::new(GpuQuery::default());
        for piece in pieces {
            stream.push(&piece);
        }
        stream.push(lines.as_bytes());
        stream.push(STREAM.as_bytes());
    }
}

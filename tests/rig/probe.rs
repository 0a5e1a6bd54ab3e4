//! Tests of the console's probe script on nodes with and without faults.

use std::io::Read;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cluster::nvidia_smi::{GpuQuery, SmiError};
use cluster::probe::{Frame, Frames, Pace, script_until_input_ends};
use rig::{Options, Rig};

use crate::ssh;

/// The probe's frames from a node, over SSH.
struct Stream {
    session: Child,
    frames: Frames,
}

impl Stream {
    fn open(rig: &Rig, query: GpuQuery) -> Stream {
        let mut ssh = rig.command("ssh");
        ssh.arg("node01").arg(format!("sh -c {}", quoted(&script_until_input_ends(&query, Pace::every_s(0.1)))));
        let session = ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Stream { session, frames: Frames::new(query) }
    }

    /// Reads until a frame meets the condition.
    fn wait_for(&mut self, is: impl Fn(&Frame) -> bool) -> Frame {
        let mut buffer = [0; 4096];
        loop {
            let read = self.session.stdout.as_mut().unwrap().read(&mut buffer).unwrap();
            assert!(read > 0, "the stream ended");
            if let Some(frame) = self.frames.push(&buffer[..read]).into_iter().find(&is) {
                return frame;
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.session.kill().unwrap();
        self.session.wait().unwrap();
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[test]
fn a_rank_is_listed_with_its_run_and_user_until_it_ends() {
    let Some(rig) = Options::new(1).gpus(2).up_or_skip() else { return };
    let mut stream = Stream::open(&rig, GpuQuery::default());
    let idle = stream.wait_for(|_| true);
    assert_eq!((idle.gpus.len(), idle.smi_errors.len(), idle.gpus[1].processes.len()), (2, 0, 0));
    assert!(idle.host.load.is_some() && idle.host.mem_available_mib < idle.host.mem_total_mib);
    let boot = ssh(&rig, "node01", "cat /proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(idle.host.boot_id, Some(boot));

    ssh(&rig, "node01", "VIDTUI_RUN=some-run RANK=9 LOCAL_RANK=1 setsid sleep 1000 >/dev/null 2>&1 </dev/null &")
        .unwrap();
    // The probe reads processes after GPUs, so the first frame with the process may show an idle GPU.
    let busy = stream.wait_for(|frame| {
        let owned = frame.gpus[1].processes.iter().any(|process| process.owner.is_some());
        owned && frame.gpus[1].power_w.value() > Some(500.0)
    });
    let owner = busy.gpus[1].processes[0].owner.as_ref().unwrap();
    assert_eq!((owner.user.as_str(), owner.command.as_str()), ("root", "sleep 1000"));
    assert_eq!((owner.run.as_deref(), owner.rank), (Some("some-run"), Some(9)));
    assert!(busy.gpus[0].power_w.value() < Some(100.0));

    ssh(&rig, "node01", "pkill -f '^sleep 1000'").unwrap();
    stream.wait_for(|frame| frame.gpus[1].processes.is_empty());
}

#[test]
fn the_network_counters_of_a_node_are_its_own() {
    let Some(rig) = Options::new(2).up_or_skip() else { return };
    let mut stream = Stream::open(&rig, GpuQuery::default());
    let before = stream.wait_for(|_| true);
    let names: Vec<&str> = before.host.links.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(names, ["eth0"], "its interface has no device, as in a container");
    const SENT: u64 = 20_000_000;
    ssh(&rig, "node01", &format!("head -c {SENT} /dev/zero")).unwrap();
    let sent = |frame: &Frame| frame.host.links[0].tx_bytes - before.host.links[0].tx_bytes;
    stream.wait_for(|frame| sent(frame) > SENT);
}

#[test]
fn faults_and_repairs_of_gpus_appear_in_frames() {
    let Some(rig) = Options::new(1).gpus(2).up_or_skip() else { return };
    let mut stream = Stream::open(&rig, GpuQuery::default());
    stream.wait_for(|frame| frame.smi_errors.is_empty());
    rig.verb("smi node01 lost 00000000:2A:00.0").unwrap();
    // The frame in which the GPU is lost may still hold its last values.
    let lost = stream.wait_for(|frame| !frame.smi_errors.is_empty() && frame.gpus.len() == 1);
    let SmiError::GpuLost { gpu, .. } = &lost.smi_errors[0] else { panic!("{lost:?}") };
    assert_eq!((gpu.index, gpu.bus_id.as_deref()), (Some(1), Some("0000:2A:00.0")));
    rig.verb("smi node01 missing").unwrap();
    stream.wait_for(|frame| frame.smi_errors == [SmiError::NotFound]);
    rig.verb("smi node01 garbage").unwrap();
    stream.wait_for(|frame| frame.gpus.is_empty() && frame.smi_errors != [SmiError::NotFound]);
    rig.verb("smi node01 ok").unwrap();
    stream.wait_for(|frame| frame.gpus.len() == 2 && frame.smi_errors.is_empty());
}

#[test]
fn an_old_driver_is_queried_with_the_old_field_names() {
    let Some(rig) = Options::new(1).gpus(1).up_or_skip() else { return };
    rig.verb("smi node01 old").unwrap();
    let query = GpuQuery::default();
    let refused = Stream::open(&rig, query.clone()).wait_for(|_| true);
    let [SmiError::UnknownField(field)] = &refused.smi_errors[..] else { panic!("{refused:?}") };
    let answered = Stream::open(&rig, query.without(field).unwrap()).wait_for(|_| true);
    assert_eq!((answered.gpus.len(), answered.smi_errors.len()), (1, 0));
    assert!(answered.gpus[0].throttle_reasons.value().is_some());
}

#[test]
fn no_process_of_the_probe_is_left_when_the_connection_ends() {
    let Some(rig) = Options::new(1).gpus(1).up_or_skip() else { return };
    let mut stream = Stream::open(&rig, GpuQuery::default());
    stream.wait_for(|_| true);
    let running = || ssh(&rig, "node01", "pgrep -fc '^sh -c query='").unwrap_or("0".into()) != "0";
    assert!(running());
    drop(stream);
    let began = Instant::now();
    while running() {
        assert!(began.elapsed() < Duration::from_secs(60), "it lives on");
        sleep(Duration::from_millis(10));
    }
}

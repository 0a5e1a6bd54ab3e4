//! Tests that the fake nvidia-smi has the output and exit status of the real one.

use std::fs;

use rig::Options;

use crate::ssh;

const POWER: &str = "nvidia-smi --query-gpu=index,power.draw,memory.used --format=csv,noheader,nounits";
const APPS: &str = "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv,noheader";

#[test]
fn a_rank_shows_on_its_gpu_while_it_lives() {
    let Some(rig) = Options::new(1).gpus(2).up_or_skip() else { return };
    assert_eq!(ssh(&rig, "node01", APPS).unwrap(), "");
    ssh(
        &rig,
        "node01",
        "LOCAL_RANK=1 setsid sleep 1000 >/dev/null 2>&1 </dev/null & until pgrep -f '^sleep 1000'; do sleep 0.01; done",
    )
    .unwrap();
    let used: Vec<String> = ssh(&rig, "node01", POWER).unwrap().lines().map(str::to_owned).collect();
    assert!(used[0].starts_with("0, ") && used[0].ends_with(", 0"), "{used:?}");
    assert!(used[1].starts_with("1, ") && !used[1].ends_with(", 0"), "{used:?}");
    let apps = ssh(&rig, "node01", APPS).unwrap();
    assert!(apps.starts_with("GPU-00001001-") && apps.ends_with(", sleep, 70210 MiB"), "{apps:?}");
    ssh(&rig, "node01", "pkill -f '^sleep 1000'; while pgrep -f '^sleep 1000'; do sleep 0.01; done").unwrap();
    assert_eq!(ssh(&rig, "node01", APPS).unwrap(), "");
}

#[test]
fn broken_gpus_give_the_errors_of_the_real_nvidia_smi() {
    let Some(rig) = Options::new(1).gpus(2).up_or_skip() else { return };
    let cases = [
        ("nodriver", "exit status: 9: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        ("nodevices", "exit status: 6: No devices were found"),
        (
            "mismatch",
            "exit status: 18: Failed to initialize NVML: Driver/library version mismatch\nNVML library version",
        ),
        ("nolibrary", "exit status: 12: NVIDIA-SMI couldn't find libnvidia-ml.so"),
        ("missing", "exit status: 127: bash: line 1: nvidia-smi: command not found"),
        (
            "lost 00000000:19:00.0",
            "exit status: 15: Unable to determine the device handle for GPU0: 0000:19:00.0: GPU is lost.  Reboot the system to recover this GPU\n1, ",
        ),
    ];
    for (mode, words) in cases {
        rig.verb(&format!("smi node01 {mode}")).unwrap();
        let error = ssh(&rig, "node01", POWER).unwrap_err();
        assert!(error.starts_with(words), "{mode}: {error}");
    }
    rig.verb("smi node01 ok").unwrap();
    let field = |name| ssh(&rig, "node01", &format!("nvidia-smi --query-gpu={name} --format=csv,noheader -i 0"));
    assert_eq!(field("clocks_event_reasons.active").unwrap(), "0x0000000000000001");
    rig.verb("smi node01 old").unwrap();
    assert_eq!(field("clocks_throttle_reasons.active").unwrap(), "0x0000000000000001");
    let refused = field("clocks_event_reasons.active").unwrap_err();
    assert_eq!(refused, "exit status: 2: Field \"clocks_event_reasons.active\" is not a valid field to query.");
}

#[test]
fn fields_of_a_gpu_and_xid_errors_can_be_set() {
    let Some(rig) = Options::new(1).gpus(2).up_or_skip() else { return };
    rig.verb("gpu node01 1 power.draw [GPU requires reset]").unwrap();
    assert!(ssh(&rig, "node01", POWER).unwrap().ends_with("\n1, [GPU requires reset], 0"));
    rig.verb("gpu node01 7 power.draw 1").unwrap_err();
    rig.verb("gpu node01 1 power.drawn 1").unwrap_err();
    rig.verb("xid node01 79").unwrap();
    assert!(
        ssh(&rig, "node01", "dmesg").unwrap().ends_with("Xid (PCI:0000:19:00): 79, pid='<unknown>', name=<unknown>")
    );
}

#[test]
fn values_of_the_data_file_are_printed_unchanged() {
    let Some(rig) = Options::new(1).gpus(1).up_or_skip() else { return };
    let table = rig.node_folder("node01").join("gpus/table.tsv");
    let healthy = fs::read_to_string(&table).unwrap();
    fs::write(&table, healthy.replace("~70:2|~640:50", "[Unknown Error]").replace("0|~71234:400", "N/A")).unwrap();
    assert_eq!(ssh(&rig, "node01", POWER).unwrap(), "0, [Unknown Error], N/A");
}

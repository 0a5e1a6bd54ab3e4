//! Runs the checks of nodes on prepared answers of nodes.

use camino::Utf8Path;
use cluster::Hostfile;
use plan::{Context, LaunchRequest, StartOptions, Target, TrainerBinary, launch};
use recipe::Recipe;
use rundir::StartFrom;

use super::*;
use crate::Local;

const SHA: &str = "5d41402abc4b2a76b9719d911017c592";
/// The answer of a healthy node.
const HEALTHY: &str = concat!(
    "sha256 5d41402abc4b2a76b9719d911017c592\n",
    "version {\"libtorch\":\"2.11.0\",\"cuda\":true}\n",
    "visible yes\nruns_writable yes\nruns_free_kib 900000000\nruns_inodes 100000\nweights yes\n",
    "port 29500 free\nport 29501 free\n",
    "gpu 0, GPU-9d2c, 00000000:19:00.0, 0, 81559, 0\ngpu_status 0\napp \napp_status 0\n",
);
/// The output of nvidia-smi after an update of the driver, until the next boot.
const MISMATCH: (&str, &str) = (
    "gpu 0, GPU-9d2c, 00000000:19:00.0, 0, 81559, 0\ngpu_status 0\napp \napp_status 0\n",
    "gpu Failed to initialize NVML: Driver/library version mismatch\ngpu NVML library version: 590.48\ngpu_status 18\n",
);
/// The output of the shell where nvidia-smi is not installed.
const NO_NVIDIA_SMI: (&str, &str) =
    (MISMATCH.0, "gpu timeout: failed to run command 'nvidia-smi': No such file\ngpu_status 127\n");

fn recipe(path: &str, sets: &[&str]) -> Recipe {
    let path = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
    recipe::load(&path, &sets).unwrap().recipe
}

/// Three nodes with a rank each.
fn plan_of(recipe: &Recipe) -> LaunchPlan {
    plan_on("node[01-03] slots=1", recipe)
}

fn plan_on(hostfile: &str, recipe: &Recipe) -> LaunchPlan {
    let nodes = Hostfile::parse(hostfile).unwrap();
    let context = Context {
        cores: 2,
        now_s: 1_795_146_012.0,
        random: 12345,
        by: "ada@vm".into(),
        runs_root: Utf8PathBuf::from_path_buf(std::env::temp_dir()).unwrap().join("no-runs-yet"),
        git_commit: None,
        trainer: TrainerBinary {
            path: "/opt/vidtui-train".into(),
            version: "0.1.0".into(),
            tch: "0.24.0".into(),
            libtorch: "2.11.0".into(),
            cuda: false,
            sha256: SHA.into(),
        },
        program: "/opt/vidtui".into(),
        target: Target::hostfile(&nodes, 3, 0, "hosts.txt"),
        options: StartOptions::default(),
    };
    launch(&LaunchRequest { recipe, name: None, stage: None, init: None }, &context).unwrap()
}

fn embedded(sets: &[&str]) -> LaunchPlan {
    plan_of(&recipe("configs/demo/2s.toml", &[&["mesh.dp_shard=3", "train.global_batch=6"], sets].concat()))
}

fn command() -> LaunchPlan {
    command_with(&[])
}

fn command_with(sets: &[&str]) -> LaunchPlan {
    plan_of(&recipe("tests/fixtures/configs/valid/command.toml", sets))
}

/// A failed check: its node, its id and its error code.
type Failed = (String, CheckId, ErrorCode);

/// Checks three nodes whose answers are those of a healthy node, with these replacements of text.
fn results(plan: &LaunchPlan, changes: [&[(&str, &str)]; 3]) -> Vec<(NodeId, NodeCheck)> {
    let answers: Vec<(NodeId, NodeAnswer)> = changes
        .iter()
        .zip(&plan.nodes)
        .map(|(changes, launch)| {
            let text = changes.iter().fold(format!("{HEALTHY}end\n"), |text, (old, new)| {
                assert!(text.contains(old), "{old} is not in\n{text}");
                text.replace(old, new)
            });
            let facts = NodeFacts::read(&text).unwrap();
            (launch.node.clone(), NodeAnswer { round_trip: Duration::from_millis(1), ahead_s: 0.0, facts })
        })
        .collect();
    let answers: Vec<(&NodeId, &NodeAnswer)> = answers.iter().map(|(node, answer)| (node, answer)).collect();
    let majority = Majority::of(plan, &answers);
    let of_node = |(node, answer): &(&NodeId, &NodeAnswer)| {
        let node = (*node).clone();
        let checks = node::checks("cannot launch", plan, &node, answer, &majority);
        checks.into_iter().map(move |check| (node.clone(), check))
    };
    answers.iter().flat_map(of_node).collect()
}

fn failures(plan: &LaunchPlan, changes: [&[(&str, &str)]; 3]) -> Vec<(NodeId, CheckId, Failure)> {
    let failed = |(node, (id, result)): (NodeId, NodeCheck)| Some((node, id, result.err()?));
    results(plan, changes).into_iter().filter_map(failed).collect()
}

fn failed(plan: &LaunchPlan, changes: [&[(&str, &str)]; 3]) -> Vec<Failed> {
    failures(plan, changes).into_iter().map(|(node, id, failure)| (node.to_string(), id, failure.code)).collect()
}

fn on(node: &str, id: CheckId, code: ErrorCode) -> Failed {
    (node.to_owned(), id, code)
}

const NONE: &[(&str, &str)] = &[];
/// An answer whose trainer finds no GPU.
const NO_CUDA: (&str, &str) = ("\"cuda\":true", "\"cuda\":false");

#[test]
fn a_node_with_broken_gpus_fails_if_others_have_working_ones() {
    let gpus = |node| on(node, CheckId::Gpus, ErrorCode::NoGpu);
    assert_eq!(failed(&command(), [NONE; 3]), []);
    assert_eq!(failed(&command(), [NONE, NONE, &[MISMATCH]]), [gpus("node03")]);
    assert_eq!(failed(&command(), [&[NO_NVIDIA_SMI], NONE, NONE]), [gpus("node01")]);
    // A broken driver proves that there are GPUs.
    assert_eq!(failed(&command(), [&[MISMATCH]; 3]), ["node01", "node02", "node03"].map(gpus));
    assert_eq!(failed(&command(), [&[NO_NVIDIA_SMI]; 3]), [], "a command for CPUs");

    let cpu = embedded(&["train.device=cpu"]);
    assert_eq!(failed(&cpu, [NONE, NONE, &[MISMATCH]]), []);
}

#[test]
fn a_trainer_that_finds_no_gpu_fails_if_other_nodes_have_some() {
    let libtorch = |node| on(node, CheckId::Libtorch, ErrorCode::NoGpu);
    assert_eq!(failed(&embedded(&[]), [NONE, &[NO_CUDA], NONE]), [libtorch("node02")]);
    assert_eq!(failed(&embedded(&[]), [&[NO_CUDA]; 3]), [], "a trainer for CPUs");
    let required = failed(&embedded(&["train.device=cuda"]), [&[NO_CUDA]; 3]);
    assert_eq!(required, ["node01", "node02", "node03"].map(libtorch));
}

#[test]
fn a_libtorch_that_differs_from_most_fails_unless_the_launch_replaces_it() {
    let other = ("2.11.0", "2.10.0");
    let odd = [&[other][..], &[], &[]];
    let expected = [on("node01", CheckId::Libtorch, ErrorCode::TrainerUnusable)];
    assert_eq!(failed(&embedded(&[]), odd), expected);
    let pushed = LaunchPlan { push: true, ..embedded(&[]) };
    assert_eq!(failed(&pushed, odd), expected);
    assert_eq!(failed(&pushed, [&[other, (SHA, "another")], &[], &[]]), []);
}

const NO_APPS: &str = "app \napp_status 0\n";
const UUID: &str = "GPU-5a7e0001-11d2-4c33-9d01-60b5c0ffee01";

/// Answers about processes on GPUs that fail the check.
fn bad_gpu_processes() -> [String; 4] {
    let hidden = "[Insufficient Permissions]";
    [
        format!("app {UUID}, 12, python train.py, 70000\napp_status 0\nowner 12 ada\n"),
        format!("app {UUID}, {hidden}, {hidden}, {hidden}\napp_status 0\n"),
        "app \napp_status 124\n".into(),
        "app \napp_status 1\n".into(),
    ]
}

#[test]
fn processes_on_gpus_and_incomplete_lists_of_them_fail_the_check() {
    for answer in bad_gpu_processes() {
        let failed = failed(&command(), [&[(NO_APPS, &answer)], &[], &[]]);
        assert_eq!(failed, [on("node01", CheckId::GpuProcesses, ErrorCode::CheckFailed)], "{answer}");
    }
}

#[test]
fn only_the_gpus_that_ranks_can_use_are_checked() {
    const OTHERS: &str = "gpu 0, GPU-1b77, 00000000:20:00.0, 70000, 81559, 3\n\
        gpu 1, GPU-9d2c, 00000000:19:00.0, 0, 81559, 0\ngpu_status 0\n\
        app GPU-1b77, 12, python train.py, 70000\napp_status 0\nowner 12 bob\n\
        xid [ 9.0] NVRM: Xid (PCI:0000:20:00): 79, pid=1\n";
    let of = |plan: &LaunchPlan, in_sight: &str| {
        let failed = failed(plan, [&[(MISMATCH.0, &format!("{in_sight}{OTHERS}"))], &[], &[]]);
        failed.into_iter().map(|(_, id, _)| id).collect::<Vec<_>>()
    };
    let all = [CheckId::GpuProcesses, CheckId::GpuMemory, CheckId::GpuErrors];
    for (in_sight, expected) in [
        ("in_sight 1\n", &[][..]),
        ("in_sight GPU-9d\n", &[]),
        ("in_sight 0\n", &all),
        ("in_sight 1,0\n", &[CheckId::GpuProcesses, CheckId::GpuErrors]),
        ("", &all),
        ("in_sight MIG-51\n", &all),
    ] {
        assert_eq!(of(&command(), in_sight), expected, "{in_sight}");
    }
    // The recipe's variable overrides that of the login.
    let chosen = command_with(&["env.variables.CUDA_VISIBLE_DEVICES=1"]);
    assert_eq!(of(&chosen, "in_sight 0\n"), []);
}

#[test]
fn the_cuda_kernel_of_ttt_scans_requires_gpus() {
    let of = |device: &str| {
        let plan = embedded(&[device, "train.dtype=bfloat16", "train.ttt_scan=kernel"]);
        (plan.requires_gpus(), plan.on_gpus(false))
    };
    assert_eq!(of("train.device=auto"), (Some("train.ttt_scan is \"kernel\""), true));
    assert_eq!(of("train.device=cuda"), (Some("train.device is \"cuda\""), true));
    assert_eq!((embedded(&[]).requires_gpus(), embedded(&[]).on_gpus(false)), (None, false));
}

#[test]
fn a_plan_above_95_percent_of_a_gpu_fails_the_check() {
    // The smallest GPU of a node counts; this one has a little more than the CUDA context takes.
    let with_gpu = |sets: &[&str], mib: u64| {
        let plan = embedded(&[&["train.device=cuda"], sets].concat());
        let gpu = format!("gpu 0, GPU-1b77, 00000000:20:00.0, 0, {mib}, 0\ngpu_status 0\n");
        let failed = failed(&plan, [&[(MISMATCH.0, &gpu)], &[], &[]]);
        failed.into_iter().filter(|(_, id, _)| *id == CheckId::GpuMemory).collect::<Vec<_>>()
    };
    let peak_mib = embedded(&["train.device=cuda"]).run.recipe().unwrap().peak_memory() >> 20;
    let too_large = [on("node01", CheckId::GpuMemory, ErrorCode::OutOfMemory)];
    assert_eq!(with_gpu(&[], peak_mib * 100 / 94), []);
    assert_eq!(with_gpu(&[], peak_mib * 100 / 96), too_large);
    assert_eq!(with_gpu(&["train.device=cpu"], 64), []);
}

#[test]
fn ranks_that_share_a_gpu_need_the_sum_of_their_memory() {
    let of = |sets: &[&str], mib: u64| {
        let plan = embedded(&[&["train.device=cuda"], sets].concat());
        let gpu = format!("gpu 0, GPU-1b77, 00000000:20:00.0, 0, {mib}, 0\ngpu_status 0\n");
        let failed = failed(&plan, [&[(MISMATCH.0, &gpu)], &[], &[]]);
        let of_gpus = failed.into_iter().filter(|(_, id, _)| [CheckId::Gpus, CheckId::GpuMemory].contains(id));
        of_gpus.map(|(_, id, _)| id).collect::<Vec<_>>()
    };
    let recipe = embedded(&["train.device=cuda"]);
    let ranks = recipe.attempt.placement.ranks.iter().filter(|place| place.node.as_str() == "node01").count() as u64;
    let peak_mib = recipe.run.recipe().unwrap().peak_memory() >> 20;
    let shared = ["env.presets=[\"nccl_shared_gpus\"]"];
    assert_eq!(of(&shared, ranks * peak_mib * 100 / 94), []);
    assert_eq!(of(&shared, ranks * peak_mib * 100 / 96), [CheckId::GpuMemory]);
}

const LOST_GPU: &str = "gpu Unable to determine the device handle for GPU1: 0000:20:00.0: GPU is lost.  Reboot the system\ngpu_status 15\n";

#[test]
fn a_lost_gpu_fails_the_node_though_its_other_gpus_answer() {
    let failed = failed(&command(), [&[("gpu_status 0\n", LOST_GPU)], &[], &[]]);
    assert_eq!(failed, [on("node01", CheckId::Gpus, ErrorCode::NoGpu)]);
}

#[test]
fn a_warning_of_nvidia_smi_beside_its_rows_fails_no_check() {
    const WARNING: &str = "WARNING: infoROM is corrupted at gpu 0000:19:00.0";
    let gpus = format!("gpu {WARNING}\ngpu_status 14\n");
    let apps = format!("app {WARNING}\napp_status 14\n");
    assert_eq!(failed(&command(), [&[("gpu_status 0\n", &gpus), (NO_APPS, &apps)], &[], &[]]), []);
    let linker = "app ERROR: ld.so: object 'a.so' from LD_PRELOAD cannot be preloaded: ignored.\napp_status 0\n";
    assert_eq!(failed(&command(), [&[(NO_APPS, linker)], &[], &[]]), []);
}

#[test]
fn a_gpu_whose_row_shows_that_it_is_lost_fails_the_check() {
    let lost = "gpu 7, GPU-1b77, 00000000:20:00.0, [GPU is lost], [GPU is lost], [GPU is lost]\ngpu_status 15\n";
    let failed = failed(&command(), [&[("gpu_status 0\n", lost)], &[], &[]]);
    assert_eq!(failed, [on("node01", CheckId::GpuErrors, ErrorCode::DeviceFailed)]);
}

#[test]
fn an_xid_error_fails_the_check_only_if_its_message_requires_a_reset() {
    let of = |message: &str| {
        let log = format!("gpu_status 0\nxid [ 9.0] NVRM: Xid (PCI:0000:19:00): {message}\n");
        failed(&command(), [&[("gpu_status 0\n", &log)], &[], &[]]).len()
    };
    assert_eq!(of("145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17"), 0);
    assert_eq!(of("63, pid=1, Row Remapper: New row marked for remapping, reset gpu to activate."), 0);
    assert_eq!(of("154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"), 1);
}

#[test]
fn an_unreadable_kernel_log_is_reported() {
    let of = |log: &str| {
        let results = results(&command(), [&[("gpu_status 0\n", &format!("gpu_status 0\n{log}"))], &[], &[]]);
        results.into_iter().find_map(|(_, (id, result))| (id == CheckId::GpuErrors).then_some(result)).unwrap()
    };
    let (readable, denied) = (of("").unwrap(), of("xid denied\n").unwrap());
    assert_ne!(readable, denied);
    insta::assert_snapshot!(format!("{readable}\n{denied}"));
    let failure = of("xid [ 9.0] NVRM: Xid (PCI:0000:19:00): 79, pid=1\n").unwrap_err();
    assert_eq!(failure.code, ErrorCode::DeviceFailed);
}

#[test]
fn files_of_the_data_set_that_a_node_cannot_read_fail_the_check() {
    let missing: Utf8PathBuf = "/nowhere/a clip.latent.safetensors".into();
    let own: Utf8PathBuf = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").into();
    let store: Utf8PathBuf = concat!(env!("CARGO_MANIFEST_DIR"), "/src").into();
    let plan = LaunchPlan { data: vec![own, store, missing.clone()], master: None, ..embedded(&[]) };
    let facts = query_facts(&mut Local::new().unwrap(), &script(&plan, &Marker::new(&plan))).unwrap();
    assert_eq!(facts.all("unread").collect::<Vec<_>>(), [missing.as_str()]);
    assert_eq!((facts.get("visible"), facts.get("runs_writable")), (Some("yes"), Some("yes")));

    let unread = ("runs_inodes", "unread /data/0.latent.safetensors\nunread /data/0.text.safetensors\nruns_inodes");
    let [(node, id, failure)] = &failures(&plan, [&[], &[unread], &[]])[..] else { panic!("one check fails") };
    assert_eq!((node.as_str(), *id, failure.code), ("node02", CheckId::Data, ErrorCode::InvalidDataset));
    assert!(failure.why.contains("/data/0.latent.safetensors"), "{failure}");
}

#[test]
fn a_command_needs_space_where_it_saves() {
    let plan = command_with(&["command.output=/out/{run}"]);
    let of = |output: &str| failed(&plan, [&[("runs_inodes", &format!("{output}\nruns_inodes"))], &[ROOM], &[ROOM]]);
    const ROOM: (&str, &str) =
        ("runs_inodes", "output_writable yes\noutput_free_kib 900000000\noutput_inodes -\nruns_inodes");
    let output = |code| [on("node01", CheckId::Output, code)];
    assert_eq!(of("output_writable yes\noutput_free_kib 900000000"), []);
    assert_eq!(of("output_free_kib 900000000"), output(ErrorCode::PermissionDenied));
    assert_eq!(of("output_writable yes\noutput_free_kib 1024"), output(ErrorCode::DiskFull));
    let few_inodes = "output_writable yes\noutput_free_kib 900000000\noutput_inodes 12";
    assert_eq!(of(few_inodes), output(ErrorCode::DiskFull));

    // A command that saves into the run folder needs the space there.
    let inside = command();
    assert_eq!(failed(&inside, [&[], &[], &[]]), []);
    let small = failed(&inside, [&[("runs_free_kib 900000000", "runs_free_kib 1024")], &[], &[]]);
    assert_eq!(small, [on("node01", CheckId::Disk, ErrorCode::DiskFull)]);
    let script = disks::script(&plan);
    assert!(script.contains("runs_free_kib") && script.contains("output_free_kib"), "{script}");
    assert!(!disks::script(&inside).contains("output_free_kib"));
}

#[test]
fn a_node_needs_room_for_what_its_ranks_offload() {
    let of = |sets: &[&str], facts: &str| {
        let plan = embedded(&[&["memory.block_swap=1"], sets].concat());
        let answer = format!("{facts}\nruns_inodes");
        failed(&plan, [&[("runs_inodes", &answer)], &[ROOM], &[ROOM]])
    };
    const ROOM: (&str, &str) =
        ("runs_inodes", "offload_folder /tmp\noffload_writable yes\noffload_free_kib 900000000\nruns_inodes");
    let offload = |code| [on("node01", CheckId::Offload, code)];
    let cpu = ["train.device=cpu"];
    assert_eq!(of(&cpu, "offload_folder /tmp\noffload_writable yes\noffload_free_kib 900000000"), []);
    assert_eq!(of(&cpu, "offload_folder /tmp"), offload(ErrorCode::PermissionDenied));
    let tmpfs = "offload_folder /tmp\noffload_writable yes\noffload_kind tmpfs\noffload_free_kib 900000000";
    assert_eq!(of(&cpu, tmpfs), offload(ErrorCode::CheckFailed));
    assert_eq!(
        of(&cpu, "offload_folder /tmp\noffload_writable yes\noffload_free_kib 12"),
        offload(ErrorCode::OutOfMemory)
    );
    let memory = "memory_free_kib 12";
    assert_eq!(of(&["train.device=cuda"], memory), [on("node01", CheckId::Memory, ErrorCode::OutOfMemory)]);

    // The script answers on this machine.
    let folder = format!("memory.folder={}", env!("CARGO_MANIFEST_DIR"));
    let plan = embedded(&["memory.block_swap=1", "train.device=cpu", &folder]);
    let script = format!("export LC_ALL=C\n{}echo end\n", offload::script(&plan));
    let facts = query_facts(&mut Local::new().unwrap(), &script).unwrap();
    assert!(facts.get("offload_free_kib").unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(offload::script(&embedded(&[])), "");
}

#[test]
fn a_node_needs_memory_for_all_of_its_ranks() {
    let of = |facts: &str| {
        let answer = format!("{facts}\nruns_inodes");
        failed(&embedded(&["train.device=cpu"]), [&[("runs_inodes", &answer)], &[], &[]])
    };
    let too_small = [on("node01", CheckId::Memory, ErrorCode::OutOfMemory)];
    assert_eq!([of("memory_free_kib 60000000"), of("memory_free_kib"), of("")], [vec![], vec![], vec![]]);
    assert_eq!(of("memory_free_kib 100000"), too_small);
    assert_eq!(of("memory_free_kib 100000\nmemory_limit /sys/fs/cgroup/job_7"), too_small);
    assert_eq!(memory::script(&command()), "");
}

#[test]
fn the_free_memory_of_a_node_is_the_lowest_that_a_control_group_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(folder.path()).unwrap();
    let group = |name: &str, files: &[(&str, &str)]| {
        std::fs::create_dir_all(root.join(name)).unwrap();
        files.iter().for_each(|(file, text)| std::fs::write(root.join(name).join(file), text).unwrap());
    };
    let free = || {
        let script = memory::script(&embedded(&[])).replace("/sys/fs/cgroup", root.as_str());
        let script = script.replace("/proc/self/cgroup", root.join("groups").as_str());
        let facts = query_facts(&mut Local::new().unwrap(), &format!("{script}\necho end\n")).unwrap();
        let group = facts.get("memory_limit").map(|group| group.strip_prefix(root.as_str()).unwrap().to_owned());
        (facts.get("memory_free_kib").unwrap().parse::<u64>().unwrap(), group)
    };
    group("", &[("groups", "0::/\n")]);
    let (all, none) = free();
    assert_eq!(none, None);
    // The limit of a group above counts, and pages of files are free.
    group("", &[("groups", "0::/slurm/job_7/step_0\n")]);
    group("slurm/job_7/step_0", &[("memory.max", "max"), ("memory.current", "4096")]);
    let stat = "inactive_file 1048576\nactive_file 1048576\nslab 9";
    group("slurm/job_7", &[("memory.max", "8388608"), ("memory.current", "6291456"), ("memory.stat", stat)]);
    assert_eq!(free(), (4096, Some("/slurm/job_7".to_owned())));
    // The first version of control groups has other names, and 2^63 for no limit.
    group("", &[("groups", "11:memory:/job\n0::/\n")]);
    let (limit, used) = ("memory.limit_in_bytes", "memory.usage_in_bytes");
    group("memory", &[(limit, "9223372036854771712"), (used, "4096")]);
    group(
        "memory/job",
        &[(limit, "4194304"), (used, "4194304"), ("memory.stat", "active_file 7\ntotal_active_file 2048")],
    );
    assert_eq!(free(), (2, Some("/memory/job".to_owned())));
    group("memory/job", &[(limit, "9223372036854771712")]);
    assert!(free().0.abs_diff(all) < all / 2);
}

#[test]
fn every_other_obstacle_on_a_node_fails_its_own_check() {
    let mut plan = embedded(&[]);
    plan.attempt.start = StartFrom::Weights { path: "/weights/step-00000060".into() };
    let port = plan.master.as_ref().unwrap().port;
    let (silent, taken) = (format!("port {port} silent"), format!("port {port} taken"));
    let free = "port 29500 free";
    let version =
        ("version {\"libtorch\":\"2.11.0\",\"cuda\":true}", "broken libtorch_cpu.so: cannot open shared object file");
    let cases = [
        (("runs_inodes 100000", "runs_inodes 12"), CheckId::Inodes, ErrorCode::DiskFull),
        (("runs_writable yes\n", ""), CheckId::RunFolder, ErrorCode::PermissionDenied),
        (("visible yes", "visible no"), CheckId::RunFolder, ErrorCode::CheckFailed),
        (version, CheckId::Libtorch, ErrorCode::TrainerUnusable),
        ((SHA, "another"), CheckId::Trainer, ErrorCode::TrainerUnusable),
        (("weights yes", "weights no"), CheckId::Weights, ErrorCode::CheckpointUnreadable),
        ((free, &silent), CheckId::Rendezvous, ErrorCode::NodeUnreachable),
        ((free, &taken), CheckId::Rendezvous, ErrorCode::PortInUse),
        (("runs_free_kib 900000000", "runs_free_kib -"), CheckId::Disk, ErrorCode::CheckFailed),
    ];
    assert_eq!(failed(&plan, [&[], &[], &[]]), []);
    for (change, id, code) in cases {
        assert_eq!(failed(&plan, [&[], &[change], &[]]), [on("node02", id, code)], "{change:?}");
    }

    let two_each = plan_on("node[01-03] slots=2", &recipe("tests/fixtures/configs/valid/command.toml", &[]));
    let second = ("gpu 0, ", "gpu 1, GPU-1b77, 00000000:20:00.0, 0, 81559, 0\ngpu 0, ");
    let failed = failed(&two_each, [&[second], &[], &[second]]);
    assert_eq!(failed, [on("node02", CheckId::Gpus, ErrorCode::TooFewRanks)]);
}

/// The texts of all failures whose codes the tests above compare.
#[test]
fn every_failure_of_a_node_gives_its_reason_and_a_hint() {
    let mut plan = embedded(&["train.device=cuda"]);
    plan.attempt.start = StartFrom::Weights { path: "/weights/step-00000060".into() };
    let port = plan.master.as_ref().unwrap().port;
    let (free, silent, taken) = ("port 29500 free", format!("port {port} silent"), format!("port {port} taken"));
    let changes: [&[(&str, &str)]; 8] = [
        &[("runs_inodes 100000", "runs_inodes 12")],
        &[NO_NVIDIA_SMI, ("visible yes", "visible no")],
        &[NO_CUDA, ("runs_writable yes\n", "")],
        &[("2.11.0", "2.10.0"), ("weights yes", "weights no")],
        &[(SHA, "another"), (free, &silent)],
        &[("sha256", "missing\nsha256"), (free, &taken)],
        &[
            ("gpu 0, GPU-9d2c, 00000000:19:00.0, 0,", "gpu 0, GPU-9d2c, 00000000:19:00.0, 70000,"),
            ("runs_free_kib 900000000", "runs_free_kib -"),
        ],
        &[("runs_inodes", "unread /data/0.latent.safetensors\nunread /data/0.text.safetensors\nruns_inodes")],
    ];
    let [in_use, hidden, ..] = bad_gpu_processes();
    let processes: [&[(&str, &str)]; 2] = [&[(NO_APPS, &in_use)], &[(NO_APPS, &hidden)]];
    let all = changes.into_iter().chain(processes);
    let texts = all.flat_map(|change| failures(&plan, [&[], change, &[]]));
    let texts: Vec<String> =
        texts.map(|(_, id, failure)| format!("{}: {}\n  {}", id.name(), failure.why, failure.fix)).collect();
    let runs = plan.dir.root.parent().unwrap();
    insta::assert_snapshot!(texts.join("\n").replace(runs.as_str(), "RUNS").replace(&port.to_string(), "PORT"));
}

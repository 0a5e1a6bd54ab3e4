//! What is said of nodes whose answers are made up.

use camino::Utf8Path;
use cluster::Hostfile;
use plan::{Context, LaunchRequest, StartOptions, Target, TrainerBinary, launch};
use recipe::Recipe;
use rundir::StartFrom;

use super::super::node::usual_offset;
use super::*;
use crate::Local;

const SHA: &str = "5d41402abc4b2a76b9719d911017c592";
/// What a healthy node tells.
const WELL: &str = concat!(
    "sha256 5d41402abc4b2a76b9719d911017c592\n",
    "version {\"libtorch\":\"2.11.0\",\"cuda\":true}\n",
    "visible yes\nruns_writable yes\nruns_free_kib 900000000\nruns_inodes 100000\nweights yes\n",
    "port 29500 free\nport 29501 free\n",
    "gpu 0, GPU-9d2c, 00000000:19:00.0, 0, 81559, 0\ngpu_status 0\napp \napp_status 0\n",
);
/// What nvidia-smi says after an update of the driver, until the next boot.
const MISMATCH: (&str, &str) = (
    "gpu 0, GPU-9d2c, 00000000:19:00.0, 0, 81559, 0\ngpu_status 0\napp \napp_status 0\n",
    "gpu Failed to initialize NVML: Driver/library version mismatch\ngpu NVML library version: 590.48\ngpu_status 18\n",
);
/// What the shell says where there is none.
const NO_SMI: (&str, &str) =
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
        target: Target::hostfile(&nodes, 3, "hosts.txt"),
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

/// What is said of three nodes of which each tells what a healthy one does, but for these changes.
fn said(plan: &LaunchPlan, changes: [&[(&str, &str)]; 3]) -> Vec<Row> {
    let answers: Vec<(NodeId, Answered)> = changes
        .iter()
        .zip(&plan.nodes)
        .map(|(changes, launch)| {
            let text = changes.iter().fold(format!("{WELL}end\n"), |text, (old, new)| {
                assert!(text.contains(old), "{old} is not in\n{text}");
                text.replace(old, new)
            });
            let told = Told::read(&text).unwrap();
            (launch.node.clone(), Answered { round_trip: Duration::from_millis(1), ahead_s: 0.0, told })
        })
        .collect();
    let answers: Vec<(&NodeId, &Answered)> = answers.iter().map(|(node, answered)| (node, answered)).collect();
    let usual = Usual::of(plan, &answers);
    answers.iter().flat_map(|(node, answered)| rows("cannot launch", plan, node, answered, &usual)).collect()
}

/// The ✗ among that.
fn refusals(plan: &LaunchPlan, changes: [&[(&str, &str)]; 3]) -> Vec<String> {
    let bad = |(name, found): Row| Some(format!("{name}: {}", found.err()?.why));
    said(plan, changes).into_iter().filter_map(bad).collect()
}

#[test]
fn the_node_whose_gpus_are_broken_is_refused_where_others_have_some() {
    let none: &[(&str, &str)] = &[];
    let mismatch = "the driver's kernel module is not that of its library, 590.48";
    assert_eq!(refusals(&command(), [none; 3]), [""; 0]);
    assert_eq!(
        refusals(&command(), [none, none, &[MISMATCH]]),
        [format!("GPUs: node node03: node01 has GPUs, but {mismatch}")]
    );
    assert_eq!(
        refusals(&command(), [&[NO_SMI], none, none]),
        ["GPUs: node node01: node02 has GPUs, but there is no nvidia-smi"]
    );
    // A driver that does not work is one that is meant to.
    assert_eq!(refusals(&command(), [&[MISMATCH]; 3])[0], format!("GPUs: node node01: it has GPUs, but {mismatch}"));
    assert_eq!(refusals(&command(), [&[NO_SMI]; 3]), [""; 0], "a command for CPUs");

    let cpu = embedded(&["train.device=cpu"]);
    assert_eq!(refusals(&cpu, [none, none, &[MISMATCH]]), [""; 0]);
}

#[test]
fn a_trainer_that_finds_gpus_on_some_nodes_and_not_on_others_is_refused_there() {
    let none: &[(&str, &str)] = &[];
    let blind = ("\"cuda\":true", "\"cuda\":false");
    assert_eq!(
        refusals(&embedded(&[]), [none, &[blind], none]),
        ["libtorch: node node02: node01 has GPUs, and the trainer finds no GPU there"]
    );
    assert_eq!(refusals(&embedded(&[]), [&[blind]; 3]), [""; 0], "it is one for CPUs");
    let wanted = refusals(&embedded(&["train.device=cuda"]), [&[blind]; 3]);
    assert_eq!(wanted[0], "libtorch: node node01: train.device is \"cuda\", and the trainer finds no GPU there");
    assert_eq!(wanted.len(), 3);
}

#[test]
fn the_libtorch_that_differs_from_most_is_refused_unless_it_is_about_to_be_replaced() {
    let other = ("2.11.0", "2.10.0");
    let odd = [&[other][..], &[], &[]];
    let why = ["libtorch: node node01: its libtorch is 2.10.0, that of node02 is 2.11.0"];
    assert_eq!(refusals(&embedded(&[]), odd), why);
    let pushed = LaunchPlan { push: true, ..embedded(&[]) };
    assert_eq!(refusals(&pushed, odd), why);
    assert_eq!(refusals(&pushed, [&[other, (SHA, "another")], &[], &[]]), [""; 0]);
}

#[test]
fn what_is_left_over_on_gpus_is_told_or_that_it_cannot_be() {
    let of = |answer: &str| refusals(&command(), [&[("app \napp_status 0\n", answer)], &[], &[]]);
    let uuid = "GPU-5a7e0001-11d2-4c33-9d01-60b5c0ffee01";
    assert_eq!(
        of(&format!("app {uuid}, 12, python train.py, 70000\napp_status 0\nowner 12 ada\n")),
        ["GPU processes: node node01: its GPUs are in use: process 12 of ada with 68.4 GiB (python train.py)"]
    );
    let cannot = "GPU processes: node node01: what is left over on its GPUs cannot be told";
    let permissions = "[Insufficient Permissions]";
    assert_eq!(
        of(&format!("app {uuid}, {permissions}, {permissions}, {permissions}\napp_status 0\n")),
        [format!("{cannot}: nvidia-smi hides 1 process from this user")]
    );
    assert_eq!(of("app \napp_status 124\n"), [format!("{cannot}: nvidia-smi hangs")]);
    assert_eq!(of("app \napp_status 1\n"), [format!("{cannot}: nvidia-smi ended with status 1 and no word")]);
    assert_eq!(of("app \napp_status 0\n"), [""; 0]);
}

#[test]
fn of_a_node_that_is_shared_only_the_gpus_that_ranks_see_count() {
    const OTHERS: &str = "gpu 0, GPU-1b77, 00000000:20:00.0, 70000, 81559, 3\n\
        gpu 1, GPU-9d2c, 00000000:19:00.0, 0, 81559, 0\ngpu_status 0\n\
        app GPU-1b77, 12, python train.py, 70000\napp_status 0\nowner 12 bob\n\
        xid [ 9.0] NVRM: Xid (PCI:0000:20:00): 79, pid=1\n";
    let of = |plan: &LaunchPlan, in_sight: &str| {
        let refused = refusals(plan, [&[(MISMATCH.0, &format!("{in_sight}{OTHERS}"))], &[], &[]]);
        refused.iter().map(|row| row.split_once(": ").unwrap().0.to_owned()).collect::<Vec<_>>()
    };
    let all = ["GPU processes", "GPU memory", "GPU errors"];
    for (in_sight, refused) in [
        ("in_sight 1\n", &[][..]),
        ("in_sight GPU-9d\n", &[]),
        ("in_sight 0\n", &all),
        ("in_sight 1,0\n", &["GPU processes", "GPU errors"]),
        ("", &all),
        ("in_sight MIG-51\n", &all),
    ] {
        assert_eq!(of(&command(), in_sight), refused, "{in_sight}");
    }
    // What the recipe says, ranks are told.
    let chosen = command_with(&["env.variables.CUDA_VISIBLE_DEVICES=1"]);
    assert_eq!(of(&chosen, "in_sight 0\n"), [""; 0]);
}

#[test]
fn a_gpu_that_is_lost_is_named_though_the_others_answer() {
    let lost = "gpu Unable to determine the device handle for GPU1: 0000:20:00.0: GPU is lost.  Reboot the system\ngpu_status 15\n";
    assert_eq!(
        refusals(&command(), [&[("gpu_status 0\n", lost)], &[], &[]]),
        ["GPUs: node node01: it has GPUs, but GPU 1 at 0000:20:00.0 does not answer: GPU is lost"]
    );
}

#[test]
fn a_log_that_may_not_be_read_is_not_one_without_errors() {
    let of = |log: &str| {
        let rows = said(&command(), [&[("gpu_status 0\n", &format!("gpu_status 0\n{log}"))], &[], &[]]);
        rows.into_iter().find(|(name, _)| *name == "GPU errors").unwrap().1
    };
    assert_eq!(of("").unwrap(), "none");
    assert!(of("xid denied\n").unwrap().contains("Xids cannot be told"));
    assert!(of("xid [ 9.0] NVRM: Xid (PCI:0000:19:00): 79, pid=1\n").is_err());
}

#[test]
fn a_node_tells_which_files_of_the_data_set_it_cannot_read() {
    let missing: Utf8PathBuf = "/nowhere/a clip.latent.safetensors".into();
    let own: Utf8PathBuf = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").into();
    let plan = LaunchPlan { data: vec![own, missing.clone()], master: None, ..embedded(&[]) };
    let told = tell(&mut Local::new().unwrap(), &script(&plan, &Marker::new(&plan))).unwrap();
    assert_eq!(told.all("unread").collect::<Vec<_>>(), [missing.as_str()]);
    assert_eq!((told.get("visible"), told.get("runs_writable")), (Some("yes"), Some("yes")));

    let unread = ("runs_inodes", "unread /data/0.latent.safetensors\nunread /data/0.text.safetensors\nruns_inodes");
    let why = "/data/0.latent.safetensors of the data set cannot be read, nor can others of it";
    assert_eq!(refusals(&plan, [&[], &[unread], &[]]), [format!("data: node node02: {why}")]);
}

#[test]
fn what_a_command_saves_needs_room_where_it_saves_it() {
    let plan = command_with(&["command.output=/out/{run}"]);
    let of = |output: &str| refusals(&plan, [&[("runs_inodes", &format!("{output}\nruns_inodes"))], &[ROOM], &[ROOM]]);
    let out = format!("/out/{}", plan.run.id);
    const ROOM: (&str, &str) =
        ("runs_inodes", "output_writable yes\noutput_free_kib 900000000\noutput_inodes -\nruns_inodes");
    assert_eq!(of("output_writable yes\noutput_free_kib 900000000"), [""; 0]);
    assert_eq!(of("output_free_kib 900000000"), [format!("output: node node01: {out} cannot be written to")]);
    let full = "logs and what the command saves need 1.0 GiB at least";
    assert_eq!(
        of("output_writable yes\noutput_free_kib 1024"),
        [format!("output: node node01: {full}, {out} has 1.0 MiB free")]
    );
    assert_eq!(
        of("output_writable yes\noutput_free_kib 900000000\noutput_inodes 12"),
        [format!("output: node node01: {out} has room for 12 more files")]
    );

    // Unless that is the disk of the run.
    let inside = command();
    assert_eq!(refusals(&inside, [&[], &[], &[]]), [""; 0]);
    let small = refusals(&inside, [&[("runs_free_kib 900000000", "runs_free_kib 1024")], &[], &[]]);
    assert!(matches!(&small[..], [one] if one.starts_with(&format!("disk: node node01: {full}"))), "{small:?}");
    let script = disks::script(&plan);
    assert!(script.contains("runs_free_kib") && script.contains("output_free_kib"), "{script}");
    assert!(!disks::script(&inside).contains("output_free_kib"));
}

#[test]
fn whatever_else_keeps_a_run_from_starting_on_a_node_has_a_row_with_its_name() {
    let start = StartFrom::Weights { path: "/weights/step-00000060".into() };
    let mut plan = embedded(&[]);
    plan.attempt.start = start;
    let runs = plan.dir.root.parent().unwrap();
    let master = plan.master.clone().unwrap();
    let silent = format!("port {} silent", master.port);
    let version =
        ("version {\"libtorch\":\"2.11.0\",\"cuda\":true}", "broken libtorch_cpu.so: cannot open shared object file");
    let cases = [
        (("runs_inodes 100000", "runs_inodes 12"), "inodes", format!("{runs} has room for 12 more files")),
        (("runs_writable yes\n", ""), "run folder", format!("{runs} cannot be written to")),
        (
            ("visible yes", "visible no"),
            "run folder",
            format!("{runs} is not the folder that this machine sees under that name"),
        ),
        (version, "libtorch", "the trainer does not run there: libtorch_cpu.so: cannot open shared object file".into()),
        (("weights yes", "weights no"), "weights", "checkpoint /weights/step-00000060 cannot be read".into()),
        (
            ("port 29500 free", &silent),
            "rendezvous",
            format!("{} port {}, where the ranks are to meet, does not answer this node", master.address, master.port),
        ),
        (("runs_free_kib 900000000", "runs_free_kib -"), "disk", format!("df does not tell the free space of {runs}")),
    ];
    assert_eq!(refusals(&plan, [&[], &[], &[]]), [""; 0]);
    for (change, row, why) in cases {
        assert_eq!(refusals(&plan, [&[], &[change], &[]]), [format!("{row}: node node02: {why}")]);
    }

    let two_each = plan_on("node[01-03] slots=2", &recipe("tests/fixtures/configs/valid/command.toml", &[]));
    let second = ("gpu 0, ", "gpu 1, GPU-1b77, 00000000:20:00.0, 0, 81559, 0\ngpu 0, ");
    assert_eq!(refusals(&two_each, [&[second], &[], &[second]]), ["GPUs: node node02: 2 ranks are to run on 1 GPU"]);
}

#[test]
fn the_clock_that_differs_from_most_is_the_one_that_is_wrong() {
    assert_eq!(usual_offset(vec![]), 0.0);
    assert_eq!(usual_offset(vec![7.0]), 7.0);
    assert_eq!(usual_offset(vec![0.1, 7.0]), 0.1);
    assert_eq!(usual_offset(vec![7.0, 7.1, 7.2]), 7.1, "this machine's own");
    assert_eq!(usual_offset(vec![-7.0, 0.2, 0.1]), 0.1);
}

#[test]
fn an_answer_counts_only_when_it_is_whole() {
    let told = Told::read("sha256 abc\nvisible yes\nend\n").unwrap();
    assert_eq!((told.get("sha256"), told.get("visible"), told.get("broken")), (Some("abc"), Some("yes"), None));
    assert_eq!(Told::read("sha256 abc\nvisi"), None);
    assert_eq!(Told::read(""), None);
}

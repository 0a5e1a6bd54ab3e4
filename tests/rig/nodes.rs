//! Tests that nodes have their own names, addresses, processes and homes.

use std::fs;
use std::net::{TcpListener, TcpStream};

use rig::Options;

use crate::{run, ssh};

#[test]
fn every_node_has_its_own_name_address_processes_and_home() {
    let Some(rig) = Options::new(3).up_or_skip() else { return };
    for (number, node) in rig.nodes().iter().enumerate() {
        let facts = ssh(&rig, node, "hostname; hostname -I; ps -e -o pid= | head -1; cd; pwd; ls -A").unwrap();
        let own = rig.own();
        assert_eq!(facts, format!("{node}\n10.99.0.{} \n      1\n{own}/home\n.ssh", number + 1));
    }
    let boots = rig.nodes().into_iter().map(|node| ssh(&rig, &node, "cat /proc/sys/kernel/random/boot_id").unwrap());
    assert_eq!(boots.collect::<std::collections::BTreeSet<_>>().len(), 3);
}

#[test]
fn nodes_reach_each_other_and_share_a_folder() {
    let Some(rig) = Options::new(2).up_or_skip() else { return };
    ssh(&rig, "node01", &format!("ssh node02 'hostname >{}/who'", rig.share())).unwrap();
    assert_eq!(fs::read_to_string(rig.share().join("who")).unwrap(), "node02\n");
}

#[test]
fn a_program_on_the_head_runs_in_the_callers_folder_and_ends_with_its_child() {
    let Some(rig) = Options::new(1).up_or_skip() else { return };
    let folder = run(rig.command("pwd").current_dir("/usr")).unwrap();
    assert_eq!((folder.as_str(), run(&mut rig.command("hostname")).unwrap().as_str()), ("/usr", "head"));

    let mut child = rig.command("sleep").arg("1000").spawn().unwrap();
    let sleeping = || run(rig.command("pgrep").args(["-f", "^sleep 1000"])).is_ok();
    while !sleeping() {}
    child.kill().unwrap();
    child.wait().unwrap();
    while sleeping() {}
}

#[test]
fn only_threads_that_joined_the_network_reach_the_nodes() {
    let Some(rig) = Options::new(1).up_or_skip() else { return };
    let inside = std::thread::scope(|scope| {
        let joined = scope.spawn(|| {
            rig.join_network().unwrap();
            TcpStream::connect("10.99.0.1:22").map(|_| ())
        });
        joined.join().unwrap()
    });
    inside.unwrap();
    // The address of the rig's head is not an address of this machine.
    TcpListener::bind("10.99.255.254:0").unwrap_err();
}

#[test]
fn several_rigs_can_use_the_same_addresses() {
    let (Some(one), Some(other)) = (Options::new(2).up_or_skip(), Options::new(1).up_or_skip()) else { return };
    fs::write(one.node_folder("node01").join("home/which"), "one").unwrap();
    fs::write(other.node_folder("node01").join("home/which"), "other").unwrap();
    let which = |rig: &rig::Rig| ssh(rig, "10.99.0.1", "cat which").unwrap();
    assert_eq!((which(&one).as_str(), which(&other).as_str()), ("one", "other"));
    drop(other);
    assert_eq!(which(&one), "one");
}

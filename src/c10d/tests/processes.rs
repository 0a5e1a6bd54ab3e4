//! Ranks as real processes: this test binary starts itself again, with a rank in its environment.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use c10d::{Group, Reduce, Result, Store};
use tch::{Device, Kind, Tensor};

/// What the child of a test does: `"<test> <rank> <size> <port>"`.
const CHILD: &str = "VIDTUI_C10D_TEST_CHILD";

/// Long enough for a loaded machine to start a process, and the limit that a hang would run into.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
    listener.local_addr().expect("a bound listener has an address").port()
}

fn join(rank: usize, size: usize, port: u16, timeout: Duration) -> Result<(Store, Group)> {
    let store = Store::tcp("127.0.0.1", port, size, rank == 0, timeout)?;
    let group = Group::gloo(&store.prefix("world"), rank, size, timeout, Some("lo"))?;
    Ok((store, group))
}

/// A process that does not outlive the test that started it.
struct ChildRank(Child);

impl ChildRank {
    /// Waits for its end.
    fn succeeded(mut self) -> bool {
        self.0.wait().expect("a child can be waited for").success()
    }
}

impl Drop for ChildRank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(test: &str, rank: usize, size: usize, port: u16) -> ChildRank {
    let child = Command::new(std::env::current_exe().expect("a running program has a path"))
        .args(["--exact", "--nocapture", "a_child_rank"])
        .env(CHILD, format!("{test} {rank} {size} {port}"))
        .stdout(Stdio::null())
        .spawn()
        .expect("this program starts again");
    ChildRank(child)
}

#[test]
fn a_child_rank() -> Result<()> {
    let Ok(what) = std::env::var(CHILD) else { return Ok(()) };
    let words: Vec<&str> = what.split(' ').collect();
    let number = |i: usize| words[i].parse::<usize>().expect("a number");
    let (_store, group) = join(number(1), number(2), number(3) as u16, TIMEOUT)?;
    if words[0] == "sum" {
        sum(&group)?;
    }
    if words[0] == "die" {
        group.barrier()?;
        std::process::abort();
    }
    group.barrier()
}

fn sum(group: &Group) -> Result<()> {
    let size = group.size() as i64;
    let grad = Tensor::full([size * 1000], group.rank() as f64, (Kind::Float, Device::Cpu));
    let shard = Tensor::zeros([1000], (Kind::Float, Device::Cpu));
    let whole = grad.zeros_like();
    group.reduce_scatter_into(&shard, &grad, Reduce::Sum)?.wait()?;
    group.all_gather_into(&whole, &shard)?.wait()?;
    let want = (size * (size - 1) / 2) as f64;
    assert_eq!([whole.min(), whole.max()].map(|value| value.double_value(&[])), [want, want]);
    Ok(())
}

#[test]
fn processes_reduce_and_gather() -> Result<()> {
    for size in [2, 4] {
        let port = free_port();
        let children: Vec<_> = (1..size).map(|rank| spawn("sum", rank, size, port)).collect();
        let (_store, group) = join(0, size, port, TIMEOUT)?;
        sum(&group)?;
        group.barrier()?;
        assert!(children.into_iter().all(ChildRank::succeeded));
    }
    Ok(())
}

#[test]
fn a_killed_peer_is_an_error_and_not_a_hang() -> Result<()> {
    type Collective = fn(&Group, &Tensor, &Tensor) -> Result<c10d::Pending>;
    let collectives: [(&str, Collective); 4] = [
        ("all-reduce", |group, whole, _| group.all_reduce(whole, Reduce::Sum)),
        ("all-gather", |group, whole, part| group.all_gather_into(whole, part)),
        ("reduce-scatter", |group, whole, part| group.reduce_scatter_into(part, whole, Reduce::Sum)),
        ("broadcast", |group, whole, _| group.broadcast(whole, 1)),
    ];
    for (name, collective) in collectives {
        let port = free_port();
        let child = spawn("die", 1, 2, port);
        let (store, group) = join(0, 2, port, TIMEOUT)?;
        let whole = Tensor::ones([2 << 20], (Kind::Float, Device::Cpu));
        let part = Tensor::ones([1 << 20], (Kind::Float, Device::Cpu));
        group.barrier()?;
        let error = collective(&group, &whole, &part).and_then(c10d::Pending::wait).err();
        let error = error.expect("the peer is dead").to_string();
        assert!(error.starts_with(&format!("cannot {name} [")), "{error}");
        assert!(!error.to_lowercase().contains("timed out"), "noticed at once, not by the limit: {error}");
        println!("{error}");
        // The group can still be taken down.
        drop((group, store));
        assert!(!child.succeeded());
    }
    Ok(())
}

#[test]
fn a_peer_that_never_calls_is_an_error_after_the_timeout() -> Result<()> {
    for reduce_scatter in [false, true] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let join = |rank| {
            let limit = Duration::from_secs(2);
            let store = Store::file(&folder.path().join("store"), 2, limit)?;
            Group::gloo(&store, rank, 2, limit, Some("lo"))
        };
        let (group, _quiet_peer) = std::thread::scope(|scope| {
            let quiet = scope.spawn(|| join(1));
            Ok::<_, c10d::Error>((join(0)?, quiet.join().expect("the peer joined")?))
        })?;
        let whole = Tensor::ones([2 << 10], (Kind::Float, Device::Cpu));
        let part = Tensor::ones([1 << 10], (Kind::Float, Device::Cpu));
        let pending = match reduce_scatter {
            false => group.all_reduce(&whole, Reduce::Sum)?,
            true => group.reduce_scatter_into(&part, &whole, Reduce::Sum)?,
        };
        let error = pending.wait().expect_err("the peer is silent").to_string();
        assert!(error.to_lowercase().contains("timed out"), "{error}");
        println!("{error}");
    }
    Ok(())
}

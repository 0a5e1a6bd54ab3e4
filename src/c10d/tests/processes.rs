//! Ranks as real processes: this test binary starts itself as a child, with the rank in an environment variable.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use c10d::{Group, Reduce, Result, Store};
use tch::{Device, Kind, Tensor};
use torch_error::ErrorKind;

/// The environment variable with the child's task: `"<test> <rank> <size> <port>"`.
const CHILD: &str = "VIDTUI_C10D_TEST_CHILD";

/// The timeout of a rank: enough to start a process on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Serves a store on a port that the system chooses; ranks join later.
fn serve() -> Result<Store> {
    Store::tcp("127.0.0.1", 0, 1, true, TIMEOUT)
}

fn join(store: &Store, rank: usize, size: usize) -> Result<Group> {
    Group::gloo(&store.prefix("world"), rank, size, TIMEOUT, Some("lo"))
}

/// A child process that is killed when the test ends.
struct ChildRank(Child);

impl ChildRank {
    /// Waits for the exit and returns whether it succeeded.
    fn succeeded(mut self) -> bool {
        self.0.wait().expect("the child can be waited for").success()
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
        .expect("this program can start itself");
    ChildRank(child)
}

#[test]
fn a_child_rank() -> Result<()> {
    let Ok(what) = std::env::var(CHILD) else { return Ok(()) };
    let words: Vec<&str> = what.split(' ').collect();
    let number = |i: usize| words[i].parse::<usize>().expect("a number");
    let store = Store::tcp("127.0.0.1", number(3) as u16, 1, false, TIMEOUT)?;
    let group = join(&store, number(1), number(2))?;
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
        let store = serve()?;
        let children: Vec<_> = (1..size).map(|rank| spawn("sum", rank, size, store.port())).collect();
        let group = join(&store, 0, size)?;
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
        let store = serve()?;
        let child = spawn("die", 1, 2, store.port());
        let group = join(&store, 0, 2)?;
        let whole = Tensor::ones([2 << 20], (Kind::Float, Device::Cpu));
        let part = Tensor::ones([1 << 20], (Kind::Float, Device::Cpu));
        group.barrier()?;
        let error = collective(&group, &whole, &part).and_then(c10d::Pending::wait).err();
        let error = error.expect("the peer is dead");
        assert_eq!(error.kind(), ErrorKind::Peer, "{error}");
        let error = error.to_string();
        assert!(error.starts_with(&format!("cannot {name} [")), "{error}");
        assert!(!error.to_lowercase().contains("timed out"), "the error comes at once, not after the timeout: {error}");
        println!("{error}");
        // Dropping the group still works.
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
            // It also limits the time for both ranks to join.
            let limit = Duration::from_secs(10);
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
        let error = pending.wait().expect_err("the peer never calls");
        assert_eq!(error.kind(), ErrorKind::Peer, "{error}");
        let error = error.to_string();
        assert!(error.to_lowercase().contains("timed out"), "{error}");
        println!("{error}");
    }
    Ok(())
}

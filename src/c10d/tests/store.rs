//! Tests of values in stores, and of errors when ranks do not connect.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use c10d::{Error, Group, Result, Store};
use torch_error::ErrorKind;

/// Longer than libtorch needs to connect if the DNS server does not answer.
const TIMEOUT: Duration = Duration::from_secs(60);

fn keeps_bytes_counts_and_prefixes(store: &Store, other: &Store) -> Result<()> {
    store.prefix("a").set("key", &[0, 255, 7])?;
    assert_eq!(other.get("a/key")?, [0, 255, 7]);
    assert_eq!(other.prefix("a").get("key")?, [0, 255, 7]);
    store.set("empty", &[])?;
    assert!(other.get("empty")?.is_empty());
    assert_eq!([store.add("count", 2)?, other.add("count", 40)?], [2, 42]);
    Ok(())
}

#[test]
fn a_tcp_store_keeps_bytes_counts_and_prefixes() -> Result<()> {
    let store = Store::tcp("127.0.0.1", 0, 1, true, TIMEOUT)?;
    let client = Store::tcp("127.0.0.1", store.port(), 1, false, TIMEOUT)?;
    keeps_bytes_counts_and_prefixes(&store, &client)
}

#[test]
fn a_file_store_keeps_bytes_counts_and_prefixes() -> Result<()> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = || Store::file(&folder.path().join("store"), 2, TIMEOUT);
    keeps_bytes_counts_and_prefixes(&open()?, &open()?)
}

#[test]
fn a_key_that_is_never_set_is_an_error_after_the_timeout() -> Result<()> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::file(&folder.path().join("store"), 1, Duration::from_millis(300))?;
    let error = store.get("nothing").expect_err("no rank sets the key");
    assert!(error.to_string().to_lowercase().contains("timeout"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Peer);
    Ok(())
}

#[test]
fn a_store_in_a_missing_folder_is_a_readable_error() {
    let error = Store::file(Path::new("/nowhere/store"), 2, TIMEOUT).err().expect("there is no such folder");
    assert!(matches!(&error, Error::Argument { doing, .. } if doing.contains("/nowhere/store")), "{error}");
}

#[test]
fn a_wrong_port_is_a_readable_error() {
    // Binding the port on one loopback address keeps other processes from it; no process listens on the other address.
    let held = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
    let port = held.local_addr().expect("a bound listener has an address").port();
    let error =
        Store::tcp("127.0.0.2", port, 2, false, Duration::from_secs(1)).err().expect("no process listens there");
    let Error::Torch { doing, .. } = &error else { panic!("{error}") };
    assert!(doing.contains(&format!("127.0.0.2 port {port}")), "{error}");
    assert_eq!(error.kind(), ErrorKind::Peer);
}

#[test]
fn a_rank_that_never_connects_is_a_readable_error() {
    let error =
        Store::tcp("127.0.0.1", 0, 2, true, Duration::from_secs(1)).err().expect("only one of two ranks connected");
    let text = error.to_string();
    assert!(text.to_lowercase().contains("timed out") && !text.contains('\n'), "{text}");
    assert_eq!(error.kind(), ErrorKind::Peer);
}

#[test]
fn an_unknown_interface_is_a_readable_error() -> Result<()> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::file(&folder.path().join("store"), 2, TIMEOUT)?;
    let error = Group::gloo(&store, 0, 2, TIMEOUT, Some("wlan7")).err().expect("there is no wlan7");
    assert!(matches!(&error, Error::Torch { doing, .. } if doing.contains("wlan7")), "{error}");
    Ok(())
}

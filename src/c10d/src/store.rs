//! The key-value store through which ranks find each other.

use std::ffi::c_char;
use std::fs::OpenOptions;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ffi::{self, StoreHandle, c_text, check};
use crate::{Error, Result};

/// A client of the run's key-value store, and in one rank also its server.
///
/// A TCP server lives as long as the last clone or prefix of the store that made it; ranks that still need the store
/// after that get an error. A file goes with the last of its ranks.
#[derive(Clone)]
pub struct Store {
    handle: Arc<Handle>,
    prefix: String,
}

struct Handle(NonNull<StoreHandle>);

// SAFETY: the handle is made for sharing: TCPStore and FileStore take a mutex of their own in each operation.
unsafe impl Send for Handle {}
// SAFETY: as above; the port is written once, before the handle is shared.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the pointer came from vidtui_store_tcp and this is its only owner.
        unsafe { ffi::vidtui_store_drop(self.0.as_ptr()) }
    }
}

impl Store {
    /// Connects to the store at `host:port`, and serves it when `is_server`.
    ///
    /// Returns when the server is there; the server itself returns when all `world_size` clients are, itself included.
    ///
    /// # Errors
    /// When that takes longer than `timeout`, or the server's port is taken. Later waits have the same limit.
    pub fn tcp(host: &str, port: u16, world_size: usize, is_server: bool, timeout: Duration) -> Result<Self> {
        let doing = || match is_server {
            true => format!("serve the store of {world_size} ranks at {host}:{port}"),
            false => format!("reach the store at {host}:{port}"),
        };
        let host_c = c_text(host, doing)?;
        let timeout = if is_server { timeout } else { await_server(host, port, timeout, doing)? };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the string outlives the call, and `handle` is where the shim writes a new handle on success.
        let status = unsafe {
            ffi::vidtui_store_tcp(host_c.as_ptr(), port, world_size, is_server.into(), millis(timeout), &mut handle)
        };
        Self::made(status, handle, doing)
    }

    /// Opens a store that is a file on this node, which no attempt may have used before.
    ///
    /// It needs no port and no name service: libtorch's TCP store asks for the name of every address it sees, for its
    /// log, and a name server that does not answer then costs five seconds a connection.
    ///
    /// # Errors
    /// When the file cannot be made. Later waits are limited by `timeout`.
    pub fn file(path: &Path, world_size: usize, timeout: Duration) -> Result<Self> {
        let doing = || format!("open the store of {world_size} ranks in {}", path.display());
        // FileStore would try for ever.
        if let Err(error) = OpenOptions::new().append(true).create(true).open(path) {
            return Err(Error::argument(doing(), error.to_string()));
        }
        let path_c = c_text(&path.to_string_lossy(), doing)?;
        let world_size_c = i32::try_from(world_size).map_err(|_| Error::argument(doing(), "too many ranks"))?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the string outlives the call, and `handle` is where the shim writes a new handle on success.
        let status = unsafe { ffi::vidtui_store_file(path_c.as_ptr(), world_size_c, millis(timeout), &mut handle) };
        Self::made(status, handle, doing)
    }

    fn made(status: ffi::Status, handle: *mut StoreHandle, doing: impl FnOnce() -> String + Copy) -> Result<Self> {
        check(status, doing)?;
        let handle = NonNull::new(handle).ok_or_else(|| Error::torch(doing(), "no handle was returned"))?;
        Ok(Self { handle: Arc::new(Handle(handle)), prefix: String::new() })
    }

    /// The port of a TCP store's server; 0 for a file.
    #[must_use]
    pub fn port(&self) -> u16 {
        // SAFETY: the handle is alive as long as `self`.
        unsafe { ffi::vidtui_store_port(self.raw()) }
    }

    /// The same store, with `name/` before every key.
    #[must_use]
    pub fn prefix(&self, name: &str) -> Self {
        Self { handle: Arc::clone(&self.handle), prefix: format!("{}{name}/", self.prefix) }
    }

    /// Sets `key`.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let doing = || format!("set {key:?} in the store");
        let key_c = self.key(key, doing)?;
        // SAFETY: key and value outlive the call, which copies them.
        check(unsafe { ffi::vidtui_store_set(self.raw(), key_c.as_ptr(), value.as_ptr(), value.len()) }, doing)
    }

    /// Returns the value of `key`, waiting until someone sets it.
    ///
    /// # Errors
    /// When nobody sets it within the store's timeout.
    pub fn get(&self, key: &str) -> Result<Vec<u8>> {
        let doing = || format!("get {key:?} from the store");
        let key_c = self.key(key, doing)?;
        let mut bytes: *mut c_char = std::ptr::null_mut();
        let mut len = 0;
        // SAFETY: the key outlives the call; on success `bytes` is a buffer of `len` bytes that we free.
        check(unsafe { ffi::vidtui_store_get(self.raw(), key_c.as_ptr(), &mut bytes, &mut len) }, doing)?;
        // SAFETY: the shim wrote `len` initialised bytes at `bytes`.
        let value = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) }.to_vec();
        // SAFETY: the buffer came from the shim's malloc and is not used again.
        unsafe { ffi::vidtui_c10d_free(bytes) };
        Ok(value)
    }

    /// Adds to the counter at `key` (0 when unset) and returns its new value.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let doing = || format!("add {amount} to {key:?} in the store");
        let key_c = self.key(key, doing)?;
        let mut total = 0;
        // SAFETY: the key outlives the call; `total` is where the shim writes.
        check(unsafe { ffi::vidtui_store_add(self.raw(), key_c.as_ptr(), amount, &mut total) }, doing)?;
        Ok(total)
    }

    pub(crate) fn raw(&self) -> *mut StoreHandle {
        self.handle.0.as_ptr()
    }

    pub(crate) fn key_prefix(&self) -> &str {
        &self.prefix
    }

    fn key(&self, key: &str, doing: impl FnOnce() -> String) -> Result<std::ffi::CString> {
        c_text(&format!("{}{key}", self.prefix), doing)
    }
}

/// Waits until something accepts connections at `host:port` and returns what is left of `timeout`.
///
/// TCPStore can wait too, but tries only every second or two, and every time logs a page.
fn await_server(host: &str, port: u16, timeout: Duration, doing: impl FnOnce() -> String) -> Result<Duration> {
    const RETRY: Duration = Duration::from_millis(20);
    let started = Instant::now();
    loop {
        let left = timeout.saturating_sub(started.elapsed());
        let error = match connect(host, port, left) {
            Ok(()) => return Ok(left),
            Err(error) => error,
        };
        if started.elapsed() + RETRY >= timeout {
            let why = format!("nothing answered there for {:.1} s ({error})", timeout.as_secs_f64());
            return Err(Error::torch(doing(), &why));
        }
        std::thread::sleep(RETRY);
    }
}

fn connect(host: &str, port: u16, limit: Duration) -> std::io::Result<()> {
    let mut last = std::io::Error::other("the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit.max(Duration::from_millis(1))) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Milliseconds as the shim takes them: at least one, because zero means "no limit" to libtorch.
pub(crate) fn millis(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX).max(1)
}

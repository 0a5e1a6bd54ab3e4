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
use torch_error::{ErrorKind, TorchError};

/// A client of the run's key-value store. On one rank, the client also runs the server.
///
/// A TCP server runs until the last clone or prefix of its store is dropped. After that, other ranks that use the store get an
/// error. The last rank removes the file of a file store.
#[derive(Clone)]
pub struct Store {
    handle: Arc<Handle>,
    prefix: String,
}

struct Handle(NonNull<StoreHandle>);

// SAFETY: the handle can be used from several threads: TCPStore and FileStore lock a mutex in each operation.
unsafe impl Send for Handle {}
// SAFETY: as above; the port is written once, before the handle is shared.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the shim created the pointer, and this is its only owner.
        unsafe { ffi::vidtui_store_drop(self.0.as_ptr()) }
    }
}

impl Store {
    /// Connects to the store at a name or address and a port, and serves it if `is_server`.
    ///
    /// On a client, returns once the server accepts connections. On the server, returns once all `world_size` ranks, including
    /// its own, are connected.
    ///
    /// # Errors
    /// The connection takes longer than `timeout`, or the server's port is in use. `timeout` is also the limit of later waits.
    pub fn tcp(host: &str, port: u16, world_size: usize, is_server: bool, timeout: Duration) -> Result<Self> {
        let doing = || match is_server {
            true => format!("serve the store of {world_size} ranks at {host} port {port}"),
            false => format!("reach the store at {host} port {port}"),
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

    /// Opens a store in a file on this node. The file must not be from an earlier attempt.
    ///
    /// A file store needs no port and no DNS. libtorch's TCP store looks up the name of every address for its
    /// log, so that a DNS server that does not answer delays each connection by five seconds.
    ///
    /// # Errors
    /// The file cannot be created. `timeout` is the limit of later waits.
    pub fn file(path: &Path, world_size: usize, timeout: Duration) -> Result<Self> {
        let doing = || format!("open the store of {world_size} ranks in {}", path.display());
        // FileStore would retry forever if the file cannot be created.
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
        let handle = NonNull::new(handle).ok_or_else(|| Error::other(doing(), "no handle was returned"))?;
        Ok(Self { handle: Arc::new(Handle(handle)), prefix: String::new() })
    }

    /// Returns the port of a TCP store's server; 0 for a file store.
    #[must_use]
    pub fn port(&self) -> u16 {
        // SAFETY: the handle is alive as long as `self`.
        unsafe { ffi::vidtui_store_port(self.raw()) }
    }

    /// Returns a view of this store that prepends `name/` to every key.
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

    /// Waits until a rank sets `key`, and returns its value.
    ///
    /// # Errors
    /// No rank sets the key within the store's timeout.
    pub fn get(&self, key: &str) -> Result<Vec<u8>> {
        let doing = || format!("get {key:?} from the store");
        let key_c = self.key(key, doing)?;
        let mut bytes: *mut c_char = std::ptr::null_mut();
        let mut len = 0;
        // SAFETY: the key outlives the call; on success `bytes` is a buffer of `len` bytes that we free.
        check(unsafe { ffi::vidtui_store_get(self.raw(), key_c.as_ptr(), &mut bytes, &mut len) }, doing)
            .map_err(Error::of_peer)?;
        // SAFETY: the shim wrote `len` initialised bytes at `bytes`.
        let value = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) }.to_vec();
        // SAFETY: the buffer came from the shim's malloc and is not used again.
        unsafe { libc::free(bytes.cast()) };
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

/// Waits until a server accepts connections at a name or address and a port, and returns the remaining part of `timeout`.
///
/// TCPStore can wait too, but it retries only every one or two seconds and logs many lines each time.
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
            return Err(Error::Torch { doing: doing(), source: TorchError { kind: ErrorKind::Peer, text: why } });
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

/// Converts to milliseconds: at least 1, because 0 means "no limit" to libtorch.
pub(crate) fn millis(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX).max(1)
}

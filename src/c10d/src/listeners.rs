//! Drops connections of strangers after the groups have joined.

use std::ffi::{c_int, c_void};
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, RawFd};

/// Drops all further connections to the sockets on which this process listens for TCP connections, except those to the port `spared`.
/// Connections that exist are not affected. Returns the number of these sockets.
///
/// gloo and the TCP store accept any connection. gloo keeps a file descriptor for each one, even after it was closed, and a process without
/// free descriptors aborts. No peer connects to a rank that has joined its groups.
///
/// # Errors
/// `/proc/self/fd` cannot be read, or the kernel refuses the filter.
pub fn drop_new_connections(spared: Option<u16>) -> io::Result<usize> {
    let mut closed = 0;
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let is_socket = fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"));
        let fd = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        let Some(fd) = fd.filter(|fd| is_socket && listens(*fd)) else { continue };
        let Some(port) = port(fd) else { continue };
        if Some(port) != spared {
            drop_packets(fd)?;
            closed += 1;
        }
    }
    Ok(closed)
}

/// Returns whether a descriptor is a socket that listens.
fn listens(fd: RawFd) -> bool {
    let (mut value, mut len): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
    let value_ptr = (&raw mut value).cast::<c_void>();
    // SAFETY: the kernel writes at most `len` bytes to `value`, and returns an error if the descriptor is no socket.
    unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, value_ptr, &raw mut len) == 0 && value != 0 }
}

/// Returns the port on which a socket listens; `None` if it is not a TCP socket.
fn port(fd: RawFd) -> Option<u16> {
    // SAFETY: the descriptor was open a moment ago; if it has been closed since, the copy fails. The borrow ends with this line.
    let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()?;
    TcpListener::from(copy).local_addr().ok().map(|address| address.port())
}

/// Makes the kernel drop every packet that arrives at a socket. The request of a connection is such a packet.
fn drop_packets(fd: RawFd) -> io::Result<()> {
    // A program of one instruction (BPF): accept 0 bytes of the packet.
    let mut accept_nothing = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut accept_nothing };
    let (program_ptr, len) = ((&raw const program).cast::<c_void>(), size_of::<libc::sock_fprog>() as libc::socklen_t);
    // SAFETY: the kernel copies the program, which lives until the call returns.
    match unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program_ptr, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::time::Duration;

    const SOON: Duration = Duration::from_millis(300);

    #[test]
    fn new_connections_are_dropped_and_existing_ones_and_a_spared_port_work() -> io::Result<()> {
        let [closed, spared] = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
        let [closed_at, spared_at]: [SocketAddr; 2] = [closed.local_addr()?, spared.local_addr()?];
        let mut before = TcpStream::connect_timeout(&closed_at, SOON)?;
        let (mut accepted, _) = closed.accept()?;
        assert!(drop_new_connections(Some(spared_at.port()))? >= 1);
        assert!(TcpStream::connect_timeout(&closed_at, SOON).is_err());
        TcpStream::connect_timeout(&spared_at, SOON)?;
        before.write_all(b"x")?;
        let mut byte = [0];
        accepted.read_exact(&mut byte)?;
        assert_eq!(&byte, b"x");
        Ok(())
    }
}

//! Files by SFTP, in a session of their own.
//!
//! What waits in libssh2's SFTP cannot be put aside: its handles wait for the server once more when they are dropped. So it gets a
//! session in which waiting holds up nobody else, neither commands nor streams, and which is hung up on when something fails.

use std::io::{self, Write};
use std::net::Shutdown;
use std::time::Duration;

use camino::Utf8Path;
use rundir::Login;
use ssh2::{File, OpenFlags, OpenType};

use super::config::{Settings, SshOptions};
use super::connect::connect;
use crate::RemoteError;
use crate::transport::PIECE;

/// How long a server may take for an answer.
const ANSWER: Duration = Duration::from_secs(30);

/// Writes a file, readable by all as programs are, and tells how many of its bytes have arrived.
pub fn send(
    options: &SshOptions,
    login: &Login,
    file: &Utf8Path,
    bytes: &[u8],
    arrived: &dyn Fn(usize),
) -> Result<(), RemoteError> {
    let unreachable = |error| RemoteError::Unreachable { node: login.node.clone(), error };
    let failed = |error: io::Error| RemoteError::io(&login.node, format!("receive {file} by SFTP"), error);
    let settings = Settings::read(options, login).map_err(unreachable)?;
    let link = connect(&settings, login, options).map_err(unreachable)?;
    link.session.set_blocking(true);
    link.session.set_timeout(ANSWER.as_millis() as u32);
    let sftp = link.session.sftp().map_err(|error| failed(error.into()))?;
    let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE;
    let mut opened = sftp.open_mode(file.as_std_path(), flags, 0o755, OpenType::File).map_err(io::Error::from);
    let written = match &mut opened {
        Ok(to) => write(to, bytes, arrived).map_err(failed),
        Err(_) => Ok(()),
    };
    // Nothing waits for an answer from here on.
    let _ = link.socket.shutdown(Shutdown::Both);
    opened.map_err(failed)?;
    written
}

fn write(to: &mut File, bytes: &[u8], arrived: &dyn Fn(usize)) -> io::Result<()> {
    let mut done = 0;
    for piece in bytes.chunks(PIECE) {
        to.write_all(piece)?;
        done += piece.len();
        arrived(done);
    }
    Ok(to.close()?)
}

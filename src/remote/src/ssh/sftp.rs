//! Sends files by SFTP, in a separate session.
//!
//! A blocking SFTP call of libssh2 cannot be interrupted, and its handles block again when they are dropped. In a separate
//! session they delay neither commands nor streams. On an error the socket is shut down, which ends all blocking calls.

use std::io::{self, Write};
use std::net::Shutdown;
use std::time::Duration;

use camino::Utf8Path;
use rundir::Login;
use ssh2::{File, OpenFlags, OpenType};

use super::config::{Settings, SshOptions};
use super::connect::connect;
use crate::RemoteError;
use crate::transport::CHUNK_BYTES;

/// The timeout of a reply of the server.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Writes a file with mode 755 and reports how many of its bytes have arrived.
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
    link.session.set_timeout(REPLY_TIMEOUT.as_millis() as u32);
    let sftp = link.session.sftp().map_err(|error| failed(error.into()))?;
    let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE;
    let mut opened = sftp.open_mode(file.as_std_path(), flags, 0o755, OpenType::File).map_err(io::Error::from);
    let written = match &mut opened {
        Ok(to) => write(to, bytes, arrived).map_err(failed),
        Err(_) => Ok(()),
    };
    // After this, dropping the handles does not block.
    let _ = link.socket.shutdown(Shutdown::Both);
    opened.map_err(failed)?;
    written
}

fn write(to: &mut File, bytes: &[u8], arrived: &dyn Fn(usize)) -> io::Result<()> {
    let mut done = 0;
    for chunk in bytes.chunks(CHUNK_BYTES) {
        to.write_all(chunk)?;
        done += chunk.len();
        arrived(done);
    }
    Ok(to.close()?)
}

//! The handshake by which supervisors prove that they belong to the same attempt, and the authentication of every later
//! line.
//!
//! The handshake is needed because other users of a cluster can reach the port. Both sides have the token of the
//! attempt ([`rundir::PeerToken`]):
//!
//! ```text
//! caller:   vidtui-peer 1 NODE NONCE
//! listener: NONCE
//! caller:   HMAC(token, "caller" | transcript)
//! listener: HMAC(token, "listener" | transcript)
//! ```
//!
//! The transcript names run, attempt, both nodes and both nonces, so that a recorded handshake cannot be replayed. Each
//! direction then has its own key, HMAC(token, its name | transcript), and each line carries HMAC(key, number | line),
//! where the number counts the lines. A line that is altered, repeated, omitted or injected ends the connection. All
//! HMACs are HMAC-SHA256. The lines are not encrypted.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cluster::NodeId;
use hmac::{Hmac, KeyInit, Mac};
use rundir::PeerToken;
use sha2::Sha256;

use crate::decide::{HEARTBEAT, Rendezvous};

/// The longest line after the handshake.
pub const LINE_BYTES: usize = 64 * 1024;
/// The longest line of the handshake.
const HELLO_BYTES: usize = 512;
/// The time limit of a handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(5);
/// The start of the first line of a connection: the protocol and its version.
const GREETING: &str = "vidtui-peer 1";

/// The secret of an attempt; each supervisor proves that it has it.
#[derive(Clone)]
pub struct Secret {
    pub token: PeerToken,
    /// The run and the attempt.
    pub subject: String,
}

/// A connection whose other side has proved that it belongs to the attempt.
pub struct Authentic {
    /// The node of the other side.
    pub node: NodeId,
    pub stream: TcpStream,
    pub sealer: Sealer,
    pub lines: SealedLines,
}

/// Makes the caller's side of the handshake: proves to the first node's supervisor that this node belongs to the
/// attempt, and verifies that supervisor's proof.
pub fn call(stream: TcpStream, rendezvous: &Rendezvous, secret: &Secret) -> io::Result<Authentic> {
    let Rendezvous { this, first, .. } = rendezvous;
    let mut hello = Hello::new(&stream)?;
    let own = nonce()?;
    hello.write(&format!("{GREETING} {this} {own}"))?;
    let other = hello.read()?;
    let keys = Keys::new(secret, this, first, &own, &other);
    hello.write(&keys.proof("caller"))?;
    keys.check("listener", &hello.read()?)?;
    let (sealer, opener) = (Sealer::new(keys.key("from caller")), Opener::new(keys.key("from listener")));
    hello.finish(first.clone(), sealer, opener)
}

/// Makes the listener's side of the handshake: verifies the caller's proof, and proves that this is the first node.
pub fn answer(stream: TcpStream, rendezvous: &Rendezvous, secret: &Secret) -> io::Result<Authentic> {
    let mut hello = Hello::new(&stream)?;
    let greeting = hello.read()?;
    let words: Vec<&str> = greeting.strip_prefix(GREETING).unwrap_or_default().split_whitespace().collect();
    let [name, other] = words[..] else { return Err(refused("it does not use this protocol")) };
    let node = rendezvous.others.iter().find(|node| node.as_str() == name);
    let node = node.ok_or_else(|| refused("its greeting names no other node of this attempt"))?;
    let own = nonce()?;
    hello.write(&own)?;
    let keys = Keys::new(secret, node, &rendezvous.first, other, &own);
    keys.check("caller", &hello.read()?)?;
    hello.write(&keys.proof("listener"))?;
    let (sealer, opener) = (Sealer::new(keys.key("from listener")), Opener::new(keys.key("from caller")));
    hello.finish(node.clone(), sealer, opener)
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// The lines of a handshake, bounded in length and time.
struct Hello<'a> {
    stream: &'a TcpStream,
    lines: Lines<Timed>,
}

impl<'a> Hello<'a> {
    fn new(stream: &'a TcpStream) -> io::Result<Self> {
        // Send small messages at once: a heartbeat that waits to be combined with others would be late.
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(HANDSHAKE))?;
        let timed = Timed { stream: stream.try_clone()?, until: Instant::now() + HANDSHAKE };
        Ok(Self { stream, lines: Lines::new(timed, HELLO_BYTES) })
    }

    fn read(&mut self) -> io::Result<String> {
        self.lines.read()?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        self.stream.write_all(format!("{line}\n").as_bytes())
    }

    fn finish(self, node: NodeId, sealer: Sealer, opener: Opener) -> io::Result<Authentic> {
        let Lines { from, buffer, .. } = self.lines;
        from.stream.set_read_timeout(None)?;
        from.stream.set_write_timeout(Some(HEARTBEAT))?;
        let lines = SealedLines { lines: Lines { from: from.stream, buffer, limit: LINE_BYTES }, opener };
        Ok(Authentic { node, stream: self.stream.try_clone()?, sealer, lines })
    }
}

/// A stream with a deadline for reading. The deadline also holds if the other side sends single bytes slowly.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

/// A reader of lines of bounded length.
struct Lines<R> {
    from: R,
    buffer: Vec<u8>,
    limit: usize,
}

impl<R: Read> Lines<R> {
    fn new(from: R, limit: usize) -> Self {
        Self { from, buffer: Vec::new(), limit }
    }

    /// Reads the next line. Returns `None` at the end.
    fn read(&mut self) -> io::Result<Option<String>> {
        let malformed = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=searched + end).collect();
                return match String::from_utf8(line) {
                    Ok(line) => Ok(Some(line.trim_end().to_owned())),
                    Err(_) => Err(malformed("a line is not UTF-8")),
                };
            }
            searched = self.buffer.len();
            if searched > self.limit {
                return Err(malformed("a line is too long"));
            }
            let mut bytes = [0; 4096];
            match self.from.read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(read) => self.buffer.extend(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The lines that the other side sends. Each is authenticated when it is read.
pub struct SealedLines {
    lines: Lines<TcpStream>,
    opener: Opener,
}

impl SealedLines {
    /// Reads the next line. Returns `None` at the end.
    pub fn read(&mut self) -> io::Result<Option<String>> {
        let Some(line) = self.lines.read()? else { return Ok(None) };
        self.opener.open(&line).map(Some).ok_or_else(|| refused("a line is not authentic"))
    }
}

/// Authenticates the lines of one direction.
pub struct Sealer {
    key: [u8; 32],
    lines: u64,
}

impl Sealer {
    fn new(key: [u8; 32]) -> Self {
        Self { key, lines: 0 }
    }

    /// Returns a line with its HMAC, as it is sent.
    pub fn seal(&mut self, line: &str) -> String {
        let sealed = format!("{} {line}\n", hex(&seal(&self.key, self.lines, line).finalize().into_bytes()));
        self.lines += 1;
        sealed
    }
}

struct Opener {
    key: [u8; 32],
    lines: u64,
}

impl Opener {
    fn new(key: [u8; 32]) -> Self {
        Self { key, lines: 0 }
    }

    fn open(&mut self, sealed: &str) -> Option<String> {
        let (mac, line) = sealed.split_once(' ')?;
        seal(&self.key, self.lines, line).verify_slice(&unhex(mac)?).ok()?;
        self.lines += 1;
        Some(line.to_owned())
    }
}

fn seal(key: &[u8], number: u64, line: &str) -> Hmac<Sha256> {
    mac(key, &[&number.to_string(), line])
}

/// The keys of one connection, derived from the token.
struct Keys {
    token: PeerToken,
    transcript: String,
}

impl Keys {
    fn new(secret: &Secret, caller: &NodeId, listener: &NodeId, caller_nonce: &str, listener_nonce: &str) -> Self {
        let subject = &secret.subject;
        let transcript = format!("{GREETING}\n{subject}\n{caller}\n{listener}\n{caller_nonce}\n{listener_nonce}");
        Self { token: secret.token.clone(), transcript }
    }

    fn derive(&self, purpose: &str) -> Hmac<Sha256> {
        mac(self.token.bytes(), &[purpose, &self.transcript])
    }

    fn key(&self, purpose: &str) -> [u8; 32] {
        self.derive(purpose).finalize().into_bytes().into()
    }

    fn proof(&self, role: &str) -> String {
        hex(&self.key(role))
    }

    fn check(&self, role: &str, proof: &str) -> io::Result<()> {
        let is_proved = unhex(proof).is_some_and(|proof| self.derive(role).verify_slice(&proof).is_ok());
        if is_proved { Ok(()) } else { Err(refused("it does not have the token of this attempt")) }
    }
}

/// Returns HMAC-SHA256 of several parts. Only the last part may contain a line break.
fn mac(key: &[u8], parts: &[&str]) -> Hmac<Sha256> {
    let mut mac = Hmac::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(parts.join("\n").as_bytes());
    mac
}

/// Returns a nonce: 32 random bytes in hexadecimal.
fn nonce() -> io::Result<String> {
    Ok(hex(PeerToken::random()?.bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.bytes().map(|digit| char::from(digit).to_digit(16).map(|digit| digit as u8));
    let digits = digits.collect::<Option<Vec<_>>>().filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]).collect())
}

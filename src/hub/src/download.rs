//! Downloads one file: continues a partial download, retries, verifies, and renames.

use crate::Settings;
use crate::cache::{Cache, create_parent};
use crate::client::{Client, RequestError, encoded};
use crate::hash::Hash;
use crate::listing::ListedFile;
use camino::Utf8Path;
use failure::{ErrorCode, Failure, FileError};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

/// The number of bytes that are read at a time.
const CHUNK: usize = 1 << 18;
/// The longest pause before a retry.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Receives the number of bytes on the disk, and whether they are only being verified.
pub(crate) type OnBytes<'a> = &'a mut dyn FnMut(u64, bool) -> ControlFlow<()>;

/// A file to download.
pub(crate) struct Download<'a> {
    pub client: &'a Client<'a>,
    pub settings: &'a Settings,
    pub cache: &'a Cache,
    pub commit: &'a str,
    pub file: &'a ListedFile,
}

impl Download<'_> {
    /// Downloads the file into its blob.
    pub(crate) fn run(&self, on_bytes: OnBytes<'_>) -> Result<(), Failure> {
        let digits = self.file.expected.digits();
        let path = self.cache.incomplete(digits);
        create_parent(&path)?;
        let _lock = self.cache.lock(digits)?;
        let mut file = File::options().create(true).read(true).append(true).open(&path);
        let file = file
            .as_mut()
            .map_err(|error| FileError::io("write", &path, std::mem::replace(error, io::ErrorKind::Other.into())))?;
        let (mut hash, mut done) = self.resume(file, &path, on_bytes)?;
        let (mut failures, mut pause) = (0, self.settings.pause);
        while done < self.file.size {
            let before = done;
            match self.receive(file, &path, &mut hash, &mut done, on_bytes) {
                Ok(()) => {}
                Err(RequestError::Lasting(failure)) => return Err(failure),
                // After progress, the number of retries starts again.
                Err(RequestError::Transient(_)) if done > before => (failures, pause) = (0, self.settings.pause),
                Err(RequestError::Transient(failure)) if failures >= self.settings.retries => return Err(failure),
                Err(RequestError::Transient(_)) => {
                    failures += 1;
                    wait(pause, &mut || on_bytes(done, false))?;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
        file.sync_all().map_err(|error| FileError::io("write", &path, error))?;
        let found = hash.finish();
        if found != digits {
            let _ = fs::remove_file(&path);
            return Err(Failure::new(
                ErrorCode::DownloadDamaged,
                format!("{} of {} was damaged in the download", self.file.path, self.client.name),
                format!("its hash is {found}, the Hub lists {digits}; the file was removed"),
                "run the command again; if it repeats, check the disk, the proxy and HF_ENDPOINT",
            ));
        }
        let blob = self.cache.blob(digits);
        fs::rename(&path, &blob).map_err(|error| FileError::io("write", &blob, error).into())
    }

    /// Hashes the bytes of an earlier, partial download.
    fn resume(&self, file: &mut File, path: &Utf8Path, on_bytes: OnBytes<'_>) -> Result<(Hash, u64), Failure> {
        let io = |error| Failure::from(FileError::io("read", path, error));
        let new = || Hash::new(&self.file.expected, self.file.size);
        let (mut hash, mut done) = (new(), 0);
        // A partial file that is longer than the listed size cannot belong to this file.
        if file.metadata().map_err(io)?.len() > self.file.size {
            file.set_len(0).map_err(io)?;
        }
        file.seek(SeekFrom::Start(0)).map_err(io)?;
        let mut chunk = vec![0; CHUNK];
        loop {
            let n = file.read(&mut chunk).map_err(io)?;
            if n == 0 {
                return Ok((hash, done));
            }
            hash.update(&chunk[..n]);
            done += n as u64;
            if on_bytes(done, true).is_break() {
                return Err(interrupted());
            }
        }
    }

    /// Requests the rest of the file and appends it.
    fn receive(
        &self,
        file: &mut File,
        path: &Utf8Path,
        hash: &mut Hash,
        done: &mut u64,
        on_bytes: OnBytes<'_>,
    ) -> Result<(), RequestError> {
        let lasting = |error| RequestError::Lasting(FileError::io("write", path, error).into());
        let url = format!("/{}/resolve/{}/{}", encoded(&self.client.page()), self.commit, encoded(&self.file.path));
        let mut response = self.client.get(&url, *done)?;
        // If the server does not support ranges or rejects this range, start at the first byte.
        let is_rest = response.status() == 206 && starts_at(&response) == Some(*done);
        if *done > 0 && !is_rest {
            file.set_len(0).map_err(lasting)?;
            (*hash, *done) = (Hash::new(&self.file.expected, self.file.size), 0);
            if response.status() != 200 {
                response = self.client.get(&url, 0)?;
            }
        }
        let mut body = response.body_mut().as_reader();
        let mut chunk = vec![0; CHUNK];
        loop {
            let n = body.read(&mut chunk).map_err(|error| self.client.broken(&error))?;
            if n == 0 && *done < self.file.size {
                return Err(self.client.broken(&io::ErrorKind::UnexpectedEof.into()));
            }
            if n == 0 {
                return Ok(());
            }
            // Bytes beyond the listed size are not written.
            let wanted = usize::try_from(self.file.size - *done).map_or(n, |left| n.min(left));
            file.write_all(&chunk[..wanted]).map_err(lasting)?;
            hash.update(&chunk[..wanted]);
            *done += wanted as u64;
            if on_bytes(*done, false).is_break() {
                return Err(RequestError::Lasting(interrupted()));
            }
            if wanted < n {
                return Ok(());
            }
        }
    }
}

/// Returns the first byte of `Content-Range: bytes 100-199/200`.
fn starts_at(response: &ureq::http::Response<ureq::Body>) -> Option<u64> {
    let range = response.headers().get("content-range")?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

/// Waits for `pause`.
///
/// # Errors
/// `Cancelled` if the user interrupts.
pub(crate) fn wait(pause: Duration, goes_on: &mut dyn FnMut() -> ControlFlow<()>) -> Result<(), Failure> {
    let end = Instant::now() + pause;
    while Instant::now() < end {
        if goes_on().is_break() {
            return Err(interrupted());
        }
        thread::sleep(Duration::from_millis(50).min(pause));
    }
    Ok(())
}

pub(crate) fn interrupted() -> Failure {
    let fix = "run the command again: it continues where it stopped";
    Failure::new(ErrorCode::Cancelled, "the download was interrupted", "the user stopped it", fix)
}

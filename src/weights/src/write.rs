//! Writes safetensors files with three threads that read, write and sync. Only a few chunks are in memory.

use crate::Dtype;
use crate::finite::NotFinite;
use crate::stream::{CHUNK, TensorToWrite};
use crate::tensor_spans::Files;
use camino::Utf8Path;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use rundir::{ErrorCode, Failure, FileSum};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread;
use xxhash_rust::xxh3::Xxh3;

/// The number of chunks that the reader may be ahead of the writer.
const AHEAD: usize = 8;
/// The number of bytes between syncs, so that the disk starts to write before the end.
const SYNC_EVERY: u64 = 64 << 20;

/// The metadata key whose value is the program that wrote the file. Only files with this key are replaced.
pub(crate) const MADE_BY: &str = "made_by";

/// A safetensors file to write.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTensorFile {
    /// The name of the file in the target folder.
    pub name: String,
    /// Metadata for the header: any text by key.
    pub metadata: BTreeMap<String, String>,
    /// The tensors in the order of the file.
    pub tensors: Vec<TensorToWrite>,
}

/// The progress of a conversion, a comparison or a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteProgress {
    /// The current activity.
    pub doing: Doing,
    /// Bytes done.
    pub done: u64,
    /// Bytes to do.
    pub total: u64,
}

/// A phase of the work that reports progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Checksums are compared with those in a manifest.
    Checking,
    /// Files are written.
    Writing,
    /// Two sets of weights are compared.
    Comparing,
    /// Numbers are summed up.
    Reading,
}

impl Doing {
    /// Returns the activity as one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Checking => "checking",
            Self::Writing => "writing",
            Self::Comparing => "comparing",
            Self::Reading => "reading",
        }
    }
}

/// A callback for progress. Returning `Break` stops the work.
pub type OnProgress<'a> = &'a mut dyn FnMut(WriteProgress) -> ControlFlow<()>;

impl NewTensorFile {
    /// Makes a file without tensors.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), metadata: BTreeMap::new(), tensors: Vec::new() }
    }

    /// Returns the header: its length, and JSON that is padded so that the data begin at a multiple of eight.
    pub fn header(&self) -> Vec<u8> {
        let text = |text: &str| serde_json::Value::from(text).to_string();
        let metadata = self.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())).chain([(MADE_BY, "vidtui")]);
        let pairs: Vec<String> = metadata.map(|(k, v)| format!("{}:{}", text(k), text(v))).collect();
        let mut entries = vec![format!("\"__metadata__\":{{{}}}", pairs.join(","))];
        let mut at = 0;
        for tensor in &self.tensors {
            let shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
            let end = at + tensor.bytes();
            entries.push(format!(
                "{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{at},{end}]}}",
                text(&tensor.name),
                tensor.to,
                shape.join(",")
            ));
            at = end;
        }
        let mut json = format!("{{{}}}", entries.join(","));
        while !json.len().is_multiple_of(8) {
            json.push(' ');
        }
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.extend(json.into_bytes());
        header
    }

    /// Returns the size of the whole file in bytes.
    pub fn bytes(&self) -> u64 {
        self.header().len() as u64 + self.tensors.iter().map(TensorToWrite::bytes).sum::<u64>()
    }
}

/// Distributes tensors to files of about `limit` bytes, in order. Tensors with wide elements come first, so that each
/// tensor is aligned.
pub(crate) fn pack(mut tensors: Vec<TensorToWrite>, limit: u64) -> Vec<Vec<TensorToWrite>> {
    tensors.sort_by_key(|tensor| std::cmp::Reverse(Dtype::size(tensor.to)));
    let mut files: Vec<Vec<TensorToWrite>> = Vec::new();
    let mut size = 0;
    for tensor in tensors {
        let bytes = tensor.bytes();
        match files.last_mut() {
            Some(file) if size + bytes <= limit => {
                file.push(tensor);
                size += bytes;
            }
            _ => {
                files.push(vec![tensor]);
                size = bytes;
            }
        }
    }
    files
}

/// A message from the reader to the writer.
enum Piece {
    Data(Vec<u8>),
    /// The end of a file.
    End {
        /// The XXH3 checksum of the file in hex.
        xxh3: String,
        /// The tensors with values that are not finite.
        not_finite: Vec<NotFinite>,
        /// The XXH3 checksums of the tensors.
        tensors: Vec<u64>,
    },
}

/// The files that were written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WrittenFiles {
    /// Their checksums.
    pub sums: Vec<FileSum>,
    /// The tensors with values that are not finite.
    pub not_finite: Vec<NotFinite>,
    /// The 64-bit XXH3 hashes of the tensors, in their order, of the first file and of those after it.
    pub tensors: Vec<u64>,
}

/// Writes files into a folder. Returns checksums of the files and their tensors, and counts the values that are not finite. All files are
/// on the disk when this function returns.
///
/// # Errors
/// Fails if a target file exists, a source cannot be read, a file cannot be written, or `progress` returns `Break`.
/// Partial files stay in the folder.
pub fn write_tensor_files(
    dir: &Utf8Path,
    files: &[NewTensorFile],
    progress: OnProgress<'_>,
) -> Result<WrittenFiles, Failure> {
    thread::scope(|scope| {
        let (send, pieces) = sync_channel(AHEAD);
        let (give_back, spare) = channel();
        scope.spawn(move || {
            let send = |piece| send.send(piece).map_err(|_| stopped());
            if let Err(failure) = read(files, &spare, &mut |piece| send(Ok(piece))) {
                // The channel closes only after the writer has failed and returned its error.
                let _ = send(Err(failure));
            }
        });
        let (to_disk, unsynced) = sync_channel(1);
        let disk = scope.spawn(move || sync(&unsynced));
        let written = write(dir, files, &pieces, &give_back, &to_disk, progress);
        drop((pieces, to_disk));
        let synced = disk.join().expect("waiting for the disk does not panic");
        let failed = |(path, e): (camino::Utf8PathBuf, io::Error)| cannot_write(&path, &e);
        synced.map_err(failed).and(written)
    })
}

fn read(
    files: &[NewTensorFile],
    spare: &Receiver<Vec<u8>>,
    send: &mut dyn FnMut(Piece) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut open = Files::default();
    for file in files {
        let (mut sum, mut not_finite, mut tensors) = (Xxh3::new(), Vec::new(), Vec::new());
        let mut give = |bytes: Vec<u8>| {
            sum.update(&bytes);
            send(Piece::Data(bytes))
        };
        give(file.header())?;
        for tensor in &file.tensors {
            let buffer = || spare.try_recv().unwrap_or_else(|_| Vec::with_capacity(CHUNK));
            let mut own = Xxh3::new();
            let streamed = tensor.stream(&mut open, buffer, |bytes| {
                own.update(&bytes);
                give(bytes)
            })?;
            not_finite.extend(streamed.of(&tensor.name));
            tensors.push(own.digest());
        }
        send(Piece::End { xxh3: format!("{:016x}", sum.digest()), not_finite, tensors })?;
    }
    Ok(())
}

/// A file to sync, with its path for messages.
type Written = (camino::Utf8PathBuf, Arc<File>);

fn write(
    dir: &Utf8Path,
    files: &[NewTensorFile],
    pieces: &Receiver<Result<Piece, Failure>>,
    give_back: &Sender<Vec<u8>>,
    to_disk: &SyncSender<Written>,
    progress: OnProgress<'_>,
) -> Result<WrittenFiles, Failure> {
    let total = files.iter().map(NewTensorFile::bytes).sum();
    let (mut done, mut synced) = (0, 0);
    let mut written = WrittenFiles::default();
    for new in files {
        let path = dir.join(&new.name);
        let created = File::create_new(&path).and_then(|file| reserve(&file, new.bytes()).map(|()| file));
        let mut file = Arc::new(created.map_err(|e| cannot_write(&path, &e))?);
        let mut bytes = 0;
        loop {
            match pieces.recv().map_err(|_| stopped())?? {
                Piece::End { xxh3, not_finite, tensors } => {
                    written.sums.push(FileSum { name: new.name.clone(), bytes, xxh3 });
                    written.not_finite.extend(not_finite);
                    written.tensors.extend(tensors);
                    break;
                }
                Piece::Data(piece) => {
                    // The syncing thread shares the file, so this thread writes through a reference.
                    (&*file).write_all(&piece).map_err(|e| cannot_write(&path, &e))?;
                    bytes += piece.len() as u64;
                    done += piece.len() as u64;
                    // The reader may have ended and closed this channel.
                    let _ = give_back.send(piece);
                    if done - synced >= SYNC_EVERY {
                        match to_disk.try_send((path.clone(), file.clone())) {
                            Ok(()) => synced = done,
                            Err(TrySendError::Full(_)) => {}
                            Err(TrySendError::Disconnected(_)) => return Err(stopped()),
                        }
                    }
                    if progress(WriteProgress { doing: Doing::Writing, done, total }).is_break() {
                        return Err(stopped());
                    }
                }
            }
        }
        file = Arc::clone(&file);
        to_disk.send((path, file)).map_err(|_| stopped())?;
    }
    Ok(written)
}

/// Allocates the disk space of a file, so that a full disk is reported before any write.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, bytes) {
        Err(error @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG)) => Err(error.into()),
        // If the file system cannot preallocate, the file is written anyway.
        _ => Ok(()),
    }
}

/// Waits until the files are on the disk.
fn sync(unsynced: &Receiver<Written>) -> Result<(), (camino::Utf8PathBuf, io::Error)> {
    unsynced.iter().try_for_each(|(path, file)| file.sync_all().map_err(|e| (path, e)))
}

fn cannot_write(path: &Utf8Path, error: &io::Error) -> Failure {
    let fix = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            format!("{}, or choose another disk", rundir::room_for(error, path))
        }
        _ => "check the disk and the permissions of its folder".to_owned(),
    };
    Failure::new(ErrorCode::of_io(error), format!("cannot write {path}"), error.to_string(), fix)
}

/// Returns the failure of cancelled work. A thread also returns it if another thread failed; the other thread's failure
/// is then reported.
pub(crate) fn stopped() -> Failure {
    Failure::new(ErrorCode::Cancelled, "stopped", "it was interrupted", "run it again: nothing was left behind")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Header;
    use crate::fixtures::{bytes_of, temp, write as fixture};
    use crate::stream::Segment;
    use crate::tensor_spans::tensors_of_header;

    fn target(name: &str, from: Dtype, to: Dtype, shape: &[usize], segments: Vec<Segment>) -> TensorToWrite {
        TensorToWrite::new(name, shape, from, to, segments)
    }

    fn go(dir: &Utf8Path, files: &[NewTensorFile]) -> Result<WrittenFiles, Failure> {
        write_tensor_files(dir, files, &mut |_| ControlFlow::Continue(()))
    }

    #[test]
    fn written_files_are_read_by_the_reference_crate_and_by_ours() {
        let (_keep, folder) = temp();
        // Longer than two chunks, and not a multiple of a chunk.
        let long = CHUNK * 2 + 12;
        fixture(&folder.join("in.safetensors"), &[("w", Dtype::F32, &[long / 4]), ("n \"q\"", Dtype::BF16, &[3])]);
        let source = tensors_of_header(&Header::read(&folder.join("in.safetensors")).unwrap());
        let copy = |name: &str| {
            let stored = &source[name];
            let segments = stored.spans.iter().cloned().map(Segment::File).collect();
            target(name, stored.dtype, stored.dtype, &stored.shape, segments)
        };
        let mut grown = copy("n \"q\"");
        grown.segments.push(Segment::Zeros(4));
        grown.shape = vec![5];
        let file = NewTensorFile {
            name: "out.safetensors".into(),
            metadata: BTreeMap::from([("format".into(), "pt".into())]),
            tensors: vec![copy("w"), grown],
        };
        let mut seen = Vec::new();
        let written = write_tensor_files(&folder, std::slice::from_ref(&file), &mut |progress| {
            seen.push(progress);
            ControlFlow::Continue(())
        });
        let WrittenFiles { sums, tensors, .. } = written.unwrap();
        let path = folder.join("out.safetensors");
        assert_eq!(sums, [rundir::file_sum(&path).unwrap()]);
        assert_eq!(sums[0].bytes, file.bytes());
        assert_eq!(
            seen.last().unwrap(),
            &WriteProgress { doing: Doing::Writing, done: sums[0].bytes, total: sums[0].bytes }
        );
        let header = Header::read(&path).unwrap();
        assert_eq!(header.metadata["format"], "pt");
        assert_eq!(header.read_tensor("w").unwrap(), bytes_of(long));
        assert_eq!(header.read_tensor("n \"q\"").unwrap(), [0, 1, 2, 3, 4, 5, 0, 0, 0, 0]);
        let sums = ["w", "n \"q\""].map(|name| xxhash_rust::xxh3::xxh3_64(&header.read_tensor(name).unwrap()));
        assert_eq!(tensors, sums);
        let bytes = std::fs::read(&path).unwrap();
        let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(theirs.tensor("w").unwrap().data(), bytes_of(long));
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_read_fails_the_writing() {
        let (_keep, folder) = temp();
        fixture(&folder.join("in.safetensors"), &[("w", Dtype::F32, &[4])]);
        let source = tensors_of_header(&Header::read(&folder.join("in.safetensors")).unwrap());
        std::fs::write(folder.join("in.safetensors"), [0; 20]).unwrap();
        let segments = source["w"].spans.iter().cloned().map(Segment::File).collect();
        let tensors = vec![target("w", Dtype::F32, Dtype::F32, &[4], segments)];
        let file = NewTensorFile { name: "out".into(), metadata: BTreeMap::new(), tensors };
        assert!(go(&folder, &[file]).unwrap_err().what.contains("in.safetensors"));
    }

    #[test]
    fn a_full_disk_is_reported_before_anything_is_written() {
        let (_keep, folder) = temp();
        let probe = File::create(folder.join("probe")).unwrap();
        if let Err(error) = fallocate(&probe, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, 1) {
            eprintln!("skipped: the file system of {folder} cannot preallocate: {error}");
            return;
        }
        let huge = target("w", Dtype::F32, Dtype::F32, &[1 << 50], vec![Segment::Zeros(4 << 50)]);
        let file = NewTensorFile { name: "out".into(), metadata: BTreeMap::new(), tensors: vec![huge] };
        let failure = write_tensor_files(&folder, &[file], &mut |_| panic!("something was written")).unwrap_err();
        // Petabytes also exceed the limit that some file systems have on a file.
        assert!([ErrorCode::DiskFull, ErrorCode::FileTooLarge].contains(&failure.code), "{failure}");
    }

    #[test]
    fn breaking_stops_the_writing() {
        let (_keep, folder) = temp();
        let zeros = target("w", Dtype::F32, Dtype::F32, &[CHUNK * 4], vec![Segment::Zeros(CHUNK as u64 * 16)]);
        let file = NewTensorFile { name: "out".into(), metadata: BTreeMap::new(), tensors: vec![zeros] };
        let failure = write_tensor_files(&folder, &[file], &mut |_| ControlFlow::Break(())).unwrap_err();
        assert_eq!(failure.code, ErrorCode::Cancelled);
    }

    #[test]
    fn tensors_are_distributed_in_order_with_wide_elements_first() {
        let tensor = |name: &str, to, len| target(name, to, to, &[], vec![Segment::Zeros(len)]);
        let tensors = vec![tensor("a", Dtype::BF16, 6), tensor("b", Dtype::F32, 8), tensor("c", Dtype::BF16, 20)];
        let names = |limit| -> Vec<Vec<String>> {
            pack(tensors.clone(), limit).into_iter().map(|f| f.into_iter().map(|t| t.name).collect()).collect()
        };
        assert_eq!(names(14), [vec!["b", "a"], vec!["c"]]);
        assert_eq!(names(u64::MAX), [vec!["b", "a", "c"]]);
    }
}

//! Reads the lines of a file while it grows.

use crate::lines::{BadLine, LogLine, parse_lines};
use camino::{Utf8Path, Utf8PathBuf};
use memchr::{memchr, memrchr};
use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::{FileExt, MetadataExt};
use text_file::open_regular;

/// The most bytes that one [`Tail::poll`] reads, so that a console that reads a long file can draw in between.
const MAX_READ: usize = 4 * 1024 * 1024;

/// The size of the buffer that a reader keeps while it waits for lines.
const KEPT: usize = 16 * 1024;

/// The result of one [`Tail::poll`].
#[derive(Debug, Clone, PartialEq)]
pub struct NewLines<T> {
    /// The new lines.
    pub items: Vec<T>,
    /// New lines that cannot be read.
    pub bad: Vec<BadLine>,
    /// Whether the file was replaced or truncated. `items` then begin at its start and replace all earlier ones.
    pub restarted: bool,
    /// Whether the file has more lines that can be read now.
    pub more: bool,
}

/// Reads the lines that were added to a file since the last poll.
///
/// It reads only whole lines: text after the last newline is read once its newline is written. A missing file is empty.
/// The position is a byte offset, so that another process or machine can continue reading.
#[derive(Debug)]
pub struct Tail<T> {
    path: Utf8PathBuf,
    offset: u64,
    /// Device and inode, to detect that the file was replaced.
    identity: Option<(u64, u64)>,
    /// Whether the text up to the next newline is skipped: it is the rest of a line that is too long or began earlier.
    skipping: bool,
    buffer: Vec<u8>,
    lines: PhantomData<fn() -> T>,
}

impl<T: LogLine> Tail<T> {
    /// Makes a reader that begins at the start of `path`.
    pub fn new(path: impl AsRef<Utf8Path>) -> Self {
        Self::at(path, 0)
    }

    /// Makes a reader that begins at a byte offset of `path`, which an earlier [`Tail::offset`] returned.
    pub fn at(path: impl AsRef<Utf8Path>, offset: u64) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            offset,
            identity: None,
            skipping: false,
            buffer: Vec::new(),
            lines: PhantomData,
        }
    }

    /// Makes a reader of the whole lines in the last `bytes` bytes of `path`, and of those that are added later.
    ///
    /// # Errors
    /// When the size of an existing file cannot be read.
    pub fn near_end(path: impl AsRef<Utf8Path>, bytes: u64) -> io::Result<Self> {
        let len = match fs::metadata(path.as_ref()) {
            Ok(meta) => meta.len(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
            Err(e) => return Err(e),
        };
        // Starts one byte earlier: if that byte is a newline, the first line is whole.
        let start = len.saturating_sub(bytes.saturating_add(1));
        Ok(Self { skipping: start > 0, ..Self::at(path, start) })
    }

    /// Reads the lines in the last `bytes` bytes of `path`. While the lines are not `enough`, starts over with four
    /// times as many bytes, until it has read at least `most` bytes or the whole file. The returned reader polls lines
    /// added later.
    ///
    /// # Errors
    /// When an existing file cannot be read.
    pub fn near_end_with(
        path: impl AsRef<Utf8Path>,
        bytes: u64,
        most: u64,
        enough: impl Fn(&[T]) -> bool,
    ) -> io::Result<(Self, Vec<T>)> {
        let mut bytes = bytes;
        loop {
            let mut tail = Self::near_end(path.as_ref(), bytes)?;
            let is_all = tail.offset == 0;
            let (items, _) = tail.poll_all()?;
            if is_all || bytes >= most || enough(&items) {
                return Ok((tail, items));
            }
            bytes *= 4;
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Returns the byte offset at which the next line begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the lines that were added, at most 4 MiB.
    ///
    /// # Errors
    /// When an existing file cannot be read. The position does not change, so that polling can be retried.
    pub fn poll(&mut self) -> io::Result<NewLines<T>> {
        let mut batch = NewLines { items: Vec::new(), bad: Vec::new(), restarted: false, more: false };
        let file = match open_regular(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                batch.restarted = std::mem::take(&mut self.offset) > 0;
                self.identity = None;
                self.skipping = false;
                return Ok(batch);
            }
            Err(e) => return Err(e),
        };
        let meta = file.metadata()?;
        let identity = (meta.dev(), meta.ino());
        if meta.len() < self.offset || self.identity.is_some_and(|known| known != identity) {
            batch.restarted = true;
            self.offset = 0;
            self.skipping = false;
        }
        self.identity = Some(identity);
        let available = meta.len() - self.offset;
        if available == 0 {
            return Ok(batch);
        }
        let want = usize::try_from(available).map_or(MAX_READ, |n| n.min(MAX_READ));
        self.buffer.resize(want, 0);
        let got = read_at_most(&file, &mut self.buffer, self.offset)?;
        self.take_lines(got, &mut batch);
        batch.more = got == MAX_READ && self.offset < meta.len();
        // A console has a reader for each file of a run.
        if !batch.more && self.buffer.capacity() > KEPT {
            self.buffer = Vec::new();
        }
        Ok(batch)
    }

    /// Reads all lines that were added. Returns them, and whether they replace all earlier lines. Bad lines are
    /// skipped.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn poll_all(&mut self) -> io::Result<(Vec<T>, bool)> {
        let (mut items, mut restarted) = (Vec::new(), false);
        loop {
            let batch = self.poll()?;
            if batch.restarted {
                items.clear();
                restarted = true;
            }
            items.extend(batch.items);
            if !batch.more {
                return Ok((items, restarted));
            }
        }
    }

    /// Reads the text after the last newline as a line: its writer has ended, or the reader does not wait for the rest. `None` if there is
    /// none, or if it cannot be read as a line. Call this after the last [`Self::poll`].
    ///
    /// # Errors
    /// When an existing file cannot be read.
    pub fn rest(&mut self) -> io::Result<Option<T>> {
        let mut rest = vec![0; MAX_READ];
        let file = match open_regular(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let got = read_at_most(&file, &mut rest, self.offset)?;
        let rest = &rest[..got];
        if self.skipping || rest.is_empty() || memchr(b'\n', rest).is_some() {
            return Ok(None);
        }
        self.offset += got as u64;
        // If more is added, it is the rest of this line.
        self.skipping = true;
        Ok(T::parse(rest).ok())
    }

    fn take_lines(&mut self, got: usize, batch: &mut NewLines<T>) {
        let bytes = &self.buffer[..got];
        let Some(end) = memrchr(b'\n', bytes) else {
            if got == MAX_READ {
                if !self.skipping {
                    match T::cut(bytes) {
                        Some(item) => batch.items.push(item),
                        None => batch.bad.push(BadLine::new(self.offset, bytes, "it is longer than 4 MiB".into())),
                    }
                }
                self.skipping = true;
                self.offset += got as u64;
            }
            return;
        };
        let skipped = match std::mem::take(&mut self.skipping) {
            true => memchr(b'\n', bytes).map_or(0, |newline| newline + 1),
            false => 0,
        };
        (batch.items, batch.bad) = parse_lines(&bytes[skipped..=end], self.offset + skipped as u64);
        self.offset += end as u64 + 1;
    }
}

fn read_at_most(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::temp;
    use crate::{LineAppender, MetricSample};
    use proptest::prelude::*;
    use std::fs::OpenOptions;
    use std::io::Write;

    fn append(path: &Utf8Path, bytes: &[u8]) {
        OpenOptions::new().append(true).create(true).open(path).unwrap().write_all(bytes).unwrap();
    }

    fn all<T: LogLine>(tail: &mut Tail<T>) -> Vec<T> {
        tail.poll().unwrap().items
    }

    #[test]
    fn a_reader_that_waits_keeps_a_small_buffer() {
        let (_keep, run) = temp();
        let mut tail = Tail::<String>::new(run.events());
        append(&run.events(), &b"a line\n".repeat(100_000));
        assert_eq!(all(&mut tail).len(), 100_000);
        assert!(tail.buffer.capacity() <= KEPT);
    }

    #[test]
    fn a_torn_last_line_is_not_read_until_it_is_whole() {
        let (_keep, run) = temp();
        let mut tail = Tail::<String>::new(run.events());
        append(&run.events(), b"one\ntw");
        assert_eq!(all(&mut tail), ["one"]);
        assert!(all(&mut tail).is_empty());
        append(&run.events(), b"o\nthree\n");
        assert_eq!(all(&mut tail), ["two", "three"]);
        assert!(all(&mut tail).is_empty());
    }

    #[test]
    fn a_missing_file_is_empty_and_may_be_created_later() {
        let (_keep, run) = temp();
        let mut tail = Tail::<String>::new(run.root.join("no/such/file"));
        let batch = tail.poll().unwrap();
        assert!(batch.items.is_empty() && !batch.restarted && !batch.more);
        let mut tail = Tail::<String>::new(run.events());
        assert!(all(&mut tail).is_empty());
        append(&run.events(), b"here\n");
        assert_eq!(all(&mut tail), ["here"]);
    }

    #[test]
    fn reading_continues_at_the_offset_of_an_earlier_reader() {
        let (_keep, run) = temp();
        append(&run.events(), b"one\ntwo\nthr");
        let mut first = Tail::<String>::new(run.events());
        assert_eq!(all(&mut first), ["one", "two"]);
        append(&run.events(), b"ee\n");
        assert_eq!(all(&mut Tail::<String>::at(run.events(), first.offset())), ["three"]);
    }

    #[test]
    fn a_truncated_file_is_read_from_its_start() {
        let (_keep, run) = temp();
        append(&run.events(), b"one\ntwo\n");
        let mut tail = Tail::<String>::new(run.events());
        all(&mut tail);
        fs::write(run.events(), "new\n").unwrap();
        let batch = tail.poll().unwrap();
        assert_eq!((batch.items, batch.restarted), (vec!["new".to_owned()], true));
        assert!(!tail.poll().unwrap().restarted);
    }

    #[test]
    fn a_replaced_file_is_read_from_its_start() {
        let (_keep, run) = temp();
        append(&run.events(), b"one\n");
        let mut tail = Tail::<String>::new(run.events());
        all(&mut tail);
        let other = run.root.join("other");
        fs::write(&other, "a longer line than before\n").unwrap();
        fs::rename(&other, run.events()).unwrap();
        let batch = tail.poll().unwrap();
        assert_eq!((batch.items.len(), batch.restarted), (1, true));
    }

    #[test]
    fn a_removed_file_restarts_and_its_successor_is_read() {
        let (_keep, run) = temp();
        append(&run.events(), b"one\n");
        let mut tail = Tail::<String>::new(run.events());
        all(&mut tail);
        fs::remove_file(run.events()).unwrap();
        assert!(tail.poll().unwrap().restarted);
        append(&run.events(), b"two\n");
        assert_eq!(all(&mut tail), ["two"]);
    }

    #[test]
    fn a_bad_line_is_reported_with_its_offset_and_the_others_are_read() {
        let (_keep, run) = temp();
        let mut file = LineAppender::open(&run.metrics()).unwrap();
        file.append(&MetricSample { step: 1, ..MetricSample::default() }).unwrap();
        let torn_at = fs::metadata(run.metrics()).unwrap().len();
        append(&run.metrics(), b"{\"v\":1,\"attempt\":1,\"st");
        let mut file = LineAppender::open(&run.metrics()).unwrap();
        file.append(&MetricSample { step: 2, ..MetricSample::default() }).unwrap();
        append(&run.metrics(), b"\xff\xfe\n\n");
        let batch = Tail::<MetricSample>::new(run.metrics()).poll().unwrap();
        assert_eq!(batch.items.iter().map(|s| s.step).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(batch.bad.len(), 2);
        assert_eq!((batch.bad[0].offset, &batch.bad[0].text[..]), (torn_at, "{\"v\":1,\"attempt\":1,\"st"));
    }

    #[test]
    fn a_folder_in_place_of_the_file_is_an_error() {
        let (_keep, run) = temp();
        fs::create_dir(run.events()).unwrap();
        assert!(Tail::<String>::new(run.events()).poll().is_err());
    }

    #[test]
    fn a_long_file_is_read_in_several_polls_without_losing_a_line() {
        let (_keep, run) = temp();
        let text: String = (0..700_000).map(|n| format!("line number {n}\n")).collect();
        assert!(text.len() > 2 * MAX_READ);
        append(&run.events(), text.as_bytes());
        let mut tail = Tail::<String>::new(run.events());
        let (mut lines, mut polls) = (Vec::new(), 0);
        loop {
            let batch = tail.poll().unwrap();
            lines.extend(batch.items);
            polls += 1;
            if !batch.more {
                break;
            }
        }
        assert!(polls > 2, "{polls}");
        assert!(lines.iter().enumerate().all(|(n, line)| *line == format!("line number {n}")));
        assert_eq!(lines.len(), 700_000);
    }

    #[test]
    fn a_line_longer_than_the_buffer_is_cut_in_a_log_and_reported_between_samples() {
        let (_keep, run) = temp();
        append(&run.events(), b"first\n");
        append(&run.events(), &vec![b'x'; 2 * MAX_READ + 10]);
        append(&run.events(), b" end\nnext\nlast");
        fn read<T: LogLine>(run: &crate::RunDir) -> (Vec<T>, Vec<BadLine>, Tail<T>) {
            let mut tail = Tail::<T>::new(run.events());
            let (mut lines, mut bad) = (Vec::new(), Vec::new());
            loop {
                let batch = tail.poll().unwrap();
                lines.extend(batch.items);
                bad.extend(batch.bad);
                if !batch.more {
                    return (lines, bad, tail);
                }
            }
        }
        let (lines, bad, mut tail) = read::<String>(&run);
        assert_eq!((&lines[0][..], &lines[2][..], lines.len(), bad.len()), ("first", "next", 3, 0));
        assert!(lines[1].starts_with("xxx") && lines[1].ends_with("4 MiB]") && lines[1].len() < 100_000);
        assert_eq!((tail.rest().unwrap().as_deref(), tail.rest().unwrap()), (Some("last"), None));
        let (samples, bad, _) = read::<MetricSample>(&run);
        assert_eq!((samples.len(), bad.len(), bad[1].offset), (0, 3, 6));
    }

    #[test]
    fn the_rest_of_a_line_that_was_read_is_not_another_line() {
        let (_keep, run) = temp();
        let mut tail = Tail::<String>::new(run.events());
        assert_eq!(tail.rest().unwrap(), None);
        append(&run.events(), b"one\ntw");
        assert_eq!((all(&mut tail), tail.rest().unwrap()), (vec!["one".to_owned()], Some("tw".to_owned())));
        append(&run.events(), b"o\nthree\n");
        assert_eq!(all(&mut tail), ["three"]);
    }

    #[test]
    fn reading_near_the_end_begins_with_a_whole_line() {
        let (_keep, run) = temp();
        append(&run.events(), b"first\nsecond\nthird\n");
        let near = |bytes| all(&mut Tail::<String>::near_end(run.events(), bytes).unwrap());
        assert_eq!(near(6), ["third"]);
        assert_eq!(near(7), ["third"]);
        assert_eq!(near(13), ["second", "third"]);
        assert_eq!(near(1000), ["first", "second", "third"]);
        assert!(near(5).is_empty());
        assert!(all(&mut Tail::<String>::near_end(run.metrics(), 10).unwrap()).is_empty());
    }

    proptest! {
        #[test]
        fn each_line_of_a_growing_file_is_read_once(
            lines in prop::collection::vec("[ -~]{1,20}", 1..40), cuts in prop::collection::vec(1usize..30, 1..60),
        ) {
            let (_keep, run) = temp();
            let text = lines.join("\n") + "\n";
            let mut tail = Tail::<String>::new(run.events());
            let (mut read, mut at) = (Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                let end = (at + cut).min(text.len());
                append(&run.events(), &text.as_bytes()[at..end]);
                at = end;
                read.extend(all(&mut tail));
                // A reader that begins at this offset begins with a whole line.
                prop_assert!(tail.offset() == 0 || text.as_bytes()[tail.offset() as usize - 1] == b'\n');
                if at == text.len() {
                    break;
                }
            }
            prop_assert_eq!(read, lines);
        }

        #[test]
        fn every_whole_line_is_read_or_reported_as_bad(bytes: Vec<u8>) {
            let (_keep, run) = temp();
            append(&run.metrics(), &bytes);
            let batch = Tail::<MetricSample>::new(run.metrics()).poll().unwrap();
            let end = bytes.iter().rposition(|b| *b == b'\n').unwrap_or(0);
            let lines = bytes[..end].split(|b| *b == b'\n').filter(|line| !line.is_empty()).count();
            prop_assert_eq!(batch.items.len() + batch.bad.len(), lines);
        }

        #[test]
        fn a_line_that_is_cut_anywhere_is_the_only_one_lost(at: prop::sample::Index) {
            let (_keep, run) = temp();
            let sample = |step| MetricSample { step, loss: Some(0.5), ..MetricSample::default() };
            LineAppender::open(&run.metrics()).unwrap().append(&sample(1)).unwrap();
            let line = fs::read(run.metrics()).unwrap();
            // A line without its end alone is complete when the next one begins after it.
            append(&run.metrics(), &line[..1 + at.index(line.len() - 2)]);
            LineAppender::open(&run.metrics()).unwrap().append(&sample(2)).unwrap();
            let batch = Tail::<MetricSample>::new(run.metrics()).poll().unwrap();
            prop_assert_eq!(batch.items, [sample(1), sample(2)]);
            prop_assert_eq!(batch.bad.len(), 1);
        }
    }
}

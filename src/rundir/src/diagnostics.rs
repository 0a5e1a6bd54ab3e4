//! Writes diagnostics to standard error. A program that runs for days must not end because its log cannot be written.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use units::terminal::printable;

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Writes a line to standard error. `eprintln!` panics if that fails, for example on a full disk; this macro drops the line, and reports the
/// number of dropped lines before the next line that it can write.
#[macro_export]
macro_rules! log {
    ($($format:tt)*) => {
        $crate::write_diagnostic(::std::format_args!($($format)*))
    };
}

/// Writes a line to standard error: see [`log!`](crate::log).
pub fn write_diagnostic(line: Arguments<'_>) {
    write_to(&mut io::stderr(), &DROPPED, line);
}

fn write_to(log: &mut impl Write, dropped: &AtomicU64, line: Arguments<'_>) {
    let before = dropped.swap(0, Ordering::Relaxed);
    // The line can have names from files, and users print logs with `cat`.
    let line = printable(&line.to_string()).into_owned();
    let note = if before > 0 { format!("({before} earlier lines could not be written)\n") } else { String::new() };
    // One write, so that lines of several threads do not mix.
    if log.write_all(format!("{note}{line}\n").as_bytes()).is_err() {
        dropped.fetch_add(before + 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_no_panic() {
        let dropped = AtomicU64::new(0);
        let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        write_to(&mut full, &dropped, format_args!("one"));
        write_to(&mut full, &dropped, format_args!("two"));
        let mut log = Vec::new();
        write_to(&mut log, &dropped, format_args!("three {}", 3));
        write_to(&mut log, &dropped, format_args!("four"));
        assert_eq!(String::from_utf8(log).unwrap(), "(2 earlier lines could not be written)\nthree 3\nfour\n");
    }
}

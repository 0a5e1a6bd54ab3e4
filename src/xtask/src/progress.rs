//! Prints the progress of a long task: a bar on a terminal, otherwise a line after every 10 %.

use std::io::{IsTerminal, Write, stderr};

/// The progress of one task.
pub struct Progress {
    what: &'static str,
    unit: &'static str,
    total: u64,
    on_terminal: bool,
    shown_tenth: u64,
}

impl Progress {
    /// Starts at 0 of `total`. Prints nothing yet.
    pub fn new(what: &'static str, unit: &'static str, total: u64) -> Self {
        Self { what, unit, total: total.max(1), on_terminal: stderr().is_terminal(), shown_tenth: 0 }
    }

    /// Shows that `done` of the total is complete, with a short note.
    pub fn show(&mut self, done: u64, note: &str) {
        let line = format!("{}  {note}", self.line(done));
        let line = line.trim_end();
        let tenth = done.min(self.total) * 10 / self.total;
        // If standard error is closed, the task continues.
        if self.on_terminal {
            let _ = write!(stderr(), "\r  {line}\x1b[K");
        } else if tenth > self.shown_tenth {
            self.shown_tenth = tenth;
            let _ = writeln!(stderr(), "  {line}");
        }
    }

    /// Ends the bar's line.
    pub fn stop(&self) {
        if self.on_terminal {
            let _ = writeln!(stderr());
        }
    }

    fn line(&self, done: u64) -> String {
        const WIDTH: u64 = 30;
        let done = done.min(self.total);
        let filled = (done * WIDTH / self.total) as usize;
        let bar = format!("{}{}", "#".repeat(filled), ".".repeat(WIDTH as usize - filled));
        format!("{} [{bar}] {done} / {} {}", self.what, self.total, self.unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_and_never_overflows() {
        let bar = Progress::new("downloading", "MB", 300);
        assert_eq!(bar.line(0), "downloading [..............................] 0 / 300 MB");
        assert_eq!(bar.line(100), "downloading [##########....................] 100 / 300 MB");
        assert_eq!(bar.line(400), "downloading [##############################] 300 / 300 MB");
    }
}

//! Helpers of commands that read or write weights: progress on standard error, and interruption by a signal.

use crate::output::{self, note};
use crate::signals;
use crate::terminal::takes_escapes;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use units::terminal::Escaped;
use weights::WriteProgress;

/// How often the progress bar is drawn if standard error is a terminal.
const DRAW: Duration = Duration::from_millis(100);
/// How often a progress line is printed if standard error is not a terminal.
const LOG: Duration = Duration::from_secs(10);
/// The width of the progress bar, in characters.
const WIDTH: u64 = 24;
/// Clears the line from the cursor on (EL, ECMA-48).
const CLEAR: &str = "\x1b[K";

/// The unit in which progress is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Bytes.
    Bytes,
    /// Items with this name, such as `video`.
    Items(&'static str),
}

/// The progress of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<'a> {
    /// The name of the phase: `writing`.
    pub phase: &'a str,
    /// The completed amount.
    pub done: u64,
    /// The total amount.
    pub total: u64,
    /// The unit of `done` and `total`.
    pub measure: Measure,
}

impl From<WriteProgress> for Step<'static> {
    fn from(WriteProgress { doing, done, total }: WriteProgress) -> Self {
        Self { phase: doing.word(), done, total, measure: Measure::Bytes }
    }
}

/// The progress of one transfer, shown on standard error.
pub struct Transfer {
    phase: Option<String>,
    /// The completed amount at the start of the phase.
    from: u64,
    signal: Arc<AtomicUsize>,
    began: Instant,
    shown: Option<Instant>,
    bar: bool,
}

impl Transfer {
    /// Starts a transfer. From now on, a signal stops the transfer instead of the process.
    pub fn begin() -> Self {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            // Without the handler, a signal ends the process at once, and the next transfer removes its files.
            let _ = signal_hook::flag::register_usize(number, signal.clone(), number as usize);
        }
        Self { phase: None, from: 0, signal, began: Instant::now(), shown: None, bar: takes_escapes(&io::stderr()) }
    }

    /// Shows the progress. Returns `Break` after a signal.
    pub fn step<'a>(&mut self, step: impl Into<Step<'a>>) -> ControlFlow<()> {
        let step = step.into();
        if self.phase.as_deref() != Some(step.phase) {
            // Each phase has its own rate.
            self.phase = Some(step.phase.to_owned());
            (self.began, self.from) = (Instant::now(), step.done);
        }
        let pause = if self.bar { DRAW } else { LOG };
        if self.shown.unwrap_or(self.began).elapsed() >= pause {
            self.shown = Some(Instant::now());
            let line = line(step, self.from, self.began.elapsed());
            match self.bar {
                true => output::progress(
                    &[Escaped::own("\r"), Escaped::line(&line), Escaped::own(CLEAR)].into_iter().collect(),
                ),
                false => note!("{line}"),
            }
        }
        if self.signal.load(Ordering::Relaxed) == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// Ends the transfer: clears the bar. If a signal stopped the transfer, exits the process by that signal.
    pub fn end(self) {
        if self.bar && self.shown.is_some() {
            output::progress(&Escaped::own("\r").and(&Escaped::own(CLEAR)));
        }
        match self.signal.load(Ordering::Relaxed) {
            0 => {}
            signal => signals::exit_by(i32::try_from(signal).unwrap_or(SIGTERM)),
        }
    }
}

fn line(step: Step<'_>, from: u64, since: Duration) -> String {
    let Step { phase, done, total, measure } = step;
    if total == 0 && matches!(measure, Measure::Items(_)) {
        return format!("{phase}…");
    }
    let full = (done * WIDTH).checked_div(total).unwrap_or(WIDTH);
    let bar: String = (0..WIDTH).map(|n| if n < full { '#' } else { '.' }).collect();
    let rate = done.saturating_sub(from) as f64 / since.as_secs_f64().max(1e-3);
    let left = match total.saturating_sub(done) {
        0 => "0 s left".to_owned(),
        _ if rate <= 0.0 => String::new(),
        left => format!("{} left", units::duration(left as f64 / rate)),
    };
    let (progress, rate) = match measure {
        Measure::Bytes => {
            (format!("{} of {}", units::short_size(done), units::short_size(total)), units::short_size(rate as u64))
        }
        Measure::Items(noun) => (format!("{done} of {}", units::counted(total as usize, noun)), units::number(rate)),
    };
    let percent = (done * 100).checked_div(total).unwrap_or(100);
    format!("{phase} [{bar}] {percent:>3} %  {progress}  {rate}/s  {left}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weights::Doing;

    #[test]
    fn the_line_shows_rate_and_time_left_and_work_from_before_the_phase_does_not_count_for_the_rate() {
        let seconds = Duration::from_secs(2);
        let half = WriteProgress { doing: Doing::Writing, done: 2_000_000_000, total: 4_000_000_000 };
        let none = WriteProgress { doing: Doing::Reading, done: 0, total: 0 };
        let step = Step { phase: "checking", done: 60, total: 100, measure: Measure::Items("video") };
        let lines = [line(half.into(), 0, seconds), line(none.into(), 0, Duration::ZERO), line(step, 40, seconds)];
        insta::assert_snapshot!(lines.join("\n"));
    }
}

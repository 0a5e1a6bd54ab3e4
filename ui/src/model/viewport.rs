//! The visible part of an x axis, and the cursor on it.

/// The visible part of an x axis, and the cursor on it. `full` is the range of all samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Viewport {
    /// Width of the visible part; `None` for all of it.
    pub span: Option<f64>,
    /// Right end of the visible part; `None` for the newest sample.
    pub end: Option<f64>,
    /// Position of the cursor; `None` for the newest sample.
    pub cursor: Option<f64>,
}

impl Viewport {
    /// Returns the ends of the visible part.
    pub fn window(&self, full: (f64, f64)) -> (f64, f64) {
        let (low, high) = full;
        let Some(span) = self.span.filter(|span| *span < high - low) else { return full };
        let end = self.end.unwrap_or(high).max(low + span).min(high);
        (end - span, end)
    }

    /// Moves the cursor to a position, and the window so that the cursor is visible. `None` is the newest sample.
    pub(crate) fn put_cursor(&mut self, to: Option<f64>, full: (f64, f64)) {
        let (low, high) = self.window(full);
        self.cursor = to;
        match (to, self.span) {
            (None, _) => self.end = None,
            (Some(x), Some(span)) if x < low => self.end = Some(x + span),
            (Some(x), Some(_)) if x > high => self.end = Some(x),
            _ => {}
        }
    }

    /// Moves the cursor and the window to the beginning.
    pub(crate) fn put_at_start(&mut self, full: (f64, f64)) {
        self.cursor = Some(full.0);
        self.end = self.cursor;
    }

    /// Moves the window by half its width.
    pub(crate) fn pan(&mut self, right: bool, full: (f64, f64)) {
        let (low, high) = self.window(full);
        let half = (high - low) / 2.0;
        if self.span.is_none() {
            return;
        }
        let (first, last) = full;
        let end = if right { high + half } else { (high - half).max(first + (high - low)) };
        self.end = (end < last).then_some(end);
        self.cursor = self.cursor.map(|x| x.clamp(end - (high - low), end.min(last)));
    }

    /// Shows a range, widened to at least `least`.
    pub(crate) fn show(&mut self, (from, to): (f64, f64), least: f64, full: (f64, f64)) {
        let (low, high) = (from.min(to).max(full.0), from.max(to).min(full.1));
        let span = (high - low).max(least);
        if span >= full.1 - full.0 {
            (self.span, self.end) = (None, None);
            return;
        }
        self.span = Some(span);
        self.end = (low + span < full.1).then_some(low + span);
    }

    /// Changes the width of the window by a factor, but to no less than `least`. The position `around`, or else the
    /// cursor, keeps its place on the screen.
    pub(crate) fn zoom(&mut self, factor: f64, least: f64, full: (f64, f64), around: Option<f64>) {
        let (first, last) = full;
        let (low, high) = self.window(full);
        let span = ((high - low) * factor).max(least);
        if span >= last - first {
            (self.span, self.end) = (None, None);
            return;
        }
        self.span = Some(span);
        if let Some(x) = around.or(self.cursor) {
            let share = ((x - low) / (high - low)).clamp(0.0, 1.0);
            let end = x + (1.0 - share) * span;
            self.end = (end < last).then_some(end);
        }
    }
}

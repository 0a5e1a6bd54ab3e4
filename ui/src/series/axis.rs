//! The x axes of charts: converts between samples and positions by step, time or tokens.

use super::{Segment, Series};
use serde::{Deserialize, Serialize};

/// The quantity on the x axis of the charts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XAxis {
    /// Optimizer steps.
    #[default]
    Step,
    /// Seconds since the first sample.
    Time,
}

/// The quantity that determines the position of a sample on an x axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Optimizer steps.
    #[default]
    Step,
    /// Seconds since the first sample of the run.
    Time,
    /// Tokens that the run has trained on.
    Tokens,
}

impl From<XAxis> for Axis {
    fn from(x: XAxis) -> Self {
        match x {
            XAxis::Step => Self::Step,
            XAxis::Time => Self::Time,
        }
    }
}

impl Series {
    /// Returns the position of a sample on an x axis.
    pub fn x_of(&self, axis: Axis, piece: &Segment, index: usize) -> f64 {
        match axis {
            Axis::Time => piece.time(index) - self.started_s.unwrap_or(0.0),
            _ if std::ptr::eq(piece, &self.nodes) => self.x_at(axis, piece.time(index)),
            Axis::Step => piece.step(index) as f64,
            Axis::Tokens => piece.tokens(index),
        }
    }

    /// Returns the index of the first sample at or right of `x`.
    pub fn index_at(&self, axis: Axis, piece: &Segment, x: f64) -> usize {
        match axis {
            Axis::Time => piece.at_time(x + self.started_s.unwrap_or(0.0)),
            _ if std::ptr::eq(piece, &self.nodes) => piece.at_time(self.time_at(axis, x)),
            Axis::Step => piece.at_step(x),
            Axis::Tokens => piece.at_tokens(x),
        }
    }

    /// Returns the index of the effective sample nearest to `x`.
    pub fn nearest(&self, axis: Axis, x: f64) -> Option<usize> {
        let last = self.live.len().checked_sub(1)?;
        let right = self.index_at(axis, &self.live, x).min(last);
        let left = right.saturating_sub(1);
        let distance = |index| (self.x_of(axis, &self.live, index) - x).abs();
        Some(if distance(left) < distance(right) { left } else { right })
    }

    /// Returns the lowest and the highest position of all samples on an x axis. Nodes also have samples before the
    /// first step and between attempts; these count only on the time axis.
    pub fn range(&self, axis: Axis) -> Option<(f64, f64)> {
        let pieces = || std::iter::once(&self.live).chain(&self.superseded).filter(|piece| !piece.is_empty());
        let low = pieces().map(|piece| self.x_of(axis, piece, 0)).reduce(f64::min)?;
        let high = pieces().map(|piece| self.x_of(axis, piece, piece.len() - 1)).reduce(f64::max)?;
        match (axis, self.nodes.len().checked_sub(1)) {
            (Axis::Time, Some(last)) => {
                let (first, last) = (self.x_of(axis, &self.nodes, 0), self.x_of(axis, &self.nodes, last));
                Some((low.min(first), high.max(last)))
            }
            _ => Some((low, high)),
        }
    }

    /// Returns when the run reached a position on an axis of steps or tokens, Unix seconds, interpolated between
    /// samples; infinity after the last sample.
    pub fn time_at(&self, axis: Axis, x: f64) -> f64 {
        let live = &self.live;
        let at = self.index_at(axis, live, x);
        let position = |index| self.x_of(axis, live, index);
        match at.checked_sub(1) {
            _ if at == live.len() => f64::INFINITY,
            None => live.times[0],
            Some(before) => {
                let share = (x - position(before)) / (position(at) - position(before));
                live.times[before] + share * (live.times[at] - live.times[before])
            }
        }
    }

    /// Returns the position on an axis of steps or tokens at a time, interpolated between samples.
    pub fn x_at(&self, axis: Axis, time: f64) -> f64 {
        let live = &self.live;
        let at = live.at_time(time);
        let position = |index| self.x_of(axis, live, index);
        match (at.checked_sub(1), live.times.get(at)) {
            (last, None) => last.map_or(0.0, position),
            (None, Some(_)) => position(0),
            (Some(before), Some(_)) => {
                let (low, high) = (live.times[before], live.times[at]);
                let share = if high > low { (time - low) / (high - low) } else { 0.0 };
                position(before) + share * (position(at) - position(before))
            }
        }
    }
}

//! One column of numbers, with a pyramid of minima and maxima.

/// Samples per bucket of the first level of the pyramid, and buckets per bucket of each level above.
const FAN: usize = 16;

/// Smallest and largest finite value of a range; empty when `min > max`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Extent {
    /// Smallest.
    pub min: f32,
    /// Largest.
    pub max: f32,
}

impl Extent {
    /// The extent of an empty range.
    pub const EMPTY: Self = Self { min: f32::INFINITY, max: f32::NEG_INFINITY };

    /// Returns whether there was no finite value.
    pub fn is_empty(self) -> bool {
        self.min > self.max
    }

    /// Returns the extent of both ranges.
    pub fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    // `f32::min` and `max` ignore NaN, so a gap does not change an extent.
    pub(super) fn with(self, value: f32) -> Self {
        Self { min: self.min.min(value), max: self.max.max(value) }
    }
}

/// A value to add to a column.
#[derive(Debug, Clone, Copy)]
pub(super) enum NewValue {
    /// The value was not measured.
    Missing,
    /// The value was measured and is not finite.
    NotFinite,
    Value(f64),
}

impl NewValue {
    pub(super) fn of(value: Option<f64>) -> Self {
        value.filter(|v| v.is_finite()).map_or(Self::NotFinite, Self::Value)
    }

    pub(super) fn if_measured(value: Option<f64>) -> Self {
        value.map_or(Self::Missing, |v| Self::of(Some(v)))
    }
}

/// The values of one track; NaN where there is no finite value. The column is empty until the first value is
/// measured.
#[derive(Debug, Clone, Default)]
pub struct Column {
    values: Vec<f32>,
    /// `levels[0]` holds complete buckets of [`FAN`] values, `levels[1]` buckets of [`FAN`] of those, and so on.
    levels: Vec<Vec<Extent>>,
    /// Indices of measured values that are not finite, ascending.
    not_finite: Vec<usize>,
}

impl Column {
    /// Returns a column without values.
    pub(super) const fn empty() -> Self {
        Self { values: Vec::new(), levels: Vec::new(), not_finite: Vec::new() }
    }

    /// Returns a value; NaN if there is none at this index.
    pub fn get(&self, index: usize) -> f32 {
        self.values.get(index).copied().unwrap_or(f32::NAN)
    }

    /// Returns whether no value was measured.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns whether a measured value in `low..high` is not finite.
    pub fn any_not_finite(&self, low: usize, high: usize) -> bool {
        let at = self.not_finite.partition_point(|i| *i < low);
        self.not_finite.get(at).is_some_and(|i| *i < high)
    }

    /// Returns the last index below `end` that has a finite value, in logarithmic time.
    pub fn last_finite(&self, end: usize) -> Option<usize> {
        let end = end.min(self.values.len());
        // Mostly the newest value is finite.
        if let Some(last) = end.checked_sub(1).filter(|last| self.values[*last].is_finite()) {
            return Some(last);
        }
        let (mut low, mut high) = (0, end);
        // Invariant: no value at `high` or above is finite.
        while low < high {
            let middle = low + (high - low) / 2;
            if self.extent(middle, high).is_empty() {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        high.checked_sub(1)
    }

    /// Returns the number of values in the largest bucket that has at most `most` values; at least 1.
    pub fn bucket(most: usize) -> usize {
        std::iter::successors(Some(1), |values| Some(values * FAN))
            .take_while(|values| *values <= most)
            .last()
            .unwrap_or(1)
    }

    /// Returns the extremes of `low..high`, in logarithmic time.
    pub fn extent(&self, low: usize, high: usize) -> Extent {
        let (mut low, mut high) = (low, high.min(self.values.len()));
        let mut extent = Extent::EMPTY;
        while low < high && !low.is_multiple_of(FAN) {
            extent = extent.with(self.values[low]);
            low += 1;
        }
        while low < high && !high.is_multiple_of(FAN) {
            high -= 1;
            extent = extent.with(self.values[high]);
        }
        // Both ends are now multiples of FAN, so only complete buckets lie between them.
        let mut level = 0;
        while low < high {
            (low, high) = (low / FAN, high / FAN);
            let buckets = &self.levels[level];
            while low < high && !low.is_multiple_of(FAN) {
                extent = extent.union(buckets[low]);
                low += 1;
            }
            while low < high && !high.is_multiple_of(FAN) {
                high -= 1;
                extent = extent.union(buckets[high]);
            }
            level += 1;
        }
        extent
    }

    /// Adds the value at `index`, which is at or after the end.
    pub(super) fn push(&mut self, index: usize, reading: NewValue) {
        if let (NewValue::Missing, true) = (reading, self.values.is_empty()) {
            return;
        }
        while self.values.len() < index {
            self.append(f32::NAN);
        }
        match reading {
            NewValue::Missing => self.append(f32::NAN),
            NewValue::NotFinite => {
                self.not_finite.push(index);
                self.append(f32::NAN);
            }
            // Clamped, because a finite f64 beyond the range of f32 must not become a gap.
            NewValue::Value(v) => self.append(v.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32),
        }
    }

    fn append(&mut self, value: f32) {
        push(&mut self.values, value);
        let mut full = self.values.len();
        let mut level = 0;
        while full.is_multiple_of(FAN) {
            let extent = match level {
                0 => self.values[full - FAN..].iter().fold(Extent::EMPTY, |e, v| e.with(*v)),
                _ => self.levels[level - 1][full - FAN..].iter().fold(Extent::EMPTY, |e, b| e.union(*b)),
            };
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            push(&mut self.levels[level], extent);
            full /= FAN;
            level += 1;
        }
    }

    /// Removes the values from `at` on and returns them.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let mut tail = Self::default();
        for value in self.values.drain(at.min(self.values.len())..) {
            tail.append(value);
        }
        let keep = self.not_finite.partition_point(|i| *i < at);
        tail.not_finite = self.not_finite.drain(keep..).map(|i| i - at).collect();
        let mut buckets = self.values.len();
        for level in &mut self.levels {
            buckets /= FAN;
            level.truncate(buckets);
        }
        tail
    }
}

/// Appends a value to a list that grows by an eighth. With the standard growth to twice the length, a run would need up to twice the memory.
pub(super) fn push<T>(values: &mut Vec<T>, value: T) {
    if values.len() == values.capacity() {
        values.reserve_exact((values.len() / 8).max(FAN));
    }
    values.push(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_reserves_at_most_an_eighth_more_than_its_values() {
        let mut column = Column::empty();
        (0..10_000).for_each(|index| column.push(index, NewValue::Value(1.0)));
        let reserved = column.values.capacity() - column.values.len();
        assert!(reserved <= 10_000 / 8, "{reserved}");
        assert_eq!(column.levels.iter().map(Vec::len).collect::<Vec<_>>(), [625, 39, 2]);
    }
}

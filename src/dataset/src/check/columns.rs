//! The numbers in the columns of a table: their range, median and distribution.

use crate::NumberColumn;
use serde::Serialize;
use std::fmt::Write;

/// The number of ranges of a histogram.
const BINS: usize = 20;
/// The heights of the bars of a histogram. A range without numbers has no bar.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The maximum width of the column with the titles.
const NAME: usize = 22;

/// The numbers in a column of a table, before conditions left out any row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ColumnReport {
    /// The title.
    pub name: String,
    /// Rows with a number.
    pub numbers: usize,
    /// Rows without one.
    pub missing: usize,
    /// The smallest number.
    pub min: f64,
    /// The median.
    pub median: f64,
    /// The largest number.
    pub max: f64,
    /// The number of rows in each of 20 equal ranges from the smallest number to the largest.
    pub histogram: Vec<usize>,
}

impl ColumnReport {
    pub(crate) fn new(column: &NumberColumn) -> Option<Self> {
        let mut sorted: Vec<f32> = column.numbers.iter().copied().filter(|number| !number.is_nan()).collect();
        sorted.sort_unstable_by(f32::total_cmp);
        let (min, max) = (f64::from(*sorted.first()?), f64::from(*sorted.last()?));
        let mut histogram = vec![0; BINS];
        for number in &sorted {
            let share = if max > min { (f64::from(*number) - min) / (max - min) } else { 0.0 };
            histogram[((share * BINS as f64) as usize).min(BINS - 1)] += 1;
        }
        Some(Self {
            name: column.name.clone(),
            numbers: sorted.len(),
            missing: column.numbers.len() - sorted.len(),
            min,
            median: f64::from(sorted[sorted.len() / 2]),
            max,
            histogram,
        })
    }

    /// Returns the histogram as a line of bars.
    fn bars(&self) -> String {
        let most = self.histogram.iter().copied().max().unwrap_or(0).max(1);
        let bar = |count: &usize| match count {
            0 => ' ',
            count => BARS[(count * BARS.len()).div_ceil(most) - 1],
        };
        self.histogram.iter().map(bar).collect::<String>().trim_end().to_owned()
    }
}

/// Formats columns as a table.
pub(crate) fn table(columns: &[ColumnReport]) -> String {
    let width = columns.iter().map(|column| column.name.chars().count()).max().unwrap_or(0).clamp(6, NAME);
    let mut text = format!(
        "{:<width$}{:>9}{:>9}{:>9}{:>9}  {}\n",
        "column", "missing", "smallest", "median", "largest", "distribution"
    );
    for column in columns {
        let name: String = match column.name.chars().count() > width {
            true => column.name.chars().take(width - 1).chain(['…']).collect(),
            false => column.name.clone(),
        };
        let [min, median, max] = [column.min, column.median, column.max].map(units::number);
        let name = super::text::one_line(&name);
        let _ = writeln!(text, "{name:<width$}{:>9}{min:>9}{median:>9}{max:>9}  {}", column.missing, column.bars());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_of_a_column_is_drawn_in_one_line() {
        let column = |name: &str, numbers: Vec<f32>| ColumnReport::new(&NumberColumn { name: name.into(), numbers });
        let rising = (0..210).map(|n: u8| f32::from(n).sqrt()).chain([f32::NAN; 3]).collect();
        let columns = [
            column("aesthetic", rising).unwrap(),
            column("equal", vec![7.5; 3]).unwrap(),
            column("a column with a long title", vec![-1.5e9, 2e-7, 123_456.0]).unwrap(),
        ];
        assert_eq!(column("none", vec![f32::NAN]), None);
        assert_eq!((columns[0].numbers, columns[0].missing, columns[0].histogram.iter().sum()), (210, 3, 210));
        let text = table(&columns);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        insta::assert_snapshot!(text);
    }
}

//! The table of bench results, with the limit of each row.

use crate::failure::{Failure, Result};

/// One measured quantity, its values in all rounds, and its limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The name of the measurement.
    pub what: String,
    /// `×` for a ratio, or a unit.
    pub unit: &'static str,
    /// One value per round.
    pub rounds: Vec<f64>,
    /// The limit of the median; infinite if there is none.
    pub at_most: f64,
    /// The absolute values behind a ratio.
    pub note: String,
}

impl Row {
    /// Returns the median of the rounds.
    pub fn median(&self) -> f64 {
        median(&self.rounds)
    }

    /// Returns whether the median is within the limit.
    pub fn holds(&self) -> bool {
        self.median() <= self.at_most
    }
}

/// Returns the median. For an even number of values, this is the upper of the two middle values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints the rows. Fails if a row is over its limit.
pub fn print(rows: &[Row]) -> Result<()> {
    println!("{}", render(rows));
    let missed: Vec<&str> = rows.iter().filter(|r| !r.holds()).map(|r| r.what.as_str()).collect();
    if missed.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        format!("{} of {} rows are over their limit", missed.len(), rows.len()),
        missed.join(", "),
        "repeat the bench on an idle machine to confirm",
    ))
}

fn render(rows: &[Row]) -> String {
    let mut text =
        format!("\n{:<52} {:>9} {:>19} {:>9}\n", "what (ours / theirs)", "median", "lowest … highest", "limit");
    for row in rows {
        let (low, high) = row.rounds.iter().fold((f64::MAX, f64::MIN), |(l, h), &v| (l.min(v), h.max(v)));
        let show = |value: f64| format!("{value:.2} {}", row.unit);
        text += &format!(
            "{:<52} {:>9} {:>19} {:>9} {}\n",
            row.what,
            show(row.median()),
            format!("{low:.2} … {high:.2}"),
            if row.at_most.is_finite() { format!("≤ {}", show(row.at_most)) } else { "none".into() },
            match (row.at_most.is_finite(), row.holds()) {
                (false, _) => "",
                (true, true) => "✓",
                (true, false) => "✗",
            },
        );
        if !row.note.is_empty() {
            text += &format!("    {}\n", row.note);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_judged_by_its_median() {
        let row = Row { what: "x".into(), unit: "×", rounds: vec![0.9, 5.0, 0.8], at_most: 1.0, note: String::new() };
        assert_eq!(row.median(), 0.9);
        assert!(row.holds());
        assert!(render(std::slice::from_ref(&row)).contains("0.80 … 5.00"));
        let free = Row { at_most: f64::INFINITY, ..row };
        assert!(free.holds() && !render(&[free]).contains('✓'), "a row without a limit has no mark");
    }
}

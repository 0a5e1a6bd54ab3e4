//! The columns of a table besides the video and its caption: the numbers that conditions compare and that the report shows.

use super::table::{Cell, Values};
use super::{SourceRequest, invalid, nearest};
use crate::{CaptionTemplate, FieldValue, Filter};
use camino::Utf8Path;
use rundir::Failure;
use std::collections::BTreeSet;

/// The numbers that a check measures. A table may state them too, and its values are then used.
pub const MEASURED: [&str; 5] = ["num_frames", "height", "width", "fps", "duration_s"];
/// The maximum number of columns of numbers that are read because a report shows them.
const SHOWN: usize = 32;
/// Texts that stand for a missing value.
const MISSING: [&str; 7] = ["", "nan", "none", "null", "na", "n/a", "-"];

/// The numbers of a column of a table, one per row of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberColumn {
    /// Its title.
    pub name: String,
    /// The numbers; NaN if the row has none. Single precision is enough for a histogram.
    pub numbers: Vec<f32>,
}

/// The number of clips that do not meet a condition.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ConditionCount {
    /// The condition.
    pub condition: String,
    /// Clips that do not meet it. A clip may fail several conditions.
    pub left_out: usize,
    /// Those that do not meet it because they have no number in the column.
    pub missing: usize,
    /// Whether the condition is on a number that the check measures, so that the source alone does not decide it.
    #[serde(skip)]
    pub is_measured: bool,
}

/// The further columns of a table, and what its rows read so far have in them.
pub(super) struct Fields {
    filter: Option<Filter>,
    columns: Vec<Column>,
    counts: Vec<ConditionCount>,
    /// The names of the columns whose values the rows keep.
    kept: Vec<String>,
    left_out: usize,
}

struct Column {
    name: String,
    /// A condition names the column, so that a text in it is an error.
    is_named: bool,
    /// A text was found in a column that no condition names.
    is_text: bool,
    numbers: Vec<f32>,
}

/// The further columns of a source after all its rows were read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SourceFields {
    /// The names of the columns whose values the rows keep, because the template of captions, or a condition on a measured number, needs them
    /// after the videos were measured.
    pub kept: Vec<String>,
    /// The columns of numbers.
    pub columns: Vec<NumberColumn>,
    /// The number of clips that each condition leaves out.
    pub conditions: Vec<ConditionCount>,
    /// The number of rows that were left out.
    pub left_out: usize,
}

impl Fields {
    /// Begins to read a source.
    ///
    /// * `names` — the columns of its table.
    /// * `shown` — the columns that may hold numbers.
    /// * `keep` — the columns whose values the rows keep, if [`SourceRequest::keep_all`] is set.
    ///
    /// # Errors
    /// A condition or the template of captions names a column that neither the table has nor the check measures.
    pub(super) fn begin<'a>(
        path: &Utf8Path,
        names: &[String],
        shown: impl Iterator<Item = &'a String>,
        keep: impl Iterator<Item = &'a String>,
        request: &SourceRequest,
    ) -> Result<Self, Failure> {
        let filter = request.filter.clone();
        let named = filter.as_ref().map(Filter::columns).unwrap_or_default();
        let is_in_table = |name: &str| names.iter().any(|known| known == name);
        let of_template: Vec<&str> = request.template.iter().flat_map(CaptionTemplate::columns).collect();
        let mut wanted =
            named.iter().map(|name| (name, "--where")).chain(of_template.iter().map(|name| (name, "--caption")));
        if let Some((unknown, option)) = wanted.find(|(name, _)| !is_in_table(name) && !MEASURED.contains(name)) {
            return Err(unknown_column(path, names, unknown, option));
        }
        let column = |name: &str, is_named| Column { name: name.into(), is_named, is_text: false, numbers: Vec::new() };
        let mut columns: Vec<Column> =
            named.iter().filter(|name| is_in_table(name)).map(|name| column(name, true)).collect();
        for name in shown.take(SHOWN) {
            if !named.contains(&name.as_str()) {
                columns.push(column(name, false));
            }
        }
        let mut kept: Vec<String> =
            of_template.into_iter().filter(|name| is_in_table(name)).map(str::to_owned).collect();
        let mut counts = Vec::new();
        for condition in filter.iter().flat_map(|filter| &filter.conditions) {
            let is_measured = condition.columns().any(|name| !is_in_table(name));
            if is_measured {
                let new = condition.columns().filter(|name| is_in_table(name)).map(ToOwned::to_owned);
                kept.extend(new.collect::<Vec<_>>());
            }
            let condition = condition.text.clone();
            counts.push(ConditionCount { condition, left_out: 0, missing: 0, is_measured });
        }
        if request.keep_all {
            // In the order of the table.
            kept = keep.cloned().collect();
        }
        let mut seen = BTreeSet::new();
        kept.retain(|name| seen.insert(name.clone()));
        Ok(Self { filter, columns, counts, kept, left_out: 0 })
    }

    /// Returns the names of the columns that are read.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str()).chain(self.kept.iter().map(String::as_str))
    }

    /// Reads a row. Returns the values that the row keeps, or `None` if the row does not meet a condition.
    ///
    /// # Errors
    /// A column that a condition names has a text in this row.
    pub(super) fn read(
        &mut self,
        path: &Utf8Path,
        origin: &str,
        values: &dyn Values,
    ) -> Result<Option<Vec<FieldValue>>, Failure> {
        let mut row: Vec<Option<f64>> = Vec::new();
        for column in self.columns.iter_mut().filter(|column| !column.is_text) {
            let number = match number(&values.get(&column.name)) {
                Ok(number) => number,
                Err(text) if column.is_named => return Err(is_text(path, origin, &column.name, &text)),
                Err(_) => {
                    (column.is_text, column.numbers) = (true, Vec::new());
                    None
                }
            };
            if !column.is_text {
                column.numbers.push(number.map_or(f32::NAN, |number| number as f32));
            }
            // The columns that conditions name are the first ones.
            if column.is_named {
                row.push(number);
            }
        }
        let of =
            |name: &str| self.columns.iter().zip(&row).find(|(column, _)| column.name == name).and_then(|of| *of.1);
        let mut is_left_out = false;
        let conditions = self.filter.iter().flat_map(|filter| &filter.conditions);
        for (condition, count) in conditions.zip(&mut self.counts).filter(|(_, count)| !count.is_measured) {
            is_left_out |= !count.add(condition.is_met(&of));
        }
        if is_left_out {
            self.left_out += 1;
            return Ok(None);
        }
        Ok(Some(self.kept.iter().map(|name| value(values.get(name))).collect()))
    }

    /// Ends the reading.
    pub(super) fn done(self) -> SourceFields {
        let columns = self.columns.into_iter().filter(|column| !column.is_text);
        let columns = columns.filter(|column| column.numbers.iter().any(|number| !number.is_nan()));
        let columns = columns.map(|Column { name, numbers, .. }| NumberColumn { name, numbers });
        SourceFields { kept: self.kept, columns: columns.collect(), conditions: self.counts, left_out: self.left_out }
    }
}

impl ConditionCount {
    /// Counts a clip, and returns whether it meets the condition.
    pub(crate) fn add(&mut self, is_met: Option<bool>) -> bool {
        self.missing += usize::from(is_met.is_none());
        self.left_out += usize::from(is_met != Some(true));
        is_met == Some(true)
    }
}

/// Returns the number in a cell, `None` if there is no value, or the text that is not a number.
pub(super) fn number(cell: &Cell) -> Result<Option<f64>, String> {
    match cell {
        Cell::Null => Ok(None),
        Cell::Number(number) => Ok(Some(*number).filter(|number| number.is_finite())),
        Cell::Text(text) if MISSING.iter().any(|missing| text.trim().eq_ignore_ascii_case(missing)) => Ok(None),
        Cell::Text(text) => match text.trim().parse::<f64>() {
            Ok(number) => Ok(Some(number).filter(|number| number.is_finite())),
            Err(_) => Err(text.clone()),
        },
        Cell::NotUtf8 { shown, .. } => Err(shown.clone()),
        Cell::Texts(texts) => Err(texts.join(", ")),
    }
}

/// Returns the value in a cell, as the table has it.
fn value(cell: Cell) -> FieldValue {
    match (number(&cell), cell) {
        (Ok(None), _) => FieldValue::Missing,
        (_, Cell::Number(number)) => FieldValue::Number(number),
        (_, Cell::Text(text) | Cell::NotUtf8 { shown: text, .. }) => FieldValue::Text(text.trim().to_owned()),
        (_, Cell::Texts(texts)) => FieldValue::Text(texts.join(", ")),
        (_, Cell::Null) => FieldValue::Missing,
    }
}

/// Makes the error for a source of which the conditions leave nothing.
pub(crate) fn nothing_left(path: &Utf8Path, conditions: &[ConditionCount]) -> Failure {
    let count = |count: &ConditionCount| {
        let missing =
            if count.missing > 0 { format!(", {} for a missing number", count.missing) } else { String::new() };
        format!("{} leaves out {}{missing}", count.condition, units::counted(count.left_out, "clip"))
    };
    let why = conditions.iter().map(count).collect::<Vec<_>>().join("; ");
    let fix = format!("see the range of each column: vidtui data check {path}; then change --where");
    invalid(format!("no clip of {path} meets all conditions"), why, fix)
}

fn is_text(path: &Utf8Path, origin: &str, column: &str, text: &str) -> Failure {
    let mut shown: String = text.chars().take(40).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    invalid(
        format!("cannot compare the column '{column}' of {path}"),
        format!("{origin} has a text in it: '{shown}'"),
        "name a column of numbers in --where, or correct the value; an empty value is a missing number",
    )
}

fn unknown_column(path: &Utf8Path, names: &[String], unknown: &str, option: &str) -> Failure {
    let known = || names.iter().map(String::as_str).chain(MEASURED);
    let fix = match nearest(known(), unknown) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("name a known column in {option}"),
    };
    let columns = if names.is_empty() {
        "the source has no columns".into()
    } else {
        format!("its columns are: {}", names.join(", "))
    };
    let why = format!("{columns}; every clip has {}", MEASURED.join(", "));
    invalid(format!("{path} has no column '{unknown}'"), why, fix)
}

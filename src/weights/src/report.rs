//! Reports the mapping of every tensor in a conversion, and checks that no tensor is unused or missing.

use crate::Dtype;
use rundir::{ErrorCode, Failure};
use serde::Serialize;
use std::collections::BTreeMap;
use units::counted;

/// The mapping of every tensor in a conversion.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Tensors that are copied from the source to the target.
    pub mapped: Vec<Mapped>,
    /// Tensors of the source that the target does not use, without those in `waived`.
    pub unused: Vec<String>,
    /// Unused tensors that the request allows.
    pub waived: Vec<String>,
    /// Tensors that the target adds.
    pub initialized: Vec<Initialized>,
    /// Tensors that the target needs and the source does not have.
    pub missing: Vec<String>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A tensor that is copied from the source to the target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mapped {
    /// The name in the source.
    pub source: String,
    /// The name in the target.
    pub target: String,
    /// The shape in the target.
    pub shape: Vec<usize>,
    /// The dtype in the source.
    pub from: &'static str,
    /// The dtype in the target.
    pub to: &'static str,
    /// The number of added input channels, which are zero.
    #[serde(skip_serializing_if = "is_zero")]
    pub new_channels: usize,
}

/// A tensor that the target adds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Initialized {
    /// The name of the added tensor in the target.
    pub target: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its dtype.
    pub to: &'static str,
    /// The distribution of the values, as text.
    pub values: String,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// A row of the mapping: tensors whose names differ only by the block number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MappingRow {
    /// The name in the source, with `{i}` for the block number.
    pub source: String,
    /// The name in the target, with `{i}` for the block number. For an added tensor, `source` describes the values instead.
    pub target: String,
    /// The number of tensors.
    pub count: usize,
}

impl Report {
    /// Checks that all tensors of the source are used and all tensors of the target are present.
    ///
    /// # Errors
    /// [`ErrorCode::TensorMismatch`] names the first missing or unused tensors.
    pub fn check(&self, source: &str) -> Result<(), Failure> {
        if let [first, ..] = &self.missing[..] {
            return Err(Failure::new(
                ErrorCode::TensorMismatch,
                format!("cannot convert {source}"),
                format!(
                    "{} of the model {} missing: {}",
                    counted(self.missing.len(), "tensor"),
                    if self.missing.len() == 1 { "is" } else { "are" },
                    some(&self.missing)
                ),
                format!(
                    "use weights that have {first}: check that the download is complete and that config.json belongs to it"
                ),
            ));
        }
        if !self.unused.is_empty() {
            return Err(Failure::new(
                ErrorCode::TensorMismatch,
                format!("cannot convert {source}"),
                format!(
                    "{} {} no place in the target: {}",
                    counted(self.unused.len(), "tensor"),
                    if self.unused.len() == 1 { "has" } else { "have" },
                    some(&self.unused)
                ),
                format!(
                    "to skip them, set --allow-unused '{}' (a * at the end matches any suffix)",
                    in_common(&self.unused)
                ),
            ));
        }
        Ok(())
    }

    /// Returns the mapping with one row for tensors that differ only in the block number, in the order of the first block.
    pub fn patterns(&self) -> Vec<MappingRow> {
        let mapped = self.mapped.iter().map(|m| (pattern(&m.source), pattern(&m.target)));
        let added = self.initialized.iter().map(|m| (format!("({})", m.values), pattern(&m.target)));
        let mut rows: Vec<MappingRow> = Vec::new();
        let mut places: BTreeMap<(String, String), usize> = BTreeMap::new();
        for (source, target) in mapped.chain(added) {
            let place = *places.entry((source.clone(), target.clone())).or_insert_with(|| {
                rows.push(MappingRow { source, target, count: 0 });
                rows.len() - 1
            });
            rows[place].count += 1;
        }
        rows
    }

    /// Adds notes about changes of dtypes.
    pub(crate) fn note_changes(&mut self) {
        let mut casts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for mapped in self.mapped.iter().filter(|m| m.from != m.to) {
            *casts.entry((mapped.from, mapped.to)).or_default() += 1;
        }
        self.notes.extend(casts.into_iter().map(|((from, to), n)| {
            // F32 represents every number of F16 and BF16, but not of F64.
            let how = if to == Dtype::F32.name() && from != Dtype::F64.name() { "widened" } else { "rounded" };
            format!("{} {how} from {from} to {to}", counted(n, "tensor"))
        }));
    }
}

impl Mapped {
    pub(crate) fn new(source: &str, target: &str, shape: &[usize], from: Dtype, to: Dtype) -> Self {
        let (from, to) = (from.name(), to.name());
        Self { source: source.into(), target: target.into(), shape: shape.to_vec(), from, to, new_channels: 0 }
    }
}

/// Replaces the block number of a name: `blocks.{i}.attn.q.weight`.
fn pattern(name: &str) -> String {
    for blocks in ["transformer_blocks.", "blocks."] {
        if let Some((_, rest)) = name.strip_prefix(blocks).and_then(|rest| rest.split_once('.')) {
            return format!("{blocks}{{i}}.{rest}");
        }
    }
    name.to_owned()
}

/// Returns a pattern for the names: the only name, their common prefix up to a dot, or else the first name.
fn in_common(names: &[String]) -> String {
    let [first, rest @ ..] = names else { return String::new() };
    let same = rest.iter().fold(first.as_str(), |common, name| {
        let end = common.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
        common.get(..end).unwrap_or_default()
    });
    match same.rfind('.') {
        Some(dot) if !rest.is_empty() => format!("{}*", &same[..=dot]),
        _ => first.clone(),
    }
}

/// Lists the first few names.
pub(crate) fn some(names: &[String]) -> String {
    units::listed(names, 3, String::clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_waives_all_unused_tensors_with_a_common_prefix() {
        let hint = |names: &[&str]| {
            let unused = names.iter().map(|name| (*name).to_owned()).collect();
            Report { unused, ..Report::default() }.check("x").unwrap_err().fix
        };
        assert!(hint(&["ofs.bias"]).contains("--allow-unused 'ofs.bias'"));
        assert!(hint(&["blocks.1.attn.k", "blocks.1.attn.q", "blocks.1.mlp"]).contains("--allow-unused 'blocks.1.*' "));
        assert!(hint(&["blocks.10.a", "blocks.11.a"]).contains("--allow-unused 'blocks.*' "));
        assert!(hint(&["ema", "ofs.bias"]).contains("--allow-unused 'ema' "));
    }

    #[test]
    fn only_a_cast_that_loses_digits_is_reported_as_rounded() {
        let mut report = Report::default();
        use Dtype::{BF16, F16, F32, F64};
        for (from, to) in [(F16, F32), (F16, BF16), (F32, F32), (F64, F32)] {
            report.mapped.push(Mapped::new("a", "a", &[1], from, to));
        }
        report.note_changes();
        insta::assert_snapshot!(report.notes.join("\n"));
    }
}

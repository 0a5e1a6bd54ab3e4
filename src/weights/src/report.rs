//! What a conversion does with every tensor: three lists, and the rules that they must keep.

use crate::Dtype;
use rundir::{ErrorCode, Failure};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a conversion does with every tensor.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Tensors that go from the source to the target.
    pub mapped: Vec<Mapped>,
    /// Tensors of the source that the target has no place for, less those that were waived.
    pub unused: Vec<String>,
    /// Unused tensors that the request waived.
    pub waived: Vec<String>,
    /// Tensors that the target adds.
    pub initialized: Vec<Initialized>,
    /// Tensors that the target needs, and that nobody gives.
    pub missing: Vec<String>,
    /// What else a person should know.
    pub notes: Vec<String>,
}

/// A tensor that goes from the source to the target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mapped {
    /// Its name in the source.
    pub source: String,
    /// Its name in the target.
    pub target: String,
    /// Its shape in the target.
    pub shape: Vec<usize>,
    /// Its type in the source.
    pub from: &'static str,
    /// Its type in the target.
    pub to: &'static str,
    /// Input channels that it got, filled with zeros.
    #[serde(skip_serializing_if = "is_zero")]
    pub new_channels: usize,
}

/// A tensor that the target adds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Initialized {
    /// Its name.
    pub target: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its type.
    pub to: &'static str,
    /// How its values come about.
    pub values: String,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// One row of the mapping: tensors that differ only by the number of their block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pattern {
    /// The name in the source, `{i}` for the block.
    pub source: String,
    /// The name in the target; for a tensor that is added, the source says how.
    pub target: String,
    /// The number of tensors.
    pub count: usize,
}

impl Report {
    /// Checks that everything of the source is used and nothing of the target is missing.
    ///
    /// # Errors
    /// Names the first tensors of which that is not so.
    pub fn check(&self, source: &str) -> Result<(), Failure> {
        if let [first, ..] = &self.missing[..] {
            return Err(Failure::new(
                ErrorCode::Malformed,
                format!("cannot convert {source}"),
                format!(
                    "{} that the model needs {} not there: {}",
                    counted(self.missing.len()),
                    if self.missing.len() == 1 { "is" } else { "are" },
                    some(&self.missing)
                ),
                format!("use weights that have {first}: was the download complete, and is the configuration theirs?"),
            ));
        }
        if !self.unused.is_empty() {
            return Err(Failure::new(
                ErrorCode::Malformed,
                format!("cannot convert {source}"),
                format!(
                    "{} {} no place in the target: {}",
                    counted(self.unused.len()),
                    if self.unused.len() == 1 { "has" } else { "have" },
                    some(&self.unused)
                ),
                format!(
                    "if they are not needed, say so: --allow-unused '{}' (a * at the end stands for any rest)",
                    in_common(&self.unused)
                ),
            ));
        }
        Ok(())
    }

    /// The mapping in rows, blocks taken together, in the order of the first block.
    pub fn patterns(&self) -> Vec<Pattern> {
        let mapped = self.mapped.iter().map(|m| (pattern(&m.source), pattern(&m.target)));
        let added = self.initialized.iter().map(|m| (format!("({})", m.values), pattern(&m.target)));
        let mut rows: Vec<Pattern> = Vec::new();
        let mut places: BTreeMap<(String, String), usize> = BTreeMap::new();
        for (source, target) in mapped.chain(added) {
            let place = *places.entry((source.clone(), target.clone())).or_insert_with(|| {
                rows.push(Pattern { source, target, count: 0 });
                rows.len() - 1
            });
            rows[place].count += 1;
        }
        rows
    }

    /// Notes what types change.
    pub(crate) fn note_changes(&mut self) {
        let mut casts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for mapped in self.mapped.iter().filter(|m| m.from != m.to) {
            *casts.entry((mapped.from, mapped.to)).or_default() += 1;
        }
        self.notes.extend(casts.into_iter().map(|((from, to), n)| {
            // F32 holds every number of the two others.
            let how = if to == Dtype::F32.name() { "widened" } else { "rounded" };
            format!("{} {how} from {from} to {to}", counted(n))
        }));
    }
}

impl Mapped {
    pub(crate) fn new(source: &str, target: &str, shape: &[usize], from: Dtype, to: Dtype) -> Self {
        let (from, to) = (from.name(), to.name());
        Self { source: source.into(), target: target.into(), shape: shape.to_vec(), from, to, new_channels: 0 }
    }
}

/// A name with the number of its block taken out: `blocks.{i}.attn.q.weight`.
fn pattern(name: &str) -> String {
    for blocks in ["transformer_blocks.", "blocks."] {
        if let Some((_, rest)) = name.strip_prefix(blocks).and_then(|rest| rest.split_once('.')) {
            return format!("{blocks}{{i}}.{rest}");
        }
    }
    name.to_owned()
}

/// What stands for all of the names: the one, or what they begin with, up to a dot; or else the first.
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

fn counted(n: usize) -> String {
    format!("{n} tensor{}", if n == 1 { "" } else { "s" })
}

/// The first few names of a list.
pub(crate) fn some(names: &[String]) -> String {
    let mut shown: Vec<String> = names.iter().take(3).cloned().collect();
    if names.len() > shown.len() {
        shown.push(format!("{} more", names.len() - shown.len()));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_over_can_be_waived_by_what_the_hint_says() {
        let hint = |names: &[&str]| {
            let unused = names.iter().map(|name| (*name).to_owned()).collect();
            Report { unused, ..Report::default() }.check("x").unwrap_err().fix
        };
        assert!(hint(&["ofs.bias"]).contains("--allow-unused 'ofs.bias' "));
        assert!(hint(&["blocks.1.attn.k", "blocks.1.attn.q", "blocks.1.mlp"]).contains("--allow-unused 'blocks.1.*' "));
        assert!(hint(&["blocks.10.a", "blocks.11.a"]).contains("--allow-unused 'blocks.*' "));
        assert!(hint(&["ema", "ofs.bias"]).contains("--allow-unused 'ema' "));
    }

    #[test]
    fn only_what_loses_digits_is_said_to_be_rounded() {
        let mut report = Report::default();
        for (from, to) in [(Dtype::F16, Dtype::F32), (Dtype::F16, Dtype::BF16), (Dtype::F32, Dtype::F32)] {
            report.mapped.push(Mapped::new("a", "a", &[1], from, to));
        }
        report.note_changes();
        assert_eq!(report.notes, ["1 tensor rounded from F16 to BF16", "1 tensor widened from F16 to F32"]);
    }
}

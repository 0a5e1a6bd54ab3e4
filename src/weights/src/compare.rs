//! Compares two sets of weights, which may have different formats.

use crate::source::WeightsSource;
use crate::tensor_chunks::for_each_chunk;
use crate::tensor_spans::{Files, StoredTensor, Tensors};
use crate::write::{Doing, WriteProgress};
use crate::{Error, cast};
use rundir::{ErrorCode, Failure};
use serde::Serialize;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// The difference between two sets of weights.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Tensors that only the first set has.
    pub missing: Vec<String>,
    /// Tensors that only the second set has.
    pub extra: Vec<String>,
    /// Tensors of both sets that differ.
    pub changed: Vec<Changed>,
    /// The number of equal tensors.
    pub same: usize,
    /// The L2 norm of the difference over all tensors that have the same shape in both sets.
    pub norm: f64,
}

/// A tensor that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Changed {
    /// The name of the tensor.
    pub name: String,
    /// The dtype and shape in the first set.
    pub first: String,
    /// The dtype and shape in the second set.
    pub second: String,
    /// The L2 norm of the difference; `None` if the shapes differ.
    pub norm: Option<f64>,
    /// The norm of the difference divided by the norm of the first tensor; `None` if the shapes differ or the ratio is not finite.
    pub relative: Option<f64>,
    /// The largest absolute difference of two elements; `None` if the shapes differ.
    pub largest: Option<f64>,
}

/// Compares two sets of weights element by element.
///
/// # Errors
/// Fails when a file cannot be read, or when `progress` stops the work.
pub fn compare(
    first: &WeightsSource,
    second: &WeightsSource,
    progress: &mut dyn FnMut(WriteProgress) -> ControlFlow<()>,
) -> Result<Difference, Failure> {
    let (ours, theirs) = match first.names == second.names {
        true => (first.tensors.clone(), second.tensors.clone()),
        false => (internal(first), internal(second)),
    };
    let (mut missing, mut extra, mut both) = (Vec::new(), Vec::new(), Vec::new());
    for name in ours.keys().chain(theirs.keys()).collect::<BTreeSet<_>>() {
        match (ours.get(name), theirs.get(name)) {
            (Some(a), Some(b)) => both.push((name, a, b)),
            (Some(_), None) => missing.push(name.clone()),
            _ => extra.push(name.clone()),
        }
    }
    let total = both.iter().map(|(_, a, b)| a.bytes() + b.bytes()).sum();
    let (mut files, mut changed, mut squares, mut done) = (Files::default(), Vec::new(), 0.0, 0);
    for (name, a, b) in &both {
        if let Some((row, square)) = changed_tensor(&mut files, name, a, b)? {
            changed.push(row);
            squares += square;
        }
        done += a.bytes() + b.bytes();
        if progress(WriteProgress { doing: Doing::Comparing, done, total }).is_break() {
            return Err(Failure::new(ErrorCode::Cancelled, "cannot compare", "it was interrupted", "run it again"));
        }
    }
    Ok(Difference { same: both.len() - changed.len(), missing, extra, changed, norm: f64::sqrt(squares) })
}

/// Returns the tensors of a source. Tensors that the model defines get their internal names.
fn internal(source: &WeightsSource) -> Tensors {
    let mut tensors = source.tensors.clone();
    if let Ok(model) = source.model() {
        for spec in recipe::param_specs(model) {
            if let Some(tensor) = tensors.remove(&source.name_of(&spec)) {
                tensors.insert(spec.name, tensor);
            }
        }
    }
    tensors
}

fn changed_tensor(
    files: &mut Files,
    name: &str,
    a: &StoredTensor,
    b: &StoredTensor,
) -> Result<Option<(Changed, f64)>, Error> {
    let words = |tensor: &StoredTensor| format!("{} {:?}", tensor.dtype, tensor.shape);
    let mut row =
        Changed { name: name.to_owned(), first: words(a), second: words(b), norm: None, relative: None, largest: None };
    if a.shape != b.shape {
        return Ok(Some((row, 0.0)));
    }
    let (mut square, mut of_first, mut largest, mut same) = (0.0, 0.0, 0f64, a.dtype == b.dtype);
    for_each_chunk(files, [a, b], |[x, y]| {
        if a.dtype == b.dtype && x == y {
            of_first += cast::values(a.dtype, x).map(|v| v * v).sum::<f64>();
            return;
        }
        same = false;
        for (x, y) in cast::values(a.dtype, x).zip(cast::values(b.dtype, y)) {
            // Two NaNs count as equal.
            let apart = if x == y || (x.is_nan() && y.is_nan()) { 0.0 } else { (x - y).abs() };
            square += apart * apart;
            of_first += x * x;
            largest = if apart.is_nan() { f64::INFINITY } else { largest.max(apart) };
        }
    })?;
    if same {
        return Ok(None);
    }
    row.norm = Some(square.sqrt());
    row.relative = Some(square.sqrt() / f64::sqrt(of_first)).filter(|ratio| ratio.is_finite());
    row.largest = Some(largest);
    Ok(Some((row, square)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{temp, write};
    use crate::{ConvertRequest, Dtype, Form, Header, plan_conversion};
    use camino::Utf8Path;
    use std::fs;

    fn go(a: &Utf8Path, b: &Utf8Path) -> Difference {
        let open = |path| WeightsSource::open(path).unwrap();
        compare(&open(a), &open(b), &mut |_| ControlFlow::Continue(())).unwrap()
    }

    #[test]
    fn missing_extra_and_changed_tensors_are_listed_with_the_norm() {
        let (_keep, folder) = temp();
        let (a, b) = (folder.join("a.safetensors"), folder.join("b.safetensors"));
        write(
            &a,
            &[
                ("same", Dtype::F32, &[4]),
                ("gone", Dtype::F32, &[4]),
                ("moved", Dtype::F32, &[2, 2]),
                ("w", Dtype::F32, &[2]),
            ],
        );
        write(
            &b,
            &[
                ("same", Dtype::F32, &[4]),
                ("new", Dtype::F32, &[4]),
                ("moved", Dtype::F32, &[4]),
                ("w", Dtype::F32, &[2]),
            ],
        );
        for (path, numbers) in [(&a, [3.0f32, 4.0]), (&b, [3.0, 6.0])] {
            let at = Header::read(path).unwrap().tensors["w"].begin as usize;
            let mut bytes = fs::read(path).unwrap();
            bytes[at..at + 4].copy_from_slice(&numbers[0].to_le_bytes());
            bytes[at + 4..at + 8].copy_from_slice(&numbers[1].to_le_bytes());
            fs::write(path, bytes).unwrap();
        }
        let found = go(&a, &b);
        assert_eq!(
            (&found.missing[..], &found.extra[..], found.same),
            (&["gone".to_owned()][..], &["new".to_owned()][..], 1)
        );
        assert_eq!(found.changed[0].second, "F32 [4]");
        let w = &found.changed[1];
        assert_eq!((w.norm, w.relative, w.largest, found.norm), (Some(2.0), Some(0.4), Some(2.0), 2.0));
    }

    #[test]
    fn weights_are_compared_across_formats() {
        let (_keep, folder) = temp();
        let model = Utf8Path::new("../../tests/fixtures/oracle/cogvideox/cogvideox_2b_tiny");
        let request = ConvertRequest::new(model, folder.join("inner"), Form::Internal);
        plan_conversion(&request).unwrap().execute(false, 0.0, 1, &mut |_| ControlFlow::Continue(())).unwrap();
        let found = go(model, &folder.join("inner"));
        assert_eq!((found.same, found.changed.len(), found.missing.len(), found.extra.len()), (64, 0, 0, 0));
        let short = ConvertRequest { dtype: Some(Dtype::BF16), target: folder.join("short"), ..request };
        plan_conversion(&short).unwrap().execute(false, 0.0, 1, &mut |_| ControlFlow::Continue(())).unwrap();
        let found = go(model, &folder.join("short"));
        assert_eq!(found.changed.len(), 64);
        assert!(found.changed.iter().all(|row| row.relative.is_none_or(|r| r < 1.0 / 256.0)));
    }
}

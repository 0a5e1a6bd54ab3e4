//! Locates the tensors of a checkpoint of this trainer.

use crate::tensor_spans::{Span, StoredTensor, Tensors};
use crate::{Dtype, Header};
use camino::Utf8Path;
use recipe::UseEma;
use rundir::{Checkpoint, ErrorCode, Failure, LogicalTensor, TensorBox};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns the tensors of a checkpoint, each with the file ranges that hold its elements in order.
pub(crate) fn checkpoint_tensors(checkpoint: &Checkpoint) -> Result<Tensors, Failure> {
    let mut headers: BTreeMap<&str, (Header, Arc<Utf8Path>)> = BTreeMap::new();
    let mut tensors = Tensors::new();
    for tensor in &checkpoint.manifest.tensors {
        for slice in &tensor.slices {
            if !headers.contains_key(slice.file.as_str()) {
                let path = checkpoint.dir.join(&slice.file);
                headers.insert(&slice.file, (Header::read(&path)?, Arc::from(path.as_path())));
            }
        }
        tensors.insert(tensor.name.clone(), checkpoint_tensor(checkpoint, tensor, &headers)?);
    }
    Ok(tensors)
}

/// The prefix in the name of the moving average of a tensor.
const AVERAGE: &str = "ema/";

/// Replaces weights by their moving averages (EMA), which are in the training state. Returns the number of replaced tensors.
///
/// # Errors
/// `ema` is [`UseEma::On`], and there are no averages.
pub(crate) fn use_average(
    path: &Utf8Path,
    weights: &mut Tensors,
    state: &Tensors,
    ema: UseEma,
) -> Result<usize, Failure> {
    let mut used = 0;
    for (name, average) in state.iter().filter(|_| ema != UseEma::Off) {
        let Some(weight) = name.strip_prefix(AVERAGE).and_then(|name| weights.get_mut(name)) else { continue };
        *weight = average.clone();
        used += 1;
    }
    if used > 0 || ema != UseEma::On {
        return Ok(used);
    }
    let (what, why) = (format!("cannot read the average of {path}"), "it has no moving average of the weights");
    let fix = "omit --ema on, or use a checkpoint of a run with ema.decay above 0";
    Err(Failure::new(ErrorCode::NoWeights, what, why, fix))
}

fn checkpoint_tensor(
    checkpoint: &Checkpoint,
    tensor: &LogicalTensor,
    headers: &BTreeMap<&str, (Header, Arc<Utf8Path>)>,
) -> Result<StoredTensor, Failure> {
    let bad = |why: String| {
        let fix = "use another checkpoint; this one was not written by vidtui or was modified";
        Failure::new(
            ErrorCode::Malformed,
            format!("tensor {} of {} is not valid", tensor.name, checkpoint.dir),
            why,
            fix,
        )
    };
    let dtype = Dtype::parse(&tensor.dtype).ok_or_else(|| bad(format!("its dtype '{}' is unknown", tensor.dtype)))?;
    let whole = TensorBox::whole(&tensor.shape);
    let all = 0..tensor.elements().unwrap_or(0);
    // A slice that is a box of columns has one contiguous run of elements per row of the tensor.
    let mut runs: Vec<(u64, Span)> = Vec::with_capacity(tensor.slices.len());
    for slice in &tensor.slices {
        let (header, file) = &headers[slice.file.as_str()];
        let info = header.tensor(&slice.key)?;
        if info.dtype != dtype || info.elements() != slice.len {
            return Err(bad(format!(
                "{} has {} elements of {}, the manifest expects {} of {dtype}",
                slice.file,
                info.elements(),
                info.dtype,
                slice.len
            )));
        }
        let size = dtype.size() as u64;
        let common = whole.overlaps(all.clone(), &slice.within(&tensor.shape), slice.range());
        runs.extend(common.into_iter().map(|run| {
            (run.here, Span { file: file.clone(), begin: info.begin + run.there * size, len: run.len * size })
        }));
    }
    runs.sort_by_key(|(first, _)| *first);
    let spans = runs.into_iter().map(|(_, span)| span).collect();
    Ok(StoredTensor { dtype, shape: tensor.shape.clone(), spans })
}

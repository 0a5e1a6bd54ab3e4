//! Reads the bytes of stored tensors in chunks.

use crate::Error;
use crate::stream::CHUNK;
use crate::tensor_spans::{Files, StoredTensor};

/// Calls `see` for each chunk of a tensor. For several tensors with the same number of elements, passes the chunks of the same elements.
pub(crate) fn for_each_chunk<const N: usize>(
    files: &mut Files,
    tensors: [&StoredTensor; N],
    mut see: impl FnMut([&[u8]; N]),
) -> Result<(), Error> {
    let mut buffers = [const { Vec::new() }; N];
    // The number of elements per chunk: the same for all tensors, although their dtypes may differ.
    let step = (CHUNK / 8) as u64;
    let elements = tensors.iter().map(|tensor| tensor.elements()).min().unwrap_or(0);
    let mut first = 0;
    while first < elements {
        let count = step.min(elements - first);
        for (buffer, tensor) in buffers.iter_mut().zip(tensors) {
            let size = tensor.dtype.size() as u64;
            buffer.resize((count * size) as usize, 0);
            let mut at = 0;
            for span in tensor.cut(first * size, count * size) {
                let end = at + span.len as usize;
                files.read(&span.file, span.begin, &mut buffer[at..end])?;
                at = end;
            }
        }
        see(std::array::from_fn(|n| &buffers[n][..]));
        first += count;
    }
    Ok(())
}

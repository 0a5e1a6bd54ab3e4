//! Allocates tensors in a few large chunks of host memory.

use c10d::{Error, Result, cuda};
use recipe::Slab;
use tch::{Device, Kind, Tensor};

/// A kind of host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostMemory {
    /// Memory that the operating system may move or swap out.
    Pageable,
    /// Page-locked memory, for copies from and to a GPU.
    Pinned,
}

impl HostMemory {
    /// Returns the kind of memory for copies from and to a device.
    pub fn beside(device: Device) -> Self {
        if device == Device::Cpu { HostMemory::Pageable } else { HostMemory::Pinned }
    }

    /// Allocates flat tensors of bytes, one for each chunk of a slab.
    pub(crate) fn chunks(self, slab: &Slab) -> Result<Vec<Tensor>> {
        slab.chunks.iter().map(|bytes| self.bytes(*bytes as i64)).collect()
    }

    /// Allocates a flat tensor of bytes.
    pub(crate) fn bytes(self, len: i64) -> Result<Tensor> {
        let memory = Tensor::f_empty([len], (Kind::Uint8, Device::Cpu))
            .map_err(|error| Error::torch(format!("allocate {len} bytes of the memory of the node"), error))?;
        match self {
            HostMemory::Pageable => Ok(memory),
            // The tensor above only gives the size. It uses no physical memory, because its pages were never touched.
            HostMemory::Pinned => cuda::pinned(&memory),
        }
    }
}

/// Returns the number of bytes of a tensor.
pub(crate) fn bytes_of(size: &[i64], kind: Kind) -> i64 {
    size.iter().product::<i64>() * kind.elt_size_in_bytes() as i64
}

/// Returns a part of a flat tensor of bytes as a tensor of another size and dtype.
pub(crate) fn view(chunk: &Tensor, start: i64, size: &[i64], kind: Kind) -> Tensor {
    chunk.narrow(0, start, bytes_of(size, kind)).view_dtype(kind).view(size)
}

/// Allocates tensors of these sizes and dtypes. Their content is undefined.
///
/// # Errors
/// Host memory is exhausted.
pub fn allocate(memory: HostMemory, like: &[(Vec<i64>, Kind)]) -> Result<Vec<Tensor>> {
    let bytes: Vec<u64> = like.iter().map(|(size, kind)| bytes_of(size, *kind) as u64).collect();
    let slab = Slab::of(&bytes);
    let chunks = memory.chunks(&slab)?;
    let tensor = |((size, kind), place): (&(Vec<i64>, Kind), &recipe::Place)| match chunks.get(place.chunk) {
        Some(chunk) if bytes_of(size, *kind) > 0 => view(chunk, place.start as i64, size, *kind),
        _ => Tensor::empty(size.as_slice(), (*kind, Device::Cpu)),
    };
    Ok(like.iter().zip(&slab.places).map(tensor).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_a_slab_have_their_sizes_and_memory_of_their_own() {
        let kinds = [Kind::Float, Kind::BFloat16, Kind::Uint8, Kind::Int64];
        let like: Vec<_> = (0..40).map(|i| (vec![i % 7, 100 + 13 * i], kinds[i as usize % 4])).collect();
        let tensors = allocate(HostMemory::Pageable, &like).unwrap();
        for (number, tensor) in tensors.iter().enumerate() {
            let _ = tensor.shallow_clone().fill_(number as i64);
        }
        for (number, (tensor, (size, kind))) in tensors.iter().zip(&like).enumerate() {
            assert_eq!((&tensor.size(), tensor.kind()), (size, *kind));
            assert!(tensor.is_contiguous() && tensor.equal(&tensor.full_like(number as i64)), "{number}");
        }
    }
}

// Normal numbers on a GPU: a plain pointer and a stream, so that nvcc compiles no PyTorch header.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace normal {

// Fills memory that is aligned to 16 bytes. Does not wait for the GPU.
cudaError_t fill(uint64_t key, int64_t count, float* out, cudaStream_t stream);

}  // namespace normal

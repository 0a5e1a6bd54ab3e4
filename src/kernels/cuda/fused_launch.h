// The C interface of the fused operators on GPUs: plain pointers and a stream, so that nvcc compiles no PyTorch header.

#pragma once

#include <cuda_runtime_api.h>

#include "fused_sizes.h"

namespace fused {

enum class Type { Bf16, Float };

// Whether the kernels are compiled for the GPU: those of compute capability 8.0 and newer.
bool runs_on(int device);

// Whether the kernels read rows of this width: whole pieces of 16 bytes, and for the norm at most kMostWidth numbers.
bool fits(Type type, int width);

cudaError_t modulated_norm(Type type, const Rows& rows, const Norm& in, void* out, const Statistics& kept, cudaStream_t stream);

// `grad_x` is null if it is not wanted. `sums` has sums_size numbers, or is null if no gradient of a vector is wanted.
cudaError_t modulated_norm_backward(Type type, const Rows& rows, const Norm& in, const Statistics& kept, const void* grad, void* grad_x,
                                    float* sums, const VectorGrads& grads, cudaStream_t stream);

cudaError_t gated_add(Type type, const Rows& rows, const void* x, const void* update, const Vector (&gates)[2], void* out,
                      cudaStream_t stream);

// `grad_update` and `sums` may be null, as above; the gradients of the gates are `grads.second`.
cudaError_t gated_add_backward(Type type, const Rows& rows, const void* update, const Vector (&gates)[2], const void* grad,
                               void* grad_update, float* sums, const VectorGrads& grads, cudaStream_t stream);

// Whether head norms have kernels for heads of this width.
bool fits_head(Type type, int width);

// The width of the rows is that of all heads.
cudaError_t head_norm(Type type, const Rows& rows, const HeadNorm& in, void* out, cudaStream_t stream);

// Numbers of the memory for the sums of the backward pass.
int64_t head_sums_size(int width);

// `grad_x` is null if it is not wanted; so is `sums`, if neither `gain` nor `bias` is.
cudaError_t head_norm_gradients(Type type, const Rows& rows, const HeadNorm& in, const void* grad, void* grad_x, float* sums, void* gain,
                                void* bias, cudaStream_t stream);

// The width is that of all heads; `sign` is 1, or -1 for the backward pass.
cudaError_t rotate(Type type, const Rows& rows, int head_width, const void* x, const float* factors, float sign, void* out,
                   cudaStream_t stream);

}  // namespace fused

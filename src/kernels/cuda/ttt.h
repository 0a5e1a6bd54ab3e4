// The C interface of the TTT scan on GPUs: plain pointers and a stream, so that nvcc compiles no PyTorch header.

#pragma once

#include <cuda_runtime_api.h>

#include "ttt_sizes.h"

namespace ttt {

enum class Kind { Mlp, Linear };

// Whether the kernels exist for these sizes, and the GPU has enough shared memory for them.
bool supports(Kind kind, int width, int mini_batch, int device);

// Numbers in the saved states of all sequences.
int64_t saved_size(Kind kind, int width, const Shape& shape);

// Sizes of the backward pass's memory for chunks of `groups` groups: bytes of `kept`, and numbers of `norm` and `carried`.
struct WorkspaceSize {
  int64_t kept, norm, carried;
};
WorkspaceSize workspace_size(Kind kind, int width, const Shape& shape, int groups);

// Whether the kernels exist for clusters of `blocks` blocks, each of which has a part of a sequence's units, and the GPU has clusters.
bool supports_clusters(Kind kind, int width, int blocks, int device);

// 2 if the kernels have clusters of 2 blocks that all run at the same time, on three quarters of the multiprocessors or fewer. Else 1, for
// single blocks. Measured on an H200 with 12, 24 and 48 heads: clusters of 2 take 0.83 to 0.88 times as long as single blocks forward, and
// less than clusters of 4.
int blocks_for(Kind kind, int width, const Shape& shape, int device);

// `saved` is null if no backward pass follows. `blocks` blocks of a cluster share a sequence.
cudaError_t forward(Kind kind, int width, int blocks, const Shape& shape, const Inputs& in, bf16* out, float* saved, cudaStream_t stream);

// Computes all gradients, in chunks of `groups` groups. The forward pass may have had other clusters.
cudaError_t backward(Kind kind, int width, int blocks, const Shape& shape, const Inputs& in, const bf16* grad_out,
                     const Workspace& work, int groups, const Grads& grads, cudaStream_t stream);

}  // namespace ttt

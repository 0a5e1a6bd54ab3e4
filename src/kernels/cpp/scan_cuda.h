// The TTT scan on the kernels in ../cuda. no_cuda.cpp replaces scan_cuda.cpp in a build without CUDA.

#pragma once

#include <ATen/ATen.h>

#include "ttt.h"

// Adds up the gradients of weights and norm, which have one row per sequence, over the samples of each head.
inline void sum_over_samples(std::vector<at::Tensor>& grads, const TttShape& shape) {
  for (size_t i = 4; i < grads.size(); ++i) {
    if (!grads[i].defined()) continue;
    std::vector<int64_t> size = grads[i].sizes().vec();
    size[0] = shape.heads;
    size.insert(size.begin(), shape.sequences / shape.heads);
    grads[i] = grads[i].view(size).sum(0);
  }
}

namespace scan_cuda {

// q, k, target, eta, gamma, beta, w1, b1, w2, b2.
constexpr size_t kTensors = 10;

bool supports(bool mlp, int64_t width, int64_t mini_batch, int device);
bool supports_clusters(bool mlp, int64_t width, int64_t blocks, int device);

// Returns a tensor as the kernels read it: tokens (the first three) in bf16, the others in fp32; contiguous and aligned to 16 bytes.
at::Tensor plain(const at::Tensor& t, size_t index);

// Returns the output in bf16. `states`, unless null, receives the states for the backward pass.
at::Tensor forward(const std::vector<at::Tensor>& x, const TttShape& shape, std::vector<at::Tensor>* states);

// Returns the gradients of the ten tensors; the states follow them in `x`.
std::vector<at::Tensor> backward(const std::vector<at::Tensor>& x, const TttShape& shape, const at::Tensor& grad_out);

}  // namespace scan_cuda

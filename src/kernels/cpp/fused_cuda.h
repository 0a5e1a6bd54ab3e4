// The fused operators on the kernels in ../cuda. no_cuda.cpp replaces fused_cuda.cpp in a build without CUDA.

#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace fused_cuda {

// Whether a GPU can run the kernels for tokens of this width in heads of this width.
bool supports(int64_t width, int64_t head_width, bool is_bf16, int device);

// Whether the kernels take tokens [B, L, D] with these vectors [B, 1, D] or [D].
bool can_run(const at::Tensor& x, const std::vector<at::Tensor>& vectors);

// `x`: the tokens, gain and bias, then shift and scale of each part. Returns the output, and mean and 1/σ of each row.
std::vector<at::Tensor> modulated_norm(const std::vector<at::Tensor>& x, int64_t split, double eps);

// `x`: the same, then mean and 1/σ. Returns the gradients of the first seven that are wanted.
std::vector<at::Tensor> modulated_norm_backward(const std::vector<at::Tensor>& x, const at::Tensor& grad, int64_t split,
                                                const std::vector<bool>& wanted);

at::Tensor gated_add(const at::Tensor& x, const at::Tensor& update, const std::vector<at::Tensor>& gates, int64_t split);

// Returns the gradients of the update and of both gates that are wanted. `update` may be undefined if no gate's gradient is.
std::vector<at::Tensor> gated_add_backward(const at::Tensor& update, const std::vector<at::Tensor>& gates, const at::Tensor& grad,
                                           int64_t split, const std::vector<bool>& wanted);

// Whether the kernels take heads [B, L, heads, F], gain and bias [F], and complex factors [L, F/2], which may be undefined.
bool can_norm_heads(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& bias, const at::Tensor& factors);

at::Tensor head_norm(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& bias, const at::Tensor& factors, double eps);

// Returns the gradients of heads, gain and bias that are wanted. `x`: heads, gain, bias and factors.
std::vector<at::Tensor> head_norm_backward(const std::vector<at::Tensor>& x, const at::Tensor& grad, double eps,
                                           const std::vector<bool>& wanted);

// Whether the kernel takes tokens [B, L, heads, F] and complex factors [L, F/2].
bool can_rotate(const at::Tensor& x, const at::Tensor& factors);

at::Tensor rotate(const at::Tensor& x, const at::Tensor& factors, bool back);

}  // namespace fused_cuda

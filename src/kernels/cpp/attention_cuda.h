// What the choice of an attention kernel depends on. no_cuda.cpp replaces attention_cuda.cpp in a build without CUDA.

#pragma once

#include <ATen/ATen.h>

namespace attention_cuda {

// The major number of the compute capability of a tensor's GPU.
int major(const at::Tensor& t);

// Whether cuDNN has an attention kernel for these tensors, without a mask and dropout.
bool cudnn_can_run(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace attention_cuda

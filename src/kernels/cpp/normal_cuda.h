// Normal numbers on a GPU. no_cuda.cpp replaces normal_cuda.cpp in a build without CUDA.

#pragma once

#include <ATen/ATen.h>

namespace normal_cuda {

void fill(const at::Tensor& numbers, uint64_t key);

}  // namespace normal_cuda

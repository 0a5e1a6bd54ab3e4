// Compiled with the feature `cuda`; no_cuda.cpp replaces it otherwise.

#include "attention_cuda.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/native/transformers/cuda/sdp_utils.h>

namespace attention_cuda {

int major(const at::Tensor& t) { return at::cuda::getDeviceProperties(t.get_device())->major; }

bool cudnn_can_run(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const bool prints_reasons = false;
  return sdp::can_use_cudnn_attention({q, k, v, std::nullopt, 0.0, false, false}, prints_reasons);
}

}  // namespace attention_cuda

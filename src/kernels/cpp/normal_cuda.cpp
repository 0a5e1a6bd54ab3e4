#include "normal_cuda.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../cuda/normal_launch.h"

namespace normal_cuda {

void fill(const at::Tensor& numbers, uint64_t key) {
  const c10::cuda::CUDAGuard guard(numbers.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  const cudaError_t error = normal::fill(key, numbers.numel(), numbers.mutable_data_ptr<float>(), stream);
  TORCH_CHECK(error == cudaSuccess, "CUDA error while drawing normal numbers: ", cudaGetErrorString(error));
}

}  // namespace normal_cuda

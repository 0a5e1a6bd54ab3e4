// Tensors of normal numbers. ../cuda/normal.h has the formulas.

#include "interface.h"
#include "normal_cpu.h"
#include "normal_cuda.h"

#include <ATen/Parallel.h>

extern "C" {

// `gpu` is negative for the CPU.
TorchError* vidtui_normal(uint64_t key, const int64_t* shape, size_t dims, int gpu, at::Tensor** out) {
  return guarded([&] {
    const at::Device device = gpu < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(gpu));
    const at::Tensor made = at::empty(at::IntArrayRef(shape, dims), at::TensorOptions(at::kFloat).device(device));
    if (gpu < 0) {
      auto* numbers = made.mutable_data_ptr<float>();
      // Chunks begin at a counter, which has four numbers.
      const int64_t chunk = 1 << 15, chunks = (made.numel() + chunk - 1) / chunk;
      at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
        normal_cpu::fill(key, begin * chunk, std::min(end * chunk, made.numel()), numbers + begin * chunk);
      });
    } else {
      normal_cuda::fill(made, key);
    }
    *out = new at::Tensor(made);
  });
}
}

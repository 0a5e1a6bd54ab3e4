// The kernel that fills memory with normal numbers.

#pragma once

#include "gpu.h"
#include "normal.h"

namespace normal {

constexpr int kThreads = 256;

// Each thread makes four numbers, which have one counter. `out` is aligned to 16 bytes.
__global__ void __launch_bounds__(kThreads) numbers(uint64_t key, int64_t count, float* out) {
  const int64_t first = 4 * (int64_t(blockIdx.x) * kThreads + threadIdx.x);
  if (first >= count) return;
  float v[4];
  four(key, uint64_t(first / 4), v);
  if (first + 4 <= count) {
    gpu::store16(out + first, make_uint4(bits(v[0]), bits(v[1]), bits(v[2]), bits(v[3])));
    return;
  }
  for (int i = 0; first + i < count; ++i) out[first + i] = v[i];
}

}  // namespace normal

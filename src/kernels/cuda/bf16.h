// Pairs of bf16 numbers in a 32-bit word.

#pragma once

#include <cstdint>

#include "gpu.h"

namespace gpu {

using bf16 = uint16_t;

__device__ __forceinline__ float float_of(uint32_t bits) {
  union { uint32_t u; float f; } x;
  x.u = bits;
  return x.f;
}
__device__ __forceinline__ float low(uint32_t pair) { return float_of(pair << 16); }
__device__ __forceinline__ float high(uint32_t pair) { return float_of(pair & 0xffff0000u); }

}  // namespace gpu

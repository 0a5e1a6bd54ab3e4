// Launches the kernel of normal numbers.

#include "normal_kernel.h"

#include "normal_launch.h"

namespace normal {

cudaError_t fill(uint64_t key, int64_t count, float* out, cudaStream_t stream) {
  constexpr int64_t kOfBlock = 4 * kThreads;
  if (count > 0) numbers<<<unsigned((count + kOfBlock - 1) / kOfBlock), kThreads, 0, stream>>>(key, count, out);
  return cudaGetLastError();
}

}  // namespace normal

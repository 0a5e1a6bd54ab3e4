// The memory of a GPU, in a file of its own: where the header of the CUDA allocator is included, the compiler may inline its call of the
// CUDA runtime, which the trainer is not linked with.

#include "shim.h"

#include <c10/core/CachingDeviceAllocator.h>

extern "C" {

// Bytes of memory that a device has.
TorchError* vidtui_cuda_total(int device, int64_t* bytes) {
  return guarded([&] {
    c10::DeviceAllocator* allocator = c10::getDeviceAllocator(at::kCUDA);
    *bytes = static_cast<int64_t>(allocator->getMemoryInfo(static_cast<c10::DeviceIndex>(device)).second);
  });
}

}  // extern "C"

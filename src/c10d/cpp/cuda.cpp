// The C face of NCCL, and of what CUDA has beside tensors: memory, events, page-locked copies.
//
// Compiled with the feature `cuda`; without it no_cuda.cpp takes its place.

#include "shim.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <memory>

namespace {

// libtorch's own event, which needs no function of CUDA's here. This one keeps time.
struct EventHandle {
  c10::Event event{at::kCUDA, c10::EventFlag::BACKEND_DEFAULT};
};

}  // namespace

extern "C" {

int vidtui_cuda_built() {
  return 1;
}

char* vidtui_cuda_set_device(int index) {
  return guarded([&] { c10::cuda::set_device(static_cast<c10::DeviceIndex>(index)); });
}

// The communicator is made here, so that ranks meet now and not within their first collective.
char* vidtui_group_nccl(StoreHandle* store, const char* prefix, int rank, int size, int64_t timeout_ms, int device,
                        GroupHandle** out) {
  return guarded([&] {
    const at::Device place(at::kCUDA, static_cast<c10::DeviceIndex>(device));
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = Milliseconds(timeout_ms);
    options->group_name = prefix;
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), store->store);
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(prefixed, rank, size, options);
    backend->eagerConnectSingleDevice(place);
    *out = new GroupHandle{std::move(backend), 0, place};
  });
}

// Bytes of tensors on a device now, and at their most.
char* vidtui_cuda_memory(int device, int64_t* now, int64_t* peak) {
  return guarded([&] {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
    const auto& all = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    *now = all.current;
    *peak = all.peak;
  });
}

// A page-locked tensor on the host, of the size and dtype of `like`: copies to it need not wait.
char* vidtui_cuda_pinned(const at::Tensor* like, at::Tensor** out) {
  return guarded([&] {
    const auto options = at::TensorOptions().dtype(like->scalar_type()).device(at::kCPU).pinned_memory(true);
    *out = new at::Tensor(at::empty(like->sizes(), options));
  });
}

// Copies in the order of the current stream; an event tells when it is done.
char* vidtui_cuda_copy(const at::Tensor* to, const at::Tensor* from) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    to->copy_(*from, true);
  });
}

// An event on the current stream, after all that has been asked of it.
char* vidtui_cuda_event(EventHandle** out) {
  return guarded([&] {
    const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
    auto handle = std::make_unique<EventHandle>();
    handle->event.record(cuda.getStream(cuda.getDevice()));
    *out = handle.release();
  });
}

char* vidtui_cuda_event_wait(EventHandle* event) {
  return guarded([&] { event->event.synchronize(); });
}

// Both events must have come to pass.
char* vidtui_cuda_event_seconds(EventHandle* from, EventHandle* to, double* seconds) {
  return guarded([&] { *seconds = from->event.elapsedTime(to->event) / 1e3; });
}

void vidtui_cuda_event_drop(EventHandle* event) {
  char* error = guarded([&] { delete event; });
  std::free(error);
}

}  // extern "C"

// The C interface of NCCL, and of CUDA memory statistics, events and page-locked copies.
//
// Compiled with the feature `cuda`; no_cuda.cpp replaces it otherwise.

#include "shim.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

namespace {

// libtorch's device-independent event, so that this file calls no CUDA function. It records times.
struct EventHandle {
  c10::Event event{at::kCUDA, c10::EventFlag::BACKEND_DEFAULT};
};

// One of the streams for copies (CopyStream in ../src/cuda.rs), on the current device. All threads share it.
//
// libtorch has two pools of 32 streams for each device, of normal and of high priority, and hands out the streams of a pool in turn. Each
// batch and each save has a new thread. If each thread took a stream, it would soon share one with NCCL or with another kind of copies,
// and wait for their work. Therefore each kind takes its stream once, from the pool of high priority: NCCL's streams are from the other
// pool. CUDA ignores the priority of a stream in copies.
c10::Stream copy_stream(const c10::impl::VirtualGuardImpl& cuda, int number) {
  static std::mutex mutex;
  static std::map<std::pair<c10::DeviceIndex, int>, c10::Stream> streams;
  const std::lock_guard<std::mutex> lock(mutex);
  const c10::Device device = cuda.getDevice();
  const std::pair<c10::DeviceIndex, int> key(device.index(), number);
  auto found = streams.find(key);
  if (found == streams.end()) found = streams.emplace(key, cuda.getStreamFromGlobalPool(device, true)).first;
  return found->second;
}

}  // namespace

extern "C" {

int vidtui_cuda_version() {
  return CUDART_VERSION;
}

TorchError* vidtui_cuda_set_device(int index) {
  return guarded([&] { c10::cuda::set_device(static_cast<c10::DeviceIndex>(index)); });
}

// Throws the error of a device, if it has one.
TorchError* vidtui_cuda_check(int index) {
  return guarded([&] {
    const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
    (void)cuda.queryStream(cuda.getStream(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index))));
  });
}

// Creates the communicator here, so that ranks connect now and not in their first collective.
TorchError* vidtui_group_nccl(StoreHandle* store, const char* prefix, int rank, int size, int64_t timeout_ms, int device,
                        GroupHandle** out) {
  return guarded([&] {
    const at::Device place(at::kCUDA, static_cast<c10::DeviceIndex>(device));
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = Milliseconds(timeout_ms);
    options->group_name = prefix;
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), store->store);
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(prefixed, rank, size, options);
    backend->setGroupUid(prefix);
    backend->eagerConnectSingleDevice(place);
    *out = new GroupHandle{std::move(backend), 0, place};
  });
}

// Returns libtorch's record of the last collectives of NCCL groups as JSON.
TorchError* vidtui_collectives_nccl(char** out) {
  return guarded([&] { *out = copy_text(c10d::dump_nccl_trace_json(true, false).c_str()); });
}

// Bytes of tensors on a device, now and at their peak.
TorchError* vidtui_cuda_memory(int device, int64_t* now, int64_t* peak) {
  return guarded([&] {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
    const auto& all = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    *now = all.current;
    *peak = all.peak;
  });
}

// A page-locked host tensor with the size and dtype of `like`, for asynchronous copies.
TorchError* vidtui_cuda_pinned(const at::Tensor* like, at::Tensor** out) {
  return guarded([&] {
    const auto options = at::TensorOptions().dtype(like->scalar_type()).device(at::kCPU).pinned_memory(true);
    *out = new at::Tensor(at::empty(like->sizes(), options));
  });
}

// Enqueues a copy on the current stream; an event recorded later marks its end.
TorchError* vidtui_cuda_copy(const at::Tensor* to, const at::Tensor* from) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    to->copy_(*from, true);
  });
}

// Records an event after all work that is enqueued on the current stream.
TorchError* vidtui_cuda_event(EventHandle** out) {
  return guarded([&] {
    const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
    auto handle = std::make_unique<EventHandle>();
    handle->event.record(cuda.getStream(cuda.getDevice()));
    *out = handle.release();
  });
}

// Enqueues a copy on a stream for copies, after all work that is enqueued on the current stream, and returns an event after the copy. One
// of the tensors is in page-locked memory.
TorchError* vidtui_cuda_copy_beside(const at::Tensor* to, const at::Tensor* from, int stream, EventHandle** out) {
  return guarded([&] {
    const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
    const auto current = cuda.getStream(cuda.getDevice());
    const c10::Stream beside = copy_stream(cuda, stream);
    // The memory of a new tensor may belong to work that is still enqueued.
    c10::Event ready{at::kCUDA, c10::EventFlag::BACKEND_DEFAULT};
    ready.record(current);
    ready.block(beside);
    auto handle = std::make_unique<EventHandle>();
    {
      const c10::StreamGuard guard(beside);
      at::NoGradGuard no_grad;
      to->copy_(*from, true);
      handle->event.record(beside);
    }
    for (const at::Tensor* tensor : {to, from}) {
      if (tensor->is_cuda()) tensor->record_stream(beside);
    }
    *out = handle.release();
  });
}

// Lets the work that is enqueued later on the current stream wait for the event. The host does not wait.
TorchError* vidtui_cuda_event_block(EventHandle* event) {
  return guarded([&] {
    const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
    event->event.block(cuda.getStream(cuda.getDevice()));
  });
}

// Returns the state of the caching allocator of a device as JSON: totals, one object per segment, and the
// sizes of the largest tensors.
TorchError* vidtui_cuda_snapshot(int device, char** out) {
  return guarded([&] {
    namespace allocator = c10::cuda::CUDACachingAllocator;
    const auto index = static_cast<c10::DeviceIndex>(device);
    const auto stats = allocator::getDeviceStats(index);
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    std::ostringstream json;
    json << "{\"allocated\":" << stats.allocated_bytes[all].current << ",\"allocated_peak\":" << stats.allocated_bytes[all].peak
         << ",\"reserved\":" << stats.reserved_bytes[all].current << ",\"reserved_peak\":" << stats.reserved_bytes[all].peak
         << ",\"failed_allocations\":" << stats.num_ooms << ",\"segments\":[";
    const char* separator = "";
    std::vector<size_t> tensors;
    for (const auto& segment : allocator::snapshot().segments) {
      if (segment.device != index) continue;
      size_t largest = 0;
      for (const auto& block : segment.blocks) {
        if (!block.allocated && block.size > largest) largest = block.size;
        if (block.allocated) tensors.push_back(block.size);
      }
      json << separator << "{\"bytes\":" << segment.total_size << ",\"allocated\":" << segment.allocated_size
           << ",\"blocks\":" << segment.blocks.size() << ",\"largest_free\":" << largest << "}";
      separator = ",";
    }
    constexpr size_t kLargest = 16;
    std::sort(tensors.begin(), tensors.end(), std::greater<>());
    json << "],\"largest_tensors\":[";
    for (size_t i = 0; i < std::min(tensors.size(), kLargest); ++i) json << (i == 0 ? "" : ",") << tensors[i];
    json << "]}";
    *out = copy_text(json.str().c_str());
  });
}

TorchError* vidtui_cuda_event_wait(EventHandle* event) {
  return guarded([&] { event->event.synchronize(); });
}

// Both events must be complete.
TorchError* vidtui_cuda_event_seconds(EventHandle* from, EventHandle* to, double* seconds) {
  return guarded([&] { *seconds = from->event.elapsedTime(to->event) / 1e3; });
}

void vidtui_cuda_event_drop(EventHandle* event) {
  drop_error(guarded([&] { delete event; }));
}

}  // extern "C"

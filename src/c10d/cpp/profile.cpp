// libtorch's profiler: operators and named ranges of this process as a Chrome trace.

#include "shim.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <memory>
#include <set>

namespace profiler = torch::autograd::profiler;

struct ScopeHandle {
  at::RecordFunction scope{at::RecordScope::USER_SCOPE};
};

extern "C" {

// Starts to record the operators of the calling thread and of the autograd threads that it starts, with their kernels on a GPU.
TorchError* vidtui_profile_begin(int with_cuda) {
  return guarded([&] {
    const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO, /*report_input_shapes=*/true);
    std::set<profiler::ActivityType> activities{profiler::ActivityType::CPU};
    if (with_cuda != 0) activities.insert(profiler::ActivityType::CUDA);
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities);
  });
}

// Ends the recording and writes the trace.
TorchError* vidtui_profile_end(const char* path) {
  return guarded([&] { profiler::disableProfiler()->save(path); });
}

// Begins a named range of the calling thread, which is recorded while the profiler runs.
TorchError* vidtui_scope_begin(const char* name, ScopeHandle** out) {
  return guarded([&] {
    auto handle = std::make_unique<ScopeHandle>();
    if (handle->scope.isActive()) handle->scope.before(std::string(name));
    *out = handle.release();
  });
}

void vidtui_scope_end(ScopeHandle* scope) {
  drop_error(guarded([&] { delete scope; }));
}

}  // extern "C"

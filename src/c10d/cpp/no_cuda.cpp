// Replaces cuda.cpp in a build without CUDA: every call returns an error.

#include "shim.h"

struct EventHandle;

namespace {

TorchError* missing() {
  return missing_feature("this program was built without CUDA");
}

}  // namespace

extern "C" {

int vidtui_cuda_version() {
  return 0;
}

TorchError* vidtui_cuda_set_device(int) {
  return missing();
}

TorchError* vidtui_cuda_check(int) {
  return missing();
}

TorchError* vidtui_group_nccl(StoreHandle*, const char*, int, int, int64_t, int, GroupHandle**) {
  return missing();
}

TorchError* vidtui_collectives_nccl(char**) {
  return missing();
}

TorchError* vidtui_cuda_memory(int, int64_t*, int64_t*) {
  return missing();
}

TorchError* vidtui_cuda_pinned(const at::Tensor*, at::Tensor**) {
  return missing();
}

TorchError* vidtui_cuda_copy(const at::Tensor*, const at::Tensor*) {
  return missing();
}

TorchError* vidtui_cuda_event(EventHandle**) {
  return missing();
}

TorchError* vidtui_cuda_copy_beside(const at::Tensor*, const at::Tensor*, int, EventHandle**) {
  return missing();
}

TorchError* vidtui_cuda_event_block(EventHandle*) {
  return missing();
}

TorchError* vidtui_cuda_snapshot(int, char**) {
  return missing();
}

TorchError* vidtui_cuda_total(int, int64_t*) {
  return missing();
}

TorchError* vidtui_cuda_event_wait(EventHandle*) {
  return missing();
}

TorchError* vidtui_cuda_event_seconds(EventHandle*, EventHandle*, double*) {
  return missing();
}

void vidtui_cuda_event_drop(EventHandle*) {}

}  // extern "C"

// Replaces the files *_cuda.cpp in a build without CUDA.

#include "attention_cuda.h"
#include "scan_cuda.h"

namespace {

[[noreturn]] void missing() { TORCH_CHECK(false, "this program was built without CUDA"); }

}  // namespace

namespace scan_cuda {

bool supports(bool, int64_t, int64_t, int) { return false; }
at::Tensor plain(const at::Tensor&, size_t) { missing(); }
at::Tensor forward(const std::vector<at::Tensor>&, const TttShape&, std::vector<at::Tensor>*) { missing(); }
std::vector<at::Tensor> backward(const std::vector<at::Tensor>&, const TttShape&, const at::Tensor&) { missing(); }

}  // namespace scan_cuda

namespace attention_cuda {

int major(const at::Tensor&) { missing(); }
bool cudnn_can_run(const at::Tensor&, const at::Tensor&, const at::Tensor&) { missing(); }

}  // namespace attention_cuda

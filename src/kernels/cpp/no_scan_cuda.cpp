// Replaces scan_cuda.cpp in a build without CUDA.

#include "scan_cuda.h"

namespace scan_cuda {

namespace {

[[noreturn]] void missing() { TORCH_CHECK(false, "this program was built without CUDA, so it has no kernel of the TTT scan for GPUs"); }

}  // namespace

bool supports(bool, int64_t, int64_t, int) { return false; }
at::Tensor plain(const at::Tensor&, size_t) { missing(); }
at::Tensor forward(const std::vector<at::Tensor>&, const TttShape&, std::vector<at::Tensor>*) { missing(); }
std::vector<at::Tensor> backward(const std::vector<at::Tensor>&, const TttShape&, const at::Tensor&) { missing(); }

}  // namespace scan_cuda

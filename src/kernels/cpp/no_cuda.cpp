// Replaces the files *_cuda.cpp in a build without CUDA.

#include "attention_cuda.h"
#include "fused_cuda.h"
#include "normal_cuda.h"
#include "scan_cuda.h"

namespace {

[[noreturn]] void missing() { TORCH_CHECK(false, "this program was built without CUDA"); }

}  // namespace

namespace scan_cuda {

bool supports(bool, int64_t, int64_t, int) { return false; }
bool supports_clusters(bool, int64_t, int64_t, int) { return false; }
at::Tensor plain(const at::Tensor&, size_t) { missing(); }
at::Tensor forward(const std::vector<at::Tensor>&, const TttShape&, std::vector<at::Tensor>*) { missing(); }
std::vector<at::Tensor> backward(const std::vector<at::Tensor>&, const TttShape&, const at::Tensor&) { missing(); }

}  // namespace scan_cuda

namespace normal_cuda {

void fill(const at::Tensor&, uint64_t) { missing(); }

}  // namespace normal_cuda

namespace attention_cuda {

int major(const at::Tensor&) { missing(); }
bool cudnn_can_run(const at::Tensor&, const at::Tensor&, const at::Tensor&) { missing(); }

}  // namespace attention_cuda

namespace fused_cuda {

using at::Tensor;

bool supports(int64_t, int64_t, bool, int) { return false; }
bool can_run(const Tensor&, const std::vector<Tensor>&) { return false; }
std::vector<Tensor> modulated_norm(const std::vector<Tensor>&, int64_t, double) { missing(); }
std::vector<Tensor> modulated_norm_backward(const std::vector<Tensor>&, const Tensor&, int64_t, const std::vector<bool>&) { missing(); }
Tensor gated_add(const Tensor&, const Tensor&, const std::vector<Tensor>&, int64_t) { missing(); }
std::vector<Tensor> gated_add_backward(const Tensor&, const std::vector<Tensor>&, const Tensor&, int64_t, const std::vector<bool>&) {
  missing();
}
bool can_norm_heads(const Tensor&, const Tensor&, const Tensor&, const Tensor&) { return false; }
Tensor head_norm(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double) { missing(); }
std::vector<Tensor> head_norm_backward(const std::vector<Tensor>&, const Tensor&, double, const std::vector<bool>&) { missing(); }
bool can_rotate(const Tensor&, const Tensor&) { return false; }
Tensor rotate(const Tensor&, const Tensor&, bool) { missing(); }

}  // namespace fused_cuda

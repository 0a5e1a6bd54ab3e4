// The tensors of the TTT scan on GPUs. Compiled with the feature `cuda`; no_cuda.cpp replaces it otherwise.

#include "scan_cuda.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <tuple>

#include "../cuda/ttt.h"

namespace scan_cuda {

namespace {

using at::Tensor;

// The most bytes that the backward pass takes for recomputed values. More groups at a time keep more multiprocessors busy.
constexpr int64_t kMostKept = int64_t(1) << 30;

struct Sizes {
  ttt::Kind kind;
  int width, blocks;
  ttt::Shape shape;
};

// Chooses the blocks of a cluster once for each GPU and number of sequences, and logs a cluster to standard error.
int chosen_blocks(ttt::Kind kind, int width, const ttt::Shape& shape, int device) {
  static std::mutex lock;
  static std::map<std::tuple<int, ttt::Kind, int, int, int>, int> chosen;
  const std::lock_guard<std::mutex> guard(lock);
  const auto [entry, is_new] = chosen.try_emplace({device, kind, width, shape.mini_batch, shape.sequences}, 0);
  if (is_new) {
    entry->second = ttt::blocks_for(kind, width, shape, device);
    if (entry->second > 1) {
      fprintf(stderr, "TTT scans on GPU %d: a cluster of %d thread blocks for each of %d sequences\n", device, entry->second,
              shape.sequences);
    }
  }
  return entry->second;
}

Sizes sizes_of(const TttShape& s, int device) {
  const auto number = [](int64_t n) {
    TORCH_CHECK(n <= std::numeric_limits<int>::max(), "a TTT scan of ", n, " is too long for the kernel");
    return static_cast<int>(n);
  };
  TORCH_CHECK(s.width % 16 == 0 && s.width <= 64, "the CUDA kernel of the TTT scan has head widths of 16, 32, 48 and 64, not ", s.width,
              ": the registers of a multiprocessor do not hold the state of a wider head");
  const ttt::Kind kind = s.hidden > 0 ? ttt::Kind::Mlp : ttt::Kind::Linear;
  const ttt::Shape shape{number(s.sequences), number(s.heads), number(s.length), number(s.mini_batch), number(s.group), s.eps};
  const int blocks = s.blocks == 0 ? chosen_blocks(kind, number(s.width), shape, device) : number(s.blocks);
  TORCH_CHECK(blocks == 1 || ttt::supports_clusters(kind, number(s.width), blocks, device), "the CUDA kernel of the TTT scan has no ",
              "clusters of ", blocks, " blocks for this GPU and a head width of ", s.width);
  return {kind, number(s.width), blocks, shape};
}

const ttt::bf16* tokens(const Tensor& t) { return reinterpret_cast<const ttt::bf16*>(t.const_data_ptr<at::BFloat16>()); }
ttt::bf16* token_room(const Tensor& t) { return reinterpret_cast<ttt::bf16*>(t.mutable_data_ptr<at::BFloat16>()); }
const float* numbers(const Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }
float* room(const Tensor& t) { return t.defined() ? t.mutable_data_ptr<float>() : nullptr; }

// The linear kind has only the outer layer, whose weights are W1 and b1.
size_t outer(const TttShape& s) { return s.hidden > 0 ? 8 : 6; }

ttt::Inputs inputs_of(const std::vector<Tensor>& x, const TttShape& s) {
  const bool mlp = s.hidden > 0;
  const size_t at = outer(s);
  return {tokens(x[0]),  tokens(x[1]),
          tokens(x[2]),  numbers(x[3]),
          numbers(x[4]), numbers(x[5]),
          mlp ? numbers(x[6]) : nullptr, mlp ? numbers(x[7]) : nullptr,
          numbers(x[at]), numbers(x[at + 1])};
}

void check(cudaError_t error, const char* doing) {
  TORCH_CHECK(error == cudaSuccess, "CUDA error in the ", doing, " of the TTT scan: ", cudaGetErrorString(error));
}

}  // namespace

bool supports(bool mlp, int64_t width, int64_t mini_batch, int device) {
  const ttt::Kind kind = mlp ? ttt::Kind::Mlp : ttt::Kind::Linear;
  return ttt::supports(kind, static_cast<int>(width), static_cast<int>(mini_batch), device) && at::cuda::warp_size() == 32;
}

bool supports_clusters(bool mlp, int64_t width, int64_t blocks, int device) {
  return ttt::supports_clusters(mlp ? ttt::Kind::Mlp : ttt::Kind::Linear, static_cast<int>(width), static_cast<int>(blocks), device);
}

Tensor plain(const Tensor& t, size_t index) {
  if (!t.defined()) return t;
  const Tensor contiguous = t.to(index < 3 ? at::kBFloat16 : at::kFloat).contiguous();
  const bool aligned = reinterpret_cast<uintptr_t>(contiguous.const_data_ptr()) % 16 == 0;
  return aligned ? contiguous : contiguous.clone();
}

Tensor forward(const std::vector<Tensor>& x, const TttShape& s, std::vector<Tensor>* states) {
  const c10::cuda::CUDAGuard guard(x[0].device());
  // The call of a function of libtorch_cuda makes the linker keep that library, which has libtorch's operators for GPUs.
  TORCH_CHECK(at::cuda::warp_size() == 32, "the CUDA kernel of the TTT scan is for warps of 32 threads");
  const Sizes sizes = sizes_of(s, x[0].device().index());
  const Tensor out = at::empty({s.sequences, s.length, s.width}, x[0].options());
  float* saved = nullptr;
  if (states != nullptr) {
    states->push_back(at::empty({ttt::saved_size(sizes.kind, sizes.width, sizes.shape)}, x[3].options()));
    saved = room(states->back());
  }
  const auto stream = c10::cuda::getCurrentCUDAStream().stream();
  check(ttt::forward(sizes.kind, sizes.width, sizes.blocks, sizes.shape, inputs_of(x, s), token_room(out), saved, stream),
        "forward pass");
  return out;
}

std::vector<Tensor> backward(const std::vector<Tensor>& x, const TttShape& s, const Tensor& grad_out) {
  const c10::cuda::CUDAGuard guard(x[0].device());
  const Sizes sizes = sizes_of(s, x[0].device().index());
  const Tensor pull = plain(grad_out, 0);
  std::vector<Tensor> g;
  for (size_t i = 0; i < kTensors; ++i) {
    // The first four are per sequence. The others are per head, with one row per sequence until they are summed below.
    std::vector<int64_t> size = x[i].defined() ? x[i].sizes().vec() : std::vector<int64_t>();
    if (i >= 4 && x[i].defined()) size[0] = s.sequences;
    g.push_back(x[i].defined() ? at::empty(size, x[i].options()) : Tensor());
  }
  const int64_t all_groups = (s.length / s.mini_batch + s.group - 1) / s.group;
  const int64_t of_one = ttt::workspace_size(sizes.kind, sizes.width, sizes.shape, 1).kept;
  const int groups = static_cast<int>(std::clamp<int64_t>(kMostKept / std::max<int64_t>(of_one, 1), 1, all_groups));
  const ttt::WorkspaceSize work_size = ttt::workspace_size(sizes.kind, sizes.width, sizes.shape, groups);
  const Tensor kept = at::empty({work_size.kept}, x[3].options().dtype(at::kByte));
  const Tensor norm = at::empty({work_size.norm}, x[3].options());
  const Tensor carried = at::empty({work_size.carried}, x[3].options());
  const ttt::Workspace work{numbers(x[kTensors]), reinterpret_cast<char*>(kept.mutable_data_ptr<uint8_t>()), room(norm),
                            room(carried)};
  const bool mlp = s.hidden > 0;
  const size_t at = outer(s);
  const ttt::Grads grads{token_room(g[0]), token_room(g[1]), token_room(g[2]), room(g[3]), room(g[4]), room(g[5]),
                         mlp ? room(g[6]) : nullptr, mlp ? room(g[7]) : nullptr, room(g[at]), room(g[at + 1])};
  const auto stream = c10::cuda::getCurrentCUDAStream().stream();
  check(ttt::backward(sizes.kind, sizes.width, sizes.blocks, sizes.shape, inputs_of(x, s), tokens(pull), work, groups, grads, stream),
        "backward pass");
  sum_over_samples(g, s);
  return g;
}

}  // namespace scan_cuda

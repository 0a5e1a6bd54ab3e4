// The tensors of the fused operators on GPUs. Compiled with the feature `cuda`; no_cuda.cpp replaces it otherwise.

#include "fused_cuda.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <limits>

#include "../cuda/fused_launch.h"

namespace fused_cuda {

namespace {

using at::Tensor;

fused::Type type_of(const Tensor& x) { return x.scalar_type() == at::kBFloat16 ? fused::Type::Bf16 : fused::Type::Float; }

bool has_type(const Tensor& x) { return x.is_cuda() && (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat); }

bool is_aligned(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0; }

// The tensor as the kernels read tokens: contiguous and aligned to 16 bytes.
Tensor plain(const Tensor& t) {
  const Tensor contiguous = t.contiguous();
  return is_aligned(contiguous) ? contiguous : contiguous.clone();
}

bool fits(int64_t rows, int64_t width, const Tensor& x) {
  const int64_t most = std::numeric_limits<int>::max();
  return rows > 0 && rows < most && width < most && fused::fits(type_of(x), static_cast<int>(width));
}

fused::Rows rows_of(const Tensor& x, int64_t split) {
  const auto number = [](int64_t n) { return static_cast<int>(n); };
  return {number(x.size(0)), number(x.size(1)), number(split), number(x.numel() / x.size(0) / x.size(1))};
}

fused::Vector vector_of(const Tensor& t) { return {t.const_data_ptr(), t.dim() == 1 ? 0 : t.stride(0)}; }

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

void check(cudaError_t error, const char* doing) {
  TORCH_CHECK(error == cudaSuccess, "CUDA error in the ", doing, ": ", cudaGetErrorString(error));
}

fused::Norm norm_of(const std::vector<Tensor>& x, double eps) {
  return {x[0].const_data_ptr(), x[1].const_data_ptr(), x[2].const_data_ptr(), {vector_of(x[3]), vector_of(x[5])},
          {vector_of(x[4]), vector_of(x[6])}, static_cast<float>(eps)};
}

void* room(const Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; }

// Room for the gradient of a vector.
Tensor room_like(const Tensor& vector) { return at::empty(vector.sizes(), vector.options()); }

Tensor sums_for(const Tensor& x, const fused::Rows& rows) {
  return at::empty({fused::sums_size(rows)}, x.options().dtype(at::kFloat));
}

}  // namespace

bool supports(int64_t width, int64_t head_width, bool is_bf16, int device) {
  const fused::Type type = is_bf16 ? fused::Type::Bf16 : fused::Type::Float;
  const auto has = [&](int64_t of) { return of <= fused::kMostWidth && fused::fits(type, static_cast<int>(of)); };
  return has(width) && has(head_width) && fused::runs_on(device);
}

bool can_run(const Tensor& x, const std::vector<Tensor>& vectors) {
  if (!has_type(x) || x.dim() != 3 || x.size(2) > fused::kMostWidth || !fits(x.size(0) * x.size(1), x.size(2), x)) return false;
  for (const Tensor& t : vectors) {
    const bool has_shape = (t.dim() == 1 || (t.dim() == 3 && t.size(0) == x.size(0) && t.size(1) == 1)) && t.size(-1) == x.size(2);
    // The gradient of an expanded vector has one row for each sample, which the kernels do not write.
    const bool is_expanded = t.dim() == 3 && t.size(0) > 1 && t.stride(0) == 0;
    const bool is_read_in_pieces = t.stride(-1) == 1 && is_aligned(t) && (t.dim() == 1 || t.stride(0) * t.element_size() % 16 == 0);
    if (t.device() != x.device() || t.scalar_type() != x.scalar_type() || !has_shape || is_expanded) return false;
    if (!is_read_in_pieces) return false;
  }
  return true;
}

std::vector<Tensor> modulated_norm(const std::vector<Tensor>& given, int64_t split, double eps) {
  const c10::cuda::CUDAGuard guard(given[0].device());
  std::vector<Tensor> x = given;
  x[0] = plain(x[0]);
  const fused::Rows rows = rows_of(x[0], split);
  const Tensor out = at::empty_like(x[0]);
  const Tensor mean = at::empty({x[0].size(0), x[0].size(1)}, out.options().dtype(at::kFloat)), inverse = at::empty_like(mean);
  const fused::Statistics kept{mean.mutable_data_ptr<float>(), inverse.mutable_data_ptr<float>()};
  check(fused::modulated_norm(type_of(out), rows, norm_of(x, eps), room(out), kept, stream()), "norm and modulation");
  return {out, mean, inverse};
}

std::vector<Tensor> modulated_norm_backward(const std::vector<Tensor>& given, const Tensor& grad, int64_t split,
                                            const std::vector<bool>& wanted) {
  const c10::cuda::CUDAGuard guard(given[0].device());
  std::vector<Tensor> x = given;
  x[0] = plain(x[0]);
  const Tensor dy = plain(grad);
  const fused::Rows rows = rows_of(x[0], split);
  std::vector<Tensor> grads(7);
  bool wants_vector = false;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!wanted[i]) continue;
    grads[i] = i == 0 ? at::empty_like(x[0]) : room_like(x[i]);
    wants_vector = wants_vector || i > 0;
  }
  const Tensor sums = wants_vector ? sums_for(x[0], rows) : Tensor();
  const fused::Statistics kept{x[7].mutable_data_ptr<float>(), x[8].mutable_data_ptr<float>()};
  const fused::VectorGrads of_vectors{room(grads[1]), room(grads[2]), {room(grads[3]), room(grads[5])}, {room(grads[4]), room(grads[6])}};
  check(fused::modulated_norm_backward(type_of(dy), rows, norm_of(x, 0), kept, dy.const_data_ptr(), room(grads[0]),
                                       static_cast<float*>(room(sums)), of_vectors, stream()),
        "backward pass of norm and modulation");
  return grads;
}

Tensor gated_add(const Tensor& x, const Tensor& update, const std::vector<Tensor>& gates, int64_t split) {
  const c10::cuda::CUDAGuard guard(x.device());
  const Tensor from = plain(x), added = plain(update), out = at::empty_like(from);
  const fused::Vector vectors[2] = {vector_of(gates[0]), vector_of(gates[1])};
  check(fused::gated_add(type_of(x), rows_of(x, split), from.const_data_ptr(), added.const_data_ptr(), vectors, room(out), stream()),
        "gated sum");
  return out;
}

std::vector<Tensor> gated_add_backward(const Tensor& update, const std::vector<Tensor>& gates, const Tensor& grad, int64_t split,
                                       const std::vector<bool>& wanted) {
  const c10::cuda::CUDAGuard guard(grad.device());
  const Tensor dy = plain(grad), added = update.defined() ? plain(update) : update;
  const fused::Rows rows = rows_of(dy, split);
  std::vector<Tensor> grads(3);
  if (wanted[0]) grads[0] = at::empty_like(dy);
  for (size_t i = 1; i < 3; ++i) {
    if (wanted[i]) grads[i] = room_like(gates[i - 1]);
  }
  const Tensor sums = wanted[1] || wanted[2] ? sums_for(dy, rows) : Tensor();
  const fused::Vector vectors[2] = {vector_of(gates[0]), vector_of(gates[1])};
  const fused::VectorGrads of_gates{nullptr, nullptr, {nullptr, nullptr}, {room(grads[1]), room(grads[2])}};
  check(fused::gated_add_backward(type_of(dy), rows, added.defined() ? added.const_data_ptr() : nullptr, vectors, dy.const_data_ptr(),
                                  room(grads[0]), static_cast<float*>(room(sums)), of_gates, stream()),
        "backward pass of a gated sum");
  return grads;
}

bool can_norm_heads(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& factors) {
  if (!has_type(x) || x.dim() != 4 || !fits(x.size(0) * x.size(1), x.size(2) * x.size(3), x)) return false;
  if (!fused::fits_head(type_of(x), static_cast<int>(x.size(3)))) return false;
  for (const Tensor& t : {gain, bias}) {
    const bool has_shape = t.dim() == 1 && t.size(0) == x.size(3) && t.is_contiguous() && is_aligned(t);
    if (!has_shape || t.device() != x.device() || t.scalar_type() != x.scalar_type()) return false;
  }
  return !factors.defined() || can_rotate(x, factors);
}

namespace {

fused::HeadNorm head_norm_of(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& factors, double eps) {
  const auto* numbers = factors.defined() ? static_cast<const float*>(factors.const_data_ptr()) : nullptr;
  return {x.const_data_ptr(), gain.const_data_ptr(), bias.const_data_ptr(), numbers, static_cast<int>(x.size(3)),
          static_cast<float>(eps)};
}

}  // namespace

Tensor head_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& factors, double eps) {
  const c10::cuda::CUDAGuard guard(x.device());
  const Tensor from = plain(x), out = at::empty_like(from);
  check(fused::head_norm(type_of(x), rows_of(x, 0), head_norm_of(from, gain, bias, factors, eps), room(out), stream()), "norm of heads");
  return out;
}

std::vector<Tensor> head_norm_backward(const std::vector<Tensor>& x, const Tensor& grad, double eps, const std::vector<bool>& wanted) {
  const c10::cuda::CUDAGuard guard(grad.device());
  const Tensor from = plain(x[0]), dy = plain(grad);
  std::vector<Tensor> grads(3);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (wanted[i]) grads[i] = at::empty_like(i == 0 ? from : x[i]);
  }
  const bool wants_vector = wanted[1] || wanted[2];
  const int64_t numbers = wants_vector ? fused::head_sums_size(static_cast<int>(from.size(3))) : 0;
  const Tensor sums = wants_vector ? at::empty({numbers}, from.options().dtype(at::kFloat)) : Tensor();
  check(fused::head_norm_gradients(type_of(dy), rows_of(from, 0), head_norm_of(from, x[1], x[2], x[3], eps), dy.const_data_ptr(),
                                   room(grads[0]), static_cast<float*>(room(sums)), room(grads[1]), room(grads[2]), stream()),
        "backward pass of the norm of heads");
  return grads;
}

bool can_rotate(const Tensor& x, const Tensor& factors) {
  const bool has_shape = x.dim() == 4 && factors.dim() == 2 && factors.size(0) == x.size(1) && factors.size(1) * 2 == x.size(3);
  const bool has_factors = factors.device() == x.device() && factors.scalar_type() == at::kComplexFloat && factors.is_contiguous();
  // A piece of 16 bytes lies in one head, and a head's factors start at 16 bytes.
  return has_type(x) && has_shape && has_factors && is_aligned(factors) && fits(x.size(0) * x.size(1), x.size(3), x);
}

Tensor rotate(const Tensor& x, const Tensor& factors, bool back) {
  const c10::cuda::CUDAGuard guard(x.device());
  const Tensor from = plain(x), out = at::empty_like(from);
  const auto* numbers = static_cast<const float*>(factors.const_data_ptr());
  check(fused::rotate(type_of(x), rows_of(x, 0), static_cast<int>(x.size(3)), from.const_data_ptr(), numbers, back ? -1.0f : 1.0f,
                      room(out), stream()),
        "rotary embedding");
  return out;
}

}  // namespace fused_cuda

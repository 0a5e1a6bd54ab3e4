// Norm with modulation, and gate with residual, as autograd functions that keep few whole-width tensors. ../src/fused.rs has the formulas.

#include "interface.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One of the two parts of a sequence [B, L, D]: the first `split` tokens, or the others.
Tensor part(const Tensor& x, int64_t split, size_t which) {
  return which == 0 ? x.narrow(1, 0, split) : x.narrow(1, split, x.size(1) - split);
}

// The gradient of a vector that is the same for many tokens.
Tensor sum_to_vector(const Tensor& grad, const Tensor& vector) { return at::sum_to(grad, vector.sizes()); }

struct ModulatedNorm : torch::autograd::Function<ModulatedNorm> {
  // Their order among the tensors: x, gain, bias, then shift and scale of each part.
  static constexpr size_t kShift[2] = {3, 5}, kScale[2] = {4, 6}, kArguments = 9;

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& shift0,
                        const Tensor& scale0, const Tensor& shift1, const Tensor& scale1, int64_t split, double eps) {
    auto [out, mean, rstd] = at::native_layer_norm(x, {x.size(-1)}, gain, bias, eps);
    const Tensor *shifts[2] = {&shift0, &shift1}, *scales[2] = {&scale0, &scale1};
    for (size_t i = 0; i < 2; ++i) {
      // In the place of the norm's output, which no other code needs.
      Tensor to = part(out, split, i);
      at::addcmul_out(to, *shifts[i], to, *scales[i] + 1);
    }
    ctx->save_for_backward({x, gain, bias, shift0, scale0, shift1, scale1, mean, rstd});
    ctx->saved_data["split"] = split;
    ctx->saved_data["eps"] = eps;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &gain = saved[1], &bias = saved[2], &grad = grad_outputs[0];
    const int64_t split = ctx->saved_data["split"].toInt(), width[] = {x.size(-1)};
    variable_list grads(kArguments);
    if (ctx->needs_input_grad(kScale[0]) || ctx->needs_input_grad(kScale[1])) {
      const Tensor normed = std::get<0>(at::native_layer_norm(x, width, gain, bias, ctx->saved_data["eps"].toDouble()));
      for (size_t i = 0; i < 2; ++i) {
        if (!ctx->needs_input_grad(kScale[i])) continue;
        grads[kScale[i]] = sum_to_vector(part(normed, split, i).mul_(part(grad, split, i)), saved[kScale[i]]);
      }
    }
    for (size_t i = 0; i < 2; ++i) {
      if (ctx->needs_input_grad(kShift[i])) grads[kShift[i]] = sum_to_vector(part(grad, split, i), saved[kShift[i]]);
    }
    const std::array<bool, 3> wanted = {ctx->needs_input_grad(0), ctx->needs_input_grad(1), ctx->needs_input_grad(2)};
    if (wanted[0] || wanted[1] || wanted[2]) {
      const Tensor of_normed = at::empty_like(x);
      for (size_t i = 0; i < 2; ++i) {
        Tensor to = part(of_normed, split, i);
        at::mul_out(to, part(grad, split, i), saved[kScale[i]] + 1);
      }
      std::tie(grads[0], grads[1], grads[2]) =
          at::native_layer_norm_backward(of_normed, x, width, saved[7], saved[8], gain, bias, wanted);
    }
    return grads;
  }
};

struct GatedAdd : torch::autograd::Function<GatedAdd> {
  // Their order among the tensors: x, update, then the gate of each part.
  static constexpr size_t kGate[2] = {2, 3}, kArguments = 5;

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& update, const Tensor& gate0, const Tensor& gate1,
                        int64_t split) {
    const Tensor out = at::empty_like(x);
    const Tensor* gates[2] = {&gate0, &gate1};
    for (size_t i = 0; i < 2; ++i) {
      Tensor to = part(out, split, i);
      at::addcmul_out(to, part(x, split, i), *gates[i], part(update, split, i));
    }
    ctx->save_for_backward({gate0.requires_grad() || gate1.requires_grad() ? update : Tensor(), gate0, gate1});
    ctx->saved_data["split"] = split;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &update = saved[0], &grad = grad_outputs[0];
    const Tensor* gates[2] = {&saved[1], &saved[2]};
    const int64_t split = ctx->saved_data["split"].toInt();
    variable_list grads(kArguments);
    if (ctx->needs_input_grad(0)) grads[0] = grad;
    if (ctx->needs_input_grad(1)) grads[1] = at::empty_like(grad);
    for (size_t i = 0; i < 2; ++i) {
      const Tensor pull = part(grad, split, i);
      if (ctx->needs_input_grad(kGate[i])) grads[kGate[i]] = sum_to_vector(pull * part(update, split, i), *gates[i]);
      if (!ctx->needs_input_grad(1)) continue;
      Tensor to = part(grads[1], split, i);
      at::mul_out(to, pull, *gates[i]);
    }
    return grads;
  }
};

}  // namespace

extern "C" {

// `vectors`: shift and scale of the first `split` tokens, then of the others.
char* vidtui_modulated_norm(const Tensor* x, const Tensor* gain, const Tensor* bias, const Tensor* const* vectors, int64_t split,
                            double eps, Tensor** out) {
  return guarded([&] {
    *out = new Tensor(ModulatedNorm::apply(*x, *gain, *bias, *vectors[0], *vectors[1], *vectors[2], *vectors[3], split, eps));
  });
}

// `gates`: the gate of the first `split` tokens, and of the others.
char* vidtui_gated_add(const Tensor* x, const Tensor* update, const Tensor* const* gates, int64_t split, Tensor** out) {
  return guarded([&] { *out = new Tensor(GatedAdd::apply(*x, *update, *gates[0], *gates[1], split)); });
}
}

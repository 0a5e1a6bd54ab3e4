// Norm with modulation, gate with residual, and rotary embedding as autograd functions that keep few whole-width tensors: on ATen's
// operators, or on the CUDA kernels. ../src/fused.rs has the formulas.

#include "fused_cuda.h"
#include "interface.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

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

// Whether the tensors `first` to `last` need gradients.
std::vector<bool> wanted_of(AutogradContext* ctx, size_t first, size_t last) {
  std::vector<bool> wanted;
  for (size_t i = first; i < last; ++i) wanted.push_back(ctx->needs_input_grad(i));
  return wanted;
}

struct ModulatedNorm : torch::autograd::Function<ModulatedNorm> {
  // Their order among the tensors: x, gain, bias, then shift and scale of each part.
  static constexpr size_t kShift[2] = {3, 5}, kScale[2] = {4, 6}, kTensors = 7, kArguments = 10;

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& shift0,
                        const Tensor& scale0, const Tensor& shift1, const Tensor& scale1, int64_t split, double eps,
                        bool on_kernel) {
    variable_list kept{x, gain, bias, shift0, scale0, shift1, scale1};
    ctx->saved_data["split"] = split;
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["on_kernel"] = on_kernel;
    if (on_kernel) {
      const variable_list made = fused_cuda::modulated_norm(kept, split, eps);
      kept.insert(kept.end(), made.begin() + 1, made.end());
      ctx->save_for_backward(kept);
      return made[0];
    }
    auto [out, mean, rstd] = at::native_layer_norm(x, {x.size(-1)}, gain, bias, eps);
    const Tensor *shifts[2] = {&shift0, &shift1}, *scales[2] = {&scale0, &scale1};
    for (size_t i = 0; i < 2; ++i) {
      // In the place of the norm's output, which no other code needs.
      Tensor to = part(out, split, i);
      at::addcmul_out(to, *shifts[i], to, *scales[i] + 1);
    }
    kept.insert(kept.end(), {mean, rstd});
    ctx->save_for_backward(kept);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &gain = saved[1], &bias = saved[2], &grad = grad_outputs[0];
    const int64_t split = ctx->saved_data["split"].toInt(), width[] = {x.size(-1)};
    if (ctx->saved_data["on_kernel"].toBool()) {
      variable_list grads = fused_cuda::modulated_norm_backward(saved, grad, split, wanted_of(ctx, 0, kTensors));
      grads.resize(kArguments);
      return grads;
    }
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
  static constexpr size_t kGate[2] = {2, 3}, kTensors = 4, kArguments = 6;

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& update, const Tensor& gate0, const Tensor& gate1,
                        int64_t split, bool on_kernel) {
    ctx->save_for_backward({gate0.requires_grad() || gate1.requires_grad() ? update : Tensor(), gate0, gate1});
    ctx->saved_data["split"] = split;
    ctx->saved_data["on_kernel"] = on_kernel;
    if (on_kernel) return fused_cuda::gated_add(x, update, {gate0, gate1}, split);
    const Tensor out = at::empty_like(x);
    const Tensor* gates[2] = {&gate0, &gate1};
    for (size_t i = 0; i < 2; ++i) {
      Tensor to = part(out, split, i);
      at::addcmul_out(to, part(x, split, i), *gates[i], part(update, split, i));
    }
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &update = saved[0], &grad = grad_outputs[0];
    const Tensor* gates[2] = {&saved[1], &saved[2]};
    const int64_t split = ctx->saved_data["split"].toInt();
    variable_list grads(kArguments);
    if (ctx->needs_input_grad(0)) grads[0] = grad;
    if (ctx->saved_data["on_kernel"].toBool()) {
      const variable_list others =
          fused_cuda::gated_add_backward(update, {saved[1], saved[2]}, grad, split, wanted_of(ctx, 1, kTensors));
      std::copy(others.begin(), others.end(), grads.begin() + 1);
      return grads;
    }
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

// Rotates adjacent pairs of numbers [B, L, heads, F] by complex factors [L, F/2], in fp32; or back, by the conjugate factors.
Tensor rotated(const Tensor& x, const Tensor& factors, bool back, bool on_kernel) {
  if (on_kernel) return fused_cuda::rotate(x, factors, back);
  const Tensor pairs = at::view_as_complex(x.to(at::kFloat).reshape({x.size(0), x.size(1), x.size(2), x.size(3) / 2, 2}));
  const Tensor by = (back ? factors.conj() : factors).unsqueeze(1);
  return at::view_as_real(pairs * by).flatten(3, 4).to(x.scalar_type());
}

struct Rotate : torch::autograd::Function<Rotate> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& factors, bool on_kernel) {
    ctx->save_for_backward({factors});
    ctx->saved_data["on_kernel"] = on_kernel;
    return rotated(x, factors, false, on_kernel);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    return {rotated(grad_outputs[0], saved[0], true, ctx->saved_data["on_kernel"].toBool()), Tensor(), Tensor()};
  }
};

// A LayerNorm over the numbers of each head, then a rotation if there are factors, on the CUDA kernels.
struct HeadNorm : torch::autograd::Function<HeadNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& gain, const Tensor& bias, const Maybe& factors, double eps) {
    const Tensor by = factors.value_or(Tensor());
    ctx->save_for_backward({x, gain, bias, by});
    ctx->saved_data["eps"] = eps;
    return fused_cuda::head_norm(x, gain, bias, by, eps);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const double eps = ctx->saved_data["eps"].toDouble();
    variable_list grads = fused_cuda::head_norm_backward(ctx->get_saved_variables(), grad_outputs[0], eps, wanted_of(ctx, 0, 3));
    grads.resize(5);
    return grads;
  }
};

}  // namespace

extern "C" {

// Whether this program has the CUDA kernels and a GPU can run them for tokens of this width in heads of this width.
int vidtui_fused_supports(int64_t width, int64_t head_width, bool is_bf16, int device) {
  return fused_cuda::supports(width, head_width, is_bf16, device) ? 1 : 0;
}

// `vectors`: shift and scale of the first `split` tokens, then of the others.
TorchError* vidtui_modulated_norm(const Tensor* x, const Tensor* gain, const Tensor* bias, const Tensor* const* vectors, int64_t split,
                            double eps, bool prefers_kernel, Tensor** out) {
  return guarded([&] {
    const Tensor &a = *vectors[0], &b = *vectors[1], &c = *vectors[2], &d = *vectors[3];
    const bool on_kernel = prefers_kernel && fused_cuda::can_run(*x, {*gain, *bias, a, b, c, d});
    *out = new Tensor(ModulatedNorm::apply(*x, *gain, *bias, a, b, c, d, split, eps, on_kernel));
  });
}

// `gates`: the gate of the first `split` tokens, and of the others.
TorchError* vidtui_gated_add(const Tensor* x, const Tensor* update, const Tensor* const* gates, int64_t split, bool prefers_kernel,
                       Tensor** out) {
  return guarded([&] {
    const bool on_kernel = prefers_kernel && x->scalar_type() == update->scalar_type() && fused_cuda::can_run(*x, {*gates[0], *gates[1]});
    *out = new Tensor(GatedAdd::apply(*x, *update, *gates[0], *gates[1], split, on_kernel));
  });
}

// `factors` is null for heads that are not rotated.
TorchError* vidtui_head_norm(const Tensor* x, const Tensor* gain, const Tensor* bias, const Tensor* factors, double eps, bool prefers_kernel,
                       Tensor** out) {
  return guarded([&] {
    const Maybe by = given(factors);
    if (prefers_kernel && fused_cuda::can_norm_heads(*x, *gain, *bias, by.value_or(Tensor()))) {
      *out = new Tensor(HeadNorm::apply(*x, *gain, *bias, by, eps));
      return;
    }
    const Tensor normed = at::layer_norm(*x, {x->size(-1)}, *gain, *bias, eps);
    const bool on_kernel = by && prefers_kernel && fused_cuda::can_rotate(normed, *by);
    *out = new Tensor(by ? Rotate::apply(normed, *by, on_kernel) : normed);
  });
}

TorchError* vidtui_rotate(const Tensor* x, const Tensor* factors, bool prefers_kernel, Tensor** out) {
  return guarded([&] {
    const bool on_kernel = prefers_kernel && fused_cuda::can_rotate(*x, *factors);
    *out = new Tensor(Rotate::apply(*x, *factors, on_kernel));
  });
}
}

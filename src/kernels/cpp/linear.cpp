// A linear layer whose fp32 products on the CPU are oneDNN's.

#include "interface.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string_view>
#include <vector>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Smaller products take longer to dispatch to oneDNN than they save.
constexpr int64_t kLeastMultiplications = 1 << 20;

using Scalars = c10::List<std::optional<at::Scalar>>;
using Pointwise = Tensor(const Tensor&, const Tensor&, const Maybe&, std::string_view, Scalars,
                         std::optional<std::string_view>);

// libtorch's oneDNN layer, if this build has one. It takes plain tensors and has no gradient.
const std::optional<c10::TypedOperatorHandle<Pointwise>>& onednn() {
  static const auto found = [] {
    std::optional<c10::TypedOperatorHandle<Pointwise>> typed;
    const auto handle = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (handle && at::globalContext().userEnabledMkldnn()) typed = handle->typed<Pointwise>();
    return typed;
  }();
  return found;
}

bool uses_onednn(const Tensor& x, const Tensor& w) {
  return x.device().is_cpu() && x.scalar_type() == at::kFloat && w.scalar_type() == at::kFloat && w.size(0) > 0 &&
         x.numel() * w.size(0) >= kLeastMultiplications && onednn().has_value();
}

// x [..., in], w [out, in], b [out]. The result is no view, so callers may change it in place.
Tensor product(const Tensor& x, const Tensor& w, const Maybe& b) {
  if (!uses_onednn(x, w)) return at::linear(x, w, b);
  std::vector<int64_t> size = x.sizes().vec();
  size.back() = w.size(0);
  return at::_unsafe_view(onednn()->call(x.reshape({-1, x.size(-1)}), w, b, "none", Scalars(), std::nullopt), size);
}

Tensor zeros(const Tensor& x, const Tensor& w) {
  std::vector<int64_t> size = x.sizes().vec();
  size.back() = w.size(0);
  return at::zeros(size, x.options());
}

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& w, const Maybe& b, bool only_gradients) {
    ctx->save_for_backward({w.requires_grad() ? x : Tensor(), x.requires_grad() ? w : Tensor()});
    ctx->saved_data["bias"] = b && b->requires_grad();
    return only_gradients ? zeros(x, w) : product(x, w, b);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &w = saved[1], &grad = grad_outputs[0];
    variable_list grads(4);
    if (ctx->needs_input_grad(0)) grads[0] = product(grad, w.t(), {});
    const Tensor rows = grad.reshape({-1, grad.size(-1)});
    if (ctx->needs_input_grad(1)) grads[1] = product(rows.t(), x.reshape({-1, x.size(-1)}).t(), {});
    if (ctx->saved_data["bias"].toBool()) grads[2] = rows.sum(0);
    return grads;
  }
};

}  // namespace

extern "C" {

// `b` may be null. With `only_gradients`, the output is zero.
TorchError* vidtui_linear(const Tensor* x, const Tensor* w, const Tensor* b, bool only_gradients, Tensor** out) {
  return guarded([&] {
    const Maybe bias = given(b);
    const bool graph = at::GradMode::is_enabled() &&
                       (x->requires_grad() || w->requires_grad() || (bias && bias->requires_grad()));
    if (graph && (only_gradients || uses_onednn(*x, *w))) {
      *out = new Tensor(Linear::apply(*x, *w, bias, only_gradients));
    } else {
      *out = new Tensor(only_gradients ? zeros(*x, *w) : product(*x, *w, bias));
    }
  });
}
}

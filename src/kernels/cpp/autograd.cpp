// The operators of this crate as libtorch's autograd sees them, behind a C face.
//
// Tensors come in as `at::Tensor*`, which is what tch's pointers are, and go out as new ones that Rust owns. No
// exception crosses into Rust: a call returns nullptr, or the text of what went wrong, to be freed with
// vidtui_kernels_free.

#include "ttt.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdlib>
#include <cstring>
#include <optional>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
// A tensor that may be absent: autograd asks every tensor argument for its device.
using Maybe = std::optional<Tensor>;

const float* numbers(const Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }
float* room(const Tensor& t) { return t.defined() ? t.mutable_data_ptr<float>() : nullptr; }
Tensor plain(const Tensor& t) { return t.defined() ? t.to(at::kFloat).contiguous() : t; }

// q, k, target, eta, gamma, beta, w1, b1, w2, b2: the order of the operator's tensors throughout this file.
constexpr size_t kTensors = 10;

TttShape shape_of(const variable_list& x, int64_t mini_batch, int64_t group, double eps) {
  const Tensor &q = x[0], &gamma = x[4], &w1 = x[6];
  const bool mlp = x[8].defined();
  return {q.size(0), gamma.size(0), q.size(1), q.size(2), mlp ? w1.size(2) : 0, mini_batch, group,
          static_cast<float>(eps)};
}

TttInputs inputs_of(const variable_list& x) {
  return {numbers(x[0]), numbers(x[1]), numbers(x[2]), numbers(x[3]), numbers(x[4]),
          numbers(x[5]), numbers(x[6]), numbers(x[7]), numbers(x[8]), numbers(x[9])};
}

// The TTT scan. The inner state is fp32 whatever comes in; the output has the dtype of the queries.
struct Scan : torch::autograd::Function<Scan> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& target, const Tensor& eta,
                        const Tensor& gamma, const Tensor& beta, const Tensor& w1, const Tensor& b1,
                        const Maybe& w2, const Maybe& b2, int64_t mini_batch, int64_t group, double eps, bool save) {
    const variable_list came{q, k, target, eta, gamma, beta, w1, b1, w2.value_or(Tensor()), b2.value_or(Tensor())};
    variable_list x;
    for (const Tensor& t : came) x.push_back(plain(t));
    const TttShape shape = shape_of(x, mini_batch, group, eps);
    const Tensor out = at::empty({shape.sequences, shape.length, shape.width}, at::kFloat);
    const Tensor saved = save ? at::empty({shape.sequences, ttt_saved_size(shape)}, at::kFloat) : Tensor();
    ttt_forward(shape, inputs_of(x), room(out), room(saved));
    if (save) {
      x.push_back(saved);
      ctx->save_for_backward(x);
      ctx->saved_data["mini_batch"] = mini_batch;
      ctx->saved_data["group"] = group;
      ctx->saved_data["eps"] = eps;
      at::List<int64_t> kinds;
      for (const Tensor& t : came) kinds.push_back(t.defined() ? static_cast<int64_t>(t.scalar_type()) : -1);
      ctx->saved_data["kinds"] = kinds;
    }
    return out.to(q.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const variable_list x = ctx->get_saved_variables();
    const TttShape shape = shape_of(x, ctx->saved_data["mini_batch"].toInt(), ctx->saved_data["group"].toInt(),
                                    ctx->saved_data["eps"].toDouble());
    variable_list g;
    for (size_t i = 0; i < kTensors; ++i) {
      // The first four belong to sequences; the rest to heads, with one row per sequence until they are summed below.
      std::vector<int64_t> size = x[i].defined() ? x[i].sizes().vec() : std::vector<int64_t>();
      if (i >= 4 && x[i].defined()) size[0] = shape.sequences;
      g.push_back(x[i].defined() ? at::empty(size, at::kFloat) : Tensor());
    }
    const TttGrads grads{room(g[0]), room(g[1]), room(g[2]), room(g[3]), room(g[4]),
                         room(g[5]), room(g[6]), room(g[7]), room(g[8]), room(g[9])};
    const Tensor grad_out = plain(grad_outputs[0]);
    ttt_backward(shape, inputs_of(x), numbers(x[kTensors]), numbers(grad_out), grads);
    const auto kinds = ctx->saved_data["kinds"].toIntVector();
    for (size_t i = 0; i < kTensors; ++i) {
      if (!g[i].defined()) continue;
      if (i >= 4) {
        std::vector<int64_t> size = g[i].sizes().vec();
        size[0] = shape.heads;
        size.insert(size.begin(), shape.sequences / shape.heads);
        g[i] = g[i].view(size).sum(0);
      }
      g[i] = g[i].to(static_cast<at::ScalarType>(kinds[i]));
    }
    g.resize(kTensors + 4);
    return g;
  }
};

// Full attention whose forward result may be known already: then only its backward pass is computed.
struct Attention : torch::autograd::Function<Attention> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Maybe& known_out, const Maybe& known_logsumexp) {
    Tensor out, logsumexp;
    if (known_out && known_logsumexp) {
      // New tensors over the same numbers: what goes into a function must not come out of it.
      out = known_out->detach();
      logsumexp = known_logsumexp->detach();
    } else {
      std::tie(out, logsumexp) = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, false);
    }
    ctx->save_for_backward({q, k, v, out, logsumexp});
    ctx->mark_non_differentiable({logsumexp});
    return {out, logsumexp};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const variable_list x = ctx->get_saved_variables();
    auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(grad_outputs[0], x[0], x[1], x[2], x[3],
                                                                              x[4], 0.0, false);
    return {q, k, v, Tensor(), Tensor()};
  }
};

char* copy_text(const char* text) {
  char* copy = strdup(text);
  // Out of memory while reporting an error: there is nothing left to report it with.
  if (copy == nullptr) std::abort();
  return copy;
}

template <typename F>
char* guarded(F&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    return copy_text(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return copy_text(error.what());
  } catch (...) {
    return copy_text("an exception without a description");
  }
}

Maybe given(const Tensor* t) { return t == nullptr ? Maybe() : Maybe(*t); }

}  // namespace

extern "C" {

void vidtui_kernels_free(char* text) { std::free(text); }

// `tensors` are the ten of the scan; the last two may be null.
char* vidtui_ttt_scan(const Tensor* const* tensors, int64_t mini_batch, int64_t group, double eps, Tensor** out) {
  return guarded([&] {
    const auto t = [&](size_t i) -> const Tensor& { return *tensors[i]; };
    bool save = false;
    for (size_t i = 0; i < kTensors; ++i) save = save || (tensors[i] != nullptr && t(i).requires_grad());
    save = save && at::GradMode::is_enabled();
    *out = new Tensor(Scan::apply(t(0), t(1), t(2), t(3), t(4), t(5), t(6), t(7), given(tensors[8]), given(tensors[9]),
                                  mini_batch, group, eps, save));
  });
}

// `known_out` and `known_logsumexp` are null unless the result is known.
char* vidtui_attention(const Tensor* q, const Tensor* k, const Tensor* v, const Tensor* known_out,
                       const Tensor* known_logsumexp, Tensor** out, Tensor** logsumexp) {
  return guarded([&] {
    variable_list result = Attention::apply(*q, *k, *v, given(known_out), given(known_logsumexp));
    *out = new Tensor(result[0]);
    *logsumexp = new Tensor(result[1]);
  });
}
}

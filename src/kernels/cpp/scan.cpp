// The TTT scan as an autograd function.

#include "interface.h"
#include "scan_cuda.h"
#include "ttt.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <memory>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const float* numbers(const Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }
float* room(const Tensor& t) { return t.defined() ? t.mutable_data_ptr<float>() : nullptr; }
Tensor plain(const Tensor& t) { return t.defined() ? t.to(at::kFloat).contiguous() : t; }

// q, k, target, eta, gamma, beta, w1, b1, w2, b2: the order of the operator's tensors throughout this file.
constexpr size_t kTensors = scan_cuda::kTensors;

// The implementation of the scan. The numbers are those of Rust.
enum class Means : int64_t {
  Default = 0,     // the kernel on the CPU, ATen's operators elsewhere
  Operators = 1,   // ATen's operators everywhere
  CudaKernel = 2,  // the CUDA kernel, on a GPU
};

TttShape shape_of(const variable_list& x, int64_t mini_batch, int64_t group, int64_t blocks, double eps) {
  const Tensor &q = x[0], &gamma = x[4], &w1 = x[6];
  const bool mlp = x[8].defined();
  return {q.size(0), gamma.size(0), q.size(1), q.size(2), mlp ? w1.size(2) : 0, mini_batch, group, blocks,
          static_cast<float>(eps)};
}

// The output of a scan and the states for its backward pass, which the forward pass of a block keeps.
struct SavedScan {
  Tensor out;
  variable_list states;
};

TttInputs inputs_of(const variable_list& x) {
  return {numbers(x[0]), numbers(x[1]), numbers(x[2]), numbers(x[3]), numbers(x[4]),
          numbers(x[5]), numbers(x[6]), numbers(x[7]), numbers(x[8]), numbers(x[9])};
}

// The scan in ATen's operators, for devices without a kernel. The backward pass recomputes the mini-batches of one group
// at a time with an autograd graph.
namespace generic {

// W1, b1, W2, b2 of every sequence; the last two are undefined for the linear kind.
using State = std::array<Tensor, 4>;

// Expands the heads' tensors to one row per sequence.
Tensor for_sequences(const Tensor& t, int64_t sequences) {
  std::vector<int64_t> repeats(t.dim(), 1);
  repeats[0] = sequences / t.size(0);
  return t.repeat(repeats);
}

Tensor norm(const Tensor& z, double eps, Tensor* inverse) {
  const Tensor centred = z - z.mean(-1, true);
  *inverse = (centred.square().mean(-1, true) + eps).rsqrt();
  return centred * *inverse;
}

Tensor hidden(const State& w, const Tensor& x) { return at::baddbmm(w[1], x, w[0]); }

Tensor inner(const State& w, const Tensor& x) {
  const Tensor z = hidden(w, x);
  return w[2].defined() ? at::baddbmm(w[3], at::gelu(z, "tanh"), w[2]) : z;
}

// One mini-batch: updates the weights from keys and targets, then applies them to the queries. ttt.rs has the formulas.
Tensor step(State& w, const Tensor& q, const Tensor& k, const Tensor& target, const Tensor& eta, const Tensor& gamma,
            const Tensor& beta, double eps) {
  const Tensor z1 = hidden(w, k);
  const bool mlp = w[2].defined();
  const Tensor x = mlp ? at::gelu(z1, "tanh") : k, z = mlp ? at::baddbmm(w[3], x, w[2]) : z1;
  Tensor inverse;
  const Tensor hat = norm(z, eps, &inverse), g = (gamma * hat + beta - target) * gamma;
  const Tensor g2 = (g - g.mean(-1, true) - hat * (g * hat).mean(-1, true)) * inverse;
  const auto learn = [&](size_t at, const Tensor& from, const Tensor& gradient) {
    const Tensor scaled = eta.unsqueeze(-1) * gradient;
    w[at] = at::baddbmm(w[at], from.transpose(1, 2), scaled, 1, -1);
    w[at + 1] = w[at + 1] - scaled.sum(1, true);
  };
  if (mlp) {
    // gelu's derivative as an expression, because it is differentiated too.
    const Tensor t = at::tanh(0.7978845608028654 * (z1 + 0.044715 * z1.pow(3)));
    const Tensor slope = 0.5 * (1 + t) + 0.5 * z1 * (1 - t.square()) * 0.7978845608028654 * (1 + 3 * 0.044715 * z1.square());
    const Tensor g1 = at::bmm(g2, w[2].transpose(1, 2)) * slope;
    learn(2, x, g2);
    learn(0, k, g1);
  } else {
    learn(0, k, g2);
  }
  return q + gamma * norm(inner(w, q), eps, &inverse) + beta;
}

// Scans the mini-batches of `tokens` (queries, keys, targets and learning rates) and updates the state `w`.
Tensor walk(State& w, const std::array<Tensor, 4>& tokens, const Tensor& gamma, const Tensor& beta,
            const TttShape& shape) {
  const auto spread = [&](const Tensor& t) { return for_sequences(t, shape.sequences).unsqueeze(1); };
  const Tensor gammas = spread(gamma), betas = spread(beta);
  // One split for all mini-batches, because the gradient of each separate slice would be as long as the whole tensor.
  std::array<std::vector<Tensor>, 4> parts;
  for (size_t i = 0; i < 4; ++i) parts[i] = tokens[i].split(shape.mini_batch, 1);
  std::vector<Tensor> out;
  for (size_t i = 0; i < parts[0].size(); ++i) {
    out.push_back(step(w, parts[0][i], parts[1][i], parts[2][i], parts[3][i], gammas, betas, shape.eps));
  }
  return at::cat(out, 1);
}

State first_state(const variable_list& x, const TttShape& shape) {
  State w;
  for (size_t i = 0; i < 4; ++i) {
    if (x[6 + i].defined()) w[i] = for_sequences(x[6 + i], shape.sequences);
  }
  return w;
}

// The tokens of a group of mini-batches.
std::array<Tensor, 4> tokens_of(const variable_list& x, const TttShape& shape, int64_t group) {
  const int64_t from = group * shape.group * shape.mini_batch;
  const int64_t len = std::min(shape.group * shape.mini_batch, shape.length - from);
  std::array<Tensor, 4> tokens;
  for (size_t i = 0; i < 4; ++i) tokens[i] = x[i].narrow(1, from, len);
  return tokens;
}

int64_t groups_of(const TttShape& shape) {
  const int64_t len = shape.group * shape.mini_batch;
  return (shape.length + len - 1) / len;
}

// `saved` holds the states before every group but the first.
Tensor forward(const variable_list& x, const TttShape& shape, variable_list* saved) {
  State w = first_state(x, shape);
  std::vector<Tensor> out;
  for (int64_t group = 0; group < groups_of(shape); ++group) {
    if (saved != nullptr && group > 0) saved->insert(saved->end(), w.begin(), w.end());
    out.push_back(walk(w, tokens_of(x, shape, group), x[4], x[5], shape));
  }
  return at::cat(out, 1);
}

// Returns the gradients of the ten tensors; the saved states follow them in `x`.
variable_list backward(const variable_list& x, const TttShape& shape, const Tensor& grad_out) {
  at::AutoGradMode recording(true);
  const auto leaf = [](const Tensor& t) { return t.defined() ? t.detach().requires_grad_(true) : Tensor(); };
  variable_list total(kTensors);
  std::array<std::vector<Tensor>, 4> of_tokens;
  State grad_state;
  for (int64_t group = groups_of(shape) - 1; group >= 0; --group) {
    // Leaves: tokens, gamma and beta, and the state before the group. For the first group, that state is the learned
    // weights.
    variable_list leaves;
    std::array<Tensor, 4> tokens = tokens_of(x, shape, group);
    for (Tensor& t : tokens) leaves.push_back(t = leaf(t));
    for (size_t i = 4; i < 6; ++i) leaves.push_back(leaf(x[i]));
    for (size_t i = 0; i < 4; ++i) leaves.push_back(leaf(group > 0 ? x[kTensors + 4 * (group - 1) + i] : x[6 + i]));
    State w = group > 0 ? State{leaves[6], leaves[7], leaves[8], leaves[9]} : first_state(leaves, shape);

    const Tensor out = walk(w, tokens, leaves[4], leaves[5], shape);
    const int64_t from = group * shape.group * shape.mini_batch;
    variable_list outputs{out}, cotangents{grad_out.narrow(1, from, out.size(1))}, inputs;
    for (size_t i = 0; i < 4; ++i) {
      if (!grad_state[i].defined()) continue;
      outputs.push_back(w[i]);
      cotangents.push_back(grad_state[i]);
    }
    for (const Tensor& t : leaves) {
      if (t.defined()) inputs.push_back(t);
    }
    const variable_list grads = torch::autograd::grad(outputs, inputs, cotangents);
    for (size_t i = 0, next = 0; i < kTensors; ++i) {
      if (!leaves[i].defined()) continue;
      const Tensor& grad = grads[next++];
      if (i < 4) {
        of_tokens[i].insert(of_tokens[i].begin(), grad);
      } else if (i < 6) {
        total[i] = total[i].defined() ? total[i] + grad : grad;
      } else if (group > 0) {
        grad_state[i - 6] = grad;
      } else {
        total[i] = grad;
      }
    }
  }
  for (size_t i = 0; i < 4; ++i) total[i] = at::cat(of_tokens[i], 1);
  return total;
}

}  // namespace generic

// The TTT scan. The inner state is always fp32; the output has the dtype of the queries.
struct Scan : torch::autograd::Function<Scan> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& target, const Tensor& eta,
                        const Tensor& gamma, const Tensor& beta, const Tensor& w1, const Tensor& b1,
                        const Maybe& w2, const Maybe& b2, int64_t mini_batch, int64_t group, int64_t blocks, double eps,
                        bool save, Means means, const SavedScan* known, SavedScan* made) {
    const variable_list came{q, k, target, eta, gamma, beta, w1, b1, w2.value_or(Tensor()), b2.value_or(Tensor())};
    variable_list x;
    for (const Tensor& t : came) x.push_back(means == Means::CudaKernel ? scan_cuda::plain(t, x.size()) : plain(t));
    const TttShape shape = shape_of(x, mini_batch, group, blocks, eps);
    Tensor out;
    variable_list states;
    variable_list* const saved = save || made != nullptr ? &states : nullptr;
    if (known != nullptr) {
      // An alias, because an autograd function must not return its inputs.
      out = known->out.detach();
      states = known->states;
    } else if (means == Means::CudaKernel) {
      out = scan_cuda::forward(x, shape, saved);
    } else if (is_cpu_kernel(means, q)) {
      out = at::empty({shape.sequences, shape.length, shape.width}, at::kFloat);
      if (saved != nullptr) states.push_back(at::empty({shape.sequences, ttt_saved_size(shape)}, at::kFloat));
      ttt_forward(shape, inputs_of(x), room(out), saved != nullptr ? room(states[0]) : nullptr);
    } else {
      out = generic::forward(x, shape, saved);
    }
    out = out.to(q.scalar_type());
    if (made != nullptr) *made = {out, states};
    if (save) {
      x.insert(x.end(), states.begin(), states.end());
      ctx->save_for_backward(x);
      ctx->saved_data["mini_batch"] = mini_batch;
      ctx->saved_data["group"] = group;
      ctx->saved_data["blocks"] = blocks;
      ctx->saved_data["eps"] = eps;
      ctx->saved_data["means"] = static_cast<int64_t>(means);
      at::List<int64_t> kinds;
      for (const Tensor& t : came) kinds.push_back(t.defined() ? static_cast<int64_t>(t.scalar_type()) : -1);
      ctx->saved_data["kinds"] = kinds;
    }
    return out;
  }

  static bool is_cpu_kernel(Means means, const Tensor& q) { return means == Means::Default && q.device().is_cpu(); }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const variable_list x = ctx->get_saved_variables();
    const TttShape shape = shape_of(x, ctx->saved_data["mini_batch"].toInt(), ctx->saved_data["group"].toInt(),
                                    ctx->saved_data["blocks"].toInt(), ctx->saved_data["eps"].toDouble());
    const auto means = static_cast<Means>(ctx->saved_data["means"].toInt());
    const Tensor grad_out = means == Means::CudaKernel ? grad_outputs[0] : plain(grad_outputs[0]);
    variable_list g = means == Means::CudaKernel   ? scan_cuda::backward(x, shape, grad_out)
                      : is_cpu_kernel(means, x[0]) ? by_kernel(x, shape, grad_out)
                                                   : generic::backward(x, shape, grad_out);
    const auto kinds = ctx->saved_data["kinds"].toIntVector();
    for (size_t i = 0; i < kTensors; ++i) {
      if (g[i].defined()) g[i] = g[i].to(static_cast<at::ScalarType>(kinds[i]));
    }
    // The other arguments of the forward pass have no gradients.
    g.resize(kTensors + 8);
    return g;
  }

  static variable_list by_kernel(const variable_list& x, const TttShape& shape, const Tensor& grad_out) {
    variable_list g;
    for (size_t i = 0; i < kTensors; ++i) {
      // The first four are per sequence. The others are per head, with one row per sequence until they are summed below.
      std::vector<int64_t> size = x[i].defined() ? x[i].sizes().vec() : std::vector<int64_t>();
      if (i >= 4 && x[i].defined()) size[0] = shape.sequences;
      g.push_back(x[i].defined() ? at::empty(size, at::kFloat) : Tensor());
    }
    const TttGrads grads{room(g[0]), room(g[1]), room(g[2]), room(g[3]), room(g[4]),
                         room(g[5]), room(g[6]), room(g[7]), room(g[8]), room(g[9])};
    ttt_backward(shape, inputs_of(x), numbers(x[kTensors]), numbers(grad_out), grads);
    sum_over_samples(g, shape);
    return g;
  }
};

}  // namespace

extern "C" {

// Whether this program has CUDA kernels of the scan and a GPU can run them for these sizes.
int vidtui_ttt_supports(int mlp, int64_t width, int64_t mini_batch, int device) {
  return scan_cuda::supports(mlp != 0, width, mini_batch, device) ? 1 : 0;
}

// Whether they can be run in clusters of `blocks` blocks.
int vidtui_ttt_supports_clusters(int mlp, int64_t width, int64_t blocks, int device) {
  return scan_cuda::supports_clusters(mlp != 0, width, blocks, device) ? 1 : 0;
}

void vidtui_saved_scan_drop(SavedScan* saved) { delete saved; }

// `tensors` are the ten tensors of the scan; the last two may be null. `known`, unless null, is the result for the same inputs: nothing
// is computed. Unless `made` is null, the result is also returned there, to be freed with vidtui_saved_scan_drop.
TorchError* vidtui_ttt_scan(const Tensor* const* tensors, int64_t mini_batch, int64_t group, int64_t blocks, double eps, int means,
                      const SavedScan* known, SavedScan** made, Tensor** out) {
  return guarded([&] {
    const auto t = [&](size_t i) -> const Tensor& { return *tensors[i]; };
    bool save = false;
    for (size_t i = 0; i < kTensors; ++i) save = save || (tensors[i] != nullptr && t(i).requires_grad());
    save = save && at::GradMode::is_enabled();
    auto saved = made != nullptr ? std::make_unique<SavedScan>() : nullptr;
    *out = new Tensor(Scan::apply(t(0), t(1), t(2), t(3), t(4), t(5), t(6), t(7), given(tensors[8]), given(tensors[9]),
                                  mini_batch, group, blocks, eps, save, static_cast<Means>(means), known, saved.get()));
    if (made != nullptr) *made = saved.release();
  });
}
}

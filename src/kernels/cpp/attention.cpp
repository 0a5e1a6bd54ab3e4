// Full attention as an autograd function on libtorch's kernels. ../src/attention.rs chooses the kernel.

#include "attention_cuda.h"
#include "interface.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The numbers are those of Rust.
enum class Kernel : int64_t { Cpu = 0, Flash = 1, Efficient = 2, Cudnn = 3 };

// What a kernel's backward pass needs of its forward pass besides the inputs. `seed` and `offset` are the state of the random generator
// for dropout, which is not used; kernels of GPUs take it all the same.
struct SavedAttention {
  Kernel kernel;
  Tensor out, logsumexp, seed, offset;
};

SavedAttention attend(Kernel kernel, const Tensor& q, const Tensor& k, const Tensor& v) {
  switch (kernel) {
    case Kernel::Cpu: {
      const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, false);
      return {kernel, out, logsumexp, Tensor(), Tensor()};
    }
    case Kernel::Flash: {
      const auto all = at::_scaled_dot_product_flash_attention(q, k, v, 0.0, false, false);
      return {kernel, std::get<0>(all), std::get<1>(all), std::get<6>(all), std::get<7>(all)};
    }
    case Kernel::Efficient: {
      const auto [out, logsumexp, seed, offset] = at::_scaled_dot_product_efficient_attention(q, k, v, {}, true);
      return {kernel, out, logsumexp, seed, offset};
    }
    case Kernel::Cudnn: {
      const auto all = at::_scaled_dot_product_cudnn_attention(q, k, v, {}, true, 0.0, false, false);
      return {kernel, std::get<0>(all), std::get<1>(all), std::get<6>(all), std::get<7>(all)};
    }
  }
  TORCH_CHECK(false, "no attention kernel has the number ", static_cast<int64_t>(kernel));
}

variable_list gradients(Kernel kernel, const Tensor& grad, const variable_list& x) {
  const Tensor &q = x[0], &k = x[1], &v = x[2], &out = x[3], &logsumexp = x[4], &seed = x[5], &offset = x[6];
  const auto three = [](const auto& all) -> variable_list { return {std::get<0>(all), std::get<1>(all), std::get<2>(all)}; };
  switch (kernel) {
    case Kernel::Cpu:
      return three(at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, logsumexp, 0.0, false));
    case Kernel::Flash:
      return three(at::_scaled_dot_product_flash_attention_backward(grad, q, k, v, out, logsumexp, {}, {}, q.size(2), k.size(2),
                                                                    0.0, false, seed, offset));
    case Kernel::Efficient:
      return three(at::_scaled_dot_product_efficient_attention_backward(grad, q, k, v, {}, out, logsumexp, seed, offset, 0.0,
                                                                        {true, true, true, false}));
    case Kernel::Cudnn:
      return three(at::_scaled_dot_product_cudnn_attention_backward(grad, q, k, v, out, logsumexp, seed, offset, {}, {}, {},
                                                                    q.size(2), k.size(2), 0.0, false));
  }
  return {};
}

// Full attention. If the result is known, only the backward pass is computed.
struct Attention : torch::autograd::Function<Attention> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, Kernel kernel,
                        const SavedAttention* known, SavedAttention* made) {
    SavedAttention result = known != nullptr ? *known : attend(kernel, q, k, v);
    // An alias, because an autograd function must not return its inputs, and saved results must not have a graph.
    const Tensor out = result.out.detach();
    ctx->save_for_backward({q, k, v, out, result.logsumexp, result.seed, result.offset});
    ctx->saved_data["kernel"] = static_cast<int64_t>(result.kernel);
    if (made != nullptr) *made = std::move(result);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const auto kernel = static_cast<Kernel>(ctx->saved_data["kernel"].toInt());
    variable_list grads = gradients(kernel, grad_outputs[0], ctx->get_saved_variables());
    // The other arguments of the forward pass have no gradients.
    grads.resize(6);
    return grads;
  }
};

}  // namespace

extern "C" {

// The major number of the compute capability of the tensors' GPU, and whether cuDNN has a kernel for them.
TorchError* vidtui_attention_gpu(const Tensor* q, const Tensor* k, const Tensor* v, int* major, bool* cudnn_can_run) {
  return guarded([&] {
    *major = attention_cuda::major(*q);
    *cudnn_can_run = attention_cuda::cudnn_can_run(*q, *k, *v);
  });
}

void vidtui_saved_attention_drop(SavedAttention* saved) { delete saved; }

// `known`, unless null, is the result for the same inputs: nothing is computed, and its kernel computes the gradients. Unless `made` is
// null, the result is also returned there, to be freed with vidtui_saved_attention_drop.
TorchError* vidtui_attention(const Tensor* q, const Tensor* k, const Tensor* v, int kernel, const SavedAttention* known,
                       SavedAttention** made, Tensor** out) {
  return guarded([&] {
    auto saved = made != nullptr ? std::make_unique<SavedAttention>() : nullptr;
    *out = new Tensor(Attention::apply(*q, *k, *v, static_cast<Kernel>(kernel), known, saved.get()));
    if (made != nullptr) *made = saved.release();
  });
}
}

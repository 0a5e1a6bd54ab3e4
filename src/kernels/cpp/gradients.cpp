// Gradients with cotangents, which tch's binding of the autograd engine has not.

#include "interface.h"

#include <torch/csrc/autograd/autograd.h>

#include <vector>

extern "C" {

// Writes a new tensor for each input: the gradient of the sum of ⟨output, cotangent⟩, or null if no output depends on the input. Frees
// the graph.
TorchError* vidtui_gradients(const at::Tensor* const* outputs, const at::Tensor* const* cotangents, size_t count,
                       const at::Tensor* const* inputs, size_t wanted, at::Tensor** grads) {
  return guarded([&] {
    const auto list = [](const at::Tensor* const* from, size_t n) {
      torch::autograd::variable_list all;
      for (size_t i = 0; i < n; ++i) all.push_back(*from[i]);
      return all;
    };
    const bool keeps_graph = false, makes_graph = false, allows_unused = true;
    const auto all = torch::autograd::grad(list(outputs, count), list(inputs, wanted), list(cotangents, count), keeps_graph, makes_graph,
                                           allows_unused);
    for (size_t i = 0; i < wanted; ++i) grads[i] = all[i].defined() ? new at::Tensor(all[i]) : nullptr;
  });
}
}

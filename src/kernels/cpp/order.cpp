// Tokens in another order, with gradients that are gathered.
//
// The gradient of at::index_select is added to zeros by at::index_add: atomic additions on a GPU, which are slow, and whose order differs
// from run to run. Here the gradient is selected too.

#include "interface.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Places of tokens. L tokens, S places.
struct Places {
  Tensor there;  // [S], the token at each place
  Tensor first;  // [L], the first place of each token
  Maybe last;    // [L], its last place; nothing if every token has one place
  Maybe halves;  // [L], half the number of its places, 0.5 or 1
};

// x [B, L, ...] -> [B, S, ...].
Tensor selected(const Tensor& x, const Places& places) { return x.index_select(1, places.there); }

// x [B, S, ...] -> [B, L, ...]: the sum over the places of each token. A token of one place is added to itself and halved, which is exact.
Tensor summed(const Tensor& x, const Places& places) {
  const Tensor first = x.index_select(1, places.first);
  if (!places.last) return first;
  std::vector<int64_t> size(x.dim(), 1);
  size[1] = -1;
  return (first + x.index_select(1, *places.last)) * places.halves->to(x.scalar_type()).view(size);
}

// One of the two functions, whose gradient is the other one.
template <bool sums>
struct Order : torch::autograd::Function<Order<sums>> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& there, const Tensor& first,
                        const Maybe& last, const Maybe& halves) {
    ctx->save_for_backward({there, first, last.value_or(Tensor()), halves.value_or(Tensor())});
    const Places places{there, first, last, halves};
    return sums ? summed(x, places) : selected(x, places);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto maybe = [](const Tensor& t) { return t.defined() ? Maybe(t) : Maybe(); };
    const Places places{saved[0], saved[1], maybe(saved[2]), maybe(saved[3])};
    return {sums ? selected(grads[0], places) : summed(grads[0], places), {}, {}, {}, {}};
  }
};

}  // namespace

extern "C" {

// `last` and `halves` are both null, or neither is.
TorchError* vidtui_order(const Tensor* x, const Tensor* there, const Tensor* first, const Tensor* last, const Tensor* halves,
                   bool sums, Tensor** out) {
  return guarded([&] {
    const Maybe also = given(last), half = given(halves);
    *out = new Tensor(sums ? Order<true>::apply(*x, *there, *first, also, half)
                           : Order<false>::apply(*x, *there, *first, also, half));
  });
}
}

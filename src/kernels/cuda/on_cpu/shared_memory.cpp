// Prints the bytes of shared memory that each kernel is launched with, for the longest mini-batch. nvcc does not show them, because
// the launch sets them.

#include <cstdio>

#include "ttt_backward.h"
#include "ttt_forward.h"

extern "C" {
// The emulator's header calls these; no kernel runs here.
void race_block(const void*, size_t, int, const int*) {}
void race_join(const int*, int) {}
void race_access(const void*, int, bool) {}
}

namespace {

template <int kWidth, bool kMlp>
void print() {
  using S = ttt::Sizes<kWidth, kMlp>;
  const auto line = [](const char* kernel, size_t bytes) {
    printf("%s %s %d: %zu bytes of shared memory\n", kernel, kMlp ? "mlp" : "linear", kWidth, bytes);
  };
  for (const char* kernel : {"forward", "replay"}) line(kernel, ttt::ForwardShared<S>(nullptr, ttt::kMostTokens).size);
  line("chain", ttt::ChainShared<S>(nullptr, ttt::kMostTokens).size);
  if (kMlp) line("keys", ttt::KeysShared<S>(nullptr, ttt::kMostTokens).size);
}

template <int... kWidths>
void print_all() {
  (print<kWidths, false>(), ...);
  (print<kWidths, true>(), ...);
}

}  // namespace

int main() { print_all<16, 32, 48, 64>(); }

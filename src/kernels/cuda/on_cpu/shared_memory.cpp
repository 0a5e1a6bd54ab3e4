// Prints the bytes of shared memory that each kernel is launched with, for the longest mini-batch. nvcc does not show them, because
// the launch sets them.

#include <cstdio>

#include "ttt_backward.h"
#include "ttt_forward.h"

extern "C" {
// The emulator's header calls these; no kernel runs here.
void race_cluster(const void*, size_t, size_t, int, int, const int*) {}
void race_join(const int*, int) {}
void race_access(const void*, int, bool) {}
void race_access_of_any_block(const void*, int, bool) {}
}

namespace {

template <int kWidth, bool kMlp, int kBlocks = 1>
void print() {
  using S = ttt::Sizes<kWidth, kMlp, kBlocks>;
  const auto line = [](const char* kernel, size_t bytes) {
    printf("%s %s %d", kernel, kMlp ? "mlp" : "linear", kWidth);
    if (kBlocks > 1) printf(" of %d blocks", kBlocks);
    printf(": %zu bytes of shared memory\n", bytes);
  };
  line("forward", ttt::ForwardShared<S>(nullptr, ttt::kMostTokens).size);
  line("chain", ttt::ChainShared<S>(nullptr, ttt::kMostTokens).size);
  if (kBlocks > 1) return;
  line("replay", ttt::ForwardShared<S>(nullptr, ttt::kMostTokens).size);
  if (kMlp) line("keys", ttt::KeysShared<S>(nullptr, ttt::kMostTokens).size);
}

template <int... kWidths>
void print_all() {
  (print<kWidths, false>(), ...);
  (print<kWidths, true>(), ...);
}

}  // namespace

int main() {
  print_all<16, 32, 48, 64>();
  print<64, true, 2>();
  print<64, true, 4>();
}

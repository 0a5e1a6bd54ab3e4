// Normal numbers on the CPU. Compiled without libtorch's headers, and without options that change the order or the rounding of
// operations.

#include "normal_cpu.h"

#include "../cuda/normal.h"

#include <algorithm>

namespace normal_cpu {

namespace {

// Blocks that are made together, so that the compiler uses vector instructions.
constexpr int kBlocks = 64;

// The loader chooses the version for the CPU. Both give the same bits.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__)
__attribute__((target_clones("avx2", "default")))
#endif
void
some(uint64_t key, uint64_t first, float (&numbers)[kBlocks][4]) {
  uint32_t words[4][kBlocks];
  for (int b = 0; b < kBlocks; ++b) {
    uint32_t of_block[4] = {uint32_t(first + b), uint32_t((first + b) >> 32), 0, 0};
    normal::philox(uint32_t(key), uint32_t(key >> 32), of_block);
    for (int i = 0; i < 4; ++i) words[i][b] = of_block[i];
  }
  float made[4][kBlocks];
  for (int i = 0; i < 4; ++i) {
    for (int b = 0; b < kBlocks; ++b) made[i][b] = normal::of_word(words[i][b]);
  }
  for (int b = 0; b < kBlocks; ++b) {
    for (int i = 0; i < 4; ++i) numbers[b][i] = made[i][b];
  }
}

}  // namespace

void fill(uint64_t key, int64_t begin, int64_t end, float* out) {
  float numbers[kBlocks][4];
  for (int64_t at = begin; at < end; at += 4 * kBlocks) {
    some(key, uint64_t(at / 4), numbers);
    std::copy_n(&numbers[0][0], std::min<int64_t>(4 * kBlocks, end - at), out + (at - begin));
  }
}

}  // namespace normal_cpu

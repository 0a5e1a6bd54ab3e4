// Runs the kernel of normal numbers on the emulator, and compares it with the numbers of each counter.
//
//   normal_check KEY COUNT SEED    compares COUNT numbers
//   normal_check hash              prints the hash of the first 100,000 numbers of key 7
//   normal_check words             prints the words of Philox for the counters and keys of its authors' test

#include "normal_kernel.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

extern "C" size_t race_count();

namespace {

void print_words(uint32_t key0, uint32_t key1, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  uint32_t words[4] = {a, b, c, d};
  normal::philox(key0, key1, words);
  printf("%08x %08x %08x %08x\n", words[0], words[1], words[2], words[3]);
}

constexpr int kGuard = 64;

bool agrees(uint64_t key, int64_t count, unsigned seed) {
  struct alignas(16) Four { float v[4]; };
  std::vector<Four> memory(size_t(count) / 4 + 1 + 2 * kGuard);
  memset(static_cast<void*>(memory.data()), 0xff, memory.size() * sizeof(Four));
  float* out = memory[kGuard].v;
  const unsigned blocks = unsigned((count + 4 * normal::kThreads - 1) / (4 * normal::kThreads));
  emulator::launch({blocks, 1, 1}, normal::kThreads, 0, seed, [&] { normal::numbers(key, count, out); });
  int64_t wrong = 0;
  for (int64_t n = -4 * kGuard; n < count + 4 * kGuard; ++n) {
    float wanted[4];
    if (n >= 0) normal::four(key, uint64_t(n / 4), wanted);
    const uint32_t expected = n >= 0 && n < count ? normal::bits(wanted[n % 4]) : 0xffffffffu;
    wrong += normal::bits(out[n]) != expected;
  }
  if (wrong > 0) printf("%lld numbers differ\n", static_cast<long long>(wrong));
  return wrong == 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 2 && strcmp(arguments[1], "words") == 0) {
    print_words(0, 0, 0, 0, 0, 0);
    print_words(~0u, ~0u, ~0u, ~0u, ~0u, ~0u);
    print_words(0xa4093822, 0x299f31d0, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344);
    return 0;
  }
  if (count == 2 && strcmp(arguments[1], "hash") == 0) {
    uint64_t hash = 0xcbf29ce484222325;
    for (uint64_t block = 0; block < 25000; ++block) {
      float v[4];
      normal::four(7, block, v);
      for (float number : v) hash = (hash ^ normal::bits(number)) * 0x100000001b3;
    }
    printf("%016llx\n", static_cast<unsigned long long>(hash));
    return 0;
  }
  if (count != 4) return 4;
  const bool good = agrees(strtoull(arguments[1], nullptr, 10), atoll(arguments[2]), unsigned(atoi(arguments[3])));
  if (race_count() > 0) return 2;
  return good ? 0 : 1;
}
